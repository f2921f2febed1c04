// A package loaded into the bare TVM runtime, with the calls that the client makes, in its order.
import fs from "node:fs/promises";
import path from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { createRequire } from "node:module";

export const tvmjs = createRequire(import.meta.url)("@mlc-ai/web-runtime");

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

export class DawnModel {
  /** Instantiates the library, uploads the weights, creates the KV state. */
  static async load(directory, library, device, logger, contextLength) {
    const model = new DawnModel();
    const wasm = await fs.readFile(path.join(directory, library));
    const tvm = await tvmjs.instantiate(wasm, tvmjs.createPolyfillWASI(), logger);
    tvm.initWebGPU(device);
    const gpu = tvm.webgpu();
    tvm.beginScope();
    const vm = tvm.detachFromCurrentScope(tvm.createVirtualMachine(gpu));
    const metadata = JSON.parse(vm.getFunction("_metadata")().toString());
    await tvm.asyncLoadWebGPUPipelines(vm.getInternalModule());
    const base = pathToFileURL(path.resolve(directory) + "/").href;
    await tvm.fetchTensorCache(base, gpu, { artifactCache: filesFromDisk });
    const [program] = Object.values(metadata.artifact.programs);
    const find = (name) => tvm.detachFromCurrentScope(vm.getFunction(name));
    const state = (name) => tvm.detachFromCurrentScope(tvm.getGlobalFunc(`vm.builtin.kv_state_${name}`));
    Object.assign(model, { tvm, vm, gpu, metadata });
    model.params = tvm.detachFromCurrentScope(tvm.getParamsFromCacheByName(metadata.params.map((param) => param.name)));
    model.embed = find(program.exports.embed_tokens);
    model.prefillTokens = find(program.exports.prefill_tokens);
    model.decodeTokens = find(program.exports.decode_tokens);
    model.named = Object.fromEntries(
      [
        "softmax_with_temperature",
        "argsort_probs",
        "sample_with_top_p",
        "apply_logit_bias_inplace",
        "apply_penalty_inplace",
        "apply_bitmask_inplace",
      ].map((name) => [name, find(name)]),
    );
    model.state = Object.fromEntries(
      ["clear", "add_sequence", "begin_forward", "end_forward", "popn"].map((name) => [name, state(name)]),
    );
    model.createState = find(program.exports.create_kv_cache);
    tvm.endScope();
    model.renew(contextLength);
    return model;
  }

  /** A fresh state instead of the one before. */
  renew(contextLength, chunk = this.chunkSize) {
    this.kv?.dispose();
    const shape = (value) => this.tvm.makeShapeTuple([value]);
    this.kv = this.#scoped(() => this.createState(shape(1), shape(contextLength), shape(chunk), shape(16), shape(0)));
    this.clear();
  }

  get chunkSize() {
    return this.metadata.prefill_chunk_size;
  }

  clear() {
    this.#scoped(() => {
      this.state.clear(this.kv);
      this.state.add_sequence(this.kv, this.tvm.scalar(0, "int64"));
    });
  }

  pop(count) {
    this.#scoped(() => this.state.popn(this.kv, this.tvm.scalar(0, "int64"), this.tvm.scalar(count, "int32")));
  }

  /** Logits behind the last of `ids`, sent in chunks of at most `chunk`; a Float32Array. */
  async prefill(ids, chunk = this.chunkSize) {
    let logits;
    for (let start = 0; start < ids.length; start += chunk) {
      logits = this.#scoped(() => {
        const part = ids.slice(start, start + chunk);
        const n = part.length;
        const embeddings = this.embed(this.#upload([n], "int32", part), this.params);
        const rows = embeddings.view([1, n, embeddings.shape[1]]);
        const idRow = this.#upload([1, n], "int32", part);
        const modality = this.#upload([1, n], "int32", new Array(n).fill(0));
        this.#beginForward(n);
        const result = this.prefillTokens(rows, idRow, modality, this.kv, this.params);
        this.state.end_forward(this.kv);
        return result.get(0);
      }, logits);
    }
    return this.#read(logits);
  }

  async decode(id) {
    const logits = this.#scoped(() => {
      const token = this.#upload([1, 1], "int32", [id]);
      this.#beginForward(1);
      const result = this.decodeTokens(token, this.kv, this.params);
      this.state.end_forward(this.kv);
      return result.get(0);
    });
    return this.#read(logits);
  }

  /** Tokens that the client's sampling calls pick from `logits`, one per uniform number. */
  async sample(logits, temperature, topP, uniforms) {
    const { softmax_with_temperature, argsort_probs, sample_with_top_p } = this.named;
    const width = logits.length;
    const probabilities = this.#scoped(() =>
      softmax_with_temperature(
        this.#upload([1, 1, width], "float32", logits),
        this.#upload([1], "float32", [temperature]),
      ),
    );
    const drawn = uniforms.map((uniform) =>
      this.#scoped(() => {
        const sorted = argsort_probs(probabilities.view([1, width]));
        const token = sample_with_top_p(
          sorted.get(0),
          sorted.get(1),
          this.#upload([1], "float32", [uniform]),
          this.#upload([1], "int32", [0]),
          this.#upload([1], "float32", [topP]),
        );
        return this.tvm.empty(token.shape, token.dtype, this.tvm.cpu()).copyFrom(token);
      }),
    );
    await this.gpu.sync();
    const tokens = drawn.map((token) => token.toArray()[0]);
    for (const token of drawn) token.dispose();
    return { tokens, probabilities: await this.#read(probabilities) };
  }

  /** Logits after one of the client's in-place functions; `inputs` are [dtype, shape, values]. */
  async adjust(name, logits, inputs) {
    const changed = this.#scoped(() => {
      const tensor = this.#upload([1, 1, logits.length], "float32", logits);
      const rest = inputs.map(([dtype, shape, values]) => this.#upload(shape, dtype, values));
      this.named[name](tensor.view([1, logits.length]), ...rest);
      return tensor;
    });
    return this.#read(changed);
  }

  #beginForward(count) {
    const { tvm } = this;
    this.state.begin_forward(this.kv, tvm.makeShapeTuple([0]), tvm.makeShapeTuple([count]));
  }

  #upload(shape, dtype, values) {
    const typed = dtype === "float32" ? Float32Array.from(values) : Int32Array.from(values);
    return this.tvm.empty(shape, dtype, this.gpu).copyFrom(typed);
  }

  /** Runs `action` in a scope of its own, keeps only its result, disposes of `previous`. */
  #scoped(action, previous) {
    this.tvm.beginScope();
    try {
      const result = action();
      return result?.dispose ? this.tvm.detachFromCurrentScope(result) : result;
    } finally {
      this.tvm.endScope();
      previous?.dispose();
    }
  }

  async #read(tensor) {
    const host = this.#scoped(() => this.tvm.empty(tensor.shape, tensor.dtype, this.tvm.cpu()).copyFrom(tensor));
    await this.gpu.sync();
    const values = host.toArray();
    host.dispose();
    tensor.dispose();
    return values;
  }
}
