"""What stands behind the cells of the notebooks, so that a cell is a line or two that a reader can change.

Curves for the algebra, counts of launches and of arithmetic, and small measurements on the machine at hand.
Every measurement is made when it is asked for and says on what. Figures are drawn in `figures`; only
`SideBySide` and `Spoken` show themselves, as a table and as text.
"""

from __future__ import annotations

import functools
import os
import platform
import statistics
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import algebra, compiling, kernels, models, outcomes, schedule
from .devices.base import Device
from .errors import LabError

if TYPE_CHECKING:
    import pandas

    from .checks import Check
    from .decoding import Token
    from .models import Model
    from .timeline import Timeline

# Notebook 01: the algebra


SIZES = 2.0 ** np.arange(-20, 14)
"""Sizes of an activation (its root mean square) over which the curves are drawn; all fit into float16."""
DTYPES = ("float16", "float32", "float64")
TOKENS, ROWS, LENGTH = 4, 64, 8.0
"""Tokens, rows of W, and the length of each row, which is then the size of z whatever n is."""


@dataclass(frozen=True, eq=False)
class Curves:
    """Values over a common axis: what `figures.curves` draws. NaN and infinite values are gaps in a line."""

    title: str
    note: str
    x_label: str
    y_label: str
    x: np.ndarray
    lines: Mapping[str, np.ndarray]


def same_value(n: int = 576, dtype: str = "float32", eps: float = 1e-5) -> Curves:
    """Propositions 1 and 2 against the textbook order, all in ``dtype``: how far each is from exact.

    The exact value is the textbook's in a wider type, from the very same x, g and W. An error is the largest
    over all elements of z, relative to the root mean square of z, in units of the dtype's machine epsilon
    ("roundings"). Source: FlashNorm, arXiv 2407.09577, Propositions 1 and 2.
    """
    draw = _Draw(n, dtype)
    orders = {
        "textbook": lambda x: algebra.norm_projection(x, draw.g, draw.w, eps),
        "1: gain folded": lambda x: algebra.weightless_norm_projection(x, draw.w_star, eps),
        "2: division deferred": lambda x: algebra.deferred_norm_projection(x, draw.w_star, eps),
    }
    unit = float(np.finfo(draw.dtype).eps)
    lines: dict[str, list[float]] = {name: [] for name in orders}
    for size in SIZES:
        x = draw.x(size)
        exact = algebra.norm_projection(draw.wide(x), draw.wide(draw.g), draw.wide(draw.w), eps)
        for name, order in orders.items():
            lines[name].append(_error(order(x), exact) / unit)
    return Curves(
        title="Three orders, one value",
        note=f"n = {n} · {dtype} · eps = {eps:g} · one rounding is {unit:.2g}",
        x_label="size of the activation x (root mean square)",
        y_label="error in roundings",
        x=SIZES,
        lines=_arrays(lines),
    )


def second_norm(n: int = 576, dtype: str = "float32", eps: float = 1e-5) -> Curves:
    """Proposition 3: the first of two norms left out, with the second's eps as it is and with the exact one.

    Both norms have ``eps``. Errors as in `same_value`, but in plain relative size.
    Source: FlashNorm, arXiv 2407.09577, Proposition 3, with both eps kept.
    """
    draw = _Draw(n, dtype)
    lines: dict[str, list[float]] = {"left out, eps as it is": [], "left out, eps exact for each token": []}
    as_it_is, adjusted = lines.values()
    for size in SIZES:
        x = draw.x(size)
        exact = algebra.stacked_norms(draw.wide(x), draw.wide(draw.w_star), draw.wide(draw.g2), eps, eps)
        as_it_is.append(_error(algebra.stacked_norms_without_first(x, draw.w_star, draw.g2, eps), exact))
        own = algebra.eps_that_cancels(x, eps, eps)
        adjusted.append(_error(algebra.stacked_norms_without_first(x, draw.w_star, draw.g2, own), exact))
    return Curves(
        title="Norm, projection, norm: the first norm left out",
        note=f"n = {n} · {dtype} · both eps = {eps:g}",
        x_label="size of the activation x (root mean square)",
        y_label="relative error",
        x=SIZES,
        lines=_arrays(lines),
    )


