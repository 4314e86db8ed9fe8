"""The viewer in headless Chromium: a written page from disk, and the panel in JupyterLab."""

import json
import re
import time

import numpy as np
import pytest
from browser import jupyter
from test_timeline_detail import at_random

from flashnorm_lab.timeline import Timeline, TimelineBuilder
from flashnorm_lab.timeline.scene import Scene
from flashnorm_lab.timeline.writing.page import write_page

pytestmark = pytest.mark.browser

BASE = 1_764_000_000_000_000_001
EVIL = "<img src=x onerror=\"document.title='caught'\"></script>"
NAME = "<img src=x>.json"
STEPS = 200


def recording():
    """200 steps: calls on a host thread, kernels on two streams with an edge each; one result is stale."""
    t = TimelineBuilder()
    t.lane("host", "host")
    for step in range(STEPS):
        at = BASE + 100_000 * step
        t.span(f"step {step}", "host", at, 90_000, "range", step=step)
        t.span("launch it", "host", at + 1_000, 4_000, "launch", launch=2 * step, step=step)
        t.span("launch that", "host", at + 6_000, 4_000, "launch", launch=2 * step + 1, step=step)
        first = t.span("projection", "matrix", at + 9_000, 50_000, "kernel", launch=2 * step, step=step)
        second = t.span("post_scale", "main", at + 60_000, 20_000, "kernel", launch=2 * step + 1, step=step,
                        outcome="stale" if step == 150 else "fresh")  # fmt: skip
        t.edge(first, second, "join")
        t.counter("memory", at, float(step))
    t.span(EVIL, "main", BASE + 90_000, 123, "kernel")
    return t.build(source=f"/home/me/{NAME}", device="a device", provenance="recorded")


