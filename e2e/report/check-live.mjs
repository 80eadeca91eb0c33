// Opens the live page of a scheduler and checks what there is to see.
//   node check-live.mjs URL RUNNING WAITING
// RUNNING and WAITING are ids of jobs that the page must show as such.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { check, served, visit } from "./browser.mjs";

const asked = served("check-live.mjs", ["RUNNING", "WAITING"]);
const [running, waiting] = asked.words;
await visit(asked, `tr[data-job="${waiting}"]`, async (page) => {
  const racks = await page.$$eval(".rack h3", (all) => all.map((h) => h.textContent));
  check("racks by name", racks.join() === "rack0,rack1", racks.join());
  const count = (what) => page.$$eval(what, (all) => all.length);
  check("every GPU is drawn", await count(".rack .gpu") === 8, await count(".rack .gpu"));
  check("GPUs of others are grey", await count(".rack .gpu.foreign") === 4, await count(".rack .gpu.foreign"));
  check("the running job's GPU has its colour", await count(`.rack .gpu.taken[title="job ${running}"]`) === 1);
  const cells = (job) => page.$$eval(`tr[data-job="${job}"] td`, (all) => all.map((td) => td.textContent));
  const row = await cells(waiting);
  check("the waiting job says why", row[3] === "waiting" && row[8].includes("declines one rack"), row.join(" | "));
  const timer = () => page.$eval(`tr[data-job="${waiting}"] td.timer`, (td) => td.textContent);
  const before = await timer();
  check("its timer is shown", /^\d+:\d\d$/.test(before), before);
  await page.waitForFunction((old) => document.querySelector("td.timer:not(:empty)")?.textContent !== old, before, { timeout: 20_000 });
  check("and runs", true, await timer());
  check("the running job runs", (await cells(running))[3] === "running");
  const log = await page.$$eval("#log tbody tr", (all) => all.map((tr) => tr.textContent));
  check("decisions are listed", log.some((text) => text.includes("starts on")), `${log.length} rows`);
});
