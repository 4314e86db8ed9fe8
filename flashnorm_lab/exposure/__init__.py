"""Hazards shown on a device: the interleaving that exposes one is run, and the wrong result is there to see.

    verdict = hazards.check(program)
    shown = exposure.expose(program, verdict.hazards[0])
    print(shown.explain())

Any `flashnorm_lab.program.Program` can be played back, with stand-ins for its kernels: a launch notes what it
finds in the bytes that it reads, and leaves a mark of its own in those that it writes. Streams are real
OpenCL queues, events real OpenCL events. The order of the device's work comes from those alone, not from the
analysis, so a run is an independent witness: the first access is held back by a user event until the second
is done, which is legal if nothing orders the two, and cannot be done if something does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..errors import LabError
from ..program import Allocate, Free, GraphLaunch, Program, Step, UserEvent, label
from ..schedule import Schedule
from .plan import Part, Plan, Work, read_program

if TYPE_CHECKING:
    from ..devices.opencl import OpenCLDevice
    from ..hazards import Hazard, Verdict
    from .play import Played, Source, Spot

__all__ = ["Difference", "Exposure", "Run", "execute", "expose"]


@dataclass(frozen=True)
class Difference:
    """Bytes that turned out otherwise than in another run.

    ``kind``: "read" (``launch`` read what ``found`` says), "write" (it wrote over that), "left" (the bytes
    hold that at the end; no ``launch``) or "spread" (read or left by the right launch, which had itself gone
    wrong) or "never ran". ``index`` is the place of ``launch`` in the unrolled steps, ``step`` its iteration
    (-1 for none). ``stop`` is None at the end of a buffer of unknown size.
    """

    kind: str
    launch: str
    index: int
    step: int
    buffer: str
    start: int
    stop: int | None
    found: str
    instead_of: str
    text: str

    def __str__(self) -> str:
        return self.text


class Run:
    """A program as it was played back once: what every launch observed, and what was left at the end.

    ``kept``: whether the first piece of work was held until the second was done (None: nothing was asked to
    be held); ``why`` not, in words. ``device``: the name of the device that it was measured on.
    """

    def __init__(self, plan: Plan, played: Played, device: str) -> None:
        self._plan, self._played = plan, played
        self.name, self.device = plan.name, device
        self.kept, self.why = played.kept, played.why

    def differences(self, other: Run) -> tuple[Difference, ...]:
        """Where this run differs from another of the same program, or of one with more waits in it."""
        found = list(_differences(other, self))
        rank = {"read": 0, "never ran": 0, "left": 1, "write": 2, "spread": 3}
        return tuple(sorted(found, key=lambda d: rank[d.kind]))

    def same(self, other: Run) -> bool:
        """Whether every launch observed the same as in the other run, and the same was left at the end."""
        return not self.differences(other)

    def observed(self) -> tuple[str, ...]:
        """What each launch read, in the host's order, then what was left at the end, each in a line."""
        lines = []
        for work in _in_order(self._plan):
            if work.number not in self._played.ran:
                lines.append(f"{work.name} never ran")
                continue
            for part, at in _parts(work):
                if not part.writes:
                    values = self._played.seen[at : at + len(part.words)]
                    lines += [f"{work.name} read in {t} {s}" for t, s in self._told(part, values)]
        for part in self._plan.left:
            values = self._played.memory[part.first : part.last]
            lines += [f"at the end {t} holds {s}" for t, s in self._told(part, values)]
        return tuple(lines)

    def _allocated_late(self, part: Part) -> bool:
        """Whether the allocation of a buffer came after its free, as the freed bytes show."""
        memory = self._played.memory
        return all(self._played.source(w, int(memory[w])).kind == "allocation" for w in part.words)

    def _told(self, part: Part, values: Any) -> Iterator[tuple[str, str]]:
        sources = [self._played.source(w, int(v)) for w, v in zip(part.words, values, strict=True)]
        for first, last in _alike(sources):
            start, stop = _bytes(self._plan, part, first, last)
            yield _range_text(part, start, stop), sources[first].text

    def __str__(self) -> str:
        return "\n".join([f"{self.name}, measured on {self.device}", *(f"  {o}" for o in self.observed())])

    def as_dict(self) -> dict[str, object]:
        """The run as plain values, for JSON."""
        return {
            "program": self.name,
            "measured on": self.device,
            "kept": self.kept,
            "why": self.why,
            "observed": list(self.observed()),
        }


