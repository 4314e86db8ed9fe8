"""Nsight Systems exports (``.sqlite``) as timelines: calls, kernels, copies, NVTX ranges, waits.

Every row of a table of events is a span, or is in the timeline in another way, or is counted:
``len(t) + sum(t.meta["rows"].values()) + sum(t.meta["left_out"].values())`` is ``t.meta["events"]`` (rows
and left_out are not in ``meta`` where they would be empty).
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from ...errors import LabError
from ..nsys import Export
from ..table import Timeline
from .convert import timeline_of


def from_nsight(path: str | PathLike[str]) -> Timeline:
    """A timeline from an SQLite export of Nsight Systems, 2021 to 2026.

    Spans are calls of the CUDA runtime and driver (judged by their names, which go without CUDA's version:
    "cudaLaunchKernel"), kernels, copies, fills, whole graphs (where graphs were traced as a whole; else their
    kernels, whose call is the graph's launch), synchronizations as the profiler tells of them, NVTX ranges
    ("domain:text" outside of the default domain) and marks, and the profiler's own overhead ("other").

    Lanes: a host thread each ("host" if one thread makes all calls), the ranges that are started and ended
    (which belong to no thread) on one lane a process, then one for each stream: "stream 7", with "device 1"
    and "context 2" before it where there are several. ``meta["streams"]`` says of what kind streams are
    ("blocking", "non-blocking", "legacy" for the null stream), as far as the file does.

    ``launch`` is the correlation number, made unique over processes where there are several. ``step`` comes
    from NVTX ranges "step 3" or "ProfilerStep#3": of host rows by their start, of device work by its call.
    Times are the file's own nanoseconds, which begin with the recording: ``meta["session_start_ns"]`` says
    when that was, where the file does. ``origin`` numbers the rows of the tables in
    ``meta["file"]["tables"]``; `reading.details` goes back to a span's row.

    Edges of kind "order" are the waits of streams of which the record is sure; the others are counted in
    ``meta["edges_unknown"]``. ``meta`` also has device, provenance, source, file, versions, events (rows in
    all tables of events), rows (those that are in the timeline in another way than as a span of their own),
    left_out (those that are not in it, by table), notes. Entries that would be empty are left away.

    Raises ``LabError``, in one line, for a file that is damaged, no such export, or holds nothing to show.
    """
    with Export(path) as export:
        return timeline_of(export, str(path))


def row_at(file: Mapping[str, Any], place: int) -> dict[str, Any]:
    """The whole row of that number, with the name of its table under "table".

    file: a timeline's ``meta["file"]``; place: a span's ``origin``. ``LabError`` if the file is gone or was
    changed since, and if it has no such row.
    """
    with Export(file["path"]) as export:
        if any(export.file[key] != file.get(key) for key in export.file):
            raise LabError(f"{file['path']}: the export was changed since it was read; open it again")
        for table, first, count in file["tables"]:
            if first <= place < first + count:
                return {"table": table} | export.row(table, place - first)
    raise LabError(f"{file['path']}: there is no row {place} in it")


__all__ = ["from_nsight", "row_at"]
