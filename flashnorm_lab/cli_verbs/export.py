"""Record a race, or one decode step of the model, and write its timeline for Perfetto.

The file is Chrome trace JSON: one track for the host and one for each stream, an arrow for every edge, and
times exact to the nanosecond.
"""

import argparse
import json
from typing import Any

from ..errors import LabError
from . import common, speak

RACE = {"steps": 8, "tokens": 1, "n": 576, "k": 960, "spin": 0, "seed": 0}
TOKEN = {"prompt": None, "sites": [], "model": None, "threads": None, "at": 1}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add where to, what, the wiring's options, and those of a race and of a decode step."""
    parser.add_argument("--out", required=True, metavar="PATH", help="the file to write, e.g. step.json")
    parser.add_argument(
        "--what",
        choices=("race", "token"),
        default="race",
        help="one norm-projection's steps (default), or the model's decode step",
    )
    parser.add_argument("--schedule", default="deferred", help="sequential, fused or deferred (default)")
    common.add_race_options(parser)
    race = parser.add_argument_group("with --what race")
    race.add_argument("--steps", type=int, metavar="N", help="steps to record (default: 8)")
    race.add_argument("--tokens", type=int, metavar="N", help="rows of x (default: 1)")
    race.add_argument("--n", type=int, help="input width (default: 576, SmolLM2-135M)")
    race.add_argument("--k", type=int, help="output width (default: 960, its QKV)")
    race.add_argument(
        "--spin", type=int, metavar="N", help="iterations of a busy kernel in front of the product"
    )
    race.add_argument("--seed", type=int, help="seed of the random inputs (default: 0)")
    token = parser.add_argument_group("with --what token")
    speak.add_speech_options(token)
    token.add_argument(
        "--at",
        type=int,
        metavar="N",
        help="the token whose decode step is recorded, from 1 (default: 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Record, write, and tell how to open what was written; returns 0."""
    from ..timeline.writing.files import check_target

    own, other = (RACE, TOKEN) if options.what == "race" else (TOKEN, RACE)
    for name in other:
        if getattr(options, name) not in (None, []):
            what = "token" if options.what == "race" else "race"
            raise LabError(f"--{name} goes with --what {what}, not with --what {options.what}")
    for name, default in own.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    check_target(options.out)
    timeline = _race(options) if options.what == "race" else _token(options)
    timeline.export_chrome(options.out)
    spans, edges = len(timeline), len(timeline.edge_source)
    if options.json:
        told = {
            "path": options.out,
            "spans": spans,
            "edges": edges,
            "provenance": timeline.meta["provenance"],
        }
        print(json.dumps({**told, "meta": timeline.meta}))
        return 0
    print(f"wrote      {options.out}: {spans} spans, {edges} edges, measured on {timeline.meta['device']}")
    print("to open    https://ui.perfetto.dev: Open trace file; or chrome://tracing: Load")
    return 0


def _race(options: argparse.Namespace) -> Any:
    from .. import devices, race

    built = common.race_schedule(options)
    device = devices.get(options.device)
    return race.run(device, built, options.steps, options.force, options.seed).timeline


def _token(options: argparse.Namespace) -> Any:
    if options.at < 1:
        raise LabError(f"--at {options.at}: decode steps are numbered from 1")
    speaker = speak.Speaker(options)
    with speaker.attached:
        speaker.write(options.at + 1, options.at, lambda text: None)
    if speaker.timeline is None:
        raise LabError(f"the text ended before token {options.at}; ask for an earlier one")
    return speaker.timeline
