"""The exercise panel, driven from Python, and once in JupyterLab as a learner would drive it."""

import asyncio
import base64
import html
import re
import shutil
import time

import ipywidgets
import pytest
from browser import jupyter

from flashnorm_lab import exercises, exposure, figures
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError
from flashnorm_lab.widgets import ExercisePanel, exercise_panel
from flashnorm_lab.widgets.latest import DEVICE

ALL = pytest.mark.parametrize("exercise", exercises.ALL, ids=lambda e: e.name)
RACES = [e for e in exercises.ALL if not e.verdict.clean]
RACE, NO_RACE = 0, 1
PNG = b"\x89PNG\r\n\x1a\n"
NOTEBOOK = "07_races_in_your_own_code.ipynb"


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


@pytest.fixture
def panel(device):
    return ExercisePanel("side_copy_b", device)


def text(widget):
    """What a reader sees of a piece of markup."""
    return html.unescape(re.sub(r"<[^>]*>", " ", widget.value))


def marked(panel, kind):
    """The lines of the program that are marked so."""
    found = re.findall(rf'<span class="{kind}"><i>\s*(\S+)</i> (.*?)</span>', panel.listing.value)
    return [(number, html.unescape(re.sub(r"<[^>]*>", "", line)).strip()) for number, line in found]


def shown(panel):
    return panel.after.layout.display != "none"


def answer(panel, which, edge=None):
    """Answer and press the button."""
    panel.answer.index = which
    if edge is not None:
        panel.edge.value = edge
    panel.check.click()


def cells(panel):
    """The table of what was observed: for each row its label, and each cell with whether it is right."""
    rows = re.findall(r"<tr><td>(.*?)</td>(.*?)</tr>", panel.observed.value)
    found = {html.unescape(label): re.findall(r'<td class="(\w+)">(.*?)</td>', rest) for label, rest in rows}
    return {label: [(kind == "right", html.unescape(c)) for kind, c in row] for label, row in found.items()}


# Before an answer


@ALL
def test_nothing_is_given_away_before_the_answer(exercise, device):
    panel = ExercisePanel(exercise.name, device)
    assert panel.exercise is exercise
    assert exercise.story in text(panel.story)
    listed = re.findall(r"<i>\s*(\d+)</i> (.*?)</span>", panel.listing.value)
    assert [(int(n), html.unescape(line).strip()) for n, line in listed] == [
        (n, line.strip()) for n, line in enumerate(exercise.lines, 1)
    ]
    assert not shown(panel)
    assert panel.graph.content() == {}
    assert panel.report.value == panel.observed.value == ""
    assert not any(marked(panel, kind) for kind in ("first", "second", "come"))
    assert "Answer first" in text(panel.told)
    assert (panel.answer.index, panel.edge.value, panel.result) == (None, None, None)
    assert exercise.lesson not in "".join(w.value for w in (panel.told, panel.listing, panel.story))


def test_the_button_waits_for_an_answer_and_the_edge_for_a_race(panel):
    assert panel.check.disabled
    assert panel.edge.disabled
    panel.answer.index = NO_RACE
    assert not panel.check.disabled
    assert panel.edge.disabled
    panel.answer.index = RACE
    assert not panel.edge.disabled
    assert [edge for _, edge in panel.edge.options] == [None, *panel.exercise.edges]
    assert all(label == edge.short for label, edge in panel.edge.options[1:])


def test_every_exercise_can_be_chosen(panel):
    seen = []
    for _, wiring in panel.wiring.options:
        panel.wiring.value = wiring
        for label, exercise in panel.version.options:
            panel.version.value = exercise
            assert panel.exercise is exercise
            assert label == exercise.name[-1].upper()
            assert exercise.file in text(panel.listing_title)
            seen.append(exercise)
    assert seen == list(exercises.ALL)
    assert panel.error is None


def test_another_name_is_named():
    with pytest.raises(LabError, match="there is no exercise 'side_copy'"):
        ExercisePanel("side_copy")


# Answers


@ALL
@pytest.mark.parametrize("which", [RACE, NO_RACE])
def test_the_answer_is_the_one_of_the_analysis(exercise, which, device):
    panel = ExercisePanel(exercise.name, device)
    answer(panel, which)
    right = (which == NO_RACE) == exercise.verdict.clean
    assert panel.result.right is right
    assert ("✓" if right else "✗") in text(panel.told)
    assert ("say good" in panel.told.value) is right
    for line in panel.result.explain().splitlines():
        assert line in text(panel.told)
    assert shown(panel)
    assert exercise.verdict.report(exercise.library) in text(panel.report)
    assert panel.force.disabled is exercise.verdict.clean
    assert ("Nothing to force" in text(panel.activity)) is exercise.verdict.clean


