"""From the text of some events to numpy columns: a typed decode, then each field for all of them at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import compress, repeat
from operator import attrgetter, is_not
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType

from .times import columns_of
from .values import short, value_of

NOT_KNOWN = -1
KEPT_PHASES = "CP"
KEPT_CATEGORY = "cuda_sync"
"""The args of events of these phases and this category are kept whole."""

_NUMBERS = ("correlation", "external", "sort")
_EMPTY = Raw()
_ID = int | str | None | UnsetType


class _Args(Struct, gc=False, frozen=True):
    correlation: int = NOT_KNOWN
    stream: _ID = UNSET
    device: _ID = UNSET
    context: _ID = UNSET
    external: int = msgspec.field(default=NOT_KNOWN, name="External id")
    external_old: int = msgspec.field(default=NOT_KNOWN, name="external id")
    name: str | None = None
    labels: str | None = None
    sort_index: int = NOT_KNOWN


_NO_ARGS = _Args()


class _Event(Struct, gc=False):
    ph: str = ""
    name: str | None = None
    cat: str | None = None
    pid: _ID = UNSET
    tid: _ID = UNSET
    id: _ID = UNSET
    ts: Raw = _EMPTY
    dur: Raw = _EMPTY
    args: _Args = _NO_ARGS
    id2: Raw = _EMPTY
    bp: str | None = None


class _Loose:
    """The same for an event, or args, that have a number for a name, a list for an id, or the like.

    What the typed form has as ``Raw`` is given so here too, everything else as it can be told from others.
    """

    def __init__(self, like: Any, given: dict[str, Raw]) -> None:
        for place, key in zip(like.__struct_fields__, like.__struct_encode_fields__, strict=True):
            value = getattr(like, place)
            if key in given:
                value = given[key] if isinstance(value, Raw) else _MADE.get(key, _id)(value_of(given[key]))
            setattr(self, place, value)


_NO_EVENT = _Event()


class _ArgsOnly(Struct, gc=False):
    args: Raw = _EMPTY


_events = msgspec.json.Decoder(list[_Event])
_raws = msgspec.json.Decoder(list[Raw])
_args_only = msgspec.json.Decoder(list[_ArgsOnly])
_members = msgspec.json.Decoder(dict[str, Raw])


class Codes(dict[Any, int]):
    """Numbers for texts and ids, in the order in which they come; -1 for those that mean "unknown"."""

    def __init__(self, *unknown: Any) -> None:
        super().__init__(dict.fromkeys(unknown, NOT_KNOWN))
        self.reserved = len(unknown)

    def __missing__(self, value: Any) -> int:
        code = self[value] = len(self) - self.reserved
        return code

    def of(self, values: Sequence[Any]) -> np.ndarray:
        """The number of each value, int32 [values]."""
        if values and values.count(values[0]) == len(values):  # most ids of most pieces
            return np.full(len(values), self[values[0]], dtype=np.int32)
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))

    def values_in_order(self) -> tuple[Any, ...]:
        """What has a number, by its number."""
        return tuple(self)[self.reserved :]


class _Phases(dict[str, int]):
    def __missing__(self, text: str) -> int:
        code = self[text] = ord(text) if len(text) == 1 and text.isascii() else 0
        return code


class Columns:
    """Takes the events of a file, some at a time, and gives their columns (see `events.Events`)."""

    def __init__(self) -> None:
        self.count = 0
        self.names = Codes(None)
        self.categories = Codes(None)
        self.ids = Codes(UNSET)
        self.kept: dict[int, bytes] = {}
        self.broken: list[tuple[int, str]] = []
        self.quoted = 0
        self._phases = _Phases()
        self._parts: list[dict[str, np.ndarray]] = []

    def add(self, text: bytes) -> int:
        """Take the events in ``text``, a JSON list; how many. Raises as ``msgspec`` does where it is none."""
        try:
            events: list[Any] = _events.decode(text)
        except msgspec.ValidationError:
            events, text = self._loosely(text)
        self._take(events, text)
        return len(events)

    def columns(self) -> dict[str, np.ndarray]:
        """Every column in one piece; the pieces are given up on the way."""
        if not self._parts:
            self._take([], b"[]")
        return {
            name: np.concatenate([part.pop(name) for part in self._parts]) for name in list(self._parts[0])
        }

    def _take(self, events: list[Any], text: bytes) -> None:
        base, args = self.count, [e.args for e in events]
        self.count += len(events)
        phase = np.fromiter(
            map(self._phases.__getitem__, [e.ph for e in events]), dtype=np.uint8, count=len(events)
        )
        times = self._times([e.ts for e in events] + [e.dur for e in events], base)
        part = {
            "phase": phase,
            "name": self.names.of([e.name for e in events]),
            "category": self.categories.of([e.cat for e in events]),
            "pid": self.ids.of([e.pid for e in events]),
            "tid": self.ids.of([e.tid for e in events]),
            "id": self.ids.of([e.id for e in events]),
            "ts": times[: len(events)],
            "dur": times[len(events) :],
            "bound": np.zeros(len(events), dtype=bool),
        }
        part |= self._args_of(args, phase)
        ends = phase == ord("f")
        part["bound"][ends] = [e.bp == "e" for e in compress(events, ends.tolist())]
        for i in compress(range(len(events)), map(is_not, [e.id2 for e in events], repeat(_EMPTY))):
            part["id"][i] = self.ids[_wide_id(events[i].id2)]
        self._keep(part, text, base)
        self._parts.append(part)

    def _args_of(self, args: list[Any], phase: np.ndarray) -> dict[str, np.ndarray]:
        part = {
            name: np.full(len(args), NOT_KNOWN, dtype=np.int64 if name in _NUMBERS else np.int32)
            for name in ("correlation", "stream", "device", "context", "external", "label", "sort")
        }
        rows = phase == ord("M")
        told = list(compress(args, rows.tolist()))
        part["label"][rows] = self.names.of([a.labels if a.name is None else a.name for a in told])
        part["sort"][rows] = _numbers([a.sort_index for a in told])
        rest = ~rows & np.fromiter(map(is_not, args, repeat(_NO_ARGS)), dtype=bool, count=len(args))
        told = list(compress(args, rest.tolist()))
        part["correlation"][rest] = _numbers([a.correlation for a in told])
        for name in ("stream", "device", "context"):
            part[name][rest] = self.ids.of(list(map(attrgetter(name), told)))
        external = _numbers([a.external for a in told])
        part["external"][rest] = np.where(external >= 0, external, _numbers([a.external_old for a in told]))
        return part

    def _keep(self, part: dict[str, np.ndarray], text: bytes, base: int) -> None:
        keep = np.isin(part["phase"], [ord(letter) for letter in KEPT_PHASES])
        category = self.categories.get(KEPT_CATEGORY)
        if category is not None:
            keep |= part["category"] == category
        if keep.any():
            raws = _args_only.decode(text)
            for i in np.flatnonzero(keep).tolist():
                raw = bytes(raws[i].args)
                if raw[:1] == b"{":
                    self.kept[base + i] = raw

    def _times(self, texts: list[Any], base: int) -> np.ndarray:
        """The times in ``texts``: every ts, then every dur."""
        values, quoted, wrong = columns_of(texts)
        self.quoted += quoted
        for i, why in wrong:
            key, place = divmod(i, len(texts) // 2)
            self.broken.append((base + place, f"{('ts', 'dur')[key]} cannot be read: {why}"))
        return values

    def _loosely(self, text: bytes) -> tuple[list[Any], bytes]:
        """The events, made fit for `_take`, and the text without whatever is no event."""
        raws = [bytes(raw) for raw in _raws.decode(text)]
        for i, raw in enumerate(raws):
            if raw[:1] != b"{":
                self.broken.append((self.count + i, f"{short(raw)} is not an event; an object was expected"))
                raws[i] = b"{}"
        events = []
        for i, raw in enumerate(raws):
            given = _members.decode(raw)
            args = bytes(given.pop("args", b""))
            event = _Loose(_NO_EVENT, given)
            event.ph = event.ph or ""
            if args[:1] == b"{":
                event.args = _Loose(_NO_ARGS, _members.decode(args))
            elif args not in (b"", b"null"):
                self.broken.append((self.count + i, f"args is {short(args)}; an object was expected"))
            events.append(event)
        return events, b"[" + b",".join(raws) + b"]"


def _numbers(values: list[Any]) -> np.ndarray:
    """Whole numbers of at least 0; -1 for whatever is none."""
    try:
        return np.maximum(np.fromiter(values, np.int64, len(values)), NOT_KNOWN)
    except (TypeError, ValueError, OverflowError):
        return np.fromiter(map(_number, values), np.int64, len(values))


def _number(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return NOT_KNOWN
    return number if 0 <= number < 2**63 else NOT_KNOWN


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else json.dumps(value)


def _id(value: Any) -> Any:
    """An id that can be told from others: ``true`` and a list become text, 7.0 becomes 7."""
    if value is UNSET or value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, float) and value.is_integer() else json.dumps(value)


def _wide_id(raw: Any) -> Any:
    """The id of an event that has ``id2``: {"local": id} or {"global": id}."""
    value = value_of(raw)
    for scope in ("global", "local"):
        if isinstance(value, dict) and scope in value:
            return f"{scope} {value[scope]}"
    return UNSET


_MADE = {
    "ph": _text,
    "name": _text,
    "cat": _text,
    "labels": _text,
    "correlation": _number,
    "External id": _number,
    "external id": _number,
    "sort_index": _number,
}
