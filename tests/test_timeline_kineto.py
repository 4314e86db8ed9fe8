"""Traces of torch.profiler: small ones made here, and real ones where they are at hand."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import Lane, from_kineto
from flashnorm_lab.timeline.kineto import arrows
from flashnorm_lab.timeline.kineto.pairs import pair
from flashnorm_lab.timeline.kineto.steps import steps_at
from flashnorm_lab.timeline.table import EDGE_KINDS

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
real = pytest.mark.skipif(
    not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)


def event(name, category, ts, dur, pid=0, tid=7, **args):
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": ts,
        "dur": dur,
        "pid": pid,
        "tid": tid,
        "args": args,
    }


def call(name, ts, dur, correlation):
    return event(name, "cuda_runtime", ts, dur, pid=100, tid=100, correlation=correlation)


def small_trace():
    """Two streams; stream 13's second kernel waits for an event recorded on stream 7; two profiler steps."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "A made-up GPU"}],
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "python"}},
            event("ProfilerStep#4", "user_annotation", 10.0, 50.0, pid=100, tid=100),
            event("step 5", "user_annotation", 60.5, 40.0, pid=100, tid=100),
            event("aten::mm", "cpu_op", 11.0, 5.0, pid=100, tid=100),
            call("cudaLaunchKernel", 12.001, 4.002, 1),
            call("cudaEventRecord", 17.0, 1.0, 2),
            call("cudaStreamWaitEvent", 19.0, 1.0, 3),
            call("cuLaunchKernelEx", 21.0, 3.0, 4),
            call("cudaMemcpyAsync", 61.0, 3.0, 5),
            call("cudaStreamSynchronize", 65.0, 30.0, 6),
            event("projection", "kernel", 20.003, 30.0, stream=7, device=0, correlation=1),
            event("post_scale", "kernel", 51.0, 4.0, tid=13, stream=13, device=0, correlation=4),
            event("Memcpy DtoH", "gpu_memcpy", 70.0, 2.0, stream=7, device=0, correlation=5),
            event("unlaunched", "kernel", 80.0, 1.0, stream=7, device=0),
            event(
                "Stream Wait Event", "cuda_sync", 19.0, 1.0, tid=13, stream=13, device=0, correlation=3,
                wait_on_stream=7, wait_on_cuda_event_record_corr_id=2, wait_on_cuda_event_id=9,
            ),
            event(
                "Stream Wait Event", "cuda_sync", 19.5, 1.0, tid=13, stream=13, device=0, correlation=3,
                wait_on_stream=-1, wait_on_cuda_event_record_corr_id=-1, wait_on_cuda_event_id=10,
            ),
            {"ph": "s", "id": 1, "pid": 100, "tid": 100, "ts": 12.001, "cat": "ac2g", "name": "ac2g"},
        ],
    }  # fmt: skip


def assert_all_accounted_for(t):
    counted = (*t.meta.get("rows", {}).values(), *t.meta.get("left_out", {}).values())
    assert len(t) + sum(counted) == t.meta["events"]


