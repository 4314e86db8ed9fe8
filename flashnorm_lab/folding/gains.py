"""Which modules of a model act as norms, and how their gains act: found by running them, not by their names.

A module counts as a norm if its output does not change when its input is scaled, token by token; as a
LayerNorm if adding a number to all features of a token changes nothing either. A parameter of it is a gain if
each output is (offset + w) times something that does not depend on w: offset 0 for a plain gain, 1 for 1 + w.
It is a bias if each output is b plus something. Which element acts where is read off the output too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from flashnorm_lab.folding import exact

_CLOSE = 1e-6
"""Relative: float64 results, but an eps of up to 1e-3 under the root that scaled inputs meet."""
_SCALE = 1e4
"""Inputs are of this size, so that an eps is far below their mean square."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm of a model, and how its gain acts.

    path: module path. kind: "RMSNorm" or "LayerNorm". weight_name, bias_name: its own parameters that act as
        gain and bias, or None.
    offset: the gain acts as offset + w (0.0 or 1.0, seldom another number); None if it acts in no such way or
        there is none. acts: the same in words.
    index: int64, the output's shape after the axes of tokens; which element of the (flattened) gain acts on
        each output; None without a gain.
    size: number of gain values. per: "feature", "head" (the same gain for several slices of the output, or
        several statistics a token) or "group".
    eps_names: attributes that hold an eps.
    """

    path: str
    module: torch.nn.Module
    kind: str
    weight_name: str | None
    bias_name: str | None
    offset: float | None
    acts: str
    index: torch.Tensor | None
    size: int
    per: str
    eps_names: tuple[str, ...]


def find(model: torch.nn.Module, run: Callable[[], Any]) -> tuple[Norm, ...]:
    """The norms that `run`, a forward pass of `model` in eval mode, goes through, in that order."""
    calls: dict[str, tuple[tuple, dict]] = {}
    hooks = []
    for path, module in model.named_modules():
        if _may_be_norm(module):
            hooks.append(module.register_forward_pre_hook(_keeper(calls, path), with_kwargs=True))
    try:
        with exact.float64():
            run()
    finally:
        for hook in hooks:
            hook.remove()
    found = []
    for path, (args, kwargs) in calls.items():
        norm = _examine(path, model.get_submodule(path), args, kwargs)
        if norm is not None:
            found.append(norm)
    return tuple(found)


def _may_be_norm(module: torch.nn.Module) -> bool:
    own = list(module.parameters(recurse=False))
    return len(own) == len(list(module.parameters())) <= 2 and all(p.is_floating_point() for p in own)


def _keeper(calls: dict, path: str) -> Callable:
    def keep(module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        calls.setdefault(path, (args, kwargs))

    return keep


class _Trial:
    """One module, called again with other inputs and other values of its parameters."""

    def __init__(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self.module = module
        generator = torch.Generator().manual_seed(0)

        def fresh(tensor: torch.Tensor) -> torch.Tensor:
            if not tensor.is_floating_point():
                return tensor
            return torch.randn(tensor.shape, generator=generator, dtype=torch.float64)

        self.args, self.kwargs = tree_map_only(torch.Tensor, fresh, (args, kwargs))
        self.x = self._input() * _SCALE
        # Random, since a gain of zeros would hide everything.
        self.own = {name: fresh(value) for name, value in module.named_parameters(recurse=False)}

    def _input(self) -> torch.Tensor:
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                return value
        raise TypeError("takes no floating tensor")

    def __call__(self, x: torch.Tensor | None = None, **parameters: torch.Tensor) -> torch.Tensor:
        x = self.x if x is None else x
        replaced, first = False, self._input()

        def swap(value: Any) -> Any:
            nonlocal replaced
            if value is first and not replaced:
                replaced = True
                return x
            return value

        args = tuple(swap(value) for value in self.args)
        kwargs = {name: swap(value) for name, value in self.kwargs.items()}
        with exact.float64():
            out = torch.func.functional_call(self.module, self.own | parameters, args, kwargs)
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            raise TypeError("gives no floating tensor")
        return out


def _near(a: torch.Tensor, b: torch.Tensor) -> bool:
    size = b.abs().max()
    return a.shape == b.shape and bool(torch.isfinite(a).all()) and bool((a - b).abs().max() <= _CLOSE * size)


def _proportional(y: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether each token of y is a multiple of that of x."""
    if y.shape != x.shape:
        return False
    factor = (x * y).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
    return _near(factor * x, y)


