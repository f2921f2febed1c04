// Numbers as people read them.

export const MIB = 2 ** 20;
export const GIB = 2 ** 30;

/** Bytes in the unit that fits: 512 B, 3.4 KiB, 28 MiB, 2.61 GiB. */
export function formatBytes(bytes: number): string {
  let value = Math.max(0, bytes);
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024 || unit === "GiB") {
      const digits = unit === "B" ? 0 : unit === "GiB" ? 2 : value < 10 ? 1 : 0;
      return `${value.toFixed(digits)} ${unit}`;
    }
    value /= 1024;
  }
  throw new Error("unreachable");
}

/** Seconds as "8 s", "2 min 5 s", "1 h 12 min". */
export function formatSeconds(seconds: number): string {
  const whole = Math.max(1, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return whole % 60 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${whole / 60} min`;
  const minutes = Math.round(whole / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A wait as people feel it: 45 ms, 0.3 s, 12.4 s. */
export function formatShort(seconds: number): string {
  return seconds < 0.1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
}

/** A count with a thin grouping: 32,768. */
export function formatCount(count: number): string {
  return count.toLocaleString("en-US");
}
