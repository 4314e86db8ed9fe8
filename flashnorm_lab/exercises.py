"""Four wirings that went wrong in public, rebuilt small: race or no race, and which edge is missing?

    exercise = exercises.get("early_record_a")
    print(exercise)
    print(exercise.check("race", exercise.edges[0]))

Each wiring comes in three versions, of which one is the one that was reported. An exercise is a program as a
person would write it, and the steps that its lines make; no answer is stored with it. Every verdict comes
from `flashnorm_lab.hazards`, and so does what is said of an edge that a learner picks: it is put in, and the
program is judged again. `flashnorm_lab.exposure` forces what was found on a device.
"""

from __future__ import annotations

import functools
import itertools
import linecache
from collections.abc import Mapping
from dataclasses import dataclass, replace

from . import hazards
from .errors import LabError
from .hazards import Order, Verdict
from .program import (
    NUMBERED,
    Allocate,
    Free,
    HostWrite,
    Launch,
    Program,
    Record,
    RecordStream,
    Step,
    Stream,
    Synchronize,
    Wait,
    reads,
    writes,
)
from .schedule import Access

N = 1 << 20
BYTES = 4 * N
"""The size of every array in the exercises: float32 [N]."""
HOST = "host"
DEFAULT = "default stream"
ANSWERS = ("race", "no race")

TWO_KERNELS = """\
__kernel void make(__global float *y) {
    y[get_global_id(0)] = get_global_id(0);
}

__kernel void use(__global const float *y, __global float *z) {
    z[get_global_id(0)] = 2 * y[get_global_id(0)];
}"""
"""OpenCL C for notebook 07: one kernel makes what the other one reads."""


@dataclass(frozen=True)
class Edge:
    """An ordering that a learner may pick: an event recorded on ``source`` after the line ``behind``, which
    ``target`` waits for before the line ``before``. With ``target`` "host" the host waits for the stream.
    """

    source: str
    behind: int
    target: str
    before: int

    def __str__(self) -> str:
        source, target = _the(self.source), _the(self.target)
        if self.target == HOST:
            return f"before line {self.before}, {target} waits for {source}"
        event = f"an event recorded on {source} after line {self.behind}"
        return f"before line {self.before}, {target} waits for {event}"

    @property
    def short(self) -> str:
        """The edge as an arrow."""
        if self.target == HOST:
            return f"{self.source} → the host before line {self.before}"
        return f"{self.source} after line {self.behind} → {self.target} before line {self.before}"


