"""`flashnorm-lab hazards`: verdicts on files, the question of order, repairs, traces, and what docs show."""

from __future__ import annotations

import gzip
import json
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
import tracemalloc

import pytest
from conftest import ROOT

from flashnorm_lab import cli, hazards, program, schedule, schedule_file
from flashnorm_lab.errors import LabError
from flashnorm_lab.program import Launch, Program, Record, Stream, Wait, reads, writes
from flashnorm_lab.schedule_file import COMMENTS, KEYS

DOC = (ROOT / "docs" / "schedule_format.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)


def deferred(*joins: str, repeat: int = 1, name: str = "deferred") -> Program:
    """A product and a norm on streams of their own, and what needs both, with these joins in place."""
    steps = [
        Launch("projection", "matrix", (reads("x", 0, 64), writes("y", 0, 128)), source="norm.py:3"),
        Launch("inv_rms", "vector", (reads("x", 0, 64), writes("r", 0, 4)), source="norm.py:4"),
        *(Record(stream, stream) for stream in joins),
        *(Wait(stream, "main") for stream in joins),
        Launch("post_scale", "main", (reads("y", 0, 128), reads("r", 0, 4), writes("z", 0, 128))),
    ]
    streams = dict.fromkeys(("main", "matrix", "vector"), Stream())
    buffers = {"x": 64, "y": 128, "r": 4, "z": 128}
    return Program(tuple(steps), streams, buffers, name, repeat, ("what the sampler reads",))


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A racy file and a clean one, in the current folder."""
    monkeypatch.chdir(tmp_path)
    schedule_file.save(deferred("vector"), "racy.json")
    schedule_file.save(deferred("vector", "matrix", name="joined"), "clean.jsonl")
    return tmp_path


def run(capsys, *argv: str) -> tuple[int, str]:
    """Exit status and standard output of a verb that ran."""
    status = cli.main(["hazards", *argv])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out


def as_json(capsys, *argv: str) -> tuple[int, dict]:
    status, out = run(capsys, *argv, "--json")
    assert out.count("\n") == 1
    return status, json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def refused(capsys, *argv: str) -> str:
    """The one line on standard error of a verb that did not run."""
    try:
        status = cli.main(["hazards", *argv])
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    return err


# The verdict


@pytest.mark.parametrize("words", [None, *hazards.WORDS])
def test_a_racy_schedule_is_told_as_the_analysis_tells_it_and_is_status_1(capsys, files, words):
    status, out = run(capsys, "racy.json", *(["--words", words] if words else []))
    verdict = hazards.check(deferred("vector"))
    assert out == verdict.report(words or "cupy") + "\n"
    assert status == 1
    for told in ("RAW", "norm.py:3", "= fix:", "what the sampler reads"):
        assert told in out


def test_a_clean_schedule_is_status_0_and_tells_what_is_not_seen(capsys, files):
    status, out = run(capsys, "clean.jsonl")
    assert status == 0
    assert out.startswith(f"{hazards.check(deferred('vector', 'matrix', name='joined')).summary()}\n")
    assert out.startswith("joined: 3 launches, no hazard")
    assert "what the sampler reads" in out


def test_waits_that_order_nothing_are_told(capsys, files):
    joined = deferred("vector", "matrix")
    again = Wait("matrix", "main", source="norm.py:9")
    schedule_file.save(joined.with_steps([*joined.steps[:-1], again, joined.steps[-1]]), "twice.json")
    status, out = run(capsys, "twice.json")
    assert status == 0
    assert "main waits for matrix (norm.py:9): that orders nothing new" in out


def test_an_error_of_the_program_itself_is_status_1(capsys, files):
    steps = (program.BeginCapture("main", "g"), Launch("k", "main"))
    schedule_file.save(Program(steps, {"main": Stream()}), "capture.json")
    status, told = as_json(capsys, "capture.json")
    (file,) = told["files"]
    assert (status, file["clean"], file["hazards"], len(file["errors"])) == (1, False, [], 1)


def test_several_files_are_told_under_their_names_and_one_of_them_makes_status_1(capsys, files):
    status, out = run(capsys, "clean.jsonl", "racy.json")
    assert status == 1
    clean, racy = out.split("\n\n== racy.json\n")
    assert clean.startswith("== clean.jsonl\njoined: 3 launches, no hazard")
    assert racy.startswith("deferred: 3 launches, 1 hazard")
    assert run(capsys, "clean.jsonl", "clean.jsonl")[0] == 0


def test_json_holds_the_verdict_of_every_file(capsys, files):
    status, told = as_json(capsys, "clean.jsonl", "racy.json")
    assert (status, told["good"]) == (1, False)
    clean, racy = told["files"]
    assert (clean["file"], clean["clean"], clean["name"]) == ("clean.jsonl", True, "joined")
    expected = hazards.check(deferred("vector")).as_dict()
    assert racy == {"file": "racy.json", **json.loads(json.dumps(expected)), "repair_searched": True}
    assert as_json(capsys, "clean.jsonl")[1]["good"] is True


# Order


def test_order_is_answered_and_makes_the_status(capsys, files):
    status, out = run(capsys, "racy.json", "--ordered", "projection", "post_scale")
    expected = hazards.order(deferred("vector"), "projection", "post_scale")
    assert (status, expected.always) == (1, False)
    assert out.startswith(expected.text + "\n")
    assert "what the sampler reads" in out
    status, out = run(capsys, "racy.json", "--ordered", "inv_rms", "post_scale")
    assert status == 0
    assert out.startswith(hazards.order(deferred("vector"), "inv_rms", "post_scale").text)


def test_order_as_json(capsys, files):
    status, told = as_json(capsys, "racy.json", "clean.jsonl", "--ordered", "projection", "post_scale")
    assert (status, told["good"]) == (1, False)
    racy, clean = told["files"]
    assert racy == {"file": "racy.json", "name": "deferred", "first": "projection", "second": "post_scale",
                    "ordered": 0, "unordered": 1, "always": False,
                    "unseen": ["what the sampler reads"]}  # fmt: skip
    assert (clean["ordered"], clean["unordered"], clean["always"]) == (1, 0, True)


# The repair


def test_a_repaired_schedule_is_written_and_is_clean(capsys, files):
    status, out = run(capsys, "racy.json", "--repaired", "repaired.jsonl")
    assert status == 1  # of what was read
    assert out.endswith("\n\nrepaired: repaired.jsonl\n")
    assert schedule_file.load("repaired.jsonl") == hazards.check(deferred("vector")).repaired()
    assert run(capsys, "repaired.jsonl")[0] == 0
    assert as_json(capsys, "racy.json", "--repaired", "again.json")[1]["files"][0]["repaired"] == "again.json"
    assert run(capsys, "again.json")[0] == 0


def test_a_clean_schedule_is_written_as_it_is(capsys, files):
    assert run(capsys, "clean.jsonl", "--repaired", "same.json")[0] == 0
    assert schedule_file.load("same.json") == schedule_file.load("clean.jsonl")


def test_a_repair_that_does_not_do_is_not_written(capsys, files, monkeypatch):
    def without(repairs):
        def check(thing):
            verdict = real(thing)
            return verdict.with_repair(repairs, False, verdict.program)

        return check

    real = hazards.check
    useless = hazards.check(deferred("matrix")).repair
    left = "with this repair there would still be hazards (deferred: 3 launches, 1 hazard; 1 thing not seen)"
    for repairs, why in (((), "no repair was found"), (useless, left)):
        monkeypatch.setattr(hazards, "check", without(repairs))
        status, out = run(capsys, "racy.json", "--repaired", "out.json")
        assert status == 1
        assert out.endswith(f"out.json was not written: {why}\n")
        assert as_json(capsys, "racy.json", "--repaired", "out.json")[1]["files"][0]["repaired"] is None
        assert not (files / "out.json").exists()


def test_a_repaired_schedule_is_a_new_file(capsys, files):
    before = (files / "racy.json").read_bytes()
    os.link("racy.json", "same.json")
    for own in ("racy.json", "./racy.json", "same.json"):
        line = refused(capsys, "racy.json", "--repaired", own)
        assert f"--repaired {own}: this is the file that is read; give another name" in line
    assert "there is such a file already" in refused(capsys, "racy.json", "--repaired", "clean.jsonl")
    assert "give the name of a new one" in refused(capsys, "racy.json", "--repaired", "-")
    assert "no file name" in refused(capsys, "racy.json", "--repaired", "")
    assert "this is a folder" in refused(capsys, "racy.json", "--repaired", ".")
    assert sorted(os.listdir()) == ["clean.jsonl", "racy.json", "same.json"]
    assert (files / "racy.json").read_bytes() == before
    run(capsys, "racy.json", "--repaired", "out.jsonl.gz")
    assert (files / "out.jsonl.gz").read_bytes().startswith(b"\x1f\x8b")
    assert run(capsys, "out.jsonl.gz")[0] == 0


@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="needs Linux's /dev/stdout")
def test_a_repaired_schedule_is_not_written_into_a_pipe(files):
    done = subprocess.run(
        [sys.executable, "-m", "flashnorm_lab", "hazards", "racy.json", "--repaired", "/dev/stdout"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "flashnorm-lab: --repaired /dev/stdout: this is a device or a pipe; give the name of a file\n"
    )


# Size


def test_of_many_hazards_the_first_are_told_unless_all_are_asked_for(capsys, files):
    names = [f"b{i}" for i in range(25)]
    steps = [Launch(f"w {name}", "a", (writes(name, 0, 8),)) for name in names]
    steps += [Launch(f"r {name}", "b", (reads(name, 0, 8),)) for name in names]
    streams = {"a": Stream(), "b": Stream()}
    schedule_file.save(Program(tuple(steps), streams, dict.fromkeys(names, 8)), "many.json")
    status, out = run(capsys, "many.json")
    assert (status, out.count("RAW: ")) == (1, 20)
    assert out.endswith("\n\nThe first 20 of 25 hazards were told; --all tells every one.\n")
    status, out = run(capsys, "many.json", "--all")
    assert (status, out.count("RAW: ")) == (1, 25)
    assert "--all" not in out
    assert len(as_json(capsys, "many.json")[1]["files"][0]["hazards"]) == 25


def test_names_beyond_the_terminals_characters_are_told_all_the_same(files):
    greek = "\u03bb"
    named = Program(
        (Launch(greek, "a", (writes("x", 0, 8),)), Launch("r", "b", (reads("x", 0, 8),))),
        {"a": Stream(), "b": Stream()}, {"x": 8},
    )  # fmt: skip
    schedule_file.save(named, f"{greek}.json")
    done = subprocess.run(
        [sys.executable, "-m", "flashnorm_lab", "hazards", f"{greek}.json"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert b"RAW: r may read x before \\u03bb has written it" in done.stdout


@pytest.mark.parametrize("name", ["long.json", "long.jsonl"])
@pytest.mark.parametrize("repeat", [1, 3])
def test_a_long_schedule_is_judged_as_it_is_read_and_without_a_repair(
    capsys, files, monkeypatch, name, repeat
):
    """As if 20000 steps were 8: the hazards are those of the whole program."""
    one = deferred("vector", repeat=repeat)
    long = one.with_steps(one.steps * 4)
    schedule_file.save(long, name)
    monkeypatch.setattr(hazards, "SEARCHED", 8)
    status, told = as_json(capsys, name)
    (file,) = told["files"]
    assert status == 1
    assert file["hazards"] == json.loads(json.dumps(hazards.judge(long).as_dict()["hazards"]))
    assert (file["steps"], file["launches"]) == (20 * repeat, 12 * repeat)
    assert (file["repair"], file["repair_searched"]) == ([], False)
    status, out = run(capsys, name, "--repaired", "out.json")
    why = f"{20 * repeat} steps are more than the 8 up to which a repair is searched for"
    assert f"No smallest repair: {why}." in out
    assert f"out.json was not written: {why}\n" in out
    assert not (files / "out.json").exists()
    assert run(capsys, name, "--ordered", "inv_rms", "post_scale")[0] == 0


def test_a_loop_of_few_steps_and_many_turns_is_long_too(capsys, files, monkeypatch):
    schedule_file.save(deferred("vector", repeat=3), "loop.json")
    monkeypatch.setattr(hazards, "SEARCHED", 8)
    status, out = run(capsys, "loop.json")
    assert status == 1
    assert "No smallest repair: 15 steps are more than the 8" in out


def test_memory_does_not_grow_with_a_long_file(capsys, files, monkeypatch):
    monkeypatch.setattr(hazards, "SEARCHED", 100)
    joined = deferred("vector", "matrix")
    steps = [*joined.steps, Record("main", "main"), Wait("main", "matrix"), Wait("main", "vector")]

    def peak(count: int) -> int:
        schedule_file.save(joined.with_steps(steps * count), "long.jsonl")
        tracemalloc.start()
        try:
            assert run(capsys, "long.jsonl")[0] == 0
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(30)  # what is loaded once
    assert peak(1500) < peak(100) + 200_000


# Bad use and bad files


def test_bad_use_is_one_line(capsys, files):
    assert "FILE" in refused(capsys)
    assert "'latin'" in refused(capsys, "racy.json", "--words", "latin")
    assert "--ordered" in refused(capsys, "racy.json", "--ordered", "projection")
    assert "there is no launch 'nope'" in refused(capsys, "racy.json", "--ordered", "nope", "post_scale")
    assert "give one FILE" in refused(capsys, "racy.json", "clean.jsonl", "--repaired", "out.json")
    assert "no --ordered" in refused(capsys, "racy.json", "--ordered", "a", "b", "--repaired", "out.json")
    assert "does not exist" in refused(capsys, "racy.json", "--repaired", "nowhere/out.json")
    assert "there is no such file" in refused(capsys, "nothing.json")
    assert "this is a folder" in refused(capsys, ".")


def test_one_bad_file_among_good_ones_is_told_alone(capsys, files):
    (files / "broken.json").write_text('{"format": ')
    assert "broken.json: the text ends too early" in refused(capsys, "racy.json", "broken.json")


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("prefix", ["", "./"])
def test_a_program_that_cannot_be_is_told_with_its_file_once(capsys, files, monkeypatch, long, prefix):
    steps = (*deferred().steps, program.Free("x"), program.Free("x"))
    schedule_file.save(deferred().with_steps(steps), "twice.json")
    if long:
        monkeypatch.setattr(hazards, "SEARCHED", 2)
    line = refused(capsys, prefix + "twice.json")
    assert line.startswith("flashnorm-lab: twice.json: step 4 (free of x): x was freed")
    assert line.count("twice.json") == 1


@pytest.mark.parametrize("prefix", ["", "./"])
def test_a_bad_step_far_into_a_long_file_is_told_with_its_file_once(capsys, files, monkeypatch, prefix):
    monkeypatch.setattr(hazards, "SEARCHED", 2)
    with open("clean.jsonl", "a") as file:
        file.write('{"do": "wait", "event": "e", "stream": "mian"}\n')
    line = refused(capsys, prefix + "clean.jsonl")
    assert line.startswith('flashnorm-lab: clean.jsonl: step 7 (wait e): there is no stream "mian"')
    assert line.count("clean.jsonl") == 1


# Traces


def kineto() -> dict:
    """Two kernels on two streams, the second behind an event of the first, and a third behind nothing."""

    def event(name, category, ts, **args):
        return {"ph": "X", "name": name, "cat": category, "ts": ts, "dur": 1.0, "pid": 1, "tid": 1,
                "args": {"device": 0, "context": 1, **args}}  # fmt: skip

    def call(name, ts, correlation):
        return event(name, "cuda_runtime", ts, correlation=correlation)

    return {
        "schemaVersion": 1,
        "traceEvents": [
            call("cudaLaunchKernel", 1.0, 1),
            call("cudaEventRecord", 3.0, 2),
            call("cudaStreamWaitEvent", 5.0, 3),
            call("cudaLaunchKernel", 7.0, 4),
            call("cudaLaunchKernel", 9.0, 5),
            event("projection", "kernel", 2.0, stream=7, correlation=1),
            event("post_scale", "kernel", 8.0, stream=13, correlation=4),
            event("stray", "kernel", 10.0, stream=20, correlation=5),
            event("Stream Wait Event", "cuda_sync", 5.0, stream=13, correlation=3, wait_on_stream=7,
                  wait_on_cuda_event_record_corr_id=2, wait_on_cuda_event_id=9),
        ],
    }  # fmt: skip


def test_a_trace_is_counted_and_can_be_asked_for_order(capsys, files):
    (files / "trace.json.gz").write_bytes(gzip.compress(json.dumps(kineto()).encode()))
    status, out = run(capsys, "trace.json.gz")
    assert status == 0
    assert "a trace of 3 streams, 3 launches, 1 records, 1 waits, 0 host waits" in out
    assert "ask it for order with --ordered FIRST SECOND" in out
    assert "Not seen:\n  buffers" in out
    assert "no hazard" not in out
    status, out = run(capsys, "trace.json.gz", "--ordered", "projection", "post_scale")
    assert (status, out.partition(":")[0]) == (0, "yes")
    status, out = run(capsys, "trace.json.gz", "--ordered", "projection", "stray")
    assert (status, out.partition(":")[0] in ("no", "unknown")) == (1, True)


def test_a_trace_as_json(capsys, files):
    (files / "trace.json").write_text(json.dumps(kineto()))
    status, told = as_json(capsys, "trace.json")
    (file,) = told["files"]
    assert (status, told["good"], file["file"]) == (0, True, "trace.json")
    assert file["found"] == {"streams": 3, "launches": 3, "records": 1, "waits": 1, "host_waits": 0}
    assert "order" not in file
    assert any("buffers" in text for text in file["unseen"])
    status, told = as_json(capsys, "trace.json", "--ordered", "projection", "post_scale")
    assert (status, told["files"][0]["order"]["verdict"]) == (0, "yes")


def test_a_trace_has_no_repair_and_a_broken_one_is_told_in_one_line(capsys, files):
    (files / "trace.json").write_text(json.dumps(kineto()))
    assert "--repaired is for schedules" in refused(capsys, "trace.json", "--repaired", "out.json")
    assert "'nothing like it'" in refused(capsys, "trace.json", "--ordered", "projection", "nothing like it")
    (files / "list.json").write_text("[1, 2]")
    assert "a schedule is a JSON object" in refused(capsys, "list.json")
    (files / "deep.json").write_text('{"traceEvents": ' + "[" * 100_000)
    assert "deep.json: not a trace (this is nested too deeply)" in refused(capsys, "deep.json")
    sqlite3.connect("other.sqlite").execute("create table t (a)").connection.close()
    assert "other.sqlite" in refused(capsys, "other.sqlite")


# The functions behind it


def test_the_functions_refuse_what_they_cannot_judge_in_one_line():
    own, wrong = schedule.deferred(1, 8, 8), Launch("w", "a", ("x",))
    streams = {"a": Stream()}
    for ask, told in (
        (lambda: hazards.ordered(deferred(), "a", "b"), r"this Program is no schedule of the lab; .*order\("),
        (lambda: hazards.ordered(own, "projection", "post_scale", "1"), "distance='1': give a whole number"),
        (lambda: hazards.ordered(own, "projection", "post_scale", -1), "distance=-1: give a whole number"),
        (lambda: hazards.Checker(["a"]), r"streams=\['a'\]: give them by name"),
        (lambda: hazards.Checker(streams, ["x"]), r"buffers=\['x'\]: give their bytes by name"),
        (lambda: hazards.Checker(streams).feed_all(5), "5 has no steps; give a Program"),
        (
            lambda: hazards.Checker(streams).feed(wrong),
            r"step 0 \(w\): 'x' is no access; write program.reads",
        ),
        (lambda: hazards.check(Program((wrong,), streams)), r"step 0 \(w\): 'x' is no access"),
    ):
        with pytest.raises(LabError, match=told) as caught:
            ask()
        assert "\n" not in str(caught.value)


def test_a_checker_takes_a_program_as_often_as_it_repeats():
    loop = deferred("vector", repeat=3)
    told = hazards.Checker(loop.streams, loop.buffers).feed_all(loop).verdict()
    assert (told.launches, len(told.hazards)) == (9, len(hazards.find(loop)))


def test_the_example_of_a_checker_does_what_it_says(capsys):
    example = hazards.__doc__.partition("::\n\n")[2]
    exec(textwrap.dedent(example), {})
    (said,) = re.findall(r"# (RAW: .*) \.\.\.", example)
    assert said in capsys.readouterr().out


# What docs/schedule_format.md shows


def test_the_example_in_the_docs_is_told_as_the_docs_show(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = [text for language, text in BLOCKS if language == "json"]
    (shown,) = [text for _, text in BLOCKS if text.startswith("$ flashnorm-lab hazards upload.json\n")]
    (tmp_path / "upload.json").write_text(example)
    status, out = run(capsys, "upload.json")
    assert shown == f"$ flashnorm-lab hazards upload.json\n{out}"
    assert status == 1
    assert run(capsys, "upload.json", "--repaired", "out.json")[0] == 1
    assert run(capsys, "out.json")[0] == 0
    assert run(capsys, "upload.json", "--ordered", "copy in", "scale")[0] == 1


def test_the_lines_in_the_docs_are_json_lines():
    (lines,) = [text for language, text in BLOCKS if language == "jsonl"]
    loaded = schedule_file.loads(lines)
    assert len(loaded) == 3
    assert hazards.check(loaded).clean


def test_the_docs_name_every_key_and_every_value():
    text = re.sub(r"^```.*?^```$", "", DOC, flags=re.DOTALL | re.MULTILINE)
    quoted = {word.strip('"') for word in re.findall(r"`([^`]+)`", text)}
    steps = {do: set(kind.keys) for do, kind in schedule_file._DO.items()}
    named = {*KEYS, *COMMENTS, *steps, *set().union(*steps.values())}
    named |= {"kind", "context", "start", *program.KINDS, *program.FREES}
    assert len(named) > 60
    assert named - quoted == set()
    rows = re.findall(r"^\| `([a-z ]+)` \| (.*?) \|", text, re.MULTILINE)
    for do, keys in rows:
        if do in steps:
            found = set(re.findall(r"`([a-z]+)`", keys))
            assert found == steps[do] - {"thread", "source"}, do
    assert {do for do, _ in rows} >= steps.keys() - {"launch", "host read", "host write"}
    assert f"Beyond {hazards.SEARCHED} steps" in text
    assert f"more than {schedule_file.MOST_STEPS:,} steps".replace(",", " ") in text
