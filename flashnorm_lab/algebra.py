"""The three propositions of FlashNorm as plain numpy functions: the reference for every kernel.

FlashNorm is arXiv 2407.09577. Its propositions, in the words and symbols of this lab:

1. *Folding.* The gain g of an RMSNorm moves into the weight that follows: W* = W diag(g).
2. *Deferring.* The scalar r = 1/sqrt(mean(x²) + eps) moves behind the product: z = (x W*ᵀ) r.
3. *Cancelling.* Where a second RMSNorm follows, the first one's scalar cancels, up to the two eps.

Shapes: x [tokens, n], g [n], W and W* [k, n] (as a Hugging Face `Linear` stores them), r [tokens], y and z
[tokens, k]. All arguments of a call share one floating dtype, which is also the dtype of the result. float32,
float64 and longdouble are computed in themselves; float16 is storage only, with sums and r in float32, as the
kernels do it, except that y, too, is stored in float16 here, to show what that loses. Nothing is checked for
NaN or infinity: they spread as they would on a device. Every function raises LabError for an array of the
wrong shape or dtype, or an eps that is negative or not finite.
"""

from __future__ import annotations

import math

import numpy as np

from flashnorm_lab.errors import LabError

# Without a word: a float16 out of range becomes infinite, 1/0 is infinite, 0 times that is NaN.
_as_a_device_would = np.errstate(all="ignore")


# The two ingredients


@_as_a_device_would
def inv_rms(x: np.ndarray, eps: float) -> np.ndarray:
    """r = 1 / sqrt(mean(x²) + eps), one number a row.

    x [tokens, n] -> r [tokens], in x's dtype (float32 where x is float16).
    Source: RMSNorm, arXiv 1910.07467, equation 4, with the eps that every implementation adds under the root.
    """
    _matrix("x", x, "[tokens, n]")
    return 1 / np.sqrt(_mean_square(x) + _number("eps", eps))


@_as_a_device_would
def rms_norm(x: np.ndarray, g: np.ndarray, eps: float) -> np.ndarray:
    """The textbook RMSNorm, x r g.

    x [tokens, n], g [n] -> [tokens, n].
    Source: RMSNorm, arXiv 1910.07467, equation 4.
    """
    r = inv_rms(x, eps)
    _vector("g", g, x.shape[1], "n", x)
    return _store(x * r[:, None] * g, x)


