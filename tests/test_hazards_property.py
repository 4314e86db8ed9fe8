"""Random programs, each judged by the analysis and by brute force: the two must agree on every one.

Nothing here depends on luck: a program is made from its seed alone. A failure prints the seed and the
program; `program_of(seed)` makes it again.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from brute_force import Brute, Deadlock, Pair, Silent

from flashnorm_lab import hazards
from flashnorm_lab.errors import LabError
from flashnorm_lab.program import (
    STEPS,
    Allocate,
    Barrier,
    BeginCapture,
    DestroyEvent,
    EndCapture,
    Free,
    GraphLaunch,
    HandOver,
    HostRead,
    HostWrite,
    Launch,
    Program,
    Query,
    Record,
    RecordStream,
    SetEvent,
    Step,
    Stream,
    Synchronize,
    UserEvent,
    Wait,
    describe,
)
from flashnorm_lab.schedule import Access

SIZE = 16
"""Bytes of a buffer."""
PLACES = ((0, 16), (0, 16), (0, 8), (8, 16), (4, 12), (7, 9))
"""What of a buffer is touched: halves that only meet, and parts that overlap them."""


class Maker:
    """Makes one small program of steps that are possible where they stand."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        chance = self.random.random
        self.queues = chance() < 0.25  # OpenCL: out-of-order queues and user events
        self.graphs = not self.queues and chance() < 0.25
        self.memory = chance() < 0.3
        self.driver = self.memory and not self.queues and chance() < 0.4  # else plain allocation, or a pool
        self.loop = not (self.graphs or self.memory) and chance() < 0.25
        self.gates = self.queues and not self.loop and not self.memory
        self.threads = ("host", "worker") if not self.memory and chance() < 0.25 else ("host",)
        self.streams = self._streams()
        self.buffers: dict[str, int | None] = {"a": SIZE, "b": SIZE}
        self.alive: dict[str, int] = dict.fromkeys(self.buffers, SIZE)
        self.dead: list[str] = []
        self.slots: dict[int, str | None] = {0: None, 64: None}
        self.events: list[str] = []
        self.unset: list[str] = []
        self.made: list[str] = []
        self.capture: str | None = None
        self.forked: set[str] = set()
        self.inside: list[str] = []
        self.graph_names: list[str] = []
        self.steps: list[Step] = []
        self.count = self.launches = self.named = 0

    def _streams(self) -> dict[str, Stream]:
        if self.queues:
            kinds = ["out-of-order", self.random.choice(["non-blocking", "out-of-order"])]
        else:
            kinds = [
                self.random.choice(["non-blocking", "non-blocking", "blocking", "per-thread", "legacy"])
                for _ in range(self.random.choice((2, 2, 3, 3, 4)))
            ]
        streams: dict[str, Stream] = {}
        two = self.random.random() < 0.1
        for kind, name in zip(kinds, "stuv", strict=False):
            context = self.random.choice("01") if two else "0"
            if kind == "legacy" and Stream(kind, context) in streams.values():
                kind = "blocking"
            streams[name] = Stream(kind, context)
        return streams

    def make(self) -> Program:
        works = self.random.randint(3, 6)
        if self.graphs:
            self._capture()
        while self.count < works:
            self._next()
        for event in self.unset:
            if self.random.random() < 0.9:
                self.add(SetEvent(event, self._thread()))
        steps = [replace(s, source=f"line {number}") for number, s in enumerate(self.steps)]
        return Program(
            tuple(steps),
            self.streams,
            self.buffers,
            "random",
            repeat=self.random.choice((2, 3)) if self.loop else 1,
        )

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def _thread(self) -> str:
        return self.random.choice(self.threads)

    def _stream(self, *kinds: str) -> str:
        return self.random.choice([n for n, s in self.streams.items() if not kinds or s.kind in kinds])

    def _accesses(self, only: str | None = None) -> tuple[Access, ...]:
        found: dict[tuple[str, int, int, bool], Access] = {}
        names = [n for n in self.alive if only is None or n == only]
        for _ in range(self.random.choice((1, 1, 2))):
            start, stop = self.random.choice(PLACES)
            a = Access(self.random.choice(names), start, stop, self.random.random() < 0.5)
            found[a.buffer, a.start, a.stop, a.writes] = a
        return tuple(sorted(found.values(), key=lambda a: a.writes))

    def _launch(self, stream: str, after: tuple[str, ...] = (), thread: str | None = None) -> Launch:
        self.count += 1
        self.launches += 1
        blocks = self.capture is None and self.random.random() < 0.08
        return Launch(
            f"k{self.launches}",
            stream,
            self._accesses(),
            after,
            blocks=blocks,
            thread=thread or self._thread(),
        )

    def _event(self) -> str:
        """A name to record: an old one now and then, which moves it."""
        if self.events and self.random.random() < 0.35:
            return self.random.choice(self.events)
        self.named += 1
        self.events.append(f"e{self.named}")
        return self.events[-1]

    def _known_event(self) -> str:
        names = [*self.events, *self.made]
        if not names or self.random.random() < 0.05:
            return "never"
        return self.random.choice(names)

    def _next(self) -> None:
        kinds = ["work"] * 6 + ["record"] * 3 + ["wait"] * 4 + ["synchronize", "query", "host", "host"]
        kinds += ["barrier", "completes", "completes"] * self.queues
        kinds += ["user event", "set", "set"] * self.gates + ["hand over"] * 3 * (len(self.threads) > 1)
        kinds += ["allocate", "allocate", "free", "free", "stale"] * self.memory
        kinds += ["graph"] * 3 * bool(self.graph_names) + ["destroy"]
        getattr(self, "_do_" + self.random.choice(kinds).replace(" ", "_"))()

    def _do_work(self) -> None:
        after = ()
        if self.queues and self.random.random() < 0.5:
            after = tuple(dict.fromkeys(self._known_event() for _ in range(self.random.choice((1, 1, 2)))))
        self.add(self._launch(self._stream(), after))

    def _do_completes(self) -> None:
        self.add(replace(self._launch(self._stream()), event=self._event()))

    def _do_record(self) -> None:
        self.add(Record(self._event(), self._stream(), self._thread()))

    def _do_wait(self) -> None:
        self.add(Wait(self._known_event(), self._stream(), self._thread()))

    def _do_barrier(self) -> None:
        after = (self._known_event(),) if self.random.random() < 0.4 else ()
        event = self._event() if self.random.random() < 0.3 else ""
        self.add(Barrier(self._stream(), after, event, self._thread()))

    def _do_synchronize(self) -> None:
        what = self.random.choice(
            ({}, {"stream": self._stream()}, {"stream": self._stream()}, {"event": self._known_event()})
        )
        self.add(Synchronize(**what, thread=self._thread()))

    def _do_query(self) -> None:
        what = self.random.choice(({"stream": self._stream()}, {"event": self._known_event()}))
        self.add(Query(self.random.random() < 0.6, **what, thread=self._thread()))

    def _do_host(self) -> None:
        self.count += 1
        kind = self.random.choice((HostRead, HostWrite))
        start, stop = self.random.choice(PLACES)
        self.add(kind(self.random.choice(list(self.alive)), start, stop, thread=self._thread()))

    def _do_destroy(self) -> None:
        if self.events:
            event = self.events.pop(self.random.randrange(len(self.events)))
            self.add(DestroyEvent(event, self._thread()))

    def _do_hand_over(self) -> None:
        source, to = self.random.sample(self.threads, 2)
        self.add(HandOver(to, source))

    def _do_user_event(self) -> None:
        if len(self.threads) == 1 and len(self.made) < 2:
            self.made.append(f"u{len(self.made)}")
            self.unset.append(self.made[-1])
            self.add(UserEvent(self.made[-1]))

    def _do_set(self) -> None:
        if self.unset:
            self.add(SetEvent(self.unset.pop(0)))

    def _do_allocate(self) -> None:
        free = [slot for slot, name in self.slots.items() if name is None]
        if not free:
            return
        slot, name = free[0], f"m{len(self.alive) + len(self.dead)}"
        stream = self._stream() if self.driver else None
        shift = self.random.choice((0, 0, 8))
        self.slots[slot] = name
        self.alive[name] = SIZE
        self.add(Allocate(name, SIZE, slot + shift, stream=stream, thread=self._thread()))

    def _do_free(self) -> None:
        mine = [(slot, name) for slot, name in self.slots.items() if name is not None]
        if not mine:
            return
        slot, name = self.random.choice(mine)
        self.slots[slot] = None
        how = "stream" if self.driver else self.random.choice(("host", "pool", "pool"))
        if how == "pool" and self.random.random() < 0.4:
            self.add(RecordStream(name, self._stream(), self._thread()))
        self.add(Free(name, how, self._stream() if how == "stream" else None, self._thread()))
        del self.alive[name]
        self.dead.append(name)

    def _do_stale(self) -> None:
        """A use after the free, in the host's order."""
        if self.dead and self.random.random() < 0.3:
            self.count += 1
            self.launches += 1
            touched = (Access(self.random.choice(self.dead), 0, 8, self.random.random() < 0.5),)
            self.add(Launch(f"k{self.launches}", self._stream(), touched, thread=self._thread()))

    def _capture(self) -> None:
        """A capture at the start, with forks, joins and now and then a mistake."""
        streams = [n for n, s in self.streams.items() if s.kind != "legacy"]
        if not streams:
            return
        self.capture = origin = self.random.choice(streams)
        others = [n for n in streams if n != origin]
        if self.random.random() < 0.3:
            self.add(self._launch(self._stream(), thread="host"))
            self.add(Record("outside", self._stream()))
        self.add(BeginCapture(origin, "g"))
        joined = {origin}
        for number in range(self.random.randint(2, 6)):
            doing = self.random.random()
            stream = self.random.choice(sorted(joined))
            if doing < 0.45:
                self.add(self._launch(stream, thread="host"))
            elif doing < 0.7 and others:
                target = self.random.choice(others)
                self.add(Record(f"c{number}", stream))
                self.add(Wait(f"c{number}", target))
                joined.add(target)
            elif doing < 0.8 and len(joined) > 1:
                self.add(Record(f"c{number}", stream))
                self.add(Wait(f"c{number}", self.random.choice(sorted(joined))))
            elif doing < 0.83:
                self.add(Wait("outside", stream))
            elif doing < 0.86:
                self.add(Synchronize(**self.random.choice(({}, {"stream": self._stream()}))))
            elif doing < 0.9:
                self.add(self._launch(self._stream(), thread="host"))
        for stream in sorted(joined - {origin}):
            if self.random.random() < 0.9:
                self.add(Record(f"join {stream}", stream))
                self.add(Wait(f"join {stream}", origin))
        wrong = self.random.random() < 0.05 and len(joined) > 1
        self.add(EndCapture(self.random.choice(sorted(joined - {origin})) if wrong else origin))
        self.capture = None
        self.graph_names = ["g"]
        self.count = max(0, self.count - 3)
        self._do_graph()

    def _do_graph(self) -> None:
        self.count += 1
        self.add(GraphLaunch("g", self._stream(), thread=self._thread()))


