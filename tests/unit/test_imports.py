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
FACTS = ("job", "catalog", "host", "gpu", "checkpoint", "source", "task_folder")
CHECKPOINT = ("architecture", "context", "shape", "template", "tokenizer", "vocabulary", "weights")
FITTING = ("need", "card_set", "clamp", "capacity", "shortfall", "notice", "card_lock")
PLAN = ("plan", "fingerprint", "placement", "task_plan", "prepare")
RUNNING = ("plan", "card_lock", "shortfall", "speed")
SHOWING = ("progress", "preview", "doctor")
EXPECTING = ("outlook", "estimate", "speed", "capacity", "shortfall")
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
    "gpu": ("errors",),
    "mig": ("errors", "gpu"),
    "visible": ("errors", "gpu"),
    "engine_home": ("errors",),
    "host": ("errors", "gpu", "mig", "visible", "engine_home"),
    "need": ("shape",),
    "card_set": ("errors", *FACTS, "need"),
    "clamp": ("errors", *FACTS, "need"),
    "capacity": (*FACTS, "plan", "need", "shape"),
    "shortfall": ("errors", *FACTS, "plan"),
    "notice": (*FACTS, "plan", "placement", "capacity", "shortfall"),
    "card_lock": ("errors", "gpu", "engine_home"),
    "json_file": ("errors",),
    "shape": (),
    "context": ("shape",),
    "architecture": ("errors", "context", "shape"),
    "template": ("errors", "json_file"),
    "tokenizer": ("errors", "json_file", "layout"),
    "shard": ("errors", "json_file", "record"),
    "weights": ("errors", "json_file", "shard"),
    "vocabulary": ("errors", "template", "tokenizer", "weights"),
    "checkpoint": ("errors", "record", "json_file", *CHECKPOINT),
    "source": ("errors",),
    "patch_series": ("errors", "source"),
    "task_folder": (),
    "plan": (*VALUES, *FACTS),
    "fingerprint": (*VALUES, "plan", "harness"),  # only the name of the checker of programs
    "placement": (*VALUES, *FACTS, "plan", "need", "card_set", "clamp"),
    "task_plan": (*VALUES, *FACTS, "plan"),
    "lock": ("errors",),
    "data_lock": ("errors", "record", *FILES),
    "data_folder": (*VALUES, "data_lock", "plan"),
    "data_rows": (),
    "data_split": (),
    "data_fetch": ("errors", "data_lock"),
    "data_fill": (*VALUES, "lock", "data_lock", "data_folder", "data_rows", "data_split", "data_fetch"),
    "data_command": (*VALUES, *FACTS, *DATA, "data_fill", "prepare"),
    "landlock": (),
    "syscall_filter": (),
    "isolation": ("landlock", "syscall_filter"),
    "bubblewrap": (),
    "enforcement": ISOLATION,
    "prepare": (*VALUES, *FACTS, *PLAN, *FITTING, *DATA, "architecture", "completion", "enforcement"),
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
    "provenance": (*VALUES, "plan", "host"),
    "report": (*VALUES, "plan", "completion", "average"),
    "stage": (*VALUES, "completion", "engine", "generate", "run"),
    "run": (
        *(*VALUES, "cores", "enforcement", "prepare", "fingerprint", "host", "engine", "completion", "provenance"),
        *(*RUNNING, *STAGES),
    ),
    "speed": ("layout", "plan"),
    "outlook": (*VALUES, "plan", "collect", "completion", "data_folder", "shortfall"),
    "estimate": ("plan", "capacity", "outlook", "speed"),
    "progress": ("completion", "generate"),
    "doctor": ("errors", *FACTS, "card_lock", "engine_home", "enforcement", "shortfall"),
    "preview": (
        *(*VALUES, *FITTING, *EXPECTING, "checkpoint", "data_folder", "fingerprint", "placement", "plan", "prepare"),
        "doctor",
    ),
    "cli": (
        *(*VALUES, *FACTS, *PLAN, *RUNNING, *SHOWING, "completion", "lock", "report", "run", "stage"),
        *("patch_series", "data_command", "data_folder"),
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
