"""The CUDA device and the printed CuPy program, against a simulated CuPy: no GPU is needed.

What this proves: the calls made and their order, streams and arguments; results under the luckiest and the
unluckiest order that the edges allow; the forced interleaving; the recording's bookkeeping. What it cannot
prove is that CUDA itself behaves as simulated: tests/test_devices.py does, on a GPU.
"""

import ast
import dataclasses
import difflib
import gc
import json
import subprocess
import sys
import types
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_cupy import CUDARuntimeError, FakeCupy
from test_race import FORCED, forced_ids, told, wired

from flashnorm_lab import algebra, compiling, devices, hazards, kernels, race, schedule
from flashnorm_lab.devices import cuda
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES, Copy, HostRead, HostWrite, Launch, Record, Synchronize, Wait

pytest.importorskip("cupy_backends", reason="NVRTC comes with CuPy, which has no wheel for this platform")

MAIN, MATRIX, VECTOR = 1, 2, 3
LUCKY = "issued"
UNLUCKY = [MAIN, VECTOR, MATRIX, 0]
WIRINGS = [c for size in range(5) for c in combinations(EDGES, size)]
BUILT = {
    "sequential": schedule.sequential(3, 20, 7),
    "fused": schedule.fused(3, 20, 7),
    "one stream": schedule.deferred(3, 20, 7, streams="one"),
    "spin": schedule.deferred(3, 20, 7, spin=10),
    "host": schedule.deferred(3, 20, 7, io="host"),
    "sequential host": schedule.sequential(3, 20, 7, io="host"),
    "torch": schedule.deferred(3, 20, 7, io="torch"),
    "float16": schedule.deferred(3, 20, 7, dtype="float16"),
    "bfloat16": schedule.sequential(3, 20, 7, dtype="bfloat16"),
    "bfloat16 host": schedule.deferred(3, 20, 7, dtype="bfloat16", io="host"),
} | {f"edges {'+'.join(w) or 'none'}": schedule.deferred(3, 20, 7, edges=w) for w in WIRINGS}


@pytest.fixture
def cupy(monkeypatch):
    compiling.compile_report("spin")  # brings NVRTC in while the real CuPy is still in its place
    fake = FakeCupy()
    monkeypatch.setitem(sys.modules, "cupy", fake)
    cuda._open.cache_clear()
    yield fake
    cuda._open.cache_clear()


@pytest.fixture
def device(cupy):
    return cuda.open_device()


def expected_calls(built, memory, events, row=0):
    """What one step must ask of CuPy. ``memory``: each buffer's address; ``events``: each edge's event."""
    streams = {"main": MAIN, "matrix": MATRIX, "vector": VECTOR}

    def address(name):
        buffer = built.buffers[name]
        return memory[name] + row * buffer.nbytes * buffer.per_step

    calls = []
    for s in built.steps:
        match s:
            case Launch():
                code = kernels.load(s.kernel)
                shown = tuple(memory[v] if isinstance(v, str) else v for v in s.arguments)
                shown = tuple(np.float32(v) if isinstance(v, float) else v for v in shown)
                calls.append(
                    ("launch", streams[s.stream], s.kernel, *code.geometry("cuda", *built.shape), shown)
                )
            case Copy():
                size = built.buffers[s.source].nbytes
                calls.append(("copy", streams[s.stream], address(s.target), address(s.source), size, 3))
            case Record():
                calls.append(("record", streams[s.stream], events[s.event]))
            case Wait():
                calls.append(("wait", streams[s.stream], events[s.event]))
            case Synchronize():
                calls.append(("synchronize", streams[s.stream]))
            case HostWrite():
                calls.append(("host write", memory[s.buffer]))
            case HostRead():
                calls.append(("host read", memory[s.buffer]))
    return calls


