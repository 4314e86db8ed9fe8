"""Traces of torch.profiler: small ones made here, and real ones where they are at hand."""

import gzip
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import Lane, from_kineto
from flashnorm_lab.timeline.jsonfile import nanoseconds

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


def write(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_small_trace(tmp_path):
    t = timeline.open(write(tmp_path, small_trace()))
    assert t.lanes == (Lane("host", "host"), Lane("stream 7"), Lane("stream 13"))
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
    assert t.meta == {
        "device": "A made-up GPU",
        "provenance": "recorded",
        "source": str(tmp_path / "trace.json"),
        "left_out": {"cpu_op": 1, "ac2g (phase s)": 1},
        "edges_unknown": 1,
    }


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
    assert timeline.open(path).with_meta(source="").equals(from_kineto(small_trace()).with_meta(source=""))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("1712195495505543.140"), 1712195495505543140),
        ("1712195495505543.140", 1712195495505543140),
        (1712195495505543, 1712195495505543000),
        (Decimal("1E+3"), 1_000_000),
        (Decimal("0.0005"), 0),
        (Decimal("0.0015"), 2),
        ("-3.5", -3500),
    ],
)
def test_times_come_from_the_text(value, expected):
    assert nanoseconds(value) == expected
    if "." in str(value) and len(str(value)) > 15:
        assert round(float(value) * 1000) != expected  # what a float would have made of it


@pytest.mark.parametrize(
    "value", [None, True, "soon", "NaN", Decimal("Infinity"), Decimal("1e999999999"), 2**62, []]
)
def test_what_is_no_time(value):
    with pytest.raises(ValueError, match=r"not a (number|time)|do not fit"):
        nanoseconds(value)


