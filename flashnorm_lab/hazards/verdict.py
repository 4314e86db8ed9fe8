"""What the analysis has to say: hazards, what repairs them, and the words for that."""

from __future__ import annotations

import keyword
import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import LabError

if TYPE_CHECKING:
    from ..program import Program

WORDS = ("cupy", "pytorch", "opencl")
"""In whose words a repair can be told."""
TOLD = 10
"""How many waits that are needed for nothing a report tells."""
DEFAULT_STREAMS = {
    "legacy": {"cupy": "cp.cuda.Stream.null", "pytorch": "torch.cuda.default_stream()"},
    "per-thread": {"cupy": "cp.cuda.Stream.ptds"},
}
"""What CUDA's default streams are called."""


def check_words(words: str) -> str:
    """``LabError`` unless ``words`` is one of `WORDS`."""
    if words not in WORDS:
        raise LabError(f"words={words!r} is not one of {', '.join(WORDS)}")
    return words


@dataclass(frozen=True)
class Hazard:
    """Two accesses to overlapping bytes that nothing orders, at least one of them a write or a free.

    ``kind``: RAW, WAR, WAW, "use after free", "reuse" (of bytes that a pool handed out again, to
    ``new_buffer``) or "use before allocation"; of several that hold for a pair, the first of RAW, WAR, WAW.
    ``first`` comes before ``second`` in the host's order, ``distance`` iterations apart (0: the same, or none
    are numbered: ``numbered``). ``first_index`` and ``second_index`` are their places in the unrolled list of
    steps (of captured work: where it was captured), ``*_source`` the lines that issued them, ``*_on_host``
    whether the host itself is meant, ``second_thread`` the host
    thread that issued the second, ``*_kind`` the kind of stream. ``start`` and
    ``stop`` are the overlapping bytes of ``buffer``, for a reuse of ``new_buffer``. ``values``: what the read
    may observe or, for two writes, what may be left. ``why``: what orders the two nearly, or that nothing
    does. ``repair``: an edge that orders them, by its name where it has one. ``count``: how many pairs like
    this one there are.
    """

    kind: str
    buffer: str
    first: str
    first_stream: str
    second: str
    second_stream: str
    distance: int
    start: int
    stop: int
    repair: str = ""
    values: tuple[str, ...] = ()
    why: str = ""
    first_source: str = ""
    second_source: str = ""
    first_index: int = -1
    second_index: int = -1
    first_kind: str = ""
    second_kind: str = ""
    second_thread: str = "host"
    first_on_host: bool = False
    second_on_host: bool = False
    numbered: bool = False
    new_buffer: str = ""
    count: int = 1

    def explain(self) -> str:
        """The hazard in one sentence, and its repair."""
        repair = f" Repair: {self.repair}." if self.repair else ""
        first, second = f"{self.first} ({self.first_stream})", f"{self.second} ({self.second_stream})"
        name = self.buffer
        if self.kind == "use after free":
            if self.first == f"free of {name}":
                return f"use after free of {name}: {second} comes after {first}.{repair}"
            return f"use after free of {name}: {second} does not wait until {first} is done with it.{repair}"
        if self.kind == "use before allocation":
            return f"use before allocation of {name}: {second} does not wait for {first}.{repair}"
        if self.kind == "reuse":
            return (
                f"reuse of {name}'s bytes as {self.new_buffer}: {second}{self._when()} uses "
                f"{self.new_buffer}, and nothing makes it wait until {first} is done with {name}.{repair}"
            )
        what = {"RAW": "reads", "WAR": "overwrites", "WAW": "overwrites"}[self.kind]
        did = {"RAW": "writing", "WAR": "reading", "WAW": "writing"}[self.kind]
        return (
            f"{self.kind} on {name}: {second}{self._when()} {what} {name}, and nothing makes it wait until "
            f"{first} is done {did} it.{repair}"
        )

    def _when(self) -> str:
        if not self.numbered:
            return ""
        return (" in the same step", " of the next step", f" {self.distance} steps later")[
            min(self.distance, 2)
        ]

    @property
    def observed(self) -> str:
        """What may be observed, in a phrase; empty where the question does not arise."""
        if not self.values:
            return ""
        values = _either(self.values)
        if self.kind == "WAW":
            return f"{self.buffer} may be left as {values}"
        return f"{self.second if self.kind == 'RAW' else self.first} may read {values}"

    def title(self) -> str:
        """What may go wrong, in a line."""
        name = self.buffer
        match self.kind:
            case "RAW":
                return f"{self.second} may read {name} before {self.first} has written it"
            case "WAR":
                return f"{self.second} may overwrite {name} before {self.first} has read it"
            case "WAW":
                return f"{self.first} may write {name} after {self.second} has"
            case "reuse":
                return (
                    f"{self.second} uses {self.new_buffer} on bytes that {self.first} may still use as {name}"
                )
            case "use before allocation":
                return f"{self.second} may use {name} before it is allocated"
        if self.first == f"free of {name}":
            return f"{self.second} uses {name} after it was freed"
        return f"{name} is freed while {self.first} may still use it"

    def report(self, words: str = "cupy") -> str:
        """The hazard as a compiler would tell it: what, where, what may be seen, why, and lines to add.

        ``words``: in whose words the lines are, one of `WORDS`; ``LabError`` for another.
        """
        check_words(words)
        lines = [f"{self.kind}: {self.title()}"]
        lines += self._place(self.second, self.second_stream, self.second_source, second=True)
        lines += self._place(self.first, self.first_stream, self.first_source, second=False)
        if self.observed:
            lines.append(f"  = seen: {self.observed}")
        if self.why:
            lines.append(f"  = why:  {self.why}")
        lines += [
            f"  = fix:  {line}" if i == 0 else f"          {line}" for i, line in enumerate(self.fix(words))
        ]
        if self.count > 1:
            lines.append(f"  = {self.count} pairs like this one")
        return "\n".join(lines)

    def _place(self, name: str, stream: str, source: str, second: bool) -> list[str]:
        does = {"RAW": ("writes", "reads"), "WAR": ("reads", "writes"), "WAW": ("writes", "writes")}.get(
            self.kind, ("uses", "uses")
        )[second]
        buffer = self.new_buffer if second and self.new_buffer else self.buffer
        what = "" if name.startswith(("free of", "allocation of", "host ")) else f" {does} {buffer}"
        where = f"{source}: " if source else ""
        size = f", bytes {self.start} to {self.stop}" if self.stop < 1 << 62 else ""
        lines = [f"  --> {where}{name} on {stream}{what}{size}"]
        code = source_text(source)
        return [*lines, f"      | {code}"] if code else lines

    def fix(self, words: str = "cupy") -> list[str]:
        """The repair in words, then the lines to add in a library's words, where edges are what is needed."""
        if self.repair and " " not in self.repair:  # an edge with a name: the schedule's own
            return [f"put back {self.repair}"]
        edge = Repair.between(self)
        lines = [edge.text, *(f"    {line}" for line in edge.lines(words))]
        if words == "opencl" and edge.kind == "edge" and edge.source != edge.target:
            lines.append(
                f"or keep the event that enqueuing {self.first} returns, and let {self.second} wait for it"
            )
        if self.kind == "reuse" and words == "pytorch":
            lines.append(f"or, where a tensor is {self.buffer}: {_expression(self.buffer)}.record_stream("
                         f"{_expression(self.first_stream)}) before it is freed")  # fmt: skip
        return lines

    def as_dict(self) -> dict[str, object]:
        """The hazard as plain values, for JSON."""
        return {
            "kind": self.kind,
            "buffer": self.buffer,
            **({"new_buffer": self.new_buffer} if self.new_buffer else {}),
            "first": self.first,
            "first_stream": self.first_stream,
            "first_source": self.first_source,
            "second": self.second,
            "second_stream": self.second_stream,
            "second_source": self.second_source,
            "distance": self.distance,
            "bytes": [self.start, self.stop],
            "values": list(self.values),
            "why": self.why,
            "repair": self.repair,
            "count": self.count,
        }


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with the program itself: ``code`` is CUDA's own where it has one."""

    code: str
    text: str
    source: str = ""
    index: int = -1

    def explain(self) -> str:
        """The problem in a line."""
        return f"{self.code}: {self.text}" + (f" ({self.source})" if self.source else "")

    def as_dict(self) -> dict[str, object]:
        """The problem as plain values, for JSON."""
        return {"code": self.code, "text": self.text, "source": self.source, "step": self.index}


