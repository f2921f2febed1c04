// What a prompt begins with is kept: on the device, and in the browser's storage. With the stock client.
import assert from "node:assert/strict";
import { ANSWER_MS } from "./limits.mjs";

const numberIn = (text, pattern) => Number((pattern.exec(text)?.[1] ?? "0").replaceAll(",", ""));

/** Asks, and returns the answer and how many tokens of the prompt were copied. */
async function told({ ask, answered }, page, question) {
  await ask(page, question);
  const item = await answered(page, ANSWER_MS);
  const kept = numberIn(await item.locator(".stats").innerText(), /([\d,]+) tokens kept from before$/);
  return { answer: await item.locator(".answer").innerText(), kept };
}

async function beginningsState(page) {
  await page.locator("#open-settings").click();
  const text = await page.locator("#beginnings-state").innerText();
  await page.locator("#close-settings").click();
  return text;
}

export const BEGINNINGS = {
  /** Chats with one system prompt take turns: each copies whole chunks of what was read before, and says what it would. */
  async beginnings({ context, job, open, state, ...tools }) {
    const [page] = context.pages();
    const { system, first, other, back } = job.answers.beginnings;
    await open(page, "seeing");
    await state(page, "ready");
    await page.locator("#new-chat").click();
    await page.locator("#open-settings").click();
    await page.locator("#temperature").fill("0");
    await page.locator("#system").fill(system);
    await page.locator("#system-default").setChecked(true);
    await page.locator("#close-settings").click();
    assert.deepEqual(await told(tools, page, first.question), { answer: first.answer, kept: 0 });
    await page.locator("#new-chat").click();
    assert.deepEqual(await told(tools, page, other.question), { answer: other.answer, kept: other.kept });
    await page.locator("#conversations .open", { hasText: first.question }).click();
    assert.deepEqual(await told(tools, page, back.question), { answer: back.answer, kept: back.kept });
    const said = await beginningsState(page);
    assert.equal(numberIn(said, / ([\d,]+) tokens were not read again/), other.kept + back.kept, said);
  },

  /** What was read is found in the browser's storage after a reload, but a damaged file, and goes with its chats. */
  async beginnings_after_a_reload({ context, job, state, ...tools }) {
    const [page] = context.pages();
    const { first, other, stored, again } = job.answers.beginnings;
    const isStored = async (count) => {
      const root = await navigator.storage.getDirectory();
      const folder = await root.getDirectoryHandle("gemma4-web-beginnings-4f2a393f4d0caf98", { create: true }); // of "gemma4-chat"
      const names = await Array.fromAsync(folder.keys());
      return names.filter((name) => name.endsWith(".json")).length === count;
    };
    const waitForStored = (count) => page.waitForFunction(isStored, count, { timeout: ANSWER_MS });
    await waitForStored(stored);
    await page.reload();
    await state(page, "ready");
    await page.locator("#new-chat").click();
    assert.deepEqual(await told(tools, page, other.question), { answer: other.answer, kept: again });
    assert.match(await beginningsState(page), / of it from an earlier visit, /);
    await page.getByRole("button", { name: `More for the chat “${first.question}”` }).click();
    await page.getByRole("menuitem", { name: `Delete the chat “${first.question}”` }).click();
    await waitForStored(again / job.answers.beginnings.chunk);
    await page.locator("#open-settings").click();
    await page.locator("#beginnings").selectOption("off");
    await waitForStored(0);
    await page.locator("#beginnings").selectOption("auto");
    await page.locator("#system-default").setChecked(false);
    await page.locator("#close-settings").click();
  },
};
