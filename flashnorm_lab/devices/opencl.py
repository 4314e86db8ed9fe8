"""Schedules on any OpenCL device, PoCL on the CPU by default.

The CUDA source of ``kernels/`` runs here after a mechanical translation, on real in-order queues with real
events. Where a CPU has two cores or more it is split in two: one half is the matrix unit, the other the
vector unit, and main may use both. So two queues really run at once, and a missing edge is a real race.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import os
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import kernels
from ..errors import LabError
from ..schedule import Copy, HostRead, HostWrite, Launch, Record, Schedule, Synchronize, Wait
from .base import Device, Force, Gate, Plan, check_numbers, check_shape, check_steps, rows

if TYPE_CHECKING:
    from ._recording import CallRecorder

STREAMS = ("main", "matrix", "vector")
POCL = "Portable Computing Language"
PAGE = 4096
"""Alignment of host memory that a CPU device uses in place."""


def platforms() -> list[Any]:
    """Every OpenCL platform that has a device. ``LabError`` where there is none, with what to install."""
    os.environ.setdefault("PYOPENCL_COMPILER_OUTPUT", "0")
    try:
        import pyopencl as cl
    except ImportError as problem:
        raise LabError(f"pyopencl cannot be imported ({problem}); run `make setup`") from None
    try:
        found = [p for p in cl.get_platforms() if p.get_devices()]
    except cl.Error:
        found = []
    if not found:
        raise LabError(
            "no OpenCL platform was found; PoCL is one for a CPU: `flashnorm-lab doctor` says how to get it"
        )
    return found


def open_device(wanted: str = "", reason: str = "asked for by name", split: bool = True) -> OpenCLDevice:
    """PoCL, else the first device found, or the one whose platform or own name contains ``wanted``.

    ``split=False`` keeps a CPU whole: the three streams then share all of its cores.
    """
    device = copy.copy(_open(wanted, split))  # one set of queues and programs, and each its own reason
    device.reason = reason
    return device


@functools.lru_cache(maxsize=4)
def _open(wanted: str, split: bool) -> OpenCLDevice:
    choices = [(p, d) for p in platforms() for d in p.get_devices()]
    if wanted:
        matching = [c for c in choices if wanted.lower() in f"{c[0].name} {c[1].name}".lower()]
        if not matching:
            known = "; ".join(f"{p.name}: {d.name.strip()}" for p, d in choices)
            raise LabError(f"no OpenCL platform or device is named like {wanted!r}; there are {known}")
        return OpenCLDevice(*matching[0], split=split)
    choices.sort(key=lambda c: POCL not in c[0].name)
    return OpenCLDevice(*choices[0], split=split)


class OpenCLDevice(Device):
    """An OpenCL device with three in-order, profiled queues. See `open_device`."""

    kind = "opencl"

    def __init__(self, platform: Any, device: Any, split: bool = True) -> None:
        import pyopencl as cl

        super().__init__()
        self._cl = cl
        self.platform, self.device = platform, device
        self.reason = ""
        self.is_cpu = bool(device.type & cl.device_type.CPU)
        self.in_place = self.is_cpu and POCL in platform.name
        """Whether buffers are host memory that the device uses where it lies. OpenCL promises that only
        between a map and an unmap; PoCL's CPU device has no other memory, so there it always holds."""
        self.halves = _halves(cl, device) if split and self.is_cpu else []
        parts = [device, *self.halves]
        self.context = cl.Context(parts)
        matrix, vector = self.halves or (device, device)
        profiled = cl.command_queue_properties.PROFILING_ENABLE
        units = dict(zip(STREAMS, (device, matrix, vector), strict=True))
        self.queues = {s: cl.CommandQueue(self.context, u, properties=profiled) for s, u in units.items()}
        self.transfer = cl.CommandQueue(self.context, device)
        self.last: dict[str, Any] = dict.fromkeys(STREAMS)
        """The newest command of each queue: what an event recorded now would stand for."""
        cores = device.max_compute_units
        self.name = f"{device.name.strip()} ({cores} core{'s' * (cores != 1)}), {_version(platform)}"
        self.program = functools.cache(self._program)

    def describe(self) -> dict[str, Any]:
        cores = self.device.max_compute_units
        first = len(self.halves) and self.halves[0].max_compute_units
        whole = f"all {cores} cores" if cores > 1 else "the one core"
        matrix = f"{first} of {cores} cores" if self.halves else whole
        vector = f"the other {cores - first}" if self.halves else whole
        return {
            "kind": self.kind,
            "name": self.name,
            "reason": self.reason,
            "driver": f"{self.platform.name} {self.platform.version}".strip(),
            "versions": {"pyopencl": self._cl.VERSION_TEXT, "opencl": self.device.version.strip()},
            "streams": {"main": whole, "matrix": matrix, "vector": vector},
        }

    def _program(self, name: str, options: tuple[str, ...]) -> Any:
        """A built program. The kernel objects made from it each carry their own arguments."""
        source = kernels.load(name).opencl_source()
        try:
            return self._cl.Program(self.context, source).build(options=list(options))
        except self._cl.Error as problem:
            told = (line.strip() for line in str(problem).splitlines())
            cause = next((line for line in told if "error" in line), "the compiler does not say why")
            raise LabError(f"kernel {name} does not compile on {self.name}: {cause}") from None

    def prepare(
        self, schedule: Schedule, steps: int = 1, share: Mapping[str, Any] | None = None
    ) -> OpenCLPlan:
        check_steps(steps)
        if schedule.dtype != "float32":
            raise LabError(
                f"dtype={schedule.dtype!r}: OpenCL devices run float32 here: PoCL 3.0 has no fp16. Use CUDA"
            )
        return OpenCLPlan(self, schedule, steps, share or {})

    def wait(self) -> None:
        for queue in self.queues.values():
            queue.finish()

    def new_recorder(self) -> CallRecorder:
        from ._recording import CallRecorder

        return CallRecorder(self)

    def clock_offset(self, tries: int = 32) -> tuple[int, int]:
        """``(offset, error)`` in ns: host time (``perf_counter_ns``) = device time + offset, ± error.

        OpenCL stamps a command with its own clock when the host queues it, and the host reads its clock
        just before and after. The tightest of some tries bounds the offset; error is half that bracket.
        """
        cl = self._cl
        best: tuple[int, int] | None = None
        for _ in range(tries):
            before = time.perf_counter_ns()
            event = cl.enqueue_marker(self.queues["main"])
            after = time.perf_counter_ns()
            event.wait()
            if best is None or after - before < 2 * best[1]:
                best = ((before + after) // 2 - event.profile.queued, (after - before + 1) // 2)
        assert best is not None
        return best


def _halves(cl: Any, device: Any) -> list[Any]:
    """The two halves of a CPU, or nothing where it has one core or does not split."""
    cores = device.max_compute_units
    if cores < 2:
        return []
    by_counts = cl.device_partition_property.BY_COUNTS
    with contextlib.suppress(cl.Error):
        return list(device.create_sub_devices([by_counts, cores // 2, cores - cores // 2]))
    return []


def _version(platform: Any) -> str:
    words = platform.version.split()
    if "PoCL" in words:
        return " ".join(words[words.index("PoCL") :][:2]).rstrip(",")
    return platform.name.strip()


@dataclass(frozen=True)
class _Command:
    """One call of the step. ``text`` is the call in Python, with ``{wait}`` where its wait list goes."""

    kind: str  # "enqueue", "record", "synchronize" or "transfer"
    label: str
    stream: str
    text: str
    waits: tuple[str, ...] = ()
    call: Any = None

    def with_wait(self, wait: str) -> str:
        return self.text.replace("{wait}", wait)


class OpenCLPlan(Plan):
    """A schedule bound to OpenCL buffers and kernels."""

    device: OpenCLDevice

    def __init__(
        self, device: OpenCLDevice, schedule: Schedule, steps: int, share: Mapping[str, Any]
    ) -> None:
        cl = device._cl
        self.device, self.schedule, self.steps = device, schedule, steps
        self._done = [0]  # steps so far; the step's own code counts here, so that it need not hold the plan
        self._recorded: dict[str, Any] = {}
        """Events of the step before, for a wait that comes before this step's record."""
        self.host: dict[str, np.ndarray] = {}
        self.memory: dict[str, Any] = {}
        for name in share:
            self.buffer(name)
        flags = cl.mem_flags.READ_WRITE | (
            cl.mem_flags.USE_HOST_PTR if device.in_place else cl.mem_flags.COPY_HOST_PTR
        )
        for name, buffer in schedule.buffers.items():
            shape = rows(buffer, steps)
            if name in share:
                array = _shared(name, share[name], shape)
            else:
                array = _aligned(name, shape)
            self.host[name] = array
            try:
                self.memory[name] = cl.Buffer(device.context, flags, hostbuf=array)
            except cl.Error as problem:
                raise LabError(f"{name} {list(shape)} does not fit on {device.name}: {problem}") from None
        self._names: dict[str, Any] = {
            "done": self._done,
            "recorded": self._recorded,
            "device": device,
            "last": device.last,
            "launch": cl.enqueue_nd_range_kernel,
            "copy": cl.enqueue_copy,
            "barrier": cl.enqueue_barrier,
            **device.queues,
        }
        self._commands = self._bind()
        self.source = self._write_step()
        exec(self.source, self._names)
        self._step: Callable[[], None] = self._names["step"]
        # Commands may still be using this plan's host memory when the last reference to the plan goes.
        weakref.finalize(self, device.wait).atexit = False

    def _bind(self) -> list[_Command]:
        """The step's commands, each call written out once as text over names that are bound here.

        An event recorded on an in-order queue is the event of the newest command there. A wait is the wait
        list of the next command on its queue, which in an in-order queue holds back all that follow, too.
        """
        commands: list[_Command] = []
        waiting: dict[str, list[str]] = {s: [] for s in STREAMS}
        for number, s in enumerate(self.schedule.steps):
            match s:
                case Launch() | Copy():
                    text = self._launch(s, number) if isinstance(s, Launch) else self._copy(s, number)
                    commands.append(_Command("enqueue", s.name, s.stream, text, tuple(waiting[s.stream])))
                    waiting[s.stream] = []
                case Wait():
                    waiting[s.stream].append(s.event)
                case Record():
                    commands.append(_Command("record", s.event, s.stream, f"{s.stream}.flush()"))
                case Synchronize():
                    label = f"wait for {s.stream or 'every stream'}"
                    text = f"{s.stream}.finish()" if s.stream else "device.wait()"
                    commands.append(_Command("synchronize", label, s.stream or "", text))
                case HostWrite() | HostRead() if not self.device.in_place:
                    to_device = isinstance(s, HostWrite)
                    label = f"host {'write' if to_device else 'read'} of {s.buffer}"
                    self._names[f"transfer{number}"] = self._transfer(s.buffer, to_device)
                    commands.append(_Command("transfer", label, "", f"transfer{number}()"))
        for stream, events in waiting.items():
            if events:
                text = f"barrier({stream}, wait_for={{wait}})"
                commands.append(_Command("enqueue", "barrier", stream, text, tuple(events)))
        return [
            replace(c, call=eval(f"lambda row, wait: {c.with_wait('wait')}", self._names)) for c in commands
        ]

    def _launch(self, launch: Launch, number: int) -> str:
        tokens, n, k = self.schedule.shape
        code = kernels.load(launch.kernel)
        target = "cpu" if self.device.is_cpu else "cuda"
        program = self.device.program(launch.kernel, code.defines(target, self.schedule.dtype))
        kernel = self.device._cl.Kernel(program, launch.kernel)
        arguments = []
        for value, argument in zip(launch.arguments, code.arguments, strict=True):
            if argument.is_buffer:
                arguments.append(self.memory[str(value)])
            else:
                arguments.append(np.int32(value) if argument.ctype == "int" else np.float32(value))
        kernel.set_args(*arguments)
        grid, block = code.geometry(target, tokens, n, k)
        threads = tuple(g * b for g, b in zip(grid, block, strict=True))
        self._names |= {f"kernel{number}": kernel, f"threads{number}": threads, f"block{number}": block}
        return f"launch({launch.stream}, kernel{number}, threads{number}, block{number}, None, {{wait}})"

    def _copy(self, step: Copy, number: int) -> str:
        buffers = self.schedule.buffers
        size = buffers[step.source].nbytes
        self._names[f"source{number}"] = self.memory[step.source]
        self._names[f"target{number}"] = self.memory[step.target]
        source, target = (
            f"row * {size}" if buffers[name].per_step else "0" for name in (step.source, step.target)
        )
        return (
            f"copy({step.stream}, target{number}, source{number}, byte_count={size}, "
            f"src_offset={source}, dst_offset={target}, wait_for={{wait}})"
        )

    def _write_step(self) -> str:
        """`step` as Python text with every lookup done: the calls themselves and hardly anything else."""
        lines = [f"row = done[0] % {self.steps}"]
        newest: set[str] = set()  # streams that this step has already given a command
        sure: set[str] = set()  # events that surely stand for a command
        known: set[str] = set()  # events that this step has already recorded
        carried: set[str] = set()  # events that a wait takes from the step before
        flushed: set[str] = set()
        for c in self._commands:
            match c.kind:
                case "enqueue":
                    carried |= set(c.waits) - known
                    wait = ", ".join(e if e in known else f"recorded.get({e!r})" for e in c.waits)
                    if not c.waits:
                        wait = "None"
                    elif sure.issuperset(c.waits):
                        wait = f"[{wait}]"
                    else:  # an event recorded before its stream's first command stands for nothing
                        wait = f"[e for e in ({wait},) if e is not None]"
                    lines.append(f"after_{c.stream} = {c.with_wait(wait)}")
                    newest.add(c.stream)
                    flushed.discard(c.stream)
                case "record":
                    given = c.stream in newest
                    lines.append(f"{c.label} = " + (f"after_{c.stream}" if given else f"last[{c.stream!r}]"))
                    lines.append(c.text)
                    known.add(c.label)
                    flushed.add(c.stream)
                    if given:
                        sure.add(c.label)
                case _:
                    lines.append(c.text)
        lines += [f"{stream}.flush()" for stream in STREAMS if stream in newest - flushed]
        self._recorded.update(dict.fromkeys(carried & known))
        lines += [f"recorded[{event!r}] = {event}" for event in sorted(carried & known)]
        lines += [f"last[{stream!r}] = after_{stream}" for stream in STREAMS if stream in newest]
        lines.append("done[0] += 1")
        return "def step():\n" + "".join(f"    {line}\n" for line in lines)

    def _transfer(self, name: str, to_device: bool) -> Callable[[], Any]:
        """A copy between host and device memory, for a device that does not use host memory in place."""
        ends = (self.memory[name], self.host[name]) if to_device else (self.host[name], self.memory[name])
        return functools.partial(self.device._cl.enqueue_copy, self.device.transfer, *ends)

    def _replay(self) -> None:
        self._step()

    def _gate(self, force: Force | None) -> _Gate:
        return _Gate(self.device, force)

    def _observed_step(self, gate: _Gate | None) -> None:
        device, row, recorder = self.device, self._done[0] % self.steps, self.device.recorder
        events = {name: (e, recorder.number(e) if recorder else -1) for name, e in self._recorded.items()}

        def call(name: str, category: str, function: Callable[[], Any]) -> Any:
            return recorder.host(name, category, function) if recorder else function()

        for c in self._commands:
            if c.kind == "enqueue":
                waits = [(name, *events.get(name, (None, -1))) for name in c.waits]
                wait_for = [event for _, event, _ in waits if event is not None]
                if gate is not None:
                    for name in c.waits:
                        gate.waits(c.stream, name)
                    if gate.holds(c.label):
                        wait_for.append(gate.event)
                event = call(c.label, "launch", functools.partial(c.call, row, wait_for or None))
                device.last[c.stream] = event
                if recorder:
                    recorder.device(c.label, c.stream, event, waits)
                if gate is not None:
                    gate.given(c.label, c.stream, event)
                continue
            if c.kind == "record":
                events[c.label] = (device.last[c.stream], recorder.newest(c.stream) if recorder else -1)
                if gate is not None:
                    gate.recorded(c.label, c.stream)
            elif c.kind == "synchronize" and gate is not None:
                gate.synchronizing(c.stream or None)
            category = "copy" if c.kind == "transfer" else c.kind
            label = f"record {c.label}" if c.kind == "record" else c.label
            call(label, category, functools.partial(c.call, row, None))
        for queue in device.queues.values():
            queue.flush()
        self._recorded.update({name: events[name][0] for name in self._recorded.keys() & events.keys()})
        self._done[0] += 1

    def rewind(self) -> None:
        self._done[0] = 0

    def write(self, name: str, values: np.ndarray) -> None:
        values = check_numbers(name, rows(self.buffer(name), self.steps), values)
        self.device.wait()
        self.host[name][...] = values
        if not self.device.in_place:
            self._transfer(name, to_device=True)()

    def read(self, name: str) -> np.ndarray:
        self.buffer(name)
        self.device.wait()
        if not self.device.in_place:
            self._transfer(name, to_device=False)()
        return self.host[name].copy()

    def tensor(self, name: str) -> Any:
        import torch

        self.buffer(name)
        at_host = {s.buffer for s in self.schedule.steps if isinstance(s, HostWrite | HostRead)}
        if not self.device.in_place and name not in at_host:
            raise LabError(f"{name} lies in the device's own memory, which torch cannot address; use read()")
        return torch.from_numpy(self.host[name])


class _Gate(Gate):
    """A user event in the held command's wait list."""

    def __init__(self, device: OpenCLDevice, force: Force | None) -> None:
        super().__init__(force)
        self.device = device
        self.event = device._cl.UserEvent(device.context) if force else None
        self._complete = device._cl.command_execution_status.COMPLETE

    def finish(self, name: str, work: Any) -> None:
        work.wait()

    def is_done(self, work: Any) -> bool:
        for queue in self.device.queues.values():
            queue.flush()
        return work.command_execution_status == self._complete

    def let_go(self) -> None:
        self.event.set_status(self._complete)

    def drain(self) -> None:
        self.device.wait()


def _aligned(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Float32 NaNs at the start of a page, so that the device can use the memory in place."""
    size = 4 * math.prod(shape)
    try:
        raw = np.empty(size + PAGE, np.uint8)
    except (MemoryError, ValueError):
        raise LabError(
            f"{name} {list(shape)} takes {size / 2**30:,.0f} GiB, more than there is; choose a smaller shape"
        ) from None
    start = -raw.ctypes.data % PAGE
    array = raw[start : start + size].view(np.float32).reshape(shape)
    array.fill(np.nan)
    return array


def _shared(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    dtype = str(getattr(values, "dtype", "")).removeprefix("torch.")
    if hasattr(values, "detach"):
        contiguous, values = values.is_contiguous(), values.detach().cpu()
    elif isinstance(values, np.ndarray):
        contiguous = values.flags.c_contiguous
    else:
        raise LabError(f"{name} is a {type(values).__name__}; expected a torch tensor or a numpy array")
    check_shape(name, shape, tuple(values.shape))
    if dtype != "float32" or not contiguous:
        layout = "contiguous" if contiguous else "not contiguous"
        raise LabError(f"{name} is {dtype} and {layout}; expected contiguous float32")
    return values if isinstance(values, np.ndarray) else values.numpy()
