"""Programs as files: a plain JSON format that any tool can write, and `flashnorm-lab hazards` reads.

docs/schedule_format.md describes every key. A file is one JSON object with its steps in a list, or JSON
Lines: the same object without its steps on the first line, then one step a line. Either may be compressed
with gzip. Both are read step by step, so that a file of any size takes little memory.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from . import program
from .errors import LabError
from .json_source import LARGEST, UNPRINTABLE, Fault, File, Repeated, Source, Text, shown, split
from .program import FREES, KINDS, Program, Step, Stream
from .schedule import Access, Schedule

FORMAT = "flashnorm-lab schedule"
VERSION = 1
KEYS = ("format", "version", "name", "repeat", "streams", "buffers", "unseen", "steps")
COMMENTS = ("note", "reason", "twin", "expect", "expect_errors", "expect_redundant")
"""Keys of the object that are left to its author. A step has ``note``."""
MOST_STEPS = 100_000_000
"""More steps than this, over all iterations of a ``repeat``, are refused."""

_KEPT = 1 << 16
"""So many names, and so many accesses, are kept to be used again."""


def load(path: str | PathLike[str]) -> Program:
    """The program in a file.

    Raises ``LabError``, in one line with the file, the step and the cause, for a file that cannot be read,
    is not JSON, is cut off, or does not keep to the format.
    """
    return _load(_file(path))


def loads(text: str | bytes) -> Program:
    """The program in a text, of either form. ``LabError`` as `load` raises it."""
    if not isinstance(text, str | bytes):
        raise LabError(f"{text!r} is no text; give the schedule as str or bytes")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    return _load(Text("the schedule", data))


def stream(path: str | PathLike[str]) -> tuple[Program, Iterator[Step]]:
    """The program without its steps, and its steps one by one, for a file that is too large to be held.

    The steps come once: where ``repeat`` is more than 1, call this again for each iteration. Raises
    ``LabError`` as `load` does, and so does the iterator when it comes to a step that is at fault.
    """
    return _stream(_file(path))


def is_trace(path: str | PathLike[str]) -> bool:
    """Whether a file is, by its content, a profiler's trace: SQLite, or JSON with events of one.

    Such JSON is an object with traceEvents, or a list whose first object has ``ph``. ``LabError`` for a file
    that cannot be read or is empty.
    """
    source = _file(path)
    beginning = source.beginning()
    if beginning.startswith(b"SQLite format 3\0"):
        return True
    listed = beginning.startswith(b"[")
    depth = number = 0
    try:
        for number, (event, value) in enumerate(source.events()):
            depth += event.startswith("start_") - event.startswith("end_")
            if listed and (depth < 2 if number > 1 else number == 1 and event != "start_map"):
                break  # behind the first entry, or it is no object
            if depth == 0:
                break
            if event == "map_key" and depth == 1 + listed:
                if value == ("ph" if listed else "traceEvents"):
                    return True
                if not listed and value in KEYS:
                    break
    except Fault:  # whoever reads the file says where
        return listed and depth > 1
    return False


def save(saved: Program, path: str | PathLike[str]) -> None:
    """Write a program, whole or not at all: JSON Lines if the name ends in ``.jsonl``, else one object.

    With ``.gz`` behind that, compressed with gzip. What is there under the name is replaced.

    What `load` then gives is equal, but for the order of a launch's accesses: reads come before writes.
    ``LabError`` for a program that the format does not hold, such as one with a stream that it does not
    declare, and for a place that cannot be written.
    """
    from .timeline.writing.files import check_target, whole

    if not isinstance(saved, Program):
        how = "program.Program(steps, streams)"
        if isinstance(saved, Schedule):
            how = "program.from_schedule(schedule)"
        elif isinstance(getattr(saved, "program", None), Program):
            how = "its attribute program"
        raise LabError(f"{_thing(saved)} is no program; give {how}")
    path = check_target(path)
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    # A first line alone, without steps, would read like an object whose steps were forgotten.
    lines = _json_lines(saved) if suffix == ".jsonl" and saved.steps else _json_object(saved)
    with whole(path, "utf-8") as text:
        text.writelines(lines)


# Reading


def _file(path: Any) -> File:
    if not isinstance(path, str | PathLike) or not str(path):
        raise LabError(f"{_thing(path)} is no file name; give one, for instance schedule.json")
    return File(Path(path))


def _thing(value: Any) -> str:
    """Any value as a message shows it: not all of a large one."""
    text = repr(value)
    return text if len(text) <= 60 and text.isprintable() else f"this {type(value).__name__}"


def _load(source: Source) -> Program:
    head, steps = _stream(source)
    return head.with_steps(steps)


def _stream(source: Source) -> tuple[Program, Iterator[Step]]:
    beginning = source.beginning()
    cause = ""
    if beginning[:2] in (b"\xff\xfe", b"\xfe\xff"):
        cause = "this is UTF-16 text; save it as UTF-8"
    elif b"\0" in beginning:
        cause = "this is a binary file; a schedule is JSON text"
    elif beginning.startswith(b"version https://git-lfs"):
        cause = "this is a Git LFS pointer, not the file itself; run `git lfs pull` where it came from"
    elif not beginning.startswith(b"{"):
        cause = f'a schedule is a JSON object, {{"format": "{FORMAT}", ...}}, and this begins otherwise'
    if cause:
        raise LabError(f"{source.name}: {cause}")
    found, keys = split(source, "steps", lambda key: _check_key(key, (*KEYS, *COMMENTS), "a schedule"))
    head, views = _header(found, source.name, source.stem)
    objects = source.items("steps.item") if "steps" in keys else _steps_in_lines(source)
    return head, _Reader(source.name, head, views).steps(objects)


def _steps_in_lines(source: Source) -> Iterator[Any]:
    nothing = LabError(
        f'{source.name}: there are no steps: give "steps" or, as JSON Lines, the whole object on the first '
        "line and a step on each line below"
    )
    values = source.lines()
    try:
        next(values)  # the object itself
    except Fault:
        raise nothing from None
    empty = True
    for value in values:
        empty = False
        yield value
    if empty:
        raise nothing


# The object


@dataclass(frozen=True, slots=True)
class _View:
    base: str
    start: int
    nbytes: int


def _header(head: Mapping[str, Any], source: str, name: str = "") -> tuple[Program, dict[str, _View]]:
    """The program without its steps, and the views of its buffers. ``name``: what to call it by default."""
    try:
        if head.get("format") != FORMAT:
            found = shown(head["format"]) if "format" in head else "missing"
            raise ValueError(f'this is no schedule: "format" is {found}; "{FORMAT}" was expected')
        version = head.get("version")
        if version is not None and type(version) is not int:
            raise ValueError(f'"version" is {shown(version)}; a whole number, {VERSION}, was expected')
        if version != VERSION:
            found = shown(version) if "version" in head else "missing"
            raise ValueError(
                f'"version" is {found}; this installation reads version {VERSION}: write that one, or update '
                "flashnorm_lab"
            )
        if "steps" in head:
            raise ValueError(f"steps is {shown(head['steps'])}; a list of steps was expected")
        _check_needed(head, ("streams",), "a schedule")
        streams = {
            _text(key, "a stream's name"): _stream_of(value, f"stream {shown(key)}")
            for key, value in _object(head["streams"], "streams").items()
        }
        buffers: dict[str, int | None] = {}
        views: dict[str, _View] = {}
        for key, value in _object(head.get("buffers", {}), "buffers").items():
            what = f"buffer {shown(_text(key, 'the name of a buffer'))}"
            if isinstance(value, Mapping) and "of" in value:
                views[key] = _view_of(value, what)
            else:
                buffers[key] = _size_of(value, what)
        for key, view in views.items():
            _check_view(key, view, buffers, views)
        built = Program(
            steps=(),
            streams=streams,
            buffers=buffers,
            name=_text(head.get("name", name or "program"), "name"),
            repeat=_number(head.get("repeat", 1), "repeat", 1),
            unseen=tuple([_text(v, "an entry of unseen") for v in _list(head.get("unseen", []), "unseen")]),
        )
    except ValueError as error:
        raise LabError(f"{source}: {error}") from None
    return built, views


def _stream_of(value: Any, what: str) -> Stream:
    if isinstance(value, str):
        return Stream(_choice(value, f"the kind of {what}", KINDS))
    for key in _object(value, what):
        _check_key(key, ("kind", "context"), what)
    _check_needed(value, ("kind",), what)
    kind = _choice(value["kind"], f"the kind of {what}", KINDS)
    return Stream(kind, _text(value.get("context", "0"), f"the context of {what}"))


def _size_of(value: Any, what: str) -> int | None:
    if isinstance(value, Mapping):
        for key in value:
            _check_key(key, ("bytes",), what)
        _check_needed(value, ("bytes",), what)
        value, what = value["bytes"], f"bytes of {what}"
    return None if value is None else _number(value, what)


def _view_of(value: Mapping[str, Any], what: str) -> _View:
    for key in value:
        _check_key(key, ("of", "start", "bytes"), what)
    _check_needed(value, ("bytes",), what)
    start = _number(value.get("start", 0), f"the start of {what}")
    return _View(_text(value["of"], f"'of' of {what}"), start, _number(value["bytes"], f"bytes of {what}", 1))


def _check_view(
    name: str, view: _View, buffers: Mapping[str, int | None], views: Mapping[str, _View]
) -> None:
    if view.base in views:
        root = views[view.base]
        raise ValueError(
            f"buffer {shown(name)} is a view of {shown(view.base)}, itself a view: make it one of "
            f"{shown(root.base)}, from byte {root.start + view.start}"
        )
    size, stop = buffers.get(view.base), view.start + view.nbytes
    if size is not None and stop > size:
        raise ValueError(
            f"buffer {shown(name)} is bytes {view.start} to {stop} of {shown(view.base)}, which has {size}: "
            "make it fit"
        )


# Values


def _hint(word: Any, known: Iterable[str]) -> str:
    """What may have been meant, or what there is."""
    known = list(known)
    near = difflib.get_close_matches(word, known, 1) if isinstance(word, str) else []
    if near:
        return f"did you mean {near[0]!r}?"
    more = ", ..." if len(known) > 20 else ""
    return f"there are {', '.join(known[:20])}{more}" if known else "there are none"


def _check_key(key: str, known: Iterable[str], what: str) -> None:
    if key not in known:
        raise ValueError(f"{what} has no key {shown(key)}; {_hint(key, known)}")


def _check_needed(found: Mapping[str, Any], needed: Iterable[str], what: str) -> None:
    for key in needed:
        if key not in found:
            raise ValueError(f'{what} needs "{key}", which is missing')


def _number(value: Any, what: str, least: int = 0) -> int:
    if type(value) is not int or not least <= value <= LARGEST:
        large = type(value) is int and value > LARGEST
        size = f"of at most {LARGEST}" if large else f"of at least {least}"
        raise ValueError(f"{what} is {shown(value)}; a whole number {size} was expected")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str or not value:
        which = "a text that is not empty" if value == "" else "a text"
        raise ValueError(f"{what} is {shown(value)}; {which} was expected")
    bad = UNPRINTABLE.search(value)
    if bad:
        raise ValueError(f"{what} is {shown(value)}; leave out {shown(bad[0])}, which cannot be printed")
    return value


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} is {shown(value)}; an object was expected")
    return value


def _list(value: Any, what: str) -> list[Any]:
    if type(value) is not list:
        raise ValueError(f"{what} is {shown(value)}; a list was expected")
    return value


def _choice(value: Any, what: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise ValueError(f"{what} is {shown(value)}; {_hint(value, choices)}")
    return value


# Steps


class _Reader:
    """Makes steps of JSON objects, in their order, and knows what is there at each of them."""

    def __init__(self, name: str, head: Program, views: Mapping[str, _View]) -> None:
        self.name, self.views = name, views
        self.streams = {stream: stream for stream in head.streams}
        self.sizes = dict(head.buffers)
        self.index = 0
        self.repeat = head.repeat
        self.most = MOST_STEPS // head.repeat if head.repeat > 1 else LARGEST
        self.completed: set[str] = set()
        self.awaited: dict[str, tuple[int, str]] = {}  # events not completed yet: the first step that waits
        self.texts: dict[str, str] = {}
        self.accesses: dict[tuple[str, int, int | None, bool], Access] = {}

    def steps(self, objects: Iterator[Any]) -> Iterator[Step]:
        """Every step. ``LabError`` in one line, with the step's number and label, for one at fault."""
        try:
            for value in objects:
                yield self.step(value)
                self.index += 1
        except Repeated as error:
            raise LabError(f"{self.name}: step {self.index}: {error}") from None
        except Fault as fault:
            raise LabError(f"{self.name}{fault.place}: step {self.index}: {fault.cause}") from None
        self.end()
        for name, view in self.views.items():
            if view.base not in self.sizes:
                raise LabError(
                    f"{self.name}: buffer {shown(name)} is a view of {shown(view.base)}, which is neither in "
                    f"buffers nor allocated by a step; {_hint(view.base, self.sizes)}"
                )

    def fail(self, text: str, value: Any) -> LabError:
        label = _label(value)
        return LabError(f"{self.name}: step {self.index}{f' ({label})' if label else ''}: {text}")

    def step(self, value: Any) -> Step:
        """The step that an object describes."""
        if self.index >= self.most:
            raise LabError(
                f"{self.name}: repeat is {self.repeat}, which makes more than {MOST_STEPS} steps in all; a "
                "few iterations show all that crosses from one into the next"
            )
        try:
            do = _object(value, "this").get("do")
            kind = _DO.get(do) if type(do) is str else None
            if kind is None:
                _check_needed(value, ("do",), "a step")
                raise ValueError(f'"do" is {shown(do)}; {_hint(do, _DO)}')
            made: dict[str, Any] = {}
            for key, given in value.items():
                known = kind.keys.get(key)
                if known is not None:
                    made[known.attribute] = known.check(self, given, key)
                elif key != "do" and key != "note":
                    _check_key(key, kind.keys, f'"{do}"')
            _check_needed(value, kind.needed, f'"{do}"')
            step = kind.make(self, made)
        except ValueError as error:
            raise self.fail(str(error), value) from None
        if isinstance(step, _EVENTS):
            self.order(step, value)
        return step

    def end(self) -> None:
        """Refuse, behind the last step, work that waits after an event that there is not."""
        for event, (number, label) in self.awaited.items():
            known = sorted(self.completed)
            hint = _hint(event, known) if known else "let a launch or a record complete it before"
            raise LabError(
                f"{self.name}: step {number} ({label}): it waits after event {shown(event)}, which no step "
                f"completes, or which was destroyed before; {hint}"
            )

    def order(self, step: Any, value: Any) -> None:
        """Refuse work that waits after an event that only it, or work behind it, completes.

        In a loop the event may be one of the iteration before.
        """
        for event in getattr(step, "after", ()):
            if event not in self.completed:
                self.awaited.setdefault(event, (self.index, _label(value)))
        event = step.event
        if isinstance(step, program.DestroyEvent):
            self.completed.discard(event)
            return
        if not event:
            return
        waits = self.awaited.pop(event, None)
        if waits is not None and self.repeat == 1 and isinstance(step, program.Launch | program.Barrier):
            number, label = waits
            by = (
                f"step {self.index} ({_label(value)}), behind it, only"
                if number != self.index
                else "it itself"
            )
            raise LabError(
                f"{self.name}: step {number} ({label}): this is a cycle: it waits after event "
                f"{shown(event)}, which {by} completes; let it wait for work in front of it, or for nothing"
            )
        self.completed.add(event)

    # Checks of values. Each takes the value and its key.

    def text(self, value: Any, key: str) -> str:
        kept = self.texts.get(value) if type(value) is str else None
        if kept is None:
            kept = _text(value, key)
            if len(self.texts) >= _KEPT:
                self.texts.clear()
            self.texts[kept] = kept
        return kept

    def text_or_empty(self, value: Any, key: str) -> str:
        return "" if value == "" else self.text(value, key)

    def text_or_none(self, value: Any, key: str) -> str | None:
        return None if value is None else self.text(value, key)

    def stream(self, value: Any, key: str) -> str:
        known = self.streams.get(value) if type(value) is str else None
        if known is None:
            name = self.text(value, key)
            raise ValueError(f"there is no stream {shown(name)} in streams; {_hint(name, self.streams)}")
        return known

    def stream_or_none(self, value: Any, key: str) -> str | None:
        return None if value is None else self.stream(value, key)

    def events(self, value: Any, key: str) -> tuple[str, ...]:
        return tuple([self.text(event, f"an event in {key}") for event in _list(value, key)])

    def truth(self, value: Any, key: str) -> bool:
        if type(value) is not bool:
            raise ValueError(f"{key} is {shown(value)}; true or false was expected")
        return value

    def number(self, value: Any, key: str) -> int:
        return _number(value, key)

    def number_or_none(self, value: Any, key: str) -> int | None:
        return None if value is None else _number(value, key)

    def iteration(self, value: Any, key: str) -> int:
        return _number(value, key, -1)

    def how(self, value: Any, key: str) -> str:
        return _choice(value, key, FREES)

    def whole(self, value: Any, key: str) -> str:
        """A buffer of its own, not a view, whether it is there or not."""
        if type(value) is str and value in self.views:
            raise ValueError(
                f"{shown(value)} is a view; name the buffer itself, {shown(self.views[value].base)}"
            )
        return self.text(value, key)

    def place(self, value: Any, key: str) -> str:
        """A buffer or a view that is there."""
        name = self.text(value, key)
        if name not in self.sizes and name not in self.views:
            raise ValueError(
                f"there is no buffer {shown(name)}, neither in buffers nor allocated by a step before; "
                f"{_hint(name, [*self.sizes, *self.views])}"
            )
        return name

    def reads(self, value: Any, key: str) -> list[Access]:
        return [self.access(part, key, False) for part in _list(value, key)]

    def writes(self, value: Any, key: str) -> list[Access]:
        return [self.access(part, key, True) for part in _list(value, key)]

    def access(self, part: Any, key: str, writes: bool) -> Access:
        start, stop = 0, None
        if type(part) is list and len(part) == 3:
            part, start, stop = part
            start, stop = _number(start, f"a start in {key}"), _number(stop, f"a stop in {key}")
        elif type(part) is not str:
            given = json.dumps(part) if type(part) is list and len(part) < 3 else shown(part)
            given = given if len(given) <= 60 else "a list"
            raise ValueError(f"{key} has {given}; a buffer's name or [name, start, stop] was expected")
        name = self.text(part, f"a name in {key}")
        known = self.accesses.get((name, start, stop, writes))
        if known is None:
            buffer, first, last = self.range(self.place(name, key), start, stop)
            if last is None:
                raise ValueError(
                    f"the size of {shown(name)} is not known, so it cannot be named as a whole; write "
                    f"[{shown(name)}, start, stop]"
                )
            if len(self.accesses) >= _KEPT:
                self.accesses.clear()
            known = self.accesses[name, start, stop, writes] = Access(buffer, first, last, writes)
        return known

    def range(self, name: str, start: int, stop: int | None) -> tuple[str, int, int | None]:
        """Bytes of a buffer or, for a view, of its base. ``stop`` None: to its end, if that is known."""
        view = self.views.get(name)
        size = self.sizes[name] if view is None else view.nbytes
        stop = size if stop is None else stop
        if stop is None:
            return name, start, None
        if start >= stop:
            raise ValueError(
                f"bytes {start} to {stop} of {shown(name)} are none; the stop is the first byte behind"
            )
        if size is not None and stop > size:
            raise ValueError(f"bytes {start} to {stop} of {shown(name)}, which has {size}: make them fit")
        if view is None:
            return name, start, stop
        if view.base not in self.sizes:
            raise ValueError(
                f"{shown(name)} is a view of {shown(view.base)}, which is not there yet: allocate it before"
            )
        start, stop, size = start + view.start, stop + view.start, self.sizes[view.base]
        if size is not None and stop > size:
            raise ValueError(
                f"{shown(name)} reaches to byte {stop} of {shown(view.base)}, which has {size}: make it fit"
            )
        return view.base, start, stop


