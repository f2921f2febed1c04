// Scenarios about links that name a package of another host, and about texts that run from right to left, with a
// scripted engine.
import assert from "node:assert/strict";
import crypto from "node:crypto";
import fs from "node:fs/promises";
import path from "node:path";
import { until } from "./chromium.mjs";
import { inPage } from "./page_chats.mjs";

const STRANGER = "http://127.0.0.1:9/stranger/";
const ARABIC = "ما هو الطقس في باريس؟";

/** Plays the stranger's host: the files of a package, the provenance with a line more for each change; it may hold shards. */
async function playStranger(context, folder) {
  const played = { asked: [], lines: 0, digest: "", holds: false };
  await context.route(`${STRANGER}**`, async (route) => {
    const name = new URL(route.request().url()).pathname.split("/").at(-1);
    played.asked.push(name);
    if (played.holds && name.endsWith(".bin")) return undefined;
    const body = await fs.readFile(path.join(folder, name));
    const all = name === "provenance.json" ? Buffer.concat([body, Buffer.from("\n".repeat(played.lines))]) : body;
    if (name === "provenance.json") played.digest = crypto.createHash("sha256").update(all).digest("hex");
    return route.fulfill({ body: all, headers: { "access-control-allow-origin": "*" } });
  });
  return { played, end: () => context.unroute(`${STRANGER}**`) };
}

const kept = (page) =>
  page.evaluate(async (stranger) => {
    const settings = JSON.parse(localStorage.getItem("gemma4-settings") ?? "{}");
    const all = await Promise.all((await caches.keys()).map(async (name) => (await caches.open(name)).keys()));
    const files = all.flat().filter(({ url }) => url.startsWith(stranger)).length;
    return { last: settings.lastPackage ?? "", known: settings.known ?? [], files };
  }, STRANGER);

export const LINKS = {
  /** It asks first, with host and hash; nothing of it is kept before, and nothing else is the default. */
  async strange_link({ context, server, open, state, job, accessible, shot }) {
    const { played, end } = await playStranger(context, job.packages.tiny);
    const link = `${server.url}?package=${encodeURIComponent(STRANGER)}`;
    await inPage(context, { server }, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.goto(link);
      await state(page, "stranger");
      const words = await page.locator("#start").innerText();
      for (const part of ["127.0.0.1:9", STRANGER, played.digest, "nobody has checked"]) {
        assert.ok(words.includes(part), `${part} in ${words}`);
      }
      assert.ok(!played.asked.some((name) => /\.(bin|wasm)$/.test(name)), String(played.asked));
      assert.deepEqual(await kept(page), { last: `${server.url}tiny/`, known: [], files: 0 });
      await accessible(page, "a stranger's package");
      await shot(page, "stranger-desktop-light");
      played.lines = 1; // another package at the same address, between the question and the answer
      await page.locator("#trust").click();
      await page.locator("#start h2", { hasText: "changed" }).waitFor();
      assert.ok((await page.locator("#start").innerText()).includes(played.digest));
      assert.equal((await kept(page)).files, 0);
      await page.locator("#trust").click();
      await state(page, "ready");
      assert.deepEqual({ ...(await kept(page)), files: 0 }, { last: STRANGER, known: [STRANGER], files: 0 });
      assert.match(await page.locator("#model").innerText(), / · from 127\.0\.0\.1:9$/);
      await page.goto(link); // agreed to: not asked again
      await state(page, "ready");
      played.lines = 2; // until it is another package
      await page.goto(link);
      await page.locator("#start h2", { hasText: "changed" }).waitFor();
      await page.locator("#trust").click();
      await state(page, "ready");
      await page.locator("#open-settings").click();
      const before = await page.evaluate(() => localStorage.getItem("gemma4-settings"));
      const remove = page.locator(`#stored button[aria-label="Remove ${STRANGER}"]`);
      await remove.click();
      await remove.waitFor({ state: "detached" });
      assert.deepEqual(await kept(page), { last: STRANGER, known: [], files: 0 });
      // A page that starts right after may still read the settings of before: what was removed counts.
      await page.evaluate((settings) => localStorage.setItem("gemma4-settings", settings), before);
      for (const [address, words] of [
        [link, "A link wants"],
        [server.url, "again?"],
      ]) {
        await page.goto(address);
        await state(page, "stranger");
        await page.locator("#start h2", { hasText: words }).waitFor();
        assert.equal((await kept(page)).files, 0);
      }
      // What was removed while it came is agreed to by nobody, whatever of it lies there.
      played.holds = true;
      await page.locator("#trust").click();
      await state(page, "progress");
      await until(
        page,
        async (url) => (await (await caches.open("webllm/wasm")).keys()).some((each) => each.url.startsWith(url)),
        STRANGER,
      );
      await page.locator("#open-settings").click();
      played.holds = false;
      await remove.click();
      await state(page, "ready"); // the page goes on with what it was told to open
      assert.deepEqual((await kept(page)).known, []);
      await page.goto(link);
      await state(page, "stranger");
      await page.evaluate(() => localStorage.clear());
    });
    await end();
  },

  /** Each block of a text runs as its first letter does; code never turns. */
  async right_to_left({ context, server, open, state, ask, answered, shot }) {
    await inPage(context, { server }, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await ask(page, ARABIC);
      const reply = await answered(page);
      const direction = (locator) => locator.evaluate((element) => getComputedStyle(element).direction);
      for (const [what, wanted] of [
        ["p:first-child", "rtl"],
        ["ul", "rtl"],
        [".code", "ltr"],
        ["pre code", "ltr"],
        ["p:last-child", "ltr"],
      ]) {
        assert.equal(await direction(reply.locator(`.answer > ${what}, .answer ${what}`).first()), wanted, what);
      }
      assert.equal(await direction(page.locator(".asked")), "rtl");
      assert.equal(await direction(page.locator("#title")), "rtl");
      assert.equal(await direction(page.locator("#conversations .title").first()), "rtl");
      await page.locator("#prompt").fill(ARABIC);
      assert.equal(await direction(page.locator("#prompt")), "rtl");
      await page.locator("#prompt").fill("Hello");
      assert.equal(await direction(page.locator("#prompt")), "ltr");
      await shot(page, "right-to-left-desktop-light");
    });
  },
};
