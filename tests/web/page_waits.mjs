// What the page waits for, and what may never come, with a scripted engine.
import assert from "node:assert/strict";
import { inPage } from "./page_scripted.mjs";

/** In the page: garbage is collected all the time, as it is where memory is short. */
function collectGarbage() {
  setInterval(() => window.gc(), 1);
}

export const WAITS = {
  /** The check of what is stored reads to its end while the browser collects what nobody holds. */
  async garbage_while_checking({ context, open, state, hasSaid }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.addInitScript(collectGarbage);
      await page.reload();
      await hasSaid(page, "Checking tiny");
      await state(page, "ready");
    });
  },

  /** A worker that the browser ends without a word, in the middle of a reply: the model starts again by itself. */
  async worker_gone({ context, open, state, askHeld, answered, ask }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await askHeld(page, "Something long");
      await page.locator("#messages", { hasText: "word10" }).waitFor();
      await page.workers()[0].evaluate(() => self.close());
      await page.locator('#messages li[data-state="interrupted"]').waitFor();
      await page.locator("#notices", { hasText: "The browser has ended the model" }).waitFor();
      await state(page, "ready");
      await ask(page, "Hello");
      assert.equal(await (await answered(page)).getAttribute("data-state"), "done");
    });
  },
};
