"""What the figures in time share: a timeline's operations by stream, their calls, and unions of intervals."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...errors import LabError
from ..table import NO_DELAY, Timeline


@dataclass(frozen=True, eq=False)
class Work:
    """The operations of the device, sorted by lane, then by start, then by their place in the table.

    span [operations] int64: index of each in the timeline; lane int32; start, end int64 ns.
    call [operations] int64: index of the host call that enqueued it, -1 where the timeline has none.
    bounds [lanes + 1] int64: lane i has the operations ``bounds[i]`` to ``bounds[i + 1]``.
    devices: the device lanes of each device, in the order of the lanes.
    """

    span: np.ndarray
    lane: np.ndarray
    start: np.ndarray
    end: np.ndarray
    call: np.ndarray
    call_start: np.ndarray
    call_end: np.ndarray
    copies: np.ndarray
    bounds: np.ndarray
    devices: dict[str, tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.span)

    @property
    def launched(self) -> np.ndarray:
        """Whether the timeline has the call that enqueued each operation, bool [operations]."""
        return self.call >= 0

    @property
    def too_early(self) -> np.ndarray:
        """Whether each operation starts before its own call does, which only clocks that disagree can bring
        about; bool [operations]."""
        return self.launched & (self.start < self.call_start)

    def on(self, lane: int) -> slice:
        """The operations of a lane."""
        return slice(int(self.bounds[lane]), int(self.bounds[lane + 1]))

    def of(self, device: str) -> np.ndarray:
        """The operations of a device, indices in order of start."""
        return self._by_device[device]

    @cached_property
    def _by_device(self) -> dict[str, np.ndarray]:
        found = {}
        for device, lanes in self.devices.items():
            picked = np.concatenate([np.arange(self.bounds[i], self.bounds[i + 1]) for i in lanes])
            order = np.argsort(self.start[picked], kind="stable") if len(lanes) > 1 else slice(None)
            found[device] = picked[order]
        return found

    @cached_property
    def by_call(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """For each call that enqueued something, in order of the calls: its span, one of its operations, the
        start of the first of them, and how many they are."""
        launched = np.flatnonzero(self.launched)
        order = launched[np.argsort(self.call[launched], kind="stable")]
        if not len(order):
            return order, order, order, order
        calls = self.call[order]
        groups = np.flatnonzero(np.concatenate([[True], calls[1:] != calls[:-1]]))
        first_start = np.minimum.reduceat(self.start[order], groups)
        return calls[groups], order[groups], first_start, np.diff(groups, append=len(order))

    @property
    def awaited(self) -> np.ndarray:
        """Whether the call of each operation waited for it: it is a copy or fill, its call lasted at least
        `WAIT_NS`, and returned only when at least half of it had run; bool [operations]. Of a copy from
        pageable memory, the call may return a little before its end."""
        long = self.call_end - self.call_start >= WAIT_NS
        half = self.start + (self.end - self.start) // 2
        return self.copies & self.launched & long & (self.call_end >= half)

    @cached_property
    def enqueued(self) -> np.ndarray:
        """When each operation was on the device's queue at the latest, int64 [operations]; see `ENQUEUED`.

        For an operation without a call it says nothing (its own start).
        """
        calls, _, first_start, _ = self.by_call
        at = self.start.copy()
        mine = self.launched
        begun = first_start[np.searchsorted(calls, self.call[mine])]
        blocking = self.copies[mine] & (self.call_end[mine] >= self.end[mine])
        by = np.where(blocking, self.call_start[mine], self.call_end[mine])
        at[mine] = np.minimum(by, begun)
        return at


ENQUEUED = (
    "an operation is taken to be enqueued when its call returned, or when the call's first operation started "
    "if that was earlier (a call submits its work before it returns, at a time that no trace tells); "
    "a copy whose call returned only after the copy had ended, at the start of the call, "
    "since such a call waits for the copy"
)
"""When an operation was enqueued, as every answer that needs it says it."""

WAIT_NS = 20_000
"""A shorter call that copies may just happen to return after a small copy has run."""

NAME = 48
"""Characters of a kernel's name in a row that has other things to say."""

_last: tuple[weakref.ref[Timeline], Work] | None = None


def work_of(t: Timeline) -> Work:
    """The `Work` of a timeline. That of the timeline asked for last is kept as long as the timeline lives,
    since a report asks for it many times."""
    global _last
    if _last is not None and _last[0]() is t:
        return _last[1]
    work = _sorted(t)
    _last = (weakref.ref(t, _forget), work)
    return work


