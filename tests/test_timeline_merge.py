"""Several timelines on one: lanes and launches stay apart, clocks are compared or said not to be."""

import json

import numpy as np
import pytest

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import Lane, TimelineBuilder, from_kineto
from flashnorm_lab.timeline.merge import merge
from flashnorm_lab.timeline.reading.origin import details
from flashnorm_lab.timeline.table import EDGE_KINDS


def one(start=1000, kernel="gemm", launch=1, **meta):
    build = TimelineBuilder()
    build.lane("host", "host", process="python 5")
    build.lane("stream 7", "device", "0", "python 5")
    host = build.span("cudaLaunchKernel", "host", start, 10, "launch", launch=launch, step=3, origin=4)
    work = build.span(kernel, "stream 7", start + 50, 20, "kernel", launch=launch, step=3, origin=9)
    build.span("alone", "stream 7", start + 80, 5, "kernel")
    build.counter("memory", start + 7, 2.5)
    build.edge(host, work, "arrow", kind="flow")
    return build.build(**meta)


def test_lanes_launches_edges_and_counters_stay_apart():
    a = one(left_out={"objects (phase N)": 2}, notes=["odd"], provenance="measured", device="GPU", rank=0)
    b = one(
        1020, "norm", left_out={"objects (phase N)": 1}, edges_unknown=3, provenance="recorded", device="GPU"
    )
    t = merge({"rank 0": a, "rank 1": b})
    assert t.lanes == (
        Lane("rank 0 · host", "host", process="rank 0 python 5"),
        Lane("rank 0 · stream 7", "device", "rank 0 device 0", "rank 0 python 5"),
        Lane("rank 1 · host", "host", process="rank 1 python 5"),
        Lane("rank 1 · stream 7", "device", "rank 1 device 0", "rank 1 python 5"),
    )
    assert t.launches().tolist() == [[0, 1], [3, 4]]
    assert len(set(t.launch[t.launch >= 0].tolist())) == 2
    assert t.launch[2] == t.launch[5] == -1
    assert t.start_ns.tolist() == [*a.start_ns, *b.start_ns]
    assert (t.origin.tolist(), t.step.tolist()) == ([4, 9, -1] * 2, [3, 3, -1] * 2)
    assert [t.names[i] for i in t.name] == [
        "cudaLaunchKernel",
        "gemm",
        "alone",
        "cudaLaunchKernel",
        "norm",
        "alone",
    ]
    assert t.names.count("alone") == 1
    assert (t.edge_source.tolist(), t.edge_target.tolist()) == ([0, 3], [1, 4])
    assert [t.names[i] for i in t.edge_name] == ["arrow", "arrow"]
    assert [EDGE_KINDS[k] for k in t.edge_kind] == ["flow", "flow"]
    assert [t.names[i] for i in t.counter_name] == ["rank 0 · memory", "rank 1 · memory"]
    assert "memory" not in t.names
    assert t.counter_ns.tolist() == [1007, 1027]
    assert t.meta["left_out"] == {"rank 0 · objects (phase N)": 2, "rank 1 · objects (phase N)": 1}
    assert t.notes == ("rank 0 · odd",)
    assert (t.meta["provenance"], t.meta["device"], t.meta["edges_unknown"]) == ("recorded", "GPU", 3)
    assert t.meta["merged"] == {"rank 0": a.meta, "rank 1": b.meta}


def test_a_span_of_a_merged_timeline_still_finds_its_file(tmp_path):
    read = {}
    for name in ("a", "a · b"):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps([{"ph": "X", "name": name, "ts": 1, "dur": 2, "pid": 1, "tid": 1}]))
        read[name] = from_kineto(path)
    t = merge({"first": merge(read), "a": read["a"]})
    told = [details(t, i)["name"] for i in range(3)]
    assert told == [t.names[i] for i in t.name] == ["a", "a · b", "a"]


def test_launch_numbers_that_are_apart_stay_as_they_are():
    t = merge({"a": one(launch=1), "b": one(launch=900)})
    assert t.launch.tolist() == [1, 1, -1, 900, 900, -1]


@pytest.mark.parametrize("numbers", [(1, 1, 1), (0, 0, 5), (7, 2**40, 7), (2**62, 2**62, 0)])
def test_launch_numbers_that_collide_are_moved_apart(numbers):
    t = merge({str(i): one(launch=n) for i, n in enumerate(numbers)})
    assert t.launches().tolist() == [[0, 1], [3, 4], [6, 7]]


def test_launch_numbers_of_which_there_is_no_room_for_all():
    t = {str(i): wide for i, wide in enumerate([one(launch=0), one(launch=2**62)])}
    build = TimelineBuilder()
    for number in (0, 2**63 - 2):
        build.span("k", "stream 7", 1000, 1, "kernel", launch=number)
    with pytest.raises(LabError, match="launch numbers of these timelines do not fit into 64 bits"):
        merge(t | {"wide": build.build(), "again": build.build()})


def test_clocks_that_have_no_moment_in_common_are_said():
    later = 3_600_000_000_000
    t = merge({"a": one(), "b": one(later), "c": one(1010), "d": one(0)})
    assert [note.partition(";")[0] for note in t.notes] == [
        "b lies 3600 s behind the end of the timelines before it",
        "d lies 9.15e-07 s before the start of the timelines before it",
    ]
    assert "clocks cannot be compared" in t.notes[0]
    assert "\n" not in t.notes[0]


def test_starts_put_together():
    later = 3_600_000_000_000
    t = merge({"a": one(), "b": one(later)}, align="start")
    assert t.start_ns.tolist() == [1000, 1050, 1080] * 2
    assert t.counter_ns.tolist() == [1007, 1007]
    assert t.meta["shift_ns"] == {"a": 0, "b": 1000 - later}
    assert not t.notes


def test_one_timeline_and_an_empty_one():
    empty = TimelineBuilder().build()
    t = merge({"nothing": empty, "all": one(provenance="modelled"), "again": empty}, align="start")
    assert (len(t), t.meta["provenance"]) == (3, "modelled")
    assert t.meta["shift_ns"] == {"nothing": 0, "all": 0, "again": 0}
    assert [lane.name for lane in t.lanes] == ["all · host", "all · stream 7"]


def test_names_that_come_out_equal_are_told_apart():
    def with_lane(name):
        build = TimelineBuilder()
        build.span("k", name, 0, 1, "kernel")
        return build.build()

    t = merge({"a · b": with_lane("c"), "a": with_lane("b · c")})
    assert [lane.name for lane in t.lanes] == ["a · b · c", "a · b · c (2)"]


def test_what_cannot_be_merged_in_one_line():
    with pytest.raises(LabError, match="there is no timeline to merge"):
        merge({})
    with pytest.raises(LabError, match="align='end' is not one of 'clock', 'start'"):
        merge({"a": one()}, align="end")
    build = TimelineBuilder()
    build.span("k", "stream 7", -(2**62), 2**62, "kernel")
    build.span("k", "stream 7", 0, 2**62, "kernel")
    with pytest.raises(LabError, match=r"late: moved by -?\d+ ns, its end does not fit into 64 bits"):
        merge({"a": one(2**62), "late": build.build()}, align="start")


def test_many_ranks():
    t = merge({f"rank {i}": one(1000 + i, launch=5) for i in range(64)})
    assert len(t) == 192
    assert len(np.unique(t.launch[t.launch >= 0])) == 64
    assert len(t.launches()) == 64
    assert len({lane.device for lane in t.lanes if lane.kind == "device"}) == 64
