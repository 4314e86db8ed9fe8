"""The panels, driven from Python: no browser, no GPU. `test_browser.py` drives them in JupyterLab."""

import asyncio
import base64
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter

import ipywidgets
import numpy as np
import pytest
from test_race import FORCED, forced_ids, told

from flashnorm_lab import decoding, figures, hazards, models, outcomes, race, schedule, timeline
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES
from flashnorm_lab.widgets import RacePanel, SpeechPanel, parts, race_panel, speech_panel
from flashnorm_lab.widgets.latest import Latest
from flashnorm_lab.widgets.picture import Picture

SMALL = {"tokens": 1, "n": 64, "k": 48, "steps": 6}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


@pytest.fixture
def panel(device, tmp_path):
    return RacePanel(device, **SMALL, path=tmp_path / "timeline.json")


def text(html):
    """What a reader sees of a piece of markup."""
    return re.sub(r"<[^>]*>", "", html.value)


def struck(panel):
    """The lines of the program that are marked as left out."""
    return re.findall(r"- <del>(.*?)</del>", panel.program.value)


def widgets_of(panel):
    seen, todo = [], [panel]
    while todo:
        widget = todo.pop()
        seen.append(widget)
        todo += getattr(widget, "children", ())
    return seen


# Loading


def test_the_package_loads_no_widget_library_before_a_panel_is_asked_for():
    code = (
        "import sys, flashnorm_lab.widgets; "
        "print(sorted({'ipywidgets', 'plotly', 'torch', 'anywidget'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_there_are_no_other_panels():
    import flashnorm_lab.widgets

    with pytest.raises(AttributeError, match="NoPanel"):
        _ = flashnorm_lab.widgets.NoPanel


# The race panel


@pytest.mark.parametrize("edge", EDGES)
def test_each_switch_changes_verdict_program_graph_and_timeline(panel, edge):
    assert "No hazard" in text(panel.verdict)
    assert struck(panel) == []
    before = panel.graph.figure, panel.timeline.figure
    panel.edges[edge].value = False
    assert f"without {edge}" in text(panel.verdict)
    assert f"Repair: put back {edge}" in text(panel.verdict)
    assert all(h.repair == edge for h in panel.found)
    assert len(struck(panel)) == 3
    assert all(edge in line for line in struck(panel))
    assert f"missing: {edge}" in panel.graph.figure
    assert (panel.graph.figure, panel.timeline.figure) != before
    assert panel.result.schedule.dropped == (edge,)
    panel.edges[edge].value = True
    assert "No hazard" in text(panel.verdict)
    assert panel.counts == {"fresh": 6, "stale": 0, "torn": 0, "early": 0}


def test_verdict_and_program_need_no_run(panel):
    panel.automatic.value = False
    result, shown = panel.result, panel.timeline.figure
    panel.edges["join_matrix"].value = False
    assert "RAW on y" in text(panel.verdict)
    assert "Told from the schedule alone" in text(panel.verdict)
    assert len(struck(panel)) == 3
    assert panel.result is result
    assert panel.timeline.figure == shown
    assert "Not run since the last change" in text(panel.activity)
    panel.run_once.click()
    assert panel.result.schedule.dropped == ("join_matrix",)
    assert text(panel.activity) == ""


def test_the_program_can_be_shown_whole(panel):
    panel.edges["join_vector"].value = False
    assert "lines not shown" in text(panel.program)
    panel.whole.value = True
    assert "not shown" not in text(panel.program)
    kept = [line[2:] for line in re.findall(r"<span>(.*?)</span>", panel.program.value)]
    assert len(kept) == len(panel.built.to_cupy().splitlines())
    assert len(struck(panel)) == 3


@pytest.mark.parametrize("edge", EDGES)
def test_forcing_the_worst_case_makes_every_step_stale(panel, edge):
    panel.edges[edge].value = False
    panel.force.click()
    assert panel.counts == {"fresh": 0, "stale": 6, "torn": 0, "early": 0}
    assert "✗ 6 stale" in text(panel.outcome)
    assert f"{panel.result.force.hold} held back until {panel.result.force.until} was done" in text(
        panel.outcome
    )
    marks = panel.timeline.content()["data"]
    assert any(trace.get("name") == "stale" for trace in marks)


@pytest.mark.parametrize("case", FORCED, ids=map(forced_ids, FORCED))
def test_each_hazard_can_be_forced_by_itself_and_again_with_its_repair(device, case):
    ahead, edge, (kind, buffer), force, offsets = case
    panel = RacePanel(device, **SMALL, drop=edge, ahead=ahead)
    (hazard,) = [h for _, h in panel.hazard.options if (h.kind, h.buffer) == (kind, buffer)]
    panel.hazard.value = hazard
    wanted = race.force_of(panel.built, hazard)
    hold = wanted.hold
    assert panel.force_one.tooltip == f"hold {hold} until {wanted.awaited} is done"
    panel.force_one.click()
    assert panel.error is None
    assert str(panel.result.force) == force
    labels = [told(*o)[0] for o in offsets] * (6 // len(offsets))
    assert [o.label for o in panel.result.outcomes] == labels
    said = text(panel.outcome)
    assert f"{hold} held back until {panel.result.force.awaited} was done" in said
    for place, (y, r) in enumerate(offsets):
        label = told(y, r)[0]
        steps = [f"t{offset:+}" if offset else "t" for offset in (y + place, r + place)]
        read = "" if label == "fresh" else "post_scale read y of step {} and r of step {}: ".format(*steps)
        step = f"t+{place}" if place else "t"
        assert f"Step {step}: {read}{label}, {6 // len(offsets)} times." in said
    by_luck = offsets[0] == (0, 0)
    assert ("right by luck" in said) == by_luck
    assert ("fetch x ahead" in said) == (by_luck and not ahead)
    shown = panel.timeline.content()["layout"]["title"]["subtitle"]["text"]
    assert ("steps 0 to 1" if len(offsets) == 2 else "step 0") in shown

    assert panel.force_repaired.tooltip == f"put back {edge}, and hold {hold} for as long as that allows"
    panel.force_repaired.click()
    assert panel.error is None
    assert panel.counts["fresh"] == 6
    assert panel.result.schedule.dropped == ()
    assert str(panel.result.force) == force
    said = text(panel.outcome)
    assert f"with {edge} put back" in said
    assert f"Each time {hold} was held back, and {panel.result.force.awaited} waited for it" in said
    assert "Every step is right." in said
    assert "luck" not in said
    assert panel.built.dropped == (edge,)  # the panel's own step is as it was
    assert f"without {edge}" in text(panel.verdict)


def test_the_verdict_says_what_may_be_read(panel):
    panel.edges["join_matrix"].value = False
    assert "Repair: join_matrix. Without it, post_scale may read y of step t, " in text(panel.verdict)


def test_a_hazard_is_offered_where_there_is_one_and_stays_chosen(panel):
    assert panel.hazard.options == ((race_panel.NONE, None),)
    assert panel.hazard.disabled
    assert panel.force_one.disabled
    assert panel.force_repaired.tooltip == race_panel.NONE
    panel.edges["join_matrix"].value = False
    assert [label for label, _ in panel.hazard.options] == [
        "RAW on y: post_scale before projection",
        "WAR on x: next copy x before projection",
    ]
    assert not any(x.disabled for x in (panel.hazard, panel.force_one, panel.force_repaired))
    war = panel.hazard.options[1][1]
    panel.hazard.value = war
    panel.edges["fork_vector"].value = False
    assert len(panel.hazard.options) == 4
    assert race.pair(panel.hazard.value) == race.pair(war)
    panel.run_once.click()
    assert race.pair(panel.hazard.value) == race.pair(war)
    panel.edges["join_matrix"].value = True
    assert panel.hazard.value == panel.found[0]
    panel.order.value = "fused"
    assert panel.hazard.value is None
    assert panel.hazard.disabled
    panel.force_one.click()
    assert panel.error is None


def test_a_hazard_that_spans_more_steps_than_are_run_says_so(panel):
    panel.edges["join_matrix"].value = False
    panel.steps.value = 1
    assert not panel.force_one.disabled
    panel.hazard.value = panel.found[1]
    assert panel.force_one.disabled
    assert panel.force_repaired.disabled
    assert panel.force_one.tooltip == "this hazard spans 2 steps: run at least as many"
    panel.steps.value = 3
    assert not panel.force_one.disabled
    panel.force_one.click()
    assert "The last step has no partner and runs in the host's own order" in text(panel.outcome)


def test_with_several_edges_missing_the_repair_puts_all_of_them_back(panel):
    for edge in EDGES:
        panel.edges[edge].value = False
    assert len(panel.hazard.options) == 8
    panel.force_repaired.click()
    assert panel.counts["fresh"] == 6
    assert f"with {', '.join(EDGES)} put back" in text(panel.outcome)


def test_x_can_be_fetched_ahead(panel):
    panel.edges["fork_matrix"].value = False
    panel.ahead.value = True
    assert panel.built.name == "prefetched"
    assert "WAR on y" in text(panel.verdict)
    assert "RAW" not in text(panel.verdict)
    assert panel.force.disabled  # nothing goes wrong within one step
    for edge, words in parts.WAITS_FOR_AHEAD.items():
        assert text(panel.waits_for[edge]) == words
        assert panel.edges[edge].tooltip == f"{edge}: {words}"
    panel.force_one.click()
    assert "✗ 3 early" in text(panel.outcome)
    assert "early" in panel.stale_map.content()["data"][0]["colorbar"]["ticktext"]
    assert "3 fresh, 0 stale, 0 torn, 3 early" in repr(panel)
    panel.ahead.value = False
    assert panel.built.name == "deferred"
    assert text(panel.waits_for["fork_matrix"]) == parts.WAITS_FOR["fork_matrix"]
    panel.order.value = "sequential"
    assert panel.ahead.disabled


def test_with_all_edges_there_is_nothing_to_force(panel):
    panel.force.click()
    assert panel.error is None
    assert "Nothing was forced" in text(panel.outcome)
    assert panel.counts["fresh"] == 6


def test_many_runs_are_counted_together(panel):
    panel.run_many.click()
    assert panel.counts == {"fresh": 6 * race_panel.MANY, "stale": 0, "torn": 0, "early": 0}
    assert f"{6 * race_panel.MANY} steps in {race_panel.MANY} runs" in text(panel.outcome)


def test_counts_and_map_are_those_of_the_result(panel):
    panel.edges["join_matrix"].value = False
    panel.force.click()
    masks = np.stack([o.mask for o in panel.result.outcomes])
    wanted = json.loads(figures.stale_map(masks).to_json())["data"][0]["z"]
    assert panel.stale_map.content()["data"][0]["z"] == wanted
    counts = outcomes.count(panel.result.outcomes)
    for label in ("fresh", "stale", "torn"):
        assert f"{counts[label]} {label}" in text(panel.outcome)
    assert "early" not in text(panel.outcome)


def test_the_panel_says_where_it_was_measured(panel, device):
    assert f"Measured on {device.name}" in text(panel.outcome)


@pytest.mark.parametrize("order", ["sequential", "fused"])
def test_one_stream_needs_no_edges(panel, order):
    panel.edges["join_matrix"].value = False
    panel.order.value = order
    assert f"the {order} step has one stream" in text(panel.verdict)
    assert all(switch.disabled and "not used" in switch.description for switch in panel.edges.values())
    assert panel.spin.disabled
    assert panel.counts["fresh"] == 6
    panel.order.value = "deferred"
    assert panel.edges["join_matrix"].description == "join_matrix: ✗ left out"
    assert panel.built.dropped == ("join_matrix",)


def test_shapes_of_the_models_can_be_picked(panel):
    labels = [label for label, _ in panel.preset.options]
    for name in models.presets():
        assert sum(label.startswith(name) for label in labels) == 3
    panel.automatic.value = False
    panel.preset.value = (2048, 3072)
    assert (panel.n.value, panel.k.value) == (2048, 3072)
    assert panel.built.shape == (1, 2048, 3072)
    panel.k.value = 100
    assert panel.preset.value == race_panel.OWN
    assert panel.built.shape == (1, 2048, 100)


def test_tokens_steps_and_spin_are_used(panel):
    panel.tokens.value, panel.steps.value, panel.spin.value = 3, 4, 100
    assert panel.result.schedule.shape == (3, 64, 48)
    assert len(panel.result.outcomes) == 4
    assert panel.result.schedule.launches[0].name == "spin"
    assert panel.shown_step.max == 3


def test_the_timeline_shows_the_steps_that_are_asked_for(panel):
    panel.shown_step.value = 4
    assert "step 4" in panel.timeline.content()["layout"]["title"]["subtitle"]["text"]
    panel.shown_steps.value = 4  # only two are left from step 4 on
    assert "steps 4 to 5" in panel.timeline.content()["layout"]["title"]["subtitle"]["text"]
    panel.shown_steps.value = 0
    assert "steps 0 to 5" in panel.timeline.content()["layout"]["title"]["subtitle"]["text"]


def test_a_large_shape_waits_for_a_button(panel, monkeypatch):
    monkeypatch.setattr(race_panel, "AUTO_BYTES", 1000)
    result = panel.result
    panel.edges["join_matrix"].value = False
    assert panel.result is result
    assert "press a button" in text(panel.activity)
    panel.run_once.click()
    assert panel.result.schedule.dropped == ("join_matrix",)


@pytest.mark.parametrize(
    "change",
    [{"spin": (1 << 31) - 1}, {"n": 1, "k": 1 << 20}, {"tokens": 4096, "n": 576, "k": 960}],
    ids=["spin", "long rows", "many tokens"],
)
def test_a_long_run_waits_for_a_button_too(panel, monkeypatch, change):
    runs = []
    monkeypatch.setattr(race.Race, "run", lambda *a: runs.append(a))
    with panel._silently():
        for name, value in change.items():
            getattr(panel, name).value = value
    panel.edges["join_matrix"].value = False
    assert runs == []
    assert "press a button" in text(panel.activity)


def test_many_runs_can_be_stopped_and_those_made_are_counted(device, tmp_path):
    async def run():
        panel = RacePanel(device, **SMALL)
        assert panel.stop.disabled
        panel.steps.value = 64
        panel.settle()
        panel.run_many.click()
        assert not panel.stop.disabled
        panel.stop.click()
        panel.settle()
        return panel

    panel = asyncio.run(run())
    assert panel.error is None
    assert panel.stop.disabled
    made = sum(panel.counts.values()) // 64
    assert 1 <= made < race_panel.MANY
    assert (f"in {made} runs" in text(panel.outcome)) == (made > 1)


def test_forcing_is_offered_only_where_there_is_something_to_force(panel):
    assert panel.force.disabled
    assert panel.force.tooltip.startswith("nothing to force")
    panel.edges["join_matrix"].value = False
    assert not panel.force.disabled
    assert panel.force.tooltip.startswith("hold the writer")
    panel.order.value = "fused"
    assert panel.force.disabled


def test_a_race_is_prepared_once_for_all_its_runs(panel, monkeypatch):
    made = []
    prepare = race.prepare
    monkeypatch.setattr(race, "prepare", lambda *a: made.append(a) or prepare(*a))
    panel.edges["join_matrix"].value = False
    for button in (panel.run_once, panel.force, panel.force_one, panel.run_many):
        button.click()
    assert len(made) == 1


# Errors


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (LabError("n=3: <b>too small</b>"), "n=3: &lt;b&gt;too small&lt;/b&gt;"),
        (ValueError("bad value\nand more"), "ValueError: bad value"),
        (MemoryError(), "MemoryError: no message"),
    ],
)
def test_an_error_is_shown_in_the_panel_and_gone_after_the_next_change(
    panel, monkeypatch, raised, told, capsys
):
    def broken(*_):
        raise raised

    with monkeypatch.context() as patch:
        patch.setattr(race, "prepare", broken)
        panel.edges["join_matrix"].value = False
        assert told in panel.message.value
        assert "and more" not in panel.message.value
        assert 'role="alert"' in panel.message.value
        assert panel.error is raised
        assert text(panel.activity) == ""
    panel.edges["join_matrix"].value = True
    assert panel.message.value == ""
    assert panel.error is None
    assert panel.result.schedule.dropped == ()
    assert "Traceback" not in "".join(capsys.readouterr())


