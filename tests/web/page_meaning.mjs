// Search by meaning: with scripted models, and with the stock client and the embedder that ships.
import assert from "node:assert/strict";
import { inPage } from "./page_chats.mjs";
import { ANSWER_MS } from "./limits.mjs";

const NOTES = `On Monday we meet Kate in the garden.

Alice owns a ball that is red.

The birthday of Oscar is the third of May.

In the kitchen there is a green lamp.

${"What is longer than the model takes is looked at as far as that. ".repeat(9)}`;
const NOTES_FILE = { name: "notes.txt", mimeType: "text/plain", buffer: Buffer.from(NOTES) };
const READY = "searches chats and documents";

const openSettings = (page) => page.locator("#open-settings").click();
const closeSettings = (page) => page.locator("#close-settings").click();
const waitFor = (page, selector, options) => page.locator(selector, options).waitFor({ timeout: ANSWER_MS });

async function ask(page, address) {
  await page.locator("#embedder").fill(address);
  await page.locator("#check-embedder").click();
}

async function addNotes(page) {
  await page.locator("#document-files").setInputFiles([NOTES_FILE]);
  await waitFor(page, "#documents li", { hasText: NOTES_FILE.name });
}

/** Searches, and waits until what is nearest is a passage. */
async function isNearest(page, text, passage) {
  await page.locator("#search").fill(text);
  await waitFor(page, "#meanings li:first-child", { hasText: passage });
}

export const SCRIPTED_MEANING = {
  /** Documents and chats are found; the model comes back by itself, and is gone when it is ended. */
  async search_by_meaning(tools) {
    const { context, server, open, answered, state, accessible, requested, shot } = tools;
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await tools.ask(page, "Which apple is the best?");
      await answered(page);
      const before = server.requests.length;
      await openSettings(page);
      await ask(page, `${server.url}tiny/`);
      await waitFor(page, "#embedder-error", { hasText: "no model that can embed texts" });
      await ask(page, `${server.url}embedder/`);
      await waitFor(page, "#start-embedder");
      // What both take is told before anything large is fetched.
      assert.match(await page.locator("#embedder-needs").innerText(), /for the page's other model\) at/);
      assert.deepEqual(requested(before, /embedder\/.*\.bin$/), []);
      await page.locator("#start-embedder").click();
      await waitFor(page, "#embedder-state", { hasText: READY });
      await addNotes(page);
      await accessible(page, "the settings of the search");
      await closeSettings(page);
      await isNearest(page, "the ball of Alice", /notes\.txt\s*Alice owns a ball that is red\./);
      await isNearest(page, "the best apple", "Which apple is the best?");
      await accessible(page, "what is found by meaning");
      await shot(page, "meaning-desktop-light");
      await page.locator("#meanings .open").first().click();
      await waitFor(page, "#messages li", { hasText: "Which apple" });

      const loaded = server.requests.length;
      await page.reload();
      await state(page, "ready");
      await openSettings(page);
      await waitFor(page, "#embedder-state", { hasText: READY });
      await closeSettings(page);
      await isNearest(page, "a lamp in the kitchen", "In the kitchen there is a green lamp.");
      assert.deepEqual(requested(loaded, /embedder\/.*\.bin$/), []);
      await openSettings(page);
      await page.locator("#documents button").click();
      await page.locator("#documents li").waitFor({ state: "detached", timeout: ANSWER_MS });
      await page.locator("#stop-embedder").click();
      await closeSettings(page);
      await page.locator("#meaning-box").waitFor({ state: "hidden", timeout: ANSWER_MS });
    });
  },
};

export const REAL_MEANING = {
  /** Other words for the same are found, before there is a model that chats. */
  async search_without_a_chat(tools) {
    const { context, server, state } = tools;
    await inPage(context, tools, async (page) => {
      await page.reload(); // without the settings of others, which have a model in a tab of theirs
      await state(page, "choose");
      await openSettings(page);
      await ask(page, `${server.url}embedder/`);
      await page.locator("#start-embedder").click({ timeout: ANSWER_MS });
      await waitFor(page, "#embedder-state", { hasText: READY });
      await addNotes(page);
      // The field stands above a list of chats: one of them is enough.
      await closeSettings(page);
      await page.locator("#search-box").evaluate((box) => {
        box.hidden = false;
      });
      await isNearest(page, "What colour is Alice's ball?", "Alice owns a ball that is red.");
      await isNearest(page, "When was Oscar born?", "The birthday of Oscar is the third of May.");
    });
  },
};
