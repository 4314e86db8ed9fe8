"""The race panel: one step, four edges to switch, and what is wrong, why, and what a run made of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import ipywidgets as w
import numpy as np
import plotly.graph_objects as go

from .. import devices, figures, hazards, models, outcomes, race, schedule
from ..devices.base import Device, Force
from ..errors import LabError
from ..race import Race, RaceResult
from ..schedule import BUILDERS, Schedule
from ..timeline import Timeline
from . import parts
from .latest import DEVICE, Post
from .panel import (
    FIELD,
    WRAP,
    Panel,
    button,
    device_field,
    edge_switches,
    heading,
    left_out,
    number,
    side_by_side,
    word_switches,
)
from .picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure

MANY = 20
"""How many runs the button "Run 20 times" makes."""
AUTO_BYTES = 128_000_000
"""A change runs the new step by itself where its buffers are no larger than this, and a run no longer than"""
AUTO_SPIN = 2_000_000
"""so many iterations of the busy kernel in all,"""
AUTO_WORK = 2_000_000_000
"""so many multiplications,"""
AUTO_ELEMENTS = 4_000_000
"""and so many elements of x and z that are kept and compared."""
OWN = "own"
AHEAD = "x is copied on matrix, so that the next x may come before this step is over"
HOLD = "hold the writer until the reader is done, where the edges allow it"
NOTHING = "nothing to force: no hazard of these edges can go wrong within one step"
NONE = "nothing to force: these edges leave no hazard"


class Run(NamedTuple):
    """What a press of a button, or a change, runs."""

    device: Any
    steps: int
    runs: int
    schedule: Schedule
    force: Force | str | None = None
    put_back: tuple[str, ...] = ()
    """The edges that ``schedule`` has and the panel's own has not: they forbid the force."""


