"""Put recorded functions and kernels in the place of CuPy's own in what the program holds already."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ._swap import exchange, names_in, swap

LIBRARY = frozenset({"cupy", "cupyx", "cupy_backends", "flashnorm_lab"})


class Rebinding:
    """``from cupy import add``, and kernels that were made before the recording.

    ``replaced``: pairs of what a name in CuPy stood for and what it stands for now. These are looked for
    among the names of the program's modules. ``convert``: types whose objects get a recorded form, and how;
    they are looked for in dicts, lists, closures and objects too. `left`: what could not be replaced, and
    who holds it.
    """

    def __init__(self, replaced: list[tuple[Any, Any]], convert: dict[type, Callable[[Any], Any]]) -> None:
        self._replaced = replaced
        _exchange(replaced)
        found = [o for o in gc.get_objects() if type(o) in convert]
        cupys = _of_the_library(convert) if found else set()
        self._old = [o for o in found if id(o) not in cupys]
        self._new = [convert[type(o)](o) for o in self._old]
        self.left = swap(self._old, self._new, self._own()) if self._old else []
        own_kinds = [kind for c in convert for kind in _made_by_the_program(c)]
        for each in gc.get_objects() if own_kinds else ():
            if type(each) in own_kinds:
                self.left.append((each, f"a class of the program's own, {type(each).__name__},"))

    def _own(self) -> list[Any]:
        modules = [names_in(m) for n, m in list(sys.modules.items()) if _root(n) in LIBRARY]
        recorded = [holder for each in self._new for holder in (each, each.__dict__)]
        return [self.__dict__, self, self._old, self._new, *recorded, *modules]

    def undo(self) -> None:
        """Put everything back, wherever the program's modules hold it by now."""
        _exchange([(new, old) for old, new in self._replaced])
        self._replaced = []
        if self._old:
            swap(self._new, self._old, self._own())
        self._old, self._new = [], []


def _exchange(pairs: list[tuple[Any, Any]]) -> None:
    """Put the second of each pair in the place of the first, among the names of the program's modules."""
    second = {id(one): two for one, two in pairs}
    for space in modules_of_the_program():
        exchange(space, second)


def _made_by_the_program(kind: type) -> list[type]:
    """A compiled class's subclasses that are neither CuPy's nor a recording's."""
    found = [c for c in kind.__subclasses__() if _root(c.__module__) not in LIBRARY]
    return found + [c for each in found for c in _made_by_the_program(each)]


def _root(name: str) -> str:
    return name.partition(".")[0]


def _of_the_library(kernels: Collection[type]) -> set[int]:
    """The kernels that CuPy keeps for its own functions: in its modules, their classes and their tuples."""
    found: set[int] = set()
    for name, module in list(sys.modules.items()):
        if _root(name) in LIBRARY:
            values = list(names_in(module).values())
            for value in values:
                if issubclass(type(value), type) and _root(value.__module__) in LIBRARY:
                    values += [v for v in vars(value).values() if not issubclass(type(v), type)]
                elif type(value) in (tuple, list):
                    values += [v for v in value if type(v) in kernels]
                elif type(value) in kernels:
                    found.add(id(value))
    return found


def modules_of_the_program() -> Iterator[dict[str, Any]]:
    """The names of every module that is not CuPy's or the lab's."""
    for name, module in list(sys.modules.items()):
        if _root(name) not in LIBRARY:
            yield names_in(module)
