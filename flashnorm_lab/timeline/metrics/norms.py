"""The share of RMSNorm in the launches and in the time of the device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..answer import Answer, Table, cut, ratio, told_share, told_time
from ..table import CATEGORIES, Timeline
from .groups import Groups
from .kinds import KernelUse, around_of, each, named, not_kernels, uses_of
from .working import Work, plural, work_of

ALONE = ("rms_norm", "add_rms_norm", "norm_mixed")
"""The groups that are RMSNorm's own time, with an addition, a quantization or a rotary embedding at most."""
WITHIN = ("norm_product", "communication_norm")
"""The groups in which RMSNorm is a part of something larger, so that its own time cannot be told."""
PIECES = ("elementwise", "reduction", "copy_layout", "other")
"""The groups of the pieces of an RMSNorm that was written as separate operations."""
NORM_RANGE = re.compile(r"rms_?norm", re.IGNORECASE)
"""Operators, modules and ranges of this name enclose the pieces of an RMSNorm."""


@dataclass(frozen=True, kw_only=True)
class NormShare(Answer):
    """What of the device's work is RMSNorm.

    kernels, kernels_ns: all kernels and their summed time, which the shares are of.
    parts: a `KernelUse` for each group of norms that occurs, the most time first.
    launches, total_ns, share_of_launches, share_of_time: RMSNorm told by name (`ALONE`).
    annotated_launches, annotated_ns: kernels that are pieces of an RMSNorm written as separate operations,
        since an operator, a module or a range named RMSNorm stands around their launch call.
    within_launches, within_ns: kernels in which RMSNorm is a part of a product or an exchange (`WITHIN`).
    unsure_launches, unsure_ns: kernels whose name serves LayerNorm and RMSNorm alike.
    rsqrt_launches: kernels that compute nothing but 1/sqrt, outside of what is counted above; each RMSNorm
        that was written as separate operations launches one.
    """

    kernels: int
    kernels_ns: int
    parts: tuple[KernelUse, ...]
    launches: int
    total_ns: int
    share_of_launches: float | None
    share_of_time: float | None
    annotated_launches: int
    annotated_ns: int
    within_launches: int
    within_ns: int
    unsure_launches: int
    unsure_ns: int
    rsqrt_launches: int

    def table(self, most: int | None = 20) -> Table | None:
        """A row for each group of norms, and for what only annotations tell."""
        rows = [
            (
                part.label,
                f"{part.count:,}",
                told_share(part.share_of_launches),
                told_time(part.total_ns),
                told_share(part.share_of_time),
            )
            for part in self.parts
        ]
        if self.annotated_launches:
            rows.append(
                (
                    "separate operations, by annotation",
                    f"{self.annotated_launches:,}",
                    told_share(ratio(self.annotated_launches, self.kernels)),
                    told_time(self.annotated_ns),
                    told_share(ratio(self.annotated_ns, self.kernels_ns)),
                )
            )
        return cut(rows, ("norm", "launches", "share", "time", "share"), most) if rows else None

    def summary(self) -> str:
        """RMSNorm's share in launches and in time, and what else there is to know."""
        if not self.kernels:
            return "there is no kernel here"
        told = [
            f"{plural(self.launches, 'launch', 'launches')} ({told_share(self.share_of_launches)}) and "
            f"{told_time(self.total_ns)} ({told_share(self.share_of_time)}) by the names of kernels"
        ]
        if self.annotated_launches:
            both = (self.launches + self.annotated_launches, self.total_ns + self.annotated_ns)
            told.append(
                f"with the pieces told by annotation {plural(both[0], 'launch', 'launches')} "
                f"({told_share(ratio(both[0], self.kernels))}) and {told_time(both[1])} "
                f"({told_share(ratio(both[1], self.kernels_ns))})"
            )
        if self.within_launches:
            told.append(f"and a part of {plural(self.within_launches, 'fused kernel')}")
        if self.rsqrt_launches:
            told.append(
                f"{plural(self.rsqrt_launches, 'rsqrt kernel')} may be of norms in separate operations"
            )
        return "; ".join(told)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            key: [asdict(part) for part in value]
            if key == "parts"
            else list(value)
            if isinstance(value, tuple)
            else value
            for key, value in vars(self).items()
        }


