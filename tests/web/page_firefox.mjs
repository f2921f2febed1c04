// Scenarios with the stock client for a browser that is not Chromium: those of page_real.mjs, and a page left in a reply.
import assert from "node:assert/strict";
import { REAL } from "./page_real.mjs";

const ANSWER_MS = 60_000;
const { memory, fast_by_default, sees_and_hears } = REAL;

export const FIREFOX = {
  async start({ context, open, state }) {
    const [page] = context.pages();
    await open(page, "seeing");
    await state(page, "ready");
  },
  memory,
  fast_by_default,
  sees_and_hears,

  /** What was written stays, the model starts again from the browser's storage, and the answer can be had anew. */
  async reload_in_a_reply({ context, job, server, ask, answered, state, requested }) {
    const [page] = context.pages();
    const [question, answer] = job.answers.refusal;
    await page.locator("#new-chat").click();
    await ask(page, question);
    await page.locator("#messages li:last-child .answer", { hasText: /\w/ }).waitFor({ timeout: ANSWER_MS });
    const from = server.requests.length;
    await page.reload();
    await state(page, "ready");
    assert.equal(requested(from, /\.(bin|wasm)$/).length, 0);
    assert.equal(await page.locator("#messages li:last-child").getAttribute("data-state"), "interrupted");
    await page.getByRole("button", { name: "Write the answer again" }).click();
    const item = await answered(page, ANSWER_MS);
    assert.equal(await item.locator(".answer").innerText(), answer);
  },
};
