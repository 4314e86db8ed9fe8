"""The exercise panel: race or no race, and which edge; then the verdict, and the device that shows it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from html import escape
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING

import ipywidgets as w
import plotly.graph_objects as go

from .. import devices, exercises, exposure, figures
from ..devices.base import Device
from ..exercises import ANSWERS, Answer, Edge, Exercise
from ..exposure import Exposure
from . import parts
from .latest import DEVICE, Post
from .panel import FIELD, WRAP, Panel, button, heading, side_by_side
from .picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure

STYLE = """<style>
.fnl pre.listing { margin: 0; padding: 6px 8px; font-size: 12px; line-height: 1.6; white-space: pre-wrap;
  word-break: normal; overflow-wrap: break-word; border: 1px solid rgba(128,128,128,.35); }
.fnl pre.listing span { display: block; padding-left: 4em; text-indent: -4em; }
.fnl pre.listing i { font-style: normal; opacity: .6; }
.fnl pre.listing .first { background: rgba(230,159,0,.18); }
.fnl pre.listing .second { background: rgba(213,94,0,.18); }
.fnl pre.listing .come { background: rgba(0,158,115,.16); }
.fnl pre.listing b { font-weight: 600; }
.fnl pre.report { margin: 0; padding: 6px 8px; font-size: 12px; line-height: 1.5; white-space: pre-wrap;
  word-break: normal; overflow-wrap: break-word; border: 1px solid rgba(128,128,128,.35); }
