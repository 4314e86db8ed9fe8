"""Order from profilers' traces: small ones made here, random ones set against the analysis, real ones."""

import gzip
import json
import pickle
import random
import sqlite3
from pathlib import Path

import pytest

from flashnorm_lab import hazards, trace_order
from flashnorm_lab.errors import LabError
from flashnorm_lab.program import HandOver, Launch, Program, Query, Record, Stream, Synchronize, Wait
from flashnorm_lab.trace_order.calls import blocking
from flashnorm_lab.trace_order.raw import Place, Work, plain

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
real = pytest.mark.skipif(
    not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)
FREE = {"*": "non-blocking"}


# Small Kineto traces: calls follow one another every 10 us, and work starts 3 us after its call


class Kineto:
    def __init__(self):
        self.events = []
        self.correlation = 0
        self.now = 1000

    def call(self, name, thread=1, dur=2, at=None):
        """A call of the runtime; its correlation number."""
        self.correlation += 1
        self.now = self.now + 10 if at is None else at
        args = {"correlation": self.correlation}
        self.add("cuda_runtime", name, self.now, dur, 100, thread, args)
        return self.correlation

    def add(self, category, name, ts, dur, pid, tid, args):
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "ts": ts,
                "dur": dur,
                "pid": pid,
                "tid": tid,
                "args": args,
            }
        )

    def work(self, name, stream, correlation, dur=4, start=None, category="kernel", device=0, context=1):
        args = {"device": device, "context": context, "stream": stream, "correlation": correlation}
        self.add(category, name, self.now + 3 if start is None else start, dur, device, stream, args)

    def kernel(self, name, stream, thread=1, call="cudaLaunchKernel", **more):
        correlation = self.call(call, thread)
        self.work(name, stream, correlation, **more)
        return correlation

    def sync(self, what, correlation, stream=-1, record=-1, on=-1, event=-1, start=None, context=1):
        args = {"device": 0, "context": context, "stream": stream, "correlation": correlation}
        if "Event" in what:
            args |= {"wait_on_stream": on, "wait_on_cuda_event_record_corr_id": record,
                     "wait_on_cuda_event_id": event}  # fmt: skip
        self.add("cuda_sync", what, self.now if start is None else start, 1, 0, stream, args)

    def record(self, thread=1):
        return self.call("cudaEventRecord", thread)

    def wait(self, stream, record=-1, on=-1, event=5, thread=1):
        correlation = self.call("cudaStreamWaitEvent", thread)
        self.sync("Stream Wait Event", correlation, stream, record, on, event)
        return correlation

    def save(self, tmp_path, name="trace.json"):
        path = tmp_path / name
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path

    def load(self, tmp_path, kinds=None):
        return trace_order.load(self.save(tmp_path), kinds)


def gemm_then_norm(trace, edge=True, record_on=20):
    trace.kernel("gemm", 20)
    record = trace.record()
    if edge:
        trace.wait(24, record, record_on)
    trace.kernel("norm", 24)


