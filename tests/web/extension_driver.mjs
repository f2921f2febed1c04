// Chats with the extension (examples/extension) in Chromium, and ends its service worker and its panels meanwhile.
// usage: node extension_driver.mjs JOB.json
//
// Job: {extension, package, other, chromium, output, questions: [two]}. `other` is a package that the extension was not
// built with. Writes result.json: {answers, refused, workers: how many after the second answer, documents: [first, last],
// shown: what a new panel shows, opens: whether the button opens it, requested: names of files, of two loads of the package}.
import fs from "node:fs/promises";
import http from "node:http";
import path from "node:path";
import { FLAGS, openBrowser } from "./chromium.mjs";
import { ANSWER_MS, STEP_MS, within } from "./limits.mjs";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const problems = [];
const requested = [];

/** Packages on another origin, as a host for static files sends them that allows other pages. */
async function serveFiles(folders) {
  const server = http.createServer(async (request, response) => {
    const [, name, file] = /^\/(\w+)\/(?:resolve\/main\/)?([\w.-]+)$/.exec(request.url) ?? [];
    requested.push(file);
    const data = await fs.readFile(path.join(folders[name] ?? "", file ?? "")).catch(() => undefined);
    response.writeHead(data ? 200 : 404, { "access-control-allow-origin": "*" }).end(data);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${server.address().port}/`;
}

async function loaded(panel, address) {
  await panel.locator("#at").fill(address);
  await panel.locator("#at").press("Enter");
}

const ready = (panel) => panel.locator("#state", { hasText: /^Ready$/ }).waitFor({ timeout: ANSWER_MS });

async function ask(panel, question) {
  const count = await panel.locator("#chat .assistant").count();
  await panel.locator("#question").fill(question);
  await panel.locator("#question").press("Enter");
  await panel.locator("#chat .assistant").nth(count).waitFor({ timeout: ANSWER_MS });
  await panel.locator("#ask:enabled").waitFor({ timeout: ANSWER_MS });
  return panel.locator("#chat .assistant").nth(count).textContent();
}

/** What the client has kept of an address for an earlier version of the extension, built with another package. */
const keep = (panel, url) =>
  panel.evaluate(async (address) => (await caches.open("webllm/config")).put(address, new Response("{}")), url);

async function main(context) {
  context.on("weberror", (error) => problems.push(String(error.error())));
  const worker = context.serviceWorkers()[0] ?? (await context.waitForEvent("serviceworker"));
  const { host: id } = new URL(worker.url());
  const browser = await context.browser().newBrowserCDPSession();
  const ofExtension = async (type) => {
    const { targetInfos } = await browser.send("Target.getTargets", { filter: [{ exclude: false }] });
    return targetInfos.filter((target) => target.type === type && target.url.includes(id));
  };
  const behaviour = await worker.evaluate(() => chrome.sidePanel.getPanelBehavior());
  const open = async () => {
    const panel = await context.newPage();
    panel.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    await panel.goto(`chrome-extension://${id}/panel.html`);
    return panel;
  };
  const stopWorker = async (panel) => {
    const session = await context.newCDPSession(panel);
    await session.send("ServiceWorker.enable");
    await session.send("ServiceWorker.stopAllWorkers");
    const isStopped = async () => {
      while ((await ofExtension("service_worker")).length > 0) await panel.waitForTimeout(50);
    };
    await within(STEP_MS, "the service worker to end", isStopped);
  };

  const base = await serveFiles({ package: job.package, other: job.other });
  let panel = await open();
  await loaded(panel, `${base}other/`);
  await panel.locator("#state", { hasText: "another package" }).waitFor({ timeout: ANSWER_MS });
  const refused = await panel.locator("#state").textContent();
  await keep(panel, `${base}package/resolve/main/mlc-chat-config.json`);
  await loaded(panel, `${base}package/`);
  await ready(panel);
  const [document] = await ofExtension("background_page");
  const answers = [await ask(panel, job.questions[0])];
  await stopWorker(panel);
  answers.push(await ask(panel, job.questions[1]));
  const workers = (await ofExtension("service_worker")).length;
  await panel.close();
  panel = await open();
  await panel.locator("#ask:enabled").waitFor({ timeout: ANSWER_MS });
  const shown = await panel.locator("#chat p").allTextContents();
  const documents = [document, ...(await ofExtension("background_page"))].map(({ targetId }) => targetId);
  await panel.locator("#state").evaluate((shown) => shown.replaceChildren()); // what comes is of the load
  await loaded(panel, `${base}package`);
  await ready(panel);
  return { answers, refused, workers, documents, shown, opens: behaviour.openPanelOnActionClick, requested };
}

const { context, close } = await openBrowser(job, {
  ignoreDefaultArgs: ["--enable-unsafe-swiftshader", "--disable-extensions"],
  args: [...FLAGS, `--disable-extensions-except=${job.extension}`, `--load-extension=${job.extension}`],
});
let outcome;
try {
  outcome = await within(2 * ANSWER_MS, "the extension", main(context));
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
} finally {
  await close();
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ ...outcome, problems }));
process.exit(outcome.error || problems.length ? 1 : 0);
