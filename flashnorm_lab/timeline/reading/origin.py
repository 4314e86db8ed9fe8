"""Goes back to the file: which kind of file it is, and a span's whole event as it stands there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ...errors import LabError
from ..nsys import refuse_report
from .text import SQLITE, read_head, read_text
from .values import value_of
from .walk import Walk

if TYPE_CHECKING:
    from ..table import Timeline

OWN = re.compile(r'"format"\s*:\s*"flashnorm_lab timeline"')
_exactly = msgspec.json.Decoder(float_hook=Decimal)
_raws = msgspec.json.Decoder(list[msgspec.Raw])


def kind_of(path: str | PathLike[str]) -> str:
    """What a file is, by its first bytes: "nsight" (an SQLite database), "own" (an export of this lab), else
    "chrome", which is what any other text is taken for until it is read.

    ``LabError`` for a file that cannot be read, and for an Nsight Systems report, with the export command.
    """
    head = read_head(path)
    refuse_report(path)
    if head.startswith(SQLITE):
        return "nsight"
    return "own" if OWN.search(head.decode(errors="replace").split('"traceEvents"')[0]) else "chrome"


def details(timeline: Timeline, span: int) -> dict[str, Any]:
    """The event that a span was read from, with its args and all, as its file has it; of an Nsight Systems
    export the whole row, with its "table".

    Numbers with a point or an exponent are `decimal.Decimal`, digit for digit. ``LabError`` if the timeline
    was not read from a file, or the file is gone or was changed since, and for a span that stands for no
    single event.
    """
    if not 0 <= span < len(timeline):
        raise LabError(f"there is no span {span} in this timeline; there are {len(timeline)}")
    file = _file_of(timeline.meta, timeline.lanes[timeline.lane[span]].name)
    place = int(timeline.origin[span])
    if not isinstance(file, dict) or place < 0:
        raise LabError(
            f"span {span} ({timeline.names[timeline.name[span]]}) stands for no event of a trace file; "
            "only what was read from a profiler's file has more to tell"
        )
    path = Path(str(file.get("path")))
    try:
        stat = path.stat()
    except OSError as error:
        raise LabError(f"{path}: the trace is no longer there ({error.strerror}); open it again") from None
    if (stat.st_size, stat.st_mtime_ns) != (file.get("bytes"), file.get("mtime_ns")):
        raise LabError(f"{path}: the trace was changed since it was read; open it again")
    if "tables" in file:
        from ..nsight import row_at  # which reads by way of this package

        return row_at(file, place)
    return event_at(path, place)


def _file_of(meta: Mapping[str, Any], lane: str) -> Any:
    """What a timeline's meta says of the file that a lane was read from; where several are merged, a lane's
    name begins with that of its own."""
    parts = meta.get("merged")
    if not isinstance(parts, dict):
        return meta.get("file")
    fits = [name for name in parts if lane.startswith(f"{name} · ")]
    name = max(fits, key=len, default="")
    return _file_of(parts[name], lane.removeprefix(f"{name} · ")) if fits else None


def event_at(path: str | PathLike[str], place: int) -> dict[str, Any]:
    """The event at that place in the list of events of a trace file, numbers as in `details`.

    ``LabError`` if there is none.
    """
    found: list[bytes] = []
    seen = 0

    def look(text: bytes) -> int:
        nonlocal seen
        events = _raws.decode(text)
        if seen <= place < seen + len(events):
            found.append(bytes(events[place - seen]))
        seen += len(events)
        return len(events)

    Walk(read_text(path, partial=True), look, partial=True).run()
    event = value_of(found[0], _exactly) if found else None
    if not isinstance(event, dict):
        raise LabError(f"{path}: there is no event {place} in it; there are {seen}")
    return event
