// Chunks of prompts that outlive the page: written to the browser's storage behind a reply, and brought back to the device at
// the next start of the same package, library and context on the same device. What is not as it was written is removed.
import { hexDigest } from "../kept";
import {
  baseOf,
  byBase,
  DATA,
  FACTS,
  type Files,
  openFiles,
  ownerMark,
  placeOf,
  removeChunk,
  short,
  USED,
} from "../library/beginning_files";
import { alone } from "../library/thread_lock";
import { counts } from "../stats";
import type { Chunk, KeptChunks } from "./kept_chunks";

/** Changes with what the files hold. */
const FORMAT = 1;
/** Of the host's memory at a time: read from the device, hashed, and written. */
const PIECE_BYTES = 4 << 20;
/** The browser's storage is for other things, too. */
const LEAST_FREE_BYTES = 256 << 20;
/** Of a chunk's facts: ids and hashes. */
const LONGEST_FACTS = 1 << 20;

/** What a chunk's file of facts holds. */
interface Facts {
  readonly format: number;
  readonly identity: string;
  readonly key: string;
  /** Key of the chunk before it; that of the identity for a first one. */
  readonly parent: string;
  /** Ids of its tokens, as a chunk's name has them. */
  readonly ids: string;
  readonly layout: string;
  readonly bytes: number;
  readonly depth: number;
  /** SHA-256 of each piece. */
  readonly pieces: readonly string[];
}

/** When a chunk was used last, its bytes, and how many chunks it follows: of all packages of an application. */
type Used = Record<string, readonly [at: number, bytes: number, depth: number]>;

interface Place {
  readonly chunk: Chunk;
  readonly base: string;
  readonly key: string;
  readonly depth: number;
}

export class StoredChunks {
  private readonly keys = new WeakMap<Chunk, Place>();
  private readonly gone = new Set<string>();
  private problem: string | undefined;
  private isOver = false;

  private constructor(
    private readonly place: string,
    private readonly files: Files,
    private readonly kept: KeptChunks,
    private readonly package_: string,
    private readonly identity: string,
    private readonly mostBytes: number,
  ) {}

  /**
   * `folder` stands for the package in names, `identity` for all that a chunk depends on, `application` for whose they are;
   * undefined without storage.
   */
  static async open(
    kept: KeptChunks,
    folder: string,
    identity: readonly unknown[],
    mostBytes: number,
    application?: string,
  ): Promise<StoredChunks | undefined> {
    const place = await placeOf(application);
    const files = await openFiles(place);
    const digest = await hexDigest(JSON.stringify([FORMAT, ...identity]));
    return files && new StoredChunks(place, files, kept, await short(folder), digest, mostBytes);
  }

  // --- From the browser's storage to the device ---

  /**
   * Brings back what there is room for; removes what is damaged, or was of other files, libraries or contexts.
   * `onBytes` hears how much is back after each chunk, those of the latest prompts first.
   */
  restore(onBytes: (bytes: number) => void = () => undefined): Promise<void> {
    return alone(this.place, () => this.restoreAll(onBytes));
  }

  private async restoreAll(onBytes: (bytes: number) => void): Promise<void> {
    const names = byBase(await this.files.names());
    const used = await this.usedTimes();
    const found = new Map<string, Facts>();
    for (const [base, own] of names) {
      if (!base.startsWith(`${this.package_}-`)) continue;
      const facts = own.includes(base + FACTS) ? await this.factsOf(base) : undefined;
      if (facts) found.set(facts.key, facts);
      else await removeChunk(this.files, own);
    }
    const done = new Map<string, Chunk>();
    let bytes = 0;
    // Each behind the one that it follows, and the latest first, which has room sooner.
    const timeOf = ({ key }: Facts) => used[baseOf(this.package_, key)]?.[0] ?? 0;
    const wanted = new Map<string, Facts>();
    for (const facts of [...found.values()].sort((a, b) => timeOf(b) - timeOf(a))) {
      const chain: Facts[] = [];
      for (let one: Facts | undefined = facts; one && !wanted.has(one.key); one = found.get(one.parent))
        chain.push(one);
      for (const one of chain.reverse()) wanted.set(one.key, one);
    }
    for (const facts of wanted.values()) {
      const parent = done.get(facts.parent);
      const isFirst = facts.parent === this.identity;
      const base = baseOf(this.package_, facts.key);
      if (!isFirst && !found.has(facts.parent)) {
        await removeChunk(this.files, names.get(base)!);
        found.delete(facts.key);
        continue;
      }
      if (!isFirst && !parent) continue; // there was no room for it
      try {
        const chunk = await this.kept.admit(parent, facts.ids, facts.layout, facts.bytes, this.checked(base, facts));
        if (!chunk) continue;
        done.set(facts.key, chunk);
        this.keys.set(chunk, { chunk, base, key: facts.key, depth: facts.depth });
        counts.keptBytesRead += facts.bytes;
        bytes += facts.bytes;
        onBytes(bytes);
      } catch {
        await removeChunk(this.files, names.get(base)!);
        found.delete(facts.key);
      }
    }
    for (const chunk of [...done.values()].reverse()) this.kept.refresh(chunk); // the latest goes last
  }