def as_host_access(calls):
    """Copies between host and GPU, in the words of the schedule. The host waits for each, and for no more."""
    told, i = [], 0
    while i < len(calls):
        call = calls[i]
        write = call[0] == "set" or (call[0] == "copy" and call[-1] == 1)
        read = call[0] == "get" or (call[0] == "copy" and call[-1] == 2)
        if write or read:
            assert call[1] != MAIN
            if call[0] != "get":  # get() itself waits
                assert calls[i + 1] == ("synchronize", call[1])
                i += 1
            memory = call[3] if call[0] == "copy" and read else call[2]
            told.append(("host write" if write else "host read", memory))
        else:
            told.append(call)
        i += 1
    return told


# The calls of a step


@pytest.mark.parametrize("built", BUILT.values(), ids=BUILT.keys())
def test_a_step_makes_the_schedule_s_calls_and_no_others(cupy, device, built):
    plan = device.prepare(built, steps=3)
    memory = {name: array.data.ptr for name, array in plan.arrays.items()}
    for row in (0, 1, 2, 0):
        cupy.calls.clear()
        plan.step()
        assert as_host_access(cupy.calls) == expected_calls(built, memory, plan.events, row)
    plan.rewind()
    cupy.calls.clear()
    plan.step()
    assert as_host_access(cupy.calls) == expected_calls(built, memory, plan.events, 0)


def test_torch_s_current_stream_is_main_where_torch_has_the_gpu(cupy, device, monkeypatch):
    theirs = types.SimpleNamespace(__cuda_stream__=lambda: (0, 77))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: theirs)
    plan = device.prepare(schedule.deferred(1, 8, 4, io="torch"))
    other = device.prepare(schedule.deferred(1, 8, 4, io="stream"))
    cupy.calls.clear()
    plan.step()
    assert {call[1] for call in cupy.calls} == {77, MATRIX, VECTOR}
    cupy.calls.clear()
    other.step()
    assert {call[1] for call in cupy.calls} == {MAIN, MATRIX, VECTOR}


# Results


@pytest.mark.parametrize("order", [LUCKY, UNLUCKY], ids=["lucky", "unlucky"])
@pytest.mark.parametrize(
    "built",
    [BUILT[n] for n in ("sequential", "fused", "one stream", "spin", "edges " + "+".join(EDGES))],
    ids=lambda s: s.name,
)
def test_with_all_edges_every_legal_order_is_fresh(cupy, device, built, order):
    cupy.order = order
    result = race.run(device, built, steps=8, record=False)
    assert result.counts == {"fresh": 8, "stale": 0, "torn": 0, "early": 0}


@pytest.mark.parametrize(
    ("edge", "order"),
    [
        ("join_matrix", [0, MAIN, VECTOR, MATRIX]),
        ("join_vector", [0, MAIN, MATRIX, VECTOR]),
        ("fork_matrix", [0, MATRIX, VECTOR, MAIN]),
        ("fork_vector", [0, VECTOR, MATRIX, MAIN]),
    ],
)
def test_without_an_edge_the_order_decides(cupy, device, edge, order):
    built = schedule.deferred(2, 20, 9).without(edge)
    assert race.run(device, built, steps=6, record=False).counts["fresh"] == 6
    cupy.order = order
    assert race.run(device, built, steps=6, record=False).counts["fresh"] < 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sequential", "fused", "deferred"])
def test_half_precision_is_storage_only(device, name, dtype):
    built = schedule.build(name, 3, 20, 7, dtype=dtype, io="host")
    plan = device.prepare(built)
    x, g, w = np.random.default_rng(0).standard_normal((3, 20)), np.ones(20), np.eye(7, 20)
    for buffer, values in {"x": x, "g": g, "W": w, "W_folded": w}.items():
        if buffer in built.buffers:
            plan.write(buffer, values)
    plan.run(1)
    z = plan.read("z")
    assert z.dtype == np.float32
    rounding = 2**-8 if dtype == "bfloat16" else 2**-11
    wanted = algebra.norm_projection(x, g, w, 1e-5)
    np.testing.assert_allclose(z, wanted, rtol=3 * rounding, atol=1e-6)
    np.testing.assert_array_equal(cuda.from_storage(plan.host["z"], built.buffers["z"].dtype), z)


