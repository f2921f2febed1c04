// How many tokens to guess in a round: as many as pay. As gemma4_compile/runtime/draft_pace.py has it, but for CUDA graphs.

const FIRST = 3;
const ROUNDS = 8; // until it is asked whether guesses pay
const PAUSE = 64; // tokens without guesses, where they did not
const LONGEST_PAUSE = 1024;

export class DraftPace {
  private wanted: number;
  private rounds = 0;
  private tokens = 0;
  private ms = 0;
  private pause = 0;
  private nextPause = PAUSE;
  private readonly known = new Set<number>(); // numbers of guesses that there were

  /** `most` guesses of a round; `fixed`: always so many. */
  constructor(
    private readonly most: number,
    readonly fixed?: number,
  ) {
    this.wanted = fixed === undefined ? Math.min(FIRST, most) : Math.min(fixed, most);
  }

  /** Guesses of the next round. */
  get count(): number {
    return this.wanted;
  }

  /** Whether to go on with rounds, where a step without guesses takes `plainMs`; 0 if that is not known yet. */
  wantsRounds(plainMs: number): boolean {
    if (this.fixed !== undefined) return this.fixed > 0;
    return plainMs > 0 && this.pause === 0;
  }

  /** Hears of a token without guesses. */
  noteStep(): void {
    if (this.pause > 0) this.pause -= 1;
  }

  /**
   * Hears of a round, which gave one token more than was accepted. Those that were on their way when guesses paused tell
   * nothing, and several of a number are one reason to guess more. The first round of a number is not timed: its launches
   * are recorded for it.
   */
  noteRound(guessed: number, accepted: number, ms: number, plainMs: number): void {
    if (this.fixed !== undefined || guessed === 0 || this.pause > 0) return;
    if (accepted === guessed) this.wanted = Math.min(Math.max(this.wanted, guessed + 1), this.most);
    else if (2 * accepted < guessed) this.wanted = Math.max(guessed - 1, 1);
    if (!this.known.has(guessed)) {
      this.known.add(guessed);
      return;
    }
    this.rounds += 1;
    this.tokens += accepted + 1;
    this.ms += ms;
    if (this.rounds < ROUNDS) return;
    if (this.ms > this.tokens * plainMs) {
      this.pause = this.nextPause;
      this.nextPause = Math.min(2 * this.nextPause, LONGEST_PAUSE);
      this.wanted = Math.min(FIRST, this.most);
    } else this.nextPause = PAUSE;
    this.rounds = this.tokens = this.ms = 0;
  }
}
