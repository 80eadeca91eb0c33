// Opens a report as a reader would and checks what there is to see.
//   node check-report.mjs FILE.html [--screenshot out.png] [--dark] [--no-events]
// --no-events: the first policy recorded no events, and the plots over time must say so.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { args, check, colours, visit } from "./browser.mjs";

const asked = args("check-report.mjs", { "no-events": { type: "boolean" } });

const inked = (page) => page.$eval("#plot-jct canvas", (canvas) => canvas.toDataURL());
const visible = (page) => page.$$eval("section.plot[data-visible]:not(#plot-timers)", (plots) => plots.map((p) => Number(p.dataset.visible)));
const range = (page) => page.$eval("#schedule .base", (canvas) => canvas.dataset.range);

async function checkStatic(page, runs) {
  const rows = await page.$$eval("#comparison tbody tr", (all) => all.length);
  check("every run has a row", rows > 0 && rows === runs, `${rows} rows`);
  const units = await page.$$eval("#comparison tbody tr", (rows) => {
    const unit = (cell) => cell.textContent.match(/ (ms|s|min|h|d)$/)?.[1];
    const columns = [...rows[0].cells].map((_, i) => new Set(rows.map((row) => unit(row.cells[i])).filter(Boolean)));
    return columns.map((units) => units.size);
  });
  check("every column has one unit", units.some((n) => n === 1) && units.every((n) => n <= 1), units.join(" "));
  const bars = await page.$$eval("#tiers .stack span", (all) => all.map((s) => s.getBoundingClientRect().width));
  check("tier bars have parts", bars.some((w) => w > 5), `${bars.length} parts`);
  for (const id of ["plot-jct", "plot-queue"]) await checkCanvas(page, `#${id} canvas`);
}

async function checkCanvas(page, selector) {
  const canvas = await page.$(selector);
  const count = canvas ? await canvas.evaluate(colours) : 0;
  check(`${selector} is drawn`, count >= 4, `${count} colours`);
}

async function checkFilter(page, runs) {
  const before = await visible(page);
  const drawn = await inked(page);
  check("all policies are shown at first", before.every((n) => n === runs), before.join(" "));
  const places = [["table", ".policy"], ["chips", ".chip:not(.all)"]].slice(0, runs > 1 ? 2 : 1);
  for (const [where, selector] of places) {
    const button = (await page.$$(selector)).at(-1);
    await button.click();
    const one = await visible(page);
    const named = await page.evaluate(() => document.body.dataset.policy);
    check(`click in the ${where} shows one policy`, one.every((n) => n === 1) && named !== "", `${named}: ${one.join(" ")}`);
    if (runs > 1) check("the plots are drawn anew", await inked(page) !== drawn);
    check(`pressed state in the ${where}`, await button.getAttribute("aria-pressed") === "true");
    check("tier bars follow", await page.$$eval("#tiers .stack", (all) => all.length) === 1);
    await button.click();
    const again = await visible(page);
    check("second click shows all", again.every((n) => n === runs) && await page.evaluate(() => document.body.dataset.policy) === "", again.join(" "));
  }
}

async function checkSort(page) {
  const values = () => page.$$eval("#comparison tbody tr td:nth-child(3)", (all) => all.map((td) => Number(td.dataset.value)));
  await page.click("#comparison .sort[data-column='2']");
  const sorted = await values();
  check("a heading sorts", sorted.every((v, i) => i === 0 || sorted[i - 1] <= v), sorted.map((v) => v.toFixed(0)).join(" "));
}

async function checkSchedule(page) {
  const canvas = await page.$("#schedule .base");
  await canvas.scrollIntoViewIfNeeded();
  await checkCanvas(page, "#schedule .base");
  const box = await canvas.boundingBox();
  const middle = [box.x + box.width * 0.5, box.y + box.height * 0.4];
  const changed = (old) => page.waitForFunction((o) => document.querySelector("#schedule .base").dataset.range !== o, old, { timeout: 30_000 }).then(() => true, () => false);
  const length = (text) => { const [from, to] = text.split(",").map(Number); return to - from; };

  const whole = await range(page);
  await page.mouse.move(...middle);
  await page.mouse.wheel(0, -500);
  check("wheel zooms the schedule", await changed(whole) && length(await range(page)) < length(whole), await range(page));
  const zoomed = await range(page);
  await page.mouse.down();
  await page.mouse.move(middle[0] - 80, middle[1], { steps: 4 });
  await page.mouse.up();
  check("drag pans it", await range(page) !== zoomed && Math.abs(length(await range(page)) / length(zoomed) - 1) < 1e-6, await range(page));

  let told = "";
  for (let i = 0; i < 60 && told === ""; i++) {
    await page.mouse.move(box.x + box.width * (0.2 + 0.012 * i), box.y + box.height * (0.1 + 0.011 * i));
    told = await page.$eval("#tip", (tip) => tip.hidden ? "" : tip.innerText.replace(/\s+/g, " "));
  }
  check("hover tells about a job", /model.*GPUs.*placed/.test(told), told.slice(0, 120));
  await page.mouse.dblclick(...middle);
  check("double click resets", await range(page) === whole);
  for (const mode of ["job", "model", "tier"]) {
    await page.click(`#schedule .switch label:has(input[value=${mode}])`);
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    await checkCanvas(page, "#schedule .base");
  }
  const ms = await canvas.evaluate((c) => Number(c.dataset.drawMs));
  // Told, not judged: the time says as much about the machine as about the page.
  console.log(`     the whole schedule was drawn in ${ms} ms`);
}