def write(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_small_trace(tmp_path):
    t = timeline.open(write(tmp_path, small_trace()))
    assert t.lanes == (
        Lane("host", "host", process="100"),
        Lane("stream 7", device="0", process="100"),
        Lane("stream 13", device="0", process="100"),
    )
    base = 1_700_000_000_000_000_000
    (launch,) = t.spans(name="cudaLaunchKernel")
    (kernel,) = t.spans(name="projection")
    assert (t.start_ns[launch], t.duration_ns[launch]) == (base + 12_001, 4_002)
    assert (t.start_ns[kernel], t.duration_ns[kernel], t.step[kernel]) == (base + 20_003, 30_000, 4)
    assert t.launch_delay_ns()[kernel] == 20_003 - 12_001
    frame = t.frame()
    host = frame[frame.lane == "host"].set_index("name").category
    assert host.to_dict() == {
        "ProfilerStep#4": "range",
        "step 5": "range",
        "aten::mm": "op",
        "cudaLaunchKernel": "launch",
        "cudaEventRecord": "record",
        "cudaStreamWaitEvent": "wait",
        "cuLaunchKernelEx": "launch",
        "cudaMemcpyAsync": "copy",
        "cudaStreamSynchronize": "synchronize",
    }
    assert frame[frame.name == "Memcpy DtoH"][["category", "step"]].values.tolist() == [["copy", 5]]
    assert frame[frame.name == "unlaunched"].step.tolist() == [-1]
    (post,) = t.spans(name="post_scale")
    assert (t.edge_source.tolist(), t.edge_target.tolist()) == ([kernel], [post])
    assert t.names[t.edge_name[0]] == "event 9"
    path = tmp_path / "trace.json"
    assert t.meta == {
        "device": "A made-up GPU",
        "provenance": "recorded",
        "source": str(path),
        "file": {
            "path": str(path),
            "bytes": path.stat().st_size,
            "mtime_ns": path.stat().st_mtime_ns,
        },
        "events": 17,
        "rows": {"metadata rows (phase M)": 1, "ends of launch arrows, kept as launch numbers": 1},
        "edges_unknown": 1,
        "base_ns": base,
        "notes": [
            "kernels, copies and fills without a correlation number: 1; the calls that enqueued them are not "
            "known"
        ],
    }
    assert_all_accounted_for(t)


def test_streams_by_their_names_and_meta_from_the_caller():
    t = from_kineto(
        small_trace(),
        streams={7: "main", 13: "matrix"},
        provenance="measured",
        device="here",
        schedule="deferred",
    )
    assert [lane.name for lane in t.lanes] == ["host", "main", "matrix"]
    assert (t.meta["provenance"], t.meta["device"], t.meta["schedule"]) == ("measured", "here", "deferred")
    assert "source" not in t.meta
    assert len(t.spans(name="projection", lane="main")) == 1


def test_an_import_survives_our_own_export(tmp_path):
    t = from_kineto(small_trace())
    t.export_chrome(tmp_path / "out.json")
    assert timeline.open(tmp_path / "out.json").equals(t)


def test_old_categories_a_bare_list_and_text_ids():
    t = from_kineto(
        [
            event(
                "cudaLaunchKernel",
                "Runtime",
                1606910596288085,
                7,
                pid=5,
                tid="4093687616",
                correlation="60032",
            ),
            event(
                "gemm", "Kernel", 1606910596288185, 379, tid="stream 7", stream=7, device=0, correlation=60032
            ),
            event("Memset", "Memset", 1606910596289185, 1, tid="stream 7", stream=7, device=0, correlation=1),
        ]
    )
    assert [lane.name for lane in t.lanes] == ["host", "stream 7"]
    assert t.launch_delay_ns()[1] == 100_000
    assert t.start_ns[1] == 1606910596288185000


def test_many_devices_and_threads():
    t = from_kineto(
        [
            event("cudaLaunchKernel", "cuda_runtime", 1, 1, pid=5, tid=8, correlation=1),
            event("cudaLaunchKernel", "cuda_runtime", 2, 1, pid=5, tid=9, correlation=2),
            event("a", "kernel", 3, 1, stream=7, device=0, correlation=1),
            event("b", "kernel", 3, 1, pid=1, stream=7, device=1, correlation=2),
        ]
    )
    assert [lane.name for lane in t.lanes] == ["host 8", "host 9", "device 0 stream 7", "device 1 stream 7"]


@pytest.mark.parametrize("wrapped", [gzip.compress, bytes])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_by_content_not_by_name(tmp_path, wrapped, encoding):
    path = tmp_path / "trace.txt"
    path.write_bytes(wrapped(json.dumps(small_trace()).encode(encoding)))
    t = timeline.open(path)
    expected = from_kineto(small_trace())
    assert t.with_meta(source="", file={}, notes=[]).equals(expected.with_meta(source="", file={}, notes=[]))


def one(**change):
    return {"traceEvents": [event("k", "kernel", 1, 2, stream=7, device=0) | change]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ('{"traceEvents": [{"ph": "X", "na', "ends too early"),
        ('{"traceEvents": [{ph: 1}]}', r"line 1, column 19.*not valid JSON"),
        ({"traceEvents": []}, r"holds nothing to show \(no events\)"),
        ({"traceEvents": [{"ph": "M", "name": "process_name"}] * 2}, r"nothing to show \(2 metadata rows"),
        ({"traceEvents": [{}]}, r"nothing to show \(1 events without a phase"),
        ({"traceEvents": {}}, "no list of traceEvents"),
        ("3", "no list of traceEvents"),
        ({"traceEvents": ["X"]}, 'event 0: "X" is not an event'),
        (one(args=[1]), r"event 0 \(k\): args is \[1\]"),
        (one(ts=None), r"event 0 \(k\): ts cannot be read: it is missing; .*1 of 1 events"),
        (one(ts="soon"), r"event 0 \(k\): ts cannot be read: 'soon' is not a number"),
        (one(dur="long"), r"event 0 \(k\): dur cannot be read: 'long' is not a number"),
        (one(ts=9_223_372_036_854_775, dur=800), r"event 0 \(k\): its end does not fit into 64 bits"),
        ('{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":NaN,"dur":1}]}', "NaN|ts cannot be read"),
        (one() | {"baseTimeNanoseconds": "now"}, "baseTimeNanoseconds is 'now'"),
    ],
)
def test_broken_files_in_one_line(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(LabError, match=message) as caught:
        from_kineto(path)
    assert "trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("change", "word"), [({"dur": -5}, "with a negative"), ({"dur": None}, "without a")])
def test_a_duration_that_cannot_be_is_drawn_as_none_and_said(change, word):
    t = from_kineto(one(**change))
    assert (t.start_ns.tolist(), t.duration_ns.tolist()) == ([1000], [0])
    assert t.notes[0] == (
        f"complete events {word} duration (dur): 1, the first of them event 0 (k); they are drawn as 0 ns "
        "at their start, so every busy time lacks them"
    )


def brackets(ph, name, ts, tid=1, **more):
    return {"ph": ph, "name": name, "ts": ts, "pid": 1, "tid": tid} | more


def rows(t):
    return {
        t.names[t.name[i]]: (int(t.start_ns[i]), int(t.duration_ns[i]), t.lanes[t.lane[i]].name)
        for i in range(len(t))
    }


def test_beginnings_and_ends_nest_on_their_own_thread_in_any_order():
    t = from_kineto(
        [
            brackets("E", "", 9),
            brackets("B", "inner", 3),
            brackets("B", "outer", 1),
            brackets("B", "other", 2, tid=2),
            brackets("E", "", 5),
            brackets("E", "", 30, tid=2),
        ]
    )
    assert rows(t) == {
        "inner": (3000, 2000, "host 1"),
        "outer": (1000, 8000, "host 1"),
        "other": (2000, 28000, "host 2"),
    }
    assert t.origin.tolist() == [1, 2, 3]
    assert_all_accounted_for(t)


def test_beginnings_without_an_end_and_ends_without_a_beginning():
    t = from_kineto(
        [
            brackets("E", "lost", 0),
            brackets("B", "open", 1),
            brackets("B", "closed", 2),
            brackets("E", "closed", 4),
            event("last", "cpu_op", 6, 3, pid=1, tid=1),
            event("later elsewhere", "cpu_op", 60, 3, pid=1, tid=2),
        ]
    )
    assert rows(t)["open"] == (1000, 8000, "host 1")
    assert rows(t)["closed"] == (2000, 2000, "host 1")
    assert t.meta["left_out"] == {"ends of ranges (phases B and E) that nothing began": 1}
    assert t.notes == (
        "ranges (phases B and E) without an end: 1, the first of them event 1 (open); each is drawn up to "
        "the end of the last event of its thread",
    )
    assert_all_accounted_for(t)


def slow_pairs(group, time, opens):
    """Brackets matched with one stack for each group."""
    stacks, pairs, lost = {}, [], []
    for i in sorted(range(len(group)), key=lambda i: (time[i], i)):
        stack = stacks.setdefault(group[i], [])
        if opens[i]:
            stack.append(i)
        elif stack:
            pairs.append((stack.pop(), i))
        else:
            lost.append(i)
    return sorted(pairs), sorted(i for stack in stacks.values() for i in stack), sorted(lost)


@pytest.mark.parametrize("seed", range(40))
def test_pairs_are_those_of_a_stack(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 60))
    group, time = rng.integers(0, 3, n), rng.integers(0, 30, n)
    opens = rng.random(n) < rng.choice([0.3, 0.5, 0.8])
    found = pair(group, time, opens)
    assert (
        sorted(zip(found.first.tolist(), found.second.tolist(), strict=True)),
        sorted(found.unclosed.tolist()),
        sorted(found.unopened.tolist()),
    ) == slow_pairs(group.tolist(), time.tolist(), opens.tolist())


