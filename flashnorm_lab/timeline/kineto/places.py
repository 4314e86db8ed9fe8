"""Ids of threads, processes and streams: what stands for the same one, and what the metadata calls it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..reading import Events

UNKNOWN = ""
"""Stands for an id that is missing or null."""
_NUMBER = re.compile(r"-?\d{1,18}")
_STREAM = re.compile(r"[Ss]tream (-?\d{1,18})\b.*")


def plain_id(value: Any) -> Any:
    """An id as it is compared: "123" and 123 are one; what is missing, null or blank is `UNKNOWN`."""
    if isinstance(value, str):
        text = value.strip()
        return int(text) if _NUMBER.fullmatch(text) else text
    return value if isinstance(value, int | float) else UNKNOWN


def stream_id(value: Any) -> Any:
    """A stream's number where an id says one, as in "stream 7"."""
    found = _STREAM.fullmatch(value) if isinstance(value, str) else None
    return int(found[1]) if found else value


class Ids:
    """The ids of a trace's threads, processes and streams, each once. ``of`` codes columns with them."""

    def __init__(self, events: Events) -> None:
        self._raw = events.ids
        self._code: dict[Any, int] = {UNKNOWN: 0}
        self._table = np.full(len(events.ids) + 1, -1, dtype=np.int32)
        self._table[-1] = 0

    def of(self, column: np.ndarray) -> np.ndarray:
        """Codes int32 for a column of indices into the events' ids; 0 where it is unknown."""
        seen = np.zeros(len(self._table), dtype=bool)
        seen[column] = True
        for i in np.flatnonzero(seen & (self._table < 0)).tolist():
            self._table[i] = self.code(plain_id(self._raw[i]))
        return self._table[column]

    def code(self, value: Any) -> int:
        return self._code.setdefault(value, len(self._code))

    @property
    def values(self) -> list[Any]:
        return list(self._code)


def distinct(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows of these columns of small codes, int [rows, columns], and which row each entry is."""
    if not len(columns[0]):
        return np.empty((0, len(columns)), dtype=np.int64), np.empty(0, dtype=np.int64)
    key = np.zeros(len(columns[0]), dtype=np.int64)
    span = 1
    for column in columns:
        size = int(column.max()) + 1
        if span * size > 2**62:
            key = np.unique(key, return_inverse=True)[1]
            span = int(key.max()) + 1
        key = key * size + column
        span *= size
    if span <= max(4 * len(key), 1 << 16):
        first = np.full(span, -1, dtype=np.int64)
        first[key[::-1]] = np.arange(len(key) - 1, -1, -1)
        there = np.flatnonzero(first >= 0)
        rank = np.cumsum(first >= 0) - 1
        first, inverse = first[there], rank[key]
    else:
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return np.stack([column[first] for column in columns], axis=1).astype(np.int64), inverse


@dataclass
class Labels:
    """What the metadata rows (phase M) say; of several rows on one thing, the last one counts.

    processes, labels: by process; threads: by (process, thread); orders: by process or (process, thread).
    """

    processes: dict[Any, str] = field(default_factory=dict)
    labels: dict[Any, str] = field(default_factory=dict)
    threads: dict[tuple[Any, Any], str] = field(default_factory=dict)
    orders: dict[Any, int] = field(default_factory=dict)

    @classmethod
    def read(cls, events: Events, ids: Ids, pid: np.ndarray, tid: np.ndarray) -> Labels:
        """The labels in these events; pid, tid: their codes in ``ids``."""
        self = cls()
        rows = np.flatnonzero(events.phase == ord("M"))
        if not len(rows):
            return self
        said = [events.name[rows] + 1, pid[rows], tid[rows], events.label[rows] + 1]
        orders = np.unique(events.sort[rows], return_inverse=True)[1]
        # The last of equal rows says as much as all of them: a device may be announced 60,000 times.
        _, again = distinct(*said, orders)
        last = np.zeros(int(again.max()) + 1, dtype=np.int64)
        last[again] = np.arange(len(rows))
        values = ids.values
        for i in rows[np.sort(last)].tolist():
            name = events.names[events.name[i]] if events.name[i] >= 0 else ""
            text = events.names[events.label[i]].strip() if events.label[i] >= 0 else ""
            process, thread = values[pid[i]], values[tid[i]]
            if name == "process_name" and text:
                self.processes[process] = text
            elif name == "process_labels" and text:
                self.labels[process] = text
            elif name == "thread_name" and text:
                self.threads[process, thread] = text
            elif name == "process_sort_index":
                self.orders[process] = int(events.sort[i])
            elif name == "thread_sort_index":
                self.orders[process, thread] = int(events.sort[i])
        return self

    def process(self, pid: Any) -> str:
        """A process in words: its name and its number, as far as they are known."""
        name = self.processes.get(pid, "")
        if pid == UNKNOWN:
            return name
        return f"{name} {pid}" if name and name != str(pid) else str(pid)


def in_order(value: Any) -> tuple[int, Any]:
    """A key to sort ids of both kinds by: numbers first."""
    return (0, value) if isinstance(value, int | float) else (1, str(value))
