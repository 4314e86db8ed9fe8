"""Load ``kernels/*.cu``: text, argument roles, launch geometry, and a translation to OpenCL C.

The folder ``kernels/`` holds the only copy of every kernel. Both devices compile that text; what differs
is a page of macros (``cuda_prelude.cuh`` or ``opencl_prelude.h``) and a mechanical translation of the few
words that CUDA C and OpenCL C spell differently.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import LabError
from .resources import kernels_folder

NAMES = (
    "rms_norm",
    "inv_rms",
    "projection",
    "post_scale",
    "fused_norm_projection",
    "spin",
    "observe",
    "produce",
)
STORAGE_TYPES = ("float32", "float16", "bfloat16")
MAX_GRID_Y = 65535
"""CUDA's limit on a grid's second dimension; kernels loop over the tokens beyond it."""

TUNING: Mapping[str, Mapping[str, Mapping[str, int]]] = {
    # One warp a row reads W in whole cache lines; 8 rows make a block of 256 threads.
    "cuda": {
        "rms_norm": {"LANES": 256},
        "inv_rms": {"LANES": 256},
        "projection": {"LANES": 32, "ROWS": 8, "UNROLL": 4},
        "fused_norm_projection": {"LANES": 32, "ROWS": 8, "UNROLL": 4},
        "post_scale": {"THREADS": 256},
        "spin": {},
        "observe": {},
        "produce": {},
    },
    # A CPU core runs a block's threads one after the other, so one lane a row does the least work; 32
    # partial sums are four vectors of 8 floats, and 16 rows a work-group keep the scheduling cost small.
    "cpu": {
        "rms_norm": {"LANES": 1},
        "inv_rms": {"LANES": 1},
        "projection": {"LANES": 1, "ROWS": 16, "UNROLL": 32},
        "fused_norm_projection": {"LANES": 1, "ROWS": 16, "UNROLL": 32},
        "post_scale": {"THREADS": 64},
        "spin": {},
        "observe": {},
        "produce": {},
    },
}
"""Compile-time settings of each kernel: for GPUs (through CUDA or OpenCL) and for CPUs."""


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel. ``role`` is "read", "write", "read and write" or "value"."""

    name: str
    ctype: str
    role: str

    @property
    def is_buffer(self) -> bool:
        return self.role != "value"

    @property
    def reads(self) -> bool:
        return self.role in ("read", "read and write")

    @property
    def writes(self) -> bool:
        return self.role in ("write", "read and write")