@dataclass(frozen=True, eq=False, repr=False)
class Exercise:
    """A program, and the question whether it has a race.

    ``name``: what `get` knows it by. ``title`` and ``story``: the wiring, in a few words and in a few
    sentences. ``lesson``: what there is to see in this version, once it is answered. ``lines``: the program's
    text, ``made`` the steps that each line makes, by its number from 1 on; ``order`` the numbers of these
    lines in the order in which they run. ``edges``: those to choose from.
    ``reported``: whether it is the version that was reported. ``library``: in whose words it is written.
    """

    name: str
    title: str
    story: str
    lesson: str
    lines: tuple[str, ...]
    made: Mapping[int, tuple[Step, ...]]
    order: tuple[int, ...]
    streams: Mapping[str, Stream]
    buffers: Mapping[str, int | None]
    edges: tuple[Edge, ...]
    reported: bool = False
    library: str = "cupy"

    @property
    def file(self) -> str:
        """The name under which the text's lines are cited, "side_copy_a.py:12"."""
        return f"{self.name}.py"

    @property
    def code(self) -> str:
        """The program's text."""
        return "\n".join(self.lines) + "\n"

    @functools.cached_property
    def program(self) -> Program:
        """The steps that the text makes. Each carries its line as its source."""
        return self._program(self.made)

    @functools.cached_property
    def verdict(self) -> Verdict:
        """What the analysis says of it."""
        return hazards.check(self.program)

    def with_edge(self, edge: Edge) -> Program:
        """The program with an edge put in."""
        made = {number: list(steps) for number, steps in self.made.items()}
        if edge.target == HOST:
            made[edge.before].insert(0, Synchronize(edge.source))
        else:
            made[edge.before].insert(0, Wait("edge", edge.target))
            made[edge.behind].append(Record("edge", edge.source))
        return self._program(made)

    def rows(self, edge: Edge | None = None) -> list[tuple[int | None, str]]:
        """The text's lines with their numbers, and the lines of an edge put in, which have none."""
        make, record, wait = ("", "", "") if edge is None else _written(edge, self.library)
        rows: list[tuple[int | None, str]] = []
        for number, text in enumerate(self.lines, 1):
            indent = text[: len(text) - len(text.lstrip())]
            if wait and edge is not None and number == edge.before:
                rows.append((None, indent + wait))
            rows.append((number, text))
            if make and text.startswith("n = "):
                rows.append((None, make))
            if record and edge is not None and number == edge.behind:
                rows.append((None, indent + record))
        return rows

    @functools.cached_property
    def solution(self) -> Edge | None:
        """The edge, of those to choose from, that repairs all and holds back no more than is needed."""
        return next((e for e in self.edges if (a := self.check("race", e)).repairs and not a.excess), None)

    def edge(self, which: Edge | int) -> Edge:
        """One of ``edges``, given as such or by its number from 1 on. ``LabError`` for any other."""
        if which in self.edges:
            return which  # type: ignore[return-value]
        if isinstance(which, int) and not isinstance(which, bool) and 1 <= which <= len(self.edges):
            return self.edges[which - 1]
        raise LabError(f"edge={which!s}: {self.name} has edges 1 to {len(self.edges)}; see its .edges")

    def check(self, answer: str, edge: Edge | int | None = None) -> Answer:
        """Hold an answer, "race" or "no race", and an edge that is to repair it, against the analysis.

        ``LabError`` for another answer, and for an edge that is not one of ``edges``.
        """
        if answer not in ANSWERS:
            raise LabError(f"answer={answer!r}: say 'race' or 'no race'")
        picked = None if edge is None else self.edge(edge)
        tried = None if picked is None else hazards.check(self.with_edge(picked))
        return Answer(self, answer, self.verdict, picked, tried)

    def weaker(self, edge: Edge) -> Edge | None:
        """An edge between the same two streams that repairs all and holds back less; None if none does.

        It is recorded no later and waited for no earlier, and not both at the same place.
        """
        found = [
            other
            for behind, before in itertools.product(self._works(edge.source), self._works(edge.target))
            if behind <= edge.behind and before >= edge.before
            for other in [replace(edge, behind=behind, before=before)]
            if other != edge and hazards.judge(self.with_edge(other)).clean
        ]
        return max(found, key=lambda e: (e.before, -e.behind), default=None)

    def _works(self, stream: str) -> list[int]:
        """The lines that give a stream work."""
        return [n for n, steps in self.made.items() if any(_on(s, stream) for s in steps)]

    def _program(self, made: Mapping[int, tuple[Step, ...] | list[Step]]) -> Program:
        times = {n: 0 for n in self.order if self.order.count(n) > 1}
        steps: list[Step] = []
        for n in self.order:
            for step in made[n]:
                more = {"step": times[n]} if n in times and isinstance(step, NUMBERED) else {}
                steps.append(replace(step, source=f"{self.file}:{n}", **more))
            if n in times:
                times[n] += 1
        return Program(tuple(steps), self.streams, self.buffers, self.name)

    def __str__(self) -> str:
        told = [f"{self.name}: {self.title}", "", self.story, ""]
        told += [f"{number:>3}  {text}".rstrip() for number, text in enumerate(self.lines, 1)]
        told += ["", "Race or no race? And if it is one, which edge repairs it?", ""]
        told += [f"{number:>3}. {edge}" for number, edge in enumerate(self.edges, 1)]
        return "\n".join(told)

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class Answer:
    """An answer beside what the analysis says.

    ``verdict`` is the analysis' own, ``edge`` the edge that was picked, and ``tried`` the verdict on the
    program with that edge put in (None where none was).
    """

    exercise: Exercise
    answer: str
    verdict: Verdict
    edge: Edge | None = None
    tried: Verdict | None = None

    @property
    def right(self) -> bool:
        """Whether "race" or "no race" is what the analysis says."""
        return (self.answer == "no race") == self.verdict.clean

    @property
    def repairs(self) -> bool | None:
        """Whether the edge repairs every hazard. None without one, or where there is nothing to repair."""
        return None if self.tried is None or self.verdict.clean else self.tried.clean

    @functools.cached_property
    def excess(self) -> str:
        """How an edge that repairs does more than is needed, in a sentence; empty where it does not."""
        if not self.repairs or self.edge is None:
            return ""
        if self.edge.target == HOST:
            if any(h.second_on_host for h in self.verdict.hazards):
                return ""
            return "That is more than is needed: the host stands still meanwhile, and an event would do."
        weaker = self.exercise.weaker(self.edge)
        return (
            f"That is more than is needed. This does as well and holds back less: {weaker}." if weaker else ""
        )

    def explain(self) -> str:
        """Right or wrong, and why, in a few lines."""
        found = "no race" if self.verdict.clean else "a race"
        lines = [f"{'Right' if self.right else 'Not so'}: there is {found}."]
        lines += [f"{h.kind}: {h.title()}." for h in self.verdict.hazards]
        if self.tried is not None and self.edge is not None:
            lines.append(self._of_the_edge(self.tried))
        if self.excess:
            lines.append(self.excess)
        if self.verdict.clean:
            kept = [f"{o.second} after {o.first}" for o in _kept(self.exercise.program)]
            lines.append(f"Always in order: {', '.join(kept)}.")
        if self.exercise.reported:
            lines.append("This is the version that was reported.")
        return "\n".join([*lines, self.exercise.lesson])

    def _of_the_edge(self, tried: Verdict) -> str:
        if self.repairs is None:
            return f"Your edge ({self.edge}) has nothing to repair."
        if self.repairs:
            return f"Your edge repairs it: {self.edge}."
        before = [h.title() for h in self.verdict.hazards]
        left = [h.title() for h in tried.hazards]
        still = "The race is still there" if left == before else f"With it there is this: {'; '.join(left)}"
        return f"Your edge does not repair it: {self.edge}. {still}."

    def __str__(self) -> str:
        return self.explain()

    __repr__ = __str__

    def report(self, words: str = "cupy") -> str:
        """The analysis' whole report, in the words of one of `hazards.WORDS`."""
        return self.verdict.report(words)


