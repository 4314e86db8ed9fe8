"""A transformers model whose norm-projections run through a device, one token at a time.

Each site (an RMSNorm and the linear layers that read it) gets a plan of its own, with its own y and r, as
an implementation with static buffers has. A missing edge therefore shows what such a bug showed for real:
the site reads the y that it computed for the token before.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from . import folding, hazards, outcomes, race, schedule
from .devices.base import Device, Force, check_force
from .errors import LabError
from .outcomes import Outcome

if TYPE_CHECKING:
    import torch

    from .timeline import Timeline

PROMPT = "The transformer architecture revolutionized NLP because"
"""The prompt that the lab's notebooks and commands use unless another is given."""
REMEMBERED = 3
"""How many earlier contents of a site's y and r are compared with what it read."""

_users: WeakKeyDictionary[Any, threading.RLock] = WeakKeyDictionary()
_new_user = threading.Lock()


@contextlib.contextmanager
def in_use(model: Any, waiting: Callable[[], bool] | None = None) -> Iterator[bool]:
    """Keep the model from other threads until the block ends, so that none attaches it meanwhile.

    While another thread has it, ``waiting`` is called several times a second; once it gives False, the block
    runs without the model and is told so with False. Without ``waiting`` that is a `LabError` at once.
    """
    with _new_user:
        lock = _users.setdefault(model, threading.RLock())
    held = lock.acquire(blocking=False)
    if not held and waiting is None:
        raise LabError("another panel or cell is using this model; wait until it is done, or stop it")
    while not held and waiting():
        held = lock.acquire(timeout=0.1)
    try:
        yield held
    finally:
        if held:
            lock.release()


def move(model: Any, device: Device) -> Any:
    """Move a model to where ``device`` works: to CUDA's memory or to the host's. Returns the model."""
    return model.to("cuda" if device.kind == "cuda" else "cpu")


def attach(
    model: Any,
    device: Device,
    schedule: str = "deferred",
    *,
    drop: str | Iterable[str] = (),
    sites: str | Iterable[str] = "all",
    force: Force | str | None = None,
    judge: bool = False,
) -> Attached:
    """Let every norm-projection of a Llama-family model run through ``device`` when it decodes one token.

    ``schedule`` is "sequential", "fused" or "deferred". The edges in ``drop`` are left out at ``sites``:
    "all", or names and patterns such as "head", "layers.12.qkv", "layers.*.gate_up". ``force`` holds a
    launch at those sites, as in `Plan.run`, or "worst" for the worst case that the missing edges allow.
    ``judge`` tells after each token which sites read fresh, stale or torn data (`Attached.judged`); the
    comparison happens when the token is done, so it does not disturb the race.

    A prompt of several tokens runs through torch as ever. Its last token also goes through every site once,
    in order and waited for, so that the buffers hold what a previous step would have left there.
    Raises `LabError` for a model of another family, one that is attached or in use already, or on another
    device.
    """
    with in_use(model):
        return Attached(model, device, schedule, _names(drop), _patterns(sites), force, judge)


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    """One name, or several, as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def _patterns(sites: str | Iterable[str]) -> tuple[str, ...]:
    return tuple("*" if s == "all" else s for s in _names(sites))


class Site:
    """One norm-projection with its plan and its buffers."""

    def __init__(self, norm_site: folding.NormSite, device: Device, built: schedule.Schedule) -> None:
        import torch

        self.name, self.splits = norm_site.name, norm_site.splits
        self.schedule = built
        weights: dict[str, torch.Tensor] = {}
        if "W_folded" in built.buffers:
            weights["W_folded"] = folding.fold_site(norm_site)
        else:
            weights["W"] = torch.cat([linear.weight.detach() for linear in norm_site.linears])
            weights["g"] = norm_site.norm.weight.detach().clone()
            for tensor in weights.values():
                if not bool(torch.isfinite(tensor).all()):
                    paths = ", ".join((norm_site.norm_path, *norm_site.linear_paths))
                    raise LabError(f"{paths}: a weight is NaN or infinite; load the model again")
        self.weights = weights
        self.plan = device.prepare(built, share=weights)
        self.x, self.z = self.plan.tensor("x"), self.plan.tensor("z")
        self.step = self.plan.step
        self.force: Force | None = None
        self.parts: tuple[torch.Tensor, ...] = ()
        self.armed = False
        """Whether the norm has just passed a single token through unchanged, for the linears to finish."""

    def reference(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``(y [1, k], r [1])`` as torch computes them from x [1, n]."""
        import torch

        r = torch.rsqrt(x.double().pow(2).mean(-1) + self.schedule.eps).float()
        if "W_folded" in self.weights:
            return torch.nn.functional.linear(x, self.weights["W_folded"]), r
        return torch.nn.functional.linear(x * self.weights["g"], self.weights["W"]), r


