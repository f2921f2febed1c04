// What the module keeps between visits, in the Cache API: texts by the digest of what they are about.

/** Where it lies; tests make it up. */
export type Store = Pick<CacheStorage, "open">;

/** SHA-256 in hexadecimal digits. */
export async function hexDigest(data: string | Uint8Array<ArrayBuffer>): Promise<string> {
  const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Keeps a text as the newest, and forgets the oldest of too many; rejects where there is no room. */
export async function keep(cache: Cache, key: string, text: string, most: number): Promise<void> {
  await cache.delete(key);
  await cache.put(key, new Response(text));
  const keys = await cache.keys();
  for (const old of keys.slice(0, Math.max(0, keys.length - most))) await cache.delete(old);
}
