// Checkpoints of a DawnModel's state, made and read with the calls that the client makes.
const NAMES = [
  "get_checkpoint_metadata",
  "export_page_group",
  "prepare_import",
  "import_page_group",
  "finish_import",
  "get_sequence_length",
];

/** What a test may do to a checkpoint before it is read; all but the first leave the description. */
const changes = {
  metadata: (kept, fields) => Object.assign(kept.metadata, fields),
  text: (kept, text) => (kept.text = text),
  drop: (kept, index) => kept.groups.splice(index, 1),
  shape: (kept, { group, shape, dtype }) => (kept.tensors[group] = { shape, dtype }),
  zero: (kept, tail) =>
    kept.metadata.groups.forEach(({ shape }, index) => {
      if (String(shape.slice(-tail.length)) === String(tail)) kept.groups[index].data.fill(0);
    }),
  stop: (kept, count) => (kept.stop = count),
};

export class Checkpoints {
  #kept = new Map();

  /** Keeps the state's checkpoint; tells its description and sizes. */
  async keep(model, name) {
    const { tvm, gpu, kv } = model;
    const call = functionsOf(model);
    const metadata = JSON.parse(String(call.get_checkpoint_metadata(kv, tvm.scalar(model.sequence, "int64"))));
    const groups = [];
    for (const { group_index, shape, dtype } of metadata.groups) {
      tvm.beginScope();
      const page = tvm.empty(shape, dtype, gpu);
      call.export_page_group(kv, tvm.scalar(model.sequence, "int64"), tvm.scalar(group_index, "int64"), page);
      const host = tvm.empty(shape, dtype, tvm.cpu()).copyFrom(page);
      await gpu.sync();
      groups.push({ groupId: group_index, data: host.toRawBytes() });
      tvm.endScope();
    }
    this.#kept.set(name, { metadata, groups });
    return { metadata, bytes: groups.map((group) => group.data.length) };
  }

  /** Reads a checkpoint into the state; tells the error where the library refuses it. */
  async restore(model, name, change = {}) {
    const { tvm, gpu, kv } = model;
    const kept = { ...structuredClone(this.#kept.get(name)), tensors: {}, stop: Infinity };
    for (const [kind, value] of Object.entries(change)) changes[kind](kept, value);
    const call = functionsOf(model);
    const sequence = tvm.scalar(model.sequence, "int64");
    tvm.beginScope();
    try {
      call.prepare_import(kv, sequence, kept.text ?? JSON.stringify(kept.metadata));
      for (const { groupId, data } of kept.groups.slice(0, kept.stop)) {
        const { shape, dtype } = kept.tensors[groupId] ?? kept.metadata.groups[groupId];
        const page = tvm.empty(shape, dtype, gpu);
        page.copyFromRawBytes(data.slice(0, page.numStorageBytes()));
        call.import_page_group(kv, sequence, tvm.scalar(groupId, "int64"), page);
      }
      if (kept.groups.length <= kept.stop) call.finish_import(kv, sequence);
      const length = Number(call.get_sequence_length(kv, sequence));
      await gpu.sync();
      return { length };
    } catch (error) {
      return { refused: String(error?.message ?? error), dead: error instanceof WebAssembly.RuntimeError };
    } finally {
      tvm.endScope();
    }
  }
}

function functionsOf({ tvm }) {
  tvm.beginScope();
  const found = NAMES.map((name) => [
    name,
    tvm.detachFromCurrentScope(tvm.getGlobalFunc(`vm.builtin.attention_kv_cache_${name}`)),
  ]);
  tvm.endScope();
  return Object.fromEntries(found);
}
