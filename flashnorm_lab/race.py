"""The race, run for real on a device: many steps of one schedule, and what became of each.

Every step gets its own x, so that an old y is told from a new one. Inputs are random from a seed; the
reference for each step is computed in float64 by `flashnorm_lab.algebra`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import algebra, hazards, outcomes
from .devices.base import Device, Force, Plan, check_force, check_steps
from .errors import LabError
from .outcomes import Outcome
from .schedule import Copy, Launch, Record, Schedule, Wait

if TYPE_CHECKING:
    from .timeline import Timeline

OLDEST = 32
"""How many steps back an old content of y is looked for. Nothing makes the host wait between steps, so a
matrix stream that nobody waits for falls behind by more than one."""
OLDEST_R = 2
"""Likewise for r, which takes far less time."""
LATEST = 4
"""How many steps ahead a later content of y and of r is looked for, and at least as many as a force spans."""


@dataclass(frozen=True, eq=False)
class RaceResult:
    """What a race did. Measured on ``device``; ``timeline`` is of the very run that ``outcomes`` judges.

    ``allowed`` is False where the edges of the schedule forbid ``force``: then ``hold`` was let go without
    ``until`` being done, see `Race.run`.
    """

    schedule: Schedule
    device: dict[str, Any]
    hazards: tuple[hazards.Hazard, ...]
    force: Force | None
    outcomes: tuple[Outcome, ...]
    timeline: Timeline | None
    allowed: bool = True

    @property
    def counts(self) -> dict[str, int]:
        """Steps that were fresh, stale, torn and early."""
        return outcomes.count(self.outcomes)

    @property
    def groups(self) -> tuple[tuple[Outcome, ...], ...]:
        """The outcomes of the steps that were forced together, a group at a time; none without a force.

        Steps at the end that were too few for a group, and so ran in the host's own order, are not in it.
        """
        if self.force is None:
            return ()
        size, judged = self.force.steps, self.outcomes
        return tuple(judged[i : i + size] for i in range(0, len(judged) - size + 1, size))

    @property
    def exposed(self) -> bool:
        """Whether the force showed the hazard every time: no group of steps came out right as a whole."""
        return bool(self.groups) and all(any(o.label != "fresh" for o in group) for group in self.groups)

    @property
    def right(self) -> bool:
        """Whether every step is fresh."""
        return all(o.label == "fresh" for o in self.outcomes)

    def as_dict(self) -> dict[str, Any]:
        """The result as plain values, for JSON."""
        tokens, n, k = self.schedule.shape
        return {
            "device": self.device,
            "provenance": "measured",
            "schedule": {
                "name": self.schedule.name,
                "tokens": tokens,
                "n": n,
                "k": k,
                "edges": [e for e in self.schedule.all_edges if e in self.schedule.edges],
                "dropped": list(self.schedule.dropped),
            },
            "hazards": [h.as_dict() for h in self.hazards],
            "forced": None if self.force is None else forced_as_dict(self.force),
            "allowed": self.allowed,
            "steps": len(self.outcomes),
            **self.counts,
            "per_step": [o.label for o in self.outcomes],
            "sources": list(dict.fromkeys(o.source for o in self.outcomes if o.source)),
        }


@dataclass(frozen=True, eq=False)
class Proof:
    """A hazard forced, and the repaired schedule under the same force. See `prove`."""

    hazard: hazards.Hazard
    force: Force
    wrong: RaceResult
    repaired: RaceResult

    @property
    def holds(self) -> bool:
        """Whether the force exposed the hazard in every group of steps, and the repair left none wrong."""
        return self.wrong.exposed and self.repaired.right

    def as_dict(self) -> dict[str, Any]:
        """The proof as plain values, for JSON."""
        return {
            "hazard": self.hazard.as_dict(),
            "forced": forced_as_dict(self.force),
            "holds": self.holds,
            "wrong": _judged_as_dict(self.wrong),
            "repaired": _judged_as_dict(self.repaired),
        }


def forced_as_dict(force: Force) -> dict[str, Any]:
    """What was held until what, as plain values, for JSON."""
    return {"hold": force.hold, "until": force.until, "distance": force.distance}


def _judged_as_dict(result: RaceResult) -> dict[str, Any]:
    told = result.as_dict()
    kept = ("steps", *outcomes.LABELS, "per_step", "sources")
    return {"dropped": told["schedule"]["dropped"]} | {key: told[key] for key in kept}


def forces(schedule: Schedule) -> dict[hazards.Hazard, Force]:
    """For each hazard that a device can force, what to hold until what.

    The access that should come first is held until the other is done. Left out are hazards of what a device
    cannot hold: the host, and torch's own kernels.

    With ``io="stream"``, the copy of x, `post_scale` and the copy of z of all steps are on main, in order, so
    no z is made from a later x: a WAR hazard forced there shows as a stale result in one of its two steps.
    `prefetched` is the wiring in which what was overwritten too soon is read, and comes out early.
    """
    can_hold = _can_hold(schedule)
    return {
        hazard: Force(hazard.first, hazard.second, hazard.distance)
        for hazard in hazards.find(schedule)
        if {hazard.first, hazard.second} <= can_hold
    }


def worst_case(schedule: Schedule) -> Force | None:
    """The interleaving that makes the first read-after-write hazard within a step go wrong every time.

    The writer is held until the reader is done. None where nothing can go wrong within a step, or only
    between two that a device cannot hold: the host, and torch's own kernels.
    """
    can_hold = _can_hold(schedule)
    for hazard in hazards.find(schedule, repeats=1):
        if hazard.kind == "RAW" and {hazard.first, hazard.second} <= can_hold:
            return Force(hazard.first, hazard.second)
    return None


def _can_hold(schedule: Schedule) -> set[str]:
    return {s.name for s in schedule.steps if isinstance(s, Launch | Copy)}


def repaired(schedule: Schedule) -> Schedule:
    """The schedule with every edge put back that repairs one of its hazards.

    `LabError` where a hazard is left: its repair is no edge of this schedule.
    """
    names = {hazard.repair for hazard in hazards.find(schedule)} & set(schedule.all_edges)
    whole = schedule.with_edges(schedule.edges | names)
    for hazard in hazards.find(whole):
        raise LabError(
            f"the {schedule.name} schedule has no edge that repairs {hazard.kind} on {hazard.buffer}: "
            f"{hazard.repair}"
        )
    return whole


def prefetched(schedule: Schedule) -> Schedule:
    """The same step with x copied on the matrix stream, ahead of main, as a loader of data does.

    Takes what `flashnorm_lab.schedule.deferred` makes with three streams and ``io="stream"``, and keeps its
    edges. ``fork_matrix`` then makes the copy of x and the projection wait for the last reader of x, y and r;
    ``fork_vector`` makes inv_rms wait for x, on matrix. Without ``fork_matrix`` the next step's x, y and r
    may come before this one's were read. `LabError` for any other schedule.
    """
    copy = next((s for s in schedule.all_steps if isinstance(s, Copy) and s.name == "copy x"), None)
    first = [copy, Record("fork_matrix", "main"), Wait("fork_matrix", "matrix")]
    first += [Record("fork_vector", "main"), Wait("fork_vector", "vector")]
    if copy is None or list(schedule.all_steps[: len(first)]) != first:
        raise LabError(
            f"the {schedule.name} schedule cannot fetch x ahead; that takes deferred, with three streams and "
            "io='stream'"
        )
    ahead = [*first[1:3], replace(copy, stream="matrix"), Record("fork_vector", "matrix"), first[4]]
    return replace(schedule, name="prefetched", all_steps=(*ahead, *schedule.all_steps[len(first) :]))


def prepare(device: Device, schedule: Schedule, steps: int = 32, seed: int = 0) -> Race:
    """Bind a schedule with ``io="stream"`` and its random inputs to a device. Inputs come from ``seed``."""
    if not isinstance(device, Device):
        raise LabError(f"{device!r} is no device; open one with devices.get('opencl') or devices.default()")
    if not isinstance(schedule, Schedule):
        raise LabError(f"{schedule!r} is no schedule; make one with schedule.deferred(tokens, n, k)")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise LabError(f"seed={seed!r}: give a whole number of at least 0")
    check_steps(steps)
    if schedule.io != "stream":
        raise LabError(f"a race needs a schedule with io='stream', not io={schedule.io!r}")
    return Race(device, schedule, steps, seed)


def run(
    device: Device,
    schedule: Schedule,
    steps: int = 32,
    force: Force | hazards.Hazard | str | None = None,
    seed: int = 0,
    record: bool = True,
    annotate: bool = False,
    anyway: bool = False,
) -> RaceResult:
    """Run ``steps`` steps and judge each.

    ``force``: a `Force`, one of the schedule's hazards (see `forces`), "HOLD:UNTIL", "HOLD:UNTIL+N", or
    "worst" for `worst_case`. "worst" where nothing can be forced runs freely, and the result's ``force`` is
    None. A force that spans several steps takes them in groups; steps at the end that are too few for one run
    in the host's own order. ``anyway`` takes a force that the edges forbid: what is held is let go after a
    short while. ``record`` keeps the timeline. ``annotate``, without ``record``, pushes NVTX ranges for
    another profiler.
    """
    return prepare(device, schedule, steps, seed).run(force, record, annotate, anyway)


def prove(
    device: Device,
    schedule: Schedule,
    hazard: hazards.Hazard,
    steps: int = 32,
    seed: int = 0,
    record: bool = True,
) -> Proof:
    """Force one hazard of the schedule, then run the `repaired` schedule under the same force.

    The repaired schedule's edges make ``until`` wait for what is held, so there it is held for a short while
    and let go; the result does not depend on how long. `LabError` for a hazard that the schedule does not
    have, that a device cannot hold, or that no edge repairs.
    """
    force = force_of(schedule, hazard)
    whole = repaired(schedule)
    wrong = run(device, schedule, steps, force, seed, record)
    return Proof(hazard, force, wrong, run(device, whole, steps, force, seed, record, anyway=True))


def pair(hazard: hazards.Hazard) -> tuple[str, str, str, str, int]:
    """What makes a hazard the same one in two wirings: kind, buffer, both accesses, and the steps between."""
    return hazard.kind, hazard.buffer, hazard.first, hazard.second, hazard.distance


def force_of(schedule: Schedule, hazard: hazards.Hazard) -> Force:
    """What to hold until what, for one of the schedule's hazards. `LabError` as for `prove`."""
    if not isinstance(hazard, hazards.Hazard):
        raise LabError(f"{hazard!r} is no hazard; take one of those that hazards.find(schedule) gives")
    for known, force in forces(schedule).items():
        if pair(known) == pair(hazard):
            return force
    what = f"{hazard.kind} on {hazard.buffer}, {hazard.first} and {hazard.second}"
    if pair(hazard) in map(pair, hazards.find(schedule)):
        raise LabError(f"{what}: a device can hold launches and copies, and neither the host nor torch")
    raise LabError(f"{what}: this is no hazard of the {schedule.name} schedule with these edges")


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What a race is run on, and what each step's y and r should be. Steps before the first come first."""

    xs: np.ndarray  # [OLDEST + steps, tokens, n] float32
    weight: np.ndarray  # [k, n] float32
    gain: np.ndarray  # [n] float32
    folded: np.ndarray  # [k, n] float32
    ys: np.ndarray  # [OLDEST + steps, tokens, k] float64
    rs: np.ndarray  # [OLDEST + steps, tokens] float64


