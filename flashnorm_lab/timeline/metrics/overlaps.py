"""Overlap: of two streams, of two groups of spans, of every pair of streams; and how many run at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ...errors import LabError
from ..answer import Answer, Table, cut, ratio, told_share, told_time
from ..table import CALLS, DEVICE_WORK, Timeline
from .groups import Groups
from .layout import shown
from .measure import length
from .working import Work, plural, shared_ns, stretches, told_device, union_of, window_of, work_of


@dataclass(frozen=True)
class Pair:
    """Two sets of spans. first, second: their names. device: the device, "" where it is not one.

    first_ns, second_ns: union of each. both_ns: time in which both ran. of_first, of_second, of_window:
    both_ns as a share of each and of the window; None where there is nothing to divide by.
    """

    first: str
    second: str
    device: str
    first_ns: int
    second_ns: int
    both_ns: int
    of_first: float | None
    of_second: float | None
    of_window: float | None


@dataclass(frozen=True, kw_only=True)
class Overlap(Answer):
    """How much sets of spans ran at the same time. pairs: a `Pair` each, the most overlap first."""

    pairs: tuple[Pair, ...]
    window: tuple[int, int]

    @property
    def both_ns(self) -> int:
        """Time in which both of the first pair ran; 0 without any pair."""
        return self.pairs[0].both_ns if self.pairs else 0

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each pair."""
        rows = [
            (
                shown(f"{p.first} and {p.second}"),
                told_time(p.both_ns),
                told_time(p.first_ns),
                told_share(p.of_first),
                told_time(p.second_ns),
                told_share(p.of_second),
                told_share(p.of_window),
            )
            for p in self.pairs
        ]
        head = ("pair", "both", "first", "share", "second", "share", "of the window")
        return cut(rows, head, most) if rows else None

    def summary(self) -> str:
        """The first pair in words."""
        if not self.pairs:
            return "no two streams of one device have operations"
        p = self.pairs[0]
        return (
            f"{shown(p.first)} and {shown(p.second)} ran together for {told_time(p.both_ns)}: "
            f"{told_share(p.of_first)} of the first, {told_share(p.of_second)} of the second"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.words(),
            "window": list(self.window),
            "pairs": [asdict(pair) for pair in self.pairs],
        }