def test_a_stream_runs_its_work_in_order(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.kernel("norm", 20)
    program = trace.load(tmp_path)
    assert [type(s) for s in program.steps] == [Launch, Launch]
    assert program.times == {0: (1_013_000, 1_017_000), 1: (1_023_000, 1_027_000)}
    answer = trace_order.answer(program, "gemm", "norm")
    assert (answer.verdict, answer.cases, answer.ordered, answer.ended_before) == ("yes", 1, 1, 1)
    (pair,) = answer.pairs
    assert pair.chain == (
        "gemm on stream 20 (correlation 1)",
        "the stream runs its work in order",
        "norm on stream 20 (correlation 2)",
    )
    back = trace_order.answer(program, "norm", "gemm")
    assert (back.verdict, back.cases) == ("no", 0)
    assert str(back) == "no: norm is never issued before gemm in this trace"


def test_an_event_orders_two_streams_and_the_answer_shows_how(tmp_path):
    trace = Kineto()
    gemm_then_norm(trace)
    program = trace.load(tmp_path, FREE)
    assert program.steps[1:3] == (
        Record("event 5@correlation 2", "stream 20", source="correlation 2"),
        Wait("event 5@correlation 2", "stream 24", source="correlation 3"),
    )
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "yes"
    assert answer.pairs[0].chain == (
        "gemm on stream 20 (correlation 1)",
        "event 5 recorded on stream 20 (correlation 2)",
        "stream 24 waits for it (correlation 3)",
        "norm on stream 24 (correlation 4)",
    )
    assert str(answer).splitlines() == [
        "yes: norm starts only when the gemm before it is done, in the one case",
        "  stream 20 to stream 24, 1 case: 1 ordered, 0 not, 0 unknown",
        f"    {' -> '.join(answer.pairs[0].chain)}",
        "  measured: gemm had ended before norm started in 1 of 1 case",
    ]
    assert hazards.order(program, "gemm", "norm").always


def test_what_happened_forty_times_is_no_guarantee(tmp_path):
    trace = Kineto()
    for _ in range(40):
        gemm_then_norm(trace, edge=False)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert (answer.verdict, answer.cases, answer.unordered, answer.ended_before) == ("no", 40, 40, 40)
    assert "gemm had ended before norm started in 40 of 40 cases here, but nothing guarantees it" in str(
        answer
    )
    assert json.loads(json.dumps(answer.as_dict()))["pairs"][0]["unordered"] == 40


def test_an_edge_that_is_there_only_at_times(tmp_path):
    trace = Kineto()
    for i in range(4):
        gemm_then_norm(trace, edge=i > 0)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert (answer.verdict, answer.ordered, answer.unordered) == ("no", 3, 1)
    assert str(answer).startswith(
        "no: gemm before norm: ordered in 3, not ordered by anything in 1 of 4 cases"
    )


def test_a_wait_for_an_unknown_record_is_neither_yes_nor_no(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.wait(24)
    trace.kernel("norm", 24)
    program = trace.load(tmp_path, FREE)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "unknown"
    assert answer.pairs[0].doubt == (
        "the wait of stream 24 (correlation 2) for an event of which the record is not known"
    )
    assert "this trace does not show that anything guarantees it" in str(answer)
    assert "stream waits of which the record is not known: 1" in program.unseen
    assert hazards.order(program, "gemm", "norm").unordered == 1  # the steps hold only what is certain


def test_an_unknown_record_on_a_known_stream_leaves_the_others_out(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.kernel("other", 28)
    correlation = trace.call("cudaStreamWaitEvent")
    trace.sync("Stream Wait Event", correlation, 24, record=77, on=20, event=5)
    trace.kernel("norm", 24)
    program = trace.load(tmp_path, FREE)
    assert trace_order.answer(program, "gemm", "norm").verdict == "unknown"
    assert trace_order.answer(program, "other", "norm").verdict == "no"


def test_a_wait_of_which_the_trace_has_only_the_call(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.call("cudaStreamWaitEvent")
    trace.kernel("norm", 24)
    trace.kernel("last", 24)
    program = trace.load(tmp_path, FREE)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "unknown"
    assert "cudaStreamWaitEvent (correlation 2)" in answer.pairs[0].doubt
    assert trace_order.answer(program, "norm", "last").verdict == "yes"


def test_a_wait_of_which_the_trace_has_only_the_entry(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    record = trace.record()
    trace.sync("Stream Wait Event", 99, 24, record, 20, 5, start=1025)
    trace.kernel("norm", 24)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert answer.verdict == "unknown"
    assert (
        "a Stream Wait Event (correlation 99) of which the call is not in the trace" in answer.pairs[0].doubt
    )


def test_a_record_that_the_profiler_names_too_late(tmp_path):
    """Kineto looks events up at the end, and then names the last record of one that was recorded twice."""
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.record()
    wait = trace.call("cudaStreamWaitEvent")
    trace.kernel("norm", 24)
    late = trace.record()
    trace.sync("Stream Wait Event", wait, 24, late, 20, 5)
    assert trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm").verdict == "unknown"


@pytest.mark.parametrize(("other", "verdict"), [(None, "unknown"), (5, "unknown"), (6, "yes")])
def test_a_record_that_another_may_have_replaced(tmp_path, other, verdict):
    """Between the record and the wait, an event is recorded: an unknown one, the same one, another one."""
    trace = Kineto()
    trace.kernel("gemm", 20)
    record = trace.record()
    between = trace.record()
    trace.wait(24, record, 20)
    trace.kernel("norm", 24)
    if other is not None:
        trace.wait(28, between, 28, other)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert answer.verdict == verdict
    assert verdict == "yes" or "may have been recorded again since correlation 2" in answer.pairs[0].doubt


def test_entries_that_contradict_each_other_say_nothing(tmp_path):
    trace = Kineto()
    gemm_then_norm(trace)
    trace.wait(28, 2, 24)
    assert trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm").verdict == "unknown"


@pytest.mark.parametrize(
    ("call", "entry", "verdict"),
    [
        ("cudaStreamSynchronize", ("Stream Sync", 20), "yes"),
        ("cudaStreamSynchronize", ("Stream Sync", 24), "no"),
        ("cudaStreamSynchronize", None, "unknown"),
        ("cudaDeviceSynchronize", ("Context Sync", -1), "yes"),
        ("cudaDeviceSynchronize", None, "yes"),
        ("hipDeviceSynchronize", None, "yes"),
        ("cuCtxSynchronize", None, "yes"),
        ("cudaStreamQuery", None, "unknown"),
        ("cudaEventQuery", ("Event Sync", -1), "unknown"),
        ("cudaEventElapsedTime", None, "unknown"),
        ("cudaLaunchHostFunc", None, "unknown"),
        ("cuStreamWaitValue32", None, "unknown"),
        ("cudaMemcpy", None, "unknown"),
        ("cudaGraphAddMemcpyNode", None, "no"),
        ("cudaStreamIsCapturing", None, "no"),
    ],
)
def test_what_the_host_does_in_between(tmp_path, call, entry, verdict):
    trace = Kineto()
    trace.kernel("gemm", 20)
    correlation = trace.call(call)
    if entry:
        trace.sync(entry[0], correlation, entry[1])
    trace.kernel("norm", 24)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert answer.verdict == verdict
    assert (
        verdict == "no"
        or any(call in text for text in (*answer.pairs[0].chain, answer.pairs[0].doubt))
        or (verdict == "yes" and any(text.startswith("the host waits for") for text in answer.pairs[0].chain))
    )


@pytest.mark.parametrize(
    ("call", "verdict"), [("cudaEventSynchronize", "yes"), ("cudaEventQuery", "unknown")]
)
def test_an_event_that_the_host_waits_or_asks_for(tmp_path, call, verdict):
    trace = Kineto()
    trace.kernel("gemm", 20)
    record = trace.record()
    trace.kernel("later", 20)
    correlation = trace.call(call)
    trace.sync("Event Sync", correlation, -1, record, 20, 5)
    trace.kernel("norm", 24)
    program = trace.load(tmp_path, FREE)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == verdict
    assert trace_order.answer(program, "later", "norm").verdict == "no"
    if verdict == "yes":
        assert answer.pairs[0].chain[2] == "the host waits for event 5 (correlation 4)"
    else:
        assert (
            answer.pairs[0].doubt == "cudaEventQuery (correlation 4), of which the answer is not in the trace"
        )


def test_the_kinds_of_streams_are_not_guessed(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 7)
    trace.kernel("norm", 24)
    program = trace.load(tmp_path)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "unknown"
    assert answer.pairs[0].doubt == (
        "the kinds of stream 7 and stream 24 are not known; blocking streams and the default stream wait for "
        "each other"
    )
    assert any("load(path, kinds=" in note for note in answer.notes)
    assert any(text.endswith("stream 7 may be the default stream") for text in program.unseen)
    path = tmp_path / "trace.json"
    known = trace_order.load(path, {"stream 7": "legacy", "stream 24": "blocking"})
    answer = trace_order.answer(known, "gemm", "norm")
    assert (answer.verdict, answer.pairs[0].chain[1]) == (
        "yes",
        "the default stream and blocking streams wait for each other",
    )
    assert known.maybe == {}
    assert trace_order.answer(trace_order.load(path, FREE), "gemm", "norm").verdict == "no"


@pytest.mark.parametrize("between", ["kernel", "unknown launch", "unknown record", "wait", "lost kernel"])
def test_two_blocking_streams_and_something_on_the_default_stream(tmp_path, between):
    trace = Kineto()
    trace.kernel("gemm", 20)
    if between == "kernel":
        trace.kernel("k", 7)
    elif between == "unknown launch":
        trace.call("cudaLaunchKernel")
    elif between == "unknown record":
        trace.record()
    elif between == "wait":
        trace.wait(7)
    else:
        trace.work("k", 7, 0, start=1017)
    trace.kernel("norm", 24)
    trace.work("first", 7, 0, start=1)  # there is a default stream in this trace
    assert trace_order.answer(trace.load(tmp_path), "gemm", "norm").verdict == "unknown"
    known = trace.load(tmp_path, {"stream 20": "non-blocking"})
    verdict = "unknown" if between == "wait" else "no"  # a wait may be for anything
    assert trace_order.answer(known, "gemm", "norm").verdict == verdict


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            {"stream 9": "blocking"},
            r"kinds: there is no 'stream 9' in trace\.json; there are stream 20, stream 24",
        ),
        ({"stream 20": "fast"}, "kinds: stream 20 is 'fast'; expected one of blocking"),
        ({"*": "out-of-order"}, "kinds: [*] is 'out-of-order'"),
        ({"*": "legacy"}, "kinds: stream 20 and stream 24 are legacy; a context has one such stream"),
    ],
)
def test_kinds_that_cannot_be(tmp_path, kinds, message):
    trace = Kineto()
    gemm_then_norm(trace)
    with pytest.raises(LabError, match=message):
        trace.load(tmp_path, kinds)


def test_threads_hand_over_nothing_that_a_trace_shows(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20, thread=1)
    trace.sync("Stream Sync", trace.call("cudaStreamSynchronize", thread=1), 20)
    trace.kernel("norm", 24, thread=2)
    trace.kernel("mine", 28, thread=1)
    program = trace.load(tmp_path, FREE)
    assert program.steps[0].thread == "host 1"
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "unknown"
    assert "another host thread had waited before" in answer.pairs[0].doubt
    assert trace_order.answer(program, "gemm", "mine").verdict == "yes"
    assert "what the 2 host threads hand over to each other: taken as nothing" in program.unseen


def test_a_record_by_another_thread(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20, thread=1)
    record = trace.record(thread=1)
    trace.wait(24, record, 20, thread=2)
    trace.kernel("norm", 24, thread=2)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert answer.verdict == "unknown"
    assert "recorded by host 1 and waited for by host 2" in answer.pairs[0].doubt


@pytest.mark.parametrize(("other", "verdict"), [(2, "unknown"), (1, "yes")])
def test_calls_of_two_threads_at_the_same_time(tmp_path, other, verdict):
    """The launch of gemm and the record overlap: was the record behind the launch?"""
    trace = Kineto()
    gemm = trace.call("cudaLaunchKernel", thread=1, dur=9)
    trace.work("gemm", 20, gemm)
    record = trace.call("cudaEventRecord", thread=other, at=1015)
    trace.wait(24, record, 20, thread=other)
    trace.kernel("norm", 24, thread=other)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert answer.verdict == verdict


def test_the_device_shows_which_of_two_launches_came_first(tmp_path):
    trace = Kineto()
    slow = trace.call("cudaLaunchKernel", thread=1, dur=9)
    quick = trace.call("cudaLaunchKernel", thread=2, at=1012)
    trace.work("slow", 20, slow, start=1040)
    trace.work("quick", 20, quick, start=1030)
    program = trace.load(tmp_path)
    assert [s.name for s in program.steps] == ["quick", "slow"]
    assert trace_order.answer(program, "quick", "slow").verdict == "yes"


def test_launches_without_a_call_keep_the_order_of_their_stream_only(tmp_path):
    trace = Kineto()
    trace.kernel("first", 20)
    trace.work("lost", 20, 0, start=1018)
    record = trace.record()
    trace.wait(24, record, 20)
    trace.kernel("norm", 24)
    trace.kernel("last", 20)
    program = trace.load(tmp_path, FREE)
    assert "calls that launched 1 kernels and copies, which stand in their streams' order" in program.unseen
    asked = [("first", "lost"), ("lost", "last"), ("first", "norm"), ("norm", "lost"), ("lost", "norm")]
    answers = [trace_order.answer(program, *pair) for pair in asked]
    assert [answer.verdict for answer in answers] == ["yes", "yes", "yes", "unknown", "unknown"]
    assert answers[0].pairs[0].chain[1] == "the stream runs its work in order"
    assert (
        answers[3].pairs[0].doubt.startswith("where lost (correlation 0) was issued among the host's other")
    )
    assert answers[4].cases == 0  # it is placed behind norm, and may have come before it
    assert answers[4].notes == ("when 1 of them were issued is not known: their calls are not in the trace",)
    assert trace_order.answer(program, "lost on stream 20", "last on 20").verdict == "yes"


def test_a_copy_without_a_call_may_have_stopped_the_host(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 28)
    trace.kernel("other", 20)
    trace.work("Memcpy DtoH (Device -> Pageable)", 28, 0, start=1028, category="gpu_memcpy")
    trace.kernel("norm", 24)
    program = trace.load(tmp_path, FREE)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "unknown"
    assert "a copy on stream 28 of which the call is not in the trace" in answer.pairs[0].doubt
    assert trace_order.answer(program, "other", "norm").verdict == "no"


def test_a_graph_is_one_thing_on_its_stream_and_its_nodes_are_unordered(tmp_path):
    trace = Kineto()
    trace.kernel("before", 7)
    launch = trace.call("cudaGraphLaunch")
    trace.work("node a", 7, launch)
    trace.work("node b", 7, launch, start=1026, dur=2)
    trace.kernel("behind", 7)
    program = trace.load(tmp_path, {"stream 7": "legacy"})
    assert "edges inside graphs: 2 nodes of 1 launches, taken as unordered" in program.unseen
    assert trace_order.answer(program, "before", "node b").verdict == "yes"
    assert trace_order.answer(program, "node a", "behind").verdict == "yes"
    answer = trace_order.answer(program, "node a", "node b")
    assert answer.verdict == "unknown"
    assert "an edge of the graph launched at correlation 2" in answer.pairs[0].doubt
    chain = trace_order.answer(program, "node a on 7", "behind").pairs[0].chain
    assert chain[:2] == ("node a in a graph on stream 7 (correlation 2)", "end of a graph (correlation 2)")
    assert hazards.order(program, "before", "node b").always
    assert hazards.order(program, "node a", "node b").unordered == 1


def test_a_graph_of_which_the_stream_is_not_known(tmp_path):
    trace = Kineto()
    trace.kernel("before", 7)
    launch = trace.call("cudaGraphLaunch")
    trace.work("node a", 7, launch)
    trace.work("node b", 9, launch)
    trace.call("cudaDeviceSynchronize")
    trace.kernel("behind", 7)
    program = trace.load(tmp_path, FREE)
    assert trace_order.answer(program, "before", "node a").verdict == "unknown"
    assert trace_order.answer(program, "node b", "behind").verdict == "yes"
    assert "graph launches of which the stream is not known: 1" in program.unseen


def test_what_happens_while_a_graph_is_captured_orders_nothing_for_certain(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.call("cudaStreamBeginCapture")
    record = trace.record()
    trace.wait(24, record, 20)
    trace.call("cudaStreamEndCapture")
    trace.kernel("norm", 24)
    answer = trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm")
    assert answer.verdict == "unknown"
    assert "while a graph was captured" in answer.pairs[0].doubt


def test_a_kernel_that_starts_before_the_one_ahead_of_it_has_ended(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20, dur=12)
    trace.kernel("norm", 20, call="cudaLaunchKernelExC")
    answer = trace_order.answer(trace.load(tmp_path), "gemm", "norm")
    assert (answer.verdict, answer.ordered, answer.ended_before) == ("unknown", 1, 0)
    assert "in 1 of the ordered cases the second started before the first had ended" in answer.notes[0]
    assert answer.notes[1].startswith("1 of the second were launched by a LaunchKernelEx")


def test_memory_calls_are_no_order_and_are_told(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.call("cudaFree")
    trace.call("cudaFreeAsync")
    trace.kernel("norm", 24)
    program = trace.load(tmp_path, FREE)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "no"
    assert answer.notes == (
        "between them were cudaFree (1): these often wait for the device, and nothing promises it",
    )
    assert any("waiting inside cudaFree (1)" in text for text in program.unseen)


@pytest.mark.parametrize(
    ("call", "name", "expected"),
    [
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pageable)", "blocks"),
        ("cudaMemcpy", "Memcpy DtoH (Device -> Pinned)", "blocks"),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", "blocks"),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", ""),
        ("cudaMemcpyAsync", "Memcpy DtoH", "unknown"),
        ("cuMemcpyDtoH", "Memcpy DtoH (Device -> Pageable)", "blocks"),
        ("cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", "before"),
        ("cudaMemcpy", "Memcpy HtoD (Pinned -> Device)", "blocks"),
        ("cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", ""),
        ("cudaMemcpy", "Memcpy DtoD (Device -> Device)", ""),
        ("cudaMemcpyPeer", "Memcpy PtoP (Device -> Device)", "unknown"),
        ("cudaMemcpy", "Memcpy managed DtoH (Managed -> Managed)", "unknown"),
        ("hipMemcpy", "Memcpy DtoH (Device -> Pageable)", "blocks"),
        ("hipMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", "unknown"),
        ("hipMemcpy", "Memcpy HtoD (Pinned -> Device)", "unknown"),
    ],
)
def test_which_copies_the_host_waits_for(call, name, expected):
    assert blocking(call, Work(name, Place(0, 0, 1, 7), 0, 1, 0, 1, "copy")) == expected
    assert blocking(call, Work(name, Place(0, 0, 1, 7), 0, 1, 0, 1, "kernel")) == ""


@pytest.mark.parametrize(
    ("call", "name", "behind_copy", "behind_gemm"),
    [
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pageable)", "yes", "yes"),
        ("cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)", "no", "no"),
        ("cudaMemcpy", "Memcpy HtoD (Pageable -> Device)", "no", "yes"),
        ("cudaMemcpyPeer", "Memcpy PtoP (Device -> Device)", "unknown", "unknown"),
    ],
)
def test_work_behind_a_copy(tmp_path, call, name, behind_copy, behind_gemm):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.kernel(name, 20, call=call, category="gpu_memcpy")
    trace.kernel("norm", 24)
    program = trace.load(tmp_path, FREE)
    assert trace_order.answer(program, "Memcpy", "norm").verdict == behind_copy
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == behind_gemm
    if behind_copy == "yes":
        assert f"the host waits for {name} (correlation 2)" in answer.pairs[0].chain


def test_devices_and_contexts_are_told_apart(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 7, device=0, context=1)
    trace.sync("Context Sync", trace.call("cudaDeviceSynchronize"), context=2)
    trace.kernel("norm", 7, device=1, context=2)
    trace.sync("Context Sync", trace.call("cudaDeviceSynchronize"), context=1)
    trace.kernel("last", 7, device=1, context=2)
    program = trace.load(tmp_path, FREE)
    assert list(program.streams) == ["device 0 stream 7", "device 1 stream 7"]
    assert trace_order.answer(program, "gemm", "norm").verdict == "no"
    assert trace_order.answer(program, "gemm", "last").verdict == "yes"


def test_a_stream_number_that_two_devices_have_names_no_stream(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 7, device=0, context=1)
    trace.kernel("else", 7, device=1, context=2)
    record = trace.record()
    trace.wait(24, record, 7)
    trace.kernel("norm", 24, device=0, context=1)
    assert trace_order.answer(trace.load(tmp_path, FREE), "gemm", "norm").verdict == "unknown"


def test_names_may_be_short_as_long_as_they_tell(tmp_path):
    trace = Kineto()
    long = "void at::native::vectorized_elementwise_kernel<4, " + "x" * 200 + ">(int)"
    trace.kernel(long, 20)
    trace.kernel("gemm_a", 20)
    trace.kernel("gemm_b", 24)
    trace.kernel("gemm_b", 20)
    program = trace.load(tmp_path, FREE)
    answer = trace_order.answer(program, "vectorized", "gemm_a")
    assert (answer.first, answer.verdict) == (long, "yes")
    assert max(len(line) for line in str(answer).splitlines()) < 300
    assert trace_order.answer(program, "gemm_a", "gemm_b on stream 20").verdict == "yes"
    assert trace_order.answer(program, "gemm_a", "gemm_b on 24").verdict == "no"
    with pytest.raises(LabError, match="'gemm' is part of 2 names; give more of one: gemm_a; gemm_b"):
        trace_order.answer(program, "gemm", "gemm_b")
    with pytest.raises(
        LabError, match="no kernel, copy or fill has 'softmax' in its name; most frequent: gemm_b"
    ):
        trace_order.answer(program, "softmax", "gemm_b")
    with pytest.raises(LabError, match="no kernel, copy or fill on stream 24 has 'gemm_a' in its name"):
        trace_order.answer(program, "gemm_a on 24", "gemm_b")
    plain_program = program.with_steps(program.steps)
    with pytest.raises(LabError, match=r"is no trace; read one with trace_order\.load"):
        trace_order.answer(plain_program, "gemm_a", "gemm_b")


def test_a_trace_keeps_what_it_knows_when_it_is_copied(tmp_path):
    trace = Kineto()
    trace.kernel("gemm", 20)
    trace.wait(24)
    trace.kernel("norm", 24)
    program = trace.load(tmp_path)
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert trace_order.answer(again, "gemm", "norm") == trace_order.answer(program, "gemm", "norm")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cudaStreamWaitEvent_v3020", "cudaStreamWaitEvent"),
        ("cudaLaunchKernel_ptsz_v7000", "cudaLaunchKernel"),
        ("cuMemcpyDtoH_v2", "cuMemcpyDtoH"),
        ("cudaStreamGetCaptureInfo_v2_v11030", "cudaStreamGetCaptureInfo"),
    ],
)
def test_plain_names(name, expected):
    assert plain(name) == expected


