"""How long streams and devices were busy, over all operations and over those with a launch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..answer import Answer, Table, cut, ratio, told_share, told_time
from ..table import Timeline
from .layout import shown
from .measure import length
from .working import Work, clip, plural, stretches, told_device, window_of, work_of


@dataclass(frozen=True)
class Use:
    """One stream or one device over the window.

    name: the lane, or the device in words. device: which device, as its lanes name it.
    spans: operations that touch the window. busy_ns: the union of their intervals, cut to the window; of a
    device, the union over all of its streams. idle_ns: the window less busy_ns. share: busy_ns of the
    window, None for an empty window.
    launched_…: the same over the operations whose launch call is in the timeline.
    """

    name: str
    device: str
    spans: int
    busy_ns: int
    idle_ns: int
    share: float | None
    launched_spans: int
    launched_busy_ns: int
    launched_idle_ns: int
    launched_share: float | None


@dataclass(frozen=True, kw_only=True)
class Busy(Answer):
    """Busy and idle time. window_ns: start and end in absolute nanoseconds. lanes: a `Use` for each stream.
    devices: a `Use` for each device, over the union of its streams. Streams and devices without an operation
    are left out."""

    window: tuple[int, int]
    lanes: tuple[Use, ...]
    devices: tuple[Use, ...]

    @property
    def window_ns(self) -> int:
        """How long the window is, in nanoseconds."""
        return self.window[1] - self.window[0]

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each device, then one for each stream."""
        rows = [
            (
                shown(use.name),
                f"{use.spans:,}",
                told_time(use.busy_ns),
                told_share(use.share),
                told_time(use.idle_ns),
                f"{use.launched_spans:,}",
                told_time(use.launched_busy_ns),
                told_share(use.launched_share),
            )
            for use in (*self.devices, *self.lanes)
        ]
        head = ("", "operations", "busy", "share", "idle", "with a launch", "busy", "share")
        return cut(rows, head, most) if rows else None

    def summary(self) -> str:
        """Each device's busy time, both ways."""
        if not any(use.spans for use in self.devices):
            return "there is no operation of a device here"
        told = "; ".join(
            f"{shown(use.name)} busy {told_time(use.launched_busy_ns)} over operations with a launch, "
            f"{told_time(use.busy_ns)} ({told_share(use.share)}) over all"
            for use in self.devices[:4]
        )
        more = f"; and {len(self.devices) - 4} more devices" if len(self.devices) > 4 else ""
        return f"{told}{more}; window {told_time(self.window_ns)}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            **self.words(),
            "window": list(self.window),
            "window_ns": self.window_ns,
            "devices": [asdict(use) for use in self.devices],
            "lanes": [asdict(use) for use in self.lanes],
        }


def busy(t: Timeline, window: tuple[int, int] | None = None) -> Busy:
    """Busy and idle time of every stream and every device.

    window: start and end in absolute nanoseconds; by default from the first start to the last end of the
    operations of all devices. ``LabError`` for a window that ends before it starts.
    """
    work = work_of(t)
    start, stop = window_of(work, window)
    lanes, devices, without = [], [], []
    for device, members in work.devices.items():
        some = [i for i in members if work.bounds[i] < work.bounds[i + 1]]
        without += [i for i in members if i not in some]
        for i in some:
            lanes.append(_use(work, t.lanes[i].name, device, work.on(i), (start, stop)))
        if some:
            devices.append(_use(work, told_device(device), device, work.of(device), (start, stop)))
    left_out = []
    if without:
        names = ", ".join(shown(t.lanes[i].name) for i in without[:4]) + (", …" if len(without) > 4 else "")
        left_out.append(f"{plural(len(without), 'lane')} of devices without an operation ({names})")
    outside = int((~_touches(work, slice(None), (start, stop))).sum())
    if outside:
        left_out.append(f"{plural(outside, 'operation')} outside of the window")
    empty = int((work.start == work.end).sum())
    if empty:
        left_out.append(f"{plural(empty, 'operation')} of 0 ns: counted, but they make nothing busy")
    which = "from the first start to the last end of the operations" if window is None else "as asked for"
    return Busy(
        title="Busy time",
        definition=(
            "a stream is busy while at least one of its operations (kernel, copy, fill, graph) runs: the "
            "union of their intervals, so that nothing counts twice; a device while any of its streams is; "
            "idle is the window less that. Told over all operations, and over those whose launch call is in "
            "the timeline"
        ),
        denominator=f"the window, {stop - start:,} ns {which}, the same for every stream and device",
        left_out=tuple(left_out),
        window=(start, stop),
        lanes=tuple(lanes),
        devices=tuple(devices),
    )


def _touches(work: Work, which: Any, window: tuple[int, int]) -> Any:
    """Whether operations have a part in the window; one of 0 ns if it starts in it, both edges included."""
    start, end = work.start[which], work.end[which]
    inside = (start < window[1]) & (end > window[0])
    return inside | ((start == end) & (start >= window[0]) & (start <= window[1]))


def _use(work: Work, name: str, device: str, which: Any, window: tuple[int, int]) -> Use:
    start, end = work.start[which], work.end[which]
    touches, launched = _touches(work, which, window), work.launched[which]
    wide = window[1] - window[0]
    figures: list[Any] = []
    for part in (slice(None), launched):
        took = length(clip(stretches(start[part], end[part])[0], window))
        figures += [int(touches[part].sum()), took, wide - took, ratio(took, wide)]
    return Use(name, device, *figures)
