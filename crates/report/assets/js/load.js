// Latency and answers against the rate at which requests were sent.
const MS_TICKS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];
const milliseconds = (v) => v == null ? "–" : `${digits(v)} ms`;
const rateText = (v) => v == null ? "–" : `${v.toLocaleString("en", { maximumFractionDigits: v < 100 ? 1 : 0 })}/s`;

const LOW = Math.min(...DATA.sent), HIGH = Math.max(...DATA.sent), ROOM = (HIGH - LOW) * 0.04 || HIGH * 0.1 || 1;
const X_RATE = {
  name: DATA.is_open ? "requests offered per second" : "requests sent per second",
  scale: { time: false, range: (_, min, max) => min === LOW && max === HIGH ? [Math.max(0, LOW - ROOM), HIGH + ROOM] : [min, max] },
  axis: { values: (_, splits) => splits.map((v) => v.toLocaleString("en")) },
  head: (v) => `${rateText(v)} ${DATA.is_open ? "offered" : "sent"}`,
};
const Y_MS = {
  name: "milliseconds",
  scale: { distr: 3, range: (_, min, max) => min > 0 ? [min / 1.3, max * 1.3] : [0.1, 10] },
  axis: {
    size: 58,
    splits: (_, __, min, max) => MS_TICKS.filter((t) => t >= min && t <= max),
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map(String),
  },
  text: milliseconds,
};
const Y_RATE = { ...Y_COUNT, text: rateText };

const line = (label, i, values, dash) => ({ label, stroke: colour(i), dash, values, run: 0 });

function chart(id, y, lines) {
  const section = document.getElementById(id);
  $(".keys", section).replaceChildren(...lines.map((l) => keyed(l.stroke, l.label)));
  return draw(section, { x: X_RATE, y, dotted: true, none: "Nothing was answered." }, DATA.sent, lines);
}

function charts() {
  // A log axis has no place for the zero of a level without answers.
  const positive = (values) => values.map((v) => v > 0 ? v : null);
  const latency = DATA.percentiles.map((name, i) => line(name, i, positive(DATA.latency_ms[i])));
  if (DATA.slo_ms) latency.push({ ...line(`SLO, ${digits(DATA.slo_ms)} ms`, 6, DATA.sent.map(() => DATA.slo_ms), [4, 4]), stroke: css("--quiet") });
  const rates = [line("answered", 0, DATA.answered)];
  if (DATA.slo_ms) rates.push(line("answered within the SLO", 2, DATA.good, [8, 4]));
  return [chart("plot-latency", Y_MS, latency), chart("plot-rate", Y_RATE, rates)];
}

if (DATA.sent.length > 0) {
  let shown = charts();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const old of shown) old.destroy();
    shown = charts();
  });
}
document.body.dataset.ready = "true";