def test_a_device_that_is_not_there_is_an_error_in_the_panel(panel, monkeypatch):
    from flashnorm_lab.devices import cuda

    monkeypatch.setattr(cuda, "unusable", lambda: "no driver here")
    panel.device_choice.value = "cuda"
    assert "no driver here" in text(panel.message)
    panel.device_choice.value = panel.device_choice.options[0][1]
    assert panel.error is None


def test_a_machine_without_opencl_still_gets_a_panel(monkeypatch):
    def none():
        raise LabError("no OpenCL platform was found; install one")

    monkeypatch.setattr(opencl, "platforms", none)
    opencl._open.cache_clear()
    try:
        panel = RacePanel("opencl", drop="join_matrix", **SMALL)
    finally:
        opencl._open.cache_clear()
    assert "no OpenCL platform was found" in text(panel.message)
    assert "RAW on y" in text(panel.verdict)
    assert len(struck(panel)) == 3
    assert "image/png" not in panel._repr_mimebundle_()
    panel.export.click()
    assert "run once first" in text(panel.exported)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"drop": "join"}, "'join'"),
        ({"schedule": "eager"}, "'eager'"),
        ({"tokens": 0}, "tokens=0"),
        ({"steps": 0}, "steps=0"),
        ({"n": 1.5}, "n=1.5"),
        ({"spin": -1}, "spin=-1"),
    ],
)
def test_arguments_that_cannot_be_are_named(device, wrong, told):
    with pytest.raises(LabError, match=re.escape(told)):
        RacePanel(device, **wrong)


