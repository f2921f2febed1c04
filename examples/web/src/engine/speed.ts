// How fast a reply came, by the clock. The client's own figures leave out the time between its steps.

/** Milliseconds of a clock that the page and its worker share, and that never goes back. */
export function now(): number {
  return performance.timeOrigin + performance.now();
}

/** Tokens after a reply's first one, and the time between the first and the last. */
export interface Pace {
  tokens: number;
  seconds: number;
  /** Tokens that took no step of their own: a drafter had drafted them. */
  drafted: number;
}

export const NO_PACE: Pace = { tokens: 0, seconds: 0, drafted: 0 };

/** Of several stretches of generation: what lies between them is no part of the speed. */
export function addPace(a: Pace, b: Pace): Pace {
  return { tokens: a.tokens + b.tokens, seconds: a.seconds + b.seconds, drafted: a.drafted + b.drafted };
}

/** Undefined where there is nothing to measure: a single token. */
export function tokensPerSecond({ tokens, seconds }: Pace): number | undefined {
  return tokens > 0 && seconds > 0 ? tokens / seconds : undefined;
}

/** Undefined where none was drafted: one token a step. */
export function tokensPerStep({ tokens, drafted }: Pace): number | undefined {
  return drafted > 0 && drafted < tokens ? tokens / (tokens - drafted) : undefined;
}

/** Notes when the client handed over the tokens of one reply. */
export class ReplyClock {
  private first: number | undefined;
  private last = 0;

  /** A chunk with text, or the one with the reason of its end: it follows the last token at once. */
  hear(milliseconds: number): void {
    this.first ??= milliseconds;
    this.last = milliseconds;
  }

  get firstTokenSeconds(): number {
    return (this.first ?? 0) / 1000;
  }

  /** `tokens`: all that the model computed, with the stop token; `drafted` of them right by a drafter. */
  pace(tokens: number, drafted = 0): Pace {
    if (this.first === undefined || tokens < 2) return NO_PACE;
    return { tokens: tokens - 1, seconds: (this.last - this.first) / 1000, drafted };
  }
}
