"""The race on the OpenCL device, with the interleaving forced, so that no verdict depends on luck."""

import contextlib
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from flashnorm_lab import hazards, outcomes, race, ranges, schedule
from flashnorm_lab.devices import base, opencl
from flashnorm_lab.devices.base import Force, check_force
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES, Copy

# What each hazard gives when it is forced, worked out by hand. Whether x is fetched ahead; the missing edge;
# the hazard; the force; and for each step of a group, how many steps later than its own y and r are from.
#
# In the deferred step no z is ever made from a later x: post_scale of step t comes before copy x of step t+1
# on main. So where y (or r) is overwritten before post_scale reads it, the kernel that does it has run before
# its x came: it writes the same numbers once more, and its own step is the one that comes out stale. Where x
# is overwritten before it is read, post_scale has taken the old y (or r) before. With x ahead all of this is
# different.
FORCED = [
    (False, "fork_matrix", ("RAW", "x"), "copy x:projection", [(-1, 0)]),
    (False, "fork_matrix", ("WAR", "y"), "post_scale:projection+1", [(0, 0), (-1, 0)]),
    (False, "fork_vector", ("RAW", "x"), "copy x:inv_rms", [(0, -1)]),
    (False, "fork_vector", ("WAR", "r"), "post_scale:inv_rms+1", [(0, 0), (0, -1)]),
    (False, "join_matrix", ("RAW", "y"), "projection:post_scale", [(-1, 0)]),
    (False, "join_matrix", ("WAR", "x"), "projection:copy x+1", [(-1, 0), (0, 0)]),
    (False, "join_vector", ("RAW", "r"), "inv_rms:post_scale", [(0, -1)]),
    (False, "join_vector", ("WAR", "x"), "inv_rms:copy x+1", [(0, -1), (0, 0)]),
    (True, "fork_matrix", ("WAR", "x"), "inv_rms:copy x+1", [(0, 1), (0, 0)]),
    (True, "fork_matrix", ("WAR", "y"), "post_scale:projection+1", [(1, 0), (0, 0)]),
    (True, "fork_matrix", ("WAR", "r"), "post_scale:inv_rms+1", [(1, 1), (0, 0)]),
    (True, "fork_vector", ("RAW", "x"), "copy x:inv_rms", [(0, -1)]),
    (True, "fork_vector", ("WAR", "r"), "post_scale:inv_rms+1", [(0, 0), (0, -1)]),
    (True, "join_matrix", ("RAW", "y"), "projection:post_scale", [(-1, 0)]),
    (True, "join_vector", ("RAW", "r"), "inv_rms:post_scale", [(0, -1)]),
    (True, "join_vector", ("WAR", "x"), "inv_rms:copy x+1", [(0, -1), (0, 0)]),
]


def forced_ids(case):
    ahead, edge, (kind, buffer), *_ = case
    return f"{edge}{' ahead' * ahead} {kind} {buffer}"


def wired(ahead, *dropped, shape=(1, 64, 48)):
    built = schedule.deferred(*shape)
    return (race.prefetched(built) if ahead else built).without(*dropped)


def told(y, r):
    """The label and the source of a result of these contents."""
    label = "fresh" if (y, r) == (0, 0) else "early" if max(y, r) > 0 else "stale"
    steps = [f"t{offset:+}" if offset else "t" for offset in (y, r)]
    return label, "" if label == "fresh" else "y of step {}, r of step {}".format(*steps)


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


@pytest.mark.parametrize(
    "built",
    [
        schedule.sequential(2, 65, 33),
        schedule.fused(2, 65, 33),
        schedule.deferred(2, 65, 33),
        schedule.deferred(2, 65, 33, streams="one"),
        schedule.deferred(2, 65, 33, spin=1000),
    ],
    ids=lambda s: s.name,
)
def test_a_schedule_without_hazards_is_fresh_in_every_step(device, built):
    result = race.run(device, built, steps=20)
    assert result.hazards == ()
    assert result.counts == {"fresh": 20, "stale": 0, "torn": 0, "early": 0}


@pytest.mark.parametrize(
    ("edge", "hold", "until", "source"),
    [
        ("join_matrix", "projection", "post_scale", "y of step t-1, r of step t"),
        ("join_vector", "inv_rms", "post_scale", "y of step t, r of step t-1"),
        ("fork_matrix", "copy x", "projection", "y of step t-1, r of step t"),
        ("fork_vector", "copy x", "inv_rms", "y of step t, r of step t-1"),
    ],
)
def test_the_worst_case_of_each_missing_edge_is_stale_in_every_step(device, edge, hold, until, source):
    built = schedule.deferred(1, 64, 48).without(edge)
    assert race.worst_case(built) == Force(hold, until)
    result = race.run(device, built, steps=12, force="worst")
    assert result.counts == {"fresh": 0, "stale": 12, "torn": 0, "early": 0}
    assert {o.source for o in result.outcomes} == {source}
    # Elements near zero are within rounding of both values and count as fresh.
    assert all(o.stale_share > 0.9 and (o.mask != outcomes.NEITHER).all() for o in result.outcomes)


