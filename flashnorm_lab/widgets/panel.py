"""What both panels have in common: an error area, guarded handlers, edge switches, a static picture."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import ipywidgets as w

from ..devices.base import Device
from ..errors import LabError
from ..schedule import EDGES
from . import parts
from .latest import Latest

if TYPE_CHECKING:
    from matplotlib.figure import Figure as StaticFigure

COLUMN = 392
FIELD = w.Layout(width=f"{COLUMN - 14}px")
WRAP = w.Layout(flex_flow="row wrap")


class Panel(w.VBox):
    """A panel whose handlers show what goes wrong in `message` and keep it in `error`."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.message = w.HTML()
        self.activity = w.HTML()
        self._quiet = 0
        self._latest = Latest(self._fail)
        super().__init__(layout=w.Layout(width="100%"))
        self.add_class("fnl")

    def settle(self, timeout: float = 60.0) -> Panel:
        """Wait until the last change is answered, and return the panel. ``LabError`` after ``timeout`` s."""
        self._latest.settle(timeout)
        return self

    def _guarded(self, action: Callable[[], None]) -> Callable[[Any], None]:
        """The action as a handler, deaf to changes that the panel makes itself."""

        def handler(_: Any) -> None:
            if self._quiet:
                return
            try:
                action()
            except Exception as problem:
                self._fail(problem)

        return handler

    @contextmanager
    def _silently(self) -> Generator[None, None, None]:
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def _clear(self) -> None:
        self.error, self.message.value = None, ""

    def _fail(self, problem: Exception) -> None:
        self.error = problem
        self.message.value = parts.message(problem)
        self.activity.value = ""

    def _static_picture(self) -> StaticFigure | None:
        """A matplotlib figure of what the panel shows, where there is something to show."""
        raise NotImplementedError

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The live panel; and for where widgets cannot run, a PNG and a line of text."""
        bundle = dict(super()._repr_mimebundle_(**kwargs))
        bundle["text/plain"] = repr(self)
        figure = self._static_picture()
        if figure is not None:
            picture = io.BytesIO()
            figure.savefig(picture, format="png")
            bundle["image/png"] = base64.b64encode(picture.getvalue()).decode("ascii")
        return bundle


def edge_switches(dropped: Iterable[str]) -> dict[str, w.ToggleButton]:
    """A switch for each edge, by name."""
    dropped = tuple(dropped)
    switches = {
        edge: w.ToggleButton(
            value=edge not in dropped,
            tooltip=f"{edge}: {parts.WAITS_FOR[edge]}",
            tabbable=True,
            layout=w.Layout(width="176px", min_width="176px"),
        )
        for edge in EDGES
    }
    word_switches(switches)
    return switches


def word_switches(switches: dict[str, w.ToggleButton], needed: bool = True) -> None:
    """Let each switch say in words what it stands for. Without ``needed`` they are disabled."""
    for edge, switch in switches.items():
        state = "not used" if not needed else "✓ in place" if switch.value else "✗ left out"
        switch.description = f"{edge}: {state}"
        switch.button_style = "danger" if needed and not switch.value else ""
        switch.disabled = not needed


def edge_rows(switches: dict[str, w.ToggleButton]) -> list[w.Widget]:
    """The switches, each with what it makes certain beside it."""
    return [w.HBox([switch, w.HTML(parts.note(parts.WAITS_FOR[edge]))]) for edge, switch in switches.items()]


def left_out(switches: dict[str, w.ToggleButton]) -> tuple[str, ...]:
    """The edges that are switched off."""
    return tuple(edge for edge, switch in switches.items() if not switch.value)


def heading(text: str) -> w.HTML:
    """A small heading inside a panel."""
    return w.HTML(f"<h4>{text}</h4>")


def side_by_side(left: Iterable[w.Widget], right: Iterable[w.Widget]) -> w.HBox:
    """A narrow column and a wide one; below each other where the page is too narrow for both."""
    narrow = w.Layout(width=f"{COLUMN}px", min_width=f"{COLUMN}px", margin="0 14px 0 0")
    wide = w.Layout(flex="1 1 500px", min_width="480px", overflow="hidden")
    row = w.Layout(width="100%", flex_flow="row wrap", align_items="flex-start")
    return w.HBox([w.VBox(list(left), layout=narrow), w.VBox(list(right), layout=wide)], layout=row)


def number(name: str, value: int, low: int, high: int, tooltip: str) -> w.BoundedIntText:
    """A field for a whole number. ``LabError`` where ``value`` is none, or out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise LabError(f"{name}={value!r}: give a whole number from {low} to {high}")
    return w.BoundedIntText(
        value=value,
        min=low,
        max=high,
        description=name,
        tooltip=tooltip,
        layout=w.Layout(width="160px"),
        style={"description_width": "48px"},
    )


def button(text: str, tooltip: str, style: str = "") -> w.Button:
    """A button as wide as its words."""
    layout = w.Layout(width="auto", flex="0 0 auto")
    return w.Button(description=text, tooltip=tooltip, button_style=style, layout=layout, tabbable=True)


def device_field(given: Device | str | None) -> w.Dropdown:
    """A choice of the devices that were found, and of the one that was given."""
    from ..devices import opencl

    options: list[tuple[str, Any]] = [
        ("automatic: a GPU if there is one", "auto"),
        ("CUDA: NVIDIA GPU", "cuda"),
    ]
    try:
        found = [d.name.strip() for platform in opencl.platforms() for d in platform.get_devices()]
    except LabError:
        found = []
    options += [(f"OpenCL: {name}", f"opencl:{name}") for name in dict.fromkeys(found)]
    if given is not None and given not in [value for _, value in options]:
        options.insert(0, (given.name if isinstance(given, Device) else given, given))
    return w.Dropdown(
        options=options,
        value="auto" if given is None else given,
        description="Device",
        tooltip="where the step runs",
        layout=FIELD,
    )
