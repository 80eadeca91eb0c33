// The bars of the schedule as pixels. Each bar adds its colour to the pixels in proportion to how
// much of them it covers, so a pixel under a thousand short jobs shows their mean, and the cost of a
// frame is bounded by the bars and pixels in view. A canvas rectangle per bar would not be.

// The columns of a run, indexed by row and lane.
async function loadSchedule(run) {
  const [columns, numbers, names, models] = await Promise.all([
    unpack(run.spans), unpack(run.jobs), unpackLines(run.names), unpackLines(run.models),
  ]);
  const [rows, lanes, starts, lengths, gpus, jobs, tiers] = columns;
  const start = Float64Array.from(starts, (ms) => ms / 1000);
  const machines = DATA.groups[run.group].machines;
  // A track is the spans of one row and lane: in time order and without overlap.
  const tracks = [];
  const tracksOfRow = machines.map(() => []);
  for (let i = 0; i < rows.length; i++) {
    if (i === 0 || rows[i] !== rows[i - 1] || lanes[i] !== lanes[i - 1]) {
      const track = { row: rows[i], lane: lanes[i], from: i, to: i };
      tracks.push(track);
      tracksOfRow[track.row].push(track);
    }
    tracks[tracks.length - 1].to = i + 1;
  }
  return {
    machines, places: DATA.groups[run.group].places, tracksOfRow, names, models,
    count: rows.length, row: rows, lane: lanes, start,
    end: start.map((s, i) => s + lengths[i] / 1000),
    gpus, job: jobs, tier: tiers,
    jobGpus: numbers[0], jobModel: numbers[1], jobSubmit: numbers[2], jobFinish: numbers[3],
  };
}

// Lighter and darker neighbours of each colour: enough that adjacent jobs seldom look alike.
function jobPalette() {
  const towards = (from, to, share) => from.map((v, i) => v + (to[i] - v) * share);
  const base = [0, 1, 2, 3, 4, 5, 6, 7].map((i) => rgb(css(`--c${i}`)));
  return [0, 0.3, -0.3].flatMap((shade) => base.map((c) => shade < 0 ? towards(c, [0, 0, 0], -shade) : towards(c, [255, 255, 255], shade)));
}

function painter(data, mode) {
  const tiers = [0, 1, 2, 3, 4, 5].map((t) => rgb(css(`--tier-${t}`)));
  const palette = jobPalette();
  const down = rgb(css("--down"));
  return (i) => {
    const job = data.job[i];
    if (job < 0) return down;
    if (mode === "tier") return tiers[data.tier[i]];
    if (mode === "model") return palette[data.jobModel[job] % palette.length];
    return palette[(Math.imul(job + 1, 2654435761) >>> 8) % palette.length];
  };
}

// Where a machine's row and a span stand, in device pixels from the top of the plot.
function rowTop(view, row) { return (row - view.top) * view.rowHeight; }

function spanBox(data, view, scale, i) {
  const lanes = Math.max(1, data.machines[data.row[i]].gpus);
  // Gaps between machines and GPUs appear where there is room for them.
  const gap = view.rowHeight >= 6 ? Math.min(3, view.rowHeight * 0.12) : 0;
  const lane = (view.rowHeight - gap) / lanes;
  const top = rowTop(view, data.row[i]) + lane * data.lane[i];
  const left = (data.start[i] - view.from) * scale;
  const right = (data.end[i] - view.from) * scale;
  return {
    left, right: right - left > 4 ? right - 1 : right,
    top, bottom: top + lane * data.gpus[i] - (lane >= 5 ? 1 : 0),
  };
}

// Adds one bar; `sums` holds the difference to the background, three floats a pixel.
function addBar(sums, background, width, height, box, colour) {
  const x0 = Math.max(0, box.left), x1 = Math.min(width, box.right);
  const y0 = Math.max(0, box.top), y1 = Math.min(height, box.bottom);
  if (x0 >= x1 || y0 >= y1) return;
  for (let y = Math.floor(y0); y < y1; y++) {
    const tall = Math.min(y + 1, y1) - Math.max(y, y0);
    const ground = background[y];
    const r = colour[0] - ground[0], g = colour[1] - ground[1], b = colour[2] - ground[2];
    for (let x = Math.floor(x0); x < x1; x++) {
      const share = tall * (Math.min(x + 1, x1) - Math.max(x, x0));
      const at = (y * width + x) * 3;
      sums[at] += r * share;
      sums[at + 1] += g * share;
      sums[at + 2] += b * share;
    }
  }
}

// Background colour of each pixel line: racks, or whatever holds machines, alternate, gaps between machines stay empty.
function grounds(data, view, height) {
  const [card, odd, even] = [css("--card"), css("--lane"), css("--lane-alt")].map(rgb);
  const gap = view.rowHeight >= 6 ? Math.min(3, view.rowHeight * 0.12) : 0;
  return Array.from({ length: height }, (_, y) => {
    const at = view.top + (y + 0.5) / view.rowHeight;
    const row = Math.floor(at);
    if (row < 0 || row >= data.machines.length) return card;
    if ((at - row) * view.rowHeight > view.rowHeight - gap) return card;
    return data.machines[row].place % 2 ? odd : even;
  });
}

// `view`: {from, to} in seconds, {top, rowHeight} in rows and device pixels. Returns the spans wide
// and high enough to carry a name.
function paintBars(image, data, view, colourOf) {
  const { width, height } = image;
  const scale = width / (view.to - view.from);
  const background = grounds(data, view, height);
  const sums = paintBars.sums?.length === width * height * 3 ? paintBars.sums.fill(0) : new Float32Array(width * height * 3);
  paintBars.sums = sums;
  const named = [];
  const first = Math.max(0, Math.floor(view.top));
  const last = Math.min(data.machines.length, Math.ceil(view.top + height / view.rowHeight));
  for (let row = first; row < last; row++) {
    for (const track of data.tracksOfRow[row]) {
      const begin = bisect(track.from, track.to, (i) => data.end[i] > view.from);
      for (let i = begin; i < track.to && data.start[i] < view.to; i++) {
        const box = spanBox(data, view, scale, i);
        addBar(sums, background, width, height, box, colourOf(i));
        if (box.right - box.left > 60 && box.bottom - box.top > 14) named.push(i);
      }
    }
  }
  const pixels = new Uint32Array(image.data.buffer);
  for (let y = 0, p = 0; y < height; y++) {
    const [r, g, b] = background[y];
    for (let x = 0; x < width; x++, p++) {
      const at = p * 3;
      // Little-endian RGBA, as on every machine that runs a browser.
      pixels[p] = 0xff000000 | ((b + sums[at + 2] + 0.5) << 16) | ((g + sums[at + 1] + 0.5) << 8) | (r + sums[at] + 0.5);
    }
  }
  return named;
}