def test_memory_is_nan_until_it_is_written(device):
    for dtype in ("float32", "float16", "bfloat16"):
        plan = device.prepare(schedule.deferred(2, 5, 3, dtype=dtype, io="host"))
        for name in plan.schedule.buffers:
            assert np.isnan(plan.read(name)).all()
            assert torch.isnan(plan.tensor("x")).all()


def test_a_plan_that_goes_away_waits_for_the_gpu_first(cupy, device):
    plan = device.prepare(schedule.deferred(1, 8, 4))
    plan.step()
    gc.collect()
    gc.disable()
    try:
        del plan  # at once, since nothing in it holds on to it
        assert cupy.calls[-1] == ("synchronize", None)
    finally:
        gc.enable()


# Storage


def test_bfloat16_is_rounded_as_torch_does_it():
    draw = np.random.default_rng(1)
    values = (draw.standard_normal(4000) * np.exp2(draw.uniform(-130, 127, 4000))).astype(np.float32)
    special = [0, -0.0, 1, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 1.00390625, 1.01171875]
    values = np.concatenate([values, np.array(special, np.float32)])
    stored = cuda.to_storage(values, "bfloat16")
    theirs = torch.from_numpy(values).to(torch.bfloat16)
    np.testing.assert_array_equal(stored.view(np.int16), theirs.view(torch.int16).numpy())
    np.testing.assert_array_equal(cuda.from_storage(stored, "bfloat16"), theirs.float().numpy())
    nan = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(cuda.from_storage(cuda.to_storage(nan, "bfloat16"), "bfloat16")).all()


def test_float16_overflows_to_infinity_without_a_word():
    np.testing.assert_array_equal(
        cuda.to_storage(np.array([1e6, -1e6, 1.5]), "float16"), [np.inf, -np.inf, 1.5]
    )


# Sharing memory


def test_a_tensor_is_the_buffer_s_own_memory(cupy, device, monkeypatch):
    plan = device.prepare(schedule.deferred(2, 5, 3, io="host", dtype="bfloat16"))
    plan.tensor("x").fill_(2)
    assert plan.tensor("x").dtype == torch.bfloat16
    plan.step()
    device.wait()
    np.testing.assert_array_equal(plan.read("x"), np.full((2, 5), 2, np.float32))
    with pytest.raises(LabError, match=r"y lies on the GPU, which torch .* cannot use"):
        plan.tensor("y")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: types.SimpleNamespace(__cuda_stream__=lambda: (0, 7))
    )
    plan = device.prepare(schedule.deferred(2, 5, 3, io="torch", dtype="bfloat16"))
    for name, dtype in {"x": torch.bfloat16, "y": torch.float32}.items():
        tensor = plan.tensor(name)
        assert tensor.dtype == dtype
        assert tensor.data_ptr() == plan.arrays[name].data.ptr


class OnTheGpu(torch.Tensor):
    """A torch tensor that says it is on the GPU."""

    is_cuda = True


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_s_memory_on_the_gpu_is_used_in_place(device, dtype):
    weight = torch.ones((3, 5), dtype=getattr(torch, dtype), requires_grad=True)
    plan = device.prepare(
        schedule.deferred(2, 5, 3, io="torch", dtype=dtype), share={"W_folded": weight.as_subclass(OnTheGpu)}
    )
    assert plan.arrays["W_folded"].data.ptr == weight.data_ptr()
    np.testing.assert_array_equal(plan.read("W_folded"), np.ones((3, 5), np.float32))


def test_cupy_s_memory_is_used_in_place_and_the_host_s_where_the_host_writes_it(cupy, device):
    built = schedule.deferred(2, 5, 3, io="host")
    y, x = cupy.full((2, 3), 7, np.float32), np.full((2, 5), 4, np.float32)
    weight = torch.full((3, 5), 3.0)
    plan = device.prepare(built, share={"y": y, "x": x, "W_folded": weight})
    assert plan.arrays["y"] is y
    assert plan.host["x"] is x
    np.testing.assert_array_equal(plan.read("x"), x)  # there from the start, too
    np.testing.assert_array_equal(plan.read("W_folded"), weight.numpy())
    x[...] = 1
    plan.run(1)
    np.testing.assert_array_equal(plan.read("y"), np.full((2, 3), 15, np.float32))


