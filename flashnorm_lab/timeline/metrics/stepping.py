"""Steps: from annotations, or by repetition where there are none; warm-up told apart; steps compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from ..answer import Answer, Table, told_time
from ..table import CATEGORIES, Timeline
from .layout import shortened, shown
from .parts import device_of, ends_by, sums_by, union_by
from .stepfinding import Found, from_ranges, from_repetition
from .working import Work, plural, work_of

WARM_UP_MADS = 5
WARM_UP_SHARE = 0.1
WARM_UP = (
    "warm-up: the leading steps that take longer than the median of all complete steps by more than "
    f"{WARM_UP_MADS} median absolute deviations and by more than {WARM_UP_SHARE:.0%}, or whose sequence of "
    "kernels differs from the one that at least half of the steps have; up to the first step of which "
    "neither holds"
)
LISTED = 5
"""So many names are listed for what differs in a step."""
IDLE = "(no operation running)"


@dataclass(frozen=True)
class StepUse:
    """One step. number: as annotated, or counted from 0.

    start_ns, length_ns: from the first start to the last end of its operations on all devices; of a step
    without any, of its host spans. operations, kernels: on devices. launches: host launch calls; host_ns:
    their summed duration. busy_ns: the time in which at least one of its operations ran, on each device for
    itself, added up. usual: whether its kernels come in the sequence that most steps have; None where no
    sequence is shared by half of them. complete: False for a repetition that the recording cuts off.
    warm_up: see `WARM_UP`.
    """

    number: int
    start_ns: int
    length_ns: int
    operations: int
    kernels: int
    launches: int
    host_ns: int
    busy_ns: int
    usual: bool | None
    complete: bool
    warm_up: bool


@dataclass(frozen=True)
class Shift:
    """A name whose summed time in one step differs from its mean over the other steady steps."""

    name: str
    here_ns: int
    others_ns: float

    @property
    def more_ns(self) -> float:
        """How much longer it took here."""
        return self.here_ns - self.others_ns


@dataclass(frozen=True, kw_only=True)
class Steps(Answer):
    """Steps of a timeline. source: "annotations", "repetition" or "none"; how: in words.

    step int32 [spans]: the step of each span, -1 for none.
    uses: a `StepUse` for each step. steady: the numbers of the complete steps behind the warm-up.
    median_ns, quartiles_ns, min_ns, max_ns: of the lengths of the steady steps; None without any.
    agreement: how much of the sequence repeats from one step to the next; None where steps were annotated.
    slowest, fastest: numbers of steady steps; None if there are fewer than two, or all take equally long.
    slowest_by_name, fastest_by_name: what differs there, the largest difference first.
    """

    source: str
    how: str
    step: np.ndarray = field(repr=False, compare=False)
    uses: tuple[StepUse, ...]
    steady: tuple[int, ...]
    median_ns: float | None
    quartiles_ns: tuple[float, float] | None
    min_ns: int | None
    max_ns: int | None
    agreement: float | None
    slowest: int | None
    fastest: int | None
    slowest_by_name: tuple[Shift, ...]
    fastest_by_name: tuple[Shift, ...]

    @property
    def spread_ns(self) -> float | None:
        """How wide the middle half of the steady steps lies (the interquartile range); None without any."""
        return self.quartiles_ns[1] - self.quartiles_ns[0] if self.quartiles_ns else None

    @property
    def warm_up(self) -> tuple[int, ...]:
        """The numbers of the steps that are warm-up."""
        return tuple(use.number for use in self.uses if use.warm_up)

    def apply(self, t: Timeline) -> Timeline:
        """The timeline with these steps in its step column."""
        return t.with_steps(self.step)

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each step."""
        rows = []
        for use in self.uses[:most]:
            notes = [
                *(["warm-up"] if use.warm_up else []),
                *([] if use.complete else ["cut off"]),
                *(["other kernels"] if use.usual is False else []),
                *(["slowest"] if use.number == self.slowest else []),
                *(["fastest"] if use.number == self.fastest else []),
            ]
            rows.append(
                (
                    str(use.number),
                    told_time(use.start_ns - self.uses[0].start_ns),
                    told_time(use.length_ns),
                    f"{use.operations:,}",
                    f"{use.launches:,}",
                    told_time(use.host_ns),
                    told_time(use.busy_ns),
                    ", ".join(notes),
                )
            )
        head = ("step", "start", "length", "operations", "launches", "host time", "busy", "remarks")
        return Table(head, tuple(rows), len(self.uses) - len(rows)) if rows else None

    def summary(self) -> str:
        """How many steps, from what, how long, and how they differ."""
        if not self.uses:
            return f"none found: {self.how}"
        told = [f"{plural(len(self.uses), 'step')} ({self.how})"]
        if self.warm_up:
            told.append(f"{plural(len(self.warm_up), 'step')} of warm-up")
        if len(self.steady) == 1:
            told.append(
                f"{'1 steady step' if len(self.uses) > 1 else 'it takes'} {told_time(self.median_ns)}"
            )
        elif self.median_ns is not None:
            told.append(
                f"{plural(len(self.steady), 'steady step')}, median {told_time(self.median_ns)}, middle half "
                f"within {told_time(self.spread_ns)}, {told_time(self.min_ns)} to {told_time(self.max_ns)}"
            )
        if self.slowest_by_name:
            shift = self.slowest_by_name[0]
            told.append(
                f"slowest: step {self.slowest}, most of it {shortened(shown(shift.name), 40)} "
                f"({told_time(shift.here_ns)} for {told_time(shift.others_ns)})"
            )
        return "; ".join(told)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; the step of each span is left to `step`."""
        values = {key: value for key, value in vars(self).items() if key != "step"}
        for key in ("uses", "slowest_by_name", "fastest_by_name"):
            values[key] = [asdict(entry) for entry in values[key]]
        values |= {"warm_up": self.warm_up, "spread_ns": self.spread_ns}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def steps(t: Timeline) -> Steps:
    """The steps of a timeline, each span's step, and how the steps compare."""
    work = work_of(t)
    if (t.step >= 0).any():
        found = Found("annotations", "from the annotations in the timeline", t.step.copy())
    else:
        found = from_ranges(t, work) or from_repetition(t, work)
    return _told(t, work, found)


