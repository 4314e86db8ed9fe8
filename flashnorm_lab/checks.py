"""Three checks that people run on a model, and what each can see of a missing edge.

`unit_check` calls each norm-projection twice, as a rule on the same input, `perplexity` lets the model
predict a text that is given, `long_generation` lets it write one. Each tells what it saw and why, from what
it measured: how many norm-projections went through the schedule at all, what the buffers held beforehand,
which sites read stale data. `compare` puts several wirings through all of them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import outcomes
from .decoding import PROMPT, Attached, Site, Tally, attach, first_divergence, forward, generate, prompt_ids
from .devices.base import Device
from .errors import LabError

if TYPE_CHECKING:
    import torch

TEXT = "Water boils at a lower temperature on a mountain, because the air there is thinner and presses less."
"""What `perplexity` lets the model predict unless another text is given."""
PRIMED = 2
"""Tokens that a text's first pass takes when the rest is predicted step by step."""
NGRAM = 3
PATHS = ("one pass", "step by step")
WARM_UPS = ("same", "another")


@dataclass(frozen=True)
class Check:
    """What one check said: its name, ``verdict`` "passes" or "fails", what it saw, and why in a sentence."""

    check: str
    verdict: str
    saw: Mapping[str, Any]
    why: str

    @property
    def passes(self) -> bool:
        """Whether the check found nothing wrong."""
        return self.verdict == "passes"

    def as_dict(self) -> dict[str, Any]:
        """The check as plain values, for JSON."""
        return {"check": self.check, "verdict": self.verdict, "saw": dict(self.saw), "why": self.why}


def _verdict(good: bool) -> str:
    return "passes" if good else "fails"


# One operation, as its unit test calls it


def unit_check(attached: Attached, seed: int = 0, rtol: float = 1e-3, warm_up: str = "same") -> Check:
    """Call each norm-projection of the attached model once, after a warm-up.

    ``warm_up`` is on the "same" input, which is how an operation is usually tested and timed, or on
    "another". x [1, n] is random from ``seed``; z is compared with torch's as in `outcomes.classify`. Passes
    if every site gives the right values. After a warm-up on the same input each site is called once more, on
    another, as a control that the verdict does not look at: ``saw["wrong_after_another"]``. After a warm-up
    on another input that control is the very call that counts. `LabError` for any other ``warm_up``.

    saw: sites, wrong, wrong_after_another; held, for each buffer that the missing edges leave unordered (y or
    r), the number of sites where it held the right values before the call that counted; outcomes and
    outcomes_after_another, {"fresh", "stale", "torn": sites}.
    """
    import torch

    if warm_up not in WARM_UPS:
        raise LabError(f"warm_up={warm_up!r} is not one of {', '.join(map(repr, WARM_UPS))}")
    early = {h.buffer for h in attached.hazards if h.kind == "RAW" and h.distance == 0}
    held = {name: 0 for name in ("y", "r") if name in early}
    draw = np.random.default_rng(seed)
    found: tuple[list[outcomes.Outcome], list[outcomes.Outcome]] = ([], [])
    attached.device.wait()
    for site in attached.sites.values():
        x, another = torch.from_numpy(draw.standard_normal((2, 1, site.schedule.shape[1]), np.float32))
        another *= 3  # or both r would be nearly 1, and an old one could not be told
        y, r = (v.cpu().numpy() for v in site.reference(x.to(site.x.device)))
        new_y, new_r = (v.cpu().numpy() for v in site.reference(another.to(site.x.device)))
        _call(attached, site, x if warm_up == "same" else another)
        for name, right in (("y", y), ("r", r)):
            if name in held:
                held[name] += outcomes.classify(site.plan.read(name), right, {}, rtol).label == "fresh"
        if warm_up == "same":
            fresh, _ = outcomes.candidates([y], [r])
            found[0].append(outcomes.classify(_call(attached, site, x), fresh, {}, rtol))
            fresh, stale = outcomes.candidates([new_y, y], [new_r, r])
            found[1].append(outcomes.classify(_call(attached, site, another), fresh, stale, rtol))
        else:
            fresh, stale = outcomes.candidates([y, new_y], [r, new_r])
            outcome = outcomes.classify(_call(attached, site, x), fresh, stale, rtol)
            found[0].append(outcome)
            found[1].append(outcome)
    same, other = (outcomes.count(kind) for kind in found)
    sites = len(attached.sites)
    wrong, wrong_other = (sites - counts["fresh"] for counts in (same, other))
    saw = {
        "sites": sites,
        "wrong": wrong,
        "wrong_after_another": wrong_other,
        "held": held,
        "outcomes": same,
        "outcomes_after_another": other,
    }
    if wrong and warm_up == "another":
        why = f"{wrong} of {sites} sites gave wrong values; the call before had another input."
    elif wrong:
        why = f"{wrong} of {sites} sites gave wrong values even though the call before had the same input."
    elif wrong_other:
        what = " and ".join(f"{name} already held the right values at {n}" for name, n in held.items())
        why = (
            f"The warm-up had the same input, so before the call {what} of {sites} sites, and a read that "
            f"comes too early finds them; on another input {wrong_other} of {sites} give wrong values."
        )
    else:
        luck = ", which is luck, since nothing orders the read" if attached.hazards else ""
        why = f"All {sites} sites gave the right values, also on another input than the one before{luck}."
    return Check("unit check", _verdict(not wrong), saw, why)


