"""The Chrome export: what Perfetto and chrome://tracing need of it, and that it reads back unchanged."""

import errno
import gzip
import json
import os
from collections import defaultdict
from decimal import Decimal

import numpy as np
import pytest
from test_timeline import ZERO, race_timeline
from test_timeline_roundtrip import random_timeline

from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import CATEGORIES, TimelineBuilder
from flashnorm_lab.timeline.writing.files import check_target


def read(path):
    """The file as a viewer reads it, with times as exact decimals of a microsecond."""
    return json.loads(path.read_text(), parse_float=Decimal)


def check_structure(content):
    """The rules of the Trace Event Format that a viewer relies on; the number of arrows of each category.

    Slices of a track nest. Every arrow has one start and one end of the same id, category and name; it does
    not point back in time; and both ends lie within a slice of their own track, which is open when they are
    read: the newest slice of that track that began at or before them. Every track belongs to one process that
    has a name.
    """
    arrows = defaultdict(dict)
    open_slices = defaultdict(list)
    newest = Decimal(0)
    heads = [e for e in content["traceEvents"] if e["ph"] == "M"]
    named = {(e["pid"], e["tid"]) for e in heads if e["name"] == "thread_name"}
    processes = {e["pid"] for e in heads if e["name"] == "process_name"}
    assert len({tid for _, tid in named}) == len(named)
    assert {pid for pid, _ in named} <= processes
    bound = {}
    for event in content["traceEvents"]:
        assert event["pid"] in processes
        if event["ph"] == "M":
            continue
        ts, stack = event["ts"], open_slices[event["tid"]]
        assert 0 <= newest <= ts
        newest = ts
        if event["ph"] == "C":
            assert set(event["args"]) == {"value"}
            continue
        assert (event["pid"], event["tid"]) in named
        if event["ph"] == "i":
            assert event["s"] == "t"
            continue
        while stack and stack[-1][1] <= ts and stack[-1][0] < ts:
            stack.pop()
        if event["ph"] == "X":
            end = ts + event["dur"]
            assert event["dur"] >= 0
            assert not stack or end <= stack[-1][1], "slices of a track overlap without nesting"
            stack.append((ts, end, event))
            continue
        assert stack, "an arrow's end lies in no slice"
        assert stack[-1][0] <= ts <= stack[-1][1]
        if event["ph"] == "f":
            assert event["bp"] == "e"
            assert "s" in arrows[event["id"]], "an arrow ends before it starts"
        assert event["ph"] not in arrows[event["id"]]
        arrows[event["id"]][event["ph"]] = event
        bound[event["id"], event["ph"]] = stack[-1][2]["args"]["span"]
    counts = defaultdict(list)
    for number, ends in arrows.items():
        assert set(ends) == {"s", "f"}
        start, end = ends["s"], ends["f"]
        assert (start["cat"], start["name"]) == (end["cat"], end["name"])
        assert start["ts"] <= end["ts"]
        counts[start["cat"]].append((bound[number, "s"], bound[number, "f"], start["name"]))
    return counts


@pytest.mark.parametrize("dropped", [True, False])
def test_round_trip_is_exact(tmp_path, dropped):
    t = race_timeline(3, dropped)
    path = tmp_path / "step.json"
    t.export_chrome(path)
    assert timeline.open(path).equals(t)
    assert os.listdir(tmp_path) == ["step.json"]


def test_round_trip_of_odd_content(tmp_path):
    build = TimelineBuilder()
    build.lane("a lane with no spans", "host")
    build.name("a name that nothing has")
    names = (
        "<b>bold</b>",
        'quote " and \\',
        "línea 線 \U0001f600",
        "",
        "\ud800 alone",
        "tab\tnew\nline",
        "$x$",
    )
    for i, name in enumerate(names):
        build.span(name, "höst <i>", -(10**15) + i, i % 3, "range", launch=2**62, step=i, outcome="torn")
    build.edge(6, 0, "backwards")
    build.edge(0, 0, "to itself")
    t = build.build(nested={"deep": [1, 2.5, None, True, {"x": 1e-9}]}, big=2**70)
    path = tmp_path / "odd.json"
    t.export_chrome(path)
    assert timeline.open(path).equals(t)


def test_round_trip_of_an_empty_timeline(tmp_path):
    t = TimelineBuilder().build(provenance="measured")
    t.export_chrome(tmp_path / "empty.json")
    assert timeline.open(tmp_path / "empty.json").equals(t)


def test_round_trip_through_gzip(tmp_path):
    t = race_timeline()
    t.export_chrome(tmp_path / "a.json")
    (tmp_path / "b.json").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    assert timeline.open(tmp_path / "b.json").equals(t)


