"""Figures: what they show, that nothing is told by colour alone, and that texts stay texts."""

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
from test_timeline import race_timeline

from flashnorm_lab import figures, hazards, schedule
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder


def traces(figure):
    return {trace.name: trace for trace in figure.data if trace.name}


def texts(figure):
    return [a.text for a in figure.layout.annotations]


def test_timeline_has_lanes_in_order_bars_and_exact_hover():
    t = race_timeline(2)
    figure = figures.timeline(t)
    assert list(figure.layout.yaxis.ticktext) == [
        "<b>host</b> ",
        "<b>main</b> ",
        "<b>matrix</b> ",
        "<b>vector</b> ",
    ]
    bars = traces(figure)["projection"]
    assert bars.base.tolist() == [7.001, 107.001]  # µs from the first span shown
    assert bars.x.tolist() == [40.0, 40.0]
    assert bars.y.tolist() == [2, 2]
    assert bars.hovertext[1] == (
        "<b>projection</b><br>kernel on matrix, step 1<br>start 107,001 ns<br>duration 40,000 ns<br>"
        "launch to start 4,001 ns"
    )
    subtitle = figure.layout.title.subtitle.text
    assert subtitle == "modelled on a made-up device · steps 0 to 1 · left out: join_matrix · 1 stale, 1 torn"
    assert all(trace.showlegend is None for trace in figure.data[:-1])


def test_stale_and_torn_are_hatched_and_labelled():
    figure = figures.timeline(race_timeline(2))
    by_name = traces(figure)
    for label, x in (("stale", 15.007), ("torn", 115.007)):
        bar = by_name[label]
        assert bar.marker.color == figures.OUTCOME_STYLE[label][0]
        assert bar.marker.pattern.shape == figures.OUTCOME_STYLE[label][1] != ""
        assert bar.base.tolist() == [x]
        assert bar.hovertext[0].endswith(f"result: {label}")
    (labels,) = figure.select_traces({"mode": "markers+text"})
    assert sorted(zip(labels.x, labels.text, strict=True)) == [
        (pytest.approx(17.0625), "<b>post_scale: stale</b>"),
        (pytest.approx(117.0625), "<b>post_scale: torn</b>"),
    ]
    early = by_name["input not done yet"]
    assert list(early.x[:3]) == [15.007, 15.007, 47.001]  # from where it began to projection's end
    assert early.hovertext[0] == "post_scale began 31,994 ns before projection was done"


def test_a_fresh_timeline_has_no_alarm_in_it():
    figure = figures.timeline(race_timeline(2, dropped=False))
    assert not {"stale", "torn", "input not done yet"} & set(traces(figure))
    assert figure.layout.title.subtitle.text.endswith("steps 0 to 1 · 2 fresh")


def test_edges_are_arrows_with_their_names():
    t = race_timeline(1)
    edges = traces(figures.timeline(t))["edge: waits for"]
    assert edges.marker.symbol == "arrow"
    assert list(edges.x[:3]) == [4.999, 7.001, None]  # end of copy x to start of projection
    assert list(edges.y[:3]) == [1.25, 1.75, None]  # the edges of the bars that face each other
    assert edges.hovertext[0] == "edge fork_matrix: copy x to projection, 2,002 ns"
    assert len([v for v in edges.x if v is None]) == len(t.edge_source)


def test_steps_are_chosen_and_time_starts_with_them():
    figure = figures.timeline(race_timeline(3), steps=2)
    bars = traces(figure)
    assert bars["projection"].base.tolist() == [7.001]
    assert "torn" not in bars
    assert "step 2" in figure.layout.title.subtitle.text
    assert (
        figures.timeline(race_timeline(3), steps=range(2)).layout.title.subtitle.text.count("steps 0 to 1")
        == 1
    )
    with pytest.raises(LabError, match=r"steps \[9\]; this timeline has steps 0 to 2"):
        figures.timeline(race_timeline(3), steps=9)


def test_short_spans_stay_visible():
    build = TimelineBuilder()
    build.span("long", "main", 0, 1_000_000, "kernel")
    build.span("instant", "main", 500_000, 0, "kernel")
    figure = figures.timeline(build.build())
    assert traces(figure)["instant"].x[0] == pytest.approx(1000 * 2 / figures.PLOT_PX)
    assert "duration 0 ns" in traces(figure)["instant"].hovertext[0]


