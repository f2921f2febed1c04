// Opens the page in headless Chromium, asks questions and prints the answers.
// usage: node ask.mjs PAGE_URL QUESTION [--file FILE QUESTION]... [--screenshot FILE.png]
//   env CHROMIUM: the browser to use
//
// A question after --file is asked in a new chat, about that picture or sound. The graphics device is
// SwiftShader, in software: no 16-bit floats. Exits with 1 if the page shows an error, logs one, or
// answers nothing.
import { execFileSync } from "node:child_process";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { chromium } from "playwright-core";

const NAMES = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
const FLAGS = [
  "--no-sandbox",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  "--use-webgpu-adapter=swiftshader",
  "--enable-unsafe-webgpu",
];
const LOAD_MS = 300_000;
const ANSWER_MS = 300_000;

function findBrowser() {
  for (const name of process.env.CHROMIUM ? [process.env.CHROMIUM] : NAMES) {
    try {
      return execFileSync("sh", ["-c", 'command -v "$1"', "sh", name], { encoding: "utf8" }).trim();
    } catch {
      // the next name
    }
  }
  console.error("error: no Chromium found");
  console.error("hint: put `chromium` or `google-chrome` into PATH, or name it in CHROMIUM");
  process.exit(1);
}

function parse([url, text, ...options]) {
  const questions = [{ text }];
  let screenshot;
  while (options.length && text) {
    const option = options.shift();
    if (option === "--file") questions.push({ file: options.shift(), text: options.shift() });
    else if (option === "--screenshot") screenshot = options.shift();
    else text = undefined;
  }
  if (text && questions.every((each) => each.text)) return { url, questions, screenshot };
  console.error("usage: node ask.mjs PAGE_URL QUESTION [--file FILE QUESTION]... [--screenshot FILE.png]");
  process.exit(2);
}

const { url, questions, screenshot } = parse(process.argv.slice(2));

const profile = await fs.mkdtemp(path.join(os.tmpdir(), "ask-"));
const context = await chromium.launchPersistentContext(profile, {
  executablePath: findBrowser(),
  headless: true,
  args: FLAGS,
});
const problems = [];

async function ask(page, error, { text, file }) {
  if (file) {
    await page.locator("#new-chat").click();
    await page.locator("#attach-file").setInputFiles(file);
    await page.locator("#attached > li:not(.reading)").or(error).first().waitFor();
    if (await error.count()) throw new Error(await error.innerText());
  }
  await page.locator("#prompt").fill(text);
  await page.locator("#send").click();
  const reply = page.locator('#messages li[data-role="assistant"]');
  await page.locator('#messages li[data-role="assistant"]:not([data-state="writing"])').waitFor({ timeout: ANSWER_MS });
  if (await error.count()) throw new Error(await error.innerText());
  const state = await reply.getAttribute("data-state");
  if (state !== "done") problems.push(`the answer is ${state}`);
  const answer = await reply.locator(".answer").innerText();
  console.error(`${await page.locator("#model").innerText()}: ${await reply.locator(".stats").innerText()}`);
  if (!answer) problems.push("the answer is empty");
  console.log(answer);
}

try {
  const page = context.pages()[0] ?? (await context.newPage());
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(url);
  const ready = page.locator('body[data-state="ready"]');
  const error = page.locator("#error, #notices .error").locator("visible=true").first();
  await ready.or(error).first().waitFor({ timeout: LOAD_MS });
  if (await error.count()) throw new Error(await error.innerText());
  for (const question of questions) await ask(page, error, question);
  if (screenshot) await page.screenshot({ path: screenshot, fullPage: true });
} catch (error) {
  problems.push(String(error?.message ?? error));
} finally {
  await context.close();
  await fs.rm(profile, { recursive: true, force: true });
}
for (const problem of problems) console.error(`error: ${problem}`);
process.exit(problems.length ? 1 : 0);
