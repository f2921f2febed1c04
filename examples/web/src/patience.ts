// Waits that end: for what another program, tab, server or the browser's own storage may never bring.

/** Time is counted in short steps: a page that was put aside, whose timers stand still, has waited for one of them. */
const STEP_MS = 5000;
/** Nothing that works takes so long without a sign. */
export const PATIENCE_MS = 60_000;

/** Nothing came. */
export class Stalled extends Error {}

/** Runs `late` after so much time in which the page ran; returns what ends that. */
export function afterPatience(late: () => void, patienceMs = PATIENCE_MS): () => void {
  let left = patienceMs;
  const step = (): ReturnType<typeof setTimeout> =>
    setTimeout(
      () => {
        left -= STEP_MS;
        if (left > 0) timer = step();
        else late();
      },
      Math.min(left, STEP_MS),
    );
  let timer = step();
  return () => clearTimeout(timer);
}

/** What is waited for, or Stalled. What comes later is nobody's: its error is nobody's, too. */
export async function unlessStalled<T>(wait: Promise<T>, patienceMs?: number): Promise<T> {
  let stop: () => void = () => undefined;
  const late = new Promise<never>((_, reject) => {
    stop = afterPatience(() => reject(new Stalled("nothing came")), patienceMs);
  });
  try {
    return await Promise.race([wait, late]);
  } finally {
    stop();
  }
}