@dataclass(frozen=True)
class Redundant:
    """A wait that orders nothing which something else does not order: ``waiter`` waits for ``what``."""

    kind: str
    what: str
    waiter: str
    source: str = ""
    index: int = -1
    count: int = 1

    def explain(self) -> str:
        """The wait, and what is known of it, in a line."""
        where = f" ({self.source})" if self.source else ""
        what = self.what or "every stream"
        return f"{self.waiter} waits for {what}{where}: that orders nothing new"

    def as_dict(self) -> dict[str, object]:
        """The wait as plain values, for JSON."""
        return {"kind": self.kind, "what": self.what, "waiter": self.waiter, "source": self.source,
                "step": self.index, "count": self.count}  # fmt: skip


@dataclass(frozen=True)
class Repair:
    """An ordering to add: behind ``after`` on ``source``, before ``before`` on ``target``.

    ``kind``: "edge" (an event between two streams), "host wait" (the host waits for an event), "hand over"
    (from one host thread to another), "move" (a free to behind the last use) or "named" (an edge of the lab's
    own schedule). ``record_at`` and ``wait_at`` are places in the program's own list of steps, before which
    the record and the wait go. ``crosses``: whether the wait is for the iteration before.
    """

    kind: str
    source: str
    target: str
    after: str
    before: str
    record_at: int = -1
    wait_at: int = -1
    after_source: str = ""
    before_source: str = ""
    source_kind: str = ""
    target_kind: str = ""
    crosses: bool = False

    @classmethod
    def between(cls, hazard: Hazard) -> Repair:
        """The ordering that a hazard alone asks for."""
        if hazard.kind == "use after free" and hazard.first == f"free of {hazard.buffer}":
            kind = "move"
        elif hazard.first_on_host:
            kind = "hand over"
        else:
            kind = "host wait" if hazard.second_on_host else "edge"
        return cls(
            kind,
            hazard.first_stream,
            hazard.second_thread if kind == "hand over" else hazard.second_stream,
            hazard.first,
            hazard.second,
            hazard.first_index,
            hazard.second_index,
            hazard.first_source,
            hazard.second_source,
            hazard.first_kind,
            hazard.second_kind,
            hazard.distance > 0,
        )

    @property
    def text(self) -> str:
        """The repair in a phrase."""
        match self.kind:
            case "named":
                return f"put back {self.source}"
            case "move":
                return f"{self.after} comes behind {self.before}, and waits for it"
            case "hand over":
                return (
                    f"thread {self.target} goes on to {self.before} only after {self.after} in {self.source}"
                )
            case "host wait":
                return f"the host waits for {self.source} before the {self.before}"
        if not self.after:
            wait = f"{self.target} waits for it, before {self.before}"
            return f"an event recorded on {self.source} right before {wait}"
        if self.source == self.target:
            return f"a barrier on {self.source} between {self.after} and {self.before}"
        return (
            f"an event recorded on {self.source} after {self.after}, which {self.target} waits for before "
            f"{self.before}"
        )

    @property
    def event(self) -> str:
        """A name for the event."""
        return f"{_name(self.after)}_done" if self.after else f"{_name(self.source)}_so_far"

    def lines(self, words: str = "cupy") -> list[str]:
        """The lines to add, in the words of CuPy, PyTorch or OpenCL (pyopencl)."""
        check_words(words)
        if self.kind in ("named", "move"):
            return []
        after, before = (
            _comment("after", self.after, self.after_source) if self.after else "# right before the wait",
            _comment("before", self.before, self.before_source),
        )
        e = self.event
        source, target = (
            DEFAULT_STREAMS.get(kind, {}).get(words) or _expression(name)
            for name, kind in ((self.source, self.source_kind), (self.target, self.target_kind))
        )
        if self.kind == "hand over":
            flag = f"{_name(self.after)}_made"
            return _aligned([
                (f"{flag} = threading.Event()", "# once"),
                (f"{flag}.set()", f"{after}, in thread {self.source}"),
                (f"{flag}.wait()", f"{before}, in thread {self.target}"),
            ])  # fmt: skip
        if words == "opencl":
            if self.source == self.target:
                return _aligned([(f"cl.enqueue_barrier({source})", f"{after}, {before[2:]}")])
            made = [(f"{e} = cl.enqueue_marker({source})", after), (f"{source}.flush()", "")]
            if self.kind == "host wait":
                return _aligned([*made, (f"{e}.wait()", before)])
            if self.crosses:  # the first turn has nothing to wait for
                waits = f"cl.enqueue_barrier({target}, wait_for={e} and [{e}])"
                return _aligned([(f"{e} = None", "# once"), *made, (waits, before)])
            return _aligned([*made, (f"cl.enqueue_barrier({target}, wait_for=[{e}])", before)])
        module = {"cupy": "cp.cuda.Event(disable_timing=True)", "pytorch": "torch.cuda.Event()"}[words]
        waits = f"{e}.synchronize()" if self.kind == "host wait" else f"{target}.wait_event({e})"
        return _aligned([(f"{e} = {module}", "# once"), (f"{e}.record({source})", after), (waits, before)])

    def as_dict(self) -> dict[str, object]:
        """The repair as plain values, for JSON."""
        return {"kind": self.kind, "text": self.text, "from": self.source, "to": self.target,
                "after": self.after, "before": self.before}  # fmt: skip


