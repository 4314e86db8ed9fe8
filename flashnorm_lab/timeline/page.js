// A written page's own answers to what view.js asks: the columns of one timeline, read from the page itself.
//
// Spans stand row by row in the order of their starts. Python has laid out the rows (`detail.py`); what is drawn
// one by one and what is merged is decided here by the same rule.

async function unpack(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = await new Response(stream).arrayBuffer();
  const size = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, size)));
  return [head, columnsOf(head.columns, bytes, 4 + size)];
}

// Starts and lengths: gaps within a row and lengths as 32 bits each, the few longer ones apart as float64.
function restore(columns, bounds) {
  const { gap, length, long } = columns, count = gap.length;
  const start = new Float64Array(count), size = new Float64Array(count), most = 4294967295;
  let next = 0;
  for (let row = 0; row + 1 < bounds.length; row++) {
    for (let i = bounds[row], end = 0; i < bounds[row + 1]; i++) {
      start[i] = end + (gap[i] === most ? long[next++] : gap[i]);
      size[i] = length[i] === most ? long[next++] : length[i];
      end = start[i] + size[i];
    }
  }
  return [start, size];
}

function createSource(head, columns, chosen) {
  const part = head.info.parts[0], bounds = head.bounds, names = head.names;
  const [start, length] = restore(columns, bounds), count = start.length;
  const lower = names.map((name) => name.toLowerCase());
  const rowLane = new Int32Array(part.rows), laneOf = new Map(part.lanes.map((lane) => [lane.id, lane]));
  for (const lane of part.lanes) rowLane.fill(lane.id, lane.row, lane.row + lane.rows);
  const { arrowFrom, arrowTo, arrowKind, arrowName } = columns;
  const outcome = columns.outcome ?? new Uint8Array(count);
  let hits = null;

  const first = (low, high, before) => {
    while (low < high) {
      const middle = (low + high) >> 1;
      if (before(middle)) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const range = (row, t0, t1) => {
    const low = bounds[row], high = bounds[row + 1];
    const begin = first(low, high, (i) => start[i] + length[i] <= t0 && start[i] < t0);
    return [begin, Math.max(begin, first(low, high, (i) => start[i] < t1))];
  };
  const rowOf = (i) => first(0, part.rows, (row) => bounds[row + 1] <= i);

  function view(q) {
    const { t0, t1, pixels, inner } = q, scale = pixels / (t1 - t0), px = Math.ceil((t1 - t0) / pixels);
    const colour = q.colour === "group" ? columns.groupColour : columns.colour;
    const fits = q.text.trim() ? fit(q.text) : null;
    const shown = new Set(q.lanes[0]);
    const tile = { t0, t1, pixels, count: 0, hidden: 0, merged: 0, leftOut: 0, names: {} };
    const fields = ["span", "spanStart", "spanLength", "spanRow", "spanName", "spanColour", "spanOutcome",
      "cellStart",
      "cellEnd", "cellShare", "cellRow", "cellCount", "cellLongest", "cellColour", "cellOutcome", "arrowSource",
      "arrowTarget", "arrowKind", "counter", "counterPx", "counterLow", "counterHigh", "counterLast"];
    for (const field of fields) tile[field] = [];
    const shade = (i) => (fits && !fits[columns.name[i]] ? head.dim : colour[i]);
    const seen = new Int32Array(count);
    for (let row = 0; row < part.rows; row++) {
      const [begin, end] = range(row, t0, t1), [from, to] = range(row, ...inner);
      if (!shown.has(rowLane[row])) tile.hidden += to - from;
      else {
        tile.count += to - from;
        merge(row, begin, end);
      }
    }
    function merge(row, begin, end) {
      for (let i = begin; i < end;) {
        const at = (p) => Math.floor((Math.max(start[p], t0) - t0) * scale), pixel = at(i);
        let next = i + 1, busy = length[i], longest = i, worst = outcome[i];
        if (length[i] < px) {
          for (; next < end && length[next] < px && at(next) === pixel; next++) {
            busy += length[next];
            if (length[next] > length[longest]) longest = next;
            if (outcome[next] > worst) worst = outcome[next];
          }
        }
        if (next === i + 1) {
          seen[i] = tile.span.push(i) + 1;
          tile.spanStart.push(start[i] - t0);
          tile.spanLength.push(length[i]);
          tile.spanRow.push(row);
          tile.spanName.push(columns.name[i]);
          tile.spanColour.push(shade(i));
          tile.spanOutcome.push(outcome[i]);
          const name = columns.name[i];
          if (length[i] * scale > 24) tile.names[name] = head.labels[name] ?? names[name];
        } else {
          seen.fill(1, i, next);
          const extent = start[next - 1] + length[next - 1] - start[i];
          tile.cellStart.push((start[i] - t0) * scale);
          tile.cellEnd.push((start[i] + extent - t0) * scale);
          tile.cellShare.push(extent > 0 ? busy / extent : 0);
          tile.cellRow.push(row);
          tile.cellCount.push(next - i);
          tile.cellLongest.push(longest);
          tile.cellColour.push(shade(longest));
          tile.cellOutcome.push(worst);
          if (start[i] < inner[1] && start[i] + extent > inner[0]) tile.merged += next - i;
        }
        i = next;
      }
    }
    tile.merged = Math.min(tile.merged, tile.count);
    drawArrows(tile, seen, { none: [], order: [1], launch: [0, 1], all: [0, 1, 2] }[q.arrows]);
    drawCounters(tile);
    return { parts: [tile] };
  }

  function drawArrows(tile, seen, kinds) {
    const wanted = [0, 1, 2].map((kind) => kinds.includes(kind)), ends = [];
    for (let i = 0; i < arrowKind.length; i++) {
      if (!wanted[arrowKind[i]]) continue;
      const s = seen[arrowFrom[i]], t = seen[arrowTo[i]];
      if (s > 1 && t > 1) ends.push(i);
      else if (s && t) tile.leftOut += 1;
    }
    const step = Math.max(1, ends.length / head.mostArrows);
    for (let k = 0; k < ends.length; k++) {
      if (Math.floor(k / step) === Math.floor((k - 1) / step) && k) {
        tile.leftOut += 1;
        continue;
      }
      tile.arrowSource.push(seen[arrowFrom[ends[k]]] - 2);
      tile.arrowTarget.push(seen[arrowTo[ends[k]]] - 2);
      tile.arrowKind.push(arrowKind[ends[k]]);
    }
  }

  function drawCounters(tile) {
    const { counter, counterAt, counterValue } = columns;
    for (let i = 0; i < counter.length; i++) {
      const before = counterAt[i] < tile.t0, next = counter[i + 1] === counter[i] ? counterAt[i + 1] : Infinity;
      if (counterAt[i] >= tile.t1 || (before && next < tile.t0)) continue;
      const pixel = before ? -1 : Math.floor(((counterAt[i] - tile.t0) * tile.pixels) / (tile.t1 - tile.t0));
      const k = tile.counter.length - 1, value = counterValue[i];
      if (tile.counter[k] === counter[i] && tile.counterPx[k] === pixel) {
        tile.counterLow[k] = Math.min(tile.counterLow[k], value);
        tile.counterHigh[k] = Math.max(tile.counterHigh[k], value);
        tile.counterLast[k] = value;
      } else {
        tile.counter.push(counter[i]);
        tile.counterPx.push(pixel);
        tile.counterLow.push(value);
        tile.counterHigh.push(value);
        tile.counterLast.push(value);
      }
    }
  }

  const stands = (i) => ({ span: i, row: rowOf(i), lane: rowLane[rowOf(i)], start: start[i], length: length[i] });

  function span(i, brief) {
    const lane = laneOf.get(rowLane[rowOf(i)]), what = head.categories[columns.category[i]];
    const lines = [["what", `${what} on ${lane.name}${lane.device ? `, device ${lane.device}` : ""}`],
      ["start", told(start[i])], ["duration", told(length[i])]];
    const arrows = [];
    let delay = null;
    for (let k = 0; k < arrowKind.length; k++) {
      if (arrowKind[k] === 0 && arrowTo[k] === i) delay = start[i] - start[arrowFrom[k]];
      if (arrowFrom[k] === i || arrowTo[k] === i) arrows.push(k);
    }
    if (delay !== null) lines.push(["launch to start", told(delay)]);
    if (columns.step && columns.step[i] >= 0) lines.push(["step", String(columns.step[i])]);
    if (outcome[i]) lines.push(["result", OUTCOMES[outcome[i]]]);
    if (!brief) {
      for (const k of arrows.slice(0, 12)) {
        const other = arrowFrom[k] === i ? arrowTo[k] : arrowFrom[k];
        const kind = [head.arrows[arrowKind[k]], names[arrowName[k]] ?? ""].join(" ").trim();
        const where = laneOf.get(rowLane[rowOf(other)]).name;
        lines.push([arrowFrom[k] === i ? "to" : "from", `${names[columns.name[other]]} on ${where} (${kind})`]);
      }
      if (arrows.length > 12) lines.push(["and", `${number(arrows.length - 12)} more arrows`]);
    }
    return { ...stands(i), part: 0, name: names[columns.name[i]], lines, arrows: arrows.map((k) => ({
      kind: head.arrows[arrowKind[k]], source: stands(arrowFrom[k]), target: stands(arrowTo[k]) })) };
  }

  const fit = (text) => lower.map((name) => name.includes(text.toLowerCase()));

  function search(text, wanted) {
    if (hits?.text !== text) {
      const fits = fit(text), found = [];
      for (let i = 0; i < count; i++) if (fits[columns.name[i]]) found.push(i);
      hits = { text, found: found.sort((a, b) => start[a] - start[b]) };
    }
    const size = hits.found.length, place = size ? ((wanted % size) + size) % size : -1;
    return { count: size, number: place, span: size ? span(hits.found[place]) : undefined };
  }

  // The selection's own figures: busy time of each stream (the union of its spans) and the longest kernels.
  function select(time) {
    chosen.replaceChildren();
    if (!time) return;
    const [t0, t1] = time, busy = [], total = new Map();
    let all = 0;
    for (const lane of part.lanes) {
      const pieces = [];
      for (let row = lane.row; row < lane.row + lane.rows; row++) {
        const [begin, end] = range(row, t0, t1);
        all += end - begin;
        for (let i = begin; lane.kind === "device" && i < end; i++) {
          if (!head.work.includes(columns.category[i])) continue;
          const from = Math.max(start[i], t0), to = Math.min(start[i] + length[i], t1);
          pieces.push([from, to]);
          const sum = total.get(columns.name[i]) ?? [0, 0];
          total.set(columns.name[i], [sum[0] + 1, sum[1] + to - from]);
        }
      }
      pieces.sort((a, b) => a[0] - b[0]);
      let reach = t0, sum = 0;
      for (const [from, to] of pieces) {
        sum += Math.max(0, to - Math.max(reach, from));
        reach = Math.max(reach, to);
      }
      const share = ((100 * sum) / (t1 - t0)).toFixed(1);
      if (lane.kind === "device") busy.push([lane.name, `busy ${told(sum)}, ${share} %`]);
    }
    const most = [...total].sort((a, b) => b[1][1] - a[1][1]), shown = most.slice(0, 8);
    const title = `Selected: ${told(t1 - t0)} from ${told(t0)}, ${number(all)} spans`;
    chosen.append(element("b", { textContent: title }),
      facts(busy.concat(shown.map(([name, [n, sum]]) => [`${number(n)} ×`, `${told(sum)} in ${names[name]}`]))));
    if (most.length > shown.length) chosen.append(`and ${number(most.length - shown.length)} more names`);
  }

  return {
    select,
    async ask(question) {
      if (question.kind === "view") return view(question);
      if (question.kind === "span") return span(question.span, question.brief);
      return search(question.text, question.number);
    },
  };
}

async function start(root, chosen, text) {
  const [head, columns] = await unpack(text);
  return createTimeline(root, head.info, createSource(head, columns, chosen), {
    wheel: true, view: head.view, height: () => Math.max(260, window.innerHeight - 260),
  });
}
