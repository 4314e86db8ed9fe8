// What the timeline looks like: everything that is drawn on its canvas. One script together with view.js.
//
// Times are whole nanoseconds from the first start, which a float64 holds exactly for 104 days.

const OVERVIEW = 26, AXIS = 24, ROW = 19, GAP = 7, COUNTER = 34, HEAD = 24, SPACE = 4, FOLDED = 66;
const UNITS = [[1e9, "s", 9], [1e6, "ms", 6], [1e3, "µs", 3], [1, "ns", 0]];
const FONT = "11px system-ui, -apple-system, Segoe UI, Roboto, sans-serif";
const VERMILION = "#D55E00", PURPLE = "#CC79A7", ORANGE = "#E69F00";
const OUTCOMES = ["", "fresh", "stale", "torn", "early"];
const OUTCOME_COLOURS = ["", "#56B4E9", VERMILION, PURPLE, ORANGE];

function number(n) {
  return Math.round(n).toLocaleString("en-US");
}

// Nanoseconds with every digit: "45.6473 ms".
function told(ns) {
  const sign = ns < 0 ? "−" : "", size = Math.abs(Math.round(ns));
  const [unit, name, places] = UNITS.find(([u]) => size >= u) ?? UNITS[3];
  const rest = String(size % unit).padStart(places, "0").replace(/0+$/, "");
  return `${sign}${number(Math.floor(size / unit))}${places && rest ? "." + rest : ""} ${name}`;
}

// Where the marks of the time axis stand, and what they say. `base` is what all of them count from.
function ticks(t0, t1, width) {
  const least = Math.max(1, ((t1 - t0) * 104) / Math.max(width, 1));
  const power = 10 ** Math.floor(Math.log10(least));
  const step = Math.max(1, [1, 2, 5, 10].map((m) => m * power).find((s) => s >= least * 0.999));
  const choose = (size) => UNITS.find(([u]) => size >= u) ?? UNITS[3];
  const digits = (size) => Math.max(0, Math.ceil(Math.log10(choose(size)[0] / step) - 1e-9));
  let base = 0, size = Math.max(Math.abs(t0), Math.abs(t1));
  if (Math.log10(size / choose(size)[0]) + digits(size) > 6) {
    const block = 10 ** Math.ceil(Math.log10(t1 - t0));
    base = Math.floor(t0 / block) * block;
    size = t1 - base;
  }
  const [unit, name] = choose(size), places = digits(size), marks = [];
  for (let t = Math.ceil(t0 / step) * step; t <= t1; t += step) {
    const text = ((t - base) / unit + 0).toLocaleString("en-US", {
      minimumFractionDigits: places, maximumFractionDigits: places });
    marks.push([t, `${base ? "+" : ""}${text} ${name}`]);
  }
  return { base, marks };
}

// The columns of an answer, from where its head says that they lie.
function columnsOf(where, bytes, base = 0) {
  const kinds = { f8: Float64Array, f4: Float32Array, i4: Int32Array, u4: Uint32Array, u2: Uint16Array,
    u1: Uint8Array };
  const column = ([name, kind, at, count]) => [name, new kinds[kind](bytes, base + at, count)];
  return Object.fromEntries(where.map(column));
}

// Cells are told in pixels of the tile that was asked for: so many nanoseconds each.
const cellUnit = (tile) => (tile.t1 - tile.t0) / tile.pixels;

