"""JSON of any size, read piece by piece: one object with a long list in it, or JSON Lines.

Plain or gzip by content, UTF-8 with or without a byte order mark. Whatever is wrong with the text is a
`Fault` that knows its place; a key that an object has twice is `Repeated`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ijson

from .errors import LabError

CHUNK = 1 << 16
DEEPEST = 16
"""Deeper nesting than this is refused."""
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, those that change the direction of writing, and halves of characters."""
LARGEST = 2**63 - 1

_CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of UTF-8 that begin no character
_TOO_DEEP = "this is nested too deeply"
_CUT_OFF = "it was cut off: write it again"
_TOO_LARGE = f"a whole number beyond 64 bits; at most {LARGEST} can be read"


class Fault(Exception):
    """Something in the text that is not JSON. ``place`` goes behind the file's name in a message."""

    def __init__(self, place: str, cause: str) -> None:
        super().__init__(cause)
        self.place, self.cause = place, cause


class Repeated(Exception):
    """A key that an object has twice."""

    def __str__(self) -> str:
        return f"the key {shown(self.args[0])} is there twice; keep one of them"


class Once(dict[str, Any]):
    """An object that takes every key once."""

    __slots__ = ()

    def __setitem__(self, key: str, value: Any) -> None:
        if key in self:
            raise Repeated(key)
        dict.__setitem__(self, key, value)


def shown(value: Any) -> str:
    """A JSON value as a message shows it: short, whatever it is."""
    if isinstance(value, list):
        return "a list"
    if isinstance(value, Mapping):
        return "an object"
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


class Source(ABC):
    """Where JSON is read from; it can be opened again and again. ``name`` stands in front of messages."""

    def __init__(self, name: str, stem: str = "") -> None:
        self.name, self.stem = name, stem

    @abstractmethod
    def open(self) -> BinaryIO:
        """The bytes as they are stored, from their beginning."""

    @contextlib.contextmanager
    def text(self) -> Iterator[BinaryIO]:
        """The bytes, decompressed, from behind a byte order mark. Trouble with reading is a LabError."""
        try:
            with self.open() as stored:
                packed = stored.read(2) == b"\x1f\x8b"
                stored.seek(0)
                with gzip.open(stored) if packed else contextlib.nullcontext(stored) as plain:
                    if plain.read(3) != b"\xef\xbb\xbf":
                        plain.seek(0)
                    yield plain
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise LabError(
                f"{self.name}: the gzip stream is damaged or cut off ({error}); fetch or write it again"
            ) from None
        except OSError as error:
            raise LabError(f"{self.name}: cannot be read ({error.strerror or error})") from None

    def beginning(self) -> bytes:
        """The first bytes that are not blank, decompressed. ``LabError`` if there are none."""
        with self.text() as file:
            while chunk := file.read(CHUNK):
                if chunk.strip():
                    return chunk.lstrip()
        raise LabError(f"{self.name}: there is nothing in it; write it again")

    def events(self) -> Iterator[tuple[str, Any]]:
        """ijson's events of all the JSON values of the text, one behind the other. `Fault` for other text."""
        found = ijson.sendable_list()
        parser = _parser(found)
        before = 0
        with self.text() as file:
            while chunk := file.read(CHUNK):
                try:
                    parser.send(chunk)
                except (ijson.JSONError, ValueError) as error:
                    yield from found
                    raise self._fault(before, error) from None
                before += len(chunk)
                yield from found
                del found[:]
        try:
            parser.close()
        except ijson.JSONError:
            raise Fault("", f"the text ends too early, after {before} bytes; {_CUT_OFF}") from None

    def _fault(self, before: int, error: Exception) -> Fault:
        """What is wrong, and where, in the chunk behind the first ``before`` bytes."""
        parser = _parser(ijson.sendable_list())
        line, column, at = 1, 1, 0
        with self.text() as file:
            while before:
                chunk = file.read(min(CHUNK, before))
                before -= len(chunk)
                parser.send(chunk)
                line, column = _moved(line, column, chunk)
            chunk = file.read(CHUNK)
        with contextlib.suppress(ijson.JSONError, ValueError):
            for at in range(len(chunk)):
                parser.send(chunk[at : at + 1])
        line, column = _moved(line, column, chunk[:at])
        word = re.compile(rb"(?:NaN|-?Infinity)").match(chunk, at - (chunk[at - 1 : at] == b"-"))
        if word:
            cause = _no_number(word[0].decode())
        else:
            near = chunk[max(0, at - 20) : at + 20].decode("utf-8", "replace").strip()
            told = re.search(r"(?:lexical|parse) error: ([^\n\\]*)", str(error))
            why = f" ({told[1].rstrip(' .')})" if told else ""
            cause = (_TOO_LARGE if "integer overflow" in why else f"not valid JSON{why}") + f" near {near!r}"
        return Fault(f", line {line}, column {column}", cause)

    def items(self, prefix: str) -> Iterator[Any]:
        """The values at ijson's ``prefix``, of a text that `events` found whole. Objects are `Once`."""
        found = ijson.sendable_list()
        parser = ijson.items_coro(found, prefix, map_type=Once, use_float=True)
        with self.text() as file:
            while chunk := file.read(CHUNK):
                try:
                    parser.send(chunk)
                except Repeated:
                    yield from found
                    raise
                except ijson.JSONError:
                    raise LabError(f"{self.name}: it was changed while it was read; try again") from None
                yield from found
                del found[:]

    def lines(self) -> Iterator[Any]:
        """The value of every line that is not blank. `Fault` for one that is no JSON."""
        decode = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_refused).decode
        with self.text() as file:
            for number, line in enumerate(file, 1):
                if line.isspace():
                    continue
                place = f", line {number}"
                try:
                    value = decode(line.decode())
                except ValueError as error:
                    if _ends_early(line, error):
                        raise Fault(place, f"the text ends too early; {_CUT_OFF}") from None
                    if isinstance(error, UnicodeDecodeError):
                        raise Fault(place, f"byte {error.start + 1} of the line is not UTF-8 text") from None
                    if not isinstance(error, json.JSONDecodeError):  # of ours, or of int: thousands of digits
                        text = _TOO_LARGE if "digits" in str(error) else str(error)
                        raise Fault(place, text) from None
                    near = error.doc[max(0, error.pos - 20) : error.pos + 20].strip()
                    raise Fault(
                        f"{place}, column {error.colno}", f"not valid JSON ({error.msg}) near {near!r}"
                    ) from None
                except RecursionError:
                    raise Fault(place, _TOO_DEEP) from None
                yield value


