// The axes of figures: titles, ranges, and ticks at 1, 2 and 5 of each decade.

const LOG_FROM = 5; // the largest value over the smallest from which an axis is logarithmic
// Return the smallest, the largest and the smallest positive of some numbers; null if there are none.
function spanOfAll(numbers) {
  const least = (some) => some.reduce((a, b) => Math.min(a, b), Infinity);
  return numbers.length ? [least(numbers), -least(numbers.map((value) => -value)), least(numbers.filter((value) => value > 0))] : null;
}

// Whether an axis of such a range can be logarithmic: something on it is positive.
const hasPositive = (range) => Boolean(range) && range[2] !== null && range[2] < Infinity;

// Whether an axis of such a range is logarithmic at first.
const spans = (range) => Boolean(range) && range[0] >= 0 && range[1] > LOG_FROM * range[2];

// A logarithmic axis has no 0: at its foot, half the smallest number above, stand those that are, and what is below.
const foot = (range) => range[2] / 2;

// Return a tick's text: 0.002, 20, 1,000, 2·10⁻⁷.
function tickText(digit, exponent) {
  if (exponent >= -3 && exponent < 5) return Number(`${digit}e${exponent}`).toLocaleString("en-US", { maximumFractionDigits: 6 });
  return digit === 1 ? power(exponent) : `${digit}·${power(exponent)}`;
}

const hasFoot = (range) => Boolean(range) && range[0] <= 0;
// Return values with those that are 0 or below at the foot of a logarithmic axis of such a range.
const atFoot = (values, range) => values.map((value) => (value !== null && value <= 0 ? foot(range) : value));

// Return the ticks of a logarithmic axis that shows the powers of ten from `low` to `high`.
function logTicks(low, high) {
  const decades = high - low;
  const digits = decades > 2.5 ? [1] : decades > 0.6 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
  const step = Math.max(1, Math.ceil(decades / 7));
  const tickvals = [];
  const ticktext = [];
  for (let exponent = Math.floor(low) - 1; exponent <= Math.ceil(high) + 1; exponent += 1) {
    if (exponent % step) continue;
    for (const digit of digits) {
      tickvals.push(Number(`${digit}e${exponent}`));
      ticktext.push(tickText(digit, exponent));
    }
  }
  const shown = tickvals.filter((value) => Math.log10(value) >= low && Math.log10(value) <= high).length;
  return shown < 2 ? { tickmode: "auto" } : { tickmode: "array", tickvals, ticktext };
}

function logAxis(range, zoomed) {
  const whole = [Math.log10(hasFoot(range) ? foot(range) : range[2]), Math.log10(range[1])];
  const room = 0.03 * (whole[1] - whole[0]) + 0.01;
  const ends = [whole[0] - room, whole[1] + room];
  return { type: "log", range: ends, ...footedTicks(...(zoomed ?? ends), range) };
}

// Return the ticks as `logTicks`, with one at the foot of an axis of such a range, if something stands there.
function footedTicks(low, high, range) {
  const ticks = logTicks(low, high);
  if (!hasFoot(range) || !ticks.tickvals) return ticks;
  const kept = ticks.tickvals.map((value, at) => [value, ticks.ticktext[at]]).filter(([value]) => value >= range[2]);
  return {
    tickmode: "array", tickvals: [foot(range), ...kept.map(([value]) => value)],
    ticktext: [range[0] < 0 ? "≤ 0" : "0", ...kept.map(([, text]) => text)],
  };
}

// Return an axis of plotly.js; `range` is the smallest, the largest and the smallest positive value, or nothing.
function axisOf({ title, range, log, unit, fromZero, zoomed }) {
  const look = {
    title: { text: title, standoff: 8 },
    automargin: true,
    zeroline: false,
    gridcolor: colour("--grid"),
    linecolor: colour("--axis"),
    showline: true,
    separatethousands: true,
    exponentformat: "e", // raised digits are styles within the figure, which the page's policy does not apply
  };
  if (unit) Object.assign(look, { ticksuffix: unit, exponentformat: "SI" });
  if (log && hasPositive(range)) return Object.assign(look, logAxis(range, zoomed));
  if (!range) return Object.assign(look, { rangemode: "tozero" });
  const low = fromZero ? Math.min(0, range[0]) : range[0];
  const room = 0.04 * (range[1] - low || Math.abs(low) || 1);
  look.range = [low === 0 ? 0 : low - room, range[1] + room];
  return look;
}

// After a zoom, a logarithmic axis has other ticks.
function followZoom(div) {
  div.on("plotly_relayout", (changes) => {
    const update = {};
    for (const name of ["xaxis", "yaxis"]) {
      const axis = div.layout[name];
      const moved = Object.keys(changes).some((key) => key.startsWith(`${name}.range`) || key === `${name}.autorange`);
      if (!moved || axis.type !== "log" || !axis.range) continue;
      const ticks = div.ranges ? footedTicks(...axis.range, div.ranges[name]) : logTicks(...axis.range);
      for (const [key, value] of Object.entries(ticks)) update[`${name}.${key}`] = key === "tickmode" ? value : [...value];
    }
    if (Object.keys(update).length) Plotly.relayout(div, update);
  });
}
