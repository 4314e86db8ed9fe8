"""Where steps are found: in ranges named as steps, or in the repetition of the sequence of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..answer import told_share
from ..table import CATEGORIES, Timeline
from . import period
from .layout import shown
from .parts import device_of
from .ranges import innermost
from .working import Work, plural, told_device

NUMBERED = re.compile(
    r"(?!.*optimizer)(?P<stem>(?:.*[^a-z0-9])?(?:profiler)?(?:step|iteration|iter|batch))"
    r"[ #:=_-]*(?P<number>\d{1,9})",
    re.IGNORECASE,
)
UNNUMBERED = re.compile(
    r"(?:(?:train|training|decode|inference|model)[ _-]?)?(?:step|iteration)", re.IGNORECASE
)
"""Ranges of these names are steps: "ProfilerStep#3", "step 3", "train iteration 7", "decode_step"."""


def is_step_name(name: str) -> bool:
    """Whether a range of this name is a step."""
    return bool(NUMBERED.fullmatch(name) or UNNUMBERED.fullmatch(name))


@dataclass
class Found:
    """Steps as found. step int32 [spans]; cut_off: those that the recording cuts off; else as in `Steps`."""

    source: str
    how: str
    step: np.ndarray
    cut_off: tuple[int, ...] = ()
    agreement: float | None = None
    left_out: tuple[str, ...] = ()


def from_ranges(t: Timeline, work: Work) -> Found | None:
    """Steps from host ranges named as steps, the family of names with the most ranges; None without any.

    Of several threads of a process with such ranges, the one with the most counts, for all of its threads.
    """
    host = np.flatnonzero(t.is_category("range") & ~t.on_device())
    families: dict[str, list[tuple[int, int]]] = {}
    for name in np.unique(t.name[host]).tolist():
        match = NUMBERED.fullmatch(t.names[name])
        if match:
            families.setdefault(match["stem"].lower(), []).append((name, int(match["number"])))
        elif UNNUMBERED.fullmatch(t.names[name]):
            families.setdefault(t.names[name].lower(), []).append((name, -1))
    best: tuple[int, str, np.ndarray, dict[int, int]] | None = None
    for stem, members in families.items():
        ranges = host[np.isin(t.name[host], [name for name, _ in members])]
        enough = len(ranges) >= (2 if any(number < 0 for _, number in members) else 1)
        if enough and (best is None or len(ranges) > best[0]):
            best = (len(ranges), stem, ranges, dict(members))
    if best is None:
        return None
    _, stem, ranges, numbers = best
    step = np.full(len(t), -1, dtype=np.int32)
    process = np.unique([lane.process for lane in t.lanes], return_inverse=True)[1]
    of_range = np.full(len(t), -1, dtype=np.int64)
    for own in np.unique(process[t.lane[ranges]]):
        mine = ranges[process[t.lane[ranges]] == own]
        lane = np.bincount(t.lane[mine]).argmax()
        mine = mine[t.lane[mine] == lane]
        mine = mine[np.argsort(t.start_ns[mine], kind="stable")]
        if (t.start_ns[mine[1:]] < t.end_ns[mine[:-1]]).any():
            return None
        of_range[mine] = [numbers[n] if numbers[n] >= 0 else i for i, n in enumerate(t.name[mine].tolist())]
        there = np.flatnonzero(~t.on_device() & (process[t.lane] == own))
        at = innermost(t, mine, np.full(len(there), lane), t.start_ns[there])
        step[there] = np.where(at >= 0, of_range[at], -1)
    launched = work.launched
    step[work.span[launched]] = step[work.call[launched]]
    alone = work.span[~launched]
    on_stream = np.flatnonzero(t.is_category("range") & t.on_device() & np.isin(t.name, list(numbers)))
    at = innermost(t, on_stream, t.lane[alone], t.start_ns[alone])
    wanted = np.array([numbers.get(n, -1) for n in range(len(t.names))], dtype=np.int32)
    step[alone] = np.where(at >= 0, wanted[t.name[at]] if len(t) else -1, -1)
    return Found("annotations", f"from {plural(len(ranges), 'range')} named {shown(stem)!r}", step)


@dataclass(frozen=True, eq=False)
class _Sequence:
    """Kernels of a device in an order in which a repetition may show. own: indices into the operations, in
    that order; in_calls: whether it is the order of launch calls; words: how a reader is told."""

    own: np.ndarray
    in_calls: bool
    words: str


def from_repetition(t: Timeline, work: Work) -> Found:
    """Steps from sequences of kernels that repeat, each device for itself; source "none" without any."""
    step = np.full(len(t), -1, dtype=np.int32)
    device = device_of(work)
    kernel = t.category[work.span] == CATEGORIES.index("kernel")
    told, nothing, agreements, cut_off = [], [], [], set()
    for number, name in enumerate(work.devices):
        mine = np.flatnonzero(device == number)
        if not kernel[mine].any():
            continue
        why = "its kernels do not repeat at least three times as a whole"
        for sequence in _sequences(t, work, mine[kernel[mine]]):
            own = sequence.own
            reach = np.maximum.accumulate(work.end[own])
            gap = np.maximum(work.start[own] - np.concatenate([work.start[own[:1]], reach[:-1]]), 0)
            found = period.find(t.name[work.span[own]], gap)
            if found is None:
                continue
            repeats = f"{len(found.starts)} times {plural(found.length, 'kernel')}"
            if sequence.in_calls and _within_calls(work.call[own], found.starts):
                why = f"{repeats} repeat within one launch call, such as the layers in a graph: no steps"
                break
            place, last = _places(len(own), found)
            if np.count_nonzero(place >= 0) < len(own) / 2:
                continue
            step[work.span[own]] = place
            others = np.setdiff1d(mine, own, assume_unique=True)
            step[work.span[others]] = _beside(work, sequence, place, others)
            agreements.append(found.agreement)
            told.append(f"{told_device(name)}: {repeats}, {sequence.words}")
            if last is not None:
                cut_off.add(last)
            why = ""
            break
        if why:
            nothing.append(f"{told_device(name)}: {why}")
    if not told:
        why = "; ".join(nothing[:4]) or "no kernel whose repetition could tell steps"
        return Found("none", f"no annotated step; {why}", step)
    nothing.append("whether what repeats is a step, or a part of one, only an annotation can tell")
    called = work.launched & (step[work.span] >= 0)
    step[work.call[called][::-1]] = step[work.span[called]][::-1]
    how = (
        f"by repetition of the sequence of kernels: {'; '.join(told[:4])}{'; …' if len(told) > 4 else ''}; "
        f"{told_share(min(agreements))} of it repeats from step to step"
    )
    return Found("repetition", how, step, tuple(sorted(cut_off)), min(agreements), tuple(nothing))


def _sequences(t: Timeline, work: Work, kernels: np.ndarray) -> Iterator[_Sequence]:
    """The orders in which a device's kernels may repeat, the one that is least disturbed by chance first."""
    launched = kernels[work.launched[kernels]]
    if len(launched) * 2 >= len(kernels):
        order = np.lexsort((work.span[launched], work.start[launched], work.call_start[launched]))
        whole = len(launched) == len(kernels)
        words = "in the order of their launch calls"
        yield _Sequence(launched[order], True, words if whole else f"those with a launch call {words}")
        if whole:
            return
    yield _Sequence(kernels[np.lexsort((work.span[kernels], work.start[kernels]))], False, "by start")
    lanes, counts = np.unique(work.lane[kernels], return_counts=True)
    if len(lanes) > 1:
        lane = lanes[counts.argmax()]
        words = f"those of {shown(t.lanes[lane].name)} by start"
        yield _Sequence(kernels[work.lane[kernels] == lane], False, words)


