// Scenarios about the field for a package, what moves, and what fits on a screen, with a scripted engine.
import assert from "node:assert/strict";
import path from "node:path";
import { until } from "./chromium.mjs";
import { chatAbout, inPage } from "./page_chats.mjs";

const PHONES = [360, 390, 430];

export const LOOKS = {
  /** A model of the hub by its id, typed into the field; the hub is played by this test. */
  async hub_id({ context, server, state, job, expectComplaint }) {
    await inPage(context, { server }, async (page) => {
      const asked = [];
      await context.route("https://huggingface.co/**", async (route) => {
        const { pathname } = new URL(route.request().url());
        asked.push(pathname);
        const name = /^\/me\/my-model\/resolve\/v2\/([\w.-]+)$/.exec(pathname)?.[1];
        const headers = { "access-control-allow-origin": "*" };
        if (!name) return route.fulfill({ status: pathname.startsWith("/me/") ? 404 : 401, headers });
        return route.fulfill({ path: path.join(job.packages.tiny, name), headers });
      });
      const type = async (text) => {
        await page.evaluate(() => localStorage.clear()); // of the package that was opened last
        await page.goto(server.url);
        await state(page, "choose");
        await page.locator("#package").fill(text);
        await page.locator("#package").press("Enter");
      };
      await type("me/my-checkpoint");
      await page.locator("#error", { hasText: /holds no package[\s\S]*gemma4-compile me\/my-checkpoint/ }).waitFor();
      await type("you/private");
      await page.locator("#error", { hasText: "private" }).waitFor();
      for (const status of [404, 401]) expectComplaint(new RegExp(String(status)));
      await type("me/my-model@v2");
      await state(page, "ready");
      assert.ok(asked.includes("/me/my-model/resolve/v2/model.wasm"), String(asked));
      await page.evaluate(() => localStorage.clear());
      await context.unroute("https://huggingface.co/**");
    });
  },

  /** A caret while a reply is written, at its end; it stands still where motion is not wanted. */
  async caret({ context, open, state, shot, accessible, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      const caret = page.locator("#messages .caret");
      await chatAbout(tools, page);
      await tools.askHeld(page, "Something long");
      await page.locator("#messages", { hasText: "word10" }).waitFor();
      assert.equal(await caret.count(), 1);
      const [isLast, animation, hidden] = await caret.evaluate((element) => [
        !element.nextSibling && element.parentElement.matches(".answer > p"),
        getComputedStyle(element).animationName,
        element.getAttribute("aria-hidden"),
      ]);
      assert.deepEqual([isLast, animation, hidden], [true, "none", "true"]);
      await page.emulateMedia({ reducedMotion: "no-preference" });
      assert.equal(await caret.evaluate((element) => getComputedStyle(element).animationName), "blink");
      await shot(page, "writing-desktop-light");
      await page.keyboard.press("Escape");
      await tools.answered(page);
      assert.equal(await caret.count(), 0);
    });
  },

  /** The settings have sections, with a way to each by keyboard. */
  async settings_sections({ context, open, state, shot, accessible, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      for (const width of [1280, 360]) {
        await page.setViewportSize({ width, height: 740 });
        if (width < 700) await page.locator("#open-sidebar").click();
        await page.locator("#open-settings").click();
        const buttons = page.locator("#settings-nav button");
        const names = await buttons.allInnerTexts();
        assert.deepEqual(names, ["This chat", "Sampling", "Model", "Search", "Appearance", "Chats", "Storage", "Keys"]);
        for (const name of ["Keys", "Chats", "This chat"]) {
          await buttons.filter({ hasText: name }).press("Enter");
          const heading = page.locator("#settings-sections h3", { hasText: name });
          await heading.and(page.locator(":focus")).waitFor();
          const current = page.locator('#settings-nav [aria-current="true"]');
          await current.filter({ hasText: name }).waitFor();
          assert.equal(await current.count(), 1);
          await until(
            page,
            (words) => {
              const titles = [...document.querySelectorAll("#settings-sections h3")];
              const box = document.querySelector("#settings-sections").getBoundingClientRect();
              const { top, bottom } = titles.find((each) => each.textContent === words).getBoundingClientRect();
              return top >= box.top && bottom <= box.bottom && !document.querySelector("#settings").scrollTop;
            },
            name,
          );
        }
        assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
        await accessible(page, `settings, ${width} px`);
        await shot(page, `settings-sections-${width}`);
        await page.keyboard.press("Escape");
      }
    });
  },

  /** The context's numbers stay on one line on phones, even long ones, and nothing sticks out. */
  async phones({ context, open, state, shot, accessible, ...tools }) {
    await inPage(context, tools, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await chatAbout(tools, page, "A question with a title that is longer than the screen of a phone is wide");
      for (const width of PHONES) {
        await page.setViewportSize({ width, height: 780 });
        for (const text of [undefined, "131,072 of 262,144"]) {
          if (text)
            await page.locator("#context-text").evaluate((element, words) => (element.firstChild.data = words), text);
          const told = await page.locator("#context-text").evaluate((element) => {
            const range = document.createRange();
            range.selectNodeContents(element.firstChild);
            const { left, right } = element.closest("header").getBoundingClientRect();
            const box = element.getBoundingClientRect();
            return { lines: range.getClientRects().length, inside: box.left >= left && box.right <= right };
          });
          assert.deepEqual(told, { lines: 1, inside: true }, `${width} px`);
          assert.equal(await page.evaluate(() => document.documentElement.scrollWidth), width);
          assert.ok((await page.locator("#title").evaluate((element) => element.getBoundingClientRect().width)) > 80);
        }
        await accessible(page, `a chat, ${width} px`);
        await shot(page, `phone-${width}`);
        // The drawer, its menu and the field for a name.
        await page.locator("#open-sidebar").click();
        await page.getByRole("button", { name: /^More for the chat/ }).click();
        const { left, right, bottom } = await page
          .locator("#chat-menu")
          .evaluate((menu) => menu.getBoundingClientRect().toJSON());
        assert.ok(left >= 0 && right <= width && bottom <= 780, `${width} px: ${[left, right, bottom]}`);
        await accessible(page, `a menu, ${width} px`);
        await shot(page, `phone-menu-${width}`);
        await page.keyboard.press("Escape");
        await page.locator("#chat-menu").waitFor({ state: "hidden" });
        assert.ok(await page.locator("#close-sidebar").isVisible(), "the drawer stays");
        await page.getByRole("button", { name: /^More for the chat/ }).click();
        await page.getByRole("menuitem", { name: /^Rename/ }).click();
        await page.getByRole("textbox", { name: "Name of the chat" }).press("Escape");
        assert.ok(await page.locator("#close-sidebar").isVisible(), "the drawer stays");
        await page.keyboard.press("Escape");
        await page.locator("#close-sidebar").waitFor({ state: "hidden" });
        assert.ok(await page.locator("#open-sidebar").evaluate((button) => button === document.activeElement));
      }
    });
  },
};
