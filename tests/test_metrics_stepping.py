"""Steps: from annotations and by repetition, beside plain slow loops; what is no step is not called one."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from metric_timelines import (
    CASES,
    SEEDS,
    odd_timelines,
    operations,
    plain_union,
    random_timeline,
    real,
    rows,
)

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline import open as open_timeline
from flashnorm_lab.timeline.metrics import kernels, steps
from flashnorm_lab.timeline.metrics.period import find
from flashnorm_lab.timeline.metrics.stepfinding import is_step_name

LAYER = ["norm", "qkv", "attention", "add", "norm", "up", "add"]
STEP = ["embed", *LAYER * 6, "norm", "head", "argmax"]


def run(sequence, *, calls=True, pause_before=None, took=None, streams=1, seed=0):
    """The kernels of a sequence one behind the other, with a call 50 ns before each."""
    choose = random.Random(seed)
    build = TimelineBuilder()
    build.lane("host", "host")
    now = 1000
    for i, name in enumerate(sequence):
        now += 500 if name == pause_before else 2
        if calls:
            build.span("cudaLaunchKernel", "host", now - 50, 3, "launch", launch=i)
        length = took(i, name) if took else choose.randint(5, 9)
        build.span(name, f"stream {i % streams}", now, length, "kernel", launch=i)
        now += length
    return build.build()


def slow_steps(t, step_of):
    """The figures of each step by loops: start, length, operations, kernels, busy."""
    parts = defaultdict(list)
    for row in operations(t):
        if step_of[row.index] >= 0:
            parts[int(step_of[row.index])].append(row)
    return {
        number: (
            min(row.start for row in members),
            max(row.end for row in members) - min(row.start for row in members),
            len(members),
            sum(row.category == "kernel" for row in members),
            sum(
                plain_union([(r.start, r.end) for r in members if r.device == d])
                for d in {r.device for r in members}
            ),
        )
        for number, members in parts.items()
    }


def told(answer):
    return {u.number: (u.start_ns, u.length_ns, u.operations, u.kernels, u.busy_ns) for u in answer.uses}


@pytest.mark.parametrize("seed", SEEDS)
def test_annotated_steps_beside_slow_loops(seed):
    t = random_timeline(seed)
    answer = steps(t)
    if not t.steps:
        assert answer.source == "none"
        return
    assert answer.source == "annotations"
    assert np.array_equal(answer.step, t.step)
    on_device = slow_steps(t, t.step)
    assert {n: figures for n, figures in told(answer).items() if figures[2]} == on_device
    calls = [row for row in rows(t) if row.device is None and row.category == "launch"]
    for use in answer.uses:
        mine = [row for row in calls if row.step == use.number]
        assert (use.launches, use.host_ns) == (len(mine), sum(row.end - row.start for row in mine))
    lengths = [use.length_ns for use in answer.uses if use.number in answer.steady]
    assert answer.median_ns == median(lengths)
    assert (answer.min_ns, answer.max_ns) == (min(lengths), max(lengths))


@pytest.mark.parametrize("calls", [True, False], ids=["by call", "by start"])
@pytest.mark.parametrize("repeats", [3, 4, 9])
def test_repetition(repeats, calls):
    t = run(STEP * repeats, calls=calls, pause_before="embed")
    answer = steps(t)
    assert answer.source == "repetition"
    assert answer.agreement == 1
    kernel = np.flatnonzero(t.is_category("kernel"))
    expected = np.repeat(np.arange(repeats), len(STEP))
    assert answer.step[kernel].tolist() == expected.tolist()
    assert told(answer) == slow_steps(t, answer.step)
    assert all(use.complete and not use.warm_up for use in answer.uses)
    assert answer.apply(t).steps == tuple(range(repeats))
    host = t.spans(category="launch")
    assert answer.step[host].tolist() == (expected.tolist() if calls else [])
    assert {use.label for use in kernels(t, "step").uses} == {str(i) for i in range(repeats)}
    assert "only an annotation can tell" in answer.left_out[0]


def test_the_start_of_a_step_is_where_the_device_waits():
    sequence = STEP * 5
    t = run(sequence[20:], pause_before="head")
    answer = steps(t)
    first = next(i for i in t.spans(category="kernel") if answer.step[i] == 1)
    assert t.names[t.name[first]] == "head"
    assert answer.uses[-1].complete is False
    assert answer.step[t.spans(category="kernel")[0]] == -1


def test_a_recording_of_whole_steps_starts_with_one():
    t = run(STEP * 5, pause_before="head")
    answer = steps(t)
    assert len(answer.uses) == 5
    assert all(use.complete for use in answer.uses)
    assert answer.step[t.spans(category="kernel")[0]] == 0


def test_other_kernels_before_and_behind_do_not_hide_the_steps():
    t = run([f"load {i}" for i in range(40)] + STEP * 4 + ["save"] * 30, pause_before="embed")
    answer = steps(t)
    kernel = t.spans(category="kernel")
    assert answer.step[kernel[:40]].tolist() == [-1] * 40
    assert answer.step[kernel[40 : 40 + 4 * len(STEP)]].tolist() == np.repeat(range(4), len(STEP)).tolist()
    assert answer.step[kernel[40 + 4 * len(STEP) :]].tolist() == [-1] * 30 or answer.uses[-1].usual is False


def test_an_extra_kernel_now_and_then_does_not_shift_the_steps():
    extra = (3, 17)
    sequence = []
    for i in range(40):
        sequence += [*STEP[:20], "log", *STEP[20:]] if i in extra else STEP
    answer = steps(run(sequence, pause_before="embed"))
    assert [use.kernels for use in answer.uses] == [len(STEP) + (i in extra) for i in range(40)]
    assert [use.usual for use in answer.uses] == [i not in extra for i in range(40)]
    assert 0.9 < answer.agreement < 1


def test_warm_up_by_time_and_by_sequence():
    slow = {0: 9, 1: 3}
    sequence = STEP * 10
    t = run(sequence, took=lambda i, name: 100 * slow.get(i // len(STEP), 1) + i % 3, pause_before="embed")
    answer = steps(t)
    assert answer.warm_up == (0, 1)
    assert answer.steady == tuple(range(2, 10))
    lengths = [use.length_ns for use in answer.uses if use.number >= 2]
    assert answer.median_ns == median(lengths)
    assert any("2 steps of warm-up" in line for line in answer.left_out)
    tuned = ["tune" if i % 9 == 5 else name for i, name in enumerate(STEP)]
    answer = steps(run(tuned + STEP * 9, took=lambda i, name: 100, pause_before="embed"))
    assert answer.warm_up == (0,)
    assert answer.uses[0].usual is False


def test_a_slow_step_in_the_middle_is_no_warm_up_and_its_kernel_is_named():
    def took(i, name):
        return 5000 if (i // len(STEP), name) == (4, "attention") else 100 + (name == "head" and i % 2)

    answer = steps(run(STEP * 8, took=took, pause_before="embed"))
    assert answer.warm_up == ()
    assert answer.slowest == 4
    shift = answer.slowest_by_name[0]
    assert (shift.name, shift.here_ns, shift.others_ns) == ("attention", 6 * 5000, 600)
    assert shift.more_ns == 29400
    assert "slowest: step 4, most of it attention" in answer.summary()


@pytest.mark.parametrize(
    "sequence",
    [
        [],
        ["one"],
        ["same"] * 500,
        STEP,
        ["a", "b"],
        [f"k{random.Random(i).randrange(9)}" for i in range(600)],
        [f"all different {i}" for i in range(200)],
    ],
    ids=["empty", "one kernel", "one name", "one step", "two kernels", "random", "all different"],
)
def test_none_rather_than_invented(sequence):
    answer = steps(run(sequence))
    if sequence == STEP:  # the layers of one step repeat: said, since nothing tells them from steps
        assert answer.source == "repetition"
        assert "only an annotation can tell" in answer.left_out[0]
        return
    assert answer.source == "none"
    assert answer.uses == ()
    assert (answer.step == -1).all()
    assert answer.summary().startswith("none found: no annotated step; ")


def test_layers_within_one_graph_launch_are_no_steps():
    build = TimelineBuilder()
    build.span("cudaGraphLaunch", "host", 0, 9, "graph", launch=7)
    for i, name in enumerate(STEP):
        build.span(name, "stream", 100 + 10 * i, 5, "kernel", launch=7)
    answer = steps(build.build())
    assert answer.source == "none"
    assert "repeat within one launch call, such as the layers in a graph: no steps" in answer.how


def test_graph_launches_are_steps():
    build = TimelineBuilder()
    for step in range(5):
        build.span("cudaGraphLaunch", "host", 10_000 * step, 9, "graph", launch=step)
        for i, name in enumerate(STEP):
            build.span(name, "stream", 10_000 * step + 100 + 10 * i, 5, "kernel", launch=step)
    answer = steps(build.build())
    assert [use.kernels for use in answer.uses] == [len(STEP)] * 5


def test_two_streams_are_put_into_the_order_of_their_calls():
    t = run(STEP * 6, streams=3)
    moved = t.start_ns + np.where(t.on_device(), np.arange(len(t)) * 7919 % 23, 0)
    answer = steps(replace(t, start_ns=moved))
    assert [use.kernels for use in answer.uses] == [len(STEP)] * 6
    assert "in the order of their launch calls" in answer.how


def test_each_device_for_itself_and_copies_beside():
    build = TimelineBuilder()
    for rank in range(2):
        host = build.lane(f"rank {rank} host", "host", process=str(rank))
        stream = build.lane(f"rank {rank} stream", "device", device=f"rank {rank} device 0")
        for i, name in enumerate(STEP * 4):
            at, launch = 100 * i + 7 * rank, 1000 * rank + i
            build.span("launch", host, at, 5, "launch", launch=launch)
            build.span(name, stream, at + 20, 30, "kernel", launch=launch)
        build.span("copy", host, 100 * len(STEP) + 50, 5, "copy", launch=1000 * rank + 900)
        build.span("Memcpy", stream, 100 * len(STEP) + 60, 5, "copy", launch=1000 * rank + 900)
    t = build.build()
    answer = steps(t)
    assert [use.kernels for use in answer.uses] == [2 * len(STEP)] * 4
    assert answer.step[t.spans(name="Memcpy")].tolist() == [1, 1]
    assert told(answer) == slow_steps(t, answer.step)


@pytest.mark.parametrize(
    ("name", "is_step"),
    [
        ("ProfilerStep#12", True),
        ("step 3", True),
        ("train iteration 7", True),
        ("decode_step", True),
        ("Iter-9", True),
        ("batch: 4", True),
        ("Optimizer.step#SGD.step", False),
        ("## optimizer step 3", False),
        ("footstep 3", False),
        ("stepper", False),
        ("layer 3", False),
        ("step 3 of 4", False),
        ("", False),
    ],
)
def test_names_of_steps(name, is_step):
    assert is_step_name(name) is is_step


@pytest.mark.parametrize("numbered", [True, False])
def test_steps_from_ranges(numbered):
    build = TimelineBuilder()
    build.lane("thread 1", "host")
    build.lane("thread 2", "host")
    for step in range(3):
        start = 1000 * step
        name = f"iteration {step + 5}" if numbered else "decode_step"
        build.span(name, "thread 1", start, 900, "range")
        build.span("backward", "thread 2", start + 5, 10, "range")
        for i, thread in enumerate(("thread 1", "thread 2")):
            build.span("launch", thread, start + 10 + i, 5, "launch", launch=10 * step + i)
            build.span(f"k{i}", "stream", start + 500 + 20 * i, 10, "kernel", launch=10 * step + i)
    build.span("unlaunched", "stream", 100, 10, "kernel")
    t = build.build()
    answer = steps(t)
    numbers = (5, 6, 7) if numbered else (0, 1, 2)
    assert answer.source == "annotations"
    assert tuple(use.number for use in answer.uses) == numbers
    assert [use.kernels for use in answer.uses] == [2, 2, 2]
    assert answer.step[t.spans(name="unlaunched")].tolist() == [-1]
    assert answer.step[t.spans(name="backward")].tolist() == list(numbers)
    assert "1 operation in no step" in answer.left_out


@pytest.mark.parametrize("name", odd_timelines())
def test_odd_timelines_have_answers(name):
    t = odd_timelines()[name]
    answer = steps(t)
    assert json.loads(json.dumps(answer.as_dict()))["source"] == answer.source
    assert len(answer.step) == len(t)
    assert str(answer).startswith("Steps: ")
    assert (answer.source == "none") == (name != "host only")


@pytest.mark.parametrize("seed", range(8))
def test_the_period_is_the_shortest_that_repeats_whole(seed):
    """Beside a slow search over every distance."""
    choose = random.Random(seed)
    unit = [choose.randrange(12) for _ in range(choose.randint(3, 40))]
    sequence = np.array(unit * choose.randint(4, 9))
    expected = next(d for d in range(1, len(sequence)) if (sequence[:-d] == sequence[d:]).all())
    found = find(sequence, np.zeros(len(sequence), dtype=np.int64))
    assert found.length == expected
    assert found.agreement == 1
    assert found.starts.tolist() == list(range(0, len(sequence), expected))


@real
@pytest.mark.parametrize(
    ("name", "expected"),
    [("kineto_nanosecond_decimals", 5), ("kineto_cuda_graphs_four_streams", 6)],
)
def test_repetition_finds_the_annotated_steps_of_real_traces(name, expected):
    t = open_timeline(CASES / f"{name}.json.gz")
    annotated = steps(t)
    assert [len(annotated.uses), annotated.source] == [expected, "annotations"]
    assert told(annotated) == slow_steps(t, t.step)
    bare = replace(
        t.with_steps(np.full(len(t), -1)), names=tuple(n.replace("ProfilerStep#", "around ") for n in t.names)
    )
    found = steps(bare)
    assert found.source == "repetition"
    assert [use.launches for use in found.uses] == [use.launches for use in annotated.uses]
    # Launched kernels belong to the same steps, counted from 0 and not from the profiler's number.
    own = t.launches()[:, 1]
    own = own[(t.category[own] == t.category[t.spans(category="kernel")[0]]) & (t.step[own] >= 0)]
    apart = Counter((found.step[own] - (t.step[own] - min(t.steps))).tolist())
    assert apart.most_common(1)[0][0] == 0
    assert apart[0] > 0.97 * len(own)


def test_equal_steps_have_no_slowest_and_one_step_is_told_plainly():
    build = TimelineBuilder()
    for step in range(3):
        build.span("k", "stream 7", 1000 * step, 100, "kernel", step=step)
    answer = steps(build.build())
    assert (answer.slowest, answer.fastest) == (None, None)
    assert "slowest" not in str(answer)
    assert all(answer.table().head)
    one = TimelineBuilder()
    one.span("k", "stream 7", 0, 100, "kernel", step=0)
    assert steps(one.build()).summary() == "1 step (from the annotations in the timeline); it takes 100 ns"


def test_steps_that_overlap_are_said():
    build = TimelineBuilder()
    for step, start in enumerate((0, 90, 300)):
        build.span("k", "stream 7", start, 100, "kernel", step=step)
    assert any(
        line.startswith("1 step that starts before the one before") for line in steps(build.build()).left_out
    )
