// Runs a package's known answers on Dawn in Node. usage: node known_answers.mjs JOB.json
//
// Job: {package, library, modules, output, metadata?, swap?, pin?}. `modules` holds web/src as JavaScript, `metadata`
// replaces the library's own, `swap` compiles the code of another kernel under a kernel's name: {kernel: other}, and
// `pin` pins the subgroups' size. Kernels without a known answer are not compiled. Writes result.json.
import fs from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { loadRuntime, readJob, settle } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { compilePipelines, openLibrary } from "../../gemma4_compile/verification/webgpu_model.mjs";
import { logger, NODE_MODULES, openDevice, runJob } from "./dawn_gpu.mjs";

const job = readJob();
const load = (name) => import(pathToFileURL(path.join(job.modules, `${name}.js`)).href);
const { KnownAnswerTest, parseKnownAnswers } = await load("known_answers");
const { pinSubgroupSize, withSubgroupSize } = await load("subgroup_size");

/** Stands for kernels that nobody runs. */
const UNUSED = {};

function askForSubgroupSize() {
  const { gpu } = navigator;
  const requestAdapter = gpu.requestAdapter.bind(gpu);
  gpu.requestAdapter = async (options) => {
    const adapter = await requestAdapter(options);
    const requestDevice = adapter.requestDevice.bind(adapter);
    adapter.requestDevice = (descriptor) =>
      requestDevice({
        ...descriptor,
        requiredFeatures: withSubgroupSize(descriptor.requiredFeatures ?? [], adapter.features),
      });
    return adapter;
  };
}

async function main() {
  if (job.pin) askForSubgroupSize();
  const tvmjs = loadRuntime(NODE_MODULES);
  const opened = await openDevice(tvmjs);
  const { device, description } = opened;
  const wasm = await fs.readFile(path.join(job.package, job.library));
  const library = await openLibrary(tvmjs, device, wasm, logger);
  library.tvm.beginScope();
  const metadata = job.metadata ?? library.vm.getFunction("_metadata")().toString();
  library.tvm.endScope();
  const answers = parseKnownAnswers(metadata);
  const adapter = { ...description, device: "", subgroupMinSize: description.subgroupMinSize };
  const test = new KnownAnswerTest(device, answers, adapter);
  const layouts = new Map();
  const createPipelineLayout = device.createPipelineLayout.bind(device);
  device.createPipelineLayout = (descriptor) => {
    const layout = createPipelineLayout(descriptor);
    layouts.set(layout, descriptor.bindGroupLayouts[0]);
    return layout;
  };
  const createShaderModule = device.createShaderModule.bind(device);
  const codes = new Map();
  device.createShaderModule = (descriptor) => {
    const name = /fn (\w+)\(\s*@builtin/.exec(descriptor.code)?.[1];
    codes.set(name, descriptor.code);
    return { name };
  };
  const info = { subgroupMinSize: description.subgroupMinSize, subgroupMaxSize: description.subgroupMaxSize };
  const asked = [];
  let pinned = 0;
  const createComputePipelineAsync = device.createComputePipelineAsync.bind(device);
  device.createComputePipelineAsync = async (descriptor) => {
    asked.push(descriptor);
    return UNUSED;
  };
  await compilePipelines(library);
  const checks = [];
  let milliseconds = 0;
  for (const { layout, compute } of asked) {
    const kernel = compute.entryPoint;
    if (!test.needs(kernel)) continue;
    const other = job.swap?.[kernel];
    let code = other ? codes.get(other).replaceAll(other, kernel) : codes.get(kernel);
    if (job.pin) {
      const before = code;
      code = pinSubgroupSize(code, answers.subgroupSize, device, info);
      pinned += code !== before ? 1 : 0;
    }
    const module = createShaderModule({ code });
    const pipeline = await createComputePipelineAsync({ layout, compute: { module, entryPoint: kernel } });
    const begin = performance.now();
    checks.push(await test.check(kernel, pipeline, layouts.get(layout)));
    milliseconds += performance.now() - begin;
  }
  await settle(opened);
  return {
    problems: checks.filter(Boolean),
    passed: test.passed,
    cases: answers.cases.length,
    milliseconds,
    pinned,
    device: description,
  };
}

await runJob(job, main);
