"""Words and markup that the panels share. Pure functions; every text that is not ours is escaped."""

from __future__ import annotations

import base64
import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from .. import outcomes
from ..errors import LabError

if TYPE_CHECKING:
    from ..hazards import Hazard
    from ..race import RaceResult
    from ..schedule import Schedule
    from ..timeline import Timeline

STYLE = """<style>
.fnl, .fnl .widget-html-content { line-height: 1.45; overflow: visible; }
.fnl { padding: 4px 6px 8px; max-width: 1320px; }
.fnl .widget-html { height: auto; }
.fnl :is(button, select, input, textarea, summary, a, [tabindex]):focus-visible {
  outline: 3px solid #0072B2; outline-offset: 1px; }
.fnl button { text-align: left; border: 1px solid rgba(128,128,128,.45); border-radius: 3px; }
.fnl h4 { margin: 10px 0 2px; font-size: 13px; font-weight: 600; }
.fnl .say { padding: 8px 12px; border-left: 5px solid; font-size: 14px; }
.fnl .say.good { border-color: #009E73; background: rgba(0,158,115,.10); }
.fnl .say.bad { border-color: #D55E00; background: rgba(213,94,0,.10); }
.fnl .verdict { min-height: 136px; box-sizing: border-box; margin-bottom: 4px; }
.fnl .outcome { min-height: 98px; }
.fnl .say ul { margin: 4px 0 0; padding-left: 20px; font-size: 13px; }
.fnl .say small, .fnl .note { font-size: 12px; line-height: 1.35; opacity: .85; }
.fnl .counts { font-size: 15px; }
.fnl .counts b { padding: 1px 7px; border-radius: 3px; border: 1px; margin-right: 6px; white-space: nowrap; }
.fnl .counts .fresh { border: 1px solid #56B4E9; background: rgba(86,180,233,.22); }
.fnl .counts .stale { border: 1px dashed #D55E00; background: rgba(213,94,0,.20); }
.fnl .counts .torn { border: 3px double #CC79A7; background: rgba(204,121,167,.22); }
.fnl .counts .early { border: 2px dotted #E69F00; background: rgba(230,159,0,.22); }
.fnl pre.program { margin: 0; padding: 6px 8px; max-height: 560px; overflow-y: auto; white-space: pre-wrap;
  font-size: 11px; line-height: 1.55; word-break: normal; overflow-wrap: break-word;
  border: 1px solid rgba(128,128,128,.35); }
.fnl pre.program span { display: block; padding-left: 8em; text-indent: -8em; }
.fnl pre.program .gone { background: rgba(213,94,0,.16); }
.fnl pre.program .come { background: rgba(0,158,115,.16); }
.fnl pre.program .skip { opacity: .6; }
.fnl .speech { padding: 8px 12px; min-height: 150px; box-sizing: border-box; font-size: 14px;
  line-height: 1.7; white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid rgba(128,128,128,.35); }
.fnl .speech i { opacity: .65; }
.fnl .speech u { font-weight: 700; text-decoration: underline 2px #D55E00; text-underline-offset: 3px; }
.fnl table.sites { border-collapse: collapse; font-size: 13px; }
.fnl table.sites :is(th, td) { padding: 1px 10px; text-align: right;
  border-bottom: 1px solid rgba(128,128,128,.25); }
.fnl table.sites :is(th, td):first-child { text-align: left; padding-left: 0; }
</style>"""

WAITS_FOR = {
    "fork_matrix": "projection waits for x and for the last reader of y",
    "fork_vector": "inv_rms waits for x and for the last reader of r",
    "join_matrix": "post_scale waits for projection, that is for y",
    "join_vector": "post_scale waits for inv_rms, that is for r",
}
"""What each edge makes certain, in words."""

WAITS_FOR_AHEAD = WAITS_FOR | {
    "fork_matrix": "copy x waits for the last reader of x, y and r",
    "fork_vector": "inv_rms waits for x, which comes on matrix",
}
"""The same where x is fetched ahead, on matrix: see `flashnorm_lab.race.prefetched`."""

