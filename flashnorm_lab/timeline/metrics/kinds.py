"""Kernels by name, group, range, step and lane."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ...errors import LabError
from ..answer import Answer, Table, ratio, told_share, told_time
from ..table import CATEGORIES, DEVICE_WORK, Timeline
from .groups import Groups
from .layout import shortened, shown
from .parts import device_of, union_by
from .ranges import innermost
from .stepfinding import is_step_name
from .stepping import steps
from .working import Work, plural, work_of

BY = ("name", "group", "range", "step", "lane")
NO_LAUNCH = "(no launch known)"
NO_RANGE = "(in no range)"
NO_STEP = "(in no step)"
COUNTED = re.compile(r", (?:op_id|seq) = \d+\b")
"""What torch's emit_nvtx adds to the name of each range: it would make every call of an operator its own."""
NAME_WIDTH = 60
"""A name is shortened to so many characters in a table; `as_dict` holds it whole."""


@dataclass(frozen=True)
class KernelUse:
    """The kernels of one name, group, range, step or lane.

    group: of a kernel's name, where they are told by name; else "".
    count: kernels. launched: those whose launch call is in the timeline.
    total_ns: the sum of their durations. union_ns: the time in which at least one of them ran, on each
    device for itself, added up over the devices.
    mean_ns, median_ns, min_ns, max_ns: of their durations.
    share_of_launches, share_of_time: count and total_ns of those of all kernels; None where that is 0.
    """

    label: str
    group: str
    count: int
    launched: int
    total_ns: int
    union_ns: int
    mean_ns: float
    median_ns: float
    min_ns: int
    max_ns: int
    share_of_launches: float | None
    share_of_time: float | None


@dataclass(frozen=True, kw_only=True)
class Kernels(Answer):
    """Kernels told apart by ``by``. uses: most summed time first; steps and lanes in their order.

    count: all kernels; launched: those whose launch call is in the timeline; total_ns: their summed time.
    """

    by: str
    uses: tuple[KernelUse, ...]
    count: int
    launched: int
    total_ns: int

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each name, group, range, step or lane."""
        rows = [
            (
                shortened(shown(use.label), NAME_WIDTH),
                *((use.group,) if self.by == "name" else ()),
                f"{use.count:,}",
                told_share(use.share_of_launches),
                told_time(use.total_ns),
                told_share(use.share_of_time),
                told_time(use.union_ns),
                told_time(use.mean_ns),
                told_time(use.median_ns),
                told_time(use.min_ns),
                told_time(use.max_ns),
            )
            for use in self.uses[:most]
        ]
        group = ("group",) if self.by == "name" else ()
        figures = ("launches", "share", "time", "share", "union", "mean", "median", "min", "max")
        head = (self.by, *group, *figures)
        return Table(head, tuple(rows), len(self.uses) - len(rows)) if rows else None

    def summary(self) -> str:
        """How many kernels, how long, and which of them took the most time."""
        if not self.uses:
            return "there is no kernel here"
        most = max(self.uses, key=lambda use: use.total_ns)
        return (
            f"{plural(self.count, 'kernel')}, {told_time(self.total_ns)} in sum, "
            f"{plural(len(self.uses), self.by)}; most time: {shortened(shown(most.label), NAME_WIDTH)} "
            f"({told_share(most.share_of_time)} of time, {told_share(most.share_of_launches)} of launches)"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; names whole."""
        return self.words() | {
            "by": self.by,
            "count": self.count,
            "launched": self.launched,
            "total_ns": self.total_ns,
            "uses": [asdict(use) for use in self.uses],
        }


def kernels(t: Timeline, by: str = "name", groups: Groups | None = None) -> Kernels:
    """The kernels of the device by name, by group, by annotated range, by step or by lane (stream).

    groups: for ``by="group"`` and the groups beside the names; the lab's own if left away.
    ``LabError`` for another ``by``.
    """
    if by not in BY:
        raise LabError(f"by={by!r}; one of {', '.join(BY)} was expected")
    work = work_of(t)
    chosen = np.flatnonzero(t.category[work.span] == CATEGORIES.index("kernel"))
    groups = groups or Groups.load()
    how, left_out = "", not_kernels(t, work)
    if by == "name":
        used, key = np.unique(t.name[work.span[chosen]], return_inverse=True)
        labels = [t.names[i] for i in used]
    elif by == "group":
        labels, key = list(groups.names), groups.of(t)[work.span[chosen]]
        how = (
            "; a group is told from the kernel's name, by data/kernel_groups.toml and a file of the reader's"
        )
    elif by == "lane":
        labels, key = [lane.name for lane in t.lanes], work.lane[chosen]
    elif by == "step":
        labels, key, how = _by_step(t, work, chosen)
    else:
        labels, key, by_stream = _by_range(t, work, chosen)
        how = (
            "; a kernel's range is the innermost annotated range of the host thread around the start of "
            "its launch call (steps are no ranges here, and what torch numbers its operators with, as in "
            "', op_id = 5', is left off their names); for a kernel without a known call"
            + (f" ({by_stream:,} here)" if by_stream else "")
            + ", the range on its own stream around its start"
        )
    uses = uses_of(work, chosen, key, labels)
    if by in ("name", "group", "range"):
        uses.sort(key=lambda use: (-use.total_ns, -use.count, use.label))
    if by == "name":
        uses = [_with_group(use, groups.group_of(use.label)) for use in uses]
    total = int((work.end[chosen] - work.start[chosen]).sum())
    return Kernels(
        title=f"Kernels by {by}",
        definition=(
            "each kernel on a device is one launch, whether or not its launch call is in the timeline; time "
            "is the sum of durations, so that kernels that run at once count fully each; union counts the "
            f"time in which at least one of them ran, on each device for itself{how}"
        ),
        denominator=f"all {plural(len(chosen), 'kernel')}, and their summed time of {total:,} ns",
        left_out=left_out,
        by=by,
        uses=tuple(uses),
        count=len(chosen),
        launched=int(work.launched[chosen].sum()),
        total_ns=total,
    )


