// The figures of lines: what a reader has chosen of each, drawn by plotly.js, and the legend of all.

// Nothing leaves the page: no button that uploads a figure.
const CONFIG = {
  responsive: true, displaylogo: false, showLink: false, sendData: false, showSendToCloud: false, plotlyServerURL: "",
  doubleClick: "reset", modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  typesetMath: false, // a text between dollar signs is a text
};
const PAPER = 640; // the width of figures on paper in pixels: 17 cm
const MOST_NAMED = 3; // the most lines that coincide whose names are all given
const ids = () => Object.keys(data.figures);
const checked = (name) => Boolean(find(`input[name="${name}"]`)?.checked);

// An axis of the curves has several columns, that of any other figure one, under no name.
const choice = (name, axis) => ("" in axis ? "" : find(`input[name="${name}"]:checked`).value);
const isCurves = (figure) => !("" in figure.x);

const placeOf = (places, chosen) => (typeof places === "number" ? places : places[chosen]);

function column(places, chosen) {
  const place = placeOf(places, chosen);
  return place === undefined ? [] : data.columns[place];
}

// Return exponential means: weights fall by the factor `weight` a row, and are divided by their sum.
function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, weights] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    weights = weight * weights + (1 - weight);
    return sum / weights;
  });
}

// Return the labels of the lines that figures have: not hidden, nor, if only lines of the table are wanted, filtered out.
function shownLines() {
  const wanted = state.onlyShown ? new Set(shownRows().map((row) => data.runs[row]?.line)) : null;
  return new Set(data.lines.map(({ label }) => label).filter((label) => !state.hidden.has(label) && (!wanted || wanted.has(label))));
}

// Return the traces of a figure; `ranges`: those of the axes that are logarithmic.
function tracesOf(id, x, y, ranges) {
  const figure = data.figures[id];
  const lines = shownLines();
  const curves = isCurves(figure);
  const weight = curves ? Number(find("input[name=smooth]").value) : 0;
  const bands = !find("input[name=bands]") || checked("bands");
  const known = figure.data.filter(({ meta, legendgroup }) => (legendgroup === undefined || lines.has(legendgroup)) && (bands || meta.is !== "band"));
  const panel = Number(id.split("-")[1]);
  const traces = together(known, x, y).map((trace) => {
    const labels = trace.meta.labels ?? [trace.legendgroup];
    const strokes = new Set(labels.map(colourOf));
    const stroke = strokes.size > 1 ? colour("--ink") : [...strokes][0];
    const values = column(trace.y, y);
    const shown = { ...trace, x: column(trace.x, x), y: trace.meta.is === "mark" ? values : smoothed(values, weight) };
    shown.line = { ...trace.line, color: stroke, dash: trace.meta.is === "line" ? dashOf(trace.legendgroup) : trace.line?.dash ?? "solid" };
    if (curves && trace.meta.is === "line" && labels.some((label) => hasWon(label, panel))) shown.line.width = 3;
    if (trace.marker) shown.marker = { ...trace.marker, color: stroke };
    if (trace.fill) shown.fillcolor = faint(stroke, isDark() ? 0.25 : 0.18);
    return shown;
  });
  if (curves) traces.push(...selectedRuns(panel, x, y, weight));
  return traces.map((trace) => withFeet(trace, ranges));
}

// Keep one trace of lines that would hide one another, as their columns are the same: the first, with the labels of all.
function together(traces, x, y) {
  const labels = new Map();
  const places = (trace) => [placeOf(trace.x, x), placeOf(trace.y, y)];
  const keyOf = (trace) => (trace.meta.is !== "line" || places(trace).includes(undefined) ? trace : places(trace).join());
  for (const trace of traces) labels.set(keyOf(trace), (labels.get(keyOf(trace)) ?? new Set()).add(trace.meta.label));
  const count = new Set(traces.filter(({ meta }) => meta.is === "line").map(({ meta }) => meta.label)).size;
  return traces.flatMap((trace) => {
    const all = [...(labels.get(keyOf(trace)) ?? [])];
    labels.delete(keyOf(trace));
    if (!all.length) return [];
    return all.length === 1 ? trace : { ...trace, meta: { ...trace.meta, label: namesOf(all, count), labels: all } };
  });
}

// Return what lines that coincide are called: by all of their names if they are few, else by the first ones.
function namesOf(labels, count) {
  if (labels.length === count) return count === 2 ? "both lines coincide" : `all ${count} lines coincide`;
  const names = labels.length > MOST_NAMED ? [...labels.slice(0, MOST_NAMED - 1), "…"] : labels;
  return `${labels.length} lines coincide: ${names.join("; ")}`;
}

// Say below a figure which of its lines coincide.
function noteTogether(div, traces) {
  const key = find(".together", div.parentElement) ?? make("p", { class: "key together" });
  const seen = traces.filter(({ meta, y }) => meta.labels && y.filter((value) => value !== null).length > 1); // a point is no line
  const some = [...new Map(seen.map((trace) => [trace.meta.labels.join("\n"), trace])).values()]; // once, of lines of several traces
  key.replaceChildren(...some.map(({ line, meta }) => {
    const title = meta.labels.join("\n");
    return make("span", { title }, swatch(line.color, DASHED[line.dash]), make("span", { text: meta.label }));
  }));
  key.hidden = !some.length;
  div.after(key);
}

