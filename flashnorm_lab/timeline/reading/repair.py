"""Puts right what is no JSON, but whose meaning is beyond doubt; and keeps count of it.

- A comma behind the last entry of a list or an object.
- NaN and Infinity, which Python's json writes: they become the texts "NaN", "Infinity" and "-Infinity".
- Control characters within a text, such as a line break: they become escapes.
- Half of a surrogate pair (``\\ud800``), which stands for no character: it becomes U+FFFD.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field

_NUMBER = rb"-?(?:NaN|Infinity|nan|inf)\b"
_SOUND = rb'[^",NIni-]++|"(?:[^"\\\x00-\x1f]++|\\[^u\x00-\x1f])*+"|,(?!\s*[\]}])|(?!' + _NUMBER + rb")[NIni-]"
_TROUBLE = rb'"(?:[^"\\]++|\\.)*+"|,|' + _NUMBER
_SCAN = re.compile(rb"(?:" + _SOUND + rb")*+(?P<trouble>" + _TROUBLE + rb")?", re.DOTALL)
_PAIR = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
_ESCAPES = re.compile(
    _PAIR.pattern + rb"|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\[^u\x00-\x1f]|[\x00-\x1f]", re.DOTALL
)
HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Where this is found, there may be a half of a pair."""


@dataclass
class Edits:
    """Where a text was changed, so that a place in it can be told in the file's own lines and columns."""

    places: list[int] = field(default_factory=list)
    shifts: list[int] = field(default_factory=list)

    def original(self, place: int) -> int:
        """The place in the file of a place in the changed text."""
        i = bisect_right(self.places, place) - 1
        return place - self.shifts[i] if i >= 0 else place


def repair(data: bytes | bytearray, start: int) -> tuple[bytearray, Edits, list[str]]:
    """The text with all of that put right from ``start`` on, the places, and a note on each kind."""
    result = bytearray(memoryview(data)[:start])
    edits = Edits()
    commas = numbers = characters = halves = 0
    at = start
    while at < len(data):
        found = _SCAN.match(data, at)
        result += memoryview(data)[at : found.start("trouble") if found["trouble"] else found.end()]
        old = found["trouble"]
        if not old:
            result += memoryview(data)[found.end() :]
            break
        if old == b",":
            new, commas = b" ", commas + 1
        elif old[:1] != b'"':
            new, numbers = json.dumps(_NAMES[old.lstrip(b"-")[:1].lower()]).encode(), numbers + 1
            new = new[:1] + old[: old.startswith(b"-")] + new[1:]
        else:
            new, escaped, halved = _text(old)
            characters, halves = characters + escaped, halves + halved
        result += new
        if new != old:
            edits.places.append(len(result))
            edits.shifts.append(len(result) - found.end())
        at = found.end()
    told = (
        (commas, "commas behind the last entry of a list or an object were passed over"),
        (numbers, "values NaN or Infinity were read as text"),
        (characters, "control characters stood unescaped within texts; they were kept"),
        (halves, "halves of surrogate pairs were replaced by \ufffd"),
    )
    return result, edits, [f"{count:,} {what}" for count, what in told if count]


_NAMES = {b"n": "NaN", b"i": "Infinity"}


def _text(old: bytes) -> tuple[bytes, int, int]:
    """A text with its control characters and halves of pairs replaced, and how many there were of each."""
    counts = [0, 0]

    def replaced(found: re.Match[bytes]) -> bytes:
        part = found[0]
        if part[0] < 0x20:
            counts[0] += 1
            return json.dumps(part.decode("ascii"))[1:-1].encode()
        if len(part) == 6:
            counts[1] += 1
            return b"\\ufffd"
        return part

    new = _ESCAPES.sub(replaced, old)
    return new, counts[0], counts[1]
