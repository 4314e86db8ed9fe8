"""How a viewer shows spans: their colours and the words about them. The same in a notebook and in a page.

The colours are those of Okabe and Ito ("Color Universal Design", 2008), as in `flashnorm_lab.figures`: fills
that people with any colour vision can tell apart. Vermilion, purple and hatched orange are kept for results
that are not fresh. Host threads are pale, so that the work of the device stands out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from zlib import crc32

import numpy as np

from .metrics.layout import shown
from .table import CATEGORIES, NO_DELAY, OUTCOMES, Timeline

INK, WHITE = "#333333", "#ffffff"
PALETTE = (
    ("#0072B2", WHITE),
    ("#009E73", WHITE),
    ("#56B4E9", INK),
    ("#E69F00", INK),
    ("#F0E442", INK),
    ("#80B8D8", INK),
    ("#80CEB9", INK),
    ("#A9D8F4", INK),
    ("#F2CF80", INK),
    ("#F5EFA0", INK),
    ("#B8B8B8", INK),
    ("#8C8C8C", WHITE),
    ("#C9C9C9", INK),
    ("#E6E6E6", INK),
    ("#D5E1EA", INK),
    ("#DBE6DD", INK),
    ("#ECE3D2", INK),
    ("#E4DFEA", INK),
    ("#EFEFEF", "#8C8C8C"),
)
"""Fill and text of each colour number: ten for work, then copies, calls, and so on."""

WORK = 10
COPY, CALL, OTHER_CALL, RANGE, OPERATOR, DIM = 10, 11, 12, 13, 14, 18
OPERATORS = 4
KERNELS = {
    "projection": 0,
    "fused_norm_projection": 0,
    "inv_rms": 1,
    "rms_norm": 1,
    "post_scale": 2,
    "spin": 3,
}
"""The lab's own kernels, coloured as in `flashnorm_lab.figures`."""

GROUPS = dict.fromkeys(("rms_norm", "add_rms_norm", "norm_mixed", "norm_product", "communication_norm"), 1)
GROUPS |= dict.fromkeys(("layer_norm", "other_norm"), 6)
GROUPS |= {"gemm": 0, "convolution": 5, "attention": 2, "softmax": 7, "loss": 7}
GROUPS |= dict.fromkeys(("activation", "optimizer"), 3)
GROUPS |= dict.fromkeys(("rope", "embedding", "quantize"), 8)
GROUPS |= {"elementwise": 4, "reduction": 9, "copy_layout": 9, "communication": CALL}
GROUPS |= dict.fromkeys(("sampling", "random", "other", "copy", "fill", "graph"), COPY)
"""The colours of the groups that the lab knows; kin share one. Any other has one by its name."""


def source_name(t: Timeline) -> str:
    """What a timeline was read from, without the folders, which are nobody else's affair; "" if unknown."""
    lines = str(t.meta.get("source") or "").splitlines() or [""]
    return lines[0].replace("\\", "/").rsplit("/", 1)[-1]


def colours(t: Timeline) -> np.ndarray:
    """The colour of each span by its name, as a number of `PALETTE`, uint8 [spans]: the same name has the
    same colour in every timeline."""
    hashes = _hashes(t.names)
    work = np.array([KERNELS.get(name, h % WORK) for name, h in zip(t.names, hashes.tolist(), strict=True)])
    return _colours(t, work.astype(np.int64), hashes)


def group_colours(t: Timeline) -> tuple[np.ndarray, list[tuple[str, int]]]:
    """The same by the group of its name, see `flashnorm_lab.timeline.metrics.groups`; and which groups the
    kernels are of, each with its colour's number."""
    from .metrics.groups import Groups

    groups = Groups.load()
    of_name = [groups.group_of(name) for name in t.names]
    hashes = _hashes(t.names)
    number = {group: GROUPS.get(group, crc32(group.encode()) % WORK) for group in set(of_name)}
    kernels = np.unique(t.name[t.on_device() & t.is_category("kernel")])
    there = {of_name[i] for i in kernels.tolist()}
    work = np.array([number[group] for group in of_name], dtype=np.int64)
    return _colours(t, work, hashes), [(name, number[name]) for name in groups.names if name in there]


def _hashes(names: Sequence[str]) -> np.ndarray:
    return np.array([crc32(name.encode("utf-8", "replace")) for name in names], dtype=np.int64)


def _colours(t: Timeline, work: np.ndarray, hashes: np.ndarray) -> np.ndarray:
    """A colour for each span: of ``work`` [names] for kernels and the like, else of its category."""
    if not len(t):
        return np.empty(0, dtype=np.uint8)
    operator = OPERATOR + hashes % OPERATORS
    host, device = np.full((2, len(CATEGORIES)), -1, dtype=np.int64)
    for table, categories, number in (
        (host, ("launch", "copy", "fill", "graph", "kernel"), CALL),
        (host, ("record", "wait", "synchronize", "call"), OTHER_CALL),
        (host, ("range",), RANGE),
        (device, ("copy", "fill"), COPY),
        (device, ("record", "wait", "synchronize", "call"), OTHER_CALL),
        (device, ("range",), RANGE),
    ):
        table[[CATEGORIES.index(category) for category in categories]] = number
    on_device = t.on_device()
    by_category = np.where(on_device, device[t.category], host[t.category])
    by_name = np.where(on_device, work[t.name], operator[t.name])
    return np.where(by_category < 0, by_name, by_category).astype(np.uint8)


@lru_cache(maxsize=65536)
def label(name: str) -> str:
    """A name short enough for a bar: without the return type, template arguments, parameters and namespaces
    of C++, where it has them. "void at::native::fill<float>(int)" is "fill"; "aten::mm" stays."""
    text = shown(name[:400]).replace("(anonymous namespace)::", "")
    if re.match(r"[\w:~]+ .*[<(]|[\w:~]+[<(]", text):
        text = re.split(r"[<(]", text, maxsplit=1)[0].split(" ")[-1].split("::")[-1] or text
    return text[:120]


def exact_time(ns: int) -> str:
    """Nanoseconds with every digit: "45.6473 ms"."""
    sign, size = "−" if ns < 0 else "", abs(int(ns))
    for unit, width, word in ((10**9, 9, "s"), (10**6, 6, "ms"), (10**3, 3, "µs")):
        if size >= unit:
            rest = f"{size % unit:0{width}}".rstrip("0")
            return f"{sign}{size // unit:,}{'.' * bool(rest)}{rest} {word}"
    return f"{sign}{size} ns"


def describe(t: Timeline, span: int, origin_ns: int, delay_ns: int = NO_DELAY) -> list[tuple[str, str]]:
    """What there is to say of a span, as (what, words): lane, start from ``origin_ns``, duration, …"""
    lane = t.lanes[t.lane[span]]
    start = int(t.start_ns[span])
    where = ", ".join(text for text in (lane.name, lane.device and f"device {lane.device}") if text)
    told = [
        ("what", f"{CATEGORIES[t.category[span]]} on {shown(where)}"),
        ("start", exact_time(start - origin_ns)),
        ("duration", exact_time(int(t.duration_ns[span]))),
    ]
    if delay_ns != NO_DELAY:
        told.append(("launch to start", exact_time(delay_ns)))
    if t.step[span] >= 0:
        told.append(("step", str(int(t.step[span]))))
    if t.outcome[span]:
        told.append(("result", OUTCOMES[t.outcome[span]]))
    return told
