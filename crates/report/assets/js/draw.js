// One chart, drawn by uPlot: axes, the values under the cursor, and what the selection shows.
const CHART_HEIGHT = 280;

function empty(frame, text) {
  frame.replaceChildren(el("p", "empty", text));
}

function axisStyle() {
  const grid = { stroke: css("--line"), width: 1 };
  return { stroke: css("--quiet"), grid, ticks: { ...grid, size: 5 }, font: "12px system-ui, sans-serif" };
}

const X_TIME = {
  name: "time since the first submission",
  scale: { time: false, range: (_, min, max) => [min, max] },
  axis: { incrs: TIME_STEPS, space: 70, values: (_, splits, __, ___, step) => splits.map((s) => tick(s, step)) },
  head: (s) => `at ${clock(s)}`,
};

const Y_SHARE = {
  scale: { range: [0, 1] },
  axis: { size: 52, values: (_, splits) => splits.map((v) => `${Math.round(v * 100)} %`) },
  text: percent,
};
const fromZero = (_, __, max) => [0, max > 0 ? max * 1.06 : 1];
const Y_COUNT = {
  scale: { range: fromZero },
  axis: { size: 58, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6], values: (_, splits) => splits.map((v) => v.toLocaleString("en")) },
  text: (v) => v == null ? "–" : v.toLocaleString("en", { maximumFractionDigits: 1 }),
};
const Y_DURATION = {
  scale: { range: fromZero },
  axis: { size: 66, incrs: TIME_STEPS, values: (_, splits, __, ___, step) => splits.map((s) => tick(s, step)) },
  text: duration,
};

// Ticks of a logarithmic axis of time.
const LOG_TICKS = [
  [1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [HOUR, "1 h"], [10 * HOUR, "10 h"],
  [4 * DAY, "4 d"], [40 * DAY, "40 d"], [400 * DAY, "400 d"],
];
const LOG_TICKS_BETWEEN = [
  [3, "3 s"], [30, "30 s"], [180, "3 min"], [1800, "30 min"], [3 * HOUR, "3 h"], [30 * HOUR, "30 h"],
  [10 * DAY, "10 d"], [100 * DAY, "100 d"],
];
const LOG_TICK_TEXT = new Map([...LOG_TICKS, ...LOG_TICKS_BETWEEN]);

function logTicks(min, max, width) {
  const inside = (ticks) => ticks.map((t) => t[0]).filter((t) => t >= min * 0.999 && t <= max * 1.001);
  const coarse = inside(LOG_TICKS);
  const ticks = coarse.length > width / 140 ? coarse : inside([...LOG_TICKS, ...LOG_TICKS_BETWEEN]).sort((a, b) => a - b);
  // Zoomed between two round times: ends and middle say where we are.
  return ticks.length > 1 ? ticks : [min, Math.sqrt(min * max), max];
}

const Y_LOG_DURATION = {
  name: "log scale",
  scale: { distr: 3, range: (_, min, max) => min > 0 ? [min / 1.2, max * 1.2] : [1, 10] },
  axis: {
    size: 66,
    splits: (u, _, min, max) => logTicks(min, max, u.height * 2),
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map((s) => LOG_TICK_TEXT.get(s) ?? duration(s)),
  },
  text: duration,
};

// The values under the cursor, largest first, in the page's one tooltip.
function tooltip(spec, lines) {
  const ROWS_MAX = 14;
  // Where lines have points of their own, each tells the value of its last one, up to its end.
  const end = (values) => values.findLastIndex((v) => v != null);
  const at = (values, idx) => {
    if (spec.sparse && idx > end(values)) return null;
    while (spec.sparse && idx > 0 && values[idx] == null) idx--;
    return values[idx];
  };
  return {
    hooks: {
      setCursor: (u) => {
        const { idx, left, top } = u.cursor;
        // Charts that only follow another's cursor stay silent.
        if (!u.over.matches(":hover")) return;
        if (idx == null || left < 0) return tip.hide();
        const rows = lines
          .map((line, i) => ({ line, i: i + 1, value: at(u.data[i + 1], idx) }))
          .filter((r) => u.series[r.i].show && r.value != null)
          .sort((a, b) => b.value - a.value)
          .slice(0, ROWS_MAX)
          .map((r) => [r.line.label, spec.y.text(r.value), r.line.stroke, u.series[r.i]._focus]);
        if (rows.length === 0) return tip.hide();
        const box = u.over.getBoundingClientRect();
        tip.show(box.left + left, box.top + top, spec.x.head(u.data[0][idx]), rows);
      },
    },
  };
}

// Lines with places of their own on the axis (`xs`), on one grid of all of them: empty between a
// line's own.
function merged(lines) {
  const own = (line) => line.xs.filter((x, i) => x > 0 && line.values[i] != null);
  const grid = [...new Set(lines.flatMap(own))].sort((a, b) => a - b);
  const index = new Map(grid.map((x, i) => [x, i]));
  const spread = (line, values) => {
    const out = new Array(grid.length).fill(null);
    line.xs.forEach((x, i) => { if (index.has(x) && values[i] != null) out[index.get(x)] = values[i]; });
    return out;
  };
  const moved = lines.map((line) => ({
    ...line,
    values: spread(line, line.values),
    band: line.band && { low: spread(line, line.band.low), high: spread(line, line.band.high) },
  }));
  return [grid, moved];
}

// Rings around single points, such as the best round of a run.
function ring(u, marks) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  // A ring on the frame is drawn whole.
  const room = 7 * devicePixelRatio;
  ctx.rect(bbox.left - room, bbox.top - room, bbox.width + 2 * room, bbox.height + 2 * room);
  ctx.clip();
  for (const mark of marks) {
    if (!selection.shows(mark.run) || mark.x == null || mark.y == null) continue;
    ctx.beginPath();
    ctx.arc(u.valToPos(mark.x, "x", true), u.valToPos(mark.y, "y", true), 4.5 * devicePixelRatio, 0, 7);
    ctx.fillStyle = css("--card");
    ctx.strokeStyle = mark.stroke;
    ctx.lineWidth = 2.2 * devicePixelRatio;
    ctx.fill();
    ctx.stroke();
  }
  ctx.restore();
}

