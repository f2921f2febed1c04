// A package in the TVM runtime, driven with the calls that the client makes, in its order.
import fs from "node:fs/promises";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { tvmjs } from "./packages.mjs";
import { Filler } from "./weights.mjs";

const ITEM_BYTES = { float16: 2, float32: 4, uint32: 4, int32: 4 };
const SAMPLING = ["softmax_with_temperature", "argsort_probs", "sample_with_top_p"];
const STATE = ["clear", "add_sequence", "begin_forward", "end_forward"];

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

export class Model {
  /** Seconds of each step of loading. */
  loadSeconds = {};

  /**
   * Instantiates the library, makes its pipelines, weights and KV state.
   *
   * `weights` is "synthetic" (values made on the device) or "package" (read from its shards).
   */
  static async load(directory, { device, ledger }, { weights, capacity }) {
    const model = new Model();
    await model.#load(directory, device, ledger, weights, capacity);
    return model;
  }

  async #load(directory, device, ledger, weights, capacity) {
    const timed = async (name, action) => {
      const start = performance.now();
      const result = await action();
      await device.queue.onSubmittedWorkDone();
      this.loadSeconds[name] = (performance.now() - start) / 1000;
      return result;
    };
    const files = await fs.readdir(directory);
    const library = files.find((name) => name.endsWith(".wasm"));
    if (!library) throw new Error(`${directory} holds no .wasm file: no package for webgpu`);
    const wasm = await fs.readFile(path.join(directory, library));
    this.libraryBytes = wasm.byteLength;
    this.device = device;
    const log = [];
    this.tvm = await timed("instantiate", () =>
      tvmjs.instantiate(wasm, tvmjs.createPolyfillWASI(), (line) => log.push(line)),
    );
    const { tvm } = this;
    tvm.initWebGPU(device);
    this.gpu = tvm.webgpu();
    tvm.beginScope();
    this.vm = tvm.detachFromCurrentScope(tvm.createVirtualMachine(this.gpu));
    this.metadata = JSON.parse(this.vm.getFunction("_metadata")().toString());
    await timed("pipelines", () => tvm.asyncLoadWebGPUPipelines(this.vm.getInternalModule()));
    this.weightBuffers = new Map();
    const source = weights === "package" ? this.#readWeights(directory) : this.#makeWeights(ledger);
    await timed("weights", () => source);
    const names = this.metadata.params.map((param) => param.name);
    this.params = tvm.detachFromCurrentScope(tvm.getParamsFromCacheByName(names));
    const find = (name) => tvm.detachFromCurrentScope(this.vm.getFunction(name));
    const { exports: functions } = Object.values(this.metadata.artifact.programs)[0];
    this.functions = Object.fromEntries(Object.entries(functions).map(([key, name]) => [key, find(name)]));
    for (const name of SAMPLING) this.functions[name] = find(name);
    this.state = Object.fromEntries(
      STATE.map((name) => [name, tvm.detachFromCurrentScope(tvm.getGlobalFunc(`vm.builtin.kv_state_${name}`))]),
    );
    this.capacity = capacity ?? this.metadata.context_window_size;
    await timed("state", () => this.#makeState(ledger));
    tvm.endScope();
  }

  get chunkSize() {
    return this.metadata.prefill_chunk_size;
  }

  /** Starts a sequence of `length` tokens whose keys and values are whatever the state holds. */
  restart(length) {
    this.scoped(() => {
      const { tvm, state, kv } = this;
      state.clear(kv);
      state.add_sequence(kv, tvm.scalar(0, "int64"));
      for (let done = 0; done < length; done += this.chunkSize) {
        this.#beginForward(Math.min(this.chunkSize, length - done));
        state.end_forward(kv);
      }
    });
  }

  /** Logits behind one more token. */
  decode(id) {
    return this.scoped(() => {
      const token = this.upload([1, 1], "int32", [id]);
      this.#beginForward(1);
      const result = this.functions.decode_tokens(token, this.kv, this.params);
      this.state.end_forward(this.kv);
      return result.get(0);
    });
  }

  /** Logits behind the last of `ids`, at most one chunk. */
  prefill(ids) {
    return this.scoped(() => {
      const count = ids.length;
      const embeddings = this.functions.embed_tokens(this.upload([count], "int32", ids), this.params);
      const rows = embeddings.view([1, count, embeddings.shape[1]]);
      const idRow = this.upload([1, count], "int32", ids);
      const modality = this.upload([1, count], "int32", new Array(count).fill(0));
      this.#beginForward(count);
      const result = this.functions.prefill_tokens(rows, idRow, modality, this.kv, this.params);
      this.state.end_forward(this.kv);
      return result.get(0);
    });
  }

  /** The token that the client's three calls draw from `logits`, still on the device. */
  sample(logits, { temperature = 1, topP = 0.95, uniform = 0.5 } = {}) {
    return this.scoped(() => {
      const { softmax_with_temperature, argsort_probs, sample_with_top_p } = this.functions;
      const heat = this.upload([1], "float32", [temperature]);
      const probabilities = softmax_with_temperature(logits, heat).view([1, logits.shape.at(-1)]);
      const sorted = argsort_probs(probabilities);
      return sample_with_top_p(
        sorted.get(0),
        sorted.get(1),
        this.upload([1], "float32", [uniform]),
        this.upload([1], "int32", [0]),
        this.upload([1], "float32", [topP]),
      );
    });
  }