@pytest.mark.parametrize("seed", range(40))
def test_slices_around_at_and_behind_a_time_are_those_of_a_search(seed):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(0, 40)), 25
    thread, start = rng.integers(0, 3, n), rng.integers(0, 50, n)
    end = start + rng.integers(0, 30, n)
    at_thread, at = rng.integers(0, 4, m), rng.integers(-2, 60, m)
    around = arrows.enclosing(thread, start, end, at_thread, at)
    behind = arrows.following(thread, start, end, at_thread, at)
    exact = arrows.starting(thread, start, at_thread, at)
    for k in range(m):
        here = [i for i in range(n) if thread[i] == at_thread[k]]
        inside = [i for i in here if start[i] <= at[k] <= end[i]]
        assert around[k] == max(inside, key=lambda i: (start[i], -end[i], i), default=-1)
        later = [i for i in here if start[i] >= at[k]]
        assert behind[k] == min(later, key=lambda i: (start[i], -end[i], i), default=-1)
        same = [i for i in here if start[i] == at[k]]
        assert exact[k] == (same[0] if len(same) == 1 else -1)


@pytest.mark.parametrize("seed", range(20))
def test_steps_are_those_of_a_search(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(0, 8))
    start = rng.integers(0, 50, n)
    end, number = start + rng.integers(0, 30, n), np.arange(n)
    at = np.arange(-1, 85)
    for time, step in zip(at.tolist(), steps_at(start, end, number, at).tolist(), strict=True):
        open_ = [i for i in range(n) if start[i] <= time < end[i]]
        assert step in [i for i in open_ if start[i] == max(start[open_])] if open_ else step == -1


def test_instants_and_samples_are_marks():
    t = from_kineto(
        [
            brackets("i", "here", 5, s="t"),
            brackets("I", "old", 6),
            brackets("R", "older", 7),
            brackets("P", "sample", 8),
            {"ph": "i", "s": "p", "name": "process", "ts": 9, "pid": 1},
            {"ph": "i", "s": "g", "name": "everywhere", "ts": 9, "pid": None, "tid": None},
        ]
    )
    assert set(t.category.tolist()) == {timeline.CATEGORIES.index("mark")}
    assert not t.duration_ns.any()
    assert [t.lanes[i].name for i in t.lane] == ["host 1"] * 4 + ["process 1", "trace"]
    assert_all_accounted_for(t)


