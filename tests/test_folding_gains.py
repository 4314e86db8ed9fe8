"""Norms are found by running modules, whatever they are called."""

import pytest
import torch
from torch import nn

from flashnorm_lab.folding import gains

WIDTH, HEADS = 12, 3


class Rms(nn.Module):
    """x r g with g = act(w), over the last `size` features."""

    def __init__(self, size=WIDTH, act=lambda w: w, eps=1e-6):
        super().__init__()
        self.g, self.act, self.tiny = nn.Parameter(torch.rand(size) + 0.5), act, eps

    def forward(self, x):
        x32 = x.to(torch.float32)
        return (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + self.tiny)).to(x.dtype) * self.act(
            self.g
        )


class Gated(Rms):
    def forward(self, x, gate=None):
        return super().forward(x * nn.functional.silu(gate))


class Grouped(Rms):
    def forward(self, x):
        parts = x.reshape(*x.shape[:-1], 2, -1)
        return (parts * torch.rsqrt(parts.pow(2).mean(-1, keepdim=True) + self.tiny)).reshape(
            x.shape
        ) * self.g


class Reversed(Rms):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.tiny) * self.g.flip(0)


class PerHead(Rms):
    """A gain for each feature of each head, one statistic a head: x [tokens, heads, size / heads]."""

    def forward(self, x):
        r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.tiny)
        return x * r * self.g.view(x.shape[-2:])


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x):
        return x * self.weight


class Sign(nn.Module):
    def forward(self, x):
        return x.sign()


def examined(module, x=None, **kwargs):
    """What `find` says of a module that is called with x, one of a list of modules."""
    model = nn.ModuleDict({"it": module}).double().eval()
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64) if x is None else x
    found = gains.find(model, lambda: model["it"](x, **kwargs))
    return found[0] if found else None


@pytest.mark.parametrize(
    ("act", "offset", "acts"),
    [(lambda w: w, 0.0, "w"), (lambda w: 1 + w, 1.0, "1 + w"), (lambda w: 2.5 + w, 2.5, "2.5 + w")],
)
def test_how_a_gain_acts_is_found(act, offset, acts):
    norm = examined(Rms(act=act))
    assert (norm.path, norm.kind, norm.weight_name, norm.bias_name) == ("it", "RMSNorm", "g", None)
    assert norm.offset == pytest.approx(offset, abs=1e-9)
    assert (norm.acts, norm.size, norm.per, norm.eps_names) == (acts, WIDTH, "feature", ("tiny",))
    assert norm.index.tolist() == list(range(WIDTH))


def test_a_gain_that_is_no_factor_is_told():
    norm = examined(Rms(act=torch.sigmoid))
    assert norm.offset is None
    assert norm.index is None
    assert "no way" in norm.acts


def test_layer_norm_has_its_mean_taken_away_and_a_bias():
    norm = examined(nn.LayerNorm(WIDTH))
    assert (norm.kind, norm.weight_name, norm.bias_name, norm.offset) == ("LayerNorm", "weight", "bias", 0.0)
    norm = examined(nn.LayerNorm(WIDTH, bias=False))
    assert (norm.kind, norm.bias_name) == ("LayerNorm", None)
    norm = examined(nn.LayerNorm(WIDTH, elementwise_affine=False))
    assert (norm.kind, norm.weight_name, norm.acts) == ("LayerNorm", None, "no gain")


def test_a_gate_inside_the_norm_does_not_hide_it():
    norm = examined(Gated(), gate=torch.randn(2, 5, WIDTH, dtype=torch.float64))
    assert (norm.kind, norm.offset, norm.per) == ("RMSNorm", 0.0, "feature")


def test_one_gain_for_each_head_and_one_statistic_for_each_group():
    heads = torch.randn(2, 5, HEADS, WIDTH, dtype=torch.float64)
    assert examined(Rms(), heads).per == "head"
    assert examined(Grouped()).per == "group"
    own = examined(PerHead(), torch.randn(2, 5, HEADS, WIDTH // HEADS, dtype=torch.float64))
    assert own.per == "head"
    assert own.index.tolist() == torch.arange(WIDTH).reshape(HEADS, -1).tolist()


def test_which_element_acts_where_is_read_off_the_output():
    assert examined(Reversed()).index.tolist() == list(range(WIDTH))[::-1]


@pytest.mark.parametrize("module", [nn.Linear(WIDTH, WIDTH), Scale(), nn.SiLU(), Sign(), nn.Identity()])
def test_what_is_no_norm_is_not_taken_for_one(module):
    assert examined(module) is None


def test_the_values_of_the_model_do_not_matter_and_stay():
    norm = Rms()
    with torch.no_grad():
        norm.g.zero_()
    assert examined(norm).offset == 0.0
    assert not norm.g.any()


def test_a_norm_that_does_not_run_is_not_found():
    model = nn.ModuleDict({"a": Rms(), "b": Rms()}).double()
    found = gains.find(model, lambda: model["b"](torch.randn(3, WIDTH, dtype=torch.float64)))
    assert [norm.path for norm in found] == ["b"]
