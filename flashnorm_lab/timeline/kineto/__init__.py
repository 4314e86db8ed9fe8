"""Traces of torch.profiler (Kineto, over CUPTI or ROCm) and other Chrome JSON, as timelines.

What a trace's words mean here is in `words`; every event of a file is a span, or part of one, or an arrow or
a counter, or is counted: ``len(t) + sum(t.meta["rows"].values()) + sum(t.meta["left_out"].values())`` is
``t.meta["events"]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any

from ..reading import Events, events_of, read_events
from ..table import Timeline
from .convert import timeline_of
from .slices import check, place_of
from .words import OTHER, meaning


def from_kineto(
    trace: str | PathLike[str] | Mapping[str, Any] | list[Any] | Events,
    *,
    streams: Mapping[int | str, str] | None = None,
    source: str = "",
    **meta: Any,
) -> Timeline:
    """A timeline from a Kineto or Chrome trace: a path, its JSON already read (an object or a bare list of
    events), or its `Events`.

    Spans are in the file's order, ``origin`` is the place in its list of events. Complete events (phase X)
    and pairs (B and E) are spans; instants and samples (i, I, R, n, P) are marks of 0 ns; counters (C) are
    series; async ranges (b and e) have lanes of their own.

    Lanes: threads that make calls, in the order of their first call ("host" if there is one such thread, else
    as the trace names them), other threads, async ranges, then one for each stream: ``streams`` maps a
    stream's number to the lane's name, else it is "stream 7" ("device 1 stream 7" with several devices).
    What a profiler tells of waits on no stream stands on "no stream".

    ``launch`` is the correlation number, or the number of the launch arrows where an event has none; where
    several processes use the same numbers, those of the second and later ones are moved apart. ``step`` comes
    from the annotated ranges "step 3" or "ProfilerStep#3": host slices by their start within the range,
    device work by its host call.

    Edges of kind "order" come from the profiler's own "Stream Wait Event" entries, where it names the record
    that was waited for: from the last work before the record to the first work behind the wait. Waits whose
    record it did not know are counted in ``meta["edges_unknown"]``. Edges of kind "flow" are the trace's own
    arrows (s, t, f), except those from calls to their work, which ``launch`` tells already.

    ``meta``: device, provenance ("recorded"), source, file, rank, events (how many there are), rows (events
    that are in the timeline in another way than as a span of their own), left_out (events that are not in
    it), notes; what is given as keywords is kept with it. ``source`` says where the trace came from, there
    and in messages, if it is not a path. Entries that would be empty are left away.

    Times are kept to the nanosecond from JSON text; in a dict of Python floats, as far as those hold them.
    Raises ``LabError``, in one line, for a broken trace or one that holds nothing to show.
    """
    if isinstance(trace, Events):
        events = trace
    elif isinstance(trace, str | PathLike):
        source = source or str(trace)
        events = read_events(trace)
    else:
        events = events_of(trace, source or "the trace")
    return timeline_of(events, streams or {}, source, meta)


def host_names(threads: Iterable[tuple[Any, Any]]) -> dict[tuple[Any, Any], str]:
    """A name for each thread (pid, tid): "host" for the only one, else with as much as tells them apart."""
    threads = list(threads)
    hosts = {t: "host" if len(threads) == 1 else f"host {t[1]}" for t in threads}
    if len(set(hosts.values())) < len(hosts):
        hosts = {t: f"host {t[0]}/{t[1]}" for t in threads}
    return hosts


__all__ = ["OTHER", "check", "from_kineto", "host_names", "meaning", "place_of"]