def test_async_ranges_have_lanes_of_their_own():
    t = from_kineto(
        [
            brackets("b", "request", 1, cat="net", id="0x1"),
            brackets("b", "part", 2, cat="net", id="0x1", tid=2),
            brackets("n", "note", 3, cat="net", id="0x1"),
            brackets("b", "another", 3, cat="net", id="0x2"),
            brackets("e", "part", 4, cat="net", id="0x1", tid=3),
            brackets("e", "another", 5, cat="net", id="0x2"),
            brackets("e", "request", 9, cat="net", id="0x1"),
            brackets("S", "old", 1, cat="disk", id=1),
            brackets("F", "old", 2, cat="disk", id=1),
            brackets("e", "never begun", 2, cat="disk", id=7),
        ]
    )
    assert rows(t) == {
        "request": (1000, 8000, "async net"),
        "part": (2000, 2000, "async net"),
        "note": (3000, 0, "async net"),
        "another": (3000, 2000, "async net"),
        "old": (1000, 1000, "async disk"),
    }
    assert t.meta["left_out"] == {"ends of async ranges (phases b and e) that nothing began": 1}
    assert_all_accounted_for(t)


def counter(name, ts, pid=1, **args):
    return {"ph": "C", "name": name, "ts": ts, "pid": pid, "args": args}


def test_counters_are_series_of_numbers():
    t = from_kineto(
        [
            counter("memory", 1, value=10),
            counter("memory", 2, value=12.5),
            counter("heap", 3, used=1, free="2", note="full"),
            counter("same", 4, same=3),
            counter("other key", 4, bytes=3),
            counter("shared", 5, pid=1, value=1),
            counter("shared", 6, pid=2, value=2),
            counter("words", 7, value="many"),
            counter("nothing", 7),
            counter("not finite", 7, value="inf", right=True),
            counter("numbered", 8, value=1) | {"id": 4},
        ]
    )
    series = [t.names[i] for i in t.counter_name]
    assert list(zip(series, t.counter_ns.tolist(), t.counter_value.tolist(), strict=True)) == [
        ("memory", 1000, 10.0),
        ("memory", 2000, 12.5),
        ("heap: used", 3000, 1.0),
        ("heap: free", 3000, 2.0),
        ("same", 4000, 3.0),
        ("other key: bytes", 4000, 3.0),
        ("shared (1)", 5000, 1.0),
        ("shared (2)", 6000, 2.0),
        ("numbered[4]", 8000, 1.0),
    ]
    assert t.meta["left_out"] == {"counters that tell no number (phase C)": 3}
    assert t.notes == ("values of counters that are no numbers, left out: 1",)
    assert_all_accounted_for(t)


def test_numbers_that_no_float_holds_are_no_samples(tmp_path):
    wait = event("Stream Wait Event", "cuda_sync", 1, 1, wait_on_stream=["huge"])
    text = json.dumps([counter("c", 1, a=1, b="huge", c="-huge"), wait])
    t = from_kineto(write(tmp_path, text.replace('"huge"', "1e999").replace('"-huge"', "-1e999")))
    assert (t.counter_value.tolist(), t.meta["edges_unknown"]) == ([1.0], 1)
    assert t.notes == ("values of counters that are no numbers, left out: 2",)


def arrow(ph, identity, ts, tid=1, cat="fwdbwd", **more):
    return {"ph": ph, "id": identity, "ts": ts, "pid": 1, "tid": tid, "cat": cat, "name": cat} | more


def drawn(t):
    return {
        (t.names[t.name[s]], t.names[t.name[d]], t.names[name], EDGE_KINDS[kind])
        for s, d, name, kind in zip(t.edge_source, t.edge_target, t.edge_name, t.edge_kind, strict=True)
    }


def test_arrows_bind_to_the_slice_around_them_or_to_the_next_one():
    host = [
        event("outer", "cpu_op", 0, 100, pid=1, tid=1),
        event("inner", "cpu_op", 10, 10, pid=1, tid=1),
        event("backward", "cpu_op", 200, 50, pid=1, tid=2),
        event("next", "cpu_op", 260, 5, pid=1, tid=2),
        event("still later", "cpu_op", 270, 5, pid=1, tid=2),
    ]
    t = from_kineto(
        [
            *host,
            arrow("s", 1, 15),
            arrow("f", 1, 210, tid=2, bp="e"),
            arrow("s", 2, 30),
            arrow("f", 2, 255, tid=2),
            arrow("f", 3, 25, bp="e"),
            arrow("s", 3, 271, tid=2),
            arrow("s", 4, 15, cat="relay"),
            arrow("t", 4, 205, tid=2, cat="relay"),
            arrow("f", 4, 262, tid=2, cat="relay", bp="e"),
            arrow("s", 5, 15, cat="fan"),
            arrow("f", 5, 205, tid=2, cat="fan", bp="e"),
            arrow("f", 5, 262, tid=2, cat="fan", bp="e"),
            arrow("s", 6, 15, cat="nowhere"),
            arrow("f", 7, 205, tid=2, cat="from nowhere", bp="e"),
            arrow("s", 8, 15, cat="gap"),
            arrow("f", 8, 255, tid=2, cat="gap", bp="e"),
        ]
    )
    assert drawn(t) == {
        ("inner", "backward", "fwdbwd", "flow"),
        ("outer", "next", "fwdbwd", "flow"),
        ("still later", "outer", "fwdbwd", "flow"),
        ("inner", "backward", "relay", "flow"),
        ("backward", "next", "relay", "flow"),
        ("inner", "backward", "fan", "flow"),
        ("inner", "next", "fan", "flow"),
    }
    why = "arrows with no other end, or with no slice at an end"
    assert t.meta["left_out"] == {
        f"ends of nowhere {why}": 1,
        f"ends of from nowhere {why}": 1,
        f"ends of gap {why}": 2,
    }
    assert_all_accounted_for(t)