def test_memory_is_filled_before_the_first_step(cupy, device):
    cupy.order = UNLUCKY  # where nothing says otherwise, the default stream comes last
    x, weight = np.ones((2, 5), np.float32), np.ones((3, 5), np.float32)
    plan = device.prepare(schedule.deferred(2, 5, 3, io="host"), share={"x": x, "W_folded": weight})
    plan.step()
    np.testing.assert_allclose(plan.host["z"], 5, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("x", np.ones((2, 4), np.float32), r"x has shape \[2, 4\], expected \[2, 5\]"),
        ("x", np.ones((2, 5)), "x is float64 and contiguous; expected contiguous float32"),
        ("x", torch.ones(2, 5, dtype=torch.float16), "x is float16 and contiguous"),
        ("x", torch.ones(5, 2).T, "x is float32 and not contiguous"),
        ("x", np.ones((2, 10), np.float32)[:, ::2], "x is float32 and not contiguous"),
        ("x", [[1.0] * 5] * 2, "x is a list; expected a torch tensor"),
        ("w", np.ones((2, 5), np.float32), "the deferred schedule has no buffer 'w'"),
    ],
)
def test_memory_that_does_not_fit_is_refused(device, name, given, message):
    with pytest.raises(LabError, match=message):
        device.prepare(schedule.deferred(2, 5, 3), share={name: given})


# Forced interleavings


@pytest.mark.parametrize("edge", EDGES)
def test_the_worst_case_of_each_missing_edge_is_stale_in_every_step(cupy, device, edge):
    built = schedule.deferred(1, 24, 9).without(edge)
    result = race.run(device, built, steps=5, force="worst", record=False)
    assert result.counts == {"fresh": 0, "stale": 5, "torn": 0, "early": 0}
    assert cupy.calls.count(("host function", MATRIX if edge == "join_matrix" else
                             VECTOR if edge == "join_vector" else MAIN)) == 5  # fmt: skip


@pytest.mark.parametrize("order", [LUCKY, UNLUCKY], ids=["lucky", "unlucky"])
@pytest.mark.parametrize("case", FORCED, ids=map(forced_ids, FORCED))
def test_every_hazard_forced_and_repaired_is_as_on_any_other_device(cupy, device, case, order):
    ahead, edge, (kind, buffer), _, offsets = case
    cupy.order = order  # what the force leaves open, the host's own order decides
    built = wired(ahead, edge, shape=(1, 24, 9))
    (hazard,) = [h for h in hazards.find(built) if (h.kind, h.buffer) == (kind, buffer)]
    proof = race.prove(device, built, hazard, steps=5, record=False)
    groups = 5 // len(offsets)
    wanted = [told(*o) for o in offsets] * groups + [("fresh", "")] * (5 % len(offsets))
    assert [(o.label, o.source) for o in proof.wrong.outcomes] == wanted
    assert proof.repaired.right
    held = {"copy x": MATRIX if ahead else MAIN, "projection": MATRIX, "inv_rms": VECTOR, "post_scale": MAIN}
    assert [c for c in cupy.calls if c[0] == "host function"] == 2 * groups * [
        ("host function", held[proof.force.hold])
    ]


def test_the_gate_opens_before_the_host_waits_for_main(device):
    built = schedule.deferred(1, 24, 9, io="host").without("join_matrix")
    plan = device.prepare(built)
    plan.write("W_folded", np.eye(9, 24))
    plan.write("y", np.full((1, 9), 5))
    plan.host["x"][...] = 1
    plan.run(1, "projection:post_scale")
    np.testing.assert_allclose(plan.host["z"], 5, rtol=1e-5)


