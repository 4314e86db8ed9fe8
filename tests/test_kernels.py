"""Every kernel against the algebra in float64, on PoCL, in the geometry for CPUs and in the one for GPUs.

The GPU's form (a warp a row, sums through shared memory) is the same text with other settings, so its
arithmetic is proven here too. Outputs start as NaN with guard elements behind them, and inputs end in
NaN guards: an element never written, a write or a read past the end each show.
"""

import numpy as np
import pytest

from flashnorm_lab import algebra, kernels
from flashnorm_lab.devices import opencl
from flashnorm_lab.errors import LabError

GUARD = 64
UNTOUCHED = np.float32(12345)
EPS = 1e-5
ROUNDING = 2.0**-24
TARGETS = ("cpu", "cuda")
# One below, at and above: a block of threads, LANES * UNROLL (16 and 128), ROWS (16 and 8); primes; 1.
WIDTHS = (1, 2, 15, 16, 17, 31, 33, 127, 128, 129, 255, 256, 257, 576)
ROWS = (1, 7, 8, 9, 13, 15, 16, 17, 63, 64, 65, 257)
SHAPES = sorted(
    {(1 + i % 3, n, 13) for i, n in enumerate(WIDTHS)} | {(1 + i % 3, 37, k) for i, k in enumerate(ROWS)}
)


@pytest.fixture(scope="module")
def device():
    return opencl.open_device(split=False)


def run(device, name, target, outputs, shape, tokens_at_once=None, **arguments):
    """Launch one kernel and return its outputs, whose names and shapes are ``outputs``."""
    import pyopencl as cl

    code = kernels.load(name)
    kernel = cl.Kernel(device.program(name, code.defines(target)), name)
    queue = device.queues["main"]
    memory = {}
    for argument in code.arguments:
        if argument.is_buffer and argument.name not in outputs:
            values = np.append(np.asarray(arguments[argument.name], np.float32).ravel(), [np.nan] * GUARD)
        elif argument.is_buffer:
            values = np.full(int(np.prod(outputs[argument.name])) + GUARD, np.nan)
            values[-GUARD:] = UNTOUCHED
            if argument.reads:
                values[:-GUARD] = np.ravel(arguments[argument.name])
        else:
            values = (np.int32 if argument.ctype == "int" else np.float32)(arguments[argument.name])
            memory[argument.name] = values
            continue
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        memory[argument.name] = cl.Buffer(device.context, flags, hostbuf=values.astype(np.float32))
    kernel.set_args(*memory.values())
    grid, block = code.geometry(target, *shape)
    if tokens_at_once:
        grid = (grid[0], tokens_at_once) if grid[1] == shape[0] and grid[1] > 1 else (tokens_at_once, 1)
    threads = tuple(g * b for g, b in zip(grid, block, strict=True))
    cl.enqueue_nd_range_kernel(queue, kernel, threads, block)
    results = []
    for output, size in outputs.items():
        values = np.empty(int(np.prod(size)) + GUARD, np.float32)
        cl.enqueue_copy(queue, values, memory[output])
        np.testing.assert_array_equal(
            values[-GUARD:], UNTOUCHED, err_msg=f"{name} wrote past the end of {output}"
        )
        results.append(values[:-GUARD].reshape(size))
    return results


def numbers(tokens, n, k, seed=0):
    draw = np.random.default_rng(seed)
    x = draw.standard_normal((tokens, n), np.float32) * np.float32(3)
    g = draw.uniform(0.2, 3, n).astype(np.float32)
    w = draw.standard_normal((k, n), np.float32)
    return x, g, w, [a.astype(np.float64) for a in (x, g, w)]


def close(got, wanted, size):
    """Within eight roundings of numbers that are ``size`` large."""
    assert np.isfinite(got).all()
    worst = np.max(np.abs(got - wanted) / (8 * ROUNDING * size))
    assert worst <= 1, f"off by {8 * worst:.1f} roundings"


