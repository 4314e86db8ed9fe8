"""A stand-in for the slice of CuPy that the lab uses, on the CPU, that records and simulates.

It is honest where CUDA is: a call on a stream only puts work into that stream's queue. Work runs when the
host waits, in any order that streams and events allow. `FakeCupy.order` picks which: "issued" runs the
oldest work first (the lucky order); a list of streams' numbers lets the earlier named run ahead and the
last named come as late as it legally may. The default stream is number 0, and the others do not wait for it.

Kernels are compiled for real by NVRTC, which needs no GPU, and then computed in numpy. Memory comes
full of garbage. Arguments are checked as CuPy does not: kind, dtype and size of each.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from flashnorm_lab import kernels
from flashnorm_lab.compiling import compile_source
from flashnorm_lab.devices.cuda import from_storage, to_storage

GARBAGE = 0x3C
"""Every byte of fresh memory. As float32 it is 0.0115, a number like any other."""

compiled = functools.cache(compile_source)


class Work:
    """One entry of a stream's queue."""

    def __init__(
        self, number: int, run: Callable[[], None], ready: Callable[[], bool] = lambda: True
    ) -> None:
        self.number, self.run, self.ready = number, run, ready


class FakeCupy(types.ModuleType):
    """The module. ``calls`` lists what was issued, in the host's order, as tuples that start with a word."""

    def __init__(self, order: str | list[int] = "issued") -> None:
        super().__init__("cupy")
        self.order = order
        self.calls: list[tuple[Any, ...]] = []
        self.times: list[int] = []
        """When each of ``calls`` was made, in nanoseconds of ``time.perf_counter_ns``."""
        self.current: list[Stream] = []
        self.queues: dict[int, deque[Work]] = {0: deque()}
        self.memory: dict[int, np.ndarray] = {}
        self.issued = 0
        self.stuck: set[int] = set()
        """Streams that never get on, for trying out what happens then."""
        self.__version__ = "0.fake"
        self.nan, self.float32, self.float16 = np.nan, np.float32, np.float16
        self.uint16, self.int16 = np.uint16, np.int16
        self.cuda = types.SimpleNamespace(
            Stream=functools.partial(Stream, self),
            Event=functools.partial(Event, self),
            runtime=Runtime(self),
            compiler=types.SimpleNamespace(CompileException=CompileException),
            alloc_pinned_memory=lambda size: np.full(size, GARBAGE, np.uint8),
        )
        self.cuda.Stream.from_external = lambda other: Stream(self, pointer=other.__cuda_stream__()[1])
        self.RawModule = functools.partial(RawModule, self)

    # Arrays

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return Array(self, self.allocate(size).view(dtype).reshape(shape))

    def full(self, shape: tuple[int, ...], value: Any, dtype: Any) -> Array:
        array = self.empty(shape, dtype)
        self.issue(0, lambda: array.values.fill(value))
        return array

    def asarray(self, values: np.ndarray) -> Array:
        array = self.empty(values.shape, values.dtype)
        values = values.copy()
        self.issue(0, lambda: np.copyto(array.values, values))
        return array

    def from_dlpack(self, tensor: Any) -> Array:
        values = np.from_dlpack(tensor)
        self.memory[values.ctypes.data] = values
        return Array(self, values)

    def copyto(self, target: Array, source: Array) -> None:
        assert target.shape == source.shape
        assert target.dtype == source.dtype
        runtime = self.cuda.runtime
        runtime.memcpyAsync(
            target.data.ptr,
            source.data.ptr,
            source.nbytes,
            runtime.memcpyDeviceToDevice,
            self.current_stream(),
        )

    def allocate(self, size: int) -> np.ndarray:
        block = np.full(size, GARBAGE, np.uint8)
        self.memory[block.ctypes.data] = block
        return block

    def check_memory(self, pointer: int, size: int) -> None:
        inside = any(
            start <= pointer and pointer + size <= start + b.nbytes for start, b in self.memory.items()
        )
        assert inside, f"{size} bytes at {pointer:#x} are not in any allocation"

    def current_stream(self) -> int:
        return self.current[-1].ptr if self.current else 0

    # The simulation

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        self.times.append(time.perf_counter_ns())

    def issue(self, stream: int, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> Work:
        self.issued += 1
        work = Work(self.issued, run, ready)
        self.queues[stream].append(work)
        return work

    def advance(self, done: Callable[[], bool]) -> bool:
        """Run work in `order` until ``done()``, or until nothing can run; whether it is done."""
        while not done():
            able = [s for s, q in self.queues.items() if q and s not in self.stuck and q[0].ready()]
            if not able:
                return False
            if self.order == "issued":
                stream = min(able, key=lambda s: self.queues[s][0].number)
            else:
                stream = min(able, key=lambda s: self.order.index(s) if s in self.order else -1)
            self.queues[stream][0].run()
            self.queues[stream].popleft()
        return True

    def wait(self, done: Callable[[], bool]) -> None:
        """As the host waits. Host functions run in threads of their own, so waiting may take a while."""
        limit = time.monotonic() + 10
        while not self.advance(done):
            assert time.monotonic() < limit, "the simulated GPU waits for ever"
            time.sleep(1e-3)


class Array:
    """A CuPy array: memory that only work on streams may touch."""

    def __init__(self, cupy: FakeCupy, values: np.ndarray) -> None:
        self.cupy, self.values = cupy, values
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.flags = types.SimpleNamespace(c_contiguous=values.flags.c_contiguous)
        self.data = types.SimpleNamespace(ptr=values.ctypes.data)

    def __getitem__(self, row: int) -> Array:
        return Array(self.cupy, self.values[row])

    def view(self, dtype: Any) -> Array:
        return Array(self.cupy, self.values.view(dtype))

    def set(self, values: np.ndarray, stream: Stream | None = None) -> None:
        assert isinstance(values, np.ndarray)
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        number = stream.ptr if stream else 0
        self.cupy.note("set", number, self.data.ptr)
        values = values.copy()
        self.cupy.issue(number, lambda: np.copyto(self.values, values))

    def get(self, stream: Stream | None = None, out: np.ndarray | None = None) -> np.ndarray:
        number = stream.ptr if stream else 0
        self.cupy.note("get", number, self.data.ptr)
        out = np.empty_like(self.values) if out is None else out
        assert (out.dtype, out.shape) == (self.dtype, self.shape)
        done: list[int] = []
        self.cupy.issue(number, lambda: (np.copyto(out, self.values), done.append(1)))
        self.cupy.wait(lambda: bool(done))
        return out

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


class Stream:
    """A CUDA stream. ``ptr`` is its number."""

    def __init__(self, cupy: FakeCupy, *, non_blocking: bool = False, pointer: int | None = None) -> None:
        assert non_blocking or pointer is not None, "the lab uses non-blocking streams only"
        self.cupy = cupy
        self.ptr = len(cupy.queues) if pointer is None else pointer
        cupy.queues.setdefault(self.ptr, deque())

    def __enter__(self) -> Stream:
        self.cupy.current.append(self)
        return self

    def __exit__(self, *_: Any) -> None:
        self.cupy.current.pop()

    def wait_event(self, event: Event) -> None:
        self.cupy.note("wait", self.ptr, event)
        record = (
            event.record_work
        )  # the latest record at the time of the call; none means nothing to wait for
        self.cupy.issue(self.ptr, lambda: None, lambda: record is None or record.done)

    def launch_host_func(self, function: Callable[[Any], None], argument: Any) -> None:
        self.cupy.note("host function", self.ptr)
        thread = threading.Thread(target=function, args=(argument,), daemon=True)

        def ready() -> bool:
            if thread.ident is None:
                thread.start()
            return not thread.is_alive()

        self.cupy.issue(self.ptr, lambda: None, ready)

    def synchronize(self) -> None:
        self.cupy.note("synchronize", self.ptr)
        queue = self.cupy.queues[self.ptr]
        newest = queue[-1].number if queue else 0
        self.cupy.wait(lambda: not queue or queue[0].number > newest)


class RecordWork:
    """One record of an event: done once its stream got there."""

    done = False


class Event:
    """A CUDA event."""

    def __init__(self, cupy: FakeCupy, *, disable_timing: bool) -> None:
        assert disable_timing, "an event with timing costs more, and the lab needs none"
        self.cupy = cupy
        self.record_work: RecordWork | None = None

    def record(self, stream: Stream) -> None:
        self.cupy.note("record", stream.ptr, self)
        self.record_work = work = RecordWork()
        self.cupy.issue(stream.ptr, lambda: setattr(work, "done", True))

    @property
    def done(self) -> bool:
        work = self.record_work
        return work is None or self.cupy.advance(lambda: work.done)


class CUDARuntimeError(RuntimeError):
    """As ``cupy.cuda.runtime.CUDARuntimeError``."""


class CompileException(Exception):
    """As ``cupy.cuda.compiler.CompileException``."""


class Runtime:
    """``cupy.cuda.runtime``."""

    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3
    CUDARuntimeError = CUDARuntimeError

    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def getDevice(self) -> int:
        return 0

    def getDeviceCount(self) -> int:
        return 1

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        return {"name": b"Simulated GPU", "major": 9, "minor": 0, "multiProcessorCount": 132}

    def driverGetVersion(self) -> int:
        return 13020

    def runtimeGetVersion(self) -> int:
        return 13000

    def deviceSynchronize(self) -> None:
        self.cupy.note("synchronize", None)
        self.cupy.wait(lambda: not any(self.cupy.queues.values()))

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:
        self.cupy.check_memory(pointer, size)
        self.cupy.issue(stream, lambda: ctypes.memset(pointer, value, size))

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        for pointer, device in (
            (target, kind != self.memcpyDeviceToHost),
            (source, kind != self.memcpyHostToDevice),
        ):
            if device:
                self.cupy.check_memory(pointer, size)
        self.cupy.note("copy", stream, target, source, size, kind)
        self.cupy.issue(stream, lambda: ctypes.memmove(target, source, size))


class RawModule:
    """A module of one of the lab's kernels, compiled by NVRTC and computed in numpy."""

    def __init__(self, cupy: FakeCupy, *, code: str, options: tuple[str, ...]) -> None:
        assert isinstance(options, tuple)
        self.cupy, self.code, self.options = cupy, code, options

    def get_function(self, name: str) -> Function:
        try:
            compiled(self.code, f"{name}.cu", "sm_80", self.options)
        except Exception as problem:
            raise CompileException(str(problem)) from None
        (dtype,) = [t for t in kernels.STORAGE_TYPES if f"-DSTORAGE_{t.upper()}" in self.options]
        return Function(self.cupy, name, dtype)


class Function:
    """A kernel. Called itself it runs on the current stream; its ``kernel`` takes a stream. As in CuPy."""

    def __init__(self, cupy: FakeCupy, name: str, dtype: str) -> None:
        self.cupy, self.name, self.dtype = cupy, name, dtype
        self.arguments = kernels.load(name).arguments

    @property
    def kernel(self) -> Callable[..., None]:
        return self.launch

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple[Any, ...]) -> None:
        self.launch(grid, block, arguments)

    def launch(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple[Any, ...],
        shared: int = 0,
        stream: Any = None,
    ) -> None:
        assert shared == 0
        number = stream.ptr if stream else self.cupy.current_stream()
        values: dict[str, Any] = {}
        for value, argument in zip(arguments, self.arguments, strict=True):
            if argument.is_buffer:
                half = argument.ctype == "STORAGE" and self.dtype != "float32"
                wanted = {"float16": np.float16, "bfloat16": np.uint16}[self.dtype] if half else np.float32
                assert isinstance(value, Array), f"{self.name}: {argument.name} is {value!r}"
                assert value.dtype == wanted, f"{self.name}: {argument.name} is {value.dtype}, not {wanted}"
                self.cupy.check_memory(value.data.ptr, value.nbytes)
            else:
                wanted = {"int": np.int32, "float": np.float32}[argument.ctype]
                assert type(value) is wanted, f"{self.name}: {argument.name} is {value!r}, not {wanted}"
            values[argument.name] = value
        shown = tuple(v.data.ptr if isinstance(v, Array) else v for v in values.values())
        self.cupy.note("launch", number, self.name, grid, block, shown)
        self.cupy.issue(number, lambda: self.compute(values))

    def compute(self, given: dict[str, Any]) -> None:
        """The kernel's result in float32, with numpy in the place of threads."""
        sizes = {name: int(given[name]) for name in ("tokens", "n", "k") if name in given}
        shapes = {"x": "tokens n", "g": "n", "W": "k n", "W_folded": "k n", "h": "tokens n", "y": "tokens k",
                  "r": "tokens", "z": "tokens k"}  # fmt: skip

        def read(name: str) -> np.ndarray:
            (argument,) = [a for a in self.arguments if a.name == name]
            stored = given[name].values.reshape([sizes[s] for s in shapes[name].split()])
            return from_storage(stored, self.dtype if argument.ctype == "STORAGE" else "float32")

        def write(name: str, values: np.ndarray) -> None:
            (argument,) = [a for a in self.arguments if a.name == name]
            stored = to_storage(values, self.dtype if argument.ctype == "STORAGE" else "float32")
            given[name].values.reshape(stored.shape)[...] = stored

        def scale() -> np.ndarray:
            return 1 / np.sqrt(np.mean(read("x") ** 2, axis=1) + given["eps"])

        match self.name:
            case "rms_norm":
                write("h", read("x") * scale()[:, None] * read("g"))
            case "inv_rms":
                write("r", scale())
            case "projection":
                write("y", read("x") @ read("W").T)
            case "post_scale":
                write("z", read("y") * read("r")[:, None])
            case "fused_norm_projection":
                write("z", (read("x") @ read("W_folded").T) * scale()[:, None])
            case "spin":
                given["sink"].values[0] = 1