def test_the_gate_opens_before_the_host_waits_for_the_held_stream(device):
    built = schedule.deferred(1, 24, 9).without("join_matrix")
    built = dataclasses.replace(built, all_steps=(*built.all_steps, Synchronize(None)))
    plan = device.prepare(built, steps=1)
    plan.write("W_folded", np.eye(9, 24))
    plan.write("xs", np.ones((1, 1, 24)))
    plan.write("y", np.full((1, 9), 5))
    plan.run(1, "projection:post_scale")
    np.testing.assert_allclose(plan.read("zs"), 5, rtol=1e-5)


def test_a_force_that_does_not_come_about_is_given_up_and_the_gate_opened(cupy, device, monkeypatch):
    monkeypatch.setattr(cuda, "FORCE_LIMIT_S", 0.05)
    plan = device.prepare(schedule.deferred(1, 24, 9).without("join_matrix"))
    cupy.stuck.add(VECTOR)
    with pytest.raises(LabError, match=r"inv_rms was not done within 0\.05 s while projection was held"):
        plan.run(1, "projection:post_scale")
    cupy.stuck.clear()
    device.wait()


def test_an_error_on_the_way_opens_the_gate(cupy, device, monkeypatch):
    plan = device.prepare(schedule.deferred(1, 24, 9).without("join_matrix"))

    def broken():
        raise RuntimeError("the driver failed")

    plan._commands[-1] = plan._commands[-1]._replace(call=broken)
    with pytest.raises(RuntimeError, match="the driver failed"):
        plan.run(1, "projection:post_scale")
    assert ("host function", MATRIX) in cupy.calls
    device.wait()


def test_launches_that_block_cannot_be_held(device, monkeypatch):
    plan = device.prepare(schedule.deferred(1, 24, 9).without("join_matrix"))
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(LabError, match="CUDA_LAUNCH_BLOCKING"):
        plan.run(1, "projection:post_scale")
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "0")
    plan.run(1, "projection:post_scale")


# Recording


CLOCK = 1_790_000_000_000_000_000
"""How far the simulated profiler's clock is ahead of ours."""


class FakeProfiler:
    """torch.profiler.profile, writing what CUPTI would have seen of the simulated GPU."""

    lost = 0
    early = 0
    foreign = False

    def __init__(self, cupy, activities, acc_events):
        assert activities == [torch.profiler.ProfilerActivity.CUDA]
        self.cupy = cupy

    def start(self):
        self.first = len(self.cupy.calls)

    def stop(self):
        self.last = len(self.cupy.calls)

    def export_chrome_trace(self, path):
        events, free = [], {}

        def event(cat, name, start, duration, **args):
            times = {"ts": f"@{start / 1000:.3f}@", "dur": f"@{duration / 1000:.3f}@"}
            events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "args": args} | times)

        for number in range(self.first, self.last):
            call, at = self.cupy.calls[number], self.cupy.times[number]
            correlation = 100 + number
            if call[0] == "launch" and self.foreign:  # someone else's work, once even of the same name
                name = call[2] if call[1] in free else "elementwise"
                event("kernel", name, at, 10, correlation=correlation, stream=7, device=0)
            if call[0] == "launch" or (call[0] == "copy" and call[-1] == 3):
                event("cuda_driver", "cuLaunchKernel", at - 200, 300, correlation=correlation)
                start = max(at + 3000 - self.early, free.get(call[1], 0))
                free[call[1]] = start + 2000
                name = call[2] if call[0] == "launch" else "Memcpy DtoD (Device -> Device)"
                cat = "kernel" if call[0] == "launch" else "gpu_memcpy"
                event(cat, name, start, 2000, correlation=correlation, stream=call[1] + 20, device=0)
        events = events[: len(events) - self.lost]
        text = json.dumps({"baseTimeNanoseconds": CLOCK, "traceEvents": events})
        Path(path).write_text(text.replace('"@', "").replace('@"', ""))


