"""Curves with a slider or a row of buttons for each setting that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import ipywidgets as w

from .. import figures
from ..errors import LabError
from . import parts
from .panel import WRAP, Panel
from .picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure

    from ..lessons import Curves


class Sliders(Panel):
    """Controls above curves. Numbers get a slider, words a row of buttons; both work by keyboard.

    compute(**settings) gives the `Curves` to draw. choices: the values that each setting may have; it starts
    with the default that ``compute`` gives it, or with the first. ``LabError`` for a setting that ``compute``
    does not have, or one without a choice.

    `controls` are the widgets by name, `result` what is shown now, `error` what went wrong last, or None.
    """

    def __init__(self, compute: Callable[..., Curves], **choices: Sequence[Any]) -> None:
        super().__init__()
        self.compute = compute
        self.result: Curves | None = None
        known = signature(compute).parameters
        self.controls: dict[str, Any] = {}
        for name, values in choices.items():
            if name not in known:
                raise LabError(f"there is no setting {name!r}; there are {', '.join(known)}")
            if not values:
                raise LabError(f"{name}=[]: give at least one value to choose from")
            default = known[name].default
            self.controls[name] = _control(name, values, default if default in values else values[0])
            self.controls[name].observe(self._guarded(self._draw), "value")
        self.picture = Picture("Curves that the controls above change")
        row = w.HBox(list(self.controls.values()), layout=WRAP)
        self.children = [w.HTML(parts.STYLE), row, self.message, self.picture]
        self._guarded(self._draw)(None)

    def _draw(self) -> None:
        self.result = self.compute(**{name: control.value for name, control in self.controls.items()})
        self.picture.show(figures.curves(self.result))
        self._clear()

    def __repr__(self) -> str:
        settings = ", ".join(f"{name} = {control.value}" for name, control in self.controls.items())
        return f"Sliders of {self.compute.__name__}: {settings}"

    def _static_picture(self) -> StaticFigure | None:
        return figures.curves_static(self.result) if self.result is not None else None


def _control(name: str, values: Sequence[Any], start: Any) -> Any:
    options = [(value if isinstance(value, str) else f"{value:g}", value) for value in values]
    about = {"options": options, "value": start, "description": name, "tabbable": True}
    if isinstance(start, str):
        style = {"description_width": "60px", "button_width": "72px"}
        return w.ToggleButtons(**about, style=style, layout=w.Layout(width="320px"))
    return w.SelectionSlider(**about, style={"description_width": "60px"}, layout=w.Layout(width="300px"))
