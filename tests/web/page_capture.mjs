// Scenarios about files that are none, about sounds, the microphone and the camera, with a scripted engine.
import assert from "node:assert/strict";
import { mp3, ONE_FRAME, picture, png, sound, wav } from "./media_files.mjs";
import { attach, attached, drawn, error, hand, kindsOf, lastRequest, partsOf, withMedia } from "./media_tools.mjs";

export const CAPTURE = {
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
        [file("bomb.png", "image/png", png(60_000, 60_000)), /bomb\.png.*too large/],
        [file("wide.png", "image/png", png(8_200, 8_000)), /8,200 x 8,000 pixels.*64 million/],
        [file("empty.png", "image/png", Buffer.alloc(0)), /empty\.png is empty/],
        [file("cut.jpg", "image/jpeg", jpeg), /cut\.jpg is no picture that this browser can read/],
        [file("text.png", "image/png", Buffer.from("words")), /text\.png is no picture/],
        [file("drawing.svg", "image/svg+xml", svg), /drawing \(SVG\)/],
        [file("notes.txt", "text/plain", Buffer.from("words")), /notes\.txt is neither a picture nor a sound/],
        [file("film.mp4", "video/mp4", Buffer.from("words")), /film\.mp4 is no video that this browser can play/],
        [file("none.mkv", "", Buffer.alloc(0)), /none\.mkv is empty/],
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
      await page.locator("#attach-file").setInputFiles([cases[1][0], picture("good.png"), cases[7][0]]);
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
      // Browsers record voices into containers that their system takes for videos.
      await attach(page, { ...sound("voice.webm", 1), mimeType: "video/webm" });
      await page.locator("#attached audio[aria-label='voice.webm']").waitFor();
      await page.getByRole("button", { name: "Remove voice.webm" }).click();
      await attach(page, { name: "quiet.mp3", mimeType: "audio/mpeg", buffer: mp3(20) });
      assert.match(await page.locator("#attached .name").innerText(), /^quiet\.mp3 · (19|20)\.\d s$/);
      await page.getByRole("button", { name: "Remove quiet.mp3" }).click();
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
      const whole = wav(30);
      for (let at = 44; at < whole.length; at += 2) {
        // Browsers divide by 32,767 or by 32,768.
        assert.ok(Math.abs(files[1].readInt16LE(at) - whole.readInt16LE(at)) <= 1, `sample ${at}`);
      }
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
      await page.locator("#recorded", { hasText: /0:(0[1-9]|[12]\d) of 0:30/ }).waitFor();
      assert.ok(await page.locator("#stop-recording").evaluate((button) => button === document.activeElement));
      await page.evaluate(() => {
        const now = performance.now();
        performance.now = () => now; // it does not end by itself, however slow what follows is
      });
      await page.waitForFunction(() => document.querySelector("#level").value > 0.2); // the fake one beeps
      await page.locator("#prompt").fill("What do you hear?");
      assert.ok(await page.locator("#send").isDisabled(), "the sound is not there yet");
      await page.locator("#stop-recording").click();
      await attached(page).locator("audio").waitFor();
      assert.ok(await page.locator("#recorder").isHidden());
      await page.locator("#record").click();
      await page.locator("#recorded", { hasText: "of 0:30" }).waitFor();
      await accessible(page, "recording");
      await shot(page, "recording-desktop-light");
      await page.locator("#stop-recording").focus();
      await page.keyboard.press("Escape"); // thrown away
      await page.locator("#recorder").waitFor({ state: "hidden" });
      assert.equal(await attached(page).count(), 1);
      await page.locator("#prompt").press("Enter");
      await answered(page);
      const [part] = partsOf((await lastRequest(page)).messages[0]);
      const data = Buffer.from(part.input_audio.data, "base64");
      const seconds = data.readUInt32LE(40) / 32_000;
      assert.ok(seconds > 0.8 && seconds <= 30, `${seconds} s`);
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

  /** Frames at even distances, each with its time before it; as many as half of the context takes. */
  async videos({ accessible, shot, ask, answered, state, ...tools }) {
    await withMedia({ ...tools, state }, async (page) => {
      await attach(page, { name: "one.webm", mimeType: "video/webm", buffer: ONE_FRAME });
      assert.equal(await page.locator("#attached .name").innerText(), "00:00");
      await page.getByRole("button", { name: "Remove one.webm at 00:00" }).click();
      // As a browser records it: no length in its header. Red, green and blue, each for so long.
      const film = await page.evaluate(async () => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [320, 180];
        const context = canvas.getContext("2d");
        const recorder = new MediaRecorder(canvas.captureStream(25), { mimeType: "video/webm;codecs=vp8" });
        const pieces = [];
        recorder.ondataavailable = ({ data }) => pieces.push(data);
        const ended = new Promise((resolve) => (recorder.onstop = resolve));
        recorder.start();
        for (const color of ["#f00", "#0f0", "#00f"]) {
          const begun = performance.now(); // of each: a busy machine may come back after a second
          do {
            context.fillStyle = color;
            context.fillRect(0, 0, 320, 180);
            await new Promise((resolve) => setTimeout(resolve, 20));
          } while (performance.now() - begun < 1200);
        }
        recorder.stop();
        await ended;
        const bytes = new Uint8Array(await new Blob(pieces).arrayBuffer());
        return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
      });
      const file = { name: "film.webm", mimeType: "video/webm", buffer: Buffer.from(film, "base64") };
      // Two that come at once are read one after the other: the first has all the room.
      await hand(page, "paste", [file]);
      await hand(page, "drop", [file]);
      await error(page, /no room for the frames of another video/);
      await page.locator("#attached > li:not(.reading)").nth(2).waitFor(); // of a context of 2,048 tokens
      assert.equal(await page.locator("#attached > li").count(), 3);
      const times = await page.locator("#attached .name").allInnerTexts();
      assert.match(times.join(" "), /^00:00 00:0[1-9] 00:\d\d$/); // a busy machine records longer
      await accessible(page, "a video");
      await shot(page, "video-desktop-light");
      // What is attached already has the room of another one; pictures and sounds still come.
      await page.locator("#attach-file").setInputFiles([file]);
      await error(page, /no room for the frames of another video/);
      await attach(page, sound("beep.wav", 1));
      await ask(page, "What happens?");
      await answered(page);
      const { messages } = await lastRequest(page);
      assert.deepEqual(
        messages.map((message) => kindsOf(message)),
        [
          ["image_url", "text"],
          ["image_url", "text"],
          ["image_url", "input_audio", "text"],
        ],
      );
      assert.deepEqual(
        messages.map(({ name }) => name),
        ["<|turn>user\n00:00 ", undefined, undefined],
      );
      const texts = messages.map((message) => partsOf(message).at(-1).text);
      assert.deepEqual(texts.slice(0, 2), [` ${times[1]} `, ` ${times[2]} `]);
      assert.match(texts[2], /^What happens\?<turn\|>/);
      const colors = await page.evaluate(
        (urls) =>
          Promise.all(
            urls.map(async (url) => {
              const image = await createImageBitmap(await (await fetch(url)).blob());
              const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
              context.drawImage(image, 0, 0);
              const [red, green, blue] = context.getImageData(100, 24, 1, 1).data;
              return [red > 128, green > 128, blue > 128];
            }),
          ),
        messages.map((message) => partsOf(message)[0].image_url.url),
      );
      assert.deepEqual(colors[0], [true, false, false]);
      assert.ok(colors[2][1] || colors[2][2], "a later frame is another picture");
      assert.equal(colors[2][0], false);
      await drawn(page, 3);
      // Kept with the chat as frames.
      await page.reload();
      await state(page, "ready");
      await drawn(page, 3);
      assert.equal(await page.locator("#messages .frame").count(), 3);
    });
  },
};
