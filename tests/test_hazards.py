"""The verdict: all sixteen wirings of the deferred step, and schedules made for one rule each."""

import itertools
from dataclasses import dataclass, fields, replace

import pytest

from flashnorm_lab import hazards, schedule
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES, Copy, Record, Synchronize, Wait

# What each edge alone orders, worked out by hand: (kind, buffer, first, second, steps apart).
ORDERED_BY = {
    "fork_matrix": {("RAW", "x", "copy x", "projection", 0), ("WAR", "y", "post_scale", "projection", 1)},
    "fork_vector": {("RAW", "x", "copy x", "inv_rms", 0), ("WAR", "r", "post_scale", "inv_rms", 1)},
    "join_matrix": {("RAW", "y", "projection", "post_scale", 0), ("WAR", "x", "projection", "copy x", 1)},
    "join_vector": {("RAW", "r", "inv_rms", "post_scale", 0), ("WAR", "x", "inv_rms", "copy x", 1)},
}
WIRINGS = [drop for size in range(5) for drop in itertools.combinations(EDGES, size)]


def found(built, repeats=2):
    return {(h.kind, h.buffer, h.first, h.second, h.distance): h.repair for h in hazards.find(built, repeats)}


def test_there_are_sixteen_wirings():
    assert len(WIRINGS) == 16


@pytest.mark.parametrize("drop", WIRINGS, ids=lambda d: "+".join(d) or "none")
def test_every_wiring_has_exactly_its_hazards_and_their_repairs(drop):
    # Each of the eight conflicts is ordered by one edge and no path around it, so they simply add up.
    expected = {conflict: edge for edge in drop for conflict in ORDERED_BY[edge]}
    built = schedule.deferred(1, 8, 4).without(*drop)
    assert found(built) == expected
    assert found(built, repeats=5) == expected
    assert found(schedule.deferred(3, 5, 7, spin=3).without(*drop)) == expected


@pytest.mark.parametrize("drop", WIRINGS, ids=lambda d: "+".join(d) or "none")
def test_each_repair_repairs(drop):
    built = schedule.deferred(1, 8, 4).without(*drop)
    for hazard in hazards.find(built):
        mended = hazards.find(built.with_edges(built.edges | {hazard.repair}))
        key = (hazard.kind, hazard.buffer, hazard.first, hazard.second, hazard.distance)
        assert key not in {(h.kind, h.buffer, h.first, h.second, h.distance) for h in mended}


@pytest.mark.parametrize(
    "built",
    [schedule.sequential(1, 8, 4), schedule.fused(1, 8, 4), schedule.deferred(1, 8, 4, streams="one")],
    ids=lambda s: s.name,
)
def test_one_stream_has_no_hazards(built):
    assert hazards.find(built) == ()


def test_one_step_alone_hides_what_crosses_into_the_next():
    built = schedule.deferred(1, 8, 4).without("fork_matrix")
    assert set(found(built, repeats=1)) == {("RAW", "x", "copy x", "projection", 0)}


def test_waiting_for_main_each_step_covers_a_missing_fork_but_not_a_missing_join():
    # The host writes x itself and waits for main, which is behind the last reader of y and r.
    host = schedule.deferred(1, 8, 4, io="host")
    assert found(host) == {}
    assert found(host.without("fork_matrix", "fork_vector")) == {}
    assert found(host.without("join_matrix")) == {
        ("RAW", "y", "projection", "post_scale", 0): "join_matrix",
        ("WAR", "x", "projection", "host write of x", 1): "join_matrix",
    }


def test_torch_writes_x_and_reads_z_on_main():
    built = schedule.deferred(1, 8, 4, io="torch")
    assert found(built) == {}
    assert found(built.without("fork_vector", "join_matrix")) == {
        ("RAW", "x", "torch writes x", "inv_rms", 0): "fork_vector",
        ("WAR", "r", "post_scale", "inv_rms", 1): "fork_vector",
        ("RAW", "y", "projection", "post_scale", 0): "join_matrix",
        ("WAR", "x", "projection", "torch writes x", 1): "join_matrix",
    }


def with_steps(*steps):
    """The fused step's buffers with steps of the test's own."""
    built = schedule.fused(1, 8, 4)
    events = frozenset(s.event for s in steps if isinstance(s, Record | Wait))
    return replace(built, all_steps=steps, all_edges=tuple(sorted(events)), edges=events)


WRITE = Copy("write", "a", "xs", "x")
OVERWRITE = Copy("overwrite", "b", "xs", "x")


def test_waw_with_a_repair_in_words_where_the_schedule_has_no_edge_for_it():
    hazard = hazards.find(with_steps(WRITE, OVERWRITE), repeats=1)[0]
    assert (hazard.kind, hazard.buffer) == ("WAW", "x")
    assert hazard.repair == "an event recorded on a after write, which b waits for before overwrite"