@pytest.mark.parametrize("exercise", RACES, ids=lambda e: e.name)
def test_the_lines_of_a_race_are_marked_in_words_and_colour(exercise, device):
    panel = ExercisePanel(exercise.name, device)
    answer(panel, NO_RACE)
    (hazard,) = exercise.verdict.hazards
    first, second = (source.rpartition(":")[2] for source in (hazard.first_source, hazard.second_source))
    ((number, line),) = marked(panel, "first")
    assert number == first
    assert line.endswith(f"◀ line {second} does not wait for this")
    ((number, line),) = marked(panel, "second")
    assert number == second
    assert line.endswith(f"◀ does not wait for line {first}")


def test_an_edge_is_put_into_the_program(panel):
    answer(panel, RACE, panel.exercise.solution)
    assert panel.result.repairs
    assert "Your edge repairs it" in text(panel.told)
    assert marked(panel, "come") == [
        ("+", "edge = cp.cuda.Event(disable_timing=True)"),
        ("+", "edge.record(copies)"),
        ("+", "cp.cuda.Stream.null.wait_event(edge)"),
    ]


def test_a_wrong_edge_makes_a_right_answer_look_wrong(panel):
    answer(panel, RACE, panel.exercise.edges[0])
    assert panel.result.right
    assert "Your edge does not repair it" in text(panel.told)
    assert "say bad" in panel.told.value


def test_no_race_has_no_edge_even_if_one_was_chosen_before(panel):
    panel.answer.index = RACE
    panel.edge.value = panel.exercise.edges[1]
    panel.answer.index = NO_RACE
    panel.check.click()
    assert panel.result.edge is None
    assert marked(panel, "come") == []


def test_the_picture_is_that_of_the_program_and_its_hazards(panel):
    answer(panel, RACE)
    drawn = panel.graph.content()
    wanted = figures.program_graph(panel.exercise.program, panel.exercise.verdict.hazards)
    assert len(drawn["data"]) == len(wanted.data) == 1
    told = [a["text"] for a in drawn["layout"]["annotations"]]
    assert "⚠ RAW on w" in told
    assert not any("may read w before" in t for t in told)  # the answer has the sentence


def test_the_report_speaks_the_words_that_are_chosen(panel):
    answer(panel, RACE)
    assert panel.words.value == "cupy"
    for words, line in (
        ("pytorch", "torch.cuda.Event()"),
        ("opencl", "cl.enqueue_marker"),
        ("cupy", "cp.cuda.Event"),
    ):
        panel.words.value = words
        assert line in text(panel.report)
    panel.wiring.value = exercises.get("freed_block_b").title
    panel.version.value = exercises.get("freed_block_b")
    assert panel.words.value == "pytorch"  # the program's own


def test_after_a_change_the_answer_is_not_checked_and_nothing_moves_away(panel):
    answer(panel, RACE)
    panel.edge.value = panel.exercise.edges[1]
    assert "Not checked since the last change" in text(panel.told)
    assert shown(panel)
    panel.check.click()
    assert "Your edge" in text(panel.told)


def test_another_version_begins_anew(panel):
    answer(panel, RACE)
    panel.force.click()
    assert panel.observed.value != ""
    panel.version.value = exercises.get("side_copy_c")
    assert not shown(panel)
    assert panel.result is None
    assert panel.exposures == {}
    assert panel.observed.value == panel.report.value == ""
    assert panel.graph.content() == {}
    assert panel.answer.index is None


def test_texts_are_shown_as_text(panel, monkeypatch):
    exercise = exercises.get("side_copy_c")
    monkeypatch.setitem(exercise.__dict__, "story", "<b>1 & 2</b>")
    monkeypatch.setitem(exercise.__dict__, "lines", ("<i>a</i>", *exercise.lines[1:]))
    monkeypatch.setattr(type(exercise.verdict), "report", lambda *_: "x < y <b>")
    panel.version.value = exercise
    answer(panel, RACE)
    assert "&lt;b&gt;1 &amp; 2&lt;/b&gt;" in panel.story.value
    assert "&lt;i&gt;a&lt;/i&gt;" in panel.listing.value
    assert "x &lt; y &lt;b&gt;" in panel.report.value


# On the device