def with_bias(n: int = 576, dtype: str = "float32", eps: float = 1e-5) -> Curves:
    """A linear layer with a bias, deferred in the right way (bias last) and the wrong one (bias scaled too).

    Errors as in `second_norm`. Source: the bias-free condition of FlashNorm, arXiv 2407.09577, Proposition 2.
    """
    draw = _Draw(n, dtype)
    lines: dict[str, list[float]] = {"(y + bias)·r": [], "y·r + bias": []}
    scaled_too, after = lines.values()
    for size in SIZES:
        x = draw.x(size)
        exact = algebra.norm_projection(
            draw.wide(x), draw.wide(draw.g), draw.wide(draw.w), eps, draw.wide(draw.bias)
        )
        scaled_too.append(_error(algebra.bias_scaled_too(x, draw.w_star, draw.bias, eps), exact))
        after.append(_error(algebra.deferred_norm_projection(x, draw.w_star, eps, draw.bias), exact))
    return Curves(
        title="A bias: added after the division, or divided as well",
        note=f"n = {n} · {dtype} · eps = {eps:g} · a bias as large as z",
        x_label="size of the activation x (root mean square)",
        y_label="relative error",
        x=SIZES,
        lines=_arrays(lines),
    )


def other_reader(n: int = 576, spread: float = 0.1, eps: float = 1e-5) -> Curves:
    """What a second reader of the norm's output is off by when it was not folded too.

    ``spread`` is the standard deviation of the gains around 1. The difference is the root mean square over
    all elements, relative to that of x·r·g. float64, so that rounding plays no part.
    Source: the condition of FlashNorm, arXiv 2407.09577, Propositions 1 and 2, that a linear layer follows.
    """
    draw = _Draw(n, "float64", spread)
    lines: dict[str, list[float]] = {"after 2: it sees x": [], "after 1: it sees x·r": []}
    deferred, folded = lines.values()
    for size in SIZES:
        seen = algebra.what_another_reader_sees(draw.x(size), draw.g, eps)
        wanted = seen["textbook"]
        for line, values in ((deferred, seen["deferred"]), (folded, seen["folded"])):
            line.append(float(np.linalg.norm(values - wanted) / np.linalg.norm(wanted)))
    return Curves(
        title="What a second reader of the norm's output sees",
        note=f"n = {n} · gains 1 ± {spread:g} · eps = {eps:g} · compared with x·r·g",
        x_label="size of the activation x (root mean square)",
        y_label="relative difference",
        x=SIZES,
        lines=_arrays(lines),
    )


class _Draw:
    """Random weights and activations of one width and dtype, the same on every call."""

    def __init__(self, n: int, dtype: str, spread: float = 0.1) -> None:
        if dtype not in DTYPES:
            raise LabError(f"dtype={dtype!r} is not one of {', '.join(DTYPES)}")
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise LabError(f"n={n!r}: give a whole number of at least 1")
        self.dtype = np.dtype(dtype)
        self.wider = np.longdouble if dtype == "float64" else np.float64
        self._draw = np.random.default_rng(0)
        self.w = (LENGTH * self._normal(ROWS, n) / np.sqrt(n)).astype(self.dtype)
        self.g = (1 + spread * self._normal(n)).astype(self.dtype)
        self.g2 = (1 + spread * self._normal(ROWS)).astype(self.dtype)
        self.bias = (LENGTH * self._normal(ROWS)).astype(self.dtype)
        self._x = self._normal(TOKENS, n)
        self.w_star = algebra.fold(self.w, self.g)

    def _normal(self, *shape: int) -> np.ndarray:
        return self._draw.standard_normal(shape)

    def x(self, size: float) -> np.ndarray:
        """x [tokens, n] whose root mean square is about ``size``."""
        return (self._x * size).astype(self.dtype)

    def wide(self, values: np.ndarray) -> np.ndarray:
        """The same values in the wider type of the reference."""
        return values.astype(self.wider)


