"""Opens a timeline from files, whichever kind they are."""

from __future__ import annotations

from os import PathLike

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
    lane's name begins with its rank, or with its file where the traces do not all say their ranks.
    partial: read the whole events of a Chrome or Kineto JSON that was cut off, with a note of where it ends.

    Raises ``LabError``, in one line, for a file that is missing, broken, or holds nothing that can be shown,
    and for a file that is given twice.
    """
    paths = [str(each) for each in (path, *more)]
    twice = next((each for i, each in enumerate(paths) if each in paths[:i]), None)
    if twice is not None:
        raise LabError(f"{twice}: this file is given twice; give the file of each rank once")
    read = [_one(each, partial) for each in paths]
    if len(read) == 1:
        return read[0]
    ranks = [t.meta.get("rank") for t in read]
    apart = None not in ranks and len(set(ranks)) == len(ranks)
    names = [f"rank {rank}" for rank in ranks] if apart else paths
    return merge(dict(zip(names, read, strict=True)))


def _one(path: str, partial: bool) -> Timeline:
    kind = kind_of(path)
    if kind == "own":
        return read_own(path)
    if kind == "nsight":
        return from_nsight(path)
    return from_kineto(read_events(path, partial=partial), source=path)
