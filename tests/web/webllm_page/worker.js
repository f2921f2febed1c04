// Engines in one worker, each with a device of its own; their replies are drawn at the same time.
import { stats, useRowsFromHost } from "/fast/fast.js";
import { MLCEngine } from "/client/index.js";

const errors = [];
const engines = [];
let tokens = 0;
let halt; // {at: tokens after which a reply waits, reached, released}

async function load({ library, engines: count, rows }) {
  const base = `${location.origin}/package/`;
  for (let i = 0; i < count; i++) {
    const engine = new MLCEngine({ logLevel: "WARN" });
    engine.setAppConfig({
      cacheBackend: "cache",
      model_list: [
        { model: base, model_id: "m", model_lib: base + library, model_manifest: "mlc-model-manifest.json" },
      ],
    });
    if (rows) await useRowsFromHost(`${base}resolve/main/`);
    await engine.reload("m");
    engines.push(engine);
  }
}

async function reply(engine, request) {
  const parts = [];
  for await (const { choices } of await engine.chat.completions.create({ ...request, stream: true })) {
    if (++tokens === halt?.at) {
      halt.reached.resolve();
      await halt.released.promise;
    }
    parts.push(choices[0]?.delta?.content ?? "");
  }
  return parts.join("");
}

const ASKED = {
  load,
  /** A reply of each engine, together. */
  both: (requests) => Promise.all(requests.map((request, i) => reply(engines[i], request))),
  /** The first engine's model is unloaded; the other goes on. */
  unload: () => engines[0].unload(),
  one: (request) => reply(engines.at(-1), request),
  /** Lets a reply wait after so many tokens; returns when it does. */
  halt: (at) => {
    halt = { at, reached: Promise.withResolvers(), released: Promise.withResolvers() };
    return halt.reached.promise;
  },
  goOn: () => halt.released.resolve(),
  stats: () => ({ ...stats(), errors }),
};

self.addEventListener("unhandledrejection", ({ reason }) => errors.push(String(reason)));
self.onmessage = async ({ data: { id, name, argument } }) => {
  try {
    postMessage({ id, value: await ASKED[name](argument) });
  } catch (error) {
    postMessage({ id, error: String(error?.stack ?? error) });
  }
};