@_as_a_device_would
def unscaled_product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y = x wᵀ: a bias-free linear layer, or, with w = W*, the product that does not wait for r.

    x [tokens, n], w [k, n] -> y [tokens, k]. A float16 y that is out of range becomes infinite: y is not
    normalised yet, so this is where deferring can lose a value that the textbook order would have kept.
    Source: FlashNorm, arXiv 2407.09577, Proposition 2.
    """
    _matrix("x", x, "[tokens, n]")
    _weight("w", w, x)
    work = _accumulator(x)
    return _store(x.astype(work) @ w.astype(work).T, x)


# Proposition 1: the gain folds into the weight


@_as_a_device_would
def fold(w: np.ndarray, g: np.ndarray) -> np.ndarray:
    """W* = W diag(g), without the diagonal matrix: column j of W times g[j].

    w [k, n], g [n] -> W* [k, n].
    Source: FlashNorm, arXiv 2407.09577, Proposition 1.
    """
    _matrix("W", w, "[k, n]")
    _vector("g", g, w.shape[1], "n", w)
    return _store(w.astype(_accumulator(w)) * g, w)


@_as_a_device_would
def norm_projection(
    x: np.ndarray, g: np.ndarray, w: np.ndarray, eps: float, bias: np.ndarray | None = None
) -> np.ndarray:
    """The textbook order, which the propositions leave unchanged in value: rms_norm(x, g, eps) Wᵀ + bias.

    x [tokens, n], g [n], w [k, n], bias [k] or None -> z [tokens, k].
    """
    _matrix("x", x, "[tokens, n]")
    _weight("W", w, x)
    return _add_bias(unscaled_product(rms_norm(x, g, eps), w), bias)


@_as_a_device_would
def weightless_norm_projection(
    x: np.ndarray, w_star: np.ndarray, eps: float, bias: np.ndarray | None = None
) -> np.ndarray:
    """Proposition 1 alone: the norm has lost its gain, the order is still the textbook's: (x r) W*ᵀ + bias.

    x [tokens, n], w_star [k, n], bias [k] or None -> z [tokens, k]. A bias does no harm here.
    Source: FlashNorm, arXiv 2407.09577, Proposition 1.
    """
    r = inv_rms(x, eps)
    _weight("W*", w_star, x)
    return _add_bias(unscaled_product(_store(x * r[:, None], x), w_star), bias)


# Proposition 2: the scalar is deferred


@_as_a_device_would
def deferred_norm_projection(
    x: np.ndarray, w_star: np.ndarray, eps: float, bias: np.ndarray | None = None
) -> np.ndarray:
    """z = y r + bias with y = x W*ᵀ: y and r depend on x alone, so they may be computed at the same time.

    x [tokens, n], w_star [k, n], bias [k] or None -> z [tokens, k]. The bias is added after the scaling; see
    `bias_error` for what happens otherwise.
    Source: FlashNorm, arXiv 2407.09577, Proposition 2.
    """
    r = inv_rms(x, eps)
    _weight("W*", w_star, x)
    return _add_bias(_store(unscaled_product(x, w_star) * r[:, None], x), bias)


# Proposition 3: a second norm cancels the first one's scalar


@_as_a_device_would
def stacked_norms(
    x: np.ndarray, w_star: np.ndarray, g2: np.ndarray, eps: float, eps2: float, heads: int = 1
) -> np.ndarray:
    """Norm, projection, norm: the second RMSNorm over each of `heads` equal parts of the projected row.

    x [tokens, n], w_star [k, n] (the first gain folded), g2 [k / heads], eps of the first norm, eps2 of the
    second -> [tokens, k]. heads > 1 is the form that query and key norms take.
    Source: FlashNorm, arXiv 2407.09577, Proposition 3 (its left side).
    """
    z = deferred_norm_projection(x, w_star, eps)
    return _second_norm(z, g2, np.asarray(_number("eps2", eps2)), heads)


@_as_a_device_would
def stacked_norms_without_first(
    x: np.ndarray, w_star: np.ndarray, g2: np.ndarray, eps2: float | np.ndarray, heads: int = 1
) -> np.ndarray:
    """The same with the first norm gone: the second RMSNorm of y = x W*ᵀ.

    x [tokens, n], w_star [k, n], g2 [k / heads], eps2 a number or one number a token [tokens] -> [tokens, k].
    Equal to `stacked_norms` exactly (before rounding) when eps2 is `eps_that_cancels(x, eps, eps2)`, and when
    eps2 is 0; with the model's own eps2 it differs by the factor `cancelling_ratio`.
    Source: FlashNorm, arXiv 2407.09577, Proposition 3 (its right side).
    """
    y = unscaled_product(x, w_star)
    if np.ndim(eps2) == 0:
        return _second_norm(y, g2, np.asarray(_number("eps2", float(eps2))), heads)
    eps2 = np.asarray(eps2)
    if eps2.shape != (x.shape[0],) or not np.all(np.isfinite(eps2) & (eps2 >= 0)):
        raise LabError(
            f"eps2 has shape {_shape(eps2)}: give one finite number >= 0, or one a token, here [{x.shape[0]}]"
        )
    return _second_norm(y, g2, eps2[:, None, None], heads)


@_as_a_device_would
def eps_that_cancels(x: np.ndarray, eps: float, eps2: float) -> np.ndarray:
    """The eps of the second norm with which leaving out the first changes nothing: eps2 (mean(x²) + eps).

    From y r / sqrt(r² mean(y²) + eps2) = y / sqrt(mean(y²) + eps2 / r²). It is one number a token, not a
    constant: that is the exact statement behind "cancels up to eps".

    x [tokens, n] -> [tokens], in the dtype that sums take.
    Source: FlashNorm, arXiv 2407.09577, Proposition 3, with both eps kept.
    """
    _matrix("x", x, "[tokens, n]")
    return _number("eps2", eps2) * (_mean_square(x) + _number("eps", eps))


@_as_a_device_would
def cancelling_ratio(
    x: np.ndarray, w_star: np.ndarray, eps: float, eps2: float, heads: int = 1
) -> np.ndarray:
    """By which factor leaving out the first norm, with eps2 as it is, changes each token and head.

    sqrt((mean(y²) + eps2 (mean(x²) + eps)) / (mean(y²) + eps2)), the mean of y² over the head. It is 1 where
    mean(y²) is large beside both eps2 and eps2 (mean(x²) + eps), and far from 1 where the activation is tiny.

    x [tokens, n], w_star [k, n] -> [tokens, heads]; NaN where mean(y²) and eps2 are both 0.
    Source: FlashNorm, arXiv 2407.09577, Proposition 3, with both eps kept.
    """
    exact = eps_that_cancels(x, eps, eps2)[:, None]
    power = _mean_square(_split(unscaled_product(x, w_star), heads))
    return np.sqrt((power + exact) / (power + eps2))


# Where they stop holding


@_as_a_device_would
def bias_scaled_too(x: np.ndarray, w_star: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """The wrong way to defer a layer with a bias: (y + bias) r. It is off by `bias_error`.

    x [tokens, n], w_star [k, n], bias [k] -> [tokens, k].
    Source: the bias-free condition of FlashNorm, arXiv 2407.09577, Proposition 2.
    """
    r = inv_rms(x, eps)
    return _store(_add_bias(unscaled_product(x, w_star), bias) * r[:, None], x)


@_as_a_device_would
def bias_error(x: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    """What scaling the bias too adds to the result: bias (r - 1). Small only where mean(x²) + eps is near 1.

    x [tokens, n], bias [k] -> [tokens, k].
    Source: the bias-free condition of FlashNorm, arXiv 2407.09577, Proposition 2.
    """
    r = inv_rms(x, eps)
    if not isinstance(bias, np.ndarray) or bias.ndim != 1:
        raise LabError(f"bias has shape {_shape(bias)}: expected [k]")
    _same_dtype("bias", bias, x)
    return _store(bias * (r[:, None] - 1), x)


@_as_a_device_would
def what_another_reader_sees(x: np.ndarray, g: np.ndarray, eps: float) -> dict[str, np.ndarray]:
    """What reaches a second reader of the norm's output: a router, a probe, a residual taken after the norm.

    x [tokens, n], g [n] -> {"textbook": x r g, "folded": x r, "deferred": x}, each [tokens, n]. The folded
    norm has given its gain to one weight, and the deferred one has no normalised output at all: every reader
    has to be a linear layer that was folded too, or has to be given a norm of its own.
    Source: the condition of FlashNorm, arXiv 2407.09577, Propositions 1 and 2, that a linear layer follows.
    """
    textbook = rms_norm(x, g, eps)
    return {"textbook": textbook, "folded": rms_norm(x, np.ones_like(g), eps), "deferred": x.copy()}


# Checks and dtypes


def _accumulator(like: np.ndarray) -> np.dtype:
    return np.dtype(np.float32) if like.dtype == np.float16 else like.dtype


def _mean_square(x: np.ndarray) -> np.ndarray:
    return np.mean(np.square(x, dtype=_accumulator(x)), axis=-1)


def _store(value: np.ndarray, like: np.ndarray) -> np.ndarray:
    return value.astype(like.dtype, copy=False)


def _add_bias(z: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    if bias is None:
        return z
    _vector("bias", bias, z.shape[1], "k", z)
    return _store(z.astype(_accumulator(z)) + bias, z)


def _split(y: np.ndarray, heads: int) -> np.ndarray:
    if heads < 1 or y.shape[1] % heads:
        raise LabError(f"heads is {heads}: expected a divisor of k = {y.shape[1]}")
    return y.reshape(y.shape[0], heads, -1)


def _second_norm(y: np.ndarray, g2: np.ndarray, eps2: np.ndarray, heads: int) -> np.ndarray:
    parts = _split(y, heads)
    _vector("g2", g2, parts.shape[2], "k / heads", y)
    r2 = 1 / np.sqrt(_mean_square(parts)[:, :, None] + eps2.astype(_accumulator(y)))
    return _store(parts * r2 * g2, y).reshape(y.shape)


def _number(name: str, value: float) -> float:
    number = isinstance(value, int | float | np.floating | np.integer)
    if not (number and math.isfinite(value) and value >= 0):
        raise LabError(f"{name} is {value!r}: expected a finite number >= 0, such as 1e-5")
    return float(value)


def _shape(value: object) -> str:
    return str(list(np.shape(value)))


def _matrix(name: str, value: np.ndarray, expected: str) -> None:
    if not isinstance(value, np.ndarray) or not np.issubdtype(value.dtype, np.floating):
        kind = value.dtype if isinstance(value, np.ndarray) else type(value).__name__
        raise LabError(f"{name} is {kind}: expected a numpy array of a floating dtype, shape {expected}")
    if value.ndim != 2 or 0 in value.shape:
        raise LabError(f"{name} has shape {_shape(value)}: expected {expected}, each at least 1")


def _weight(name: str, w: np.ndarray, x: np.ndarray) -> None:
    _matrix(name, w, "[k, n]")
    if w.shape[1] != x.shape[1]:
        raise LabError(f"{name} has shape {_shape(w)}: expected [k, {x.shape[1]}] to go with x {_shape(x)}")
    _same_dtype(name, w, x)


def _vector(name: str, v: np.ndarray, length: int, symbol: str, like: np.ndarray) -> None:
    if not isinstance(v, np.ndarray) or v.shape != (length,):
        raise LabError(f"{name} has shape {_shape(v)}: expected [{symbol}] = [{length}]")
    _same_dtype(name, v, like)


def _same_dtype(name: str, value: np.ndarray, like: np.ndarray) -> None:
    if value.dtype != like.dtype:
        raise LabError(f"{name} is {value.dtype}: expected {like.dtype}, as the arrays that it goes with")
