"""Reading trace files: against a plain slow reader, on broken files, and on real ones if they are at hand."""

import gzip
import json
import os
import random
import re
import subprocess
import sys
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import Timeline
from flashnorm_lab.timeline.reading import (
    MISSING,
    details,
    event_at,
    events_of,
    kind_of,
    load_json,
    nanoseconds,
    read_events,
)
from flashnorm_lab.timeline.reading.repair import repair
from flashnorm_lab.timeline.reading.times import columns_of
from flashnorm_lab.timeline.table import Lane

CASES = Path(__file__).resolve().parents[2] / "shared" / "cases"
real = pytest.mark.skipif(
    not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)
LOADERS = {"flashnorm_lab", "traceinsight", "json.loads"}
PIECES = (1, 40, 700, 1 << 20)


def write(tmp_path, content, name="trace.json"):
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# A plain slow reader


def plain_time(value):
    if value is None:
        return None
    try:
        return nanoseconds(value)
    except ValueError:
        return None


def plain_number(value):
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return -1
    return number if 0 <= number < 2**63 else -1


def plain_id(holder, key):
    value = holder.get(key, "missing!")
    if isinstance(value, Decimal):
        value = int(value) if value == int(value) else str(value)
    return json.dumps(value) if isinstance(value, bool | list | dict) else value


def plain_text(value):
    if value is None or isinstance(value, str):
        return value
    return str(value) if isinstance(value, Decimal) else json.dumps(value)


def plain_reader(content):
    """The events of a JSON value as plain dicts, read with Python's json and decimals."""
    listed = content if isinstance(content, list) else content["traceEvents"]
    base = 0 if isinstance(content, list) else int(content.get("baseTimeNanoseconds") or 0)
    for event in listed:
        event = event if isinstance(event, dict) else {}
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        row = event.get("ph") == "M"
        ts = plain_time(event.get("ts"))
        external = plain_number(args.get("External id"))
        label = args.get("name") if args.get("name") is not None else args.get("labels")
        yield {
            "phase": ord(event["ph"]) if event.get("ph") else 0,
            "name": plain_text(event.get("name")),
            "category": plain_text(event.get("cat")),
            "pid": plain_id(event, "pid"),
            "tid": plain_id(event, "tid"),
            "id": plain_id(event, "id"),
            "ts": None if ts is None else ts + base,
            "dur": plain_time(event.get("dur")),
            "bound": event.get("ph") == "f" and event.get("bp") == "e",
            "correlation": -1 if row else plain_number(args.get("correlation")),
            "stream": "missing!" if row else plain_id(args, "stream"),
            "device": "missing!" if row else plain_id(args, "device"),
            "context": "missing!" if row else plain_id(args, "context"),
            "external": -1 if row else external if external >= 0 else plain_number(args.get("external id")),
            "label": plain_text(label) if row else None,
            "sort": plain_number(args.get("sort_index")) if row else -1,
        }


def as_plain(events):
    """What `Events` holds, in the words of the plain reader."""
    texts = {"name": events.names, "label": events.names, "category": events.categories}
    for i in range(events.count):
        entry = {"phase": int(events.phase[i]), "bound": bool(events.bound[i])}
        for key, known in texts.items():
            code = getattr(events, key)[i]
            entry[key] = known[code] if code >= 0 else None
        for key in ("pid", "tid", "id", "stream", "device", "context"):
            code = getattr(events, key)[i]
            entry[key] = events.ids[code] if code >= 0 else "missing!"
        for key in ("ts", "dur"):
            value = int(getattr(events, key)[i])
            entry[key] = None if value == MISSING else value
        for key in ("correlation", "external", "sort"):
            entry[key] = int(getattr(events, key)[i])
        yield entry


