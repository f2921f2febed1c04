// Keeps that a device has passed, so that the test runs once for each device, browser and package. Browsers do not
// tell the driver's version; a result is therefore kept for a week only.
import { hexDigest, keep, type Store } from "../kept";
import type { KnownAnswers } from "./known_answer_format";
import type { AdapterText, Keeper } from "./known_answers";

const CACHE = "gemma4-known-answers";
// The Cache API takes addresses only. This host cannot exist (RFC 2606), and nothing asks for it.
const ADDRESS = "https://known-answers.invalid/";
const KEPT_MS = 7 * 24 * 3600 * 1000;
const MOST = 32;

export class PassedTests implements Keeper {
  private constructor(
    private readonly cache: Cache,
    private readonly key: string,
  ) {}

  /** What is kept of one package on one device; undefined where nothing can be kept, as in some private windows. */
  static async open(
    answers: Pick<KnownAnswers, "digest">,
    { vendor, architecture, device, description }: AdapterText,
    userAgent: string = globalThis.navigator?.userAgent ?? "",
    store: Store | undefined = globalThis.caches,
  ): Promise<PassedTests | undefined> {
    try {
      const text = JSON.stringify([answers.digest, vendor, architecture, device, description, userAgent]);
      const name = await hexDigest(text);
      return store && new PassedTests(await store.open(CACHE), ADDRESS + name);
    } catch {
      return undefined;
    }
  }

  async has(now: number = Date.now()): Promise<boolean> {
    try {
      const kept = Number(await (await this.cache.match(this.key))?.text());
      return kept <= now && now < kept + KEPT_MS;
    } catch {
      return false;
    }
  }

  /** Keeps that the test passed now, and forgets the oldest of too many. */
  async add(now: number = Date.now()): Promise<void> {
    try {
      await keep(this.cache, this.key, String(now), MOST);
    } catch {
      // Without room the test runs again at the next start.
    }
  }

  async forget(): Promise<void> {
    await this.cache.delete(this.key).catch(() => undefined);
  }
}
