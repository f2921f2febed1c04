// Keeps how long a step takes on a device with a package, ahead of the client and alone: the next load chooses by it where
// the table of per-layer embeddings lies.
import { hexDigest, keep, type Store } from "../kept";
import type { AdapterText } from "../selftest/known_answers";
import { CACHE } from "./kept_choice";
import type { Pace } from "./table_place";

// The Cache API takes addresses only. This host cannot exist (RFC 2606), and nothing asks for it.
const ADDRESS = "https://paces.invalid/";
/** Browsers and drivers change. */
const KEPT_MS = 30 * 24 * 3600 * 1000;
const MOST = 64;
const LONGEST_MS = 1e6;

const isTime = (value: unknown): value is number => typeof value === "number" && value > 0 && value < LONGEST_MS;

export class KeptPace {
  private constructor(
    private readonly cache: Cache,
    private readonly key: string,
  ) {}

  /** The place of a package's pace on a device; undefined where nothing can be kept. */
  static async open(
    folder: string,
    { vendor, architecture, device, description }: AdapterText,
    userAgent: string,
    store: Store | undefined,
  ): Promise<KeptPace | undefined> {
    try {
      const digest = await hexDigest(JSON.stringify([folder, vendor, architecture, device, description, userAgent]));
      return store && new KeptPace(await store.open(CACHE), ADDRESS + digest);
    } catch {
      return undefined;
    }
  }

  async read(now: number): Promise<Pace | undefined> {
    try {
      const text = (await (await this.cache.match(this.key))?.text()) ?? "null";
      const { stepMs, aloneMs, at } = (JSON.parse(text) ?? {}) as Partial<Pace & { at: number }>;
      if (!isTime(stepMs) || !isTime(aloneMs) || typeof at !== "number") return undefined;
      return at <= now && now < at + KEPT_MS ? { stepMs, aloneMs } : undefined;
    } catch {
      return undefined;
    }
  }

  async write({ stepMs, aloneMs }: Pace, now: number): Promise<void> {
    if (!isTime(stepMs) || !isTime(aloneMs)) return;
    try {
      await keep(this.cache, this.key, JSON.stringify({ stepMs, aloneMs, at: now }), MOST);
    } catch {
      // Without room it is measured again.
    }
  }
}
