"""What a CUDA kernel does with each pointer that it is given, as far as its source text says.

A pointer to ``const`` is read. Any other pointer is written; it is read too unless every use of it in the
kernel's body is a plain store, ``p[...] = ...``. What the text does not settle is taken as read and written,
so that a hazard may be reported that is none, and none is missed.
"""

from __future__ import annotations

import functools
import re

VALUE = "value"
READ = "read"
WRITE = "write"
BOTH = "read and write"
POINTERS = "pointers"
"""A pointer to pointers: the kernel goes on to memory that its arguments do not name."""

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(.+?)[ \t]*$", re.MULTILINE)


@functools.lru_cache(maxsize=512)
def roles(source: str, name: str) -> tuple[str, ...] | None:
    """One of the words above for each parameter of the kernel ``name``; None where its text is not found.

    ``name`` may be a C++ name expression: ``scale<float>``, ``lab::scale<float, 3>``. Where the text has
    several kernels of that name, they have to agree on their number of parameters; a parameter that they
    treat in different ways is read and written.
    """
    text = _COMMENT.sub(lambda m: '""' if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), source)
    text = text.replace("\\\n", "  ")
    macros = dict(_MACRO.findall(text))
    text = _DIRECTIVE.sub("", text)
    base = re.sub(r"<.*", "", name, flags=re.DOTALL).strip().rpartition("::")[2]
    if not re.fullmatch(r"\w+", base):
        return None
    found = [_of(text, m.end(), macros) for m in re.finditer(rf"\b{base}\s*\(", text) if _is_kernel(text, m)]
    found = list(dict.fromkeys(f for f in found if f is not None))
    if not found or len({len(f) for f in found}) > 1:
        return None
    return tuple(each[0] if len(set(each)) == 1 else BOTH for each in zip(*found, strict=True))


def _is_kernel(text: str, name: re.Match[str]) -> bool:
    """Whether ``__global__`` stands in front of this name, in the same declaration."""
    start = max(text.rfind(c, 0, name.start()) for c in ";{}") + 1
    return "__global__" in text[start : name.start()]


def _of(text: str, start: int, macros: dict[str, str]) -> tuple[str, ...] | None:
    """The roles of one kernel whose parameters begin at ``start``."""
    end = _closing(text, start, "(", ")")
    if end is None:
        return None
    body = ""
    brace = re.compile(r"\s*\{").match(text, end + 1)
    if brace:
        stop = _closing(text, brace.end(), "{", "}")
        body = text[brace.end() : stop]
    parameters = [_expanded(p, macros) for p in _split(text[start:end])]
    return tuple(_role(p, body) for p in parameters if p.strip() not in ("", "void"))


def _role(parameter: str, body: str) -> str:
    parameter = parameter.partition("=")[0]
    depth = parameter.count("*") + len(re.findall(r"\[[^]]*\]", parameter))
    if depth == 0:
        return VALUE
    if depth > 1:
        return POINTERS
    if re.search(r"\bconst\b", re.split(r"[*\[]", parameter)[0]):
        return READ
    words = re.findall(r"\w+", re.sub(r"\[[^]]*\]", "", parameter))
    return WRITE if words and _only_stored(body, words[-1]) else BOTH


def _only_stored(body: str, name: str) -> bool:
    """Whether the name is used, and each use is the target of a plain store: ``name[...] = ...``."""
    used = False
    for m in re.finditer(rf"(?<![\w.])(?<!->){name}\b", body):
        bracket = re.compile(r"\s*\[").match(body, m.end())
        end = _closing(body, bracket.end(), "[", "]") if bracket else None
        before = body[: m.start()].rstrip()[-1:]
        if (
            end is None
            or before not in (";", "{", "}", ")", ":", "")
            or (before == ":" and not _label(body, m))
        ):
            return False
        if not re.compile(r"\s*=(?!=)").match(body, end + 1):
            return False
        used = True
    return used


def _label(body: str, use: re.Match[str]) -> bool:
    """Whether the colon in front of a use ends a ``case`` or a label, and is no part of ``a ? b : c``."""
    start = max(body.rfind(c, 0, use.start()) for c in ";{}") + 1
    return "?" not in body[start : use.start()]


def _closing(text: str, start: int, opens: str, closes: str) -> int | None:
    """Where the bracket that was opened just before ``start`` is closed."""
    depth = 1
    for m in re.compile(f"[{re.escape(opens + closes)}]").finditer(text, start):
        depth += 1 if m[0] == opens else -1
        if depth == 0:
            return m.start()
    return None


def _split(parameters: str) -> list[str]:
    """Split at the commas that stand in no bracket of any kind."""
    parts, depth, last = [], 0, 0
    for m in re.finditer(r"[(\[{<>}\]),]", parameters):
        if m[0] == "," and depth == 0:
            parts.append(parameters[last : m.start()])
            last = m.end()
        elif m[0] in "([{<":
            depth += 1
        elif m[0] != ",":
            depth -= 1
    return [*parts, parameters[last:]]


def _expanded(text: str, macros: dict[str, str]) -> str:
    """Macros without arguments put in place, some deep; those with arguments stay as they are."""
    for _ in range(8):
        grown = re.sub(r"\w+", lambda m: macros.get(m[0], m[0]), text)
        if grown == text:
            break
        text = grown
    return text


def only_set(operation: str, name: str) -> bool:
    """Whether an elementwise operation does nothing with its output ``name`` but assign to it."""
    uses = list(re.finditer(rf"(?<![\w.]){name}\b", operation))
    return bool(uses) and all(re.compile(r"\s*(\[[^]]*\])?\s*=(?!=)").match(operation, m.end()) for m in uses)
