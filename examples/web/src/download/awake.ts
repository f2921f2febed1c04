// A phone that sleeps ends a download.

/** Keeps the screen on until the result is called; anew when the page is shown again, for a browser lets go of a hidden one's. */
export function keepAwake(): () => void {
  const done = new AbortController();
  let lock: WakeLockSentinel | undefined;
  const ask = async () => {
    if (document.hidden) return;
    try {
      const found = await navigator.wakeLock?.request("screen");
      if (done.signal.aborted) await found?.release();
      else lock = found;
    } catch {
      // Refused, for example on a low battery.
    }
  };
  document.addEventListener("visibilitychange", () => void ask(), { signal: done.signal });
  void ask(); // nothing waits for it
  return () => {
    done.abort();
    void lock?.release().catch(() => undefined);
  };
}
