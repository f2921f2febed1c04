// The example page without its server, by its service worker, and without the browser's flags.
// usage: node offline_driver.mjs JOB.json
//
// Job: {serve: command that serves the page and a package on a free port and prints the address, page: the built page,
// plugin: the module that writes sw.js, chromium, output, question, answer, only?, leaveOut?: names of scenarios}. Writes
// result.json: {scenarios: {name: {seconds, error}}}.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { FLAGS, openBrowser, until } from "./chromium.mjs";
import { ANSWER_MS, STEP_MS, within } from "./limits.mjs";
import { servePage } from "./page_server.mjs";

const SCENARIO_MS = 400_000; // two starts of a model and two answers, in software
const PAGE_CACHE = "gemma4/page ";
const BELOW = "/some/folder/";
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const { writeWorker } = await import(job.plugin);

async function withContext(action, args = FLAGS) {
  const { context, close } = await openBrowser(job, job.firefox ? {} : { args });
  try {
    return await action(context);
  } finally {
    await close();
  }
}

const state = (page, kind, timeout = STEP_MS) => page.locator(`body[data-state="${kind}"]`).waitFor({ timeout });

/** Waits for the page's worker, and returns the names of the files that the page's caches hold. */
async function keptFiles(page) {
  await until(page, async () => (await navigator.serviceWorker.getRegistration())?.active?.state === "activated");
  return page.evaluate(async (prefix) => {
    const names = (await caches.keys()).filter((name) => name.startsWith(prefix));
    const keys = await Promise.all(names.map(async (name) => (await caches.open(name)).keys()));
    return { caches: names, files: keys.flat().map(({ url }) => new URL(url).pathname) };
  }, PAGE_CACHE);
}

const cacheCount = (page) =>
  page.evaluate(async (prefix) => (await caches.keys()).filter((name) => name.startsWith(prefix)).length, PAGE_CACHE);

/** Whether the page has a single cache within a few seconds: Chromium ends a worker a second after its last event. */
async function hasOneCache(page) {
  for (let waits = 0; waits < 12; waits++) {
    await page.waitForTimeout(250);
    if ((await cacheCount(page)) === 1) return true;
  }
  return false;
}

/** Reloads; false if the load does not end: Chromium drops one that it gave to a worker just before it ended that. */
async function isReloaded(page) {
  try {
    await page.reload({ timeout: 30_000 });
    return true;
  } catch (error) {
    assert.match(String(error), /Timeout|ERR_ABORTED/); // the second: of the load before
    return false; // page.evaluate would wait for ever
  }
}

/** The page in a folder of a server; `build(number)` puts another build there. */
async function withPageBelow(action) {
  const folder = await fs.mkdtemp(path.join(os.tmpdir(), "page-"));
  const server = await servePage({ [BELOW]: folder });
  const build = async (number) => {
    await fs.rm(folder, { recursive: true });
    await fs.cp(job.page, folder, { recursive: true });
    const assets = path.join(folder, "assets");
    let html = await fs.readFile(path.join(folder, "index.html"), "utf8");
    html = html.replace(/<title>[^<]*/, `<title>Build ${number}`);
    for (const name of await fs.readdir(assets)) {
      if (!name.startsWith("index-")) continue;
      const renamed = name.replace("index-", `index-${number}`);
      await fs.rename(path.join(assets, name), path.join(assets, renamed));
      html = html.replace(name, renamed);
    }
    await fs.writeFile(path.join(folder, "index.html"), html);
    await writeWorker(folder);
  };
  try {
    await build(1);
    await action({ server, folder, build, url: server.url.replace(/\/$/, BELOW) });
  } finally {
    await server.close();
    await fs.rm(folder, { recursive: true });
  }
}

async function ask(page) {
  await page.locator("#new-chat").click();
  await page.locator("#prompt").fill(job.question);
  await page.locator("#prompt").press("Enter");
  const reply = page.locator('#messages li[data-role="assistant"]:not([data-state="writing"])');
  await reply.waitFor({ timeout: ANSWER_MS });
  assert.equal(await reply.locator(".answer").innerText(), job.answer);
}

const atEnd = []; // what must not outlive the driver

