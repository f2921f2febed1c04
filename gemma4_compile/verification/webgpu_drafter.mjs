// Rounds of drafts on a WebGPU device: the calls of runtime/engine/rounds.py; see rounds.py.
import { dispose, filesFromDisk } from "./webgpu_model.mjs";

const LIST = "drafter-tensor-cache.json";

/** The package's files, with the drafter's list in the place of the model's. */
const drafterFiles = {
  ...filesFromDisk,
  fetchWithCache: (url, kind) => filesFromDisk.fetchWithCache(kind === "json" ? new URL(LIST, url).href : url, kind),
};

export class WebGPUDrafter {
  /** Uploads the drafter's weights, next to those of its model. */
  async open(model, directory) {
    this.model = model;
    await model.loadWeights(directory, drafterFiles);
    const names = model.metadata.drafter.params.map((param) => param.name);
    this.params = model.scoped(() => model.tvm.getParamsFromCacheByName(names));
    return this;
  }

  /**
   * Drafts after the first of `ids`, and the model's logits and states of all of them, of which it keeps the first
   * `kept`: {logits, states, drafts}, arrays.
   */
  async round(ids, position, drafts, kept) {
    const { model } = this;
    const tensors = model.scoped(() => {
      model.beginForward(ids.length);
      const outputs = [...this.#drafts(ids[0], position, drafts), ...verifyTokens(model, ids)];
      model.endForward();
      return outputs;
    });
    const arrays = [];
    for (const tensor of tensors) arrays.push(await model.read(tensor));
    if (kept < ids.length) model.pop(ids.length - kept);
    const [logits, states] = arrays.splice(-2);
    const width = states.length / ids.length;
    this.hidden = states.slice((kept - 1) * width, kept * width);
    return { logits, states, drafts: arrays };
  }

  /** Results of `draft_token`, one after the other. */
  #drafts(id, position, count) {
    const { model } = this;
    const found = [];
    if (!count) return found;
    const positions = model.upload([4], "int32", [position, 1, position, 0]);
    let token = model.upload([1], "int32", [id]);
    let hidden = model.upload([1, this.hidden.length], "float32", this.hidden);
    for (let i = 0; i < count; i++) {
      const tensors = draftToken(model, token, hidden, positions, this.params);
      [token, hidden] = tensors;
      found.push(...tensors);
    }
    return found;
  }
}

/** Results of `draft_token`: the id and the state of the draft after that first, and what else it returns. */
export function draftToken(model, token, hidden, positions, params) {
  const embedding = model.functions.embed_tokens(token, model.params);
  const outputs = model.named("draft_token")(embedding, hidden, positions, model.kv, params);
  return Array.from({ length: outputs.size() }, (_, index) => outputs.get(index));
}

/** Logits and states of all of `ids`, of a forward that has begun. */
export function verifyTokens(model, ids) {
  const embedded = model.functions.embed_tokens(model.upload([ids.length], "int32", ids), model.params);
  const rows = embedded.view([1, ids.length, embedded.shape[1]]);
  const given = model.upload([1, ids.length], "int32", ids);
  const outputs = model.named("verify_tokens")(rows, given, model.kv, model.params);
  return [outputs.get(0), outputs.get(1)];
}

/** Runs planned rounds; calls `write(index, arrays)` with the results of each. */
export async function runRounds(model, directory, { ids, moves }, write) {
  const drafter = await new WebGPUDrafter().open(model, directory);
  for (const [index, { position, drafts, kept, begins }] of moves.entries()) {
    if (begins) {
      model.clear();
      dispose(model.prompt(ids.slice(0, position)));
    }
    const rows = ids.slice(position, position + drafts + 1);
    const { logits, states, drafts: found } = await drafter.round(rows, position, drafts, kept);
    await write(index, [logits, states, ...found]);
  }
}
