"""Which bytes an OpenCL call means: memory objects, and host memory by address."""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Any


class Memory:
    """Bytes 0 to ``size`` of a memory object, as parts (name, start, stop) of what the recording knows."""

    __slots__ = ("_parts", "flags", "holders", "key", "parent", "size", "tokens")

    def __init__(self, key: object, parts: tuple[tuple[str, int, int], ...], size: int, flags: int) -> None:
        self.key, self._parts, self.size, self.flags = key, parts, size, flags
        self.holders = 0
        """How many Python objects stand for this memory object."""
        self.parent = 0
        """A sub-buffer's buffer, by its address."""
        self.tokens = tuple(dict.fromkeys(token for token, *_ in parts))

    @property
    def token(self) -> str:
        """The name of its first bytes."""
        return self.tokens[0] if self.tokens else "nothing"

    def parts(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """The parts of bytes ``start`` to ``stop``."""
        at = 0
        for token, low, high in self._parts:
            first, last = max(start, at), min(stop, at + high - low)
            if first < last:
                yield token, low + first - at, low + last - at
            at += high - low


class _Region:
    """Host memory from one address to another, under one name."""

    __slots__ = ("owner", "start", "stop", "token")

    def __init__(self, start: int, stop: int, token: str, owner: Any) -> None:
        self.start, self.stop, self.token, self.owner = start, stop, token, owner


class Addresses:
    """Host memory by address, each byte under one name as long as the array that owns it lives."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: dict[int, _Region] = {}

    def parts(
        self, start: int, stop: int, around: tuple[int, int], owner: Any, new: Callable[[int], str]
    ) -> Iterator[tuple[str, int, int]]:
        """The parts (name, start, stop) of these addresses; ``new`` names a region where there is none yet.

        ``owner``: the array that owns the memory, whose end is the region's, None where it cannot be told;
        ``around``: its bounds.
        """
        at = start
        while at < stop:
            index = bisect_right(self._starts, at)
            region = self._regions[self._starts[index - 1]] if index else None
            if region is None or region.stop <= at:
                low = max(min(around[0], start), region.stop if region is not None else 0)
                high = max(around[1], stop)
                if index < len(self._starts):
                    high = min(high, self._starts[index])
                region = self._add(low, high, owner, new)
            elif owner is not None and region.owner is None:
                self.forget(region.start)  # an array owns these bytes now: what was here is gone
                continue
            yield region.token, at - region.start, min(stop, region.stop) - region.start
            at = region.stop

    def _add(self, start: int, stop: int, owner: Any, new: Callable[[int], str]) -> _Region:
        watch = None if owner is None else weakref.ref(owner, lambda _: self.forget(start))
        region = self._regions[start] = _Region(start, stop, new(stop - start), watch)
        insort(self._starts, start)
        return region

    def forget(self, start: int) -> None:
        """The memory that began here is gone."""
        if self._regions.pop(start, None) is not None:
            self._starts.remove(start)


def place(array: Any) -> tuple[int, int, Any, tuple[int, int]] | None:
    """Where a host array lies: start, stop, the array that owns the memory, that one's bounds.

    The owner is None where memory belongs to something else than an array. None for what has no lasting
    place, such as a number.
    """
    import numpy as np

    if isinstance(array, np.generic) or nbytes(array) == 0:
        return None
    if not isinstance(array, np.ndarray):
        array = np.frombuffer(array, np.uint8)
    start = array.__array_interface__["data"][0]
    stop = start + array.nbytes
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    if owner.base is not None or not owner.flags.owndata:
        return start, stop, None, (start, stop)
    low = owner.__array_interface__["data"][0]
    return start, stop, owner, (low, low + owner.nbytes)


def nbytes(array: Any) -> int:
    """The size of anything that has Python's buffer interface."""
    size = getattr(array, "nbytes", None)
    return memoryview(array).nbytes if size is None else int(size)
