"""Overlap and concurrency: counted a second time nanosecond by nanosecond, and on a real trace."""

import json
import random
from itertools import combinations

import numpy as np
import pytest
from metric_timelines import (
    SEEDS,
    odd_timelines,
    operations,
    plain_union,
    random_timeline,
    real,
    real_case,
)

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import concurrency, overlap, overlaps


def covered(spans, device=None):
    mine = [span.ns for span in spans if device is None or span.device == device]
    return set().union(*mine) if mine else set()


def shares(both, first, second, wide):
    return tuple(both / whole if whole else None for whole in (first, second, wide))


@pytest.mark.parametrize("seed", SEEDS)
def test_streams_in_pairs_counted_one_by_one(seed):
    t = random_timeline(seed)
    ops = operations(t)
    wide = max(op.end for op in ops) - min(op.start for op in ops)
    expected = {}
    for a, b in combinations([lane for lane in t.lanes if lane.kind == "device"], 2):
        sets = [[op for op in ops if op.lane == lane.name] for lane in (a, b)]
        if a.device == b.device and all(sets):
            first, second = map(covered, sets)
            both = len(first & second)
            sizes = len(first), len(second)
            expected[a.name, b.name] = (*sizes, both, *shares(both, *sizes, wide))
    answer = overlaps(t)
    told = {
        (p.first, p.second): (p.first_ns, p.second_ns, p.both_ns, p.of_first, p.of_second, p.of_window)
        for p in answer.pairs
    }
    assert told == expected
    assert [p.both_ns for p in answer.pairs] == sorted((p.both_ns for p in answer.pairs), reverse=True)
    for (a, b), figures in expected.items():
        (pair,) = overlap(t, a, b).pairs
        assert (pair.first_ns, pair.second_ns, pair.both_ns) == figures[:3]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [None, (40, 130)])
def test_streams_at_once_counted_one_by_one(seed, window):
    t = random_timeline(seed)
    ops = operations(t)
    start, stop = window or (min(op.start for op in ops), max(op.end for op in ops))
    answer = concurrency(t, window)
    assert answer.window == (start, stop)
    for device in answer.devices:
        lanes = {op.lane for op in ops if op.device == device.device}
        busy = [covered([op for op in ops if op.lane == lane]) for lane in lanes]
        counts = [sum(ns in lane for lane in busy) for ns in range(start, stop)]
        expected = [counts.count(level) for level in range(max(counts) + 1)]
        assert device.streams == len(lanes)
        assert list(device.ns) == expected
        assert device.shares == tuple(ns / (stop - start) for ns in expected)
        assert sum(device.ns) == stop - start


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_and_index_arrays_within_each_device(seed):
    t = random_timeline(seed)
    ops = operations(t)
    kernels = [op for op in ops if op.category == "kernel"]
    named = {
        "gemm": [op for op in kernels if "gemm" in op.name],
        "norm": [op for op in kernels if "norm" in op.name],
        "communication": [op for op in kernels if "nccl" in op.name],
        "compute": [op for op in kernels if "nccl" not in op.name],
        "copy": [op for op in ops if op.category in ("copy", "fill")],
    }
    choose = random.Random(seed)
    picked = choose.sample([op.index for op in ops], len(ops))
    half = len(picked) // 2
    pairs = (("gemm", "norm"), ("compute", "copy"), ("copy", "communication"))
    sets = [
        *((a, b, named[a], named[b]) for a, b in pairs),
        (
            np.array(picked[:half]),
            picked[half:],
            [op for op in ops if op.index in picked[:half]],
            [op for op in ops if op.index in picked[half:]],
        ),
    ]
    wide = max(op.end for op in ops) - min(op.start for op in ops)
    for a, b, first, second in sets:
        where = [{op.device for op in side} for side in (first, second)]
        # Two sets that each stand on one device are compared as they are.
        devices = sorted(where[0] | where[1]) if max(map(len, where)) > 1 else [None]
        parts = [(covered(first, device), covered(second, device)) for device in devices]
        sums = [
            sum(len(x) for x, _ in parts),
            sum(len(y) for _, y in parts),
            sum(len(x & y) for x, y in parts),
        ]
        (pair,) = overlap(t, a, b).pairs
        assert [pair.first_ns, pair.second_ns, pair.both_ns] == sums
        assert (pair.of_first, pair.of_second, pair.of_window) == shares(
            sums[2], sums[0], sums[1], wide * len(devices)
        )