class RacePanel(Panel):
    """Switches for one step's schedule; verdict, program, graph, timeline and outcomes as answers.

    device: a `Device`, a name for `devices.get`, or None for the one that is found.
    schedule: "sequential", "fused" or "deferred". drop: edges that are left out at first.
    tokens, n, k: the shape at first. steps: steps in a run. spin: see `flashnorm_lab.schedule.deferred`.
    ahead: whether x is fetched ahead, see `flashnorm_lab.race.prefetched`. path: where the export button
    writes.

    The controls are attributes: `order`, `ahead`, `edges` (by name), `preset`, `n`, `k`, `tokens`, `steps`,
    `spin`, `device_choice`, `automatic`, `run_once`, `run_many`, `stop`, `force`, `hazard` (the one that
    `force_one` forces, and `force_repaired` with the repair in place), `shown_step`, `shown_steps`, `whole`,
    `path`, `export`. So are the answers: `built` (the schedule), `found` (its hazards), `result` (of
    the last run), `counts` (of all runs since a button or a change), `error` (what went wrong last, or None).
    `settle` waits for a run that is under way. ``LabError`` for a schedule, edge or number that cannot be.
    """

    def __init__(
        self,
        device: Device | str | None = None,
        schedule: str = "deferred",
        *,
        drop: Iterable[str] = (),
        tokens: int = 1,
        n: int = 576,
        k: int = 960,
        steps: int = 32,
        spin: int = 0,
        ahead: bool = False,
        path: str | Path = "race_timeline.json",
    ) -> None:
        drop = (drop,) if isinstance(drop, str) else tuple(drop)
        _schedule(schedule, tokens, n, k, drop, spin, ahead)
        super().__init__()
        self.built: Schedule | None = None
        self.found: tuple[hazards.Hazard, ...] = ()
        self.result: RaceResult | None = None
        self.counts: dict[str, int] = {}
        self._prepared: tuple[Any, Race] | None = None
        self._halt = threading.Event()
        self._make_controls(device, schedule, drop, (tokens, n, k), steps, spin, ahead, str(path))
        self._make_answers()
        self.children = self._arrange()
        self._watch()
        if self._analyse():
            self._latest.run(partial(self._answer, self.built, self._wanted() if self._small() else None))

    # What there is to press and to see

    def _make_controls(
        self,
        device: Device | str | None,
        name: str,
        drop: tuple[str, ...],
        shape: tuple[int, int, int],
        steps: int,
        spin: int,
        ahead: bool,
        path: str,
    ) -> None:
        tokens, n, k = shape
        self.order = w.ToggleButtons(
            options=list(BUILDERS),
            value=name,
            tooltips=[
                "one stream: the norm, then the projection",
                "one launch does both",
                "product and norm on two streams, the scale behind both",
            ],
            style={"button_width": "100px"},
        )
        self.ahead = w.Checkbox(
            value=bool(ahead), description="fetch x ahead, on matrix", tooltip=AHEAD, indent=False
        )
        self.edges = edge_switches(drop)
        self.waits_for = {edge: w.HTML() for edge in self.edges}
        self.preset = w.Dropdown(
            options=_presets(), value=OWN, description="Shape", tooltip="n and k of a model", layout=FIELD
        )
        self.tokens = number("tokens", tokens, 1, 4096, "rows of x")
        self.n = number("n", n, 1, 1 << 20, "input width")
        self.k = number("k", k, 1, 1 << 20, "output width")
        self.steps = number("steps", steps, 1, 4096, "steps in a run; the host waits only after the last")
        widens = "iterations of a busy kernel in front of the projection: widens the window of the race"
        self.spin = number("spin", spin, 0, (1 << 31) - 1, widens)
        self.device_choice = device_field(device)
        self.automatic = w.Checkbox(
            value=True, description="run after every change", tooltip="run after every change", indent=False
        )
        self.run_once = button("▶ Run once", "one run of as many steps as are set below")
        self.run_many = button(f"▶▶ Run {MANY} times", f"{MANY} runs, counted together")
        self.stop = button("■ Stop", "stop after the run at hand, and count those that were made")
        self.stop.disabled = True
        self.force = button("⚠ Force the worst case", HOLD, "warning")
        narrow = {"description_width": "40px"}
        self.hazard = w.Dropdown(
            options=[(NONE, None)],
            description="Hazard",
            tooltip="the one hazard that is forced",
            style={"description_width": "52px"},
            layout=FIELD,
        )
        self.force_one = button("⚠ Force it", NONE, "warning")
        self.force_repaired = button("✓ Force it with the repair", NONE)
        self.shown_step = w.IntSlider(
            value=0,
            min=0,
            max=steps - 1,
            description="Step",
            tooltip="the step that the timeline shows",
            continuous_update=False,
            style=narrow,
            layout=w.Layout(width="300px"),
        )
        self.shown_steps = w.Dropdown(
            options=[("1 step", 1), ("2 steps", 2), ("4 steps", 4), ("8 steps", 8), ("all steps", 0)],
            value=1,
            description="show",
            tooltip="how many steps the timeline shows",
            layout=w.Layout(width="170px"),
            style=narrow,
        )
        self.whole = w.Checkbox(
            value=False, description="the whole program", tooltip="show the whole program", indent=False
        )
        self.path = w.Text(
            value=path,
            description="File",
            tooltip="the file that is written",
            continuous_update=False,
            layout=w.Layout(width="340px"),
            style=narrow,
        )
        self.export = button("⤓ Export the timeline", "as Chrome JSON, for Perfetto and chrome://tracing")
        self._match_preset()

    def _make_answers(self) -> None:
        self.verdict = w.HTML()
        self.program = w.HTML()
        self.outcome = w.HTML(parts.note("No run yet."))
        self.exported = w.HTML()
        self.graph = Picture("Graph of one step: what runs on which stream and what waits for what")
        self.timeline = Picture("Timeline: what ran when, on the host and on each stream")
        self.stale_map = Picture("Which elements of z were fresh, stale or neither, in each step")

    def _arrange(self) -> list[w.Widget]:
        controls = [
            *(heading("One step of norm and projection"), self.order, self.ahead),
            heading("Edges: who waits for whom"),
            *(w.HBox([switch, self.waits_for[edge]]) for edge, switch in self.edges.items()),
            *(heading("Run it"), w.HBox([self.run_once, self.run_many, self.stop, self.force], layout=WRAP)),
            *(heading("Force one hazard"), self.hazard),
            w.HBox([self.force_one, self.force_repaired], layout=WRAP),
            self.activity,
            *(heading("The step as a CuPy program"), self.program, self.whole),
            *(heading("Shape and device"), self.preset),
            *(w.HBox([self.n, self.k]), w.HBox([self.tokens, self.steps]), self.spin),
            *(self.device_choice, self.automatic),
        ]
        seen = [
            *(self.graph, heading("What the last run did"), self.outcome),
            *(w.HBox([self.shown_step, self.shown_steps]), self.timeline, self.stale_map),
            *(heading("Take the timeline with you"), w.HBox([self.path, self.export]), self.exported),
        ]
        return [w.HTML(parts.STYLE), self.verdict, self.message, side_by_side(controls, seen)]

    # What happens when

    def _watch(self) -> None:
        settings = (self.order, self.ahead, self.tokens, self.steps, self.spin, self.device_choice)
        settings += (self.automatic,)
        for control in (*settings, *self.edges.values()):
            control.observe(self._guarded(self._changed), "value")
        for control in (self.n, self.k):
            control.observe(self._guarded(self._take_shape), "value")
        self.preset.observe(self._guarded(self._take_preset), "value")
        self.whole.observe(self._guarded(self._show_program), "value")
        for control in (self.shown_step, self.shown_steps):
            control.observe(self._guarded(self._show_steps), "value")
        self.run_once.on_click(self._guarded(partial(self._run, 1)))
        self.run_many.on_click(self._guarded(partial(self._run, MANY)))
        self.force.on_click(self._guarded(partial(self._run, 1, "worst")))
        self.hazard.observe(self._guarded(self._offer_force), "value")
        self.force_one.on_click(self._guarded(self._force_one))
        self.force_repaired.on_click(self._guarded(partial(self._force_one, repaired=True)))
        self.stop.on_click(self._guarded(self._halt.set))
        self.export.on_click(self._guarded(self._export))
        self.path.observe(self._guarded(self._forget_export), "value")

    def _changed(self) -> None:
        if self._analyse():
            self._submit(self._wanted() if self.automatic.value and self._small() else None)

    def _take_shape(self) -> None:
        self._match_preset()
        self._changed()

    def _take_preset(self) -> None:
        if self.preset.value != OWN:
            with self._silently():
                self.n.value, self.k.value = self.preset.value
            self._changed()

    def _match_preset(self) -> None:
        with self._silently():
            shape = (self.n.value, self.k.value)
            self.preset.value = shape if shape in dict(self.preset.options).values() else OWN

    def _analyse(self) -> bool:
        """Verdict and program, from the schedule alone. Whether there is a schedule."""
        shape = (self.tokens.value, self.n.value, self.k.value)
        dropped = left_out(self.edges)
        try:
            self.built = _schedule(self.order.value, *shape, dropped, self.spin.value, self.ahead.value)
            self.found = hazards.find(self.built)
        except LabError as problem:
            self._fail(problem)
            return False
        self._clear()
        self._forget_export()
        word_switches(self.edges, needed=bool(self.built.all_edges))
        waits_for = parts.WAITS_FOR_AHEAD if self.ahead.value else parts.WAITS_FOR
        for edge, switch in self.edges.items():
            switch.tooltip = f"{edge}: {waits_for[edge]}"
            self.waits_for[edge].value = parts.note(waits_for[edge])
        self.force.disabled = race.worst_case(self.built) is None
        self.force.tooltip = NOTHING if self.force.disabled else HOLD
        self.spin.disabled = self.ahead.disabled = self.order.value != "deferred"
        self._offer_hazards()
        self.verdict.value = parts.verdict(self.built, self.found)
        self._show_program()
        return True

    def _offer_hazards(self) -> None:
        """List the hazards there are, and keep the chosen one where it is still among them."""
        options = [(parts.hazard_name(hazard), hazard) for hazard in self.found] or [(NONE, None)]
        if list(self.hazard.options) != options:
            chosen = self.hazard.value and race.pair(self.hazard.value)
            with self._silently():
                self.hazard.options = options
                same = (hazard for hazard in self.found if race.pair(hazard) == chosen)
                self.hazard.value = next(same, options[0][1])
        self.hazard.disabled = not self.found
        self._offer_force()

    def _offer_force(self) -> None:
        """Enable the two buttons where the chosen hazard can be forced, and say what they do, or why not."""
        hazard, why_not = self.hazard.value, NONE
        if hazard is not None and self.built is not None:
            force, back = race.force_of(self.built, hazard), ", ".join(_put_back(self.built))
            self.force_one.tooltip = f"hold {force.hold} until {force.awaited} is done"
            self.force_repaired.tooltip = f"put back {back}, and hold {force.hold} for as long as that allows"
            short = force.steps > self.steps.value
            why_not = f"this hazard spans {force.steps} steps: run at least as many" if short else ""
        for each in (self.force_one, self.force_repaired):
            each.disabled = bool(why_not)
            each.tooltip = why_not or each.tooltip

    def _run(self, runs: int, force: str | None = None) -> None:
        if self._analyse():
            self._submit(self._wanted(runs, force))

    def _force_one(self, repaired: bool = False) -> None:
        if not self._analyse() or self.built is None or self.hazard.value is None:
            return
        run = self._wanted(1, race.force_of(self.built, self.hazard.value))
        if repaired:
            run = run._replace(schedule=race.repaired(self.built), put_back=_put_back(self.built))
        self._submit(run)

    def _wanted(self, runs: int = 1, force: Force | str | None = None) -> Run:
        assert self.built is not None
        return Run(self.device_choice.value, self.steps.value, runs, self.built, force)

    def _small(self) -> bool:
        """Whether a run is so short that a change may start one by itself."""
        if self.built is None:
            return False
        tokens, n, k = self.built.shape
        steps, spin = self.steps.value, 0 if self.spin.disabled else self.spin.value
        return (
            sum(b.nbytes for b in self.built.buffers.values()) <= AUTO_BYTES
            and steps * spin <= AUTO_SPIN
            and steps * tokens * n * k <= AUTO_WORK
            and steps * tokens * (n + k) <= AUTO_ELEMENTS
        )

    def _submit(self, run: Run | None) -> None:
        self._halt.clear()
        self.stop.disabled = run is None or run.runs == 1
        if run is not None:
            self.activity.value = parts.note(f"Running {run.steps} steps …")
        elif self._small():
            self.activity.value = parts.note("Not run since the last change.")
        else:
            self.activity.value = parts.note("This is a long run: press a button to start it.")
        self._latest.submit(partial(self._answer, self.built, run))

    def _answer(self, built: Schedule, run: Run | None, post: Post) -> None:
        """The slow part of an answer: the graph, then the runs. In a thread where there is a loop."""
        if not post(partial(self.graph.show, _graph(built))) or run is None:
            return
        numbers = dict.fromkeys(outcomes.LABELS, 0)
        for done in range(1, run.runs + 1):
            with DEVICE:
                prepared = self._prepare(run.device, run.schedule, run.steps)
                result = prepared.run(run.force, anyway=bool(run.put_back))
            numbers = {label: numbers[label] + result.counts[label] for label in numbers}
            told = parts.note(f"Run {done} of {run.runs} …")
            if not post(partial(setattr, self.activity, "value", told)):
                return
            if self._halt.is_set():
                break
        if post(partial(self._take_result, result, numbers, done, run)):
            post(partial(self.stale_map.show, _stale_map(result)))

    def _prepare(self, choice: Any, built: Schedule, steps: int) -> Race:
        device = choice if isinstance(choice, Device) else devices.get(choice)
        key = (device, str(built), steps)
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = None  # frees the old buffers before new ones are made
            self._prepared = (key, race.prepare(device, built, steps))
        return self._prepared[1]

    def _take_result(self, result: RaceResult, numbers: dict[str, int], done: int, run: Run) -> None:
        self.result, self.counts = result, numbers
        self.outcome.value = parts.race_result(result, numbers, done, run.force is not None, run.put_back)
        self.activity.value, self.stop.disabled = "", True
        wrong = next((t for t, o in enumerate(result.outcomes) if o.label != "fresh"), 0)
        size = result.force.steps if result.force is not None else 1
        with self._silently():
            self.shown_step.max = len(result.outcomes) - 1
            self.shown_step.value = wrong - wrong % size
            if 0 < self.shown_steps.value < size:  # all that were forced together are to be seen
                self.shown_steps.value = next(n for _, n in self.shown_steps.options if n >= size or n == 0)
        self._show_steps()

    def _show_steps(self) -> None:
        if self.result is not None:
            # Device and edges are told beside the picture, and its subtitle has little room here.
            told = self._timeline().with_meta(device="", dropped=[])
            self.timeline.show(figures.timeline(told, self._steps()))

    def _timeline(self) -> Timeline:
        if self.result is None or self.result.timeline is None:
            raise LabError("there is no timeline yet: run once first")
        return self.result.timeline

    def _steps(self) -> range | None:
        """The steps that the timeline shows; None for all."""
        wanted, first = self.shown_steps.value, self.shown_step.value
        return range(first, min(first + wanted, self.shown_step.max + 1)) if wanted else None

    def _show_program(self) -> None:
        if self.built is not None:
            self.program.value = parts.program(self.built, self.whole.value)

    def _fail(self, problem: Exception) -> None:
        super()._fail(problem)
        self.stop.disabled = True

    def _forget_export(self) -> None:
        self.exported.value = ""

    def _export(self) -> None:
        self._clear()
        self._forget_export()
        try:
            timeline, name = self._timeline(), self.path.value.strip()
            if not name:
                raise LabError("the file has no name: write one, for instance race_timeline.json")
            path = Path(name).expanduser().absolute()
            timeline.export_chrome(path)
            self.exported.value = parts.exported(path, timeline)
        except Exception as problem:  # told beside the button, since the panel's top may be out of sight
            self.error = problem
            self.exported.value = parts.message(problem)

    # Where widgets cannot run

    def __repr__(self) -> str:
        if self.built is None:
            return "RacePanel"
        text = f"RacePanel: {parts.verdict_text(self.built, self.found)}"
        if self.result is not None:
            text += f". Measured on {self.result.device['name']}: {outcomes.told(self.counts)}"
        return text

    def _static_picture(self) -> StaticFigure | None:
        return figures.timeline_static(self._timeline(), self._steps()) if self.result is not None else None