@pytest.mark.parametrize("exercise", RACES, ids=lambda e: e.name)
def test_a_race_is_forced_and_the_right_edge_stops_it(exercise, device):
    panel = ExercisePanel(exercise.name, device)
    answer(panel, RACE, exercise.solution)
    panel.force.click()
    assert panel.error is None
    assert list(panel.exposures) == ["with your edge"]
    rows = cells(panel)
    assert rows
    for serial, forced, mine in rows.values():
        assert (serial[0], forced[0], mine[0]) == (True, False, True)
        assert serial[1].strip("✓✗ ") == mine[1].strip("✓✗ ") != forced[1].strip("✓✗ ")
    (hazard,) = exercise.verdict.hazards
    reader = hazard.first if hazard.kind in ("WAR", "reuse") else hazard.second
    assert all(label.startswith(reader) for label in rows)
    assert f"Measured on {device.name}" in text(panel.observed)
    assert f"{hazard.first} was held until {hazard.second} was done" in text(panel.observed)
    assert f"With your edge, {hazard.first} cannot be held" in text(panel.observed)
    assert "what else was observed" in text(panel.observed)


def test_a_wrong_edge_does_not_stop_it(panel):
    answer(panel, RACE, panel.exercise.edges[0])
    panel.force.click()
    assert list(panel.exposures) == ["with your edge", "with the right edge"]
    ((_, forced, mine, right),) = cells(panel).values()
    assert not forced[0]
    assert mine == forced
    assert right[0]
    assert "With your edge, that can still be done." in text(panel.observed)


def test_without_an_edge_the_right_one_is_shown(panel):
    answer(panel, NO_RACE)
    panel.force.click()
    assert list(panel.exposures) == ["with the right edge"]
    assert [[good for good, _ in row] for row in cells(panel).values()] == [[True, False, True]]


def test_a_new_check_takes_the_last_forcing_away(panel):
    answer(panel, RACE)
    panel.force.click()
    panel.check.click()
    assert panel.observed.value == ""
    assert panel.exposures == {}


def test_the_device_is_held_while_it_is_used(panel, monkeypatch):
    held = []
    expose = exposure.expose
    monkeypatch.setattr(exposure, "expose", lambda *a: held.append(DEVICE._is_owned()) or expose(*a))
    answer(panel, RACE, panel.exercise.edges[0])
    panel.force.click()
    assert held == [True, True]


def test_what_is_overtaken_by_another_exercise_is_not_shown(device):
    async def run():
        panel = ExercisePanel("side_copy_b", device)
        answer(panel, RACE)
        panel.force.click()
        assert "Running" in text(panel.activity)
        panel.version.value = exercises.get("side_copy_c")
        panel.settle()
        await asyncio.sleep(0)
        return panel

    panel = asyncio.run(run())
    assert panel.exposures == {}
    assert panel.observed.value == panel.activity.value == ""
    assert panel.error is None


def test_in_a_kernel_the_forcing_is_made_in_a_thread(device):
    async def run():
        panel = ExercisePanel("early_record_a", device)
        answer(panel, RACE)
        panel.force.click()
        panel.settle()
        return panel

    panel = asyncio.run(run())
    assert [[good for good, _ in row] for row in cells(panel).values()] == [[True, False, True]]
    assert panel.activity.value == ""


def test_what_goes_wrong_is_told_in_the_panel_and_gone_after_the_next_check(panel, monkeypatch):
    def broken(*_):
        raise LabError("no <device>")

    answer(panel, RACE)
    with monkeypatch.context() as patch:
        patch.setattr(exposure, "expose", broken)
        panel.force.click()
    assert "no &lt;device&gt;" in panel.message.value
    assert isinstance(panel.error, LabError)
    assert panel.activity.value == ""
    panel.check.click()
    assert panel.message.value == ""
    assert panel.error is None


def test_a_device_may_be_named_and_none_is_the_default(device):
    for given in (None, "opencl"):
        panel = ExercisePanel("early_record_a", given)
        answer(panel, RACE)
        panel.force.click()
        assert panel.error is None
        assert f"Measured on {device.name}" in text(panel.observed)


def test_a_device_that_cannot_play_programs_back_is_an_error_in_the_panel():
    panel = ExercisePanel("early_record_a", "abacus")
    answer(panel, RACE)
    panel.force.click()
    assert "abacus" in text(panel.message)


# Rows that differ


def test_what_differs_between_runs_is_told_from_what_does_not():
    runs = [
        ("a read in x what b wrote", "c read in y what d wrote"),
        ("a read in x what was there at the start", "c read in y what d wrote"),
    ]
    rows, same = exercise_panel.table(runs)
    assert rows == [("a read in x", ["what b wrote", "what was there at the start"])]
    assert same == ["c read in y what d wrote"]


def test_a_run_that_observed_less_has_empty_cells():
    rows, same = exercise_panel.table([("a read in x what b wrote",), ()])
    assert rows == [("", ["a read in x what b wrote", ""])]
    assert same == []