def test_the_timeline_marks_the_read_that_was_stale(device):
    result = race.run(device, schedule.deferred(1, 64, 48).without("join_matrix"), steps=3, force="worst")
    frame = result.timeline.frame()
    marked = frame[frame.outcome != ""]
    assert list(marked.name) == ["post_scale"] * 3
    assert set(marked.outcome) == {"stale"}
    assert list(marked.step) == [0, 1, 2]


@pytest.mark.parametrize("io", schedule.IO)
def test_every_worst_case_can_be_forced(io):
    found = {}
    for size in range(5):
        for drop in itertools.combinations(EDGES, size):
            built = schedule.deferred(1, 64, 48, io=io).without(*drop)
            found[drop] = race.worst_case(built)
            assert check_force(built, found[drop]) == found[drop]
    assert found["join_matrix",] == Force("projection", "post_scale")
    assert (found["fork_vector",] is None) == (io != "stream")  # x comes from the host, or from torch


def test_without_a_hazard_there_is_no_worst_case(device):
    assert race.worst_case(schedule.deferred(1, 64, 48)) is None
    result = race.run(device, schedule.deferred(1, 64, 48), steps=4, force="worst")
    assert result.force is None
    assert result.counts["fresh"] == 4


def test_the_table_names_every_hazard_there_is():
    for ahead, edge in itertools.product((False, True), EDGES):
        forces = race.forces(wired(ahead, edge))
        found = {(h.kind, h.buffer): str(force) for h, force in forces.items()}
        assert found == {case[2]: case[3] for case in FORCED if case[:2] == (ahead, edge)}
        assert set(forces) == set(hazards.find(wired(ahead, edge)))


@pytest.mark.parametrize("case", FORCED, ids=map(forced_ids, FORCED))
def test_every_hazard_is_made_to_happen_and_its_repair_holds_under_the_same_force(device, case):
    ahead, edge, (kind, buffer), force, offsets = case
    built = wired(ahead, edge)
    (hazard,) = [h for h in hazards.find(built) if (h.kind, h.buffer) == (kind, buffer)]
    proof = race.prove(device, built, hazard, steps=7)
    assert str(proof.force) == force
    groups = 7 // len(offsets)
    wanted = [told(*o) for o in offsets] * groups + [("fresh", "")] * (7 % len(offsets))
    assert [(o.label, o.source) for o in proof.wrong.outcomes] == wanted
    # Elements near zero are within rounding of both values and count as fresh.
    assert all(o.stale_share > 0.8 for o in proof.wrong.outcomes if o.label != "fresh")
    assert len(proof.wrong.groups) == len(proof.repaired.groups) == groups
    assert proof.wrong.exposed
    assert proof.wrong.allowed
    assert proof.repaired.counts["fresh"] == 7
    assert not proof.repaired.allowed
    assert not proof.repaired.exposed
    assert proof.repaired.schedule == wired(ahead)
    assert proof.holds
    # The recordings show it: what was held came after, and with the repair before.
    for result, after in ((proof.wrong, True), (proof.repaired, False)):
        frame = result.timeline.frame()
        spans = frame[frame.kind == "device"].set_index(["name", "step"])
        for t in range(0, groups * len(offsets), len(offsets)):
            hold, until = spans.loc[proof.force.hold, t], spans.loc[proof.force.until, t + len(offsets) - 1]
            first, then = (until, hold) if after else (hold, until)
            assert first.end_ns <= then.start_ns
        assert result.timeline.meta["force"] == force


@pytest.mark.parametrize("wait", [0.0, 0.05])
def test_a_repaired_schedule_is_right_however_long_the_gate_is_shut(device, monkeypatch, wait):
    monkeypatch.setattr(base, "LET_GO_S", wait)
    for ahead, _, _, force, _ in FORCED:
        assert race.run(device, wired(ahead), 4, force, record=False, anyway=True).right


