"""Recording pyopencl programs, on a real driver: each racy program beside its clean twin.

A mark behind a line, ``# A``, lets a test say which line a verdict has to name; see `verdict`.
"""

import functools
import gc
import inspect
import os
import pickle
import subprocess
import sys
import threading
import types
import weakref
from queue import Queue

import numpy as np
import pyopencl as cl
import pyopencl.array
import pyopencl.tools
import pytest

import flashnorm_lab
from flashnorm_lab import hazards, program, schedule, schedule_file
from flashnorm_lab.devices import opencl as device
from flashnorm_lab.errors import LabError
from flashnorm_lab.program import (
    Allocate,
    Barrier,
    Free,
    HandOver,
    HostRead,
    HostWrite,
    Launch,
    Query,
    Record,
    SetEvent,
    Synchronize,
    UserEvent,
)
from flashnorm_lab.recording import _sources, opencl_roles
from flashnorm_lab.recording import opencl as recorder

KERNELS = """
__kernel void scale(__global const float *x, __global float *y) {
    y[get_global_id(0)] = 2 * x[get_global_id(0)];
}
__kernel void bump(__global float *y) { y[get_global_id(0)] += 1; }
__kernel void add(__global const float *a, __global const float *b, __global float *c) {
    c[get_global_id(0)] = a[get_global_id(0)] + b[get_global_id(0)];
}
"""
N = 64
SIZE = 4 * N
X = np.arange(N, dtype=np.float32)
FLAGS = cl.mem_flags.READ_WRITE


class Machine:
    """A context with two in-order queues and one that runs its commands in any order, and the kernels."""

    def __init__(self):
        chosen = device.open_device(split=False)
        self.context = cl.Context([chosen.device])
        self.main, self.side = (cl.CommandQueue(self.context) for _ in range(2))
        any_order = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        self.loose = cl.CommandQueue(self.context, properties=any_order)
        self.program = cl.Program(self.context, KERNELS).build()

    def kernel(self, name):
        return cl.Kernel(self.program, name)

    def buffer(self, size=SIZE):
        return cl.Buffer(self.context, FLAGS, size)

    def rest(self):
        for queue in (self.main, self.side, self.loose):
            queue.finish()


@pytest.fixture(scope="module")
def machine():
    return Machine()


@pytest.fixture(autouse=True)
def nothing_left_over(machine):
    yield
    machine.rest()
    assert_restored()


NATIVE = {"nb_func", "nb_method"}


def assert_restored():
    """Every function that a recording replaces is pyopencl's own again, in every module that has it."""
    for hook in recorder._hooks():
        held = hook.owner.__dict__[hook.attribute]
        assert type(held).__name__ in NATIVE, hook.name
        assert held is hook.native
        if hook.owner is cl._cl and hasattr(cl, hook.attribute):
            assert getattr(cl, hook.attribute) is hook.native
    assert threading.Thread.start.__module__ == threading.Thread.join.__module__ == "threading"
    assert recorder._active is None


def verdict(recording):
    """Every hazard: kind, buffer, the two launches, and the marks behind their lines."""
    caller = sys._getframe(1)
    lines, start = inspect.getsourcelines(caller.f_code)
    file = caller.f_code.co_filename.removeprefix(os.path.join(os.getcwd(), ""))
    marks = {
        f"{file}:{start + number}": line.rpartition("  # ")[2].strip()
        for number, line in enumerate(lines)
        if "  # " in line
    }
    return sorted(
        (h.kind, h.buffer, h.first, h.second, marks[h.first_source], marks[h.second_source])
        for h in hazards.check(recording).hazards
    )


def steps(recording, kind=Launch):
    return [s for s in recording.program.steps if isinstance(s, kind)]


# Racy programs and their clean twins


@pytest.mark.parametrize("clean", [False, True])
def test_a_copy_on_a_side_queue_has_to_wait_for_the_kernel(machine, clean):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, y, result = machine.buffer(), machine.buffer(), np.empty_like(X)
    with flashnorm_lab.record() as recording:
        cl.enqueue_copy(main, x, X)
        done = scale(main, (N,), None, x, y)  # A
        cl.enqueue_copy(side, result, y, wait_for=[done] if clean else None)  # B
        main.finish()
    wrong = [("RAW", "y", "scale", "copy y to result", "A", "B")]
    assert verdict(recording) == ([] if clean else wrong)
    launch, copy = steps(recording)[1:]
    assert launch.accesses == (program.reads("x", 0, SIZE), program.writes("y", 0, SIZE))
    assert copy.accesses == (program.reads("y", 0, SIZE), program.writes("result", 0, SIZE))
    assert copy.blocks
    assert copy.stream == "side"
    assert (launch.event, copy.after) == (("done", ("done",)) if clean else ("", ()))
    if clean:
        assert np.array_equal(result, 2 * X)


@pytest.mark.parametrize("order", ["none", "event", "marker", "barrier", "finish", "host wait", "query"])
def test_whatever_orders_two_queues_is_seen(machine, order):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, y, z = machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        done = scale(main, (N,), None, x, y)  # A
        if order == "event":
            cl.enqueue_barrier(side, wait_for=[done])
        elif order == "marker":
            cl.enqueue_marker(side, wait_for=[cl.enqueue_marker(main)])
        elif order == "barrier":
            cl.enqueue_barrier(side, wait_for=[cl.enqueue_barrier(main)])
        elif order == "finish":
            main.finish()
        elif order == "host wait":
            cl.wait_for_events([done])
        elif order == "query":
            main.flush()
            while done.command_execution_status != cl.command_execution_status.COMPLETE:
                pass
        scale(side, (N,), None, y, z)  # B
    wrong = [("RAW", "y", "scale", "scale", "A", "B")]
    assert verdict(recording) == (wrong if order == "none" else [])
    kinds = {"finish": Synchronize, "host wait": Synchronize, "query": Query, "barrier": Barrier}
    if order in kinds:
        assert steps(recording, kinds[order])


def test_an_event_of_something_else_orders_nothing(machine):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, y, z = machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        early = cl.enqueue_marker(main)
        scale(main, (N,), None, x, y)  # A
        scale(side, (N,), None, y, z, wait_for=[early])  # B
    assert verdict(recording) == [("RAW", "y", "scale", "scale", "A", "B")]


@pytest.mark.parametrize("order", ["none", "wait list", "barrier", "barrier behind", "marker"])
def test_an_out_of_order_queue_has_only_its_wait_lists_and_barriers(machine, order):
    scale, loose = machine.kernel("scale"), machine.loose
    x, y, z = machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        done = scale(loose, (N,), None, x, y)  # A
        waits = None
        if order == "wait list":
            waits = [done]
        elif order == "barrier":
            cl.enqueue_barrier(loose)
        elif order == "barrier behind":
            cl.enqueue_barrier(loose, wait_for=[done])
        elif order == "marker":
            cl.enqueue_marker(loose)  # which holds up nothing
        scale(loose, (N,), None, y, z, wait_for=waits)  # B
    assert recording.program.streams["loose"].kind == "out-of-order"
    wrong = [("RAW", "y", "scale", "scale", "A", "B")]
    assert verdict(recording) == (wrong if order in ("none", "marker") else [])


