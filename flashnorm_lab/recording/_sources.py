"""Which line of a person's program makes a call, and what that program calls a thing."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

LIBRARIES = frozenset({"concurrent", "cupy", "cupy_backends", "cupyx", "pyopencl", "pytools", "threading"})
"""Packages whose frames lie between a person's line and the call that is recorded."""

CALLERS = 8
"""How many frames are looked through for a name."""

STANDARD = os.path.dirname(os.__file__)
"""Where the standard library's modules lie; some call back, as weakref and contextlib do."""

GENERAL = frozenset(
    {
        "a",
        "ary",
        "arr",
        "array",
        "b",
        "buf",
        "buffer",
        "command_queue",
        "cq",
        "data",
        "dest",
        "dst",
        "e",
        "ev",
        "event",
        "evt",
        "h",
        "host",
        "mem",
        "memory",
        "obj",
        "out",
        "q",
        "queue",
        "source",
        "src",
        "stream",
        "target",
        "thing",
        "value",
        "x",
    }
)
"""Names that tell what kind of thing something is, and not which one."""

ENTRIES = 256
"""How many entries of a list or a dict are looked through for a name."""


class Sources:
    """Source lines, relative to the folder that was the current one when the recording began."""

    def __init__(self) -> None:
        self._folder = os.path.join(os.getcwd(), "")
        self._places: dict[CodeType, str | None] = {}

    def line(self) -> str:
        """The innermost line outside this package and the recorded libraries, "train.py:31"; "" for none."""
        frame = sys._getframe(1)
        places = self._places
        while frame is not None:
            code = frame.f_code
            try:
                place = places[code]
            except KeyError:
                place = places[code] = self._place(frame)
            if place is not None:
                return f"{place}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def _place(self, frame: FrameType) -> str | None:
        root = _module(frame).partition(".")[0]
        file = frame.f_code.co_filename
        if not root or root in LIBRARIES or root == "flashnorm_lab" or os.path.dirname(file) == STANDARD:
            return None
        cell = _notebook_cell(file)
        return cell or file.removeprefix(self._folder)


def _module(frame: FrameType) -> str:
    """The frame's module; "" for code that a library has generated, which has none."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _notebook_cell(file: str) -> str:
    """ "In[5]" for the file behind a notebook's cell, "" for any other."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    words = getattr(getattr(shell, "compile", None), "format_code_name", lambda _: None)(file)
    return words[1] if words and words[0] == "Cell" else ""


def find_name(
    *things: object,
    match: Callable[[object], bool] | None = None,
    generated: bool = False,
    near: bool = False,
) -> str:
    """What the callers call one of these very objects: "y", "self.y", "parts[2]", a key of a dict, or "".

    The nearest caller counts first, and in it a plain variable; but a name that says no more than what kind
    of thing it is, such as a helper's ``queue``, only where there is no other. Identity decides, so that a
    name is never another object's; ``match`` may know more of what is the same thing. ``generated``: the
    globals of code that a library has generated count too. ``near``: only the nearest caller's variables.
    """
    if near:
        return next((name for thing in things for name in _near(thing)), "")
    wanted = {id(thing) for thing in things if thing is not None}

    def is_it(value: object) -> bool:
        return id(value) in wanted or (match is not None and match(value))

    plain = ""
    for name in _candidates(is_it, generated):
        if name not in GENERAL:
            return name
        plain = plain or name
    return plain


def _near(thing: object) -> Iterator[str]:
    for frame, made in _frames():
        if not made:
            for space in (variables_of(frame), frame.f_globals):
                yield from [name for name, value in list(space.items()) if value is thing and _is_word(name)]
            return


def _candidates(is_it: Callable[[object], bool], generated: bool) -> Iterator[str]:
    for frame, made in _frames():
        if made:
            if generated:
                yield from _direct(frame.f_globals, is_it)
            continue
        variables = variables_of(frame)
        own = getattr(variables.get("self"), "__dict__", {})
        yield from _direct(variables, is_it)
        if variables is not frame.f_globals:
            yield from _direct(frame.f_globals, is_it)
        yield from (f"self.{name}" for name in _direct(own, is_it))
        yield from _inside(variables, "", is_it)
        yield from _inside(own, "self.", is_it)


def _frames() -> Iterator[tuple[FrameType, bool]]:
    """The callers, and whether each is code that a library has generated."""
    frame: FrameType | None = sys._getframe(2)
    left = CALLERS
    while frame is not None and left:
        module = _module(frame)
        if module.partition(".")[0] not in LIBRARIES and not module.startswith(__package__):
            left -= 1
            yield frame, not module
        frame = frame.f_back


def variables_of(frame: FrameType) -> dict[str, Any]:
    """A frame's local variables.

    Up to Python 3.12, a function's frame keeps the dict that it shows them in, and by that all that they
    held: a buffer would live on after its variable is deleted. So what it keeps is emptied again.
    """
    shown = frame.f_locals
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables = dict(shown)
        if type(shown) is dict:
            shown.clear()
        return variables
    return shown  # a module's or a class's own


def _direct(space: dict[str, Any], is_it: Callable[[object], bool]) -> Iterator[str]:
    return (name for name, value in list(space.items()) if _is_word(name) and is_it(value))


def _is_word(name: str) -> bool:
    return name[:1] != "_" and name.isidentifier()


def _inside(space: dict[str, Any], prefix: str, is_it: Callable[[object], bool]) -> Iterator[str]:
    """One level down, in lists and dicts."""
    for name, value in list(space.items()):
        if not _is_word(name) or not isinstance(value, dict | list | tuple) or len(value) > ENTRIES:
            continue
        for key, entry in list(value.items()) if isinstance(value, dict) else enumerate(value):
            if is_it(entry):
                yield key if isinstance(key, str) and key.isidentifier() else f"{prefix}{name}[{key!r}]"
