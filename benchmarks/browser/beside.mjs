// Packages beside each other in one start of Chromium, a page each, with `gemma4-web/fast`: replies in turns, the order
// swapped each round. How much of a core the browser's GPU process takes for a token differs from start to start, so that
// packages in starts of their own are hard to compare.
// One JSON line a package on stdout, a table on stderr.
// usage: node benchmarks/browser/beside.mjs --packages DIR,DIR [--rounds 4] [--tokens 256] [--commit C] [--note TEXT]
// Environment: as of run.mjs.
import path from "node:path";
import { parseArgs } from "node:util";
import { withPage } from "../../tests/web/chromium.mjs";
import { median, servePage, summary } from "./common.mjs";
import { threadTimes } from "./threads.mjs";

const { values: options } = parseArgs({
  options: {
    packages: { type: "string" },
    rounds: { type: "string", default: "4" },
    tokens: { type: "string", default: "256" },
    commit: { type: "string", default: "" },
    note: { type: "string", default: "" },
  },
});
const { CHROMIUM } = process.env;
if (!CHROMIUM || !options.packages) {
  console.error("CHROMIUM names the browser, and --packages the packages");
  process.exit(2);
}
const KINDS = { greedy: { temperature: 0 }, sampled: { temperature: 1, top_p: 0.95 } };
const GPU_PROCESS = "gpu-process:main";

/** A package in a page of its own, loaded. */
async function open(context, directory) {
  const page = await context.newPage();
  page.on("pageerror", (error) => console.error(`page: ${error}`.slice(0, 500)));
  await page.goto(`${(await servePage(directory)).url}?fast`);
  await page.waitForFunction("window.tests", null, { timeout: 60_000 });
  await page.evaluate("window.tests.load('model.wasm')");
  return { name: path.basename(directory), page, found: { greedy: [], sampled: [], wall: [], gpu: [] } };
}

/** A reply; its tokens' wall time, the client's rate, and what the GPU process took of a core for a token. */
async function ask({ page }, kind, seed) {
  await page.bringToFront();
  const before = threadTimes("chrom");
  const reply = await page.evaluate((asked) => window.tests.chat(asked), {
    messages: [{ role: "user", content: `Tell ${seed}` }],
    ignore_eos: true,
    max_tokens: Number(options.tokens),
    seed,
    ...KINDS[kind],
  });
  const { ids, usage, wallMs, firstChunkMs } = reply;
  return {
    rate: usage.extra.decode_tokens_per_s,
    wall: (wallMs - firstChunkMs) / (ids.length - 1),
    gpu: ((threadTimes("chrom")[GPU_PROCESS] ?? 0) - (before[GPU_PROCESS] ?? 0)) / 1e6 / ids.length,
  };
}

await withPage({ chromium: CHROMIUM }, async (page) => {
  const context = page.context();
  const packages = await Promise.all(options.packages.split(",").map((directory) => open(context, directory)));
  // Twice: a device's first steps are recorded, and their time is not known yet.
  for (const one of [...packages, ...packages]) for (const kind of Object.keys(KINDS)) await ask(one, kind, 1);
  for (let round = 0; round < Number(options.rounds); round++) {
    for (const one of round % 2 ? [...packages].reverse() : packages) {
      for (const kind of Object.keys(KINDS)) {
        const { rate, wall, gpu } = await ask(one, kind, 5 + round);
        one.found[kind].push(rate);
        one.found.wall.push(wall);
        one.found.gpu.push(gpu);
      }
    }
  }
  for (const { name, page: own, found } of packages) {
    const errors = await own.evaluate("window.tests.errors");
    const line = {
      benchmark: "browser",
      date: new Date().toISOString().slice(0, 10),
      commit: options.commit,
      note: options.note,
      measure: "beside",
      package: name,
      beside: packages.map((other) => other.name).filter((other) => other !== name),
      browser: context.browser()?.version() ?? "",
      device: await own.evaluate("window.tests.device()"),
      tokens: Number(options.tokens),
      greedy_tokens_per_s: summary(found.greedy),
      sampled_tokens_per_s: summary(found.sampled),
      ms_per_token: summary(found.wall),
      gpu_process_ms_per_token: summary(found.gpu),
      stats: await own.evaluate("window.tests.stats()"),
      errors,
    };
    console.log(JSON.stringify(line));
    console.error(
      `${name}: greedy ${median(found.greedy)} sampled ${median(found.sampled)} tok/s, wall ` +
        `${median(found.wall).toFixed(3)} ms, GPU process ${median(found.gpu).toFixed(3)} ms; errors ${errors.length}`,
    );
    if (errors.length) process.exitCode = 1;
  }
});
process.exit();
