"""A stand-in for the slice of CuPy that the lab and its tests use, on the CPU, that records and simulates.

It is honest where CUDA is: a call on a stream only puts work into that stream's queue. Work runs when the
host waits, in any order that streams and events allow. `FakeCupy.order` picks which: "issued" runs the
oldest work first (the lucky order); a list of streams' numbers lets the earlier named run ahead and the
last named come as late as it legally may. The default stream is number 0: it waits for blocking streams and
they wait for it, and non-blocking ones have no part in that.

Kernels are compiled for real by NVRTC, which needs no GPU, and then computed in numpy: the lab's own here,
any other by what a test says it does (`FakeCupy.meanings`). Memory comes full of garbage, from a pool that
hands a freed block out again to the stream that it belonged to. Arguments are checked as CuPy does not:
kind, dtype and size of each. What is compiled in CuPy cannot be patched here either (`Compiled`).
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from flashnorm_lab import kernels
from flashnorm_lab.compiling import compile_source
from flashnorm_lab.devices.cuda import from_storage, to_storage

GARBAGE = 0x3C
"""Every byte of fresh memory. As float32 it is 0.0115, a number like any other."""
UNIT = 512
"""The pool hands out whole units of so many bytes, as CuPy's does."""

compiled = functools.cache(compile_source)


class Compiled(type):
    """The type of what Cython has compiled: like a built-in type, it lets nobody replace its methods.

    Subclasses that others make in Python are free, as with built-in types.
    """

    def __setattr__(cls, name: str, value: object) -> None:
        cls.refuse(name)
        super().__setattr__(name, value)

    def __delattr__(cls, name: str) -> None:
        cls.refuse(name)
        super().__delattr__(name)

    def refuse(cls, name: str) -> None:
        if cls.__module__ in ("cupy", "fake_cupy"):
            raise TypeError(f"cannot set {name!r} attribute of immutable type {cls.__name__!r}")


class Work:
    """One entry of a stream's queue."""

    def __init__(self, number: int, run: Callable[[], None], ready: Callable[[], bool]) -> None:
        self.number, self.run, self.ready = number, run, ready
        self.done = False


