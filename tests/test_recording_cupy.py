"""Recording CuPy programs: racy ones and their clean twins on a simulated CuPy, and the hooks on a real one.

Every program is ordinary CuPy. The verdict has to name exactly its hazards; and where it names none, every
order in which the simulated GPU may run the program has to give one result, where it names one, several.
"""

import itertools
import sys
import threading
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
from fake_cupy import CUDARuntimeError, FakeCupy

import flashnorm_lab
from flashnorm_lab import compiling, hazards, schedule
from flashnorm_lab.program import (
    Allocate,
    EndCapture,
    Free,
    GraphLaunch,
    HandOver,
    Launch,
    Query,
    Record,
    Stream,
    Synchronize,
    Wait,
)
from flashnorm_lab.recording import _cupy_names, cuda_roles
from flashnorm_lab.recording._assigned import assigned
from flashnorm_lab.recording._cupy_memory import pieces_of
from flashnorm_lab.schedule import EDGES

pytest.importorskip("cupy_backends", reason="NVRTC comes with CuPy, which has no wheel for this platform")

FILE = Path(__file__)
LINES = FILE.read_text().splitlines()
SOURCE = r"""
extern "C" __global__ void scale(const float *x, float *y, float a, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}
extern "C" __global__ void add_to(const float *x, float *y, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}
"""
N = 256


def scale(x, y, a, n):
    y.reshape(-1)[:n] = a * x.reshape(-1)[:n]


def add_to(x, y, n):
    y.reshape(-1)[:n] += x.reshape(-1)[:n]


@pytest.fixture(autouse=True)
def nvrtc():
    compiling.compile_report("spin")  # brings NVRTC in while the real CuPy is still in its place


@pytest.fixture
def fake(monkeypatch):
    return simulated(monkeypatch)


def simulated(monkeypatch, order="issued"):
    fake = FakeCupy(order, strict=False)
    fake.meanings = {"scale": scale, "add_to": add_to, "scale<float>": scale}
    monkeypatch.setitem(sys.modules, "cupy", fake)
    return fake


def marked(source):
    """The comment on a line of this file, "first" or "second"; the line itself where it has none."""
    file, _, number = source.rpartition(":")
    assert FILE.as_posix().endswith(file)
    line = LINES[int(number) - 1]
    return line.partition("  # ")[2] or line.strip()


def found(recording):
    """Every hazard, by its kind, its buffer, and the marks on the two lines."""
    verdict = hazards.check(recording)
    assert verdict.errors == ()
    return [(h.kind, h.buffer, marked(h.first_source), marked(h.second_source)) for h in verdict.hazards]


def recorded(program, cupy, *arguments):
    with flashnorm_lab.record() as recording:
        program(cupy, *arguments)
    return recording


def outcomes(program, monkeypatch, *arguments):
    """The results of a program under every order in which its streams may be served."""
    results = set()
    for order in itertools.permutations(range(4)):
        results.add(program(simulated(monkeypatch, list(order)), *arguments).tobytes())
    return results


def wait_for_device(cp):
    cp.cuda.runtime.deviceSynchronize()


# Programs: racy with the first argument, clean with the second


def copy_aside_then_read(cp, wait):
    side = cp.cuda.Stream(non_blocking=True)
    x = cp.zeros(N, cp.float32)
    new = cp.ones(N, cp.float32)
    wait_for_device(cp)
    with side:
        cp.copyto(x, new)  # first
    if wait:
        cp.cuda.get_current_stream().wait_event(side.record())
    y = x + x  # second
    wait_for_device(cp)
    return y.get()


def producer_and_default_stream(cp, blocking):
    kernel = cp.RawKernel(SOURCE, "scale")
    producer = cp.cuda.Stream(non_blocking=not blocking)
    x = cp.full(N, 3, cp.float32)
    y = cp.zeros(N, cp.float32)
    z = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    with producer:
        kernel((1,), (N,), (x, y, np.float32(2), np.int32(N)))  # first
    kernel((1,), (N,), (y, z, np.float32(2), np.int32(N)))  # second
    wait_for_device(cp)
    return z.get()


def freed_and_reused(cp, wait):
    kernel = cp.RawKernel(SOURCE, "scale")
    side = cp.cuda.Stream(non_blocking=True)
    old = cp.full(N, 1, cp.float32)
    out = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    kernel.kernel((1,), (N,), (old, out, np.float32(2), np.int32(N)), 0, side)  # first
    if wait:
        side.synchronize()
    del old
    new = cp.full(N, 9, cp.float32)  # second
    wait_for_device(cp)
    return out.get() + 0 * new.get()


def event_before_what_it_should_cover(cp, late):
    side = cp.cuda.Stream(non_blocking=True)
    done = cp.cuda.Event()
    x = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    if not late:
        done.record(side)
    with side:
        x += 5  # first
    if late:
        done.record(side)
    cp.cuda.Stream.null.wait_event(done)
    y = x * 2  # second
    wait_for_device(cp)
    return y.get()


