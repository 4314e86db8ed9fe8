"""Schedules: what they contain, what they refuse, how they print."""

import copy
import dataclasses
import pickle

import pytest

from flashnorm_lab import schedule
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import (
    EDGES,
    Copy,
    External,
    HostRead,
    HostWrite,
    Launch,
    Record,
    Synchronize,
    Wait,
)


def launches(built):
    return [(s.name, s.stream) for s in built.launches]


def test_each_builder_launches_what_its_name_says():
    assert launches(schedule.sequential(1, 8, 4)) == [("rms_norm", "main"), ("projection", "main")]
    assert launches(schedule.fused(1, 8, 4)) == [("fused_norm_projection", "main")]
    three = [("projection", "matrix"), ("inv_rms", "vector"), ("post_scale", "main")]
    assert launches(schedule.deferred(1, 8, 4)) == three
    assert launches(schedule.deferred(1, 8, 4, spin=9)) == [("spin", "matrix"), *three]


def test_one_stream_runs_the_same_kernels_and_has_no_edges():
    built = schedule.deferred(1, 8, 4, streams="one")
    assert launches(built) == [("projection", "main"), ("inv_rms", "main"), ("post_scale", "main")]
    assert built.all_edges == ()
    assert built.streams == ("main",)
    assert not any(isinstance(s, Record | Wait) for s in built.steps)


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_is_one_record_and_one_wait(edge):
    whole = schedule.deferred(1, 8, 4)
    without = whole.without(edge)
    gone = [s for s in whole.steps if s not in without.steps]
    assert [(type(s), s.event) for s in gone] == [(Record, edge), (Wait, edge)]
    assert without.dropped == (edge,)
    assert without.with_edges(EDGES) == whole
    assert schedule.deferred(1, 8, 4, edges=set(EDGES) - {edge}) == without


def test_the_fork_comes_before_the_producers_and_the_join_before_the_reader():
    order = [getattr(s, "name", getattr(s, "event", None)) for s in schedule.deferred(1, 8, 4).steps]
    assert order.index("copy x") < order.index("fork_matrix") < order.index("projection")
    assert order.index("copy x") < order.index("fork_vector") < order.index("inv_rms")
    assert order.index("projection") < order.index("join_matrix") < order.index("post_scale")
    assert order.index("inv_rms") < order.index("join_vector") < order.index("post_scale")


def test_accesses_follow_from_the_kernels_own_signatures():
    built = schedule.deferred(2, 8, 4, spin=1)
    by_name = {s.name: built.accesses(s) for s in built.steps if isinstance(s, Launch | Copy)}
    told = {name: [(a.buffer, a.stop, a.writes) for a in accesses] for name, accesses in by_name.items()}
    assert told["projection"] == [("x", 64, False), ("W_folded", 128, False), ("y", 32, True)]
    assert told["inv_rms"] == [("x", 64, False), ("r", 8, True)]
    assert told["post_scale"] == [("y", 32, False), ("r", 8, False), ("z", 32, True)]
    assert told["spin"] == [("sink", 4, False), ("sink", 4, True)]
    assert told["copy x"] == [("xs", 64, False), ("x", 64, True)]
    assert by_name["copy x"][0].per_step
    assert not by_name["copy x"][1].per_step


def test_half_precision_halves_the_stored_bytes_and_keeps_y_and_r_in_float32():
    buffers = schedule.deferred(1, 8, 4, dtype="bfloat16").buffers
    assert {name: b.nbytes for name, b in buffers.items() if name in ("x", "W_folded", "y", "r", "z")} == {
        "x": 16, "W_folded": 64, "y": 16, "r": 4, "z": 8}  # fmt: skip


def test_io_decides_how_x_arrives_and_z_leaves():
    kinds = {io: [type(s) for s in schedule.fused(1, 8, 4, io=io).steps] for io in schedule.IO}
    assert kinds == {
        "stream": [Copy, Launch, Copy],
        "host": [HostWrite, Launch, Synchronize, HostRead],
        "torch": [External, Launch, External],
    }


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: schedule.deferred(0, 8, 4), "tokens=0"),
        (lambda: schedule.deferred(1, -3, 4), "n=-3"),
        (lambda: schedule.deferred(1, 8, 2.5), "k=2.5"),
        (lambda: schedule.deferred(True, 8, 4), "tokens=True"),
        (lambda: schedule.deferred(1, 8, 4, edges=["join_matrx"]), "'join_matrx'"),
        (lambda: schedule.deferred(1, 8, 4, streams="one", edges=["no"]), "'no'"),
        (lambda: schedule.deferred(1, 8, 4, streams="two"), "'two'"),
        (lambda: schedule.deferred(1, 8, 4, spin=-1), "spin=-1"),
        (lambda: schedule.fused(1, 8, 4, dtype="float64"), "'float64'"),
        (lambda: schedule.fused(1, 8, 4, eps=float("nan")), "eps=nan"),
        (lambda: schedule.fused(1, 8, 4, io="disk"), "'disk'"),
        (lambda: schedule.fused(1, 8, 4).without("join_matrix"), "'join_matrix'"),
        (lambda: schedule.build("deffered", 1, 8, 4), "'deffered'"),
        (lambda: schedule.build("fused", 1, 8, 4, spin=3), "spin=3: the fused schedule takes eps, dtype, io"),
        (lambda: schedule.fused(1, 8, 2**31), "k=2147483648: give a whole number from 1 to 2147483647"),
    ],
)
def test_bad_input_is_named(call, told):
    with pytest.raises(LabError, match=r"^[^\n]+$") as problem:
        call()
    assert told in str(problem.value)


def test_a_schedule_cannot_be_changed():
    built = schedule.fused(1, 8, 4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        built.edges = frozenset()
    with pytest.raises(TypeError):
        built.buffers["x"] = None


def test_a_schedule_can_be_a_key_copied_and_pickled():
    built = schedule.deferred(1, 8, 4).without("join_matrix")
    same = schedule.deferred(1, 8, 4, edges=built.edges)
    for twin in (copy.deepcopy(built), pickle.loads(pickle.dumps(built)), same):
        assert twin == built
        assert hash(twin) == hash(built)
        assert str(twin) == str(built)
    assert len({built, built.with_edges(EDGES), schedule.fused(1, 8, 4)}) == 3


def test_edges_in_a_list_are_refused_with_what_to_write():
    with pytest.raises(LabError, match="give the names one by one"):
        schedule.deferred(1, 8, 4).without(["join_matrix", "join_vector"])


def test_it_prints_every_step_in_order():
    text = str(schedule.deferred(1, 8, 4, io="host").without("join_matrix"))
    assert text.splitlines()[0] == "deferred step: 1 token, n=8, k=4, float32; without join_matrix"
    assert "matrix  wait for fork_matrix" in text
    assert "wait for join_matrix" not in text
    assert text.splitlines()[1:][0].strip() == "host    write x"
    assert "host    wait until main is done" in text
