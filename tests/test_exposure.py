"""Every kind of hazard shown on OpenCL queues: forced, the wrong result is there; repaired, it is not.

The programs here have one hazard each, so that the forced run may differ in exactly what the hazard names.
The whole corpus follows, every hazard of it, and every clean schedule runs as luck has it.
"""

import copy
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from flashnorm_lab import exposure, hazards, schedule, schedule_file
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError
from flashnorm_lab.exposure import play
from flashnorm_lab.exposure.plan import read_program
from flashnorm_lab.program import (
    Allocate,
    Barrier,
    BeginCapture,
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
    Stream,
    Synchronize,
    UserEvent,
    Wait,
    reads,
    writes,
)

CORPUS = sorted((Path(__file__).parent / "hazard_corpus").rglob("*.json"))
TWO = {"main": Stream(), "side": Stream()}
BUFFERS = {"x": 64, "y": 64, "z": 64}
HUGE = 40 * 2**30


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


def program(*steps, streams=TWO, buffers=BUFFERS, **options):
    return Program(steps, streams, buffers, **options)


def produce(stream="side", **options):
    return Launch("produce", stream, (reads("x", 0, 64), writes("y", 0, 64)), **options)


def consume(stream="main", **options):
    return Launch("consume", stream, (reads("y", 0, 64), writes("z", 0, 64)), **options)


def work(name, stream, *accesses, **options):
    return Launch(name, stream, accesses, **options)


def at(address, name, **options):
    return Allocate(name, 64, address, **options)


OOO = {"q": Stream("out-of-order"), "main": Stream()}
DEFAULT = {"0": Stream("legacy"), "side": Stream(), "blocking": Stream("blocking")}
FORKED = (
    BeginCapture("main", "g"),
    Record("fork", "main"),
    Wait("fork", "side"),
    produce(),
    Record("join", "side"),
)
CAPTURED = (*FORKED, Wait("join", "main"), EndCapture("main"))