@dataclass
class _History:
    """What a site's y and r have held, newest first, and what is still to be judged."""

    ys: list[Any] = field(default_factory=list)
    rs: list[Any] = field(default_factory=list)

    def remember(self, y: torch.Tensor, r: torch.Tensor) -> None:
        self.ys.insert(0, y.cpu().numpy())
        self.rs.insert(0, r.cpu().numpy())
        del self.ys[REMEMBERED + 1 :], self.rs[REMEMBERED + 1 :]


class Attached:
    """A model attached to a device. See `attach`; `detach`, or leaving a ``with`` block, undoes it."""

    def __init__(
        self,
        model: Any,
        device: Device,
        kind: str,
        drop: tuple[str, ...],
        patterns: tuple[str, ...],
        force: Force | str | None,
        judge: bool,
    ) -> None:
        self.model, self.device, self.judge = model, device, judge
        self.runs = 0
        """Norm-projections that have gone through the device as a decode step; a prompt's do not count."""
        self.prompt = False
        """Whether the pass at hand is a prompt's even if it is of one token only; see `forward`."""
        self.bypassed = False
        self.judged: dict[str, Outcome] = {}
        """The newest token's outcome at each site, where ``judge`` is on. A site whose own input has
        overflowed, after earlier wrong values fed on themselves, has none: nothing is left to compare."""
        self._patched: list[Any] = []
        self._seen: list[tuple[str, Any, Any]] = []
        norm_sites = folding.find_sites(model)
        for s in norm_sites:
            if "forward" in vars(s.norm):
                raise LabError(f"{s.norm_path} is attached to a device already; detach it first")
        parameter = next(model.parameters())
        if str(parameter.dtype) != "torch.float32":
            raise LabError(f"the model is in {parameter.dtype}; load it with dtype=torch.float32")
        where = parameter.device.type
        if where != ("cuda" if device.kind == "cuda" else "cpu"):
            raise LabError(f"the model is on {where}, the device is {device.kind}; move the model there")
        io = "torch" if device.kind == "cuda" else "host"
        chosen = {s.name for s in norm_sites if any(fnmatch.fnmatchcase(s.name, p) for p in patterns)}
        for pattern in patterns:
            if not fnmatch.filter([s.name for s in norm_sites], pattern):
                names = f"{norm_sites[0].name}, {norm_sites[1].name}, ..., {norm_sites[-1].name}"
                raise LabError(f"no site is named like {pattern!r}; there are {names}")
        self.chosen = tuple(s.name for s in norm_sites if s.name in chosen)
        self.sites: dict[str, Site] = {}
        for s in norm_sites:
            built = schedule.build(kind, 1, s.n, s.k, eps=s.eps, io=io)
            wrong = built.without(*drop)  # refuses an unknown edge, wherever it was to be dropped
            self.sites[s.name] = Site(s, device, wrong if s.name in chosen else built)
        self.wrong = next((self.sites[name].schedule for name in self.chosen), None)
        self.hazards = hazards.find(self.wrong) if self.wrong is not None else ()
        self.set_force(force)
        self._history = {name: _History() for name in self.sites}
        for s in norm_sites:
            self._patch(s, self.sites[s.name])

    def set_force(self, force: Force | str | None) -> None:
        """Hold a launch at the chosen sites from here on; "worst" and the errors are those of `attach`."""
        if self.wrong is None or force is None:
            self.force = None
        else:
            self.force = race.worst_case(self.wrong) if force == "worst" else check_force(self.wrong, force)
        for name in self.chosen:
            self.sites[name].force = self.force

    @contextlib.contextmanager
    def bypass(self) -> Iterator[None]:
        """While it is open, the model runs as it did before it was attached."""
        self.device.wait()
        self.bypassed = True
        try:
            yield
        finally:
            self.bypassed = False

    def _patch(self, norm_site: folding.NormSite, site: Site) -> None:
        """Give the modules a forward of their own; deleting it again restores them exactly."""
        whole_norm = norm_site.norm.forward

        def norm(hidden: torch.Tensor) -> torch.Tensor:
            single = hidden.shape[0] * hidden.shape[1] == 1
            if single and not self.prompt and not self.bypassed:
                site.armed = True
                return hidden
            site.armed = False
            if not self.bypassed:
                self._prime(site, hidden)
            return whole_norm(hidden)

        norm.attached = self  # for `check_free`
        norm_site.norm.forward = norm
        self._patched.append(norm_site.norm)
        for index, linear in enumerate(norm_site.linears):
            linear.forward = self._linear(site, index, linear.forward)
            self._patched.append(linear)

    def _linear(self, site: Site, index: int, whole: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if index:
            return lambda hidden: site.parts[index] if site.armed else whole(hidden)

        def first(hidden: torch.Tensor) -> torch.Tensor:
            if not site.armed:
                return whole(hidden)
            self._run(site, hidden)
            return site.parts[0]

        return first

    def _run(self, site: Site, hidden: torch.Tensor) -> None:
        """The site's step: x in, z out, and no wait that the schedule does not have."""
        if self.device.recorder is not None:
            self.device.recorder.begin(site.name)
        self.runs += 1
        hidden = hidden.detach()
        site.x.copy_(hidden.view(1, -1))
        if site.force is None:
            site.step()
        else:
            site.step(site.force)
        # A copy: the key-value cache may keep its part, and the next token overwrites z.
        z = site.z.clone().view(1, 1, -1)
        site.parts = z.split(site.splits, dim=-1)
        if self.judge:
            self._seen.append((site.name, hidden.view(1, -1).clone(), z.view(1, -1)))

    def _prime(self, site: Site, hidden: torch.Tensor) -> None:
        """Leave in x, y and r what a step for the prompt's last token leaves there."""
        self.device.wait()
        self._seen.clear()  # of a token that was broken off
        last = hidden[-1:, -1].detach()
        site.x.copy_(last)
        site.step()
        self.device.wait()
        if self.judge:
            self._history[site.name].remember(*site.reference(last))

    def finish_token(self) -> dict[str, Outcome]:
        """Wait for the device; where ``judge`` is on, compare what each site read with what it should have.

        Call it after each forward pass; `generate` does. Returns the outcome of each site.
        """
        self.device.wait()
        if not self.judge:
            return {}
        self.judged = {}
        for name, x, z in self._seen:
            history, site = self._history[name], self.sites[name]
            history.remember(*site.reference(x))
            fresh, stale = outcomes.candidates(history.ys, history.rs[:2])
            if not np.isfinite(fresh).all():
                continue
            self.judged[name] = outcomes.classify(z.cpu().numpy(), fresh, stale)
        self._seen.clear()
        return self.judged

    def marked(self, timeline: Timeline) -> Timeline:
        """A recorded token's timeline with the newest outcome of each site on the launch that made its z."""
        labels = {}
        for span in timeline.spans(category="range"):
            step, name = int(timeline.step[span]), timeline.names[timeline.name[span]]
            if name in self.judged:
                last = self.sites[name].schedule.launches[-1]
                for i in timeline.spans(name=last.name, lane=last.stream, step=step):
                    labels[int(i)] = self.judged[name].label
        built = self.wrong if self.wrong is not None else next(iter(self.sites.values())).schedule
        return timeline.with_outcomes(labels).with_meta(
            schedule=built.name,
            edges=[e for e in built.all_edges if e in built.edges],
            dropped=list(built.dropped),
            dropped_at=list(self.chosen) if built.dropped else [],
        )

    def detach(self) -> None:
        """Give the model its own forward functions back. Calling it again does nothing."""
        self.device.wait()
        for module in self._patched:
            del module.forward
        self._patched.clear()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *problem: object) -> None:
        self.detach()


