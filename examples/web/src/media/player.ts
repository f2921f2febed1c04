// What a media element of the browser finds out about a file.
const TO_THE_END = 1e9; // seconds
const PAINTING_MS = 1000; // of a player that never says so: in a hidden tab, or where the first frame starts late
const MOMENT_SECONDS = 1e-3; // less than any frame lasts

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

/**
 * Waits until a frame can be drawn. A busy browser says "seeked" before it has painted it: what is drawn by then is
 * the frame before, or nothing. Rejects where the file cannot be played.
 */
export async function seek(player: HTMLVideoElement, seconds: number, patienceMs: number): Promise<void> {
  const painting = painted(player, seconds);
  try {
    await happens(player, "seeked", patienceMs, () => {
      // Where it is already, a player paints nothing.
      player.currentTime = player.currentTime === seconds ? seconds + MOMENT_SECONDS : seconds;
    });
    await Promise.race([painting.done, new Promise((resolve) => setTimeout(resolve, PAINTING_MS))]);
  } finally {
    painting.stop();
  }
}

/** Waits for the frame of a time: the end may be painted late, since its length was looked for there. */
function painted(player: HTMLVideoElement, seconds: number): { done: Promise<void>; stop(): void } {
  let handle = 0;
  const done = new Promise<void>((resolve) => {
    const look = () => {
      handle = player.requestVideoFrameCallback((_, { mediaTime }) => {
        if (mediaTime <= seconds + 2 * MOMENT_SECONDS) resolve();
        else look();
      });
    };
    look();
  });
  return { done, stop: () => player.cancelVideoFrameCallback(handle) };
}
