// The curves of a comparison. A chart is rebuilt when the theme changes, because its colours are fixed.
// Every run has its own length. A policy shown alone fills the axis, unless one axis for all is wanted.
const timeAxis = {
  shared: false,
  length(run) { return Math.max(this.shared || run === null ? DATA.length_s : RUNS[run].length_s, 1e-3); },
};
const timesOf = (run, values) => values.map((_, i) => (i + 0.5) * run.length_s / values.length);

const X_LOG = {
  scale: { time: false, distr: 3, range: (_, min, max) => [min, max] },
  axis: {
    splits: (u, _, min, max) => logTicks(min, max, u.width),
    filter: (_, splits) => splits,
    values: (_, splits) => splits.map((s) => LOG_TICK_TEXT.get(s) ?? duration(s)),
  },
  head: (s) => `within ${duration(s)}`,
};

const CHARTS = [
  { id: "plot-jct", x: { ...X_LOG, name: "completion time" }, y: Y_SHARE, grid: DATA.jct_grid_s, values: (run) => run.jct, none: "No job finished." },
  { id: "plot-queue", x: { ...X_LOG, name: "time without GPUs" }, y: Y_SHARE, grid: DATA.queue_grid_s, values: (run) => run.queue, none: "No job finished." },
  ...[["utilisation", Y_SHARE], ["fragmentation", Y_SHARE], ["waiting", Y_COUNT]].map(([name, y]) => ({
    id: `plot-${name}`, x: X_TIME, y, sync: "time", sparse: true, home: () => [0, timeAxis.length(selection.run)],
    values: (run) => run.over_time[name],
    none: "No events were recorded, so there is nothing to show over time.",
  })),
];

function runCharts() {
  return CHARTS.map((spec) => {
    const section = document.getElementById(spec.id);
    const lines = RUNS
      .map((run, i) => ({ label: run.label, stroke: runColour(i), dash: runDash(i), values: spec.values(run), run: i }))
      .filter((line) => line.values.length > 0);
    const overTime = (line) => ({ ...line, xs: timesOf(RUNS[line.run], line.values) });
    if (lines.length > 0) return draw(section, spec, ...(spec.grid ? [spec.grid, lines] : merged(lines.map(overTime))));
    empty($(".frame", section), spec.none);
    return null;
  }).filter(Boolean);
}

// The links of one level at a time: their mean load, or that of the busiest.
function linksChart() {
  const section = $("#plot-links"), select = $("select", section);
  const shown = RUNS.map((_, i) => i).filter((i) => RUNS[i].links.length > 0);
  section.hidden = shown.length === 0;
  if (section.hidden) return null;
  if (select.options.length === 0) {
    const deepest = shown.reduce((a, b) => RUNS[b].links.length > RUNS[a].links.length ? b : a);
    const { levels } = DATA.groups[RUNS[deepest].group];
    for (const level of RUNS[deepest].links.keys()) {
      for (const [figure, text] of [["mean", "mean of all"], ["busiest", "the busiest"]]) {
        const option = el("option", "", `of ${levels[level]}s, ${text}`);
        option.value = `${level} ${figure}`;
        select.append(option);
      }
    }
  }
  let chart = null;
  const show = () => {
    chart?.destroy();
    const [level, figure] = select.value.split(" ");
    const lines = shown.filter((i) => level in RUNS[i].links).map((i) => {
      const values = RUNS[i].links[level][figure];
      return { label: RUNS[i].label, stroke: runColour(i), dash: runDash(i), values, xs: timesOf(RUNS[i], values), run: i };
    });
    const spec = { x: X_TIME, y: Y_SHARE, sync: "time", sparse: true, home: () => [0, timeAxis.length(selection.run)], none: "No job of this policy used links." };
    chart = draw(section, spec, ...merged(lines));
  };
  select.onchange = show;
  show();
  return { follow: () => chart.follow(), destroy: () => chart.destroy() };
}

// The timers of one policy at a time: demand by shade, level of the cluster by dashes.
const LEVEL_DASHES = [[], [6, 4], [2, 3], [10, 3, 2, 3], [1, 5]];
function timersChart() {
  const section = $("#plot-timers");
  const select = $("select", section);
  const timed = RUNS.map((run, i) => i).filter((i) => RUNS[i].timers.length > 0);
  if (timed.length === 0) {
    section.hidden = true;
    return null;
  }
  let chart = null;
  const show = () => {
    chart?.destroy();
    chart = null;
    const run = Number(select.value);
    if (!timed.includes(run)) {
      section.dataset.visible = "0";
      $(".keys", section).replaceChildren();
      return empty($(".frame", section), `${RUNS[run].label} expects no waits: nobody weighs them.`);
    }
    const { timers } = RUNS[run], demand = (timer) => `${timer.gpus} GPU${timer.gpus === 1 ? "" : "s"}`;
    const { levels } = DATA.groups[RUNS[run].group];
    const lines = timers.flatMap((timer, i) => timer.levels.map((values, level) => (
      { label: `${demand(timer)}, ${levels[level]}`, values, stroke: ramp(i, timers.length), dash: LEVEL_DASHES[level], run }
    )));
    $(".keys", section).replaceChildren(...timers.map((timer, i) => keyed(ramp(i, timers.length), demand(timer))));
    const spec = { x: X_TIME, y: Y_DURATION, stepped: true, home: () => [0, timeAxis.length(run)] };
    chart = draw(section, spec, timesOf(RUNS[run], timers[0].levels[0]), lines);
  };
  const follow = () => {
    // With all policies shown it keeps the one it had, if that has timers.
    const wanted = selection.run ?? (timed.includes(Number(select.value)) ? Number(select.value) : timed[0]);
    options(select, timed.includes(wanted) ? timed : [...timed, wanted], wanted);
    show();
  };
  select.onchange = show;
  follow();
  return { follow, destroy: () => chart?.destroy() };
}

function options(select, runs, chosen) {
  select.replaceChildren(...runs.map((run) => {
    const option = el("option", "", RUNS[run].label);
    option.value = String(run);
    option.selected = run === chosen;
    return option;
  }));
}

function tierBars() {
  const bars = $("#tiers .bars");
  const shown = RUNS.map((run, i) => i).filter((i) => selection.shows(i)).map(tiersOf);
  const deepest = shown.reduce((a, b) => b.length > a.length ? b : a, []);
  $("#tiers .keys").replaceChildren(...deepest.map((name, tier) => keyed(css(`--tier-${tier}`), name)));
  bars.replaceChildren(...RUNS.flatMap((run, i) => {
    if (!selection.shows(i)) return [];
    const name = el("span", "name", run.label);
    name.title = run.label;
    const stack = el("div", "stack");
    run.tier_share.forEach((share, tier) => {
      if (!(share > 0)) return;
      const part = el("span", `tier-${tier}`, share >= 0.07 ? `${Math.round(share * 100)} %` : "");
      part.style.flex = `${share} 0 0`;
      part.title = percent(share);
      stack.append(part);
    });
    return [name, stack];
  }));
}