def test_luck_has_no_part_where_several_edges_are_missing(device):
    for size in (2, 3, 4):
        for drop in itertools.combinations(EDGES, size):
            prepared = race.prepare(device, wired(False, *drop, shape=(1, 16, 16)), steps=4)
            for ahead, edge, hazard, force, offsets in FORCED:
                if ahead or edge not in drop:
                    continue
                if edge == "fork_vector" and "fork_matrix" in drop:
                    # While main is held for inv_rms, nothing holds projection: y is as old as that r.
                    offsets = [(r, r) for _, r in offsets]
                result = prepared.run(force, record=False)
                wanted = [told(*o) for o in offsets] * (4 // len(offsets))
                assert [(o.label, o.source) for o in result.outcomes] == wanted, (drop, hazard)
                assert result.exposed
            assert prepared.run(record=False).force is None


def test_a_force_that_spans_two_steps_leaves_out_a_last_step_alone(device):
    result = race.run(device, wired(True, "fork_matrix"), 5, "post_scale:projection+1")
    assert [o.label for o in result.outcomes] == ["early", "fresh", "early", "fresh", "fresh"]
    assert [[o.label for o in group] for group in result.groups] == [["early", "fresh"]] * 2
    marked = result.timeline.frame()[lambda f: f.outcome == "early"]
    assert list(zip(marked.name, marked.step, strict=True)) == [("post_scale", 0), ("post_scale", 2)]
    with pytest.raises(LabError, match="spans 2 steps, and 1 runs at a time here; give it 2 or more"):
        race.run(device, wired(True, "fork_matrix"), 1, "post_scale:projection+1")


def test_a_force_may_span_more_steps_than_two(device):
    # Matrix runs three steps ahead of vector and main, which then find step 3's x and y at each of theirs.
    result = race.run(device, wired(True, "fork_matrix"), 8, "inv_rms:projection+3")
    wanted = [told(3, 3), told(2, 2), told(1, 1), told(0, 0)] * 2
    assert [(o.label, o.source) for o in result.outcomes] == wanted
    assert len(result.groups) == 2


def test_a_hazard_may_stand_for_its_force(device):
    built = wired(False, "join_matrix")
    raw, war = hazards.find(built, repeats=3)  # as another look at the same schedule gives them
    assert race.run(device, built, 4, raw, record=False).force == Force("projection", "post_scale")
    assert race.run(device, built, 4, war, record=False).force == Force("projection", "copy x", 1)
    with pytest.raises(LabError, match="RAW on y, projection and post_scale: this is no hazard of the"):
        race.run(device, wired(False, "fork_matrix"), 4, raw)


def test_what_no_device_can_hold_or_no_edge_repairs_is_said(device):
    host = schedule.deferred(1, 8, 4, io="host").without("join_matrix")
    assert [str(force) for force in race.forces(host).values()] == ["projection:post_scale"]
    (war,) = [h for h in hazards.find(host) if h.kind == "WAR"]
    with pytest.raises(LabError, match="a device can hold launches and copies, and neither the host"):
        race.force_of(host, war)
    with pytest.raises(LabError, match="'join_matrix' is no hazard"):
        race.prove(device, wired(False, "join_matrix"), "join_matrix")
    late = Copy("late", "vector", "xs", "x")  # nothing orders it, and no edge of the schedule can
    odd = replace(wired(False), all_steps=(*wired(False).all_steps, late))
    with pytest.raises(LabError, match=r"the deferred schedule has no edge that repairs W.* on x"):
        race.repaired(odd)


def test_x_is_fetched_ahead_of_main():
    built = race.prefetched(schedule.deferred(2, 8, 4, spin=3))
    assert built.name == "prefetched"
    assert [getattr(s, "name", None) or f"{type(s).__name__} {s.event} {s.stream}" for s in built][:6] == [
        "Record fork_matrix main",
        "Wait fork_matrix matrix",
        "copy x",
        "Record fork_vector matrix",
        "Wait fork_vector vector",
        "spin",
    ]
    assert built.streams == ("main", "matrix", "vector")
    assert "with matrix:\n        cp.copyto(x, xs[t])" in built.to_cupy()
    assert hazards.find(built) == ()
    dropped = schedule.deferred(2, 8, 4).without("fork_vector")
    assert race.prefetched(dropped) == race.prefetched(schedule.deferred(2, 8, 4)).without("fork_vector")
    others = [schedule.fused(1, 8, 4), schedule.deferred(1, 8, 4, streams="one")]
    others += [schedule.deferred(1, 8, 4, io=io) for io in ("host", "torch")] + [built]
    for other in others:
        with pytest.raises(LabError, match=f"the {other.name} schedule cannot fetch x ahead"):
            race.prefetched(other)


def test_with_x_ahead_and_every_edge_all_is_fresh(device):
    result = race.run(device, wired(True, shape=(2, 65, 33)), steps=20)
    assert result.counts["fresh"] == 20
    assert result.hazards == ()


def test_a_proof_is_plain_json(device):
    built = wired(True, "fork_matrix")
    (hazard,) = [h for h in hazards.find(built) if h.buffer == "y"]
    found = json.loads(json.dumps(race.prove(device, built, hazard, 4, record=False).as_dict()))
    assert found["forced"] == {"hold": "post_scale", "until": "projection", "distance": 1}
    assert found["hazard"] == hazard.as_dict()
    assert found["holds"] is True
    assert (found["wrong"]["dropped"], found["repaired"]["dropped"]) == (["fork_matrix"], [])
    assert found["wrong"]["per_step"] == ["early", "fresh"] * 2
    assert found["repaired"]["per_step"] == ["fresh"] * 4
    assert found["wrong"]["sources"] == ["y of step t+1, r of step t"]


def test_annotated_runs_push_the_ranges_of_a_recording_and_record_nothing(device, monkeypatch):
    names = []

    def around(name):
        names.append(name)
        return contextlib.nullcontext()

    monkeypatch.setattr(ranges, "around", around)
    monkeypatch.setattr(ranges, "push", names.append)
    built = schedule.deferred(1, 64, 48).without("join_matrix")
    result = race.run(device, built, steps=2, record=False, annotate=True)
    assert result.timeline is None
    step = ["copy x", "record fork_matrix", "record fork_vector", "projection", "inv_rms"]
    step += ["record join_vector", "post_scale", "copy z"]
    assert names == ["step 0", *step, "step 1", *step]
    assert device.recorder is None


def test_the_edges_forbid_forcing(device):
    with pytest.raises(LabError, match="projection cannot be held until post_scale is done"):
        race.run(device, schedule.deferred(1, 64, 48), force="projection:post_scale")


def test_every_wiring_that_can_go_wrong_within_a_step_is_made_to(device):
    for drop in ([e] for e in EDGES):
        built = schedule.deferred(1, 16, 16).without(*drop)
        assert hazards.find(built)
        assert race.run(device, built, 3, "worst", record=False).counts["fresh"] == 0


def test_a_prepared_race_can_be_run_again_from_the_same_start(device):
    prepared = race.prepare(device, schedule.deferred(1, 64, 48).without("join_matrix"), steps=5)
    for record in (True, False):
        result = prepared.run("worst", record)
        assert result.counts["stale"] == 5
        assert (result.timeline is not None) == record


def test_one_race_that_threads_share_stays_right(device):
    prepared = race.prepare(device, schedule.deferred(1, 64, 48), steps=8)
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: prepared.run(record=False).counts["fresh"], range(30)))
    assert results == [8] * 30


