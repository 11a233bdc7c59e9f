// The rows of the table that are shown: filters of columns, search, order; and the file of them.

// Return what tells whether a value passes the filter of a column; null if the filter cannot be read.
// "a|b" is a or b. Each may be <1, <=1, >1, >=1, =1, 1..2, a number, "exactly this", or a part of the text; ! negates.
function filterOf(text, numeric) {
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[^|"]+|"/g) ?? [];
  const tests = parts.filter((part) => part.trim()).map((part) => testOf(part.trim(), numeric));
  if (tests.some((test) => test === null)) return null;
  return (value) => !tests.length || tests.some((test) => test(value));
}

function testOf(part, numeric) {
  if (part.startsWith("!")) {
    const test = testOf(part.slice(1).trim(), numeric);
    return test && ((value) => !test(value));
  }
  if (part.startsWith('"')) {
    const exactly = quoted(part);
    return exactly === null ? null : (value) => value !== null && String(value) === exactly;
  }
  const compared = part.match(/^(<=|>=|<|>|=)\s*(.*)$/);
  const range = part.match(/^(.+?)\.\.(.+)$/);
  if (numeric && compared) return comparison(compared[1], readNumber(compared[2]));
  if (numeric && range) {
    const [low, high] = [readNumber(range[1]), readNumber(range[2])];
    return low === null || high === null ? null : (value) => value !== null && numberOf(value) >= low && numberOf(value) <= high;
  }
  if (numeric) return comparison("=", readNumber(part));
  if (compared && compared[1] === "=") return (value) => value !== null && String(value) === compared[2];
  const wanted = part.toLowerCase();
  return (value) => value !== null && String(value).toLowerCase().includes(wanted);
}

function comparison(sign, wanted) {
  if (wanted === null) return null;
  const tests = {
    "<": (a) => a < wanted, "<=": (a) => a <= wanted, ">": (a) => a > wanted, ">=": (a) => a >= wanted, "=": (a) => Object.is(a, wanted) || a === wanted,
  };
  return (value) => value !== null && tests[sign](numberOf(value));
}

function readNumber(text) {
  const known = text.trim().toLowerCase();
  if (known in NOT_FINITE) return NOT_FINITE[known];
  return known === "" || Number.isNaN(Number(known)) ? null : Number(known);
}

function quoted(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// Return the numbers of the rows that are shown, in the order of the table.
function shownRows() {
  const { columns, rows } = data.table;
  const tests = [...state.filters].map(([at, text]) => [at, filterOf(text, columns[at].numeric)]).filter(([, test]) => test);
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...rows.keys()].filter((row) => {
    const values = rows[row];
    if (!tests.every(([at, test]) => test(values[at]))) return false;
    const text = words.length ? values.filter((value) => value !== null).map(String).join(" ").toLowerCase() : "";
    return words.every((word) => text.includes(word));
  });
  const { column: at, down } = state.sort;
  return at < 0 ? found : found.sort((a, b) => order(rows[a][at], rows[b][at], down) || a - b);
}

const TEXTS = new Intl.Collator("en", { numeric: true }); // made once, since that takes as long as many comparisons

// What is not there stands last in either order; nan before it.
function order(a, b, down) {
  const rank = (value) => (value === null ? 2 : Number.isNaN(numberOf(value)) ? 1 : 0);
  if (rank(a) || rank(b)) return rank(a) - rank(b);
  const [one, other] = [numberOf(a), numberOf(b)];
  const found = typeof one === "number" && typeof other === "number" ? one - other || 0 : TEXTS.compare(String(one), String(other));
  return down ? -found : found;
}

// Return the table as CSV. A text that a spreadsheet would compute has ' before it, as in fredsim's other files.
function csvOf(numbers, table = data.table.rows) {
  const cell = (value) => {
    if (value === null) return "";
    const formula = typeof value === "string" && !isNumeral(value) && /^\s*[=+\-@＝＋－＠]/.test(value);
    const text = `${formula ? "'" : ""}${value}`;
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [data.table.columns.map(({ name }) => name), ...numbers.map((row) => table[row])];
  return lines.map((line) => `${line.map(cell).join(",")}\n`).join("");
}

// Whether a text is a number to Python.
const isNumeral = (text) => /^\s*[+-]?(nan|inf(inity)?|(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)(e[+-]?\d+(_\d+)*)?)\s*$/i.test(text);

function saveCsv() {
  const link = make("a", { download: "runs.csv" });
  link.href = URL.createObjectURL(new Blob([csvOf(shownRows())], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
