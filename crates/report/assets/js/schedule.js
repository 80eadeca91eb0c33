// The schedule: the part in view, zooming and panning, and the bar under the pointer.
const GUTTER = 108, AXIS = 26, ROW_MIN = 3, ROW_MAX = 46, STAGE_MAX = 620, LABELS_MAX = 500, KEYS_MAX = 24;
// What a placement of each tier is, on the cluster of a run.
const tiersOf = (run) => DATA.groups[RUNS[run].group].tiers;

const schedule = {
  section: $("#schedule"), stage: $("#schedule .stage"), base: $("#schedule .base"), over: $("#schedule .over"),
  foot: $("#schedule .foot"), select: $("#schedule select"),
  data: null, run: null, mode: "tier", view: null, hover: -1, frame: 0, cache: new Map(),

  async show(run) {
    this.run = run;
    this.hover = -1;
    if (!RUNS[run].has_events) return this.blank(`No events were recorded for ${RUNS[run].label}, so its schedule is not known.`);
    // Unpacking takes a while for large traces; the last request wins.
    if (!this.cache.has(run)) this.cache.set(run, loadSchedule(RUNS[run]));
    const data = await this.cache.get(run);
    if (this.run !== run) return;
    // A part in view stays in view in the next policy; the whole stays whole.
    const keeps = this.view && this.data?.machines === data.machines && !this.isWhole;
    this.data = data;
    if (data.count === 0) return this.blank("No job ran.");
    $(".empty", this.section)?.remove();
    this.stage.hidden = false;
    this.tell();
    this.resize();
    if (keeps) this.redraw(); else this.reset();
  },

  // The legend of the colours, and how much is drawn.
  tell() {
    const { data, mode } = this, keys = [];
    if (mode === "tier") tiersOf(this.run).forEach((name, tier) => keys.push(keyed(css(`--tier-${tier}`), name)));
    if (mode === "model") data.models.slice(0, KEYS_MAX).forEach((name, i) => keys.push(keyed(`rgb(${jobPalette()[i]})`, name)));
    keys.push(keyed(css("--down"), "machine down"));
    const dropped = RUNS[this.run].spans_dropped;
    const left = dropped ? `, the ${dropped.toLocaleString("en")} shortest left out` : "";
    this.foot.replaceChildren(...keys, el("span", "count", `${data.count.toLocaleString("en")} bars${left}`));
  },

  blank(text) {
    this.data = null;
    this.stage.hidden = true;
    this.foot.textContent = "";
    $(".empty", this.section)?.remove();
    this.stage.after(el("p", "empty", text));
  },

  resize() {
    if (!this.data) return;
    const rows = this.data.machines.length;
    const height = AXIS + Math.round(Math.min(STAGE_MAX, Math.max(120, rows * Math.min(ROW_MAX, Math.max(ROW_MIN, STAGE_MAX / rows)))));
    this.stage.style.height = `${height}px`;
    this.ratio = Math.min(2, devicePixelRatio || 1);
    const width = this.stage.clientWidth;
    const size = [Math.round(width * this.ratio), Math.round(height * this.ratio)];
    if (this.base.width !== size[0] || this.base.height !== size[1]) {
      // A canvas that changes its size is blank.
      for (const canvas of [this.base, this.over]) [canvas.width, canvas.height] = size;
      this.isPainted = false;
    }
    this.plot = {
      left: Math.round(GUTTER * this.ratio),
      width: Math.max(1, this.base.width - Math.round(GUTTER * this.ratio)),
      height: this.base.height - Math.round(AXIS * this.ratio),
    };
    if (this.view) this.clamp();
  },

  fit() { return this.plot.height / this.data.machines.length; },
  reset() {
    if (!this.data) return;
    this.view = { from: 0, to: timeAxis.length(this.run), top: 0, rowHeight: this.fit() };
    this.redraw();
  },

  clamp() {
    const view = this.view, whole = timeAxis.length(this.run);
    const length = Math.min(whole, Math.max(view.to - view.from, whole * 1e-7, 1e-3));
    view.from = Math.min(Math.max(0, view.from), whole - length);
    view.to = view.from + length;
    this.isWhole = length === whole;
    view.rowHeight = Math.min(Math.max(view.rowHeight, this.fit()), Math.max(this.fit(), 120 * this.ratio));
    const most = this.data.machines.length - this.plot.height / view.rowHeight;
    view.top = Math.min(Math.max(0, view.top), Math.max(0, most));
  },

  zoomTime(factor, share = 0.5) {
    const view = this.view, length = view.to - view.from;
    const at = view.from + length * share;
    view.from = at - length * factor * share;
    view.to = view.from + length * factor;
    this.redraw();
  },

  zoomRows(factor, y) {
    const view = this.view, at = view.top + y / view.rowHeight;
    view.rowHeight = Math.min(120 * this.ratio, Math.max(this.fit(), view.rowHeight / factor));
    view.top = at - y / view.rowHeight;
    this.redraw();
  },

  pan(dx, dy) {
    const view = this.view, by = dx * (view.to - view.from) / this.plot.width;
    view.from -= by;
    view.to -= by;
    view.top -= dy / view.rowHeight;
    this.redraw();
  },

  // The first picture is painted at once: programs that only load the page and take a picture of it
  // never ask for a frame. Later ones wait for the next frame, as pointers move faster than that.
  redraw() {
    if (!this.data || !this.view) return;
    this.clamp();
    this.base.dataset.range = `${this.view.from},${this.view.to}`;
    if (!this.isPainted) return this.paint();
    if (!this.frame) this.frame = requestAnimationFrame(() => { this.frame = 0; this.paint(); });
  },

  paint() {
    if (!this.data) return;
    this.isPainted = true;
    const begin = performance.now();
    const context = this.base.getContext("2d");
    const { left, width, height } = this.plot;
    if (this.image?.width !== width || this.image?.height !== height) this.image = context.createImageData(width, height);
    const named = paintBars(this.image, this.data, this.view, painter(this.data, this.mode));
    context.clearRect(0, 0, this.base.width, this.base.height);
    context.putImageData(this.image, left, 0);
    this.paintNames(context, named);
    this.paintRows(context);
    this.paintTime(context);
    this.paintHover();
    this.base.dataset.drawMs = (performance.now() - begin).toFixed(1);
  },

  font(px, weight = 400) { return `${weight} ${px * this.ratio}px system-ui, sans-serif`; },

  paintNames(context, named) {
    const scale = this.plot.width / (this.view.to - this.view.from);
    context.save();
    context.font = this.font(10.5, 500);
    context.textBaseline = "middle";
    for (const i of named.slice(0, LABELS_MAX)) {
      const job = this.data.job[i];
      const box = spanBox(this.data, this.view, scale, i);
      const x0 = Math.max(0, box.left) + 5 * this.ratio, x1 = Math.min(this.plot.width, box.right);
      const text = job < 0 ? "down" : this.data.names[job];
      if (x1 - x0 < 40 * this.ratio || box.bottom - box.top < 12 * this.ratio) continue;
      const [r, g, b] = painter(this.data, this.mode)(i);
      context.fillStyle = r * 0.3 + g * 0.59 + b * 0.11 > 140 ? "#101418" : "#fff";
      context.save();
      context.beginPath();
      context.rect(this.plot.left + x0, box.top, x1 - x0 - 3, box.bottom - box.top);
      context.clip();
      context.fillText(text.slice(0, 60), this.plot.left + x0, (Math.max(0, box.top) + Math.min(this.plot.height, box.bottom)) / 2);
      context.restore();
    }
    context.restore();
  },

  paintRows(context) {
    const { machines, places } = this.data, { view, ratio } = this;
    context.save();
    context.beginPath();
    context.rect(0, 0, this.plot.left, this.plot.height);
    context.clip();
    context.textBaseline = "middle";
    const first = Math.max(0, Math.floor(view.top));
    const last = Math.min(machines.length, Math.ceil(view.top + this.plot.height / view.rowHeight));
    for (let from = first; from < last;) {
      let to = from;
      while (to < last && machines[to].place === machines[from].place) to++;
      const top = Math.max(0, rowTop(view, from)), bottom = Math.min(this.plot.height, rowTop(view, to));
      const x = 0;
      context.fillStyle = css("--line");
      if (from > first || rowTop(view, from) > 0) context.fillRect(x, Math.round(top), this.plot.left, ratio);
      context.fillStyle = css("--text");
      context.font = this.font(11.5, 600);
      const [name] = places[machines[from].place] ?? [""];
      if (bottom - top >= 13 * ratio) context.fillText(name.slice(0, 14), 0, Math.min((top + bottom) / 2, bottom - 7 * ratio), 46 * ratio);
      context.fillStyle = css("--quiet");
      context.font = this.font(11);
      context.textAlign = "right";
      for (let row = from; row < to && view.rowHeight >= 11 * ratio; row++) {
        context.fillText(machines[row].name.slice(0, 16), this.plot.left - 8 * ratio, rowTop(view, row) + view.rowHeight * 0.46, 54 * ratio);
      }
      context.textAlign = "left";
      from = to;
    }
    context.restore();
  },

  paintTime(context) {
    const { from, to } = this.view, { left, width, height } = this.plot, ratio = this.ratio;
    const room = (to - from) * 90 * ratio / width;
    const step = TIME_STEPS.find((s) => s >= room) ?? TIME_STEPS[TIME_STEPS.length - 1];
    context.font = this.font(11.5);
    context.textBaseline = "top";
    context.textAlign = "center";
    for (let n = Math.ceil(from / step); n * step <= to; n++) {
      const x = left + (n * step - from) * width / (to - from);
      context.fillStyle = css("--line");
      context.fillRect(Math.round(x), height, ratio, 5 * ratio);
      context.fillStyle = css("--quiet");
      const text = tick(n * step, step), half = context.measureText(text).width / 2;
      context.fillText(text, Math.min(Math.max(x, left + half), left + width - half), height + 8 * ratio);
    }
    context.textAlign = "left";
  },

  // All bars of the job under the pointer, so that a gang is seen as one.
  paintHover() {
    const context = this.over.getContext("2d");
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (this.hover < 0 || !this.data) return;
    const { data, view, plot } = this, scale = plot.width / (view.to - view.from), job = data.job[this.hover];
    context.save();
    context.beginPath();
    context.rect(plot.left, 0, plot.width, plot.height);
    context.clip();
    // Two strokes, one of which stands out from any bar.
    const strokes = [[4, css("--card")], [1.8, css("--text")]];
    for (let i = 0; i < data.count; i++) {
      if (job < 0 ? i !== this.hover : data.job[i] !== job) continue;
      const box = spanBox(data, view, scale, i);
      for (const [width, colour] of strokes) {
        context.lineWidth = width * this.ratio;
        context.strokeStyle = colour;
        context.strokeRect(plot.left + box.left, box.top, Math.max(2, box.right - box.left), box.bottom - box.top);
      }
    }
    context.restore();
  },

  // The bar at a place of the canvas in device pixels, or −1. Thin bars are caught from 2 pixels off.
  find(x, y) {
    const { data, view, plot } = this;
    const row = Math.floor(view.top + y / view.rowHeight);
    if (x < plot.left || y < 0 || y > plot.height || !data.tracksOfRow[row]) return -1;
    const scale = plot.width / (view.to - view.from), near = 2 / scale;
    const t = view.from + (x - plot.left) / scale;
    let found = -1, nearest = Infinity;
    for (const track of data.tracksOfRow[row]) {
      const begin = bisect(track.from, track.to, (i) => data.end[i] > t - near);
      for (let i = begin; i < track.to && data.start[i] < t + near; i++) {
        const box = spanBox(data, view, scale, i);
        if (y < box.top - 1 || y > box.bottom + 1) continue;
        const off = Math.max(data.start[i] - t, t - data.end[i], 0);
        if (off < nearest) [found, nearest] = [i, off];
      }
    }
    return found;
  },
};