# Small Nsight Systems exports

PROCESS = (1 << 48) | (500 << 24)
NONE = 0xFFFFFFFF
TABLES = {
    "RUNTIME": "start end eventClass globalTid correlationId nameId returnValue",
    "KERNEL": "start end deviceId contextId streamId correlationId globalPid demangledName shortName",
    "MEMCPY": "start end deviceId contextId streamId correlationId globalPid copyKind srcKind dstKind",
    "GRAPH_TRACE": "start end deviceId contextId streamId correlationId globalPid graphId",
    "SYNCHRONIZATION": "start end deviceId contextId streamId correlationId globalPid syncType eventId "
    "eventSyncId",
    "CUDA_EVENT": "deviceId contextId streamId correlationId globalPid eventId eventSyncId",
}


class Nsight:
    """An export that is made row by row; calls follow one another every 10 ns."""

    def __init__(self, path):
        path.unlink(missing_ok=True)
        self.path = path
        self.database = sqlite3.connect(path)
        self.database.execute("PRAGMA synchronous = OFF")  # a test's file need not outlive a power cut
        for table, columns in TABLES.items():
            self.table(f"CUPTI_ACTIVITY_KIND_{table}", columns)
        self.table("StringIds", "id value")
        self.table("TARGET_INFO_CUDA_STREAM", "streamId processId contextId flag")
        self.texts = {}
        self.now, self.correlation = 1000, 0

    def table(self, name, columns):
        self.database.execute(f'CREATE TABLE "{name}" ({", ".join(columns.split())})')

    def row(self, table, *values):
        table = table if table not in TABLES else f"CUPTI_ACTIVITY_KIND_{table}"
        self.database.execute(f'INSERT INTO "{table}" VALUES ({",".join("?" * len(values))})', values)

    def text(self, value):
        if value not in self.texts:
            self.texts[value] = len(self.texts) + 1
            self.row("StringIds", self.texts[value], value)
        return self.texts[value]

    def call(self, name, returned=0, thread=1, process=PROCESS, correlation=None, kept=True):
        self.now += 10
        self.correlation = self.correlation + 1 if correlation is None else correlation
        if kept:
            self.row(
                "RUNTIME",
                self.now,
                self.now + 2,
                0,
                process | thread,
                self.correlation,
                self.text(name),
                returned,
            )
        return self.correlation

    def kernel(
        self, name, stream, call="cudaLaunchKernel_v7000", start=None, process=PROCESS, context=1, **more
    ):
        correlation = self.call(call, process=process, **more)
        start = self.now + 3 if start is None else start
        text = self.text(name)
        self.row("KERNEL", start, start + 4, 0, context, stream, correlation, process, text, text)

    def sync(self, kind, stream=NONE, event=NONE, ticket=None, correlation=None):
        correlation = self.correlation if correlation is None else correlation
        self.row(
            "SYNCHRONIZATION", self.now, self.now + 1, 0, 1, stream, correlation, PROCESS, kind, event, ticket
        )

    def record(self, stream, event, ticket=None, named=True, **more):
        correlation = self.call("cudaEventRecord_v3020", **more)
        if named:
            self.row("CUDA_EVENT", 0, 1, stream, correlation, PROCESS, event, ticket)

    def wait(self, stream, event, ticket=None, kind=2, **more):
        self.call("cudaStreamWaitEvent_v3020", **more)
        self.sync(kind, stream, event, ticket)

    def flag(self, stream, flag):
        self.row("TARGET_INFO_CUDA_STREAM", stream, 500, 1, flag)

    def save(self):
        self.database.commit()
        self.database.close()
        return self.path

    def load(self, kinds=None):
        return trace_order.load(self.save(), kinds)


