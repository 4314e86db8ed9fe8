"""The race on the OpenCL device, with the interleaving forced, so that no verdict depends on luck."""

import contextlib
import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from flashnorm_lab import hazards, outcomes, race, ranges, schedule
from flashnorm_lab.devices import opencl
from flashnorm_lab.devices.base import Force, check_force
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES


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
    assert result.counts == {"fresh": 20, "stale": 0, "torn": 0}


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
    assert result.counts == {"fresh": 0, "stale": 12, "torn": 0}
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
