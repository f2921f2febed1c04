import { describe, expect, it } from "vitest";
import { readChatFile, type ReadMedium, toFile } from "../src/chat/transfer";
import { withMedia } from "../src/chat/transfer_media";
import { mediaIdsOf, newConversation, newReply, newUserMessage, type Conversation } from "../src/chat/transcript";
import { encodeWav } from "../src/media/wav";

function chat(title = ""): Conversation {
  const reply = {
    ...newReply(),
    state: "done" as const,
    rounds: [{ opened: "<|channel>thought\n", raw: "a<channel|>b", results: [{ name: "calculator", text: "27" }] }],
  };
  const stats = {
    promptTokens: 3,
    contextTokens: 9,
    tokens: 6,
    firstTokenSeconds: 0.25,
    tokensPerSecond: 40.5,
    tokensPerStep: 2.25,
    keptTokens: 48,
  };
  return {
    ...newConversation(1000),
    updated: 2000,
    title,
    system: "Be kind.",
    thinking: true,
    messages: [newUserMessage("Who?"), { ...reply, stats }],
  };
}

const sound = encodeWav(new Float32Array(3), 16_000);
const cutOff = btoa(String.fromCharCode(...new Uint8Array(sound, 0, 48)));
const file = (content: string | Uint8Array<ArrayBuffer>) => new File([content], "chats.json");
const withoutIds = (value: unknown) =>
  JSON.parse(JSON.stringify(value, (key, each) => (key === "id" ? undefined : each)));
// biome-ignore lint/suspicious/noExplicitAny: the tests break the file in ways that no type has
type Parsed = any;
const change = (edit: (data: Parsed) => void) => {
  const data = JSON.parse(toFile([chat(), chat()]).text);
  edit(data);
  return file(JSON.stringify(data));
};

