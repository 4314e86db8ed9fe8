"""What a result turned out to be: fresh, stale or torn, told by comparing it with what it should be.

A hazard says what may happen. An outcome says what did: every element of z is compared with the value
from this step's inputs and with the values that older contents of y and r would give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from .errors import LabError

LABELS = ("fresh", "stale", "torn")
FRESH, STALE, NEITHER = 0, 1, 2
"""Values of `Outcome.mask`."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """One step's result.

    ``label``: "fresh" if every element has this step's value; "stale" if every element has the value from
    one and the same earlier content, described by ``source``; else "torn". ``mask`` (int8, z's shape) tells
    each element: 0 this step's, 1 an earlier one's, 2 neither (half written, or older than was compared).
    """

    label: str
    mask: np.ndarray
    source: str = ""

    @property
    def stale_share(self) -> float:
        """The share of elements that do not have this step's value."""
        return float(np.mean(self.mask != FRESH))


def classify(
    z: np.ndarray, fresh: np.ndarray, stale: Mapping[str, np.ndarray], rtol: float = 1e-3
) -> Outcome:
    """Compare a result ``z`` with what it should be and with what older contents would give, all one shape.

    Two values count as equal when they differ by less than ``rtol`` times the root mean square of ``fresh``:
    rounding in float32 stays a hundred times below that, unrelated values hardly ever fall within it. An
    element that equals both counts as this step's.
    """
    z, fresh = np.asarray(z, np.float64), np.asarray(fresh, np.float64)
    for name, other in {"fresh": fresh, **stale}.items():
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
    sources = []
    for name, other in stale.items():
        is_stale = same(other)
        mask[is_stale & ~is_fresh] = STALE
        if is_stale.all():
            sources.append(name)
    return Outcome("stale", mask, sources[0]) if sources else Outcome("torn", mask)


def count(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many are fresh, stale and torn."""
    counts = dict.fromkeys(LABELS, 0)
    for outcome in outcomes:
        counts[outcome.label] += 1
    return counts


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
                stale[f"y of step {_step(i)}, r of step {_step(j)}"] = y * r[:, None]
    return fresh, stale


def _step(back: int) -> str:
    return f"t-{back}" if back else "t"
