"""Every kernel compiled for real by NVIDIA's compiler, for four generations of GPUs. No GPU is needed."""

import pytest

from flashnorm_lab import kernels
from flashnorm_lab.compiling import ARCHITECTURES, compile_report, compile_source
from flashnorm_lab.errors import LabError

pytest.importorskip("cupy_backends", reason="NVRTC comes with CuPy, which has no wheel for this platform")


@pytest.mark.parametrize("dtype", kernels.STORAGE_TYPES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", kernels.NAMES)
def test_it_compiles_without_spills(name, arch, dtype):
    report = compile_report(name, arch, dtype)
    assert report.spill_bytes == 0
    assert report.stack_bytes == 0  # the partial sums are in registers
    # With 64 registers a thread, a multiprocessor's 65536 hold four blocks of 256 threads at once.
    assert 0 < report.registers <= 64
    lanes, rows = (kernels.TUNING["cuda"][name].get(key) for key in ("LANES", "ROWS"))
    scratch = 4 * lanes * (rows or 1) if lanes else 0
    # From sm_90 on the system keeps 1 KB of every block's shared memory for itself.
    assert report.shared_bytes in (scratch, scratch + 1024)
    assert report.cubin_bytes > 500


def test_the_report_sees_spills_and_stack_and_shared_memory(monkeypatch):
    text = """
    extern "C" __global__ void spin(float *sink, int n) {
        __shared__ float kept[100];
        float v[64];
        kept[threadIdx.x] = sink[n];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 64; i++) v[i] = sink[threadIdx.x + i * n];
        for (int j = 0; j < n; j++) {
            #pragma unroll
            for (int i = 0; i < 64; i++) v[i] = fmaf(v[i], kept[j], v[(i + 7) % 64]);
        }
        #pragma unroll
        for (int i = 0; i < 64; i++) sink[threadIdx.x + i * n] = v[i];
    }"""
    code = kernels.load("spin")
    greedy = type(code)(code.name, code.path, text, code.arguments)
    monkeypatch.setattr(kernels, "load", lambda name: greedy)
    report = compile_report("spin")
    assert report.shared_bytes == 400
    assert report.registers > 64
    assert (report.stack_bytes, report.spill_bytes) == (0, 0)
    monkeypatch.setattr(type(code), "defines", lambda *_: ("-DSTORAGE_FLOAT32", "--maxrregcount=24"))
    report = compile_report("spin")
    assert report.registers == 24
    assert report.stack_bytes > 0
    assert report.spill_bytes > 0


def test_an_error_names_file_and_line():
    text = 'extern "C" __global__ void f(float *x)\n{\n    int i = 0;\n    x[i] = store(y);\n}\n'
    with pytest.raises(
        LabError, match=r"^f\.cu\(4\): error: identifier .*\(compiling f\.cu for sm_90\)$"
    ) as problem:
        compile_source(text, "f.cu", "sm_90")
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize("lanes", [3, 6, 48])
def test_lanes_that_cannot_be_halved_to_one_are_refused(lanes):
    with pytest.raises(LabError, match=r'^sum_lanes\.cuh\(\d+\): .*"LANES must be a power of two"'):
        compile_source(kernels.load("inv_rms").cuda_source(), "inv_rms.cu", options=(f"-DLANES={lanes}",))


def test_a_kernel_that_was_broken_is_told_by_the_report(monkeypatch):
    text = kernels.load("post_scale").cuda_source()
    monkeypatch.setattr(kernels.Kernel, "cuda_source", lambda self: text.replace("int column", "int colunm"))
    with pytest.raises(LabError, match=r'post_scale\.cu\(\d+\): error: identifier "column" is undefined'):
        compile_report("post_scale")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("projection", "sm_35"), "arch='sm_35' is not one that this NVRTC compiles for; it knows sm_75"),
        (("projection", "sm_80", "int4"), "storage type 'int4' is not one of float32"),
        (("matmul",), "there is no kernel 'matmul'"),
    ],
)
def test_bad_requests_are_told(arguments, message):
    with pytest.raises(LabError, match=message):
        compile_report(*arguments)
