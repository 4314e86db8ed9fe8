"""A recorded run on CUDA: the host's calls as we timed them, the device's times as CUPTI saw them.

torch.profiler drives CUPTI, which sees every launch of the process, CuPy's too. The trace is read by the
importer that reads a user's own traces. What it cannot tell, we know: which launch of which step a span
is (both come in the host's order), which stream it ran on, and which edges it waited for.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LabError
from ..timeline import Timeline, from_kineto
from ._recording import CallRecorder

if TYPE_CHECKING:
    from .cuda import CudaDevice, CudaPlan, _Command

_CATEGORY = {"copy": "launch", "transfer": "copy"}


class CuptiRecorder(CallRecorder):
    """Notes every call of every step, and finds its times in the profiler's trace."""

    on: CudaDevice

    def __init__(self, device: CudaDevice) -> None:
        super().__init__(device)
        self.recorded: dict[tuple[CudaPlan, str], int] = {}
        self.waiting: dict[int, list[tuple[str, Any, int]]] = defaultdict(list)
        self.trace: Timeline | None = None
        self.seen: list[tuple[int, int]] = []
        """Start and end of each command, once the trace has been read."""

    @contextlib.contextmanager
    def profiling(self) -> Iterator[None]:
        """Everything within is seen by CUPTI. ``LabError`` where torch or its profiler cannot do it."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        if not torch.cuda.is_available():
            raise LabError(
                f"a recording on CUDA needs torch's profiler, but torch {torch.__version__} cannot use the "
                "GPU; install a torch built for CUDA"
            )
        profiler = profile(activities=[ProfilerActivity.CUDA], acc_events=True)
        try:
            profiler.start()
        except RuntimeError as problem:
            raise LabError(f"torch's profiler did not start ({problem}); end any other recording") from None
        try:
            yield
        finally:
            profiler.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(path))
            self.trace = from_kineto(path, source="the trace of torch.profiler")

    def observe(self, plan: CudaPlan, command: _Command) -> None:
        """Make one call of the step, timed, and note what it stands for."""
        kind, label, stream, call, what = command
        self.host(label, _CATEGORY.get(kind, kind), call)
        place = plan.streams[stream].ptr if stream else 0
        if kind == "record":
            self.recorded[plan, what] = self.newest(stream)
        elif kind == "wait":
            self.waiting[place].append((what, None, self.recorded.get((plan, what), -1)))
        elif kind in ("launch", "copy"):
            self.device(label, stream, (what, place), self.waiting.pop(place, []))

    def timeline(self) -> Timeline:
        """The whole recording on the host's clock. ``LabError`` where the profiler missed something."""
        if self.trace is not None:
            spans, calls = self._find(self.trace)
            self.seen = [(int(self.trace.start_ns[s]), int(self.trace.end_ns[s])) for s in spans]
            self._set_clocks(self.trace, calls)
            self.trace = None
        return super().timeline()

    def times(self, number: int, event: Any) -> tuple[int, int]:
        """Start and end of a command in the profiler's nanoseconds."""
        return self.seen[number]

    def _find(self, trace: Timeline) -> tuple[list[int], list[int]]:
        """For each command, the trace's span of its work and of its call (-1 where the trace lacks the call).

        CUPTI numbers calls in the order in which they are made, so ours follow each other in the trace;
        other work of the process may lie between.
        """
        call_of = {int(work): int(call) for call, work in trace.launches()}
        work = trace.operations().tolist()
        work.sort(key=lambda s: int(trace.launch[s]))
        lane_of: dict[int, int] = {}
        spans: list[int] = []
        candidates = iter(work)
        for name, _, (what, place), *_ in self.commands:
            for span in candidates:
                lane = int(trace.lane[span])
                if trace.names[trace.name[span]].startswith(what) and lane_of.get(place, lane) == lane:
                    lane_of[place] = lane
                    spans.append(span)
                    break
            else:
                raise LabError(
                    f"the profiler saw {len(spans)} of {len(self.commands)} launches and copies, and no "
                    f"{name!r} after them; record fewer steps, with nothing else running on the GPU"
                )
        return spans, [call_of.get(span, -1) for span in spans]

    def _set_clocks(self, trace: Timeline, calls: list[int]) -> None:
        """Find what to add to the profiler's times, from calls that both clocks saw.

        The profiler's idea of a call lies within ours, as we read our clock before and after it. Each call
        so bounds the offset from both sides; the tightest bounds count. The error covers the rest, and
        also any work that seems to start before its own launch: then the device's clock is off by that much.
        """
        ours = {launch: (start, stop) for _, _, start, stop, launch, _ in self.calls if launch >= 0}
        seen = [(ours[number], call) for number, call in enumerate(calls) if call >= 0]
        if seen:
            least = max(start - int(trace.start_ns[call]) for (start, _), call in seen)
            most = min(stop - int(trace.end_ns[call]) for (_, stop), call in seen)
            self.offset, self.error = (least + most) // 2, (abs(most - least) + 1) // 2
        early = [ours[number][0] - (start + self.offset) for number, (start, _) in enumerate(self.seen)]
        self.error = max(self.error, *early) if early else self.error