.fnl .answer { min-height: 118px; box-sizing: border-box; margin-top: 8px; }
.fnl .story { font-size: 13px; line-height: 1.5; max-width: 380px; margin-bottom: 6px; }
.fnl table.observed { border-collapse: collapse; font-size: 13px; margin: 4px 0; }
.fnl table.observed :is(th, td) { padding: 3px 12px 3px 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid rgba(128,128,128,.25); }
.fnl table.observed td:first-child { white-space: nowrap; }
.fnl table.observed .wrong { font-weight: 600; }
</style>"""
WIRINGS = {e.title: [x for x in exercises.ALL if x.title == e.title] for e in exercises.ALL}
"""The versions of each wiring, by its title."""
WORDS = {"CuPy": "cupy", "PyTorch": "pytorch", "OpenCL": "opencl"}
ARROW = "a → b: an event is recorded on a after its line, and b waits for it before its line."
LEGEND = (
    "Grey arrows: a stream's own order, and that of the default stream. Black: a wait for an event. "
    "Dashed: what waits for nothing, and should."
)
NOTHING = "Nothing to force: no order that the device may take goes wrong."


class ExercisePanel(Panel):
    """The exercises of `flashnorm_lab.exercises`: answer first, then see the verdict, and force the race.

    name: the exercise to begin with. device: an OpenCL `Device`, a name for `devices.get`, or None for the
    default OpenCL device. ``LabError`` for an exercise that there is not.

    The controls are attributes: `wiring`, `version`, `answer`, `edge`, `check`, `words`, `force`. So are the
    answers: `exercise` (the one that is shown), `result` (what `Exercise.check` said of the last answer, or
    None), `exposures` (of the last forcing: which edge was put in, in words, and what came of it), `error`
    (what went wrong last, or None). `settle` waits for a forcing that is under way. Before an answer is
    checked, the panel shows nothing but the program.
    """

    def __init__(self, name: str = exercises.ALL[0].name, device: Device | str | None = None) -> None:
        first = exercises.get(name)
        super().__init__()
        self.device = device
        self.exercise = first
        self.result: Answer | None = None
        self.exposures: dict[str, Exposure] = {}
        self._make_controls()
        self._make_answers()
        self.children = self._arrange()
        with self._silently():
            self.wiring.value = first.title
            self._offer_versions()
            self.version.value = first
        self._begin()
        self._watch()

    # What there is to press and to see

    def _make_controls(self) -> None:
        self.wiring = w.Dropdown(
            options=[(f"{number}. {title}", title) for number, title in enumerate(WIRINGS, 1)],
            tooltip="the wiring",
            layout=FIELD,
        )
        self.version = w.ToggleButtons(style={"button_width": "44px"}, tabbable=True)
        self.answer = w.ToggleButtons(
            options=[word.capitalize() for word in ANSWERS],
            tooltips=[
                "some order that the device may take goes wrong",
                "every order that it may take is right",
            ],
            style={"button_width": "100px"},
            tabbable=True,
        )
        self.edge = w.Dropdown(tooltip="the edge that is missing", layout=FIELD)
        self.check = button("✓ Check", "hold the answer against the analysis", "primary")
        self.words = w.ToggleButtons(options=WORDS, style={"button_width": "84px"}, tabbable=True)
        self.force = button(
            "⚠ Force it on this device",
            "run the order that goes wrong, then the same with the edge",
            "warning",
        )

    def _make_answers(self) -> None:
        self.story = w.HTML()
        self.listing_title = w.HTML()
        self.listing = w.HTML()
        self.told = w.HTML()
        self.graph = Picture("Graph of the program: what runs on which stream and what waits for what")
        self.report = w.HTML()
        self.observed = w.HTML()
        self.after = w.VBox(
            [
                *(heading("Who waits for whom"), self.graph, w.HTML(parts.note(LEGEND))),
                *(w.HBox([heading("The verdict, in the words of"), self.words], layout=WRAP), self.report),
                *(heading("On the device"), w.HBox([self.force, self.activity], layout=WRAP), self.observed),
            ],
            layout=w.Layout(width="100%"),
        )

    def _arrange(self) -> list[w.Widget]:
        asked = [
            *(heading("A wiring from a real report"), self.wiring, self.story),
            *(heading("One of three versions of it"), self.version),
            *(heading("Can it go wrong?"), self.answer),
            *(heading("If so: which edge is missing?"), self.edge, w.HTML(parts.note(ARROW))),
            w.HBox([self.check]),
        ]
        shown = [self.listing_title, self.listing]
        row = side_by_side(asked, shown)
        return [w.HTML(parts.STYLE + STYLE), self.message, row, self.told, self.after]

    def _offer_versions(self) -> None:
        self.version.options = [(e.name[-1].upper(), e) for e in WIRINGS[self.wiring.value]]

    # What happens when

    def _watch(self) -> None:
        self.wiring.observe(self._guarded(self._take_wiring), "value")
        self.version.observe(self._guarded(self._take_version), "value")
        for control in (self.answer, self.edge):
            control.observe(self._guarded(self._change_answer), "value")
        self.words.observe(self._guarded(self._show_report), "value")
        self.check.on_click(self._guarded(self._check))
        self.force.on_click(self._guarded(self._force))

    def _take_wiring(self) -> None:
        with self._silently():
            self._offer_versions()
            self.version.index = 0
        self._take_version()

    def _take_version(self) -> None:
        self.exercise = self.version.value
        self._begin()

    def _begin(self) -> None:
        """An exercise that is not answered yet."""
        self._clear()
        self._latest.run(lambda post: None)  # a forcing that is under way is of no interest any more
        self.result, self.exposures = None, {}
        with self._silently():
            self.answer.index = None
            options: list[tuple[str, Edge | None]] = [("I do not know: show me", None)]
            self.edge.options = options + [(e.short, e) for e in self.exercise.edges]
            self.edge.index = 0
            self.words.value = self.exercise.library
        self.story.value = f'<div class="story">{escape(self.exercise.story)}</div>'
        self.listing_title.value = heading(escape(self.exercise.file)).value
        self.listing.value = listing(self.exercise)
        self.told.value = _answer("Answer first; then everything is shown.")
        self.after.layout.display = "none"
        self.graph.clear()
        self.report.value = self.observed.value = self.activity.value = ""
        self._match_controls()

    def _match_controls(self) -> None:
        self.check.disabled = self.answer.index is None
        self.edge.disabled = self.answer.index != 0

    def _change_answer(self) -> None:
        self._match_controls()
        if self.result is not None:
            self.told.value = _answer("Not checked since the last change.")

    def _check(self) -> None:
        self._clear()
        word = ANSWERS[self.answer.index]
        self.result = self.exercise.check(word, None if self.edge.disabled else self.edge.value)
        self._forget_forcing()
        self.told.value = told(self.result)
        self.listing.value = listing(self.exercise, self.result)
        self._show_report()
        self.graph.show(_graph(self.exercise, self.result))
        clean = self.result.verdict.clean
        self.force.disabled = clean
        self.activity.value = parts.note(NOTHING) if clean else ""
        self.after.layout.display = ""

    def _show_report(self) -> None:
        if self.result is not None:
            text = escape(self.result.report(self.words.value))
            self.report.value = f'<pre class="report" tabindex="0">{text}</pre>'

    def _forget_forcing(self) -> None:
        self._latest.run(lambda post: None)
        self.exposures, self.observed.value = {}, ""

    def _force(self) -> None:
        if self.result is None or self.result.verdict.clean:
            return
        self._clear()
        self._forget_forcing()
        self.activity.value = parts.note("Running …")
        self._latest.submit(partial(self._expose, self.result))

    def _expose(self, result: Answer, post: Post) -> None:
        """The race on the device. In a thread where there is a loop."""
        device = self.device if isinstance(self.device, Device) else devices.get(self.device or "opencl")
        edges = {"with your edge": result.edge, "with the right edge": result.exercise.solution}
        if result.repairs:
            del edges["with the right edge"]
        program, hazard = result.exercise.program, result.verdict.hazards[0]
        with DEVICE:
            shown = {
                words: exposure.expose(program, hazard, device, result.exercise.with_edge(edge))
                for words, edge in edges.items()
                if edge is not None
            }
        post(partial(self._take_exposures, shown))

    def _take_exposures(self, shown: dict[str, Exposure]) -> None:
        self.exposures = shown
        self.activity.value = ""
        self.observed.value = observed(shown)

    # Where widgets cannot run

    def __repr__(self) -> str:
        text = f"ExercisePanel: {self.exercise.name}, {self.exercise.title}"
        if self.result is None:
            return f"{text}; not answered yet"
        return f"{text}; {' '.join(self.result.explain().splitlines())}"

    def _static_picture(self) -> StaticFigure:
        return _picture(self.exercise, self.result)


def _answer(text: str) -> str:
    return f'<div class="answer">{parts.note(text)}</div>'


def told(result: Answer) -> str:
    """Right or not, and why."""
    first, *rest = result.explain().splitlines()
    good = result.right and result.repairs is not False
    body = "<br>".join([f"<b>{'✓' if result.right else '✗'} {escape(first)}</b>", *map(escape, rest)])
    return f'<div class="say {"good" if good else "bad"} answer" role="status" tabindex="0">{body}</div>'


def listing(exercise: Exercise, result: Answer | None = None) -> str:
    """The program with its line numbers; once it is answered, with what does not wait for what marked, and
    with the learner's edge put in."""
    notes: dict[int, tuple[str, str]] = {}
    for hazard in result.verdict.hazards if result is not None else ():
        first, second = (_line(source) for source in (hazard.first_source, hazard.second_source))
        notes[first] = ("first", f"◀ line {second} does not wait for this")
        notes[second] = ("second", f"◀ does not wait for line {first}")
    rows = []
    for number, text in exercise.rows(result.edge if result is not None else None):
        code = escape(text) or " "
        if number is None:
            indent = " " * (len(text) - len(text.lstrip()))
            rows.append(f'<span class="come"><i>  +</i> {indent}<ins>{code.lstrip()}</ins></span>')
            continue
        kind, note = notes.get(number, ("", ""))
        note = f"  <b>{escape(note)}</b>" if note else ""
        rows.append(f'<span class="{kind}"><i>{number:>3}</i> {code}{note}</span>')
    return f'<pre class="listing" tabindex="0">{"".join(rows)}</pre>'


