// Scenarios about the list of models beside the page (models.json), with a scripted engine. What a list may hold and how a
// server may answer are tested without a browser (examples/web/tests/models.test.ts); here is what a person sees of it.
import assert from "node:assert/strict";
import http from "node:http";
import { chatAbout, inPage } from "./page_chats.mjs";

const LIST = "**/models.json";
const ENTRY = { name: "tiny", address: "tiny/" };
const JSON_TYPE = "application/json";

/** Shows the page's start with this answer for the list, a route's fulfilment or what aborts it. */
async function offering({ context, server, state }, page, answer) {
  await context.unroute(LIST);
  await context.route(LIST, (route) => (answer ? route.fulfill(answer) : route.abort()));
  await page.goto(server.url);
  await state(page, "choose");
}

/** The address of a server that is gone: its port was free a moment ago. */
async function nowhere() {
  const server = http.createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return `127.0.0.1:${port}`;
}

const list = (...models) => ({ contentType: JSON_TYPE, body: JSON.stringify({ models }) });

export const MODELS = {
  /** What is wrong with a list is said in its place, where there is none nothing is, and the field is there in any case. */
  async faulty_lists(tools) {
    await inPage(tools.context, tools, async (page) => {
      for (const [what, answer, fault, complaint] of [
        ["damaged", { contentType: JSON_TYPE, body: '{"models": [' }, /models\.json is no JSON file/],
        ["with a script", list({ ...ENTRY, address: "javascript:alert(1)" }), /`models\[0\]\.address` should be/],
        ["behind a broken server", { status: 503 }, undefined, /503/],
        ["the page itself", { contentType: "text/html", body: "<!doctype html>" }, undefined],
        ["unreachable", undefined, undefined, /ERR_FAILED/],
      ]) {
        await offering(tools, page, answer);
        const told = await page.locator("#offer-fault").allInnerTexts();
        if (fault) assert.match(told.join(), fault, what);
        else assert.deepEqual(told, [], what);
        assert.equal(await page.locator("#offer").count(), 0, what);
        assert.ok(await page.locator("#package").isVisible(), what);
        if (complaint) tools.expectComplaint(complaint);
      }
    });
    await tools.context.unroute(LIST);
  },

  /** One that cannot be had is said so, and the way back leads to the list; one that can chats. */
  async list_of_models(tools) {
    const { context, state, accessible, shot, expectComplaint } = tools;
    const gone = await nowhere();
    const size = { size: 2.5 * 2 ** 30, memory: 3 * 2 ** 30, modalities: ["text", "image"] };
    const models = [
      { ...ENTRY, note: "of a later version" },
      { name: "Elsewhere", address: `http://${gone}/e2b/`, ...size },
      { name: "Gone", address: "./missing/" },
    ];
    await inPage(context, tools, async (page) => {
      await offering(tools, page, list(...models));
      const offered = page.locator("#offer li");
      assert.deepEqual(await offered.locator("button").allInnerTexts(), ["tiny", "Elsewhere", "Gone"]);
      assert.match(await offered.nth(1).innerText(), /2\.50 GiB · 3\.00 GiB of memory · text, image/);
      await accessible(page, "a list of models");
      await shot(page, "models-desktop-light");
      for (const [name, words, complaint] of [
        ["Elsewhere", `${gone} cannot be reached`, /ERR_CONNECTION_REFUSED/],
        ["Gone", "missing/provenance.json answers 404", /404/],
      ]) {
        await offered.locator("button", { hasText: name }).click();
        await state(page, "failed");
        const told = await page.locator("#start").innerText();
        assert.ok(told.includes(words), told);
        expectComplaint(complaint);
        await page.getByRole("button", { name: "Another package" }).click();
        await state(page, "choose");
      }
      await offered.locator("button", { hasText: "tiny" }).click();
      await state(page, "ready");
      await chatAbout(tools, page, "Hello");
      await page.evaluate(() => localStorage.clear());
    });
    await context.unroute(LIST);
  },

  /** Beside several packages the head of the page has their names, and changes from one to the other, also after a reload. */
  async switch_models(tools) {
    const { context, state, accessible } = tools;
    await inPage(context, tools, async (page) => {
      await offering(tools, page, list(ENTRY, { name: "second", address: "./tooled/" }));
      const names = page.locator("#switch-model");
      assert.ok(!(await names.isVisible()), "the list itself is shown");
      await page.locator("#offer li button", { hasText: "tiny" }).click();
      await state(page, "ready");
      assert.deepEqual(await names.locator("option").allInnerTexts(), ["tiny", "second"]);
      assert.equal(await names.inputValue(), "tiny/");
      await chatAbout(tools, page, "Hello");
      await names.selectOption("second");
      await page.locator("#model", { hasText: "gemma-4-E2B-it" }).waitFor();
      await state(page, "ready");
      assert.equal(await names.inputValue(), "./tooled/");
      await accessible(page, "a model that can be changed");
      await page.reload();
      await state(page, "ready");
      await names.selectOption("tiny");
      await page.locator("#model", { hasText: "tiny" }).waitFor();
      await state(page, "ready");
      await chatAbout(tools, page, "Hello again");
      await page.evaluate(() => localStorage.clear());
    });
    await context.unroute(LIST);
  },
};
