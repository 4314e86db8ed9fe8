"""What the hooks of the libraries write to while a recording is on."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ..errors import LabError
from ..program import HandOver, Launch, Program, Step, Stream
from ..schedule import Access
from ._sources import Sources, find_name

LISTED = 12
"""How many names a line of ``unseen`` gives."""

SEARCHES = 200
"""How many searches for names there are for things of one kind."""

TRIES = 6
"""How often a thing's name is looked for: its first uses may come before it has been given one."""


class Tape:
    """The steps so far, the streams and buffers they use, and what could not be seen.

    A stream, a buffer or an event is known by a provisional name (`token`) until `look` finds what the
    program calls it; `program` puts the names in.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()
        """Held while a call is made and added, so that steps stand in the order of their calls.

        Reentrant: collecting garbage may complete a step in the middle of another.
        """
        self._steps: list[Step | None] = []
        self._behind: dict[int, list[Step]] = {}
        """Steps that turn out to have their place behind the one at a position."""
        self._open = 0
        self._streams: dict[str, Stream] = {}
        self._words: set[str] = set()
        self._buffers: dict[str, int | None] = {}
        self._unseen: Counter[str] = Counter()
        self._unseen_about: dict[str, dict[str, None]] = {}
        self._threads: dict[threading.Thread, str] = {threading.main_thread(): "host"}
        self._callbacks = 0
        self._tokens: Counter[str] = Counter()
        self.unnamed: dict[str, int] = {}
        """The tokens that may still be given a name, and how often that is tried."""
        self._searches: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self.source = Sources().line

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, step: Step | None) -> int:
        """Add a step; its position, for `amend`. None keeps the place of a call that has yet to return."""
        with self.lock:
            self._steps.append(step)
            self._open += step is None
            return len(self._steps) - 1

    def put(self, position: int, step: Step | None) -> None:
        """The call for which a place was kept has returned; None: it has failed, or has another place."""
        with self.lock:
            self._steps[position] = step
            self._open -= 1

    def put_behind(self, position: int, step: Step) -> None:
        """Add a step behind the one at a position, where others may follow already."""
        with self.lock:
            self._behind.setdefault(position, []).append(step)

    def remove(self, position: int) -> None:
        """A step has turned out to be none."""
        with self.lock:
            self._steps[position] = None

    def amend(self, position: int, **changes: Any) -> None:
        """Change fields of a step, such as the event that it turns out to complete."""
        with self.lock:
            step = self._steps[position]
            values = [changes.get(f, getattr(step, f)) for f in type(step).__slots__]  # type: ignore[attr-defined]
            self._steps[position] = type(step)(*values)  # several times as quick as replace

    def since(self, position: int) -> list[Step]:
        """The steps behind a position."""
        return [s for s in self._steps[position + 1 :] if s is not None]

    def from_on(self, position: int) -> Iterator[tuple[int, Step]]:
        """The steps at a position and behind it, each with its own."""
        for at in range(position, len(self._steps)):
            step = self._steps[at]
            if step is not None:
                yield at, step

    def stream(self, name: str, stream: Stream, words: str = "cupy") -> None:
        """Declare a stream of the library in whose words a verdict is to be told."""
        self._streams[name] = stream
        self._words.add(words)

    def in_order(self, name: str) -> bool:
        """Whether a stream runs its work in the order in which it is given."""
        return self._streams[name].kind != "out-of-order"

    def buffer(self, name: str, nbytes: int | None) -> None:
        """Declare memory that is there from the start; None where its size is not known."""
        self._buffers[name] = nbytes

    def unseen(self, text: str, about: str = "") -> None:
        """Say what this recording leaves out.

        The same text twice is told once: with how often, or with the names of the things it is ``about``.
        """
        with self.lock:
            if about:
                self._unseen_about.setdefault(text, {})[about] = None
            else:
                self._unseen[text] += 1

    def thread(self) -> str:
        """The name of the thread that asks: "host" for the main one."""
        thread = threading.current_thread()
        try:
            return self._threads[thread]
        except KeyError:
            return self.thread_name(thread)

    def thread_name(self, thread: threading.Thread) -> str:
        """The name that steps of this thread carry; each thread has its own."""
        with self.lock:
            if thread not in self._threads:
                self._threads[thread] = _unlike(thread.name, set(self._threads.values()), {})
            return self._threads[thread]

    @contextmanager
    def callback(self) -> Iterator[str]:
        """The calling thread runs a callback, which is a thread of its own here."""
        thread = threading.current_thread()
        with self.lock:
            self._callbacks += 1
            before = self._threads.get(thread)
            taken = set(self._threads.values())
            self._threads[thread] = name = _unlike(f"callback {self._callbacks}", taken, {})
        try:
            yield name
        finally:
            with self.lock:
                del self._threads[thread]
                if before is not None:
                    self._threads[thread] = before

    def receiver(self, to: str | threading.Thread) -> str:
        """The name that steps of a thread carry, which the program calls by ``threading``'s name for it."""
        if isinstance(to, threading.Thread):
            return self.thread_name(to)
        if to == "host":
            return to
        found = [t for t in threading.enumerate() if t.name == to]
        if len(found) != 1:
            why = "no thread of that name is running" if not found else f"{len(found)} threads have that name"
            raise LabError(f"hand_over to {to!r}: {why}; give the threading.Thread itself")
        return self.thread_name(found[0])

    def ended(self) -> None:
        """The recording ends here. Other threads may go on."""
        for _ in range(self._open):
            self.unseen("a call that had not returned when the recording ended")
        working = {s.thread for s in self._steps if s is not None and not isinstance(s, HandOver)}
        for thread, name in self._threads.items():
            here = thread in (threading.current_thread(), threading.main_thread())
            if name in working and thread.is_alive() and not here:
                self.unseen("what a thread does that goes on after the recording", about=name)

    def token(self, kind: str) -> str:
        """A provisional name for something of this kind: "buffer 3", "queue 1", "host memory 2"."""
        with self.lock:
            self._tokens[kind] += 1
            token = f"{kind} {self._tokens[kind]}"
            self.unnamed[token] = TRIES
            return token

    def look(
        self,
        token: str,
        *things: object,
        match: Callable[[object], bool] | None = None,
        generated: bool = False,
        near: bool = False,
    ) -> None:
        """See whether the calling program has a name for one of these objects, which the token stands for.

        ``match``, ``generated`` and ``near`` as `_sources.find_name` takes them. Of things of one kind, the
        first `SEARCHES` are looked for: a loop that makes more gives them all the same name anyway.
        """
        left = self.unnamed.get(token)
        if left is None:
            return
        kind = token.rpartition(" ")[0]
        self._searches[kind] += 1
        name = ""
        if self._searches[kind] <= SEARCHES:
            name = find_name(*things, match=match, generated=generated, near=near)
        if name:
            self.call(token, name)
        elif left == 1 or near:
            self.unnamed.pop(token, None)
        else:
            self.unnamed[token] = left - 1

    def call(self, token: str, name: str) -> None:
        """Give what a token stands for its name; a number is added where another thing has that name."""
        with self.lock:
            self.unnamed.pop(token, None)
            self._names[token] = name = _unlike(name, self._taken, self._numbers)
            self._taken.add(name)

    def named(self, token: str) -> str:
        """What a token stands for, by its name if there is one by now."""
        return self._names.get(token, token)

    def program(self) -> Program:
        """All that was recorded so far."""
        with self.lock:
            steps = [
                s
                for at in range(-1, len(self._steps))
                for s in (self._steps[at] if at >= 0 else None, *self._behind.get(at, ()))
                if s is not None
            ]
            working = {s.thread for s in steps if not isinstance(s, HandOver)}
            unseen = [text if n == 1 else f"{text} ({n} times)" for text, n in self._unseen.items()]
            unseen += [f"{text}: {_listed(list(about))}" for text, about in self._unseen_about.items()]
            names = dict(self._names)
            streams, buffers = dict(self._streams), dict(self._buffers)
        if len(working) > 1:
            unseen.append(
                f"{len(working)} threads made calls: that one waits for another is seen for Thread.start and "
                "Thread.join; locks, queues and futures are not seen, and order nothing here unless the "
                "recording's hand_over tells them"
            )
        else:
            steps = [s for s in steps if not isinstance(s, HandOver)]
        if names:
            rename = _Renaming(names)
            steps = [rename.step(s) for s in steps]
            unseen = [rename.text(text) for text in unseen]
            streams = {names.get(k, k): v for k, v in streams.items()}
            buffers = {names.get(k, k): v for k, v in buffers.items()}
        words = "opencl" if self._words == {"opencl"} else "cupy"
        return Program(tuple(steps), streams, buffers, self.name, unseen=tuple(unseen), words=words)