def _call(attached: Attached, site: Site, x: torch.Tensor) -> np.ndarray:
    """One call of a site with x [1, n]: z [1, k] as the model reads it, before anything late has finished."""
    site.x.copy_(x)
    if site.force is None:
        site.step()
    else:
        site.step(site.force)
    z = site.z.cpu().numpy().copy()
    attached.device.wait()
    return z


# A text that is given


def perplexity(
    attached: Attached,
    tokenizer: Any,
    text: str = TEXT,
    path: str = "one pass",
    tolerance: float = 0.01,
    stock: float | None = None,
) -> Check:
    """How well the model predicts a given text, each token from the right ones before it (teacher forcing).

    Perplexity is exp of the mean negative log likelihood of the tokens from number 3 on (of 0, 1, 2, ...).
    ``path``: "one pass", which is how perplexity is measured as a rule, with all tokens as one prompt; or
    "step by step", where all but the first two are decode steps, as in use. Passes if it is finite and
    at most ``tolerance`` above the stock model's, in relation to that: a higher perplexity is a worse one.
    ``stock`` is the stock model's, where it is known from an earlier call.

    saw: perplexity and stock (None where not finite), tokens (predicted), through_schedule (norm-projections
    that the device ran as decode steps), of (norm-projections in all); and fresh, stale, torn, not_judged.
    """
    if path not in PATHS:
        raise LabError(f"path={path!r} is not one of {', '.join(map(repr, PATHS))}")
    ids = prompt_ids(tokenizer, text).to(next(attached.model.parameters()).device)
    predicted = ids.shape[1] - PRIMED - 1
    if predicted < 1:
        raise LabError(f"the text has {ids.shape[1]} tokens; perplexity needs at least {PRIMED + 2}")

    def measure(through: Attached | None) -> tuple[float, Tally]:
        if path == "one pass":
            logits, tally = _one_pass(attached.model, ids), Tally()
            attached.finish_token()
        else:
            logits, tally = _teacher_forced(attached.model, ids, PRIMED, through)
        return _perplexity(logits[-predicted:], ids[0, -predicted:]), tally

    if stock is None:
        with attached.bypass():
            stock = measure(None)[0]
    before = attached.runs
    with _judging(attached):
        value, tally = measure(attached)
    runs, sites = attached.runs - before, len(attached.sites)
    counts = tally.counts
    change = (value - stock) / stock
    saw = {
        "perplexity": _finite(value),
        "stock": _finite(stock),
        "tokens": predicted,
        "through_schedule": runs,
        "of": sites * (ids.shape[1] if path == "one pass" else predicted),
        **counts,
        "not_judged": tally.not_judged,
    }
    wrong = counts["stale"] + counts["torn"]
    numbers = f"perplexity {_written(value)}, the stock model's {_written(stock)}"
    if not runs:
        why = (
            f"All {ids.shape[1]} tokens went through torch in one pass, and 0 norm-projections through the "
            f"schedule, so its edges cannot show ({numbers})."
        )
    elif not wrong and not tally.not_judged:
        why = f"All {runs} norm-projections went through the schedule and read fresh data ({numbers})."
    else:
        seen = f"which changes it by {100 * change:+.2g} % only" if change <= tolerance else "which shows"
        what = f"{wrong} of {runs} norm-projections read stale or torn data ({where(tally)})"
        why = f"{what}, {seen} ({numbers})."
    return Check(f"perplexity, {path}", _verdict(change <= tolerance), saw, why)


