"""The short answers beside plain computations: what the host did meanwhile, and how much could overlap."""

from __future__ import annotations

import pytest
from metric_timelines import SEEDS, call_of, operations, random_timeline, rows

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import concurrency, gaps, overlaps
from flashnorm_lab.timeline.metrics.questions import MEANWHILE, _meanwhile, streams_overlap
from flashnorm_lab.timeline.metrics.reporting import report

FROM = 1_000_000


def late(*around):
    """Two kernels 1000 ns apart, the second launched just before it starts; and spans of the host, each a
    lane, a category, a start and an end in nanoseconds from the end of the first kernel."""
    build = TimelineBuilder()
    build.lane("thread 1", "host")
    build.lane("thread 2", "host")
    for number, at in enumerate((FROM, FROM + 1100)):
        build.span("cudaLaunchKernel", "thread 1", at - 50, 50, "launch", launch=number)
        build.span("k", "stream 7", at, 100, "kernel", launch=number)
    for lane, category, begin, end in around:
        build.span(category, lane, FROM + 100 + begin, end - begin, category)
    return build.build()


@pytest.mark.parametrize(
    ("around", "told"),
    [
        ((), "4.2 % with a launch call running, 79.2 % with none of these"),
        (
            (("thread 1", "synchronize", 0, 600), ("thread 1", "op", 500, 1000)),
            "4.2 % with a launch call running, 50.0 % with a call that waits for the device, "
            "29.2 % with an operator around such calls",
        ),
        (
            (("thread 1", "op", 0, 1000), ("thread 1", "call", 100, 400)),
            "4.2 % with a launch call running, 25.0 % with another call of the runtime, "
            "54.2 % with an operator around such calls",
        ),
        (
            (("thread 2", "synchronize", 0, 900),),
            "4.2 % with a launch call running, 79.2 % with none of these",
        ),
    ],
)
def test_what_the_launching_thread_did_while_the_device_waited(around, told):
    launch = report(late(*around)).questions[0]
    assert f"83.3 % of the time went to a late host: {told}." in launch.answer
    assert launch.verdict == "No, but the host is late"
    assert "100.0 % of that since the host was late" in launch.answer


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_host_did_counted_one_nanosecond_at_a_time(seed):
    t = random_timeline(seed)
    found = gaps(t)
    calls = call_of(t)
    kinds = [categories for _, categories in MEANWHILE]
    spent = [0] * (len(kinds) + 1)
    for i in range(len(found)):
        if found.owners[found.owner[i]].kind != "device":
            continue
        start = int(found.start_ns[i])
        for at in range(start, start + int(found.host_late_ns[i])):
            thread = calls[int(found.ended_by[i])].lane
            doing = {row.category for row in rows(t) if row.lane == thread and row.start <= at < row.end}
            spent[next((k for k, kind in enumerate(kinds) if doing & set(kind)), len(kinds))] += 1
    assert [ns for _, ns in _meanwhile(found)] == spent


def test_idle_time_is_told_by_what_the_trace_knows():
    build = TimelineBuilder()
    for number, (call, at) in enumerate(((0, 1000), (10, 1200), (20, 1500))):
        build.span("cudaLaunchKernel", "host", call, 5, "launch", launch=number if number < 2 else 99)
        build.span("k", "stream 7", at, 100, "kernel", launch=number)
    launch = report(build.build()).questions[0]
    assert (
        "idle for 50.0 % of the time (300 ns): 33.3 % of that with the next operation on its queue"
        in launch.answer
    )
    assert "66.7 % before an operation whose call is not known" in launch.answer
    assert "host was late" not in launch.answer
    assert launch.verdict == "Hardly"


@pytest.mark.parametrize("seed", SEEDS)
def test_how_much_of_what_could_overlap_did(seed):
    t = random_timeline(seed)
    ops = operations(t)
    hidden = possible = 0
    for device in {op.device for op in ops}:
        busy = {}
        for op in ops:
            if op.device == device:
                busy.setdefault(op.lane, set()).update(op.ns)
        each = [len(ns) for ns in busy.values()]
        hidden += sum(each) - len(set().union(*busy.values()))
        possible += sum(each) - max(each)
    told = streams_overlap(overlaps(t), concurrency(t))
    assert told.share == pytest.approx(hidden / possible if hidden else 0)


def test_a_small_stream_that_is_all_hidden_does_overlap():
    build = TimelineBuilder()
    build.span("gemm", "compute", 0, 1000, "kernel")
    build.span("Memcpy HtoD", "copies", 100, 20, "copy")
    told = streams_overlap(overlaps(build.build()), concurrency(build.build()))
    assert (told.verdict, told.share) == ("Yes", 1.0)
    assert "Of the 20 ns that all streams but the busiest were busy, 20 ns (100.0 %)" in told.answer
    assert "2.0 % of the time in which any did" in told.answer