@pytest.fixture
def nsight(tmp_path):
    return Nsight(tmp_path / "report.sqlite")


def test_events_are_bound_to_the_record_before_the_wait(nsight):
    nsight.kernel("gemm", 20)
    nsight.record(20, 9)
    nsight.kernel("late", 20)
    nsight.wait(24, 9)
    nsight.record(20, 9)
    nsight.kernel("norm", 24)
    program = nsight.load(FREE)
    assert trace_order.answer(program, "gemm", "norm").verdict == "yes"
    assert trace_order.answer(program, "late", "norm").verdict == "no"


def test_a_record_without_its_row_may_be_of_any_event(nsight):
    nsight.kernel("gemm", 20)
    nsight.record(20, 9)
    nsight.record(28, 9, named=False)
    nsight.wait(24, 9)
    nsight.kernel("norm", 24)
    assert trace_order.answer(nsight.load(FREE), "gemm", "norm").verdict == "unknown"


def test_a_record_without_its_call_may_be_anywhere(nsight):
    nsight.kernel("gemm", 20)
    nsight.record(20, 9)
    nsight.record(28, 9, kept=False)
    nsight.wait(24, 9)
    nsight.kernel("norm", 24)
    program = nsight.load(FREE)
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == "unknown"
    assert "recorded by a call that is not in the trace" in answer.pairs[0].doubt
    assert "event records of which the call is not in the trace: 1" in program.unseen


