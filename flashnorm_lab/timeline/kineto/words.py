"""What the words of a trace mean: categories old and new, and the names of runtime and driver calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ..table import CATEGORIES

STEP = re.compile(r"(?:ProfilerStep#|step )(\d{1,9})")
"""An annotated step, with its number."""

STREAM_WAIT = "Stream Wait Event"


class Side(IntEnum):
    """Where a category's slices stand: on a host thread, on a device's stream, or wherever their (pid, tid)
    belongs to by what else is on it."""

    EITHER = 0
    HOST = 1
    DEVICE = 2


class Meaning(NamedTuple):
    """What one category of a trace is here. ``call``: a call of the runtime or driver, judged by its name.
    ``sync``: a profiler's entry on a wait, judged by the call that it belongs to."""

    side: Side
    category: str
    call: bool = False
    sync: bool = False


OTHER = Meaning(Side.EITHER, "other")
_MEANINGS = {
    "kernel": Meaning(Side.DEVICE, "kernel"),
    "concurrent_kernel": Meaning(Side.DEVICE, "kernel"),
    "gpu_memcpy": Meaning(Side.DEVICE, "copy"),
    "memcpy": Meaning(Side.DEVICE, "copy"),
    "gpu_memset": Meaning(Side.DEVICE, "fill"),
    "memset": Meaning(Side.DEVICE, "fill"),
    "gpu_user_annotation": Meaning(Side.DEVICE, "range"),
    "cuda_profiler_range": Meaning(Side.DEVICE, "other"),
    "mtia_ccp_events": Meaning(Side.DEVICE, "other"),
    "user_annotation": Meaning(Side.HOST, "range"),
    "nvtx": Meaning(Side.HOST, "range"),
    "cpu_op": Meaning(Side.HOST, "op"),
    "operator": Meaning(Side.HOST, "op"),
    "python_function": Meaning(Side.HOST, "op"),
    "python": Meaning(Side.HOST, "op"),
    "fee": Meaning(Side.HOST, "op"),
    "cpu_instant_event": Meaning(Side.HOST, "other"),
    "overhead": Meaning(Side.HOST, "other"),
    "trace": Meaning(Side.HOST, "other"),
}
_RUNTIME = re.compile(r"(?:.*_)?(?:runtime|driver)")
_SYNC = re.compile(r"[a-z0-9]+_sync")
_CALL = Meaning(Side.HOST, "call", call=True)
_SYNCHRONIZATION = Meaning(Side.DEVICE, "other", sync=True)

LAUNCH_ARROWS = ("ac2g", "async_cpu_to_gpu")
"""Categories of arrows from a call to its work; in 2020 it was "async", and the arrow's name "launch"."""


def meaning(category: str) -> Meaning:
    """What slices of this category are. Of several categories with commas between, the first known counts."""
    for part in category.lower().split(","):
        word = part.strip()
        if word in _MEANINGS:
            return _MEANINGS[word]
        if _RUNTIME.fullmatch(word):
            return _CALL
        if _SYNC.fullmatch(word):
            return _SYNCHRONIZATION
    return OTHER


def is_launch_arrow(category: str, name: str) -> bool:
    """Whether arrows of this category and name lead from calls to the work that they enqueued."""
    category = category.lower()
    return category in LAUNCH_ARROWS or (category == "async" and name == "launch")


_CALLS = (
    ("graph", re.compile(r"GraphLaunch")),
    ("call", re.compile(r"^(?:cuda|cu|hip)Graph|HostFunc")),
    ("launch", re.compile(r"Launch")),
    ("fill", re.compile(r"[Mm]em[Ss]et|(?:MemBuffer|USM)Fill|AppendMemoryFill")),
    ("copy", re.compile(r"[Mm]emcpy|AppendMemoryCopy")),
    ("record", re.compile(r"EventRecord")),
    ("wait", re.compile(r"StreamWait")),
    ("synchronize", re.compile(r"Synchronize")),
)


def call_category(name: str) -> str:
    """What a call of the runtime or driver of CUDA, HIP or Level Zero does, by its name."""
    return next((category for category, pattern in _CALLS if pattern.search(name)), "call")


def call_categories(names: tuple[str, ...], used: Iterable[int]) -> np.ndarray:
    """The place in `CATEGORIES` for each of these names, int8 [names]; "call" for those not in ``used``."""
    found = np.full(len(names), CATEGORIES.index("call"), dtype=np.int8)
    for i in used:
        found[i] = CATEGORIES.index(call_category(names[i]))
    return found


def sync_category(entry: str, call: str | None) -> str:
    """What a profiler's entry on a synchronization is; ``call`` names its call, None if that is not known.

    The call decides: CUPTI has an "Event Sync" for cudaEventQuery too, which waits for nothing.
    """
    if call is not None:
        category = call_category(call)
        return category if category in ("wait", "synchronize") else "other"
    if entry == STREAM_WAIT:
        return "wait"
    return "synchronize" if entry.endswith("Sync") else "other"
