"""Kernels by name, group, range, step and lane, and the share of RMSNorm: beside plain slow loops."""

from __future__ import annotations

import json
import random
import re
from collections import defaultdict
from statistics import median

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
    rows,
)

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import Groups, kernels, norm_share
from flashnorm_lab.timeline.metrics.kinds import BY, NO_LAUNCH, NO_RANGE, NO_STEP
from flashnorm_lab.timeline.metrics.ranges import innermost


def slow(t, label_of):
    """The figures of each label, by loops over rows."""
    calls = call_of(t)
    parts = defaultdict(list)
    for row in operations(t):
        if row.category == "kernel":
            parts[label_of(row)].append(row)
    every = [row for members in parts.values() for row in members]
    whole = sum(row.end - row.start for row in every)
    figures = {}
    for label, members in parts.items():
        took = [row.end - row.start for row in members]
        devices = {row.device for row in members}
        figures[label] = {
            "count": len(members),
            "launched": sum(row.index in calls for row in members),
            "total_ns": sum(took),
            "union_ns": sum(
                plain_union([(row.start, row.end) for row in members if row.device == d]) for d in devices
            ),
            "mean_ns": pytest.approx(sum(took) / len(took)),
            "median_ns": median(took),
            "min_ns": min(took),
            "max_ns": max(took),
            "share_of_launches": pytest.approx(len(members) / len(every)),
            "share_of_time": pytest.approx(sum(took) / whole) if whole else None,
        }
    return figures


def told(answer):
    return {
        use.label: {k: v for k, v in vars(use).items() if k not in ("label", "group")} for use in answer.uses
    }


def slow_innermost(t, lane, moment, fits):
    """Of the ranges around a moment on a lane, the one that started last, then the shortest."""
    around = [
        (row.start, -(row.end - row.start), row.name)
        for row in rows(t)
        if row.lane == lane and row.category == "range" and row.start <= moment < row.end and fits(row.name)
    ]
    return max(around)[2] if around else None


@pytest.mark.parametrize("seed", SEEDS)
def test_by_name_group_and_lane(seed):
    t = random_timeline(seed)
    groups = Groups.load()
    assert told(kernels(t)) == slow(t, lambda row: row.name)
    assert told(kernels(t, "group")) == slow(t, lambda row: groups.group_of(row.name))
    assert told(kernels(t, "lane")) == slow(t, lambda row: row.lane)
    by_name = kernels(t)
    assert all(use.group == groups.group_of(use.label) for use in by_name.uses)
    assert by_name.count == sum(use.count for use in by_name.uses)
    assert by_name.total_ns == sum(use.total_ns for use in by_name.uses)
    order = [use.total_ns for use in by_name.uses]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_by_step(seed):
    t = random_timeline(seed)
    if t.steps:
        assert told(kernels(t, "step")) == slow(t, lambda row: str(row.step) if row.step >= 0 else NO_STEP)
    else:
        assert {use.label for use in kernels(t, "step").uses} <= {NO_STEP}


def ranged(seed, nested):
    """Calls within ranges on two threads; kernels with and without a call; a range on a stream."""
    choose = random.Random(seed)
    build = TimelineBuilder()
    for thread in ("thread 0", "thread 1"):
        build.lane(thread, "host")
        edges = sorted(choose.sample(range(1000), 24))
        if nested:
            while edges:
                i = choose.randrange(len(edges) - 1)
                build.span(f"range {choose.randrange(4)}", thread, edges[i], edges[i + 1] - edges[i], "range")
                del edges[i : i + 2]
        else:
            choose.shuffle(edges)
            for a, b in zip(edges[::2], edges[1::2], strict=True):
                build.span(f"range {choose.randrange(4)}", thread, min(a, b), abs(b - a), "range")
        build.span("step 3", thread, 0, 1000, "range")
        build.span("of 0 ns", thread, 500, 0, "range")
    for i in range(60):
        start = choose.randrange(1000)
        if i % 4:
            build.span("launch", f"thread {choose.randrange(2)}", start, 1, "launch", launch=i)
        build.span(f"k{i % 3}", "stream", start + 3, choose.randrange(9), "kernel", launch=i)
    build.span("range on the stream", "stream", 200, 300, "range")
    return build.build()


