"""Happens-before analysis: which accesses of a program may race, what a read may see, what repairs it.

A hazard is two accesses to overlapping bytes, at least one a write, that no happens-before path orders; or a
use of memory that is freed, or was handed out again. The verdict comes from the host's calls alone, so it
does not depend on how a run turned out.

Order comes from a stream, which runs what it is given in order; from a wait, which orders a stream behind all
that came before the event's latest record; from a synchronization, which orders the host behind the device;
from the host, since what it issues comes after what it has waited for; and from CUDA's default stream.

`check` judges a lab schedule, a `flashnorm_lab.program.Program` or a recording; `Checker` judges steps as
they come, in bounded memory::

    from flashnorm_lab.hazards import Checker
    from flashnorm_lab.program import Launch, Stream, reads, writes

    checker = Checker({"a": Stream(), "b": Stream()}, {"x": 64})
    checker.feed(Launch("fill", "a", (writes("x", 0, 64),)))
    checker.feed(Launch("sum", "b", (reads("x", 0, 64),)))
    print(checker.verdict().report())   # RAW: sum may read x before fill has written it ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import program as programs
from ..errors import LabError
from ..program import Launch, Program
from ..schedule import Schedule
from . import repair as _repair
from .engine import Checker
from .verdict import WORDS, Hazard, Order, Problem, Redundant, Repair, Verdict

__all__ = [
    "WORDS",
    "Checker",
    "Hazard",
    "Order",
    "Problem",
    "Redundant",
    "Repair",
    "Verdict",
    "check",
    "find",
    "order",
    "ordered",
]

SEARCHED = 20_000
"""Steps up to which a program's repair is searched for."""


def check(thing: Any, repeats: int = 2) -> Verdict:
    """Judge a lab schedule run ``repeats`` times in a row, a `Program`, or a recording.

    Two repeats show what crosses from one step into the next; more add nothing for the schedules of this
    lab, whose steps are all alike. A `Program` says itself how often its steps are made. ``LabError`` for
    what is none of these, and, naming the step, for a program that cannot be.
    """
    if isinstance(thing, Schedule):
        return _check_schedule(thing, _check_repeats(repeats))
    program = as_program(thing)
    verdict = judge(program)
    if not verdict.hazards or len(program) * program.repeat > SEARCHED:
        return verdict.with_repair((), not verdict.hazards, program)
    return _repair.repair(program, verdict)


def find(thing: Any, repeats: int = 2) -> tuple[Hazard, ...]:
    """Every hazard, nearest conflicting pairs only: the ``hazards`` of `check`, without the smallest repair.

    Pairs further apart than the nearest are ordered once the nearest are.
    """
    if isinstance(thing, Schedule):
        return _named(thing, _judge_schedule(thing, _check_repeats(repeats)), repeats).hazards
    return judge(as_program(thing)).hazards


def judge(program: Program, length: int = 0) -> Verdict:
    """The verdict on a program, without a search for what repairs it.

    ``length``: of how many steps an iteration is, where the program is a loop that was written out.
    """
    return _repair.with_texts(_repair.judged(program, length))


def as_program(thing: Any) -> Program:
    """The program of a recording, or the program itself. ``LabError`` for anything else."""
    program = getattr(thing, "program", thing)
    if not isinstance(program, Program):
        raise LabError(
            f"{type(thing).__name__} {str(thing)[:60]!r} is no schedule; make one with "
            "schedule.deferred(tokens, n, k), flashnorm_lab.record() or schedule_file.load(path)"
        )
    return program


