// Texts a second of an embedder in the stock client, in headless Chromium: random token ids, all texts in one call.
// One JSON line a size on stdout.
// usage: node benchmarks/browser/embeddings.mjs --package DIR [--texts 64] [--tokens 32,256] [--repeats 5] [--library NAME]
//   [--vocabulary 1000: ids below it] [--commit C] [--note TEXT]
// --library: of the package, by `gemma4-web/fast`; `auto` the one that `chooseLibrary` takes. Environment: as of run.mjs.
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { withPage } from "../../tests/web/chromium.mjs";
import { round, servePage, summary } from "./common.mjs";

const { values: options } = parseArgs({
  options: {
    package: { type: "string" },
    texts: { type: "string", default: "64" },
    tokens: { type: "string", default: "32,256" },
    repeats: { type: "string", default: "5" },
    vocabulary: { type: "string", default: "1000" },
    library: { type: "string", default: "" },
    commit: { type: "string", default: "" },
    note: { type: "string", default: "" },
  },
});
const [texts, repeats, vocabulary] = [options.texts, options.repeats, options.vocabulary].map(Number);
if (!options.package || !process.env.CHROMIUM) {
  console.error("--package names a package of an embedder, and CHROMIUM the browser");
  process.exit(2);
}
/** Ids that are no special tokens, others in each text and each call. */
const ids = (length, seed) => Array.from({ length }, (_, i) => 300 + ((seed * 7919 + i * 104729) % (vocabulary - 300)));

const server = await servePage(options.package);
let failed = false;
await withPage({ chromium: process.env.CHROMIUM }, async (page) => {
  page.on("pageerror", (error) => console.error(`page: ${error}`.slice(0, 500)));
  await page.goto(`${server.url}?embeds${options.library && `&fast&library=${options.library}`}`);
  await page.waitForFunction("window.tests", null, { timeout: 60_000 });
  const { loadMs, chosen } = await page.evaluate("window.tests.load('model.wasm')");
  for (const tokens of options.tokens.split(",").map(Number)) {
    const results = [];
    for (let call = 0; call <= repeats; call++) {
      const input = Array.from({ length: texts }, (_, text) => ids(tokens, call * texts + text));
      results.push(await page.evaluate((asked) => window.tests.embed(asked), input));
    }
    results.shift(); // the first compiles kernels
    const rates = results.map(({ wallMs, count }) => (1000 * count) / wallMs);
    const errors = await page.evaluate("window.tests.errors");
    const line = {
      benchmark: "browser",
      date: new Date().toISOString().slice(0, 10),
      commit: options.commit,
      note: options.note,
      measure: "embeddings",
      package: path.basename(options.package),
      browser: page.context().browser()?.version() ?? "",
      processor: os.cpus()[0].model,
      device: await page.evaluate("window.tests.device()"),
      ...(chosen && { library: { name: chosen.name, why: chosen.why } }),
      load_s: round(loadMs / 1000),
      texts,
      tokens_a_text: tokens,
      texts_per_s: summary(rates),
      norm: round(results[0].norm),
      errors,
    };
    console.log(JSON.stringify(line));
    if (errors.length || !(Math.abs(line.norm - 1) < 0.01)) failed = true;
  }
}).catch((error) => {
  failed = true;
  console.error(String(error).slice(0, 1500));
});
process.exit(failed ? 1 : 0);