def norm_share(t: Timeline, groups: Groups | None = None) -> NormShare:
    """The share of RMSNorm in the launches and in the summed kernel time of all devices."""
    groups = groups or Groups.load()
    work = work_of(t)
    chosen = np.flatnonzero(t.category[work.span] == CATEGORIES.index("kernel"))
    spans = work.span[chosen]
    group = groups.of(t)[spans]
    took = work.end[chosen] - work.start[chosen]
    total = int(took.sum())
    used, place = np.unique(t.name[spans], return_inverse=True)
    names = [t.names[i] for i in used]
    unsure = each(place, [bool((rule := groups.rule_of(n)) and rule.unsure) for n in names])

    def among(members: Sequence[str]) -> np.ndarray:
        return np.isin(group, [i for i, name in enumerate(groups.names) if name in members])

    alone, within = among(ALONE) & ~unsure, among(WITHIN)
    pieces = _in_norm(t, work, chosen) & among(PIECES)
    rsqrt = each(place, ["rsqrt" in n for n in names]) & among(("elementwise",)) & ~pieces
    norms = (*ALONE, *WITHIN, "layer_norm", "other_norm")
    parts = [u for u in uses_of(work, chosen, group, list(groups.names)) if u.label in norms]
    left_out = list(not_kernels(t, work))
    if within.any():
        left_out.append(
            f"{plural(int(within.sum()), 'kernel')} of {told_time(int(took[within].sum()))} that do a norm "
            "and a product, or a norm and an exchange, in one: what of them is the norm cannot be told"
        )
    if unsure.any():
        left_out.append(
            f"{plural(int(unsure.sum()), 'kernel')} of {told_time(int(took[unsure].sum()))} whose name "
            "serves LayerNorm and RMSNorm alike"
        )
    apart = int((~work.launched[chosen]).sum())
    if apart:
        left_out.append(f"{plural(apart, 'kernel')} without a known launch call: no annotation reaches them")
    left_out.append(
        "RMSNorm written as separate operations (pow, mean, rsqrt, mul): their names do not say norm; "
        "counted only where an operator, a module or a range named RMSNorm stands around their launch calls"
    )
    return NormShare(
        title="RMSNorm",
        definition=(
            "kernels whose name is known as RMSNorm, alone or with an addition, a quantization or a rotary "
            "embedding in the same kernel (groups " + ", ".join(ALONE) + "); time is the sum of durations"
        ),
        denominator=f"all {plural(len(chosen), 'kernel')}, and their summed time of {total:,} ns",
        left_out=tuple(left_out),
        kernels=len(chosen),
        kernels_ns=total,
        parts=tuple(sorted(parts, key=lambda use: -use.total_ns)),
        launches=int(alone.sum()),
        total_ns=int(took[alone].sum()),
        share_of_launches=ratio(int(alone.sum()), len(chosen)),
        share_of_time=ratio(int(took[alone].sum()), total),
        annotated_launches=int(pieces.sum()),
        annotated_ns=int(took[pieces].sum()),
        within_launches=int(within.sum()),
        within_ns=int(took[within].sum()),
        unsure_launches=int(unsure.sum()),
        unsure_ns=int(took[unsure].sum()),
        rsqrt_launches=int(rsqrt.sum()),
    )


def _in_norm(t: Timeline, work: Work, chosen: np.ndarray) -> np.ndarray:
    """Whether an operator, a module or a range named RMSNorm stands around each kernel's launch call."""
    around = named(t, np.flatnonzero(t.is_category("op", "range")), NORM_RANGE.search)
    return around_of(t, work, chosen, around)[0] >= 0
