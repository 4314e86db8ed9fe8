"""Plotly against the canvas of the timeline viewer: bytes sent to the browser, and time until it is drawn.

    .venv/bin/python tools/measure_drawing.py [--spans 10000,100000,1000000] [--seconds 120]

Prints the table of docs/timeline_drawing.md. Needs Chromium. Both draw the same: every span one by one, and
the level of detail that `flashnorm_lab.timeline.detail` makes of the last number of spans, on 40 lanes and
1,500 pixels. Times are from the bytes in the page to the frame after the drawing; the median of five, or of
one beyond 200,000 bars.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import sys
import time
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import jupyter  # noqa: E402

from flashnorm_lab.timeline import Lane, Timeline  # noqa: E402
from flashnorm_lab.timeline.answer import Table  # noqa: E402
from flashnorm_lab.timeline.detail import Detail, Tile  # noqa: E402
from flashnorm_lab.timeline.looks import PALETTE, colours  # noqa: E402
from flashnorm_lab.timeline.scene import Scene, pack, script  # noqa: E402

LANES, PIXELS, TIMES = 40, 1500, 5


PLOTLY = """
async ([figure, times]) => {
  const plot = document.getElementById("plot"), took = [];
  for (let i = 0; i < times; i++) {
    const { data, layout } = JSON.parse(figure), begin = performance.now();
    await Plotly.react(plot, data, layout);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    took.push(performance.now() - begin);
  }
  return took;
}
"""
CANVAS = """
async ([info, head, text, times]) => {
  const took = [];
  for (let i = 0; i < times; i++) {
    const begin = performance.now(), root = document.createElement("div");
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer, parsed = performance.now();
    const tile = { ...head, ...columnsOf(head.columns, bytes) };
    document.body.replaceChildren(root);
    const made = createTimeline(root, info, { ask: async () => ({ parts: [tile] }) }, { height: () => 900 });
    while (!root.querySelector("[data-count]")) await new Promise((done) => setTimeout(done));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    took.push(performance.now() - parsed);
    made.close();
  }
  return took;
}
"""


def recording(spans: int, seed: int = 1) -> Timeline:
    """So many spans on 40 lanes, each as long as the time to the next or shorter, 300 names."""
    rng = np.random.default_rng(seed)
    lane = rng.integers(0, LANES, spans)
    start = np.sort(rng.integers(0, 10_000 * spans, spans))
    duration = rng.exponential(150_000, spans).astype(np.int64)
    for i in range(LANES):
        mine = np.flatnonzero(lane == i)
        duration[mine] = np.minimum(duration[mine], np.diff(start[mine], append=start[-1] + 1))
    none = np.empty(0, dtype=np.int64)
    return Timeline(
        names=tuple(f"kernel_{i}" for i in range(300)),
        lanes=tuple(Lane(f"stream {i}") for i in range(LANES)),
        name=rng.integers(0, 300, spans),
        lane=lane,
        start_ns=start,
        duration_ns=duration,
        launch=np.full(spans, -1),
        category=np.full(spans, 5),
        step=np.full(spans, -1),
        outcome=np.zeros(spans, dtype=np.int64),
        edge_source=none,
        edge_target=none,
        edge_name=none,
    )


def every_span(detail: Detail) -> Tile:
    """A tile on which nothing is merged."""
    tile = detail.view(*detail.extent, PIXELS, lanes=[])
    rows = np.arange(len(detail.row_lane), dtype=np.int32)
    return Tile(
        **vars(tile)
        | {
            "rows": rows,
            "span": detail.order.astype(np.int64),
            "span_row": np.repeat(rows, np.diff(detail.bounds)),
        }
    )


def plotly_figure(detail: Detail, tile: Tile) -> str:
    """The bars of a tile as `flashnorm_lab.figures` draws them: a trace for each colour, binary numbers."""
    import plotly.graph_objects as go

    t = detail.timeline
    number = colours(t)
    row = np.concatenate([tile.rows[tile.span_row], tile.rows[tile.cell_row]])
    start = np.concatenate([t.start_ns[tile.span], tile.cell_start_ns]) - tile.t0_ns
    length = np.concatenate([t.duration_ns[tile.span], tile.cell_end_ns - tile.cell_start_ns])
    colour = np.concatenate([number[tile.span], number[tile.cell_longest]])
    data = []
    for i in np.unique(colour):
        mine = colour == i
        data.append(
            go.Bar(
                orientation="h", base=start[mine] / 1000, x=length[mine] / 1000, y=row[mine], width=0.8,
                marker={"color": PALETTE[i][0]}, hoverinfo="skip",
            )
        )  # fmt: skip
    layout = {"barmode": "overlay", "width": PIXELS, "height": 900, "showlegend": False}
    return go.Figure(data, layout).to_json(validate=False)


def measure(count: int, share: float | None, plotly: bool) -> tuple[int, float, float]:
    """Bytes sent, milliseconds until they are drawn, and milliseconds in which the tile was made.

    share: how much of the recording is in view, at its level of detail; None for every span one by one.
    """
    detail = Detail(recording(count))
    begin = time.perf_counter()
    tile = tile_of(detail, share)
    made = 1000 * (time.perf_counter() - begin)
    what: list[Any]
    if plotly:
        from plotly.offline import get_plotlyjs

        figure = plotly_figure(detail, tile)
        sent, source, act, what = len(figure), get_plotlyjs(), PLOTLY, [figure]
    else:
        scene = Scene([detail.timeline])
        head, content = pack(tile, detail.timeline, colours(detail.timeline))
        low = detail.extent[0]
        head |= {"t0": tile.t0_ns - low, "t1": tile.t1_ns - low, "pixels": PIXELS, "count": tile.count}
        head |= {"hidden": 0, "merged": 0}
        info = scene.info() | {"groups": [], "extent": [head["t0"], head["t1"]]}
        sent, source, act = len(content) + len(json.dumps(head)), script(), CANVAS
        what = [info, head, base64.b64encode(content).decode("ascii")]
    with jupyter.browser_page(PIXELS + 60, 1000) as page:
        page.goto("about:blank")
        page.set_content('<meta charset="utf-8"><body><div id="plot"></div></body>')
        page.add_script_tag(content=source)
        took = page.evaluate(act, [*what, 1 if share is None and count > 200_000 else TIMES])
    return sent, statistics.median(took), made


def tile_of(detail: Detail, share: float | None) -> Tile:
    """The first part of the recording at its level of detail, or every span."""
    if share is None:
        return every_span(detail)
    low, high = detail.extent
    return detail.view(low, low + int((high - low) * share), PIXELS)


def within(seconds: float, *asked: Any) -> tuple[int, float, float] | None:
    """`measure` in a process of its own; None if it takes longer, or fails."""
    context = get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=answer, args=(there, *asked))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(seconds) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def answer(there: Connection, *asked: Any) -> None:
    """What that process does."""
    there.send(measure(*asked))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--spans", default="10000,100000,1000000")
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    counts = [int(count) for count in options.spans.split(",")]
    rows: list[tuple[str, ...]] = []
    asked = [(count, None, "one by one") for count in counts]
    asked += [(counts[-1], share, f"{share:.0%} of the time") for share in (1.0, 0.1, 0.01)]
    for count, share, words in asked:
        detail = Detail(recording(count))
        tile = tile_of(detail, share)
        cells = [f"{count:,} spans, {words}", f"{len(tile.span) + len(tile.cell_row):,}"]
        for plotly in (True, False):
            found = within(options.seconds, count, share, plotly)
            if found is None:
                cells += ["-", f"not in {options.seconds:.0f} s"]
            else:
                cells += [f"{found[0] / 1e6:.2f} MB", f"{found[1]:,.0f} ms"]
        cells.append(f"{found[2]:.0f} ms" if found and share is not None else "-")
        rows.append(tuple(cells))
        print(" | ".join(cells), file=sys.stderr)
    head = ("drawn", "bars", "plotly sent", "drawn in", "canvas sent", "drawn in", "tile made in")
    print(Table(head, tuple(rows)))


if __name__ == "__main__":
    main()
