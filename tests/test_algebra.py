"""The propositions hold, stop holding where the text says so, and refuse what does not fit."""

from fractions import Fraction

import numpy as np
import pytest

from flashnorm_lab import algebra
from flashnorm_lab.errors import LabError

EPS = 1e-5
SHAPES = [(1, 1, 1), (1, 7, 3), (3, 127, 65), (5, 129, 1), (2, 576, 96)]
# Twenty roundings of a sum of n terms, in each dtype.
TOLERANCE = {np.float16: 2e-2, np.float32: 2e-5, np.float64: 2e-14}


def arrays(tokens, n, k, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, n)).astype(dtype)
    g = rng.uniform(0.2, 3, n).astype(dtype)
    w = (rng.standard_normal((k, n)) / np.sqrt(n)).astype(dtype)
    return x, g, w


def relative(got, want):
    return np.abs(got.astype(np.float64) - want).max() / np.abs(want).max()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_three_forms_agree(shape, dtype):
    x, g, w = arrays(*shape, dtype)
    want = algebra.norm_projection(*(a.astype(np.float64) for a in (x, g, w)), EPS)
    w_star = algebra.fold(w, g)
    for z in (
        algebra.norm_projection(x, g, w, EPS),
        algebra.weightless_norm_projection(x, w_star, EPS),
        algebra.deferred_norm_projection(x, w_star, EPS),
    ):
        assert z.dtype == dtype
        assert z.shape == (shape[0], shape[2])
        assert relative(z, want) < TOLERANCE[dtype]


def test_against_a_sum_written_out_in_fractions():
    x, g, w = arrays(2, 5, 3)
    z = algebra.deferred_norm_projection(x, algebra.fold(w, g), 0.125)
    for t in range(2):
        row = [Fraction(v) for v in x[t]]
        square = float(sum(v * v for v in row) / 5 + Fraction(1, 8))
        for j in range(3):
            dot = sum(v * Fraction(a) * Fraction(b) for v, a, b in zip(row, g, w[j], strict=True))
            assert z[t, j] == pytest.approx(float(dot) / square**0.5, rel=1e-14)


def test_fold_equals_the_diagonal_matrix_and_leaves_its_input_alone():
    _, g, w = arrays(1, 9, 4)
    before = w.copy()
    np.testing.assert_array_equal(algebra.fold(w, g), w @ np.diag(g))
    np.testing.assert_array_equal(w, before)


def test_float16_is_summed_in_float32():
    x = np.full((1, 4096), 64, np.float16)  # its sum of squares, 1.7e7, is beyond float16
    r = algebra.inv_rms(x, EPS)
    assert r.dtype == np.float32
    assert r[0] == pytest.approx(1 / 64, rel=1e-6)


def test_a_float16_product_that_is_not_yet_scaled_can_overflow():
    x = np.full((1, 64), 100, np.float16)
    w = np.full((2, 64), 20, np.float16)
    assert np.all(np.isfinite(algebra.norm_projection(x, np.ones(64, np.float16), w, EPS)))
    assert np.all(np.isinf(algebra.unscaled_product(x, w)))
    assert np.all(np.isinf(algebra.deferred_norm_projection(x, w, EPS)))


def test_nan_stays_in_its_row():
    x, g, w = arrays(3, 8, 5)
    x[1, 2] = np.nan
    z = algebra.deferred_norm_projection(x, algebra.fold(w, g), EPS)
    assert np.isnan(z[1]).all()
    assert np.isfinite(z[[0, 2]]).all()


