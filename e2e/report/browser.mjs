// What every check of a page needs: its arguments, a browser, and one line per check.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";

// The page's address and the flags: --screenshot, --dark, and those of the check's own.
export function args(script, own = {}) {
  const options = { screenshot: { type: "string" }, dark: { type: "boolean" }, ...own };
  const { values: flags, positionals } = parseArgs({ allowPositionals: true, options });
  if (positionals.length !== 1) {
    const names = Object.keys(own).map((name) => ` [--${name}]`).join("");
    console.error(`usage: node ${script} FILE.html [--screenshot out.png] [--dark]${names}`);
    process.exit(2);
  }
  return { url: pathToFileURL(resolve(positionals[0])).href, flags };
}

// The address of a page that a running server shows, and the words that the check takes behind it.
export function served(script, names) {
  const [url, ...words] = process.argv.slice(2);
  if (words.length !== names.length) {
    console.error(`usage: node ${script} URL ${names.join(" ")}`);
    process.exit(2);
  }
  return { url, flags: {}, words };
}

let failed = false;
export function check(name, ok, detail = "") {
  console.log(`${ok ? "ok  " : "FAIL"} ${name}${detail === "" ? "" : `: ${detail}`}`);
  if (!ok) failed = true;
}

// Distinct colours on a canvas, sampled; one colour alone is a blank. Runs in the page.
export const colours = (canvas) => {
  const { width, height } = canvas;
  // Read from a copy: reading a canvas itself moves it off the graphics path that readers see.
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const pixels = new Uint32Array(copy.getImageData(0, 0, width, height).data.buffer);
  const seen = new Set();
  for (let i = 0; i < pixels.length && seen.size < 64; i += 3) seen.add(pixels[i]);
  return seen.size;
};

// Opens the page, waits for `ready`, runs the checks, and ends the process.
export async function visit({ url, flags }, ready, checks) {
  const profile = await mkdtemp(join(tmpdir(), "hither-page-"));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: "/usr/bin/chromium",
    headless: true,
    args: ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
    viewport: { width: 1400, height: 900 },
    colorScheme: flags.dark ? "dark" : "light",
  });
  try {
    const errors = [];
    // A file asks for nothing else; a served page asks its own server only.
    const allowed = (asked) => asked === url || (url.startsWith("http") && asked.startsWith(new URL(url).origin));
    const requests = [];
    browser.on("request", (request) => { if (!allowed(request.url())) requests.push(request.url()); });
    const page = await browser.newPage();
    page.on("console", (message) => { if (["error", "warning"].includes(message.type())) errors.push(message.text()); });
    page.on("pageerror", (error) => errors.push(String(error)));
    page.on("dialog", (dialog) => { errors.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });

    const begin = Date.now();
    await page.goto(url, { timeout: 60_000 });
    await page.waitForSelector(ready, { timeout: 60_000 });
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
    check("page is ready", true, `${Date.now() - begin} ms`);
    if (flags.screenshot) await page.screenshot({ path: flags.screenshot, fullPage: true });
    await checks(page);
    check("no console or page errors", errors.length === 0, errors.join(" | "));
    check("no request to elsewhere", requests.length === 0, requests.join(" "));
  } catch (error) {
    check("ran to its end", false, String(error));
  } finally {
    await browser.close();
    await rm(profile, { recursive: true, force: true });
  }
  process.exit(failed ? 1 : 0);
}
