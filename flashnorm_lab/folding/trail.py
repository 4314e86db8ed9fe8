"""What following a pass writes down: codes for where an element comes from, and who read what."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

# What a shadow's element can be, beside the code of a norm's gain.
OTHER, ZERO = -1, -2
SCALED = 1 << 60
"""Set where a followed value has been multiplied since by something that no feature's gain acts on."""
NORM = 1 << 58
PRODUCT = 1 << 57
INDEX = (1 << 32) - 1
# What can be known of an element of a weight, beside the code of the gain that it was contracted with.
UNREAD, MIXED = -3, -4

WORDS = {
    "add": "an addition (a residual path)",
    "rotary": "an addition of two of its own values (a rotary embedding, a scan)",
    "mul": "a product with itself or with another norm's output",
    "pow": "a square",
    "mean": "a mean",
    "sum": "a sum over features or tokens",
    "convolution": "a convolution that is not a product with one weight a channel",
    "product": "a product of two activations (attention, a scan)",
    "norm": "another norm",
    "output": "the model's output",
    "lookup": "a table lookup",
}


@dataclass
class Reading:
    """Everything that was seen to read one norm's output.

    weights: positions of checkpoint tensors, in the order in which they were met.
    others: what else reads it, in words, in that order.
    """

    weights: list[int] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


@dataclass
class Trail:
    """What one or more passes showed.

    by: int64, one element for each element of the checkpoint's tensors, one tensor after the other: the code
        of the gain that it was contracted with (`norm_of`, `gain_of`), OTHER where the input was no norm's,
        MIXED, or UNREAD.
    bias: int64, as long: the element of a bias that was added to the product that begins with this element,
        or OTHER.
    scaled: bool, as long: the norm's output had been scaled before.
    readings: one for each norm. uses: {position of a checkpoint tensor: other uses than a product, in words}.
    norms_own: positions of the norms' gains and biases.
    handed: {norm: path of a model within the model (one that can be used alone) whose output it is}.
    """

    by: torch.Tensor
    bias: torch.Tensor
    scaled: torch.Tensor
    readings: list[Reading]
    uses: dict[int, list[str]]
    norms_own: set[int] = field(default_factory=set)
    handed: dict[int, str] = field(default_factory=dict)


def norm_of(code: torch.Tensor) -> torch.Tensor:
    """Which norm a code in `Trail.by` belongs to; -1 for what is no norm's."""
    return torch.where(code >= 0, (code & (NORM - 1)) >> 32, -1)


def gain_of(code: torch.Tensor) -> torch.Tensor:
    """Which element of the flattened gain."""
    return code & INDEX


def telling(shadow: torch.Tensor | None) -> bool:
    return shadow is not None and bool(((shadow != OTHER) & (shadow != UNREAD)).any())


def is_norm(shadow: torch.Tensor) -> torch.Tensor:
    return (shadow >= 0) & (shadow & NORM != 0)


def is_product(shadow: torch.Tensor) -> torch.Tensor:
    return (shadow >= 0) & (shadow & PRODUCT != 0)


def is_stored(shadow: torch.Tensor) -> torch.Tensor:
    return (shadow >= 0) & (shadow & (NORM | PRODUCT) == 0)
