import { afterEach, describe, expect, it, vi } from "vitest";
import { Session } from "../src/chat/session";
import { settingsFrom } from "../src/chat/settings";
import type { Store } from "../src/chat/store";
import { newConversation, newUserMessage } from "../src/chat/transcript";
import { MeaningLoader } from "../src/meaning_loader";
import { MOST_PASSAGES, passagesOf, split, type Passage } from "../src/meaning/passages";
import { nearest } from "../src/meaning/ranking";
import { MeaningSearch, type Embeds } from "../src/meaning/search";
import { MeaningStore } from "../src/meaning/store";

describe("passages", () => {
  it("are paragraphs, and sentences where a paragraph is long", () => {
    expect(split("One.\nStill one.\n\nTwo.")).toEqual(["One. Still one.", "Two."]);
    expect(split("First one. Second one. Third.", 22)).toEqual(["First one. Second one.", "Third."]);
  });

  it("hold every word of the text, in its order, and none is too long", () => {
    const words = Array.from({ length: 400 }, (_, at) => `${"w".repeat(1 + (at % 9))}${at}${at % 7 ? "" : "."}`);
    const passages = split(words.join(" "), 50);
    expect(passages.join(" ")).toBe(words.join(" "));
    expect(Math.max(...passages.map(({ length }) => length))).toBeLessThanOrEqual(50);
  });

  it("part no character of a text without spaces", () => {
    const passages = split("🐟".repeat(60), 25);
    expect(passages.join("")).toBe("🐟".repeat(60));
    for (const each of passages) expect(each.length).toBeLessThanOrEqual(25);
    for (const each of passages) expect(() => encodeURIComponent(each)).not.toThrow(); // it takes whole pairs only
  });

  it("are of documents and chats, each once, and no more than can be searched", () => {
    const chat = { ...newConversation(), messages: [newUserMessage("A red ball.\n\nA blue hat.")] };
    const notes = { id: "d", name: "notes.txt", text: "A red ball.", added: 0 };
    expect(passagesOf([notes], [chat])).toEqual([
      { text: "A red ball.", title: "notes.txt" },
      { text: "A blue hat.", title: "A red ball. A blue hat.", conversation: chat.id },
    ]);
    const long = Array.from({ length: MOST_PASSAGES + 5 }, (_, at) => `Line ${at}.`).join("\n\n");
    expect(passagesOf([{ ...notes, text: long }], [chat])).toHaveLength(MOST_PASSAGES);
  });
});

describe("ranking", () => {
  it("finds what sorting all cosines finds", () => {
    let state = 7;
    const random = () => {
      state = (state * 16807) % 2147483647;
      return (state / 2147483647) * 2 - 1;
    };
    const rows = Array.from({ length: 50 }, () => Float32Array.from({ length: 8 }, random));
    const query = Float32Array.from({ length: 8 }, random);
    const all = rows.map((row, index) => ({
      index,
      cosine: row.reduce((sum, value, at) => sum + value * query[at]!, 0),
    }));
    const sorted = all.toSorted((a, b) => b.cosine - a.cosine).slice(0, 5);
    const vectors = Float32Array.from(rows.flatMap((row) => [...row]));
    expect(nearest(vectors, query, 5).map(({ index }) => index)).toEqual(sorted.map(({ index }) => index));
    expect(nearest(vectors.slice(0, 16), query, 5)).toHaveLength(2);
    expect(nearest(new Float32Array(), query, 5)).toEqual([]);
  });
});

/** Finds texts by the letters that they share with the query. */
class Letters implements Embeds {
  readonly version = "1";
  readonly embedded: string[] = [];
  private held: Float32Array = new Float32Array();

  async embed(texts: string[]): Promise<Float32Array[]> {
    this.embedded.push(...texts);
    return texts.map((text) => {
      const counts = Float32Array.from("abcdefgh", (letter) => text.split(letter).length - 1);
      const length = Math.hypot(...counts) || 1;
      return counts.map((count) => count / length);
    });
  }

  async hold(vectors: Float32Array): Promise<void> {
    this.held = vectors;
  }

  async find(text: string, count: number) {
    const [query] = await this.embed([text]);
    return nearest(this.held, query!, count);
  }
}

describe("search by meaning", () => {
  const passages = (...texts: string[]): Passage[] => texts.map((text) => ({ text, title: "t" }));
  const prompts = { query: "Q ", document: "D " };

  it("embeds each text once, with the model's prompts, and forgets those that are gone", async () => {
    const store = await MeaningStore.open(); // Node has no database: it lives as long as the test
    const letters = new Letters();
    const search = new MeaningSearch(letters, prompts, store);
    const counts: number[][] = [];
    const report = (done: number, all: number) => void counts.push([done, all]);
    const first = await search.find(passages("aab", "cc", "aab"), "a", 2, report);
    expect(first.map(({ text }) => text)).toEqual(["aab", "aab"]);
    expect(letters.embedded).toEqual(["D cc", "D aab", "Q a"]);
    expect(counts).toEqual([[0, 2]]);
    const [best] = await search.find(passages("cc", "hh"), "h", 1);
    expect(best).toMatchObject({ text: "hh", title: "t" });
    expect(letters.embedded.slice(3)).toEqual(["D hh", "Q h"]);
    expect([...(await store.vectors("1")).keys()]).toEqual(["cc", "hh"]);
  });

  it("takes no vector of another model, also without a database", async () => {
    const store = await MeaningStore.open();
    await store.addVectors("0", new Map([["aab", Float32Array.of(1)]]));
    await new MeaningSearch(new Letters(), prompts, store).find(passages("aab"), "a", 1);
    expect([...(await store.vectors("1")).values()].map(({ length }) => length)).toEqual([8]);
    expect(await store.texts()).toMatchObject([{ version: "1", text: "aab" }]);
  });

  it("goes on where there is no room for vectors", async () => {
    const transaction = () => {
      throw new DOMException("no room", "QuotaExceededError");
    };
    const full = { getAll: async () => [], getAllKeys: async () => [], transaction };
    const store = Object.assign(await MeaningStore.open(), { database: full });
    const letters = new Letters();
    const search = new MeaningSearch(letters, prompts, store);
    expect(await search.find(passages("aab", "cc"), "c", 1)).toMatchObject([{ text: "cc" }]);
    expect(await search.find(passages("aab", "cc", "dd"), "d", 1)).toMatchObject([{ text: "dd" }]);
    expect(letters.embedded.filter((text) => text.startsWith("D ")).sort()).toEqual(["D aab", "D cc", "D dd"]);
  });

  it("finds nothing where there is nothing", async () => {
    const search = new MeaningSearch(new Letters(), prompts, await MeaningStore.open());
    expect(await search.find([], "a", 3)).toEqual([]);
  });
});

