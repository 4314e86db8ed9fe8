"""Schedules as files: both forms, every key, round trips, and one clear line for whatever is wrong."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import tracemalloc
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from flashnorm_lab import program, schedule, schedule_file
from flashnorm_lab.errors import LabError
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

HEAD = {
    "format": "flashnorm-lab schedule",
    "version": 1,
    "name": "deferred",
    "streams": {"main": "non-blocking", "matrix": {"kind": "blocking", "context": "1"}},
    "buffers": {
        "y": 3840,
        "w": {"bytes": 64},
        "unknown": None,
        "view": {"of": "y", "start": 64, "bytes": 32},
    },
}
LAUNCH = {"do": "launch", "name": "post_scale", "stream": "main", "reads": ["y"]}

EVERYTHING = Program(
    steps=(
        Allocate("a", 64, 4096, "pinned", "main", "loader", "train.py:1"),
        Allocate("b", 32),
        Launch("projection", "matrix", (reads("x", 0, 64), reads("W", 0, 8), writes("y", 0, 128)), ("e",),
               "f", True, "copy", 3, "loader", "train.py:2"),
        Launch("empty", "main"),
        Record("e", "matrix", "loader", "train.py:3"),
        Wait("e", "main", "loader", "train.py:4"),
        Barrier("queue", ("e", "f"), "g", "loader", "train.py:5"),
        Barrier("queue"),
        Synchronize(thread="loader", source="train.py:6"),
        Synchronize("main"),
        Synchronize(event="e"),
        Query(True, "main", thread="loader", source="train.py:7"),
        Query(False, event="e"),
        HostRead("x", 8, 16, 2, "loader", "train.py:8"),
        HostRead("unknown"),
        HostWrite("x", 8, 16, 2, "loader", "train.py:9"),
        HostWrite("y"),
        RecordStream("a", "main", "loader", "train.py:10"),
        Free("a", "stream", "main", "loader", "train.py:11"),
        Free("b", "pool"),
        BeginCapture("main", "graph", "loader", "train.py:12"),
        EndCapture("main", "loader", "train.py:13"),
        GraphLaunch("graph", "main", 4, "loader", "train.py:14"),
        UserEvent("u", "loader", "train.py:15"),
        SetEvent("u", "loader", "train.py:16"),
        DestroyEvent("u", "loader", "train.py:17"),
        HandOver("host", "loader", "train.py:18"),
    ),
    streams={
        "main": Stream("legacy"),
        "matrix": Stream("blocking"),
        "queue": Stream("out-of-order", "gpu 1"),
        "own": Stream("per-thread"),
        "side": Stream(),
    },
    buffers={"x": 64, "W": 640, "y": 128, "unknown": None},
    name="every step, größer",
    repeat=3,
    unseen=("what cuBLAS reads", "the driver's own copies"),
)  # fmt: skip


def text(*steps: object, **head: object) -> str:
    """A schedule as one object."""
    return json.dumps({**HEAD, **head, "steps": list(steps)})


def lines(*steps: object, **head: object) -> str:
    """The same as JSON Lines."""
    return "".join(json.dumps(value) + "\n" for value in ({**HEAD, **head}, *steps))


def refused(content: str | bytes) -> str:
    """The one line that `loads` refuses a text with."""
    with pytest.raises(LabError) as caught:
        schedule_file.loads(content)
    told = str(caught.value)
    assert told.startswith("the schedule")
    assert "\n" not in told
    assert told.isprintable()
    assert len(told) < 600
    assert caught.value.__cause__ is None
    return told


# What is read


@pytest.mark.parametrize("form", [text, lines])
def test_every_kind_of_step_and_every_key(form):
    loaded = schedule_file.loads(
        form(
            {"do": "allocate", "buffer": "a", "bytes": 64, "address": 4096, "memory": "pinned",
             "stream": "main", "thread": "t", "source": "s"},
            {"do": "launch", "name": "n", "stream": "matrix", "reads": ["y", ["unknown", 0, 9]],
             "writes": [["a", 8, 16]], "after": [], "event": "e", "blocks": True, "category": "host function",
             "step": 2, "thread": "t", "source": "s", "note": {"any": ["thing"]}},
            {"do": "record", "event": "e", "stream": "matrix", "thread": "t", "source": "s"},
            {"do": "wait", "event": "e", "stream": "main", "thread": "t", "source": "s"},
            {"do": "barrier", "stream": "main", "after": ["e"], "event": "f", "thread": "t", "source": "s"},
            {"do": "synchronize"},
            {"do": "synchronize", "stream": "main", "thread": "t", "source": "s"},
            {"do": "synchronize", "event": "e"},
            {"do": "query", "event": "e", "done": True, "thread": "t", "source": "s"},
            {"do": "query", "stream": "main", "event": None, "done": False},
            {"do": "host read", "buffer": "y", "start": 1, "stop": 2, "step": 5, "thread": "t",
             "source": "s"},
            {"do": "host write", "buffer": "unknown", "start": 1, "thread": "t", "source": "s"},
            {"do": "record stream", "buffer": "a", "stream": "main", "thread": "t", "source": "s"},
            {"do": "free", "buffer": "a", "how": "stream", "stream": "main", "thread": "t", "source": "s"},
            {"do": "begin capture", "stream": "main", "graph": "g", "thread": "t", "source": "s"},
            {"do": "end capture", "stream": "main", "thread": "t", "source": "s"},
            {"do": "launch graph", "graph": "g", "stream": "main", "step": 1, "thread": "t", "source": "s"},
            {"do": "user event", "event": "u", "thread": "t", "source": "s"},
            {"do": "set event", "event": "u", "thread": "t", "source": "s"},
            {"do": "destroy event", "event": "u", "thread": "t", "source": "s"},
            {"do": "hand over", "to": "host", "thread": "t", "source": "s"},
            repeat=4, unseen=["one", "two"], note="n", reason=["r"], expect={"e": 1}, twin=None,
        )
    )  # fmt: skip
    t = {"thread": "t", "source": "s"}
    assert loaded == Program(
        steps=(
            Allocate("a", 64, 4096, "pinned", "main", **t),
            Launch("n", "matrix", (reads("y", 0, 3840), reads("unknown", 0, 9), writes("a", 8, 16)), (), "e",
                   True, "host function", 2, **t),
            Record("e", "matrix", **t),
            Wait("e", "main", **t),
            Barrier("main", ("e",), "f", **t),
            Synchronize(),
            Synchronize("main", **t),
            Synchronize(event="e"),
            Query(True, event="e", **t),
            Query(False, "main"),
            HostRead("y", 1, 2, 5, **t),
            HostWrite("unknown", 1, None, **t),
            RecordStream("a", "main", **t),
            Free("a", "stream", "main", **t),
            BeginCapture("main", "g", **t),
            EndCapture("main", **t),
            GraphLaunch("g", "main", 1, **t),
            UserEvent("u", **t),
            SetEvent("u", **t),
            DestroyEvent("u", **t),
            HandOver("host", **t),
        ),
        streams={"main": Stream("non-blocking"), "matrix": Stream("blocking", "1")},
        buffers={"y": 3840, "w": 64, "unknown": None},
        name="deferred",
        repeat=4,
        unseen=("one", "two"),
    )  # fmt: skip
    assert {type(s) for s in loaded.steps} == set(program.STEPS)


def test_the_format_knows_every_field_of_every_step():
    """A field that is added to a step has to get a key."""
    for step in program.STEPS:
        (kind,) = [k for k in schedule_file._DO.values() if k.step is step]
        known = {k.attribute for k in kind.keys.values()} - {"reads", "writes"}
        assert known == {f.name for f in fields(step)} - {"accesses"}, step


def test_least_that_a_schedule_needs():
    loaded = schedule_file.loads(
        '{"format": "flashnorm-lab schedule", "version": 1, "streams": {}, "steps": []}'
    )
    assert loaded == Program((), {}, {}, "program")


@pytest.mark.parametrize("form", [text, lines])
def test_a_view_is_read_as_bytes_of_its_base(form):
    views = {
        "z": 100,
        "head": {"of": "z", "bytes": 40},
        "tail": {"of": "z", "start": 40, "bytes": 60},
        "of unknown": {"of": "?", "start": 10, "bytes": 10},
        "?": None,
        "of later": {"of": "later", "start": 4, "bytes": 4},
    }
    loaded = schedule_file.loads(
        form(
            {"do": "launch", "name": "k", "stream": "main", "reads": ["head", ["tail", 10, 20]],
             "writes": ["of unknown"]},
            {"do": "host read", "buffer": "tail"},
            {"do": "host write", "buffer": "tail", "start": 1, "stop": 2},
            {"do": "allocate", "buffer": "later", "bytes": 8},
            {"do": "host read", "buffer": "of later"},
            buffers=views,
        )
    )  # fmt: skip
    assert loaded.buffers == {"z": 100, "?": None}
    assert loaded.steps == (
        Launch("k", "main", (reads("z", 0, 40), reads("z", 50, 60), writes("?", 10, 20))),
        HostRead("z", 40, 100),
        HostWrite("z", 41, 42),
        Allocate("later", 8),
        HostRead("later", 4, 8),
    )


def test_a_whole_buffer_has_the_size_of_its_latest_allocation():
    steps = []
    for size in (16, 32, 32):
        steps += [{"do": "allocate", "buffer": "a", "bytes": size}, {**LAUNCH, "reads": ["a"]},
                  {"do": "free", "buffer": "a"}]  # fmt: skip
    loaded = schedule_file.loads(text(*steps))
    assert [s.accesses[0].stop for s in loaded.steps if isinstance(s, Launch)] == [16, 32, 32]


def test_plain_and_gzip_with_and_without_a_byte_order_mark_whatever_the_name(tmp_path):
    expected = schedule_file.loads(text(LAUNCH))
    for form in (text, lines):
        plain = form(LAUNCH).encode()
        for mark in (b"", b"\xef\xbb\xbf"):
            for pack in (bytes, gzip.compress):
                path = tmp_path / "file.csv"
                path.write_bytes(pack(mark + plain))
                assert schedule_file.load(path) == expected
                assert schedule_file.load(str(path)) == expected
                assert schedule_file.loads(pack(mark + plain)) == expected


@pytest.mark.parametrize("form", [text, lines])
def test_blanks_windows_line_ends_and_layout_do_not_matter(form):
    expected = schedule_file.loads(form(LAUNCH, LAUNCH))
    content = form(LAUNCH, LAUNCH)
    assert schedule_file.loads("\r\n \r\n" + content.replace("\n", "\r\n\r\n") + "\r\n\r\n") == expected
    if form is text:
        assert schedule_file.loads(json.dumps(json.loads(content), indent=3)) == expected
    else:
        assert schedule_file.loads(content.rstrip("\n")) == expected


def test_keys_in_any_order():
    """`json.dump(…, sort_keys=True)` puts steps before streams."""
    whole = {**HEAD, "steps": [LAUNCH], "unseen": ["u"], "repeat": 2}
    expected = schedule_file.loads(json.dumps(whole))
    assert schedule_file.loads(json.dumps(whole, sort_keys=True)) == expected
    first = {"steps": whole["steps"], **whole}
    assert next(iter(first)) == "steps"
    assert schedule_file.loads(json.dumps(first)) == expected
    head, steps = expected.with_steps(()), expected.steps
    assert (head.repeat, head.unseen, len(steps)) == (2, ("u",), 1)


def test_a_header_longer_than_a_chunk():
    many = {f"buffer {i}": i + 1 for i in range(10_000)}
    for form in (text, lines):
        content = form({**LAUNCH, "reads": ["buffer 9999"]}, buffers=many)
        assert len(content) > 2 * 65536
        loaded = schedule_file.loads(content)
        assert loaded.steps[0].accesses == (reads("buffer 9999", 0, 10_000),)
        assert len(loaded.buffers) == 10_000


def test_a_missing_name_is_that_of_the_file(tmp_path):
    whole = {**HEAD, "steps": []}
    del whole["name"]
    path = tmp_path / "my run.schedule.json"
    path.write_text(json.dumps(whole))
    assert schedule_file.load(path).name == "my run"
    assert schedule_file.loads(json.dumps(whole)).name == "program"


def test_stream_gives_the_head_first_and_reads_steps_as_they_are_asked_for(tmp_path):
    for form in (text, lines):
        path = tmp_path / "file"
        path.write_text(form(LAUNCH, LAUNCH, {"do": "dance"}, repeat=2, unseen=["u"]))
        head, steps = schedule_file.stream(path)
        assert head == Program((), *(getattr(head, n) for n in ("streams", "buffers")), "deferred", 2, ("u",))
        assert set(head.streams) == {"main", "matrix"}
        assert next(steps) == next(steps) == Launch("post_scale", "main", (reads("y", 0, 3840),))
        with pytest.raises(LabError, match=r"step 2 \(dance\)"):
            next(steps)


# What is written


def test_what_is_saved_loads_equal(tmp_path):
    used = {type(s) for s in EVERYTHING.steps}
    assert used == set(program.STEPS)
    for name, first in (("a.json", '{\n"format"'), ("a.jsonl", '{"format"')):
        path = tmp_path / name
        schedule_file.save(EVERYTHING, path)
        content = path.read_text("utf-8")
        assert content.startswith(first)
        assert len(content.splitlines()) == len(EVERYTHING) + (11 if name == "a.json" else 1)
        assert "größer" in content
        assert schedule_file.load(path) == EVERYTHING
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.jsonl"]


@pytest.mark.parametrize("name", ["a.json.gz", "a.jsonl.gz"])
def test_a_name_that_ends_in_gz_is_written_compressed(tmp_path, name):
    path = tmp_path / name
    schedule_file.save(EVERYTHING, path)
    plain = tmp_path / name.removesuffix(".gz")
    schedule_file.save(EVERYTHING, plain)
    assert gzip.decompress(path.read_bytes()) == plain.read_bytes()
    assert schedule_file.load(path) == EVERYTHING


def test_reads_are_written_before_writes(tmp_path):
    mixed = Program(
        (Launch("k", "s", (writes("a", 0, 1), reads("b", 0, 2), writes("a", 1, 2))),),
        {"s": Stream()}, {"a": 2, "b": 2},
    )  # fmt: skip
    schedule_file.save(mixed, tmp_path / "mixed.json")
    loaded = schedule_file.load(tmp_path / "mixed.json")
    assert loaded.steps[0].accesses == (reads("b", 0, 2), writes("a", 0, 1), writes("a", 1, 2))
    assert '"reads": ["b"], "writes": [["a", 0, 1], ["a", 1, 2]]' in (tmp_path / "mixed.json").read_text()


def test_a_program_without_steps_is_saved_so_that_it_loads(tmp_path):
    empty = Program((), {"s": Stream()}, {}, "empty")
    for name in ("a.json", "a.jsonl"):
        schedule_file.save(empty, tmp_path / name)
        assert schedule_file.load(tmp_path / name) == empty


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"steps": (Record("e", "nowhere"),)}, 'step 0 (record e): there is no stream "nowhere"'),
        ({"steps": (Launch("k", "main", (reads("nothing", 0, 1),)),)}, 'there is no buffer "nothing"'),
        ({"steps": (Synchronize(), Launch("k", "main", (reads("x", 0, 65),)))}, "step 1 (k): bytes 0 to 65"),
        ({"steps": (Launch("k", "main", category=""),)}, 'category is ""'),
        ({"steps": (Query(True),)}, "name one of them"),
        ({"steps": (Record("", "main"),)}, "event is"),
        ({"steps": ("dance",)}, "step 0: 'dance' is no step"),
        (
            {"steps": (Launch("k", "main", (replace(reads("x", 0, 8), per_step=True),)),)},
            "is of another row in each step",
        ),
        ({"buffers": {"x": -1}}, 'buffer "x" is -1'),
        ({"unseen": ("two\nlines",)}, "cannot be printed"),
    ],
)
def test_a_program_that_the_format_does_not_hold_is_refused_and_nothing_is_left(tmp_path, changed, told):
    path = tmp_path / "kept.json"
    path.write_text("what was there")
    with pytest.raises(LabError) as caught:
        schedule_file.save(replace(EVERYTHING, **changed), path)
    assert str(caught.value).startswith('program "every step')
    assert told in str(caught.value)
    assert path.read_text() == "what was there"
    assert os.listdir(tmp_path) == ["kept.json"]


def test_save_refuses_what_is_no_program_and_a_bad_place(tmp_path):
    with pytest.raises(LabError, match=r"\[\] is no program; give program.Program"):
        schedule_file.save([], tmp_path / "a.json")
    own = schedule.deferred(1, 8, 8)
    with pytest.raises(LabError, match=r"^this Schedule is no program; give program.from_schedule"):
        schedule_file.save(own, tmp_path / "a.json")
    with pytest.raises(LabError, match="no program; give its attribute program"):
        schedule_file.save(SimpleNamespace(program=EVERYTHING), tmp_path / "a.json")
    with pytest.raises(LabError, match="this is a folder"):
        schedule_file.save(EVERYTHING, tmp_path)
    with pytest.raises(LabError, match="does not exist"):
        schedule_file.save(EVERYTHING, tmp_path / "nowhere" / "a.json")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux's /dev/full")
def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "kept.json"
    path.write_text("what was there")
    opened = type(path).open

    def full(self, *args, **options):
        return open("/dev/full", "wb") if self.name.endswith(".part") else opened(self, *args, **options)

    monkeypatch.setattr(type(path), "open", full)
    with pytest.raises(LabError, match=r"kept\.json: cannot be written \(No space left"):
        schedule_file.save(EVERYTHING, path)
    assert path.read_text() == "what was there"


# What is refused: the file


def test_a_file_that_is_none(tmp_path):
    with pytest.raises(LabError, match="there is no such file"):
        schedule_file.load(tmp_path / "nothing.json")
    with pytest.raises(LabError, match="this is a folder"):
        schedule_file.load(tmp_path)
    for read in (schedule_file.load, schedule_file.stream, schedule_file.is_trace):
        for bad in (None, 5, b"a.json", ""):
            with pytest.raises(LabError, match="is no file name; give one"):
                read(bad)
    with pytest.raises(LabError, match="is no text"):
        schedule_file.loads(5)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs a system with named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(LabError, match="a device or a pipe"):
        schedule_file.load(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "there is nothing in it"),
        (b" \n\t\r\n" * 100_000, "there is nothing in it"),
        (gzip.compress(b"", mtime=0), "there is nothing in it"),
        (gzip.compress(text(LAUNCH).encode())[:-20], "the gzip stream is damaged or cut off"),
        (b"\x1f\x8b\x08garbage", "the gzip stream is damaged or cut off"),
        (b"\x7fELF\x00\x01\x02", "a binary file"),
        (b"\x89PNG\r\n\x1a\n", "begins otherwise"),
        (text().encode("utf-16"), "save it as UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"SQLite format 3\x00", "a binary file"),
        (b"[1, 2]", 'a JSON object, {"format": "flashnorm-lab schedule", ...}'),
        (b"step: launch\n", "begins otherwise"),
        (b"{}", '"format" is missing'),
        (b'{"name": "x"}', '"format" is missing'),
        (b'{"format": "other"}', '"format" is "other"; "flashnorm-lab schedule" was expected'),
        (b'{"format": ["flashnorm-lab schedule"]}', '"format" is a list'),
        (b'{"format": "flashnorm-lab schedule"}', '"version" is missing'),
        (b'{"schemaVersion": 1, "traceEvents": []}', 'a schedule has no key "schemaVersion"'),
    ],
)
def test_what_is_no_schedule(content, told):
    assert told in refused(content)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"format": flashnorm}', "line 1, column 13: not valid JSON (invalid string in json text) near"),
        ('{\n "format": "flashnorm-lab schedule",\n "version": 1,,\n}', "line 3, column 15: not valid JSON"),
        ('{"name": "größer", "version": }', "line 1, column 31: not valid JSON"),
        ('{"version": NaN}', "line 1, column 13: NaN is not a JSON number"),
        ('{"version": -Infinity}', "-Infinity is not a JSON number"),
        ('{"version": 1 /* one */}', "line 1, column 15: not valid JSON (probable comment"),
        ('{"version": 1, /', "line 1, column 16: not valid JSON (probable comment"),
        ('{"name": "two\nlines"}', "line 1, column 14: not valid JSON (invalid character inside string)"),
        (b'{"name": "\xff"}', "line 1, column 11: not valid JSON (invalid bytes in UTF8 string)"),
        ('{"version": 99999999999999999999}', "a whole number beyond 64 bits; at most 9223372036854775807"),
        ('{"version": 1', "the text ends too early, after 13 bytes; it was cut off: write it again"),
        ('{"name": "cut', "the text ends too early, after 13 bytes"),
        ('{"steps": [{"do": "launch"', ": step 0: the text ends too early"),
        (text(LAUNCH) + "x", "line 1, column"),
        (text(LAUNCH) + "{}", "there is more behind the object's end; a file holds one"),
        (text() + "\n" + json.dumps(LAUNCH), "there is more behind the object's end"),
    ],
)
def test_what_is_no_json(content, told):
    assert told in refused(content)


@pytest.mark.parametrize("form", [text, lines])
@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"do": launch}', "not valid JSON"),
        ('{"do": "host write", "buffer": "y", "start": NaN}', "NaN is not a JSON number; write a whole"),
        ('{"do": "host write", "buffer": "y", "start": Infinity}', "Infinity is not a JSON number"),
        ('{"do": "synchronize"', "not valid JSON"),
        ('{"do": "synchronize", "do": "synchronize"}', 'the key "do" is there twice; keep one of them'),
        ('{"do": "launch", "note": {"a": 1, "b": 2, "a": 1}}', 'the key "a" is there twice'),
        ('{"do": "launch", "note": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
    ],
)  # fmt: skip
def test_a_step_that_is_no_json_is_told_with_its_number(form, bad, told):
    content = form(LAUNCH, "here", LAUNCH).replace('"here"', bad)
    said = refused(content)
    assert told in said
    assert "step 1:" in said
    if form is lines and "twice" not in told and told != "nested too deeply":
        assert said.startswith("the schedule, line 3")


def test_the_place_is_right_far_into_a_file():
    """Beyond the first chunk, where a character of several bytes counts once."""
    step = json.dumps({**LAUNCH, "note": "größer " * 9}, ensure_ascii=False)
    for between in ("\n", ""):
        content = text("here").replace('"here"', ("," + between).join([step] * 3000 + ["x"]))
        line, column = (3001, 1) if between else (1, content.index(",x") + 2)
        assert refused(content).startswith(
            f"the schedule, line {line}, column {column}: step 3000: not valid"
        )


def test_a_file_that_is_cut_off_is_told_wherever_it_ends():
    for form in (text, lines):
        note = {"größer": 'a "quoted" note', "\\": [{}]}
        content = form(LAUNCH, {**LAUNCH, "note": note}).replace("\\u00f6", "ö").encode()
        for size in range(1, len(content) - 1):
            if form is lines and (content[:size].endswith(b"}\n") or content[size:].startswith(b"\n")):
                continue  # it ends behind a step or behind the first line
            told = refused(content[:size])
            assert "ends too early" in told or "there are no steps" in told, (size, told)


def test_bytes_that_are_no_text_in_a_line():
    content = lines(LAUNCH, {**LAUNCH, "name": "here"}).encode().replace(b"here", b"\xff")
    assert "line 3: step 1: byte 27 of the line is not UTF-8 text" in refused(content)


def test_lines_without_a_step_or_with_a_first_line_that_is_not_whole():
    for content in (lines(), json.dumps(HEAD), json.dumps(HEAD, indent=1) + "\n" + json.dumps(LAUNCH)):
        assert "there are no steps: give" in refused(content)


# What is refused: the object


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ({"version": 2}, '"version" is 2; this installation reads version 1'),
        ({"version": True}, '"version" is true'),
        ({"version": "1"}, '"version" is "1"; a whole number, 1, was expected'),
        ({"version": 1.0}, '"version" is 1.0'),
        ({"stream": {}}, 'a schedule has no key "stream"; did you mean \'streams\'?'),
        ({"zzz": 1}, 'a schedule has no key "zzz"; there are format, version, name'),
        ({"streams": ["main"]}, "streams is a list; an object was expected"),
        ({"streams": {"main": "non-blocked"}}, 'the kind of stream "main" is "non-blocked"; did you mean'),
        ({"streams": {"main": {"kind": "wild"}}}, "there are blocking, non-blocking, legacy, per-thread, "),
        ({"streams": {"main": {"context": "0"}}}, 'stream "main" needs "kind", which is missing'),
        ({"streams": {"main": {"kind": "legacy", "context": 0}}}, 'the context of stream "main" is 0; a '),
        ({"streams": {"main": {"kind": "legacy", "device": 0}}}, 'stream "main" has no key "device"'),
        ({"streams": {"main": 7}}, 'stream "main" is 7; an object was expected'),
        ({"streams": {"": "legacy"}}, "a stream's name is \"\"; a text that is not empty was expected"),
        ({"buffers": []}, "buffers is a list; an object was expected"),
        ({"buffers": {"y": -1}}, 'buffer "y" is -1; a whole number of at least 0 was expected'),
        ({"buffers": {"y": 64.0}}, 'buffer "y" is 64.0; a whole number'),
        ({"buffers": {"y": True}}, 'buffer "y" is true; a whole number'),
        ({"buffers": {"y": "64"}}, 'buffer "y" is "64"; a whole number'),
        ({"buffers": {"y": {"bytes": "64"}}}, 'bytes of buffer "y" is "64"'),
        ({"buffers": {"y": {"size": 64}}}, 'buffer "y" has no key "size"'),
        ({"buffers": {"y": {}}}, 'buffer "y" needs "bytes", which is missing'),
        ({"buffers": {"y": {"bytes": 4, "start": 1}}}, 'buffer "y" has no key "start"'),
        ({"buffers": {"a\u202eb": 1}}, 'leave out "\\u202e"'),
        ({"buffers": {"a\u0007": 1}}, 'the name of a buffer is "a\\u0007"; leave out "\\u0007"'),
        ({"buffers": {"v": {"of": "y"}}}, 'buffer "v" needs "bytes", which is missing'),
        ({"buffers": {"y": 9, "v": {"of": "y", "bytes": 0}}}, "a whole number of at least 1"),
        ({"buffers": {"y": 9, "v": {"of": "y", "start": -1, "bytes": 1}}}, 'the start of buffer "v" is -1'),
        ({"buffers": {"y": 9, "v": {"of": "y", "stop": 1, "bytes": 1}}}, 'buffer "v" has no key "stop"'),
        ({"buffers": {"y": 9, "v": {"of": 4, "bytes": 1}}}, "'of' of buffer \"v\" is 4"),
        (
            {"buffers": {"y": 9, "v": {"of": "y", "start": 5, "bytes": 5}}},
            'buffer "v" is bytes 5 to 10 of "y", which has 9: make it fit',
        ),
        (
            {"buffers": {"y": 9, "w": {"of": "v", "start": 1, "bytes": 1},
                         "v": {"of": "y", "start": 2, "bytes": 4}}},
            'buffer "w" is a view of "v", itself a view: make it one of "y", from byte 3',
        ),
        (
            {"buffers": {"yy": 9, "v": {"of": "y", "bytes": 1}}},
            'buffer "v" is a view of "y", which is neither in buffers nor allocated by a step',
        ),
        ({"name": 5}, "name is 5; a text was expected"),
        ({"repeat": 0}, "repeat is 0; a whole number of at least 1"),
        ({"repeat": 1.5}, "repeat is 1.5; a whole number"),
        ({"unseen": "all"}, 'unseen is "all"; a list was expected'),
        ({"unseen": ["a", 1]}, "an entry of unseen is 1; a text was expected"),
        ({"note": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}, "nested too deeply"),
    ],
)  # fmt: skip
def test_an_object_that_is_wrong(head, told):
    for form in (text, lines):
        assert told in refused(form({"do": "synchronize"}, **head))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"format": "x", "format": "x"}', 'the key "format" is there twice'),
        (text(LAUNCH)[:-1] + ', "name": "x"}', 'the key "name" is there twice'),
        (text(LAUNCH)[:-1] + ', "steps": []}', 'the key "steps" is there twice'),
        (text().replace('"w":', '"y":'), 'the key "y" is there twice'),
        (text().replace('"steps": []', '"steps": {"do": "launch"}'), "steps is an object; a list of steps"),
        (text().replace('"steps": []', '"steps": 5'), "steps is 5; a list of steps"),
        (text().replace('"streams"', '"twin"'), 'a schedule needs "streams", which is missing'),
    ],
)
def test_keys_that_are_there_twice_or_of_the_wrong_kind(content, told):
    assert told in refused(content)


# What is refused: a step


@pytest.mark.parametrize(
    ("step", "told"),
    [
        (5, "step 1: this is 5; an object was expected"),
        ([], "step 1: this is a list; an object was expected"),
        ({}, 'step 1: a step needs "do", which is missing'),
        ({"do": None}, 'step 1: "do" is null'),
        ({"do": ["launch"]}, '"do" is a list'),
        ({"do": "lunch"}, "step 1 (lunch): \"do\" is \"lunch\"; did you mean 'launch'?"),
        ({"do": "memcpy"}, '"do" is "memcpy"; there are launch, record, wait, barrier'),
        ({"do": "launch", "stream": "main"}, 'step 1 (launch main): "launch" needs "name", which is missing'),
        ({"do": "launch", "name": "k"}, 'step 1 (k): "launch" needs "stream"'),
        ({**LAUNCH, "source": "t.py:3", "strem": 1}, 'step 1 (post_scale, t.py:3): "launch" has no key "s'),
        ({**LAUNCH, "strem": 1}, "did you mean 'stream'?"),
        ({**LAUNCH, "expect": 1}, 'has no key "expect"'),
        ({**LAUNCH, "stream": "mian"}, "there is no stream \"mian\" in streams; did you mean 'main'?"),
        ({**LAUNCH, "stream": None}, "stream is null; a text was expected"),
        ({**LAUNCH, "stream": ["main"]}, "stream is a list; a text was expected"),
        ({**LAUNCH, "name": ""}, 'name is ""; a text that is not empty was expected'),
        ({**LAUNCH, "name": 7}, "name is 7; a text was expected"),
        ({**LAUNCH, "name": "two\nlines"}, 'step 1 (two?lines): name is "two\\nlines"; leave out "\\n"'),
        ({**LAUNCH, "name": "x" * 500}, None),
        ({**LAUNCH, "reads": "y"}, 'reads is "y"; a list was expected'),
        ({**LAUNCH, "reads": [7]}, "reads has 7; a buffer's name or [name, start, stop] was expected"),
        ({**LAUNCH, "writes": [["y", 0]]}, 'writes has ["y", 0]; a buffer\'s name or [name, start, stop]'),
        ({**LAUNCH, "writes": [["y", 0, 1, 2]]}, "writes has a list"),
        ({**LAUNCH, "writes": [[["y"], 0, 1]]}, "a name in writes is a list"),
        ({**LAUNCH, "reads": [["y", "0", 1]]}, 'a start in reads is "0"; a whole number'),
        ({**LAUNCH, "reads": [["y", 0, None]]}, "a stop in reads is null"),
        ({**LAUNCH, "reads": ["y", ["y", 0, 3840.0]]}, "a stop in reads is 3840.0"),
        ({**LAUNCH, "reads": ["y", ["y", False, 3840]]}, "a start in reads is false"),
        ({**LAUNCH, "reads": [["y", -1, 1]]}, "a start in reads is -1; a whole number of at least 0"),
        ({**LAUNCH, "reads": [["y", 8, 8]]}, 'bytes 8 to 8 of "y" are none'),
        ({**LAUNCH, "reads": [["y", 9, 8]]}, 'bytes 9 to 8 of "y" are none'),
        ({**LAUNCH, "reads": [["y", 0, 3841]]}, 'bytes 0 to 3841 of "y", which has 3840: make them fit'),
        ({**LAUNCH, "reads": [["view", 0, 33]]}, 'bytes 0 to 33 of "view", which has 32: make them fit'),
        ({**LAUNCH, "reads": ["views"]}, 'there is no buffer "views", neither in buffers nor allocated by '),
        ({**LAUNCH, "reads": ["views"]}, "step before; did you mean 'view'?"),
        ({**LAUNCH, "reads": ["unknown"]}, 'the size of "unknown" is not known, so it cannot be named as a '),
        ({**LAUNCH, "reads": ["unknown"]}, 'whole; write ["unknown", start, stop]'),
        ({**LAUNCH, "after": "e"}, 'after is "e"; a list was expected'),
        ({**LAUNCH, "after": [1]}, "an event in after is 1"),
        ({**LAUNCH, "after": [""]}, 'an event in after is ""'),
        ({**LAUNCH, "event": 1}, "event is 1"),
        ({**LAUNCH, "blocks": 1}, "blocks is 1; true or false was expected"),
        ({**LAUNCH, "category": []}, "category is a list; a text was expected"),
        ({**LAUNCH, "step": -2}, "step is -2; a whole number of at least -1"),
        ({**LAUNCH, "thread": ""}, 'thread is ""'),
        ({**LAUNCH, "source": None}, "source is null"),
        ({"do": "record", "event": "", "stream": "main"}, 'event is ""'),
        ({"do": "record", "event": "e"}, 'step 1 (record e): "record" needs "stream"'),
        ({"do": "wait", "stream": "main"}, 'step 1 (wait main): "wait" needs "event"'),
        ({"do": "barrier"}, '"barrier" needs "stream"'),
        ({"do": "synchronize", "stream": "main", "event": "e"}, "it names a stream and an event; keep one"),
        ({"do": "query", "event": "e"}, '"query" needs "done"'),
        ({"do": "query", "done": True}, "a query is of a stream or of an event: name one of them"),
        ({"do": "query", "done": True, "stream": "main", "event": "e"}, "name one of them"),
        ({"do": "query", "done": "yes", "event": "e"}, 'done is "yes"; true or false'),
        ({"do": "host read", "buffer": "y", "start": 3840}, 'bytes 3840 to 3840 of "y" are none'),
        ({"do": "host read", "buffer": "y", "stop": 3841}, 'bytes 0 to 3841 of "y", which has 3840'),
        ({"do": "host read", "buffer": "nothing"}, "step 1 (host read nothing): there is no buffer"),
        ({"do": "host write", "buffer": "unknown", "start": 4, "stop": 4}, "are none"),
        ({"do": "allocate", "buffer": "a"}, '"allocate" needs "bytes"'),
        ({"do": "allocate", "buffer": "a", "bytes": -1}, "bytes is -1"),
        ({"do": "allocate", "buffer": "a", "bytes": 1, "address": -1}, "address is -1"),
        ({"do": "allocate", "buffer": "a", "bytes": 1, "memory": ""}, 'memory is ""'),
        ({"do": "allocate", "buffer": "view", "bytes": 1}, '"view" is a view; name the buffer itself, "y"'),
        ({"do": "free", "buffer": "view"}, '"view" is a view; name the buffer itself, "y"'),
        ({"do": "free", "buffer": "y", "how": "soon"}, 'how is "soon"; there are host, stream, pool'),
        ({"do": "free", "buffer": "y", "how": "stream"}, '"how": "stream" needs "stream", which is missing'),
        ({"do": "free", "buffer": "y", "stream": "main"}, "it names a stream, which goes with"),
        ({"do": "free", "buffer": "y", "how": "pool", "stream": "main"}, "a stream, which goes with"),
        ({"do": "record stream", "buffer": "y"}, '"record stream" needs "stream"'),
        ({"do": "begin capture", "stream": "main"}, '"begin capture" needs "graph"'),
        ({"do": "launch graph", "graph": "g", "stream": "s"}, "step 1 (launch graph g): there is no stream"),
        ({"do": "hand over"}, '"hand over" needs "to"'),
        ({"do": "hand over", "from": "a", "to": "b"}, '"hand over" has no key "from"'),
    ],
)  # fmt: skip
def test_a_step_that_is_wrong(step, told):
    for form in (text, lines):
        content = form({"do": "synchronize"}, step, {"do": "synchronize"})
        if told is None:  # long, but right
            assert len(schedule_file.loads(content)) == 3
        else:
            said = refused(content)
            assert told in said
            assert said.startswith("the schedule: step 1")


def test_lone_surrogates_and_numbers_beyond_all_bounds_in_lines():
    assert "cannot be printed" in refused(lines({**LAUNCH, "name": "\ud800"}))
    assert "of at most 9223372036854775807 was expected" in refused(
        lines({**LAUNCH, "reads": [["y", 0, 2**63]]})
    )
    huge = lines({**LAUNCH, "reads": [["y", 0, "here"]]}).replace('"here"', "1" * 5000)
    assert "line 2: step 0: a whole number beyond 64 bits" in refused(huge)
    assert "a stop in reads is" in refused(
        lines({**LAUNCH, "reads": [["y", 0, 1e999]]}).replace("Infinity", "1e999")
    )


def test_a_view_of_what_is_allocated_later_needs_the_allocation_first():
    views = {"v": {"of": "later", "start": 4, "bytes": 4}}
    use = {**LAUNCH, "reads": ["v"]}
    allocate = {"do": "allocate", "buffer": "later", "bytes": 8}
    assert schedule_file.loads(text(allocate, use, buffers=views)).steps[1].accesses == (
        reads("later", 4, 8),
    )
    assert 'step 0 (post_scale): "v" is a view of "later", which is not there yet' in refused(
        text(use, allocate, buffers=views)
    )
    assert 'step 1 (post_scale): "v" reaches to byte 8 of "later", which has 7' in refused(
        text({**allocate, "bytes": 7}, use, buffers=views)
    )


# Cycles


def launch(name: str, after: list[str] | None = None, event: str = "") -> dict[str, object]:
    return {"do": "launch", "name": name, "stream": "main", "after": after or [], "event": event}


@pytest.mark.parametrize("form", [text, lines])
def test_a_cycle_of_events_is_refused_with_both_steps(form):
    told = refused(form({"do": "synchronize"}, launch("a", ["eb"], "ea"), launch("b", ["ea"], "eb")))
    assert told == (
        'the schedule: step 1 (a): this is a cycle: it waits after event "eb", which step 2 (b), behind it, '
        "only completes; let it wait for work in front of it, or for nothing"
    )
    told = refused(form(launch("a", ["ea"], "ea")))
    assert 'step 0 (a): this is a cycle: it waits after event "ea", which it itself completes' in told
    barrier = {"do": "barrier", "stream": "matrix", "after": [], "event": "eb"}
    assert "step 0 (a): this is a cycle" in refused(form(launch("a", ["eb"]), barrier))
    assert "step 0 (barrier eb): this is a cycle" in refused(form({**barrier, "after": ["eb"]}))
    destroyed = (
        launch("a", [], "e"),
        {"do": "destroy event", "event": "e"},
        launch("b", ["e"]),
        launch("c", [], "e"),
    )
    assert "step 2 (b): this is a cycle" in refused(form(*destroyed))


@pytest.mark.parametrize(
    "steps",
    [
        (launch("a", [], "e"), launch("b", ["e"], "e"), launch("c", ["e"])),
        ({"do": "wait", "event": "e", "stream": "main"}, launch("a", [], "e")),
        (launch("a", ["e"]), {"do": "record", "event": "e", "stream": "main"}, launch("b", ["e"], "e")),
        ({"do": "user event", "event": "u"}, launch("a", ["u"]), {"do": "set event", "event": "u"}),
    ],
)  # fmt: skip
def test_events_that_are_completed_before_or_only_recorded_are_no_cycle(steps):
    assert len(schedule_file.loads(text(*steps))) == len(steps)


def test_in_a_loop_an_event_of_the_iteration_before_is_no_cycle():
    steps = (launch("consume", ["produced"], "consumed"), launch("produce", ["consumed"], "produced"))
    assert "a cycle" in refused(text(*steps))
    assert len(schedule_file.loads(text(*steps, repeat=2))) == 2


@pytest.mark.parametrize("form", [text, lines])
@pytest.mark.parametrize("repeat", [1, 3])
def test_work_that_waits_after_an_event_that_nothing_completes_is_refused(form, repeat):
    told = refused(
        form({"do": "synchronize"}, launch("b", ["loadde"]), launch("a", [], "loaded"), repeat=repeat)
    )
    assert told == (
        'the schedule: step 1 (b): it waits after event "loadde", which no step completes, or which was '
        "destroyed before; did you mean 'loaded'?"
    )
    told = refused(form(launch("b", ["e"]), {"do": "barrier", "stream": "main", "after": ["f"]}))
    assert "step 0 (b)" in told
    assert "let a launch or a record complete it before" in told
    destroyed = (launch("a", [], "e"), {"do": "destroy event", "event": "e"}, launch("b", ["e"]))
    assert "step 2 (b): it waits after event" in refused(form(*destroyed, repeat=repeat))


def test_a_program_with_an_event_that_nothing_completes_is_not_saved(tmp_path):
    program_ = Program((Launch("k", "s", after=("e",)),), {"s": Stream()})
    with pytest.raises(LabError, match=r"step 0 \(k\): it waits after event"):
        schedule_file.save(program_, tmp_path / "a.json")
    assert os.listdir(tmp_path) == []


def test_more_steps_than_anybody_can_wait_for_are_refused(monkeypatch):
    assert "repeat is 1000000000, which makes more than 100000000 steps in all" in refused(
        text(LAUNCH, repeat=1_000_000_000)
    )
    monkeypatch.setattr(schedule_file, "MOST_STEPS", 6)
    assert len(schedule_file.loads(text(LAUNCH, LAUNCH, repeat=3))) == 2
    assert "repeat is 3" in refused(lines(LAUNCH, LAUNCH, LAUNCH, repeat=3))
    assert len(schedule_file.loads(text(*[LAUNCH] * 7))) == 7  # they are there, one by one


# Size


def big(path, form, count: int, note: int, last: str = "") -> None:
    """A file of ``count`` steps, each with a note of so many bytes, then ``last``."""
    step = json.dumps({**LAUNCH, "note": "n" * note})
    head, _, tail = form("here").partition('"here"')
    between = ",\n" if form is text else "\n"
    with path.open("w") as file:
        file.write(head + step)
        for _ in range(count - 1):
            file.write(between + step)
        file.write((between + last if last else "") + tail)


def read_all(path) -> int:
    """How many steps there are, none of them kept."""
    return sum(1 for _ in schedule_file.stream(path)[1])


@pytest.mark.parametrize("form", [text, lines])
@pytest.mark.parametrize(
    ("last", "told"),
    [
        ('{"do": "wait", "event": "e", "stream": "mian"}', 'step 50000 (wait e): there is no stream "mian"'),
        ('{"do": "wait" "event"}', "step 50000: not valid JSON"),
    ],
)
def test_a_fault_near_the_end_of_a_file_of_100_mb(tmp_path, form, last, told):
    path = tmp_path / "big"
    big(path, form, 50_000, 2000, last)
    assert path.stat().st_size > 100e6
    with pytest.raises(LabError, match=rf"big.*: {re.escape(told)}"):
        read_all(path)
    path.unlink()  # pytest would keep it for three runs


@pytest.mark.parametrize("form", [text, lines])
def test_memory_does_not_grow_with_the_file(tmp_path, form):
    def peak(count: int) -> int:
        path = tmp_path / "file"
        big(path, form, count, 200)
        tracemalloc.start()
        try:
            assert read_all(path) == count
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    small, large = peak(2_000), peak(20_000)
    assert (tmp_path / "file").stat().st_size > 5e6
    assert large < small + 100_000
    assert large < 4e6


def test_many_names_do_not_stay(monkeypatch):
    """Names and accesses that are kept to be used again are forgotten in time, and made again rightly."""
    monkeypatch.setattr(schedule_file, "_KEPT", 4)
    steps = [{**LAUNCH, "name": f"k{i}", "reads": [["y", i, i + 1], "w"]} for i in range(10)]
    loaded = schedule_file.loads(text(*steps))
    expected = [Launch(f"k{i}", "main", (reads("y", i, i + 1), reads("w", 0, 64))) for i in range(10)]
    assert list(loaded.steps) == expected


def test_text_that_was_damaged_at_random_loads_or_is_refused_in_one_line():
    chance = random.Random(3)
    pieces = (
        b'"',
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\\",
        b"\n",
        b"\xff",
        b"\0",
        b"NaN",
        b"-",
        b"1e5",
        b"null",
    )
    whole = text(LAUNCH, launch("a", [], "e"), {"do": "host read", "buffer": "view"}, unseen=["größer"])
    refusals = []
    for form in (whole.encode(), lines(LAUNCH, launch("a", ["e"], "f")).encode()):
        for number in range(1500):
            damaged = bytearray(form)
            for _ in range(chance.randint(1, 3)):
                place = chance.randrange(len(damaged))
                damaged[place : place + chance.choice((0, 1, 9))] = chance.choice((b"", *pieces))
            packed = bytearray(gzip.compress(damaged, mtime=0)) if number % 10 == 0 else damaged
            if number % 20 == 0:
                packed[chance.randrange(len(packed))] ^= 1 << chance.randrange(8)
            try:
                schedule_file.loads(bytes(packed))
            except LabError as error:
                refusals.append(str(error))
    assert 2000 < len(refusals) < 3000
    assert [told for told in refusals if "\n" in told] == []


# Whether it is a trace


@pytest.mark.parametrize(
    ("content", "trace"),
    [
        (b"SQLite format 3\x00 and so on", True),
        (b"[]", False),
        (b"[1, 2]", False),
        (b"[" * 100_000, False),
        (b'[{"do": "launch", "note": {"ph": 1}}, {"ph": "X"}]', False),
        (b'[{"name": "k", "args": {"a": [1]}, "ph": "X"}]', True),
        (b'[{"name": "k", ', True),
        (b' [{"ph": "X"}]', True),
        (b'{"traceEvents": []}', True),
        (b'\xef\xbb\xbf{"schemaVersion": 1, "deviceProperties": [{"id": 0}], "traceEvents": [', True),
        (b'{"schemaVersion": 1, "traceEvents": [{"a": "\\x"}]}', True),
        (text().encode(), False),
        (lines(LAUNCH).encode(), False),
        (b'{"note": {"traceEvents": []}, "format": "x"}', False),
        (b'{"name": "x", "traceEvents": []}', False),
        (b'{"zzz": 1}', False),
        (b"{broken", False),
        (b"hello", False),
    ],
)
def test_a_trace_is_known_by_its_content(tmp_path, content, trace):
    path = tmp_path / "file"
    for pack in (bytes, gzip.compress):
        path.write_bytes(pack(content))
        assert schedule_file.is_trace(path) is trace


def test_an_empty_file_is_neither(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match="there is nothing in it"):
        schedule_file.is_trace(tmp_path / "file")
