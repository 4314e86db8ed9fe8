"""Every kernel under Oclgrind, which runs OpenCL kernels one instruction at a time and watches memory.

It reports data races between threads, accesses outside a buffer, reads of what was never written, and
barriers that not all threads reach. The kernels must be clean in both geometries; kernels that were
broken on purpose must be reported, so that silence means something.

Run as a script (by the tests, under Oclgrind), this file launches one set of kernels.
"""

import os
import shutil
import subprocess
import sys

import pytest

from flashnorm_lab import kernels

OCLGRIND = shutil.which("oclgrind")
# Continuous integration installs it, so there its absence is a failure of the set-up.
pytestmark = pytest.mark.skipif(
    OCLGRIND is None and not os.environ.get("CI"),
    reason="Oclgrind is not installed (Debian: apt install oclgrind)",
)

SHAPES = [(1, 1, 1), (2, 37, 9), (3, 130, 17)]
BARRIER = "    __syncthreads();\n"
LOOP_BARRIER = "        __syncthreads();\n    }\n    float sum"
AFTER_LOOP = "    }\n    float sum"
BROKEN = {
    # name: (kernel, text to find, its replacement, what Oclgrind says)
    "no barrier in the rounds": ("projection", LOOP_BARRIER, AFTER_LOOP, "data race"),
    "no barrier after the sum": ("fused_norm_projection", f"lane];\n{BARRIER}", "lane];\n", "data race"),
    "a read past the end": ("inv_rms", "i < n; i += LANES", "i <= n; i += LANES", "Invalid read"),
    "a write past the end": ("post_scale", "if (column >= k) return;", "", "Invalid write"),
    "a barrier that some skip": ("projection", "        float sum = 0.0f;", "        if (row >= k) return;\n"
                                 "        float sum = 0.0f;", "divergence"),
    "a word read past the end": ("observe", "i < count", "i <= count", "Invalid read"),
    "a word written past the end": ("produce", "arena[place] =", "arena[place + 1] =", "Invalid write"),
    "a read of what was never written": ("projection", "scratch[threadIdx.x] = mine;", "", "Uninitialized"),
}  # fmt: skip


def without_comments(text):
    return "\n".join(line.split("//")[0].rstrip() for line in text.splitlines()) + "\n"


def source(name, break_it=None):
    """A kernel's text for OpenCL, as it is or broken on purpose."""
    code = kernels.load(name)
    text = without_comments(code.text)
    if break_it:
        _, find, instead, _ = BROKEN[break_it]
        assert text.count(find) == 1, f"{find!r} is not once in {name}"
        text = text.replace(find, instead)
    return kernels._read("opencl_prelude.h") + "\n" + kernels.to_opencl(text, f"{name}.cu")


def launch(name, target, shape, break_it=None):
    """Run one kernel on buffers of exactly its size; outputs hold nothing yet."""
    import numpy as np
    import pyopencl as cl

    (platform,) = cl.get_platforms()
    assert "Oclgrind" in platform.name
    context = cl.Context(platform.get_devices())
    queue = cl.CommandQueue(context)
    code = kernels.load(name)
    program = cl.Program(context, source(name, break_it)).build(options=list(code.defines(target)))
    tokens, n, k = shape
    sizes = {"x": tokens * n, "g": n, "W": k * n, "W_folded": k * n, "h": tokens * n, "y": tokens * k,
             "r": tokens, "z": tokens * k, "sink": 1, "arena": n, "places": n, "seen": n}  # fmt: skip
    numbers = {"tokens": tokens, "n": n, "k": k, "eps": 1e-5, "iterations": 5, "number": 3, "count": n,
               "first_place": 0, "first_seen": 0, "reads": n // 2, "writes": n - n // 2}  # fmt: skip
    arguments = []
    for argument in code.arguments:
        if argument.reads:
            values = np.random.default_rng(0).standard_normal(sizes[argument.name], np.float32)
            if argument.name == "places":
                values = np.arange(n, dtype=np.int32)
            flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
            arguments.append(cl.Buffer(context, flags, hostbuf=values))
        elif argument.writes:
            arguments.append(cl.Buffer(context, cl.mem_flags.READ_WRITE, 4 * sizes[argument.name]))
        else:
            arguments.append((np.int32 if argument.ctype == "int" else np.float32)(numbers[argument.name]))
    kernel = cl.Kernel(program, name)
    kernel.set_args(*arguments)
    grid, block = code.geometry(target, *shape)
    cl.enqueue_nd_range_kernel(queue, kernel, tuple(g * b for g, b in zip(grid, block, strict=True)), block)
    queue.finish()


def watched(tmp_path, *arguments):
    """Run this file under Oclgrind; what it reported."""
    assert OCLGRIND is not None, "Oclgrind is not installed"
    log = tmp_path / "oclgrind.log"
    command = [OCLGRIND, "--data-races", "--uninitialized", "--max-errors", "20", "--log", str(log)]
    done = subprocess.run(
        [*command, sys.executable, __file__, *arguments], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "all were run"
    return log.read_text() if log.exists() else ""


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_every_kernel_is_clean(tmp_path, target):
    assert watched(tmp_path, target) == ""


@pytest.mark.parametrize("break_it", BROKEN)
def test_a_broken_kernel_is_reported(tmp_path, break_it):
    assert BROKEN[break_it][3] in watched(tmp_path, "cuda", break_it)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        launch(BROKEN[sys.argv[2]][0], sys.argv[1], SHAPES[1], sys.argv[2])
    else:
        for each in kernels.NAMES:
            for tiny in SHAPES:
                launch(each, sys.argv[1], tiny)
    print("all were run")
