"""Notes of a file's reader are graded by whether they change a figure; device spans of unknown kinds."""

from __future__ import annotations

import gzip
import json

import pytest
from metric_timelines import CASES, real, real_case

from flashnorm_lab import timeline
from flashnorm_lab.timeline import TimelineBuilder, from_kineto
from flashnorm_lab.timeline.metrics import check, report
from flashnorm_lab.timeline.metrics.noting import NOTED, severity_of


def trace(**changes):
    """Text of a trace of two kernels, each event changed."""
    events = []
    for number in range(2):
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 1, "ts": 10 * number, "dur": 2}
        work = {"cat": "kernel", "name": f"k {number}", "tid": 7, "ts": 10 * number + 4, "dur": 3}
        for event in (call, work):
            args = {"correlation": number + 1, **({"device": 0, "stream": 7} if event is work else {})}
            events.append({"ph": "X", "pid": 0, **event, "args": args} | changes)
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def noted(path):
    return [
        (found.severity, found.meaning)
        for found in check(timeline.open(path)).findings
        if found.kind == NOTED
    ]


HARMLESS = {
    "byte-order mark": b"\xef\xbb\xbf" + trace().encode(),
    "the text is UTF-16": trace().encode("utf-16"),
    "commas behind the last entry": trace().replace("]}", ",]}").encode(),
    "times are given as text": trace(dur="3").encode(),
    "read as text": trace(weight=0).replace('"weight": 0', '"weight": NaN').encode(),
    "control characters": trace(note="a|b").replace("a|b", "a\tb").encode(),
    "halves of surrogate pairs": trace(note="|").replace("|", "\\ud800").encode(),
    "the gzip stream has 2 members": b"".join(
        gzip.compress(p.encode()) for p in (trace()[:40], trace()[40:])
    ),
    "lists of traceEvents": trace().replace('"schemaVersion": 1', '"traceEvents": []').encode(),
    "no UTF-8 text were replaced": trace(note="|").encode().replace(b"|", b"\xff"),
}


@pytest.mark.parametrize("words", HARMLESS)
def test_what_was_put_right_is_a_note_and_the_checks_are_ok(tmp_path, words):
    path = tmp_path / "trace.json"
    path.write_bytes(HARMLESS[words])
    found = noted(path)
    assert any(words in meaning for _, meaning in found), found
    assert {severity for severity, _ in found} == {"note"}
    assert check(timeline.open(path)).ok


HARMFUL = {
    "without a duration": trace(dur=None).encode(),
    "behind the gzip stream were not read": gzip.compress(trace().encode()) + b"more of it",
    "not closed by ]": trace()[trace().index("[") : -2].encode(),
    "the calls that enqueued them are not known": trace(args={"device": 0, "stream": 7}).encode(),
}


@pytest.mark.parametrize("words", HARMFUL)
def test_what_changes_figures_is_a_warning(tmp_path, words):
    path = tmp_path / "trace.json"
    path.write_bytes(HARMFUL[words])
    assert any(words in meaning and severity == "warning" for severity, meaning in noted(path)), noted(path)
    assert not check(timeline.open(path)).ok


def test_a_part_of_a_file_is_a_warning(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(trace()[:-80], "utf-8")
    (found,) = [f for f in check(timeline.open(path, partial=True)).findings if f.kind == NOTED]
    assert found.severity == "warning"
    assert "nothing behind it" in found.meaning


def test_a_note_keeps_its_grade_in_a_merged_timeline_and_an_unknown_one_is_a_warning():
    assert severity_of("rank 1: the file begins with a byte-order mark") == "note"
    assert severity_of("a kernel named the text is UTF-16 is missing") == "warning"
    assert severity_of("something new") == "warning"


@real
def test_notes_on_exports_that_contradict_themselves_are_graded():
    path = CASES.parent / "nsys" / "nsys_2023_2_no_kernel_table.sqlite"
    grades = {meaning.split()[0]: severity for severity, meaning in noted(path)}
    assert grades == {"synchronizations": "note", "the": "warning"}
    path = CASES.parent / "nsys" / "nsys_2022_2_duplicate_correlations.sqlite"
    assert [severity for severity, _ in noted(path)] == ["note"]


# Device spans of unknown kinds


def test_device_spans_of_unknown_kinds_are_told_and_those_of_waiting_are_not():
    build = TimelineBuilder()
    build.span("dma_request", "queue", 0, 10, "other")
    build.span("Event Sync", "no stream", 0, 10, "other")
    build.span("kernel", "stream 7", 20, 10, "kernel")
    build.span("dma_request", "host", 0, 10, "other")
    found = {found.kind: found for found in check(build.build()).findings}["device spans of unknown kinds"]
    assert (found.severity, found.count, found.share) == ("warning", 1, 1 / 3)
    assert found.examples == (("dma_request", "queue", 0),)
    assert "in no figure" in found.meaning


@real
def test_an_accelerator_whose_kinds_are_unknown_is_not_told_to_use_cuda():
    t = real_case("kineto_455k_events.json.gz").timeline
    found = {found.kind: found for found in check(t).findings}
    plain = sum(t.lanes[lane].kind == "device" for lane in t.lane[t.is_category("other")].tolist())
    assert (found["device spans of unknown kinds"].severity, plain) == ("warning", 25_814)
    assert found["device spans of unknown kinds"].count == plain
    assert "ProfilerActivity" not in found["no device operations"].meaning
    assert not check(t).ok


def test_a_trace_without_a_device_says_once_what_to_do():
    event = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1,
        "tid": 1,
        "ts": 0,
        "dur": 5,
        "args": {},
    }
    t = from_kineto({"schemaVersion": 1, "traceEvents": [event]})
    text = " ".join(str(report(t)).split())
    assert text.count("Cannot be told") == 1
    assert text.count("ProfilerActivity.CUDA") == 1
    assert "OPERATORS ON THE HOST" in text
    assert [question.verdict for question in report(t).questions] == ["Cannot be told"] * 3