@dataclass(frozen=True, repr=False)
class Verdict:
    """The answer for a whole program.

    ``hazards``: every one, nearest pairs only; ``more`` counts different ones beyond the first thousand.
    ``errors``: what the program would fail with, such as a capture with a fork that never joins. ``repair``:
    the smallest set of edges found that repairs all hazards; ``smallest`` tells whether no smaller one can
    be. ``redundant``: waits that order nothing new. ``unseen``: what the description of the program leaves
    out; nothing of that is taken as safe. ``words``: in whose words it is told. ``program``: what was judged,
    where it was given as a whole.
    """

    name: str
    hazards: tuple[Hazard, ...]
    errors: tuple[Problem, ...] = ()
    repair: tuple[Repair, ...] = ()
    smallest: bool = False
    redundant: tuple[Redundant, ...] = ()
    unseen: tuple[str, ...] = ()
    launches: int = 0
    steps: int = 0
    more: int = 0
    words: str = field(default="cupy", compare=False)
    program: Program | None = field(default=None, repr=False, compare=False)

    @property
    def clean(self) -> bool:
        """Whether there is neither a hazard nor an error. Says nothing of what is ``unseen``."""
        return not self.hazards and not self.errors

    def repaired(self) -> Program:
        """The program with the repair put in. ``LabError`` where there is no program or no such repair."""
        from .repair import insert

        if self.program is None:
            raise LabError(f"{self.name} was judged step by step and not kept; check it as a whole program")
        return insert(self.program, self.repair)

    def summary(self) -> str:
        """The verdict in a line."""
        size = f"{self.name}: {_count(self.launches, 'launch', 'launches')}"
        found = [_count(len(self.hazards) + self.more, "hazard", "hazards")] if self.hazards else []
        found += [_count(len(self.errors), "error", "errors")] if self.errors else []
        clean = "no hazard in what was seen" if self.unseen else "no hazard"
        told = " and ".join(found) if found else clean
        return f"{size}, {told}" + (
            f"; {_count(len(self.unseen), 'thing', 'things')} not seen" * bool(self.unseen)
        )

    def __repr__(self) -> str:
        return f"<Verdict: {self.summary()}>"

    def __str__(self) -> str:
        return self.report()

    def report(self, words: str | None = None, most: int | None = None) -> str:
        """The verdict as a compiler would tell it, with lines to add in the words of one of `WORDS`.

        ``most``: of how many hazards at most; all, without it.
        """
        words = check_words(self.words if words is None else words)
        parts = [self.summary()]
        parts += [p.explain() for p in self.errors]
        told = self.hazards[:most]
        parts += [h.report(words) for h in told]
        if more := self.more + len(self.hazards) - len(told):
            parts.append(f"and {more} more")
        if len(self.repair) == len(self.hazards) == 1 and self.smallest:
            pass  # the hazard has told it
        elif self.repair:
            what = "The smallest repair" if self.smallest else "A repair"
            edges = _count(len(self.repair), "ordering", "orderings")
            lines = [f"{what} of all: {edges}"]
            for number, repair in enumerate(self.repair, 1):
                lines.append(f"  {number}. {repair.text}")
                if len(self.hazards) > 1:
                    lines += [f"       {line}" for line in repair.lines(words)]
            parts.append("\n".join(lines))
        if self.redundant:
            lines = [f"  {r.explain()}" for r in self.redundant[:TOLD]]
            lines += [f"  and {len(self.redundant) - TOLD} more"] * (len(self.redundant) > TOLD)
            parts.append("\n".join(["Adds no order:", *lines]))
        if self.unseen:
            parts.append("\n".join(["Not seen, and so not judged:", *(f"  {text}" for text in self.unseen)]))
        return "\n\n".join(parts)

    def as_dict(self) -> dict[str, Any]:
        """The verdict as plain values, for JSON."""
        return {
            "name": self.name,
            "clean": self.clean,
            "launches": self.launches,
            "steps": self.steps,
            "hazards": [h.as_dict() for h in self.hazards],
            "more_hazards": self.more,
            "errors": [p.as_dict() for p in self.errors],
            "repair": [r.as_dict() for r in self.repair],
            "smallest": self.smallest,
            "redundant": [r.as_dict() for r in self.redundant],
            "unseen": list(self.unseen),
        }

    def with_repair(self, repair: Sequence[Repair], smallest: bool, program: Program | None) -> Verdict:
        """The same verdict with what repairs it."""
        return replace(self, repair=tuple(repair), smallest=smallest, program=program)


