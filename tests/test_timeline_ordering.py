"""Edges and order: of the lab's own timelines, of small ones made here, of real traces where they are."""

import json
from pathlib import Path
from random import Random

import pytest

from flashnorm_lab import devices, hazards, schedule, timeline, trace_order
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import Timeline, TimelineBuilder
from flashnorm_lab.timeline.nsight import from_nsight
from flashnorm_lab.timeline.ordering import edges, order

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
real = pytest.mark.skipif(
    not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)
EDGES = ("fork_matrix", "fork_vector", "join_matrix", "join_vector")


class Lab:
    """A timeline as the lab records it: calls on one host lane, work on streams, edges between them."""

    def __init__(self):
        self.builder = TimelineBuilder()
        self.builder.lane("host", "host")
        self.now, self.number = 0, 0

    def call(self, name, category, launch=-1, lasts=2, lane="host"):
        self.now += 10
        return self.builder.span(name, lane, self.now, lasts, category, launch=launch)

    def work(self, name, stream, start=None, *, launched=True, lasts=3, lane="host"):
        """Returns the span of the work; it starts right behind its call unless told otherwise."""
        self.number += 1
        if launched:
            self.call(name, "launch", self.number, lane=lane)
        start = self.now + 4 if start is None else start
        return self.builder.span(name, stream, start, lasts, "kernel", self.number)

    def deferred(self, kept=EDGES, steps=3):
        """Steps of the deferred schedule, with these of its edges."""
        for _ in range(steps):
            x = self.work("copy x", "main")
            y = self.work("projection", "matrix")
            r = self.work("inv_rms", "vector")
            z = self.work("post_scale", "main")
            for name, pair in zip(EDGES, ((x, y), (x, r), (y, z), (r, z)), strict=True):
                if name in kept:
                    self.builder.edge(*pair, name)
        return self.build()

    def build(self, **meta):
        return self.builder.build(**({"provenance": "measured"} | meta))


def brute(t, first, second):
    """Whether one operation is behind another by lanes and edges alone: every path, step by step."""
    seen, queue = {first}, [first]
    while queue:
        at = queue.pop()
        work = [
            s for s in t.operations().tolist() if t.lane[s] == t.lane[at] and t.start_ns[s] > t.start_ns[at]
        ]
        targets = t.edge_target[(t.edge_source == at) & (t.edge_kind == 0)].tolist()
        for span in {*work, *targets} - seen:
            seen.add(span)
            queue.append(span)
    return second in seen - {first}


# The lab's own timelines


def test_the_four_edges_are_told_by_name_and_lanes():
    answer = edges(Lab().deferred())
    assert (answer.count, answer.order, answer.flow, answer.unknown) == (12, 12, 0, 0)
    groups = {(g.name, g.source, g.target, g.kind, g.count, g.early) for g in answer.groups}
    assert groups == {
        ("fork_matrix", "main", "matrix", "order", 3, 0),
        ("fork_vector", "main", "vector", "order", 3, 0),
        ("join_matrix", "matrix", "main", "order", 3, 0),
        ("join_vector", "vector", "main", "order", 3, 0),
    }
    assert "12 that order work" in answer.summary()
    assert json.loads(json.dumps(answer.as_dict()))["count"] == 12


def test_the_join_orders_the_projection():
    t = Lab().deferred()
    answer = order(t, "projection", "post_scale")
    assert answer.verdict == "yes"
    assert (answer.cases, answer.ordered, answer.unknown, answer.unordered) == (3, 3, 0, 0)
    assert answer.path == ("projection on matrix", "join_matrix", "post_scale on main")
    assert answer.by == "timeline"
    assert not answer.lacks
    assert "starts only when the projection before it is done" in str(answer)


def test_without_the_join_nothing_does_though_it_ended_before():
    t = Lab().deferred([edge for edge in EDGES if edge != "join_matrix"])
    answer = order(t, "projection", "post_scale")
    assert answer.verdict == "no"
    assert (answer.unordered, answer.ended_before) == (3, 3)
    assert "which is no promise" in answer.reason
    assert answer.path == ()
    assert answer.table() is None
    assert order(t, "inv_rms", "post_scale").verdict == "yes"