def views_of_one_array(cp, apart):
    one, two = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    a = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    left, right = a[: N // 2], a[N // 2 - (0 if apart else 1) :]
    with one:
        left.fill(1)  # first
    with two:
        right.fill(2)  # second
    wait_for_device(cp)
    return a.get()


def columns_of_one_array(cp, apart):
    one, two = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    a = cp.zeros((4, 4), cp.float32)
    wait_for_device(cp)
    with one:
        a[:, 0] = 1  # first
    with two:
        if apart:
            a[:, 1] = 2
        else:
            a[1] = 2  # second
    wait_for_device(cp)
    return a.get()


def copy_to_pinned_memory(cp, blocking):
    side = cp.cuda.Stream(non_blocking=True)
    x = cp.ones(N, cp.float32)
    host = np.frombuffer(cp.cuda.alloc_pinned_memory(4 * N), np.float32, N)
    wait_for_device(cp)
    x.get(stream=side, out=host, blocking=blocking)  # first
    x.fill(7)  # second
    wait_for_device(cp)
    return host.copy()


def pinned_block_reused(cp, wait):
    side, other = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cp.zeros(N, cp.float32)
    y = cp.full(N, 4, cp.float32)
    wait_for_device(cp)
    batch = np.frombuffer(cp.cuda.alloc_pinned_memory(4 * N), np.float32, N)
    batch[...] = 1
    x.set(batch, stream=side)  # first
    if wait:
        side.synchronize()
    del batch
    result = np.frombuffer(cp.cuda.alloc_pinned_memory(4 * N), np.float32, N)
    y.get(stream=other, out=result, blocking=False)  # second
    wait_for_device(cp)
    return x.get()


def in_place_operator(cp, same):
    side = cp.cuda.Stream(non_blocking=True)
    x = cp.ones(N, cp.float32)
    y = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    with side:
        y += x  # first
    if same:
        side.synchronize()
    x *= 3  # second
    wait_for_device(cp)
    return y.get()


def matmul_into(cp, wait):
    side = cp.cuda.Stream(non_blocking=True)
    a = cp.ones((4, 4), cp.float32)
    c = cp.zeros((4, 4), cp.float32)
    wait_for_device(cp)
    with side:
        cp.matmul(a, a, out=c)  # first
        done = side.record()
    if wait:
        done.synchronize()
    total = cp.sum(c)  # second
    wait_for_device(cp)
    return total.get()


def elementwise_kernel(cp, wait):
    fma = cp.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = x * y + 1", "fma")
    add_up = cp.ReductionKernel("float32 x", "float32 y", "x", "a + b", "y = a", "0", "add_up")
    side = cp.cuda.Stream(non_blocking=True)
    x = cp.ones(N, cp.float32)
    y = cp.full(N, 2, cp.float32)
    z = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    fma(x, y, z, stream=side)  # first
    if wait:
        cp.cuda.Stream.null.wait_event(side.record())
    total = add_up(z)  # second
    wait_for_device(cp)
    return total.get()


def pointer_copies(cp, wait):
    side = cp.cuda.Stream(non_blocking=True)
    x = cp.zeros(N, cp.float32)
    y = cp.ones(N, cp.float32)
    wait_for_device(cp)
    half = 2 * N
    (x.data + half).copy_from_device_async(y.data, half, side)  # first
    if wait:
        cp.cuda.runtime.streamSynchronize(side.ptr)
    x[N // 2 :].data.memset_async(0, 4)  # second
    wait_for_device(cp)
    return x.get()


def graph_and_reader(cp, wait):
    """A captured fork and join, launched twice, and a reader on another stream."""
    kernel = cp.RawKernel(SOURCE, "add_to")
    main, branch, reader = (cp.cuda.Stream(non_blocking=True) for _ in range(3))
    x = cp.ones(N, cp.float32)
    y = cp.zeros(N, cp.float32)
    kernel((1,), (N,), (x, y, np.int32(N)))  # compiled now: not while a stream captures
    x *= 1
    y += 0
    wait_for_device(cp)
    with main:
        main.begin_capture()
        x *= 2
        fork = main.record()
        branch.wait_event(fork)
        kernel.kernel((1,), (N,), (x, y, np.int32(N)), 0, branch)
        main.wait_event(branch.record())
        y += 1  # first
        graph = main.end_capture()
    graph.launch(main)
    graph.launch(main)
    if wait:
        reader.wait_event(main.record())
    with reader:
        z = y + 0  # second
    wait_for_device(cp)
    return z.get()


def per_thread_stream(cp, ordered):
    side = cp.cuda.Stream(non_blocking=not ordered)
    x = cp.zeros(N, cp.float32)
    wait_for_device(cp)
    with side:
        x.fill(1)  # first
    cp.cuda.Stream.null.record()  # a blocking stream's work comes before the default stream's ...
    with cp.cuda.Stream.ptds:
        y = x + 1  # second
    wait_for_device(cp)
    return y.get()


PAIRS = {
    copy_aside_then_read: [("RAW", "x")],
    producer_and_default_stream: [("RAW", "y")],
    freed_and_reused: [("reuse", "old")],
    event_before_what_it_should_cover: [("RAW", "x")],
    views_of_one_array: [("WAW", "a")],
    columns_of_one_array: [("WAW", "a")],
    copy_to_pinned_memory: [("WAR", "x")],
    pinned_block_reused: [("reuse", "batch")],
    in_place_operator: [("WAR", "x")],
    matmul_into: [("RAW", "c")],
    elementwise_kernel: [("RAW", "z")],
    pointer_copies: [("WAW", "x")],
    graph_and_reader: [("RAW", "y")],
    per_thread_stream: [("RAW", "x")],
}


@pytest.mark.parametrize("program", PAIRS, ids=lambda p: p.__name__)
def test_a_racy_program_and_its_clean_twin(fake, program, monkeypatch):
    wanted = [(kind, buffer, "first", "second") for kind, buffer in PAIRS[program]]
    assert found(recorded(program, fake, False)) == wanted
    assert found(recorded(program, simulated(monkeypatch), True)) == []
    assert len(outcomes(program, monkeypatch, False)) > 1
    assert len(outcomes(program, monkeypatch, True)) == 1


# The lab's printed program


CALLED = {
    "copy x": "copy xs to x",
    "copy z": "copy z to zs",
    "host write of x": "copy the host to x",
    "host read of z": "copy z to the host",
}
WIRINGS = [edges for size in range(5) for edges in itertools.combinations(EDGES, size)]


@pytest.mark.parametrize("io", ["stream", "host"])
@pytest.mark.parametrize("edges", WIRINGS, ids=lambda edges: "+".join(edges) or "none")
def test_the_printed_program_has_the_hazards_of_its_schedule(fake, io, edges):
    built = schedule.deferred(3, 20, 7, edges=edges, io=io)
    code = compile(built.to_cupy(), "program.py", "exec")
    with flashnorm_lab.record() as recording:
        exec(code, {"__name__": "program"})
    theirs = {
        (h.kind, h.buffer, CALLED.get(h.first, h.first), CALLED.get(h.second, h.second), h.start, h.stop)
        for h in hazards.find(built)
    }
    ours = hazards.find(recording)
    assert {(h.kind, h.buffer, h.first, h.second, h.start, h.stop) for h in ours} == theirs
    assert bool(theirs) == bool(built.dropped) or io == "host"  # there the host's waiting orders as well
    lines = built.to_cupy().splitlines()
    for h in ours:
        for name, source in ((h.first, h.first_source), (h.second, h.second_source)):
            line = lines[int(source.removeprefix("program.py:")) - 1]
            assert name in line or line.split("(")[0].strip() in ("cp.copyto", "x.set", "z.get")


def test_the_missing_join_is_told_with_its_lines(fake):
    code = schedule.deferred(3, 20, 7).without("join_matrix").to_cupy()
    with flashnorm_lab.record() as recording:
        exec(compile(code, "program.py", "exec"), {"__name__": "program"})
    hazard, later = hazards.find(recording)
    assert (hazard.kind, hazard.buffer, hazard.count) == ("RAW", "y", 32)
    assert (hazard.first, hazard.first_stream) == ("projection", "matrix")
    assert (hazard.second, hazard.second_stream) == ("post_scale", "main")
    lines = code.splitlines()
    for source, name in ((hazard.first_source, "projection("), (hazard.second_source, "post_scale(")):
        assert name in lines[int(source.removeprefix("program.py:")) - 1]
    assert (later.kind, later.buffer, later.count) == ("WAR", "x", 31)
    assert recording.program.streams["matrix"] == Stream("non-blocking")
    assert recording.program.streams["default stream"] == Stream("legacy")


# What is recorded


def steps(recording, *kinds):
    return [s for s in recording.program.steps if isinstance(s, kinds)]


def launches(recording):
    """Each launch as its name and its accesses: "+x[0:4]" for bytes that it writes."""
    return [
        (s.name, [f"{'+' if a.writes else ''}{a.buffer}[{a.start}:{a.stop}]" for a in s.accesses])
        for s in steps(recording, Launch)
    ]


def test_views_are_bytes_of_their_allocation(fake):
    def program(cp):
        a = cp.zeros((4, 8), cp.float32)
        row, block, turned = a[1], a[1:3, 2:4], a.T
        row.fill(1)
        block.fill(2)
        turned[0] = 3
        a.view(cp.int16)[3].fill(4)
        a[::-1, ::-1].fill(5)
        a.reshape(-1)[5:7] += 1
        a[1:1].fill(6)

    assert launches(recorded(program, fake)) == [
        ("zeros", ["+a[0:128]"]),
        ("fill", ["+a[32:64]"]),
        ("fill", ["+a[40:48]", "+a[72:80]"]),
        ("assignment", ["+a[0:4]", "+a[32:36]", "+a[64:68]", "+a[96:100]"]),
        ("fill", ["+a[96:128]"]),
        ("fill", ["+a[0:128]"]),
        ("add", ["a[20:28]", "+a[20:28]"]),
        ("assignment", ["a[20:28]", "+a[20:28]"]),
    ]


def test_calls_that_only_make_views_or_memory_are_no_launches(fake):
    def program(cp):
        a = cp.empty((4, 8), cp.float32)
        b = cp.reshape(a, (8, 4))
        other = cp.from_dlpack(a), cp.from_dlpack(np.zeros(4, np.float32))
        return cp.asarray(b.T).view(), a.astype(cp.float32, copy=False), a[2], a.ravel(), other

    assert launches(recorded(program, fake)) == []


def test_a_call_reads_what_it_is_given_and_writes_what_it_gives_back(fake):
    def program(cp):
        a, b = cp.ones(4, cp.float32), cp.ones(4, cp.float32)
        c = cp.add(a, b)
        cp.subtract(a, b, c)
        cp.multiply(a, b, out=c)
        d = cp.concatenate([a, b])
        e = cp.dot(d, d)
        cp.dot(a, b, e)
        f = 2 - a
        g = cp.add.reduce(a)
        at = cp.asarray(np.array([1, 2]))
        h = a[at]
        return c, e, f, g, h

    assert launches(recorded(program, fake))[2:] == [
        ("add", ["a[0:16]", "b[0:16]", "+c[0:16]"]),
        ("subtract", ["a[0:16]", "b[0:16]", "+c[0:16]"]),
        ("multiply", ["a[0:16]", "b[0:16]", "+c[0:16]"]),
        ("concatenate", ["a[0:16]", "b[0:16]", "+d[0:32]"]),
        ("dot", ["d[0:32]", "d[0:32]", "+e[0:4]"]),
        ("dot", ["a[0:16]", "b[0:16]", "+e[0:4]"]),
        ("subtract", ["a[0:16]", "+f[0:16]"]),
        ("add", ["a[0:16]", "+g[0:4]"]),
        ("asarray", ["+at[0:16]"]),
        ("take", ["a[0:16]", "at[0:16]", "+h[0:8]"]),
    ]


def test_temporaries_are_written_and_freed_where_they_are(fake):
    def program(cp):
        a = cp.ones(4, cp.float32)
        return (a + a) * a

    taken = steps(recorded(program, fake), Allocate, Launch, Free)
    words = [type(s).__name__ if not isinstance(s, Launch) else s.name for s in taken]
    assert words[:8] == ["Allocate", "ones", "Allocate", "add", "Allocate", "multiply", "Free", "Free"]


def test_memory_on_the_way_is_written(fake):
    recording = recorded(lambda cp: cp.ptp(cp.ones(4, cp.float32)), fake)
    (_, accesses) = launches(recording)[1]
    assert [access.partition("[")[2] for access in accesses] == ["0:16]", "0:4]", "0:4]", "0:4]"]
    assert [access[0] for access in accesses[1:]] == ["+", "+", "+"]


def test_an_elementwise_kernel_may_read_what_it_writes(fake):
    def program(cp):
        add = cp.ElementwiseKernel("float32 x", "float32 y", "y += x", "add_up")
        x, y = cp.ones(4, cp.float32), cp.ones(4, cp.float32)
        add(x, y)
        return y.get()

    with flashnorm_lab.record() as recording:
        np.testing.assert_array_equal(program(fake), np.full(4, 2))
    assert launches(recording)[2] == ("add_up", ["x[0:16]", "y[0:16]", "+y[0:16]"])


def var_in_a_block_that_is_still_read(cp, wait):
    kernel = cp.RawKernel(SOURCE, "scale")
    side = cp.cuda.Stream(non_blocking=True)
    n = 128  # one unit of the pool
    x = cp.full(n, 3, cp.float32)
    old = cp.full(n, 1, cp.float32)
    out = cp.zeros(n, cp.float32)
    wait_for_device(cp)
    kernel.kernel((1,), (n,), (old, out, np.float32(2), np.int32(n)), 0, side)  # first
    if wait:
        side.synchronize()
    del old
    result = cp.var(x)  # second
    wait_for_device(cp)
    return out.get() + 0 * result.get()


def test_memory_that_a_function_takes_on_the_way_may_still_be_read(fake, monkeypatch):
    program = var_in_a_block_that_is_still_read
    recording = recorded(program, fake, False)
    assert set(found(recording)) == {("reuse", "old", "first", "second")}
    assert [name for name, _ in launches(recording)].count(
        "var"
    ) == 2  # it takes again what it has given back
    assert [s.buffer for s in steps(recording, Allocate)].count("result") == 1
    assert found(recorded(program, simulated(monkeypatch), True)) == []
    assert len(outcomes(program, monkeypatch, False)) > 1
    assert len(outcomes(program, monkeypatch, True)) == 1


def test_a_copy_to_the_host_blocks_unless_it_is_told_not_to(fake):
    def program(cp):
        side = cp.cuda.Stream()
        x = cp.ones(4, cp.float32)
        host = np.frombuffer(cp.cuda.alloc_pinned_memory(16), np.float32, 4)
        plain = np.empty(4, np.float32)
        x.get()
        x.get(side, out=host)
        x.get(out=host, blocking=False)
        x.get(stream=side, out=plain, blocking=False)  # pageable memory: CUDA waits
        cp.asnumpy(x, stream=side, out=host, blocking=False)
        x.set(host)
        x.set(plain, side)
        x.item() if x.size == 1 else x.tolist()
        float(x[0])

    recording = recorded(program, fake)
    copies = [
        (s.name, s.stream, s.blocks, len(s.accesses))
        for s in steps(recording, Launch)
        if s.category == "copy"
    ]
    assert copies == [
        ("copy x to the host", "default stream", True, 1),
        ("copy x to host", "side", True, 2),
        ("copy x to host", "default stream", False, 2),
        ("copy x to the host", "side", True, 1),
        ("copy x to host", "side", False, 2),
        ("copy host to x", "default stream", False, 2),
        ("copy the host to x", "side", False, 1),
        ("tolist", "default stream", True, 1),
        ("float", "default stream", True, 1),
    ]
    assert told(
        recording, "what the host itself does with pinned memory that is copied while it goes on: host"
    )


def told(recording, start):
    """Whether a line of what was not seen begins so."""
    return any(line.startswith(start) for line in recording.unseen)


def test_copies_and_fills_by_address(fake):
    def program(cp):
        runtime = cp.cuda.runtime
        side = cp.cuda.Stream()
        x, y = cp.zeros(8, cp.float32), cp.zeros(8, cp.float32)
        raw = cp.cuda.alloc_pinned_memory(32)
        runtime.memcpyAsync(x.data.ptr + 8, y.data.ptr, 8, 3, side.ptr)
        runtime.memcpyAsync(x.data.ptr, raw.ptr, 32, 1, side.ptr)
        runtime.memsetAsync(y.data.ptr, 0, 4, side.ptr)
        runtime.memset(y.data.ptr + 4, 0, 4)
        x.data.copy_from_host_async(raw.ptr, 16, side)
        x[4:].data.copy_to_host_async(raw.ptr + 16, 16, side)
        other = cp.cuda.alloc(64)
        (other + 32).copy_from_async(x.data, 32)
        other.memset_async(0, 8)
        return raw

    recording = recorded(program, fake)
    assert launches(recording)[2:] == [
        ("copy y to x", ["y[0:8]", "+x[8:16]"]),
        ("copy host memory 1 to x", ["host memory 1[0:32]", "+x[0:32]"]),
        ("fill y", ["+y[0:4]"]),
        ("fill y", ["+y[4:8]"]),
        ("copy host memory 1 to x", ["host memory 1[0:16]", "+x[0:16]"]),
        ("copy x to host memory 1", ["x[16:32]", "+host memory 1[16:32]"]),
        ("copy x to other", ["x[0:32]", "+other[32:64]"]),
        ("fill other", ["+other[0:8]"]),
    ]
    assert {s.stream for s in steps(recording, Launch)[2:5]} == {"side"}


def test_streams_are_what_they_are(fake):
    def program(cp):
        blocking, free = cp.cuda.Stream(), cp.cuda.Stream(non_blocking=True)
        self = types.SimpleNamespace(copies=cp.cuda.Stream())
        for stream in (blocking, free, self.copies, cp.cuda.Stream.null, cp.cuda.Stream.ptds):
            stream.synchronize()
        cp.cuda.ExternalStream(free.ptr).synchronize()
        cp.cuda.Stream.from_external(blocking).synchronize()
        cp.cuda.ExternalStream(77).synchronize()
        blocking.use()
        cp.zeros(1)
        cp.cuda.Stream.null.use()

    recording = recorded(program, fake)
    assert {name: s.kind for name, s in recording.program.streams.items()} == {
        "blocking": "blocking",
        "free": "non-blocking",
        "self.copies": "blocking",
        "default stream": "legacy",
        "per-thread stream": "per-thread",
        "stream 6": "non-blocking",
    }
    assert [s.stream for s in steps(recording, Synchronize)] == [
        "blocking", "free", "self.copies", "default stream", "per-thread stream", "free", "blocking",
        "stream 6",
    ]  # fmt: skip
    assert steps(recording, Launch)[0].stream == "blocking"


def test_a_new_stream_at_an_old_address_is_another(fake):
    def program(cp):
        first = cp.cuda.Stream()
        first.synchronize()
        fake.handles, fake.queues, fake.kinds = itertools.count(first.ptr), {0: fake.queues[0]}, {0: "legacy"}
        second = cp.cuda.Stream(non_blocking=True)
        assert second.ptr == first.ptr
        second.synchronize()

    recording = recorded(program, fake)
    assert [s.stream for s in steps(recording, Synchronize)] == ["first", "second"]
    assert recording.program.streams["second"].kind == "non-blocking"


def test_events_and_queries(fake):
    def program(cp):
        side = cp.cuda.Stream(non_blocking=True)
        done = cp.cuda.Event()
        x = cp.zeros(4)
        with side:
            x.fill(1)
            done.record()
        cp.cuda.Stream.null.wait_event(done)
        last = side.record()
        assert last.done
        assert side.done
        fake.stuck.add(side.ptr)
        done.record(side)
        assert not done.done
        fake.stuck.clear()
        done.synchronize()
        cp.cuda.Device().synchronize()
        runtime = cp.cuda.runtime
        runtime.deviceSynchronize()
        assert cp.cuda.Event().done

    recording = recorded(program, fake)
    told = [s for s in recording.program.steps if isinstance(s, Record | Wait | Query | Synchronize)]
    assert [
        (type(s).__name__, getattr(s, "event", None), s.stream, getattr(s, "done", None)) for s in told
    ] == [
        ("Record", "done", "side", None),
        ("Wait", "done", "default stream", None),
        ("Record", "last", "side", None),
        ("Query", "last", None, True),
        ("Query", None, "side", True),
        ("Record", "done", "side", None),
        ("Query", "done", None, False),
        ("Synchronize", "done", None, None),
        ("Synchronize", None, None, None),
        ("Synchronize", None, None, None),
        ("Query", "event 3", None, True),
    ]


def test_only_a_query_that_says_yes_orders_anything(fake):
    def program(cp, ready):
        side = cp.cuda.Stream(non_blocking=True)
        x = cp.zeros(4, cp.float32)
        wait_for_device(cp)
        with side:
            x.fill(1)  # first
        event = side.record()
        if not ready:
            fake.stuck.add(side.ptr)
        assert event.done is ready
        fake.stuck.clear()
        x.fill(2)  # second

    assert found(recorded(program, fake, True)) == []
    assert found(recorded(program, fake, False)) == [("WAW", "x", "first", "second")]


def test_an_event_recorded_again_stands_for_the_later_place(fake):
    def program(cp, again):
        side = cp.cuda.Stream(non_blocking=True)
        x, y = cp.zeros(4, cp.float32), cp.zeros(4, cp.float32)
        wait_for_device(cp)
        event = cp.cuda.Event()
        with side:
            x.fill(1)
            event.record()
            y.fill(1)  # first
            if again:
                event.record()
        event.synchronize()
        x.fill(2)
        y.fill(2)  # second

    assert found(recorded(program, fake, True)) == []
    assert found(recorded(program, fake, False)) == [("WAW", "y", "first", "second")]


def test_a_capture_that_never_joins_is_the_error_that_it_is(fake):
    def program(cp):
        main, branch = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
        x = cp.zeros(4, cp.float32)
        wait_for_device(cp)
        main.begin_capture()
        with main:
            x.fill(1)
        branch.wait_event(main.record())
        with branch:
            x.fill(2)
        main.end_capture()  # first

    with pytest.raises(CUDARuntimeError, match="Unjoined"), flashnorm_lab.record() as recording:
        program(fake)
    verdict = hazards.check(recording)
    assert verdict.hazards == ()
    (problem,) = verdict.errors
    assert problem.code == "cudaErrorStreamCaptureUnjoined"
    assert marked(problem.source) == "first"
    assert len(steps(recording, EndCapture)) == 1


def test_a_graph_is_launched_by_its_name(fake):
    def program(cp):
        main = cp.cuda.Stream(non_blocking=True)
        x = cp.zeros(4, cp.float32)
        wait_for_device(cp)
        with main:
            main.begin_capture()
            x.fill(1)
            replay = main.end_capture()
        replay.launch()
        replay.launch(stream=main)
        assert isinstance(replay, cp.cuda.Graph)
        assert replay.nodes

    recording = recorded(program, fake)
    assert [(s.graph, s.stream) for s in steps(recording, GraphLaunch)] == [
        ("replay", "default stream"),
        ("replay", "main"),
    ]


# Kernels


def test_kernels_of_modules_and_what_their_source_does_not_tell(fake):
    fake.meanings["unknown"] = lambda *_: None

    def program(cp):
        module = cp.RawModule(code=SOURCE)
        kernel = module.get_function("add_to")
        x, y = cp.zeros(4, cp.float32), cp.zeros((4, 4), cp.float32)
        kernel((1,), (4,), (x, y[1], np.int32(4)))
        hidden = '#define NAME unknown\nextern "C" __global__ void NAME(const float *x, float *y) {}'
        other = cp.RawKernel(hidden, "unknown")
        other((1,), (4,), (x, y))
        kernel((1,), (4,), (x.data, y.data.ptr + 16, np.int32(4)))
        kernel((1,), (4,), (x, 12, np.int32(4)))
        kernel((1,), (4,), (x, y))

    fake.meanings["add_to"] = lambda *_: None
    recording = recorded(program, fake)
    assert launches(recording)[2:] == [
        ("add_to", ["x[0:16]", "y[16:32]", "+y[16:32]"]),
        ("unknown", ["x[0:16]", "+x[0:16]", "y[0:64]", "+y[0:64]"]),
        ("add_to", ["x[0:16]", "y[16:64]", "+y[16:64]"]),
        ("add_to", ["x[0:16]"]),
        ("add_to", ["x[0:16]", "+x[0:16]", "y[0:64]", "+y[0:64]"]),
    ]
    assert told(
        recording,
        "what a kernel does with its arrays (its source does not tell; taken as read and written): unknown",
    )
    assert told(recording, "memory that a kernel is given by its address only: add_to")


def test_a_line_is_read_for_what_it_assigns_to():
    def made():
        return assigned(sys._getframe(1))

    things, place = {}, types.SimpleNamespace()
    one = made()
    place.two = made()
    things["three"] = made()
    four = five = made()
    first, six = made(), made()
    if seven := made():
        assert seven == "seven"
    assert (one, place.two, things["three"]) == ("one", "place.two", "things['three']")
    assert (four, five, first, six) == ("four", "four", "", "six")
    assert [made(), (made(), 1)[0]] == ["", ""]
    code = compile("global_one = made()\n_hidden = made()", "program.py", "exec")
    names = {"__name__": "program", "made": made}
    exec(code, names)
    assert (names["global_one"], names["_hidden"]) == ("global_one", "")


ROLES = r"""
#define REAL float
#define IN const REAL * __restrict__
// __global__ void commented(float *x) {}
template <typename T, int SIZE>
__global__ void __launch_bounds__(256, 2)
reduce(const T* __restrict__ x, T *__restrict__ y, /* in, and out */ T *total, int n, T scale = T(1)) {
    int i = threadIdx.x;
    if (i < n) y[i] = scale * x[i];
    else total[0] += x[i] * y[i > 0 ? i : 1];
    atomicAdd(&total[1], 1);
}
namespace lab {
extern "C" __global__ void all(IN a, float const *b, float *const c, float d[], const float *const *e,
                               unsigned long long f, Pair<int, float> g, const char *text = "a, (b")
{
    c[a[0] > 0 ? 1 : 2] = 3; { d[1] = d[0]; }
}
}
__global__ void nothing(void) { all<<<1, 1>>>(0); }
__global__ void stores(float *one, float *two, float *three, float *four, float *five) {
    switch (one != 0) { case 1: two[0] = 1; break; default: two[1] = 2; }
    three[0] = four[0] = 1;
    if (five[0] == 1) five[1] = 2;
}
__global__ void twice(const float *x, float *y);
__global__ void twice(const float *x, float *y) { y[0] = x[0]; }
"""
R, W, B, V = cuda_roles.READ, cuda_roles.WRITE, cuda_roles.BOTH, cuda_roles.VALUE


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("reduce<float, 4>", (R, B, B, V, V)),
        ("reduce", (R, B, B, V, V)),
        ("lab::all", (R, R, W, B, cuda_roles.POINTERS, V, V, R)),
        ("nothing", ()),
        ("stores", (B, W, W, B, B)),
        ("twice", (R, B)),
        ("commented", None),
        ("missing", None),
        ("atomicAdd", None),
        ("-", None),
    ],
)
def test_roles_are_read_off_the_source(name, wanted):
    assert cuda_roles.roles(ROLES, name) == wanted


