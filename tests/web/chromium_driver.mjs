// Drives stock WebLLM in headless Chromium, or in `firefox` if the job names one. usage: node chromium_driver.mjs JOB.json
//
// Job: {package, library, chromium, output, overrides?, embeds?: the model is one of embeddings, fast?: folder of fast.js, init?: a script that runs before the page's, steps}. Steps, by `op`:
//   chat {request, interruptAfter?}    embed {input}    reset    unload    reload    provokeError
//   leave {request, after, overrides?}   the page is reloaded in the middle of a reply, and the model loaded anew
//   sessions    resume {session, stream?}    forget {session}     the client's resumable generation
// Writes result.json to the output folder: one result per step. Exits with 1 if a step failed, the
// page threw or logged an error, or a WebGPU error stayed uncaptured.
import fs from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { createRequire } from "node:module";
import { withPage } from "./chromium.mjs";
import { within } from "./limits.mjs";
import { serve } from "./serve.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const CLIENT = path.dirname(createRequire(import.meta.url).resolve("@mlc-ai/web-llm"));
const STEP_MS = 240_000; // the first one compiles every kernel
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const problems = [];
const log = [];

async function run(page, step) {
  switch (step.op) {
    case "chat":
      return page.evaluate(
        ([request, after]) => window.tests.chat(request, after),
        [step.request, step.interruptAfter],
      );
    case "embed":
      return page.evaluate((input) => window.tests.embed(input), step.input);
    case "reset":
      return page.evaluate(() => window.tests.resetChat());
    case "unload":
      return page.evaluate(() => window.tests.unload());
    case "reload":
      return page.evaluate(() => window.tests.reload());
    case "leave":
      await page.evaluate(([request, after]) => window.tests.begin(request, after), [step.request, step.after]);
      problems.push(...(await page.evaluate(() => window.tests.errors())));
      await page.reload();
      return open(page, step.overrides);
    case "sessions":
      return page.evaluate(() => window.tests.sessions());
    case "resume":
      return page.evaluate(([session, stream]) => window.tests.resume(session, stream), [step.session, step.stream]);
    case "forget":
      return page.evaluate((session) => window.tests.forget(session), step.session);
    case "provokeError":
      return page.evaluate(() => window.tests.provokeError());
    default:
      throw new Error(`unknown step ${step.op}`);
  }
}

/** Loads the model in a page that has just come. */
async function open(page, overrides = job.overrides ?? {}) {
  await page.waitForFunction("window.tests");
  return page.evaluate(
    ([library, fields, embeds]) => window.tests.load(library, fields, embeds),
    [job.library, overrides, job.embeds ?? false],
  );
}

async function main() {
  const server = await serve({
    "/": path.join(HERE, "webllm_page"),
    "/client/": CLIENT,
    ...(job.fast && { "/fast/": job.fast }),
    // The client asks below resolve/main/ unless the URL names a revision.
    "/package/resolve/main/": job.package,
    "/package/": job.package,
  });
  const result = withPage(job, async (page) => {
    page.on("console", (message) => {
      log.push(`[${message.type()}] ${message.text()}`.slice(0, 2000));
      if (message.type() === "error") problems.push(message.text());
    });
    page.on("pageerror", (error) => problems.push(String(error)));
    if (job.init) await page.addInitScript(job.init);
    await page.goto(job.fast ? `${server.url}?fast` : server.url);
    await page.waitForFunction("window.tests");
    const adapter = await within(
      STEP_MS,
      "an adapter",
      page.evaluate(() => window.tests.adapter()),
    );
    const loaded = await within(STEP_MS, "the model to load", open(page));
    const results = [];
    for (const step of job.steps) {
      const what = `step ${JSON.stringify(step).slice(0, 200)}`;
      results.push((await within(STEP_MS, what, run(page, step))) ?? {});
    }
    problems.push(...(await page.evaluate(() => window.tests.errors())));
    return { adapter, ...loaded, results, stats: await page.evaluate(() => window.tests.stats()) };
  });
  return result.finally(server.close);
}

let outcome;
try {
  outcome = await main();
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, problems, log }));
process.exit(outcome.error || problems.length ? 1 : 0);