# Export


def test_export_writes_the_timeline_and_offers_it_for_download(panel, tmp_path):
    panel.edges["join_matrix"].value = False
    panel.force.click()
    panel.export.click()
    path = tmp_path / "timeline.json"
    assert timeline.open(path).equals(panel.result.timeline)
    assert json.loads(path.read_text())["traceEvents"]
    assert str(path) in text(panel.exported)
    link = re.search(
        r'download="timeline.json" href="data:application/json;base64,([^"]+)"', panel.exported.value
    )
    assert base64.b64decode(link[1]) == path.read_bytes()


def test_a_file_too_large_for_a_link_is_told_by_its_place(panel, monkeypatch):
    monkeypatch.setattr(parts, "DOWNLOAD_BYTES", 10)
    panel.export.click()
    assert "href" not in panel.exported.value
    assert "timeline.json" in text(panel.exported)


@pytest.mark.parametrize("path", ["", "no/such/folder/t.json"])
def test_an_export_that_cannot_be_written_says_why(panel, path):
    panel.export.click()
    assert "Download it" in text(panel.exported)
    panel.path.value = path
    assert panel.exported.value == ""
    panel.export.click()
    assert panel.error is not None
    assert text(panel.exported).startswith("✗ That did not work.")
    panel.run_once.click()
    assert panel.error is None
    assert panel.exported.value == ""


