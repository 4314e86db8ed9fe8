"""User events: what they hold is looked at when they are set, since only then can it start."""

from __future__ import annotations

from collections import deque

from ..program import (
    Barrier,
    BeginCapture,
    DestroyEvent,
    EndCapture,
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
from .state import Host, State
from .verdict import Problem


class HeldSteps(State):
    """The part of the analysis that puts steps aside until the user event that they wait for is set."""

    def _user_event(self, step: UserEvent) -> None:
        self._check_event_name(step, step.event)
        if step.event in self._unset:
            raise self._refuse(step, f"there is a user event {step.event!r} already")
        self._events.pop(step.event, None)
        self._unset[step.event] = step
        self._careful = True

    def _set_event(self, step: SetEvent) -> None:
        if step.event not in self._unset:
            raise self._refuse(step, f"{step.event!r} is no user event that is yet to be set")
        del self._unset[step.event]
        host = self._host(step.thread)
        self._complete(step.event, host.clock, "", None, step, host)
        self._release()
        self._careful = bool(self._captures or self._unset or self._held)

    def _waits_for(self, step: Step) -> tuple[str, ...]:
        if isinstance(step, Launch | Barrier):
            return step.after
        return (step.event,) if isinstance(step, Wait) else ()

    def _is_held(self, event: str) -> bool:
        return event in self._unset or event in self._late

    def _hold(self, step: Step) -> bool:
        """Put a step aside if a user event that is not set yet keeps it from starting; tells whether."""
        if isinstance(step, Synchronize | Query):
            if isinstance(step, Query) and not step.done:
                return False
            stuck = (
                self._is_held(step.event) if step.event is not None
                else bool(self._held) if step.stream is None
                else step.stream in self._held
            )  # fmt: skip
            if stuck:
                raise self._refuse(step, self._deadlock())
            return False
        name = getattr(step, "stream", None)
        if name is None or isinstance(step, RecordStream | BeginCapture | EndCapture):
            return False
        stream = self._stream(step)
        waits = any(self._is_held(event) for event in self._waits_for(step))
        behind = name in self._held and (
            stream.kind != "out-of-order"
            or isinstance(step, Record | Wait | Barrier)
            or any(isinstance(held, Wait | Barrier) for held, _, _ in self._held[name])
        )
        if not waits and not behind:
            return False
        if (stream.special and stream.kind != "out-of-order") or isinstance(step, GraphLaunch):
            raise self._refuse(
                step, "user events are OpenCL's; with CUDA's default stream or graphs they are not analysed"
            )
        if getattr(step, "blocks", False):
            raise self._refuse(step, self._deadlock())
        host = self._host(step.thread)
        then = Host(host.name, host.component, list(host.clock))
        then.tick, then.known = host.tick, dict(host.known)
        self._held.setdefault(name, deque()).append((step, self._index, then))
        completes = step.event if isinstance(step, Launch | Barrier | Record) else ""
        if completes:
            self._late[completes] = self._late.get(completes, 0) + 1
        return True

    def _deadlock(self) -> str:
        unset = ", ".join(f"{name!r}" for name in self._unset) or "none"
        held, index, _ = next((queue[0] for queue in self._held.values()), (None, -1, None))
        what = f"step {index} ({label(held)}) waits" if held is not None else "that waits"
        return (
            f"the host would wait for ever: {what} for a user event that only the host can set, and it has "
            f"not (not set yet: {unset}); set it before"
        )

    def _release(self) -> None:
        moved = True
        while moved:
            moved = False
            for name in list(self._held):
                queue = self._held[name]
                ordered = self._streams[name].kind != "out-of-order"
                for entry in list(queue):
                    if any(self._is_held(event) for event in self._waits_for(entry[0])) or (
                        not ordered and isinstance(entry[0], Record | Barrier) and entry is not queue[0]
                    ):
                        if ordered or isinstance(entry[0], Wait | Barrier):
                            break
                        continue
                    queue.remove(entry)
                    self._run_held(*entry)
                    moved = True
                if not queue:
                    del self._held[name]

    def _run_held(self, step: Step, index: int, then: Host) -> None:
        """Look at a step that was put aside, as issued when it was: by what its host knew then."""
        now, self._index = self._index, index
        host = self._hosts[then.name]
        then.clock += [0] * (self._width - len(then.clock))
        completes = getattr(step, "event", "") if isinstance(step, Launch | Barrier | Record) else ""
        if completes:
            self._late[completes] -= 1
            if not self._late[completes]:
                del self._late[completes]
        # What it waited for may have been set since, by a call that its own thread makes or hands over.
        then.known = {thread: other.tick for thread, other in self._hosts.items()}
        self._hosts[then.name] = then
        self._do[type(step)](step)
        self._hosts[then.name] = host
        self._index = now

    def _destroy_event(self, step: DestroyEvent) -> None:
        if step.event in self._unset:
            self._problems.append(
                Problem("never set", f"user event {step.event!r} is destroyed and was never set", step.source,
                        self._index)
            )  # fmt: skip
            return
        if not self._is_held(step.event):
            self._events.pop(step.event, None)
