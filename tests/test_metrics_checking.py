"""Checks of a timeline against itself: each fault made here, none where there is none, and real traces."""

import json

import pytest
from metric_timelines import (
    SEEDS,
    call_of,
    odd_timelines,
    operations,
    random_timeline,
    real,
    real_case,
)

from flashnorm_lab.timeline import TimelineBuilder
from flashnorm_lab.timeline.metrics import check
from flashnorm_lab.timeline.metrics.finding import SEVERITIES


def clean(count=20, base=1_700_000_000_000_000_000, calls=1, works=1, shift=0):
    """A builder with launches and their kernels, in good order."""
    build = TimelineBuilder()
    build.lane("host", "host")
    build.lane("stream 7", "device", device="0")
    for i in range(count):
        at = base + 10_000 * i
        build.span("cudaLaunchKernel", "host", at, 3_001 * calls, "launch", launch=i, origin=2 * i)
        build.span("k", "stream 7", at + 5_003 + shift, 4_001 * works, "kernel", launch=i, origin=2 * i + 1)
    return build


def kinds(answer):
    return {found.kind: found for found in answer.findings}


def only(answer, kind):
    """The finding of this kind, which must be the only one."""
    assert list(kinds(answer)) == [kind]
    return answer.findings[0]


def test_nothing_is_found_where_nothing_is_wrong():
    answer = check(clean().build())
    assert answer.findings == ()
    assert answer.ok
    assert answer.table() is None
    assert answer.summary() == "nothing speaks against the figures"


def test_operations_of_no_time():
    build = clean(200)
    empty = build.span("k", "stream 7", 1_700_000_000_000_009_500, 0, "kernel", launch=0)
    found = only(check(build.build()), "operations of 0 ns")
    assert (found.severity, found.count, found.share) == ("note", 1, 1 / 201)
    assert found.examples == (("k", "stream 7", 1_700_000_000_000_009_500),)
    assert empty == 400
    found = only(check(clean(works=0).build()), "operations of 0 ns")
    assert (found.severity, found.count, found.share, len(found.examples)) == ("broken", 20, 1.0, 3)


def test_launch_calls_of_no_time():
    found = only(check(clean(calls=0).build()), "launch calls of 0 ns")
    assert (found.severity, found.count, found.share) == ("warning", 20, 1.0)


def test_half_the_spans_at_time_zero():
    build = clean(10)
    for i in range(30):
        build.span("aten::mm", "host", 0, 5, "op", origin=100 + i)
    answer = check(build.build())
    assert not answer.ok
    assert answer.findings[0].severity == "broken"
    found = kinds(answer)["half the spans at time zero"]
    assert (found.count, found.share) == (30, 0.6)
    build = clean(2, base=5_000)
    for _ in range(2):
        build.span("k", "stream 7", 77, 10, "kernel", launch=0)
    assert "half the operations at one and the same time" in kinds(check(build.build()))
    build = clean(4, base=5_000)
    for _ in range(8):
        build.span("here", "host", 1_000, 0, "mark")
    assert kinds(check(build.build(base_ns=1_000)))["half the spans at time zero"].count == 8


def test_exactly_half_is_half_whichever_side_it_is_on():
    for value in (0, 10**6):
        build = TimelineBuilder()
        for i in range(6):
            build.span("here", "host", 100 + i, 0, "mark")
            build.span("here", "host", value, 0, "mark")
        (name,) = [kind for kind in kinds(check(build.build())) if kind.startswith("half")]
        assert kinds(check(build.build()))[name].count == 6


def test_spans_far_outside_the_rest():
    build = clean(20)
    build.span("stray", "host", 0, 5, "op", origin=100)
    found = only(check(build.build()), "spans far outside the rest")
    assert (found.severity, found.count, found.share) == ("broken", 1, 1 / 41)
    assert found.examples == (("stray", "host", 0),)
    late = clean(20)
    late.span("late", "host", 1_700_000_000_000_000_000 + 50 * 60 * 10**9, 5, "op", origin=100)
    assert check(late.build()).findings == ()