@functools.lru_cache(maxsize=1)
def _inputs(shape: tuple[int, int, int], eps: float, steps: int, seed: int) -> _Inputs:
    """Drawn from the seed. The newest are kept, since a switched edge changes nothing about them."""
    tokens, n, k = shape
    rows = OLDEST + steps
    needed = 4 * (3 * n * k + rows * tokens * (3 * n + 3 * k))  # W, W_folded, its copy on the device; x, y, z
    memory = _memory()
    if needed > memory // 2:
        raise LabError(
            f"a race at tokens={tokens}, n={n}, k={k} and steps={steps} needs "
            f"{needed / 2**20:,.0f} MiB, and at most half of the {memory / 2**20:,.0f} MiB here is taken; "
            "choose a smaller shape or fewer steps"
        )
    draw = np.random.default_rng(seed)
    xs = draw.standard_normal((rows, tokens, n), np.float32)
    # Rows of very different size, or every r would be nearly 1 and an old one could not be told.
    xs *= np.exp2(draw.uniform(-2, 2, (rows, tokens, 1))).astype(np.float32)
    weight = draw.standard_normal((k, n), np.float32)
    weight /= np.float32(np.sqrt(n))
    gain = 1 + 0.1 * draw.standard_normal(n, np.float32)
    folded = algebra.fold(weight, gain)
    x64 = xs.astype(np.float64).reshape(-1, n)
    ys = np.empty((rows * tokens, k))
    for start in range(0, k, 4096):  # in parts, so that no float64 copy of the whole weight is needed
        part = slice(start, start + 4096)
        ys[:, part] = algebra.unscaled_product(x64, folded[part].astype(np.float64))
    rs = algebra.inv_rms(x64, eps)
    return _Inputs(xs, weight, gain, folded, ys.reshape(rows, tokens, k), rs.reshape(rows, tokens))


