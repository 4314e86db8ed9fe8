"""The verbs that run something (race, speak, export, bench): what they print, write and refuse."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from tiny_llama import PROMPT, SITES, Letters, make

from flashnorm_lab import bench, cli, decoding, devices, models, schedule, timeline
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError

WORST = ("--drop", "join_matrix", "--force")


@pytest.fixture(autouse=True)
def on_opencl(monkeypatch):
    """The same device everywhere, and whichever threads torch had."""
    import torch

    threads = torch.get_num_threads()
    monkeypatch.setattr(devices, "default", lambda: opencl.open_device(reason="the tests' own"))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def tiny(monkeypatch):
    """`smollm2` gives a tiny random model; what it was asked for is kept."""
    asked = []

    def load(source=None):
        asked.append(source)
        return models.Model(make(), Letters(), "tiny", "nowhere")

    monkeypatch.setattr(models, "smollm2", load)
    return asked


def run(capsys, *argv):
    """Standard output of a verb that ran."""
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def refused(capsys, *argv):
    """The one line on standard error of a verb that did not run."""
    try:
        status = cli.main(argv)
    except SystemExit as leaving:
        status = leaving.code
    out, err = capsys.readouterr()
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    return err


def as_json(capsys, *argv):
    out = run(capsys, *argv, "--json")
    assert out.count("\n") == 1
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


# --- race ---


def test_race_with_all_edges_is_fresh(capsys):
    told = as_json(capsys, "race", "--steps", "6")
    assert (told["fresh"], told["stale"], told["torn"]) == (6, 0, 0)
    assert told["hazards"] == []
    assert told["forced"] is None
    assert told["provenance"] == "measured"
    assert (told["schedule"]["n"], told["schedule"]["k"]) == (576, 960)
    assert told["device"]["reason"] == "the tests' own"


def test_race_forced_is_stale_in_every_step(capsys):
    told = as_json(capsys, "race", "--steps", "6", "--n", "64", "--k", "48", *WORST)
    assert (told["fresh"], told["stale"], told["torn"]) == (0, 6, 0)
    assert told["forced"] == {"hold": "projection", "until": "post_scale", "distance": 0}
    assert {h["repair"] for h in told["hazards"]} == {"join_matrix"}
    out = run(capsys, "race", "--steps", "6", "--n", "64", "--k", "48", *WORST)
    assert "0 fresh, 6 stale, 0 torn of 6 steps" in out
    assert "projection held until post_scale is done" in out
    assert "Repair: join_matrix." in out


def test_race_takes_its_other_options(capsys, tmp_path):
    path = tmp_path / "race.json"
    out = run(capsys, "race", "--steps", "3", "--tokens", "2", "--n", "33", "--k", "17", "--spin", "500",
              "--seed", "4", "--force", "inv_rms:projection", "--export", str(path))  # fmt: skip
    assert "2 tokens, n=33, k=17" in out
    assert f"timeline  {path}" in out
    assert len(timeline.open(path).spans(name="spin", lane="matrix")) == 3


SMALL = ("race", "--steps", "6", "--n", "64", "--k", "48")


def test_race_forces_across_steps(capsys):
    out = run(capsys, *SMALL, "--drop", "fork_matrix", "--force", "post_scale:projection+1")
    assert "forced    post_scale held until projection of the next step is done\n" in out
    assert "result    3 fresh, 3 stale, 0 torn of 6 steps\n" in out
    told = as_json(capsys, *SMALL, "--drop", "fork_matrix", "--force", "post_scale:projection+1", "--ahead")
    assert told["schedule"]["name"] == "prefetched"
    assert told["forced"] == {"hold": "post_scale", "until": "projection", "distance": 1}
    assert told["per_step"] == ["early", "fresh"] * 3
    assert (told["early"], told["sources"]) == (3, ["y of step t+1, r of step t"])


def test_race_forces_every_hazard_in_turn(capsys):
    out = run(capsys, *SMALL, "--drop", "fork_matrix", "--force", "each")
    assert out.endswith(
        "forced    one by one, 6 steps each; then the same with fork_matrix put back\n"
        "  copy x held until projection is done: "
        "0 fresh, 6 stale, 0 torn; repaired: 6 fresh, 0 stale, 0 torn\n"
        "  post_scale held until projection of the next step is done: "
        "3 fresh, 3 stale, 0 torn; repaired: 6 fresh, 0 stale, 0 torn\n"
    )
    told = as_json(capsys, *SMALL, "--drop", "fork_matrix", "--ahead", "--force", "each")
    assert [proof["forced"]["hold"] for proof in told["proofs"]] == ["inv_rms", "post_scale", "post_scale"]
    assert all(proof["holds"] for proof in told["proofs"])
    assert all(proof["wrong"]["early"] == 3 for proof in told["proofs"])
    assert all(proof["repaired"]["fresh"] == 6 for proof in told["proofs"])
    assert [proof["hazard"] for proof in told["proofs"]] == told["hazards"]
    assert (told["schedule"], told["dropped"]) == ("prefetched", ["fork_matrix"])
    assert "forced    nothing: there is no hazard\n" in run(capsys, *SMALL, "--force", "each")
    assert as_json(capsys, *SMALL, "--force", "each")["proofs"] == []


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--drop", "nope"), "'nope'"),
        (("--schedule", "nope"), "'nope'"),
        (("--schedule", "fused", "--drop", "join_matrix"), "one stream needs none"),
        (("--schedule", "fused", "--spin", "3"), "--spin"),
        (("--steps", "0"), "steps=0"),
        (("--steps", "x"), "'x'"),
        (("--n", "0"), "n=0"),
        (("--k", "-1"), "k=-1"),
        (("--device", "nope"), "'nope'"),
        (("--device", "opencl:nope"), "'nope'"),
        (("--force", "projection"), "HOLD:UNTIL"),
        (("--force", "projection:post_scale"), "forbid it"),
        (("--force", "post_scale:projection+1"), "until projection of the next step is done"),
        (("--force", "post_scale:projection+x"), "HOLD:UNTIL+N"),
        (("--steps", "1", "--drop", "fork_matrix", "--force", "each"), "1 runs; give --steps 2 or more"),
        (("--steps", "3", "--force", "post_scale:projection+4"), "and 3 run; give --steps 5 or more"),
        (("--force", "post_scale:projection+99999999999"), "N in HOLD:UNTIL+N is at most 999999999 steps"),
        (("--force", "each", "--nvtx"), "--force each makes many runs"),
        (("--force", "each", "--export", "race.json"), "--force each makes many runs"),
        (("--schedule", "fused", "--ahead"), "cannot fetch x ahead"),
        (("--export", "/nowhere/at/all/race.json", "--steps", "1"), "/nowhere/at/all"),
    ],
)
def test_race_refuses_in_one_line(capsys, argv, words):
    assert words in refused(capsys, "race", *argv)


# --- speak ---


def test_speak_with_all_edges_equals_the_reference(capsys, tiny):
    told = as_json(capsys, "speak", "--prompt", PROMPT, "--tokens", "12")
    assert told["text"] == told["reference"]
    assert len(told["text"]) == told["tokens"] == 12
    assert told["first_divergence"] is None
    assert (told["fresh"], told["stale"], told["torn"], told["not_judged"]) == (55, 0, 0, 0)
    assert told["sites"] == {}
    assert told["hazards"] == []
    assert told["forced"] is None
    assert told["schedule"] == {
        "name": "deferred",
        "edges": list(schedule.EDGES),
        "dropped": [],
        "dropped_at": [],
    }
    assert told["tokens_per_s"] > 0
    assert told["reference_tokens_per_s"] > 0
    assert told["provenance"] == "measured"
    assert told["device"]["kind"] == "opencl"
    assert tiny == [None]


def test_speak_without_an_edge_tells_where_it_was_stale(capsys, tiny):
    told = as_json(capsys, "speak", "--prompt", PROMPT, "--tokens", "12", *WORST, "--sites", "layers.0.*",
                   "--sites", "head")  # fmt: skip
    assert told["text"] != told["reference"]
    assert told["text"][: told["first_divergence"]] == told["reference"][: told["first_divergence"]]
    assert tuple(told["sites"]) == (SITES[0], SITES[1], SITES[4])
    assert told["sites"]["head"].keys() == {"fresh", "stale", "torn", "early"}
    assert sum(counts["stale"] for counts in told["sites"].values()) == told["stale"] > 25
    assert told["kinds"]["head"] == told["sites"]["head"]
    assert told["forced"] == {"hold": "projection", "until": "post_scale"}
    assert {h["kind"] for h in told["hazards"]} >= {"RAW"}
    assert told["schedule"]["dropped"] == ["join_matrix"]
    assert told["schedule"]["dropped_at"] == [SITES[0], SITES[1], SITES[4]]


def test_speak_streams_the_text_and_then_tells(capsys, tiny, monkeypatch):
    pieces = []
    write = decoding.generate

    def watched(*args, **options):
        for token in write(*args, **options):
            yield token
            pieces.append(capsys.readouterr().out)

    monkeypatch.setattr(decoding, "generate", watched)
    assert cli.main(["speak", "--prompt", PROMPT, "--tokens", "6", *WORST, "--sites", "head"]) == 0
    rest = capsys.readouterr().out
    assert "the tests' own" in pieces[0]
    assert "deferred without join_matrix at 1 of 5 sites; projection held until post_scale" in pieces[0]
    assert re.fullmatch(r"text      .", pieces[0].splitlines()[-1])
    assert all(len(piece) == 1 for piece in pieces[1:6])  # a letter at a time, as it is written
    assert pieces[6].startswith("\nreference ")
    assert all(len(piece) == 1 for piece in pieces[7:])
    lines = dict(line.split(None, 1) for line in rest.splitlines() if line.strip())
    assert re.fullmatch(r"from token \d on \(the first is 0\)", lines["differs"])
    assert re.fullmatch(r"[\d.]+ tokens/s through the device, [\d.]+ tokens/s without", lines["speed"])
    assert lines["head"].split() == ["0", "5", "0"]
    assert lines["all"].split() == ["20", "5", "0"]
    assert lines["wrong"] == "at 1 site: head (5)"


def test_speak_takes_its_other_options(capsys, tiny, tmp_path):
    path = tmp_path / "token.json"
    argv = ["--schedule", "fused", "--model", "some/model", "--threads", "1", "--device", "opencl"]
    argv += ["--tokens", "4", "--export", str(path), "--export-token", "2"]
    out = run(capsys, "speak", *argv)
    assert tiny == ["some/model"]
    assert "1 thread\n" in out
    assert "fused, one stream, which needs no edges" in out
    assert f"prompt     {decoding.PROMPT}" in out
    assert "differs    nowhere" in out
    assert f"timeline   {path} (decode step of token 2)" in out
    recorded = timeline.open(path)
    assert recorded.meta["token"] == 2
    assert len(recorded.spans(name="fused_norm_projection", lane="main")) == len(SITES)


def test_speak_of_one_token_has_no_decode_step(capsys, tiny):
    assert "no decode step through the device" in run(capsys, "speak", "--tokens", "1")
    told = as_json(capsys, "speak", "--tokens", "1")
    assert told["tokens_per_s"] is None
    assert told["first_divergence"] is None


def test_speak_tells_of_an_overflow(capsys, monkeypatch):
    import torch

    model = make()
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight.fill_(1e38)
    monkeypatch.setattr(models, "smollm2", lambda source: models.Model(model, Letters(), "tiny", "nowhere"))
    out = run(capsys, "speak", "--tokens", "3")
    assert "overflow   from token 0 on the logits are not finite numbers" in out
    assert "6 times a site's own input had overflowed" in out
    told = as_json(capsys, "speak", "--tokens", "3")
    assert (told["not_finite"], told["not_judged"], told["fresh"]) == (0, 6, 4)


def test_speak_says_when_the_text_ended_before_the_token_to_export(capsys, monkeypatch, tmp_path):
    tokenizer = Letters()
    first = next(decoding.generate(make(), tokenizer, PROMPT, 1))
    tokenizer.eos_token_id = first.id
    monkeypatch.setattr(models, "smollm2", lambda source: models.Model(make(), tokenizer, "tiny", "nowhere"))
    path = tmp_path / "token.json"
    assert cli.main(["speak", "--prompt", PROMPT, "--tokens", "9", "--export", str(path)]) == 0
    assert "the text ended before token 1; no timeline was written" in capsys.readouterr().err
    assert not path.exists()
    text = refused(capsys, "export", "--what", "token", "--prompt", PROMPT, "--out", str(path))
    assert "the text ended before token 1" in text


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--tokens", "0"), "tokens=0"),
        (("--prompt", ""), "the prompt is empty"),
        (("--drop", "nope"), "'nope'"),
        (("--drop", "join_matrix", "--sites", "nope"), "'nope'"),
        (("--sites", "head"), "--drop"),
        (("--schedule", "sequential", "--drop", "join_matrix"), "one stream needs none"),
        (("--schedule", "nope"), "'nope'"),
        (("--force", "projection:post_scale"), "forbid it"),
        (("--force", "nope"), "HOLD:UNTIL"),
        (("--device", "nope"), "'nope'"),
        (("--threads", "0"), "--threads 0"),
        (("--export", "x.json", "--export-token", "0"), "--export-token 0"),
        (("--export", "x.json", "--export-token", "40"), "numbered 1 to 39"),
        (("--export-token", "x"), "'x'"),
        (("--export", "/nowhere/at/all/token.json", "--tokens", "2", "--json"), "/nowhere/at/all"),
    ],
)
def test_speak_refuses_in_one_line(capsys, tiny, argv, words):
    assert words in refused(capsys, "speak", *argv)


def test_speak_refuses_a_model_that_is_none(capsys, tmp_path):
    assert "config.json" in refused(capsys, "speak", "--model", str(tmp_path))


@pytest.mark.model
@pytest.mark.slow
def test_speak_on_smollm2(capsys):
    told = as_json(capsys, "speak", "--tokens", "40")
    assert told["text"] == told["reference"]
    assert told["text"].startswith(" it enabled the creation of a single, powerful language model")
    assert told["fresh"] == 39 * 61
    told = as_json(capsys, "speak", "--tokens", "12", *WORST)
    assert told["text"] != told["reference"]
    assert told["first_divergence"] == 1
    assert len(told["sites"]) == 61


# --- export ---


def test_export_of_a_race(capsys, tmp_path):
    path = tmp_path / "race.json"
    out = run(capsys, "export", "--out", str(path), "--n", "64", "--k", "48", "--steps", "3", *WORST)
    recorded = timeline.open(path)
    assert f"wrote      {path}: {len(recorded)} spans" in out
    assert "ui.perfetto.dev" in out
    assert "chrome://tracing" in out
    assert len(recorded.spans(outcome="stale")) == 3
    assert recorded.meta["provenance"] == "measured"


def test_export_of_a_token(capsys, tmp_path, tiny):
    path = tmp_path / "token.json"
    told = as_json(
        capsys, "export", "--what", "token", "--out", str(path), "--at", "2", *WORST, "--sites", "head"
    )
    recorded = timeline.open(path)
    assert (told["path"], told["spans"], told["edges"]) == (
        str(path),
        len(recorded),
        len(recorded.edge_source),
    )
    assert told["provenance"] == "measured"
    assert told["meta"]["token"] == 2
    assert told["meta"]["dropped_at"] == ["head"]
    assert list(recorded.frame().query("outcome == 'stale'").step) == [4]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "--out"),
        (("--out", "x.json", "--what", "nope"), "'nope'"),
        (("--out", "x.json", "--at", "2"), "--at goes with --what token"),
        (("--out", "x.json", "--sites", "head", "--drop", "join_matrix"), "--sites goes with --what token"),
        (("--out", "x.json", "--what", "token", "--spin", "0"), "--spin goes with --what race"),
        (("--out", "x.json", "--what", "token", "--at", "0"), "--at 0"),
        (("--out", "x.json", "--schedule", "fused", "--spin", "3"), "--spin"),
        (("--out", "x.json", "--steps", "0"), "steps=0"),
        (("--out", "/nowhere/at/all/race.json", "--steps", "1"), "/nowhere/at/all"),
    ],
)
def test_export_refuses_in_one_line(capsys, tiny, argv, words):
    assert words in refused(capsys, "export", *argv)


# --- bench ---

RATIOS = (
    *("decode_sequential", "decode_fused", "decode_deferred", "replay_enqueue", "replay_done"),
    *("hazards_step", "hazards_weight"),
    *("trace_open", "trace_open_json", "trace_bytes", "trace_report", "trace_picture", "trace_zoom"),
    "import",
)


def test_bench_runs_quickly_and_tells_every_figure(capsys):
    told = as_json(capsys, "bench", "--quick")
    assert tuple(told["ratios"]) == RATIOS
    assert told["quick"] is True
    assert told["provenance"] == "measured"
    assert told["not_measured"] == {}
    assert told["device"]["kind"] == "opencl"
    targets = {"decode_deferred": 0.8, "replay_enqueue": 1.5, "replay_done": 1.5, "import": 0.1}
    targets |= {"hazards_step": 3.0, "hazards_weight": 3.0, "trace_open": 3.0, "trace_bytes": 200.0}
    targets |= {"trace_report": 1.0, "trace_picture": 1.0, "trace_zoom": 0.1}
    for name, figure in told["ratios"].items():
        assert figure.keys() == {"definition", "value", "target", "met", "samples"}
        assert figure["target"] == targets.get(name)
        assert (figure["met"] is None) == (name not in targets)
        assert all(len(v) > 1 for v in figure["samples"].values() if isinstance(v, list))


def test_bench_as_text(capsys):
    out = run(capsys, "bench", "--quick", "--threads", "1", "--device", "opencl")
    assert "measured" in out
    assert "1 thread\n" in out
    for name in RATIOS:
        assert re.search(rf"^{name} +-?\d+\.\d+  ", out, re.M)
    assert "target: at least 0.8" in out
    assert "target: at most 1.5" in out


def test_bench_refuses_in_one_line(capsys):
    assert "'nope'" in refused(capsys, "bench", "--device", "nope")
    assert "--threads -1" in refused(capsys, "bench", "--threads", "-1")


def test_a_target_is_met_from_its_own_side():
    def ratio(value, target, at_least):
        return bench.Ratio("x", "", value, target, {}, at_least).met

    assert ratio(0.9, 0.8, True) is True
    assert ratio(0.7, 0.8, True) is False
    assert ratio(1.4, 1.5, False) is True
    assert ratio(1.6, 1.5, False) is False
    assert ratio(1.0, None, True) is None


def test_the_loop_written_by_hand_makes_the_same_calls():
    plan = opencl.open_device().prepare(schedule.deferred(*bench.SHAPE), steps=8)
    by_hand = inspect.getsource(bench._bare_loop).partition("for step in range(count):")[2]
    for call in (r"\bcopy\(", r"\blaunch\(", r"\.flush\(\)", r"\.finish\(\)"):
        assert len(re.findall(call, by_hand)) == len(re.findall(call, plan.source)), call


def test_no_speed_counts_where_the_text_is_wrong(monkeypatch):
    attach = decoding.attach

    def wrong(model, device, kind):
        attached = attach(model, device, kind)
        attached.sites["head"].plan.write("W_folded" if kind != "sequential" else "W", ZEROS)
        return attached

    import numpy as np

    ZEROS = np.zeros((256, 32), np.float32)
    monkeypatch.setattr(bench, "attach", wrong)
    with pytest.raises(LabError, match="another text"):
        bench.decode(*bench.tiny_model(), opencl.open_device(), tokens=2, rounds=1)