describe("chats as files", () => {
  it("come back as they were, with ids of their own", async () => {
    const chats = [chat("One"), chat()];
    const read = await readChatFile(file(toFile(chats).text));
    expect(withoutIds(read)).toEqual(withoutIds(chats));
    const ids = [...chats, ...read].flatMap((each) => [each.id, ...each.messages.map(({ id }) => id)]);
    expect(new Set(ids).size).toBe(ids.length);
  });

  it("keep pictures and sounds, and say when those are left out", async () => {
    const blobs = new Map([
      ["p", new Blob(["picture"], { type: "image/png" })],
      ["s", new Blob([sound], { type: "audio/wav" })],
    ]);
    const made = chat("One");
    made.messages[0] = newUserMessage("", [
      { id: "p", kind: "picture", name: "cat.png", width: 3, height: 2 },
      { id: "s", kind: "sound", name: "beep.wav", seconds: 1.5 },
      { id: "gone", kind: "sound", name: "gone.wav", seconds: 1 },
    ]);
    const blobOf = (id: string) => Promise.resolve(blobs.get(id));
    const { conversations, leftOut } = await withMedia([made], blobOf);
    expect(leftOut).toBe(false);
    const taken: ReadMedium[] = [];
    const [read] = await readChatFile(file(toFile(conversations).text), (medium) => taken.push(medium));
    expect(withoutIds(read)).toEqual(withoutIds(made));
    expect(taken.map(({ id }) => id)).toEqual(mediaIdsOf(read!).slice(0, 2));
    expect(await taken[0]!.blob.text()).toBe("picture");
    expect(await taken[1]!.blob.arrayBuffer()).toEqual(sound);
    expect(taken.map(({ blob }) => blob.type)).toEqual(["image/png", "audio/wav"]);
    blobs.set("p", new Blob([new Uint8Array(65 * 2 ** 20)], { type: "image/png" }));
    const large = await withMedia([made], blobOf);
    expect(large).toEqual({ conversations: [made], leftOut: true });
  });

  it.each([
    [{ kind: "film", name: "x" }, /media\[0\]\.kind is unknown/],
    [{ kind: "picture" }, /media\[0\]\.name is missing/],
    [{ kind: "picture", name: "x", width: -1 }, /media\[0\]\.width is no number/],
    [{ kind: "picture", name: "x", type: "image/svg+xml", data: "AAAA" }, /media\[0\]\.type is unknown/],
    [{ kind: "picture", name: "x", type: "text/html", data: "AAAA" }, /media\[0\]\.type is unknown/],
    [{ kind: "sound", name: "x", type: "audio/wav", data: "?" }, /media\[0\]\.data is no base64/],
    [{ kind: "sound", name: "x", type: "audio/wav", data: 7 }, /media\[0\]\.data is no base64/],
    [{ kind: "sound", name: "x", type: "audio/wav", data: "AAAA" }, /media\[0\]\.data is no sound of this page/],
    [{ kind: "sound", name: "x", type: "audio/wav", data: btoa("RIFF".repeat(20)) }, /data is no sound of this page/],
    [{ kind: "sound", name: "x", type: "audio/wav", data: cutOff }, /data is no sound of this page, or cut off/],
  ])("with damaged media are refused: %j", async (medium, words) => {
    const damaged = change((data) => (data.conversations[1].messages[0].media = [medium]));
    await expect(readChatFile(damaged)).rejects.toThrow(words);
  });

  it.each([
    ["Über Bäume: ein Gespräch", "gemma4-chat-uber-baume-ein-gesprach-2026-11-22.json"],
    ["../../etc/passwd", "gemma4-chat-etc-passwd-2026-11-22.json"],
    ["木について", "gemma4-chat-木について-2026-11-22.json"],
    ["हिन्दी में", "gemma4-chat-हिन्दी-में-2026-11-22.json"],
    ["سؤال عن الطقس؟", "gemma4-chat-سؤال-عن-الطقس-2026-11-22.json"],
    ["𐤀".repeat(41), `gemma4-chat-${"𐤀".repeat(40)}-2026-11-22.json`],
    ["???", "gemma4-chat-untitled-2026-11-22.json"],
  ])("have names that every disk takes: %s", (title, name) =>
    expect(toFile([chat(title)], new Date("2026-11-22T12:00Z")).name.normalize("NFC")).toBe(name.normalize("NFC")),
  );

  it("may begin with a mark of the byte order", async () => {
    expect(await readChatFile(file(`\ufeff${toFile([chat()]).text}`))).toHaveLength(1);
  });

  it("lose what the page does not know, and halves of characters", async () => {
    const [read] = await readChatFile(
      change(({ conversations: [first] }) => {
        first.extra = 1;
        first.messages[0].text = "x\ud800y";
        first.title = "a\u202eb\n\tc";
        first.updated = 9e15;
        first.forgotten = 1;
      }),
    );
    expect(read).not.toHaveProperty("extra");
    expect(read).toMatchObject({ title: "ab c", forgotten: 0, messages: [{ text: "x\ufffdy" }, {}] });
    expect(read!.updated).toBeLessThanOrEqual(Date.now());
  });

  it("end with a reply: one that was never written is interrupted", async () => {
    const [read] = await readChatFile(change(({ conversations: [first] }) => first.messages.pop()));
    expect(read!.messages).toMatchObject([{ role: "user" }, { role: "assistant", state: "interrupted", rounds: [] }]);
  });

  it.each<[string, (data: Parsed) => void, RegExp]>([
    ["another schema", (data) => (data.schema = "x"), /no chats of this page/],
    ["a later version", (data) => (data.schema_version = 2), /version 2/],
    ["no version", (data) => delete data.schema_version, /version unknown/],
    ["a hole", (data) => (data.conversations[1] = null), /conversations\[1\] is no object/],
    ["a wrong number", (data) => (data.conversations[1].messages[1].stats.tokens = -1), /stats\.tokens is no number/],
    ["a missing text", (data) => delete data.conversations[0].messages[1].rounds[0].raw, /rounds\[0\]\.raw is missing/],
    ["a wrong turn", (data) => data.conversations[0].messages.reverse(), /messages\[0\]\.role should be user/],
  ])("are refused as a whole for %s", async (_, edit, words) => {
    await expect(readChatFile(change(edit))).rejects.toThrow(words);
  });

  it("of more than anybody says in a chat are refused", async () => {
    const long = "x".repeat(1_500_000);
    const question = () => [
      { role: "user", text: long },
      { role: "assistant", state: "done", rounds: [{ raw: "" }] },
    ];
    await expect(
      readChatFile(change(({ conversations: [first] }) => (first.messages = [...question(), ...question()]))),
    ).resolves.toHaveLength(2);
    await expect(
      readChatFile(
        change(({ conversations: [first] }) => (first.messages = [...question(), ...question(), ...question()])),
      ),
    ).rejects.toThrow(/4,000,000 characters in one chat/);
  });

  it("of deep nesting end as others do", async () => {
    await expect(readChatFile(file("[".repeat(200_000)))).rejects.toThrow(/no JSON|cannot be read/);
    await expect(readChatFile(file(`${"[".repeat(5000)}${"]".repeat(5000)}`))).rejects.toThrow(/no chats/);
  });

  it("of versions that no text can hold are refused in words", async () => {
    const deep = `${"[".repeat(1e5)}${"]".repeat(1e5)}`;
    for (const version of [deep, '{"a":1}', '"1"', "null", "2"]) {
      const text = `{"schema":"gemma4-chats","schema_version":${version},"conversations":[]}`;
      await expect(readChatFile(file(text))).rejects.toThrow(
        /is of version (unknown|2), and this page reads version 1/,
      );
    }
  });
});
