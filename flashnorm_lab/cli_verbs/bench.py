"""Measure the lab's own speed on this machine: decoding, replaying, judging hazards, traces, importing.

Every figure is a ratio or a difference of two sides that took turns in this very run, except the cost of a
verdict, which is microseconds a launch, and the seconds and bytes that a trace takes.
"""

import argparse
import json
from typing import Any

from . import speak


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to measure on, and the output's options."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="NAME",
        help="auto (default), cuda, opencl, or opencl:NAME for part of a device's name",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="a Hugging Face id or a folder (default: SmolLM2-135M-Instruct)"
    )
    parser.add_argument("--threads", type=int, metavar="N", help="torch's threads (default: its own choice)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few rounds and a tiny random model: tries the benchmark, says nothing of speed",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(options: argparse.Namespace) -> int:
    """Measure and print each figure with its target; returns 0, also where a target is missed."""
    from .. import bench, bench_timelines, decoding, devices, models

    threads = speak.set_threads(options.threads)
    device = devices.get(options.device)
    if options.quick:
        model, tokenizer, name = *bench.tiny_model(), "a tiny random Llama"
        sizes: dict[str, dict[str, int]] = {
            "decode": {"tokens": 3, "rounds": 2},
            "replay": {"steps": 10, "rounds": 3},
            "verdicts": {"launches": 1000},
            "traces": {"events": 2000, "reported": 1000, "rounds": 2},
            "import": {"rounds": 3},
        }
    else:
        loaded = models.smollm2(options.model)
        model, tokenizer, name = loaded.model, loaded.tokenizer, loaded.name
        sizes = {"decode": {}, "replay": {}, "verdicts": {}, "traces": {}, "import": {}}
    decoding.move(model, device)
    ratios = bench.decode(model, tokenizer, device, **sizes["decode"])
    left_out = {}
    if device.kind == "opencl":
        ratios += bench.replay(device, **sizes["replay"])
    else:
        left_out["replay"] = f"it is set against pyopencl calls, and the device is {device.kind}"
    ratios += bench.verdicts(**sizes["verdicts"])
    ratios += bench_timelines.timelines(**sizes["traces"])
    ratios.append(bench.import_time(**sizes["import"]))
    if options.json:
        print(json.dumps(_as_dict(device, name, threads, options.quick, ratios, left_out)))
        return 0
    print(f"device  {device.name} (measured; {device.reason})")
    print(f"model   {name}, {speak.threads_text(threads)}")
    for ratio in ratios:
        print(f"\n{ratio.name:<18} {ratio.value:.3f}  {_against(ratio)}\n  {ratio.definition}")
    for what, why in left_out.items():
        print(f"\n{what} was not measured: {why}")
    return 0


def _as_dict(
    device: Any, model: str, threads: int, quick: bool, ratios: list[Any], left_out: dict[str, str]
) -> dict[str, Any]:
    return {
        "device": device.describe(),
        "provenance": "measured",
        "model": model,
        "threads": threads,
        "quick": quick,
        "ratios": {ratio.name: ratio.as_dict() for ratio in ratios},
        "not_measured": left_out,
    }


def _against(ratio: Any) -> str:
    if ratio.target is None:
        return "(no target)"
    sign = "at least" if ratio.at_least else "at most"
    return f"target: {sign} {ratio.target:g}, {'met' if ratio.met else 'missed'}"
