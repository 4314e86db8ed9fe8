"""What an OpenCL kernel does with each of its arguments, as far as its source text says.

A pointer to ``const`` and a ``__constant`` one are read. Any other ``__global`` pointer is read and written,
unless each of its uses in the kernel's body is a plain load, ``p[...]``, or handed to a function of the text
that takes it as ``const``, or each is a plain store, ``p[...] = ...``: pyopencl's own array kernels have no
``const``. A pointer that the body does not name touches nothing. What the text does not settle is taken as
read and written, so that a hazard may be reported that is none, and none is missed.
"""

from __future__ import annotations

import functools
import re

VALUE = "value"
"""A number, a sampler, or memory of the work-group's own: nothing that another command can touch."""
READ = "read"
WRITE = "write"
BOTH = "read and write"
UNSETTLED = "read and write, for want of anything better"
"""The text does not settle it."""
NOTHING = "nothing"
"""Memory that the kernel is given and does not use."""
UNKNOWN = "unknown"
"""The text does not say. If memory is passed, it has to be taken as read and written."""

_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)(\([^)]*\))?[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_OPTION = re.compile(r"-D\s*(\w+)(\([^)]*\))?=?(\S*)")
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]+(?!<pyopencl)", re.MULTILINE)
_TYPEDEF = re.compile(r"\btypedef\b([^;{}]*?)\b(\w+)\s*;")
_IMAGE = re.compile(r"\bimage\w*_t\b|\bpipe\b")
_NAME = re.compile(r"(\w+)\s*$")
_ASSIGNED = re.compile(r"(?:\s*\.\s*\w+)*\s*(=(?!=)|[-+*/%&|^]=|<<=|>>=|\+\+|--)?")
_ALIAS = re.compile(r"\*\s*(?:(?:restrict|const|volatile)\s+)*(\w+)\s*=([^;=,]*)$")
_CASTS = re.compile(r"[\s(]*(?:\([\w\s]*\*\s*\)[\s(]*)*")
_MAKING = re.compile(r"\s*(?:__)?(?:global|const)\b[\w\s]*\*\s*(?:(?:restrict|const|volatile)\s+)*")
_TAKEN = re.compile(r"(?:(?<!&)&|\+\+|--)\s*\(*\s*$")
"""In front of a use: its address is taken, or it is counted up or down."""
_HIDDEN = re.compile(r"\s*\)[\s)]*(?:[-+*/%&|^]?=(?!=)|<<=|>>=|\+\+|--)")
"""Behind a use: an assignment to what stands in brackets, `(p[i])++`."""


@functools.lru_cache(maxsize=512)
def roles(source: str, name: str, options: str = "") -> tuple[str, ...] | None:
    """One of the words above for each parameter of the kernel ``name``; None where it is not found.

    ``options``: what the program was built with; its ``-D`` count as macros. Where preprocessor conditions
    hold several forms of the kernel, they have to agree on the number of parameters, and a parameter that
    they treat in different ways is read and written.
    """
    text = _Text(source, options)
    forms = [
        text.roles(m.end()) for m in re.finditer(rf"\b{re.escape(name)}\s*\(", text.code) if text.begins(m)
    ]
    forms = list(dict.fromkeys(f for f in forms if f is not None))
    if not forms or len({len(f) for f in forms}) > 1:
        return None
    return tuple(_together(set(each)) for each in zip(*forms, strict=True))


def _together(words: set[str]) -> str:
    if len(words) == 1:
        return words.pop()
    if words & {VALUE, UNKNOWN}:
        return UNKNOWN
    return UNSETTLED if UNSETTLED in words else BOTH


