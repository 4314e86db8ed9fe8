"""Traces of torch.profiler (Kineto, over CUPTI or ROCm) and other Chrome JSON of the same kind.

Read are the complete events of the categories below: work on the device, calls of the CUDA or HIP runtime
and driver, and annotated ranges. Everything else is counted by category in ``meta["left_out"]``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from os import PathLike
from typing import Any, NamedTuple

from ..errors import LabError
from . import jsonfile
from .table import Timeline, TimelineBuilder

DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy", "memcpy": "copy", "memset": "copy"}
HOST = ("cuda_runtime", "cuda_driver", "runtime")
STEP = re.compile(r"(?:ProfilerStep#|step )(\d+)")
CALLS = (
    ("launch", re.compile(r"Launch(?!HostFunc)|GraphLaunch")),
    ("copy", re.compile(r"Mem(?:cpy|set)")),
    ("record", re.compile(r"EventRecord")),
    ("wait", re.compile(r"StreamWait")),
    ("synchronize", re.compile(r"Synchronize")),
)


class Entries(NamedTuple):
    """What a trace holds, each list in the file's order; times in nanoseconds.

    ``calls``: (name, (pid, tid), start, duration, correlation) of each call of the runtime or driver.
    ``work``: (name, (device, stream), start, duration, category, correlation, args) of each piece of device
    work. ``ranges``: (name, (pid, tid), start, duration). ``syncs``: (number of the event, the event as it
    stands there) of each entry of category "cuda_sync". A correlation that is missing is -1. ``left_out``
    counts all else.
    """

    calls: list[tuple[str, tuple[Any, Any], int, int, int]]
    work: list[tuple[str, tuple[Any, Any], int, int, str, int, Mapping[str, Any]]]
    ranges: list[tuple[str, tuple[Any, Any], int, int]]
    syncs: list[tuple[int, Mapping[str, Any]]]
    left_out: Counter[str]


def entries(trace: Any, where: str) -> Entries:
    """What a trace's JSON holds; ``where`` names it in messages. ``LabError`` for a broken one."""
    events = trace.get("traceEvents") if isinstance(trace, Mapping) else trace
    if not isinstance(events, list):
        raise LabError(
            f"{where}: there is no list of traceEvents in it; a Chrome or Kineto trace was expected"
        )
    return _sort(events, where, base_time(trace, where))


def from_kineto(
    trace: str | PathLike[str] | Mapping[str, Any] | list[Any],
    *,
    streams: Mapping[int | str, str] | None = None,
    source: str = "",
    **meta: Any,
) -> Timeline:
    """A timeline from a Kineto trace: a path, or its JSON already read (an object or a bare list of events).

    Lanes: "host" (or one for each thread that made calls), then a lane for each stream: ``streams`` maps a
    stream's number to the lane's name, else it is "stream 7" ("device 1 stream 7" with several devices).
    ``launch`` is the correlation number. ``step`` comes from the annotated ranges "step 3" or
    "ProfilerStep#3": host calls by their start within the range, device work by its host call. Edges come
    from the profiler's own "Stream Wait Event" entries, where it names the record that was waited for: from
    the last work before the record to the first work behind the wait. Waits whose record it did not know are
    counted in ``meta["edges_unknown"]``. ``meta`` is kept with the timeline ("provenance" is "recorded"
    unless given here); ``source`` says where the trace came from, there and in messages, if it is not a path.

    Times are kept to the nanosecond from JSON text; in a dict of Python floats, as far as those hold them.
    Raises ``LabError``, in one line, for a broken trace or one that holds nothing to show.
    """
    if isinstance(trace, str | PathLike):
        source, trace = source or str(trace), jsonfile.load(trace)
    where = source or "the trace"
    calls, work, ranges, syncs, left_out = entries(trace, where)
    waits = [event.get("args") or {} for _, event in syncs if event.get("name") == "Stream Wait Event"]
    if not calls and not work and not ranges:
        found = ", ".join(f"{n} {c}" for c, n in left_out.most_common(4)) or "no events"
        raise LabError(f"{where}: holds no kernel, copy, runtime call or annotated range to show ({found})")

    build = TimelineBuilder()
    threads = list(dict.fromkeys(thread for _, thread, *_ in sorted(calls, key=lambda c: c[2]) or ranges))
    hosts = host_names(threads)
    for name in hosts.values():
        build.lane(name, "host")
    places = sorted({place for _, place, *_ in work}, key=lambda p: [_number(v) for v in p])
    several = len({device for device, _ in places}) > 1
    lanes = {}
    for device, stream in places:
        name = (streams or {}).get(stream, f"stream {stream}")
        lanes[device, stream] = build.lane(f"device {device} {name}" if several else name).name

    steps = sorted((start, start + duration, int(m[1])) for name, _, start, duration in ranges
                   if (m := STEP.fullmatch(name)))  # fmt: skip
    starts = [start for start, _, _ in steps]

    def step_at(time: int) -> int:
        i = bisect_left(starts, time + 1) - 1
        return steps[i][2] if i >= 0 and time < steps[i][1] else -1

    shown = 0
    for name, thread, start, duration in ranges:
        if thread in hosts:
            m = STEP.fullmatch(name)
            build.span(name, hosts[thread], start, duration, "range", step=int(m[1]) if m else step_at(start))
            shown += 1
    if shown < len(ranges):
        left_out["annotated ranges of threads that make no calls"] = len(ranges) - shown
    step_of: dict[int, int] = {}
    called_at: dict[int, int] = {}
    for name, thread, start, duration, correlation in calls:
        category = next((c for c, pattern in CALLS if pattern.search(name)), "range")
        step = step_at(start)
        build.span(name, hosts[thread], start, duration, category, correlation, step)
        if correlation >= 0:
            step_of.setdefault(correlation, step)
            called_at.setdefault(correlation, start)
    spans: dict[tuple[Any, Any], list[tuple[int, int]]] = defaultdict(list)
    for name, place, start, duration, category, correlation, _ in work:
        span = build.span(
            name, lanes[place], start, duration, category, correlation, step_of.get(correlation, -1)
        )
        if correlation in called_at:
            spans[place].append((called_at[correlation], span))
    unknown = _add_edges(build, waits, called_at, spans)
    found = {
        "device": _device(trace),
        "provenance": "recorded",
        "source": source,
        "left_out": dict(left_out),
        "edges_unknown": unknown,
    }
    return build.build(**{k: v for k, v in found.items() if v} | meta)


