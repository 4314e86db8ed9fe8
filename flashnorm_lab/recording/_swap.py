"""Replace functions wherever the running program holds them."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import CellType, FrameType, ModuleType
from typing import Any

from ._sources import variables_of


def swap(old: Sequence[Any], new: Sequence[Any], own: Iterable[Any]) -> list[tuple[Any, str]]:
    """Put each of ``new`` in the place of its ``old``, in modules, dicts, lists, closures and objects.

    ``own`` are the caller's own holders, which stay as they are. Returned is what is left as it was, and
    who holds it: a tuple, a bound method, a local variable of a function that is running.
    """
    own = list(own)
    new_of = {id(o): n for o, n in zip(old, new, strict=True)}
    old_of = {id(o): o for o in old}
    mine = {id(holder) for holder in own} | {id(old), id(new), id(new_of), id(old_of)}
    left: list[tuple[Any, str]] = []
    for space in map(names_in, list(sys.modules.values())):
        if id(space) not in mine:
            exchange(space, new_of)
    # Each object looked for makes the search through the whole process longer.
    held = _held_elsewhere(old, [*own, old, old_of])
    for holder in gc.get_referrers(*held) if held else ():
        if id(holder) in mine or isinstance(holder, FrameType):
            continue
        space = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
        if isinstance(holder, CellType):
            holder.cell_contents = new_of[id(holder.cell_contents)]
        elif isinstance(holder, list):
            holder[:] = [new_of.get(id(value), value) for value in holder]
        elif isinstance(space, dict) and not _of_class(space):
            exchange(space, new_of)
        what = "class" if isinstance(holder, dict) else type(holder).__name__
        left += [(o, f"a {what}") for o in gc.get_referents(holder) if id(o) in new_of]
    left += [(value, f"the local variable {name}") for name, value in _locals() if id(value) in new_of]
    return left


def names_in(module: Any) -> dict[str, Any]:
    """A module's names, read so that a lazy module is not loaded by it."""
    return object.__getattribute__(module, "__dict__") if isinstance(module, ModuleType) else {}


def exchange(space: dict[Any, Any], new_of: Mapping[int, Any]) -> None:
    """Put, in the place of each object whose id is in ``new_of``, what stands for it there."""
    if not new_of.keys().isdisjoint(map(id, space.values())):
        for key, value in list(space.items()):
            if id(value) in new_of:
                space[key] = new_of[id(value)]


def _held_elsewhere(old: Sequence[Any], holders: Sequence[Any]) -> list[Any]:
    """Those of which somebody else than these holders has a reference."""
    ids = {id(o) for o in old}
    known = Counter(id(o) for holder in holders for o in gc.get_referents(holder) if id(o) in ids)
    (listed,) = [sys.getrefcount(o) for o in [object()]]  # by its list, the loop, and the call itself
    return [o for o in old if sys.getrefcount(o) > known[id(o)] + listed - 1]


def _of_class(space: dict[Any, Any]) -> bool:
    """Whether a dict is a class's own, which must not be changed behind its back."""
    return "__module__" in space and ("__dict__" in space or "__weakref__" in space or "__doc__" in space)


def _locals() -> Iterator[tuple[str, Any]]:
    """The local variables of every function that is running."""
    seen: set[int] = set()
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None and id(frame) not in seen:
            seen.add(id(frame))
            if not str(frame.f_globals.get("__name__")).startswith(__package__):
                variables = variables_of(frame)
                if variables is not frame.f_globals:
                    yield from list(variables.items())
            frame = frame.f_back
