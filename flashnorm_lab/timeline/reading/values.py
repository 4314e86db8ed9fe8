"""Single JSON values, as Python has them."""

from __future__ import annotations

from typing import Any

import msgspec

_as_usual = msgspec.json.Decoder()
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entries = msgspec.json.Decoder(list[msgspec.Raw])


def value_of(raw: Any, decoder: msgspec.json.Decoder[Any] = _as_usual) -> Any:
    """The value of a sound JSON text; a number that is too large for Python's reader stays text."""
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        text = bytes(raw).strip()
    if text[:1] == b"{":
        return {key: value_of(part, decoder) for key, part in _members.decode(text).items()}
    if text[:1] == b"[":
        return [value_of(part, decoder) for part in _entries.decode(text)]
    return text.decode()


def short(text: bytes | str) -> str:
    """A piece of a trace's text as a message can show it: on one line, and no more of it than is needed."""
    if isinstance(text, bytes):
        text = text[:400].decode(errors="replace")
    text = " ".join(text[:400].split())
    return text if len(text) <= 60 else text[:57] + "..."