def host_names(threads: Iterable[tuple[Any, Any]]) -> dict[tuple[Any, Any], str]:
    """A name for each thread (pid, tid): "host" for the only one, else with as much as tells them apart."""
    threads = list(threads)
    hosts = {t: "host" if len(threads) == 1 else f"host {t[1]}" for t in threads}
    if len(set(hosts.values())) < len(hosts):
        hosts = {t: f"host {t[0]}/{t[1]}" for t in threads}
    return hosts


def _sort(events: list[Any], source: str, base: int) -> Entries:
    calls, work, ranges, syncs = [], [], [], []
    left_out: Counter[str] = Counter()
    for i, event in enumerate(events):
        if not isinstance(event, Mapping):
            raise LabError(f"{source}, event {i}: {event!r} is not an event; an object was expected")
        category = str(event.get("cat", "")).lower()
        if event.get("ph") != "X":
            if event.get("ph") != "M":
                left_out[f"{category or 'unnamed'} (phase {event.get('ph')})"] += 1
            continue
        args = event.get("args") or {}
        if not isinstance(args, Mapping):
            raise LabError(f"{source}, event {i}: args is {args!r}; an object was expected")
        name = str(event.get("name", ""))
        if category == "cuda_sync":
            syncs.append((i, event))
            continue
        if category not in DEVICE and category not in HOST and category != "user_annotation":
            left_out[category or "unnamed"] += 1
            continue
        start = base + time_of(event, "ts", i, source)
        duration = time_of(event, "dur", i, source)
        if duration < 0:
            raise LabError(f"{source}, event {i} ({name}): dur is {event['dur']}; at least 0 was expected")
        correlation = id_of(args.get("correlation"))
        if category in DEVICE:
            device, stream = args.get("device", event.get("pid")), args.get("stream", event.get("tid"))
            work.append((name, (device, stream), start, duration, DEVICE[category], correlation, args))
        elif category in HOST:
            calls.append((name, (event.get("pid"), event.get("tid")), start, duration, correlation))
        else:
            ranges.append((name, (event.get("pid"), event.get("tid")), start, duration))
    return Entries(calls, work, ranges, syncs, left_out)


def _add_edges(
    build: TimelineBuilder,
    waits: list[Mapping[str, Any]],
    called_at: dict[int, int],
    spans: dict[tuple[Any, Any], list[tuple[int, int]]],
) -> int:
    """Add an edge for each stream wait; the number of those that the trace does not say enough about."""
    for work in spans.values():
        work.sort()
    unknown = 0
    for args in waits:
        recorded = called_at.get(id_of(args.get("wait_on_cuda_event_record_corr_id")))
        waited = called_at.get(id_of(args.get("correlation")))
        before = spans.get((args.get("device"), args.get("wait_on_stream")), [])
        behind = spans.get((args.get("device"), args.get("stream")), [])
        if recorded is None or waited is None:
            unknown += 1
            continue
        i = bisect_left(before, (recorded, -1)) - 1
        j = bisect_left(behind, (waited, -1))
        if i >= 0 and j < len(behind):
            build.edge(before[i][1], behind[j][1], f"event {args.get('wait_on_cuda_event_id', '')}".strip())
        else:
            unknown += 1
    return unknown


def _device(trace: Any) -> str:
    """The names of the GPUs, as the trace states them."""
    devices = trace.get("deviceProperties") if isinstance(trace, Mapping) else None
    listed = devices if isinstance(devices, list) else []
    names = [str(d["name"]) for d in listed if isinstance(d, Mapping) and d.get("name")]
    return ", ".join(dict.fromkeys(names))


def base_time(trace: Any, source: str) -> int:
    """Nanoseconds that all times of the trace count from; 0 where it says nothing."""
    base = trace.get("baseTimeNanoseconds", 0) if isinstance(trace, Mapping) else 0
    try:
        return int(base)
    except (TypeError, ValueError):
        raise LabError(f"{source}: baseTimeNanoseconds is {base!r}; a whole number was expected") from None


def time_of(event: Mapping[str, Any], key: str, i: int, source: str) -> int:
    """The time under ``key`` of event number ``i``, in nanoseconds. ``LabError`` if there is none."""
    value = event.get(key)
    if isinstance(value, float):
        value = Decimal(repr(value))
    try:
        if value is None:
            raise ValueError("it is missing")
        return jsonfile.nanoseconds(value)
    except ValueError as error:
        raise LabError(f"{source}, event {i} ({event.get('name')}): {key} cannot be read: {error}") from None


def id_of(value: Any) -> int:
    """A number that stands for something; -1, "not known", for whatever is no number of at least 0."""
    try:
        return max(int(value), -1)
    except (TypeError, ValueError):
        return -1


def _number(value: Any) -> tuple[int, Any]:
    return (0, value) if isinstance(value, int) else (1, str(value))
