// Asks the minimal page (examples/web-minimal) as a person would. usage: node minimal_driver.mjs JOB.json
//
// Job: {url, chromium, output, questions}. Writes result.json: {answers: [{text, changes}]}, where `changes` says how
// often the answer grew. Exits with 1 if the page does not start, throws, or logs an error.
import fs from "node:fs/promises";
import path from "node:path";
import { withPage } from "./chromium.mjs";
import { ANSWER_MS, within } from "./limits.mjs";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const problems = [];

async function ask(page, question) {
  const count = await page.locator("#chat .assistant").count();
  await page.evaluate(() => {
    window.changes = 0;
    const watch = new MutationObserver(() => window.changes++);
    watch.observe(document.querySelector("#chat"), { childList: true, subtree: true, characterData: true });
  });
  await page.locator("#question").fill(question);
  await page.locator("#question").press("Enter");
  await page.locator("#chat .assistant").nth(count).waitFor({ timeout: ANSWER_MS });
  await page.locator("#ask:enabled").waitFor({ timeout: ANSWER_MS });
  const text = await page.locator("#chat .assistant").nth(count).textContent();
  return { text, changes: await page.evaluate(() => window.changes) };
}

async function main(page) {
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(job.url);
  await page.locator("#state", { hasText: /^Ready$/ }).waitFor({ timeout: ANSWER_MS });
  const answers = [];
  for (const question of job.questions) {
    answers.push(await within(ANSWER_MS, `an answer to "${question}"`, ask(page, question)));
  }
  return { answers };
}

let outcome;
try {
  outcome = await withPage(job, main);
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, problems }));
process.exit(outcome.error || problems.length ? 1 : 0);
