"""What can be wrong with a timeline: a function for each fault, which yields what it found of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ..answer import told_time
from ..table import CALLS, EDGE_KINDS, ENQUEUES, Timeline
from .finding import FEW, Finding, found_of, graded
from .noting import noted_while_reading, nothing, unknown_kinds
from .working import Work, plural

JUMP_NS = 1_000_000
"""A step back in a thread's own order counts as a jump of the clock from here on. Small corrections of a
clock, and two calls that a trace wrote down in the wrong order, stay below."""
MICRO = 1_000
"""Nanoseconds of a microsecond, the grain of many files."""
FAR = 1_000
"""A span is far away if it lies outside of the middle 80 % of all spans by so many times their extent ..."""
FAR_NS = 3_600 * 10**9
"""... and at least an hour."""
OFFSET_NS = 10_000_000
"""Where no operation at all starts sooner than this after its call, the clocks are taken to be apart."""


def _zero(t: Timeline, work: Work) -> Iterator[Finding]:
    empty = np.sort(work.span[work.start == work.end])
    half = 2 * len(empty) >= len(work)
    yield from found_of(
        t,
        "operations of 0 ns",
        "broken" if half else graded(len(empty), len(work)),
        empty,
        len(work),
        "operations",
        "they count as operations and give no busy time: busy times and shares are too small by an unknown "
        "amount",
    )
    calls = np.flatnonzero(~t.on_device() & t.is_category(*ENQUEUES))
    short = calls[t.duration_ns[calls] == 0]
    yield from found_of(
        t,
        "launch calls of 0 ns",
        graded(len(short), len(calls)),
        short,
        len(calls),
        "launches",
        "they count as launches and give no host time: launch cost is too small",
    )


def _same_time(t: Timeline, work: Work) -> Iterator[Finding]:
    base = int(t.meta.get("base_ns", 0) or 0)
    for spans, of in ((np.arange(len(t)), "spans"), (work.span, "operations")):
        n = len(spans)
        if n < 4:
            continue
        start = t.start_ns[spans]
        middles = np.partition(start, ((n - 1) // 2, n // 2))[[(n - 1) // 2, n // 2]]
        for value in dict.fromkeys(middles.tolist()):
            same = np.sort(spans[start == value])
            if 2 * len(same) >= n:
                where = "time zero" if value in (0, base) else "one and the same time"
                yield from found_of(
                    t,
                    f"half the {of} at {where}",
                    "broken",
                    same,
                    n,
                    of,
                    f"their start was not recorded ({value} stands for it): every figure of time is "
                    "worthless",
                )
                break


def _far_away(t: Timeline, work: Work) -> Iterator[Finding]:
    n = len(t)
    if n < 10:
        return
    low, high = np.partition(t.start_ns, (n // 10, n - 1 - n // 10))[[n // 10, n - 1 - n // 10]].tolist()
    reach = max(FAR * max(high - low, JUMP_NS), FAR_NS)
    limits = np.iinfo(np.int64)
    far = np.flatnonzero(
        (t.start_ns < max(low - reach, limits.min)) | (t.start_ns > min(high + reach, limits.max))
    )
    yield from found_of(
        t,
        "spans far outside the rest",
        "broken",
        far,
        n,
        "spans",
        "they stretch the window, so that idle times and shares of the window mean nothing; "
        "give a window that leaves them out",
    )


def _overlaps(t: Timeline, work: Work) -> Iterator[Finding]:
    """Operations that start before an earlier one of the same stream has ended. A graph that stands as one
    span encloses what it runs."""
    if not len(work):
        return
    plain = ~t.is_category("graph")[work.span] & (work.end > work.start)
    reach = np.zeros(len(work), dtype=np.int64)
    for lane in np.flatnonzero(np.diff(work.bounds)):
        mine = np.flatnonzero(plain[work.on(lane)]) + work.bounds[lane]
        plain[mine[:1]] = False
        reach[mine[1:]] = np.maximum.accumulate(work.end[mine])[:-1]
    early = plain & (work.start < reach)
    inside = early & (work.end <= reach)
    of_graph = ~work.launched | t.is_category("graph")[work.call]
    micro = not ((work.start % MICRO).any() or (work.end % MICRO).any())
    for kind, which, why in (
        (
            "operations that overlap the one before them",
            early & ~inside,
            "a programmatic launch that starts before the one before it ends, graph branches, or wrong times",
        ),
        (
            "operations inside another one of their stream",
            inside,
            "branches of a graph that are told as one stream, or wrong times",
        ),
    ):
        count = int(which.sum())
        slight = int((which & (reach - work.start <= MICRO)).sum()) if micro else 0
        grain = f"; {slight:,} overlap by no more than the file's whole microseconds can feign"
        yield from found_of(
            t,
            kind,
            graded(count - slight, len(work)),
            work.span[which],
            len(work),
            "operations",
            f"a stream runs one operation after another, so this tells of {why}; sums of durations exceed "
            f"busy times, which are unions; {int((which & of_graph).sum()):,} of them come from graphs or "
            "have no launch" + (grain if slight else ""),
        )


def _clocks(t: Timeline, work: Work) -> Iterator[Finding]:
    early = np.flatnonzero(work.too_early)
    pairs = int(work.launched.sum())
    if len(early):
        worst = int((work.call_start[early] - work.start[early]).max())
        yield from found_of(
            t,
            "operations that start before their own call",
            "broken" if 2 * len(early) >= pairs else "warning",
            work.span[early],
            pairs,
            "operations with a launch",
            f"the device's clock runs before the host's, by {told_time(worst)} at the worst: delays, gaps by "
            "cause and queue depths are wrong by that much; busy times and overlaps of the device are not",
        )
    elif pairs >= 10:
        least = int((work.start - work.call_start)[work.launched].min())
        if least >= OFFSET_NS:
            at = np.flatnonzero(work.launched)
            yield from found_of(
                t,
                "no operation starts soon after its call",
                "warning",
                work.span[at],
                pairs,
                "operations with a launch",
                f"even the quickest starts {told_time(least)} after its call: the clocks of host and device "
                "seem to be apart, and delays, gaps by cause and queue depths with them",
            )


def _jumps(t: Timeline, work: Work) -> Iterator[Finding]:
    """Steps back in the order in which a thread's calls stand in the file, to times that it had been at."""
    if "tables" in (t.meta.get("file") or {}):
        return  # the rows of a database are in no order of time
    calls = np.flatnonzero(~t.on_device() & t.is_category(*CALLS))
    if len(calls) < 2:
        return
    place = np.where(t.origin[calls] >= 0, t.origin[calls].astype(np.int64), calls)
    calls = calls[np.lexsort((place, t.lane[calls]))]
    start, lane = t.start_ns[calls], t.lane[calls]
    end = start + t.duration_ns[calls]
    other = lane[1:] != lane[:-1]
    back = (end[1:] < start[:-1]) & ~other
    # Where many steps go back, the file is not in order of time, and a jump cannot be told from that.
    if back.sum() > max(3, FEW * len(calls)):
        return
    jump = back & (start[:-1] - start[1:] >= JUMP_NS)
    # A profiler may write its buffers out of order: each then has times for itself, or fills a hole that
    # another left, and k parts in order of time make at most 2 k - 1 runs. A clock that was set back goes
    # through times again that the thread has been at, so that its calls mix with earlier ones.
    part = np.cumsum(np.concatenate([[0], jump | other]))
    timed = np.lexsort((start, lane))
    runs = np.concatenate([[True], np.diff(part[timed]) != 0])
    lanes = len(t.lanes)
    parts = np.bincount(lane[1:][jump], minlength=lanes) + 1
    mixed = np.bincount(lane[timed][runs], minlength=lanes) > 2 * parts - 1
    first = np.flatnonzero(jump & mixed[lane[1:]]) + 1
    if len(first):
        largest = told_time(int((start[first - 1] - start[first]).max()))
        yield from found_of(
            t,
            "a host clock that steps back",
            "warning",
            calls[first],
            len(calls),
            "host calls in the file's order",
            f"the thread's calls go on at times it had been at before, {largest} back at the most: the "
            "clock was set, or two recordings were put together; times across such a step cannot be compared",
        )


