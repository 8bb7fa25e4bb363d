"""Who may import whom: the order in which the program is understood, and what keeps graders from the engine."""

from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "entrypoint"

# Each room may import the rooms listed for it and itself.
VALUES = ("errors", "record", "process", "layout")
FILES = ("yaml_file", "field")
FACTS = ("job", "catalog", "host", "checkpoint", "source", "task_folder")
PLAN = ("plan", "fingerprint", "placement", "task_plan", "prepare")
DATA = ("data_lock", "data_folder", "data_rows", "data_fetch")
STAGES = ("collect", "generate", "grade", "settle")
ISOLATION = ("landlock", "syscall_filter", "isolation", "bubblewrap", "enforcement")
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "record": ("errors",),
    "process": (),
    "keeper": (),
    "cores": (),
    "layout": (),
    "yaml_file": ("errors",),
    "field": ("errors", "yaml_file"),
    "job": ("errors", *FILES),
    "catalog": ("errors", *FILES),
    "host": ("errors",),
    "checkpoint": ("errors", "record"),
    "source": ("errors",),
    "patch_series": ("errors", "source"),
    "task_folder": (),
    "plan": (*VALUES, *FACTS),
    "fingerprint": (*VALUES, "plan", "harness"),  # only the name of the checker of programs
    "placement": (*VALUES, *FACTS, "plan"),
    "task_plan": (*VALUES, *FACTS, "plan"),
    "lock": ("errors",),
    "data_lock": ("errors", "record", *FILES),
    "data_folder": (*VALUES, "data_lock", "plan"),
    "data_rows": (),
    "data_split": (),
    "data_fetch": ("errors", "data_lock"),
    "data_fill": (*VALUES, "lock", "data_lock", "data_folder", "data_rows", "data_split", "data_fetch"),
    "data_command": (*VALUES, *FACTS, *DATA, "data_fill", "prepare"),
    "prepare": (*VALUES, *FACTS, *PLAN, "completion", "data_lock", "data_folder", "enforcement"),
    "landlock": (),
    "syscall_filter": (),
    "isolation": ("landlock", "syscall_filter"),
    "bubblewrap": (),
    "enforcement": ISOLATION,
    "sandbox": (*VALUES, *ISOLATION),
    "harness": (*VALUES, "plan", "fingerprint", "isolation"),
    "engine": (*VALUES, "plan"),
    "completion": (*VALUES, "plan", "fingerprint"),
    "score": (*VALUES, "plan", "fingerprint", "completion"),
    "average": (*VALUES, "plan", "completion"),
    "stale": ("layout",),
    "collect": (*VALUES, "plan", "fingerprint", "sandbox"),
    "generate": (*VALUES, "plan", "engine"),
    "grade": (*VALUES, "plan", "fingerprint", "sandbox", "collect"),
    "settle": (*VALUES, "plan", "fingerprint", "completion", "score", "average", "stale"),
    "doctor": ("errors", "host", "source", "enforcement"),
    "provenance": (*VALUES, "plan", "host"),
    "report": (*VALUES, "plan", "completion", "average"),
    "stage": (*VALUES, "completion", "engine", "generate", "run"),
    "run": (
        *VALUES,
        "cores",
        "enforcement",
        "plan",
        "prepare",
        "fingerprint",
        "host",
        "engine",
        "completion",
        "provenance",
        *STAGES,
    ),
    "progress": ("completion", "generate"),
    "preview": (*VALUES, "data_folder", "fingerprint", "plan", "prepare"),
    "cli": (
        *VALUES,
        *FACTS,
        "patch_series",
        *PLAN,
        "completion",
        "progress",
        "preview",
        "lock",
        "report",
        "doctor",
        "run",
        "stage",
        "data_command",
        "data_folder",
    ),
    "__main__": ("cli",),
}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(file: Path) -> set[str]:
    """Rooms of this package that a file imports anywhere, also inside functions and for types only."""
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "entrypoint":
            rooms |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("entrypoint."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("entrypoint.")}
    return rooms


FILES_OF_PACKAGE = sorted(p for p in PACKAGE.rglob("*.py") if p.name != "__init__.py" or p.parent != PACKAGE)


def test_every_room_has_a_line_in_the_table() -> None:
    assert {room_of(f) for f in FILES_OF_PACKAGE} == set(MAY_IMPORT)


@pytest.mark.parametrize("file", FILES_OF_PACKAGE, ids=lambda f: str(f.relative_to(PACKAGE)))
def test_a_file_imports_only_what_its_room_may(file: Path) -> None:
    room = room_of(file)
    assert imported_rooms(file) <= {*MAY_IMPORT[room], room}


def test_harness_engine_and_sandbox_never_meet() -> None:
    for room in ("harness", "engine", "sandbox"):
        assert not {"harness", "engine", "sandbox"} - {room} & set(MAY_IMPORT[room])


def test_the_harness_environment_has_no_torch() -> None:
    installed = {d.metadata["Name"].lower() for d in importlib.metadata.distributions()}
    assert "torch" not in installed
    assert "lark" not in installed


def test_no_module_or_function_grows_beyond_a_screen() -> None:
    long = {}
    for file in FILES_OF_PACKAGE:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                if lines > 50:
                    long[f"{file.name}:{node.name}"] = lines
    assert not long
