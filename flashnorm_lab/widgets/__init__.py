"""Panels for JupyterLab: `RacePanel` for a schedule and its edges, `SpeechPanel` for a model that speaks,
`ExercisePanel` for questions to answer, `TimelinePanel` for a trace to look at closely, and `Sliders` for any
figure that depends on a few settings.

State in, figures out: whatever is computed comes from the layers below. A panel loads when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .exercise_panel import ExercisePanel
    from .race_panel import RacePanel
    from .sliders import Sliders
    from .speech_panel import SpeechPanel
    from .timeline_panel import TimelinePanel

__all__ = ["ExercisePanel", "RacePanel", "Sliders", "SpeechPanel", "TimelinePanel"]

_MODULES = {
    "ExercisePanel": "exercise_panel",
    "RacePanel": "race_panel",
    "SpeechPanel": "speech_panel",
    "Sliders": "sliders",
    "TimelinePanel": "timeline_panel",
}


def __getattr__(name: str) -> Any:
    """Load a panel when it is first asked for. ``AttributeError`` for any other name."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
