"""NVTX ranges, by which Nsight Systems shows the lab's own names. They do nothing where nvtx has no wheel."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

try:
    import nvtx
except ImportError:  # macOS
    nvtx = None

DOMAIN = "flashnorm_lab"


def around(name: str) -> AbstractContextManager[Any]:
    """A context manager: a range of this name around what happens inside."""
    return nvtx.annotate(name, domain=DOMAIN) if nvtx else contextlib.nullcontext()


def push(name: str) -> None:
    """Begin a range on this thread; `pop` ends the newest one."""
    if nvtx:
        nvtx.push_range(name, domain=DOMAIN)


def pop() -> None:
    """End the newest range that `push` began on this thread."""
    if nvtx:
        nvtx.pop_range(domain=DOMAIN)
