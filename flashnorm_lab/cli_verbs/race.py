"""Run a schedule many times on a device and tell which steps read fresh, stale, torn or early data.

The inputs are random and every step has its own, so that an old result is told from a new one, and from one
of a later step. The hazards come from the schedule alone; the outcomes are what this run measured. With
--force each, every hazard is made to happen, and then forced again with its repair in place.

Exit status: 0 if the race was run, whatever came of it (--json has the counts); 2 for bad use.
"""

import argparse
import json
from typing import Any

from ..errors import LabError
from . import common


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the schedule's, the run's and the output's options."""
    parser.add_argument("--schedule", default="deferred", help="sequential, fused or deferred (default)")
    common.add_race_options(
        parser,
        " (HOLD:UNTIL+N: of N steps later; 'each': every hazard in turn, then again with its repair)",
    )
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
    parser.add_argument(
        "--ahead",
        action="store_true",
        help="copy x on the matrix stream, ahead of main: a later step's data may then come too early",
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
    from ..timeline.writing.files import check_target

    if options.export is not None:
        check_target(options.export)
    if options.export and options.nvtx:
        raise LabError("--export goes without --nvtx, which leaves the recording to another profiler")
    each = options.force == "each"
    if each and (options.export or options.nvtx):
        raise LabError("--force each makes many runs; --export and --nvtx go with one")
    built = common.race_schedule(options)
    device = devices.get(options.device)
    if each:
        return _force_each(device, built, options)
    if options.force not in (None, "worst"):
        _check_span(devices.Force.parse(options.force), options.steps)
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
    _print_head(device, built, result.hazards)
    if options.force:
        print(f"forced    {_forced(result.force)}")
    print(f"result    {common.counts(result.counts)} of {options.steps} steps")
    if options.export:
        print(f"timeline  {options.export}")
    return 0


def _force_each(device: Any, built: Any, options: argparse.Namespace) -> int:
    """Prove every hazard on the device, one by one; returns 0."""
    from .. import hazards, race

    found = hazards.find(built)
    for force in race.forces(built).values():
        _check_span(force, options.steps)
    proofs = [
        race.prove(device, built, hazard, options.steps, options.seed, record=False) for hazard in found
    ]
    if options.json:
        told = {"device": device.describe(), "provenance": "measured", "schedule": built.name}
        told |= {"dropped": list(built.dropped), "hazards": [hazard.as_dict() for hazard in found]}
        print(json.dumps({**told, "proofs": [proof.as_dict() for proof in proofs]}))
        return 0
    _print_head(device, built, found)
    if not proofs:
        print("forced    nothing: there is no hazard")
        return 0
    back = ", ".join(e for e in built.dropped if e in proofs[0].repaired.schedule.edges)
    print(f"forced    one by one, {options.steps} steps each; then the same with {back} put back")
    for proof in proofs:
        print(
            f"  {_forced(proof.force)}: {common.counts(proof.wrong.counts)}; "
            f"repaired: {common.counts(proof.repaired.counts)}"
        )
    return 0


def _check_span(force: Any, steps: int) -> None:
    if 0 < steps < force.steps:
        runs = f"{steps} run{'s' * (steps == 1)}"
        raise LabError(
            f"--force: {force} spans {force.steps} steps, and {runs}; give --steps {force.steps} or more"
        )


def _print_head(device: Any, built: Any, found: Any) -> None:
    print(f"device    {device.name} (measured; {device.reason})")
    print(f"schedule  {str(built).splitlines()[0]}")
    print("hazards   none" if not found else "hazards")
    for hazard in found:
        print(f"  {hazard.explain()}")


def _forced(force: Any) -> str:
    if force is None:
        return "nothing: no hazard of this schedule can go wrong within a step"
    return f"{force.hold} held until {force.awaited} is done"
