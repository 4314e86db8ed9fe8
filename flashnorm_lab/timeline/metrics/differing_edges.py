"""Edges that one timeline has more of than another: what orders its streams, and the other's do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..table import EDGE_KINDS, Timeline


@dataclass(frozen=True)
class EdgeDiff:
    """Edges of one name between two lanes. kind: one of `EDGE_KINDS`. count_a, count_b: how many there are;
    different ones, since those of equal numbers tell no difference."""

    name: str
    source_lane: str
    target_lane: str
    kind: str
    count_a: int
    count_b: int


def edges_apart(a: Timeline, b: Timeline) -> tuple[EdgeDiff, ...]:
    """The names of edges, and their lanes, of which one timeline has more than the other."""
    counts: list[dict[tuple[str, str, str, str], int]] = []
    for t in (a, b):
        lanes = (t.lane[t.edge_source], t.lane[t.edge_target])
        keys = np.stack([t.edge_name, *lanes, t.edge_kind.astype(np.int64)], axis=1)
        found, times = np.unique(keys, axis=0, return_counts=True)
        side: dict[tuple[str, str, str, str], int] = {}
        for (name, source, target, kind), count in zip(found.tolist(), times.tolist(), strict=True):
            key = (t.names[name], t.lanes[source].name, t.lanes[target].name, EDGE_KINDS[kind])
            side[key] = side.get(key, 0) + count
        counts.append(side)
    differ = [
        EdgeDiff(*key, counts[0].get(key, 0), counts[1].get(key, 0))
        for key in dict.fromkeys([*counts[0], *counts[1]])
    ]
    differ = [edge for edge in differ if edge.count_a != edge.count_b]
    return tuple(sorted(differ, key=lambda e: (-abs(e.count_b - e.count_a), e.name, e.source_lane)))
