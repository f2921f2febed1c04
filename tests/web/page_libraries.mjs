// The choice of a package's library in the page, with a scripted engine.
import assert from "node:assert/strict";

export const LIBRARIES = {
  /** Of a package's libraries one is downloaded; a person may fix another. */
  async libraries({ context, server, open, state, requested }) {
    const page = await context.newPage();
    const from = server.requests.length;
    await open(page, "several");
    await state(page, "ready");
    await page.locator("#open-settings").click();
    await page.locator("#library-state", { hasText: "Library default: the only one of 9 that fits" }).waitFor();
    await page.locator("#change-model").click();
    await state(page, "check");
    await page.locator("#library").selectOption("f16");
    await page.locator("#error", { hasText: "Choose another library of the package: default" }).waitFor();
    assert.ok(await page.locator("#download").isDisabled());
    assert.match(await page.locator("#library-why").innerText(), /Library f16: chosen in the settings/);
    await page.reload();
    await state(page, "check");
    await page.locator("#library").selectOption("");
    await page.locator("#error").waitFor({ state: "detached" });
    await page.locator("#download").click();
    await state(page, "ready");
    const libraries = requested(from, /\.wasm$/).map(({ path }) => path);
    assert.deepEqual(libraries, ["/several/model.wasm"]);
    await page.close();
  },
};