describe("the model that searches", () => {
  const session = { settings: {}, changeSettings: vi.fn() } as unknown as Session;
  afterEach(() => vi.unstubAllGlobals());

  it.each([
    ["stopped", (loader: MeaningLoader) => loader.stop()],
    ["replaced", (loader: MeaningLoader) => void loader.check("another.example/folder")],
  ])("is no failure where its download is %s", async (_, end) => {
    vi.stubGlobal("document", { baseURI: "https://x.y/" });
    const events = { state: vi.fn(), failed: vi.fn() };
    const loader = await MeaningLoader.open(session, events);
    const forEver = () => new Promise(() => undefined);
    const load = () => new Promise((_, reject) => (fail = () => reject(new DOMException("ended", "AbortError"))));
    let fail: () => void = () => undefined;
    Object.assign(loader, { load, look: forEver });
    const started = loader.start();
    end(loader);
    fail();
    await started;
    expect(events.failed).not.toHaveBeenCalled();
  });

  it("ends before its files are removed, and its memory is not counted any more", async () => {
    const settings = { embedder: "https://x.y/e/", embedderBytes: 9 };
    const changeSettings = (values: object) => void Object.assign(settings, values);
    const own = { settings, changeSettings } as unknown as Session;
    const loader = await MeaningLoader.open(own, { state: vi.fn(), failed: vi.fn() });
    let isWriting = true;
    const load = async () => {
      await new Promise((resolve) => (end = resolve));
      isWriting = false;
    };
    let end: (value?: unknown) => void = () => undefined;
    Object.assign(loader, { load, pack: { url: "https://x.y/e/" } });
    void loader.start();
    await loader.removing("https://x.y/another/");
    expect(settings.embedderBytes).toBe(9);
    const removing = loader.removing().then(() => expect(isWriting).toBe(false));
    expect(settings).toEqual({ embedder: "", embedderBytes: 0 });
    end();
    await removing;
    expect(settings).toEqual({ embedder: "", embedderBytes: 0 });
  });

  it("counts no memory where its files are gone", async () => {
    vi.stubGlobal("caches", { open: async () => ({ match: async () => undefined }) });
    const changeSettings = vi.fn();
    const own = { settings: { embedder: "https://x.y/e/" }, changeSettings } as unknown as Session;
    await (await MeaningLoader.open(own, { state: vi.fn(), failed: vi.fn() })).resume();
    expect(changeSettings).toHaveBeenCalledExactlyOnceWith({ embedderBytes: 0 });
  });

  it("leaves nothing of chats and documents that are deleted", async () => {
    const chat = { ...newConversation(), messages: [newUserMessage("A secret of the chat.")] };
    const stays = { ...newConversation(), messages: [newUserMessage("A text that stays.")] };
    const of = { conversations: [chat, stays] };
    const loader = await MeaningLoader.open(of as unknown as Session, { state: vi.fn(), failed: vi.fn() });
    const { store } = loader as unknown as { store: MeaningStore };
    await loader.addDocuments([new File(["A secret of the document."], "notes.txt")]);
    await new MeaningSearch(new Letters(), { query: "", document: "" }, store).find(
      passagesOf(await loader.documents(), of.conversations),
      "a",
      1,
    );
    expect(await store.texts()).toHaveLength(3);
    await loader.removeDocument((await loader.documents())[0]!.id);
    expect([...(await store.vectors("1")).keys()].sort()).toEqual(["A secret of the chat.", "A text that stays."]);
    of.conversations = [stays];
    await loader.tidy();
    expect([...(await store.vectors("1")).keys()]).toEqual(["A text that stays."]);
  });

  it("hears of chats that are deleted, here and in another tab", async () => {
    let hear: (change: { kind: "removed"; ids: string[] }) => void = () => undefined;
    const watch = (heard: typeof hear) => (hear = heard);
    const all = async () => [newConversation(), newConversation()];
    const store = { watch, all, remove: async () => undefined } as unknown as Store;
    const events = new Proxy({ chatsRemoved: vi.fn() }, { get: (own, name) => Reflect.get(own, name) ?? vi.fn() });
    const session = new Session(store, settingsFrom({}), events as never);
    await session.restore();
    const [first, second] = session.ids as [string, string];
    await session.remove(first);
    expect(events.chatsRemoved).toHaveBeenCalledTimes(1);
    hear({ kind: "removed", ids: [second] });
    await vi.waitFor(() => expect(events.chatsRemoved).toHaveBeenCalledTimes(2));
    expect(session.conversations).toEqual([]);
  });
});
