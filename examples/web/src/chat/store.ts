// Conversations with their pictures and sounds in IndexedDB.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import { UserError } from "../package/user_error";
import { afterPatience, Stalled } from "../patience";
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
/** A browser whose database says nothing for so long will not: the page does without. */
const SILENCE_MS = 15_000;
/** Names of errors of a connection that is no more. */
const CLOSED = ["InvalidStateError", "UnknownError"];

/** What another tab did to the conversations. */
export type Change = { kind: "saved" | "removed"; ids: string[] } | { kind: "cleared" };

/** Keeps conversations. Where the browser refuses a database, they live as long as the page. */
export class Store {
  private readonly channel = new BroadcastChannel(CHANNEL);
  /** Pictures and sounds that this page has had, also of chats that are deleted: that can be undone. */
  private readonly media = new Map<string, Blob>();

  private database: IDBPDatabase<Schema> | undefined;
  private reconnecting: Promise<IDBPDatabase<Schema> | undefined> | undefined;

  private constructor() {}

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
    const store = new Store();
    store.database = await store.connect(onBlocked);
    return store;
  }

  /** Undefined where the browser refuses a database, or does not answer; who is in the way is waited for, and told of. */
  private async connect(onBlocked?: () => void): Promise<IDBPDatabase<Schema> | undefined> {
    let stop: () => void = () => undefined;
    const silence = new Promise<never>((_, reject) => {
      stop = afterPatience(() => reject(new Stalled("the database does not answer")), SILENCE_MS);
    });
    let opening: Promise<IDBPDatabase<Schema>> | undefined;
    try {
      opening = openDB<Schema>(DATABASE, VERSION, {
        upgrade: (opened, before) => {
          if (before < 1) opened.createObjectStore(TABLE, { keyPath: "id" });
          opened.createObjectStore(MEDIA, { keyPath: "id" });
        },
        blocked: () => {
          stop();
          onBlocked?.();
        },
        // A newer version of the page in another tab may have the database.
        blocking: (_, __, event) => (event.target as IDBDatabase).close(),
      });
      return await Promise.race([opening, silence]);
    } catch (error) {
      console.warn("conversations cannot be kept:", error);
      void opening?.then(
        (late) => late.close(),
        () => undefined,
      );
      return undefined;
    } finally {
      stop();
    }
  }

  /** iOS closes the database of a tab that was put aside: it is opened again, once for all that find it closed. */
  private async using<T>(action: (database: IDBPDatabase<Schema>) => Promise<T>): Promise<T | undefined> {
    const { database } = this;
    if (!database) return undefined;
    try {
      return await action(database);
    } catch (error) {
      if (!CLOSED.includes((error as Error)?.name)) throw error;
      if (this.database === database) this.reconnecting ??= this.connect();
      const again = await this.reconnecting;
      this.reconnecting = undefined;
      if (again) this.database = again;
      if (this.database === database) throw error; // a newer version of the page has it, say
      return action(this.database!);
    }
  }

  /** All conversations, the latest first. */
  async all(): Promise<Conversation[]> {
    await this.takeUnsaved();
    const found = (await this.using((database) => database.getAll(TABLE))) ?? [];
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
    const found = await this.using((database) => database.get(TABLE, id));
    return isConversation(found) ? wellFormed(found) : undefined;
  }

  async save(...conversations: Conversation[]): Promise<void> {
    if (!this.database) return;
    const copies = structuredClone(conversations);
    const media = copies.flatMap(mediaIdsOf).filter((id) => this.media.has(id));
    await this.using(async (database) => {
      const writing = database.transaction([TABLE, MEDIA], "readwrite"); // all of them, or none
      const kept = writing.objectStore(MEDIA);
      const keep = async (id: string) => {
        if (!(await kept.getKey(id))) await kept.put({ id, blob: this.media.get(id)! });
      };
      const table = writing.objectStore(TABLE);
      await Promise.all([...copies.map((each) => table.put(each)), ...media.map(keep), writing.done]);
    });
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
    const blob = (await this.using((database) => database.get(MEDIA, id)))?.blob;
    if (!(blob instanceof Blob)) return undefined;
    this.media.set(id, blob);
    return blob;
  }

  /** How many pictures and sounds are kept, and their bytes. */
  async mediaSize(): Promise<{ count: number; bytes: number }> {
    const kept = (await this.using((database) => database.getAll(MEDIA))) ?? [];
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
    await this.using(async (database) => {
      const writing = database.transaction([TABLE, MEDIA], "readwrite");
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
    });
    this.tell({ kind: "removed", ids: [id] });
  }

  /** `media`: those of the chats, which are let go of; others belong to a message to come. */
  async clear(media: string[]): Promise<void> {
    await this.using(async (database) => {
      const writing = database.transaction([TABLE, MEDIA], "readwrite");
      await Promise.all([writing.objectStore(TABLE).clear(), writing.objectStore(MEDIA).clear(), writing.done]);
    });
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
