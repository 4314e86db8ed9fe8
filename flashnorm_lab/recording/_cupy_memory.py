"""Which buffer an array of CuPy's lies in, by its address, and which of that buffer's bytes it is."""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ..program import Allocate, Free, Step
from ..schedule import Access
from ._tape import Tape

PIECES = 256
"""Pieces of a strided array that are told apart; beyond, it is taken as all bytes from first to last."""

DEVICE, HOST = "device", "host"


@functools.lru_cache(maxsize=4096)
def access(buffer: str, start: int, stop: int, writes: bool) -> Access:
    return Access(buffer, start, stop, writes)


@dataclass(slots=True)
class Block:
    """Bytes ``start`` to ``stop`` that carry one name. ``looks``: how often one may still be looked for."""

    name: str
    start: int
    stop: int
    looks: int = 0

    def all_written(self) -> Access:
        return access(self.name, 0, self.stop - self.start, True)


class Addresses:
    """Blocks that do not overlap, found by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._blocks: dict[int, Block] = {}

    def add(self, block: Block) -> None:
        """A block where there is none."""
        insort(self._starts, block.start)
        self._blocks[block.start] = block

    def remove(self, block: Block) -> None:
        del self._starts[bisect_right(self._starts, block.start) - 1]
        del self._blocks[block.start]

    def at(self, address: int) -> Block | None:
        """The block that this byte lies in."""
        index = bisect_right(self._starts, address)
        if index:
            block = self._blocks[self._starts[index - 1]]
            if address < block.stop:
                return block
        return None

    def starting(self, address: int) -> Block | None:
        """The block that begins exactly here."""
        return self._blocks.get(address)

    def between(self, start: int, stop: int) -> list[Block]:
        """The blocks that overlap these bytes, in order."""
        starts = self._starts
        index = bisect_right(starts, start)
        if index and self._blocks[starts[index - 1]].stop > start:
            index -= 1
        found = []
        while index < len(starts) and starts[index] < stop:
            found.append(self._blocks[starts[index]])
            index += 1
        return found

    def covered(self, start: int, stop: int, new: Callable[[int, int], Block]) -> list[Block]:
        """The blocks that overlap these bytes; where there is none, ``new(start, stop)`` makes one."""
        at = start
        for block in self.between(start, stop):
            if block.start > at:
                self.add(new(at, block.start))
            at = block.stop
        if at < stop:
            self.add(new(at, stop))
        return self.between(start, stop)


class Memory:
    """The memory of the device, and pinned memory of the host.

    ``add`` takes the steps that this makes, and ``where`` gives a step's thread and line. ``is_pinned`` says
    of an address of the host's that the recording does not know whether CUDA has pinned it.
    """

    def __init__(
        self,
        tape: Tape,
        add: Callable[[Step], None],
        where: Callable[[], tuple[str, str]],
        is_pinned: Callable[[int], bool],
    ) -> None:
        self.tape, self._add, self._where, self._is_pinned = tape, add, where, is_pinned
        self._addresses = {DEVICE: Addresses(), HOST: Addresses()}
        self._known: dict[tuple[int, int, bool], list[Access]] = {}
        """The accesses to contiguous arrays, until the next block goes."""
        self.data: Callable[[Any], Any] = lambda array: array.data
        """How an array's pointer is read."""
        self.ndarray: Any = ()
        """The type of CuPy's arrays."""

    # Life

    def allocated(self, start: int, nbytes: int, whole: int, stream: str | None = None) -> Block:
        """A new block of the device's. What was thought to be at its address has been freed unseen."""
        for block in self._addresses[DEVICE].between(start, start + whole):
            self._end(DEVICE, block, "pool")
        block = Block(self.tape.token("buffer"), start, start + nbytes)
        self._addresses[DEVICE].add(block)
        self._allocation(block, DEVICE, stream)
        return block

    def pinned(self, start: int, nbytes: int, whole: int) -> None:
        """New pinned memory of the host, likewise."""
        for block in self._addresses[HOST].between(start, start + whole):
            self._end(HOST, block, "pool")
        if nbytes:
            self._addresses[HOST].add(self._found(HOST, start, start + nbytes))

    def freed(self, start: int, how: str, stream: str | None = None) -> None:
        """A block of the device's is given back."""
        block = self._addresses[DEVICE].starting(start)
        if block is not None:
            self._end(DEVICE, block, how, stream)

    def _found(self, memory: str, start: int, stop: int) -> Block:
        """Memory that was there before the recording, or that somebody else has taken."""
        block = Block(self.tape.token("buffer" if memory == DEVICE else "host memory"), start, stop, looks=2)
        self._allocation(block, memory)
        return block

    def _allocation(self, block: Block, memory: str, stream: str | None = None) -> None:
        self._add(Allocate(block.name, block.stop - block.start, block.start, memory, stream, *self._where()))

    def _end(self, memory: str, block: Block, how: str, stream: str | None = None) -> None:
        self._addresses[memory].remove(block)
        self._known.clear()
        self._add(Free(block.name, how, stream, *self._where()))

    # Accesses

    def block_at(self, address: int) -> Block | None:
        """The block of the device's that an address lies in."""
        return self._addresses[DEVICE].at(address)

    def bytes(self, memory: str, start: int, nbytes: int, writes: bool, *things: Any) -> list[Access]:
        """The accesses to bytes by their address. ``things``: what a program may have in a variable for them.

        Host memory that is not pinned is left out: CUDA copies it before the call returns, or waits.
        """
        if nbytes <= 0:
            return []
        addresses, stop = self._addresses[memory], start + nbytes
        block = addresses.at(start)
        if block is None and memory == HOST and not self._is_pinned(start):
            return []
        if block is None or stop > block.stop:
            blocks = addresses.covered(start, stop, functools.partial(self._found, memory))
        else:
            blocks = [block]
        for block in blocks:
            self._look(block, things)
        return [
            access(b.name, max(start, b.start) - b.start, min(stop, b.stop) - b.start, writes) for b in blocks
        ]

    def array(self, array: Any, writes: bool) -> list[Access]:
        """The accesses to the bytes of a CuPy array."""
        pointer = self.data(array)
        if array.flags.c_contiguous:
            key = pointer.ptr, array.nbytes, writes
            known = self._known.get(key)
            if known is not None:
                return known
            start, stop = key[0], key[0] + key[1]
            block = self._addresses[DEVICE].at(start)
            if block is not None and not block.looks and start < stop <= block.stop:
                found = self._known[key] = [
                    access(block.name, start - block.start, stop - block.start, writes)
                ]
                return found
        pieces, low, high = pieces_of(array.shape, array.strides, array.itemsize)
        if not pieces:
            return []
        ptr = pointer.ptr
        addresses = self._addresses[DEVICE]
        block = addresses.at(ptr + low)
        if block is None or ptr + high > block.stop:
            self._whole(pointer.mem, ptr + low, ptr + high)
            return [x for one, two in pieces for x in self.bytes(DEVICE, ptr + one, two - one, writes, array)]
        self._look(block, (array,))
        offset = ptr - block.start
        return [access(block.name, offset + one, offset + two, writes) for one, two in pieces]

    def _whole(self, mem: Any, start: int, stop: int) -> None:
        """Get to know all of the allocation that some bytes belong to."""
        if mem.ptr and mem.ptr <= start and stop <= mem.ptr + mem.size:
            start, stop = mem.ptr, mem.ptr + mem.size
        self._addresses[DEVICE].covered(start, stop, functools.partial(self._found, DEVICE))

    def numpy(self, array: Any, writes: bool) -> list[Access]:
        """The accesses to a numpy array, where its memory is pinned."""
        pieces, low, high = pieces_of(array.shape, array.strides, array.itemsize)
        if not pieces:
            return []
        start = array.__array_interface__["data"][0]
        return self.bytes(HOST, start + low, high - low, writes, *bases(array))

    def name(self, block: Block, name: str) -> None:
        """A new block's name, or "" where the program has none yet: then the next use looks for one."""
        if name:
            self.tape.call(block.name, name)
        else:
            block.looks = 1

    def _look(self, block: Block, things: Iterable[Any] = ()) -> None:
        """See what the program calls the array that all of a block is, or one of these things."""
        if block.looks:
            block.looks -= 1
            self.tape.look(block.name, *things, match=functools.partial(self._owns, block))

    def _owns(self, block: Block, value: object) -> bool:
        kind = self.ndarray
        return isinstance(value, kind) and value.base is None and self.data(value).mem.ptr == block.start


def bases(array: Any) -> list[Any]:
    """A numpy array and those that it is a view of."""
    found = []
    while array is not None and len(found) < 8:
        found.append(array)
        array = getattr(array, "base", None)
    return found


def pieces_of(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> tuple[list[tuple[int, int]], int, int]:
    """The byte ranges of an array, from its first element's address on, with the least and the greatest.

    All in one where the array has no gaps, and where it has too many (`PIECES`).
    """
    low, high, elements = 0, itemsize, 1
    for n, stride in zip(shape, strides, strict=True):
        elements *= n
        if stride > 0:
            high += (n - 1) * stride
        else:
            low += (n - 1) * stride
    if elements == 0:
        return [], 0, 0
    if high - low == elements * itemsize:
        return [(low, high)], low, high
    run, outer = itemsize, []
    for stride, n in sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1 and s):
        if stride <= run:
            run += (n - 1) * stride
        else:
            outer.append((stride, n))
    if not outer or math.prod(n for _, n in outer) > PIECES:
        return [(low, high)], low, high
    starts = [low + sum(at) for at in itertools.product(*[range(0, n * s, s) for s, n in reversed(outer)])]
    return [(start, start + run) for start in starts], low, high
