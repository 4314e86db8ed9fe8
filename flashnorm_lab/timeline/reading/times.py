"""Microseconds, as a trace's text writes them, in whole nanoseconds: never through a float.

As float64, ``1712195495505543.140`` comes back as ``…543.250``: a quarter of a microsecond off. So the digits
themselves are read, for a whole column at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from decimal import Context, Decimal, InvalidOperation
from typing import Any

import msgspec
import numpy as np

from .values import short

MISSING = int(np.iinfo(np.int64).min)
"""Stands in a column of times where an event has none."""

_DECIMAL = Context(prec=60)
_LIMIT = 2**63
_DIGITS = 19  # whatever has no more than these fits into 64 bits without a sign
_QUOTE, _POINT, _MINUS, _ZERO, _COMMA = b'".-0,'
_WIDTH = 25  # of a number's text: 24 digits and a point
_PLACES = np.arange(_WIDTH, dtype=np.uint8)


def nanoseconds(value: Any) -> int:
    """Microseconds, as a number or as text, in whole nanoseconds. Raises ``ValueError`` for anything else.

    Digits beyond the nanosecond are rounded half to even.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        result = value * 1000
    else:
        if not isinstance(value, str | Decimal):
            raise ValueError(f"{short(repr(value))} is not a number")
        try:
            number = Decimal(value)
        except InvalidOperation:
            raise ValueError(f"{short(repr(value))} is not a number") from None
        if not number.is_finite() or number.adjusted() > 18:
            raise ValueError(f"{short(str(value))} is not a time")
        result = round(_DECIMAL.multiply(number, 1000))
    if not -_LIMIT < result < _LIMIT:
        raise ValueError(f"{short(str(value))} microseconds do not fit into 64 bits of nanoseconds")
    return result


def columns_of(texts: Sequence[Any]) -> tuple[np.ndarray, int, list[tuple[int, str]]]:
    """JSON texts of times in microseconds, plain or in quotes, in nanoseconds: int64 [texts].

    ``texts`` are bytes or whatever has a buffer; an empty one, or ``null``, is `MISSING`. Also returns how
    many stand in quotes, and (index, what is wrong) of those that are no time; they are `MISSING` too.
    """
    result = np.full(len(texts), MISSING, dtype=np.int64)
    data = np.frombuffer(bytes(_WIDTH) + b",".join(texts) + b",", dtype=np.uint8)
    stops = np.flatnonzero(data == _COMMA)
    if len(stops) != len(texts):  # there is a comma within some text
        quoted = sum(bytes(text)[:1] == b'"' for text in texts)
        return result, quoted, list(_one_by_one(texts, range(len(texts)), result))
    starts = np.empty_like(stops)
    starts[:1] = _WIDTH
    starts[1:] = stops[:-1] + 1
    there = np.flatnonzero(stops > starts)
    starts, stops = starts[there], stops[there]
    quoted = (data[starts] == _QUOTE) & (data[stops - 1] == _QUOTE) & (stops - starts >= 3)
    starts, stops = starts + quoted, stops - quoted
    negative = data[starts] == _MINUS
    starts = starts + negative

    point = np.flatnonzero(data == _POINT)
    if len(point) != len(starts) or not ((starts < point) & (point < stops)).all():  # not one in each
        point = np.append(point, len(data))[np.searchsorted(point, starts)]
    decimals = np.where(point < stops, stops - 1 - point, -1)  # -1 where there is no point
    whole = stops - starts - decimals - 1
    fits = (whole >= 1) & (decimals != 0) & (whole + np.maximum(decimals, 3) <= _DIGITS)
    for after in np.flatnonzero(np.bincount(decimals[fits] + 1)) - 1:
        chosen = np.flatnonzero(fits & (decimals == after))
        value, good = _values(data, starts[chosen], stops[chosen], after)
        fits[chosen] = good
        result[there[chosen]] = np.where(negative[chosen], -value, value)
    slow = there[~fits]
    result[slow] = MISSING
    return result, int(quoted.sum()), list(_one_by_one(texts, slow.tolist(), result))


def _values(
    data: np.ndarray, starts: np.ndarray, stops: np.ndarray, after: int
) -> tuple[np.ndarray, np.ndarray]:
    """Nanoseconds int64 of numbers with ``after`` digits behind the point (-1: no point); which are good."""
    windows = np.lib.stride_tricks.sliding_window_view(data, _WIDTH)
    text = np.ascontiguousarray(
        windows[stops - _WIDTH].T
    )  # [places, numbers], flush right: long rows are quick
    before = (_WIDTH - (stops - starts)).astype(np.uint8)
    digits = (text - np.uint8(_ZERO)) * (before <= _PLACES[:, None])
    digits = np.delete(digits, _WIDTH - 1 - after if after > 0 else 0, axis=0)  # the point, or nothing
    good = (digits <= 9).all(axis=0)
    twos = digits[::2] * np.uint8(10) + digits[1::2]
    fours = twos[::2].astype(np.uint16) * np.uint16(100) + twos[1::2]
    eights = fours[::2].astype(np.uint64) * np.uint64(10**4) + fours[1::2]
    value = (eights[0] * np.uint64(10**8) + eights[1]) * np.uint64(10**8) + eights[2]
    if after <= 3:
        value *= np.uint64(10 ** (3 - max(int(after), 0)))
    else:
        unit = np.uint64(10 ** int(after - 3))
        value, rest = np.divmod(value, unit)
        half = unit // np.uint64(2)  # the unit is even
        value += (rest > half) | ((rest == half) & (value % np.uint64(2) == 1))
    good &= value < _LIMIT
    return value.astype(np.int64), good


def _one_by_one(texts: Sequence[Any], which: Iterable[int], result: np.ndarray) -> Iterator[tuple[int, str]]:
    for i in which:
        text = bytes(texts[i])
        if text in (b"", b"null"):
            continue
        try:
            number = text[:1] in b"-0123456789"
            result[i] = nanoseconds(text.decode() if number else msgspec.json.decode(text))
        except ValueError as error:
            yield i, str(error)
