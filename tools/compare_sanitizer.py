"""flashnorm_lab.hazards beside PyTorch's stream sanitizer (torch.cuda._sanitizer), on the labelled corpus.

    .venv/bin/python tools/compare_sanitizer.py [--quick] [--no-cost] [--markdown]

Both judge the same schedules in one run, without a GPU: the sanitizer's own event handler is driven through
the calls that PyTorch makes to it. What of the corpus it can be told, and how, is in `expressible` and
`Driver`. A second part measures what a launch costs in both, in turns. ``--markdown`` puts the results into
docs/sanitizer_comparison.md; ``--quick`` makes the second part short, ``--no-cost`` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from torch.cuda._sanitizer import EventHandler  # noqa: E402

from flashnorm_lab import hazards, schedule_file  # noqa: E402
from flashnorm_lab.program import (  # noqa: E402
    Allocate,
    Barrier,
    BeginCapture,
    DestroyEvent,
    Free,
    HandOver,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Query,
    Record,
    Step,
    Stream,
    Synchronize,
    UserEvent,
    Wait,
    reads,
    writes,
)

CORPUS = ROOT / "tests" / "hazard_corpus"
DOCS = ROOT / "docs" / "sanitizer_comparison.md"
MARKS = {part: (f"<!-- {part}: begin -->\n", f"<!-- {part}: end -->\n") for part in ("verdicts", "cost")}


# What the sanitizer can be told


def expressible(program: Program) -> str:
    """Why the sanitizer cannot be told of a program; empty where it can.

    It hears of kernels with the start addresses they read and write, of events recorded, waited for and
    synchronized, of streams and the device synchronized, and of memory allocated and freed. PyTorch works in
    one context. It has no call for a query or for record_stream; those steps are left out for it, as they
    are when it watches a program.
    """
    kinds = {type(s) for s in program.steps}
    if (
        any(s.kind == "out-of-order" for s in program.streams.values())
        or Barrier in kinds
        or UserEvent in kinds
    ):
        return "OpenCL queues"
    if any(isinstance(s, Launch) and (s.after or s.event) for s in program.steps):
        return "OpenCL wait lists"
    if BeginCapture in kinds:
        return "graphs"
    if HandOver in kinds or len({s.thread for s in program.steps}) > 1:
        return "host threads"
    if HostRead in kinds or HostWrite in kinds:
        return "host accesses"
    if len({s.context for s in program.streams.values()}) > 1:
        return "several contexts"
    if any(isinstance(s, Allocate) and s.memory != "device" for s in program.steps):
        return "host memory"
    return ""


class Driver:
    """Tells the sanitizer's event handler what a program does, call by call as PyTorch would.

    A stream is a number, 0 for the legacy default stream. A pointer is the address at which an access
    starts; buffers lie one behind the other unless the program says where. A copy that blocks the host is a
    launch and a synchronization of its stream. Errors are collected, where PyTorch stops at the first.
    """

    def __init__(self, streams: Mapping[str, Stream], buffers: Mapping[str, int | None]) -> None:
        self.handler = EventHandler()
        self.errors: list[Any] = []
        self.streams = {
            name: 0 if s.kind == "legacy" else number for number, (name, s) in enumerate(streams.items(), 1)
        }
        for number in self.streams.values():
            self.handler._handle_stream_creation(number)
        self.events: dict[str, int] = {}
        self.addresses: dict[str, int] = {}
        self.end = 1 << 40
        for name, nbytes in buffers.items():
            self.place(name, nbytes or 1 << 20)

    def place(self, name: str, nbytes: int) -> None:
        self.addresses[name] = self.end
        self.end += nbytes + 512
        self.handler._handle_memory_allocation(self.addresses[name])

    def event(self, name: str) -> int:
        if name not in self.events:
            self.events[name] = len(self.events) + 1
            self.handler._handle_event_creation(self.events[name])
        return self.events[name]

    def feed(self, step: Step) -> None:
        handler = self.handler
        match step:
            case Launch():
                written, read = set(), set()
                for a in step.accesses:
                    (written if a.writes else read).add(self.addresses[a.buffer] + a.start)
                aliases = {pointer: [step.name] for pointer in written | read}
                stream = self.streams[step.stream]
                self.errors += handler._handle_kernel_launch(
                    stream, read - written, written, set(), step.name, aliases
                )
                if step.blocks:
                    handler._handle_stream_synchronization(stream)
            case Record():
                handler._handle_event_record(self.event(step.event), self.streams[step.stream])
            case Wait():
                handler._handle_event_wait(self.event(step.event), self.streams[step.stream])
            case Synchronize():
                if step.event is not None:
                    handler._handle_event_synchronization(self.event(step.event))
                elif step.stream is not None:
                    handler._handle_stream_synchronization(self.streams[step.stream])
                else:
                    handler._handle_device_synchronization()
            case Allocate():
                if step.address is None:
                    self.place(step.buffer, step.nbytes)
                else:
                    self.addresses[step.buffer] = step.address
                    handler._handle_memory_allocation(step.address)
            case Free():
                handler._handle_memory_deallocation(self.addresses[step.buffer])
            case DestroyEvent():
                handler._handle_event_deletion(self.event(step.event))
                del self.events[step.event]


def sanitizer_says(program: Program) -> bool:
    """Whether the sanitizer takes the program for a race."""
    driver = Driver(program.streams, program.buffers)
    for step in program.unrolled():
        driver.feed(step)
    return bool(driver.errors)


# Verdicts


@dataclass(frozen=True)
class Case:
    """One schedule of the corpus: the truth, and what each of the two says (None: it cannot be asked)."""

    topic: str
    name: str
    program: Program
    racy: bool
    ours: bool
    theirs: bool | None
    beyond: str

    @property
    def reason(self) -> str:
        """In a few words, why the sanitizer says otherwise."""
        steps = {type(s) for s in self.program.steps}
        if Free in steps:
            return "what was done with a pointer is forgotten when it is freed"
        if Allocate in steps:
            return "an allocation is told without its stream"
        if Query in steps:
            return "a query is not told"
        if self.racy:
            return "only start addresses are compared"
        return "the default stream's own order is not known"


def cases() -> list[Case]:
    """The whole corpus, judged by both."""
    found = []
    for path in sorted(CORPUS.rglob("*.json")):
        label = json.loads(path.read_text("utf-8"))
        program = schedule_file.load(path)
        beyond = expressible(program)
        theirs = None if beyond else sanitizer_says(program)
        racy, ours = bool(label["expect"]), bool(hazards.find(program))
        found.append(Case(path.parent.name, path.stem, program, racy, ours, theirs, beyond))
    return found


def counts(told: Iterable[tuple[bool, bool]]) -> list[int]:
    """True positives, false positives, true negatives, false negatives of (truth, verdict)."""
    told = list(told)
    return [told.count(pair) for pair in ((True, True), (False, True), (False, False), (True, False))]


def verdict_table(judged: Sequence[Case]) -> str:
    """The verdicts as Markdown: a line a topic and in total, and every case where the two differ."""
    lines = [
        "| topic | schedules | racy | sanitizer: true + | false + | true − | false − "
        "| hazards: true + | false + | true − | false − |",
        "| --- |" + " ---: |" * 10,
    ]
    asked = [c for c in judged if c.theirs is not None]
    topics = list(dict.fromkeys(c.topic for c in asked))
    for topic in [*topics, "**together**"]:
        some = [c for c in asked if topic in (c.topic, "**together**")]
        theirs = counts((c.racy, bool(c.theirs)) for c in some)
        ours = counts((c.racy, c.ours) for c in some)
        numbers = [len(some), sum(c.racy for c in some), *theirs, *ours]
        lines.append(f"| {topic} | " + " | ".join(map(str, numbers)) + " |")
    beyond = [c for c in judged if c.theirs is None]
    ours = counts((c.racy, c.ours) for c in beyond)
    numbers = [len(beyond), sum(c.racy for c in beyond), *["–"] * 4, *ours]
    lines.append("| what it cannot be told | " + " | ".join(map(str, numbers)) + " |")
    reasons = sorted({c.beyond for c in beyond})
    told = ", ".join(f"{reason} ({sum(c.beyond == reason for c in beyond)})" for reason in reasons)
    lines += ["", f"What it cannot be told: {told}.", ""]
    differ = [c for c in asked if c.ours != c.theirs]
    lines += [
        f"The two differ on {len(differ)} schedules:",
        "",
        "| schedule | race | sanitizer | hazards | why |",
        "| --- | --- | --- | --- | --- |",
    ]
    for c in differ:
        says = [("no", "yes")[value] for value in (c.racy, bool(c.theirs), c.ours)]
        lines.append(f"| {c.topic}/{c.name} | " + " | ".join(says) + f" | {c.reason} |")
    return "\n".join(lines) + "\n"


# What a launch costs


def hot_weight(launches: int) -> Iterator[Step]:
    """One weight that kernels on two streams read and nobody writes."""
    work = [Launch(f"head_{i}", f"s{i}", (reads("w", 0, 64), writes(f"o{i}", 0, 64))) for i in range(2)]
    for number in range(launches):
        yield work[number % 2]


def deferred(launches: int) -> Iterator[Step]:
    """The lab's deferred step, over and over: five launches and copies, four events."""
    step: list[Step] = [
        Launch("copy x", "main", (reads("tape", 0, 64), writes("x", 0, 64))),
        Record("fork_matrix", "main"),
        Wait("fork_matrix", "matrix"),
        Record("fork_vector", "main"),
        Wait("fork_vector", "vector"),
        Launch("projection", "matrix", (reads("x", 0, 64), reads("w", 0, 64), writes("y", 0, 64))),
        Record("join_matrix", "matrix"),
        Launch("inv_rms", "vector", (reads("x", 0, 64), writes("r", 0, 4))),
        Record("join_vector", "vector"),
        Wait("join_matrix", "main"),
        Wait("join_vector", "main"),
        Launch("post_scale", "main", (reads("y", 0, 64), reads("r", 0, 4), writes("z", 0, 64))),
        Launch("copy z", "main", (reads("z", 0, 64), writes("out", 0, 64))),
    ]
    for _ in range(launches // 5):
        yield from step


@dataclass(frozen=True)
class Load:
    """A stream of steps to be judged, and what it runs on."""

    name: str
    steps: Callable[[int], Iterator[Step]]
    streams: dict[str, Stream]
    buffers: dict[str, int]


LOADS = (
    Load("one weight read over and over", hot_weight, {"s0": Stream(), "s1": Stream()},
         dict.fromkeys(("w", "o0", "o1"), 64)),
    Load("the deferred step over and over", deferred, dict.fromkeys(("main", "matrix", "vector"), Stream()),
         dict.fromkeys(("tape", "x", "w", "y", "r", "z", "out"), 64)),
)  # fmt: skip


def seconds(feed: Callable[[Step], object], steps: Iterable[Step]) -> float:
    """Processor time to feed steps one by one."""
    began = time.process_time()
    for step in steps:
        feed(step)
    return time.process_time() - began


@dataclass(frozen=True)
class Cost:
    """Of one load: microseconds a launch in its first and last tenth, and of one that writes everything."""

    launches: int
    first: tuple[float, float]
    last: tuple[float, float]
    update: tuple[float, float]


def in_turns(load: Load, launches: int) -> Cost:
    """What the sanitizer and the analysis take for the same launches, tenth by tenth in turns."""
    steps = list(load.steps(launches))
    theirs = Driver(load.streams, load.buffers)
    ours = hazards.Checker(load.streams, load.buffers)
    tenth = len(steps) // 10
    each: list[tuple[float, float]] = []
    for part in (steps[i * tenth : (i + 1) * tenth] for i in range(10)):
        work = sum(isinstance(s, Launch) for s in part)
        each.append((seconds(theirs.feed, part) * 1e6 / work, seconds(ours.feed, part) * 1e6 / work))
    end: list[Step] = [
        Synchronize(),
        Launch("update", next(iter(load.streams)), tuple(writes(name, 0, 4) for name in load.buffers)),
    ]
    update = seconds(theirs.feed, end) * 1e6, seconds(ours.feed, end) * 1e6
    return Cost(launches, each[0], each[-1], update)


def one_pass(load: Load, launches: int) -> float:
    """Microseconds a launch for the analysis in one pass over very many."""
    checker = hazards.Checker(load.streams, load.buffers)
    began = time.process_time()
    checker.feed_all(load.steps(launches))
    took = time.process_time() - began
    assert checker.verdict().launches == launches
    return took * 1e6 / launches


def growth(feed: Callable[[Step], object], load: Load, launches: int) -> int:
    """By how many bytes the memory in use rises between a tenth of the launches and all of them, at most."""
    steps = load.steps(launches)
    done = 0
    tracemalloc.start()
    try:
        for step in steps:
            feed(step)
            done += isinstance(step, Launch)
            if done == launches // 10:
                break
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        for step in steps:
            feed(step)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def cost_table(quick: bool) -> str:
    """What launches cost, as Markdown, with the device that it was measured on."""
    launches, many, traced = (1_000, 20_000, 2_000) if quick else (20_000, 1_000_000, 50_000)
    lines = [
        f"Measured on {device()} with Python {platform.python_version()}, both in one process in turns; "
        "microseconds of processor time.",
        "",
        f"| load, {launches:,} launches | tool | a launch at first | a launch at last "
        f"| then one that writes everything | memory gained, {traced:,} launches |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    ratios = []
    for load in LOADS:
        cost = in_turns(load, launches)
        gained = (
            growth(Driver(load.streams, load.buffers).feed, load, traced),
            growth(hazards.Checker(load.streams, load.buffers).feed, load, traced),
        )
        for i, tool in enumerate(("sanitizer", "hazards")):
            lines.append(
                f"| {load.name} | {tool} | {cost.first[i]:.1f} | {cost.last[i]:.1f} | {cost.update[i]:,.0f} "
                f"| {gained[i] / 1024:,.0f} KiB |"
            )
        ratios.append(
            f"{load.name}: {cost.last[0] / cost.last[1]:.0f} times per launch, "
            f"{cost.update[0] / cost.update[1]:,.0f} times for the last one"
        )
    lines += ["", f"The sanitizer takes, in multiples of what the analysis takes: {'; '.join(ratios)}.", ""]
    passes = [f"{one_pass(load, many):.2f} µs a launch for {load.name}" for load in LOADS]
    lines.append(f"The analysis alone, {many:,} launches in one pass: {'; '.join(passes)}.")
    return "\n".join(lines) + "\n"


def device() -> str:
    """The processor's name and how many cores this process may use."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{' '.join(name.split())} ({cores} cores)"


# The document


def between(text: str, part: str) -> str:
    """What stands between a part's marks. ``ValueError`` where they are missing."""
    begin, end = MARKS[part]
    return text[text.index(begin) + len(begin) : text.index(end)]


def with_part(text: str, part: str, table: str) -> str:
    """The document with another text between a part's marks."""
    begin, end = MARKS[part]
    head, tail = text[: text.index(begin) + len(begin)], text[text.index(end) :]
    return f"{head}{table}{tail}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare, print, and write the document where that is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few launches in the measurement of costs")
    parser.add_argument("--no-cost", action="store_true", help="verdicts only")
    parser.add_argument("--markdown", action="store_true", help=f"write {DOCS.relative_to(ROOT)}")
    options = parser.parse_args(arguments)
    tables = {"verdicts": verdict_table(cases())}
    if not options.no_cost:
        tables["cost"] = cost_table(options.quick)
    print("\n".join(tables.values()), end="")
    if options.markdown:
        text = DOCS.read_text("utf-8")
        for part, table in tables.items():
            text = with_part(text, part, table)
        new = DOCS.with_name(f".{DOCS.name}.{secrets.token_hex(4)}.part")
        try:
            new.write_text(text, "utf-8")
            os.replace(new, DOCS)
        finally:
            new.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
