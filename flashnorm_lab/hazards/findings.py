"""Hazards as they are found: which pair, which bytes, what a read may see, and why nothing orders it."""

from __future__ import annotations

from typing import Any

from ..program import Allocate, Free, HostRead, HostWrite, Launch, Record, Wait, label, pattern
from .memory import Segment
from .state import BLOCKING, Mark, State
from .verdict import Hazard

STEADY = 3
"""After so many pairs alike, what a read may observe is what it is."""
HAZARDS = 1000
"""How many different hazards are kept; those beyond are counted."""


class Found:
    """A hazard that may still gain bytes, values and pairs like it."""

    __slots__ = ("buffer", "count", "distance", "first", "kind", "kinds", "new_buffer", "second", "start",
                 "stop", "values", "why")  # fmt: skip

    def __init__(self, first: Mark, second: Mark, start: int, stop: int) -> None:
        self.first, self.second, self.start, self.stop = first, second, start, stop
        self.kind = self.buffer = self.new_buffer = self.why = ""
        self.distance, self.count = 0, 1
        self.kinds = ("", "")
        self.values: tuple[str, ...] = ()

    def freeze(self) -> Hazard:
        a, b = self.first[3], self.second[3]
        return Hazard(
            kind=self.kind,
            buffer=self.buffer,
            first=label(a),
            first_stream=where(a),
            second=label(b),
            second_stream=where(b),
            distance=self.distance,
            start=self.start,
            stop=self.stop,
            values=self.values,
            why=self.why,
            first_source=a.source,
            second_source=b.source,
            first_index=self.first[2],
            second_index=self.second[2],
            first_kind=self.kinds[0],
            second_kind=self.kinds[1],
            second_thread=b.thread,
            first_on_host=not getattr(a, "stream", None),
            second_on_host=not getattr(b, "stream", None),
            numbered=self.first[4] >= 0 and self.second[4] >= 0,
            new_buffer=self.new_buffer,
            count=self.count,
        )


RANK = {
    kind: rank
    for rank, kind in enumerate(("use before allocation", "use after free", "reuse", "RAW", "WAR", "WAW"))
}


def where(step: Any) -> str:
    """The stream that does a step's work, or the host thread."""
    return getattr(step, "stream", None) or step.thread


def at_source(step: Any) -> str:
    return f"at {step.source}" if step.source else f"({label(step)})"


def _event_of(step: Any) -> str:
    """The event that a step waits for; of a wait list, all of them."""
    return step.event if type(step) is Wait else ", ".join(step.after)