@pytest.fixture
def profiler(cupy, monkeypatch):
    made = type("Profiler", (FakeProfiler,), {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.profiler, "profile", lambda **options: made(cupy, **options))
    return made


@pytest.mark.parametrize("name", ["sequential", "fused", "one stream", "spin", "edges " + "+".join(EDGES)])
def test_a_recording_has_a_span_for_each_launch_and_an_edge_for_each_wait(cupy, device, profiler, name):
    built = BUILT[name]
    profiler.foreign = True
    plan = device.prepare(built, steps=4)
    plan.step()
    timeline = plan.record(4)
    work = [s for s in built.steps if isinstance(s, Launch | Copy)]
    issued = [s for s in built.steps if not isinstance(s, HostRead | HostWrite)]
    frame = timeline.frame()
    on_device, on_host = frame[frame.kind == "device"], frame[frame.kind == "host"]
    assert list(on_device.name) == [s.name for s in work] * 4
    assert list(on_device.lane) == [s.stream for s in work] * 4
    assert list(on_device.step) == [t for t in range(4) for _ in work]
    assert set(on_device.duration_ns) == {2000}
    assert (
        len(on_host) == 4 * len(issued) + 4 + 1
    )  # every call, a range for each step, and the wait at the end
    edges = [s.event for s in built.steps if isinstance(s, Wait)]
    assert [timeline.names[e] for e in timeline.edge_name] == edges * 4
    for source, target, edge in zip(
        timeline.edge_source, timeline.edge_target, timeline.edge_name, strict=True
    ):
        start, stop = {"fork_matrix": ("copy x", "projection"), "fork_vector": ("copy x", "inv_rms"),
                       "join_matrix": ("projection", "post_scale"), "join_vector": ("inv_rms", "post_scale")}[
                           timeline.names[edge]]  # fmt: skip
        assert frame.name[source] == start
        assert frame.name[target] == stop or (stop == "projection" and frame.name[target] == "spin")
        assert frame.step[source] == frame.step[target]
    error = timeline.meta["clock_error_ns"]
    calls = on_host[on_host.category == "launch"]
    assert 0 <= error <= max(calls.duration_ns.min() / 2, 1000)  # as tight as the shortest call allows
    assert (on_device.launch_delay_ns >= -error).all()
    assert timeline.meta["edges"] == [e for e in built.all_edges if e in built.edges]


def test_a_forced_recording_shows_the_wait_of_the_host(device, profiler):
    plan = device.prepare(schedule.deferred(1, 24, 9).without("join_matrix"), steps=2)
    frame = plan.record(2, "projection:post_scale").frame()
    assert list(frame[frame.category == "synchronize"].name) == ["wait for every stream"] * 3
    assert device.recorder is None


def test_a_recording_forced_across_steps_keeps_the_steps_apart(device, profiler):
    plan = device.prepare(schedule.deferred(1, 24, 9).without("join_matrix"), steps=5)
    timeline = plan.record(5, "projection:copy x+1")
    frame = timeline.frame()
    spans = frame[frame.kind == "device"]
    work = [s.name for s in plan.schedule.steps if isinstance(s, Launch | Copy)]
    assert list(zip(spans.step, spans.name, strict=True)) == [(t, name) for t in range(5) for name in work]
    assert list(frame[frame.category == "range"].name) == [f"step {t}" for t in range(5)]
    # One wait behind each group, two whole ones and the step that is left; and the recording's own.
    assert list(frame[frame.category == "synchronize"].name) == ["wait for every stream"] * 4
    assert timeline.meta["force"] == "projection:copy x+1"


def test_the_clock_error_covers_work_that_seems_to_start_before_its_launch(device, profiler):
    profiler.early = 1_000_000
    timeline = device.prepare(schedule.fused(1, 24, 9)).record(1)
    assert timeline.meta["clock_error_ns"] > 900_000
    assert (timeline.frame().launch_delay_ns.dropna() >= -timeline.meta["clock_error_ns"]).all()


def test_a_launch_that_the_profiler_lost_is_said(device, profiler):
    profiler.lost = 1
    with pytest.raises(
        LabError, match="the profiler saw 2 of 3 launches and copies, and no 'copy z' after them"
    ):
        device.prepare(schedule.fused(1, 24, 9)).record(1)


def test_two_plans_are_recorded_together_and_a_second_recording_is_refused(device, profiler):
    one, two = device.prepare(schedule.fused(1, 8, 4)), device.prepare(schedule.deferred(1, 8, 4, io="host"))
    with device.recording() as recorder:
        recorder.begin("both")
        one.step()
        two.step()
        with pytest.raises(LabError, match="is being recorded already"), device.recording():
            pass
        with pytest.raises(LabError, match="still open"):
            recorder.timeline()
    frame = recorder.timeline().frame()
    assert list(frame[frame.kind == "device"].name) == [
        "copy x", "fused_norm_projection", "copy z", "projection", "inv_rms", "post_scale"]  # fmt: skip
    assert list(frame[frame.category == "copy"].name) == [
        "host write of x",
        "host read of z",
        "copy x",
        "copy z",
    ]
    assert len(recorder.timeline()) == len(frame)  # asking twice changes nothing


def test_a_recording_needs_a_torch_that_sees_the_gpu(device):
    with pytest.raises(LabError, match="a recording on CUDA needs torch's profiler"):
        device.prepare(schedule.fused(1, 8, 4)).record(1)
    assert device.recorder is None


# Which device


def test_what_is_missing_is_said(cupy, monkeypatch):
    def reason():
        cuda._open.cache_clear()
        return cuda.unusable()

    assert reason() is None
    monkeypatch.setattr(cupy, "RawModule", lambda **_: 1 / 0)
    assert "a first kernel did not run (division by zero)" in reason()
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 0)
    assert reason() == "the NVIDIA driver shows no GPU"

    def no_driver():
        raise CUDARuntimeError("cudaErrorInsufficientDriver: too old\nmore")

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", no_driver)
    assert reason() == "there is no usable NVIDIA driver (cudaErrorInsufficientDriver: too old)"
    with pytest.raises(LabError, match="device 'cuda' cannot be used: there is no usable NVIDIA driver"):
        devices.get("cuda")
    assert devices.default().reason.startswith("OpenCL, since there is no usable NVIDIA driver")
    monkeypatch.setattr(cupy.cuda.runtime, "driverGetVersion", lambda: 0)
    assert reason() == "there is no NVIDIA driver"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert "CuPy cannot be imported" in reason()