# Driven fast


def test_fifty_quick_flips_leave_panel_and_result_in_agreement(device):
    """As a kernel does it: every flip is handled at once, runs come behind, and most are overtaken."""
    made = []

    async def flip():
        panel = RacePanel(device, **SMALL)
        panel._latest.failed = made.append
        draw = np.random.default_rng(0)
        for number in range(50):
            switch = panel.edges[EDGES[draw.integers(4)]]
            switch.value = not switch.value
            if number % 10 == 9:
                await asyncio.sleep(0.05)
        off = tuple(edge for edge in EDGES if not panel.edges[edge].value)
        assert panel.built.dropped == off  # at once, before the runs have caught up
        panel.settle()
        return panel, off

    panel, off = asyncio.run(flip())
    assert made == []
    assert panel.error is None
    assert panel.result.schedule.dropped == off
    assert sum(panel.counts.values()) == 6
    assert len(struck(panel)) == 3 * len(off)
    for edge in EDGES:
        assert (f"missing: {edge}" in panel.graph.figure) == (edge in off)
        assert ("✗ left out" in panel.edges[edge].description) == (edge in off)


def test_a_change_is_one_run_and_one_drawing_of_each_picture(panel, monkeypatch):
    drawn, runs, show, run = Counter(), [], Picture.show, race.Race.run
    monkeypatch.setattr(Picture, "show", lambda self, *a: (drawn.update([self.label]), show(self, *a)))
    monkeypatch.setattr(race.Race, "run", lambda self, *a, **o: runs.append(a) or run(self, *a, **o))
    for edge in EDGES:
        panel.edges[edge].value = False
    assert panel.error is None
    assert runs == [(None,)] * 4
    assert drawn == {picture.label: 4 for picture in (panel.graph, panel.timeline, panel.stale_map)}
    panel.run_once.click()
    assert len(runs) == 5


