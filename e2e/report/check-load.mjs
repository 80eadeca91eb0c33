// Opens the page of a load measurement as a reader would and checks what there is to see.
//   node check-load.mjs FILE.html [--screenshot out.png] [--dark]
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { args, check, colours, visit } from "./browser.mjs";

await visit(args("check-load.mjs"), "body[data-ready=true]", async (page) => {
  for (const id of ["plot-latency", "plot-rate"]) {
    const lines = Number(await page.$eval(`#${id}`, (plot) => plot.dataset.visible));
    const keys = await page.$$eval(`#${id} .keys span`, (all) => all.length);
    check(`${id}: every line has a key`, lines > 0 && lines === keys, `${lines} lines`);
    check(`${id}: lines are drawn`, await page.$eval(`#${id} canvas`, colours) >= 4);
  }
  const head = await page.$$eval("#levels thead th", (all) => all.map((th) => th.textContent));
  check("the table has percentiles", ["p50 ms", "p99 ms", "p99.9 ms"].every((name) => head.includes(name)), head.join(" | "));
  const rows = await page.$$eval("#levels tbody tr", (all) => all.length);
  check("every level has a row", rows > 0, `${rows} rows`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
  await page.hover("#plot-latency .u-over");
  check("the cursor tells latencies", /ms/.test(await page.textContent("#tip")));
});