def two_devices():
    build = TimelineBuilder()
    for device in "01":
        build.lane(f"device {device} stream 7", "device", device=device)
    build.lane("host", "host")
    build.span("cudaLaunchKernel", "host", 0, 30, "launch")
    build.span("around", "host", 0, 300, "range")
    build.span("a", "device 0 stream 7", 10, 100, "kernel")
    build.span("b", "device 1 stream 7", 60, 100, "kernel")
    build.span("c", "device 0 stream 7", 200, 50, "kernel")
    return build.build()


def test_lanes_of_two_devices_are_compared_as_they_are_and_it_is_said():
    answer = overlap(two_devices(), "device 0 stream 7", "device 1 stream 7")
    assert answer.both_ns == 50
    assert "here the one is on another device than the other" in answer.definition
    assert answer.pairs[0].of_window == 50 / 240
    assert overlaps(two_devices()).pairs == ()


def test_a_set_on_two_devices_is_compared_within_each():
    t = two_devices()
    answer = overlap(t, [2, 3], [4])
    assert (answer.both_ns, answer.pairs[0].first_ns) == (0, 200)
    assert answer.denominator.endswith("240 ns, times 2 devices")


def test_a_host_lane_is_its_calls():
    (pair,) = overlap(two_devices(), "host", "device 0 stream 7").pairs
    assert (pair.first_ns, pair.both_ns) == (30, 20)


def test_a_lane_goes_before_a_group_of_its_name():
    build = TimelineBuilder()
    build.span("k", "norm", 0, 10, "kernel")
    build.span("rms_norm_kernel", "stream 7", 5, 10, "kernel")
    assert overlap(build.build(), "norm", "stream 7").both_ns == 5


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ([2, 3], [3, 4], r"1 span \('b', span 3, is the first\) are in both the given 2 spans and"),
        ("device 0 stream 7", "compute", r"are in both 'device 0 stream 7' and 'compute'; choose two sets"),
        (
            "nothing",
            "gemm",
            r"'nothing' is no lane of this timeline \(device 0 stream 7, .*there is no group",
        ),
        ([2], [99], r"there is no span 99; this timeline has 5 spans"),
        ([-1], [2], r"there is no span -1"),
        ([0.5], [2], r"a set of spans is float64 of shape \(1,\)"),
        ([0, 2], [3], r"holds spans of the host and of a device"),
    ],
)
def test_sets_that_cannot_be_compared(a, b, message):
    with pytest.raises(LabError, match=message):
        overlap(two_devices(), a, b)


@pytest.mark.parametrize("name", odd_timelines())
def test_next_to_nothing_is_answered_too(name):
    t = odd_timelines()[name]
    for answer in (overlaps(t), concurrency(t), overlap(t, "gemm", "norm"), overlap(t, [], [])):
        json.dumps(answer.as_dict(), allow_nan=False)
        assert "nan" not in str(answer).lower()
    (pair,) = overlap(t, "gemm", "norm").pairs
    assert (pair.both_ns, pair.of_first) == (0, None)
    assert "everything: there is no span in 'gemm'" in overlap(t, "gemm", "norm").left_out
    for device in concurrency(t).devices:
        assert sum(device.ns) == concurrency(t).window[1] - concurrency(t).window[0]


@real
def test_the_graphs_case_by_plain_loops():
    t, ops, _ = real_case("kineto_cuda_graphs_four_streams")
    found = {frozenset((p.first, p.second)): p for p in overlaps(t).pairs}
    assert len(found) == 6
    busy = {s: plain_union([op[:2] for op in ops if op.stream == s]) for s in (7, 14, 15, 16)}
    for a, b in combinations(busy, 2):
        # Two unions have in common what their sum has more than the union of both.
        either = plain_union([op[:2] for op in ops if op.stream in (a, b)])
        assert found[frozenset((f"stream {a}", f"stream {b}"))].both_ns == busy[a] + busy[b] - either
    (device,) = concurrency(t).devices
    assert sum(level * ns for level, ns in enumerate(device.ns)) == sum(busy.values())
    assert sum(device.ns[1:]) == plain_union([op[:2] for op in ops])
    (pair,) = overlap(t, "compute", "communication").pairs
    assert pair.second_ns == plain_union([op[:2] for op in ops if "nccl" in op.name.lower()])
