"""Kernels of two timelines matched one by one: position by position where their sequences align."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from ..table import CATEGORIES, Timeline
from .parts import device_of
from .stepping import Steps
from .working import Work

ALIGNED = 1_000_000
"""Two sequences are aligned if, over all names, occurrences in one times occurrences in the other come to at
most this; beyond that, the time that an alignment takes has no good bound."""

_TYPICAL = "a typical steady step (the one whose length is nearest to the median)"
_MEDIANS = "; durations are medians over the steady steps with that same sequence"
_ORDER = "in the order of their launch calls, else of their starts, by the longest common runs of names"
_COUNTED = (
    "the first of a name with the first, the second with the second, and so on, since the sequences are too "
    "long to align"
)
PAIRED_BY = {
    "step": f"the kernels of {_TYPICAL}, {_ORDER}{_MEDIANS}",
    "whole": f"all kernels, {_ORDER}",
    "step occurrence": f"the kernels of {_TYPICAL}, {_COUNTED}{_MEDIANS}",
    "whole occurrence": f"all kernels, {_COUNTED}",
    "nothing": "no kernel in one of them",
}
"""How kernels were matched one by one, in words."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Kernels matched one by one. how: a key of `PAIRED_BY`.

    names: the name of each pair. place_a, place_b int64 [pairs]: their places in the sequences; a_ns, b_ns
    float64 [pairs]: their durations. only_a, only_b: (place, name) of kernels without a partner.
    """

    how: str
    names: tuple[str, ...]
    place_a: np.ndarray
    place_b: np.ndarray
    a_ns: np.ndarray
    b_ns: np.ndarray
    only_a: tuple[tuple[int, str], ...]
    only_b: tuple[tuple[int, str], ...]

    def __len__(self) -> int:
        return len(self.names)

    def largest(self, most: int) -> list[dict[str, Any]]:
        """The pairs with the largest change, as plain values."""
        order = np.argsort(-np.abs(self.b_ns - self.a_ns), kind="stable")[:most]
        return [
            {
                "name": self.names[i],
                "place_a": int(self.place_a[i]),
                "place_b": int(self.place_b[i]),
                "a_ns": float(self.a_ns[i]),
                "b_ns": float(self.b_ns[i]),
            }
            for i in order.tolist()
        ]

    def as_dict(self, most: int) -> dict[str, Any]:
        """How many there are, and those with the largest change, as plain values."""
        return {
            "how": self.how,
            "matched": len(self),
            "slower": int((self.b_ns > self.a_ns).sum()),
            "faster": int((self.b_ns < self.a_ns).sum()),
            "only_a": len(self.only_a),
            "only_b": len(self.only_b),
            "largest": self.largest(most),
        }


def pair_up(
    timelines: Sequence[Timeline],
    works: Sequence[Work],
    found: Sequence[Steps] | None,
    code: Sequence[np.ndarray],
    names: Sequence[str],
) -> Pairs:
    """The pairs of two timelines; within a typical step where ``found`` tells steady steps of both.

    code: for each timeline the number of each of its names in ``names``.
    """
    sequences, durations = [], []
    for side, (t, work) in enumerate(zip(timelines, works, strict=True)):
        own = _in_order(t, work, None if found is None else found[side])
        took = work.end[own] - work.start[own]
        sequence = code[side][t.name[work.span[own]]] if len(own) else np.empty(0, dtype=np.int64)
        if found is not None:
            sequence, took = _typical(sequence, took, found[side], found[side].step[work.span[own]])
        sequences.append(sequence)
        durations.append(np.asarray(took, dtype=np.float64))
    a, b = sequences
    within = "step" if found is not None else "whole"
    if not len(a) or not len(b):
        how, place_a, place_b = "nothing", np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    elif _cost(a, b, len(names)) <= ALIGNED:
        how, (place_a, place_b) = within, _aligned(a, b)
    else:
        how, (place_a, place_b) = f"{within} occurrence", _by_occurrence(a, b)
    return Pairs(
        how,
        tuple(names[i] for i in a[place_a].tolist()),
        place_a,
        place_b,
        durations[0][place_a],
        durations[1][place_b],
        _alone(a, place_a, names),
        _alone(b, place_b, names),
    )


def _in_order(t: Timeline, work: Work, found: Steps | None) -> np.ndarray:
    """The kernels (of steady steps, where there are steps) in order of device, step, and call or start."""
    own = np.flatnonzero(t.category[work.span] == CATEGORIES.index("kernel"))
    step = np.zeros(len(own), dtype=np.int64)
    if found is not None:
        step = found.step[work.span[own]]
        steady = np.isin(step, found.steady)
        own, step = own[steady], step[steady]
    when = work.call_start[own] if work.launched[own].all() else work.start[own]
    return own[np.lexsort((work.span[own], work.start[own], when, device_of(work)[own], step))]


def _typical(
    sequence: np.ndarray, took: np.ndarray, found: Steps, step: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The sequence of a typical step, and at each place the median duration over the steps that share it."""
    steady = [use for use in found.uses if use.number in set(found.steady)]
    usual = [use for use in steady if use.usual] or steady
    middle = float(np.median([use.length_ns for use in usual]))
    one = min(usual, key=lambda use: abs(use.length_ns - middle))
    here = np.flatnonzero(step == one.number)
    if not len(here):
        return sequence[:0], took[:0]
    alike = []
    for use in usual:
        at = np.flatnonzero(step == use.number)
        if len(at) == len(here) and np.array_equal(sequence[at], sequence[here]):
            alike.append(took[at])
    return sequence[here], np.median(alike, axis=0)


