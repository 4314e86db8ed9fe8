"""Schedules on an NVIDIA GPU, through CuPy: the device that the kernels were written for.

The three streams are CUDA streams, the edges CUDA events. With ``io="torch"`` *main* is the stream that
torch was using when the plan was made, and tensors are shared with torch by DLPack, without copies.
"""

from __future__ import annotations

import copy
import functools
import importlib.metadata
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import kernels
from ..errors import LabError
from ..schedule import Buffer, Copy, HostRead, HostWrite, Launch, Record, Schedule, Synchronize, Wait
from .base import Device, Force, Gate, Plan, check_numbers, check_shape, check_steps, rows

if TYPE_CHECKING:
    from ._cupti import CuptiRecorder

STREAMS = ("main", "matrix", "vector")
FORCE_LIMIT_S = 20.0
"""How long a forced step may take before it is given up."""

POISON = 0xFF
"""Every byte of memory before its first write: a NaN in float32, in float16 and in bfloat16."""

_NUMPY = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(np.uint16)}
"""How an array of each storage type lies in CuPy and numpy, neither of which knows bfloat16."""


def unusable() -> str | None:
    """Why CUDA cannot be used here, in words that complete "since …"; None where it can."""
    try:
        _open()
    except LabError as problem:
        return str(problem)
    return None


def open_device(reason: str = "asked for by name") -> CudaDevice:
    """The current NVIDIA GPU (the first visible one unless the program chose another).

    ``LabError`` with the cause where none can be used.
    """
    device = copy.copy(_open())  # one set of streams and modules, and each its own reason
    device.reason = reason
    return device


@functools.lru_cache(maxsize=1)
def _open() -> CudaDevice:
    """The device, once a kernel was seen to run on it."""
    try:
        import cupy as cp
    except ImportError as problem:
        raise LabError(f"CuPy cannot be imported ({_first_line(problem)})") from None
    try:
        count = cp.cuda.runtime.getDeviceCount()
    except cp.cuda.runtime.CUDARuntimeError as problem:
        if cp.cuda.runtime.driverGetVersion() == 0:
            raise LabError("there is no NVIDIA driver") from None
        raise LabError(f"there is no usable NVIDIA driver ({_first_line(problem)})") from None
    if count == 0:
        raise LabError("the NVIDIA driver shows no GPU")
    try:
        device = CudaDevice(cp)
        sink = cp.empty((1,), cp.float32)
        device.function("spin", "float32")((1, 1), (1, 1), (sink, np.int32(1)), 0, device.queues["main"])
        device.wait()
    except LabError:
        raise
    except Exception as problem:  # the driver, NVRTC and CuPy each have errors of their own
        raise LabError(f"the GPU was found but a first kernel did not run ({_first_line(problem)})") from None
    return device


class CudaDevice(Device):
    """An NVIDIA GPU with three streams that do not wait for the default stream. See `open_device`."""

    kind = "cuda"

    def __init__(self, cp: Any) -> None:
        super().__init__()
        self._cp = cp
        self.reason = ""
        runtime = cp.cuda.runtime
        properties = runtime.getDeviceProperties(runtime.getDevice())
        self.arch = f"sm_{properties['major']}{properties['minor']}"
        self.units = int(properties["multiProcessorCount"])
        self.driver = _version(runtime.driverGetVersion())
        model = properties["name"]
        model = model.decode() if isinstance(model, bytes) else model
        self.name = f"{model} ({self.arch}), CUDA driver {self.driver}"
        self.queues = {name: cp.cuda.Stream(non_blocking=True) for name in STREAMS}
        """The three streams. A plan with ``io="torch"`` has torch's stream for main instead."""
        self.transfer = cp.cuda.Stream(non_blocking=True)
        self.function = functools.cache(self._function)

    def describe(self) -> dict[str, Any]:
        whole = f"all {self.units} multiprocessors"
        return {
            "kind": self.kind,
            "name": self.name,
            "reason": self.reason,
            "driver": f"CUDA driver {self.driver}",
            "versions": {
                "cupy": self._cp.__version__,
                "cuda runtime": _version(self._cp.cuda.runtime.runtimeGetVersion()),
                **_installed("torch"),
            },
            "streams": dict.fromkeys(STREAMS, whole),
        }

    def _function(self, name: str, dtype: str) -> Any:
        """A compiled kernel, as the object whose call takes the stream too."""
        code = kernels.load(name)
        module = self._cp.RawModule(code=code.cuda_source(), options=code.defines("cuda", dtype))
        try:
            return module.get_function(name).kernel
        except self._cp.cuda.compiler.CompileException as problem:
            raise LabError(f"kernel {name} does not compile on {self.name}: {_first_line(problem)}") from None

    def prepare(self, schedule: Schedule, steps: int = 1, share: Mapping[str, Any] | None = None) -> CudaPlan:
        """As every device; ``share`` takes CuPy arrays and torch tensors.

        Memory on the GPU is used in place. Memory of the host (numpy arrays, torch tensors on the CPU) is
        used in place where the host reads or writes it within the step (``io="host"``), else copied once.
        """
        check_steps(steps)
        return CudaPlan(self, schedule, steps, share or {})

    def wait(self) -> None:
        self._cp.cuda.runtime.deviceSynchronize()

    def new_recorder(self) -> CuptiRecorder:
        from ._cupti import CuptiRecorder

        return CuptiRecorder(self)

    def clock_offset(self) -> tuple[int, int]:
        """``(offset, error)`` in ns: host time (``perf_counter_ns``) = the profiler's time + offset, ± error.

        The profiler counts from 1970. A recording tightens this with its own calls; see `_cupti`.
        """
        before = time.perf_counter_ns()
        since_1970 = time.time_ns()
        after = time.perf_counter_ns()
        return (before + after) // 2 - since_1970, (after - before + 1) // 2