def _kept(program: Program) -> list[Order]:
    """The orders between streams that keep a program right: of each two launches on different streams that
    touch the same bytes, one of them writing."""
    launches = [s for s in program.steps if isinstance(s, Launch)]
    pairs = {
        (a.name, b.name): None
        for a, b in itertools.combinations(launches, 2)
        if a.stream != b.stream and any(_conflict(x, y) for x in a.accesses for y in b.accesses)
    }
    return [order for pair in pairs if (order := hazards.order(program, *pair)).always]


def _conflict(a: Access, b: Access) -> bool:
    return a.buffer == b.buffer and (a.writes or b.writes) and a.start < b.stop and b.start < a.stop


def _the(stream: str) -> str:
    """A stream, or the host, in a sentence."""
    return f"the {stream}" if stream in (DEFAULT, HOST) else stream


def _on(step: Step, stream: str) -> bool:
    return isinstance(step, Launch) and step.stream == stream


def _written(edge: Edge, library: str) -> tuple[str, str, str]:
    """The lines that make an edge: the event, its record, the wait. Only the last where the host waits."""
    default, event = {
        "cupy": ("cp.cuda.Stream.null", "cp.cuda.Event(disable_timing=True)"),
        "pytorch": ("torch.cuda.default_stream()", "torch.cuda.Event()"),
    }[library]
    source, target = (default if name == DEFAULT else name for name in (edge.source, edge.target))
    if edge.target == HOST:
        return "", "", f"{source}.synchronize()"
    return f"edge = {event}", f"edge.record({source})", f"{target}.wait_event(edge)"


