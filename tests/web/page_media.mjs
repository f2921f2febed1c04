// Scenarios about pictures and sounds, with a scripted engine.
import assert from "node:assert/strict";
import { until } from "./chromium.mjs";
import { picture, png, sound, wav } from "./media_files.mjs";
import { inPage } from "./page_chats.mjs";

const BLOCK = 48;
const PHONE = { width: 360, height: 740 };

/** A page with the package that takes pictures and sounds. */
async function withMedia({ open, state, context, server }, action, name = "media") {
  await inPage(context, { server }, async (page) => {
    await open(page, name);
    await state(page, "ready");
    await action(page);
  });
}

const attached = (page) => page.locator("#attached > li:not(.reading)");
const error = (page, words) => page.locator("#notices .error", { hasText: words }).waitFor();

async function attach(page, ...files) {
  const before = await attached(page).count();
  await page.locator("#attach-file").setInputFiles(files);
  await page.waitForFunction(
    (count) => document.querySelectorAll("#attached > li:not(.reading)").length === count,
    before + files.length,
  );
}

/** Hands files to the page as the browser does it for a paste or a drop. */
async function hand(page, kind, files) {
  const sent = files.map(({ name, mimeType, buffer }) => ({ name, type: mimeType, data: buffer.toString("base64") }));
  return page.evaluate(
    ([event, list]) => {
      const transfer = new DataTransfer();
      for (const { name, type, data } of list) {
        const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type }));
      }
      const options = { bubbles: true, cancelable: true };
      if (event === "paste") {
        const made = new ClipboardEvent("paste", { ...options, clipboardData: transfer });
        return !document.querySelector("#prompt").dispatchEvent(made);
      }
      const target = document.querySelector("#messages");
      target.dispatchEvent(new DragEvent("dragover", { ...options, dataTransfer: transfer }));
      const isMarked = document.body.classList.contains("dropping");
      return !target.dispatchEvent(new DragEvent("drop", { ...options, dataTransfer: transfer })) && isMarked;
    },
    [kind, sent],
  );
}

/** What the engine was asked last. */
async function lastRequest(page) {
  const worker = page.workers().find((each) => /worker/.test(each.url()));
  return worker.evaluate(() => self.requests.at(-1));
}

const partsOf = (message) => (typeof message.content === "string" ? [] : message.content);
const kindsOf = (message) => partsOf(message).map(({ type }) => type);

/** Counts of what is kept in the page's database. */
function kept(page) {
  return page.evaluate(async () => {
    const database = await new Promise((resolve) => {
      const opening = indexedDB.open("gemma4-chat");
      opening.onsuccess = () => resolve(opening.result);
    });
    const count = (table) =>
      new Promise((resolve) => {
        const asking = database.transaction(table).objectStore(table).count();
        asking.onsuccess = () => resolve(asking.result);
      });
    const counts = { chats: await count("conversations"), media: await count("media") };
    database.close();
    return counts;
  });
}

const keeps = (page, chats, media) =>
  until(
    page,
    async ([wantedChats, wantedMedia]) => {
      const database = await new Promise((resolve) => {
        const opening = indexedDB.open("gemma4-chat");
        opening.onsuccess = () => resolve(opening.result);
      });
      const count = (table) =>
        new Promise((resolve) => {
          const asking = database.transaction(table).objectStore(table).count();
          asking.onsuccess = () => resolve(asking.result);
        });
      const isSo = (await count("conversations")) === wantedChats && (await count("media")) === wantedMedia;
      database.close();
      return isSo;
    },
    [chats, media],
  ).catch(async () => assert.deepEqual(await kept(page), { chats, media }));

/** Waits until every picture of the transcript is drawn. */
const drawn = (page, count) =>
  page.waitForFunction((wanted) => {
    const images = [...document.querySelectorAll("#messages .media img")];
    return images.length === wanted && images.every(({ complete, naturalWidth }) => complete && naturalWidth > 0);
  }, count);