def test_a_stream_runs_its_work_in_order():
    answer = order(Lab().deferred(()), "copy x", "post_scale")
    assert answer.verdict == "yes"
    assert answer.path == ("copy x on main", "the stream runs its work in order", "post_scale on main")


@pytest.mark.parametrize("kept", [EDGES, EDGES[:2], EDGES[2:], EDGES[::2], EDGES[1:], ()])
def test_two_spans_by_number_agree_with_every_path(kept):
    t = Lab().deferred(kept)
    spans = t.operations().tolist()
    seen = set()
    for i, first in enumerate(spans):
        for second in spans[i + 1 :]:
            answer = order(t, first, second)
            assert answer.cases == 1
            assert answer.verdict == ("yes" if brute(t, first, second) else "no"), (first, second)
            assert bool(answer.path) == (answer.verdict == "yes")
            if answer.path:
                assert answer.path[0].startswith(t.names[t.name[first]])
                assert answer.path[-1].startswith(t.names[t.name[second]])
            seen.add(answer.verdict)
    assert seen == ({"yes", "no"} if kept != EDGES else seen)


def test_a_path_may_lead_over_several_streams():
    lab = Lab()
    a, b, c = lab.work("a", "one"), lab.work("b", "two"), lab.work("c", "three")
    lab.work("b2", "two")
    lab.builder.edge(a, b, "first")
    lab.builder.edge(b, c, "second")
    answer = order(lab.build(), "a", "c")
    assert answer.verdict == "yes"
    assert answer.path == ("a on one", "first", "b on two", "second", "c on three")


def test_an_arrow_that_only_shows_a_flow_orders_nothing():
    lab = Lab()
    a, b = lab.work("a", "one"), lab.work("b", "two")
    lab.builder.edge(a, b, "drawn", "flow")
    t = lab.build()
    assert order(t, "a", "b").verdict == "no"
    assert (edges(t).order, edges(t).flow) == (0, 1)


def test_a_target_that_began_early_is_counted():
    lab = Lab()
    a, b = lab.work("a", "one", 50, lasts=100), lab.work("b", "two", 60)
    lab.builder.edge(a, b, "join")
    assert edges(lab.build()).groups[0].early == 1


# What the host waited for


@pytest.mark.parametrize("name", ["wait for every stream", "cudaDeviceSynchronize", "cuCtxSynchronize"])
def test_the_host_orders_what_it_waited_for(name):
    lab = Lab()
    lab.work("a", "one")
    lab.call(name, "synchronize")
    lab.work("b", "two")
    answer = order(lab.build(), "a", "b")
    assert answer.verdict == "yes"
    assert answer.path == ("a on one", f"the host: {name}", "b on two")


def test_the_host_may_wait_for_one_stream():
    for stream, verdict in (("one", "yes"), ("three", "no")):
        lab = Lab()
        lab.work("a", "one")
        lab.work("c", "three")
        lab.call(f"wait for {stream}", "synchronize")
        lab.work("b", "two")
        assert order(lab.build(), "a", "b").verdict == verdict


def test_what_was_issued_behind_a_wait_is_not_ordered_by_it():
    lab = Lab()
    lab.call("wait for every stream", "synchronize")
    lab.work("a", "one")
    lab.work("b", "two")
    lab.call("wait for every stream", "synchronize")
    answer = order(lab.build(), "a", "b")
    assert answer.verdict == "no"
    assert not answer.lacks


def test_the_host_waits_over_a_path():
    lab = Lab()
    a, c = lab.work("a", "one"), lab.work("c", "three")
    lab.builder.edge(a, c, "join")
    lab.call("wait for three", "synchronize")
    lab.work("b", "two")
    answer = order(lab.build(), "a", "b")
    assert answer.verdict == "yes"
    assert answer.path == ("a on one", "join", "c on three", "the host: wait for three", "b on two")


def test_a_wait_of_which_the_target_is_not_told():
    lab = Lab()
    lab.work("a", "one")
    lab.call("cudaEventSynchronize", "synchronize")
    lab.work("b", "two")
    answer = order(lab.build(), "a", "b")
    assert answer.verdict == "cannot be known"
    assert any("cudaEventSynchronize" in what for what in answer.lacks)
    assert any(line.startswith("not known: ") for line in answer.left_out)