class Writer:
    """Random trace text: every way to write the same that JSON allows."""

    TEXTS = (
        "k",
        "a },{ b",
        '"},{"',
        "\\",
        "ends in \\\\",
        "é漢😀",
        "tab\tline\n",
        "]}",
        "[{",
        "traceEvents",
        "",
    )

    def __init__(self, seed, loose=False):
        self.random = random.Random(seed)
        self.loose = loose

    def blank(self):
        return self.random.choice(["", "", "", " ", "\n", "\t", "\r\n  "])

    def text(self, value=None):
        value = self.random.choice(self.TEXTS) if value is None else value
        return json.dumps(value, ensure_ascii=self.random.random() < 0.5)

    def value(self, depth=0):
        kind = self.random.randrange(9 if depth < 3 else 6)
        if kind < 2:
            return self.text()
        if kind < 6:
            return self.random.choice(
                ["0", "-1", "12.50", "1e3", "true", "null", "18446744073709551615", "{}", "[]"]
            )
        if kind < 8:
            return self.list([self.value(depth + 1) for _ in range(self.random.randrange(4))])
        return self.object([(f"k{i}", self.value(depth + 1)) for i in range(self.random.randrange(4))])

    def list(self, parts):
        return "[" + ",".join(self.blank() + part + self.blank() for part in parts) + "]"

    def object(self, parts):
        return "{" + ",".join(
            f"{self.blank()}{json.dumps(k)}{self.blank()}:{self.blank()}{v}{self.blank()}" for k, v in parts
        ) + "}"  # fmt: skip

    def time(self):
        whole = self.random.choice(["0", "7", "-3", "1712195495505543", "3605057436108"])
        part = self.random.choice(["", ".5", ".140", ".000", ".0005", ".0015", ".123456", ".99999"])
        text = whole + part + self.random.choice(["", "", "", "", "e0", "E-2", "e+2"])
        odd = ["null", '"soon"', '"1,5"', "[]", "true", "99999999999999999999"] if self.loose else ["null"]
        return self.random.choice([text] * 9 + [f'"{text}"', self.random.choice(odd)])

    def id(self):
        odd = ["1.5", "7.0", "true", "[1]"] if self.loose else []
        return self.random.choice(
            ["0", "7", "-1", '"7"', '"main thread"', "null", "123456789012345678901", *odd]
        )

    def args(self):
        keys = ["correlation", "stream", "device", "context", "External id", "external id", "sort_index"]
        parts = [(key, self.id()) for key in keys if self.random.random() < 0.5]
        parts += [(key, self.text()) for key in ("name", "labels") if self.random.random() < 0.5]
        parts += [
            (key, self.value()) for key in ("grid", "stack", "Input Dims") if self.random.random() < 0.5
        ]
        self.random.shuffle(parts)
        return self.object(parts)

    def event(self):
        if self.loose and self.random.random() < 0.05:
            return self.random.choice(["null", "3", '"X"', "[]"])
        parts = [("ph", self.text(self.random.choice("XXXXBEiMMCPstfbne")))]
        make = {
            "name": self.text,
            "cat": lambda: self.text(self.random.choice(["kernel", "cuda_sync", "cpu_op"])),
        }
        make |= {"pid": self.id, "tid": self.id, "id": self.id, "ts": self.time, "dur": self.time}
        make |= {"args": self.args, "bp": lambda: '"e"', "tts": self.value, "extra": self.value}
        if self.loose:
            make["name"] = lambda: self.random.choice([self.text(), "3", "null", "[1,2]"])
            make["args"] = lambda: self.random.choice([self.args(), self.args(), "null", "[]", '"text"'])
        parts += [(key, made()) for key, made in make.items() if self.random.random() < 0.7]
        self.random.shuffle(parts)
        return self.object(parts)

    def trace(self, count):
        events = self.list([self.event() for _ in range(count)])
        if self.random.random() < 0.3:
            return self.blank() + events + self.blank()
        parts = [
            (key, self.value()) for key in ("schemaVersion", "metadata", "x") if self.random.random() < 0.6
        ]
        if self.random.random() < 0.5:
            parts.append(("baseTimeNanoseconds", "1727743122000000000"))
        nested = self.object([("traceEvents", "[" + self.object([("ph", '"X"')]) + "]")])
        parts += [("nested", nested), ("told", self.text('{"traceEvents": [')), ("traceEvents", events)]
        self.random.shuffle(parts)
        return self.blank() + self.object(parts) + self.blank()


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_any_way_to_write_a_trace_gives_what_a_plain_reader_gives(tmp_path, seed, loose):
    text = Writer(seed, loose).trace(count=30)
    expected = list(plain_reader(json.loads(text, parse_float=Decimal)))
    path = write(tmp_path, text)
    for piece in PIECES:
        events = read_events(path, piece=piece)
        assert list(as_plain(events)) == expected
        assert events.count == len(expected) == len(events)


