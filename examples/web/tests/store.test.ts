// A database that says nothing, and one that the browser closes while its tab is put aside.
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { Store } from "../src/chat/store";
import { newConversation } from "../src/chat/transcript";

// Classes that idb knows things by: it remembers the first ones that it sees.
class FakeRequest extends EventTarget {
  constructor(readonly result: unknown) {
    super();
  }
}
class FakeStore {
  constructor(private readonly table: Map<string, unknown>) {}

  put(value: { id: string }): FakeRequest {
    const request = new FakeRequest(void this.table.set(value.id, value));
    queueMicrotask(() => request.dispatchEvent(new Event("success")));
    return request;
  }
}
class FakeTransaction extends EventTarget {
  constructor(private readonly table: Map<string, unknown>) {
    super();
    setTimeout(() => this.dispatchEvent(new Event("complete")));
  }

  objectStore(): FakeStore {
    return new FakeStore(this.table);
  }
}
/** `isClosed` as iOS leaves one. */
class FakeDatabase extends EventTarget {
  private isClosed = false;

  constructor(private readonly table: Map<string, unknown>) {
    super();
  }

  close(): void {
    this.isClosed = true;
  }

  transaction(): FakeTransaction {
    if (this.isClosed) throw new DOMException("The database connection is closing.", "InvalidStateError");
    return new FakeTransaction(this.table);
  }
}
const KNOWN = {
  IDBDatabase: FakeDatabase,
  IDBTransaction: FakeTransaction,
  IDBRequest: FakeRequest,
  IDBObjectStore: FakeStore,
  IDBIndex: class {},
  IDBCursor: class {},
};

let table: Map<string, unknown>;
let opened: FakeDatabase[];
/** What an opening does: brings a database, says that somebody is in the way, or nothing. */
let answers: ("success" | "blocked" | "nothing")[];

beforeEach(() => {
  [table, opened, answers] = [new Map(), [], []];
  for (const [name, known] of Object.entries(KNOWN)) vi.stubGlobal(name, known);
  vi.stubGlobal(
    "BroadcastChannel",
    class {
      postMessage(): void {}
    },
  );
  vi.stubGlobal("indexedDB", {
    open: () => {
      const database = new FakeDatabase(table);
      const request = new FakeRequest(database);
      const answer = answers.shift() ?? "success";
      if (answer === "success") opened.push(database);
      if (answer !== "nothing") queueMicrotask(() => request.dispatchEvent(new Event(answer)));
      return request;
    },
  });
  vi.spyOn(console, "warn").mockImplementation(() => undefined);
});
afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
  vi.unstubAllGlobals();
});

it("opens again what the browser has closed, and keeps the chat", async () => {
  const store = await Store.open(vi.fn());
  expect(store.lasting).toBe(true);
  opened[0]!.close();
  const [first, second] = [newConversation(), newConversation()];
  await Promise.all([store.save(first), store.save(second)]);
  expect([...table.keys()].sort()).toEqual([first.id, second.id].sort());
  expect(opened).toHaveLength(2);
});

it("says that a chat is not kept where the database stays closed", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const store = await Store.open(vi.fn());
  opened[0]!.close();
  answers = ["nothing"];
  const saved = store.save(newConversation()).catch((error: Error) => error.name);
  await vi.advanceTimersByTimeAsync(60_000);
  expect(await saved).toBe("InvalidStateError");
});

it("does without a database where there is none", async () => {
  vi.stubGlobal("indexedDB", undefined);
  expect((await Store.open(vi.fn())).lasting).toBe(false);
});

it("does without a database that says nothing", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  answers = ["nothing"];
  const opening = Store.open(vi.fn());
  await vi.advanceTimersByTimeAsync(60_000);
  expect((await opening).lasting).toBe(false);
});

it("waits for the person where another tab is in the way, of which they are told", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  answers = ["blocked"];
  const [onBlocked, isOpen] = [vi.fn(), vi.fn()];
  void Store.open(onBlocked).then(isOpen);
  await vi.advanceTimersByTimeAsync(600_000);
  expect(onBlocked).toHaveBeenCalledOnce();
  expect(isOpen).not.toHaveBeenCalled();
});
