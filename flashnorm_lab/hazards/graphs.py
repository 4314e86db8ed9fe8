"""Stream capture and CUDA graphs."""

from __future__ import annotations

from typing import Any

from ..program import (
    Allocate,
    Barrier,
    BeginCapture,
    EndCapture,
    Free,
    GraphLaunch,
    Launch,
    Query,
    Record,
    Step,
    Synchronize,
    Wait,
    label,
)
from .state import Context, Host, State, StreamState, merge
from .verdict import Problem


class Graph:
    __slots__ = ("body", "end", "streams")

    def __init__(self, body: list[tuple[Step, int]], streams: dict[str, StreamState]) -> None:
        self.body, self.streams, self.end = body, streams, []


class Capture:
    """What a capture has collected so far. Its clocks are its own: numbers of nodes on each stream."""

    def __init__(self, graph: str, origin: str, step: Step) -> None:
        self.graph, self.origin, self.step = graph, origin, step
        self.body: list[tuple[Step, int]] = []
        self.clocks: dict[str, dict[str, int]] = {origin: {}}
        self.events: dict[str, dict[str, int]] = {}
        self.broken = False


class Captures(State):
    """The part of the analysis that collects what is captured, and runs it where it is launched."""

    def _begin_capture(self, step: BeginCapture) -> None:
        stream = self._stream(step)
        if stream.kind == "out-of-order":
            raise self._refuse(step, "an out-of-order queue cannot be captured")
        capture = Capture(step.graph, stream.name, step)
        self._graphs[step.graph] = None
        self._careful = True
        if stream.kind == "legacy":
            self._capture_error(capture, "cudaErrorStreamCaptureUnsupported", step,
                                "the legacy default stream cannot be captured")  # fmt: skip
            return
        if stream.capture is not None:
            raise self._refuse(step, f"{stream.name} is being captured into {stream.capture.graph} already")
        stream.capture = capture
        self._captures.append(capture)

    def _capture_error(self, capture: Capture, code: str, step: Step, text: str) -> None:
        capture.broken = True
        self._problems.append(
            Problem(code, f"capture of graph {capture.graph}: {text}", step.source, self._index)
        )

    def _captured(self, step: Step) -> bool:
        """Take a step into the capture that it belongs to; tells whether it did."""
        kind = type(step)
        if kind in (Synchronize, Query):
            broken = len(self._problems)
            self._sync_in_capture(step)
            return len(self._problems) > broken  # a call that is refused waits for nothing
        if kind not in (Launch, Record, Wait, Barrier):
            if kind in (Allocate, Free) and step.stream is not None and self._stream(step).capture:
                raise self._refuse(step, "allocations and frees inside a capture are not analysed; put them "
                                         "before it")  # fmt: skip
            if kind is GraphLaunch and self._stream(step).capture:
                raise self._refuse(step, "graphs inside graphs are not analysed")
            return False
        stream = self._stream(step)
        if stream.kind == "legacy":
            for other in stream.context.blocking:
                if other.capture is not None:
                    self._capture_error(
                        other.capture, "cudaErrorStreamCaptureImplicit", step,
                        f"{label(step)} on the legacy default stream would wait for {other.name}, which is "
                        "being captured",
                    )  # fmt: skip
                    return True
        after = self._waits_for(step)
        if stream.capture is None:
            joins = [c for c in map(self._event_capture, after) if c is not None]
            if not joins:
                if kind is Record:
                    for capture in self._captures:
                        capture.events.pop(step.event, None)
                return False
            capture = stream.capture = joins[0]
            capture.clocks.setdefault(stream.name, {})
            place = next(i for i, e in enumerate(after) if e in capture.events)
            # Without this wait the stream would not be captured.
            self._site(step, after[place], stream.name, place)[0] += 1
        capture = stream.capture
        clock = capture.clocks[stream.name]
        for event in after:
            inside = capture.events.get(event)
            if inside is not None:
                for name, number in inside.items():
                    clock[name] = max(number, clock.get(name, 0))
            elif self._event_capture(event) is not None:
                self._capture_error(
                    capture, "cudaErrorStreamCaptureMerge", step,
                    f"{stream.name} waits for {event}, which was recorded in another capture",
                )  # fmt: skip
            elif event in self._events:
                self._capture_error(
                    capture, "cudaErrorStreamCaptureIsolation", step,
                    f"{stream.name} waits for {event}, which was not recorded in this capture",
                )  # fmt: skip
        if kind is Launch:
            clock[stream.name] = clock.get(stream.name, 0) + 1
            if step.blocks:
                self._capture_error(
                    capture, "cudaErrorStreamCaptureUnsupported", step,
                    f"the host would wait for {step.name}, which only the graph runs",
                )  # fmt: skip
        completes = "" if kind is Wait else step.event
        if completes:
            capture.events[completes] = dict(clock)
            self._events.pop(completes, None)
            self._captured_events.add(completes)
        capture.body.append((step, self._index))
        return True

    def _event_capture(self, event: str) -> Capture | None:
        return next((c for c in self._captures if event in c.events), None)

    def _sync_in_capture(self, step: Synchronize | Query) -> None:
        what = "queried" if isinstance(step, Query) else "waited for by the host"
        if step.event is not None:
            capture = self._event_capture(step.event)
            if capture is not None:
                self._capture_error(capture, "cudaErrorCapturedEvent", step,
                                    f"event {step.event} was recorded in it and is {what}")  # fmt: skip
        elif step.stream is not None:
            stream = self._stream(step)
            captured = [stream] if stream.capture else []
            if stream.kind == "legacy":
                captured += [other for other in stream.context.blocking if other.capture]
            for other in captured:
                code = "Unsupported" if other is stream else "Implicit"
                self._capture_error(other.capture, f"cudaErrorStreamCapture{code}", step,
                                    f"{other.name} is being captured and is {what}")  # fmt: skip
        else:
            for capture in self._captures:
                self._capture_error(capture, "cudaErrorStreamCaptureUnsupported", step,
                                    "the host waits for the whole device")  # fmt: skip

    def _end_capture(self, step: EndCapture) -> None:
        stream = self._stream(step)
        capture = stream.capture
        if capture is None and stream.kind == "legacy":
            return  # it could not begin either, and that is told
        if capture is None:
            raise self._refuse(step, f"nothing is being captured on {stream.name}; begin a capture first")
        if capture.origin != stream.name:
            self._capture_error(capture, "cudaErrorStreamCaptureUnmatched", step,
                                f"it began on {capture.origin} and is ended on {stream.name}")  # fmt: skip
        joined = capture.clocks[capture.origin]
        for name, clock in capture.clocks.items():
            if name != capture.origin and clock.get(name, 0) > joined.get(name, 0):
                self._capture_error(
                    capture, "cudaErrorStreamCaptureUnjoined", step,
                    f"{name} was forked to and never joined: before the capture ends, {capture.origin} must "
                    f"wait for an event recorded on {name} behind its last work",
                )  # fmt: skip
        for name in capture.clocks:
            self._streams[name].capture = None
        self._captures.remove(capture)
        self._careful = bool(self._captures or self._unset)
        if not capture.broken:
            streams = {
                name: StreamState(name, "non-blocking", Context(), *self._component())
                for name in capture.clocks
            }
            self._graphs[capture.graph] = Graph(capture.body, streams)

    def _graph_launch(self, step: GraphLaunch) -> None:
        stream, host = self._stream(step), self._host(step.thread)
        if step.graph not in self._graphs:
            known = ", ".join(self._graphs) or "none"
            raise self._refuse(step, f"there is no graph {step.graph!r}; captured so far: {known}")
        if any(capture.graph == step.graph for capture in self._captures):
            raise self._refuse(step, f"graph {step.graph} is still being captured; end its capture first")
        graph = self._graphs[step.graph]
        if graph is None:  # a capture that failed leaves nothing to run, and is reported already
            return
        self._arrive(stream, host)
        for node_stream in graph.streams.values():
            merge(node_stream.clock, stream.clock)
            merge(node_stream.clock, graph.end)  # one run of a graph at a time
        outside, events = self._streams, self._events
        self._streams, self._events = graph.streams, {}
        thread = Host(host.name, host.component, [0] * self._width)
        inner = self._hosts
        self._hosts = dict.fromkeys({s.thread for s, _ in graph.body} | {step.thread}, thread)
        at = self._index
        for node, self._index in graph.body:
            self._run_node(node, step.step)
        self._index = at
        self._streams, self._events, self._hosts = outside, events, inner
        for node_stream in graph.streams.values():
            merge(stream.clock, node_stream.clock)
        graph.end = list(stream.clock)
        stream.clock[stream.component] += 1
        stream.last = (stream.component, stream.clock[stream.component], self._index, step, step.step)
        self._leave(stream)

    def _run_node(self, node: Any, number: int) -> None:
        if type(node) is not Launch:
            self._do[type(node)](node)
            return
        self.launches += 1
        stream, host = self._streams[node.stream], self._hosts[node.thread]
        for place, event in enumerate(node.after):
            self._wait_for(event, stream, node, host, place)
        self._judge_waits(stream)
        stream.clock[stream.component] += 1
        mark = (stream.component, stream.clock[stream.component], self._index, node, number)
        stream.last = mark
        self._access(mark, node.accesses, stream.clock, (stream.component, node.name))
        if node.name in self.watch:
            self.watch[node.name](mark, stream.clock)
        if node.event:
            self._complete(node.event, stream.clock, stream.name, mark, node, host)
