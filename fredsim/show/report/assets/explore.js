// A scatter of the runs in the table, with the reader's choice of axes and colour; and two configurations beside each other.

const MOST_KEYS = 32; // as many differ in colour or mark
const explored = { x: 0, y: 0, colour: -1 }; // numbers of columns; colour -1: by line

// plotly.js takes some tags in the texts beside ticks for its own markup.
const LONGEST_TICK = 24; // letters
const withoutMiddle = (text) => (text.length > LONGEST_TICK ? `${text.slice(0, LONGEST_TICK / 2)}…${text.slice(-LONGEST_TICK / 2)}` : text);
const escaped = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

function numbersOf(at) {
  return data.runs.map((_, row) => numberOf(data.table.rows[row][at])).filter(isNumber);
}

const spanOf = (at) => spanOfAll(numbersOf(at));

// Whether an axis of the column is logarithmic: all its values are positive, and span enough.
const isLog = (at) => data.table.columns[at].numeric && Boolean(spanOf(at)) && spanOf(at)[0] > 0 && spans(spanOf(at));

function makeExplore() {
  const { columns } = data.table;
  const named = [...columns.keys()].filter((at) => isNamed(columns[at].kind));
  const numbers = named.filter((at) => columns[at].numeric && columns[at].name !== "seed");
  const measure = columns.findIndex((one, at) => one.measure && one.numeric && numbersOf(at).length);
  const other = named.filter((at) => at !== numbers[0] && columns[at].name !== "seed");
  explored.x = numbers[0] ?? named[0] ?? 0;
  explored.y = Math.max(measure, 0);
  explored.colour = other[0] ?? -1;
  const choose = (name, title, extra = []) => {
    const box = make("select", { id: `scatter-${name}`, onchange: () => {
      explored[name] = Number(box.value);
      redraw(false);
    } });
    for (const [value, text] of [...extra, ...columns.map((one, at) => [at, one.name])]) {
      if (value < 0 || !["digest", "error"].includes(text)) box.append(make("option", { value, text }));
    }
    box.value = explored[name];
    return make("label", {}, `${title} `, box);
  };
  const plot = make("div", { class: "plot tall", id: "scatter", role: "img", "aria-label": "Scatter of the runs of the table above, which has their numbers" });
  find("#explore").append(
    make("p", { class: "tools" }, choose("x", "x"), choose("y", "y"), choose("colour", "colour", [[-1, "line"]])),
    make("figure", {}, plot),
    make("p", { class: "key", id: "scatter-key" }),
    make("p", { class: "caption", text: "Each point is a run of the table above, as it is filtered; a click selects it." }),
    make("div", { class: "wide", id: "parallel" }),
    make("p", { class: "caption", text: "Each line is a run, and its colour its value on the last axis. Drag along an axis to keep only the runs "
      + "within, here and in the table; a double click on the axis keeps all again. A column's filter in the table does the same." }));
  window.addEventListener("resize", drawParallel);
}

// The marks of points, as the dashes of lines: where there are more values than colours, others have other ones.
const MARKS = { solid: "circle", dash: "square", dashdot: "diamond", dot: "triangle-down" };
const SHAPES = {
  circle: "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0", square: "M-4-4h8v8h-8z", diamond: "M0-5.5L5.5 0L0 5.5L-5.5 0z",
  "triangle-down": "M-5-4h10L0 5z",
};
const mark = (fill, shape) => make("svg", { width: 12, height: 12, viewBox: "-6 -6 12 12", "aria-hidden": "true" }, make("path", { d: SHAPES[shape], fill }));

// Return the colour and the mark of each of some rows by a column, and a key: [colour, text, mark] of each value, or
// [colour, text] of the ends of a scale and its middle.
function coloursOf(rows, at) {
  const value = (row) => data.table.rows[row][at];
  if (at < 0) {
    const lines = data.lines.filter(({ label }) => rows.some((row) => data.runs[row].line === label));
    const own = ({ colours: both, dash }) => [both[Number(isDark())], MARKS[dash]]; // also where curves are coloured by a key
    const look = (row) => own(lineOf(data.runs[row].line));
    const key = lines.map((line) => [own(line)[0], line.label, own(line)[1]]);
    return { of: (row) => look(row)[0], mark: (row) => look(row)[1], key };
  }
  if (data.table.columns[at].numeric) {
    const [low, high] = spanOf(at) ?? [0, 1];
    const share = shareOf(at, low, high);
    const shown = [0, 0.5, 1].map((part) => [between(part), exact(Number((isLog(at) ? low * (high / low) ** part : low + (high - low) * part).toPrecision(3)))]);
    const of = (row) => (isNumber(numberOf(value(row))) ? between(share(numberOf(value(row)))) : colour("--quiet"));
    return { of, mark: () => MARKS.solid, key: shown };
  }
  const palette = data.palettes[Number(isDark())];
  const values = valuesOf(at);
  const marks = Object.values(MARKS);
  const of = (one) => (one === null ? colour("--quiet") : palette[values.indexOf(one) % palette.length]);
  const markOf = (one) => marks[Math.floor(Math.max(values.indexOf(one), 0) / palette.length) % marks.length];
  const seen = new Set(rows.map(value));
  const key = [...values, null].filter((one) => seen.has(one)).map((one) => [of(one), cellText(at, one), markOf(one)]);
  return { of: (row) => of(value(row)), mark: (row) => markOf(value(row)), key };
}