class Viewer:
    """What a reader has in front of them."""

    def __init__(self, page, root):
        self.page, self.root, self.stage = page, root, root.locator(".fnt-stage")
        self.stage.locator("xpath=self::*[@data-count]").wait_for()

    def window(self):
        return [int(edge) for edge in self.stage.get_attribute("data-view").split()]

    def width(self):
        low, high = self.window()
        return high - low

    def until(self, condition, seconds=10.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"not so after {seconds:g} s; it says: {self.root.inner_text()}"
            self.page.wait_for_timeout(20)

    def at(self, x, y):
        box = self.stage.bounding_box()
        return box["x"] + x, box["y"] + y

    def point(self, t, lane, row=0):
        """Where a time stands on a row of a lane."""
        box = self.stage.bounding_box()
        low, high = self.window()
        gutter = 130
        tops = {"host": 54, "matrix": 99, "main": 125}
        return self.at(
            gutter + (t - low) / (high - low) * (box["width"] - 2 - gutter), tops[lane] + 19 * row + 10
        )

    def drag(self, start, end, shift=False):
        if shift:
            self.page.keyboard.down("Shift")
        self.page.mouse.move(*start)
        self.page.mouse.down()
        self.page.mouse.move(*end, steps=4)
        self.page.mouse.up()
        if shift:
            self.page.keyboard.up("Shift")

    def key(self, key):
        self.stage.focus()
        self.page.keyboard.press(key)

    def pixels(self):
        """How many pixels of the canvas are not empty, and how many colours there are."""
        return self.stage.locator("canvas").evaluate(
            """canvas => {
              const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
              const colours = new Set();
              let full = 0;
              for (let i = 0; i < data.length; i += 4) {
                if (data[i + 3] < 250) continue;
                full += 1;
                colours.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
              }
              return [full, colours.has(0x0072B2), colours.has(0xD55E00)];
            }"""
        )


def test_the_panel_in_jupyterlab(tmp_path):
    """Seen, zoomed, selected, measured in Python, and its keys kept from the notebook.

    The first of this file, since it starts a browser of its own, and two cannot be driven at once.
    """
    source = (
        "from flashnorm_lab.timeline import Timeline, TimelineBuilder\n"
        "from flashnorm_lab.widgets.timeline_panel import TimelinePanel\n"
        "panel = TimelinePanel(Timeline.open('recording.json'))\n"
        "panel"
    )
    recording().export_chrome(tmp_path / "recording.json")
    assert len(Timeline.open(tmp_path / "recording.json")) == 5 * STEPS + 1
    cells = [
        {
            "cell_type": "code",
            "id": f"c{i}",
            "metadata": {},
            "execution_count": None,
            "outputs": [],
            "source": text,
        }
        for i, text in enumerate((source, "1 + 1"))
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    (tmp_path / "panel.ipynb").write_text(
        json.dumps({"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5})
    )
    with jupyter.server(tmp_path) as server, jupyter.browser_page() as page:
        complaints = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
        notebook = jupyter.run_all(page, server, "panel.ipynb")
        viewer = Viewer(page, notebook.locator(".fnl .fnt"))
        assert viewer.stage.get_attribute("data-count") == str(5 * STEPS + 1)
        assert viewer.pixels()[0] > 3000
        before = viewer.window()
        page.mouse.move(*viewer.at(500, 110))
        page.mouse.wheel(0, 50)
        page.wait_for_timeout(200)
        assert viewer.window() == before  # the wheel turns the page until the timeline has the focus
        assert "click into the timeline first" in viewer.root.locator("details").text_content()
        viewer.key("w")
        viewer.until(lambda: viewer.width() < before[1])
        zoomed = viewer.window()
        for _ in range(2):
            viewer.key("d")
        viewer.until(lambda: viewer.window()[0] > zoomed[0])
        assert notebook.locator(".jp-Cell").count() == 2
        viewer.key("Home")
        viewer.until(lambda: viewer.window() == before)
        viewer.drag(viewer.at(400, 110), viewer.at(700, 112), shift=True)
        viewer.until(lambda: viewer.stage.get_attribute("data-selection"))
        viewer.key("Escape")
        page.wait_for_timeout(300)
        assert page.evaluate("document.activeElement.className").startswith("fnt-stage")
        viewer.drag(viewer.at(400, 110), viewer.at(700, 112), shift=True)
        measured = notebook.locator(".fnl .measured")
        measured.wait_for()
        assert "Selected:" in measured.inner_text()
        assert "Busy time" in measured.inner_text()
        notebook.get_by_role("button", name="Export what is in view").click()
        viewer.until((tmp_path / "timeline.html").exists)
        assert notebook.locator(".fnl [role=alert]").count() == 0
        assert complaints == []


@pytest.fixture(scope="module")
def chromium_page():
    with jupyter.browser_page(1200, 900) as page:
        yield page


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "recording.html"
    write_page(recording(), path)
    return path


@pytest.fixture
def viewer(chromium_page, written):
    """The page opened from disk; at the end it must have asked for nothing and complained of nothing."""
    page, asked, complaints = chromium_page, [], []
    hear = {
        "request": lambda request: asked.append(request.url),
        "pageerror": lambda error: complaints.append(str(error)),
        "console": lambda line: complaints.append(line.text) if line.type == "error" else None,
    }
    for event, act in hear.items():
        page.on(event, act)
    page.goto(written.as_uri())
    yield Viewer(page, page.locator("#timeline"))
    for event, act in hear.items():
        page.remove_listener(event, act)
    assert asked == [written.as_uri()]
    assert complaints == []
    assert "caught" not in page.title()


def test_a_page_opens_and_draws_all_there_is(viewer):
    assert viewer.window() == [0, 19_990_001]
    assert viewer.stage.get_attribute("data-count") == str(5 * STEPS + 1)
    full, blue, _ = viewer.pixels()
    assert full > 3000
    assert blue
    assert "1,001 of 1,001 spans in view" in viewer.root.locator(".fnt-status").inner_text()
    text = viewer.page.locator("body").inner_text()
    assert "Busy time" in text
    assert f"source: {NAME}" in text
    assert "/home/me" not in viewer.page.content()
    assert viewer.page.locator("img").count() == 0


def test_words_on_the_canvas_follow_a_change_to_dark_colours(viewer):
    def light():
        """How many pixels of the lanes' names are light."""
        return viewer.stage.locator("canvas").evaluate(
            """canvas => {
              const data = canvas.getContext("2d").getImageData(0, 60, 120, canvas.height - 60).data;
              let found = 0;
              for (let i = 0; i < data.length; i += 4) found += data[i + 3] > 200 && data[i] > 180;
              return found;
            }"""
        )

    assert light() == 0
    viewer.page.emulate_media(color_scheme="dark")
    viewer.until(lambda: light() > 20)
    viewer.page.emulate_media(color_scheme="light")
    viewer.until(lambda: light() == 0)
    viewer.page.evaluate("document.body.style.color = 'rgb(255, 255, 255)'")  # as a theme of JupyterLab does
    viewer.until(lambda: light() > 20)


def test_wheel_drag_and_double_click(viewer):
    everything = viewer.window()
    x, y = viewer.at(600, 110)
    viewer.page.mouse.move(x, y)
    for _ in range(6):
        viewer.page.mouse.wheel(0, -300)
    viewer.until(lambda: viewer.width() < 400_000)
    share = (599 - 130) / (viewer.stage.bounding_box()["width"] - 132)
    low, high = viewer.window()
    assert low < everything[1] * share < high  # what was under the pointer still is
    viewer.until(lambda: int(viewer.stage.get_attribute("data-count")) < 30)
    before = viewer.window()
    viewer.drag((x, y), (x - 200, y))
    viewer.until(lambda: viewer.window()[0] > before[0])
    assert abs(viewer.width() - (before[1] - before[0])) <= 2
    viewer.page.keyboard.down("Shift")
    moved = viewer.window()
    viewer.page.mouse.wheel(0, -200)
    viewer.page.keyboard.up("Shift")
    viewer.until(lambda: viewer.window()[0] < moved[0])
    viewer.page.mouse.dblclick(*viewer.at(600, 45))
    viewer.until(lambda: viewer.window() == everything)


def test_every_key(viewer):
    everything = viewer.window()
    for key in ("+", "w", "="):
        before = viewer.width()
        viewer.key(key)
        viewer.until(lambda before=before: viewer.width() < before)
    for key in ("ArrowRight", "d"):
        before = viewer.window()[0]
        viewer.key(key)
        viewer.until(lambda before=before: viewer.window()[0] > before)
    for key in ("ArrowLeft", "a"):
        before = viewer.window()[0]
        viewer.key(key)
        viewer.until(lambda before=before: viewer.window()[0] < before)
    for key in ("-", "s"):
        before = viewer.width()
        viewer.key(key)
        viewer.until(lambda before=before: viewer.width() > before)
    viewer.key("Home")
    viewer.until(lambda: viewer.window() == everything)
    assert viewer.stage.evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
    viewer.key("/")
    assert viewer.page.evaluate("document.activeElement.type") == "search"


def test_search_goes_from_hit_to_hit(viewer):
    box = viewer.root.get_by_label("search spans by name")
    box.fill("STEP 15")
    viewer.until(lambda: viewer.root.locator(".fnt-count").inner_text() == "11 spans")
    seen = []
    for key in ("n", "n", "p"):
        viewer.key(key)
        viewer.until(lambda: viewer.root.locator(".fnt-about b").inner_text() not in seen[-1:] or not seen)
        seen.append(viewer.root.locator(".fnt-about b").inner_text())
    assert seen == ["step 15", "step 150", "step 15"]
    box.fill("no such name")
    viewer.until(lambda: viewer.root.locator(".fnt-count").inner_text() == "no span")
    box.fill("")
    viewer.until(lambda: viewer.root.locator(".fnt-count").inner_text() == "")


def test_a_span_is_told_its_arrows_drawn_and_its_name_stays_text(viewer):
    box = viewer.root.get_by_label("search spans by name")
    box.fill("onerror")
    viewer.until(lambda: viewer.root.locator(".fnt-count").inner_text() == "1 spans")
    box.press("Enter")
    viewer.until(lambda: viewer.width() < 10_000)
    low, high = viewer.window()
    viewer.page.mouse.move(*viewer.point((low + high) / 2, "main"))
    tip = viewer.root.locator(".fnt-tip")
    tip.wait_for()
    assert tip.locator("b").inner_text() == EVIL
    assert "123 ns" in tip.inner_text()
    assert "90 µs" in tip.inner_text()
    box.fill("")
    viewer.key("Escape")
    viewer.until(lambda: viewer.root.locator(".fnt-about").inner_text() == "")


def test_a_click_selects_and_shift_drag_measures(viewer):
    for _ in range(12):
        viewer.key("w")
    viewer.until(lambda: viewer.width() < 400_000)
    step = -(-viewer.window()[0] // 100_000)
    viewer.page.mouse.click(*viewer.point(100_000 * step + 70_000, "main"))
    about = viewer.root.locator(".fnt-about")
    viewer.until(lambda: "post_scale" in about.inner_text())
    told = about.inner_text()
    for words in (
        "kernel on main",
        "20 µs",
        "54 µs",
        "projection on matrix (order join)",
        "launch that on host",
    ):
        assert words in told
    start = viewer.point(100_000 * step + 9_000, "main")
    end = viewer.point(100_000 * step + 59_000, "main")
    viewer.drag(start, end, shift=True)
    viewer.until(lambda: viewer.stage.get_attribute("data-selection"))
    low, high = (int(edge) for edge in viewer.stage.get_attribute("data-selection").split())
    assert abs(low - (100_000 * step + 9_000)) < 2000
    assert abs(high - low - 50_000) < 3000
    chosen = viewer.page.locator("#chosen").inner_text()
    assert re.search(r"busy (49|50)[.\d]* µs, (9\d|100)\.\d %", chosen), chosen
    viewer.key("f")
    viewer.until(lambda: abs(viewer.width() - 1.1 * (high - low)) < 10)
    viewer.key("Escape")
    viewer.until(lambda: viewer.stage.get_attribute("data-selection") == "")
    assert viewer.page.locator("#chosen").inner_text() == ""


def test_lanes_fold_hide_and_are_counted(viewer):
    viewer.root.get_by_label("show only lanes").fill("matrix nothing")
    viewer.until(lambda: "801 on lanes not shown" in viewer.root.locator(".fnt-status").inner_text())
    viewer.root.get_by_label("show only lanes").fill("")
    viewer.until(lambda: viewer.stage.get_attribute("data-count") == "1001")
    tall = viewer.stage.bounding_box()["height"]
    viewer.page.mouse.click(*viewer.at(60, 64))
    viewer.until(lambda: viewer.stage.bounding_box()["height"] < tall)
    assert viewer.stage.get_attribute("data-count") == "1001"
    viewer.root.get_by_role("button", name="fold or unfold nested rows").click()
    viewer.until(lambda: viewer.stage.bounding_box()["height"] == tall)


def test_stale_results_have_their_colour_however_far_one_looks(viewer):
    assert viewer.pixels()[2] is False  # merged with others it is paler, and not full
    box = viewer.root.get_by_label("search spans by name")
    box.fill("step 150")
    box.press("Enter")
    viewer.until(lambda: "step 150" in viewer.root.locator(".fnt-about").inner_text())
    box.fill("")
    viewer.key("f")
    viewer.until(lambda: viewer.width() < 200_000)
    viewer.until(lambda: viewer.pixels()[2])


def test_the_page_merges_as_python_does(chromium_page, tmp_path):
    """page.js and detail.py follow one rule: they give the same answers to the same questions."""
    t = at_random(4, spans=400)
    path = tmp_path / "random.html"
    write_page(t, path)
    scene = Scene([t])
    lanes = [lane["id"] for lane in scene.info()["parts"][0]["lanes"]]
    rng = np.random.default_rng(7)
    edges = np.concatenate([t.start_ns, t.end_ns]) - scene.origins[0]
    questions = []
    for number in range(60):
        places = rng.choice(edges, 2) if number % 2 else rng.integers(-1000, scene.extent[1] + 1000, 2)
        low, high = sorted(places.tolist())
        question = {"kind": "view", "t0": low, "t1": high + 1, "inner": [low, high + 1], "arrows": "all"}
        question |= {"lanes": [lanes[:2] if number % 3 == 0 else lanes], "colour": "name"}
        text, pixels = ("name 3" if number % 5 == 0 else ""), int(rng.choice([5, 60, 1500]))
        questions.append(question | {"pixels": pixels, "text": text})
    page = path.read_text("utf-8")
    plain = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    harness = plain.replace("async function start(", """
      window.answers = async (questions) => {
        const [head, columns] = await unpack(document.getElementById("data").textContent);
        const source = createSource(head, columns, document.createElement("div")), found = [];
        for (const question of questions) found.push((await source.ask(question)).parts[0]);
        return found;
      };
      async function start(""")  # fmt: skip
    path.write_text(harness, "utf-8")
    chromium_page.goto(path.as_uri())
    found = chromium_page.evaluate("questions => window.answers(questions)", questions)
    order = scene.details[0].order
    for question, tile in zip(questions, found, strict=True):
        answer, (content,) = scene.answer(question)
        head = answer["parts"][0]
        mine = {n: np.frombuffer(content, f"<{kind}", count, at) for n, kind, at, count in head["columns"]}
        for field in ("count", "hidden", "merged"):
            assert tile[field] == head[field], (field, question)
        assert order[tile["span"]].tolist() == mine["span"].tolist()
        for field in (
            "spanStart",
            "spanLength",
            "spanRow",
            "spanColour",
            "cellRow",
            "cellCount",
            "cellColour",
            "cellOutcome",
        ):
            assert tile[field] == mine[field].tolist(), (field, question)
        for field in ("cellStart", "cellEnd", "cellShare"):
            np.testing.assert_allclose(tile[field], mine[field], rtol=1e-5)
        assert order[tile["cellLongest"]].tolist() == mine["cellLongest"].tolist() or all(
            t.duration_ns[a] == t.duration_ns[b]
            for a, b in zip(order[tile["cellLongest"]], mine["cellLongest"], strict=True)
        )
        assert tile["leftOut"] + len(tile["arrowKind"]) == head["leftOut"] + len(mine["arrowKind"])
        for field in ("counter", "counterPx", "counterLow", "counterHigh", "counterLast"):
            assert tile[field] == mine[field].tolist(), (field, question)