class _Text:
    """A program's text without comments and directives, and its macros."""

    def __init__(self, source: str, options: str) -> None:
        code = source.replace("\\\r\n", "  ").replace("\\\n", "  ")
        code = _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " ", code)
        self.macros: dict[str, str | None] = {}
        self.bodies = " "
        self.functions: set[str] = set()
        for macro, parameters, body in [*_OPTION.findall(options), *_MACRO.findall(code)]:
            own = set(re.findall(r"\w+", parameters))
            self.bodies += " ".join(w for w in re.findall(r"\w+", body) if w not in own) + " "
            if parameters:
                self.functions.add(macro)
            else:
                self._define(macro, body)
        for macro, body in self.macros.items():  # another name for one that takes arguments
            if self.functions & set(re.findall(r"\w+", self.expanded(macro) or body or "")):
                self.functions.add(macro)
        self.headers = bool(_INCLUDE.search(code))
        self.code = _DIRECTIVE.sub("", code)
        self.pointers: dict[str, str] = {}
        for body, alias in _TYPEDEF.findall(self.code):
            if "*" in body:
                self.pointers[alias] = body
            elif "struct" not in body and "union" not in body:
                self._define(alias, body)

    def _define(self, name: str, body: str) -> None:
        if name in self.macros and self.macros[name] != body:
            body = None  # type: ignore[assignment]  # depends on conditions that are not evaluated here
        self.macros[name] = body

    def begins(self, name: re.Match[str]) -> bool:
        """Whether a declaration of a kernel begins in front of this name."""
        start = max(self.code.rfind(c, 0, name.start()) for c in ";{}") + 1
        words = re.findall(r"\w+", self.code[start : name.start()])
        words = re.findall(r"\w+", " ".join(self.expanded(w) or w for w in words))
        return "kernel" in words or "__kernel" in words

    def expanded(self, text: str) -> str | None:
        """Macros without arguments put in place; None where one has several meanings."""
        for _ in range(8):
            words = re.findall(r"\w+", text)
            if any(self.macros.get(w, w) is None for w in words):
                return None
            grown = re.sub(r"\w+", lambda m: self.macros.get(m[0], m[0]) or "", text)
            if grown == text:
                break
            text = grown
        return text

    def roles(self, start: int) -> tuple[str, ...] | None:
        """The roles of the kernel whose parameters begin at ``start``."""
        end = _closing(self.code, start)
        if end is None:
            return None
        brace = re.compile(r"[^;{}]*\{").match(self.code, end + 1)
        body = self.code[brace.end() : _closing(self.code, brace.end())] if brace else None
        parameters = _parameters(self.code[start:end])
        return tuple(self._role(p, body) for p in parameters if p.strip() not in ("", "void"))

    def _role(self, parameter: str, body: str | None) -> str:
        name = _NAME.search(re.sub(r"\[[^]]*\]\s*$", "", parameter).rstrip())
        text = self.expanded(parameter[: name.start()] if name else parameter)
        if text is None or name is None:
            return UNKNOWN
        words = set(re.findall(r"\w+", text))
        typedef = next((self.pointers[w] for w in words if w in self.pointers), None)
        if typedef is not None:  # a const beside it would be the pointer's own
            text = self.expanded(typedef)
            if text is None or text.count("*") > 1:
                return UNKNOWN
            words = set(re.findall(r"\w+", text))
        if _IMAGE.search(text):
            if words & {"read_write", "__read_write"}:
                return BOTH
            return WRITE if words & {"write_only", "__write_only"} else READ
        if "*" not in text and "[" not in parameter:
            return UNKNOWN if words & {"global", "__global", "constant", "__constant"} else VALUE
        if words & {"local", "__local"}:
            return VALUE
        if words & {"constant", "__constant", "global", "__global"} and self._unused(name[1], body):
            return NOTHING
        if words & {"constant", "__constant"}:
            return READ
        if not words & {"global", "__global"}:
            return UNKNOWN
        if re.search(r"\bconst\b", text.partition("*")[0]):
            return READ
        return self._use(name[1], body)

    def _use(self, name: str, body: str | None) -> str:
        """How a kernel's body uses a pointer that it may both read and write through."""
        if not self._plain(body):
            return UNSETTLED
        done: set[str] = set()
        pointers = [name]
        for pointer in pointers:
            if re.search(rf"\b{pointer}\b", self.bodies):
                return UNSETTLED
            for use in re.finditer(rf"(?<![\w.])(?<!->){pointer}\b", body):
                what = READ if self._given_to_a_reader(body, use) else _of_use(body, use)
                if what is None:
                    return UNSETTLED
                if what == BOTH:
                    done |= {READ, WRITE}
                elif what in (READ, WRITE):
                    done.add(what)
                elif what and what not in pointers:
                    pointers.append(what)
        if not done:
            return UNSETTLED
        return done.pop() if len(done) == 1 else BOTH

    def _plain(self, body: str | None) -> bool:
        """Whether a body is all that is there: no macro with arguments and no header hides a use."""
        return body is not None and not (
            self.headers or any(re.search(rf"\b{f}\b", body) for f in self.functions)
        )

    def _unused(self, name: str, body: str | None) -> bool:
        return self._plain(body) and not re.search(rf"\b{name}\b", f"{body} {self.bodies}")

    def _given_to_a_reader(self, body: str, use: re.Match[str]) -> bool:
        """Whether a use hands the pointer to a function of this text whose parameter is one to ``const``."""
        start = max(body.rfind(c, 0, use.start()) for c in ";{}") + 1
        call = _opened(body, start, use.start())
        if call is None or not re.match(r"\s*[,)]", body[use.end() :]):
            return False
        before = _parameters(body[call.end() : use.start()])
        if before[-1].strip() or call[1] in self.macros:
            return False
        made = list(re.finditer(rf"\b\w[\w\s*]*?[\s*]{call[1]}\s*\(", self.code))
        found = 0
        for m in made:
            end = _closing(self.code, m.end())
            if end is None or not re.match(r"\s*\{", self.code[end + 1 :]):
                continue
            parameters = _parameters(self.code[m.end() : end])
            if "*" in m[0] or len(parameters) < len(before):  # it may give the pointer back
                return False
            if self._role(parameters[len(before) - 1], None) != READ:
                return False
            found += 1
        return found > 0