def test_roles_of_the_lab_s_kernels_are_those_that_they_declare():
    from flashnorm_lab import kernels

    for name in kernels.NAMES:
        kernel = kernels.load(name)
        read = cuda_roles.roles(kernel.cuda_source(), name)
        assert read is not None
        for argument, role in zip(kernel.arguments, read, strict=True):
            assert (role == V) == (not argument.is_buffer), (name, argument)
            assert (role in (R, B)) >= argument.reads
            assert (role in (W, B)) == argument.writes


@pytest.mark.parametrize(
    ("operation", "alone"),
    [
        ("z = x + y", True),
        ("z = x; z += y", False),
        ("z[i] = x", True),
        ("f(z)", False),
        ("y = z == x", False),
    ],
)
def test_an_elementwise_output_is_read_unless_it_is_only_assigned(operation, alone):
    assert cuda_roles.only_set(operation, "z") is alone


def test_pieces_of_strided_arrays():
    assert pieces_of((3, 2), (8, 4), 4) == ([(0, 24)], 0, 24)
    assert pieces_of((3, 2), (16, 4), 4) == ([(0, 8), (16, 24), (32, 40)], 0, 40)
    assert pieces_of((2, 3), (-16, 4), 4) == ([(-16, -4), (0, 12)], -16, 12)
    assert pieces_of((2, 0), (16, 4), 4) == ([], 0, 0)
    assert pieces_of((4, 5), (0, 4), 4) == ([(0, 20)], 0, 20)
    assert pieces_of((), (), 8) == ([(0, 8)], 0, 8)
    assert pieces_of((1000, 1), (16, 4), 4) == ([(0, 15988)], 0, 15988)  # too many to tell apart
    numpy = np.zeros((4, 5, 6), np.int16)
    for view in (numpy[1:, ::2, 3], numpy[:, :, ::-2], numpy.T[2:4], numpy[0, 0], numpy[::3, 1:2]):
        taken = np.zeros(numpy.nbytes, bool)
        start = view.ctypes.data - numpy.ctypes.data
        for low, high in pieces_of(view.shape, view.strides, view.itemsize)[0]:
            taken[start + low : start + high] = True
        numpy[...] = 0
        view[...] = -1
        assert (taken == (numpy.view(np.uint8).ravel() == 255)).all()


