"""Who reads a norm's output, and into what its gain can go: on modules made for the purpose."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import linear

from flashnorm_lab.folding import gains
from flashnorm_lab.folding.deciding import Stored, decide
from flashnorm_lab.folding.following import follow

N = 6  # square on purpose: an axis must not be told from a length


class Net(nn.Module):
    """A norm, and around it what a test makes of it."""

    def __init__(self, read, norm=None, **own):
        super().__init__()
        self.norm, self.read = norm or nn.RMSNorm(N), read
        for name, value in own.items():
            setattr(self, name, nn.Parameter(value) if isinstance(value, torch.Tensor) else value)

    def forward(self, x):
        return self.read(self, x, self.norm(x))


def square(*shape):
    return torch.randn(*(shape or (N, N)), dtype=torch.float64)


def decided(model, x=None):
    """{path of a norm: Decision}; each parameter is stored as it is, experts of one stack one by one."""
    model = model.double().eval()
    x = square(2, 5, N) if x is None else x
    tied = dict(model.named_parameters())
    stored = Stored({name: tuple(tensor.shape) for name, tensor in tied.items()})
    ids = {name: stored.numbers(name) for name in tied}
    norms = gains.find(model, lambda: model(x))
    trail = follow(model, norms, ids, stored.sizes, [(model, lambda: model(x))])
    return {
        one.norm.path: one for one in decide(norms, trail, ids, stored, {key: key for key in stored.keys})
    }


def into(model, norm="norm"):
    one = decided(model)[norm]
    assert one.reason == "", one.reason
    return {(to.key, to.axis, to.pattern) for to in one.into}


def reason(model, norm="norm"):
    return decided(model)[norm].reason


def test_the_axis_of_a_square_weight_is_that_which_was_contracted():
    assert into(Net(lambda m, x, y: linear(y, m.w), w=square())) == {("w", 1, "same")}
    assert into(Net(lambda m, x, y: y @ m.w, w=square())) == {("w", 0, "same")}
    assert into(Net(lambda m, x, y: m.w @ y.mT, w=square())) == {("w", 1, "same")}
    assert into(Net(lambda m, x, y: torch.einsum("btc,ckd->btkd", y, m.w), w=square(N, 3, N))) == {
        ("w", 0, "same")
    }


def test_every_reader_is_found_whatever_lies_between():
    def read(m, x, y):
        fused = linear(functional.dropout(y.reshape(-1, N), training=False), m.qkv)
        q, k = fused.chunk(2, -1)
        return q * torch.sigmoid(k) + linear(y[:, -1:].contiguous(), m.gate).reshape(2, -1)[0, 0]

    assert into(Net(read, qkv=square(2 * N, N), gate=square())) == {("qkv", 1, "same"), ("gate", 1, "same")}


def test_a_factor_that_no_feature_tells_apart_goes_along():
    assert into(Net(lambda m, x, y: linear(y * 3.0 / 2, m.w), w=square())) == {("w", 1, "same")}


def test_experts_in_a_stack_have_their_axis_behind_that_of_the_experts():
    def batched(m, x, y):
        flat = y.flatten(0, 1)
        return torch.bmm(flat.expand(3, *flat.shape), m.experts)

    def by_index(m, x, y):
        flat = y.flatten(0, 1)
        return sum(linear(flat[index::3], m.experts[index]).sum() for index in range(3))

    assert into(Net(batched, experts=square(3, N, N))) == {("experts", 1, "same")}
    assert into(Net(by_index, experts=square(3, N, N))) == {("experts", 2, "same")}


def test_an_expert_that_no_token_reached_speaks_against_the_stack():
    model = Net(lambda m, x, y: sum(linear(y, m.experts[i]) for i in range(2)), experts=square(3, N, N))
    assert reason(model) == "part of experts was never used by the twin"


def test_the_same_gain_for_each_head_is_told_by_its_pattern():
    def heads(m, x, y):
        return linear(y.flatten(-2), m.w)

    def repeated(m, x, y):
        return linear(y.repeat_interleave(2, -1), m.w)

    wide = square(2, 5, 2 * N)
    one = decided(
        Net(lambda m, x, y: linear(y.flatten(-2), m.w), w=square(N, 2 * N)),
        wide.reshape(2, 5, 2, N),
    )
    assert [(to.axis, to.pattern) for to in one["norm"].into] == [(1, "tile")]
    assert into(Net(repeated, w=square(N, 2 * N))) == {("w", 1, "repeat")}
    flipped = reason(Net(lambda m, x, y: linear(y.flip(-1), m.w), w=square()))
    assert "order of the gains along w" in flipped


@pytest.mark.parametrize(
    ("read", "why"),
    [
        (lambda m, x, y: linear(y, m.w) + y, "its output also feeds an addition (a residual path)"),
        (lambda m, x, y: linear(functional.silu(y), m.w), "silu"),
        (lambda m, x, y: linear(y, m.w) + linear(x, m.w), "an input that is not normalised"),
        (lambda m, x, y: (linear(y, m.w), y), "its output also feeds the model's output"),
        (lambda m, x, y: y @ y.mT, "a product of two activations (attention, a scan)"),
        (lambda m, x, y: linear(y * y, m.w), "a product with itself"),
        (lambda m, x, y: linear(y, m.w) * m.w.sum(), "w is also used in"),
        (lambda m, x, y: linear(torch.cat([y[:, :1], x[:, 1:]], 1), m.w), "takes turns with other inputs"),
        (lambda m, x, y: linear(y, m.w * m.norm.weight), "is used elsewhere too"),
        (lambda m, x, y: linear(y, m.w @ m.w), "a product of two activations"),
        (lambda m, x, y: linear(y, m.w[:3]), "part of w was never used by the twin"),
        (lambda m, x, y: linear(x, m.w), "nothing that the twin ran reads its output"),
    ],
)  # fmt: skip
def test_what_cannot_be_folded_has_its_reason(read, why):
    assert why in reason(Net(read, w=square()))


def test_a_table_of_embeddings_that_is_the_head_too_is_called_tied():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Parameter(square(11, N)), nn.RMSNorm(N)

        def forward(self, ids):
            return linear(self.norm(functional.embedding(ids, self.table)), self.table)

    one = decided(Tied(), torch.randint(11, (2, 5)))["norm"]
    assert one.reason.startswith("tied: table is the table of embeddings too")


def test_two_norms_that_share_a_reader_do_not_fold():
    def read(m, x, y):
        return linear(y, m.w) + linear(m.other(x), m.w)

    found = decided(Net(read, w=square(), other=nn.RMSNorm(N)))
    assert found["norm"].reason == "w is shared with other"
    assert found["other"].reason == "w is shared with norm"


def test_a_bias_moves_behind_the_weight_only_where_it_arrives_whole():
    def plain(m, x, y):
        return linear(y, m.w, m.b)

    (one,) = decided(Net(plain, nn.LayerNorm(N), w=square(), b=square(N))).values()
    assert (one.reason, one.moves, [to.bias for to in one.into]) == ("", True, ["b"])
    (one,) = decided(
        Net(lambda m, x, y: plain(m, x, 2 * y), nn.LayerNorm(N), w=square(), b=square(N))
    ).values()
    assert (one.reason, one.moves, [to.bias for to in one.into]) == ("", False, [None])
    (one,) = decided(Net(lambda m, x, y: linear(y, m.w), nn.LayerNorm(N), w=square())).values()
    assert (one.reason, one.moves) == ("", False)


def test_a_convolution_reads_a_norm_when_it_is_a_product_with_one_weight_a_channel():
    def read(m, x, y):
        return functional.conv1d(y.mT, m.w, m.b)

    (one,) = decided(Net(read, nn.LayerNorm(N), w=square(N, N, 1), b=square(N))).values()
    assert [(to.key, to.axis, to.bias) for to in one.into] == [("w", 1, "b")]
    depthwise = Net(lambda m, x, y: functional.conv1d(y.mT, m.w, groups=N), w=square(N, 1, 1))
    assert "a convolution that is not a product" in reason(depthwise)


def test_a_norm_behind_a_norm_is_told_as_such():
    model = Net(lambda m, x, y: linear(m.other(y), m.w), w=square(), other=nn.RMSNorm(N))
    assert reason(model) == "its output feeds another norm: nothing linear follows"
    assert into(model, "other") == {("w", 1, "same")}