def test_a_ticket_ties_a_wait_to_its_record(nsight):
    nsight.kernel("gemm", 20)
    nsight.record(20, 9, ticket=41)
    nsight.record(28, 9, named=False)
    nsight.wait(24, 9, ticket=41)
    nsight.kernel("norm", 24)
    assert trace_order.answer(nsight.load(FREE), "gemm", "norm").verdict == "yes"


@pytest.mark.parametrize("kind", [1, 2, 3, 4, 77])
def test_the_calls_name_says_what_a_synchronization_is(nsight, kind):
    """Exports of one year number the kinds of synchronization otherwise than their own table says."""
    nsight.kernel("gemm", 20)
    nsight.record(20, 9)
    nsight.wait(24, 9, kind=kind)
    nsight.kernel("norm", 24)
    nsight.call("cudaDeviceSynchronize_v3020")
    nsight.sync(kind)
    nsight.kernel("last", 28)
    program = nsight.load(FREE)
    assert [type(s) for s in program.steps] == [Launch, Record, Wait, Launch, Synchronize, Launch]
    assert trace_order.answer(program, "norm", "last").verdict == "yes"


@pytest.mark.parametrize(
    ("returned", "step", "verdict"), [(0, Query, "yes"), (600, Launch, "no"), (None, Launch, "unknown")]
)
def test_what_a_query_was_told(nsight, returned, step, verdict):
    nsight.kernel("gemm", 20)
    nsight.record(20, 9)
    nsight.call("cudaEventQuery_v3020", returned=returned)
    nsight.sync(1, event=9)
    nsight.kernel("norm", 24)
    program = nsight.load(FREE)
    assert type(program.steps[2]) is step
    answer = trace_order.answer(program, "gemm", "norm")
    assert answer.verdict == verdict
    if verdict == "yes":
        assert answer.pairs[0].chain[2] == "a query is told that event 9 is done (correlation 3)"
        assert "only if the program goes on only after a yes" in answer.notes[0]


def test_a_call_that_failed_did_nothing(nsight):
    nsight.kernel("gemm", 20)
    nsight.record(20, 9)
    nsight.wait(24, 9, returned=1)
    nsight.kernel("norm", 24)
    assert trace_order.answer(nsight.load(FREE), "gemm", "norm").verdict == "no"


@pytest.mark.parametrize(
    ("flags", "verdict"),
    [
        ({7: 3, 20: 1, 24: 1}, "yes"),
        ({7: 3, 20: 1, 24: 2}, "no"),
        ({7: 3, 20: 1, 24: 0}, "unknown"),
        ({7: 3, 20: 1}, "unknown"),
        ({20: 1, 24: 1}, "unknown"),
        ({20: 2}, "no"),
    ],
)
def test_the_flags_say_what_a_stream_is(nsight, flags, verdict):
    for stream, flag in flags.items():
        nsight.flag(stream, flag)
    nsight.kernel("gemm", 20)
    nsight.kernel("zero", 7)
    nsight.kernel("norm", 24)
    assert trace_order.answer(nsight.load(), "gemm", "norm").verdict == verdict


@pytest.mark.parametrize("table", ["TARGET_INFO_CUDA_NULL_STREAM", "TARGET_INFO_CUDA_CONTEXT_INFO"])
def test_the_null_stream_of_a_context(nsight, table):
    column = "streamId" if table.endswith("NULL_STREAM") else "nullStreamId"
    nsight.table(table, f"{column} processId contextId")
    nsight.row(table, 13, 500, 1)
    nsight.flag(20, 1)
    nsight.kernel("gemm", 20)
    nsight.kernel("zero", 13)
    program = nsight.load()
    assert program.streams["stream 13"] == Stream("legacy", program.streams["stream 13"].context)
    assert trace_order.answer(program, "gemm", "zero").verdict == "yes"