# Memory


def test_memory_that_is_there_already_is_seen_at_its_first_use(fake):
    x = fake.zeros(8, np.float32)
    owner = np.zeros(4, np.float32)
    shared = fake.from_dlpack(owner)
    parts = [shared[:2], shared[1:]]

    def program(cp):
        x[2:4].fill(1)
        parts[0].fill(1)
        parts[1].fill(1)

    recording = recorded(program, fake)
    assert [(s.buffer, s.nbytes) for s in steps(recording, Allocate)] == [("x", 512), ("parts[0]", 16)]
    assert launches(recording) == [
        ("fill", ["+x[8:16]"]),
        ("fill", ["+parts[0][0:8]"]),
        ("fill", ["+parts[0][4:16]"]),
    ]


def test_memory_freed_unseen_is_freed_when_it_is_handed_out_again(fake):
    x = fake.zeros(8, np.float32)

    def program(cp):
        nonlocal x
        x.fill(1)
        hook = dict(fake.hooks)
        fake.hooks.clear()  # as in a thread that does nothing but free it
        x = None
        fake.hooks.update(hook)
        return cp.zeros(8, np.float32)

    recording = recorded(program, fake)
    first, freed, second = steps(recording, Allocate, Free)[:3]
    assert (first.buffer, freed.how, first.address) == (freed.buffer, "pool", second.address)
    assert second.buffer != first.buffer


