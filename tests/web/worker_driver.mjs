// Two engines of stock WebLLM in one worker of headless Chromium. usage: node worker_driver.mjs JOB.json
//
// Job: {package, library, chromium, fast: folder of fast.js, output, requests: [for each engine], one: request}.
// Writes result.json: {both, one, stats}: what they said, and the stats of `gemma4-web/fast`.
import fs from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { createRequire } from "node:module";
import { withPage } from "./chromium.mjs";
import { serve } from "./serve.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const CLIENT = path.dirname(createRequire(import.meta.url).resolve("@mlc-ai/web-llm"));
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const problems = [];

async function chat(page) {
  await page.goto(`${server.url}worker.html`);
  await page.waitForFunction("window.ask");
  const ask = (name, argument) => page.evaluate(([n, a]) => window.ask(n, a), [name, argument]);
  await ask("load", { library: job.library });
  const both = await ask("both", job.requests);
  await ask("unload");
  return { both, one: await ask("one", job.one), stats: await ask("stats") };
}

const server = await serve({
  "/": path.join(HERE, "webllm_page"), "/client/": CLIENT, "/fast/": job.fast,
  "/package/resolve/main/": job.package, "/package/": job.package,
});
let outcome;
try {
  outcome = await withPage(job.chromium, async (page) => {
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("pageerror", (error) => problems.push(String(error)));
    return chat(page);
  });
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, problems }));
process.exit(outcome.error || problems.length ? 1 : 0);