# For everyone, and where widgets cannot run


def test_controls_can_be_reached_and_are_named(panel):
    for control in (panel.version, panel.answer, panel.words, panel.check, panel.force):
        assert control.tabbable
    for control in (panel.wiring, panel.edge, panel.check, panel.force):
        assert control.tooltip
    answer(panel, RACE)
    assert 'tabindex="0"' in panel.listing.value
    assert 'tabindex="0"' in panel.report.value
    assert 'role="status"' in panel.told.value
    assert panel.graph.label.startswith("Graph of the program")


@pytest.mark.parametrize("answered", [False, True])
def test_there_is_a_picture_and_a_line_where_widgets_cannot_run(panel, answered):
    if answered:
        answer(panel, RACE, panel.exercise.solution)
    bundle = panel._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert ("not answered yet" in bundle["text/plain"]) is not answered
    assert ("Your edge repairs it" in bundle["text/plain"]) is answered


def test_the_panel_is_one_of_the_widgets_package():
    assert isinstance(ExercisePanel(), ipywidgets.VBox)
    assert ExercisePanel().exercise is exercises.ALL[0]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Notebook 07, opened and run once; what the page complained of is collected in ``complaints``."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(jupyter.ROOT / "notebooks" / NOTEBOOK, folder)
    with jupyter.server(folder) as server, jupyter.browser_page(1400, 1900) as page:
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda line: page.complaints.append(line.text) if line.type == "error" else None)
        notebook = jupyter.run_all(page, server, NOTEBOOK)
        page.panel = notebook.locator(".fnl")
        page.panel.scroll_into_view_if_needed()
        yield page


def until(page, condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, (
            f"not so after {seconds:g} s; the panel says: {page.panel.inner_text()}"
        )
        page.wait_for_timeout(50)


@pytest.mark.browser
def test_an_exercise_is_answered_and_forced_by_keyboard_alone(page):
    panel, keys = page.panel, page.keyboard
    place = panel.get_by_role("button", name="✓ Check").bounding_box
    panel.get_by_role("button", name="B", exact=True).focus()
    keys.press("Space")
    until(page, lambda: "side_copy_b.py" in panel.inner_text())
    before = place()
    assert not panel.get_by_text("Who waits for whom").is_visible()
    panel.get_by_role("button", name="Race", exact=True).focus()
    keys.press("Space")
    edge = panel.locator("select").nth(1)
    until(page, edge.is_enabled)
    edge.focus()
    for _ in range(2):
        keys.press("ArrowDown")
    keys.press("Tab")
    assert "Check" in page.evaluate("document.activeElement.innerText")
    # The page may send the press before the choice; then the panel says that it is not checked.
    until(page, lambda: keys.press("Enter") or "Your edge repairs it" in panel.inner_text())
    until(page, lambda: panel.locator(".js-plotly-plot").count() == 1)
    after = place()
    assert (after["x"], after["width"]) == (before["x"], before["width"])
    assert after["y"] - panel.bounding_box()["y"] == pytest.approx(
        before["y"] - panel.bounding_box()["y"], abs=1
    )
    assert panel.locator("pre.listing .come").count() == 3
    force = panel.get_by_role("button", name="Force it on this device")
    force.focus()
    keys.press("Enter")
    until(page, lambda: panel.locator("table.observed").count() == 1)
    assert panel.locator("table.observed td.wrong").all_inner_texts() == ["✗ what was there at the start"]
    assert panel.locator('[role="alert"]').count() == 0
    assert page.complaints == []


@pytest.mark.browser
def test_no_button_of_the_panel_is_cut_off_and_no_line_of_a_program_is_wrapped(page):
    panel = page.panel
    wide = "e => e.scrollWidth <= e.clientWidth + 1"
    for wiring in range(4):
        panel.locator("select").nth(0).select_option(index=wiring)
        for version in "ABC":
            panel.get_by_role("button", name=version, exact=True).click()
            number = 3 * wiring + "ABC".index(version)
            until(page, lambda number=number: exercises.ALL[number].file in panel.inner_text())
            heights = panel.locator("pre.listing span").evaluate_all(
                "lines => [...new Set(lines.map(e => Math.round(e.getBoundingClientRect().height)))]"
            )
            assert len(heights) == 1, f"{exercises.ALL[number].name}: {heights}"
    panel.get_by_role("button", name="Race", exact=True).click()
    panel.get_by_role("button", name="✓ Check").click()
    until(page, lambda: panel.get_by_text("Who waits for whom").is_visible())
    for button in panel.get_by_role("button").all():
        assert button.evaluate(wide), button.inner_text()
