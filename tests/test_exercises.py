"""The exercises: what they claim, what they answer, and that text and steps are one program. No GPU.

A third witness is a simulated CuPy, which runs the text in any order that streams and events allow.
"""

import ast
import linecache
import re
import subprocess
import sys
from dataclasses import replace
from itertools import permutations

import plotly.graph_objects as go
import pytest
from fake_cupy import FakeCupy

import flashnorm_lab
from flashnorm_lab import exercises, exposure, figures, hazards
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError
from flashnorm_lab.exercises import HOST, Edge
from flashnorm_lab.program import (
    Allocate,
    Barrier,
    Free,
    HostRead,
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

ALL = pytest.mark.parametrize("exercise", exercises.ALL, ids=lambda e: e.name)
RACES = [e for e in exercises.ALL if not e.verdict.clean]
HIDDEN = ("stream_zero_a", "stream_zero_c")
"""Races that the numbers do not show, since what an early read finds are the same ones."""
WORDS = re.compile(r"\b(race|races|racy|clean|right|safe|missing)\b")


def in_cupy(wanted):
    return [e for e in wanted if e.library == "cupy"]


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


def record(code, file, monkeypatch, order="issued"):
    """The program that a text is, as it is recorded while it runs on the simulated CuPy."""
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(order, strict=False))
    space = {"__name__": "an_exercise"}
    with flashnorm_lab.record("cupy") as recorded:
        exec(compile(code, file, "exec"), space)
    return recorded


def keys(found, lines=True):
    return [
        (h.kind, h.buffer, h.new_buffer, h.start, h.stop, h.count, h.first, h.first_stream, h.second,
         h.second_stream, *((h.first_source, h.second_source) if lines else ()))
        for h in found
    ]  # fmt: skip


# What there is


def test_there_are_four_wirings_in_three_versions_one_of_them_reported():
    wirings = {}
    for e in exercises.ALL:
        wirings.setdefault(e.title, []).append(e)
    assert len({e.name for e in exercises.ALL}) == 12
    assert [len(versions) for versions in wirings.values()] == [3] * 4
    for versions in wirings.values():
        assert len({e.story for e in versions}) == 1
        assert len({e.code for e in versions}) == 3
        assert [e.verdict.clean for e in versions if e.reported] == [False]
        assert any(e.verdict.clean for e in versions), "no race has to be right at times"


def test_the_answer_is_not_always_at_the_same_place():
    assert len({e.name[-1] for e in exercises.ALL if e.reported}) == 3
    assert {e.edges.index(e.solution) for e in RACES} == {0, 1, 2, 3}


@ALL
def test_story_and_title_give_nothing_away(exercise):
    assert not WORDS.search(exercise.story)
    assert not WORDS.search(exercise.title)
    assert not WORDS.search(exercise.file)
    assert 2 <= len(re.findall(r"[.!?](?=\s|$)", exercise.story)) <= 3
    shown = str(exercise).replace("Race or no race? And if it is one, which edge repairs it?", "")
    assert exercise.lesson not in shown
    assert not WORDS.search(shown)


def test_they_are_known_by_name():
    assert exercises.get("early_record_b").name == "early_record_b"
    with pytest.raises(LabError, match=r"no exercise 'early'; there are side_copy_a, side_copy_b"):
        exercises.get("early")


# What the stories and lessons claim


@pytest.mark.parametrize(
    ("name", "kind", "buffer"),
    [
        ("side_copy_b", "RAW", "w"),
        ("side_copy_c", "WAR", "w"),
        ("stream_zero_a", "RAW", "y"),
        ("stream_zero_c", "RAW", "y"),
        ("freed_block_c", "reuse", "x"),
        ("early_record_a", "RAW", "y"),
        ("early_record_b", "RAW", "y"),
    ],
)
def test_each_race_is_the_one_that_the_lesson_is_about(name, kind, buffer):
    assert [(h.kind, h.buffer) for h in exercises.get(name).verdict.hazards] == [(kind, buffer)]
    assert exercises.get(name).solution in exercises.get(name).edges