@pytest.mark.parametrize("clean", [False, True])
def test_a_marker_on_an_out_of_order_queue_stands_for_all_before_it(machine, clean):
    scale, loose, side = machine.kernel("scale"), machine.loose, machine.side
    x, y, z = machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        if clean:
            scale(loose, (N,), None, x, y)
        so_far = cl.enqueue_marker(loose)
        if not clean:
            scale(loose, (N,), None, x, y)  # A
        scale(side, (N,), None, y, z, wait_for=[so_far])  # B
    assert verdict(recording) == ([] if clean else [("RAW", "y", "scale", "scale", "A", "B")])
    assert [s.event for s in steps(recording, Record)] == ["so_far"]


def test_a_barrier_behind_an_unknown_event_orders_nothing(machine):
    scale, loose = machine.kernel("scale"), machine.loose
    x, y, z = machine.buffer(), machine.buffer(), machine.buffer()
    before = cl.enqueue_marker(loose)
    with flashnorm_lab.record() as recording:
        scale(loose, (N,), None, x, y)  # A
        cl.enqueue_barrier(loose, wait_for=[before])
        scale(loose, (N,), None, y, z)  # B
    assert verdict(recording) == [("RAW", "y", "scale", "scale", "A", "B")]
    assert "an event from before the recording: it orders nothing here" in recording.unseen


@pytest.mark.parametrize("clean", [False, True])
def test_a_user_event_holds_what_waits_for_it(machine, clean):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, y, z = machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        gate = cl.UserEvent(machine.context)
        scale(side, (N,), None, y, z, wait_for=[gate])  # B
        done = scale(main, (N,), None, x, y)  # A
        if clean:
            done.wait()
        gate.set_status(cl.command_execution_status.COMPLETE)
        side.finish()
    assert verdict(recording) == ([] if clean else [("WAR", "y", "scale", "scale", "B", "A")])
    assert [s.event for s in steps(recording, UserEvent)] == ["gate"]
    assert [s.event for s in steps(recording, SetEvent)] == ["gate"]
    assert steps(recording)[0].after == ("gate",)


def test_a_user_event_that_is_never_set_is_told(machine):
    gate = cl.UserEvent(machine.context)
    with flashnorm_lab.record() as recording:
        cl.enqueue_marker(machine.side, wait_for=[gate])
    gate.set_status(cl.command_execution_status.COMPLETE)
    assert len(hazards.check(recording).errors) == 1


@pytest.mark.parametrize("overlap", [False, True])
def test_sub_buffers_are_bytes_of_their_buffer(machine, overlap):
    bump, main, side = machine.kernel("bump"), machine.main, machine.side
    whole = cl.Buffer(machine.context, FLAGS, 4 * SIZE)
    left = whole.get_sub_region(0, 2 * SIZE)
    right = whole[SIZE if overlap else 2 * SIZE : 4 * SIZE]
    with flashnorm_lab.record() as recording:
        bump(main, (N,), None, left)  # A
        bump(side, (N,), None, right)  # B
    assert recording.program.buffers == {"whole": 4 * SIZE}
    assert verdict(recording) == ([("RAW", "whole", "bump", "bump", "A", "B")] if overlap else [])
    if overlap:
        (hazard,) = hazards.find(recording)
        assert (hazard.start, hazard.stop) == (SIZE, 2 * SIZE)


def test_a_sub_buffer_outlives_the_name_of_its_buffer(machine):
    bump, main, side = machine.kernel("bump"), machine.main, machine.side
    whole = cl.Buffer(machine.context, FLAGS, 4 * SIZE)
    left, right = whole.get_sub_region(0, 2 * SIZE), whole.get_sub_region(SIZE, 2 * SIZE)
    del whole
    with flashnorm_lab.record() as recording:
        bump(main, (N,), None, left)  # A
        bump(side, (N,), None, right)  # B
    assert verdict(recording) == [("RAW", "buffer 1", "bump", "bump", "A", "B")]


@pytest.mark.parametrize("overlap", [False, True])
def test_two_buffers_over_one_host_array_share_its_bytes(machine, overlap):
    bump, main, side = machine.kernel("bump"), machine.main, machine.side
    memory = np.zeros(8192, np.uint8)
    start = -memory.ctypes.data % 4096
    place = FLAGS | cl.mem_flags.USE_HOST_PTR
    low = cl.Buffer(machine.context, place, hostbuf=memory[start : start + 2 * SIZE])
    begin = start + (SIZE if overlap else 2 * SIZE)
    high = cl.Buffer(machine.context, place, hostbuf=memory[begin : begin + SIZE])
    with flashnorm_lab.record() as recording:
        bump(main, (N,), None, low)  # A
        bump(side, (N,), None, high)  # B
    assert [h[0] for h in verdict(recording)] == ["RAW"] * overlap
    assert any("uses in place" in text for text in recording.unseen)


@pytest.mark.parametrize("copies", ["blocking", "kept", "dropped", "kept and waited for"])
def test_a_copy_that_does_not_block_leaves_the_host_array_in_use(machine, copies):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, y, result = machine.buffer(), machine.buffer(), np.empty_like(X)
    with flashnorm_lab.record() as recording:
        scale(main, (N,), None, x, y)
        if copies == "blocking":
            cl.enqueue_copy(main, result, y)
        elif copies == "dropped":  # pyopencl waits when the event of such a copy goes
            cl.enqueue_copy(main, result, y, is_blocking=False)
        else:
            event = cl.enqueue_copy(main, result, y, is_blocking=False)  # A
            if copies == "kept and waited for":
                event.wait()
        cl.enqueue_copy(side, result, x)  # B
    if copies == "dropped":  # a wait that no line asks for, and so none that is told as needless
        assert [s.done for s in steps(recording, Query)] == [True]
        assert not steps(recording, Synchronize)
    wrong = [("WAW", "result", "copy y to result", "copy x to result", "A", "B")]
    assert verdict(recording) == (wrong if copies == "kept" else [])
    told = [text for text in recording.unseen if "a copy uses without blocking" in text]
    assert bool(told) == (copies != "blocking")
    assert all(text.endswith(": result") for text in told)


