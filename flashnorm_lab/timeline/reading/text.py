"""The text of a trace file: plain or gzip by content, in whatever Unicode encoding, as UTF-8 bytes.

What is certain is put right and said in a note; what is no JSON text at all is refused in one line.
"""

from __future__ import annotations

import codecs
import json
import zlib
from dataclasses import dataclass, field
from decimal import Decimal
from os import PathLike
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from ...errors import LabError

SQLITE = b"SQLite format 3\0"
GZIP = b"\x1f\x8b"
_LFS = b"version https://git-lfs"
_PACKED = {
    b"PK\x03\x04": ("a ZIP archive", "unpack it first"),
    b"PK\x05\x06": ("an empty ZIP archive", "pack it again"),
    b"BZh": ("packed with bzip2", "unpack it first (bunzip2)"),
    b"\xfd7zXZ\0": ("packed with xz", "unpack it first (unxz)"),
    b"\x28\xb5\x2f\xfd": ("packed with Zstandard", "unpack it first (unzstd)"),
    b"7z\xbc\xaf": ("a 7-Zip archive", "unpack it first"),
}
_STEP = 1 << 20
_PACKED_STEP = 1 << 16  # a thousand times as much text may come of it
PARTIAL = "partial=True, in a terminal --partial"
"""How to have the whole events of a file that was cut off."""
_EXPECTED = "a Chrome or Kineto JSON trace, plain or gzip, was expected"


@dataclass
class Text:
    """A file's text. ``data``: UTF-8 bytes without a byte-order mark; ``where``: the path, for messages.

    ``notes``: what was put right. ``cut``: why the text ends early, "" where it does not (a gzip stream that
    was cut off, read all the same). ``file``: the file's path, size and time of change.
    """

    data: bytes | bytearray
    where: str
    notes: list[str] = field(default_factory=list)
    cut: str = ""
    file: dict[str, Any] = field(default_factory=dict)


def read_text(path: str | PathLike[str], *, partial: bool = False) -> Text:
    """The file's text as UTF-8; with ``partial``, as much as a damaged gzip stream still gives.

    ``LabError``, in one line with file and cause, for whatever is no text.
    """
    data, file = _read(Path(path))
    text = Text(data, str(path), file=file)
    del data
    if text.data[:2] == GZIP:
        _unpack(text, partial)
    _refuse(text)
    _to_utf8(text)
    if not text.data or (text.data[:_STEP].isspace() and text.data.isspace()):
        raise LabError(f"{path}: the file is empty; export the trace again")
    return text


def read_head(path: str | PathLike[str], size: int = 1 << 16) -> bytes:
    """The first bytes of a file, unpacked if it is gzip. ``LabError`` for one that cannot be read."""
    data, _ = _read(Path(path), size)
    if data[:2] == GZIP:
        try:
            data = zlib.decompressobj(31).decompress(data, size)
        except zlib.error:
            return data  # whoever reads all of it says what is wrong
    return bytes(data)