def test_a_profilers_entry_tells_which_stream_the_host_waited_for():
    for stream, verdict in (("one", "yes"), ("two", "no")):
        lab = Lab()
        lab.work("a", "one")
        lab.call("cudaStreamSynchronize", "synchronize", 99)
        lab.builder.span("Stream Sync", stream, lab.now, 5, "synchronize", 99)
        lab.work("b", "two")
        assert order(lab.build(), "a", "b").verdict == verdict


def test_another_thread_may_or_may_not_know_of_a_wait():
    lab = Lab()
    lab.builder.lane("host 2", "host")
    lab.work("a", "one")
    lab.call("cudaDeviceSynchronize", "synchronize")
    lab.work("b", "two", lane="host 2")
    assert order(lab.build(), "a", "b").verdict == "cannot be known"


def test_work_without_its_call_and_a_host_that_waits():
    lab = Lab()
    lab.work("a", "one", 5, launched=False)
    lab.call("cudaDeviceSynchronize", "synchronize")
    lab.work("b", "two")
    answer = order(lab.build(), "a", "b")
    assert answer.verdict == "cannot be known"
    assert any("1 operations have no call" in line for line in answer.left_out)


def test_work_without_its_call_stands_in_its_streams_order():
    lab = Lab()
    lab.work("a", "one", 5, launched=False)
    b = lab.work("b", "one")
    c = lab.work("c", "two")
    lab.builder.edge(b, c, "join")
    assert order(lab.build(), "a", "c").verdict == "yes"


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_agree_with_every_path(seed):
    """Lanes, edges and the host's waits, against the closure of all of them, one by one."""
    random = Random(seed)
    lab = Lab()
    issued, behind = [], []  # ("work", lane, span) or ("wait", lanes, None); and what each is straight behind
    lanes = ("one", "two", "three")
    for _ in range(24):
        if issued and random.random() < 0.15:
            lane = random.choice((*lanes, "every stream"))
            lab.call(f"wait for {lane}", "synchronize")
            covers = lanes if lane == "every stream" else (lane,)
            behind.append({i for i, (kind, on, _) in enumerate(issued) if kind == "wait" or on in covers})
            issued.append(("wait", covers, None))
            continue
        lane = random.choice(lanes)
        before = {i for i, (kind, on, _) in enumerate(issued) if kind == "wait" or on == lane}
        span = lab.work(f"kernel {len(issued)}", lane)
        if issued and random.random() < 0.3:
            i = random.randrange(len(issued))
            if issued[i][0] == "work":
                lab.builder.edge(issued[i][2], span, "edge")
                before.add(i)
        issued.append(("work", lane, span))
        behind.append(before)
    closure = []
    for before in behind:
        closure.append(before.union(*(closure[i] for i in before)))
    t = lab.build()
    verdicts = set()
    for i, (kind, _, second) in enumerate(issued):
        for j in range(i if kind == "work" else 0):
            if issued[j][0] == "work":
                answer = order(t, issued[j][2], second)
                assert answer.verdict == ("yes" if j in closure[i] else "no"), (j, i)
                assert bool(answer.path) == (j in closure[i])
                verdicts.add(answer.verdict)
    assert verdicts == {"yes", "no"}


@pytest.mark.parametrize("dropped", [(), ("join_matrix",), ("join_vector",), ("fork_matrix", "join_vector")])
def test_a_recording_agrees_with_the_schedule_that_made_it(dropped):
    device = devices.get("opencl")
    made = schedule.deferred(1, 64, 32, edges=[edge for edge in EDGES if edge not in dropped])
    t = device.prepare(made).record(3)
    for first, second in (("projection", "post_scale"), ("inv_rms", "post_scale"), ("inv_rms", "projection")):
        asked = order(t, first, second)
        if asked.cases == 3:
            assert (asked.verdict == "yes") == hazards.ordered(made, first, second), (first, second)
    assert (order(t, "projection", "post_scale").verdict == "no") == ("join_matrix" in dropped)


# What is not known


def test_waits_of_unknown_records_leave_it_open():
    lab = Lab()
    lab.work("a", "one")
    lab.work("b", "two")
    t = lab.build(edges_unknown=2)
    answer = order(t, "a", "b")
    assert answer.verdict == "cannot be known"
    assert any("2 waits of streams" in what for what in answer.lacks)
    told = edges(t)
    assert told.unknown == 2
    assert told.summary().endswith("2 waits of streams are for a record that is not known")
    assert told.left_out == ("waits of streams of which the record is not known: 2",)


