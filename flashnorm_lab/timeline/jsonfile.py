"""Reads trace files: JSON, plain or gzip by content, with times kept as the text says them.

A trace's microseconds have three decimals. As float64, ``1712195495505543.140`` comes back as
``…543.250``: a quarter of a microsecond off. So numbers with a point stay decimal until they are nanoseconds.
"""

from __future__ import annotations

import gzip
import json
import zlib
from decimal import Context, Decimal, InvalidOperation
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import LabError

_DECIMAL = Context(prec=60)
_LIMIT = 2**63


def load(path: str | PathLike[str]) -> Any:
    """The file's JSON value; numbers with a point or an exponent are `decimal.Decimal`.

    Raises ``LabError``, in one line with file, place and cause, for whatever is not a whole JSON text.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise LabError(f"{path}: there is no such file") from None
    except OSError as error:
        raise LabError(f"{path}: cannot be read ({error.strerror})") from None
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise LabError(
                f"{path}: the gzip stream is damaged or cut off ({error}); fetch or export it again"
            ) from None
    if not data.strip():
        raise LabError(f"{path}: the file is empty; export the trace again")
    if data.startswith(b"version https://git-lfs"):
        raise LabError(
            f"{path}: this is a Git LFS pointer, not the file itself; run `git lfs pull` where it came from"
        )
    if data.startswith(b"SQLite format 3\0"):
        raise LabError(f"{path}: this is an SQLite database; a Chrome or Kineto JSON trace was expected")
    encoding = json.detect_encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise LabError(
            f"{path}: byte {error.start} is not {encoding} text; a JSON trace was expected"
        ) from None
    del data
    try:
        return json.loads(text, parse_float=Decimal, strict=False)
    except json.JSONDecodeError as error:
        raise LabError(f"{path}, line {error.lineno}, column {error.colno}: {_cause(text, error)}") from None
    except RecursionError:
        raise LabError(f"{path}: not a trace (this is nested too deeply)") from None
    except ValueError as error:
        raise LabError(f"{path}: not a trace ({error})") from None


def _cause(text: str, error: json.JSONDecodeError) -> str:
    if error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string"):
        return "the JSON text ends too early; the file was cut off while it was written"
    near = " ".join(text[max(0, error.pos - 20) : error.pos + 20].split())
    return f"not valid JSON ({error.msg}) near {near!r}"


def nanoseconds(value: Any) -> int:
    """Microseconds, as a number or as text, in whole nanoseconds. Raises ``ValueError`` for anything else.

    Digits beyond the nanosecond are rounded half to even.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        result = value * 1000
    else:
        if not isinstance(value, str | Decimal):
            raise ValueError(f"{value!r} is not a number")
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise ValueError(f"{value!r} is not a number") from None
        if not number.is_finite() or number.adjusted() > 18:
            raise ValueError(f"{value!s} is not a time")
        result = round(_DECIMAL.multiply(number, 1000))
    if not -_LIMIT <= result < _LIMIT:
        raise ValueError(f"{value!s} microseconds do not fit into 64 bits of nanoseconds")
    return result
