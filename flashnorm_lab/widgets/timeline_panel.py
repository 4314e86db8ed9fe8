"""The timeline panel: anyone's trace to pan, zoom and search, and a selection that says its own figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets as w
import traitlets

from ..errors import LabError
from ..timeline import Timeline, scene, writing
from ..timeline.chosen import figures
from ..timeline.looks import exact_time
from ..timeline.writing import KINDS
from ..timeline.writing.markup import listed, section, text
from . import parts
from .latest import Post
from .panel import WRAP, Panel, button, heading
from .picture import KEYS

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure

FORMATS = {
    "HTML page": "html",
    "Chrome JSON": "chrome",
    "Perfetto": "perfetto",
    "SVG": "svg",
    "PNG": "png",
    "CSV": "csv",
    "Parquet": "parquet",
}
"""What the export offers, and what `flashnorm_lab.timeline.writing` calls it."""
MOST_TOLD = 10
"""How many rows a table beneath a selection has."""

STYLE = """<style>
.fnl .measured p { margin: 2px 0; } .fnl .measured .scroll { overflow-x: auto; }
.fnl .measured table { border-collapse: collapse; font-size: 12px; font-variant-numeric: tabular-nums; }
.fnl .measured :is(th, td) { padding: 1px 14px 1px 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid rgba(128,128,128,.25); }
.fnl .measured :is(th, td):first-child { text-align: left; white-space: normal; overflow-wrap: anywhere; }
</style>"""

_RENDER = """
function render({ model, el }) {
  const me = Math.random().toString(36).slice(2);
  const open = new Map();
  let asked = 0, shown = null;
  function receive(content, buffers) {
    if (content.to === "all") return content.show ? shown.show(...content.show) : shown.mark(content.mark);
    if (content.to !== me || !open.has(content.number)) return undefined;
    const [done, failed] = open.get(content.number);
    open.delete(content.number);
    if (content.error) return failed(new Error(content.error));
    return done(content.answer, buffers);
  }
  const source = {
    async ask(question) {
      const number = ++asked;
      const answer = new Promise((done, failed) => open.set(number, [(a, b) => done([a, b]), failed]));
      model.send({ from: me, number, question });
      const [found, buffers] = await answer;
      for (const [i, part] of (found.parts ?? []).entries()) {
        const { buffer, byteOffset, byteLength } = buffers[i];
        Object.assign(part, columnsOf(part.columns, buffer.slice(byteOffset, byteOffset + byteLength)));
      }
      return found;
    },
    select: (range) => model.send({ from: me, select: range }),
  };
  function draw() {
    shown?.close();
    open.clear();
    shown = createTimeline(el, model.get("info"), source);
  }
  model.on("msg:custom", receive);
  model.on("change:info", draw);
  draw();
  return () => {
    model.off("msg:custom", receive);
    model.off("change:info", draw);
    shown.close();
  };
}

