"""What launches cost: time on the host, delay until the device starts, and how full the queue is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from ..answer import Answer, Table, cut, ratio, told_share, told_time
from ..cutting import launched_within
from ..table import CATEGORIES, ENQUEUES, Timeline
from .layout import shown
from .measure import length
from .working import ENQUEUED, WAIT_NS, Work, middle, plural, rank, told_device, union_of, work_of


@dataclass(frozen=True)
class LaunchCall:
    """The calls of one name. count: calls. operations: operations of the device that they enqueued.

    total_ns, median_ns, p95_ns, max_ns: their time on the host (p95 by nearest rank).
    delay_ns: median from the start of the call to the start of its first operation; None where none is known.
    """

    name: str
    category: str
    count: int
    operations: int
    total_ns: int
    median_ns: float
    p95_ns: int
    max_ns: int
    delay_ns: float | None


@dataclass(frozen=True)
class Delay:
    """Delays from a call to its first operation. count: calls; negative: those below zero, which clocks that
    disagree bring about (and, counted from the end of a call, work that started before the call returned).
    The rest in nanoseconds, None without any call."""

    count: int
    negative: int
    mean_ns: float | None
    median_ns: float | None
    p95_ns: int | None
    min_ns: int | None
    max_ns: int | None


@dataclass(frozen=True, eq=False)
class Queue:
    """Launches on the way on one device. A launch of several operations (a graph) counts once: it waits until
    its first operation starts, and is unfinished until its last has ended.

    times [changes] int64 absolute ns, rising; waiting, unfinished [changes] int64: launches enqueued and not
    started, and enqueued and not finished, from that time until the next.
    mean_waiting, mean_unfinished: weighted by time, from the first enqueue to the last end; None for no time.
    """

    device: str
    launches: int
    times: np.ndarray
    waiting: np.ndarray
    unfinished: np.ndarray
    max_waiting: int
    mean_waiting: float | None
    max_unfinished: int
    mean_unfinished: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values; the curve itself is left to the arrays."""
        arrays = ("times", "waiting", "unfinished")
        plain = {name: value for name, value in vars(self).items() if name not in arrays}
        return plain | {"changes": len(self.times)}


@dataclass(frozen=True)
class ShortKernels:
    """Kernels that took less time than the call which launched them.

    count: such kernels; of: kernels with a launch of their own; share: count / of, None for none.
    kernel_ns, call_ns: their time, and that of their calls.
    """

    count: int
    of: int
    share: float | None
    kernel_ns: int
    call_ns: int


