"""The level of detail against a plain count of every span, on many small timelines made at random."""

from itertools import pairwise

import numpy as np
import pytest

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import Lane, Timeline, TimelineBuilder
from flashnorm_lab.timeline.detail import ARROWS, Detail
from flashnorm_lab.timeline.nesting import depths, in_order

BASE = 1_700_000_000_123_456_789


def at_random(seed, spans=120, nested=None, long=1 << 20):
    """A timeline of three lanes; nested: as calls nest; else spans that overlap as they like."""
    rng = np.random.default_rng(seed)
    t = TimelineBuilder()
    lanes = [Lane("thread", "host"), Lane("stream 7"), Lane("idle"), Lane("stream 9")]
    for lane in lanes:
        t.lane(lane.name, lane.kind)
    nested = bool(rng.integers(2)) if nested is None else nested
    for lane in (lanes[0], lanes[1], lanes[3]):
        holes = [(0, long)]
        for _ in range(spans // 3):
            low, high = holes[rng.integers(len(holes))]
            if nested:
                a, b = sorted(rng.integers(low, high + 1, 2).tolist())
                holes += [(a, b)]
                holes = [hole for hole in holes if hole != (low, high)] + [(low, a), (b, high)]
            else:
                a = int(rng.integers(0, long))
                b = a + int(rng.choice([0, 1, 7, 300, 40_000]) * rng.random())
            outcome = str(rng.choice(["", "", "fresh", "stale"])) if lane.kind == "device" else ""
            category = "launch" if lane.kind == "host" else "kernel"
            launch = int(rng.integers(0, 30)) if rng.random() < 0.5 else -1
            t.span(f"name {rng.integers(9)}", lane, BASE + a, b - a, category, launch=launch, outcome=outcome)
    for _ in range(10):
        s, e = rng.integers(0, len(t), 2).tolist()
        t.edge(s, e, "edge", kind=str(rng.choice(["order", "flow"])))
    for _ in range(int(rng.integers(0, 20))):
        t.counter(f"counter {rng.integers(2)}", BASE + int(rng.integers(0, long)), float(rng.normal()))
    return t.build()


def in_view(t, span, t0, t1):
    start, end = int(t.start_ns[span]), int(t.end_ns[span])
    return start < t1 and (end > t0 or start >= t0)


def check(detail, tile, t0, t1, pixels, lanes):
    """Every span in view is drawn or merged, exactly once and by the rule; and the sums are right."""
    t = detail.timeline
    wanted = [i for i in range(len(t)) if in_view(t, i, t0, t1) and t.lane[i] in lanes]
    drawn = {i: int(row) for i, row in zip(tile.span.tolist(), tile.span_row.tolist(), strict=True)}
    assert len(drawn) == len(tile.span)
    members = {k: [] for k in range(len(tile.cell_row))}
    for i in wanted:
        row = detail.row_of(i)
        assert detail.row_lane[row] == t.lane[i]
        place = tile.rows.tolist().index(row)
        cells = [
            k
            for k in range(len(tile.cell_row))
            if tile.cell_row[k] == place
            and tile.cell_start_ns[k] <= t.start_ns[i]
            and t.end_ns[i] <= tile.cell_end_ns[k]
            and i not in drawn
        ]
        if i in drawn:
            assert drawn[i] == place
        else:
            assert len(cells) == 1, (i, cells)
            assert t.duration_ns[i] * pixels < (t1 - t0) + pixels  # never a span of more than a pixel
            members[cells[0]].append(i)
    assert len(wanted) == tile.count == detail.count(t0, t1, lanes)
    assert set(drawn) | {i for some in members.values() for i in some} == set(wanted)
    for k, some in members.items():
        lengths = t.duration_ns[some]
        assert len(some) == tile.cell_count[k] >= 2
        assert int(lengths.sum()) == tile.cell_busy_ns[k]
        assert t.duration_ns[tile.cell_longest[k]] == lengths.max()
        assert tile.cell_longest[k] in some
        assert tile.cell_outcome[k] == t.outcome[some].max()
        pixel = {int((max(int(t.start_ns[i]), t0) - t0) * pixels // (t1 - t0)) for i in some}
        assert max(pixel) - min(pixel) <= 1  # the border between two pixels is found in float64
        assert 0 <= tile.cell_share[k] <= 1
    hidden = [i for i in range(len(t)) if in_view(t, i, t0, t1) and t.lane[i] not in lanes]
    assert tile.hidden == len(hidden)


@pytest.mark.parametrize("seed", range(60))
def test_every_span_is_drawn_or_counted_in_one_cell(seed):
    rng = np.random.default_rng(1000 + seed)
    t = at_random(seed)
    detail = Detail(t)
    low, high = detail.extent
    for _ in range(4):
        t0, t1 = sorted((low - 50 + rng.integers(0, high - low + 100, 2)).tolist())
        pixels = int(rng.choice([1, 3, 50, 700]))
        lanes = [0, 1, 3] if rng.random() < 0.7 else [1]
        check(detail, detail.view(t0, t1 + 1, pixels, lanes), t0, t1 + 1, pixels, lanes)
    check(detail, detail.view(low, high, 40), low, high, 40, [0, 1, 2, 3])


@pytest.mark.parametrize("seed", range(40))
def test_no_two_spans_of_a_row_overlap_and_calls_stand_below_what_they_are_in(seed):
    t = at_random(seed)
    detail = Detail(t)
    rows = {}
    for i in range(len(t)):
        rows.setdefault(detail.row_of(i), []).append(i)
    for spans in rows.values():
        spans.sort(key=lambda i: (t.start_ns[i], t.end_ns[i]))
        assert all(t.end_ns[a] <= t.start_ns[b] for a, b in pairwise(spans))
    assert sorted(rows) == list(range(len(detail.row_lane)))
    nested = at_random(seed, nested=True)
    detail = Detail(nested)
    order = in_order(nested.lane, nested.start_ns, nested.duration_ns).tolist()
    for place, i in enumerate(order):
        around = sum(
            nested.lane[j] == nested.lane[i] and nested.start_ns[j] <= nested.start_ns[i] < nested.end_ns[j]
            for j in order[:place]
        )
        assert detail.row_depth[detail.row_of(i)] == around


def test_a_span_that_ends_a_little_late_does_not_move_what_follows_it():
    start = np.array([0, 5, 10, 20])
    end = np.array([10, 11, 20, 30])  # the second one was rounded past the end of the first, which it is in
    assert depths(start, end).tolist() == [0, 1, 0, 0]


def test_spans_of_no_length_stand_below_what_is_open_and_keep_no_row_busy():
    start = np.array([0, 3, 3, 3, 10])
    end = np.array([10, 7, 3, 3, 10])
    assert depths(start, end).tolist() == [0, 1, 2, 2, 0]


@pytest.mark.parametrize("seed", range(20))
def test_arrows_join_spans_that_are_drawn_and_the_others_are_counted(seed):
    t = at_random(seed)
    detail = Detail(t)
    low, high = detail.extent
    pairs = [(s, e, k + 1) for s, e, k in zip(t.edge_source, t.edge_target, t.edge_kind, strict=True)]
    pairs += [(s, e, 0) for s, e in t.launches()]
    for t0, t1, pixels in ((low, high, 900), (low, high, 60), (low + 5000, low + 300_000, 500)):
        tile = detail.view(t0, t1, pixels)
        drawn = set(tile.span.tolist())
        both = [p for p in pairs if in_view(t, p[0], t0, t1) and in_view(t, p[1], t0, t1)]
        found = list(zip(tile.arrow_source, tile.arrow_target, tile.arrow_kind, strict=True))
        assert sorted(found) == sorted(p for p in both if {int(p[0]), int(p[1])} <= drawn)
        assert tile.arrows_left_out == len(both) - len(found)
        few = detail.view(t0, t1, pixels, most_arrows=3)
        assert len(few.arrow_kind) == min(3, len(found))
        assert few.arrows_left_out == len(both) - len(few.arrow_kind)
        only = detail.view(t0, t1, pixels, arrows=("order",))
        assert set(only.arrow_kind.tolist()) <= {ARROWS.index("order")}


@pytest.mark.parametrize("seed", range(20))
def test_counters_keep_least_greatest_and_last_of_each_pixel(seed):
    t = at_random(seed)
    detail = Detail(t)
    low, high = detail.extent
    t0, t1, pixels = low + (high - low) // 3, high, 7
    tile = detail.view(t0, t1, pixels)
    expected = {}
    for place, name in enumerate(detail.counters):
        mine = [i for i in np.argsort(t.counter_ns, kind="stable") if t.counter_name[i] == name]
        before = [i for i in mine if t.counter_ns[i] < t0]
        for i in before[-1:] + [i for i in mine if t0 <= t.counter_ns[i] < t1]:
            at = int(t.counter_ns[i])
            key = (place, -1 if at < t0 else (at - t0) * pixels // (t1 - t0))
            expected.setdefault(key, []).append(float(t.counter_value[i]))
    found = {
        (int(c), int(p)): (low_, high_, last)
        for c, p, low_, high_, last in zip(
            tile.counter, tile.counter_px, tile.counter_low, tile.counter_high, tile.counter_last, strict=True
        )
    }
    assert found == {key: (min(v), max(v), v[-1]) for key, v in expected.items()}


@pytest.mark.parametrize("seed", range(10))
def test_select_and_search_find_what_a_plain_look_finds(seed):
    t = at_random(seed)
    detail = Detail(t)
    low, _ = detail.extent
    for t0, t1 in ((low, low + 1), (low + 1000, low + 400_000)):
        plain = [i for i in range(len(t)) if in_view(t, i, t0, t1)]
        assert detail.select(t0, t1).tolist() == plain
        assert detail.select(t0, t1, ["stream 7"]).tolist() == [i for i in plain if t.lane[i] == 1]
    hits = detail.search("NAME 3")
    assert sorted(hits.tolist()) == [i for i in range(len(t)) if t.names[t.name[i]] == "name 3"]
    assert (np.diff(t.start_ns[hits]) >= 0).all()
    assert detail.search("name 3", limit=2).tolist() == hits[:2].tolist()
    assert len(detail.search("no such name")) == len(detail.search("")) == 0


def test_the_overview_says_how_busy_the_fullest_row_is():
    t = TimelineBuilder()
    t.span("a", "host", 0, 50, "range")
    t.span("b", "host", 10, 10, "launch")
    t.span("c", "main", 75, 25, "kernel")
    t.span("end", "main", 200, 0, "mark")
    share = Detail(t.build()).overview(4, 0, 100)
    assert share.tolist() == [[1, 1, 0, 0], [0, 0, 0, 1]]


def test_times_far_apart_stay_exact():
    """Half of the events at time zero, the other half in 2026: no sum may leave int64, no float round."""
    t = TimelineBuilder()
    t.span("zero", "main", 0, 1, "kernel")
    t.span("now", "main", BASE, 3, "kernel")
    t.span("next", "main", BASE + 4, 3, "kernel")
    detail = Detail(t.build())
    tile = detail.view(*detail.extent, 1500)
    assert tile.count == 3
    assert tile.cell_start_ns.tolist() == [BASE]
    assert tile.cell_end_ns.tolist() == [BASE + 7]
    near = detail.view(BASE, BASE + 10, 10)
    assert near.span.tolist() == [1, 2]


def test_a_timeline_of_nothing_and_one_of_counters_alone():
    detail = Detail(TimelineBuilder().build())
    assert detail.extent == (0, 1)
    assert detail.view(0, 1, 100).count == 0
    assert detail.overview(10).shape == (0, 10)
    t = TimelineBuilder()
    t.counter("memory", 5, 1.5)
    detail = Detail(t.build())
    assert detail.extent == (5, 6)
    assert detail.view(5, 6, 100).counter_last.tolist() == [1.5]


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda d: d.view(5, 5, 10), "the view from 5 to 5 ns is empty"),
        (lambda d: d.view(0, 5, 0), "pixels=0: give a number from 1 to"),
        (lambda d: d.view(0, 5, 10, ["stream 8"]), "there is no lane 'stream 8'"),
        (lambda d: d.view(0, 5, 10, [4]), "there is no lane 4; this timeline has lanes 0 to 3"),
        (
            lambda d: d.view(0, 5, 10, arrows=("launch", "wait")),
            "arrows 'wait' are not among launch, order, flow",
        ),
    ],
)
def test_what_cannot_be_is_told_in_one_line(ask, told):
    with pytest.raises(LabError) as problem:
        ask(Detail(at_random(1)))
    assert str(problem.value).startswith(told)
    assert "\n" not in str(problem.value)


def test_what_is_prepared_is_columns_of_few_bytes():
    """No list of objects: what is kept is at most 60 bytes a span; a picture is as long as its pixels."""
    count = 200_000
    rng = np.random.default_rng(3)
    start = np.sort(rng.integers(0, 10**9, count))
    zero = np.zeros(count, dtype=np.int64)
    t = Timeline(
        names=("a",), lanes=(Lane("main"),), name=zero, lane=zero, start_ns=start, duration_ns=zero + 700,
        launch=zero - 1, category=zero, step=zero - 1, outcome=zero,
        edge_source=zero[:0], edge_target=zero[:0], edge_name=zero[:0],
    )  # fmt: skip
    detail = Detail(t)
    tile = detail.view(*detail.extent, 1500)
    assert tile.count == count
    assert len(tile.span) + len(tile.cell_row) <= 1500 * len(detail.row_lane)
    kept = [v for v in vars(detail).values() if isinstance(v, np.ndarray)]
    assert sum(v.nbytes for v in kept) <= 60 * count
