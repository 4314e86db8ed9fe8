"""The race, run for real on a device: many steps of one schedule, and what became of each.

Every step gets its own x, so that an old y is told from a new one. Inputs are random from a seed; the
reference for each step is computed in float64 by `flashnorm_lab.algebra`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import algebra, hazards, outcomes
from .devices.base import Device, Force, Plan, check_force, check_steps
from .errors import LabError
from .outcomes import Outcome
from .schedule import Copy, Launch, Schedule

if TYPE_CHECKING:
    from .timeline import Timeline

OLDEST = 32
"""How many steps back an old content of y is looked for. Nothing makes the host wait between steps, so a
matrix stream that nobody waits for falls behind by more than one."""
OLDEST_R = 2
"""Likewise for r, which takes far less time."""


@dataclass(frozen=True, eq=False)
class RaceResult:
    """What a race did. Measured on ``device``; ``timeline`` is of the very run that ``outcomes`` judges."""

    schedule: Schedule
    device: dict[str, Any]
    hazards: tuple[hazards.Hazard, ...]
    force: Force | None
    outcomes: tuple[Outcome, ...]
    timeline: Timeline | None

    @property
    def counts(self) -> dict[str, int]:
        """Steps that were fresh, stale and torn."""
        return outcomes.count(self.outcomes)

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
            "forced": None if self.force is None else {"hold": self.force.hold, "until": self.force.until},
            "steps": len(self.outcomes),
            **self.counts,
            "per_step": [o.label for o in self.outcomes],
            "sources": list(dict.fromkeys(o.source for o in self.outcomes if o.source)),
        }


def worst_case(schedule: Schedule) -> Force | None:
    """The interleaving that makes the first read-after-write hazard within a step go wrong every time.

    The writer is held until the reader is done. None where nothing can go wrong within a step, or only
    between two that a device cannot hold: the host, and torch's own kernels.
    """
    can_hold = {s.name for s in schedule.steps if isinstance(s, Launch | Copy)}
    for hazard in hazards.find(schedule, repeats=1):
        if hazard.kind == "RAW" and {hazard.first, hazard.second} <= can_hold:
            return Force(hazard.first, hazard.second)
    return None


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
    force: Force | str | None = None,
    seed: int = 0,
    record: bool = True,
    annotate: bool = False,
) -> RaceResult:
    """Run ``steps`` steps and judge each. ``force``: a `Force`, "HOLD:UNTIL", or "worst" for `worst_case`.

    "worst" where nothing can be forced runs freely, and the result's ``force`` is None.
    ``record`` keeps the timeline. ``annotate``, without ``record``, pushes NVTX ranges for another profiler.
    """
    return prepare(device, schedule, steps, seed).run(force, record, annotate)


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
        self, force: Force | str | None = None, record: bool = True, annotate: bool = False
    ) -> RaceResult:
        """Replay all steps from the same start and judge each. `LabError` if the edges forbid ``force``.

        One run at a time, whatever thread asks: the steps and their judgement share the buffers.
        """
        with self._one_at_a_time:
            return self._run(force, record, annotate)

    def _run(self, force: Force | str | None, record: bool, annotate: bool) -> RaceResult:
        forced = worst_case(self.schedule) if force == "worst" else check_force(self.schedule, force)
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
            timeline = self.plan.record(self.steps, forced)
        else:
            with self.device.annotating() if annotate else contextlib.nullcontext():
                self.plan.run(self.steps, forced)
        zs = self.plan.read("zs")
        judged = tuple(self._judge(t, z) for t, z in enumerate(zs))
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
        )

    def _judge(self, t: int, z: np.ndarray) -> Outcome:
        now = t + OLDEST
        ys = [self.ys[now - back] for back in range(OLDEST + 1)]
        rs = [self.rs[now - back] for back in range(OLDEST_R + 1)]
        return outcomes.classify(z, *outcomes.candidates(ys, rs))
