"""Which files of a hub repository make up the splits of a data set, by the rules of the `datasets` library.

In: the paths in the repository and the `configs` of its data card. Out: the paths of each split, in the order of their
rows; ValueError when the rules give none. Names are all it takes: no data is read, and no script of a repository runs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from glob import has_magic
from pathlib import Path, PurePosixPath
from typing import Any

_EXTENSIONS = {"parquet": [".parquet"], "csv": [".csv", ".tsv"], "json": [".json", ".jsonl", ".ndjson"]}


def files_by_split(
    paths: Iterable[str], configs: Mapping[str, Mapping[str, Any]], config: str | None, file_format: str
) -> dict[str, tuple[str, ...]]:
    """`configs`: by name, what the data card says of each; `config` None is the default one."""
    from datasets.data_files import EmptyDatasetError, get_data_patterns, sanitize_patterns

    with tempfile.TemporaryDirectory(prefix="evalcrate-") as name:
        base = Path(name).resolve()
        _mirror(paths, base)
        said = _config(configs, config)
        base = base / said.get("data_dir", "")
        try:
            given = said.get("data_files")
            patterns = sanitize_patterns(given) if given else get_data_patterns(str(base))
            found = {}
            for split, each in patterns.items():
                found[str(split)] = tuple(path for one in each for path in _resolved(one, base, file_format, name))
            if not any(found.values()):
                raise ValueError(f"none of its {len(list(paths))} files is one")
            return found
        except (FileNotFoundError, EmptyDatasetError, ValueError) as error:
            raise ValueError(f"no {file_format} files by the rules of `datasets` ({error})") from None


def _mirror(paths: Iterable[str], base: Path) -> None:
    """Empty files of the same names, for the library's pattern matching to walk over."""
    for path in paths:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or ".." in parts:
            raise ValueError(f"{path}: leads out of the repository")
        target = base.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()


def _config(configs: Mapping[str, Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    if not configs:
        return {}
    if name is not None:
        if name not in configs:
            raise ValueError(f"no config {name}; the data card has {', '.join(configs)}")
        return configs[name]
    default = [one for key, one in configs.items() if one.get("default") or key == "default"]
    return default[0] if default else next(iter(configs.values()))


def _resolved(pattern: str, base: Path, file_format: str, root: str) -> list[str]:
    """Of the several patterns for a split some match nothing; a plain name that is not there is an error."""
    from datasets.data_files import resolve_pattern

    try:
        found = resolve_pattern(pattern, str(base), allowed_extensions=_EXTENSIONS[file_format])
    except FileNotFoundError:
        if not has_magic(pattern):
            raise
        return []
    return [Path(path).relative_to(Path(root).resolve()).as_posix() for path in found]