def _line(source: str) -> int:
    return int(source.rpartition(":")[2])


def _graph(exercise: Exercise, result: Answer) -> go.Figure:
    """The graph without the sentences below it: the verdict has them."""
    figure = figures.program_graph(exercise.program, result.verdict.hazards)
    lines = [a for a in figure.layout.annotations if (a.xref, a.yref) == ("paper", "paper")]
    figure.layout.annotations = [a for a in figure.layout.annotations if a not in lines]
    figure.update_layout(height=figure.layout.height - figure.layout.margin.b + 12, margin={"b": 12})
    return figure


def observed(shown: Mapping[str, Exposure]) -> str:
    """What each launch found, side by side: in the host's order, forced, and forced with an edge put in."""
    first = next(iter(shown.values()))
    runs = {"in the host's order": first.serial, "forced": first.forced}
    runs |= {f"forced, {words}": one.repaired for words, one in shown.items()}
    rows, same = table(run.observed() for run in runs.values())
    body = ""
    for label, cells in rows:
        marked = "".join(
            f'<td class="{"right" if cell == cells[0] else "wrong"}">{"✓" if cell == cells[0] else "✗"} '
            f"{escape(cell)}</td>"
            for cell in cells
        )
        body += f"<tr><td>{escape(label)}</td>{marked}</tr>"
    head = "".join(f"<th>{escape(name)}</th>" for name in runs)
    said = [f"Measured on {first.device}, with stand-ins for the kernels: {first.how}."]
    for words, one in shown.items():
        if not one.mended:
            said.append(f"{words.capitalize()}, that can still be done.")
        elif one.repaired.why:
            said.append(f"{words.capitalize()}, {one.repaired.why}.")
    lines = "".join(f"<li>{escape(line)}</li>" for line in same)
    fold = parts.fold("what else was observed", f"<ul>{lines}</ul>") if same else ""
    return (
        f'<div role="status"><table class="observed"><tr><th></th>{head}</tr>{body}</table>'
        f'<div class="note">{"<br>".join(map(escape, said))}</div>{fold}</div>'
    )


