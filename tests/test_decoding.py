"""A model attached to a device says what it says by itself; with a missing edge, what its sites read is told.

Races are forced here, so that nothing depends on luck. Tests marked `model` use SmolLM2.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from tiny_llama import PROMPT, SITES, Letters, make

from flashnorm_lab import decoding, folding, models, outcomes
from flashnorm_lab.devices import opencl
from flashnorm_lab.devices.base import Force
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES

TALK = "The transformer architecture revolutionized NLP because"


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


@pytest.fixture
def model():
    return make()


def written(model, tokens=12, prompt=PROMPT, **options):
    return list(decoding.generate(model, Letters(), prompt, tokens, **options))


def ids(tokens):
    return [t.id for t in tokens]


def attributes(model):
    return {name: dict(vars(module)) for name, module in model.named_modules()}


def refusal(call):
    with pytest.raises(LabError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- attaching and detaching ---


def test_detach_restores_the_model_exactly(model, device):
    before = attributes(model)
    prompt = decoding.prompt_ids(Letters(), PROMPT)
    with torch.no_grad():
        logits = model(prompt).logits
    attached = decoding.attach(model, device)
    assert "forward" in vars(model.model.norm)
    written(model, attached=attached)
    attached.detach()
    after = attributes(model)
    assert before.keys() == after.keys()
    for name, own in before.items():
        assert own.keys() == after[name].keys(), name
        assert all(after[name][key] is value for key, value in own.items()), name
    with torch.no_grad():
        assert torch.equal(model(prompt).logits, logits)
    attached.detach()  # a second time it does nothing
    assert attributes(model).keys() == before.keys()
    assert "forward" not in vars(model.model.norm)


def test_leaving_the_block_detaches_also_after_an_error(model, device):
    with pytest.raises(ZeroDivisionError), decoding.attach(model, device):
        raise ZeroDivisionError
    assert not any("forward" in own for own in attributes(model).values())


def test_a_second_attach_is_refused_and_the_first_stays(model, device):
    with decoding.attach(model, device) as attached:
        assert "model.layers.0.input_layernorm is attached" in refusal(lambda: decoding.attach(model, device))
        runs = attached.runs
        written(model, 2, attached=attached)
        assert attached.runs == runs + len(SITES)
    with decoding.attach(model, device):
        pass


@pytest.mark.parametrize("kind", ["sequential", "fused", "deferred"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_schedule_writes_the_stock_models_text(device, kind, tied):
    model = make(tie_word_embeddings=tied)
    stock = written(model, 24)
    assert len(set(ids(stock))) > 8, "a text that says one letter over and over would prove little"
    with decoding.attach(model, device, kind, judge=True) as attached:
        through = written(model, 24, attached=attached)
        assert attached.runs == 23 * len(SITES)
    assert ids(through) == ids(stock)
    assert "".join(t.text for t in through) == Letters().decode(ids(stock))
    assert [t.counts for t in through[1:]] == [{"fresh": 5, "stale": 0, "torn": 0, "early": 0}] * 23
    assert all(t.finite and t.seconds > 0 for t in through)


def test_logits_match_the_stock_models(model, device):
    first = decoding.prompt_ids(Letters(), PROMPT)
    following = torch.tensor([[7]])

    def logits(attached=None):
        _, cache = decoding.forward(model, first, None, attached)
        return decoding.forward(model, following, cache, attached)[0]

    stock = logits()
    with decoding.attach(model, device) as attached:
        torch.testing.assert_close(logits(attached), stock, rtol=1e-5, atol=1e-5)


def test_many_rows_at_once_run_through_torch(model, device):
    rows = torch.tensor([[3], [4]])
    with torch.no_grad():
        stock = model(rows).logits
        with decoding.attach(model, device) as attached:
            assert torch.equal(model(rows).logits, stock)
            assert attached.runs == 0


def test_bypassed_it_is_the_model_as_it_is(model, device):
    stock = written(model)
    with decoding.attach(model, device, drop=["join_matrix"], force="worst") as attached:
        wrong = written(model, attached=attached)
        runs = attached.runs
        with attached.bypass():
            assert ids(written(model)) == ids(stock)
        assert attached.runs == runs
        assert ids(written(model, attached=attached)) == ids(wrong) != ids(stock)


def test_gradients_do_not_reach_the_buffers(model, device):
    with decoding.attach(model, device) as attached:
        cache = model(decoding.prompt_ids(Letters(), PROMPT), use_cache=True).cache
        out = model(torch.tensor([[7]]), cache=cache, use_cache=True)
        model(torch.tensor([[8]]), cache=out.cache)
        assert not any(site.x.requires_grad for site in attached.sites.values())


# --- the missing edge ---


@pytest.fixture
def inputs(model):
    """What reaches each norm: {site: [x of every pass, for its last token]}."""
    seen = {site.name: [] for site in folding.find_sites(model)}

    def keep(name):
        return lambda module, arguments: seen[name].append(arguments[0][0, -1].clone())

    hooks = [site.norm.register_forward_pre_hook(keep(site.name)) for site in folding.find_sites(model)]
    yield seen
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize(
    ("edge", "hold", "source"),
    [
        ("join_matrix", "projection", "y of step t-1, r of step t"),
        ("join_vector", "inv_rms", "y of step t, r of step t-1"),
    ],
)
def test_the_worst_case_is_stale_at_every_site_in_every_step(model, device, inputs, edge, hold, source):
    stock = written(model)
    for seen in inputs.values():
        seen.clear()
    with decoding.attach(model, device, drop=[edge], force="worst", judge=True) as attached:
        assert attached.force == Force(hold, "post_scale")
        assert {h.repair for h in attached.hazards} == {edge}
        through = written(model, attached=attached)
    stale = 0
    for number, token in enumerate(through[1:], start=1):
        assert tuple(token.judged) == SITES
        for name, outcome in token.judged.items():
            same = torch.equal(inputs[name][number], inputs[name][number - 1])
            assert (outcome.label, outcome.source) == (("fresh", "") if same else ("stale", source))
            stale += outcome.label == "stale"
    # The first decode step as well: the prompt's pass has left its last token's y and r in the buffers.
    assert stale > 0.8 * 11 * len(SITES)
    assert through[0].judged == {}
    assert ids(through)[0] == ids(stock)[0]
    assert ids(through) != ids(stock)


@pytest.mark.parametrize(
    ("sites", "chosen"),
    [
        ("layers.1.qkv", SITES[2:3]),
        ("head", SITES[4:]),
        ("layers.*.gate_up", (SITES[1], SITES[3])),
        (["head", "layers.0.*"], (SITES[0], SITES[1], SITES[4])),
        ("all", SITES),
    ],
)
def test_edges_are_dropped_at_the_chosen_sites_only(model, device, sites, chosen):
    with decoding.attach(
        model, device, drop=["join_matrix"], sites=sites, force="worst", judge=True
    ) as attached:
        assert attached.chosen == chosen
        tally = decoding.Tally()
        for token in written(model, attached=attached)[1:]:
            tally.add(token.judged, len(SITES))
        for name, site in attached.sites.items():
            assert site.schedule.dropped == (("join_matrix",) if name in chosen else ())
    assert tuple(tally.sites) == SITES
    assert tuple(tally.wrong_sites) == chosen
    assert tally.not_judged == 0


def test_a_late_head_says_every_token_one_step_late(model, device):
    """With the reference's text fed in, the head's old y is the logits of the step before, scaled."""
    with decoding.attach(model, device, drop="join_matrix", sites="head", force="worst") as attached:
        text = decoding.prompt_ids(Letters(), "what was said before is said again")

        def choices(through):
            logits, cache = decoding.forward(model, text[:, :4], None, through)
            said = [int(logits.argmax())]
            for position in range(4, text.shape[1]):
                logits, cache = decoding.forward(model, text[:, position : position + 1], cache, through)
                said.append(int(logits.argmax()))
            return said

        late = choices(attached)
        with attached.bypass():
            right = choices(None)
    assert late[1:] == right[:-1]
    assert late[0] == right[0]
    assert right[1:] != right[:-1]


def test_the_force_can_be_changed_while_attached(model, device):
    with decoding.attach(model, device, drop=["join_matrix"], force="worst", judge=True) as attached:
        wrong = ids(written(model, attached=attached))
        attached.set_force(None)
        assert attached.force is None
        assert not any(site.force for site in attached.sites.values())
        attached.set_force("projection:post_scale")
        assert attached.force == Force("projection", "post_scale")
        assert ids(written(model, attached=attached)) == wrong


def test_with_all_edges_nothing_can_be_forced(model, device):
    with decoding.attach(model, device, force="worst", judge=True) as attached:
        assert (attached.force, attached.hazards) == (None, ())
        assert all(t.counts["fresh"] == 5 for t in written(model, attached=attached)[1:])
        assert "post_scale waits for projection" in refusal(
            lambda: attached.set_force("projection:post_scale")
        )


def test_a_prompt_of_one_token_primes_the_buffers_too(model, device):
    stock = written(model, prompt="n")
    with decoding.attach(model, device) as attached:
        assert ids(written(model, prompt="n", attached=attached)) == ids(stock)
    with decoding.attach(model, device, drop=["join_matrix"], force="worst", judge=True) as attached:
        token = written(model, 2, prompt="n", attached=attached)[1]
        assert token.counts["torn"] == 0
        assert token.finite


def test_a_token_that_was_broken_off_is_forgotten(model, device):
    with decoding.attach(model, device, judge=True) as attached:
        first = decoding.prompt_ids(Letters(), PROMPT)
        _, cache = decoding.forward(model, first, None, attached)
        decoding.forward(model, torch.tensor([[7]]), cache, attached)  # and never finished
        counts = written(model, 2, attached=attached)[1].counts
        assert counts == {"fresh": 5, "stale": 0, "torn": 0, "early": 0}


def test_a_site_whose_input_overflowed_is_not_judged(model, device):
    with torch.no_grad():  # a layer that makes everything behind it infinite
        model.model.layers[0].mlp.down_proj.weight.fill_(1e38)
    with decoding.attach(model, device, judge=True) as attached:
        token = written(model, 2, attached=attached)[1]
    assert tuple(token.judged) == SITES[:2]
    assert not token.finite
    tally = decoding.Tally()
    tally.add(token.judged, len(SITES))
    assert tally.not_judged == 3


# --- the timeline of a token ---


@pytest.mark.parametrize(("kind", "launches"), [("sequential", 2), ("fused", 1), ("deferred", 3)])
def test_a_recorded_token_has_every_sites_launches(model, device, kind, launches):
    kept = {}
    with decoding.attach(model, device, kind, judge=True) as attached:
        options = {"attached": attached, "record": kept.__setitem__, "record_tokens": [0, 3]}
        recorded = written(model, 5, **options)
    assert ids(recorded) == ids(written(model, 5))
    (number,) = kept  # token 0 comes from the prompt, which has no decode step
    assert number == 3
    frame = kept[3].frame()
    assert list(frame[frame.category == "range"].name) == list(SITES)
    kernels = frame[frame.category == "kernel"]
    assert sorted(kernels.step.unique()) == list(range(len(SITES)))
    assert (kernels.groupby("step").size() == launches).all()
    assert len(frame[frame.outcome == "fresh"]) == len(SITES)
    meta = kept[3].meta
    assert (meta["schedule"], meta["dropped"], meta["dropped_at"], meta["token"]) == (kind, [], [], 3)


def test_a_recorded_token_marks_the_stale_reads(model, device):
    kept = {}
    wiring = {"drop": ["join_matrix"], "sites": "layers.*.gate_up", "force": "worst"}
    with decoding.attach(model, device, judge=True, **wiring) as attached:
        written(model, 2, attached=attached, record=kept.__setitem__, record_tokens=[1])
    frame = kept[1].frame()
    assert set(frame[frame.outcome != ""].name) == {"post_scale"}
    assert list(frame[frame.outcome == "stale"].step) == [1, 3]
    assert list(frame[frame.outcome == "fresh"].step) == [0, 2, 4]
    assert kept[1].meta["dropped"] == ["join_matrix"]
    assert kept[1].meta["dropped_at"] == ["layers.0.gate_up", "layers.1.gate_up"]


# --- bad input ---


def test_an_unknown_site_or_edge_is_named(model, device):
    text = refusal(
        lambda: decoding.attach(model, device, drop=["join_matrix"], sites=["head", "layers.2.qkv"])
    )
    assert "'layers.2.qkv'" in text
    assert "layers.0.qkv, layers.0.gate_up, ..., head" in text
    text = refusal(lambda: decoding.attach(model, device, drop=["join"]))
    assert "'join'" in text
    assert all(edge in text for edge in EDGES)
    assert "one stream needs none" in refusal(
        lambda: decoding.attach(model, device, "fused", drop=["join_matrix"])
    )
    assert "'deferrred'" in refusal(lambda: decoding.attach(model, device, "deferrred"))
    assert "'nope'" in refusal(
        lambda: decoding.attach(model, device, drop=["join_matrix"], force="nope:post_scale")
    )
    assert not any("forward" in own for own in attributes(model).values())


@pytest.mark.parametrize("kind", ["sequential", "fused", "deferred"])
@pytest.mark.parametrize("path", ["model.layers.1.mlp.up_proj", "model.layers.0.input_layernorm"])
def test_nan_weights_are_refused_by_name(model, device, kind, path):
    with torch.no_grad():
        model.get_submodule(path).weight.view(-1)[5] = math.nan
    text = refusal(lambda: decoding.attach(model, device, kind))
    assert path in text
    assert "NaN" in text
    assert not any("forward" in own for own in attributes(model).values())


def test_another_dtype_or_place_is_refused(model, device):
    assert "torch.float16" in refusal(lambda: decoding.attach(make().half(), device))
    assert "on meta" in refusal(lambda: decoding.attach(make().to("meta"), device))


@pytest.mark.parametrize("tokens", [0, -1, 1.5, True, None])
def test_a_number_of_tokens_that_is_none_is_refused(model, tokens):
    assert f"tokens={tokens!r}" in refusal(lambda: written(model, tokens))


def test_an_empty_prompt_is_refused(model):
    assert "the prompt is empty" in refusal(lambda: written(model, prompt=""))


# --- generate ---


def test_generate_stops_at_the_end_token_unless_told_to_go_on(model):
    stock = written(model)
    tokenizer = Letters()
    tokenizer.eos_token_id = stock[3].id
    stop = ids(stock).index(stock[3].id)
    said = list(decoding.generate(model, tokenizer, PROMPT, 12))
    assert ids(said) == ids(stock)[: stop + 1]
    assert ids(decoding.generate(model, tokenizer, PROMPT, 12, beyond_end=True)) == ids(stock)


def test_generate_agrees_with_transformers_own(model):
    prompt = decoding.prompt_ids(Letters(), PROMPT)
    options = {"attention_mask": torch.ones_like(prompt), "do_sample": False, "pad_token_id": 0}
    own = model.generate(prompt, max_new_tokens=12, **options)
    assert own[0, prompt.shape[1] :].tolist() == ids(written(model))


def test_first_divergence():
    assert decoding.first_divergence([1, 2, 3], [1, 2, 3]) is None
    assert decoding.first_divergence([1, 2, 3], [1, 5, 3]) == 1
    assert decoding.first_divergence([1, 2], [1, 2, 3]) == 2
    assert decoding.first_divergence([], [4]) == 0


def test_a_tally_adds_up():
    outcome = {label: outcomes.Outcome(label, np.zeros(1, np.int8)) for label in outcomes.LABELS}
    tally = decoding.Tally()
    tally.add({"layers.0.qkv": outcome["stale"], "head": outcome["fresh"]}, 3)
    tally.add(
        {"layers.0.qkv": outcome["torn"], "layers.1.qkv": outcome["fresh"], "head": outcome["fresh"]}, 3
    )
    assert tally.counts == {"fresh": 3, "stale": 1, "torn": 1, "early": 0}
    assert tally.kinds == {
        "qkv": {"fresh": 1, "stale": 1, "torn": 1, "early": 0},
        "head": {"fresh": 2, "stale": 0, "torn": 0, "early": 0},
    }
    assert tally.wrong_sites == {"layers.0.qkv": {"fresh": 0, "stale": 1, "torn": 1, "early": 0}}
    assert tally.not_judged == 1


# --- SmolLM2 ---


@pytest.fixture(scope="module")
def speaker():
    return models.smollm2()


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize(
    "prompt",
    [
        TALK,
        "Once upon a time, in a small village by the sea,",
        "def fibonacci(n):\n",
    ],
)
def test_with_all_edges_256_tokens_are_the_stock_models(speaker, device, prompt):
    def say(attached=None):
        options = {"attached": attached, "beyond_end": True}
        return ids(decoding.generate(speaker.model, speaker.tokenizer, prompt, 256, **options))

    stock = say()
    with decoding.attach(speaker.model, device) as attached:
        assert say(attached) == stock
        assert attached.runs == 255 * 61
    assert len(stock) == 256


@pytest.mark.model
@pytest.mark.slow
def test_without_join_matrix_the_talks_prompt_is_spoken_wrong_and_where_is_told(speaker, device):
    def say(attached=None):
        return list(decoding.generate(speaker.model, speaker.tokenizer, TALK, 16, attached=attached))

    stock = say()
    assert "".join(t.text for t in stock).startswith(" it enabled the creation of a single")
    with decoding.attach(speaker.model, device, drop=["join_matrix"], judge=True) as attached:
        attached.set_force("worst")
        forced, tally = say(attached), decoding.Tally()
        for token in forced[1:]:
            tally.add(token.judged, 61)
    assert decoding.first_divergence(ids(forced), ids(stock)) == 1
    assert len(tally.wrong_sites) == 61
    assert tally.counts["stale"] > 0.95 * 15 * 61
    assert sum(tally.counts.values()) + tally.not_judged == 15 * 61
    assert tally.kinds.keys() == {"qkv", "gate_up", "head"}
    assert tally.kinds["head"] == {"fresh": 0, "stale": 15, "torn": 0, "early": 0}


@pytest.mark.model
def test_a_late_head_doubles_the_words_of_the_talks_prompt(speaker, device):
    wiring = {"drop": ["join_matrix"], "sites": "head", "force": "worst"}
    with decoding.attach(speaker.model, device, judge=True, **wiring) as attached:
        said = list(decoding.generate(speaker.model, speaker.tokenizer, TALK, 4, attached=attached))
    assert "".join(t.text for t in said) == " it it enabled allowed"
    assert all(t.counts == {"fresh": 60, "stale": 1, "torn": 0, "early": 0} for t in said[1:])
    assert said[1].judged["head"].label == "stale"


def test_a_token_is_a_plain_record():
    token = decoding.Token(1, 2, "x", 0.5, {})
    assert token.counts == {"fresh": 0, "stale": 0, "torn": 0, "early": 0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        token.id = 3
