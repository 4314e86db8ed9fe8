"""What several verbs share: options, the schedule that they ask for, and how counts are told."""

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import LabError


def add_race_options(parser: argparse.ArgumentParser, more_forces: str = "") -> None:
    """Add --drop, --force, --device and --json. ``more_forces`` ends the help of --force."""
    parser.add_argument(
        "--drop",
        action="append",
        default=[],
        metavar="EDGE",
        help="leave out fork_matrix, fork_vector, join_matrix or join_vector; repeat for more",
    )
    parser.add_argument(
        "--force",
        nargs="?",
        const="worst",
        metavar="HOLD:UNTIL",
        help="make the race go wrong in every step, or hold one launch until another is done" + more_forces,
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (default), cuda, opencl, or opencl:NAME for part of a device's name",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def race_schedule(options: argparse.Namespace) -> Any:
    """The schedule that --schedule, --tokens, --n, --k, --spin, --ahead and --drop ask for."""
    from .. import race, schedule

    if options.spin and options.schedule != "deferred":
        raise LabError(f"--spin goes with the deferred schedule, not with {options.schedule}")
    extra = {"spin": options.spin} if options.schedule == "deferred" else {}
    built = schedule.build(options.schedule, options.tokens, options.n, options.k, **extra)
    if getattr(options, "ahead", False):
        built = race.prefetched(built)
    return built.without(*options.drop)


def counts(numbers: Mapping[str, int]) -> str:
    """ "3 fresh, 1 stale, 0 torn"."""
    from .. import outcomes

    return outcomes.told(numbers)


def check_new(what: str, out: str, read: str) -> None:
    """``LabError`` unless ``out`` is a place where a new file can be written; ``what`` heads the message.

    read: the file that is read, which would be lost first of all.
    """
    from ..timeline.writing.files import check_target

    if out == "-":
        raise LabError(f"{what}: it is written to a file; give the name of a new one, or ./- for that name")
    path = Path(out)
    with contextlib.suppress(OSError):  # for instance a name that is too long, of which check_target speaks
        if path.is_file() and Path(read).exists() and path.samefile(read):
            raise LabError(f"{what}: this is the file that is read; give another name")
        if out and path.exists() and not path.is_dir():
            if not path.is_file():
                raise LabError(f"{what}: this is a device or a pipe; give the name of a file")
            raise LabError(f"{what}: there is such a file already; give another name, or remove it first")
    check_target(out)