def public(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a method of `FakeCupy` as one of the module's own functions."""
    function.__module__ = "cupy"
    function.is_public = True  # type: ignore[attr-defined]
    return function


class FakeCupy(types.ModuleType):
    """The module. ``calls`` lists what was issued, in the host's order, as tuples that start with a word.

    ``strict``: only what the lab itself uses is allowed, which is non-blocking streams and events without
    timing.
    """

    def __init__(self, order: str | list[int] = "issued", *, strict: bool = True) -> None:
        super().__init__("cupy")
        self.order, self.strict = order, strict
        self.calls: list[tuple[Any, ...]] = []
        self.times: list[int] = []
        """When each of ``calls`` was made, in nanoseconds of ``time.perf_counter_ns``."""
        self.queues: dict[int, deque[Work]] = {0: deque()}
        self.kinds = {0: "legacy"}
        self.captures: dict[int, Capture] = {}
        self.memory: dict[int, np.ndarray] = {}
        self.local = threading.local()
        self.meanings: dict[str, Callable[..., None]] = {}
        """What kernels that are not the lab's do, by name: called with numpy arrays and numbers."""
        self.made: dict[str, Any] = {}
        """This module's classes, whatever their names in it have been set to."""
        self.issued = 0
        self.handles, self.event_handles = itertools.count(1), itertools.count(1 << 32)
        self.stuck: set[int] = set()
        """Streams that never get on, for trying out what happens then."""
        self.__version__ = "0.fake"
        self.nan, self.float32, self.float16 = np.nan, np.float32, np.float16
        self.uint16, self.int16, self.int32, self.uint8 = np.uint16, np.int16, np.int32, np.uint8
        self.cuda = types.SimpleNamespace(
            runtime=Runtime(self),
            compiler=types.SimpleNamespace(CompileException=CompileException),
            get_current_stream=lambda: self.active,
            alloc=self.alloc,
            get_allocator=lambda: self.allocator,
            set_allocator=self.set_allocator,
            malloc_async=self.malloc_async,
            alloc_pinned_memory=self.alloc_pinned_memory,
        )
        for made in (Stream, ExternalStream, Event, Graph, Device, MemoryPointer, UnownedMemory, MemoryPool,
                     MemoryAsyncPool, MemoryHook):  # fmt: skip
            setattr(self.cuda, made.__name__, self.own(made))
        self.cuda.Stream.null = self.cuda.Stream(null=True)
        self.cuda.Stream.ptds = self.cuda.Stream(ptds=True)
        for made in (ndarray, ufunc, RawKernel, RawModule, ElementwiseKernel, ReductionKernel):
            setattr(self, made.__name__, self.own(made))
        for name in dir(type(self)):
            if getattr(getattr(type(self), name), "is_public", False):
                setattr(self, name, getattr(self, name))
        for name, (function, nin) in UFUNCS.items():
            setattr(self, name, self.ufunc(f"cupy_{name}", function, nin))
        self.matmul = GUFunc(self, "matmul", np.matmul)
        self.stack: list[Stream] = [self.cuda.Stream.null]
        self.active: Stream = self.cuda.Stream.null
        self.pool = self.cuda.MemoryPool()
        self.pinned_pool: dict[int, list[np.ndarray]] = {}
        self.pinned: dict[int, int] = {}
        self.allocator = self.pool.malloc

    @property
    def hooks(self) -> dict[str, MemoryHook]:
        """The memory hooks of the thread that asks."""
        return self.local.__dict__.setdefault("hooks", {})

    def own(self, made: type) -> Any:
        """The class as this module has it, so that what is done to it is not done to another's."""
        self.made[made.__name__] = type(made)(made.__name__, (made,), {"cupy": self, "__module__": "cupy"})
        return self.made[made.__name__]

    # Arrays

    @public
    def empty(self, shape: Any, dtype: Any = float) -> ndarray:
        return self.new_array(shape, dtype)

    @public
    def full(self, shape: Any, value: Any, dtype: Any) -> ndarray:
        array = self.new_array(shape, dtype)
        values = array.values
        self.issue(self.active.ptr, lambda: values.fill(value))
        return array

    @public
    def zeros(self, shape: Any, dtype: Any = float) -> ndarray:
        return type(self).full(self, shape, 0, dtype)

    @public
    def ones(self, shape: Any, dtype: Any = float) -> ndarray:
        return type(self).full(self, shape, 1, dtype)

    @public
    def arange(self, stop: int, dtype: Any = np.int64) -> ndarray:
        return type(self).asarray(self, np.arange(stop, dtype=dtype))

    @public
    def asarray(self, values: Any, dtype: Any = None) -> ndarray:
        if isinstance(values, ndarray) and dtype in (None, values.dtype):
            return values
        values = np.array(values, dtype)
        array = self.new_array(values.shape, values.dtype)
        self.made["Event"](disable_timing=True)  # CuPy's own, to know when its staging memory is free again
        target = array.values
        self.issue(self.active.ptr, lambda: np.copyto(target, values))
        return array

    @public
    def asnumpy(
        self, array: Any, stream: Stream | None = None, out: Any = None, blocking: bool = True
    ) -> Any:
        return array.get(stream=stream, out=out, blocking=blocking)

    @public
    def from_dlpack(self, tensor: Any) -> ndarray:
        values = np.from_dlpack(tensor)
        self.memory[values.ctypes.data] = values
        mem = self.made["UnownedMemory"](values.ctypes.data, values.nbytes, values, 0)
        return self.ndarray.over(values, self.made["MemoryPointer"](mem, 0))

    @public
    def copyto(self, target: ndarray, source: Any) -> None:
        if not isinstance(source, ndarray):
            target.fill(source)
            return
        assert target.shape == source.shape
        if target.dtype == source.dtype and target.flags.c_contiguous and source.flags.c_contiguous:
            Runtime.memcpyAsync(
                self.cuda.runtime,
                target._data.ptr,
                source._data.ptr,
                source.nbytes,
                Runtime.memcpyDeviceToDevice,
                self.active.ptr,
            )
            return
        into, values = target.values, source.values
        self.issue(self.active.ptr, lambda: np.copyto(into, values))

    @public
    def dot(self, a: ndarray, b: ndarray, out: ndarray | None = None) -> ndarray:
        return self.compute("dot", np.dot, (a, b), out)

    @public
    def sum(self, a: ndarray, axis: int | None = None) -> ndarray:
        return a.sum(axis)

    @public
    def concatenate(self, arrays: Iterable[ndarray], axis: int = 0) -> ndarray:
        return self.compute("concatenate", lambda *each: np.concatenate(each, axis), tuple(arrays))

    @public
    def var(self, a: ndarray) -> ndarray:
        """In several kernels, with memory that it takes and gives back on the way, as many of CuPy's do."""
        mean = self.compute("mean", np.mean, (a,))
        apart = self.compute("subtract", np.subtract, (a, mean))
        del mean
        squares = self.compute("multiply", np.multiply, (apart, apart))
        del apart
        return self.compute("mean", np.mean, (squares,))

    @public
    def ptp(self, a: ndarray) -> ndarray:
        """Likewise, and it takes nothing twice."""
        most, least = self.compute("max", np.max, (a,)), self.compute("min", np.min, (a,))
        return self.compute("subtract", np.subtract, (most, least))

    @public
    def reshape(self, a: ndarray, shape: Any) -> ndarray:
        return a.reshape(shape)

    def new_array(self, shape: Any, dtype: Any) -> ndarray:
        """An array, made as CuPy's own code makes it."""
        return ndarray.__new__(self.made["ndarray"], shape, dtype)

    def compute(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], out: ndarray | None = None
    ) -> ndarray:
        """A kernel of CuPy's own on the current stream. Its result is an array, new or ``out``."""
        values = [a.values if isinstance(a, ndarray) else a for a in arguments]
        with np.errstate(all="ignore"):
            example = np.asarray(function(*values))
        if out is None:
            out = self.new_array(example.shape, example.dtype)
        into = out.values
        self.note("kernel", self.active.ptr, name)

        def run() -> None:
            with np.errstate(all="ignore"):
                into[...] = function(*values)

        self.issue(self.active.ptr, run)
        return out

    # Memory

    def alloc(self, size: int) -> MemoryPointer:
        return self.allocator(size)

    def set_allocator(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self.allocator = allocator or self.malloc

    def malloc(self, size: int) -> MemoryPointer:
        return self.made["MemoryPointer"](Memory(self, size), 0)

    def malloc_async(self, size: int) -> MemoryPointer:
        return self.made["MemoryPointer"](MemoryAsync(self, size, self.active), 0)

    def alloc_pinned_memory(self, size: int) -> Any:
        rounded = rounded_up(size)
        free = self.pinned_pool.setdefault(rounded, [])
        block = free.pop() if free else np.full(rounded, GARBAGE, np.uint8)
        pointer = type("PinnedMemoryPointer", (ctypes.c_ubyte * size,), {}).from_buffer(block)
        pointer.mem, pointer.ptr = PinnedMemory(self, block, free), block.ctypes.data
        return pointer

    def is_pinned(self, values: np.ndarray) -> bool:
        start = values.__array_interface__["data"][0]
        return any(p <= start < p + size for p, size in self.pinned.items())

    def allocate(self, size: int) -> np.ndarray:
        block = np.full(size, GARBAGE, np.uint8)
        self.memory[block.ctypes.data] = block
        return block

    def bytes_at(self, pointer: int, size: int) -> np.ndarray:
        """Bytes that lie in one allocation."""
        for start, block in self.memory.items():
            if start <= pointer and pointer + size <= start + block.nbytes:
                return block.view(np.uint8).reshape(-1)[pointer - start : pointer - start + size]
        raise AssertionError(f"{size} bytes at {pointer:#x} are not in any allocation")

    def check_memory(self, pointer: int, size: int) -> None:
        self.bytes_at(pointer, size)

    # The simulation

    def note(self, *call: Any) -> None:
        self.calls.append(call)
        self.times.append(time.perf_counter_ns())

    def issue(self, stream: int, run: Callable[[], None], ready: Callable[[], bool] = lambda: True) -> Work:
        self.issued += 1
        if stream in self.captures:
            return self.captures[stream].add(stream, run)
        before = self.implied(stream)

        def both() -> bool:
            return all(w.done for w in before) and ready()

        work = Work(self.issued, run, both)
        self.queues[stream].append(work)
        return work

    def implied(self, stream: int) -> list[Work]:
        """What the legacy default stream's rule puts in front of work on this stream."""
        kind = self.kinds[stream]
        if kind == "legacy":
            if any(self.kinds[s] != "non-blocking" for s in self.captures):
                raise CUDARuntimeError("cudaErrorStreamCaptureImplicit: would make the legacy stream depend")
            others = [s for s, k in self.kinds.items() if k in ("blocking", "per-thread")]
        else:
            others = [] if kind == "non-blocking" else [0]
        return [self.queues[s][-1] for s in others if self.queues[s]]

    def advance(self, done: Callable[[], bool]) -> bool:
        """Run work in `order` until ``done()``, or until nothing can run; whether it is done."""
        while not done():
            able = [s for s, q in self.queues.items() if q and s not in self.stuck and q[0].ready()]
            if not able:
                return False
            if self.order == "issued":
                stream = min(able, key=lambda s: self.queues[s][0].number)
            else:
                stream = min(able, key=self.rank)
            work = self.queues[stream][0]
            work.run()
            work.done = True
            self.queues[stream].popleft()
        return True

    def rank(self, stream: int) -> int:
        assert isinstance(self.order, list)
        return self.order.index(stream) if stream in self.order else -1

    def wait(self, done: Callable[[], bool]) -> None:
        """As the host waits. Host functions run in threads of their own, so waiting may take a while."""
        limit = time.monotonic() + 10
        while not self.advance(done):
            assert time.monotonic() < limit, "the simulated GPU waits for ever"
            time.sleep(1e-3)

    def wait_for(self, stream: int) -> None:
        """As the host waits for all that a stream has."""
        if stream in self.captures:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: the stream is capturing")
        queue = self.queues[stream]
        if self.kinds[stream] == "legacy":
            self.issue(stream, lambda: None)
        if queue:
            newest = queue[-1]
            self.wait(lambda: newest.done)


def rounded_up(size: int) -> int:
    return -(-size // UNIT) * UNIT


# Memory


class MemoryHook:
    """``cupy.cuda.MemoryHook``."""

    cupy: FakeCupy
    name = "MemoryHook"

    def __enter__(self) -> MemoryHook:
        if self.name in self.cupy.hooks:
            raise KeyError(f"memory hook {self.name} already exists")
        self.cupy.hooks[self.name] = self
        return self

    def __exit__(self, *_: Any) -> None:
        del self.cupy.hooks[self.name]

    def malloc_preprocess(self, **_: int) -> None:
        pass

    def malloc_postprocess(self, **_: int) -> None:
        pass

    def free_preprocess(self, **_: int) -> None:
        pass

    def free_postprocess(self, **_: int) -> None:
        pass


class BaseMemory(metaclass=Compiled):
    """Memory on the GPU. ``ptr`` and ``size`` in bytes."""

    device_id = 0
    ptr = size = 0


class Memory(BaseMemory):
    """cudaMalloc and cudaFree, which waits for the device."""

    def __init__(self, cupy: FakeCupy, size: int) -> None:
        self.cupy, self.size = cupy, size
        self.ptr = cupy.allocate(size).ctypes.data if size else 0

    def __del__(self) -> None:
        if self.ptr:
            self.cupy.wait(lambda: not any(self.cupy.queues.values()))
            del self.cupy.memory[self.ptr]


class MemoryAsync(BaseMemory):
    """cudaMallocAsync and cudaFreeAsync: both are work on the stream."""

    def __init__(self, cupy: FakeCupy, size: int, stream: Stream_) -> None:
        self.cupy, self.size, self.stream_ref = cupy, size, weakref.ref(stream)
        self.ptr = cupy.allocate(size).ctypes.data if size else 0
        cupy.issue(stream.ptr, lambda: None)

    def __del__(self) -> None:
        if self.ptr:
            block, stream = self.cupy.memory.pop(self.ptr), self.stream_ref() or self.cupy.active
            self.cupy.issue(stream.ptr, lambda: block.fill(GARBAGE))


class UnownedMemory(BaseMemory):
    """Memory that another library owns."""

    cupy: FakeCupy

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner = ptr, size, owner


class PooledMemory(BaseMemory):
    """A block of a pool, which gets it back when nobody has it any more."""

    def __init__(self, pool: MemoryPool, ptr: int, size: int, stream: int) -> None:
        self.pool, self.ptr, self.size, self.stream = weakref.ref(pool), ptr, size, stream

    def free(self) -> None:
        ptr, self.ptr = self.ptr, 0
        pool = self.pool()
        if ptr == 0 or pool is None:
            return
        told = {"device_id": 0, "mem_size": self.size, "mem_ptr": ptr, "pmem_id": id(self)}
        hooks = list(pool.cupy.hooks.values())
        for hook in hooks:
            hook.free_preprocess(**told)
        pool.free_blocks.setdefault(self.stream, []).append((ptr, self.size))
        for hook in hooks:
            hook.free_postprocess(**told)

    def __del__(self) -> None:
        self.free()


class MemoryPool(metaclass=Compiled):
    """Freed blocks go to the next who asks on the same stream: the smallest that is large enough."""

    cupy: FakeCupy
    __slots__ = ("__weakref__", "free_blocks")

    def __init__(self) -> None:
        self.free_blocks: dict[int, list[tuple[int, int]]] = {}

    def malloc(self, size: int) -> MemoryPointer:
        cupy = self.cupy
        rounded = rounded_up(size)
        hooks = list(cupy.hooks.values())
        for hook in hooks:
            hook.malloc_preprocess(device_id=0, size=size, mem_size=rounded)
        stream = cupy.active.ptr
        mem = PooledMemory(self, self.block(rounded, stream) if size else 0, rounded, stream)
        for hook in hooks:
            hook.malloc_postprocess(
                device_id=0, size=size, mem_size=rounded, mem_ptr=mem.ptr, pmem_id=id(mem)
            )
        return cupy.made["MemoryPointer"](mem, 0)

    def block(self, size: int, stream: int) -> int:
        free = self.free_blocks.setdefault(stream, [])
        fits = [b for b in free if b[1] >= size]
        if not fits:
            return self.cupy.allocate(size).ctypes.data
        ptr, length = block = min(fits, key=lambda b: b[1])
        free.remove(block)
        if length > size:
            free.append((ptr + size, length - size))
        return ptr


class MemoryAsyncPool(metaclass=Compiled):
    """``cupy.cuda.MemoryAsyncPool``, which calls no memory hooks."""

    cupy: FakeCupy

    def malloc(self, size: int) -> MemoryPointer:
        return self.cupy.malloc_async(rounded_up(size))


class MemoryPointer(metaclass=Compiled):
    """A place in a `BaseMemory`."""

    cupy: FakeCupy

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + offset, 0

    def __add__(self, offset: int) -> MemoryPointer:
        return self.cupy.made["MemoryPointer"](self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Stream | None = None) -> None:
        self._copy(self.ptr, source.ptr, size, 3, stream)

    def copy_from_host_async(self, source: Any, size: int, stream: Stream | None = None) -> None:
        self._copy(self.ptr, address(source), size, 1, stream)

    def copy_from_async(self, source: Any, size: int, stream: Stream | None = None) -> None:
        copy = self.copy_from_device_async if isinstance(source, MemoryPointer) else self.copy_from_host_async
        copy(source, size, stream)

    def copy_to_host_async(self, target: Any, size: int, stream: Stream | None = None) -> None:
        self._copy(address(target), self.ptr, size, 2, stream)

    def memset_async(self, value: int, size: int, stream: Stream | None = None) -> None:
        number = self.cupy.active.ptr if stream is None else stream.ptr
        Runtime.memsetAsync(self.cupy.cuda.runtime, self.ptr, value, size, number)

    def _copy(self, target: int, source: int, size: int, kind: int, stream: Stream | None) -> None:
        number = self.cupy.active.ptr if stream is None else stream.ptr
        Runtime.memcpyAsync(self.cupy.cuda.runtime, target, source, size, kind, number)


def address(place: Any) -> int:
    return place if isinstance(place, int) else place.value


class PinnedMemory:
    """A block of pinned host memory, which its pool gets back when nobody has it any more."""

    def __init__(self, cupy: FakeCupy, block: np.ndarray, pool: list[np.ndarray]) -> None:
        self.cupy, self.block, self.pool = cupy, block, pool
        self.ptr, self.size = block.ctypes.data, block.nbytes
        cupy.pinned[self.ptr] = self.size

    def __del__(self) -> None:
        self.cupy.pinned.pop(self.ptr, None)
        self.pool.append(self.block)


# Arrays


class ndarray:
    """A CuPy array: memory that only work on streams may touch."""

    cupy: FakeCupy
    __slots__ = ("_data", "base", "values")

    def __new__(
        cls, shape: Any, dtype: Any = float, memptr: MemoryPointer | None = None, strides: Any = None
    ) -> ndarray:
        self = object.__new__(cls)
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.base = None
        self._data = self.cupy.alloc(size) if memptr is None else memptr
        if size == 0:
            self.values = np.empty(shape, dtype)
        elif strides is None:
            self.values = self.cupy.bytes_at(self._data.ptr, size).view(dtype).reshape(shape)
        else:
            length = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + np.dtype(dtype).itemsize
            flat = self.cupy.bytes_at(self._data.ptr, length)
            self.values = np.ndarray(shape, dtype, flat.data, strides=strides)
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        """As in CuPy, only arrays that a program makes by itself come here."""

    @classmethod
    def over(cls, values: np.ndarray, data: MemoryPointer, base: ndarray | None = None) -> ndarray:
        """An array over these very bytes."""
        array = object.__new__(cls)
        array.values, array._data, array.base = values, data, base
        return array

    def part(self, values: np.ndarray) -> ndarray:
        """A view of this array."""
        offset = values.ctypes.data - self.values.ctypes.data if values.size else 0
        return type(self).over(values, self._data + offset, self if self.base is None else self.base)

    data = property(lambda self: self._data)
    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    nbytes = property(lambda self: self.values.nbytes)
    size = property(lambda self: self.values.size)
    ndim = property(lambda self: self.values.ndim)
    itemsize = property(lambda self: self.values.itemsize)
    strides = property(lambda self: self.values.strides)
    T = property(lambda self: self.part(self.values.T))
    device = property(lambda self: Device(0))

    @property
    def flags(self) -> Any:
        return types.SimpleNamespace(c_contiguous=self.values.flags.c_contiguous)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> ndarray:
        if isinstance(key, ndarray):
            return self.cupy.compute(
                "take", lambda values, at: np.take(values, at, 0, mode="clip"), (self, key)
            )
        return self.part(
            np.asarray(self.values[(*key, ...)] if isinstance(key, tuple) else self.values[key, ...])
        )

    def __setitem__(self, key: Any, value: Any) -> None:
        into = self.values[(*key, ...)] if isinstance(key, tuple) else self.values[key, ...]
        values = value.values if isinstance(value, ndarray) else value
        self.cupy.note("kernel", self.cupy.active.ptr, "copy")
        self.cupy.issue(self.cupy.active.ptr, lambda: np.copyto(into, values))

    def view(self, dtype: Any = None) -> ndarray:
        return self.part(self.values if dtype is None else self.values.view(dtype))

    def reshape(self, *shape: Any) -> ndarray:
        return self.part(self.values.reshape(*shape))

    def ravel(self) -> ndarray:
        return self.reshape(-1) if self.flags.c_contiguous else self.copy().reshape(-1)

    def copy(self) -> ndarray:
        return self.cupy.compute("copy", np.copy, (self,))

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        if not copy and dtype == self.dtype:
            return self
        return self.cupy.compute("astype", lambda values: values.astype(dtype), (self,))

    def fill(self, value: Any) -> None:
        into = self.values
        self.cupy.note("kernel", self.cupy.active.ptr, "fill")
        self.cupy.issue(self.cupy.active.ptr, lambda: into.fill(value))

    def sum(self, axis: int | None = None) -> ndarray:
        return self.cupy.compute("sum", lambda values: np.sum(values, axis), (self,))

    def dot(self, other: ndarray, out: ndarray | None = None) -> ndarray:
        return self.cupy.compute("dot", np.dot, (self, other), out)

    def set(self, values: np.ndarray, stream: Stream | None = None) -> None:
        assert isinstance(values, np.ndarray)
        assert (values.dtype, values.shape) == (self.dtype, self.shape)
        number = stream.ptr if stream else self.cupy.active.ptr
        self.cupy.note("set", number, self._data.ptr)
        into = self.values
        values = bare(values) if self.cupy.is_pinned(values) else values.copy()
        self.cupy.issue(number, lambda: np.copyto(into, values))

    def get(
        self, stream: Stream | None = None, out: np.ndarray | None = None, blocking: bool = True
    ) -> np.ndarray:
        number = stream.ptr if stream else self.cupy.active.ptr
        self.cupy.note("get", number, self._data.ptr)
        out = np.empty_like(self.values) if out is None else out
        assert (out.dtype, out.shape) == (self.dtype, self.shape)
        values, into = self.values, bare(out)
        work = self.cupy.issue(number, lambda: np.copyto(into, values))
        if blocking or not self.cupy.is_pinned(out):
            self.cupy.wait(lambda: work.done)
        return out

    def item(self) -> Any:
        return type(self).get(self).item()

    def tolist(self) -> Any:
        return type(self).get(self).tolist()

    def __float__(self) -> float:
        return float(type(self).get(self).item())

    def __bool__(self) -> bool:
        return bool(type(self).get(self))

    def __repr__(self) -> str:
        return repr(type(self).get(self))

    def __dlpack__(self, **options: Any) -> Any:
        return self.values.__dlpack__()

    def __dlpack_device__(self) -> Any:
        return self.values.__dlpack_device__()


def _operators() -> None:
    for word in ("add", "sub", "mul", "truediv", "matmul"):
        function = getattr(
            np, {"sub": "subtract", "mul": "multiply", "truediv": "true_divide"}.get(word, word)
        )

        def normal(self: ndarray, other: Any, function: Any = function, word: str = word) -> ndarray:
            return self.cupy.compute(word, function, (self, other))

        def swapped(self: ndarray, other: Any, function: Any = function, word: str = word) -> ndarray:
            return self.cupy.compute(word, function, (other, self))

        def in_place(self: ndarray, other: Any, function: Any = function, word: str = word) -> ndarray:
            return self.cupy.compute(word, function, (self, other), self)

        setattr(ndarray, f"__{word}__", normal)
        setattr(ndarray, f"__r{word}__", swapped)
        setattr(ndarray, f"__i{word}__", in_place)


_operators()


def bare(values: np.ndarray) -> np.ndarray:
    """The same bytes, which nobody keeps alive for it, as CUDA does not."""
    assert values.flags.c_contiguous
    place = (ctypes.c_ubyte * values.nbytes).from_address(values.ctypes.data)
    return np.ndarray(values.shape, values.dtype, place)


class ufunc(metaclass=Compiled):
    """``cupy.ufunc``: an element by element function."""

    cupy: FakeCupy

    def __init__(self, name: str, function: Callable[..., Any], nin: int) -> None:
        self.name, self.function, self.nin, self.nout = name, function, nin, 1

    def __call__(self, *arguments: Any, out: ndarray | None = None) -> ndarray:
        if len(arguments) > self.nin:
            *arguments, out = arguments  # type: ignore[assignment]
        return self.cupy.compute(self.name, self.function, tuple(arguments), out)

    def reduce(self, array: ndarray, axis: int = 0) -> ndarray:
        return self.cupy.compute(self.name, lambda values: self.function.reduce(values, axis), (array,))


UFUNCS = {"add": (np.add, 2), "subtract": (np.subtract, 2), "multiply": (np.multiply, 2),
          "sqrt": (np.sqrt, 1),
          "exp": (np.exp, 1), "maximum": (np.maximum, 2)}  # fmt: skip


class GUFunc:
    """``cupy.matmul``'s type."""

    __module__ = "cupy"

    def __init__(self, cupy: FakeCupy, name: str, function: Callable[..., Any]) -> None:
        self.cupy, self.__name__, self.function = cupy, name, function

    def __call__(self, a: ndarray, b: ndarray, out: ndarray | None = None) -> ndarray:
        return self.cupy.compute(self.__name__, self.function, (a, b), out)


# Streams and events


class Stream_:
    """What all streams have. ``ptr`` is the stream's number."""

    cupy: FakeCupy
    ptr: int
    device_id = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream_) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> Stream_:
        self.cupy.stack.append(self)
        self.cupy.active = self
        return self

    def __exit__(self, *_: Any) -> None:
        self.cupy.stack.pop()
        self.cupy.active = self.cupy.stack[-1]

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def use(self) -> Stream_:
        self.cupy.active = self
        return self

    @property
    def is_non_blocking(self) -> bool:
        return self.cupy.kinds[self.ptr] == "non-blocking"

    @property
    def done(self) -> bool:
        queue = self.cupy.queues[self.ptr]
        return self.cupy.advance(lambda: not queue)

    def record(self, event: Event | None = None) -> Event:
        event = self.cupy.made["Event"]() if event is None else event
        Event._record(event, self.ptr)
        return event

    def wait_event(self, event: Event) -> None:
        self.cupy.note("wait", self.ptr, event)
        record = event.record_work  # the latest record at the time of the call; none: nothing to wait for
        capture = self.cupy.captures.get(self.ptr)
        if record is not None and record.capture is not None:
            record.capture.join(self.ptr, record)
        elif capture is not None:
            raise CUDARuntimeError(
                "cudaErrorStreamCaptureIsolation: the event was not recorded in the capture"
            )
        else:
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
        self.cupy.wait_for(self.ptr)

    def begin_capture(self, mode: int | None = None) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self.cupy.captures[self.ptr] = Capture(self.cupy, self.ptr)

    def end_capture(self) -> Graph:
        return self.cupy.captures[self.ptr].end()


class Stream(Stream_):
    """A CUDA stream."""

    null: Stream
    ptds: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False, ptds: bool = False) -> None:
        cupy = self.cupy
        assert null or ptds or non_blocking or not cupy.strict, "the lab uses non-blocking streams only"
        if null:
            self.ptr, kind = 0, "legacy"
        elif ptds:
            self.ptr, kind = Runtime.streamPerThread, "per-thread"
        else:
            self.ptr = next(number for number in cupy.handles if number not in cupy.queues)
            kind = "non-blocking" if non_blocking else "blocking"
        cupy.queues.setdefault(self.ptr, deque())
        cupy.kinds.setdefault(self.ptr, kind)

    @classmethod
    def from_external(cls, other: Any) -> Stream:
        stream = cls.__new__(cls)
        stream.ptr = other.__cuda_stream__()[1]
        cls.cupy.queues.setdefault(stream.ptr, deque())
        cls.cupy.kinds.setdefault(stream.ptr, "non-blocking")
        return stream