@dataclass(frozen=True)
class Token:
    """One produced token.

    ``seconds`` is the model's own pass; judging comes on top. ``judged`` maps each site to its outcome, where
    the model judges. ``finite`` is False where the best logit is NaN or infinite and the id means nothing.
    """

    number: int
    id: int
    text: str
    seconds: float
    judged: dict[str, Outcome]
    finite: bool = True

    @property
    def counts(self) -> dict[str, int]:
        """Sites that were fresh, stale, torn and early while this token was computed."""
        return outcomes.count(self.judged.values())


class Tally:
    """Outcomes added up over tokens, by site.

    ``sites``: {site: {"fresh", "stale", "torn", "early": times}} for every site that was judged; "early"
    stays 0, since a token's x comes after the site's last z. ``not_judged``: how often a site had no outcome
    (see `Attached.judged`).
    """

    def __init__(self) -> None:
        self.sites: dict[str, dict[str, int]] = {}
        self.not_judged = 0

    def add(self, judged: Mapping[str, Outcome], sites: int) -> None:
        """Add a token's outcomes at ``sites`` sites."""
        for name, outcome in judged.items():
            self.sites.setdefault(name, dict.fromkeys(outcomes.LABELS, 0))[outcome.label] += 1
        self.not_judged += sites - len(judged)

    @property
    def counts(self) -> dict[str, int]:
        """Fresh, stale, torn and early over all sites and tokens."""
        return _total(self.sites.values())

    @property
    def kinds(self) -> dict[str, dict[str, int]]:
        """The same for each kind of site: "qkv", "gate_up" and "head"."""
        found: dict[str, list[dict[str, int]]] = {}
        for name, counts in self.sites.items():
            found.setdefault(name.rpartition(".")[2], []).append(counts)
        return {kind: _total(counts) for kind, counts in found.items()}

    @property
    def wrong_sites(self) -> dict[str, dict[str, int]]:
        """The counts of those sites that were not fresh at least once."""
        return {name: counts for name, counts in self.sites.items() if sum(counts.values()) > counts["fresh"]}