@pytest.mark.parametrize("pool", [True, False])
def test_stream_ordered_memory(fake, pool):
    def program(cp, wait):
        before = cp.cuda.get_allocator()
        cp.cuda.set_allocator(cp.cuda.MemoryAsyncPool().malloc if pool else cp.cuda.malloc_async)
        one, two = (cp.cuda.Stream(non_blocking=True) for _ in range(2))
        with one:
            x = cp.empty(4, cp.float32)
        if wait:
            two.wait_event(one.record())
        with two:
            x.fill(1)  # first
        if wait:
            one.wait_event(two.record())
        del x  # second
        cp.cuda.set_allocator(before)

    assert found(recorded(program, fake, True)) == []
    recording = recorded(program, fake, False)
    assert [(kind, buffer) for kind, buffer, *_ in found(recording)] == [
        ("use before allocation", "x"),
        ("use after free", "x"),
    ]
    (freed,) = [s for s in steps(recording, Free) if s.buffer == "x"]
    assert (freed.how, freed.stream, marked(freed.source)) == ("stream", "one", "second")
    (taken,) = [s for s in steps(recording, Allocate) if s.buffer == "x"]
    assert (taken.stream, taken.nbytes) == ("one", 16)


def test_an_allocator_that_was_set_before_is_seen_and_put_back(fake):
    allocator = fake.cuda.MemoryAsyncPool().malloc
    fake.cuda.set_allocator(allocator)

    def program(cp):
        x = cp.zeros(4, cp.float32)
        assert isinstance(x.data.mem, cp.cuda.UnownedMemory)
        return x.get()

    recording = recorded(program, fake)
    assert [s.stream for s in steps(recording, Allocate, Free)] == ["default stream"] * 2
    assert fake.allocator is allocator