def program_of(seed: int) -> Program:
    return Maker(seed).make()


def told(seed: int, program: Program) -> str:
    """The program, so that a failure can be read and made again."""
    lines = [f"{describe(s)}  ({s.thread})" for s in program.steps]
    streams = ", ".join(f"{name} {s.kind} ({s.context})" for name, s in program.streams.items())
    return "\n".join([f"seed {seed}, {program.repeat} times; {streams}", *lines])


def brute(program: Program) -> Brute | None:
    """The second opinion; None where the rules leave it open."""
    try:
        return Brute(program)
    except Silent:
        return None


Key = tuple[str, str, str, str, str, str, int]


def key_of(b: Brute, p: Pair) -> Key:
    one, two = b.number[p.first], b.number[p.second]
    apart = two - one if one >= 0 and two >= 0 else 0
    return p.buffer, p.new, b.names[p.first], b.source[p.first], b.names[p.second], b.source[p.second], apart


def found(verdict: hazards.Verdict) -> dict[Key, hazards.Hazard]:
    return {
        (h.buffer, h.new_buffer, h.first, h.first_source, h.second, h.second_source, h.distance): h
        for h in verdict.hazards
    }


def has(program: Program, *kinds: type) -> bool:
    return any(isinstance(s, kinds) for s in program.steps)


