"""Proposition 1 on a model: its norm-projections, and their weights with the gains folded in.

A site is one norm-projection of a transformers model of the Llama family: an RMSNorm and the linear layers
that read its output. `find_sites` names them in the order in which a decode step meets them, `fold_site`
makes the one weight that replaces the gain and the linear layers. The model itself is never changed, nor is
its embedding where that is tied to the head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashnorm_lab.errors import LabError

if TYPE_CHECKING:
    import torch

# What reads each norm, by the names that transformers gives the modules of a decoder layer.
_LAYER_SITES = (
    ("qkv", "input_layernorm", "self_attn", ("q_proj", "k_proj", "v_proj")),
    ("gate_up", "post_attention_layernorm", "mlp", ("gate_proj", "up_proj")),
)
# Families whose RMSNorm is x r g, in this place and read by nothing else. (Gemma's multiplies by 1 + g.)
LLAMA_FAMILY = ("llama", "mistral")


@dataclass(frozen=True, eq=False)
class NormSite:
    """One norm-projection of a model, by reference: nothing is copied.

    name: "layers.0.qkv", "layers.0.gate_up", ..., "head", as in `models.norm_projection_sites`.
    norm, norm_path: the RMSNorm module and its name in the model ("model.layers.0.input_layernorm").
    linears, linear_paths: the linear layers that read it, in the order of the rows of the folded weight.
    eps: the norm's eps.
    """

    name: str
    norm: torch.nn.Module
    norm_path: str
    linears: tuple[torch.nn.Linear, ...]
    linear_paths: tuple[str, ...]
    eps: float

    @property
    def n(self) -> int:
        """Width of the input."""
        return self.norm.weight.shape[0]

    @property
    def splits(self) -> tuple[int, ...]:
        """Rows that each linear layer has in the folded weight."""
        return tuple(linear.weight.shape[0] for linear in self.linears)

    @property
    def k(self) -> int:
        """Rows of the folded weight: the sum of `splits`."""
        return sum(self.splits)


def fold_linear(weight: torch.Tensor, gain: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """W* = W diag(g), in float32 and without the diagonal matrix.

    weight [k, n] and gain [n], of any floating dtype and on one device -> W* float32 [k, n], contiguous,
    sharing memory with neither; `out`, a float32 [k, n], is written and returned where it is given.
    Source: FlashNorm, arXiv 2407.09577, Proposition 1.

    Raises:
        LabError: the shapes do not fit, a dtype is not floating, or a value is NaN or infinite.
    """
    import torch

    if weight.ndim != 2 or gain.shape != (weight.shape[1],):
        raise LabError(
            f"weight {list(weight.shape)} and gain {list(gain.shape)} do not fit: expected [k, n] and [n]"
        )
    for name, tensor in (("weight", weight), ("gain", gain)):
        if not tensor.is_floating_point():
            raise LabError(
                f"{name} is {tensor.dtype}: expected a floating dtype, so load the model unquantized"
            )
        if tensor.is_meta:
            raise LabError(f"{name} is on the meta device and has no values: load the model with its weights")
    if out is None:
        out = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
    with torch.no_grad():
        torch.mul(weight.detach().float(), gain.detach().float(), out=out)
        finite = bool(torch.isfinite(out).all())
    if not finite:
        raise LabError(
            f"the folded weight {list(weight.shape)} has NaN or infinite values: expected finite ones, "
            "so load the model again"
        )
    return out


def find_sites(model: torch.nn.Module) -> tuple[NormSite, ...]:
    """The norm-projections of a Llama-family causal language model, in the order of a decode step.

    Two a layer (input norm with q, k, v; post-attention norm with gate and up), then the final norm with the
    head.

    Raises:
        LabError: the model is of another family, a linear layer has a bias or is no plain `torch.nn.Linear`
            (quantized, or wrapped by an adapter), or a module that should be there is not; it names which.
    """
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    if family not in LLAMA_FAMILY:
        raise LabError(
            f"the model is of type {family!r}: expected one of {', '.join(LLAMA_FAMILY)}, "
            "whose norms can be folded here"
        )
    layers = _module(model, "model.layers")
    sites = []
    for index in range(len(layers)):
        path = f"model.layers.{index}"
        for site, norm, parent, linears in _LAYER_SITES:
            paths = tuple(f"{path}.{parent}.{linear}" for linear in linears)
            sites.append(_site(model, f"layers.{index}.{site}", f"{path}.{norm}", paths))
    sites.append(_site(model, "head", "model.norm", ("lm_head",)))
    return tuple(sites)


def fold_site(site: NormSite) -> torch.Tensor:
    """The folded weights of a site's linear layers, one below the other.

    Returns W* float32 [k, n], contiguous, on the weights' device; rows split as `site.splits` says. It is a
    new tensor also where the head is tied to the embedding, which keeps its values.
    Source: FlashNorm, arXiv 2407.09577, Proposition 1.

    Raises:
        LabError: a weight or gain is NaN or infinite, or of no floating dtype; it names the layer.
    """
    import torch

    folded = torch.empty((site.k, site.n), dtype=torch.float32, device=site.norm.weight.device)
    for path, linear, rows in zip(site.linear_paths, site.linears, folded.split(site.splits), strict=True):
        try:
            fold_linear(linear.weight, site.norm.weight, out=rows)
        except LabError as error:
            raise LabError(f"{path} behind {site.norm_path}: {error}") from error
    return folded


def fold_model(model: torch.nn.Module, names: Iterable[str] | None = None) -> dict[str, torch.Tensor]:
    """The folded weights of the named sites, or of all of them.

    Returns {site name: W* float32 [k, n]}. All sites of SmolLM2-135M together take 392 MB.

    Raises:
        LabError: a name is not one of the model's sites, or whatever `find_sites` and `fold_site` refuse.
    """
    sites = {site.name: site for site in find_sites(model)}
    wanted = list(sites) if names is None else list(names)
    for name in wanted:
        if name not in sites:
            raise LabError(
                f"no site {name!r} in this model: expected one of {', '.join(_abbreviated(sites))}"
            )
    return {name: fold_site(sites[name]) for name in wanted}


def _abbreviated(names: Iterable[str]) -> list[str]:
    names = list(names)
    return names if len(names) <= 7 else [*names[:4], "...", *names[-3:]]


def _module(model: torch.nn.Module, path: str) -> torch.nn.Module:
    module = model
    for part in path.split("."):
        if not hasattr(module, part):
            raise LabError(f"the model has no {path}: expected the modules of a LlamaForCausalLM")
        module = getattr(module, part)
    return module


def _site(model: torch.nn.Module, name: str, norm_path: str, linear_paths: tuple[str, ...]) -> NormSite:
    import torch

    norm = _module(model, norm_path)
    eps = getattr(norm, "variance_epsilon", None)
    if not isinstance(eps, float) or not hasattr(norm, "weight"):
        raise LabError(
            f"{norm_path} is a {type(norm).__name__}: expected an RMSNorm with a weight and an eps"
        )
    linears = tuple(_module(model, path) for path in linear_paths)
    for path, linear in zip(linear_paths, linears, strict=True):
        if type(linear) is not torch.nn.Linear:
            raise LabError(
                f"{path} is a {type(linear).__name__}: expected a plain torch.nn.Linear, "
                "so load the model unquantized and merge its adapters"
            )
        if linear.bias is not None:
            raise LabError(f"{path} has a bias: only a bias-free linear layer can be deferred as a whole")
        if linear.weight.shape[1:] != norm.weight.shape:
            raise LabError(
                f"{path} takes {linear.weight.shape[1]} inputs: expected the {list(norm.weight.shape)} that "
                f"{norm_path} gives"
            )
    return NormSite(name, norm, norm_path, linears, linear_paths, eps)
