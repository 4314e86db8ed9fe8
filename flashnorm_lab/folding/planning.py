"""From folds, in a checkpoint's own names, to the changes of its tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flashnorm_lab.folding.plan import Change, Plan, Scale, Shift


@dataclass(frozen=True)
class Target:
    """A weight that takes a gain; bias: key of the bias behind it, or None; new_bias: the name that a bias
    would have there, where the layer could have one and does not."""

    key: str
    axis: int
    pattern: str
    bias: str | None = None
    new_bias: str | None = None


@dataclass(frozen=True)
class Fold:
    """One norm's fold. norm: module path. gain, bias: keys. offset: as in `plan.Scale`.

    moves: whether the norm's bias goes into the biases behind the targets, which then all have one.
    """

    norm: str
    gain: str
    offset: float
    bias: str | None
    moves: bool
    targets: tuple[Target, ...]


def plan(
    folds: Iterable[Fold],
    mode: str,
    copies: Mapping[str, str] | None = None,
    centred: Mapping[str, int] | None = None,
    config: Mapping[tuple[str, ...], Any] | None = None,
) -> Plan:
    """All changes that these folds ask for.

    mode: "compatible" or "strict". copies: {key of a new tensor: key that it starts as} (an untied head).
    centred: {key: axis} of tensors whose mean along that axis is taken away. config: edits of config.json.
    """
    copies = copies or {}
    made: dict[str, Change] = {key: Change(key, start=start) for key, start in copies.items()}

    def change(key: str, **more: Any) -> None:
        before = made.get(key, Change(key))
        for name in ("scales", "shifts"):
            if name in more:
                more[name] = (*getattr(before, name), more[name])
        made[key] = replace(before, **more)

    def gone(key: str, value: float) -> None:
        change(key, **({"remove": True} if mode == "strict" else {"fill": value}))

    for fold in folds:
        for target in fold.targets:
            change(target.key, scales=Scale(fold.gain, fold.offset, target.axis, target.pattern))
        gone(fold.gain, 1 - fold.offset)
        if fold.bias is None:
            continue
        new = mode == "strict" and all(target.bias or target.new_bias for target in fold.targets)
        if not fold.moves and not new:
            change(fold.bias, over=Scale(fold.gain, fold.offset, 0))
            continue
        for target in fold.targets:
            weight = copies.get(target.key, target.key)
            key = target.bias or target.new_bias
            start = {} if target.bias else {"start": "zeros like the shift"}
            change(key, shifts=Shift(weight, fold.bias, target.axis, target.pattern), **start)
        gone(fold.bias, 0.0)
    for key, axis in (centred or {}).items():
        change(key, centre=axis)
    return Plan(mode, tuple(made.values()), dict(config or {}))


def untying(config: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Edits of a config.json that give the head a weight of its own, at every depth that speaks of it."""
    edits: dict[tuple[str, ...], Any] = {("tie_word_embeddings",): False}

    def visit(part: Mapping[str, Any], path: tuple[str, ...]) -> None:
        for name, value in part.items():
            if name == "tie_word_embeddings" and value:
                edits[*path, name] = False
            if isinstance(value, Mapping):
                if name == "text_config":
                    edits[*path, name, "tie_word_embeddings"] = False
                visit(value, (*path, name))

    visit(config, ())
    return edits


def edited(config: Mapping[str, Any], edits: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """A copy of a parsed config.json with these edits."""
    changed = copy.deepcopy(dict(config))
    for path, value in edits.items():
        part = changed
        for name in path[:-1]:
            part = part.setdefault(name, {})
        part[path[-1]] = value
    return changed
