"""Files that are written whole or not at all, and texts as the formats written here can hold them."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import secrets
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Any

from ...errors import LabError


def check_target(path: str | PathLike[str]) -> Path:
    """The file that an export to ``path`` writes. Worth a call before a long measurement.

    ``LabError`` for an empty name, a folder that does not exist or cannot be written, and for anything that
    is there and is no file: a folder, a device, a pipe.
    """
    if not isinstance(path, str | PathLike) or not str(path):
        raise LabError(f"{path!r} is no file name; give one, for instance timeline.json")
    if "\0" in str(path):
        raise LabError(f"{str(path)!r} is no file name; a name cannot hold the character of number 0")
    try:
        path = Path(path).resolve()
        there = path.exists()
    except OSError as error:
        raise LabError(f"{path}: cannot be written ({error.strerror}); choose another name") from None
    if not path.parent.is_dir():
        raise LabError(f"{path}: the folder {path.parent} does not exist; create it first or choose another")
    if path.is_dir():
        raise LabError(f"{path}: this is a folder; give the name of a file in it")
    if there and not path.is_file():
        raise LabError(f"{path}: this is a device or a pipe; give the name of a file")
    if not os.access(path.parent, os.W_OK):
        raise LabError(f"{path}: the folder {path.parent} cannot be written; choose another")
    return path


@contextlib.contextmanager
def whole(path: str | PathLike[str], encoding: str | None = None) -> Iterator[IO[Any]]:
    """A file to write to, which gets its name when it is whole (a temporary name beside it, then a rename).

    Text in this encoding with ``\\n`` at line ends, bytes without one; compressed with gzip where the name
    ends in ``.gz``. When the block raises, what was there under the name stays and no rest is left. A link
    stays a link: the file that it points to is written. ``LabError`` as `check_target` raises it, and when
    the file cannot be written after all, for instance because the disk is full.
    """
    path = check_target(path)
    part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")
    try:
        try:
            with contextlib.ExitStack() as stack:
                file: IO[Any] = stack.enter_context(part.open("xb"))
                if path.suffix.lower() == ".gz":
                    # Level 3: twice as quick as 6 on traces, for a tenth more bytes. No name and no time in
                    # it, so that equal contents are equal files.
                    file = stack.enter_context(gzip.GzipFile("", "wb", 3, file, mtime=0))
                if encoding:
                    file = stack.enter_context(io.TextIOWrapper(file, encoding, newline="\n"))
                yield file
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        why = error.strerror or str(error) or type(error).__name__
        raise LabError(f"{path}: cannot be written ({why}); choose another folder") from None


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold the text: not if half of a surrogate pair stands in it alone."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def unicode_text(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair that stands alone."""
    return text if is_unicode(text) else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


REPLACED = "half of a surrogate pair is no Unicode: in names it is written as U+FFFD"
"""What a writer says that used `unicode_text`."""
