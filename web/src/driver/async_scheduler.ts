// Runs steps ahead of the client: one after the other, or rounds of drafts where the library has a drafter.
import { MultiStep, type Entry, type StepScheduler, type Sampling } from "../replay/multi_step";
import { DraftPace } from "../speculative/draft_pace";
import type { Recorded } from "../replay/recorder";
import { RoundKernels, type RoundOwner } from "../speculative/round_kernels";
import { Rounds } from "../speculative/rounds";
import { because } from "../stats";
import { AloneSteps } from "./alone_steps";
import type { Tables } from "../replay/tables";

export interface RecordedStep {
  readonly decode: Recorded;
  readonly softmax: Recorded;
  readonly sample: Recorded;
}

export class AsyncScheduler implements StepScheduler {
  private readonly ahead: MultiStep;
  private rounds: Rounds | undefined;
  private pace: DraftPace | undefined;
  private active: StepScheduler;
  private readonly alone = new AloneSteps();

  constructor(
    private readonly owner: RoundOwner,
    tables: Tables,
    step: RecordedStep,
  ) {
    const { decode, softmax, sample } = step;
    const launches = tables.slots.map((slot) => [decode, softmax, sample].flatMap(({ record }) => record.bind(slot)));
    this.ahead = new MultiStep(owner.device, tables, launches, owner.library.random, this.room, this.wrote);
    this.active = this.ahead;
  }

  private readonly room = (): number => this.owner.library.exports.gemma4_driver_room(this.owner.state);
  private readonly wrote = (length: number): void =>
    void this.owner.library.exports.gemma4_driver_wrote(this.owner.state, length);

  get sampling(): Sampling | undefined {
    return this.ahead.sampling;
  }

  set sampling(sampling: Sampling | undefined) {
    this.ahead.sampling = sampling;
    if (this.rounds) this.rounds.sampling = sampling;
  }

  get isRunning(): boolean {
    return this.active.isRunning;
  }

  take(position: number, token: number): Entry | undefined {
    const entry = this.active.take(position, token);
    this.alone.asked(position, entry !== undefined);
    if (entry && this.active === this.ahead) this.pace?.noteStep();
    return entry;
  }

  start(token: number, position: number): boolean {
    this.discard();
    this.openRounds();
    const isForRounds = this.rounds !== undefined && this.wantsRounds();
    if (!isForRounds && this.owner.library.hasRowsOnHost) {
      this.pace?.noteStep();
      return false;
    }
    this.active = isForRounds ? this.rounds! : this.ahead;
    const isStarted = this.active.start(token, position);
    if (isStarted) this.alone.forget();
    return isStarted;
  }

  /** Where the other way is to go on, what is on its way is the last. */
  refill(position: number): void {
    if (this.rounds && (this.active === this.rounds) !== this.wantsRounds()) return;
    this.active.refill(position);
  }

  pause(): void {
    this.active.pause();
  }

  discard(): void {
    this.active.discard();
  }

  /** Before the client's own commands go on with the state. */
  settle(): void {
    this.rounds?.settle();
  }

  destroy(): void {
    this.ahead.destroy();
    this.endRounds();
  }

  private wantsRounds(): boolean {
    return this.pace!.wantsRounds(this.plainMs);
  }

  private get plainMs(): number {
    return this.owner.library.hasRowsOnHost ? this.alone.ms : this.ahead.msPerToken;
  }

  private openRounds(): void {
    const { library, drafter } = this.owner;
    if (this.pace && this.pace.fixed !== drafter.drafts) {
      this.rounds?.settle();
      this.endRounds();
    }
    if (this.rounds || drafter.weights === 0) return;
    try {
      const kernels = new RoundKernels(this.owner, { bufferGone: () => this.endRounds() });
      const pace = new DraftPace(drafter.mostDrafts, drafter.drafts);
      this.rounds = new Rounds(this.owner, kernels, pace, {
        length: () => library.exports.gemma4_driver_length(this.owner.state),
        room: this.room,
        wrote: this.wrote,
        plainMs: () => this.plainMs,
        version: () => library.exports.gemma4_driver_version(this.owner.state),
        failed: (error) => this.giveUp(error),
      });
      this.rounds.sampling = this.sampling;
      this.pace = pace;
    } catch (error) {
      this.giveUp(error);
    }
  }

  /** Goes on without drafts and the drafter. */
  private giveUp(error: unknown): void {
    because(`no tokens are drafted: ${error instanceof Error ? error.message : String(error)}`);
    this.rounds?.settle();
    this.endRounds();
    this.owner.drafter.release();
  }

  /**
   * Also where another conversation has given the drafter up, and its weights go: the step from the record needs none of
   * them. Tokens of rounds that were submitted are kept by who took them.
   */
  private endRounds(): void {
    this.active = this.ahead;
    this.rounds?.destroy();
    this.rounds = this.pace = undefined;
  }
}
