"""The timeline panel without a browser: questions of the canvas in, tiles and figures out."""

import json

import numpy as np
import pytest

from flashnorm_lab import timeline
from flashnorm_lab.errors import LabError
from flashnorm_lab.figures import KERNELS, OUTCOME_STYLE
from flashnorm_lab.timeline import Lane, TimelineBuilder, looks, scene
from flashnorm_lab.timeline.detail import Detail
from flashnorm_lab.widgets.timeline_panel import TimelinePanel

BASE = 1_700_000_000_000_000_000
EVIL = "<img src=x onerror=alert(1)>$x^2$"


def recording(shift=0, kernel="projection"):
    """A host thread that launches on two streams; a stale result; a counter; an edge."""
    t = TimelineBuilder()
    t.lane("host", "host")
    for step in range(4):
        at = BASE + shift + 100_000 * step
        t.span(f"step {step}", "host", at, 90_000, "range", step=step)
        t.span("launch it", "host", at + 1_000, 4_000, "launch", launch=2 * step, step=step)
        t.span("launch that", "host", at + 6_000, 4_000, "launch", launch=2 * step + 1, step=step)
        first = t.span(kernel, "matrix", at + 9_000, 50_000, "kernel", launch=2 * step, step=step)
        second = t.span(EVIL, "main", at + 30_000, 40_000, "kernel", launch=2 * step + 1, step=step,
                        outcome="stale" if step == 2 else "fresh")  # fmt: skip
        t.edge(first, second, "join")
        t.counter("memory", at, 1000.0 * step)
    return t.build(source="/somewhere/trace.json", device="a device")


class Canvas:
    """Asks as view.js does, and reads the answers as it does."""

    def __init__(self, panel, monkeypatch):
        self.panel, self.heard = panel, []
        monkeypatch.setattr(
            panel.view, "send", lambda content, buffers=None: self.heard.append((content, buffers))
        )

    def ask(self, **question):
        self.panel._hear(None, {"from": "me", "number": 7, "question": question}, [])
        content, buffers = self.heard[-1]
        assert (content["to"], content["number"]) == ("me", 7)
        json.dumps(content)
        return content, buffers

    def view(self, **more):
        low, high = self.panel.scene.extent
        lanes = [[lane["id"] for lane in part["lanes"]] for part in self.panel.view.info["parts"]]
        question = {
            "kind": "view",
            "t0": low,
            "t1": high,
            "pixels": 900,
            "inner": [low, high],
            "lanes": lanes,
        }
        content, buffers = self.ask(**(question | {"colour": "name", "text": "", "arrows": "all"} | more))
        return [read(part, buffer) for part, buffer in zip(content["answer"]["parts"], buffers, strict=True)]


def read(head, buffer):
    columns = {}
    for name, kind, at, count in head["columns"]:
        assert at % 8 == 0
        columns[name] = np.frombuffer(buffer, dtype=f"<{kind}", count=count, offset=at)
    return head | columns


@pytest.fixture
def panel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return TimelinePanel(recording())


@pytest.fixture
def canvas(panel, monkeypatch):
    return Canvas(panel, monkeypatch)


def test_what_the_canvas_knows_first(panel):
    info = panel.view.info
    part = info["parts"][0]
    assert [(lane["name"], lane["rows"]) for lane in part["lanes"]] == [
        ("host", 2),
        ("matrix", 1),
        ("main", 1),
    ]
    assert part["counters"] == ["memory"]
    assert part["spans"] == 20
    assert info["extent"] == [0, 390_001]
    assert len(info["overview"][0]) == len(info["overview"][1]) == scene.OVERVIEW_PIXELS
    assert info["colour"] == "name"
    json.dumps(info)


def test_a_view_is_answered_with_the_spans_as_they_are(panel, canvas):
    (tile,) = canvas.view()
    t = panel.scene.timelines[0]
    assert (tile["count"], tile["hidden"], tile["merged"], tile["leftOut"]) == (20, 0, 0, 0)
    assert sorted(tile["span"]) == list(range(20))
    np.testing.assert_array_equal(tile["spanStart"], t.start_ns[tile["span"]] - BASE)
    np.testing.assert_array_equal(tile["spanLength"], t.duration_ns[tile["span"]])
    np.testing.assert_array_equal(tile["spanName"], t.name[tile["span"]])
    assert tile["names"][t.names.index("projection")] == "projection"
    assert sorted(tile["arrowKind"]) == [0] * 8 + [1] * 4
    assert tile["span"][tile["arrowSource"]].max() < 20
    stale = tile["spanOutcome"] == timeline.OUTCOMES.index("stale")
    assert t.names[t.name[tile["span"][stale][0]]] == EVIL
    assert tile["counterLast"].tolist() == [0, 1000, 2000, 3000]
    assert panel.window == panel.scene.extent
    assert panel.error is None


def test_lanes_that_are_not_shown_are_counted(canvas):
    (tile,) = canvas.view(lanes=[[1]])
    assert (tile["count"], tile["hidden"]) == (4, 16)


