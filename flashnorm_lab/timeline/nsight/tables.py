"""The parts that reading a table of an Nsight Systems export takes: names, times, numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import LabError
from ..nsys import MISSING, Export
from ..table import CATEGORIES

NONE = -1
CODE = {category: i for i, category in enumerate(CATEGORIES)}
_UNKNOWN = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_FAR = 2**61
"""Times beyond it (73 years) are broken, and could not be added up in 64 bits."""
HOST, DEVICE, APART = 0, 1, 2
"""Where rows stand: on a host thread, on a stream, or on the process's lane of started and ended ranges."""
COLUMNS = (
    "origin", "name", "category", "side", "start", "duration", "process", "thread",
    "device", "context", "stream", "correlation", "event", "ticket", "bare",
)  # fmt: skip
FLAGS = ("call", "failed", "sync", "open")


class Names:
    """Every text once."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self.codes.setdefault(text, len(self.codes))


@dataclass
class Rows:
    """What was found. ``columns``: `COLUMNS` (int64, -1 for what is not known) and `FLAGS` (bool), piece by
    piece. ``origin`` numbers the rows of all tables; ``bare`` is the code of an NVTX text without its domain;
    ``failed`` a call that did not return success; ``open`` a range without an end.

    ``tables``: table, number of its first row among all, number of rows. ``rows`` and ``left_out`` count what
    is no span; ``notes`` say what was odd. ``records``: what is known of event records, int64 [records] each.
    ``threads``: names that NVTX gave, by serialized global identifier.
    """

    names: Names = field(default_factory=Names)
    columns: dict[str, list[np.ndarray]] = field(default_factory=lambda: {c: [] for c in (*COLUMNS, *FLAGS)})
    tables: list[tuple[str, int, int]] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    records: list[dict[str, np.ndarray]] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    recorded: int = 0
    total: int = 0

    def column(self, name: str) -> np.ndarray:
        """One whole column."""
        dtype = bool if name in FLAGS else np.int64
        return np.concatenate(self.columns[name]) if self.columns[name] else np.empty(0, dtype=dtype)


class Tables:
    """Reads tables of an export into `Rows`. ``read_tables``: those that were."""

    def __init__(self, export: Export) -> None:
        self.export, self.found = export, Rows()
        self.texts = export.texts()
        self.read_tables: set[str] = set()

    def _get(self, table: str, *columns: str) -> list[np.ndarray] | None:
        """The columns of a table that tells when; None of one that does not, which is left out."""
        if not self.export.has(table, "start"):
            return None
        return self.export.integers(table, *columns)

    def _numbered(self, table: str, count: int) -> int:
        first = self.found.total
        if count:
            self.found.tables.append((table, first, count))
        self.found.total += count
        self.read_tables.add(table)
        return first

    def _add(
        self, table: str, start: np.ndarray, end: np.ndarray, among: np.ndarray | None = None, **columns: Any
    ) -> None:
        """Add a table's rows as spans (those ``among`` them); what has no times is counted and said."""
        first = self._numbered(table, len(start))
        placed = start != MISSING
        among = np.ones(len(start), dtype=bool) if among is None else among
        kept = among & placed
        if (among & ~placed).any():
            self.found.left_out[f"rows of {table} without a start"] += int((among & ~placed).sum())
        far = kept & ((abs(start) > _FAR) | ((end != MISSING) & (abs(end) > _FAR)))
        if far.any():
            row = int(np.flatnonzero(far)[0])
            raise LabError(
                f"{self.export.path}, table {table}, row {row}: it lasts from {start[row]} to {end[row]}; "
                f"nanoseconds of at most {_FAR} were expected; export the report again"
            )
        missing = kept & (end == MISSING)
        before = kept & ~missing & (end < start)
        for wrong, what in ((missing, "without an end"), (before, "that end before they start")):
            if wrong.any():
                row = int(np.flatnonzero(wrong)[0])
                self.found.notes.append(
                    f"{wrong.sum()} rows of {table} {what} (the first is row {row}); they are drawn as 0 ns "
                    "at their start, so every busy time lacks them"
                )
        values = {
            "origin": first + np.arange(len(start)),
            "start": start,
            "duration": np.where(missing | before, 0, end - start),
        }
        for name in (*COLUMNS, *FLAGS):
            value = values.get(name, columns.get(name, NONE if name in COLUMNS else False))
            dtype = bool if name in FLAGS else np.int64
            self.found.columns[name].append(np.broadcast_to(value, kept.shape)[kept].astype(dtype))

    def _named(
        self,
        table: str,
        inline: tuple[str, ...],
        ids: tuple[str, ...],
        otherwise: str,
        change: Callable[[str], str] | None = None,
    ) -> np.ndarray:
        """Codes of names [rows]: of the text that a row holds itself, or that it names by number; with
        neither, "kernel 12", or -1 with nothing to call it otherwise."""
        count = self.export.count(table)
        found = np.full(count, NONE, dtype=np.int64)
        code = self.found.names.code
        for column in inline:
            if self.export.has(table, column):
                values = self.export.values(table, column)
                said = np.fromiter(
                    (code(change(v) if change else v) if v and isinstance(v, str) else NONE for v in values),
                    dtype=np.int64,
                    count=count,
                )
                found = np.where(found < 0, said, found)
        number = np.full(count, MISSING, dtype=np.int64)
        for column in ids:
            if self.export.has(table, column) and (found < 0).any():
                (values,) = self.export.integers(table, column)
                said = self._coded(
                    values, lambda n: change(self.texts[n]) if change else self.texts[n], self.texts
                )
                found = np.where(found < 0, said, found)
                number = np.where((number == MISSING) & (values != 0), values, number)
        if otherwise and (found < 0).any():
            said = self._coded(number, lambda n: otherwise if n in (MISSING, 0) else f"{otherwise} {n}")
            found = np.where(found < 0, said, found)
        return found

    def _coded(
        self, numbers: np.ndarray, word: Callable[[int], str], among: Container[int] | None = None
    ) -> np.ndarray:
        """Codes of a word for each number; -1 for those that are not ``among`` these."""
        values, which = np.unique(numbers, return_inverse=True)
        codes = [
            self.found.names.code(word(value)) if among is None or value in among else NONE
            for value in values.tolist()
        ]
        return np.array(codes, dtype=np.int64)[which] if len(codes) else np.empty(0, dtype=np.int64)

    def _worded(self, table: str, word: Callable[..., str], *columns: str) -> np.ndarray:
        """Codes of a name that several small numbers make."""
        values = np.stack(self.export.integers(table, *columns))
        if not values.shape[1]:
            return np.empty(0, dtype=np.int64)
        key = np.zeros(values.shape[1], dtype=np.int64)
        for value in values:
            part, which = np.unique(value, return_inverse=True)
            key = key * len(part) + which
        _, first, which = np.unique(key, return_index=True, return_inverse=True)
        codes = [
            self.found.names.code(word(*(None if v == MISSING else v for v in values[:, i].tolist())))
            for i in first.tolist()
        ]
        return np.array(codes, dtype=np.int64)[which]

    def _by_name(self, name: np.ndarray, meaning: Callable[[str], str]) -> np.ndarray:
        """The category for each name's code."""
        texts = list(self.found.names.codes)
        codes, which = np.unique(name, return_inverse=True)
        kinds = [CODE[meaning(texts[code])] for code in codes.tolist()]
        return np.array(kinds, dtype=np.int64)[which] if len(kinds) else name


def known(values: np.ndarray, least: int = 0) -> np.ndarray:
    """The numbers, and -1 for all that stand for an unknown one."""
    return np.where((values < least) | np.isin(values, _UNKNOWN), NONE, values)


def global_id(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A serialized global identifier's process (with its machine) and thread; -1 where there is none.

    https://docs.nvidia.com/nsight-systems/UserGuide: 24 bits each of thread and process, above them the
    virtual machine and the hardware.
    """
    process, thread = (values >> 24) & 0xFFFFFFFFFF, values & 0xFFFFFF
    return np.where(values == MISSING, NONE, process), np.where(values == MISSING, NONE, thread)