def test_memory_from_cudamalloc_directly(fake):
    def program(cp):
        before = cp.cuda.get_allocator()
        cp.cuda.set_allocator(None)
        side = cp.cuda.Stream(non_blocking=True)
        x = cp.zeros(4, cp.float32)
        side.wait_event(cp.cuda.Stream.null.record())
        with side:
            y = x + x
        del x  # cudaFree waits for the device
        y.fill(1)
        cp.cuda.set_allocator(before)
        assert cp.cuda.get_allocator() == before

    recording = recorded(program, fake)
    assert found(recording) == []
    kept = steps(recording, Launch, Synchronize, Free)
    assert [type(s).__name__ for s in kept][:5] == ["Launch", "Launch", "Synchronize", "Free", "Launch"]
    assert (kept[3].buffer, kept[3].how) == ("x", "host")


# What was there before the recording


def test_kernels_and_functions_from_before_are_seen_wherever_the_program_holds_them(fake, monkeypatch):
    kernel = fake.RawKernel(SOURCE, "scale")
    module = types.ModuleType("program_with_kernels")
    module.kernel, module.modules = kernel, {"one": fake.RawModule(code=SOURCE)}
    module.square = fake.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
    module.add, module.copyto, module.Stream = fake.add, fake.copyto, fake.cuda.Stream
    held = types.SimpleNamespace(kernel=kernel, again=[kernel])
    stuck = (kernel,)
    monkeypatch.setitem(sys.modules, "program_with_kernels", module)
    n = np.int32(4)

    def program(cp):
        x, y = cp.zeros(4, cp.float32), cp.zeros(4, cp.float32)
        for each in (module.kernel, held.kernel, held.again[0]):
            each((1,), (4,), (x, y, np.float32(1), n))
        module.modules["one"].get_function("add_to")((1,), (4,), (x, y, n))
        module.square(x, y)
        module.add(x, y, y)
        module.copyto(x, y)
        assert isinstance(module.add, cp.ufunc)
        assert module.add.name == "cupy_add"
        stuck[0]((1,), (4,), (x, y, np.float32(1), n))

    recording = recorded(program, fake)
    assert [name for name, _ in launches(recording)[2:]] == [
        "scale", "scale", "scale", "add_to", "square", "add", "copy y to x"
    ]  # fmt: skip
    assert told(recording, "launches of scale through a tuple that has held it since before the recording")
    assert held.kernel is held.again[0] is module.kernel is kernel
    assert module.add is fake.add
    assert type(module.square) is fake.made["ElementwiseKernel"]
    assert type(module.modules["one"]) is fake.made["RawModule"]


def test_what_was_made_in_one_recording_is_seen_in_the_next(fake, monkeypatch):
    module = types.ModuleType("program_with_names")
    monkeypatch.setitem(sys.modules, "program_with_names", module)
    x, y, n = fake.ones(4, np.float32), fake.zeros(4, np.float32), np.int32(4)
    with flashnorm_lab.record() as first:
        kernel = fake.RawKernel(SOURCE, "scale")
        square = fake.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
        add_to = fake.RawModule(code=SOURCE).get_function("add_to")
        module.add, module.Kernel = fake.add, fake.RawKernel
        stream = fake.cuda.Stream()
        stream.begin_capture()
        graph = stream.end_capture()
        pointer = x.data
    assert module.add is fake.add
    assert module.Kernel is fake.RawKernel
    with flashnorm_lab.record() as second:
        kernel((1,), (4,), (x, y, np.float32(2), n))
        kernel.kernel((1,), (4,), (x, y, np.float32(2), n))
        square(x, y)
        add_to((1,), (4,), (x, y, n))
        module.add(x, y, y)
        pointer.memset_async(0, 16)
        graph.launch()
    assert [name for name, _ in launches(first)] == []
    assert [name for name, _ in launches(second)] == ["scale", "scale", "square", "add_to", "add", "fill x"]
    assert told(second, "what a graph does whose capture is not in the recording")
    assert steps(second, GraphLaunch) == []


def test_a_graph_from_before_and_a_class_of_one_s_own(fake):
    stream = fake.cuda.Stream()
    stream.begin_capture()
    held = {"graph": stream.end_capture()}

    class Kernel(fake.RawKernel):
        def __call__(self, *args):
            super().__call__((1,), (4,), args)

    mine = Kernel(SOURCE, "scale")

    def program(cp):
        held["graph"].launch()
        mine(cp.ones(4, cp.float32), cp.ones(4, cp.float32), np.float32(2), np.int32(4))

    recording = recorded(program, fake)
    assert type(held["graph"]) is fake.cuda.Graph
    assert told(recording, "what a graph does whose capture is not in the recording")
    assert told(recording, "launches of scale through a class of the program's own, Kernel, that has held it")


def test_streams_arrays_and_events_from_before(fake):
    side = fake.cuda.Stream(non_blocking=True)
    x = fake.zeros(4, np.float32)
    event = side.record()

    def program(cp):
        with side:
            x.fill(1)
        cp.cuda.Stream.null.wait_event(event)
        event.record(side)
        event.synchronize()

    recording = recorded(program, fake)
    assert launches(recording) == [("fill", ["+x[0:16]"])]
    assert recording.program.streams["side"].kind == "non-blocking"
    assert told(recording, "what an event stood for when the recording began: event")
    assert told(recording, "CuPy: work that the GPU was given before the recording began")


# What is not seen is told


def test_nothing_is_told_where_cupy_does_nothing(fake):
    with flashnorm_lab.record() as recording:
        pass
    assert recording.unseen == ()
    assert len(recording) == 0


