// How the page ended last. A browser ends a page that takes too much memory without a word, on a phone at about one and a half
// gigabytes, and opens it again: a page that went on by itself would be ended again and again.
import type { Package } from "../package/package";
import { neededMemory, SMALL_BYTES } from "../package/requirements";
import type { UserError } from "../package/user_error";

const AT_WORK = "gemma4-at-work";

/** What takes memory. */
export interface Work {
  url: string;
  /** Tokens of context. */
  context: number;
  kind: "starting" | "answering";
}

/** Notes what the page is at while somebody looks at it: a hidden one is ended for less, which tells nothing of the model. */
export class AtWork {
  private work: Work | undefined;
  private isNoted = false;
  private isWatching = false;

  private watch(): void {
    if (this.isWatching) return;
    this.isWatching = true;
    document.addEventListener("visibilitychange", () => this.note(!document.hidden));
    addEventListener("pagehide", () => this.note(false)); // the person leaves, or loads the page again
    addEventListener("pageshow", () => this.note(!document.hidden));
  }

  /** Of a model that is so small that nobody has to think about memory, nothing is noted. */
  begin(pack: Package, context: number, kind: Work["kind"]): void {
    this.work = neededMemory(pack, context) < SMALL_BYTES ? undefined : { url: pack.url, context, kind };
    this.watch();
    this.note(!document.hidden);
  }

  end(): void {
    this.work = undefined;
    this.note(false);
  }

  private note(isShown: boolean): void {
    try {
      if (isShown && this.work) {
        localStorage.setItem(AT_WORK, JSON.stringify(this.work));
        this.isNoted = true;
      } else if (this.isNoted) {
        localStorage.removeItem(AT_WORK); // what another tab has noted stays
        this.isNoted = false;
      }
    } catch {
      // Storage is off: nobody will know.
    }
  }
}

/** What a page was at with this package when it ended without a word; undefined: nothing. */
export function lastEnd(url: string): Work | undefined {
  try {
    const found = JSON.parse(localStorage.getItem(AT_WORK) ?? "null") as Partial<Work> | null;
    if (found?.url !== url || !Number.isSafeInteger(found.context)) return undefined;
    return found.kind === "starting" || found.kind === "answering" ? (found as Work) : undefined;
  } catch {
    return undefined;
  }
}

/** In words. */
export function describeEnd(
  { context, kind }: Work,
  count: (tokens: number) => string,
): Pick<UserError, "message" | "hint"> {
  const what = kind === "starting" ? "this model started" : "it answered";
  return {
    message: `The page ended while ${what} at ${count(context)} tokens of context: browsers end what takes too much memory.`,
    hint: "Close other tabs and programs and start it again, choose a shorter context, or take a smaller model.",
  };
}
