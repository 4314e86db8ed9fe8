"""Groups of kernels: what a kernel does, told from its name by an ordered list of patterns.

The list is data/kernel_groups.toml, where each pattern says where it was seen. A reader's own goes first.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import LabError
from ...resources import data_folder
from ..table import CATEGORIES, Timeline

FILE = "kernel_groups.toml"
OTHER = "other"
"""The group of a name that no rule knows."""
BY_CATEGORY = ("copy", "fill", "graph")
"""The groups of operations that are no kernels: memory copies, memory sets, whole graphs."""
SEARCHED = 2000
"""Only so many characters of a name are searched: what a kernel is stands at its front, and a name of a
hundred thousand characters must not hold up a report."""
RULE_KEYS = {"group": str, "pattern": str, "case": bool, "unsure": bool, "note": str}
FILE_KEYS = {"groups": dict, "families": dict, "rule": list, "only": bool}


@dataclass(frozen=True)
class Rule:
    """A pattern and the group of the names in which it is found.

    case: whether upper and lower case differ. unsure: the name fits RMSNorm and others alike.
    """

    group: str
    pattern: str
    case: bool = False
    unsure: bool = False
    note: str = ""

    @property
    def lowered(self) -> bool:
        """Whether it is searched in the name in lower case: the same as to search without regard to case,
        where the pattern has no capital, and three times as quick."""
        return not self.case and self.pattern == self.pattern.lower()

    def compiled(self) -> re.Pattern[str]:
        """The pattern, ready to search. ``re.error`` where it is none."""
        return re.compile(self.pattern, re.NOFLAG if self.case or self.lowered else re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group each kernel belongs to. Make one with `Groups.load`.

    rules: in the order in which they are tried.
    meanings: each group in words, ``BY_CATEGORY`` and "other" among them.
    families: words for several groups ("norm").
    """

    rules: tuple[Rule, ...]
    meanings: Mapping[str, str]
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        search = tuple((rule, rule.compiled().search, rule.lowered) for rule in self.rules)
        object.__setattr__(self, "_search", search)
        object.__setattr__(self, "_known", {})

    @property
    def names(self) -> tuple[str, ...]:
        """The groups; what `of` gives are indices into it."""
        return tuple(self.meanings)

    @classmethod
    def load(cls, path: str | PathLike[str] | None = None) -> Groups:
        """The lab's groups; with ``path``, those of a file of the same form before them.

        ``LabError``, in one line with the file and the rule, for a file that cannot be read or used.
        """
        return _builtin() if path is None else _read(Path(path), _builtin())

    def rule_of(self, name: str) -> Rule | None:
        """The rule that decides for a kernel of this name; None where no rule knows it."""
        known: dict[str, Rule | None] = self._known  # type: ignore[attr-defined]
        if name not in known:
            text = name[:SEARCHED]
            lower = text.lower()
            searches = self._search  # type: ignore[attr-defined]
            known[name] = next((rule for rule, found, low in searches if found(lower if low else text)), None)
        return known[name]

    def group_of(self, name: str) -> str:
        """The group of a kernel of this name."""
        rule = self.rule_of(name)
        return rule.group if rule else OTHER

    def of(self, t: Timeline) -> np.ndarray:
        """The group of each span, int32 [spans] into `names`; -1 for what is no operation of the device.

        Kernels by their names; copies, fills and graphs by their category.
        """
        groups = np.full(len(t), -1, dtype=np.int32)
        index = {name: i for i, name in enumerate(self.names)}
        work = t.operations()
        kernels = work[t.category[work] == CATEGORIES.index("kernel")]
        used, place = np.unique(t.name[kernels], return_inverse=True)
        found = np.array([index[self.group_of(t.names[i])] for i in used], dtype=np.int32)
        groups[kernels] = found[place] if len(used) else -1
        for category in BY_CATEGORY:
            groups[work[t.category[work] == CATEGORIES.index(category)]] = index[category]
        return groups

    def members(self, wanted: str) -> tuple[str, ...]:
        """The groups that a word stands for: a group, a family, "compute" (every kernel that is in no group
        of communication) or "copy" (memory copies and memory sets). ``LabError`` for another word."""
        if wanted == "copy":
            return ("copy", "fill")
        if wanted == "compute":
            apart = {*self.families.get("communication", ("communication",)), *BY_CATEGORY}
            return tuple(name for name in self.names if name not in apart)
        if wanted in self.families:
            return self.families[wanted]
        if wanted in self.meanings:
            return (wanted,)
        words = ", ".join(dict.fromkeys(["compute", "copy", *self.families, *self.names]))
        raise LabError(f"there is no group {wanted!r}; there are {words}")

    def spans(self, t: Timeline, wanted: str) -> np.ndarray:
        """Indices of the operations of a group, a family, "compute" or "copy"; see `members`."""
        members = [self.names.index(name) for name in self.members(wanted)]
        return np.flatnonzero(np.isin(self.of(t), members))


