"""The three questions that people bring to a trace, answered in plain sentences from the figures."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..answer import ratio, told_share, told_time
from ..table import ENQUEUES
from .busy import Busy
from .gaps import Gaps
from .launching import Launching
from .norms import NormShare
from .overlaps import Concurrency, Overlap
from .working import plural, shared_ns, union_of, work_of

MUCH, SOME = 0.3, 0.1
"""From which share on a question is answered "yes", and from which "in part"; below that "hardly"."""
NO_DEVICE = "the trace has no operation of a device"
NO_KERNEL = "the trace has no kernel"
MEANWHILE = (
    ("a launch call running", ENQUEUES),
    ("a call that waits for the device", ("synchronize",)),
    ("another call of the runtime", ("call", "record", "wait")),
    ("an operator around such calls", ("op",)),
)
"""What the thread that launched next may have been doing while a device waited for it; the first counts."""
TOLD = 0.0005
"""A smaller share is told as 0.0 %, and need not be told where it is one part of several."""


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
    calls = _calls(launching)
    if not devices:
        return _unknown(question, NO_DEVICE, calls)
    if not launching.from_start.count:
        return _unknown(question, "no operation's launch call is in the trace", calls)
    window = busy.window_ns * len(devices)
    late = sum(owner.ns["host late"] for owner in devices)
    idle = window - sum(use.busy_ns for use in busy.devices if use.spans)
    share = ratio(late, window)
    meanwhile = _meanwhile(gaps)
    whole = f"The device was idle for {told_share(ratio(idle, window))} of the time"
    if len(devices) > 1:
        whole = f"The {len(devices)} devices were idle for {told_share(ratio(idle, window))} of their time"
    sentences = [whole]
    if idle:
        sentences = [f"{whole} ({told_time(idle)}): {_told_parts(_idle_parts(gaps, idle), idle, ' of that')}"]
    if late >= TOLD * window > 0:
        parts = [(f"with {what}", ns) for what, ns in meanwhile]
        told = _told_parts(parts, window)
        sentences.append(
            f"So {told_share(share)} of the time went to a late host" + (f": {told}" if told else "")
        )
    if launching.short.of:
        sentences.append(
            f"{launching.short.count:,} of {plural(launching.short.of, 'kernel')} "
            f"({told_share(launching.short.share)}) took less time than the call that launched them"
        )
    if calls:
        sentences.append(calls)
    verdict = _graded(share)
    if late >= SOME * window and meanwhile[0][1] < SOME * late:
        verdict = "No, but the host is late"
    return Question(question, verdict, ". ".join([verdict, *sentences]) + ".", share)


def _calls(launching: Launching) -> str:
    """What launches took of the host, in words; "" without any."""
    if not launching.launches:
        return ""
    told = f"{plural(launching.launches, 'launch call')} took {told_time(launching.host_ns)} of the host"
    if launching.blocking:
        told += (
            f", {told_time(launching.blocking_ns)} of it in "
            f"{plural(launching.blocking, 'copy', 'copies')} that the call waited for"
        )
    if launching.per_step is not None:
        told += f", {launching.per_step:,.6g} kernel launches a step"
    return told


def _told_parts(parts: list[tuple[str, int]], whole: int, of: str = "") -> str:
    """Each part as a share of the whole, but for the very small ones; ``of`` goes with the first."""
    told = [(told_share(ratio(ns, whole)), what) for what, ns in parts if ns >= TOLD * whole]
    return ", ".join(f"{share}{of if i == 0 else ''} {what}" for i, (share, what) in enumerate(told))


def _idle_parts(gaps: Gaps, idle: int) -> list[tuple[str, int]]:
    """Why devices were idle, each with its nanoseconds."""
    of_device = np.array([owner.kind == "device" for owner in gaps.owners], dtype=bool)[gaps.owner]
    known = np.zeros(len(gaps.timeline), dtype=bool)
    work = work_of(gaps.timeline)
    known[work.span] = work.launched & ~work.too_early
    known = known[gaps.ended_by]
    late, dependency, queued, unknown = (
        int(part.sum())
        for part in (
            gaps.host_late_ns[of_device],
            gaps.dependency_ns[of_device],
            gaps.unknown_ns[of_device & known],
            gaps.unknown_ns[of_device & ~known],
        )
    )
    return [
        ("since the host was late", late),
        ("for a recorded dependency", dependency),
        ("with the next operation on its queue (latency, or a wait that is not in the trace)", queued),
        ("before an operation whose call is not known", unknown),
        ("before its first or behind its last operation", idle - late - dependency - queued - unknown),
    ]


def _meanwhile(gaps: Gaps) -> list[tuple[str, int]]:
    """What the thread that made the next launch was doing while a device waited for it: in nanoseconds, in
    the order of `MEANWHILE`, and none of that at the end."""
    t = gaps.timeline
    work = work_of(t)
    caller = np.full(len(t), -1, dtype=np.int64)
    caller[work.span] = work.call
    spent = np.zeros(len(MEANWHILE) + 1, dtype=np.int64)
    late = gaps.host_late_ns > 0
    by = np.where(late, t.lane[caller[gaps.ended_by]] if len(t) else -1, -1)
    kinds = [np.flatnonzero(t.is_category(*categories)) for _, categories in MEANWHILE]
    for lane in np.unique(by[late]).tolist():
        mine = [kind[t.lane[kind] == lane] for kind in kinds]
        unions = []
        for count in range(1, len(mine) + 1):
            spans = np.concatenate(mine[:count])
            unions.append(union_of(t.start_ns[spans], t.end_ns[spans]))
        for i, owner in enumerate(gaps.owners):
            here = (gaps.owner == i) & (by == lane)
            if owner.kind == "device" and here.any():
                waits = np.stack([gaps.start_ns[here], gaps.start_ns[here] + gaps.host_late_ns[here]], axis=1)
                so_far = [shared_ns(waits, union) for union in unions]
                so_far.append(int(gaps.host_late_ns[here].sum()))
                spent += np.diff(so_far, prepend=0)
    names = [*(what for what, _ in MEANWHILE), "none of these"]
    return list(zip(names, spent.tolist(), strict=True))


def streams_overlap(overlaps: Overlap, concurrency: Concurrency) -> Question:
    """Do my streams overlap? By how much of what could overlap did: of the busy time of all streams but the
    busiest of each device, the part that ran while another stream of it was busy."""
    question = "Do my streams overlap?"
    used = concurrency.devices
    if not used:
        return _unknown(question, NO_DEVICE, "")
    streams = sum(device.streams for device in used)
    if not overlaps.pairs:
        where = "one stream only" if streams == 1 else "one stream of each device only"
        return Question(question, "No", f"No. There are operations on {where}.", 0.0)
    together = sum(sum(device.ns[2:]) for device in used)
    if not together:
        told = f"{streams} streams have operations, and no two of a device ever ran at the same time"
        return Question(question, "No", f"No. {told}.", 0.0)
    busiest: dict[str, int] = {}
    for pair in overlaps.pairs:
        busiest[pair.device] = max(busiest.get(pair.device, 0), pair.first_ns, pair.second_ns)
    several = [device for device in used if device.streams > 1]
    hidden = sum(ns * (at_once - 1) for device in several for at_once, ns in enumerate(device.ns) if at_once)
    possible = sum(
        sum(ns * at_once for at_once, ns in enumerate(device.ns)) - busiest[device.device]
        for device in several
    )
    share = ratio(hidden, possible)
    verdict = _graded(share)
    pair = overlaps.pairs[0]
    sentences = [
        f"Of the {told_time(possible)} that all streams but the busiest were busy, {told_time(hidden)} "
        f"({told_share(share)}) ran beside another stream",
        f"Two streams or more ran at once for {told_time(together)}, "
        f"{told_share(ratio(together, sum(sum(device.ns[1:]) for device in used)))} of the time in which any "
        "did",
        f"The most: {pair.first} and {pair.second}, together for {told_time(pair.both_ns)}, which is "
        f"{told_share(pair.of_first)} of the first and {told_share(pair.of_second)} of the second",
    ]
    return Question(question, verdict, ". ".join([verdict, *sentences]) + ".", share)


def share_of_norm(norm: NormShare) -> Question:
    """What share is RMSNorm? Of the summed time of all kernels, told by name and by annotation."""
    question = "What share is RMSNorm?"
    if not norm.kernels:
        return _unknown(question, NO_KERNEL, "")
    launches, time = norm.launches + norm.annotated_launches, norm.total_ns + norm.annotated_ns
    share = ratio(time, norm.kernels_ns)
    also = []
    if norm.annotated_launches:
        also.append(
            (
                f"{plural(norm.annotated_launches, 'launch', 'launches')} of them "
                f"({told_time(norm.annotated_ns)})"
                if norm.launches
                else "All of them"
            )
            + " are told by the operator or range around, not by name"
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
