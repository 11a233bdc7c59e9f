// The box beside the pointer: what all lines of a figure have at this x, in order.

const MOST_COMPARED = 14;

// Show in a box beside the pointer what `describe` makes of an event of plotly.js: a title and rows.
function showHover(div, describe) {
  const box = make("div", { class: "hover", role: "status" });
  box.hidden = true;
  div.parentElement.append(box);
  div.on("plotly_unhover", () => (box.hidden = true));
  div.on("plotly_relayout", () => (box.hidden = true));
  div.on("plotly_hover", (event) => {
    const found = describe(event);
    if (!found) return;
    const rows = found.rows.map(({ stroke, dash, value, label, strong }) => {
      const mark = stroke ? swatch(stroke, dash) : "";
      const cells = [make("td", {}, mark), make("td", { class: "number", text: value }), make("td", { text: label })];
      return make("tr", { class: strong ? "strong" : "" }, ...cells);
    });
    box.replaceChildren(make("p", { text: found.title }), make("table", {}, make("tbody", {}, ...rows)));
    box.hidden = false;
    place(box, div, event.points[0]);
  });
}

// Put the box to that side of the point where there is more room.
function place(box, div, point) {
  const [left, top] = [div.offsetLeft, div.offsetTop];
  const at = point.xaxis._offset + point.xaxis.d2p(point.x);
  const wide = div.parentElement.clientWidth;
  const right = at < wide / 2;
  const room = Math.max(120, (right ? wide - at : at) - 16);
  box.style.maxWidth = `${room}px`;
  box.style.top = `${top + 12}px`;
  box.style.left = right ? `${left + at + 12}px` : "auto";
  box.style.right = right ? "auto" : `${wide - left - at + 12}px`;
}

// Return the value of a trace at x, of the nearest of its rows; of steps, the one at or before. Null beyond its ends.
function valueAt(trace, x, reach) {
  const steps = trace.line?.shape === "hv";
  const there = [...trace.x.keys()].filter((at) => trace.x[at] !== null && trace.y[at] !== null && (!steps || trace.x[at] <= x));
  if (!there.length) return null;
  const away = (at) => Math.abs(trace.x[at] - x);
  const best = steps ? there.at(-1) : there.reduce((one, other) => (away(other) < away(one) ? other : one));
  const inside = steps || (trace.meta.is !== "mark" && trace.x[there[0]] <= x && x <= trace.x[there.at(-1)]);
  return inside || away(best) <= reach ? (trace.customdata ?? trace.y)[best] : null;
}

// Return the point of an event that is nearest to the pointer, a line's if there is one.
function nearest({ points, event }) {
  const lines = points.filter(({ data: { meta } }) => meta.is === "line" || meta.is === "run");
  const { top } = event.target.getBoundingClientRect(); // of the area within the axes
  const away = ({ yaxis, y }) => Math.abs(yaxis.d2p(y) - (event.clientY - top));
  return (lines.length ? lines : points).reduce((one, other) => (away(other) < away(one) ? other : one));
}

function compared(div, id, event) {
  const figure = data.figures[id];
  const near = nearest(event);
  const { x } = near;
  const ends = div._fullLayout.xaxis.range.map((end) => (div._fullLayout.xaxis.type === "log" ? 10 ** end : end));
  const distinct = new Map(); // what several runs of a line have in common is said once
  div.data.forEach((trace, number) => {
    if (!["line", "run", "mark"].includes(trace.meta.is)) return;
    const reach = Math.abs(ends[1] - ends[0]) * 0.01;
    const value = valueAt(trace, x, reach);
    if (value === null) return;
    const mark = trace.meta.is === "mark";
    const dash = mark ? "2 3" : DASHED[trace.line.dash];
    const { label } = trace.meta;
    const key = `${value} ${label}`;
    const row = { number, value, stroke: mark ? trace.marker.color : trace.line.color, dash, label };
    if (number === near.curveNumber || !distinct.has(key)) distinct.set(key, row);
  });
  const found = [...distinct.values()].sort((a, b) => a.value - b.value);
  const at = found.findIndex(({ number }) => number === near.curveNumber);
  const first = Math.max(0, Math.min(at - (MOST_COMPARED >> 1), found.length - MOST_COMPARED));
  const rows = found.slice(first, first + MOST_COMPARED);
  const title = figure.x[choice("x", figure.x)].title.split(" (")[0];
  const trueX = near.data.meta.x ? near.data.meta.x[near.pointNumber] : x; // which may stand at the foot of the axis
  const weight = isCurves(figure) ? Number(find("input[name=smooth]").value) : 0;
  const notes = [`${title} ${short(trueX)}`];
  if (weight) notes.push(`smoothed by ${weight}`);
  if (rows.length < found.length) notes.push(`${first + 1} to ${first + rows.length} of ${found.length}`);
  return {
    title: notes.join(", "),
    rows: rows.map((row) => ({ ...row, value: short(row.value), strong: found.length > 1 && row.number === near.curveNumber })),
  };
}