def test_what_is_known_stays_known():
    t = Lab().deferred().with_meta(edges_unknown=5)
    assert order(t, "projection", "post_scale").verdict == "yes"


def test_kernels_of_one_graph():
    builder = TimelineBuilder()
    builder.span("cudaGraphLaunch", "host", 0, 5, "graph", launch=1)
    builder.span("a", "stream", 10, 3, "kernel", launch=1)
    builder.span("b", "stream", 20, 3, "kernel", launch=1)
    answer = order(builder.build(), "a", "b")
    assert answer.verdict == "cannot be known"
    assert any("which edges a graph has" in what for what in answer.lacks)


def test_a_recording_of_others_without_its_file():
    t = Lab().deferred(EDGES[:3]).with_meta(provenance="recorded")
    assert order(t, "projection", "post_scale").verdict == "yes"
    answer = order(t, "inv_rms", "post_scale")
    assert answer.verdict == "cannot be known"
    assert any("file cannot be asked" in what for what in answer.lacks)


def test_no_such_case():
    lab = Lab()
    lab.work("b", "two")
    lab.work("a", "one")
    t = lab.build()
    answer = order(t, "a", "b")
    assert (answer.verdict, answer.cases) == ("cannot be known", 0)
    assert "never issued before" in answer.reason
    spans = t.operations().tolist()
    assert "was not issued behind" in order(t, spans[1], spans[0]).reason


def test_cases_are_those_of_one_process():
    builder = TimelineBuilder()
    for process in ("1", "2"):
        builder.lane(f"stream {process}", "device", "0", process)
    builder.span("a", "stream 1", 0, 1, "kernel")
    builder.span("b", "stream 2", 5, 1, "kernel")
    assert order(builder.build(), "a", "b").cases == 0


# Who is meant


def test_names_may_be_short_and_say_the_lane():
    t = Lab().deferred()
    assert order(t, "proj", "scale").second == "post_scale"
    assert order(t, "copy", "post_scale on main").first == "copy x"
    assert order(t, "projection on matrix", "post_scale").first == "projection on matrix"


@pytest.mark.parametrize(
    ("first", "match"),
    [
        ("nothing", "no kernel, copy or fill has 'nothing' in its name; most frequent: "),
        ("nothing on main", "no kernel, copy or fill on main has 'nothing'"),
        ("o", "'o' is part of 3 names; give more of one: "),
        (999, "there is no span 999"),
        (-1, "there is no span -1"),
    ],
)
def test_names_and_numbers_that_mean_nothing(first, match):
    with pytest.raises(LabError, match=match):
        order(Lab().deferred(), first, "post_scale")


def test_lanes_that_are_called_alike():
    builder = TimelineBuilder()
    for device in "01":
        builder.span("a", f"device {device} stream 7", 0, 1, "kernel")
    t = builder.build()
    with pytest.raises(LabError, match="several lanes are called stream 7: device 0 stream 7, device 1"):
        order(t, "a on stream 7", "a")
    assert order(t, "a on device 1 stream 7", "a on 0 stream 7").first == "a on device 1 stream 7"


def test_a_call_stands_for_the_work_that_it_enqueued():
    lab = Lab()
    lab.work("a", "one")
    lab.work("b", "one")
    calls = lab.build().spans(category="launch").tolist()
    answer = order(lab.build(), *calls)
    assert (answer.first, answer.second, answer.verdict) == ("a on one", "b on one", "yes")


def test_a_call_that_enqueued_nothing():
    lab = Lab()
    lab.work("a", "one")
    free = lab.call("cudaFree", "call")
    with pytest.raises(LabError, match=r"span \d+ \(cudaFree on host\) is no operation.*enqueued 0"):
        order(lab.build(), free, "a")


@pytest.mark.parametrize("what", [None, 3, ["x.json"]])
def test_what_is_neither_a_timeline_nor_a_path(what):
    with pytest.raises(LabError, match="neither a timeline nor the path of one"):
        order(what, "a", "b")


