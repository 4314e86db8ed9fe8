"""Busy and idle time: counted a second time nanosecond by nanosecond, and on a real trace."""

import json

import numpy as np
import pytest
from metric_timelines import (
    SEEDS,
    call_of,
    odd_timelines,
    operations,
    plain_union,
    random_timeline,
    real,
    real_case,
)

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import busy
from flashnorm_lab.timeline.metrics.working import shared_ns, stretches, work_of


def slowly(t, window, kept, lanes):
    """Operations that touch the window, and nanoseconds of it in which one of them runs."""
    mine = [op for op in operations(t) if op.lane in lanes and op.index in kept]
    start, stop = window
    touch = [
        op
        for op in mine
        if (op.start < stop and op.end > start) or (op.start == op.end and start <= op.start <= stop)
    ]
    covered = set().union(*(op.ns for op in mine)) & set(range(start, stop))
    return len(touch), len(covered)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [None, (40, 130)])
def test_every_nanosecond_counted_one_by_one(seed, window):
    t = random_timeline(seed)
    answer = busy(t, window)
    ops = operations(t)
    whole = window or (min(op.start for op in ops), max(op.end for op in ops))
    assert answer.window == whole
    everything, launched = {op.index for op in ops}, set(call_of(t))
    worked = {op.lane for op in ops}
    device_lanes = [lane for lane in t.lanes if lane.name in worked]
    assert [use.name for use in answer.lanes] == [lane.name for lane in device_lanes]
    empty = sum(lane.kind == "device" for lane in t.lanes) - len(worked)
    assert any(line.startswith(f"{empty} lane") for line in answer.left_out) is bool(empty)
    assert [use.device for use in answer.devices] == list(dict.fromkeys(ln.device for ln in device_lanes))
    wide = whole[1] - whole[0]
    asked = [(use, {use.name}) for use in answer.lanes]
    asked += [(use, {ln.name for ln in device_lanes if ln.device == use.device}) for use in answer.devices]
    for use, lanes in asked:
        count, ns = slowly(t, whole, everything, lanes)
        assert (use.spans, use.busy_ns, use.idle_ns, use.share) == (count, ns, wide - ns, ns / wide)
        count, ns = slowly(t, whole, launched, lanes)
        assert (use.launched_spans, use.launched_busy_ns, use.launched_idle_ns) == (count, ns, wide - ns)
        assert use.launched_share == ns / wide


@pytest.mark.parametrize("name", odd_timelines())
def test_next_to_nothing_is_answered_too(name):
    t = odd_timelines()[name]
    answer = busy(t)
    json.dumps(answer.as_dict(), allow_nan=False)
    assert "nan" not in str(answer).lower()
    assert sum(use.busy_ns for use in answer.devices) == {"device only, no launches": 20, "one span": 10}.get(
        name, 0
    )
    if answer.window_ns == 0:
        assert all(use.share is None for use in (*answer.lanes, *answer.devices))


def test_a_sum_is_not_a_union_and_devices_stay_apart():
    build = TimelineBuilder()
    for device in ("0", "1"):
        for stream in ("7", "13"):
            build.lane(f"device {device} stream {stream}", "device", device=device)
            build.span("k", f"device {device} stream {stream}", 0, 100, "kernel")
    build.span("k", "device 1 stream 7", 50, 150, "kernel")
    answer = busy(build.build())
    assert [(use.name, use.busy_ns, use.share) for use in answer.devices] == [
        ("device 0", 100, 0.5),
        ("device 1", 200, 1.0),
    ]
    assert "the same for every stream and device" in answer.denominator


def test_what_is_left_out_is_said():
    build = TimelineBuilder()
    for start, took in ((0, 10), (50, 10), (70, 0), (100, 10)):
        build.span("k", "stream 7", start, took, "kernel")
    answer = busy(build.build(), (40, 80))
    assert answer.left_out == (
        "2 operations outside of the window",
        "1 operation of 0 ns: counted, but they make nothing busy",
    )
    assert (answer.lanes[0].spans, answer.lanes[0].busy_ns) == (2, 10)


def test_a_window_that_ends_before_it_starts_is_refused():
    with pytest.raises(LabError, match=r"window=\(5, 3\) ends before it starts"):
        busy(odd_timelines()["one span"], (5, 3))


def test_names_cannot_act_on_the_terminal():
    build = TimelineBuilder()
    build.span("k", "stream \x1b[31m7", 0, 10, "kernel")
    text = str(busy(build.build()))
    assert "\x1b" not in text
    assert r"stream \x1b[31m7" in text


def test_operations_are_sorted_again_for_another_timeline():
    first, second = random_timeline(1), random_timeline(2)
    kept = work_of(first)
    assert work_of(first) is kept
    assert len(work_of(second)) == len(operations(second))
    assert np.array_equal(np.sort(work_of(first).span), first.operations())


def test_shared_time_of_two_unions_counted_one_by_one():
    random = np.random.default_rng(5)
    for _ in range(50):
        sets = []
        for count in random.integers(0, 8, size=2):
            start = np.sort(random.integers(0, 60, size=count))
            sets.append(stretches(start, start + random.integers(0, 9, size=count))[0])
        covered = [{ns for a, b in union.tolist() for ns in range(a, b)} for union in sets]
        assert shared_ns(*sets) == len(covered[0] & covered[1])


@real
def test_the_h100_case_both_ways():
    t, ops, calls = real_case("kineto_h100_kernels_without_launch")
    everything = plain_union([op[:2] for op in ops])
    launched = plain_union([op[:2] for op in ops if op.correlation in calls])
    assert (launched, everything) == (31_905_473, 45_647_300)
    (use,) = busy(t).devices
    assert (use.launched_busy_ns, use.busy_ns) == (launched, everything)
    assert (use.launched_spans, use.spans) == (sum(op.correlation in calls for op in ops), len(ops))
    wide = max(op.end for op in ops) - min(op.start for op in ops)
    assert (use.idle_ns, use.launched_share) == (wide - everything, launched / wide)


@real
def test_the_graphs_case_by_stream():
    t, ops, calls = real_case("kineto_cuda_graphs_four_streams")
    answer = busy(t)
    (device,) = answer.devices
    assert device.spans - device.launched_spans == sum(op.correlation not in calls for op in ops) == 614
    assert device.busy_ns == plain_union([op[:2] for op in ops])
    found = {use.name: (use.spans, use.busy_ns, use.launched_busy_ns) for use in answer.lanes if use.spans}
    for stream in (7, 14, 15, 16):
        mine = [op for op in ops if op.stream == stream]
        launched = plain_union([op[:2] for op in mine if op.correlation in calls])
        figures = (len(mine), plain_union([op[:2] for op in mine]), launched)
        assert found.pop(f"stream {stream}") == figures
    assert not found