@dataclass(frozen=True)
class Exposure:
    """A hazard, played back in the host's order, as it was forced, and so forced once it was repaired.

    ``serial``: every step was waited for before the next, which is what the program means. ``forced``: the
    same, but with the first access held until the second was done. ``repaired``: the repaired program, with
    the first access held as long as anything lets it.
    """

    hazard: Hazard
    device: str
    serial: Run
    forced: Run
    repaired: Run | None
    how: str
    """What was forced, in words."""
    unrepaired: str = ""
    """Why the repaired program could not be run, where it could not."""

    @property
    def differences(self) -> tuple[Difference, ...]:
        """Which launch observed what in the forced run, and what was left otherwise; worst first."""
        return self.forced.differences(self.serial)

    @property
    def shows(self) -> bool:
        """Whether the forced run differs from the one in the host's order."""
        return bool(self.differences)

    @property
    def mended(self) -> bool:
        """Whether the repaired program, forced alike, gave what the program means."""
        return self.repaired is not None and self.repaired.same(self.serial)

    def explain(self) -> str:
        """What was done and what came of it, in a few lines."""
        lines = [self.hazard.explain(), f"Measured on {self.device}: {self.how}."]
        if self.forced.kept is False:
            lines.append(f"  That could not be: {self.forced.why}.")
        told = [d for d in self.differences if d.kind != "spread"]
        lines += [f"  {d}" for d in told[:MANY]]
        more = len(self.differences) - len(told[:MANY])
        if more:
            lines.append(f"  and {more} more that came of it")
        if not self.shows:
            lines.append("  Nothing differed from the host's order.")
        if self.repaired is None:
            return "\n".join([*lines, f"The repaired program cannot be run: {self.unrepaired}."])
        verdict = "every launch observed what it should" if self.mended else "still wrong"
        lines.append(f"Repaired, under the same forcing: {verdict}.")
        if self.mended and self.repaired.kept is False:
            lines.append(f"  {self.repaired.why}.")
        if not self.mended:
            lines += [f"  {d}" for d in self.repaired.differences(self.serial)[:MANY]]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        """The exposure as plain values, for JSON."""
        return {
            "hazard": self.hazard.as_dict(),
            "measured on": self.device,
            "forced": self.how,
            "kept": self.forced.kept,
            "why": self.forced.why,
            "shows": self.shows,
            "differences": [str(d) for d in self.differences],
            "mended": self.mended,
            "repaired": self.unrepaired if self.repaired is None else self.repaired.why,
        }


MANY = 6
"""How many differences an explanation names."""
TURNS = ", with host threads taking turns on a stream in another order"
TRIES = 8
"""How many launches of a graph are tried, at most, to find those that a hazard is between."""


def execute(
    program: Program,
    device: OpenCLDevice | None = None,
    hold: tuple[int, int] | None = None,
    serial: bool = False,
) -> Run:
    """Play a program (or a recording) back on an OpenCL device (None: the default one).

    Without more it runs as it would: what nothing orders, luck orders. ``serial``: every step is waited for
    before the next is made. ``hold``: two places in the unrolled steps; the first one's work is held until
    the second one's is done, and all else is in the host's order. `Run.kept` says whether that could be; it
    never hangs where it could not. ``LabError`` for a program that cannot be, naming the step, for steps that
    do no work, and for a device that is no OpenCL device.
    """
    from .. import hazards
    from .play import Spot

    read = read_program(hazards.as_program(program))
    spots = None
    if hold is not None:
        first, second = (_place(read, index) for index in hold)
        if first == second:
            raise LabError(f"hold={hold!r}: a step cannot be held until it is done itself; name two steps")
        spots = (Spot(first), Spot(second))
    return _played(device, read, _Forcing("", spots) if serial or spots else None)