def test_texts_of_a_trace_are_never_markup():
    build = TimelineBuilder()
    name = '<img src=x onerror="alert(1)"> void f<int>(a & b) $x^2$'
    build.lane("<b>lane</b>", "device")
    a = build.span(name, "<b>lane</b>", 0, 1000, "kernel", step=0, outcome="stale")
    b = build.span(name, "other", 0, 2000, "kernel", step=0)
    build.edge(a, b, "<i>edge</i>")
    figure = figures.timeline(build.build(device="<script>", schedule="<u>"), title="<h1>")
    shown = figure.to_json().replace("\\u003c", "<").replace("\\u003e", ">")
    for part in ("<img", "<int>", "<b>lane", "<i>", "<script>", "<u>", "<h1>"):
        assert part not in shown
    assert "&lt;img src=x" in shown
    assert "$" not in shown


def test_a_big_timeline_is_cut_and_says_so():
    build = TimelineBuilder()
    for i in range(figures.MAX_SPANS + 5):
        build.span(f"kernel {i % 9}", "main", 10 * i, 5, "kernel", step=0)
    figure = figures.timeline(build.build())
    assert sum(len(trace.x) for trace in figure.data) == figures.MAX_SPANS
    assert figure.layout.title.subtitle.text.endswith("the first 4,000 of 4,005 spans")
    assert "other kernels" in traces(figure)  # nine names, five colours


def test_an_empty_timeline_draws():
    assert not figures.timeline(TimelineBuilder().build()).data
    assert figures.timeline_static(TimelineBuilder().build()).axes


def test_a_longer_timeline_has_no_more_traces():
    """A browser draws thousands of bars of one trace at once, but not thousands of traces."""
    short, long = race_timeline(27), race_timeline(108)
    assert (len(short), len(long)) == (297, 4 * 297)
    few, many = figures.timeline(short).data, figures.timeline(long).data
    assert len(few) == len(many) <= 12
    assert sum(len(trace.x) for trace in many) > len(long)  # every span is there, with edges and marks


def test_crowded_labels_do_not_overlap():
    (labels,) = figures.timeline(race_timeline(figures.MAX_WORDS)).select_traces({"mode": "markers+text"})
    assert len(labels.x) == figures.MAX_WORDS  # every stale or torn result keeps its mark
    named = sorted(x for x, text in zip(labels.x, labels.text, strict=True) if text)
    assert 2 < len(named) < figures.MAX_WORDS
    assert np.diff(named).min() > 110 * 100 * (figures.MAX_WORDS - 1) / figures.PLOT_PX


def test_very_many_results_have_marks_without_words():
    figure = figures.timeline(race_timeline(64))
    (labels,) = figure.select_traces({"mode": "markers+text"})
    assert len(labels.x) == 64
    assert not any(labels.text)
    assert set(labels.marker.symbol) == {"triangle-down", "diamond"}  # stale and torn still differ
    assert {"stale", "torn"} <= set(traces(figure))


def test_words_at_the_ends_stay_in_the_picture():
    build = TimelineBuilder()
    build.span("early", "main", 0, 100, "kernel", step=0, outcome="stale")
    build.span("late", "main", 9_900, 100, "kernel", step=1, outcome="stale")
    (labels,) = figures.timeline(build.build()).select_traces({"mode": "markers+text"})
    assert list(labels.text) == ["<b>early: stale</b>", "<b>late: stale</b>"]
    assert list(labels.textposition) == ["top right", "top left"]


def test_static_picture_as_png_and_svg():
    figure = figures.timeline_static(race_timeline(2), title="Costs $5 and $6 <b>")
    png, svg = io.BytesIO(), io.StringIO()
    figure.savefig(png, format="png")
    figure.savefig(svg, format="svg")
    assert png.getvalue().startswith(b"\x89PNG")
    assert "<svg" in svg.getvalue()
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["host", "main", "matrix", "vector"]
    assert {"post_scale: stale", "post_scale: torn"} <= {text.get_text() for text in axes.texts}
    legend = {text.get_text(): patch.get_hatch() for patch, text in _legend(figure)}
    assert (legend["stale"], legend["torn"], legend["projection"]) == ("///", "xxx", "")
    assert figure.texts[0].get_text() == "Costs $5 and $6 <b>"
    assert "modelled on a made-up device" in figure.texts[1].get_text()


def _legend(figure):
    (legend,) = figure.legends
    return zip(legend.get_patches(), legend.get_texts(), strict=True)


def test_graph_of_a_whole_step():
    s = schedule.deferred(1, 576, 960)
    figure = figures.schedule_graph(s, hazards.find(s))
    assert list(figure.layout.yaxis.ticktext) == ["<b>matrix</b> ", "<b>main</b> ", "<b>vector</b> "]
    shown = texts(figure)
    assert {f"<b>{name}</b>" for name in ("copy x", "projection", "inv_rms", "post_scale", "copy z")} <= set(
        shown
    )
    assert set(schedule.EDGES) <= set(shown)
    assert not [text for text in shown if "missing" in text or "⚠" in text]
    assert figure.layout.title.subtitle.text == "1 token, n=576, k=960 · all edges in place · no hazard"
    assert not figure.data