def one(**change):
    return {"traceEvents": [event("k", "kernel", 1, 2, stream=7, device=0) | change]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("   \n", "the file is empty"),
        ('{"traceEvents": [{"ph": "X", "na', "ends too early"),
        ('{"traceEvents": [{"ph": "X", "ts": 1', "ends too early"),
        ('{"traceEvents": [1,]}', r"line 1, column \d+: not valid JSON"),
        ('{"traceEvents": [{ph: 1}]}', r"line 1, column 19: not valid JSON"),
        ("[" * 100_000, "not a trace"),
        ('{"a": ' + "1" * 5000 + "}", "not a trace"),
        ({"traceEvents": []}, r"holds no kernel.*\(no events\)"),
        ({"traceEvents": {}}, "no list of traceEvents"),
        ("3", "no list of traceEvents"),
        ({"traceEvents": [event("aten::mm", "cpu_op", 1, 2)]}, r"holds no kernel.*\(1 cpu_op\)"),
        ({"traceEvents": ["X"]}, "event 0: 'X' is not an event"),
        (one(args=[1]), r"event 0: args is \[1\]"),
        (one(dur=-5), r"event 0 \(k\): dur is -5"),
        (one(dur=None), r"event 0 \(k\): dur cannot be read: it is missing"),
        (one(ts="soon"), r"event 0 \(k\): ts cannot be read: 'soon' is not a number"),
        ('{"traceEvents": [{"ph":"X","cat":"kernel","name":"k","ts":NaN,"dur":1}]}', "ts cannot be read"),
        (one() | {"baseTimeNanoseconds": "now"}, "baseTimeNanoseconds is 'now'"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        ("SQLite format 3\0 and so on", "SQLite database"),
    ],
)
def test_broken_files_in_one_line(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(LabError, match=message) as caught:
        timeline.open(path)
    assert "trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_bytes_in_one_line(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(small_trace()).encode())[:-40])
    with pytest.raises(LabError, match="gzip stream is damaged or cut off"):
        timeline.open(path)
    path.write_bytes(b'{"a": "\xff\xfe"}')
    with pytest.raises(LabError, match="byte 7 is not utf-8 text"):
        timeline.open(path)
    with pytest.raises(LabError, match="no such file"):
        timeline.open(tmp_path / "nowhere.json")
    with pytest.raises(LabError, match="cannot be read"):
        timeline.open(tmp_path)


def plain(name):
    """The events of a real file, read slowly and plainly, and the nanoseconds of its base time."""
    data = (CASES / "traces" / name).read_bytes()
    content = json.loads(gzip.decompress(data), parse_float=Decimal)
    if isinstance(content, list):
        return content, 0
    return content["traceEvents"], content.get("baseTimeNanoseconds", 0)


def busy(intervals):
    """The length of a union of intervals, by walking through them in order."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset")
RUNTIME = ("cuda_runtime", "cuda_driver", "Runtime")


@real
@pytest.mark.parametrize(
    "name",
    [
        "kineto_event_sync_three_streams.json.gz",
        "kineto_h100_kernels_without_launch.json.gz",
        "kineto_nanosecond_decimals.json.gz",
        "kineto_rocm_graph_fan_out.json.gz",
        "kineto_2020_top_level_list.json.gz",
    ],
)
def test_real_files_against_a_plain_reading(name):
    events, base = plain(name)
    work = [e for e in events if e["ph"] == "X" and e["cat"] in DEVICE]
    launched = {e["args"].get("correlation") for e in events if e["ph"] == "X" and e["cat"] in RUNTIME}
    t = timeline.open(CASES / "traces" / name)
    device = t.on_device()
    assert device.sum() == len(work)
    assert sorted(t.start_ns[device]) == sorted(base + int(e["ts"] * 1000) for e in work)
    assert t.duration_ns[device].sum() == sum(int(e["dur"] * 1000) for e in work)
    streams = {(e["args"].get("device", e["pid"]), e["args"].get("stream", e["tid"])) for e in work}
    assert sum(lane.kind == "device" for lane in t.lanes) == len(streams)
    linked = t.launch_delay_ns() != np.iinfo(np.int64).min
    with_launch = [e for e in work if e["args"].get("correlation") in launched]
    assert linked.sum() == len(with_launch)
    for chosen, kept in ((work, device), (with_launch, linked)):
        expected = busy((int(e["ts"] * 1000), int((e["ts"] + e["dur"]) * 1000)) for e in chosen)
        assert busy(zip(t.start_ns[kept].tolist(), t.end_ns[kept].tolist(), strict=True)) == expected
    others = sum(e["ph"] != "M" for e in events) - len(t)
    assert sum(t.meta["left_out"].values()) + sum(e.get("cat") == "cuda_sync" for e in events) == others


@real
def test_the_h100_trace_and_its_two_busy_times():
    t = timeline.open(CASES / "traces" / "kineto_h100_kernels_without_launch.json.gz")
    (use,) = [u for name, u in timeline.measure(t).lanes.items() if name == "stream 7"]
    assert round(use.busy_ns / 1e6, 3) == 45.647
    linked = np.flatnonzero(t.launch_delay_ns() != np.iinfo(np.int64).min)
    only = timeline.metrics.union(t.start_ns[linked], t.end_ns[linked], 0, 2**62)
    assert round(timeline.metrics.length(only) / 1e6, 3) == 31.905


@real
def test_stream_24_waits_for_the_record_on_stream_20():
    t = timeline.open(CASES / "traces" / "kineto_event_sync_three_streams.json.gz")
    (source,), (target,) = t.edge_source, t.edge_target
    assert (t.lanes[t.lane[source]].name, t.lanes[t.lane[target]].name) == ("stream 20", "stream 24")
    assert t.end_ns[source] <= t.start_ns[target]


@real
@pytest.mark.parametrize("folder", ["traces", "malformed"])
def test_every_real_file_opens_or_says_why_not(folder, tmp_path):
    for path in sorted((CASES / folder).iterdir()):
        if path.name == "kineto_455k_events.json.gz":
            continue  # read by the benchmark; a plain test should not take its seconds
        refusal = ""
        try:
            t = timeline.open(path)
        except LabError as error:
            refusal = str(error)
        if refusal:
            assert path.name in refusal
            assert "\n" not in refusal
            assert folder == "malformed" or path.name.startswith("chrome_")
        else:
            t.export_chrome(tmp_path / "out.json")
            assert timeline.open(tmp_path / "out.json").equals(t)
