// WebGPU in Node, for verification, tests and benchmarks: Dawn as `navigator.gpu`, a device opened as the client opens
// it, and programs that run a job on it.
import fs from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const DAWN = "webgpu";
const RUNTIME = "@mlc-ai/web-runtime";
const TRAILING_TURNS = 3; // of Node's event loop, until an error of work that is done has arrived
const TURN_MS = 5;

const folderOf = (nodeModules, name) => path.join(path.resolve(nodeModules), ...name.split("/"));

/** Dawn from the folder of npm packages: `create` makes a GPU object, `globals` are WebGPU's classes. */
export async function loadDawn(nodeModules) {
  return import(pathToFileURL(path.join(folderOf(nodeModules, DAWN), "index.js")).href);
}

/** The TVM runtime that the client contains, from the folder of npm packages. */
export function loadRuntime(nodeModules) {
  return createRequire(import.meta.url)(folderOf(nodeModules, RUNTIME));
}

/** Versions of Node and of the two packages. */
export function versionsOf(nodeModules) {
  const read = (name) => fs.readFileSync(path.join(folderOf(nodeModules, name), "package.json"), "utf8");
  const version = (name) => [name, JSON.parse(read(name)).version];
  return { node: process.versions.node, ...Object.fromEntries([DAWN, RUNTIME].map(version)) };
}

/** Toggles for every feature that a device can have: NVIDIA's Vulkan driver offers shader-f16 only with the second. */
export const ALL_FEATURES = ["allow_unsafe_apis", "vulkan_enable_f16_on_nvidia"];

/**
 * Makes Dawn this process's `navigator.gpu`, with some of its toggles on or off, on `backend` or the first one that
 * works. Which driver Vulkan finds is the environment's choice: VK_ICD_FILENAMES.
 */
export function startDawn(dawn, { enable = [], disable = [], backend } = {}) {
  const options = Object.entries({
    "enable-dawn-features": enable.join(","),
    "disable-dawn-features": disable.join(","),
    backend,
  }).flatMap(([name, value]) => (value ? [`${name}=${value}`] : []));
  Object.assign(globalThis, dawn.globals);
  Object.defineProperty(globalThis, "navigator", { value: { gpu: dawn.create(options) }, configurable: true });
}

/**
 * Lets Dawn look for results once a millisecond. While it waits it asks for its next turn with setImmediate, at once
 * and again, which on a software driver takes a core from the very compilation that it waits for.
 */
export function pollGently() {
  globalThis.setImmediate = (callback, ...args) => setTimeout(callback, 1, ...args);
}

/** Lets `action` request devices that have `features`, too, where their adapter offers them. */
async function withFeatures(features, action) {
  const { requestDevice } = GPUAdapter.prototype;
  GPUAdapter.prototype.requestDevice = function (descriptor) {
    const offered = features.filter((name) => this.features.has(name));
    const requiredFeatures = [...new Set([...descriptor.requiredFeatures, ...offered])];
    return requestDevice.call(this, { ...descriptor, requiredFeatures });
  };
  return action().finally(() => {
    GPUAdapter.prototype.requestDevice = requestDevice;
  });
}

/**
 * Opens the device as the client does, with `features` besides where the adapter offers them.
 *
 * `errors` collects every error that nobody asked for; `log` gets the limits that the runtime falls back to.
 */
export async function openDevice(tvmjs, { log = console.error, errors = [], features = [] } = {}) {
  const print = console.log;
  console.log = log;
  const detected = withFeatures(features, () => tvmjs.detectGPUDevice());
  const { adapter, device, adapterInfo } = await detected.finally(() => {
    console.log = print;
  });
  device.addEventListener("uncapturederror", (event) => errors.push(event.error.message));
  device.lost.then((info) => {
    if (info.reason !== "destroyed") errors.push(`device lost: ${info.message}`);
  });
  return { adapter, device, info: adapterInfo, errors };
}

/** Waits for the device, and for the errors of its work, which arrive after the queue is done; throws if there are any. */
export async function settle({ device, errors }, where = "") {
  await device.queue.onSubmittedWorkDone();
  for (let turn = 0; turn < TRAILING_TURNS; turn++) await new Promise((resolve) => setTimeout(resolve, TURN_MS));
  if (errors.length) throw new Error(`WebGPU${where}: ${errors.slice(0, 5).join("\n")}`);
}

/** Lets go of the GPU, for which Node would wait for ever. */
export function release() {
  delete globalThis.navigator;
}

/** The job that the command line names: a JSON file. */
export const readJob = () => JSON.parse(fs.readFileSync(process.argv[2], "utf8"));

/**
 * Runs a program: what `main` returns and what `more` adds, or the error and that, becomes result.json in the job's
 * `output`. Node ends with 1 after an error, and where `more` has `errors`.
 */
export async function runJob(job, main, more = () => ({})) {
  let outcome;
  try {
    outcome = await main();
  } catch (error) {
    outcome = { error: String(error?.message ?? error), stack: error?.stack };
  }
  const result = { ...outcome, ...more() };
  fs.writeFileSync(path.join(job.output, "result.json"), JSON.stringify(result));
  release();
  process.exit(result.error || result.errors?.length ? 1 : 0);
}