def expose(
    program: Program | Schedule,
    hazard: Hazard,
    device: OpenCLDevice | None = None,
    repaired: Program | None = None,
    repeats: int = 2,
) -> Exposure:
    """Run the interleaving that exposes a hazard of ``program``, and the repaired program under the same.

    ``program``: a program, a recording, or one of the lab's own schedules, run ``repeats`` times. ``hazard``:
    one of `hazards.check` of this very program. ``repaired``: that verdict's ``repaired()`` (None: it is
    looked for). ``device``: an OpenCL device, None for the default one. ``LabError`` for a hazard that names
    no steps of this program, and as in `execute`.
    """
    from .. import hazards
    from ..program import from_schedule

    if repaired is None:
        repaired = _repaired(program, hazards.check(program, repeats), repeats)
    own = isinstance(program, Schedule)
    before = read_program(from_schedule(program, repeats) if own else hazards.as_program(program))
    device, forcings = _opencl(device), _forcings(before, hazard)
    after, what = read_program(repaired), forcings[0]
    if [w.label for w in _in_order(after)] != [w.label for w in _in_order(before)]:
        raise LabError(f"{repaired.name}: a repaired program makes the same launches; this one makes others")
    serial, unrepaired = None, ""
    try:
        if after.steps == before.steps:
            raise LabError("nothing that could be put in orders the two")
        serial = _played(device, after, what.moved(before, after).unforced())
    except LabError as problem:  # what would keep the host waiting for ever repairs nothing
        unrepaired = str(problem)
    if serial is None or not any(isinstance(step, UserEvent) for step in before.steps):
        # Only where the host lets work go late does that run after what was issued later, unless repaired.
        serial = _played(device, before, what.unforced())
    forced = None
    for forcing in forcings:
        run = _played(device, before, replace(forcing, spare=-1))
        shows = run.kept is not False and not run.same(serial)
        if forced is None or shows:
            forced, what = run, forcing
        if shows:
            break
    mended = None
    if not unrepaired:
        mended = _played(device, after, replace(what.moved(before, after), spare=-1))
    return Exposure(hazard, device.name, serial, forced, mended, what.how, unrepaired)


@dataclass(frozen=True)
class _Forcing:
    """What is done to show a hazard: what is held until what is done, or how memory is treated."""

    how: str
    hold: tuple[Spot, Spot] | None = None
    spare: int = -1
    """The free that touches nothing in the serial run: there the host itself may come to it too early."""
    take: int = -1
    """The pool's free behind which somebody else gets the bytes at once."""
    fresh: int = -1
    """The allocation that marks its bytes, to show when it came."""
    about: frozenset[int] = frozenset()
    """Lives of the buffers whose allocation or free the hazard is about."""
    threads: str = "needed"
    """How far host threads go on, see `play.Player`."""

    def unforced(self) -> _Forcing:
        return replace(self, hold=None, take=-1)

    def moved(self, before: Plan, after: Plan) -> _Forcing:
        """The same forcing in the repaired program, whose steps lie elsewhere."""
        from .play import Spot

        hold = self.hold and tuple(Spot(_moved(before, after, s.index), s.node) for s in self.hold)
        take, fresh = (_moved(before, after, i) if i >= 0 else -1 for i in (self.take, self.fresh))
        spare = _moved(before, after, self.spare) if self.spare >= 0 else -1
        return replace(self, hold=hold, spare=spare, take=take, fresh=fresh)