const SCENARIOS = {
  /** Loaded once from gemma4-serve; then the server is gone, and the page, the model and the answers are there. */
  async without_the_server(context) {
    const [program, ...parameters] = job.serve;
    const server = spawn(program, parameters, { stdio: ["ignore", "pipe", "inherit"] });
    atEnd.push(() => server.kill("SIGKILL"));
    const ended = new Promise((resolve) => server.once("exit", resolve));
    const address = await within(
      ANSWER_MS,
      "gemma4-serve's address",
      Promise.race([
        new Promise((resolve) => readline.createInterface(server.stdout).once("line", resolve)),
        ended.then(() => Promise.reject(new Error("gemma4-serve ended"))),
      ]),
    );
    const [page] = context.pages();
    await page.goto(address);
    await state(page, "ready", ANSWER_MS);
    await page.locator("#open-settings").click();
    await page.locator("#temperature").fill("0");
    await page.locator("#close-settings").click();
    await ask(page);
    const kept = await keptFiles(page);
    assert.equal(kept.caches.length, 1);
    for (const name of [/^\/index.html$/, /^\/assets\/worker-/, /^\/samples\/\w+\.png$/, /^\/samples\/\w+\.wav$/]) {
      assert.ok(
        kept.files.some((file) => name.test(file)),
        `${name} of ${kept.files}`,
      );
    }
    assert.deepEqual(
      kept.files.filter(
        (name) => !/^\/(index\.html|icon\.svg|assets\/[\w.-]+\.(js|css)|samples\/\w+\.(png|wav))$/.test(name),
      ),
      [],
    );
    server.kill("SIGKILL");
    await within(STEP_MS, "gemma4-serve to end", ended);

    await page.reload();
    await state(page, "ready", ANSWER_MS);
    await ask(page);
    await page.locator("#open-settings").click();
    await page.locator("#page-storage", { hasText: "starts without a network" }).waitFor();
    await page.locator("#drafts-state", { hasText: /^(Ready|Active)/ }).waitFor(); // the drafter is kept, too
    // What is no part of the page is not answered by its worker: a package's file and a path of the API.
    for (const path of ["/package/provenance.json", "/v1/models", "/health"]) {
      assert.equal(
        await page.evaluate(
          (address) =>
            fetch(address).then(
              () => "answered",
              () => "refused",
            ),
          path,
        ),
        "refused",
        path,
      );
    }
    // The bare address, which the server sends on to the package.
    await page.goto(address);
    await state(page, "ready", ANSWER_MS);
    await page.screenshot({ path: path.join(job.output, "offline.png") });
  },

  /** Below a path: an update holds at the next load, whole, and the old build's files are gone. */
  async update(context) {
    await withPageBelow(async ({ server, url, build }) => {
      const [page] = context.pages();
      await page.goto(url);
      await state(page, "choose");
      const old = await keptFiles(page);
      assert.ok(
        old.files.every((name) => name.startsWith(BELOW)),
        String(old.files),
      );
      await build(2);
      const from = server.requests.length;
      await page.reload();
      await state(page, "choose");
      assert.equal(await page.title(), "Build 2");
      await until(
        page,
        async ([prefix, name]) => {
          const names = (await caches.keys()).filter((each) => each.startsWith(prefix));
          return names.length === 1 && names[0] !== name;
        },
        [PAGE_CACHE, old.caches[0]],
      );
      const asked = server.requests.slice(from).map((request) => request.path.slice(BELOW.length));
      assert.deepEqual(
        asked.filter((name) => /^assets\/index-1/.test(name)),
        [],
        "no file of the old build",
      );
      await server.close();
      await page.goto(url);
      await state(page, "choose");
      assert.equal(await page.title(), "Build 2");
      await page.goto(`${url}index.html?package=nowhere/`);
      await state(page, "failed");
    });
  },

  /** A tab with the old build keeps its files for as long as it is open. */
  async update_with_an_old_tab(context) {
    await withPageBelow(async ({ url, build }) => {
      const [first] = context.pages();
      await first.goto(url);
      await keptFiles(first);
      const before = await first.evaluate(() => [...document.scripts].map((script) => script.src));
      await build(2);
      const second = await context.newPage();
      await second.goto(url);
      assert.equal(await second.title(), "Build 2");
      await until(second, async () => Boolean((await navigator.serviceWorker.getRegistration()).waiting));
      assert.equal(await cacheCount(second), 2);
      await first.evaluate((address) => import(address), before[0]); // gone from the server
      await first.close();
      // The worker hears of a closed tab a moment later, and asks who is there at each load.
      for (let loads = 1; ; loads++) {
        if ((await isReloaded(second)) && (await hasOneCache(second))) break;
        assert.ok(loads < 10, "the old build's files are still there");
      }
      assert.equal(await second.title(), "Build 2");
      await second.context().newPage(); // the browser ends with its last tab
      await second.close();
    });
  },

  /** An upload that is not complete is not taken, and the page that was there stays. */
  async half_an_update(context) {
    await withPageBelow(async ({ server, folder, url, build }) => {
      const page = context.pages().at(-1);
      await page.goto(url);
      await state(page, "choose");
      const old = await keptFiles(page);
      const html = await fs.readFile(path.join(folder, "index.html"));
      await build(2);
      await fs.writeFile(path.join(folder, "index.html"), html); // of the old build
      const from = server.requests.length;
      await page.reload();
      const isAsked = () => server.requests.slice(from).some(({ path }) => path.endsWith("/index.html"));
      for (const end = Date.now() + STEP_MS; !isAsked(); await page.waitForTimeout(50)) {
        assert.ok(Date.now() < end, "the page's worker never asked for index.html");
      }
      await until(page, async () => {
        const { installing, waiting } = await navigator.serviceWorker.getRegistration();
        return !installing && !waiting;
      });
      assert.deepEqual((await keptFiles(page)).caches, old.caches);
      await server.close();
      await page.reload();
      await state(page, "choose");
      assert.equal(await page.title(), "Build 1");
    });
  },

  /** What the owner edits in the page after the build holds without a network, too. */
  async edited_by_its_owner(context) {
    await withPageBelow(async ({ server, folder, url }) => {
      const page = context.pages().at(-1);
      await page.goto(url);
      await keptFiles(page);
      const file = path.join(folder, "index.html");
      const html = await fs.readFile(file, "utf8");
      await fs.writeFile(file, html.replace(/<title>[^<]*/, "<title>Ours"));
      await page.reload();
      assert.equal(await page.title(), "Ours");
      await until(page, async () => {
        const kept = await caches.match(new URL("index.html", document.baseURI));
        return (await kept.text()).includes("<title>Ours");
      });
      await server.close();
      await page.reload();
      assert.equal(await page.title(), "Ours");
    });
  },

  /** Something else at the same address: it is what one sees, and the worker goes. */
  async gone(context) {
    await withPageBelow(async ({ folder, url }) => {
      const page = context.pages().at(-1);
      await page.goto(url);
      await keptFiles(page);
      await fs.rm(folder, { recursive: true });
      await fs.mkdir(folder);
      await fs.writeFile(path.join(folder, "index.html"), "<title>Another program</title>");
      await page.goto(url);
      assert.equal(await page.title(), "Another program");
      await until(
        page,
        async (prefix) =>
          !(await navigator.serviceWorker.getRegistration()) &&
          !(await caches.keys()).some((name) => name.startsWith(prefix)),
        PAGE_CACHE,
      );
    });
  },
};

