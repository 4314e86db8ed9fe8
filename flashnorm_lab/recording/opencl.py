"""pyopencl's calls, as a recording sees them.

Every function of pyopencl's extension module that gives a queue work is replaced while a recording is on,
and so are the few methods that set a kernel's arguments or make the host wait. All the rest of pyopencl, its
arrays too, goes through these. They are replaced wherever the running program holds them: in modules that
have imported them by name, in closures, in objects. What holds them in another way is told in ``unseen``.

A sub-buffer is bytes of its parent; a buffer made with USE_HOST_PTR is bytes of the host's array, and so two
such buffers may share bytes. Host arrays are memory by address. Releasing a buffer is no step: OpenCL keeps
the memory until the commands that use it are done. A block of a `pyopencl.tools.MemoryPool` is handed out
again at once, and so its reuse is recorded. pyopencl makes the host wait before it gives up the event of a
copy that uses a host array, and so that is a synchronization, where the event is dropped.

A kernel's arguments count from where they are set: a recording has to begin before that. A kernel that is
given a buffer, or a sub-buffer, is taken to use all of it. Not seen, and told: what a queue was given before
the recording, what the host itself does with its arrays, and what callbacks do beside their own calls.

A map says that the host may use memory until the unmap, and not when it does. So the host counts as using it
where it first knows that the map is complete (on the map's line, if it never does), behind each command that
uses the same bytes meanwhile, and just before the unmap.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ..program import (
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
    Step,
    Stream,
    Synchronize,
    UserEvent,
    Wait,
)
from ..schedule import Access
from . import opencl_roles
from ._opencl_memory import Addresses, Memory, place
from ._swap import swap
from ._tape import Tape

MARK = "_flashnorm_lab"
"""Attribute under which a pyopencl object carries what a recording knows of it."""
END = "_flashnorm_lab_end"
"""Attribute that goes with its object, and tells that it is gone."""
CACHED = 4096

_active: Backend | None = None


class Call:
    """What a function's arguments say about the command that it gives.

    ``before``: what the host does just before. ``event``: set for a marker, which records that event.
    ``mapped``: what the host may use from here on.
    """

    __slots__ = ("accesses", "after", "before", "blocks", "category", "event", "mapped", "name", "stream")

    def __init__(
        self,
        stream: str,
        name: str,
        accesses: Iterable[Access] = (),
        after: tuple[str, ...] = (),
        category: str = "kernel",
        blocks: bool = False,
    ) -> None:
        self.stream, self.name, self.after = stream, name, after
        self.accesses = tuple(accesses)
        self.category, self.blocks = category, blocks
        self.before: list[Step] = []
        self.event = ""
        self.mapped: Mapped | None = None


class Mapped:
    """Bytes that the host may use until they are unmapped, as the recording that is on sees them."""

    __slots__ = (
        *("accesses", "done", "key", "memory", "met", "position", "source", "start", "stop", "stream"),
        *("thread", "view", "writes"),
    )

    def __init__(
        self, key: object, stream: str, memory: Memory, start: int, stop: int, writes: bool, view: str
    ) -> None:
        self.key, self.stream, self.memory, self.start, self.stop = key, stream, memory, start, stop
        self.writes, self.done, self.view = writes, False, view
        """``view``: what the host sees of the bytes, which a map that does not block has yet to put there."""
        self.position, self.thread, self.source = 0, "", ""
        self.accesses: list[Access] = []
        """What the host may do."""
        self.met: list[tuple[int, str]] = []
        """Commands given meanwhile that use the same bytes: position and thread."""


class _Kernel:
    """What a kernel's arguments are at the moment: memory, or None for a value."""

    __slots__ = ("accesses", "arguments", "count", "key", "name", "roles")

    def __init__(self, key: object, name: str, count: int) -> None:
        self.key, self.name, self.count = key, name, count
        self.arguments: dict[int, Memory | None] = {}
        self.roles: tuple[str, ...] | None = None
        self.accesses: tuple[Access, ...] | None = None


class _AtEnd:
    """Calls a method of its recording, if that is still on, when the object that holds this goes."""

    __slots__ = ("args", "key", "method", "off")

    def __init__(self, key: object, method: str, *args: Any) -> None:
        self.key, self.method, self.args, self.off = key, method, args, False

    def now(self) -> None:
        """Call it, and not again."""
        backend = _active
        if backend is not None and backend.key is self.key and not self.off:
            self.off = True
            backend.note(self.method, getattr(backend, self.method), *self.args)

    __del__ = now