# The parts of the wirings

LEGACY = Stream("legacy")
SIDE = Stream("non-blocking")
BLOCKING = Stream("blocking")
BLOCK = 0x7F0000000000
"""Where the memory pool's block lies that is handed out twice."""


def _kernel(name: str, stream: str, read: str = "", written: str = "", category: str = "kernel") -> Launch:
    """Work that reads and writes whole arrays, named in one word each."""
    accesses = [reads(b, 0, BYTES) for b in read.split()] + [writes(b, 0, BYTES) for b in written.split()]
    return Launch(name, stream, tuple(accesses), category=category)


def _fetch(buffer: str, stream: str = DEFAULT) -> Launch:
    """A copy to the host that the host waits for."""
    return Launch(
        f"copy {buffer} to the host", stream, (reads(buffer, 0, BYTES),), blocks=True, category="copy"
    )


def _copy_in(buffer: str, source: str, stream: str, nbytes: int = BYTES) -> Launch:
    """A copy from host memory that the host does not wait for."""
    accesses = (reads(source, 0, nbytes), writes(buffer, 0, BYTES))
    return Launch(f"copy {source} to {buffer}", stream, accesses, category="copy")


def _buffers(names: str) -> dict[str, int | None]:
    """Arrays that are there from the start."""
    return dict.fromkeys(names.split(), BYTES)


def _edge(event: str, source: str, target: str) -> tuple[Step, Step]:
    return Record(event, source), Wait(event, target)


def _exercise(
    name: str,
    *parts: str | Step | tuple[Step, ...],
    edges: tuple[tuple[str, str, str, str], ...],
    order: tuple[str, ...] = (),
    **about: object,
) -> Exercise:
    """An exercise from its text, in pieces of one or more lines; steps belong to the line before them.

    ``edges`` and ``order`` name lines by a part of their text that is in no other line.
    """
    lines: list[str] = []
    made: dict[int, tuple[Step, ...]] = {}
    for part in parts:
        if isinstance(part, str):
            lines += part.split("\n")
        else:
            made[len(lines)] = made.get(len(lines), ()) + (part if isinstance(part, tuple) else (part,))

    def line(text: str) -> int:
        (number,) = [n for n, each in enumerate(lines, 1) if text in each]
        return number

    exercise = Exercise(
        name=name,
        lines=tuple(lines),
        made=made,
        order=tuple(map(line, order)) or tuple(made),
        edges=tuple(
            Edge(source, line(behind), target, line(before)) for source, behind, target, before in edges
        ),
        **about,  # type: ignore[arg-type]
    )
    # Reports quote the lines that they cite; the text is in no file, so Python's own line cache has it.
    linecache.cache[exercise.file] = len(exercise.code), None, exercise.code.splitlines(True), exercise.file
    return exercise


# 1. A copy on a side stream, then a read on the default one

_COPY = """\
import cupy as cp
import numpy as np

n = 1 << 20
copies = cp.cuda.Stream(non_blocking=True)
block = cp.ElementwiseKernel("T x, T w", "T y", "y = x * w", "block")
x, w, y = (cp.empty(n, cp.float32) for _ in range(3))
weights = cp.cuda.alloc_pinned_memory(4 * n)
weights = np.frombuffer(weights, np.float32, n)"""
_WEIGHTS = ("weights[:] = 3", HostWrite("weights"), "")
_ABOUT_COPY = {
    "title": "a copy on a side stream, a read on the default stream",
    "story": (
        "An image generator keeps its weights in host memory. Each block's are copied in on a stream of "
        "their own, while the default stream computes. One user found 98 of 100 pictures wrong; on another "
        "machine not one ever was."
    ),
    "streams": {DEFAULT: LEGACY, "copies": SIDE},
}
_COPY_EDGES = (
    (DEFAULT, "x.fill", "copies", "w.set"),
    ("copies", "w.set", DEFAULT, "block(x"),
    (DEFAULT, "block(x", "copies", "w.set"),
    ("copies", "w.set", HOST, "block(x"),
)

