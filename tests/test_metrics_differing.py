"""Two timelines side by side: totals by name beside slow loops, what appeared and went away, noise."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from metric_timelines import CASES, SEEDS, odd_timelines, operations, random_timeline, real, rows

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline import open as open_timeline
from flashnorm_lab.timeline.metrics import aligning, diff, steps
from flashnorm_lab.timeline.metrics.differing import CALLS, REPEATS


def compared(t):
    """The rows that are compared, by kind."""
    host = [row for row in rows(t) if row.device is None and row.category in CALLS]
    return {"device": operations(t), "host": host}


def slow(t, by_step):
    """By kind and name: count, total, median duration, and what is compared; by loops."""
    answer = steps(t)
    figures = {}
    for kind, members in compared(t).items():
        took, per_step = defaultdict(list), defaultdict(lambda: defaultdict(int))
        for row in members:
            took[row.name].append(row.end - row.start)
            per_step[row.name][int(answer.step[row.index])] += row.end - row.start
        for name, all_ in took.items():
            unit = sum(all_)
            if by_step:
                unit = median(per_step[name][number] for number in answer.steady)
            figures[kind, name] = (len(all_), sum(all_), median(all_), unit)
    return figures


@pytest.mark.parametrize("seed", SEEDS)
def test_totals_by_name(seed):
    a, b = random_timeline(seed), random_timeline(seed + 100)
    answer = diff(a, b)
    by_step = bool(steps(a).steady and steps(b).steady)
    assert answer.unit == ("step" if by_step else "whole")
    first, second = slow(a, by_step), slow(b, by_step)
    assert {(entry.kind, entry.name) for entry in answer.names} == first.keys() | second.keys()
    for entry in answer.names:
        left = first.get((entry.kind, entry.name), (0, 0, None, 0))
        right = second.get((entry.kind, entry.name), (0, 0, None, 0))
        assert (entry.count_a, entry.total_a_ns, entry.median_a_ns, entry.unit_a_ns) == left
        assert (entry.count_b, entry.total_b_ns, entry.median_b_ns, entry.unit_b_ns) == right
        assert entry.change_ns == right[3] - left[3]
        assert entry.ratio == (right[3] / left[3] if left[3] else None)
        if not left[0]:
            assert entry.verdict == "appeared"
        elif not right[0]:
            assert entry.verdict == "went away"
        else:
            change = right[3] - left[3]
            assert entry.verdict == ("slower" if change > 0 else "faster" if change else "same")
    sizes = [abs(entry.change_ns) for entry in answer.names]
    assert sizes == sorted(sizes, reverse=True)
    back = diff(b, a)
    assert {(e.kind, e.name): e.change_ns for e in back.names} == {
        (e.kind, e.name): -e.change_ns for e in answer.names
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_a_timeline_and_itself(seed):
    t = random_timeline(seed)
    answer = diff(t, t)
    assert {entry.verdict for entry in answer.names} <= {"same"}
    assert answer.a == answer.b
    assert answer.table() is None
    assert np.array_equal(answer.pairs.a_ns, answer.pairs.b_ns)
    assert answer.pairs.only_a == answer.pairs.only_b == ()


def steady(names, repeats, length, seed=0):
    """Annotated steps of kernels with a little noise: ``length(step, place, name)`` and up to 9 ns more."""
    choose = random.Random(seed)
    build = TimelineBuilder()
    build.lane("host", "host")
    now = 0
    for step in range(repeats):
        for place, name in enumerate(names):
            took = length(step, place, name) + choose.randrange(10)
            build.span("cudaLaunchKernel", "host", now, 5, "launch", launch=now, step=step)
            build.span(name, "stream 7", now + 10, took, "kernel", launch=now, step=step)
            now += took + 20
    return build.build(device="A made-up GPU", provenance="recorded")


NAMES = ["embed", "norm", "product", "norm", "product", "head"]


def test_a_change_within_the_spread_is_told_apart():
    a = steady(NAMES, 20, lambda step, place, name: 1000, seed=1)
    b = steady(NAMES, 20, lambda step, place, name: 1000 + (300 if name == "product" else 0), seed=2)
    answer = diff(a, b)
    entry = {e.name: e for e in answer.names if e.kind == "device"}
    assert answer.names[0].name == "product"
    assert (entry["product"].verdict, entry["product"].within_spread) == ("slower", False)
    assert 560 < entry["product"].change_ns < 640
    for name in ("embed", "norm", "head"):
        assert entry[name].within_spread is True
    assert answer.pairs.how == "step"
    assert answer.pairs.names == tuple(NAMES)
    change = answer.pairs.b_ns - answer.pairs.a_ns
    assert [bool(c > 250) for c in change] == [name == "product" for name in NAMES]
    assert "names: " in answer.summary()
    assert "more than the spread of repeated steps" in answer.summary()


def test_spread_by_hand():
    a = steady(["k"], 5, lambda step, place, name: [100, 200, 300, 400, 500][step] * 10, seed=3)
    answer = diff(a, a)
    took = sorted(row.end - row.start for row in operations(a))
    assert answer.names[0].spread_ns == took[3] - took[1]
    assert diff(steady(["k"], REPEATS - 1, lambda *_: 10), a).names[0].spread_ns is None
    assert "too few steady steps" in diff(steady(["k"], 2, lambda *_: 10), a).summary()


def test_appeared_and_went_away_by_position():
    a = steady(["embed", "norm", "add", "product", "norm", "product"], 6, lambda *_: 100)
    b = steady(["embed", "fused norm product", "add", "norm", "product", "argmax"], 6, lambda *_: 100)
    answer = diff(a, b)
    assert {e.name for e in answer.of("appeared")} == {"fused norm product", "argmax"}
    assert answer.of("went away") == ()
    pairs = answer.pairs
    assert [
        (n, int(i), int(j)) for n, i, j in zip(pairs.names, pairs.place_a, pairs.place_b, strict=True)
    ] == [
        ("embed", 0, 0),
        ("add", 2, 2),
        ("norm", 4, 3),
        ("product", 5, 4),
    ]
    assert pairs.only_a == ((1, "norm"), (3, "product"))
    assert pairs.only_b == ((1, "fused norm product"), (5, "argmax"))
    assert answer.as_dict()["pairs"]["matched"] == 4


def test_without_steps_the_whole_is_compared():
    def plain(names, took):
        build = TimelineBuilder()
        for i, name in enumerate(names):
            build.span(name, "s", 100 * i, took, "kernel")
        return build.build()

    answer = diff(plain(["a", "b", "c"], 10), plain(["a", "c", "d"], 15))
    assert answer.unit == "whole"
    assert answer.pairs.how == "whole"
    assert answer.pairs.names == ("a", "c")
    assert answer.pairs.only_a == ((1, "b"),)
    assert answer.pairs.only_b == ((2, "d"),)
    assert {(e.name, e.verdict, e.within_spread) for e in answer.names} == {
        ("a", "slower", None),
        ("b", "went away", None),
        ("c", "slower", None),
        ("d", "appeared", None),
    }
    assert answer.summary().startswith("the operations span 210 ns in a and 215 ns in b (1.024 of a)")
    assert sum("has no steady steps" in line for line in answer.left_out) == 2


def test_what_is_too_long_to_align_is_matched_by_occurrence(monkeypatch):
    a = steady(NAMES, 6, lambda step, place, name: 10 * place)
    b = steady([*NAMES[::-1], "norm"], 6, lambda step, place, name: 10 * place)
    monkeypatch.setattr(aligning, "ALIGNED", 0)
    pairs = diff(a, b).pairs
    assert pairs.how == "step occurrence"
    expected = []
    for i, name in enumerate(NAMES):
        which = NAMES[:i].count(name)
        there = [j for j, other in enumerate([*NAMES[::-1], "norm"]) if other == name]
        expected.append((name, i, there[which]))
    found = [(n, int(i), int(j)) for n, i, j in zip(pairs.names, pairs.place_a, pairs.place_b, strict=True)]
    assert found == expected
    assert pairs.only_b == ((6, "norm"),)


@pytest.mark.parametrize("seed", range(20))
def test_alignment_is_one_of_common_runs(seed):
    choose = random.Random(seed)
    a = np.array([choose.randrange(4) for _ in range(choose.randrange(1, 30))])
    b = np.array([choose.randrange(4) for _ in range(choose.randrange(1, 30))])
    left, right = aligning._aligned(a, b)
    assert (a[left] == b[right]).all()
    assert (np.diff(left) > 0).all()
    assert (np.diff(right) > 0).all()
    front = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert left[:front].tolist() == right[:front].tolist() == list(range(front))


def test_devices_and_provenance_are_said():
    a = steady(NAMES, 4, lambda *_: 10)
    b = a.with_meta(device="\x1b[31mother", provenance="measured")
    lines = diff(a, b).left_out
    assert r"a is of A made-up GPU, b of \x1b[31mother: a change may be the device's" in lines
    assert "a is recorded, b is measured" in lines
    assert "\x1b" not in str(diff(a, b))


@pytest.mark.parametrize("name", odd_timelines())
def test_odd_timelines_have_answers(name):
    t, other = odd_timelines()[name], steady(NAMES, 4, lambda *_: 10)
    for a, b in ((t, t), (t, other), (other, t)):
        answer = diff(a, b)
        told = json.loads(json.dumps(answer.as_dict()))
        assert told["a"]["operations"] == len(operations(a))
        assert told["b"]["operations"] == len(operations(b))
        assert str(answer).startswith("Differences: ")
    assert ("nothing to compare" in diff(t, t).summary()) == (not any(compared(t).values()))


@real
def test_a_real_trace_with_every_kernel_a_tenth_longer():
    t = open_timeline(CASES / "kineto_nanosecond_decimals.json.gz")
    work = t.operations()
    took = t.duration_ns.copy()
    took[work] = took[work] * 11 // 10
    answer = diff(t, replace(t, duration_ns=took))
    on_device = [entry for entry in answer.names if entry.kind == "device"]
    assert {entry.verdict for entry in on_device} == {"slower"}
    assert all(entry.ratio == pytest.approx(1.1, abs=0.01) for entry in on_device)
    assert {entry.verdict for entry in answer.names if entry.kind == "host"} == {"same"}
    expected = slow(t, by_step=True)
    for entry in answer.names:
        found = (entry.count_a, entry.total_a_ns, entry.median_a_ns, entry.unit_a_ns)
        assert found == expected[entry.kind, entry.name]
    assert len(answer.pairs) == 870
    assert answer.pairs.only_a == answer.pairs.only_b == ()


def race(edge=True, pause=0, fault=False):
    """Six steps on two streams: an edge from the first to the second, or not, and a pause between them."""
    build = TimelineBuilder()
    build.lane("host", "host")
    for lane in ("main", "matrix"):
        build.lane(lane, "device", device="0")
    for step in range(6):
        at = 10_000 * step
        for number in (2 * step, 2 * step + 1):
            build.span("launch", "host", at - 50 + 10 * (number % 2), 5, "launch", launch=number, step=step)
        first = build.span("produce", "main", at, 0 if fault else 100, "kernel", launch=2 * step, step=step)
        second = build.span(
            "projection", "matrix", at + 100 + pause, 200, "kernel", launch=2 * step + 1, step=step
        )
        if edge:
            build.edge(first, second, "fork_matrix")
        build.edge(first, second, "shown", kind="flow")
    return build.build()


def test_edges_that_one_timeline_lacks_are_told():
    answer = diff(race(), race(edge=False))
    (edge,) = answer.edges
    assert (edge.name, edge.kind, edge.source_lane, edge.target_lane) == (
        "fork_matrix",
        "order",
        "main",
        "matrix",
    )
    assert (edge.count_a, edge.count_b) == (6, 0)
    assert "edges fork_matrix (order) from main to matrix: 6 in a, 0 in b" in answer.lines()
    assert not answer.same
    assert [(e.count_a, e.count_b) for e in diff(race(edge=False), race()).edges] == [(0, 6)]
    assert answer.as_dict()["edges"][0]["name"] == "fork_matrix"


def test_a_step_that_only_waits_longer_is_explained():
    answer = diff(race(), race(pause=400))
    assert not [entry for entry in answer.names if entry.verdict != "same"]
    assert (answer.a.step_idle_ns, answer.b.step_idle_ns) == (0, 400)
    assert (
        "300 ns in a and 700 ns in b (2.333 of a), of which no operation runs for 0 ns in a and 400 ns in b"
        in (answer.summary())
    )


def test_a_race_and_itself():
    answer = diff(race(), race())
    assert answer.same
    assert "no name, no edge and no single kernel differs" in answer.summary()
    assert (
        "kernels of a typical step one by one: 2 matched (0 faster, 0 slower, 2 the same)"
        in answer.lines()[0]
    )
    assert answer.left_out == ()


def test_what_speaks_against_a_side_is_said():
    answer = diff(race(), race(fault=True).with_meta(edges_unknown=3))
    assert any(
        "what speaks against b (see its report): operations of 0 ns" in line for line in answer.left_out
    )
    assert any("0 in a, 3 in b" in line for line in answer.left_out)
    assert not any("against a" in line for line in answer.left_out)