SITE_KINDS = {"qkv": "QKV", "gate_up": "gate + up", "head": "head"}
"""What the last part of a site's name stands for."""

DOWNLOAD_BYTES = 4_000_000
"""Up to here a download link carries the file itself."""


def note(text: str) -> str:
    """A remark in small type."""
    return f'<div class="note" role="status">{escape(text)}</div>'


def message(problem: Exception | str) -> str:
    """An error in the panel: one line, no traceback."""
    text = str(problem)
    if isinstance(problem, OSError) and problem.strerror:
        text = f"{problem.filename}: {problem.strerror}" if problem.filename else problem.strerror
    elif isinstance(problem, Exception) and not isinstance(problem, LabError):
        lines = text.strip().splitlines()
        text = f"{type(problem).__name__}: {lines[0] if lines else 'no message'}"
    return f'<div class="say bad" role="alert"><b>✗ That did not work.</b> {escape(text)}</div>'


def verdict(schedule: Schedule, hazards: Iterable[Hazard]) -> str:
    """What the analysis says of a schedule: each hazard, what may be read, and which edges repair them."""
    found = list(hazards)
    foot = "<small>Told from the schedule alone, before any run.</small>"
    if found:
        repairs = ", ".join(dict.fromkeys(h.repair for h in found))
        number = f"{len(found)} hazard{'s' * (len(found) > 1)}"
        items = "".join(f"<li>{escape(_hazard(h))}</li>" for h in found)
        head = f"<b>✗ {number} without {escape(', '.join(schedule.dropped))}.</b>"
        body = f"{head} Repair: put back <b>{escape(repairs)}</b>.<ul>{items}</ul>{foot}"
    else:
        body = "<b>✓ No hazard:</b> every access waits for those it conflicts with."
        if not schedule.all_edges:
            body = (
                f"<b>✓ No hazard:</b> the {escape(schedule.name)} step has one stream, which keeps its order."
            )
        elif schedule.dropped:  # with io="host": only there does something else order what an edge would
            body += (
                f" {escape(', '.join(schedule.dropped))} is not missed here: the host waits for main at each "
                "site before it writes the next x, so whatever read y and r is done by then."
            )
        body += f"<br>{foot}"
    return f'<div class="say {"bad" if found else "good"} verdict" role="status" tabindex="0">{body}</div>'


def _hazard(hazard: Hazard) -> str:
    return hazard.explain() + (f" Without it, {hazard.observed}." if hazard.observed else "")


def hazard_name(hazard: Hazard) -> str:
    """A hazard in a few words, for a list to choose from: what comes before what, and should not."""
    which = ("", "next ", f"{hazard.distance} steps later, ")[min(hazard.distance, 2)]
    return f"{hazard.kind} on {hazard.buffer}: {which}{hazard.second} before {hazard.first}"


def verdict_text(schedule: Schedule, hazards: Iterable[Hazard]) -> str:
    """The verdict in one line of plain text."""
    found = list(hazards)
    if not found:
        return f"{schedule.name}: no hazard"
    repairs = ", ".join(dict.fromkeys(h.repair for h in found))
    return f"{schedule.name} without {', '.join(schedule.dropped)}: {len(found)} hazards; repair: {repairs}"


