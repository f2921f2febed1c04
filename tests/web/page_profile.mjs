// Scenarios about times by kernel: with a scripted engine, and with the stock client.
import assert from "node:assert/strict";
import { ANSWER_MS } from "./limits.mjs";

const PHONE = { width: 360, height: 740 };

async function measured(page, patience) {
  await page.locator("#open-settings").click();
  await page.locator("#profile").click();
  await page.locator("#profile-state", { hasText: /^(Kernels timed|Could not)/ }).waitFor({ timeout: patience });
  return page.locator("#profile-state").innerText();
}

/** Of each table its caption and its rows. */
const tablesOf = (page) =>
  page.locator("#profile-tables table").evaluateAll((tables) =>
    tables.map((table) => ({
      title: table.caption.textContent,
      rows: [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => cell.textContent)),
    })),
  );

export const SCRIPTED_PROFILE = {
  /** The tables show, and are copied with the names of the model and the browser; a message waits for them. */
  async profile({ context, open, state, ask, answered, accessible, shot }) {
    const page = await context.newPage();
    await open(page, "tiny");
    await state(page, "ready");
    await page.locator("#new-chat").click();
    assert.equal(await measured(page), "Kernels timed by the device's clock.");
    const [prompt, token] = await tablesOf(page);
    assert.match(prompt.title, /^A prompt of 1,000 tokens, with its first token after 20\.000 ms; its 3 launches take/);
    assert.deepEqual(token.rows, [
      ["gemv", "linear", "2", "0.750", "75.0 %", "4.00"],
      ["norm", "-", "1", "0.250", "25.0 %", "-"],
    ]);
    await page.setViewportSize(PHONE);
    assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), PHONE.width);
    await accessible(page, "times by kernel");
    await page.locator("#copy-profile").click();
    await page.locator("#profile-state", { hasText: "Copied." }).waitFor();
    await shot(page, "profile-phone-light");
    const text = await page.evaluate(() => navigator.clipboard.readText());
    assert.match(
      text,
      /Mozilla[\s\S]*\nmaker, arch; kernels by the device's clock\n\nA prompt[\s\S]*\n\nA token in 1\.250 ms/,
    );
    assert.match(text, /\ngemv {4}linear {11}2 {2}0\.750 {2}75\.0 % {2}4\.00\n/);
    // A message that is sent meanwhile waits, and is answered.
    await page.workers()[0].evaluate(() => {
      self.held = Promise.withResolvers();
    });
    await page.locator("#profile").click();
    await page.locator("#close-settings").click();
    await ask(page, "Hello");
    await page.workers()[0].evaluate(() => self.held.resolve());
    assert.match(await (await answered(page)).innerText(), /Answer/);
    await page.close();
  },
};

export const REAL_PROFILE = {
  /** Every kernel of a prompt and of a token, and the conversation goes on as if nothing had been. */
  async profile({ context, job, ask, answered }) {
    const [page] = context.pages();
    await page.locator("#new-chat").click();
    const [[question, answer], [later, laterAnswer]] = job.answers.memory;
    const isRight = async (asked, right) => {
      await ask(page, asked);
      const item = await answered(page, ANSWER_MS);
      assert.equal(await item.locator(".answer").innerText(), right);
    };
    await isRight(question, answer);
    assert.match(await measured(page, ANSWER_MS), /^Kernels timed by the (device|browser)'s clock/);
    const [prompt, token] = await tablesOf(page);
    await page.locator("#close-settings").click();
    assert.match(prompt.title, /^A prompt of \d+ tokens/);
    assert.match(token.title, /^A token in [\d.]+ ms; its \d+ launches take [\d.]+ ms$/);
    for (const [{ rows }, kernels] of [
      [prompt, [/^prefill_attention/, /gem[mv]_/]],
      [token, [/^decode_attention/, /gemv_/, /^sample_top_p/]],
    ]) {
      for (const kernel of kernels)
        assert.ok(
          rows.some(([name]) => kernel.test(name)),
          `${kernel} in ${rows}`,
        );
      assert.ok(
        rows.every(([, , launches, ms]) => Number(launches) > 0 && Number(ms) > 0),
        String(rows),
      );
      const shares = rows.map(([, , , , share]) => Number.parseFloat(share));
      assert.ok(Math.abs(shares.reduce((sum, share) => sum + share) - 100) < 0.05 * rows.length + 0.1, String(shares));
      const speeds = rows.filter(([, operator, , , , speed]) => operator === "linear" && Number(speed) > 0);
      assert.ok(speeds.length > 2, String(rows));
    }
    await isRight(later, laterAnswer);
  },
};