def threads(program: Program) -> int:
    return len({s.thread for s in program.steps})


def programs(batch: int, each: int) -> Iterator[tuple[int, Program]]:
    for seed in range(batch * each, (batch + 1) * each):
        yield seed, program_of(seed)


@pytest.mark.parametrize("batch", range(20))
def test_the_analysis_finds_what_brute_force_finds(batch):
    judged = 0
    for seed, program in programs(batch, 250):
        try:
            b = brute(program)
        except Deadlock:
            with pytest.raises(LabError, match=r"^step \d+ .*wait for ever"):
                hazards.find(program)
            continue
        if b is None:
            continue
        judged += 1
        verdict, pairs, why = hazards.judge(program), b.pairs(), told(seed, program)
        got = found(verdict)
        assert sorted({e.code for e in verdict.errors}) == sorted(set(b.errors)), why
        assert bool(got) == bool(pairs), why  # neither a miss nor a false alarm

        if has(program, UserEvent):  # what is held runs later than its place in the list: no nearest there
            assert got.keys() <= {key_of(b, p) for p in pairs}, why
            continue

        # Each is an unordered conflict of its kind, and none is beyond the nearest ones.
        kinds = {key_of(b, p): p.kind for p in b.pairs(nearest=True)}
        assert {key: h.kind for key, h in got.items()} == {key: kinds.get(key) for key in got}, why

        # Ordering those that are told orders all others too.
        edges = [(p.first, p.second) for p in pairs if key_of(b, p) in got and p not in b.late]
        before = b.closed(edges)
        left = [p for p in pairs if not before[p.second] >> p.first & 1 and key_of(b, p) not in got]
        assert [key_of(b, p) for p in left] == [], why
    assert judged > 200