@pytest.mark.parametrize("seed", range(5))
def test_top_level_values_and_kept_args(tmp_path, seed):
    text = Writer(100 + seed).trace(count=40)
    content = json.loads(text)
    events = read_events(write(tmp_path, text), piece=1)
    if isinstance(content, list):
        assert events.top == {}
        listed = content
    else:
        listed = content.pop("traceEvents")
        assert events.top == content
    kept = 0
    for i, event in enumerate(listed):
        if event["ph"] in "CP" or event.get("cat") == "cuda_sync":
            assert events.args(i) == (event.get("args") or {})
            kept += bool(event.get("args"))
        else:
            assert events.args(i) == {}
    assert kept > 3


def test_json_that_was_read_already_gives_the_same(tmp_path):
    text = Writer(7).trace(count=50)
    from_file = read_events(write(tmp_path, text))
    for content, exactly in ((json.loads(text, parse_float=Decimal), 2**63), (json.loads(text), 2**31)):
        again = events_of(content, "here")
        assert again.where == "here"
        assert again.names == from_file.names
        exact = from_file.ts < exactly
        assert np.array_equal(again.ts[exact], from_file.ts[exact])
        assert np.array_equal(again.correlation, from_file.correlation)
    with pytest.raises(LabError, match="holds a set"):
        events_of({"traceEvents": [{"args": {1, 2}}]})
    endless = []
    endless.append(endless)
    with pytest.raises(LabError, match=r"^here: this is no JSON value \(Circular"):
        events_of(endless, "here")
    assert events_of([{"ts": Decimal("1.5")}]).notes == []


@real
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(path.name, marks=pytest.mark.slow if path.stat().st_size > 800_000 else ())
        for path in sorted((CASES / "traces").glob("*"))
    ],
)
def test_real_files_give_what_a_plain_reader_gives(name):
    path = CASES / "traces" / name
    data = path.read_bytes()
    content = json.loads(gzip.decompress(data) if name.endswith(".gz") else data, parse_float=Decimal)
    events = read_events(path)
    assert not events.broken
    assert all(a == b for a, b in zip(as_plain(events), plain_reader(content), strict=True))
    place = events.count // 2
    listed = content if isinstance(content, list) else content["traceEvents"]
    assert event_at(path, place)["name"] == listed[place]["name"]


# Times


def test_columns_of_times_equal_the_single_ones():
    rng = random.Random(3)
    texts = [
        "",
        "null",
        '"1,5"',
        '"12"',
        "-0.0005",
        "1e3",
        '" 5 "',
        "9223372036854775.807",
        "9223372036854775.808",
    ]
    for _ in range(3000):
        text = "".join(rng.choices("0123456789", k=rng.randrange(1, 18))).lstrip("0") or "0"
        if rng.random() < 0.7:
            text += "." + "".join(rng.choices("0123456789", k=rng.randrange(1, 9)))
        text = rng.choice(["", "", "-"]) + text
        texts.append(f'"{text}"' if rng.random() < 0.2 else text)
    for chosen in (texts, texts[:2] + texts[3:]):  # with a comma in a text, and without
        values, quoted, wrong = columns_of([text.encode() for text in chosen])
        assert quoted == sum(text.startswith('"') for text in chosen)
        expected = [plain_time(json.loads(t, parse_float=Decimal) if t else None) for t in chosen]
        assert values.tolist() == [MISSING if time is None else time for time in expected]
        bad = [i for i, t in enumerate(chosen) if t not in ("", "null") and expected[i] is None]
        assert [i for i, _ in wrong] == bad
    assert values.dtype == np.int64


def test_nanoseconds_of_today_survive():
    values, _, wrong = columns_of(
        [b"1712195495505543.140", b"1712195495505543.141", b'"1712195495505543.142"']
    )
    assert values.tolist() == [1712195495505543140, 1712195495505543141, 1712195495505543142]
    assert not wrong


