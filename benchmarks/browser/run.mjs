// What a person gets: chats with a package in the stock client in headless Chromium or Firefox, as it is (`plain`), with
// `gemma4-web/fast` (`fast`; `unpolled`: where empty submissions do not end a wait of Firefox's), and with N guesses of the package's drafter in every round (`drafts-N`; `drafts-auto`: as
// many as pay), tokens compared.
// With `library-NAME` the package's library of that name, with `library-auto` the one that `chooseLibrary` takes.
// One JSON line a mode on stdout, a table on stderr.
// usage: node benchmarks/browser/run.mjs --package DIR [--modes plain,fast] [--drafts 1,2,3,4,6,8,auto] [--tokens 256]
//   [--browser chromium|firefox] [--repeats 3] [--rounds 1] [--prompt 1370: characters] [--empty: kernels that do nothing] [--commit C] [--note TEXT]
// With --drafts: the time of a round, and the tokens a second that it gives where 60, 70 and 80 % of guesses come true.
// Environment: CHROMIUM or FIREFOX, the browser; FIREFOX_LIBS as CHROMIUM_LIBS, VK_DRIVER_FILES for Firefox's driver; CHROMIUM_FLAGS instead of the tests' own; CHROMIUM_LIBS, a folder of shared libraries for it alone.
import { createHash } from "node:crypto";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { withPage } from "../../tests/web/chromium.mjs";
import { median, round, servePage, summary } from "./common.mjs";
import { threadTimes } from "./threads.mjs";

const { values: options } = parseArgs({
  options: {
    package: { type: "string" },
    browser: { type: "string", default: "chromium" },
    modes: { type: "string", default: "plain,fast" },
    drafts: { type: "string", default: "" },
    tokens: { type: "string", default: "256" },
    repeats: { type: "string", default: "3" },
    rounds: { type: "string", default: "1" },
    prompt: { type: "string", default: "1370" },
    empty: { type: "boolean", default: false },
    commit: { type: "string", default: "" },
    note: { type: "string", default: "" },
  },
});
const [tokens, repeats, rounds] = [options.tokens, options.repeats, options.rounds].map(Number);
const browser = { [options.browser]: process.env[options.browser.toUpperCase()] };
if (!browser.chromium && !browser.firefox) {
  console.error("--browser is chromium or firefox, and CHROMIUM or FIREFOX names it");
  process.exit(2);
}
const DRAFTS = /^drafts-(\d|auto)$/;
const SHARES = [0.6, 0.7, 0.8]; // of guesses that come true, each by itself
const letters = "the quick brown fox jumps over the lazy dog ";
const text = (length, shift) =>
  Array.from({ length }, (_, i) => letters[(i * 7 + shift + (i >> 3)) % letters.length]).join("");
const user = (content) => [{ role: "user", content }];
const sumOf = (values, of) => values.reduce((sum, value) => sum + of(value), 0);
const digest = (ids) => createHash("sha256").update(ids.join()).digest("hex").slice(0, 12);

const server = await servePage(options.package);
const replies = {}; // mode -> name -> digest of the token ids

/**
 * Wall time of a round, and what it gives. Random weights guess wrong: nearly every token has a round of its own, and
 * rates are computed. The first steps of a reply, which have no guesses, are among them.
 */
function ofRounds(drafts, { greedy, sampled }) {
  const replies = [...greedy, ...sampled];
  const guessedShare = round(sumOf(replies, ({ guessed }) => guessed) / sumOf(replies, ({ ids }) => ids.length - 1));
  if (drafts === "auto") return { drafts, guessed_share: guessedShare };
  const guesses = Number(drafts);
  const roundMs = summary(
    replies.map(({ wallMs, firstChunkMs, ids, guessed }) => (wallMs - firstChunkMs) / (ids.length - 1 - guessed)),
  );
  const given = (share) => Array.from({ length: guesses + 1 }, (_, n) => share ** n).reduce((sum, each) => sum + each);
  return {
    drafts: guesses,
    round_ms: roundMs,
    guessed_share: guessedShare,
    computed_tokens_per_s: Object.fromEntries(
      SHARES.map((share) => [`${Math.round(100 * share)}%`, round((1000 * given(share)) / roundMs.median)]),
    ),
  };
}

