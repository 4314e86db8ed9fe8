"""Every real trace, with each figure derived twice: by the library, and by plain loops over the JSON here."""

import functools
import gzip
import json
from bisect import bisect
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from flashnorm_lab.timeline import from_kineto
from flashnorm_lab.timeline.table import CATEGORIES, EDGE_KINDS

TRACES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "traces"
pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)
BIGGEST = ("kineto_455k_events.json.gz", "kineto_cuda_graphs_four_streams.json.gz")
NAMES = (
    "chrome_b_e_c_i_p_phases.json",
    "kineto_2020_top_level_list.json.gz",
    "kineto_counters_missing_tid.json",
    "kineto_cpu_only.json.gz",
    "kineto_event_sync_three_streams.json.gz",
    "kineto_h100_kernels_without_launch.json.gz",
    "kineto_launches_without_kernel_category.json.gz",
    "kineto_nanosecond_decimals.json.gz",
    "kineto_rocm_graph_fan_out.json.gz",
    "kineto_two_events_no_args.json.gz",
    "kineto_unknown_ids_minus_one.json",
    "kineto_wait_ids_resolved.json",
    *BIGGEST,
)


class Case:
    """One file: the timeline, and its events as Python reads them, numbers with a point as their text."""

    def __init__(self, name):
        data = (TRACES / name).read_bytes()
        content = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=str)
        whole = isinstance(content, dict)
        self.events = content["traceEvents"] if whole else content
        self.base = int(content.get("baseTimeNanoseconds", 0)) if whole else 0
        self.slices = [(i, e) for i, e in enumerate(self.events) if e["ph"] == "X"]
        self.work = [e for _, e in self.slices if e.get("cat", "").lower() in WORK]
        self.calls = [e for _, e in self.slices if e.get("cat", "").lower() in CALLS]
        self.timeline = opened(name)


@functools.cache
def opened(name):
    return from_kineto(TRACES / name)


@pytest.fixture(
    scope="module", params=[pytest.param(n, marks=[pytest.mark.slow] * (n in BIGGEST)) for n in NAMES]
)
def case(request):
    return Case(request.param)


def ns(value):
    return int(Decimal(value) * 1000)


def category(event):
    """The category of a span, by nothing but a chain of questions."""
    cat, name = event.get("cat", "").lower(), event.get("name", "")
    if event["ph"] in "iIP":
        return "mark"
    if cat in ("cpu_op", "operator", "python_function"):
        return "op"
    if cat in ("user_annotation", "gpu_user_annotation"):
        return "range"
    if cat in WORK:
        return WORK[cat]
    if cat not in CALLS:
        return "other"
    if "GraphLaunch" in name:
        return "graph"
    if name.startswith(("cudaGraph", "hipGraph")):
        return "call"
    for word, found in CALL_WORDS.items():
        if word in name:
            return found
    return "call"


WORK = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "fill",
    "memset": "fill",
}
CALLS = ("cuda_runtime", "cuda_driver", "runtime", "mtia_runtime")
CALL_WORDS = {
    "LaunchKernel": "launch",
    "Memset": "fill",
    "Memcpy": "copy",
    "EventRecord": "record",
    "StreamWait": "wait",
    "Synchronize": "synchronize",
}


def place(event):
    args = event.get("args", {})
    stream = args.get("stream", event["tid"])
    return args.get("device", event["pid"]), stream