def test_a_usable_gpu_is_the_default_and_describes_itself(cupy):
    device = devices.default()
    assert device.reason == "a usable NVIDIA GPU was found"
    again = devices.get("cuda")
    assert again.queues is device.queues
    assert (device.reason, again.reason) == ("a usable NVIDIA GPU was found", "asked for by name")
    told = device.describe()
    assert told["name"] == "Simulated GPU (sm_90), CUDA driver 13.2"
    assert told["versions"]["cuda runtime"] == "13.0"
    assert told["streams"]["matrix"] == "all 132 multiprocessors"


def test_a_kernel_that_does_not_compile_is_named(device, monkeypatch):
    monkeypatch.setattr(kernels.Kernel, "cuda_source", lambda self: "int broken")
    with pytest.raises(LabError, match=r"kernel projection does not compile on Simulated GPU"):
        device.prepare(schedule.deferred(1, 8, 4))


@pytest.mark.parametrize("order", [[0, *p, 4] for p in permutations((MAIN, MATRIX, VECTOR))], ids=str)
@pytest.mark.parametrize("io", ["stream", "host"])
def test_a_wiring_without_hazards_is_right_in_every_order(cupy, device, io, order):
    """The verdict against the device: whatever order the streams are served in, no hazards means no harm."""
    cupy.order = order
    draw = np.random.default_rng(1)
    xs = draw.standard_normal((4, 3, 20), np.float32)
    folded = draw.standard_normal((7, 20), np.float32)
    wanted = [algebra.deferred_norm_projection(x, folded, 1e-5) for x in xs]
    clean = 0
    for edges in WIRINGS:
        built = schedule.deferred(3, 20, 7, edges=edges, io=io)
        if hazards.find(built):
            continue
        clean += 1
        plan = device.prepare(built, steps=4)
        plan.write("W_folded", folded)
        if io == "stream":
            plan.write("xs", xs)
            plan.run(4)
            found = plan.read("zs")
        else:
            found = np.empty((4, 3, 7), np.float32)
            for x, z in zip(xs, found, strict=True):
                plan.host["x"][...] = x
                plan.step()
                z[...] = plan.host["z"]
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert clean == (1 if io == "stream" else 4)  # waiting for main covers what the forks order


