// Which tensors of a package are its table of per-layer embeddings, by the list that the client loads it by.

/** A tensor of the table. */
export interface Piece {
  readonly name: string;
  readonly shape: readonly number[];
  readonly nbytes: number;
}

const INDEX_FILE = "tensor-cache.json";
const TABLE = "embed_tokens_per_layer.";

/** How a file comes; by default by `fetch`. */
type FetchFile = (url: string) => Promise<Response>;

/** The server's, and without one the client's copy. */
async function fetched(url: string): Promise<Response> {
  return fetch(url).catch(async (error: unknown) => {
    const kept = typeof caches === "undefined" ? undefined : await caches.match(url);
    if (kept) return kept;
    throw error;
  });
}

/** Throws where the package has no table, or where another of its tensors could be taken for one of the table's. */
export async function readPieces(packageUrl: string, get: FetchFile = fetched): Promise<Piece[]> {
  const url = `${packageUrl.endsWith("/") ? packageUrl : `${packageUrl}/`}${INDEX_FILE}`;
  const response = await get(url);
  if (!response.ok) throw new Error(`${url}: the server answered ${response.status}`);
  const { records } = ((await response.json()) ?? {}) as { records?: { records?: (Piece & { format?: string })[] }[] };
  if (!Array.isArray(records)) throw new Error(`${url} lists no shards`);
  const all = records.flatMap((shard) => shard?.records ?? []);
  const pieces = all.filter(({ name }) => String(name).startsWith(TABLE));
  if (pieces.length === 0) throw new Error("the package has no table of per-layer embeddings");
  const isSize = (value: unknown) => Number.isSafeInteger(value) && (value as number) > 0;
  for (const { name, shape, nbytes, format } of pieces) {
    const isPlain = format === "raw" && Array.isArray(shape) && shape.every(isSize) && isSize(nbytes);
    if (!isPlain || nbytes % shape[0]! !== 0)
      throw new Error(`${url}: ${name}: expected rows of whole bytes, stored raw`);
  }
  const shapes = new Set(pieces.map(({ shape }) => String(shape)));
  const other = all.find(({ name, shape }) => !String(name).startsWith(TABLE) && shapes.has(String(shape)));
  if (other) throw new Error(`${other.name} has the shape of a tensor of the table: they cannot be told apart`);
  return pieces.map(({ name, shape, nbytes }) => ({ name, shape, nbytes }));
}
