// Scenarios with a drafter: with a scripted engine, and with the stock client.
import assert from "node:assert/strict";
import { ANSWER_MS } from "./limits.mjs";

const OF_DRAFTER = /\/(drafter-tensor-cache\.json|params_shard_drafter_\d+\.bin)$/;

async function inSettings(page, action) {
  await page.locator("#open-settings").click();
  const result = await action();
  await page.locator("#close-settings").click();
  return result;
}

const draftsState = (page) => inSettings(page, () => page.locator("#drafts-state").innerText());

/** Names of the drafter's files that the browser keeps. */
async function kept(page) {
  const urls = await page.evaluate(async () => {
    const found = [];
    for (const name of await caches.keys())
      for (const { url } of await (await caches.open(name)).keys()) found.push(url);
    return found;
  });
  return urls.filter((url) => OF_DRAFTER.test(url)).map((url) => url.split("/").at(-1));
}

/** What the engine's worker was told to begin with. */
const started = (page) => page.workers()[0].evaluate(() => self.started.drafter);

async function answerOf({ ask, answered }, page, question) {
  await ask(page, question);
  const item = await answered(page, ANSWER_MS);
  assert.equal(await item.getAttribute("data-state"), "done");
  return { text: await item.locator(".answer").innerText(), stats: await item.locator(".stats").innerText() };
}

export const SCRIPTED_DRAFTS = {
  /** The drafter comes with the package, its guesses show in the speed, a switch leaves it out, and it goes with the package. */
  async drafter_switch({ context, open, state, accessible, ...tools }) {
    const page = await context.newPage();
    await open(page, "guessing");
    await state(page, "ready");
    assert.deepEqual((await kept(page)).sort(), ["drafter-tensor-cache.json", "params_shard_drafter_0.bin"]);
    const { url, files } = await started(page);
    assert.match(url, /\/guessing\/resolve\/[0-9a-f]{16}\/$/);
    assert.match(files["params_shard_drafter_0.bin"].sha256, /^[0-9a-f]{64}$/);
    await page.locator("#new-chat").click();
    assert.match((await answerOf(tools, page, "Please guess")).stats, / tokens\/s · 2\.0 tokens a step · first after /);
    assert.equal(await draftsState(page), "Active: of 8 drafts 4 came true.");
    await page.locator("#open-settings").click();
    await page.locator("#drafts").uncheck();
    await page.locator("#drafts-state", { hasText: /^Active.*when the model starts again/ }).waitFor();
    await accessible(page, "settings with a drafter");
    await page.locator("#change-model").click();
    await state(page, "check");
    await page.locator("#download", { hasText: "Start" }).click();
    await state(page, "ready");
    assert.equal(await started(page), undefined);
    assert.equal(await draftsState(page), "Off for this model.");
    await page.reload();
    await state(page, "ready");
    assert.equal(await started(page), undefined);
    assert.equal(await draftsState(page), "Off for this model.");
    await page.locator("#open-settings").click();
    await page.locator("#drafts").check();
    await page.getByRole("button", { name: /^Remove .*\/guessing\/$/ }).click();
    await page.locator("#stored", { hasNotText: "/guessing/" }).waitFor();
    assert.deepEqual(await kept(page), []);
    await page.close();
  },

  /** Its shard is damaged on the server: the page says so, and the model answers without it. */
  async without_its_drafter({ context, open, state, ...tools }) {
    const page = await context.newPage();
    await open(page, "misguessing");
    await state(page, "ready");
    const notice = page.locator("#notices .error");
    await notice
      .filter({ hasText: "answers without its drafter: params_shard_drafter_0.bin arrived damaged" })
      .waitFor();
    assert.equal(await started(page), undefined);
    assert.equal(await draftsState(page), "Not active: its files did not arrive.");
    await page.locator("#new-chat").click();
    const { text, stats } = await answerOf(tools, page, "Hello");
    assert.equal(text, "Answer 1.");
    assert.doesNotMatch(stats, /a step/);
    await page.close();
  },
};

export const REAL_DRAFTS = {
  /** The words of the model alone, in fewer steps than it has tokens. */
  async guesses({ context, job, open, state, ...tools }) {
    const [page] = context.pages();
    await open(page, "drafted");
    await state(page, "ready");
    await inSettings(page, () => page.locator("#temperature").fill("0"));
    await page.locator("#new-chat").click();
    const { memory, refusal } = job.answers;
    const steps = [];
    for (const [question, answer] of [...memory, refusal, refusal]) {
      if (question === refusal[0]) await page.locator("#new-chat").click();
      const { text, stats } = await answerOf(tools, page, question);
      assert.equal(text, answer);
      steps.push(Number(/([\d.]+) tokens a step/.exec(stats)?.[1] ?? 1));
    }
    const told = await draftsState(page);
    // Guesses begin when the time of a step is known, and may pause where they do not pay.
    assert.ok(Math.max(...steps) > 1, `tokens a step: ${steps}; ${told}`);
    const [, guessed, right] = /^Active: of ([\d,]+) drafts ([\d,]+) came true\.$/.exec(told) ?? [];
    assert.ok(Number(right) > 0 && Number(right) <= Number(guessed), told);
  },

  /** The shard is gone from the browser's storage between its check and its use: the same words, one by one. */
  async drafter_gone({ context, job, state, ...tools }) {
    const [page] = context.pages();
    await page.addInitScript(() => {
      const { Worker } = globalThis;
      const drop = async () => {
        for (const name of await caches.keys()) {
          const cache = await caches.open(name);
          for (const request of await cache.keys())
            if (/params_shard_drafter_0\.bin$/.test(request.url)) await cache.delete(request);
        }
      };
      // The page has checked its files when it makes the worker.
      globalThis.Worker = class extends Worker {
        gone = drop();
        postMessage(message) {
          void this.gone.then(() => super.postMessage(message));
        }
      };
    });
    await page.reload();
    await state(page, "ready");
    await page.locator("#new-chat").click();
    const [question, answer] = job.answers.memory[0];
    const { text, stats } = await answerOf(tools, page, question);
    assert.equal(text, answer);
    assert.doesNotMatch(stats, /a step/);
    assert.match(await draftsState(page), /^Not active: no drafter: .*params_shard_drafter_0\.bin: .*404/);
  },
};
