// A package on a WebGPU device: the TVM runtime driven with the calls that the client makes, in its order.
import fs from "node:fs/promises";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const STATE = ["clear", "add_sequence", "fork_sequence", "remove_sequence", "popn", "begin_forward", "end_forward"];
const PAGE_SIZE = 16; // what the client asks for; the state has no pages
const TEXT = 0; // modality of a row
const COLDEST = 1e-6; // the client's temperature instead of 0

/** Hands the package's files to the runtime's own weight loader. */
export const filesFromDisk = {
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

/** The first output of a forward; the second one is the state. */
export const logitsOf = (outputs) => outputs.get(0);

/** All outputs but the state: logits, and of a probe the residual stream of each layer. */
export const tensorsOf = (outputs) =>
  Array.from({ length: outputs.size() }, (_, i) => i)
    .filter((i) => i !== 1)
    .map((i) => outputs.get(i));

/** A library without its pipelines: the runtime around it, the device there, its virtual machine. */
export async function openLibrary(tvmjs, device, wasm, log = console.error) {
  const tvm = await tvmjs.instantiate(wasm, tvmjs.createPolyfillWASI(), (...args) => log(...args));
  tvm.initWebGPU(device);
  const gpu = tvm.webgpu();
  tvm.beginScope();
  const vm = tvm.detachFromCurrentScope(tvm.createVirtualMachine(gpu));
  tvm.endScope();
  return { tvm, gpu, vm };
}

/** Compiles the kernels of a library. */
export const compilePipelines = ({ tvm, vm }) => tvm.asyncLoadWebGPUPipelines(vm.getInternalModule());

export class WebGPUModel {
  #named = {};

  /** Instantiates the package's library, uploads the weights, makes an empty state; `contextLength` is the package's. */
  async open(directory, { tvmjs, device, library, contextLength, log }) {
    const wasm = await fs.readFile(path.join(directory, library));
    this.device = device;
    this.libraryBytes = wasm.byteLength;
    Object.assign(this, await this.step("instantiate", () => openLibrary(tvmjs, device, wasm, log)));
    this.metadata = JSON.parse(this.scoped(() => this.vm.getFunction("_metadata")().toString()));
    await this.step("pipelines", () => compilePipelines(this));
    await this.step("weights", () => this.loadWeights(directory));
    const names = this.metadata.params.map((param) => param.name);
    this.params = this.scoped(() => this.tvm.getParamsFromCacheByName(names));
    const [program] = Object.values(this.metadata.artifact.programs);
    this.functions = Object.fromEntries(Object.entries(program.exports).map(([key, name]) => [key, this.named(name)]));
    const ofState = (name) => this.scoped(() => this.tvm.getGlobalFunc(`vm.builtin.kv_state_${name}`));
    this.state = Object.fromEntries(STATE.map((name) => [name, ofState(name)]));
    await this.step("state", () => this.renew(contextLength ?? this.metadata.context_window_size));
    return this;
  }

  // --- What a benchmark does in its own way ---

  /** Runs a step of `open`. */
  async step(_name, action) {
    return action();
  }

  async loadWeights(directory, artifactCache = filesFromDisk) {
    const base = pathToFileURL(`${path.resolve(directory)}/`).href;
    await this.tvm.fetchTensorCache(base, this.gpu, { artifactCache });
  }

  makeState(contextLength, chunk, sequences = 1) {
    const sizes = [sequences, contextLength, chunk, PAGE_SIZE, 0];
    return this.scoped(() => this.functions.create_kv_cache(...sizes.map((size) => this.tvm.makeShapeTuple([size]))));
  }

  // --- Sequences ---

  /** The one that calls go on with. */
  sequence = 0;

  get chunkSize() {
    return this.metadata.prefill_chunk_size;
  }

  /** An empty state instead of the one before. */
  renew(contextLength, chunk = this.chunkSize, sequences = 1) {
    this.kv?.dispose();
    this.contextLength = contextLength;
    this.kv = this.makeState(contextLength, chunk, sequences);
    this.clear();
  }

  /** One empty sequence, and no other. */
  clear() {
    this.scoped(() => this.state.clear(this.kv));
    this.#change("add_sequence", 0);
    this.sequence = 0;
  }

  /** Goes on with an empty sequence. */
  add(sequence) {
    this.#change("add_sequence", sequence);
    this.sequence = sequence;
  }

  /** Goes on with a sequence that begins with the first tokens of the one before. */
  fork(sequence, position) {
    this.#change("fork_sequence", this.sequence, sequence, position);
    this.sequence = sequence;
  }

  remove(sequence) {
    this.#change("remove_sequence", sequence);
  }

  #change(name, ...numbers) {
    this.scoped(() => this.state[name](this.kv, ...numbers.map((number) => this.tvm.scalar(number, "int64"))));
  }

  pop(count) {
    const { tvm, sequence } = this;
    this.scoped(() => this.state.popn(this.kv, tvm.scalar(sequence, "int64"), tvm.scalar(count, "int32")));
  }

  // --- Forwards: tensors on the device, which the caller disposes of ---

  /** Logits after the last of `ids`, at most a chunk of them; or what `take` chooses of the outputs. */
  prefill(ids, take = logitsOf) {
    return this.scoped(() => {
      const embeddings = this.functions.embed_tokens(this.upload([ids.length], "int32", ids), this.params);
      return this.#prefill(embeddings, ids, TEXT, take);
    });
  }

  /** As `prefill`, of rows (ids.length, width) of a medium in place of the embedded ids. */
  prefillRows(rows, width, ids, modality, take = logitsOf) {
    return this.scoped(() => this.#prefill(this.upload([ids.length, width], "float32", rows), ids, modality, take));
  }

  #prefill(embeddings, ids, modality, take) {
    const count = ids.length;
    const rows = embeddings.view([1, count, embeddings.shape[1]]);
    const idRow = this.upload([1, count], "int32", ids);
    const modalities = this.upload([1, count], "int32", new Array(count).fill(modality));
    this.beginForward(count);
    const outputs = this.functions.prefill_tokens(rows, idRow, modalities, this.kv, this.params);
    this.state.end_forward(this.kv);
    return take(outputs);
  }

  /** Rows of a picture, of `shape` (blocks, values of a block), and of a sound. */
  embedPicture(shape, pixels, positions) {
    return this.scoped(() => {
      const where = this.upload([shape[0], 2], "int32", positions);
      return this.named("embed_image")(this.upload(shape, "float32", pixels), where, this.params);
    });
  }

  embedSound(samples) {
    return this.scoped(() => this.named("embed_audio")(this.upload([samples.length], "float32", samples), this.params));
  }

  /** As `prefill`, for one more token. */
  decode(id, take = logitsOf) {
    return this.scoped(() => {
      const token = this.upload([1, 1], "int32", [id]);
      this.beginForward(1);
      const outputs = this.functions.decode_tokens(token, this.kv, this.params);
      this.state.end_forward(this.kv);
      return take(outputs);
    });
  }

  /** As `prefill`, for any number of tokens in chunks of at most `chunk`. */
  prompt(ids, chunk = this.chunkSize, take = logitsOf) {
    let outputs;
    for (let start = 0; start < ids.length; start += chunk) {
      dispose(outputs);
      outputs = this.prefill(ids.slice(start, start + chunk), take);
    }
    return outputs;
  }

  beginForward(count) {
    const { tvm, sequence } = this;
    this.state.begin_forward(this.kv, tvm.makeShapeTuple([sequence]), tvm.makeShapeTuple([count]));
  }

  endForward() {
    this.state.end_forward(this.kv);
  }

  // --- Sampling, by the client's three functions ---

  /** Probabilities, (1, vocabulary), of logits. */
  softmax(logits, temperature) {
    return this.scoped(() => this.#softmax(logits, this.upload([1], "float32", [temperature])));
  }

  /** The token that a uniform number picks of the probabilities. */
  pick(probabilities, uniform, topP) {
    return this.scoped(() => this.#pick(probabilities, uniform, topP));
  }

  /** The token that a uniform number picks of the logits. */
  sample(logits, { temperature = 1, topP = 0.95, uniform = 0.5 } = {}) {
    return this.scoped(() => {
      const probabilities = this.#softmax(logits, this.upload([1], "float32", [temperature]));
      return this.#pick(probabilities, uniform, topP);
    });
  }

  /**
   * The next token on the host, as the client draws it: with the runtime's own random numbers. `change` may change the
   * logits before, `look` see the probabilities.
   */
  async draw(logits, { temperature = 1, topP = 0.95, change = () => {}, look = () => {} } = {}) {
    const { tvm, gpu } = this;
    const host = this.scoped(() => {
      change(logits.view([1, logits.shape.at(-1)]));
      const probabilities = this.#softmax(logits, this.upload([1], "float32", [Math.max(COLDEST, temperature)]));
      const sorted = this.#sort(probabilities);
      const uniform = tvm.uniform([1], 0, 1, gpu);
      this.topP ??= tvm.detachFromCurrentScope(tvm.empty([1], "float32", gpu));
      this.topP.copyFrom(Float32Array.of(topP));
      this.sampleIndex ??= tvm.detachFromCurrentScope(this.upload([1], "int32", [0]));
      const drawn = this.named("sample_with_top_p")(...sorted, uniform, this.sampleIndex, this.topP);
      const copied = tvm.empty([1], "int32", tvm.cpu()).copyFrom(drawn);
      look(probabilities);
      return copied;
    });
    await gpu.sync();
    const [token] = host.toArray();
    host.dispose();
    return token;
  }

  #softmax(logits, temperature) {
    return this.named("softmax_with_temperature")(logits, temperature).view([1, logits.shape.at(-1)]);
  }

  #sort(probabilities) {
    const sorted = this.named("argsort_probs")(probabilities);
    return [sorted.get(0), sorted.get(1)];
  }

  #pick(probabilities, uniform, topP) {
    const sorted = this.#sort(probabilities);
    const number = this.upload([1], "float32", [uniform]);
    const index = this.upload([1], "int32", [0]);
    return this.named("sample_with_top_p")(...sorted, number, index, this.upload([1], "float32", [topP]));
  }

  // --- Tensors and functions ---

  upload(shape, dtype, values) {
    const typed = dtype === "float32" ? Float32Array.from(values) : Int32Array.from(values);
    return this.tvm.empty(shape, dtype, this.gpu).copyFrom(typed);
  }

  /** The tensor on the host, whose values are there after `gpu.sync()`. */
  toHost(tensor) {
    return this.scoped(() => this.tvm.empty(tensor.shape, tensor.dtype, this.tvm.cpu()).copyFrom(tensor));
  }

  /** Values of a tensor; the tensor is gone afterwards. */
  async read(tensor) {
    const host = this.toHost(tensor);
    await this.gpu.sync();
    const values = host.toArray();
    host.dispose();
    tensor.dispose();
    return values;
  }

  /** A function of the library, looked up once. */
  named(name) {
    this.#named[name] ??= this.scoped(() => this.vm.getFunction(name));
    return this.#named[name];
  }

  /** Runs `action` in a scope of its own and keeps only its result, one object or several. */
  scoped(action) {
    const { tvm } = this;
    tvm.beginScope();
    try {
      const result = action();
      const keep = (value) => (value?.dispose ? tvm.detachFromCurrentScope(value) : value);
      return Array.isArray(result) ? result.map(keep) : keep(result);
    } finally {
      tvm.endScope();
    }
  }
}

/** Disposes of one object, several or none. */
export function dispose(objects) {
  for (const object of [objects].flat()) object?.dispose();
}