def test_correlations_count_within_a_process(nsight):
    other = (1 << 48) | (501 << 24)
    for process in (PROCESS, other):
        nsight.correlation = 0
        nsight.kernel("gemm", 7, process=process)
        nsight.kernel("norm", 7, process=process)
    program = nsight.load()
    assert list(program.streams) == ["process 500 stream 7", "process 501 stream 7"]
    answer = trace_order.answer(program, "gemm", "norm")
    assert (answer.verdict, answer.cases) == ("yes", 2)
    assert [pair.first_stream for pair in answer.pairs] == ["process 500 stream 7", "process 501 stream 7"]
    assert trace_order.answer(program, "norm", "gemm").cases == 0  # of one process, not of two
    with pytest.raises(LabError, match="several streams are called 7: process 500 stream 7, process 501"):
        trace_order.answer(program, "gemm on 7", "norm")
    assert trace_order.answer(program, "gemm on process 501 stream 7", "norm").cases == 1


def test_one_call_that_stands_in_the_table_twice(nsight):
    correlation = nsight.call("cudaLaunchKernel")
    nsight.kernel("gemm", 20, correlation=correlation)
    nsight.record(20, 9)
    nsight.call("cudaEventRecord", correlation=nsight.correlation)
    nsight.wait(24, 9)
    nsight.kernel("norm", 24)
    program = nsight.load(FREE)
    assert [type(s) for s in program.steps] == [Launch, Record, Wait, Launch]
    assert trace_order.answer(program, "gemm", "norm").verdict == "yes"


def test_an_export_with_few_tables_and_columns(tmp_path):
    path = tmp_path / "old.sqlite"
    database = sqlite3.connect(path)
    database.executescript(
        """
        CREATE TABLE StringIds (id, value);
        INSERT INTO StringIds VALUES (1, 'cuLaunchKernel'), (2, 'gemm');
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);
        INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 16777217, 5, 1), (3, 4, 16777217, 6, 1);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (
            start, end, deviceId, contextId, streamId, correlationId, shortName
        );
        INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (5, 6, 0, 1, 7, 5, 2), (8, 9, 0, 1, 7, 6, 2);
        """
    )
    database.close()
    program = trace_order.load(path)
    assert not program.floating
    assert trace_order.answer(program, "gemm", "gemm").verdict == "yes"


def test_a_graph_that_was_traced_as_one(nsight):
    nsight.kernel("gemm", 20)
    correlation = nsight.call("cudaGraphLaunch_v10000")
    nsight.row("GRAPH_TRACE", nsight.now + 3, nsight.now + 5, 0, 1, 20, correlation, PROCESS, 12)
    program = nsight.load()
    assert program.steps[1] == Launch("graph 12", "stream 20", category="graph", source="correlation 2")
    assert trace_order.answer(program, "gemm", "graph 12").verdict == "yes"


def test_copies_are_named_by_direction_and_memory(nsight):
    correlation = nsight.call("cudaMemcpyAsync_v3020")
    nsight.row("MEMCPY", nsight.now + 3, nsight.now + 5, 0, 1, 20, correlation, PROCESS, 2, 2, 0)
    (step,) = nsight.load().steps
    assert (step.name, step.category, step.blocks) == ("Memcpy DtoH (Device -> Pageable)", "copy", True)


# Files that cannot be read


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.json", b"", "the file is empty"),
        ("t.json", b'{"traceEvents": [{"ph": "X", "na', "line 1, column .*ends too early"),
        ("t.json", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("t.sqlite", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("t.json.gz", gzip.compress(b"[" * 999)[:-9], "gzip stream is damaged"),
        ("t.json", b'{"traceEvents": []}', "holds no kernel, copy or fill that ran on a stream, so"),
        ("t.json", b"[]", "so nothing can be ordered"),
        ("t.json", b'{"traceEvents": 3}', "no list of traceEvents"),
        ("t.sqlite", b"SQLite format 3\0 and no more", "damaged or cut off"),
        ("t.nsys-rep", b"anything", r"nsys export --type sqlite --output \S*t\.sqlite \S*t\.nsys-rep$"),
        ("my run.qdrep", b"anything", r"--output '\S*my run\.sqlite' '\S*my run\.qdrep'$"),
    ],
)
def test_broken_files_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(LabError, match=message) as caught:
        trace_order.load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_other_files_in_one_line(tmp_path, nsight):
    with pytest.raises(LabError, match="no such file"):
        trace_order.load(tmp_path / "nowhere.json")
    with pytest.raises(LabError, match="cannot be read"):
        trace_order.load(tmp_path)
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE users (name)")
    other.close()
    with pytest.raises(LabError, match=r"no export of Nsight Systems \(tables: users\)"):
        trace_order.load(tmp_path / "other.sqlite")
    nsight.call("cudaLaunchKernel_v7000")
    with pytest.raises(LabError, match="holds 1 launches, and no kernel, copy or fill that ran, so nothing"):
        nsight.load()
    trace = Kineto()
    trace.call("cudaLaunchKernel")
    with pytest.raises(LabError, match=r"holds no kernel.*, though 1 launches, so nothing can"):
        trace.load(tmp_path)


def test_an_export_that_was_cut_off(nsight, tmp_path):
    for i in range(500):
        nsight.kernel(f"kernel number {i}", 20)
    data = nsight.save().read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(LabError, match=r"cut\.sqlite: the database is damaged or cut off \(.*\); export"):
        trace_order.load(path)


@pytest.mark.parametrize("times", [(9, 5), ("soon", 9), (None, 9)])
def test_an_export_with_times_that_cannot_be(nsight, times):
    nsight.kernel("gemm", 20)
    nsight.row("KERNEL", *times, 0, 1, 20, 1, PROCESS, 1, 1)
    with pytest.raises(LabError, match=r"report\.sqlite, table CUPTI_ACTIVITY_KIND_KERNEL, row 1: start"):
        nsight.load()


def test_a_synchronization_without_a_time(tmp_path):
    trace = Kineto()
    gemm_then_norm(trace)
    del next(e for e in trace.events if e["cat"] == "cuda_sync")["ts"]
    with pytest.raises(LabError, match=r"event 4 \(Stream Wait Event\): ts cannot be read: it is missing"):
        trace.load(tmp_path)


# Random programs: what a trace of them says must be true of them, whatever the profiler left out

STREAMS = {7: "legacy", 13: "blocking", 14: "blocking", 20: "non-blocking"}
MARKED = "Memcpy DtoH (Device -> Pageable) "


