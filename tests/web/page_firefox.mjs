// Scenarios with the stock client for a browser that is not Chromium: those of page_real.mjs, a page left in a reply, and a
// package of which several libraries fit.
import assert from "node:assert/strict";
import { converse, librarySaid, nameIn } from "./page_choice.mjs";
import { REAL } from "./page_real.mjs";

const ANSWER_MS = 60_000;
const { memory, fast_by_default, sees_and_hears } = REAL;

/** Run in the page: reload it as soon as a word of the next answer is there, before the driver could see that. */
const reloadAtFirstWord = () => {
  const messages = document.querySelector("#messages");
  const before = messages.querySelectorAll(".answer").length;
  const observer = new MutationObserver(() => {
    const answers = messages.querySelectorAll(".answer");
    if (answers.length === before || !/\w/.test(answers[answers.length - 1].textContent)) return;
    observer.disconnect();
    location.reload();
  });
  observer.observe(messages, { childList: true, characterData: true, subtree: true });
  window.isBefore = true;
};

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
    await page.evaluate(reloadAtFirstWord);
    const from = server.requests.length;
    await ask(page, question);
    await page.waitForFunction(() => !window.isBefore, null, { timeout: ANSWER_MS });
    await state(page, "ready");
    assert.equal(requested(from, /\.(bin|wasm)$/).length, 0);
    assert.equal(await page.locator("#messages li:last-child").getAttribute("data-state"), "interrupted");
    await page.getByRole("button", { name: "Write the answer again" }).click();
    const item = await answered(page, ANSWER_MS);
    assert.equal(await item.locator(".answer").innerText(), answer);
  },

  /** One of those that fit is chosen; it answers, and another one that a person fixes answers the same. */
  async nine_libraries({ context, open, state, ...tools }) {
    const { fitting, turns } = tools.job.answers;
    const [page] = context.pages();
    await open(page, "nine");
    await state(page, "ready");
    const said = await librarySaid(page);
    const chosen = nameIn(said);
    assert.ok(fitting.includes(chosen), said);
    await converse(page, tools, turns);
    const another = fitting.find((name) => name !== chosen);
    await page.locator("#open-settings").click();
    await page.locator("#change-model").click();
    await state(page, "check");
    await page.locator("#library").selectOption(another);
    await page.locator("#library-why", { hasText: `Library ${another}: chosen in the settings` }).waitFor();
    await page.locator("#download").click();
    await state(page, "ready");
    await converse(page, tools, turns.slice(0, 1));
  },
};