def test_base_time_is_added_and_said_where_it_does_not_fit(tmp_path):
    def read(base, ts="1.001"):
        text = f'{{"traceEvents": [{{"ph": "X", "ts": {ts}}}, {{"ph": "M"}}], "baseTimeNanoseconds": {base}}}'
        return read_events(write(tmp_path, text))

    for base in ("1727743122000000000", '"1727743122000000000"', "1727743122000000000.0"):
        assert read(base).ts.tolist() == [1727743122000001001, MISSING]
    assert read("null").ts.tolist() == [1001, MISSING]
    events = read("9223372036854775000", "9000000000000")
    assert events.ts.tolist() == [MISSING, MISSING]
    assert events.broken[0][0] == 0
    assert "is no time" in events.broken[0][1]
    for bad, told in (('"now"', "'now'"), ("1.5", "1.5"), ("[1]", r"\[1\]"), ("1e30", "1e30")):
        with pytest.raises(LabError, match=f"baseTimeNanoseconds is {told}; a whole number"):
            read(bad)


# What is put right, with a note


GOOD = '{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "a", "ts": 1.001, "dur": 2}, {"ph": "i"}]}'


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"\xef\xbb\xbf" + GOOD.encode(), "byte-order mark"),
        (GOOD.encode("utf-16"), "the text is UTF-16"),
        (GOOD.encode("utf-16-le"), "the text is UTF-16-LE"),
        (GOOD.encode("utf-16-be"), "the text is UTF-16-BE"),
        (GOOD.encode("utf-32"), "the text is UTF-32"),
        (GOOD.encode("utf-32-be"), "the text is UTF-32-BE"),
        (GOOD.replace("}]}", "},],}").encode(), "2 commas behind the last"),
        (GOOD.replace(": 1,", ": [1,],").replace("2}", "2,}").encode(), "2 commas behind the last"),
        (GOOD.replace("2}", '2, "args": {"a": NaN, "b": [-Infinity, Infinity]}}').encode(), "3 values NaN"),
        (GOOD.replace('{"ph": "i"', '{"b": -nan, "c":inf, "ph": "i"').encode(), "2 values NaN"),
        (GOOD.replace("2}", '"2"}').encode(), "1 times are given as text"),
        (gzip.compress(GOOD[:50].encode()) + gzip.compress(GOOD[50:].encode()), "2 members"),
        (gzip.compress(GOOD.encode()) + b"rubbish", "7 bytes behind the gzip stream"),
        (GOOD[GOOD.index("[") : -2].encode(), r"not closed by \]"),
        (GOOD[GOOD.index("[") : -2].encode() + b",\n", r"not closed by \]"),
        (
            GOOD.replace('"traceEvents"', '"traceEvents": [], "traceEvents"').encode(),
            "2 lists of traceEvents",
        ),
    ],
)
def test_what_is_beyond_doubt_is_read_with_a_note(tmp_path, content, note):
    for piece in (1, 1 << 20):
        events = read_events(write(tmp_path, content), piece=piece)
        assert events.ts.tolist() == [1001, MISSING]
        assert events.dur.tolist() == [2000, MISSING]
        assert len(events.notes) == 1
        assert re.search(note, events.notes[0])
        assert not events.broken


def test_zeros_behind_a_gzip_stream_and_what_a_sound_file_says(tmp_path):
    assert read_events(write(tmp_path, gzip.compress(GOOD.encode()) + bytes(512))).notes == []
    assert read_events(write(tmp_path, GOOD)).notes == []


def test_control_characters_and_bytes_in_names(tmp_path):
    name = "line\nbreak\ttab\x01 \\\\ NaN, ,]"
    raw = GOOD.replace('"a"', f'"{name}"').encode()
    events = read_events(write(tmp_path, raw))
    assert events.names == (name.replace("\\\\", "\\"),)
    assert events.notes == ["3 control characters stood unescaped within texts; they were kept"]

    events = read_events(
        write(tmp_path, GOOD.replace('"a"', '"caf\xe9 \ufffd"').encode("latin-1", "replace"))
    )
    assert events.names == ("caf\ufffd ?",)
    assert events.notes == ["1 places that are no UTF-8 text were replaced by \ufffd"]
    assert read_events(write(tmp_path, GOOD.replace('"a"', '"\ufffd é"'))).notes == []

    halves = GOOD.replace('"a"', r'"\ud83d\ude00 \ud800 \udc00 \\ud800"')
    events = read_events(write(tmp_path, halves))
    assert events.names == ("😀 \ufffd \ufffd \\ud800",)
    assert events.notes == ["2 halves of surrogate pairs were replaced by \ufffd"]
    assert read_events(write(tmp_path, GOOD.replace('"a"', r'"\ud83d\ude00"'))).names == ("😀",)


