// How fast a download is, over the last seconds.

const WINDOW_MS = 8000;
const LEAST_MS = 500;

export class RateMeter {
  private samples: { at: number; bytes: number }[] = [];
  private total = 0;

  /** Counts bytes that arrived `now` (milliseconds on any clock that does not go back). */
  add(bytes: number, now: number): void {
    this.total += bytes;
    this.samples.push({ at: now, bytes: this.total });
    while (this.samples.length > 2 && this.samples[0]!.at < now - WINDOW_MS) this.samples.shift();
  }

  /** Bytes per second; 0 until something is known. */
  perSecond(now: number): number {
    const first = this.samples[0];
    if (!first || now - first.at < LEAST_MS) return 0;
    return ((this.total - first.bytes) * 1000) / (now - first.at);
  }

  /** Seconds for the bytes that are left; undefined while nothing arrives. */
  secondsLeft(bytesLeft: number, now: number): number | undefined {
    const rate = this.perSecond(now);
    return rate > 0 ? bytesLeft / rate : undefined;
  }
}
