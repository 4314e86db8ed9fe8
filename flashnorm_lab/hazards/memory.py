"""Byte ranges, and what was done to each since it was last written."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .state import Clock, Mark

ENDLESS = 1 << 62
"""Stands for the end of a buffer whose size is not known."""
READERS = 64
"""How many readers of one range are kept, at least the latest on each stream among them."""
RANGES = 256
"""Above so many ranges in one memory, neighbours in the same state are joined again."""


Past = tuple[Mark, bool, str, Clock, Clock]
"""What an earlier owner of some bytes did: its mark, whether it wrote, the owner's name, the clock of its
stream-ordered free, and what its life was extended to."""


class Segment:
    """Bytes that have had the same accesses since they were last written."""

    __slots__ = ("before", "old", "older", "reads", "start", "stop", "write")

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.write: Mark | None = None
        self.before: Mark | None = None  # the write before the last, and the one before that: what may be
        self.older: Mark | None = None  # read too late
        self.reads: dict[tuple[int, str], Mark] = {}
        self.old: tuple[Past, ...] = ()  # of buffers that had these bytes before

    def cut(self, at: int) -> Segment:
        """Split in two; returns the upper part."""
        upper = Segment(at, self.stop)
        upper.write, upper.before, upper.older, upper.old = self.write, self.before, self.older, self.old
        upper.reads = dict(self.reads)
        self.stop = at
        return upper

    def own(self, allocation: Mark | None) -> None:
        """These bytes begin again, for a new owner."""
        self.write, self.before, self.older, self.reads = allocation, None, None, {}

    def like(self, other: Segment) -> bool:
        """Whether both have had the same since they were written; what was before that counts no more."""
        return self.write == other.write and self.reads == other.reads and self.old == other.old


class Memory:
    """An address space, cut where accesses begin and end."""

    __slots__ = ("limit", "segments", "starts", "users")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.segments: list[Segment] = []
        self.users: list[BufferState] = []
        self.limit = RANGES

    def between(self, start: int, stop: int) -> tuple[Segment, ...]:
        """The segments that make up exactly these bytes; cuts them, and fills gaps, where needed."""
        if start >= stop:
            return ()
        if len(self.segments) > self.limit:
            self._join()
        self._cut(start)
        self._cut(stop)
        i, found, at = bisect_left(self.starts, start), [], start
        while at < stop:
            if i == len(self.starts) or self.starts[i] > at:
                end = min(stop, self.starts[i]) if i < len(self.starts) else stop
                self.starts.insert(i, at)
                self.segments.insert(i, Segment(at, end))
            found.append(self.segments[i])
            at = self.segments[i].stop
            i += 1
        if len(found) > RANGES:  # they may become alike now
            self.limit = RANGES
        return tuple(found)

    def _cut(self, at: int) -> None:
        i = bisect_right(self.starts, at) - 1
        if i >= 0 and self.segments[i].start < at < self.segments[i].stop:
            self.starts.insert(i + 1, at)
            self.segments.insert(i + 1, self.segments[i].cut(at))
            self.forget()

    def _join(self) -> None:
        joined: list[Segment] = []
        for segment in self.segments:
            if joined and joined[-1].stop == segment.start and joined[-1].like(segment):
                joined[-1].stop = segment.stop
            else:
                joined.append(segment)
        self.segments, self.starts = joined, [s.start for s in joined]
        self.limit = max(RANGES, 2 * len(joined))  # many ranges in use: joining them each time would not pay
        self.forget()

    def forget(self) -> None:
        """What was looked up before may have been cut since."""
        for user in self.users:
            user.cache.clear()


class BufferState:
    __slots__ = (
        "base",
        "cache",
        "extended",
        "free_clock",
        "freed",
        "memory",
        "name",
        "nbytes",
        "retired",
        "streams",
    )

    def __init__(self, name: str, nbytes: int, memory: Memory, base: int) -> None:
        self.name, self.nbytes, self.memory, self.base = name, nbytes, memory, base
        self.cache: dict[tuple[int, int], tuple[Segment, ...]] = {}
        self.freed: Mark | None = None
        self.retired = False  # whether somebody else has the bytes by now
        self.free_clock: Clock = []
        self.streams: dict[str, None] = {}  # that its life was extended to
        self.extended: Clock = []
        memory.users.append(self)
