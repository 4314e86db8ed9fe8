"""How answers look in a terminal: at most so many columns, and nothing in a name acts on the terminal."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence

from ..answer import Answer, Table

WIDTH = 100
"""The columns of a report. What is longer is wrapped, and a name is shortened in its middle."""
NARROWEST = 12
"""A column of names is not made narrower than this; a table with very many columns may then be wider."""


READABLE = 30
"""Where columns can be spared, a column of names is not made narrower than this."""
TOGETHER = re.compile(r"(?<=\d) (?=(?:%|s|ms|µs|ns)(?!\w))")
"""The space between a figure and its unit, at which no line ends."""
JOINT = "\x00"
FIGURE = re.compile(r"[-+]?[0-9][0-9.,]*(?: (?:%|s|ms|µs|ns|[0-9.]+))*|-|")
"""What stands in a column of figures, which are aligned at their right; texts are at their left."""


def shown(text: str) -> str:
    """The text with every character that a terminal would act on written out: an escape is ``\\x1b``.

    That holds for control characters, line ends, and characters that turn the direction of writing.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def shortened(text: str, width: int) -> str:
    """The text with its middle left out where it is too long; kernels often differ only at their end."""
    if len(text) <= width:
        return text
    head = (width - 1) * 3 // 5
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def fitted(table: Table, width: int = WIDTH, spare: Sequence[str] = ()) -> str:
    """The table in at most so many columns: its widest columns of text are shortened, cell by cell.

    spare: heads of columns that go first, in this order, where names would be shortened below `READABLE`;
    a last line says which ones went.
    """
    rows = [tuple(shown(cell) for cell in row) for row in (table.head, *table.rows)]
    gone = []
    for head in spare:
        if head in rows[0] and _narrowed(rows, width) < READABLE:
            place = rows[0].index(head)
            rows = [row[:place] + row[place + 1 :] for row in rows]
            gone.append(head)
    widths = _widths(rows)
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    while excess > 0:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= NARROWEST:
            break
        second = max([NARROWEST, *(w for i, w in enumerate(widths) if i != widest)])
        cut = min(excess, max(1, widths[widest] - second))
        widths[widest] -= cut
        excess -= cut
    cells = [[shortened(cell, w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    right = [
        place > 0 and all(FIGURE.fullmatch(row[place]) for row in rows[1:]) for place in range(len(widths))
    ]
    lines = []
    for row in cells:
        aligned = [
            f"{cell:>{w}}" if r else f"{cell:<{w}}"
            for cell, w, r in zip(row, _widths(cells), right, strict=True)
        ]
        lines.append("  ".join(aligned).rstrip())
    if table.more:
        lines.append(f"… and {table.more:,} more")
    if gone:
        lines.append(f"not shown for want of room: {', '.join(gone)}")
    return "\n".join(lines)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _narrowed(rows: Sequence[Sequence[str]], width: int) -> int:
    """How wide the first column of a table could be, `READABLE` if it needs no more than it could have."""
    first, *others = _widths(rows)
    left = width - sum(others) - 2 * len(others)
    return READABLE if first <= left else left


def wrapped(text: str, first: str = "", rest: str | None = None, width: int = WIDTH) -> str:
    """The text in lines of at most so many columns; ``first`` leads the first line, ``rest`` the others."""
    words = TOGETHER.sub(JOINT, shown(" ".join(text.split())))
    return textwrap.fill(
        words,
        width,
        initial_indent=first,
        subsequent_indent=" " * len(first) if rest is None else rest,
        break_on_hyphens=False,
    ).replace(JOINT, " ")


def labelled(rows: Iterable[tuple[str, str]], width: int = WIDTH) -> str:
    """A line for each label and text, the texts one below the other; long ones are wrapped."""
    rows = [(label, text) for label, text in rows if text]
    margin = max((len(label) for label, _ in rows), default=0) + 2
    return "\n".join(wrapped(text, f"{label:<{margin}}", " " * margin, width) for label, text in rows)


def section(
    answer: Answer, most: int | None, *more: Table | str, spare: Sequence[str] = (), definition: str = ""
) -> str:
    """An answer as a section of a report: title, summary, tables, then what they mean and what they lack.

    more: further tables, and blocks of lines that fit already. spare: see `fitted`. definition:
    what stands for the answer's own, where that has been told in part before.
    """
    tables = [table for table in [answer.table(most)] if table is not None and table.rows]
    words = [("definition", definition or answer.definition), ("shares of", answer.denominator)]
    words += [("left out", line) for line in answer.left_out]
    return "\n\n".join(
        [
            f"{shown(answer.title).upper()}\n{wrapped(answer.summary())}",
            *(
                fitted(block, spare=spare) if isinstance(block, Table) else block
                for block in (*tables, *more)
            ),
            labelled(words),
        ]
    )