def ordered(schedule: Schedule, first: str, second: str, distance: int = 0) -> bool:
    """Whether ``second``, ``distance`` steps later, starts only when ``first`` is done, on every run.

    For lab schedules; `order` asks any program. ``LabError`` if the schedule has no launch, copy or host
    access of such a name.
    """
    if not isinstance(schedule, Schedule):
        raise LabError(
            f"this {type(schedule).__name__} is no schedule of the lab; any program is asked with "
            "hazards.order(program, first, second)"
        )
    if isinstance(distance, bool) or not isinstance(distance, int) or distance < 0:
        raise LabError(f"distance={distance!r}: give a whole number of steps, 0 for the same step")
    unrolled = programs.from_schedule(schedule, distance + 1)
    known = {programs.label(s): None for s in unrolled.steps if isinstance(s, programs.NUMBERED)}
    for name in (first, second):
        if name not in known:
            raise LabError(
                f"there is no {name!r} in the {schedule.name} schedule; there are {', '.join(known)}"
            )
    clocks: dict[tuple[str, int], tuple[Any, list[int]]] = {}
    checker = Checker(unrolled.streams, unrolled.buffers)
    for name in {first, second}:
        checker.watch[name] = lambda mark, clock, name=name: clocks.setdefault(
            (name, mark[4]), (mark, list(clock))
        )
    checker.feed_all(unrolled.unrolled())
    mark, _ = clocks[first, 0]
    return (first != second or distance > 0) and clocks[second, distance][1][mark[0]] >= mark[1]


def order(thing: Any, first: str, second: str) -> Order:
    """Whether launches called ``second`` wait for the nearest one called ``first`` before them.

    ``LabError`` if the program makes no launch of such a name.
    """
    program = as_program(thing)
    names = dict.fromkeys(s.name for s in program.steps if isinstance(s, Launch))
    for name in (first, second):
        if name not in names:
            known = ", ".join(list(names)[:20]) or "none"
            raise LabError(f"there is no launch {name!r} in {program.name}; there are {known}")
    checker = Checker(program.streams, program.buffers, program.name)
    counts = [0, 0]
    latest: list[Any] = [None]

    def see_second(mark: Any, clock: list[int]) -> None:
        if latest[0] is not None:
            component, number = latest[0][:2]
            counts[clock[component] < number] += 1

    def see_first(mark: Any, clock: list[int]) -> None:
        if first == second:
            see_second(mark, clock)
        latest[0] = mark

    checker.watch = {second: see_second, first: see_first}
    checker.feed_all(program.unrolled())
    return Order(first, second, *counts)


def _check_repeats(repeats: int) -> int:
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise LabError(f"repeats={repeats!r}: give a whole number of at least 1")
    return repeats


def _check_schedule(schedule: Schedule, repeats: int) -> Verdict:
    program = programs.from_schedule(schedule, repeats)
    verdict = _named(schedule, _judge_schedule(schedule, repeats), repeats)
    if not verdict.hazards:
        return verdict.with_repair((), True, program)
    for edges in _repair.by_size(schedule.dropped):
        if not find_pairs(schedule.with_edges(schedule.edges | set(edges)), repeats):
            named = [Repair("named", edge, "", "", "") for edge in edges]
            return verdict.with_repair(named, True, program)
    return _repair.repair(program, verdict)


def find_pairs(schedule: Schedule, repeats: int) -> set[tuple[Any, ...]]:
    """What identifies each hazard of a schedule."""
    return {_repair.key(h) for h in _judge_schedule(schedule, repeats).hazards}


def _judge_schedule(schedule: Schedule, repeats: int) -> Verdict:
    program = programs.from_schedule(schedule, repeats)
    return judge(program, len(program) // repeats)


def _named(schedule: Schedule, verdict: Verdict, repeats: int) -> Verdict:
    """The verdict, each hazard with the edge of the schedule's own that repairs it, where there is one."""
    if not verdict.hazards or not schedule.dropped:
        return verdict
    left = {e: find_pairs(schedule.with_edges(schedule.edges | {e}), repeats) for e in schedule.dropped}
    names: Iterable[str] = (
        next((edge for edge, keys in left.items() if _repair.key(h) not in keys), h.repair)
        for h in verdict.hazards
    )
    return _repair.with_texts(verdict, names)
