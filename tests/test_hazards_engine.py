"""The analysis of any program: what each rule orders, what is refused, what is kept, and what is told."""

import itertools
import json
import pickle
import sys

import pytest

from flashnorm_lab import hazards, program, schedule
from flashnorm_lab.errors import LabError
from flashnorm_lab.hazards import Checker, memory
from flashnorm_lab.program import (
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
    Stream,
    Synchronize,
    UserEvent,
    Wait,
    reads,
    writes,
)

STREAMS = {
    "a": Stream(),
    "b": Stream(),
    "blocking": Stream("blocking"),
    "thread": Stream("per-thread"),
    "default": Stream("legacy"),
    "elsewhere": Stream("blocking", context="1"),
    "free": Stream("out-of-order"),
}
BUFFERS = {"x": 64, "y": 64, "z": 64}


def made(*steps, repeat=1, streams=STREAMS, buffers=BUFFERS):
    return Program(steps, streams, buffers, repeat=repeat)


def write(stream, buffer="x", name="produce", start=0, stop=64, **options):
    return Launch(name, stream, (writes(buffer, start, stop),), **options)


def read(stream, buffer="x", name="consume", start=0, stop=64, **options):
    return Launch(name, stream, (reads(buffer, start, stop),), **options)


def kinds(*steps, **options):
    return [(h.kind, h.first, h.second) for h in hazards.find(made(*steps, **options))]


RACE = [("RAW", "produce", "consume")]


@pytest.mark.parametrize(
    ("first", "second", "race"),
    [
        ("a", "a", False),
        ("a", "b", True),
        ("blocking", "default", False),
        ("default", "blocking", False),
        ("thread", "default", False),
        ("default", "thread", False),
        ("a", "default", True),
        ("default", "a", True),
        ("elsewhere", "default", True),
        ("blocking", "thread", True),
        ("free", "free", True),
    ],
)
def test_what_two_streams_order_by_themselves(first, second, race):
    assert kinds(write(first), read(second)) == (RACE if race else [])


def test_the_default_stream_orders_two_blocking_streams_only_where_something_is_done_on_it():
    between = [
        Launch("nothing", "default"),
        Record("e", "default"),
        Wait("never recorded", "default"),
    ]
    for step in between:
        assert kinds(write("blocking"), step, read("thread")) == [], step
    for step in (Launch("nothing", "a"), Query(False, stream="default")):
        assert kinds(write("blocking"), step, read("thread")) == RACE


def test_a_wait_of_the_host_counts_for_what_it_issues_later():
    assert kinds(write("a"), Synchronize("a"), read("b")) == []
    assert kinds(write("a"), Record("e", "a"), Synchronize(event="e"), read("b")) == []
    assert kinds(write("a"), Synchronize(), read("b")) == []
    assert kinds(write("a"), Query(True, stream="a"), read("b")) == []
    assert kinds(write("a"), Query(False, stream="a"), read("b")) == RACE
    assert kinds(write("a", blocks=True), read("b")) == []
    assert kinds(Record("e", "a"), write("a"), Synchronize(event="e"), read("b")) == RACE


def test_the_host_itself_reads_and_writes():
    assert kinds(write("a"), HostRead("x")) == [("RAW", "produce", "host read of x")]
    assert kinds(read("a"), HostWrite("x")) == [("WAR", "consume", "host write of x")]
    assert kinds(HostWrite("x"), read("a")) == []
    assert kinds(read("a"), HostWrite("x", 64, 64)) == []


def test_events_of_another_thread_count_only_behind_a_hand_over():
    record = (write("a"), Record("e", "a"))
    wait = (Wait("e", "b", thread="worker"), read("b", thread="worker"))
    assert kinds(*record, *wait) == RACE
    assert kinds(*record, HandOver("worker"), *wait) == []
    assert kinds(HandOver("worker"), *record, *wait) == RACE
    assert kinds(*record, HandOver("middle"), HandOver("worker", thread="middle"), *wait) == []


def test_an_out_of_order_queue_keeps_the_order_of_wait_lists_and_barriers_only():
    assert kinds(write("free", event="e"), read("free", after=("e",))) == []
    assert kinds(write("free"), Barrier("free"), read("free")) == []
    assert kinds(write("free"), Barrier("free", event="e"), read("a", after=("e",))) == []
    assert kinds(write("free"), Record("e", "free"), Wait("e", "a"), read("a")) == []
    assert kinds(write("free"), Synchronize("free"), read("free")) == []
    # A barrier with a wait list waits for that alone.
    other = Launch("other", "free", event="o")
    assert kinds(write("free"), other, Barrier("free", after=("o",)), read("free")) == RACE