@pytest.mark.parametrize("edge", schedule.EDGES)
def test_graph_shows_what_is_missing_and_what_may_happen(edge):
    whole = schedule.deferred(1, 576, 960)
    s = whole.without(edge)
    found = hazards.find(s)
    assert found
    figure = figures.schedule_graph(s, found)
    shown = texts(figure)
    assert f"missing: {edge}" in shown
    assert edge not in shown
    lines, crosses = figure.data
    assert lines.line.dash == "dot"
    assert crosses.marker.symbol == "x-thin"
    (footer,) = [text for text in shown if "repair:" in text]
    assert footer.count("<br>") == len(found) - 1
    for hazard in found:
        assert f"{hazard.kind} on {hazard.buffer}: {hazard.second} may" in footer
        assert f"repair: {hazard.repair}" in footer
    framed = {a.text for a in figure.layout.annotations if a.bordercolor == figures.VERMILION}
    assert framed == {f"<b>{hazard.second}</b>" for hazard in found}

    def places(graph):
        return {a.text: (a.x, a.y) for a in graph.layout.annotations if a.bordercolor}

    assert places(figure) == places(figures.schedule_graph(whole))  # a switch moves nothing


@pytest.mark.parametrize("io_", ["stream", "host", "torch"])
@pytest.mark.parametrize(
    "build",
    [
        schedule.sequential,
        schedule.fused,
        schedule.deferred,
        lambda *a, **k: schedule.deferred(*a, streams="one", **k),
    ],
)
def test_graph_of_every_schedule(build, io_):
    s = build(1, 64, 32, io=io_)
    figure = figures.schedule_graph(s)
    shown = texts(figure)
    assert {f"<b>{launch.name}</b>" for launch in s.launches} <= set(shown)
    assert ("<b>host</b> " in figure.layout.yaxis.ticktext) == (io_ == "host")
    assert "hazard" not in figure.layout.title.subtitle.text  # none were asked for


def test_graph_with_spin_puts_it_before_the_projection():
    figure = figures.schedule_graph(schedule.deferred(1, 64, 32, spin=10))
    place = {a.text: (a.x, a.y) for a in figure.layout.annotations if a.bordercolor}
    assert place["<b>spin</b>"][1] == place["<b>projection</b>"][1]
    assert place["<b>spin</b>"][0] < place["<b>projection</b>"][0] < place["<b>post_scale</b>"][0]


def test_stale_map_states_and_counts():
    mask = np.zeros((3, 8), dtype=np.int8)
    mask[1, :4] = 1
    mask[2] = 1
    mask[2, 7] = 2
    figure = figures.stale_map(mask, 8)
    (heat,) = figure.data
    assert heat.z.tolist() == mask.tolist()
    assert list(heat.colorbar.ticktext) == ["fresh", "stale", "neither"]
    assert [heat.colorscale[i][1] for i in (0, 2, 4)] == list(figures.STATE_COLOURS[:3])
    assert (heat.zmin, heat.zmax) == (-0.5, 2.5)
    assert texts(figure) == ["0", "50.0 %", "100.0 %", "not fresh"]
    assert figure.layout.title.subtitle.text == "3 steps of 8 elements · 12 fresh, 11 stale, 1 neither"


def test_stale_map_has_early_in_its_key_only_where_it_occurs():
    mask = np.zeros((2, 2, 4), dtype=np.int8)
    mask[0, :, 1] = (1, 3)
    mask[0, :, 2] = (3, 2)
    mask[1, 0] = 3
    figure = figures.stale_map(mask)
    (heat,) = figure.data
    assert heat.z.tolist() == [[0, 3, 2, 0], [3, 3, 3, 3]]
    assert list(heat.colorbar.ticktext) == list(figures.STATES) == ["fresh", "stale", "neither", "early"]
    assert [heat.colorscale[i][1] for i in (0, 2, 4, 6)] == list(figures.STATE_COLOURS)
    assert [round(stop[0], 9) for stop in heat.colorscale] == [0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1]
    assert (heat.zmin, heat.zmax) == (-0.5, 3.5)
    assert "%{customdata[3]} early" in heat.hovertemplate
    assert texts(figure)[:2] == ["50.0 %", "50.0 %"]
    subtitle = figure.layout.title.subtitle.text
    assert subtitle.endswith("8 fresh, 1 stale, 1 neither, 6 early")


