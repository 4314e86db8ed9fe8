"""Judge schedules in files: what may race, what a read may see, what repairs it.

A FILE is a schedule in the plain JSON format of docs/schedule_format.md, of any size, or a profiler's trace:
Chrome or Kineto JSON, or what Nsight Systems exports as SQLite. Its content tells which. A trace does not say
what bytes are touched, so it can only be asked for order, with --ordered.

Exit status, for a gate in continuous integration: 0 if nothing was found in any file, or, with --ordered, if
SECOND waits for FIRST every time in each; else 1; 2 for bad use and for a file that cannot be read.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ..errors import LabError
from ..hazards import WORDS
from . import common

TOLD = 20
"""So many hazards of a file are told, unless all are asked for."""


@dataclass(frozen=True)
class Answer:
    """What is told of one file, in words and as values for JSON; ``good`` decides the exit status."""

    good: bool
    text: str
    values: dict[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files, the question and the output's options."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="a schedule or a trace, plain or gzip")
    parser.add_argument(
        "--words",
        choices=WORDS,
        default="cupy",
        help="in whose words the lines to add are: cupy (default), pytorch or opencl",
    )
    parser.add_argument(
        "--ordered",
        nargs=2,
        metavar=("FIRST", "SECOND"),
        help="only answer whether the launch SECOND always waits for the launch FIRST before it",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--all", action="store_true", help=f"tell every hazard, not only the first {TOLD}")
    parser.add_argument(
        "--repaired",
        metavar="OUT",
        help="write the schedule with its repair put in, to a new file: JSON, .jsonl, or either with .gz",
    )


def run(options: argparse.Namespace) -> int:
    """Judge each file and print what was found; returns 0 if that is nothing, else 1."""
    from .. import schedule_file

    if options.repaired is not None:
        if options.ordered or len(options.files) > 1:
            raise LabError("--repaired writes one schedule: give one FILE, and no --ordered")
        common.check_new(f"--repaired {options.repaired}", options.repaired, options.files[0])
    answers = []
    for path in options.files:
        if schedule_file.is_trace(path):
            answers.append(_trace(path, options))
        elif options.ordered:
            answers.append(_order(path, *options.ordered))
        else:
            answers.append(_judge(path, options))
    if options.json:
        files = [{"file": path, **a.values} for path, a in zip(options.files, answers, strict=True)]
        print(json.dumps({"good": all(a.good for a in answers), "files": files}))
    else:
        several = len(answers) > 1
        heads = [f"== {path}\n" if several else "" for path in options.files]
        print("\n\n".join(head + a.text for head, a in zip(heads, answers, strict=True)))
    return 0 if all(a.good for a in answers) else 1


def _judge(path: str, options: argparse.Namespace) -> Answer:
    from .. import hazards, schedule_file

    head, steps = schedule_file.stream(path)
    held = list(islice(steps, hazards.SEARCHED + 1))
    with _named(path):
        if len(held) <= hazards.SEARCHED:
            verdict = hazards.check(head.with_steps(held))
        else:
            verdict = _stream(path, head, chain(held, steps))
    text = verdict.report(options.words, None if options.all else TOLD)
    if len(verdict.hazards) > TOLD and not options.all:
        text += f"\n\nThe first {TOLD} of {len(verdict.hazards)} hazards were told; --all tells every one."
    searched = verdict.steps <= hazards.SEARCHED
    values = {**verdict.as_dict(), "repair_searched": searched}
    missing = ""
    if not searched:
        missing = (
            f"{verdict.steps} steps are more than the {hazards.SEARCHED} up to which a repair is searched for"
        )
        text += f"\n\nNo smallest repair: {missing}." if verdict.hazards else ""
    if options.repaired:
        missing = missing or _write_repaired(path, verdict, options.repaired)
        values["repaired"] = None if missing else options.repaired
        text += (
            f"\n\n{options.repaired} was not written: {missing}"
            if missing
            else f"\n\nrepaired: {options.repaired}"
        )
    return Answer(verdict.clean, text, values)


def _stream(path: str, head: Any, steps: Iterator[Any]) -> Any:
    """The verdict on steps that are not kept, each iteration read anew."""
    from .. import hazards, schedule_file
    from ..hazards.repair import with_texts
    from ..program import NUMBERED

    checker = hazards.Checker(head.streams, head.buffers, head.name, head.unseen)
    for number in range(head.repeat):
        if number:
            steps = schedule_file.stream(path)[1]
        for step in steps:
            if head.repeat > 1 and isinstance(step, NUMBERED):
                step = replace(step, step=number)
            checker.feed(step)
    return with_texts(checker.verdict())


def _write_repaired(path: str, verdict: Any, out: str) -> str:
    """Write the schedule with its repair; returns why not, or nothing."""
    from .. import hazards, schedule_file

    if verdict.hazards and not verdict.repair:
        return "no repair was found"
    with _named(path):
        repaired = verdict.repaired()
        left = hazards.judge(repaired)
    if left.hazards:
        return f"with this repair there would still be hazards ({left.summary()})"
    schedule_file.save(repaired, out)
    return ""


def _order(path: str, first: str, second: str) -> Answer:
    from .. import hazards, schedule_file

    program = schedule_file.load(path)
    with _named(path):
        order = hazards.order(program, first, second)
    values = {
        "name": program.name,
        "first": first,
        "second": second,
        "ordered": order.ordered,
        "unordered": order.unordered,
        "always": order.always,
        "unseen": list(program.unseen),
    }
    return Answer(order.always, order.text + _unseen(program.unseen), values)


def _trace(path: str, options: argparse.Namespace) -> Answer:
    from .. import trace_order

    if options.repaired:
        raise LabError(f"{path}: --repaired is for schedules; a trace has no buffers, and so no hazards")
    program = trace_order.load(path)
    kinds = Counter(type(step).__name__ for step in program.steps)
    found = {
        "streams": len(program.streams),
        "launches": kinds["Launch"],
        "records": kinds["Record"],
        "waits": kinds["Wait"],
        "host_waits": kinds["Synchronize"] + kinds["Query"],
    }
    values: dict[str, Any] = {"name": program.name, "found": found, "unseen": list(program.unseen)}
    if options.ordered:
        answer = trace_order.answer(program, *options.ordered)
        return Answer(answer.verdict == "yes", str(answer), {**values, "order": answer.as_dict()})
    counts = ", ".join(f"{number} {what.replace('_', ' ')}" for what, number in found.items())
    ask = "A trace does not say what bytes are touched; ask it for order with --ordered FIRST SECOND."
    return Answer(True, f"{program.name}: a trace of {counts}\n{ask}{_unseen(program.unseen)}", values)


def _unseen(texts: tuple[str, ...]) -> str:
    return "".join(["\n\nNot seen:", *(f"\n  {text}" for text in texts)]) if texts else ""


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Put the file's name in front of what the analysis says of a step."""
    try:
        yield
    except LabError as error:
        name, text = str(Path(path)), str(error)
        raise LabError(text if text.startswith(name) else f"{name}: {text}") from None