def test_only_the_newest_job_delivers():
    async def run():
        latest, told, go = Latest(told_error.append), [], threading.Event()

        def slow(post):
            go.wait(10)
            told.append(("slow may go on", post(lambda: told.append("slow"))))

        def job(name):
            return lambda post: post(lambda: told.append(name))

        latest.submit(slow)
        for name in "abc":
            latest.submit(job(name))
        assert latest.busy
        go.set()
        latest.settle()
        assert not latest.busy
        return told

    told_error = []
    told = asyncio.run(run())
    assert told[-1] == "c"
    assert "a" not in told
    assert "b" not in told
    assert "slow" not in told
    assert told_error == []


def test_deliveries_are_made_by_the_loop_on_its_own_thread():
    async def run():
        latest, where = Latest(pytest.fail), []
        latest.submit(lambda post: post(lambda: where.append(threading.current_thread())))
        while not where:
            await asyncio.sleep(0.01)
        return where

    assert asyncio.run(run()) == [threading.main_thread()]


def test_what_a_job_or_its_delivery_raises_is_reported():
    failed = []

    async def run():
        latest = Latest(failed.append)
        for job in (lambda _: 1 / 0, lambda post: post(lambda: {}["missing"])):
            latest.submit(job)
            latest.settle()

    asyncio.run(run())
    assert [type(e) for e in failed] == [ZeroDivisionError, KeyError]


def test_waiting_for_a_job_has_an_end():
    async def run():
        latest, go = Latest(pytest.fail), threading.Event()
        latest.submit(lambda _: go.wait(10))
        try:
            with pytest.raises(LabError, match=r"still at work after 0.05 s"):
                latest.settle(0.05)
        finally:
            go.set()
            latest.settle()

    asyncio.run(run())


# For everyone, and where widgets cannot run


def check_reachable(panel):
    """Every control can be reached by keyboard and says in words what it is for."""
    buttons = (ipywidgets.Button, ipywidgets.ToggleButton)
    fields = (
        ipywidgets.Dropdown, ipywidgets.Text, ipywidgets.Textarea, ipywidgets.BoundedIntText,
        ipywidgets.Checkbox, ipywidgets.IntSlider, ipywidgets.Select, ipywidgets.Combobox,
    )  # fmt: skip
    controls = [x for x in widgets_of(panel) if isinstance(x, buttons + fields)]
    assert len(controls) > 10
    for control in controls:
        assert control.tooltip
        assert control.description or isinstance(control, ipywidgets.Textarea | ipywidgets.Select)
        if isinstance(control, buttons):
            assert control.tabbable


def test_the_race_panel_can_be_used_by_keyboard(panel):
    check_reachable(panel)
    assert len(panel.order.tooltips) == len(panel.order.options)
    for picture in (panel.graph, panel.timeline, panel.stale_map):
        assert picture.label
    assert ":focus-visible" in parts.STYLE


def test_what_differs_is_told_in_words_and_signs(panel):
    panel.edges["join_matrix"].value = False
    assert panel.edges["join_matrix"].description == "join_matrix: ✗ left out"
    assert panel.edges["fork_matrix"].description == "fork_matrix: ✓ in place"
    assert text(panel.verdict).startswith("✗")
    panel.edges["join_matrix"].value = True
    assert text(panel.verdict).startswith("✓")


def test_a_picture_and_a_line_of_text_stand_in_for_the_panel(panel):
    panel.edges["join_matrix"].value = False
    panel.force.click()
    bundle = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert "without join_matrix: 2 hazards; repair: join_matrix" in bundle["text/plain"]
    assert "0 fresh, 6 stale, 0 torn" in bundle["text/plain"]
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == panel.model_id


