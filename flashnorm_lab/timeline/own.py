"""Reads the lab's own export (`writing.chrome`) again: the same timeline, to the nanosecond.

Version 1 knew one process, no origin, no counters and one kind of edge, and called a launch's number
``launch``. Both versions are read.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal
from os import PathLike
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from ..errors import LabError
from .reading.text import parse_json, read_text
from .table import CATEGORIES, EDGE_KINDS, OUTCOMES, Lane, Timeline

FORMAT = "flashnorm_lab timeline"
VERSION = 2

_EXACT_US = 2**50 / 1000
"""Up to here a float64 of microseconds is off by a quarter of a nanosecond at most."""
_DECIMAL = Context(prec=60)
_UNFIT = (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, msgspec.MsgspecError)
_EVENTS = b'"traceEvents":['
BLOCK = 1 << 24
"""Bytes of events that are decoded at a time."""
_CATEGORY = {text: i for i, text in enumerate(CATEGORIES)}
_OUTCOME = {text: i for i, text in enumerate(OUTCOMES)}

Time = TypeVar("Time", float, Decimal)


class _Args(msgspec.Struct, gc=False):
    span: int = -1
    step: int = -1
    launch: int = -1
    correlation: int = -1
    origin: int = -1
    outcome: str = ""
    name_index: int = -1


class _Event(msgspec.Struct, Generic[Time], gc=False):
    ph: str
    name: str = ""
    cat: str = ""
    tid: int = 0
    ts: Time = 0
    dur: Time = 0
    args: _Args | None = None


class _Head(msgspec.Struct, gc=False):
    otherData: msgspec.Raw
    baseTimeNanoseconds: int
    traceEvents: list[msgspec.Raw]


def read_own(path: str | PathLike[str]) -> Timeline:
    """The timeline in a file that ``export_chrome`` wrote, plain or gzip.

    ``LabError``, in one line, for a file that is missing or broken, for one of a later version, and for one
    that was changed and does not fit together any more.
    """
    text = read_text(path)
    where = text.where
    try:
        try:
            base, other, columns = _quickly(bytes(text.data), where)
        except msgspec.DecodeError:
            base, other, columns = _exactly(bytes(text.data), where)
        return _timeline(base, other, columns)
    except (*_UNFIT, LabError) as error:
        if isinstance(error, LabError) and str(error).startswith(where):
            raise
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise LabError(
            f"{where}: the file was changed after its export and does not fit together ({cause}); "
            "export the timeline again"
        ) from None


Columns = dict[str, np.ndarray]


def _quickly(data: bytes, where: str) -> tuple[int, dict[str, Any], Columns]:
    """Base, otherData and columns of spans, of a file that stands as it was written: an event a line.

    ``msgspec.DecodeError`` for what this cannot read: another layout, halves of surrogate pairs as version 1
    wrote them, times of two weeks and more, JSON that is broken.
    """
    at = data.find(_EVENTS) + len(_EVENTS)
    end = data.rfind(b"]")
    if at < len(_EVENTS):
        raise msgspec.DecodeError("another layout")
    head = msgspec.json.decode(data[:at] + data[end:], type=_Head)
    other = json.loads(bytes(head.otherData))
    known = _names(other, where)
    decoder = msgspec.json.Decoder(list[_Event[float]])
    parts = []
    while at < end:
        # Some at a time: all events at once would take several times the memory of their text.
        stop = data.find(b",\n", at + BLOCK, end)
        stop = end if stop < 0 else stop
        parts.append(_columns(decoder.decode(b"[" + data[at:stop] + b"]"), known))
        at = stop + 1
    columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]} if parts else {}
    if not all(np.all(columns[key] < _EXACT_US) for key in ("start_us", "duration_us") if columns):
        raise msgspec.DecodeError("times that need all their digits")
    return head.baseTimeNanoseconds, other, columns


def _exactly(data: bytes, where: str) -> tuple[int, dict[str, Any], Columns]:
    """What `_quickly` gives, of whatever is JSON, with times as decimals. ``LabError`` for what is not."""
    value = parse_json(data, where)
    other = _floats(value["otherData"])
    events = msgspec.convert(value["traceEvents"], list[_Event[Decimal]])
    return value["baseTimeNanoseconds"], other, _columns(events, _names(other, where))


def _names(other: dict[str, Any], where: str) -> dict[str, int]:
    """Where each name of the timeline stands first. ``other`` gets what it kept in base64."""
    if not isinstance(other, dict) or other["format"] != FORMAT:
        raise ValueError(f"otherData does not name the format {FORMAT!r}")
    if other["version"] not in (1, VERSION):
        raise LabError(
            f"{where}: written as version {other['version']} of this format; this installation reads "
            f"versions 1 to {VERSION}; update flashnorm_lab"
        )
    if "base64" in other:
        other |= json.loads(base64.b64decode(other["base64"]))
    return _first_places(other["names"])


def _first_places(texts: Sequence[str]) -> dict[str, int]:
    return {text: i for i, text in reversed(list(enumerate(texts)))}


def _columns(events: list[_Event], known: dict[str, int]) -> Columns:
    """The columns of those events that are spans: not names, arrows, samples, and outcomes told again."""
    events = [e for e in events if e.ph == "i" or (e.ph == "X" and e.cat != "outcome")]
    args = [event.args for event in events]
    times = object if any(isinstance(e.ts, Decimal) for e in events) else np.float64
    return {
        "span": _numbers(a.span for a in args),
        "name": _numbers(
            a.name_index if a.name_index >= 0 else known[e.name] for e, a in zip(events, args, strict=True)
        ),
        "track": _numbers(e.tid for e in events) - 1,
        "start_us": np.array([e.ts for e in events], dtype=times),
        "duration_us": np.array([e.dur for e in events], dtype=times),
        "launch": _numbers(a.correlation if a.launch == -1 else a.launch for a in args),
        "category": _numbers(map(_CATEGORY.__getitem__, (e.cat for e in events))),
        "step": _numbers(a.step for a in args),
        "outcome": _numbers(map(_OUTCOME.__getitem__, (a.outcome for a in args))),
        "origin": _numbers(a.origin for a in args),
    }


def _timeline(base: int, other: dict[str, Any], columns: Columns) -> Timeline:
    lanes = tuple(Lane(*lane) for lane in other["lanes"])
    columns = columns or _columns([], {})
    span = columns.pop("span")
    order = np.argsort(span)
    if not np.array_equal(span[order], np.arange(other.get("spans", len(span)))):
        raise ValueError(f"{len(span)} spans, whose numbers are not those of the export")
    track = columns.pop("track")
    if track.size and track.min() < 0:
        raise ValueError("a span is on track 0")
    columns["lane"] = np.array(other.get("tracks", range(len(lanes))), dtype=np.int64)[track]
    columns["start_ns"] = _nanoseconds(columns.pop("start_us"), base)
    columns["duration_ns"] = _nanoseconds(columns.pop("duration_us"), 0)
    columns = {key: column[order] for key, column in columns.items()}
    more = _edges(other) | _counters(other)
    return Timeline(tuple(other["names"]), lanes, **columns, **more, meta=other["meta"])


def _edges(other: dict[str, Any]) -> Columns:
    edges = other["edges"]
    if other["version"] == 1:
        source, target, name = zip(*edges, strict=True) if edges else ((), (), ())
        known = _first_places(other["names"])
        edges = {"source": source, "target": target, "name": [known[text] for text in name]}
    kinds = [EDGE_KINDS.index(kind) for kind in edges.get("kinds", EDGE_KINDS)]
    return {
        "edge_source": _numbers(edges["source"]),
        "edge_target": _numbers(edges["target"]),
        "edge_name": _numbers(edges["name"]),
        "edge_kind": _numbers(kinds[kind] for kind in edges.get("kind", [0] * len(edges["source"]))),
    }


def _counters(other: dict[str, Any]) -> Columns:
    counters = other.get("counters", {"name": [], "at_ns": [], "value": []})
    return {
        "counter_name": _numbers(counters["name"]),
        "counter_ns": _numbers(counters["at_ns"]),
        "counter_value": np.array([float(value) for value in counters["value"]]),
    }


def _numbers(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, dtype=np.int64)


def _nanoseconds(us: np.ndarray, base: int) -> np.ndarray:
    """Microseconds from a base in nanoseconds, int64."""
    if us.dtype == object:
        return _numbers(base + round(_DECIMAL.multiply(value, 1000)) for value in us.tolist())
    return np.rint(us * 1000).astype(np.int64) + base


def _floats(value: Any) -> Any:
    """JSON as Python usually reads it: what was kept as decimal text becomes a float again."""
    if isinstance(value, dict):
        return {k: _floats(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_floats(v) for v in value]
    return float(value) if isinstance(value, Decimal) else value