  /**
   * The next token as the client draws it: with the runtime's own random numbers, its three calls and a copy to the
   * host. `change` may change the logits before, `look` see the probabilities.
   */
  async draw(logits, { temperature = 1, topP = 0.95, change = () => {}, look = () => {} } = {}) {
    const { tvm, gpu } = this;
    const { softmax_with_temperature, argsort_probs, sample_with_top_p } = this.functions;
    const copied = this.scoped(() => {
      change(logits.view([1, logits.shape.at(-1)]));
      const heat = this.upload([1], "float32", [Math.max(1e-6, temperature)]);
      const probabilities = softmax_with_temperature(logits, heat).view([1, logits.shape.at(-1)]);
      const sorted = argsort_probs(probabilities);
      const uniform = tvm.uniform([1], 0, 1, gpu);
      this.topP ??= tvm.detachFromCurrentScope(tvm.empty([1], "float32", gpu));
      this.topP.copyFrom(Float32Array.of(topP));
      this.sampleIndex ??= tvm.detachFromCurrentScope(this.upload([1], "int32", [0]));
      const drawn = sample_with_top_p(sorted.get(0), sorted.get(1), uniform, this.sampleIndex, this.topP);
      const host = tvm.empty([1], "int32", tvm.cpu()).copyFrom(drawn);
      look(probabilities);
      return host;
    });
    await gpu.sync();
    const [token] = copied.toArray();
    copied.dispose();
    return token;
  }

  /** Values of a tensor on the host; the tensor is gone afterwards. */
  async read(tensor) {
    const host = this.scoped(() => this.tvm.empty(tensor.shape, tensor.dtype, this.tvm.cpu()).copyFrom(tensor));
    await this.gpu.sync();
    const values = host.toArray();
    host.dispose();
    tensor.dispose();
    return values;
  }

  upload(shape, dtype, values) {
    const typed = dtype === "float32" ? Float32Array.from(values) : Int32Array.from(values);
    return this.tvm.empty(shape, dtype, this.gpu).copyFrom(typed);
  }

  /** Runs `action` in a scope of its own and keeps only its result. */
  scoped(action) {
    this.tvm.beginScope();
    try {
      const result = action();
      return result?.dispose ? this.tvm.detachFromCurrentScope(result) : result;
    } finally {
      this.tvm.endScope();
    }
  }

  #beginForward(count) {
    const { tvm } = this;
    this.state.begin_forward(this.kv, tvm.makeShapeTuple([0]), tvm.makeShapeTuple([count]));
  }

  async #readWeights(directory) {
    const base = pathToFileURL(path.resolve(directory) + "/").href;
    await this.tvm.fetchTensorCache(base, this.gpu, { artifactCache: filesFromDisk });
  }

  async #makeWeights(ledger) {
    const { tvm, metadata } = this;
    const filler = new Filler(this.device);
    const shapes = new Map(metadata.params.map(({ name, shape }) => [name, shape]));
    for (const param of metadata.params) {
      this.scoped(() => {
        const { result, buffers } = ledger.capture(() => tvm.empty(param.shape, param.dtype, this.gpu));
        if (buffers.length !== 1) throw new Error(`${param.name}: ${buffers.length} buffers made`);
        filler.parameter(buffers[0], param, shapes);
        this.weightBuffers.set(buffers[0], param.name);
        tvm.tensorCacheUpdate(param.name, result);
      });
    }
  }

  #makeState(ledger) {
    const shape = (value) => this.tvm.makeShapeTuple([value]);
    const { result, buffers } = ledger.capture(() =>
      this.functions.create_kv_cache(shape(1), shape(this.capacity), shape(this.chunkSize), shape(16), shape(0)),
    );
    this.kv = this.tvm.detachFromCurrentScope(result);
    const filler = new Filler(this.device);
    for (const buffer of buffers) filler.state(buffer);
    this.stateBytes = buffers.reduce((sum, buffer) => sum + buffer.size, 0);
    this.restart(0);
  }
}

/** Bytes of one parameter. */
export function parameterBytes({ shape, dtype }) {
  return shape.reduce((product, size) => product * size, ITEM_BYTES[dtype]);
}

/**
 * Bytes of weights that one decoded token needs: every matrix once, of the per-layer tables one row, of
 * the experts those that are used. The token table is read whole, because it is the head too.
 */
export function weightBytesPerToken({ params }, activeExperts) {
  const router = params.find(({ name }) => name.includes(".router.proj"));
  const usedExperts = router ? activeExperts / router.shape[0] : 1;
  const needed = params.map((param) => {
    const bytes = parameterBytes(param);
    if (param.name.startsWith("embed_tokens_per_layer")) return bytes / param.shape[0];
    return param.name.includes(".experts.") ? bytes * usedExperts : bytes;
  });
  return Math.round(needed.reduce((sum, value) => sum + value, 0));
}
