// Conversations with their pictures and sounds in IndexedDB.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import { UserError } from "../package/user_error";
import { afterReload, isConversation, mediaIdsOf, wellFormed, type Conversation } from "./transcript";

interface Kept {
  id: string;
  blob: Blob;
}

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
  media: { key: string; value: Kept };
}

const DATABASE = "gemma4-chat";
const VERSION = 2; // 1 had no media
const TABLE = "conversations";
const MEDIA = "media";
const UNSAVED = "gemma4-unsaved";
const CHANNEL = "gemma4-chats";

/** What another tab did to the conversations. */
export type Change = { kind: "saved" | "removed"; ids: string[] } | { kind: "cleared" };

/** Keeps conversations. Where the browser refuses a database, they live as long as the page. */
export class Store {
  private readonly channel = new BroadcastChannel(CHANNEL);
  /** Pictures and sounds that this page has had, also of chats that are deleted: that can be undone. */
  private readonly media = new Map<string, Blob>();

  private constructor(private readonly database: IDBPDatabase<Schema> | undefined) {}

  /** Hears what other tabs change. */
  watch(hear: (change: Change) => void): void {
    this.channel.onmessage = ({ data }: MessageEvent<Change>) => hear(data);
  }

  /** Whether anything outlives the page. */
  get lasting(): boolean {
    return this.database !== undefined;
  }

  /** `onBlocked`: an older version of the page in another tab has to be closed first. */
  static async open(onBlocked: () => void): Promise<Store> {
    try {
      const database = await openDB<Schema>(DATABASE, VERSION, {
        upgrade: (opened, before) => {
          if (before < 1) opened.createObjectStore(TABLE, { keyPath: "id" });
          opened.createObjectStore(MEDIA, { keyPath: "id" });
        },
        blocked: onBlocked,
        // A newer version of the page in another tab may have the database.
        blocking: (_, __, event) => (event.target as IDBDatabase).close(),
      });
      return new Store(database);
    } catch (error) {
      console.warn("conversations cannot be kept:", error);
      return new Store(undefined);
    }
  }

  /** All conversations, the latest first. */
  async all(): Promise<Conversation[]> {
    await this.takeUnsaved();
    const found = (await this.database?.getAll(TABLE)) ?? [];
    const damaged = found.filter((each) => !isConversation(each));
    if (damaged.length) console.warn("conversations that cannot be read:", damaged);
    else void this.dropUnused().catch((error: unknown) => console.warn("unused media stay:", error));
    return found
      .filter(isConversation)
      .map(wellFormed)
      .map(afterReload)
      .sort((a, b) => b.updated - a.updated);
  }

  async get(id: string): Promise<Conversation | undefined> {
    const found = await this.database?.get(TABLE, id);
    return isConversation(found) ? wellFormed(found) : undefined;
  }

  async save(...conversations: Conversation[]): Promise<void> {
    if (!this.database) return;
    const copies = structuredClone(conversations);
    const media = copies.flatMap(mediaIdsOf).filter((id) => this.media.has(id));
    const writing = this.database.transaction([TABLE, MEDIA], "readwrite"); // all of them, or none
    const kept = writing.objectStore(MEDIA);
    const keep = async (id: string) => {
      if (!(await kept.getKey(id))) await kept.put({ id, blob: this.media.get(id)! });
    };
    const table = writing.objectStore(TABLE);
    await Promise.all([...copies.map((each) => table.put(each)), ...media.map(keep), writing.done]);
    this.tell({ kind: "saved", ids: copies.map(({ id }) => id) });
  }

  /** Holds the bytes of a picture or sound; a conversation that has it keeps them, too. */
  addMedia(id: string, blob: Blob): void {
    this.media.set(id, blob);
  }

  /** Undefined: it is not kept any more. */
  async mediaOf(id: string): Promise<Blob | undefined> {
    const held = this.media.get(id);
    if (held) return held;
    const blob = (await this.database?.get(MEDIA, id))?.blob;
    if (!(blob instanceof Blob)) return undefined;
    this.media.set(id, blob);
    return blob;
  }

  /** How many pictures and sounds are kept, and their bytes. */
  async mediaSize(): Promise<{ count: number; bytes: number }> {
    const kept = (await this.database?.getAll(MEDIA)) ?? [];
    return { count: kept.length, bytes: kept.reduce((sum, { blob }) => sum + blob.size, 0) };
  }

  /** Deletes pictures and sounds that no conversation has, for example of messages that were replaced. */
  private async dropUnused(): Promise<void> {
    const writing = this.database?.transaction([TABLE, MEDIA], "readwrite");
    if (!writing) return;
    const used = new Set((await writing.objectStore(TABLE).getAll()).flatMap(mediaIdsOf));
    const kept = writing.objectStore(MEDIA);
    const unused = (await kept.getAllKeys()).filter((id) => !used.has(id));
    await Promise.all([...unused.map((id) => kept.delete(id)), writing.done]);
  }

  /** Saves before the next line runs: a page that goes away does not wait for a database. */
  saveNow(conversation: Conversation): void {
    try {
      localStorage.setItem(UNSAVED, JSON.stringify(conversation));
    } catch {
      // Full or off: the database has the state of a second ago.
    }
    this.save(conversation).then(
      () => localStorage.removeItem(UNSAVED),
      () => undefined,
    );
  }

  private async takeUnsaved(): Promise<void> {
    try {
      const text = localStorage.getItem(UNSAVED);
      if (!text) return;
      const unsaved: unknown = JSON.parse(text);
      if (isConversation(unsaved)) await this.save(unsaved);
      localStorage.removeItem(UNSAVED);
    } catch (error) {
      console.warn("an unsaved conversation cannot be read:", error);
    }
  }

  async remove(id: string): Promise<void> {
    if (!this.database) return;
    const writing = this.database.transaction([TABLE, MEDIA], "readwrite");
    const table = writing.objectStore(TABLE);
    const kept = writing.objectStore(MEDIA);
    const found = await table.get(id);
    for (const media of isConversation(found) ? mediaIdsOf(found) : []) {
      const blob = (await kept.get(media))?.blob;
      if (blob) this.media.set(media, blob); // for Undo
      await kept.delete(media);
    }
    await table.delete(id);
    await writing.done;
    this.tell({ kind: "removed", ids: [id] });
  }

  /** `media`: those of the chats, which are let go of; others belong to a message to come. */
  async clear(media: string[]): Promise<void> {
    if (this.database) {
      const writing = this.database.transaction([TABLE, MEDIA], "readwrite");
      await Promise.all([writing.objectStore(TABLE).clear(), writing.objectStore(MEDIA).clear(), writing.done]);
    }
    for (const id of media) this.media.delete(id);
    this.tell({ kind: "cleared" });
  }

  private tell(change: Change): void {
    if (this.database) this.channel.postMessage(change);
  }
}

/** In words, where the browser's storage is full. */
export function explainStorage(error: unknown): unknown {
  if ((error as Error)?.name !== "QuotaExceededError") return error;
  return new UserError(
    "The browser's storage for this site is full: this chat is not kept.",
    "Remove models or chats in Settings, or free the disk.",
  );
}
