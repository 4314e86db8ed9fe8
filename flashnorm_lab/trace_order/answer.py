"""Is kernel A ordered before kernel B? Answered from a trace: yes, no, or the trace does not say."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import LabError
from ..program import Launch, Query, Record, Synchronize, Wait
from .trace import ASIDE, TraceProgram
from .web import Link, Web

ROUNDING_NS = 1000
"""Traces in whole microseconds round; work that overlaps by no more than this did not show that it did."""
SHOWN = 6
"""Pairs of streams that an answer writes out."""
NAME = 64
"""Letters of a kernel's name that are shown."""


@dataclass(frozen=True)
class Pair:
    """How often B on one stream followed A on another, and how often that order was sure.

    ``ordered``, ``unknown`` and ``unordered`` add up to ``cases``. ``ended_before`` counts what was measured:
    A had ended when B started. ``chain`` is one way that orders them, ``doubt`` what else may.
    """

    first_stream: str
    second_stream: str
    cases: int
    ordered: int
    unknown: int
    unordered: int
    ended_before: int
    chain: tuple[str, ...] = ()
    doubt: str = ""


@dataclass(frozen=True)
class Answer:
    """Whether ``first`` is ordered before ``second``, in a trace; print it to read it.

    ``verdict``: "yes", in every case, whatever the trace leaves out; "no", in some case nothing orders them,
    nor may anything that the trace leaves out; "unknown" else. A case is an occurrence of ``second`` with the
    nearest earlier one of ``first`` in the host's order, in the same process. ``ended_before`` counts what
    was measured, which is no promise. ``pairs`` has the cases by streams. ``notes`` say what else matters.
    """

    first: str
    second: str
    verdict: str
    cases: int
    ordered: int
    unknown: int
    unordered: int
    ended_before: int
    pairs: tuple[Pair, ...] = ()
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The answer as plain values, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        a, b = shorten(self.first), shorten(self.second)
        if not self.cases:
            lines = [f"{self.verdict}: {a} is never issued before {b} in this trace"]
        elif self.ordered == self.cases:
            lines = [
                f"{self.verdict}: {b} starts only when the {a} before it is done, in {_all_of(self.cases)}"
            ]
        else:
            parts = [f"ordered in {self.ordered}"] * bool(self.ordered)
            parts += [f"not ordered by anything in {self.unordered}"] * bool(self.unordered)
            parts += [f"not shown by this trace in {self.unknown}"] * bool(self.unknown)
            lines = [f"{self.verdict}: {a} before {b}: {', '.join(parts)} of {_cases(self.cases)}"]
        for pair in self.pairs[:SHOWN]:
            lines.append(
                f"  {pair.first_stream} to {pair.second_stream}, {_cases(pair.cases)}: "
                f"{pair.ordered} ordered, {pair.unordered} not, {pair.unknown} unknown"
            )
            lines += [f"    {' -> '.join(pair.chain)}"] * bool(pair.chain)
            lines += [f"    may order them: {pair.doubt}"] * bool(pair.doubt)
        if len(self.pairs) > SHOWN:
            lines.append(f"  and {len(self.pairs) - SHOWN} more pairs of streams")
        if self.cases:
            lines.append(self._measured(a, b))
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def _measured(self, a: str, b: str) -> str:
        how_often = f"{self.ended_before} of {_cases(self.cases)}"
        text = f"  measured: {a} had ended before {b} started in {how_often}"
        if self.verdict == "yes" or self.ended_before < self.cases:
            return text
        if self.verdict == "no":
            return f"{text} here, but nothing guarantees it"
        return f"{text} here, but this trace does not show that anything guarantees it"


def _cases(count: int) -> str:
    return f"{count} case" if count == 1 else f"{count} cases"


def _all_of(count: int) -> str:
    return "the one case" if count == 1 else f"all {count} cases"


def shorten(name: str, length: int = NAME) -> str:
    """A kernel's name with its middle left out, where it is long."""
    if len(name) <= length:
        return name
    head = length * 2 // 3
    return f"{name[:head]}…{name[len(name) - (length - head - 1) :]}"


