// Wiring: the plots, the schedule's pointer and keys, and the theme.

function tellSpan(event, i) {
  const { data } = schedule;
  const machine = data.machines[data.row[i]], job = data.job[i];
  const held = [`${clock(data.start[i])} – ${clock(data.end[i])}`, duration(data.end[i] - data.start[i])];
  const rows = job < 0
    ? [["machine", machine.name], ["down", held[0]], ["for", held[1]]]
    : [
      ["model", data.models[data.jobModel[job]]],
      ["GPUs", `${data.jobGpus[job]}, of them here ${data.gpus[i]}`],
      ["placed", tiersOf(schedule.run)[data.tier[i]]],
      ["machine", `${machine.name} (${machine.gpu_type})`],
      ["in", (data.places[machine.place] ?? []).filter(Boolean).join(", ")],
      ["submitted", clock(data.jobSubmit[job] / 1000)],
      ["on these GPUs", held[0]],
      ["for", held[1]],
      ["job ended", clock(data.jobFinish[job] / 1000)],
    ];
  tip.show(event.clientX, event.clientY, job < 0 ? "Machine down" : data.names[job], rows);
}

function listenToSchedule() {
  const { base, stage, section } = schedule;
  const place = (event) => {
    const box = base.getBoundingClientRect();
    return [(event.clientX - box.left) * schedule.ratio, (event.clientY - box.top) * schedule.ratio];
  };
  const hover = (i) => {
    if (i === schedule.hover) return;
    schedule.hover = i;
    schedule.paintHover();
  };
  let dragged = null;
  base.addEventListener("wheel", (event) => {
    event.preventDefault();
    const [x, y] = place(event);
    // Some browsers turn Shift + wheel into a sideways wheel.
    const factor = Math.exp(Math.max(-300, Math.min(300, event.deltaY || event.deltaX)) * 0.0016);
    if (event.shiftKey) schedule.zoomRows(factor, y);
    else schedule.zoomTime(factor, Math.min(1, Math.max(0, (x - schedule.plot.left) / schedule.plot.width)));
    tip.hide();
  }, { passive: false });
  base.addEventListener("pointerdown", (event) => {
    dragged = place(event);
    base.setPointerCapture(event.pointerId);
    stage.classList.add("drag");
    tip.hide();
  });
  base.addEventListener("pointermove", (event) => {
    const at = place(event);
    if (dragged) {
      schedule.pan(at[0] - dragged[0], at[1] - dragged[1]);
      dragged = at;
      return;
    }
    const i = schedule.find(...at);
    hover(i);
    if (i < 0) tip.hide(); else tellSpan(event, i);
  });
  const drop = () => { dragged = null; stage.classList.remove("drag"); };
  base.addEventListener("pointerup", drop);
  base.addEventListener("pointercancel", drop);
  base.addEventListener("pointerleave", () => { hover(-1); tip.hide(); });
  base.addEventListener("dblclick", () => schedule.reset());
  base.addEventListener("keydown", (event) => {
    const step = schedule.plot.width / 8;
    const act = {
      ArrowLeft: () => schedule.pan(step, 0), ArrowRight: () => schedule.pan(-step, 0),
      ArrowUp: () => schedule.pan(0, 60), ArrowDown: () => schedule.pan(0, -60),
      "+": () => schedule.zoomTime(0.6), "-": () => schedule.zoomTime(1 / 0.6), 0: () => schedule.reset(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  });
  const zoom = { in: () => schedule.zoomTime(0.5), out: () => schedule.zoomTime(2), reset: () => schedule.reset() };
  for (const button of $$(".zoom button", section)) button.addEventListener("click", () => schedule.data && zoom[button.dataset.zoom]());
  for (const input of $$(".switch input", section)) {
    input.addEventListener("change", () => { schedule.mode = input.value; if (schedule.data) schedule.tell(); schedule.redraw(); });
  }
  schedule.select.addEventListener("change", () => schedule.show(Number(schedule.select.value)));
  new ResizeObserver(() => { schedule.resize(); schedule.redraw(); }).observe(stage);
}

// One figure of the tables by demand and model at a time.
function listenToFigures() {
  const select = $("#breakdown .figure");
  const show = () => {
    for (const table of $$("#breakdown .figures")) table.hidden = table.dataset.figure !== select.value;
  };
  select.addEventListener("change", show);
  show();
}

function main() {
  if (RUNS.length === 0) return;
  let charts = [];
  const rebuild = () => {
    for (const chart of charts) chart.destroy();
    paintKeys();
    charts = [...runCharts(), linksChart(), timersChart()].filter(Boolean);
    tierBars();
    if (schedule.data) schedule.tell();
    schedule.redraw();
  };
  rebuild();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);
  listenToPolicies();
  listenToHeadings();
  listenToFigures();
  listenToSchedule();
  listenToHistory();

  const everyRun = RUNS.map((_, i) => i);
  options(schedule.select, everyRun, 0);
  selection.onChange(() => {
    for (const chart of charts) chart.follow();
    tierBars();
    if (selection.run === null) return;
    options(schedule.select, everyRun, selection.run);
    schedule.show(selection.run);
  });
  for (const input of $$(".chips .switch input")) {
    input.addEventListener("change", () => {
      timeAxis.shared = input.value === "shared";
      for (const chart of charts) chart.follow();
      schedule.reset();
    });
  }
  schedule.show(Math.max(0, RUNS.findIndex((run) => run.has_events))).then(() => {
    options(schedule.select, everyRun, schedule.run);
    document.body.dataset.ready = "true";
  });
}
main();
