"""A plotly figure in a panel, redrawn in place.

plotly's own FigureWidget sends the whole of plotly.js with every figure and many messages with every change.
Here plotly.js goes to the page once a kernel, and a change is one message, which `Plotly.react` draws without
taking the old picture away first.

A panel's first picture also keeps JupyterLab's single-key shortcuts off the panel: a "d" typed twice on a
switch would else delete the cell, and an arrow key would leave the field that it was meant for. Shortcuts
with Ctrl or Cmd, Shift+Enter and Escape stay JupyterLab's.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any

import anywidget
import ipywidgets
import traitlets

if TYPE_CHECKING:
    import plotly.graph_objects as go

KEYS = """
// On window, since JupyterLab listens on document before any element of the page does. The mark is set on the
// element with the focus, since JupyterLab looks there first, and only then at what is around it.
if (!window.flashnormLabKeys) {
  window.flashnormLabKeys = true;
  window.addEventListener("keydown", (event) => {
    if (!event.target.closest?.(".fnl")) return;
    const enter = event.key === "Enter" && (event.shiftKey || event.altKey);
    if (event.key === "Escape" || enter || event.ctrlKey || event.metaKey) {
      event.target.removeAttribute("data-lm-suppress-shortcuts");
    } else {
      event.target.setAttribute("data-lm-suppress-shortcuts", "true");
    }
  }, true);
}
"""
"""Keeps JupyterLab's single-key shortcuts off the panels; part of every module that draws in one."""

_ESM = (
    KEYS
    + """
const libraries = new Map();
const config = {
  responsive: true,
  displaylogo: false,
  modeBarButtonsToRemove: ["sendChartToCloud", "sendDataToCloud", "select2d", "lasso2d"],
};

function library(model) {
  const id = model.get("library").slice("IPY_MODEL_".length);
  if (!libraries.has(id)) {
    libraries.set(id, model.widget_manager.get_model(id).then((source) => {
      const module = { exports: {} };
      new Function("module", "exports", "define", source.get("source"))(module, module.exports, undefined);
      return module.exports;
    }));
  }
  return libraries.get(id);
}

async function render({ model, el }) {
  const plot = document.createElement("div");
  plot.setAttribute("role", "img");
  plot.style.width = "100%";
  el.append(plot);
  const Plotly = await library(model);
  let shown = Promise.resolve();
  let drawn = "";
  let closed = false;
  function draw() {
    shown = shown.then(() => {
      const text = model.get("figure");
      if (closed || text === drawn) return;
      drawn = text;
      if (!text) {
        plot.style.minHeight = "";
        return Plotly.purge(plot);
      }
      const figure = JSON.parse(text);
      plot.setAttribute("aria-label", model.get("label"));
      plot.style.minHeight = `${figure.layout.height}px`;
      return Plotly.react(plot, figure.data, figure.layout, config).then(() => {
        for (const button of plot.querySelectorAll(".modebar-btn")) button.tabIndex = -1;
      });
    });
  }
  model.on("change:figure", draw);
  const size = new ResizeObserver(() => plot.data && plot.offsetParent && Plotly.Plots.resize(plot));
  size.observe(el);
  draw();
  return () => {
    closed = true;
    size.disconnect();
    model.off("change:figure", draw);
    Plotly.purge(plot);
  };
}

export default { render };
"""
)


class _Library(ipywidgets.Widget):
    """Holds plotly.js for all pictures of this kernel."""

    source = traitlets.Unicode().tag(sync=True)


@functools.cache
def _library() -> _Library:
    from plotly.offline import get_plotlyjs

    return _Library(source=get_plotlyjs())


class Picture(anywidget.AnyWidget):
    """Shows a figure; `show` replaces it. ``label`` says in words what there is to see."""

    _esm = _ESM
    figure = traitlets.Unicode().tag(sync=True)
    label = traitlets.Unicode().tag(sync=True)
    library = traitlets.Instance(ipywidgets.Widget).tag(sync=True, **ipywidgets.widget_serialization)

    def __init__(self, label: str) -> None:
        super().__init__(label=label, library=_library())

    def show(self, figure: go.Figure) -> None:
        """Draw this figure from now on."""
        self.figure = figure.to_json(validate=False)

    def clear(self) -> None:
        """Draw nothing until a figure is shown again."""
        self.figure = ""

    def content(self) -> dict[str, Any]:
        """The figure that is shown, as plain values: ``data`` and ``layout``; empty before the first."""
        return json.loads(self.figure) if self.figure else {}
