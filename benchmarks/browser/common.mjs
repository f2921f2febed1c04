// What the drivers of a browser share: the page beside a package, and how numbers are reported.
import path from "node:path";
import { fileURLToPath } from "node:url";
import { serve } from "../../tests/web/serve.mjs";

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../..");

/** Serves the page, the stock client, `gemma4-web` and a package. */
export const servePage = (directory) =>
  serve({
    "/": path.join(root, "benchmarks/browser/page"),
    "/fast/": path.join(root, "web/dist"),
    "/client/": path.join(root, "tests/web/node_modules/@mlc-ai/web-llm/lib"),
    "/package/resolve/main/": directory,
    "/package/": directory,
  });

export const median = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
export const round = (value) => Math.round(value * 1000) / 1000;
export const summary = (values) => ({ median: round(median(values)), values: values.map(round) });