class Backend:
    """The hooks in pyopencl. See `flashnorm_lab.recording.Backend`."""

    def __init__(self, recording: Tape) -> None:
        self.tape = recording
        self.cl: Any = None
        self._event_class: Any = None
        self._nanny_class: Any = None
        self.key = object()
        """Tells this recording's marks on pyopencl's objects from an earlier one's."""
        self._queues: dict[int, tuple[str, bool, Any]] = {}
        self._old_queues: set[int] = set()
        self._positions: dict[int, int] = {}
        """Where the step stands that completes an event (by its address), as long as nothing asks for it."""
        self._events: dict[int, str] = {}
        self._waited: set[str] = set()
        self._finished: dict[str, int] = {}
        self._alive: dict[int, Memory] = {}
        """Memory objects by address, as long as a Python object stands for them."""
        self._blocks: dict[int, str] = {}
        self._pools: dict[int, tuple[Any, set[int]]] = {}
        self._host = Addresses()
        self._accesses: dict[tuple[str, int, int, bool], Access] = {}
        self._launches: dict[tuple[Any, ...], Launch] = {}
        self._maps: dict[Mapped, None] = {}
        """What is mapped now."""
        self.svm_flags: dict[int, int] = {}

    def install(self) -> None:
        global _active
        self.cl = sys.modules["pyopencl"]
        self._event_class, self._nanny_class = self.cl.Event, self.cl.NannyEvent
        hooks = _hooks()
        queue = self.cl.CommandQueue
        self._old_queues = {o.int_ptr for o in gc.get_referrers(queue) if type(o) is queue}
        natives, replacements = [h.native for h in hooks], [h.replacement for h in hooks]
        for hook in hooks:
            hook.set(hook.replacement)
        _active = self
        names = {id(h.native): h.name for h in hooks}
        for native, holder in swap(natives, replacements, _own(hooks)):
            self.tape.unseen(
                f"calls of {names[id(native)].strip('_')} through {holder} that has held it since before the "
                "recording; call it by its module's or its object's name"
            )

    def remove(self) -> None:
        global _active
        _active = None
        self.note("enqueue_map_buffer", self._still_mapped)
        hooks = _hooks()
        for hook in hooks:
            hook.set(hook.native)
        # What still holds a replacement after this reaches the function behind it.
        swap([h.replacement for h in hooks], [h.native for h in hooks], _own(hooks))

    # Calls

    def command(
        self,
        name: str,
        native: Callable[..., Any],
        read: Callable[..., Call],
        wait_at: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Make a call that gives a queue work, and add it to the tape."""
        if wait_at < len(args):
            if not isinstance(args[wait_at], _PLAIN):  # an iterator would be used up
                args = (*args[:wait_at], list(args[wait_at]), *args[wait_at + 1 :])
        elif not isinstance(kwargs.get("wait_for"), _PLAIN):
            kwargs = {**kwargs, "wait_for": list(kwargs["wait_for"])}
        problem: Exception | None = None
        with self.tape.lock:
            try:
                call = read(self, *args, **kwargs)
            except Exception as found:  # the program's own call goes on, whatever happens here
                problem = found
            else:
                if not call.blocks:
                    result = native(*args, **kwargs)
                    self.note(name, self._issued, call, result)
                    return result
                position = self.tape.add(None)
        if problem is not None:
            result = native(*args, **kwargs)
            self.note(name, self._unread, result, name, problem)
            return result
        try:
            result = native(*args, **kwargs)
        except BaseException:
            self.tape.put(position, None)
            raise
        self.note(name, self._returned, call, result, position)
        return result

    def note(self, name: str, write: Callable[..., None], *args: Any) -> None:
        """Write something down. If that fails, the program goes on, and the recording says so."""
        with self.tape.lock:
            try:
                write(*args)
            except Exception as problem:
                self.tape.unseen(f"what {name.strip('_')} did at {self.tape.source()} ({problem})")

    def _unread(self, result: Any, name: str, problem: Exception) -> None:
        self.tape.unseen(f"a call of {name.strip('_')} that could not be read ({problem})")
        if isinstance(result, self._event_class):
            self._positions.pop(result.int_ptr, None)
            self._events.pop(result.int_ptr, None)

    def _issued(self, call: Call, result: Any) -> None:
        tape = self.tape
        for step in call.before:
            tape.add(step)
        position = tape.add(self._step(call))
        event = self._new_event(result, position, call.event)
        if event is not None and type(event) is not self._event_class:
            self._follow(call, event, position)
        if self._maps:
            self._meets_maps(call, position)
        if call.mapped is not None:
            self._follow_map(call.mapped, result[0], position)

    def _returned(self, call: Call, result: Any, position: int) -> None:
        """A call that made the host wait. Other threads may have made calls meanwhile."""
        tape = self.tape
        alone = len(tape) == position + 1
        tape.put(position, self._step(call, alone))
        event = self._new_event(result, position)
        if event is not None and not alone:
            self.host_waits([event])
        if self._maps:
            self._meets_maps(call, position)
        if call.mapped is not None:
            self._follow_map(call.mapped, result[0], position)

    def _step(self, call: Call, blocks: bool = False) -> Step:
        thread, source = self.tape.thread(), self.tape.source()
        if call.category == "barrier":
            return Barrier(call.stream, call.after, "", thread, source)
        if call.event:
            return Record(call.event, call.stream, thread, source)
        # A loop makes the same call over and over; its step is made once.
        touched = tuple(map(id, call.accesses))
        same = (call.name, call.stream, touched, call.after, blocks, call.category, thread, source)
        known = self._launches.get(same)
        if known is None:
            if len(self._launches) >= CACHED:
                self._launches.clear()
            launch = Launch(
                call.name,
                call.stream,
                call.accesses,
                call.after,
                "",
                blocks,
                call.category,
                -1,
                thread,
                source,
            )
            known = self._launches[same] = launch
        return known

    def _new_event(self, result: Any, position: int, token: str = "") -> Any:
        """The event of a command just given. What had its address before is gone."""
        event = result
        if type(result) is tuple:
            event = next((r for r in result if isinstance(r, self._event_class)), None)
        if not isinstance(event, self._event_class):
            return None
        address = event.int_ptr
        if address in self._events:
            self._waited.discard(self._events.pop(address))
        if token:
            self._positions.pop(address, None)
            self._events[address] = token
        else:
            self._positions[address] = position
        return event

    def _follow(self, call: Call, event: Any, position: int) -> None:
        """Something is to happen when this event goes."""
        if isinstance(event, self._nanny_class):
            setattr(event, END, _AtEnd(self.key, "lost_nanny", event.int_ptr, call.stream, position))

    def _follow_map(self, mapped: Mapped, holder: Any, position: int) -> None:
        """Mapped memory is unmapped by what holds it, or when that goes."""
        mapped.position, mapped.thread, mapped.source = position, self.tape.thread(), self.tape.source()
        mapped.accesses = self.access(mapped.memory, mapped.writes, mapped.start, mapped.stop)
        self._maps[mapped] = None
        while hasattr(holder, "base"):
            holder = holder.base
        setattr(holder, MARK, mapped)
        setattr(holder, END, _AtEnd(self.key, "lost_map", mapped))

    def lost_nanny(self, address: int, stream: str, position: int) -> None:
        """pyopencl waits for a copy that uses a host array before it gives up the copy's event."""
        if self._finished.get(stream, -1) < position:
            token = self._events.get(address) or self._name_event(address)
            # No line of the program asked for this wait, so that none is to be told that it needs it not.
            self.tape.add(Query(True, None, token, self.tape.thread(), self.tape.source()))

    def lost_map(self, mapped: Mapped) -> None:
        """A mapping that is never released is unmapped when it goes."""
        if not mapped.done:
            call = self.unmap(mapped, mapped.stream, ())
            for step in [*call.before, self._step(call)]:
                self.tape.add(step)

    def unmap(self, mapped: Mapped, stream: str, after: tuple[str, ...]) -> Call:
        """The host has used mapped memory; what it wrote goes back."""
        mapped.done = True
        self._maps.pop(mapped, None)
        known = self._uses_mapped(mapped)
        back = mapped.accesses if mapped.writes else ()
        call = Call(stream, f"unmap {mapped.memory.token}", back, after, "unmap")
        if known:
            call.before = _touches(mapped, self.tape.thread(), self.tape.source())
        return call

    def _meets_maps(self, call: Call, position: int) -> None:
        """A command may use bytes that the host may use."""
        for mapped in self._maps:
            if any(
                a.buffer == b.buffer and a.start < b.stop and b.start < a.stop and (a.writes or b.writes)
                for a in mapped.accesses
                for b in call.accesses
            ):
                mapped.met.append((position, self.tape.thread()))

    def _uses_mapped(self, mapped: Mapped) -> bool:
        """What the host may do with mapped memory up to here; whether it knows that the map is complete.

        If it does not, there is one thing wrong, on the map's line, and no more to tell.
        """
        tape = self.tape
        found = _known_at(mapped, tape)
        known, thread = found or (mapped.position, mapped.thread)
        if mapped.view:
            size = mapped.stop - mapped.start
            tape.put_behind(known, HostRead(mapped.view, 0, size, -1, thread, mapped.source))
        if not found:
            return False
        for step in _touches(mapped, thread, mapped.source):
            tape.put_behind(known, step)
        for position, at_work in mapped.met:
            if position > known:
                for step in _touches(mapped, at_work, mapped.source):
                    tape.put_behind(position, step)
        return True

    def _still_mapped(self) -> None:
        """The recording ends, and some memory has not been unmapped."""
        for mapped in list(self._maps):
            if self._uses_mapped(mapped):
                for step in _touches(mapped, self.tape.thread(), mapped.source):
                    self.tape.add(step)
            self.tape.unseen("an unmap of what is still mapped at the end", about=mapped.memory.token)
        self._maps.clear()

    # Queues and events

    def queue(self, queue: Any, ends: bool = False) -> tuple[str, bool]:
        """A queue's name, and whether it runs its commands in any order."""
        address = queue.int_ptr
        known = self._queues.get(address)
        if known is None:
            flag = self.cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
            known = self._queues[address] = self.tape.token("queue"), bool(queue.properties & flag), queue
            kind = "out-of-order" if known[1] else "non-blocking"
            self.tape.stream(known[0], Stream(kind, f"{queue.context.int_ptr:x}"), "opencl")
            if address in self._old_queues and not ends:
                self.tape.unseen("what was given to a queue before the recording", about=known[0])
        if known[0] in self.tape.unnamed:
            self.tape.look(known[0], queue, generated=True)
        return known[:2]

    def forget_queue(self, address: int) -> None:
        """A queue has been closed; its address may be another's."""
        self._queues.pop(address, None)

    def finished(self, queue: Any, position: int) -> None:
        """The host has waited for a queue, from ``position`` on."""
        tape = self.tape
        stream, _ = self.queue(queue)
        step = Synchronize(stream, None, tape.thread(), tape.source())
        if any(isinstance(s, SetEvent) for s in tape.since(position)):  # it may have waited for that
            tape.put(position, None)
            tape.add(step)
        else:  # what others have given the queue since it need not have waited for
            tape.put(position, step)
        self._finished[stream] = position

    def _name_event(self, address: int) -> str:
        """The event that a recorded step completes, now that something asks for it."""
        token = self._events[address] = self.tape.token("event")
        self.tape.amend(self._positions.pop(address), event=token)
        return token

    def event(self, event: Any) -> str | None:
        """An event's name; None for one that stands for nothing recorded."""
        address = event.int_ptr
        if isinstance(event, self.cl.UserEvent) and getattr(event, MARK, None) is not self.key:
            self._positions.pop(address, None)
            self._events.pop(address, None)
            if _native_info(event, self.cl.event_info.COMMAND_EXECUTION_STATUS) <= 0:
                return None
            self._events[address] = self.tape.token("user event")
            self.tape.add(UserEvent(self._events[address], self.tape.thread(), self.tape.source()))
            setattr(event, MARK, self.key)
        elif address in self._positions:
            self._name_event(address)
        token = self._events.get(address)
        if token is None:
            self.tape.unseen("an event from before the recording: it orders nothing here")
            return None
        if token in self.tape.unnamed:
            self.tape.look(token, event, near=True)
        return token

    def after(self, wait_for: Iterable[Any] | None) -> tuple[str, ...]:
        """The names of the events of a wait list."""
        if not wait_for:
            return ()
        names = [self.event(event) for event in wait_for]
        return tuple(dict.fromkeys(name for name in names if name is not None))

    def queue_waits(self, queue: Any, events: Iterable[Any]) -> None:
        """What a queue is given from here on waits for these events."""
        tape = self.tape
        stream, _ = self.queue(queue)
        for token in self.after(events):
            tape.add(Wait(token, stream, tape.thread(), tape.source()))

    def host_sets(self, event: Any, status: int) -> None:
        """The host has completed a user event, or made it fail."""
        tape = self.tape
        token = self._events.get(event.int_ptr)
        if token is not None:
            tape.add(SetEvent(token, tape.thread(), tape.source()))
            if status < 0:
                tape.unseen("that commands fail behind a user event that is set to an error", about=token)

    def host_waits(self, events: Iterable[Any]) -> None:
        """The host has waited for these events."""
        for event in events:
            token = self.event(event)
            if token is not None:
                self.tape.add(Synchronize(None, token, self.tape.thread(), self.tape.source()))
                self._known_done(event, token)

    def host_asked(self, event: Any, done: bool, again: bool = True) -> None:
        """The host has asked whether an event is complete; ``again``: and it counts if that was known."""
        token = self.event(event)
        if token is None or (not again and token in self._waited):
            return
        query = Query(done, None, token, self.tape.thread(), self.tape.source())
        if done or query not in self.tape.since(len(self.tape) - 2):  # who polls is often told no
            self.tape.add(query)
        if done:
            self._known_done(event, token)

    def callback(self, event: Any, function: Callable[..., Any], complete: bool) -> Callable[..., Any]:
        """What is called in the place of an event's callback: it comes behind what it is a callback of."""
        tape, giver, position = self.tape, self.tape.thread(), len(self.tape) - 1
        try:
            token = self.event(event) if complete else None
        except Exception as problem:  # the program's own call goes on
            tape.unseen(f"what a callback waits for ({problem})")
            token = None

        @functools.wraps(function)
        def called(*args: Any) -> Any:
            if _active is not self:
                return function(*args)
            with tape.callback() as thread:
                tape.put_behind(position, HandOver(thread, giver, tape.source()))
                first = tape.add(Query(True, None, token, thread)) if token is not None else None
                try:
                    return function(*args)
                finally:
                    if first is not None and not any(s.thread == thread for s in tape.since(first)):
                        tape.remove(first)  # who makes no calls needs no order

        return called

    def _known_done(self, event: Any, token: str) -> None:
        self._waited.add(token)
        end = getattr(event, END, None)
        if end is not None:
            end.off = True

    # Memory

    def memory(self, mem: Any) -> Memory:
        """What a buffer, a sub-buffer or an image stands for."""
        memory = getattr(mem, MARK, None)
        if memory is None or memory.key is not self.key:
            address = mem.int_ptr
            parent = mem.get_info(self.cl.mem_info.ASSOCIATED_MEMOBJECT)
            memory = self._alive.get(address)
            if memory is None:
                memory = self._alive[address] = self._new_memory(mem, address, parent)
            memory.holders += 1
            setattr(mem, MARK, memory)
            # The parent stays with it: as long as that is there, its address is no other's.
            setattr(mem, END, _AtEnd(self.key, "gone", address, memory, parent))
        for token in memory.tokens:
            if token in self.tape.unnamed:
                self.tape.look(token, match=self._match(memory))
        return memory

    def _match(self, memory: Memory) -> Callable[[object], bool]:
        """Whether a variable is this memory object, or for a sub-buffer its buffer, or an array on that."""
        parent = self._alive.get(memory.parent, memory)

        def match(value: object) -> bool:
            if type(value).__module__ == "pyopencl.array":
                value = getattr(value, "base_data", None)
            if not isinstance(value, self.cl.MemoryObjectHolder):
                return False
            mark = getattr(value, MARK, None)
            if mark is None or mark.key is not self.key:  # one that no call has used yet
                return memory.parent != 0 and value.int_ptr == memory.parent
            return mark is parent

        return match

    def gone(self, address: int, memory: Memory, parent: Any) -> None:
        """A Python object for a memory object is gone; with the last one, its address may be another's."""
        memory.holders -= 1
        if not memory.holders and self._alive.get(address) is memory:
            del self._alive[address]
            if address in self._blocks:
                token, tape = memory.token, self.tape
                tape.add(Free(token, "pool", None, tape.thread(), tape.source()))

    def _new_memory(self, mem: Any, address: int, parent: Any) -> Memory:
        cl, tape = self.cl, self.tape
        size, flags = mem.size, mem.flags
        if parent is not None:
            offset = mem.get_info(cl.mem_info.OFFSET)
            parts = self.memory(parent).parts(offset, offset + size)
            memory = Memory(self.key, tuple(parts), size, flags)
            memory.parent = parent.int_ptr
            return memory
        if flags & cl.mem_flags.USE_HOST_PTR:
            array = getattr(mem, "hostbuf", None)
            if array is None:
                array = mem.get_host_array((size,), "u1")
            memory = self.host_memory(array, size, flags, alone=True)
            if memory is not None:
                for token in memory.tokens:
                    tape.unseen(
                        "what the host itself does with an array that a buffer uses in place", about=token
                    )
                return memory
        if mem.type != cl.mem_object_type.BUFFER:
            token = tape.token("image")
        else:
            token = tape.token("buffer")
        if isinstance(mem, cl._cl.PooledBuffer):
            block = self._blocks.setdefault(address, f"pool block {token.split()[-1]}")
            tape.add(Allocate(token, size, 0, block, None, tape.thread(), tape.source()))
        else:
            tape.buffer(token, size)
        return Memory(self.key, ((token, 0, size),), size, flags)

    def allocated(self, pool: Any, mem: Any) -> None:
        """A pool has handed out a block."""
        self.memory(mem)
        # The pool is kept: while it is there, the addresses of its blocks are no other memory's.
        _, addresses = self._pools.setdefault(id(pool), (pool, set()))
        addresses.add(mem.int_ptr)

    def emptied(self, pool: Any) -> None:
        """A pool has given up the blocks that are not in use."""
        _, addresses = self._pools.get(id(pool), (pool, set()))
        for address in [a for a in addresses if a not in self._alive]:
            addresses.discard(address)
            self._blocks.pop(address, None)

    def host_memory(
        self, array: Any, size: int | None = None, flags: int = 0, alone: bool = False
    ) -> Memory | None:
        """A host array's bytes; None where it has no lasting place.

        New bytes count as part of all that their owner has, or, ``alone``, as memory of their own.
        """
        found = place(array)
        if found is None:
            return None
        start, stop, owner, around = found
        if size is not None:
            stop = start + size
        around = (start, stop) if alone else around
        parts = tuple(self._host.parts(start, stop, around, owner, self._new_region))
        memory = Memory(self.key, parts, stop - start, flags)
        if owner is not None:  # memory that is not an array's own could be another's when the name is read
            for token in memory.tokens:
                self.tape.look(token, array, owner)
        return memory

    def _new_region(self, size: int) -> str:
        token = self.tape.token("host memory")
        self.tape.buffer(token, size)
        return token

    def shared(self, svm: Any, size: int | None = None) -> Memory:
        """Shared virtual memory: host memory by its address."""
        self.tape.unseen("what the host itself does with shared virtual memory, and when that is freed")
        size = svm.size if size is None else size
        if size is None:
            raise ValueError("shared virtual memory of unknown size")
        inner = getattr(svm, "mem", None)
        if inner is not None:
            memory = self.host_memory(inner, size)
            if memory is not None:
                return memory
        start = svm.svm_ptr
        around = start, start + (svm.size or size)
        memory = Memory(
            self.key, tuple(self._host.parts(start, start + size, around, None, self._new_region)), size, 0
        )
        if getattr(getattr(svm, END, None), "key", None) is not self.key:
            setattr(svm, END, _AtEnd(self.key, "svm_gone", start))
        for token in memory.tokens:
            self.tape.look(token, svm)
        return memory

    def svm_gone(self, start: int) -> None:
        """Shared memory is freed."""
        self._host.forget(start)

    def access(self, memory: Memory, writes: bool, start: int = 0, stop: int | None = None) -> list[Access]:
        """Bytes of a memory object, read or written."""
        found = []
        for part in memory.parts(start, memory.size if stop is None else stop):
            key = (*part, writes)
            access = self._accesses.get(key)
            if access is None:
                if len(self._accesses) >= CACHED:
                    self._accesses.clear()
                access = self._accesses[key] = Access(*key)
            found.append(access)
        return found

    # Kernels

    def _kernel(self, kernel: Any) -> _Kernel:
        known = getattr(kernel, MARK, None)
        if known is None or known.key is not self.key:
            known = _Kernel(self.key, kernel.function_name, kernel.num_args)
            setattr(kernel, MARK, known)
        return known

    def set_arguments(self, kernel: Any, pairs: Iterable[tuple[int, Any]]) -> None:
        """A kernel has been given arguments: memory or values."""
        known = self._kernel(kernel)
        for index, argument in pairs:
            memory = None
            try:
                if isinstance(argument, self.cl.MemoryObjectHolder):
                    memory = self.memory(argument)
                elif isinstance(argument, self.cl.SVMPointer):
                    memory = self.shared(argument)
            except Exception:  # what the kernel has there now is not known
                known.accesses = None
                known.arguments.pop(index, None)
                raise
            if memory is not known.arguments.get(index, self):
                known.arguments[index] = memory
                known.accesses = None

    def set_values(self, kernel: Any, indices: Iterable[int]) -> None:
        """A kernel has been given plain values."""
        known = self._kernel(kernel)
        if len(known.arguments) < known.count:
            known.arguments.update(dict.fromkeys(indices))

    def cloned(self, kernel: Any, clone: Any) -> None:
        """A clone starts with the arguments that its kernel has."""
        known, new = self._kernel(kernel), self._kernel(clone)
        new.arguments, new.roles = dict(known.arguments), known.roles

    def touches(self, kernel: Any) -> tuple[str, tuple[Access, ...]]:
        """A kernel's name, and what it reads and writes with the arguments that it has now."""
        known = self._kernel(kernel)
        if known.accesses is None:
            known.accesses = self._touched(kernel, known)
        if len(known.arguments) < known.count:
            roles = known.roles or ()
            unset = [i for i, r in enumerate(roles) if i not in known.arguments and r != opencl_roles.VALUE]
            if unset:
                self.tape.unseen(
                    f"what kernel {known.name} touches through arguments that were not set in the recording: "
                    f"{', '.join(map(str, unset))}"
                )
        return known.name, known.accesses

    def _touched(self, kernel: Any, known: _Kernel) -> tuple[Access, ...]:
        if known.roles is None:
            known.roles = self._roles(kernel)
        reads: list[Access] = []
        writes: list[Access] = []
        for index, memory in known.arguments.items():
            if memory is None:
                continue
            role = known.roles[index]
            if role == opencl_roles.NOTHING:
                continue
            if role in (opencl_roles.UNKNOWN, opencl_roles.VALUE, opencl_roles.UNSETTLED):
                self.tape.unseen(
                    f"what kernel {known.name} does with argument {index}: taken as read and written"
                )
            # A kernel must not read a buffer that was made for writing only.
            unread = (
                role in (opencl_roles.BOTH, opencl_roles.UNSETTLED)
                and memory.flags & self.cl.mem_flags.WRITE_ONLY
            )
            if role != opencl_roles.WRITE and not unread:
                reads += self.access(memory, False)
            if role != opencl_roles.READ:
                writes += self.access(memory, True)
        return tuple(dict.fromkeys(reads + writes))

    def _roles(self, kernel: Any) -> tuple[str, ...]:
        """The role of each argument: from the text, or else from the compiler."""
        info = self.cl.program_build_info
        program = kernel.get_info(self.cl.kernel_info.PROGRAM)
        source = program.source or self._kept_source(program.int_ptr)
        options = program.get_build_info(program.devices[0], info.OPTIONS)
        found = opencl_roles.roles(source, kernel.function_name, options) if source else None
        if found is None or len(found) != kernel.num_args:
            found = (opencl_roles.UNKNOWN,) * kernel.num_args
        return tuple(
            self._compilers_role(kernel, i) if role == opencl_roles.UNKNOWN else role
            for i, role in enumerate(found)
        )

    def _compilers_role(self, kernel: Any, index: int) -> str:
        cl, info = self.cl, self.cl.kernel_arg_info
        try:
            address = kernel.get_arg_info(index, info.ADDRESS_QUALIFIER)
            access = kernel.get_arg_info(index, info.ACCESS_QUALIFIER)
            qualifiers = kernel.get_arg_info(index, info.TYPE_QUALIFIER)
        except cl.Error:
            return opencl_roles.UNKNOWN
        return opencl_roles.compilers_role(
            cl.kernel_arg_address_qualifier.to_string(address),
            cl.kernel_arg_access_qualifier.to_string(access),
            bool(qualifiers & cl.kernel_arg_type_qualifier.CONST),
        )

    def _kept_source(self, address: int) -> str:
        """The text of a program that pyopencl has made from its cache of binaries, if that is still there."""
        for program in gc.get_objects():
            if type(program) is self.cl.Program and getattr(program._prg, "int_ptr", None) == address:
                source = program.__dict__.get("_source", "")
                if source:
                    return source if isinstance(source, str) else source.decode(errors="replace")
        return ""


_PLAIN = (type(None), list, tuple)


def _touches(mapped: Mapped, thread: str, source: str) -> list[Step]:
    """The host uses mapped memory."""
    touch = HostWrite if mapped.writes else HostRead
    return [touch(a.buffer, a.start, a.stop, -1, thread, source) for a in mapped.accesses]


def _known_at(mapped: Mapped, tape: Tape) -> tuple[int, str] | None:
    """Where, and in which thread, the host first knows that a map is complete."""
    in_order = tape.in_order(mapped.stream)
    behind = {mapped.stream} if in_order else set()  # queues whose next command comes after the map
    holding = {mapped.stream}  # queues that have something behind it
    events: set[str] = set()  # complete only when it is
    for position, step in tape.from_on(mapped.position):
        match step:
            case Launch() | Barrier():
                everything = isinstance(step, Barrier) and not step.after and step.stream in holding
                after = position == mapped.position or everything or not events.isdisjoint(step.after)
                if after or step.stream in behind:
                    holding.add(step.stream)
                    events.add(step.event)
                    if isinstance(step, Barrier) or tape.in_order(step.stream):
                        behind.add(step.stream)
                    if isinstance(step, Launch) and step.blocks:
                        return position, step.thread
                else:
                    events.discard(step.event)
                events.discard("")
            case Record():
                (events.add if step.stream in holding else events.discard)(step.event)
            case Wait() if step.event in events:
                behind.add(step.stream)
                holding.add(step.stream)
            case Synchronize() | Query():
                if isinstance(step, Query) and not step.done:
                    continue
                if step.event in events or step.stream in holding:
                    return position, step.thread
    return None


# What stands in the place of pyopencl's functions


class _Hook:
    """A function or method of pyopencl's extension module, and what stands in its place."""

    __slots__ = ("attribute", "name", "native", "owner", "replacement")

    def __init__(self, name: str, make: Callable[[Any], Callable[..., Any]]) -> None:
        self.name = name
        self.owner = sys.modules["pyopencl"]._cl
        *class_name, self.attribute = name.split(".")
        for part in class_name:
            self.owner = getattr(self.owner, part)
        self.native = self.owner.__dict__[self.attribute]
        self.replacement = functools.wraps(self.native)(make(self.native))
        del self.replacement.__wrapped__  # it would hold what is being replaced

    def set(self, function: Any) -> None:
        setattr(self.owner, self.attribute, function)


@functools.cache
def _hooks() -> tuple[_Hook, ...]:
    """All of them, made once: a replacement that something keeps after a recording serves the next one."""
    from ._opencl_calls import AROUND, COMMANDS, other

    native = sys.modules["pyopencl"]._cl
    known = {name: command(name, read) for name, read in COMMANDS.items()}
    known |= {name: around(seen) for name, seen in AROUND.items()}
    for name in dir(native):
        if "enqueue" in name and name not in known and type(getattr(native, name)).__name__ == "nb_func":
            known[name] = command(name, other(name))
    return tuple(_Hook(name, make) for name, make in known.items() if _exists(native, name))


def _exists(native: Any, name: str) -> bool:
    owner, _, attribute = name.rpartition(".")
    return attribute in getattr(getattr(native, owner, None) if owner else native, "__dict__", ())


def command(name: str, read: Callable[..., Call]) -> Callable[[Any], Callable[..., Any]]:
    """What makes the replacement of a function that gives a queue work; ``read`` reads its arguments."""
    parameters = list(inspect.signature(read).parameters)
    wait_at = parameters.index("wait_for") - 1 if "wait_for" in parameters else sys.maxsize

    def make(native: Any) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            backend = _active
            if backend is None:
                return native(*args, **kwargs)
            return backend.command(name, native, read, wait_at, args, kwargs)

        return replacement

    return make


def around(seen: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """What makes the replacement of any other function: ``seen`` is given the function and calls it."""

    def make(native: Any) -> Callable[..., Any]:
        def replacement(*args: Any, **kwargs: Any) -> Any:
            backend = _active
            if backend is None:
                return native(*args, **kwargs)
            return seen(backend, native, *args, **kwargs)

        return replacement

    return make


def _own(hooks: Iterable[_Hook]) -> list[Any]:
    return [holder for h in hooks for holder in (h, *h.replacement.__closure__)]


def _native_info(event: Any, info: int) -> Any:
    """An event's own words, which is no question of the program's."""
    native = next(h.native for h in _hooks() if h.name == "Event.get_info")
    return native(event, info)
