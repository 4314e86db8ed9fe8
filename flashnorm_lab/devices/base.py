"""What every device promises, and what both implementations share."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import hazards
from ..errors import LabError
from ..schedule import Buffer, Copy, Launch, Schedule

if TYPE_CHECKING:
    from ..timeline import Timeline
    from ._recording import CallRecorder


@dataclass(frozen=True)
class Force:
    """A legal interleaving made certain: ``hold`` (a launch or a copy) starts only when ``until`` is done."""

    hold: str
    until: str

    @classmethod
    def parse(cls, text: str) -> Force:
        """From ``"projection:post_scale"``: hold the first until the second is done."""
        hold, colon, until = text.partition(":")
        if not (hold and colon and until):
            raise LabError(f"force={text!r}: write HOLD:UNTIL, for instance projection:post_scale")
        return cls(hold, until)


class Device(abc.ABC):
    """A place where schedules run. ``reason`` says why this one was picked."""

    kind: str
    name: str
    reason: str
    queues: dict[str, Any]
    """The streams by name. Two handles on the same streams are one device, and compare equal."""

    def __init__(self) -> None:
        self._notes: dict[str, Any] = {"recorder": None}  # shared by all handles on this device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.queues is self.queues

    def __hash__(self) -> int:
        return id(self.queues)

    @property
    def recorder(self) -> Any:
        """What notes the calls of the plans' steps at present, or None."""
        return self._notes["recorder"]

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """Name, kind, driver and library versions, and which unit each stream runs on."""

    @abc.abstractmethod
    def prepare(self, schedule: Schedule, steps: int = 1, share: Mapping[str, Any] | None = None) -> Plan:
        """Compile, allocate and bind once.

        ``steps`` is how many rows per-step buffers get; step number t uses row t modulo ``steps``.
        ``share`` gives memory for some buffers, by name (numpy arrays here, CuPy arrays or torch tensors
        on CUDA), used in place where the device can. Every other buffer starts as NaN, so that a read
        before any write shows.
        """

    @abc.abstractmethod
    def wait(self) -> None:
        """Make the host wait for every stream."""

    @contextlib.contextmanager
    def recording(self) -> Iterator[Recorder]:
        """While it is open, every step of every plan is recorded. One at a time.

        ::

            with device.recording() as recorder:
                plan.step()
            timeline = recorder.timeline()

        ``LabError`` where a recording is open already, and on CUDA where torch cannot use the GPU: the
        device's times come from CUPTI there, through torch.profiler.
        """
        with self._noting(profile=True) as recorder:
            yield recorder
            recorder.host("wait for every stream", "synchronize", self.wait)

    @contextlib.contextmanager
    def annotating(self) -> Iterator[None]:
        """While it is open, every call of every plan's step has an NVTX range, named as in a recording.

        Nothing is recorded, so that another profiler can be: Nsight Systems and the recording on CUDA both
        use CUPTI, which as a rule serves one of them at a time.
        """
        with self._noting(profile=False):
            yield

    @contextlib.contextmanager
    def _noting(self, profile: bool) -> Iterator[Any]:
        if self.recorder is not None:
            raise LabError(f"{self.name} is being recorded already; close that recording first")
        self.wait()
        recorder = self.new_recorder()
        with recorder.profiling() if profile else contextlib.nullcontext():
            self._notes["recorder"] = recorder
            try:
                yield recorder
            finally:
                self._notes["recorder"] = None
                recorder.close()

    @abc.abstractmethod
    def clock_offset(self) -> tuple[int, int]:
        """``(offset, error)`` in ns: host time (``perf_counter_ns``) = device time + offset, ± error."""

    @abc.abstractmethod
    def new_recorder(self) -> CallRecorder:
        """A recorder that notes calls and pushes their NVTX ranges."""


class Recorder(Protocol):
    """What `Device.recording` gives."""

    def host(self, name: str, category: str, function: Callable[[], Any]) -> Any:
        """Make a call of the host's, timed, inside an NVTX range of that name; returns what it returns."""

    def begin(self, name: str) -> None:
        """Start a new step: spans from here on carry the next number, and a host range has this name."""

    def timeline(self) -> Timeline:
        """What was recorded. Only after the recording is closed."""


