"""Record what somebody's program asks of its streams, with no change to that program.

::

    with flashnorm_lab.record() as schedule:
        train_one_step()
    print(hazards.check(schedule).report())

While the block runs, the calls of pyopencl and CuPy are written down: which stream, which bytes, which
events, which line. They do what they do without it. Only a library that the program itself imports is
touched, before the block or in it, and everything is put back at its end. What a recording cannot see it
lists in ``unseen``; nothing of that kind is taken as safe.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import ExitStack
from os import PathLike
from types import TracebackType
from typing import Any, Protocol

from ..errors import LabError
from ..program import HandOver, Program
from ._tape import Tape

BACKENDS = {"opencl": "pyopencl", "cupy": "cupy"}
"""What `record` takes in ``only``, and the library behind each."""


class Backend(Protocol):
    """The hooks in one library: `flashnorm_lab.recording.opencl`, `flashnorm_lab.recording.cupy`."""

    def __init__(self, recording: Tape) -> None: ...

    def install(self) -> None:
        """Put the hooks in. The library has been imported."""

    def remove(self) -> None:
        """Take them out again."""


def record(only: str | Collection[str] | None = None, name: str = "recorded program") -> Recording:
    """Record the pyopencl and CuPy calls of a ``with`` block.

    ``only``: "opencl" or "cupy", or several of them, where not all are wanted. ``name``: how the program
    is called in a verdict. One recording can be on at a time, for all threads of the process: a thread is
    ordered behind the one that starts it, and before the one that joins it. Streams, buffers and events are
    called as the program's variables are; "buffer 3" is one that no variable was found for. A launch
    takes 5 to 30 microseconds longer, and the block's beginning and end some hundredths of a second. That
    threads wait for each other by locks, queues or futures is not seen: tell it with `Recording.hand_over`.

    Raises:
        LabError: ``only`` names something else; ``name`` is no printable text; on entry, when another
            recording is on.
    """
    if only is not None and not isinstance(only, str | Collection):
        raise LabError(f"only={only!r}: record takes {', '.join(map(repr, BACKENDS))}, or several of them")
    if not isinstance(name, str) or not name.isprintable():
        raise LabError(f"name={name!r}: record takes a text without control characters")
    wanted = list(BACKENDS) if only is None else [only] if isinstance(only, str) else list(only)
    for backend in wanted:
        if not isinstance(backend, str) or backend not in BACKENDS:
            raise LabError(f"only={backend!r}: record takes {', '.join(map(repr, BACKENDS))}")
    return Recording(tuple(dict.fromkeys(wanted)), name)


_entering = threading.Lock()
_on: Recording | None = None


class Recording:
    """A recorded program. It can be asked inside the block, for what there is so far, and after it.

    `hazards.check`, `hazards.find` and `hazards.order` take it as it is.
    """

    def __init__(self, only: tuple[str, ...], name: str) -> None:
        self.only = only
        self._tape: Tape | None = Tape(name)
        self._close: ExitStack | None = None
        self._program: Program | None = None
        self._used = False

    def __enter__(self) -> Recording:
        global _on
        with _entering:
            if self._used:
                raise LabError("this recording has been made already; make a new one with record()")
            if _on is not None:
                raise LabError("a recording is on already; end its block before another one begins")
            _on = self
        self._used = True
        assert self._tape is not None
        with ExitStack() as close:
            close.callback(_ended)
            _hook_threads(self._tape, close)
            for backend in self.only:
                _hook_library(backend, self._tape, close)
            self._close = close.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._close is not None
        assert self._tape is not None
        self._close.close()
        self._tape.ended()
        self._program = self._tape.program()

    @property
    def program(self) -> Program:
        """The recorded program, or, inside the block, what there is of it so far."""
        if self._program is not None:
            return self._program
        assert self._tape is not None
        return self._tape.program()

    @property
    def unseen(self) -> tuple[str, ...]:
        """In words, what this recording leaves out."""
        return self.program.unseen

    def hand_over(self, to: str | threading.Thread) -> None:
        """Say that thread ``to`` goes on only after the calling thread has come this far.

        Call it in the thread that gives, inside the block, just before what lets the other one go on::

            queue.finish()
            schedule.hand_over("consumer")
            mail.put(result)

        ``to``: the thread's name, "host" for the main thread, or the `threading.Thread`. From here on ``to``
        counts as knowing what the caller knows: call it only where ``to`` does wait.

        Raises:
            LabError: not inside the block; no running thread, or more than one, has that name; ``to`` is
                neither a name nor a thread.
        """
        if _on is not self or self._tape is None:
            raise LabError("hand_over: this recording is not on; call it inside the block")
        if not isinstance(to, str | threading.Thread):
            raise LabError(f"hand_over to {to!r}: give a thread's name, or the threading.Thread")
        tape = self._tape
        receiver = tape.receiver(to)
        if receiver != tape.thread():
            tape.add(HandOver(receiver, tape.thread(), tape.source()))

    def __getstate__(self) -> dict[str, Any]:
        if self._program is None:
            raise LabError("a recording can be pickled when its block has ended; until then, its program can")
        return {"only": self.only, "_program": self._program, "_used": True, "_tape": None, "_close": None}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the program as a JSON schedule, which `flashnorm-lab hazards` reads."""
        from ..schedule_file import save

        save(self.program, path)

    def __len__(self) -> int:
        return len(self.program)

    def __str__(self) -> str:
        program = self.program
        unseen = [f"  not seen: {text}" for text in program.unseen]
        return "\n".join([str(program), *unseen])


def _ended() -> None:
    global _on
    _on = None


def _hook_threads(tape: Tape, close: ExitStack) -> None:
    """A thread knows what its starter knew, and who joins it knows what it knew at its end."""
    start, join = threading.Thread.start, threading.Thread.join

    def recorded_start(self: threading.Thread) -> None:
        step: HandOver | None = HandOver(tape.thread_name(self), tape.thread(), tape.source())
        position = tape.add(None)
        try:
            start(self)
        except BaseException:
            step = None
            raise
        finally:
            tape.put(position, step)

    def recorded_join(self: threading.Thread, timeout: float | None = None) -> None:
        join(self, timeout)
        if not self.is_alive():
            tape.add(HandOver(tape.thread(), tape.thread_name(self), tape.source()))

    def put_back() -> None:
        threading.Thread.start, threading.Thread.join = start, join  # type: ignore[method-assign]

    close.callback(put_back)
    threading.Thread.start, threading.Thread.join = recorded_start, recorded_join  # type: ignore[method-assign, assignment]


def _hook_library(name: str, tape: Tape, close: ExitStack) -> None:
    """Hook a library now if the program has imported it, or else as soon as it does."""
    library = BACKENDS[name]

    def install() -> None:
        backend: Backend = importlib.import_module(f"{__name__}.{name}").Backend(tape)
        close_now.callback(backend.remove)
        backend.install()

    close_now = close.enter_context(ExitStack())
    if library in sys.modules:
        install()
        return
    watcher = _Watcher(library, install)
    sys.meta_path.insert(0, watcher)
    close.callback(watcher.stop)


class _Watcher:
    """Calls ``then`` once, when a library has been imported."""

    def __init__(self, library: str, then: Callable[[], None]) -> None:
        self.library, self.then = library, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.library:
            return None
        self.stop()
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module  # type: ignore[method-assign]
            execute(module)
            self.then()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def stop(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