def test_operations_before_their_own_call():
    build = clean(20)
    build.span("cudaLaunchKernel", "host", 1_700_000_000_000_300_000, 3_001, "launch", launch=50, origin=90)
    build.span("early", "stream 7", 1_700_000_000_000_299_000, 4_001, "kernel", launch=50, origin=91)
    found = only(check(build.build()), "operations that start before their own call")
    assert (found.severity, found.count, found.share) == ("warning", 1, 1 / 21)
    assert "by 1.000 µs at the worst" in found.meaning
    found = only(check(clean(shift=-9_000).build()), "operations that start before their own call")
    assert (found.severity, found.count) == ("broken", 20)


def test_clocks_that_are_apart():
    found = only(check(clean(shift=20_000_000).build()), "no operation starts soon after its call")
    assert (found.severity, found.count) == ("warning", 20)
    assert "even the quickest starts 20.005 ms after its call" in found.meaning


def jumping(back_ns):
    """Calls of one thread in the file's order, where the second twenty have earlier times."""
    build = TimelineBuilder()
    for i in range(40):
        at = 10**9 + i * 3_000_000 - (back_ns if i >= 20 else 0)
        build.span("cudaEventQuery", "host", at, 1_001, "call", origin=i)
    return build.build()


def test_a_host_clock_that_steps_back():
    found = kinds(check(jumping(31_000_001)))["a host clock that steps back"]
    assert (found.severity, found.count) == ("warning", 1)
    assert "28.000 ms back at the most" in found.meaning
    assert found.examples[0][2] == 10**9 + 20 * 3_000_000 - 31_000_001


def test_two_calls_each_that_mix_are_enough_for_a_step_back():
    build = TimelineBuilder()
    for at in (0, 30, 15, 45):
        build.span("cudaEventQuery", "host", at * 1_000_000, 1_001, "call", origin=len(build))
    found = kinds(check(build.build()))["a host clock that steps back"]
    assert (found.count, found.share) == (1, 0.25)


def test_parts_of_a_file_out_of_order_are_no_clock_that_steps_back():
    assert list(kinds(check(jumping(500_000_000)))) == ["no device operations"]
    build = TimelineBuilder()  # the second part fills a hole that the first left
    for at in [*range(10), *range(20, 30), *range(10, 20)]:
        build.span("cudaEventQuery", "host", at * 3_000_000, 1_001, "call", origin=len(build))
    assert list(kinds(check(build.build()))) == ["no device operations"]


@pytest.mark.parametrize("seed", SEEDS)
def test_overlaps_on_one_stream_by_plain_loops(seed):
    t = random_timeline(seed)
    found = kinds(check(t))
    partial, nested = set(), set()
    for lane in {op.lane for op in operations(t)}:
        before = []
        mine = [
            op for op in operations(t) if op.lane == lane and op.end > op.start and op.category != "graph"
        ]
        for op in sorted(mine, key=lambda op: (op.start, op.index)):
            reach = max((other.end for other in before), default=op.start)
            if op.start < reach:
                (nested if op.end <= reach else partial).add(op.index)
            before.append(op)
    for kind, spans in (
        ("operations that overlap the one before them", partial),
        ("operations inside another one of their stream", nested),
    ):
        assert (found[kind].count if kind in found else 0) == len(spans)


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_of_pairs_by_plain_loops(seed):
    t = random_timeline(seed)
    found, ops, calls = kinds(check(t)), operations(t), call_of(t)
    counts = {
        "operations of 0 ns": sum(op.start == op.end for op in ops),
        "operations with no launch": sum(op.index not in calls for op in ops),
        "operations that start before their own call": sum(
            op.start < calls[op.index].start for op in ops if op.index in calls
        ),
    }
    for kind, count in counts.items():
        assert (found[kind].count if kind in found else 0) == count
    edges = [
        (int(s), int(e)) for s, e, k in zip(t.edge_source, t.edge_target, t.edge_kind, strict=True) if k == 0
    ]
    wrong = sum(t.start_ns[e] < t.end_ns[s] for s, e in edges)
    kind = "operations that start before what they wait for has ended"
    assert (found[kind].count if kind in found else 0) == wrong


