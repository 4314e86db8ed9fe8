"""The host's ordered list of what one step does: launches, copies, records, waits, synchronizations.

A schedule needs no device. It can be printed, drawn, checked for hazards (`flashnorm_lab.hazards`) and
explained on a machine with nothing installed; a device turns it into a plan that replays it.

The deferred step, Proposition 2 of FlashNorm (arXiv 2407.09577), on three streams::

    main     copy x ──┬──────────────────────────┬── post_scale ── copy z
    matrix            └─ projection (y) ─────────┤
    vector            └─ inv_rms (r) ────────────┘
                   fork_matrix, fork_vector   join_matrix, join_vector
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from . import kernels
from .errors import LabError

EDGES = ("fork_matrix", "fork_vector", "join_matrix", "join_vector")
"""The four orderings of the deferred step. Each is an event recorded on one stream, waited for on another."""

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
IO = ("stream", "host", "torch")


@dataclass(frozen=True)
class Buffer:
    """Device memory with a name. ``per_step`` buffers have one row a step in their first dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    per_step: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the whole buffer, or of one step's row where it has one a step."""
        return math.prod(self.shape) * BYTES[self.dtype]


@dataclass(frozen=True)
class Access:
    """Bytes ``start`` to ``stop`` of a buffer or, with ``per_step``, of the row of the step at hand."""

    buffer: str
    start: int
    stop: int
    writes: bool
    per_step: bool = False


@dataclass(frozen=True)
class Launch:
    """Start a kernel on a stream. ``arguments`` are buffer names or numbers, in the kernel's own order."""

    name: str
    kernel: str
    stream: str
    arguments: tuple[str | int | float, ...]


@dataclass(frozen=True)
class Copy:
    """Copy a buffer on a stream. A per-step buffer takes part with the row of the step at hand."""

    name: str
    stream: str
    source: str
    target: str


@dataclass(frozen=True)
class Record:
    """Record an event on a stream: it stands for all that the stream was given before."""

    event: str
    stream: str


@dataclass(frozen=True)
class Wait:
    """Make a stream wait, from here on, for the latest record of an event. The host goes on."""

    event: str
    stream: str


@dataclass(frozen=True)
class Synchronize:
    """Make the host wait for all that a stream (or, with None, the device) was given before."""

    stream: str | None


@dataclass(frozen=True)
class HostWrite:
    """The host writes a buffer. Nothing orders it but what the host has waited for."""

    buffer: str


@dataclass(frozen=True)
class HostRead:
    """The host reads a buffer. Nothing orders it but what the host has waited for."""

    buffer: str


@dataclass(frozen=True)
class External:
    """Work that somebody else gives to a stream: torch's kernels that write x or read z on main.

    A device does nothing for it; it is here so that its accesses are seen when hazards are looked for.
    """

    name: str
    stream: str
    buffer: str
    writes: bool


Step = External | Launch | Copy | Record | Wait | Synchronize | HostWrite | HostRead


