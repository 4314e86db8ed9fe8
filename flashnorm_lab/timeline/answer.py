"""What every answer about a timeline has: a title, its definition, what shares are of, what it left out.

A figure without its definition is no answer: two tools that both say "busy" may mean different things. So
each answer carries its own words, prints them with its table, and hands them over as plain values for JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows under a head, ready to print; ``more`` counts rows that were left away for brevity."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0

    def __str__(self) -> str:
        cells = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.head))]
        lines = []
        for row in cells:
            first = f"{row[0]:<{widths[0]}}"
            rest = [f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True)]
            lines.append("  ".join([first, *rest]).rstrip())
        if self.more:
            lines.append(f"… and {self.more} more")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The base of all answers; each kind adds its own figures as typed fields.

    title: what was asked, in a few words.
    definition: how the figures are computed, in a sentence or two.
    denominator: what shares are shares of; "" where no share is told.
    left_out: what was not counted, and how much of it, a line each; empty if nothing was.
    """

    title: str
    definition: str
    denominator: str = ""
    left_out: tuple[str, ...] = field(default=())

    def table(self, most: int | None = 20) -> Table | None:
        """The figures as a table of at most so many rows (None for all); None if there is nothing to list."""
        raise NotImplementedError

    def summary(self) -> str:
        """The answer in one line."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Title, definition, denominator, left_out and every figure, as plain values ready for JSON."""
        raise NotImplementedError

    def words(self) -> dict[str, Any]:
        """What every answer's `as_dict` begins with."""
        return {
            "title": self.title,
            "definition": self.definition,
            "denominator": self.denominator,
            "left_out": list(self.left_out),
        }

    def text(self, most: int | None = 20) -> str:
        """Title, summary, table and definition, as printed in a terminal."""
        table = self.table(most)
        parts = [f"{self.title}: {self.summary()}", str(table) if table and table.rows else ""]
        parts.append(f"Definition: {self.definition}")
        if self.denominator:
            parts.append(f"Shares are of: {self.denominator}")
        parts += [f"Left out: {line}" for line in self.left_out]
        return "\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What a notebook shows of it: the words, not the columns."""
        return {"text/plain": str(self)}


def told_time(ns: float | None) -> str:
    """Nanoseconds in the unit that reads best: "45.647 ms"; "-" for None."""
    if ns is None:
        return "-"
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.3f} {unit}"
    return f"{ns:.0f} ns"


def told_share(share: float | None) -> str:
    """A share in percent: "31.2 %"; "-" for None."""
    return "-" if share is None else f"{100 * share:.1f} %"


def ratio(part: float, whole: float) -> float | None:
    """part / whole, or None where there is nothing to divide by."""
    return part / whole if whole else None


def cut(rows: Sequence[tuple[str, ...]], head: tuple[str, ...], most: int | None) -> Table:
    """The first rows as a table that says how many it leaves away."""
    shown = rows if most is None else rows[:most]
    return Table(head, tuple(shown), len(rows) - len(shown))
