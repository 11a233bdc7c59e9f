// Parallel coordinates: an axis for each key in which the runs differ, and one for how they ended; a line for each run.

const SPACE = { top: 48, bottom: 18, left: 20, right: 60, height: 310 };
const END = 0.01; // the share of an axis, two pixels, within which the pointer is at an end of it
const LINE = 11; // the height of a text beside an axis, in pixels
const CLOSE = 170; // the distance of axes, in pixels, below which their names are in two rows

function parallelAxes() {
  const { columns } = data.table;
  const keys = [...columns.keys()].filter((at) => isNamed(columns[at].kind) && columns[at].name !== "seed" && valuesOf(at).length > 1);
  const measure = explored.y;
  return measure && !keys.includes(measure) ? [...keys.slice(0, 9), measure] : keys.slice(0, 10);
}

// Return where the values of a column are, as a share of the axis from its foot, and the texts beside it.
function scaleOf(at) {
  const { numeric } = data.table.columns[at];
  if (!numeric) {
    const values = valuesOf(at);
    const share = (value) => (values.indexOf(value) + 0.5) / values.length;
    const few = values.length <= 16 ? values : [];
    return { share: (value) => (value === null ? null : share(value)), ticks: few.map((value) => [share(value), cellText(at, value)]) };
  }
  const [low, high] = spanOf(at) ?? [0, 1];
  const share = shareOf(at, low, high);
  const different = [...new Set(numbersOf(at))].sort((a, b) => a - b);
  const values = different.length <= 8 ? different : niceTicks(at, low, high);
  const back = (part, round) => { // an end of the axis has all digits; elsewhere a thousandth of the axis, or of the value, is enough
    if (part === 0 || part === 1) return part ? high : low;
    const value = isLog(at) ? low * (high / low) ** part : low + (high - low) * part;
    const step = 10 ** Math.floor(Math.log10((isLog(at) ? value : high - low || 1) / 1000));
    return Number((round(value / step) * step).toPrecision(12));
  };
  const place = (value) => (isNumber(numberOf(value)) ? share(numberOf(value)) : null);
  return { share: place, back, ticks: values.map((value) => [share(value), exact(Number(value.toPrecision(different.length <= 8 ? 4 : 2)))]) };
}

function niceTicks(at, low, high) {
  if (isLog(at)) {
    const { tickvals } = logTicks(Math.log10(low), Math.log10(high));
    const inside = (tickvals ?? []).filter((value) => value >= low && value <= high);
    return inside.length > 1 ? inside : [low, high];
  }
  const rough = (high - low) / 5 || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = size * [1, 2, 5, 10].find((digit) => digit * size >= rough);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, n) => Number(((Math.ceil(low / step) + n) * step).toPrecision(12)));
}

function drawParallel() {
  const axes = parallelAxes();
  const box = find("#parallel");
  if (axes.length < 2 || data.runs.length < 2) {
    box.hidden = true;
    box.nextElementSibling.hidden = true;
    return;
  }
  const width = Math.max(state.paper ? PAPER : box.clientWidth, axes.length * 88);
  const { top, bottom, left, right, height } = SPACE;
  const step = (width - left - right) / (axes.length - 1);
  const scales = axes.map(scaleOf);
  const y = (share) => top + (1 - share) * (height - top - bottom);
  const shown = new Set(shownRows());
  const last = axes.at(-1);
  const { of } = coloursOf([...data.runs.keys()], last);
  const rows = [...data.runs.keys()].sort((a, b) => shown.has(a) - shown.has(b) || state.selected.has(a) - state.selected.has(b));
  const lines = rows.map((row) => {
    const points = axes.map((at, n) => [left + n * step, scales[n].share(data.table.rows[row][at])]).filter(([, share]) => share !== null);
    const d = points.map(([x, share], n) => `${n ? "L" : "M"}${x.toFixed(1)} ${y(share).toFixed(1)}`).join("");
    const inside = shown.has(row);
    const look = inside ? { stroke: of(row), "stroke-width": state.selected.has(row) ? 3 : 1.4 } : { stroke: colour("--grid"), "stroke-width": 1 };
    return make("path", { d, fill: "none", "data-row": row, class: inside ? "run" : "run out", "stroke-opacity": inside ? 0.85 : 0.6, ...look });
  });
  const names = axes.map((at, n) => {
    const { name } = data.table.columns[at];
    const [x, anchor] = n === 0 ? [4, "start"] : n === axes.length - 1 ? [width - 2, "end"] : [left + n * step, "middle"];
    const place = { x, y: step < CLOSE && n % 2 === 0 ? 14 : 30, "text-anchor": anchor };
    return make("text", { class: "name", text: name.length > 22 ? `…${name.slice(-21)}` : name, ...place });
  });
  const drawn = axes.map((at, n) => axisWithBrush(at, left + n * step, y, scales[n]));
  const label = `parallel coordinates of ${axes.map((at) => data.table.columns[at].name).join(", ")}`;
  box.replaceChildren(make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...lines, ...drawn, ...names));
}

function axisWithBrush(at, x, y, scale) {
  const parts = [
    make("line", { x1: x, x2: x, y1: y(0), y2: y(1), stroke: colour("--axis") }),
    ...apart(scale.ticks, y).map(([share, text]) => make("text", { x: x + 6, y: y(share) + 4, text: text.length > 18 ? `${text.slice(0, 17)}…` : text })),
  ];
  const brush = make("rect", { x: x - 7, width: 14, y: 0, height: 0, class: "brush" });
  const area = make("rect", { x: x - 14, width: 28, y: y(1) - 8, height: y(0) - y(1) + 16, class: "area", "data-column": at });
  const shareAt = (event) => {
    const { top } = area.ownerSVGElement.getBoundingClientRect();
    const share = (y(0) - (event.clientY - top)) / (y(0) - y(1));
    return share < END ? 0 : share > 1 - END ? 1 : share;
  };
  area.addEventListener("pointerdown", (event) => {
    const from = shareAt(event);
    area.setPointerCapture(event.pointerId);
    area.onpointermove = (moved) => {
      const [low, high] = [from, shareAt(moved)].sort((a, b) => a - b);
      brush.setAttribute("y", y(high));
      brush.setAttribute("height", y(low) - y(high));
    };
    area.onpointerup = (ended) => {
      area.onpointermove = area.onpointerup = null;
      const [low, high] = [from, shareAt(ended)].sort((a, b) => a - b);
      if (high - low > 0.01) filter(at, rangeText(at, scale, low, high));
    };
  });
  area.addEventListener("dblclick", () => filter(at, ""));
  return make("g", {}, brush, ...parts, area);
}

// Return the ticks, which ascend, without those whose text would cover the one before.
function apart(ticks, y) {
  const kept = [];
  for (const tick of ticks) if (!kept.length || y(kept.at(-1)[0]) - y(tick[0]) >= LINE) kept.push(tick);
  return kept;
}

// Return the filter of a column for a part of its axis: rounded so that what lies at its ends is within.
function rangeText(at, scale, low, high) {
  if (scale.back) return `${scale.back(low, Math.floor)}..${scale.back(high, Math.ceil)}`;
  const inside = valuesOf(at).filter((value) => scale.share(value) >= low && scale.share(value) <= high);
  return inside.map(exactly).join("|") || '"\\u0000"';
}
