"""One report of a timeline: what it is, what speaks against it, three short answers, then every figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..answer import Answer, Table, told_share, told_time
from ..cutting import check_window, clipped, extent, within
from ..ordering import edges, order
from ..table import CATEGORIES, EDGE_KINDS, Timeline
from . import questions
from .busy import busy
from .checking import Checks, check
from .gaps import Gaps, gaps
from .groups import Groups
from .kinds import NO_LAUNCH, NO_RANGE, kernels
from .launching import Launching, launching
from .layout import labelled, section, shortened, shown, wrapped
from .norms import norm_share
from .noting import NOTED
from .operators import operators
from .overlaps import concurrency, overlaps
from .overlaps import overlap as overlapping
from .questions import Question
from .stepping import steps
from .working import plural

NAME = 50
"""A kernel's name within a sentence is shortened to so many characters."""
SPARE = ("mean", "union", "min", "max", "count a", "count b")
"""The columns that a report does without where names need their room, the first to go first."""
ROWS = 8
"""So many rows of a table are told, unless more are asked for."""
ASKED = ("overlap", "order")
"""The answers that are only there if they were asked for; they are told first."""
SECTIONS = ("busy", "gaps", "launching", "operators", "overlaps", "concurrency", "norm_share", "kernels",
            "groups", "ranges", "steps", "kernels_by_step", "edges")  # fmt: skip
