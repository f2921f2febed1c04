// Scenarios about the list of models beside the page (models.json), with a scripted engine. What a list may hold and how a
// server may answer are tested without a browser (examples/web/tests/models.test.ts); here is what a person sees of it.
import assert from "node:assert/strict";
import { inPage } from "./page_chats.mjs";

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
};