def random_program(rng, threads, waits_on_nothing=True):
    """A program of one or two threads; every launch has a name of its own."""
    kinds = STREAMS | {13: rng.choice(["blocking", "non-blocking"])}
    steps, recorded = [], set()
    for number in range(rng.randint(8, 26)):
        thread = rng.choice(threads)
        stream, event = f"stream {rng.choice(list(kinds))}", f"e{rng.randrange(3)}"
        what = rng.choices(range(8), [10, 4, 5, 1, 1, 0.4, 2, 1])[0]
        if what in (2, 4, 6) and event not in recorded and not waits_on_nothing:
            continue
        if what == 1:
            recorded.add(event)
        steps.append(
            (
                Launch(f"k{number}.", stream, thread=thread),
                Record(event, stream, thread=thread),
                Wait(event, stream, thread=thread),
                Synchronize(stream, thread=thread),
                Synchronize(event=event, thread=thread),
                Synchronize(thread=thread),
                Query(rng.random() < 0.5, event=event, thread=thread),
                Launch(f"{MARKED}k{number}.", stream, blocks=True, category="copy", thread=thread),
            )[what]
        )
        if len(threads) > 1 and rng.random() < 0.1:
            steps.append(HandOver(next(t for t in threads if t != thread), thread))
    return Program(tuple(steps), {f"stream {s}": Stream(kind) for s, kind in kinds.items()})


def calls_of(program):
    """(step, its number, the record it is for, records of its event up to it, all of them) of every call."""
    latest, every = {}, {}
    for number, step in enumerate(program.steps):
        if isinstance(step, Record):
            every.setdefault(step.event, []).append(number)
    for number, step in enumerate(program.steps):
        event = getattr(step, "event", None)
        if isinstance(step, Record):
            latest[event] = number
        if not isinstance(step, HandOver):
            past = [r for r in every.get(event, []) if r <= number]
            yield step, number, latest.get(event), past, every.get(event, [])


def name_of(step):
    match step:
        case Launch():
            return "cudaMemcpyAsync" if step.blocks else "cudaLaunchKernel"
        case Record():
            return "cudaEventRecord"
        case Wait():
            return "cudaStreamWaitEvent"
        case Query():
            return "cudaEventQuery"
    return f"cuda{'Event' if step.event else 'Stream' if step.stream else 'Device'}Synchronize"


def stream_of(step):
    return int(step.stream.split()[1]) if getattr(step, "stream", None) else -1


def may_be_lost(step, rng, records=False):
    """Some calls are not in the trace. A record of which no sign is left cannot be known of: none is lost."""
    if isinstance(step, Record) and (not records or stream_of(step) == 7):
        return False
    return rng.random() < 0.08


def as_kineto(program, rng, path):
    """As Kineto would show it: ids missing, looked up too late, or stale; entries and calls lost."""
    trace, busy = Kineto(), {}
    lookup = rng.choice(["right", "at the end", "stale"])
    numbers = {}
    for step, number, bound, past, every in calls_of(program):
        at = 1000 + 10 * number
        correlation = numbers[number] = number + 1
        named = {"right": bound, "at the end": every[-1:] and every[-1], "stale": past and rng.choice(past)}[
            lookup
        ]
        lost = may_be_lost(step, rng)
        if isinstance(step, Launch):
            start = busy[step.stream] = max(at + 3, busy.get(step.stream, 0) + 1) + rng.randint(0, 40)
            category = "gpu_memcpy" if step.blocks else "kernel"
            trace.work(step.name, stream_of(step), correlation, dur=1, start=start, category=category)
        elif not isinstance(step, Record) and (lost or rng.random() < 0.85):
            what = {Wait: "Stream Wait Event"}.get(type(step)) or (
                "Event Sync" if step.event else "Stream Sync" if step.stream else "Context Sync"
            )
            ids = {"event": int(step.event[1])} if getattr(step, "event", None) else {}
            if bound is not None and rng.random() < 0.75:
                ids |= {"record": named + 1, "on": stream_of(program.steps[named])}
            trace.sync(what, correlation, stream_of(step), start=at, **ids)
        if not lost:
            trace.correlation = number
            trace.call(name_of(step), thread=1 + (step.thread != "host"), at=at)
    rng.shuffle(trace.events)
    return trace.save(path.parent, path.name)


def as_nsight(program, rng, path, hide=True):
    """As Nsight Systems would show it: rows of records, entries, calls and flags lost."""
    trace, busy = Nsight(path), {}
    unnamed = rng.random() < 0.4 and hide
    for name, stream in program.streams.items():
        flag = {"blocking": 1, "non-blocking": 2, "legacy": 3}[stream.kind]
        if not hide or rng.random() < 0.7:
            trace.flag(int(name.split()[1]), flag)
    for step, number, *_ in calls_of(program):
        lost = hide and may_be_lost(step, rng, records=True)
        trace.now = 1000 + 10 * number
        event = int(step.event[1]) if getattr(step, "event", None) else NONE
        returned = 600 if isinstance(step, Query) and not step.done else 0
        thread = 1 + (step.thread != "host")
        trace.call(name_of(step) + "_v3020", returned, thread, correlation=number + 1, kept=not lost)
        if isinstance(step, Launch):
            start = busy[step.stream] = max(trace.now + 3, busy.get(step.stream, 0) + 1) + rng.randint(0, 40)
            text, where = trace.text(step.name), (0, 1, stream_of(step), number + 1, PROCESS)
            if step.blocks:
                trace.row("MEMCPY", start, start + 1, *where, 2, 2, 0)
            else:
                trace.row("KERNEL", start, start + 1, *where, text, text)
        elif isinstance(step, Record):
            if lost or not unnamed or rng.random() < 0.6:
                trace.row("CUDA_EVENT", 0, 1, stream_of(step), number + 1, PROCESS, event, None)
        elif lost or not hide or rng.random() < 0.85:
            stream = stream_of(step) if stream_of(step) >= 0 else NONE
            trace.sync(rng.choice([1, 2, 3, 4]), stream, event, correlation=number + 1)
    return trace.save()


def pairs_of(program, trace):
    """The kernels that the trace shows, two by two, with whether one is truly ordered before the other."""
    shown = {s.name for s in trace.steps if isinstance(s, Launch)}
    names = [s.name for s in program.steps if isinstance(s, Launch) and s.name in shown]
    for first in names:
        for second in names:
            if first != second:
                yield first, second, hazards.order(program, first, second).ordered == 1


@pytest.mark.parametrize("render", [as_kineto, as_nsight])
@pytest.mark.parametrize("threads", [("host",), ("host", "worker")])
def test_what_a_trace_of_a_random_program_says_is_true(tmp_path, render, threads):
    path = tmp_path / ("t.json" if render is as_kineto else "t.sqlite")
    said = {"yes": 0, "no": 0, "unknown": 0, "really unordered": 0}
    for seed in range(60):
        rng = random.Random(f"{seed} {len(threads)}")
        program = random_program(rng, threads)
        trace = trace_order.load(render(program, rng, path))
        for first, second, ordered in pairs_of(program, trace):
            answer = trace_order.answer(trace, first, second)
            what = f"seed {seed}: {first} before {second}\n{program}\n{trace}\n{answer}"
            if answer.ordered:
                assert ordered, what
            if answer.verdict == "no":
                assert not ordered, what
            said[answer.verdict] += 1
            said["really unordered"] += answer.unordered
    assert min(said.values()) > 50, said