@cache
def _builtin() -> Groups:
    return _read(data_folder() / FILE, None)


def _read(path: Path, before: Groups | None) -> Groups:
    """The groups of a file; its rules come in front of those of ``before``."""
    where = str(path) if before else f"data/{FILE}"
    try:
        content = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise LabError(f"{where}: cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise LabError(
            f"{where}: byte {error.start} is no UTF-8; a TOML file is UTF-8, save it as such"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise LabError(f"{where}: no TOML file: {' '.join(str(error).split())}") from None
    _check_keys(content, FILE_KEYS, where, "the top of the file")
    only = content.get("only", False)
    meanings = {} if before is None else dict(before.meanings)
    families = {} if before is None else dict(before.families)
    for name, meaning in content.get("groups", {}).items():
        if not isinstance(meaning, str):
            raise LabError(f"{where}: group {name!r} is {meaning!r}; its meaning in words was expected")
        if name in BY_CATEGORY or name == "compute":
            raise LabError(f"{where}: group {name!r} is a word of the program's own; take another name")
        meanings[name] = meaning
    rules = tuple(
        _rule(entry, f"{where}: rule {number}", meanings)
        for number, entry in enumerate(content.get("rule", []), 1)
    )
    for name, members in content.get("families", {}).items():
        if not isinstance(members, list) or not all(isinstance(m, str) for m in members):
            raise LabError(f"{where}: family {name!r} is {members!r}; a list of groups was expected")
        unknown = [m for m in members if m not in meanings]
        if unknown:
            raise LabError(f"{where}: family {name!r} names group {unknown[0]!r}, which is not in [groups]")
        families[name] = tuple(members)
    for name in BY_CATEGORY:
        meanings.setdefault(
            name, {"copy": "memory copies", "fill": "memory sets", "graph": "whole graphs"}[name]
        )
    meanings.setdefault(OTHER, "no rule knows the name")
    if before and not only:
        rules += before.rules
    return Groups(rules, meanings, families)


def _rule(entry: Any, where: str, meanings: dict[str, str]) -> Rule:
    if not isinstance(entry, dict):
        raise LabError(f"{where} is {entry!r}; a table with group and pattern was expected")
    _check_keys(entry, RULE_KEYS, where, "a rule")
    for key in ("group", "pattern"):
        if not entry.get(key):
            raise LabError(f"{where} has no {key}; both group and pattern were expected")
    rule = Rule(**entry)
    if rule.group not in meanings:
        raise LabError(
            f"{where} names group {rule.group!r}, which is not in [groups]; add it there, "
            f"or take one of {', '.join(meanings)}"
        )
    try:
        rule.compiled()
    except (re.error, RecursionError, OverflowError) as error:
        raise LabError(
            f"{where} (group {rule.group}): pattern {rule.pattern!r} is no regular expression: {error}"
        ) from None
    return rule


def _check_keys(entry: dict[str, Any], keys: dict[str, type], where: str, what: str) -> None:
    for key, value in entry.items():
        if key not in keys:
            raise LabError(f"{where}: {key!r} is not known at {what}; known are {', '.join(keys)}")
        if not isinstance(value, keys[key]):
            kinds = {str: "a text", bool: "true or false", dict: "a table", list: "an array of tables"}
            raise LabError(f"{where}: {key} is {value!r}; {kinds[keys[key]]} was expected")