def all_kernels(device, target, shape, tokens_at_once=None):
    tokens, n, k = shape
    x, g, w, (x64, g64, w64) = numbers(*shape)
    sizes = {"tokens": tokens, "n": n, "k": k, "eps": EPS}
    r64 = algebra.inv_rms(x64, EPS)
    y64 = algebra.unscaled_product(x64, w64)
    terms = np.abs(x64) @ np.abs(w64).T

    (r,) = run(device, "inv_rms", target, {"r": (tokens,)}, shape, tokens_at_once, x=x, **sizes)
    close(r, r64, r64)
    (h,) = run(device, "rms_norm", target, {"h": (tokens, n)}, shape, tokens_at_once, x=x, g=g, **sizes)
    close(h, algebra.rms_norm(x64, g64, EPS), np.abs(algebra.rms_norm(x64, g64, EPS)) + 1e-30)
    (y,) = run(device, "projection", target, {"y": (tokens, k)}, shape, tokens_at_once, x=x, W=w, **sizes)
    close(y, y64, terms)
    (z,) = run(device, "post_scale", target, {"z": (tokens, k)}, shape, tokens_at_once, y=y64, r=r64, **sizes)
    close(z, y64 * r64[:, None], np.abs(y64 * r64[:, None]) + 1e-30)
    outputs = {"z": (tokens, k)}
    (z,) = run(
        device, "fused_norm_projection", target, outputs, shape, tokens_at_once, x=x, W_folded=w, **sizes
    )
    close(z, algebra.deferred_norm_projection(x64, w64, EPS), terms * r64[:, None])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_equals_the_algebra(device, target, shape):
    all_kernels(device, target, shape)


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_that_take_several_tokens_in_turn(device, target):
    """As with more than 65535 tokens, CUDA's limit on the second dimension of a grid."""
    all_kernels(device, target, (7, 33, 17), tokens_at_once=3)
    code = kernels.load("projection")
    assert code.geometry("cuda", 70000, 33, 17)[0] == (3, 65535)


@pytest.mark.parametrize("target", TARGETS)
def test_a_nan_stays_in_its_token(device, target):
    shape = (3, 129, 17)
    x, _, w, _ = numbers(*shape)
    x[1, 128] = np.nan
    sizes = {"tokens": 3, "n": 129, "k": 17, "eps": EPS}
    (z,) = run(device, "fused_norm_projection", target, {"z": (3, 17)}, shape, x=x, W_folded=w, **sizes)
    assert np.isnan(z[1]).all()
    assert np.isfinite(z[[0, 2]]).all()


@pytest.mark.parametrize("target", TARGETS)
def test_eps_decides_where_x_is_nearly_zero(device, target):
    x = np.full((1, 40), 1e-25, np.float32)  # its square is below float32's smallest number
    sizes = {"tokens": 1, "n": 40, "k": 1, "eps": EPS}
    (r,) = run(device, "inv_rms", target, {"r": (1,)}, (1, 40, 1), x=x, **sizes)
    assert r[0] == pytest.approx(EPS**-0.5, rel=1e-6)
    (r,) = run(device, "inv_rms", target, {"r": (1,)}, (1, 40, 1), x=np.zeros((1, 40)), **sizes | {"eps": 0})
    assert np.isinf(r[0])


@pytest.mark.parametrize("iterations", [0, 1, 1000])
def test_spin_does_every_iteration(device, iterations):
    (sink,) = run(device, "spin", "cpu", {"sink": (1,)}, (1, 1, 1), sink=[0.25], iterations=iterations)
    assert sink[0] == pytest.approx(1 - 0.75 * 0.999**iterations, rel=1e-4)


# The stand-ins of programs that are played back


def run_words(device, name, sizes, **arguments):
    """Launch a kernel on words of 32 bits; buffers that are not given hold `UNTOUCHED_WORD`. Its buffers."""
    import pyopencl as cl

    code = kernels.load(name)
    kernel = cl.Kernel(device.program(name, code.defines("cpu")), name)
    memory, values = {}, []
    for argument in code.arguments:
        if not argument.is_buffer:
            values.append(np.int32(arguments[argument.name]))
            continue
        words = np.full(sizes[argument.name], UNTOUCHED_WORD, np.uint32)
        given = np.asarray(arguments.get(argument.name, ()), np.uint32)
        words[: len(given)] = given
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        memory[argument.name] = cl.Buffer(device.context, flags, hostbuf=words)
        values.append(memory[argument.name])
    kernel.set_args(*values)
    cl.enqueue_nd_range_kernel(device.queues["main"], kernel, *code.geometry("cpu", 1, 1, 1))
    found = {}
    for name, buffer in memory.items():
        found[name] = np.empty(sizes[name], np.uint32)
        cl.enqueue_copy(device.queues["main"], found[name], buffer)
    return found


