"""From what a pass showed to folds, or reasons against them: for the norms of a twin."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from flashnorm_lab.folding.gains import Norm
from flashnorm_lab.folding.plan import Consumer
from flashnorm_lab.folding.trail import OTHER, UNREAD, Trail, gain_of, norm_of


@dataclass(frozen=True)
class Into:
    """A weight that takes a gain: its key in the twin's checkpoint, axis and pattern as in `plan.Scale`.

    bias: key of the bias that is added to its product, whole and in order; None if there is none such.
    """

    key: str
    axis: int
    pattern: str
    bias: str | None


@dataclass(frozen=True)
class Decision:
    """What can be done with one norm of the twin. reason: why it is not folded, "" if it is.

    gain, bias: keys of the twin's checkpoint. moves: whether its bias can go into the biases behind `into`.
    """

    norm: Norm
    gain: str | None
    bias: str | None
    into: tuple[Into, ...]
    consumers: tuple[Consumer, ...]
    moves: bool
    reason: str


class Stored:
    """The tensors of the twin's checkpoint, numbered element by element, one after the other."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        self.keys = tuple(shapes)
        self.shapes = {key: tuple(shape) for key, shape in shapes.items()}
        self.sizes = [torch.Size(shape).numel() for shape in self.shapes.values()]
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        self.starts = dict(zip(self.keys, starts, strict=False))

    def numbers(self, key: str) -> torch.Tensor:
        start, shape = self.starts[key], self.shapes[key]
        return torch.arange(start, start + torch.Size(shape).numel()).reshape(shape)

    def part(self, values: torch.Tensor, key: str) -> torch.Tensor:
        """What `values`, one for each element of all tensors, has for this tensor, in its shape."""
        shape = self.shapes[key]
        return values[self.starts[key] :][: torch.Size(shape).numel()].reshape(shape)

    def whole(self, ids: torch.Tensor | None) -> str | None:
        """The key of the tensor whose elements these are, all of them and in order; else None."""
        if ids is None or not ids.numel():
            return None
        flat = ids.flatten()
        for key, start in self.starts.items():
            if start == int(flat[0]):
                same = torch.equal(flat, self.numbers(key).flatten())
                return key if same else None
        return None


def decide(
    norms: Sequence[Norm],
    trail: Trail,
    ids: Mapping[str, torch.Tensor],
    stored: Stored,
    families: Mapping[str, Hashable],
) -> tuple[Decision, ...]:
    """One `Decision` for each norm.

    ids: as for `following.follow`. families: {key: what it is a part of}, the same for tensors that are parts
    of one parameter and so are read in the same way: an expert that no token reached is as the others.
    """
    gains = [_own_key(norm, norm.weight_name, ids, stored) for norm in norms]
    idle = _idle(trail, stored)
    return tuple(
        _with_family(_one(number, norms, gains, trail, ids, stored, idle, families), idle, families)
        for number in range(len(norms))
    )


def _with_family(one: Decision, idle: set[str], families: Mapping[str, Hashable]) -> Decision:
    """The decision, with the parts that the twin did not use of parameters of which it used others."""
    into = {families[to.key]: to for to in one.into}
    more = tuple(replace(into[families[key]], key=key) for key in idle if families[key] in into)
    consumers = tuple(Consumer("weight", to.key, to.axis, to.pattern) for to in more)
    return replace(one, into=one.into + more, consumers=one.consumers + consumers)


def _own_key(norm: Norm, name: str | None, ids: Mapping[str, torch.Tensor], stored: Stored) -> str | None:
    return None if name is None else stored.whole(ids.get(f"{norm.path}.{name}" if norm.path else name))


def _one(
    number: int,
    norms: Sequence[Norm],
    gains: Sequence[str | None],
    trail: Trail,
    ids: Mapping[str, torch.Tensor],
    stored: Stored,
    idle: set[str],
    families: Mapping[str, Hashable],
) -> Decision:
    norm, reading, gain = norms[number], trail.readings[number], gains[number]
    bias = _own_key(norm, norm.bias_name, ids, stored)
    into: list[Into] = []
    consumers: list[Consumer] = []
    against: list[str] = []
    for position in reading.weights:
        key = stored.keys[position]
        found = _along(number, key, norm.size, trail, stored)
        if isinstance(found, str):
            against.append(found if found.startswith("part") else _shared(key, number, norms, trail, stored))
            consumers.append(Consumer("weight", key))
        else:
            axis, pattern = found
            into.append(Into(key, axis, pattern, _bias_behind(key, axis, trail, stored)))
            consumers.append(Consumer("weight", key, axis, pattern))
    against += [f"{key} was never used by the twin" for key in _unused(norm, idle, stored, families)]
    consumers += [Consumer(words) for words in reading.others]
    reason = _reason(norm, gain, gains, reading.weights, reading.others, against, trail, stored)
    biases = [one.bias for one in into]
    moves = bias is not None and None not in biases and len(set(biases)) == len(biases)
    return Decision(norm, gain, bias, tuple(into), tuple(consumers), moves, reason)


