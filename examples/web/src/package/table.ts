// Where a package's table of per-layer embeddings is to lie: on the graphics device, or in a file of the browser's.
import { chooseTablePlace } from "gemma4-web/choose";
import type { Package, TableWish } from "./package";
import { neededMemory } from "./requirements";

interface Wishes {
  table: TableWish;
  /** Graphics memory that the person allows, in bytes; 0: no limit. */
  allowedMemory: number;
  /** With gemma4-web between the client and the device, which brings the rows. */
  fast: boolean;
}

/** The package with the place of its table. */
export async function withTable(
  pack: Package,
  { table, allowedMemory, fast }: Wishes,
  context: number,
): Promise<Package> {
  const savedBytes = pack.requirements.hostTableBytes;
  if (!savedBytes) return pack;
  const { table: _, ...whole } = pack;
  if (!fast) {
    const why = "only fast decoding brings rows from elsewhere";
    return { ...whole, table: { place: "device", why, savedBytes, wish: table } };
  }
  const found = await chooseTablePlace(pack.url, undefined, {
    ...(table !== "auto" && { place: table }),
    memoryBytes: allowedMemory,
    drafts: pack.drafter.size > 0,
    needs: { neededBytes: neededMemory(whole, context), savedBytes },
  });
  return { ...whole, table: { ...found, wish: table } };
}
