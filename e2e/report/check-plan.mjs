// Opens the page of a plan as a reader would and checks what there is to see.
//   node check-plan.mjs FILE.html [--screenshot out.png] [--dark]
// One line a check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: { screenshot: { type: "string" }, dark: { type: "boolean" } },
});
if (positionals.length !== 1) {
  console.error("usage: node check-plan.mjs FILE.html [--screenshot out.png] [--dark]");
  process.exit(2);
}
const url = pathToFileURL(resolve(positionals[0])).href;

let failed = false;
function check(name, ok, detail = "") {
  console.log(`${ok ? "ok  " : "FAIL"} ${name}${detail === "" ? "" : `: ${detail}`}`);
  if (!ok) failed = true;
}

// Distinct colours on a canvas, sampled; one colour alone is a blank.
const colours = (canvas) => {
  const { width, height } = canvas;
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const pixels = new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer);
  return new Set(pixels.filter((_, i) => i % 3 === 0)).size;
};

const profile = await mkdtemp(join(tmpdir(), "hither-plan-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
  viewport: { width: 1400, height: 900 },
  colorScheme: flags.dark ? "dark" : "light",
});
try {
  const errors = [], requests = [];
  browser.on("request", (request) => { if (request.url() !== url) requests.push(request.url()); });
  const page = await browser.newPage();
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url, { timeout: 60_000 });
  await page.waitForSelector("#plot-hotness canvas", { timeout: 60_000 });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
  if (flags.screenshot) await page.screenshot({ path: flags.screenshot, fullPage: true });
  const curves = Number(await page.$eval("#plot-hotness", (plot) => plot.dataset.visible));
  const keys = await page.$$eval("#plot-hotness .keys span", (all) => all.length);
  check("every curve has a key", curves > 0 && curves === keys, `${curves} curves`);
  check("the curves are drawn", await page.$eval("#plot-hotness canvas", colours) >= 4);
  const bars = await page.$$eval(".levers .line", (all) => all.map((bar) => bar.getBoundingClientRect().width));
  check("bars have lengths", bars.length > 0 && bars.every((width) => width >= 1), `${bars.length} bars`);
  const rows = await page.$$eval("#choices tbody tr", (all) => all.length);
  check("every table has a row", rows > 0, `${rows} rows`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
  await page.hover("#plot-hotness .u-over");
  check("the cursor tells shares", /hottest rows/.test(await page.textContent("#tip")));
  check("no console or page errors", errors.length === 0, errors.join(" | "));
  check("no request but the file itself", requests.length === 0, requests.join(" "));
} catch (error) {
  check("ran to its end", false, String(error));
} finally {
  await browser.close();
  await rm(profile, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