@pytest.mark.parametrize("batch", range(8))
def test_order_between_two_launches(batch):
    asked = 0
    for seed, program in programs(batch, 100):
        try:
            b = brute(program)
        except Deadlock:
            continue
        names = sorted({s.name for s in program.steps if isinstance(s, Launch)})
        if b is None or len(names) < 2 or has(program, UserEvent):
            continue
        first, second = random.Random(seed).sample(names, 2)
        ordered = unordered = 0
        for n, name in enumerate(b.names):
            earlier = [m for m in range(n) if b.names[m] == first]
            if name == second and earlier:
                ordered += b.precedes(earlier[-1], n)
                unordered += not b.precedes(earlier[-1], n)
        order = hazards.order(program, first, second)
        assert (order.ordered, order.unordered) == (ordered, unordered), told(seed, program)
        asked += 1
    assert asked > 50


def few(b: Brute, most: int) -> bool:
    return sum(1 for _ in itertools.islice(b.interleavings(), most + 1)) <= most


@pytest.mark.parametrize("batch", range(10))
def test_a_race_is_what_some_interleaving_shows(batch):
    """All are run. Some access meets another value, or another is left, if and only if two are unordered."""
    races = 0
    for seed, program in programs(batch, 150):
        try:
            b = brute(program)
        except Deadlock:
            continue
        if b is None or not few(b, 120):
            continue
        touched = {t.node for t in b.touches}
        pairs = [p for p in b.pairs() if p.first in touched and p.second in touched]
        differs = any(len(values) > 1 for values in b.outcomes().values())
        assert differs == bool(pairs), told(seed, program)
        races += differs
    assert races > 20