  /** Undefined for what is damaged or is not of this identity. */
  private async factsOf(base: string): Promise<Facts | undefined> {
    try {
      const facts = JSON.parse(await textOf(this.files, base + FACTS)) as Facts;
      const { identity, key, parent, ids, layout, bytes, depth, pieces } = facts;
      const isSound =
        identity === this.identity &&
        [key, parent, ids, layout].every((each) => typeof each === "string") &&
        base === baseOf(this.package_, key) &&
        key === (await keyOf(parent, ids)) &&
        [bytes, depth].every((each) => Number.isSafeInteger(each) && each >= 0) &&
        Array.isArray(pieces) &&
        pieces.length === Math.ceil(bytes / PIECE_BYTES);
      return isSound ? facts : undefined;
    } catch {
      return undefined;
    }
  }

  /** The pieces of a file, each held against its hash; rejects where one is another. */
  private async *checked(base: string, { bytes, pieces }: Facts): AsyncGenerator<Uint8Array<ArrayBuffer>> {
    const stream = await this.files.read(base + DATA);
    if (!stream) throw new Error("the file is gone");
    const reader = stream.getReader();
    let rest = new Uint8Array(0) as Uint8Array;
    try {
      for (const [i, digest] of pieces.entries()) {
        const piece = new Uint8Array(Math.min(PIECE_BYTES, bytes - i * PIECE_BYTES));
        for (let at = 0; at < piece.byteLength; ) {
          if (rest.byteLength === 0) {
            const { done, value } = await reader.read();
            if (done) throw new Error("the file is cut off");
            rest = value;
          }
          const part = rest.subarray(0, piece.byteLength - at);
          piece.set(part, at);
          at += part.byteLength;
          rest = rest.subarray(part.byteLength);
        }
        if ((await hexDigest(piece)) !== digest) throw new Error("the file is damaged");
        yield piece;
      }
    } finally {
      await reader.cancel().catch(() => undefined);
    }
  }

  // --- From the device to the browser's storage ---

  /** A reply begins: what others have used before it is not its owner's. */
  begin(owner: string): void {
    this.kept.takeUsed();
    this.gone.delete(owner);
  }

  /** Nothing of these owners is written any more, in a save that runs neither; without any, of nobody. */
  forget(owners?: readonly string[]): void {
    if (owners) for (const owner of owners) this.gone.add(owner);
    else this.isOver = true;
  }

  /** Writes what prompts have used since `begin`; returns, once, why nothing is written any more. */
  async save(owner: string): Promise<string | undefined> {
    const chunks = this.kept.takeUsed();
    if (chunks.length === 0 || this.isOver || this.problem !== undefined) return undefined;
    try {
      await alone(this.place, () => this.saveAll(chunks, owner));
    } catch (error) {
      if (this.kept.isLost) return undefined; // of which others tell
      this.problem = (error as Error)?.message ?? String(error);
      return this.problem;
    }
    return undefined;
  }

  private async saveAll(chunks: readonly Chunk[], owner: string): Promise<void> {
    const isWanted = () => !this.isOver && !this.gone.has(owner);
    if (!isWanted()) return;
    const names = new Set(await this.files.names());
    const [used, mark] = [await this.usedTimes(), await ownerMark(owner)];
    const held: Place[] = [];
    const now = Date.now(); // one for all: what is behind a chunk goes before it
    const isHere = ({ base }: Place) => names.has(base + FACTS);
    for (const chunk of chunks) {
      const place = await this.placeOf(chunk);
      const parent = chunk.parent && (await this.placeOf(chunk.parent));
      if (parent && !isHere(parent)) continue;
      if (!isWanted()) return;
      const isNew = !isHere(place);
      if (isNew) {
        if (!(await this.makeRoom(chunk.buffer.size, used, names, held))) continue;
        if (!(await this.write(place, parent?.key ?? this.identity, isWanted))) continue;
        names.add(place.base + FACTS).add(place.base + DATA);
        counts.keptBytesWritten += chunk.buffer.size;
      }
      if (!names.has(place.base + mark)) await this.files.write(place.base + mark, inOne(""));
      names.add(place.base + mark);
      held.push(place);
      used[place.base] = [now, chunk.buffer.size, place.depth];
      if (isNew) await this.writeUsed(used, names); // its bytes count, also where the page ends before the rest
    }
    await this.writeUsed(used, names);
  }

