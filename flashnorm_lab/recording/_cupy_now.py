"""The recording that is on, for objects that were made in one recording and are used in a later one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cupy import Backend


class _Now:
    backend: Backend | None = None


now = _Now()


def listener() -> Backend | None:
    """Who records a call that this thread makes now; None where nobody does, or only the call around it."""
    backend = now.backend
    return backend if backend is not None and backend.listening() else None
