"""How many rows a data file has, as the `datasets` library would count them.

In: a parquet, csv, json or zip file. Out: a number of rows; ValueError says what makes it no such file.
"""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path


def count_rows(path: Path, file_format: str) -> int:
    """`file_format`: parquet, csv (with a header line), json (one object a line, or one array), zip (its members)."""
    count = {"parquet": _parquet_rows, "csv": _csv_rows, "json": _json_rows, "zip": _members}[file_format]
    rows = count(path)
    if not rows:
        raise ValueError(f"not a {file_format} file with rows")
    return rows


def _parquet_rows(path: Path) -> int:
    """From the footer alone."""
    from pyarrow import ArrowException
    from pyarrow.parquet import read_metadata

    try:
        return int(read_metadata(path).num_rows)
    except (ArrowException, OSError) as error:
        raise ValueError(f"not a parquet file ({error})") from None


def _csv_rows(path: Path) -> int:
    """Records, not lines: a quoted field holds line ends."""
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            records = sum(1 for record in csv.reader(file, strict=True) if record)
        except csv.Error as error:
            raise ValueError(f"not a csv file ({error})") from None
    return max(records - 1, 0)


def _json_rows(path: Path) -> int:
    """Lines are counted, not parsed: files of gigabytes have one object a line."""
    with path.open("rb") as file:
        head = file.read(4096).lstrip()
        file.seek(0)
        if head.startswith(b"["):
            values = json.loads(file.read())
            return len(values)
        if not head.startswith(b"{"):
            raise ValueError("not a json file: it starts with neither an object nor an array")
        return sum(1 for line in file if line.strip())


def _members(path: Path) -> int:
    try:
        with zipfile.ZipFile(path) as archive:
            return len(archive.infolist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"not a zip file ({error})") from None