_SIDE_COPY = (
    _exercise(
        "side_copy_a",
        *(_COPY, *_WEIGHTS, "x.fill(2)", _kernel("fill", DEFAULT, "", "x")),
        *("w.set(weights, stream=copies)", _copy_in("w", "weights", "copies")),
        *("cp.cuda.Stream.null.wait_event(copies.record())", _edge("copied", "copies", DEFAULT)),
        *("block(x, w, y)", _kernel("block", DEFAULT, "x w", "y")),
        *("print(y.get()[0])", _fetch("y")),
        buffers=_buffers("x w y weights"),
        edges=_COPY_EDGES,
        lesson="wait_event is the join: the default stream waits for all that copies has, w's copy too.",
        **_ABOUT_COPY,
    ),
    _exercise(
        "side_copy_b",
        *(_COPY, *_WEIGHTS, "x.fill(2)", _kernel("fill", DEFAULT, "", "x")),
        *("w.set(weights, stream=copies)", _copy_in("w", "weights", "copies")),
        *("copied = copies.record()", Record("copied", "copies")),
        *("block(x, w, y)", _kernel("block", DEFAULT, "x w", "y")),
        *("print(y.get()[0])", _fetch("y")),
        buffers=_buffers("x w y weights"),
        edges=_COPY_EDGES,
        reported=True,
        lesson=(
            "An event is recorded, but nobody waits for it: a record alone orders nothing. The stream is "
            "non-blocking, so the default stream does not wait for it by itself either."
        ),
        **_ABOUT_COPY,
    ),
    _exercise(
        "side_copy_c",
        _COPY.replace("4 * n", "8 * n").replace("weights", "blocks").replace(", n)", ").reshape(2, n)"),
        *("blocks[:] = [[3], [4]]", HostWrite("weights"), ""),
        *("x.fill(2)", _kernel("fill", DEFAULT, "", "x")),
        "for weights in blocks:",
        *("    w.set(weights, stream=copies)", _copy_in("w", "weights", "copies", 2 * BYTES)),
        *("    cp.cuda.Stream.null.wait_event(copies.record())", _edge("copied", "copies", DEFAULT)),
        *("    block(x, w, x)", _kernel("block", DEFAULT, "x w", "x")),
        *("print(x.get()[0])", _fetch("x")),
        buffers=_buffers("x w y") | {"weights": 2 * BYTES},
        order=("blocks[:]", "x.fill", *2 * ("w.set", "wait_event", "block(x"), "print"),
        edges=(
            ("copies", "w.set", DEFAULT, "block(x"),
            (DEFAULT, "block(x", "copies", "w.set"),
            ("copies", "w.set", HOST, "block(x"),
            (DEFAULT, "block(x", HOST, "w.set"),
        ),
        lesson=(
            "The join is there, and every block waits for its own weights. But w is one buffer for all "
            "blocks, and nothing makes the next copy wait until the block before has read it."
        ),
        **_ABOUT_COPY,
    ),
)


# 2. A kernel on stream 0, its input from a non-blocking stream, and a warm-up that hides it