@pytest.mark.parametrize("batch", range(10))
def test_what_a_read_may_observe_is_what_it_observes(batch):
    """Each value that is told is seen in some interleaving; where one range has the one race, no other is."""
    agreed = 0
    for seed, program in programs(batch, 150):
        try:
            b = brute(program)
        except Deadlock:
            continue
        if b is None or has(program, UserEvent) or not few(b, 120):
            continue
        verdict, outcomes = hazards.judge(program), b.outcomes()
        nearest: dict[Key, list[Pair]] = {}
        for p in b.pairs(nearest=True):
            nearest.setdefault(key_of(b, p), []).append(p)
        for key, h in found(verdict).items():
            if h.kind not in ("RAW", "WAR"):
                continue
            seen, cells = observed(b, h, nearest[key], outcomes)
            values = set(h.values) - {"an older one"}
            assert values <= seen, f"{told(seed, program)}\n{h}\n{seen}"
            if h.kind == "RAW" and len(verdict.hazards) == 1 and cells == 1 and program.repeat == 1:
                assert values == seen or "an older one" in h.values, f"{told(seed, program)}\n{h}\n{seen}"
                agreed += 1
    assert agreed


def observed(
    b: Brute, h: hazards.Hazard, pairs: list[Pair], outcomes: dict[tuple[int | str, str, int], set[object]]
) -> tuple[set[str], int]:
    """What the reader of a hazard sees, in the words of `Hazard.values`; and in how many cells."""
    readers = {p.second if h.kind == "RAW" else p.first for p in pairs}
    seen: set[str] = set()
    cells: set[int] = set()
    for (reader, how, cell), values in outcomes.items():
        memory, start, _ = b.cells()[cell]
        lives = [b.lives[t.life] for t in b.touches if t.node == reader and b.lives[t.life].name == h.buffer]
        inside = any(n.memory == memory and h.start <= start - n.base < h.stop for n in lives)
        if reader not in readers or how != "reads" or not inside:
            continue
        cells.add(cell)
        for writer in values:
            if writer is None:
                seen.add(f"what {h.buffer} held at the start")
            elif h.numbered:
                back = b.number[reader] - b.number[writer]
                seen.add(f"{h.buffer} of step t" + (f"{-back:+d}" if back else ""))
            else:
                seen.add(f"{h.buffer} from {b.names[writer]} ({b.source[writer]})")
    return seen, len(cells)


def orderings(program: Program) -> Iterator[tuple[int, list[Step]]]:
    """Every place and every pair of streams that an event could order there, and each host access."""
    for place in range(len(program.steps) + 1):
        for source, kind in program.streams.items():
            for target in program.streams:
                if source != target or kind.kind == "out-of-order":
                    yield place, [Record("added", source), Wait("added", target)]
            on_host = place < len(program.steps) and isinstance(
                program.steps[place], HostRead | HostWrite | Free
            )
            if on_host and getattr(program.steps[place], "stream", None) is None:
                yield place, [Record("added", source), Synchronize(event="added")]


def with_orderings(program: Program, added: tuple[tuple[int, list[Step]], ...]) -> Program:
    steps = list(program.steps)
    for number, (place, new) in enumerate(sorted(added, key=lambda a: -a[0])):
        steps[place:place] = [replace(s, event=f"added {number}") for s in new]
    return program.with_steps(steps)


def mended(program: Program) -> bool:
    try:
        b = Brute(program)
    except (Silent, Deadlock):
        return False
    return not b.pairs() and not b.errors


@pytest.mark.parametrize("batch", range(10))
def test_the_repair_repairs_and_nothing_smaller_does(batch):
    """Tried out against every single ordering, and now and then against every two."""
    repaired = compared = 0
    for seed, program in programs(batch, 40):
        try:
            b = brute(program)
        except Deadlock:
            continue
        if (
            b is None
            or b.errors
            or b.late
            or not b.pairs()
            or has(program, UserEvent)
            or threads(program) > 1
        ):
            continue
        verdict, why = hazards.check(program), told(seed, program)
        assert verdict.repair, why
        whole = verdict.repaired()
        assert mended(whole), f"{why}\n{whole}"
        assert hazards.check(whole).clean, f"{why}\n{whole}"
        repaired += 1
        if not verdict.smallest:
            continue
        sizes = range(1, len(verdict.repair) if len(verdict.repair) < 3 or seed % 16 == 0 else 2)
        for size in sizes:
            for added in itertools.combinations(orderings(program), size):
                assert not mended(with_orderings(program, added)), f"{why}\n{added} would do"
            compared += 1
    assert repaired > 5
    assert compared


