"""From the columns of a trace file to a timeline: numpy from end to end, as a trace has millions of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import LabError
from ..reading import Events
from ..table import EDGE_KINDS, Lane, Timeline
from .counters import Samples, samples
from .draft import CODE, Draft, draft
from .lanes import Row, lanes_of
from .launches import Launches
from .linking import flow_edges, launches_of, stream_waits
from .places import distinct, plain_id
from .steps import step_names, steps_at
from .waits import order_edges
from .words import sync_category


def timeline_of(
    events: Events, streams: Mapping[int | str, str], source: str, meta: Mapping[str, Any]
) -> Timeline:
    """The timeline of these events; ``source`` and ``meta`` as `from_kineto` has them.

    ``LabError`` for events that cannot be read, and where there is nothing to show.
    """
    made = draft(events)
    counted = samples(events, made.pid, [made.labels.process(value) for value in made.ids.values])
    _count(made, counted)
    if not len(made.found.origin) and not len(counted.at):
        _refuse_empty(made)
    rows, lane = lanes_of(made, {plain_id(number): name for number, name in streams.items()})
    numbered = launches_of(made, lane)
    _judge_syncs(made, numbered)
    lanes = _with_processes(made, numbered, rows, lane)
    plain = _spans(made, numbered, lanes, lane, _steps(made, numbered))
    edges, unknown = order_edges(stream_waits(made, numbered, rows, lane), plain)
    flows = flow_edges(made)
    return _finish(plain, edges, flows, counted, _meta(made, source, unknown) | dict(meta))


def _count(made: Draft, counted: Samples) -> None:
    if counted.kept:
        made.rows["counters (phase C)"] = counted.kept
    if counted.empty:
        made.left_out["counters that tell no number (phase C)"] = counted.empty
    if counted.dropped:
        made.notes.append(f"values of counters that are no numbers, left out: {counted.dropped}")


def _refuse_empty(made: Draft) -> None:
    there = Counter({what: count for what, count in (made.left_out | Counter(made.rows)).items() if count})
    listed = ", ".join(f"{count} {what}" for what, count in there.most_common(4)) or "no events"
    raise LabError(
        f"{made.events.where}: holds nothing to show ({listed}); kernels, copies, calls, ranges or counters "
        "were expected; profile again while the program is at work"
    )


def _judge_syncs(made: Draft, numbered: Launches) -> None:
    """Give each entry on a synchronization its category, by the call that it belongs to."""
    syncs = np.flatnonzero(made.sync)
    if not len(syncs):
        return
    calls = np.flatnonzero(made.call & (numbered.launch >= 0))[::-1]
    called = dict(zip(numbered.launch[calls].tolist(), made.name[calls].tolist(), strict=True))
    names = (*made.events.names, "")
    numbers, entries = numbered.launch[syncs].tolist(), made.name[syncs].tolist()
    for i, number, entry in zip(syncs.tolist(), numbers, entries, strict=True):
        call = called.get(number)
        made.category[i] = CODE[sync_category(names[entry], None if call is None else names[call])]


def _steps(made: Draft, numbered: Launches) -> np.ndarray:
    """Steps, int32 [slices]: of host slices by their start, of device work by its call, of steps by name.

    Where several processes make calls or have steps, a process' steps are its own.
    """
    found, names = made.found, made.events.names
    own = np.append(step_names(names, np.unique(made.name[made.name >= 0])), -1)[made.name]
    annotated = (own >= 0) & ~found.mark & ~made.call
    ranges, pid = np.flatnonzero(annotated & ~made.device), made.pid[found.origin]
    step = np.full(len(found.origin), -1, dtype=np.int32)
    processes = np.unique(pid[ranges]).tolist()
    together = len(numbered.callers) < 2 and len(processes) < 2
    for process in processes:
        here = ranges if together else ranges[pid[ranges] == process]
        at = np.flatnonzero(~made.device & (together | (pid == process)))
        start = found.start[here]
        step[at] = steps_at(start, start + found.duration[here], own[here], found.start[at])
    step[annotated] = own[annotated]
    calls = np.flatnonzero(made.call & (numbered.launch >= 0))
    if len(calls):
        calls = calls[np.lexsort((found.start[calls], numbered.launch[calls]))]
        numbers, first = np.unique(numbered.launch[calls], return_index=True)
        work = np.flatnonzero(made.device & ~annotated & (numbered.launch >= 0))
        place = np.minimum(np.searchsorted(numbers, numbered.launch[work]), len(numbers) - 1)
        hit = numbers[place] == numbered.launch[work]
        step[work[hit]] = step[calls[first[place[hit]]]]
    return step


def _with_processes(made: Draft, numbered: Launches, rows: list[Row], lane: np.ndarray) -> list[Lane]:
    """The lanes, with the process of each stream of which all work was enqueued by the same one."""
    lanes = [row.lane for row in rows]
    work = np.flatnonzero(made.operation & (numbered.process >= 0))
    pairs, _ = distinct(lane[work], numbered.process[work])
    owners = Counter(pairs[:, 0].tolist())
    for place, process in pairs.tolist():
        if owners[place] == 1:
            text = made.labels.process(made.ids.values[numbered.callers[process]])
            lanes[place] = Lane(lanes[place].name, "device", lanes[place].device, text)
    return lanes


def _spans(
    made: Draft, numbered: Launches, lanes: list[Lane], lane: np.ndarray, step: np.ndarray
) -> Timeline:
    """The timeline without edges and counters."""
    found, names, name = made.found, made.events.names, made.name
    if (name < 0).any():
        name, names = np.where(name < 0, len(names), name), (*names, "unnamed")
    return Timeline(
        names=names,
        lanes=tuple(lanes),
        name=name,
        lane=lane,
        start_ns=found.start,
        duration_ns=found.duration,
        launch=numbered.launch,
        category=made.category,
        step=step,
        outcome=np.zeros(len(name), dtype=np.int8),
        origin=found.origin,
        edge_source=np.empty(0, dtype=np.int64),
        edge_target=np.empty(0, dtype=np.int64),
        edge_name=np.empty(0, dtype=np.int64),
    )


def _meta(made: Draft, source: str, unknown: int) -> dict[str, Any]:
    events = made.events
    rank = _rank(events.top)
    found = {
        "device": _device(events.top),
        "provenance": "recorded",
        "source": source,
        "file": events.file,
        "events": events.count,
        "rows": {what: count for what, count in made.rows.items() if count},
        "left_out": {what: count for what, count in made.left_out.items() if count},
        "edges_unknown": unknown,
        "base_ns": events.base_ns,
        "notes": made.notes,
    }
    return {k: v for k, v in found.items() if v} | ({} if rank is None else {"rank": rank})


def _finish(
    plain: Timeline,
    edges: list[tuple[int, int, str]],
    flows: tuple[np.ndarray, np.ndarray, np.ndarray],
    counted: Samples,
    meta: dict[str, Any],
) -> Timeline:
    """The whole timeline, with only the names that are used, in the order of their first use."""
    source, target, flow_name = flows
    more = {text: i for i, text in enumerate(dict.fromkeys((*(name for *_, name in edges), *counted.names)))}
    names = (*plain.names, *more, "arrow")
    at = len(plain.names)
    edge_name = np.array([at + more[name] for *_, name in edges], dtype=np.int64)
    flow_name = np.where(flow_name < 0, len(names) - 1, flow_name)
    series = np.array([at + more[name] for name in counted.names], dtype=np.int64)
    kept, columns = _compact(names, [plain.name, edge_name, flow_name, series[counted.name]])
    kinds = [EDGE_KINDS.index("order")] * len(edges) + [EDGE_KINDS.index("flow")] * len(source)
    return Timeline(
        names=kept,
        lanes=plain.lanes,
        name=columns[0],
        lane=plain.lane,
        start_ns=plain.start_ns,
        duration_ns=plain.duration_ns,
        launch=plain.launch,
        category=plain.category,
        step=plain.step,
        outcome=plain.outcome,
        origin=plain.origin,
        edge_source=np.concatenate([np.array([s for s, _, _ in edges], dtype=np.int64), source]),
        edge_target=np.concatenate([np.array([t for _, t, _ in edges], dtype=np.int64), target]),
        edge_name=np.concatenate(columns[1:3]),
        edge_kind=np.array(kinds, dtype=np.int8),
        counter_name=columns[3],
        counter_ns=counted.at,
        counter_value=counted.value,
        meta=meta,
    )


def _compact(names: tuple[str, ...], uses: list[np.ndarray]) -> tuple[tuple[str, ...], list[np.ndarray]]:
    """The names that these columns use, in the order of first use, and the columns in new numbers."""
    every = np.concatenate(uses)
    first = np.full(len(names), len(every), dtype=np.int64)
    first[every[::-1]] = np.arange(len(every) - 1, -1, -1)
    order = np.argsort(first, kind="stable")[: int((first < len(every)).sum())]
    code = np.full(len(names), -1, dtype=np.int32)
    code[order] = np.arange(len(order))
    return tuple(names[i] for i in order.tolist()), [code[use] for use in uses]


def _device(top: Mapping[str, Any]) -> str:
    """The names of the devices, as the trace states them."""
    listed = top.get("deviceProperties") or top.get("computeProperties")
    listed = listed if isinstance(listed, list) else []
    names = [str(d["name"]) for d in listed if isinstance(d, Mapping) and d.get("name")]
    return ", ".join(dict.fromkeys(names))


def _rank(top: Mapping[str, Any]) -> int | None:
    """Which rank of a distributed run wrote the trace, where it says so."""
    told = top.get("distributedInfo")
    rank = told.get("rank") if isinstance(told, Mapping) else None
    return rank if isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 else None
