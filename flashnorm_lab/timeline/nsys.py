"""Reads the SQLite export of an Nsight Systems report, of any year's schema.

Tables come and go from release to release, and so do columns. Both may be missing here: a missing table has
no rows, and a missing column is None in all of them.
"""

from __future__ import annotations

import shlex
import sqlite3
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import LabError

MAGIC = b"SQLite format 3\0"
REPORTS = (".nsys-rep", ".qdrep")
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
OWN = ("StringIds", "EXPORT_META_DATA", "META_DATA_EXPORT", CALLS)
"""Tables that a database without any of them did not get from Nsight Systems."""


def refuse_report(path: str | PathLike[str]) -> None:
    """``LabError`` with the command to run, for a report that has yet to be exported."""
    path = Path(path)
    if path.suffix in REPORTS:
        export = shlex.join(
            ["nsys", "export", "--type", "sqlite", "--output", str(path.with_suffix(".sqlite")), str(path)]
        )
        raise LabError(f"{path}: this is an Nsight Systems report; export it first: {export}")


class Export:
    """One exported report, open for reading; use it in a ``with`` block.

    Raises ``LabError``, in one line with file and cause, for what is no such export, or is a damaged one.
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        try:
            # "immutable": Nsight's exports are read from folders where no lock or journal can be written.
            self._database = sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        except sqlite3.Error as error:
            raise LabError(f"{self.path}: cannot be opened ({error})") from None
        self._database.text_factory = lambda data: data.decode(errors="replace")
        try:
            self.columns = {
                table: {row[1] for row in self._all(f'PRAGMA table_info("{table}")')}
                for (table,) in self._all("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            if not any(table in self.columns for table in OWN):
                found = ", ".join(list(self.columns)[:4]) or "none"
                raise LabError(
                    f"{self.path}: an SQLite database, but no export of Nsight Systems (tables: {found}); "
                    "make one with: nsys export --type sqlite REPORT.nsys-rep"
                )
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

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Those columns of every row of a table."""
        known = self.columns.get(table)
        if known is None:
            return []
        chosen = ", ".join(f'"{column}"' if column in known else "NULL" for column in columns)
        return self._all(f'SELECT {chosen} FROM "{table}"')

    def texts(self) -> dict[int, str]:
        """The strings that other tables name by number."""
        return {number: str(text) for number, text in self.rows("StringIds", "id", "value")}

    def _all(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return self._database.execute(query).fetchall()
        except sqlite3.Error as error:
            raise LabError(
                f"{self.path}: the database is damaged or cut off ({error}); export the report again"
            ) from None