def test_commands_of_an_out_of_order_queue_share_entries_once_they_are_ordered():
    checker = Checker({"free": Stream("out-of-order")}, {"x": 64})
    for _ in range(200):
        checker.feed(write("free", name="one"))
        checker.feed(Barrier("free"))
    assert len(checker._clocks[0]) == 3  # the host, the queue, and one chain
    for _ in range(7):
        checker.feed(Launch("free to run", "free"))
    assert len(checker._clocks[0]) == 9


def test_what_a_user_event_holds_comes_behind_what_the_host_did_before_it_set_it():
    held = (UserEvent("go"), read("a", after=("go",)))
    assert kinds(*held, HostWrite("x"), SetEvent("go")) == []
    assert kinds(*held, SetEvent("go"), HostWrite("x")) == [("WAR", "consume", "host write of x")]
    # All that comes later on an in-order queue is held, too, and what waits for its events.
    chain = (
        UserEvent("go"),
        Launch("first", "a", after=("go",)),
        Record("e", "a"),
        Wait("e", "b"),
        read("b"),
    )
    assert kinds(*chain, HostWrite("x"), SetEvent("go")) == []


def test_a_host_that_waits_for_what_it_holds_itself_is_refused():
    steps = (UserEvent("go"), read("a", after=("go",)))
    for waits in (Synchronize("a"), Synchronize(), read("a", name="more", blocks=True)):
        with pytest.raises(LabError, match=r"step 2 .*wait for ever.*step 1 \(consume\).*'go'"):
            hazards.find(made(*steps, waits))


def test_a_user_event_that_is_never_set_is_an_error():
    (problem,) = hazards.check(made(UserEvent("go"), read("a", after=("go",)))).errors
    assert problem.code == "never set"
    assert "'go'" in problem.text


# Memory


def test_bytes_that_do_not_overlap_do_not_conflict():
    assert kinds(write("a", stop=32), read("b", start=32)) == []
    (hazard,) = hazards.find(made(write("a", stop=33), read("b", start=32)))
    assert (hazard.start, hazard.stop) == (32, 33)


def test_a_launch_that_reads_and_writes_is_one_hazard_in_whatever_order_it_says_so():
    both = (reads("x", 0, 64), writes("x", 0, 64))
    for accesses in (both, both[::-1]):
        found = kinds(write("a"), Launch("update", "b", accesses))
        assert found == [("RAW", "produce", "update")]


def test_a_free_of_the_host_regards_nothing_and_a_pool_hands_out_only_what_it_likes():
    use = (write("a", "m"), Record("e", "a"), Wait("e", "b"), read("b", "m"))
    buffer = Allocate("m", 64, 4096)
    assert kinds(buffer, *use, Free("m")) == [
        ("use after free", "produce", "free of m"),
        ("use after free", "consume", "free of m"),
    ]
    assert kinds(buffer, *use, Free("m", "stream", "a")) == [("use after free", "consume", "free of m")]
    assert kinds(buffer, *use, Free("m", "pool")) == []
    again = (Allocate("n", 64, 4096), write("a", "n", name="next"))
    assert kinds(buffer, *use, Free("m", "pool"), *again) == [("reuse", "consume", "next")]
    assert kinds(buffer, *use, RecordStream("m", "b"), Free("m", "pool"), *again) == []
    assert kinds(buffer, *use, Free("m", "pool"), Allocate("n", 64, 4160), write("a", "n")) == []
    assert kinds(buffer, *use, Free("m", "pool"), read("a", "m", name="late")) == [
        ("use after free", "free of m", "late")
    ]


def test_two_readers_of_reused_bytes_do_not_conflict():
    steps = (Allocate("m", 64, 0), read("a", "m"), Free("m", "pool"), Allocate("n", 64, 0), read("b", "n"))
    assert kinds(*steps) == []


