"""The program that a trace shows, with all that it leaves open."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from ..program import Program, Step

NOBODY = "unseen"
"""The host thread of launches of which the call is not in the trace: it knows of nothing."""
ASIDE = " (calls unseen)"
"""Behind a stream's name: where such launches stand, if the host did something to the stream around them."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Something in a trace that may order work in a way that the trace does not tell.

    It stands before step ``at``. ``kind``: "wait" (``stream``, or with "" any stream, may wait), "host" (the
    thread may wait, or learn that something is done), "launch" (something was given to a stream that is not
    known), "memory" (a call that often waits for the device, which CUDA does not promise). ``event`` names
    what may be waited for, ``behind`` the stream that it was recorded on; with neither it may be anything
    before. ``text`` says it in words, ``what`` in the plural, for counting.
    """

    at: int
    kind: str
    process: int
    thread: str
    what: str
    text: str
    stream: str = ""
    event: str = ""
    behind: str = ""


class Loose(NamedTuple):
    """Launches of ``stream`` were issued somewhere between the steps ``first`` and ``last``.

    ``waits``: whether a copy is among them for which the host may have waited.
    """

    first: int
    last: int
    stream: str
    waits: bool


@dataclass(frozen=True)
class TraceProgram(Program):
    """A program that was read from a profiler's trace; `answer` asks it for order.

    ``times``: number of a step to the start and end of its work, in nanoseconds. ``gaps``: what may order
    more than the steps do. ``maybe``: stream to the kind that it may have, where its kind is not known (it
    then counts as non-blocking, which promises least). ``process``: process of each stream and host thread.
    ``floating``: numbers of launches that stand in their stream's order only; ``loose``: between which steps
    they were issued. ``graphs``: number of a graph's node to its launch. ``early``: numbers of launches that
    may have asked to start before the kernel ahead of them has ended. ``left_out``: launches that could not
    be placed, by name.
    """

    times: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()
    maybe: Mapping[str, str] = field(default_factory=dict)
    process: Mapping[str, int] = field(default_factory=dict)
    floating: frozenset[int] = frozenset()
    loose: tuple[Loose, ...] = ()
    graphs: Mapping[int, str] = field(default_factory=dict)
    early: frozenset[int] = frozenset()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("times", "maybe", "process", "graphs", "left_out"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __reduce__(self) -> tuple[object, ...]:
        more = (dict(self.times), self.gaps, dict(self.maybe), dict(self.process), self.floating, self.loose,
                dict(self.graphs), self.early, dict(self.left_out))  # fmt: skip
        kind, parts = super().__reduce__()
        return kind, (*parts, *more)  # type: ignore[misc]

    def with_steps(self, steps: Iterable[Step]) -> Program:
        """A plain program with other steps: times and gaps belong to the trace's own."""
        return Program(tuple(steps), self.streams, self.buffers, self.name, self.repeat, self.unseen)
