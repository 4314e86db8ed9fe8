"""Figures of a timeline, each against a value worked out by hand."""

import json

import numpy as np
import pytest
from test_timeline import ZERO, race_timeline

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder, measure
from flashnorm_lab.timeline.metrics import LaneUse, intersection, length, union


def by_hand():
    """Window 0 to 1000 ns. Matrix works in [100,300), [250,400), [600,800); vector in [200,260), [700,900).

    Unions: matrix 300 + 200 = 500, vector 60 + 200 = 260. Both: [200,260) and [700,800) = 160.
    """
    build = TimelineBuilder()
    build.lane("host", "host")
    build.span("step", "host", 0, 1000, "range", step=0)
    build.span("a", "host", 0, 20, "launch", launch=0, step=0)
    build.span("b", "host", 30, 40, "launch", launch=1, step=0)
    build.span("c", "host", 80, 30, "launch", launch=2, step=0)
    build.span("a", "host", 500, 50, "launch", launch=3, step=1)
    build.span("copy", "host", 560, 10, "launch", launch=4, step=1)
    build.span("event", "host", 575, 5, "record", step=1)
    build.span("done", "host", 900, 100, "synchronize", step=1)
    build.span("a", "matrix", 100, 200, "kernel", launch=0, step=0)
    build.span("b", "matrix", 250, 150, "kernel", launch=1, step=0)
    build.span("c", "vector", 200, 60, "kernel", launch=2, step=0)
    build.span("a", "matrix", 600, 200, "kernel", launch=3, step=1)
    build.span("copy", "vector", 700, 200, "copy", launch=4, step=1)
    build.span("event", "vector", 400, 300, "wait", step=1)
    return build.build()


def test_every_figure_by_hand():
    m = measure(by_hand())
    assert m.window_ns == 1000
    assert (m.launches, m.steps, m.launches_per_step) == (4, 2, 2.0)  # the copy's call is not a launch
    assert (m.host_ns_total, m.host_ns_mean, m.host_ns_median) == (140, 35.0, 35.0)
    assert (m.delays, m.delays_negative) == (5, 0)  # 100, 220, 120, 100, 140
    assert (m.delay_ns_mean, m.delay_ns_median, m.delay_ns_min, m.delay_ns_max) == (136.0, 120.0, 100, 220)
    assert m.lanes == {
        "host": LaneUse(6, 155, 845, 0.155),
        "matrix": LaneUse(3, 500, 500, 0.5),
        "vector": LaneUse(2, 260, 740, 0.26),
    }
    assert m.units == ("matrix", "vector")
    assert m.both_busy_ns == 160
    assert (m.both_share_of_first, m.both_share_of_second, m.both_share_of_window) == (
        160 / 500,
        160 / 260,
        0.16,
    )


def test_a_window_cuts_what_crosses_it():
    m = measure(by_hand(), window=(250, 650))
    assert m.window_ns == 400
    assert m.lanes["matrix"] == LaneUse(3, 200, 200, 0.5)  # [250,400) and [600,650)
    assert m.lanes["vector"] == LaneUse(1, 10, 390, 0.025)
    assert m.both_busy_ns == 10
    assert (m.launches, m.delays) == (1, 2)  # a at 500; b started at 250, a at 600
    nothing = measure(by_hand(), window=(5, 5))
    assert (nothing.window_ns, nothing.both_busy_ns, nothing.both_share_of_window) == (0, 0, None)
    assert nothing.lanes["matrix"].busy_share is None


def test_steps_choose_spans():
    m = measure(by_hand(), steps=[1])
    assert (m.launches, m.steps) == (1, 1)
    assert m.window_ns == 600  # wait from 400, synchronize until 1000
    assert m.lanes["matrix"].busy_ns == 200
    with pytest.raises(LabError, match=r"no span belongs to steps \[7\]; this timeline has steps 0 to 1"):
        measure(by_hand(), steps=[7])


def test_any_two_lanes():
    m = measure(by_hand(), units=("host", "matrix"))
    assert m.both_busy_ns == 10  # host [80,110) and matrix from 100; nothing else meets
    with pytest.raises(LabError, match="no lane 'tensor'"):
        measure(by_hand(), units=("matrix", "tensor"))
    with pytest.raises(LabError, match="ends before it starts"):
        measure(by_hand(), window=(5, 4))


def test_absolute_times_do_not_cost_a_nanosecond():
    small, large = measure(race_timeline(3, zero=0)), measure(race_timeline(3, zero=ZERO))
    assert small == large
    assert large.launches_per_step == 3


def test_one_stream_and_nothing_at_all():
    build = TimelineBuilder()
    build.span("a", "main", 5, 10, "kernel")
    m = measure(build.build())
    assert (m.units, m.both_busy_ns, m.launches_per_step, m.delay_ns_min) == (None, None, None, None)
    assert m.lanes["main"] == LaneUse(1, 10, 0, 1.0)
    empty = measure(TimelineBuilder().build())
    assert (empty.window_ns, empty.launches, empty.lanes) == (0, 0, {})
    assert "launches" in str(empty)


def test_clocks_that_disagree_are_said():
    build = TimelineBuilder()
    build.span("a", "host", 100, 10, "launch", launch=0)
    build.span("a", "main", 60, 10, "kernel", launch=0)
    m = measure(build.build())
    assert (m.delays_negative, m.delay_ns_min) == (1, -40)
    assert "1 negative: the clocks disagree" in str(m)


def test_as_dict_and_text():
    m = measure(by_hand())
    assert json.loads(json.dumps(m.as_dict()))["lanes"]["vector"]["busy_ns"] == 260
    assert m.as_dict()["units"] == ["matrix", "vector"]
    text = str(m)
    assert "4 (2 a step), 2 steps" in text
    assert "median 35 ns, mean 35 ns, together 140 ns" in text
    assert "both busy 160 ns: 32.0 % of matrix's busy time, 61.5 % of vector's, 16.0 % of the window" in text


@pytest.mark.parametrize("seed", range(20))
def test_unions_against_counting_nanoseconds(seed):
    random = np.random.default_rng(seed)

    def some():
        start = random.integers(0, 60, random.integers(0, 9))
        return start, start + random.integers(0, 20, len(start))

    def count(start, end):
        return {
            ns
            for s, e in zip(start.tolist(), end.tolist(), strict=True)
            for ns in range(max(s, 10), min(e, 70))
        }

    a, b = some(), some()
    ua, ub = union(*a, 10, 70), union(*b, 10, 70)
    assert length(ua) == len(count(*a))
    assert length(intersection(ua, ub)) == len(count(*a) & count(*b))
    assert (np.diff(ua.ravel()) > 0).all()