class _Renaming:
    """Put names in the place of tokens."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names
        longest_first = sorted(names, key=len, reverse=True)
        self._pattern = re.compile("|".join(rf"\b{re.escape(token)}\b" for token in longest_first))
        self._accesses: dict[Access, Access] = {}

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda m: self.names[m[0]], text)

    def access(self, access: Access) -> Access:
        if access not in self._accesses:
            self._accesses[access] = replace(access, buffer=self.names.get(access.buffer, access.buffer))
        return self._accesses[access]

    def step(self, step: Step) -> Step:
        names = self.names
        changes: dict[str, Any] = {}
        for field in ("stream", "event", "buffer", "graph"):
            token = getattr(step, field, None)
            if token and token in names:
                changes[field] = names[token]
        after = getattr(step, "after", ())
        if any(token in names for token in after):
            changes["after"] = tuple(names.get(token, token) for token in after)
        if isinstance(step, Launch):
            if any(a.buffer in names for a in step.accesses):
                changes["accesses"] = tuple(self.access(a) for a in step.accesses)
            if step.category != "kernel":
                changes["name"] = self.text(step.name)
        return replace(step, **changes) if changes else step


def _listed(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _unlike(name: str, taken: set[str], numbers: dict[str, int]) -> str:
    """The name, with a number if it is taken; ``numbers`` holds the last one for each."""
    free = name
    while free in taken:
        numbers[name] = numbers.get(name, 1) + 1
        free = f"{name} {numbers[name]}"
    return free
