// What happened to one job: found by its id, or by a click on the schedule.
const HAPPENINGS = ["submitted", "started", "held out", "preempted", "finished", "cancelled"];
const MATCHES_MAX = 20;

async function loadHistory(run) {
  const [columns, names, reasons] = await Promise.all([unpack(run.history), unpackLines(run.names), unpackLines(run.reasons)]);
  const [jobs, times, kinds, whys] = columns;
  return { jobs, times, kinds, whys, names, reasons };
}

const jobHistory = {
  section: $("#history"), select: $("#history select"), input: $("#history input"), told: $("#history .told"),
  table: $("#history table"), list: $("#history-jobs"), run: 0, cache: new Map(),

  load(run) {
    if (!this.cache.has(run)) this.cache.set(run, loadHistory(RUNS[run]));
    return this.cache.get(run);
  },

  // Shows the job of this id; suggests ids that begin like it.
  async search(text) {
    const data = await this.load(this.run);
    const wanted = text.trim();
    const matches = [];
    for (let i = 0; i < data.names.length && matches.length < MATCHES_MAX; i++) if (data.names[i].startsWith(wanted)) matches.push(data.names[i]);
    this.list.replaceChildren(...matches.map((name) => { const option = el("option"); option.value = name; return option; }));
    const job = data.names.indexOf(wanted);
    if (wanted === "" || job < 0) {
      this.table.hidden = true;
      this.told.textContent = wanted === "" ? "" : matches.length ? `No job has the id ${wanted}; some begin with it: ${matches.slice(0, 5).join(", ")}` : `No job has the id ${wanted}.`;
      return;
    }
    this.tell(data, job);
  },

  // `job`: position in the run's rows.
  tell(data, job) {
    const from = bisect(0, data.jobs.length, (i) => data.jobs[i] >= job);
    const to = bisect(from, data.jobs.length, (i) => data.jobs[i] > job);
    const body = $("tbody", this.table);
    const rows = [];
    for (let i = from; i < to; i++) {
      const row = el("tr");
      // Reasons number jobs by their order of submission; readers know their ids.
      const why = data.reasons[data.whys[i]].replace(/\bjob (\d+)/g, (all, at) => data.names[at] === undefined ? all : `job ${data.names[at]}`);
      row.append(el("td", "number", clock(data.times[i] / 1000)), el("td", "", HAPPENINGS[data.kinds[i]]), el("td", "", why));
      rows.push(row);
    }
    body.replaceChildren(...rows);
    this.table.hidden = rows.length === 0;
    const count = (kind) => { let n = 0; for (let i = from; i < to; i++) n += data.kinds[i] === kind; return n; };
    this.told.textContent = rows.length === 0
      ? `No events were recorded for ${RUNS[this.run].label}.`
      : `Job ${data.names[job]} under ${RUNS[this.run].label}: held out ${count(2)} times, preempted ${count(3)} times.`;
  },

  async show(run, job) {
    this.run = run;
    options(this.select, RUNS.map((_, i) => i), run);
    const data = await this.load(run);
    this.input.value = data.names[job];
    this.tell(data, job);
  },
};

function listenToHistory() {
  options(jobHistory.select, RUNS.map((_, i) => i), 0);
  jobHistory.select.addEventListener("change", () => { jobHistory.run = Number(jobHistory.select.value); jobHistory.search(jobHistory.input.value); });
  jobHistory.input.addEventListener("input", () => jobHistory.search(jobHistory.input.value));
  schedule.base.addEventListener("click", (event) => {
    const box = schedule.base.getBoundingClientRect();
    const i = schedule.find((event.clientX - box.left) * schedule.ratio, (event.clientY - box.top) * schedule.ratio);
    if (i >= 0 && schedule.data.job[i] >= 0) jobHistory.show(schedule.run, schedule.data.job[i]);
  });
}
