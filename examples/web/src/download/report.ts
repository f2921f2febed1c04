// What the page says of a download while it goes on.
import { formatBytes, formatSeconds } from "../package/units";
import type { Progress } from "./file";
import { RateMeter } from "./rate";

const SHOW_EVERY_MS = 100;

export interface Shown {
  title: string;
  share: number;
  text: string;
}

/** Takes every change of a download's progress, and hands the latest to `show` some times a second while `isShown`. */
export function reporter(title: string, show: (shown: Shown) => void, isShown: () => boolean): (now: Progress) => void {
  const meter = new RateMeter();
  let counted = 0;
  let isDue = false;
  const describe = ({ checkedBytes, downloadedBytes, totalBytes, repaired, waiting }: Progress): Shown => {
    const now = performance.now();
    const done = checkedBytes + downloadedBytes;
    const left = meter.secondsLeft(totalBytes - done, now);
    const parts = [`${formatBytes(done)} of ${formatBytes(totalBytes)}`];
    if (waiting) parts.push("the connection broke off, trying again");
    else if (downloadedBytes && left !== undefined) {
      parts.push(`${formatBytes(meter.perSecond(now))}/s`, `about ${formatSeconds(left)} left`);
    }
    if (repaired.length) parts.push(`repairing ${repaired.join(", ")}`);
    return {
      title: `${downloadedBytes || waiting ? "Downloading" : "Checking"} ${title}`,
      share: totalBytes ? done / totalBytes : 1,
      text: parts.join(" · "),
    };
  };
  return (progress) => {
    meter.add(Math.max(0, progress.downloadedBytes - counted), performance.now());
    counted = progress.downloadedBytes;
    if (isDue) return;
    isDue = true;
    setTimeout(() => {
      isDue = false;
      if (isShown()) show(describe(progress));
    }, SHOW_EVERY_MS);
  };
}
