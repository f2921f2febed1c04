// A sampled token's wall time on Dawn in Node: drawn as the client draws it, waited for and read, then decoded; as the
// runtime drives it (`plain`) or with `gemma4-web/fast`. One JSON line on stdout.
// usage: node sampled.mjs --package DIR --mode plain|fast [--context 32] [--tokens 300] [--repeats 3] [--commit C] [--skip-validation]
import fs from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { openDevice, runScript } from "./device.mjs";
import { Model } from "./model.mjs";
import { versions } from "./packages.mjs";
import { summary } from "./statistics.mjs";

const { values: options } = parseArgs({
  options: {
    package: { type: "string" },
    mode: { type: "string", default: "fast" },
    context: { type: "string", default: "32" },
    tokens: { type: "string", default: "300" },
    repeats: { type: "string", default: "3" },
    commit: { type: "string", default: "unknown" },
    weights: { type: "string", default: "synthetic" },
    "skip-validation": { type: "boolean", default: false },
  },
});
const here = path.dirname(fileURLToPath(import.meta.url));
const module = process.env.GEMMA4_WEB_FAST ?? path.join(here, "../../web/dist/fast.js");

async function main() {
  const [context, tokens, repeats] = [options.context, options.tokens, options.repeats].map(Number);
  let fast;
  const prepare = async () => {
    if (options.mode === "fast") fast = await import(module);
  };
  const opened = await openDevice({ skipValidation: options["skip-validation"], prepare });
  const model = await Model.load(options.package, opened, {
    weights: options.weights,
    capacity: context + tokens + 64,
  });
  await settle(opened);
  const samples = [];
  const ids = new Set();
  for (let i = 0; i <= repeats; i++) {
    model.tvm.setSeed(7);
    model.restart(context - 1);
    const first = model.decode(5);
    let token = await model.draw(first);
    first.dispose();
    const warm = 16; // records are made, submissions reach their size
    let start = 0;
    for (let k = 0; k < warm + tokens; k++) {
      if (k === warm) start = performance.now();
      const logits = model.decode(token);
      token = await model.draw(logits);
      logits.dispose();
      ids.add(token);
    }
    if (i > 0) samples.push((performance.now() - start) / tokens);
  }
  await settle(opened);
  const { build } = JSON.parse(fs.readFileSync(path.join(options.package, "provenance.json"), "utf8"));
  process.stdout.write(
    `${JSON.stringify({
      benchmark: "webgpu",
      date: new Date().toISOString().slice(0, 10),
      commit: options.commit,
      model: build.source.model ?? build.source.kind,
      recipe: build.recipe,
      limits: build.limits,
      activations: build.activations ?? "float",
      versions: { ...build.versions, ...versions },
      weights: options.weights,
      device: opened.description.name,
      driver: opened.description.driver,
      validation: !options["skip-validation"],
      measure: "sampled",
      mode: options.mode,
      context,
      tokens,
      wall_ms: summary(samples),
      different_tokens: ids.size,
      stats: fast?.stats(),
    })}\n`,
  );
}

await runScript(main);
