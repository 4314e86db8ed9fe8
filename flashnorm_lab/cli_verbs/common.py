"""Options that `race` and `speak` share, and how counts are told."""

import argparse
from collections.abc import Mapping


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


def counts(numbers: Mapping[str, int]) -> str:
    """ "3 fresh, 1 stale, 0 torn"."""
    return ", ".join(f"{number} {label}" for label, number in numbers.items())