def _one_pass(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits [tokens - 1, vocabulary]: row i predicts token i + 1."""
    import torch

    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits[0, :-1].float()


def _teacher_forced(
    model: Any, ids: torch.Tensor, start: int, attached: Attached | None
) -> tuple[torch.Tensor, Tally]:
    """``(logits [tokens - start, vocabulary], outcomes)``: row i predicts token ``start`` + i.

    Row 0 comes from the pass over the first ``start`` tokens, each other row from a decode step.
    """
    import torch

    logits, cache = forward(model, ids[:, :start], None, attached)
    rows, tally = [logits], Tally()
    for position in range(start, ids.shape[1] - 1):
        logits, cache = forward(model, ids[:, position : position + 1], cache, attached)
        rows.append(logits)
        if attached is not None:
            tally.add(attached.finish_token(), len(attached.sites))
    return torch.cat(rows).float(), tally


def _perplexity(logits: torch.Tensor, targets: torch.Tensor) -> float:
    import torch

    mean = float(torch.nn.functional.cross_entropy(logits.double(), targets))
    return math.exp(mean) if mean < 700 else math.inf if mean == mean else math.nan


# A text that the model writes


@dataclass(frozen=True, eq=False)
class Reference:
    """What the stock model writes behind a prompt.

    ids: int64 [1, prompt + tokens]; start: the prompt's length; text: the tokens behind it as text; logits
    [tokens, vocabulary] float32, row t for token t, when it reads its own text step by step.
    """

    ids: torch.Tensor
    start: int
    text: str
    logits: torch.Tensor

    @property
    def tokens(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.ids[0, self.start :].tolist()


def reference(attached: Attached, tokenizer: Any, prompt: str = PROMPT, tokens: int = 64) -> Reference:
    """Greedy text of the model as it is, for `long_generation`. Stops at the model's end token."""
    import torch

    ids = prompt_ids(tokenizer, prompt)
    with attached.bypass():
        written = list(generate(attached.model, tokenizer, prompt, tokens))
        ids = torch.cat([ids, torch.tensor([[t.id for t in written]])], dim=1)
        ids = ids.to(next(attached.model.parameters()).device)
        start = ids.shape[1] - len(written)
        logits, _ = _teacher_forced(attached.model, ids, start, None)
    return Reference(ids, start, "".join(t.text for t in written), logits)


def long_generation(
    attached: Attached,
    tokenizer: Any,
    prompt: str = PROMPT,
    tokens: int = 64,
    known: Reference | None = None,
) -> Check:
    """Let the model write, and look for what a reader or a script would notice. ``known``: from `reference`.

    Three signals, each with a verdict of its own in ``saw["signals"]``; the check passes if all three do:

    - first divergence: the text's first token that is not the stock model's; fails if there is one.
    - repeated n-grams: the share of the text's 3-grams of tokens that it has had before; fails if it is more
      than 0.1 above the share in the stock model's text. Needs no reference to be noticed.
    - one-step lag: the model reads the *stock model's* text step by step (teacher forcing), so that both have
      seen the same. At step t its logits are correlated (Pearson's coefficient over the vocabulary) with the
      stock model's at t and at t-1; ``lag.share`` is the share of steps that match t-1 better. Fails above
      one half. Where the head alone is one step late, that is every step, with a correlation of 1 to t-1.

    saw: text, reference, tokens, first_divergence (None if equal), not_finite (the first token whose logits
    were not finite, or None), repeats and reference_repeats, lag {share, steps, own, previous} (own and
    previous: mean correlations, None where there are none), signals; of the writing: fresh, stale, torn,
    not_judged, kinds {"qkv", "gate_up", "head": counts}, sites (those that were not always fresh).
    """
    known = known or reference(attached, tokenizer, prompt, tokens)
    tally, written = Tally(), []
    with _judging(attached):
        for token in generate(attached.model, tokenizer, prompt, tokens, attached=attached):
            written.append(token)
            if token.number:
                tally.add(token.judged, len(attached.sites))
    with _judging(attached, False):
        logits, _ = _teacher_forced(attached.model, known.ids, known.start, attached)
    produced = [t.id for t in written]
    divergence = first_divergence(produced, known.tokens)
    repeats, reference_repeats = repeated_ngrams(produced), repeated_ngrams(known.tokens)
    lag = one_step_lag(logits, known.logits)
    signals = {
        "first divergence": _verdict(divergence is None),
        "repeated n-grams": _verdict(repeats <= reference_repeats + 0.1),
        "one-step lag": _verdict(lag["share"] <= 0.5),
    }
    saw = {
        "text": "".join(t.text for t in written),
        "reference": known.text,
        "tokens": len(written),
        "first_divergence": divergence,
        "not_finite": next((t.number for t in written if not t.finite), None),
        "repeats": repeats,
        "reference_repeats": reference_repeats,
        "lag": lag,
        "signals": signals,
        **tally.counts,
        "not_judged": tally.not_judged,
        "kinds": tally.kinds,
        "sites": tally.wrong_sites,
    }
    good = all(v == "passes" for v in signals.values())
    return Check("long generation", _verdict(good), saw, _why_text(saw, tally))


def _why_text(saw: Mapping[str, Any], tally: Tally) -> str:
    counts, lag = tally.counts, saw["lag"]
    judged = sum(counts.values())
    wrong = counts["stale"] + counts["torn"]
    read = f"{wrong} of {judged} norm-projections read stale or torn data"
    read += f" ({where(tally)})" if wrong else ""
    if saw["first_divergence"] is None:
        text = f"All {saw['tokens']} tokens are the stock model's; {read}"
        text += ", which changed no choice of token" if wrong else ""
    else:
        text = f"Token {saw['first_divergence']} is the first that is not the stock model's; {read}"
    if saw["not_finite"] is not None:
        text += f", and from token {saw['not_finite']} on the logits are not finite numbers"
    if not lag["steps"]:
        return f"{text}. No step could be compared with the one before."
    late = round(lag["share"] * lag["steps"])
    return (
        f"{text}. Reading the stock model's text, {late} of {lag['steps']} steps match the step before "
        f"better than their own (mean correlation {lag['previous']:.3f} with the one before, "
        f"{lag['own']:.3f} with their own)."
    )


def repeated_ngrams(tokens: Sequence[int], n: int = NGRAM) -> float:
    """The share of a text's n-grams that occurred earlier in it, from 0 to 1; 0 for a text without any."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def one_step_lag(logits: torch.Tensor, reference: torch.Tensor) -> dict[str, Any]:
    """Whether logits match the reference's step before better than their own step.

    Both are [steps, vocabulary] of the same text. ``{"share", "steps", "own", "previous"}``: the share of the
    steps from 1 on whose Pearson correlation with the reference's step t-1 is above that with step t, how
    many steps could be compared, and the mean of the two correlations. A correlation does not see a factor,
    so an old y that was scaled by a new r still matches its own step fully. Steps that are not finite, or
    whose reference is the same as the step before, are left out.
    """
    import torch

    own, previous = (_correlation(logits[1:], r) for r in (reference[1:], reference[:-1]))
    same = (reference[1:] == reference[:-1]).all(-1)
    usable = torch.isfinite(own) & torch.isfinite(previous) & ~same
    own, previous = own[usable], previous[usable]
    steps = len(own)
    return {
        "share": float((previous > own).double().mean()) if steps else 0.0,
        "steps": steps,
        "own": float(own.mean()) if steps else None,
        "previous": float(previous.mean()) if steps else None,
    }


def _correlation(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    one, other = (v.double() - v.double().mean(-1, keepdim=True) for v in (one, other))
    return (one * other).sum(-1) / (one.norm(dim=-1) * other.norm(dim=-1))


def where(tally: Tally) -> str:
    """Where the outcomes were not fresh, in a few words: "head 12, qkv 340", or the one site's name."""
    wrong = tally.wrong_sites
    if len(wrong) == 1:
        (name,) = wrong
        return f"all at {name}"
    kinds = {kind: counts["stale"] + counts["torn"] for kind, counts in tally.kinds.items()}
    return ", ".join(f"{kind} {number}" for kind, number in kinds.items() if number)


@contextlib.contextmanager
def _judging(attached: Attached, on: bool = True) -> Iterator[None]:
    before, attached.judge = attached.judge, on
    try:
        yield
    finally:
        attached.judge = before


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _written(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not a finite number"


# All of them side by side


@dataclass(frozen=True)
class Wiring:
    """Which edges are left out and at which sites, as in `decoding.attach`."""

    name: str
    drop: tuple[str, ...] = ()
    sites: str | tuple[str, ...] = "all"


def usual_wirings(model: Any) -> tuple[Wiring, ...]:
    """The wirings that `compare` looks at: none missing, and four ways of losing an edge."""
    middle = f"layers.{model.config.num_hidden_layers // 2}.qkv"
    return (
        Wiring("all edges"),
        Wiring("join_matrix missing everywhere", ("join_matrix",)),
        Wiring("join_matrix missing at the head", ("join_matrix",), "head"),
        Wiring(f"join_matrix missing at {middle}", ("join_matrix",), middle),
        Wiring("join_vector missing everywhere", ("join_vector",)),
    )


def compare(
    model: Any,
    tokenizer: Any,
    device: Device,
    wirings: Iterable[Wiring] | None = None,
    *,
    prompt: str = PROMPT,
    tokens: int = 16,
    text: str = TEXT,
    each: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Put each wiring through every check, left to run freely and with the worst case forced.

    Returns a row for each: wiring, forced (False or True), stale (site steps of the writing that read stale
    or torn data), of (site steps judged), a verdict for each of "unit check", "perplexity, one pass",
    "perplexity, step by step", "first divergence", "repeated n-grams" and "one-step lag", then text, and
    why {check: sentence}. Where nothing can be forced there is one row. ``each`` is called with every row as
    soon as it is known. The rows that are left to run freely depend on luck; the forced ones do not.
    """
    rows = []
    known: Reference | None = None
    stock: dict[str, float] = {}
    for wiring in usual_wirings(model) if wirings is None else wirings:
        with attach(model, device, drop=wiring.drop, sites=wiring.sites) as attached:
            known = known or reference(attached, tokenizer, prompt, tokens)
            for force in (None, "worst"):
                attached.set_force(force)
                if force and attached.force is None:
                    continue
                unit = unit_check(attached)
                read = [perplexity(attached, tokenizer, text, path, stock=stock.get(path)) for path in PATHS]
                stock |= {path: check.saw["stock"] for path, check in zip(PATHS, read, strict=True)}
                written = long_generation(attached, tokenizer, prompt, tokens, known)
                checks = (unit, *read, written)
                row = {
                    "wiring": wiring.name,
                    "forced": force is not None,
                    "stale": written.saw["stale"] + written.saw["torn"],
                    "of": written.saw["fresh"] + written.saw["stale"] + written.saw["torn"],
                    **{check.check: check.verdict for check in (unit, *read)},
                    **written.saw["signals"],
                    "text": written.saw["text"],
                    "why": {check.check: check.why for check in checks},
                }
                rows.append(row)
                if each is not None:
                    each(row)
    return rows