def _total(many: Iterable[Mapping[str, int]]) -> dict[str, int]:
    many = list(many)
    return {label: sum(counts[label] for counts in many) for label in outcomes.LABELS}


def first_divergence(tokens: Sequence[int], reference: Sequence[int]) -> int | None:
    """The number of the first token that differs, or where one text ends before the other; None if equal."""
    for number, (one, other) in enumerate(zip(tokens, reference, strict=False)):
        if one != other:
            return number
    return None if len(tokens) == len(reference) else min(len(tokens), len(reference))


def generate(
    model: Any,
    tokenizer: Any,
    prompt: str,
    tokens: int,
    *,
    attached: Attached | None = None,
    record: Callable[[int, Timeline], None] | None = None,
    record_tokens: Iterable[int] = (),
    beyond_end: bool = False,
) -> Iterator[Token]:
    """Greedy decoding, token by token, through ``attached`` or, without it, through the model as it is.

    Token 0 comes from the prompt's own forward pass, which runs through torch in either case. Stops at the
    tokenizer's end token, unless ``beyond_end``. The timelines of the tokens numbered in ``record_tokens``
    are passed to ``record``, with the outcomes marked where ``attached`` judges; token 0 has none.
    `LabError` for an empty prompt, fewer than one token, or a model that is attached when ``attached`` is not
    given: what it says would not be what it says as it is.
    """
    check_tokens(tokens)
    ids = prompt_ids(tokenizer, prompt).to(next(model.parameters()).device)
    wanted = set(record_tokens) - {0}
    produced: list[int] = []
    shown = ""
    cache = None
    for number in range(tokens):
        if attached is None:
            check_free(model)
        recorded = attached is not None and number in wanted
        with attached.device.recording() if recorded else contextlib.nullcontext() as recorder:
            start = time.perf_counter()
            logits, cache = forward(model, ids, cache, attached)
            best, ids = logits.max(-1, keepdim=True)
            token = int(ids)
            seconds = time.perf_counter() - start
        judged = attached.finish_token() if attached is not None else {}
        if recorded and record is not None:
            record(number, attached.marked(recorder.timeline()).with_meta(token=number))
        produced.append(token)
        # Decoded as a whole: a token by itself may be half a character, or lose its leading space.
        text = tokenizer.decode(produced)
        yield Token(number, token, text[len(shown) :], seconds, judged, math.isfinite(float(best)))
        shown = text
        if token == tokenizer.eos_token_id and not beyond_end:
            return


def check_free(model: Any) -> None:
    """`LabError` where a pass through the model would go through a device: it is attached, not bypassed."""
    for module in model.modules():
        user = getattr(vars(module).get("forward"), "attached", None)
        if user is not None and not user.bypassed:
            raise LabError("the model is attached to a device, so it cannot speak as it is; detach it first")


def check_tokens(tokens: int) -> None:
    """`LabError` unless ``tokens`` is a whole number of at least 1."""
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise LabError(f"tokens={tokens!r}: give a whole number of at least 1")


def prompt_ids(tokenizer: Any, prompt: str) -> torch.Tensor:
    """The prompt's tokens, int64 [1, tokens]. `LabError` where it has none."""
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    if ids.numel() == 0:
        raise LabError("the prompt is empty; give at least one word")
    return ids.long()


def forward(
    model: Any, ids: torch.Tensor, cache: Any = None, attached: Attached | None = None
) -> tuple[torch.Tensor, Any]:
    """One pass of the model: of a prompt [1, tokens] where there is no ``cache`` yet, else of the next token.

    Returns the logits [1, vocabulary] behind the last token, and the key-value cache for the next pass. A
    prompt runs through torch, also one of a single token, and leaves the buffers of ``attached`` primed.
    """
    import torch

    if attached is not None:
        attached.prompt = cache is None
    try:
        with torch.inference_mode():
            out = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1)
    finally:
        if attached is not None:
            attached.prompt = False
    return out.logits[:, -1], out.cache
