"""The gaps between busy stretches of streams and devices, and who caused them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..answer import Answer, Table, cut, ratio, told_share, told_time
from ..table import EDGE_KINDS, NO_DELAY, Timeline
from .layout import shortened, shown
from .working import ENQUEUED, NAME, Work, plural, stretches, told_device, work_of

CAUSES = ("host late", "dependency", "unknown")
"""Who can have caused a gap; columns of causes hold the place."""


@dataclass(frozen=True)
class Idle:
    """The gaps of one stream, or of one device (no stream of it busy).

    name: the lane, or the device in words; kind: "stream" or "device".
    count, total_ns: the gaps and their time. ns, counts: time by cause, and gaps by their largest cause, by
    the names in `CAUSES`; they add up to total_ns and count.
    """

    name: str
    kind: str
    device: str
    count: int
    total_ns: int
    ns: dict[str, int]
    counts: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Gaps(Answer):
    """Gaps, by cause. One entry of each column for each gap: those of streams first, then those of devices.

    owners: an `Idle` for each stream and device that has operations; ``owner`` [gaps] is an index into it.
    start_ns, end_ns [gaps] int64, absolute. ended_by [gaps] int64: the span whose start ended the gap.
    host_late_ns, dependency_ns, unknown_ns [gaps] int64: the gap's time by cause; they add up to its length.
    cause [gaps] int8 into `CAUSES`: the largest part, the first of equals.
    names: the name of each ended_by span, for printing.
    """

    owners: tuple[Idle, ...]
    owner: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    ended_by: np.ndarray
    host_late_ns: np.ndarray
    dependency_ns: np.ndarray
    unknown_ns: np.ndarray
    cause: np.ndarray
    timeline: Timeline

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def length_ns(self) -> np.ndarray:
        """How long each gap is, int64 [gaps]."""
        return self.end_ns - self.start_ns

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each device and stream: its gaps, and their time by cause."""
        rows = [
            (
                shown(owner.name),
                f"{owner.count:,}",
                told_time(owner.total_ns),
                *(f"{told_time(ns)} {told_share(ratio(ns, owner.total_ns))}" for ns in owner.ns.values()),
            )
            for owner in sorted(self.owners, key=lambda owner: owner.kind != "device")
        ]
        return cut(rows, ("", "gaps", "time", *CAUSES), most) if rows else None

    def largest(self, most: int | None = 10, kind: str = "stream") -> Table | None:
        """The longest gaps of the streams, or with kind "device" those of the devices; None without any."""
        rows = [
            (
                shown(self.owners[self.owner[i]].name),
                told_time(int(self.length_ns[i])),
                f"+{told_time(int(self.start_ns[i]) - self._zero)}",
                shown(shortened(self.timeline.names[self.timeline.name[self.ended_by[i]]], NAME)),
                *(told_time(int(part[i])) for part in self._parts),
            )
            for i in self.order(most, kind)
        ]
        chosen = int(np.isin(self.owner, self._owners_of(kind)).sum())
        head = ("longest gaps", "time", "from", "ended by", *CAUSES)
        return Table(head, tuple(rows), chosen - len(rows)) if rows else None

    def order(self, most: int | None = None, kind: str = "stream") -> np.ndarray:
        """Indices of the gaps of streams or devices, the longest first, the earliest of equals first."""
        chosen = np.flatnonzero(np.isin(self.owner, self._owners_of(kind)))
        order = chosen[np.lexsort((self.start_ns[chosen], -self.length_ns[chosen]))]
        return order if most is None else order[:most]

    def summary(self) -> str:
        """The gaps of the devices by cause."""
        devices = [owner for owner in self.owners if owner.kind == "device"]
        total = sum(owner.total_ns for owner in devices)
        if not devices:
            return "there is no operation of a device here"
        count = sum(owner.count for owner in devices)
        if not count:
            return "no device was idle between its operations"
        parts = ", ".join(
            f"{cause} {told_time(ns)} ({told_share(ratio(ns, total))})"
            for cause in CAUSES
            for ns in [sum(owner.ns[cause] for owner in devices)]
        )
        return f"{plural(count, 'gap')} of whole devices, {told_time(total)}: {parts}"

    def text(self, most: int | None = 20) -> str:
        """What every answer prints, and the longest gaps."""
        longest = self.largest(10)
        return super().text(most) + (f"\n{longest}" if longest else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; of single gaps the 100 longest of streams and of devices."""
        listed = {}
        for kind in ("stream", "device"):
            listed[kind] = [
                {
                    "of": self.owners[self.owner[i]].name,
                    "start_ns": int(self.start_ns[i]),
                    "end_ns": int(self.end_ns[i]),
                    "ended_by": int(self.ended_by[i]),
                    "cause": CAUSES[self.cause[i]],
                    "ns": {cause: int(part[i]) for cause, part in zip(CAUSES, self._parts, strict=True)},
                }
                for i in self.order(100, kind)
            ]
        return {
            **self.words(),
            "owners": [asdict(owner) for owner in self.owners],
            "longest_of_streams": listed["stream"],
            "longest_of_devices": listed["device"],
        }

    @property
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.host_late_ns, self.dependency_ns, self.unknown_ns

    @property
    def _zero(self) -> int:
        return int(self.timeline.start_ns.min())

    def _owners_of(self, kind: str) -> list[int]:
        return [i for i, owner in enumerate(self.owners) if owner.kind == kind]


def gaps(t: Timeline, at_least_ns: int = 0) -> Gaps:
    """The gaps of every stream and device by cause; those shorter than ``at_least_ns`` are left out."""
    work = work_of(t)
    owners: list[tuple[str, str, str]] = []
    columns: list[list[np.ndarray]] = []
    picked = [
        (t.lanes[i].name, "stream", device, np.arange(work.bounds[i], work.bounds[i + 1]))
        for device, lanes in work.devices.items()
        for i in lanes
    ]
    picked += [(told_device(device), "device", device, work.of(device)) for device in work.devices]
    for name, kind, device, which in picked:
        if not len(which):
            continue
        busy, opens = stretches(work.start[which], work.end[which])
        columns.append(
            [np.full(max(len(busy) - 1, 0), len(owners)), busy[:-1, 1], busy[1:, 0], which[opens[1:]]]
        )
        owners.append((name, kind, device))
    joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)] if columns else []
    owner, start, end, by = joined or [np.empty(0, dtype=np.int64)] * 4
    long = end - start >= at_least_ns
    short_count, short_ns = int((~long).sum()), int((end - start)[~long].sum())
    owner, start, end, by = owner[long], start[long], end[long], by[long]

    host, dependency, disagree = _causes(t, work, start, end, by)
    unknown = end - start - host - dependency
    cause = np.argmax(np.stack([host, dependency, unknown]), axis=0).astype(np.int8)
    idle = []
    for i, (name, kind, device) in enumerate(owners):
        mine = owner == i
        ns = [int(part[mine].sum()) for part in (host, dependency, unknown)]
        counts = np.bincount(cause[mine], minlength=len(CAUSES)).tolist()
        idle.append(
            Idle(
                name,
                kind,
                device,
                int(mine.sum()),
                sum(ns),
                dict(zip(CAUSES, ns, strict=True)),
                dict(zip(CAUSES, counts, strict=True)),
            )
        )
    left_out = ["idle time before the first and behind the last operation of a stream or device"]
    if short_count:
        left_out.append(
            f"{plural(short_count, 'gap')} shorter than {at_least_ns:,} ns, {told_time(short_ns)} in all"
        )
    if disagree.any():
        left_out.append(
            f"{plural(int(disagree.sum()), 'gap')} ({told_time(int((end - start)[disagree].sum()))}) that "
            "end with an operation which starts before its own call: the clocks disagree there, and the "
            "cause is told as unknown"
        )
    streams = sum(kind == "stream" for _, kind, _ in owners)
    if streams > 1 and not (t.edge_kind == EDGE_KINDS.index("order")).any():
        left_out.append(
            "waits between streams: this timeline has no edge of kind order, so that dependency is told as "
            "unknown"
        )
    waits = int(t.meta.get("edges_unknown", 0) or 0)
    if waits:
        left_out.append(
            f"{plural(waits, 'wait')} whose record the trace does not know: gaps of theirs are told as "
            "unknown"
        )
    error = t.meta.get("clock_error_ns")
    if error:
        left_out.append(f"the error of the host's clock against the device's, up to {told_time(error)} a gap")
    return Gaps(
        title="Gaps",
        definition=(
            "a gap is the time between two busy stretches of a stream, or of a device while none of its "
            "streams is busy; its cause is that of the operation which ends it (of several that start "
            "together, the first in lane order). Until that operation is enqueued: host late, since the "
            "device cannot start what it does not have. From there until the last operation that it waited "
            "for (by the recorded edges of kind order) ended: dependency. The rest, and every gap that an "
            "operation without a launch ends: unknown (latency, or a cause that is not in the trace). Here "
            f"{ENQUEUED}"
        ),
        denominator="the time of the gaps of that stream or device; a gap counts to its largest cause",
        left_out=tuple(left_out),
        owners=tuple(idle),
        owner=owner.astype(np.int32),
        start_ns=start,
        end_ns=end,
        ended_by=work.span[by],
        host_late_ns=host,
        dependency_ns=dependency,
        unknown_ns=unknown,
        cause=cause,
        timeline=t,
    )


def _causes(
    t: Timeline, work: Work, start: np.ndarray, end: np.ndarray, by: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Time that the host was late, time of dependency, and whether clocks disagree, for each gap."""
    waited = np.full(len(t), NO_DELAY, dtype=np.int64)
    operation = np.zeros(len(t), dtype=bool)
    operation[work.span] = True
    orders = t.edge_kind == EDGE_KINDS.index("order")
    orders &= operation[t.edge_source] & operation[t.edge_target]
    source = t.edge_source[orders]
    np.maximum.at(waited, t.edge_target[orders], t.start_ns[source] + t.duration_ns[source])

    disagree = work.too_early[by]
    known = work.launched[by] & ~disagree
    there = np.where(known, np.clip(work.enqueued[by], start, end), start)
    free = np.where(known, np.clip(waited[work.span[by]], there, end), there)
    return there - start, free - there, disagree