def busy(intervals):
    """The length of a union of intervals, by walking through them in order."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total


def union(t, spans):
    return busy(zip(t.start_ns[spans].tolist(), t.end_ns[spans].tolist(), strict=True))


def test_no_case_is_forgotten():
    assert set(NAMES) == {path.name for path in TRACES.iterdir()}


def test_every_event_of_the_file_is_accounted_for(case):
    t = case.timeline
    rows, left_out = t.meta.get("rows", {}), t.meta.get("left_out", {})
    assert t.meta["events"] == len(case.events)
    assert len(t) + sum(rows.values()) + sum(left_out.values()) == len(case.events)
    phases = Counter(e["ph"] for e in case.events)
    assert len(t) == phases["X"] + phases["B"] + phases["i"] + phases["I"] + phases["P"]
    assert rows.get("metadata rows (phase M)", 0) == phases["M"]
    assert rows.get("ends of ranges (phases B and E)", 0) == phases["E"]
    assert rows.get("counters (phase C)", 0) == phases["C"]
    flows = phases["s"] + phases["t"] + phases["f"]
    assert sum(n for what, n in rows.items() if "arrows" in what) == flows
    assert not left_out


def test_every_time_and_duration_to_the_nanosecond(case):
    t = case.timeline
    assert (np.diff(t.origin) > 0).all()
    for at, start, duration in zip(
        t.origin.tolist(), t.start_ns.tolist(), t.duration_ns.tolist(), strict=True
    ):
        event = case.events[at]
        assert start == case.base + ns(event["ts"])
        assert event["ph"] == "B" or duration == ns(event.get("dur", 0))


def test_names_and_categories(case):
    t = case.timeline
    said = [CATEGORIES[c] for c in t.category.tolist()]
    syncs = {"other", "wait", "synchronize"}
    for at, text, what in zip(t.origin.tolist(), t.name.tolist(), said, strict=True):
        event = case.events[at]
        assert t.names[text] == event["name"]
        assert what in syncs if event.get("cat") == "cuda_sync" else what == category(event)
    used = (*t.name.tolist(), *t.edge_name.tolist(), *t.counter_name.tolist())
    assert set(range(len(t.names))) == set(used)


def test_kernels_streams_launches_and_busy_times(case):
    t, work, base = case.timeline, case.work, case.base
    operations = t.operations()
    assert Counter(CATEGORIES[c] for c in t.category[operations].tolist()) == Counter(map(category, work))
    lanes = {t.lanes[i] for i in t.lane[operations].tolist()}
    assert len(lanes) == len({place(e) for e in work})
    assert {lane.device for lane in lanes} == {str(place(e)[0]) for e in work}

    called = defaultdict(list)
    for e in case.calls:
        called[e["args"].get("correlation")].append(ns(e["ts"]))
    launched = [e for e in work if e.get("args", {}).get("correlation") in called]
    pairs = t.launches()
    assert len(pairs) == len(launched)
    delays = sorted(ns(e["ts"]) - min(called[e["args"]["correlation"]]) for e in launched)
    assert sorted((t.start_ns[pairs[:, 1]] - t.start_ns[pairs[:, 0]]).tolist()) == delays

    for chosen, spans in ((work, operations), (launched, pairs[:, 1])):
        for device in {place(e)[0] for e in chosen}:
            here = [e for e in chosen if place(e)[0] == device]
            expected = busy((base + ns(e["ts"]), base + ns(e["ts"]) + ns(e["dur"])) for e in here)
            on_it = [i for i in spans.tolist() if t.lanes[t.lane[i]].device == str(device)]
            assert union(t, on_it) == expected


def test_steps_of_calls_and_of_their_work(case):
    t = case.timeline
    ranges = sorted(
        (ns(e["ts"]), ns(e["ts"]) + ns(e["dur"]), int(e["name"].removeprefix("ProfilerStep#")))
        for _, e in case.slices
        if e["name"].startswith("ProfilerStep#") and e["cat"] != "gpu_user_annotation"
    )

    def step(e):
        here = [number for start, end, number in ranges if start <= ns(e["ts"]) < end]
        return here[-1] if here else -1

    calls = t.is_category("launch", "copy", "fill", "graph", "call", "synchronize", "record", "wait")
    calls &= ~t.on_device()
    assert t.step[calls].tolist() == [step(e) for e in case.calls]
    called = {}
    for e in sorted(case.calls, key=lambda e: ns(e["ts"])):
        called.setdefault(e["args"].get("correlation"), step(e))
    expected = [called.get(e.get("args", {}).get("correlation"), -1) for e in case.work]
    assert t.step[t.operations()].tolist() == expected
    assert set(t.steps) == {number for *_, number in ranges}


def test_arrows_lead_from_and_to_the_slices_around_their_ends(case):
    t = case.timeline
    ends = defaultdict(dict)
    for e in case.events:
        if e["ph"] in "sf" and e["cat"] == "fwdbwd":
            ends[e["id"]][e["ph"]] = e
    threads = {str(e["tid"]) for pair in ends.values() for e in pair.values()}
    slices = {tid: [] for tid in threads}
    for i, e in case.slices:
        if str(e["tid"]) in threads:
            slices[str(e["tid"])].append((ns(e["ts"]), -ns(e["dur"]), i))
    for thread in slices.values():
        thread.sort()

    def around(e):
        at, thread = ns(e["ts"]), slices[str(e["tid"])]
        last = bisect(thread, (at, 1)) - 1
        while thread[last][0] - thread[last][1] < at:
            last -= 1
        return thread[last][2]

    expected = sorted((around(pair["s"]), around(pair["f"])) for pair in ends.values())
    drawn = t.edge_kind == EDGE_KINDS.index("flow")
    source, target = t.origin[t.edge_source[drawn]].tolist(), t.origin[t.edge_target[drawn]].tolist()
    assert sorted(zip(source, target, strict=True)) == expected


def test_waits_of_streams(case):
    t = case.timeline
    waits = [
        e["args"] for _, e in case.slices if e.get("cat") == "cuda_sync" and e["name"] == "Stream Wait Event"
    ]
    calls = {e["args"].get("correlation") for e in case.calls}
    known = [w for w in waits if {w["correlation"], w["wait_on_cuda_event_record_corr_id"]} <= calls]
    assert (t.edge_kind == EDGE_KINDS.index("order")).sum() == len(known)
    assert t.meta.get("edges_unknown", 0) == len(waits) - len(known)


@pytest.mark.parametrize(
    ("name", "events", "kernels", "operations", "launched", "streams", "flows", "steps"),
    [
        ("chrome_b_e_c_i_p_phases.json", 37, 0, 0, 0, 0, 0, 0),
        ("kineto_2020_top_level_list.json.gz", 82_276, 9_538, 9_927, 9_162, 1, 0, 6),
        ("kineto_counters_missing_tid.json", 340, 30, 32, 32, 1, 0, 1),
        ("kineto_cpu_only.json.gz", 30, 0, 0, 0, 0, 0, 1),
        ("kineto_event_sync_three_streams.json.gz", 149, 3, 6, 6, 3, 0, 0),
        ("kineto_h100_kernels_without_launch.json.gz", 18_221, 1_465, 1_707, 1_198, 1, 0, 1),
        ("kineto_launches_without_kernel_category.json.gz", 4_222, 0, 0, 0, 0, 0, 0),
        ("kineto_nanosecond_decimals.json.gz", 68_692, 4_350, 6_095, 6_095, 1, 905, 5),
        ("kineto_rocm_graph_fan_out.json.gz", 1_993, 425, 434, 434, 1, 0, 0),
        ("kineto_two_events_no_args.json.gz", 2, 1, 1, 0, 1, 0, 0),
        ("kineto_unknown_ids_minus_one.json", 75, 1, 1, 1, 1, 0, 0),
        ("kineto_wait_ids_resolved.json", 75, 1, 1, 1, 1, 0, 0),
        pytest.param(
            "kineto_455k_events.json.gz", 455_739, 0, 0, 0, 0, 205, 1, marks=pytest.mark.slow
        ),
        pytest.param(
            "kineto_cuda_graphs_four_streams.json.gz", 105_167, 9_876, 15_632, 15_018, 4, 0, 6,
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_the_known_counts(name, events, kernels, operations, launched, streams, flows, steps):
    t = opened(name)
    work = t.operations()
    assert t.meta["events"] == events
    assert (t.on_device() & t.is_category("kernel")).sum() == kernels
    assert (len(work), len(t.launches())) == (operations, launched)
    assert len(set(t.lane[work].tolist())) == streams
    assert (t.edge_kind == EDGE_KINDS.index("flow")).sum() == flows
    assert len(t.steps) == steps


def test_the_h100_trace_and_its_two_busy_times():
    t = opened("kineto_h100_kernels_without_launch.json.gz")
    assert union(t, t.launches()[:, 1]) == 31_905_473
    assert union(t, t.operations()) == 45_647_300
    names = [lane.name for lane in t.lanes]
    assert (names[0], names[-1], t.lanes[-1].device) == ("host", "stream 7", "0")


def test_stream_24_waits_for_the_record_on_stream_20():
    events = Case("kineto_event_sync_three_streams.json.gz").events
    t = opened("kineto_event_sync_three_streams.json.gz")
    (source,), (target,) = t.edge_source, t.edge_target
    assert (t.lanes[t.lane[source]].name, t.lanes[t.lane[target]].name) == ("stream 20", "stream 24")
    assert t.end_ns[source] <= t.start_ns[target]
    (wait,) = [e["args"] for e in events if e["name"] == "Stream Wait Event"]
    assert (wait["wait_on_cuda_event_record_corr_id"], wait["stream"], wait["wait_on_stream"]) == (
        1385,
        24,
        20,
    )
    assert t.launch[source] < 1385 < t.launch[target]
    assert t.names[t.edge_name[0]] == f"event {wait['wait_on_cuda_event_id']}"


def test_a_query_is_no_wait_whatever_the_profiler_calls_it():
    t = opened("kineto_event_sync_three_streams.json.gz")
    entries = t.spans(name="Event Sync")
    calls = {int(t.launch[i]): t.names[t.name[i]] for i in np.flatnonzero(~t.on_device()) if t.launch[i] >= 0}
    assert {calls[int(t.launch[i])] for i in entries} == {"cudaEventQuery"}
    assert {CATEGORIES[c] for c in t.category[entries]} == {"other"}
    assert {t.lanes[lane].name for lane in t.lane[entries]} == {"no stream"}


def test_an_unknown_id_is_no_edge_and_no_stream():
    t = opened("kineto_unknown_ids_minus_one.json")
    assert (len(t.edge_source), t.meta["edges_unknown"]) == (0, 1)
    assert "stream -1" not in {lane.name for lane in t.lanes}


def test_one_graph_launch_with_hundreds_of_kernels():
    t = opened("kineto_rocm_graph_fan_out.json.gz")
    (launch,) = t.spans(category="graph")
    work = t.launches()[t.launches()[:, 0] == launch, 1]
    assert (t.names[t.name[launch]], len(work)) == ("hipGraphLaunch", 421)
    assert t.lanes[-1].device == "2"


@pytest.mark.slow
def test_work_of_an_accelerator_that_is_no_gpu_keeps_its_launches_and_lanes():
    t = opened("kineto_455k_events.json.gz")
    lanes = [lane.name for lane in t.lanes if lane.kind == "device"]
    assert sorted(lanes) == ["DMA_REQUEST", "Stream 1 FW", "Stream 102 FW"]
    work = np.flatnonzero(t.on_device() & (t.launch >= 0))
    assert len(work) == 3_453
    assert set(t.launch[work].tolist()) <= set(t.launch[~t.on_device()].tolist())


def test_ids_written_as_text_and_as_numbers_are_the_same_thread():
    t = opened("kineto_2020_top_level_list.json.gz")
    assert [lane.name for lane in t.lanes if lane.process == "python 67844" and lane.kind == "host"] == [
        "thread 1 (python)",
        "thread 0 (python)",
    ]


def test_counters_marks_and_samples_of_a_chrome_trace():
    t = opened("chrome_b_e_c_i_p_phases.json")
    assert {t.names[i] for i in t.counter_name} == {"counter"}
    assert t.counter_value.tolist() == [10.0, 1.0, 5.0, 1.0, 10.0]
    assert [lane.name for lane in t.lanes] == ["threadA", "threadB", "process 22630", "trace"]
    nested = {
        t.names[t.name[i]]: (int(t.start_ns[i]), int(t.duration_ns[i])) for i in t.spans(category="other")
    }
    assert nested["A long name that doesnt fit but is exceedingly informative"] == (826_000, 7_000)
    assert nested["Asub with a name that wont fit"] == (827_000, 1_000)
    assert nested["Asub"] == (829_000, 3_000)
    assert nested["B/E under X"] == nested["B/E over X"] == nested["X"] == (860_000, 10_000)
