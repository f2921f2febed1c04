// A window in the place of the table of per-layer embeddings (docs/adr/0024), with rows from the package's files.
import fs from "node:fs/promises";
import path from "node:path";

const TEXT = 0; // modality of a row

/** A tensor of the package as the bytes of its rows. */
async function stored(directory, shards, name) {
  for (const shard of shards) {
    const record = shard.records.find((one) => one.name === name);
    if (record === undefined) continue;
    const data = await fs.readFile(path.join(directory, shard.dataPath));
    const bytes = data.subarray(record.byteOffset, record.byteOffset + record.nbytes);
    const rowBytes = record.nbytes / record.shape[0];
    const row = (index) => bytes.subarray(index * rowBytes, (index + 1) * rowBytes);
    return { ...record, rowBytes, row };
  }
  throw new Error(`no ${name} in the package`);
}

export class Window {
  /** Makes it, of `rows` rows, and puts it into the model's parameters; what `close` undoes. */
  static async open(model, directory, rows) {
    const table = model.metadata.per_layer_embedding;
    const { records: shards } = JSON.parse(await fs.readFile(path.join(directory, "tensor-cache.json")));
    const splits = [];
    for (const { rows: count, tensors } of table.splits) {
      if (count === rows) throw new Error(`a split has ${rows} rows, too`);
      splits.push({ count, tensors: await Promise.all(tensors.map((name) => stored(directory, shards, name))) });
    }
    return new Window(model, table, splits, rows);
  }

  constructor(model, table, splits, rows) {
    Object.assign(this, { model, pad: table.pad_token_id, splits, table: model.params });
    const { tvm, gpu } = model;
    this.tensors = model.scoped(() =>
      splits[0].tensors.map(({ shape, dtype }) => tvm.empty([rows, ...shape.slice(1)], dtype, gpu)),
    );
    this.bytes = splits[0].tensors.map(({ rowBytes }) => new Uint8Array(rows * rowBytes).fill(0xee));
    const stands = new Map(
      table.splits.flatMap(({ tensors }) => tensors.map((name, kind) => [name, this.tensors[kind]])),
    );
    model.params = model.scoped(() => {
      const all = model.metadata.params.map(({ name }, index) => stands.get(name) ?? this.table.get(index));
      return tvm.makeTVMArray(all);
    });
  }

  /** Has the rows of a call's tokens there before it. */
  put(ids, modality = TEXT) {
    for (const [place, id] of ids.entries()) this.#copy(modality === TEXT ? id : this.pad, place);
    for (const [kind, tensor] of this.tensors.entries()) tensor.copyFromRawBytes(this.bytes[kind]);
  }

  #copy(id, place) {
    let first = 0;
    for (const { count, tensors } of this.splits) {
      if (id < first + count) {
        for (const [kind, { row, rowBytes }] of tensors.entries())
          this.bytes[kind].set(row(id - first), place * rowBytes);
        return;
      }
      first += count;
    }
  }

  close() {
    this.model.params.dispose();
    this.model.params = this.table;
    for (const tensor of this.tensors) tensor.dispose();
  }
}