async function measure(mode, page) {
  const drafts = DRAFTS.exec(mode)?.[1];
  const library = /^library-(.+)$/.exec(mode)?.[1];
  const plainly = library ? `fast&library=${library}` : mode.replace("unpolled", "fast&unpolled");
  const how = drafts === undefined ? plainly : `fast&drafts=${drafts}`;
  await page.goto(`${server.url}?${how}${options.empty ? "&empty" : ""}`);
  await page.waitForFunction("window.tests", null, { timeout: 60_000 });
  const { loadMs, chosen } = await page.evaluate("window.tests.load('model.wasm')");
  const mark = browser.firefox ? "firefox" : "chrom";
  const groups = { greedy: [], sampled: [], long: [] };
  const cpu = { tokens: 0, threads: {} };
  const ask = async (name, request) => {
    const before = threadTimes(mark);
    const reply = await page.evaluate((asked) => window.tests.chat(asked), {
      ignore_eos: true,
      max_tokens: tokens,
      ...request,
    });
    const after = threadTimes(mark);
    if (/greedy|sampled/.test(name)) {
      cpu.tokens += reply.ids.length;
      for (const [thread, ns] of Object.entries(after))
        cpu.threads[thread] = (cpu.threads[thread] ?? 0) + (ns - (before[thread] ?? 0)) / 1e6;
    }
    const key = digest(reply.ids);
    replies[mode] ??= {};
    replies[mode][name] ??= key;
    if (replies[mode][name] !== key) console.error(`${mode} ${name}: other tokens than the same request before`);
    groups[name.split(" ")[0]]?.push(reply);
  };
  await ask("warm", { messages: user("warm"), temperature: 0, max_tokens: 40, seed: 1 });
  await ask("prompt", { messages: user(text(Number(options.prompt), 99)), temperature: 0, max_tokens: 8, seed: 2 });
  for (let i = 0; i < repeats; i++) {
    await ask(`greedy ${i}`, { messages: user(`Tell ${i}`), temperature: 0, seed: 5 + i });
    await ask(`sampled ${i}`, { messages: user(`Say ${i}`), temperature: 1, top_p: 0.95, seed: 15 + i });
    await ask(`long ${i}`, {
      messages: user(text(Number(options.prompt), i)),
      temperature: 0,
      max_tokens: 64,
      seed: 25 + i,
    });
  }
  const of = (name, value) => summary(groups[name].map(value));
  const decodeRate = (reply) => reply.usage.extra.decode_tokens_per_s;
  const ttft = (reply) => reply.usage.extra.time_to_first_token_s * 1000;
  const threads = Object.entries(cpu.threads)
    .map(([name, ms]) => [name, round(ms / cpu.tokens)])
    .filter(([, ms]) => ms > 0.02);
  return {
    benchmark: "browser",
    date: new Date().toISOString().slice(0, 10),
    commit: options.commit,
    note: options.note,
    measure: "chat",
    mode,
    package: path.basename(options.package),
    empty_kernels: options.empty,
    browser: `${browser.firefox ? "Firefox " : ""}${page.context().browser()?.version() ?? ""}`,
    processor: os.cpus()[0].model,
    cores: os.cpus().length,
    device: await page.evaluate("window.tests.device()"),
    tokens,
    ...(chosen && { library: { name: chosen.name, why: chosen.why, measured: chosen.measured } }),
    load_s: round(loadMs / 1000),
    greedy_tokens_per_s: of("greedy", decodeRate),
    sampled_tokens_per_s: of("sampled", decodeRate),
    sampled_ms_per_token: summary(
      groups.sampled.map(({ wallMs, firstChunkMs, ids }) => (wallMs - firstChunkMs) / (ids.length - 1)),
    ),
    ...(drafts === undefined ? {} : ofRounds(drafts, groups)),
    longest_gap_ms: summary([...groups.greedy, ...groups.sampled].map(({ longestGapMs }) => longestGapMs)),
    short_first_token_ms: of("greedy", ttft),
    long_prompt_tokens: groups.long[0].usage.prompt_tokens,
    long_first_token_ms: of("long", ttft),
    long_prefill_tokens_per_s: of("long", (reply) => reply.usage.extra.prefill_tokens_per_s),
    // Of the long prompts, since the request: the first submission, the last one, and the first token's arrival.
    long_prompt_ms: Object.fromEntries(
      ["first_submission", "last_submission", "token_arrives"].map((name, i) => [
        name,
        of("long", ({ promptMs }) => promptMs[i]),
      ]),
    ),
    step_ms: summary(groups.sampled.map(({ stepMs }) => median(stepMs))),
    cpu_ms_per_token: Object.fromEntries(
      threads.sort((a, b) => b[1] - a[1]).filter(([name], i) => i < 6 || name.endsWith(":main")),
    ),
    replies: digest(Object.values(replies[mode])),
    stats: await page.evaluate("window.tests.stats()"),
    errors: await page.evaluate("window.tests.errors"),
  };
}

let failed = false;
const modes = [
  ...options.modes.split(","),
  ...options.drafts.split(",").map((count) => count && `drafts-${count}`),
].filter(Boolean);
for (const mode of Array.from({ length: rounds }, () => modes).flat()) {
  await withPage(browser, async (page) => {
    page.on("pageerror", (error) => console.error(`page: ${error}`.slice(0, 500)));
    page.on(
      "console",
      (message) => message.type() === "error" && console.error(`console: ${message.text()}`.slice(0, 500)),
    );
    const line = await measure(mode, page);
    console.log(JSON.stringify(line));
    const { greedy_tokens_per_s: greedy, sampled_tokens_per_s: sampled, sampled_ms_per_token: wall } = line;
    const parts = Object.values(line.long_prompt_ms).map((part) => part.median);
    console.error(
      `${mode}: greedy ${greedy.median} sampled ${sampled.median} tok/s, wall ${wall.median} ms a token, ` +
        `first token ${line.short_first_token_ms.median} ms, of ${line.long_prompt_tokens} tokens ` +
        `${line.long_first_token_ms.median} ms (${parts.join(", ")}); gap ${line.longest_gap_ms.median}; ` +
        `cpu ${JSON.stringify(line.cpu_ms_per_token)}; errors ${line.errors.length} ${line.errors[0] ?? ""}`,
    );
    if (line.round_ms)
      console.error(`${mode}: ${line.round_ms.median} ms a round, tok/s ${JSON.stringify(line.computed_tokens_per_s)}`);
    if (line.errors.length) failed = true;
  }).catch((error) => {
    failed = true;
    console.error(`${mode} failed: ${String(error).slice(0, 1500)}`);
  });
}
const [base, ...others] = Object.keys(replies);
for (const mode of options.empty ? [] : others) {
  const different = Object.keys(replies[base]).filter((name) => replies[mode][name] !== replies[base][name]);
  console.error(
    `${mode} against ${base}: ${different.length ? `DIFFERENT ${different}` : `all ${Object.keys(replies[base]).length} replies the same`}`,
  );
  // A step of a few rows sums in another order: where two tokens are as good as equal, either may come.
  if (different.length && !DRAFTS.test(mode)) failed = true;
}
process.exit(failed ? 1 : 0);
