// Engines of stock WebLLM in workers of headless Chromium. usage: node worker_driver.mjs JOB.json
//
// Job: {package, library, chromium, fast: folder of fast.js, output, requests, one: request, tabs?: true,
// rows?: true for tables of per-layer embeddings in files}. Two engines
// in one worker, a request for each; or two tabs with a worker each, of which the first is suspended in its reply.
// Writes result.json: {both, one, stats}: what they said, and the stats of `gemma4-web/fast`.
import fs from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { createRequire } from "node:module";
import { withPage } from "./chromium.mjs";
import { within } from "./limits.mjs";
import { serve } from "./serve.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const CLIENT = path.dirname(createRequire(import.meta.url).resolve("@mlc-ai/web-llm"));
const REPLY_MS = 240_000;
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const problems = [];

async function opened(page, engines) {
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(`${server.url}worker.html`);
  await page.waitForFunction("window.ask");
  const answer = (name, argument) => page.evaluate(([n, a]) => window.ask(n, a), [name, argument]);
  const ask = (name, argument) => within(REPLY_MS, `the worker to answer ${name}`, answer(name, argument));
  await ask("load", { library: job.library, engines, rows: job.rows });
  return ask;
}

async function twoTabs(page) {
  const tabs = [page, await page.context().newPage()];
  const [first, second] = [await opened(tabs[0], 1), await opened(tabs[1], 1)];
  const session = await page.context().newCDPSession(page);
  const halted = first("halt", 4);
  const replies = [first("both", job.requests.slice(0, 1)), second("both", job.requests.slice(1))];
  await Promise.race([halted, replies[0]]);
  await session.send("Page.setWebLifecycleState", { state: "frozen" });
  const [other] = await replies[1];
  await session.send("Page.setWebLifecycleState", { state: "active" });
  await first("goOn");
  const [suspended] = await replies[0];
  return { both: [suspended, other], one: await first("one", job.one), stats: await first("stats") };
}

async function oneTab(page) {
  const ask = await opened(page, 2);
  const both = await ask("both", job.requests);
  await ask("unload");
  return { both, one: await ask("one", job.one), stats: await ask("stats") };
}

const server = await serve({
  "/": path.join(HERE, "webllm_page"),
  "/client/": CLIENT,
  "/fast/": job.fast,
  "/package/resolve/main/": job.package,
  "/package/": job.package,
});
let outcome;
try {
  outcome = await withPage(job, job.tabs ? twoTabs : oneTab);
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, problems }));
process.exit(outcome.error || problems.length ? 1 : 0);