def test_states_and_outcomes_differ_without_colour():
    def light(colour):
        """Relative luminance of "#RRGGBB", as WCAG 2 defines it."""
        parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    lights = sorted(light(colour) for colour in figures.STATE_COLOURS)
    assert all((b + 0.05) / (a + 0.05) > 1.5 for a, b in itertools.pairwise(lights))
    for place in (0, 1, 2):
        assert len({style[place] for style in figures.OUTCOME_STYLE.values()}) == 4
    for place in (0, 1):
        assert len({mark[place] for mark in figures.MARKS.values()}) == 3


def early_timeline():
    """Two steps; the second one's projection was done before the first one's post_scale read y."""
    build = TimelineBuilder()
    for step in (0, 1):
        build.span("projection", "matrix", 1000 + 4000 * step, 3000, "kernel", step=step)
    build.span("post_scale", "main", 9000, 1000, "kernel", step=0, outcome="early")
    build.span("post_scale", "main", 11000, 1000, "kernel", step=1, outcome="fresh")
    return build.build()


def test_early_is_hatched_labelled_and_led_back_to_what_came_too_soon():
    t = early_timeline()
    by_name = traces(figures.timeline(t))
    assert by_name["early"].marker.pattern.shape == figures.OUTCOME_STYLE["early"][1] != ""
    assert "input not done yet" not in by_name
    line = by_name["input replaced already"]
    assert list(line.x) == [8.0, 8.0, 7.0, None]  # from post_scale's begin back to the end of projection 1
    assert line.hovertext[0] == "post_scale began 1,000 ns after projection of step 1 was done"
    (labels,) = figures.timeline(t).select_traces({"mode": "markers+text"})
    assert list(labels.text) == ["<b>post_scale: early</b>"]
    assert list(labels.marker.symbol) == ["triangle-up"]
    assert figures.timeline(t).layout.title.subtitle.text.endswith("1 fresh, 1 early")
    assert "input replaced already" not in traces(figures.timeline(t, 0))  # what is not shown is not led to
    (axes,) = figures.timeline_static(t).axes
    assert "post_scale: early" in {text.get_text() for text in axes.texts}


def test_stale_map_bins_many_outputs_and_keeps_the_worst():
    mask = np.zeros((2, 2, 3001), dtype=int)
    mask[0, 1, 3000] = 1  # the last output, alone in its bin's third
    mask[1, 0, 4] = 1
    mask[1, 1, 5] = 2
    figure = figures.stale_map(mask)
    (heat,) = figure.data
    assert heat.z.shape == (2, 1001)
    assert np.argwhere(heat.z).tolist() == [[0, 1000], [1, 1]]
    assert (heat.z[0, 1000], heat.z[1, 1]) == (1, 2)
    assert heat.customdata[1, 1].tolist() == [4, 1, 1]
    assert heat.customdata.sum() == mask.size
    assert "2 tokens in a row · 3 outputs in a column" in figure.layout.title.subtitle.text
    assert texts(figure)[0] == "< 0.1 %"


@pytest.mark.parametrize(
    ("mask", "k", "message"),
    [
        (np.zeros((2, 3)), None, "something else than 0"),
        (np.full((2, 3), 4), None, "something else than 0"),
        (np.zeros((2, 3), dtype=int), 4, "k=4"),
        (np.zeros((0, 3), dtype=int), 3, r"shape \(0, 3\)"),
        (np.zeros((1, 1, 1, 1), dtype=int), 1, r"shape \(1, 1, 1, 1\)"),
    ],
)
def test_stale_map_refuses_what_is_no_mask(mask, k, message):
    with pytest.raises(LabError, match=message):
        figures.stale_map(mask, k)


def test_outcome_counts_are_told_in_numbers():
    figure = figures.outcome_counts({"stale": 3, "fresh": 1})
    (bar,) = figure.data
    assert list(bar.y) == ["fresh", "stale", "torn"]
    assert list(bar.text) == ["1 (25 %)", "3 (75 %)", "0 (0 %)"]
    assert len(set(bar.marker.pattern.shape)) == 3
    assert list(figures.outcome_counts({}).data[0].text) == ["0", "0", "0"]
    assert list(figures.outcome_counts({"early": 1}).data[0].y) == ["fresh", "stale", "torn", "early"]
    with pytest.raises(LabError, match="'rotten': 1"):
        figures.outcome_counts({"rotten": 1})


def test_bars():
    figure = figures.bars(
        {"fused": 8.125, "deferred": 10}, "µs", "Time a step", "on a device", highlight=["deferred"]
    )
    (bar,) = figure.data
    assert list(bar.text) == ["8.125 µs", "10 µs"]
    assert list(bar.marker.pattern.shape) == ["", "/"]
    assert figure.layout.title.subtitle.text == "on a device"


def test_the_library_draws_nothing_until_asked():
    code = (
        "import sys, flashnorm_lab.figures; "
        "print([m for m in ('matplotlib', 'ipywidgets', 'torch', 'cupy', 'pyopencl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
