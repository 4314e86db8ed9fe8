"""The period of a sequence of names: how many entries a step has, and where each one begins.

A step of a model repeats its layers, so a sequence of kernels repeats at more than one distance. What repeats
best over whole steps is the step; a layer repeats a little worse, since the head and the embedding break it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

FEWEST = 3
"""Fewer repetitions than this are no repetition."""
AGREEMENT = 0.9
"""So much of the sequence must repeat at the period."""
OCCURRENCES = 8
"""A period is looked for among the distances from a name to its next 1 to 8 occurrences."""
CANDIDATES = 256
"""So many candidate periods are tried at most, those of the rarest names first."""
FORETASTE = 4096
"""Candidates are first compared over so many entries; only those that do well there are compared in full."""

LOOKED_AT, LIKENESS = 32, 0.4
"""Where a period seems to begin, so much of what follows, over so many entries, must be as in a period."""


@dataclass(frozen=True)
class Period:
    """length: entries of a period. agreement: how much repeats at that distance, from the first
    repetition to the last.
    starts [repetitions] int64: where each repetition begins."""

    length: int
    agreement: float
    starts: np.ndarray


def find(sequence: np.ndarray, gap: np.ndarray) -> Period | None:
    """The period of a sequence of whole numbers, None where nothing repeats as a whole.

    The distance is the shortest one whose disagreement is at most half as much again as the least of all
    (and 2 entries more), over that part of the sequence (all, the last two thirds, the last half, the middle
    half) which repeats best. So a warm-up does not hide a period, and a layer does not pass for a step. At
    least two different entries must stand in a period, and three repetitions in the sequence.

    gap [entries]: how long nothing ran before each entry. A period begins where that is the longest at the
    median; or with the first entry of the sequence, if nothing ever waits, or if more periods are whole so.
    """
    n = len(sequence)
    names, sequence = np.unique(sequence, return_inverse=True)
    if n < 2 * FEWEST or len(names) < 2:
        return None
    parts = [slice(0, n), slice(n // 3, n), slice(n // 2, n), slice(n // 4, n - n // 4)]
    best: tuple[float, list[tuple[int, int, int]]] | None = None
    candidates = _candidates(sequence, len(names))
    for part in parts:
        tried = _tried(sequence[part], candidates)
        if tried:
            least = min(misses / total for _, misses, total in tried)
            if best is None or least < best[0] - 1e-12:
                best = (least, tried)
    if best is None or 1 - best[0] < AGREEMENT:
        return None
    least, tried = best
    length, misses, total = min(t for t in tried if t[1] <= 1.5 * least * t[2] + 2)
    if misses > (1 - AGREEMENT) * total or n < FEWEST * length:
        return None
    starts = _starts(sequence, length, gap)
    if len(starts) < FEWEST or len(np.unique(sequence[starts[0] : starts[0] + length])) < 2:
        return None
    inside = sequence[starts[0] : starts[-1] + length]
    return Period(length, float(np.mean(inside[:-length] == inside[length:])), starts)


def _candidates(sequence: np.ndarray, names: int) -> list[int]:
    """Distances at which names come back, those of the rarest names first."""
    order = np.argsort(sequence, kind="stable")
    counts = np.bincount(sequence, minlength=names)
    stop = np.cumsum(counts)
    found: dict[int, None] = {}
    for name in np.argsort(counts, kind="stable").tolist():
        places = order[stop[name] - counts[name] : stop[name]]
        if len(places) < FEWEST:
            continue
        for apart in range(1, min(OCCURRENCES, len(places) - 1) + 1):
            distances, times = np.unique(places[apart:] - places[:-apart], return_counts=True)
            found.setdefault(int(distances[times.argmax()]))
        if len(found) >= CANDIDATES:
            break
    return list(found)[:CANDIDATES]


def _tried(sequence: np.ndarray, candidates: list[int]) -> list[tuple[int, int, int]]:
    """Each candidate that fits twice into the sequence: (distance, disagreements, entries compared)."""
    n = len(sequence)
    fitting = [c for c in candidates if 2 <= c <= n // 2]
    if len(fitting) > 16 and n > 4 * FORETASTE:
        tastes = []
        for c in fitting:
            here = min(max(n // 2 - FORETASTE // 2, 0), n - c - 1)
            many = min(FORETASTE, n - c - here)
            first, second = sequence[here : here + many], sequence[here + c : here + c + many]
            tastes.append((np.count_nonzero(first != second) / many, c))
        limit = min(t for t, _ in tastes) + 0.1
        fitting = [c for t, c in tastes if t <= limit]
    return [(c, int(np.count_nonzero(sequence[:-c] != sequence[c:])), n - c) for c in fitting]


def _starts(sequence: np.ndarray, length: int, gap: np.ndarray) -> np.ndarray:
    """Where each repetition begins: where the entries stand with which a period begins."""
    n = len(sequence)
    base = _steady(sequence, length)
    whole = (n - base) // length
    gaps = np.median(gap[base : base + whole * length].reshape(whole, length), axis=0)
    template = sequence[base : base + length]
    own = _found(sequence, np.roll(template, base % length))
    longest = int(np.argmax(gaps))
    if gaps[longest] <= 0:
        return own
    waited = _found(sequence, np.roll(template, -longest))
    return own if _complete(own, length, n) > _complete(waited, length, n) else waited


def _complete(starts: np.ndarray, length: int, n: int) -> int:
    """How many repetitions the sequence holds whole."""
    return int((starts + length <= n).sum())


def _found(sequence: np.ndarray, template: np.ndarray) -> np.ndarray:
    """Where a period begins: where its first entries stand, as many as occur in it only once."""
    n, length = len(sequence), len(template)
    within = np.concatenate([template, template])
    marks = np.ones(length, dtype=bool)
    found = np.ones(n, dtype=bool)
    for width in range(length):
        marks &= within[width : width + length] == template[width]
        found[: n - width] &= sequence[width:] == template[width]
        found[n - width :] = False
        if marks.sum() == 1:
            break
    starts = np.flatnonzero(found)
    at = starts[:, None] + np.arange(min(length, LOOKED_AT))
    alike = (sequence[np.minimum(at, n - 1)] == template[: at.shape[1]]) & (at < n)
    return starts[alike.sum(axis=1) >= LIKENESS * (at < n).sum(axis=1)]


def _steady(sequence: np.ndarray, length: int) -> int:
    """The first place from which the sequence repeats for a whole period; 0 if there is none."""
    same = np.concatenate([[0], np.cumsum(sequence[:-length] == sequence[length:])])
    if len(same) <= length:
        return 0
    full = np.flatnonzero(same[length:] - same[:-length] == length)
    return int(full[0]) if len(full) else 0
