"""What the analysis keeps: clocks, streams, host threads, events. All of it is bounded, see `engine`."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ..errors import LabError
from ..program import Step, label
from .verdict import Problem

if TYPE_CHECKING:
    from .findings import Found
    from .graphs import Capture, Graph
    from .held import HeldStep, Late
    from .memory import BufferState, Memory

Clock = list[int]
Mark = tuple[int, int, int, Any, int]
"""Component, number on it, index of the step, the step itself, number of its iteration."""
Event = tuple[Clock, str, Mark | None, Any, str, int]
"""A record: the clock at that point, the stream and what it had been given last, the step, and who made the
call: a host thread, and how often that had handed over by then."""

BLOCKING = ("blocking", "per-thread")
"""The kinds of stream that wait for the legacy default stream, and it for them."""

fresh = itertools.count(1).__next__
"""A number for each change of what somebody knows, so that the same is not taken over twice."""


def merge(into: Clock, other: Clock) -> bool:
    """Take over what ``other`` has reached; tells whether that is anything new."""
    new = False
    for i, number in enumerate(other):
        if into[i] < number:
            into[i] = number
            new = True
    return new


def covered(clock: Clock, by: Clock) -> bool:
    """Whether ``by`` has reached all of a clock, which may be from before some entries were made."""
    return all(number <= other for number, other in zip(clock, by, strict=False))


class Host:
    """A host thread: what it knows to be done, and how often it has handed that over."""

    __slots__ = ("clock", "component", "hints", "known", "name", "tick", "version")

    def __init__(self, name: str, component: int, clock: Clock) -> None:
        self.name, self.component, self.clock = name, component, clock
        self.version = fresh()
        self.tick = 0
        self.known: dict[str, int] = {}
        self.hints: dict[str, tuple[Step, Any]] = {}


class StreamState:
    __slots__ = (
        "base",
        "capture",
        "chains",
        "clock",
        "component",
        "context",
        "hints",
        "kind",
        "last",
        "legacy_version",
        "name",
        "special",
        "version",
        "waits",
    )

    def __init__(self, name: str, kind: str, context: Context, component: int, clock: Clock) -> None:
        self.name, self.kind, self.context = name, kind, context
        self.component, self.clock = component, clock
        self.version = self.legacy_version = 0
        self.last: Mark | None = None
        self.waits: list[tuple[list[Any], Clock, bool]] = []
        """Since the last work: the place of each wait, what it waits for, and whether that was new."""
        self.base: Clock = []
        self.hints: dict[str, tuple[Step, Any]] = {}
        self.chains: dict[int, Clock] = {}  # out-of-order only: the clock of the last command of each chain
        self.capture: Capture | None = None
        self.special = kind in ("legacy", "out-of-order")


class Context:
    __slots__ = ("blocking", "legacy", "version")

    def __init__(self) -> None:
        self.legacy: StreamState | None = None
        self.blocking: list[StreamState] = []
        self.version = 0


class State:
    """Everything that the parts of the analysis share."""

    def __init__(self, name: str, unseen: Iterable[str]) -> None:
        self.name, self.unseen = name, tuple(unseen)
        self.launches = 0
        self.more = 0
        """Hazards beyond the first `HAZARDS` different ones."""
        self.watch: dict[str, Callable[[Mark, Clock], None]] = {}
        """Called with the mark and clock of each piece of work of that name; see `hazards.order`."""
        self._width = 0
        self._clocks: list[Clock] = []
        self._contexts: dict[str, Context] = {}
        self._streams: dict[str, StreamState] = {}
        self._hosts: dict[str, Host] = {}
        self._events: dict[str, Event] = {}
        self._captured_events: set[str] = set()
        self._captures: list[Capture] = []
        self._graphs: dict[str, Graph | None] = {}
        self._unset: dict[str, tuple[Late, Step]] = {}
        self._late: dict[str, Late] = {}
        self._held: dict[str, deque[HeldStep]] = {}
        self._memories: dict[str, Memory] = {}
        self._buffers: dict[str, BufferState] = {}
        self._found: dict[tuple[Any, ...], Found] = {}
        self._problems: list[Problem] = []
        self._sites: dict[tuple[Any, ...], list[Any]] = {}
        self._index = -1
        self._releasing = False  # whether a step is looked at that was put aside
        self._careful = False  # whether a capture is open or a user event is not set yet

    def _widen(self) -> int:
        """A new entry of every clock; returns its number."""
        for clock in self._clocks:
            clock.append(0)
        self._width += 1
        return self._width - 1

    def _component(self) -> tuple[int, Clock]:
        """A new entry of every clock, and a clock for its owner."""
        component = self._widen()
        clock = [0] * self._width
        self._clocks.append(clock)
        return component, clock

    def _host(self, name: str) -> Host:
        host = self._hosts.get(name)
        if host is None:
            host = self._hosts[name] = Host(name, *self._component())
        return host

    def _refuse(self, step: Step, text: str) -> LabError:
        source = f", {step.source}" if step.source else ""
        return LabError(f"step {self._index} ({label(step)}{source}): {text}")

    def _stream(self, step: Any, name: str | None = None) -> StreamState:
        name = step.stream if name is None else name
        try:
            return self._streams[name]
        except KeyError:
            known = ", ".join(self._streams) or "none"
            raise self._refuse(step, f"there is no stream {name!r}; there are {known}") from None