class Plan(abc.ABC):
    """A schedule bound to a device's memory."""

    schedule: Schedule
    device: Device

    @abc.abstractmethod
    def step(self, force: Force | None = None) -> None:
        """Replay the step once, with whatever waits the schedule has and no others.

        With ``force`` (checked already, see `check_force`) it is made to go that way, and the host waits for
        the device afterwards, so that the next step starts from a known state.
        """

    def run(self, steps: int, force: Force | str | None = None) -> None:
        """Replay ``steps`` times and wait for the device; with ``force``, every step goes that way."""
        check_steps(steps)
        forced = check_force(self.schedule, force)
        for number in range(steps):
            if self.device.recorder is not None:
                self.device.recorder.begin(f"step {number}")
            self.step(forced)
        self.device.wait()

    def record(self, steps: int = 1, force: Force | str | None = None) -> Timeline:
        """`run`, and return what happened when: host calls, device spans on each stream, the edges."""
        check_steps(steps)
        forced = check_force(self.schedule, force)
        with self.device.recording() as recorder:
            for number in range(steps):
                recorder.begin(f"step {number}")
                self.step(forced)
        return recorder.timeline().with_meta(
            schedule=self.schedule.name,
            shape=list(self.schedule.shape),
            edges=[e for e in self.schedule.all_edges if e in self.schedule.edges],
            dropped=list(self.schedule.dropped),
            **({"force": f"{forced.hold}:{forced.until}"} if forced else {}),
        )

    @abc.abstractmethod
    def rewind(self) -> None:
        """Let the next step be number 0 again. Buffers keep what they hold."""

    @abc.abstractmethod
    def write(self, name: str, values: np.ndarray) -> None:
        """Put values into a buffer, outside the schedule. ``LabError`` if the shape or dtype is wrong."""

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """A copy of a buffer's values, outside the schedule."""

    @abc.abstractmethod
    def tensor(self, name: str) -> Any:
        """A torch tensor on the buffer's own memory: no copy is made."""

    def buffer(self, name: str) -> Buffer:
        """The buffer's declaration; ``LabError`` if the schedule has none of that name."""
        if name not in self.schedule.buffers:
            known = ", ".join(self.schedule.buffers)
            raise LabError(f"the {self.schedule.name} schedule has no buffer {name!r}; it has {known}")
        return self.schedule.buffers[name]


def check_shape(name: str, wanted: tuple[int, ...], given: tuple[int, ...]) -> None:
    """``LabError`` unless the two shapes are the same."""
    if wanted != given:
        raise LabError(f"{name} has shape {list(given)}, expected {list(wanted)}")


def check_numbers(name: str, wanted: tuple[int, ...], values: Any) -> np.ndarray:
    """The values as an array. ``LabError`` unless they are real numbers of that shape."""
    array = np.asarray(values)
    check_shape(name, wanted, array.shape)
    if array.dtype.kind not in "fiu":
        raise LabError(f"{name} was given {array.dtype}; real numbers were expected")
    return array


def check_steps(steps: int) -> None:
    """``LabError`` unless ``steps`` is a whole number of at least 1."""
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise LabError(f"steps={steps!r}: give a whole number of at least 1")


def check_force(schedule: Schedule, force: Force | str | None) -> Force | None:
    """The interleaving asked for, or ``LabError`` where it names no launch or the edges forbid it."""
    if force is None:
        return None
    if isinstance(force, str):
        force = Force.parse(force)
    if not isinstance(force, Force):
        raise LabError(f"force={force!r}: write HOLD:UNTIL, for instance projection:post_scale")
    launches = [s.name for s in schedule.steps if isinstance(s, Launch | Copy)]
    for name in (force.hold, force.until):
        if name not in launches:
            raise LabError(f"force: there is no launch or copy {name!r} in the {schedule.name} schedule; "
                           f"there are {', '.join(launches)}")  # fmt: skip
    if force.hold == force.until:
        raise LabError(f"force: {force.hold} cannot be held until it is done itself; name two launches")
    if hazards.ordered(schedule, force.hold, force.until):
        if len(schedule.streams) == 1:
            why = "one stream runs them in that order"
        else:
            in_place = ", ".join(e for e in schedule.all_edges if e in schedule.edges)
            why = f"the edges in place ({in_place}) forbid it"
        raise LabError(
            f"force: {force.hold} cannot be held until {force.until} is done: {force.until} waits for "
            f"{force.hold}, and {why}; drop the edge between them first"
        )
    return force


def rows(buffer: Buffer, steps: int) -> tuple[int, ...]:
    """The shape of a buffer in memory: a per-step buffer has one row a step."""
    return (steps, *buffer.shape) if buffer.per_step else buffer.shape
