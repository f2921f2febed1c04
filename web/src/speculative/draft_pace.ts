// How many tokens to draft in a round: as many as give most tokens a second, as measured. The same as
// gemma4_compile/runtime/speculative/draft_pace.py, which says why; draft_paces.json, beside its test, holds both to the same numbers.

const FIRST = 3;
const PAUSE = 64; // tokens without drafts, where they did not pay
const LONGEST_PAUSE = 1024;
const SETTLED = 16; // rounds after which the next pause is short again
const WEIGHT = 0.25; // of the newest in a running mean
const OUTLIER = 3; // times a mean: one time moves it no more than if it had been this
const STALE = 64; // rounds after which a time is measured again
const LEAST_SLOPE = 0.05; // of a plain step, what one draft more is taken to cost before it is measured
const MEMORY = 40; // drafts: those before count 1/e at most
const PRIOR_SHARE = 0.6; // of drafts come true before any did
const PRIOR_DRAFTS = 4; // and how many that counts

/** Milliseconds of rounds by their number of drafts, measured or taken from the numbers around. */
class RoundTimes {
  private readonly times = new Map<number, { ms: number; measuredAt: number }>();
  private readonly begun = new Set<number>();
  private readonly doubted = new Set<number>();
  private rounds = 0;

  /** The largest number of drafts that was timed, 0 for none. */
  get most(): number {
    return Math.max(0, ...this.times.keys());
  }

  /**
   * Counts a round; returns whether it was timed: the first one of a number is not, as its launches are recorded, nor a
   * first time far above what was expected, until it comes again.
   */
  note(drafts: number, ms: number, plainMs: number): boolean {
    this.rounds += 1;
    if (!this.begun.has(drafts)) {
      this.begun.add(drafts);
      return false;
    }
    const fresh = this.fresh(drafts);
    if (fresh === undefined && ms > OUTLIER * this.of(drafts, plainMs) && !this.doubted.has(drafts)) {
      this.doubted.add(drafts);
      return false;
    }
    this.doubted.delete(drafts);
    // A hiccup does not spoil the mean, and less than a step is no round: two were read at once.
    const before = fresh ?? Math.max(ms, plainMs);
    const mean = before + WEIGHT * (Math.min(ms, OUTLIER * Math.max(before, plainMs)) - before);
    this.times.set(drafts, { ms: mean, measuredAt: this.rounds });
    return true;
  }

  of(drafts: number, plainMs: number): number {
    const fresh = [...this.times.keys()].filter((n) => this.fresh(n) !== undefined);
    const below = Math.max(0, ...fresh.filter((n) => n <= drafts));
    const above = Math.min(...fresh.filter((n) => n >= drafts));
    const low = this.fresh(below) ?? plainMs;
    if (above === below) return low;
    if (above === Infinity) return low + LEAST_SLOPE * plainMs * (drafts - below);
    return low + ((this.fresh(above)! - low) * (drafts - below)) / (above - below);
  }

  private fresh(drafts: number): number | undefined {
    const time = this.times.get(drafts);
    return time && this.rounds - time.measuredAt < STALE ? time.ms : undefined;
  }
}

/** Share of drafts that come true, of those whose predecessors did; recent ones count most. */
class Acceptance {
  private accepted = PRIOR_SHARE * PRIOR_DRAFTS;
  private tried = PRIOR_DRAFTS;

  note(accepted: number, tried: number): void {
    const kept = (1 - 1 / MEMORY) ** tried;
    this.accepted = this.accepted * kept + accepted;
    this.tried = this.tried * kept + tried;
  }

  get share(): number {
    return this.accepted / this.tried;
  }

  /** The estimate and its standard error. */
  get hopefulShare(): number {
    return Math.min(this.share + Math.sqrt((this.share * (1 - this.share)) / this.tried), 1);
  }
}

/** Mean of the tokens that a round gives: one, and drafts up to the first wrong one. */
function tokensOfRound(share: number, drafts: number): number {
  let tokens = 0;
  for (let i = 0; i <= drafts; i++) tokens += share ** i;
  return tokens;
}

export class DraftPace {
  private wanted: number;
  private rounds = 0; // since the last pause
  private pause = 0;
  private nextPause = PAUSE;
  private readonly times = new RoundTimes();
  private acceptance = new Acceptance();

  /** `most` drafts of a round; `fixed`: always so many. */
  constructor(
    private readonly most: number,
    readonly fixed?: number,
  ) {
    this.wanted = fixed === undefined ? Math.min(FIRST, most) : Math.min(fixed, most);
  }

  /** Drafts of the next round. */
  get count(): number {
    return this.wanted;
  }

  /** Whether to go on with rounds, where a step without drafts takes `plainMs`; 0 if that is not known yet. */
  wantsRounds(plainMs: number): boolean {
    if (this.fixed !== undefined) return this.fixed > 0;
    return plainMs > 0 && this.pause === 0;
  }

  /** Hears of a token without drafts. */
  noteStep(): void {
    if (this.pause > 0) this.pause -= 1;
  }

  /** Hears of a round, which gave one token more than was accepted; one that was on its way into a pause tells nothing. */
  noteRound(drafted: number, accepted: number, ms: number, plainMs: number): void {
    if (this.fixed !== undefined || drafted === 0 || this.pause > 0) return;
    this.rounds += 1;
    this.acceptance.note(accepted, Math.min(accepted + 1, drafted));
    const isTimed = this.times.note(drafted, ms, plainMs);
    if (this.times.most === 0) return;
    if (isTimed && this.best(this.acceptance.hopefulShare, plainMs).rate * plainMs < 1) {
      this.pause = this.nextPause;
      this.nextPause = Math.min(2 * this.nextPause, LONGEST_PAUSE);
      this.rounds = 0;
      this.acceptance = new Acceptance();
    } else if (this.rounds >= SETTLED) this.nextPause = PAUSE;
    this.wanted = this.best(this.acceptance.share, plainMs).drafts;
  }

  /** Most tokens a millisecond that a round gives, and the number of its drafts. */
  private best(share: number, plainMs: number): { rate: number; drafts: number } {
    let found = { rate: 0, drafts: 1 };
    for (let drafts = 1; drafts <= Math.min(this.times.most + 1, this.most); drafts++) {
      const rate = tokensOfRound(share, drafts) / Math.max(this.times.of(drafts, plainMs), 1e-6);
      if (rate >= found.rate) found = { rate, drafts };
    }
    return found;
  }
}
