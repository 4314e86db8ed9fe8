// The timeline on a canvas: what `flashnorm_lab.widgets.TimelinePanel` and a written HTML page both show.
//
// It draws what it is given (paint.js) and asks for more: `source.ask(request)` answers with a tile (which spans
// to draw one by one, which are merged), with the words about a span, or with a search hit. In a notebook Python
// answers; in a page it is page.js. All text from a trace goes through textContent or fillText.

const KEYS = "wheel: zoom (Shift: move; over the names: scroll) · drag: move · Shift+drag: select a time · click: a span and "
  + "its arrows · double click: all · arrows or W A S D, + − · Home: all · f: fit the selection · /: search "
  + "· n p: next, previous hit · Esc: clear";
const FIRST = "click into the timeline first, else the wheel turns the page (or hold Ctrl) · ";

const STYLE = `
.fnt { position: relative; font: 12px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
.fnt-bar { display: flex; flex-wrap: wrap; gap: 6px 8px; align-items: center; margin: 2px 0 6px; }
.fnt-bar label { display: inline-flex; gap: 5px; align-items: center; }
.fnt :is(input, select, button) { font: inherit; color: inherit; background: transparent; height: 26px;
  box-sizing: border-box; border: 1px solid rgba(128,128,128,.5); border-radius: 3px; padding: 1px 7px; }
.fnt option { color: #333; background: #fff; }
.fnt button { cursor: pointer; min-width: 28px; text-align: center; }
.fnt button:hover { background: rgba(128,128,128,.15); }
.fnt input[type=search] { width: 168px; }
.fnt input.fnt-lanes { width: 104px; }
.fnt-group { display: inline-flex; gap: 4px; align-items: center; }
.fnt :is(input, select, button, summary, .fnt-stage):focus-visible {
  outline: 3px solid #0072B2; outline-offset: 1px; }
.fnt-stage { position: relative; border: 1px solid rgba(128,128,128,.35); touch-action: none; cursor: default; }
.fnt-stage canvas { display: block; width: 100%; }
.fnt-tip { position: absolute; pointer-events: none; z-index: 5; max-width: 460px; padding: 6px 9px; color: #222;
  background: #fff; border: 1px solid rgba(0,0,0,.3); border-radius: 3px; box-shadow: 0 2px 8px rgba(0,0,0,.18); }
.fnt-tip b { display: -webkit-box; -webkit-line-clamp: 4; -webkit-box-orient: vertical; overflow: hidden;
  overflow-wrap: anywhere; font-weight: 600; }
.fnt dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 12px; margin: 2px 0 0; }
.fnt dt { opacity: .7; font-weight: normal; }
.fnt dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.fnt-status { margin: 4px 0 0; min-height: 1.45em; font-variant-numeric: tabular-nums; }
.fnt-about { margin: 4px 0 0; } .fnt-about b { overflow-wrap: anywhere; }
.fnt-keys { opacity: .75; margin: 2px 0 0; } .fnt-keys summary { cursor: pointer; width: max-content; }
.fnt-legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 4px 0 0; }
.fnt-legend i { display: inline-block; width: 12px; height: 12px; margin-right: 5px; vertical-align: -1px; }
.fnt-count { min-width: 64px; opacity: .8; font-variant-numeric: tabular-nums; }
`;