# Proposition 3


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6])
def test_cancelling_is_exact_with_the_eps_that_cancels(heads, scale):
    x, g, w = arrays(4, 32, 12)
    x *= scale
    w_star = algebra.fold(w, g)
    g2 = np.linspace(0.5, 2, 12 // heads)
    both = algebra.stacked_norms(x, w_star, g2, EPS, 1e-6, heads)
    exact = algebra.eps_that_cancels(x, EPS, 1e-6)
    assert exact.shape == (4,)
    one = algebra.stacked_norms_without_first(x, w_star, g2, exact, heads)
    assert relative(one, both) < 1e-13

    plain = algebra.stacked_norms_without_first(x, w_star, g2, 1e-6, heads)
    ratio = algebra.cancelling_ratio(x, w_star, EPS, 1e-6, heads)
    assert ratio.shape == (4, heads)
    assert relative(plain, both * np.repeat(ratio, 12 // heads, axis=1)) < 1e-13


def test_cancelling_without_the_second_eps_needs_nothing():
    x, g, w = arrays(4, 32, 12)
    w_star = algebra.fold(w, g)
    g2 = np.ones(12)
    both = algebra.stacked_norms(x, w_star, g2, EPS, 0)
    assert relative(algebra.stacked_norms_without_first(x, w_star, g2, 0), both) < 1e-13
    np.testing.assert_array_equal(algebra.cancelling_ratio(x, w_star, EPS, 0), 1)


def test_cancelling_breaks_at_a_tiny_activation_only():
    x, g, w = arrays(1, 64, 64)
    w_star = algebra.fold(w, g)
    ordinary = algebra.cancelling_ratio(x, w_star, EPS, EPS)[0, 0]
    tiny = algebra.cancelling_ratio(x * 1e-4, w_star, EPS, EPS)[0, 0]
    assert abs(ordinary - 1) < 1e-4
    assert tiny < 0.1


def test_head_norms_of_one_head_are_the_whole_row():
    x, g, w = arrays(2, 8, 6)
    w_star = algebra.fold(w, g)
    z = algebra.deferred_norm_projection(x, w_star, EPS)
    np.testing.assert_allclose(
        algebra.stacked_norms(x, w_star, np.ones(6), EPS, 1e-3), algebra.rms_norm(z, np.ones(6), 1e-3)
    )


# Where they stop holding


def test_a_bias_is_added_after_the_scaling():
    x, g, w = arrays(3, 16, 4)
    w_star = algebra.fold(w, g)
    bias = np.arange(4.0)
    want = algebra.norm_projection(x, g, w, EPS, bias)
    assert relative(algebra.deferred_norm_projection(x, w_star, EPS, bias), want) < 1e-14
    assert relative(algebra.weightless_norm_projection(x, w_star, EPS, bias), want) < 1e-14
    wrong = algebra.bias_scaled_too(x, w_star, bias, EPS)
    assert relative(wrong, want) > 1e-2
    np.testing.assert_allclose(wrong - want, algebra.bias_error(x, bias, EPS), rtol=1e-12, atol=1e-14)


def test_another_reader_gets_what_it_expects_only_from_the_textbook_norm():
    x, g, _ = arrays(2, 6, 1)
    seen = algebra.what_another_reader_sees(x, g, EPS)
    np.testing.assert_array_equal(seen["textbook"], algebra.rms_norm(x, g, EPS))
    np.testing.assert_allclose(seen["folded"] * g, seen["textbook"], rtol=1e-15)
    np.testing.assert_array_equal(seen["deferred"], x)
    assert not np.shares_memory(seen["deferred"], x)


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x, g, w: algebra.inv_rms(x[0], EPS), ["x has shape [6]", "[tokens, n]"]),
        (lambda x, g, w: algebra.inv_rms(x[:0], EPS), ["x has shape [0, 6]", "at least 1"]),
        (lambda x, g, w: algebra.inv_rms(x.tolist(), EPS), ["x is list"]),
        (lambda x, g, w: algebra.inv_rms(x.astype(int), EPS), ["x is int64"]),
        (lambda x, g, w: algebra.inv_rms(x, -1.0), ["eps is -1.0"]),
        (lambda x, g, w: algebra.inv_rms(x, float("nan")), ["eps is nan"]),
        (lambda x, g, w: algebra.inv_rms(x, "1e-5"), ["eps is '1e-5'"]),
        (lambda x, g, w: algebra.rms_norm(x, g[:5], EPS), ["g has shape [5]", "[n] = [6]"]),
        (lambda x, g, w: algebra.rms_norm(x, g.astype(np.float32), EPS), ["g is float32", "float64"]),
        (lambda x, g, w: algebra.fold(w, g[:5]), ["g has shape [5]", "[6]"]),
        (lambda x, g, w: algebra.norm_projection(x, g, w[:, :5], EPS), ["W has shape [4, 5]", "[2, 6]"]),
        (lambda x, g, w: algebra.deferred_norm_projection(x, w.T, EPS), ["W* has shape [6, 4]"]),
        (lambda x, g, w: algebra.deferred_norm_projection(x, w, EPS, g), ["bias has shape [6]", "[4]"]),
        (lambda x, g, w: algebra.bias_error(x, w, EPS), ["bias has shape [4, 6]"]),
        (lambda x, g, w: algebra.stacked_norms(x, w, g[:4], EPS, EPS, 3), ["heads is 3", "k = 4"]),
        (lambda x, g, w: algebra.stacked_norms(x, w, g, EPS, EPS), ["g2 has shape [6]", "[4]"]),
        (lambda x, g, w: algebra.stacked_norms_without_first(x, w, g[:4], g), ["eps2 has shape [6]", "[2]"]),
        (lambda x, g, w: algebra.eps_that_cancels(x, EPS, -1), ["eps2 is -1"]),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(LabError) as error:
        call(*arrays(2, 6, 4))
    text = str(error.value)
    assert "\n" not in text
    for word in words:
        assert word in text