def test_these_are_all_the_races():
    assert [e.name for e in RACES] == [
        *("side_copy_b", "side_copy_c", "stream_zero_a", "stream_zero_c", "freed_block_c"),
        *("early_record_a", "early_record_b"),
    ]


def changed(name, steps=None, **streams):
    """An exercise's verdict after a change of its steps or its streams."""
    program = exercises.get(name).program
    made = program.steps if steps is None else steps(program.steps)
    return hazards.check(replace(program, steps=tuple(made), streams={**program.streams, **streams}))


def without(kind, number=0):
    """The steps without one of its kind."""

    def fewer(steps):
        place = [i for i, s in enumerate(steps) if isinstance(s, kind)][number]
        return steps[:place] + steps[place + 1 :]

    return fewer


def test_what_is_clean_is_so_for_the_reason_that_the_lesson_gives():
    assert changed("side_copy_a", without(Wait)).hazards[0].kind == "RAW"
    assert changed("stream_zero_b", side=Stream("non-blocking")).hazards[0].kind == "RAW"
    assert changed("freed_block_a", without(Wait, 1)).hazards  # the wait for side
    assert [h.kind for h in changed("freed_block_b", without(RecordStream)).hazards] == ["reuse"]
    assert changed("early_record_c", without(Wait)).hazards[0].kind == "RAW"


def test_what_is_racy_is_so_for_the_reason_that_the_lesson_gives():
    assert changed("side_copy_b", copies=Stream("blocking")).clean  # "the stream is non-blocking"
    assert changed("stream_zero_a", side=Stream("blocking")).clean

    def wait_each_time(steps):
        wait = next(s for s in steps if isinstance(s, Synchronize))
        rest = [s for s in steps if s is not wait]
        return [t for s in rest for t in ([wait, s] if s.name == "shift" else [s])]

    assert changed("stream_zero_c", wait_each_time).clean
    first = exercises.get("stream_zero_c").verdict.hazards[0]
    steps = exercises.get("stream_zero_c").program.steps
    assert steps[first.first_index].step == 1  # not in the first iteration, where the host waits
    assert first.count == 2  # but in each of the two after it

    def record_later(steps):
        record = next(s for s in steps if isinstance(s, Record))
        place = next(i for i, s in enumerate(steps) if isinstance(s, Launch) and s.name == "shift")
        return [*(s for s in steps[: place + 1] if s is not record), record, *steps[place + 1 :]]

    assert changed("early_record_a", record_later).clean

    def wait_later(steps):
        wait = next(s for s in steps if isinstance(s, Wait))
        place = next(i for i, s in enumerate(steps) if isinstance(s, Record))
        return [*(s for s in steps[: place + 1] if s is not wait), wait, *steps[place + 1 :]]

    assert changed("early_record_b", wait_later).clean


@pytest.mark.parametrize("exercise", in_cupy(exercises.ALL), ids=lambda e: e.name)
def test_the_program_prints_one_thing_in_every_order_if_and_only_if_it_has_no_race(
    exercise, monkeypatch, capsys
):
    """The simulated CuPy knows nothing of the analysis: it lets each stream be as late as it may."""
    told = set()
    for order in ["issued", *(list(p) for p in permutations((0, 1, 2)))]:
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(order, strict=False))
        exec(compile(exercise.code, exercise.file, "exec"), {"__name__": "an_exercise"})
        told.add(capsys.readouterr().out)
    assert (len(told) == 1) == (exercise.verdict.clean or exercise.name in HIDDEN)


@pytest.mark.parametrize(
    ("name", "same", "another"),
    [
        ("stream_zero_a", "run()  # the run", "with side:\n    x.fill(2)\nrun()  # the run"),
        ("stream_zero_c", "        scale(x", "        x.fill(run + 1)\n        scale(x"),
    ],
)
def test_what_the_same_input_hides_another_input_shows(name, same, another, monkeypatch, capsys):
    code = exercises.get(name).code
    assert code.count(same) == 1
    told = set()
    for order in ("issued", [0, 1]):
        monkeypatch.setitem(sys.modules, "cupy", FakeCupy(order, strict=False))
        exec(compile(code.replace(same, another), "another.py", "exec"), {"__name__": "an_exercise"})
        told.add(capsys.readouterr().out)
    assert len(told) == 2