def test_a_trace_that_leaves_nothing_out_is_never_in_doubt(tmp_path):
    cases = 0
    for seed in range(40):
        rng = random.Random(seed)
        program = random_program(rng, ("host",), waits_on_nothing=False)
        trace = trace_order.load(as_nsight(program, rng, tmp_path / "t.sqlite", hide=False))
        for first, second, ordered in pairs_of(program, trace):
            answer = trace_order.answer(trace, first, second)
            assert answer.unknown == 0, f"seed {seed}: {first} before {second}\n{program}\n{trace}\n{answer}"
            assert (answer.ordered == 1) == ordered
            assert hazards.order(trace, first, second).ordered == answer.ordered
            cases += answer.cases
    assert cases > 500


# Real files


@real
def test_three_streams_and_the_event_between_two_of_them():
    program = trace_order.load(CASES / "traces" / "kineto_event_sync_three_streams.json.gz")
    assert not any(told.endswith(": 0") for told in program.unseen)
    kernel = "ampere_sgemm_128x64_nn"
    assert [s.stream for s in program.steps if isinstance(s, Launch) and s.name == kernel] == [
        "stream 20", "stream 28", "stream 24"
    ]  # fmt: skip
    waits = [s for s in program.steps if isinstance(s, Wait)]
    assert waits == [Wait("event 19@correlation 1385", "stream 24", source="correlation 1389")]
    there = trace_order.answer(program, f"{kernel} on stream 20", f"{kernel} on stream 24")
    assert (there.verdict, there.cases, there.ended_before) == ("yes", 1, 1)
    assert there.pairs[0].chain[1:3] == (
        "event 19 recorded on stream 20 (correlation 1385)",
        "stream 24 waits for it (correlation 1389)",
    )
    assert trace_order.answer(program, "sgemm on 24", "sgemm on 20").verdict == "no"
    asked = trace_order.answer(program, "sgemm on 20", "sgemm on 28")
    assert (asked.verdict, asked.ended_before) == ("unknown", 1)
    assert asked.pairs[0].doubt == "cudaEventQuery (correlation 54), of which the answer is not in the trace"


@real
@pytest.mark.parametrize("name", ["kineto_unknown_ids_minus_one", "kineto_wait_ids_resolved"])
def test_ids_that_are_unknown_or_belong_to_calls_that_are_not_there(name):
    program = trace_order.load(CASES / "traces" / f"{name}.json")
    assert [type(s) for s in program.steps] == [Launch]
    assert sorted(gap.kind for gap in program.gaps) == ["host", "wait"]
    assert "stream waits of which the call is not in the trace: 1" in program.unseen


@real
def test_graphs_and_four_streams():
    program = trace_order.load(CASES / "traces" / "kineto_cuda_graphs_four_streams.json.gz")
    assert (len(program.graphs), len(set(program.graphs.values())), len(program.floating)) == (5046, 12, 614)
    assert sum(isinstance(s, Launch) for s in program.steps) == 15_632
    answer = trace_order.answer(program, "volta_sgemm_128x32_nn", "volta_sgemm_128x32_nn")
    assert (answer.verdict, answer.cases, answer.ordered, answer.unknown) == ("unknown", 241, 103, 138)
    assert answer.ended_before == 241
    inside = [pair for pair in answer.pairs if pair.unknown]
    assert [(pair.first_stream, pair.second_stream) for pair in inside] == [("graphs on stream 7",) * 2]


@real
def test_kernels_whose_launch_is_not_in_the_trace():
    program = trace_order.load(CASES / "traces" / "kineto_h100_kernels_without_launch.json.gz")
    assert (len(program.floating), program.left_out) == (509, {})
    name = max((s.name for s in program.steps if isinstance(s, Launch)), key=len)
    answer = trace_order.answer(program, name, name)
    assert (answer.verdict, answer.ordered) == ("yes", answer.cases)


@real
def test_a_rocm_graph_of_hundreds_of_kernels():
    program = trace_order.load(CASES / "traces" / "kineto_rocm_graph_fan_out.json.gz")
    assert (len(program.graphs), set(program.graphs.values())) == (421, {"correlation 505113"})
    assert program.maybe == {"stream 0": "legacy"}


@real
def test_four_streams_of_which_the_flags_are_known():
    program = trace_order.load(CASES / "nsys" / "nsys_2026_1_four_streams.sqlite")
    assert {name: s.kind for name, s in program.streams.items()} == {
        "stream 7": "legacy", "stream 13": "blocking", "stream 14": "blocking", "stream 15": "blocking",
        "stream 16": "blocking",
    }  # fmt: skip
    copies = trace_order.answer(program, "Memcpy HtoD", "add_parallel")
    assert (copies.verdict, copies.cases, len(copies.pairs)) == ("yes", 4, 4)
    kernels = trace_order.answer(program, "add_parallel", "add_parallel")
    assert (kernels.verdict, kernels.unordered, kernels.ended_before) == ("no", 3, 3)
    assert "3 of 3 cases here, but nothing guarantees it" in str(kernels)
    assert program.steps[-1] == Synchronize(event="event 2@correlation 147", source="correlation 148")


@real
def test_two_processes_with_the_same_correlations():
    program = trace_order.load(CASES / "nsys" / "nsys_2026_2_two_processes.sqlite")
    assert len({program.process[name] for name in program.streams}) == 2
    kernels = [i for i, s in enumerate(program.steps) if isinstance(s, Launch) and s.category == "kernel"]
    assert (len(kernels), len([i for i in kernels if i in program.floating])) == (3587, 10)
    assert "stream waits of which the record is not known: 180" in program.unseen
    name = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN"
    answer = trace_order.answer(program, name, name)
    assert (answer.cases, answer.unordered, len(answer.pairs)) == (210, 0, 2)


@real
def test_old_exports():
    program = trace_order.load(CASES / "nsys" / "nsys_2021_driver_api.sqlite")
    assert sum(isinstance(s, Synchronize) and s.stream == "stream 15" for s in program.steps) == 2256
    assert (program.streams["stream 7"].kind, program.maybe) == ("legacy", {"stream 15": "blocking"})
    program = trace_order.load(CASES / "nsys" / "nsys_2022_2_duplicate_correlations.sqlite")
    kinds = [type(s).__name__ for s in program.steps]
    assert (kinds.count("Launch"), kinds.count("Synchronize")) == (20, 10)  # ten copies from pageable memory
    with pytest.raises(LabError, match=r"holds 192 launches.*no table CUPTI_ACTIVITY_KIND_KERNEL"):
        trace_order.load(CASES / "nsys" / "nsys_2023_2_no_kernel_table.sqlite")


@real
@pytest.mark.parametrize("folder", [pytest.param("traces", marks=pytest.mark.slow), "nsys", "malformed"])
def test_every_real_file_is_read_or_says_why_not(folder):
    read = 0
    for path in sorted((CASES / folder).iterdir()):
        program = refusal = None
        try:
            program = trace_order.load(path)
        except LabError as error:
            refusal = str(error)
        if program is None:
            assert path.name in refusal
            assert "\n" not in refusal
            continue
        read += 1
        assert any(isinstance(s, Launch) for s in program.steps)
        assert program.unseen[0].startswith("buffers: ")
        verdict = hazards.judge(program)
        assert verdict.clean  # without buffers there is nothing to race for
        assert verdict.launches == len(program.times)
    assert read == {"traces": 10, "nsys": 4, "malformed": 5}[folder]
