"""CuPy's calls, as a recording sees them.

Streams, events and arrays are Python classes in CuPy: their methods are replaced while a recording is on, so
that objects made before it are seen too. Kernels, modules, graphs and ufuncs are compiled: for these the
names in ``cupy`` are replaced by subclasses and stand-ins, in CuPy and wherever else the program holds them
(`Rebinding`). CuPy's own `cupy.cuda.MemoryHook` tells of blocks that its pool hands out and gets back.

An array is bytes of the allocation that it lies in, by address. A call of CuPy is one launch: it reads the
arrays that it is given and writes those that it gives back (`_cupy_names` has the exceptions), with the
memory that it takes and gives back on the way. What a RawKernel does with a pointer is read off its source.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..program import Launch, Step
from ..schedule import Access
from . import _cupy_names as names
from ._assigned import assigned
from ._cupy_kernels import Kernels, Standin
from ._cupy_memory import DEVICE, HOST, Block, Memory
from ._cupy_now import listener, now
from ._cupy_streams import Streams, seen_graph
from ._rebind import Rebinding, modules_of_the_program
from ._swap import names_in
from ._tape import Tape

ALWAYS = (
    "CuPy: work that the GPU was given before the recording began",
    "CuPy: work that is started below its Python functions (cupy.cuda.Function, handles of cuBLAS and the "
    "like, sparse matrices), and what a kernel touches outside the arrays that it is given",
)
CUDA_FREE = "cudaFree"
"""A way to free that waits for the device."""
TO_DEVICE, TO_HOST, WITHIN_DEVICE, BY_ADDRESS = 1, 2, 3, 4
"""CUDA's kinds of copies."""


class _Kind(NamedTuple):
    """What is known of a function before it is called."""

    name: str
    nin: int | None = None
    """A ufunc's inputs; what is given beyond them is written."""
    out: int | None = None
    """Where among the positional arguments ``out`` stands."""


class _Thread(threading.local):
    """What a thread is at."""

    def __init__(self) -> None:
        self.within = False
        """In a call that is being recorded: what it calls is part of it."""
        self.busy = False
        self.hooked = False
        self.name = ""
        self.events: list[tuple[Any, ...]] = []
        """What was allocated and freed meanwhile."""


