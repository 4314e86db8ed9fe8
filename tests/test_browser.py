"""Notebook 04 in JupyterLab, driven in headless Chromium as a learner would drive it."""

import json
import re
import shutil
import time

import pytest
from browser import jupyter

from flashnorm_lab import timeline
from flashnorm_lab.schedule import EDGES

pytestmark = pytest.mark.browser

NOTEBOOK = "04_two_streams_and_a_missing_edge.ipynb"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The notebook opened and run once; what the page complained of is collected in ``complaints``."""
    folder = tmp_path_factory.mktemp("lab")
    shutil.copy(jupyter.ROOT / "notebooks" / NOTEBOOK, folder)
    with jupyter.server(folder) as server, jupyter.browser_page() as page:
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        notebook = jupyter.run_all(page, server, NOTEBOOK)
        panel = notebook.locator(".fnl")
        panel.scroll_into_view_if_needed()
        panel.locator(".js-plotly-plot").nth(2).wait_for()
        yield Lab(page, notebook, panel, folder, complaints)


class Lab:
    """What a learner has in front of them."""

    def __init__(self, page, notebook, panel, folder, complaints):
        self.page, self.notebook, self.panel = page, notebook, panel
        self.folder, self.complaints = folder, complaints

    def switch(self, edge):
        return self.panel.get_by_role("button", name=re.compile(f"^{edge}:"))

    def set_edge(self, edge, in_place):
        if ("in place" in self.switch(edge).inner_text()) != in_place:
            self.switch(edge).click()

    def verdict(self):
        return self.panel.locator(".verdict").inner_text()

    def program(self):
        return self.panel.locator("pre.program").inner_html()

    def struck(self):
        return self.panel.locator("pre.program del").all_inner_texts()

    def outcome(self):
        return self.panel.locator(".outcome").inner_text()

    def graph(self):
        return self.panel.locator(".js-plotly-plot").nth(0).inner_html()

    def timeline(self):
        return self.panel.locator(".js-plotly-plot").nth(1).inner_html()

    def until(self, condition, seconds=20.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, (
                f"not so after {seconds:g} s; the panel says: {self.panel.inner_text()}"
            )
            self.page.wait_for_timeout(50)

    def check_no_complaint(self):
        assert self.panel.locator('[role="alert"]').count() == 0
        shown = self.notebook.locator(
            '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.stderr"], '
            '.jp-OutputArea-output[data-mime-type="application/vnd.jupyter.error"]'
        )
        assert shown.all_inner_texts() == []
        assert self.complaints == []


def test_every_cell_runs_and_the_panel_is_alive(lab):
    assert lab.panel.locator(".js-plotly-plot").count() == 3
    assert "2 hazards without join_matrix" in lab.verdict()
    assert "Measured on" in lab.outcome()
    lab.check_no_complaint()


def test_a_switch_changes_verdict_program_graph_and_timeline(lab):
    lab.set_edge("join_matrix", False)
    lab.until(lambda: "missing: join_matrix" in lab.graph())
    assert len(lab.struck()) == 3
    before = lab.program(), lab.timeline()
    start = time.monotonic()
    lab.switch("join_matrix").click()
    lab.until(lambda: "No hazard" in lab.verdict())
    lab.until(lambda: "32 fresh" in lab.outcome())
    lab.until(lambda: lab.timeline() != before[1])
    took = time.monotonic() - start
    lab.until(lambda: "missing: join_matrix" not in lab.graph())
    assert lab.struck() == []
    assert lab.program() != before[0]
    assert took < 5, f"a change took {took:.1f} s to show"
    lab.check_no_complaint()


def test_the_worst_case_is_stale_in_every_step(lab):
    lab.set_edge("join_matrix", False)
    lab.panel.get_by_role("button", name="Force the worst case").click()
    lab.until(lambda: "32 stale" in lab.outcome() and "held back until post_scale was done" in lab.outcome())
    lab.until(lambda: "stale" in lab.timeline())
    lab.check_no_complaint()


def test_one_hazard_is_forced_and_then_once_more_with_its_repair(lab):
    for edge in EDGES:
        lab.set_edge(edge, edge != "fork_matrix")
    lab.until(lambda: "without fork_matrix" in lab.verdict())
    lab.until(lambda: "Running" not in lab.panel.inner_text())
    ahead = lab.panel.get_by_label("fetch x ahead")
    ahead.check()
    lab.until(lambda: "WAR on r" in lab.verdict())
    hazards = lab.panel.locator(".widget-dropdown", has_text="Hazard").locator("select")
    names = [name.replace("\xa0", " ") for name in hazards.locator("option").all_inner_texts()]
    assert names == [
        "WAR on x: next copy x before inv_rms",
        "WAR on y: next projection before post_scale",
        "WAR on r: next inv_rms before post_scale",
    ]
    worst = lab.panel.get_by_role("button", name="Force the worst case")
    assert worst.is_disabled()
    assert worst.get_attribute("title").startswith("nothing to force")
    hazards.select_option(index=1)
    force = lab.panel.get_by_role("button", name="Force it", exact=False).first
    told = "hold post_scale until projection of the next step is done"
    lab.until(lambda: force.get_attribute("title") == told)
    below = lab.panel.locator(".js-plotly-plot").nth(1)

    def height():
        return below.bounding_box()["y"] - lab.panel.bounding_box()["y"]

    before = height()
    force.focus()
    lab.page.keyboard.press("Enter")
    lab.until(lambda: "16 early" in lab.outcome())
    assert "Step t: post_scale read y of step t+1 and r of step t: early, 16 times." in lab.outcome()
    lab.until(lambda: "post_scale: early" in lab.timeline())
    assert abs(height() - before) < 1  # the answer moved nothing that is below it
    lab.page.keyboard.press("Tab")
    assert lab.page.evaluate("document.activeElement.innerText").endswith("Force it with the repair")
    lab.page.keyboard.press("Space")
    lab.until(lambda: "with fork_matrix put back" in lab.outcome() and "32 fresh" in lab.outcome())
    assert "projection of the next step waited for it" in lab.outcome()
    assert abs(height() - before) < 1
    lab.until(lambda: "post_scale: early" not in lab.timeline())
    ahead.uncheck()
    lab.set_edge("fork_matrix", True)
    lab.until(lambda: "No hazard" in lab.verdict())
    lab.check_no_complaint()


def test_export_leaves_a_valid_file_and_a_link(lab):
    lab.panel.get_by_role("button", name="Export the timeline").click()
    link = lab.panel.get_by_role("link", name="Download it")
    link.wait_for()
    path = lab.folder / "race_timeline.json"
    assert json.loads(path.read_text())["traceEvents"]
    assert len(timeline.open(path)) > 32
    with lab.page.expect_download() as download:
        link.click()
    assert download.value.path().read_bytes() == path.read_bytes()
    assert download.value.suggested_filename == "race_timeline.json"
    lab.check_no_complaint()


def test_a_switch_works_by_keyboard(lab):
    lab.set_edge("fork_vector", True)
    lab.until(lambda: "in place" in lab.switch("fork_vector").inner_text())
    lab.switch("fork_vector").focus()
    lab.page.keyboard.press("Space")
    lab.until(lambda: "left out" in lab.switch("fork_vector").inner_text() and "fork_vector" in lab.verdict())
    lab.page.keyboard.press("Tab")
    focused = lab.page.evaluate("document.activeElement.innerText")
    assert focused.startswith("join_matrix")
    outline = lab.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    lab.page.keyboard.press("Shift+Tab")
    lab.page.keyboard.press("Space")
    lab.until(lambda: "in place" in lab.switch("fork_vector").inner_text())
    lab.check_no_complaint()


def test_keys_meant_for_the_panel_do_nothing_to_the_notebook(lab):
    cells = lab.notebook.locator(".jp-Cell").count()
    chosen = "[...document.querySelectorAll('.jp-Cell')].findIndex(c => c.matches('.jp-mod-selected'))"
    lab.switch("join_matrix").focus()
    before = lab.page.evaluate(chosen)
    for _ in range(2):
        lab.page.keyboard.press("d")
    lab.page.wait_for_timeout(500)
    assert lab.notebook.locator(".jp-Cell").count() == cells
    shape = lab.panel.locator(".widget-dropdown", has_text="Shape").locator("select")
    shape.focus()
    value = shape.input_value()
    lab.page.keyboard.press("ArrowDown")
    lab.until(lambda: shape.input_value() != value)
    lab.page.keyboard.press("ArrowUp")
    lab.until(lambda: shape.input_value() == value)
    assert lab.page.evaluate(chosen) == before
    assert shape.evaluate("e => e === document.activeElement")
    lab.until(lambda: "Running" not in lab.panel.inner_text())
    lab.check_no_complaint()


def test_pictures_offer_what_is_of_use_and_stay_out_of_the_tab_order(lab):
    buttons = lab.panel.locator(".js-plotly-plot").nth(1).locator(".modebar-btn")
    titles = [button.get_attribute("data-title") for button in buttons.all()]
    assert "Pan" in titles
    assert not any(word in title for title in titles for word in ("Share", "Lasso", "Box Select"))
    assert {button.evaluate("b => b.tabIndex") for button in buttons.all()} == {-1}


def test_fifty_quick_flips_leave_no_error_and_the_right_answer(lab):
    for edge in EDGES:
        lab.set_edge(edge, True)
    lab.until(lambda: "No hazard" in lab.verdict())
    switches = {edge: lab.switch(edge).element_handle() for edge in EDGES}
    for number in range(50):  # every edge is flipped an even number of times but the first two, 13 times each
        switches[EDGES[number % 4]].evaluate("switch_ => switch_.click()")
    lab.until(lambda: "without fork_matrix, fork_vector" in lab.verdict())
    lab.until(lambda: len(lab.struck()) == 6)
    lab.until(lambda: all(f"missing: {edge}" in lab.graph() for edge in EDGES[:2]))
    lab.until(lambda: "Running" not in lab.panel.inner_text())
    assert not any(f"missing: {edge}" in lab.graph() for edge in EDGES[2:])
    for edge in EDGES:
        assert ("left out" in lab.switch(edge).inner_text()) == (edge in EDGES[:2])
    for edge in EDGES:
        lab.set_edge(edge, True)
    lab.until(lambda: "No hazard" in lab.verdict() and "32 fresh" in lab.outcome())
    lab.check_no_complaint()