/** Chromium on Linux as it is installed: the page names the flags, and with these it finds a device. */
async function withoutFlags() {
  const server = await servePage({ "/": job.page });
  const plain = FLAGS.filter((flag) => !/webgpu/i.test(flag));
  try {
    const told = await withContext(async (context) => {
      const [page] = context.pages();
      await page.goto(server.url);
      await state(page, "no-webgpu");
      await page.screenshot({ path: path.join(job.output, "no-flags.png") });
      return page.locator("#error li").first().innerText();
    }, plain);
    const flags = told.split(" ").filter((word) => word.startsWith("--"));
    assert.ok(flags.includes("--enable-unsafe-webgpu"), told);
    await withContext(
      async (context) => {
        const [page] = context.pages();
        await page.goto(server.url);
        await state(page, "choose");
      },
      [...plain, ...flags],
    );
  } finally {
    await server.close();
  }
}

const scenarios = {};
for (const [name, scenario] of Object.entries({ ...SCENARIOS, without_flags: withoutFlags })) {
  if ((job.only && !job.only.includes(name)) || job.leaveOut?.includes(name)) continue;
  const started = Date.now();
  const run = scenario === withoutFlags ? withoutFlags() : withContext((context) => scenario(context));
  const limited = within(SCENARIO_MS, `scenario ${name}`, run);
  const error = await limited.then(
    () => null,
    (problem) => String(problem?.stack ?? problem),
  );
  scenarios[name] = { seconds: (Date.now() - started) / 1000, error };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ scenarios }));
for (const action of atEnd) action();
process.exit(0); // and with it whatever hangs
