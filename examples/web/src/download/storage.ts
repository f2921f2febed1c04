// The browser's cache storage, which a browser may lack, refuse, or not answer for.
import { Stalled, unlessStalled } from "../patience";
import { UserError } from "../package/user_error";

/** One of the caches; throws a UserError where there is none to have. */
export async function openStorage(name: string): Promise<Cache> {
  try {
    return await unlessStalled(caches.open(name));
  } catch (error) {
    if (error instanceof Stalled) throw silentStorage();
    console.warn("the browser's storage:", error);
    const reason = error instanceof DOMException && error.message ? ` (${error.message})` : "";
    throw new UserError(
      `The browser lets this page store nothing${reason}: there is no place for a model.`,
      "Leave private browsing, let this site keep data (cookies and site data in the browser's settings), or free space on the disk; then reload the page.",
    );
  }
}

/** Neither data nor an error came. */
export function silentStorage(name?: string): UserError {
  return new UserError(
    name ? `The browser's storage does not hand out ${name}.` : "The browser's storage does not answer.",
    "Close other tabs of this page and try again. If it stays so, restart the browser, or remove the model in Settings and load it again.",
  );
}

/** Why a file could not be stored, in words. */
export function storingError(error: unknown, file: string, needed: string): UserError {
  if ((error as Error)?.name === "QuotaExceededError") {
    return new UserError(
      `The browser's storage for this site is full: the model takes ${needed}.`,
      "Remove other downloaded models in the settings, free space on the disk, or leave private browsing.",
    );
  }
  console.warn("the browser's storage:", error);
  return new UserError(
    `The browser could not store ${file}; the model takes ${needed} of its storage.`,
    "Free space on the disk, or leave private browsing, and try again: files that have arrived are kept. The browser's console has more.",
  );
}
