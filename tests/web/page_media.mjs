// Scenarios about pictures and sounds in chats, with a scripted engine.
import assert from "node:assert/strict";
import { until } from "./chromium.mjs";
import { picture, png, sound } from "./media_files.mjs";
import { attach, attached, drawn, error, hand, kindsOf, lastRequest, partsOf, withMedia } from "./media_tools.mjs";

const BLOCK = 48;
const PHONE = { width: 360, height: 740 };

/** Waits until the page's database has so many chats, and so many pictures and sounds. */
async function keeps(page, chats, media) {
  const wanted = { conversations: chats, media };
  await until(
    page,
    async (counts) => {
      const database = await new Promise((resolve) => {
        const opening = indexedDB.open("gemma4-chat");
        opening.onsuccess = () => resolve(opening.result);
      });
      const found = {};
      for (const table of Object.keys(counts)) {
        found[table] = await new Promise((resolve) => {
          const asking = database.transaction(table).objectStore(table).count();
          asking.onsuccess = () => resolve(asking.result);
        });
      }
      database.close();
      window.lastCounts = found;
      return JSON.stringify(found) === JSON.stringify(counts);
    },
    wanted,
  ).catch(async () => assert.deepEqual(await page.evaluate(() => window.lastCounts), wanted));
}

export const MEDIA = {
  /** Every way in, several in a message, out again; what is sent is what was shown, and a later turn has it, too. */
  async attach_paste_drop({ accessible, shot, ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      const chosen = page.waitForEvent("filechooser");
      await page.locator("#attach").click();
      assert.ok((await chosen).isMultiple());
      assert.equal(await page.locator("#attach-file").getAttribute("accept"), "image/*,video/*,audio/*");
      await attach(page, picture("cat.png"), picture("dog.png", 40, 60));
      assert.ok(await hand(page, "paste", [picture("pasted.png")]), "the paste is taken");
      await page.locator("#attached img[alt='pasted.png']").waitFor();
      assert.ok(
        await hand(page, "drop", [picture("dropped.png"), sound("beep.wav", 1)]),
        "the drop is taken, and shown",
      );
      await page.locator("#attached audio[aria-label='beep.wav']").waitFor();
      assert.equal(await attached(page).count(), 5);
      await accessible(page, "attachments");
      await shot(page, "attached-desktop-light");
      await page.setViewportSize(PHONE);
      assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
      await accessible(page, "attachments on a phone");
      await shot(page, "attached-phone-light");
      await page.setViewportSize({ width: 1280, height: 800 });

      await page.getByRole("button", { name: "Remove dog.png" }).press("Enter");
      assert.equal(await attached(page).count(), 4);
      assert.ok(await page.locator("#prompt").evaluate((field) => field === document.activeElement));
      await ask(page, "What is this?");
      await answered(page);
      assert.equal(await attached(page).count(), 0);
      assert.ok(await page.locator("#attached").isHidden());
      const { messages } = await lastRequest(page);
      assert.deepEqual(kindsOf(messages[0]), ["image_url", "image_url", "image_url", "input_audio", "text"]);
      assert.equal(messages[0].name, "<|turn>user\n");
      assert.equal(partsOf(messages[0]).at(-1).text.startsWith("What is this?<turn|>\n<|turn>model\n"), true);
      await drawn(page, 3);
      assert.equal(await page.locator("#messages audio").count(), 1);
      assert.match(await page.locator("#messages .stats").innerText(), /first after [\d.]+ m?s/);
      await accessible(page, "pictures and sounds in a chat");
      await shot(page, "media-desktop-light");

      // A later turn: the client gets the same pictures again, and knows them by that.
      await ask(page, "Thanks");
      await answered(page);
      const later = (await lastRequest(page)).messages;
      assert.deepEqual(later[0], messages[0]);
      assert.equal(typeof later.at(-1).content, "string");
      // A picture alone is a message.
      await attach(page, picture("alone.png"));
      assert.ok(await page.locator("#send").isEnabled());
      await page.locator("#send").click();
      await answered(page);
      assert.deepEqual(kindsOf((await lastRequest(page)).messages.at(-1)), ["image_url", "text"]);
      // Words from a text program come with a picture of them.
      const taken = await page.evaluate(() => {
        const transfer = new DataTransfer();
        transfer.setData("text/plain", "words");
        transfer.setData("text/html", "<b>words</b>");
        transfer.items.add(new File([new Uint8Array(4)], "words.png", { type: "image/png" }));
        const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData: transfer });
        return !document.querySelector("#prompt").dispatchEvent(event);
      });
      assert.equal(taken, false);
      // Another question about the same picture.
      await page.keyboard.press("ArrowUp");
      await page.locator(".edit textarea").fill("And now?");
      await page.locator(".edit textarea").press("Enter");
      await answered(page);
      const edited = (await lastRequest(page)).messages.at(-1);
      assert.deepEqual(kindsOf(edited), ["image_url", "text"]);
      assert.match(partsOf(edited)[1].text, /^And now\?/);
    });
  },

  /** The client's own way to the pixels: every block at its place, the mark below, nothing changed on the way. */
  async container({ ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      const cases = [
        [10, 28],
        [20, 14],
        [56, 5],
        [3, 92], // four blocks fewer than the container has
      ];
      for (const [columns, rows] of cases) {
        // Each block of a picture of exactly this grid has a colour of its own.
        const color = (x, y) => {
          const index = Math.floor(y / BLOCK) * columns + Math.floor(x / BLOCK);
          return [index & 255, 40 * (index >> 8), (7 * index) & 255];
        };
        await attach(page, picture("grid.png", columns * BLOCK, rows * BLOCK, color));
        await ask(page, "Which grid?");
        await answered(page);
        const { url } = partsOf((await lastRequest(page)).messages.at(-1))[0].image_url;
        const found = await page.evaluate(async (address) => {
          const image = await createImageBitmap(await (await fetch(address)).blob());
          const canvas = new OffscreenCanvas(image.width, image.height);
          const context = canvas.getContext("2d");
          context.drawImage(image, 0, 0);
          const { data } = context.getImageData(0, 0, image.width, image.height);
          const at = (x, y) => [...data.slice(4 * (y * image.width + x), 4 * (y * image.width + x) + 3)];
          const corners = [
            [0, 0],
            [47, 0],
            [20, 30],
            [47, 47],
          ];
          const blocks = Array.from({ length: 280 }, (_, index) =>
            corners.map(([x, y]) => at(48 * (index % 20) + x, 48 * Math.floor(index / 20) + y)),
          );
          const bits = Array.from({ length: image.width }, (_, x) => at(x, 672));
          return { width: image.width, height: image.height, blocks, bits };
        }, url);
        assert.deepEqual([found.width, found.height], [960, 673]);
        found.blocks.slice(0, columns * rows).forEach((corners, index) => {
          const wanted = [index & 255, 40 * (index >> 8), (7 * index) & 255];
          for (const corner of corners) assert.deepEqual(corner, wanted, `block ${index} of ${columns} x ${rows}`);
        });
        const word = (first) =>
          parseInt(
            found.bits
              .slice(first, first + 32)
              .map(([, green]) => +(green >= 128))
              .join(""),
            2,
          );
        const grid = columns * 65_536 + rows;
        assert.deepEqual([word(0), word(32), word(64)], [0x47344931, grid, 0xffffffff - grid]);
        assert.ok(found.bits.slice(96).every(([red, green, blue]) => red + green + blue === 0));
      }
    });
  },

  /** A package without them: grey buttons that say why, to everybody; files that come all the same change nothing. */
  async greyed_out({ accessible, shot, ask, answered, ...tools }) {
    await withMedia(
      tools,
      async (page) => {
        for (const [id, words] of [
          ["attach", /text only.*--modalities image or audio/],
          ["open-camera", /sees no pictures.*--modalities image/],
          ["record", /hears no sounds.*--modalities audio/],
        ]) {
          const button = page.locator(`#${id}`);
          assert.equal(await button.getAttribute("aria-disabled"), "true");
          assert.match(await button.getAttribute("title"), words);
          await button.focus();
          await page.keyboard.press("Enter");
          await error(page, words);
        }
        await accessible(page, "a package for text");
        await shot(page, "text-only-desktop-light");
        await hand(page, "drop", [picture("cat.png")]);
        await error(page, /sees no pictures[\s\S]*--modalities/);
        assert.equal(await attached(page).count(), 0);
        await ask(page, "Hello");
        assert.match(await (await answered(page)).innerText(), /Answer/);
        assert.equal(typeof (await lastRequest(page)).messages[0].content, "string");
      },
      "tiny",
    );
  },

  /** In the database with their chat, counted, there after a reload, gone with the chat, and back by Undo. */
  async kept_with_the_chat({ ask, answered, state, ...tools }) {
    await withMedia({ ...tools, state }, async (page) => {
      await attach(page, picture("cat.png"), sound("beep.wav", 2));
      await ask(page, "What is this?");
      await answered(page);
      await keeps(page, 1, 2);
      const before = (await lastRequest(page)).messages[0];
      await page.reload();
      await state(page, "ready");
      await drawn(page, 1);
      await until(page, async () => document.querySelector("#messages audio").duration === 2);
      await ask(page, "And now?");
      await answered(page);
      assert.deepEqual((await lastRequest(page)).messages[0], before, "the same to the last bit");
      await page.locator("#open-settings").click();
      await page.locator("#media-storage", { hasText: /2 pictures and sounds with 6\d KiB/ }).waitFor();
      await page.keyboard.press("Escape");

      const remove = async () => {
        await page.getByRole("button", { name: /^More for the chat/ }).click();
        await page.getByRole("menuitem", { name: /^Delete/ }).click();
      };
      await remove();
      await keeps(page, 0, 0);
      await page.getByRole("button", { name: "Undo" }).click();
      await keeps(page, 1, 2);
      await drawn(page, 1);
      // Deleted without having been looked at in this page, and brought back.
      await page.locator("#new-chat").click();
      await ask(page, "Another chat");
      await answered(page);
      await page.reload();
      await state(page, "ready");
      await page.getByRole("button", { name: "More for the chat “What is this?”" }).click();
      await page.getByRole("menuitem", { name: /^Delete/ }).click();
      await keeps(page, 1, 0);
      await page.getByRole("button", { name: "Undo" }).click();
      await keeps(page, 2, 2);
      await drawn(page, 1);
      // A picture of a message that was replaced goes with the next load.
      await page.getByRole("button", { name: "Edit this message and ask again" }).first().focus();
      await page.locator("#new-chat").click();
      await attach(page, picture("other.png"));
      await ask(page, "One");
      await answered(page);
      await keeps(page, 3, 3);
      await page.evaluate(() => {
        // As if the page had been closed between an edit and what it takes away.
        return new Promise((resolve) => {
          const opening = indexedDB.open("gemma4-chat");
          opening.onsuccess = () => {
            const writing = opening.result.transaction("media", "readwrite");
            writing.objectStore("media").put({ id: "nobody's", blob: new Blob(["x"]) });
            writing.oncomplete = () => {
              opening.result.close();
              resolve();
            };
          };
        });
      });
      await page.reload();
      await state(page, "ready");
      await keeps(page, 3, 3);
      // What is attached and not sent yet belongs to no chat.
      await attach(page, picture("next.png"));
      await page.locator("#open-settings").click();
      await page.locator("#clear-chats").click();
      await page.locator("#clear-chats").click();
      await keeps(page, 0, 0);
      await ask(page, "What is next?");
      await answered(page);
      await drawn(page, 1);
      await keeps(page, 1, 1);
    });
  },

  /** Out in a file and in again, with ids of their own; a file with a bomb in it is refused whole. */
  async files_of_chats({ ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      await attach(page, sound("beep.wav", 1));
      await hand(page, "paste", [{ ...picture("cat.png"), mimeType: "" }]); // of a system that does not know it
      await page.locator("#attached img[alt='cat.png']").waitFor();
      await ask(page, "What is this?");
      await answered(page);
      await page.locator("#open-settings").click();
      const downloading = page.waitForEvent("download");
      await page.locator("#export-chats").click();
      const stream = await (await downloading).createReadStream();
      const file = Buffer.concat(await stream.toArray());
      const bring = (content) =>
        page
          .locator("#import-file")
          .setInputFiles({ name: "chats.json", mimeType: "application/json", buffer: content });
      await bring(file);
      await page.locator("#transfer-state", { hasText: "1 chat imported" }).waitFor();
      await keeps(page, 2, 4);
      const bomb = JSON.parse(file);
      bomb.conversations[0].messages[0].media[1].data = png(16_000, 16_000).toString("base64");
      await bring(Buffer.from(JSON.stringify(bomb)));
      await page.locator("#transfer-error", { hasText: /16,000 x 16,000/ }).waitFor();
      await keeps(page, 2, 4);
      await page.locator("#close-settings").click();
      await drawn(page, 1);
      await ask(page, "And now?");
      await answered(page);
      assert.deepEqual(kindsOf((await lastRequest(page)).messages[0]), ["input_audio", "image_url", "text"]);
    });
  },

  /** A chat with pictures in a package for text: the words alone go to the model, and the chat says so. */
  async other_package({ open, state, ask, answered, accessible, ...tools }) {
    await withMedia({ ...tools, open, state }, async (page) => {
      await attach(page, picture("cat.png"));
      await ask(page, "What is this?");
      await answered(page);
      assert.ok(await page.locator("#messages .unseen").isHidden());
      await open(page, "tiny");
      await state(page, "ready");
      await drawn(page, 1);
      await page.locator("#messages .unseen", { hasText: "sees no pictures" }).waitFor();
      await accessible(page, "a picture that the package does not see");
      await ask(page, "And now?");
      await answered(page);
      const { messages } = await lastRequest(page);
      assert.ok(messages.every(({ content }) => typeof content === "string"));
      assert.match(messages[0].content, /What is this\?/);
    });
  },
};
