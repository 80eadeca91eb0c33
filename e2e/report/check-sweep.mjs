// Opens the page of a sweep as a reader would and checks what there is to see.
//   node check-sweep.mjs FILE.html [--screenshot out.png] [--dark] [--narrow]
// --narrow: in a window as wide as a phone.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { args, check, colours, visit } from "./browser.mjs";

const asked = args("check-sweep.mjs", { narrow: { type: "boolean" } });
const ink = (page, id) => page.$eval(`#plot-${id} canvas`, (canvas) => canvas.toDataURL());
const visible = (page) => page.$$eval(".plot", (plots) => plots.map((p) => Number(p.dataset.visible)));

async function checkFilter(page, policies) {
  const before = await ink(page, 0);
  await page.click(".chip[data-run='0']");
  check("a chip shows one policy", (await visible(page)).every((n) => n === 1) && await ink(page, 0) !== before);
  const maps = await page.$$eval(".map", (all) => all.length);
  check("and its map alone", maps === (await page.$("#map") ? 1 : 0), `${maps} maps`);
  await page.click(".chip.all");
  check("all are shown again", (await visible(page)).every((n) => n === policies) && await ink(page, 0) === before);
}

async function checkSlice(page) {
  const before = await ink(page, 0);
  const picks = await page.$$(".picks select");
  check("the grid can be cut along each axis", picks.length > 1, `${picks.length} selects`);
  await page.selectOption(".picks label:nth-child(2) select", "0");
  const elsewhere = await ink(page, 0);
  check("another value of the other axis draws other lines", elsewhere !== before);
  const current = await page.$eval(".picks label:nth-child(1) select", (select) => select.value);
  await page.selectOption(".picks label:nth-child(1) select", current === "1" ? "0" : "1");
  check("so does another axis", await ink(page, 0) !== elsewhere);
}

async function checkMetric(page) {
  const shown = () => page.$$eval(".figures", (all) => all.filter((t) => !t.hidden).map((t) => t.querySelector("h3").textContent));
  const first = await shown();
  check("one table is shown", first.length === 1, first.join(" | "));
  await page.selectOption("#figures .metric", "3");
  const second = await shown();
  check("another metric shows another table", second.length === 1 && second[0] !== first[0], second.join(" | "));
}

await visit(asked, "body[data-ready]", async (page) => {
  if (asked.flags.narrow) await page.setViewportSize({ width: 420, height: 900 });
  const { runs, axes, metrics } = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent));
  check("there are metrics", metrics.length > 2, metrics.map((m) => m.name).join(", "));
  for (const i of metrics.keys()) {
    const count = await page.$eval(`#plot-${i} canvas`, colours);
    check(`#plot-${i} is drawn`, count >= 4, `${count} colours`);
  }
  check("every policy has a line", (await visible(page)).every((n) => n === runs.length));
  const text = await page.evaluate(() => document.body.innerText);
  check("no figure is missing its number", !/\b(NaN|undefined|null|Infinity)\b/.test(text));
  const heat = await page.$$eval(".figures .heat", (cells) => cells.map((c) => getComputedStyle(c).backgroundColor));
  check("cells are coloured by distance to the best", runs.length === 1 || new Set(heat).size > 2, `${new Set(heat).size} colours`);
  if (axes.length > 1) check("every policy has a map", (await page.$$(".map")).length === runs.length);
  if (runs.length > 1) await checkFilter(page, runs.length);
  if (axes.length > 1) await checkSlice(page);
  await checkMetric(page);
  await page.hover("#plot-0 .u-over");
  const told = await page.textContent("#tip");
  check("the cursor tells the figures", axes.some((axis) => told.startsWith(axis.key)) && told.includes(runs[0].label), told);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
});
