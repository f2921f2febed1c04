// A phone that sleeps ends a download.

export async function keepAwake(): Promise<WakeLockSentinel | undefined> {
  try {
    return await navigator.wakeLock?.request("screen");
  } catch {
    return undefined; // refused, for example on a low battery
  }
}
