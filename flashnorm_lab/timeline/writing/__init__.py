"""Writes a timeline to a file, in any of the forms there are.

::

    from flashnorm_lab.timeline import writing

    writing.write(t, "step.json.gz")     # Chrome JSON, which `timeline.open` reads back to the nanosecond
    writing.write(t, "step.pftrace")     # Perfetto's protobuf
    writing.write(t, "step.parquet")     # a table for pandas, or "step.csv"
    writing.write(t, "step.html")        # a page that opens with no network
    writing.write(t, "step.svg")         # a picture, or "step.png"
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import LabError
from .chrome import export_chrome
from .files import check_target

if TYPE_CHECKING:
    from ..table import Timeline

__all__ = ["KINDS", "check_target", "export_chrome", "kind_of", "write"]

KINDS = {
    "chrome": (".json", ".json.gz"),
    "perfetto": (".pftrace", ".perfetto-trace", ".pftrace.gz", ".perfetto-trace.gz"),
    "csv": (".csv", ".csv.gz"),
    "parquet": (".parquet",),
    "html": (".html",),
    "svg": (".svg",),
    "png": (".png",),
}
"""What can be written, each with the endings of names that ask for it."""


def kind_of(path: str | PathLike[str]) -> str:
    """Which of `KINDS` the ending of a name asks for. ``LabError`` naming the endings there are."""
    check_target(path)
    path = Path(path)  # not what a link of that name points to
    for kind, endings in KINDS.items():
        if path.name.lower().endswith(endings):
            return kind
    endings = ", ".join(f"{ending[0]} ({kind})" for kind, ending in KINDS.items())
    ending = "".join(path.suffixes[-2:] if path.suffix.lower() == ".gz" else path.suffixes[-1:])
    raise LabError(
        f"{path}: {f'the ending {ending!r} is' if ending else 'a name with no ending is'} not known; "
        f"there are {endings}; the first three with .gz behind it too, or name the kind (kind=, in a "
        "terminal --to)"
    )


def write(
    timeline: Timeline,
    path: str | PathLike[str],
    kind: str | None = None,
    *,
    window: tuple[int, int] | None = None,
    title: str | None = None,
) -> tuple[str, ...]:
    """Write a timeline, whole or not at all; what is there under the name is replaced.

    kind: one of `KINDS`; None to go by the ending of the name. window: start and end in absolute nanoseconds,
    to write only what touches it; see `flashnorm_lab.timeline.cutting.within`. A picture and a page show that
    window. title: of a page or a picture.

    Returns what the file lacks or what else was written, a line each; the modules of this package say more.
    ``LabError``, in one line, for an ending or a kind that is not known, a window in which there is nothing,
    and a file that cannot be written.
    """
    kind = kind_of(path) if kind is None else kind
    path = check_target(path)
    if kind not in KINDS:
        raise LabError(f"kind {kind!r} is not known; there are {', '.join(KINDS)}")
    if kind in ("svg", "png"):
        from .pictures import export_picture

        return export_picture(timeline, path, kind, window, title)
    if kind == "html":
        from .page import write_page

        write_page(timeline, path, window, title)
        return ()
    if window is not None:
        from ..cutting import within

        timeline = within(timeline, window)
    if kind == "chrome":
        return export_chrome(timeline, path)
    if kind == "perfetto":
        from .perfetto import export_perfetto

        return export_perfetto(timeline, path)
    from .tables import export_csv, export_parquet

    return (export_csv if kind == "csv" else export_parquet)(timeline, path)
