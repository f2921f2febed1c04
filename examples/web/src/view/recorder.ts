// The line of the composer while a sound is recorded: level, time, the ways to end it.
import { Recording } from "../media/recording";
import { byId } from "./dom";

const LOOK_MS = 50;

export class Recorder {
  private readonly box = byId("recorder");
  private readonly level = byId<HTMLMeterElement>("level");
  private readonly time = byId("recorded");
  private end: ((keep: boolean) => void) | undefined;
  private isStarting = false;

  constructor() {
    byId("stop-recording").addEventListener("click", () => this.end?.(true));
    byId("drop-recording").addEventListener("click", () => this.end?.(false));
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // stops no answer
      this.end?.(false);
    });
  }

  get isOn(): boolean {
    return this.isStarting || this.end !== undefined;
  }

  /** Records until a person stops it, or for so many seconds; undefined: it was thrown away. */
  async record(limit: number): Promise<File | undefined> {
    if (this.isOn) return undefined;
    this.isStarting = true;
    const recording = await Recording.start().finally(() => (this.isStarting = false));
    this.box.hidden = false;
    byId("stop-recording").focus();
    let timer = 0;
    const keep = await new Promise<boolean>((resolve) => {
      this.end = resolve;
      const look = () => {
        const seconds = Math.min(limit, recording.seconds);
        this.level.value = recording.level;
        this.time.textContent = `${clock(seconds)} of ${clock(limit)}`;
        if (seconds >= limit || recording.isOver) resolve(true);
      };
      look();
      timer = window.setInterval(look, LOOK_MS);
    });
    clearInterval(timer);
    this.end = undefined;
    this.box.hidden = true;
    const file = await recording.stop();
    return keep ? file : undefined;
  }
}

function clock(seconds: number): string {
  return `${Math.floor(seconds / 60)}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}