def test_a_stream_ordered_allocation_has_to_be_waited_for():
    buffer = Allocate("m", 64, 4096, stream="a")
    assert kinds(buffer, write("a", "m")) == []
    assert kinds(buffer, write("b", "m")) == [("use before allocation", "allocation of m", "produce")]
    assert kinds(buffer, Record("e", "a"), Wait("e", "b"), write("b", "m")) == []
    # The driver puts an allocation behind the free of the same bytes on another stream.
    handed_on = (Free("m", "stream", "a"), Allocate("n", 64, 4096, stream="b"), write("b", "n", name="next"))
    assert kinds(buffer, write("a", "m"), *handed_on) == []


def test_a_block_that_is_handed_out_in_parts_is_behind_its_free_in_each():
    block = (Allocate("m", 64, 4096, stream="a"), write("a", "m"), Free("m", "stream", "a"))
    halves = (Allocate("n", 32, 4096, stream="b"), Allocate("o", 32, 4128, stream="elsewhere"))
    use = write("elsewhere", "o", name="next", stop=32)
    assert kinds(*block, *halves, use) == []
    assert kinds(*block, Allocate("m", 64, 8192, stream="b"), *halves, use) == []
    extended = (Allocate("m", 64, 4096), read("b", "m"), RecordStream("m", "b"), Free("m", "pool"))
    parts = (Allocate("n", 32, 4096), Allocate("o", 32, 4128))
    assert kinds(*extended, *parts, write("a", "o", name="next", stop=32)) == []
    assert kinds(*extended[:2], *extended[3:], *parts, write("a", "o", name="next", stop=32)) == [
        ("reuse", "consume", "next")
    ]


def test_what_is_held_on_an_out_of_order_queue_is_not_behind_later_waits():
    held = (UserEvent("go"), write("b"), Record("e", "b"), read("free", after=("go",)))
    later = (Wait("e", "free"), SetEvent("go"))
    assert kinds(*held, *later) == RACE
    before = (UserEvent("go"), write("b"), Record("e", "b"), Wait("e", "free"), read("free", after=("go",)))
    assert kinds(*before, SetEvent("go")) == []


# Graphs


def forked(*inside, join=True):
    fork = (BeginCapture("a", "g"), write("a"), Record("fork", "a"), Wait("fork", "b"))
    end = (Record("join", "b"), Wait("join", "a")) if join else ()
    return (*fork, *inside, *end, EndCapture("a"))