@dataclass(frozen=True)
class Schedule:
    """One step, to be replayed any number of times. Immutable; `with_edges` gives a changed copy.

    ``all_steps`` holds also the records and waits of edges that are left out; ``steps`` only what runs.
    """

    name: str
    shape: tuple[int, int, int]
    buffers: Mapping[str, Buffer]
    all_steps: tuple[Step, ...]
    all_edges: tuple[str, ...] = ()
    edges: frozenset[str] = field(default_factory=frozenset)
    io: str = "stream"
    eps: float = 1e-5
    dtype: str = "float32"

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", MappingProxyType(dict(self.buffers)))

    def __hash__(self) -> int:
        return hash((self.name, self.shape, self.all_steps, self.edges, self.io, self.eps, self.dtype))

    def __reduce__(self) -> tuple[Any, ...]:
        values = [getattr(self, f.name) for f in fields(self)]
        return type(self), tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    @property
    def steps(self) -> tuple[Step, ...]:
        """What the host does, in its order, without the edges that are left out."""
        return tuple(s for s in self.all_steps if not isinstance(s, Record | Wait) or s.event in self.edges)

    @property
    def dropped(self) -> tuple[str, ...]:
        """The edges that are left out, in their usual order."""
        return tuple(e for e in self.all_edges if e not in self.edges)

    @property
    def streams(self) -> tuple[str, ...]:
        """Every stream that is given work, main first."""
        used = dict.fromkeys(s.stream for s in self.all_steps if isinstance(s, Launch | Copy))
        return tuple(sorted(used, key=lambda name: name != "main"))

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches of one step."""
        return tuple(s for s in self.steps if isinstance(s, Launch))

    def with_edges(self, edges: Iterable[str]) -> Schedule:
        """The same step with exactly these edges. ``LabError`` for one that this schedule does not have."""
        return replace(self, edges=_known_edges(edges, self.all_edges, self.name))

    def without(self, *edges: str) -> Schedule:
        """The same step with these edges left out as well."""
        return replace(self, edges=self.edges - _known_edges(edges, self.all_edges, self.name))

    def accesses(self, step: Step) -> tuple[Access, ...]:
        """The bytes that a launch, a copy, or the host at this step reads and writes."""
        if isinstance(step, Launch):
            declared = kernels.load(step.kernel).arguments
            pairs = [(value, a) for value, a in zip(step.arguments, declared, strict=True) if a.is_buffer]
            return tuple(
                [self._access(str(value), False) for value, a in pairs if a.reads]
                + [self._access(str(value), True) for value, a in pairs if a.writes]
            )
        if isinstance(step, Copy):
            return self._access(step.source, False), self._access(step.target, True)
        if isinstance(step, External):
            return (self._access(step.buffer, step.writes),)
        if isinstance(step, HostWrite | HostRead):
            return (self._access(step.buffer, isinstance(step, HostWrite)),)
        return ()

    def _access(self, buffer: str, writes: bool) -> Access:
        b = self.buffers[buffer]
        return Access(buffer, 0, b.nbytes, writes, b.per_step)

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __str__(self) -> str:
        tokens, n, k = self.shape
        head = f"{self.name} step: {tokens} token{'s' * (tokens > 1)}, n={n}, k={k}, {self.dtype}"
        if self.all_edges:
            head += "; without " + ", ".join(self.dropped) if self.dropped else "; all edges"
        return "\n".join([head, *(f"  {describe(s)}" for s in self.steps)])

    def to_cupy(self) -> str:
        """The step as the CuPy program a person would write; it runs as it stands on an NVIDIA GPU."""
        from .cupy_program import write

        return write(self)


def describe(step: Step) -> str:
    """A step in one line of words."""
    match step:
        case Launch():
            return f"{step.stream:<7} launch {step.name}({', '.join(map(str, step.arguments))})"
        case Copy():
            return f"{step.stream:<7} copy {step.source} to {step.target}"
        case External():
            return f"{step.stream:<7} ({step.name})"
        case Record():
            return f"{step.stream:<7} record {step.event}"
        case Wait():
            return f"{step.stream:<7} wait for {step.event}"
        case Synchronize():
            return f"{'host':<7} wait until {step.stream or 'every stream'} is done"
        case HostWrite():
            return f"{'host':<7} write {step.buffer}"
        case HostRead():
            return f"{'host':<7} read {step.buffer}"


def sequential(
    tokens: int, n: int, k: int, *, eps: float = 1e-5, dtype: str = "float32", io: str = "stream"
) -> Schedule:
    """RMSNorm, then the projection, on one stream: two launches.

    ``eps`` is added under the root. ``dtype`` ("float32", "float16", "bfloat16") is how x, g, W and h lie in
    memory; arithmetic is float32. ``io``: "stream", where x is copied from a tape and z to one on main and
    the host waits for nothing; "host", where the host writes x, waits for main and reads z; or "torch",
    where x and z are used on main by somebody else. Buffers: x [tokens, n], g [n], W [k, n] and, between the
    two, h [tokens, n] in ``dtype``, z [tokens, k] float32. `LabError` for a size, eps, dtype or io that
    cannot be.
    """
    buffers = [_x(tokens, n, dtype), Buffer("g", (n,), dtype), Buffer("W", (k, n), dtype),
               Buffer("h", (tokens, n), dtype), Buffer("z", (tokens, k))]  # fmt: skip
    middle: list[Step] = [
        Launch("rms_norm", "rms_norm", "main", ("x", "g", "h", tokens, n, eps)),
        Launch("projection", "projection", "main", ("h", "W", "z", tokens, n, k)),
    ]
    return _schedule("sequential", (tokens, n, k), buffers, middle, (), eps, dtype, io)


def fused(
    tokens: int, n: int, k: int, *, eps: float = 1e-5, dtype: str = "float32", io: str = "stream"
) -> Schedule:
    """Norm and projection in one launch, with the gain folded into W (Propositions 1 and 2).

    ``eps``, ``dtype``, ``io`` and errors as in `sequential`. Buffers: x [tokens, n], W_folded [k, n] and
    z [tokens, k], all in ``dtype``.
    """
    buffers = [_x(tokens, n, dtype), Buffer("W_folded", (k, n), dtype), Buffer("z", (tokens, k), dtype)]
    middle: list[Step] = [
        Launch(
            name="fused_norm_projection",
            kernel="fused_norm_projection",
            stream="main",
            arguments=("x", "W_folded", "z", tokens, n, k, eps),
        )
    ]
    return _schedule("fused", (tokens, n, k), buffers, middle, (), eps, dtype, io)


def deferred(
    tokens: int,
    n: int,
    k: int,
    *,
    edges: Iterable[str] = EDGES,
    streams: str = "three",
    spin: int = 0,
    eps: float = 1e-5,
    dtype: str = "float32",
    io: str = "stream",
) -> Schedule:
    """The product and the RMS apart, the division behind both (Proposition 2): three launches.

    ``edges``: which of `EDGES` are in place. ``streams``: "three", or "one" for the same kernels on main,
    where the stream's own order does what the edges do. ``spin``: iterations of a busy kernel in front of
    the projection, to widen the window of the race. ``eps``, ``dtype`` and ``io`` as in `sequential`.
    Buffers: x [tokens, n], W_folded [k, n] and z [tokens, k] in ``dtype``; y [tokens, k] and r [tokens]
    float32. `LabError` as in `sequential`, and for an edge, a ``streams`` or a ``spin`` that cannot be.
    """
    if streams not in ("three", "one"):
        raise LabError(f"streams={streams!r} is not one of 'three', 'one'")
    if isinstance(spin, bool) or not isinstance(spin, int) or not 0 <= spin < 2**31:
        raise LabError(f"spin={spin!r}: give a whole number of iterations from 0 to 2147483647")
    one = streams == "one"
    matrix, vector = ("main", "main") if one else ("matrix", "vector")
    all_edges = () if one else EDGES
    buffers = [_x(tokens, n, dtype), Buffer("W_folded", (k, n), dtype), Buffer("y", (tokens, k)),
               Buffer("r", (tokens,)), Buffer("z", (tokens, k), dtype)]  # fmt: skip
    product: list[Step] = [Launch("projection", "projection", matrix, ("x", "W_folded", "y", tokens, n, k))]
    if spin:
        buffers.append(Buffer("sink", (1,)))
        product.insert(0, Launch("spin", "spin", matrix, ("sink", spin)))
    middle: list[Step] = [
        Record("fork_matrix", "main"),
        Wait("fork_matrix", matrix),
        Record("fork_vector", "main"),
        Wait("fork_vector", vector),
        *product,
        Record("join_matrix", matrix),
        Launch("inv_rms", "inv_rms", vector, ("x", "r", tokens, n, eps)),
        Record("join_vector", vector),
        Wait("join_matrix", "main"),
        Wait("join_vector", "main"),
        Launch("post_scale", "post_scale", "main", ("y", "r", "z", tokens, k)),
    ]
    if one:
        middle = [s for s in middle if not isinstance(s, Record | Wait)]
        _known_edges(edges, EDGES, "deferred")
        edges = ()
    return _schedule("deferred", (tokens, n, k), buffers, middle, all_edges, eps, dtype, io, edges)


BUILDERS = {"sequential": sequential, "fused": fused, "deferred": deferred}


def build(name: str, tokens: int, n: int, k: int, **options: object) -> Schedule:
    """`sequential`, `fused` or `deferred` by name, with that builder's own options; `LabError` for others."""
    if name not in BUILDERS:
        raise LabError(f"there is no schedule {name!r}; there are {', '.join(BUILDERS)}")
    builder = BUILDERS[name]
    takes = list(inspect.signature(builder).parameters)[3:]
    for option, value in options.items():
        if option not in takes:
            raise LabError(f"{option}={value!r}: the {name} schedule takes {', '.join(takes)}")
    return builder(tokens, n, k, **options)  # type: ignore[operator]


