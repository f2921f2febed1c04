// Scenarios about the list of chats, files of them, and two tabs, with a scripted engine.
import assert from "node:assert/strict";
import fs from "node:fs/promises";
import path from "node:path";
import { becomes } from "./chromium.mjs";

/** Works in a page of its own, in a browser without chats. */
export async function inPage(context, { server }, action) {
  const page = await context.newPage();
  await page.goto(server.url);
  await page.evaluate(async () => {
    localStorage.clear();
    sessionStorage.clear();
    if (!(await indexedDB.databases()).some(({ name }) => name === "gemma4-chat")) return;
    await new Promise((resolve) => {
      const opening = indexedDB.open("gemma4-chat");
      opening.onsuccess = () => {
        const writing = opening.result.transaction("conversations", "readwrite");
        writing.objectStore("conversations").clear();
        writing.oncomplete = () => {
          opening.result.close();
          resolve();
        };
      };
    });
  });
  try {
    return await action(page);
  } finally {
    await page.close();
  }
}

export async function chatAbout({ ask, answered }, page, ...questions) {
  await page.locator("#new-chat").click();
  for (const question of questions) {
    await ask(page, question);
    await answered(page);
  }
}

const titles = (page) => page.locator("#conversations .title").allInnerTexts();

/** The list of chats has these titles, as soon as the page has drawn it; `arrange` brings them in an order. */
const haveTitles = (page, expected, { what, arrange = (found) => found } = {}) =>
  becomes(page, async () => arrange(await titles(page)), expected, what);

async function choose(page, title, item) {
  await page.getByRole("button", { name: `More for the chat “${title}”` }).click();
  await page.getByRole("menuitem", { name: `${item} the chat “${title}”` }).click();
}

async function openChats(page) {
  await page.locator("#open-settings").click();
  await page.locator("#settings-nav button", { hasText: "Chats" }).click();
}

/** What a click hands to the browser as a download. */
async function downloaded(page, click) {
  const [download] = await Promise.all([page.waitForEvent("download"), click()]);
  return { name: download.suggestedFilename(), text: await fs.readFile(await download.path(), "utf8") };
}

async function importFile(page, name, content) {
  await page
    .locator("#import-file")
    .setInputFiles({ name, mimeType: "application/json", buffer: Buffer.from(content) });
}

const chat = (...messages) => ({
  title: "",
  created: 1,
  updated: 2,
  system: "",
  thinking: false,
  tools: false,
  forgotten: 0,
  messages,
});
const asked = (text) => ({ id: "1", role: "user", text });
const said = (raw) => ({ id: "1", role: "assistant", state: "done", rounds: [{ opened: "", raw, results: [] }] });
const chats = (...conversations) => JSON.stringify({ schema: "gemma4-chats", schema_version: 1, conversations });