class File(Source):
    """A file. ``LabError`` for what is not there or is no file."""

    def __init__(self, path: Path) -> None:
        stem = path.name.partition(".")[0]
        super().__init__(str(path), "" if UNPRINTABLE.search(stem) else stem)
        self.path = path
        if path.is_dir():
            raise LabError(f"{path}: this is a folder; give the name of a file")
        if not path.exists():
            raise LabError(f"{path}: there is no such file")
        if not path.is_file():
            raise LabError(f"{path}: this is a device or a pipe; write its content to a file first")

    def open(self) -> BinaryIO:
        return self.path.open("rb")


class Text(Source):
    """A text in memory."""

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(name)
        self.data = data

    def open(self) -> BinaryIO:
        return io.BytesIO(self.data)


def split(source: Source, long_key: str, check: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
    """The first object of a source without the list under ``long_key``, and all of its keys.

    Reads to the object's end, since keys may stand behind the list. ``check`` is called with each key and
    may raise ValueError. ``LabError`` for that, for text that is not JSON, with the number of the list's
    entry, for keys that are there twice and, where the list is there, for more behind the object.
    """
    head: dict[str, Any] = {}
    keys: list[str] = []
    builder: Any = None
    key, depth, ended, number = "", 0, False, 0

    def fail(text: str, place: str = "") -> LabError:
        step = f" step {number}:" if depth > 1 and builder is None else ""
        return LabError(f"{source.name}{place}:{step} {text}")

    try:
        for event, value in source.events():
            if depth > 1:
                if event == "start_map" or event == "start_array":
                    depth += 1
                    if depth > DEEPEST:
                        raise fail(_TOO_DEEP)
                elif event == "end_map" or event == "end_array":
                    depth -= 1
                if builder is not None:
                    builder.event(event, value)
                    if depth == 1:
                        head[key], builder = builder.value, None
                elif depth == 2 and event != "map_key":
                    number += 1
            elif ended:
                if long_key in keys:
                    raise fail("there is more behind the object's end; a file holds one")
                break
            elif event == "map_key":
                key = value
                check(key)
                if key in keys:
                    raise Repeated(key)
                keys.append(key)
            elif event == "end_map":
                depth, ended = 0, True
            elif depth == 0:
                depth = 1
            elif event == "start_array" or event == "start_map":
                depth = 2
                if key != long_key or event == "start_map":
                    builder = ijson.ObjectBuilder(map_type=Once)
                    builder.event(event, value)
            else:
                head[key] = value
    except (Repeated, ValueError) as error:
        raise fail(str(error)) from None
    except Fault as error:
        if not ended or long_key in keys:
            raise fail(error.cause, error.place) from None
    return head, keys


def _parser(target: Any) -> Any:
    """ijson's parser as a coroutine. With use_float, a number too large for it is an error of the text."""
    return ijson.basic_parse_coro(target, multiple_values=True, use_float=True)


def _moved(line: int, column: int, passed: bytes) -> tuple[int, int]:
    """Line and column behind some more bytes."""
    end = passed.rfind(b"\n")
    seen = len(passed[end + 1 :].translate(None, _CONTINUATION))
    return line + passed.count(b"\n"), seen + (1 if end >= 0 else column)


def _ends_early(line: bytes, error: ValueError) -> bool:
    """Whether a line is the beginning of an object, and the last of the file."""
    if line.endswith(b"\n"):
        return False
    if isinstance(error, json.JSONDecodeError) and error.pos >= len(error.doc.rstrip()):
        return True
    return line.lstrip().startswith(b"{") and not line.rstrip().endswith(b"}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise Repeated(next(name for name in names if names.count(name) > 1))
    return made


def _refused(word: str) -> None:
    raise ValueError(_no_number(word))


def _no_number(word: str) -> str:
    return f"{word} is not a JSON number; write a whole number"
