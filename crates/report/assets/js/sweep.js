// One chart per metric along one axis of the grid, at one value of each other axis; and maps over two.
const AXES = DATA.axes;
// Beyond this ratio of the largest to the smallest, small times would lie on a linear axis' zero.
const LOG_RATIO_MIN = 12;

// What is shown: the axis drawn along, and the place on the others. It starts in their middle.
const slice = {
  along: Math.max(0, AXES.findIndex((axis) => axis.numbers)),
  at: AXES.map((axis) => axis.values.length >> 1),
  metric: 0,
};

// The place in the grid, the last axis varying fastest.
function place(at) {
  return AXES.reduce((index, axis, i) => index * axis.values.length + at[i], 0);
}

function along(axis, value, more = []) {
  const at = [...slice.at];
  for (const [i, v] of [[axis, value], ...more]) at[i] = v;
  return place(at);
}

// Numbers at their place, on a log axis if they are spread like powers; names one after another.
function xOf(axis) {
  const numbers = axis.numbers, n = axis.values.length;
  const xs = numbers ?? axis.values.map((_, i) => i + 1);
  const low = Math.min(...xs), high = Math.max(...xs);
  const powers = numbers && low > 0 && high / low >= 8;
  const text = new Map(xs.map((x, i) => [x, axis.values[i]]));
  const room = (high - low) * 0.04 || Math.abs(high) * 0.1 || 1;
  const whole = powers ? [low / 1.12, high * 1.12] : [low - room, high + room];
  return {
    xs,
    spec: {
      name: axis.key,
      scale: { time: false, distr: powers ? 3 : 1, range: (_, min, max) => n === 1 || min === low && max === high ? whole : [min, max] },
      axis: {
        splits: () => [...xs].sort((a, b) => a - b),
        filter: (_, splits) => splits,
        values: (u, splits) => {
          const every = Math.ceil(splits.length * 52 / u.width);
          return splits.map((x, i) => i % every === 0 ? text.get(x) : "");
        },
      },
      head: (x) => `${axis.key} ${text.get(x) ?? x}`,
    },
  };
}

function yOf(metric) {
  if (!metric.is_time) return Y_SHARE;
  const all = metric.mean.flat().filter((v) => v != null);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  return low > 0 && high / low > LOG_RATIO_MIN ? Y_LOG_DURATION : Y_DURATION;
}

function lineOf(metric, run, axis, y) {
  const at = AXES[axis].values.map((_, i) => along(axis, i));
  const values = at.map((p) => metric.mean[p][run]);
  const half = at.map((p) => metric.half[p][run]);
  const edge = (sign) => values.map((v, i) => {
    if (v == null) return null;
    const moved = v + sign * (half[i] ?? 0);
    // A log axis has no place for 0 and below.
    return y === Y_LOG_DURATION ? Math.max(moved, v / 10) : Math.max(moved, 0);
  });
  const band = half.some((h) => h > 0) ? { low: edge(-1), high: edge(1) } : undefined;
  return { label: RUNS[run].label, stroke: runColour(run), dash: runDash(run), values, band, run };
}

function chartOf(metric, i) {
  const section = document.getElementById(`plot-${i}`), axis = AXES[slice.along];
  const { xs, spec } = xOf(axis), y = yOf(metric);
  const lines = RUNS.map((_, run) => ({ ...lineOf(metric, run, slice.along, y), xs }));
  const order = xs.map((_, at) => at).sort((a, b) => xs[a] - xs[b]);
  const sorted = (values) => order.map((at) => values[at]);
  const placed = lines.map((line) => ({
    ...line,
    values: sorted(line.values),
    band: line.band && { low: sorted(line.band.low), high: sorted(line.band.high) },
  }));
  return draw(section, { x: spec, y, dotted: true, sparse: true, none: "No job finished." }, sorted(xs), placed);
}

// Selects for the axis drawn along and for the value of each other axis.
function picks(rebuild) {
  if (AXES.length < 2) return;
  const select = (text, values, chosen, change) => {
    const label = el("label", "pick", `${text} `), node = el("select");
    values.forEach((value, i) => {
      const option = el("option", "", value);
      option.value = String(i);
      option.selected = i === chosen;
      node.append(option);
    });
    node.addEventListener("change", () => { change(Number(node.value)); rebuild(); });
    label.append(node);
    return label;
  };
  for (const box of $$(".picks")) {
    box.replaceChildren(
      select("along", AXES.map((axis) => axis.key), slice.along, (i) => { slice.along = i; }),
      ...AXES.flatMap((axis, i) => i === slice.along ? [] : [
        select(`at ${axis.key}`, axis.values, slice.at[i], (v) => { slice.at[i] = v; }),
      ]),
    );
  }
}

// Rows and columns are the first two axes, whatever the charts are drawn along.
function maps() {
  const section = $("#map");
  if (!section) return;
  const metric = DATA.metrics[slice.metric], [rows, columns] = AXES;
  const value = (run, r, c) => metric.mean[along(0, r, [[1, c]])][run];
  const shown = RUNS.flatMap((_, run) => rows.values.flatMap((_, r) => columns.values.map((_, c) => value(run, r, c)))).filter((v) => v > 0);
  // Twice the smallest is far from it, even where nothing is further.
  const low = Math.min(...shown), high = Math.max(...shown, 2 * low);
  const text = (v) => v == null ? "–" : digits(v / metric.size);
  const share = (v) => v > 0 ? Math.log(v / low) / Math.log(high / low) * 60 : 0;
  $(".low", section).textContent = shown.length ? `${text(low)} ${metric.unit}` : "";
  $(".high", section).textContent = shown.length ? `${text(high)} ${metric.unit}` : "";
  $(".maps", section).replaceChildren(...RUNS.flatMap((run, i) => {
    if (!selection.shows(i)) return [];
    const table = el("table"), caption = el("caption"), head = el("tr"), body = el("tbody");
    caption.append(keyed(runColour(i), run.label));
    head.append(el("th", "", `${rows.key} ↓  ${columns.key} →`), ...columns.values.map((v) => el("th", "", v)));
    rows.values.forEach((name, r) => {
      const row = el("tr");
      row.append(el("th", "", name), ...columns.values.map((_, c) => {
        const cell = el("td", "heat", text(value(i, r, c)));
        cell.style.setProperty("--share", `${share(value(i, r, c)).toFixed(1)}%`);
        return cell;
      }));
      body.append(row);
    });
    const top = el("thead");
    top.append(head);
    table.append(caption, top, body);
    const map = el("div", "map");
    map.append(table);
    return [map];
  }));
}

function figures() {
  for (const table of $$(".figures")) table.hidden = Number(table.dataset.metric) !== slice.metric;
}

function main() {
  if (RUNS.length === 0 || AXES.length === 0) return;
  let charts = [];
  const rebuild = () => {
    for (const chart of charts) chart.destroy();
    paintKeys();
    charts = DATA.metrics.map(chartOf);
    picks(rebuild);
    maps();
  };
  rebuild();
  figures();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);
  listenToPolicies();
  selection.onChange(() => {
    for (const chart of charts) chart.follow();
    maps();
  });
  for (const select of $$(".metric")) {
    select.addEventListener("change", () => {
      slice.metric = Number(select.value);
      for (const other of $$(".metric")) other.value = select.value;
      maps();
      figures();
    });
  }
  document.body.dataset.ready = "true";
}
main();