def program(schedule: Schedule, whole: bool = False) -> str:
    """The CuPy program with its changes against the one that has all edges.

    A line that is left out starts with "-" and is struck through. ``whole=False`` shows streams, events and
    the step only, and says how many lines are not shown.
    """
    before = schedule.with_edges(schedule.all_edges).to_cupy().splitlines()
    now = schedule.to_cupy().splitlines()
    lines: list[tuple[str, str]] = []
    for tag, i0, i1, j0, j1 in difflib.SequenceMatcher(None, before, now, autojunk=False).get_opcodes():
        if tag == "equal":
            lines += [(" ", line) for line in now[j0:j1]]
        else:
            lines += [("-", line) for line in before[i0:i1]] + [("+", line) for line in now[j0:j1]]
    rows, hidden, inside = [], 0, False
    for sign, line in lines:
        inside = line.startswith("def step(") or (inside and (line.startswith(" ") or sign != " "))
        if not (whole or inside or sign != " " or "cp.cuda.Stream" in line or "cp.cuda.Event" in line):
            hidden += 1
            continue
        if hidden:
            rows.append(_skipped(hidden))
            hidden = 0
        if sign == "-":
            rows.append(f'<span class="gone">- <del>{escape(line)}</del></span>')
        elif sign == "+":
            rows.append(f'<span class="come">+ <ins>{escape(line)}</ins></span>')
        else:
            rows.append(f"<span>  {escape(line)}</span>")
    if hidden:
        rows.append(_skipped(hidden))
    return f'<pre class="program" tabindex="0">{"".join(rows)}</pre>'


def _skipped(lines: int) -> str:
    return f'<span class="skip">  ⋯ {lines} line{"s" * (lines > 1)} not shown</span>'


def counts(numbers: dict[str, int]) -> str:
    """Fresh, stale and torn with their numbers, each with a sign of its own; early where it occurs."""
    signs = {"fresh": "✓", "stale": "✗", "torn": "✗", "early": "✗"}
    words = {
        "fresh": "from this step",
        "stale": "from an older step",
        "torn": "a mix",
        "early": "from a later step",
    }
    return '<span class="counts">' + "".join(
        f'<b class="{label}" title="{words[label]}">{signs[label]} {numbers.get(label, 0)} {label}</b>'
        for label in outcomes.shown(numbers)
    ) + "</span>"  # fmt: skip


def race_result(
    result: RaceResult, numbers: dict[str, int], runs: int, forced: bool, put_back: Sequence[str] = ()
) -> str:
    """What one or more runs did, on which device, and how to read it.

    ``numbers`` are of all runs. ``put_back``: the edges that were put back for this run alone.
    """
    total = sum(numbers.values())
    where = f"Measured on {escape(str(result.device['name']))}: {total} step{'s' * (total != 1)}"
    if runs > 1:
        where += f" in {runs} runs"
    if put_back:
        where += f" with <b>{escape(', '.join(put_back))}</b> put back"
    notes = []
    if result.force is not None:
        where += _held(result)
        notes += _came_out(result)
    elif forced:
        where += ". Nothing was forced: no hazard of these edges can go wrong within one step"
    else:
        sources = sorted({o.source for o in result.outcomes if o.source})
        if sources:
            more = f"; and {len(sources) - 3} more" if len(sources) > 3 else ""
            kinds = " and ".join(label for label in ("stale", "early") if numbers.get(label))
            notes.append(f"What the {kinds} ones were made of: {escape('; '.join(sources[:3]))}{more}")
        if result.hazards and numbers["fresh"] == total:
            notes.append("All fresh in spite of the hazards: luck. Run many times, or force one of them")
    said = f"{where}.{''.join(f'<br>{n}.' for n in notes)}"
    return f'<div class="outcome" role="status">{counts(numbers)} <span class="note">{said}</span></div>'


def _held(result: RaceResult) -> str:
    """What was held until what, as the end of a sentence."""
    force = result.force
    assert force is not None
    hold, until = f"<b>{escape(force.hold)}</b>", f"<b>{escape(force.awaited)}</b>"
    size = {1: "", 2: ", two by two"}.get(force.steps, f", {force.steps} by {force.steps}")
    if result.allowed:
        return f"{size}, each{' time' * bool(size)} with {hold} held back until {until} was done"
    return f"{size}. Each time {hold} was held back, and {until} waited for it, as the edges say"