def test_views_of_a_host_array_are_bytes_of_it(machine):
    y, result = machine.buffer(), np.empty(2 * N, np.float32)
    with flashnorm_lab.record() as recording:
        first = cl.enqueue_copy(machine.main, result[:N], y, is_blocking=False)  # A
        second = cl.enqueue_copy(machine.side, result[N:], y, is_blocking=False)  # B
        third = cl.enqueue_copy(machine.loose, result[N // 2 : N + 1], y, is_blocking=False)  # C
    assert verdict(recording) == [
        ("WAW", "result", "copy y to result", "copy y to result", "A", "C"),
        ("WAW", "result", "copy y to result", "copy y to result", "B", "C"),
    ]
    assert recording.program.buffers["result"] == 2 * SIZE
    for event in (first, second, third):
        event.wait()


def test_host_memory_that_is_gone_lends_its_address_to_no_other(machine):
    y = machine.buffer()
    with flashnorm_lab.record() as recording:
        for _ in range(3):
            result = np.empty_like(X)
            cl.enqueue_copy(machine.main, result, y)
            del result
    written = [s.accesses[1].buffer for s in steps(recording)]
    assert written == ["result", "result 2", "result 3"]


@pytest.mark.parametrize("clean", [False, True])
def test_mapped_memory_is_the_hosts_until_it_is_unmapped(machine, clean):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, y = machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        write = cl.map_flags.WRITE
        mapped, ready = cl.enqueue_map_buffer(main, x, write, 0, (N,), np.float32, is_blocking=False)  # M
        ready.wait()
        mapped[...] = X
        if not clean:
            scale(side, (N,), None, x, y)  # A
        back = mapped.base.release(main)
        scale(side, (N,), None, x, y, wait_for=[back])
    wrong = [
        ("WAR", "x", "scale", "host write of x", "A", "M"),
    ]
    assert verdict(recording) == ([] if clean else wrong)
    assert [s.name for s in steps(recording) if s.category in ("map", "unmap")] == ["map x", "unmap x"]
    written = [(s.buffer, s.start, s.stop) for s in steps(recording, HostWrite)]
    assert written == [("x", 0, SIZE)] * (2 if clean else 3)
    assert any("memory that is mapped" in text for text in recording.unseen)
    machine.rest()


def test_a_mapping_for_reading_writes_nothing_back(machine):
    y = machine.buffer()
    with flashnorm_lab.record() as recording:
        mapped, _ = cl.enqueue_map_buffer(machine.main, y, cl.map_flags.READ, 0, (N,), np.float32)
        del mapped  # which unmaps it
    host = steps(recording, HostRead)
    assert [s.buffer for s in host] == ["y", "y"]
    assert [s.accesses for s in steps(recording)] == [(program.reads("y", 0, SIZE),), ()]
    assert hazards.check(recording).clean


@pytest.mark.parametrize("wait", ["none", "event", "finish", "later event", "other queue", "query"])
def test_a_map_that_does_not_block_has_to_be_waited_for(machine, wait):
    bump, main, side = machine.kernel("bump"), machine.main, machine.side
    x = machine.buffer()
    with flashnorm_lab.record() as recording:
        bump(main, (N,), None, x)
        read = cl.map_flags.READ
        mapped, ready = cl.enqueue_map_buffer(main, x, read, 0, (N,), np.float32, is_blocking=False)  # M
        if wait == "event":
            ready.wait()
        elif wait == "finish":
            main.finish()
        elif wait == "later event":
            cl.enqueue_marker(main).wait()
        elif wait == "other queue":
            cl.enqueue_barrier(side, wait_for=[ready])
            side.finish()
        elif wait == "query":
            main.flush()
            while ready.command_execution_status != cl.command_execution_status.COMPLETE:
                pass
        mapped.base.release(main)
    found = verdict(recording)
    if wait == "none":
        assert found == [("RAW", "mapped memory 1", "map x", "host read of mapped memory 1", "M", "M")]
    else:
        assert found == []


def test_a_wait_behind_the_map_on_another_queue_is_none_for_it(machine):
    x = machine.buffer()
    with flashnorm_lab.record() as recording:
        read = cl.map_flags.READ
        mapped, _ = cl.enqueue_map_buffer(machine.loose, x, read, 0, (N,), np.float32, is_blocking=False)  # M
        cl.enqueue_fill(machine.loose, machine.buffer(), np.float32(1), SIZE).wait()  # which may overtake it
        cl.enqueue_marker(machine.side).wait()
        mapped.base.release(machine.loose)
    assert [h[:2] for h in verdict(recording)] == [("RAW", "mapped memory 1")]


@pytest.mark.parametrize("use", ["read", "write"])
@pytest.mark.parametrize("flags", ["READ", "WRITE"])
@pytest.mark.parametrize("unmapped", [True, False])
def test_what_uses_mapped_memory_meanwhile_is_a_race_though_it_is_waited_for(machine, use, flags, unmapped):
    kernel, main, side = machine.kernel("bump"), machine.main, machine.side
    x, y = machine.buffer(), machine.buffer()
    if use == "read":
        kernel, x, y = machine.kernel("scale"), x, (x, y)
    with flashnorm_lab.record() as recording:
        bits = getattr(cl.map_flags, flags)
        mapped, _ = cl.enqueue_map_buffer(main, x, bits, 0, (N,), np.float32)  # M
        kernel(side, (N,), None, *(y if use == "read" else (x,)))  # A
        side.finish()
        if unmapped:
            mapped.base.release(main)
    found = [(h[0], *h[4:]) for h in verdict(recording)]
    if (use, flags) == ("read", "READ"):
        assert found == []
    else:
        assert found == [("RAW" if flags == "READ" else "WAR", "A", "M")]
    assert any("still mapped at the end" in text for text in recording.unseen) == (not unmapped)


def test_a_marker_is_not_the_command_whose_events_address_it_has(machine):
    bump, x = machine.kernel("bump"), machine.buffer()
    with flashnorm_lab.record() as recording:
        for _ in range(50):
            bump(machine.main, (N,), None, x)  # whose event is gone at once
            cl.enqueue_marker(machine.main).wait()
    marked = [s.event for s in steps(recording, Record)]
    assert [s.event for s in steps(recording, Synchronize)] == marked
    assert len(set(marked)) == 50


def test_fills_and_rectangles_are_the_bytes_that_they_touch(machine):
    x, y, host = machine.buffer(), machine.buffer(), np.zeros((4, 16), np.uint8)
    with flashnorm_lab.record() as recording:
        cl.enqueue_fill(machine.main, x, np.float32(1), 64, offset=32)
        box = {"src_origin": (0, 0), "dst_origin": (8, 1), "region": (4, 3)}
        cl.enqueue_copy(machine.main, y, x, src_pitches=(16,), dst_pitches=(32,), **box)
        to_host = {"buffer_origin": (0, 0), "host_origin": (0, 1), "region": (16, 2)}
        cl.enqueue_copy(machine.main, host, x, **to_host)
        cl.enqueue_copy(machine.main, y, x, byte_count=16, src_offset=4, dst_offset=8)
    fill, rows, block, part = (s.accesses for s in steps(recording))
    assert fill == (program.writes("x", 32, 96),)
    assert rows == tuple(
        [program.reads("x", 16 * k, 16 * k + 4) for k in range(3)]
        + [program.writes("y", 8 + 32 * k, 12 + 32 * k) for k in (1, 2, 3)]
    )
    assert block == (program.reads("x", 0, 32), program.writes("host", 16, 48))
    assert part == (program.reads("x", 4, 20), program.writes("y", 8, 24))


@pytest.mark.parametrize("clean", [False, True])
def test_a_pool_hands_a_block_out_again(machine, clean):
    scale, main, side = machine.kernel("scale"), machine.main, machine.side
    x, z = machine.buffer(), machine.buffer()
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(main))
    with flashnorm_lab.record() as recording:
        first = pool.allocate(SIZE)
        block = first.int_ptr
        scale(main, (N,), None, first, z)  # A
        first.release()
        if clean:
            main.finish()
        second = pool.allocate(SIZE)
        assert second.int_ptr == block
        scale(side, (N,), None, x, second)  # B
    assert verdict(recording) == ([] if clean else [("reuse", "first", "scale", "scale", "A", "B")])
    assert [(s.buffer, s.address) for s in steps(recording, Allocate)] == [("first", 0), ("second", 0)]
    assert [(s.buffer, s.how) for s in steps(recording, Free)] == [("first", "pool")]


def test_an_emptied_pool_and_its_blocks(machine):
    bump, main, side = machine.kernel("bump"), machine.main, machine.side
    pool = cl.tools.MemoryPool(cl.tools.ImmediateAllocator(main))
    with flashnorm_lab.record() as recording:
        kept, gone = pool(SIZE), pool(SIZE)
        bump(main, (N,), None, kept)
        bump(main, (N,), None, gone)
        del gone
        pool.free_held()
        del kept
        other = pool(SIZE)  # the block of kept again, of gone no more
        main.finish()
        bump(side, (N,), None, other)
    assert hazards.check(recording).clean
    places = {s.buffer: s.memory for s in steps(recording, Allocate)}
    assert places["kept"] == places["other"] != places["gone"]


def test_a_plain_buffer_may_go_while_it_is_used(machine):
    scale = machine.kernel("scale")
    x = machine.buffer()
    with flashnorm_lab.record() as recording:
        for queue in (machine.main, machine.side):
            scale(queue, (N,), None, x, machine.buffer())
            gc.collect()
    assert hazards.check(recording).clean
    assert not steps(recording, Free)


def test_a_released_buffer_lends_its_address_to_no_other(machine):
    scale, x, held = machine.kernel("scale"), machine.buffer(), []
    with flashnorm_lab.record() as recording:
        for queue in (machine.main, machine.side):
            held.append(machine.buffer())
            scale(queue, (N,), None, x, held[-1])
            queue.finish()
            held[-1].release()
        machine.rest()
    assert [s.accesses[1].buffer for s in steps(recording)] == ["held[0]", "held[1]"]


# Arrays


def test_array_arithmetic_is_recorded_kernel_by_kernel(machine):
    a = cl.array.to_device(machine.main, X)
    plain = (2 * a + 1 + a).get()
    with flashnorm_lab.record() as recording:
        a = cl.array.to_device(machine.main, X)
        b = 2 * a + 1
        c = a + b
        seen = c.get()
        c.fill(0)
    assert np.array_equal(seen, plain)
    assert np.array_equal(seen, 3 * X + 1)
    assert hazards.check(recording).clean
    assert [s.name for s in steps(recording)] == [
        "copy X to a", "axpb", "axpb", "axpbyz", "copy c to host memory 2", "fill"]  # fmt: skip
    assert steps(recording)[3].accesses == (
        program.reads("a", 0, SIZE), program.reads("b", 0, SIZE), program.writes("c", 0, SIZE))  # fmt: skip


@pytest.mark.parametrize("clean", [False, True])
def test_arrays_on_two_queues(machine, clean):
    a = cl.array.to_device(machine.main, X)
    (a + a, a * 2)  # built before, so that the recording has the work alone
    machine.rest()
    with flashnorm_lab.record() as recording:
        doubled = a * 2  # A
        there = doubled.with_queue(machine.side)
        if not clean:
            there.events = []
        c = there + there  # B
        machine.rest()
    wrong = [("RAW", "doubled", "axpbz", "axpbyz", "A", "B")]
    assert [h[:2] + h[4:] for h in verdict(recording)] == ([] if clean else [w[:2] + w[4:] for w in wrong])
    assert np.array_equal(c.get(), 4 * X)


# Threads


@pytest.mark.parametrize("clean", [False, True])
def test_threads_are_ordered_by_start_and_join(machine, clean):
    scale, bump, main, side = machine.kernel("scale"), machine.kernel("bump"), machine.main, machine.side
    x, y = machine.buffer(), machine.buffer()
    begun = threading.Event()

    def work():
        scale(side, (N,), None, x, y)  # A
        side.finish()
        begun.set()

    with flashnorm_lab.record() as recording:
        worker = threading.Thread(target=work, name="worker")
        worker.start()
        if clean:
            worker.join()
        begun.wait()  # an order that a recording cannot see
        bump(main, (N,), None, y)  # B
        worker.join()
    assert verdict(recording) == ([] if clean else [("RAW", "y", "scale", "bump", "A", "B")])
    assert {(s.thread, s.stream) for s in steps(recording)} == {("worker", "side"), ("host", "main")}
    assert {(s.thread, s.to) for s in steps(recording, HandOver)} == {("host", "worker"), ("worker", "host")}
    assert any(text.startswith("2 threads made calls") for text in recording.unseen)


@pytest.mark.parametrize("to", ["none", "name", "thread"])
def test_a_hand_over_tells_what_a_queue_orders(machine, to):
    scale, bump, main, side = machine.kernel("scale"), machine.kernel("bump"), machine.main, machine.side
    x, y = machine.buffer(), machine.buffer()
    mail = Queue()

    def consume():
        mail.get()
        bump(side, (N,), None, y)  # B

    with flashnorm_lab.record() as recording:
        consumer = threading.Thread(target=consume, name="consumer")
        consumer.start()
        scale(main, (N,), None, x, y)  # A
        main.finish()
        if to != "none":
            recording.hand_over("consumer" if to == "name" else consumer)
        mail.put(None)
        consumer.join()
    assert verdict(recording) == ([("RAW", "y", "scale", "bump", "A", "B")] if to == "none" else [])


def test_a_hand_over_to_nobody_is_refused(machine):
    with flashnorm_lab.record() as recording:
        cl.enqueue_marker(machine.main)
        recording.hand_over("host")  # to itself: nothing to tell
        with pytest.raises(LabError, match="hand_over to 'nobody': no thread of that name is running"):
            recording.hand_over("nobody")
        with pytest.raises(LabError, match="hand_over to 3: give a thread's name"):
            recording.hand_over(3)
    assert not steps(recording, HandOver)
    with pytest.raises(LabError, match="call it inside the block"):
        recording.hand_over("host")


@pytest.mark.parametrize("calls", ["kernel", "nothing"])
@pytest.mark.parametrize("behind", ["it", "something else"])
def test_a_callback_comes_behind_its_event(machine, calls, behind):
    scale, bump, main, side = machine.kernel("scale"), machine.kernel("bump"), machine.main, machine.side
    x, y = machine.buffer(), machine.buffer()
    called = threading.Event()

    def callback(status):
        if calls == "kernel":
            bump(side, (N,), None, y)  # B
        called.set()

    with flashnorm_lab.record() as recording:
        event = scale(main, (N,), None, x, y)  # A
        if behind != "it":
            event = cl.enqueue_marker(side)
            side.flush()
        event.set_callback(cl.command_execution_status.COMPLETE, callback)
        main.flush()
        assert called.wait(60)
        while any(name.startswith("callback") for name in recording._tape._threads.values()):
            pass  # it has yet to return
    racy = calls == "kernel" and behind != "it"
    assert verdict(recording) == ([("RAW", "y", "scale", "bump", "A", "B")] if racy else [])
    threads = {s.thread for s in recording.program.steps}
    assert threads == ({"host", "callback 1"} if calls == "kernel" else {"host"})
    assert any("Event.set_callback" in text for text in recording.unseen)


def test_one_thread_needs_no_word_about_threads(machine):
    with flashnorm_lab.record() as recording:
        idle = threading.Thread(target=int)
        idle.start()
        idle.join()
        cl.enqueue_marker(machine.main)
    assert not steps(recording, HandOver)
    assert not any("threads" in text for text in recording.unseen)


def test_threads_of_one_name_are_told_apart(machine):
    with flashnorm_lab.record() as recording:
        for _ in range(2):
            worker = threading.Thread(target=cl.enqueue_marker, args=(machine.main,), name="worker")
            worker.start()
            worker.join()
    assert [s.thread for s in steps(recording, Record)] == ["worker", "worker 2"]


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize("call", ["finish", "copy"])
def test_the_host_waits_for_what_was_there_when_it_began(machine, call, told):
    """While one thread waits for a queue, another gives it more, which that wait need not include."""
    scale, bump, main, side = machine.kernel("scale"), machine.kernel("bump"), machine.main, machine.side
    x, y = machine.buffer(), machine.buffer()
    gate, begun = cl.UserEvent(machine.context), threading.Event()
    if not told:
        cl.enqueue_marker(main, wait_for=[gate])
    with flashnorm_lab.record() as recording:
        if told:
            cl.enqueue_marker(main, wait_for=[gate])

        def work():
            begun.wait()
            while not recording._tape._open:  # the other thread's call is on its way
                pass
            scale(main, (N,), None, x, y)  # A
            if told:
                gate.set_status(cl.command_execution_status.COMPLETE)
            else:  # behind the recording's back
                unseen = next(h.native for h in recorder._hooks() if h.name == "UserEvent.set_status")
                unseen(gate, cl.command_execution_status.COMPLETE)

        worker = threading.Thread(target=work, name="worker")
        worker.start()
        begun.set()
        if call == "finish":
            main.finish()
        else:
            cl.enqueue_copy(main, np.empty_like(X), x)
        bump(side, (N,), None, y)  # B
        worker.join()
    wrong = [("RAW", "y", "scale", "bump", "A", "B")]
    # A finish() that has outlasted the gate may have waited for what came meanwhile; a copy has not.
    assert verdict(recording) == ([] if told and call == "finish" else wrong)
    assert hazards.check(recording).errors == ()
    (waits,) = (s for s in recording.program.steps if isinstance(s, Synchronize))
    assert waits.stream == ("main" if call == "finish" else None)


# What was there before, and what cannot be seen


def test_arguments_set_before_the_recording_are_told(machine):
    scale = machine.kernel("scale")
    x, y = machine.buffer(), machine.buffer()
    scale.set_args(x, y)
    with flashnorm_lab.record() as recording:
        cl.enqueue_nd_range_kernel(machine.main, scale, (N,), None)
    assert steps(recording)[0].accesses == ()
    told = "what kernel scale touches through arguments that were not set in the recording: 0, 1"
    assert told in recording.unseen
    with flashnorm_lab.record() as recording:
        scale.set_args(x, y)
        cl.enqueue_nd_range_kernel(machine.main, scale, (N,), None)
        scale.set_arg(1, x)
        copy = scale.clone()
        cl.enqueue_nd_range_kernel(machine.main, copy, (N,), None)
    assert not any("not set in" in text for text in recording.unseen)
    first, second = steps(recording)
    assert first.accesses == (program.reads("x", 0, SIZE), program.writes("y", 0, SIZE))
    assert second.accesses == (program.reads("x", 0, SIZE), program.writes("x", 0, SIZE))


def test_a_queue_from_before_is_told_unless_the_program_waits_for_it(machine):
    told = "what was given to a queue before the recording: old"
    old = machine.main
    with flashnorm_lab.record() as recording:
        cl.enqueue_marker(old)
    assert told in recording.unseen
    with flashnorm_lab.record() as recording:
        old.finish()
        cl.enqueue_marker(old)
        new = cl.CommandQueue(machine.context)
        cl.enqueue_marker(new)
    assert recording.unseen == ()


from pyopencl import enqueue_nd_range_kernel as launch  # noqa: E402


class Holder:
    """An object that has kept one of pyopencl's functions."""


def closure(function):
    return lambda *args: function(*args)


def test_functions_that_were_bound_before_are_seen(machine):
    scale, x, y = machine.kernel("scale"), machine.buffer(), machine.buffer()
    holder, table, several = Holder(), {"run": cl.enqueue_nd_range_kernel}, [cl.enqueue_nd_range_kernel]
    holder.run = cl.enqueue_nd_range_kernel
    closed = closure(cl.enqueue_nd_range_kernel)
    with flashnorm_lab.record() as recording:
        scale.set_args(x, y)
        for function in (launch, holder.run, table["run"], several[0], closed):
            function(machine.main, scale, (N,), None)
        del function
    assert [s.name for s in steps(recording)] == ["scale"] * 5
    assert [u for u in recording.unseen if u.startswith("calls of")] == []
    native = cl.enqueue_nd_range_kernel
    assert type(native).__name__ == "nb_func"
    for held in (launch, holder.run, table["run"], several[0], closed.__closure__[0].cell_contents):
        assert held is native


def test_functions_that_are_held_out_of_reach_are_told(machine):
    finish = machine.main.finish
    run = functools.partial(cl.enqueue_nd_range_kernel, machine.main)
    mine = cl.wait_for_events
    with flashnorm_lab.record() as recording:
        finish()
    told = [u.partition(" that has held it")[0] for u in recording.unseen]
    assert "calls of CommandQueue.finish through a nb_bound_method" in told
    assert "calls of enqueue_nd_range_kernel through a partial" in told
    assert "calls of wait_for_events through the local variable mine" in told
    assert len(recording) == 0
    assert type(mine).__name__ == "nb_func"
    del run


def test_a_replacement_that_is_kept_serves_the_program_and_the_next_recording(machine):
    with flashnorm_lab.record() as recording:
        kept = (cl.enqueue_map_buffer, functools.partial(cl._cl._enqueue_marker_with_wait_list, machine.main))
    assert isinstance(kept[0], types.FunctionType)
    assert isinstance(kept[1](), cl.Event)
    assert len(recording) == 0
    with flashnorm_lab.record() as recording:
        kept[1]()
    assert len(steps(recording, Record)) == 1


def test_the_program_may_import_pyopencl_inside():
    code = (
        "import sys, flashnorm_lab\n"
        "with flashnorm_lab.record() as recording:\n"
        "    assert 'pyopencl' not in sys.modules\n"
        "    import pyopencl as cl\n"
        "    from pyopencl import enqueue_marker\n"
        "    from flashnorm_lab.devices import opencl\n"
        "    platform, device = (lambda d: (d.platform, d.device))(opencl.open_device())\n"
        "    queue = cl.CommandQueue(cl.Context([device]))\n"
        "    enqueue_marker(queue)\n"
        "print(len(recording), recording.unseen, type(cl.wait_for_events).__name__, cl.__loader__.name)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == "1 () nb_func pyopencl\n", run.stderr


def test_nothing_is_imported_for_a_recording():
    code = (
        "import sys, flashnorm_lab\n"
        "with flashnorm_lab.record() as recording: pass\n"
        "print(sorted({'pyopencl', 'cupy', 'numpy', 'torch'} & set(sys.modules)), len(sys.meta_path))\n"
        "print(len(recording))\n"
    )
    before = "import sys; print(len(sys.meta_path))"
    plain = subprocess.run([sys.executable, "-c", before], capture_output=True, text=True, check=True)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout == f"[] {plain.stdout}0\n", run.stderr


def test_callbacks_shared_memory_and_other_commands_are_told(machine):
    svm = cl.SVMAllocation(machine.context, SIZE, 64, cl.svm_mem_flags.READ_WRITE, queue=machine.main)
    bump, x = machine.kernel("bump"), machine.buffer()
    with flashnorm_lab.record() as recording:
        event = cl.enqueue_fill(machine.main, svm, np.float32(1), SIZE)
        event.set_callback(cl.command_execution_status.COMPLETE, lambda status: None)
        bump(machine.main, (N,), None, svm)
        bump(machine.side, (N,), None, svm)
        cl.enqueue_migrate_mem_objects(machine.main, [x])
        machine.rest()
    fill, first, second, migrate = steps(recording)
    assert fill.accesses == (program.writes("svm", 0, SIZE),)
    assert (
        first.accesses == second.accesses == (program.reads("svm", 0, SIZE), program.writes("svm", 0, SIZE))
    )
    assert migrate.accesses == ()
    assert [h.kind for h in hazards.find(recording)] == ["RAW"]
    assert any("shared virtual memory" in text for text in recording.unseen)
    assert any("Event.set_callback" in text for text in recording.unseen)


def test_images_are_taken_as_a_whole(machine):
    source = """
    __kernel void draw(read_only image2d_t from, write_only image2d_t to, sampler_t s) {
        write_imagef(to, (int2)(0, 0), read_imagef(from, s, (int2)(0, 0)));
    }
    """
    draw = cl.Kernel(cl.Program(machine.context, source).build(), "draw")
    form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
    one, two = (cl.create_image(machine.context, FLAGS, form, shape=(4, 4)) for _ in range(2))
    sampler = cl.Sampler(machine.context, False, cl.addressing_mode.CLAMP, cl.filter_mode.NEAREST)
    pixels = np.ones((4, 4, 4), np.float32)
    with flashnorm_lab.record() as recording:
        cl.enqueue_copy(machine.main, one, pixels, origin=(0, 0), region=(4, 4))
        draw(machine.main, (1,), None, one, two, sampler)  # A
        cl.enqueue_copy(machine.side, pixels, two, origin=(0, 0), region=(4, 4))  # B
    assert verdict(recording) == [("RAW", "two", "draw", "copy two to pixels", "A", "B")]
    assert steps(recording)[1].accesses == (program.reads("one", 0, 256), program.writes("two", 0, 256))
    assert any("part of an image" in text for text in recording.unseen)


def test_a_call_that_fails_leaves_no_step(machine):
    x = machine.buffer()
    with flashnorm_lab.record() as recording:
        with pytest.raises(cl.LogicError):
            cl.enqueue_copy(machine.main, np.empty(10 * N, np.float32), x)
        with pytest.raises(TypeError):
            cl.enqueue_marker(machine.main, wait_for=3)
        with pytest.raises(cl.LogicError):
            cl.enqueue_copy(machine.main, x, x, byte_count=10 * SIZE)
    assert len(recording) == 0


def test_a_fault_of_the_recorder_is_told_and_stops_nobody(machine, monkeypatch):
    scale, x, y, result = machine.kernel("scale"), machine.buffer(), machine.buffer(), np.empty_like(X)
    done = cl.enqueue_copy(machine.main, x, X)

    def fails(*_):
        raise KeyError("fault")

    monkeypatch.setattr(recorder.Backend, "memory", fails)
    monkeypatch.setattr(recorder.Backend, "event", fails)
    with flashnorm_lab.record() as recording:
        scale(machine.main, (N,), None, x, y)
        done.wait()
        cl.enqueue_copy(machine.main, result, y)
    assert np.array_equal(result, 2 * X)
    told = "\n".join(recording.unseen)
    assert "what Kernel.set_args did at " in told
    assert "what kernel scale touches through arguments that were not set in the recording: 0, 1" in told
    assert "what Event.wait did at " in told
    assert "a call of enqueue_read_buffer that could not be read ('fault')" in told


def test_an_iterator_of_events_is_used_once(machine):
    with flashnorm_lab.record() as recording:
        first = cl.enqueue_marker(machine.main)
        cl.enqueue_marker(machine.side, wait_for=iter([first]))
        cl.wait_for_events(iter([first]))
    assert steps(recording)[0].after == ("first",)


# Names and lines


def test_names_are_those_of_the_calling_program(machine):
    scale = machine.kernel("scale")
    parts = {"left": machine.buffer(), 3: machine.buffer()}
    rows = [machine.buffer(), machine.buffer()]

    class Model:
        def __init__(self):
            self.weight, self.out = machine.buffer(), machine.buffer()

        def run(self, queue):
            scale(queue, (N,), None, self.weight, self.out)

    def helper(queue, buffer):
        scale(queue, (N,), None, buffer, buffer)

    only_here, model = machine.buffer(), Model()
    first, second = machine.main, machine.side
    with flashnorm_lab.record() as recording:
        helper(first, only_here)
        scale(second, (N,), None, parts["left"], parts[3])
        scale(second, (N,), None, rows[0], rows[1])
        model.run(second)
        scale(second, (N,), None, machine.buffer(), only_here)
    names = [[a.buffer for a in s.accesses] for s in steps(recording)]
    assert names == [["only_here", "only_here"], ["left", "parts[3]"], ["rows[0]", "rows[1]"],
                     ["self.weight", "self.out"], ["buffer 8", "only_here"]]  # fmt: skip
    assert list(recording.program.streams) == ["first", "second"]


def test_a_name_is_never_another_objects(machine):
    scale, queue, y = machine.kernel("scale"), machine.main, machine.buffer()
    kept = []
    with flashnorm_lab.record() as recording:
        for _ in range(3):
            part = machine.buffer()
            scale(queue, (N,), None, part, y)
            kept.append(part)
        part = kept[0]
        scale(queue, (N,), None, part, y)
    assert [s.accesses[0].buffer for s in steps(recording)] == ["part", "part 2", "part 3", "part"]


def test_lines_are_the_programs_own(machine):
    with flashnorm_lab.record() as recording:
        line = sys._getframe().f_lineno + 1
        a = cl.array.to_device(machine.main, X)
        a.fill(3)
    file = __file__.removeprefix(os.path.join(os.getcwd(), ""))
    assert {s.source for s in recording.program.steps} == {f"{file}:{line}", f"{file}:{line + 1}"}


def test_a_notebook_names_its_cell(machine, monkeypatch):
    cell = compile("cl.enqueue_marker(queue)", "/tmp/ipykernel_7/123.py", "exec")
    shell = types.SimpleNamespace(
        compile=types.SimpleNamespace(
            format_code_name=lambda name: ("Cell", "In[5]") if "ipykernel" in name else None
        )
    )
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    with flashnorm_lab.record() as recording:
        exec(cell, {"__name__": "__main__", "cl": cl, "queue": machine.main})
    assert [s.source for s in recording.program.steps] == ["In[5]:1"]


def test_a_name_is_looked_for_no_further_than_it_pays():
    wanted = object()
    found = [_sources.find_name(wanted), _sources.find_name(object())]
    big = [None] * _sources.ENTRIES + [wanted]
    del wanted
    found.append(_sources.find_name(big[-1]))
    assert found == ["wanted", "", ""]


def test_to_look_for_a_name_keeps_nothing_alive(machine):
    thing, small = Holder(), machine.kernel("bump")
    gone = weakref.ref(thing)
    with flashnorm_lab.record():  # looks at the local variables for functions that are held
        small(machine.main, (N,), None, machine.buffer())
        _sources.find_name(object())
        del thing
        assert gone() is None


# The recording itself


def test_the_programs_results_do_not_change(machine):
    def work():
        scale, add, queue, side = machine.kernel("scale"), machine.kernel("add"), machine.main, machine.side
        x, y, z = (machine.buffer() for _ in range(3))
        cl.enqueue_copy(queue, x, X)
        first = scale(queue, (N,), None, x, y)
        second = add(side, (N,), None, x, y, z, wait_for=[first])
        half = np.empty(N // 2, np.float32)
        cl.enqueue_copy(side, half, z, src_offset=SIZE // 2)
        return half.tobytes(), second.command_execution_status

    plain = work()
    with flashnorm_lab.record() as recording:
        seen = work()
    assert seen == plain
    assert hazards.check(recording).clean


def test_a_recording_can_be_asked_inside_and_after(machine, tmp_path):
    queue = machine.main
    with flashnorm_lab.record(name="mine") as recording:
        assert len(recording) == 0
        cl.enqueue_marker(queue)
        assert len(recording) == 1
        inside = recording.program
        cl.enqueue_marker(queue)
    cl.enqueue_marker(queue)
    assert (len(inside), len(recording)) == (1, 2)
    assert str(recording).startswith("mine: 2 steps\n")
    assert "\n  not seen: what was given to a queue before the recording: queue" in str(recording)
    assert recording.program is recording.program
    assert pickle.loads(pickle.dumps(recording.program)) == recording.program
    again = pickle.loads(pickle.dumps(recording))
    assert (again.program, len(again), str(again)) == (recording.program, 2, str(recording))
    with pytest.raises(LabError, match="has been made already"), again:
        pass
    with pytest.raises(LabError, match="when its block has ended"):
        pickle.dumps(flashnorm_lab.record())
    recording.save(tmp_path / "mine.json")
    assert schedule_file.load(tmp_path / "mine.json") == recording.program


def test_an_exception_goes_on_and_everything_is_put_back(machine):
    recording = flashnorm_lab.record()

    def work():
        with recording:
            cl.enqueue_marker(machine.main)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert_restored()
    assert len(recording) == 1


def test_one_recording_at_a_time(machine):
    with flashnorm_lab.record() as recording:
        with pytest.raises(LabError, match="a recording is on already"), flashnorm_lab.record():
            pass
        cl.enqueue_marker(machine.main)
    assert len(recording) == 1
    with pytest.raises(LabError, match="has been made already"), recording:
        pass
    with flashnorm_lab.record():
        pass


def test_only_some_libraries(machine):
    with flashnorm_lab.record(only="cupy") as recording:
        cl.enqueue_marker(machine.main)
    assert len(recording) == 0
    with flashnorm_lab.record(only=["opencl"]) as recording:
        cl.enqueue_marker(machine.main)
    assert len(recording) == 1
    with pytest.raises(LabError, match="only='cuda': record takes 'opencl', 'cupy'"):
        flashnorm_lab.record(only="cuda")
    for wrong in (5, [5], [[]]):
        with pytest.raises(LabError, match="record takes 'opencl', 'cupy'"):
            flashnorm_lab.record(only=wrong)


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", 5, None])
def test_a_recordings_name_is_printable_text(name):
    with pytest.raises(LabError, match="record takes a text without control characters"):
        flashnorm_lab.record(name=name)


def test_a_thread_that_goes_on_is_told(machine):
    begun, end = threading.Event(), threading.Event()

    def work():
        cl.enqueue_marker(machine.main)
        begun.set()
        end.wait()

    worker = threading.Thread(target=work, name="worker")
    with flashnorm_lab.record() as recording:
        worker.start()
        begun.wait()
    end.set()
    worker.join()
    assert "what a thread does that goes on after the recording: worker" in recording.unseen


def test_a_call_that_has_not_returned_is_told(machine):
    gate = cl.UserEvent(machine.context)
    cl.enqueue_marker(machine.main, wait_for=[gate])
    x = machine.buffer()
    arguments = machine.main, np.empty_like(X), x
    worker = threading.Thread(target=cl.enqueue_copy, args=arguments, name="worker")
    with flashnorm_lab.record() as recording:
        worker.start()  # which has returned when the next line runs
        while not recording._tape._open:
            pass
    gate.set_status(cl.command_execution_status.COMPLETE)
    worker.join()
    assert "a call that had not returned when the recording ended" in recording.unseen
    assert len(recording) == 0


# The lab's own device


@pytest.mark.parametrize("edges", [schedule.EDGES, ("fork_matrix", "fork_vector", "join_vector")])
def test_the_labs_own_device_gives_the_verdict_of_its_schedule(edges):
    wiring = schedule.deferred(2, 16, 24, edges=edges)
    lab = device.open_device()
    with flashnorm_lab.record() as recording:
        plan = lab.prepare(wiring, steps=2)
        plan.step()
        plan.step()
        lab.wait()
    found = {(h.kind, h.buffer, h.first_stream, h.second_stream) for h in hazards.find(recording)}
    expected = {(h.kind, h.buffer, h.first_stream, h.second_stream) for h in hazards.find(wiring)}
    assert found == expected
    assert (not found) == (edges == schedule.EDGES)
    assert set(recording.program.streams) == {"main", "matrix", "vector"}
    assert {a.buffer for s in steps(recording) for a in s.accesses} == set(wiring.buffers)


def test_a_plan_from_before_is_seen_launch_by_launch():
    lab = device.open_device()
    plan = lab.prepare(schedule.deferred(2, 16, 24), steps=1)
    with flashnorm_lab.record() as recording:
        plan.step()
        lab.wait()
    names = [s.name for s in steps(recording) if s.category == "kernel"]
    assert sorted(names) == ["inv_rms", "post_scale", "projection"]
    assert len([u for u in recording.unseen if "not set in the recording" in u]) == 3


# Roles


def test_roles_follow_from_const_and_from_use():
    text = r"""
    #define IN __global const float * restrict
    typedef float real;
    typedef __global float *pointer;
    typedef const float fixed;
    // kernel void k(int a) {}
    /* __kernel void k(__global int *a) {} */
    __attribute__((reqd_work_group_size(64, 1, 1)))
    __kernel void k(IN x, __global real *y, __constant float *c, __local float *l, const int n,
                    __global float * const z, global volatile const int *w, pointer p, __global fixed *q,
                    read_only image2d_t i, write_only image2d_t o, read_write image2d_t b, image2d_t d,
                    sampler_t s, __global float *rw) {
        if (n && x[0] == 1) y[get_global_id(0)] = x[0] + c[0] + z[0] * w[1];
        rw[0] += 1;
        p[0] = q[0];
    }
    kernel void other(global float *k) {}
    """
    assert opencl_roles.roles(text, "k") == (
        "read", "write", "read", "value", "value", "read", "read", "write", "read", "read", "write",
        "read and write", "read", "value", "read and write")  # fmt: skip
    assert opencl_roles.roles(text, "other") == ("nothing",)
    assert opencl_roles.roles(text, "missing") is None


UNSETTLED = opencl_roles.UNSETTLED


@pytest.mark.parametrize(
    ("body", "role"),
    [
        ("p[0] = 1;", "write"),
        ("p[i].x = 1;", "write"),
        ("x = p[0];", "read"),
        ("x = p[0] == 1 ? 2 : p[1];", "read"),
        ("if (p[0] && q[0]) x = 1;", "read"),
        ("__global float *a = p; a[0] = 1;", "write"),
        ("__global float *a = (__global float *) ((__global char *) p + offset); x = a[0];", "read"),
        ("p[0] += 1;", "read and write"),
        ("p[0]++;", "read and write"),
        ("x = 1;", "nothing"),
        ("x = r(p);", "read"),
        ("x = 2 * (1 + pick(1, (i + 1), p));", "read"),
        ("x = r(p); p[0] = x;", "read and write"),
        ("x = r(p + 1);", UNSETTLED),
        ("w(p);", UNSETTLED),
        ("x = unknown(p);", UNSETTLED),
        ("back(p)[0] = 1;", UNSETTLED),
        ("++p[0];", UNSETTLED),
        ("(p[0])--;", UNSETTLED),
        ("(p[0]) = 1;", UNSETTLED),
        ("x = p[0]; p[1] = x;", "read and write"),
        ("atomic_add(&p[0], 1);", UNSETTLED),
        ("f(p);", UNSETTLED),
        ("*p = 1;", UNSETTLED),
        ("p++; x = *p;", UNSETTLED),
        ("__global float *a = p + f(1); x = a[0];", UNSETTLED),
        ("__global float *a; a = p; a[0] = 1;", UNSETTLED),
        ("SET(p[0], 1);", UNSETTLED),
        ("x = MACRO;", UNSETTLED),
    ],
)
def test_a_pointer_without_const_is_read_and_written_unless_the_body_settles_it(body, role):
    text = f"""
    #define SET(a, b) a = b
    #define MACRO p[0]++
    float r(__global const float *p) {{ return p[0]; }}
    float pick(int n, int m, __global const float *p) {{ return p[n + m]; }}
    void w(__global float *p) {{ p[0] = 1; }}
    __global float *back(__global const float *p) {{ return (__global float *) p; }}
    __kernel void k(__global float *p) {{ {body} }}
    """
    if "MACRO" not in body:
        text = text.replace("#define MACRO p[0]++", "")
    assert opencl_roles.roles(text, "k") == (role,)


def test_roles_that_the_text_does_not_settle_are_unknown():
    text = """
    #ifdef FAST
    #define IN __global const float *
    #else
    #define IN __global float *
    #endif
    __kernel void k(IN p, float *generic) {}
    #if A
    __kernel void two(__global const float *p) { float x = p[0]; }
    #else
    __kernel void two(__global float *p) { p[0] = 1; }
    #endif
    #if A
    __kernel void three(int n) {}
    #else
    __kernel void three(int n, int m) {}
    #endif
    """
    assert opencl_roles.roles(text, "k") == ("unknown", "unknown")
    assert opencl_roles.roles(text, "two") == ("read and write",)
    assert opencl_roles.roles(text, "three") is None
    assert opencl_roles.roles("__kernel void k(S float *p) { float x = *p; }", "k", "-D S=__constant") == (
        "read",
    )


def test_memory_that_a_kernel_does_not_use_and_what_its_text_does_not_settle(machine):
    text = "__kernel void one(__global float *x, __global const float *c, __global float *y) { y[0] = 1; }"
    text += "__kernel void two(__global float *y) { *y = 1; }"
    built = cl.Program(machine.context, text).build()
    one, two = cl.Kernel(built, "one"), cl.Kernel(built, "two")
    x, c, y = machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        one(machine.main, (N,), None, x, c, y)
        two(machine.main, (N,), None, y)
    first, second = steps(recording)
    assert first.accesses == (program.writes("y", 0, SIZE),)
    assert second.accesses == (program.reads("y", 0, SIZE), program.writes("y", 0, SIZE))
    told = [text for text in recording.unseen if "taken as read and written" in text]
    assert told == ["what kernel two does with argument 0: taken as read and written"]


def test_a_program_without_text_is_taken_as_reading_and_writing(machine):
    built = machine.program.get_info(cl.program_info.BINARIES)[0]
    binary = cl.Program(machine.context, machine.context.devices, [built]).build()
    scale = cl.Kernel(binary, "scale")
    x, y = machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        scale(machine.main, (N,), None, x, y)
    both = [program.reads("x", 0, SIZE), program.reads("y", 0, SIZE)]
    both += [program.writes("x", 0, SIZE), program.writes("y", 0, SIZE)]
    assert list(steps(recording)[0].accesses) == both
    assert "what kernel scale does with argument 0: taken as read and written" in recording.unseen


def test_the_compiler_is_asked_where_the_text_does_not_settle_it(machine):
    text = "#if 1\n#define IN __global const\n#else\n#define IN __global\n#endif\n" + KERNELS.replace(
        "__global const float *x", "IN float *x"
    )
    built = cl.Program(machine.context, text).build(options=["-cl-kernel-arg-info"])
    scale = cl.Kernel(built, "scale")
    x, y = machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        scale(machine.main, (N,), None, x, y)
    assert steps(recording)[0].accesses == (program.reads("x", 0, SIZE), program.writes("y", 0, SIZE))
    assert not any("taken as read" in text for text in recording.unseen)


def test_a_buffer_for_writing_only_is_not_read(machine):
    bump = machine.kernel("bump")
    y = cl.Buffer(machine.context, cl.mem_flags.WRITE_ONLY, SIZE)
    with flashnorm_lab.record() as recording:
        bump(machine.main, (N,), None, y)
    assert steps(recording)[0].accesses == (program.writes("y", 0, SIZE),)


def test_a_verdict_on_pyopencl_code_is_told_in_its_words(machine):
    scale, x, y, z = machine.kernel("scale"), machine.buffer(), machine.buffer(), machine.buffer()
    with flashnorm_lab.record() as recording:
        scale(machine.main, (N,), None, x, y)
        scale(machine.side, (N,), None, y, z)
    assert "cl.enqueue_marker(" in hazards.check(recording).report()
    assert "cp.cuda.Event(" in hazards.check(recording).report("cupy")
