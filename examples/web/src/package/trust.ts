// Which packages a link opens unasked, and what is remembered of those that a person agreed to.
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
 * Whether a link may open a package: it is of the page's own host, or the one that the person opened before.
 *
 * `stored`: the folders of which anything is stored.
 */
export function knows(kept: Kept, pack: Found, stored: readonly string[], own?: string): boolean {
  if (isOwn(pack, own)) return true;
  const agreed = Object.hasOwn(kept.agreed, pack.url) ? kept.agreed[pack.url] : undefined;
  if (agreed !== undefined) return agreed === pack.digest;
  // Opened before hashes were remembered.
  return [kept.known, kept.accepted, stored].some((urls) => urls.includes(pack.url));
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
