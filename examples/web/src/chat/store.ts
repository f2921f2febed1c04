// Conversations in IndexedDB, settings in localStorage.
import { openDB, type DBSchema, type IDBPDatabase } from "idb";
import type { Theme } from "../view/theme";
import { afterReload, isConversation, type Conversation } from "./transcript";

interface Schema extends DBSchema {
  conversations: { key: string; value: Conversation };
}

const DATABASE = "gemma4-chat";
const VERSION = 1;
const TABLE = "conversations";
const UNSAVED = "gemma4-unsaved";
const CHANNEL = "gemma4-chats";

/** What another tab did to the conversations. */
export type Change = { kind: "saved" | "removed"; ids: string[] } | { kind: "cleared" };

/** Keeps conversations. Where the browser refuses a database, they live as long as the page. */
export class Store {
  private readonly channel = new BroadcastChannel(CHANNEL);

  private constructor(private readonly database: IDBPDatabase<Schema> | undefined) {}

  /** Hears what other tabs change. */
  watch(hear: (change: Change) => void): void {
    this.channel.onmessage = ({ data }: MessageEvent<Change>) => hear(data);
  }

  /** Whether anything outlives the page. */
  get lasting(): boolean {
    return this.database !== undefined;
  }

  static async open(): Promise<Store> {
    try {
      const database = await openDB<Schema>(DATABASE, VERSION, {
        upgrade: (opened) => void opened.createObjectStore(TABLE, { keyPath: "id" }),
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
    return found
      .filter(isConversation)
      .map(afterReload)
      .sort((a, b) => b.updated - a.updated);
  }

  async get(id: string): Promise<Conversation | undefined> {
    const found = await this.database?.get(TABLE, id);
    return isConversation(found) ? found : undefined;
  }

  async save(...conversations: Conversation[]): Promise<void> {
    if (!this.database) return;
    const copies = structuredClone(conversations);
    const writing = this.database.transaction(TABLE, "readwrite"); // all of them, or none
    await Promise.all([...copies.map((each) => writing.store.put(each)), writing.done]);
    this.tell({ kind: "saved", ids: copies.map(({ id }) => id) });
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
    await this.database?.delete(TABLE, id);
    this.tell({ kind: "removed", ids: [id] });
  }

  async clear(): Promise<void> {
    await this.database?.clear(TABLE);
    this.tell({ kind: "cleared" });
  }

  private tell(change: Change): void {
    if (this.database) this.channel.postMessage(change);
  }
}

/** What a person chose; undefined means the package's own value. */
export interface Settings {
  theme: Theme;
  temperature?: number;
  topP?: number;
  repetitionPenalty?: number;
  maxTokens?: number;
  seed?: number;
  /** The system prompt of new chats. */
  system: string;
  /** Graphics memory that the page may take, in bytes; 0: no limit. */
  allowedMemory: number;
  /** Context lengths by package address. */
  context: Record<string, number>;
  /** Packages whose download was started: they go on without being asked again. */
  accepted: string[];
  lastPackage: string;
  /** Decode steps ahead of the client, by gemma4-web. */
  fast: boolean;
}

const SETTINGS = "gemma4-settings";
const DEFAULTS: Settings = {
  theme: "auto",
  system: "",
  allowedMemory: 0,
  context: {},
  accepted: [],
  lastPackage: "",
  fast: true,
};

export function loadSettings(): Settings {
  try {
    const kept = JSON.parse(localStorage.getItem(SETTINGS) ?? "{}") as Partial<Settings>;
    return { ...structuredClone(DEFAULTS), ...kept };
  } catch {
    return structuredClone(DEFAULTS); // damaged, or storage is off
  }
}

export function saveSettings(settings: Settings): void {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // Storage is off or full: the settings hold until the page is closed.
  }
}
