"""How quickly traces are opened, reported on and drawn, on this machine.

The text is a synthetic one, as torch.profiler writes it, so that everyone measures the same.
"""

from __future__ import annotations

import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import timeline
from .bench import Ratio, in_turns
from .timeline import Lane, Timeline
from .timeline.detail import Detail

EVENTS = 1_000_000
REPORTED = 200_000
PIXELS = 1600


def timelines(events: int = EVENTS, reported: int = REPORTED, rounds: int = 3) -> list[Ratio]:
    """Open a trace of so many events, report on one of ``reported``, and draw one of ``events`` spans.

    Opening is also told over what Python's own json takes to read the same text, in turns in this run.
    tools/compare_loaders.py sets it against another library's loader, each in a process of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        whole, part = Path(folder, "whole.json"), Path(folder, "part.json")
        write_kineto(whole, events)
        write_kineto(part, reported)
        measures = {
            "open": _seconds(lambda: timeline.open(whole)),
            "json": _seconds(lambda: json.loads(whole.read_bytes())),
        }
        found = in_turns(rounds, measures)
        opened = timeline.open(whole)
        smaller = timeline.open(part)
    report = [_seconds(lambda: timeline.metrics.report(smaller))() for _ in range(rounds)]
    drawn = spans(events)
    first, zooms = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        detail = Detail(drawn)
        detail.view(int(drawn.start_ns[0]), int(drawn.end_ns.max()), PIXELS)
        first.append(time.perf_counter() - start)
        zooms += _zoom(detail, drawn)
    seconds = statistics.median(found["open"])
    return [
        Ratio(
            "trace_open",
            f"seconds to open a Kineto trace of {events:,} events (median)",
            seconds,
            3.0,
            {"open_s": found["open"]},
        ),
        Ratio(
            "trace_open_json",
            "the same over what Python's json takes to read that text (medians)",
            seconds / statistics.median(found["json"]),
            None,
            {"open_s": found["open"], "json_s": found["json"]},
        ),
        Ratio(
            "trace_bytes",
            "bytes an event that the columns and texts of the opened trace hold",
            held(opened) / events,
            200.0,
            {"bytes": held(opened), "events": events},
        ),
        Ratio(
            "trace_report",
            f"seconds to report on a trace of {reported:,} events, once it is open (median)",
            statistics.median(report),
            1.0,
            {"report_s": report},
        ),
        Ratio(
            "trace_picture",
            f"seconds from {len(drawn):,} spans to what the first picture shows (median)",
            statistics.median(first),
            1.0,
            {"picture_s": first},
        ),
        Ratio(
            "trace_zoom",
            "seconds from a zoom step to what its picture shows, the longest of all steps",
            max(zooms),
            0.1,
            {"zoom_s": zooms},
        ),
    ]


def write_kineto(path: Path, events: int) -> None:
    """A trace as torch.profiler writes it: operators, launches, kernels on two streams, and their arrows."""
    with path.open("w", encoding="ascii") as file:
        file.write('{\n  "schemaVersion": 1,\n  "deviceProperties": [\n    {"id": 0, "name": "synthetic"}\n')
        file.write('  ],\n  "baseTimeNanoseconds": 1727743122000000000,\n  "traceEvents": [\n  ')
        file.write(",\n  ".join(_event(i) for i in range(events)))
        file.write('\n  ],\n  "traceName": "synthetic.json"\n}\n')


def _event(i: int) -> str:
    at, number = 3605057436108407 + i * 1777, i // 5
    ts, dur = f"{at // 1000}.{at % 1000:03d}", f"{i % 97}.{i * 7 % 1000:03d}"
    host, stream = '"pid": 4242, "tid": 4242', 7 + 6 * (number % 2)
    on_stream = f'"pid": 0, "tid": {stream}'
    match i % 5:
        case 0:
            text = (
                f'"ph": "X", "cat": "cpu_op", "name": "aten::op_{number % 61}", {host},\n    "ts": {ts}, '
                f'"dur": {dur},\n    "args": {{\n      "External id": {number},"Record function id": 0, '
                f'"Sequence number": {number}, "Fwd thread id": 0, "Ev Idx": {i}\n    }}'
            )
        case 1:
            text = (
                f'"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {host},\n    "ts": {ts}, '
                f'"dur": {dur},\n    "args": {{\n      "External id": {number}, "cbid": 211, '
                f'"correlation": {number}\n    }}'
            )
        case 2:
            text = f'"ph": "s", "id": {number}, {host}, "ts": {ts},\n    "cat": "ac2g", "name": "ac2g"'
        case 3:
            text = (
                f'"ph": "X", "cat": "kernel", "name": "void kernel_{number % 83}<float>(float*)", '
                f'{on_stream},\n    "ts": {ts}, "dur": {dur},\n    "args": {{\n      '
                f'"External id": {number}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, '
                f'"correlation": {number}, '
                '"registers per thread": 32, "shared memory": 1024, "blocks per SM": 4.5, '
                '"warps per SM": 36.0, "grid": [486, 1, 1], "block": [256, 1, 1], '
                '"est. achieved occupancy %": 75\n    }'
            )
        case _:
            text = (
                f'"ph": "f", "id": {number}, {on_stream}, "ts": {ts},\n    "cat": "ac2g", "name": "ac2g", '
                '"bp": "e"'
            )
    return f"{{\n    {text}\n  }}"


def spans(count: int, lanes: int = 8) -> Timeline:
    """So many kernels of 50 to 950 ns on streams that are hardly ever idle."""
    random = np.random.default_rng(0)
    each = -(-count // lanes)
    length = random.integers(50, 950, (lanes, each))
    start = np.cumsum(length + random.integers(1, 50, (lanes, each)), axis=1) - length
    lane = np.repeat(np.arange(lanes), each)[:count]
    none = np.full(count, -1)
    return Timeline(
        names=tuple(f"kernel_{i}" for i in range(64)),
        lanes=tuple(Lane(f"stream {i}", device="0") for i in range(lanes)),
        name=random.integers(0, 64, count),
        lane=lane,
        start_ns=start.ravel()[:count] + 1_700_000_000 * 10**9,
        duration_ns=length.ravel()[:count],
        launch=none,
        category=np.full(count, timeline.CATEGORIES.index("kernel")),
        step=none,
        outcome=np.zeros(count, dtype=np.int64),
        edge_source=np.empty(0, dtype=np.int64),
        edge_target=np.empty(0, dtype=np.int64),
        edge_name=np.empty(0, dtype=np.int64),
        meta={"provenance": "modelled"},
    )


def held(t: Timeline) -> int:
    """Bytes in a timeline's columns, names and lanes."""
    arrays = sum(value.nbytes for value in vars(t).values() if isinstance(value, np.ndarray))
    return arrays + sum(len(name.encode(errors="replace")) + 50 for name in t.names) + 200 * len(t.lanes)


def _zoom(detail: Detail, t: Timeline) -> list[float]:
    """Seconds of each step from the whole to a few spans, halving what is in view."""
    begin, width = int(t.start_ns.min()), int(t.end_ns.max() - t.start_ns.min())
    taken = []
    while width > 5000:
        width //= 2
        begin += width // 3
        start = time.perf_counter()
        detail.view(begin, begin + width, PIXELS)
        taken.append(time.perf_counter() - start)
    return taken


def _seconds(do: Callable[[], Any]) -> Callable[[], float]:
    def run() -> float:
        gc.collect()
        start = time.perf_counter()
        do()
        return time.perf_counter() - start

    return run
