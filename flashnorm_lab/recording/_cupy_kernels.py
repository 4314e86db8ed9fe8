"""CuPy's kernels of one's own: recorded forms of RawKernel, RawModule, ElementwiseKernel, ReductionKernel.

They are compiled classes, whose methods cannot be replaced. So a recording replaces their names by
subclasses, and objects that were made before it by objects of these.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..schedule import Access
from . import cuda_roles
from ._cupy_memory import DEVICE
from ._cupy_now import listener, now

if TYPE_CHECKING:
    from .cupy import Backend

LOWEST_ADDRESS = 1 << 20
"""A number that is smaller is no address."""
NO_ADDRESS = frozenset(
    {float, bool, complex, np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32}
    | {np.float16, np.float32, np.float64, np.complex64, np.complex128}
)
"""Types of numbers that hold none."""


class Kernels:
    """What launches of a program's own kernels do."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.tape = backend, backend.tape
        cupy = backend.cupy
        self.raw_kernel, self.raw_module = cupy.RawKernel, cupy.RawModule
        self.with_params = cupy.ElementwiseKernel, cupy.ReductionKernel

    def install(self) -> None:
        backend, cupy = self.backend, self.backend.cupy
        backend.replace(cupy, "RawKernel", seen_raw_kernel)
        backend.replace(cupy, "RawModule", seen_raw_module)
        backend.replace(cupy, "ElementwiseKernel", seen_with_params)
        backend.replace(cupy, "ReductionKernel", seen_with_params)

    def recorded_form(self, made: Any) -> Any:
        """What stands for a kernel or a module that was made before the recording."""
        if type(made) is self.raw_kernel:
            return seen_raw_kernel(self.raw_kernel).of(made)
        if type(made) is self.raw_module:
            return _Module(made, None)
        return Standin(made, functools.partial(_call, made, made))

    def launched(self, kernel: Any, args: tuple[Any, ...], stream: Any = None) -> None:
        """A RawKernel was launched."""
        name = kernel._asked or kernel.name
        roles = cuda_roles.roles(kernel.code, name) if kernel.code else None
        if roles is None or len(roles) != len(args):
            self.tape.unseen(
                "what a kernel does with its arrays (its source does not tell; taken as read and written)",
                about=name,
            )
            roles = (cuda_roles.BOTH,) * len(args)
        accesses: list[Access] = []
        array, ndarray = self.backend.memory.array, self.backend.ndarray
        for value, role in zip(args, roles, strict=True):
            if role == cuda_roles.VALUE:
                if type(value) not in NO_ADDRESS:
                    accesses += self._through(name, value, role)
            elif role in (cuda_roles.READ, cuda_roles.WRITE) and isinstance(value, ndarray):
                accesses += array(value, role == cuda_roles.WRITE)
            else:
                accesses += self._through(name, value, role)
        self.backend.work(name, self.backend.streams.of(stream), accesses)

    def _through(self, kernel: str, value: Any, role: str) -> list[Access]:
        """What a launch does through one of its arguments."""
        memory = self.backend.memory
        known = role if role in (cuda_roles.READ, cuda_roles.WRITE) else cuda_roles.BOTH
        if isinstance(value, self.backend.ndarray):
            if role == cuda_roles.POINTERS:
                self.tape.unseen("memory that a kernel reaches by the pointers in an array", about=kernel)
            return _in_role(known, functools.partial(memory.array, value))
        if isinstance(value, self.backend.pointer):
            value = value.ptr
        if isinstance(value, int | np.integer) and not isinstance(value, bool):
            block = memory.block_at(int(value)) if value >= LOWEST_ADDRESS else None
            if block is not None:
                rest = block.stop - int(value)
                return _in_role(known, functools.partial(memory.bytes, DEVICE, int(value), rest))
            if role != cuda_roles.VALUE and value:
                self.tape.unseen("memory that a kernel is given by its address only", about=kernel)
        elif isinstance(value, np.ndarray | np.void) or type(value).__name__ in (
            "TextureObject",
            "SurfaceObject",
        ):
            self.tape.unseen("memory that a kernel reaches through a structure or a texture", about=kernel)
        return []

    def called(self, kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An ElementwiseKernel or a ReductionKernel was called."""
        ndarray = self.backend.ndarray
        read = [a for a in args[: kernel.nin] if isinstance(a, ndarray)]
        outs = [a for a in (*args[kernel.nin :], kwargs.get("out")) if isinstance(a, ndarray)]
        results = result if isinstance(result, tuple) else (result,)
        made = [a for a in results if isinstance(a, ndarray)]
        operation = getattr(kernel, "operation", None)
        if operation is not None:  # what is there already may be read as well
            pairs = zip(kernel.out_params, outs, strict=False)
            read += [a for p, a in pairs if not cuda_roles.only_set(operation, p.name)]
        written = outs + [a for a in made if not any(a is o for o in outs)]
        self.backend.launched(kernel.name, written, read, made, stream=kwargs.get("stream"))


def _in_role(role: str, accesses: Callable[[bool], list[Access]]) -> list[Access]:
    found = [] if role == cuda_roles.WRITE else accesses(False)
    return found if role == cuda_roles.READ else found + accesses(True)


# The recorded forms. There is one for each class of CuPy's, for all recordings.


@functools.lru_cache(maxsize=16)
def seen_raw_kernel(native: Any) -> Any:
    class RawKernel(native):
        __doc__ = native.__doc__
        _asked = ""

        @classmethod
        def of(cls, kernel: Any, asked: str = "") -> Any:
            """The same kernel, recorded. ``asked``: its name before C++ has mangled it."""
            seen = cls.__new__(cls)
            seen.__setstate__(kernel.__getstate__())
            seen._asked = asked
            return seen

        def __call__(self, grid: Any, block: Any, args: Any, **kwargs: Any) -> None:
            backend = listener()
            if backend is None:
                return super().__call__(grid, block, args, **kwargs)
            args = tuple(args)
            backend.enter()
            try:
                super().__call__(grid, block, args, **kwargs)
            finally:
                backend.leave()
            return backend.guarded(backend.kernels.launched, self, args)

        @property
        def kernel(self) -> Any:
            function = super().kernel
            return function if listener() is None else _Function(self, function)

    return RawKernel


@functools.lru_cache(maxsize=16)
def seen_raw_module(native: Any) -> Any:
    class RawModule(native):
        __doc__ = native.__doc__

        def get_function(self, name: str) -> Any:
            return _as_recorded(super().get_function(name), name)

        def get_global(self, name: str) -> Any:
            if now.backend is not None:
                now.backend.tape.unseen("what kernels do with a variable of their module", about=name)
            return super().get_global(name)

    return RawModule


def _as_recorded(kernel: Any, asked: str) -> Any:
    backend = now.backend
    return kernel if backend is None else seen_raw_kernel(backend.kernels.raw_kernel).of(kernel, asked)


@functools.lru_cache(maxsize=16)
def seen_with_params(native: Any) -> Any:
    class Kernel(native):
        __doc__ = native.__doc__

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return _call(self, super().__call__, *args, **kwargs)

    Kernel.__name__ = Kernel.__qualname__ = native.__name__
    return Kernel


def _call(kernel: Any, native: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    backend = listener()
    if backend is None:
        return native(*args, **kwargs)
    backend.enter()
    try:
        result = native(*args, **kwargs)
    finally:
        backend.leave()
    backend.guarded(backend.kernels.called, kernel, args, kwargs, result, settle=False)
    return result


class _Function:
    """A kernel's ``kernel``: the compiled function, which takes a stream too."""

    def __init__(self, kernel: Any, function: Any) -> None:
        self._kernel, self._function = kernel, function

    def __call__(
        self, grid: Any, block: Any, args: Iterable[Any], shared_mem: int = 0, stream: Any = None, **rest: Any
    ) -> None:
        args = tuple(args)
        self._function(grid, block, args, shared_mem, stream, **rest)
        self._launched(args, stream)

    def linear_launch(self, size: int, args: Iterable[Any], *rest: Any, **kwargs: Any) -> None:
        args = tuple(args)
        self._function.linear_launch(size, args, *rest, **kwargs)
        self._launched(args, kwargs.get("stream", rest[2] if len(rest) > 2 else None))

    def _launched(self, args: tuple[Any, ...], stream: Any) -> None:
        backend = listener()
        if backend is not None:
            backend.guarded(backend.kernels.launched, self._kernel, args, stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


class Standin:
    """Something compiled whose calls are recorded. In all else, and to `isinstance`, it is what it was.

    ``methods``: those of its methods that are recorded, by name.
    """

    def __init__(
        self, native: Any, call: Callable[..., Any] | None, methods: dict[str, Any] | None = None
    ) -> None:
        object.__setattr__(self, "_native", native)
        object.__setattr__(self, "_call", call)
        for name, method in (methods or {}).items():
            object.__setattr__(self, name, method)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._native)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._native, name, value)

    def __repr__(self) -> str:
        return repr(self._native)


class _Module(Standin):
    """A RawModule that was made before the recording."""

    def get_function(self, name: str) -> Any:
        return _as_recorded(self._native.get_function(name), name)