@dataclass(frozen=True)
class AtOnce:
    """One device. ns, shares: time with 0, 1, 2, … of its streams busy, and the share of the window of each;
    a share is None for an empty window. streams: streams that have operations."""

    device: str
    streams: int
    ns: tuple[int, ...]
    shares: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Concurrency(Answer):
    """How many streams were busy at once. devices: an `AtOnce` for each that has operations."""

    devices: tuple[AtOnce, ...]
    window: tuple[int, int]

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each device and number of streams."""
        rows = [
            (shown(told_device(d.device)), str(count), told_time(ns), told_share(share))
            for d in self.devices
            for count, (ns, share) in enumerate(zip(d.ns, d.shares, strict=True))
        ]
        return cut(rows, ("", "streams busy", "time", "share"), most) if rows else None

    def summary(self) -> str:
        """For each device, the time with two streams or more."""
        parts = [
            f"{shown(told_device(d.device))}: {told_time(sum(d.ns[2:]))} with two streams or more busy "
            f"({told_share(ratio(sum(d.ns[2:]), sum(d.ns)))}), {told_time(sum(d.ns[1:2]))} with one"
            for d in self.devices[:4]
        ]
        return "; ".join(parts) or "there is no operation of a device here"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.words(),
            "window": list(self.window),
            "devices": [asdict(d) for d in self.devices],
        }


def overlap(
    t: Timeline,
    a: str | np.ndarray,
    b: str | np.ndarray,
    groups: Groups | None = None,
    window: tuple[int, int] | None = None,
) -> Overlap:
    """How long two sets of spans ran at the same time, and what share that is of each.

    a, b: the name of a lane (its operations; of a host lane its calls), a group or family of ``groups``
    ("gemm", "norm", …; the lab's own by default), "compute" (kernels that are not communication), "copy"
    (copies and fills), or an index array of spans. A lane goes before a group of the same name.
    window: start and end in absolute nanoseconds; by default from the first start to the last end of all
    operations and of both sets. Spans count with their part in it.

    ``LabError`` for a name that is neither, an index that does not exist, or a span in both sets.
    """
    work = work_of(t)
    picked = [_chosen(t, which, groups) for which in (a, b)]
    common = np.intersect1d(*picked)
    if len(common):
        i = int(common[0])
        raise LabError(
            f"{plural(len(common), 'span')} ({shown(t.names[t.name[i]])!r}, span {i}, is the first) are in "
            f"both {_told(a)} and {_told(b)}; choose two sets that share no span"
        )
    everything = np.concatenate([work.span, *picked])
    if window is not None:
        begin, stop = window_of(work, window)
    elif len(everything):
        begin, stop = int(t.start_ns[everything].min()), int(t.end_ns[everything].max())
    else:
        begin, stop = 0, 0
    place = np.full(len(t.lanes), -1, dtype=np.int64)
    names = list(work.devices)
    for number, device in enumerate(names):
        place[list(work.devices[device])] = number
    sides = [np.unique(place[t.lane[spans]]) for spans in picked]
    left_out = [
        f"{plural(n, 'span')} of 0 ns in {_told(which)}: they run at no time"
        for which, spans in zip((a, b), picked, strict=True)
        if (n := int((t.duration_ns[spans] == 0).sum()))
    ]
    for side, which in zip(sides, (a, b), strict=True):
        if not len(side):
            left_out.append(f"everything: there is no span in {_told(which)}")
        if len(side) > 1 and side[0] < 0:
            raise LabError(f"{_told(which)} holds spans of the host and of a device; choose one or the other")
    # Sets that each stand on one device are compared as they are, whichever devices those are.
    within = not any(-1 in side for side in sides) and max(map(len, sides)) > 1
    places = np.unique(np.concatenate(sides)) if within else np.array([-1])
    totals = [0, 0, 0]
    for number in places:
        unions = []
        for spans in picked:
            mine = spans[place[t.lane[spans]] == number] if within else spans
            start, end = (np.clip(edge[mine], begin, stop) for edge in (t.start_ns, t.end_ns))
            unions.append(union_of(start, end))
        for k, ns in enumerate((length(unions[0]), length(unions[1]), shared_ns(*unions))):
            totals[k] += ns
    apart = not within and all(map(len, sides)) and sides[0][0] != sides[1][0]
    wide = (stop - begin) * len(places)
    pair = Pair(
        _name(a, "the first set"),
        _name(b, "the second set"),
        _only(sides, names),
        *totals,
        ratio(totals[2], totals[0]),
        ratio(totals[2], totals[1]),
        ratio(totals[2], wide),
    )
    times = f", times {len(places)} devices" if len(places) > 1 else ""
    return Overlap(
        title="Overlap",
        definition=(
            "of each set the union of its spans' intervals, and the time that both unions have in common; a "
            "set over several devices is compared within each device, and the devices are summed"
            + ("; here the one is on another device than the other, or on the host" if apart else "")
        ),
        denominator=f"the union of each set, and the window of {stop - begin:,} ns{times}",
        left_out=tuple(left_out),
        pairs=(pair,),
        window=(begin, stop),
    )


def overlaps(t: Timeline) -> Overlap:
    """Every pair of streams of one device that have operations, the most overlap first."""
    work = work_of(t)
    window = window_of(work, None)
    wide = window[1] - window[0]
    pairs = []
    for device, lanes in work.devices.items():
        unions = _unions(work, lanes)
        lengths = {i: length(u) for i, u in unions.items()}
        for i, j in combinations(unions, 2):
            both = shared_ns(unions[i], unions[j])
            shares = ratio(both, lengths[i]), ratio(both, lengths[j]), ratio(both, wide)
            names = t.lanes[i].name, t.lanes[j].name
            pairs.append(Pair(*names, device, lengths[i], lengths[j], both, *shares))
    pairs.sort(key=lambda pair: -pair.both_ns)
    alone = sum(len(_unions(work, lanes)) == 1 for lanes in work.devices.values())
    return Overlap(
        title="Overlap of streams",
        definition=(
            "of each stream the union of its operations' intervals, and the time that two unions have in "
            "common; pairs of streams of one device"
        ),
        denominator=f"the busy time of each stream, and the window of {wide:,} ns",
        left_out=(f"{plural(alone, 'device')} with operations on one stream only",) if alone else (),
        pairs=tuple(pairs),
        window=window,
    )


def concurrency(t: Timeline, window: tuple[int, int] | None = None) -> Concurrency:
    """Time with 0, 1, 2, … streams busy at once, for each device.

    window: start and end in absolute nanoseconds; by default from the first start to the last end of the
    operations of all devices. ``LabError`` for a window that ends before it starts.
    """
    work = work_of(t)
    begin, stop = window_of(work, window)
    wide = stop - begin
    devices = []
    for device, lanes in work.devices.items():
        unions = [np.clip(union, begin, stop) for union in _unions(work, lanes).values()]
        if not unions:
            continue
        at = np.concatenate([[begin, stop], *(union.ravel() for union in unions)])
        change = np.concatenate([[0, 0], *(np.tile([1, -1], len(union)) for union in unions)])
        order = np.argsort(at, kind="stable")
        depth, took = np.cumsum(change[order])[:-1], np.diff(at[order])
        ns = np.zeros(len(unions) + 1, dtype=np.int64)
        np.add.at(ns, depth[took > 0], took[took > 0])
        most = int(np.flatnonzero(ns)[-1]) if ns.any() else 0
        levels = tuple(ns[: most + 1].tolist())
        devices.append(AtOnce(device, len(unions), levels, tuple(ratio(level, wide) for level in levels)))
    idle = len(work.devices) - len(devices)
    return Concurrency(
        title="Streams busy at once",
        definition=(
            "at each moment the streams of a device on which an operation runs are counted; a stream counts "
            "once, whatever runs on it"
        ),
        denominator=f"the window, {wide:,} ns, the same for every device",
        left_out=(f"{plural(idle, 'device')} without an operation",) if idle else (),
        devices=tuple(devices),
        window=(begin, stop),
    )


def _unions(work: Work, lanes: tuple[int, ...]) -> dict[int, np.ndarray]:
    """The busy stretches of each of these lanes that has operations."""
    return {
        i: stretches(work.start[work.on(i)], work.end[work.on(i)])[0]
        for i in lanes
        if work.bounds[i] < work.bounds[i + 1]
    }


def _chosen(t: Timeline, which: str | np.ndarray, groups: Groups | None) -> np.ndarray:
    """The spans that are meant, indices without repeats."""
    if isinstance(which, str):
        if any(lane.name == which for lane in t.lanes):
            lane = t.lane_index(which)
            # Of a host lane its calls count, not the ranges and operators around them.
            kinds = DEVICE_WORK if t.lanes[lane].kind == "device" else CALLS
            return np.flatnonzero((t.lane == lane) & t.is_category(*kinds))
        return _group(t, which, groups)
    spans = np.asarray(which)
    if spans.ndim != 1 or (spans.size and spans.dtype.kind not in "iu"):
        raise LabError(
            f"a set of spans is {spans.dtype} of shape {spans.shape}; a list of span numbers, a lane or a "
            "group was expected"
        )
    if spans.size and not 0 <= spans.min() <= spans.max() < len(t):
        wrong = int(spans.min() if spans.min() < 0 else spans.max())
        raise LabError(f"there is no span {wrong}; this timeline has {plural(len(t), 'span')}, from 0 on")
    return np.unique(spans.astype(np.int64))


def _group(t: Timeline, name: str, groups: Groups | None) -> np.ndarray:
    try:
        return (groups or Groups.load()).spans(t, name)
    except LabError as error:
        lanes = ", ".join(shown(lane.name) for lane in t.lanes[:8]) or "none at all"
        more = f" and {len(t.lanes) - 8} more" if len(t.lanes) > 8 else ""
        raise LabError(f"{shown(name)!r} is no lane of this timeline ({lanes}{more}), and {error}") from None


def _name(which: str | np.ndarray, otherwise: str) -> str:
    return which if isinstance(which, str) else f"{otherwise} ({plural(len(which), 'span')})"


def _told(which: str | np.ndarray) -> str:
    return repr(shown(which)) if isinstance(which, str) else f"the given {plural(len(which), 'span')}"


def _only(sides: list[np.ndarray], names: list[str]) -> str:
    """The device that both sets stand on; "" if there is no such one."""
    numbers = np.unique(np.concatenate(sides))
    return names[numbers[0]] if len(numbers) == 1 and numbers[0] >= 0 else ""