@dataclass(frozen=True, kw_only=True)
class Launching(Answer):
    """The cost of launches.

    calls: a `LaunchCall` for each name, the most time first.
    launches: calls that enqueue (launch, copy, fill, graph), a graph's launch counting once.
    host_ns: time in which some such call ran, a union for each thread (calls nest), summed over threads.
    blocking, blocking_ns: calls that copy, lasted 20 µs or more, and returned only when at least half of the
        copy had run: theirs is a time of waiting, not of launching. Their number, and their sum, which is in
        host_ns too.
    from_start, from_end: `Delay` from the call's start, and from its end, to its first operation's start.
    queues: a `Queue` for each device.
    steps [steps] int64: the numbers of the steps that launches belong to; step_launches, step_calls
    [steps] int64: launches of kernels and graphs, and all calls that enqueue, of each.
    per_step: mean of step_launches; None where no step is known.
    short: kernels shorter than their own launch.
    """

    calls: tuple[LaunchCall, ...]
    launches: int
    host_ns: int
    blocking: int
    blocking_ns: int
    from_start: Delay
    from_end: Delay
    queues: tuple[Queue, ...]
    steps: np.ndarray
    step_launches: np.ndarray
    step_calls: np.ndarray
    per_step: float | None
    short: ShortKernels

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each name of call."""
        rows = [
            (
                shown(call.name),
                f"{call.count:,}",
                f"{call.operations:,}",
                told_time(call.total_ns),
                told_time(call.median_ns),
                told_time(call.p95_ns),
                told_time(call.delay_ns),
            )
            for call in self.calls
        ]
        head = ("call", "count", "operations", "host time", "median", "p95", "median delay")
        return cut(rows, head, most) if rows else None

    def summary(self) -> str:
        """Host time, delay, short kernels, launches per step."""
        if not self.launches:
            return "there is no launch call here"
        parts = [f"{plural(self.launches, 'launch', 'launches')}, {told_time(self.host_ns)} on the host"]
        if self.blocking:
            waited = f"{plural(self.blocking, 'copy', 'copies')} that the call waited for"
            parts[0] += f" ({told_time(self.blocking_ns)} of it in {waited})"
        if self.from_start.count:
            parts.append(f"median {told_time(self.from_start.median_ns)} from call to start")
        if self.short.of:
            parts.append(
                f"{self.short.count:,} of {plural(self.short.of, 'kernel')} ({told_share(self.short.share)}) "
                "shorter than their own launch"
            )
        if self.per_step is not None:
            parts.append(f"{self.per_step:,.6g} kernel launches a step")
        return "; ".join(parts)

    def lines(self) -> tuple[str, ...]:
        """What the table does not show, a line each: delays, steps, short kernels, queues."""
        lines = []
        for what, d, below in (
            ("start", self.from_start, "before it"),
            ("end", self.from_end, "before that, while the call still ran"),
        ):
            if d.count:
                lines.append(
                    f"from the {what} of the call to the start on the device: median "
                    f"{told_time(d.median_ns)}, p95 {told_time(d.p95_ns)}, {told_time(d.min_ns)} to "
                    f"{told_time(d.max_ns)} ({plural(d.count, 'call')}"
                    + (f", {d.negative:,} of them started {below})" if d.negative else ")")
                )
        if len(self.steps):
            n = self.step_launches
            told = f"{self.per_step:,.6g} on average, {n.min():,} to {n.max():,} over"
            if n.min() == n.max():
                told = f"{n.min():,} in {'each of ' if len(n) > 1 else ''}"
            lines.append(f"launches of kernels and graphs a step: {told.rstrip()} {plural(len(n), 'step')}")
        if self.short.of:
            took, calls = told_time(self.short.kernel_ns), told_time(self.short.call_ns)
            lines.append(
                f"kernels shorter than their own launch: {self.short.count:,} of {self.short.of:,}"
                + (f"; {took} of kernels for {calls} of calls" if self.short.count else "")
            )
        for q in self.queues:
            lines.append(
                f"queue of {shown(told_device(q.device))}: {_depth(q.mean_waiting)} launches wait on "
                f"average, {q.max_waiting:,} at most; {_depth(q.mean_unfinished)} unfinished on average, "
                f"{q.max_unfinished:,} at most"
            )
        return tuple(lines)

    def text(self, most: int | None = 20) -> str:
        """What every answer prints, and the lines on delays, steps and queues."""
        return "\n".join([super().text(most), *self.lines()])

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.words(),
            "launches": self.launches,
            "host_ns": self.host_ns,
            "blocking": self.blocking,
            "blocking_ns": self.blocking_ns,
            "calls": [asdict(call) for call in self.calls],
            "delay_from_start": asdict(self.from_start),
            "delay_from_end": asdict(self.from_end),
            "queues": [queue.as_dict() for queue in self.queues],
            "steps": self.steps.tolist(),
            "step_launches": self.step_launches.tolist(),
            "step_calls": self.step_calls.tolist(),
            "launches_per_step": self.per_step,
            "kernels_shorter_than_launch": asdict(self.short),
        }


def launching(t: Timeline, window: tuple[int, int] | None = None) -> Launching:
    """Host time by launch call, launch-to-start delay, queue depth, launches per step, and kernels shorter
    than their own launch.

    window: start and end in absolute nanoseconds, for the calls that start in it alone, with all of the work
    that they enqueued, also what runs later.
    """
    if window is not None:
        found = launching(launched_within(t, window))
        return replace(
            found,
            definition=f"of the calls that start in the window: {found.definition}",
            left_out=(
                *found.left_out,
                "launches before the window: in no queue, though their work may still wait in the window",
            ),
        )
    work = work_of(t)
    enqueuing = np.flatnonzero(~t.on_device() & t.is_category(*ENQUEUES))
    callers, one, first_start, counts = work.by_call
    begin = t.start_ns[callers]
    from_start = first_start - begin
    from_end = from_start - t.duration_ns[callers]

    left_out = []
    orphans = len(work) - int(work.launched.sum())
    if orphans:
        left_out.append(f"{plural(orphans, 'operation')} without a launch: in no delay and no queue")
    more = int(counts.sum()) - len(counts)
    if more:
        left_out.append(
            f"{plural(more, 'operation')} behind the first of their call (graphs): in no delay of their own"
        )
    calls = np.zeros(len(t), dtype=bool)
    calls[callers] = True
    idle = int((~calls[enqueuing]).sum())
    if idle:
        left_out.append(f"{plural(idle, 'launch', 'launches')} without an operation: in host time only")
    other = len(callers) - (len(enqueuing) - idle)
    if other:
        left_out.append(
            f"{plural(other, 'call')} of another category that enqueued operations: in delays and queues, "
            "not in host time"
        )
    waited = np.unique(work.call[work.awaited])
    short, shared = _short_kernels(t, work, callers, one, counts)
    if shared:
        left_out.append(
            f"{plural(shared, 'kernel')} that share their launch with others: not compared with it"
        )

    stepped = enqueuing[t.step[enqueuing] >= 0]
    steps, place = np.unique(t.step[stepped], return_inverse=True)
    kernels = t.is_category("launch", "graph")[stepped]
    step_launches = np.bincount(place[kernels], minlength=len(steps))
    if len(steps) and len(stepped) < len(enqueuing):
        outside = plural(len(enqueuing) - len(stepped), "launch", "launches")
        left_out.append(f"{outside} that belong to no step: not in launches per step")
    host_ns = 0
    for lane in np.unique(t.lane[enqueuing]):
        mine = enqueuing[t.lane[enqueuing] == lane]
        host_ns += length(union_of(t.start_ns[mine], t.start_ns[mine] + t.duration_ns[mine]))
    return Launching(
        title="Launch cost",
        definition=(
            "a launch is a host call that enqueues work (launch, copy, fill, graph); a graph's launch counts "
            "once, however many operations it brings. Host time of a name is the sum of its calls; of all, "
            "the union for each thread, since calls nest; a call that copies and waits (one of "
            f"{WAIT_NS // 1000} µs or more that returned only when at least half of the copy had run) has "
            "that wait in it. p95 is by nearest rank. Delays go to the start of the call's first operation. "
            "Queues count launches that are enqueued and not started, or not "
            f"finished; {ENQUEUED}; means are weighted by time from the first enqueue to the last end"
        ),
        denominator="kernels with a launch of their own, for kernels shorter than their launch",
        left_out=tuple(left_out),
        calls=_by_name(t, enqueuing, callers, from_start, counts),
        launches=len(enqueuing),
        host_ns=host_ns,
        blocking=len(waited),
        blocking_ns=int(t.duration_ns[waited].sum()),
        from_start=_delay(from_start),
        from_end=_delay(from_end),
        queues=tuple(_queue(work, device) for device in work.devices if work.launched[work.of(device)].any()),
        steps=steps.astype(np.int64),
        step_launches=step_launches,
        step_calls=np.bincount(place, minlength=len(steps)),
        per_step=ratio(int(step_launches.sum()), len(steps)),
        short=short,
    )


def _by_name(
    t: Timeline, calls: np.ndarray, callers: np.ndarray, delay: np.ndarray, counts: np.ndarray
) -> tuple[LaunchCall, ...]:
    operations = np.zeros(len(t), dtype=np.int64)
    operations[callers] = counts
    delays = np.zeros(len(t), dtype=np.int64)
    delays[callers] = delay
    key = t.name[calls].astype(np.int64) * len(CATEGORIES) + t.category[calls]
    order = np.lexsort((t.duration_ns[calls], key))
    calls, key = calls[order], key[order]
    changes = np.flatnonzero(np.diff(key)) + 1
    edges = [0, *changes.tolist(), len(calls)] if len(calls) else [0]
    rows = []
    for begin, stop in pairwise(edges):
        mine = calls[begin:stop]
        took = t.duration_ns[mine]
        rows.append(
            LaunchCall(
                t.names[t.name[mine[0]]],
                CATEGORIES[t.category[mine[0]]],
                len(mine),
                int(operations[mine].sum()),
                int(took.sum()),
                middle(took),
                int(took[rank(len(took), 95)]),
                int(took[-1]),
                middle(np.sort(delays[mine[operations[mine] > 0]])),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name)))


def _delay(delay: np.ndarray) -> Delay:
    if not len(delay):
        return Delay(0, 0, None, None, None, None, None)
    ordered = np.sort(delay)
    return Delay(
        len(ordered),
        int(np.searchsorted(ordered, 0)),
        float(ordered.mean()),
        middle(ordered),
        int(ordered[rank(len(ordered), 95)]),
        int(ordered[0]),
        int(ordered[-1]),
    )


def _queue(work: Work, device: str) -> Queue:
    which = work.of(device)
    which = which[work.launched[which]]
    which = which[np.argsort(work.call[which], kind="stable")]
    groups = np.flatnonzero(np.concatenate([[True], np.diff(work.call[which]) != 0]))
    enqueued = np.minimum.reduceat(work.enqueued[which], groups)
    start = np.minimum.reduceat(work.start[which], groups)
    end = np.maximum.reduceat(work.end[which], groups)
    n = len(groups)
    at = np.concatenate([enqueued, start, end])
    order = np.argsort(at, kind="stable")
    waiting = np.cumsum(np.repeat([1, -1, 0], n)[order])
    unfinished = np.cumsum(np.repeat([1, 0, -1], n)[order])
    at = at[order]
    last = np.flatnonzero(np.concatenate([at[1:] != at[:-1], [True]]))
    times, waiting, unfinished = at[last], waiting[last], unfinished[last]
    wide = np.diff(times)
    total = int(times[-1] - times[0])
    return Queue(
        device,
        n,
        times,
        waiting,
        unfinished,
        int(waiting.max()),
        ratio(int((waiting[:-1] * wide).sum()), total),
        int(unfinished.max()),
        ratio(int((unfinished[:-1] * wide).sum()), total),
    )


def _short_kernels(
    t: Timeline, work: Work, callers: np.ndarray, one: np.ndarray, counts: np.ndarray
) -> tuple[ShortKernels, int]:
    """The short kernels, and how many kernels share their launch with other operations."""
    kernel = t.is_category("kernel")[work.span]
    own = (counts == 1) & kernel[one]
    took = work.end[one[own]] - work.start[one[own]]
    call = t.duration_ns[callers[own]]
    short = took < call
    count, of = int(short.sum()), int(own.sum())
    figures = ShortKernels(count, of, ratio(count, of), int(took[short].sum()), int(call[short].sum()))
    return figures, int((kernel & work.launched).sum()) - of


def _depth(mean: float | None) -> str:
    return "-" if mean is None else f"{mean:.2f}"
