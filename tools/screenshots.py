"""Take the README's pictures, docs/*_panel.png, from real panels in JupyterLab.

    .venv/bin/python tools/screenshots.py [FOLDER [NAME...]]

Needs Chromium. The speech panel's picture also needs SmolLM2, which is fetched once.
"""

from __future__ import annotations

import io
import json
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser import jupyter  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Locator, expect  # noqa: E402

WIDTH, HEIGHT = 1400, 1900
LARGEST = 300_000

PANELS = {
    "race_panel": 'from flashnorm_lab.widgets import RacePanel\n\nRacePanel(drop="join_matrix")',
    "speech_panel": (
        "from flashnorm_lab.widgets import SpeechPanel\n\n"
        'SpeechPanel(drop="join_matrix", sites="head", tokens=32)'
    ),
    "exercise_panel": 'from flashnorm_lab.widgets import ExercisePanel\n\nExercisePanel("side_copy_b")',
    "timeline_panel": (
        "from flashnorm_lab import devices, race, schedule\n"
        "from flashnorm_lab.widgets import TimelinePanel\n\n"
        'step = schedule.deferred(1, 576, 960).without("join_matrix")\n'
        "for _ in range(2):  # the first run compiles and warms up\n"
        '    result = race.run(devices.default(), step, steps=4, force="worst")\n'
        "TimelinePanel(result.timeline)"
    ),
}


def race(panel: Locator) -> None:
    """Force the worst case, so that the picture shows the same thing every time."""
    panel.get_by_role("button", name="Force the worst case").click()
    expect(panel.get_by_text(re.compile("32 stale"))).to_be_visible()


def speech(panel: Locator) -> None:
    """Let the model speak to the end."""
    panel.get_by_role("button", name="Speak").click()
    expect(panel.get_by_text("Done.", exact=True)).to_be_visible(timeout=240_000)


def exercise(panel: Locator) -> None:
    """Answer the first exercise and force it on the device."""
    panel.get_by_role("button", name="Race", exact=True).click()
    panel.get_by_role("button", name="✓ Check").click()
    panel.get_by_role("button", name="Force it on this device").click()
    expect(panel.locator("table.observed")).to_be_visible(timeout=60_000)


def timeline(panel: Locator) -> None:
    """Select the middle half, so that its figures are told, with every arrow drawn."""
    view = panel.locator("canvas").first
    expect(view).to_be_visible()
    panel.page.wait_for_timeout(1500)
    box = view.bounding_box()
    assert box is not None
    y = box["y"] + box["height"] / 2
    panel.page.keyboard.down("Shift")
    panel.page.mouse.move(box["x"] + 0.35 * box["width"], y)
    panel.page.mouse.down()
    panel.page.mouse.move(box["x"] + 0.75 * box["width"], y, steps=5)
    panel.page.mouse.up()
    panel.page.keyboard.up("Shift")


def take(folder: Path, name: str, prepare: Callable[[Locator], None]) -> Path:
    """Start JupyterLab on a notebook with one cell, prepare its panel, and save the picture of it."""
    cell = {"cell_type": "code", "id": "panel", "metadata": {}, "execution_count": None, "outputs": []}
    notebook = {
        "cells": [cell | {"source": PANELS[name]}],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    with tempfile.TemporaryDirectory() as place:
        Path(place, f"{name}.ipynb").write_text(json.dumps(notebook))
        with jupyter.server(Path(place)) as server, jupyter.browser_page(WIDTH, HEIGHT) as page:
            jupyter.run_all(page, server, f"{name}.ipynb")
            page.keyboard.press("Control+b")  # hides the file browser
            panel = page.locator(".fnl").first
            prepare(panel)
            page.mouse.move(5, 5)
            page.wait_for_timeout(1500)
            picture = panel.screenshot()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    path = folder / f"{name}.png"
    image.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size} bytes; at most {LARGEST} were wanted")
    return path


def main() -> None:
    """Take all pictures, or those that are named."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs"
    wanted = sys.argv[2:] or list(PANELS)
    folder.mkdir(parents=True, exist_ok=True)
    prepared = {
        "race_panel": race,
        "speech_panel": speech,
        "exercise_panel": exercise,
        "timeline_panel": timeline,
    }
    for name in wanted:
        print(take(folder, name, prepared[name]))


if __name__ == "__main__":
    main()
