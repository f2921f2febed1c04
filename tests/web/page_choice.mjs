// Scenarios with the stock client and a package of every library, which the page's list of models names: which one the page
// takes on this device, and what that one answers. `job.answers` has {address: of the package below the page, fitting: names
// of the libraries that run here, others: the names of the rest, turns}.
import assert from "node:assert/strict";
import { ANSWER_MS } from "./limits.mjs";

const PROGRAM = /\.wasm$/;

/** What the settings say of the library. */
export async function librarySaid(page) {
  await page.locator("#open-settings").click();
  const said = page.locator("#library-state", { hasText: /\S/ });
  const text = await said.innerText();
  await page.locator("#close-settings").click();
  return text;
}

export const nameIn = (said) => /^Library ([\w-]+): /.exec(said)?.[1];
const fileOf = (name) => (name === "default" ? "model.wasm" : `model-${name}.wasm`);

/** Every turn of the conversation, greedy, word for word. */
export async function converse(page, { ask, answered }, turns) {
  await page.locator("#new-chat").click();
  await page.locator("#open-settings").click();
  await page.locator("#temperature").fill("0");
  await page.locator("#close-settings").click();
  for (const [question, answer] of turns) {
    await ask(page, question);
    const item = await answered(page, ANSWER_MS);
    assert.equal(await item.locator(".answer").innerText(), answer);
  }
}

export const CHOICE = {
  /** Only what may run here is downloaded, and of that one library is kept with the package. */
  async first_visit({ context, server, state, requested, ...tools }) {
    const { address, fitting } = tools.job.answers;
    const [page] = context.pages();
    const from = server.requests.length;
    await page.goto(server.url);
    await state(page, "choose");
    assert.match(await page.locator("#offer li").innerText(), /^tiny\s*[\d.]+ MiB · [\d.]+ MiB of memory · text$/);
    assert.deepEqual(requested(from, /provenance/), [], "before a person chooses");
    await page.locator("#offer button", { hasText: "tiny" }).click();
    await state(page, "ready");
    const said = await librarySaid(page);
    const name = nameIn(said);
    assert.ok(fitting.includes(name), `${said}; these fit: ${fitting}`);
    if (fitting.length === 1) assert.match(said, /the only one of 9 that fits/);
    await converse(page, tools, tools.job.answers.turns);
    const programs = requested(from, PROGRAM).map(({ path }) => path.replace(address, ""));
    assert.ok(programs.includes(fileOf(name)), `${programs}`);
    assert.deepEqual([...new Set(programs)].length, programs.length, "each at most once");
    for (const path of programs) assert.ok(fitting.map(fileOf).includes(path), `${path} cannot run here`);
  },

  /** Those that cannot run say what to choose. One that answers is fixed in page_firefox.mjs, and kept in page_libraries.mjs. */
  async fixed_by_a_person({ context, state, job }) {
    const { fitting, others } = job.answers;
    const [page] = context.pages();
    await page.locator("#open-settings").click();
    await page.locator("#change-model").click();
    await state(page, "check");
    const offered = await page.locator("#library option").evaluateAll((all) => all.map(({ value }) => value));
    assert.deepEqual([...offered].sort(), ["", ...fitting, ...others].sort());
    for (const name of others) {
      await page.locator("#library").selectOption(name);
      await page.locator("#library-why", { hasText: `Library ${name}: chosen in the settings` }).waitFor();
      await page.locator("#error", { hasText: `another library of the package: ${fitting[0]}` }).waitFor();
      assert.ok(await page.locator("#download").isDisabled(), name);
    }
    await page.locator("#library").selectOption(fitting[0]);
    await page.locator("#library-why", { hasText: `Library ${fitting[0]}: chosen in the settings` }).waitFor();
    await page.locator("#error").waitFor({ state: "detached" });
    assert.ok(await page.locator("#download").isEnabled());
  },
};
