"""The table itself: columns, lanes, edges, outcomes, the pandas view, and what it refuses."""

import subprocess
import sys

import numpy as np
import pytest

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import CATEGORIES, Lane, Timeline, TimelineBuilder

ZERO = 1_763_000_000_123_456_789  # nanoseconds since 1970, far beyond what a float64 tells apart


def race_timeline(steps: int = 2, dropped: bool = True, zero: int = ZERO) -> Timeline:
    """Deferred steps as a device would record them, 100 µs each; without join_matrix stale, then torn."""
    build = TimelineBuilder()
    build.lane("host", "host")
    judged = {}
    for step in range(steps):
        at = zero + 100_000 * step
        first = 5 * step
        for i, name in enumerate(("copy x", "projection", "inv_rms", "post_scale", "copy z")):
            category = "copy" if name.startswith("copy") else "launch"
            build.span(name, "host", at + 3_000 * i, 2_000 + i, category, launch=first + i, step=step)
        build.span("record fork_matrix", "host", at + 15_000, 501, "record", step=step)
        x = build.span("copy x", "main", at + 4_000, 999, "copy", launch=first, step=step)
        y = build.span("projection", "matrix", at + 7_001, 40_000, "kernel", launch=first + 1, step=step)
        r = build.span("inv_rms", "vector", at + 8_003, 5_000, "kernel", launch=first + 2, step=step)
        begin = at + 15_007 if dropped else at + 48_000
        z = build.span("post_scale", "main", begin, 4_111, "kernel", launch=first + 3, step=step)
        build.span("copy z", "main", begin + 5_000, 1_000, "copy", launch=first + 4, step=step)
        build.edge(x, y, "fork_matrix")
        build.edge(x, r, "fork_vector")
        build.edge(r, z, "join_vector")
        if not dropped:
            build.edge(y, z, "join_matrix")
        judged[z] = ("stale" if step % 2 == 0 else "torn") if dropped else "fresh"
    edges = ["fork_matrix", "fork_vector", "join_vector"] + ["join_matrix"] * (not dropped)
    return build.build(
        device="a made-up device",
        provenance="modelled",
        schedule="deferred",
        edges=edges,
        dropped=["join_matrix"] if dropped else [],
        clock_error_ns=None,
        share=0.1,
    ).with_outcomes(judged)


def test_columns_have_the_types_of_the_contract():
    t = race_timeline()
    assert {c: getattr(t, c).dtype.name for c in ("name", "lane", "step")} == dict.fromkeys(
        ("name", "lane", "step"), "int32"
    )
    assert t.start_ns.dtype == t.duration_ns.dtype == t.launch.dtype == t.edge_source.dtype == np.int64
    assert t.category.dtype == t.outcome.dtype == np.int8
    assert len(t) == 22
    assert t.lanes == (Lane("host", "host"), Lane("main"), Lane("matrix"), Lane("vector"))
    assert len(set(t.names)) == len(t.names)
    assert t.start_ns[0] == ZERO  # absolute, and kept to the nanosecond
    assert t.steps == (0, 1)
    assert repr(t) == "<Timeline: 22 spans on host, main, matrix, vector, 6 edges>"


def test_columns_cannot_be_changed():
    t = race_timeline()
    with pytest.raises(ValueError, match="read-only"):
        t.start_ns[0] = 0
    with pytest.raises(AttributeError):
        t.names = ()


def test_spans_by_name_lane_step_category_and_outcome():
    t = race_timeline()
    assert t.spans(name="projection").tolist() == [1, 7, 12, 18]
    assert t.spans(name="projection", lane="matrix").tolist() == [7, 18]
    assert t.spans(name="projection", lane="host", step=1).tolist() == [12]
    assert t.spans(outcome="stale").tolist() == [9]
    assert t.spans(outcome="torn", step=0).tolist() == []
    assert t.spans(category="record").tolist() == [5, 16]
    assert t.spans(name="no such kernel").tolist() == []
    with pytest.raises(LabError, match=r"no lane 'tensor'.*host, main, matrix, vector"):
        t.spans(lane="tensor")
    with pytest.raises(LabError, match="category 'kernels'"):
        t.spans(category="kernels")


def test_launch_delay_is_from_the_start_of_the_call():
    t = race_timeline(steps=1)
    delay = t.launch_delay_ns()
    assert delay[t.spans(lane="matrix")].tolist() == [7_001 - 3_000]
    assert delay[t.spans(lane="vector")].tolist() == [8_003 - 6_000]
    assert (delay[t.spans(lane="host")] == np.iinfo(np.int64).min).all()
    assert t.launches().tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10]]


def test_one_launch_of_many_kernels_and_a_kernel_with_no_launch():
    build = TimelineBuilder()
    build.span("graph", "host", 100, 10, "launch", launch=7)
    build.span("graph again", "host", 150, 10, "launch", launch=7)
    build.span("a", "main", 200, 5, "kernel", launch=7)
    build.span("b", "main", 210, 5, "kernel", launch=7)
    build.span("c", "main", 220, 5, "kernel", launch=8)
    t = build.build()
    assert t.launches().tolist() == [[0, 2], [0, 3]]
    assert t.launch_delay_ns().tolist()[2:4] == [100, 110]