def _beside(work: Work, sequence: _Sequence, place: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The step of operations that are not in the sequence: by their launch calls where both have them, else
    by their starts, from the first of a step to the first of the next; -1 before all, and behind the last."""
    step = np.full(len(others), -1, dtype=np.int32)
    inside = sequence.own[place >= 0]
    of = place[place >= 0]
    first = np.flatnonzero(np.concatenate([[True], of[1:] != of[:-1]]))
    by_call = work.launched[others] if sequence.in_calls else np.zeros(len(others), dtype=bool)
    for which, key in ((by_call, work.call_start), (~by_call, work.start)):
        begins = np.maximum.accumulate(key[inside[first]])
        at = np.searchsorted(begins, key[others[which]], side="right") - 1
        fits = (at >= 0) & (key[others[which]] <= key[inside].max())
        step[which] = np.where(fits, of[first[np.maximum(at, 0)]], -1)
    return step


def _places(count: int, found: period.Period) -> tuple[np.ndarray, int | None]:
    """The step of each entry of a sequence, -1 for none; and the last step if the recording cuts it off.

    A step goes to the next one's begin, unless that is more than half a step late.
    """
    at = np.arange(count)
    place = np.searchsorted(found.starts, at, side="right") - 1
    size = np.diff(np.append(found.starts, count))
    size = np.where(size <= found.length * 3 // 2, size, found.length)
    beyond = (place >= 0) & (at - found.starts[np.maximum(place, 0)] >= size[np.maximum(place, 0)])
    place = np.where(beyond, -1, place).astype(np.int32)
    last = len(found.starts) - 1
    return place, last if count - found.starts[last] < found.length else None


def _within_calls(call: np.ndarray, starts: np.ndarray) -> bool:
    """Whether most repetitions begin within the launch call in which the one before ends."""
    return bool(np.mean(call[starts[1:]] == call[starts[1:] - 1]) > 0.5)
