// Which packages open unasked, and what is remembered of those that a person agreed to.
import type { Settings } from "../chat/settings";
import { hubModelOf } from "./address";
import type { Package } from "./package";

const MOST_KNOWN = 100;

type Kept = Pick<Settings, "known" | "agreed" | "accepted">;
type Found = Pick<Package, "url" | "digest" | "redirectedTo">;

/** Whether a package comes from where the page does: an address of this host may lead on to another one. */
export function isOwn({ url, redirectedTo }: Pick<Found, "url" | "redirectedTo">, own = location.origin): boolean {
  return new URL(url).origin === own && redirectedTo === undefined;
}

/** Whose package it is, beside the name that it gives itself; nothing for the page's own host. */
export function placeOf(pack: Pick<Found, "url" | "redirectedTo">, own?: string): string {
  if (isOwn(pack, own)) return "";
  const hosted = hubModelOf(pack.url);
  return hosted ? `from ${hosted.id} on the hub` : `from ${pack.redirectedTo ?? new URL(pack.url).host}`;
}

/**
 * Whether a package may open by itself: it is of the page's own host, or the one that the person agreed to.
 *
 * `isHere`: whether its small files are kept (`isKept` of cache.ts). Both have to say so. What the settings say may be what
 * they said before the package was removed: a page that starts right after may read localStorage as it was, and another tab
 * writes what it has read. And a file alone is nobody's agreement: it may have come after the removal.
 */
export function knows(kept: Kept, pack: Found, isHere: boolean, own?: string): boolean {
  if (isOwn(pack, own)) return true;
  if (!isHere) return false;
  const agreed = Object.hasOwn(kept.agreed, pack.url) ? kept.agreed[pack.url] : undefined;
  if (agreed !== undefined) return agreed === pack.digest;
  // Opened before hashes were remembered.
  return kept.known.includes(pack.url) || kept.accepted.includes(pack.url);
}

/** What to keep of a package that the person opened: the latest ones, with their hashes. */
export function remembered({ known, agreed }: Kept, { url, digest }: Found): Pick<Settings, "known" | "agreed"> {
  const latest = [url, ...known.filter((each) => each !== url)].slice(0, MOST_KNOWN);
  const hashes = new Map(Object.entries(agreed)).set(url, digest);
  return { known: latest, agreed: Object.fromEntries([...hashes].filter(([each]) => latest.includes(each))) };
}

/** The same without what was remembered of one. */
export function forgotten({ known, agreed, accepted }: Kept, url: string): Kept {
  const others = (urls: string[]) => urls.filter((each) => each !== url);
  const hashes = Object.entries(agreed).filter(([each]) => each !== url);
  return { known: others(known), accepted: others(accepted), agreed: Object.fromEntries(hashes) };
}