def test_arrow_ids_of_two_processes_stay_apart():
    def process(pid):
        return [
            event(f"forward {pid}", "cpu_op", 0, 10, pid=pid, tid=1),
            event(f"backward {pid}", "cpu_op", 20, 10, pid=pid, tid=1),
            arrow("s", 1, 5) | {"pid": pid},
            arrow("f", 1, 25, bp="e") | {"pid": pid},
        ]

    t = from_kineto([*process(1), *process(2)])
    assert {edge[:2] for edge in drawn(t)} == {("forward 1", "backward 1"), ("forward 2", "backward 2")}


def test_launch_arrows_are_launches_even_where_an_event_lacks_its_number():
    launch = call("cudaLaunchKernel", 10, 2, 5)
    del launch["args"]["correlation"]
    t = from_kineto(
        [
            launch,
            event("k", "kernel", 20, 4, tid=7, stream=7, device=0),
            event("unknown", "kernel", 40, 4, tid=7, stream=7, device=0),
            arrow("s", 5, 10, cat="ac2g") | {"pid": 100, "tid": 100},
            arrow("f", "5", 20, cat="ac2g", bp="e") | {"pid": 0, "tid": 7},
            arrow("f", 6, 90, cat="ac2g", bp="e") | {"pid": 0, "tid": 7},
        ]
    )
    assert t.launches().tolist() == [[0, 1]]
    assert t.launch.tolist() == [5, 5, -1]
    assert not len(t.edge_source)
    assert t.meta["rows"] == {"ends of launch arrows, kept as launch numbers": 2}
    assert t.meta["left_out"] == {"ends of ac2g arrows that no slice's launch number fits": 1}
    assert [note.partition(";")[0] for note in t.notes] == [
        "kernels, copies and fills without a correlation number: 1"
    ] * 2
    assert_all_accounted_for(t)


@pytest.mark.parametrize("unknown", [None, -1, "", "none", [1], {}])
def test_what_is_no_correlation_is_none(unknown):
    t = from_kineto(
        [
            call("cudaLaunchKernel", 10, 2, unknown),
            event("k", "kernel", 20, 4, tid=7, stream=7, device=0, correlation=unknown),
        ]
    )
    assert t.launch.tolist() == [-1, -1]


def named(pid, tid, name, what="thread_name"):
    key = {"process_labels": "labels", "thread_sort_index": "sort_index", "process_sort_index": "sort_index"}
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {key.get(what, "name"): name}}


def test_lanes_are_named_and_ordered_by_the_metadata():
    t = from_kineto(
        [
            named(5, 0, "python", "process_name"),
            named(0, 0, "python", "process_name"),
            named(0, 0, "GPU 0", "process_labels"),
            named(5, 9, "announced wrongly at first"),
            named(5, 9, "thread 9 (loader)"),
            named(5, 8, "thread 8 (main)"),
            named(5, 7, "thread 7 (main)"),
            named(5, 7, 1, "thread_sort_index"),
            named(5, 9, 2, "thread_sort_index"),
            named(0, 20, "stream 20 "),
            named(0, 21, "copy engine"),
            event("op", "cpu_op", 1, 1, pid=5, tid=9),
            event("op", "cpu_op", 2, 1, pid=5, tid=7),
            event("cudaLaunchKernel", "cuda_runtime", 9, 1, pid=5, tid=8, correlation=1),
            event("k", "kernel", 11, 1, pid=0, tid=20, stream=20, device=0, correlation=1),
            event("k", "kernel", 12, 1, pid=0, tid=3, stream=3, device=0),
            event("range", "gpu_user_annotation", 11, 1, pid=0, tid=20),
            event("whatever", "made_up", 11, 1, pid=0, tid=20),
            event("whatever", "made_up", 11, 1, pid=0, tid=21),
            event("whatever", "made_up", 11, 1, pid=5, tid=9),
            event("Context Sync", "cuda_sync", 30, 1, pid=0, tid=-1, stream=-1, device=0),
        ]
    )
    assert [(lane.name, lane.kind, lane.device, lane.process) for lane in t.lanes] == [
        ("host", "host", "", "python 5"),
        ("thread 7 (main)", "host", "", "python 5"),
        ("thread 9 (loader)", "host", "", "python 5"),
        ("stream 3", "device", "0", ""),
        ("stream 20", "device", "0", "python 5"),
        ("copy engine", "device", "0", ""),
        ("no stream", "device", "0", ""),
    ]
    assert [t.lanes[i].name for i in t.spans(name="whatever").tolist() for i in [t.lane[i]]] == [
        "stream 20",
        "copy engine",
        "thread 9 (loader)",
    ]
    (enclosing,) = t.spans(name="range")
    assert timeline.CATEGORIES[t.category[enclosing]] == "range"


