"""nltk's resources from locked data files, where a task's grader splits text with nltk.

In: a task's locked data files. Out: a context in which nltk finds what their zip archives hold, and nothing else.
"""

from __future__ import annotations

import contextlib
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def nltk_resources(data: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """Unpacks every archive (format `zip`, id `nltk/<resource>`, config its kind, such as tokenizers) for nltk.

    In a private folder, since nltk reads most resources only from plain files. nltk's other places are not looked at:
    what a machine happens to have must not change a score.
    """
    archives = [(each["config"], file) for each in data for file in _files(each)]
    if not archives:
        yield
        return
    import nltk

    with tempfile.TemporaryDirectory(prefix="nltk-") as folder:
        for kind, file in archives:
            with zipfile.ZipFile(file) as archive:
                archive.extractall(Path(folder) / str(kind))
        before, nltk.data.path[:] = list(nltk.data.path), [folder]
        try:
            yield
        finally:
            nltk.data.path[:] = before


def _files(files: Mapping[str, Any]) -> list[str]:
    if files["format"] != "zip" or not str(files["id"]).startswith("nltk/"):
        return []
    return [file for split in files["splits"].values() for file in split]