def test_texts_from_outside_are_shown_as_text():
    evil = "<img src=x onerror=alert(1)>"
    assert "<img" not in parts.speech(evil, [(evil, True), (evil, False)], evil)
    assert "<img" not in parts.site_table({evil: {"fresh": 1, "stale": 0, "torn": 0, "early": 0}}, evil)
    early = parts.site_table({"a": {"fresh": 1, "stale": 0, "torn": 0, "early": 2}}, "site")
    assert "<td>✗ a</td><td>1</td><td>0</td><td>0</td><td>2</td>" in early
    assert "early" not in parts.site_table({"a": {"fresh": 1, "stale": 0, "torn": 0, "early": 0}}, "site")
    assert "<img" not in parts.message(ValueError(evil))
    assert "<img" not in parts.note(evil)


# The speech panel


class Words:
    """A tokenizer whose tokens are w0 to w63; a prompt is a list of their numbers."""

    eos_token_id = 63

    def __call__(self, prompt, return_tensors):
        import torch

        return {"input_ids": torch.tensor([[int(word) for word in prompt.split()]], dtype=torch.long)}

    def decode(self, ids):
        return "".join(f" w{i}<" for i in ids)


@pytest.fixture
def tiny():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.5,
    )  # fmt: skip
    return models.Model(LlamaForCausalLM(config).eval(), Words(), "tiny", "nowhere")


def attached(model):
    return any("forward" in vars(module) for module in model.model.modules())


@pytest.fixture
def speaker(tiny, device):
    return SpeechPanel(tiny, device, prompt="1 2 3", tokens=8)


def test_with_all_edges_the_model_says_what_it_always_says(speaker, device):
    assert "No hazard" in text(speaker.verdict)
    speaker.start.click()
    assert speaker.error is None
    assert [t.id for t in speaker.spoken] == [t.id for t in speaker.reference]
    assert len(speaker.spoken) == 8
    assert "<u>" not in speaker.spoken_text.value
    assert speaker.spoken_text.value == speaker.reference_text.value
    assert f"The same as the reference in all 8 tokens. Measured on {device.name}" in text(speaker.summary)
    assert speaker.first_divergence() is None
    assert all(n["stale"] == n["torn"] == 0 for n in speaker.tally.sites.values())
    assert not attached(speaker.model)


@pytest.mark.parametrize(
    ("drop", "says"), [((), False), (("fork_matrix",), True), (("fork_matrix", "fork_vector"), True)]
)
def test_an_edge_that_the_hosts_wait_makes_needless_is_explained(drop, says):
    built = schedule.deferred(1, 8, 4, io="host").without(*drop)
    told = parts.verdict(built, hazards.find(built))
    assert "No hazard" in told
    assert ("is not missed here: the host waits for main at each site" in told) == says


def test_a_missing_edge_changes_the_text_and_the_panel_shows_where_and_why(speaker):
    speaker.edges["join_matrix"].value = False
    assert "without join_matrix" in text(speaker.verdict)
    speaker.force.value = True
    speaker.start.click()
    assert speaker.error is None
    first = speaker.first_divergence()
    assert first is not None
    assert f"Differs from token {first} on" in text(speaker.summary)
    marked = re.findall(r"<u>(.*?)</u>", speaker.spoken_text.value)
    assert len(marked) == sum(speaker.differs(t.number) for t in speaker.spoken)
    assert "≠" in text(speaker.spoken_text)
    numbers = speaker.tally.sites
    assert set(numbers) == {"layers.0.qkv", "layers.0.gate_up", "layers.1.qkv", "layers.1.gate_up", "head"}
    assert numbers["head"]["fresh"] < 7
    assert "✗ head" in text(speaker.causes)
    assert "QKV, 2 layers" in text(speaker.causes)
    assert "every site" in text(speaker.causes)
    signs = [label.split()[1] for label, _ in speaker.listed.options]
    assert signs == ["≠" if speaker.differs(t.number) else "=" for t in speaker.spoken]


def test_edges_can_be_left_out_at_one_site(speaker):
    speaker.edges["join_matrix"].value = False
    speaker.force.value = True
    speaker.sites.value = "layers.1.qkv, head"
    speaker.start.click()
    for name, numbers in speaker.tally.sites.items():
        if name in ("layers.1.qkv", "head"):
            assert numbers["stale"] > 0
        else:
            assert numbers == {"fresh": 7, "stale": 0, "torn": 0, "early": 0}


