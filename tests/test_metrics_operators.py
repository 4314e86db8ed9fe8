"""Operators on the host: self times beside a slow count of every nanosecond, and real traces."""

from __future__ import annotations

import json
import random

import pytest
from metric_timelines import SEEDS, odd_timelines, real, real_case, rows

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import operators


def nested(
    choose: random.Random, build: TimelineBuilder, lane: str, start: int, end: int, depth: int
) -> None:
    """Operators within operators: some fill the one around them, some last 0 ns, some begin together."""
    at = start
    while at < end and choose.random() < 0.8:
        begin = at + choose.randrange(3)
        stop = min(begin + choose.choice([0, 1, 3, 10, 40]), end)
        if begin >= end:
            return
        build.span(f"op {choose.randrange(4)}", lane, begin, stop - begin, "op")
        if depth:
            nested(choose, build, lane, begin, stop, depth - 1)
        at = max(stop, begin + 1)


def random_operators(seed: int):
    choose, build = random.Random(seed), TimelineBuilder()
    for thread in ("thread 1", "thread 2"):
        build.lane(thread, "host")
        nested(choose, build, thread, 0, 200, 4)
        build.span("step", thread, 0, 200, "range")
        build.span("cudaLaunchKernel", thread, 5, 5, "launch", launch=1)
    build.span("aten::kernel", "stream 7", 20, 50, "op")
    return build.build()


@pytest.mark.parametrize("seed", SEEDS)
def test_self_time_is_where_an_operator_is_the_innermost(seed):
    t = random_operators(seed)
    answer = operators(t)
    spans = [row for row in rows(t) if row.device is None and row.category == "op"]
    alone: dict[str, int] = {}
    for lane in ("thread 1", "thread 2"):
        mine = [row for row in spans if row.lane == lane]
        for at in range(200):
            around = [row for row in mine if row.start <= at < row.end]
            if around:
                inner = max(around, key=lambda row: (row.start, -row.end, row.index))
                alone[inner.name] = alone.get(inner.name, 0) + 1
    assert answer.count == len(spans)
    assert {use.name: use.self_ns for use in answer.uses if use.self_ns} == alone
    assert answer.self_ns == sum(alone.values())
    assert answer.left_out == ()
    for use in answer.uses:
        took = [row.end - row.start for row in spans if row.name == use.name]
        assert (use.count, use.total_ns, use.max_ns) == (len(took), sum(took), max(took))
        assert use.mean_ns == sum(took) / len(took)
    assert [use.self_ns for use in answer.uses] == sorted((u.self_ns for u in answer.uses), reverse=True)


def test_many_operators_one_after_another_within_one():
    build = TimelineBuilder()
    build.span("outer", "host", 0, 100_000, "op")
    for at in range(0, 100_000, 10):
        build.span("inner", "host", at, 6, "op")
    uses = {use.name: use for use in operators(build.build()).uses}
    assert (uses["inner"].self_ns, uses["outer"].self_ns) == (60_000, 40_000)


def test_operators_that_cross_are_said():
    build = TimelineBuilder()
    build.span("first", "host", 0, 100, "op")
    build.span("second", "host", 60, 100, "op")
    answer = operators(build.build())
    assert {use.name: use.self_ns for use in answer.uses} == {"first": 60, "second": 100}
    assert "1 operator that ends behind the one around it" in answer.left_out[0]


@pytest.mark.parametrize("name", odd_timelines())
def test_next_to_nothing_is_answered_too(name):
    answer = operators(odd_timelines()[name])
    json.dumps(answer.as_dict(), allow_nan=False)
    assert "nan" not in str(answer).lower()


@real
def test_a_trace_without_a_device_by_a_stack():
    t = real_case("kineto_cpu_only.json.gz").timeline
    (use,) = operators(t).uses
    plain = [row for row in rows(t) if row.category == "op"]
    assert (use.name, use.count) == ("aten::empty", 4) == (plain[0].name, len(plain))
    assert use.self_ns == sum(row.end - row.start for row in plain)


@real
def test_self_times_of_a_real_trace_by_a_stack():
    t = real_case("kineto_h100_kernels_without_launch.json.gz").timeline
    lanes: dict[str, list] = {}
    for row in rows(t):
        if row.category == "op" and row.device is None:
            lanes.setdefault(row.lane, []).append(row)
    alone: dict[str, int] = {}
    for members in lanes.values():
        stack: list = []
        for row in sorted(members, key=lambda row: (row.start, -row.end, row.index)):
            while stack and stack[-1].end <= row.start:
                stack.pop()
            alone[row.name] = alone.get(row.name, 0) + row.end - row.start
            if stack:
                alone[stack[-1].name] -= min(row.end, stack[-1].end) - row.start
            stack.append(row)
    assert {use.name: use.self_ns for use in operators(t).uses} == alone