def test_captured_work_runs_where_its_graph_is_launched():
    run = GraphLaunch("g", "a")
    assert kinds(*forked(read("b"))) == []
    assert kinds(*forked(read("b")), run, run) == []
    early = forked(write("b", "y", name="fill"), read("a", "y"))
    assert kinds(*early) == []
    assert kinds(*early, run) == [("RAW", "fill", "consume")]
    # Launches of one graph are made one after the other, whatever streams they are given to.
    assert kinds(*forked(read("b")), run, GraphLaunch("g", "blocking")) == []
    # Before the graph, and behind it, on the stream it is launched on.
    assert kinds(*forked(read("b")), run, read("a", name="after")) == []
    assert kinds(*forked(read("b")), run, read("b", name="after")) == [("RAW", "produce", "after")]


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        (forked(read("b"), join=False), "cudaErrorStreamCaptureUnjoined"),
        (forked(Synchronize("a")), "cudaErrorStreamCaptureUnsupported"),
        (forked(Synchronize()), "cudaErrorStreamCaptureUnsupported"),
        (forked(Synchronize(event="fork")), "cudaErrorCapturedEvent"),
        ((Record("outside", "b"), *forked(Wait("outside", "a"))), "cudaErrorStreamCaptureIsolation"),
        (
            (BeginCapture("blocking", "g"), Launch("nothing", "default"), EndCapture("blocking")),
            "cudaErrorStreamCaptureImplicit",
        ),
        (
            (
                *(BeginCapture("a", "g"), Record("e", "a"), Wait("e", "b"), EndCapture("b")),
                GraphLaunch("g", "a"),
            ),
            "cudaErrorStreamCaptureUnmatched",
        ),
        ((BeginCapture("default", "g"),), "cudaErrorStreamCaptureUnsupported"),
        ((BeginCapture("a", "g"),), "capture not ended"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_capture_that_would_fail_is_told_by_the_error_that_it_would_be(steps, code):
    verdict = hazards.check(made(*steps))
    assert [problem.code for problem in verdict.errors] == [code]
    assert not verdict.clean


# What cannot be


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ((write("nowhere"),), r"step 0 \(produce\): there is no stream 'nowhere'; there are a, b"),
        ((write("a", "w"),), r"step 0 \(produce\): there is no buffer 'w'; there are x, y, z"),
        ((write("a", stop=65),), r"step 0 \(produce\): bytes 0 to 65 of x lie outside its 64 bytes"),
        ((write("a", start=5, stop=4),), r"bytes 5 to 4 of x are no range"),
        ((write("a", start=-1),), r"bytes -1 to 64 of x are no range"),
        ((Free("w"),), r"step 0 \(free of w\): there is no buffer 'w'"),
        ((Free("x"), Free("x")), r"step 1 \(free of x\): x was freed before, at step 0"),
        ((Free("x", "stream"),), r"how='stream' goes with a stream"),
        ((Free("x", "later"),), r"how='later' is not one of host, stream, pool"),
        ((Allocate("x", 4),), r"there is a buffer 'x' already"),
        ((Allocate("m", -4),), r"bytes=-4: give a whole number"),
        ((Allocate("m", 64, 0), Allocate("n", 64, 32)), r"step 1 .*bytes 0x20 to 0x60 lie over m"),
        ((RecordStream("w", "a"),), r"there is no buffer 'w'"),
        ((Wait("", "a"),), r"'' is no event's name"),
        ((Query(True),), r"a query asks for a stream or for an event"),
        ((Synchronize("a", "e"),), r"a stream or an event, not both"),
        ((SetEvent("e"),), r"'e' is no user event that is yet to be set"),
        ((UserEvent("e"), UserEvent("e")), r"there is a user event 'e' already"),
        ((GraphLaunch("g", "a"),), r"there is no graph 'g'; captured so far: none"),
        ((EndCapture("a"),), r"nothing is being captured on a"),
        ((BeginCapture("a", "g"), BeginCapture("a", "h")), r"a is being captured into g already"),
        ((HandOver("host"),), r"thread 'host' cannot hand over to itself"),
        ((write("a", source="train.py:7", stop=65),), r"step 0 \(produce, train.py:7\)"),
        (("launch",), r"step 0: 'launch' is no step of a program"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line_that_names_the_step(steps, text):
    with pytest.raises(LabError, match=text) as refused:
        hazards.check(made(*steps))
    assert "\n" not in str(refused.value)


def test_streams_and_buffers_that_cannot_be_are_refused():
    with pytest.raises(LabError, match="stream kind 'fast' is not one of blocking"):
        Stream("fast")
    with pytest.raises(LabError, match="'d' and 'e' are both the legacy default stream of context '0'"):
        Checker({"d": Stream("legacy"), "e": Stream("legacy")})
    with pytest.raises(LabError, match="buffer 'x' has -1 bytes"):
        Checker({}, {"x": -1})
    with pytest.raises(LabError, match="repeat=0"):
        made(repeat=0)
    with pytest.raises(LabError, match="str 'train' is no schedule"):
        hazards.check("train")


# What is kept


def entries(checker):
    """How many things the checker keeps for streams, events and bytes."""
    segments = [s for b in checker._buffers.values() for s in b.memory.segments]
    return (
        len(checker._events) + len(checker._sites) + len(checker._clocks) * len(checker._clocks[0])
        + len(segments) + sum(len(s.reads) + len(s.old) for s in segments)
        + sum(len(b.cache) for b in checker._buffers.values())
    )  # fmt: skip


def test_what_is_kept_does_not_grow_with_the_number_of_launches():
    unrolled = program.from_schedule(schedule.deferred(1, 8, 4), 2)
    again = [s for s in unrolled.steps if "s" not in {a.buffer[1:] for a in getattr(s, "accesses", ())}]
    checker = Checker(unrolled.streams, unrolled.buffers)
    checker.feed_all(again * 10)
    few = entries(checker)
    checker.feed_all(again * 1000)
    assert entries(checker) == few
    assert checker.verdict().hazards == ()


def test_a_hot_weight_keeps_a_bounded_set_of_readers_and_its_verdict():
    checker = Checker(STREAMS, BUFFERS)
    for number in range(5000):
        checker.feed(read("ab"[number % 2], name=f"layer {number}"))
    (segment,) = checker._buffers["x"].memory.segments
    assert len(segment.reads) <= memory.READERS
    checker.feed(write("default", name="update"))
    last = {h.first for h in checker.verdict().hazards}
    assert {"layer 4998", "layer 4999"} <= last


def test_many_ranges_are_joined_again_when_they_are_alike():
    size = 4 * memory.RANGES
    checker = Checker({"a": Stream()}, {"x": size})
    for _ in range(3):
        for start in range(size):
            checker.feed(write("a", start=start, stop=start + 1))
        checker.feed(write("a", stop=size))
    checker.feed(write("a", start=1, stop=3))
    assert len(checker._buffers["x"].memory.segments) <= 4


def test_pool_memory_that_is_handed_out_for_ever_keeps_no_past():
    checker = Checker({"a": Stream()}, {})
    for number in range(2000):
        checker.feed(Allocate(f"m{number % 3}", 64, 4096))
        checker.feed(read("a", f"m{number % 3}"))
        checker.feed(Free(f"m{number % 3}", "pool"))
        if number % 50 == 49:
            checker.feed(Synchronize())
    (segment,) = checker._memories["device"].segments
    assert len(segment.old) <= 2 * memory.READERS


def test_events_that_are_new_in_every_turn_are_waited_for_at_one_place():
    checker = Checker(STREAMS, BUFFERS)
    for number in range(100):
        checker.feed(write("a", event=f"e{number}", source="loop.py:2"))
        checker.feed(read("b", after=(f"e{number}",), event=f"r{number}", source="loop.py:3"))
        checker.feed(Launch("next", "a", after=(f"r{number}", f"e{number}"), source="loop.py:4"))
        checker.feed(DestroyEvent(f"e{number}"))
        checker.feed(DestroyEvent(f"r{number}"))
    assert len(checker._sites) == 3
    (needless,) = checker.verdict().redundant  # of two in one list, the one that the other implies
    assert (needless.waiter, needless.what, needless.source) == ("a", "e0", "loop.py:4")


def test_events_that_are_destroyed_are_forgotten():
    checker = Checker(STREAMS, BUFFERS)
    for number in range(100):
        checker.feed(Launch("k", "a", event=f"e{number}"))
        checker.feed(DestroyEvent(f"e{number}"))
    assert checker._events == {}


def test_more_hazards_than_are_kept_are_counted():
    steps = itertools.chain.from_iterable(
        (write("a", name=f"w{number}"), read("b", name=f"r{number}")) for number in range(1200)
    )
    verdict = Checker(STREAMS, BUFFERS).feed_all(steps).verdict()
    assert len(verdict.hazards) == 1000
    assert verdict.more > 1000
    assert f"and {verdict.more} more" in verdict.report()


# What is told


def test_the_values_that_a_read_may_observe():
    loop = made(write("a"), read("b"), repeat=5)
    (raw, war) = hazards.find(loop)
    assert raw.values == ("x of step t", "x of step t-1", "x of step t-2", "an older one")
    assert war.values == ("x of step t+1", "x of step t")
    (once,) = hazards.find(made(write("a", source="train.py:3"), read("b")))
    assert once.values == ("x from produce (train.py:3)", "what x held at the start")
    assert once.observed == "consume may read x from produce (train.py:3) or what x held at the start"
    ordered_before = made(write("b", name="old"), write("a"), read("b"))
    (_, raw) = hazards.find(ordered_before)
    assert raw.values == ("x from produce", "x from old")


def test_why_names_the_record_that_nobody_waits_for_and_the_wait_for_nothing():
    (hazard,) = hazards.find(made(write("a"), Record("e", "a", source="train.py:2"), read("b")))
    assert hazard.why == "e is recorded behind produce, at train.py:2, but b does not wait for it"
    (hazard,) = hazards.find(
        made(Wait("e", "b", source="train.py:1"), write("a"), Record("e", "a"), read("b"))
    )
    assert "its wait at train.py:1 is for e, which has no record by then" in hazard.why


def test_a_loop_that_was_written_out_is_repaired_at_every_turn():
    turn = (write("a", source="train.py:2"), read("b", source="train.py:3"), Synchronize())
    verdict = hazards.check(made(*turn, *turn, *turn))
    assert [(h.first, h.count) for h in verdict.hazards] == [("produce", 3)]
    assert len(verdict.repair) == 1
    repaired = verdict.repaired()
    assert hazards.check(repaired).clean
    assert sum(isinstance(s, Wait) for s in repaired.steps) == 3


def test_why_names_the_wait_that_comes_too_early():
    early = made(
        Record("e", "a", source="train.py:1"),
        write("a", source="train.py:2"),
        Wait("e", "b", source="train.py:3"),
        read("b", source="train.py:4"),
    )
    (hazard,) = hazards.find(early)
    assert "at train.py:3" in hazard.why
    assert "recorded at train.py:1, before produce was issued" in hazard.why
    (hazard,) = hazards.find(made(write("a"), read("default")))
    assert "a is non-blocking" in hazard.why


def test_a_report_reads_like_a_compiler_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("one\n    upload(x)\nforward(x)\n")
    built = made(write("a", name="upload", source="train.py:2"), read("default", source="train.py:3"))
    report = hazards.check(built).report("cupy")
    for line in (
        "program: 2 launches, 1 hazard",
        "RAW: consume may read x before upload has written it",
        "  --> train.py:3: consume on default reads x, bytes 0 to 64",
        "      | forward(x)",
        "  --> train.py:2: upload on a writes x, bytes 0 to 64",
        "      | upload(x)",
    ):
        assert line in report.splitlines()
    assert "upload_done.record(a)" in report
    assert "cp.cuda.Stream.null.wait_event(upload_done)" in report
    pytorch = hazards.check(built).report("pytorch")
    assert "torch.cuda.Event()" in pytorch
    assert "torch.cuda.default_stream().wait_event(upload_done)" in pytorch
    opencl = hazards.check(built).report("opencl")
    assert "cl.enqueue_barrier(default, wait_for=[upload_done])" in opencl
    with pytest.raises(LabError, match="words='hip'"):
        hazards.check(built).report("hip")


@pytest.mark.parametrize("words", hazards.WORDS)
def test_every_kind_of_hazard_tells_itself(words):
    pool = (Allocate("m", 64, 0), read("b", "m"), Free("m", "pool"), Allocate("n", 64, 0), write("a", "n"))
    told = {
        "WAR": made(read("a"), write("b")),
        "WAW": made(write("a"), write("b", name="again")),
        "use after free": made(read("a"), Free("x")),
        "reuse": made(*pool),
        "use before allocation": made(Allocate("m", 64, 0, stream="a"), write("b", "m")),
    }
    for kind, built in told.items():
        (hazard,) = hazards.check(built).hazards
        assert hazard.kind == kind
        assert hazard.explain().startswith(kind)
        assert hazard.title() in hazard.report(words)
        assert hazard.first in hazard.explain()
        assert hazard.second in hazard.explain()
        assert hazard.repair in hazard.report(words)
    assert "record_stream" in hazards.find(told["reuse"])[0].report("pytorch")
    assert "record_stream" not in hazards.find(told["reuse"])[0].report("cupy")


def test_the_smallest_repair_is_put_in_and_repairs():
    two = made(write("a"), write("a", "y", name="more"), read("b"), read("b", "y", name="use more"))
    verdict = hazards.check(two)
    assert len(verdict.hazards) == 2
    assert [r.text for r in verdict.repair] == [
        "an event recorded on a after more, which b waits for before consume"
    ]
    assert verdict.smallest
    assert hazards.check(verdict.repaired()).clean


def test_a_repair_that_crosses_into_the_next_iteration():
    loop = made(write("a"), Record("e", "a"), Wait("e", "b"), read("b"), repeat=3)
    verdict = hazards.check(loop)
    assert [(h.kind, h.distance) for h in verdict.hazards] == [("WAR", 1)]
    (repair,) = verdict.repair
    assert (repair.after, repair.before) == ("consume", "produce")
    repaired = verdict.repaired()
    assert hazards.check(repaired).clean
    assert [type(s).__name__ for s in repaired.steps[:2]] == ["Wait", "Launch"]


def test_a_free_that_comes_too_early_is_moved():
    early = made(write("a"), Free("x"), read("b"))
    verdict = hazards.check(early)
    assert verdict.repair[0].kind == "move"
    assert hazards.check(verdict.repaired()).clean


def test_the_host_is_made_to_wait_only_for_what_it_does_itself():
    verdict = hazards.check(made(write("a"), HostRead("x")))
    assert [r.kind for r in verdict.repair] == ["host wait"]
    assert hazards.check(verdict.repaired()).clean
    verdict = hazards.check(made(HostWrite("x"), read("a", thread="worker")))
    assert [r.kind for r in verdict.repair] == ["hand over"]
    assert hazards.check(verdict.repaired()).clean


def test_waits_that_order_nothing_new():
    steps = (
        write("a"),
        Record("early", "a"),
        write("a"),
        Record("late", "a"),
        Wait("early", "b"),
        Wait("late", "b"),
        read("b"),
        Synchronize("a"),
        Synchronize(),
        Synchronize("a"),
    )
    told = [(r.kind, r.waiter, r.what, r.index) for r in hazards.check(made(*steps)).redundant]
    assert told == [("wait", "b", "early", 4), ("host wait", "host", "a", 9)]
    sources = [
        Synchronize("a", source="train.py:1"),
        Synchronize("a", source="train.py:2"),
    ]
    (again,) = hazards.check(made(write("a"), *sources)).redundant
    assert again.explain() == "host waits for a (train.py:2): that orders nothing new"
    # What is of use in one iteration is of use.
    assert hazards.check(made(Wait("e", "b"), write("a"), Record("e", "a"), repeat=2)).redundant == ()


def test_the_forks_of_a_step_whose_host_waits_order_nothing_new():
    told = hazards.check(schedule.deferred(1, 8, 4, io="host")).redundant
    assert {r.what for r in told} == {"fork_matrix", "fork_vector"}
    assert hazards.check(schedule.deferred(1, 8, 4)).redundant == ()


def test_a_lab_schedule_is_repaired_by_its_own_edges():
    verdict = hazards.check(schedule.deferred(1, 8, 4).without("join_matrix", "fork_vector"))
    assert [r.source for r in verdict.repair] == ["fork_vector", "join_matrix"]
    assert verdict.smallest
    with pytest.raises(LabError, match="with_edges"):
        verdict.repaired()


def test_order_counts_the_pairs_that_are_ordered():
    steps = (write("a"), Record("e", "a"), Wait("e", "b"), read("b"))
    built = made(*steps, write("a"), read("b"))
    found = hazards.order(built, "produce", "consume")
    assert (found.ordered, found.unordered, found.always) == (1, 1, False)
    assert found.text == "consume waits for produce in 1 of 2 pairs, and not in the others"
    assert hazards.order(made(*steps), "produce", "consume").always
    assert hazards.order(made(write("a"), write("a")), "produce", "produce").always
    assert "never comes behind" in hazards.order(made(read("b"), write("a")), "produce", "consume").text
    with pytest.raises(LabError, match="there is no launch 'other' in program; there are produce, consume"):
        hazards.order(built, "produce", "other")


def test_ordered_looks_across_steps():
    whole = schedule.deferred(1, 8, 4)
    assert hazards.ordered(whole, "post_scale", "projection", distance=1)
    assert not hazards.ordered(whole.without("fork_matrix"), "post_scale", "projection", distance=1)


def test_a_verdict_can_be_kept_and_sent():
    verdict = hazards.check(made(write("a"), read("b")))
    assert json.loads(json.dumps(verdict.as_dict()))["hazards"][0]["kind"] == "RAW"
    again = pickle.loads(pickle.dumps(verdict))
    assert again.hazards == verdict.hazards
    assert again.repaired().steps == verdict.repaired().steps


def test_a_recording_is_judged_by_its_program():
    class Recorded:
        program = made(write("a"), read("b"))

    assert [h.kind for h in hazards.check(Recorded()).hazards] == ["RAW"]


def test_names_that_are_new_in_every_turn_of_a_loop_are_one_hazard_and_one_repair():
    turns = [
        (
            Launch(f"copy h {n} to x", "a", (reads("h", 0, 4), writes("x", 0, 64)), source="loop.py:1"),
            read("b", source="loop.py:2"),
        )
        for n in range(100)
    ]
    verdict = hazards.check(made(*(s for turn in turns for s in turn), buffers=BUFFERS | {"h": 4}))
    assert sorted((h.kind, h.count) for h in verdict.hazards) == [("RAW", 100), ("WAR", 99)]
    assert len(verdict.repair) == 2
    assert hazards.check(verdict.repaired()).clean


def test_lines_to_add_are_ones_that_python_takes():
    names = ("self.queues[1]", "class", "1 2", "a b")
    for name in names:
        streams = {name: Stream(), "b": Stream()}
        built = Program((write(name), read("b")), streams, {"x": 64})
        for words in hazards.WORDS:
            for line in hazards.check(built).repair[0].lines(words):
                compile(line.partition("#")[0].strip(), "added", "exec")
    assert "produce_done.record(self.queues[1])" in hazards.check(
        Program((write(names[0]), read("b")), {names[0]: Stream(), "b": Stream()}, {"x": 64})
    ).report("cupy")


def test_a_wait_for_the_turn_before_has_nothing_to_wait_for_in_the_first():
    loop = made(write("a"), Record("e", "a"), Wait("e", "b"), read("b"), repeat=3)
    lines = hazards.check(loop).hazards[0].fix("opencl")
    assert any(line.strip().startswith("consume_done = None") for line in lines)
    assert any("wait_for=consume_done and [consume_done]" in line for line in lines)


def test_why_says_what_does_not_help():
    (hazard,) = hazards.find(made(write("a"), Synchronize("default"), HostRead("x")))
    assert "has waited for default, which does not cover a, as that is non-blocking" in hazard.why
    (hazard,) = hazards.find(made(write("blocking"), read("thread")))
    assert "blocking streams wait for the default stream, and not for each other" in hazard.why
    (hazard,) = hazards.find(made(write("a"), Synchronize("a"), read("b", thread="worker")))
    assert "host thread host knows that it is done, but no hand-over to worker was seen" in hazard.why


def test_a_verdict_prints_as_its_report_and_shows_as_a_line():
    verdict = hazards.check(made(write("a"), read("b"), write("a", "y"), read("b", "y")))
    assert str(verdict) == verdict.report()
    assert repr(verdict) == "<Verdict: program: 4 launches, 2 hazards>"
    assert "and 1 more" in verdict.report(most=1)
    unseen = Program((), {}, unseen=("what the other thread does",))
    assert hazards.check(unseen).summary() == (
        "program: 0 launches, no hazard in what was seen; 1 thing not seen"
    )


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ((BeginCapture("default", "g"), EndCapture("default")), "cudaErrorStreamCaptureUnsupported"),
        (
            (
                *(BeginCapture("a", "g"), Record("e", "a"), BeginCapture("b", "h"), Wait("e", "b")),
                *(EndCapture("b"), EndCapture("a")),
            ),
            "cudaErrorStreamCaptureMerge",
        ),
        ((*forked(read("b")), Synchronize(event="join")), "cudaErrorCapturedEvent"),
        (forked(read("b", blocks=True)), "cudaErrorStreamCaptureUnsupported"),
    ],
    ids=["legacy", "merge", "captured event", "blocking"],
)
def test_more_captures_that_would_fail(steps, code):
    assert [problem.code for problem in hazards.check(made(*steps)).errors] == [code]