def answer(program: TraceProgram, first: str, second: str) -> Answer:
    """Is ``first`` ordered before ``second``, on every run that issues what this one did?

    A name is a kernel's whole name, or a part of it that only one has; "NAME on stream 7" takes only those
    on that stream. Raises ``LabError`` for a name that none or several have, and for what is no trace.
    """
    launches = _launches(program)
    first, before = _choose(program, launches, first)
    second, after = _choose(program, launches, second)
    cases = list(_nearest(program, launches, before, after))
    return _judged(program, launches, cases, {*before, *after}, (first, second))


def answer_for(program: TraceProgram, cases: Iterable[tuple[int, int]]) -> Answer:
    """Is the first launch of each case ordered before the second one? For launches chosen one by one.

    cases: pairs of numbers of launches among the program's steps. Raises ``LabError`` for a number that is
    none, and for what is no trace.
    """
    launches = _launches(program)
    cases = list(cases)
    for number in (number for case in cases for number in case):
        if number not in launches:
            raise LabError(f"step {number!r} of {program.name} is no launch, copy or fill")
    words = ["; ".join(dict.fromkeys(_whole_name(launches[case[i]]) for case in cases)) for i in (0, 1)]
    return _judged(program, launches, cases, {n for case in cases for n in case}, (words[0], words[1]))


def _launches(program: TraceProgram) -> dict[int, Launch]:
    if not isinstance(program, TraceProgram):
        raise LabError(
            f"{str(program)[:60]!r} is no trace; read one with trace_order.load(path), or ask hazards.order"
        )
    return {number: step for number, step in enumerate(program.steps) if isinstance(step, Launch)}


def _whole_name(launch: Launch) -> str:
    return f"{launch.name} on {launch.stream}"


def _judged(
    program: TraceProgram,
    launches: dict[int, Launch],
    cases: list[tuple[int, int]],
    meant: set[int],
    names: tuple[str, str],
) -> Answer:
    first, second = names
    pairs, overlaps = _Judge(program, launches, sorted({a for a, _ in cases})).judge(cases)
    counts = {
        key: sum(getattr(pair, key) for pair in pairs)
        for key in ("cases", "ordered", "unknown", "unordered", "ended_before")
    }
    floating = program.floating & meant
    if not cases:
        verdict = "unknown" if floating else "no"
    elif counts["unordered"]:
        verdict = "no"
    else:
        verdict = "unknown" if counts["unknown"] or overlaps else "yes"
    notes = list(_notes(program, cases, pairs, overlaps, names))
    if floating and not cases:
        notes.append(
            f"when {len(floating)} of them were issued is not known: their calls are not in the trace"
        )
    return Answer(first, second, verdict, **counts, pairs=pairs, notes=tuple(notes))


# Which launches are meant


def _choose(program: TraceProgram, launches: dict[int, Launch], wanted: str) -> tuple[str, list[int]]:
    """The launches that a person means, and how they are called in full."""
    name, on = wanted, ""
    head, _, tail = wanted.rpartition(" on ")
    named = _streams(program, tail) if head else []
    if len(named) > 1:
        raise LabError(f"{wanted!r}: several streams are called {tail}: {', '.join(named)}; name one in full")
    if named:
        name, on = head, named[0]
    streams = {on, f"graphs on {on}", on + ASIDE} if on else set(program.streams)
    names = Counter(step.name for step in launches.values() if step.stream in streams)
    found = [n for n in names if n == name] or [n for n in names if n.startswith(name)]
    if len(found) != 1:
        found = found or [n for n in names if name in n]
    where = f" on {on}" if on else ""
    if not found:
        most = ", ".join(shorten(n) for n, _ in names.most_common(5)) or "none"
        lost = next((f"; of {shorten(n)} the place is not known" for n in program.left_out if name in n), "")
        raise LabError(
            f"no kernel, copy or fill{where} has {name!r} in its name; most frequent: {most}{lost}"
        )
    if len(found) > 1:
        alike = next(
            (i for i, letters in enumerate(zip(*found[:5], strict=False)) if len(set(letters)) > 1), 0
        )
        listed = "; ".join(_telling(n, name, alike) for n in found[:5])
        more = f"; and {len(found) - 5} more" if len(found) > 5 else ""
        raise LabError(f"{name!r} is part of {len(found)} names{where}; give more of one: {listed}{more}")
    (full,) = found
    chosen = [number for number, s in launches.items() if s.name == full and s.stream in streams]
    return full + where, chosen


