"""`flashnorm-lab timeline`: report, diff and convert, every option, and what is refused, in one line."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest
from test_timeline_report import CASES, doc_tool, real

from flashnorm_lab import cli, timeline
from flashnorm_lab.timeline import metrics, writing


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """The example of docs/timelines.md as decode.json, in the current folder."""
    monkeypatch.chdir(tmp_path)
    content = doc_tool().sample()
    (tmp_path / "decode.json").write_text(json.dumps(content), "utf-8")
    return content


def run(capsys, *argv: str) -> str:
    """What a verb that ran has printed."""
    status = cli.main(["timeline", *argv])
    out, err = capsys.readouterr()
    assert (status, err) == (0, "")
    return out


def as_json(capsys, *argv: str) -> dict:
    out = run(capsys, *argv, "--json")
    assert out.count("\n") == 1
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def refused(capsys, *argv: str) -> str:
    """The one line on standard error of a verb that did not run."""
    try:
        status = cli.main(["timeline", *argv])
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert err.rstrip("\n").isprintable()
    return err


# report


def test_a_report_is_what_the_library_says(capsys, trace):
    assert run(capsys, "report", "decode.json") == f"{metrics.report(timeline.open('decode.json'))}\n"


def test_a_report_as_json_has_the_files_and_everything(capsys, trace):
    told = as_json(capsys, "report", "decode.json")
    assert told.pop("files") == ["decode.json"]
    assert told == json.loads(json.dumps(metrics.report(timeline.open("decode.json")).as_dict()))
    assert told["checks"]["ok"] is True
    assert [question["question"] for question in told["questions"]] == [
        "Is it launch overhead?",
        "Do my streams overlap?",
        "What share is RMSNorm?",
    ]
    assert told["answers"]["busy"]["window_ns"] == sum(
        told["answers"]["busy"]["devices"][0][key] for key in ("busy_ns", "idle_ns")
    )


def test_faults_come_first_and_are_no_failure(capsys, trace):
    for event in trace["traceEvents"]:
        if event["cat"] == "kernel":
            del event["dur"]
    with open("broken.json", "w") as file:
        json.dump(trace, file)
    text = run(capsys, "report", "broken.json")
    assert text.index("broken") < text.index("operations of 0 ns: 25") < text.index("IN SHORT")
    checks = as_json(capsys, "report", "broken.json")["checks"]
    assert checks["ok"] is False
    assert "broken" in {found["severity"] for found in checks["findings"]}


def test_a_window_is_counted_from_the_first_span(capsys, trace):
    whole = as_json(capsys, "report", "decode.json")
    part = as_json(capsys, "report", "decode.json", "--window", "300us", "0.4ms")
    first = whole["facts"]["first_ns"]
    assert part["window"] == [first + 300_000, first + 400_000]
    assert part["answers"]["busy"]["window_ns"] == 100_000
    assert 0 < part["answers"]["kernels"]["count"] < whole["answers"]["kernels"]["count"]
    assert "300.000 µs to 400.000 µs from the first span" in run(
        capsys, "report", "decode.json", "--window", "300us", "0.4ms"
    )


def test_overlap_of_lanes_and_of_groups(capsys, trace):
    told = as_json(capsys, "report", "decode.json", "--overlap", "stream 7", "stream 13")["answers"]
    assert told["overlap"]["pairs"] == [
        pair | {"device": told["overlap"]["pairs"][0]["device"]} for pair in told["overlaps"]["pairs"]
    ]
    told = as_json(capsys, "report", "decode.json", "--overlap", "gemm", "norm")["answers"]["overlap"]
    assert (told["pairs"][0]["first"], told["pairs"][0]["both_ns"]) == ("gemm", 0)
    text = run(capsys, "report", "decode.json", "--overlap", "gemm", "copy")
    assert text.index("IN SHORT") < text.index("gemm and copy") < text.index("BUSY TIME")


def test_steps_one_by_one(capsys, trace):
    assert "kernels_by_step" not in as_json(capsys, "report", "decode.json")["answers"]
    told = as_json(capsys, "report", "decode.json", "--steps")["answers"]
    assert [use["label"] for use in told["kernels_by_step"]["uses"]] == ["0", "1", "2", "3", "4"]
    assert [use["warm_up"] for use in told["steps"]["uses"]] == [True, False, False, False, False]
    assert "warm-up" in run(capsys, "report", "decode.json", "--steps")


def test_all_rows(capsys, trace):
    assert "more" in run(capsys, "report", "decode.json")
    assert "… and" not in run(capsys, "report", "decode.json", "--all")


def test_groups_of_ones_own(capsys, trace, tmp_path):
    (tmp_path / "mine.toml").write_text('[[rule]]\ngroup = "rms_norm"\npattern = "s16816gemm"\n', "utf-8")
    told = as_json(capsys, "report", "decode.json", "--groups", "mine.toml")["answers"]
    assert "gemm" not in {use["label"] for use in told["groups"]["uses"]}
    assert told["norm_share"]["launches"] == 20


def test_order_of_two_kernels(capsys, trace):
    pair = ("ampere_fp16 on stream 13", "vectorized_elementwise_kernel")
    text = run(capsys, "report", "decode.json", "--ordered", *pair)
    assert text.index("IN SHORT") < text.index("ORDER\nyes: ") < text.index("stream 7 waits for it")
    assert text.index("not known: ") < text.index("BUSY TIME")
    order = as_json(capsys, "report", "decode.json", "--ordered", *pair)["answers"]["order"]
    assert (order["verdict"], order["cases"], order["ordered"]) == ("yes", 5, 5)
    order = as_json(capsys, "report", "decode.json", "--ordered", *reversed(pair))["answers"]["order"]
    assert (order["verdict"], order["cases"]) == ("cannot be known", 4)


@real
def test_the_three_stream_case_waits_for_the_record_on_stream_20(capsys):
    pair = ("ampere_sgemm_128x64_nn on stream 20", "ampere_sgemm_128x64_nn on stream 24")
    path = str(CASES / "traces" / "kineto_event_sync_three_streams.json.gz")
    text = run(capsys, "report", path, "--ordered", *pair)
    assert text.index("ORDER\nyes: ") < text.index("recorded on stream 20 (correlation 1385)")
    assert text.index("stream 24 waits for it") < text.index("BUSY TIME")


def test_several_files_are_ranks_of_one_run(capsys, trace):
    for rank in (0, 1):
        trace["distributedInfo"] = {"rank": rank, "world_size": 2}
        with gzip.open(f"r{rank}.json.gz", "wt") as file:
            json.dump(trace, file)
    told = as_json(capsys, "report", "r0.json.gz", "r1.json.gz")
    assert told["files"] == ["r0.json.gz", "r1.json.gz"]
    assert told["facts"]["merged"] == ["rank 0", "rank 1"]
    assert {lane["name"] for lane in told["facts"]["lanes"]} >= {"rank 0 · stream 7", "rank 1 · stream 13"}
    assert told["answers"]["kernels"]["count"] == 50
    assert len(told["answers"]["busy"]["devices"]) == 2
    assert "merged" in run(capsys, "report", "r0.json.gz", "r1.json.gz")


def test_files_that_say_no_rank_are_named_by_file(capsys, trace):
    shutil.copy("decode.json", "again.json")
    told = as_json(capsys, "report", "decode.json", "again.json")
    assert told["facts"]["merged"] == ["decode.json", "again.json"]
    assert "given twice" in refused(capsys, "report", "decode.json", "decode.json")
    assert "given twice" in refused(capsys, "report", "decode.json", "./decode.json")


def test_lanes_are_named_by_as_little_of_a_path_as_tells_files_apart(capsys, trace, tmp_path):
    paths = [tmp_path / "runs" / folder / "trace.json" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir(parents=True)
        shutil.copy("decode.json", path)
    told = as_json(capsys, "report", *map(str, paths))
    assert told["facts"]["merged"] == [str(Path("a", "trace.json")), str(Path("b", "trace.json"))]
    shutil.copy("decode.json", "other.json")
    assert as_json(capsys, "report", str(paths[0]), "other.json")["facts"]["merged"] == [
        "trace.json",
        "other.json",
    ]


def test_a_rank_that_is_there_twice_is_told(capsys, trace):
    trace["distributedInfo"] = {"rank": 3, "world_size": 8}
    for name in ("one.json", "two.json"):
        Path(name).write_text(json.dumps(trace), "utf-8")
    told = as_json(capsys, "report", "one.json", "two.json")
    assert told["facts"]["merged"] == ["one.json", "two.json"]
    assert told["facts"]["notes"][0].startswith("2 of the files say that they are rank 3")


def test_a_note_that_begins_with_a_file_keeps_its_name(capsys, trace):
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += 10**10
    Path("later.json").write_text(json.dumps(trace), "utf-8")
    told = " ".join(run(capsys, "report", "decode.json", "later.json").split())
    assert "noted while reading: later.json lies" in told


def test_a_file_that_was_cut_off_is_read_in_part_if_that_is_wanted(capsys, trace, tmp_path):
    text = (tmp_path / "decode.json").read_text("utf-8")
    (tmp_path / "cut.json").write_text(text[: len(text) // 2], "utf-8")
    assert "cut.json" in refused(capsys, "report", "cut.json")
    told = as_json(capsys, "report", "cut.json", "--partial")
    assert 0 < told["facts"]["spans"] < 110
    assert told["checks"]["ok"] is False
    assert told["facts"]["notes"]


# diff


def test_what_changed_between_two_traces(capsys, trace):
    for event in trace["traceEvents"]:
        if "rms_norm_kernel" in event["name"]:
            event["dur"] = round(event["dur"] - 1, 3)
    with open("after.json", "w") as file:
        json.dump(trace, file)
    told = as_json(capsys, "diff", "decode.json", "after.json")
    (norm,) = [entry for entry in told["names"] if "rms_norm_kernel" in entry["name"]]
    assert (norm["verdict"], norm["change_ns"]) == ("faster", -2000)
    assert (told["unit"], told["b"]["source"]) == ("step", "after.json")
    text = run(capsys, "diff", "decode.json", "after.json")
    assert text.startswith("A  decode.json\nB  after.json\n")
    assert "faster" in text
    assert told["definition"] in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    alike = run(capsys, "diff", "decode.json", "decode.json", "--all")
    assert "no name, no edge and no single kernel differs" in " ".join(alike.split())
    assert as_json(capsys, "diff", "decode.json", "decode.json")["same"] is True
    assert told["same"] is False


# convert


@pytest.mark.parametrize("kind", writing.KINDS)
def test_every_kind_is_written_by_its_ending_and_by_name(capsys, trace, tmp_path, kind):
    ending = writing.KINDS[kind][0]
    told = as_json(capsys, "convert", "decode.json", f"out{ending}")
    assert (told["path"], told["kind"], told["spans"]) == (f"out{ending}", kind, 110)
    assert told["bytes"] == (tmp_path / f"out{ending}").stat().st_size > 100
    assert f"wrote  other ({kind})" in run(capsys, "convert", "decode.json", "other", "--to", kind)


def test_what_is_converted_to_chrome_comes_back(capsys, trace):
    run(capsys, "convert", "decode.json", "out.json.gz")
    first, again = timeline.open("decode.json"), timeline.open("out.json.gz")
    assert again.equals(first)


def test_a_window_is_converted_alone(capsys, trace):
    told = as_json(capsys, "convert", "decode.json", "out.json", "--window", "300us", "400us")
    assert len(timeline.open("out.json")) == told["spans"] < 110
    assert "110 spans" not in run(capsys, "convert", "decode.json", "o.json", "--window", "0s", "100us")


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_a_table_does_not_replace_what_lies_beside_it(capsys, trace, tmp_path, ending):
    (tmp_path / f"out.edges{ending}").write_text("mine", "utf-8")
    assert f"out.edges{ending}" in refused(capsys, "convert", "decode.json", f"out{ending}")
    assert (tmp_path / f"out.edges{ending}").read_text("utf-8") == "mine"
    assert not (tmp_path / f"out{ending}").exists()


def test_what_was_read_with_a_note_says_so_when_it_is_converted(capsys, trace, tmp_path):
    (tmp_path / "bom.json").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "decode.json").read_bytes())
    assert "note   " in run(capsys, "convert", "bom.json", "out.json")
    assert as_json(capsys, "convert", "bom.json", "again.json")["notes"]


# What is refused


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ((), "ACTION"),
        (("show", "decode.json"), "'show'"),
        (("report",), "FILE"),
        (("report", "nowhere.json"), "nowhere.json"),
        (("report", "."), "folder"),
        (("report", "decode.json", "--window", "1ms"), "--window"),
        (("report", "decode.json", "--window", "1", "2ms"), "'1' is no time"),
        (("report", "decode.json", "--window", "2us", "1us"), "--window"),
        (("report", "decode.json", "--window", "9s", "10s"), "behind the end"),
        (("report", "decode.json", "--overlap", "gemm", "nothing"), "nothing"),
        (("report", "decode.json", "--overlap", "gemm"), "--overlap"),
        (("report", "decode.json", "--overlap", "gemm", "\x1b[31m"), "x1b"),
        (("report", "decode.json", "--overlap", "stream 7", "gemm"), "both"),
        (("report", "decode.json", "--ordered", "nothing", "add"), "nothing"),
        (("report", "decode.json", "--groups", "nowhere.toml"), "nowhere.toml"),
        (("report", "decode.json", "--groups", "decode.json"), "decode.json"),
        (("report", "decode.json", "--jsn"), "--jsn"),
        (("report", "decode.json", "nowhere.json"), "nowhere.json"),
        (("diff", "decode.json"), "B"),
        (("diff", "decode.json", "nowhere.json"), "nowhere.json"),
        (("convert", "decode.json"), "OUT"),
        (("convert", "decode.json", "decode.json"), "the file that is read"),
        (("convert", "decode.json", "there.json"), "there is such a file already"),
        (("convert", "decode.json", "out.xyz"), "'.xyz'"),
        (("convert", "decode.json", "out.json", "--to", "gif"), "gif"),
        (("convert", "decode.json", "-"), "a file"),
        (("convert", "decode.json", "nowhere/out.json"), "does not exist"),
        (("convert", "decode.json", ""), "no file name"),
        (("convert", "nowhere.json", "out.json"), "nowhere.json"),
    ],
)
def test_bad_use_is_one_line_and_status_2(capsys, trace, tmp_path, argv, told):
    (tmp_path / "there.json").write_text("mine", "utf-8")
    assert told in refused(capsys, *argv)
    assert (tmp_path / "there.json").read_text("utf-8") == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decode.json", "there.json"]


def test_names_in_a_file_act_on_no_terminal(capsys, trace, tmp_path):
    for event in trace["traceEvents"]:
        event["name"] = f"\x1b]0;gone\x07{event['name']}\u202e"
    name = "\x1b[2Jnasty.json"
    (tmp_path / name).write_text(json.dumps(trace), "utf-8")
    texts = [
        run(capsys, "report", name, "--all", "--steps"),
        run(capsys, "diff", name, "decode.json"),
        run(capsys, "convert", name, "\x1bout.json"),
        refused(capsys, "report", name, "--ordered", "nothing", "neither"),
        refused(capsys, "report", name, "--ordered", "\x1b]0;gone", "neither"),
        refused(capsys, "convert", name, name),
    ]
    for text in texts:
        assert r"\x1b" in text
        assert all(line.isprintable() for line in text.rstrip("\n").split("\n"))


WARNED = {
    "bom_utf8.json": "byte-order mark",
    "kernels_no_dur.json": "without a duration",
    "negative_dur.json": "negative duration",
    "no_correlation.json": "without a correlation number",
    "trailing_comma.json": "commas behind the last entry",
    "ts_as_strings.json": "given as text",
}
READ_WHOLE = (
    "bom_utf8.json",
    "gz_with_json_name.json",
    "no_correlation.json",
    "trailing_comma.json",
    "ts_as_strings.json",
)
AS_IS = ("gz_with_json_name.json", "kineto996_cpu_only_launches_no_kernels.json")


@real
@pytest.mark.parametrize("action", ["report", "convert"])
@pytest.mark.parametrize("path", sorted((CASES / "malformed").glob("*")), ids=lambda path: path.name)
def test_a_broken_file_is_one_line_or_a_stated_warning(capsys, tmp_path, path, action):
    out = tmp_path / "out.json"
    more = (str(out),) if action == "convert" else ()
    if path.name not in WARNED and path.name not in AS_IS:
        line = refused(capsys, action, str(path), *more)
        assert str(path) in line
        assert len(line.removeprefix(f"flashnorm-lab: {path}")) > 40  # cause, and what to do
        assert not out.exists()
        return
    told = run(capsys, action, str(path), *more)
    assert WARNED.get(path.name, "") in " ".join(told.split())
    if action == "report":
        assert "IN SHORT" in told
        assert as_json(capsys, action, str(path))["checks"]["ok"] is (path.name in READ_WHOLE)


@real
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("empty.json", "the file is empty"),
        ("empty_events.json", "nothing to show"),
        ("git_lfs_pointer.sqlite", "git lfs pull"),
        ("pt113001_raw_newline_and_quotes_in_name.json", "column 92"),
        ("pt33961_unquoted_key.json", "column 108"),
        ("trunc_gzip_stream.json.gz", "cut off"),
        ("trunc_mid_event.json", "line 551"),
    ],
)
def test_what_is_wrong_with_a_broken_file_is_named(capsys, name, words):
    assert words in refused(capsys, "report", str(CASES / "malformed" / name))


@real
@pytest.mark.parametrize("name", ["trunc_gzip_stream.json.gz", "trunc_mid_event.json"])
def test_what_is_whole_of_a_truncated_file_can_be_read(capsys, name):
    told = as_json(capsys, "report", str(CASES / "malformed" / name), "--partial")
    assert told["facts"]["spans"] > 10
    assert told["facts"]["notes"]


def test_a_name_that_is_too_long_is_one_line(capsys, trace):
    told = refused(capsys, "convert", "decode.json", "n" * 300 + ".html")
    assert "cannot be written (File name too long)" in told


def test_a_kind_that_is_none_is_told_whatever_the_name_is(capsys, trace):
    for name in ("out", "out.html"):
        assert "--to pdf: there is no such kind" in refused(
            capsys, "convert", "decode.json", name, "--to", "pdf"
        )
    assert "in a terminal --to" in refused(capsys, "convert", "decode.json", "out")
