"""The variable that a running line is about to give its result to: "y" in ``y = cupy.empty(3)``.

What has only just been made is in no variable yet. The bytecode behind the call tells where it will go.
"""

from __future__ import annotations

import dis
from bisect import bisect_right
from types import CodeType, FrameType

from ._sources import LIBRARIES

MAKERS = LIBRARIES | {"flashnorm_lab"}

_targets: dict[CodeType, tuple[list[int], list[str]]] = {}
MOST_CODE = 4096


def assigned(frame: FrameType | None) -> str:
    """The name that the innermost line of the program, from ``frame`` outwards, assigns to; or ""."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if isinstance(module, str) and module.partition(".")[0] not in MAKERS:
            break
        frame = frame.f_back
    if frame is None or frame.f_lasti < 0:
        return ""
    code = frame.f_code
    table = _targets.get(code)
    if table is None:
        if len(_targets) >= MOST_CODE:
            _targets.clear()
        table = _targets[code] = _read(code)
    offsets, names = table
    at = bisect_right(offsets, frame.f_lasti) - 1
    return names[at] if at >= 0 else ""


def _read(code: CodeType) -> tuple[list[int], list[str]]:
    """For each instruction, the name that is stored to right behind it."""
    found = [i for i in dis.get_instructions(code) if i.opname != "NOP"]
    return [i.offset for i in found], [_stored(found[k + 1 : k + 5]) for k in range(len(found))]


def _stored(behind: list[dis.Instruction]) -> str:
    while behind and behind[0].opname == "COPY":  # a = b = ...
        behind = behind[1:]
    if not behind:
        return ""
    first = behind[0]
    if first.opname.startswith("STORE_FAST") or first.opname in ("STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"):
        name = first.argval[0] if isinstance(first.argval, tuple) else first.argval
    elif first.opname.startswith("LOAD_") and len(behind) > 1 and behind[1].opname == "STORE_ATTR":
        name = f"{first.argval}.{behind[1].argval}"
    elif first.opname.startswith("LOAD_") and len(behind) > 2 and behind[2].opname == "STORE_SUBSCR":
        name = f"{first.argval}[{behind[1].argval!r}]"
    else:
        return ""
    return name if name[:1].isalpha() else ""
