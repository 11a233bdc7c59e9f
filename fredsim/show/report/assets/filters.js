// The rows of the table that are shown: filters of columns, search, order; and the file of them.

// Return what tells whether a value passes the filter of a column; null if the filter cannot be read.
const filterOfColumn = (at, text) => filterOf(text, data.table.columns[at].numeric, (value) => cellText(at, value));

// Return what tells whether a value passes a filter; `shown` is a value's text in the table, which finds it, too.
// "a|b" is a or b. Each may be <1, <=1, >1, >=1, =1, 1..2, a number, "exactly this", or a part of the text; ! negates.
function filterOf(text, numeric, shown = String) {
  const parts = text.match(/(?:"(?:[^"\\]|\\.)*"|[^|])+/g) ?? []; // a | between quotes is a letter
  const tests = parts.filter((part) => part.trim()).map((part) => testOf(part.trim(), numeric, shown));
  if (tests.some((test) => test === null)) return null;
  return (value) => !tests.length || tests.some((test) => test(value));
}

function testOf(part, numeric, shown) {
  if (!part) return null;
  const is = (wanted) => (value) => value !== null && (String(value) === wanted || shown(value) === wanted);
  if (part.startsWith("!")) {
    const test = testOf(part.slice(1).trim(), numeric, shown);
    return test && ((value) => !test(value));
  }
  if (part.startsWith('"')) {
    const wanted = quoted(part);
    return wanted === null ? null : is(wanted);
  }
  const compared = part.match(/^(<=|>=|<|>|=)\s*(.*)$/);
  const range = part.match(/^(.+?)\.\.(.+)$/);
  if (numeric && compared) return comparison(compared[1], compared[2], is);
  if (numeric && range) {
    const [low, high] = [readNumber(range[1]), readNumber(range[2])];
    return low === null || high === null ? null : (value) => value !== null && numberOf(value) >= low && numberOf(value) <= high;
  }
  if (numeric) return comparison("=", part, is);
  if (compared && compared[1] === "=") return is(compared[2]);
  const wanted = part.toLowerCase();
  return (value) => value !== null && [String(value), shown(value)].some((text) => text.toLowerCase().includes(wanted));
}

// Return the filter for exactly this value.
const exactly = (value) => JSON.stringify(String(value));

// Return what compares a number; a text that the table shows for several is equal to each of them.
function comparison(sign, text, is) {
  const wanted = readNumber(text);
  if (wanted === null) return null;
  const equal = sign.includes("=") ? is(text) : () => false;
  const tests = {
    "<": (a) => a < wanted, "<=": (a) => a <= wanted, ">": (a) => a > wanted, ">=": (a) => a >= wanted, "=": (a) => Object.is(a, wanted) || a === wanted,
  };
  return (value) => value !== null && (tests[sign](numberOf(value)) || equal(value));
}

const LOWERED = Object.fromEntries(Object.entries(RAISED).map(([letter, raised]) => [raised, letter]));

// Return the number that a text is, also as the page writes it: 1,000 or 2·10⁻⁷; null if it is none.
function readNumber(text) {
  const known = text.trim().toLowerCase().replace("−", "-");
  if (Object.hasOwn(NOT_FINITE, known)) return NOT_FINITE[known];
  const plain = (/^-?\d{1,3}(,\d{3})+(\.\d*)?$/.test(known) ? known.replaceAll(",", "") : known)
    .replace(/^(-?)(?:(\S+?)\s*[·×]\s*)?10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)$/, (_, sign, digits = "1", raised) => `${sign}${digits}e${[...raised].map((one) => LOWERED[one]).join("")}`);
  return plain === "" || Number.isNaN(Number(plain)) ? null : Number(plain);
}

function quoted(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// Return the text of a row that is searched: all values, as they are and as the table shows them; they stay the same.
const rowTexts = new Map();
function textOf(row) {
  if (!rowTexts.has(row)) {
    const texts = data.table.rows[row].flatMap((value, at) => (value === null ? [] : [String(value), cellText(at, value)]));
    rowTexts.set(row, texts.join(" ").toLowerCase());
  }
  return rowTexts.get(row);
}

// Return the numbers of the rows that pass filters and search, in the order of the table.
function shownRows() {
  const { rows } = data.table;
  const tests = [...state.filters].map(([at, text]) => [at, filterOfColumn(at, text)]).filter(([, test]) => test);
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [...rows.keys()].filter((row) => {
    if (!tests.every(([at, test]) => test(rows[row][at]))) return false;
    return words.every((word) => textOf(row).includes(word));
  });
  const { column: at, down } = state.sort;
  return at < 0 ? found : found.sort((a, b) => order(rows[a][at], rows[b][at], down) || a - b);
}

// What is not there stands last in either order; nan before it. In a column with both, numbers are before texts.
function order(a, b, down) {
  const rank = (value) => (value === null ? 2 : Number.isNaN(numberOf(value)) ? 1 : 0);
  if (rank(a) || rank(b)) return rank(a) - rank(b);
  const [one, other] = [numberOf(a), numberOf(b)];
  const texts = [one, other].map((value) => Number(typeof value === "string"));
  const found = texts[0] - texts[1] || (texts[0] ? orderOfTexts(one, other) : one - other || 0);
  return down ? -found : found;
}

const TEXTS = new Intl.Collator("en"); // made once, since that takes as long as many comparisons
const NUMERAL = /((?:(?<![\w.])[-−])?(?:(?:\d+(?:\.\d+)?·)?10⁻?[⁰¹²³⁴⁵⁶⁷⁸⁹]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?))/i;

// Compare texts part by part, and the numbers in them as numbers: "α = 0.05" is before "α = 0.1".
function orderOfTexts(a, b) {
  const [parts, others] = [a.split(NUMERAL), b.split(NUMERAL)]; // by turns a text, which may be empty, and a number
  for (let at = 0; at < Math.min(parts.length, others.length); at += 1) {
    const [one, other] = [parts[at], others[at]];
    const found = at % 2 ? readNumber(one) - readNumber(other) : TEXTS.compare(one, other);
    if (found) return found;
  }
  return parts.length - others.length;
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
  link.href = URL.createObjectURL(new Blob([csvOf(rowsOnPage())], { type: "text/csv" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