def _cost(a: np.ndarray, b: np.ndarray, names: int) -> int:
    return int((np.bincount(a, minlength=names) * np.bincount(b, minlength=names)).sum())


def _aligned(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places that the longest common runs match, what is the same at both ends first."""
    short = min(len(a), len(b))
    differs = np.flatnonzero(a[:short] != b[:short])
    front = int(differs[0]) if len(differs) else short
    rest = short - front
    differs = np.flatnonzero(a[len(a) - rest :][::-1] != b[len(b) - rest :][::-1])
    back = int(differs[0]) if len(differs) else rest
    matcher = SequenceMatcher(
        None, a[front : len(a) - back].tolist(), b[front : len(b) - back].tolist(), autojunk=False
    )
    pieces = [(0, 0, front)]
    pieces += [(front + i, front + j, n) for i, j, n in matcher.get_matching_blocks()]
    pieces.append((len(a) - back, len(b) - back, back))
    return (
        np.concatenate([np.arange(i, i + n) for i, _, n in pieces]),
        np.concatenate([np.arange(j, j + n) for _, j, n in pieces]),
    )


def _by_occurrence(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Places of the n-th occurrence of a name in both."""
    keys = []
    for sequence in (a, b):
        order = np.argsort(sequence, kind="stable")
        first = np.concatenate([[True], sequence[order[1:]] != sequence[order[:-1]]])
        begins = np.flatnonzero(first)
        which = np.empty(len(sequence), dtype=np.int64)
        which[order] = np.arange(len(sequence)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
        keys.append(sequence.astype(np.int64) * (max(len(a), len(b)) + 1) + which)
    _, place_a, place_b = np.intersect1d(*keys, assume_unique=True, return_indices=True)
    order = np.argsort(place_a)
    return place_a[order], place_b[order]


def _alone(sequence: np.ndarray, matched: np.ndarray, names: Sequence[str]) -> tuple[tuple[int, str], ...]:
    rest = np.setdiff1d(np.arange(len(sequence)), matched)
    return tuple((i, names[n]) for i, n in zip(rest.tolist(), sequence[rest].tolist(), strict=True))
