// What a model library says in its file, before anything of it runs: its metadata, and the WGSL text of its kernels.
//
// Both are strings of TVM's serialised module in the data of the .wasm: eight bytes of length, then the text.
import { type KnownAnswers, parseKnownAnswers } from "../selftest/known_answer_format";

const METADATA = '{"artifact": {';
const MOST_METADATA = 1 << 24;
const MOST_CODE = 1 << 20;
const LENGTH_BYTES = 8;

export class LibraryFile {
  private readonly view: DataView;
  private read: { answers: KnownAnswers | undefined } | undefined;

  constructor(private readonly bytes: Uint8Array) {
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  /** The library's metadata; undefined for a library that another compiler wrote. */
  metadata(): string | undefined {
    for (const at of this.places(METADATA)) {
      const text = this.textAt(at - LENGTH_BYTES, MOST_METADATA);
      if (text !== undefined) return text;
    }
    return undefined;
  }

  /** The known answers of its metadata, which are looked for once; undefined where it has none. Throws for damaged ones. */
  answers(): KnownAnswers | undefined {
    if (!this.read) {
      const metadata = this.metadata();
      this.read = { answers: metadata === undefined ? undefined : parseKnownAnswers(metadata) };
    }
    return this.read.answers;
  }

  /** The WGSL text of a kernel; undefined where the file has none. */
  kernel(name: string): string | undefined {
    for (const at of this.places(name)) {
      // Its name stands before it, with a length of its own.
      if (this.lengthAt(at - LENGTH_BYTES) !== name.length) continue;
      const code = this.textAt(at + name.length, MOST_CODE);
      if (code?.includes("@compute") && code.includes(`fn ${name}(`)) return code;
    }
    return undefined;
  }

  private *places(text: string): Generator<number> {
    const wanted = new TextEncoder().encode(text);
    const [first] = wanted;
    if (first === undefined) return;
    for (let at = this.bytes.indexOf(first); at >= 0; at = this.bytes.indexOf(first, at + 1)) {
      if (wanted.every((byte, index) => this.bytes[at + index] === byte)) yield at;
    }
  }

  private lengthAt(at: number): number {
    if (at < 0 || at + LENGTH_BYTES > this.bytes.length) return -1;
    return Number(this.view.getBigUint64(at, true));
  }

  private textAt(at: number, most: number): string | undefined {
    const length = this.lengthAt(at);
    const begin = at + LENGTH_BYTES;
    if (length <= 0 || length > most || begin + length > this.bytes.length) return undefined;
    return new TextDecoder().decode(this.bytes.subarray(begin, begin + length));
  }
}

/** What a kernel's buffers are bound as, in the order of its text: the uniform last. */
export function bindingTypes(code: string): GPUBufferBindingType[] {
  const found: GPUBufferBindingType[] = [];
  for (const [, binding, space] of code.matchAll(/@group\(0\)\s*@binding\((\d{1,3})\)\s*var<([\w, ]+)>/g)) {
    const kind = space!.replaceAll(" ", "");
    found[Number(binding)] =
      kind === "uniform" ? "uniform" : kind === "storage,read_write" ? "storage" : "read-only-storage";
  }
  return found;
}
