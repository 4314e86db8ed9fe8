"""The labelled corpus: what each schedule's answer is, by its author, by the analysis and by brute force."""

from __future__ import annotations

import importlib.util
import itertools
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from brute_force import Brute, keys
from conftest import ROOT

from flashnorm_lab import hazards, schedule_file
from flashnorm_lab.program import KINDS, STEPS

CORPUS = Path(__file__).parent / "hazard_corpus"
FILES = {path.stem: path for path in sorted(CORPUS.rglob("*.json"))}
LABELS: dict[str, Any] = {stem: json.loads(path.read_text("utf-8")) for stem, path in FILES.items()}
PROGRAMS = {stem: schedule_file.load(path) for stem, path in FILES.items()}
RACY = [stem for stem, label in LABELS.items() if label["expect"]]
every = pytest.mark.parametrize("stem", FILES)

MOST = 4000
"""Interleavings up to which all are run."""


def expected(stem: str) -> set[tuple[str, str, str, str, int]]:
    return {(e["kind"], e["buffer"], e["first"], e["second"], e["distance"]) for e in LABELS[stem]["expect"]}


def test_the_corpus_is_what_it_should_be():
    topics = Counter(path.parent.name for path in FILES.values())
    assert len(FILES) == len(list(CORPUS.rglob("*.json"))) >= 80  # so no two have the same name
    assert set(topics) == {"streams", "events", "host", "bytes", "memory", "graphs", "queues", "threads",
                           "loops", "wirings"}  # fmt: skip
    for topic in topics:
        wrong = [s for s in FILES if FILES[s].parent.name == topic and faulty(s)]
        assert 0 < len(wrong) < topics[topic], topic
    used = {type(s) for p in PROGRAMS.values() for s in p.steps}
    assert used == set(STEPS)
    assert {s.kind for p in PROGRAMS.values() for s in p.streams.values()} == set(KINDS)
    kinds = {e["kind"] for label in LABELS.values() for e in label["expect"]}
    assert kinds == {"RAW", "WAR", "WAW", "reuse", "use after free", "use before allocation"}
    everything = [
        json.dumps([label[k] for k in ("streams", "buffers", "steps")]) for label in LABELS.values()
    ]
    assert len({*everything}) > 0.9 * len(everything)


def faulty(stem: str) -> bool:
    return bool(LABELS[stem]["expect"] or LABELS[stem].get("expect_errors"))


@every
def test_a_twin_differs_by_one_step_and_in_its_answer(stem):
    one, other = LABELS[stem], LABELS[LABELS[stem]["twin"]]
    assert len(one["reason"]) > 30
    assert FILES[stem].parent == FILES[one["twin"]].parent
    assert faulty(stem) != faulty(one["twin"])
    assert (one["buffers"], one.get("repeat")) == (other["buffers"], other.get("repeat"))
    changed = [s for s in one["streams"] if one["streams"][s] != other["streams"].get(s)]
    assert one["streams"].keys() == other["streams"].keys()
    long, short = sorted((one["steps"], other["steps"]), key=len, reverse=True)
    without_one = [long[:i] + long[i + 1 :] for i in range(len(long))]
    if changed:  # one stream is of another kind, and the steps are the same
        assert len(changed) == 1
        assert long == short
    elif len(long) == len(short):  # one step is another, or stands elsewhere
        assert long != short
        assert any(a == short[:i] + short[i + 1 :] for a in without_one for i in range(len(short)))
    else:
        assert short in without_one


@every
def test_the_analysis_gives_the_answer(stem):
    verdict = hazards.check(PROGRAMS[stem])
    told = {(h.kind, h.buffer, h.first, h.second, h.distance) for h in verdict.hazards}
    assert told == expected(stem)
    assert len(verdict.hazards) == len(told)
    new = {e["second"]: e["new_buffer"] for e in LABELS[stem]["expect"] if "new_buffer" in e}
    assert {h.second: h.new_buffer for h in verdict.hazards if h.new_buffer} == new
    assert {e.code for e in verdict.errors} == set(LABELS[stem].get("expect_errors", ()))
    assert verdict.clean == (not faulty(stem))
    if "expect_redundant" in LABELS[stem]:
        assert [r.index for r in verdict.redundant] == LABELS[stem]["expect_redundant"]


