"""Happens-before analysis of a schedule: which accesses may race, and the one edge that repairs each.

A hazard is two accesses to overlapping bytes, at least one a write, that no happens-before path orders.
The verdict comes from the schedule alone, so it does not depend on how a run turned out.

Order comes from four places: a stream runs what it is given in order; a wait orders the stream behind all
that came before the event's latest record; a synchronization orders the host behind a stream; and whatever
the host issues comes after what the host has already waited for. Each stream carries a vector clock
(Mattern, "Virtual Time and Global States of Distributed Systems", 1989): how much of every other stream is
known to be done when its next operation starts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from .errors import LabError
from .schedule import Access, Copy, External, HostRead, HostWrite, Launch, Record, Schedule, Synchronize, Wait

HOST = "host"


@dataclass(frozen=True)
class Hazard:
    """Two accesses that nothing orders.

    ``first`` comes before ``second`` in the host's order, ``distance`` steps apart (0: the same step).
    ``kind`` is RAW, WAR or WAW; ``start`` and ``stop`` are the overlapping bytes of ``buffer``; ``repair``
    is the edge that orders them, by its name where the schedule has one.
    """

    kind: str
    buffer: str
    first: str
    first_stream: str
    second: str
    second_stream: str
    distance: int
    start: int
    stop: int
    repair: str

    def explain(self) -> str:
        """The hazard in one sentence."""
        when = ("in the same step", "of the next step", f"{self.distance} steps later")[min(self.distance, 2)]
        what = {"RAW": "reads", "WAR": "overwrites", "WAW": "overwrites"}[self.kind]
        did = {"RAW": "writing", "WAR": "reading", "WAW": "writing"}[self.kind]
        return (
            f"{self.kind} on {self.buffer}: {self.second} ({self.second_stream}) {when} {what} "
            f"{self.buffer}, and nothing makes it wait until {self.first} ({self.first_stream}) is done "
            f"{did} it. Repair: {self.repair}."
        )

    def as_dict(self) -> dict[str, object]:
        """The hazard as plain values, for JSON."""
        return {
            "kind": self.kind,
            "buffer": self.buffer,
            "first": self.first,
            "second": self.second,
            "distance": self.distance,
            "bytes": [self.start, self.stop],
            "repair": self.repair,
        }


Clock = dict[str, int]


@dataclass(frozen=True)
class _Operation:
    """A launch, a copy or a host access of one step, with what is known to be done when it starts."""

    name: str
    stream: str
    step: int
    number: int  # its place on its own stream, from 1
    clock: Clock
    accesses: tuple[Access, ...]

    def before(self, other: _Operation) -> bool:
        return other.clock.get(self.stream, 0) >= self.number


def find(schedule: Schedule, repeats: int = 2) -> tuple[Hazard, ...]:
    """Every hazard of the schedule run ``repeats`` times in a row, nearest conflicting pairs only.

    Two repeats show what crosses from one step into the next; more add nothing for the schedules of this
    lab, whose steps are all alike. Pairs further apart than the nearest are ordered once the nearest are.
    """
    if not isinstance(schedule, Schedule):
        raise LabError(f"{schedule!r} is no schedule; make one with schedule.deferred(tokens, n, k)")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise LabError(f"repeats={repeats!r}: give a whole number of at least 1")
    unrepaired = _pairs(schedule, repeats)
    repaired = {e: _pairs(schedule.with_edges(schedule.edges | {e}), repeats) for e in schedule.dropped}
    hazards = []
    for key, (first, second, start, stop) in unrepaired.items():
        kind, buffer, *_, distance = key
        repair = next((edge for edge, left in repaired.items() if key not in left), None)
        hazards.append(
            Hazard(kind, buffer, first.name, first.stream, second.name, second.stream, distance, start, stop,
                   repair or _event_text(first, second))
        )  # fmt: skip
    return tuple(hazards)


def ordered(schedule: Schedule, first: str, second: str) -> bool:
    """Whether, within one step, ``second`` starts only when ``first`` is done, on every run."""
    found = {op.name: op for op in _operations(schedule, 1)}
    for name in (first, second):
        if name not in found:
            known = ", ".join(found)
            raise LabError(f"there is no {name!r} in the {schedule.name} schedule; there are {known}")
    return found[first].before(found[second])


Key = tuple[str, str, str, str, int]


def _pairs(schedule: Schedule, repeats: int) -> dict[Key, tuple[_Operation, _Operation, int, int]]:
    """Conflicting pairs that nothing orders, one for each (kind, buffer, first, second, distance)."""
    writes: dict[tuple[str, int], list[tuple[_Operation, Access]]] = defaultdict(list)
    reads: dict[tuple[str, int], list[tuple[_Operation, Access]]] = defaultdict(list)
    found: dict[Key, tuple[_Operation, _Operation, int, int]] = {}
    for operation in _operations(schedule, repeats):
        for access in operation.accesses:
            place = (access.buffer, operation.step if access.per_step else 0)
            earlier = [("WAW" if access.writes else "RAW", *pair) for pair in writes[place]]
            if access.writes:
                earlier += [("WAR", *pair) for pair in reads[place]]
            for kind, other, touched in earlier:
                start, stop = max(access.start, touched.start), min(access.stop, touched.stop)
                if start < stop and other is not operation and not other.before(operation):
                    key = (kind, access.buffer, other.name, operation.name, operation.step - other.step)
                    found.setdefault(key, (other, operation, start, stop))
            if access.writes:
                for kept in (writes, reads):  # what this write covers is no longer the nearest conflict
                    kept[place] = [p for p in kept[place] if not _covers(access, p[1])]
                writes[place].append((operation, access))
            else:
                reads[place].append((operation, access))
    return found


def _operations(schedule: Schedule, repeats: int) -> Iterator[_Operation]:
    clocks: dict[str, Clock] = defaultdict(dict)
    events: dict[str, Clock] = {}

    def advance(name: str, stream: str, step: int, accesses: tuple[Access, ...]) -> _Operation:
        clock = clocks[stream]
        if stream != HOST:
            _merge(clock, clocks[HOST])
        done = dict(clock)
        clock[stream] = clock.get(stream, 0) + 1
        return _Operation(name, stream, step, clock[stream], done, accesses)

    for step in range(repeats):
        for s in schedule.steps:
            match s:
                case Launch() | Copy() | External():
                    yield advance(s.name, s.stream, step, schedule.accesses(s))
                case HostWrite():
                    yield advance(f"host write of {s.buffer}", HOST, step, schedule.accesses(s))
                case HostRead():
                    yield advance(f"host read of {s.buffer}", HOST, step, schedule.accesses(s))
                case Record():
                    events[s.event] = clocks[s.stream] | {}
                case Wait():
                    _merge(clocks[s.stream], events.get(s.event, {}))
                case Synchronize():
                    for stream in [s.stream] if s.stream else list(clocks):
                        _merge(clocks[HOST], clocks[stream])


def _covers(outer: Access, inner: Access) -> bool:
    return outer.start <= inner.start and inner.stop <= outer.stop


def _merge(into: Clock, other: Clock) -> None:
    for stream, number in other.items():
        if into.get(stream, 0) < number:
            into[stream] = number


def _event_text(first: _Operation, second: _Operation) -> str:
    if second.stream == HOST:
        return f"the host waits for {first.stream} before the {second.name}"
    return (
        f"an event recorded on {first.stream} after {first.name}, "
        f"which {second.stream} waits for before {second.name}"
    )
