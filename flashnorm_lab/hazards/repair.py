"""The smallest set of orderings that repairs all hazards of a program.

Every ordering that could be added is one event: recorded on a stream at some place of the host's program, and
waited for on another at a later one. The strongest event that a wait at a given place can wait for is one
recorded right there, since it stands for everything that its stream was given before. So it is enough to try,
for each place and each pair of streams, that one; the analysis itself tells which hazards are left. Sets of
one and of two are tried out; where these do not do, a set is built up step by step, and `smallest` is
claimed only if it has no more than three members.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import LabError
from ..program import (
    Barrier,
    EndCapture,
    Free,
    GraphLaunch,
    HandOver,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Record,
    Step,
    Synchronize,
    Wait,
    label,
    pattern,
)
from .engine import Checker
from .verdict import Hazard, Repair, Verdict

BUDGET = 6000
"""How many times a program is judged anew, at most, in the search for its repair."""
STEPS = 300_000
"""And how many steps these judgements look at, at most."""

Candidate = tuple[str, str, str, int, int]
"""Kind, from, to, and the places before which the record and the wait go."""


def key(hazard: Hazard) -> tuple[Any, ...]:
    """What tells a hazard from others, whatever else is added to the program."""
    texts = (hazard.buffer, hazard.new_buffer, hazard.first, hazard.second)
    if hazard.first_source and hazard.second_source:
        texts = tuple(map(pattern, texts))
    streams = hazard.first_stream, hazard.second_stream
    return *texts, *streams, hazard.distance, hazard.first_source, hazard.second_source


def with_texts(verdict: Verdict, texts: Iterable[str] | None = None) -> Verdict:
    """The verdict, each hazard with the ordering that it asks for: as given, or in words."""
    texts = texts or [Repair.between(h).text for h in verdict.hazards]
    hazards = tuple(replace(h, repair=text) for h, text in zip(verdict.hazards, texts, strict=True))
    return replace(verdict, hazards=hazards)


def by_size(names: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Every choice of names, the smallest first."""
    for size in range(1, len(names) + 1):
        yield from itertools.combinations(names, size)


def judged(program: Program, length: int = 0) -> Verdict:
    """The verdict on a program, and nothing besides."""
    checker = Checker(program.streams, program.buffers, program.name, program.unseen, length or len(program))
    return replace(checker.feed_all(program.unrolled()).verdict(), words=program.words)


def repair(program: Program, verdict: Verdict) -> Verdict:
    """The verdict with the smallest repair that was found, and with the program to put it into."""
    search = _Search(program, verdict)
    repairs, smallest = search.run()
    return verdict.with_repair(repairs, smallest, program)


def insert(program: Program, repairs: Sequence[Repair]) -> Program:
    """The program with the repairs put in: frees are moved first, and all other places are from then on.

    ``LabError`` for a repair that is told in words only.
    """
    for r in repairs:
        if r.kind == "named":
            raise LabError(f"{r.text}: use the schedule's own with_edges, and check it again")
        if r.kind == "move":
            program = _moved(program, r)
    at: dict[int, tuple[list[Step], list[Step]]] = {}
    taken = {s.event for s in program.steps if isinstance(s, Record | Launch | Barrier)}
    for r in repairs:
        if r.kind == "move":
            continue
        event = next(name for name in _names(r.event) if name not in taken)
        taken.add(event)
        record, wait = _steps(r, event, program)
        waits = _alike(program, r.wait_at)
        behind = r.record_at != r.wait_at and r.record_at > 0
        records = [p + 1 for p in _alike(program, r.record_at - 1)] if behind else waits
        # At one and the same place every record comes first: a wait is for the record that is right there.
        for place in records:
            at.setdefault(place, ([], []))[0].append(record)
        for place in waits if wait is not None else ():
            at.setdefault(place, ([], []))[1].append(wait)
    steps: list[Step] = []
    for place, s in enumerate((*program.steps, None)):
        records_here, waits_here = at.get(place, ([], []))
        steps += [*records_here, *waits_here]
        if s is not None:
            steps.append(s)
    return program.with_steps(steps)


def _alike(program: Program, place: int) -> tuple[int, ...]:
    """The place, and all others at which the same line does the same; also the one behind the last step."""
    return program.alike[place] if place < len(program.steps) else (place,)


def _moved(program: Program, r: Repair) -> Program:
    """A free that comes behind the last use, and waits for it where the device does not order the two."""
    free = program.steps[r.record_at]
    steps = list(program.steps)
    late = [free] if isinstance(free, Free) and free.how == "stream" else [
        Synchronize(thread=free.thread), free]  # fmt: skip
    steps[r.wait_at + 1 : r.wait_at + 1] = late
    del steps[r.record_at]
    return program.with_steps(steps)


def _names(base: str) -> Iterator[str]:
    yield base
    for number in itertools.count(2):
        yield f"{base}_{number}"