// A policy shown alone fills the axis; with one axis for all it does not, unless it lasts longest.
async function checkAxis(page) {
  const lengths = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent).runs.map((run) => run.length_s));
  const shortest = lengths.indexOf(Math.min(...lengths)), longest = Math.max(...lengths);
  const end = async () => Number((await range(page)).split(",")[1]);
  await page.click(`.chip[data-run='${shortest}']`);
  await page.waitForFunction((run) => document.querySelector("#schedule select").value === String(run), shortest);
  check("the schedule ends with its policy", Math.abs(await end() - lengths[shortest]) < 1e-6, `${await end()} s`);
  await page.click(".chips .switch label:has(input[value=shared])");
  check("one axis for all ends with the longest", Math.abs(await end() - longest) < 1e-6, `${await end()} s`);
  await page.click(".chips .switch label:has(input[value=own])");
  await page.click(".chip.all");
}

async function checkTimers(page) {
  const key = (selector) => page.$$eval(selector, (keys) => keys.map((k) => k.style.backgroundColor));
  const [demands, policies] = [await key("#plot-timers .key"), await key(".chip .key")];
  check("demands have colours of their own", new Set(demands).size === demands.length && demands.every((c) => !policies.includes(c)), demands.join(" "));
}

// The links of another level have other curves.
async function checkLinks(page) {
  await checkCanvas(page, "#plot-links canvas");
  const ink = () => page.$eval("#plot-links canvas", (canvas) => canvas.toDataURL());
  const choices = await page.$$eval("#plot-links option", (all) => all.map((option) => option.textContent));
  check("links can be chosen by level and figure", choices.length >= 4 && choices.every((text) => /^of .*s, /.test(text)), choices.join("; "));
  const before = await ink();
  await page.selectOption("#plot-links select", { index: choices.length - 1 });
  check("another choice of links is drawn", await ink() !== before);
  await page.selectOption("#plot-links select", { index: 0 });
}

// Two tables at a time, by demand and by model; their jobs add up to those that finished.
async function checkBreakdown(page, runs) {
  const shown = () => page.$$eval("#breakdown .figures", (all) => all.filter((table) => table.checkVisibility()).map((table) => table.querySelector("h3").textContent));
  const first = await shown();
  const groups = await page.$$eval("#breakdown .tables", (all) => all.length);
  check("tables by demand and model", first.length === 2 * groups && /GPUs/.test(first[0]) && /model/.test(first[1]), first.join("; "));
  await page.selectOption("#breakdown .figure", { index: 2 });
  const other = await shown();
  check("another figure has other tables", other.length === first.length && other.every((text) => /communication/.test(text)), other.join("; "));
  await page.selectOption("#breakdown .figure", { index: 0 });
  const sums = await page.$$eval("#breakdown .figures", (all) => all.slice(0, 2).map((table) => {
    const jobs = [...table.querySelectorAll("tbody td:nth-child(2)")].map((cell) => Number(cell.textContent.replaceAll(",", "")));
    return jobs.reduce((a, b) => a + b, 0);
  }));
  check("every finished job is in a row", sums[0] > 0 && sums[0] === sums[1], sums.join(" "));
  if (runs < 2) return;
  const told = await page.$$eval("#pairs h3 + p", (all) => all.map((p) => p.textContent));
  const shares = told.map((text) => [...text.matchAll(/([\d.]+) %/g)].reduce((sum, m) => sum + Number(m[1]), 0));
  check("every job gains, loses or stays", told.length > 0 && shares.every((sum) => Math.abs(sum - 100) < 0.2), shares.join(" "));
}

// A search finds the history of a job, with times, and says when there is no such job.
async function checkHistory(page) {
  // A blank suggests the first ids.
  await page.fill("#history input", " ");
  await page.waitForSelector("#history-jobs option", { state: "attached", timeout: 30_000 });
  const id = await page.$eval("#history-jobs option", (option) => option.value);
  await page.fill("#history input", id);
  await page.waitForSelector("#history tbody tr", { timeout: 30_000 });
  const rows = await page.$$eval("#history tbody tr", (all) => all.map((row) => row.textContent));
  check("the history of a job begins with its submission", /submitted/.test(rows[0]) && rows.length > 1, rows.slice(0, 3).join(" / "));
  check("a start has a reason", rows.some((row) => /started./.test(row)), rows.join(" / ").slice(0, 200));
  await page.fill("#history input", "no such job");
  const says = await page.waitForFunction(() => /No job/.test(document.querySelector("#history .told").textContent), null, { timeout: 30_000 }).then(() => true, () => false);
  check("an unknown job is said to be unknown", says);
}

// The first policy has no events, whatever the others have.
async function checkEmpty(page) {
  await page.click("#comparison .policy[data-run='0']");
  for (const id of ["plot-utilisation", "plot-fragmentation", "plot-waiting", "schedule"]) {
    const text = await page.$eval(`#${id} .empty`, (p) => p.checkVisibility() ? p.textContent : "").catch(() => "");
    check(`#${id} says that there are no events`, /events/.test(text), text);
  }
}

await visit(asked, "body[data-ready]", async (page) => {
  const runs = await page.evaluate(() => JSON.parse(document.getElementById("data").textContent).runs.length);
  await checkStatic(page, runs);
  if (asked.flags["no-events"]) {
    await checkEmpty(page);
  } else {
    for (const id of ["utilisation", "fragmentation", "waiting"]) await checkCanvas(page, `#plot-${id} canvas`);
    // Not every policy has timers; without any there is no such plot.
    if (await page.isVisible("#plot-timers")) {
      await checkCanvas(page, "#plot-timers canvas");
      await checkTimers(page);
    }
    await checkLinks(page);
    await checkBreakdown(page, runs);
    await checkFilter(page, runs);
    await checkSort(page);
    await checkSchedule(page);
    await checkHistory(page);
    if (runs > 1) await checkAxis(page);
  }
});