def _memory() -> int:
    """Bytes of memory that this machine has, where Python can tell; else 8 GiB."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 8 * 2**30


class Race:
    """A schedule with inputs, ready to be run again and again. See `prepare`."""

    def __init__(self, device: Device, schedule: Schedule, steps: int, seed: int) -> None:
        self.schedule, self.steps, self.device = schedule, steps, device
        inputs = _inputs(schedule.shape, schedule.eps, steps, seed)
        self.xs, self.ys, self.rs = inputs.xs, inputs.ys, inputs.rs
        self._one_at_a_time = threading.Lock()
        self.plan: Plan = device.prepare(schedule, steps)
        given = {"W": inputs.weight, "g": inputs.gain, "W_folded": inputs.folded, "xs": self.xs[OLDEST:]}
        for name, values in given.items():
            if name in schedule.buffers:
                self.plan.write(name, values)

    def run(
        self,
        force: Force | hazards.Hazard | str | None = None,
        record: bool = True,
        annotate: bool = False,
        anyway: bool = False,
    ) -> RaceResult:
        """Replay all steps from the same start and judge each, as the module's `run` says.

        `LabError` if the edges forbid ``force``, unless ``anyway``. One run at a time, whatever thread asks:
        the steps and their judgement share the buffers.
        """
        with self._one_at_a_time:
            return self._run(force, record, annotate, anyway)

    def _run(
        self, force: Force | hazards.Hazard | str | None, record: bool, annotate: bool, anyway: bool
    ) -> RaceResult:
        if force == "worst":
            force = worst_case(self.schedule)
        elif isinstance(force, hazards.Hazard):
            force = force_of(self.schedule, force)
        forced = check_force(self.schedule, force, self.steps, anyway)
        allowed = forced is None or not hazards.ordered(
            self.schedule, forced.hold, forced.until, forced.distance
        )
        # What the step before the first one would have left behind, so that the first can be stale as well.
        before = {"x": self.xs[OLDEST - 1], "y": self.ys[OLDEST - 1], "r": self.rs[OLDEST - 1]}
        for name, values in before.items():
            if name in self.schedule.buffers:
                self.plan.write(name, values.astype(np.float32))
        if "sink" in self.schedule.buffers:
            self.plan.write("sink", np.zeros(1, np.float32))
        self.plan.rewind()
        timeline = None
        if record:
            timeline = self.plan.record(self.steps, forced, anyway)
        else:
            with self.device.annotating() if annotate else contextlib.nullcontext():
                self.plan.run(self.steps, forced, anyway)
        zs = self.plan.read("zs")
        ahead = max(LATEST, forced.distance if forced else 0)
        judged = tuple(self._judge(t, z, ahead) for t, z in enumerate(zs))
        if timeline is not None:
            reader = self.schedule.launches[-1].name
            spans = (timeline.spans(name=reader, lane="main", step=t) for t in range(self.steps))
            labels = {int(i): o.label for o, found in zip(judged, spans, strict=True) for i in found}
            timeline = timeline.with_outcomes(labels)
        return RaceResult(
            schedule=self.schedule,
            device=self.device.describe(),
            hazards=hazards.find(self.schedule),
            force=forced,
            outcomes=judged,
            timeline=timeline,
            allowed=allowed,
        )

    def _judge(self, t: int, z: np.ndarray, ahead: int) -> Outcome:
        now = t + OLDEST
        outcome = outcomes.classify(z, self.ys[now] * self.rs[now][:, None], {})
        if outcome.label == "fresh":
            return outcome
        ys = [self.ys[now - back] for back in range(OLDEST + 1)]
        rs = [self.rs[now - back] for back in range(OLDEST_R + 1)]
        fresh, stale = outcomes.candidates(ys, rs)
        next_ys, next_rs = (of[now + 1 : now + 1 + ahead] for of in (self.ys, self.rs))
        early = outcomes.later(ys[: OLDEST_R + 1], rs, next_ys, next_rs)
        return outcomes.classify(z, fresh, stale, early=early)
