// How long a step takes that runs when the client asks for it, with its token's way to the host and the client's own time.
import { counts } from "../stats";

/** Steps that say something together; of these the one in the middle counts, for any may come with a hiccup. */
const LEAST = 4;
const MOST = 15;

export class AloneSteps {
  private readonly times: number[] = [];
  /** The step that the client waits for. */
  private last: { at: number; position: number } | undefined;

  /** Of a step, in milliseconds; 0 while too few are known. */
  get ms(): number {
    if (this.times.length < LEAST) return 0;
    const sorted = [...this.times].sort((a, b) => a - b);
    return sorted[Math.floor(sorted.length / 2)]!;
  }

  /** The client asks for the step at a position, which ends the one before; `isAhead`: this one ran before. */
  asked(position: number, isAhead: boolean): void {
    const at = performance.now();
    if (this.last && position === this.last.position + 1) {
      this.times.push(at - this.last.at);
      if (this.times.length > MOST) this.times.shift();
      counts.aloneMs = this.ms;
    }
    this.last = isAhead ? undefined : { at, position };
  }

  /** The step that was asked for last runs with others behind it. */
  forget(): void {
    this.last = undefined;
  }
}
