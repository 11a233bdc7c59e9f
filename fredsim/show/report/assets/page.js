"use strict";
// The page as a whole: what is unpacked, what the reader has chosen, how values look, and the colours.
// All texts may be someone else's: they become text nodes and attributes, never HTML.

let data; // fredsim/show/report/data.py
const state = {
  hidden: new Set(), // labels of lines
  selected: new Set(), // numbers of rows
  filters: new Map(), // texts by number of column
  search: "",
  sort: { column: -1, down: false }, // -1: as the results are
  group: -1,
  colourBy: -1, // number of the column by which lines are coloured; -1: each by itself
  folded: new Set(), // groups of rows
  onlyShown: false, // whether figures have only the lines of which the table shows a run
  touched: new Set(), // names of controls that the reader has used
  paper: false, // whether the page is being printed
};

async function unpacked(id) {
  const element = document.getElementById(id);
  const letters = atob(element.textContent);
  element.remove();
  const bytes = new Uint8Array(letters.length);
  for (let place = 0; place < letters.length; place += 1) bytes[place] = letters.charCodeAt(place);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).text();
}

// Return an element with attributes (`text` is its text, `on…` a listener) and children.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "line", "path", "g", "rect", "text", "circle"].includes(tag);
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

const find = (selector, within = document) => within.querySelector(selector);
const findAll = (selector, within = document) => [...within.querySelectorAll(selector)];

// Numbers

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (exponent) => `10${[...String(exponent)].map((letter) => RAISED[letter]).join("")}`;
const NOT_FINITE = { nan: NaN, inf: Infinity, "-inf": -Infinity };
const numberOf = (value) => (typeof value === "string" && Object.hasOwn(NOT_FINITE, value) ? NOT_FINITE[value] : value);
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

// Return a number with four digits, an integer with all; a text as it is.
function short(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string" || !Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en-US");
  if (size >= 1e-3 && size < 1e6) return size >= 1e3 ? Math.round(value).toLocaleString("en-US") : value.toPrecision(4);
  return scientific(value.toExponential(3));
}

// Return a number with all its digits, as a key of an experiment has it.
const exact = (value) => (typeof value === "number" ? scientific(String(value)) : value === null ? "–" : value);

function scientific(text) {
  const [digits, exponent] = text.split("e");
  if (exponent === undefined) return text;
  const left = digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
  return left === "1" ? power(Number(exponent)) : `${left}·${power(Number(exponent))}`;
}

function median(values) {
  const sorted = values.filter((value) => typeof value === "number" && !Number.isNaN(value)).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

// Colours

const isDark = () => document.documentElement.dataset.theme === "dark";
const colourValues = new Map(); // by theme and name: the browser looks each up in the whole style
function colour(name) {
  const key = `${document.documentElement.dataset.theme} ${name}`;
  if (!colourValues.has(key)) colourValues.set(key, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colourValues.get(key);
}
const DASHED = { solid: "none", dash: "8 4", dashdot: "8 3 2 3", dot: "2 3" };

function faint(hex, share) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${share})`;
}

// Return the colour at a share (0 to 1) of the sequence for numbers.
function between(share) {
  const ends = data.sequences[Number(isDark())];
  const place = Math.min(Math.max(share, 0), 1) * (ends.length - 1);
  const first = Math.min(Math.floor(place), ends.length - 2);
  const parts = [1, 3, 5].map((at) => {
    const [low, high] = [ends[first], ends[first + 1]].map((hex) => parseInt(hex.slice(at, at + 2), 16));
    return Math.round(low + (high - low) * (place - first)).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

function swatch(stroke, dash = "none") {
  const line = make("line", { x1: 0, x2: 28, y1: 4, y2: 4, stroke, "stroke-width": 3, "stroke-dasharray": dash });
  return make("svg", { width: 28, height: 8, "aria-hidden": "true" }, line);
}

function useTheme(name) {
  document.documentElement.dataset.theme = name;
  find("#theme").setAttribute("aria-pressed", String(name === "dark"));
  drawLegend();
  redraw();
}

function makeTop() {
  const top = find(".parts");
  for (const section of findAll("main section")) {
    const title = find("h2", section).textContent;
    top.append(make("button", { type: "button", text: title, onclick: () => section.scrollIntoView({ block: "start" }) }));
  }
  const toggle = () => {
    state.touched.add("theme");
    useTheme(isDark() ? "light" : "dark");
  };
  top.append(make("button", { type: "button", id: "theme", text: "dark mode", "aria-pressed": String(isDark()), onclick: toggle }));
  systemIsDark.addEventListener("change", () => {
    if (!state.touched.has("theme")) useTheme(systemIsDark.matches ? "dark" : "light");
  });
}

function makeTexts() {
  const all = data.texts.map(([title, text]) => {
    const box = make("details", {}, make("summary", { text: title }));
    box.addEventListener("toggle", () => box.childElementCount > 1 || box.append(make("pre", { text, tabindex: 0 })));
    return box;
  });
  find("#configuration").append(make("div", { class: "wide" }, ...all));
}

// Draw again soon, in one go, what depends on the table; and, if `all`, also the figures of lines.
let waiting = null;
let stale = false;
function redraw(all = true) {
  stale ||= all;
  waiting ??= new Promise((done) => {
    window.requestAnimationFrame(() => {
      const kind = stale ? "" : "none";
      [waiting, stale] = [null, false];
      findAll("figure > .hover").forEach((box) => (box.hidden = true));
      drawFigures(kind).then(() => {
        drawScatter();
        drawParallel();
        done();
      });
    });
  });
  return waiting;
}

const MANY = 100; // runs: of more, what is below the first screen is drawn once that is there

async function drawRest() {
  for (const kind of ["staleness", "copies", "probe"]) {
    await drawFigures(kind);
    await new Promise((done) => setTimeout(done)); // the reader may do something meanwhile
  }
  await redraw(false);
}

async function begin() {
  const texts = ["data", "plotly"].map(unpacked);
  data = JSON.parse(await texts[0]);
  makeTop();
  makeColours();
  makeLegend();
  makeControls();
  document.head.append(make("script", { text: await texts[1] })); // its SHA-256 is in the page's policy
  await drawFigures("curves"); // what is looked at first
  await new Promise((done) => setTimeout(done));
  makeTable();
  makeTexts();
  makeDifference();
  makeExplore();
  if (data.runs.length <= MANY) await drawRest();
  document.documentElement.dataset.drawn = "";
  if (data.runs.length > MANY) setTimeout(drawRest, 200);
}
begin();