@pytest.mark.parametrize("nested", [True, False], ids=["nested", "crossing"])
@pytest.mark.parametrize("seed", range(6))
def test_by_range(seed, nested):
    t = ranged(seed, nested)
    calls = call_of(t)

    def label(row):
        call = calls.get(row.index)
        lane, at = (call.lane, call.start) if call else (row.lane, row.start)
        found = slow_innermost(t, lane, at, lambda name: name != "step 3")
        return found or (NO_RANGE if call else NO_LAUNCH)

    answer = kernels(t, "range")
    assert told(answer) == slow(t, label)
    assert NO_LAUNCH in told(answer)
    assert "range on the stream" in told(answer)


def test_ranges_of_torch_are_put_together_by_operator():
    build = TimelineBuilder()
    for i in range(4):
        build.span(f"aten::mm, seq = {i}, op_id = {70 + i}", "host", 100 * i, 50, "range")
        build.span("launch", "host", 100 * i + 5, 5, "launch", launch=i)
        build.span("k", "stream", 100 * i + 20, 10, "kernel", launch=i)
    assert {use.label: use.count for use in kernels(build.build(), "range").uses} == {"aten::mm": 4}


@pytest.mark.parametrize("seed", range(20))
def test_innermost_of_any_ranges(seed):
    choose = random.Random(seed)
    build = TimelineBuilder()
    for i in range(choose.randrange(12)):
        build.span(f"r{i}", "host", choose.randrange(30), choose.randrange(12), "range")
    build.span("other lane", "stream", 0, 40, "range")
    t = build.build()
    moments = np.arange(-1, 45)
    lane = t.lane_index("host") if "host" in [lane.name for lane in t.lanes] else 5
    around = np.flatnonzero(t.is_category("range"))
    found = innermost(t, around, np.full(len(moments), lane), moments)
    for moment, place in zip(moments.tolist(), found.tolist(), strict=True):
        expected = [
            (row.start, row.start - row.end)
            for row in rows(t)
            if row.lane == "host" and row.start <= moment < row.end
        ]
        if expected:
            assert (int(t.start_ns[place]), -int(t.duration_ns[place])) == max(expected)
        else:
            assert place == -1


@pytest.mark.parametrize("name", odd_timelines())
def test_odd_timelines_have_answers(name):
    t = odd_timelines()[name]
    count = sum(row.category == "kernel" for row in operations(t))
    for by in BY:
        answer = kernels(t, by)
        assert answer.count == count
        assert json.loads(json.dumps(answer.as_dict()))["count"] == count
        assert ("there is no kernel here" in str(answer)) == (count == 0)
    share = norm_share(t)
    assert share.kernels == count
    assert json.loads(json.dumps(share.as_dict()))["launches"] == 0
    assert str(share).startswith("RMSNorm: ")


def test_unknown_by():
    with pytest.raises(LabError, match="by='colour'; one of name, group, range, step, lane was expected"):
        kernels(TimelineBuilder().build(), "colour")


def test_names_are_text():
    build = TimelineBuilder()
    name = "\x1b[31m(a|b)*<b>\n" + "x" * 5000
    build.span(name, "s", 0, 10, "kernel")
    t = build.build()
    text = str(kernels(t)) + kernels(t).summary()
    assert "\x1b" not in text
    assert r"\x1b[31m(a|b)*<b>\n" in text
    assert max(len(line) for line in str(kernels(t).table()).splitlines()) < 220
    assert kernels(t).as_dict()["uses"][0]["label"] == name


def test_what_is_no_kernel_is_said():
    build = TimelineBuilder()
    for i, category in enumerate(("kernel", "copy", "copy", "fill", "graph")):
        build.span(category, "s", 10 * i, 5, category)
    assert kernels(build.build()).left_out == (
        "2 memory copies: no kernels",
        "1 memory set: no kernels",
        "1 graph told as one span: which kernels ran in it is unknown",
    )