def test_whole_microseconds_make_overlaps_that_are_none():
    build = TimelineBuilder()
    for i in range(50):
        build.span("k", "stream 7", 10_000 * i, 11_000, "kernel", launch=i)
        build.span("call", "host", 10_000 * i, 1_000, "launch", launch=i)
    found = kinds(check(build.build()))["operations that overlap the one before them"]
    assert (found.severity, found.count) == ("note", 49)
    assert "49 overlap by no more than the file's whole microseconds can feign" in found.meaning


def test_launches_without_operations_and_operations_without_launches():
    build = clean(20)
    for i in range(6):
        build.span("k", "stream 7", 1_700_000_000_000_300_000 + 9_000 * i, 4_001, "kernel", launch=900)
    build.span("cudaGraphLaunch", "host", 1_700_000_000_000_290_000, 5_001, "graph", launch=800)
    found = kinds(check(build.build()))
    assert set(found) == {"operations with no launch", "launches with no operation"}
    orphans, empty = found["operations with no launch"], found["launches with no operation"]
    assert (orphans.severity, orphans.count, orphans.share) == ("warning", 6, 6 / 26)
    assert "6 of them share a launch number, as the operations of a replayed graph do" in orphans.meaning
    assert "1 graph launch without an operation may have run some" in orphans.meaning
    assert (empty.severity, empty.count, empty.share) == ("note", 1, 1 / 21)


def test_launch_numbers_that_are_shared():
    build = clean(20)
    build.span("cudaLaunchKernel", "host", 1_700_000_000_000_300_000, 3_001, "launch", launch=4)
    found = only(check(build.build()), "launch calls that share a launch number")
    assert (found.count, found.share) == (1, 1 / 21)


def test_what_the_reader_noted_is_said_too():
    build = clean()
    notes, left_out = ["3 events have no dur: they last 0 ns here"], {"flow": 7, "odd": 2}
    answer = check(build.build(notes=notes, left_out=left_out, edges_unknown=4))
    found = kinds(answer)
    assert not answer.ok
    assert found["noted while reading"].meaning == "3 events have no dur: they last 0 ns here"
    assert found["left out while reading"].count == 9
    assert "7 flow; 2 odd" in found["left out while reading"].meaning
    assert found["waits for unknown records"].count == 4


@pytest.mark.parametrize("name", odd_timelines())
def test_next_to_nothing_is_answered_too(name):
    answer = check(odd_timelines()[name])
    json.dumps(answer.as_dict(), allow_nan=False)
    assert "nan" not in str(answer).lower()
    found = kinds(answer)
    assert ("no spans" in found) == (name in ("empty", "lanes without spans"))
    assert ("no device operations" in found) == (name in ("host only", "ranges and marks only"))
    assert ("operations with no launch" in found) == (name in ("device only, no launches", "one span"))
    assert ("operations of 0 ns" in found) == (name == "all of 0 ns")


def test_the_worst_comes_first_and_names_are_shown_as_text():
    build = clean(3, works=0)
    build.span("k\x1b[31m", "stream 7", 1_700_000_000_000_090_000, 4_001, "kernel")
    answer = check(build.build())
    order = [SEVERITIES.index(found.severity) for found in answer.findings]
    assert order == sorted(order)
    assert len(set(order)) == 2
    text = str(answer)
    assert "\x1b" not in text
    assert r"k\x1b[31m on stream 7" in text


@real
def test_the_graphs_case():
    t, ops, calls = real_case("kineto_cuda_graphs_four_streams")
    found = kinds(check(t))
    orphans = found["operations with no launch"]
    assert orphans.count == sum(op.correlation not in calls for op in ops) == 614
    assert orphans.share == 614 / len(ops)
    assert "a host clock that steps back" not in found  # its buffers stand out of order in the file
    reach = {}
    overlapping = 0
    for start, end, _, stream, *_ in sorted(ops, key=lambda op: op.start):
        if end > start:
            overlapping += start < reach.get(stream, start)
            reach[stream] = max(reach.get(stream, end), end)
    told = sum(
        found[kind].count
        for kind in (
            "operations that overlap the one before them",
            "operations inside another one of their stream",
        )
    )
    assert told == overlapping