def test_the_result_is_plain_json(device):
    result = race.run(device, schedule.deferred(1, 64, 48).without("join_matrix"), steps=2, force="worst")
    told = json.loads(json.dumps(result.as_dict()))
    assert told["schedule"]["dropped"] == ["join_matrix"]
    assert {h["repair"] for h in told["hazards"]} == {"join_matrix"}
    assert (told["fresh"], told["stale"], told["torn"]) == (0, 2, 0)
    assert told["device"]["kind"] == "opencl"
    assert told["provenance"] == "measured"


def test_inputs_come_from_the_seed():
    device = opencl.open_device()
    first, same, other = (race.prepare(device, schedule.fused(1, 8, 4), 2, seed) for seed in (1, 1, 2))
    assert np.array_equal(first.xs, same.xs)
    assert not np.array_equal(first.xs, other.xs)


def test_a_race_that_would_not_fit_is_refused_before_it_takes_the_memory(device, monkeypatch):
    monkeypatch.setattr(race, "_memory", lambda: 1 << 20)
    with pytest.raises(LabError, match="needs 3 MiB, and at most half of the 1 MiB here"):
        race.run(device, schedule.fused(1, 512, 512), steps=4)


def test_bad_input_is_named(device):
    fused = schedule.fused(1, 8, 4)
    for call, told in (
        (lambda: race.run("opencl", fused), "'opencl' is no device"),
        (lambda: race.run(device, "fused"), "'fused' is no schedule"),
        (lambda: hazards.find("fused"), "'fused' is no schedule"),
        (lambda: race.run(device, fused, seed=-1), "seed=-1"),
        (lambda: race.run(device, fused, seed="a"), "seed='a'"),
        (lambda: race.run(device, fused, force=True), "force=True: write HOLD:UNTIL"),
        (lambda: Force("a", "b", -1), "distance=-1; give a whole number"),
        (lambda: Force("a", "b", True), "distance=True; give a whole number"),
        (lambda: Force.parse("projection:copy x+one"), r"N in HOLD:UNTIL\+N is a number of steps"),
        (lambda: Force.parse("projection:+1"), "write HOLD:UNTIL"),
    ):
        with pytest.raises(LabError, match=told):
            call()
    with pytest.raises(LabError, match="steps=0"):
        race.run(device, schedule.fused(1, 8, 4), steps=0)
    with pytest.raises(LabError, match="io='host'"):
        race.run(device, schedule.fused(1, 8, 4, io="host"))
    with pytest.raises(LabError, match="write HOLD:UNTIL"):
        race.run(device, schedule.deferred(1, 8, 4), force="projection")
    with pytest.raises(LabError, match="'nope'"):
        race.run(device, schedule.deferred(1, 8, 4), force="nope:post_scale")
