"""The three questions that people bring to a trace, answered in plain sentences from the figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..answer import ratio, told_share, told_time
from .busy import Busy
from .gaps import CAUSES, Gaps
from .launching import Launching
from .norms import NormShare
from .overlaps import Concurrency, Overlap
from .working import ENQUEUES, plural, shared_ns, union_of

MUCH, SOME = 0.3, 0.1
"""From which share on a question is answered "yes", and from which "in part"; below that "hardly"."""


@dataclass(frozen=True)
class Question:
    """A question, and its answer in a few sentences. verdict: its first word or words; share: the figure that
    the verdict stands on, None where it cannot be told."""

    question: str
    verdict: str
    answer: str
    share: float | None


def launch_overhead(busy: Busy, gaps: Gaps, launching: Launching) -> Question:
    """Is it launch overhead? By the share of the window in which a device waited for a late host."""
    question = "Is it launch overhead?"
    devices = [owner for owner in gaps.owners if owner.kind == "device"]
    calls = ""
    if launching.launches:
        calls = (
            f"{plural(launching.launches, 'launch call')} took {told_time(launching.host_ns)} of the host"
            + (
                f", {launching.per_step:,.6g} kernel launches a step"
                if launching.per_step is not None
                else ""
            )
        )
    if not devices:
        why = "the trace has no operation of a device"
        return _unknown(question, why, calls)
    if not launching.from_start.count:
        return _unknown(question, "no operation's launch call is in the trace", calls)
    window = busy.window_ns * len(devices)
    late = sum(owner.ns["host late"] for owner in devices)
    calling = _in_calls(gaps)
    idle = window - sum(use.busy_ns for use in busy.devices if use.spans)
    share = ratio(late, window)
    one = len(devices) == 1
    whole = f"The device was idle for {told_share(ratio(idle, window))} of the time"
    if not one:
        whole = f"The {len(devices)} devices were idle for {told_share(ratio(idle, window))} of their time"
    sentences = [whole]
    if idle:
        parts = {
            cause: told_share(ratio(sum(owner.ns[cause] for owner in devices), idle)) for cause in CAUSES
        }
        sentences = [
            f"{whole} ({told_time(idle)}): {parts['host late']} of that since the host was late, "
            f"{parts['dependency']} for a dependency, {parts['unknown']} for a reason not in the trace",
            f"So {told_share(share)} of the time went to a late host: {told_share(ratio(calling, window))} "
            f"with a launch call running, {told_share(ratio(late - calling, window))} with none",
        ]
    if launching.short.of:
        sentences.append(
            f"{launching.short.count:,} of {plural(launching.short.of, 'kernel')} "
            f"({told_share(launching.short.share)}) took less time than the call that launched them"
        )
    if calls:
        sentences.append(calls)
    verdict = _graded(share)
    if late >= SOME * window and calling < SOME * late:
        verdict = "No, but the host is late"
    return Question(question, verdict, ". ".join([verdict, *sentences]) + ".", share)


def _in_calls(gaps: Gaps) -> int:
    """How long a launch call was running while devices waited for the host, in nanoseconds."""
    t = gaps.timeline
    calls = np.flatnonzero(~t.on_device() & t.is_category(*ENQUEUES))
    running = union_of(t.start_ns[calls], t.end_ns[calls])
    total = 0
    for i, owner in enumerate(gaps.owners):
        if owner.kind == "device":
            late = (gaps.owner == i) & (gaps.host_late_ns > 0)
            start = gaps.start_ns[late]
            total += shared_ns(np.stack([start, start + gaps.host_late_ns[late]], axis=1), running)
    return total


def streams_overlap(overlaps: Overlap, concurrency: Concurrency) -> Question:
    """Do my streams overlap? By the share of a device's busy time in which two streams or more were busy."""
    question = "Do my streams overlap?"
    used = [device for device in concurrency.devices if device.streams]
    if not used:
        return _unknown(question, "the trace has no operation of a device", "")
    streams = sum(device.streams for device in used)
    if not overlaps.pairs:
        verdict = "No"
        where = "one stream only" if streams == 1 else "one stream of each device only"
        return Question(question, verdict, f"No. There are operations on {where}.", 0.0)
    together = sum(sum(device.ns[2:]) for device in used)
    share = ratio(together, sum(sum(device.ns[1:]) for device in used))
    if not together:
        verdict = "No"
        told = f"{streams} streams have operations, and no two of a device ever ran at the same time"
        return Question(question, verdict, f"{verdict}. {told}.", share)
    verdict = _graded(share)
    pair = overlaps.pairs[0]
    sentences = [
        f"Two streams or more ran at once for {told_time(together)}, {told_share(share)} of the time in "
        "which any did",
        f"The most: {pair.first} and {pair.second}, together for {told_time(pair.both_ns)}, which is "
        f"{told_share(pair.of_first)} of the first and {told_share(pair.of_second)} of the second",
    ]
    return Question(question, verdict, ". ".join([verdict, *sentences]) + ".", share)


def share_of_norm(norm: NormShare) -> Question:
    """What share is RMSNorm? Of the summed time of all kernels, told by name and by annotation."""
    question = "What share is RMSNorm?"
    if not norm.kernels:
        return _unknown(question, "the trace has no kernel", "")
    launches, time = norm.launches + norm.annotated_launches, norm.total_ns + norm.annotated_ns
    share = ratio(time, norm.kernels_ns)
    also = []
    if norm.annotated_launches:
        also.append(
            f"{plural(norm.annotated_launches, 'launch', 'launches')} of them "
            f"({told_time(norm.annotated_ns)}) are told by the operator or range around, not by name"
        )
    if norm.within_launches:
        also.append(
            f"It is also a part of {plural(norm.within_launches, 'fused kernel')} "
            f"({told_time(norm.within_ns)}), of which its own time cannot be told"
        )
    if norm.unsure_launches:
        also.append(
            f"{plural(norm.unsure_launches, 'more launch', 'more launches')} "
            f"({told_time(norm.unsure_ns)}) may be RMSNorm or LayerNorm"
        )
    if norm.rsqrt_launches:
        also.append(
            f"{plural(norm.rsqrt_launches, 'rsqrt kernel')} may be of norms written as separate operations"
        )
    if not launches:
        first = "No kernel is known as RMSNorm, neither by its name nor by what stands around it"
        verdict = "Cannot be told" if also else "None"
        return Question(question, verdict, ". ".join([first, *also]) + ".", None if also else 0.0)
    verdict = told_share(share)
    first = (
        f"{verdict} of the time of kernels ({told_time(time)} of {told_time(norm.kernels_ns)}) and "
        f"{told_share(ratio(launches, norm.kernels))} of their launches "
        f"({launches:,} of {norm.kernels:,})"
    )
    return Question(question, verdict, ". ".join([first, *also]) + ".", share)


def _unknown(question: str, why: str, also: str) -> Question:
    sentences = [f"Cannot be told: {why}", *([also] if also else [])]
    return Question(question, "Cannot be told", ". ".join(sentences) + ".", None)


def _graded(share: float | None) -> str:
    if share is None:
        return "Cannot be told"
    return "Yes" if share >= MUCH else "In part" if share >= SOME else "Hardly"
