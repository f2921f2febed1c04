// Keeps what was chosen for a package on a device, so that it is measured once. A choice is renewed when the package's
// libraries, the device or the browser changes, and after a while: browsers do not tell the driver's version.
import { hexDigest, keep, type Store } from "../kept";
import type { AdapterText } from "../selftest/known_answers";
import type { WebLibrary } from "./provenance";

/** The cache's name. */
export const CACHE = "gemma4-choices";
// The Cache API takes addresses only. This host cannot exist (RFC 2606), and nothing asks for it.
const ADDRESS = "https://choices.invalid/";
const DAY_MS = 24 * 3600 * 1000;
const KEPT_MS = 30 * DAY_MS;
/** Of a choice without a measurement. */
const KEPT_UNMEASURED_MS = DAY_MS;
const MOST = 64;
const LONGEST = 4000;
const MOST_LEFT = 64;

export interface Kept {
  name: string;
  why: string;
  /** Whether it was timed: a choice that was made because time was up is not kept for long. */
  isMeasured: boolean;
  /** Names of those for which there was no time. */
  left: readonly string[];
  /** In how many starts the libraries were measured. */
  starts: number;
}

interface Stored extends Kept {
  at: number;
}

export class KeptChoice {
  private constructor(
    private readonly cache: Cache,
    private readonly key: string,
  ) {}

  /** The place of a choice among libraries on a device; undefined where nothing can be kept. */
  static async open(
    libraries: readonly WebLibrary[],
    { vendor, architecture, device, description }: AdapterText,
    traits: unknown,
    userAgent: string,
    store: Store | undefined,
  ): Promise<KeptChoice | undefined> {
    try {
      const files = libraries.map(({ name, sha256, needs }) => [name, sha256, needs]);
      const digest = await hexDigest(
        JSON.stringify([files, vendor, architecture, device, description, traits, userAgent]),
      );
      return store && new KeptChoice(await store.open(CACHE), ADDRESS + digest);
    } catch {
      return undefined;
    }
  }

  async read(now: number): Promise<Kept | undefined> {
    try {
      const found = JSON.parse((await (await this.cache.match(this.key))?.text()) ?? "null") as Partial<Stored> | null;
      const { name, why, at, isMeasured, left, starts } = found ?? {};
      if (typeof name !== "string" || typeof why !== "string" || typeof at !== "number") return undefined;
      const lasts = isMeasured === true ? KEPT_MS : KEPT_UNMEASURED_MS;
      if (at > now || now >= at + lasts) return undefined;
      return {
        name,
        why: why.slice(0, LONGEST),
        isMeasured: isMeasured === true,
        left: Array.isArray(left) ? left.slice(0, MOST_LEFT) : [],
        starts: typeof starts === "number" ? starts : 1,
      };
    } catch {
      return undefined;
    }
  }

  /** Keeps a choice, and forgets the oldest of too many. */
  async write({ name, why, isMeasured, left, starts }: Kept, now: number): Promise<void> {
    try {
      const stored: Stored = { name, why, isMeasured, left, starts, at: now };
      await keep(this.cache, this.key, JSON.stringify(stored), MOST);
    } catch {
      // Without room it is measured again.
    }
  }
}

/** A library turned out to be wrong: whatever was chosen is measured again. */
export async function forgetChoices(store: Store | undefined = globalThis.caches): Promise<void> {
  try {
    const cache = await store?.open(CACHE);
    for (const key of (await cache?.keys()) ?? []) if (key.url.startsWith(ADDRESS)) await cache?.delete(key);
  } catch {
    // Nothing is kept where nothing can be.
  }
}
