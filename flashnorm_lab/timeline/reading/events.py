"""A Chrome or Kineto trace as columns: one entry an event, in the file's order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from os import PathLike
from typing import Any

import numpy as np

from ...errors import LabError
from .columns import Columns
from .text import Text, read_text
from .times import MISSING
from .values import short, value_of
from .walk import PIECE, Walk


@dataclass
class Events:
    """What a trace file holds, each column [count] in the file's order.

    phase uint8: the letter ``ph`` (0 where it is missing or no single letter). name int32 into ``names``,
    category int32 into ``categories`` as written. pid, tid, id, stream, device, context int32 into ``ids``:
    values as written, numbers or text, None for null. ts, dur int64 nanoseconds, `MISSING` where there is
    none; ``base_ns`` is in ts already. correlation, external int64. label int32 into ``names`` and sort
    int64: what a metadata row (phase M) says. bound bool: a flow's end that belongs to the slice around it
    (``bp`` "e"). -1 stands for what is missing.

    top: the other values of the file's object. notes: what was put right, a line each. broken: (place in the
    list of events, what is wrong there). file: path, size and time of change, {} for what was no file.
    """

    where: str
    count: int
    names: tuple[str, ...]
    categories: tuple[str, ...]
    ids: tuple[Any, ...]
    phase: np.ndarray
    name: np.ndarray
    category: np.ndarray
    pid: np.ndarray
    tid: np.ndarray
    id: np.ndarray
    ts: np.ndarray
    dur: np.ndarray
    bound: np.ndarray
    correlation: np.ndarray
    stream: np.ndarray
    device: np.ndarray
    context: np.ndarray
    external: np.ndarray
    label: np.ndarray
    sort: np.ndarray
    base_ns: int = 0
    top: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    file: dict[str, Any] = field(default_factory=dict)
    kept: dict[int, bytes] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.count

    def args(self, place: int) -> dict[str, Any]:
        """The whole args of one event: of those of phase C and P and of category "cuda_sync".

        {} where it has none. Of other events, `reading.details` reads them again from the file.
        """
        return value_of(self.kept.get(place, b"{}"))


def read_events(path: str | PathLike[str], *, partial: bool = False, piece: int = PIECE) -> Events:
    """The events of a Chrome or Kineto trace file, plain or gzip by content, in any Unicode encoding.

    What is no JSON but certain in its meaning is read, and said in ``notes`` (see `repair`). ``partial``: of
    a file that breaks off or is broken somewhere, the whole events before that, with a note. ``piece``:
    about how many bytes of text are decoded at once. Of a key that stands twice in an object, the last
    counts.

    Raises ``LabError``, in one line with file, line, column and cause, for whatever else is no such trace.
    """
    return _from_text(read_text(path, partial=partial), partial, piece)


def events_of(value: Any, where: str = "the trace") -> Events:
    """The same for JSON that has been read already: an object with ``traceEvents``, or a list of events.

    Times that are floats are as exact as those are. ``LabError`` for what JSON cannot hold.
    """
    try:
        text = json.dumps(value, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise LabError(f"{where}: this is no JSON value ({error}); a trace's JSON was expected") from None
    return _from_text(Text(text.encode(), where), False, PIECE)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise LabError(f"a trace holds a {type(value).__name__}; text, numbers, lists and dicts were expected")


def _from_text(text: Text, partial: bool, piece: int) -> Events:
    columns = Columns()
    walk = Walk(text, columns.add, partial=partial, piece=piece)
    walk.run()
    top = {key: _value(raw, key, text.where) for key, raw in walk.values.items()}
    base = _base_time(walk.values.get("baseTimeNanoseconds", b"null"), text.where)
    found = columns.columns()
    if columns.quoted and text.file:  # what was read already may have decimals, which are written as text
        walk.notes.append(f"{columns.quoted:,} times are given as text; they were read as numbers")
    if base:
        _add_base(found["ts"], base, columns.broken)
    return Events(
        where=text.where,
        count=columns.count,
        names=columns.names.values_in_order(),
        categories=columns.categories.values_in_order(),
        ids=columns.ids.values_in_order(),
        **found,
        base_ns=base,
        top=top,
        notes=walk.notes,
        broken=sorted(columns.broken),
        file=text.file,
        kept=columns.kept,
    )


def _value(raw: bytes, key: str, where: str) -> Any:
    try:
        return value_of(raw)
    except RecursionError:
        raise LabError(f"{where}: not a trace ({key} is nested too deeply)") from None


def _base_time(raw: bytes, where: str) -> int:
    """Nanoseconds that all times count from; 0 where the trace says nothing."""
    text = raw.decode(errors="replace").strip('"')
    if text == "null":
        return 0
    try:
        base = Decimal(text)
        if base == base.to_integral_value() and abs(base) < 2**63:
            return int(base)
    except ArithmeticError:
        pass
    shown = short(text)
    shown = repr(shown) if raw[:1] == b'"' else shown
    raise LabError(f"{where}: baseTimeNanoseconds is {shown}; a whole number was expected")


def _add_base(times: np.ndarray, base: int, broken: list[tuple[int, str]]) -> None:
    there = times != MISSING
    limits = np.iinfo(np.int64)
    outside = there & ((times > limits.max - base) if base > 0 else (times <= limits.min - base))
    for i in np.flatnonzero(outside).tolist():
        broken.append((i, f"ts cannot be read: {times[i]} ns after the trace's base time {base} is no time"))
    times[there & ~outside] += base
    times[outside] = MISSING