def table(runs: Iterable[Sequence[str]]) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """Several runs' observations: those that differ, as a label and a cell for each run; and the others."""
    rows, same = [], []
    for lines in zip_longest(*runs, fillvalue=""):
        if len(set(lines)) == 1:
            same.append(lines[0])
            continue
        words = [line.split() for line in lines]
        alike = list(takewhile(lambda each: len(set(each)) == 1, zip(*words, strict=False)))
        while alike and alike[-1][0] == "what":  # "block read in w", and then "what fill wrote"
            alike.pop()
        label = " ".join(each[0] for each in alike)
        rows.append((label, [" ".join(each[len(alike) :]) for each in words]))
    return rows, same


def _picture(exercise: Exercise, result: Answer | None) -> StaticFigure:
    """The program as a picture, and the answer below it."""
    from matplotlib.figure import Figure

    lines = [(f"{exercise.file}: {exercise.title}", "bold", "sans-serif")]
    for number, text in exercise.rows(result.edge if result is not None else None):
        lines.append((f"{'+' if number is None else number:>3}  {text}", "normal", "monospace"))
    said = "Race or no race?" if result is None else result.explain()
    lines.append(("", "normal", "sans-serif"))
    for part in said.splitlines():
        lines += [(line, "normal", "sans-serif") for line in textwrap.wrap(part, 110)]
    figure = Figure(figsize=(9, 0.3 + 0.19 * len(lines)), dpi=110)
    for i, (line, weight, family) in enumerate(lines):
        y = 1 - (i + 0.8) / (len(lines) + 0.5)
        figure.text(0.02, y, line, fontsize=9, fontweight=weight, fontfamily=family, parse_math=False)
    return figure