def _of_use(body: str, use: re.Match[str]) -> str | None:
    """One use of a pointer: READ, WRITE, BOTH, a pointer made of it, "" where it is itself made, or None."""
    start = max(body.rfind(c, 0, use.start()) for c in ";{}") + 1
    before, after = body[start : use.start()], body[use.end() :]
    bracket = re.match(r"\s*\[", after)
    if bracket is None:
        # `__global float *x = (__global float *) ((__global char *) x__base + x__offset);`
        alias = _ALIAS.search(before)
        if alias and _CASTS.fullmatch(alias[2]) and re.match(r"[\w\s+)]*;", after):
            return alias[1]
        return "" if _MAKING.fullmatch(before) and re.match(r"\s*=", after) else None
    end = _closing(after, bracket.end())
    if end is None or _TAKEN.search(before):
        return None
    assigned = _ASSIGNED.match(after, end + 1)
    operator = assigned[1] if assigned else None
    if operator is None:
        return None if _HIDDEN.match(after, end + 1) else READ
    return WRITE if operator == "=" else BOTH


def _opened(text: str, start: int, stop: int) -> re.Match[str] | None:
    """The name and the bracket of the innermost call that is open at ``stop``."""
    depth = 0
    for at in range(stop - 1, start - 1, -1):
        if text[at] in ")]":
            depth += 1
        elif text[at] in "([":
            if depth == 0:
                return (
                    re.compile(r"(\w+)\s*\(").match(text, _word_before(text, at)) if text[at] == "(" else None
                )
            depth -= 1
    return None


def _word_before(text: str, at: int) -> int:
    """Where the word begins that stands in front of a position."""
    found = re.search(r"\w+\s*$", text[:at])
    return found.start() if found else at


def _closing(text: str, start: int) -> int | None:
    """Where the bracket that was opened just before ``start`` is closed."""
    depth = 1
    for m in re.compile(r"[()\[\]{}]").finditer(text, start):
        depth += 1 if m[0] in "([{" else -1
        if depth == 0:
            return m.start()
    return None


def _parameters(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    parts, depth, last = [], 0, 0
    for m in re.finditer(r"[(\[{}\]),]", text):
        if m[0] == "," and depth == 0:
            parts.append(text[last : m.start()])
            last = m.end()
        elif m[0] != ",":
            depth += 1 if m[0] in "([{" else -1
    return [*parts, text[last:]]


def compilers_role(address: str, access: str, const: bool) -> str:
    """The role of an argument as a compiler tells it (``-cl-kernel-arg-info``), in OpenCL's own words."""
    if access != "NONE":
        return {"READ_ONLY": READ, "WRITE_ONLY": WRITE}.get(access, BOTH)
    if address == "CONSTANT" or (address == "GLOBAL" and const):
        return READ
    return BOTH if address == "GLOBAL" else VALUE