def test_a_key_that_stands_twice_counts_as_json_has_it(tmp_path):
    events = read_events(write(tmp_path, GOOD.replace('"name"', '"name": "first", "name"')))
    assert events.names == ("a",)


def test_keys_written_with_escapes(tmp_path):
    events = read_events(write(tmp_path, GOOD.replace("traceEvents", r"trace\u0045vents")))
    assert events.ts.tolist() == [1001, MISSING]
    assert events.top == {"schemaVersion": 1}


def test_what_is_no_event_or_no_args_is_told_with_its_place(tmp_path):
    text = '[{"ph": "X", "args": [1]}, null, {"ph": "X", "ts": "soon", "args": null}, "X"]'
    events = read_events(write(tmp_path, text))
    assert events.broken == [
        (0, "args is [1]; an object was expected"),
        (1, "null is not an event; an object was expected"),
        (2, "ts cannot be read: 'soon' is not a number"),
        (3, '"X" is not an event; an object was expected'),
    ]
    assert events.phase.tolist() == [ord("X"), 0, ord("X"), 0]


def test_numbers_too_large_for_anything(tmp_path):
    huge = "1" * 5000
    text = (
        f'{{"a": {huge}, "traceEvents": [{{"ph": "C", "pid": {huge}, "tid": 1e999, "ts": {huge}, "id2": '
        f'{{"local": {huge}}}, "args": {{"correlation": {huge}, "b": [{huge}, 1]}}}}, {{"ph": "M", "args": '
        '{"sort_index": 1e999}}]}'
    )
    events = read_events(write(tmp_path, text))
    assert events.top == {"a": huge}
    assert [events.ids[i] for i in (events.pid[0], events.tid[0], events.id[0])] == [
        huge,
        "1e999",
        f"local {huge}",
    ]
    assert events.args(0) == {"correlation": huge, "b": [huge, 1]}
    assert events.correlation.tolist() == events.sort.tolist() == [-1, -1]
    ((place, told),) = events.broken
    assert place == 0
    assert "is not a time" in told
    assert event_at(tmp_path / "trace.json", 0)["args"]["b"] == [huge, 1]


def test_scoped_ids(tmp_path):
    text = '[{"ph": "b", "id2": {"local": "0x1"}}, {"ph": "b", "id2": {"global": 3}}, {"ph": "b", "id2": 3}]'
    events = read_events(write(tmp_path, text))
    assert [events.ids[i] if i >= 0 else None for i in events.id] == ["local 0x1", "global 3", None]


# What is refused, in one line


def refusal(path, **how):
    with pytest.raises(LabError) as caught:
        read_events(path, **how)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", ": the file is empty"),
        (" \n ", ": the file is empty"),
        (gzip.compress(b""), ": the file is empty"),
        (gzip.compress(GOOD.encode())[:-40], ": the gzip stream is damaged or cut off (it ends too early"),
        (gzip.compress(GOOD.encode())[:-8] + bytes(8), "damaged or cut off (incorrect data check"),
        (gzip.compress(gzip.compress(GOOD.encode())), "gzip twice"),
        (b"\x1f\x8bnot gzip at all", "the gzip stream is damaged"),
        (b"PK\x03\x04 and so on", "this is a ZIP archive; unpack it first"),
        (b"BZh91AY", "bzip2"),
        (b"\x28\xb5\x2f\xfd", "Zstandard"),
        (b"\xfd7zXZ\0\0", "xz"),
        (b"SQLite format 3\0 and so on", "this is an SQLite database"),
        (gzip.compress(b"SQLite format 3\0 and so on"), "this is an SQLite database"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (bytes(range(256)) * 9, "no list of traceEvents in it (it begins with"),
        ("<!DOCTYPE html>", "no list of traceEvents in it (it begins with '<!DOCTYPE html>')"),
        ("3", "no list of traceEvents in it (it begins with '3')"),
        ("{}", "no list of traceEvents in it (its keys: none)"),
        ('{"a": 1, "b": {"traceEvents": []}}', "no list of traceEvents in it (its keys: 'a', 'b')"),
        ('{"traceEvents": {"ph": 1}}', 'no list of traceEvents in it (traceEvents is {"ph": 1})'),
        ('{"traceEvents": null}', "no list of traceEvents in it (traceEvents is null)"),
        (GOOD + "more", ", line 1, column 101: not valid JSON (trailing characters"),
        (GOOD[GOOD.index("[") : -1] + "\n,", ", line 2, column 1: not valid JSON (trailing characters"),
        ('[{"args": ' + "[" * 99_999, "nested too deeply"),
        ('{"a": ' + "[" * 99_999, "nested too deeply"),
        ("[" * 99_999, "nested too deeply"),
        ("[" * 99, "ends too early"),
        ('{"traceEvents": [{ph: 1}]}', ", line 1, column 19 (event 0): not valid JSON (object keys must be"),
        ('{"traceEvents": [\n{"ph": 1},\n{"ph" 1}]}', ", line 3, column 7 (event 1): not valid JSON"),
        ('{"traceEvents": [{"ph": 01}]}', "not valid JSON (invalid number)"),
        ('{"traceEvents": [{"ph": "X", "na', ", line 1, column 33 (event 0): the JSON text ends too early"),
        ('{"traceEvents": [{"ph": "X"}], "a": ', "ends too early; the file was cut off while it was written"),
        ('{"a": [1, 2', ", line 1, column 12: the JSON text ends too early"),
    ],
)  # fmt: skip
def test_broken_files_in_one_line(tmp_path, content, told):
    for piece in (1, 1 << 20):
        assert told in refusal(write(tmp_path, content), piece=piece)