class _Command(NamedTuple):
    """One call of the step, with everything looked up."""

    kind: str  # "launch", "copy", "record", "wait", "synchronize" or "transfer"
    label: str
    stream: str
    call: Callable[[], Any]
    what: Any = None  # a launch's kernel; the edge of a record or a wait; the stream that the host waits for


class _Count:
    """How many steps a plan was given. Apart from the plan, so that its calls need not hold on to it."""

    steps = 0


class CudaPlan(Plan):
    """A schedule bound to GPU memory, streams, events and compiled kernels."""

    device: CudaDevice

    def __init__(self, device: CudaDevice, schedule: Schedule, steps: int, share: Mapping[str, Any]) -> None:
        self.device, self.schedule, self.steps = device, schedule, steps
        self._done = _Count()
        self.streams = dict(device.queues)
        if schedule.io == "torch":
            self.streams["main"] = _torch_stream(device._cp) or device.queues["main"]
        self.events = {e: device._cp.cuda.Event(disable_timing=True) for e in schedule.all_edges}
        for name in share:
            self.buffer(name)
        at_host = {s.buffer for s in schedule.steps if isinstance(s, HostWrite | HostRead)}
        self.arrays: dict[str, Any] = {}
        """Memory on the GPU, a CuPy array for each buffer."""
        self.host: dict[str, np.ndarray] = {}
        """Memory of the host, for the buffers that the host writes or reads within the step."""
        for buffer in schedule.buffers.values():
            self._allocate(buffer, share.get(buffer.name), buffer.name in at_host)
        device.wait()  # the fills ran on the default stream, and our streams do not wait for that one
        self._commands = self._bind()
        self._calls = tuple(c.call for c in self._commands)
        # Memory goes back to its pool with the plan; its next owner must not find a kernel at work there.
        weakref.finalize(self, device.wait).atexit = False

    @property
    def count(self) -> int:
        """How many steps were given to the device so far."""
        return self._done.steps

    def _allocate(self, buffer: Buffer, given: Any, at_host: bool) -> None:
        cp, shape, stored = self.device._cp, rows(buffer, self.steps), _NUMPY[buffer.dtype]
        given = None if given is None else _shared(cp, buffer, given, shape)
        if given is not None and not isinstance(given, np.ndarray):
            self.arrays[buffer.name] = given
            given = None
        else:
            array = self.arrays[buffer.name] = cp.empty(shape, stored)
            cp.cuda.runtime.memsetAsync(array.data.ptr, POISON, array.nbytes, 0)
            if given is not None:
                array.set(given)
        if at_host:
            if given is None:
                pinned = cp.cuda.alloc_pinned_memory(buffer.nbytes)
                given = np.frombuffer(pinned, np.uint8, buffer.nbytes)
                given.fill(POISON)
                given = given.view(stored).reshape(shape)
            self.host[buffer.name] = given

    def _bind(self) -> list[_Command]:
        commands = []
        for s in self.schedule.steps:
            match s:
                case Launch():
                    commands.append(_Command("launch", s.name, s.stream, self._launch(s), s.kernel))
                case Copy():
                    commands.append(_Command("copy", s.name, s.stream, self._copy(s), "Memcpy DtoD"))
                case Record():
                    call = functools.partial(self.events[s.event].record, self.streams[s.stream])
                    commands.append(_Command("record", f"record {s.event}", s.stream, call, s.event))
                case Wait():
                    call = functools.partial(self.streams[s.stream].wait_event, self.events[s.event])
                    commands.append(_Command("wait", f"wait for {s.event}", s.stream, call, s.event))
                case Synchronize():
                    call = self.streams[s.stream].synchronize if s.stream else self.device.wait
                    label = f"wait for {s.stream or 'every stream'}"
                    commands.append(_Command("synchronize", label, "", call, s.stream))
                case HostWrite():
                    label = f"host write of {s.buffer}"
                    commands.append(_Command("transfer", label, "", self._to_device(s.buffer)))
                case HostRead():
                    label = f"host read of {s.buffer}"
                    commands.append(_Command("transfer", label, "", self._to_host(s.buffer)))
        return commands

    def _launch(self, launch: Launch) -> Callable[[], Any]:
        code = kernels.load(launch.kernel)
        function = self.device.function(launch.kernel, self.schedule.dtype)
        arguments: list[Any] = []
        for value, argument in zip(launch.arguments, code.arguments, strict=True):
            if argument.is_buffer:
                arguments.append(self.arrays[str(value)])
            else:
                arguments.append(np.int32(value) if argument.ctype == "int" else np.float32(value))
        grid, block = code.geometry("cuda", *self.schedule.shape)
        return functools.partial(function, grid, block, tuple(arguments), 0, self.streams[launch.stream])

    def _copy(self, copy: Copy) -> Callable[[], Any]:
        runtime, buffers = self.device._cp.cuda.runtime, self.schedule.buffers
        copy_async, kind = runtime.memcpyAsync, runtime.memcpyDeviceToDevice
        size, stream = buffers[copy.source].nbytes, self.streams[copy.stream].ptr
        source, target = self.arrays[copy.source].data.ptr, self.arrays[copy.target].data.ptr
        source_row = size * buffers[copy.source].per_step
        target_row = size * buffers[copy.target].per_step

        done, steps = self._done, self.steps

        def call() -> None:
            row = done.steps % steps
            copy_async(target + row * target_row, source + row * source_row, size, kind, stream)

        return call

    def _to_device(self, name: str) -> Callable[[], Any]:
        """The host's write of a buffer."""
        host, kind = self.host[name], self.device._cp.cuda.runtime.memcpyHostToDevice
        return self._transfer(self.arrays[name].data.ptr, host.ctypes.data, host.nbytes, kind)

    def _to_host(self, name: str) -> Callable[[], Any]:
        """The host's read of a buffer."""
        host, kind = self.host[name], self.device._cp.cuda.runtime.memcpyDeviceToHost
        return self._transfer(host.ctypes.data, self.arrays[name].data.ptr, host.nbytes, kind)

    def _transfer(self, target: int, source: int, size: int, kind: int) -> Callable[[], Any]:
        """A copy on a stream of its own: done before the host goes on, and ordered by nothing else."""
        copy_async, transfer = self.device._cp.cuda.runtime.memcpyAsync, self.device.transfer

        def call() -> None:
            copy_async(target, source, size, kind, transfer.ptr)
            transfer.synchronize()

        return call

    def _replay(self) -> None:
        for call in self._calls:
            call()
        self._done.steps += 1

    def _gate(self, force: Force | None) -> _Gate:
        if os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
            raise LabError(
                "force: CUDA_LAUNCH_BLOCKING is set, so the host waits for every kernel and none can be held "
                "back; unset it and start again"
            )
        return _Gate(self.device, force)

    def _observed_step(self, gate: _Gate | None) -> None:
        recorder = self.device.recorder
        for c in self._commands:
            work = c.kind in ("launch", "copy")
            if gate is not None:
                if c.kind == "wait":
                    gate.waits(c.stream, c.what)
                elif c.kind == "synchronize":
                    gate.synchronizing(c.what)
                elif work and gate.holds(c.label):
                    self.streams[c.stream].launch_host_func(_wait_at, gate.flag)
            if recorder:
                recorder.observe(self, c)
            else:
                c.call()
            if gate is not None and work:
                done = self.device._cp.cuda.Event(disable_timing=True)
                done.record(self.streams[c.stream])
                gate.given(c.label, c.stream, done)
            elif gate is not None and c.kind == "record":
                gate.recorded(c.what, c.stream)
        self._done.steps += 1

    def rewind(self) -> None:
        self._done.steps = 0

    def write(self, name: str, values: np.ndarray) -> None:
        """As every device: any real numbers of the buffer's shape; they are rounded to its storage type."""
        buffer = self.buffer(name)
        values = check_numbers(name, rows(buffer, self.steps), values)
        stored = to_storage(values, buffer.dtype)
        self.device.wait()
        self.arrays[name].set(stored)
        if name in self.host:
            self.host[name][...] = stored
        self.device.wait()

    def read(self, name: str) -> np.ndarray:
        """As every device: float32 values, whatever the buffer's storage type."""
        buffer = self.buffer(name)
        self.device.wait()
        return from_storage(self.arrays[name].get(), buffer.dtype)

    def tensor(self, name: str) -> Any:
        """As every device: on the GPU, or on the host for a buffer that the host writes or reads in the step.

        ``LabError`` where torch was built without CUDA.
        """
        import torch

        bits = np.int16 if self.buffer(name).dtype == "bfloat16" else None
        if name in self.host:
            tensor = torch.from_numpy(self.host[name].view(bits) if bits else self.host[name])
        elif torch.cuda.is_available():
            tensor = torch.from_dlpack(self.arrays[name].view(bits) if bits else self.arrays[name])
        else:
            raise LabError(
                f"{name} lies on the GPU, which torch {torch.__version__} cannot use; "
                "install a torch built for CUDA"
            )
        return tensor.view(torch.bfloat16) if bits else tensor


