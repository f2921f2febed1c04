// The two npm packages of the benchmark, from the folder that holds them: `tests/web/node_modules`, or
// the environment's GEMMA4_NODE_MODULES on a machine where nothing was installed.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath, pathToFileURL } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const modules = path.resolve(process.env.GEMMA4_NODE_MODULES ?? path.join(here, "../../tests/web/node_modules"));
const folder = (name) => path.join(modules, ...name.split("/"));
const manifest = (name) => JSON.parse(fs.readFileSync(path.join(folder(name), "package.json"), "utf8"));

const RUNTIME = "@mlc-ai/web-runtime";
const DAWN = "webgpu";

/** The TVM runtime that the client contains. */
export const tvmjs = createRequire(import.meta.url)(folder(RUNTIME));
/** Dawn: `create(toggles)` makes a GPU object, `globals` are the classes of WebGPU. */
export const dawn = await import(pathToFileURL(path.join(folder(DAWN), "index.js")).href);

export const versions = {
  node: process.versions.node,
  [DAWN]: manifest(DAWN).version,
  [RUNTIME]: manifest(RUNTIME).version,
};