def test_what_is_not_seen_is_told(fake):
    def noted(argument):
        argument.append(1)

    def program(cp):
        x = cp.zeros(4, cp.float32)
        cp.cuda.Stream.null.launch_host_func(noted, [])
        hidden = cp.made["ufunc"]("cupy_hidden", np.add, 2)
        y = cp.ndarray(4, cp.float32)
        hidden(x, x)  # first
        y.fill(1)
        np.from_dlpack(x)
        with cp.cuda.Device(0):
            pass
        cp.cuda.Device(1).use()
        kept.append(hidden(x, x))

    kept = []
    recording = recorded(program, fake)
    places = ", ".join(
        f"tests/{FILE.name}:{n}"
        for n, line in enumerate(LINES, 1)
        if "hidden(x, x)" in line.partition('"')[0]
    )
    assert told(recording, "what a host function on a stream reads and writes: noted")
    assert any(
        line.startswith("a call of CuPy that took memory") and line.endswith(f": {places}")
        for line in recording.unseen
    )
    assert ("fill", ["+y[0:16]"]) in launches(recording)
    assert told(recording, "what another library does with an array that it is handed: x")
    assert told(recording, "CuPy: which of several devices a call is for; all are taken as one")


def test_what_is_not_seen_is_told_at_the_very_end_too(fake):
    hidden = fake.made["ufunc"]("cupy_hidden", np.add, 2)
    with flashnorm_lab.record() as recording:
        ones = fake.ones(4, np.float32)
        twos = hidden(ones, ones)
    assert told(recording, "a call of CuPy that took memory, and that is none of its functions: tests/")
    assert (twos.get() == 2).all()


def test_a_call_that_cannot_be_read_does_no_harm(fake, monkeypatch):
    with flashnorm_lab.record() as recording:
        x = fake.zeros(4, np.float32)
        fake.ndarray.itemsize = property(lambda self: 1 / 0)
        try:
            assert fake.sum(x[::2]).get() == 0
        finally:
            del fake.ndarray.itemsize
    assert any("could not be read (ZeroDivisionError" in line for line in recording.unseen)


def test_a_call_that_fails_fails_as_without_a_recording(fake):
    with flashnorm_lab.record() as recording:
        x = fake.zeros(4, np.float32)
        with pytest.raises(AssertionError):
            fake.copyto(x, fake.zeros(5, np.float32))
        with pytest.raises(ValueError, match="could not be broadcast"):
            fake.add(x, fake.zeros(5, np.float32))
    assert [name for name, _ in launches(recording)] == ["zeros"] * 3


# Threads


def test_another_thread_s_memory_and_launches_are_seen(fake):
    def program(cp):
        x = cp.zeros(4, cp.float32)

        def work():
            x.fill(1)
            y = x + x
            del y

        thread = threading.Thread(target=work, name="worker")
        thread.start()
        thread.join()
        x.fill(2)

    recording = recorded(program, fake)
    by_worker = [s for s in recording.program.steps if s.thread == "worker"]
    assert [type(s).__name__ for s in by_worker][:4] == ["Launch", "Allocate", "Launch", "Free"]
    assert len(steps(recording, HandOver)) == 2
    assert found(recording) == []


def test_names_in_the_tables_are_cupy_s(real):
    known = {*dir(real), *dir(real.ndarray), *dir(real.random), *dir(real.ufunc), "alloc"}
    kinds = "VIEWS ONLY_VIEWS IDLE FIRST FROM_HOST TO_HOST PLAIN CALLERS OPERATORS IN_PLACE METHODS"
    tables = [getattr(_cupy_names, kind) for kind in kinds.split()]
    assert {name for table in tables for name in table} - known == set()
    assert {name for name in _cupy_names.NOT_RECORDED if not hasattr(real.cuda.runtime, name)} == set()


# Putting back


def everything(cupy):
    owners = [cupy, cupy.cuda, cupy.cuda.runtime, cupy.ndarray, cupy.cuda.Stream, cupy.cuda.ExternalStream,
              cupy.cuda.Event]  # fmt: skip
    return [
        {name: v for name, v in vars(owner).items() if callable(v) or isinstance(v, property)}
        for owner in owners
    ]


def test_everything_is_put_back_and_what_was_made_inside_goes_on_unrecorded(fake):
    before = everything(fake)
    with flashnorm_lab.record() as recording:
        add, x = fake.add, fake.ones(4, np.float32)
        kernel = fake.RawKernel(SOURCE, "scale")
        square = fake.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
        stream = fake.cuda.Stream()
        stream.begin_capture()
        graph = stream.end_capture()
        pointer = x.data
        module = fake.RawModule(code=SOURCE)
    count = len(recording)
    assert everything(fake) == before
    assert fake.hooks == {}
    y = fake.zeros(4, np.float32)
    kernel((1,), (4,), (x, y, np.float32(2), np.int32(4)))
    kernel.kernel((1,), (4,), (x, y, np.float32(2), np.int32(4)))
    graph.launch()
    pointer.memset_async(0, 4)
    module.get_function("scale")((1,), (4,), (x, y, np.float32(2), np.int32(4)))
    stream.synchronize()
    np.testing.assert_array_equal(add(square(x), y).get(), [0, 3, 3, 3])
    assert len(recording) == count


def test_an_error_in_the_block_puts_everything_back(fake):
    before = everything(fake)
    with pytest.raises(RuntimeError, match="the program's own"), flashnorm_lab.record():
        raise RuntimeError("the program's own")
    assert everything(fake) == before


# The real CuPy: which of its parts can be replaced is CuPy's to decide. No GPU is needed.


@pytest.fixture
def real():
    return pytest.importorskip("cupy")


REAL_OWNERS = """
    cuda linalg random fft ndarray cuda.Stream cuda.ExternalStream cuda.Event cuda.runtime cuda.memory
    cuda.device cuda.pinned_memory matmul.__class__ vectorize random.RandomState
"""


def real_names(cupy):
    found = [dict(vars(cupy))]
    for path in REAL_OWNERS.split():
        owner = cupy
        for word in path.split("."):
            owner = getattr(owner, word)
        found.append(dict(vars(owner)))
    return found


def test_the_real_cupy_is_put_back_name_by_name(real):
    before = real_names(real)
    for _ in range(2):
        with flashnorm_lab.record(only="cupy") as recording:
            changed = [
                sum(now.get(n) is not then.get(n) for n in {*now, *then})
                for now, then in zip(real_names(real), before, strict=True)
            ]
            assert isinstance(real.add, real.ufunc)
            assert real.add.nin == 2
            assert real.cuda.Stream.null.ptr == 0
        assert changed[0] > 300
        assert all(changed[1:]), changed
        after = real_names(real)
        for now, then in zip(after, before, strict=True):
            assert [n for n in then if now.get(n) is not then[n]] == []
            assert set(now) - set(then) <= {"__pycache__"}
    assert recording.unseen == ()


