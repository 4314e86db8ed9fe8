"""What each check sees of a missing edge, with the worst case forced, and that its reasons are measured."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tiny_llama import PROMPT, SITES, Letters, make

from flashnorm_lab import checks, decoding, models
from flashnorm_lab.checks import Wiring
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError

TEXT = "a text that the model reads"
TOKENS = 20


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


@pytest.fixture(scope="module")
def model():
    return make()


def attach(model, device, drop=(), sites="all", force="worst"):
    return decoding.attach(model, device, drop=drop, sites=sites, force=force if drop else None)


WIRINGS = {
    "all edges": {},
    "everywhere": {"drop": ["join_matrix"]},
    "head": {"drop": ["join_matrix"], "sites": "head"},
    "one layer": {"drop": ["join_matrix"], "sites": "layers.1.qkv"},
    "vector": {"drop": ["join_vector"]},
}


def wired(check):
    """Run a check for each wiring."""
    return pytest.mark.parametrize("wiring", WIRINGS)(check)


# --- the unit check ---


@wired
def test_the_unit_check_passes_whatever_is_missing_and_tells_why(model, device, wiring):
    with attach(model, device, **WIRINGS[wiring]) as attached:
        found = checks.unit_check(attached)
        chosen = len(attached.chosen)
    assert found.passes
    assert found.verdict == "passes"
    assert (found.saw["sites"], found.saw["wrong"]) == (5, 0)
    if wiring == "all edges":
        assert found.saw["wrong_after_another"] == 0
        assert found.saw["held"] == {}
        assert "also on another input" in found.why
        assert "luck" not in found.why
    else:
        buffer = "r" if wiring == "vector" else "y"
        assert found.saw["held"] == {buffer: 5}
        assert found.saw["wrong_after_another"] == chosen
        counts = {"fresh": 5 - chosen, "stale": chosen, "torn": 0, "early": 0}
        assert found.saw["outcomes_after_another"] == counts
        assert f"{buffer} already held the right values at 5 of 5 sites" in found.why
        assert f"on another input {chosen} of 5 give wrong values" in found.why


@wired
def test_the_unit_check_catches_every_wiring_if_it_warms_up_on_another_input(model, device, wiring):
    with attach(model, device, **WIRINGS[wiring]) as attached:
        found = checks.unit_check(attached, warm_up="another")
        late = 0 if wiring == "all edges" else len(attached.chosen)
    assert found.passes == (wiring == "all edges")
    assert found.saw["wrong"] == found.saw["wrong_after_another"] == late
    assert found.saw["outcomes"] == {"fresh": 5 - late, "stale": late, "torn": 0, "early": 0}
    assert set(found.saw["held"].values()) <= {0}
    if late:
        assert found.why == f"{late} of 5 sites gave wrong values; the call before had another input."
    else:
        assert found.why == "All 5 sites gave the right values, also on another input than the one before."


def test_the_unit_check_refuses_a_warm_up_that_there_is_not(model, device):
    with (
        decoding.attach(model, device) as attached,
        pytest.raises(LabError, match=r"^warm_up='other' is not one of 'same', 'another'$"),
    ):
        checks.unit_check(attached, warm_up="other")


def test_the_unit_check_says_that_it_was_lucky(model, device):
    """Without the edge but with every launch waited for: right values that nothing guarantees."""
    with decoding.attach(model, device, drop=["join_matrix"], force="inv_rms:projection") as attached:
        for site in attached.sites.values():
            step = site.step

            def patient(force=None, site=site, step=step):
                step(force)
                attached.device.wait()
                # What post_scale would have read had it come late enough.
                torch.mul(site.plan.tensor("y"), site.plan.tensor("r"), out=site.z)

            site.step = patient
        found = checks.unit_check(attached)
    assert found.passes
    assert found.saw["wrong_after_another"] == 0
    assert found.why.endswith("which is luck, since nothing orders the read.")


def test_the_unit_check_fails_where_the_values_are_wrong(model, device):
    with decoding.attach(model, device) as attached:
        site = attached.sites["layers.0.gate_up"]
        site.weights["W_folded"][3, 4] += 10  # the reference follows; the device reads the very same memory
        assert checks.unit_check(attached).passes
        site.weights["W_folded"] = site.weights["W_folded"].clone()
        site.weights["W_folded"][3, 4] -= 10
        found = checks.unit_check(attached)
    assert not found.passes
    assert found.saw["wrong"] == 1
    assert found.why.startswith("1 of 5 sites gave wrong values")


# --- perplexity ---


@wired
def test_perplexity_in_one_pass_cannot_see_any_wiring(model, device, wiring):
    with attach(model, device, **WIRINGS[wiring]) as attached:
        found = checks.perplexity(attached, Letters(), TEXT)
    assert found.passes
    assert found.check == "perplexity, one pass"
    assert found.saw["perplexity"] == found.saw["stock"]
    assert (found.saw["through_schedule"], found.saw["of"]) == (0, 5 * len(TEXT))
    assert "0 norm-projections through the schedule" in found.why


@wired
def test_perplexity_step_by_step_runs_through_the_schedule(model, device, wiring):
    with attach(model, device, **WIRINGS[wiring]) as attached:
        found = checks.perplexity(attached, Letters(), TEXT, "step by step")
        chosen = len(attached.chosen) if wiring != "all edges" else 0
    saw = found.saw
    assert saw["tokens"] == len(TEXT) - 3
    assert saw["through_schedule"] == saw["of"] == 5 * (len(TEXT) - 3)
    assert saw["fresh"] + saw["stale"] + saw["torn"] + saw["not_judged"] == saw["of"]
    if wiring == "all edges":
        assert saw["stale"] == saw["torn"] == 0
        assert saw["perplexity"] == pytest.approx(saw["stock"], rel=1e-4)
        assert found.passes
        assert "read fresh data" in found.why
    else:
        # Inputs that come twice in a row at a site are few in this text.
        assert 0.8 * chosen <= saw["stale"] / saw["tokens"] <= chosen
        assert saw["perplexity"] != pytest.approx(saw["stock"], rel=1e-4)
        assert found.passes == (saw["perplexity"] <= 1.01 * saw["stock"])
        assert f"{saw['stale'] + saw['torn']} of {saw['of']} norm-projections read stale" in found.why


def test_both_paths_give_the_perplexity_by_its_definition(model, device):
    ids = decoding.prompt_ids(Letters(), TEXT)
    with torch.no_grad():
        likelihood = model(ids).logits[0].double().log_softmax(-1)
    mean = -sum(float(likelihood[i - 1, ids[0, i]]) for i in range(3, len(TEXT))) / (len(TEXT) - 3)
    with decoding.attach(model, device) as attached:
        for path in checks.PATHS:
            stock = checks.perplexity(attached, Letters(), TEXT, path).saw["stock"]
            assert stock == pytest.approx(math.exp(mean), rel=1e-4)


def test_a_known_stock_value_is_believed_and_a_lower_perplexity_passes(model, device):
    with decoding.attach(model, device) as attached:
        assert not checks.perplexity(attached, Letters(), TEXT, stock=1.0).passes
        assert checks.perplexity(attached, Letters(), TEXT, stock=1e9).passes


def test_a_perplexity_that_is_no_number_fails_and_is_plain_json(model, device):
    broken = make()
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight.fill_(1e38)
    with decoding.attach(broken, device) as attached:
        found = checks.perplexity(attached, Letters(), TEXT, "step by step", stock=50.0)
    assert not found.passes
    assert found.saw["perplexity"] is None
    assert found.saw["not_judged"] > 0
    assert "perplexity not a finite number, the stock model's 50" in found.why
    assert "NaN" not in json.dumps(found.as_dict())


def test_perplexity_refuses_what_it_cannot_measure(model, device):
    with decoding.attach(model, device) as attached:
        with pytest.raises(LabError, match="path='prefill' is not one of 'one pass', 'step by step'"):
            checks.perplexity(attached, Letters(), TEXT, "prefill")
        with pytest.raises(LabError, match="the text has 3 tokens; perplexity needs at least 4"):
            checks.perplexity(attached, Letters(), "abc")
        with pytest.raises(LabError, match="empty"):
            checks.perplexity(attached, Letters(), "")


# --- long generation ---


@wired
def test_long_generation_tells_where_the_text_goes_wrong(model, device, wiring):
    with attach(model, device, **WIRINGS[wiring]) as attached:
        found = checks.long_generation(attached, Letters(), PROMPT, TOKENS)
        with attached.bypass():
            stock = list(decoding.generate(model, Letters(), PROMPT, TOKENS))
        again = list(decoding.generate(model, Letters(), PROMPT, TOKENS, attached=attached))
        chosen = attached.chosen
    saw = found.saw
    assert saw["reference"] == "".join(t.text for t in stock)
    assert saw["text"] == "".join(t.text for t in again)
    assert saw["first_divergence"] == decoding.first_divergence([t.id for t in again], [t.id for t in stock])
    assert saw["fresh"] + saw["stale"] + saw["torn"] == 5 * (TOKENS - 1)
    assert found.passes == all(verdict == "passes" for verdict in saw["signals"].values())
    if wiring == "all edges":
        assert found.passes
        assert saw["sites"] == {}
        assert saw["lag"]["share"] == 0
        assert saw["lag"]["own"] == pytest.approx(1, abs=1e-6)
        assert found.why.startswith(
            "All 20 tokens are the stock model's; 0 of 95 norm-projections read stale"
        )
    else:
        assert not found.passes
        assert tuple(saw["sites"]) == chosen
        assert saw["signals"]["first divergence"] == "fails"
        assert found.why.startswith(
            f"Token {saw['first_divergence']} is the first that is not the stock model's"
        )


def test_a_late_head_alone_is_a_perfect_lag_of_one_step(model, device):
    with attach(model, device, **WIRINGS["head"]) as attached:
        found = checks.long_generation(attached, Letters(), PROMPT, TOKENS)
    lag = found.saw["lag"]
    assert lag["share"] == 1
    assert lag["previous"] == pytest.approx(1, abs=1e-6)
    assert lag["own"] < 0.9
    assert found.saw["signals"]["one-step lag"] == "fails"
    assert found.saw["kinds"]["qkv"]["stale"] == found.saw["kinds"]["gate_up"]["stale"] == 0
    assert "(all at head)" in found.why
    assert f"{lag['steps']} of {lag['steps']} steps match the step before better" in found.why


def test_a_layer_that_is_late_is_not_a_late_output(model, device):
    with attach(model, device, **WIRINGS["one layer"]) as attached:
        lag = checks.long_generation(attached, Letters(), PROMPT, TOKENS).saw["lag"]
    assert lag["share"] < 0.5
    assert lag["own"] > lag["previous"]


def test_a_reference_is_used_again(model, device):
    with attach(model, device, **WIRINGS["head"]) as attached:
        known = checks.reference(attached, Letters(), PROMPT, TOKENS)
        assert known.logits.shape == (TOKENS, 95)
        assert known.logits.argmax(-1).tolist() == known.tokens  # it reads its own greedy text
        assert known.text == Letters().decode(known.tokens)
        first = checks.long_generation(attached, Letters(), PROMPT, TOKENS)
        assert checks.long_generation(attached, Letters(), PROMPT, TOKENS, known).as_dict() == first.as_dict()


def test_a_text_of_one_token_has_no_step_to_compare(model, device):
    with attach(model, device, **WIRINGS["head"]) as attached:
        found = checks.long_generation(attached, Letters(), PROMPT, 1)
    assert found.passes
    assert found.saw["lag"] == {"share": 0.0, "steps": 0, "own": None, "previous": None}
    assert found.why.endswith("No step could be compared with the one before.")


def test_overflow_is_told_from_its_first_token(device):
    broken = make()
    with decoding.attach(broken, device) as attached:
        known = checks.reference(attached, Letters(), PROMPT, 4)
        attached.sites["head"].weights["W_folded"].fill_(3e38)
        found = checks.long_generation(attached, Letters(), PROMPT, 4, known)
    assert found.saw["not_finite"] == 1
    assert "from token 1 on the logits are not finite numbers" in found.why
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["verdict"] == "fails"


def test_repeated_ngrams():
    assert checks.repeated_ngrams([1, 2, 3, 4, 5]) == 0
    assert checks.repeated_ngrams([1, 1, 1, 1, 1, 1]) == pytest.approx(3 / 4)
    assert checks.repeated_ngrams([1, 2, 3, 1, 2, 3]) == pytest.approx(1 / 4)
    assert checks.repeated_ngrams([1, 2]) == 0
    assert checks.repeated_ngrams([1, 2, 1, 2, 1], n=2) == pytest.approx(2 / 4)


def test_one_step_lag_on_made_up_logits():
    steps = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    right = checks.one_step_lag(steps, steps)
    assert (right["share"], right["steps"]) == (0.0, 8)
    assert right["own"] == pytest.approx(1)
    late = steps.roll(1, 0) * 0.3 - 2  # one late, and scaled and shifted besides
    found = checks.one_step_lag(late, steps)
    assert found["share"] == 1
    assert found["previous"] == pytest.approx(1)
    steps[3] = steps[2]  # the same step twice cannot tell
    assert checks.one_step_lag(steps, steps)["steps"] == 7
    late[5, 0] = math.nan
    assert checks.one_step_lag(late, steps)["steps"] == 6
    assert checks.one_step_lag(late[:1], steps[:1])["steps"] == 0


# --- all of them ---


def test_compare_has_a_row_for_each_wiring_free_and_forced(model, device):
    seen = []
    rows = checks.compare(
        model,
        Letters(),
        device,
        [Wiring("whole"), Wiring("late head", ("join_matrix",), "head")],
        prompt=PROMPT,
        tokens=8,
        text=TEXT,
        each=seen.append,
    )
    assert rows == seen
    assert [(row["wiring"], row["forced"]) for row in rows] == [
        ("whole", False),
        ("late head", False),
        ("late head", True),
    ]
    columns = ("unit check", *(f"perplexity, {path}" for path in checks.PATHS))
    signals = ("first divergence", "repeated n-grams", "one-step lag")
    for row in rows:
        assert {row[name] for name in (*columns, *signals)} <= {"passes", "fails"}
        assert row["why"].keys() == {*columns, "long generation"}
        assert row["of"] == 7 * 5
    whole, _, forced = rows
    assert whole["stale"] == 0
    assert all(whole[name] == "passes" for name in (*columns, *signals))
    assert forced["stale"] == 7
    assert [forced[name] for name in columns[:2]] == ["passes", "passes"]
    assert forced["first divergence"] == forced["one-step lag"] == "fails"
    assert not any("forward" in vars(module) for module in model.modules())
    json.dumps(rows)


def test_the_usual_wirings_fit_the_model(model, device):
    usual = checks.usual_wirings(model)
    assert [(w.drop, w.sites) for w in usual] == [
        ((), "all"),
        (("join_matrix",), "all"),
        (("join_matrix",), "head"),
        (("join_matrix",), SITES[2]),
        (("join_vector",), "all"),
    ]
    assert len({w.name for w in usual}) == 5


@pytest.mark.model
@pytest.mark.slow
def test_the_checks_on_smollm2(device):
    speaker = models.smollm2()
    wirings = [w for w in checks.usual_wirings(speaker.model) if "head" in w.name or "15" in w.name]
    rows = checks.compare(speaker.model, speaker.tokenizer, device, wirings, tokens=8)
    late_head, late_layer = (row for row in rows if row["forced"])
    for row in (late_head, late_layer):
        assert row["unit check"] == row["perplexity, one pass"] == "passes"
    assert late_head["perplexity, step by step"] == "fails"
    assert late_head["one-step lag"] == late_head["first divergence"] == "fails"
    assert late_layer["one-step lag"] == late_layer["repeated n-grams"] == "passes"
    assert late_layer["stale"] == 7