# name: program with one hazard, its kind, and what the forced run says of it
CASES = {
    "a reader too early": (
        program(produce(), consume()),
        "RAW",
        "consume read in y what was there at the start instead of what produce wrote",
    ),
    "part of it": (
        program(work("fill", "side", writes("y", 0, 40)), work("use", "main", reads("y", 32, 64))),
        "RAW",
        "use read in y[32:40] what was there at the start instead of what fill wrote",
    ),
    "gigabytes": (
        program(
            work("fill", "side", writes("big", 0, HUGE)),
            work("use", "main", reads("big", HUGE - 8, HUGE)),
            buffers={"big": HUGE},
        ),
        "RAW",
        "use read in big what was there at the start instead of what fill wrote",
    ),
    "a size that is not known": (
        program(work("fill", "side", writes("u", 0, 9)), HostRead("u", 8), buffers={"u": None}),
        "RAW",
        "the host read in u[8:9] what was there at the start instead of what fill wrote",
    ),
    "the next step overwrites": (
        program(consume(), Record("read", "main"), work("next", "side", writes("y", 0, 64))),
        "WAR",
        "consume read in y what next wrote instead of what was there at the start",
    ),
    "the next iteration overwrites": (
        program(produce(), Record("e", "side"), Wait("e", "main"), consume(), repeat=2),
        "WAR",
        "consume in step 0 read in y what produce in step 1 wrote instead of what produce in step 0 wrote",
    ),
    "two writers": (
        program(work("one", "side", writes("y", 0, 48)), work("two", "main", writes("y", 16, 64))),
        "WAW",
        "at the end y[16:48] holds what one wrote instead of what two wrote",
    ),
    "two writers and nobody is left to see it": (
        program(
            work("one", "side", writes("y", 0, 64)),
            work("two", "main", writes("y", 0, 64)),
            Synchronize(),
            work("three", "main", writes("y", 0, 64)),
        ),
        "WAW",
        "one wrote y over what two wrote instead of over what was there at the start",
    ),
    "a pool hands out what is still read": (
        program(
            at(4096, "a"),
            work("fill", "main", writes("a", 0, 64)),
            Record("filled", "main"),
            Wait("filled", "side"),
            work("use", "side", reads("a", 0, 64), writes("z", 0, 64)),
            Free("a", "pool"),
            at(4128, "b"),
            work("overwrite", "main", writes("b", 0, 64)),
        ),
        "reuse",
        "use read in a[32:64] what overwrite wrote instead of what fill wrote",
    ),
    "freed by the host": (
        program(at(None, "a"), work("use", "side", reads("a", 0, 64)), Free("a", "host")),
        "use after free",
        "use read in a what the free of a left there instead of what was there at the start",
    ),
    "written to when it is freed": (
        program(at(None, "a"), work("fill", "side", writes("a", 0, 64)), Free("a", "host")),
        "use after free",
        "fill wrote a over what the free of a left there instead of over what was there at the start",
    ),
    "freed on another stream": (
        program(
            at(None, "a"), work("use", "side", reads("a", 0, 64)), Free("a", "stream", stream="main")
        ),
        "use after free",
        "use read in a what the free of a left there instead of what was there at the start",
    ),
    "freed, then used": (
        program(at(None, "a"), Free("a", "host"), work("use", "side", reads("a", 0, 64))),
        "use after free",
        "use read in a what the free of a left there instead of what was there at the start",
    ),
    "freed, used, and handed out again": (
        program(
            at(4096, "a"),
            work("fill", "side", writes("a", 0, 64)),
            Synchronize(),
            Free("a", "host"),
            work("use", "side", reads("a", 0, 64)),
            Synchronize(),
            at(4096, "b"),
            work("overwrite", "side", writes("b", 0, 64)),
        ),
        "use after free",
        "use read in a what the free of a left there instead of what fill wrote",
    ),
    "freed on a stream, then used": (
        program(at(None, "a"), Free("a", "stream", stream="main"), work("use", "side", reads("a", 0, 64))),
        "use after free",
        "use read in a what the free of a left there instead of what was there at the start",
    ),
    "given back to the pool, then used": (
        program(at(None, "a"), Free("a", "pool"), work("use", "side", reads("a", 0, 64))),
        "use after free",
        "use read in a what the pool's next user of a's bytes wrote instead of what was there at the start",
    ),
    "read before it is allocated": (
        program(at(None, "a", stream="main"), work("use", "side", reads("a", 0, 64))),
        "use before allocation",
        "use read in a what was there at the start instead of the undefined bytes of the new a",
    ),
    "written before it is allocated": (
        program(at(None, "a", stream="main"), work("fill", "side", writes("a", 0, 64))),
        "use before allocation",
        "at the end a holds the undefined bytes of the new a instead of what fill wrote",
    ),
    "freed before it is allocated": (
        program(at(None, "a", stream="main"), Free("a", "host")),
        "use before allocation",
        "at the end a holds the undefined bytes of the new a instead of what the free of a left there",
    ),
    "freed before it is allocated, and handed out again": (
        program(
            at(4096, "a", stream="main"),
            Free("a", "host"),
            at(4096, "b"),
            work("fill", "main", writes("b", 0, 64)),
        ),
        "use before allocation",
        "fill wrote b over the undefined bytes of the new a instead of over what the free of a left there",
    ),
    "a pinned buffer refilled too early": (
        program(
            HostWrite("x"), work("upload", "side", reads("x", 0, 64), writes("y", 0, 64)), HostWrite("x")
        ),
        "WAR",
        "upload read in x what the host (no. 2) wrote instead of what the host (no. 1) wrote",
    ),
    "a result read too early by the host": (
        program(produce(), HostRead("y", 0, 32)),
        "RAW",
        "the host read in y what was there at the start instead of what produce wrote",
    ),
    "the default stream and a non-blocking one": (
        program(produce("side"), consume("0"), streams=DEFAULT),
        "RAW",
        "consume read in y what was there at the start instead of what produce wrote",
    ),
    "another context's default stream": (
        program(produce("side"), consume("0"), streams={**DEFAULT, "side": Stream("blocking", "other")}),
        "RAW",
        "consume read in y what was there at the start instead of what produce wrote",
    ),
    "a graph's reader before its join": (
        program(*FORKED, consume(), Wait("join", "main"), EndCapture("main"), GraphLaunch("g", "main")),
        "RAW",
        "consume read in y what was there at the start instead of what produce wrote",
    ),
    "the last of many launches of a graph is read too early": (
        program(
            *CAPTURED, *[GraphLaunch("g", "main"), Synchronize()] * 11, GraphLaunch("g", "main"),
            HostRead("y"),
        ),
        "RAW",
        "the host read in y what produce (no. 11) wrote instead of what produce (no. 12) wrote",
    ),
    "an out-of-order queue": (
        program(produce("q"), consume("q"), streams=OOO),
        "RAW",
        "consume read in y what was there at the start instead of what produce wrote",
    ),
    "a barrier for the wrong event": (
        program(
            work("other", "q", writes("x", 0, 4), event="done"),
            work("fill", "q", writes("y", 0, 64)),
            Barrier("q", after=("done",)),
            consume("q"),
            streams=OOO,
        ),
        "RAW",
        "consume read in y what was there at the start instead of what fill wrote",
    ),
    "held by the host, and not waited for": (
        program(UserEvent("go"), produce(after=("go",)), consume(), SetEvent("go")),
        "RAW",
        "consume read in y what was there at the start instead of what produce wrote",
    ),
    "another host thread writes": (
        program(HostWrite("y"), consume(thread="worker")),
        "RAW",
        "consume read in y what was there at the start instead of what the host wrote",
    ),
    "another host thread reads": (
        program(produce(), Synchronize(), HandOver("worker"), HostRead("y"), HostWrite("y", thread="worker")),
        "WAR",
        "the host read in y what the host wrote instead of what produce wrote",
    ),
    "another host thread waits for a copy": (
        program(
            work("copy", "side", reads("x", 0, 64), writes("y", 0, 64), blocks=True),
            HostRead("y", thread="worker"),
        ),
        "RAW",
        "the host read in y what was there at the start instead of what copy wrote",
    ),
    "two threads take turns on a stream": (
        program(
            HostWrite("y"),
            Launch("before", "main"),
            Launch("behind", "main", thread="worker"),
            HostRead("y", thread="worker"),
        ),
        "RAW",
        "the host read in y what was there at the start instead of what the host wrote",
    ),
    "an event that two threads record": (
        program(
            produce(event="e"),
            Record("e", "main", thread="worker"),
            work("use", "third", reads("y", 0, 64), after=("e",)),
            streams={**TWO, "third": Stream()},
        ),
        "RAW",
        "use read in y what was there at the start instead of what produce wrote",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_forced_it_is_wrong_where_the_hazard_says_and_repaired_it_is_right(device, name):
    racy, kind, told = CASES[name]
    (hazard,) = hazards.find(racy)
    assert hazard.kind == kind
    shown = exposure.expose(racy, hazard, device)
    assert shown.shows
    assert shown.mended
    assert shown.forced.kept in (True, None)
    assert told in [str(d) for d in shown.differences]
    assert {d.launch for d in shown.differences if d.kind == "read"} <= {hazard.first, hazard.second}
    assert shown.differences == exposure.expose(racy, hazard, device).differences


@pytest.mark.parametrize("name", CASES)
def test_step_by_step_a_program_always_does_the_same(device, name):
    racy = CASES[name][0]
    assert exposure.execute(racy, device, serial=True).same(exposure.execute(racy, device, serial=True))


@pytest.mark.parametrize("name", CASES)
def test_repaired_it_needs_no_luck(device, name):
    repaired = hazards.check(CASES[name][0]).repaired()
    serial = exposure.execute(repaired, device, serial=True)
    for _ in range(3):
        assert exposure.execute(repaired, device).same(serial)


@pytest.mark.parametrize("name", CASES)
def test_a_device_with_memory_of_its_own_shows_the_same(device, name):
    apart = copy.copy(device)
    apart.in_place = False
    racy = CASES[name][0]
    (hazard,) = hazards.find(racy)
    shown = exposure.expose(racy, hazard, apart)
    assert shown.differences == exposure.expose(racy, hazard, device).differences
    assert shown.mended


# What orders, as the queues have it


ORDERED = {
    "one stream": program(produce("main"), consume("main")),
    "an event": program(produce(), Record("e", "side"), Wait("e", "main"), consume()),
    "an event through a third stream": program(
        produce(), Record("e", "side"), Wait("e", "third"), Record("f", "third"), Wait("f", "main"),
        consume(),
        streams={**TWO, "third": Stream()},
    ),
    "a wait list": program(produce(event="e"), consume(after=("e",))),
    "the host waits for the stream": program(produce(), Synchronize("side"), consume()),
    "the host waits for the event": program(
        produce(), Record("e", "side"), Synchronize(event="e"), consume()
    ),
    "the host waits for everything": program(produce(), Synchronize(), consume()),
    "a question answered with yes": program(produce(), Query(True, "side"), consume()),
    "a copy that blocks": program(produce(blocks=True), consume()),
    "the default stream waits": program(produce("blocking"), consume("0"), streams=DEFAULT),
    "a blocking stream waits": program(produce("0"), consume("blocking"), streams=DEFAULT),
    "the host waits for an idle blocking stream": program(
        produce("0"), Synchronize("blocking"), consume("side"), streams=DEFAULT
    ),
    "the host waits for the default stream": program(
        produce("blocking"), Synchronize("0"), consume("side"), streams=DEFAULT
    ),
    "two blocking streams and the default one": program(
        produce("blocking"), Record("e", "0"), consume("own"),
        streams={**DEFAULT, "own": Stream("per-thread")},
    ),
    "a barrier": program(produce("q"), Barrier("q"), consume("q"), streams=OOO),
    "a barrier for the right event": program(
        produce("q", event="e"), Barrier("q", after=("e",)), consume("q"), streams=OOO
    ),
    "a barrier behind a barrier": program(
        produce("q", event="e"), work("other", "main", reads("x", 0, 4), event="f"),
        Barrier("q", after=("e",)), Barrier("q", after=("f",)), consume("q"), streams=OOO,
    ),
    "a wait on an out-of-order queue": program(
        produce("main"), Record("e", "main"), Wait("e", "q"), consume("q"), streams=OOO
    ),
    "a record of an out-of-order queue": program(
        produce("q"), work("other", "q", reads("x", 0, 4)), Record("e", "q"), Wait("e", "main"),
        consume("main"), streams=OOO,
    ),
    "a join inside a graph": program(
        *FORKED, Wait("join", "main"), consume(), EndCapture("main"), GraphLaunch("g", "main")
    ),
    "behind a graph": program(
        *CAPTURED, GraphLaunch("g", "main"), consume("main")
    ),
    "two launches of one graph": program(
        BeginCapture("main", "g"), produce("main"), EndCapture("main"), GraphLaunch("g", "side"),
        GraphLaunch("g", "main"),
    ),
    "another thread's event": program(produce(event="e"), consume(after=("e",), thread="worker")),
    "a graph behind its stream": program(
        BeginCapture("main", "g"), consume("main"), EndCapture("main"), produce("side"),
        GraphLaunch("g", "side"),
    ),
    "a thread that was handed over to": program(
        HostWrite("y"), HandOver("worker"), consume(thread="worker")
    ),
    "a user event": program(
        UserEvent("go"), Launch("upload", "main", (reads("y", 0, 64),), after=("go",)), HostWrite("y"),
        SetEvent("go"),
    ),
    "stream-ordered allocation behind a stream-ordered free": program(
        at(4096, "y"), produce("side"), Free("y", "stream", stream="side"), at(4096, "b", stream="main"),
        work("use", "main", reads("b", 0, 64), writes("z", 0, 64)), buffers={"x": 64, "z": 64},
    ),
    "a block whose life was extended": program(
        at(4096, "y"), produce("side"), RecordStream("y", "side"), Free("y", "pool"), at(4096, "b"),
        work("use", "main", reads("b", 0, 64), writes("z", 0, 64)), buffers={"x": 64, "z": 64},
    ),
}  # fmt: skip


def ends(what):
    """The first and the last piece of work: what the order in question is between."""
    read = read_program(what)
    places = sorted([i for i in read.works if read.works[i].parts] + list(read.nodes))
    return places[0], places[-1]


@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_cannot_be_forced_and_does_not_hang(device, name):
    assert hazards.check(ORDERED[name]).clean
    serial = exposure.execute(ORDERED[name], device, serial=True)
    assert exposure.execute(ORDERED[name], device).same(serial)
    first, last = ends(ORDERED[name])
    if first != last:
        run = exposure.execute(ORDERED[name], device, hold=(first, last))
        assert run.same(serial)
        assert (run.kept is False and "cannot be held until" in run.why) or name == "a user event"


UNORDERED = {
    "an event never recorded": program(produce(), Wait("e", "main"), consume()),
    "an event recorded before": program(Record("e", "side"), produce(), Wait("e", "main"), consume()),
    "a wait after": program(produce(), Record("e", "side"), consume(), Wait("e", "main")),
    "an event recorded again": program(
        produce(), Record("e", "side"), Record("e", "third"), Wait("e", "main"), consume(),
        streams={**TWO, "third": Stream()},
    ),
    "a question answered with no": program(produce(), Query(False, "side"), consume()),
    "a question about the default stream": program(
        produce("blocking"), Query(False, "0"), consume("own"),
        streams={**DEFAULT, "own": Stream("per-thread")},
    ),
    "the host waited for another stream": program(produce(), Synchronize("main"), consume()),
    "a non-blocking stream": program(produce("0"), consume("side"), streams=DEFAULT),
    "the last barrier only": program(
        produce("q"), Barrier("q", after=("never",), event="b"), consume("q", after=("b",)), streams=OOO
    ),
    "two launches of one graph are in order, but nothing outside": program(
        BeginCapture("main", "g"), produce("main"), EndCapture("main"), GraphLaunch("g", "side"),
        consume("main"),
    ),
    "a graph that could not be captured": program(
        produce("main"), *FORKED, EndCapture("main"), GraphLaunch("g", "side"), consume("side")
    ),
    "an event that was recorded in a capture since": program(
        produce(), Record("e", "side"), BeginCapture("third", "g"), Record("e", "third"), EndCapture("third"),
        Wait("e", "main"), consume(), streams={**TWO, "third": Stream()},
    ),
    "a wait refused by a capture": program(
        produce("third"), BeginCapture("main", "g"), Synchronize(), EndCapture("main"), consume("side"),
        streams={**TWO, "third": Stream()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNORDERED)
def test_what_is_not_ordered_is_free_to_be_late(device, name):
    run = exposure.execute(UNORDERED[name], device, hold=ends(UNORDERED[name]))
    assert run.kept, run.why
    (read,) = [d for d in run.differences(exposure.execute(UNORDERED[name], device, serial=True))
               if d.kind == "read"]  # fmt: skip
    assert (read.launch, read.found) == ("consume", "what was there at the start")


def test_step_by_step_a_node_of_a_graph_is_given_when_the_one_before_it_is_done(device, monkeypatch):
    """The first node is held until another thread lets it go, so that it cannot be done by chance."""
    does, given, states = play.Player._work, [], []
    racy = CASES["a graph's reader before its join"][0]

    def watched(self, queue, what, waits):
        states.append([command.event.command_execution_status for command in given])
        if what.label == "produce":
            late = device._cl.UserEvent(device.context)
            timers.append(threading.Timer(0.05, late.set_status, [0]))
            timers[-1].start()
            waits = [*waits, play._Command(late, frozenset())]
        given.append(does(self, queue, what, waits))
        return given[-1]

    timers = []
    monkeypatch.setattr(play.Player, "_work", watched)
    run = exposure.execute(racy, device, serial=True)
    timers[0].join()
    assert "consume read in y what produce wrote" in run.observed()
    assert states == [[], [0]]


def test_a_free_is_no_business_of_who_had_the_bytes_before(device):
    """The reader of a may be late: b, whose bytes they are now, is freed with nobody having touched them."""
    late = program(
        at(4096, "a"),
        work("use", "side", reads("a", 0, 64), writes("z", 0, 64)),
        Free("a", "pool"),
        at(4096, "b"),
        Free("b", "host"),
    )
    assert hazards.check(late).clean
    run = exposure.execute(late, device, hold=(1, 4))
    assert run.kept
    assert run.same(exposure.execute(late, device, serial=True))


USES = work("use", "main", reads("x", 0, 64), writes("a", 0, 64), thread="worker")


@pytest.mark.parametrize(
    "steps",
    [
        (HostWrite("x"), at(None, "a"), USES),
        (HostWrite("x"), *CAPTURED, GraphLaunch("g", "main", thread="worker")),
    ],
)
def test_no_thread_uses_what_another_has_yet_to_make(device, steps):
    run = exposure.execute(program(*steps), device, hold=(0, len(steps) - 1))
    assert run.kept is False
    assert run.why.endswith("the host does the one before it comes to the other")


def test_work_that_is_never_let_go_never_runs_and_nothing_hangs(device):
    stuck = program(UserEvent("go"), produce(after=("go",)), Launch("behind", "side"), consume())
    serial = exposure.execute(stuck, device, serial=True)
    assert serial.observed()[:3] == (
        "produce never ran",
        "behind never ran",
        "consume read in y what was there at the start",
    )
    assert exposure.execute(stuck, device, hold=(1, 3)).kept
    held = exposure.execute(stuck, device, hold=(3, 1))
    assert held.kept is False
    assert held.why == "consume cannot be held until produce is done: it does not come to run before"


def test_work_runs_when_the_host_lets_it_go(device):
    go = program(
        UserEvent("go"),
        Launch("upload", "side", (reads("x", 0, 64), writes("y", 0, 64)), after=("go",)),
        HostWrite("x"),
        SetEvent("go"),
        Synchronize("side"),
        HostRead("y"),
    )
    assert exposure.execute(go, device, serial=True).observed()[:2] == (
        "upload read in x what the host wrote",
        "the host read in y what upload wrote",
    )


@pytest.mark.parametrize(
    "waits",
    [
        Synchronize("side"),
        Synchronize(event="go"),
        Synchronize(event="done"),
        Synchronize(),
        Query(True, "side"),
        Launch("copy", "side", (), blocks=True),
    ],
)
def test_a_host_that_waits_for_itself_is_told_and_does_not_hang(device, waits):
    stuck = program(UserEvent("go"), produce(after=("go",), event="done"), waits, SetEvent("go"))
    told = r"^step 2 \(.*\): the host would wait for ever for user event 'go', which is not set yet"
    for serial in (False, True):
        with pytest.raises(LabError, match=told):
            exposure.execute(stuck, device, serial=serial)


def test_the_other_thread_sets_what_this_one_waits_for(device):
    """Forced, a thread goes no further than it must; here that is up to the set."""
    two = program(
        UserEvent("go"),
        HandOver("worker"),
        Launch("held", "main", (reads("x", 0, 64),), after=("go",)),
        SetEvent("go", thread="worker"),
        Synchronize("main"),
        consume("main"),
        produce("side", thread="worker"),
    )
    run = exposure.execute(two, device, hold=(6, 5))
    assert run.kept
    assert exposure.execute(two, device).observed()[0] == "held read in x what was there at the start"


# What is told


def test_a_wrong_result_spreads_and_is_told_apart_from_the_cause(device):
    chain = program(
        produce(),
        consume(),
        work("further", "main", reads("z", 0, 64), writes("x2", 0, 64)),
        buffers={**BUFFERS, "x2": 64},
    )
    (hazard,) = hazards.find(chain)
    shown = exposure.expose(chain, hazard, device)
    assert [(d.kind, d.launch, d.buffer) for d in shown.differences] == [
        ("read", "consume", "y"),
        ("spread", "further", "z"),
        ("spread", "", "z"),
        ("spread", "", "x2"),
    ]
    assert str(shown.differences[1]) == "further read in z what consume wrote, which had gone wrong before"


def test_an_exposure_says_what_was_done_and_what_came_of_it(device):
    racy = CASES["a reader too early"][0]
    (hazard,) = hazards.find(racy)
    shown = exposure.expose(racy, hazard, device)
    lines = shown.explain().splitlines()
    assert lines[0] == hazard.explain()
    assert lines[1:] == [
        f"Measured on {device.name}: produce was held until consume was done.",
        "  consume read in y what was there at the start instead of what produce wrote",
        "  and 1 more that came of it",
        "Repaired, under the same forcing: every launch observed what it should.",
        "  produce cannot be held until consume is done: consume waits for produce.",
    ]
    told = json.loads(json.dumps(shown.as_dict()))
    assert told["measured on"] == shown.device == device.name
    assert (told["shows"], told["mended"], told["kept"]) == (True, True, True)
    assert told["hazard"]["kind"] == "RAW"
    assert told["differences"] == [str(d) for d in shown.differences]


def test_a_run_says_what_everybody_observed(device):
    run = exposure.execute(CASES["part of it"][0], device, serial=True)
    assert str(run).splitlines() == [
        f"program, measured on {device.name}",
        "  use read in y[32:40] what fill wrote",
        "  use read in y[40:64] what was there at the start",
        "  at the end x holds what was there at the start",
        "  at the end y[0:40] holds what fill wrote",
        "  at the end y[40:64] holds what was there at the start",
        "  at the end z holds what was there at the start",
    ]
    assert json.loads(json.dumps(run.as_dict()))["observed"] == list(run.observed())


def test_a_repair_that_does_not_repair_is_told(device):
    racy = CASES["a reader too early"][0]
    (hazard,) = hazards.find(racy)
    useless = racy.with_steps([racy.steps[0], Record("e", "main"), Wait("e", "main"), racy.steps[1]])
    shown = exposure.expose(racy, hazard, device, repaired=useless)
    assert shown.shows
    assert not shown.mended
    assert "Repaired, under the same forcing: still wrong." in shown.explain()
    shown = exposure.expose(racy, hazard, device, repaired=racy)
    assert not shown.mended
    assert "The repaired program cannot be run: nothing that could be put in" in shown.explain()
    stuck = [UserEvent("go"), Wait("go", "side"), racy.steps[0], Synchronize("side"), racy.steps[1]]
    shown = exposure.expose(racy, hazard, device, repaired=racy.with_steps(stuck))
    assert shown.repaired is None
    assert "the host would wait for ever" in shown.as_dict()["repaired"]


def test_what_cannot_be_forced_is_told(device):
    """An analysis that took ordered work for a race is contradicted by the queues."""
    (hazard,) = hazards.find(CASES["a reader too early"][0])
    clean = ORDERED["an event"]
    mistaken = replace(hazard, first_index=0, second_index=3)
    shown = exposure.expose(clean, mistaken, device, repaired=program(Synchronize(), *clean.steps))
    assert not shown.shows
    assert "  That could not be: produce cannot be held until consume is done" in shown.explain()
    assert "  Nothing differed from the host's order." in shown.explain()


def test_the_labs_own_schedules_are_shown_too(device):
    for edge in schedule.EDGES:
        step = schedule.deferred(1, 8, 8).without(edge)
        found = hazards.check(step).hazards
        assert found
        for hazard in found:
            shown = exposure.expose(step, hazard, device)
            assert shown.shows, hazard.explain()
            assert shown.mended, hazard.explain()


# What is refused


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([produce("tail")], r"step 0 \(produce\): there is no stream 'tail'; there are main, side"),
        ([HostRead("w")], r"step 0 \(host read of w\): there is no buffer 'w'; there are x, y, z"),
        ([HostRead("x", 60, 65)], r"step 0 .*: bytes 60 to 65 of x lie outside its 64 bytes"),
        ([HostRead("x", 9, 8)], r"step 0 .*: bytes 9 to 8 of x are no range"),
        ([at(0, "a"), Free("a"), Free("a")], r"step 2 \(free of a\): a was freed before, at step 1"),
        ([Free("x", "stream")], r"step 0 .*: how='stream' goes with a stream"),
        ([GraphLaunch("g", "main")], r"step 0 .*: there is no graph 'g'; captured so far: none"),
        ([EndCapture("main")], r"step 0 .*: nothing is being captured on main"),
        ([BeginCapture("main", "g")] * 2, r"step 1 .*: main is out-of-order, or is being captured already"),
        ([SetEvent("go", source="a.py:7")], r"step 0 \(set go, a\.py:7\): 'go' is no user event"),
    ],
)
def test_a_program_that_cannot_be_is_refused_in_one_line(device, steps, message):
    with pytest.raises(LabError, match=message) as problem:
        exposure.execute(program(*steps), device)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("hold", "message"),
    [
        ((0, 5), r"hold: step 5 is not one of the 4 steps, 0 to 3"),
        ((True, 3), r"hold: step True is not one of the 4 steps"),
        ((0, 1), r"hold: step 1 \(record e\) does no work"),
        ((3, 3), r"hold=\(3, 3\): a step cannot be held until it is done itself"),
    ],
)
def test_a_hold_that_cannot_be_is_refused(device, hold, message):
    with pytest.raises(LabError, match=message):
        exposure.execute(ORDERED["an event"], device, hold=hold)


def test_hazards_and_repairs_of_other_programs_are_refused(device):
    racy = CASES["a reader too early"][0]
    (hazard,) = hazards.find(racy)
    other = CASES["two writers"][0]
    with pytest.raises(LabError, match="step 0 of program is not produce; give a hazard that was found in"):
        exposure.expose(other, hazard, device)
    with pytest.raises(LabError, match="a repaired program makes the same launches; this one makes others"):
        exposure.expose(racy, hazard, device, repaired=other)


def test_other_things_than_programs_and_opencl_devices_are_refused(device):
    with pytest.raises(LabError, match="programs are played back on OpenCL devices"):
        exposure.execute(ORDERED["one stream"], "cuda")
    with pytest.raises(LabError, match="is no schedule"):
        exposure.execute([produce()], device)


def test_too_much_is_refused_before_anything_runs(device, monkeypatch):
    long = program(*[HostRead("x")] * 10_001, repeat=2)
    with pytest.raises(LabError, match="program has 20002 steps, and at most 20000 are played back"):
        exposure.execute(long, device)
    monkeypatch.setattr("flashnorm_lab.exposure.plan.MAX_WORDS", 6)
    wide = program(*[work(f"k{i}", "main", reads("x", i, i + 1), reads("y", i, i + 1)) for i in range(9)])
    with pytest.raises(LabError, match=r"step 3 \(k3\): up to here, launches touch more than 6 pieces"):
        exposure.execute(wide, device)


def test_a_device_without_out_of_order_queues_says_so(device):
    class Half:
        queue_properties = 0

    plain = copy.copy(device)
    plain.halves = [Half()]
    with pytest.raises(LabError, match="has no out-of-order queues, and the program has one"):
        exposure.execute(CASES["an out-of-order queue"][0], plain)


def test_a_device_that_gets_stuck_is_told_in_bounded_time(device, monkeypatch):
    """The gate is not opened by anybody, as if a command of the device never came to an end."""
    monkeypatch.setattr(play, "PATIENCE_S", 0.05)
    monkeypatch.setattr(play._Command, "shut", lambda self: set())
    with pytest.raises(LabError, match="did not finish a command within 0 s"):
        exposure.execute(program(UserEvent("go"), produce(after=("go",))), device, serial=True)


def test_a_device_that_breaks_an_order_is_told(device, monkeypatch):
    monkeypatch.setattr(play.Player, "_is_done", lambda self, command: True)
    with pytest.raises(LabError, match="has run consume before an event that it waits for"):
        exposure.execute(ORDERED["an event"], device, hold=(0, 3))


# The corpus


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_every_hazard_of_the_corpus_shows_and_every_clean_schedule_runs_right(device, path):
    listed = schedule_file.load(path)
    verdict = hazards.check(listed)
    if not verdict.hazards:
        serial = exposure.execute(listed, device, serial=True)
        assert exposure.execute(listed, device).same(serial)
        return
    repaired = verdict.repaired()
    for hazard in verdict.hazards:
        shown = exposure.expose(listed, hazard, device, repaired)
        assert shown.shows, shown.explain()
        assert shown.forced.kept is not False, shown.explain()
        assert shown.mended or shown.unrepaired.startswith("nothing that could be put in"), shown.explain()
