"""What is said of an Nsight Systems export besides its spans: whose it is, what it lacks or leaves out."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from ..nsys import ACTIVITY, Export
from ..table import Timeline
from .lanes import Lanes
from .tables import Rows

_ASIDE = re.compile(
    r"StringIds|ENUM_.*|TARGET_INFO_.*|META_DATA_.*|EXPORT_META_DATA|ANALYSIS_.*|sqlite_.*|ThreadNames|"
    r"PROCESSES|ProcessStreams|PROCESS_STREAMS|NVTX_PAYLOAD_.*|DIAGNOSTIC_EVENT|.*_CALLCHAINS|MODULES|SYMBOLS",
    re.IGNORECASE,
)
"""Tables that hold no events of their own: names, settings, and details of events."""
_WARNINGS = 3
"""Of the profiler's own warnings, how many are repeated."""


def count_others(export: Export, found: Rows, read: set[str]) -> None:
    """Count the rows of every table that is not read here."""
    for table in export.columns:
        count = 0 if table in read or _ASIDE.fullmatch(table) else export.count(table)
        if count:
            found.left_out[f"rows of {table}"] += count
            found.total += count


def what_lacks(export: Export, timeline: Timeline) -> list[str]:
    """Notes on what the figures will lack."""
    notes = []
    device = timeline.on_device()
    launches = int((~device & timeline.is_category("launch", "graph")).sum())
    if launches and not (device & timeline.is_category("kernel", "graph")).any():
        empty = export.find(f"{ACTIVITY}KERNEL")
        why = "its table of kernels is empty" if empty else f"it has no table {ACTIVITY}KERNEL"
        notes.append(
            f"the export holds {launches} launches, but no kernel that ran ({why}), so no busy time can be "
            "told; record with nsys profile --trace=cuda, and export anew"
        )
    calls = ~device & ~timeline.is_category("range", "mark", "other")
    if len(timeline.operations()) and not calls.any():
        notes.append("the export holds no call of the runtime or driver, so no launch is known")
    levels = {
        number: str(label).lower()
        for number, label in export.rows("ENUM_DIAGNOSTIC_SEVERITY_LEVEL", "id", "label")
    }
    # Lost events make every figure too small, and the profiler says so here.
    warned = Counter(
        " ".join(str(text).split())
        for severity, text in export.rows("DIAGNOSTIC_EVENT", "severity", "text")
        if text and levels.get(severity, "").startswith(("warn", "err", "fatal"))
    )
    for text, count in warned.most_common(_WARNINGS):
        often = f" ({count} times)" if count > 1 else ""
        notes.append(f"Nsight Systems warned{often}: {text[:200]}")
    if len(warned) > _WARNINGS:
        notes.append(f"Nsight Systems gave {len(warned) - _WARNINGS} more warnings (table DIAGNOSTIC_EVENT)")
    return notes


def meta_of(export: Export, found: Rows, lanes: Lanes, source: str) -> dict[str, Any]:
    """The timeline's meta, with what may be empty in it."""
    said = export.meta()
    gpus = [
        str(name)
        for table in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_GPU")
        for (name,) in export.rows(table, "name")
        if name
    ]
    versions = {
        "nsight_systems": said.get("EXPORT_PRODUCT_VERSION", ""),
        "schema": said.get("EXPORT_SCHEMA_VERSION", ""),
    }
    began = [
        at for (at,) in export.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs") if isinstance(at, int)
    ]
    return {
        "device": ", ".join(dict.fromkeys(gpus)),
        "provenance": "recorded",
        "source": source,
        "file": export.file | {"tables": [list(table) for table in found.tables]},
        "versions": {key: value for key, value in versions.items() if value},
        "session_start_ns": began[0] if began else 0,
        "streams": lanes.stream_kinds(export),
        "events": found.total,
        "rows": {what: n for what, n in found.rows.items() if n},
        "left_out": {what: n for what, n in found.left_out.items() if n},
        "notes": found.notes,
    }