def each(place: np.ndarray, of_name: list[bool]) -> np.ndarray:
    """What holds for each name, for each kernel."""
    return np.array(of_name, dtype=bool)[place] if len(of_name) else np.zeros(0, dtype=bool)


def named(t: Timeline, spans: np.ndarray, fits: Any) -> np.ndarray:
    """Which of these spans have a name that fits; each name is asked once."""
    used, place = np.unique(t.name[spans], return_inverse=True)
    return spans[each(place, [bool(fits(t.names[i])) for i in used])]


def around_of(
    t: Timeline, work: Work, chosen: np.ndarray, around: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The innermost of the spans ``around`` for each kernel: on the host around the start of its launch call,
    without a call on its own stream around its own start. And which were placed by their stream."""
    launched = work.launched[chosen]
    call = work.call[chosen]
    own = work.span[chosen]
    if not len(own):
        return np.empty(0, dtype=np.int64), launched
    at = np.where(launched, call, own)
    found = innermost(t, around, t.lane[at], t.start_ns[at])
    return found, ~launched & (found >= 0)


def _by_range(t: Timeline, work: Work, chosen: np.ndarray) -> tuple[list[str], np.ndarray, int]:
    around = named(t, np.flatnonzero(t.is_category("range")), lambda name: not is_step_name(name))
    found, by_stream = around_of(t, work, chosen, around)
    name = np.where(found >= 0, t.name[found] if len(t) else -1, np.where(work.launched[chosen], -1, -2))
    used, key = np.unique(name, return_inverse=True)
    own = [
        COUNTED.sub("", t.names[i]) if i >= 0 else NO_RANGE if i == -1 else NO_LAUNCH for i in used.tolist()
    ]
    labels = list(dict.fromkeys(own))
    place = {label: i for i, label in enumerate(labels)}
    return labels, np.array([place[label] for label in own], dtype=np.int64)[key], int(by_stream.sum())


def _by_step(t: Timeline, work: Work, chosen: np.ndarray) -> tuple[list[str], np.ndarray, str]:
    found = steps(t)
    used, key = np.unique(found.step[work.span[chosen]], return_inverse=True)
    return [str(i) if i >= 0 else NO_STEP for i in used], key, f"; steps: {found.how}"


def not_kernels(t: Timeline, work: Work) -> tuple[str, ...]:
    counts = np.bincount(t.category[work.span], minlength=len(CATEGORIES))
    words = {"copy": ("memory copy", "memory copies"), "fill": ("memory set", "memory sets")}
    lines = []
    for category in DEVICE_WORK:
        n = int(counts[CATEGORIES.index(category)])
        if n and category in words:
            lines.append(f"{plural(n, *words[category])}: no kernels")
        elif n and category == "graph":
            lines.append(f"{plural(n, 'graph')} told as one span: which kernels ran in it is unknown")
    return tuple(lines)


def uses_of(work: Work, chosen: np.ndarray, key: np.ndarray, labels: list[str]) -> list[KernelUse]:
    """The figures of each key that occurs, in the order of the keys."""
    count = np.bincount(key, minlength=len(labels))
    launched = np.bincount(key[work.launched[chosen]], minlength=len(labels))
    start, end = work.start[chosen], work.end[chosen]
    took = end - start
    order = np.lexsort((took, key))
    took = took[order]
    stop = np.cumsum(count)
    first = stop - count
    sums = np.concatenate([[0], np.cumsum(took)])
    total = sums[stop] - sums[first]
    union = union_by(key, device_of(work)[chosen], start, end, len(labels))
    all_count, all_ns = len(chosen), int(took.sum())
    uses = []
    for i in np.flatnonzero(count):
        low, high = int(took[first[i] + (count[i] - 1) // 2]), int(took[first[i] + count[i] // 2])
        uses.append(
            KernelUse(
                label=labels[i],
                group="",
                count=int(count[i]),
                launched=int(launched[i]),
                total_ns=int(total[i]),
                union_ns=int(union[i]),
                mean_ns=int(total[i]) / int(count[i]),
                median_ns=(low + high) / 2,
                min_ns=int(took[first[i]]),
                max_ns=int(took[stop[i] - 1]),
                share_of_launches=ratio(int(count[i]), all_count),
                share_of_time=ratio(int(total[i]), all_ns),
            )
        )
    return uses


def _with_group(use: KernelUse, group: str) -> KernelUse:
    return KernelUse(**(vars(use) | {"group": group}))