_ZERO = """\
import cupy as cp

n = 1 << 20
side = cp.cuda.Stream(non_blocking=True)
scale = cp.ElementwiseKernel("T x", "T y", "y = 2 * x", "scale")
shift = cp.ElementwiseKernel("T y", "T z", "z = y + 1", "shift")
x, y, z = (cp.empty(n, cp.float32) for _ in range(3))
"""
_ABOUT_ZERO = {
    "title": "a kernel on stream 0, its input from another stream",
    "story": (
        "A test ran a kernel on stream 0, the default one; its input came from a stream that the library had "
        "made. 3 of 100 runs of the test were wrong. Somebody put a warm-up in front, and from then on none "
        "was."
    ),
    "buffers": dict.fromkeys(("x", "y", "z"), BYTES),
}
_TWICE = (
    "def run():",
    "    with side:",
    *("        scale(x, y)", _kernel("scale", "side", "x", "y")),
    *("    shift(y, z)", _kernel("shift", DEFAULT, "y", "z")),
    "",
    "with side:",
    *("    x.fill(1)", _kernel("fill", "side", "", "x")),
    "run()  # the warm-up",
    *("cp.cuda.Device().synchronize()", Synchronize()),
    "run()  # the run that is checked",
    *("print(z.get()[0])", _fetch("z")),
)
_TWICE_ORDER = ("x.fill", "scale(x", "shift(y", "synchronize", "scale(x", "shift(y", "print")
_TWICE_EDGES = (
    ("side", "x.fill", DEFAULT, "shift(y"),
    (DEFAULT, "shift(y", "side", "scale(x"),
    ("side", "scale(x", DEFAULT, "shift(y"),
    ("side", "scale(x", HOST, "shift(y"),
)

_STREAM_ZERO = (
    _exercise(
        "stream_zero_a",
        *(_ZERO, *_TWICE),
        order=_TWICE_ORDER,
        streams={DEFAULT: LEGACY, "side": SIDE},
        edges=_TWICE_EDGES,
        reported=True,
        lesson=(
            "The warm-up only hides it: it leaves the right values in y, and a read that comes too early "
            "finds those. With another input in the second run it would show."
        ),
        **_ABOUT_ZERO,
    ),
    _exercise(
        "stream_zero_b",
        *(_ZERO.replace("non_blocking=True", ""), *_TWICE),
        order=_TWICE_ORDER,
        streams={DEFAULT: LEGACY, "side": BLOCKING},
        edges=_TWICE_EDGES,
        lesson=(
            "Without non_blocking=True the stream is a blocking one: whatever the default stream gets waits "
            "for it, and it waits for the default stream. That is right, but easily lost: PyTorch's streams "
            "are non-blocking, and so are those of many libraries."
        ),
        **_ABOUT_ZERO,
    ),
    _exercise(
        "stream_zero_c",
        *(_ZERO, "with side:"),
        *("    x.fill(1)", _kernel("fill", "side", "", "x")),
        "for run in range(3):",
        "    with side:",
        *("        scale(x, y)", _kernel("scale", "side", "x", "y")),
        "    if run == 0:",
        *("        side.synchronize()  # the warm-up", Synchronize("side")),
        *("    shift(y, z)", _kernel("shift", DEFAULT, "y", "z")),
        *("    print(z.get()[0])", _fetch("z")),
        order=("x.fill", "scale(x", "synchronize", "shift(y", "print", *2 * ("scale(x", "shift(y", "print")),
        streams={DEFAULT: LEGACY, "side": SIDE},
        edges=(
            ("side", "scale(x", DEFAULT, "shift(y"),
            (DEFAULT, "shift(y", "side", "scale(x"),
            ("side", "x.fill", DEFAULT, "shift(y"),
            ("side", "scale(x", HOST, "shift(y"),
        ),
        lesson=(
            "The host waits in the first iteration alone. In every later one shift may find the y of the one "
            "before, which looks right only because x never changes."
        ),
        **_ABOUT_ZERO,
    ),
)


# 3. A block that is freed, and handed out again

