"""Walks over the text of a trace: its list of events piece by piece, and the values that stand around it.

A piece of the list is cut at a place that looks like the end of an event, ``},{``. Such a place may as well
lie within an event, or within a text. But if ``[`` + piece + ``]`` is valid JSON, and the piece began between
two events, then it also ends between two events: there is only one way to read JSON. So a piece that decodes
proves its own cut, and the next one begins between two events again. One that ends too early is made longer.
Cuts before an event that begins with the same key as the first one are tried first, since they seldom fail.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable

import msgspec

from ...errors import LabError
from .repair import HALF, Edits, repair
from .text import PARTIAL, Text
from .values import short

PIECE = 1 << 20
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_FIRST_KEY = re.compile(rb'\s*\{\s*("(?:[^"\\]++|\\.){0,64}")', re.DOTALL)
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_HOLE = b'"traceEvents":0'  # stands where a list of events was taken out
_CANDIDATES = 8
_AT_BYTE = re.compile(r"\(byte (\d+)\)")
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_BLANK = re.compile(rb"\s*")
_EARLY = "the JSON text ends too early; the file was cut off while it was written"
_EXPECTED = "a Chrome or Kineto trace was expected"
_HINTS = {
    "object keys must be strings": "a key is not in quotation marks",
    "expected ',' or '}'": "a quotation mark within a text may lack its backslash",
    "trailing characters": "there is more text behind the end",
}
_values = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entries = msgspec.json.Decoder(list[msgspec.Raw])


class _Fault(Exception):
    """The text breaks at ``at``; ``early``: because it ends."""

    def __init__(self, at: int, cause: str, early: bool) -> None:
        super().__init__(cause)
        self.at, self.cause, self.early = at, cause, early


class Walk:
    """One pass over a file. ``add`` is given the text of some events, a JSON list, and says how many it took.

    ``add`` raises ``msgspec.DecodeError`` for what is no JSON, before it takes anything. ``partial``: keep
    the whole events before a break instead of raising. ``piece``: about how many bytes to hand over at once.
    Afterwards ``values`` holds the JSON text of the other values of the file's object, ``count`` how many
    events there were, and ``notes`` what was put right.
    """

    def __init__(
        self, text: Text, add: Callable[[bytes], int], *, partial: bool = False, piece: int = PIECE
    ) -> None:
        self.where, self.cut, self.notes = text.where, text.cut, list(text.notes)
        self.data = self.original = text.data
        self.edits = Edits()
        self.repaired = False
        self.add, self.partial, self.piece = add, partial, piece
        self.count = self.lists = 0
        self.values: dict[str, bytes] = {}
        self.head = b""
        self.at = 0
        self.likely: re.Pattern[bytes] | None = None
        self.step: Callable[[], None] | None = None

    def run(self) -> None:
        """Hand over every event. ``LabError``, in one line with file and place, where the text breaks."""
        self._begin()
        while self.step is not None:
            try:
                self.step()
            except _Fault as fault:
                if not self._repair():
                    self._broken(fault)
                    return
            except RecursionError:
                raise LabError(f"{self.where}: not a trace (this is nested too deeply)") from None
        if not self.lists:
            keys = ", ".join(map(repr, list(self.values)[:5])) or "none"
            raise LabError(
                f"{self.where}: there is no list of traceEvents in it (its keys: {keys}); {_EXPECTED}"
            )
        if self.lists > 1:
            self.notes.append(f"there are {self.lists} lists of traceEvents; the events of all were read")
        if self.cut:
            self.notes.append(f"{self.cut}; the JSON text in it is whole")

    def _begin(self) -> None:
        start = _BLANK.match(self.data).end()
        first = bytes(self.data[start : start + 1])
        if first == b"[":
            self.step, self.lists = self._list, 1
        elif first == b"{":
            self.step, self.head = self._members, b"{"
        else:
            begins = bytes(self.data[start : start + 24]).decode(errors="replace")
            raise LabError(
                f"{self.where}: there is no list of traceEvents in it (it begins with {begins!r}); "
                f"{_EXPECTED}"
            )
        self.at = start + 1
        if self.data.find(b"\\") >= 0 and HALF.search(self.data):  # the first look is much the quicker
            self._repair()

    def _members(self) -> None:
        """The values from here to the next list of events, or to the end."""
        for i, found in enumerate(_LIST.finditer(self.data, self.at)):
            if i == _CANDIDATES:
                break
            # If the text up to here, with one value and one brace more, is valid, this is a key of the
            # object itself: neither part of a text, nor a key of an object within.
            try:
                values = _values.decode(self._text(self.at, found.start(), self.head, _HOLE + b"}"))
            except msgspec.DecodeError:
                continue
            self._keep(values)
            self.at, self.step = found.end(), self._list
            self.lists += 1
            return
        try:
            values = _values.decode(self._text(self.at, len(self.data), self.head))
        except msgspec.DecodeError as error:
            raise self._fault(error, self.at - len(self.head)) from None
        listed = bytes(values.get("traceEvents", b"0"))
        if listed[:1] == b"[":  # its key is written with escapes
            self.count += self.add(listed)
            self.lists += 1
        elif listed != b"0":
            raise LabError(
                f"{self.where}: there is no list of traceEvents in it (traceEvents is {short(listed)}); "
                f"{_EXPECTED}"
            )
        self._keep(values)
        self.step = None

    def _keep(self, values: dict[str, msgspec.Raw]) -> None:
        values.pop("traceEvents", None)
        self.values |= {key: bytes(value) for key, value in values.items()}

    def _list(self) -> None:
        """The next piece of a list of events."""
        size = self.piece
        while True:
            cut = self._cut(self.at + size)
            stop = cut.start() + 1 if cut else len(self.data)
            try:
                self.count += self.add(self._text(self.at, stop, b"[", b"]" if cut else b""))
            except msgspec.DecodeError as error:
                fault = self._fault(error, self.at - 1)
                if "trailing characters" in str(error):
                    end = self.data.rfind(b"]", self.at, fault.at) + 1
                    self.count += self.add(self._text(self.at, end, b"["))
                    self._close(end)
                elif fault.early and cut:
                    size = 2 * (stop - self.at)
                    continue
                elif not fault.early or self.head or not self._unclosed():
                    raise fault from None
            else:
                if cut:
                    self.at = cut.end()
                else:
                    self._close(len(self.data))
            return

    def _cut(self, start: int) -> re.Match[bytes] | None:
        """A place at or behind ``start`` that looks like the end of an event with another one behind it."""
        if self.likely is None:
            first = _FIRST_KEY.match(self.data, self.at)
            self.likely = (
                re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(first[1]) + rb")") if first else _BETWEEN
            )
        return self.likely.search(self.data, start, start + self.piece) or _BETWEEN.search(self.data, start)

    def _close(self, end: int) -> None:
        """A list of events ends here."""
        self.at = end
        if self.head:
            self.head, self.step = b"{" + _HOLE, self._members
            return
        self.step = self._behind

    def _behind(self) -> None:
        """Nothing may stand behind a bare list."""
        behind = _BLANK.match(self.data, self.at).end()
        if behind < len(self.data):
            raise _Fault(behind, "trailing characters", False)
        self.step = None

    def _unclosed(self) -> bool:
        """Whether this is a bare list that only lacks its end, which the format allows; then it is taken."""
        rest = bytes(self.data[self.at :]).rstrip().removesuffix(b",")
        try:
            self.count += self.add(b"[" + rest + b"]")
        except msgspec.DecodeError:
            return False
        self.notes.append(
            "the list of events is not closed by ]; the format allows that, but the file may be cut off"
        )
        self.step = None
        return True

    def _text(self, start: int, stop: int, before: bytes, behind: bytes = b"") -> bytes:
        return b"".join((before, memoryview(self.data)[start:stop], behind))

    def _fault(self, error: msgspec.DecodeError, offset: int) -> _Fault:
        found = _AT_BYTE.search(str(error))
        if found:
            cause = str(error).removeprefix("JSON is malformed: ").partition(" (byte")[0]
            return _Fault(int(found[1]) + offset, cause, False)
        return _Fault(len(self.data), _EARLY, True)

    def _repair(self) -> bool:
        """Put right what can be, from here on; whether there was anything."""
        if self.repaired:
            return False
        self.repaired = True
        data, edits, notes = repair(self.data, self.at)
        if not notes:
            return False
        self.data, self.edits = data, edits
        self.notes += notes
        return True

    def _broken(self, fault: _Fault) -> None:
        listed = self.step == self._list
        end, further = self._whole(fault.at) if listed else (self.at, 0)
        whole = self.count + further
        place = self._place(fault.at) + (f" (event {whole})" if listed else "")
        cause = fault.cause if fault.early else self._cause(fault)
        if not self.partial:
            offer = f"; its whole events, {whole:,}, can be read alone ({PARTIAL})" if whole else ""
            raise LabError(f"{self.where}, {place}: {cause}{offer}; or export the trace again")
        if not whole:
            raise LabError(f"{self.where}, {place}: {cause}; there is no whole event before that")
        if further:
            self.count += self.add(self._text(self.at, end, b"[", b"]"))
        self.notes.append(
            f"only the {whole:,} whole events before {place} were read, nothing behind it: {cause}"
        )
        self.step = None

    def _whole(self, stop: int) -> tuple[int, int]:
        """Where the last whole event before ``stop`` ends, and how many there are from here to there."""
        depth, ends = 0, [self.at]
        for token in _TOKEN.finditer(self.data, self.at, stop):
            if token[0] in (b"{", b"["):
                depth += 1
            elif token[0] in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    ends.append(token.end())
        # Where the break is not quite at ``stop``, the last ones may be no whole events at all.
        count = bisect_left(range(1, len(ends)), True, key=lambda i: not self._sound(ends[i]))
        return ends[count], count

    def _sound(self, end: int) -> bool:
        try:
            _entries.decode(self._text(self.at, end, b"[", b"]"))
        except msgspec.DecodeError:
            return False
        return True

    def _place(self, at: int) -> str:
        at = min(self.edits.original(at), len(self.original))
        tail = bytes(self.original[max(0, at - 4096) : at])
        if at == len(self.original):
            at -= len(tail) - len(tail.rstrip())
        line = self.original.count(b"\n", 0, at) + 1
        begin = self.original.rfind(b"\n", 0, at) + 1
        column = len(bytes(self.original[begin:at]).decode(errors="replace")) + 1
        return f"line {line}, column {column}"

    def _cause(self, fault: _Fault) -> str:
        near = bytes(self.data[max(0, fault.at - 24) : fault.at + 24]).decode(errors="replace")
        hint = _HINTS.get(fault.cause)
        told = f"{fault.cause}: {hint}" if hint else fault.cause
        return f"not valid JSON ({told}) near {' '.join(near.split())!r}"
