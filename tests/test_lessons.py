"""What stands behind the notebooks' cells: curves, counts, measurements, spoken texts, and the sliders."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tiny_llama import PROMPT, SITES, Letters, make

from flashnorm_lab import algebra, figures, folding, lessons, models, race
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError

SMALLEST, ONE, LARGEST = 0, 20, -1
"""Places in `lessons.SIZES` of the smallest size, of 1, and of the largest."""


@pytest.fixture(scope="module")
def device():
    return opencl.open_device()


@pytest.fixture
def lab():
    return models.Model(make(), Letters(), "tiny", "")


def refusal(call):
    with pytest.raises(LabError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


# --- notebook 01: curves ---


def test_the_sizes_are_where_the_tests_look_for_them():
    assert lessons.SIZES[ONE] == 1
    assert lessons.SIZES[SMALLEST] < 1e-5
    assert lessons.SIZES[LARGEST] > 1e3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 37, 576])
def test_three_orders_differ_by_roundings_only(n, dtype):
    c = lessons.same_value(n, dtype, eps=1e-6)
    assert list(c.lines) == ["textbook", "1: gain folded", "2: division deferred"]
    for name, errors in c.lines.items():
        assert errors.shape == lessons.SIZES.shape
        assert errors.max() < 40, name
    assert sum(errors.max() for errors in c.lines.values()) > 0.5


def test_an_unscaled_product_in_float16_fails_at_both_ends():
    c = lessons.same_value(576, "float16")
    textbook, deferred = c.lines["textbook"], c.lines["2: division deferred"]
    assert textbook.max() < 5
    assert deferred[ONE] < 5
    assert deferred[SMALLEST] > 3 * textbook[SMALLEST]
    assert not np.isfinite(deferred[LARGEST])


def test_two_norms_in_a_row_cancel_but_for_eps():
    as_it_is, exact = lessons.second_norm(64, "float64", 1e-5).lines.values()
    assert exact.max() < 1e-12
    assert as_it_is[SMALLEST] > 0.5
    assert as_it_is[LARGEST] < 1e-5
    assert np.all(np.diff(as_it_is[ONE - 8 : ONE]) < 0)
    no_eps, _ = lessons.second_norm(64, "float64", 0.0).lines.values()
    assert no_eps.max() < 1e-12


def test_a_bias_that_is_divided_too_goes_unnoticed_at_size_one_only():
    divided, after = lessons.with_bias(64, "float64", 1e-5).lines.values()
    assert after.max() < 1e-12
    assert int(np.argmin(divided)) == ONE
    assert divided[SMALLEST] > 100 * divided[ONE]
    assert divided[LARGEST] > 3 * divided[ONE]


@pytest.mark.parametrize("spread", [0.01, 0.1])
def test_another_reader_misses_the_gain_and_then_the_division(spread):
    deferred, folded = lessons.other_reader(2048, spread).lines.values()
    np.testing.assert_allclose(folded, spread, rtol=0.1)
    assert deferred[LARGEST] == pytest.approx(lessons.SIZES[LARGEST], rel=0.1)
    assert np.all(lessons.other_reader(2048, 0.0).lines["after 1: it sees x·r"] == 0)


def test_a_width_or_dtype_that_cannot_be_is_named():
    assert "'int8'" in refusal(lambda: lessons.same_value(dtype="int8"))
    assert "n=0" in refusal(lambda: lessons.with_bias(n=0))
    assert "n=True" in refusal(lambda: lessons.other_reader(n=True))


def test_curves_leave_gaps_where_there_is_nothing_to_show():
    values = np.array([1.0, np.inf, np.nan, 0.0, 100.0])
    c = lessons.Curves("<t>", "note", "x", "y", np.array([1.0, 2, 4, 8, 16]), {"<b>a</b>": values})
    figure = figures.curves(c)
    assert np.isnan(figure.data[0].y).tolist() == [False, True, True, True, False]
    assert figure.data[0].name == "&lt;b&gt;a&lt;/b&gt;"
    low, high = figure.layout.yaxis.range
    assert low < 0 < 2 < high
    axes = figures.curves_static(c).axes[0]
    assert np.isnan(axes.lines[0].get_ydata()).tolist() == [False, True, True, True, False]
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_curves_without_a_single_point_can_be_drawn():
    c = lessons.Curves("t", "n", "x", "y", np.array([1.0, 2.0]), {"a": np.array([np.nan, 0.0])})
    assert figures.curves(c).layout.yaxis.range == (-1, 1)


# --- the sliders ---


def test_sliders_start_with_the_defaults_and_follow_a_change():
    from flashnorm_lab.widgets import Sliders

    asked = []

    def compute(n=576, dtype="float32", eps=1e-5):
        asked.append((n, dtype, eps))
        return lessons.second_norm(16, dtype, eps)

    sliders = Sliders(compute, n=[4, 576], dtype=lessons.DTYPES, eps=[1e-3, 1e-2])
    assert asked == [(576, "float32", 1e-3)]
    before = sliders.picture.figure
    sliders.controls["dtype"].value = "float64"
    sliders.controls["n"].value = 4
    assert asked[1:] == [(576, "float64", 1e-3), (4, "float64", 1e-3)]
    assert "float64" in json.loads(sliders.picture.figure)["layout"]["title"]["subtitle"]["text"]
    assert sliders.picture.figure != before
    assert sliders.error is None


def test_sliders_show_an_error_and_recover():
    from flashnorm_lab.widgets import Sliders

    sliders = Sliders(lessons.same_value, n=[1, 0])
    shown = sliders.picture.figure
    sliders.controls["n"].value = 0
    assert isinstance(sliders.error, LabError)
    assert "n=0" in sliders.message.value
    assert sliders.picture.figure == shown
    sliders.controls["n"].value = 1
    assert (sliders.error, sliders.message.value) == (None, "")


def test_sliders_are_a_picture_where_widgets_cannot_run():
    from flashnorm_lab.widgets import Sliders

    bundle = Sliders(lessons.other_reader, spread=[0.5, 0.1])._repr_mimebundle_()
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "Sliders of other_reader: spread = 0.1"
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_sliders_name_a_setting_that_there_is_not():
    from flashnorm_lab.widgets import Sliders

    assert "'width'" in refusal(lambda: Sliders(lessons.same_value, width=[1]))
    assert "n=[]" in refusal(lambda: Sliders(lessons.same_value, n=[]))


# --- notebook 02: counts and costs ---


def test_norms_in_a_decode_step():
    assert lessons.norm_launches() == {"SmolLM2-135M": 61, "Llama-3.2-1B": 33, "Llama-3.1-8B": 65}


def test_operations_are_those_of_the_model_s_own_weights():
    model = make()
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear)]
    norms = [site.norm for site in folding.find_sites(model)]
    counted = lessons.operations(model.config, context=7)
    products = counted["projections behind a norm"] + counted["other projections"]
    assert products == sum(2 * m.weight.numel() for m in linears)
    assert counted["norms"] == sum(4 * norm.weight.numel() for norm in norms)
    c = model.config
    assert counted["attention"] == c.num_hidden_layers * c.num_attention_heads * c.head_dim * 7 * 2 * 2
    assert lessons.operations(c.to_dict(), context=7) == counted


def test_shares_are_parts_of_a_hundred():
    assert lessons.shares({"a": 1, "b": 3}) == {"a": 25.0, "b": 75.0}


def test_the_time_of_the_norms_is_the_norms_own(lab, monkeypatch):
    import time

    norm = type(folding.find_sites(lab.model)[0].norm)
    plain = norm.forward

    def slow(self, hidden):
        time.sleep(0.02)
        return plain(self, hidden)

    monkeypatch.setattr(norm, "forward", slow)
    measured = lessons.time_norms(lab, tokens=6, prompt=PROMPT)
    assert (measured.norms, measured.steps) == (len(SITES), 3)
    assert measured.norms_ns >= 2e7 * len(SITES)
    assert 0.5 < measured.share < 1
    both = measured.beside({"norms": 1, "rest": 3})
    assert list(both.values()) == [25.0, 100 * measured.share]
    assert "torch" in measured.device
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in lab.model.modules())


def test_too_few_tokens_to_time_are_refused(lab):
    assert "tokens=3" in refusal(lambda: lessons.time_norms(lab, tokens=3, prompt=PROMPT))


def test_a_launch_costs_something(device):
    cost = lessons.launch_cost(device, n=96, launches=20)
    assert min(cost.call_ns, cost.start_ns, cost.norm_ns) > 0
    assert cost.empty_ns >= 0
    assert (cost.n, cost.launches, cost.device) == (96, 20, device.name)
    assert list(cost.bars().values()) == [
        ns / 1000 for ns in (cost.call_ns, cost.start_ns, cost.empty_ns, cost.norm_ns)
    ]


# --- notebook 03: kernels ---


@pytest.mark.parametrize("name", ["inv_rms", "projection", "post_scale", "spin"])
def test_a_translation_stands_beside_its_original(name):
    both = lessons.translation(name)
    for same, left, right in zip(both.same, both.left, both.right, strict=True):
        assert same == (left.split("//")[0].rstrip() == right.rstrip())
        assert "#line" not in left
    assert not any("__global__" in line or "__syncthreads" in line for line in both.right)
    assert any("__kernel" in line for line in both.right)
    assert f"{both.same.count(False)} of {len(both.same)}" in both._repr_html_()
    assert "i &lt; n" in lessons.translation("inv_rms")._repr_html_()
    assert str(both).count("\n+ ") == both.same.count(False)


def test_the_barriers_that_notebook_03_asks_for():
    assert sum("barrier(" in line for line in lessons.translation("inv_rms").right) == 3


def test_kernels_compile_to_a_table():
    table = lessons.compile_table(["inv_rms", "post_scale"], ["sm_80", "sm_90"])
    assert list(table["kernel"]) == ["inv_rms", "inv_rms", "post_scale", "post_scale"]
    assert (table["spilled bytes"] == 0).all()
    assert (table["registers a thread"] > 0).all()
    assert list(table["shared bytes a block"]) == [1024, 1024, 0, 0]
    assert "sm_1" in refusal(lambda: lessons.compile_table(archs=["sm_1"]))


def test_without_cupy_the_table_says_so(monkeypatch):
    monkeypatch.setattr(lessons, "find_spec", lambda name: None)
    assert "CuPy is not installed" in lessons.compile_table().loc[0, "not compiled here"]


def test_every_way_is_right_and_timed(device):
    found = lessons.compare(device, tokens=2, n=37, k=19, repeats=5)
    assert [(w.name, w.launches) for w in found] == [
        ("sequential", 2),
        ("fused", 1),
        ("deferred, one stream", 3),
        ("deferred, three streams", 3),
    ]
    assert all(0 < w.error < 1e-5 and w.step_us > 0 and w.device == device.name for w in found)


def test_a_wrong_result_is_not_timed(device, monkeypatch):
    monkeypatch.setattr(algebra, "fold", lambda w, g: w * 1.01)
    assert "fused is off by" in refusal(lambda: lessons.compare(device, 1, 16, 8, repeats=1))


# --- notebook 05: the model that spoke backwards ---


def test_with_all_edges_it_says_what_the_model_says(lab, device):
    spoken = lessons.speak(lab, device, tokens=6, prompt=PROMPT)
    assert spoken.divergence is None
    assert len(spoken.said) == 6
    assert spoken.sites == SITES
    assert (spoken.outcomes == 0).all()
    assert "all 6 tokens are the reference's\n" in str(spoken)
    assert f"0 of {5 * len(SITES)} norm-projections" in str(spoken)
    assert "with all edges" in str(spoken)


def test_no_reference_is_made_or_kept_while_the_model_is_attached(lab, device):
    from flashnorm_lab import decoding

    right = [t.id for t in decoding.generate(lab.model, lab.tokenizer, PROMPT, 6)]
    with decoding.attach(lab.model, device, drop=("join_matrix",), force="worst"):
        told = refusal(lambda: lessons.speak(lab, device, tokens=6, prompt=PROMPT))
        assert "the model is attached to a device" in told
    spoken = lessons.speak(lab, device, tokens=6, prompt=PROMPT)
    assert [t.id for t in spoken.reference] == right
    assert spoken.divergence is None


def test_a_model_that_another_thread_uses_is_refused(lab, device):
    from flashnorm_lab import decoding

    calls = [
        lambda: lessons.speak(lab, device, tokens=2, prompt=PROMPT),
        lambda: lessons.which_check_sees(lab, device, ["head"], prompt=PROMPT),
        lambda: lessons.record_decode_step(lab, device, prompt=PROMPT),
        lambda: decoding.attach(lab.model, device),
    ]
    with ThreadPoolExecutor(1) as other:
        held = decoding.in_use(lab.model)
        other.submit(held.__enter__).result()
        for call in calls:
            assert "another panel or cell is using this model" in refusal(call)
        other.submit(held.__exit__, None, None, None).result()
    assert len(lessons.speak(lab, device, tokens=2, prompt=PROMPT).said) == 2


def test_a_late_head_is_told_where_it_is(lab, device):
    spoken = lessons.speak(
        lab, device, drop="join_matrix", sites="head", force="worst", tokens=8, prompt=PROMPT
    )
    assert spoken.wiring == "without join_matrix at head"
    assert (spoken.outcomes[:, -1] == 1).all()
    assert (spoken.outcomes[:, :-1] == 0).all()
    assert [t.id for t in spoken.reference[:1]] == [t.id for t in spoken.said[:1]]
    assert f"7 of {7 * len(SITES)} norm-projections read stale" in str(spoken)


def test_a_site_map_has_a_row_for_each_token_and_a_column_for_each_site(lab, device):
    spoken = lessons.speak(lab, device, drop="join_matrix", force="worst", tokens=4, prompt=PROMPT)
    figure = figures.site_map(spoken)
    (heat,) = figure.data
    np.testing.assert_array_equal(heat.z, spoken.outcomes)
    assert np.shape(heat.hovertext) == (3, len(SITES))
    assert figure.layout.xaxis.ticktext[-1] == "head"
    assert len(figure.layout.xaxis.tickvals) == len(set(figure.layout.xaxis.tickvals))


def test_each_check_is_asked_about_each_place(lab, device):
    places = ("head", "layers.0.qkv")
    found = lessons.which_check_sees(lab, device, places, tokens=5, text=PROMPT, prompt=PROMPT)
    table = lessons.verdicts(found)
    assert tuple(table.columns) == places
    assert list(table.index) == [
        "unit check",
        "perplexity, one pass",
        "perplexity, step by step",
        "first divergence",
        "repeated n-grams",
        "one-step lag",
    ]
    assert (table.loc["unit check"] == "passes").all()
    assert (table.loc["perplexity, one pass"] == "passes").all()
    assert table.loc["one-step lag", "head"] == "✗ fails"
    options = {"tokens": 5, "text": PROMPT, "prompt": PROMPT, "warm_up": "another"}
    table = lessons.verdicts(lessons.which_check_sees(lab, device, places, **options))
    assert (table.loc["unit check"] == "✗ fails").all()
    assert (table.loc["perplexity, one pass"] == "passes").all()
    assert not any("forward" in vars(m) for m in lab.model.modules())


# --- notebook 06: timelines ---


def test_a_recorded_decode_step_has_every_site(lab, device):
    timeline = lessons.record_decode_step(lab, device, token=2, prompt=PROMPT)
    assert timeline.steps == tuple(range(len(SITES)))
    assert len(timeline.spans(name="projection", lane="matrix")) == len(SITES)
    assert "token=0" in refusal(lambda: lessons.record_decode_step(lab, device, token=0, prompt=PROMPT))


def test_viewers_tell_the_whole_path(device, tmp_path, monkeypatch):
    from flashnorm_lab import schedule

    monkeypatch.chdir(tmp_path)
    race.run(device, schedule.fused(1, 8, 4), steps=1).timeline.export_chrome("one.json")
    told = lessons.viewers("one.json")
    assert str(tmp_path / "one.json") in told
    assert "https://ui.perfetto.dev" in told
    assert "chrome://tracing" in told
