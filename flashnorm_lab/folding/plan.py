"""What a fold does to a checkpoint: changes of named tensors, and a report on every norm.

Pure data, free of torch. `audit` makes it (by proof, on a twin), `writing` carries it out, the command line,
the panel and the model card show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

MODES = ("compatible", "strict")
PATTERNS = ("same", "tile", "repeat")
"""Which element of a gain [m] acts at position i of an axis of length n: "same" i (n = m), "tile" i mod m,
"repeat" i // (n / m)."""


@dataclass(frozen=True)
class Scale:
    """Slice i along `axis` times (offset + gain[pattern(i)]): Proposition 1 on one tensor.

    gain: key of the gain in the checkpoint, [m], or more axes read as one in row-major order.
    offset: 0.0 where the gain acts as w, 1.0 where it acts as 1 + w.
    Source: FlashNorm, arXiv 2407.09577, Proposition 1.
    """

    gain: str
    offset: float
    axis: int
    pattern: str = "same"


@dataclass(frozen=True)
class Shift:
    """Adds W b to a bias: the part of a LayerNorm's output that does not depend on x, behind the weight W.

    weight: key of W as the checkpoint has it, before any change; `axis` and `pattern` as in `Scale`.
    norm_bias: key of b, the norm's bias, [m].
    What is added has W's shape without `axis`.
    """

    weight: str
    norm_bias: str
    axis: int
    pattern: str = "same"


@dataclass(frozen=True)
class Change:
    """What becomes of one tensor. At most: start, then scale, centre and shift; or fill; or remove.

    key: its name in the folded checkpoint, and in the source unless `start` says otherwise.
    start: "itself"; "zeros like the shift" for a bias that the source does not have (dtype of the weight);
        or the key of another tensor, of which it is a new copy (an untied head).
    scales, shifts: applied in this order, in float32 (float64 for float64), rounded once to its own dtype.
    centre: axis along which the mean is taken away (a linear layer's output axis, before a LayerNorm).
    over: the tensor (a norm's bias that stays) is divided by this gain.
    fill: every value becomes this number: the neutral gain 1 - offset, or 0 for a bias that has moved.
    remove: it is left out (strict mode).
    """

    key: str
    start: str = "itself"
    scales: tuple[Scale, ...] = ()
    shifts: tuple[Shift, ...] = ()
    centre: int | None = None
    over: Scale | None = None
    fill: float | None = None
    remove: bool = False

    def reads(self) -> set[str]:
        """Keys of the source, other than its own start, whose values this change needs."""
        keys = {scale.gain for scale in self.scales}
        keys |= {key for shift in self.shifts for key in (shift.weight, shift.norm_bias)}
        return keys | ({self.over.gain} if self.over else set())


@dataclass(frozen=True)
class Consumer:
    """One reader of a norm's output.

    what: "weight" where the output is contracted with a weight along its `axis`; else what happens to it, in
        words ("an addition (the residual path)", "another norm", "the model's output", ...).
    key: the weight's key in the checkpoint, "" for what is no weight.
    """

    what: str
    key: str = ""
    axis: int | None = None
    pattern: str = "same"


@dataclass(frozen=True)
class NormReport:
    """One norm of the model, how its gain acts, who reads its output, and what is done.

    norm: module path in the model ("model.layers.0.input_layernorm").
    kind: "RMSNorm" or "LayerNorm" (the mean is taken away first), found by running it.
    gain, bias: keys in the checkpoint; None where the norm has none.
    acts: how the gain acts: "w", "1 + w", or a sentence where neither is so.
    size: number of gain values. per: "feature", "head" or "group": one norm of `size` values serves each.
    consumers: in the order in which the forward pass meets them.
    folded: whether `Audit.plan` folds it as asked; reason: why not, else "".
    twin: the norm of the twin that stands for it.
    """

    norm: str
    kind: str
    gain: str | None
    bias: str | None
    acts: str
    size: int
    per: str
    consumers: tuple[Consumer, ...]
    folded: bool
    reason: str
    twin: str


@dataclass(frozen=True)
class Cancellation:
    """Proposition 3 for one norm: whether its scalar 1/rms (or 1/std) cancels in what reads it.

    norm: module path. cancels: all consumers are re-normalised through bias-free, positively homogeneous
    paths. partly: the consumers (keys) for which the scalar cancels though not for all.
    needed: {consumer key: why the scalar is needed there}.
    eps_error: relative change of the twin's output when the scalar is left out where it cancels; not 0, since
        the next norm's eps then meets numbers of another size. limit_error: the same with every eps at 0.
    Source: FlashNorm, arXiv 2407.09577, Proposition 3.
    """

    norm: str
    cancels: bool
    partly: tuple[str, ...]
    needed: dict[str, str]
    eps_error: float | None
    limit_error: float | None


@dataclass(frozen=True)
class Proof:
    """What the twin's logits say of a plan, in float64 on the CPU.

    error: largest |difference| of the outputs, original against folded from disk to disk, over the largest
        |original|. tolerance: what it had to stay under.
    control: the smallest such change that any one fold makes when it is left half done (the gain made
        neutral, the weights not scaled): a proof that cannot fail would show about 0 here.
    compared: what was compared, in words. folds: number of folds proven together.
    """

    error: float
    tolerance: float
    control: float | None
    compared: str
    folds: int

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance and (self.control is None or self.control > 100 * self.tolerance)


@dataclass(frozen=True)
class Plan:
    """All changes of one fold. mode: "compatible" or "strict".

    config: edits of config.json, as {("text_config", "tie_word_embeddings"): False, ...}, beside the one key
        `flashnorm_folded` that each fold adds.
    """

    mode: str
    changes: tuple[Change, ...]
    config: dict[tuple[str, ...], object] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def by_key(self) -> dict[str, Change]:
        return {change.key: change for change in self.changes}