def _streams(program: TraceProgram, name: str) -> list[str]:
    """The streams that a person may mean by a name: "stream 20", or as little as "20"."""
    if name in program.streams:
        return [name]
    return [s for s in program.streams if s.endswith(f" {name}") and not s.startswith("graph")]


def _telling(name: str, part: str, alike: int) -> str:
    """A long name around the part that was asked for, or where its first ``alike`` letters end."""
    start = max(0, name.find(part) - NAME // 4)
    if alike > start + NAME // 2:
        start = alike - NAME // 2
    cut = name[start : start + NAME]
    return f"{'…' * (start > 0)}{cut}{'…' * (start + NAME < len(name))}"


def _nearest(
    program: TraceProgram, launches: dict[int, Launch], before: list[int], after: list[int]
) -> Iterator[tuple[int, int]]:
    """Each of ``after`` with the nearest one of ``before`` that its process issued earlier."""
    latest: dict[int, int] = {}
    first, second = set(before), set(after)
    for number in sorted(first | second):
        process = program.process[launches[number].stream]
        if number in second and process in latest:
            yield latest[process], number
        if number in first:
            latest[process] = number


# Judging


class _Judge:
    def __init__(self, program: TraceProgram, launches: dict[int, Launch], before: list[int]) -> None:
        self.program, self.launches = program, launches
        self.web = Web(program)
        self.number: dict[int, int] = {}  # of each A among those of its stream
        streams: dict[str, dict[int, int]] = defaultdict(dict)
        for i in before:
            on = streams[launches[i].stream]
            self.number[i] = on[self.web.node[i]] = len(on) + 1
        self.sure = {stream: self.web.reach(on, certain=True) for stream, on in streams.items()}
        self.perhaps = {stream: self.web.reach(on, certain=False) for stream, on in streams.items()}

    def judge(self, cases: list[tuple[int, int]]) -> tuple[tuple[Pair, ...], int]:
        """The cases by streams; and how many are ordered where B was seen to start before A had ended."""
        counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        example: dict[tuple[str, str, str], tuple[int, int, str]] = {}
        overlaps = 0
        for a, b in cases:
            where = self.launches[a].stream, self.launches[b].stream
            word, doubt = self._one(a, b)
            between = self.program.times[b][0] - self.program.times[a][1]
            counts[where].update(["cases", word] + ["ended_before"] * (between >= 0))
            overlaps += word == "ordered" and between < -ROUNDING_NS
            example.setdefault((*where, word), (a, b, doubt))
        pairs = []
        for place, (where, count) in enumerate(counts.items()):
            chain: tuple[str, ...] = ()
            doubt = ""
            if place < SHOWN and (*where, "ordered") in example:
                a, b, _ = example[*where, "ordered"]
                chain = _words(self.web, self.web.node[a], self._way(a, b, certain=True))
            if place < SHOWN and (*where, "unknown") in example:
                a, b, doubt = example[*where, "unknown"]
                if not doubt:
                    doubts = (link.doubt for _, link in self._way(a, b, certain=False) if link.doubt)
                    doubt = "; ".join(dict.fromkeys(doubts))
            numbers = [count[key] for key in ("cases", "ordered", "unknown", "unordered", "ended_before")]
            pairs.append(Pair(*where, *numbers, chain=chain, doubt=doubt))
        return tuple(pairs), overlaps

    def _one(self, a: int, b: int) -> tuple[str, str]:
        """The word for one case; for "unknown", why, unless the web has a way that tells it."""
        program, web, number = self.program, self.web, self.number[a]
        stream, node = self.launches[a].stream, web.node[b]
        if web.behind(node, self.sure[stream], certain=True) >= number:
            return "ordered", ""
        graph = program.graphs.get(a)
        if graph is not None and graph == program.graphs.get(b):
            return "unknown", f"an edge of the graph launched at {graph}: a trace has no edges of graphs"
        for i in (a, b):
            if i in program.floating:
                name = f"{shorten(self.launches[i].name)} ({self.launches[i].source})"
                return "unknown", f"where {name} was issued among the host's other calls is not known"
        perhaps = web.behind(node, self.perhaps[stream], certain=False) >= number
        return ("unknown" if perhaps else "unordered"), ""

    def _way(self, a: int, b: int, certain: bool) -> list[tuple[int, Link]]:
        reach = (self.sure if certain else self.perhaps)[self.launches[a].stream]
        return self.web.way(self.web.node[a], self.number[a], self.web.node[b], reach, certain)


# Words


def _words(web: Web, first: int, way: list[tuple[int, Link]]) -> tuple[str, ...]:
    """A way through the web, told at its turns."""
    told = [_told(web, first)]
    if all(link.along == "stream" for _, link in way):
        told.append("the stream runs its work in order")
    at = first
    for node, link in way:
        if link.along == "default":
            told.append("the default stream and blocking streams wait for each other")
        elif link.along == "event":
            told += [_told(web, i) for i in (at, node) if web.launch(i) is None]
        elif link.along == "host":
            told += [_told(web, node)] * (web.launch(node) is None)
        at = node
    told.append(_told(web, at))
    return tuple(dict.fromkeys(text for text in told if text))


def _told(web: Web, node: int) -> str:
    """One node in words; "" for what is none of the host's calls."""
    if web.step[node] < 0:
        return ""
    step = web.program.steps[web.step[node]]
    on = str(getattr(step, "event", "") or getattr(step, "stream", None) or "the device").partition("@")[0]
    match step:
        case Launch() if web.launch(node) is None:
            text = f"the host waits for {shorten(step.name)}"
        case Launch():
            where = f"on {step.stream}"
            if step.stream.startswith("graphs on "):
                where = where.replace("on graphs", "in a graph", 1)
            text = f"{shorten(step.name)} {where}"
        case Record():
            text = f"{on} {'' if on.startswith('start of') else 'recorded '}on {step.stream}"
        case Wait():
            text = f"{step.stream} waits for it"
        case Query():
            text = f"a query is told that {on} is done"
        case Synchronize():
            text = f"the host waits for {on}"
        case _:
            text = on
    return f"{text} ({step.source})"


def _notes(
    program: TraceProgram,
    cases: list[tuple[int, int]],
    pairs: tuple[Pair, ...],
    overlaps: int,
    names: tuple[str, str],
) -> Iterator[str]:
    """What is worth knowing besides."""
    if overlaps:
        yield (
            f"in {overlaps} of the ordered cases the second started before the first had ended: a launch "
            "may ask for that (programmatic stream serialization), or the trace's clocks are off"
        )
    early = sum(b in program.early for _, b in cases)
    if early and any(pair.ordered for pair in pairs):
        yield (
            f"{early} of the second were launched by a LaunchKernelEx, which may ask to start before the "
            "kernel ahead on the stream has ended; they are taken as in order"
        )
    if any("a query is told" in turn for pair in pairs for turn in pair.chain):
        yield "an order that stands on a query holds only if the program goes on only after a yes"
    if any("the kind" in pair.doubt or "default stream" in pair.doubt for pair in pairs):
        yield (
            "if you know what the streams are, say so: load(path, kinds={'stream 20': 'non-blocking'}), or "
            "'*' for all; PyTorch's side streams are non-blocking"
        )
    calls = _between(program, cases) if any(pair.unordered for pair in pairs) else Counter()
    if calls:
        told = ", ".join(f"{name} ({count})" for name, count in calls.most_common(4))
        yield f"between them were {told}: these often wait for the device, and nothing promises it"
    for name in dict.fromkeys(names):
        whole = name if name in program.left_out else name.rpartition(" on ")[0]
        if whole in program.left_out:
            count = program.left_out[whole]
            yield f"{count} of {shorten(whole)} are left out: where they were issued is not in the trace"


def _between(program: TraceProgram, cases: list[tuple[int, int]]) -> Counter[str]:
    """Calls that often wait for the device, between the two of any case."""
    calls = [(gap.at, gap.what) for gap in program.gaps if gap.kind == "memory"]
    at = [number for number, _ in calls]
    found: set[int] = set()
    for a, b in cases:
        found.update(range(bisect_right(at, a), bisect_right(at, b)))
    return Counter(calls[i][1] for i in found)
