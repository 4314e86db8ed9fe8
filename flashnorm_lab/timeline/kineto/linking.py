"""What belongs together in a trace: calls and their work, the two ends of an arrow, a wait and its record."""

from __future__ import annotations

import numpy as np

from . import arrows, launches
from .draft import Draft, by_process
from .lanes import Row
from .launches import Launches
from .places import distinct, plain_id
from .slices import FLOWS, is_phase
from .waits import StreamWait
from .words import STREAM_WAIT, is_launch_arrow


def launches_of(draft: Draft, lane: np.ndarray) -> Launches:
    """The launch numbers; where an event has none, from the arrow that begins or ends at its start."""
    events, found = draft.events, draft.found
    work = draft.device & ~found.mark
    carries = draft.call | work
    correlation = np.where(carries, events.correlation[found.origin], -1)
    arrow = _flows(draft, launching=True)
    numbers = _arrow_numbers(draft, arrow)
    lacking = np.flatnonzero(carries & (correlation < 0))
    if len(lacking) and len(arrow):
        thread = draft.thread[found.origin[lacking]]
        hit = arrows.starting(thread, found.start[lacking], draft.thread[arrow], events.ts[arrow])
        correlation[lacking] = arrows.agreed(hit, numbers, len(lacking))
    _say_unlaunched(draft, correlation, lacking)
    kept = np.isin(numbers, correlation) & (numbers >= 0)
    if len(arrow):
        draft.rows["ends of launch arrows, kept as launch numbers"] = int(kept.sum())
    draft.leave_out("ends of {} arrows that no slice's launch number fits", arrow[~kept])
    numbered = launches.number(correlation, draft.pid[found.origin].astype(np.int64), lane, draft.call, work)
    if numbered.untold:
        draft.notes.append(
            "device work with a correlation number that several processes use, where nothing tells whose it "
            f"is: {numbered.untold}; the calls that enqueued it are taken as unknown"
        )
    return numbered


def flow_edges(draft: Draft) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The arrows between slices that are no launches: source and target (slices) and name of each.

    An end lies on the innermost slice around it on its thread, or on the next one to start where the trace
    says so (phase f without bp "e"). What leads nowhere is counted.
    """
    events, found, flows = draft.events, draft.found, _flows(draft, launching=False)
    if not len(flows):
        return (np.empty(0, dtype=np.int64),) * 3
    phase, at, at_thread = events.phase[flows], events.ts[flows], draft.thread[flows]
    lone = np.where(events.id[flows] >= 0, 0, np.arange(1, len(flows) + 1))  # without an id, alone
    _, key = distinct(events.category[flows] + 1, events.name[flows] + 1, events.id[flows] + 1, lone)
    key = by_process(key, draft.pid[flows], phase == arrows.START)
    source, target = arrows.chains(key, at, phase)
    bodies = np.flatnonzero(~found.mark & ~found.apart)
    start, thread = found.start[bodies], draft.thread[found.origin[bodies]]
    end = start + found.duration[bodies]
    bound = arrows.enclosing(thread, start, end, at_thread, at)
    free = np.flatnonzero((phase == arrows.END) & ~events.bound[flows])
    if len(free):
        bound[free] = arrows.following(thread, start, end, at_thread[free], at[free])
    drawn = (bound[source] >= 0) & (bound[target] >= 0)
    source, target = source[drawn], target[drawn]
    used = np.zeros(len(flows), dtype=bool)
    used[source] = used[target] = True
    draft.rows["ends of arrows"] = int(used.sum())
    draft.leave_out("ends of {} arrows with no other end, or with no slice at an end", flows[~used])
    return bodies[bound[source]], bodies[bound[target]], events.name[flows[source]]


def stream_waits(draft: Draft, numbered: Launches, rows: list[Row], lane: np.ndarray) -> list[StreamWait]:
    """The waits of streams for events that the profiler tells of."""
    lanes = {row.key: i for i, row in enumerate(rows) if len(row.key) == 3}
    waits = []
    for i in np.flatnonzero(draft.sync & (draft.name >= 0)).tolist():
        if draft.events.names[draft.name[i]] != STREAM_WAIT:
            continue
        args = draft.events.args(int(draft.found.origin[i]))
        record = plain_id(args.get("wait_on_cuda_event_record_corr_id"))
        process, device, _ = rows[lane[i]].key
        waits.append(
            StreamWait(
                numbered.number(int(numbered.process[i]), record if isinstance(record, int) else -1),
                int(numbered.launch[i]),
                lanes.get((process, device, plain_id(args.get("wait_on_stream"))), -1),
                int(lane[i]),
                f"event {args.get('wait_on_cuda_event_id', '')}".strip(),
            )
        )
    return waits


def _flows(draft: Draft, launching: bool) -> np.ndarray:
    """The places of arrow ends: of those from calls to their work, or of all others."""
    events = draft.events
    flows = np.flatnonzero(is_phase(events, FLOWS))
    kinds, which = distinct(events.category[flows] + 1, events.name[flows] + 1)
    is_launch = [
        is_launch_arrow(
            events.categories[category - 1] if category else "", events.names[name - 1] if name else ""
        )
        for category, name in kinds.tolist()
    ]
    return flows[np.array(is_launch, dtype=bool)[which] == launching]


def _arrow_numbers(draft: Draft, arrow: np.ndarray) -> np.ndarray:
    """The ids of these arrows as whole numbers of at least 0, int64; -1 for any other."""
    used, which = np.unique(draft.events.id[arrow], return_inverse=True)
    ids = (draft.events.ids[i] if i >= 0 else -1 for i in used.tolist())
    values = [v if type(v) is int else plain_id(v) for v in ids]  # which most of them are
    numbers = [v if isinstance(v, int) and 0 <= v < 2**62 else -1 for v in values]
    return np.array(numbers, dtype=np.int64)[which]


def _say_unlaunched(draft: Draft, correlation: np.ndarray, lacking: np.ndarray) -> None:
    work = lacking[draft.operation[lacking]]
    told = int((correlation[work] >= 0).sum())
    if told:
        draft.notes.append(
            f"kernels, copies and fills without a correlation number: {told}; the arrows that end at their "
            "starts tell which calls enqueued them"
        )
    if len(work) > told:
        draft.notes.append(
            f"kernels, copies and fills without a correlation number: {len(work) - told}; the calls that "
            "enqueued them are not known"
        )
