"""What several verbs share: options, the schedule that they ask for, and how counts are told."""

import argparse
from collections.abc import Mapping
from typing import Any

from ..errors import LabError


def add_race_options(parser: argparse.ArgumentParser) -> None:
    """Add --drop, --force, --device and --json."""
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
        help="make the race go wrong in every step, or hold one launch until another is done",
    )
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (default), cuda, opencl, or opencl:NAME for part of a device's name",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def race_schedule(options: argparse.Namespace) -> Any:
    """The schedule that --schedule, --tokens, --n, --k, --spin and --drop ask for."""
    from .. import schedule

    if options.spin and options.schedule != "deferred":
        raise LabError(f"--spin goes with the deferred schedule, not with {options.schedule}")
    extra = {"spin": options.spin} if options.schedule == "deferred" else {}
    built = schedule.build(options.schedule, options.tokens, options.n, options.k, **extra)
    return built.without(*options.drop)


def counts(numbers: Mapping[str, int]) -> str:
    """ "3 fresh, 1 stale, 0 torn"."""
    return ", ".join(f"{number} {label}" for label, number in numbers.items())
