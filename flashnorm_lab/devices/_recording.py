"""Notes the calls of a run and turns them into a timeline. CUDA's recorder builds on it, see `_cupti`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .. import ranges
from ..errors import LabError
from ..timeline import Timeline, TimelineBuilder

if TYPE_CHECKING:
    from .base import Device


class CallRecorder:
    """Host calls as they are made, and the device's commands with what tells their times: OpenCL events."""

    def __init__(self, device: Device) -> None:
        self.on = device
        self.offset, self.error = device.clock_offset()
        self.step = -1
        self.calls: list[tuple[str, str, int, int, int, int]] = []
        self.commands: list[tuple[str, str, Any, int, list[tuple[str, Any, int]]]] = []
        self.newest_on: dict[str, int] = {}
        self.range: tuple[str, int] | None = None
        self.closed = False

    def profiling(self) -> AbstractContextManager[None]:
        """What has to be open while commands run: nothing here, since each command keeps its own times."""
        return contextlib.nullcontext()

    def begin(self, name: str) -> None:
        """Start a new step, with an NVTX range and a host range of this name around it."""
        self._end_range()
        self.step += 1
        ranges.push(name)
        self.range = (name, time.perf_counter_ns())

    def close(self) -> None:
        """End the last range. The timeline can be read from here on."""
        self._end_range()
        self.closed = True

    def _end_range(self) -> None:
        if self.range is not None:
            name, start = self.range
            self.calls.append((name, "range", start, time.perf_counter_ns(), -1, self.step))
            ranges.pop()
            self.range = None

    def host(self, name: str, category: str, function: Callable[[], Any]) -> Any:
        """Call, time the call, and push an NVTX range of the same name around it."""
        launch = len(self.commands) if category == "launch" else -1
        with ranges.around(name):
            start = time.perf_counter_ns()
            result = function()
            stop = time.perf_counter_ns()
        self.calls.append((name, category, start, stop, launch, self.step))
        return result

    def device(self, name: str, stream: str, event: Any, waits: list[tuple[str, Any, int]]) -> None:
        """Note a command; ``waits`` are (edge, event, number of the command it was recorded behind)."""
        self.newest_on[stream] = len(self.commands)
        self.commands.append((name, stream, event, self.step, waits))

    def newest(self, stream: str) -> int:
        """The number of the newest recorded command on a stream, -1 where there is none yet."""
        return self.newest_on.get(stream, -1)

    def number(self, event: Any) -> int:
        """The number of the recorded command whose event this is, -1 where it is none of them."""
        found = (i for i in reversed(range(len(self.commands))) if self.commands[i][2] is event)
        return next(found, -1)

    def times(self, number: int, event: Any) -> tuple[int, int]:
        """Start and end of a command in the device's own nanoseconds, from what was noted with it."""
        return event.profile.start, event.profile.end

    def timeline(self) -> Timeline:
        """Every call and every command, on the host's clock. ``LabError`` while the recording is open."""
        if not self.closed:
            raise LabError("the recording is still open; leave its `with` block, then ask for the timeline")
        builder = TimelineBuilder()
        builder.lane("host", "host")
        for stream in self.on.queues:
            if stream in self.newest_on:
                builder.lane(stream, "device")
        for name, category, start, stop, launch, step in self.calls:
            builder.span(name, "host", start, stop - start, category, launch=launch, step=step)
        spans = []
        for number, (name, stream, event, step, waits) in enumerate(self.commands):
            start, stop = (time + self.offset for time in self.times(number, event))
            category = "copy" if name.startswith("copy") else "kernel"
            spans.append(builder.span(name, stream, start, stop - start, category, launch=number, step=step))
            for edge, _, source in waits:
                if source >= 0:
                    builder.edge(spans[source], spans[number], edge)
        described = self.on.describe()
        return builder.build(
            device=self.on.name,
            provenance="measured",
            clock_error_ns=self.error,
            versions=described["versions"],
            driver=described["driver"],
            streams=described["streams"],
        )