def _x(tokens: int, n: int, dtype: str) -> Buffer:
    return Buffer("x", (tokens, n), dtype)


def _schedule(
    name: str,
    shape: tuple[int, int, int],
    buffers: list[Buffer],
    middle: list[Step],
    all_edges: tuple[str, ...],
    eps: float,
    dtype: str,
    io: str,
    edges: Iterable[str] = (),
) -> Schedule:
    """Check what all three have in common and add how x arrives and z leaves."""
    for label, size in zip(("tokens", "n", "k"), shape, strict=True):
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size < 2**31:
            raise LabError(f"{label}={size!r}: give a whole number from 1 to 2147483647")
    if dtype not in BYTES:
        raise LabError(f"dtype={dtype!r} is not one of {', '.join(BYTES)}")
    if not (isinstance(eps, int | float) and 0 <= eps < math.inf):
        raise LabError(f"eps={eps!r}: give a finite number of at least 0")
    if io == "stream":
        x, z = buffers[0], buffers[[b.name for b in buffers].index("z")]
        buffers = [*buffers, replace(x, name="xs", per_step=True), replace(z, name="zs", per_step=True)]
        steps = [Copy("copy x", "main", "xs", "x"), *middle, Copy("copy z", "main", "z", "zs")]
    elif io == "host":
        steps = [HostWrite("x"), *middle, Synchronize("main"), HostRead("z")]
    elif io == "torch":
        before = External("torch writes x", "main", "x", True)
        steps = [before, *middle, External("torch reads z", "main", "z", False)]
    else:
        raise LabError(f"io={io!r} is not one of {', '.join(IO)}")
    return Schedule(
        name=name,
        shape=shape,
        buffers={b.name: b for b in buffers},
        all_steps=tuple(steps),
        all_edges=all_edges,
        edges=_known_edges(edges, all_edges, name),
        io=io,
        eps=float(eps),
        dtype=dtype,
    )


def _known_edges(edges: Iterable[str], known: tuple[str, ...], name: str) -> frozenset[str]:
    if isinstance(edges, str):
        edges = (edges,)
    edges = tuple(edges)
    for edge in edges:
        if not isinstance(edge, str):
            raise LabError(f"{edge!r} is no edge's name; give the names one by one, as in 'join_matrix'")
        if edge not in known:
            has = f"it has {', '.join(known)}" if known else "one stream needs none"
            raise LabError(f"there is no edge {edge!r} in the {name} schedule; {has}")
    return frozenset(edges)