# Text and steps are one program


@pytest.mark.parametrize("exercise", in_cupy(exercises.ALL), ids=lambda e: e.name)
def test_the_text_recorded_as_it_runs_has_the_same_hazards(exercise, monkeypatch):
    recorded = record(exercise.code, exercise.file, monkeypatch)
    found = hazards.check(recorded)
    assert keys(found.hazards) == keys(exercise.verdict.hazards)
    assert found.errors == ()
    launches = [(s.name, s.stream, s.source) for s in exercise.program.steps if isinstance(s, Launch)]
    assert launches == [(s.name, s.stream, s.source) for s in recorded.program.steps if isinstance(s, Launch)]


@pytest.mark.parametrize(
    ("exercise", "edge"),
    [
        pytest.param(e, edge, id=f"{e.name} {n}")
        for e in in_cupy(exercises.ALL)
        for n, edge in enumerate(e.edges, 1)
    ],
)
def test_the_text_with_an_edge_put_in_is_the_program_with_the_edge(exercise, edge, monkeypatch):
    code = "\n".join(text for _, text in exercise.rows(edge)) + "\n"
    recorded = hazards.check(record(code, "edited.py", monkeypatch))
    assert keys(recorded.hazards, lines=False) == keys(
        hazards.check(exercise.with_edge(edge)).hazards, lines=False
    )


@ALL
def test_the_text_is_python_and_says_where_each_step_comes_from(exercise):
    ast.parse(exercise.code)
    assert all(len(line) <= 72 for line in exercise.lines)
    for step in exercise.program.steps:
        file, _, number = step.source.partition(":")
        assert file == exercise.file
        assert exercise.lines[int(number) - 1].strip()
        if isinstance(step, Wait):
            assert "wait" in exercise.lines[int(number) - 1]


@ALL
def test_every_edge_is_between_lines_that_do_something(exercise):
    def works(number, stream):
        return any(isinstance(s, Launch) and s.stream == stream for s in exercise.made[number])

    assert len(set(exercise.edges)) == 4
    for edge in exercise.edges:
        assert works(edge.behind, edge.source)
        assert edge.target == HOST or works(edge.before, edge.target)


def test_they_need_no_device_and_no_library():
    heavy = {"torch", "cupy", "pyopencl", "plotly", "ipywidgets", "matplotlib", "pandas"}
    code = f"import sys, flashnorm_lab.exercises; print(sorted({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


# Answers


@ALL
def test_race_or_no_race_is_what_the_analysis_says(exercise):
    right, wrong = ("no race", "race") if exercise.verdict.clean else ("race", "no race")
    answer = exercise.check(right)
    assert answer.right
    assert answer.repairs is None
    assert answer.tried is None
    assert answer.verdict is exercise.verdict
    found = "no race" if exercise.verdict.clean else "a race"
    assert answer.explain().startswith(f"Right: there is {found}.")
    assert answer.explain().endswith(exercise.lesson)
    assert ("This is the version that was reported." in answer.explain()) == exercise.reported
    assert not exercise.check(wrong).right
    assert exercise.check(wrong).explain().startswith(f"Not so: there is {found}.")


@pytest.mark.parametrize("exercise", RACES, ids=lambda e: e.name)
def test_an_edge_is_judged_by_putting_it_in(exercise):
    repaired = []
    for number, edge in enumerate(exercise.edges, 1):
        answer = exercise.check("race", number)
        assert answer.edge is edge
        assert answer.repairs == hazards.check(exercise.with_edge(edge)).clean
        told = "repairs it" if answer.repairs else "does not repair it"
        assert f"Your edge {told}: {edge}." in answer.explain()
        assert ("The race is still there." in answer.explain()) == (not answer.repairs)
        repaired.append(answer.repairs)
        assert bool(answer.excess) <= answer.repairs
    assert sum(repaired) == 2 + (exercise.name == "early_record_b")
    host = next(e for e in exercise.edges if e.target == HOST and exercise.check("race", e).repairs)
    assert "more than is needed: the host stands still" in exercise.check("race", host).explain()


