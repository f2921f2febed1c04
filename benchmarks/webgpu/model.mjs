// A package as the benchmarks want it: the steps of loading timed, weights made on the device, any context at once.
import fs from "node:fs/promises";
import { WebGPUModel } from "../../gemma4_compile/verification/webgpu_model.mjs";
import { tvmjs } from "./packages.mjs";
import { Filler } from "./weights.mjs";

const ITEM_BYTES = { float16: 2, float32: 4, uint32: 4, int32: 4 };

export class Model extends WebGPUModel {
  /** Seconds of each step of loading. */
  loadSeconds = {};
  /** Names of parameters, by the buffers of those that were made here. */
  weightBuffers = new Map();
  stateBytes = 0;
  #ledger;
  #isSynthetic;

  /**
   * Instantiates the library, makes its pipelines, weights and KV state.
   *
   * `weights` is "synthetic" (values made on the device) or "package" (read from its shards).
   */
  static async load(directory, { device, ledger }, { weights, capacity }) {
    const model = new Model();
    model.#ledger = ledger;
    model.#isSynthetic = weights !== "package";
    const files = await fs.readdir(directory);
    const library = files.find((name) => name.endsWith(".wasm"));
    if (!library) throw new Error(`${directory} holds no .wasm file: no package for webgpu`);
    return model.open(directory, { tvmjs, device, library, contextLength: capacity, log: () => {} });
  }

  async step(name, action) {
    const start = performance.now();
    const result = await action();
    await this.device.queue.onSubmittedWorkDone();
    this.loadSeconds[name] = (performance.now() - start) / 1000;
    return result;
  }

  async loadWeights(directory) {
    if (!this.#isSynthetic) return super.loadWeights(directory);
    this.#fill(this.metadata.params);
  }

  /** Random weights of the library's drafter. */
  makeDrafter() {
    const { params } = this.metadata.drafter;
    this.#fill(params);
    return this.scoped(() => this.tvm.getParamsFromCacheByName(params.map(({ name }) => name)));
  }

  #fill(params) {
    const { tvm } = this;
    const filler = new Filler(this.device);
    const shapes = new Map(params.map(({ name, shape }) => [name, shape]));
    for (const param of params) {
      this.scoped(() => {
        const { result, buffers } = this.#ledger.capture(() => tvm.empty(param.shape, param.dtype, this.gpu));
        if (buffers.length !== 1) throw new Error(`${param.name}: ${buffers.length} buffers made`);
        filler.parameter(buffers[0], param, shapes);
        this.weightBuffers.set(buffers[0], param.name);
        tvm.tensorCacheUpdate(param.name, result);
      });
    }
  }

  makeState(contextLength, chunk) {
    const { result, buffers } = this.#ledger.capture(() => super.makeState(contextLength, chunk));
    const filler = new Filler(this.device);
    for (const buffer of buffers) filler.state(buffer);
    this.stateBytes = buffers.reduce((sum, buffer) => sum + buffer.size, 0);
    return result;
  }

  /** Starts a sequence of `length` tokens whose keys and values are whatever the state holds. */
  restart(length) {
    this.clear();
    this.scoped(() => {
      for (let done = 0; done < length; done += this.chunkSize) {
        this.beginForward(Math.min(this.chunkSize, length - done));
        this.state.end_forward(this.kv);
      }
    });
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