# The printed program


def run_program(built, cupy, monkeypatch):
    theirs = types.SimpleNamespace(__cuda_stream__=lambda: (0, MAIN))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: theirs)
    names = {}
    exec(compile(built.to_cupy(), "program", "exec"), names)
    return names


@pytest.mark.parametrize("order", [LUCKY, UNLUCKY], ids=["lucky", "unlucky"])
@pytest.mark.parametrize("built", BUILT.values(), ids=BUILT.keys())
def test_the_program_runs_as_it_stands_and_does_what_the_plan_does(cupy, monkeypatch, built, order):
    cupy.order = order
    names = run_program(built, cupy, monkeypatch)
    assert names["steps"] == 32
    if len(built.edges) == len(built.all_edges):
        check_result(built, names)
    events = {e: names[e] for e in built.edges}
    memory = {name: names[name].data.ptr for name in built.buffers}
    calls = as_host_access(cupy.calls)
    for row in (31, 0, 7):
        wanted = expected_calls(built, memory, events, row)
        if row == 31:
            assert calls[-1] == ("synchronize", None)
            assert calls[-1 - len(wanted) : -1] == wanted
        cupy.calls.clear()
        names["step"](row)
        assert as_host_access(cupy.calls) == wanted


def check_result(built, names):
    def values(name, array):
        return cuda.from_storage(array, built.buffers[name].dtype).astype(np.float64)

    x = values("x", names["xs"].values[7] if built.io == "stream" else names["x"].values)
    z = values("z", names["zs"].values[7] if built.io == "stream" else names["z"].values)
    weight = values("x", names["W_folded" if "W_folded" in names else "W"].values)
    gain = values("x", names["g"].values) if "g" in names else np.ones(built.shape[1])
    wanted = algebra.norm_projection(x, gain, weight, built.eps)
    rtol = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[built.dtype]
    np.testing.assert_allclose(z, wanted, rtol=rtol, atol=rtol * np.abs(wanted).max())
    if built.io == "host":
        np.testing.assert_array_equal(names["z_host"], names["z"].values)


@pytest.mark.parametrize("edge", EDGES)
def test_a_diff_of_two_programs_shows_the_edge_and_nothing_else(edge):
    whole = schedule.deferred(4, 576, 960)
    diff = difflib.ndiff(whole.to_cupy().splitlines(), whole.without(edge).to_cupy().splitlines())
    fork, unit = edge.split("_")
    source, target = ("main", unit) if fork == "fork" else (unit, "main")
    assert [line for line in diff if line[0] in "+-?"] == [
        f"- {edge} = cp.cuda.Event(disable_timing=True)",
        f"-     {edge}.record({source})",
        f"-     {target}.wait_event({edge})",
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sequential", "fused", "deferred"])
def test_lines_stay_short_at_the_largest_sizes_and_ruff_finds_nothing(tmp_path, name, dtype):
    file = tmp_path / "program.py"
    file.write_text(schedule.build(name, 131072, 16384, 128256, dtype=dtype, eps=1.2345678e-5).to_cupy())
    assert max(len(line) for line in file.read_text().splitlines()) < 110
    ast.parse(file.read_text())
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=E4,E7,E9,F,W,B", str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
