// What the page waits for, and what may never come, with a scripted engine.
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
};
