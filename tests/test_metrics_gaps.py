"""Gaps and their causes: told a second time nanosecond by nanosecond, and by hand."""

import json
from collections import Counter

import numpy as np
import pytest
from metric_timelines import (
    SEEDS,
    call_of,
    enqueued,
    odd_timelines,
    operations,
    plain_union,
    random_timeline,
    real,
    real_case,
)

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import CAUSES, gaps
from flashnorm_lab.timeline.table import EDGE_KINDS


def slowly(t, ops):
    """(start, end, span that ends it, nanoseconds by cause) of each gap between these operations."""
    if not any(op.end > op.start for op in ops):
        return []
    covered = set().union(*(op.ns for op in ops))
    calls, there = call_of(t), enqueued(t)
    known = {op.index: op.end for op in operations(t)}
    freed = {}
    for source, target, kind in zip(t.edge_source, t.edge_target, t.edge_kind, strict=True):
        if EDGE_KINDS[kind] == "order" and int(source) in known and int(target) in known:
            freed[int(target)] = max(freed.get(int(target), -1), known[int(source)])
    found, start = [], None
    for ns in range(min(covered), max(covered) + 1):
        if ns not in covered:
            start = ns if start is None else start
        elif start is not None:
            lanes = [lane.name for lane in t.lanes]
            by = min(
                (op for op in ops if op.start == ns and op.end > ns),
                key=lambda op: (lanes.index(op.lane), op.index),
            ).index
            causes = Counter()
            for idle in range(start, ns):
                if by not in calls or calls[by].start > ns:
                    causes["unknown"] += 1
                elif idle < there[by]:
                    causes["host late"] += 1
                else:
                    causes["dependency" if idle < freed.get(by, -1) else "unknown"] += 1
            found.append((start, ns, by, tuple(causes[cause] for cause in CAUSES)))
            start = None
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("at_least", [0, 7])
def test_every_gap_told_nanosecond_by_nanosecond(seed, at_least):
    t = random_timeline(seed)
    answer = gaps(t, at_least)
    ops = operations(t)
    for i, owner in enumerate(answer.owners):
        stream = owner.kind == "stream"
        mine = [op for op in ops if (op.lane == owner.name if stream else op.device == owner.device)]
        expected = [gap for gap in slowly(t, mine) if gap[1] - gap[0] >= at_least]
        which = np.flatnonzero(answer.owner == i)
        told = [
            (
                int(answer.start_ns[k]),
                int(answer.end_ns[k]),
                int(answer.ended_by[k]),
                (int(answer.host_late_ns[k]), int(answer.dependency_ns[k]), int(answer.unknown_ns[k])),
            )
            for k in which
        ]
        assert told == expected
        assert owner.count == len(expected)
        assert owner.total_ns == sum(gap[1] - gap[0] for gap in expected)
        assert tuple(owner.ns.values()) == tuple(sum(gap[3][c] for gap in expected) for c in range(3))
        largest = Counter(CAUSES[gap[3].index(max(gap[3]))] for gap in expected)
        assert owner.counts == {cause: largest[cause] for cause in CAUSES}
    with_work = {op.lane for op in ops}
    assert {owner.name for owner in answer.owners if owner.kind == "stream"} == with_work
    assert {owner.device for owner in answer.owners if owner.kind == "device"} == {op.device for op in ops}


def by_hand(call=(0, 5), category="kernel", call_category="launch", start=60, wait_until=None):
    """A kernel until 20, then one at ``start`` with this call; perhaps an edge from a kernel of stream 13."""
    build = TimelineBuilder()
    build.lane("host", "host")
    first = build.span("first", "stream 7", 10, 10, "kernel", launch=0)
    build.span("call", "host", 0, 5, "launch", launch=0)
    second = build.span("second", "stream 7", start, 10, category, launch=1)
    build.span("call", "host", call[0], call[1], call_category, launch=1)
    if wait_until is not None:
        other = build.span("other", "stream 13", 12, wait_until - 12, "kernel")
        build.edge(other, second, "event")
    build.edge(first, second, "drawn only", "flow")
    return build.build()


