// Uses the example page as a person would. usage: node page_driver.mjs JOB.json
//
// Job: {page, packages: {name: folder}, chromium, output, visits}. A visit is a browser of its own:
//   {package, lack?: "webgpu" | "shader-f16" | "adapter", actions}
// with actions, in order: ["system", text] ["ask", text] ["stop", text] (asks, and stops early)
// ["new"]. Writes result.json: per visit {error, status, speed, requested, conversations}, the last a
// list of messages for each conversation, ended by "new" or the end.
import fs from "node:fs/promises";
import path from "node:path";
import { withPage } from "./chromium.mjs";
import { serve } from "./serve.mjs";

const WAIT_MS = 120_000;
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const problems = [];

/** Takes something from the browser before the page runs. */
const LACKS = {
  webgpu: () => Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined }),
  adapter: () => (GPU.prototype.requestAdapter = async () => null),
  "shader-f16": () => {
    const has = GPUSupportedFeatures.prototype.has;
    GPUSupportedFeatures.prototype.has = function (name) {
      return name !== "shader-f16" && has.call(this, name);
    };
  },
};


async function visit(server, { package: name, lack, actions }) {
  return withPage(job.chromium, async (page) => {
    const logged = [];
    const requested = [];
    page.on("console", (message) => message.type() === "error" && logged.push(message.text()));
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("request", (request) => requested.push(new URL(request.url()).pathname));
    if (lack) await page.addInitScript(LACKS[lack]);
    await page.goto(`${server.url}?package=/${name}/`);
    await page.locator("#chat, #error").locator("visible=true").first().waitFor({ timeout: WAIT_MS });
    const conversations = [];
    const keep = async () =>
      conversations.push(
        await page.locator("#messages li").evaluateAll((items) =>
          items.map((item) => ({
            role: item.dataset.role,
            text: item.textContent,
            finish: item.dataset.finish ?? null,
          }))));
    for (const [action, text] of actions) {
      if (action === "system") {
        await page.locator("summary").click();
        await page.locator("#system").fill(text);
      } else if (action === "new") {
        await keep();
        await page.locator("#clear").click();
      } else {
        await page.locator("#prompt").fill(text);
        await page.locator("#prompt").press("Enter");
        if (action === "stop") await page.locator("#stop").dispatchEvent("click");
        await page.locator("#send").waitFor({ timeout: WAIT_MS });
      }
    }
    await keep();
    const error = page.locator("#error:visible");
    const shown = (await error.count()) ? await error.innerText() : null;
    if (shown === null) problems.push(...logged); // an error that the page shows is also logged
    return {
      error: shown,
      status: await page.locator("#status").innerText(),
      speed: await page.locator("#speed").innerText({ timeout: 1000 }).catch(() => ""),
      conversations,
      requested,
    };
  });
}

async function main() {
  const folders = Object.entries(job.packages).map(([name, folder]) => [`/${name}/`, folder]);
  const server = await serve({ "/": job.page, ...Object.fromEntries(folders) });
  const visits = [];
  for (const each of job.visits) visits.push(await visit(server, each));
  await server.close();
  return { visits };
}

let outcome;
try {
  outcome = await main();
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, problems }));
process.exit(outcome.error || problems.length ? 1 : 0);