def _came_out(result: RaceResult) -> list[str]:
    """What became of each step of a forced group, named from the first, which is step t."""
    reader = escape(result.schedule.launches[-1].name)
    told = []
    for place, column in enumerate(zip(*result.groups, strict=True)):
        kinds = Counter((o.label, _moved(o.source, place)) for o in column)
        said = []
        for (label, source), number in kinds.most_common(2):
            read = f"{reader} read {escape(source.replace(', ', ' and '))}: " if source else ""
            said.append(f"{read}{label}, {number} time{'s' * (number != 1)}")
        more = "; and others" if len(kinds) > 2 else ""
        told.append(f"Step t{f'+{place}' if place else ''}: {'; '.join(said)}{more}")
    notes = ["Every step is right" if result.right else ". ".join(told)]
    alone = len(result.outcomes) - sum(map(len, result.groups))
    if alone:
        which = "The last step has no partner and runs" if alone == 1 else f"The last {alone} steps run"
        notes.append(f"{which} in the host's own order")
    hazard = next((h for h in result.hazards if _is_forced(h, result)), None)
    by_luck = all(group[0].label == "fresh" for group in result.groups)
    lab_s_own = result.schedule.name in ("deferred", "prefetched")
    if by_luck and lab_s_own and hazard is not None and hazard.kind == "WAR":
        note = (
            f"Step t is right by luck: {hazard.second} of step t+1 overwrote {hazard.buffer} too soon, but "
            f"with the same numbers, since the next x comes behind {hazard.first}"
        )
        notes.append(note + "; fetch x ahead to see it early" * (result.schedule.name == "deferred"))
    return notes


def _is_forced(hazard: Hazard, result: RaceResult) -> bool:
    force = result.force
    return force is not None and (hazard.first, hazard.second, hazard.distance) == (
        force.hold, force.until, force.distance)  # fmt: skip


def _moved(source: str, steps: int) -> str:
    """A source's steps counted from another one, so many before: "y of step t-1" becomes "y of step t"."""

    def move(found: re.Match[str]) -> str:
        offset = int(found[1] or 0) + steps
        return f"step t{offset:+}" if offset else "step t"

    return re.sub(r"step t([+-]\d+)?", move, source)


def exported(path: Path, timeline: Timeline) -> str:
    """Where an exported timeline is, and a link to download it from a browser on another machine."""
    content = path.read_bytes()
    told = f"✓ {len(timeline)} spans, {len(content) / 1000:,.0f} kB, in <code>{escape(str(path))}</code>. "
    if len(content) <= DOWNLOAD_BYTES:
        data = base64.b64encode(content).decode("ascii")
        address = f"data:application/json;base64,{data}"
        told += f'<a download="{escape(path.name)}" href="{address}">Download it</a>, then open it'
    else:
        told += "Open it"
    return f'<div role="status">{told} in ui.perfetto.dev or chrome://tracing.</div>'


def speech(prompt: str, tokens: Sequence[tuple[str, bool]], ended: str = "") -> str:
    """A prompt and what a model said after it. ``tokens`` are (text, whether it differs from the reference).

    Where tokens begin to differ stands "≠"; each one that does is bold and underlined.
    """
    said, before = [], False
    for text, differs in tokens:
        if differs and not before:
            said.append(" <b>≠</b>")
        said.append(f"<u>{escape(text)}</u>" if differs else escape(text))
        before = differs
    tail = f" <i>{escape(ended)}</i>" if ended else ""
    return f'<div class="speech"><i>{escape(prompt)}</i>{"".join(said)}{tail}</div>'


def site_table(numbers: Mapping[str, Mapping[str, int]], label: str) -> str:
    """How often each site, or group of sites, read fresh, stale and torn data, and early where it occurs."""
    labels = outcomes.shown({"early": sum(n.get("early", 0) for n in numbers.values())})
    rows = "".join(
        f"<tr><td>{'✗' if sum(n.values()) > n['fresh'] else '✓'} {escape(site)}</td>"
        + "".join(f"<td>{n.get(kind, 0)}</td>" for kind in labels)
        + "</tr>"
        for site, n in numbers.items()
    )
    head = f"<tr><th>{escape(label)}</th>{''.join(f'<th>{kind}</th>' for kind in labels)}</tr>"
    return f'<table class="sites">{head}{rows}</table>'


def fold(summary: str, body: str) -> str:
    """Markup that opens on a click or with the keyboard."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