def test_a_viewer_finds_tracks_slices_and_arrows(tmp_path):
    t = race_timeline()
    t.export_chrome(tmp_path / "step.json")
    content = read(tmp_path / "step.json")
    arrows = check_structure(content)
    assert sorted(arrows["edge"]) == sorted(
        zip(t.edge_source, t.edge_target, (t.names[n] for n in t.edge_name), strict=True)
    )
    assert sorted((s, f) for s, f, _ in arrows["launch"]) == sorted(map(tuple, t.launches().tolist()))
    assert content["otherData"]["arrows_not_drawn"] == 0
    rows = [e for e in content["traceEvents"] if e["ph"] == "M"]
    names = {e["tid"]: e["args"]["name"] for e in rows if e["name"] == "thread_name"}
    order = {e["tid"]: e["args"]["sort_index"] for e in rows if e["name"] == "thread_sort_index"}
    assert [names[tid] for tid in sorted(order, key=order.get)] == [
        "host",
        "main",
        "matrix",
        "vector",
        "results that are not fresh",
    ]
    process = next(e for e in rows if e["name"] == "process_name")
    assert process["args"]["name"] == "deferred, a made-up device, modelled"


def test_times_are_exact_decimals(tmp_path):
    t = race_timeline(1)
    t.export_chrome(tmp_path / "step.json")
    content = read(tmp_path / "step.json")
    assert content["baseTimeNanoseconds"] == ZERO
    event = next(
        e for e in content["traceEvents"] if e.get("args", {}).get("span") == 9 and e["cat"] != "outcome"
    )
    assert str(event["ts"]) == "15.007"
    assert str(event["dur"]) == "4.111"
    assert all(e["ts"].as_tuple().exponent == -3 for e in content["traceEvents"] if "ts" in e)
    # A viewer holds times in a float64: relative to the base, none of them loses a nanosecond there.
    assert all(round(float(e["ts"]) * 1000) == e["ts"] * 1000 for e in content["traceEvents"] if "ts" in e)


def test_arrows_sit_at_the_end_of_the_source_and_the_start_of_the_target(tmp_path):
    t = race_timeline(1)
    t.export_chrome(tmp_path / "step.json")
    events = read(tmp_path / "step.json")["traceEvents"]
    fork = {e["ph"]: e["ts"] for e in events if e.get("name") == "fork_matrix" and e["cat"] == "edge"}
    assert fork == {"s": Decimal("4.998"), "f": Decimal("7.001")}  # copy x ends at 4.999; projection starts


def test_stale_and_torn_are_told_in_words_and_in_colour(tmp_path):
    t = race_timeline(2)
    t.export_chrome(tmp_path / "step.json")
    events = read(tmp_path / "step.json")["traceEvents"]
    marked = [(e["name"], e["cat"], e["args"]["outcome"], e["cname"]) for e in events if "cname" in e]
    assert marked == [
        ("post_scale", "kernel", "stale", "terrible"),
        ("stale: post_scale", "outcome", "stale", "terrible"),
        ("post_scale", "kernel", "torn", "bad"),
        ("torn: post_scale", "outcome", "torn", "bad"),
    ]
    early = t.with_outcomes({9: "early"})
    early.export_chrome(tmp_path / "early.json")
    events = read(tmp_path / "early.json")["traceEvents"]
    assert [(e["name"], e["cname"]) for e in events if "cname" in e][:2] == [
        ("post_scale", "yellow"),
        ("early: post_scale", "yellow"),
    ]
    assert timeline.open(tmp_path / "early.json").equals(early)
    fresh = race_timeline(1, dropped=False)
    fresh.export_chrome(tmp_path / "fresh.json")
    events = read(tmp_path / "fresh.json")["traceEvents"]
    assert not [e for e in events if e.get("cat") == "outcome" or "cname" in e]
    assert "fresh" in [e.get("args", {}).get("outcome") for e in events]


def test_arrows_that_clocks_turn_back_still_bind(tmp_path):
    build = TimelineBuilder()
    build.span("enqueue", "host", 1_000, 500, "launch", launch=0)
    early = build.span("kernel", "main", 800, 1_000, "kernel", launch=0)  # began before its own launch
    build.span("enqueue", "host", 5_000, 500, "launch", launch=1)
    build.span("kernel", "main", 3_000, 100, "kernel", launch=1)  # over before its launch: no arrow can tell
    wait = build.span("wait", "matrix", 500, 3_000, "wait")  # began before what it waited for
    instant = build.span("marker", "vector", 800, 0, "kernel")
    build.edge(early, wait, "join")
    build.edge(instant, wait, "same place")
    t = build.build()
    t.export_chrome(tmp_path / "t.json")
    content = read(tmp_path / "t.json")
    arrows = check_structure(content)
    assert sorted(arrows["edge"]) == [(early, wait, "join"), (instant, wait, "same place")]
    assert arrows["launch"] == [(0, early, "launch")]
    assert content["otherData"]["arrows_not_drawn"] == 1
    assert timeline.open(tmp_path / "t.json").equals(t)