"""The other answers, in the order in which they are told."""
OF_DEVICES = ("busy", "concurrency")
"""Of these there are rows of zeros where no device worked, which tell nothing."""
RULE = (
    f'"yes" is said from {questions.MUCH:.0%} on, "in part" from {questions.SOME:.0%}, "hardly" below. '
    "Of the first question, it is the share of the window in which a device waited for a late host. A host "
    "may be late for other reasons than launching: where it is, and the thread that launched next was in "
    f'launch calls for less than {questions.SOME:.0%} of that time, the answer is "no". Of the second, it is '
    "how much of what could overlap did: of the busy time of all streams but the busiest of each device, the "
    "part that ran beside another stream"
)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `report` tells.

    facts: what the timeline is: source, device, provenance, lanes, spans by category,
    operations of devices, edges, counters, first and last, what was noted and left out when it was read.
    checks: what its own spans speak against; see `check`.
    questions: the three short answers.
    answers: every answer by its name ("busy", "gaps", "launching", …), in the order of the sections.
    window: start and end in absolute ns if only a part was asked for. outside: spans that are not in it.
    each_step: whether the steps are listed one by one.
    """

    facts: dict[str, Any]
    checks: Checks
    questions: tuple[Question, ...]
    answers: dict[str, Answer]
    window: tuple[int, int] | None
    outside: int
    each_step: bool

    def text(self, most: int | None = ROWS) -> str:
        """The report in at most 100 columns; tables of at most so many rows (None for all)."""
        parts = [labelled(self._head()), self._checks(), self._short()]
        empty = []
        for name, answer in self.answers.items():
            table = answer.table(1)
            idle = name in OF_DEVICES and not self.facts["operations"]
            if name not in ASKED and (idle or table is None or not table.rows):
                empty.append((answer.title, answer.summary()))
                continue
            rows = 0 if name == "steps" and not self.each_step else most
            told = self._definition(name)
            parts.append(section(answer, rows, *_more(answer, most), spare=SPARE, definition=told))
        if empty:
            parts.append("\n".join(["NO FIGURES", *(wrapped(line, rest="  ") for line in _alike(empty))]))
        return "\n\n\n".join(parts)

    def __str__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        """What a notebook shows of it: the words, not the columns."""
        return {"text/plain": str(self)}

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, ready for JSON."""
        return {
            "facts": self.facts,
            "checks": self.checks.as_dict(),
            "window": list(self.window) if self.window else None,
            "outside": self.outside,
            "questions": [asdict(question) for question in self.questions],
            "rule": RULE,
            "answers": {name: answer.as_dict() for name, answer in self.answers.items()},
        }

    def _definition(self, name: str) -> str:
        """The definition of an answer; where it begins as that of kernels by name, only what it adds."""
        told, base = self.answers[name].definition, self.answers["kernels"].definition
        if name != "kernels" and told.startswith(base):
            return f"as of kernels by name{told.removeprefix(base)}"
        return told

    def _head(self) -> list[tuple[str, str]]:
        """What the file is, a label and a text a line."""
        f = self.facts
        lanes = f"{plural(f['host_lanes'], 'host lane')} and {plural(f['device_lanes'], 'device lane')}"
        kinds = sorted(f["spans_by_category"].items(), key=lambda item: -item[1])
        told = [f"{n:,} {kind}" for kind, n in kinds]
        rows = [
            ("file", f["source"]),
            ("device", f"{f['device'] or 'not told'} ({f['provenance'] or 'provenance not told'})"),
            ("spans", ": ".join([f"{f['spans']:,} on {lanes}", *([", ".join(told)] if told else [])])),
            ("edges", ", ".join(f"{n:,} {kind}" for kind, n in f["edges_by_kind"].items()) or "none"),
            ("counters", plural(f["counter_samples"], "sample") if f["counter_samples"] else ""),
            ("time", f"{told_time(f['length_ns'])} from the first start to the last end"),
        ]
        if f["merged"]:
            rows.insert(1, ("merged", ", ".join(f["merged"]) + ": each lane's name begins with one of these"))
        if self.window:
            first, last = (edge - f["first_ns"] for edge in self.window)
            rows.append(
                (
                    "window",
                    f"{told_time(first)} to {told_time(last)} from the first span; figures are of this part, "
                    f"in which {self.outside:,} spans have no part; checks are of the whole",
                )
            )
        return rows

    def _checks(self) -> str:
        """Each finding in a few lines: how many, where, and what it means for the figures."""
        rows = []
        for found in self.checks.findings:
            told = found.kind
            if found.of:
                told += f": {found.count:,}, {told_share(found.share)} of {found.of}"
            elif found.count > 1:
                told += f": {found.count:,}"
            for name, lane, at in found.examples[:1]:
                told += f"; for example {shortened(shown(name), NAME)} on {lane}"
                told += f" at +{told_time(at - self.facts['first_ns'])}"
            meaning = f". {found.meaning[:1].upper()}{found.meaning[1:]}"
            if found.kind == NOTED:  # it may begin with the name of a file
                meaning = f": {found.meaning}"
            rows.append((found.severity, f"{told}{meaning}"))
        head = f"CHECKS OF THE TRACE AGAINST ITSELF\n{wrapped(self.checks.summary())}"
        return f"{head}\n\n{labelled(rows)}" if rows else head

    def _short(self) -> str:
        """The questions and their answers; where the device did nothing, the one answer to all of them."""
        lines = ["IN SHORT"]
        if not self.facts["operations"]:
            told = [question.question for question in self.questions]
            return "\n".join([*lines, wrapped(" ".join(told)), wrapped(self.questions[0].answer, "  ")])
        for question in self.questions:
            lines += [question.question, wrapped(question.answer, "  "), ""]
        if all(question.share is None for question in self.questions):
            return "\n".join(lines[:-1])
        return "\n".join([*lines, labelled([("rule", RULE)])])