def test_ids_that_are_missing_null_or_text():
    t = from_kineto(
        [
            {"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1, "dur": 1},
            {"ph": "X", "cat": "cpu_op", "name": "b", "ts": 2, "dur": 1, "pid": None, "tid": None},
            {"ph": "X", "cat": "cpu_op", "name": "c", "ts": 3, "dur": 1, "pid": "Spans", "tid": "Profiler"},
            {"ph": "X", "cat": "cpu_op", "name": "d", "ts": 4, "dur": 1, "pid": "5", "tid": " 6"},
            {"ph": "X", "cat": "cpu_op", "name": "e", "ts": 5, "dur": 1, "pid": 5, "tid": 6},
            {"ph": "X", "cat": "kernel", "name": "f", "ts": 6, "dur": 1, "pid": 0, "tid": "stream 7"},
            {"ph": "X", "cat": "kernel", "name": "g", "ts": 7, "dur": 1, "pid": 0, "tid": 7,
             "args": {"stream": "7", "device": "0"}},
            {"ph": "X", "cat": "kernel", "name": "h", "ts": 8, "dur": 1},
        ]
    )  # fmt: skip
    lanes = {name: lane for name, (_, _, lane) in rows(t).items()}
    assert lanes["a"] == lanes["b"] == "trace"
    assert (lanes["c"], lanes["d"], lanes["e"]) == ("Profiler", "host 6", "host 6")
    assert lanes["f"] == lanes["g"] == "device 0 stream 7"
    assert lanes["h"] == "unknown device no stream"


def test_equal_names_are_told_apart():
    t = from_kineto(
        [
            named(5, 8, "worker"),
            named(5, 9, "worker"),
            named(6, 9, "worker"),
            *(event("op", "cpu_op", i, 1, pid=p, tid=t) for i, (p, t) in enumerate([(5, 8), (5, 9), (6, 9)])),
            event("op", "cpu_op", 9, 1, pid=5, tid=1),
            event("op", "cpu_op", 9, 1, pid=6, tid=1),
        ]
    )
    assert [lane.name for lane in t.lanes] == [
        "worker · 8",
        "worker · 9 · 5",
        "worker · 9 · 6",
        "host 5/1",
        "host 6/1",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaLaunchKernel", "launch"),
        ("cudaLaunchKernelExC_v11060", "launch"),
        ("cuLaunchKernelEx", "launch"),
        ("hipExtModuleLaunchKernel", "launch"),
        ("cudaLaunchCooperativeKernel", "launch"),
        ("urEnqueueKernelLaunch", "launch"),
        ("cudaLaunchHostFunc", "call"),
        ("cudaGraphLaunch", "graph"),
        ("hipGraphLaunch", "graph"),
        ("cudaGraphAddMemcpyNode", "call"),
        ("cudaGraphInstantiate", "call"),
        ("cudaMemcpyAsync", "copy"),
        ("cuMemcpyDtoHAsync_v2", "copy"),
        ("cudaMemsetAsync", "fill"),
        ("cuMemsetD8Async", "fill"),
        ("cudaEventRecordWithFlags", "record"),
        ("cudaStreamWaitEvent", "wait"),
        ("cudaDeviceSynchronize", "synchronize"),
        ("cudaEventQuery", "call"),
        ("cudaMalloc", "call"),
    ],
)
def test_what_a_call_does_by_its_name(name, expected):
    t = from_kineto([call(name, 1, 1, 1)])
    assert t.frame().category.tolist() == [expected]


@pytest.mark.parametrize(
    ("category", "expected"),
    [
        ("cpu_op", ("host", "op")),
        ("Operator", ("host", "op")),
        ("python_function", ("host", "op")),
        ("user_annotation", ("host", "range")),
        ("cuda_driver", ("host", "call")),
        ("Runtime", ("host", "call")),
        ("mtia_runtime", ("host", "call")),
        ("xpu_driver", ("host", "call")),
        ("privateuse1_runtime", ("host", "call")),
        ("overhead", ("host", "other")),
        ("Trace", ("host", "other")),
        ("kernel", ("device", "kernel")),
        ("Kernel", ("device", "kernel")),
        ("gpu_memcpy", ("device", "copy")),
        ("Memcpy", ("device", "copy")),
        ("gpu_memset", ("device", "fill")),
        ("Memset", ("device", "fill")),
        ("gpu_user_annotation", ("device", "range")),
        ("mtia_ccp_events", ("device", "other")),
        ("what,kernel", ("device", "kernel")),
        ("what", ("host", "other")),
        (None, ("host", "other")),
        ("", ("host", "other")),
    ],
)
def test_categories_old_and_new(category, expected):
    t = from_kineto([event("thing", category, 1, 1)])
    assert t.frame()[["kind", "category"]].values.tolist() == [list(expected)]


@pytest.mark.parametrize(
    ("made", "entry", "expected"),
    [
        ("cudaEventQuery", "Event Sync", "other"),
        ("cudaEventSynchronize", "Event Sync", "synchronize"),
        ("cudaStreamWaitEvent", "Stream Wait Event", "wait"),
        ("cudaStreamWaitEvent", "Event Sync", "wait"),
        ("cudaMemcpy", "Stream Sync", "other"),
        (None, "Context Sync", "synchronize"),
        (None, "Stream Wait Event", "wait"),
        (None, "something new", "other"),
    ],
)
def test_the_call_says_what_an_entry_on_a_synchronization_is(made, entry, expected):
    calls = [call(made, 1, 1, 4)] if made else []
    t = from_kineto(
        [*calls, event(entry, "cuda_sync", 1, 1, pid=0, tid=3, stream=3, device=0, correlation=4)]
    )
    assert timeline.CATEGORIES[t.category[-1]] == expected
    assert not len(t.operations())