def test_an_edge_that_holds_back_too_much_names_one_that_does_not():
    exercise = exercises.get("early_record_b")
    early, _, enough, _ = exercise.edges
    told = exercise.check("race", early).excess
    assert told.endswith(f"holds back less: {enough}.")
    assert exercise.check("race", enough).excess == ""
    assert exercise.weaker(Edge("maker", 14, "taker", 19)) is None


def test_an_edge_that_leaves_something_else_says_what():
    """With a second reader of y, the edge to the first of them leaves the other one."""
    exercise = exercises.get("early_record_a")
    more = Launch("cube", "other", (reads("y", 0, exercises.BYTES),))
    made = {number: list(steps) for number, steps in exercise.made.items()}
    made[exercise.edges[3].before].append(more)
    two = replace(
        exercise,
        made=made,
        streams={**exercise.streams, "other": Stream()},
    )
    answer = two.check("race", 4)
    assert answer.repairs is False
    assert "With it there is this: cube may read y before shift has written it." in answer.explain()


@pytest.mark.parametrize("exercise", [e for e in exercises.ALL if e.verdict.clean], ids=lambda e: e.name)
def test_where_there_is_no_race_an_edge_has_nothing_to_repair(exercise):
    answer = exercise.check("race", 1)
    assert answer.repairs is None
    assert answer.excess == ""
    assert "has nothing to repair" in answer.explain()
    order = re.search(r"Always in order: (\w+)[^,.]* after (\w+)", answer.explain())
    assert order, "what keeps it right is told"


def test_orders_that_are_told_are_those_of_the_analysis():
    told = exercises.get("stream_zero_b").check("no race").explain()
    assert "Always in order: shift after scale, scale after shift." in told
    assert "square after scale" in exercises.get("early_record_c").check("no race").explain()
    assert "shift" not in exercises.get("early_record_c").check("no race").explain().split("\n")[1]


@pytest.mark.parametrize("wrong", ["yes", True, None, "Race"])
def test_an_answer_that_is_none_is_named(wrong):
    with pytest.raises(LabError, match=f"answer={wrong!r}: say 'race' or 'no race'"):
        exercises.ALL[0].check(wrong)


@pytest.mark.parametrize("wrong", [0, 5, True, Edge("a", 1, "b", 2), "first"])
def test_an_edge_that_is_not_offered_is_named(wrong):
    with pytest.raises(LabError, match=r"edge=.*: side_copy_a has edges 1 to 4"):
        exercises.ALL[0].check("race", wrong)


def test_reports_quote_the_lines_and_speak_three_languages():
    answer = exercises.get("side_copy_b").check("race")
    assert "--> side_copy_b.py:15: block on default stream reads w" in answer.report()
    assert "      | block(x, w, y)" in answer.report()
    assert "      | w.set(weights, stream=copies)" in answer.report("pytorch")
    assert "torch.cuda.Event()" in answer.report("pytorch")
    assert "enqueue_barrier" in answer.report("opencl")
    with pytest.raises(LabError, match="words='hip'"):
        answer.report("hip")


def test_the_lines_stay_quoted_when_python_looks_its_cache_over():
    linecache.checkcache()
    assert "      | block(x, w, y)" in exercises.get("side_copy_b").verdict.report()


# On the device


@pytest.mark.parametrize("exercise", RACES, ids=lambda e: e.name)
def test_every_race_is_forced_and_every_edge_does_there_what_the_analysis_says(exercise, device):
    (hazard,) = exercise.verdict.hazards
    for edge in exercise.edges:
        tried = exposure.expose(exercise.program, hazard, device, exercise.with_edge(edge))
        assert tried.shows
        assert tried.mended == exercise.check("race", edge).repairs, edge