def waits_of(program: Program) -> Iterator[tuple[int, str]]:
    for place, s in enumerate(program.steps):
        if isinstance(s, Wait):
            yield place, s.event
        elif isinstance(s, Synchronize):
            yield place, s.event or s.stream or ""
        elif isinstance(s, Launch | Barrier):
            yield from ((place, event) for event in s.after)


def without(program: Program, waits: set[tuple[int, str]]) -> Program:
    steps: list[Step] = []
    for place, s in enumerate(program.steps):
        gone = {event for at, event in waits if at == place}
        if gone and isinstance(s, Launch | Barrier):
            left = tuple(e for e in s.after if e not in gone)
            # A barrier with no list at all would wait for everything.
            s = replace(s, after=left or (("nothing",) if isinstance(s, Barrier) else ()))
        elif gone:
            continue
        steps.append(s)
    return program.with_steps(steps)


def order_of(program: Program) -> object:
    """The order between all that works, on every stream also what would come next."""
    streams = sorted(program.streams.items(), key=lambda item: item[1].kind == "legacy")
    ends = [Launch(f"end of {name}", name) for name, _ in streams] if program.repeat == 1 else []
    b = Brute(program.with_steps([*program.steps, *ends]))
    return b.order(), sorted(b.errors)


@pytest.mark.parametrize("batch", range(10))
def test_redundant_waits_order_nothing_and_the_others_do(batch):
    """All that are told as redundant are taken out together. Among device work alone, no other can be."""
    some = others = 0
    for seed, program in programs(batch, 200):
        if has(program, UserEvent) or threads(program) > 1:
            continue
        try:
            order = order_of(program)
        except (Silent, Deadlock):
            continue
        places = {s.source: place for place, s in enumerate(program.steps)}
        redundant = {(places[r.source], r.what) for r in hazards.judge(program).redundant}
        rest = without(program, redundant)
        assert order_of(rest) == order, f"{told(seed, program)}\n{redundant}"
        some += len(redundant)
        plain = all(isinstance(s, Launch | Record | Wait) for s in program.steps) and program.repeat == 1
        if plain and not has_kind(program, "legacy", "out-of-order"):
            for wait in waits_of(rest):
                assert order_of(without(rest, {wait})) != order, f"{told(seed, program)}\n{wait}"
                others += 1
    assert some > 10


def has_kind(program: Program, *kinds: str) -> bool:
    return any(s.kind in kinds for s in program.streams.values())


# The second opinion itself


def two_chains() -> Program:
    steps = [
        Launch(name, stream, (Access("a", 0, 8, True),)) for name, stream in zip("wxyz", "ssut", strict=True)
    ]
    return Program(tuple(steps), dict.fromkeys("stu", Stream()), {"a": 8})


def test_all_interleavings_are_run():
    b = Brute(two_chains())  # w before x; y and z anywhere: 4! / 2
    orders = list(b.interleavings())
    assert len(orders) == len(set(orders)) == 12
    assert all(order.index(b.work[0]) < order.index(b.work[1]) for order in orders)
    w, x, y, z = b.work
    assert b.outcomes()["left", "reads", 0] == {x, y, z}
    assert b.outcomes()[x, "replaces", 0] == {w, y, z}
    assert len(b.pairs()) == 5
    assert {(p.first, p.second) for p in b.pairs(nearest=True)} == {(x, y), (y, z)}


def test_a_seed_makes_its_program():
    assert program_of(7) == program_of(7)
    assert len({str(program_of(seed)) for seed in range(50)}) > 45
    kinds = {type(s) for seed in range(1500) for s in program_of(seed).steps}
    assert kinds == set(STEPS)
