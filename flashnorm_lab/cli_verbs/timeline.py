"""From a profiler's trace to an answer: report on it, compare two, convert one.

A FILE is what torch.profiler or another tool wrote as Chrome or Kineto JSON (plain or gzip), what Nsight
Systems exported as SQLite, or a timeline of this lab's own. Its content tells which.

  report FILE ...   is it launch overhead, do my streams overlap, what share is RMSNorm; then every figure,
                    with its definition. Several FILEs are the ranks of one run, put on one clock
  diff A B          what got faster or slower, appeared or went away, from A to B
  convert FILE OUT  write it for another viewer; OUT's ending says as what

docs/timelines.md has the definitions and an example. Exit status: 0 if the answer was made, even where the
trace has faults (those are told first, and --json has them as "checks"); 2 for bad use and for a file that
cannot be read.
"""

import argparse
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..errors import LabError
from . import common

UNITS = {"ns": 1, "us": 1_000, "µs": 1_000, "μs": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
TIME = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ns|us|µs|μs|ms|s)")


def time_ns(text: str) -> int:
    """ "1.5ms" as 1500000 whole nanoseconds. ``LabError`` for what is no such time."""
    found = TIME.fullmatch(text.strip())
    value = Decimal(found[1]) * UNITS[found[2]] if found else Decimal("0.5")
    if value != int(value):
        raise LabError(
            f"{text!r} is no time; give whole nanoseconds in a unit, for instance 250us, 1.5ms or 0s"
        )
    return int(value)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what can be done with a timeline, each with its options."""
    actions = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, help="report, diff or convert"
    )
    report = actions.add_parser(
        "report",
        help="answers and figures, with their definitions",
        description="Tell what a trace says: its faults first, then three short answers, then every figure.",
    )
    report.add_argument("files", nargs="+", metavar="FILE", help="a trace; several are the ranks of one run")
    report.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    _add_window(report)
    report.add_argument("--steps", action="store_true", help="list every step, and the kernels step by step")
    report.add_argument(
        "--overlap",
        nargs=2,
        metavar=("A", "B"),
        help="also tell how long A and B run at once: lanes ('stream 7'), or groups of kernels (gemm, norm, "
        "compute, copy, communication, ...)",
    )
    report.add_argument(
        "--ordered",
        nargs=2,
        metavar=("A", "B"),
        help="also tell whether an edge path orders kernel B behind kernel A, does not, or cannot be known",
    )
    _add_groups(report)
    report.add_argument("--all", action="store_true", help="leave no row of a table away")
    _add_partial(report)

    diff = actions.add_parser(
        "diff",
        help="what changed from one timeline to another of the same work",
        description="Match two timelines by name and position, and tell what got faster, slower, came, went.",
    )
    diff.add_argument("a", metavar="A", help="the trace from before")
    diff.add_argument("b", metavar="B", help="the trace from after")
    diff.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    diff.add_argument("--all", action="store_true", help="leave no row of a table away")
    _add_partial(diff)

    convert = actions.add_parser(
        "convert",
        help="write it for another viewer or a table",
        description="Write a trace in another format. docs/timelines.md tells what each keeps.",
    )
    convert.add_argument("file", metavar="FILE", help="the trace to read")
    convert.add_argument("out", metavar="OUT", help="the new file; its ending says what to write")
    _add_window(convert)
    convert.add_argument(
        "--to",
        metavar="KIND",
        help="chrome, perfetto, csv, parquet, html, svg or png, where OUT's ending does not say it",
    )
    convert.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    _add_partial(convert)


def _add_window(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--window",
        nargs=2,
        type=time_ns,
        metavar=("A", "B"),
        help="only from A to B, counted from the first span: 250us 1.5ms (ns, us, ms or s)",
    )


def _add_groups(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--groups",
        metavar="FILE",
        help="rules of your own for the group of a kernel, tried before those of data/kernel_groups.toml",
    )


def _add_partial(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partial",
        action="store_true",
        help="read what is whole of a file that was cut off, and say where it ends",
    )


def run(options: argparse.Namespace) -> int:
    """Do what was asked for; returns 0."""
    return {"report": _report, "diff": _diff, "convert": _convert}[options.action](options)


def _report(options: argparse.Namespace) -> int:
    from .. import timeline
    from ..timeline import metrics

    t = timeline.open(*options.files, partial=options.partial)
    groups = metrics.Groups.load(options.groups) if options.groups is not None else None
    told = metrics.report(
        t,
        groups=groups,
        overlap=options.overlap,
        ordered=options.ordered,
        window=_window(options, t),
        each_step=options.steps,
    )
    if options.json:
        print(json.dumps({"files": options.files, **told.as_dict()}))
    else:
        print(told.text(None if options.all else metrics.reporting.ROWS))
    return 0


def _diff(options: argparse.Namespace) -> int:
    from .. import timeline
    from ..timeline import metrics
    from ..timeline.metrics.layout import section, shown, wrapped

    told = metrics.diff(*(timeline.open(path, partial=options.partial) for path in (options.a, options.b)))
    if options.json:
        print(json.dumps({"a": options.a, "b": options.b, **told.as_dict()}))
    else:
        print(f"A  {shown(options.a)}\nB  {shown(options.b)}\n")
        most = None if options.all else metrics.reporting.ROWS
        lines = "\n".join(wrapped(line, "- ") for line in told.lines())
        print(section(told, most, *([lines] if lines else []), spare=metrics.reporting.SPARE))
    return 0


def _convert(options: argparse.Namespace) -> int:
    from .. import timeline
    from ..timeline import cutting, writing
    from ..timeline.metrics.layout import shown

    common.check_new(options.out, options.out, options.file)
    if options.to not in (None, *writing.KINDS):
        raise LabError(f"--to {options.to}: there is no such kind; there are {', '.join(writing.KINDS)}")
    kind = options.to or writing.kind_of(options.out)
    if kind in ("csv", "parquet"):
        from ..timeline.writing.tables import beside

        for path in beside(options.out):
            common.check_new(str(path), str(path), options.file)
    t = timeline.open(options.file, partial=options.partial)
    window = _window(options, t)
    said = writing.write(t, options.out, kind, window=window)
    spans = len(t if window is None else cutting.within(t, window))
    told = {"path": options.out, "kind": kind, "bytes": Path(options.out).stat().st_size, "spans": spans}
    if options.json:
        print(json.dumps({**told, "said": list(said), "notes": list(t.notes)}))
        return 0
    print(f"wrote  {shown(options.out)} ({kind}): {spans:,} spans, {told['bytes']:,} bytes")
    for line in (*t.notes, *said):
        print(f"note   {shown(line)}")
    return 0


def _window(options: argparse.Namespace, t: Any) -> tuple[int, int] | None:
    """The window that was asked for, in absolute nanoseconds."""
    from ..timeline.cutting import extent

    if options.window is None:
        return None
    first, last = extent(t)
    start, end = options.window
    if start >= last - first:
        raise LabError(
            f"--window: {start} ns is behind the end of the timeline, which lasts {last - first} ns; "
            "give times counted from its first span"
        )
    if end <= start:
        raise LabError(f"--window: it would end at {end} ns, not after its start at {start} ns")
    return first + start, first + end
