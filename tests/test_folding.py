"""Folded weights give the model's own projections, the model keeps its weights, and what cannot be folded is
named."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from flashnorm_lab import algebra, folding, models
from flashnorm_lab.errors import LabError

SIZES = {
    "vocab_size": 31,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
}


def tiny(tied=False, **changes):
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | {"tie_word_embeddings": tied} | changes))).eval()
    for site in folding.find_sites(model) if not changes else ():
        torch.nn.init.uniform_(site.norm.weight, 0.2, 3)  # gains of 1 would hide a fold that does nothing
    return model


def refusal(call):
    with pytest.raises(LabError) as error:
        call()
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_sites_in_the_order_of_a_step():
    model = tiny()
    sites = folding.find_sites(model)
    assert [site.name for site in sites] == [
        "layers.0.qkv",
        "layers.0.gate_up",
        "layers.1.qkv",
        "layers.1.gate_up",
        "head",
    ]
    assert sites[2].norm is model.model.layers[1].input_layernorm
    assert sites[2].norm_path == "model.layers.1.input_layernorm"
    assert sites[2].linears[1] is model.model.layers[1].self_attn.k_proj
    assert sites[2].linear_paths[1] == "model.layers.1.self_attn.k_proj"
    assert [site.splits for site in sites[:2]] == [(24, 8, 8), (40, 40)]
    assert [(site.n, site.k, site.eps) for site in sites[-2:]] == [(24, 80, 1e-5), (24, 31, 1e-5)]


@pytest.mark.parametrize("tied", [False, True])
def test_folded_and_deferred_every_site_gives_what_the_model_gives(tied):
    model = tiny(tied)
    x = torch.randn(3, SIZES["hidden_size"])
    for site in folding.find_sites(model):
        folded = folding.fold_site(site)
        assert folded.shape == (site.k, site.n)
        assert folded.dtype == torch.float32
        assert folded.is_contiguous()
        z = torch.from_numpy(algebra.deferred_norm_projection(x.numpy(), folded.numpy(), site.eps))
        with torch.no_grad():
            for rows, linear in zip(z.split(site.splits, dim=1), site.linears, strict=True):
                torch.testing.assert_close(rows, linear(site.norm(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tied", [False, True])
def test_the_model_is_not_changed(tied):
    model = tiny(tied)
    before = copy.deepcopy(model.state_dict())
    folded = folding.fold_model(model)
    for tensor in folded.values():
        tensor.zero_()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def test_some_sites_only():
    model = tiny()
    assert list(folding.fold_model(model, ["head", "layers.1.qkv"])) == ["head", "layers.1.qkv"]
    assert folding.fold_model(model, []) == {}
    text = refusal(lambda: folding.fold_model(model, ["layers.2.qkv"]))
    assert "'layers.2.qkv'" in text
    assert "layers.0.qkv" in text


def test_mistral_has_the_same_sites():
    model = MistralForCausalLM(MistralConfig(**SIZES)).eval()
    assert len(folding.fold_model(model)) == models.norm_count(model.config) == 5


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_fold_linear_is_rounded_once_from_any_dtype(dtype):
    weight, gain = torch.randn(5, 7).to(dtype), torch.rand(7).to(dtype)
    folded = folding.fold_linear(weight, gain)
    assert folded.dtype == torch.float32
    torch.testing.assert_close(folded, (weight.double() * gain.double()).float(), rtol=2e-7, atol=0)
    out = torch.empty(5, 7)
    assert folding.fold_linear(weight, gain, out=out) is out
    assert torch.equal(out, folded)


def test_fold_linear_reads_parameters_without_a_graph():
    linear = torch.nn.Linear(4, 3, bias=False)
    assert not folding.fold_linear(linear.weight, torch.nn.Parameter(torch.ones(4))).requires_grad


@pytest.mark.parametrize(
    ("weight", "gain", "words"),
    [
        (torch.ones(3, 4), torch.ones(3), ["[3, 4]", "[3]", "[k, n]"]),
        (torch.ones(4), torch.ones(4), ["[4]", "[k, n]"]),
        (torch.ones(3, 4, dtype=torch.int8), torch.ones(4), ["weight is torch.int8", "unquantized"]),
        (torch.ones(3, 4, device="meta"), torch.ones(4), ["meta"]),
        (torch.full((3, 4), float("nan")), torch.ones(4), ["[3, 4]", "NaN"]),
        (torch.ones(3, 4), torch.full((4,), float("inf")), ["[3, 4]", "infinite"]),
    ],
)
def test_fold_linear_refuses(weight, gain, words):
    text = refusal(lambda: folding.fold_linear(weight, gain))
    for word in words:
        assert word in text


def test_nan_is_told_with_the_name_of_its_layer():
    model = tiny()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    text = refusal(lambda: folding.fold_model(model))
    assert "model.layers.1.mlp.up_proj" in text
    assert "NaN" in text


def test_a_bias_is_refused():
    text = refusal(lambda: folding.find_sites(tiny(attention_bias=True)))
    assert "model.layers.0.self_attn.q_proj has a bias" in text


def test_another_family_is_refused():
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=8, n_positions=8))
    assert "'gpt2'" in refusal(lambda: folding.find_sites(gpt2))
    assert "'Linear'" in refusal(lambda: folding.find_sites(torch.nn.Linear(2, 2)))


def test_a_model_with_other_modules_is_refused():
    class Wrapped(torch.nn.Linear):
        pass

    model = tiny()
    model.model.layers[0].mlp.gate_proj = Wrapped(24, 40, bias=False)
    assert "model.layers.0.mlp.gate_proj is a Wrapped" in refusal(lambda: folding.find_sites(model))

    model = tiny()
    model.model.norm = torch.nn.LayerNorm(24)
    assert "model.norm is a LayerNorm" in refusal(lambda: folding.find_sites(model))

    model = tiny()
    model.lm_head = torch.nn.Linear(12, 31, bias=False)
    assert "lm_head takes 12 inputs" in refusal(lambda: folding.find_sites(model))

    model = tiny()
    del model.model.layers[1].self_attn.v_proj
    assert "no model.layers.1.self_attn.v_proj" in refusal(lambda: folding.find_sites(model))


@pytest.mark.model
def test_every_site_of_the_real_model():
    """Each norm-projection of SmolLM2, folded and deferred, on the activations that a prompt brings to it."""
    speaker = models.smollm2()
    model = speaker.model
    sites = folding.find_sites(model)
    assert len(sites) == 61
    inputs = {}

    def keep(site):
        return site.norm.register_forward_pre_hook(lambda _, args: inputs.update({site.name: args[0]}))

    hooks = [keep(site) for site in sites]
    ids = speaker.tokenizer("The transformer architecture revolutionized NLP because", return_tensors="pt")
    with torch.no_grad():
        model(**ids)
        for hook in hooks:
            hook.remove()
        for site in sites:
            x = inputs[site.name][0]
            folded = folding.fold_site(site)
            z = (x @ folded.T) * torch.rsqrt(x.square().mean(-1, keepdim=True) + site.eps)
            want = torch.cat([linear(site.norm(x)) for linear in site.linears], dim=1)
            assert ((z - want).abs().max() / want.abs().max()) < 1e-5, site.name