def _forcings(read: Plan, hazard: Hazard) -> list[_Forcing]:
    """What may show a hazard, likeliest first: more than one with graphs, host threads or user events."""
    firsts = _spots(read, hazard, hazard.first_index, hazard.first)
    seconds = _spots(read, hazard, hazard.second_index, hazard.second)
    first = firsts[0].index
    step = read.steps[first]
    ends = (first, seconds[0].index)
    about = frozenset(read.memory[index].life for index in ends if index in read.memory)
    late = isinstance(step, Free) or any(isinstance(s, UserEvent) for s in read.steps)
    frees = [index for index in ends if isinstance(read.steps[index], Free)]
    spare = frees[0] if hazard.kind == "use after free" and late else -1
    if hazard.kind == "use after free" and isinstance(step, Free):
        how = f"{hazard.buffer} was freed before {hazard.second} came to it, as the host's order has it"
        if step.how == "pool":
            how += ", and its pool gave the bytes to somebody else at once"
        return [_Forcing(how, spare=spare, take=first if step.how == "pool" else -1, about=about)]
    pairs = [(a, b) for a in firsts for b in seconds if a != b]
    pairs.sort(key=lambda pair: (pair[0].index > pair[1].index, pair[1].index - pair[0].index))
    fresh = first if isinstance(step, Allocate) else -1
    threads = ("needed", "eager", "loose") if len({s.thread for s in read.steps}) > 1 else ("needed",)
    orders = [(hazard.first, hazard.second, pairs[:TRIES])]
    if any(isinstance(s, UserEvent) for s in read.steps):  # the one issued first may be the later one anyway
        orders.append((hazard.second, hazard.first, [pair[::-1] for pair in pairs[:TRIES]]))
    return [
        _Forcing(
            f"{held} was held until {until} was done{TURNS * (how_far == 'loose')}",
            pair,
            spare,
            fresh=fresh,
            about=about,
            threads=how_far,
        )
        for held, until, holds in orders
        for how_far in threads
        for pair in holds
    ]


def _repaired(program: Any, verdict: Verdict, repeats: int) -> Program:
    from ..program import from_schedule

    edges = {repair.source for repair in verdict.repair if repair.kind == "named"}
    if edges:
        return from_schedule(program.with_edges(program.edges | edges), repeats)
    return verdict.repaired()


def _opencl(device: OpenCLDevice | None) -> OpenCLDevice:
    from ..devices import opencl

    if device is None:
        return opencl.open_device()
    if not isinstance(device, opencl.OpenCLDevice):
        raise LabError(
            f"device={getattr(device, 'name', device)!s}: programs are played back on OpenCL devices; "
            "take devices.get('opencl')"
        )
    return device


def _played(device: OpenCLDevice | None, read: Plan, forcing: _Forcing | None) -> Run:
    """Play a plan back, step by step and as the forcing has it, or (None) as luck has it."""
    from .play import Player

    device, f = _opencl(device), forcing or _Forcing("")
    settle = forcing is not None
    player = Player(device, read, settle, f.hold, f.spare, f.take, f.fresh, f.threads, f.about)
    return Run(read, player.play(), device.name)


def _place(read: Plan, index: int) -> int:
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(read.steps):
        raise LabError(f"hold: step {index!r} is not one of the {len(read.steps)} steps, 0 to "
                       f"{len(read.steps) - 1}")  # fmt: skip
    step = read.steps[index]
    touches = index in read.works or index in read.memory or isinstance(step, GraphLaunch)
    if not touches:
        raise LabError(f"hold: step {index} ({label(step)}) does no work that could be held or waited for")
    return index


def _spots(read: Plan, hazard: Hazard, index: int, name: str) -> list[Spot]:
    """The piece of work that a hazard names; for one inside a graph, each launch of it."""
    from .play import Spot

    found = []
    if 0 <= index < len(read.steps) and label(read.steps[index]) == name:
        if index not in read.silent:
            return [Spot(index)]
        for at, nodes in read.nodes.items():
            found += [Spot(at, i) for i, node in enumerate(nodes) if node.described == index]
    if not found:
        raise LabError(
            f"{hazard.kind} on {hazard.buffer}: step {index} of {read.name} is not {name}; "
            "give a hazard that was found in this very program"
        )
    return found


def _moved(before: Plan, after: Plan, index: int) -> int:
    """Where a step has gone in a program with more waits in it, or with a free elsewhere."""
    key = _key(before.steps[index])
    nth = sum(_key(s) == key for s in before.steps[:index])
    alike = [i for i, s in enumerate(after.steps) if _key(s) == key]
    if nth >= len(alike):
        raise LabError(
            f"the repaired program has lost {label(before.steps[index])}; a repair keeps every step"
        )
    return alike[nth]


def _key(step: Step) -> tuple[object, ...]:
    return type(step), label(step), getattr(step, "stream", None), step.thread, getattr(step, "step", -1)


# Two runs, side by side


def _in_order(read: Plan) -> list[Work]:
    return sorted(read.all_works(), key=lambda work: work.number)


