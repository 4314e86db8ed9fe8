"""What the reader of a file noted, and what no figure can tell of.

How much does a note matter? It is text in the timeline's meta, so that it survives every export. What
matters is whether it changes a figure: a file of which a part is missing does, a byte-order mark does not. A
note that is not known to be harmless is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..table import Timeline
from .finding import Finding, found_of, graded
from .working import Work

NOTED = "noted while reading"
"""The kind of a finding that is a note of the file's reader, word for word."""
HARMLESS = tuple(
    re.compile(rf"(?:^|: ){pattern}")
    for pattern in (
        r"the file begins with a byte-order mark$",
        r"the text is UTF-",
        r"[0-9,]+ commas behind the last entry ",
        r"[0-9,]+ values NaN or Infinity were read as text$",
        r"[0-9,]+ control characters stood unescaped within texts; ",
        r"[0-9,]+ halves of surrogate pairs were replaced by ",
        r"[0-9,]+ times are given as text; they were read as numbers$",
        r"the gzip stream has \d+ members; ",
        r"there are \d+ lists of traceEvents; the events of all were read$",
        r"[0-9,]+ places that are no \S+ text were replaced by ",
        r"kernels, copies and fills without a correlation number: \d+; the arrows ",
        r"calls that are recorded twice, with one correlation number: ",
        r"synchronizations of type .* that belong to .*; the call's name decides, ",
    )
)
"""Notes that say what was put right, or told by other means, and change no figure."""


def severity_of(note: str) -> str:
    """ "note" for what changes no figure, else "warning"."""
    return "note" if any(pattern.search(note) for pattern in HARMLESS) else "warning"


def nothing(t: Timeline, work: Work) -> Iterator[Finding]:
    if not len(t):
        yield Finding(
            "no spans", "warning", 0, None, "", (), "there is nothing here that a figure could tell of"
        )
    elif not len(work):
        meaning = "the trace has no operation of a device, so that figures of the device are empty, not zero"
        if not len(_unknown(t)):
            meaning += f"; {_remedy(t)}"
        yield Finding("no device operations", "note", 0, None, "", (), meaning)


def _remedy(t: Timeline) -> str:
    """How to record a trace that has them."""
    if "tables" in (t.meta.get("file") or {}):
        return "to have them, record with nsys profile --trace=cuda,nvtx, and export that report"
    return (
        "to have them, profile on a machine with a device, with ProfilerActivity.CUDA (for ROCm too) or .XPU "
        "among the activities"
    )


def unknown_kinds(t: Timeline, work: Work) -> Iterator[Finding]:
    other = _unknown(t)
    yield from found_of(
        t,
        "device spans of unknown kinds",
        graded(len(other), len(other) + len(work)),
        other,
        int(t.on_device().sum()),
        "device spans",
        "what they are is not known (no kernel, copy or fill by the words of the trace), so that they are in "
        "no figure, but seen in the viewer",
    )


def _unknown(t: Timeline) -> np.ndarray:
    """Device spans that nothing is known of: not even that they tell of a synchronization."""
    other = np.flatnonzero(t.on_device() & t.is_category("other"))
    strange = [name for name in np.unique(t.name[other]).tolist() if "sync" not in t.names[name].lower()]
    return other[np.isin(t.name[other], strange)]


def noted_while_reading(t: Timeline, work: Work) -> Iterator[Finding]:
    """What the reader of the file noted, and what it left out."""
    for note in t.notes:
        yield Finding(NOTED, severity_of(note), 1, None, "", (), note)
    left_out = {str(what): count for what, count in dict(t.meta.get("left_out", {})).items() if count}
    if left_out:
        most = sorted(left_out.items(), key=lambda item: -item[1])
        told = "; ".join(f"{count:,} {what}" for what, count in most[:5])
        more = f"; and {len(most) - 5} more kinds" if len(most) > 5 else ""
        meaning = f"not in any figure: {told}{more}"
        yield Finding("left out while reading", "note", sum(left_out.values()), None, "", (), meaning)
    unknown = int(t.meta.get("edges_unknown", 0) or 0)
    if unknown:
        meaning = (
            "the trace does not hold the record that these waits waited for, or does not say which it was, "
            "so an order that is not shown may still exist"
        )
        yield Finding("waits for unknown records", "note", unknown, None, "", (), meaning)
