// What the page waits for, and what may never come, with a scripted engine.
import assert from "node:assert/strict";
import { INSECURE_HOST } from "./chromium.mjs";
import { inPage } from "./page_scripted.mjs";

/** In the page: garbage is collected all the time, as it is where memory is short. */
function collectGarbage() {
  setInterval(() => window.gc(), 1);
}

/** In the page: a connection to a database is closed under whoever uses it next. */
function closeDatabases() {
  const { transaction } = IDBDatabase.prototype;
  IDBDatabase.prototype.transaction = function (...args) {
    if (window.closes) {
      window.closes = false;
      this.close();
    }
    return transaction.apply(this, args);
  };
}

const SMALLER = { models: [{ name: "The small one", address: "/tiny/", size: 10_000_000, memory: 20_000_000 }] };

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

  /** A page that the browser ended while its model answered does not go on by itself when it is opened again. */
  async page_killed({ context, server, open, state, askHeld, accessible }) {
    const killed = await context.newPage();
    await open(killed, "large");
    await state(killed, "check");
    await killed.locator("#download").click();
    await state(killed, "ready");
    await askHeld(killed, "Something long");
    await killed.locator("#messages", { hasText: "word10" }).waitFor();
    const gone = killed.waitForEvent("crash");
    void killed.goto("chrome://crash").catch(() => undefined);
    await gone;
    await killed.close();
    await inPage(context, async (page) => {
      await page.route("**/models.json", (route) => route.fulfill({ json: SMALLER }));
      await open(page, "large");
      await state(page, "check");
      await page.locator(".findings .risk", { hasText: "The page ended while it answered at" }).waitFor();
      await accessible(page, "the check of a package whose page was ended");
      await page.locator("#smaller button", { hasText: "The small one" }).waitFor();
      await page.locator("#download", { hasText: "Start" }).click();
      await state(page, "ready");
      await page.goto(server.url); // what ended well is not warned of
      await page.goBack();
      await state(page, "ready", "check");
      assert.equal(await page.locator(".findings .risk", { hasText: "The page ended" }).count(), 0);
    });
  },

  /** A phone's browser closes the database of a tab that was put aside: chats are kept all the same. */
  async database_closed({ context, open, state, ask, answered }) {
    await inPage(context, async (page) => {
      await page.addInitScript(closeDatabases);
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await page.evaluate(() => (window.closes = true));
      await ask(page, "A chat that stays");
      await answered(page);
      await page.reload();
      await page.locator("#messages", { hasText: "A chat that stays" }).waitFor();
    });
  },

  /** Over plain http from another machine a browser gives a page neither WebGPU nor storage: it opens, and says why. */
  async plain_http({ context, server, state, accessible, expectComplaint }) {
    await inPage(context, async (page) => {
      const { port } = new URL(server.url);
      await page.goto(`http://${INSECURE_HOST}:${port}/?package=/tiny/`);
      assert.equal(await page.evaluate(() => isSecureContext), false);
      expectComplaint(/Cross-Origin-Opener-Policy header has been ignored/); // the browser's own words
      await state(page, "no-webgpu");
      assert.match(await page.locator("#error").innerText(), /https or localhost/);
      assert.equal(await page.locator("#notices .error").count(), 0);
      await accessible(page, "over plain http");
    });
  },
};