# The picture


def arrows(figure, colour):
    return [a for a in figure.layout.annotations if a.showarrow and a.arrowcolor == colour]


def boxes(figure):
    """What each box says in bold and below that, and its place."""
    found = set()
    for a in figure.layout.annotations:
        if a.bordercolor:
            bold, _, small = a.text.removeprefix("<b>").partition("</b>")
            found.add((bold.replace("<br>", " "), re.sub(r"<[^>]*>", "", small), a.x, a.y))
    return found


def texts(figure):
    return [a.text for a in figure.layout.annotations]


def red(figure):
    return [t for t in figure.data if t.line.dash == "dash" and t.line.color == figures.VERMILION]


def test_a_program_is_drawn_in_the_order_of_the_hosts_calls():
    e = exercises.get("side_copy_b")
    figure = figures.program_graph(e.program, e.verdict.hazards)
    assert isinstance(figure, go.Figure)
    assert boxes(figure) == {
        ("fill", "line 12", 0, 0),
        ("copy weights to w", "line 13", 1, 1),
        ("block", "line 15", 2, 0),
        ("copy y to the host", "line 16", 3, 0),
    }
    assert list(figure.layout.yaxis.ticktext) == [
        "<b>default stream</b> <br>legacy ",
        "<b>copies</b> <br>non-blocking ",
    ]
    (arrow,) = red(figure)
    assert (arrow.x, arrow.y) == ((1, 2), (1, 0))
    assert arrow.hovertext == e.verdict.hazards[0].explain()
    frames = [a for a in figure.layout.annotations if a.bordercolor == figures.VERMILION]
    assert ["block" in a.text for a in frames] == [True]
    assert any("⚠ RAW on w" in t for t in texts(figure))
    assert any(e.verdict.hazards[0].title() in t for t in texts(figure))
    assert figure.layout.title.subtitle.text == "1 hazard"
    assert arrows(figure, figures.INK) == []


def test_without_hazards_given_nothing_is_said_of_them():
    figure = figures.program_graph(exercises.get("side_copy_b").program)
    assert red(figure) == []
    assert "hazard" not in figure.layout.title.subtitle.text
    assert not any("⚠" in t for t in texts(figure))
    clean = figures.program_graph(exercises.get("side_copy_a").program, ())
    assert clean.layout.title.subtitle.text == "no hazard"


def test_a_wait_is_an_arrow_from_the_last_work_that_it_is_for():
    figure = figures.program_graph(exercises.get("early_record_a").program)
    (arrow,) = arrows(figure, figures.INK)
    assert (arrow.ax, arrow.ay, arrow.x, arrow.y) == (1, 0, 3, 1)  # scale to square, not shift
    assert "made" in texts(figure)


@ALL
def test_an_edge_moves_no_box(exercise):
    for edge in exercise.edges:
        assert boxes(figures.program_graph(exercise.program)) == boxes(
            figures.program_graph(exercise.with_edge(edge))
        )


def test_a_wait_for_what_was_never_recorded_is_told():
    figure = figures.program_graph(exercises.get("early_record_b").program)
    assert "made: nothing recorded yet" in texts(figure)
    assert arrows(figure, figures.INK) == []


def test_the_default_stream_and_blocking_ones_wait_for_each_other():
    figure = figures.program_graph(exercises.get("stream_zero_b").program)
    assert [(a.ax, a.x) for a in arrows(figure, figures.GREY)] == [(1, 2), (2, 3), (3, 4)]
    assert texts(figure).count("default stream") == 3
    for apart in ("stream_zero_a", "stream_zero_c"):
        assert arrows(figures.program_graph(exercises.get(apart).program), figures.GREY) == []


