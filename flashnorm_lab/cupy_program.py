"""A schedule as the CuPy program a person would write by hand. It runs as it stands on an NVIDIA GPU.

Two wirings of one step differ in the lines of their edges (event, record, wait) and in no other line, so
that a diff of two programs shows what was left out.
"""

from __future__ import annotations

from . import kernels
from .schedule import (
    Buffer,
    Copy,
    External,
    HostRead,
    HostWrite,
    Launch,
    Record,
    Schedule,
    Step,
    Synchronize,
    Wait,
)

STEPS = 32
"""How often the program runs its step."""

INPUTS = ("x", "g", "W", "W_folded")
WIDTH = 100
_STORED_AS = {"float32": "float32", "float16": "float16", "bfloat16": "uint16"}


def write(schedule: Schedule) -> str:
    """The program's text: every stream, event, buffer and kernel, ``step(t)``, and the loop that runs it."""
    tokens, n, k = schedule.shape
    bfloat16 = any(b.dtype == "bfloat16" for b in schedule.buffers.values())
    lines = [f"# The {schedule.name} step of FlashNorm: tokens={tokens}, n={n}, k={k}, {schedule.dtype}."]
    lines += ["import cupy as cp", "import numpy as np"]
    lines += ["import torch"] * (schedule.io == "torch")
    lines += ["", "from flashnorm_lab import kernels", "", f"steps = {STEPS}"]
    lines.append(
        f"tokens, n, k, eps = np.int32({tokens}), np.int32({n}), np.int32({k}), np.float32({schedule.eps!r})"
    )
    lines += ["", *(_stream(s, schedule.io) for s in schedule.streams)]
    if schedule.io == "host":
        lines.append("transfer = cp.cuda.Stream(non_blocking=True)  # the host's own copies, each waited for")
    lines += [f"{e} = cp.cuda.Event(disable_timing=True)" for e in schedule.all_edges if e in schedule.edges]
    if bfloat16:
        lines += ["", "", "def bfloat16(values):  # the upper half of each float32"]
        lines += ["    return (values.view(np.uint32) >> 16).astype(np.uint16)", ""]
    lines += ["", "# Inputs are random. All else starts as NaN, so that a read before any write shows."]
    lines.append("rng = np.random.default_rng(0)")
    lines += [_allocation(b, schedule) for b in schedule.buffers.values()]
    for s in schedule.steps:
        if isinstance(s, HostWrite):
            lines.append(f"{s.buffer}_host = {_random(schedule.buffers[s.buffer])}")
        elif isinstance(s, HostRead):
            lines.append(f"{s.buffer}_host = {_nan(schedule.buffers[s.buffer], 'np')}")
    lines += ["# The fills above run on the default stream, and streams made with non_blocking=True do not"]
    lines += ["# wait for that one. So wait here, once.", "cp.cuda.runtime.deviceSynchronize()"]
    lines += ["", "", "def compiled(name, *options):"]
    lines += ["    module = cp.RawModule(code=kernels.load(name).cuda_source(), options=options)"]
    lines += ["    return module.get_function(name)", "", ""]
    for name in dict.fromkeys(s.kernel for s in schedule.launches):
        lines += _compiled(name, kernels.load(name).defines("cuda", schedule.dtype))
    lines += ["", "", "def step(t):"]
    for s in schedule.steps:
        lines += [f"    {line}" for line in _step(s, schedule)]
    lines += ["", "", "for t in range(steps):", "    step(t)", "cp.cuda.runtime.deviceSynchronize()"]
    return "\n".join(lines) + "\n"


def _step(s: Step, schedule: Schedule) -> list[str]:
    match s:
        case Launch():
            code = kernels.load(s.kernel)
            grid, block = code.geometry("cuda", *schedule.shape)
            pairs = zip(s.arguments, code.arguments, strict=True)
            arguments = ", ".join(_argument(value, a, schedule) for value, a in pairs)
            return [f"with {s.stream}:", f"    {s.kernel}({grid}, {block}, ({arguments}))"]
        case Copy():
            source, target = _row(schedule, s.source), _row(schedule, s.target)
            return [f"with {s.stream}:", f"    cp.copyto({target}, {source})"]
        case External():
            return [f"# here {s.name}, on {s.stream}"]
        case Record():
            return [f"{s.event}.record({s.stream})"]
        case Wait():
            return [f"{s.stream}.wait_event({s.event})"]
        case Synchronize():
            return [f"{s.stream}.synchronize()" if s.stream else "cp.cuda.runtime.deviceSynchronize()"]
        case HostWrite():
            return [f"{s.buffer}.set({s.buffer}_host, stream=transfer)", "transfer.synchronize()"]
        case HostRead():
            return [f"{s.buffer}.get(out={s.buffer}_host, stream=transfer)  # waits until it has arrived"]


def _stream(name: str, io: str) -> str:
    if name == "main" and io == "torch":
        return "main = cp.cuda.Stream.from_external(torch.cuda.current_stream())"
    return f"{name} = cp.cuda.Stream(non_blocking=True)"


def _allocation(b: Buffer, schedule: Schedule) -> str:
    arrives = {s.target for s in schedule.steps if isinstance(s, Copy)}
    arrives |= {s.buffer for s in schedule.steps if isinstance(s, HostWrite)}
    if b.name == "xs" or (b.name in INPUTS and b.name not in arrives):
        return f"{b.name} = cp.asarray({_random(b)})"
    return f"{b.name} = {_nan(b, 'cp')}"


def _shape(b: Buffer) -> str:
    return f"(steps, {', '.join(map(str, b.shape))})" if b.per_step else repr(b.shape)


def _random(b: Buffer) -> str:
    values = f"rng.standard_normal({_shape(b)}, np.float32)"
    if b.dtype == "bfloat16":
        return f"bfloat16({values})"
    return values if b.dtype == "float32" else f"{values}.astype(np.float16)"


def _nan(b: Buffer, module: str) -> str:
    nan = "0x7fff" if b.dtype == "bfloat16" else f"{module}.nan"
    return f"{module}.full({_shape(b)}, {nan}, {module}.{_STORED_AS[b.dtype]})"


def _compiled(name: str, options: tuple[str, ...]) -> list[str]:
    arguments = ", ".join(f'"{word}"' for word in (name, *options))
    line = f"{name} = compiled({arguments})"
    return [line] if len(line) <= WIDTH else [f"{name} = compiled(", f"    {arguments}", ")"]


def _row(schedule: Schedule, buffer: str) -> str:
    return f"{buffer}[t]" if schedule.buffers[buffer].per_step else buffer


def _argument(value: str | int | float, argument: kernels.Argument, schedule: Schedule) -> str:
    """A buffer or a size by its name, any other number in the type that the kernel takes."""
    sizes = dict(zip(("tokens", "n", "k"), schedule.shape, strict=True), eps=schedule.eps)
    if argument.is_buffer:
        return str(value)
    if sizes.get(argument.name) == value:
        return argument.name
    return f"np.int32({value})" if argument.ctype == "int" else f"np.float32({value!r})"
