"""CuPy's streams, events, captures and graphs: which they are, and what is asked of them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..program import BeginCapture, EndCapture, GraphLaunch, Query, Record, Stream, Synchronize, Wait
from ._assigned import assigned
from ._cupy_now import listener, now

if TYPE_CHECKING:
    from .cupy import Backend


class Streams:
    """Names for streams and events, by the addresses that CUDA has for them, and the steps they take."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.tape = backend, backend.tape
        cuda = backend.cupy.cuda
        self.cuda = cuda
        self.current: Callable[[], Any] = cuda.get_current_stream
        runtime = cuda.runtime
        self._special: dict[int, Any] = {0: 0, runtime.streamLegacy: 0, runtime.streamPerThread: "per-thread"}
        self._streams: dict[Any, str] = {}
        self._events: dict[int, str] = {}
        self._captures: dict[int, str] = {}
        self._device: int | None = None

    def install(self) -> None:
        backend, cuda = self.backend, self.cuda
        backend.after(cuda.Stream, "__init__", self._made, within=True)
        for cls in (cuda.Stream, cuda.ExternalStream):
            backend.after(cls, "synchronize", lambda _, s: self.synchronized(stream=self.of(s)))
            backend.after(cls, "record", self._recorded)
            backend.after(cls, "wait_event", lambda _, s, event: self.waited(self.of(s), self.event(event)))
            backend.after(cls, "launch_host_func", self._host_function)
            backend.after(cls, "add_callback", self._host_function)
            backend.after(cls, "begin_capture", self._capture_began)
            backend.after(cls, "end_capture", self._capture_ended, failed=self._capture_failed, replaces=True)
            backend.after_property(cls, "done", lambda done, s: self.queried(done, stream=self.of(s)))
        event = cuda.Event
        backend.after(event, "__init__", self._event_made, within=True)
        backend.after(event, "record", self._event_recorded)
        backend.after(event, "synchronize", lambda _, e: self.synchronized(event=self.event(e)))
        backend.after_property(event, "done", lambda done, e: self.queried(done, event=self.event(e)))
        for module in (cuda, getattr(cuda, "device", None)):
            if hasattr(module, "Device"):
                backend.replace(module, "Device", seen_device)

    # Steps

    def synchronized(self, stream: str | None = None, event: str | None = None) -> None:
        self.backend.add(Synchronize(stream, event, *self.backend.where()))

    def queried(self, done: Any, stream: str | None = None, event: str | None = None) -> None:
        self.backend.add(Query(bool(done), stream, event, *self.backend.where()))

    def recorded(self, event: str, stream: str) -> None:
        self.backend.add(Record(event, stream, *self.backend.where()))

    def waited(self, stream: str, event: str) -> None:
        self.backend.add(Wait(event, stream, *self.backend.where()))

    # Streams

    def of(self, stream: Any = None) -> str:
        """A stream's name; with None, the current stream's. ``stream``: CuPy's object, or its address."""
        if stream is None:
            stream = self.current()
        ptr = stream if isinstance(stream, int) else stream.ptr
        key = self._special.get(ptr, ptr)
        if key == "per-thread":
            key = key, self.tape.thread()
        token = self._streams.get(key)
        if token is None:
            token = self._new(key, stream)
        if token in self.tape.unnamed and not isinstance(stream, int):
            self.tape.look(token, stream)
        return token

    def _new(self, key: Any, stream: Any) -> str:
        token = self._streams[key] = self.tape.token("stream")
        if key == 0:
            self.tape.call(token, "default stream")
            kind = "legacy"
        elif isinstance(key, tuple):
            thread = key[1]
            name = "per-thread stream" if thread == "host" else f"per-thread stream of {thread}"
            self.tape.call(token, name)
            kind = "per-thread"
        else:
            kind = self._kind(token, key, stream)
        self.tape.stream(token, Stream(kind))
        return token

    def _kind(self, token: str, ptr: int, stream: Any) -> str:
        try:
            if isinstance(stream, int):
                stream = self.cuda.ExternalStream(ptr)
            self.on_device(stream.device_id)
            return "non-blocking" if stream.is_non_blocking else "blocking"
        except Exception:
            self.tape.unseen("whether the default stream waits for a stream; taken as not", about=token)
            return "non-blocking"

    def _made(self, _: None, stream: Any, *args: Any, **kwargs: Any) -> None:
        """A new stream may have the address of one that is gone."""
        if stream.ptr not in self._special:
            token = self._new(stream.ptr, stream)
            self._name(token)

    def _name(self, token: str) -> None:
        """Name something new, unless CuPy has made it for itself."""
        name = assigned(sys._getframe(1)) if self.backend.listening() else ""
        if name:
            self.tape.call(token, name)

    def on_device(self, device: int | None) -> None:
        """Something is done on this device."""
        if device is None or device < 0:
            return
        if self._device is None:
            self._device = device
        elif device != self._device:
            self.tape.unseen("CuPy: which of several devices a call is for; all are taken as one")

    def _host_function(
        self, _: None, stream: Any, function: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        self.backend.work(name, self.of(stream), [], category="host function")
        self.tape.unseen("what a host function on a stream reads and writes", about=name)

    # Events

    def event(self, event: Any) -> str:
        """An event's name. One from before the recording stands for nothing that the recording knows."""
        token = self._events.get(event.ptr)
        if token is None:
            token = self.event_at(event.ptr)
            self.tape.unseen("what an event stood for when the recording began", about=token)
        if token in self.tape.unnamed:
            self.tape.look(token, event)
        return token

    def event_at(self, ptr: int) -> str:
        if ptr not in self._events:
            self._events[ptr] = self.tape.token("event")
        return self._events[ptr]

    def _event_made(self, _: None, event: Any, *args: Any, **kwargs: Any) -> None:
        self._events.pop(event.ptr, None)
        self._name(self.event_at(event.ptr))

    def _recorded(self, result: Any, stream: Any, event: Any = None) -> None:
        self._event_recorded(None, result if event is None else event, stream)

    def _event_recorded(self, _: None, event: Any, stream: Any = None) -> None:
        self.event_at(event.ptr)
        self.recorded(self.event(event), self.of(stream))

    # Captures

    def _capture_began(self, _: None, stream: Any, *args: Any, **kwargs: Any) -> None:
        token = self._captures[stream.ptr] = self.tape.token("graph")
        self.backend.add(BeginCapture(self.of(stream), token, *self.backend.where()))

    def _capture_failed(self, stream: Any) -> None:
        """The capture is over all the same, and the recording shows why it failed."""
        self._captures.pop(stream.ptr, None)
        self.backend.add(EndCapture(self.of(stream), *self.backend.where()))

    def _capture_ended(self, graph: Any, stream: Any) -> Any:
        token = self._captures.get(stream.ptr)
        self._capture_failed(stream)
        if token is not None:
            self._name(token)
        return seen_graph(self.cuda.Graph)(graph, self.tape, token or "")

    def launched(self, graph: Any, token: str, stream: Any) -> None:
        """A graph was launched. ``token``: "" if its capture is not in this recording."""
        if not token:
            self.tape.unseen("what a graph does whose capture is not in the recording")
            return
        if token in self.tape.unnamed:
            self.tape.look(token, graph)
        self.backend.add(GraphLaunch(token, self.of(stream), -1, *self.backend.where()))


# The recorded forms of compiled classes. There is one for each, for all recordings.


@functools.lru_cache(maxsize=16)
def seen_graph(native: Any) -> Any:
    class Graph(native):
        __doc__ = native.__doc__

        def __init__(self, graph: Any, tape: Any = None, token: str = "") -> None:
            """``token``: the graph's name on that tape."""
            self._inner, self._tape, self._token = graph, tape, token

        def launch(self, stream: Any = None) -> None:
            self._inner.launch(stream)
            backend = listener()
            if backend is not None:
                token = self._token if self._tape is backend.tape else ""
                backend.guarded(backend.streams.launched, self, token, stream)

        def upload(self, stream: Any = None) -> None:
            self._inner.upload(stream)

        def __getattribute__(self, name: str) -> Any:
            if name in ("launch", "upload") or name.startswith("_"):
                return super().__getattribute__(name)
            return getattr(super().__getattribute__("_inner"), name)

    return Graph


@functools.lru_cache(maxsize=16)
def seen_device(native: Any) -> Any:
    class Device(native):
        __doc__ = native.__doc__

        def __enter__(self) -> Any:
            if now.backend is not None:
                now.backend.streams.on_device(self.id)
            return super().__enter__()

        def use(self) -> None:
            if now.backend is not None:
                now.backend.streams.on_device(self.id)
            super().use()

        def synchronize(self) -> None:
            backend = listener()
            if backend is None:
                return super().synchronize()
            backend.enter()
            try:
                super().synchronize()
            finally:
                backend.leave()
            return backend.guarded(backend.streams.synchronized)

    return Device
