"""Reads the SQLite export of an Nsight Systems report, of any year's schema.

Tables come and go from release to release, and so do columns. Both may be missing here: a missing table has
no rows, and a missing column is None in all of them. A table may also carry a version behind its name
(NVTX_EVENTS_V2); `Export.find` knows them.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
from collections.abc import Iterator
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LabError

MAGIC = b"SQLite format 3\0"
REPORTS = (".nsys-rep", ".qdrep")
ACTIVITY = "CUPTI_ACTIVITY_KIND_"
CALLS = f"{ACTIVITY}RUNTIME"
OWN = ("StringIds", "EXPORT_META_DATA", "META_DATA_EXPORT", CALLS)
"""Tables that a database without any of them did not get from Nsight Systems."""
META = ("EXPORT_META_DATA", "META_DATA_EXPORT")

MISSING = int(np.iinfo(np.int64).min)
"""Stands in `Export.integers` for NULL, and for a column that the table does not have."""
_NO_NUMBER = MISSING + 1
_AGAIN = "export the report again: nsys export --type sqlite REPORT.nsys-rep"
_MAKE = "make one with: nsys export --type sqlite REPORT.nsys-rep"
_CHUNK = 1 << 16
_BROKEN = (sqlite3.Error, UnicodeDecodeError)
"""Python cannot decode SQLite's own message where that quotes a damaged schema."""

COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH",
          10: "PtoP", 11: "managed HtoD", 12: "managed DtoH", 13: "managed DtoD"}  # fmt: skip
"""From ENUM_CUDA_MEMCPY_OPER, in the words of torch.profiler."""
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
"""From ENUM_CUDA_MEM_KIND; static memory counts as what it is a kind of."""
SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""From ENUM_CUPTI_SYNC_TYPE. Files contradict it, so the call's name decides where there is a call."""
STREAM_KINDS = {1: "blocking", 2: "non-blocking", 3: "legacy"}
"""From ENUM_CUPTI_STREAM_TYPE: default, non-blocking and null streams, in CUDA's own words for them."""


def copy_name(kind: int | None, source: int | None, target: int | None) -> str:
    """The name of a copy, as torch.profiler gives it: "Memcpy HtoD (Pinned -> Device)"."""
    between = f"{MEMORY.get(source, '?')} -> {MEMORY.get(target, '?')}"
    return f"Memcpy {COPIES.get(kind, 'of unknown kind')} ({between})"


def fill_name(memory: int | None) -> str:
    """The name of a fill: "Memset (Device)"."""
    return f"Memset ({MEMORY.get(memory, '?')})"


def refuse_report(path: str | PathLike[str]) -> None:
    """``LabError`` with the command to run, for a report that has yet to be exported."""
    path = Path(path)
    if path.suffix in REPORTS:
        export = shlex.join(
            ["nsys", "export", "--type", "sqlite", "--output", str(path.with_suffix(".sqlite")), str(path)]
        )
        raise LabError(f"{path}: this is an Nsight Systems report; export it first: {export}")