def test_names_are_text_in_a_terminal():
    lab = Lab()
    lab.work("a\x1b[31m", "one")
    lab.work("b", "one")
    answer = order(lab.build(), "a", "b")
    assert "\x1b" not in str(answer)
    assert "\\x1b[31m" in str(answer)
    assert answer.first == "a\x1b[31m"


def test_an_empty_timeline():
    told = edges(TimelineBuilder().build())
    assert (told.count, told.groups, told.summary()) == (0, (), "none is recorded")
    with pytest.raises(LabError, match="most frequent: none"):
        order(TimelineBuilder().build(), "a", "b")


def test_edges_that_join_calls_order_no_work():
    lab = Lab()
    lab.work("a", "one")
    lab.work("b", "two")
    record, wait = lab.call("record", "record"), lab.call("wait", "wait")
    lab.builder.edge(record, wait, "event")
    answer = order(lab.build(), "a", "b")
    assert answer.verdict == "no"
    assert any("1 edges that do not lead from one operation" in line for line in answer.left_out)


def test_many_steps_are_judged_at_once():
    t = Lab().deferred(steps=2000)
    answer = order(t, "copy x on main", "post_scale")
    assert (answer.verdict, answer.cases) == ("yes", 2000)


# Files


def test_an_own_export_is_read_as_a_timeline(tmp_path):
    Lab().deferred().export_chrome(tmp_path / "own.json")
    answer = order(tmp_path / "own.json", "projection", "post_scale")
    assert (answer.verdict, answer.by) == ("yes", "timeline")


