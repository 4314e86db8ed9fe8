"""The speech panel: a model speaks with edges left out, beside what it says when nothing is missing."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as w

from .. import decoding, devices, figures, hazards, models, schedule
from ..decoding import Tally, Token
from ..devices.base import Device
from ..errors import LabError
from ..models import Model
from ..timeline import Timeline
from . import parts
from .latest import DEVICE, Post
from .panel import (
    FIELD,
    WRAP,
    Panel,
    button,
    device_field,
    edge_rows,
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

SITES = ("all", "head", "layers.*.qkv", "layers.*.gate_up", "layers.15.qkv")
"""Offered in the field; any other name or pattern may be written there."""
WHOLE = "the whole token"
WAITING = "Another panel or cell is using this model: waiting for it …"

_loaded: dict[str, Model] = {}
"""The model that panels share when none is given to them."""
_loading = threading.Lock()


class SpeechPanel(Panel):
    """Prompt, edges and sites to choose; the text beside the reference, and where each token was stale.

    model: what `flashnorm_lab.models.smollm2` gives, or None to load that when it first speaks.
    device: a `Device`, a name for `devices.get`, or None for the one that is found.
    drop: edges that are left out at first, at ``sites``: "all", or names and patterns as in
    `flashnorm_lab.decoding.attach`. tokens: how many to produce. force: make the worst case happen always.

    The controls are attributes: `prompt`, `tokens`, `edges` (by name), `sites`, `force`, `record`,
    `device_choice`, `start`, `stop`, `listed` (the tokens), `site`. So are the answers: `spoken` and
    `reference` (lists of `decoding.Token`), `tally` (what each site read, a `decoding.Tally`), `timelines`
    (by token number), `error`. `settle` waits for the end of what is being said. ``LabError`` for an edge
    or number that cannot be.
    """

    def __init__(
        self,
        model: Model | None = None,
        device: Device | str | None = None,
        *,
        prompt: str = decoding.PROMPT,
        tokens: int = 40,
        drop: Iterable[str] = (),
        sites: str | Iterable[str] = "all",
        force: bool = False,
    ) -> None:
        drop = (drop,) if isinstance(drop, str) else tuple(drop)
        schedule.deferred(1, 1, 1).without(*drop)
        super().__init__()
        self.model = model
        self.spoken: list[Token] = []
        self.tally = Tally()
        self.reference: list[Token] = []
        self.timelines: dict[int, Timeline] = {}
        self.device_name = ""
        self._io = "host"  # as on the CPU; "torch" once it has spoken on a GPU
        self._references: dict[str, list[Token]] = {}
        self._halt = threading.Event()
        self._started = 0.0
        self._prompt, self._dropped, self._wiring = prompt, drop, ""
        self._run: tuple[Any, ...] | None = None  # the settings of what is shown
        self._make_controls(device, prompt, tokens, drop, sites, force)
        self._make_answers()
        self.children = self._arrange()
        self._watch()
        self._analyse()
        self._show_texts()

    # What there is to press and to see

    def _make_controls(
        self,
        device: Device | str | None,
        prompt: str,
        tokens: int,
        drop: tuple[str, ...],
        sites: str | Iterable[str],
        force: bool,
    ) -> None:
        self.prompt = w.Textarea(
            value=prompt,
            placeholder="what the model goes on from",
            tooltip="prompt",
            layout=w.Layout(width=FIELD.width, height="64px"),
        )
        self.tokens = number("tokens", tokens, 1, 2048, "how many tokens to produce")
        self.edges = edge_switches(drop)
        self.sites = w.Combobox(
            value=sites if isinstance(sites, str) else ", ".join(sites),
            options=SITES,
            ensure_option=False,
            description="where",
            tooltip="sites at which the edges are left out: all, or names and patterns",
            layout=FIELD,
            style={"description_width": "48px"},
        )
        self.force = w.Checkbox(
            value=force,
            description="force the worst case at every token",
            tooltip="hold the writer until the reader is done, where the edges allow it",
            indent=False,
        )
        self.record = w.Checkbox(
            value=True,
            description="record timelines (a little slower)",
            tooltip="record a timeline of every token",
            indent=False,
        )
        self.device_choice = device_field(device)
        self.start = button("▶ Speak", "produce the reference, then the same with these edges", "primary")
        self.stop = button("■ Stop", "stop after the token at hand")
        self.stop.disabled = True
        self.listed = w.Select(
            options=[],
            rows=14,
            tooltip="tokens: choose one to see its timeline",
            layout=FIELD,
        )
        self.site = w.Dropdown(
            options=[],
            description="site",
            tooltip="which site's step the timeline shows",
            layout=w.Layout(width="300px"),
            style={"description_width": "40px"},
        )

    def _make_answers(self) -> None:
        self.verdict = w.HTML()
        self.reference_text = w.HTML()
        self.spoken_title = heading("With these edges")
        self.spoken_text = w.HTML()
        self.summary = w.HTML()
        self.causes = w.HTML()
        self.about = w.HTML()
        self.timeline = Picture("Timeline of one token: what ran when, on the host and on each stream")

    def _arrange(self) -> list[w.Widget]:
        half = w.Layout(flex="1 1 300px", min_width="280px", margin="0 10px 0 0")
        texts = w.HBox(
            [
                w.VBox([heading("Reference: the model as it is"), self.reference_text], layout=half),
                w.VBox([self.spoken_title, self.spoken_text], layout=half),
            ],
            layout=WRAP,
        )
        controls = [
            *(heading("What the model goes on from"), self.prompt, self.tokens),
            *(heading("Edges: who waits for whom"), *edge_rows(self.edges), self.sites, self.force),
            *(heading("Let it speak"), w.HBox([self.start, self.stop]), self.message, self.activity),
            *(self.record, self.device_choice),
            *(heading("Tokens: choose one to see its timeline"), self.listed),
        ]
        seen = [
            *(texts, self.summary, heading("Where the data was fresh, stale or torn"), self.causes),
            *(heading("Timeline of the chosen token"), self.site, self.about, self.timeline),
        ]
        return [w.HTML(parts.STYLE), self.verdict, side_by_side(controls, seen)]

    # What happens when

    def _watch(self) -> None:
        for switch in self.edges.values():
            switch.observe(self._guarded(self._analyse), "value")
        fields = (self.prompt, self.tokens, self.sites, self.force, self.device_choice)
        for control in (*fields, *self.edges.values()):
            control.observe(self._guarded(self._note_change), "value")
        self.start.on_click(self._guarded(self.speak))
        self.stop.on_click(self._guarded(self._halt.set))
        self.listed.observe(self._guarded(self._show_token), "value")
        self.site.observe(self._guarded(self._show_timeline), "value")

    def _analyse(self) -> None:
        word_switches(self.edges)
        built = schedule.deferred(1, 1, 1, io=self._io).without(*left_out(self.edges))
        self.verdict.value = parts.verdict(built, hazards.find(built))

    def _settings(self) -> tuple[Any, ...]:
        """What a run depends on, but for the model."""
        where, device = self.sites.value, self.device_choice.value
        return self.prompt.value, self.tokens.value, left_out(self.edges), where, self.force.value, device

    def _note_change(self) -> None:
        if self.spoken and not self.start.disabled:
            self._say("" if self._settings() == self._run else "Not spoken since the last change.")

    def speak(self) -> SpeechPanel:
        """Do what the button "Speak" does. Returns the panel; `settle` waits for the end."""
        sites = [s.strip() for s in self.sites.value.split(",") if s.strip()]
        if not sites:
            raise LabError("the field “where” is empty: write all, or names of sites, for instance head")
        self._clear()
        self._halt.clear()
        self.spoken, self.reference, self.timelines = [], [], {}
        self.tally = Tally()
        with self._silently():
            self.listed.options = []
            self.site.options = []
        self.about.value = self.causes.value = self.summary.value = ""
        self.timeline.clear()
        self._run = self._settings()
        self._prompt, self._dropped = self.prompt.value, left_out(self.edges)
        self._title(self.sites.value)
        self._show_texts()
        self.start.disabled, self.stop.disabled = True, False
        self._say("Loading the model …" if self.model is None and not _loaded else "Starting …")
        wiring = {
            "drop": left_out(self.edges),
            "sites": sites,
            "force": "worst" if self.force.value else None,
        }
        self._latest.submit(
            partial(
                self._speak,
                self.prompt.value,
                self.tokens.value,
                wiring,
                self.device_choice.value,
                self.record.value,
            )
        )
        return self

    def _speak(
        self, prompt: str, tokens: int, wiring: dict[str, Any], choice: Any, record: bool, post: Post
    ) -> None:
        """What is said, once no other panel or cell has the model. In a thread where there is a loop."""
        model = self._load(post)

        def waiting() -> bool:
            return post(partial(self._say, WAITING)) and not self._halt.is_set()

        with decoding.in_use(model.model, waiting) as held:
            if held:
                self._speak_with(model, prompt, tokens, wiring, choice, record, post)
            else:
                post(self._end)

    def _speak_with(
        self,
        model: Model,
        prompt: str,
        tokens: int,
        wiring: dict[str, Any],
        choice: Any,
        record: bool,
        post: Post,
    ) -> None:
        """The reference and then the whole of what is said, token by token."""
        device = choice if isinstance(choice, Device) else devices.get(choice)
        decoding.move(model.model, device)
        for token in self._references_for(model, prompt, tokens):
            if not post(partial(self._take_reference, token, tokens)) or self._halt.is_set():
                break
        if self._halt.is_set():
            post(self._end)
            return
        recorded: dict[int, Timeline] = {}
        with DEVICE:
            attached = decoding.attach(model.model, device, judge=True, **wiring)
        with attached:
            said = decoding.generate(
                model.model,
                model.tokenizer,
                prompt,
                tokens,
                attached=attached,
                record=recorded.__setitem__,
                record_tokens=range(tokens) if record else (),
            )
            if not post(partial(self._begin, device.name, attached.wrong.io, attached.chosen)):
                return
            while not self._halt.is_set():
                with DEVICE:
                    token = next(said, None)
                if token is None:
                    break
                seen = recorded.get(token.number)
                if not post(partial(self._take_token, token, seen, tokens, len(attached.sites))):
                    return
        post(self._end)

    def _load(self, post: Post) -> Model:
        if self.model is None and not _loaded:
            last = 0.0

            def progress(what: str, done: int, total: int) -> None:
                nonlocal last
                if time.monotonic() - last > 0.2:
                    last = time.monotonic()
                    share = f" {done / 1e6:,.0f} of {total / 1e6:,.0f} MB" if total else ""
                    post(partial(self._say, f"{what}{share}"))

            with _loading:
                if not _loaded:
                    _loaded["model"] = models.smollm2(progress=progress)
        if self.model is None:
            self.model = _loaded["model"]
        return self.model

    def _references_for(self, model: Model, prompt: str, tokens: int) -> Iterable[Token]:
        """What the model says as it is: from memory where it has said as much before."""
        known = self._references.get(prompt, [])
        if len(known) >= tokens or (known and known[-1].id == model.tokenizer.eos_token_id):
            yield from known[:tokens]
            return
        produced = []
        for token in decoding.generate(model.model, model.tokenizer, prompt, tokens):
            produced.append(token)
            yield token
        self._references[prompt] = produced

    # What is shown

    def _take_reference(self, token: Token, tokens: int) -> None:
        self.reference.append(token)
        self._say(f"Reference: token {len(self.reference)} of {tokens}")
        self._show_texts()

    def _begin(self, device_name: str, io: str, chosen: tuple[str, ...]) -> None:
        self.device_name, self._io = device_name, io
        self._title(chosen[0] if len(chosen) == 1 else f"{len(chosen)} sites")
        self._analyse()
        self._started = time.perf_counter()

    def _take_token(self, token: Token, timeline: Timeline | None, tokens: int, sites: int) -> None:
        self.spoken.append(token)
        if token.number:  # token 0 comes from the prompt's pass, which runs through torch
            self.tally.add(token.judged, sites)
        if timeline is not None:
            self.timelines[token.number] = timeline
        speed = len(self.spoken) / max(time.perf_counter() - self._started, 1e-9)
        self._say(f"Token {len(self.spoken)} of {tokens}, {speed:.1f} a second")
        self._show_texts()
        self.causes.value = parts.site_table(_grouped(self.tally), "site")
        with self._silently():
            chosen = self.listed.value
            self.listed.options = [self._line(t) for t in self.spoken]
            self.listed.value = chosen

    def _end(self) -> None:
        self.start.disabled, self.stop.disabled = False, True
        stopped = self._halt.is_set()
        changed = "" if self._settings() == self._run else " Settings were changed since it began."
        self._say(("Stopped." if stopped else "Done.") + changed)
        self._show_texts("(stopped)" if stopped else "")
        if self.spoken:
            every = parts.fold("every site", parts.site_table(self.tally.sites, "site"))
            self.causes.value = parts.site_table(_grouped(self.tally), "site") + every
            first = next((t.number for t in self.spoken if self._not_fresh(t)), self.spoken[-1].number)
            self.listed.value = first

    def _fail(self, problem: Exception) -> None:
        super()._fail(problem)
        self.start.disabled, self.stop.disabled = False, True

    def _title(self, places: str) -> None:
        """Say over the text what was left out for it, and where."""
        left = ", ".join(self._dropped)
        self._wiring = f"Without {left} at {places}" if left else "With all edges"
        self.spoken_title.value = heading(escape(self._wiring)).value

    def _say(self, text: str) -> None:
        self.activity.value = parts.note(text)

    def differs(self, number: int) -> bool:
        """Whether the token of this number is another one than the reference has there."""
        if number >= len(self.reference):
            return True
        return self.spoken[number].id != self.reference[number].id

    def first_divergence(self) -> int | None:
        """The number of the first token that is another one than the reference has there; None if none is."""
        return next((t.number for t in self.spoken if self.differs(t.number)), None)

    @staticmethod
    def _not_fresh(token: Token) -> int:
        return len(token.judged) - token.counts["fresh"]

    def _line(self, token: Token) -> tuple[str, int]:
        sign = "≠" if self.differs(token.number) else "="
        if not token.judged:
            return f"{token.number:>3} {sign} {token.text!r}: from the prompt's own pass", token.number
        wrong = self._not_fresh(token)
        told = f"{wrong} of {len(token.judged)} sites not fresh" if wrong else "all sites fresh"
        return f"{token.number:>3} {sign} {token.text!r}: {told}", token.number

    def _show_texts(self, ended: str = "") -> None:
        prompt = self._prompt
        self.reference_text.value = parts.speech(prompt, [(t.text, False) for t in self.reference])
        said = [(t.text, self.differs(t.number)) for t in self.spoken]
        self.spoken_text.value = parts.speech(prompt, said, ended)
        if not self.spoken:
            return
        first = self.first_divergence()
        if first is None:
            told = f"✓ The same as the reference in all {len(self.spoken)} tokens"
        else:
            here = repr(self.reference[first].text) if first < len(self.reference) else "ended"
            told = f"✗ Differs from token {first} on: {self.spoken[first].text!r}, reference {here}"
        self.summary.value = parts.note(f"{told}. Measured on {self.device_name}.")

    def _show_token(self) -> None:
        token = self._chosen()
        with self._silently():
            if token is None or not token.judged:
                self.site.options = []
            else:
                names = [f"{name}: {o.label}" for name, o in token.judged.items()]
                self.site.options = [*zip(names, range(len(names)), strict=True), (WHOLE, -1)]
                wrong = [i for i, o in enumerate(token.judged.values()) if o.label != "fresh"]
                self.site.value = wrong[0] if wrong else len(names) - 1
        self._show_timeline()

    def _chosen(self) -> Token | None:
        return self.spoken[self.listed.value] if self.listed.value is not None else None

    def _show_timeline(self) -> None:
        token = self._chosen()
        if token is None:
            return
        if token.number not in self.timelines:
            why = (
                "comes from the prompt's own pass, which runs through torch: there is no step to show"
                if not token.judged
                else "was not recorded: tick “record timelines” and let it speak again"
            )
            self.about.value = parts.note(f"Token {token.number} {why}.")
            return
        step, what = self.site.value, f"Token {token.number} {token.text!r}"
        if step == -1:
            title = f"{what}: all sites"
            self.about.value = parts.note(f"{what}, all of its sites.")
        else:
            name, outcome = list(token.judged.items())[step]
            title = f"{what}: {name}"
            source = f" ({outcome.source})" if outcome.source else ""
            self.about.value = parts.note(f"{what}, {name}: {outcome.label}{source}.")
        told = self.timelines[token.number].with_meta(device="", dropped=[])
        self.timeline.show(figures.timeline(told, None if step == -1 else step, title))

    # Where widgets cannot run

    def __repr__(self) -> str:
        if not self.spoken:
            return f"SpeechPanel: {self.prompt.value!r}; nothing said yet"
        dropped = ", ".join(self._dropped) or "none"
        return (
            f"SpeechPanel: {self._prompt!r}; edges left out: {dropped}. "
            f"Said: {''.join(t.text for t in self.spoken)!r}. "
            f"Reference: {''.join(t.text for t in self.reference)!r}"
        )

    def _static_picture(self) -> StaticFigure | None:
        if not self.spoken:
            return None
        said = [(t.text, self.differs(t.number)) for t in self.spoken]
        reference = [t.text for t in self.reference]
        return _text_picture(self._prompt, reference, self._wiring, said, self.device_name)


def _grouped(tally: Tally) -> dict[str, dict[str, int]]:
    """The outcomes added up over the sites of a kind, with how many layers have one."""
    members = Counter(name.rpartition(".")[2] for name in tally.sites)
    return {
        parts.SITE_KINDS.get(kind, kind) + (f", {members[kind]} layers" if members[kind] > 1 else ""): counts
        for kind, counts in tally.kinds.items()
    }


def _text_picture(
    prompt: str, reference: list[str], wiring: str, said: list[tuple[str, bool]], device: str
) -> StaticFigure:
    """Both texts as a picture: what differs from the reference stands between ≠ and =."""
    import textwrap

    from matplotlib.figure import Figure

    marked, before = "", False
    for text, differs in said:
        if differs != before:
            marked += " ≠" if differs else " ="
        marked, before = marked + text, differs
    blocks = [
        ("Reference: the model as it is", prompt + "".join(reference)),
        (f"{wiring} (from ≠ on, another word than in the reference)", prompt + marked),
    ]
    lines: list[tuple[str, str]] = []
    for title, text in blocks:
        lines.append((title, "bold"))
        lines += [(line, "normal") for line in textwrap.wrap(text, 110)]
        lines.append(("", "normal"))
    lines.append((f"Measured on {device}.", "normal"))
    figure = Figure(figsize=(9, 0.3 + 0.21 * len(lines)), dpi=110)
    for i, (line, weight) in enumerate(lines):
        y = 1 - (i + 0.8) / (len(lines) + 0.5)
        figure.text(0.02, y, line, fontsize=9, fontweight=weight, parse_math=False)
    return figure