def _error(values: np.ndarray, exact: np.ndarray) -> float:
    difference = np.abs(values.astype(exact.dtype) - exact)
    return float(np.max(difference) / np.sqrt(np.mean(np.square(exact))))


def _arrays(lines: Mapping[str, Sequence[float]]) -> dict[str, np.ndarray]:
    return {name: np.array(values) for name, values in lines.items()}


# Notebook 02: what a norm costs


def norm_launches() -> dict[str, int]:
    """RMSNorms in a decode step of each model whose shape the lab ships: launches, if each is one kernel."""
    return {name: models.norm_count(shape) for name, shape in models.presets().items()}


def operations(config: Any, context: int = 256) -> dict[str, int]:
    """Multiplications and additions of one decode step at a given length of context, by kind.

    A weight of a linear layer takes one of each. A norm takes four operations an element: square and add,
    times r, times g. Attention multiplies queries with keys and weights with values. Softmax, rotary
    embedding, SiLU and residual additions are left out; they are of the norms' order.

    config: as `models.norm_count` takes it.
    """
    sites = models.norm_projection_sites(config)
    get = config.get if isinstance(config, Mapping) else lambda name: getattr(config, name, None)
    layers, n, hidden = get("num_hidden_layers"), get("hidden_size"), get("intermediate_size")
    width = get("num_attention_heads") * (get("head_dim") or n // get("num_attention_heads"))
    return {
        "norms": sum(4 * site.n for site in sites),
        "projections behind a norm": sum(2 * site.n * site.k for site in sites),
        "other projections": layers * 2 * n * (width + hidden),
        "attention": layers * 4 * width * context,
    }


def shares(parts: Mapping[str, float]) -> dict[str, float]:
    """Each part as a percentage of all of them together."""
    total = sum(parts.values())
    return {name: 100 * value / total for name, value in parts.items()}


@dataclass(frozen=True)
class NormTime:
    """How long a model's norms take in a decode step: medians over ``steps``, measured on ``device``."""

    device: str
    norms: int
    steps: int
    norms_ns: float
    step_ns: float

    @property
    def share(self) -> float:
        """The norms' share of the step's time."""
        return self.norms_ns / self.step_ns

    def beside(self, work: Mapping[str, int]) -> dict[str, float]:
        """That share beside the norms' share of the arithmetic (see `operations`), both in per cent."""
        return {
            "of the arithmetic (counted)": shares(work)["norms"],
            "of the time (measured)": 100 * self.share,
        }


def time_norms(lab: Model, tokens: int = 24, prompt: str | None = None) -> NormTime:
    """Time each RMSNorm of a Llama-family model, and the whole step, while the model decodes as it is.

    Hooks on the modules read the host's clock just before and just after each norm. What lies between is not
    one launch: an eager RMSNorm of transformers is about six operations of torch, called from Python one by
    one, and the hooks' own cost is inside as well. On a CPU that is when the norm runs; so `LabError` for a
    model on a GPU, where it would be the time that the host takes to launch it. The first steps warm up and
    are not counted.
    """
    import torch

    from . import decoding, folding

    where = lab.model.device.type
    if where != "cpu":
        raise LabError(f"the model is on {where}: a host's clock can time its norms on the CPU only")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 4:
        raise LabError(f"tokens={tokens!r}: give a whole number of at least 4, since the first three warm up")
    started, spent = 0, 0

    def before(*_: Any) -> None:
        nonlocal started
        started = time.perf_counter_ns()

    def after(*_: Any) -> None:
        nonlocal spent
        spent += time.perf_counter_ns() - started

    norms = [site.norm for site in folding.find_sites(lab.model)]
    hooks = [norm.register_forward_pre_hook(before) for norm in norms]
    hooks += [norm.register_forward_hook(after) for norm in norms]
    norms_ns, step_ns = [], []
    try:
        for token in decoding.generate(lab.model, lab.tokenizer, prompt or decoding.PROMPT, tokens):
            norms_ns.append(spent)
            step_ns.append(token.seconds * 1e9)
            spent = 0
    finally:
        for hook in hooks:
            hook.remove()
    if len(step_ns) < 4:
        raise LabError(f"the model ended its text after {len(step_ns)} tokens; try another prompt")
    threads = torch.get_num_threads()
    return NormTime(
        device=f"{processor()}, torch {torch.__version__}, {threads} thread{'s' * (threads != 1)}",
        norms=len(norms),
        steps=len(step_ns) - 3,
        norms_ns=statistics.median(norms_ns[3:]),
        step_ns=statistics.median(step_ns[3:]),
    )


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()


@dataclass(frozen=True)
class LaunchCost:
    """What it costs to launch a kernel once everything is idle. Measured on ``device``; medians, nanoseconds.

    call_ns: the host's call that enqueues it. start_ns: from the beginning of that call until the kernel
    starts. empty_ns: how long a kernel runs that does next to nothing. norm_ns: how long rms_norm runs, over
    one token of width n.
    """

    device: str
    n: int
    launches: int
    call_ns: float
    start_ns: float
    empty_ns: float
    norm_ns: float

    def bars(self) -> dict[str, float]:
        """In microseconds, with a label each."""
        return {
            "the host's enqueue call": self.call_ns / 1000,
            "from that call to the kernel's start": self.start_ns / 1000,
            "an almost empty kernel, running": self.empty_ns / 1000,
            f"rms_norm over {self.n} elements, running": self.norm_ns / 1000,
        }


def launch_cost(device: Device, n: int = 576, launches: int = 200) -> LaunchCost:
    """Launch an almost empty kernel, wait for it, and again; then rms_norm likewise. See `LaunchCost`."""
    empty = _lone_launch("spin", ("sink", 1), {"sink": (1,)}, n)
    norm = _lone_launch("rms_norm", ("x", "g", "h", 1, n, 1e-5), {"x": (1, n), "g": (n,), "h": (1, n)}, n)
    times = {}
    for one in (empty, norm):
        plan = device.prepare(one)
        for name, buffer in one.buffers.items():
            plan.write(name, np.ones(buffer.shape, np.float32))
        plan.run(10)
        frame = plan.record(launches).frame()
        calls = frame[(frame.kind == "host") & (frame.category == "launch")]
        work = frame[(frame.kind == "device") & (frame.category == "kernel")]
        medians = calls.duration_ns.median(), work.launch_delay_ns.median(), work.duration_ns.median()
        times[one.name] = [float(m) for m in medians]
    return LaunchCost(device.name, n, launches, *times["spin"], norm_ns=times["rms_norm"][2])


def _lone_launch(
    kernel: str, arguments: tuple[Any, ...], buffers: Mapping[str, tuple[int, ...]], n: int
) -> schedule.Schedule:
    """One launch on main that the host waits for."""
    return schedule.Schedule(
        name=kernel,
        shape=(1, n, 1),
        buffers={name: schedule.Buffer(name, shape) for name, shape in buffers.items()},
        all_steps=(schedule.Launch(kernel, kernel, "main", arguments), schedule.Synchronize("main")),
        io="host",
    )


# Notebook 03: the kernels


@dataclass(frozen=True, repr=False)
class SideBySide:
    """A kernel's text and its translation, line by line; shown as a table with the changed lines marked."""

    name: str
    left: tuple[str, ...]
    right: tuple[str, ...]

    @property
    def same(self) -> tuple[bool, ...]:
        """For each line, whether both say the same, comments apart."""
        pairs = zip(self.left, self.right, strict=True)
        return tuple(a.partition("//")[0].rstrip() == b.rstrip() for a, b in pairs)

    def __str__(self) -> str:
        rows = zip(self.same, self.left, self.right, strict=True)
        return "\n".join(f"  {a}" if same else f"- {a}\n+ {b}" for same, a, b in rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        style = "text-align:left;padding:0 14px 0 4px;white-space:pre-wrap;font:12px monospace"
        rows = []
        for same, a, b in zip(self.same, self.left, self.right, strict=True):
            mark, shade = ("", "") if same else ("▸", ";background:rgba(230,159,0,.18)")
            cells = "".join(f'<td style="{style}{shade}">{escape(text) or " "}</td>' for text in (a, b))
            rows.append(f'<tr><td style="padding:0 2px">{mark}</td>{cells}</tr>')
        head = f'<tr><th></th><th style="{style}">CUDA C</th><th style="{style}">OpenCL C</th></tr>'
        foot = f"<p>▸ marks the lines that differ: {self.same.count(False)} of {len(self.same)}.</p>"
        return f"<table>{head}{''.join(rows)}</table>{foot}"


def translation(name: str) -> SideBySide:
    """A kernel in CUDA C beside what an OpenCL compiler is given, without lines that are comments only."""
    code = kernels.load(name)
    translated = kernels.to_opencl(code.text, code.path.name)
    pairs = zip(code.text.splitlines(), translated.splitlines(), strict=True)
    kept = [(a, b) for a, b in pairs if b.strip() and not b.startswith("#line")]
    return SideBySide(name, tuple(a for a, _ in kept), tuple(b for _, b in kept))


def compile_table(
    names: Sequence[str] = kernels.NAMES, archs: Sequence[str] = ("sm_80",), dtype: str = "float32"
) -> pandas.DataFrame:
    """What NVIDIA's compiler makes of the kernels, one row for each kernel and architecture; no GPU needed.

    Where CuPy is not installed (there is none for macOS), the table is one row that says so.
    """
    import pandas

    if find_spec("cupy_backends") is None:
        return pandas.DataFrame({"not compiled here": ["NVRTC comes with CuPy, and CuPy is not installed"]})
    reports = [compiling.compile_report(name, arch, dtype) for name in names for arch in archs]
    return pandas.DataFrame(
        {
            "kernel": [r.kernel for r in reports],
            "architecture": [r.arch for r in reports],
            "registers a thread": [r.registers for r in reports],
            "shared bytes a block": [r.shared_bytes for r in reports],
            "spilled bytes": [r.spill_bytes for r in reports],
            "machine code, bytes": [r.cubin_bytes for r in reports],
        }
    )


@dataclass(frozen=True)
class Way:
    """One way to compute a norm-projection, run on ``device``.

    launches: a step. error: the largest deviation from float64, relative to the root mean square of z.
    step_us: from the host's first call of a step until the host has waited for it; the median, microseconds.
    It includes the step's two copies, x in and z out, which are the same in every way.
    """

    name: str
    launches: int
    error: float
    step_us: float
    device: str


def ways(tokens: int = 1, n: int = 576, k: int = 960) -> dict[str, schedule.Schedule]:
    """The four schedules that notebook 03 compares, by name, all of one shape."""
    return {
        "sequential": schedule.sequential(tokens, n, k),
        "fused": schedule.fused(tokens, n, k),
        "deferred, one stream": schedule.deferred(tokens, n, k, streams="one"),
        "deferred, three streams": schedule.deferred(tokens, n, k),
    }


def compare(
    device: Device, tokens: int = 1, n: int = 576, k: int = 960, repeats: int = 200, seed: int = 0
) -> list[Way]:
    """Run each of `ways` on the same random input: check it against float64, then time it, then check again.

    They take turns, so that a machine that is slower for a while is so for all of them. `LabError` if a
    result is off by more than a thousandth, since a time is worth nothing then.
    """
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((tokens, n), np.float32)
    gain = 1 + 0.1 * draw.standard_normal(n, np.float32)
    weight = draw.standard_normal((k, n), np.float32) / np.float32(np.sqrt(n))
    values = {"g": gain, "W": weight, "W_folded": algebra.fold(weight, gain), "xs": x[None]}
    plans = {}
    for name, one in ways(tokens, n, k).items():
        plans[name] = device.prepare(one)
        for buffer, content in values.items():
            if buffer in one.buffers:
                plans[name].write(buffer, content)
    exact = algebra.norm_projection(*(v.astype(np.float64) for v in (x, gain, weight)), eps=1e-5)

    def check(name: str) -> float:
        error = _error(plans[name].read("zs")[0], exact)
        if not error < 1e-3:
            raise LabError(f"{name} is off by {error:g} of z's size; expected less than 0.001")
        return error

    taken: dict[str, list[int]] = {name: [] for name in plans}
    for name, plan in plans.items():
        plan.run(5)
        check(name)
    for _ in range(repeats):
        for name, plan in plans.items():
            start = time.perf_counter_ns()
            plan.step()
            device.wait()
            taken[name].append(time.perf_counter_ns() - start)
    found = []
    for name, plan in plans.items():
        median_us = statistics.median(taken[name]) / 1000
        found.append(Way(name, len(plan.schedule.launches), check(name), median_us, device.name))
    return found


# Notebook 05: the model that spoke backwards


@dataclass(frozen=True, eq=False, repr=False)
class Spoken:
    """What a model said with edges left out, beside what it says as it is. Measured on ``device``.

    said and reference are tokens of `decoding.generate`, the former judged at each of its sites.
    """

    wiring: str
    device: str
    said: tuple[Token, ...]
    reference: tuple[Token, ...]

    @property
    def divergence(self) -> int | None:
        """The number of the first token that is not the reference's; None if the texts are equal."""
        from . import decoding

        return decoding.first_divergence([t.id for t in self.said], [t.id for t in self.reference])

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that was judged, in the order of a decode step."""
        return tuple(dict.fromkeys(name for token in self.said for name in token.judged))

    @property
    def outcomes(self) -> np.ndarray:
        """int8 [tokens - 1, sites] for the tokens from 1 on: 0 fresh, 1 stale, 2 torn, 3 early, -1 not
        judged."""
        found = np.full((len(self.said) - 1, len(self.sites)), -1, np.int8)
        for row, token in enumerate(self.said[1:]):
            for column, site in enumerate(self.sites):
                if site in token.judged:
                    found[row, column] = outcomes.LABELS.index(token.judged[site].label)
        return found

    def __str__(self) -> str:
        wrong, judged = int((self.outcomes > 0).sum()), int((self.outcomes >= 0).sum())
        if self.divergence is None:
            told = f"all {len(self.said)} tokens are the reference's"
        else:
            told = f"token {self.divergence} is the first that is not the reference's"
        rows = {
            "reference": "".join(t.text for t in self.reference),
            "spoken": "".join(t.text for t in self.said),
            "wiring": self.wiring,
            "result": told,
            "stale": f"{wrong} of {judged} norm-projections read stale or torn data",
            "measured on": self.device,
        }
        lines = []
        for label, text in rows.items():
            lines += textwrap.wrap(
                text.strip(),
                94,
                initial_indent=f"{label:<13}",
                subsequent_indent=" " * 13,
                break_on_hyphens=False,
            )
        return "\n".join(lines)

    __repr__ = __str__


def speak(
    lab: Model,
    device: Device,
    drop: str | Sequence[str] = (),
    sites: str | Sequence[str] = "all",
    force: str | None = None,
    tokens: int = 20,
    prompt: str | None = None,
) -> Spoken:
    """Let the model go on from a prompt with edges left out, as `decoding.attach` takes them.

    Without a prompt it is the lab's own, `decoding.PROMPT`. The model is moved to where the device works.
    `LabError` while a panel or another thread uses the model, or while it is attached.
    """
    from . import decoding

    prompt = decoding.PROMPT if prompt is None else prompt
    drop = (drop,) if isinstance(drop, str) else tuple(drop)
    with decoding.in_use(lab.model):
        model = decoding.move(lab.model, device)
        reference = _reference(lab, model.device, prompt, tokens)
        with decoding.attach(model, device, drop=drop, sites=sites, force=force, judge=True) as attached:
            said = tuple(decoding.generate(model, lab.tokenizer, prompt, tokens, attached=attached))
            places = attached.chosen[0] if len(attached.chosen) == 1 else f"{len(attached.chosen)} sites"
    wiring = f"without {', '.join(drop)} at {places}" if drop else "with all edges"
    return Spoken(wiring, device.name, said, reference)


@functools.lru_cache(maxsize=4)
def _reference(lab: Model, where: Any, prompt: str, tokens: int) -> tuple[Token, ...]:
    from . import decoding

    return tuple(decoding.generate(lab.model, lab.tokenizer, prompt, tokens))


def which_check_sees(
    lab: Model,
    device: Device,
    places: Sequence[str] = ("all", "head", "layers.15.qkv"),
    drop: str = "join_matrix",
    tokens: int = 12,
    text: str = "Water boils at a lower temperature on a mountain.",
    prompt: str | None = None,
    warm_up: str = "same",
) -> dict[str, tuple[Check, ...]]:
    """Each check's answer to an edge left out at each place, the worst case forced, so that luck has no part.

    ``places`` are sites as `decoding.attach` takes them, ``warm_up`` is the unit check's: "same" or "another"
    input. See `flashnorm_lab.checks`.
    """
    from . import checks, decoding

    prompt = decoding.PROMPT if prompt is None else prompt
    found, known = {}, None
    with decoding.in_use(lab.model):
        model = decoding.move(lab.model, device)
        for place in places:
            with decoding.attach(model, device, drop=(drop,), sites=place, force="worst") as attached:
                known = known or checks.reference(attached, lab.tokenizer, prompt, tokens)
                found[place] = (
                    checks.unit_check(attached, warm_up=warm_up),
                    *(checks.perplexity(attached, lab.tokenizer, text, path) for path in checks.PATHS),
                    checks.long_generation(attached, lab.tokenizer, prompt, tokens, known),
                )
    return found


def verdicts(found: Mapping[str, Sequence[Check]]) -> pandas.DataFrame:
    """What `which_check_sees` found as a table: a row for each check and signal, a column for each place."""
    import pandas

    columns: dict[str, dict[str, str]] = {}
    for place, results in found.items():
        column = columns[place] = {}
        for check in results:
            signals = check.saw.get("signals")
            column |= signals if signals else {check.check: check.verdict}
    marks = {"passes": "passes", "fails": "✗ fails"}
    return pandas.DataFrame(columns).map(lambda verdict: marks[verdict])


# Notebook 06: timelines


def record_decode_step(lab: Model, device: Device, token: int = 3, prompt: str | None = None) -> Timeline:
    """One decode step of a model whose norm-projections run through ``device``, all sites in one timeline.

    ``token`` is the number of the token that the step produces; 0 would be the prompt's own pass, which runs
    through torch alone, so it is at least 1. The model is moved to where the device works.
    """
    from . import decoding

    if isinstance(token, bool) or not isinstance(token, int) or token < 1:
        raise LabError(f"token={token!r}: give a whole number of at least 1")
    found: dict[int, Timeline] = {}
    prompt = decoding.PROMPT if prompt is None else prompt
    with decoding.in_use(lab.model), decoding.attach(decoding.move(lab.model, device), device) as attached:
        options = {"attached": attached, "record": found.__setitem__, "record_tokens": [token]}
        for _ in decoding.generate(attached.model, lab.tokenizer, prompt, token + 1, **options):
            pass
    if token not in found:
        raise LabError(f"the model ended its text before token {token}; try a smaller number")
    return found[token]


def viewers(path: str | os.PathLike[str]) -> str:
    """Where to open an exported timeline, with the file's full path."""
    path = Path(path).resolve()
    return (
        f"{path} ({path.stat().st_size / 1000:,.0f} kB)\n"
        "Perfetto:      https://ui.perfetto.dev, then 'Open trace file'; the file stays in your browser\n"
        "Chrome's own:  type chrome://tracing into the address bar, then 'Load'"
    )