def _label(value: Any) -> str:
    """A step's short name and its source line, from an object in which anything may be wrong."""
    if not isinstance(value, Mapping) or type(value.get("do")) is not str:
        return ""
    texts = {key: v for key, v in value.items() if type(v) is str and v}
    do = texts.get("do", "")
    name = texts.get("name") if do == "launch" else None
    if name is None:
        what = next((texts[key] for key in ("event", "buffer", "graph", "to", "stream") if key in texts), "")
        name = f"{do} {what}"
    label = f"{name}, {texts['source']}" if "source" in texts else name
    return UNPRINTABLE.sub("?", label.strip())[:120]


Make = Callable[[_Reader, dict[str, Any]], Step]
Check = Callable[[_Reader, Any, str], Any]


def _make_launch(reader: _Reader, made: dict[str, Any]) -> Step:
    accesses = (*made.pop("reads", ()), *made.pop("writes", ()))
    return program.Launch(accesses=accesses, **made)


def _make_synchronize(reader: _Reader, made: dict[str, Any]) -> Step:
    if made.get("stream") is not None and made.get("event") is not None:
        raise ValueError("it names a stream and an event; keep one of them, or none for the whole device")
    return program.Synchronize(**made)


def _make_query(reader: _Reader, made: dict[str, Any]) -> Step:
    if (made.get("stream") is None) == (made.get("event") is None):
        raise ValueError("a query is of a stream or of an event: name one of them")
    return program.Query(**made)


