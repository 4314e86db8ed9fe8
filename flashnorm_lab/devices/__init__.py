"""The devices that replay a schedule: CUDA through CuPy, or OpenCL through pyopencl. One contract for both.

``prepare(schedule)`` compiles, allocates and binds once; the plan it returns replays the step with as
little host work as the driver allows. Nothing here is imported before it is asked for.
"""

from __future__ import annotations

from ..errors import LabError
from .base import Device, Force, Plan

__all__ = ["Device", "Force", "Plan", "default", "get"]

KINDS = "auto, cuda, opencl, opencl:NAME (part of a platform's or device's name)"


def default() -> Device:
    """CUDA if there is a usable GPU, else OpenCL. ``device.reason`` says which and why."""
    from . import cuda, opencl

    unusable = cuda.unusable()
    if unusable is None:
        return cuda.open_device(reason="a usable NVIDIA GPU was found")
    try:
        return opencl.open_device(reason=f"OpenCL, since {unusable}")
    except LabError as problem:
        raise LabError(f"no device can be used: CUDA: {unusable}; OpenCL: {problem}") from None


def get(name: str = "auto") -> Device:
    """A device by name: "auto", "cuda", "opencl", or "opencl:NAME", part of a platform's or device's name."""
    if not isinstance(name, str):
        raise LabError(f"{name!r} is no device's name; there are {KINDS}")
    kind, _, wanted = name.partition(":")
    if kind == "auto" and not wanted:
        return default()
    if kind == "cuda" and not wanted:
        from . import cuda

        unusable = cuda.unusable()
        if unusable:
            raise LabError(f"device 'cuda' cannot be used: {unusable}; 'opencl' runs on the CPU")
        return cuda.open_device(reason="asked for by name")
    if kind == "opencl":
        from . import opencl

        return opencl.open_device(wanted, reason="asked for by name")
    raise LabError(f"there is no device {name!r}; there are {KINDS}")