export const MEDIA = {
  /** Every way in, several in a message, out again; what is sent is what was shown, and a later turn has it, too. */
  async attach_paste_drop({ accessible, shot, ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      const chosen = page.waitForEvent("filechooser");
      await page.locator("#attach").click();
      assert.ok((await chosen).isMultiple());
      assert.equal(await page.locator("#attach-file").getAttribute("accept"), "image/*,audio/*");
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
        found.blocks.forEach((corners, index) => {
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
      await page.locator("#open-settings").click();
      await page.locator("#clear-chats").click();
      await page.locator("#clear-chats").click();
      await keeps(page, 0, 0);
    });
  },

  /** Out in a file and in again, with ids of their own; a file with a bomb in it is refused whole. */
  async files_of_chats({ ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      await attach(page, picture("cat.png"), sound("beep.wav", 1));
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
      bomb.conversations[0].messages[0].media[0].data = png(60_000, 60_000).toString("base64");
      await bring(Buffer.from(JSON.stringify(bomb)));
      await page.locator("#transfer-error", { hasText: /60,000 x 60,000/ }).waitFor();
      await keeps(page, 2, 4);
      await page.locator("#close-settings").click();
      await drawn(page, 1);
      await ask(page, "And now?");
      await answered(page);
      assert.deepEqual(kindsOf((await lastRequest(page)).messages[0]), ["image_url", "input_audio", "text"]);
    });
  },

  /** Each is said in words; the others of the same drop are taken, and the chat goes on. */
  async bad_files({ accessible, shot, ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      const file = (name, mimeType, buffer) => ({ name, mimeType, buffer });
      const jpeg = Buffer.from("ffd8ffe000104a46494600010100000100010000ffd9", "hex");
      const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>');
      const cases = [
        [
          file(
            "long.png",
            "image/png",
            png(65_000, 1, () => [0, 0, 0]),
          ),
          /65,000 x 1 pixels; at most 16,384/,
        ],
        [file("bomb.png", "image/png", png(60_000, 60_000)), /60,000 x 60,000 pixels/],
        [file("wide.png", "image/png", png(16_000, 16_000)), /16,000 x 16,000 pixels.*64 million/],
        [file("empty.png", "image/png", Buffer.alloc(0)), /empty\.png is empty/],
        [file("cut.jpg", "image/jpeg", jpeg), /cut\.jpg is no picture that this browser can read/],
        [file("lie.png", "image/png", png(3000, 3000)), /lie\.png is no picture|lie\.png.*damaged/],
        [file("text.png", "image/png", Buffer.from("words")), /text\.png is no picture/],
        [file("drawing.svg", "image/svg+xml", svg), /drawing \(SVG\)/],
        [file("notes.txt", "text/plain", Buffer.from("words")), /notes\.txt is neither a picture nor a sound/],
        [file("film.mp4", "video/mp4", Buffer.from("words")), /film\.mp4 is a video/],
        [file("large.png", "image/png", Buffer.alloc(33 * 2 ** 20)), /33 MiB; a picture may have at most 32 MiB/],
        [file("none.wav", "audio/wav", Buffer.alloc(0)), /none\.wav is empty/],
        [file("zero.wav", "audio/wav", wav(0)), /zero\.wav/],
        [file("click.wav", "audio/wav", wav(0.05)), /800 samples; the model needs at least 1600/],
        [file("long.wav", "audio/wav", wav(31)), /31\.0 s long; the model hears up to 30 s/],
        [file("noise.mp3", "audio/mpeg", Buffer.from("no sound at all")), /noise\.mp3 is no sound/],
        [file("large.wav", "audio/wav", Buffer.alloc(33 * 2 ** 20)), /33 MiB; a sound may have at most 32 MiB/],
      ];
      for (const [bad, words] of cases) {
        await page.locator("#attach-file").setInputFiles([bad]);
        await error(page, words).catch(async () => {
          throw new Error(`${bad.name}: ${await page.locator("#notices").innerText()}`);
        });
        assert.equal(await page.locator("#attached > li").count(), 0, bad.name);
      }
      await accessible(page, "a file that cannot be taken");
      await shot(page, "bad-file-desktop-light");
      await page.locator("#attach-file").setInputFiles([cases[1][0], picture("good.png"), cases[8][0]]);
      await error(page, /bomb\.png[\s\S]*notes\.txt/);
      assert.equal(await attached(page).count(), 1);
      await attach(page, ...Array.from({ length: 15 }, (_, index) => picture(`${index}.png`, 8, 8)));
      await page.locator("#attach-file").setInputFiles([picture("more.png")]);
      await error(page, /takes 16 pictures and sounds/);
      await ask(page, "What is this?");
      assert.match(await (await answered(page)).innerText(), /Answer/);
      assert.equal(kindsOf((await lastRequest(page)).messages[0]).length, 17);
    });
  },

  /** Any rate and any channels become 16 kHz of one channel; 30 s are taken whole. */
  async sounds({ ask, answered, ...tools }) {
    await withMedia(tools, async (page) => {
      await attach(page, sound("stereo.wav", 1.5, { rate: 44_100, channels: 2 }), sound("whole.wav", 30));
      await ask(page, "What do you hear?");
      await answered(page);
      const parts = partsOf((await lastRequest(page)).messages[0]);
      const files = parts.slice(0, 2).map(({ input_audio }) => {
        assert.equal(input_audio.format, "wav");
        return Buffer.from(input_audio.data, "base64");
      });
      for (const [index, samples] of [24_000, 480_000].entries()) {
        const data = files[index];
        assert.equal(data.toString("latin1", 0, 4), "RIFF");
        assert.deepEqual([data.readUInt16LE(20), data.readUInt16LE(22), data.readUInt32LE(24)], [1, 1, 16_000]);
        assert.equal(data.readUInt32LE(40), 2 * samples);
        assert.equal(data.length, 44 + 2 * samples);
      }
      assert.deepEqual(files[1], wav(30), "what already is as the model hears it stays to the last bit");
      let [crossings, loudest] = [0, 0];
      for (let at = 46; at < files[0].length; at += 2) {
        crossings += Number(files[0].readInt16LE(at - 2) < 0 !== files[0].readInt16LE(at) < 0);
        loudest = Math.max(loudest, Math.abs(files[0].readInt16LE(at)));
      }
      assert.ok(Math.abs(crossings - 2 * 440 * 1.5) <= 4, `${crossings} crossings`);
      assert.ok(loudest > 15_500 && loudest < 17_500, String(loudest));
      assert.deepEqual(await page.locator("#messages .medium .name").allInnerTexts(), [
        "stereo.wav · 1.5 s",
        "whole.wav · 30.0 s",
      ]);
    });
  },

  /** With the level and the time, until it is stopped, thrown away or 30 s long; a refusal is said in words. */
  async recording({ context, accessible, shot, ask, answered, ...tools }) {
    await withMedia({ ...tools, context }, async (page) => {
      await context.clearPermissions();
      await page.locator("#record").click();
      await error(page, /microphone was not allowed[\s\S]*Allow it/);
      await context.grantPermissions(["microphone", "clipboard-read", "clipboard-write"]);
      assert.match(await page.locator("#record").getAttribute("title"), /up to 30 s/);
      await page.locator("#record").click();
      await page.locator("#recorded", { hasText: "0:01 of 0:30" }).waitFor();
      assert.ok(await page.locator("#stop-recording").evaluate((button) => button === document.activeElement));
      await page.waitForFunction(() => document.querySelector("#level").value > 0.2); // the fake one beeps
      await page.locator("#prompt").fill("What do you hear?");
      assert.ok(await page.locator("#send").isDisabled(), "the sound is not there yet");
      await accessible(page, "recording");
      await shot(page, "recording-desktop-light");
      await page.locator("#stop-recording").click();
      await attached(page).locator("audio").waitFor();
      assert.ok(await page.locator("#recorder").isHidden());
      await page.locator("#record").click();
      await page.locator("#recorded", { hasText: "0:00" }).waitFor();
      await page.keyboard.press("Escape"); // thrown away
      await page.locator("#recorder").waitFor({ state: "hidden" });
      assert.equal(await attached(page).count(), 1);
      await page.locator("#prompt").press("Enter");
      await answered(page);
      const [part] = partsOf((await lastRequest(page)).messages[0]);
      const data = Buffer.from(part.input_audio.data, "base64");
      const seconds = data.readUInt32LE(40) / 32_000;
      assert.ok(seconds > 0.8 && seconds < 10, `${seconds} s`);
      let loudest = 0;
      for (let at = 44; at < data.length; at += 2) loudest = Math.max(loudest, Math.abs(data.readInt16LE(at)));
      assert.ok(loudest > 1000, `it is not silent: ${loudest}`);
    });
  },

  /** Only when asked; a picture of it, or none. */
  async camera({ context, accessible, shot, ask, answered, ...tools }) {
    await withMedia({ ...tools, context }, async (page) => {
      await context.clearPermissions();
      await page.locator("#open-camera").click();
      await error(page, /camera was not allowed[\s\S]*Allow it/);
      assert.ok(await page.locator("#camera").isHidden());
      await context.grantPermissions(["camera", "clipboard-read", "clipboard-write"]);
      await page.locator("#open-camera").click();
      await page.locator("#take-picture:not([disabled])").waitFor();
      await accessible(page, "the camera");
      await shot(page, "camera-desktop-light");
      await page.keyboard.press("Escape");
      await page.locator("#camera").waitFor({ state: "hidden" });
      assert.equal(await attached(page).count(), 0);
      await page.locator("#open-camera").click();
      await page.locator("#take-picture:not([disabled])").click();
      await page.locator("#attached img[alt='camera.png']").waitFor();
      assert.ok(await page.locator("#camera").isHidden());
      assert.equal(await page.locator("#viewfinder").evaluate((video) => video.srcObject), null);
      await ask(page, "What is this?");
      await answered(page);
      await drawn(page, 1);
      assert.ok(await page.locator("#messages img").evaluate(({ naturalWidth }) => naturalWidth >= 320));
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
