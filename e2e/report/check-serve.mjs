// Opens the page of an inference server's metrics port and checks what there is to see.
//   node check-serve.mjs URL MODEL
// The server must answer requests for MODEL meanwhile.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [url, model] = process.argv.slice(2);
if (!model) {
  console.error("usage: node check-serve.mjs URL MODEL");
  process.exit(2);
}
let failed = false;
const check = (name, ok, detail = "") => {
  console.log(`${ok ? "ok  " : "FAIL"} ${name}${detail === "" ? "" : `: ${detail}`}`);
  if (!ok) failed = true;
};

const profile = await mkdtemp(join(tmpdir(), "hither-serve-"));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: "/usr/bin/chromium",
  headless: true,
  args: ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"],
  viewport: { width: 1200, height: 900 },
});
try {
  const page = await browser.newPage();
  const errors = [];
  page.on("console", (message) => { if (message.type() === "error") errors.push(message.text()); });
  page.on("pageerror", (error) => errors.push(String(error)));
  await page.goto(url, { timeout: 60_000 });
  await page.waitForFunction(() => Number(document.body.dataset.looks) >= 3, null, { timeout: 60_000 });
  const models = await page.$$eval("section[data-model]", (all) => all.map((s) => s.dataset.model));
  check("the model has a section", models.includes(model), models.join());
  const figure = (card) => page.$eval(`[data-card="${card}"] .figure`, (node) => node.textContent);
  const number = (text) => Number(text.replace(/[^\d.]/g, ""));
  for (const card of ["throughput", "latency", "time", "stages"]) {
    const text = await figure(card);
    check(`${card} is a number above zero`, number(text) > 0, text);
  }
  check("the queue is told", /requests wait/.test(await figure("queue")), await figure("queue"));
  check("the share of hot rows is told", /of lookups/.test(await figure("hot")), await figure("hot"));
  const widths = await page.$$eval('[data-card="time"] .bar span', (all) => all.map((part) => part.getBoundingClientRect().width));
  check("the bar of times has parts", widths.length === 4 && widths.some((width) => width > 1), widths.join());
  const stages = await page.$$eval('[data-card="stages"] .keys > span', (all) => all.map((key) => key.textContent));
  check("stages have names", stages.some((text) => /tables/.test(text)), stages.join(" | "));
  const points = await page.$eval('[data-card="throughput"] polyline', (shape) => shape.getAttribute("points").trim().split(" ").length);
  check("the line grows", points >= 2, `${points} points`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
  check("nothing is wrong on the console", errors.length === 0, errors.join(" | "));
} finally {
  await browser.close();
  await rm(profile, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