_FREED = """\
import cupy as cp

n = 1 << 20
side = cp.cuda.Stream(non_blocking=True)
keep = cp.ElementwiseKernel("T x", "T kept", "kept = x", "keep")"""
_ABOUT_FREED = {
    "title": "a block that is freed and used again",
    "story": (
        "A side stream keeps a copy of x while the program goes on. x is given back to the memory pool as "
        "soon as that copy is launched, and the pool hands its bytes to the next who asks. Now and then, "
        "what was kept was something else."
    ),
    "streams": {DEFAULT: LEGACY, "side": SIDE},
    "buffers": {},
}
_NEW = tuple(Allocate(name, BYTES, address) for name, address in (("kept", BLOCK + BYTES), ("x", BLOCK)))
_REUSED = Allocate("y", BYTES, BLOCK)
_JOIN = ("cp.cuda.Stream.null.wait_event(side.record())", _edge("saved", "side", DEFAULT))
_SAVE = (
    _FREED,
    *("kept, x = (cp.empty(n, cp.float32) for _ in range(2))", _NEW),
    "",
    *("x.fill(1)", _kernel("fill", DEFAULT, "", "x")),
    *("side.wait_event(cp.cuda.Stream.null.record())", _edge("filled", DEFAULT, "side")),
    "with side:",
    *("    keep(x, kept)", _kernel("keep", "side", "x", "kept")),
)
_GIVEN_BACK = ("del x", Free("x", "pool"))
_AGAIN = (
    *("y = cp.empty(n, cp.float32)", _REUSED),
    *("y[:] = 2", _kernel("assignment", DEFAULT, "", "y")),
)
_SAVED = ("print(kept.get()[0], y.get()[0])", (_fetch("kept"), _fetch("y")))

_FREED_BLOCK = (
    _exercise(
        "freed_block_a",
        *(*_SAVE, *_JOIN, *_GIVEN_BACK, *_AGAIN, *_SAVED),
        edges=(
            (DEFAULT, "x.fill", "side", "keep(x"),
            ("side", "keep(x", DEFAULT, "y[:]"),
            (DEFAULT, "y[:]", "side", "keep(x"),
            ("side", "keep(x", HOST, "del x"),
        ),
        lesson=(
            "The default stream waits for side before x is given back. Whoever gets the bytes next on the "
            "default stream comes behind that."
        ),
        **_ABOUT_FREED,
    ),
    _exercise(
        "freed_block_b",
        "import torch\n\nn = 1 << 20\nside = torch.cuda.Stream()",
        *('kept, x = (torch.empty(n, device="cuda") for _ in range(2))', _NEW),
        *("", "x.fill_(1)", _kernel("fill", DEFAULT, "", "x")),
        *("side.wait_stream(torch.cuda.default_stream())", _edge("filled", DEFAULT, "side")),
        "with torch.cuda.stream(side):",
        *("    kept.copy_(x)", _kernel("copy", "side", "x", "kept")),
        *("x.record_stream(side)", RecordStream("x", "side")),
        *_GIVEN_BACK,
        *('y = torch.empty(n, device="cuda")', _REUSED),
        *("y[:] = 2", _kernel("assignment", DEFAULT, "", "y")),
        *("torch.cuda.default_stream().wait_stream(side)", _edge("saved", "side", DEFAULT)),
        *("print(kept[0].item(), y[0].item())", (_fetch("kept"), _fetch("y"))),
        edges=(
            ("side", "copy_(x", DEFAULT, "y[:]"),
            (DEFAULT, "x.fill", "side", "copy_(x"),
            ("side", "copy_(x", HOST, "del x"),
            (DEFAULT, "y[:]", "side", "copy_(x"),
        ),
        library="pytorch",
        lesson=(
            "record_stream tells the pool that side uses x too. It does not hand the bytes out again before "
            "side has done what it had when x was freed."
        ),
        **_ABOUT_FREED,
    ),
    _exercise(
        "freed_block_c",
        *(*_SAVE, *_GIVEN_BACK, *_AGAIN, *_JOIN, *_SAVED),
        edges=(
            (DEFAULT, "y[:]", "side", "keep(x"),
            ("side", "keep(x", HOST, "del x"),
            (DEFAULT, "x.fill", "side", "keep(x"),
            ("side", "keep(x", DEFAULT, "y[:]"),
        ),
        reported=True,
        lesson=(
            "The join at the end is right for kept, but it comes too late for x: y has the same bytes, and "
            "is written while side may still read them. A pool knows the stream that x was made on, and no "
            "other."
        ),
        **_ABOUT_FREED,
    ),
)


# 4. An event that is recorded before the launch that it should cover

