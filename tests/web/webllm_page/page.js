// Loads a package in the stock WebLLM client and answers the driver's calls; with ?fast the module
// `gemma4-web/fast` is imported before it. The client is not changed; its engine is only watched, so
// that a test sees which tokens the model was given.
const fast = location.search === "?fast" ? await import("/fast/fast.js") : undefined;
const webllm = await import("/client/index.js");

const errors = [];
const requestDevice = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...args) {
  const device = await requestDevice.apply(this, args);
  device.addEventListener("uncapturederror", (event) => errors.push(event.error.message));
  device.lost.then((info) => {
    if (info.reason !== "destroyed") errors.push(`device lost: ${info.message}`);
  });
  return device;
};

const MODEL_ID = "package-under-test";
let engine;
let watched; // token ids that the KV state holds

function watch(pipeline) {
  watched = [];
  const note = (method, idsOf) => {
    const original = pipeline[method].bind(pipeline);
    pipeline[method] = (...args) => {
      if (pipeline.filledKVCacheLength === 0) watched = [];
      watched.push(...idsOf(args));
      return original(...args);
    };
  };
  note("artifactPrefillAndForward", ([, ids]) => ids);
  note("artifactDecodeAndForward", ([id]) => [id]);
}

/** `embeds`: the model is one of the client's pipeline for embeddings. */
async function load(library, overrides, embeds) {
  const base = `${location.origin}/package/`;
  const started = performance.now();
  const progress = [];
  engine = await webllm.CreateMLCEngine(MODEL_ID, {
    appConfig: {
      cacheBackend: "cache",
      model_list: [
        {
          model: base,
          model_id: MODEL_ID,
          model_lib: base + library,
          model_manifest: "mlc-model-manifest.json",
          overrides,
          ...(embeds && { model_type: webllm.ModelType.embedding }),
        },
      ],
    },
    initProgressCallback: (report) => progress.push(report.progress),
    logLevel: "WARN",
  });
  if (!embeds) watch(engine.loadedModelIdToPipeline.get(MODEL_ID));
  return { loadMs: performance.now() - started, progress };
}

async function chat(request, interruptAfter) {
  if (request.stream === false) {
    const reply = await engine.chat.completions.create(request);
    const [choice] = reply.choices;
    return {
      text: choice.message.content,
      finish: choice.finish_reason,
      usage: reply.usage,
      logprobs: choice.logprobs,
      watched: [...watched],
    };
  }
  const answer = { text: "", finish: null, usage: null, chunks: 0 };
  const stream = await engine.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    const [choice] = chunk.choices;
    answer.text += choice?.delta?.content ?? "";
    answer.finish = choice?.finish_reason ?? answer.finish;
    answer.usage = chunk.usage ?? answer.usage;
    answer.chunks += 1;
    if (answer.chunks === interruptAfter) engine.interruptGenerate();
  }
  return { ...answer, watched: [...watched] };
}

const READ_ON = 3; // chunks: however fast the machine is, the reply has not ended when the page is left

/** Starts a reply and returns after some of its chunks, while it goes on for a few more. */
async function begin(request, chunks) {
  const stream = await engine.chat.completions.create({ ...request, stream: true });
  const iterator = stream[Symbol.asyncIterator]();
  for (let i = 0; i < chunks; i++) await iterator.next();
  (async () => {
    for (let i = 0; i < READ_ON; i++) await iterator.next();
  })();
}

/** Goes on with a generation that a page before this one began. */
async function resume(session, stream = false) {
  watched = [];
  const resumed = await engine.resumeChatCompletion(session, { continueGeneration: true, stream });
  if (!stream) return { ...resumed, watched: [...watched] };
  let text = "";
  for await (const chunk of resumed) text += chunk.choices[0]?.delta?.content ?? "";
  return { text, watched: [...watched] };
}

async function adapter() {
  const found = await navigator.gpu.requestAdapter();
  const { vendor, architecture, description } = found.info;
  return { vendor, architecture, description, features: [...found.features] };
}

/** A call that WebGPU must refuse: shows that the watch on errors works. */
async function provokeError() {
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  device.createBuffer({ size: 4, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.STORAGE });
  await device.queue.onSubmittedWorkDone();
}

window.tests = {
  load,
  chat,
  embed: (input) => engine.embeddings.create({ input }),
  begin,
  resume,
  sessions: () => engine.listResumableSessions(),
  forget: (session) => engine.deleteResumableSession(session),
  adapter,
  provokeError,
  reload: () => engine.reload(MODEL_ID).then(() => watch(engine.loadedModelIdToPipeline.get(MODEL_ID))),
  unload: () => engine.unload(),
  resetChat: () => engine.resetChat(),
  stats: () => fast?.stats(),
  errors: async () => {
    await new Promise((resolve) => setTimeout(resolve, 20));
    return errors;
  },
};
