"""What a result turned out to be: fresh, stale, torn or early, told by comparing it with what it should be.

A hazard says what may happen. An outcome says what did: every element of z is compared with the value
from this step's inputs, and with the values that other contents of y and r would give: older ones, which
were read before they were replaced, and later ones, which had replaced this step's before they were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import LabError

LABELS = ("fresh", "stale", "torn", "early")
FRESH, STALE, NEITHER, EARLY = 0, 1, 2, 3
"""Values of `Outcome.mask`."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One step's result.

    ``label``: "fresh" if every element has this step's value; "stale" if every element has the value from
    one and the same earlier content, described by ``source``; "early" if every element has the value from
    one and the same content that a later step brought in part or in whole; else "torn". ``mask`` (int8, z's
    shape) tells each element: 0 this step's, 1 an earlier one's, 3 a later one's, 2 none of them (half
    written, or further away than was compared).
    """

    label: str
    mask: np.ndarray
    source: str = ""

    @property
    def stale_share(self) -> float:
        """The share of elements that do not have this step's value."""
        return float(np.mean(self.mask != FRESH))


def classify(
    z: np.ndarray,
    fresh: np.ndarray,
    stale: Mapping[str, np.ndarray],
    rtol: float = 1e-3,
    early: Mapping[str, np.ndarray] | None = None,
) -> Outcome:
    """Compare a result ``z`` with what it should be, and with what older and later contents would give.

    All have one shape. Two values count as equal when they differ by less than ``rtol`` times the root mean
    square of ``fresh``: rounding in float32 stays a hundred times below that, unrelated values hardly ever
    fall within it. An element that equals several counts as this step's first, then as that of the one
    content that explains them all, then as an older one's. `LabError` where shapes differ or ``fresh`` is not
    finite.
    """
    z, fresh = np.asarray(z, np.float64), np.asarray(fresh, np.float64)
    early = early or {}
    for name, other in {"fresh": fresh, **stale, **early}.items():
        if np.shape(other) != z.shape:
            raise LabError(f"{name} has shape {list(np.shape(other))}, expected z's {list(z.shape)}")
    if not np.isfinite(fresh).all():
        raise LabError("the reference for z has NaN or infinite values; nothing can be compared with it")
    within = rtol * float(np.sqrt(np.mean(fresh**2)))

    def same(other: np.ndarray) -> np.ndarray:
        return np.abs(z - other) <= within  # False for a NaN in z

    is_fresh = same(fresh)
    mask = np.where(is_fresh, FRESH, NEITHER).astype(np.int8)
    if is_fresh.all():
        return Outcome("fresh", mask)
    for label, value, others in (("stale", STALE, stale), ("early", EARLY, early)):
        for name, other in others.items():
            is_other = same(other)
            if is_other.all():
                return Outcome(label, np.where(is_fresh, FRESH, value).astype(np.int8), name)
            mask[is_other & (mask == NEITHER)] = value
    return Outcome("torn", mask)


def count(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many are fresh, stale, torn and early."""
    counts = dict.fromkeys(LABELS, 0)
    for outcome in outcomes:
        counts[outcome.label] += 1
    return counts


def told(counts: Mapping[str, int]) -> str:
    """Counts in words: "3 fresh, 1 stale, 0 torn", and how many were early where any was."""
    return ", ".join(f"{counts.get(label, 0)} {label}" for label in shown(counts))


def shown(counts: Mapping[str, int]) -> tuple[str, ...]:
    """The labels worth a word: "early" only where it occurs, since few schedules let it."""
    return LABELS if counts.get("early") else LABELS[:3]


def candidates(ys: list[np.ndarray], rs: list[np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """``(fresh, stale)`` for `classify`, from the contents that y and r have had, newest first.

    ``ys`` are [tokens, k] and ``rs`` [tokens]; number i is from step t-i. z = y·r, so an old y with a new r,
    a new y with an old r, and both old are all told apart. An old r is combined with no y that is older than
    the oldest r: r takes so much less time than y that it does not fall behind as far.
    """
    fresh = ys[0] * rs[0][:, None]
    stale = {}
    for i, y in enumerate(ys):
        for j, r in enumerate(rs):
            if (i or j) and (j == 0 or i < len(rs)):
                stale[_source(-i, -j)] = y * r[:, None]
    return fresh, stale


def later(
    ys: Sequence[np.ndarray],
    rs: Sequence[np.ndarray],
    later_ys: Sequence[np.ndarray],
    later_rs: Sequence[np.ndarray],
) -> dict[str, np.ndarray]:
    """``early`` for `classify`: every product of a y and an r of which at least one is a later step's.

    ``ys`` and ``rs`` are as for `candidates`, this step's first; number i of ``later_ys`` and ``later_rs`` is
    from step t+1+i. The nearest come first.
    """
    all_ys = {-i: y for i, y in enumerate(ys)} | {1 + i: y for i, y in enumerate(later_ys)}
    all_rs = {-j: r for j, r in enumerate(rs)} | {1 + j: r for j, r in enumerate(later_rs)}
    pairs = [(i, j) for i in all_ys for j in all_rs if max(i, j) > 0]
    pairs.sort(key=lambda pair: (abs(pair[0]) + abs(pair[1]), pair))
    return {_source(i, j): all_ys[i] * all_rs[j][:, None] for i, j in pairs}


def _source(y: int, r: int) -> str:
    return f"y of step {_step(y)}, r of step {_step(r)}"


def _step(offset: int) -> str:
    return f"t{offset:+}" if offset else "t"
