"""Answers about a timeline as HTML, for pages and panels. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ..answer import Answer
from ..metrics.layout import shortened, shown

LONGEST = 400
"""How many characters of a name a cell of a table shows."""


def text(words: str) -> str:
    """Text for a page: escaped, and what cannot be seen or stored is written out ("\\x1b")."""
    return escape(shown(words))


def section(answer: Answer, most: int = 20, level: int = 2) -> str:
    """An answer under its title: summary, table of at most so many rows, definition, what it left out."""
    table = answer.table(most)
    told = [f"<h{level}>{text(answer.title)}</h{level}>\n<p>{text(answer.summary())}</p>\n"]
    if table is not None and table.rows:
        head = "".join(f'<th scope="col">{_cell(cell)}</th>' for cell in table.head)
        rows = "".join(f"<tr>{''.join(f'<td>{_cell(c)}</td>' for c in row)}</tr>\n" for row in table.rows)
        body = f"<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody>"
        told.append(f'<div class="scroll"><table>{body}</table></div>\n')
        if table.more:
            told.append(f"<p>and {table.more:,} more</p>\n")
    about = f"Definition: {answer.definition}."
    if answer.denominator:
        about += f" Shares are of: {answer.denominator}."
    told.append(f'<p class="note">{text(about)}</p>\n')
    return "".join(told) + listed(f"Left out: {line}" for line in answer.left_out)


def _cell(words: str) -> str:
    """Text for a cell, in which a name of thousands of characters is cut in its middle."""
    return escape(shortened(shown(words), LONGEST))


def listed(lines: Iterable[str]) -> str:
    """A list of remarks in small type; nothing where there are none."""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="note">{items}</ul>\n' if items else ""
