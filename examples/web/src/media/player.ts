// What a media element of the browser finds out about a file.
const TO_THE_END = 1e9; // seconds

/** Waits for an event of the player, which `cause` leads to; not for ever. Rejects where the file cannot be played. */
export async function happens(
  player: HTMLMediaElement,
  event: string,
  patienceMs: number,
  cause: () => void,
): Promise<void> {
  const stop = new AbortController();
  try {
    await new Promise<void>((resolve, reject) => {
      const { signal } = stop;
      player.addEventListener(event, () => resolve(), { signal });
      player.addEventListener("error", () => reject(new Error("not playable")), { signal });
      const timer = setTimeout(() => reject(new Error(`no ${event}`)), patienceMs);
      signal.addEventListener("abort", () => clearTimeout(timer));
      cause();
    });
  } finally {
    stop.abort();
  }
}

/** Seconds of a player with metadata: recordings do not name them, so that the browser has to look for their end. */
export async function durationOf(player: HTMLMediaElement, patienceMs: number): Promise<number | undefined> {
  if (!Number.isFinite(player.duration)) {
    await happens(player, "durationchange", patienceMs, () => {
      player.currentTime = TO_THE_END;
    });
  }
  return Number.isFinite(player.duration) ? player.duration : undefined;
}