def test_files_that_cannot_be_read_in_one_line(tmp_path):
    assert "no such file" in refusal(tmp_path / "nowhere.json")
    assert "cannot be read (it is a folder)" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "cannot be read (it is no regular file)" in refusal(tmp_path / "pipe")
    path = tmp_path / "real.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("trace.json", GOOD)
    assert "ZIP archive" in refusal(path)


def test_a_file_without_permission_in_one_line(tmp_path, monkeypatch):
    path = write(tmp_path, GOOD)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert "cannot be read (you lack the permission)" in refusal(path)


def test_quotation_marks_within_a_name(tmp_path):
    text = GOOD.replace('"i"', '"i", "name": "lib = Library("_t", "IMPL")\n(1): <module>"')
    told = refusal(write(tmp_path, text))
    assert told.startswith(f", line 1, column {text.index('_t') + 1} (event 1): not valid JSON")
    assert "a quotation mark within a text may lack its backslash" in told
    assert 'Library("_t"' in told
    assert "its whole events, 1, can be read alone (partial=True, in a terminal --partial)" in told


def test_places_are_those_of_the_file_where_something_was_put_right_before(tmp_path):
    lines = [
        "[",
        '{"ph": "X", "args": {"a": NaN, "b": [1,]}},',
        '{"name": "tab\there", "ts": -Infinity},',
        "{oops}]",
    ]
    told = refusal(write(tmp_path, "\n".join(lines)))
    assert told.startswith(", line 4, column 2 (event 2): ")
    lines[2] = '{"name": "tab\there\nand", "ts": NaN, x},'
    told = refusal(write(tmp_path, "\n".join(lines)))
    assert told.startswith(", line 4, column 18 (event 1): ")


# Part of a file


@pytest.mark.parametrize("seed", range(4))
def test_a_file_cut_off_anywhere_gives_its_whole_events(tmp_path, seed):
    writer = Writer(1000 + seed)
    parts = [writer.event() for _ in range(4)]
    events = ",".join(parts)
    head = '{"schemaVersion": 1, "traceEvents": [' if seed % 2 else "["
    tail = '], "traceName": "x"}' if seed % 2 else "]"
    whole = (head + events + tail).encode()
    expected = list(plain_reader(json.loads(f"[{events}]", parse_float=Decimal)))
    ends = [len((head + ",".join(parts[: i + 1])).encode()) for i in range(len(parts))]
    for cut in range(len(head) + 1 + seed % 3, len(whole), 3):
        path = write(tmp_path, whole[:cut])
        count = sum(end <= cut for end in ends)
        if count == 0:
            if seed % 2 == 0 and not whole[len(head) : cut].strip():
                assert read_events(path).count == 0
            else:
                assert "no whole event" in refusal(path, partial=True, piece=1)
            continue
        for piece in (1, 1 << 20)[cut % 2 :]:
            found = read_events(path, partial=True, piece=piece)
            assert list(as_plain(found)) == expected[:count]
            assert any("not closed by ]" in n or f"only the {count} whole events" in n for n in found.notes)
    found = read_events(write(tmp_path, whole), partial=True)
    assert list(as_plain(found)) == expected
    assert not any("only" in note or "not closed" in note for note in found.notes)