def test_short_spans_become_cells_and_are_counted(panel, canvas):
    (tile,) = canvas.view(pixels=4, inner=[0, 200_000])
    assert tile["count"] == Detail(panel.scene.timelines[0]).count(BASE, BASE + 200_000) == 10
    assert tile["cellCount"].sum() + len(tile["span"]) == 20
    assert (tile["cellShare"] <= 1).all()
    assert panel.window == (0, 200_000)


def test_a_search_counts_goes_round_and_dims_the_others(panel, canvas):
    content, _ = canvas.ask(kind="search", text="LAUNCH", number=8)
    assert content["answer"]["count"] == 8
    assert content["answer"]["number"] == 0
    assert content["answer"]["span"]["name"] == "launch it"
    assert canvas.ask(kind="search", text="nothing", number=0)[0]["answer"] == {"count": 0, "number": -1}
    (tile,) = canvas.view(text="launch")
    names = np.array([panel.scene.timelines[0].names[i] for i in tile["spanName"]])
    dim = tile["spanColour"] == looks.DIM
    assert set(names[~dim]) == {"launch it", "launch that"}


def test_a_span_is_told_with_its_arrows_and_its_name_as_it_is(panel, canvas):
    t = panel.scene.timelines[0]
    span = int(t.spans(outcome="stale")[0])
    answer = canvas.ask(kind="span", part=0, span=span)[0]["answer"]
    assert answer["name"] == EVIL
    assert answer["start"] == int(t.start_ns[span]) - BASE
    assert answer["lines"][:6] == [
        ["what", "kernel on main"],
        ["start", "230 µs"],
        ["duration", "40 µs"],
        ["launch to start", "24 µs"],
        ["step", "2"],
        ["result", "stale"],
    ]
    assert sorted(arrow["kind"] for arrow in answer["arrows"]) == ["launch", "order"]
    assert ["from", "projection on matrix (order join)"] in answer["lines"]
    assert "arrows" not in canvas.ask(kind="span", part=0, span=span, brief=True)[0]["answer"]


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ({"kind": "dance"}, "the viewer asked 'dance'"),
        ({"kind": "span", "part": 0, "span": 20}, "there is no span 20"),
        ({"kind": "view", "t0": 5, "t1": 5, "pixels": 9, "lanes": [[0]], "inner": [0, 5]}, "the view from"),
        ({"kind": "view"}, "KeyError"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_one_line(canvas, question, told):
    content, _ = canvas.ask(**question)
    assert content["error"].startswith(told)
    assert "answer" not in content


def test_a_selection_says_its_own_figures(panel, monkeypatch):
    canvas = Canvas(panel, monkeypatch)
    panel._hear(None, {"from": "me", "select": [0, 100_000]}, [])
    panel.settle()
    assert panel.selection == (0, 100_000)
    told = panel.measured.value
    assert "Selected: 100 µs from 0 ns" in told
    assert "<p>5 spans</p>" in told
    assert "of the calls that start in the window" in told
    assert "50.000 µs" in told  # matrix is busy
    assert "Overlap" in told
    assert "&lt;img src=x" in told
    assert "<img" not in told
    panel._hear(None, {"from": "me", "select": None}, [])
    assert (panel.selection, panel.measured.value) == (None, "")
    panel.select(0, 50_000)
    assert canvas.heard[-1][0] == {"to": "all", "mark": [0, 50_000]}
    assert "Selected: 50 µs" in panel.settle().measured.value


def test_a_selection_of_nothing_and_one_that_is_empty(panel):
    panel.select(91_000, 99_000)
    assert "0 spans; no work of a device" in panel.measured.value
    with pytest.raises(LabError, match="the part from 5 to 5 ns is empty"):
        panel.select(5, 5)
    panel._hear(None, {"from": "me", "select": [9, 3]}, [])
    assert str(panel.error) == "the part from 9 to 3 ns is empty; it has to end after it starts"
    assert 'role="alert"' in panel.message.value


def test_what_is_in_view_is_exported_and_nothing_is_replaced_unasked(panel, tmp_path):
    panel.show(0, 100_000)
    panel.format.value = "chrome"
    assert panel.path.value == "timeline.json"
    panel.export.click()
    assert panel.error is None, panel.error
    written = timeline.open(tmp_path / "timeline.json")
    assert len(written) == 5
    assert "timeline.json" in panel.exported.value
    before = (tmp_path / "timeline.json").read_bytes()
    panel.show(0, 200_000)
    panel.export.click()
    assert "is there already" in panel.exported.value
    assert (tmp_path / "timeline.json").read_bytes() == before
    panel.overwrite.value = True
    panel.export.click()
    assert len(timeline.open(tmp_path / "timeline.json")) == 10
    panel.select(300_000, 350_000)
    panel.export.click()
    assert set(timeline.open(tmp_path / "timeline.json").step.tolist()) == {3}


@pytest.mark.parametrize("kind", ["html", "svg", "png"])
def test_pictures_of_what_is_in_view(panel, tmp_path, kind):
    panel.show(0, 100_000)
    panel.format.value = "png" if kind == "html" else "html"
    panel.format.value = kind
    panel.export.click()
    assert panel.error is None, panel.error
    content = (tmp_path / f"timeline.{kind}").read_bytes()
    assert content.startswith({"html": b"<!DOCTYPE html>", "svg": b"<?xml", "png": b"\x89PNG"}[kind])
    assert b"<img src=x" not in content


def test_a_file_that_cannot_be_written_is_told_beside_the_button(panel):
    for name, told in (
        ("", "the file has no name"),
        ("no/such/folder/t.html", "does not exist"),
        ("t.doc", "'.doc'"),
    ):
        panel.path.value = name
        panel.export.click()
        assert told in str(panel.error)
        assert 'role="alert"' in panel.exported.value


def test_two_timelines_on_a_common_clock(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    panel = TimelinePanel(recording(), recording(shift=50_000), titles=("before", "after"))
    canvas = Canvas(panel, monkeypatch)
    first, second = canvas.view()
    np.testing.assert_array_equal(first["spanStart"], second["spanStart"])
    assert panel.view.info["extent"] == [0, 390_001]
    panel.align.value = "clock"
    assert panel.view.info["extent"] == [0, 440_001]
    first, second = canvas.view()
    np.testing.assert_array_equal(first["spanStart"] + 50_000, second["spanStart"])
    assert [part["title"] for part in panel.view.info["parts"]] == ["before", "after"]
    content, _ = canvas.ask(kind="search", text="step", number=5)
    assert (content["answer"]["count"], content["answer"]["span"]["part"]) == (8, 1)
    panel.select(0, 100_000)
    assert panel.measured.value.count("Busy time") == 2
    panel.format.value = "chrome"
    panel.export.click()
    assert panel.error is None, panel.error
    assert {p.name for p in tmp_path.iterdir()} == {"timeline.json", "other_timeline.json"}
    with pytest.raises(LabError, match="align='middle': choose one of start, clock"):
        TimelinePanel(recording(), recording(), align="middle")


def test_a_panel_without_a_browser_is_a_picture_and_a_line(panel):
    bundle = panel._repr_mimebundle_()
    assert bundle["text/plain"] == "TimelinePanel: 20 spans, 390.001 µs long"
    assert bundle["image/png"]


def test_colours_are_those_of_the_other_figures_and_keep_to_their_names():
    t = recording()
    number = looks.colours(t)
    for name, colour in KERNELS.items():
        assert looks.PALETTE[looks.KERNELS[name]][0] == colour
    for i in t.spans(name="projection"):
        assert looks.PALETTE[number[i]][0] == KERNELS["projection"]
    fills = [fill for fill, _ in looks.PALETTE]
    assert len(set(fills)) == len(fills)
    assert not {colour for colour, *_ in OUTCOME_STYLE.values() if colour != OUTCOME_STYLE["fresh"][0]} & {
        looks.PALETTE[i][0] for i in set(number.tolist())
    }
    later = looks.colours(recording(kernel="another"))
    evil = t.names.index(EVIL)
    assert number[t.name == evil][0] == later[t.name == evil][0]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten::mm", "aten::mm"),
        ("void at::native::(anonymous namespace)::fill<float, 4>(int, float*)", "fill"),
        ("void cutlass::Kernel<cutlass_80_tensorop>(Params)", "Kernel"),
        ("sm90_xmma_gemm_bf16f32<tile64>", "sm90_xmma_gemm_bf16f32"),
        ("<string>(1): <module>", "<string>(1): <module>"),
        ("threading.py(655): wait", "threading.py(655): wait"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("a < b", "a < b"),
        ("", ""),
    ],
)
def test_a_label_is_the_part_of_a_name_that_tells(name, short):
    assert looks.label(name) == short


@pytest.mark.parametrize(
    ("ns", "told"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (-1500, "−1.5 µs"),
        (45_647_300, "45.6473 ms"),
        (62_000_000_001, "62.000000001 s"),
    ],
)
def test_times_are_told_with_every_digit(ns, told):
    assert looks.exact_time(ns) == told


def test_a_thread_of_many_nested_rows_starts_out_folded():
    t = TimelineBuilder()
    t.lane("deep", "host")
    for depth in range(scene.DEEP + 1):
        t.span("call", "deep", depth, 100 - 2 * depth, "op")
    t.span("kernel", Lane("stream 7"), 10, 5, "kernel")
    part = scene.Scene([t.build()]).info()["parts"][0]
    assert part["folded"] == [0]


def test_what_is_no_timeline_and_titles_that_do_not_fit_are_told_in_one_line(panel):
    with pytest.raises(LabError, match=r"'trace\.json' is no timeline; timeline\.open reads one"):
        TimelinePanel("trace.json")
    t = panel.scene.timelines[0]
    with pytest.raises(LabError, match="titles: 1 for 2 timelines"):
        TimelinePanel(t, t, titles=["one"])
