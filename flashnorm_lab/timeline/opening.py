"""Opens a timeline from files, whichever kind they are."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from ..errors import LabError
from .kineto import from_kineto
from .merge import merge
from .nsight import from_nsight
from .own import read_own
from .reading import kind_of, read_events
from .table import Timeline


def open(path: str | PathLike[str], *more: str | PathLike[str], partial: bool = False) -> Timeline:
    """Read a timeline: the lab's own export (lossless), Chrome or Kineto JSON (plain or gzip), or what Nsight
    Systems exported as SQLite. The content tells which.

    more: the files of the other ranks of the run. All are then put on one clock (see `merge`), and each
    lane's name begins with its rank, or with its file where the traces do not all say their ranks, each its
    own. A rank that is there twice is noted.
    partial: read the whole events of a Chrome or Kineto JSON that was cut off, with a note of where it ends.

    Raises ``LabError``, in one line, for a file that is missing, broken, or holds nothing that can be shown,
    and for a file that is given twice.
    """
    paths = [str(each) for each in (path, *more)]
    real = [os.path.realpath(each) for each in paths]
    twice = next((each for i, each in enumerate(paths) if real[i] in real[:i]), None)
    if twice is not None:
        raise LabError(f"{twice}: this file is given twice; give the file of each rank once")
    read = [_one(each, partial) for each in paths]
    if len(read) == 1:
        return read[0]
    ranks = [t.meta.get("rank") for t in read]
    told = Counter(rank for rank in ranks if rank is not None)
    apart = len(told) == len(ranks)
    names = [f"rank {rank}" for rank in ranks] if apart else _tails(real)
    merged = merge(dict(zip(names, read, strict=True)))
    again = [
        f"{count} of the files say that they are rank {rank}; if they are of several runs, their clocks and "
        "sums do not belong together"
        for rank, count in told.items()
        if count > 1
    ]
    if not again:
        return merged
    return replace(merged, meta=merged.meta | {"notes": again + list(merged.meta.get("notes", []))})


def _tails(paths: Sequence[str]) -> list[str]:
    """Of each path the file's name, and as many of its folders as it takes to tell the paths apart."""
    parts = [Path(path).parts for path in paths]
    for most in range(1, max(map(len, parts))):
        short = [str(Path(*part[-most:])) for part in parts]
        if len(set(short)) == len(short):
            return short
    return list(paths)


def _one(path: str, partial: bool) -> Timeline:
    kind = kind_of(path)
    if kind == "own":
        return read_own(path)
    if kind == "nsight":
        return from_nsight(path)
    return from_kineto(read_events(path, partial=partial), source=path)
