// Dropped documents, and the vectors of passages, in a database of their own beside the chats.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import { unlessStalled } from "../patience";
import type { Document } from "./passages";

interface Kept {
  /** Of the embedder's package. */
  version: string;
  text: string;
  vector: Float32Array;
}

interface Schema extends DBSchema {
  documents: { key: string; value: Document };
  vectors: { key: [string, string]; value: Kept };
}

const DATABASE = "gemma4-meaning";
const VERSION = 1;
/** As the chats' database: the page does without one that says nothing. */
const SILENCE_MS = 15_000;
const DOCUMENTS = "documents";
const VECTORS = "vectors";

/** Keeps both. Where the browser refuses a database, they live as long as the page, and so do vectors without room. */
export class MeaningStore {
  private readonly documentsHere = new Map<string, Document>();
  /** By their texts. */
  private readonly vectorsHere = new Map<string, Kept>();

  private constructor(private readonly database: IDBPDatabase<Schema> | undefined) {}

  static async open(): Promise<MeaningStore> {
    try {
      return new MeaningStore(
        await unlessStalled(
          openDB<Schema>(DATABASE, VERSION, {
            upgrade: (opened) => {
              opened.createObjectStore(DOCUMENTS, { keyPath: "id" });
              opened.createObjectStore(VECTORS, { keyPath: ["version", "text"] });
            },
            blocking: (_, __, event) => (event.target as IDBDatabase).close(),
          }),
          SILENCE_MS,
        ),
      );
    } catch (error) {
      console.warn("documents cannot be kept:", error);
      return new MeaningStore(undefined);
    }
  }

  /** All documents, the latest first. */
  async documents(): Promise<Document[]> {
    const found = (await this.database?.getAll(DOCUMENTS)) ?? [...this.documentsHere.values()];
    return found.sort((a, b) => b.added - a.added);
  }

  async addDocument(document: Document): Promise<void> {
    if (this.database) await this.database.put(DOCUMENTS, document);
    else this.documentsHere.set(document.id, document);
  }

  async removeDocument(id: string): Promise<void> {
    if (this.database) await this.database.delete(DOCUMENTS, id);
    else this.documentsHere.delete(id);
  }

  /** The vectors of a package's version, by their texts; those of others are let go of. */
  async vectors(version: string): Promise<Map<string, Float32Array>> {
    const kept = [...((await this.database?.getAll(VECTORS)) ?? []), ...this.vectorsHere.values()];
    await this.forget(kept.filter((each) => each.version !== version));
    return new Map(kept.filter((each) => each.version === version).map(({ text, vector }) => [text, vector]));
  }

  /** The texts that there are vectors of, of all versions. */
  async texts(): Promise<Pick<Kept, "version" | "text">[]> {
    const kept = (await this.database?.getAllKeys(VECTORS)) ?? [];
    return [...kept.map(([version, text]) => ({ version, text })), ...this.vectorsHere.values()];
  }

  async addVectors(version: string, vectors: ReadonlyMap<string, Float32Array>): Promise<void> {
    const added = [...vectors].map(([text, vector]) => ({ version, text, vector }));
    try {
      if (this.database) return await put(this.database, added);
    } catch (error) {
      console.warn("vectors cannot be kept:", error); // there is no room, say
    }
    for (const each of added) this.vectorsHere.set(each.text, each);
  }

  /** Vectors whose texts are gone. */
  async forget(vectors: Pick<Kept, "version" | "text">[]): Promise<void> {
    for (const { version, text } of vectors)
      if (this.vectorsHere.get(text)?.version === version) this.vectorsHere.delete(text);
    if (!this.database || !vectors.length) return;
    const writing = this.database.transaction(VECTORS, "readwrite");
    const deletes = vectors.map(({ version, text }) => writing.store.delete([version, text]));
    await Promise.all([...deletes, writing.done]);
  }
}

async function put(database: IDBPDatabase<Schema>, vectors: readonly Kept[]): Promise<void> {
  const writing = database.transaction(VECTORS, "readwrite");
  await Promise.all([...vectors.map((each) => writing.store.put(each)), writing.done]);
}
