"use strict";
const figures = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
// Nothing leaves the page: no button that uploads a figure.
const CONFIG = {
  responsive: true, displaylogo: false, showLink: false, sendData: false, showSendToCloud: false, plotlyServerURL: "",
};

// What the reader has chosen: an axis of the curves has several columns, any other figure's one, under no name.
const choice = (name, axis) => ("" in axis ? "" : document.querySelector(`input[name="${name}"]:checked`).value);
const column = (values, chosen) => (Array.isArray(values) ? values : values[chosen] ?? []);

// A logarithmic axis has no 0: at its foot, half the smallest number above, stand those that are.
const foot = (range) => range[2] / 2;

// Its ticks at 1, 2 and 5 of each decade, or at 1 alone where it has many, and the one at its foot.
function ticks([, high, low]) {
  const values = [];
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  for (let power = first; power <= last; power += 1) {
    values.push(...(last - first > 3 ? [1] : [1, 2, 5]).map((digit) => Number(`${digit}e${power}`)));
  }
  const shown = values.filter((value) => value >= low);
  return { tickvals: [low / 2, ...shown], ticktext: ["0", ...shown.map(String)] };
}

function axis(found, chosen, logarithmic) {
  const { title, range } = found[chosen];
  const look = { title: { text: title }, automargin: true, zeroline: false, gridcolor: "#e6e6e6", linecolor: "#999", showline: true };
  if (chosen === "bytes") look.ticksuffix = "B";
  if (logarithmic && range) {
    const zeros = range[0] <= 0;
    look.type = "log";
    look.tickformat = "~g"; // the whole number, not its first digit
    look.range = [Math.log10(zeros ? foot(range) : range[2]) - 0.05, Math.log10(range[1]) + 0.05];
    if (zeros) Object.assign(look, ticks(range));
  } else if (range) {
    const low = chosen.endsWith("loss") ? range[0] : 0;
    const room = 0.04 * (range[1] - low);
    look.range = [low === 0 ? 0 : low - room, range[1] + room];
  } else {
    look.rangemode = "tozero";
  }
  return look;
}

function draw(id) {
  const figure = figures[id];
  const x = choice("x", figure.x);
  const y = choice("y", figure.y);
  const log = "" in figure.y ? false : document.querySelector('input[name="log"]').checked;
  const range = figure.y[y].range;
  const traces = figure.data.map((trace) => {
    const values = column(trace.y, y);
    const shown = { ...trace, x: column(trace.x, x), y: values, visible: !hidden.has(trace.legendgroup) };
    if (log && range && range[0] <= 0) {
      shown.y = values.map((value) => (value !== null && value <= 0 ? foot(range) : value));
      Object.assign(shown, { customdata: values, hovertemplate: "(%{x}, %{customdata})" });
    }
    return shown;
  });
  const layout = {
    xaxis: axis(figure.x, x, false),
    yaxis: axis(figure.y, y, log),
    margin: { l: 60, r: 12, t: 10, b: 48 },
    font: { family: "system-ui, sans-serif", size: 12, color: "#1b1b1b" },
    hoverlabel: { namelength: -1 },
    showlegend: false,
    uirevision: `${x} ${y} ${log}`, // a click in the legend keeps what is zoomed into
    paper_bgcolor: "#fff",
    plot_bgcolor: "#fff",
  };
  return Plotly.react(id, traces, layout, CONFIG);
}

const drawAll = (ids) => Promise.all(ids.map(draw));
const all = Object.keys(figures);

for (const button of document.querySelectorAll(".legend button")) {
  button.addEventListener("click", () => {
    const line = button.dataset.line;
    if (!hidden.delete(line)) hidden.add(line);
    button.setAttribute("aria-pressed", String(!hidden.has(line)));
    drawAll(all);
  });
}
for (const input of document.querySelectorAll(".controls input")) {
  input.addEventListener("change", () => drawAll(all.filter((id) => !("" in figures[id].x))));
}
// Paper is not as wide as the window; 640 pixels are 17 cm.
const resize = (size) => all.forEach((id) => Plotly.relayout(id, size));
window.addEventListener("beforeprint", () => resize({ width: 640 }));
window.addEventListener("afterprint", () => resize({ width: null, autosize: true }));
drawAll(all).then(() => document.documentElement.setAttribute("data-drawn", ""));
