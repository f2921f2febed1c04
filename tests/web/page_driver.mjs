// Uses the example page as a person would. usage: node page_driver.mjs JOB.json
//
// Job: {page, packages: {name: folder}, chromium, axe, output, shots?, answers?, group, only?}. Runs the scenarios of
// page_real.mjs (the stock client) and of page_scripted.mjs, page_chats.mjs, page_links.mjs, page_looks.mjs, page_media.mjs,
// page_models.mjs, page_capture.mjs, page_waits.mjs and page_libraries.mjs (a scripted engine), and those of page_beginnings.mjs
// (the stock client), of page_meaning.mjs, page_drafts.mjs and page_profile.mjs (both); of page_choice.mjs, and of page_firefox.mjs where the job names `firefox`; each in the order of its file, and writes result.json:
// {scenarios: {name: {seconds, error}}}.
// With `shots` screenshots go to the output folder, and in any case that of a scenario that fails. The page's service worker is left out: it would hand out the files
// that are replaced here (offline_driver.mjs has it).
import fs from "node:fs/promises";
import path from "node:path";
import { ENVIRONMENT, FLAGS, openBrowser } from "./chromium.mjs";
import { ANSWER_MS, STEP_MS, within } from "./limits.mjs";
import { HEADERS, servePage } from "./page_server.mjs";
import { BEGINNINGS } from "./page_beginnings.mjs";
import { CAPTURE } from "./page_capture.mjs";
import { CHATS } from "./page_chats.mjs";
import { CHOICE } from "./page_choice.mjs";
import { REAL_DRAFTS, SCRIPTED_DRAFTS } from "./page_drafts.mjs";
import { SCRIPTED_TABLE } from "./page_table.mjs";
import { FIREFOX } from "./page_firefox.mjs";
import { LIBRARIES } from "./page_libraries.mjs";
import { LINKS } from "./page_links.mjs";
import { LOOKS } from "./page_looks.mjs";
import { REAL_MEANING, SCRIPTED_MEANING } from "./page_meaning.mjs";
import { MEDIA } from "./page_media.mjs";
import { MODELS } from "./page_models.mjs";
import { REAL_PROFILE, SCRIPTED_PROFILE } from "./page_profile.mjs";
import { REAL } from "./page_real.mjs";
import { SCRIPTED } from "./page_scripted.mjs";
import { WAITS } from "./page_waits.mjs";

const HERE = import.meta.dirname;
const SCENARIO_MS = 400_000;
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const axe = await fs.readFile(job.axe, "utf8");
const scripted = await fs.readFile(path.join(HERE, "scripted_engine.js"), "utf8");

// The client does not tell its device to anyone: a test that takes it away has to see it made.
const SHOW_DEVICE =
  "const requestDevice = GPUAdapter.prototype.requestDevice;" +
  "GPUAdapter.prototype.requestDevice = async function (d) { return (self.testDevice = await requestDevice.call(this, d)); };\n";

/** Takes something from the browser before the page runs. */
const LACKS = {
  webgpu: () => Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined }),
  adapter: () => (GPU.prototype.requestAdapter = async () => null),
  quota: () => {
    const put = Cache.prototype.put;
    Cache.prototype.put = function (key, ...rest) {
      if (String(key).endsWith(".bin")) return Promise.reject(new DOMException("full", "QuotaExceededError"));
      return put.call(this, key, ...rest);
    };
  },
};

/** In the page: `said` has every text of the start's lines, also those that show for a moment. */
function noteWhatIsSaid() {
  window.said = [];
  new MutationObserver(() => {
    for (const id of ["progress-title", "status"]) {
      const text = document.getElementById(id)?.textContent;
      if (text && !window.said.includes(text)) window.said.push(text);
    }
  }).observe(document, { childList: true, subtree: true, characterData: true });
}

/** In the page: what goes by itself after some seconds stays, however slow the machine is that looks for it. */
function keepWhatGoes() {
  const UNDO_MS = 12_000; // of examples/web/src/view/notices.ts
  const { setTimeout } = window;
  window.setTimeout = (run, ms, ...rest) => setTimeout(run, ms === UNDO_MS ? 2 ** 31 - 1 : ms, ...rest);
}

/** A browser with a profile of its own, and what its pages complain about. */
async function openPage({ real }) {
  const { context, close } = await openBrowser(job, {
    ...(job.firefox
      ? {}
      : {
          env: real ? ENVIRONMENT : process.env, // a scenario wants a device without 16-bit floats
          // A camera and a microphone that every machine has, and garbage collection when a scenario wants it.
          args: [...FLAGS, "--use-fake-device-for-media-stream", "--js-flags=--expose-gc"],
          serviceWorkers: "block",
        }),
    viewport: { width: 1280, height: 800 },
    reducedMotion: "reduce", // nothing is looked at halfway
  });
  await context.grantPermissions(["clipboard-read", "clipboard-write"]);
  await context.addInitScript(noteWhatIsSaid);
  await context.addInitScript(keepWhatGoes);
  await context.addInitScript(() => {
    addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) =>
      console.error(`CSP violation: ${violatedDirective} ${blockedURI}`),
    );
  });
  await context.route("**/assets/worker-*.js", async (route) => {
    const headers = { ...HEADERS, "content-type": "text/javascript" };
    const file = path.join(job.page, "assets", path.basename(new URL(route.request().url()).pathname));
    const body = real ? SHOW_DEVICE + (await fs.readFile(file, "utf8")) : scripted;
    return route.fulfill({ body, headers });
  });
  const complaints = [];
  const watch = (page) => {
    page.on("console", (message) => message.type() === "error" && complaints.push(message.text()));
    page.on("pageerror", (error) => complaints.push(String(error)));
  };
  context.on("page", watch);
  context.pages().forEach(watch);
  return {
    context,
    complaints,
    close: async () => {
      await within(STEP_MS, "routes to end", context.unrouteAll({ behavior: "ignoreErrors" }));
      await close();
    },
  };
}