_EARLY = """\
import cupy as cp

n = 1 << 20
maker, taker = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
made = cp.cuda.Event(disable_timing=True)
scale = cp.ElementwiseKernel("T x", "T h", "h = 2 * x", "scale")
shift = cp.ElementwiseKernel("T h", "T y", "y = h + 1", "shift")
square = cp.ElementwiseKernel("T v", "T z", "z = v * v", "square")
x, h, y, z = (cp.empty(n, cp.float32) for _ in range(4))
"""
_ABOUT_EARLY = {
    "title": "an event, and the launch that it should cover",
    "story": (
        "One stream makes h and then y in two kernels; another one waits for an event of it and goes on. A "
        "new line went in at the wrong place, all tests passed, and months later a faster GPU gave other "
        "numbers."
    ),
    "streams": {"maker": SIDE, "taker": SIDE},
    "buffers": dict.fromkeys(("x", "h", "y", "z"), BYTES),
}
_FILL_X = ("    x.fill(1)", _kernel("fill", "maker", "", "x"))
_SCALE = ("    scale(x, h)", _kernel("scale", "maker", "x", "h"))
_SHIFT = ("    shift(h, y)", _kernel("shift", "maker", "h", "y"))
_MADE = ("    made.record()", Record("made", "maker"))
_TAKE = ("taker.wait_event(made)", Wait("made", "taker"))
_LOOK = ("print(z.get(stream=taker)[0])", _fetch("z", "taker"))
_EARLY_EDGES = (
    ("maker", "scale(x", "taker", "square("),
    ("taker", "square(", "maker", "shift(h"),
    ("maker", "shift(h", HOST, "square("),
    ("maker", "shift(h", "taker", "square("),
)

_EARLY_RECORD = (
    _exercise(
        "early_record_a",
        *(_EARLY, "with maker:", *_FILL_X, *_SCALE, *_MADE, *_SHIFT, *_TAKE, "with taker:"),
        *("    square(y, z)", _kernel("square", "taker", "y", "z")),
        *_LOOK,
        edges=_EARLY_EDGES,
        reported=True,
        lesson=(
            "An event stands for what its stream was given before the record, and shift comes one line "
            "later. taker waits for h, and reads y."
        ),
        **_ABOUT_EARLY,
    ),
    _exercise(
        "early_record_b",
        *(_EARLY, *_TAKE, "with maker:", *_FILL_X, *_SCALE, *_SHIFT, *_MADE, "with taker:"),
        *("    z.fill(0)", _kernel("fill", "taker", "", "z")),
        *("    square(y, z)", _kernel("square", "taker", "y", "z")),
        *_LOOK,
        edges=(
            ("maker", "shift(h", "taker", "z.fill"),
            ("maker", "scale(x", "taker", "square("),
            ("maker", "shift(h", "taker", "square("),
            ("maker", "shift(h", HOST, "square("),
        ),
        lesson=(
            "The record is where it should be, but the wait is called before it. A wait is for the event's "
            "latest record before the call, and here there is none: it waits for nothing, and says nothing."
        ),
        **_ABOUT_EARLY,
    ),
    _exercise(
        "early_record_c",
        *(_EARLY, "with maker:", *_FILL_X, *_SCALE, *_MADE, *_SHIFT, *_TAKE, "with taker:"),
        *("    square(h, z)", _kernel("square", "taker", "h", "z")),
        *_LOOK,
        edges=_EARLY_EDGES,
        lesson="taker reads h, not y, and h is done where the event is recorded. It need not wait for shift.",
        **_ABOUT_EARLY,
    ),
)

ALL: tuple[Exercise, ...] = (*_SIDE_COPY, *_STREAM_ZERO, *_FREED_BLOCK, *_EARLY_RECORD)
"""Every exercise: four wirings in three versions each."""


def get(name: str) -> Exercise:
    """The exercise of this name. ``LabError`` if there is none."""
    found = {e.name: e for e in ALL}
    if name not in found:
        raise LabError(f"there is no exercise {name!r}; there are {', '.join(found)}")
    return found[name]