def test_choosing_a_token_and_a_site_shows_that_step(speaker):
    speaker.edges["join_matrix"].value = False
    speaker.force.value = True
    speaker.sites.value = "head"
    speaker.start.click()
    speaker.listed.value = 5
    names = [label for label, _ in speaker.site.options]
    assert names[-2:] == ["head: stale", speech_panel.WHOLE]
    assert speaker.site.value == 4  # the first that is not fresh
    shown = speaker.timeline.content()
    assert "Token 5" in shown["layout"]["title"]["text"]
    assert any(trace.get("name") == "stale" for trace in shown["data"])
    assert "head: stale (y of step t-1" in text(speaker.about)
    speaker.site.value = 0
    assert not any(trace.get("name") == "stale" for trace in speaker.timeline.content()["data"])
    speaker.site.value = -1
    assert "all of its sites" in text(speaker.about)
    assert any(trace.get("name") == "stale" for trace in speaker.timeline.content()["data"])


def test_a_token_without_a_timeline_says_why(speaker):
    speaker.record.value = False
    speaker.start.click()
    assert speaker.timelines == {}
    speaker.listed.value = 0
    assert "comes from the prompt's own pass" in speaker.about.value.replace("&#x27;", "'")
    speaker.listed.value = 3
    assert "was not recorded" in text(speaker.about)


def test_stop_works_while_the_model_speaks(tiny, device):
    async def run():
        panel = SpeechPanel(tiny, device, prompt="1 2 3", tokens=400)
        tiny.tokenizer.eos_token_id = None
        panel.start.click()
        assert panel.start.disabled
        assert not panel.stop.disabled
        end = time.monotonic() + 60
        while len(panel.spoken) < 2 and panel.error is None and time.monotonic() < end:
            await asyncio.sleep(0.005)
        panel.stop.click()
        panel.settle()
        return panel

    panel = asyncio.run(run())
    assert panel.error is None
    assert 2 <= len(panel.spoken) < 400
    assert "Stopped." in text(panel.activity)
    assert "(stopped)" in text(panel.spoken_text)
    assert panel.stop.disabled
    assert not panel.start.disabled
    assert not attached(tiny)


def test_a_reference_is_never_made_through_an_attached_model(speaker, device):
    right = list(decoding.generate(speaker.model.model, speaker.model.tokenizer, "1 2 3", 8))
    with decoding.attach(speaker.model.model, device, drop=("join_matrix",), force="worst"):
        speaker.speak()
        assert "the model is attached to a device" in text(speaker.message)
    assert speaker._references == {}
    speaker.speak()
    assert speaker.error is None
    assert [t.id for t in speaker.reference] == [t.id for t in right]
    assert speaker.first_divergence() is None


def test_two_panels_on_one_model_speak_one_after_the_other(tiny, device):
    async def run():
        panels = [SpeechPanel(tiny, device, prompt="1 2 3", tokens=8) for _ in range(4)]
        said = [[] for _ in panels]
        for panel, lines in zip(panels, said, strict=True):
            panel.activity.observe(lambda change, lines=lines: lines.append(change["new"]), "value")
        with decoding.in_use(tiny.model):  # by this thread; panels speak in others
            for panel in panels:
                panel.speak()
            await asyncio.sleep(0.2)
        for panel in panels:
            panel.settle()
        return panels, said

    panels, said = asyncio.run(run())
    for panel, lines in zip(panels, said, strict=True):
        assert panel.error is None
        assert any(speech_panel.WAITING in line for line in lines)
        assert len(panel.spoken) == 8
        assert panel.first_divergence() is None
    assert not attached(tiny)


def test_a_panel_that_waits_for_the_model_can_be_stopped(tiny, device):
    async def run():
        panel = SpeechPanel(tiny, device, prompt="1 2 3", tokens=8)
        with decoding.in_use(tiny.model):
            panel.speak()
            await asyncio.sleep(0.2)
            panel.stop.click()
            panel.settle()
        return panel

    panel = asyncio.run(run())
    assert panel.error is None
    assert panel.spoken == []
    assert "Stopped." in text(panel.activity)
    assert not panel.start.disabled


def test_what_is_shown_keeps_the_settings_that_it_was_said_with(speaker):
    speaker.edges["join_matrix"].value = False
    speaker.start.click()
    assert text(speaker.spoken_title) == "Without join_matrix at 5 sites"
    before = speaker.spoken_text.value, repr(speaker)
    speaker.prompt.value = "7 8"
    assert "Not spoken since the last change" in text(speaker.activity)
    speaker.edges["join_matrix"].value = True
    speaker.listed.value = 3
    assert (speaker.spoken_text.value, repr(speaker)) == before
    assert text(speaker.spoken_title) == "Without join_matrix at 5 sites"
    speaker.start.click()
    assert text(speaker.spoken_title) == "With all edges"
    assert text(speaker.spoken_text).startswith("7 8")
    assert "Done." in text(speaker.activity)


def test_an_empty_prompt_leaves_no_timeline_of_the_text_before(speaker):
    speaker.start.click()
    assert speaker.timeline.content()
    speaker.prompt.value = ""
    speaker.start.click()
    assert speaker.timeline.content() == {}
    assert "the prompt is empty" in text(speaker.message)


