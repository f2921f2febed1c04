// Files of a package, read no further than they may be long.
import type { Store } from "../kept";
import { CACHE } from "./kept_choice";

const LARGEST_PROVENANCE = 1 << 24;

export type Fetch = (url: string) => Promise<Response>;

/** The client's way: files lie below `resolve/main/`, unless the address names a revision itself. */
export function folderOf(url: string): string {
  const folder = new URL(url.endsWith("/") ? url : `${url}/`, globalThis.location?.href).href;
  return /\/resolve\/[^/]+\//.test(folder) ? folder : `${folder}resolve/main/`;
}

/** The bytes of an answer; throws for a refusal, and for more bytes than `most`. */
export async function readBounded(response: Response, most: number): Promise<Uint8Array<ArrayBuffer>> {
  if (!response.ok || !response.body) throw new Error(`${response.url} answers ${response.status}`);
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let length = 0;
  for (const reader = response.body.getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) break;
    length += value.length;
    if (length > most) {
      await reader.cancel();
      throw new Error(`${response.url} is larger than ${most} bytes`);
    }
    parts.push(value as Uint8Array<ArrayBuffer>);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

/** Whether a file is stored, by the client or by the page. */
export async function isStored(url: string, store: Partial<Pick<CacheStorage, "match">> | undefined): Promise<boolean> {
  return (await store?.match?.(url).catch(() => undefined)) !== undefined;
}

/** A package's provenance from its server; where that cannot be reached, as it was when it last could (`isKept`). */
export async function keptProvenance(
  url: string,
  get: Fetch,
  store: Store | undefined,
): Promise<{ text: string; isKept: boolean }> {
  const cache = await store?.open(CACHE).catch(() => undefined);
  let bytes: Uint8Array<ArrayBuffer>;
  try {
    const response = await get(url).catch(() => undefined);
    if (!response) {
      const kept = await cache?.match(url);
      if (!kept) throw new Error(`${url} cannot be reached.`);
      return { text: await kept.text(), isKept: true };
    }
    bytes = await readBounded(response, LARGEST_PROVENANCE);
  } catch (error) {
    throw new Error(`${(error as Error).message} Give the address of a package of gemma4-compile.`);
  }
  await cache?.put(url, new Response(bytes)).catch(() => undefined); // no room: there is no start without the network
  return { text: new TextDecoder().decode(bytes), isKept: false };
}