def norms():
    """A layer with each kind of norm; one RMSNorm in separate operations under an annotation, one without."""
    build = TimelineBuilder()
    pieces = [
        "void at::native::vectorized_elementwise_kernel<4, at::native::pow_tensor_scalar_kernel_impl>",
        "void at::native::reduce_kernel<512, 1, at::native::MeanOps<float>>",
        "void at::native::vectorized_elementwise_kernel<4, at::native::rsqrt_kernel_cuda>",
    ]
    plan = [
        ("rms_norm_kernel", "rms_norm", 10),
        ("fused_add_rms_norm_kernel", "add_rms_norm", 20),
        ("fused_norm_projection", "norm_product", 40),
        ("_layer_norm_fwd_1pass_kernel", "layer_norm", 50),
        ("void cuApplyLayerNorm<float>", "layer_norm", 60),
        *[(name, "annotated", 7) for name in pieces],
        *[(name, "", 3) for name in pieces],
        ("ampere_sgemm_128x64_nn", "", 500),
    ]
    around = None
    for i, (name, kind, took) in enumerate(plan):
        start = 1000 * i
        if kind == "annotated" and around is None:
            around = start
        build.span("cudaLaunchKernel", "host", start, 10, "launch", launch=i)
        build.span(name, "stream 7", start + 100, took, "kernel", launch=i)
    build.span("aten::rms_norm", "host", around - 5, 3000, "op")
    build.span("ampere_sgemm_128x64_nn", "stream 7", 10**6, 100, "kernel", launch=-1)
    return build.build(), plan


def test_share_of_norm():
    t, plan = norms()
    share = norm_share(t)
    total = sum(took for *_, took in plan) + 100
    assert (share.kernels, share.kernels_ns) == (len(plan) + 1, total)
    assert (share.launches, share.total_ns) == (2, 30)
    assert share.share_of_launches == 2 / (len(plan) + 1)
    assert share.share_of_time == 30 / total
    assert (share.annotated_launches, share.annotated_ns) == (3, 21)
    assert (share.within_launches, share.within_ns) == (1, 40)
    assert (share.unsure_launches, share.unsure_ns) == (1, 50)
    assert share.rsqrt_launches == 1
    assert [(p.label, p.count, p.total_ns) for p in share.parts] == [
        ("layer_norm", 2, 110),
        ("norm_product", 1, 40),
        ("add_rms_norm", 1, 20),
        ("rms_norm", 1, 10),
    ]
    text = "\n".join(share.left_out)
    assert "1 kernel of 40 ns that do a norm and a product" in text
    assert "1 kernel of 50 ns whose name serves LayerNorm and RMSNorm alike" in text
    assert "1 kernel without a known launch call" in text
    assert "RMSNorm written as separate operations" in text
    assert "with the pieces told by annotation 5 launches" in share.summary()


def test_own_groups_count(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[[rule]]\ngroup = 'rms_norm'\npattern = 'ampere_sgemm'\n")
    t, _ = norms()
    assert norm_share(t, Groups.load(path)).launches == 4
    assert kernels(t, "group", Groups.load(path)).uses[0].label == "rms_norm"


@real
def test_the_h100_case():
    case = real_case("kineto_h100_kernels_without_launch")
    took = defaultdict(list)
    for op in case.operations:
        if op.category == "kernel":
            took[op.name].append(op.end - op.start)
    answer = kernels(case.timeline)
    assert {u.label: (u.count, u.total_ns, u.max_ns) for u in answer.uses} == {
        name: (len(all_), sum(all_), max(all_)) for name, all_ in took.items()
    }
    assert answer.count == 1465
    assert answer.launched == sum(
        op.correlation in case.calls for op in case.operations if op.category == "kernel"
    )
    # Its RMSNorms are written as separate operations: no kernel says norm, the modules around them do.
    t, groups = case.timeline, Groups.load()
    around = [r for r in rows(t) if r.category in ("op", "range") and re.search("rms_?norm", r.name, re.I)]
    calls = call_of(t)
    pieces = [
        row
        for row in operations(t)
        if row.category == "kernel"
        and groups.group_of(row.name) in ("elementwise", "reduction", "copy_layout", "other")
        and row.index in calls
        and any(r.lane == calls[row.index].lane and r.start <= calls[row.index].start < r.end for r in around)
    ]
    share = norm_share(t)
    assert share.launches == 0
    assert share.annotated_launches == len(pieces) == 392
    assert share.annotated_ns == sum(row.end - row.start for row in pieces)