def kineto(tmp_path, *, resolved, stream=24):
    """gemm on stream 20, recorded; stream 24 waits (`resolved`: it is told for what); norm on stream 24."""

    def event(name, category, ts, dur, tid, **args):
        return {
            "ph": "X",
            "name": name,
            "cat": category,
            "ts": ts,
            "dur": dur,
            "pid": 0,
            "tid": tid,
            "args": args,
        }

    device = {"device": 0, "context": 1}
    wait = {"wait_on_stream": 20, "wait_on_cuda_event_id": 9, "wait_on_cuda_event_record_corr_id": 2}
    if not resolved:
        wait = dict.fromkeys(wait, -1)
    events = [
        event("cudaLaunchKernel", "cuda_runtime", 10, 2, 1, correlation=1),
        event("cudaEventRecord", "cuda_runtime", 20, 2, 1, correlation=2),
        event("cudaStreamWaitEvent", "cuda_runtime", 30, 2, 1, correlation=3),
        event("cudaLaunchKernel", "cuda_runtime", 40, 2, 1, correlation=4),
        event("gemm", "kernel", 15, 3, 20, correlation=1, stream=20, **device),
        event("Stream Wait Event", "cuda_sync", 30, 1, 24, correlation=3, stream=24, **device, **wait),
        event("norm", "kernel", 50, 3, stream, correlation=4, stream=stream, **device),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


FREE = {"*": "non-blocking"}


def test_a_trace_whose_record_is_known(tmp_path):
    path = kineto(tmp_path, resolved=True)
    for what in (path, str(path), Timeline.open(path)):
        answer = order(what, "gemm", "norm", kinds=FREE)
        assert (answer.verdict, answer.by) == ("yes", "trace")
        assert "stream 24 waits for it (correlation 3)" in answer.path
        assert answer.first.startswith("gemm")
    assert edges(Timeline.open(path)).order == 1


def test_a_trace_whose_record_is_not_known(tmp_path):
    path = kineto(tmp_path, resolved=False)
    for what in (path, Timeline.open(path)):
        answer = order(what, "gemm", "norm", kinds=FREE)
        assert answer.verdict == "cannot be known"
        assert answer.lacks
    told = edges(Timeline.open(path))
    assert (told.order, told.unknown) == (0, 1)


def test_a_trace_where_nothing_orders_them(tmp_path):
    answer = order(kineto(tmp_path, resolved=True, stream=28), "gemm", "norm", kinds=FREE)
    assert (answer.verdict, answer.ended_before) == ("no", 1)


def test_two_spans_of_a_trace_by_number(tmp_path):
    path = kineto(tmp_path, resolved=True)
    t = Timeline.open(path)
    first, second = t.spans(name="gemm")[0], t.spans(name="norm")[0]
    answer = order(t, first, second, kinds=FREE)
    assert (answer.verdict, answer.by, answer.cases) == ("yes", "trace", 1)
    assert order(path, int(first), int(second), kinds=FREE).verdict == "yes"


def test_a_file_that_changed_since_is_not_asked(tmp_path):
    path = kineto(tmp_path, resolved=True)
    t = Timeline.open(path)
    path.write_text(path.read_text() + "\n")
    answer = order(t, "gemm", "norm")
    assert (answer.verdict, answer.by) == ("yes", "timeline")
    path.unlink()
    assert order(t, "gemm", "norm").by == "timeline"


def test_answers_of_trace_order_for_chosen_launches(tmp_path):
    program = trace_order.load(kineto(tmp_path, resolved=True), FREE)
    launches = sorted(program.times)
    answer = trace_order.answer_for(program, [(launches[0], launches[1])])
    assert (answer.verdict, answer.first, answer.second) == ("yes", "gemm on stream 20", "norm on stream 24")
    assert trace_order.answer_for(program, [(launches[1], launches[0])]).verdict != "yes"
    with pytest.raises(LabError, match=r"step 99 of trace\.json is no launch"):
        trace_order.answer_for(program, [(99, launches[0])])
    with pytest.raises(LabError, match="is no trace"):
        trace_order.answer_for("trace.json", [])


# Real traces


@real
def test_the_three_streams():
    path = CASES / "traces" / "kineto_event_sync_three_streams.json.gz"
    t = timeline.open(path)
    gemm = "ampere_sgemm_128x64_nn"
    told = edges(t)
    assert [(g.source, g.target, g.count, g.kind) for g in told.groups] == [
        ("stream 20", "stream 24", 1, "order")
    ]
    for what in (path, t):
        answer = order(what, f"{gemm} on stream 20", f"{gemm} on stream 24")
        assert (answer.verdict, answer.cases) == ("yes", 1)
        assert answer.path[1] == "event 19 recorded on stream 20 (correlation 1385)"
    spans = {t.lanes[t.lane[s]].name: int(s) for s in t.operations() if t.names[t.name[s]] == gemm}
    assert order(t, spans["stream 20"], spans["stream 24"]).verdict == "yes"
    # The streams' kinds and two queries' answers are not in the trace.
    assert order(t, spans["stream 20"], spans["stream 28"]).verdict == "cannot be known"


@real
@pytest.mark.parametrize("name", ["kineto_unknown_ids_minus_one", "kineto_wait_ids_resolved"])
def test_the_twins_have_one_kernel_and_a_wait_without_its_call(name):
    path = CASES / "traces" / f"{name}.json"
    events = json.loads(path.read_text())["traceEvents"]
    waits = [e["args"] for e in events if e.get("name") == "Stream Wait Event"]
    records = {w["wait_on_cuda_event_record_corr_id"] for w in waits}
    calls = {e["args"].get("correlation") for e in events if e.get("cat", "").endswith(("runtime", "driver"))}
    assert len(waits) == 1
    assert not records & calls
    assert edges(timeline.open(path)).unknown == 1
    answer = order(path, "Kernel", "Kernel")
    assert (answer.verdict, answer.cases) == ("cannot be known", 0)
    assert any("stream waits of which the call is not in the trace" in what for what in answer.lacks)


@real
def test_four_streams_of_nsight_whose_kinds_are_known():
    path = CASES / "nsys" / "nsys_2026_1_four_streams.sqlite"
    t = from_nsight(path)
    kernels = {t.lanes[t.lane[s]].name: int(s) for s in t.operations() if t.is_category("kernel")[s]}
    first, second = kernels["stream 13"], kernels["stream 14"]
    calls = dict(t.launches()[:, ::-1].tolist())
    between = {t.names[t.name[i]] for i in range(calls[first] + 1, calls[second])}
    assert between == {"cudaMemcpyAsync"}  # neither a wait nor a synchronization
    answer = order(t, first, second)
    assert (answer.verdict, answer.by, answer.unordered) == ("no", "trace", 1)
    copies = [int(s) for s in t.operations() if t.lane[s] == t.lane[first] and s != first]
    assert [order(t, copy, first).verdict for copy in copies] == ["yes", "yes", "cannot be known"]
    assert order(t, copies[-1], first).cases == 0  # it was issued behind the kernel
