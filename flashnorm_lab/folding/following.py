"""Who reads each norm's output: found by following the tensor itself through a forward pass.

Every floating tensor of the pass has a shadow, an int64 tensor of the same shape, that tells for each element
where it comes from: element j of a norm's gain, an element of a tensor of the checkpoint, a zero, or
something else. An operation that only moves elements is carried out on the shadows too. A product whose one
operand is a weight writes down, for each element of that weight in the checkpoint, which gain's element it
was contracted with. Anything else that reads a norm's output is written down in words: those are the reasons
against a fold.

Shadows cost as much as the pass itself: meant for a twin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers import PreTrainedModel

from flashnorm_lab.folding.gains import Norm
from flashnorm_lab.folding.trail import (
    INDEX,
    MIXED,
    NORM,
    OTHER,
    PRODUCT,
    SCALED,
    UNREAD,
    WORDS,
    ZERO,
    Reading,
    Trail,
    is_norm,
    is_product,
    is_stored,
    norm_of,
    telling,
)

_MOVES = {
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "slice",
    "select", "split", "split_with_sizes", "unbind", "cat", "stack", "index", "index_select", "gather",
    "clone", "detach", "alias", "lift_fresh", "repeat", "flip", "roll", "diagonal", "unfold",
    "_reshape_alias", "index_put", "index_put_", "index_copy", "index_copy_", "scatter", "scatter_",
    "slice_scatter", "select_scatter", "repeat_interleave", "contiguous", "_to_copy", "copy_", "where",
    "pixel_shuffle", "masked_scatter", "masked_scatter_", "movedim", "narrow", "tril", "triu",
}  # fmt: skip
_PRODUCTS = {"mm", "bmm", "addmm", "baddbmm", "mv", "addmv", "dot"}
_SCALES = {"mul", "mul_", "div", "div_", "neg"}
_SUMS = {
    "add",
    "add_",
    "sub",
    "sub_",
    "rsub",
    "index_add",
    "index_add_",
    "scatter_add",
    "scatter_add_",
    "sum",
}
_FILLS = {"masked_fill", "masked_fill_", "constant_pad_nd", "fill_", "zero_"}
_ZEROS = {"zeros", "zeros_like", "new_zeros"}
_NOTHING = _ZEROS | {  # made with the shape of a followed tensor, without its values
    "empty_like", "new_empty", "new_empty_strided", "ones_like", "new_ones", "full_like", "new_full",
    "rand_like",
}  # fmt: skip


def follow(
    model: torch.nn.Module,
    norms: tuple[Norm, ...],
    ids: Mapping[str, torch.Tensor],
    sizes: Iterable[int],
    runs: Iterable[tuple[torch.nn.Module, Callable[[], Any]]],
) -> Trail:
    """Follow the norms' outputs through `runs`.

    ids: {parameter or buffer: int64 of its shape}, for each element its number in the checkpoint (the tensors
        one after the other), or OTHER.
    sizes: elements of each checkpoint tensor. runs: (the module whose output counts as output, what to call).
    """
    follower = _Follower(model, norms, ids, list(sizes))
    with follower.hooked():
        for module, run in runs:
            follower.run(module, run)
    return follower.trail


class _Follower(TorchDispatchMode):
    def __init__(
        self,
        model: torch.nn.Module,
        norms: tuple[Norm, ...],
        ids: Mapping[str, torch.Tensor],
        sizes: list[int],
    ) -> None:
        super().__init__()
        total = sum(sizes)
        blank = torch.full((total,), OTHER)
        self.trail = Trail(
            torch.full((total,), UNREAD), blank, blank.clone() > 0, [Reading() for _ in norms], {}
        )
        self.model, self.norms = model, norms
        self.tensor_of = torch.repeat_interleave(
            torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.long)
        )
        self.shadows = WeakIdKeyDictionary()
        named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name, tensor in named.items():
            if name in ids and tensor.is_floating_point():
                self.shadows[tensor] = ids[name]
        self.inside = 0
        for norm in norms:
            own = (
                f"{norm.path}.{name}" if norm.path else name for name in (norm.weight_name, norm.bias_name)
            )
            for name in own:
                if name in ids:
                    self.trail.norms_own |= set(self.tensor_of[ids[name][ids[name] >= 0]].unique().tolist())

    # The passes

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        hooks = []
        for number, norm in enumerate(self.norms):
            hooks.append(norm.module.register_forward_pre_hook(self._entering, with_kwargs=True))
            hooks.append(norm.module.register_forward_hook(self._leaving(number)))
        for path, module in self.model.named_modules():
            if path and isinstance(module, PreTrainedModel):
                hooks.append(module.register_forward_hook(self._handing(path)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(self, module: torch.nn.Module, run: Callable[[], Any]) -> None:
        with torch.no_grad(), self:
            output = run()
        values = output.values() if isinstance(output, Mapping) else [output]
        self._use([self.shadows.get(tensor) for tensor in _tensors(list(values))], "output")

    def _entering(self, module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        if not self.inside:
            self._use([self.shadows.get(tensor) for tensor in _tensors((args, kwargs))], "norm")
        self.inside += 1

    def _handing(self, path: str) -> Callable:
        def hand(module: torch.nn.Module, args: tuple, output: Any) -> None:
            for tensor in _tensors(list(output.values()) if isinstance(output, Mapping) else output):
                shadow = self.shadows.get(tensor)
                for number in [] if shadow is None else self._norm_numbers(shadow):
                    self.trail.handed.setdefault(number, path)

        return hand

    def _leaving(self, number: int) -> Callable:
        def leave(module: torch.nn.Module, args: tuple, output: Any) -> None:
            self.inside -= 1
            if isinstance(output, torch.Tensor):
                index = self.norms[number].index
                code = NORM | number << 32
                shadow = torch.full(output.shape, OTHER)
                if index is not None:
                    shadow = (code + index).expand(output.shape).contiguous()
                self.shadows[output] = shadow

        return leave

    # One operation

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self.inside:
            return out
        name = func.overloadpacket.__name__
        inputs = _tensors((args, kwargs))
        if not any(value.is_floating_point() for value in (*inputs, *_tensors(out))):
            return out
        shadows = [self.shadows.get(value) for value in inputs]
        if name in _MOVES:
            # Also where nothing followed goes in: what is a view now may be written to later.
            self._move(func, name, args, kwargs, out)
        elif not any(telling(shadow) for shadow in shadows):
            self._give(out, ZERO if name in _ZEROS else OTHER, inputs)
        elif name in _FILLS:
            self._fill(func, name, args, out)
        elif name in _PRODUCTS:
            self._product(name, args, out)
        elif name in _SCALES:
            self._scale(name, args, out)
        elif name in _SUMS:
            self._sum(name, args, out, shadows)
        elif name == "embedding":
            self._set(out, self._shadow(args[0])[args[1]])
            self._mark(self._shadow(args[0]), "lookup")
        elif name == "convolution":
            self._convolution(args, out)
        elif name in _NOTHING:
            self._give(out, ZERO if name in _ZEROS else OTHER, inputs)
        else:
            self._use(shadows, name)
            self._give(out, OTHER, inputs)
        return out

    def _shadow(self, tensor: torch.Tensor) -> torch.Tensor:
        shadow = self.shadows.get(tensor)
        if shadow is None:
            shadow = self.shadows[tensor] = torch.full_like(tensor, OTHER, dtype=torch.int64)
        return shadow

    def _set(self, out: Any, shadow: Any) -> None:
        if isinstance(out, torch.Tensor) and out.is_floating_point():
            self.shadows[out] = shadow

    def _give(self, out: Any, value: int, inputs: list[torch.Tensor]) -> None:
        """What comes out is all `value`; where it is one of the inputs, written to in place, too."""
        for tensor in _tensors(out):
            if not tensor.is_floating_point():
                continue
            old = self.shadows.get(tensor)
            if old is not None and any(tensor is value for value in inputs):
                old.fill_(value)
            else:
                self.shadows[tensor] = torch.full_like(tensor, value, dtype=torch.int64)

    def _move(self, func: Any, name: str, args: tuple, kwargs: dict, out: Any) -> None:
        if name == "copy_":
            self._shadow(args[0]).copy_(self._shadow(args[1]))
            return
        if name == "_to_copy":
            if out.is_floating_point():
                self._set(out, self._shadow(args[0]).clone())
            else:
                self._use([self._shadow(args[0])], "a conversion to whole numbers")
            return
        if name in ("index_put", "index_put_") and len(args) > 3 and args[3]:
            self._use([self._shadow(args[2])], "add")
            self._give(out, OTHER, [args[0]])
            return

        def shadowed(value: torch.Tensor) -> torch.Tensor:
            return self._shadow(value) if value.is_floating_point() else value

        moved_args, moved_kwargs = tree_map_only(torch.Tensor, shadowed, (args, kwargs))
        number = {"where": (1, 2), "scatter": (3,), "scatter_": (3,)}.get(name, ())
        moved_args = tuple(  # a number in the place of a tensor
            (OTHER if value else ZERO) if place in number and isinstance(value, (int, float)) else value
            for place, value in enumerate(moved_args)
        )
        try:
            moved = func(*moved_args, **moved_kwargs)
        except RuntimeError:  # strides of the shadow that do not allow a view, say
            self._use([self._shadow(value) for value in _tensors(args)], name)
            self._give(out, OTHER, [])
            return
        if name.endswith("_") and not name.startswith("_"):
            return  # the shadow was written to in place
        for tensor, shadow in zip(tree_flatten(out)[0], tree_flatten(moved)[0], strict=True):
            self._set(tensor, shadow)

    def _fill(self, func: Any, name: str, args: tuple, out: torch.Tensor) -> None:
        shadow = self._shadow(args[0])
        value = args[-1] if name != "zero_" and not (name == "constant_pad_nd" and len(args) < 3) else 0
        code = ZERO if not isinstance(value, torch.Tensor) and value == 0 else OTHER
        if name == "zero_":
            shadow.fill_(code)
        elif name.endswith("_"):
            func(*[shadow, *args[1:-1], code])
        else:
            self._set(out, func(shadow, args[1], code))

    # Products with weights

    def _product(self, name: str, args: tuple, out: torch.Tensor) -> None:
        bias = self._shadow(args[0]) if name.startswith(("add", "badd")) else None
        left, right = (self._shadow(value) for value in (args[1:3] if bias is not None else args[:2]))
        if name in ("mv", "addmv", "dot"):
            right = right[:, None]
            left = left if left.ndim > 1 else left[None]
        if left.ndim == 2:
            left, right = left[None], right[None]
        products = torch.stack([self._contract(a, b) for a, b in zip(left, right, strict=True)])
        products = products.reshape(out.shape)
        if bias is not None:
            self._mark(bias, "add")
            products = self._add_bias(products, bias.expand(out.shape))
        self._set(out, products)

    def _contract(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """[m, c] times [c, n]: write down what each weight's element met; the shadow of the product."""
        product = torch.full((left.shape[0], right.shape[1]), OTHER)
        weights = [bool(is_stored(operand).any()) for operand in (left, right)]
        if weights[1] and not weights[0]:
            if self._meet(left, right):
                product[:] = torch.where(is_stored(right[0]), right[0] | PRODUCT, OTHER)
        elif weights[0] and not weights[1]:
            if self._meet(right.T, left.T):
                product[:] = torch.where(is_stored(left[:, 0]), left[:, 0] | PRODUCT, OTHER)[:, None]
        else:
            self._use([left, right], "product")
        return product

    def _meet(self, x: torch.Tensor, w: torch.Tensor) -> bool:
        """x [m, c] contracted with w [c, n]. Whether all of w is the checkpoint's."""
        if x.shape[0] == 0:
            return False
        known = x.clone()
        known[x >= 0] &= ~SCALED
        low = torch.where(x == ZERO, torch.iinfo(torch.int64).max, known).amin(0)
        high = torch.where(x == ZERO, torch.iinfo(torch.int64).min, known).amax(0)
        empty = low > high  # zeros all along: says nothing
        met = torch.where(low == high, low, MIXED)
        met[(met >= 0) & (met & NORM == 0)] = OTHER  # a product of weights, say
        met[(met < 0) & (met != MIXED)] = OTHER
        scaled = ((x >= 0) & (x & SCALED != 0)).any(0)
        stored = is_stored(w)
        if not bool(stored.all()):
            self._use([x], "a product with what is not a weight of the checkpoint")
        if bool((met == MIXED).any()):
            self._use([x], "a product in which it takes turns with other inputs")
        places = torch.where(stored, w & INDEX, 0)
        rows = torch.where(stored & ~empty[:, None], met[:, None].expand(w.shape), UNREAD)
        chosen = rows != UNREAD
        at, code = places[chosen], rows[chosen]
        before = self.trail.by[at]
        self.trail.by[at] = torch.where((before == UNREAD) | (before == code), code, MIXED)
        self.trail.scaled[at] |= (scaled[:, None] | (w & SCALED != 0))[chosen]
        self._note_weights(x, at)
        return bool(stored.all())

    def _note_weights(self, x: torch.Tensor, at: torch.Tensor) -> None:
        numbers = self._norm_numbers(x)
        if numbers and len(at):
            for tensor in self.tensor_of[at].unique().tolist():
                for number in numbers:
                    if tensor not in self.trail.readings[number].weights:
                        self.trail.readings[number].weights.append(tensor)

    def _convolution(self, args: tuple, out: torch.Tensor) -> None:
        x, w, bias, groups = self._shadow(args[0]), self._shadow(args[1]), args[2], args[8]
        transposed, k = args[6], w.shape[2:].numel()
        if transposed or groups != 1 or not bool(is_stored(w).all()):
            self._use([x, w], "convolution")
            self._set(out, torch.full(out.shape, OTHER))
            return
        channels = x.movedim(1, -1).flatten(0, -2)
        whole = self._meet(channels.repeat_interleave(k, 1), w.flatten(1).T)
        product = torch.full(out.shape, OTHER)
        if whole:
            first = (w.flatten(1)[:, 0] | PRODUCT).reshape(1, -1, *[1] * _spatial(w))
            product = first.expand(out.shape)
            if bias is not None:
                self._mark(self._shadow(bias), "add")
                added = self._shadow(bias).reshape(1, -1, *[1] * _spatial(w)).expand(out.shape)
                product = self._add_bias(product, added)
        self._set(out, product.contiguous())

    def _add_bias(self, products: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """What comes of products plus a bias, both of one shape; each weight's element learns its bias."""
        pairs = is_product(products) & is_stored(bias)
        if bool(pairs.any()):
            self.trail.bias[products[pairs] & INDEX] = bias[pairs] & INDEX
        return torch.full(products.shape, OTHER)

    # Elementwise

    def _scale(self, name: str, args: tuple, out: torch.Tensor) -> None:
        operands = [self._shadow(v) if isinstance(v, torch.Tensor) else torch.tensor(OTHER) for v in args[:2]]
        if name == "neg":
            operands = [operands[0], torch.tensor(OTHER)]
        if name.startswith("div"):
            self._use([operands[1]], "div")
            operands[1] = torch.full_like(operands[1], OTHER)
        a, b = torch.broadcast_tensors(*operands)
        # A weight that multiplies elementwise is a use of that weight; the followed value goes on, scaled.
        for one, other in ((a, b), (b, a)):
            clash = is_stored(one) & (is_norm(other) | is_stored(other))
            if bool(clash.any()):
                self._mark(one[clash], "mul")
        both = is_norm(a) & is_norm(b)
        if bool(both.any()):
            self._use([a[both], b[both]], "mul")
        pick = torch.where(is_norm(a), a, torch.where(is_norm(b), b, torch.where(is_stored(a), a, b)))
        result = torch.where(both | (pick < 0) | is_product(pick), OTHER, pick | SCALED)
        result = torch.where((a == ZERO) | (b == ZERO), ZERO, result)
        self._put(name, args[0], out, result)

    def _sum(self, name: str, args: tuple, out: torch.Tensor, shadows: list) -> None:
        if name in ("add", "add_") and isinstance(args[1], torch.Tensor):
            a, b = torch.broadcast_tensors(self._shadow(args[0]), self._shadow(args[1]))
            biased = (is_product(a) & is_stored(b)) | (is_product(b) & is_stored(a))
            if bool(biased.any()):
                self._add_bias(torch.where(is_product(a), a, b), torch.where(is_product(a), b, a))
            result = torch.where(a == ZERO, b, torch.where(b == ZERO, a, OTHER))
            added = (a != ZERO) & (b != ZERO)
            a, b = a[added], b[added]
            rotated = is_norm(a) & is_norm(b) & (norm_of(a & ~SCALED) == norm_of(b & ~SCALED))
            self._use([a[rotated], b[rotated]], "rotary")
            self._use([a[~rotated], b[~rotated]], "add")
            self._put(name, args[0], out, result)
            return
        self._use(shadows, "sum" if name == "sum" else "add")
        self._give(out, OTHER, [args[0]])

    def _put(self, name: str, target: torch.Tensor, out: torch.Tensor, result: torch.Tensor) -> None:
        if name.endswith("_"):
            old = self.shadows.get(target)
            if old is not None:
                old.copy_(result)
                return
        self._set(out, result.contiguous())

    # What is written down

    def _norm_numbers(self, shadow: torch.Tensor) -> list[int]:
        codes = shadow[is_norm(shadow)]
        return norm_of(codes & ~SCALED).unique().tolist() if len(codes) else []

    def _use(self, shadows: list, what: str) -> None:
        words = WORDS.get(what, what if " " in what else f"{what} (an elementwise or other operation)")
        for shadow in shadows:
            if shadow is None:
                continue
            for number in self._norm_numbers(shadow):
                others = self.trail.readings[number].others
                if words not in others:
                    others.append(words)
            self._mark(shadow, what)

    def _mark(self, shadow: torch.Tensor, what: str) -> None:
        """Elements of the checkpoint that something else than a product reads: no gain can go there."""
        stored = shadow[is_stored(shadow)] & INDEX
        if len(stored):
            before = self.trail.by[stored]
            self.trail.by[stored] = torch.where(
                before == UNREAD, OTHER, torch.where(before == OTHER, OTHER, MIXED)
            )
            words = WORDS.get(what, what)
            for tensor in self.tensor_of[stored].unique().tolist():
                uses = self.trail.uses.setdefault(tensor, [])
                if words not in uses:
                    uses.append(words)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


def _spatial(w: torch.Tensor) -> int:
    """Axes of a convolution's kernel."""
    return w.ndim - 2