def _reason(
    norm: Norm,
    gain: str | None,
    gains: Sequence[str | None],
    weights: Sequence[int],
    others: Sequence[str],
    against: Sequence[str],
    trail: Trail,
    stored: Stored,
) -> str:
    if norm.weight_name is None:
        return "it has no gain"
    if norm.offset is None:
        return f"its parameter acts {norm.acts}"
    if others and not weights:
        return f"its output feeds {_listed(others)}: nothing linear follows"
    if others:
        return f"its output also feeds {_listed(others)}"
    if not weights:
        return "nothing that the twin ran reads its output"
    if gain is None:
        return "its gain is no tensor of its own in the checkpoint"
    if gains.count(gain) > 1 or stored.keys.index(gain) in trail.uses:
        return f"its gain {gain} is used elsewhere too"
    return against[0] if against else ""


def _listed(words: Sequence[str]) -> str:
    """ "a", "a and b", "a; b and c": the words have commas of their own."""
    return " and ".join(["; ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _idle(trail: Trail, stored: Stored) -> set[str]:
    """Tensors of which the twin used no element."""
    return {
        key
        for position, key in enumerate(stored.keys)
        if position not in trail.uses
        and position not in trail.norms_own
        and bool((stored.part(trail.by, key) == UNREAD).all())
    }


def _unused(norm: Norm, idle: set[str], stored: Stored, families: Mapping[str, Hashable]) -> list[str]:
    """Matrices that the twin never used and that may read this norm: who reads it is not known then.

    In a layer, all of the layer's; of a norm in no layer, those in no layer, but for parts of the model that
    did not run at all.
    """
    layer = _layer(norm.path)
    used = {families[key] for key in stored.keys if key not in idle}
    found = [
        key
        for key in stored.keys
        if key in idle and families[key] not in used and len(stored.shapes[key]) > 1 and _layer(key) == layer
    ]
    if layer:
        return found
    return [key for key in found if not _branch(key, norm.path, stored.keys) <= idle]


def _layer(path: str) -> str:
    """The path up to its first number."""
    parts = path.split(".")
    numbers = [place for place, part in enumerate(parts) if part.isdigit()]
    return ".".join(parts[: numbers[0] + 1]) if numbers else ""


def _branch(key: str, path: str, keys: Sequence[str]) -> set[str]:
    """The tensors of the part of the model that this one belongs to, seen from where the path leaves it."""
    parts, others = key.split("."), path.split(".")
    shared = 0
    while shared < min(len(parts), len(others)) and parts[shared] == others[shared]:
        shared += 1
    start = ".".join(parts[: shared + 1])
    return {other for other in keys if other == start or other.startswith(f"{start}.")}


def _along(number: int, key: str, size: int, trail: Trail, stored: Stored) -> tuple[int, str] | str:
    """Axis and pattern of the gain in this weight, or a word on why there is none."""
    met = stored.part(trail.by, key)
    if bool((met == UNREAD).any()):
        return f"part of {key} was never used by the twin"
    if bool((met < 0).any()) or bool((norm_of(met) != number).any()):
        return "shared"
    for axis in range(met.ndim):
        length = met.shape[axis]
        lines = gain_of(met).movedim(axis, 0).reshape(length, -1)
        if length < size or not bool((lines == lines[:, :1]).all()):
            continue
        order = lines[:, 0]
        patterns = {
            "same": torch.arange(length),
            "tile": torch.arange(length) % size,
            "repeat": torch.arange(length) // max(1, length // size),
        }
        for pattern, expected in patterns.items():
            if length % size == 0 and torch.equal(order, expected):
                return axis, pattern
    return f"part of the order of the gains along {key} is none that a fold can keep"


def _shared(key: str, number: int, norms: Sequence[Norm], trail: Trail, stored: Stored) -> str:
    uses = trail.uses.get(stored.keys.index(key), [])
    if any("lookup" in use for use in uses):
        return f"tied: {key} is the table of embeddings too, and must keep its values there"
    behind = [
        norms[other].path
        for other, reading in enumerate(trail.readings)
        if other != number and stored.keys.index(key) in reading.weights
    ]
    if behind:
        return f"{key} is shared with {', '.join(behind)}"
    if uses:
        return f"{key} is also used in {_listed(uses)}"
    return f"{key} is shared with an input that is not normalised"


def _bias_behind(key: str, axis: int, trail: Trail, stored: Stored) -> str | None:
    if bool(stored.part(trail.scaled, key).any()):
        return None  # the norm's bias would have been scaled too
    # Every product has one bias; it is written down at the product's first weight.
    line = stored.part(trail.bias, key).select(axis, 0)
    return None if bool((line == OTHER).any()) else stored.whole(line)
