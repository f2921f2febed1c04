// Scenarios with a scripted engine (scripted_engine.js): everything of the page but the model.
import assert from "node:assert/strict";
import { until } from "./chromium.mjs";

const HEAVY = /\.(bin|wasm)$/;
const PHONE = { width: 390, height: 844 };
const DESKTOP = { width: 1280, height: 800 };

/** Works in a page of its own, which is closed at the end. */
export async function inPage(context, action) {
  const page = await context.newPage();
  try {
    return await action(page);
  } finally {
    await page.close();
  }
}

async function say({ ask, answered }, page, text) {
  await ask(page, text);
  return answered(page);
}

export const SCRIPTED = {
  /** What cannot work is said before anything large is asked for. */
  async refusals({ context, server, open, state, requested, expectComplaint, shot, accessible }) {
    const cases = [
      ["tiny", "webgpu", "no-webgpu", /no WebGPU[\s\S]*Chrome or Edge/],
      ["tiny", "adapter", "no-webgpu", /no graphics device[\s\S]*hardware acceleration/],
      ["f16", undefined, "check", /16-bit floats[\s\S]*without --limits/], // SwiftShader has none
      ["missing", undefined, "failed", /404/],
      ["large", undefined, "check", /Needs about 2\.45 GiB of graphics memory/],
    ];
    for (const [name, lack, kind, words] of cases) {
      await inPage(context, async (page) => {
        const from = server.requests.length;
        await open(page, name, lack);
        await state(page, kind);
        assert.match(await page.locator("#start").innerText(), words, name);
        assert.deepEqual(requested(from, HEAVY), [], name);
        if (name === "missing") expectComplaint(/404/);
        if (lack === "webgpu") {
          await accessible(page, "without WebGPU");
          await shot(page, "no-webgpu-desktop-light");
        }
      });
    }
  },

  /** The memory that a person allows, and the way to fit into it. */
  async memory_budget({ context, server, open, state, requested, accessible, shot }) {
    await inPage(context, async (page) => {
      const from = server.requests.length;
      await open(page, "large");
      await state(page, "check");
      await page.locator("#allowed").selectOption({ label: "at most 2 GiB" });
      await page.locator("#error", { hasText: "you allow 2.00 GiB" }).waitFor();
      assert.ok(await page.locator("#download").isDisabled());
      const shorter = /Choose a context of (\d+ tokens)/.exec(await page.locator("#error").innerText());
      await shot(page, "check-desktop-light");
      await page.locator("#context").selectOption({ label: shorter[1] });
      await page.locator("#error").waitFor({ state: "detached" });
      assert.ok(await page.locator("#download").isEnabled());
      await accessible(page, "the check");
      await page.locator("#allowed").selectOption("0");
      assert.deepEqual(requested(from, HEAVY), []);
    });
  },

  /** A file that is wrong on the server is named, tried twice, and not kept. */
  async damaged_on_the_server({ context, server, open, state, requested }) {
    await inPage(context, async (page) => {
      const from = server.requests.length;
      await open(page, "damaged");
      await state(page, "failed");
      assert.match(await page.locator("#error").innerText(), /params_shard_0\.bin arrived damaged/);
      assert.equal(requested(from, /damaged\/params_shard_0\.bin$/).length, 2);
      const kept = await page.evaluate(async () => {
        const cache = await caches.open("webllm/model");
        return (await cache.keys()).map((request) => request.url).filter((url) => url.endsWith(".bin"));
      });
      assert.deepEqual(kept, []);
    });
  },

  async storage_is_full({ context, open, state }) {
    await inPage(context, async (page) => {
      await open(page, "tiny", "quota");
      await state(page, "failed");
      assert.match(await page.locator("#error").innerText(), /storage for this site is full[\s\S]*Remove other/);
    });
  },

  /** Paused by the person in the middle of the weights; the finished files are not asked for again. */
  async pause_and_reload({ context, server, open, state, requested }) {
    await inPage(context, async (page) => {
      server.faults["/tiny/params_shard_0.bin"] = ["hold"];
      await open(page, "tiny");
      await page.locator("#status", { hasText: / of \d\.\d MiB/ }).waitFor();
      await until(page, async () =>
        (await (await caches.open("webllm/wasm")).keys()).some(({ url }) => new URL(url).pathname.startsWith("/tiny/")),
      );
      await page.locator("#pause").click();
      await state(page, "failed");
      assert.match(await page.locator("#start").innerText(), /paused[\s\S]*kept/);
      const from = server.requests.length;
      await page.reload();
      await state(page, "ready");
      const again = requested(from, HEAVY).map((request) => request.path);
      assert.deepEqual(again, ["/tiny/params_shard_0.bin"]);
    });
  },

  /** From here on the model is in the cache. The server is gone: the page has what it needs. */
  async offline({ context, open, state, expectComplaint, ...tools }) {
    await inPage(context, async (page) => {
      await page.route(
        (url) => url.pathname.startsWith("/tiny/"),
        (route) => route.abort("internetdisconnected"),
      );
      await open(page, "tiny");
      await state(page, "ready");
      expectComplaint(/ERR_INTERNET_DISCONNECTED/);
      const item = await say(tools, page, "Hello");
      assert.match(await item.innerText(), /Answer 1\./);
    });
  },

  async answers({ context, open, state, ...tools }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      const item = await say(tools, page, "Show me markdown");
      const answer = item.locator(".answer");
      for (const inside of ["h1", "strong", "pre code", "table td.to-right", "ul li", "blockquote"]) {
        assert.ok(await answer.locator(inside).count(), inside);
      }
      // What the model writes is text, never a part of the page.
      for (const never of ["script", "img", 'a[href^="javascript"]', "[style]"]) {
        assert.equal(await answer.locator(never).count(), 0, never);
      }
      assert.equal(await page.evaluate(() => window.hacked), undefined);
      assert.equal(await answer.locator("a").first().getAttribute("rel"), "noopener noreferrer nofollow");
      await answer.locator("button.copy-code").click();
      await page.locator("#live", { hasText: "Code copied" }).waitFor({ state: "attached" });
      assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^def longest\(text\):\n/);

      const reasoning = await say(tools, page, "Please think");
      assert.equal(await reasoning.locator("details.reasoning").getAttribute("open"), null);
      assert.equal(await reasoning.locator(":scope > .body > .answer").innerText(), "A careful answer.");
      await reasoning.locator("summary").press("Enter");
      assert.match(await reasoning.locator("details.reasoning .answer").innerText(), /care/);
    });
  },

  /** The model calls the calculator, the page works it out, the model goes on in the same turn. */
  async tool_call({ context, open, state, ...tools }) {
    await inPage(context, async (page) => {
      await open(page, "tooled");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await page.locator("#tools").click();
      await page.locator("#thinking").click();
      const item = await say(tools, page, "What is 8 plus 19?");
      assert.match(await item.locator(".call").innerText(), /calculator\(8 \+ 19\)\s*= 27/);
      assert.match(await item.innerText(), /Let me see\.[\s\S]*8 plus 19 is 27\./);
      const [first, second] = await page.workers()[0].evaluate(() => self.requests.map((request) => request.messages));
      assert.match(
        first[0].content,
        /^<\|turn>system\n<\|think\|>\n<\|tool>declaration:calculator\{[\s\S]*<tool\|><turn\|>\n<\|turn>user\nWhat is 8 plus 19\?<turn\|>\n<\|turn>model\n$/,
      );
      assert.deepEqual(second.slice(0, 1), first);
      assert.match(second[1].content, /<tool_call\|>$/);
      assert.equal(
        second[2].content,
        '<|tool_response>response:calculator{value:<|"|>27<|"|>}<tool_response|><|channel>thought\n',
      );
    });
  },

  /** Editing takes out what followed, and Undo brings it back; all of it outlives a reload. */
  async edit_undo_keep({ context, open, state, answered, ...tools }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      for (const text of ["First question", "Second question"]) await say({ answered, ...tools }, page, text);
      const before = await page.locator("#messages").innerText();
      await page.locator("#prompt").press("ArrowUp");
      await page.keyboard.press("Escape");
      await page.locator('#messages li[data-role="user"]').first().hover();
      await page.getByRole("button", { name: "Edit this message and ask again" }).first().click();
      await page.getByRole("textbox", { name: "Edited message" }).fill("Another first question");
      await page.keyboard.press("Enter");
      await answered(page);
      assert.equal(await page.locator("#messages li").count(), 2);
      await page.getByRole("button", { name: "Undo" }).click();
      assert.equal(await page.locator("#messages").innerText(), before);
      await page.getByRole("button", { name: /^More for the chat “First/ }).click();
      await page.getByRole("menuitem", { name: /^Delete the chat “First/ }).click();
      assert.equal(await page.locator("#messages li").count(), 0);
      await page.getByRole("button", { name: "Undo" }).click();
      await page.locator("#prompt").fill("half a thought");
      await page.reload();
      await state(page, "ready");
      assert.equal(await page.locator("#messages").innerText(), before);
      assert.equal(await page.locator("#prompt").inputValue(), "half a thought");
    });
  },

  /** Tokens per second by the clock, whatever the client says of itself. */
  async speed_by_the_clock({ context, open, state, ...tools }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      const item = await say(tools, page, "Something long");
      const stats = await item.locator(".stats").innerText();
      const matched = /^(\d+) tokens · ([\d.]+) tokens\/s · first after (\d+) ms$/.exec(stats);
      assert.ok(matched, stats);
      const [, tokens, speed] = matched.map(Number);
      // The engine says a piece each 15 ms; with the stop token there is one more.
      assert.ok(Math.abs(speed - 1000 / 15) < 0.1, `${tokens} tokens at ${speed} a second`);
    });
  },

  /** Fast by default; the switch is kept, and holds from the next start on. */
  async fast_switch({ context, open, state, accessible, ...tools }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      const shown = async (words) => {
        await page.locator("#open-settings").click();
        await page.locator("#fast-state", { hasText: words }).waitFor();
      };
      await shown(/^Ready/);
      await page.locator("#close-settings").click();
      await say(tools, page, "Hello");
      await shown(/^Active: of \d+ decode steps \d+ ran ahead of the client\.$/);
      await page.locator("#fast").uncheck();
      await page.locator("#fast-state", { hasText: /^Active.*when the model starts again/ }).waitFor();
      await accessible(page, "settings with a change to come");
      await page.reload();
      await state(page, "ready");
      await shown(/^Off for this model\.$/);
      assert.equal(await page.locator("#fast").isChecked(), false);
      await page.locator("#fast").check();
      await page.locator("#fast-state", { hasText: /^Off.*when the model starts again/ }).waitFor();
      await page.reload();
      await state(page, "ready");
      await shown(/^Ready/);
    });
  },

  /** A long reply is stopped by the keyboard; a tab that is closed meanwhile keeps what was written. */
  async stop_and_close({ context, open, state, answered, askHeld }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await askHeld(page, "Something long");
      await page.locator("#messages", { hasText: "word10" }).waitFor();
      await page.keyboard.press("Escape");
      assert.equal(await (await answered(page)).getAttribute("data-state"), "stopped");
      await askHeld(page, "Again something long");
      await page.locator("#messages li:last-child", { hasText: "word20" }).waitFor();
      await page.reload();
      const last = page.locator("#messages li:last-child");
      await last.waitFor();
      assert.equal(await last.getAttribute("data-state"), "interrupted");
      assert.match(await last.innerText(), /word10/);
      await state(page, "ready");
      await page.getByRole("button", { name: "Write the answer again" }).waitFor();
    });
  },

  async context_full({ context, open, state, ask, answered, ...tools }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      for (const text of ["One", "Two"]) await say({ ask, answered, ...tools }, page, text);
      await ask(page, "overflow");
      await page.getByRole("button", { name: "Leave out the oldest" }).click();
      await page.locator(".forgotten").waitFor();
      await page.locator('#messages li:last-child[data-state="done"]').waitFor();
      assert.equal(await page.locator("#messages li.message").count(), 6, "nothing is lost from the page");
    });
  },

  /** Lost twice in a minute: the page does not try for ever, and says what to do. */
  async lost_twice({ context, open, state, ask }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await ask(page, "Get lost");
      await page.locator("#notices", { hasText: "starts again" }).waitFor();
      await state(page, "ready");
      await ask(page, "Get lost again");
      await state(page, "failed");
      assert.match(await page.locator("#error").innerText(), /device was lost[\s\S]*smaller package/);
      await page.locator("#again").click();
      await state(page, "ready");
      assert.equal(await page.locator("#messages li").count(), 4);
    });
  },

  async one_tab_owns_the_model({ context, open, state }) {
    await inPage(context, (first) =>
      inPage(context, async (second) => {
        await open(first, "tiny");
        await state(first, "ready");
        await open(second, "tiny");
        await state(second, "elsewhere");
        await second.getByRole("button", { name: "Use it here" }).click();
        await state(second, "ready");
        await state(first, "elsewhere");
      }),
    );
  },

  /** Another context for a model that runs; what was downloaded and said stays. */
  async change_the_context({ context, server, open, state, requested, answered, ask }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await say({ ask, answered }, page, "Hello");
      const from = server.requests.length;
      await page.locator("#open-settings").click();
      await page.locator("#change-model").click();
      await state(page, "check");
      await page.locator("#context").selectOption({ label: "256 tokens" });
      await page.locator("#download", { hasText: "Start" }).click();
      await state(page, "ready");
      await say({ ask, answered }, page, "Hello again");
      assert.match(await page.locator("#context-text").innerText(), /of 256 tokens/);
      assert.deepEqual(requested(from, HEAVY), []);
    });
  },

  async clearing({ context, open, state }) {
    await inPage(context, async (page) => {
      await open(page, "tiny");
      await state(page, "ready");
      await page.locator("#open-settings").click();
      await page.locator("#clear-models").click();
      await page.waitForFunction(() => document.querySelector("#stored").childElementCount === 0);
      const left = await page.evaluate(async () => {
        const caches_ = await Promise.all((await caches.keys()).map((name) => caches.open(name)));
        return (await Promise.all(caches_.map((cache) => cache.keys()))).flat().length;
      });
      assert.equal(left, 0);
      await page.locator("#clear-chats").click();
      await page.locator("#clear-chats").click();
      await page.locator("#no-conversations").waitFor();
    });
  },

  /** Both widths, both themes, for eyes and for axe. */
  async looks({ context, server, open, state, ask, answered, accessible, shot }) {
    await inPage(context, async (page) => {
      await page.goto(server.url);
      await page.evaluate(() => localStorage.clear());
      await page.goto(server.url);
      await state(page, "choose");
      await accessible(page, "the first page");
      await shot(page, "choose-desktop-light");
      await open(page, "tooled");
      await state(page, "ready");
      await page.locator("#new-chat").click();
      await accessible(page, "an empty chat");
      await shot(page, "welcome-desktop-light");
      await page.locator("#tools").click();
      await say({ ask, answered }, page, "What is 8 plus 19?");
      await say({ ask, answered }, page, "Please think");
      await say({ ask, answered }, page, "Show me markdown");
      for (const [size, viewport] of Object.entries({ desktop: DESKTOP, phone: PHONE })) {
        await page.setViewportSize(viewport);
        const width = await page.evaluate(() => document.documentElement.scrollWidth);
        assert.equal(width, viewport.width, `${size}: nothing sticks out`);
        for (const theme of ["light", "dark"]) {
          await page.emulateMedia({ colorScheme: theme });
          await accessible(page, `a chat, ${size}, ${theme}`);
          await shot(page, `chat-${size}-${theme}`);
        }
        if (size === "phone") {
          await page.locator("#open-sidebar").click();
          await accessible(page, "the drawer");
          await shot(page, "drawer-phone-dark");
        }
        await page.locator("#open-settings").click();
        await accessible(page, `settings, ${size}`);
        await shot(page, `settings-${size}-dark`);
        await page.keyboard.press("Escape");
      }
    });
  },
};
