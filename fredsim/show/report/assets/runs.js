// The table of runs: sorted, filtered, searched and grouped; runs that are selected are drawn and compared.

const FORMS = 'a part of a text, a number, <0.1, >=2, 0.1..0.5, "exactly this", a|b, !a'; // of filters
const BY_LINE = -2; // in place of the number of a column
const isWorst = (row, at) => data.table.worst[row].includes(at); // whether a run counts as the worst there can be, say, as it diverged
const mayBeBest = (row, at) => !isWorst(row, at) && !data.table.interrupted.includes(row);
const isNamed = (kind) => kind === "own" || kind === "key";
const cellText = (at, value) => (isNamed(data.table.columns[at].kind) ? exact(value) : short(value));

function makeTable() {
  const { columns, shared } = data.table;
  const section = find("#runs");
  const search = make("input", { type: "search", id: "search", placeholder: "any words", oninput: () => change({ search: search.value }) });
  const by = make("select", { id: "group", onchange: () => change({ group: Number(by.value), folded: new Set() }) });
  by.append(make("option", { value: -1, text: "nothing" }), make("option", { value: BY_LINE, text: "line" }));
  columns.forEach(({ name, kind }, at) => kind !== "outcome" || name === "status" ? by.append(make("option", { value: at, text: name })) : null);
  const only = make("input", { type: "checkbox", name: "only", onchange: () => change({ onlyShown: only.checked }) });
  section.append(
    make("p", { class: "tools" },
      make("label", {}, "search ", search), make("label", {}, "group by ", by),
      make("button", { type: "button", id: "clear", text: "show all runs", onclick: clearFilters }),
      make("button", { type: "button", id: "csv", text: "download CSV", onclick: saveCsv }),
      make("label", {}, only, "only these lines in the figures")),
    make("p", { class: "caption", id: "count", role: "status" }),
    make("div", { class: "wide runs" }, make("table", {}, makeHead(columns), make("tbody"))),
  );
  const same = Object.entries(shared).map(([name, value]) => `${name} ${short(value)}`);
  const text = `A click on a column's name sorts. Below it a filter: ${FORMS}. `
    + "Selected runs are drawn as thin lines, and two of them are compared below.";
  section.append(make("p", { class: "caption", text: same.length ? `${text} The same in all runs: ${same.join(", ")}.` : text }));
  drawTable();
}

function makeHead(columns) {
  const every = make("input", { type: "checkbox", id: "every", "aria-label": "select all runs that are shown" });
  every.addEventListener("change", () => {
    for (const row of rowsOnPage()) if (row < data.runs.length) state.selected[every.checked ? "add" : "delete"](row);
    showSelected();
    drawDifference();
    redraw();
  });
  const names = columns.map(({ name, numeric }, at) => {
    const button = make("button", { type: "button", text: name, onclick: () => sortBy(at) });
    return make("th", { class: numeric ? "number" : "", scope: "col", "aria-sort": "none" }, button);
  });
  const filters = columns.map(({ name, numeric }, at) => {
    const list = make("datalist", { id: `values-${at}` });
    for (const value of valuesOf(at).slice(0, 50)) list.append(make("option", { value: numeric ? String(value) : exactly(value) }));
    const input = make("input", { type: "text", "data-column": at, list: list.id, "aria-label": `filter ${name}`, spellcheck: "false" });
    input.addEventListener("input", () => filter(at, input.value));
    return make("td", {}, input, list);
  });
  return make("thead", {}, make("tr", {}, make("th", { scope: "col" }, every), ...names), make("tr", { class: "filters" }, make("td"), ...filters));
}

// Return the different values of a column, in order; they stay the same.
const sortedValues = new Map();
function valuesOf(at) {
  if (!sortedValues.has(at)) {
    const values = new Set(data.table.rows.map((row) => row[at]).filter((value) => value !== null));
    sortedValues.set(at, [...values].sort((a, b) => order(a, b, false)));
  }
  return sortedValues.get(at);
}

function change(changes) {
  Object.assign(state, changes);
  drawTable();
  redraw(state.onlyShown || "onlyShown" in changes);
}

function filter(at, text) {
  if (text.trim()) state.filters.set(at, text);
  else state.filters.delete(at);
  const input = find(`input[data-column="${at}"]`);
  if (input.value !== text) input.value = text;
  const wrong = filterOfColumn(at, text) === null;
  input.setAttribute("aria-invalid", String(wrong));
  input.title = wrong ? `cannot be read: ${FORMS}` : "";
  change({});
}

function clearFilters() {
  find("#search").value = "";
  for (const input of findAll(".filters input")) {
    input.value = "";
    input.setAttribute("aria-invalid", "false");
  }
  change({ search: "", filters: new Map() });
}

// A click sorts upwards, the next one downwards, and a third one as the results are.
function sortBy(at) {
  const { column: before, down } = state.sort;
  change({ sort: before !== at ? { column: at, down: false } : down ? { column: -1, down: false } : { column: at, down: true } });
}

