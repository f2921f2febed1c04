// Scenarios with the stock client for a browser that is not Chromium: those of page_real.mjs, a page left in a reply, and a
// package of which several libraries fit.
import assert from "node:assert/strict";
import { ANSWER_MS } from "./limits.mjs";
import { BEGINNINGS } from "./page_beginnings.mjs";
import { converse, librarySaid, nameIn } from "./page_choice.mjs";
import { REAL } from "./page_real.mjs";

const { memory, fast_by_default, sees_and_hears } = REAL;

/** In the page: after the third piece of an answer it hears nothing more of it while `holdsAnswer` is set. */
function deafenAnswers() {
  let pieces = 0;
  window.Worker = class extends Worker {
    constructor(...args) {
      super(...args);
      // The first of the listeners: what it stops none of the page's own hears.
      this.addEventListener("message", (event) => {
        if (window.holdsAnswer && (pieces >= 3 || event.data.kind === "chunk") && ++pieces > 3)
          event.stopImmediatePropagation();
      });
    }
  };
}

export const FIREFOX = {
  async start({ context, open, state }) {
    const [page] = context.pages();
    await context.addInitScript(deafenAnswers);
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
    await page.evaluate(() => {
      window.holdsAnswer = true;
    });
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

  ...BEGINNINGS,

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
