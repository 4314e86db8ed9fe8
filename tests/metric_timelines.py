"""Timelines for the tests of the metrics: random ones, odd ones, and spans as plain rows for slow loops."""

import gzip
import json
import random
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from flashnorm_lab.timeline import CATEGORIES, Timeline, TimelineBuilder
from flashnorm_lab.timeline import open as open_timeline

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases" / "traces"
real = pytest.mark.skipif(
    not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)
SEEDS = range(12)
WORK = ("kernel", "copy", "fill", "graph")
ENQUEUES = ("launch", "copy", "fill", "graph")


@dataclass(frozen=True)
class Row:
    """A span as plain values."""

    index: int
    name: str
    lane: str
    device: str | None
    start: int
    end: int
    category: str
    launch: int
    step: int

    @property
    def ns(self) -> set[int]:
        """Every nanosecond in which it runs."""
        return set(range(self.start, self.end))


def rows(t: Timeline) -> list[Row]:
    found = []
    for i in range(len(t)):
        lane = t.lanes[t.lane[i]]
        found.append(
            Row(
                i,
                t.names[t.name[i]],
                lane.name,
                lane.device if lane.kind == "device" else None,
                int(t.start_ns[i]),
                int(t.start_ns[i] + t.duration_ns[i]),
                CATEGORIES[t.category[i]],
                int(t.launch[i]),
                int(t.step[i]),
            )
        )
    return found


def operations(t: Timeline) -> list[Row]:
    return [row for row in rows(t) if row.device is not None and row.category in WORK]


def call_of(t: Timeline) -> dict[int, Row]:
    """The host call of each operation that has one, by the operation's index."""
    calls = {}
    for row in sorted(rows(t), key=lambda row: (row.start, row.index)):
        if row.device is None and row.category in (*ENQUEUES, "call", "synchronize", "record", "wait"):
            calls.setdefault(row.launch, row)
    return {op.index: calls[op.launch] for op in operations(t) if op.launch >= 0 and op.launch in calls}


def enqueued(t: Timeline) -> dict[int, int]:
    """When each operation with a call was enqueued, by the rule that the answers state."""
    calls, ops = call_of(t), {op.index: op for op in operations(t)}
    at = {}
    for index, call in calls.items():
        by = call.end
        if ops[index].category in ("copy", "fill") and call.end >= ops[index].end:
            by = call.start
        at[index] = min(by, min(ops[i].start for i, other in calls.items() if other == call))
    return at


def random_timeline(seed: int) -> Timeline:
    """Up to two devices, three streams and two threads, graphs, lost launches, operations of 0 ns, delays
    below zero, edges and steps: what a trace can hold, within 300 ns, so that coincidences are frequent."""
    choose = random.Random(seed)
    build = TimelineBuilder()
    threads = [build.lane(f"thread {i}", "host") for i in range(choose.randint(1, 2))]
    lanes = [
        build.lane(f"device {d} stream {s}", "device", device=str(d))
        for d in range(choose.randint(1, 2))
        for s in range(choose.randint(1, 3))
    ]
    ops = []
    for number in range(choose.randint(5, 25)):
        kind = choose.choice(["kernel", "kernel", "kernel", "copy", "fill", "graph"])
        start, took, step = choose.randrange(250), choose.choice([0, 1, 3, 8, 40]), choose.randrange(-1, 3)
        calls = 0 if choose.random() < 0.15 else 1
        if calls:
            call = {"kernel": "launch", "graph": "graph"}.get(kind, kind)
            name = f"{call} {choose.randrange(2)}"
            build.span(name, choose.choice(threads), start, took, call, launch=number, step=step)
        for _ in range(choose.randint(0, 4) if kind == "graph" else choose.choice([0, 1, 1, 1, 1])):
            begin = start + choose.choice([-2, 0, 2, 5, 30, 60])
            lane = choose.choice(lanes)
            work = "kernel" if kind == "graph" else kind
            name = choose.choice(["ampere_sgemm_128x64_nn", "rms_norm_kernel", "ncclDevKernel_AllReduce"])
            took = choose.choice([0, 1, 2, 5, 12, 30])
            ops.append(build.span(name, lane, begin, took, work, launch=number, step=step))
    build.span("around", lanes[0], 0, 300, "range")
    build.span("waits", lanes[0], 10, 20, "wait")
    build.span("around", threads[0], 0, 300, "range")
    for _ in range(6 if len(ops) > 2 else 0):
        source, target = choose.sample(ops, 2)
        build.edge(source, target, "event", choose.choice(["order", "order", "flow"]))
    return build.build()


def odd_timelines() -> dict[str, Timeline]:
    """Timelines with next to nothing in them."""
    found = {"empty": TimelineBuilder().build()}
    build = TimelineBuilder()
    build.lane("host", "host")
    build.lane("stream 7", "device", device="0")
    found["lanes without spans"] = build.build()
    build = TimelineBuilder()
    build.span("cudaLaunchKernel", "host", 5, 10, "launch", launch=1, step=0)
    found["host only"] = build.build()
    build = TimelineBuilder()
    build.span("k", "stream 7", 5, 10, "kernel", launch=1)
    build.span("k", "stream 7", 20, 10, "kernel", launch=2)
    found["device only, no launches"] = build.build()
    build = TimelineBuilder()
    build.span("k", "stream 7", 5, 10, "kernel")
    found["one span"] = build.build()
    build = TimelineBuilder()
    for i in range(5):
        build.span("cudaLaunchKernel", "host", 10 * i, 0, "launch", launch=i)
        build.span("k", f"stream {i % 2}", 10 * i + 5, 0, "kernel", launch=i)
    found["all of 0 ns"] = build.build()
    build = TimelineBuilder()
    build.span("step", "host", 0, 100, "range")
    build.span("around", "stream 7", 0, 100, "range")
    build.span("here", "host", 3, 0, "mark")
    found["ranges and marks only"] = build.build()
    return found


class RawOperation(NamedTuple):
    start: int
    end: int
    correlation: int
    stream: object
    category: str
    name: str


class RawCall(NamedTuple):
    name: str
    start: int
    took: int


class Case(NamedTuple):
    """A real trace as the library reads it, and as the json module and plain loops do, in nanoseconds."""

    timeline: Timeline
    operations: list[RawOperation]
    calls: dict[int, RawCall]


@cache
def real_case(name: str) -> Case:
    """The real trace of this name; calls by their correlation."""
    path = next(CASES.glob(f"{name}*"))
    data = path.read_bytes()
    trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=Decimal)
    operations, calls = [], {}
    for e in trace["traceEvents"]:
        if e.get("ph") != "X":
            continue
        category, name, args = e.get("cat"), e["name"], e.get("args", {})
        start, took, number = int(e["ts"] * 1000), int(e["dur"] * 1000), args.get("correlation", -1)
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            row = RawOperation(start, start + took, number, args.get("stream"), category, name)
            operations.append(row)
        elif category in ("cuda_runtime", "cuda_driver"):
            calls[number] = RawCall(name, start, took)
    return Case(open_timeline(path), operations, calls)


def plain_union(intervals: list[tuple[int, int]]) -> int:
    """The length of the union of intervals, one by one."""
    total, reach = 0, None
    for start, end in sorted(intervals):
        if reach is None or start > reach:
            total, reach = total + end - start, end
        elif end > reach:
            total, reach = total + end - reach, end
    return total