def _forget(gone: weakref.ref[Timeline]) -> None:
    global _last
    if _last is not None and _last[0] is gone:
        _last = None


def _sorted(t: Timeline) -> Work:
    span = t.operations()
    span = span[np.lexsort((t.start_ns[span], t.lane[span]))]
    call_of = np.full(len(t), -1, dtype=np.int64)
    pairs = t.launches()
    call_of[pairs[:, 1]] = pairs[:, 0]
    call = call_of[span]
    none = call < 0
    start, end = t.start_ns[span], t.start_ns[span] + t.duration_ns[span]
    lane = t.lane[span]
    devices: dict[str, list[int]] = {}
    for i, known in enumerate(t.lanes):
        if known.kind == "device":
            devices.setdefault(known.device, []).append(i)
    if len(t):
        call_start = np.where(none, NO_DELAY, t.start_ns[call])
        call_end = np.where(none, NO_DELAY, t.start_ns[call] + t.duration_ns[call])
    else:
        call_start = call_end = start
    return Work(
        span,
        lane,
        start,
        end,
        call,
        call_start,
        call_end,
        t.is_category("copy", "fill")[span],
        np.searchsorted(lane, np.arange(len(t.lanes) + 1)),
        {device: tuple(lanes) for device, lanes in devices.items()},
    )


def stretches(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The busy stretches of intervals that come in order of start: the union as int64 [stretches, 2], and
    which interval opens each (an index). Intervals of 0 ns make nothing busy."""
    long = np.flatnonzero(end > start)
    if not len(long):
        return np.empty((0, 2), dtype=np.int64), long
    begin, reach = start[long], np.maximum.accumulate(end[long])
    opens = np.flatnonzero(np.concatenate([[True], begin[1:] > reach[:-1]]))
    closes = np.concatenate([opens[1:] - 1, [len(long) - 1]])
    return np.stack([begin[opens], reach[closes]], axis=1), long[opens]


def union_of(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The union of intervals in any order, int64 [stretches, 2]."""
    order = np.argsort(start, kind="stable")
    return stretches(start[order], end[order])[0]


def clip(union: np.ndarray, window: tuple[int, int]) -> np.ndarray:
    """The part of a union inside a window."""
    cut = np.clip(union, *window)
    return cut[cut[:, 0] < cut[:, 1]]


def shared_ns(a: np.ndarray, b: np.ndarray) -> int:
    """How long two unions have in common, in nanoseconds.

    The time that ``b`` had been busy until each edge of ``a`` is told by the stretches of ``b`` before it;
    the shorter of the two asks, so that a few spans against a million cost little.
    """
    if len(a) > len(b):
        a, b = b, a
    if not len(a):
        return 0
    total = np.concatenate([[0], np.cumsum(b[:, 1] - b[:, 0])])

    def until(time: np.ndarray) -> np.ndarray:
        i = np.searchsorted(b[:, 0], time, side="right")
        last = np.maximum(i - 1, 0)
        return total[i] - np.where(i > 0, np.maximum(b[last, 1] - time, 0), 0)

    return int((until(a[:, 1]) - until(a[:, 0])).sum())


def window_of(work: Work, window: tuple[int, int] | None) -> tuple[int, int]:
    """The window asked for, else from the first start to the last end of the operations; (0, 0) without any.

    ``LabError`` for one that ends before it starts.
    """
    if window is None:
        return (int(work.start.min()), int(work.end.max())) if len(work) else (0, 0)
    start, stop = (int(edge) for edge in window)
    if stop < start:
        raise LabError(f"window={window!r} ends before it starts; a start and a later end were expected")
    return start, stop


def told_device(device: str) -> str:
    """A device as a reader meets it: "device 0" for "0"."""
    if not device:
        return "device"
    return f"device {device}" if device.isdecimal() else device


def plural(count: int, one: str, many: str = "") -> str:
    """ "1 operation", "3 operations"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def middle(ordered: np.ndarray) -> float | None:
    """The median of sorted whole numbers; None of none."""
    n = len(ordered)
    if not n:
        return None
    low, high = int(ordered[(n - 1) // 2]), int(ordered[n // 2])
    return float(low) if low == high else (low + high) / 2


def rank(count: int, percent: int) -> int:
    """The place of a percentile among ``count`` sorted values by nearest rank: the smallest value with at
    least so many percent of the values at or below it."""
    return max(-(-count * percent // 100), 1) - 1