def _check_file(path: Path) -> dict[str, Any]:
    """The file's path, size and time of change; ``LabError`` for what is no whole SQLite database."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
        stat = path.stat()
    except FileNotFoundError:
        raise LabError(f"{path}: there is no such file") from None
    except (OSError, ValueError) as error:
        raise LabError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if not head:
        raise LabError(f"{path}: the file is empty; {_AGAIN}")
    if head.startswith(b"version https://git-lfs"):
        raise LabError(
            f"{path}: this is a Git LFS pointer, not the file itself; run `git lfs pull` where it came from"
        )
    if not head.startswith(MAGIC):
        raise LabError(
            f"{path}: no SQLite database, or an encrypted one (it begins with {head[:16]!r}); an export of "
            f"Nsight Systems was expected; {_MAKE}"
        )
    if len(head) < 100:
        raise LabError(f"{path}: the database is damaged or cut off (within its first 100 bytes); {_AGAIN}")
    _check_size(path, head, stat.st_size)
    for suffix, what in (("-wal", "write-ahead log"), ("-journal", "rollback journal")):
        aside = path.with_name(path.name + suffix)
        if aside.is_file() and aside.stat().st_size:
            raise LabError(
                f"{path}: its {what} {aside.name} is not merged into it yet, so rows may be missing; close "
                "the program that writes it, or merge it with: "
                f"sqlite3 {shlex.quote(str(path))} 'PRAGMA wal_checkpoint(TRUNCATE)'"
            )
    return {"path": str(path.resolve()), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def _check_size(path: Path, head: bytes, size: int) -> None:
    """The header tells the number of pages, where its two change counters agree (sqlite.org/fileformat2)."""
    page = int.from_bytes(head[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(head[28:32], "big")
    if pages and head[24:28] == head[92:96] and size < page * pages:
        raise LabError(
            f"{path}: the database is damaged or cut off ({size:,} of {page * pages:,} bytes); {_AGAIN}"
        )


class Export:
    """One exported report, open for reading; use it in a ``with`` block.

    ``columns``: table to its columns. ``file``: the file's path, size and time of change. Raises
    ``LabError``, in one line with file and cause, for what is no such export, or is a damaged one.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        refuse_report(self.path)
        self.file = _check_file(self.path)
        self._texts: dict[int, str] | None = None
        try:
            # "immutable": Nsight's exports are read from folders where no lock or journal can be written.
            self._database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as error:
            raise LabError(f"{self.path}: cannot be opened ({_in_line(str(error))})") from None
        self._database.text_factory = lambda data: data.decode(errors="replace")
        try:
            self.columns = {
                table: {row[1] for row in self._all(f"PRAGMA table_info({_quoted(table)})")}
                for (table,) in self._all("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            self._refuse_foreign()
        except LabError:
            self.close()
            raise

    def __enter__(self) -> Export:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._database.close()

    def find(self, *tables: str) -> list[str]:
        """The tables of these names that are there, with or without a version behind them (``_V2``)."""
        wanted = re.compile("|".join(f"{re.escape(table)}(_V\\d+)?" for table in tables), re.IGNORECASE)
        return [table for table in self.columns if wanted.fullmatch(table)]

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with all of these columns."""
        return table in self.columns and self.columns[table].issuperset(columns)

    def count(self, table: str) -> int:
        """How many rows a table has."""
        return self._all(f"SELECT count(*) FROM {_quoted(table)}")[0][0] if table in self.columns else 0

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Those columns of every row of a table, or of its newest version, in the table's own order."""
        there = [table] if table in self.columns else self.find(table)
        if not there:
            return []
        table = max(there, key=lambda name: (len(name), name))
        return self._all(self._query(table, [self._known(table, column) for column in columns]))

    def row(self, table: str, place: int) -> dict[str, Any]:
        """All columns of the row at that place of a table's own order. ``LabError`` if there is none."""
        found = []
        if table in self.columns:
            names = sorted(self.columns[table])
            found = self._all(f"{self._query(table, map(_quoted, names))} LIMIT 1 OFFSET {int(place)}")
        if not found:
            raise LabError(f"{self.path}: there is no row {place} in a table {table}")
        return dict(zip(names, found[0], strict=True))

    def integers(self, table: str, *columns: str) -> list[np.ndarray]:
        """Those columns of every row as int64 [rows], `MISSING` where nothing stands.

        ``LabError``, with table, row and value, where something else than a whole number stands.
        """
        if table not in self.columns:
            return [np.empty(0, dtype=np.int64) for _ in columns]
        chosen = []
        for column in columns:
            name = self._known(table, column)
            chosen.append(
                f"CASE typeof({name}) WHEN 'integer' THEN {name} WHEN 'null' THEN {MISSING} "
                f"ELSE {_NO_NUMBER} END"
                if name != "NULL"
                else str(MISSING)
            )
        parts = [
            np.fromiter(chain.from_iterable(rows), dtype=np.int64, count=len(rows) * len(columns))
            for rows in self._chunks(self._query(table, chosen))
        ]
        whole = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        found = np.ascontiguousarray(whole.reshape(-1, len(columns)).T)
        for column, values in zip(columns, found, strict=True):
            wrong = np.flatnonzero(values == _NO_NUMBER)
            if len(wrong):
                place = int(wrong[0])
                told = repr(self.row(table, place)[column])
                raise LabError(
                    f"{self.path}, table {table}, row {place}: {column} is {told[:60]}; a whole number was "
                    f"expected; {_AGAIN}"
                )
        return list(found)

    def values(self, table: str, column: str) -> list[Any]:
        """One column of every row as SQLite has it."""
        return [value for (value,) in self.rows(table, column)]

    def texts(self) -> dict[int, str]:
        """The strings that other tables name by number."""
        if self._texts is None:
            rows = self.rows("StringIds", "id", "value")
            self._texts = {number: str(text) for number, text in rows if text is not None}
        return self._texts

    def meta(self) -> dict[str, str]:
        """What the export says of itself: its program, the version and the schema."""
        return {
            str(name): str(value)
            for table in self.find(*META)
            for name, value in self.rows(table, "name", "value")
        }

    def _known(self, table: str, column: str) -> str:
        return _quoted(column) if column in self.columns[table] else "NULL"

    def _query(self, table: str, columns: Any) -> str:
        # An index that somebody added must not change the order: a row's place is how it is found again.
        return f"SELECT {', '.join(columns)} FROM {_quoted(table)} NOT INDEXED"

    def _refuse_foreign(self) -> None:
        if not self.columns:
            raise LabError(f"{self.path}: an SQLite database without any table; {_MAKE}")
        if "StringTable" in self.columns and "StringIds" not in self.columns:
            raise LabError(
                f"{self.path}: a profile of nvprof, not of Nsight Systems; record it anew with nsys profile, "
                "and export that with: nsys export --type sqlite REPORT.nsys-rep"
            )
        if not self.find(*OWN):
            found = _in_line(", ".join(list(self.columns)[:4]))
            raise LabError(
                f"{self.path}: an SQLite database, but no export of Nsight Systems (tables: {found}); {_MAKE}"
            )

    def _chunks(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        try:
            cursor = self._database.execute(query)
            while rows := cursor.fetchmany(_CHUNK):
                yield rows
        except _BROKEN as error:
            raise self._damaged(error) from None

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query).fetchall()
        except _BROKEN as error:
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> LabError:
        told = "its schema is no text" if isinstance(error, UnicodeDecodeError) else _in_line(str(error))
        return LabError(f"{self.path}: the database is damaged or cut off ({told}); export the report again")


def _in_line(text: str) -> str:
    """The text in one line, not too long, and without what a terminal would act on."""
    line = " ".join(text.split())
    line = line if len(line) <= 120 else f"{line[:119]}…"
    return "".join(c if c.isprintable() else "?" for c in line)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