def test_a_graph_cannot_run_while_it_is_being_captured():
    with pytest.raises(LabError, match="graph g is still being captured"):
        hazards.check(made(BeginCapture("a", "g"), GraphLaunch("g", "b")))


def test_steps_print_in_a_line_each():
    steps = (
        write("a", source="train.py:2", event="e", blocks=True), Record("r", "a"), Wait("r", "b"),
        Barrier("free"),
        Synchronize(), Query(True, event="e"), HostRead("x"), HostWrite("x"), Allocate("m", 4, 16),
        RecordStream("m", "b"), Free("m", "pool"), UserEvent("u"), SetEvent("u"), DestroyEvent("u"),
        HandOver("w"), BeginCapture("a", "g"), EndCapture("a"), GraphLaunch("g", "a"),
    )  # fmt: skip
    assert {type(s) for s in steps} == set(program.STEPS)
    text = str(made(*steps, repeat=2))
    assert len(text.splitlines()) == len(steps) + 1
    assert "produce: writes x[0:64]; completes e; the host waits for it  [train.py:2]" in text
    assert "program: 18 steps, 2 times" in text


def test_the_analysis_needs_nothing_but_python():
    heavy = {"numpy", "torch", "cupy", "pyopencl", "plotly", "ipywidgets"}
    import subprocess

    code = "import sys, flashnorm_lab.hazards; print(*[m for m in sys.modules if '.' not in m])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not heavy & set(loaded.split())