def rank(pid, device_pid, correlations, start, stream=7):
    """Calls of a process and their work on a device that the file calls ``device_pid``."""
    for i, correlation in enumerate(correlations):
        at = start + 10 * i
        yield event("cudaLaunchKernel", "cuda_runtime", at, 1, pid=pid, tid=1, correlation=correlation)
        yield event(
            f"k{pid}", "kernel", at + 3, 1, pid=device_pid, tid=stream, stream=stream, device=0,
            correlation=correlation,
        )  # fmt: skip


def by_name(t):
    return {(t.names[t.name[work]], t.lanes[t.lane[host]].process) for host, work in t.launches().tolist()}


def test_one_number_in_two_processes_is_two_launches():
    t = from_kineto([*rank(100, 1000, [1, 2, 5], 0), *rank(200, 2000, [2, 1, 9], 5)])
    assert len(t.launches()) == 6
    assert by_name(t) == {("k100", "100"), ("k200", "200")}
    assert [lane.name for lane in t.lanes if lane.kind == "device"] == ["stream 7 · 1000", "stream 7 · 2000"]
    assert [lane.process for lane in t.lanes if lane.kind == "device"] == ["100", "200"]
    assert (t.launch_delay_ns()[t.operations()] == 3000).all()
    assert not t.notes


def test_one_number_in_two_processes_where_nothing_tells_whose_it_is():
    t = from_kineto([*rank(100, 0, [1, 2, 5], 0), *rank(200, 0, [2, 1, 9], 5)])
    assert len(t.launches()) == 2
    assert by_name(t) == {("k100", "100"), ("k200", "200")}
    assert (t.launch[t.operations()] == -1).sum() == 4
    assert t.notes == (
        "device work with a correlation number that several processes use, where nothing tells whose it is: "
        "4; the calls that enqueued it are taken as unknown",
    )


def test_numbers_of_two_processes_that_are_apart_stay_as_they_are():
    t = from_kineto([*rank(100, 0, [1, 2], 0), *rank(200, 0, [3, 4], 5)])
    assert sorted(set(t.launch.tolist())) == [1, 2, 3, 4]
    assert len(t.launches()) == 4


def test_huge_numbers_of_two_processes_are_moved_apart_too():
    huge = 2**62
    t = from_kineto([*rank(100, 1000, [huge, 3], 0), *rank(200, 2000, [huge, 4], 5)])
    assert len(t.launches()) == 4
    assert by_name(t) == {("k100", "100"), ("k200", "200")}


def test_steps_within_steps_and_of_other_threads_and_processes():
    def annotated(name, ts, dur, pid=100, tid=100):
        return event(name, "user_annotation", ts, dur, pid=pid, tid=tid)

    one_process = [
        annotated("ProfilerStep#1", 0, 100),
        annotated("step 7", 20, 10),
        annotated("step 7 and more", 40, 1),
        event("another thread", "cpu_op", 25, 1, pid=100, tid=5),
        event("after the inner one", "cpu_op", 35, 1, pid=100, tid=100),
        event("outside", "cpu_op", 100, 1, pid=100, tid=100),
        call("cudaLaunchKernel", 24, 1, 1),
        event("late work", "kernel", 500, 1, stream=7, device=0, correlation=1),
        event("ProfilerStep#9", "gpu_user_annotation", 500, 1, stream=7),
    ]
    t = from_kineto(one_process)
    steps = {t.names[t.name[i]]: int(t.step[i]) for i in range(len(t))}
    assert steps == {
        "ProfilerStep#1": 1,
        "step 7": 7,
        "step 7 and more": 1,
        "another thread": 7,
        "after the inner one": 1,
        "outside": -1,
        "cudaLaunchKernel": 7,
        "late work": 7,
        "ProfilerStep#9": 9,
    }
    other = [annotated("ProfilerStep#3", 20, 50, pid=200), event("its own", "cpu_op", 22, 1, pid=200, tid=1)]
    t = from_kineto([*one_process, *other])
    assert {t.names[t.name[i]]: int(t.step[i]) for i in range(len(t))} == steps | {
        "ProfilerStep#3": 3,
        "its own": 3,
    }


def test_phases_that_are_no_part_of_a_timeline_are_counted():
    phases = [brackets(ph, "thing", 1) for ph in "NODVvc=()?"]
    t = from_kineto([*phases, {}, {"ph": "long"}, event("op", "cpu_op", 1, 1)])
    assert len(t) == 1
    assert t.meta["left_out"] == {
        "objects (phase N)": 1,
        "objects (phase O)": 1,
        "objects (phase D)": 1,
        "memory dumps (phase V)": 1,
        "memory dumps (phase v)": 1,
        "clock readings (phase c)": 1,
        "links between ids (phase =)": 1,
        "contexts (phase '(')": 1,
        "contexts (phase ')')": 1,
        "events of phase ?": 1,
        "events without a phase (ph)": 2,
    }
    assert_all_accounted_for(t)


