"""Running a model in float64 throughout, also where its code asks for float32.

Norms and softmaxes of most models compute in float32 whatever the model's dtype. A proof wants more digits
than that, so each such request is answered in float64 here; nothing else is changed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

_SMALLER = (torch.float32, torch.float16, torch.bfloat16)


class _Exact(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") in _SMALLER:
            kwargs["dtype"] = torch.float64
        args = tree_map_only(torch.Tensor, _widened, args)
        return func(*args, **kwargs)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    # Only what the model made without asking for a dtype, such as a table of positions.
    return tensor.double() if tensor.dtype in _SMALLER else tensor


@contextlib.contextmanager
def default_float64() -> Iterator[None]:
    """Within this block, torch's default dtype is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def float64() -> Iterator[None]:
    """Within this block, without gradients, floating results are float64, and so is the default dtype."""
    with default_float64(), torch.no_grad(), _Exact():
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Within this block, torch's operations use one thread: a twin's are so small that several threads mostly
    wait for each other, ten times as long on a machine that has other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
