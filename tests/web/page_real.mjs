// Scenarios with the stock client: one browser, one tab, one after the other.
import assert from "node:assert/strict";
import { ANSWER_MS } from "./limits.mjs";

const SHARD = /params_shard_0\.bin$/;
const HEAVY = /\.(bin|wasm)$/;

async function answerOf({ ask, answered }, page, question, patience = ANSWER_MS) {
  await ask(page, question);
  const item = await answered(page, patience);
  assert.equal(await item.getAttribute("data-state"), "done");
  return item.locator(".answer").innerText();
}

/** What the settings say of gemma4-web. */
async function fastState(page) {
  await page.locator("#open-settings").click();
  const text = await page.locator("#fast-state").innerText();
  await page.locator("#close-settings").click();
  return text;
}

/** Names of the files of rows of per-layer embeddings in the browser's storage. */
const rowFiles = (page) =>
  page.evaluate(async () => {
    const root = await navigator.storage.getDirectory();
    const folder = await root.getDirectoryHandle("gemma4-web-rows", { create: true });
    return Array.fromAsync(folder.keys());
  });

async function setTable(page, place) {
  await page.locator("#open-settings").click();
  await page.locator("#table").selectOption(place);
  await page.locator("#close-settings").click();
}

async function tableState(page) {
  await page.locator("#open-settings").click();
  const text = await page.locator("#table-state").innerText();
  await page.locator("#close-settings").click();
  return text;
}

async function setFast(page, checked) {
  await page.locator("#open-settings").click();
  await page.locator("#fast").setChecked(checked);
  await page.locator("#close-settings").click();
}

/** In the worker: takes the graphics device away at an answer's third piece, however fast the answer comes. */
function loseDeviceInAnswer() {
  const { postMessage } = self;
  let pieces = 0;
  self.postMessage = (message, ...rest) => {
    postMessage(message, ...rest);
    if (message.kind === "chunk" && ++pieces === 3) self.testDevice.destroy();
  };
}

/**
 * In the worker: no result of the device arrives any more until the answer is stopped, but for three reads: of the prompt and
 * of the first two submissions of a step or two. The next ones may have all of the answer, where the first came at once.
 */
function holdAnswer() {
  const { mapAsync } = GPUBuffer.prototype;
  const stopped = new Promise((resolve) =>
    self.addEventListener("message", ({ data }) => data.kind === "stop" && resolve()),
  );
  let reads = 0;
  GPUBuffer.prototype.mapAsync = async function (...args) {
    const isHeld = ++reads > 3;
    await mapAsync.apply(this, args);
    if (isHeld) await stopped;
  };
}

const count = (text) => Number(text?.replaceAll(",", ""));