def to_storage(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as a buffer of that storage type holds them; bfloat16's 16 bits come in a uint16.

    Rounds to nearest, ties to even, as the kernels do; a NaN stays a NaN.
    """
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values, dtype=np.float16 if dtype == "float16" else np.float32)
    if dtype != "bfloat16":
        return values
    bits = values.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(values), 0x7FFF, rounded).astype(np.uint16)


def from_storage(stored: np.ndarray, dtype: str) -> np.ndarray:
    """The float32 values of an array as `to_storage` makes it. Exact."""
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)


def _wait_at(flag: threading.Event) -> None:
    """What holds a stream. The limit is for a host that died while the gate was shut."""
    flag.wait(2 * FORCE_LIMIT_S)


class _Gate(Gate):
    """A host function on the held launch's stream, in front of it, that waits until the host opens it."""

    def __init__(self, device: CudaDevice, force: Force | None) -> None:
        super().__init__(force)
        self.device = device
        self.flag = threading.Event()

    def finish(self, name: str, work: Any) -> None:
        limit = time.monotonic() + FORCE_LIMIT_S
        while not work.done:
            if time.monotonic() > limit:
                held = f" while {self.force.hold} was held" if self.shut and self.force else ""
                raise LabError(
                    f"force: {name} was not done within {FORCE_LIMIT_S:g} s{held}; "
                    "something else keeps the GPU's streams in one order"
                )
            time.sleep(20e-6)

    def is_done(self, work: Any) -> bool:
        return bool(work.done)

    def let_go(self) -> None:
        self.flag.set()

    def drain(self) -> None:
        self.device.wait()


def _torch_stream(cp: Any) -> Any:
    """Torch's current stream as a CuPy stream; None where torch cannot use the GPU."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    return cp.cuda.Stream.from_external(torch.cuda.current_stream())


def _shared(cp: Any, buffer: Buffer, given: Any, shape: tuple[int, ...]) -> Any:
    """Memory given by the caller, checked: as a CuPy array, or as a numpy array where it is the host's."""
    if hasattr(given, "detach"):
        import torch

        dtype, contiguous = str(given.dtype).removeprefix("torch."), given.is_contiguous()
        bits = given.detach().view(torch.int16) if dtype == "bfloat16" and contiguous else given.detach()
        if dtype == buffer.dtype and contiguous:
            given = cp.from_dlpack(bits) if given.is_cuda else bits.numpy()
            given = given.view(_NUMPY[buffer.dtype])
    elif hasattr(given, "flags"):
        contiguous = bool(given.flags.c_contiguous)
        dtype = buffer.dtype if given.dtype == _NUMPY[buffer.dtype] else str(given.dtype)
    else:
        kind = type(given).__name__
        raise LabError(f"{buffer.name} is a {kind}; expected a torch tensor, a CuPy array or a numpy array")
    check_shape(buffer.name, shape, tuple(given.shape))
    if dtype != buffer.dtype or not contiguous:
        layout = "contiguous" if contiguous else "not contiguous"
        raise LabError(f"{buffer.name} is {dtype} and {layout}; expected contiguous {buffer.dtype}")
    return given


def _version(number: int) -> str:
    """CUDA's 13020 as "13.2"."""
    return f"{number // 1000}.{number % 1000 // 10}"


def _installed(package: str) -> dict[str, str]:
    try:
        return {package: importlib.metadata.version(package)}
    except importlib.metadata.PackageNotFoundError:
        return {}


def _first_line(problem: Exception) -> str:
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return lines[0] if lines else type(problem).__name__
