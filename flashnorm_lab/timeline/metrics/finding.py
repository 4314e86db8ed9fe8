"""One thing that speaks against a timeline, and how much it matters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..answer import ratio
from ..table import Timeline

SEVERITIES = ("broken", "warning", "note")
"""How much a finding matters: figures of time cannot be trusted; are to be read with care; good to know."""
FEW = 0.01
"""Up to this share of the spans concerned, a finding is a note rather than a warning."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    kind: a short name of the check. severity: one of `SEVERITIES`. count, share: how many, and of how many
    (``of``, in words); share is None where there is nothing to divide by.
    examples: up to three (name of the span, lane, start in absolute ns). meaning: what it does to figures.
    """

    kind: str
    severity: str
    count: int
    share: float | None
    of: str
    examples: tuple[tuple[str, str, int], ...]
    meaning: str


def found_of(
    t: Timeline, kind: str, severity: str, spans: np.ndarray, whole: int, of: str, meaning: str
) -> Iterator[Finding]:
    """A finding about spans, or none if there are none of them."""
    if len(spans):
        examples = tuple(
            (t.names[t.name[i]], t.lanes[t.lane[i]].name, int(t.start_ns[i])) for i in spans[:3].tolist()
        )
        yield Finding(kind, severity, len(spans), ratio(len(spans), whole), of, examples, meaning)


def graded(count: int, whole: int) -> str:
    return "warning" if count > FEW * whole else "note"
