// The stock client on a package, with `gemma4-web/fast` imported before it (?fast) or without, and with its drafter
// (?fast&drafts=N, or auto) or without. With ?fast&library=NAME the package's library of that name, with `auto` the one
// that `chooseLibrary` takes. With ?unpolled empty submissions do not reach the queue.
const options = new URLSearchParams(location.search);
const errors = [];
const { requestDevice } = GPUAdapter.prototype;
let described;
GPUAdapter.prototype.requestDevice = async function (...args) {
  const device = await requestDevice.apply(this, args);
  const { vendor, architecture, description, device: name } = this.info;
  described = { vendor, architecture, description, name, features: [...device.features].sort() };
  device.addEventListener("uncapturederror", ({ error }) => errors.push(error.message));
  void device.lost.then(({ reason, message }) => {
    if (reason !== "destroyed") errors.push(`device lost: ${reason} ${message}`); // `chooseLibrary` destroys its own
  });
  return device;
};
if (options.has("empty")) {
  // Kernels that do nothing: what driving the device costs. Only those of `gemma4-web` count its rounds of guesses.
  const { createShaderModule } = GPUDevice.prototype;
  GPUDevice.prototype.createShaderModule = function (descriptor) {
    if (descriptor.code.includes("fn next_round(")) return createShaderModule.call(this, descriptor); // of the module
    const names = [...descriptor.code.matchAll(/@compute[^{]*?fn\s+(\w+)\s*\(/gs)].map((match) => match[1]);
    const code = names.map((name) => `@compute @workgroup_size(1) fn ${name}() {}`).join("\n");
    return createShaderModule.call(this, { ...descriptor, code });
  };
  // Such kernels answer nothing: the known-answer test is taken as passed before.
  const { match } = Cache.prototype;
  Cache.prototype.match = function (key, ...rest) {
    return String(key).startsWith("https://known-answers.invalid/")
      ? Promise.resolve(new Response(String(Date.now() - 1000)))
      : match.call(this, key, ...rest);
  };
}
// When commands of the reply that runs now went to the queue, and when the host's copies of buffers arrived.
const timeline = { submitted: [], arrived: [] };
const { submit } = GPUQueue.prototype;
GPUQueue.prototype.submit = function (...args) {
  timeline.submitted.push(performance.now());
  if (options.has("unpolled") && args[0].length === 0) return undefined;
  return submit.apply(this, args);
};
const { mapAsync } = GPUBuffer.prototype;
GPUBuffer.prototype.mapAsync = async function (...args) {
  await mapAsync.apply(this, args);
  timeline.arrived.push(performance.now());
};
const fast = options.has("fast") ? await import("/fast/fast.js") : undefined;
const webllm = await import("/client/index.js");
let engine;
let ids = [];
let stepMs = [];

async function load(library) {
  const base = `${location.origin}/package/`;
  const start = performance.now();
  const name = options.get("library");
  const chosen = name ? await fast.chooseLibrary(base, undefined, name === "auto" ? {} : { library: name }) : undefined;
  engine = await webllm.CreateMLCEngine("m", {
    appConfig: {
      cacheBackend: "cache",
      model_list: [
        {
          model: base,
          model_id: "m",
          model_lib: chosen?.model_lib ?? base + library,
          model_manifest: "mlc-model-manifest.json",
          ...(options.has("embeds") && { model_type: webllm.ModelType.embedding }),
        },
      ],
    },
    logLevel: "WARN",
  });
  const loadMs = performance.now() - start;
  const drafts = options.get("drafts");
  const fixed = drafts === "auto" ? {} : { drafts: Number(drafts) };
  if (drafts !== null && !(await fast.useDrafter(base, fixed))) errors.push(`no drafter: ${fast.stats().reasons}`);
  if (options.has("embeds")) return { loadMs, chosen };
  const pipeline = engine.loadedModelIdToPipeline.get("m");
  const commit = pipeline.processNextToken.bind(pipeline);
  pipeline.processNextToken = (token, ...rest) => {
    ids.push(token);
    return commit(token, ...rest);
  };
  const decode = pipeline.decodeStep.bind(pipeline);
  pipeline.decodeStep = async (...args) => {
    const before = performance.now();
    await decode(...args);
    stepMs.push(performance.now() - before);
  };
  return { loadMs, chosen };
}

async function chat(request) {
  ids = [];
  stepMs = [];
  timeline.submitted = [];
  timeline.arrived = [];
  const guessedBefore = fast?.stats().guessedSteps ?? 0;
  const start = performance.now();
  let firstChunkMs = null;
  const gaps = [];
  let last = start;
  let usage;
  const stream = await engine.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    const now = performance.now();
    if (firstChunkMs === null) firstChunkMs = now - start;
    else gaps.push(now - last);
    last = now;
    usage = chunk.usage ?? usage;
  }
  const guessed = (fast?.stats().guessedSteps ?? 0) - guessedBefore;
  await engine.resetChat();
  // Of the prompt: the first submission, the last one before the first copy arrived, and that.
  const [arrived] = timeline.arrived;
  const promptMs = [timeline.submitted[0], timeline.submitted.findLast((at) => at < arrived), arrived].map(
    (at) => at - start,
  );
  return { ids, usage, guessed, wallMs: last - start, firstChunkMs, longestGapMs: Math.max(...gaps), stepMs, promptMs };
}

/** Wall time of the vectors of texts, given as token ids; the first numbers of the first vector and its length. */
async function embed(input) {
  const start = performance.now();
  const { data } = await engine.embeddings.create({ input });
  const [{ embedding }] = data;
  return {
    wallMs: performance.now() - start,
    count: data.length,
    begins: embedding.slice(0, 4),
    norm: Math.hypot(...embedding),
  };
}

window.tests = { load, chat, embed, errors, device: () => described, stats: () => fast?.stats() };
