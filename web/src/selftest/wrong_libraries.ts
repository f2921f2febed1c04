// Keeps which libraries compute wrong on a device, so that none of them is chosen again. A library is known by the digest
// of its known answers and of the kernels that they run. Browsers do not tell the driver's version: what was found is
// kept for a month, and until the library passes.
import { hexDigest, keep, type Store } from "../kept";
import type { KnownAnswers } from "./known_answer_format";
import type { AdapterText } from "./known_answers";

const CACHE = "gemma4-wrong-libraries";
// The Cache API takes addresses only. This host cannot exist (RFC 2606), and nothing asks for it.
const ADDRESS = "https://wrong-libraries.invalid/";
const KEPT_MS = 30 * 24 * 3600 * 1000;
const MOST = 256;

export class WrongLibraries {
  private constructor(
    private readonly cache: Cache,
    private readonly userAgent: string,
  ) {}

  /** Undefined where nothing can be kept, as in some private windows. */
  static async open(
    store: Store | undefined = globalThis.caches,
    userAgent: string = globalThis.navigator?.userAgent ?? "",
  ): Promise<WrongLibraries | undefined> {
    try {
      return store && new WrongLibraries(await store.open(CACHE), userAgent);
    } catch {
      return undefined;
    }
  }

  /** Whether any library was wrong on any device. */
  async areAny(): Promise<boolean> {
    return (await this.cache.keys().catch(() => [])).length > 0;
  }

  /** `adapter`: as the known-answer test is given it. */
  async has(answers: Pick<KnownAnswers, "digest">, adapter: AdapterText, now: number = Date.now()): Promise<boolean> {
    try {
      const found = await this.cache.match(await this.keyOf(answers, adapter));
      const at = found ? Number(await found.text()) : Number.NaN;
      return at <= now && now < at + KEPT_MS;
    } catch {
      return false;
    }
  }

  /** Keeps that a library is wrong, and forgets the oldest of too many. */
  async add(answers: Pick<KnownAnswers, "digest">, adapter: AdapterText, now: number = Date.now()): Promise<void> {
    try {
      await keep(this.cache, await this.keyOf(answers, adapter), String(now), MOST);
    } catch {
      // Without room it may be chosen again, and its test fails again.
    }
  }

  /** The library passed: a new driver computes it right. */
  async forget(answers: Pick<KnownAnswers, "digest">, adapter: AdapterText): Promise<void> {
    await this.keyOf(answers, adapter)
      .then((key) => this.cache.delete(key))
      .catch(() => undefined);
  }

  private async keyOf(
    { digest }: Pick<KnownAnswers, "digest">,
    { vendor, architecture, device, description, subgroupMinSize = 0 }: AdapterText,
  ): Promise<string> {
    const text = JSON.stringify([digest, vendor, architecture, device, description, subgroupMinSize, this.userAgent]);
    return ADDRESS + (await hexDigest(text));
  }
}
