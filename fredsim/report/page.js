"use strict";
const figures = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();

// What the reader has chosen: an axis of the curves has several columns, any other figure's one, under no name.
const choice = (name, axis) => ("" in axis ? "" : document.querySelector(`input[name="${name}"]:checked`).value);
const column = (values, chosen) => (Array.isArray(values) ? values : values[chosen] ?? []);

function axis(found, chosen, logarithmic) {
  const { title, range } = found[chosen];
  const look = { title: { text: title }, automargin: true, zeroline: false, gridcolor: "#e6e6e6", linecolor: "#999", showline: true };
  if (chosen === "bytes") look.ticksuffix = "B";
  if (logarithmic) {
    look.type = "log";
    if (range) look.range = [Math.log10(range[2]) - 0.05, Math.log10(range[1]) + 0.05];
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
  const traces = figure.data.map((trace) => ({
    ...trace,
    x: column(trace.x, x),
    y: column(trace.y, y),
    visible: !hidden.has(trace.legendgroup),
  }));
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
  return Plotly.react(id, traces, layout, { responsive: true, displaylogo: false });
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