@pytest.mark.parametrize("seed", range(4))
def test_damage_of_any_kind_is_told_in_one_line_or_read(tmp_path, seed):
    rng = random.Random(seed)
    scraps = [
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"NaN",
        b"\n",
        b"\x00",
        b"\xff",
        b"1" * 5000,
        b"\\ud800",
    ]
    read = refused = 0
    for _ in range(150):
        data = bytearray(Writer(rng.randrange(1000), loose=True).trace(count=5).encode())
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.choice([0, 0, 1, 5])] = rng.choice(scraps)
        path = write(tmp_path, bytes(data))
        for partial in (False, True):
            told = ""
            try:
                events = read_events(path, partial=partial, piece=rng.choice(PIECES))
            except LabError as error:
                told = str(error)
            if told:
                assert told.startswith(str(path))
                assert "\n" not in told
                refused += 1
            else:
                assert events.count == len(list(as_plain(events)))
                assert all(isinstance(events.args(i), dict) for i in range(events.count))
                read += 1
    assert min(read, refused) > 50


def test_partial_stops_at_a_break_and_says_so(tmp_path):
    rest = "".join(f', {{"ph": "X", "ts": {i}}}' for i in range(100))
    path = write(tmp_path, GOOD.replace('{"ph": "i"}', '{"ph": "i"}, {"ph": X}' + rest))
    for piece in PIECES:
        events = read_events(path, partial=True, piece=piece)
        assert events.ts.tolist() == [1001, MISSING]
        assert events.top == {"schemaVersion": 1}
        (note,) = events.notes
        assert note.startswith("only the 2 whole events before line 1, column ")
        assert "nothing behind it" in note


def test_partial_of_a_gzip_stream(tmp_path):
    text = "[" + ",".join(f'{{"ph": "X", "ts": {i * 7919 % 104729}}}' for i in range(20_000)) + "]"
    data = gzip.compress(text.encode())
    assert "partial" in refusal(write(tmp_path, data[:-1000]))
    events = read_events(write(tmp_path, data[:-1000]), partial=True)
    assert 10_000 < events.count < 20_000
    assert events.ts.tolist() == [i * 7919 % 104729 * 1000 for i in range(events.count)]
    events = read_events(write(tmp_path, data[:-8]), partial=True)  # all of the text, but no check sum
    assert events.count == 20_000
    assert events.notes == [
        "the gzip stream is damaged or cut off (it ends too early); the JSON text in it is whole"
    ]


@real
def test_real_broken_files():
    def read(name, **how):
        return read_events(CASES / "malformed" / name, **how)

    for name in ("bom_utf8.json", "gz_with_json_name.json", "kernels_no_dur.json", "negative_dur.json",
                 "no_correlation.json", "trailing_comma.json", "ts_as_strings.json"):  # fmt: skip
        assert read(name).count == 149
    assert (read("kernels_no_dur.json").dur == MISSING).sum() > (read("bom_utf8.json").dur == MISSING).sum()
    assert np.array_equal(read("ts_as_strings.json").ts, read("bom_utf8.json").ts)
    assert read("negative_dur.json").dur[read("negative_dur.json").dur != MISSING].min() < 0
    assert read("empty_events.json").count == 0
    assert read("trunc_mid_event.json", partial=True).count == 85
    assert read("trunc_gzip_stream.json.gz", partial=True).count == 86
    for name, told in {
        "empty.json": "the file is empty",
        "git_lfs_pointer.sqlite": "git lfs pull",
        "pt113001_raw_newline_and_quotes_in_name.json": "line 1, column 92 (event 0): not valid JSON",
        "pt33961_unquoted_key.json": "line 1, column 108 (event 0): not valid JSON",
        "trunc_mid_event.json": "line 551, column 36 (event 85): the JSON text ends too early",
        "trunc_gzip_stream.json.gz": "the gzip stream is damaged or cut off",
    }.items():
        assert told in refusal(CASES / "malformed" / name)


# Repair


def test_repair_leaves_sound_text_alone():
    for seed in range(20):
        text = Writer(seed).trace(count=10).encode()
        result, edits, notes = repair(text, 0)
        assert result == text
        assert notes == []
        assert edits.places == []