@every
def test_brute_force_gives_the_answer(stem):
    b = Brute(PROGRAMS[stem])
    assert keys(b, b.pairs(nearest=True)) == expected(stem)
    assert set(b.errors) == set(LABELS[stem].get("expect_errors", ()))
    if sum(1 for _ in itertools.islice(b.interleavings(), MOST + 1)) > MOST:
        return
    touching = {t.node for t in b.touches}
    races = [p for p in b.pairs() if {p.first, p.second} <= touching]
    assert any(len(values) > 1 for values in b.outcomes().values()) == bool(races)


HELD = "freed_while_its_user_is_held"
"""No edge repairs it: the host would wait for work that only it can let go. The free has to come later."""


@pytest.mark.parametrize("stem", [stem for stem in RACY if stem != HELD])
def test_the_repair_makes_it_clean(stem):
    verdict = hazards.check(PROGRAMS[stem])
    assert verdict.repair
    whole = verdict.repaired()
    assert hazards.check(whole).hazards == ()
    assert Brute(whole).pairs() == []


@pytest.mark.parametrize("stem", RACY)
def test_the_report_names_both_accesses(stem):
    verdict = hazards.check(PROGRAMS[stem])
    for words in hazards.WORDS:
        text = verdict.report(words)
        for e in LABELS[stem]["expect"]:
            assert e["first"] in text
            assert e["second"] in text
            assert e["kind"] in text


# Beside PyTorch's stream sanitizer


@pytest.fixture(scope="module")
def comparison():
    spec = importlib.util.spec_from_file_location(
        "compare_sanitizer", ROOT / "tools" / "compare_sanitizer.py"
    )
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_the_verdicts_in_the_docs_are_those_of_a_fresh_run(comparison):
    cases = comparison.cases()
    text = comparison.DOCS.read_text("utf-8")
    assert comparison.between(text, "verdicts") == comparison.verdict_table(cases)
    assert len(cases) == len(FILES)
    assert all(c.ours == c.racy for c in cases)  # no false alarm and no miss


def test_what_the_sanitizer_is_told_is_what_the_schedule_does(comparison):
    """Where nothing but kernels, events and whole buffers is at play, its verdict is right."""
    plain = [c for c in comparison.cases() if c.theirs is not None and c.topic in ("events", "loops")]
    assert len(plain) > 40
    assert {c.theirs for c in plain} == {True, False}
    assert all(c.theirs == c.racy for c in plain)
    missed = {c.name for c in comparison.cases() if c.theirs is False and c.racy}
    assert {"overlapping_views_with_different_offsets", "block_reused_on_another_stream"} <= missed


def test_costs_are_measured_and_the_analysis_keeps_what_it_needs_only(comparison, capsys):
    comparison.main(["--quick"])
    printed = capsys.readouterr().out
    for load in comparison.LOADS:
        assert printed.count(f"| {load.name} |") == 2
        checker = comparison.hazards.Checker(load.streams, load.buffers)
        assert comparison.growth(checker.feed, load, 4000) < 16_384
    assert "µs a launch" in printed
    theirs = comparison.Driver(comparison.LOADS[0].streams, comparison.LOADS[0].buffers)
    assert comparison.growth(theirs.feed, comparison.LOADS[0], 4000) > 200_000  # every read is kept


def test_the_document_is_written_whole_between_its_marks(comparison, tmp_path, monkeypatch):
    copy = tmp_path / "sanitizer_comparison.md"
    text = comparison.DOCS.read_text("utf-8")
    copy.write_text(comparison.with_part(text, "verdicts", "old\n"), "utf-8")
    monkeypatch.setattr(comparison, "DOCS", copy)
    monkeypatch.setattr(comparison, "ROOT", tmp_path)
    comparison.main(["--no-cost", "--markdown"])
    assert copy.read_text("utf-8") == text
    assert list(tmp_path.iterdir()) == [copy]