UNTOUCHED_WORD = 0xABCDABCD
SIZES = {"arena": 9, "places": 12, "seen": 11}


def test_observe_notes_the_words_of_its_places_in_its_own_slots(device):
    arena, places = [10, 11, 12, 13, 14, 15, 0xFFFFFFFF, 17, 18], [0, 8, 6, 3, 1, 1]
    found = run_words(
        device, "observe", SIZES, arena=arena, places=places, first_place=1, first_seen=4, count=4
    )
    assert found["seen"].tolist() == [UNTOUCHED_WORD] * 4 + [18, 0xFFFFFFFF, 13, 11] + [UNTOUCHED_WORD] * 3
    assert found["arena"].tolist() == arena


def test_observe_and_produce_with_nothing_to_do_touch_nothing(device):
    none = {"first_place": 0, "first_seen": 0, "count": 0, "number": 7, "reads": 0, "writes": 0}
    for name in ("observe", "produce"):
        for words in run_words(device, name, SIZES, **none).values():
            assert (words == UNTOUCHED_WORD).all()


def produced(device, number, seen, places=(3, 5)):
    numbers = {"number": number, "first_place": 1, "first_seen": 1, "reads": len(seen), "writes": len(places)}
    read = {"seen": [1, *seen], "places": [9, *range(len(seen)), *places]}
    arena = run_words(device, "produce", SIZES, **read, **numbers)["arena"].tolist()
    assert [w for i, w in enumerate(arena) if i not in places] == [UNTOUCHED_WORD] * (9 - len(places))
    return [arena[p] for p in places]


def test_what_produce_writes_tells_launch_place_and_all_that_was_read(device):
    reads = ((), (4,), (5,), (4, 5), (5, 4))
    values = [produced(device, number, seen) for number in (1, 2, 70000) for seen in reads]
    assert len({v for pair in values for v in pair}) == 2 * len(values)


def test_the_host_computes_what_produce_writes(device):
    from flashnorm_lab.exposure.play import _hashes

    for number, seen in ((1, ()), (12345, (0xFFFFFFFF, 0, 0xDEAD0003)), (2**31 - 1, (7,) * 5)):
        assert produced(device, number, seen) == _hashes(number, seen, (3, 5)).tolist()


# What is read off the text


def test_roles_come_from_the_signature():
    told = {a.name: a.role for a in kernels.load("fused_norm_projection").arguments}
    assert told == {"x": "read", "W_folded": "read", "z": "write"} | dict.fromkeys(
        ("tokens", "n", "k", "eps"), "value"
    )
    assert kernels.load("spin").argument("sink").role == "read and write"
    assert {a.ctype for a in kernels.load("projection").arguments} == {"STORAGE", "float", "int"}


@pytest.mark.parametrize("name", kernels.NAMES)
def test_blocks_are_of_a_size_that_every_gpu_runs(name):
    for target in TARGETS:
        for shape in ((1, 1, 1), (3, 576, 960), (131072, 16384, 128256)):
            grid, block = kernels.load(name).geometry(target, *shape)
            assert 1 <= block[0] * block[1] <= 1024
            assert 1 <= grid[0] < 2**31
            assert 1 <= grid[1] <= kernels.MAX_GRID_Y


def test_lanes_are_a_power_of_two():
    for target in kernels.TUNING.values():
        for settings in target.values():
            lanes = settings.get("LANES", 1)
            assert lanes & (lanes - 1) == 0  # sum_lanes halves it until one is left


def test_other_lanes_are_refused_by_the_compiler(device):
    with pytest.raises(LabError, match=r"LANES must be a power of two"):
        device.program("inv_rms", ("-DSTORAGE_FLOAT32", "-DLANES=3"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kernels.load("rmsnorm"), "there is no kernel 'rmsnorm'; there are rms_norm, inv_rms"),
        (lambda: kernels.load("inv_rms").argument("w"), "kernel inv_rms has no argument 'w'; it has x, r"),
        (
            lambda: kernels.load("inv_rms").defines("cuda", "int8"),
            "storage type 'int8' is not one of float32",
        ),
    ],
)
def test_bad_names_are_told(call, message):
    with pytest.raises(LabError, match=message):
        call()
