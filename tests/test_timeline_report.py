"""The report on a timeline: its layout, the three short answers, windows, and docs/timelines.md beside it."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib

import numpy as np
import pytest
from conftest import ROOT

from flashnorm_lab import timeline
from flashnorm_lab.cli_verbs import timeline as verb
from flashnorm_lab.cli_verbs.timeline import time_ns
from flashnorm_lab.errors import LabError
from flashnorm_lab.timeline import TimelineBuilder, cutting, from_kineto, metrics
from flashnorm_lab.timeline.answer import Table
from flashnorm_lab.timeline.metrics import layout

CASES = ROOT.parent / "shared" / "cases"
real = pytest.mark.skipif(
    not CASES.is_dir(), reason="the real profiler files of ../shared/cases are not here"
)
DOC = (ROOT / "docs" / "timelines.md").read_text("utf-8")


def doc_tool():
    spec = importlib.util.spec_from_file_location("timelines_doc", ROOT / "tools" / "timelines_doc.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def sample():
    """Five decode steps of one layer on two streams, the example of docs/timelines.md."""
    return from_kineto(doc_tool().sample(), source="decode.json")


def two_streams(second_start: int, launched: bool = True, names=("norm", "product")) -> timeline.Timeline:
    """A kernel of 100 ns on each of two streams, the first at 1000 ns; both called at 0 ns for 50 ns."""
    build = TimelineBuilder()
    for number, name in enumerate(names):
        start = 1000 if number == 0 else second_start
        if launched:
            build.span("cudaLaunchKernel", "host", 100 * number, 50, "launch", launch=number)
        build.span(name, f"stream {number}", start, 100, "kernel", launch=number)
    return build.build(device="A made-up GPU", provenance="recorded")


def union_ns(spans) -> int:
    """The length of a union, one nanosecond at a time."""
    return len({at for start, end in spans for at in range(start, end)})


# Layout


def test_characters_that_act_on_a_terminal_are_written_out():
    assert layout.shown("plain λ ✓") == "plain λ ✓"
    assert layout.shown("a\x1b[31mb\nc\u202ed\x00") == r"a\x1b[31mb\nc\u202ed\x00"
    assert layout.shown("\ud800") == r"\ud800"


def test_a_long_name_loses_its_middle():
    text = layout.shortened("void at::native::kernel<4, Functor>(int, long)", 20)
    assert len(text) == 20
    assert text.startswith("void at::na")
    assert text.endswith("t, long)")
    assert layout.shortened("short", 5) == "short"


def test_a_table_that_is_too_wide_shortens_its_widest_column():
    told = layout.fitted(Table(("name", "time"), (("k" * 300, "1.000 ms"), ("j", "2 ns")), more=3), 60)
    assert max(map(len, told.splitlines())) == 60
    assert "k…k" in told
    assert "1.000 ms" in told
    assert told.endswith("… and 3 more")


def test_figures_stand_at_the_right_and_texts_at_the_left():
    head = ("name", "group", "time", "delay", "notes")
    rows = (("a", "gemm", "1.000 ms 5.0 %", "+3 ns", ""), ("b", "rms_norm", "12 ns 95.0 %", "-", "slowest"))
    assert layout.fitted(Table(head, rows)).splitlines() == [
        "name  group               time  delay  notes",
        "a     gemm      1.000 ms 5.0 %  +3 ns",
        "b     rms_norm    12 ns 95.0 %      -  slowest",
    ]


def test_columns_are_spared_before_names_and_said():
    head = ("name", "share", "mean", "max")
    rows = (("k" * 50, "50.0 %", "1.234 ms", "5.678 ms"),)
    wide = layout.fitted(Table(head, rows), 100, spare=("mean", "max"))
    assert "k" * 50 in wide
    assert "mean" in wide
    narrow = layout.fitted(Table(head, rows), 48, spare=("mean", "max"))
    assert narrow.splitlines()[-1] == "not shown for want of room: mean"
    assert "5.678 ms" in narrow
    assert max(map(len, narrow.splitlines())) <= 48


def test_a_figure_and_its_unit_stay_on_one_line():
    text = layout.wrapped("about 12.345 ms and 31.2 % of all " * 9, width=40)
    assert not re.search(r"\d$", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 40


# Parts of a timeline


def test_choosing_spans_keeps_what_belongs_together(sample):
    kernels = sample.is_category("kernel")
    part = cutting.choose(sample, kernels)
    assert len(part) == kernels.sum() == 25
    assert [part.names[i] for i in part.name] == [
        n for n, k in zip((sample.names[i] for i in sample.name), kernels, strict=True) if k
    ]
    assert part.lanes == sample.lanes
    ends = [
        (part.names[part.name[i]], int(part.start_ns[i])) for i in (part.edge_source[0], part.edge_target[0])
    ]
    same = [
        (sample.names[sample.name[i]], int(sample.start_ns[i]))
        for i in (sample.edge_source[0], sample.edge_target[0])
    ]
    assert ends == same
    assert part.meta["left_out"]["spans that were not chosen"] == len(sample) - 25


def test_edges_lose_what_has_lost_an_end(sample):
    part = cutting.choose(sample, np.setdiff1d(np.arange(len(sample)), sample.edge_source))
    assert len(part.edge_source) == 0
    assert part.meta["left_out"]["edges of spans that were not chosen"] == len(sample.edge_source) == 5


def test_a_window_keeps_what_touches_it_and_the_calls_of_that():
    t = two_streams(5000)
    part = cutting.within(t, (1050, 1060))
    assert [part.names[i] for i in part.name] == ["cudaLaunchKernel", "norm"]
    assert part.launches().tolist() == [[0, 1]]
    cut = cutting.clipped(t, (1050, 1060))
    assert (cut.start_ns.tolist(), cut.end_ns.tolist()) == ([0, 1050], [50, 1060])


def test_a_part_keeps_the_ranges_around_the_calls_of_its_kernels():
    build = TimelineBuilder()
    build.lane("host", "host")
    build.lane("other", "host")
    build.span("earlier", "host", 0, 10, "range")
    for lane in ("host", "other"):
        build.span("RMSNorm", lane, 10, 40, "range")
        build.span("aten::mul", lane, 12, 20, "op")
    build.span("cudaLaunchKernel", "host", 15, 5, "launch", launch=1)
    build.span("cudaLaunchKernel", "host", 40, 5, "launch", launch=2)
    build.span("first", "stream 7", 1000, 100, "kernel", launch=1)
    build.span("second", "stream 7", 2000, 100, "kernel", launch=2)
    t = build.build()
    part = cutting.within(t, (1000, 1100))
    assert [t.names[i] for i in part.name] == ["RMSNorm", "aten::mul", "cudaLaunchKernel", "first"]
    assert {use.label for use in metrics.kernels(part, by="range").uses} == {"RMSNorm"}
    part = cutting.within(t, (2000, 2100))
    assert [t.names[i] for i in part.name] == ["RMSNorm", "cudaLaunchKernel", "second"]


def test_the_end_of_a_window_is_outside_of_it_and_a_mark_at_its_start_inside():
    build = TimelineBuilder()
    for name, at, lasts in (("before", 0, 10), ("mark", 10, 0), ("late mark", 20, 0), ("after", 20, 5)):
        build.span(name, "stream", at, lasts, "kernel" if lasts else "mark")
    build.counter("memory", 10, 1.0)
    build.counter("memory", 20, 2.0)
    part = cutting.within(build.build(), (10, 20))
    assert [part.names[i] for i in part.name] == ["mark"]
    assert part.counter_value.tolist() == [1.0]
    assert part.meta["left_out"] == {
        "counter samples outside of the window": 1,
        "spans that were not chosen": 3,
    }


@pytest.mark.parametrize(
    ("window", "told"),
    [((20, 20), "must end after it starts"), ((9000, 9001), "this timeline goes from 0 to 5100 ns")],
)
def test_a_window_with_nothing_in_it_is_refused(window, told):
    with pytest.raises(LabError, match=told):
        cutting.within(two_streams(5000), window)
    with pytest.raises(LabError, match=told):
        metrics.report(two_streams(5000), window=window)


# The short answers


def verdicts(t):
    return [question.verdict for question in metrics.report(t).questions]


def test_the_answers_of_the_sample_are_what_a_plain_computation_gives(sample):
    told = metrics.report(sample)
    launch, overlap, norm = told.questions
    work = [
        (sample.lanes[sample.lane[i]].name, int(sample.start_ns[i]), int(sample.end_ns[i]), i)
        for i in sample.operations()
    ]
    first, last = min(w[1] for w in work), max(w[2] for w in work)
    busy = {at for _, start, end, _ in work for at in range(start, end)}
    idle = last - first - len(busy)
    assert f"idle for {100 * idle / (last - first):.1f} % of the time" in launch.answer
    both = {at for lane, s, e, _ in work if lane == "stream 7" for at in range(s, e)} & {
        at for lane, s, e, _ in work if lane == "stream 13" for at in range(s, e)
    }
    lanes = [
        {at for lane, s, e, _ in work if lane == name for at in range(s, e)}
        for name in ("stream 7", "stream 13")
    ]
    assert overlap.share == pytest.approx(len(both) / min(map(len, lanes)))
    assert f"{100 * len(both) / len(busy):.1f} % of the time in which any did" in overlap.answer
    kernels = [i for *_, i in work if sample.is_category("kernel")[i]]
    norms = [i for i in kernels if "rms_norm" in sample.names[sample.name[i]]]
    time = [int(sample.duration_ns[some].sum()) for some in (norms, kernels)]
    assert norm.share == pytest.approx(time[0] / time[1])
    assert f"({len(norms)} of {len(kernels)})" in norm.answer
    calls = {int(sample.launch[i]): i for i in np.flatnonzero(sample.is_category("launch"))}
    short = [i for i in kernels if sample.duration_ns[i] < sample.duration_ns[calls[int(sample.launch[i])]]]
    assert f"{len(short)} of {len(kernels)} kernels" in launch.answer
    assert (launch.verdict, overlap.verdict) == ("Yes", "Yes")


@pytest.mark.parametrize(
    ("second_start", "expected"),
    [(1000, "Yes"), (1070, "Yes"), (1080, "In part"), (1098, "Hardly"), (1100, "No")],
)
def test_how_much_streams_overlap_decides_the_verdict(second_start, expected):
    _, overlap, norm = metrics.report(two_streams(second_start)).questions
    both = max(0, 1100 - second_start)
    assert overlap.verdict == expected
    assert overlap.share == pytest.approx(both / 100)
    assert norm.verdict == "None"


@pytest.mark.parametrize(("second_start", "expected"), [(1100, "Hardly"), (1140, "In part"), (1190, "Yes")])
def test_how_long_the_device_waits_for_the_host_decides_the_verdict(second_start, expected):
    build = TimelineBuilder()
    for number, start in enumerate((1000, second_start)):
        build.span("cudaLaunchKernel", "host", start - 10, 10, "launch", launch=number)
        build.span("kernel", "stream", start, 100, "kernel", launch=number)
    launch = metrics.report(build.build()).questions[0]
    assert launch.verdict == expected
    assert launch.share == pytest.approx((second_start - 1100) / (second_start - 900))


def test_a_host_that_is_late_for_other_reasons_is_not_called_launch_overhead():
    build = TimelineBuilder()
    for number, start in enumerate((1000, 9000)):
        build.span("cudaLaunchKernel", "host", start - 10, 10, "launch", launch=number)
        build.span("kernel", "stream", start, 100, "kernel", launch=number)
    launch = metrics.report(build.build()).questions[0]
    assert launch.verdict == "No, but the host is late"
    assert "97.5 % of the time went to a late host: 0.1 % with a launch call running, 97.4 %" in launch.answer


def test_one_stream_overlaps_nothing():
    told = metrics.report(two_streams(1010, names=("alone",))).questions[1]
    assert told.answer == "No. There are operations on one stream only."


def test_what_a_trace_does_not_hold_is_not_guessed():
    launch, overlap, norm = metrics.report(two_streams(1010, launched=False)).questions
    assert launch.answer == "Cannot be told: no operation's launch call is in the trace."
    assert launch.share is None
    build = TimelineBuilder()
    build.span("cudaLaunchKernel", "host", 0, 10, "launch", launch=1)
    launch, overlap, norm = metrics.report(build.build()).questions
    assert launch.answer.startswith(
        "Cannot be told: the trace has no operation of a device. 1 launch call took"
    )
    assert overlap.answer == "Cannot be told: the trace has no operation of a device."
    assert norm.answer == "Cannot be told: the trace has no kernel."


def test_a_trace_of_counters_alone_has_a_report():
    build = TimelineBuilder()
    build.counter("memory", 10, 1.5)
    text = str(metrics.report(build.build()))
    assert re.search(r"^spans +0 on 0 host lanes and 0 device lanes$", text, re.MULTILINE)
    assert re.search(r"^counters +1 sample$", text, re.MULTILINE)


def test_what_has_no_figures_is_listed_and_takes_no_room():
    build = TimelineBuilder()
    build.lane("stream 7")
    build.span("aten::mm", "host", 0, 10, "op")
    text = str(metrics.report(build.build()))
    assert "BUSY TIME" not in text
    assert "rule  " not in text  # there is no verdict that it would explain
    shown = text[text.index("NO FIGURES") :]
    assert "Busy time" in shown
    assert shown.count("there is no operation of a device here") == 1
    assert not re.search(r"(?<!\d)0\.0 %", text)


def test_an_empty_timeline_has_a_report():
    told = metrics.report(TimelineBuilder().build())
    assert "no spans" in str(told)
    assert json.loads(json.dumps(told.as_dict(), allow_nan=False))["facts"]["spans"] == 0


def test_norms_told_by_annotation_and_within_products_are_said_apart():
    build = TimelineBuilder()
    build.span("RMSNorm", "host", 0, 100, "range")
    for number, (name, at) in enumerate((("vectorized_elementwise_kernel pow", 10), ("gemm", 200))):
        build.span("cudaLaunchKernel", "host", at, 5, "launch", launch=number)
        build.span(name, "stream", 1000 + 100 * number, 100, "kernel", launch=number)
    build.span("fused_norm_projection", "stream", 1300, 50, "kernel")
    norm = metrics.report(build.build()).questions[2]
    assert norm.share == pytest.approx(100 / 250)
    assert "All of them are told by the operator or range around" in norm.answer
    assert "also a part of 1 fused kernel (50 ns)" in norm.answer


# The whole report


def test_checks_come_before_any_figure():
    build = TimelineBuilder()
    for number in range(4):
        build.span("kernel", "stream", 1000 * number, 0, "kernel")
    text = str(metrics.report(build.build(notes=["3 commas were passed over"])))
    assert text.index("broken") < text.index("IN SHORT") < text.index("BUSY TIME")
    assert text.index("3 commas were passed over") < text.index("IN SHORT")


def test_every_answer_says_what_it_means(sample):
    told = metrics.report(sample, overlap=("gemm", "norm"), each_step=True)
    text = " ".join(str(told).split())
    for name, answer in told.answers.items():
        assert answer.definition, name
        assert answer.title.upper() in text
        shared = told.answers["kernels"].definition if name != "kernels" else ""
        assert answer.definition.removeprefix(shared) in text, name
        for line in answer.left_out:
            assert line in text, name


def test_the_plain_values_hold_every_answer(sample):
    told = metrics.report(sample, overlap=("gemm", "norm"), each_step=True)
    values = told.as_dict()
    json.dumps(values, allow_nan=False)
    assert values["answers"] == {name: answer.as_dict() for name, answer in told.answers.items()}
    assert values["checks"]["ok"] is True
    assert values["facts"]["spans_by_category"]["kernel"] == 25
    assert [question["verdict"] for question in values["questions"]] == ["Yes", "Yes", "8.3 %"]


def test_names_act_on_nothing_and_fit(sample):
    nasty = "\x1b[31mred\nnext\u202e <b>$x$</b> " + "very_long_" * 80
    t = timeline.Timeline(
        **{name: getattr(sample, name) for name in sample.__dataclass_fields__}
        | {
            "names": tuple(f"{nasty}{i}" for i in range(len(sample.names))),
            "lanes": tuple(
                timeline.Lane(f"\x1b{lane.name} {'wide ' * 40}", lane.kind, lane.device)
                for lane in sample.lanes
            ),
        }
    )
    lines = metrics.report(t, each_step=True).text(None).split("\n")
    assert any(r"\x1b[31mred" in line for line in lines)
    for line in lines:
        assert line.isprintable(), line
        assert len(line) <= layout.WIDTH, line


def test_rows_are_left_away_and_counted_unless_all_are_wanted():
    build = TimelineBuilder()
    for number in range(30):
        build.span(f"kernel {number}", "stream", 1000 * number, 100, "kernel")
    told = metrics.report(build.build())
    assert f"… and {30 - metrics.reporting.ROWS} more" in str(told)
    whole = told.text(None)
    assert "… and" not in whole
    assert all(f"kernel {number} " in whole for number in range(30))


def test_steps_are_listed_when_they_are_asked_for(sample):
    assert "launches  host time" not in str(metrics.report(sample))
    told = metrics.report(sample, each_step=True)
    rows = [line for line in str(told).splitlines() if re.match(r"\d +\S+ (ns|µs) ", line)]
    assert [row.split()[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert "kernels_by_step" in told.answers


def test_steps_found_by_repetition_give_launches_a_step(sample):
    bare = cutting.choose(sample.with_steps([-1] * len(sample)), ~sample.is_category("range"))
    told = metrics.report(bare)
    assert told.answers["steps"].source == "repetition"
    assert told.answers["launching"].per_step == 5
    assert "5 kernel launches a step" in told.questions[0].answer


def test_a_window_counts_what_lies_inside(sample):
    start = int(sample.start_ns.min())
    window = (start + 300_000, start + 400_000)
    told = metrics.report(sample, window=window, overlap=("stream 7", "stream 13"))
    inside = {"stream 7": [], "stream 13": []}
    for i in sample.operations():
        s, e = max(int(sample.start_ns[i]), window[0]), min(int(sample.end_ns[i]), window[1])
        if s < e:
            inside[sample.lanes[sample.lane[i]].name].append((s, e))
    use = {lane.name: lane.busy_ns for lane in told.answers["busy"].lanes}
    assert use == {name: union_ns(spans) for name, spans in inside.items()}
    seven, thirteen = ({at for s, e in spans for at in range(s, e)} for spans in inside.values())
    assert told.answers["overlap"].both_ns == told.answers["overlaps"].both_ns == len(seven & thirteen) > 0
    assert told.outside == len(sample) - len(cutting.within(sample, window))
    assert f"{told.outside:,} spans have no part" in " ".join(str(told).split())
    assert told.as_dict()["window"] == list(window)


def test_an_overlap_of_what_is_not_there_is_refused(sample):
    with pytest.raises(LabError, match="stream 99"):
        metrics.report(sample, overlap=("stream 7", "stream 99"))


@real
def test_the_h100_case_is_told_both_ways():
    told = metrics.report(timeline.open(CASES / "traces" / "kineto_h100_kernels_without_launch.json.gz"))
    text = str(told)
    assert "31.905 ms over operations with a launch, 45.647 ms (91.9 %) over all" in " ".join(text.split())
    (device,) = told.as_dict()["answers"]["busy"]["devices"]
    assert (device["launched_busy_ns"], device["busy_ns"]) == (31_905_473, 45_647_300)
    assert text.index("operations with no launch: 509") < text.index("IN SHORT")


@real
@pytest.mark.parametrize(
    "path",
    [*sorted((CASES / "traces").glob("*")), *sorted((CASES / "nsys").glob("*.sqlite"))],
    ids=lambda path: path.name.split(".")[0],
)
def test_every_real_file_has_a_report_that_fits(path):
    t = timeline.open(path)
    told = metrics.report(t, each_step=True)
    json.dumps(told.as_dict(), allow_nan=False)
    for line in str(told).split("\n"):
        assert line.isprintable(), line
        assert len(line) <= layout.WIDTH, line
    assert told.facts["spans"] == len(t) == sum(told.facts["spans_by_category"].values())


# docs/timelines.md


def test_the_page_shows_what_the_code_says():
    assert doc_tool().written(DOC) == DOC, "run .venv/bin/python tools/timelines_doc.py"


def test_the_tool_refuses_a_page_without_its_marks():
    with pytest.raises(SystemExit, match="'rule'"):
        doc_tool().written(DOC.replace("<!-- rule -->", ""))


def test_the_example_of_the_page_can_be_written_to_a_file(tmp_path, sample):
    doc_tool().main([str(tmp_path / "decode.json")])
    assert len(timeline.open(tmp_path / "decode.json")) == len(sample)


def rows_of(heading: str) -> list[list[str]]:
    """The tables' rows below a heading, as lists of cells."""
    part = re.split(r"^#+ ", DOC, flags=re.MULTILINE)
    (text,) = [text for text in part if text.startswith(f"{heading}\n")]
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)
    ]