function drawTable() {
  const rows = shownRows();
  const { columns } = data.table;
  findAll("#runs thead tr:first-child th[aria-sort]").forEach((head, at) => {
    const sorted = state.sort.column === at;
    head.setAttribute("aria-sort", sorted ? (state.sort.down ? "descending" : "ascending") : "none");
  });
  const best = columns.map(({ measure, largest }, at) => {
    const fit = measure && rows.length > 1 ? rows.filter((row) => mayBeBest(row, at)) : [];
    const values = fit.map((row) => numberOf(data.table.rows[row][at])).filter(isNumber);
    return values.length ? values.reduce((a, b) => (largest ? Math.max(a, b) : Math.min(a, b))) : null;
  });
  const lines = state.group === -1 ? rows.map((row) => rowOf(row, best)) : groupsOf(rows).flatMap((group) => drawGroup(group, best));
  const { activeElement: before } = document; // the keyboard stays where it is, although all rows are new
  const inside = find("#runs tbody").contains(before);
  find("#runs tbody").replaceChildren(...lines);
  const same = ({ dataset: { row, group } }) => row === before.dataset.row && group === before.dataset.group;
  if (inside) findAll("#runs tbody :is(input, button)").find(same)?.focus();
  showSelected();
}

// Show which runs are selected, and how many; their rows stay the same.
function showSelected() {
  for (const box of findAll("#runs tbody input")) {
    box.checked = state.selected.has(Number(box.dataset.row));
    box.closest("tr").classList.toggle("selected", box.checked);
  }
  const rows = shownRows();
  const all = data.table.rows.length;
  const selected = state.selected.size ? `, ${state.selected.size} selected` : "";
  find("#count").textContent = `${rows.length === all ? all : `${rows.length} of ${all}`} run${all === 1 ? "" : "s"}${selected}`;
  const pickable = rowsOnPage(rows).filter((row) => row < data.runs.length);
  find("#every").checked = pickable.length > 0 && pickable.every((row) => state.selected.has(row));
}

function rowOf(row, best) {
  const values = data.table.rows[row];
  const run = data.runs[row];
  const box = make("input", { type: "checkbox", "data-row": row, "aria-label": `select ${values[0]}`, disabled: !run });
  box.addEventListener("change", () => select(row));
  const cells = values.map((value, at) => {
    const won = best[at] !== null && numberOf(value) === best[at] && mayBeBest(row, at);
    const long = typeof value === "string" && value.length > 40 ? "long" : "";
    const kind = [data.table.columns[at].numeric ? "number" : "", won ? "best" : "", long].filter(Boolean).join(" ");
    return make("td", { class: kind, text: value === null ? "" : cellText(at, value) });
  });
  return make("tr", {}, make("td", {}, box), ...cells);
}

function select(row) {
  if (!state.selected.delete(row)) state.selected.add(row);
  showSelected();
  drawDifference();
  redraw();
}

// Return the name of a run's line, with its panel.
function lineName(row) {
  const run = data.runs[row];
  return run ? [run.line, data.panels[run.panel]].filter(Boolean).join(", ") : null;
}

// Return the groups of rows with the same value of a column: [the value, its rows].
function groupsOf(rows) {
  const found = new Map();
  for (const row of rows) {
    const value = state.group === BY_LINE ? lineName(row) : data.table.rows[row][state.group];
    found.set(value, [...(found.get(value) ?? []), row]);
  }
  return [...found];
}

// Return the rows that are shown, as they are on the page: by group, without those of groups that are folded.
function rowsOnPage(rows = shownRows()) {
  return state.group === -1 ? rows : groupsOf(rows).flatMap(([value, some]) => (state.folded.has(value) ? [] : some));
}

// Return the median of the numbers of some rows; null if there is none that is finite. A measure is as the winner's; what
// runs cost is of those that did not diverge, or of all if all did.
function middleOf(rows, at) {
  const { measure, largest } = data.table.columns[at];
  const value = (row) => numberOf(data.table.rows[row][at]);
  const lasting = rows.filter((row) => value(row) !== null && !data.table.diverged.includes(row));
  const some = measure || !lasting.length ? rows : lasting;
  const middle = median(some.map((row) => (isWorst(row, at) ? (largest ? -Infinity : Infinity) : value(row))));
  return isNumber(middle) ? middle : null;
}

// Return the rows of a group below one with its value, how many they are, and their medians.
function drawGroup([value, rows], best) {
  const folded = state.folded.has(value);
  const fold = () => {
    if (!state.folded.delete(value)) state.folded.add(value);
    drawTable();
  };
  const name = `${folded ? "▸" : "▾"} ${value === null ? "–" : state.group < 0 ? value : cellText(state.group, value)} (${rows.length})`;
  const button = make("button", { type: "button", text: name, "data-group": JSON.stringify(value), "aria-expanded": String(!folded), onclick: fold });
  const cells = data.table.columns.slice(1).map(({ numeric, kind }, at) => {
    if (!numeric || kind !== "outcome") return make("td");
    const some = rows.some((row) => data.table.rows[row][at + 1] !== null || isWorst(row, at + 1));
    return make("td", { class: "number", text: some ? short(middleOf(rows, at + 1)) : "", title: some ? "median" : null });
  });
  const head = make("tr", { class: "group" }, make("td"), make("td", {}, button), ...cells);
  return folded ? [head] : [head, ...rows.map((row) => rowOf(row, best))];
}
