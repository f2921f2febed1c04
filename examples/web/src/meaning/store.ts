// Dropped documents, and the vectors of passages, in a database of their own beside the chats.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
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
const DOCUMENTS = "documents";
const VECTORS = "vectors";

/** Keeps both. Where the browser refuses a database, they live as long as the page. */
export class MeaningStore {
  private readonly documentsHere = new Map<string, Document>();
  private readonly vectorsHere = new Map<string, Float32Array>();

  private constructor(private readonly database: IDBPDatabase<Schema> | undefined) {}

  static async open(): Promise<MeaningStore> {
    try {
      return new MeaningStore(
        await openDB<Schema>(DATABASE, VERSION, {
          upgrade: (opened) => {
            opened.createObjectStore(DOCUMENTS, { keyPath: "id" });
            opened.createObjectStore(VECTORS, { keyPath: ["version", "text"] });
          },
          blocking: (_, __, event) => (event.target as IDBDatabase).close(),
        }),
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
    if (!this.database) return new Map(this.vectorsHere);
    const kept = await this.database.getAll(VECTORS);
    const others = kept.filter((each) => each.version !== version);
    await this.forget(others);
    return new Map(kept.filter((each) => each.version === version).map(({ text, vector }) => [text, vector]));
  }

  /** The texts that there are vectors of, of all versions. */
  async texts(): Promise<Pick<Kept, "version" | "text">[]> {
    if (!this.database) return [...this.vectorsHere.keys()].map((text) => ({ version: "", text }));
    return (await this.database.getAllKeys(VECTORS)).map(([version, text]) => ({ version, text }));
  }

  async addVectors(version: string, vectors: ReadonlyMap<string, Float32Array>): Promise<void> {
    if (!this.database) {
      for (const [text, vector] of vectors) this.vectorsHere.set(text, vector);
      return;
    }
    const writing = this.database.transaction(VECTORS, "readwrite");
    const puts = [...vectors].map(([text, vector]) => writing.store.put({ version, text, vector }));
    await Promise.all([...puts, writing.done]);
  }

  /** Vectors whose texts are gone. */
  async forget(vectors: Pick<Kept, "version" | "text">[]): Promise<void> {
    for (const { text } of vectors) this.vectorsHere.delete(text);
    if (!this.database || !vectors.length) return;
    const writing = this.database.transaction(VECTORS, "readwrite");
    const deletes = vectors.map(({ version, text }) => writing.store.delete([version, text]));
    await Promise.all([...deletes, writing.done]);
  }
}