def test_every_option_of_report_is_on_the_page():
    from flashnorm_lab import cli

    parser = cli.Parser(prog="timeline")
    verb.arguments(parser)
    actions = parser._subparsers._group_actions[0].choices
    assert set(actions) == {"report", "diff", "convert"}
    shown = {
        re.match(r"`(--[a-z]+)", row[0])[1] for row in rows_of("Read a report") if row[0].startswith("`--")
    }
    options = {o for a in actions["report"]._actions for o in a.option_strings if o.startswith("--")}
    assert shown == options - {"--help"}
    for action in actions.values():
        for one in action._actions:
            assert one.help
            for option in one.option_strings:
                assert option in {"-h", "--help"} or f"`{option}" in DOC, option


def test_every_key_of_the_json_is_on_the_page(sample):
    values = metrics.report(sample, overlap=("gemm", "norm"), ordered=None, each_step=True).as_dict()
    shown = {key for row in rows_of("JSON")[2:] for key in re.findall(r"`(\w+)`", row[0])}
    assert shown == {"files", *values}
    (answers,) = [row[1] for row in rows_of("JSON") if row[0] == "`answers`"]
    named = set(re.findall(r"`(\w+)`", answers)) - {"title", "definition", "denominator", "left_out"}
    assert named == {*metrics.reporting.ASKED, *metrics.reporting.SECTIONS}
    shown = {key for row in rows_of("JSON of a diff")[2:] for key in re.findall(r"`(\w+)`", row[0])}
    assert shown == set(metrics.diff(sample, sample).as_dict())