def test_an_unended_text_does_not_keep_repair_busy():
    text = b'["' + b"x" * 1_000_000 + b"\\"
    assert repair(text, 0)[0] == text
    assert repair(b'"' * 100_001, 0)[0] == b'"' * 100_001


# Other ways in


def test_what_kind_of_file_it_is(tmp_path):
    own = '{"displayTimeUnit":"ns",\n"otherData":{"format": "flashnorm_lab timeline", "version": 1}'
    assert kind_of(write(tmp_path, own)) == "own"
    assert kind_of(write(tmp_path, gzip.compress(own.encode()))) == "own"
    assert kind_of(write(tmp_path, GOOD)) == "chrome"
    later = '{"traceEvents": [{"args": {"format": "flashnorm_lab timeline"}}]}'
    assert kind_of(write(tmp_path, later)) == "chrome"
    assert kind_of(write(tmp_path, "")) == "chrome"
    assert kind_of(write(tmp_path, b"SQLite format 3\0")) == "nsight"
    with pytest.raises(LabError, match="nsys export --type sqlite"):
        kind_of(write(tmp_path, b"anything", "report.nsys-rep"))
    with pytest.raises(LabError, match="no such file"):
        kind_of(tmp_path / "nowhere.nsys-rep")


def test_whole_values(tmp_path):
    assert load_json(write(tmp_path, '\ufeff{"a": [1.50, 2]}'.encode("utf-16-le"))) == {
        "a": [Decimal("1.50"), 2]
    }
    with pytest.raises(LabError, match=r"line 1, column 7: .*ends too early"):
        load_json(write(tmp_path, '{"a": '))
    with pytest.raises(LabError, match=r"line 1, column 2: not valid JSON"):
        load_json(write(tmp_path, "{a}"))
    with pytest.raises(LabError, match="nested too deeply"):
        load_json(write(tmp_path, "[" * 99_999))


def spans_of(events, place):
    """A timeline of one span that stands for the event at ``place``."""
    return Timeline(
        names=("a",), lanes=(Lane("host", "host"),), name=np.array([0]), lane=np.array([0]),
        start_ns=np.array([0]), duration_ns=np.array([1]), launch=np.array([-1]), category=np.array([0]),
        step=np.array([-1]), outcome=np.array([0]), edge_source=np.array([], dtype=np.int64),
        edge_target=np.array([], dtype=np.int64), edge_name=np.array([], dtype=np.int64),
        origin=np.array([place]), meta={"file": events.file},
    )  # fmt: skip


def test_details_are_read_again_from_the_file(tmp_path):
    args = {"grid": [486, 1, 1], "est. achieved occupancy %": 75.5, "name": "},{"}
    listed = [{"ph": "M"}, {"ph": "X", "name": "a", "ts": Decimal("1712195495505543.140"), "args": args}, 3]
    text = json.dumps({"traceEvents": listed}, default=str).replace(
        '"1712195495505543.140"', "1712195495505543.140"
    )
    path = write(tmp_path, gzip.compress(text.encode()))
    events = read_events(path)
    told = details(spans_of(events, 1), 0)
    assert told == listed[1]
    assert str(told["ts"]) == "1712195495505543.140"
    for span in (1, -1):
        with pytest.raises(LabError, match=f"there is no span {span} in this timeline; there are 1"):
            details(spans_of(events, 1), span)
    with pytest.raises(LabError, match=r"span 0 \(a\) stands for no event"):
        details(spans_of(events, -1), 0)
    with pytest.raises(LabError, match="there is no event 2 in it"):
        details(spans_of(events, 2), 0)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(LabError, match="the trace was changed since it was read"):
        details(spans_of(events, 1), 0)
    path.unlink()
    with pytest.raises(LabError, match="the trace is no longer there"):
        details(spans_of(events, 1), 0)


def test_the_comparison_of_loaders_runs(root):
    pytest.importorskip("hta")
    command = [sys.executable, "tools/compare_loaders.py", "--events", "5000", "--repeat", "1"]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    rows = {line[0]: line for line in lines if line[0] in LOADERS}
    right = {name: (row[-3], row[-1]) for name, row in rows.items()}
    assert right["flashnorm_lab"][0] == right["flashnorm_lab"][1]
    assert right["json.loads"] == ("8,000", "8,000")
    assert set(rows) == LOADERS
    assert "traceinsight 0." in run.stdout
