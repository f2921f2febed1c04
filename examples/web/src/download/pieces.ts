// The bytes of a body, through a few buffers that are used again: a new one for each piece would stay until the browser
// collects its garbage, which is a hundred megabytes later.
import { unlessStalled } from "../patience";

const BUFFER_BYTES = 256 * 1024;
/** Who takes a piece has copied it before asking for the next one; the others are for a browser that is one behind. */
const BUFFERS = 3;
/**
 * Whoever reads now. Chromium collects the body of a stored answer together with its reader while a read waits for the disk, if
 * nothing else holds them, and neither bytes nor an error come then.
 */
const reading = new Set<Reader>();

/** A piece is right until the third one after it. Whoever ends early ends the body. Throws Stalled where nothing comes. */
export async function* piecesOf(
  body: ReadableStream<Uint8Array<ArrayBuffer>>,
): AsyncGenerator<Uint8Array<ArrayBuffer>, void, void> {
  const read = readerOf(body);
  reading.add(read);
  try {
    for (;;) {
      const piece = await unlessStalled(read.next());
      if (!piece) return;
      yield piece;
    }
  } finally {
    reading.delete(read);
    void read.cancel().catch(() => undefined);
  }
}

interface Reader {
  next(): Promise<Uint8Array<ArrayBuffer> | undefined>;
  cancel(): Promise<void>;
}

function readerOf(body: ReadableStream<Uint8Array<ArrayBuffer>>): Reader {
  let bytes: ReadableStreamBYOBReader;
  try {
    bytes = body.getReader({ mode: "byob" });
  } catch {
    const reader = body.getReader(); // a browser whose bodies fill no buffers
    return { next: async () => (await reader.read()).value, cancel: () => reader.cancel() };
  }
  const free = Array.from({ length: BUFFERS }, () => new ArrayBuffer(BUFFER_BYTES));
  const next = async () => {
    const { done, value } = await bytes.read(new Uint8Array(free.shift()!));
    if (value) free.push(value.buffer as ArrayBuffer);
    return done ? undefined : (value as Uint8Array<ArrayBuffer>);
  };
  return { next, cancel: () => bytes.cancel() };
}
