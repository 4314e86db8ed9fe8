"""What the lab writes it reads again, equal to the nanosecond: timelines of every odd kind, by seed."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import CATEGORIES, OUTCOMES, Lane, Timeline, own
from flashnorm_lab.timeline.table import EDGE_KINDS
from flashnorm_lab.timeline.writing import chrome

INT64 = np.iinfo(np.int64)
CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
MARKUP = (
    "<script>alert(1)</script>",
    "</script><b>",
    "$x$ \\frac{1}{2}",
    "=1+1",
    '"',
    "line\nfeed",
    "\x1b[31mred",
)
"""Names that some program would act on, were they not text."""
ODD = (
    *MARKUP,
    "",
    "'",
    "+1",
    "-1",
    "@a",
    "NA",
    "null",
    "1.5",
    "a,b;c\td",
    "carriage\rreturn",
    "nul\0l",
    "\\ud800",
    "%s %d {0}",
    "ядро 核 \U0001f600 é",
    "\u202eright to left\u200f",
    "void f<float, 4>(float const*, int)",
    "\ufffd",
    "x" * 500,
)
HALVES = ("\ud800", "\ud83d\ude00", "a\udfffb", "\udfff\ud800")
"""Halves of surrogate pairs, which Python's texts may hold and Unicode's may not."""


def random_timeline(
    seed: int,
    spans: int = 300,
    *,
    first: int = 1_763_000_000_123_456_789,
    width: int = 10**6,
    longest: int = 10**4,
    names: tuple[str, ...] = ODD,
    **meta: object,
) -> Timeline:
    """A timeline of spans that nest, touch and cross on lanes of several devices and processes, with marks,
    spans of no length, edges to and fro, launches, counters, steps, outcomes and origins."""
    rng = np.random.default_rng(seed)
    lanes = (
        Lane("host", "host", process="python 1"),
        Lane("host", "host", process="python 2"),
        Lane("stream 7", device="0", process="python 1"),
        Lane("stream 7", device="1", process="python 1"),
        Lane("stream <20>", device="a \u202e device"),
        Lane("", device=""),
        Lane("a lane with no spans", "host"),
    )

    def some(low: int, high: int, count: int = spans) -> np.ndarray:
        return rng.integers(low, high, count, dtype=np.int64)

    start = first + some(0, width, spans)
    duration = np.where(rng.random(spans) < 0.2, 0, some(0, longest))
    duration[rng.random(spans) < 0.1] = longest  # some that are equal
    start[rng.random(spans) < 0.2] = first
    edges = spans // 4 if spans else 0
    samples = 20
    return Timeline(
        names=names,
        lanes=lanes,
        name=some(0, len(names)),
        lane=some(0, len(lanes) - 1),
        start_ns=start,
        duration_ns=duration,
        launch=np.where(rng.random(spans) < 0.5, -1, some(0, max(1, spans // 2))),
        category=some(0, len(CATEGORIES)),
        step=some(-1, 3),
        outcome=some(0, len(OUTCOMES)),
        origin=np.where(rng.random(spans) < 0.5, -1, some(0, 2**31 - 1)),
        edge_source=some(0, max(1, spans), edges),
        edge_target=some(0, max(1, spans), edges),
        edge_name=some(0, len(names), edges),
        edge_kind=some(0, len(EDGE_KINDS), edges),
        counter_name=some(0, len(names), samples),
        counter_ns=first + some(-100, width, samples),
        counter_value=rng.normal(size=samples) * 10.0 ** rng.integers(-300, 300, samples),
        meta={"device": "a <b>device</b>", "provenance": "modelled", "share": 0.1, "seed": seed} | meta,
    )


KINDS = {
    "plain": {},
    "empty": {"spans": 0},
    "one": {"spans": 1},
    "negative": {"first": -(10**15)},
    "about zero": {"first": -500_000},
    "weeks": {"width": 10**17, "longest": 10**16},
    "all of int64": {"first": INT64.min, "width": INT64.max, "longest": INT64.max},
    "the end of int64": {"first": INT64.max - 10**6, "longest": 1000},
    "no text twice": {"names": ("a", "b", "a", "\ufffd")},
    "halves of pairs": {"names": (*ODD, *HALVES)},
    "halves that meet": {"names": ("\ud83d\ude00", "\U0001f600", "\ud800", "\udbff", "\ufffd")},
    "half in meta": {"note": "\ud800", "more": {"\udfff": [1.5, 2**70]}},
    "large meta": {"nested": {"deep": [1, -2.5, None, True, {"x": 1e-9, "traceEvents": [1]}]}, "big": 2**70},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_import_of_an_export_equals_the_original(tmp_path, kind, seed):
    t = random_timeline(seed, **KINDS[kind])
    path = tmp_path / "t.json"
    t.export_chrome(path)
    again = timeline.open(path)
    assert again.equals(t)
    assert again.start_ns.tolist() == t.start_ns.tolist()
    content = json.loads(path.read_bytes())  # and it is JSON to anyone
    path.write_text(json.dumps(content, indent=1, sort_keys=True))
    if kind not in ("weeks", "all of int64"):  # their times do not survive another program's floats
        assert timeline.open(path).equals(t)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1.7976931348623157e308]
)
def test_counters_keep_every_float(tmp_path, value):
    t = random_timeline(0, 3)
    build = timeline.TimelineBuilder()
    build.counter("c", 5, value)
    t = build.build()
    path = tmp_path / "t.json"
    notes = chrome.export_chrome(t, path)
    assert timeline.open(path).equals(t)
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    samples = [e["args"]["value"] for e in content["traceEvents"] if e["ph"] == "C"]
    if np.isfinite(value):
        assert samples == [value]
        assert notes == ()
    else:
        assert samples == []
        assert notes == ("samples of counters that are no finite number and are not drawn: 1",)


def test_many_blocks_are_as_one(tmp_path, monkeypatch):
    t = random_timeline(3, 2000)
    t.export_chrome(tmp_path / "one.json")
    monkeypatch.setattr(chrome, "BLOCK", 100)
    monkeypatch.setattr(own, "BLOCK", 1000)
    t.export_chrome(tmp_path / "many.json.gz")
    assert gzip.decompress((tmp_path / "many.json.gz").read_bytes()) == (tmp_path / "one.json").read_bytes()
    assert timeline.open(tmp_path / "many.json.gz").equals(t)


VERSION_1 = r"""{"displayTimeUnit":"ns","baseTimeNanoseconds":1763000000123456789,
"otherData":{"format": "flashnorm_lab timeline", "version": 1, "meta": {"device": "a made-up device",
"provenance": "modelled", "share": 0.1, "big": 1180591620717411303424}, "lanes": [["host", "host"],
["matrix", "device"], ["main", "device"]], "names": ["post_scale", "proj <b>\ud800", "join_matrix", "late"],
"edges": [[1, 2, "join_matrix"], [1, 2, "late"]], "arrows_not_drawn": 0},
"traceEvents":[
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"a made-up device, modelled"}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"host"}},
{"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":0}},
{"ph":"X","name":"post_scale","cat":"launch","pid":1,"tid":1,"ts":0.000,"dur":2.001,"args":{"span":0,"step":0,"launch":4}},
{"ph":"s","name":"launch","cat":"launch","id":2,"pid":1,"tid":1,"ts":0.000},
{"ph":"X","name":"proj <b>\ud800","cat":"kernel","pid":1,"tid":2,"ts":3.211,"dur":40.000,"args":{"span":1,"step":0,"launch":5}},
{"ph":"X","name":"post_scale","cat":"kernel","pid":1,"tid":3,"ts":13.218,"dur":4.111,"cname":"terrible","args":{"span":2,"step":0,"launch":4,"launch_delay_ns":13218,"outcome":"stale"}},
{"ph":"X","name":"stale: post_scale","cat":"outcome","pid":1,"tid":4,"ts":13.218,"dur":4.111,"cname":"terrible","args":{"span":2,"step":0,"launch":4,"launch_delay_ns":13218,"outcome":"stale"}}
]}
"""  # noqa: E501


@pytest.mark.parametrize("half", [True, False])
def test_version_1_is_still_read(tmp_path, half):
    path = tmp_path / "old.json"
    path.write_text(VERSION_1 if half else VERSION_1.replace(r"\ud800", ""))
    build = timeline.TimelineBuilder()
    build.lane("host", "host")
    zero = 1_763_000_000_123_456_789
    name = "proj <b>\ud800" if half else "proj <b>"
    build.span("post_scale", "host", zero, 2001, "launch", launch=4, step=0)
    y = build.span(name, "matrix", zero + 3211, 40_000, "kernel", launch=5, step=0)
    z = build.span("post_scale", "main", zero + 13_218, 4111, "kernel", launch=4, step=0, outcome="stale")
    build.edge(y, z, "join_matrix")
    build.edge(y, z, "late")
    meta = {"device": "a made-up device", "provenance": "modelled", "share": 0.1, "big": 2**70}
    assert timeline.open(path).equals(build.build(**meta))


CHANGES = {  # of the file's content and its spans, the first of which has a name that is as it was
    "a span is gone": lambda content, spans: content["traceEvents"].remove(spans[3]),
    "the last span is gone": lambda content, spans: content["traceEvents"].remove(
        max(spans, key=lambda event: event["args"]["span"])
    ),
    "a span twice": lambda content, spans: content["traceEvents"].append(spans[3]),
    "another name": lambda content, spans: spans[0].update(name="changed"),
    "another category": lambda content, spans: spans[0].update(cat="changed"),
    "a time that is text": lambda content, spans: spans[0].update(ts="soon"),
    "no time": lambda content, spans: spans[0].update(ts=None),
    "a negative duration": lambda content, spans: spans[0].update(dur=-1),
    "a track that is not there": lambda content, spans: spans[0].update(tid=10_000),
    "track 0": lambda content, spans: spans[0].update(tid=0),
    "no arguments": lambda content, spans: spans[0].pop("args"),
    "no lanes": lambda content, spans: content["otherData"].update(lanes=[]),
    "an edge to nowhere": lambda content, spans: content["otherData"]["edges"]["target"].append(10**6),
    "fewer names of edges": lambda content, spans: content["otherData"]["edges"]["name"].pop(),
    "no meta": lambda content, spans: content["otherData"].pop("meta"),
    "no events": lambda content, spans: content.update(traceEvents=None),
    "no base": lambda content, spans: content.update(baseTimeNanoseconds="0"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_export_that_was_changed_is_refused_in_one_line(tmp_path, what):
    path = tmp_path / "t.json"
    random_timeline(1, 50).export_chrome(path)
    content = json.loads(path.read_text())
    spans = [e for e in content["traceEvents"] if e["ph"] == "X" and e["cat"] != "outcome"]
    CHANGES[what](content, spans)
    path.write_text(json.dumps(content))
    with pytest.raises(LabError, match=r"t\.json: the file was changed after its export") as caught:
        timeline.open(path)
    assert "\n" not in str(caught.value)


def test_an_export_that_was_cut_off_says_where(tmp_path):
    path = tmp_path / "t.json"
    random_timeline(1, 50).export_chrome(path)
    path.write_text(path.read_text()[:-500])
    with pytest.raises(LabError, match=r"t\.json, line \d+, column \d+: .*ends too early"):
        timeline.open(path)


def test_another_format_is_refused(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"otherData": {"format": "another"}, "baseTimeNanoseconds": 0, "traceEvents": []}')
    with pytest.raises(LabError, match=r"otherData does not name the format 'flashnorm_lab timeline'"):
        own.read_own(path)


@pytest.mark.skipif(not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here")
@pytest.mark.parametrize(
    "name",
    [
        "traces/chrome_b_e_c_i_p_phases.json",
        "traces/kineto_counters_missing_tid.json",
        "traces/kineto_event_sync_three_streams.json.gz",
        "traces/kineto_h100_kernels_without_launch.json.gz",
        "traces/kineto_nanosecond_decimals.json.gz",
        "traces/kineto_rocm_graph_fan_out.json.gz",
        "nsys/nsys_2026_1_four_streams.sqlite",
        "nsys/nsys_2026_2_two_processes.sqlite",
    ],
)
def test_real_traces_survive_the_way_out_and_in(tmp_path, name):
    t = timeline.open(CASES / name)
    t.export_chrome(tmp_path / "t.json.gz")
    assert timeline.open(tmp_path / "t.json.gz").equals(t)


def test_a_later_version_is_refused(tmp_path):
    path = tmp_path / "t.json"
    random_timeline(1, 50).export_chrome(path)
    path.write_text(path.read_text().replace('"version": 2', '"version": 3', 1))
    with pytest.raises(
        LabError, match=r"written as version 3 .* reads versions 1 to 2; update flashnorm_lab"
    ):
        timeline.open(path)