def _told(t: Timeline, work: Work, found: Found) -> Steps:
    numbers = np.unique(found.step[found.step >= 0])
    uses = _step_uses(t, work, found, numbers)
    steady = [use for use in uses if use.complete and not use.warm_up]
    lengths = np.array([use.length_ns for use in steady], dtype=np.int64)
    slowest = fastest = None
    if len(steady) >= 2:
        slowest, fastest = steady[int(lengths.argmax())], steady[int(lengths.argmin())]
    if slowest is fastest:  # all take equally long
        slowest = fastest = None
    none = len(work) - int((found.step[work.span] >= 0).sum())
    left_out = list(found.left_out)
    if uses and none:
        left_out.append(f"{plural(none, 'operation')} in no step")
    if uses and len(steady) < len(uses):
        left_out.append(
            f"{plural(len(uses) - len(steady), 'step')} of warm-up or cut off: not in median and spread"
        )
    early = sum(b.start_ns < a.start_ns + a.length_ns for a, b in pairwise(uses))
    if early:
        left_out.append(
            f"{plural(early, 'step')} that {'starts' if early == 1 else 'start'} before the one before has "
            "ended: lengths add up to more than the time that passed"
        )
    quartiles = tuple(float(q) for q in np.percentile(lengths, (25, 75))) if len(lengths) else None
    return Steps(
        title="Steps",
        definition=(
            "a step is "
            + {
                "annotations": "what the timeline's annotations say: a host call belongs to the step that "
                "it starts in, an operation to that of its launch call",
                "repetition": "one pass of the shortest sequence of kernel names that repeats best on a "
                "device; it begins where the device waits longest at the median, or with the first kernel "
                "if more steps are whole so; copies and fills belong to the step in which they are launched, "
                "and a launch call to that of its first operation. In a recording of fewer than three steps, "
                "that may be the layers of one",
                "none": "annotated, or one pass of a sequence of kernels that repeats at least three times",
            }[found.source]
            + "; its length is from the first start to the last end of its operations; "
            + WARM_UP
        ),
        left_out=tuple(left_out),
        source=found.source if len(numbers) else "none",
        how=found.how,
        step=found.step,
        uses=tuple(uses),
        steady=tuple(use.number for use in steady),
        median_ns=float(np.median(lengths)) if len(lengths) else None,
        quartiles_ns=(quartiles[0], quartiles[1]) if quartiles else None,
        min_ns=int(lengths.min()) if len(lengths) else None,
        max_ns=int(lengths.max()) if len(lengths) else None,
        agreement=found.agreement,
        slowest=slowest.number if slowest else None,
        fastest=fastest.number if fastest else None,
        slowest_by_name=_shifts(t, work, found.step, steady, slowest),
        fastest_by_name=_shifts(t, work, found.step, steady, fastest),
    )


