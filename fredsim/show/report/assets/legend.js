// The lines' colours, each by itself or by a key in which they differ, and the legend of all figures.

const MOST_COLOURS = 8; // more lines than that are coloured by a key

const lineOf = (label) => data.lines.find((line) => line.label === label);
const dashOf = (label) => (state.colourBy < 0 ? lineOf(label)?.dash ?? "solid" : dashOfValue(label));

// Return the dash of a line that is coloured by a key: values that are more than the colours, and no numbers, have others.
function dashOfValue(label) {
  const row = data.runs.findIndex(({ line }) => line === label);
  if (row < 0 || data.table.columns[state.colourBy].numeric) return "solid";
  const place = valuesOf(state.colourBy).indexOf(data.table.rows[row][state.colourBy]);
  return Object.keys(DASHED)[Math.floor(Math.max(place, 0) / data.palettes[0].length) % Object.keys(DASHED).length];
}

// Whether a line has the best final median, in this panel or in any; in a tie several have.
const hasWon = (label, panel = null) => data.lines.length > 1 && data.won.some((one) => one.line === label && (panel === null || one.panel === panel));

let colours = new Map();
function colourOf(label) {
  const line = lineOf(label);
  if (!line) return colour("--quiet");
  if (state.colourBy < 0) return line.colours[Number(isDark())];
  const key = `${isDark()} ${state.colourBy}`;
  if (!colours.has(key)) {
    const { of } = coloursOf([...data.runs.keys()], state.colourBy);
    colours = new Map([[key, new Map(data.runs.map((run, row) => [run.line, of(row)]))]]);
  }
  return colours.get(key).get(label);
}

// Return the columns of which all runs of each line have the same value, and lines do not.
function columnsOfLines() {
  const { columns, rows } = data.table;
  return [...columns.keys()].filter((at) => {
    const values = new Map();
    data.runs.forEach(({ line }, row) => values.set(line, (values.get(line) ?? new Set()).add(rows[row][at])));
    const each = [...values.values()];
    return isNamed(columns[at].kind) && each.every((one) => one.size === 1) && new Set(each.map((one) => [...one][0])).size > 1;
  });
}

function makeColours() {
  const { columns } = data.table;
  const found = columnsOfLines();
  const few = found.filter((at) => columns[at].numeric || valuesOf(at).length <= MOST_COLOURS);
  if (data.lines.length > MOST_COLOURS) state.colourBy = few.find((at) => !columns[at].numeric) ?? few[0] ?? -1;
  if (!found.length || data.lines.length < 2) return;
  const box = make("select", { id: "colour", onchange: () => {
    state.colourBy = Number(box.value);
    drawLegend();
    redraw();
  } });
  for (const [value, text] of [[-1, "line"], ...found.map((at) => [at, columns[at].name])]) box.append(make("option", { value, text }));
  box.value = state.colourBy;
  find(".controls").append(make("label", {}, "colour by ", box));
}

// The legend: one button per line, for all figures.

function makeLegend() {
  const legend = find(".legend");
  for (const { label } of data.lines) {
    const title = "Double click, or Shift and click: only this line";
    const button = make("button", { type: "button", "data-line": label, "aria-pressed": "true", title, class: hasWon(label) ? "won" : "" });
    button.append(make("span", { class: "mark" }), label);
    button.addEventListener("click", (event) => (event.shiftKey ? isolate(label) : toggle(label)));
    button.addEventListener("dblclick", () => isolate(label));
    legend.append(button);
  }
  const all = () => {
    showOnly(null);
    find("button", legend).focus(); // for the keyboard, since this button is hidden now
  };
  legend.append(make("button", { type: "button", class: "every", text: "show all", hidden: true, onclick: all }));
  drawLegend();
}

function toggle(label) {
  if (!state.hidden.delete(label)) state.hidden.add(label);
  drawLegend();
  redraw();
}

// Show a line alone; all, if it is alone.
function isolate(label) {
  const others = data.lines.filter((line) => line.label !== label);
  const alone = !state.hidden.has(label) && others.every((line) => state.hidden.has(line.label));
  showOnly(alone ? null : label);
}

function showOnly(label) {
  state.hidden = new Set(label === null ? [] : data.lines.map((line) => line.label).filter((one) => one !== label));
  drawLegend();
  redraw();
}

function drawLegend() {
  for (const button of findAll(".legend button[data-line]")) {
    const { dataset: { line: label } } = button;
    button.setAttribute("aria-pressed", String(!state.hidden.has(label)));
    find(".mark", button).replaceChildren(swatch(colourOf(label), DASHED[dashOf(label)]));
  }
  find(".legend .every").hidden = !state.hidden.size;
}