def load_json(path: str | PathLike[str]) -> Any:
    """The file's JSON value; numbers with a point or an exponent are `decimal.Decimal`.

    Raises ``LabError``, in one line with file, place and cause, for whatever is not a whole JSON text.
    """
    text = read_text(path)
    return parse_json(bytes(text.data), text.where)


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value of UTF-8 text, as `load_json` gives it."""
    text = data.decode(errors="replace")
    try:
        return json.loads(text, parse_float=Decimal, strict=False)
    except json.JSONDecodeError as error:
        raise LabError(f"{where}, line {error.lineno}, column {error.colno}: {_cause(text, error)}") from None
    except RecursionError:
        raise LabError(f"{where}: not a trace (this is nested too deeply)") from None
    except ValueError as error:
        raise LabError(f"{where}: not a trace ({error})") from None


def _cause(text: str, error: json.JSONDecodeError) -> str:
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "the JSON text ends too early; the file was cut off while it was written"
    near = " ".join(text[max(0, error.pos - 20) : error.pos + 20].split())
    return f"not valid JSON ({error.msg}) near {near!r}"


def _read(path: Path, size: int = -1) -> tuple[bytes, dict[str, Any]]:
    try:
        known = path.stat()
        if not (S_ISREG(known.st_mode) or S_ISDIR(known.st_mode)):
            raise LabError(f"{path}: cannot be read (it is no regular file); save its content to one first")
        with path.open("rb") as file:
            data = file.read(size)
    except FileNotFoundError:
        raise LabError(f"{path}: there is no such file") from None
    except IsADirectoryError:
        raise LabError(f"{path}: cannot be read (it is a folder); give the name of a trace in it") from None
    except PermissionError:
        raise LabError(f"{path}: cannot be read (you lack the permission); ask whose file it is") from None
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise LabError(f"{path}: cannot be read ({cause})") from None
    return data, {"path": str(path.resolve()), "bytes": known.st_size, "mtime_ns": known.st_mtime_ns}


def _unpack(text: Text, partial: bool) -> None:
    """Every member of the gzip stream, one behind the other."""
    packed, whole, members = memoryview(text.data), bytearray(), 0
    at, problem = 0, ""
    while at < len(packed) and not problem:
        if members and packed[at : at + 2] != GZIP:
            if any(packed[at:]):
                text.notes.append(f"{len(packed) - at} bytes behind the gzip stream were not read")
            break
        unpacker = zlib.decompressobj(31)
        try:
            while at < len(packed) and not unpacker.eof:
                whole += unpacker.decompress(packed[at : at + _PACKED_STEP])
                at += min(_PACKED_STEP, len(packed) - at)
            at -= len(unpacker.unused_data)
            if not unpacker.eof:
                whole += unpacker.flush()
                problem = "it ends too early"
            members += 1
        except zlib.error as error:
            problem = str(error).partition(": ")[2] or str(error)
    if problem and not (partial and whole):
        offer = f", or read the whole events of what is there ({PARTIAL})" if whole else ""
        raise LabError(
            f"{text.where}: the gzip stream is damaged or cut off ({problem}, after {len(whole):,} bytes of "
            f"text); fetch or export it again{offer}"
        )
    if problem:
        text.cut = f"the gzip stream is damaged or cut off ({problem})"
    if members > 1:
        text.notes.append(f"the gzip stream has {members} members; they were read one behind the other")
    text.data = whole


def _refuse(text: Text) -> None:
    """``LabError`` for what is known to be something else."""
    head = bytes(text.data[:32])
    if head.startswith(SQLITE):
        raise LabError(f"{text.where}: this is an SQLite database; {_EXPECTED}")
    if head.startswith(_LFS):
        raise LabError(
            f"{text.where}: this is a Git LFS pointer, not the file itself; "
            "run `git lfs pull` where it came from"
        )
    for magic, (what, advice) in _PACKED.items():
        if head.startswith(magic):
            raise LabError(f"{text.where}: this is {what}; {advice}: {_EXPECTED}")
    if head.startswith(GZIP):
        raise LabError(f"{text.where}: packed with gzip twice; unpack it first (gunzip): {_EXPECTED}")


def _to_utf8(text: Text) -> None:
    encoding = json.detect_encoding(bytes(text.data[:4]))
    if encoding == "utf-8-sig":
        text.notes.append("the file begins with a byte-order mark")
        text.data, encoding = text.data[3:], "utf-8"
    if encoding == "utf-8" and text.data.isascii():
        return
    if encoding != "utf-8":
        text.notes.append(f"the text is {encoding.upper()}")
    # A window at a time: the text as one str would take up to four bytes a character.
    decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
    result = bytearray()
    replaced = 0
    for at in range(0, len(text.data), _STEP):
        piece = decoder.decode(text.data[at : at + _STEP], final=at + _STEP >= len(text.data))
        replaced += piece.count("\ufffd")
        result += piece.encode(errors="replace")
    if encoding == "utf-8":
        replaced -= text.data.count("\ufffd".encode())
    if replaced:
        text.notes.append(f"{replaced:,} places that are no {encoding.upper()} text were replaced by \ufffd")
    text.data = result