def _pairing(t: Timeline, work: Work) -> Iterator[Finding]:
    enqueuing = np.flatnonzero(~t.on_device() & t.is_category(*ENQUEUES))
    numbers = t.launch[enqueuing]
    launched = t.launch[work.span[work.launched]]
    empty = enqueuing[~np.isin(numbers, launched) | (numbers < 0)]
    if len(work):
        yield from found_of(
            t,
            "launches with no operation",
            "warning" if 10 * len(empty) > len(enqueuing) else "note",
            empty,
            len(enqueuing),
            "launches",
            "the device did not run them within the trace, or the profiler lost what they ran (a copy of "
            "nothing or from host to host runs nothing): they are in host time, in no delay",
        )
    else:
        yield from found_of(
            t,
            "launches with no operation",
            "warning",
            empty,
            len(enqueuing),
            "launches",
            "the trace holds no operation of a device at all: it was recorded without the device's activity",
        )
    orphans = np.flatnonzero(~work.launched)
    if len(orphans):
        number = t.launch[work.span[orphans]]
        _, place, often = np.unique(number, return_inverse=True, return_counts=True)
        replays = int(((often[place] > 1) & (number >= 0)).sum())
        graphs = int(t.is_category("graph")[empty].sum())
        told = f"; {replays:,} of them share a launch number, as the operations of a replayed graph do"
        also = f"; {plural(graphs, 'graph launch', 'graph launches')} without an operation may have run some"
        yield from found_of(
            t,
            "operations with no launch",
            "warning" if len(orphans) > FEW * len(work) else "note",
            work.span[orphans],
            len(work),
            "operations",
            "their call is not in the trace (recording began after it, or a graph replayed them): busy times "
            "differ with and without them, both are told, and delays and causes of gaps leave them out"
            + (told if replays else "")
            + (also if graphs else ""),
        )
    order = np.argsort(numbers, kind="stable")
    again = np.flatnonzero((np.diff(numbers[order]) == 0) & (numbers[order][1:] >= 0)) + 1
    yield from found_of(
        t,
        "launch calls that share a launch number",
        graded(len(again), len(enqueuing)),
        enqueuing[order][again],
        len(enqueuing),
        "launches",
        "operations are given to the first call of their number: some delays may be another call's",
    )


def _edges(t: Timeline, work: Work) -> Iterator[Finding]:
    operation = np.zeros(len(t), dtype=bool)
    operation[work.span] = True
    orders = t.edge_kind == EDGE_KINDS.index("order")
    orders &= operation[t.edge_source] & operation[t.edge_target]
    source, target = t.edge_source[orders], t.edge_target[orders]
    wrong = target[t.start_ns[target] < t.start_ns[source] + t.duration_ns[source]]
    yield from found_of(
        t,
        "operations that start before what they wait for has ended",
        "warning",
        wrong,
        int(orders.sum()),
        "edges between operations",
        "an edge says that they waited and the times say that they did not: either the edge or a clock is "
        "wrong",
    )


CHECKS: tuple[Callable[[Timeline, Work], Iterator[Finding]], ...] = (
    nothing,
    _same_time,
    _far_away,
    _zero,
    _clocks,
    _jumps,
    _overlaps,
    _edges,
    _pairing,
    unknown_kinds,
    noted_while_reading,
)
"""In the order in which findings of one severity are told."""