def test_the_groups_file_of_the_page_works(tmp_path):
    (block,) = re.findall(r"^```toml\n(.*?)^```$", DOC, re.DOTALL | re.MULTILINE)
    assert tomllib.loads(block)
    (tmp_path / "mine.toml").write_text(block, "utf-8")
    groups = metrics.Groups.load(tmp_path / "mine.toml")
    assert groups.group_of("a_MY_fast_norm_kernel") == "rms_norm"
    assert groups.group_of("moe_ffn_12") == "experts"
    assert groups.group_of("ampere_sgemm_128x64_nn") == "gemm"


def test_every_ending_that_can_be_written_is_on_the_page():
    from flashnorm_lab.timeline import writing

    shown = {
        ending for row in rows_of("Take it elsewhere")[2:] for ending in re.findall(r"`(\.[\w.-]+)`", row[0])
    }
    assert {endings[0] for endings in writing.KINDS.values()} <= shown
    assert shown <= {ending for endings in writing.KINDS.values() for ending in endings}


def test_every_link_of_the_page_leads_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", DOC)
    assert len(links) > 2
    for link in links:
        assert (ROOT / "docs" / link).is_file(), link


# Times as they are given in a terminal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("1.5ms", 1_500_000),
        ("0.001us", 1),
        ("2.5µs", 2500),
        ("999999999999.999ms", 999999999999999000),
    ],
)
def test_times_are_read_to_the_nanosecond(text, expected):
    assert time_ns(text) == expected


@pytest.mark.parametrize(
    "text", ["", "5", "ms", "-1ms", "1.5ns", "0.0001us", "1e3ns", "1 h", "nan s", "1_0ms", "１ms"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(LabError, match="give whole nanoseconds"):
        time_ns(text)


def test_a_notebook_shows_the_words_of_an_answer(sample):
    formatter = pytest.importorskip("IPython.core.formatters").DisplayFormatter()
    for told in (metrics.busy(sample), metrics.steps(sample), metrics.report(sample)):
        assert formatter.format(told)[0] == {"text/plain": str(told)}
