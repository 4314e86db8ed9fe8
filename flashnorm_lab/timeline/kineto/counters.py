"""Counters (phase C): one series for each number that they tell."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ..reading import Events
from ..reading.values import value_of


class Samples(NamedTuple):
    """names: the series; name [samples] into names; at [samples] int64 ns; value [samples] float64.

    kept: events that told at least one number; empty: those that told none; dropped: values beside a number
    that are none.
    """

    names: list[str]
    name: np.ndarray
    at: np.ndarray
    value: np.ndarray
    kept: int
    empty: int
    dropped: int


def samples(events: Events, pid: np.ndarray, processes: list[str]) -> Samples:
    """What the counters of a trace say. pid int [events] into ``processes``, which are their names.

    A counter of one value is called by its own name, each of several "counter: value"; with its process
    where several have a counter of that name, and with its id where it has one.
    """
    places = np.flatnonzero(events.phase == ord("C"))
    at = events.ts[places].tolist()
    counters, processes_of, ids = (c[places].tolist() for c in (events.name, pid, events.id))
    owners: dict[int, set[int]] = {}
    for counter, process in set(zip(counters, processes_of, strict=True)):
        owners.setdefault(counter, set()).add(process)
    series: dict[str, int] = {}
    known: dict[tuple[int, int, int], dict[tuple[str, bool], int]] = {}
    name: list[int] = []
    times: list[int] = []
    values: list[float] = []
    kept = dropped = 0
    whose = zip(counters, processes_of, ids, strict=True)
    for who, time, args in zip(whose, at, _args(events, places.tolist()), strict=True):
        names = known.setdefault(who, {})
        before, alone = len(name), len(args) == 1
        for key, value in args.items():
            number = _number(value)
            if number is None:
                continue
            code = names.get((key, alone), -1)
            if code < 0:
                words = _series(events, who[0], who[2], key, alone)
                if len(owners[who[0]]) > 1:
                    words += f" ({processes[who[1]] or 'no process'})"
                code = names[key, alone] = series.setdefault(words, len(series))
            name.append(code)
            times.append(time)
            values.append(number)
        if len(name) > before:
            kept += 1
            dropped += len(args) - (len(name) - before)
    return Samples(
        list(series),
        np.array(name, dtype=np.int32),
        np.array(times, dtype=np.int64),
        np.array(values, dtype=np.float64),
        kept,
        len(places) - kept,
        dropped,
    )


def _args(events: Events, places: list[int]) -> list[dict[str, Any]]:
    """The args of these events, all decoded at once; {} for those that have none or no object."""
    texts = [events.kept.get(place, b"{}") for place in places]
    return value_of(b"[" + b",".join(texts) + b"]")


def _series(events: Events, counter: int, identity: int, key: str, alone: bool) -> str:
    """What one value of a counter is called; ``alone``: whether it has no other."""
    words = text = events.names[counter] if counter >= 0 else "counter"
    if identity >= 0:
        words += f"[{events.ids[identity]}]"
    return words if alone and key in ("value", text) else f"{words}: {key}"


def _number(value: Any) -> float | None:
    """The number that a value is, or that its text says; None for what is none, or is not finite."""
    if type(value) not in (int, float, str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