def report(
    t: Timeline,
    *,
    groups: Groups | None = None,
    overlap: Sequence[str] | None = None,
    ordered: Sequence[str] | None = None,
    window: tuple[int, int] | None = None,
    each_step: bool = False,
) -> Report:
    """Everything that a timeline says, its faults first.

    groups: which group a kernel belongs to; the lab's own if left away.
    overlap: two lanes or groups of kernels whose overlap is wanted too; see `metrics.overlap`.
    ordered: two names of kernels; whether an edge path orders the second behind the first is told too.
    window: start and end in absolute nanoseconds. Figures of time count what lies inside; an operation that
    crosses an edge of the window counts there with its part inside, and as a launch or a kernel as a whole.
    each_step: list the steps one by one, and the kernels step by step.

    ``LabError`` for a window in which there is nothing, and for names that ``overlap`` or ``ordered`` do not
    find.
    """
    checks = check(t)
    answers: dict[str, Answer] = {"busy": busy(t, window and check_window(window))}
    part = t if window is None else within(t, window)
    timed = part if window is None else clipped(t, window)
    if overlap is not None:
        answers["overlap"] = overlapping(timed, *overlap, groups=groups)
    answers |= {"gaps": gaps(timed), "overlaps": overlaps(timed), "concurrency": concurrency(timed)}
    found = steps(part)
    part = found.apply(part)
    answers["launching"] = launching(part) if window is None else launching(t, window)
    answers["operators"] = operators(part)
    answers["norm_share"] = norm_share(part, groups)
    answers["kernels"] = kernels(part, "name", groups)
    answers["groups"] = kernels(part, "group", groups)
    ranges = kernels(part, "range", groups)
    if any(use.label not in (NO_RANGE, NO_LAUNCH) for use in ranges.uses):
        answers["ranges"] = ranges
    answers["steps"] = found
    if each_step:
        answers["kernels_by_step"] = kernels(part, "step", groups)
    answers["edges"] = edges(part)
    if ordered is not None:
        answers["order"] = order(part, *ordered)
    return Report(
        facts=_facts(t),
        checks=checks,
        questions=(
            questions.launch_overhead(answers["busy"], answers["gaps"], answers["launching"]),
            questions.streams_overlap(answers["overlaps"], answers["concurrency"]),
            questions.share_of_norm(answers["norm_share"]),
        ),
        answers={name: answers[name] for name in (*ASKED, *SECTIONS) if name in answers},
        window=window and check_window(window),
        outside=len(t) - len(part),
        each_step=each_step,
    )


def _more(answer: Answer, most: int | None) -> Iterator[Table | str]:
    """What an answer has to show beside its table."""
    if isinstance(answer, Gaps) and (longest := answer.largest(most)) is not None:
        yield longest
    if isinstance(answer, Launching) and answer.lines():
        yield "\n".join(wrapped(line, "- ") for line in answer.lines())


def _alike(rows: Sequence[tuple[str, str]]) -> list[str]:
    """Titles and summaries in lines, those of one summary together."""
    together: dict[str, list[str]] = {}
    for title, summary in rows:
        together.setdefault(summary, []).append(title)
    return [f"{', '.join(titles)}: {summary}" for summary, titles in together.items()]


def _facts(t: Timeline) -> dict[str, Any]:
    """What the timeline is, in plain values."""
    kinds = np.bincount(t.category, minlength=len(CATEGORIES))
    arrows = np.bincount(t.edge_kind, minlength=len(EDGE_KINDS))
    first, last = extent(t)
    hosts = sum(lane.kind == "host" for lane in t.lanes)
    return {
        "source": str(t.meta.get("source", "")),
        "merged": list(t.meta.get("merged", ())),
        "device": str(t.meta.get("device", "")),
        "provenance": str(t.meta.get("provenance", "")),
        "host_lanes": hosts,
        "device_lanes": len(t.lanes) - hosts,
        "lanes": [{"name": lane.name, "kind": lane.kind, "device": lane.device} for lane in t.lanes],
        "spans": len(t),
        "operations": len(t.operations()),
        "spans_by_category": {name: int(n) for name, n in zip(CATEGORIES, kinds, strict=True) if n},
        "edges_by_kind": {name: int(n) for name, n in zip(EDGE_KINDS, arrows, strict=True) if n},
        "counter_samples": len(t.counter_ns),
        "first_ns": first,
        "last_ns": last,
        "length_ns": last - first,
        "notes": list(t.notes),
        "left_out": dict(t.meta.get("left_out", {})),
    }