def test_the_real_kernels_are_recorded_forms_that_need_no_device(real):
    held = {"kernel": real.RawKernel(SOURCE, "scale", options=("-DX",))}
    with flashnorm_lab.record(only="cupy"):
        kernel = real.RawKernel(SOURCE, "scale")
        module = real.RawModule(code=SOURCE)
        square = real.ElementwiseKernel("float32 x", "float32 y", "y = x * x", "square")
        total = real.ReductionKernel("float32 x", "float32 y", "x", "a + b", "y = a", "0", "total")
        assert type(held["kernel"]) is real.RawKernel
        assert (held["kernel"].name, held["kernel"].options) == ("scale", ("-DX",))
    assert type(held["kernel"]) is real.RawKernel
    assert isinstance(kernel, real.RawKernel)
    assert isinstance(module, real.RawModule)
    assert isinstance(square, real.ElementwiseKernel)
    assert isinstance(total, real.ReductionKernel)
    assert (kernel.code, square.operation, total.name) == (SOURCE, "y = x * x", "total")


@pytest.fixture
def hollow(real, monkeypatch):
    """The real CuPy's own classes, with nothing behind them: calls of the driver do nothing."""
    null = real.cuda.Stream.null
    current = [null]
    monkeypatch.setattr(real.cuda, "get_current_stream", lambda: current[-1])
    for name in ("synchronize", "wait_event", "use"):
        monkeypatch.setattr(real.cuda.Stream, name, lambda *_: None)
        monkeypatch.setattr(real.cuda.ExternalStream, name, lambda *_: None, raising=False)
    monkeypatch.setattr(real.cuda.ExternalStream, "is_non_blocking", True)
    monkeypatch.setattr(real.cuda.ExternalStream, "__enter__", lambda s: current.append(s))
    monkeypatch.setattr(real.cuda.ExternalStream, "__exit__", lambda *_: current.pop())
    numbers = itertools.count(1000)
    monkeypatch.setattr(real.cuda.Event, "__init__", lambda e, **_: setattr(e, "ptr", next(numbers)))
    monkeypatch.setattr(real.cuda.Event, "__del__", lambda e: None)
    monkeypatch.setattr(real.cuda.Event, "record", lambda *_: None)
    monkeypatch.setattr(real.cuda.runtime, "deviceSynchronize", lambda: None)

    class RawKernel(real.RawKernel):
        @property
        def kernel(self):
            return lambda *args, **kwargs: None

    monkeypatch.setattr(real, "RawKernel", RawKernel)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # ExternalStream needs no device, from_external does
        yield real


def over_host_memory(cupy, shape):
    """An array of the real CuPy over memory of the host: enough for whatever asks only where it is."""
    memory = np.zeros(shape, np.float32)
    owned = cupy.cuda.UnownedMemory(memory.ctypes.data, memory.nbytes, memory, 0)
    return cupy.ndarray(shape, np.float32, cupy.cuda.MemoryPointer(owned, 0))


def test_the_real_cupy_s_allocations_and_failures(real):
    class Kept:
        """Memory of the host in the place of the device's, which nothing runs on here."""

        def __init__(self, size):
            self.bytes = np.zeros(size, np.uint8)

    def allocator(size):
        kept = Kept(size)
        owned = real.cuda.UnownedMemory(kept.bytes.ctypes.data, size, kept, 0)
        return real.cuda.MemoryPointer(owned, 0)

    before = real.cuda.get_allocator()
    with flashnorm_lab.record(only="cupy") as recording:
        real.cuda.set_allocator(allocator)
        try:
            x = real.empty((4, 8), np.float32)
            y = real.ndarray(16, np.float32)
            view = real.reshape(x, (8, 4))[2:, ::2]
            real.broadcast_to(x, (2, 4, 8))
            with pytest.raises(real.cuda.runtime.CUDARuntimeError):
                x + x
            with pytest.raises(real.cuda.runtime.CUDARuntimeError):
                real.cuda.Stream.null.synchronize()
            with pytest.raises(real.cuda.runtime.CUDARuntimeError):
                real.cuda.Device(0).synchronize()
            assert isinstance(x.data + 16, real.cuda.MemoryPointer)
            assert (x.data + 16).ptr == view.data.ptr - 16
            del view, x, y
        finally:
            real.cuda.set_allocator(before)
    assert [(type(s).__name__, s.buffer) for s in recording.program.steps] == [
        ("Allocate", "x"), ("Allocate", "y"), ("Free", "x"), ("Free", "y")
    ]  # fmt: skip
    assert [s.nbytes for s in steps(recording, Allocate)] == [128, 64]
    assert not told(recording, "a call of CuPy that took memory")
    assert told(recording, "how an allocator that is not CuPy's orders memory that it hands out again")


@pytest.mark.parametrize("wait", [False, True])
def test_a_program_on_the_real_cupy_s_classes(hollow, wait):
    cp = hollow
    y = over_host_memory(cp, (4, 8))
    held = {"kernel": cp.RawKernel(SOURCE, "add_to")}
    with flashnorm_lab.record(only="cupy") as recording:
        x = over_host_memory(cp, 16)
        side = cp.cuda.ExternalStream(7000, 0)
        kernel = cp.RawKernel(SOURCE, "scale")
        done = cp.cuda.Event()
        held["kernel"]((1,), (8,), (x, y, np.int32(8)))
        cp.cuda.runtime.deviceSynchronize()
        with side:
            kernel((1,), (8,), (x[:8], y[1], np.float32(2), np.int32(8)))  # first
            done.record(side)
        if wait:
            cp.cuda.Stream.null.wait_event(done)
        kernel((1,), (8,), (y.T[:, 1], x[8:], np.float32(2), np.int32(8)))  # second
        cp.cuda.Stream.null.synchronize()
    assert type(held["kernel"]) is cp.RawKernel
    assert launches(recording) == [
        ("add_to", ["x[0:64]", "y[0:128]", "+y[0:128]"]),
        ("scale", ["x[0:32]", "+y[32:64]"]),
        ("scale", ["y[32:64]", "+x[32:64]"]),
    ]
    assert found(recording) == ([] if wait else [("RAW", "y", "first", "second")])
    assert recording.program.streams["side"].kind == "non-blocking"


# A GPU


@pytest.mark.gpu
@pytest.mark.parametrize("program", PAIRS, ids=lambda p: p.__name__)
def test_the_programs_on_a_gpu(program):
    import cupy as cp

    wanted = [(kind, buffer, "first", "second") for kind, buffer in PAIRS[program]]
    for clean in (False, True):
        with cp.cuda.using_allocator(cp.cuda.MemoryPool().malloc):
            assert found(recorded(program, cp, clean)) == ([] if clean else wanted)


@pytest.mark.gpu
def test_what_is_recorded_on_a_gpu():
    import cupy as cp

    held = {"kernel": cp.RawKernel(SOURCE, "add_to")}
    with flashnorm_lab.record(only="cupy") as recording:
        kernel = cp.RawModule(code=SOURCE).get_function("scale")
        x, y, z = cp.ones(N, cp.float32), cp.zeros(N, cp.float32), cp.zeros(N, cp.float32)
        kernel((1,), (N,), (x, y, np.float32(2), np.int32(N)))
        held["kernel"]((1,), (N,), (y, z, np.int32(N)))
        square = z.reshape(16, 16)
        w = cp.matmul(square, square) + 1
        copy = w.get()
    np.testing.assert_array_equal(copy, np.full((16, 16), 65, np.float32))
    assert [name for name, _ in launches(recording)] == [
        "ones", "zeros", "zeros", "scale", "add_to", "matmul", "add", "copy w to the host"
    ]  # fmt: skip
    assert not told(recording, "a call of CuPy that took memory")
    assert not told(recording, "a call of CuPy that could not be read")
    assert found(recording) == []