export const REAL = {
  /** The connection breaks off in the middle of the weights; the rest comes by a range request. */
  async first_run({ context, server, open, state, hasSaid, requested, expectComplaint }) {
    const [page] = context.pages();
    const from = server.requests.length;
    server.faults["/seeing/params_shard_0.bin"] = ["cut"];
    await open(page, "seeing");
    await state(page, "ready");
    await hasSaid(page, "broke off");
    expectComplaint(/ERR_CONTENT_LENGTH_MISMATCH/); // the browser's own words for it
    const shards = requested(from, SHARD);
    assert.equal(shards.length, 2);
    assert.match(shards[1].range, /^bytes=\d+-$/);
    assert.notEqual(shards[1].range, "bytes=0-");
    assert.equal(requested(from, /\.wasm$/).length, 1, "the client takes the library that was checked");
  },

  /** Greedy answers, word for word, to questions that need the turns before. */
  async memory({ context, job, ...tools }) {
    const [page] = context.pages();
    await page.locator("#open-settings").click();
    await page.locator("#temperature").fill("0");
    await page.locator("#close-settings").click();
    let used = 0;
    for (const [question, answer] of job.answers.memory) {
      assert.equal(await answerOf({ ...tools }, page, question), answer);
      const told = Number((await page.locator("#context-text").innerText()).split(" ")[0]);
      assert.ok(told > used, `the context grows: ${used}, ${told}`);
      used = told;
    }
    // As many tokens as the template's own prompt has, and the last reply.
    assert.equal(used, job.answers.memoryTokens);
    assert.match(
      await page.locator("#messages li .stats").last().innerText(),
      / tokens · [\d.]+ tokens\/s · first after \d/,
    );
  },

  /** Most of those answers' steps ran ahead of the client. */
  async fast_by_default({ context }) {
    const [page] = context.pages();
    const [, steps, ahead] = /^Active: of ([\d,]+) decode steps ([\d,]+) ran ahead/.exec(await fastState(page)) ?? [];
    assert.ok(count(ahead) > count(steps) / 2, await fastState(page));
  },

  async regenerate({ context, job, answered }) {
    const [page] = context.pages();
    await page.getByRole("button", { name: "Write the answer again" }).click();
    await page.getByRole("button", { name: "Undo" }).waitFor(); // goes on while the answer is written
    const item = await answered(page, ANSWER_MS);
    assert.equal(await item.locator(".answer").innerText(), job.answers.memory.at(-1)[1]);
    assert.equal(await page.locator("#messages li").count(), 2 * job.answers.memory.length);
  },

  /** With signs that the client would read as places for something else. */
  async system_prompt({ context, job, ...tools }) {
    const [page] = context.pages();
    await page.locator("#new-chat").click();
    await page.locator("#open-settings").click();
    await page.locator("#system").fill(job.answers.system[0]);
    await page.locator("#close-settings").click();
    assert.equal(await answerOf({ ...tools }, page, job.answers.system[1]), job.answers.system[2]);
  },

  /** The shipped model calls the page's calculator, for numbers that are beyond its own. */
  async calculator({ context, ...tools }) {
    const [page] = context.pages();
    await page.locator("#new-chat").click();
    await page.locator("#tools").click();
    // Two rounds behind a declaration of 219 tokens, which this device reads slowly.
    const answer = await answerOf({ ...tools }, page, "What is 4321 * 17?");
    assert.match(answer, /4321 times 17 is 73457\.$/);
    assert.match(await page.locator("#messages li:last-child .call").innerText(), /calculator\(4321 \* 17\)\s*= 73457/);
  },

  /** A picture and a sound that the page offers itself, right word for word, and the time until it says so. */
  async sees_and_hears({ context, answered }) {
    const [page] = context.pages();
    for (const [question, media, answer] of [
      ["What is in the picture?", "img", "A red circle and a blue square."],
      ["What do you hear?", "audio", "Three high beeps."],
    ]) {
      await page.locator("#new-chat").click();
      await page.locator("#suggestions button", { hasText: question }).click();
      await page.locator(`#messages ${media}`).waitFor();
      const item = await answered(page, ANSWER_MS);
      assert.equal(await item.locator(".answer").innerText(), answer);
      assert.match(await item.locator(".stats").innerText(), /first after [\d.]+ m?s/);
    }
  },

  async stop({ context, ask, answered, job, ...tools }) {
    const [page] = context.pages();
    await page.locator("#new-chat").click();
    await page.workers()[0].evaluate(holdAnswer);
    await ask(page, "What is the capital of France?"); // some thirty tokens of refusal
    await page.locator("#messages li:last-child .answer").waitFor({ timeout: ANSWER_MS });
    await page.keyboard.press("Escape");
    const item = await answered(page);
    assert.equal(await item.getAttribute("data-state"), "stopped");
    assert.equal(await answerOf({ ask, answered, ...tools }, page, job.answers.memory[1][0]), job.answers.memory[1][1]);
  },

  /** The graphics device disappears in the middle of a reply: the model starts again by itself. */
  async device_lost({ context, job, ask, answered, state, expectComplaint }) {
    const [page] = context.pages();
    await page.locator("#new-chat").click();
    await page.workers()[0].evaluate(loseDeviceInAnswer);
    await ask(page, job.answers.memory[1][0]);
    await page.locator('#messages li[data-state="interrupted"]').waitFor();
    await page.locator("#notices", { hasText: "device was lost" }).waitFor();
    await state(page, "ready");
    expectComplaint(/Device was lost/); // the client logs it, too
    await page.getByRole("button", { name: "Write the answer again" }).click();
    const item = await answered(page, ANSWER_MS);
    assert.equal(await item.locator(".answer").innerText(), job.answers.memory[1][1]);
  },

  /** The switch is off: the client alone, and the same words. Then on again, for the next start. */
  async without_fast({ context, job, state, ...tools }) {
    const [page] = context.pages();
    await setFast(page, false);
    assert.match(await fastState(page), /^Active.*when the model starts again/);
    await page.reload();
    await state(page, "ready");
    await page.locator("#new-chat").click();
    for (const [question, answer] of job.answers.memory.slice(0, 2))
      assert.equal(await answerOf({ ...tools }, page, question), answer);
    assert.equal(await fastState(page), "Off for this model.");
    await setFast(page, true);
  },

  /** Per-layer embeddings in the browser's storage: the same words, also after a reload in the middle of an answer. */
  async table_in_storage({ context, job, state, ask, ...tools }) {
    const [page] = context.pages();
    await setFast(page, true);
    await setTable(page, "host");
    await page.reload();
    await state(page, "ready");
    await page.locator("#new-chat").click();
    await page.workers()[0].evaluate(holdAnswer);
    await ask(page, job.answers.refusal[0]);
    await page.locator("#messages li:last-child .answer").waitFor({ timeout: ANSWER_MS });
    await page.reload();
    await state(page, "ready");
    await page.locator("#new-chat").click();
    for (const [question, answer] of job.answers.memory.slice(0, 2))
      assert.equal(await answerOf({ ask, ...tools }, page, question), answer);
    assert.match(await tableState(page), /^In the browser's storage, which saves [\d.]+ [KM]iB of graphics memory: /);
    assert.match(await fastState(page), /^Active: of [\d,]+ decode steps 0 ran ahead/);
    const [file] = await rowFiles(page);
    assert.match(file, /^[0-9a-f]{64}$/);
    // Kept for the next load, whatever becomes of it; a tab that ended leaves nothing else.
    await page.workers()[0].evaluate(() => self.close());
    await page.goto("about:blank");
    await page.goBack();
    await state(page, "ready");
    await page.locator("#new-chat").click();
    assert.equal(await answerOf({ ask, ...tools }, page, job.answers.memory[0][0]), job.answers.memory[0][1]);
    assert.deepEqual(await rowFiles(page), [file]);
    await setTable(page, "auto");
  },

  /** A reload brings the chats back and asks the server for nothing but the file that was damaged. */
  async reload_and_repair({ context, server, hasSaid, requested }) {
    const [page] = context.pages();
    const before = await page.locator("#messages").innerText();
    const damaged = await page.evaluate(async () => {
      const cache = await caches.open("webllm/model");
      const key = (await cache.keys()).find((request) => request.url.endsWith(".bin"));
      const data = new Uint8Array(await (await cache.match(key)).arrayBuffer());
      data[1000] ^= 1;
      await cache.put(key, new Response(data));
      return key.url;
    });
    const from = server.requests.length;
    await page.reload();
    await hasSaid(page, "Starting the model");
    assert.deepEqual(
      requested(from, HEAVY).map((request) => request.path),
      ["/seeing/params_shard_0.bin"],
    );
    const repaired = await page.evaluate(async (url) => {
      const data = await (await caches.match(url)).arrayBuffer();
      return new Uint8Array(data)[1000];
    }, damaged);
    assert.equal(
      repaired,
      new Uint8Array(await (await fetch(`${server.url}tiny/params_shard_0.bin`)).arrayBuffer())[1000],
    );
    assert.equal(await page.locator("#messages").innerText(), before);
    assert.ok((await page.locator("#conversations li").count()) >= 3);
  },
};