@dataclass(frozen=True)
class Kernel:
    """A kernel's text and what can be read off it without compiling."""

    name: str
    path: Path
    text: str
    arguments: tuple[Argument, ...]

    def argument(self, name: str) -> Argument:
        """The parameter of that name; ``LabError`` if there is none."""
        for argument in self.arguments:
            if argument.name == name:
                return argument
        known = ", ".join(a.name for a in self.arguments)
        raise LabError(f"kernel {self.name} has no argument {name!r}; it has {known}")

    def defines(self, target: str, dtype: str = "float32") -> tuple[str, ...]:
        """Compiler options for ``target`` ("cuda" or "cpu") and a storage type, as ``-DNAME=VALUE``."""
        if dtype not in STORAGE_TYPES:
            raise LabError(f"storage type {dtype!r} is not one of {', '.join(STORAGE_TYPES)}")
        settings = TUNING[target][self.name]
        return (f"-DSTORAGE_{dtype.upper()}", *(f"-D{key}={value}" for key, value in settings.items()))

    def geometry(self, target: str, tokens: int, n: int, k: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """``(grid, block)`` in CUDA's terms: blocks, and threads a block, each (x, y)."""
        settings = TUNING[target][self.name]
        rows_of_blocks = min(tokens, MAX_GRID_Y)
        if self.name in ("rms_norm", "inv_rms"):
            return (tokens, 1), (settings["LANES"], 1)
        if self.name in ("projection", "fused_norm_projection"):
            return (_ceil(k, settings["ROWS"]), rows_of_blocks), (settings["LANES"] * settings["ROWS"], 1)
        if self.name == "post_scale":
            return (_ceil(k, settings["THREADS"]), rows_of_blocks), (settings["THREADS"], 1)
        return (1, 1), (1, 1)

    def cuda_source(self) -> str:
        """The text that NVRTC compiles: the CUDA prelude, then the kernel with its includes in place."""
        return _numbered("cuda_prelude.cuh", _read("cuda_prelude.cuh")) + self.text

    def opencl_source(self) -> str:
        """The text that an OpenCL compiler takes: the OpenCL prelude, then the translated kernel."""
        return _numbered("opencl_prelude.h", _read("opencl_prelude.h")) + to_opencl(self.text, self.path.name)


@functools.cache
def load(name: str) -> Kernel:
    """The kernel of that name. ``LabError`` if there is none, or if its signature cannot be read."""
    if name not in NAMES:
        raise LabError(f"there is no kernel {name!r}; there are {', '.join(NAMES)}")
    path = kernels_folder() / f"{name}.cu"
    text = _with_includes(path)
    return Kernel(name, path, text, _arguments(name, text))


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _read(file: str) -> str:
    path = kernels_folder() / file
    try:
        return path.read_text(encoding="utf-8")
    except OSError as problem:
        raise LabError(f"cannot read {path} ({problem.strerror}); restore the file") from None


def _with_includes(path: Path) -> str:
    """Put our own headers in place, since neither CuPy nor PoCL should need an include path."""
    lines = []
    for number, line in enumerate(_read(path.name).splitlines(), 1):
        header = re.fullmatch(r'#include "([\w.]+)"', line)
        lines.append(
            _numbered(header[1], _read(header[1])) + f'#line {number + 1} "{path.name}"' if header else line
        )
    return _numbered(path.name, "\n".join(lines) + "\n")


def _numbered(file: str, text: str) -> str:
    """The text, told to compilers as coming from that file, so that their messages have its line numbers."""
    return f'#line 1 "{file}"\n{text}'


def _arguments(name: str, text: str) -> tuple[Argument, ...]:
    found = re.search(rf"__global__\s+void\s+{name}\s*\(([^)]*)\)", text)
    if not found:
        raise LabError(f"{name}.cu has no `__global__ void {name}(...)`; file and kernel share one name")
    arguments = []
    for parameter in found[1].split(","):
        code, _, comment = parameter.partition("/*")
        words = re.match(r"\s*(const\s+)?(\w+)\s*(\*?)\s*(\w+)\s*$", code)
        if not words:
            raise LabError(f"{name}.cu: cannot read `{parameter.strip()}`; write `const T *x` or `int n`")
        constant, ctype, star, parameter_name = words.groups()
        if not star:
            role = "value"
        elif constant:
            role = "read"
        else:
            role = "read and write" if "read and written" in comment else "write"
        arguments.append(Argument(parameter_name, ctype, role))
    return tuple(arguments)


_SPELLED = {
    "__global__": "__kernel",
    "__shared__": "__local",
    "__device__": "",
    "__restrict__": "restrict",
}
_UNTRANSLATABLE = (
    r"__\w+|template|typename|namespace|auto|asm|wmma|dim3|cooperative_groups|(?:static|reinterpret)_cast|"
    r"atomic\w+|extern|warpSize|half|nv_bfloat16|printf|new|delete|class"
)
_ALLOWED = {"__kernel", "__local", "__global"}


def to_opencl(text: str, file: str = "kernel") -> str:
    """Translate CUDA C to OpenCL C 1.2, line for line. ``LabError`` names the file, line and word it cannot.

    What it does: ``__global__`` to ``__kernel``, ``__shared__`` to ``__local``, ``__syncthreads()`` to a
    barrier, ``__global`` before each pointer parameter of a kernel, ``extern "C"`` and ``__device__`` away.
    ``threadIdx`` and its family are macros of the prelude. Everything else that is CUDA's own is refused.
    """
    code = _blank_comments(text)
    code = code.replace('extern "C"', "")
    code = re.sub(r"__syncthreads\s*\(\s*\)", "barrier(CLK_LOCAL_MEM_FENCE)", code)
    code = re.sub(r"(__global__\s+void\s+\w+\s*\()([^)]*)(\))", _address_spaces, code)
    for cuda, opencl in _SPELLED.items():
        code = re.sub(rf"\b{cuda}(?!\w)", opencl, code)
    number = 0
    for line in code.splitlines():
        number += 1
        moved = re.fullmatch(r'#line (\d+) "([\w.]+)"', line)
        if moved:
            number, file = int(moved[1]) - 1, moved[2]
        if "<<<" in line:
            raise LabError(f"{file}:{number}: a kernel launch `<<<` has no OpenCL form; launch from the host")
        for word in re.findall(rf"\b(?:{_UNTRANSLATABLE})\b", line):
            if word not in _ALLOWED:
                raise LabError(
                    f"{file}:{number}: `{word}` has no OpenCL translation here; "
                    "write it in plain CUDA C, or keep the kernel in a file for CUDA only"
                )
    return code


def _blank_comments(text: str) -> str:
    """Comments removed and lines kept, so that a word in prose is never translated or refused."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)


def _address_spaces(match: re.Match[str]) -> str:
    parameters = re.sub(r"((?:const\s+)?\w+\s*\*)", r"__global \1", match[2])
    return match[1] + parameters + match[3]
