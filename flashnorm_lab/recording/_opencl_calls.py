"""What the arguments of pyopencl's functions say: one reader for each, with that function's parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from ..schedule import Access
from ._opencl_memory import Memory, nbytes
from .opencl import END, MARK, Backend, Call, Mapped

ROWS = 256
"""Rows of a rectangular copy that are told apart; beyond, it is taken as all bytes from first to last."""

Range = tuple[int, int]
Side = tuple[Memory | None, list[Range]]
"""One side of a copy: memory and byte ranges; None for a host value without a lasting place."""


def _nd_range(
    backend: Backend,
    queue: Any,
    kernel: Any,
    global_work_size: Any,
    local_work_size: Any = None,
    global_work_offset: Any = None,
    wait_for: Any = None,
    g_times_l: bool = False,
    allow_empty_ndrange: bool = False,
) -> Call:
    stream, _ = backend.queue(queue)
    name, accesses = backend.touches(kernel)
    if allow_empty_ndrange and 0 in tuple(global_work_size):
        accesses = ()
    return Call(stream, name, accesses, backend.after(wait_for))


# Copies and fills


def _copy(
    backend: Backend, queue: Any, source: Side, target: Side, wait_for: Any, blocks: Any = False
) -> Call:
    stream, _ = backend.queue(queue)
    accesses = []
    for writes, (memory, ranges) in enumerate((source, target)):
        if memory is not None:
            for start, stop in ranges:
                accesses += backend.access(memory, bool(writes), start, stop)
    ends = [memory.token if memory is not None else "a value" for memory, _ in (source, target)]
    name = f"copy {ends[0]} to {ends[1]}"
    return Call(stream, name, accesses, backend.after(wait_for), "copy", bool(blocks))


def _host(backend: Backend, array: Any, blocks: Any) -> Memory | None:
    memory = backend.host_memory(array)
    if memory is not None and not blocks:
        for token in memory.tokens:
            backend.tape.unseen(
                "what the host itself does with an array that a copy uses without blocking", about=token
            )
    return memory


def _whole(memory: Memory | None) -> Side:
    return memory, [(0, memory.size)] if memory is not None else []


def _read_buffer(
    backend: Backend,
    queue: Any,
    mem: Any,
    hostbuf: Any,
    src_offset: int = 0,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    source = backend.memory(mem), [(src_offset, src_offset + nbytes(hostbuf))]
    target = _whole(_host(backend, hostbuf, is_blocking))
    return _copy(backend, queue, source, target, wait_for, is_blocking)


def _write_buffer(
    backend: Backend,
    queue: Any,
    mem: Any,
    hostbuf: Any,
    dst_offset: int = 0,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    source = _whole(_host(backend, hostbuf, is_blocking))
    target = backend.memory(mem), [(dst_offset, dst_offset + nbytes(hostbuf))]
    return _copy(backend, queue, source, target, wait_for, is_blocking)


def _copy_buffer(
    backend: Backend,
    queue: Any,
    src: Any,
    dst: Any,
    byte_count: int = -1,
    src_offset: int = 0,
    dst_offset: int = 0,
    wait_for: Any = None,
) -> Call:
    source, target = backend.memory(src), backend.memory(dst)
    size = byte_count if byte_count >= 0 else min(source.size, target.size)
    return _copy(
        backend,
        queue,
        (source, [(src_offset, src_offset + size)]),
        (target, [(dst_offset, dst_offset + size)]),
        wait_for,
    )


def _read_buffer_rect(
    backend: Backend,
    queue: Any,
    mem: Any,
    hostbuf: Any,
    buffer_origin: Any,
    host_origin: Any,
    region: Any,
    buffer_pitches: Any = None,
    host_pitches: Any = None,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    source = backend.memory(mem), _rows(backend, buffer_origin, region, buffer_pitches)
    target = _host(backend, hostbuf, is_blocking), _rows(backend, host_origin, region, host_pitches)
    return _copy(backend, queue, source, target, wait_for, is_blocking)


def _write_buffer_rect(
    backend: Backend,
    queue: Any,
    mem: Any,
    hostbuf: Any,
    buffer_origin: Any,
    host_origin: Any,
    region: Any,
    buffer_pitches: Any = None,
    host_pitches: Any = None,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    source = _host(backend, hostbuf, is_blocking), _rows(backend, host_origin, region, host_pitches)
    target = backend.memory(mem), _rows(backend, buffer_origin, region, buffer_pitches)
    return _copy(backend, queue, source, target, wait_for, is_blocking)


def _copy_buffer_rect(
    backend: Backend,
    queue: Any,
    src: Any,
    dst: Any,
    src_origin: Any,
    dst_origin: Any,
    region: Any,
    src_pitches: Any = None,
    dst_pitches: Any = None,
    wait_for: Any = None,
) -> Call:
    source = backend.memory(src), _rows(backend, src_origin, region, src_pitches)
    target = backend.memory(dst), _rows(backend, dst_origin, region, dst_pitches)
    return _copy(backend, queue, source, target, wait_for)


def _rows(backend: Backend, origin: Any, region: Any, pitches: Any) -> list[Range]:
    """The byte ranges of a box in a buffer."""
    x, y, z = (*origin, 0, 0, 0)[:3]
    width, height, depth = (*region, 1, 1, 1)[:3]
    row, plane = (*(pitches or ()), 0, 0)[:2]
    row = row or width
    plane = plane or row * height
    first = z * plane + y * row + x
    if (height == 1 or row == width) and (depth == 1 or plane == width * height):
        return [(first, first + width * height * depth)]
    starts = [first + k * plane + j * row for k in range(depth) for j in range(height)]
    if len(starts) > ROWS:
        backend.tape.unseen("the gaps between the rows of a large rectangular copy: taken as copied too")
        return [(first, starts[-1] + width)]
    return [(start, start + width) for start in starts]


def _fill_buffer(
    backend: Backend, queue: Any, mem: Any, pattern: Any, offset: int, size: int, wait_for: Any = None
) -> Call:
    stream, _ = backend.queue(queue)
    memory = backend.memory(mem)
    accesses = backend.access(memory, True, offset, offset + size)
    return Call(stream, f"fill {memory.token}", accesses, backend.after(wait_for), "fill")


def _migrate(backend: Backend, queue: Any, mem_objects: Any, flags: int = 0, wait_for: Any = None) -> Call:
    stream, _ = backend.queue(queue)
    single = isinstance(mem_objects, backend.cl.MemoryObjectHolder)
    accesses = []
    if flags & backend.cl.mem_migration_flags.CONTENT_UNDEFINED:
        for mem in [mem_objects] if single else mem_objects:
            accesses += backend.access(backend.memory(mem), True)
    return Call(stream, "migrate", accesses, backend.after(wait_for), "migrate")


# Maps


def _map_buffer(
    backend: Backend,
    queue: Any,
    buf: Any,
    flags: int,
    offset: int,
    shape: Any,
    dtype: Any,
    order: Any = "C",
    strides: Any = None,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    import numpy as np

    size = np.dtype(dtype).itemsize
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if strides is None:
        size *= math.prod(sizes)
    else:
        size += sum((n - 1) * abs(step) for n, step in zip(sizes, strides, strict=True))
    return _map(backend, queue, backend.memory(buf), flags, (offset, offset + size), wait_for, is_blocking)


def _map_image(
    backend: Backend,
    queue: Any,
    img: Any,
    flags: int,
    origin: Any,
    region: Any,
    shape: Any,
    dtype: Any,
    order: Any = "C",
    strides: Any = None,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    memory = _image(backend, img)
    return _map(backend, queue, memory, flags, (0, memory.size), wait_for, is_blocking)


def _map(
    backend: Backend, queue: Any, memory: Memory, flags: int, span: Range, wait_for: Any, blocks: Any
) -> Call:
    stream, _ = backend.queue(queue)
    bits = backend.cl.map_flags
    invalidates = flags & bits.WRITE_INVALIDATE_REGION
    accesses = [] if invalidates else backend.access(memory, False, *span)
    backend.tape.unseen(
        "when the host uses memory that is mapped: taken as from where it knows of the map to the unmap",
        about=memory.token,
    )
    view = ""
    if not blocks:  # what the host sees is there only when the map is complete
        view = backend.tape.token("mapped memory")
        backend.tape.buffer(view, span[1] - span[0])
        accesses = [*accesses, Access(view, 0, span[1] - span[0], True)]
    call = Call(stream, f"map {memory.token}", accesses, backend.after(wait_for), "map", bool(blocks))
    call.mapped = Mapped(backend.key, stream, memory, *span, bool(flags & bits.WRITE or invalidates), view)
    return call


def _release_map(backend: Backend, held: Any, queue: Any = None, wait_for: Any = None) -> Call:
    mapped = getattr(held, MARK, None)
    if mapped is None or mapped.key is not backend.key:
        raise ValueError("it was mapped before the recording")
    stream = mapped.stream if queue is None else backend.queue(queue)[0]
    return backend.unmap(mapped, stream, backend.after(wait_for))


# Order


def _marker(backend: Backend, queue: Any, wait_for: Any = None) -> Call:
    stream, _ = backend.queue(queue)
    call = Call(stream, "marker", (), backend.after(wait_for), "marker")
    if not wait_for:  # it stands for all before it
        call.event = backend.tape.token("event")
    return call


def _barrier(backend: Backend, queue: Any, wait_for: Any = None) -> Call:
    stream, any_order = backend.queue(queue)
    after = backend.after(wait_for)
    # A barrier behind nothing but events that were never seen orders nothing that was seen.
    category = "marker" if any_order and wait_for and not after else "barrier"
    return Call(stream, "barrier", (), after, category)


# Images, taken as a whole


def _image(backend: Backend, image: Any) -> Memory:
    memory = backend.memory(image)
    backend.tape.unseen("which part of an image is used: taken as all of it", about=memory.token)
    return memory


def _read_image(
    backend: Backend,
    queue: Any,
    mem: Any,
    origin: Any,
    region: Any,
    hostbuf: Any,
    row_pitch: int = 0,
    slice_pitch: int = 0,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    source, target = _whole(_image(backend, mem)), _whole(_host(backend, hostbuf, is_blocking))
    return _copy(backend, queue, source, target, wait_for, is_blocking)


def _write_image(
    backend: Backend,
    queue: Any,
    mem: Any,
    origin: Any,
    region: Any,
    hostbuf: Any,
    row_pitch: int = 0,
    slice_pitch: int = 0,
    wait_for: Any = None,
    is_blocking: Any = True,
) -> Call:
    source, target = _whole(_host(backend, hostbuf, is_blocking)), _whole(_image(backend, mem))
    return _copy(backend, queue, source, target, wait_for, is_blocking)


def _copy_image(
    backend: Backend,
    queue: Any,
    src: Any,
    dest: Any,
    src_origin: Any,
    dest_origin: Any,
    region: Any,
    wait_for: Any = None,
) -> Call:
    source, target = _whole(_image(backend, src)), _whole(_image(backend, dest))
    return _copy(backend, queue, source, target, wait_for)


def _copy_image_to_buffer(
    backend: Backend,
    queue: Any,
    src: Any,
    dest: Any,
    origin: Any,
    region: Any,
    offset: int,
    wait_for: Any = None,
) -> Call:
    target = backend.memory(dest)
    return _copy(backend, queue, _whole(_image(backend, src)), (target, [(offset, target.size)]), wait_for)


def _copy_buffer_to_image(
    backend: Backend,
    queue: Any,
    src: Any,
    dest: Any,
    offset: int,
    origin: Any,
    region: Any,
    wait_for: Any = None,
) -> Call:
    source = backend.memory(src)
    return _copy(backend, queue, (source, [(offset, source.size)]), _whole(_image(backend, dest)), wait_for)


def _fill_image(
    backend: Backend, queue: Any, mem: Any, color: Any, origin: Any, region: Any, wait_for: Any = None
) -> Call:
    stream, _ = backend.queue(queue)
    memory = _image(backend, mem)
    return Call(stream, f"fill {memory.token}", backend.access(memory, True), backend.after(wait_for), "fill")


# Shared virtual memory


def _svm_memcpy(
    backend: Backend,
    queue: Any,
    is_blocking: Any,
    dst: Any,
    src: Any,
    wait_for: Any = None,
    byte_count: int | None = None,
) -> Call:
    if byte_count is None:
        byte_count = min(s for s in (dst.size, src.size) if s is not None)
    source, target = backend.shared(src, byte_count), backend.shared(dst, byte_count)
    return _copy(backend, queue, _whole(source), _whole(target), wait_for, is_blocking)


def _svm_memfill(
    backend: Backend, queue: Any, dst: Any, pattern: Any, byte_count: int | None = None, wait_for: Any = None
) -> Call:
    stream, _ = backend.queue(queue)
    memory = backend.shared(dst, byte_count)
    return Call(stream, f"fill {memory.token}", backend.access(memory, True), backend.after(wait_for), "fill")


def _svm_map(
    backend: Backend,
    queue: Any,
    is_blocking: Any,
    flags: int,
    svm: Any,
    wait_for: Any = None,
    size: int | None = None,
) -> Call:
    stream, _ = backend.queue(queue)
    memory = backend.shared(svm, size)
    backend.svm_flags[svm.svm_ptr] = flags
    accesses = backend.access(memory, False)
    return Call(stream, f"map {memory.token}", accesses, backend.after(wait_for), "map", bool(is_blocking))


def _svm_unmap(backend: Backend, queue: Any, svm: Any, wait_for: Any = None) -> Call:
    stream, _ = backend.queue(queue)
    memory = backend.shared(svm)
    bits = backend.cl.map_flags
    writes = backend.svm_flags.pop(svm.svm_ptr, bits.WRITE) & (bits.WRITE | bits.WRITE_INVALIDATE_REGION)
    accesses = backend.access(memory, True) if writes else ()
    return Call(stream, f"unmap {memory.token}", accesses, backend.after(wait_for), "unmap")


def _svm_migrate(backend: Backend, queue: Any, svms: Any, flags: Any = None, wait_for: Any = None) -> Call:
    stream, _ = backend.queue(queue)
    return Call(stream, "migrate", (), backend.after(wait_for), "migrate")


def _svm_release(backend: Backend, svm: Any, queue: Any = None, wait_for: Any = None) -> Call:
    memory = backend.shared(svm)
    stream, _ = backend.queue(svm._queue if queue is None else queue)
    return Call(stream, f"free {memory.token}", backend.access(memory, True), backend.after(wait_for), "free")


def other(name: str) -> Callable[..., Call]:
    """How a function is read of which only the name is known."""

    def read(backend: Backend, *args: Any, wait_for: Any = None, **kwargs: Any) -> Call:
        queue = next(a for a in (*args, *kwargs.values()) if isinstance(a, backend.cl.CommandQueue))
        backend.tape.unseen(f"what {name.strip('_')} touches")
        return Call(backend.queue(queue)[0], name.strip("_"), (), backend.after(wait_for), "other")

    return read


COMMANDS: dict[str, Callable[..., Call]] = {
    "enqueue_nd_range_kernel": _nd_range,
    "_enqueue_read_buffer": _read_buffer,
    "_enqueue_write_buffer": _write_buffer,
    "_enqueue_copy_buffer": _copy_buffer,
    "_enqueue_read_buffer_rect": _read_buffer_rect,
    "_enqueue_write_buffer_rect": _write_buffer_rect,
    "_enqueue_copy_buffer_rect": _copy_buffer_rect,
    "_enqueue_fill_buffer": _fill_buffer,
    "enqueue_migrate_mem_objects": _migrate,
    "enqueue_map_buffer": _map_buffer,
    "enqueue_map_image": _map_image,
    "MemoryMap.release": _release_map,
    "_enqueue_marker": _marker,
    "_enqueue_marker_with_wait_list": _marker,
    "_enqueue_barrier": _barrier,
    "_enqueue_barrier_with_wait_list": _barrier,
    "_enqueue_read_image": _read_image,
    "_enqueue_write_image": _write_image,
    "_enqueue_copy_image": _copy_image,
    "_enqueue_copy_image_to_buffer": _copy_image_to_buffer,
    "_enqueue_copy_buffer_to_image": _copy_buffer_to_image,
    "enqueue_fill_image": _fill_image,
    "_enqueue_svm_memcpy": _svm_memcpy,
    "_enqueue_svm_memfill": _svm_memfill,
    "_enqueue_svm_map": _svm_map,
    "_enqueue_svm_unmap": _svm_unmap,
    "_enqueue_svm_migrate_mem": _svm_migrate,
    "SVMAllocation.enqueue_release": _svm_release,
}
"""What gives a queue work. Of any other ``enqueue`` function only the call itself is recorded."""


# What is seen beside commands


def _finish(backend: Backend, native: Any, queue: Any) -> None:
    backend.note("finish", backend.queue, queue, True)
    position = backend.tape.add(None)
    try:
        native(queue)
    except BaseException:
        backend.tape.put(position, None)
        raise
    backend.note("finish", backend.finished, queue, position)


def _finalize(backend: Backend, native: Any, queue: Any) -> None:
    address = queue.int_ptr
    native(queue)
    backend.forget_queue(address)


def _queue_waits(backend: Backend, native: Any, queue: Any, wait_for: Any = None) -> None:
    events = list(wait_for or ())
    with backend.tape.lock:
        native(queue, events)
        backend.note("enqueue_wait_for_events", backend.queue_waits, queue, events)


def _wait(backend: Backend, native: Any, event: Any) -> None:
    native(event)
    backend.note("Event.wait", backend.host_waits, [event])


def _wait_for_events(backend: Backend, native: Any, events: Iterable[Any]) -> None:
    events = list(events)
    native(events)
    backend.note("wait_for_events", backend.host_waits, events)


def _event_info(backend: Backend, native: Any, event: Any, info: int) -> Any:
    value = native(event, info)
    if info == backend.cl.event_info.COMMAND_EXECUTION_STATUS and value >= 0:
        done = value == backend.cl.command_execution_status.COMPLETE
        backend.note("Event.get_info", backend.host_asked, event, done)
    return value


def _profiling_info(backend: Backend, native: Any, event: Any, info: int) -> Any:
    value = native(event, info)
    if info == backend.cl.profiling_info.END:  # which is there only when the command is complete
        backend.note("Event.get_profiling_info", backend.host_asked, event, True, False)
    return value


def _set_callback(backend: Backend, native: Any, event: Any, kind: int, function: Any) -> Any:
    backend.tape.unseen("what an event's callback does beside its calls (Event.set_callback)")
    complete = kind == backend.cl.command_execution_status.COMPLETE
    with backend.tape.lock:
        wrapped = backend.callback(event, function, complete)
        return native(event, kind, wrapped)


def _set_status(backend: Backend, native: Any, event: Any, status: int) -> None:
    with backend.tape.lock:  # what goes on because of it comes later
        backend.note("UserEvent.set_status", backend.event, event)
        native(event, status)
        backend.note("UserEvent.set_status", backend.host_sets, event, status)


def _set_arguments(backend: Backend, native: Any, kernel: Any, pairs: tuple[Any, ...]) -> None:
    native(kernel, pairs)
    backend.note("Kernel.set_args", backend.set_arguments, kernel, zip(pairs[::2], pairs[1::2], strict=True))


def _set_values(backend: Backend, native: Any, kernel: Any, pairs: tuple[Any, ...]) -> None:
    native(kernel, pairs)
    backend.note("Kernel.set_args", backend.set_values, kernel, pairs[::2])


def _set_packed_values(backend: Backend, native: Any, kernel: Any, triples: tuple[Any, ...]) -> None:
    native(kernel, triples)
    backend.note("Kernel.set_args", backend.set_values, kernel, triples[::3])


def _set_argument(backend: Backend, native: Any, kernel: Any, arg_index: int, arg: Any) -> None:
    native(kernel, arg_index, arg)
    backend.note("Kernel.set_arg", backend.set_arguments, kernel, [(arg_index, arg)])


def _clone(backend: Backend, native: Any, kernel: Any) -> Any:
    clone = native(kernel)
    backend.note("Kernel.clone", backend.cloned, kernel, clone)
    return clone


def _allocate(backend: Backend, native: Any, pool: Any, size: int) -> Any:
    with backend.tape.lock:
        mem = native(pool, size)
        backend.note("MemoryPool.allocate", backend.allocated, pool, mem)
    return mem


def _free_held(backend: Backend, native: Any, pool: Any) -> None:
    with backend.tape.lock:
        native(pool)
        backend.note("MemoryPool.free_held", backend.emptied, pool)


def _release_memory(backend: Backend, native: Any, mem: Any) -> None:
    native(mem)
    end = getattr(mem, END, None)
    if end is not None:
        end.now()


AROUND: dict[str, Callable[..., Any]] = {
    "CommandQueue.finish": _finish,
    "CommandQueue._finalize": _finalize,
    "_enqueue_wait_for_events": _queue_waits,
    "wait_for_events": _wait_for_events,
    "Event.wait": _wait,
    "Event.get_info": _event_info,
    "Event.get_profiling_info": _profiling_info,
    "Event.set_callback": _set_callback,
    "UserEvent.set_status": _set_status,
    "Kernel._set_arg_multi": _set_arguments,
    "Kernel._set_arg_buf_multi": _set_values,
    "Kernel._set_arg_buf_pack_multi": _set_packed_values,
    "Kernel.set_arg": _set_argument,
    "Kernel.clone": _clone,
    "MemoryPool.allocate": _allocate,
    "MemoryPool.__call__": _allocate,
    "MemoryPool.free_held": _free_held,
    "MemoryPool.stop_holding": _free_held,
    "MemoryObject.release": _release_memory,
    "PooledBuffer.release": _release_memory,
}
"""What is seen beside commands: each is given pyopencl's own function and calls it."""
