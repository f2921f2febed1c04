// Whether a worker lives. Browsers end one without a word to its page: where memory is short, or of a tab that was put aside. A
// lock that it has as long as it lives tells the page.

/** In the worker: the name of a lock that it has from now on; undefined where the browser has none. */
export async function lockOfLife(): Promise<string | undefined> {
  const { locks } = navigator as { locks?: LockManager };
  if (!locks) return undefined;
  const name = `gemma4-worker ${crypto.randomUUID()}`;
  return new Promise((resolve) => {
    const life = () => {
      resolve(name);
      return new Promise(() => undefined);
    };
    locks.request(name, life).catch(() => resolve(undefined));
  });
}

/** In the page: calls `gone` when the worker that has the lock is no more, unless `signal` ends that. */
export function whenGone(name: string, signal: AbortSignal, gone: () => void): void {
  navigator.locks.request(name, { signal }, gone).catch(() => undefined); // the page ended it itself
}
