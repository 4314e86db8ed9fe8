"""User events: what they hold is looked at when they are set, since only then can it start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from ..program import (
    Allocate,
    Barrier,
    BeginCapture,
    DestroyEvent,
    EndCapture,
    Free,
    GraphLaunch,
    Launch,
    Query,
    Record,
    RecordStream,
    SetEvent,
    Step,
    Synchronize,
    UserEvent,
    Wait,
    label,
)
from .memory import BufferState
from .state import Clock, Event, Host, State, StreamState, merge
from .verdict import Problem


class Late:
    """What an event will stand for: a user event that is not set, or a record that is held."""

    __slots__ = ("by", "event")

    def __init__(self, by: Host | None) -> None:
        self.event: Event | None = None
        self.by = None if by is None else (by.name, by.tick)


@dataclass
class HeldStep:
    """A step that was put aside, with all that it meant when it was issued."""

    step: Any
    index: int
    host: Host  # as it was then
    events: dict[str, Late | Event | None]
    buffers: dict[str, BufferState]
    completes: Late | None
    base: Clock  # of an out-of-order queue, as it was then

    @property
    def ready(self) -> bool:
        return all(not isinstance(e, Late) or e.event is not None for e in self.events.values())


class HeldSteps(State):
    """The part of the analysis that puts steps aside until the user event that they wait for is set."""

    def _user_event(self, step: UserEvent) -> None:
        self._check_event_name(step, step.event)
        if step.event in self._unset:
            raise self._refuse(step, f"there is a user event {step.event!r} already")
        self._events.pop(step.event, None)
        self._unset[step.event] = (Late(None), step)
        self._careful = True

    def _set_event(self, step: SetEvent) -> None:
        if step.event not in self._unset:
            raise self._refuse(step, f"{step.event!r} is no user event that is yet to be set")
        late, _ = self._unset.pop(step.event)
        host = self._host(step.thread)
        self._complete(step.event, host.clock, "", None, step, host)
        late.event = self._events[step.event]
        while self._run_what_is_ready():
            pass
        self._careful = bool(self._captures or self._unset or self._held)

    def _waits_for(self, step: Step) -> tuple[str, ...]:
        if isinstance(step, Launch | Barrier):
            return step.after
        return (step.event,) if isinstance(step, Wait) else ()

    def _binding(self, name: str, host: Host) -> Late | Event | None:
        """What a wait for this event, given now, is for."""
        if name in self._unset:
            return self._unset[name][0]
        late = self._late.get(name)
        if late is None:
            return self._usable(name, host)
        if late.by is None or late.by[0] == host.name or host.known.get(late.by[0], -1) >= late.by[1]:
            return late
        return None

    def _hold(self, step: Step) -> bool:
        """Put a step aside if a user event that is not set yet keeps it from starting; tells whether."""
        host = self._host(step.thread)
        if isinstance(step, Synchronize | Query):
            if isinstance(step, Query) and not step.done:
                return False
            if step.event is not None:
                stuck = isinstance(self._binding(step.event, host), Late)
            else:
                stuck = bool(self._held) if step.stream is None else step.stream in self._held
            if stuck:
                raise self._refuse(step, self._deadlock())
            return False
        name = getattr(step, "stream", None)
        if name is None or isinstance(step, RecordStream | BeginCapture | EndCapture):
            return False
        stream = self._stream(step)
        events = {event: self._binding(event, host) for event in self._waits_for(step)}
        waits = any(isinstance(event, Late) for event in events.values())
        behind = name in self._held and (
            stream.kind != "out-of-order"
            or isinstance(step, Record)
            or (isinstance(step, Barrier) and not step.after)
            or any(isinstance(held.step, Wait | Barrier) for held in self._held[name])
        )
        if not waits and not behind:
            return False
        if (stream.special and stream.kind != "out-of-order") or isinstance(
            step, GraphLaunch | Allocate | Free
        ):
            raise self._refuse(
                step,
                "user events are OpenCL's; beside them, CUDA's default stream, graphs and stream-ordered "
                "memory are not analysed",
            )
        if getattr(step, "blocks", False):
            raise self._refuse(step, self._deadlock())
        then = Host(host.name, host.component, host.clock.copy())
        then.tick, then.known = host.tick, dict(host.known)
        buffers = {a.buffer: self._buffer(step, a.buffer) for a in getattr(step, "accesses", ())}
        completes = None
        if isinstance(step, Launch | Barrier | Record) and step.event:
            completes = self._late[step.event] = Late(host if isinstance(step, Record) else None)
        held = HeldStep(step, self._index, then, events, buffers, completes, stream.clock.copy())
        self._held.setdefault(name, deque()).append(held)
        return True

    def _deadlock(self) -> str:
        unset = ", ".join(f"{name!r}" for name in self._unset)
        held = next((queue[0] for queue in self._held.values()), None)
        what = f"step {held.index} ({label(held.step)}) waits" if held is not None else "that waits"
        return (
            f"the host would wait for ever: {what} for a user event that only the host can set, and it has "
            f"not (not set yet: {unset}); set it before"
        )

    def _run_what_is_ready(self) -> bool:
        """Look at every step that nothing holds any more; tells whether there was one."""
        moved = False
        for name, queue in list(self._held.items()):
            in_order = self._streams[name].kind != "out-of-order"
            for held in list(queue):
                first = held is queue[0]
                joins = isinstance(held.step, Record) or (
                    isinstance(held.step, Barrier) and not held.step.after
                )
                if held.ready and (first or not (in_order or joins)):
                    queue.remove(held)
                    self._run_held(held)
                    moved = True
                elif in_order or isinstance(held.step, Wait | Barrier):
                    break  # holds back all that was issued behind it
            if not queue:
                del self._held[name]
        return moved

    def _run_held(self, held: HeldStep) -> None:
        """Look at a step that was put aside, with the events, buffers and knowledge of when it was issued."""
        step, then = held.step, held.host
        now, self._index = self._index, held.index
        then.clock += [0] * (self._width - len(then.clock))
        host = self._hosts[then.name]
        events, buffers = dict(self._events), dict(self._buffers)
        for name, event in held.events.items():
            bound = event.event if isinstance(event, Late) else event
            if bound is None:
                self._events.pop(name, None)
            else:
                self._events[name] = (*bound[:4], "", bound[5])  # that it may be used is settled
        newest = dict(self._late)
        self._buffers.update(held.buffers)
        self._hosts[then.name] = then
        self._releasing = True
        stream = self._streams[step.stream]
        if stream.kind == "out-of-order":
            self._run_behind(held, stream)
        else:
            self._do[type(step)](step)
        self._releasing = False
        self._hosts[then.name] = host
        if held.completes is not None:
            held.completes.event = self._events[step.event]
            if newest.get(step.event) is held.completes:
                events[step.event] = held.completes.event
                del newest[step.event]
        self._late, self._events, self._buffers = newest, events, buffers
        self._index = now

    def _run_behind(self, held: HeldStep, stream: StreamState) -> None:
        """Look at a command of an out-of-order queue, which no later barrier or wait on it holds back."""
        now = stream.clock.copy()
        stream.clock[:] = held.base + [0] * (self._width - len(held.base))
        self._do[type(held.step)](held.step)
        for other in self._held.get(stream.name, ()):
            if other.index > held.index and isinstance(held.step, Wait | Barrier):
                other.base += [0] * (self._width - len(other.base))
                merge(other.base, stream.clock)
        merge(stream.clock, now)

    def _destroy_event(self, step: DestroyEvent) -> None:
        if step.event in self._unset:
            self._problems.append(
                Problem("never set", f"user event {step.event!r} is destroyed and was never set", step.source,
                        self._index)
            )  # fmt: skip
        elif step.event not in self._late:
            self._events.pop(step.event, None)