def test_changed_copies_leave_the_original_alone():
    t = race_timeline()
    again = t.with_outcomes({9: "fresh"})
    assert (again.outcome[9], t.outcome[9]) == (1, 2)
    more = t.with_edges([(7, 9, "join_matrix")]).with_meta(note="added")
    assert more.names[more.edge_name[-1]] == "join_matrix"
    assert len(more.edge_source) == len(t.edge_source) + 1
    assert "note" not in t.meta
    assert not t.equals(again)
    assert t.equals(race_timeline())
    with pytest.raises(LabError, match="no span 99"):
        t.with_outcomes({99: "stale"})
    with pytest.raises(LabError, match="outcome 'rotten'"):
        t.with_outcomes({9: "rotten"})
    with pytest.raises(LabError, match="no span -1"):
        t.with_edges([(-1, 2, "e")])


def test_frame():
    frame = race_timeline().frame()
    assert len(frame) == 22
    assert frame.start_ns.dtype == "int64"
    assert frame.loc[7, "name"] == "projection"
    assert frame.loc[7, "end_ns"] - frame.loc[7, "start_ns"] == 40_000
    assert frame.loc[7, "launch_delay_ns"] == 4_001
    assert frame.launch_delay_ns.isna().sum() == 12
    assert frame[frame.kind == "device"].groupby("lane", observed=True).size().to_dict() == {
        "main": 6,
        "matrix": 2,
        "vector": 2,
    }
    assert frame.outcome.value_counts()["stale"] == 1


def test_an_empty_timeline_is_a_timeline():
    t = TimelineBuilder().build()
    assert len(t) == 0
    assert t.steps == ()
    assert t.frame().empty
    assert t.launch_delay_ns().tolist() == []


def test_lanes_declare_themselves():
    build = TimelineBuilder()
    build.span("a", "host", 0, 1, "launch")
    build.span("b", "main", 0, 1, "kernel")
    build.span("c", Lane("loader", "host"), 0, 1, "range")
    assert [lane.kind for lane in build.build().lanes] == ["host", "device", "host"]
    with pytest.raises(LabError, match="already a host lane"):
        build.lane("host", "device")
    with pytest.raises(LabError, match="kind 'gpu'"):
        Lane("x", "gpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration_ns": -1}, "lasts -1 ns"),
        ({"category": "launches"}, "category 'launches' is not one of 'launch'"),
        ({"outcome": "bad"}, "outcome 'bad'"),
        ({"step": 2**31}, "column step holds a number that does not fit into int32"),
        ({"start_ns": 2**63}, "column start_ns holds a number that does not fit into int64"),
    ],
)
def test_spans_that_cannot_be(change, message):
    build = TimelineBuilder()
    span = {"name": "a", "lane": "main", "start_ns": 0, "duration_ns": 1, "category": "kernel"} | change

    def add_and_build():
        build.span(**span)
        build.build()

    with pytest.raises(LabError, match=message):
        add_and_build()


def test_edges_and_columns_that_do_not_fit():
    build = TimelineBuilder()
    build.span("a", "main", 0, 1, "kernel")
    with pytest.raises(LabError, match="edge 'e' names span 1"):
        build.edge(0, 1, "e")
    t = build.build()
    columns = {c: getattr(t, c) for c in t.__dataclass_fields__}
    with pytest.raises(LabError, match="column lane has shape"):
        Timeline(**columns | {"lane": np.zeros(2, dtype=np.int32)})
    with pytest.raises(LabError, match="column lane holds 3"):
        Timeline(**columns | {"lane": np.array([3])})
    with pytest.raises(LabError, match="whole numbers were expected"):
        Timeline(**columns | {"start_ns": np.array([0.5])})


def test_meta_is_plain():
    t = TimelineBuilder().build(edges=frozenset({"b", "a"}), n=np.int64(3), shape=(1, 2), clock_error_ns=None)
    assert t.meta == {"edges": ["a", "b"], "n": 3, "shape": [1, 2], "clock_error_ns": None}
    with pytest.raises(LabError, match=r"meta\['x'\] holds a object"):
        TimelineBuilder().build(x=object())
    with pytest.raises(LabError, match="holds nan"):
        TimelineBuilder().build(x=float("nan"))
    with pytest.raises(LabError, match="provenance='guessed'"):
        TimelineBuilder().build(provenance="guessed")


def test_categories_are_the_contract():
    assert (
        *("launch", "record", "wait", "synchronize", "copy", "kernel", "range"),
        *("fill", "graph", "call", "op", "mark", "other"),
    ) == CATEGORIES


def test_the_timeline_package_needs_neither_pandas_nor_plotly():
    code = (
        "import sys, flashnorm_lab.timeline; "
        "print([m for m in ('pandas', 'plotly', 'matplotlib', 'torch', 'ipywidgets') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