def test_waiting_for_an_event_that_was_never_recorded_orders_nothing():
    assert len(hazards.find(with_steps(Wait("e", "b"), WRITE, OVERWRITE), repeats=1)) == 1


def test_a_wait_binds_to_the_latest_record_before_it_in_the_hosts_order():
    early = with_steps(Record("e", "a"), WRITE, Wait("e", "b"), OVERWRITE)
    assert len(hazards.find(early, repeats=1)) == 1
    again = with_steps(Record("e", "a"), WRITE, Record("e", "a"), Wait("e", "b"), OVERWRITE)
    assert hazards.find(again, repeats=1) == ()
    late = with_steps(WRITE, Wait("e", "b"), OVERWRITE, Record("e", "a"))
    assert len(hazards.find(late, repeats=1)) == 1


def test_order_is_transitive_through_a_third_stream():
    through = with_steps(WRITE, Record("e", "a"), Wait("e", "c"), Record("f", "c"), Wait("f", "b"), OVERWRITE)
    assert hazards.find(through, repeats=1) == ()


@pytest.mark.parametrize("stream", ["a", None])
def test_a_host_that_waits_orders_what_it_issues_later(stream):
    assert hazards.find(with_steps(WRITE, Synchronize(stream), OVERWRITE), repeats=1) == ()
    assert len(hazards.find(with_steps(Synchronize(stream), WRITE, OVERWRITE), repeats=1)) == 1
    assert len(hazards.find(with_steps(WRITE, Synchronize("b"), OVERWRITE), repeats=1)) == 1


@dataclass(frozen=True)
class Parts(schedule.Schedule):
    """Two copies that write parts of x, as views with offsets would."""

    parts: tuple[tuple[int, int], ...] = ()

    def accesses(self, step):
        if not isinstance(step, Copy):
            return ()
        start, stop = self.parts[[s for s in self.steps if isinstance(s, Copy)].index(step)]
        return (schedule.Access("x", start, stop, writes=True),)


@pytest.mark.parametrize(
    ("parts", "overlap"),
    [
        (((0, 16), (16, 32)), None),
        (((0, 17), (16, 32)), (16, 17)),
        (((8, 12), (0, 32)), (8, 12)),
        (((0, 32), (8, 12)), (8, 12)),
        (((4, 4), (0, 32)), None),
    ],
)
def test_only_overlapping_bytes_conflict(parts, overlap):
    base = with_steps(WRITE, OVERWRITE)
    built = Parts(**{f.name: getattr(base, f.name) for f in fields(base)}, parts=parts)
    assert [(h.start, h.stop) for h in hazards.find(built, repeats=1)] == ([overlap] if overlap else [])


def test_a_write_of_a_part_leaves_the_rest_of_an_older_write_in_view():
    third = Copy("third", "c", "xs", "x")
    base = with_steps(WRITE, Record("e", "a"), Wait("e", "b"), OVERWRITE, third)
    parts = ((0, 32), (0, 16), (0, 32))
    built = Parts(**{f.name: getattr(base, f.name) for f in fields(base)}, parts=parts)
    found = {(h.first, h.second, h.start, h.stop) for h in hazards.find(built, repeats=1)}
    assert found == {("write", "third", 16, 32), ("overwrite", "third", 0, 16)}


def test_rows_of_a_per_step_buffer_do_not_conflict():
    assert hazards.find(with_steps(Copy("in", "a", "x", "xs")), repeats=4) == ()
    other = with_steps(Copy("one", "a", "x", "xs"), Copy("two", "b", "x", "xs"))
    assert [(h.kind, h.distance) for h in hazards.find(other, repeats=4)] == [("WAW", 0)]


def test_ordered_tells_what_the_edges_enforce_within_a_step():
    whole = schedule.deferred(1, 8, 4)
    assert hazards.ordered(whole, "projection", "post_scale")
    assert not hazards.ordered(whole, "projection", "inv_rms")
    assert not hazards.ordered(whole, "post_scale", "projection")
    assert not hazards.ordered(whole.without("join_matrix"), "projection", "post_scale")
    with pytest.raises(LabError, match="'proj'"):
        hazards.ordered(whole, "proj", "post_scale")


def test_a_hazard_explains_itself_with_both_launches_the_buffer_and_the_repair():
    (raw, _) = hazards.find(schedule.deferred(1, 8, 4).without("join_matrix"))
    for word in ("RAW", "projection", "post_scale", " y", "join_matrix", "main", "matrix"):
        assert word in raw.explain()
    assert (raw.start, raw.stop) == (0, 16)
    assert raw.as_dict()["repair"] == "join_matrix"


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_repeats_must_be_a_whole_number(repeats):
    with pytest.raises(LabError, match="repeats="):
        hazards.find(schedule.fused(1, 8, 4), repeats)