def _examine(path: str, module: torch.nn.Module, args: tuple, kwargs: dict) -> Norm | None:
    try:
        trial = _Trial(module, args, kwargs)
        x, y = trial.x, trial()
        if x.ndim < 2 or x.shape[-1] < 2 or y.numel() != x.numel() or not bool(y.abs().max() > 0):
            return None
        factor = 1 + 7 * torch.rand(x.shape[:-1], dtype=torch.float64)[..., None]
        # Not so for what returns its input scaled by a constant: x must matter, its size must not.
        if not _near(trial(x * factor), y) or _near(trial(x.roll(1, -1)), y):
            return None
        centred = _near(trial(x + factor * _SCALE), y)
        if not trial.own and not _proportional(y, x - x.mean(-1, keepdim=True) if centred else x):
            return None  # such as a sign
    except (TypeError, RuntimeError, ValueError, IndexError, AttributeError, NotImplementedError):
        return None  # takes or gives something else than a tensor of features
    return _gains(path, trial, "LayerNorm" if centred else "RMSNorm")


def _gains(path: str, trial: _Trial, kind: str) -> Norm:
    module, own = trial.module, trial.own
    bias = next((name for name in own if _is_bias(trial, name, own[name])), None)
    weights = [name for name in own if name != bias]
    eps = tuple(
        name for name, value in vars(module).items() if isinstance(value, float) and 0 < value <= 1e-2
    )
    per = _granularity(trial, own[weights[0]].numel() if weights else 0)
    if not weights:
        return Norm(path, module, kind, None, bias, None, "no gain", None, 0, per, eps)
    name = weights[0]
    zeroed = {bias: torch.zeros_like(own[bias])} if bias else {}
    offset, index = _affine(trial, name, own[name], zeroed)
    if len(weights) > 1:
        offset, index = None, None
    acts = "in no way that is a factor a feature" if offset is None else _worded(offset)
    return Norm(path, module, kind, name, bias, offset, acts, index, own[name].numel(), per, eps)


def _worded(offset: float) -> str:
    if offset == 0:
        return "w"
    return f"{offset:g} + w"


def _is_bias(trial: _Trial, name: str, value: torch.Tensor) -> bool:
    step = trial(**{name: value + 1}) - trial(**{name: value})
    return _near(step, torch.ones_like(step))


def _affine(
    trial: _Trial, name: str, value: torch.Tensor, others: dict[str, torch.Tensor]
) -> tuple[float | None, torch.Tensor | None]:
    """(offset, index) if each output is (offset + w) u, else (None, None)."""

    def at(w: torch.Tensor) -> torch.Tensor:
        return trial(**others, **{name: w})

    zero, one = at(torch.zeros_like(value)), at(torch.ones_like(value))
    u = one - zero
    if not bool(u.abs().max() > 0):
        return None, None
    offset = float((zero * u).sum() / (u * u).sum())
    offset = float(round(offset)) if abs(offset - round(offset)) < _CLOSE else offset
    if not _near(zero + u, offset * u + u):
        return None, None
    steps = torch.arange(1, value.numel() + 1, dtype=torch.float64)
    ratio = (at(steps.reshape(value.shape)) - zero) / torch.where(u == 0, torch.nan, u)
    # For each output, the token whose own factor is largest tells the element best.
    axes = _token_axes(ratio.shape, value.numel())
    flat, size = ratio.flatten(0, axes - 1), u.abs().flatten(0, axes - 1)
    best = flat.gather(0, size.argmax(0, keepdim=True))[0]
    if not bool(torch.isfinite(best).all()):
        return None, None
    index = best.round().long() - 1
    inside = bool(((index >= 0) & (index < value.numel())).all())
    probe = torch.linspace(-1.5, 2.5, value.numel(), dtype=torch.float64)
    if not inside or not _near(at(probe.reshape(value.shape)), (offset + probe[index]) * u):
        return None, None
    return offset, index


def _token_axes(shape: torch.Size, size: int) -> int:
    """How many leading axes of the output are tokens: the rest are the features that the gain tells apart."""
    features, axes = shape[-1], len(shape) - 1
    while features < size and axes > 1:
        axes -= 1
        features *= shape[axes]
    return axes


def _granularity(trial: _Trial, size: int) -> str:
    """Whether one gain and one statistic serve a whole token, each of its heads, or each of its groups."""
    x = trial.x
    if _near(trial(torch.cat([x[..., :1] * 3, x[..., 1:]], -1))[..., -1:], trial()[..., -1:]):
        return "group"
    if x.ndim > 3 or 0 < size < x.shape[-1]:
        return "head"
    return "feature"
