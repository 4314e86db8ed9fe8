"""The newest job wins: what keeps a panel quick and right while its switches are flipped fast.

A job is a function that posts *deliveries*, calls that change widgets. Jobs run one at a time in a thread, so
that the kernel stays free for the next flip; their deliveries run on the kernel's own thread, which alone
touches widgets. A job that a newer one has overtaken delivers nothing more: `post` tells it so with False.

Where no event loop runs (a script, a test), a job is done before `submit` returns.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable

from ..errors import LabError

Delivery = Callable[[], None]
Post = Callable[[Delivery], bool]
Job = Callable[[Post], None]

DEVICE = threading.RLock()
"""Held while a panel uses a device, since a device's recorder and queues know of one user at a time."""


class Latest:
    """Runs the newest of the jobs it is given. ``failed`` is called with whatever one of them raised."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self.failed = failed
        self._changed = threading.Condition()
        self._newest = 0
        self._waiting: tuple[int, Job] | None = None
        self._thread: threading.Thread | None = None
        self._ready: deque[tuple[int, Delivery]] = deque()

    @property
    def busy(self) -> bool:
        """Whether a job is running in the thread or waiting for its turn."""
        return self._thread is not None

    def submit(self, job: Job) -> None:
        """Run the job in place of all that were given before; those that have not begun never will."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self.run(job)
            return
        with self._changed:
            self._newest += 1
            self._waiting = (self._newest, job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, args=(loop,), daemon=True)
                self._thread.start()

    def run(self, job: Job) -> None:
        """Run the job here and now, deliveries and all."""
        with self._changed:
            self._newest += 1
            number, self._waiting = self._newest, None

        def post(delivery: Delivery) -> bool:
            if number == self._newest:
                delivery()
            return number == self._newest

        try:
            job(post)
        except Exception as problem:
            self.failed(problem)

    def settle(self, timeout: float = 60.0) -> None:
        """Wait until the newest job is done and its deliveries are made. ``LabError`` after ``timeout`` s.

        For scripts and tests, which want to look at the outcome at once. Call it on the kernel's own thread.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._thread is None, timeout):
                raise LabError(f"the panel is still at work after {timeout:g} s; wait longer or ask for less")
        self._deliver()

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._changed:
                if self._waiting is None:
                    self._thread = None
                    self._changed.notify_all()
                    return
                (number, job), self._waiting = self._waiting, None

            def post(delivery: Delivery, number: int = number) -> bool:
                return self._post(loop, number, delivery)

            try:
                job(post)
            except Exception as problem:
                post(lambda problem=problem: self.failed(problem))

    def _post(self, loop: asyncio.AbstractEventLoop, number: int, delivery: Delivery) -> bool:
        if number != self._newest:
            return False
        self._ready.append((number, delivery))
        try:
            loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:  # the loop was closed: nobody is left to look
            return False
        return True

    def _deliver(self) -> None:
        """On the kernel's thread: make every delivery that is ready and not overtaken."""
        while self._ready:
            number, delivery = self._ready.popleft()
            if number != self._newest:
                continue
            try:
                delivery()
            except Exception as problem:
                self.failed(problem)
