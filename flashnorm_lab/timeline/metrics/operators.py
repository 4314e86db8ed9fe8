"""Where the time of host threads goes: operators and functions of a framework by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..answer import Answer, Table, ratio, told_share, told_time
from ..nesting import in_order
from ..table import Timeline
from .kinds import NAME_WIDTH
from .layout import shortened, shown
from .working import plural


@dataclass(frozen=True)
class OperatorUse:
    """The operators of one name. count: how many. total_ns: the sum of their durations, so that one within
    another of its own name counts twice. self_ns: the same less the operators directly within them. mean_ns,
    max_ns: of their durations. share: self_ns of all operators' self time; None where that is 0."""

    name: str
    count: int
    total_ns: int
    self_ns: int
    mean_ns: float
    max_ns: int
    share: float | None


@dataclass(frozen=True, kw_only=True)
class Operators(Answer):
    """Operators on the host. uses: an `OperatorUse` for each name, the most self time first.

    count: all operators; self_ns: their self time, which is the time that some operator ran, added up over
    the threads.
    """

    uses: tuple[OperatorUse, ...]
    count: int
    self_ns: int

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each name."""
        rows = [
            (
                shortened(shown(use.name), NAME_WIDTH),
                f"{use.count:,}",
                told_time(use.self_ns),
                told_share(use.share),
                told_time(use.total_ns),
                told_time(use.mean_ns),
                told_time(use.max_ns),
            )
            for use in self.uses[:most]
        ]
        head = ("operator", "count", "self time", "share", "total", "mean", "max")
        return Table(head, tuple(rows), len(self.uses) - len(rows)) if rows else None

    def summary(self) -> str:
        """How many there are, and which has the most self time."""
        if not self.uses:
            return "there is no operator of a framework here"
        most = self.uses[0]
        return (
            f"{plural(self.count, 'operator')}, {plural(len(self.uses), 'name')}, {told_time(self.self_ns)} "
            f"of thread time; most self time: {shortened(shown(most.name), NAME_WIDTH)} "
            f"({told_time(most.self_ns)}, {told_share(most.share)})"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON; names whole."""
        return {
            **self.words(),
            "count": self.count,
            "self_ns": self.self_ns,
            "uses": [asdict(use) for use in self.uses],
        }


def operators(t: Timeline) -> Operators:
    """The operators and functions of a framework (category "op" on host threads) by name."""
    spans = np.flatnonzero(~t.on_device() & t.is_category("op"))
    spans = spans[in_order(t.lane[spans], t.start_ns[spans], t.duration_ns[spans])]
    took = t.duration_ns[spans]
    own, crossing = _self_time(t.lane[spans], t.start_ns[spans], took)
    name = t.name[spans]
    count, total, self_ns, longest = (np.zeros(len(t.names), dtype=np.int64) for _ in range(4))
    np.add.at(count, name, 1)
    np.add.at(total, name, took)
    np.add.at(self_ns, name, own)
    np.maximum.at(longest, name, took)
    every = int(self_ns.sum())
    uses = [
        OperatorUse(
            t.names[i],
            int(count[i]),
            int(total[i]),
            int(self_ns[i]),
            int(total[i]) / int(count[i]),
            int(longest[i]),
            ratio(int(self_ns[i]), every),
        )
        for i in np.flatnonzero(count).tolist()
    ]
    left_out = []
    if crossing:
        left_out.append(
            f"{plural(crossing, 'operator')} that ends behind the one around it: what is behind that end is "
            "in no self time but its own"
        )
    return Operators(
        title="Operators on the host",
        definition=(
            "operators and functions of a framework on host threads, by name; self time is an operator's "
            "duration less that of the operators directly within it on its thread; calls of the runtime and "
            "named ranges are no operators, and their time is that of the operator around them"
        ),
        denominator=f"the self time of all operators, {every:,} ns",
        left_out=tuple(left_out),
        uses=tuple(sorted(uses, key=lambda use: (-use.self_ns, -use.total_ns, use.name))),
        count=len(spans),
        self_ns=every,
    )


def _self_time(lane: np.ndarray, start: np.ndarray, took: np.ndarray) -> tuple[np.ndarray, int]:
    """Each duration less those of the spans directly within it, and how many spans cross the end of the one
    around them, for spans in the order of `in_order`."""
    own, end = took.copy(), start + took
    parent = _parents(lane, start, end)
    inner = np.flatnonzero(parent >= 0)
    around = parent[inner]
    np.subtract.at(own, around, np.minimum(end[inner], end[around]) - start[inner])
    return own, int((end[inner] > end[around]).sum())


def _parents(lane: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """The span around each one: the last before it on its lane that has not ended as it starts; -1 for none.

    Where spans nest, as they nearly always do, a few rounds find it: ask the one before, then the one around
    that, and so on, all spans at once.
    """
    parent = np.arange(len(start), dtype=np.int64) - 1
    parent[lane != np.concatenate([[-1], lane[:-1]])] = -1
    open_ = np.flatnonzero(parent >= 0)
    open_ = open_[end[parent[open_]] <= start[open_]]
    while len(open_):
        parent[open_] = parent[parent[open_]]
        open_ = open_[parent[open_] >= 0]
        open_ = open_[end[parent[open_]] <= start[open_]]
    return parent