function element(tag, { attributes = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function facts(lines) {
  const list = element("dl");
  for (const [name, value] of lines) {
    list.append(element("dt", { textContent: name }), element("dd", { textContent: value }));
  }
  return list;
}

function createTimeline(root, info, source, options = {}) {
  const tallest = options.height ?? (() => 460);
  // What is shown: the part of time, the rows and how far they are scrolled, what the last answer was, ...
  const [begin, end] = options.view ?? info.extent;
  const view = { t0: begin, t1: end, top: 0, width: 800, height: 200, gutter: 172, layout: null,
    tiles: null, selection: null, drag: null, span: null, folded: info.parts.map((part) => new Set(part.folded)) };
  // ... and what was chosen in the bar above.
  const state = { hit: -1, text: "", colour: info.colour, arrows: "order", filter: "" };
  let hover = null, over = null, frame = 0, asking = 0, wanted = false, asked = 0, closed = false;
  const pointers = new Map();

  // What there is to see and press

  const search = element("input", { type: "search", placeholder: "name of a span",
    attributes: { "aria-label": "search spans by name" } });
  const count = element("span", { className: "fnt-count", attributes: { role: "status" } });
  const lanes = element("input", { className: "fnt-lanes", type: "search", placeholder: "all lanes",
    attributes: { "aria-label": "show only lanes whose name holds one of these words" } });
  const press = (text, label, act) => {
    const made = element("button", { type: "button", textContent: text, title: label, onclick: act,
      attributes: { "aria-label": label } });
    return made;
  };
  const choice = (label, values, act) => {
    const made = element("select", { attributes: { "aria-label": label } });
    for (const [value, text] of values) made.append(element("option", { value, textContent: text }));
    made.onchange = () => act(made.value);
    return element("label", {}, label, made);
  };
  const colours = choice("colour", [["name", "by name"], ["group", "by group"]], (value) => {
    state.colour = value;
    showLegend();
    ask();
  });
  colours.lastChild.value = state.colour;
  const arrows = choice("arrows", [["order", "edges"], ["launch", "+ launches"], ["all", "all"],
    ["none", "none"]], (value) => {
    state.arrows = value;
    ask();
  });
  const bar = element("div", { className: "fnt-bar" },
    element("span", { className: "fnt-group" }, element("label", {}, "search", search),
      press("‹", "previous hit (p)", () => step(-1)), press("›", "next hit (n)", () => step(1)), count),
    element("label", {}, "lanes", lanes));
  if (info.groups.length) bar.append(colours);
  bar.append(arrows, element("span", { className: "fnt-group" }, press("−", "zoom out", () => zoom(1.5)),
    press("+", "zoom in", () => zoom(1 / 1.5)), press("All", "show all (Home)", () => show(...info.extent)),
    press("Fold", "fold or unfold nested rows", foldAll)));
  const canvas = element("canvas");
  const stage = element("div", { className: "fnt-stage", tabIndex: 0, attributes: {
    role: "application", "aria-roledescription": "timeline", "aria-label": info.label } }, canvas);
  const tip = element("div", { className: "fnt-tip", hidden: true, attributes: { role: "tooltip" } });
  const status = element("div", { className: "fnt-status", attributes: { role: "status" } });
  const legend = element("div", { className: "fnt-legend" });
  const about = element("div", { className: "fnt-about", attributes: { "aria-live": "polite" } });
  const keys = element("details", { className: "fnt-keys" },
    element("summary", { textContent: "Mouse and keys" }), options.wheel ? KEYS : FIRST + KEYS);
  root.classList.add("fnt");
  root.append(element("style", { textContent: STYLE }), bar, stage, status, legend, about, keys, tip);
  const pen = canvas.getContext("2d");
  const painter = createPainter(pen, info, view), { plot, toTime } = painter;

  // Where things stand

  function place() {
    const words = state.filter.toLowerCase().split(/[\s,]+/).filter(Boolean);
    const items = [], y = info.parts.map((part) => new Float32Array(part.rows).fill(-1));
    const h = y.map((tops) => tops.slice());
    let at = SPACE;
    info.parts.forEach((part, p) => {
      if (info.parts.length > 1) {
        items.push({ kind: "head", part: p, y: at, h: HEAD, text: part.title });
        at += HEAD;
      }
      for (const lane of part.lanes) {
        if (words.length && !words.some((word) => lane.name.toLowerCase().includes(word))) continue;
        const tall = view.folded[p].has(lane.id) ? Math.max(3, Math.min(ROW / 2, FOLDED / lane.rows)) : ROW;
        for (let r = 0; r < lane.rows; r++) {
          y[p][lane.row + r] = at + r * tall;
          h[p][lane.row + r] = tall;
        }
        const height_ = Math.max(ROW, lane.rows * tall);
        items.push({ kind: "lane", part: p, lane, y: at, h: height_, text: lane.name });
        at += height_ + GAP;
      }
      part.counters.forEach((name, c) => {
        if (words.length && !words.some((word) => name.toLowerCase().includes(word))) return;
        items.push({ kind: "counter", part: p, counter: c, y: at, h: COUNTER, text: name });
        at += COUNTER + GAP;
      });
    });
    pen.font = FONT;
    const longest = items.reduce((most, item) => Math.max(most, pen.measureText(item.text).width), 0);
    view.gutter = Math.ceil(Math.min(250, Math.max(130, longest + 36)));
    view.layout = { items, y, h, height: at + SPACE };
    resize();
  }

  function shownLanes(p) {
    return view.layout.items.filter((item) => item.kind === "lane" && item.part === p).map((item) => item.lane.id);
  }

  function resize() {
    view.width = Math.max(320, stage.clientWidth || root.clientWidth || 800);
    view.height = Math.max(120, Math.min(view.layout.height + OVERVIEW + AXIS, tallest()));
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(view.width * ratio);
    canvas.height = Math.round(view.height * ratio);
    canvas.style.height = `${view.height}px`;
    painter.resized(ratio);
    scroll(0);
    ask();
  }

  function scroll(by) {
    const most = Math.max(0, view.layout.height + OVERVIEW + AXIS - view.height);
    view.top = Math.min(most, Math.max(0, view.top + by));
    redraw();
  }

  function show(t0, t1) {
    const [low, high] = info.extent, all = high - low, wide = Math.min(Math.max(t1 - t0, 20), all * 1.1);
    const margin = wide * 0.45;
    const middle = wide >= all ? (low + high) / 2 : Math.min(Math.max((t0 + t1) / 2, low + margin), high - margin);
    view.t0 = Math.round(middle - wide / 2);
    view.t1 = Math.round(view.t0 + wide);
    ask();
    redraw();
  }

  function zoom(factor, x = view.gutter + plot() / 2) {
    const at = toTime(x);
    show(at - (at - view.t0) * factor, at + (view.t1 - at) * factor);
  }

  function pan(share) {
    const by = (view.t1 - view.t0) * share;
    show(view.t0 + by, view.t1 + by);
  }

  function foldAll() {
    const open = info.parts.some((part, p) => part.lanes.some((l) => l.rows > 1 && !view.folded[p].has(l.id)));
    info.parts.forEach((part, p) => {
      view.folded[p] = new Set(open ? part.lanes.filter((l) => l.rows > 1).map((l) => l.id) : []);
    });
    place();
  }

  // What is asked, one question at a time: while one is open, only the newest of the later ones is kept

  function ask() {
    wanted = true;
    if (asking || closed || !view.layout) return;
    wanted = false;
    const mine = ++asked, w = view.t1 - view.t0, t0 = Math.round(view.t0 - w / 4), t1 = Math.round(view.t1 + w / 4);
    asking = mine;
    const waiting = setTimeout(() => {
      status.textContent = "waiting for an answer: the kernel is busy or gone …";
      if (asking === mine) asking = 0;
    }, 4000);
    source.ask({
      kind: "view", t0, t1, pixels: Math.min(8192, Math.round(plot() * 1.5)), inner: [view.t0, view.t1],
      colour: state.colour, text: state.text, arrows: state.arrows,
      lanes: info.parts.map((_, p) => shownLanes(p)),
    }).then((answer) => {
      clearTimeout(waiting);
      if (closed || mine < (view.tiles?.number ?? 0)) return;
      view.tiles = { ...answer, number: mine };
      say();
      redraw();
    }).catch((problem) => {
      clearTimeout(waiting);
      status.textContent = String(problem.message ?? problem);
    }).finally(() => {
      if (asking === mine) asking = 0;
      if (wanted && !asking) ask();
    });
  }

  function say() {
    const sum = (field) => view.tiles.parts.reduce((n, part) => n + part[field], 0);
    const all = info.parts.reduce((n, part) => n + part.spans, 0);
    const words = [`${number(sum("count"))} of ${number(all)} spans in view`];
    if (sum("merged")) words.push(`${number(sum("merged"))} of them too short to draw one by one (pale)`);
    if (sum("hidden")) words.push(`${number(sum("hidden"))} on lanes not shown`);
    if (sum("leftOut")) words.push(`arrows here not drawn: ${number(sum("leftOut"))}`);
    status.textContent = `${words.join(" · ")} · ${told(view.t1 - view.t0)} from ${told(view.t0)}`;
    stage.dataset.view = `${view.t0} ${view.t1}`;
    stage.dataset.count = sum("count");
  }

  async function find(text, by = 0) {
    state.text = text;
    if (!text.trim()) {
      state.hit = -1;
      count.textContent = "";
      return ask();
    }
    const answer = await source.ask({ kind: "search", text, number: by ? state.hit + by : 0 });
    if (closed || text !== state.text) return undefined;
    if (by) state.hit = answer.number;
    count.textContent = !answer.count ? "no span" : state.hit < 0 ? `${number(answer.count)} spans`
      : `${number(state.hit + 1)} of ${number(answer.count)}`;
    if (by && answer.span) {
      take(answer.span);
      reveal(answer.span);
    }
    return ask();
  }

  function step(by) {
    if (state.text.trim()) find(state.text, by).catch(() => {});
  }

  function reveal(span) {
    const part = info.parts[span.part], lane = part.lanes.find((l) => l.id === span.lane);
    if (state.filter && view.layout.y[span.part][span.row] < 0) {
      state.filter = lanes.value = "";
      place();
    }
    if (lane?.rows > 1 && view.folded[span.part].delete(span.lane)) place();
    const y = view.layout.y[span.part][span.row], room = view.height - OVERVIEW - AXIS - ROW;
    if (y >= 0 && (y < view.top || y > view.top + room)) scroll(y - room / 2 - view.top);
    const px = (span.length / (view.t1 - view.t0)) * plot();
    const wide = px < 4 || px > plot() ? Math.max(span.length * 40, 200) : view.t1 - view.t0;
    const middle = span.start + span.length / 2;
    const away = span.start < view.t0 || span.start + span.length > view.t1 || wide !== view.t1 - view.t0;
    if (away) show(middle - wide / 2, middle + wide / 2);
  }

  async function choose(part, span) {
    take(await source.ask({ kind: "span", part, span }));
  }

  function take(span) {
    if (closed) return;
    view.span = span;
    about.replaceChildren(element("b", { textContent: span.name }), facts(span.lines));
    stage.dataset.span = span.span;
    redraw();
  }

  function select(range) {
    view.selection = range;
    stage.dataset.selection = range ? range.join(" ") : "";
    source.select?.(range);
    redraw();
  }

  // JupyterLab takes the focus at Escape; a key for the timeline would then be one for the notebook.
  function clear() {
    if (view.span || view.selection) setTimeout(() => stage.focus({ preventScroll: true }));
    view.span = null;
    delete stage.dataset.span;
    about.replaceChildren();
    select(null);
  }

  function showLegend() {
    legend.replaceChildren();
    if (state.colour !== "group") return;
    info.groups.forEach(([name, colour]) => {
      const swatch = element("i");
      swatch.style.background = info.palette[colour][0];
      legend.append(element("span", {}, swatch, name));
    });
  }
  function redraw() {
    if (!frame && !closed) frame = requestAnimationFrame(draw);
  }

  function draw() {
    frame = 0;
    if (closed) return;
    const begun = performance.now();
    painter.draw(getComputedStyle(root).color);
    stage.dataset.drawn = (performance.now() - begun).toFixed(2);
  }

  // What is under the pointer

  function under(x, y) {
    if (!view.tiles || x < view.gutter || y < OVERVIEW + AXIS) return null;
    const at = y - OVERVIEW - AXIS + view.top;
    for (let p = 0; p < view.tiles.parts.length; p++) {
      const tile = view.tiles.parts[p], tops = view.layout.y[p], [scale, shift] = painter.place(tile);
      let best = null, near = 4;
      const test = (row, start, end, i, cell) => {
        if (tops[row] < 0 || at < tops[row] || at >= tops[row] + view.layout.h[p][row]) return;
        const x0 = shift + start * scale, x1 = shift + end * scale;
        const away = x < x0 ? x0 - x : x > x1 ? x - x1 : 0;
        if (away < near) {
          near = away;
          best = { part: p, tile, i, cell, span: cell ? tile.cellLongest[i] : tile.span[i] };
        }
      };
      for (let i = 0; i < tile.spanRow.length; i++) {
        test(tile.spanRow[i], tile.spanStart[i], tile.spanStart[i] + tile.spanLength[i], i, false);
      }
      const unit = cellUnit(tile);
      for (let i = 0; i < tile.cellRow.length; i++) {
        test(tile.cellRow[i], tile.cellStart[i] * unit, tile.cellEnd[i] * unit, i, true);
      }
      if (best) return best;
    }
    return null;
  }

  function laneAt(x, y) {
    const at = y - OVERVIEW - AXIS + view.top;
    if (x >= view.gutter || y < OVERVIEW + AXIS) return null;
    return view.layout.items.find((item) => at >= item.y && at < item.y + item.h) ?? null;
  }

  function showTip(x, y, ...content) {
    tip.replaceChildren(...content);
    tip.hidden = false;
    const box = stage.getBoundingClientRect(), around = root.getBoundingClientRect();
    const left = box.left - around.left + x, top = box.top - around.top + y;
    tip.style.left = `${Math.max(0, Math.min(left + 14, around.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${top + 18}px`;
  }

  async function point(x, y) {
    over = [x, y];
    const lane = laneAt(x, y);
    if (lane) {
      hover = null;
      const nested = lane.kind === "lane" && lane.lane.rows > 1;
      stage.style.cursor = nested ? "pointer" : "default";
      return showTip(x, y, element("b", { textContent: lane.text }),
        lane.kind === "lane" ? `${lane.lane.note}${nested ? "; click to fold or unfold" : ""}` : "counter");
    }
    const found = under(x, y), key = found && `${found.part} ${found.span} ${found.cell}`;
    stage.style.cursor = found ? "pointer" : "default";
    if (!found) {
      hover = null;
      tip.hidden = true;
      return undefined;
    }
    if (key === hover?.key) return hover.content && showTip(x, y, ...hover.content);
    hover = { key };
    const mine = hover, told_ = await source.ask({ kind: "span", part: found.part, span: found.span, brief: true });
    if (closed || hover !== mine) return undefined;
    const tile = found.tile, i = found.i, merged = [];
    if (found.cell) {
      const extent = (tile.cellEnd[i] - tile.cellStart[i]) * cellUnit(tile);
      const [size, unit] = (UNITS.find(([u]) => extent >= u) ?? UNITS[3]);
      merged.push(`${number(tile.cellCount[i])} spans too short to draw one by one, in `
        + `${(extent / size).toPrecision(3)} ${unit}, busy ${(100 * tile.cellShare[i]).toFixed(0)} %. Longest:`);
    }
    mine.content = [...merged, element("b", { textContent: told_.name }), facts(told_.lines)];
    return showTip(...over, ...mine.content);
  }

  // Mouse, wheel, fingers, keys

  const local = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };

  stage.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    stage.focus({ preventScroll: true });
    const [x, y] = local(event);
    pointers.set(event.pointerId, [x, y]);
    stage.setPointerCapture(event.pointerId);
    tip.hidden = true;
    if (pointers.size > 1) view.drag = { kind: "pinch" };
    else if (x < view.gutter) view.drag = { kind: "lane", x, y };
    else if (y < OVERVIEW) view.drag = { kind: "overview" };
    else if (event.shiftKey || y < OVERVIEW + AXIS) {
      view.drag = { kind: "select", from: toTime(x), to: toTime(x), x };
    }
    else view.drag = { kind: "pan", x, y, startX: x, startY: y };
    if (view.drag.kind === "overview") jump(x);
  });

  function jump(x) {
    const [low, high] = info.extent, half = (view.t1 - view.t0) / 2;
    const at = low + ((x - view.gutter) / plot()) * (high - low);
    show(at - half, at + half);
  }

  stage.addEventListener("pointermove", (event) => {
    const [x, y] = local(event);
    if (!view.drag) {
      point(x, y).catch(() => {});
      return;
    }
    if (view.drag.kind === "pinch" && pointers.size === 2) {
      const before = [...pointers.values()];
      pointers.set(event.pointerId, [x, y]);
      const after = [...pointers.values()], gap = ([a, b]) => Math.max(8, Math.abs(a[0] - b[0]));
      zoom(gap(before) / gap(after), (after[0][0] + after[1][0]) / 2);
      pan(((before[0][0] + before[1][0]) / 2 - (after[0][0] + after[1][0]) / 2) / plot());
    } else if (view.drag.kind === "pan") {
      if (!view.drag.moved && Math.hypot(x - view.drag.startX, y - view.drag.startY) < 4) return;
      view.drag.moved = true;
      pan((view.drag.x - x) / plot());
      scroll(view.drag.y - y);
      Object.assign(view.drag, { x, y });
    } else if (view.drag.kind === "select") {
      view.drag.to = Math.min(Math.max(toTime(x), view.t0), view.t1);
      view.drag.moved = Math.abs(x - view.drag.x) > 3;
      redraw();
    } else if (view.drag.kind === "overview") jump(x);
  });

  function release(event) {
    const [x, y] = local(event), done = view.drag;
    pointers.delete(event.pointerId);
    if (pointers.size) return;
    view.drag = null;
    if (!done || event.type === "pointercancel") return;
    const range = [done.from, done.to].sort((a, b) => a - b).map(Math.round);
    if (done.kind === "select") select(done.moved && range[1] > range[0] ? range : null);
    else if (done.kind === "lane") fold(laneAt(x, y));
    else if (done.kind === "pan" && !done.moved) {
      const found = under(x, y);
      if (found) choose(found.part, found.span).catch(() => {});
      else clear();
    }
    redraw();
  }
  stage.addEventListener("pointerup", release);
  stage.addEventListener("pointercancel", release);
  stage.addEventListener("pointerleave", () => {
    hover = null;
    tip.hidden = true;
  });

  function fold(item) {
    if (item?.kind !== "lane" || item.lane.rows < 2) return;
    const folded = view.folded[item.part];
    if (!folded.delete(item.lane.id)) folded.add(item.lane.id);
    place();
  }

  stage.addEventListener("dblclick", () => show(...info.extent));

  // A wheel turns the page until the timeline has the focus, so that nobody is caught while scrolling past it.
  stage.addEventListener("wheel", (event) => {
    if (!options.wheel && !event.ctrlKey && !stage.matches(":focus")) return;
    event.preventDefault();
    const size = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 400 : 1;
    const dx = event.deltaX * size, dy = event.deltaY * size;
    tip.hidden = true;
    if (local(event)[0] < view.gutter) scroll(dy);
    else if (event.shiftKey) pan((dx || dy) / plot());
    else if (Math.abs(dx) > Math.abs(dy)) pan(dx / plot());
    else {
      const step = Math.max(-1, Math.min(1, dy * (event.ctrlKey ? 0.01 : 0.0025)));
      zoom(Math.exp(step), Math.max(view.gutter, local(event)[0]));
    }
  }, { passive: false });

  const acts = {
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), ArrowUp: () => scroll(-3 * ROW),
    ArrowDown: () => scroll(3 * ROW), a: () => pan(-0.15), d: () => pan(0.15), w: () => zoom(1 / 1.4),
    s: () => zoom(1.4), "+": () => zoom(1 / 1.4), "=": () => zoom(1 / 1.4), "-": () => zoom(1.4),
    Home: () => show(...info.extent), f: fit, n: () => step(1), p: () => step(-1), Escape: clear,
    "/": () => search.focus(),
  };

  function fit() {
    const chosen = view.span;
    const range = view.selection ?? (chosen && [chosen.start, chosen.start + Math.max(chosen.length, 20)]);
    if (range) show(range[0] - (range[1] - range[0]) * 0.05, range[1] + (range[1] - range[0]) * 0.05);
  }

  stage.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const act = acts[event.key] ?? acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    state.hit = -1;
    typing = setTimeout(() => find(search.value).catch(() => {}), 120);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    clearTimeout(typing);
    if (state.text !== search.value) state.hit = -1;
    find(search.value, event.shiftKey ? -1 : 1).catch(() => {});
  });
  lanes.addEventListener("input", () => {
    state.filter = lanes.value;
    place();
  });

  const size = new ResizeObserver(() => stage.clientWidth && stage.clientWidth !== view.width && resize());
  size.observe(stage);
  // Words on the canvas have the colour of the text around it, which a browser or JupyterLab may change.
  const dark = matchMedia("(prefers-color-scheme: dark)"), theme = new MutationObserver(redraw);
  dark.addEventListener("change", redraw);
  theme.observe(document.body, { attributes: true });
  place();
  showLegend();
  return {
    show, find, choose,
    mark(range) {
      view.selection = range;
      redraw();
    },
    close() {
      closed = true;
      size.disconnect();
      theme.disconnect();
      dark.removeEventListener("change", redraw);
      cancelAnimationFrame(frame);
      root.replaceChildren();
    },
  };
}