// The runs that are selected in the table, as thin lines.
function selectedRuns(panel, x, y, weight) {
  const rows = [...state.selected].sort((a, b) => a - b).filter((row) => data.runs[row]?.panel === panel);
  return rows.filter((row) => !state.hidden.has(data.runs[row].line)).map((row) => {
    const run = data.runs[row];
    const line = { width: 1, color: colourOf(run.line), dash: "solid" };
    const meta = { is: "run", label: `run: ${data.table.rows[row][0]}` };
    const values = column(run.y, y);
    return { meta, line, mode: "lines", hoverinfo: "none", x: column(run.x, x), y: smoothed(values, weight) };
  });
}

// Return a trace with what is 0 or below at the feet of logarithmic axes; its true values are in `meta.x` and `customdata`.
function withFeet(trace, ranges) {
  const moved = { ...trace };
  if (hasFoot(ranges.x)) Object.assign(moved, { x: atFoot(trace.x, ranges.x), meta: { ...trace.meta, x: trace.x } });
  if (hasFoot(ranges.y)) Object.assign(moved, { y: atFoot(trace.y, ranges.y), customdata: trace.y });
  return moved;
}

// Return the smallest, the largest and the smallest positive y of the curves: of all, or, without bands, of the others;
// and of the runs that are selected. Null if there are none.
function spanOfLines(x, y) {
  const found = Object.entries(data.figures).filter(([id]) => id.startsWith("curves-")).map(([, figure]) => figure);
  const whole = found[0].y[y].range;
  if (!whole) return null;
  const bands = !find("input[name=bands]") || checked("bands");
  const traces = bands ? [] : found.flatMap((figure) => figure.data).filter(({ meta }) => meta.is !== "band");
  const drawn = [...traces, ...[...state.selected].map((row) => data.runs[row])].filter((one) => column(one.x, x).length);
  return spanOfAll([...(bands ? whole : []), ...drawn.flatMap((one) => column(one.y, y))].filter((value) => value !== null));
}

function draw(id) {
  const figure = data.figures[id];
  const div = document.getElementById(id);
  const curves = isCurves(figure);
  const [x, y] = [choice("x", figure.x), choice("y", figure.y)];
  const [log, logx] = [curves && checked("log"), curves && checked("logx")];
  const uirevision = `${x} ${y} ${log} ${logx}`; // a click in the legend keeps what is zoomed into
  const same = div.layout?.uirevision === uirevision;
  div.ranges = { xaxis: figure.x[x].range, yaxis: curves ? spanOfLines(x, y) : figure.y[y].range };
  const of = (axis, chosen, logarithmic, name) => axisOf({
    title: axis[chosen].title, range: div.ranges[name], log: logarithmic, unit: chosen === "bytes" ? "B" : "",
    fromZero: !chosen.endsWith("loss"), zoomed: same && div.layout[name].type === "log" ? div.layout[name].range : null,
  });
  const spike = { showspikes: true, spikemode: "across", spikethickness: 1, spikedash: "dot", spikecolor: colour("--axis") };
  const layout = {
    xaxis: { ...of(figure.x, x, logx, "xaxis"), ...spike, spikesnap: "hovered data" },
    yaxis: of(figure.y, y, log, "yaxis"),
    uirevision,
    hovermode: "x",
    hoverdistance: -1, // the nearest, however far
    ...plain(),
  };
  const { xaxis, yaxis } = div.ranges;
  const traces = tracesOf(id, x, y, { x: logx && hasPositive(xaxis) && xaxis, y: log && hasPositive(yaxis) && yaxis });
  noteTogether(div, traces);
  return Plotly.react(div, traces, layout, CONFIG);
}

// What the layouts of all figures have.
function plain() {
  return {
    margin: { l: 56, r: 12, t: 10, b: 44 },
    font: { family: "system-ui, sans-serif", size: 12, color: colour("--ink") },
    showlegend: false,
    separators: ".,",
    paper_bgcolor: colour("--ground"),
    plot_bgcolor: colour("--ground"),
    modebar: { color: colour("--quiet"), activecolor: colour("--ink"), bgcolor: "rgba(0, 0, 0, 0)" },
    ...(state.paper ? { width: PAPER } : {}),
  };
}

// Draw the figures of a kind, such as `curves`; "": of all kinds.
async function drawFigures(kind = "") {
  for (const id of ids().filter((one) => one.startsWith(kind))) await drawFigure(id);
}

// Draw a figure; the first time, also listen to the pointer on it.
async function drawFigure(id) {
  const div = document.getElementById(id);
  const first = !div.layout;
  await draw(id);
  if (!first) return;
  followZoom(div);
  showHover(div, (event) => compared(div, id, event));
}

// The controls of the curves

function makeControls() {
  const log = find("input[name=log]");
  for (const input of findAll(".controls input")) {
    input.addEventListener(input.type === "range" ? "input" : "change", () => {
      state.touched.add(input.name);
      if (input.name === "y" && !state.touched.has("log")) {
        log.checked = !data.larger.includes(input.value) && spans(data.figures["curves-0"].y[input.value].range);
      }
      if (input.name === "smooth") find("#smoothed").textContent = input.value;
      redraw();
    });
  }
  // Paper is white. All is drawn at once, since a browser may paint no frame before it prints.
  let before;
  window.addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    document.documentElement.dataset.theme = "light";
    state.paper = true;
    drawLegend();
    if (!("drawn" in document.documentElement.dataset)) return;
    ids().forEach(drawFigure);
    drawScatter();
    drawParallel();
  });
  window.addEventListener("afterprint", () => {
    state.paper = false;
    const drawn = [...ids(), "scatter"].filter((id) => document.getElementById(id)?.layout);
    for (const id of drawn) Plotly.relayout(id, { width: null, autosize: true });
    useTheme(before);
  });
}
