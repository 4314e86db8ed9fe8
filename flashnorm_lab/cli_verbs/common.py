"""What several verbs share: options, the schedule that they ask for, and how counts are told."""

import argparse
from collections.abc import Mapping
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