def _parts(work: Work) -> Iterator[tuple[Part, int]]:
    """What a piece of work touches, each with the slot of its first word."""
    at = work.slot
    for part in work.parts:
        yield part, at
        at += len(part.words)


def _alike(items: list[Any]) -> Iterator[tuple[int, int]]:
    """First and last+1 of each run of equal neighbours."""
    first = 0
    for i in range(1, len(items) + 1):
        if i == len(items) or items[i] != items[first]:
            yield first, i
            first = i


def _bytes(read: Plan, part: Part, first: int, last: int) -> tuple[int, int | None]:
    """The bytes of the buffer that the part's words ``first`` to ``last`` stand for."""
    start = read.bounds[part.first + first][0] - part.base
    stop = read.bounds[part.first + last - 1][1] - part.base
    return start, part.stop if last == len(part.words) else stop


def _range_text(part: Part, start: int, stop: int | None) -> str:
    """Bytes as messages name them; those of a whole access go without numbers."""
    if (start, stop) == (part.start, part.stop):
        return part.buffer
    return f"{part.buffer}[{start}:{'' if stop is None else stop}]"


def _differences(right: Run, wrong: Run) -> Iterator[Difference]:
    others = {work.number: work for work in right._plan.all_works()}
    for work in _in_order(wrong._plan):
        other = others[work.number]
        ran = [work.number in run._played.ran for run in (right, wrong)]
        if ran == [True, False]:
            yield Difference("never ran", work.label, work.index, work.step, "", 0, 0, "", "",
                             f"{work.name} never ran")  # fmt: skip
        if not all(ran):
            continue
        for (part, at), (_, other_at) in zip(_parts(work), _parts(other), strict=True):
            count = len(part.words)
            yield from _part_differences(
                right, wrong, work, part, right._played.seen[other_at : other_at + count],
                wrong._played.seen[at : at + count],
            )  # fmt: skip
    for part in (*wrong._plan.left, *filter(wrong._allocated_late, wrong._plan.gone)):
        words = slice(part.first, part.last)
        yield from _part_differences(
            right, wrong, None, part, right._played.memory[words], wrong._played.memory[words]
        )


def _part_differences(
    right: Run, wrong: Run, work: Work | None, part: Part, expected: Any, found: Any
) -> Iterator[Difference]:
    pairs: list[tuple[Source, Source] | None] = []
    for word, a, b in zip(part.words, expected, found, strict=True):
        same = int(a) == int(b)
        pairs.append(
            None if same else (right._played.source(word, int(a)), wrong._played.source(word, int(b)))
        )
    for first, last in _alike(pairs):
        pair = pairs[first]
        if pair is not None:
            start, stop = _bytes(wrong._plan, part, first, last)
            difference = _difference(work, part, start, stop, *pair)
            if difference is not None:
                yield difference


def _difference(
    work: Work | None, part: Part, start: int, stop: int | None, right: Source, wrong: Source
) -> Difference | None:
    bytes_ = _range_text(part, start, stop)
    who = work.name if work else ""
    spread = (right.kind, right.number) == (wrong.kind, wrong.number)
    if work is not None and part.writes:
        ends = any(s.kind in ("free", "taken", "allocation") for s in (right, wrong))
        first = part.life not in (right.life, wrong.life)
        late = (wrong.kind, wrong.life) == ("allocation", right.life)  # its own free was there before
        # A buffer's first write is over whatever the end of another one has left there.
        if spread or (ends and first and not late):
            return None
        kind, text = "write", f"{who} wrote {bytes_} over {wrong.text} instead of over {right.text}"
    elif spread:
        kind = "spread"
        text = f"{who} read in {bytes_}" if work else f"at the end {bytes_} holds"
        text += f" {wrong.text}, which had gone wrong before"
    elif work is not None:
        kind, text = "read", f"{who} read in {bytes_} {wrong.text} instead of {right.text}"
    else:
        kind, text = "left", f"at the end {bytes_} holds {wrong.text} instead of {right.text}"
    return Difference(
        kind,
        work.label if work else "",
        work.index if work else -1,
        work.step if work else -1,
        part.buffer,
        start,
        stop,
        wrong.text,
        right.text,
        text,
    )
