"""A timeline as one HTML file that opens from disk, with nothing fetched from anywhere.

The page holds view.js, page.js and the timeline's columns (compressed, as base64). Its content security
policy allows those two scripts, by their hash, and nothing else: no address, no other script. What comes from
the trace is data, escaped text, or drawn on the canvas; never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LabError
from .. import scene
from ..chosen import figures
from ..cutting import within
from ..detail import ARROWS, MOST_ARROWS
from ..looks import DIM, colours, group_colours, label, source_name
from ..metrics.layout import shown
from ..metrics.working import plural
from ..table import CATEGORIES, DEVICE_WORK, Timeline
from .files import whole
from .markup import listed, section, text

MOST_SPANS = 4_000_000
"""A page of more spans than this would be too slow to open; a window of it can be written."""
NARROWEST = 20
"""Nanoseconds that the viewer shows at least."""
FOUR_BYTES = 2**32 - 1

STYLE = """
:root { color-scheme: light dark; }
body { margin: 0 auto; padding: 14px 22px 40px; max-width: 1800px; line-height: 1.45;
  font: 13px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, Helvetica, Arial, sans-serif;
  color: #222; background: #fff; }
h1 { font-size: 18px; font-weight: 600; margin: 0 0 2px; overflow-wrap: anywhere; }
h2 { font-size: 14px; font-weight: 600; margin: 22px 0 4px; }
p { margin: 0 0 8px; overflow-wrap: anywhere; }
.note { max-width: 110ch; }
ul { margin: 0; padding-left: 20px; } li { overflow-wrap: anywhere; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 2px 14px 2px 0; text-align: right; border-bottom: 1px solid rgba(128,128,128,.25);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
  max-width: 60ch; }
.scroll { overflow-x: auto; } .note { opacity: .75; } #chosen { margin-top: 8px; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } }
"""


def write_page(
    timeline: Timeline,
    path: str | PathLike[str],
    window: tuple[int, int] | None = None,
    title: str | None = None,
) -> None:
    """Write a page that shows the timeline: pan, zoom, search, hover, arrows, a selection's totals.

    window: start and end in absolute nanoseconds; only what touches it is written, see
    `flashnorm_lab.timeline.cutting.within`, and the page opens on it. Written whole or not at all.
    ``LabError`` as `check_target` raises it, for a window in which there is nothing, and beyond `MOST_SPANS`
    spans.
    """
    part = timeline if window is None else within(timeline, window)
    if len(part) > MOST_SPANS:
        raise LabError(
            f"{len(part):,} spans are too many for a page, which holds at most {MOST_SPANS:,}; "
            "give a window of time"
        )
    with whole(path, "utf-8") as file:
        file.writelines(_parts(part, window, title))


def _parts(t: Timeline, window: tuple[int, int] | None, title: str | None) -> Iterator[str]:
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    policy = f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; base-uri 'none'"
    name = title or scene.title(t)
    yield '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{text(name)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
    yield f"<h1>{text(name)}</h1>\n<p>{text(_facts(t, window))}</p>\n"
    yield listed(t.notes)
    yield '<div id="timeline"></div>\n<div id="chosen" class="fnt" role="status"></div>\n'
    yield "<noscript><p>A script of this page draws the timeline; scripts are switched off.</p></noscript>\n"
    for answer in figures(t):
        yield section(answer)
    left_out = t.meta.get("left_out") or {}
    if left_out:
        yield "<h2>Left out</h2>\n"
        yield listed([f"{number:,} {what}" if isinstance(number, int) else f"{what}: {number}"
                     for what, number in left_out.items()])  # fmt: skip
    yield f'<script type="application/octet-stream" id="data">{_data(t, window)}</script>\n'
    yield f"<script>{script}</script>\n</body>\n</html>\n"


def _script() -> str:
    page = (Path(scene.__file__).parent / "page.js").read_text("utf-8")
    begin = (
        "const there = (id) => document.getElementById(id);\n"
        'start(there("timeline"), there("chosen"), there("data").textContent).catch((problem) => {\n'
        '  there("timeline").textContent = `The timeline cannot be shown: ${problem.message}`;\n'
        "});"
    )
    return f'"use strict";\n{scene.script()}\n{page}\n{begin}\n'


def _facts(t: Timeline, window: tuple[int, int] | None) -> str:
    meta = t.meta
    lanes = plural(len(np.unique(t.lane)), "lane")
    facts = [f"{plural(len(t), 'span')} on {lanes}, edges: {len(t.edge_source):,}"]
    facts.append(f"{meta.get('provenance', 'of unstated origin')}")
    facts += [f"device: {meta['device']}"] if meta.get("device") else []
    facts += [f"source: {source_name(t)}"] if meta.get("source") else []
    if window is not None:
        facts.append(f"the part from {window[0]:,} to {window[1]:,} ns of the source's clock")
    return "; ".join(facts)


def _data(t: Timeline, window: tuple[int, int] | None) -> str:
    """Everything that page.js reads, compressed, as base64. window: what is in view at first; None for all,
    which is more than a window where spans cross its edges."""
    world = scene.Scene([t])
    low, high = world.extent if window is None else (int(edge) - world.origins[0] for edge in window)
    detail = world.details[0]
    order, bounds = detail.order, detail.bounds
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    source, target, kind, name = detail.arrows
    by_time = detail.counter_order
    used, names = np.unique(np.concatenate([t.name, t.edge_name]), return_inverse=True)
    texts = [shown(t.names[i]) for i in used.tolist()]
    edges = np.full(len(name), -1, dtype=np.int64)
    edges[name >= 0] = np.searchsorted(used, name[name >= 0])
    columns: dict[str, np.ndarray] = {
        **_times(detail.start, detail.length, bounds, world.origins[0]),
        "name": _small(names[: len(t)][order]),
        "colour": colours(t)[order],
        "groupColour": group_colours(t)[0][order],
        "category": t.category[order].astype(np.uint8),
        "arrowFrom": position[source].astype(np.uint32),
        "arrowTo": position[target].astype(np.uint32),
        "arrowKind": kind.astype(np.uint8),
        "arrowName": edges.astype(np.int32),
        "counter": np.searchsorted(detail.counters, t.counter_name[by_time]).astype(np.int32),
        "counterAt": (t.counter_ns[by_time] - world.origins[0]).astype(np.float64),
        "counterValue": t.counter_value[by_time],
    }
    if t.outcome.any():
        columns["outcome"] = t.outcome[order].astype(np.uint8)
    if (t.step >= 0).any():
        columns["step"] = t.step[order]
    where, content = scene.lay_out(columns)
    short = {i: shortened for i, text in enumerate(texts) if (shortened := label(text)) != text}
    head: dict[str, Any] = {
        "info": world.info(),
        "view": [low, max(high, low + NARROWEST)],
        "columns": where,
        "bounds": bounds.tolist(),
        "names": texts,
        "labels": short,
        "categories": CATEGORIES,
        "work": [CATEGORIES.index(category) for category in DEVICE_WORK],
        "arrows": ARROWS,
        "dim": DIM,
        "mostArrows": MOST_ARROWS,
    }
    told = json.dumps(head).encode("ascii")
    told += b" " * (-(len(told) + 4) % 8)  # columns begin at a multiple of 8 bytes
    packed = zlib.compress(b"".join([len(told).to_bytes(4, "little"), told, content]), 6)
    return base64.b64encode(packed).decode("ascii")


def _times(start: np.ndarray, length: np.ndarray, bounds: np.ndarray, origin: int) -> dict[str, np.ndarray]:
    """Starts and lengths row by row as page.js restores them: the gap to the span before on the row, and the
    length, each in 32 bits; the few that do not fit stand in a column of their own, in the order in which
    they are met."""
    before = np.zeros(len(start), dtype=np.int64)
    before[1:] = (start + length)[:-1]
    before[bounds[:-1]] = origin
    both = np.stack([start - before, length], axis=1).ravel()
    long = both >= FOUR_BYTES
    packed = np.where(long, FOUR_BYTES, both).astype(np.uint32)
    return {"gap": packed[::2], "length": packed[1::2], "long": both[long].astype(np.float64)}


def _small(values: np.ndarray) -> np.ndarray:
    """Whole numbers from 0 in as few bytes as hold them."""
    most = int(values.max()) if len(values) else 0
    return values.astype(np.uint8 if most < 2**8 else np.uint16 if most < 2**16 else np.uint32)