class Backend:
    """The hooks in CuPy. See `flashnorm_lab.recording.Backend`."""

    def __init__(self, recording: Tape) -> None:
        self.tape = recording
        self.on = False
        self._told = False
        self._undo: list[Callable[[], None]] = []
        self._thread = _Thread()
        self._lock = threading.RLock()
        self._swaps: dict[int, tuple[Any, Any]] = {}
        self._allocators: dict[int, tuple[Any, Any]] = {}
        self._untold: dict[int, tuple[str, int]] = {}
        """By thread: the line that has just taken memory outside all that is recorded, and where."""
        self.cupy: Any = None
        self.ndarray: Any = None
        self.pointer: Any = None
        self.memory = Memory(recording, self.add, self.where, self._is_pinned)

    # Putting the hooks in, and taking them out

    def install(self) -> None:
        cupy = self.cupy = sys.modules["cupy"]
        self.ndarray, self.pointer = cupy.ndarray, cupy.cuda.MemoryPointer
        self._ufunc, self._pool = cupy.ufunc, cupy.cuda.MemoryPool
        self._getitem = cupy.ndarray.__getitem__
        self.memory.data, self.memory.ndarray = _getter(cupy.ndarray, "data"), cupy.ndarray
        self.streams, self.kernels = Streams(self), Kernels(self)
        self.on, now.backend = True, self
        try:
            self._install_memory()
            self.streams.install()
            self._install_runtime()
            self._install_arrays()
            self._install_functions()
            self.kernels.install()
            self._rebind()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        self.on, now.backend = False, None
        self._tell_untold()
        while self._undo:
            self._undo.pop()()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute until `remove`."""
        if name in vars(owner):
            self._undo.append(functools.partial(setattr, owner, name, vars(owner)[name]))
        else:
            self._undo.append(functools.partial(delattr, owner, name))
        setattr(owner, name, value)

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
        """Replace a function or a class in its module, and wherever the program's modules hold it."""
        old = getattr(owner, name)
        if id(old) not in self._swaps:
            self._swaps[id(old)] = old, make(old)
        new = self._swaps[id(old)][1]
        self._set(owner, name, new)
        return new

    def after(
        self,
        cls: Any,
        name: str,
        then: Callable[..., Any],
        *,
        within: bool = False,
        failed: Callable[..., Any] | None = None,
        replaces: bool = False,
    ) -> None:
        """Call ``then(result, self, ...)`` after each call of a class's method.

        ``within``: also when CuPy calls it. ``failed``: what to call if it fails. ``replaces``: the method's
        result is then what ``then`` gives.
        """
        if hasattr(cls, name):
            native = getattr(cls, name)
            self._set(cls, name, self._followed(native, then, within, failed, replaces))

    def after_property(self, cls: Any, name: str, then: Callable[..., Any]) -> None:
        """Call ``then(value, self)`` after each reading of a class's property."""
        self._set(cls, name, property(self._followed(_getter(cls, name), then)))

    def _followed(
        self,
        native: Callable[..., Any],
        then: Callable[..., Any],
        within: bool = False,
        failed: Callable[..., Any] | None = None,
        replaces: bool = False,
    ) -> Callable[..., Any]:
        thread = self._thread

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.on or (thread.within and not within):
                return native(*args, **kwargs)
            outer, thread.within = thread.within, True
            try:
                result = native(*args, **kwargs)
            except Exception:
                if failed is not None:
                    self.guarded(failed, *args, **kwargs)
                raise
            finally:
                thread.within = outer
            given = self.guarded(then, result, *args, settle=not outer, **kwargs)
            return given if replaces and given is not None else result

        return _like(native, call)

    def _seen(self, native: Callable[..., Any], kind: _Kind) -> Callable[..., Any]:
        """A function of CuPy that does work: each of its calls is a launch."""
        thread = self._thread
        views = kind.name in names.ONLY_VIEWS

        def call(*args: Any, **kwargs: Any) -> Any:
            if thread.within or not self.on:
                return native(*args, **kwargs)
            if not thread.hooked:
                self._hook_thread()
            thread.within = True
            try:
                result = native(*args, **kwargs)
            except BaseException:
                thread.within = False
                self.guarded(self._settle)
                raise
            thread.within = False
            if views and not kwargs and not thread.events and self._is_view(result, args[0]):
                return result
            self.guarded(self._called, kind, args, kwargs, result, settle=False)
            return result

        return _like(native, call)

    def _is_view(self, result: Any, of: Any) -> bool:
        data = self.memory.data
        arrays = isinstance(result, self.ndarray) and isinstance(of, self.ndarray)
        return arrays and data(result).mem is data(of).mem

    def enter(self) -> None:
        """From here to `leave`, what this thread calls is part of a call that is recorded as a whole."""
        if self.on and not self._thread.hooked:
            self._hook_thread()
        self._thread.within = True

    def leave(self) -> None:
        self._thread.within = False

    def listening(self) -> bool:
        """Whether a call that this thread makes now is one of the program's own."""
        return self.on and not self._thread.within

    def guarded(self, record: Callable[..., Any], *args: Any, settle: bool = True, **kwargs: Any) -> Any:
        """Record a call that was made, and go on whatever comes of that.

        ``settle``: put what was allocated and freed in the meantime before it.
        """
        thread = self._thread
        outer, thread.busy = thread.busy, True
        try:
            if self._untold:
                self._tell_untold()
            with self._lock:
                if settle and thread.events:
                    self._settle()
                return record(*args, **kwargs)
        except Exception as problem:
            what = f"{type(problem).__name__}: {problem}"
            self.tape.unseen(f"a call of CuPy that could not be read ({what})", about=self.tape.source())
            return None
        finally:
            thread.busy = outer
            if thread.events and not outer and not thread.within:
                self.guarded(self._settle)

    def add(self, step: Step) -> None:
        """Add a step. The first one makes CuPy part of the recording."""
        if not self._told:
            self._told = True
            for text in ALWAYS:
                self.tape.unseen(text)
        self.tape.add(step)

    def where(self) -> tuple[str, str]:
        """The thread and the line of the program that makes the call at hand."""
        thread = self._thread
        if not thread.name:
            thread.name = self.tape.thread()
        return thread.name, self.tape.source()

    def work(
        self,
        name: str,
        stream: str,
        accesses: Iterable[Access],
        *,
        blocks: bool = False,
        category: str = "kernel",
    ) -> None:
        """Add a launch."""
        self.add(Launch(name, stream, tuple(accesses), (), "", blocks, category, -1, *self.where()))

    def _rebind(self) -> None:
        """Replace what the program's modules hold by name, and kernels and graphs that it has made before."""
        kernels, graph = self.kernels, self.cupy.cuda.Graph
        replaced = list(self._swaps.values())
        for space in modules_of_the_program():
            made = [v for v in list(space.values()) if type(v) in kernels.with_params]
            replaced += [(v, kernels.recorded_form(v)) for v in made]
        convert: dict[type, Callable[[Any], Any]] = dict.fromkeys(
            (kernels.raw_kernel, kernels.raw_module), kernels.recorded_form
        )
        rebinding = Rebinding(replaced, {**convert, graph: seen_graph(graph)})
        self._undo.append(rebinding.undo)
        for made, holder in rebinding.left:
            name = getattr(made, "name", f"a {type(made).__name__}")
            self.tape.unseen(
                f"launches of {name} through {holder} that has held it since before the recording; make it "
                "in the recording, or keep it in a variable of a module or of an object"
            )

    # Memory

    def _install_memory(self) -> None:
        cuda = self.cupy.cuda
        backend = self

        class Hook(cuda.MemoryHook):  # type: ignore[name-defined, misc]
            name = f"flashnorm_lab recording {id(self)}"

            def malloc_postprocess(self, **told: int) -> None:
                if told["mem_ptr"]:
                    sizes = told["size"], told["mem_size"]
                    backend._noticed("allocated", told["mem_ptr"], *sizes, told["device_id"])

            def free_preprocess(self, **told: int) -> None:
                backend._noticed("freed", told["mem_ptr"], "pool")

        self._hook = Hook()
        self._hook_thread()
        self._undo.append(self._unhook_thread)
        native = cuda.set_allocator
        before = cuda.get_allocator()
        if self._seen_allocator(before) is not before:
            native(self._seen_allocator(before))
        self._undo.append(functools.partial(self._put_allocator_back, native))
        memory, pinned = getattr(cuda, "memory", None), getattr(cuda, "pinned_memory", None)
        for owner in (cuda, memory):
            for name in ("set_allocator", "using_allocator"):
                if hasattr(owner, name):
                    self.replace(owner, name, self._seen_setting)
            if hasattr(owner, "alloc"):
                self.replace(owner, "alloc", self._seen_alloc)
        for owner in (cuda, pinned):
            if hasattr(owner, "alloc_pinned_memory"):
                self.replace(owner, "alloc_pinned_memory", lambda f: self._followed(f, self._pinned))

    def _hook_thread(self) -> None:
        """Each thread has its own memory hooks."""
        self._thread.hooked = True
        self._hook.__enter__()

    def _unhook_thread(self) -> None:
        if self._thread.hooked:
            self._thread.hooked = False
            self._hook.__exit__(None, None, None)

    def _noticed(self, *event: Any) -> None:
        """Memory was handed out ("allocated", address, bytes, bytes in all, device) or is given back."""
        thread = self._thread
        if not self.on:
            return
        thread.events.append(event)
        if not thread.within and not thread.busy:
            self.guarded(self._settle)
            source = self.tape.source()
            if event[0] == "allocated" and source:
                self._untold[threading.get_ident()] = source, event[1]
                block = self.memory.block_at(event[1])
                if block is not None:
                    self.memory.name(block, assigned(sys._getframe(1)))

    def _tell_untold(self) -> None:
        """Lines that took memory in no function that is recorded, and made no array of it themselves."""
        for thread in list(self._untold):
            source, _ = self._untold.pop(thread, ("", 0))
            self.tape.unseen(
                "a call of CuPy that took memory, and that is none of its functions", about=source
            )

    def _settle(self) -> None:
        """Record what was allocated and freed."""
        while self._thread.events:
            events, self._thread.events = self._thread.events, []
            for event in events:
                if event[0] == "allocated":
                    self._allocated(event)
                else:
                    self._freed(event)

    def _allocated(self, event: tuple[Any, ...]) -> Block:
        _, address, nbytes, whole, device, *stream = event
        self.streams.on_device(device)
        return self.memory.allocated(address, nbytes, whole, *stream)

    def _freed(self, event: tuple[Any, ...]) -> None:
        _, address, how, *stream = event
        if how == CUDA_FREE:
            how = "host"
            if self.memory.block_at(address) is not None:
                self.streams.synchronized()
        self.memory.freed(address, how, *stream)

    def _is_pinned(self, address: int) -> bool:
        """Whether CUDA has pinned this host memory, which then was done before the recording or by others."""
        try:
            return bool(self.cupy.cuda.pinned_memory.is_memory_pinned(address))
        except Exception:
            return False

    def _pinned(self, pointer: Any, size: int) -> None:
        self.memory.pinned(pointer.ptr, size, pointer.mem.size)

    def _seen_allocator(self, native: Callable[[int], Any]) -> Callable[[int], Any]:
        """An allocator whose memory is seen. A pool's is without more, by the memory hook."""
        if isinstance(getattr(native, "__self__", None), self._pool):
            return native
        if any(native is seen for _, seen in self._allocators.values()):
            return native
        if id(native) not in self._allocators:

            def allocate(size: int) -> Any:
                pointer = native(size)
                if not self.on or type(pointer.mem).__name__ == "PooledMemory" or not pointer.mem.ptr:
                    return pointer
                kept = self.guarded(self._kept, pointer.mem, size, settle=False)
                if kept is None:
                    return pointer
                self._noticed(*kept[1])
                return kept[0]

            self._allocators[id(native)] = native, allocate
        return self._allocators[id(native)][1]

    def _kept(self, mem: Any, size: int) -> tuple[Any, tuple[Any, ...]]:
        """The same memory, by an object that tells when it goes; and what there is to record of it now."""
        kind = type(mem).__name__
        on: tuple[str, ...] = ()
        if kind == "MemoryAsync":
            stream = mem.stream_ref
            on = (self.streams.of(stream() if isinstance(stream, weakref.ref) else stream),)
            how = "stream"
        elif kind in ("Memory", "ManagedMemory"):
            how = CUDA_FREE
        elif kind == "SystemMemory":
            how = "host"
        else:
            how = "pool"
            self.tape.unseen(
                "how an allocator that is not CuPy's orders memory that it hands out again", about=kind
            )
        kept = _Kept(self, mem, (how, *on))
        same = self.pointer(self.cupy.cuda.UnownedMemory(mem.ptr, mem.size, kept, mem.device_id), 0)
        return same, ("allocated", mem.ptr, size, mem.size, mem.device_id, *on)

    def _put_allocator_back(self, set_allocator: Callable[[Any], None]) -> None:
        now = self.cupy.cuda.get_allocator()
        for native, seen in self._allocators.values():
            if seen is now:
                set_allocator(native)

    def _seen_setting(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """``set_allocator`` and ``using_allocator``."""

        def call(allocator: Any = None) -> Any:
            if not self.on:
                return native(allocator)
            if allocator is not None:
                return native(self._seen_allocator(allocator))
            result = native(None)  # cudaMalloc
            if native.__name__ == "set_allocator":
                native(self._seen_allocator(self.cupy.cuda.get_allocator()))
            else:
                self.tape.unseen("memory that CuPy takes from cudaMalloc directly", about=self.tape.source())
            return result

        return _like(native, call)

    def _seen_alloc(self, native: Callable[..., Any]) -> Callable[..., Any]:
        """``cupy.cuda.alloc``: what it gives back knows of the copies that are made through it."""
        seen = self._seen(native, _Kind("alloc"))

        def call(size: int) -> Any:
            pointer = seen(size)
            return seen_pointer(self.pointer)(pointer.mem, 0) if self.on else pointer

        return _like(native, call)

    def through_pointer(
        self, name: str, later: bool, pointer: Any, other: Any, size: int, stream: Any = None
    ) -> None:
        """A copy or a fill by one of a pointer's methods. ``later``: one of the asynchronous ones."""
        on = self.streams.of(stream if later else 0)
        if name == "memset":
            self._filled(pointer.ptr, size, on)
        elif hasattr(other, "mem"):
            self._copied(pointer.ptr, other.ptr, size, WITHIN_DEVICE, on, later)
        else:
            address = other if isinstance(other, int) else other.value
            if name == "copy_to_host":
                self._copied(address, pointer.ptr, size, TO_HOST, on, later)
            else:
                self._copied(pointer.ptr, address, size, TO_DEVICE, on, later)

    def _filled(self, address: int, size: int, stream: str) -> None:
        accesses = self.memory.bytes(DEVICE, address, size, True)
        self.work(_named("fill", accesses), stream, accesses, category="fill")

    def _copied(self, target: int, source: int, size: int, kind: int, stream: str, later: bool) -> None:
        """A copy by addresses. ``later``: cudaMemcpyAsync, which need not be done when it returns."""
        to = self.memory.bytes(HOST if kind == TO_HOST else DEVICE, target, size, True)
        of = self.memory.bytes(HOST if kind == TO_DEVICE else DEVICE, source, size, False)
        self._copy(of, to, kind, stream, later)

    def _copy(self, of: list[Access], to: list[Access], kind: int, stream: str, later: bool) -> None:
        """A copy between host and device waits as CUDA says for memory that is pinned and that is not.

        Not pinned, a copy to the host is done when the call returns, and a copy to the device may still be
        under way from the driver's own memory.
        """
        pinned: list[Access] = []
        blocks = False
        if kind == TO_HOST:
            pinned = to
            blocks = not later or not pinned
        elif kind == TO_DEVICE:
            pinned = of
            blocks = not later and bool(pinned)
            if not later and not pinned:
                self.streams.synchronized(stream=stream)
        ends = [accesses[0].buffer if accesses else "the host" for accesses in (of, to)]
        self.work(f"copy {ends[0]} to {ends[1]}", stream, [*of, *to], blocks=blocks, category="copy")
        if pinned and not blocks:
            self._tell_pinned(pinned)

    def _tell_pinned(self, accesses: list[Access]) -> None:
        text = "what the host itself does with pinned memory that is copied while it goes on"
        self.tape.unseen(text, about=accesses[0].buffer)

    # Arrays

    def _install_arrays(self) -> None:
        ndarray = self.ndarray
        for name in (*names.OPERATORS, *names.IN_PLACE, *names.METHODS, *sorted(names.TO_HOST)):
            native = getattr(ndarray, name, None)
            if callable(native) and native is not getattr(object, name, None):
                self._set(ndarray, name, self._seen(native, _Kind(name, out=_position_of_out(native))))
        self._set(ndarray, "__init__", self._seen_constructor(ndarray.__init__))
        self.after(ndarray, "get", self._got)
        self.after(ndarray, "set", self._put)
        for name in ("__dlpack__", "toDlpack"):
            self.after(ndarray, name, self._handed_over)
        if hasattr(ndarray, "__cuda_array_interface__"):
            self.after_property(ndarray, "__cuda_array_interface__", self._handed_over)
        if hasattr(ndarray, "flat"):
            told = "what is done through an array's .flat"
            self.after_property(ndarray, "flat", lambda *_: self.tape.unseen(told, about=self.tape.source()))
        data = self.memory.data

        def pointer(array: Any) -> Any:
            found = data(array)
            return (
                seen_pointer(self.pointer)(found.mem, found.ptr - found.mem.ptr)
                if self.listening()
                else found
            )

        self._set(ndarray, "data", property(pointer))

    def _seen_constructor(self, native: Callable[..., None]) -> Callable[..., None]:
        """``cupy.ndarray(...)`` in the program; the memory is taken before. CuPy itself has another way."""

        def call(array: Any, *args: Any, **kwargs: Any) -> None:
            native(array, *args, **kwargs)
            found = self._untold.get(threading.get_ident())
            if found is not None and found[1] == self.memory.data(array).mem.ptr:
                self._untold.pop(threading.get_ident(), None)

        return _like(native, call)

    def _got(
        self,
        result: Any,
        array: Any,
        stream: Any = None,
        order: str = "C",
        out: Any = None,
        blocking: bool = True,
    ) -> None:
        of, to = self.memory.array(array, False), self.memory.numpy(result, True)
        self._copy(of, to, TO_HOST, self.streams.of(stream), not blocking)

    def _put(self, _: None, array: Any, values: Any, stream: Any = None) -> None:
        of, to = self.memory.numpy(values, False), self.memory.array(array, True)
        self._copy(of, to, TO_DEVICE, self.streams.of(stream), True)

    def _seen_asnumpy(self, native: Callable[..., Any]) -> Callable[..., Any]:
        def then(
            result: Any, array: Any, stream: Any = None, order: str = "C", *rest: Any, **more: Any
        ) -> None:
            if isinstance(array, self.ndarray):
                self._got(result, array, stream, order, *rest, **more)

        return self._followed(native, then)

    def _handed_over(self, _: Any, array: Any, *args: Any, **kwargs: Any) -> None:
        for buffer in dict.fromkeys(a.buffer for a in self.memory.array(array, False)):
            self.tape.unseen("what another library does with an array that it is handed", about=buffer)

    # Functions

    def _install_functions(self) -> None:
        cupy = self.cupy
        for module in self._modules():
            for name, value in list(names_in(module).items()):
                if name.startswith("_") or name in names.PLAIN or name in names.CALLERS or name == "asnumpy":
                    continue
                if issubclass(type(value), types.ModuleType):  # to ask it anything would load a lazy one
                    continue
                if isinstance(value, self._ufunc):
                    self.replace(module, name, self._seen_ufunc)
                elif inspect.isroutine(value) and _is_cupys(value):
                    kind = _Kind(name, out=_position_of_out(value))
                    self.replace(module, name, functools.partial(self._seen, kind=kind))
        self.replace(cupy, "asnumpy", self._seen_asnumpy)
        for cls in self._callables():
            self._set(cls, "__call__", self._seen(cls.__call__, _Kind("")))
        random = vars(cupy).get("random")
        for cls in (vars(random).get("RandomState"), vars(random).get("Generator")) if random else ():
            for name, value in list(vars(cls).items()) if cls is not None else ():
                if not name.startswith("_") and callable(value):
                    self._set(cls, name, self._seen(value, _Kind(name)))

    def _modules(self) -> Iterator[Any]:
        """The modules whose functions do work: CuPy's own, and those of cupyx that have been imported."""
        cupy = self.cupy
        yield cupy
        for name in ("linalg", "fft", "random", "cublas"):
            if inspect.ismodule(vars(cupy).get(name)):
                yield vars(cupy)[name]
        for name, module in list(sys.modules.items()):
            is_work = name == "cupyx" or (name.startswith("cupyx.scipy.") and ".sparse" not in name)
            if is_work and "._" not in name and self._is_of_this_cupy(module):
                yield module

    def _is_of_this_cupy(self, module: Any) -> bool:
        return sys.modules.get("cupy.cuda") is self.cupy.cuda and inspect.ismodule(module)

    def _callables(self) -> Iterator[Any]:
        """Python classes whose objects are called; the program may have made them before the recording."""
        cupy = self.cupy
        found = [type(vars(cupy).get("matmul")), vars(cupy).get("vectorize")]
        if "fuse" in vars(cupy):
            found.append(type(cupy.fuse(lambda x: x)))
        jit = sys.modules.get("cupyx.jit")
        if self._is_of_this_cupy(jit):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # that it is experimental
                found.append(type(jit.rawkernel()(lambda: None)))
        for cls in found:
            if isinstance(cls, type) and _is_cupys(cls) and not inspect.isroutine(cls):
                yield cls

    def _seen_ufunc(self, native: Any) -> Any:
        name = native.name.removeprefix("cupy_")
        methods = {
            m: self._seen(getattr(native, m), _Kind("at" if m == "at" else name))
            for m in ("reduce", "accumulate", "reduceat", "outer", "at")
            if hasattr(native, m)
        }
        return Standin(native, self._seen(native.__call__, _Kind(name, nin=native.nin)), methods)

    def _called(self, kind: _Kind, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call of CuPy is over: what it did, from what it was given and what it gave back."""
        if result is NotImplemented:
            return self._settle()
        if kind.name == "copyto" and len(args) == 2 and not kwargs and isinstance(args[1], self.ndarray):
            self._settle()
            of, to = self.memory.array(args[1], False), self.memory.array(args[0], True)
            return self._copy(of, to, WITHIN_DEVICE, self.streams.of(), True)
        given: list[Any] = []
        from_host: list[Any] = []
        for value in _flat((args, tuple(kwargs.values())) if kwargs else args):
            if isinstance(value, self.ndarray):
                given.append(value)
            elif isinstance(value, np.ndarray):
                from_host.append(value)
        made = [a for a in _flat((result,)) if isinstance(a, self.ndarray)]
        written, read = self._written(kind, args, kwargs, given, made, result)
        name = names.plain_name(kind.name or _name_of(args[0]))
        to_host = kind.name in names.TO_HOST
        pinned = [x for a in from_host for x in self.memory.numpy(a, False)]
        blocks = to_host or bool(kwargs.get("blocking"))
        if pinned and not blocks:
            self._tell_pinned(pinned)
        copies = to_host or (bool(from_host) and kind.name in names.FROM_HOST)
        return self.launched(
            name,
            written,
            read,
            made,
            pinned,
            stream=kwargs.get("stream"),
            blocks=blocks,
            category="copy" if copies else "kernel",
            idle=kind.name in names.IDLE,
        )

    def _written(
        self,
        kind: _Kind,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: list[Any],
        made: list[Any],
        result: Any,
    ) -> tuple[list[Any], list[Any]]:
        """Which arrays a call wrote, and which it read."""
        name = kind.name
        if name in names.IDLE:
            return [], []
        if name in names.IN_PLACE:
            return given[:1], given
        outs = _flat((kwargs["out"],)) if kwargs.get("out") is not None else ()
        if kind.nin is not None:
            outs = (*outs, *args[kind.nin :])
        elif kind.out is not None:
            outs = (*outs, *args[kind.out : kind.out + 1])
        written = [a for a in outs if isinstance(a, self.ndarray)]
        if result is None and name in names.FIRST:
            if name == "__setitem__":
                return [self._assigned_part(*args[:2])], given[1:]
            return given[:1], given[1:] if name in names.ONLY_WRITTEN else given
        if not made and not written:
            return (given, given) if result is None and name not in names.TO_HOST else ([], given)
        if not name and given and type(args[0]).__name__ == "Fusion":  # may change what it is given
            return [*given, *(a for a in made if not any(a is g for g in given))], given
        read = [a for a in given if not any(a is w for w in written)]
        fresh = {event[1] for event in self._thread.events if event[0] == "allocated"}
        for array in made:
            if any(array is w for w in written):
                continue
            if self.memory.data(array).mem.ptr not in fresh:
                if name in names.VIEWS:
                    continue
                read.append(array)
            written.append(array)
        return written, read if written else []

    def _assigned_part(self, array: Any, key: Any) -> Any:
        """What ``array[key] = value`` writes: the view ``array[key]``, or all of it where that is none."""
        keys = key if isinstance(key, tuple) else (key,)
        if all(k is None or k is Ellipsis or isinstance(k, int | np.integer | slice) for k in keys):
            self.enter()
            try:
                return self._getitem(array, key)
            finally:
                self.leave()
        return array

    def launched(
        self,
        name: str,
        written: list[Any],
        read: list[Any],
        made: list[Any],
        more: Iterable[Access] = (),
        *,
        stream: Any = None,
        blocks: bool = False,
        category: str = "kernel",
        idle: bool = False,
    ) -> None:
        """Add a call as one launch, with what was allocated and freed in it.

        ``written``, ``read``, ``made``: arrays; ``more``: further accesses. ``idle``: it does no work.
        """
        events, self._thread.events = self._thread.events, []
        reads = [*(x for a in read for x in self.memory.array(a, False)), *more]
        on = "" if idle else self.streams.of(stream)
        results = {self.memory.data(a).mem.ptr for a in made}
        fresh: list[Block] = []
        freed: list[tuple[Any, ...]] = []
        for event in events:
            if event[0] == "freed":
                freed.append(event)
                continue
            start, stop = event[1], event[1] + event[3]
            if freed and any(
                start < b.stop and b.start < stop for b in fresh
            ):  # taken, given back, taken again
                self.work(name, on, [*reads, *(b.all_written() for b in fresh)], category=category)
                fresh, freed = self._all_freed(freed), []
            fresh.append(self._allocated(event))
        new = [b for b in fresh if b.start in results or idle]
        if not idle:
            writes = [x for a in written for x in self.memory.array(a, True)]
            temporary = [b.all_written() for b in fresh if b.start not in results]
            if reads or writes or temporary:
                self.work(name, on, [*reads, *writes, *temporary], blocks=blocks, category=category)
        for block in new:
            self.memory.name(block, assigned(sys._getframe(1)) if len(new) == 1 else "")
        self._all_freed(freed)

    def _all_freed(self, events: list[tuple[Any, ...]]) -> list[Block]:
        for event in events:
            self._freed(event)
        return []

    # cupy.cuda.runtime

    def _install_runtime(self) -> None:
        runtime = self.cupy.cuda.runtime
        modules = [runtime]
        copy = sys.modules.get("cupy.cuda.runtime")
        if copy is not None and copy is not runtime and self._is_of_this_cupy(copy):
            modules.append(copy)
        calls = self._runtime_calls()
        for name in names.NOT_RECORDED:
            told = f"cupy.cuda.runtime.{name}"
            calls[name] = lambda *_, told=told, **__: self.tape.unseen(told, about=self.tape.source())
        for module in modules:
            for name, then in calls.items():
                if hasattr(module, name):
                    self.replace(module, name, functools.partial(self._followed, then=then))

    def _runtime_calls(self) -> dict[str, Callable[..., Any]]:
        """What each function of ``cupy.cuda.runtime`` does, by its name."""
        streams, memory = self.streams, self.memory

        def copied(
            later: bool, _: None, target: int, source: int, size: int, kind: int, stream: int = 0
        ) -> None:
            if kind == BY_ADDRESS:
                to, of = (memory.block_at(a) is not None for a in (target, source))
                kind = WITHIN_DEVICE if to and of else TO_DEVICE if to else TO_HOST
            self._copied(target, source, size, kind, streams.of(stream), later)

        def filled(_: None, address: int, value: int, size: int, stream: int = 0) -> None:
            self._filled(address, size, streams.of(stream))

        def allocated(address: int, size: int, *stream: int) -> None:
            self._allocated(("allocated", address, size, size, None, *map(streams.of, stream)))

        def freed(_: None, address: int, *stream: int) -> None:
            self._freed(("freed", address, "stream" if stream else CUDA_FREE, *map(streams.of, stream)))

        return {
            "deviceSynchronize": lambda _: streams.synchronized(),
            "streamSynchronize": lambda _, stream: streams.synchronized(stream=streams.of(stream)),
            "eventSynchronize": lambda _, event: streams.synchronized(event=streams.event_at(event)),
            "streamQuery": lambda code, stream: streams.queried(code == 0, stream=streams.of(stream)),
            "eventQuery": lambda code, event: streams.queried(code == 0, event=streams.event_at(event)),
            "eventRecord": lambda _, event, stream: streams.recorded(
                streams.event_at(event), streams.of(stream)
            ),
            "streamWaitEvent": lambda _, stream, event, *__: streams.waited(
                streams.of(stream), streams.event_at(event)
            ),
            "memset": filled,
            "memsetAsync": filled,
            "memcpy": functools.partial(copied, False),
            "memcpyAsync": functools.partial(copied, True),
            "malloc": allocated,
            "mallocAsync": allocated,
            "free": freed,
            "freeAsync": freed,
        }


@functools.lru_cache(maxsize=16)
def seen_pointer(native: Any) -> Any:
    """A pointer that knows of the copies that are made through it; one class for all recordings."""

    class MemoryPointer(native):
        __doc__ = native.__doc__

        def __add__(self, offset: int) -> Any:
            return type(self)(self.mem, self.ptr - self.mem.ptr + offset)

        __radd__ = __add__

        def __sub__(self, offset: int) -> Any:
            return self + -offset

    for name in ("copy_from_device", "copy_from_host", "copy_from", "copy_to_host", "memset"):
        for method, later in ((name, False), (f"{name}_async", True)):
            if hasattr(native, method):
                setattr(MemoryPointer, method, _through(getattr(native, method), name, later))
    return MemoryPointer


def _through(native: Callable[..., None], name: str, later: bool) -> Callable[..., None]:
    def call(pointer: Any, *args: Any, **kwargs: Any) -> None:
        backend = listener()
        if backend is None:
            return native(pointer, *args, **kwargs)
        backend.enter()
        try:
            native(pointer, *args, **kwargs)
        finally:
            backend.leave()
        return backend.guarded(backend.through_pointer, name, later, pointer, *args, **kwargs)

    return _like(native, call)


class _Kept:
    """Owns memory that comes from no pool, and tells when it is given back."""

    def __init__(self, backend: Backend, mem: Any, how: tuple[str, ...]) -> None:
        self._backend, self._mem, self._how = backend, mem, how

    def __del__(self) -> None:
        self._backend._noticed("freed", self._mem.ptr, *self._how)


def _like(native: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    """Give a replacement the name and the documentation of what it replaces."""
    return functools.update_wrapper(
        call, native, assigned=[a for a in functools.WRAPPER_ASSIGNMENTS if hasattr(native, a)], updated=()
    )


def _getter(cls: type, name: str) -> Callable[[Any], Any]:
    """How an attribute of a class is read, whatever is put in its place later."""
    descriptor = inspect.getattr_static(cls, name)
    return lambda thing: descriptor.__get__(thing, type(thing))


def _is_cupys(value: Any) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")


def _name_of(called: Any) -> str:
    """What an object that is called goes by."""
    for thing in (called, getattr(called, "_func", None), getattr(called, "pyfunc", None)):
        for attribute in ("__name__", "name"):
            if isinstance(getattr(thing, attribute, None), str):
                return getattr(thing, attribute)
    return type(called).__name__


@functools.lru_cache(maxsize=1024)
def _position_of_out(native: Callable[..., Any]) -> int | None:
    try:
        parameters = list(inspect.signature(native).parameters)
    except (TypeError, ValueError):
        return None
    return parameters.index("out") if "out" in parameters else None


def _named(word: str, accesses: list[Access]) -> str:
    return f"{word} {accesses[0].buffer}" if accesses else word


def _flat(things: Any, depth: int = 3) -> tuple[Any, ...] | list[Any]:
    """What lies in tuples and lists, not too deep."""
    if not any(isinstance(thing, tuple | list) for thing in things):
        return things
    found: list[Any] = []
    for thing in things:
        if depth and isinstance(thing, tuple | list):
            found += _flat(thing, depth - 1)
        else:
            found.append(thing)
    return found