def test_nested_host_ranges_keep_their_order(tmp_path):
    build = TimelineBuilder()
    build.span("inner", "host", 100, 10, "launch", launch=0)
    build.span("outer", "host", 100, 50, "range")
    build.span("work", "main", 130, 5, "kernel", launch=0)
    t = build.build()
    t.export_chrome(tmp_path / "t.json")
    arrows = check_structure(read(tmp_path / "t.json"))
    assert arrows["launch"] == [(0, 2, "launch")]
    assert timeline.open(tmp_path / "t.json").equals(t)


def test_spans_that_cross_go_to_further_tracks_of_their_lane(tmp_path):
    build = TimelineBuilder()
    build.span("a", "main", 0, 100, "kernel")
    build.span("crosses a", "main", 50, 100, "kernel")
    build.span("within both", "main", 60, 10, "kernel")
    build.span("alone", "main", 200, 10, "kernel")
    build.span("other", "matrix", 0, 500, "kernel")
    t = build.build()
    t.export_chrome(tmp_path / "t.json")
    content = read(tmp_path / "t.json")
    check_structure(content)
    tracks = {e["tid"]: e["args"]["name"] for e in content["traceEvents"] if e["name"] == "thread_name"}
    assert tracks == {1: "main", 2: "main", 3: "matrix"}
    assert {e["name"]: e["tid"] for e in content["traceEvents"] if e["ph"] == "X"} == {
        "a": 1,
        "crosses a": 2,
        "within both": 1,
        "alone": 1,
        "other": 3,
    }
    assert timeline.open(tmp_path / "t.json").equals(t)


@pytest.mark.parametrize("seed", range(10))
def test_structure_holds_for_any_timeline(tmp_path, seed):
    """Arrows are those of the table, less those that cannot point forward and those of instants."""
    t = random_timeline(seed, 400)
    t.export_chrome(tmp_path / "t.json")
    content = read(tmp_path / "t.json")
    arrows = check_structure(content)
    drawn = sum(len(of_kind) for of_kind in arrows.values())
    assert drawn + content["otherData"]["arrows_not_drawn"] == len(t.edge_source) + len(t.launches())
    assert {"edge", "flow"} <= set(arrows) <= {"edge", "flow", "launch"}
    marks = (t.category == CATEGORIES.index("mark")) & (t.duration_ns == 0)
    assert sum(e["ph"] == "i" for e in content["traceEvents"]) == marks.sum() > 0
    assert sum(e["ph"] == "C" for e in content["traceEvents"]) == len(t.counter_ns)


def test_devices_and_processes_are_processes_of_the_viewer(tmp_path):
    build = TimelineBuilder()
    build.lane("thread 1", "host", process="python 4")
    build.lane("stream 7", device="0")
    build.lane("stream 20", device="0")
    build.lane("stream 8", device="rank 1 device 0", process="python 4")
    call = build.span("cudaLaunchKernel", "thread 1", 0, 10, "launch", launch=3)
    kernel = build.span("gemm", "stream 20", 20, 10, "kernel", launch=3)
    forward = build.span("copy", "stream 8", 40, 10, "copy")
    build.edge(kernel, forward, "fwdbwd", "flow")
    build.counter("memory", 5, 7.5)
    t = build.build(device="two of them")
    t.export_chrome(tmp_path / "t.json")
    content = read(tmp_path / "t.json")
    arrows = check_structure(content)
    assert arrows == {"launch": [(call, kernel, "launch")], "flow": [(kernel, forward, "fwdbwd")]}
    heads = [e for e in content["traceEvents"] if e["ph"] == "M"]
    names = {e["pid"]: e["args"]["name"] for e in heads if e["name"] == "process_name"}
    assert names == {1: "python 4", 2: "device 0", 3: "rank 1 device 0, python 4"}
    order = {e["pid"]: e["args"]["sort_index"] for e in heads if e["name"] == "process_sort_index"}
    assert sorted(order, key=order.get) == [1, 2, 3]
    assert {e["args"]["name"]: e["pid"] for e in heads if e["name"] == "thread_name"} == {
        "thread 1": 1,
        "stream 7": 2,
        "stream 20": 2,
        "stream 8": 3,
    }
    events = {e["name"]: e for e in content["traceEvents"] if e["ph"] in "XC"}
    assert events["gemm"]["args"] == {
        "span": 1,
        "stream": 20,
        "correlation": 3,
        "launch_delay_ns": 20,
    }
    assert "stream" not in events["cudaLaunchKernel"]["args"]
    assert events["memory"]["args"] == {"value": 7.5}
    assert events["memory"]["ts"] == Decimal("0.005")