def test_places_where_the_host_waits_are_lines_across_all_rows():
    figure = figures.program_graph(exercises.get("stream_zero_c").program)
    lines = [s.x0 for s in figure.layout.shapes if s.type == "line"]
    assert lines == [1.5, 3.5, 6.5]
    assert [t for t in texts(figure) if "host waits" in t] == [
        "host waits for side",
        "host waits",
        "host waits",
    ]


def test_what_the_host_does_has_a_row_of_its_own():
    e = exercises.get("freed_block_c")
    figure = figures.program_graph(e.program, e.verdict.hazards)
    assert figure.layout.yaxis.ticktext[0] == "<b>host</b> <br> "
    assert {text for text, _, _, y in boxes(figure) if y == 0} == {"free of x", "allocation of y"}
    assert any("x's bytes as y" in t for t in texts(figure))


def every_step():
    """A program with what the exercises do not have: an out-of-order queue, threads, user events, a cut."""
    b = (writes("b", 0, 8),)
    r = (reads("b", 0, 8),)
    return Program(
        (
            Launch("one", "ooo", b, event="done", source="a.py:1"),
            Launch("two", "ooo", source="b.py:2"),
            Barrier("ooo", event="both"),
            Launch("three", "ooo", r, source="b.py:3"),
            Launch("four", "q", r, after=("done", "both"), thread="worker"),
            Query(True, event="done"),
            UserEvent("go"),
            Wait("go", "q"),
            Barrier("q", after=("done",), event="end"),
            Launch("five", "q"),
            SetEvent("go", thread="worker"),
            HostRead("b", thread="worker"),
            Free("b", "stream", "q"),
            Allocate("c", 8, stream="q"),
        ),
        {"ooo": Stream("out-of-order"), "q": Stream()},
        {"b": 8},
    )


def test_queues_barriers_and_host_threads_are_drawn():
    figure = figures.program_graph(every_step())
    at = {text: (x, y) for text, _, x, y in boxes(figure)}
    grey = {(a.ax, a.x) for a in arrows(figure, figures.PALE)}
    one, two, barrier, three, four, five = (
        at[n][0] for n in ("one", "two", "barrier on ooo", "three", "four", "five")
    )
    assert {(one, barrier), (two, barrier), (barrier, three), (four, five)} <= grey
    assert (one, two) not in grey  # nothing orders these two
    assert {(a.ax, a.x) for a in arrows(figure, figures.INK)} == {(one, four), (barrier, four), (one, five)}
    assert "go: nothing recorded yet" in texts(figure)
    assert figure.layout.yaxis.ticktext[0] == "<b>worker</b> <br>host thread "
    assert at["host read of b"][1] == 0
    assert "host waits for done" in texts(figure)
    assert any("a.py:1" in t for t in texts(figure))  # from more than one file: which is told


def test_a_loop_is_unrolled_and_what_is_too_much_is_cut():
    step = Launch("<b>step</b>", "q", (writes("b", 0, 8),))
    program = Program((step,), {"q": Stream()}, {"b": 8}, repeat=100)
    figure = figures.program_graph(program, hazards.find(program))
    assert len(boxes(figure)) == figures.MAX_NODES
    assert figure.layout.title.subtitle.text == f"the first {figures.MAX_NODES} only · no hazard"
    assert all("&lt;b&gt;step" in t for t in texts(figure) if "step" in t)  # as text, not as markup


def test_a_hazard_beyond_what_is_drawn_is_told_in_words():
    quiet = Launch("quiet", "p")
    race = (Launch("write", "p", (writes("b", 0, 8),)), Launch("read", "q", (reads("b", 0, 8),)))
    program = Program((*[quiet] * 40, *race), {"p": Stream(), "q": Stream()}, {"b": 8})
    figure = figures.program_graph(program, hazards.find(program))
    assert red(figure) == []
    assert any("read may read b before write has written it" in t for t in texts(figure))


def test_a_program_without_work_is_an_empty_picture():
    figure = figures.program_graph(Program((), {"q": Stream()}), ())
    assert boxes(figure) == set()
    assert figure.layout.title.subtitle.text == "no hazard"
