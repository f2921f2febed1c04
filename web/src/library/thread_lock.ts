// What the threads of an origin do one after the other: a browser lets one of them do so under a name.

/** A thread of a tab that was put aside may stand still with the lock, for as long as nobody looks at that tab. */
const PATIENCE_MS = 30_000;
/** Counted in short steps: a thread that was put aside itself, whose timers stand still, has waited for one of them. */
const STEP_MS = 5000;

/**
 * Runs `action` while no other thread of the origin runs one under this name. Rejects where another one does not end; where a
 * browser has no locks, it runs at once.
 */
export async function alone<T>(name: string, action: () => Promise<T>): Promise<T> {
  const locks = (navigator as { locks?: LockManager }).locks;
  if (!locks) return action();
  const waiting = new AbortController();
  let left = PATIENCE_MS;
  const step = (): ReturnType<typeof setTimeout> =>
    setTimeout(() => {
      left -= STEP_MS;
      if (left > 0) timer = step();
      else waiting.abort(new Error("another tab of this site is at work on it, and does not end"));
    }, STEP_MS);
  let timer = step();
  const begin = () => {
    clearTimeout(timer);
    return action();
  };
  try {
    return await locks.request(name, { signal: waiting.signal }, begin);
  } finally {
    clearTimeout(timer);
  }
}