def some_event(rng):
    """An event of any phase, with ids that collide, and fields that are missing here and there."""

    def any_of(*values):
        return values[rng.integers(len(values))]

    made = {
        "ph": any_of(*"XXXXXXBBEEiIRCstfbenMPNSF", "", "long"),
        "cat": any_of("kernel", "Kernel", "cuda_runtime", "cpu_op", "cuda_sync", "ac2g", "fwdbwd", "x", None),
        "name": any_of("cudaLaunchKernel", "cudaStreamWaitEvent", "Stream Wait Event", "ProfilerStep#3", "k"),
        "ts": any_of(*range(20)),
        "dur": any_of(*range(10), -3, None),
        "pid": any_of(0, 1, "1", None, "Spans"),
        "tid": any_of(7, 8, "stream 7", None, -1),
        "id": any_of(1, 2, "3", None),
        "bp": any_of("e", None),
        "args": {
            "correlation": any_of(1, 2, 3, -1, None),
            "stream": any_of(7, 8, -1, "7", None),
            "device": any_of(0, 1, None),
            "wait_on_stream": any_of(7, 8, -1),
            "wait_on_cuda_event_record_corr_id": any_of(1, 2, 3, -1),
            "name": any_of("a thread", None),
        },
    }
    for part in (made, made["args"]):
        for key in [k for k in part if k not in ("ts", "args") and rng.random() < 0.1]:
            del part[key]
    return made


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_is_accounted_for(seed):
    rng = np.random.default_rng(seed)
    events = [event("op", "cpu_op", 0, 1), *(some_event(rng) for _ in range(rng.integers(1, 60)))]
    t = from_kineto(events)
    assert_all_accounted_for(t)
    assert (np.diff(t.origin) > 0).all()
    assert len({lane.name for lane in t.lanes}) == len(t.lanes)
    for i, origin in enumerate(t.origin.tolist()):
        assert t.start_ns[i] == 1000 * events[origin]["ts"]
        assert t.names[t.name[i]] == events[origin].get("name", "unnamed")
    work = t.operations()
    assert {events[i]["cat"].lower() for i in t.origin[work]} <= {"kernel"}
    assert all(events[t.origin[host]]["cat"] == "cuda_runtime" for host in t.launches()[:, 0])


def test_the_rank_and_the_devices_are_told():
    t = from_kineto(small_trace() | {"distributedInfo": {"rank": 0, "world_size": 2}})
    assert t.meta["rank"] == 0
    assert "rank" not in from_kineto(small_trace()).meta
    assert from_kineto(small_trace() | {"displayTimeUnit": "ns"}).equals(from_kineto(small_trace()))


def test_names_are_kept_once_and_an_event_takes_few_bytes():
    events = [event(f"op {i % 7}", "cpu_op", i, 1, pid=1, tid=i % 3) for i in range(20_000)]
    t = from_kineto(events)
    assert len(t.names) == 7
    columns = [value for value in vars(t).values() if isinstance(value, np.ndarray)]
    assert sum(column.nbytes for column in columns) <= 200 * len(events)


def test_an_event_without_a_name_has_one_that_says_so():
    t = from_kineto([{"ph": "X", "ts": 1, "dur": 2, "pid": 1, "tid": 1}, event("op", "cpu_op", 1, 1)])
    assert [t.names[i] for i in t.name] == ["unnamed", "op"]


@real
@pytest.mark.parametrize("path", sorted((CASES / "malformed").glob("*")), ids=lambda path: path.name)
def test_every_malformed_file_opens_or_says_why_not(path):
    refused = {
        "empty.json": "the file is empty",
        "empty_events.json": "holds nothing to show",
        "git_lfs_pointer.sqlite": "git lfs pull",
        "pt113001_raw_newline_and_quotes_in_name.json": "not valid JSON",
        "pt33961_unquoted_key.json": "not valid JSON",
        "trunc_gzip_stream.json.gz": "cut off",
        "trunc_mid_event.json": "cut off",
    }
    if path.name in refused:
        with pytest.raises(LabError, match=refused[path.name]) as caught:
            from_kineto(path)
        assert path.name in str(caught.value)
        assert "\n" not in str(caught.value)
    else:
        t = from_kineto(path)
        assert len(t)
        assert_all_accounted_for(t)


@real
@pytest.mark.parametrize(
    ("name", "busy_ns", "note"),
    [
        ("kernels_no_dur", 3_000, "without a duration (dur): 3, the first of them event 24 (ampere_sgemm"),
        (
            "negative_dur",
            3_000,
            "with a negative duration (dur): 3, the first of them event 24 (ampere_sgemm",
        ),
        (
            "no_correlation",
            372_000,
            "fills without a correlation number: 6; the arrows that end at their starts",
        ),
        ("ts_as_strings", 372_000, "times are given as text"),
    ],
)
def test_malformed_files_of_which_the_meaning_is_beyond_doubt(name, busy_ns, note):
    t = from_kineto(CASES / "malformed" / f"{name}.json")
    assert t.duration_ns[t.operations()].sum() == busy_ns
    assert len(t.launches()) == 6
    assert any(note in line for line in t.notes)
