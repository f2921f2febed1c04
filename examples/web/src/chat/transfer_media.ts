// Pictures and sounds in files of chats, as base64 beside what a message says of them.
import { base64Of, bytesOf } from "../media/base64";
import { isOwnWav } from "../media/wav";
import { MIB } from "../package/units";
import { mediaIdsOf, mediaOf, type Attachment, type Conversation, type Message } from "./transcript";

/** Base64 takes a third more, and the texts need room, too: a file has at most 100 MiB. */
const MOST_BYTES = 64 * MIB;
/** Some systems give a picture's file no type: browsers look into it, as importing does. */
const TYPES = { picture: /^(image\/(?!svg)[\w.+-]+)?$/, sound: /^audio\/wav$/ };

export type BlobOf = (id: string) => Promise<Blob | undefined>;

/** The chats with the bytes of their pictures and sounds; without, where those are more than a file holds. */
export async function withMedia(
  conversations: readonly Conversation[],
  blobOf: BlobOf,
): Promise<{ conversations: Conversation[]; leftOut: boolean }> {
  const blobs = new Map<string, Blob>();
  for (const id of conversations.flatMap(mediaIdsOf)) {
    const blob = await blobOf(id);
    if (blob) blobs.set(id, blob);
  }
  const bytes = [...blobs.values()].reduce((sum, { size }) => sum + size, 0);
  if (bytes > MOST_BYTES) return { conversations: [...conversations], leftOut: true };
  const data = new Map<string, object>();
  for (const [id, blob] of blobs) data.set(id, { type: blob.type, data: await base64Of(blob) });
  const write = (message: Message): Message =>
    mediaOf(message).length
      ? ({ ...message, media: mediaOf(message).map((each) => ({ ...each, ...data.get(each.id) })) } as Message)
      : message;
  return {
    conversations: conversations.map((each) => ({ ...each, messages: each.messages.map(write) })),
    leftOut: false,
  };
}

/** The bytes of an attachment in a file; undefined: the file has none. Throws what is wrong with them. */
export function readData(kind: Attachment["kind"], type: unknown, data: unknown): Blob | undefined {
  if (data === undefined) return undefined;
  if (typeof type !== "string" || !TYPES[kind].test(type)) throw new Error("type is unknown");
  const bytes = typeof data === "string" ? bytesOf(data) : undefined;
  if (!bytes?.length) throw new Error("data is no base64");
  if (kind === "sound" && !isOwnWav(bytes)) throw new Error("data is no sound of this page, or cut off");
  return new Blob([bytes], { type });
}