export const CHATS = {
  /** By menu, by keyboard, and taken back by Escape; a name is text, and outlives a reload. */
  async rename({ context, open, state, accessible, shot, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await chatAbout(tools, page, "First question");
      await chatAbout(tools, page, "Second question");
      await choose(page, "First question", "Rename");
      const field = page.getByRole("textbox", { name: "Name of the chat" });
      await field.fill("<b>Trees</b>  & more");
      await field.press("Enter");
      await haveTitles(page, ["Second question", "<b>Trees</b> & more"], { what: "the order stays" });
      assert.equal(await page.locator("#conversations b").count(), 0);
      // By keyboard alone.
      await page.locator("#conversations .open").first().focus();
      await page.keyboard.press("F2");
      await page.keyboard.type("No");
      await page.keyboard.press("Escape");
      await haveTitles(page, "Second question", { arrange: ([first]) => first });
      await page.keyboard.press("Tab");
      await page.keyboard.press("Enter");
      await page.getByRole("menuitem", { name: /^Rename/ }).waitFor();
      await accessible(page, "the menu of a chat");
      await shot(page, "chat-menu-desktop-light");
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("ArrowUp");
      await page.keyboard.press("Enter");
      await page.keyboard.type("Two");
      await accessible(page, "renaming");
      await page.keyboard.press("Enter");
      await haveTitles(page, ["Two", "<b>Trees</b> & more"]);
      assert.equal(await page.locator("#title").innerText(), "Two");
      assert.ok(
        await page
          .locator("#conversations .open")
          .first()
          .evaluate((open) => open === document.activeElement),
      );
      await page.reload();
      await haveTitles(page, ["Two", "<b>Trees</b> & more"]);
      await choose(page, "Two", "Rename");
      await field.fill("");
      await page.locator("#title").click(); // looking away keeps, and an empty name is none
      await haveTitles(page, "Second question", { arrange: ([first]) => first });
    });
  },

  /** Everything about the list without a mouse; the focus is never lost. */
  async keyboard_only({ context, open, state, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      const focused = () => page.evaluate(() => document.activeElement.textContent || document.activeElement.id);
      for (const question of ["One", "Two", "Three"]) {
        await page.keyboard.press("Control+Shift+o");
        await page.keyboard.type(question);
        await page.keyboard.press("Enter");
        await tools.answered(page);
      }
      await page.keyboard.press("Control+k");
      await page.keyboard.press("ArrowDown");
      assert.equal(await focused(), "Three");
      const remove = async () => {
        await page.keyboard.press("Tab");
        await page.keyboard.press("Enter");
        await page.keyboard.press("End");
        await page.keyboard.press("Enter");
      };
      await remove();
      assert.equal(await focused(), "Two");
      // A reply that is written meanwhile does not take the focus out of the list.
      await page.keyboard.press("Enter");
      const goOn = await tools.askHeld(page, "Something long");
      await page.locator("#conversations .open").last().focus();
      await goOn();
      await tools.answered(page);
      assert.equal(await focused(), "One");
      await remove();
      assert.equal(await focused(), "Two");
      await remove();
      assert.equal(await focused(), "New chat");
    });
  },

  /** In titles and in what was said, in any case, with and without accents. */
  async search({ context, open, state, accessible, shot, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      assert.ok(await page.locator("#search-box").isHidden());
      await chatAbout(tools, page, "Über Bäume", "And a birch?");
      await chatAbout(tools, page, "Show me markdown");
      await chatAbout(tools, page, "Please think");
      await page.keyboard.press("Control+k");
      const finds = async (words, expected) => {
        await page.keyboard.press("Control+a");
        await page.keyboard.type(words);
        await haveTitles(page, expected, { what: words });
      };
      await finds("baume", ["Über Bäume"]);
      await finds("BIRCH über", ["Über Bäume"]);
      assert.match(await page.locator("#conversations .snippet").innerText(), /birch/);
      await finds("longest", ["Show me markdown"]);
      await accessible(page, "searching");
      await shot(page, "search-desktop-light");
      await finds("care", ["Please think"]); // "A careful answer."; the reasoning does not count
      await finds("channel", []);
      await page.locator("#search-state", { hasText: "No chat has these words" }).waitFor();
      await page.keyboard.press("Escape");
      await haveTitles(page, 3, { arrange: (found) => found.length });
      await page.keyboard.type("bäume");
      await page.keyboard.press("ArrowDown");
      await page.keyboard.press("Enter");
      assert.equal(await page.locator("#title").innerText(), "Über Bäume");
    });
  },

  /** One chat and all chats out and in again: the same words, ids of their own, nothing replaced; and Undo. */
  async export_and_import({ context, open, state, accessible, shot, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await chatAbout(tools, page, "First question", "Show me markdown");
      await chatAbout(tools, page, "Second question");
      await choose(page, "First question", "Rename");
      await page.keyboard.type("Über <Bäume>");
      await page.keyboard.press("Enter");
      await page.locator("#conversations .open", { hasText: "Über" }).click();
      const words = await page.locator("#messages").innerText();
      const one = await downloaded(page, () => choose(page, "Über <Bäume>", "Export"));
      assert.match(one.name, /^gemma4-chat-uber-baume-\d{4}-\d\d-\d\d\.json$/);
      assert.equal(JSON.parse(one.text).conversations.length, 1);
      await openChats(page);
      const all = await downloaded(page, () => page.locator("#export-chats").click());
      assert.match(all.name, /^gemma4-chats-\d{4}-\d\d-\d\d\.json$/);
      await importFile(page, one.name, one.text);
      await page.locator("#transfer-state", { hasText: "1 chat imported" }).waitFor();
      await page.locator("#close-settings").click();
      await haveTitles(page, ["Second question", "Über <Bäume>", "Über <Bäume>"], { arrange: (found) => found.sort() });
      assert.equal(await page.locator("#messages").innerText(), words, "the one that was imported is open");
      await page.getByRole("button", { name: "Undo" }).click();
      await haveTitles(page, ["Second question", "Über <Bäume>"], { arrange: (found) => found.sort() });
      await openChats(page);
      await page.locator("#clear-chats").click();
      await page.locator("#clear-chats").click();
      await openChats(page);
      assert.ok(await page.locator("#export-chats").isDisabled());
      await importFile(page, all.name, all.text);
      await page.locator("#transfer-state", { hasText: "2 chats imported" }).waitFor();
      await importFile(page, all.name, all.text); // the same file once more
      await page.locator("#transfer-state", { hasText: "2 chats imported" }).waitFor();
      await accessible(page, "after an import");
      await page.locator("#close-settings").click();
      await page.waitForFunction(() => document.querySelectorAll("#conversations .title").length === 4);
      await page.reload();
      await state(page, "ready");
      await haveTitles(page, ["Second question", "Second question", "Über <Bäume>", "Über <Bäume>"], {
        arrange: (found) => found.sort(),
      });
      await page.locator("#conversations .open", { hasText: "Über" }).first().click();
      assert.equal(await page.locator("#messages").innerText(), words);
      // It can be gone on with.
      await tools.ask(page, "Hello");
      assert.match(await (await tools.answered(page)).innerText(), /Answer/);
    });
  },

  /** Files that are none, damaged, too large or meant to do harm: said in words, and nothing is imported. */
  async damaged_imports({ context, open, state, accessible, shot, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await chatAbout(tools, page, "Mine");
      await openChats(page);
      const whole = chats(chat(asked("A"), said("B")), chat(asked("C"), said("D")));
      const cases = [
        ["", /empty/],
        ["{", /no JSON/],
        [whole.slice(0, -20), /no JSON/],
        [Buffer.from([0xff, 0xfe, 0x7b]), /UTF-8/],
        ["[]", /no chats of this page/],
        ["null", /no chats of this page/],
        [JSON.stringify({ conversations: [] }), /no chats of this page/],
        [whole.replace('"schema_version":1', '"schema_version":2'), /version 2/],
        [chats(), /holds no chats/],
        [
          chats(chat(asked("A"), said("B")), chat(asked("C"), { ...said("D"), rounds: 7 })),
          /conversations\[1\]\.messages\[1\]\.rounds is no list/,
        ],
        [chats(chat(said("B"))), /messages\[0\]\.role should be user/],
        [chats(chat(asked("A"), asked("B"))), /messages\[1\]\.role should be assistant/],
        [chats(chat(asked(["A"]))), /messages\[0\]\.text is no text/],
        [chats({ ...chat(), messages: {} }), /messages is no list/],
        [chats({ ...chat(), created: "x" }), /created is no number/],
        [chats(chat(asked("A"), { ...said("B"), state: "owned" })), /state is unknown/],
        [chats(...Array(5001).fill(chat())), /5,001 entries/],
        [chats(chat(asked("x".repeat(2_000_001)))), /2,000,001 characters/],
      ];
      for (const [content, words] of cases) {
        await importFile(page, "chats.json", content);
        await page
          .locator("#transfer-error", { hasText: words })
          .waitFor()
          .catch(async () => {
            throw new Error(`${words}: ${await page.locator("#transfer-error").innerText()}`);
          });
        assert.match(await page.locator("#transfer-error").innerText(), /chats\.json[\s\S]*Nothing was imported/);
      }
      await accessible(page, "after a damaged import");
      await shot(page, "import-error-desktop-light");
      // A file of more than 100 MiB is not even read.
      const large = path.join(tools.job.output, "large.json");
      await fs.writeFile(large, "");
      await fs.truncate(large, 101 * 2 ** 20);
      await page.locator("#import-file").setInputFiles(large);
      await page.locator("#transfer-error", { hasText: "101 MiB" }).waitFor();
      await fs.rm(large);
      await page.locator("#close-settings").click();
      await haveTitles(page, ["Mine"]);

      const evil =
        '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>[x](javascript:window.hacked=1)';
      const harm = {
        ...chat(asked(evil), { ...said(evil), state: "writing" }),
        title: `${evil}\u202e`,
        id: "__proto__",
        updated: 8e15,
      };
      await openChats(page);
      await importFile(page, "evil.json", chats(harm).replace('"title"', '"__proto__":{"polluted":1},"title"'));
      await page.locator("#transfer-state", { hasText: "1 chat imported" }).waitFor();
      await page.locator("#close-settings").click();
      await haveTitles(page, 2, { arrange: (found) => found.length });
      assert.equal(
        await page
          .locator("#messages :is(img, script), #messages a[href^=javascript], #conversations :is(img, script)")
          .count(),
        0,
      );
      assert.deepEqual(await page.evaluate(() => [window.hacked, {}.polluted]), [undefined, undefined]);
      assert.equal(await page.locator("#messages li:last-child").getAttribute("data-state"), "interrupted");
    });
  },

  /** Two tabs: what one does with the chats, the other shows; nothing is written over. */
  async two_tabs({ context, open, state, ...tools }) {
    await inPage(context, tools, async (first) => {
      await open(first, "tiny");
      await state(first, "ready");
      await chatAbout(tools, first, "Shared question");
      const second = await context.newPage();
      await open(second, "tiny");
      await state(second, "elsewhere");
      await haveTitles(second, ["Shared question"]);
      await choose(second, "Shared question", "Rename");
      await second.keyboard.type("Named elsewhere");
      await second.keyboard.press("Enter");
      await first.locator("#title", { hasText: "Named elsewhere" }).waitFor();
      // Renamed while it is written in the other tab: both stay.
      let goOn = await tools.askHeld(first, "Something long");
      await first.locator("#messages", { hasText: "word10" }).waitFor();
      await choose(second, "Named elsewhere", "Rename");
      await second.keyboard.type("Named meanwhile");
      await second.keyboard.press("Enter");
      await first.locator("#title", { hasText: "Named meanwhile" }).waitFor();
      await goOn();
      const item = await tools.answered(first);
      assert.match(await item.innerText(), /word199/);
      await second.locator("#messages li:last-child", { hasText: "word199" }).waitFor();
      assert.equal(await first.locator("#messages li").count(), 4);
      // Who edits a message in a tab is not thrown out of it by what the other writes.
      goOn = await tools.askHeld(first, "Again something long");
      await second.locator('#messages > li[data-role="user"]').first().hover();
      await second.getByRole("button", { name: "Edit this message and ask again" }).first().click();
      await second.keyboard.type("Half a ");
      await second.locator("#messages", { hasText: "Again something long" }).waitFor();
      await goOn();
      await tools.answered(first);
      await second.locator("#messages > li:last-child", { hasText: "word199" }).waitFor();
      await second.keyboard.type("thought");
      assert.match(await second.getByRole("textbox", { name: "Edited message" }).inputValue(), /Half a thought$/);
      await chatAbout(tools, first, "Another");
      await second.locator("#conversations .title", { hasText: "Another" }).waitFor();
      await choose(second, "Another", "Delete");
      await first.locator("#conversations .title", { hasText: "Another" }).waitFor({ state: "detached" });
      assert.equal(await first.locator("#messages li").count(), 0);
      // Deleted elsewhere while it is written: it stays so.
      await tools.askHeld(first, "Something long");
      await first.locator("#messages", { hasText: "word20" }).waitFor();
      await choose(second, "Something long", "Delete");
      await first.locator("#stop").waitFor({ state: "hidden" });
      await first.waitForTimeout(200);
      await first.reload();
      await state(first, "ready");
      assert.deepEqual(await titles(first), ["Named meanwhile"]);
      await second.close();
    });
  },

  /** Deleted while it is written: it does not come back. */
  async delete_while_writing({ context, open, state, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await chatAbout(tools, page);
      await tools.askHeld(page, "Something long");
      await page.locator("#messages", { hasText: "word10" }).waitFor();
      await choose(page, "Something long", "Delete");
      await page.locator("#stop").waitFor({ state: "hidden" });
      assert.deepEqual(await titles(page), []);
      await page.reload();
      await state(page, "ready");
      assert.deepEqual(await titles(page), []);
    });
  },
};