def _schedule(
    name: str, tokens: int, n: int, k: int, drop: tuple[str, ...], spin: int, ahead: bool
) -> Schedule:
    if name != "deferred":
        return schedule.build(name, tokens, n, k)
    built = schedule.deferred(tokens, n, k, spin=spin)
    return (race.prefetched(built) if ahead else built).without(*drop)


def _put_back(built: Schedule) -> tuple[str, ...]:
    """The edges that repair every hazard of the step."""
    whole = race.repaired(built)
    return tuple(edge for edge in built.dropped if edge in whole.edges)


def _graph(built: Schedule) -> go.Figure:
    """The graph with its hazards marked, always of one height, so that a switch does not move what is below.

    The sentences below it go: the verdict above the panel has them.
    """
    figure = figures.schedule_graph(built, hazards.find(built))
    figure.layout.annotations = [a for a in figure.layout.annotations if a.yref != "paper"]
    figure.update_layout(height=330, margin={"b": 12})
    return figure


def _stale_map(result: RaceResult) -> go.Figure:
    """The map of z at a height that fits the panel; a share beside each row only where the rows are few."""
    figure = figures.stale_map(np.stack([o.mask for o in result.outcomes]))
    figure.update_layout(height=330)
    if len(result.outcomes) > 12:
        figure.layout.annotations = ()
        figure.update_layout(margin={"r": 90})
        figure.update_traces(colorbar={"x": 1.02})
    return figure


def _presets() -> list[tuple[str, Any]]:
    """Label and (n, k) of the first layer's sites and the head of each model that the lab knows."""
    options: list[tuple[str, Any]] = []
    for name, shape in models.presets().items():
        sites = models.norm_projection_sites(shape)
        for site in (sites[0], sites[1], sites[-1]):
            word = parts.SITE_KINDS[site.name.rpartition(".")[2]]
            options.append((f"{name} {word}: n={site.n}, k={site.k}", (site.n, site.k)))
    return [*options, ("own n and k", OWN)]
