"""Which operations are behind which, by a timeline's lanes, its edges of kind "order", and its host calls."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .table import EDGE_KINDS, Timeline

_EVERYTHING = re.compile(r"wait for every stream|(?:Device|Ctx|Context|Thread)Synchronize")
_ONE = re.compile(r"wait for (.+)")


class _Sync(NamedTuple):
    """A host call that waits. lanes: for which lanes; None where that is not told."""

    span: int
    start: int
    end: int
    lanes: tuple[int, ...] | None


class Paths:
    """The order that a timeline shows to be sure.

    work: its operations. Lanes run what they are given in order. An operation comes behind the sources of the
    edges that lead to it, and behind all that the host had waited for before it made the call. ``lacks`` says
    what is not known of the whole timeline, ``doubts`` what may order the cases that were judged last,
    ``aside`` what else matters.
    """

    def __init__(self, t: Timeline, work: np.ndarray) -> None:
        self.t = t
        self.lacks: list[str] = []
        self.doubts: list[str] = []
        self.aside: list[str] = []
        self.call = dict(t.launches()[:, ::-1].tolist())
        self._put_in_order(work)
        self._find_edges()
        self._find_syncs()

    def _put_in_order(self, work: np.ndarray) -> None:
        """The operations in the order in which they were issued, as far as it is known.

        A call's start says when. Work of which the call is not in the timeline counts as issued with the
        next one on its lane of which it is.
        """
        t = self.t
        late = np.iinfo(np.int64).max
        key = np.array(
            [t.start_ns[self.call[i]] if i in self.call else late for i in work.tolist()], np.int64
        )
        order = np.lexsort((work, t.start_ns[work], t.lane[work]))
        work, key = work[order], key[order]
        lanes = t.lane[work]
        for lane in np.unique(lanes).tolist():
            here = np.flatnonzero(lanes == lane)
            next_ = np.minimum.accumulate(key[here][::-1])[::-1]
            key[here] = np.where(next_ == late, t.start_ns[work[here]], next_)
        order = np.lexsort((np.arange(len(work)), key))
        self.work, self.issued = work[order].tolist(), key[order].tolist()
        self.lane = t.lane[self.work].tolist()
        self.rank = {span: i for i, span in enumerate(self.work)}
        self.on: dict[int, list[int]] = defaultdict(list)
        for i, lane in enumerate(self.lane):
            self.on[lane].append(i)

    def _find_edges(self) -> None:
        t = self.t
        self.into: dict[int, list[tuple[int, int]]] = defaultdict(list)
        known = np.flatnonzero(t.edge_kind == EDGE_KINDS.index("order")).tolist()
        backward = elsewhere = 0
        for i in known:
            source, target = int(t.edge_source[i]), int(t.edge_target[i])
            if source not in self.rank or target not in self.rank:
                elsewhere += 1
                continue
            self.into[target].append((source, int(t.edge_name[i])))
            backward += self.rank[source] > self.rank[target]
        if backward:
            self.lacks.append(f"how {backward} edges can lead to work that was issued before their source")
        if elsewhere:
            self.aside.append(f"{elsewhere} edges that do not lead from one operation of a device to another")
        unknown = int(t.meta.get("edges_unknown", 0))
        if unknown:
            self.lacks.append(f"what {unknown} waits of streams were for: their records are not known")

    def _find_syncs(self) -> None:
        t = self.t
        host = np.array([lane.kind == "host" for lane in t.lanes], dtype=bool)
        calls = np.flatnonzero(host[t.lane] & t.is_category("synchronize"))
        entries: dict[int, list[int]] = defaultdict(list)
        for span in np.flatnonzero(~host[t.lane] & t.is_category("synchronize") & (t.launch >= 0)).tolist():
            entries[int(t.launch[span])].append(span)
        named = {lane.name: i for i, lane in enumerate(t.lanes) if lane.kind == "device"}
        every = tuple(named.values())
        self.threads = len(np.unique(t.lane[list(self.call.values())])) if self.call else 0
        self.syncs = []
        for span in calls.tolist():
            text = t.names[t.name[span]]
            one = _ONE.fullmatch(text)
            lanes: tuple[int, ...] | None = None
            told = entries.get(int(t.launch[span]), [])
            if _EVERYTHING.search(text) and len({t.lanes[i].process for i in every}) <= 1:
                lanes = every
            elif one and one[1] in named:
                lanes = (named[one[1]],)
            elif (
                len(told) == 1
                and "StreamSynchronize" in text
                and t.lanes[t.lane[told[0]]].name != "no stream"
            ):
                lanes = (int(t.lane[told[0]]),)
            self.syncs.append(_Sync(span, int(t.start_ns[span]), int(t.end_ns[span]), lanes))
        self.syncs.sort(key=lambda sync: sync.end)
        self.sure: dict[tuple[int, ...], list[_Sync]] = defaultdict(list)
        for sync in self.syncs if self.threads <= 1 else ():  # what one thread waited for, no other knows
            if sync.lanes is not None:
                self.sure[sync.lanes].append(sync)
        self.unsure = [sync for sync in self.syncs if sync.lanes is None or self.threads > 1]
        if self.syncs and len(self.call) < len(self.work):
            self.aside.append(
                f"{len(self.work) - len(self.call)} operations have no call in this timeline, so the host's "
                "waits order nothing behind them"
            )

    # Cases

    def issued_before(self, a: int, b: int) -> bool:
        """Whether ``a`` was issued before ``b``, as far as that is known."""
        return self.rank[a] < self.rank[b]

    def nearest(self, first: Iterable[int], second: Iterable[int]) -> list[tuple[int, int]]:
        """Each of ``second`` with the nearest one of ``first`` that its process issued earlier."""
        first, second = set(first), set(second)
        latest: dict[str, int] = {}
        cases = []
        for span in sorted(first | second, key=self.rank.__getitem__):
            process = self.t.lanes[self.t.lane[span]].process
            if span in second and process in latest:
                cases.append((latest[process], span))
            if span in first:
                latest[process] = span
        return cases

    def judge(self, cases: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
        """For each case, whether it is ordered, and whether something that is not told may order it; bool."""
        t = self.t
        number: dict[int, int] = {}
        count: dict[int, int] = defaultdict(int)
        for a in sorted({a for a, _ in cases}, key=self.rank.__getitem__):
            count[int(t.lane[a])] += 1
            number[a] = count[int(t.lane[a])]
        behind = {lane: self._sweep(lane, number) for lane in count}
        ordered = np.array([behind[int(t.lane[a])][self.rank[b]] >= number[a] for a, b in cases], dtype=bool)
        doubtful = np.zeros(len(cases), dtype=bool)
        self.doubts = []
        for i, (a, b) in enumerate(cases):
            if t.launch[a] >= 0 and t.launch[a] == t.launch[b]:
                ordered[i], doubtful[i] = False, True
                self.doubts.append("which edges a graph has: its kernels came from one launch")
            elif not ordered[i]:
                why = self._doubt(a, b)
                doubtful[i] = bool(why)
                self.doubts += [why] * bool(why)
        self.doubts = list(dict.fromkeys(self.doubts))
        return ordered, doubtful

    def _sweep(self, lane: int, number: dict[int, int]) -> list[int]:
        """For each operation in order of issue: the highest numbered one on ``lane`` that it is behind.

        The numbered operations are in the lane's order, so what is behind one is behind all before it too.
        """
        found, own = [], []  # behind what each is; and with itself
        on: dict[int, int] = defaultdict(int)
        issued_on: dict[int, int] = defaultdict(int)
        begun = sorted((sync for syncs in self.sure.values() for sync in syncs), key=lambda sync: sync.start)
        waiting, known, host = 0, {}, 0
        for i, (span, here) in enumerate(zip(self.work, self.lane, strict=True)):
            while waiting < len(begun) and begun[waiting].start <= self.issued[i]:
                known[waiting] = max((issued_on[n] for n in begun[waiting].lanes), default=0)
                waiting += 1
            for done in [n for n in known if begun[n].end <= self.issued[i]]:
                host = max(host, known.pop(done))
            ranks = [self.rank[source] for source, _ in self.into.get(span, ())]
            best = max((own[rank] for rank in ranks if rank < i), default=0)
            best = max(best, on[here], host if span in self.call else 0)
            found.append(best)
            own.append(max(best, number.get(span, 0)) if here == lane else best)
            on[here] = own[-1]
            if span in self.call:
                issued_on[here] = own[-1]
        return found

    def _doubt(self, a: int, b: int) -> str:
        """What the host did between the two calls that may have made it wait for the first, else ""."""
        if not self.syncs:
            return ""
        if a not in self.call or b not in self.call:
            return (
                "when the two were issued: a call of theirs is not in the timeline, and the host waits in it"
            )
        from_, to = int(self.t.start_ns[self.call[a]]), int(self.t.start_ns[self.call[b]])
        for sync in self.unsure:
            if sync.start >= from_ and sync.end <= to:
                text = self.t.names[self.t.name[sync.span]]
                return f"what the host waited for in between ({text}), or which of its threads was told"
        return ""

    def way(self, a: int, b: int) -> tuple[str, ...]:
        """The fewest turns from ``a`` to ``b``, in words; empty where no path is found."""
        least, cost = self.rank[a], {b: 0}
        came: dict[int, tuple[int, str]] = {}
        queue = deque([(0, b)])
        while queue:
            turns, span = queue.popleft()
            if span == a:
                return tuple(self._words(a, b, came))
            if turns > cost[span]:
                continue
            for before, along in self._before(span):
                price = turns + bool(along)
                if self.rank[before] >= least and price < cost.get(before, price + 1):
                    cost[before], came[before] = price, (span, along)
                    (queue.append if along else queue.appendleft)((price, before))
        return ()

    def _before(self, span: int) -> Iterable[tuple[int, str]]:
        """What an operation comes straight behind, and by what: an edge, its stream (""), the host."""
        t, rank = self.t, self.rank[span]
        on = self.on[self.lane[rank]]
        place = bisect_left(on, rank)
        if place:
            yield self.work[on[place - 1]], ""
        for source, name in self.into.get(span, ()):
            if self.rank[source] < rank:
                yield source, t.names[name]
        for lanes, syncs in self.sure.items() if span in self.call else ():
            done = bisect_right(syncs, self.issued[rank], key=lambda sync: sync.end)
            for lane in lanes if done else ():
                sync, on = syncs[done - 1], self.on[lane]
                place = bisect_right(on, sync.start, key=self.issued.__getitem__)
                before = next(
                    (on[i] for i in range(place - 1, -1, -1) if self.work[on[i]] in self.call), None
                )
                if before is not None:
                    yield self.work[before], f"the host: {t.names[t.name[sync.span]]}"

    def _words(self, a: int, b: int, came: dict[int, tuple[int, str]]) -> Iterable[str]:
        """The turns of a way: where it starts, what leads from lane to lane, where it ends."""
        yield self._told(a)
        span, turned = a, False
        while span != b:
            after, along = came[span]
            if along:
                if span != a and not turned:
                    yield self._told(span)
                yield along
                yield self._told(after)
                turned = True
            else:
                turned = False
            span = after
        if not turned:
            if all(not along for along in self._alongs(a, b, came)):
                yield "the stream runs its work in order"
            yield self._told(b)

    def _alongs(self, a: int, b: int, came: dict[int, tuple[int, str]]) -> Iterable[str]:
        span = a
        while span != b:
            span, along = came[span]
            yield along

    def _told(self, span: int) -> str:
        t = self.t
        step = f", step {t.step[span]}" if t.step[span] >= 0 else ""
        return f"{t.names[t.name[span]]} on {t.lanes[t.lane[span]].name}{step}"
