"""What NVIDIA's compiler makes of a kernel: registers, shared memory, spills. No GPU is needed.

NVRTC compiles to a cubin for any architecture it knows, and its assembler reports what each kernel uses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from . import kernels
from .errors import LabError

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")
"""Turing, Ampere, Hopper and Blackwell: what the lab's kernels are compiled for in its tests."""


@dataclass(frozen=True)
class Report:
    """What one kernel uses, as ptxas reports it.

    ``registers`` are 32-bit registers a thread; ``shared_bytes`` static shared memory a block;
    ``stack_bytes`` memory a thread takes for arrays that are not in registers; ``spill_bytes`` stores and
    loads of registers that did not fit; ``cubin_bytes`` the size of the binary.
    """

    kernel: str
    arch: str
    dtype: str
    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int
    cubin_bytes: int


def compile_report(kernel_name: str, arch: str = "sm_80", dtype: str = "float32") -> Report:
    """Compile one of the lab's kernels for ``arch`` ("sm_80") and a storage type, and report what it uses.

    ``LabError`` for an unknown kernel, architecture or type, for text that does not compile (naming file and
    line), and where NVRTC cannot be loaded.
    """
    code = kernels.load(kernel_name)
    cubin, log = compile_source(code.cuda_source(), code.path.name, arch, code.defines("cuda", dtype))
    return Report(
        kernel=kernel_name,
        arch=arch,
        dtype=dtype,
        registers=_number(r"Used (\d+) registers", log),
        shared_bytes=_number(r"(\d+) bytes smem", log, missing=0),
        stack_bytes=_number(r"(\d+) bytes stack frame", log),
        spill_bytes=_number(r"(\d+) bytes spill stores", log) + _number(r"(\d+) bytes spill loads", log),
        cubin_bytes=len(cubin),
    )


def compile_source(
    source: str, file: str = "kernel.cu", arch: str = "sm_80", options: tuple[str, ...] = ()
) -> tuple[bytes, str]:
    """Compile CUDA C++ text to ``(cubin, log)``; the log holds ptxas's resource report.

    ``LabError`` with the compiler's first error, which begins with file and line.
    """
    nvrtc = _nvrtc()
    known = [f"sm_{number}" for number in nvrtc.getSupportedArchs()]
    if re.sub(r"[af]$", "", arch) not in known:
        raise LabError(f"arch={arch!r} is not one that this NVRTC compiles for; it knows {', '.join(known)}")
    program = nvrtc.createProgram(source, file, [], [])
    try:
        nvrtc.compileProgram(program, [f"-arch={arch}", "-std=c++17", "--ptxas-options=-v", *options])
        return nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    except nvrtc.NVRTCError as problem:
        log = nvrtc.getProgramLog(program)
        first = next((line for line in log.splitlines() if "error" in line), str(problem))
        raise LabError(f"{first.strip()} (compiling {file} for {arch})") from None
    finally:
        nvrtc.destroyProgram(program)


def _nvrtc() -> Any:
    """CuPy's binding of NVRTC, which works without a driver. ``LabError`` where it is missing."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as problem:
        raise LabError(
            f"NVRTC cannot be loaded ({problem}); it comes with CuPy on Linux and Windows: run `make setup`"
        ) from None
    return nvrtc


def _number(pattern: str, log: str, missing: int | None = None) -> int:
    found = re.search(pattern, log)
    if found:
        return int(found[1])
    if missing is None:
        raise LabError(f"NVRTC's report has no {pattern!r} in it: {log.strip()!r}")
    return missing