class ExternalStream(Stream_):
    """A stream that somebody else has made."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        self.ptr, self.device_id = ptr, device_id
        self.cupy.queues.setdefault(ptr, deque())
        self.cupy.kinds.setdefault(ptr, "non-blocking")


class RecordWork:
    """One record of an event: done once its stream got there. In a capture: behind these nodes."""

    done = False
    capture: Capture | None = None
    nodes: frozenset[int] = frozenset()


class Event:
    """A CUDA event."""

    cupy: FakeCupy

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        assert disable_timing or not self.cupy.strict, (
            "an event with timing costs more, and the lab needs none"
        )
        self.ptr = next(self.cupy.event_handles)
        self.record_work: RecordWork | None = None

    def record(self, stream: Stream_ | None = None) -> None:
        self._record(self.cupy.active.ptr if stream is None else stream.ptr)

    def _record(self, stream: int) -> None:
        self.cupy.note("record", stream, self)
        self.record_work = work = RecordWork()
        capture = self.cupy.captures.get(stream)
        if capture is not None:
            work.capture, work.nodes = capture, frozenset(capture.heads[stream])
        else:
            self.cupy.issue(stream, lambda: setattr(work, "done", True))

    @property
    def done(self) -> bool:
        work = self.record_work
        return work is None or self.cupy.advance(lambda: work.done)

    def synchronize(self) -> None:
        work = self.record_work
        if work is not None:
            if work.capture is not None:
                raise CUDARuntimeError("cudaErrorCapturedEvent: the event was recorded in a capture")
            self.cupy.wait(lambda: work.done)


class Capture:
    """What streams are given while they are captured: nodes, and which come before which."""

    def __init__(self, cupy: FakeCupy, origin: int) -> None:
        self.cupy, self.origin = cupy, origin
        self.nodes: list[tuple[Callable[[], None], frozenset[int], int]] = []
        self.heads: dict[int, set[int]] = {origin: set()}

    def add(self, stream: int, run: Callable[[], None]) -> Work:
        self.nodes.append((run, frozenset(self.heads[stream]), stream))
        self.heads[stream] = {len(self.nodes) - 1}
        return Work(self.cupy.issued, run, lambda: False)

    def join(self, stream: int, record: RecordWork) -> None:
        self.cupy.captures[stream] = self
        self.heads.setdefault(stream, set()).update(record.nodes)

    def end(self) -> Graph:
        for stream in self.heads:
            del self.cupy.captures[stream]
        joined, todo = set(), list(self.heads[self.origin])
        while todo:
            node = todo.pop()
            if node not in joined:
                joined.add(node)
                todo += self.nodes[node][1]
        if len(joined) < len(self.nodes):
            raise CUDARuntimeError("cudaErrorStreamCaptureUnjoined: unjoined work in original stream")
        graph = Graph.__new__(self.cupy.made["Graph"])
        graph.nodes, graph.latest = self.nodes, None
        return graph


class Graph(metaclass=Compiled):
    """``cupy.cuda.Graph``: comes from a capture only."""

    cupy: FakeCupy
    nodes: list[tuple[Callable[[], None], frozenset[int], int]]
    latest: Work | None

    def __init__(self, *_: Any) -> None:
        raise NotImplementedError("currently this class cannot be initiated by the user")

    def launch(self, stream: Stream_ | None = None) -> None:
        number = self.cupy.active.ptr if stream is None else stream.ptr
        self.cupy.note("graph", number)
        before = self.latest
        self.latest = self.cupy.issue(number, self.run, lambda: before is None or before.done)

    def run(self) -> None:
        done: set[int] = set()
        while len(done) < len(self.nodes):
            able = [n for n, node in enumerate(self.nodes) if n not in done and node[1] <= done]
            if self.cupy.order != "issued":
                able.sort(key=lambda n: self.cupy.rank(self.nodes[n][2]))
            self.nodes[able[0]][0]()
            done.add(able[0])


class Device(metaclass=Compiled):
    """``cupy.cuda.Device``."""

    cupy: FakeCupy

    def __init__(self, device: int = 0) -> None:
        self.id = device

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def use(self) -> None:
        pass

    def synchronize(self) -> None:
        Runtime.deviceSynchronize(self.cupy.cuda.runtime)


class CUDARuntimeError(RuntimeError):
    """As ``cupy.cuda.runtime.CUDARuntimeError``."""


class CompileException(Exception):
    """As ``cupy.cuda.compiler.CompileException``."""


class Runtime:
    """``cupy.cuda.runtime``."""

    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3
    streamLegacy, streamPerThread = -1, -2  # streams are numbered from 1 here
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
        if self.cupy.captures:
            raise CUDARuntimeError("cudaErrorStreamCaptureUnsupported: a stream is capturing")
        self.cupy.wait(lambda: not any(self.cupy.queues.values()))

    def streamSynchronize(self, stream: int) -> None:
        self.cupy.note("synchronize", stream)
        self.cupy.wait_for(stream)

    def memset(self, pointer: int, value: int, size: int) -> None:
        self.memsetAsync(pointer, value, size, 0)

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:
        target = self.cupy.bytes_at(pointer, size)
        self.cupy.issue(stream, lambda: target.fill(value))

    def memcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> None:
        for pointer, device in (
            (target, kind != self.memcpyDeviceToHost),
            (source, kind != self.memcpyHostToDevice),
        ):
            if device:
                self.cupy.check_memory(pointer, size)
        self.cupy.note("copy", stream, target, source, size, kind)
        self.cupy.issue(stream, lambda: ctypes.memmove(target, source, size))


# Kernels


class RawKernel(metaclass=Compiled):
    """A kernel of one's own: compiled by NVRTC at its first call, and computed in numpy."""

    cupy: FakeCupy
    STATE = ("code", "name", "options", "backend", "file_path", "name_expressions")

    def __init__(self, code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        assert isinstance(options, tuple)
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self.file_path = self.name_expressions = None

    def __getstate__(self) -> dict[str, Any]:
        return {word: getattr(self, word) for word in self.STATE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for word in self.STATE:
            setattr(self, word, state[word])

    def __call__(self, grid: Any, block: Any, args: tuple[Any, ...], *, shared_mem: int = 0) -> None:
        self.kernel(grid, block, args, shared_mem)

    @property
    def kernel(self) -> Function:
        try:
            compiled(self.code, f"{self.name}.cu", "sm_80", self.options)
        except Exception as problem:
            raise CompileException(str(problem)) from None
        return Function(self.cupy, self.name, self.options)


class RawModule(metaclass=Compiled):
    """Several kernels in one text."""

    cupy: FakeCupy

    def __init__(self, *, code: str, options: tuple[str, ...] = (), name_expressions: Any = None) -> None:
        assert isinstance(options, tuple)
        self.code, self.options, self.name_expressions = code, options, name_expressions

    def get_function(self, name: str) -> RawKernel:
        kernel = self.cupy.made["RawKernel"](self.code, name, self.options)
        assert kernel.kernel is not None  # compiles
        return kernel


class Function(metaclass=Compiled):
    """A compiled kernel. It takes the stream too."""

    def __init__(self, cupy: FakeCupy, name: str, options: tuple[str, ...]) -> None:
        self.cupy, self.name = cupy, name
        self.dtype = next((t for t in kernels.STORAGE_TYPES if f"-DSTORAGE_{t.upper()}" in options), "")

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        number = stream.ptr if stream else self.cupy.active.ptr
        if self.dtype:
            assert shared_mem == 0
            values = self.checked(args)
            run = functools.partial(compute, self.name, self.dtype, values)
        else:
            meaning = self.cupy.meanings[self.name]
            run = functools.partial(meaning, *[a.values if isinstance(a, ndarray) else a for a in args])
        shown = tuple(a._data.ptr if isinstance(a, ndarray) else a for a in args)
        self.cupy.note("launch", number, self.name, grid, block, shown)
        self.cupy.issue(number, run)

    def checked(self, arguments: tuple[Any, ...]) -> dict[str, Any]:
        """The arguments of one of the lab's kernels, by name, each of the right kind, dtype and size."""
        values: dict[str, Any] = {}
        for value, argument in zip(arguments, kernels.load(self.name).arguments, strict=True):
            if argument.is_buffer:
                half = argument.ctype == "STORAGE" and self.dtype != "float32"
                wanted = {"float16": np.float16, "bfloat16": np.uint16}[self.dtype] if half else np.float32
                assert isinstance(value, ndarray), f"{self.name}: {argument.name} is {value!r}"
                assert value.dtype == wanted, f"{self.name}: {argument.name} is {value.dtype}, not {wanted}"
                self.cupy.check_memory(value._data.ptr, value.nbytes)
                value = value.values
            else:
                wanted = {"int": np.int32, "float": np.float32}[argument.ctype]
                assert type(value) is wanted, f"{self.name}: {argument.name} is {value!r}, not {wanted}"
            values[argument.name] = value
        return values


def compute(kernel: str, dtype: str, given: dict[str, Any]) -> None:
    """The result of one of the lab's kernels in float32, with numpy in the place of threads."""
    arguments = {a.name: a for a in kernels.load(kernel).arguments}
    sizes = {name: int(given[name]) for name in ("tokens", "n", "k") if name in given}
    shapes = {"x": "tokens n", "g": "n", "W": "k n", "W_folded": "k n", "h": "tokens n", "y": "tokens k",
              "r": "tokens", "z": "tokens k"}  # fmt: skip

    def storage(name: str) -> str:
        return dtype if arguments[name].ctype == "STORAGE" else "float32"

    def read(name: str) -> np.ndarray:
        return from_storage(given[name].reshape([sizes[s] for s in shapes[name].split()]), storage(name))

    def write(name: str, values: np.ndarray) -> None:
        stored = to_storage(values, storage(name))
        given[name].reshape(stored.shape)[...] = stored

    def scale() -> np.ndarray:
        return 1 / np.sqrt(np.mean(read("x") ** 2, axis=1) + given["eps"])

    match kernel:
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
            given["sink"][0] = 1


class Parameter:
    """A parameter of an `ElementwiseKernel`."""

    def __init__(self, text: str, is_const: bool) -> None:
        *words, self.name = text.split()
        self.raw, self.is_const = "raw" in words, is_const


class ElementwiseKernel(metaclass=Compiled):
    """``cupy.ElementwiseKernel``; the operation is one assignment that reads the same in C and in Python."""

    cupy: FakeCupy

    def __init__(self, in_params: str, out_params: str, operation: str, name: str = "kernel") -> None:
        self.in_params = tuple(Parameter(p, True) for p in in_params.split(","))
        self.out_params = tuple(Parameter(p, False) for p in out_params.split(","))
        self.operation, self.name, self.nin, self.nout = operation, name, len(self.in_params), 1

    def __call__(self, *args: Any, size: int | None = None, stream: Stream_ | None = None) -> ndarray:
        names = [p.name for p in self.in_params]
        target, _, more, value = re.match(  # type: ignore[union-attr]
            r"\s*(\w+)(\[i\])?\s*(\+?)=\s*([^;]*)", self.operation
        ).groups()
        assert target == self.out_params[0].name

        def function(*values: Any) -> Any:
            return eval(value, {}, dict(zip(names, values, strict=True)))

        out = args[self.nin] if len(args) > self.nin else None
        if more:
            names, value, args = [*names, target], f"{target} + {value}", (*args[: self.nin], out)
            with self.cupy.active if stream is None else stream:
                return self.cupy.compute(self.name, function, args, out)
        with self.cupy.active if stream is None else stream:
            return self.cupy.compute(self.name, function, args[: self.nin], out)


class ReductionKernel(ElementwiseKernel):
    """``cupy.ReductionKernel``; it adds up."""

    def __init__(
        self, in_params: str, out_params: str, map_expr: str, reduce_expr: str, post_map_expr: str,
        identity: str, name: str = "reduce_kernel",
    ) -> None:  # fmt: skip
        assert reduce_expr == "a + b"
        super().__init__(in_params, out_params, f"{out_params.split()[-1]} = ({map_expr}).sum()", name)


__name__ = "cupy.simulated"  # who asks which line of a program makes a call must pass over CuPy's own lines