/** What a scenario works with. */
function toolsFor(browser, server, real) {
  const state = async (page, ...kinds) => {
    try {
      await page
        .locator(kinds.map((kind) => `body[data-state="${kind}"]`).join(", "))
        .waitFor({ timeout: real ? ANSWER_MS : STEP_MS });
    } catch (error) {
      const found = await page.locator("body").getAttribute("data-state", { timeout: STEP_MS });
      const words = await page.locator("#start").innerText({ timeout: STEP_MS });
      throw new Error(`expected the state ${kinds}, found ${found}: ${words}`, { cause: error });
    }
  };
  return {
    job,
    server,
    context: browser.context,
    state,
    /** A complaint that a scenario provokes. */
    expectComplaint: (pattern) => {
      const at = browser.complaints.findIndex((text) => pattern.test(text));
      if (at < 0) throw new Error(`no complaint about ${pattern}: ${browser.complaints}`);
      browser.complaints.splice(at, 1);
    },
    open: async (page, name, lack) => {
      if (lack) await page.addInitScript(LACKS[lack]);
      await page.goto(`${server.url}?package=/${name}/`);
    },
    ask: async (page, text) => {
      await page.locator("#prompt").fill(text);
      await page.locator("#prompt").press("Enter");
    },
    /** Asks the scripted engine, whose long reply waits in its middle until it is stopped or until the result is called. */
    askHeld: async (page, text) => {
      const [worker] = page.workers();
      await worker.evaluate(() => {
        self.held = Promise.withResolvers();
      });
      await page.locator("#prompt").fill(text);
      await page.locator("#prompt").press("Enter");
      return () => worker.evaluate(() => self.held.resolve());
    },
    /** Waits until the page has said something, if only for a moment. */
    hasSaid: (page, words) =>
      page.waitForFunction((part) => window.said.some((text) => text.includes(part)), words, { timeout: ANSWER_MS }),
    answered: async (page, timeout = STEP_MS) => {
      await page
        .locator('#messages li:last-child[data-role="assistant"]:not([data-state="writing"])')
        .waitFor({ timeout });
      return page.locator("#messages > li:last-child");
    },
    /** Fails on what axe finds wrong for people who use the page by keyboard or screen reader. */
    accessible: async (page, what) => {
      // By the protocol, which the page's policy does not concern.
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }));
      if (violations.length) {
        const told = violations.map(
          ({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join("; ")}`,
        );
        throw new Error(`${what}: ${told.join("\n")}`);
      }
    },
    shot: async (page, name) =>
      job.shots ? void (await page.screenshot({ path: path.join(job.output, `${name}.png`) })) : undefined,
    requested: (from, pattern) => server.requests.slice(from).filter((request) => pattern.test(request.path)),
  };
}

async function runAll(scenarios, real, server, results) {
  const wanted = Object.entries(scenarios).filter(([name]) => !job.only || job.only.includes(name));
  if (!wanted.length) return;
  const browser = await openPage({ real });
  for (const [name, scenario] of wanted) {
    const started = Date.now();
    let error = null;
    browser.complaints.length = 0;
    try {
      await within(SCENARIO_MS, `scenario ${name}`, scenario(toolsFor(browser, server, real)));
      if (browser.complaints.length) throw new Error(`the page complains: ${browser.complaints.join("\n")}`);
    } catch (problem) {
      error = String(problem?.stack ?? problem);
      const page = browser.context.pages().at(-1);
      await page?.screenshot({ path: path.join(job.output, `failed-${name}.png`) }).catch(() => undefined);
    }
    results[name] = { seconds: (Date.now() - started) / 1000, error };
  }
  await browser.close();
}

const folders = Object.entries(job.packages).map(([name, folder]) => [`/${name}/`, folder]);
const server = await servePage({ "/": job.page, ...Object.fromEntries(folders) });
const scenarios = {};
const groups = {
  scripted: { ...SCRIPTED, ...LIBRARIES, ...SCRIPTED_DRAFTS, ...SCRIPTED_TABLE, ...SCRIPTED_PROFILE, ...WAITS },
  chats: { ...CHATS, ...SCRIPTED_MEANING, ...LOOKS, ...LINKS, ...MODELS },
  media: { ...MEDIA, ...CAPTURE },
  real: { ...REAL, ...BEGINNINGS, ...REAL_DRAFTS, ...REAL_PROFILE, ...REAL_MEANING },
  choice: CHOICE,
  firefox: FIREFOX,
};
await runAll(groups[job.group], ["real", "choice", "firefox"].includes(job.group), server, scenarios);
await server.close();
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ scenarios }));
process.exit(0); // and with it whatever hangs