def _make_host_access(step: type, reader: _Reader, made: dict[str, Any]) -> Step:
    name, start, stop = made["buffer"], made.get("start", 0), made.get("stop")
    buffer, first, last = reader.range(name, start, stop)
    if name not in reader.views:
        last = stop  # None stays: to the end
    return step(**(made | {"buffer": buffer, "start": first, "stop": last}))


def _make_allocate(reader: _Reader, made: dict[str, Any]) -> Step:
    name, size = made["buffer"], made["nbytes"]
    if reader.sizes.get(name, size) != size:
        reader.accesses.clear()
    reader.sizes[name] = size
    return program.Allocate(**made)


def _make_free(reader: _Reader, made: dict[str, Any]) -> Step:
    named = made.get("stream") is not None
    if named and made.get("how") != "stream":
        raise ValueError('it names a stream, which goes with "how": "stream" alone: write that, or no stream')
    if not named and made.get("how") == "stream":
        raise ValueError('"how": "stream" needs "stream", which is missing')
    return program.Free(**made)


def _make(step: type, reader: _Reader, made: dict[str, Any]) -> Step:
    return step(**made)


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of a step: the attribute that it becomes, how it is checked, its value where it is left out."""

    attribute: str
    check: Check
    default: Any


class _Kind:
    """How steps of one ``do`` are read. A key is needed where the step itself has no default for it."""

    def __init__(
        self, step: type, checks: Mapping[str, Check], make: Make | None = None, **renamed: str
    ) -> None:
        self.step, self.make = step, make or partial(_make, step)
        defaults = {f.name: [] if f.default == () else f.default for f in fields(step)}
        checks = {**checks, "thread": _Reader.text, "source": _Reader.text_or_empty}
        self.keys = {
            key: _Key(renamed.get(key, key), check, defaults.get(renamed.get(key, key), []))
            for key, check in checks.items()
        }
        self.needed = tuple([key for key, k in self.keys.items() if k.default is MISSING])


_R = _Reader
_RANGE = {"buffer": _R.place, "start": _R.number, "stop": _R.number_or_none, "step": _R.iteration}
_DO = {
    "launch": _Kind(
        program.Launch,
        {
            "name": _R.text,
            "stream": _R.stream,
            "reads": _R.reads,
            "writes": _R.writes,
            "after": _R.events,
            "event": _R.text_or_empty,
            "blocks": _R.truth,
            "category": _R.text,
            "step": _R.iteration,
        },
        _make_launch,
    ),
    "record": _Kind(program.Record, {"event": _R.text, "stream": _R.stream}),
    "wait": _Kind(program.Wait, {"event": _R.text, "stream": _R.stream}),
    "barrier": _Kind(program.Barrier, {"stream": _R.stream, "after": _R.events, "event": _R.text_or_empty}),
    "synchronize": _Kind(
        program.Synchronize, {"stream": _R.stream_or_none, "event": _R.text_or_none}, _make_synchronize
    ),
    "query": _Kind(
        program.Query,
        {"done": _R.truth, "stream": _R.stream_or_none, "event": _R.text_or_none},
        _make_query,
    ),
    "host read": _Kind(program.HostRead, _RANGE, partial(_make_host_access, program.HostRead)),
    "host write": _Kind(program.HostWrite, _RANGE, partial(_make_host_access, program.HostWrite)),
    "allocate": _Kind(
        program.Allocate,
        {
            "buffer": _R.whole,
            "bytes": _R.number,
            "address": _R.number_or_none,
            "memory": _R.text,
            "stream": _R.stream_or_none,
        },
        _make_allocate,
        bytes="nbytes",
    ),
    "free": _Kind(program.Free, {"buffer": _R.whole, "how": _R.how, "stream": _R.stream_or_none}, _make_free),
    "record stream": _Kind(program.RecordStream, {"buffer": _R.whole, "stream": _R.stream}),
    "begin capture": _Kind(program.BeginCapture, {"stream": _R.stream, "graph": _R.text}),
    "end capture": _Kind(program.EndCapture, {"stream": _R.stream}),
    "launch graph": _Kind(program.GraphLaunch, {"graph": _R.text, "stream": _R.stream, "step": _R.iteration}),
    "user event": _Kind(program.UserEvent, {"event": _R.text}),
    "set event": _Kind(program.SetEvent, {"event": _R.text}),
    "destroy event": _Kind(program.DestroyEvent, {"event": _R.text}),
    "hand over": _Kind(program.HandOver, {"to": _R.text}),
}
_EVENTS = (program.Launch, program.Barrier, program.Record, program.UserEvent, program.DestroyEvent)
_NAMES = {kind.step: do for do, kind in _DO.items()}


# Writing


def _json_object(saved: Program) -> Iterator[str]:
    head = _head_values(saved)
    yield "{\n" + ",\n".join([f"{_dump(key)}: {_dump(value)}" for key, value in head.items()])
    yield ',\n"steps": ['
    for number, step in enumerate(_step_values(saved)):
        yield (",\n" if number else "\n") + _dump(step)
    yield "\n]\n}\n"


def _json_lines(saved: Program) -> Iterator[str]:
    yield _dump(_head_values(saved)) + "\n"
    for step in _step_values(saved):
        yield _dump(step) + "\n"


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _head_values(saved: Program) -> dict[str, Any]:
    streams = {
        name: what.kind if what.context == "0" else {"kind": what.kind, "context": what.context}
        for name, what in saved.streams.items()
    }
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": saved.name,
        "repeat": saved.repeat,
        "streams": streams,
        "buffers": dict(saved.buffers),
        "unseen": list(saved.unseen),
    }
    _header(head, f"program {shown(saved.name)}")
    return head


def _step_values(saved: Program) -> Iterator[dict[str, Any]]:
    """Each step as the object that describes it, read again, so that only what `load` takes is written."""
    reader = _Reader(f"program {shown(saved.name)}", saved, {})
    for reader.index, step in enumerate(saved.steps):
        value = _value(step, reader)
        reader.step(value)
        yield value
    reader.end()


def _value(step: Any, reader: _Reader) -> dict[str, Any]:
    do = _NAMES.get(type(step))
    if do is None:
        raise reader.fail(f"{step!r} is no step of a program", None)
    value: dict[str, Any] = {"do": do}
    for key, known in _DO[do].keys.items():
        if key in ("reads", "writes"):
            given: Any = [_part(a, reader) for a in step.accesses if a.writes == (key == "writes")]
        else:
            given = getattr(step, known.attribute)
        if isinstance(given, tuple):
            given = list(given)
        if given != known.default:
            value[key] = given
    return value


def _part(access: Access, reader: _Reader) -> str | list[Any]:
    if access.per_step:
        raise reader.fail(f"{access} is of another row in each step; write the steps out one by one", None)
    if (access.start, access.stop) == (0, reader.sizes.get(access.buffer)):
        return access.buffer
    return [access.buffer, access.start, access.stop]
