"""What every device promises, in one suite: OpenCL in three forms, and CUDA where there is a GPU.

``halves`` splits the CPU between matrix and vector stream; ``whole`` lets all streams share it;
``transfers`` treats the CPU as a device with memory of its own, as an OpenCL GPU has.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from test_race import FORCED, forced_ids

from flashnorm_lab import algebra, devices, kernels, race, schedule
from flashnorm_lab.devices import base, opencl
from flashnorm_lab.devices.base import Force
from flashnorm_lab.errors import LabError
from flashnorm_lab.schedule import EDGES, Copy, Launch, Record, Wait

TOKENS, N, K = 2, 70, 45
EPS = 1e-5
WIRINGS = [frozenset(c) for size in range(5) for c in combinations(EDGES, size)]
WORST = {
    "join_matrix": "projection:post_scale",
    "join_vector": "inv_rms:post_scale",
    "fork_matrix": "copy x:projection",
    "fork_vector": "copy x:inv_rms",
}


def make(kind):
    if kind == "cuda":
        return devices.get("cuda")
    if kind == "halves":
        return opencl.open_device()
    if kind == "whole":
        return opencl.open_device(split=False)
    known = opencl.open_device()
    device = opencl.OpenCLDevice(known.platform, known.device)
    device.in_place = False
    return device


@pytest.fixture(
    scope="module", params=["halves", "whole", "transfers", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def device(request):
    return make(request.param)


class Numbers:
    """Inputs for some steps, and what each step must give, in float64."""

    def __init__(self, steps, tokens=TOKENS, n=N, k=K, seed=0):
        draw = np.random.default_rng(seed)
        self.xs = draw.standard_normal((steps, tokens, n), np.float32)
        self.xs *= np.exp2(draw.uniform(-2, 2, (steps, tokens, 1))).astype(np.float32)
        self.g = draw.uniform(0.5, 2, n).astype(np.float32)
        self.w = (draw.standard_normal((k, n)) / np.sqrt(n)).astype(np.float32)
        self.folded = algebra.fold(self.w, self.g)
        wide, folded = self.xs.astype(np.float64), self.folded.astype(np.float64)
        self.y = wide @ folded.T
        self.r = np.stack([algebra.inv_rms(x, EPS) for x in wide])[..., None]
        self.z = self.y * self.r

    def put(self, plan):
        for name, values in {"xs": self.xs, "g": self.g, "W": self.w, "W_folded": self.folded}.items():
            if name in plan.schedule.buffers:
                plan.write(name, values)
        return plan


def same(got, wanted):
    np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * np.sqrt(np.mean(wanted**2)))


def deferred(**options):
    return schedule.deferred(TOKENS, N, K, eps=EPS, **options)


# Results


@pytest.mark.parametrize(
    "built",
    [
        schedule.sequential(TOKENS, N, K),
        schedule.fused(TOKENS, N, K),
        deferred(),
        deferred(streams="one"),
        deferred(spin=2000),
        schedule.sequential(1, 1, 1),
        schedule.deferred(3, 257, 1),
    ],
    ids=["sequential", "fused", "deferred", "one stream", "spin", "1x1x1", "3x257x1"],
)
def test_every_step_has_its_own_result(device, built):
    numbers = Numbers(12, *built.shape)
    plan = numbers.put(device.prepare(built, steps=12))
    if "sink" in built.buffers:
        plan.write("sink", np.zeros(1))
    plan.run(12)
    same(plan.read("zs"), numbers.z)


def test_steps_go_around_and_rewind_starts_over(device):
    numbers = Numbers(3)
    plan = numbers.put(device.prepare(schedule.fused(TOKENS, N, K), steps=3))
    plan.run(4)
    plan.write("zs", np.zeros((3, TOKENS, K)))
    plan.step()  # number 4, row 1
    plan.rewind()
    plan.step()  # row 0
    device.wait()
    zs = plan.read("zs")
    same(zs[:2], numbers.z[:2])
    assert not zs[2].any()


def test_two_plans_take_turns_on_one_device(device):
    one, two = Numbers(20, seed=1), Numbers(20, seed=2)
    first = one.put(device.prepare(deferred(), steps=20))
    second = two.put(device.prepare(deferred(spin=500), steps=20))
    for _ in range(20):
        first.step()
        second.step()
    device.wait()
    same(first.read("zs"), one.z)
    same(second.read("zs"), two.z)


def test_the_host_s_part_of_a_step(device):
    numbers = Numbers(5)
    plan = numbers.put(device.prepare(deferred(io="host")))
    x, z = plan.tensor("x").numpy(), plan.tensor("z").numpy()
    for t in range(5):
        x[...] = numbers.xs[t]
        plan.step()
        same(z, numbers.z[t])  # no further wait: the step has it


# Memory


def test_what_was_never_written_is_nan(device):
    plan = device.prepare(deferred(), steps=2)
    for name in plan.schedule.buffers:
        assert np.isnan(plan.read(name)).all()
    Numbers(2).put(plan)
    plan.write("xs", np.full((2, TOKENS, N), np.nan))
    plan.run(1)
    assert np.isnan(plan.read("zs")).all()


def test_what_is_written_is_read_back(device):
    plan = device.prepare(deferred(), steps=2)
    for name, buffer in plan.schedule.buffers.items():
        values = np.random.default_rng(0).standard_normal(base.rows(buffer, 2), np.float32)
        plan.write(name, values)
        read = plan.read(name)
        np.testing.assert_array_equal(read, values)
        read[...] = 0  # a copy, not the memory itself
        np.testing.assert_array_equal(plan.read(name), values)
    plan.write("r", np.array([1, 2]))
    np.testing.assert_array_equal(plan.read("r"), [1, 2])


def test_memory_of_the_host_may_be_shared(device):
    numbers = Numbers(1)
    x, folded = numbers.xs[0].copy(), numbers.folded.copy()
    plan = device.prepare(deferred(io="host"), share={"x": x, "W_folded": folded})
    plan.run(1)
    same(plan.read("z"), numbers.z[0])
    x *= -1  # where the host writes x within the step, it is used in place
    plan.run(1)
    same(plan.read("z"), -numbers.z[0])


def test_a_tensor_is_the_memory_itself(device):
    torch = pytest.importorskip("torch")
    if device.kind == "opencl" and not device.in_place:
        pytest.skip("the device has memory of its own, which torch cannot address")
    numbers = Numbers(1)
    plan = numbers.put(device.prepare(deferred(io="torch")))
    plan.tensor("x").copy_(torch.from_numpy(numbers.xs[0]))
    z = plan.tensor("z")
    assert (z.dtype, tuple(z.shape)) == (torch.float32, (TOKENS, K))
    plan.run(1)
    same(z.cpu().numpy(), numbers.z[0])
    same(plan.tensor("y").cpu().numpy(), numbers.y[0])


def test_a_tensor_that_cannot_be_the_memory_itself_is_refused():
    device = make("transfers")
    plan = device.prepare(deferred(io="host"))
    with pytest.raises(LabError, match="y lies in the device's own memory"):
        plan.tensor("y")
    assert plan.tensor("z").shape == (TOKENS, K)  # the host's side of z, which the step copies


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["sequential", "fused", "deferred"])
def test_half_precision_on_a_gpu(name, dtype):
    numbers = Numbers(4)
    built = schedule.build(name, TOKENS, N, K, dtype=dtype, eps=EPS)
    plan = numbers.put(make("cuda").prepare(built, steps=4))
    plan.run(4)
    rounding = 2.0 ** (-8 if dtype == "bfloat16" else -11)
    z = plan.read("zs")
    assert np.abs(z - numbers.z).max() < 8 * rounding * np.abs(numbers.z).max()


@pytest.mark.gpu
def test_torch_s_memory_and_stream_are_used_on_a_gpu():
    import torch

    numbers = Numbers(1)
    x = torch.from_numpy(numbers.xs[0]).cuda()
    z = torch.empty((TOKENS, K), device="cuda")
    folded = torch.from_numpy(numbers.folded).cuda()
    with torch.cuda.stream(torch.cuda.Stream()):
        plan = make("cuda").prepare(deferred(io="torch"), share={"x": x, "z": z, "W_folded": folded})
        assert plan.streams["main"].ptr == torch.cuda.current_stream().cuda_stream
        for factor in (1.0, 0.5, 0.25):
            x.copy_(torch.from_numpy(numbers.xs[0] * np.float32(factor)))
            plan.step()
            wanted = algebra.deferred_norm_projection(numbers.xs[0] * factor, numbers.folded, EPS)
            same((z * 1).cpu().numpy(), wanted)  # torch's own work on the stream follows


# Forced interleavings


@pytest.mark.parametrize("edge", EDGES)
def test_the_forced_order_makes_every_step_stale_by_exactly_one(device, edge):
    numbers = Numbers(6)
    plan = numbers.put(device.prepare(deferred().without(edge), steps=6))
    plan.run(1)
    plan.rewind()
    plan.run(6, force=WORST[edge])
    y, r = numbers.y.copy(), numbers.r.copy()
    stale = y if edge.endswith("matrix") else r
    stale[1:] = stale[:-1].copy()  # of step t-1; step 0 ran before, so it finds its own
    same(plan.read("zs"), y * r)


@pytest.mark.parametrize("case", FORCED, ids=map(forced_ids, FORCED))
def test_every_hazard_forced_gives_what_was_worked_out_and_its_repair_what_is_right(device, case):
    """Seven steps; the one before the first has left its x, y and r, and the last may have no partner."""
    ahead, edge, _, force, offsets = case
    numbers = Numbers(8)
    whole = race.prefetched(deferred()) if ahead else deferred()
    size = len(offsets)
    for built, anyway in ((whole.without(edge), False), (whole, True)):
        plan = numbers.put(device.prepare(built, steps=8))
        plan.write("xs", np.roll(numbers.xs, -1, axis=0))
        for name, values in {"x": numbers.xs, "y": numbers.y, "r": numbers.r[..., 0]}.items():
            plan.write(name, values[0])
        plan.run(7, force, anyway)
        zs = plan.read("zs")
        for t in range(7):
            y, r = (0, 0) if anyway or t >= 7 - 7 % size else offsets[t % size]
            same(zs[t], numbers.y[1 + t + y] * numbers.r[1 + t + r])
        assert np.isnan(zs[7]).all()


@pytest.mark.parametrize("record", [False, True], ids=["run", "recorded"])
def test_a_force_across_steps_keeps_step_and_row_apart(device, record):
    numbers = Numbers(3)
    built = race.prefetched(deferred()).without("fork_matrix")
    plan = numbers.put(device.prepare(built, steps=3))
    timeline = plan.record(6, "post_scale:projection+1") if record else plan.run(6, "post_scale:projection+1")
    steps_3_to_5 = np.stack([numbers.z[0], numbers.y[2] * numbers.r[1], numbers.z[2]])
    same(plan.read("zs"), steps_3_to_5)
    if record:
        frame = timeline.frame()
        spans = frame[frame.kind == "device"]
        assert sorted(zip(spans.step, spans.name, strict=True)) == sorted(
            (t, s.name) for t in range(6) for s in built.steps if isinstance(s, Launch | Copy)
        )
        assert list(frame[frame.category == "range"].name) == [f"step {t}" for t in range(6)]
        assert timeline.meta["force"] == "post_scale:projection+1"


@pytest.mark.parametrize("force", ["projection:post_scale", "post_scale:projection+1", "copy x:copy z+1"])
def test_a_host_that_waits_for_a_held_stream_lets_it_go_first(device, force):
    numbers = Numbers(1)
    io = "stream" if "copy" in force else "host"
    plan = numbers.put(device.prepare(deferred(io=io)))
    if io == "host":
        plan.write("x", numbers.xs[0])
    plan.run(4, force, anyway=True)
    same(plan.read("z"), numbers.z[0])


def test_after_a_forced_run_nothing_is_held_any_more(device):
    numbers = Numbers(4)
    plan = numbers.put(device.prepare(deferred(), steps=4))
    plan.run(4, "post_scale:projection+1", anyway=True)
    plan.rewind()
    plan.write("zs", np.zeros((4, TOKENS, K)))
    plan.run(4)
    same(plan.read("zs"), numbers.z)


def test_an_order_that_the_edges_want_anyway_may_be_forced(device):
    numbers = Numbers(3)
    plan = numbers.put(device.prepare(deferred(), steps=3))
    plan.run(3, force=Force("post_scale", "projection"))
    same(plan.read("zs"), numbers.z)


def test_a_forced_step_with_a_host_that_waits_within_it(device):
    numbers = Numbers(2)
    plan = numbers.put(device.prepare(deferred(io="host").without("join_matrix")))
    plan.write("y", numbers.y[1])
    plan.write("x", numbers.xs[0])
    plan.run(1, force="projection:post_scale")
    same(plan.read("z"), numbers.y[1] * numbers.r[0])
    same(plan.read("y"), numbers.y[0])


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda w: "+".join(e for e in EDGES if e in w) or "none")
def test_what_the_edges_forbid_is_refused(wiring):
    built = deferred(edges=wiring)
    for edge, force in WORST.items():
        if edge in wiring:
            with pytest.raises(LabError, match="cannot be held until"):
                base.check_force(built, force)
        else:
            assert base.check_force(built, force) == Force(*force.split(":"))
        assert base.check_force(built, force, anyway=True) == Force(*force.split(":"))
    with pytest.raises(LabError, match="cannot be held until copy z is done"):
        base.check_force(built, "post_scale:copy z")  # one stream, whatever the edges
    for ahead, edge, _, force, offsets in FORCED:
        if ahead or len(offsets) == 1:
            continue
        if edge in wiring:
            with pytest.raises(LabError, match=r"held until (copy x|projection|inv_rms) of the next step is"):
                base.check_force(built, force, steps=2)
        else:
            assert str(base.check_force(built, force, steps=2)) == force
    with pytest.raises(LabError, match="cannot be held until projection 3 steps later is done: projection"):
        base.check_force(deferred(), "post_scale:projection+3", steps=4)


@pytest.mark.parametrize("edge", EDGES)
def test_a_refused_force_runs_nothing(device, edge):
    plan = Numbers(1).put(device.prepare(deferred()))
    for method in (plan.run, plan.record):
        with pytest.raises(LabError, match=f"the edges in place .*{edge}.* forbid it"):
            method(1, force=WORST[edge])
    assert np.isnan(plan.read("zs")).all()


# Recordings


@pytest.mark.parametrize(
    "built",
    [
        schedule.sequential(TOKENS, N, K),
        schedule.fused(TOKENS, N, K),
        deferred(),
        deferred(spin=100),
        deferred(streams="one"),
        deferred(edges=("fork_matrix", "join_vector")),
        deferred(edges=()),
    ],
    ids=["sequential", "fused", "deferred", "spin", "one stream", "two edges", "no edge"],
)
def test_a_recording_is_the_schedule_with_times(device, built):
    numbers = Numbers(4)
    plan = numbers.put(device.prepare(built, steps=4))
    timeline = plan.record(4)
    frame = timeline.frame()
    work = [s for s in built.steps if isinstance(s, Launch | Copy)]
    spans = frame[frame.kind == "device"]
    assert [lane.name for lane in timeline.lanes] == ["host", *built.streams]
    assert list(spans.name) == [s.name for s in work] * 4
    assert list(spans.lane) == [s.stream for s in work] * 4
    assert list(spans.step) == [t for t in range(4) for _ in work]
    assert list(spans.category) == ["copy" if isinstance(s, Copy) else "kernel" for s in work] * 4
    assert (spans.duration_ns > 0).all()

    # Every span on the device was enqueued by one call of the host, and did not start before it.
    assert len(timeline.launches()) == len(spans)
    error = timeline.meta["clock_error_ns"]
    assert (spans.launch_delay_ns >= -error).all()

    # A stream runs what it is given in order, one at a time.
    for _, lane in spans.groupby("lane", observed=True):
        assert (lane.start_ns.to_numpy()[1:] >= lane.end_ns.to_numpy()[:-1]).all()

    # The edges are those of the schedule, and held.
    waits = [s.event for s in built.steps if isinstance(s, Wait)]
    assert [timeline.names[e] for e in timeline.edge_name] == waits * 4
    for source, target in zip(timeline.edge_source, timeline.edge_target, strict=True):
        assert frame.end_ns[source] <= frame.start_ns[target]
        assert frame.step[source] == frame.step[target]
    assert timeline.meta["edges"] == [e for e in EDGES if e in built.edges]
    assert timeline.meta["provenance"] == "measured"
    assert timeline.meta["device"] == device.name
    if not built.dropped:
        same(plan.read("zs"), numbers.z)


def test_a_forced_recording_shows_the_stale_order(device):
    numbers = Numbers(4)
    plan = numbers.put(device.prepare(deferred().without("join_matrix"), steps=4))
    frame = plan.record(4, force="projection:post_scale").frame()
    for t in range(4):
        (held,) = frame[(frame.name == "projection") & (frame.kind == "device") & (frame.step == t)].start_ns
        (until,) = frame[(frame.name == "post_scale") & (frame.kind == "device") & (frame.step == t)].end_ns
        assert held >= until
    same(plan.read("zs")[1:], (numbers.y[:-1] * numbers.r[1:]))


def test_one_recording_at_a_time_and_of_every_plan(device):
    one, two = Numbers(1).put(device.prepare(deferred())), Numbers(1).put(device.prepare(deferred()))
    with device.recording() as recorder:
        recorder.begin("first")
        one.step()
        recorder.begin("second")
        two.step()
        with pytest.raises(LabError, match="recorded already"), device.recording():
            pass
        with pytest.raises(LabError, match="still open"):
            recorder.timeline()
    frame = recorder.timeline().frame()
    assert list(frame[frame.category == "range"].name) == ["first", "second"]
    assert sorted(frame[frame.name == "copy z"].step) == [0, 0, 1, 1]  # the call and the copy of each
    one.step()  # and none is open any more
    device.wait()


# Words


def test_a_device_tells_what_it_is(device):
    told = device.describe()
    assert set(told) == {"kind", "name", "reason", "driver", "versions", "streams"}
    assert told["kind"] == device.kind
    assert told["name"] == device.name
    assert set(told["streams"]) == {"main", "matrix", "vector"}
    assert all(isinstance(v, str) and v for v in told["versions"].values())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda d, p: p.write("W", np.zeros(3)),
            "the deferred schedule has no buffer 'W'; it has x, W_folded",
        ),
        (lambda d, p: p.read("h"), "the deferred schedule has no buffer 'h'"),
        (lambda d, p: p.tensor("h"), "the deferred schedule has no buffer 'h'"),
        (lambda d, p: p.write("r", np.zeros(3)), r"r has shape \[3\], expected \[2\]"),
        (lambda d, p: p.write("xs", np.zeros((2, N))), r"xs has shape \[2, 70\], expected \[1, 2, 70\]"),
        (lambda d, p: p.write("r", np.zeros(2, complex)), "r was given complex128; real numbers"),
        (lambda d, p: p.write("r", np.array(["a", "b"])), "r was given <U1; real numbers"),
        (lambda d, p: p.write("r", [[1], [2]]), r"r has shape \[2, 1\], expected \[2\]"),
        (lambda d, p: p.run(0), "steps=0: give a whole number of at least 1"),
        (lambda d, p: p.record(1.5), r"steps=1\.5: give a whole number"),
        (lambda d, p: d.prepare(deferred(), steps=True), "steps=True: give a whole number"),
        (lambda d, p: p.run(1, "projection"), "force='projection': write HOLD:UNTIL"),
        (lambda d, p: p.run(1, "matmul:post_scale"), "there is no launch or copy 'matmul' in the deferred"),
        (lambda d, p: p.run(1, Force("projection", "relu")), "there is no launch or copy 'relu'"),
        (lambda d, p: p.run(1, "inv_rms:inv_rms"), "inv_rms cannot be held until it is done itself"),
        (lambda d, p: p.run(2, "inv_rms:inv_rms+1"), "inv_rms cannot be held until it is done itself"),
        (lambda d, p: p.run(1, "copy z:projection+1"), r"copy z:projection\+1 spans 2 steps, and 1 runs"),
        (lambda d, p: p.run(3, "copy z:projection+3", True), "spans 4 steps, and 3 run at a time here"),
        (lambda d, p: p.record(1, "copy z:projection+1"), "spans 2 steps"),
        (lambda d, p: p.run(9, "copy z:projection+-1"), r"N in HOLD:UNTIL\+N is a number of steps"),
        (lambda d, p: d.prepare(deferred(), share={"W": np.zeros(3)}), "has no buffer 'W'"),
        (lambda d, p: d.prepare(deferred(), share={"r": np.zeros(3, np.float32)}), r"r has shape \[3\]"),
        (
            lambda d, p: d.prepare(deferred(), share={"r": np.zeros(2)}),
            "r is float64 and contiguous; expected",
        ),
        (lambda d, p: d.prepare(deferred(), share={"r": [1, 2]}), "r is a list; expected"),
        (lambda d, p: deferred(edges=["join"]), "there is no edge 'join' in the deferred schedule"),
    ],
)
def test_bad_input_is_named(device, call, message):
    plan = device.prepare(deferred())
    with pytest.raises(LabError, match=message) as problem:
        call(device, plan)
    assert "\n" not in str(problem.value)


def test_a_wait_may_take_its_event_from_the_step_before():
    """A fork that is recorded at the end of a step and waited for at the start of the next one."""
    whole = deferred()
    fork = Record("fork_matrix", "main")
    moved = (*(s for s in whole.all_steps if s != fork), fork)
    late = replace(whole, all_steps=moved)
    numbers = Numbers(6)
    plan = numbers.put(opencl.open_device().prepare(late, steps=6))
    plan.write("x", numbers.xs[0])
    assert "recorded.get('fork_matrix')" in plan.source
    timeline = plan.record(6)
    waits = timeline.frame()[lambda f: f.name == "projection"]
    assert len(waits) == 6 + 6  # each step's host call and its device span
    names = [timeline.names[i] for i in timeline.edge_name]
    assert names.count("fork_matrix") == 5  # the first step's wait is for an event never recorded


def test_a_kernel_that_does_not_compile_is_told_in_one_line(monkeypatch):
    device = opencl.open_device()
    broken = replace(kernels.load("spin"), text=kernels.load("spin").text.replace("int iterations", "int it"))
    monkeypatch.setattr(kernels, "load", lambda name: broken)
    with pytest.raises(LabError, match=r"kernel spin does not compile on .*error: spin.cu:13:25: ") as told:
        device._program("spin", broken.defines("cpu"))
    assert "\n" not in str(told.value)
    assert "iterations" in str(told.value)


def test_opencl_says_that_it_has_no_half_precision():
    with pytest.raises(LabError, match="dtype='float16': OpenCL devices run float32"):
        opencl.open_device().prepare(deferred(dtype="float16"))


# Which device


def test_a_shape_that_cannot_be_held_is_told_in_one_line():
    with pytest.raises(LabError, match=r"W_folded \[10000000, 10000000\] takes 372,529 GiB, more than"):
        opencl.open_device().prepare(schedule.fused(1, 10**7, 10**7))


def test_devices_by_name():
    first, again = opencl.open_device(reason="one"), devices.get("opencl")
    assert (first.reason, again.reason) == ("one", "asked for by name")
    assert first == again
    assert len({first, again, opencl.open_device(split=False)}) == 2


def test_two_handles_on_one_device_share_its_recording():
    one, other = opencl.open_device(), opencl.open_device()
    plans = [handle.prepare(deferred()) for handle in (one, other)]
    with one.recording() as recorder:
        for plan in plans:
            plan.step()
        with pytest.raises(LabError, match="is being recorded already"), other.recording():
            pass
    assert sorted(recorder.timeline().frame().query("category == 'kernel'").name) == sorted(
        ["projection", "inv_rms", "post_scale"] * 2
    )
    assert devices.get("opencl:portable").kind == "opencl"
    assert devices.get("auto").reason
    with pytest.raises(LabError, match="3 is no device's name"):
        devices.get(3)
    for name in ("vulkan", "cuda:1", "auto:x", ""):
        with pytest.raises(LabError, match=f"there is no device '{name}'; there are auto, cuda, opencl"):
            devices.get(name)
    with pytest.raises(LabError, match="no OpenCL platform or device is named like 'voodoo'; there are"):
        devices.get("opencl:voodoo")


@pytest.fixture
def anew():
    """Devices are opened once and kept; look again here, and afterwards."""
    opencl._open.cache_clear()
    yield
    opencl._open.cache_clear()


def test_no_opencl_platform(anew, monkeypatch):
    import pyopencl as cl

    monkeypatch.setattr(cl, "get_platforms", list)
    with pytest.raises(LabError, match=r"no OpenCL platform was found; .*PoCL"):
        devices.get("opencl")
    monkeypatch.setattr("flashnorm_lab.devices.cuda.unusable", lambda: "there is no GPU")
    with pytest.raises(
        LabError, match="no device can be used: CUDA: there is no GPU; OpenCL: no OpenCL platform"
    ):
        devices.default()

    def none():
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", none)
    with pytest.raises(LabError, match="no OpenCL platform was found"):
        devices.get("opencl")


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux, to leave a process one core")
@pytest.mark.parametrize(("wrong", "label"), [((), "fresh"), (("--drop", "join_matrix", "--force"), "stale")])
def test_a_process_that_has_one_core_only(wrong, label):
    done = subprocess.run(
        [sys.executable, "-m", "flashnorm_lab", "race", "--device=opencl", "--steps=6", "--json", *wrong],
        preexec_fn=lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}),
        env=os.environ | {"POCL_MAX_PTHREAD_COUNT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert told[label] == 6
    assert told["device"]["streams"]["matrix"] == "the one core"


def test_a_cpu_that_does_not_split(anew, monkeypatch):
    monkeypatch.setattr(opencl, "_halves", lambda cl, device: [])
    device = opencl.open_device()
    assert len(set(device.describe()["streams"].values())) == 1
    numbers = Numbers(8)
    plan = numbers.put(device.prepare(deferred(), steps=8))
    plan.run(8)
    same(plan.read("zs"), numbers.z)
    plan = numbers.put(device.prepare(deferred().without("join_matrix"), steps=8))
    plan.run(8, force="projection:post_scale")
    same(plan.read("zs")[1:], numbers.y[:-1] * numbers.r[1:])