@pytest.mark.parametrize(
    ("t", "expected"),
    [
        (by_hand(), (0, 0, 40)),  # enqueued long before: the device's own latency, or what is not known
        (by_hand(call=(30, 5)), (15, 0, 25)),  # late until the call has returned
        (by_hand(call=(55, 20)), (40, 0, 0)),  # the kernel began while the call ran: late until it began
        (by_hand(wait_until=50), (0, 30, 10)),
        (by_hand(call=(30, 5), wait_until=50), (15, 15, 10)),
        (
            by_hand(call=(30, 5), wait_until=25),
            (15, 0, 25),
        ),  # what it waited for was done before the call was
        (by_hand(wait_until=15), (0, 0, 40)),  # ... and before the gap began
        (by_hand(call=(61, 5)), (0, 0, 40)),  # a call behind its own kernel: the clocks disagree
        # A copy that the call waits for: late until the call began. One that it does not: until the copy did.
        (by_hand((25, 60), "copy", "copy"), (5, 0, 35)),
        (by_hand((25, 45), "copy", "copy"), (5, 0, 35)),
        (by_hand((25, 42), "copy", "copy"), (40, 0, 0)),
    ],
)
def test_causes_by_hand(t, expected):
    answer = gaps(t)
    (i,) = [i for i in range(len(answer)) if answer.owners[answer.owner[i]].name == "stream 7"]
    parts = answer.host_late_ns[i], answer.dependency_ns[i], answer.unknown_ns[i]
    assert (answer.start_ns[i], answer.end_ns[i]) == (20, 60)
    assert parts == expected


def test_the_second_kernel_of_a_graph_is_not_the_hosts_fault():
    build = TimelineBuilder()
    build.lane("host", "host")
    build.span("cudaGraphLaunch", "host", 0, 100, "graph", launch=3)
    build.span("a", "stream 7", 10, 10, "kernel", launch=3)
    build.span("b", "stream 7", 50, 10, "kernel", launch=3)
    (host, dependency, unknown) = gaps(build.build()).owners[0].ns.values()
    assert (host, dependency, unknown) == (0, 0, 30)


@pytest.mark.parametrize("name", odd_timelines())
def test_next_to_nothing_is_answered_too(name):
    answer = gaps(odd_timelines()[name])
    json.dumps(answer.as_dict(), allow_nan=False)
    assert "nan" not in str(answer).lower()
    assert len(answer) == (2 if name == "device only, no launches" else 0)


def test_what_is_left_out_is_said():
    build = TimelineBuilder()
    build.lane("host", "host")
    build.span("call", "host", 100, 5, "launch", launch=1)
    for start, launch in ((0, -1), (12, -1), (50, 1)):
        build.span("k", "stream 7", start, 10, "kernel", launch=launch)
    build.span("k", "stream 13", 0, 5, "kernel")
    answer = gaps(build.build(edges_unknown=2, clock_error_ns=1500), at_least_ns=3)
    assert answer.left_out == (
        "idle time before the first and behind the last operation of a stream or device",
        "2 gaps shorter than 3 ns, 4 ns in all",
        "2 gaps (56 ns) that end with an operation which starts before its own call: the clocks disagree "
        "there, and the cause is told as unknown",
        "waits between streams: this timeline has no edge of kind order, so that dependency is told as "
        "unknown",
        "2 waits whose record the trace does not know: gaps of theirs are told as unknown",
        "the error of the host's clock against the device's, up to 1.500 µs a gap",
    )


def test_the_longest_gaps_come_first_and_say_what_ended_them():
    answer = gaps(random_timeline(3))
    for kind in ("stream", "device"):
        order = answer.order(None, kind)
        lengths = answer.length_ns[order].tolist()
        assert lengths == sorted(lengths, reverse=True)
        table = answer.largest(2, kind)
        assert len(table.rows) == min(2, len(order))
        assert table.more == len(order) - len(table.rows)
    listed = answer.as_dict()["longest_of_streams"]
    assert [gap["end_ns"] - gap["start_ns"] for gap in listed] == answer.length_ns[answer.order()].tolist()


@real
def test_the_three_stream_case_by_plain_loops():
    t, ops, _ = real_case("kineto_event_sync_three_streams")
    answer = gaps(t)
    found = {owner.name: owner for owner in answer.owners}
    window = max(op.end for op in ops) - min(op.start for op in ops)
    assert found["device 0"].total_ns == window - plain_union([op[:2] for op in ops])
    for stream in (20, 24, 28):
        mine = sorted(op[:2] for op in ops if op.stream == stream)
        idle = mine[-1][1] - mine[0][0] - plain_union(mine)
        assert found[f"stream {stream}"].total_ns == sum(found[f"stream {stream}"].ns.values()) == idle
