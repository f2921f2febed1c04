// The place of per-layer embeddings, with a scripted engine.
import assert from "node:assert/strict";

export const SCRIPTED_TABLE = {
  /** The place of per-layer embeddings is kept, is told to the engine, and waits for the next start. */
  async table_switch({ context, open, state, accessible }) {
    const page = await context.newPage();
    await open(page, "tiny");
    await state(page, "ready");
    const started = () => page.workers()[0].evaluate(() => self.started.table);
    const { place, savedBytes } = await started();
    assert.equal(place, "device");
    assert.ok(savedBytes > 0);
    const said = page.locator("#table-state");
    await page.locator("#open-settings").click();
    await said.filter({ hasText: /^On the graphics device, where they take .*: it takes .* alone\.$/ }).waitFor();
    await page.locator("#table").selectOption("host");
    await said.filter({ hasText: /when the model starts again/ }).waitFor();
    await accessible(page, "settings with a place for per-layer embeddings");
    await page.locator("#change-model").click();
    await state(page, "check");
    await page
      .locator("#table-why", { hasText: /In the browser's storage, which saves .*: it was asked for\.$/ })
      .waitFor();
    await page.locator("#open-settings").click();
    await page.locator("#table").selectOption("device"); // at once, where nothing has started yet
    await page.locator("#table-why").waitFor({ state: "detached" });
    await page.locator("#table").selectOption("host");
    await page.locator("#close-settings").click();
    await page.locator("#table-why").waitFor();
    await page.locator("#download", { hasText: "Start" }).click();
    await state(page, "ready");
    assert.deepEqual(await started(), { place: "host", savedBytes });
    await page.reload();
    await state(page, "ready");
    assert.deepEqual(await started(), { place: "host", savedBytes });
    await page.locator("#open-settings").click();
    assert.equal(await page.locator("#table").inputValue(), "host");
    await said.filter({ hasText: /^In the browser's storage, which saves .*: it was asked for\.$/ }).waitFor();
    await page.locator("#table").selectOption("auto");
    await page.locator("#close-settings").click();
    await page.close();
  },
};