  private async writeUsed(used: Used, names: ReadonlySet<string>): Promise<void> {
    const stored = Object.entries(used).filter(([base]) => names.has(base + FACTS));
    await this.files.write(USED, inOne(JSON.stringify(Object.fromEntries(stored))));
  }

  /** False where the chunk left the device meanwhile, or is not wanted any more. */
  private async write({ chunk, base, key, depth }: Place, parent: string, isWanted: () => boolean): Promise<boolean> {
    const { name: ids, layout, buffer } = chunk;
    const bytes = buffer.size;
    const pieces: string[] = [];
    let read = 0;
    const { kept } = this;
    async function* hashed() {
      for await (const piece of kept.contents(chunk, PIECE_BYTES)) {
        if (!isWanted()) return;
        pieces.push(await hexDigest(piece));
        read += piece.byteLength;
        yield piece;
      }
    }
    try {
      await this.files.write(base + DATA, hashed());
      if (read === bytes && isWanted()) {
        const facts: Facts = {
          format: FORMAT,
          identity: this.identity,
          key,
          parent,
          ids,
          layout,
          bytes,
          depth,
          pieces,
        };
        await this.files.write(base + FACTS, inOne(JSON.stringify(facts)));
        return true;
      }
    } catch (error) {
      await removeChunk(this.files, [base + DATA, base + FACTS]);
      throw error;
    }
    await removeChunk(this.files, [base + DATA]);
    return false;
  }

  /** Removes what was used longest ago, of any package of the application, but none of `held`; false where that is not enough. */
  private async makeRoom(size: number, used: Used, names: Set<string>, held: readonly Place[]): Promise<boolean> {
    const stored = [...byBase([...names])].filter(([base]) => names.has(base + FACTS));
    const bytesOf = (base: string) => used[base]?.[1] ?? 0;
    let bytes = stored.reduce((sum, [base]) => sum + bytesOf(base), 0);
    const isHeld = new Set(held.map(({ base }) => base));
    const timeOf = (base: string) => used[base]?.[0] ?? 0;
    const depthOf = (base: string) => used[base]?.[2] ?? 0;
    stored.sort(([a], [b]) => timeOf(a) - timeOf(b) || depthOf(b) - depthOf(a));
    for (const [base, own] of stored) {
      if (bytes + size <= this.mostBytes) break;
      if (isHeld.has(base)) continue;
      await removeChunk(this.files, own);
      for (const name of own) names.delete(name);
      bytes -= bytesOf(base);
      delete used[base];
    }
    if (bytes + size > this.mostBytes) return false;
    const { quota, usage } = (await navigator.storage?.estimate?.()) ?? {};
    if (quota !== undefined && quota - (usage ?? 0) < size + LEAST_FREE_BYTES)
      throw new Error("the browser lets this site store no more");
    return true;
  }

  private async placeOf(chunk: Chunk): Promise<Place> {
    const known = this.keys.get(chunk);
    if (known) return known;
    const parent = chunk.parent && (await this.placeOf(chunk.parent));
    const key = await keyOf(parent?.key ?? this.identity, chunk.name);
    const place = { chunk, key, base: baseOf(this.package_, key), depth: parent ? parent.depth + 1 : 0 };
    this.keys.set(chunk, place);
    return place;
  }

  private async usedTimes(): Promise<Used> {
    try {
      const found: unknown = JSON.parse(await textOf(this.files, USED));
      if (typeof found !== "object" || found === null) return {};
      const isEntry = (entry: unknown) =>
        Array.isArray(entry) && entry.length === 3 && entry.every((each) => Number.isFinite(each) && each >= 0);
      return Object.fromEntries(Object.entries(found).filter(([, entry]) => isEntry(entry))) as Used;
    } catch {
      return {}; // nothing is older than anything else then
    }
  }
}

const keyOf = (parent: string, ids: string): Promise<string> => hexDigest(`${parent}\n${ids}`);

async function* inOne(text: string): AsyncGenerator<Uint8Array<ArrayBuffer>> {
  if (text) yield new TextEncoder().encode(text);
}

/** A small file; rejects for one that is missing, or too long to be one. */
async function textOf(files: Files, name: string): Promise<string> {
  const stream = await files.read(name);
  if (!stream) throw new Error(`${name} is missing`);
  const decoder = new TextDecoder();
  let text = "";
  for (const reader = stream.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    text += decoder.decode(value, { stream: true });
    if (text.length > LONGEST_FACTS) {
      await reader.cancel();
      throw new Error(`${name} is too long`);
    }
  }
}