def _steps(r: Repair, event: str, program: Program) -> tuple[Step, Step | None]:
    threads = {place: _thread(program, place) for place in (r.record_at, r.wait_at)}
    if r.kind == "hand over":
        return HandOver(r.target, r.source), None
    record = Record(event, r.source, threads[r.record_at])
    if r.kind == "host wait":
        return record, Synchronize(event=event, thread=r.target)
    return record, Wait(event, r.target, threads[r.wait_at])


def _thread(program: Program, place: int) -> str:
    """The host thread that makes the call at a place, or the one before it at the end."""
    return program.steps[min(place, len(program.steps) - 1)].thread


class _Search:
    def __init__(self, program: Program, verdict: Verdict) -> None:
        self.moves: list[Repair] = []
        self.errors = len(verdict.errors)
        hazards = verdict.hazards
        while late := [h for h in hazards if Repair.between(h).kind == "move"]:
            place = self._move(program, late)
            if place is None:
                break
            self.moves.append(place)
            program = _moved(program, place)
            try:
                hazards = judged(program).hazards
            except LabError:  # the bytes are handed out again before: there is no place for the free
                self.moves.pop()
                hazards = tuple(h for h in hazards if h not in late)
                break
        self.program, self.length = program, len(program.steps)
        self.wanted = [h for h in hazards if Repair.between(h).kind != "move"]
        self.keys = {key(h) for h in self.wanted}
        self.first = [alike[0] for alike in program.alike]  # of the places that are alike
        self.left = max(1, min(BUDGET, STEPS // max(1, self.length * program.repeat)))
        self.enough = max(8, self.left // 10)  # to put the last touch to what was found

    def _move(self, program: Program, late: Sequence[Hazard]) -> Repair | None:
        """One move of a free does for all uses that come after it: behind the last of them."""
        length = len(program.steps)
        first = late[0].first_index % length
        last = max((h for h in late if h.first_index % length == first), key=lambda h: h.second_index)
        if last.second_index - last.first_index >= length or last.second_index % length <= first:
            return None  # the next iteration uses what this one freed: that takes another allocation
        return replace(Repair.between(last), record_at=first, wait_at=last.second_index % length)

    def run(self) -> tuple[list[Repair], bool]:
        if not self.wanted:
            return self.moves, True
        candidates = list(self._candidates())
        repairs: dict[Candidate, frozenset[Any]] = {}
        for c in candidates:
            if self.left <= 0:
                break
            left = self._remaining([c])
            if left is None:
                continue
            repairs[c] = frozenset(self.keys - left)
            if not left:
                return self._finish([c], True)
        singles = self.left > 0
        useful = sorted((c for c in repairs if repairs[c]), key=lambda c: -len(repairs[c]))
        # One of two that do together must do something alone: else a single one would have done.
        pairs = singles and len(useful) * len(candidates) <= self.left
        others = list(repairs) if pairs else useful[: int(max(0, self.left) ** 0.5)]
        tried: set[frozenset[Candidate]] = set()
        for first in useful:
            for second in others:
                pair = frozenset((first, second))
                if len(pair) < 2 or pair in tried or self.left <= 0:
                    continue
                tried.add(pair)
                if not pairs and repairs[first] | repairs[second] != self.keys:
                    continue
                if self._remaining(sorted(pair)) == set():
                    return self._finish(sorted(pair), singles)
        chosen = self._cover(repairs, useful)
        return self._finish(chosen, pairs and len(chosen) == 3) if chosen else ([], False)

    def _cover(self, repairs: dict[Candidate, frozenset[Any]], useful: list[Candidate]) -> list[Candidate]:
        """One after the other, each the one that repairs the most of what is left; then those that the rest
        has made unnecessary are taken out again."""
        chosen: list[Candidate] = []
        left = set(self.keys)
        while left:
            best = max(useful, key=lambda c: len(repairs[c] & left), default=None)
            if best is None or not repairs[best] & left:
                h = next(h for h in self.wanted if key(h) in left)
                best = self._direct(h)
                if best in chosen:
                    break
                left.discard(key(h))
            else:
                left -= repairs[best]
            chosen.append(best)
        self.left = max(self.left, self.enough)
        while left := self._remaining(chosen):  # together they may leave, or lay open, what none did alone
            more = next((self._direct(h) for h in self.wanted if key(h) in left), None)
            if more is None or more in chosen:
                return []
            chosen.append(more)
        if left is None:
            return []
        for c in list(chosen):
            fewer = [other for other in chosen if other != c]
            if fewer and self.left > 0 and self._remaining(fewer) == set():
                chosen = fewer
        return chosen

    def _direct(self, h: Hazard) -> Candidate:
        between = Repair.between(h)
        place = self.first[h.second_index % self.length]
        return between.kind, between.source, between.target, place, place

    def _candidates(self) -> Iterator[Candidate]:
        """Every ordering that may do something: from each stream to each other, right before each action."""
        program = self.program
        seen: dict[Candidate, None] = {}
        for h in self.wanted:  # those that a reader would think of first
            seen[self._direct(h)] = None
        streams = list(program.streams)
        for place, s in enumerate(program.steps):
            if self.first[place] != place:
                continue
            acts = getattr(s, "stream", None)
            if not isinstance(s, Launch | Record | Barrier | GraphLaunch | Free | EndCapture | Synchronize):
                continue
            if acts is None and not isinstance(s, Synchronize):
                continue
            everyone = acts is None or program.streams[acts].kind == "legacy"
            for source in streams:
                in_order = program.streams[source].kind != "out-of-order"
                for target in streams if everyone else (acts,):
                    if not (source == target and in_order):
                        seen["edge", source, target, place, place] = None
        for h in self.wanted:
            if h.second_on_host:
                for source in streams:
                    place = self.first[h.second_index % self.length]
                    seen["host wait", source, h.second_stream, place, place] = None
        yield from seen

    def _remaining(self, chosen: Sequence[Candidate]) -> set[Any] | None:
        """The hazards that are left with these put in, new ones among them; None if it cannot be done."""
        self.left -= 1
        program = insert(self.program, [*(self._repair(c) for c in chosen)])
        try:
            verdict = judged(program)
        except LabError:  # an ordering that would keep the host waiting for ever
            return None
        if len(verdict.errors) > self.errors:
            return None
        return {key(h) for h in verdict.hazards}

    def _repair(self, c: Candidate) -> Repair:
        kind, source, target, record_at, wait_at = c
        after = self._last_work(source, record_at)
        before = self._next_work(target, wait_at, kind)
        return Repair(
            kind,
            source,
            target,
            label(after) if after is not None else "",
            label(before) if before is not None else "whatever comes next",
            record_at,
            wait_at,
            after.source if after is not None else "",
            before.source if before is not None else "",
            self._kind(source),
            self._kind(target),
        )

    def _kind(self, stream: str) -> str:
        found = self.program.streams.get(stream)
        return found.kind if found is not None else ""

    def _last_work(self, source: str, place: int) -> Any:
        """The work or host access of ``source`` before a place, in the iteration before if need be."""
        order = [*range(place - 1, -1, -1)]
        if self._loops(place):
            order += range(self.length - 1, place - 1, -1)
        return next((s for i in order if _works(s := self.program.steps[i], source)), None)

    def _loops(self, place: int) -> bool:
        """Whether a place comes again, so that what lies behind it comes before it, too."""
        return self.program.repeat > 1 or len(_alike(self.program, place)) > 1

    def _next_work(self, target: str, place: int, kind: str) -> Any:
        order = [*range(place, self.length)]
        if self._loops(place):
            order += range(place)
        if kind != "edge":
            return self.program.steps[place] if place < self.length else None
        return next((s for i in order if _works(s := self.program.steps[i], target)), None)

    def _finish(self, chosen: Sequence[Candidate], smallest: bool) -> tuple[list[Repair], bool]:
        """Move each record as early and each wait as late as repairs all the same: that orders the least."""
        chosen = list(chosen)
        self.left = max(self.left, self.enough)
        if self._remaining(chosen) == set():
            for i, c in enumerate(chosen):
                chosen[i] = self._relaxed(chosen, i, c)
        repairs = [self._repair(c) for c in chosen]
        return [*self.moves, *sorted(repairs, key=lambda r: r.wait_at)], smallest

    def _relaxed(self, chosen: list[Candidate], i: int, c: Candidate) -> Candidate:
        kind, source, target, _, wait_at = c
        if kind == "hand over":
            return c
        if kind == "edge":
            for place in range(self.length - 1, wait_at, -1):
                if (
                    self.left <= 0
                    or self.first[place] != place
                    or not _works(self.program.steps[place], target)
                ):
                    continue
                moved = (kind, source, target, min(c[3], place), place)
                if self._remaining([*chosen[:i], moved, *chosen[i + 1 :]]) == set():
                    wait_at = place
                    break
        works = (p for p in range(self.length) if self.first[p] == p)
        places = [p + 1 for p in works if _works(self.program.steps[p], source)]
        earlier = [p for p in places if p <= wait_at]
        if self._loops(wait_at):  # behind the wait in the list is the iteration before it
            earlier = [p for p in places if p > wait_at] + earlier
        for place in earlier:
            if self.left <= 0:
                break
            moved = (kind, source, target, place, wait_at)
            if self._remaining([*chosen[:i], moved, *chosen[i + 1 :]]) == set():
                return moved
        return kind, source, target, min(c[3], wait_at), wait_at


def _works(step: Step, stream: str) -> bool:
    if isinstance(step, HostRead | HostWrite):
        return step.thread == stream
    return isinstance(step, Launch | GraphLaunch | Free) and step.stream == stream