def test_speaking_again_takes_the_reference_from_memory(speaker, monkeypatch):
    calls = []
    generate = decoding.generate
    monkeypatch.setattr(
        decoding, "generate", lambda *a, **k: calls.append(k.get("attached")) or generate(*a, **k)
    )
    speaker.start.click()
    speaker.tokens.value = 5
    speaker.start.click()
    assert [a is None for a in calls] == [True, False, False]
    assert len(speaker.reference) == len(speaker.spoken) == 5
    speaker.prompt.value = "4 5"
    speaker.start.click()
    assert calls[-2] is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: setattr(p.sites, "value", "layers.9.qkv"), "layers.9.qkv"),
        (lambda p: setattr(p.sites, "value", " , "), "is empty"),
        (lambda p: setattr(p.prompt, "value", " "), "the prompt is empty"),
        (lambda p: setattr(p.device_choice, "value", "cuda"), "no driver here"),
    ],
)
def test_what_goes_wrong_is_shown_and_the_panel_can_be_used_again(speaker, monkeypatch, change, told):
    from flashnorm_lab.devices import cuda

    monkeypatch.setattr(cuda, "unusable", lambda: "no driver here")
    before = speaker.sites.value, speaker.prompt.value, speaker.device_choice.value
    change(speaker)
    speaker.start.click()
    assert told in text(speaker.message)
    assert not attached(speaker.model)
    assert not speaker.start.disabled
    speaker.sites.value, speaker.prompt.value, speaker.device_choice.value = before
    speaker.start.click()
    assert speaker.error is None
    assert len(speaker.spoken) == 8


def test_the_model_is_loaded_once_when_it_first_speaks_and_says_how_far_it_is(tiny, device, monkeypatch):
    loads, said = [], []

    def load(progress):
        loads.append(1)
        progress("downloading", 46_000_000, 93_000_000)
        return tiny

    monkeypatch.setattr(models, "smollm2", load)
    monkeypatch.setattr(speech_panel, "_loaded", {})
    first, second = (SpeechPanel(None, device, prompt="1 2", tokens=2) for _ in range(2))
    assert loads == []
    first.activity.observe(lambda change: said.append(change["new"]), "value")
    for panel in (first, second, first):
        panel.start.click()
        assert panel.error is None
        assert len(panel.spoken) == 2
    assert loads == [1]
    assert any("downloading 46 of 93 MB" in line for line in said)


def test_panels_that_start_together_load_one_model(tiny, device, monkeypatch):
    loads = []

    def load(progress):
        loads.append(1)
        time.sleep(0.1)
        return tiny

    async def run():
        panels = [SpeechPanel(None, device, prompt="1 2", tokens=2) for _ in range(2)]
        for panel in panels:
            panel.speak()
        return [panel.settle() for panel in panels]

    monkeypatch.setattr(models, "smollm2", load)
    monkeypatch.setattr(speech_panel, "_loaded", {})
    for panel in asyncio.run(run()):
        assert panel.error is None
        assert panel.model is tiny
        assert len(panel.spoken) == 2
    assert loads == [1]


def test_a_model_that_cannot_be_had_is_an_error_in_the_panel(device, monkeypatch):
    def fail(progress):
        raise LabError("no network: cannot fetch the model")

    monkeypatch.setattr(models, "smollm2", fail)
    monkeypatch.setattr(speech_panel, "_loaded", {})
    panel = SpeechPanel(None, device)
    panel.start.click()
    assert "no network" in text(panel.message)
    assert not panel.start.disabled


def test_words_of_prompt_and_model_are_shown_as_text(speaker):
    speaker.start.click()
    assert all(f" w{t.id}&lt;" in speaker.spoken_text.value for t in speaker.spoken)
    assert re.search(r"w\d+<", speaker.spoken_text.value) is None


def test_the_speech_panel_can_be_used_by_keyboard(speaker):
    check_reachable(speaker)


def test_a_picture_and_a_line_of_text_stand_in_for_the_speech_panel(speaker):
    assert "nothing said yet" in speaker._repr_mimebundle_()["text/plain"]
    assert "image/png" not in speaker._repr_mimebundle_()
    speaker.edges["join_matrix"].value = False
    speaker.force.value = True
    speaker.start.click()
    bundle = speaker._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert "edges left out: join_matrix" in bundle["text/plain"]


@pytest.mark.parametrize(("wrong", "told"), [({"drop": "join"}, "'join'"), ({"tokens": 0}, "tokens=0")])
def test_arguments_of_the_speech_panel_that_cannot_be_are_named(wrong, told):
    with pytest.raises(LabError, match=re.escape(told)):
        SpeechPanel(**wrong)


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_speaks_and_a_head_that_lags_changes_its_words(device):
    panel = SpeechPanel(None, device, tokens=6)
    panel.speak()
    assert panel.error is None
    assert panel.first_divergence() is None
    panel.edges["join_matrix"].value = False
    panel.sites.value, panel.force.value = "head", True
    panel.speak()
    assert panel.error is None
    assert panel.first_divergence() in (1, 2)
    assert panel.tally.sites["head"]["stale"] == 5