def _step_uses(t: Timeline, work: Work, found: Found, numbers: np.ndarray) -> list[StepUse]:
    """The figures of each step, in order of their starts."""
    if not len(numbers):
        return []
    n = len(numbers)
    own = np.flatnonzero(found.step[work.span] >= 0)
    key = np.searchsorted(numbers, found.step[work.span[own]])
    first, last = ends_by(key, work.start[own], work.end[own], n)
    operations = np.bincount(key, minlength=n)
    without = operations == 0
    if without.any():
        spans = np.flatnonzero(found.step >= 0)
        first_any, last_any = ends_by(
            np.searchsorted(numbers, found.step[spans]), t.start_ns[spans], t.end_ns[spans], n
        )
        first, last = np.where(without, first_any, first), np.where(without, last_any, last)
    kernel = own[t.category[work.span[own]] == CATEGORIES.index("kernel")]
    kernel_key = np.searchsorted(numbers, found.step[work.span[kernel]])
    calls = np.flatnonzero(t.is_category("launch") & ~t.on_device() & (found.step >= 0))
    call_key = np.searchsorted(numbers, found.step[calls])
    busy = union_by(key, device_of(work)[own], work.start[own], work.end[own], n)
    launches = np.bincount(call_key, minlength=n)
    host = sums_by(call_key, t.duration_ns[calls], n)
    kernels = np.bincount(kernel_key, minlength=n)
    usual = _usual(t, work, kernel, kernel_key, n)
    complete = ~np.isin(numbers, found.cut_off)
    order = np.argsort(first, kind="stable")
    warm = np.zeros(n, dtype=bool)
    warm[order] = _warm_up((last - first)[order], None if usual is None else usual[order], complete[order])
    return [
        StepUse(
            number=int(numbers[i]),
            start_ns=int(first[i]),
            length_ns=int(last[i] - first[i]),
            operations=int(operations[i]),
            kernels=int(kernels[i]),
            launches=int(launches[i]),
            host_ns=int(host[i]),
            busy_ns=int(busy[i]),
            usual=None if usual is None else bool(usual[i]),
            complete=bool(complete[i]),
            warm_up=bool(warm[i]),
        )
        for i in order.tolist()
    ]


def _usual(t: Timeline, work: Work, kernel: np.ndarray, key: np.ndarray, count: int) -> np.ndarray | None:
    """Whether each step has the sequence of kernels that at least half of the steps have; None where no
    sequence has so many. Sequences are told apart by a sum of 64 mixed bits a kernel and its place."""
    if count < 2 or not len(kernel):
        return None
    device = device_of(work)[kernel]
    when = work.call_start[kernel] if work.launched[kernel].all() else work.start[kernel]
    order = np.lexsort((work.span[kernel], work.start[kernel], when, device, key))
    part = key[order] * (int(device.max()) + 1) + device[order]
    new = np.flatnonzero(np.concatenate([[True], part[1:] != part[:-1]]))
    place = np.arange(len(part)) - np.repeat(new, np.diff(np.append(new, len(part))))
    name = t.name[work.span[kernel[order]]].astype(np.uint64)
    mixed = _mix(
        _mix(name)
        ^ _mix(place.astype(np.uint64) * np.uint64(2) + np.uint64(1))
        ^ device[order].astype(np.uint64)
    )
    total = np.zeros(count, dtype=np.uint64)
    np.add.at(total, key[order], mixed)
    values, times = np.unique(total, return_counts=True)
    return total == values[times.argmax()] if times.max() * 2 >= count and times.max() > 1 else None


def _mix(values: np.ndarray) -> np.ndarray:
    """Numbers spread over 64 bits (the finalizer of SplitMix64)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _warm_up(length: np.ndarray, usual: np.ndarray | None, complete: np.ndarray) -> np.ndarray:
    """Which steps are warm-up, for steps in order; see `WARM_UP`. None is if all would be."""
    warm = np.zeros(len(length), dtype=bool)
    if complete.sum() < 3:
        return warm
    median = float(np.median(length[complete]))
    apart = float(np.median(np.abs(length[complete] - median)))
    odd = length - median > max(WARM_UP_MADS * apart, WARM_UP_SHARE * median)
    if usual is not None:
        odd |= ~usual
    steady = np.flatnonzero(~odd & complete)
    if len(steady):
        warm[: steady[0]] = True
    return warm


def _shifts(
    t: Timeline, work: Work, step: np.ndarray, steady: Sequence[StepUse], one: StepUse | None
) -> tuple[Shift, ...]:
    """What takes longer or shorter in one steady step than in the mean of the others."""
    if one is None:
        return ()
    others = [use for use in steady if use.number != one.number]
    own = step[work.span]
    took = work.end - work.start
    name = t.name[work.span]
    here = sums_by(name[own == one.number], took[own == one.number], len(t.names))
    at = np.isin(own, [use.number for use in others])
    rest = sums_by(name[at], took[at], len(t.names)) / len(others)
    idle = sum(use.length_ns - use.busy_ns for use in others) / len(others)
    differs = here - rest
    order = np.argsort(-np.abs(differs), kind="stable")[:LISTED]
    shifts = [Shift(t.names[i], int(here[i]), float(rest[i])) for i in order.tolist() if differs[i] != 0]
    if one.length_ns - one.busy_ns != idle and one.busy_ns <= one.length_ns:
        shifts.append(Shift(IDLE, one.length_ns - one.busy_ns, idle))
    return tuple(sorted(shifts, key=lambda shift: -abs(shift.more_ns))[:LISTED])
