// Opens a page of training runs as a reader would and checks what there is to see.
//   node check-train.mjs FILE.html [--screenshot out.png] [--dark] [--bare] [--none]
// --bare: a mode without bytes is all there is to some plots, which must say so.
// --none: there are no runs at all.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { args, check, colours, visit } from "./browser.mjs";

const asked = args("check-train.mjs", { bare: { type: "boolean" }, none: { type: "boolean" } });
const SCORES = ["rounds", "bytes", "seconds"];
const OTHERS = ["loss", "steps", "kept", "gain"];

const ink = (page, id) => page.$eval(`#plot-${id} canvas`, (canvas) => canvas.toDataURL());
const visible = (page) => page.$$eval(".plot", (plots) => Object.fromEntries(plots.map((p) => [p.id.slice(5), Number(p.dataset.visible)])));

async function checkWords(page) {
  const text = await page.evaluate(() => document.body.innerText);
  const wrong = text.match(/\b(NaN|undefined|null|Infinity)\b/);
  check("no figure is missing its number", !wrong, wrong ? text.slice(wrong.index - 40, wrong.index + 20) : "");
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
}

// Ink between a plot and the name of its x axis: labels of ticks. Read from a copy, as in `colours`.
const tickInk = (canvas) => {
  const { width, height } = canvas, ratio = devicePixelRatio;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const strip = copy.getImageData(0, height - 40 * ratio, width, 14 * ratio).data;
  return strip.filter((value, i) => i % 4 === 3 && value > 0).length;
};

// Every plot has curves, or says why it has none.
async function checkPlots(page, modes) {
  const shown = await visible(page);
  for (const id of [...SCORES, ...OTHERS.filter((id) => id in shown)]) {
    if (shown[id] > 0) {
      const count = await page.$eval(`#plot-${id} canvas`, colours);
      check(`#plot-${id} is drawn`, count >= 3 && shown[id] <= modes, `${shown[id]} curves, ${count} colours`);
    } else {
      const told = await page.$eval(`#plot-${id} .empty`, (p) => p.checkVisibility() ? p.textContent : "").catch(() => "");
      check(`#plot-${id} says why it is empty`, told !== "" && asked.flags.bare, told);
    }
  }
}

// At any width: the charts choose other steps between ticks.
async function checkTicks(page) {
  const { width, height } = page.viewportSize();
  for (const other of [1100, 1200, 1300, 1400]) {
    await page.setViewportSize({ width: other, height });
    await page.waitForTimeout(100);
    const shown = await visible(page);
    for (const id of SCORES.filter((id) => shown[id] > 0)) {
      const labels = await page.$eval(`#plot-${id} canvas`, tickInk);
      check(`the x axis of #plot-${id} has labels at ${other} pixels`, labels > 20, `${labels} pixels of ink`);
    }
  }
  await page.setViewportSize({ width, height });
}

async function checkRange(page) {
  const before = await ink(page, "rounds");
  await page.click("#scores .switch label:has(input[value=whole])");
  check("the whole range draws the first rounds too", await ink(page, "rounds") !== before);
  await page.click("#scores .switch label:has(input[value=close])");
  check("and the close-up is as before", await ink(page, "rounds") === before);
}

async function checkToggle(page) {
  const before = await Promise.all(SCORES.map((id) => ink(page, id)));
  const loss = await ink(page, "loss");
  await page.click("#scores .switch label:has(input[value=valid])");
  const valid = await Promise.all(SCORES.map((id) => ink(page, id)));
  check("the switch shows validation scores", valid.every((image, i) => image !== before[i]));
  check("and leaves the loss alone", await ink(page, "loss") === loss);
  await page.click("#scores .switch label:has(input[value=test])");
  const again = await Promise.all(SCORES.map((id) => ink(page, id)));
  check("and back", again.every((image, i) => image === before[i]));
}

async function checkFilter(page, modes) {
  const drawn = await ink(page, "rounds");
  for (const selector of [".policy", ".chip:not(.all)"].slice(0, modes > 1 ? 2 : 1)) {
    const button = (await page.$$(selector)).at(-1);
    await button.click();
    const one = await visible(page);
    check(`${selector} shows one mode`, one.rounds === 1 && Object.values(one).every((n) => n <= 1), JSON.stringify(one));
    if (modes > 1) check("the plots are drawn anew", await ink(page, "rounds") !== drawn);
    await checkWords(page);
    await button.click();
    check("second click shows all", (await visible(page)).rounds === modes);
  }
}

async function checkCursor(page) {
  for (const [id, words] of [["rounds", /rounds? \d.*%/], ["bytes", /after [\d.]+ .?B.*%/], ["seconds", /after [\d.]+ (ms|s|min|h).*%/], ["kept", /rounds? \d.*%/]]) {
    if (!await page.$(`#plot-${id}`)) continue;
    await page.hover(`#plot-${id} .u-over`);
    const told = (await page.textContent("#tip")).replace(/\s+/g, " ");
    check(`the cursor tells the figures of #plot-${id}`, words.test(told) && !/NaN|undefined|null/.test(told), told.slice(0, 80));
  }
}

async function checkSort(page) {
  await page.click("#comparison .sort[data-column='2']");
  const values = await page.$$eval("#comparison tbody tr td:nth-child(3)", (all) => all.map((td) => Number(td.dataset.value)));
  check("a heading sorts, best first", values.every((v, i) => i === 0 || values[i - 1] >= v), values.map((v) => v.toFixed(3)).join(" "));
}

await visit(asked, asked.flags.none ? "main" : "body[data-ready]", async (page) => {
  await checkWords(page);
  if (asked.flags.none) return;
  const modes = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent).runs.length);
  const rows = await page.$$eval("#comparison tbody tr", (all) => all.length);
  check("every mode has a row", rows > 0 && rows === modes, `${rows} rows`);
  await checkPlots(page, modes);
  if (asked.flags.bare) {
    await page.click("#comparison .policy[data-run='0']");
    return checkPlots(page, modes);
  }
  await checkTicks(page);
  const rounds = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent).rounds.length);
  if (rounds > 20) await checkRange(page);
  await checkToggle(page);
  await checkFilter(page, modes);
  await checkCursor(page);
  await checkSort(page);
});
