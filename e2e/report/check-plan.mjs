// Opens the page of a plan as a reader would and checks what there is to see.
//   node check-plan.mjs FILE.html [--screenshot out.png] [--dark]
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { args, check, colours, visit } from "./browser.mjs";

await visit(args("check-plan.mjs"), "#plot-hotness canvas", async (page) => {
  const curves = Number(await page.$eval("#plot-hotness", (plot) => plot.dataset.visible));
  const keys = await page.$$eval("#plot-hotness .keys span", (all) => all.length);
  check("every curve has a key", curves > 0 && curves === keys, `${curves} curves`);
  check("the curves are drawn", await page.$eval("#plot-hotness canvas", colours) >= 4);
  const bars = await page.$$eval(".levers .line", (all) => all.map((bar) => bar.getBoundingClientRect().width));
  check("bars have lengths", bars.length > 0 && bars.every((width) => width >= 1), `${bars.length} bars`);
  check("the plan's levers are marked", await page.$$eval(".levers .chosen", (all) => all.length) === 1);
  const [line, bar] = await page.$eval(".levers", (levers) => {
    const pair = levers.querySelector(".pair");
    return [parseFloat(getComputedStyle(pair, "::after").left), pair.querySelector(".measured").getBoundingClientRect().width];
  });
  check("the line at 1× is where no lever ends", Math.abs(line - bar) < 1.5, `${line} and ${bar} px`);
  check("there is a next command", /hither /.test(await page.textContent("#next code")));
  const rows = await page.$$eval("#choices tbody tr", (all) => all.length);
  check("every table has a row", rows > 0, `${rows} rows`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
  await page.hover("#plot-hotness .u-over");
  check("the cursor tells shares", /hottest rows/.test(await page.textContent("#tip")));
});
