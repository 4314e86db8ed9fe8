"""Launch cost: every figure computed a second time by plain loops, and on real traces."""

import json
import math
import statistics

import numpy as np
import pytest
from metric_timelines import (
    ENQUEUES,
    SEEDS,
    call_of,
    enqueued,
    odd_timelines,
    operations,
    random_timeline,
    real,
    real_case,
    rows,
)

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import launching


def nearest_rank(values, percent):
    return sorted(values)[max(math.ceil(len(values) * percent / 100), 1) - 1]


def families(t):
    """Each call that enqueued something, with its operations in order of start."""
    found, ops = {}, {op.index: op for op in operations(t)}
    for index, call in call_of(t).items():
        found.setdefault(call, []).append(ops[index])
    return {call: sorted(mine, key=lambda op: op.start) for call, mine in found.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_calls_and_delays_by_plain_loops(seed):
    t = random_timeline(seed)
    answer, known = launching(t), families(t)
    calls = [row for row in rows(t) if row.device is None and row.category in ENQUEUES]
    assert answer.launches == len(calls) == sum(call.count for call in answer.calls)
    threads = {call.lane for call in calls}
    assert answer.host_ns == sum(
        len(set().union(*(call.ns for call in calls if call.lane == thread))) for thread in threads
    )
    told = {(call.name, call.category): call for call in answer.calls}
    assert len(told) == len(answer.calls) == len({(call.name, call.category) for call in calls})
    for (name, category), figures in told.items():
        mine = [call for call in calls if (call.name, call.category) == (name, category)]
        took = [call.end - call.start for call in mine]
        delays = [known[call][0].start - call.start for call in mine if call in known]
        assert figures.count == len(mine)
        assert figures.operations == sum(len(known.get(call, ())) for call in mine)
        assert (figures.total_ns, figures.median_ns) == (sum(took), statistics.median(took))
        assert (figures.p95_ns, figures.max_ns) == (nearest_rank(took, 95), max(took))
        assert figures.delay_ns == (statistics.median(delays) if delays else None)
    for delay, edge in ((answer.from_start, "start"), (answer.from_end, "end")):
        values = [ops[0].start - getattr(call, edge) for call, ops in known.items()]
        assert (delay.count, delay.negative) == (len(values), sum(v < 0 for v in values))
        assert (delay.min_ns, delay.max_ns) == (min(values), max(values))
        assert (delay.median_ns, delay.p95_ns) == (statistics.median(values), nearest_rank(values, 95))
        assert delay.mean_ns == pytest.approx(statistics.fmean(values))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_queue_counted_at_every_nanosecond(seed):
    t = random_timeline(seed)
    answer, known, there = launching(t), families(t), enqueued(t)
    devices = {op.device for ops in known.values() for op in ops}
    assert {queue.device for queue in answer.queues} == devices
    for queue in answer.queues:
        spans = []
        for ops in known.values():
            mine = [op for op in ops if op.device == queue.device]
            if mine:
                spans.append(
                    (
                        min(there[op.index] for op in mine),
                        min(op.start for op in mine),
                        max(op.end for op in mine),
                    )
                )
        assert queue.launches == len(spans)
        first, last = min(span[0] for span in spans), max(span[2] for span in spans)
        waiting = [sum(a <= ns < b for a, b, _ in spans) for ns in range(first, last)]
        unfinished = [sum(a <= ns < c for a, _, c in spans) for ns in range(first, last)]
        place = np.searchsorted(queue.times, np.arange(first, last), side="right") - 1
        assert queue.waiting[place].tolist() == waiting
        assert queue.unfinished[place].tolist() == unfinished
        assert (queue.max_waiting, queue.max_unfinished) == (max(waiting), max(unfinished))
        assert queue.mean_waiting == pytest.approx(statistics.fmean(waiting))
        assert queue.mean_unfinished == pytest.approx(statistics.fmean(unfinished))
        assert (queue.waiting[-1], queue.unfinished[-1]) == (0, 0)
        assert (np.diff(queue.times) > 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_and_short_kernels_by_plain_loops(seed):
    t = random_timeline(seed)
    answer, known = launching(t), families(t)
    calls = [row for row in rows(t) if row.device is None and row.category in ENQUEUES and row.step >= 0]
    steps = sorted({call.step for call in calls})
    assert answer.steps.tolist() == steps
    kernels = [sum(c.step == step and c.category in ("launch", "graph") for c in calls) for step in steps]
    assert answer.step_launches.tolist() == kernels
    assert answer.step_calls.tolist() == [sum(call.step == step for call in calls) for step in steps]
    assert answer.per_step == (statistics.fmean(kernels) if steps else None)
    own = [(call, ops[0]) for call, ops in known.items() if len(ops) == 1 and ops[0].category == "kernel"]
    short = [(call, op) for call, op in own if op.end - op.start < call.end - call.start]
    assert (answer.short.count, answer.short.of) == (len(short), len(own))
    assert answer.short.share == (len(short) / len(own) if own else None)
    assert answer.short.kernel_ns == sum(op.end - op.start for _, op in short)
    assert answer.short.call_ns == sum(call.end - call.start for call, _ in short)


@pytest.mark.parametrize("name", odd_timelines())
def test_next_to_nothing_is_answered_too(name):
    answer = launching(odd_timelines()[name])
    json.dumps(answer.as_dict(), allow_nan=False)
    assert "nan" not in str(answer).lower()
    assert answer.launches == {"host only": 1, "all of 0 ns": 5}.get(name, 0)
    if name != "all of 0 ns":
        assert answer.from_start.count == 0
        assert answer.short.share is None
        assert answer.queues == ()


def test_a_graph_is_one_launch():
    build = TimelineBuilder()
    build.lane("host", "host")
    build.span("cudaGraphLaunch", "host", 0, 10, "graph", launch=1, step=4)
    for i in range(5):
        build.span("k", "stream 7", 20 + 10 * i, 5, "kernel", launch=1)
    answer = launching(build.build())
    assert (answer.launches, answer.from_start.count, answer.per_step, answer.short.of) == (1, 1, 1.0, 0)
    (queue,) = answer.queues
    assert (queue.launches, queue.max_waiting, queue.max_unfinished) == (1, 1, 1)
    assert queue.times.tolist() == [10, 20, 65]
    assert queue.waiting.tolist() == [1, 0, 0]
    assert queue.unfinished.tolist() == [1, 1, 0]
    assert answer.left_out == (
        "4 operations behind the first of their call (graphs): in no delay of their own",
        "5 kernels that share their launch with others: not compared with it",
    )


def test_nested_calls_cost_the_host_their_time_once():
    build = TimelineBuilder()
    build.span("cudaLaunchKernel", "host", 0, 10, "launch", launch=1)
    build.span("cuLaunchKernel", "host", 2, 6, "launch", launch=2)
    build.span("k", "stream 7", 20, 5, "kernel", launch=1)
    answer = launching(build.build())
    assert (answer.host_ns, sum(call.total_ns for call in answer.calls)) == (10, 16)
    assert answer.left_out == ("1 launch without an operation: in host time only",)


@real
def test_the_h100_case_by_plain_loops():
    t, ops, calls = real_case("kineto_h100_kernels_without_launch")
    answer = launching(t)
    pairs = [(op, calls[op.correlation]) for op in ops if op.correlation in calls]
    assert answer.from_start.count == len(pairs) == 1198
    assert answer.from_start.median_ns == statistics.median(op.start - call.start for op, call in pairs)
    assert answer.from_end.negative == sum(op.start < call.start + call.took for op, call in pairs)
    kernels = [(op.end - op.start, call.took) for op, call in pairs if op.category == "kernel"]
    assert answer.short.of == len(kernels)
    assert answer.short.count == sum(took < call for took, call in kernels)
    for told in answer.calls:
        mine = [call.took for call in calls.values() if call.name == told.name]
        assert (told.count, told.total_ns, told.median_ns) == (len(mine), sum(mine), statistics.median(mine))


def test_a_copy_that_its_call_waited_for_is_told_apart():
    build = TimelineBuilder()
    build.lane("host", "host")
    for number, (call, start, end) in enumerate(
        (
            (60_000, 10_000, 59_000),  # waited for
            (60_000, 10_000, 70_000),  # pageable: returns a little before the end
            (30_000, 25_000, 90_000),  # goes on for long behind the call
            (19_000, 10_000, 11_000),  # short: the call may just have returned later
        )
    ):
        at = 1_000_000 * number
        build.span("cudaMemcpy", "host", at, call, "copy", launch=number)
        build.span("Memcpy", "stream 7", at + start, end - start, "copy", launch=number)
    build.span("cudaLaunchKernel", "host", 9_000_000, 50_000, "launch", launch=9)
    build.span("k", "stream 7", 9_010_000, 20_000, "kernel", launch=9)
    answer = launching(build.build())
    assert (answer.blocking, answer.blocking_ns) == (2, 120_000)
    assert "(120.000 µs of it in 2 copies that the call waited for)" in answer.summary()
    assert answer.as_dict()["blocking_ns"] == 120_000


def test_lines_say_nothing_of_what_is_not_there():
    build = TimelineBuilder()
    build.span("cudaLaunchKernel", "host", 0, 10, "launch", launch=1)
    assert launching(build.build()).lines() == ()
    build.span("k", "stream 7", 5, 100, "kernel", launch=1)
    start, end, short, queue = launching(build.build()).lines()
    assert start.endswith("(1 call)")
    assert end.endswith("(1 call, 1 of them started before that, while the call still ran)")
    assert short == "kernels shorter than their own launch: 0 of 1"
    assert queue.startswith("queue of device")


@pytest.mark.parametrize(
    ("more", "told"), [(0, "1 in each of 2 steps"), (1, "1.5 on average, 1 to 2 over 2 steps")]
)
def test_launches_a_step_in_words(more, told):
    build = TimelineBuilder()
    for number in range(2 + more):
        build.span("cudaLaunchKernel", "host", 10 * number, 5, "launch", launch=number, step=min(number, 1))
    assert f"launches of kernels and graphs a step: {told}" in launching(build.build()).lines()


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_window_the_calls_that_start_in_it_with_all_of_their_work(seed):
    t = random_timeline(seed)
    calls = [row for row in rows(t) if row.device is None and row.category in ENQUEUES]
    starts = sorted(call.start for call in calls)
    window = (starts[len(starts) // 4], starts[3 * len(starts) // 4])
    mine = [call for call in calls if window[0] <= call.start < window[1]]
    known = {call: ops for call, ops in families(t).items() if call in mine}
    answer = launching(t, window)
    assert 0 < answer.launches == len(mine) < len(calls)
    assert sum(call.total_ns for call in answer.calls) == sum(call.end - call.start for call in mine)
    assert sum(call.operations for call in answer.calls) == sum(len(ops) for ops in known.values())
    assert answer.from_start.count == len(known)
    assert answer.from_start.max_ns == max(ops[0].start - call.start for call, ops in known.items())
    assert "start in the window" in answer.definition
    assert answer.left_out[-1].startswith("launches before the window")


def test_a_window_in_which_nothing_is_launched():
    t = random_timeline(SEEDS[0])
    answer = launching(t, (int(t.end_ns.max()), int(t.end_ns.max()) + 1))
    assert (answer.launches, answer.host_ns, answer.calls, answer.queues) == (0, 0, (), ())
