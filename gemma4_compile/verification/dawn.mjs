// Runs a list of steps on one package on Dawn in Node. usage: node dawn.mjs JOB.json
//
// Job: {package, library, contextLength, nodeModules, output, steps: [{ids, clear, chunk}]}; see runners.py.
// Writes N.f32 (logits behind step N), N.layers.f32 (residual streams, of a probe) and result.json, and
// exits with 1 if anything failed or any WebGPU error stayed uncaptured.
import fs from "node:fs/promises";
import { createRequire } from "node:module";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const load = createRequire(path.join(path.dirname(job.nodeModules), "verify.cjs"));
const errors = [];

/** What smaller subgroups than the kernels' answer is undefined: better nothing than that. */
async function checkSubgroups(smallest) {
  const { build } = JSON.parse(await fs.readFile(path.join(job.package, "provenance.json"), "utf8"));
  const asked = build?.requirements?.subgroup_size ?? 0;
  if (asked > 0 && !(smallest >= asked)) {
    const found =
      smallest === undefined ? "the adapter does not say how many they have" : `here they may have ${smallest}`;
    throw new Error(`it was made for subgroups of ${asked} threads or more, and ${found}`);
  }
}

async function openDevice(tvmjs) {
  const { create, globals } = await import(pathToFileURL(load.resolve("webgpu")).href);
  Object.assign(globalThis, globals);
  // NVIDIA's Vulkan driver offers shader-f16 only with this toggle.
  const gpu = create(["enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia"]);
  Object.defineProperty(globalThis, "navigator", { value: { gpu }, configurable: true });
  const print = console.log;
  console.log = console.error; // the runtime reports limits that it falls back to
  const { device, adapterInfo } = await tvmjs.detectGPUDevice().finally(() => (console.log = print));
  device.addEventListener("uncapturederror", (event) => errors.push(event.error.message));
  device.lost.then((info) => {
    if (info.reason !== "destroyed") errors.push(`device lost: ${info.message}`);
  });
  await checkSubgroups(adapterInfo.subgroupMinSize);
  const names = [adapterInfo.device, adapterInfo.description].filter(Boolean);
  return { device, name: names.join(", ") || adapterInfo.vendor || "unknown" };
}

/** Hands the package's files to the runtime's own weight loader. */
const filesFromDisk = {
  async fetchWithCache(url, kind) {
    const data = await fs.readFile(fileURLToPath(url));
    return kind === "json" ? JSON.parse(data) : data;
  },
  async addToCache() {},
  async hasAllKeys() {
    return true;
  },
  async deleteInCache() {},
};

async function openModel(tvmjs, device) {
  const wasm = await fs.readFile(path.join(job.package, job.library));
  const tvm = await tvmjs.instantiate(wasm, tvmjs.createPolyfillWASI(), (...args) => console.error(...args));
  tvm.initWebGPU(device);
  const gpu = tvm.webgpu();
  tvm.beginScope();
  const keep = (value) => tvm.detachFromCurrentScope(value);
  const vm = keep(tvm.createVirtualMachine(gpu));
  const metadata = JSON.parse(vm.getFunction("_metadata")().toString());
  await tvm.asyncLoadWebGPUPipelines(vm.getInternalModule());
  await tvm.fetchTensorCache(pathToFileURL(path.resolve(job.package) + "/").href, gpu, {
    artifactCache: filesFromDisk,
  });
  const names = metadata.params.map((param) => param.name);
  const params = keep(tvm.getParamsFromCacheByName(names));
  const { exports } = metadata.artifact.programs.text;
  const call = (name) => keep(vm.getFunction(exports[name]));
  const state = (name) => keep(tvm.getGlobalFunc(`vm.builtin.kv_state_${name}`));
  const shape = (value) => tvm.makeShapeTuple([value]);
  const create = call("create_kv_cache");
  const sizes = [1, job.contextLength, metadata.prefill_chunk_size, 16, 0];
  const model = {
    tvm,
    gpu,
    params,
    chunk: metadata.prefill_chunk_size,
    embed: call("embed_tokens"),
    prefill: call("prefill_tokens"),
    decode: call("decode_tokens"),
    clear: state("clear"),
    add: state("add_sequence"),
    begin: state("begin_forward"),
    end: state("end_forward"),
    kv: keep(create(...sizes.map(shape))),
  };
  tvm.endScope();
  return model;
}

/** Runs one forward and reads what it returns: logits, then the residual stream of each layer. */
async function forward(model, ids, decode) {
  const { tvm, gpu, kv, params } = model;
  const count = ids.length;
  tvm.beginScope();
  const upload = (shape, values) => tvm.empty(shape, "int32", gpu).copyFrom(Int32Array.from(values));
  const begin = () => model.begin(kv, tvm.makeShapeTuple([0]), tvm.makeShapeTuple([count]));
  let result;
  if (decode) {
    const token = upload([1, 1], ids);
    begin();
    result = model.decode(token, kv, params);
  } else {
    const embedded = model.embed(upload([count], ids), params);
    const rows = embedded.view([1, count, embedded.shape[1]]);
    const modality = upload([1, count], new Array(count).fill(0));
    const tokens = upload([1, count], ids);
    begin();
    result = model.prefill(rows, tokens, modality, kv, params);
  }
  model.end(kv);
  const hosts = [];
  for (let i = 0; i < result.size(); i++) {
    if (i === 1) continue; // the state
    const tensor = result.get(i);
    hosts.push(tvm.detachFromCurrentScope(tvm.empty(tensor.shape, tensor.dtype, tvm.cpu()).copyFrom(tensor)));
  }
  tvm.endScope();
  await gpu.sync();
  const arrays = hosts.map((host) => Float32Array.from(host.toArray()));
  for (const host of hosts) host.dispose();
  return arrays;
}

async function run(model, { ids, clear, chunk }) {
  if (clear) {
    model.tvm.beginScope();
    model.clear(model.kv);
    model.add(model.kv, model.tvm.scalar(0, "int64"));
    model.tvm.endScope();
  }
  const size = chunk === 0 ? 1 : Math.min(chunk ?? ids.length, model.chunk);
  let arrays;
  for (let begin = 0; begin < ids.length; begin += size) {
    arrays = await forward(model, ids.slice(begin, begin + size), chunk === 0);
  }
  return arrays;
}

async function write(name, arrays) {
  const parts = arrays.map((values) => Buffer.from(values.buffer, values.byteOffset, values.byteLength));
  await fs.writeFile(path.join(job.output, name), Buffer.concat(parts));
}

async function main() {
  const tvmjs = load("@mlc-ai/web-runtime");
  const { device, name } = await openDevice(tvmjs);
  const model = await openModel(tvmjs, device);
  const layers = [];
  for (const [index, step] of job.steps.entries()) {
    const [logits, ...hidden] = await run(model, step);
    if (errors.length) throw new Error(`WebGPU: ${errors[0]}`);
    await write(`${index}.f32`, [logits]);
    if (hidden.length) await write(`${index}.layers.f32`, hidden);
    layers.push(hidden.length);
  }
  await device.queue.onSubmittedWorkDone();
  for (let i = 0; i < 3; i++) await new Promise((resolve) => setTimeout(resolve, 5)); // a trailing error
  if (errors.length) throw new Error(`WebGPU: ${errors[0]}`);
  return { device: name, layers };
}

let outcome;
try {
  outcome = await main();
} catch (error) {
  outcome = { error: String(error?.message ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify(outcome));
delete globalThis.navigator; // without this Node would wait for ever for the GPU
process.exit(outcome.error ? 1 : 0);