def test_an_arrow_of_kind_flow_goes_from_start_to_start(tmp_path):
    build = TimelineBuilder()
    a = build.span("forward", "main", 0, 4_000, "op")
    b = build.span("backward", "matrix", 2_000, 4_000, "op")
    build.edge(a, b, "fwdbwd", "flow")
    build.build().export_chrome(tmp_path / "t.json")
    events = read(tmp_path / "t.json")["traceEvents"]
    assert {e["ph"]: e["ts"] for e in events if e.get("cat") == "flow"} == {"s": 0, "f": 2}


def test_what_is_told_of_a_result_twice_is_not_counted_twice(tmp_path):
    """Who adds up the work of streams finds each span once: the words below the lanes name no stream."""
    race_timeline(3).export_chrome(tmp_path / "t.json")
    events = read(tmp_path / "t.json")["traceEvents"]
    told = [e for e in events if e.get("cat") == "outcome"]
    assert [set(e["args"]) for e in told] == [{"span", "outcome"}] * 3
    assert sum("stream" in e.get("args", {}) for e in events) == 3 * 5


@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_a_reader_of_profiler_traces_finds_streams_and_launches(tmp_path):
    """HolisticTraceAnalysis' successor reads an export as it reads torch.profiler's traces."""
    parser = pytest.importorskip("hta.common.trace_parser", reason="needs traceinsight, of the extra dev")
    from hta.configs.parser_config import ParserConfig

    t = race_timeline(2)
    t.export_chrome(tmp_path / "t.json")
    _, table, symbols = parser.parse_trace_dataframe(str(tmp_path / "t.json"), ParserConfig.get_default_cfg())
    names = np.array(symbols.get_sym_table())[table["name"]]
    work = (table["stream"] >= 0).to_numpy()
    assert sorted(names[work]) == sorted(t.names[n] for n in t.name[t.on_device()])
    calls, done = table[~work & (table["correlation"] >= 0)], table[work]
    assert len(calls.merge(done, on="correlation")) == len(t.launches())


def test_export_says_why_it_cannot_write(tmp_path):
    t = race_timeline(1)
    with pytest.raises(LabError, match=r"the folder .*missing does not exist"):
        t.export_chrome(tmp_path / "missing" / "a.json")
    with pytest.raises(LabError, match="this is a folder"):
        t.export_chrome(tmp_path)


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="every folder is writable for root"
)
def test_export_into_a_folder_that_is_not_writable(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(LabError, match="cannot be written"):
        race_timeline(1).export_chrome(tmp_path / "a.json")
    tmp_path.chmod(0o755)


def test_a_full_disk_leaves_the_old_file_and_no_rest(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("old")

    def full(source, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(LabError, match=r"a\.json: cannot be written \(No space left on device\)"):
        race_timeline(1).export_chrome(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_export_changed_by_hand_is_refused(tmp_path):
    path = tmp_path / "a.json"
    race_timeline(1).export_chrome(path)
    content = json.loads(path.read_text())
    content["otherData"]["version"] = 99
    path.write_text(json.dumps(content))
    with pytest.raises(LabError, match="version 99"):
        timeline.open(path)
    content["otherData"]["version"] = 2
    content["traceEvents"] = [e for e in content["traceEvents"] if e.get("args", {}).get("span") != 3]
    path.write_text(json.dumps(content))
    with pytest.raises(LabError, match="changed after its export"):
        timeline.open(path)


def test_a_link_stays_a_link_and_its_file_is_written(tmp_path):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("old")
    link.symlink_to(real)
    builder = TimelineBuilder()
    builder.lane("main", "device")
    builder.span("one", "main", 10, 5, "kernel")
    builder.build().export_chrome(link)
    assert link.is_symlink()
    assert json.loads(real.read_text())["traceEvents"]


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, told in ((pipe, "a device or a pipe"), (None, "None is no file name"), ("", "is no file name")):
        with pytest.raises(LabError, match=told):
            check_target(path)
    assert pipe.is_fifo()