// Return the function from a column's values to their share of the way from `low` to `high`.
function shareOf(at, low, high) {
  const scale = isLog(at) ? Math.log : (value) => value;
  return (value) => (high === low ? 0.5 : (scale(value) - scale(low)) / (scale(high) - scale(low)));
}

function drawScatter() {
  if (typeof Plotly === "undefined") return;
  const { columns, rows: table } = data.table;
  const rows = shownRows().filter((row) => row < data.runs.length);
  const { of, mark: markOf, key } = coloursOf(rows, explored.colour);
  const values = (at) => rows.map((row) => {
    const value = table[row][at];
    return columns[at].numeric ? (isNumber(numberOf(value)) ? value : null) : value === null ? "–" : escaped(value);
  });
  const selected = rows.map((row) => state.selected.has(row));
  const edges = { color: colour("--ink"), width: selected.map((one) => (one ? 2.5 : 0)) };
  const marker = { size: selected.map((one) => (one ? 12 : 9)), color: rows.map(of), symbol: rows.map(markOf), opacity: 0.85, line: edges };
  const axis = (at) => {
    const title = escaped(columns[at].name);
    const shown = rows.map((row) => numberOf(table[row][at])).filter(isNumber); // a filter leaves no empty room
    const look = axisOf({ title, range: columns[at].numeric ? spanOfAll(shown) ?? spanOf(at) : null, log: isLog(at), fromZero: false });
    if (columns[at].numeric) return look;
    const texts = [...new Set(rows.map((row) => table[row][at]))].filter((text) => text !== null);
    const ticks = { tickmode: "array", tickvals: [...texts.map(escaped), "–"], ticktext: [...texts.map((text) => escaped(withoutMiddle(text))), "–"] };
    return { ...look, type: "category", ...ticks };
  };
  const layout = { xaxis: axis(explored.x), yaxis: axis(explored.y), hovermode: "closest", ...plain() };
  const trace = { x: values(explored.x), y: values(explored.y), customdata: rows, mode: "markers", hoverinfo: "none", marker };
  const div = document.getElementById("scatter");
  const first = !div.layout;
  const done = Plotly.react(div, [trace], layout, CONFIG);
  find("#scatter-key").replaceChildren(
    make("span", { text: explored.colour < 0 ? "line:" : `${columns[explored.colour].name}:` }),
    ...key.slice(0, MOST_KEYS).map(([stroke, text, shape]) => make("span", {}, shape ? mark(stroke, shape) : swatch(stroke), text)),
    ...(key.length > MOST_KEYS ? [make("span", { text: `and ${key.length - MOST_KEYS} more` })] : []),
  );
  if (!first) return;
  done.then(() => {
    followZoom(div);
    div.on("plotly_click", (event) => select(event.points[0].customdata));
    showHover(div, (event) => describeRun(event.points[0].customdata));
  });
}

function describeRun(row) {
  const { columns, rows } = data.table;
  const shown = [...new Set([explored.x, explored.y, explored.colour])].filter((at) => at > 0);
  return { title: rows[row][0], rows: shown.map((at) => ({ value: cellText(at, rows[row][at]), label: columns[at].name })) };
}

// Two configurations

const compares = [0, 1]; // numbers of rows

function makeDifference() {
  const section = find("#difference");
  if (data.runs.length < 2) {
    section.hidden = true;
    return;
  }
  const boxes = ["first", "second"].map((name, place) => {
    const box = make("select", { id: `run-${name}`, onchange: () => {
      compares[place] = Number(box.value);
      showDifference();
    } });
    data.runs.forEach((_, row) => box.append(make("option", { value: row, text: data.table.rows[row][0] })));
    return make("label", {}, `${name} run `, box);
  });
  section.append(make("p", { class: "tools" }, ...boxes), make("div", { class: "wide" }));
  showDifference();
}

// The two runs that were selected last are compared.
function drawDifference() {
  const chosen = [...state.selected].slice(-2);
  if (chosen.length < 2) return;
  compares.splice(0, 2, ...chosen);
  showDifference();
}

function showDifference() {
  const { columns, rows } = data.table;
  ["first", "second"].forEach((name, place) => (find(`#run-${name}`).value = compares[place]));
  const [one, other] = compares.map((row) => rows[row]);
  const differing = [...columns.keys()].filter((at) => isNamed(columns[at].kind) && one[at] !== other[at]);
  const keys = [...differing.filter((at) => columns[at].kind === "own"), ...differing.filter((at) => columns[at].kind === "key")];
  const measures = [...columns.keys()].filter((at) => columns[at].measure);
  const line = (at, kind) => {
    const values = [one[at], other[at]].map((value) => make("td", { class: columns[at].numeric ? "number" : "", text: cellText(at, value) }));
    return make("tr", { class: kind }, make("td", { text: columns[at].name }), ...values);
  };
  const head = make("tr", {}, make("th"), ...compares.map((row) => make("th", { scope: "col", text: rows[row][0] })));
  const same = make("tr", {}, make("td", { text: "no key differs" }), make("td"), make("td"));
  const body = [...(keys.length ? keys.map((at) => line(at, "differs")) : [same]), ...measures.map((at) => line(at, "ended"))];
  find("#difference .wide").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}
