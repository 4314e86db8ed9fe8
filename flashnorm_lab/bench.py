"""The lab's own speed, as ratios: both sides of each ratio are measured in one run, in turns.

`decode` sets the model's decode steps through the device against the model as it is, `replay` a prepared step
against the pyopencl calls that it makes, `import_time` a Python that imports the lab against one that does
nothing; `verdicts` times the hazard analysis, in microseconds a launch. Each result carries its definition
and its target.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import hazards, kernels, program, schedule
from .decoding import PROMPT, attach, generate
from .devices.base import Device
from .devices.opencl import OpenCLDevice, OpenCLPlan
from .errors import LabError

SHAPE = (1, 576, 64)
"""Tokens, n and k of the step in `replay`. Small, so that what is measured is calls and not arithmetic."""


@dataclass(frozen=True)
class Ratio:
    """One figure, its definition, and the measurements behind it.

    ``target`` is what it should be at least, or, without ``at_least``, at most; None where there is none.
    """

    name: str
    definition: str
    value: float
    target: float | None
    samples: Mapping[str, Any]
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without one."""
        if self.target is None:
            return None
        return self.value >= self.target if self.at_least else self.value <= self.target

    def as_dict(self) -> dict[str, Any]:
        """The figure as plain values, for JSON."""
        return {
            "definition": self.definition,
            "value": self.value,
            "target": self.target,
            "met": self.met,
            "samples": dict(self.samples),
        }