export default { render };
"""


class TimelineView(anywidget.AnyWidget):
    """The canvas of a panel. ``info`` is what view.js has to know first; all else is asked for."""

    _esm = "\n".join((KEYS, scene.script(), _RENDER))
    info = traitlets.Dict().tag(sync=True)


class TimelinePanel(Panel):
    """A timeline, or two above each other, to look at closely.

    timeline, other: what is shown; ``other`` is drawn below. align: "start" puts their first starts below
    each other, "clock" keeps what their clocks say. titles: what they are called, where there are two. path:
    where the export button writes, the suffix aside.

    The controls are attributes: `align`, `format`, `path`, `overwrite`, `export`. So are the answers: `view`
    (the canvas), `window` and `selection` (start and end in nanoseconds from the origin; None for no
    selection), `measured` (the selection's figures), `exported`, `error` (what went wrong last, or None).
    `show` and `select` do from Python what the mouse does. ``LabError`` for an alignment that is none.
    """

    def __init__(
        self,
        timeline: Timeline,
        other: Timeline | None = None,
        *,
        align: str = "start",
        titles: Sequence[str] | None = None,
        path: str | Path = "timeline",
    ) -> None:
        timelines = (timeline,) if other is None else (timeline, other)
        self.scene = scene.Scene(timelines, align, titles)
        super().__init__()
        self.window: tuple[int, int] = self.scene.extent
        self.selection: tuple[int, int] | None = None
        self.view = TimelineView(info=self.scene.info())
        self.align = w.ToggleButtons(
            options=[("first starts together", "start"), ("as their clocks say", "clock")],
            value=align,
            style={"button_width": "160px"},
        )
        self.measured = w.HTML(parts.note("Shift and drag over the timeline to select a part of its time."))
        self.format = w.Dropdown(
            options=list(FORMATS.items()),
            description="Format",
            layout=w.Layout(width="220px"),
            tooltip="of the file",
        )
        self.path = w.Text(value=f"{path}{KINDS['html'][0]}", description="File",
                           layout=w.Layout(width="330px"), continuous_update=False)  # fmt: skip
        self.overwrite = w.Checkbox(
            value=False,
            description="replace a file that is there",
            indent=False,
            layout=w.Layout(width="auto"),
        )
        self.export = button("Export what is in view", "write the selection, or else what is in view")
        self.exported = w.HTML()
        self.children = self._arrange(len(timelines))
        self.view.on_msg(self._hear)
        self.align.observe(self._guarded(self._put), "value")
        self.format.observe(self._guarded(self._name), "value")
        self.path.observe(self._guarded(self._forget), "value")
        self.export.on_click(self._guarded(self._export))

    def show(self, t0_ns: int, t1_ns: int) -> None:
        """Look at this part of time, in nanoseconds from the origin. ``LabError`` if it is empty."""
        self.window = _range(t0_ns, t1_ns)
        self.view.send({"to": "all", "show": list(self.window)})

    def select(self, t0_ns: int, t1_ns: int) -> None:
        """Measure this part of time, in nanoseconds from the origin. ``LabError`` if it is empty."""
        self._select(_range(t0_ns, t1_ns))
        self.view.send({"to": "all", "mark": list(self.selection or ())})

    def _arrange(self, timelines: int) -> list[w.Widget]:
        row = w.HBox([self.format, self.path, self.overwrite, self.export], layout=WRAP)
        return [
            *(w.HTML(parts.STYLE + STYLE), self.message),
            *([w.HBox([w.Label("Two timelines:"), self.align])] if timelines > 1 else []),
            *(self.view, self.activity, self.measured),
            *(heading("Take it with you"), row, self.exported),
        ]

    # What happens when

    def _hear(self, _: Any, content: Any, __: Any) -> None:
        """A message of the canvas: a question, or a selection."""
        if "select" in content:
            self._guarded(partial(self._take, content["select"]))(None)
            return
        head = {"to": content.get("from"), "number": content.get("number")}
        try:
            question = content["question"]
            answer, buffers = self.scene.answer(question)
            if question.get("kind") == "view":
                low, high = question["inner"]
                self.window = (int(low), int(high))
        except LabError as problem:
            self.view.send(head | {"error": str(problem)})
        except Exception as problem:
            self.view.send(head | {"error": f"{type(problem).__name__}: {problem}"})
        else:
            self.view.send(head | {"answer": answer}, buffers)

    def _take(self, chosen: Any) -> None:
        self._select(None if chosen is None else _range(*chosen))

    def _select(self, chosen: tuple[int, int] | None) -> None:
        self._clear()
        self.selection = chosen
        if chosen is None:
            self.measured.value = ""
        else:
            self.activity.value = parts.note("Measuring …")
        self._latest.submit(partial(self._measure, chosen))

    def _measure(self, chosen: tuple[int, int] | None, post: Post) -> None:
        """The slow part: what the selection's figures are. In a thread where there is a loop."""
        if chosen is None:
            return
        said = [f"<b>Selected: {exact_time(chosen[1] - chosen[0])} from {exact_time(chosen[0])}</b>"]
        for i, t in enumerate(self.scene.timelines):
            if len(self.scene.timelines) > 1:
                said.append(f"<h4>{text(self.scene.titles[i])}</h4>")
            window = self.scene.window(i, *chosen)
            spans = self.scene.details[i].count(*window)
            answers = figures(t, window) if spans else []
            about = "" if answers else "; no work of a device"
            said.append(f"<p>{spans:,} span{'s' * (spans != 1)}{about}</p>")
            said += [section(answer, MOST_TOLD, level=4) for answer in answers]
        post(partial(self._tell, f'<div class="measured" role="status">{"".join(said)}</div>'))

    def _tell(self, told: str) -> None:
        self.measured.value, self.activity.value = told, ""

    def _put(self) -> None:
        self._clear()
        self.scene.put(self.align.value)
        self._select(None)
        self.view.info = self.scene.info()

    def _name(self) -> None:
        """Give the file's name the ending of the chosen format."""
        self._forget()
        path, known = self.path.value, sorted(sum(KINDS.values(), ()), key=len, reverse=True)
        old = next((ending for ending in known if path.lower().endswith(ending)), "")
        self.path.value = path[: len(path) - len(old)] + KINDS[self.format.value][0]

    def _forget(self) -> None:
        self.exported.value = ""

    def _export(self) -> None:
        self._clear()
        self._forget()
        try:
            self.exported.value = self._write()
        except Exception as problem:  # told beside the button, since the panel's top may be out of sight
            self.error = problem
            self.exported.value = parts.message(problem)

    def _write(self) -> str:
        """Write the selection, or what is in view; of two timelines, each to a file of its own."""
        name = self.path.value.strip()
        if not name:
            raise LabError("the file has no name: write one, for instance timeline.html")
        first = Path(name).expanduser().absolute()
        paths = [first, first.with_name(f"other_{first.name}")][: len(self.scene.timelines)]
        for path in paths:
            if path.exists() and not self.overwrite.value:
                raise LabError(f"{path}: is there already; choose another name, or allow it to be replaced")
        window = self.selection or self.window
        told = []
        for i, (t, path) in enumerate(zip(self.scene.timelines, paths, strict=True)):
            part = self.scene.window(i, *window)
            if not self.scene.details[i].count(*part):
                told.append(f"<div>nothing of {text(self.scene.titles[i])} is in view: no file of it</div>")
                continue
            lacks = writing.write(t, path, window=part)
            what = f"the part from {exact_time(window[0])} to {exact_time(window[1])}"
            size = f"{path.stat().st_size / 1000:,.0f} kB"
            told.append(f"<div>✓ {what}, {size}, in <code>{text(str(path))}</code></div>")
            told.append(listed(lacks))
        return f'<div role="status">{"".join(told)}</div>'

    # Where widgets cannot run

    def __repr__(self) -> str:
        spans = " and ".join(f"{len(t):,} spans" for t in self.scene.timelines)
        return f"TimelinePanel: {spans}, {exact_time(self.scene.extent[1])} long"

    def _static_picture(self) -> StaticFigure | None:
        from ..timeline.writing.pictures import picture

        return picture(self.scene.details[0], self.scene.window(0, *self.window))


def _range(t0_ns: Any, t1_ns: Any) -> tuple[int, int]:
    low, high = int(t0_ns), int(t1_ns)
    if high <= low:
        raise LabError(f"the part from {low} to {high} ns is empty; it has to end after it starts")
    return low, high
