// The curves of training runs: scores against rounds, bytes and computed time, and what was measured in rounds.
const UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];

function bytesText(bytes) {
  const [size, unit] = UNITS.find(([size]) => bytes >= size * 0.9995) ?? [1, "B"];
  return `${+(bytes / size).toPrecision(3)} ${unit}`;
}

// Powers of ten, and 2 and 5 times them where there are few.
function byteTicks(min, max) {
  const from = Math.floor(Math.log10(min)), to = Math.ceil(Math.log10(max));
  const factors = to - from > 4 ? [1] : [1, 2, 5];
  const ticks = [];
  for (let power = from; power <= to; power++) {
    for (const factor of factors) ticks.push(factor * 10 ** power);
  }
  const inside = ticks.filter((t) => t >= min * 0.999 && t <= max * 1.001);
  // Zoomed between two round numbers: the ends say where we are.
  return inside.length > 1 ? inside : [min, max];
}

const wider = (min, max) => max > min ? [min, max] : [min * 0.5, min * 1.5 || 1];
const X_ROUNDS = {
  name: "round",
  scale: { time: false, range: (_, min, max) => wider(min, max) },
  axis: { incrs: Y_COUNT.axis.incrs, space: 60, values: Y_COUNT.axis.values },
  head: (middle) => {
    const reach = (DATA.span - 1) / 2;
    return DATA.span === 1 ? `round ${middle}` : `rounds ${Math.max(1, middle - reach)} to ${middle + reach}`;
  },
};
const X_BYTES = {
  name: "bytes sent so far, log scale",
  scale: { time: false, distr: 3, range: (_, min, max) => max > min ? [min, max] : [min / 2, min * 2] },
  axis: {
    splits: (_, __, min, max) => byteTicks(min, max),
    filter: (_, splits) => splits,
    values: (u, splits) => {
      // No more than fit: the first of them, then every second or third.
      const every = Math.ceil(splits.length * 64 / u.width);
      return splits.map((b, i) => i % every === 0 ? bytesText(b) : "");
    },
  },
  head: (bytes) => `after ${bytesText(bytes)}`,
};
const X_SECONDS = {
  name: "computed time",
  scale: { time: false, range: (_, min, max) => wider(min, max) },
  axis: X_TIME.axis,
  head: (s) => `after ${duration(s)}`,
};

// Room above and below, so that no line lies on the frame.
const around = (_, min, max) => {
  if (min == null) return [0, 1];
  const room = (max - min) * 0.06 || Math.abs(max) * 0.1 || 1;
  return [min - room, max + room];
};

// The first rounds climb from far below; with them in sight, what happens later cannot be told apart.
// The close-up shows the upper three quarters of every line's points, unless a part is zoomed into.
const SHORT = 8;
let range = "close";
function closeUp(u, min, max) {
  const { x } = u.scales, grid = u.data[0];
  const zoomed = x.min != null && (x.min > grid[0] || x.max < grid[grid.length - 1]);
  if (range === "whole" || zoomed || min == null) return around(u, min, max);
  const floors = u.data.slice(1).flatMap((values, i) => {
    const own = u.series[i + 1].show ? values.filter((v) => v != null).sort((a, b) => a - b) : [];
    return own.length < SHORT ? own.slice(0, 1) : [own[own.length >> 2]];
  });
  return around(u, Math.min(...floors, max), max);
}
const shorter = (v) => String(+v.toPrecision(4));
const Y_SCORE = {
  scale: { range: closeUp },
  axis: { size: 58, values: (_, splits) => splits.map((v) => `${+(v * 100).toFixed(2)} %`) },
  text: (v) => `${(v * 100).toFixed(2)} %`,
};
const Y_LOSS = { name: "loss", scale: { range: around }, axis: { size: 58, values: (_, splits) => splits.map(shorter) }, text: shorter };

let score = "test";
const CHARTS = [
  { id: "plot-rounds", x: X_ROUNDS, y: Y_SCORE, curve: () => score, none: "No round was evaluated." },
  { id: "plot-bytes", x: X_BYTES, y: Y_SCORE, curve: () => score, places: "bytes", none: "No bytes are sent." },
  { id: "plot-seconds", x: X_SECONDS, y: Y_SCORE, curve: () => score, places: "seconds", none: "No work was counted." },
  { id: "plot-loss", y: Y_LOSS, curve: () => "loss", none: "No loss was recorded." },
  { id: "plot-steps", y: { ...Y_COUNT, name: "steps" }, curve: () => "server_steps", none: "The server takes no steps." },
  { id: "plot-kept", y: { ...Y_SCORE, name: "share kept", scale: { range: fromZero } }, curve: () => "kept", none: "All modes take the whole average." },
  { id: "plot-gain", y: { ...Y_LOSS, name: "share of the loss" }, curve: () => "gain", none: "No correction was judged." },
].filter((spec) => document.getElementById(spec.id))
  .map((spec) => ({ x: X_ROUNDS, sync: spec.places ? undefined : "rounds", sparse: true, ...spec }));

function chartOf(spec) {
  const section = document.getElementById(spec.id);
  const lines = RUNS.flatMap((run, i) => {
    const curve = run[spec.curve()];
    const absent = !curve || (spec.places && run[spec.places].length === 0);
    return absent ? [] : [{ label: run.label, stroke: runColour(i), dash: runDash(i), values: curve.mean, band: curve.band, run: i, xs: run[spec.places] }];
  });
  if (lines.length === 0) {
    section.dataset.visible = "0";
    empty($(".frame", section), spec.none);
    return null;
  }
  const marks = spec.y !== Y_SCORE ? [] : RUNS.flatMap((run, i) => run.best.map((best) => (
    { x: best[spec.places ?? "round"], y: best[score], stroke: runColour(i), run: i }
  )));
  const y = spec.y === Y_SCORE ? { ...Y_SCORE, name: `${score} ${DATA.metric}` } : spec.y;
  return draw(section, { ...spec, y, marks }, ...(spec.places ? merged(lines) : [DATA.rounds, lines]));
}

function main() {
  if (RUNS.length === 0) return;
  const charts = new Map();
  const rebuild = (specs) => {
    for (const spec of specs) {
      charts.get(spec)?.destroy();
      charts.set(spec, chartOf(spec));
    }
  };
  const everything = () => { paintKeys(); rebuild(CHARTS); };
  everything();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", everything);
  listenToPolicies();
  listenToHeadings();
  selection.onChange(() => { for (const chart of charts.values()) chart?.follow(); });
  for (const input of $$("#scores .switch input")) {
    input.addEventListener("change", () => {
      if (input.name === "range") range = input.value; else score = input.value;
      rebuild(CHARTS.filter((spec) => spec.y === Y_SCORE));
    });
  }
  document.body.dataset.ready = "true";
}
main();