@dataclass(frozen=True)
class Order:
    """Whether ``second`` starts only when ``first`` is done: how often it surely does, and how often not.

    Counted are the pairs of each ``second`` with the nearest ``first`` before it in the host's order.
    """

    first: str
    second: str
    ordered: int
    unordered: int

    @property
    def always(self) -> bool:
        """Whether every pair is ordered, and there is one."""
        return self.ordered > 0 and self.unordered == 0

    @property
    def text(self) -> str:
        """The answer in a sentence."""
        total = self.ordered + self.unordered
        if not total:
            return f"{self.second} never comes behind {self.first} in the host's order"
        if self.always:
            return (
                f"{self.second} always starts after {self.first} is done ({_count(total, 'pair', 'pairs')})"
            )
        if not self.ordered:
            return f"nothing makes {self.second} wait for {self.first} ({_count(total, 'pair', 'pairs')})"
        return (
            f"{self.second} waits for {self.first} in {self.ordered} of {total} pairs, and not in the others"
        )


def source_text(source: str) -> str:
    """The line of code at "file.py:31", from Python's cache of lines or the file, else nothing."""
    file, _, number = source.rpartition(":")
    if not file or not number.isdigit() or not (file in linecache.cache or Path(file).is_file()):
        return ""
    linecache.checkcache(file)  # another file of that name may have been read before
    return linecache.getline(file, int(number)).strip()


def _either(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _name(text: str) -> str:
    """A name that Python allows."""
    name = re.sub(r"\W+", "_", text).strip("_") or "work"
    return f"_{name}" if name[0].isdigit() else f"{name}_" if keyword.iskeyword(name) else name


def _expression(text: str) -> str:
    """An expression of the program's own, "self.queues[1]", as it is; any other text as a name."""
    plain = re.fullmatch(r"[^\W\d]\w*(?:\.[^\W\d]\w*|\[[\w'\"]+\])*", text)
    return text if plain and not any(map(keyword.iskeyword, re.split(r"\W+", text))) else _name(text)


def _comment(word: str, what: str, source: str) -> str:
    return f"# {word} {what}" + (f", {source}" if source else "")


def _aligned(lines: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(code) for code, _ in lines)
    return [f"{code:<{width}}  {comment}".rstrip() for code, comment in lines]