class Findings(State):
    """The part of the analysis that keeps what was found."""

    def _hazard(
        self, kind: str, first: Mark, second: Mark, buffer: str, segment: Segment, new: str = ""
    ) -> None:
        if self._releasing and second[2] < first[2]:  # it was held, and the host gave it first
            first, second = second, first
            kind = {"RAW": "WAR", "WAR": "RAW"}.get(kind, kind)
        a, b = first[3], second[3]
        if type(a) is Allocate:
            kind = "use before allocation"
        distance = second[4] - first[4] if first[4] >= 0 and second[4] >= 0 else 0
        texts = (buffer, new, label(a), label(b))
        if a.source and b.source:  # in a loop, names may be new in every turn
            texts = tuple(map(pattern, texts))
        key = (*texts, where(a), where(b), distance, a.source, b.source)
        base = 0
        owner = self._buffers.get(new or buffer)
        if owner is not None and owner.nbytes >= segment.stop - owner.base >= 0:
            base = owner.base
        start, stop = segment.start - base, segment.stop - base
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= HAZARDS:
                self.more += 1
                return
            found = self._found[key] = Found(first, second, start, stop)
            found.kind, found.buffer, found.new_buffer, found.distance = kind, buffer, new, distance
            found.values = self._values(kind, first, second, buffer, segment)
            found.why = self._why(first, second)
            found.kinds = (self._kind_of(where(a)), self._kind_of(where(b)))
        elif (found.first[2], found.second[2]) == (first[2], second[2]):
            found.start, found.stop = min(found.start, start), max(found.stop, stop)
            if RANK[kind] < RANK[found.kind]:
                found.kind = kind
                found.values = self._values(kind, first, second, buffer, segment)
        else:
            found.count += 1
            if (
                found.count <= STEADY
            ):  # once the loop has turned a few times, older contents are there to read
                found.values = self._values(found.kind, first, second, buffer, segment)

    def _values(self, kind: str, first: Mark, second: Mark, buffer: str, segment: Segment) -> tuple[str, ...]:
        """What the read of a hazard may observe, or for two writes, what may be left behind."""
        if kind == "reuse" or kind.startswith("use"):
            return ()
        reader = first if kind == "WAR" else second
        if kind == "RAW":
            older = (segment.before, segment.older) if segment.write is first else (segment.write,)
            writes = [first, *(write for write in older if write is not None and write is not first)]
        elif kind == "WAR":
            older = segment.before if segment.write is first else segment.write  # first may work in place
            writes = [second, *([older] if older not in (None, second) else [])]
        else:
            writes = [second, first]
        told: list[str] = []
        for write in writes:
            told.append(self._value(write, reader, buffer))
            if write is not first and kind == "RAW" and self._before(write, second):
                break
        else:
            if kind == "RAW" and (segment.older is None or segment.write is not first):
                told.append(f"what {buffer} held at the start")
            elif kind == "RAW":
                told.append("an older one")
            elif kind == "WAR" and older is None:
                told.append(f"what {buffer} held at the start")
        return tuple(dict.fromkeys(told))

    def _before(self, mark: Mark, second: Mark) -> bool:
        stream = second[3].stream if isinstance(second[3], Launch) else None
        owner = self._streams.get(stream) if stream is not None else self._hosts.get(second[3].thread)
        if owner is None:
            return False
        clock = getattr(owner, "chains", {}).get(second[0], owner.clock)  # out of order: of that command
        return clock[mark[0]] >= mark[1]

    def _value(self, write: Mark, reader: Mark, buffer: str) -> str:
        if type(write[3]) is Allocate:
            return f"what {buffer} held at the start"
        if write[4] >= 0 and reader[4] >= 0:
            back = reader[4] - write[4]
            return f"{buffer} of step t" + (f"{-back:+d}" if back else "")
        source = f" ({write[3].source})" if write[3].source else ""
        return f"{buffer} from {label(write[3])}{source}"

    def _why(self, first: Mark, second: Mark) -> str:
        """What orders the two nearly, or that nothing does."""
        a, b = first[3], second[3]
        on, by = where(a), where(b)
        if type(a) is Free:
            return f"{a.buffer} is freed before {label(b)} is even issued"
        if type(b) in (HostRead, HostWrite) or (type(b) is Free and b.stream is None):
            hints = self._host(b.thread).hints
            waiter = "the host" if b.thread == "host" else f"host thread {b.thread}"
        else:
            stream = self._streams.get(by)
            hints = stream.hints if stream is not None else {}
            waiter = by
        if on == by:
            return f"{on} is out-of-order: it starts its work in any order that wait lists and barriers allow"
        hint = hints.get(on)
        text = self._recorded_behind(first, on, waiter)
        if text:
            pass
        elif hint is None:
            text = f"{waiter} has not waited for {on} at all by then"
        else:
            step, recorded = hint
            if recorded is not None:
                text = (
                    f"the last wait of {waiter} for {on}, {at_source(step)}, is for what was recorded "
                    f"{at_source(recorded)}, before {label(a)} was issued"
                )
            else:
                text = (
                    f"the last time that {waiter} waited for {on}, {at_source(step)}, was before "
                    f"{label(a)} was issued"
                )
        empty = hints.get("")
        if empty is not None:
            text += (
                f"; its wait {at_source(empty[0])} is for {_event_of(empty[0])}, which has no record by then"
            )
        at, number = first[0], first[1]
        hosts = (h for h in self._hosts.values() if len(h.clock) > at and h.clock[at] >= number)
        knows = next((h.name for h in hosts), None)
        if knows is not None and knows != b.thread:
            text += f"; host thread {knows} knows that it is done, but no hand-over to {b.thread} was seen"
        default = next((name for name in hints if self._kind_of(name) == "legacy"), None)
        if default is not None and self._kind_of(on) == "non-blocking":
            text += f"; {waiter} has waited for {default}, which does not cover {on}, as that is non-blocking"
        if on != by and {self._kind_of(on), self._kind_of(by)} <= set(BLOCKING):
            text += "; blocking streams wait for the default stream, and not for each other"
        kinds = {self._kind_of(name): name for name in (on, by)}
        if {"legacy", "non-blocking"} <= kinds.keys():
            text += (
                f"; {kinds['non-blocking']} is non-blocking, so the default stream and it do not wait for "
                "each other by themselves"
            )
        return text

    def _kind_of(self, stream: str) -> str:
        found = self._streams.get(stream)
        return found.kind if found is not None else ""

    def _recorded_behind(self, first: Mark, on: str, waiter: str) -> str:
        """Whether an event stands for the first access already, and is only not waited for."""
        for name, (clock, stream, _, step, _, _) in self._events.items():
            if (
                stream == on
                and type(step) is Record
                and len(clock) > first[0]
                and clock[first[0]] >= first[1]
            ):
                behind = f"{name} is recorded behind {label(first[3])}, {at_source(step)}"
                return f"{behind}, but {waiter} does not wait for it"
        return ""
