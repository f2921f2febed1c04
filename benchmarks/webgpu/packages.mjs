// The two npm packages of the benchmark, from the folder that holds them: `tests/web/node_modules`, or
// the environment's GEMMA4_NODE_MODULES on a machine where nothing was installed.
import path from "node:path";
import { fileURLToPath } from "node:url";
import { loadDawn, loadRuntime, versionsOf } from "../../gemma4_compile/verification/webgpu_device.mjs";

const here = path.dirname(fileURLToPath(import.meta.url));
const modules = process.env.GEMMA4_NODE_MODULES ?? path.join(here, "../../tests/web/node_modules");

export const tvmjs = loadRuntime(modules);
export const dawn = await loadDawn(modules);
export const versions = versionsOf(modules);
