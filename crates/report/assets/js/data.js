// The page's data: curves as JSON, bars of the schedule as packed blocks that are read when needed.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;

const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];

// Every string of a trace enters the page here, as text and never as markup.
function el(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// An entry of a legend.
function keyed(colour, text) {
  const item = el("span"), key = el("i", "key");
  key.style.background = colour;
  item.append(key, text);
  return item;
}

async function inflate(block) {
  const text = atob(document.getElementById(`block-${block}`).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// Columns of zigzag varint differences, as src/pack.rs writes them.
async function unpack(block) {
  const bytes = await inflate(block);
  let at = 0;
  const varint = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte & 0x80);
    return value;
  };
  const columns = [];
  for (let left = varint(); left > 0; left--) {
    const column = new Float64Array(varint());
    let value = 0;
    for (let i = 0; i < column.length; i++) {
      const coded = varint();
      value += coded % 2 ? -(coded + 1) / 2 : coded / 2;
      column[i] = value;
    }
    columns.push(column);
  }
  return columns;
}

async function unpackLines(block) {
  return new TextDecoder().decode(await inflate(block)).split("\n");
}

// First index from `lo` to `hi` at which `test` holds; it must stay true from there.
function bisect(lo, hi, test) {
  while (lo < hi) {
    const mid = (lo + hi) >>> 1;
    if (test(mid)) hi = mid; else lo = mid + 1;
  }
  return lo;
}

const MINUTE = 60, HOUR = 3600, DAY = 86400;

function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

function duration(s) {
  if (s == null || !isFinite(s)) return "–";
  const size = Math.abs(s);
  if (size === 0) return "0 s";
  if (size < 1) return `${digits(s * 1000)} ms`;
  if (size < 2 * MINUTE) return `${digits(s)} s`;
  if (size < 2 * HOUR) return `${digits(s / MINUTE)} min`;
  if (size < 3 * DAY) return `${digits(s / HOUR)} h`;
  return `${digits(s / DAY)} d`;
}

// A point in time to the second: `3 d 04:05:06`.
function clock(s) {
  const sign = s < 0 ? "−" : "";
  const whole = Math.round(Math.abs(s));
  const two = (n) => String(Math.floor(n)).padStart(2, "0");
  const days = Math.floor(whole / DAY);
  const time = `${two((whole % DAY) / HOUR)}:${two((whole % HOUR) / MINUTE)}:${two(whole % MINUTE)}`;
  return sign + (days ? `${days} d ${time}` : time);
}

const percent = (share) => share == null ? "–" : `${(share * 100).toFixed(1)} %`;

// Steps between ticks that people count time in, in rising order: the charts search them by halving. Short steps are
// parsed, because products such as 5 * 10 ** -6 are not the nearest number.
const TIME_STEPS = [
  ...[-6, -5, -4, -3, -2, -1].flatMap((power) => [1, 2, 5].map((digit) => Number(`${digit}e${power}`))),
  1, 2, 5, 10, 15, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 5 * DAY, 10 * DAY, 20 * DAY, 50 * DAY,
  100 * DAY, 200 * DAY, 500 * DAY, 1000 * DAY, 5000 * DAY, 20000 * DAY,
];

function tick(s, step) {
  const round = (value) => String(+value.toFixed(3));
  if (s === 0) return "0";
  if (step < 1) return s >= MINUTE ? `${round(s)} s` : duration(s);
  if (step >= DAY) return `${round(s / DAY)} d`;
  if (step >= HOUR) return `${round(s / HOUR)} h`;
  if (step >= MINUTE) return s >= DAY ? clock(s) : `${round(s / MINUTE)} min`;
  return s >= HOUR ? clock(s) : `${round(s)} s`;
}

// Colours live in the style sheet, where the dark theme changes them.
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const PALETTE = 8;
const colour = (i) => css(`--c${i % PALETTE}`);
const DASHES = [undefined, [8, 4], [2, 3], [10, 3, 2, 3]];
const runColour = (run) => colour(RUNS[run].colour);
const runDash = (run) => DASHES[RUNS[run].dash % DASHES.length];

function rgb(colour) {
  const probe = document.createElement("canvas").getContext("2d");
  probe.fillStyle = colour;
  const value = parseInt(probe.fillStyle.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

// Colours of an ordered quantity, from few to many. Policies have none of them.
function ramp(i, n) {
  const [few, many] = [rgb(css("--ramp-few")), rgb(css("--ramp-many"))];
  const share = n > 1 ? i / (n - 1) : 1;
  const hex = (v) => Math.round(v).toString(16).padStart(2, "0");
  return `#${few.map((v, at) => hex(v + (many[at] - v) * share)).join("")}`;
}

const tip = {
  node: $("#tip"),
  // `rows`: [label, value, colour?, focused?]
  show(x, y, head, rows) {
    const pairs = el("div", "pairs");
    for (const [label, value, colour, focused] of rows) {
      const name = el("span", focused ? "focus" : "");
      if (colour) {
        const key = el("i", "key");
        key.style.background = colour;
        name.append(key);
      }
      name.append(el("span", "", label));
      pairs.append(name, el("span", focused ? "focus" : "", value));
    }
    this.node.replaceChildren(el("div", "head", head), pairs);
    this.node.hidden = false;
    const { width, height } = this.node.getBoundingClientRect();
    const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
    const top = Math.min(y + 14, innerHeight - height - 8);
    this.node.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  },
  hide() { this.node.hidden = true; },
};