// `lines`: {label, stroke, dash, values, band?: {low, high}, run}; `section` says in data-visible how
// many are shown. `spec.sparse`: lines go on over grid points without a value. `spec.home`: the range
// of x that all is shown in. `spec.marks`: points to ring.
function draw(section, spec, grid, lines) {
  const frame = $(".frame", section);
  frame.replaceChildren();
  const axis = axisStyle();
  const padded = (values) => grid.map((_, i) => values[i] ?? null);
  const paths = spec.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined;
  const common = (line) => ({ label: line.label, paths, spanGaps: Boolean(spec.sparse), show: selection.shows(line.run) });
  // The edges of bands stand behind all lines, so that a line keeps its number.
  const banded = lines.filter((line) => line.band);
  const edges = banded.flatMap((line) => [[line, line.band.high], [line, line.band.low]]);
  // Told apart from a zoom by its ends: the library asks for a range in both cases.
  const isWhole = (min, max) => min === grid[0] && max === grid[grid.length - 1];
  const x = spec.home ? { ...spec.x.scale, range: (_, min, max) => isWhole(min, max) ? spec.home() : [min, max] } : spec.x.scale;
  const named = (side) => side.name ? { label: side.name, labelSize: 18, labelGap: 0, labelFont: axis.font } : {};
  const chart = new uPlot({
    width: frame.clientWidth,
    height: CHART_HEIGHT,
    legend: { show: false },
    padding: [8, 10, 0, 0],
    cursor: {
      sync: spec.sync ? { key: spec.sync } : undefined,
      focus: { prox: 26, dist: (_, series, __, value, cursor) => series > lines.length ? Infinity : value - cursor },
      y: false,
      drag: { setScale: true, x: true, y: false },
    },
    focus: { alpha: 0.3 },
    scales: { x, y: spec.y.scale },
    axes: [{ ...axis, size: 30, ...named(spec.x), ...spec.x.axis }, { ...axis, ...named(spec.y), ...spec.y.axis }],
    series: [
      {},
      ...lines.map((line) => ({
        ...common(line),
        stroke: line.stroke,
        dash: line.dash,
        width: 1.8,
        // A line of one point would not be seen.
        points: { show: Boolean(spec.dotted) || line.values.filter((v) => v != null).length === 1, size: 7, fill: line.stroke },
      })),
      ...edges.map(([line]) => ({ ...common(line), width: 0, points: { show: false } })),
    ],
    bands: banded.map((line, i) => ({
      series: [lines.length + 1 + 2 * i, lines.length + 2 + 2 * i], fill: `${line.stroke}26`,
    })),
    hooks: { draw: [(u) => ring(u, spec.marks ?? [])] },
    plugins: [tooltip(spec, lines)],
  }, [grid, ...lines.map((line) => padded(line.values)), ...edges.map(([, values]) => padded(values))], frame);
  chart.over.addEventListener("mouseleave", () => tip.hide());
  const size = new ResizeObserver(() => chart.setSize({ width: frame.clientWidth, height: CHART_HEIGHT }));
  size.observe(frame);
  // A policy shown alone may have nothing to draw.
  const nothing = el("p", "empty", spec.none);
  frame.append(nothing);
  const count = () => {
    const visible = chart.series.filter((series, i) => i > 0 && i <= lines.length && series.show).length;
    section.dataset.visible = String(visible);
    nothing.hidden = visible > 0;
    chart.root.hidden = visible === 0;
  };
  count();
  return {
    follow() {
      [...lines, ...edges.map(([line]) => line)].forEach((line, i) => chart.setSeries(i + 1, { show: selection.shows(line.run) }));
      if (spec.home) {
        const [min, max] = spec.home();
        chart.setScale("x", { min, max });
      }
      count();
    },
    destroy() { size.disconnect(); chart.destroy(); },
  };
}