def in_turns(rounds: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each measure once a round; every other round in reverse, so that a drift meets all alike."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    names = list(measures)
    for number in range(rounds):
        for name in names if number % 2 == 0 else reversed(names):
            found[name].append(measures[name]())
    return found


def decode(model: Any, tokenizer: Any, device: Device, *, tokens: int = 24, rounds: int = 5) -> list[Ratio]:
    """Tokens a second through the device, over those of the model as it is, with the same threads.

    Decode steps only, greedy, behind the lab's own prompt; the three schedules and the stock model take
    turns, ``rounds`` times, and each ratio is of the medians. All three must write the stock model's text.
    """

    def measure(attached: Any) -> float:
        written = list(generate(model, tokenizer, PROMPT, tokens + 1, attached=attached, beyond_end=True))
        texts.append([t.id for t in written])
        return tokens / sum(t.seconds for t in written[1:])

    def through(kind: str) -> Callable[[], float]:
        def run() -> float:
            with attach(model, device, kind) as attached:
                return measure(attached)

        return run

    texts: list[list[int]] = []
    kinds = tuple(schedule.BUILDERS)
    found = in_turns(rounds, {"stock": lambda: measure(None), **{kind: through(kind) for kind in kinds}})
    if any(text != texts[0] for text in texts):
        raise LabError(
            "bench: a schedule with all its edges wrote another text than the model; no speed counts"
        )
    stock = statistics.median(found["stock"])
    ratios = []
    for kind in kinds:
        value = statistics.median(found[kind]) / stock
        what = "the deferred schedule with all edges" if kind == "deferred" else f"the {kind} schedule"
        ratios.append(
            Ratio(
                f"decode_{kind}",
                f"decode tokens/s through {what}, over the stock model's, same threads (medians)",
                value,
                0.8 if kind == "deferred" else None,
                {"tokens_per_s": found[kind], "stock_tokens_per_s": found["stock"], "tokens": tokens},
                at_least=True,
            )
        )
    return ratios


def replay(
    device: OpenCLDevice, *, shape: tuple[int, int, int] = SHAPE, steps: int = 100, rounds: int = 15
) -> list[Ratio]:
    """A prepared deferred step over the same pyopencl calls written by hand.

    Both run on the same buffers, kernels, queues and wait lists, ``steps`` steps a measurement, in turns; the
    device is drained before each. Two ratios of medians: until the last step is enqueued, and until
    it is done.
    """
    if not isinstance(device, OpenCLDevice):
        raise LabError(f"replay is measured on an OpenCL device; {device.name} is {device.kind}")
    built = schedule.deferred(*shape)
    plan = device.prepare(built, steps=8)
    draw = np.random.default_rng(0)
    for name in ("xs", "W_folded"):
        plan.write(name, draw.standard_normal(plan.host[name].shape, np.float32))
    enqueued: dict[str, list[float]] = {"plan": [], "bare": []}

    def timed(name: str, loop: Callable[[int], None]) -> Callable[[], float]:
        def run() -> float:
            device.wait()
            start = time.perf_counter()
            loop(steps)
            enqueued[name].append((time.perf_counter() - start) / steps)
            device.wait()
            return (time.perf_counter() - start) / steps

        return run

    def replayed(count: int) -> None:
        for _ in range(count):
            plan.step()

    bare = _bare_loop(device, plan)
    results = []
    for loop in (replayed, bare):  # before any timing: both must do the same work
        plan.write("zs", np.zeros_like(plan.host["zs"]))
        plan.rewind()
        loop(8)
        results.append(plan.read("zs"))
    if not np.array_equal(*results) or not results[0].any():
        raise LabError("bench: the step written by hand and the prepared step differ; no speed counts")
    measures = {"plan": timed("plan", replayed), "bare": timed("bare", bare)}
    in_turns(2, measures)
    for samples in enqueued.values():
        samples.clear()
    collecting = gc.isenabled()
    gc.disable()
    try:
        finished = in_turns(rounds, measures)
    finally:
        if collecting:
            gc.enable()
    return [
        _replay_ratio("replay_enqueue", "host time to enqueue", enqueued),
        _replay_ratio("replay_done", "time until the device is done with", finished),
    ]


def _replay_ratio(name: str, what: str, found: Mapping[str, Sequence[float]]) -> Ratio:
    value = statistics.median(found["plan"]) / statistics.median(found["bare"])
    microseconds = {side: [1e6 * s for s in samples] for side, samples in found.items()}
    return Ratio(
        name,
        f"{what} a prepared deferred step, over the same pyopencl calls written by hand (medians)",
        value,
        1.5,
        {
            "plan_us": microseconds["plan"],
            "bare_us": microseconds["bare"],
            "min_ratio": min(found["plan"]) / min(found["bare"]),
        },
    )


def _bare_loop(device: OpenCLDevice, plan: OpenCLPlan) -> Callable[[int], None]:
    """The deferred step as a person would write it with pyopencl, over the plan's own memory."""
    import pyopencl as cl

    tokens, n, k = plan.schedule.shape
    memory, eps = plan.memory, np.float32(plan.schedule.eps)
    target = "cpu" if device.is_cpu else "cuda"

    def kernel(name: str, *arguments: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
        code = kernels.load(name)
        made = cl.Kernel(device.program(name, code.defines(target, plan.schedule.dtype)), name)
        made.set_args(*(np.int32(a) if isinstance(a, int) else a for a in arguments))
        grid, block = code.geometry(target, tokens, n, k)
        return made, tuple(g * b for g, b in zip(grid, block, strict=True)), block

    projection = kernel("projection", memory["x"], memory["W_folded"], memory["y"], tokens, n, k)
    inv_rms = kernel("inv_rms", memory["x"], memory["r"], tokens, n, eps)
    post_scale = kernel("post_scale", memory["y"], memory["r"], memory["z"], tokens, k)
    launch, copy = cl.enqueue_nd_range_kernel, cl.enqueue_copy
    main, matrix, vector = (device.queues[stream] for stream in ("main", "matrix", "vector"))
    xs, x, z, zs = (memory[name] for name in ("xs", "x", "z", "zs"))
    x_bytes, z_bytes = (plan.schedule.buffers[name].nbytes for name in ("x", "z"))
    rows = plan.steps

    def loop(count: int) -> None:
        for step in range(count):
            row = step % rows
            here = copy(main, x, xs, byte_count=x_bytes, src_offset=row * x_bytes, dst_offset=0)
            main.flush()
            main.flush()
            y = launch(matrix, *projection, None, [here])
            matrix.flush()
            r = launch(vector, *inv_rms, None, [here])
            vector.flush()
            launch(main, *post_scale, None, [y, r])
            copy(main, zs, z, byte_count=z_bytes, src_offset=0, dst_offset=row * z_bytes)
            main.flush()

    return loop


def verdicts(*, launches: int = 1_000_000) -> list[Ratio]:
    """Microseconds a launch that the hazard analysis takes in one pass over ``launches`` launches.

    On the deferred step with its edges, over and over, its records and waits counted in; and on launches that
    all read one weight and that nobody ever writes. What is kept must not grow on the way, which a test sees
    to. Memory is not collected during a pass, as in `replay`.
    """
    unrolled = program.from_schedule(schedule.deferred(*SHAPE), 2)
    weight = tuple(
        program.Launch(f"layer {n % 30}", stream, (program.reads("W", 0, 64),))
        for n, stream in zip(range(30), itertools.cycle(("a", "b")), strict=False)
    )
    streams = dict.fromkeys(("a", "b"), program.Stream())
    loads = {
        "hazards_step": (unrolled.steps, unrolled.streams, unrolled.buffers, "of deferred steps and edges"),
        "hazards_weight": (weight, streams, {"W": 64}, "that read one weight"),
    }
    ratios = []
    for name, (steps, on, buffers, what) in loads.items():
        each = sum(isinstance(s, program.Launch) for s in steps)
        samples = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in range(3):
                checker = hazards.Checker(on, buffers)
                start = time.perf_counter()
                for _ in range(-(-launches // each)):
                    checker.feed_all(steps)
                samples.append(1e6 * (time.perf_counter() - start) / checker.launches)
                if checker.verdict().hazards:
                    raise LabError("bench: a clean schedule was found racy; no speed counts")
        finally:
            if collecting:
                gc.enable()
        ratios.append(
            Ratio(
                name,
                f"microseconds a launch to judge {launches:,} launches {what} in one pass (median)",
                statistics.median(samples),
                3.0,
                {"us_a_launch": samples},
            )
        )
    return ratios


def import_time(rounds: int = 15) -> Ratio:
    """Seconds that `import flashnorm_lab` takes in a fresh interpreter, beyond those that Python takes."""

    def fresh(program: str) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", program], check=True, cwd=here)
            return time.perf_counter() - start

        return run

    here = Path(__file__).resolve().parent.parent
    measures = {"python": fresh("pass"), "import": fresh("import flashnorm_lab")}
    in_turns(1, measures)  # the first start reads everything from disk
    found = in_turns(rounds, measures)
    value = statistics.median(found["import"]) - statistics.median(found["python"])
    return Ratio(
        "import",
        "seconds of a fresh python that runs `import flashnorm_lab`, less one that does nothing (medians)",
        value,
        0.1,
        {"import_s": found["import"], "python_s": found["python"]},
    )


def tiny_model() -> tuple[Any, Any]:
    """``(model, tokenizer)``: a random two-layer Llama over single bytes, to try the benchmark quickly."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval(), _Bytes()


class _Bytes:
    """A tokenizer whose tokens are bytes."""

    eos_token_id = None

    def __call__(self, text: str, return_tensors: str) -> dict[str, Any]:
        import torch

        return {"input_ids": torch.tensor([list(text.encode())])}

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode("latin-1")