// Draws `view` (see view.js) with this pen.
function createPainter(pen, info, view) {
  let patterns = {};

  const plot = () => view.width - view.gutter;
  const toX = (t) => view.gutter + ((t - view.t0) / (view.t1 - view.t0)) * plot();
  const toTime = (x) => view.t0 + ((x - view.gutter) / plot()) * (view.t1 - view.t0);

  function hatch(outcome) {
    if (patterns[outcome]) return patterns[outcome];
    const cell = Object.assign(document.createElement("canvas"), { width: 8, height: 8 });
    const ink = cell.getContext("2d");
    ink.fillStyle = OUTCOME_COLOURS[outcome];
    ink.fillRect(0, 0, 8, 8);
    ink.strokeStyle = "rgba(255,255,255,.75)";
    ink.lineWidth = 1.6;
    ink.beginPath();
    for (const shift of [-8, 0, 8]) {
      if (outcome !== 4) { ink.moveTo(shift, 8); ink.lineTo(shift + 8, 0); }
      if (outcome !== 2) { ink.moveTo(shift, 0); ink.lineTo(shift + 8, 8); }
    }
    ink.stroke();
    return (patterns[outcome] = pen.createPattern(cell, "repeat"));
  }

  function cut(text, room) {
    if (pen.measureText(text).width <= room) return text;
    let length = Math.min(text.length, Math.floor(room / 3));
    while (length > 4 && pen.measureText(text.slice(0, length) + "…").width > room) length -= 1;
    return length > 4 ? text.slice(0, length) + "…" : "";
  }

  function draw(ink) {
    const line = "rgba(128,128,128,.28)";
    pen.clearRect(0, 0, view.width, view.height);
    pen.textBaseline = "middle";
    pen.font = FONT;
    drawAxis(ink, line);
    pen.save();
    pen.beginPath();
    pen.rect(0, OVERVIEW + AXIS, view.width, view.height - OVERVIEW - AXIS);
    pen.clip();
    pen.translate(0, OVERVIEW + AXIS - view.top);
    drawLanes(ink, line);
    pen.beginPath();
    pen.rect(view.gutter, view.top, plot(), view.height);
    pen.clip();
    if (view.tiles) {
      view.tiles.parts.forEach(drawCells);
      view.tiles.parts.forEach((tile, p) => drawSpans(tile, p, ink));
      view.tiles.parts.forEach((tile, p) => drawCounters(tile, p, ink));
      view.tiles.parts.forEach((tile, p) => drawArrows(tile, p, ink));
    }
    drawChosen(ink);
    pen.restore();
    drawSelection();
    drawOverview(ink);
    drawScroll();
  }

  // A canvas of another size forgets its patterns.
  function resized(ratio) {
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    patterns = {};
  }

  function drawAxis(ink, line) {
    const { base, marks } = ticks(view.t0, view.t1, plot());
    pen.fillStyle = ink;
    pen.textAlign = "right";
    pen.fillText(base ? `from ${told(base)}` : "from the first start", view.gutter - 10, OVERVIEW + AXIS / 2);
    pen.textAlign = "center";
    let free = view.gutter;
    for (const [t, text] of marks) {
      const x = Math.round(toX(t)) + 0.5, half = pen.measureText(text).width / 2;
      pen.fillStyle = line;
      pen.fillRect(x, OVERVIEW + AXIS - 5, 1, view.height);
      if (x - half >= free && x + half < view.width) {
        pen.fillStyle = ink;
        pen.fillText(text, x, OVERVIEW + AXIS / 2 - 1);
        free = x + half + 10;
      }
    }
    pen.textAlign = "left";
  }

  function drawLanes(ink, line) {
    for (const item of view.layout.items) {
      if (item.y + item.h < view.top || item.y > view.top + view.height) continue;
      pen.fillStyle = line;
      pen.fillRect(0, Math.round(item.y + item.h + GAP / 2), view.width, 0.5);
      pen.fillStyle = ink;
      if (item.kind === "head") {
        pen.font = `600 ${FONT}`;
        pen.fillText(cut(item.text, view.width - 20), 10, item.y + HEAD / 2);
        pen.font = FONT;
        continue;
      }
      const nested = item.kind === "lane" && item.lane.rows > 1;
      if (nested) pen.fillText(view.folded[item.part].has(item.lane.id) ? "▸" : "▾", 8, item.y + ROW / 2);
      pen.fillText(cut(item.text, view.gutter - 34), 22, item.y + (item.kind === "lane" ? ROW : item.h) / 2);
    }
  }

  // How many pixels a nanosecond has, and where the start of a tile is.
  function place(tile) {
    const scale = plot() / (view.t1 - view.t0);
    return [scale, view.gutter + (tile.t0 - view.t0) * scale];
  }

  // How tall a bar is in a row: a folded lane has rows of a few pixels.
  const thick = (p, row) => view.layout.h[p][row] - (view.layout.h[p][row] > 8 ? 3 : 1);

  // The whole extent of a cell is pale; over it stands, as high as its share of busy time, what fills it.
  function drawCells(tile, p) {
    const [scale, shift] = place(tile), pixel = scale * cellUnit(tile), y = view.layout.y[p];
    for (const [alpha, full] of [[0.28, true], [0.62, false]]) {
      let last = null;
      pen.globalAlpha = alpha;
      for (let i = 0; i < tile.cellRow.length; i++) {
        const top = y[tile.cellRow[i]], x = shift + tile.cellStart[i] * pixel;
        if (top < 0 || x > view.width) continue;
        const wide = Math.max(1, (tile.cellEnd[i] - tile.cellStart[i]) * pixel);
        if (x + wide < view.gutter) continue;
        const outcome = tile.cellOutcome[i], tall = thick(p, tile.cellRow[i]);
        const fill = outcome > 1 ? OUTCOME_COLOURS[outcome] : info.palette[tile.cellColour[i]][0];
        if (fill !== last) pen.fillStyle = last = fill; // a colour's text is slow to read
        const part = full ? tall : tall * tile.cellShare[i];
        pen.fillRect(x, top + 1 + tall - part, wide, part);
      }
    }
    pen.globalAlpha = 1;
  }

  function drawSpans(tile, p, ink) {
    const words = [];
    const [scale, shift] = place(tile), y = view.layout.y[p];
    for (let i = 0; i < tile.spanRow.length; i++) {
      const top = y[tile.spanRow[i]], x = shift + tile.spanStart[i] * scale, wide = tile.spanLength[i] * scale;
      if (top < 0 || x > view.width || x + wide < view.gutter) continue;
      if (top + ROW < view.top || top > view.top + view.height) continue;
      const [fill, text] = info.palette[tile.spanColour[i]], outcome = tile.spanOutcome[i];
      const tall = thick(p, tile.spanRow[i]), middle = top + 1 + tall / 2;
      if (tile.spanLength[i] === 0) {
        pen.fillStyle = outcome > 1 ? OUTCOME_COLOURS[outcome] : fill;
        pen.beginPath();
        pen.moveTo(x, top + 1);
        pen.lineTo(x + tall / 4, middle);
        pen.lineTo(x, top + 1 + tall);
        pen.lineTo(x - tall / 4, middle);
        pen.fill();
        continue;
      }
      pen.fillStyle = outcome > 1 ? hatch(outcome) : fill;
      pen.fillRect(x, top + 1, Math.max(1, wide - (wide > 3 ? 0.75 : 0)), tall);
      if (wide > 26 && tall > 11) {
        const left = Math.max(x, view.gutter), room = Math.min(x + wide, view.width) - left - 8;
        const name = tile.names[tile.spanName[i]];
        if (name && room > 16) {
          const label = cut(outcome > 1 ? `${OUTCOMES[outcome]}: ${name}` : name, room);
          if (outcome > 1 && label) {
            pen.fillStyle = "rgba(255,255,255,.88)";
            pen.fillRect(left + 2, top + 3, pen.measureText(label).width + 4, tall - 4);
          }
          pen.fillStyle = outcome > 1 ? "#333333" : text;
          pen.fillText(label, left + 4, middle + 0.5);
          if (label) continue;
        }
      }
      if (outcome > 1 && tall > 11) words.push([x + wide + 3, middle + 0.5, outcome]);
    }
    // What a result turned out to be stands in words too, where there is room beside a bar too small for them.
    const next = new Map();
    for (const [x, y_, outcome] of words.sort((a, b) => a[0] - b[0])) {
      if (x < (next.get(y_) ?? 0)) continue;
      pen.fillStyle = ink;
      pen.fillText(OUTCOMES[outcome], x, y_);
      next.set(y_, x + 60);
    }
  }

  function drawCounters(tile, p, ink) {
    const step = (tile.t1 - tile.t0) / tile.pixels;
    for (const item of view.layout.items) {
      if (item.kind !== "counter" || item.part !== p) continue;
      let low = 0, high = 0;
      for (let i = 0; i < tile.counter.length; i++) {
        if (tile.counter[i] !== item.counter) continue;
        low = Math.min(low, tile.counterLow[i]);
        high = Math.max(high, tile.counterHigh[i]);
      }
      const at = (value) => item.y + item.h - 2 - ((value - low) / (high - low || 1)) * (item.h - 6);
      pen.strokeStyle = "#0072B2";
      pen.beginPath();
      let last = null;
      for (let i = 0; i < tile.counter.length; i++) {
        if (tile.counter[i] !== item.counter) continue;
        const x = toX(tile.t0 + tile.counterPx[i] * step);
        if (last !== null) pen.lineTo(x, at(last));
        if (last === null) pen.moveTo(x, at(tile.counterLow[i]));
        pen.lineTo(x, at(tile.counterLow[i]));
        pen.lineTo(x, at(tile.counterHigh[i]));
        pen.lineTo(x, at(tile.counterLast[i]));
        last = tile.counterLast[i];
      }
      if (last !== null) pen.lineTo(view.width, at(last));
      pen.stroke();
      pen.fillStyle = ink;
      const words = `${low.toLocaleString("en-US")} to ${high.toLocaleString("en-US")}`;
      if (last !== null) pen.fillText(words, view.gutter + 6, item.y + 7);
    }
  }

  // Where an arrow leaves a bar or meets it: below, above, or at its middle if it stays on the row.
  const edge = (p, row, way) => view.layout.y[p][row] + 1 + thick(p, row) * (way > 0 ? 1 : way < 0 ? 0 : 0.5);

  function arrow(x0, y0, x1, y1, colour, wide, dash = []) {
    const down = y1 > y0, from = y0, to = y1, bend = Math.min(40, Math.abs(x1 - x0) / 2);
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = wide;
    pen.setLineDash(dash);
    pen.beginPath();
    pen.moveTo(x0, from);
    pen.bezierCurveTo(x0 + bend, from, x1 - bend, to, x1, to);
    pen.stroke();
    pen.setLineDash([]);
    const turn = bend > 4 ? [x1 - 6, to - 3, x1 - 6, to + 3]
      : [x1 - 3, to - (down ? 6 : -6), x1 + 3, to - (down ? 6 : -6)];
    pen.beginPath();
    pen.moveTo(x1, to);
    pen.lineTo(turn[0], turn[1]);
    pen.lineTo(turn[2], turn[3]);
    pen.fill();
    pen.lineWidth = 1;
  }

  function drawArrows(tile, p, ink) {
    const [scale, shift] = place(tile), y = view.layout.y[p];
    for (let i = 0; i < tile.arrowKind.length; i++) {
      const s = tile.arrowSource[i], t = tile.arrowTarget[i], kind = tile.arrowKind[i];
      const y0 = y[tile.spanRow[s]], y1 = y[tile.spanRow[t]];
      if (y0 < 0 || y1 < 0) continue;
      const leave = kind === 1 ? tile.spanStart[s] + tile.spanLength[s] : tile.spanStart[s];
      pen.globalAlpha = kind === 1 ? 0.85 : 0.4;
      arrow(shift + leave * scale, edge(p, tile.spanRow[s], y1 - y0), shift + tile.spanStart[t] * scale,
        edge(p, tile.spanRow[t], y0 - y1), ink,
        kind === 1 ? 1.2 : 0.9, kind === 1 ? [] : kind === 2 ? [5, 3] : [2, 2]);
    }
    pen.globalAlpha = 1;
  }

  function drawChosen(ink) {
    const chosen = view.span;
    if (!chosen) return;
    const y = view.layout.y[chosen.part];
    for (const { kind, source: s, target: t } of chosen.arrows) {
      const way = y[t.row] - y[s.row];
      if (y[s.row] < 0 || y[t.row] < 0) continue;
      arrow(toX(kind === "order" ? s.start + s.length : s.start), edge(chosen.part, s.row, way), toX(t.start),
        edge(chosen.part, t.row, -way), ink, 1.8);
    }
    if (y[chosen.row] >= 0) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      const x = toX(chosen.start), wide = Math.max(3, toX(chosen.start + chosen.length) - x);
      pen.strokeRect(x - 1, y[chosen.row], wide + 1, thick(chosen.part, chosen.row) + 2);
      pen.lineWidth = 1;
    }
  }

  function drawSelection() {
    const dragged = view.drag?.kind === "select";
    const range = dragged ? [view.drag.from, view.drag.to].sort((a, b) => a - b) : view.selection;
    if (!range) return;
    const x0 = Math.max(view.gutter, toX(range[0])), x1 = Math.min(view.width, toX(range[1]));
    if (x1 < view.gutter || x0 > view.width) return;
    pen.fillStyle = "rgba(0,114,178,.13)";
    pen.fillRect(x0, OVERVIEW, x1 - x0, view.height);
    pen.fillStyle = "#0072B2";
    pen.fillRect(x0, OVERVIEW, 1, view.height);
    pen.fillRect(x1 - 1, OVERVIEW, 1, view.height);
    const text = told(range[1] - range[0]);
    if (x1 - x0 > pen.measureText(text).width + 8) {
      pen.textAlign = "center";
      pen.fillText(text, (x0 + x1) / 2, view.height - 9);
      pen.textAlign = "left";
    }
  }

  function drawOverview(ink) {
    const [low, high] = info.extent, scale = plot() / (high - low), shades = info.overview;
    const bands = [["#8C8C8C", shades[0]], ["#0072B2", shades[1]]].filter(([, band]) => band.length);
    const tall = (OVERVIEW - 6) / Math.max(1, bands.length);
    bands.forEach(([colour, band], k) => {
      pen.fillStyle = colour;
      for (let i = 0; i < band.length; i++) {
        if (!band[i]) continue;
        pen.globalAlpha = 0.15 + (0.75 * band[i]) / 255;
        pen.fillRect(view.gutter + (i * plot()) / band.length, 3 + k * tall, plot() / band.length + 0.5, tall - 1);
      }
    });
    pen.globalAlpha = 1;
    pen.fillStyle = ink;
    pen.textAlign = "right";
    pen.fillText(`${told(high - low)} in all`, view.gutter - 10, OVERVIEW / 2);
    pen.textAlign = "left";
    const x0 = Math.max(view.gutter, view.gutter + (view.t0 - low) * scale);
    const x1 = Math.min(view.width - 1, view.gutter + (view.t1 - low) * scale);
    pen.strokeStyle = ink;
    pen.strokeRect(x0 + 0.5, 1.5, Math.max(2, x1 - x0 - 1), OVERVIEW - 4);
  }

  function drawScroll() {
    const room = view.height - OVERVIEW - AXIS;
    if (view.layout.height <= room) return;
    pen.fillStyle = "rgba(128,128,128,.55)";
    const share = room / view.layout.height;
    pen.fillRect(view.width - 5, OVERVIEW + AXIS + view.top * share, 4, room * share);
  }

  return { draw, resized, plot, place, toTime };
}
