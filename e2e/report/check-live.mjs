// Opens the live page of a scheduler and checks what there is to see.
//   node check-live.mjs URL RUNNING WAITING
// RUNNING and WAITING are ids of jobs that the page must show as such.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [url, running, waiting] = process.argv.slice(2);
if (!waiting) {
  console.error("usage: node check-live.mjs URL RUNNING WAITING");
  process.exit(2);
}
let failed = false;
const check = (name, ok, detail = "") => {
  console.log(`${ok ? "ok  " : "FAIL"} ${name}${detail === "" ? "" : `: ${detail}`}`);
  if (!ok) failed = true;
};

const profile = await mkdtemp(join(tmpdir(), "hither-live-"));
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
  await page.waitForSelector(`tr[data-job="${waiting}"]`, { timeout: 30_000 });
  const racks = await page.$$eval(".rack h3", (all) => all.map((h) => h.textContent));
  check("racks by name", racks.join() === "rack0,rack1", racks.join());
  const count = (what) => page.$$eval(what, (all) => all.length);
  check("every GPU is drawn", await count(".rack .gpu") === 8, await count(".rack .gpu"));
  check("GPUs of others are grey", await count(".rack .gpu.foreign") === 4, await count(".rack .gpu.foreign"));
  check("the running job's GPU has its colour", await count(`.rack .gpu.taken[title="job ${running}"]`) === 1);
  const cells = (job) => page.$$eval(`tr[data-job="${job}"] td`, (all) => all.map((td) => td.textContent));
  const row = await cells(waiting);
  check("the waiting job says why", row[3] === "waiting" && row[8].includes("holds out for one machine"), row.join(" | "));
  const timer = () => page.$eval(`tr[data-job="${waiting}"] td.timer`, (td) => td.textContent);
  const before = await timer();
  check("its timer is shown", /^\d+:\d\d$/.test(before), before);
  await page.waitForFunction((old) => document.querySelector("td.timer:not(:empty)")?.textContent !== old, before, { timeout: 20_000 });
  check("and runs", true, await timer());
  check("the running job runs", (await cells(running))[3] === "running");
  const log = await page.$$eval("#log tbody tr", (all) => all.map((tr) => tr.textContent));
  check("decisions are listed", log.some((text) => text.includes("starts on")), `${log.length} rows`);
  check("nothing is wrong on the console", errors.length === 0, errors.join(" | "));
} finally {
  await browser.close();
  await rm(profile, { recursive: true, force: true });
}
process.exit(failed ? 1 : 0);
