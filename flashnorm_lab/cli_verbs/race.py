"""Run a schedule many times on a device and tell which steps read fresh, stale or torn data.

The inputs are random and every step has its own, so that an old result is told from a new one. The
hazards come from the schedule alone; fresh, stale and torn are what this run measured.
"""

import argparse
import json

from ..errors import LabError
from . import common


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the schedule's, the run's and the output's options."""
    parser.add_argument("--schedule", default="deferred", help="sequential, fused or deferred (default)")
    common.add_race_options(parser)
    parser.add_argument("--steps", type=int, default=32, metavar="N", help="steps to run (default: 32)")
    parser.add_argument("--tokens", type=int, default=1, metavar="N", help="rows of x (default: 1)")
    parser.add_argument("--n", type=int, default=576, help="input width (default: 576, SmolLM2-135M)")
    parser.add_argument("--k", type=int, default=960, help="output width (default: 960, its QKV)")
    parser.add_argument(
        "--spin",
        type=int,
        default=0,
        metavar="N",
        help="iterations of a busy kernel in front of the product, to widen the window",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random inputs (default: 0)")
    parser.add_argument(
        "--nvtx",
        action="store_true",
        help="push NVTX ranges and record nothing, for a run under `nsys profile`",
    )
    parser.add_argument("--export", metavar="PATH", help="write the timeline as Chrome JSON, for Perfetto")


def run(options: argparse.Namespace) -> int:
    """Run the race and print what came of it; returns 0."""
    from .. import devices, race
    from ..timeline.chrome import check_target

    if options.export is not None:
        check_target(options.export)
    if options.export and options.nvtx:
        raise LabError("--export goes without --nvtx, which leaves the recording to another profiler")
    built = common.race_schedule(options)
    device = devices.get(options.device)
    result = race.run(
        device,
        built,
        options.steps,
        options.force,
        options.seed,
        record=not options.nvtx,
        annotate=options.nvtx,
    )
    if options.export:
        result.timeline.export_chrome(options.export)
    if options.json:
        print(json.dumps(result.as_dict()))
        return 0
    print(f"device    {device.name} (measured; {device.reason})")
    print(f"schedule  {str(built).splitlines()[0]}")
    print("hazards   none" if not result.hazards else "hazards")
    for hazard in result.hazards:
        print(f"  {hazard.explain()}")
    if options.force:
        print(f"forced    {_forced(result.force)}")
    print(f"result    {common.counts(result.counts)} of {options.steps} steps")
    if options.export:
        print(f"timeline  {options.export}")
    return 0


def _forced(force: object) -> str:
    if force is None:
        return "nothing: no hazard of this schedule can go wrong within a step"
    return f"{force.hold} held until {force.until} is done"
