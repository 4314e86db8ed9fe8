"""From CUDA C to OpenCL C: what is translated, and what is refused by file, line and word."""

import pytest

from flashnorm_lab import kernels
from flashnorm_lab.errors import LabError
from flashnorm_lab.kernels import to_opencl

KERNEL = """\
extern "C" __global__
void add(const float *a, float *b /* read and written */, int n)
{
    __shared__ float kept[4];
    // threadIdx is a macro there, and atomicAdd in a comment is prose
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    kept[threadIdx.x] = a[i];
    __syncthreads( );
    if (i < n) b[i] += kept[0];
}
"""


def test_every_word_that_differs_is_translated():
    lines = [line.strip() for line in to_opencl(KERNEL, "add.cu").splitlines()]
    assert lines == [
        "__kernel",
        "void add(__global const float *a, __global float *b , int n)",
        "{",
        "__local float kept[4];",
        "",
        "int i = blockIdx.x * blockDim.x + threadIdx.x;",
        "kept[threadIdx.x] = a[i];",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        "if (i < n) b[i] += kept[0];",
        "}",
    ]


def test_device_functions_keep_their_address_spaces():
    text = "__device__ float first(SHARED float *s, const float *__restrict__ t) { return s[0]; }"
    assert to_opencl(text).strip() == "float first(SHARED float *s, const float *restrict t) { return s[0]; }"


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("add<<<1, 32>>>(a, b, n);", "<<<"),
        ("v += __shfl_xor_sync(0xffffffff, v, 1);", "__shfl_xor_sync"),
        ("v = __ldg(a + i);", "__ldg"),
        ("__syncwarp();", "__syncwarp"),
        ("template <int N> void f();", "template"),
        ("atomicAdd(b, v);", "atomicAdd"),
        ("auto v = a[i];", "auto"),
        ('asm("mov.u32 %0, 1;" : "=r"(v));', "asm"),
        ("namespace cg = cooperative_groups;", "namespace"),
        ("float v = static_cast<float>(n);", "static_cast"),
        ("extern __shared__ float s[];", "extern"),
        ("half v = a[i];", "half"),
        ("__constant__ float c;", "__constant__"),
        ("if (threadIdx.x % warpSize) return;", "warpSize"),
        ('printf("%d", n);', "printf"),
    ],
)
def test_what_has_no_translation_is_refused_by_file_line_and_word(line, word):
    text = KERNEL.replace("    kept[threadIdx.x] = a[i];", f"    {line}")
    with pytest.raises(LabError) as problem:
        to_opencl(text, "add.cu")
    assert str(problem.value).startswith("add.cu:7: ")
    assert f"`{word}`" in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    "comment",
    ["// template atomicAdd <<<", "/* __shfl_xor_sync */", "/* over\n   two lines: asm */", "/**/ // extern"],
)
def test_comments_are_never_translated_or_refused(comment):
    text = KERNEL.replace("{\n", f"{{\n{comment}\n", 1)
    translated = to_opencl(text)
    assert translated.count("\n") == text.count("\n")
    assert "two lines" not in translated


def test_a_word_within_a_word_is_left_alone():
    text = "int autonomy = renew + classes + halfway + template_size;"
    assert to_opencl(text) == text


@pytest.mark.parametrize("name", kernels.NAMES)
def test_every_kernel_is_translated_line_for_line(name):
    code = kernels.load(name)
    translated = to_opencl(code.text, f"{name}.cu")
    assert translated.count("\n") == code.text.count("\n")
    for word in ("__global__", "__shared__", "__device__", "__syncthreads", "extern"):
        assert word not in translated


def test_a_refusal_names_the_line_of_the_file_and_not_of_the_text_with_headers(tmp_path, monkeypatch):
    for file in kernels.kernels_folder().iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    text = (tmp_path / "projection.cu").read_text()
    (tmp_path / "projection.cu").write_text(text.replace("float sum = 0.0f;", "auto sum = 0.0f;"))
    line = next(i for i, words in enumerate(text.splitlines(), 1) if "float sum = 0.0f;" in words)
    monkeypatch.setattr(kernels, "kernels_folder", lambda: tmp_path)
    code = kernels.load.__wrapped__("projection")
    with pytest.raises(LabError, match=rf"^projection\.cu:{line}: `auto` has no OpenCL translation"):
        code.opencl_source()
    header = tmp_path / "sum_lanes.cuh"
    header.write_text(header.read_text().replace("return mine;", "return auto;"))
    (tmp_path / "projection.cu").write_text(text)
    with pytest.raises(LabError, match=r"^sum_lanes\.cuh:\d+: `auto` has no OpenCL translation"):
        kernels.load.__wrapped__("projection").opencl_source()
