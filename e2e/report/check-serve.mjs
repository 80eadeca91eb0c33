// Opens the page of an inference server's metrics port and checks what there is to see.
//   node check-serve.mjs URL MODEL
// The server must answer requests for MODEL meanwhile.
// Prints one line per check; exit 0 if all hold, 1 if one does not, 2 on wrong usage.
import { check, served, visit } from "./browser.mjs";

const asked = served("check-serve.mjs", ["MODEL"]);
const [model] = asked.words;
await visit(asked, "body", async (page) => {
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
  const widths = await page.$$eval('[data-card="time"] .bar span', (all) => all.map((part) => part.getBoundingClientRect().width));
  check("the bar of times has parts", widths.length === 4 && widths.some((width) => width > 1), widths.join());
  const stages = await page.$$eval('[data-card="stages"] .keys > span', (all) => all.map((key) => key.textContent));
  check("stages have names", stages.some((text) => /tables/.test(text)), stages.join(" | "));
  const points = await page.$eval('[data-card="throughput"] polyline', (shape) => shape.getAttribute("points").trim().split(" ").length);
  check("the line grows", points >= 2, `${points} points`);
  const wide = await page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
  check("the page is no wider than the window", !wide);
});
