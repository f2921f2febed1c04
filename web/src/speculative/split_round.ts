// A round in two submissions: its drafts are read before the model runs on them, for the host brings their rows.

export class SplitRound {
  private shortened: Promise<void> | undefined;
  private isOver = false;

  /** `run`: hands the model's launches to the device, given the drafts; it ends when the round can be read. */
  constructor(private readonly run: (drafted: readonly number[]) => Promise<void>) {}

  /** Whether the model ran before the drafts were known: on rows of which the first alone is right. */
  get isCut(): boolean {
    return this.shortened !== undefined;
  }

  /** The model runs now, if it has not: the client goes on with the state, behind its own step. */
  cut(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.shortened = this.run([]);
    this.shortened.catch(() => undefined); // `after` has it
  }

  /** The model does not run any more. */
  giveUp(): void {
    this.isOver = true;
  }

  /** Ends when the round can be read. */
  async after(drafts: Promise<readonly number[]>): Promise<void> {
    let drafted: readonly number[];
    try {
      drafted = await drafts;
    } catch (error) {
      this.isOver = true;
      if (this.shortened) return this.shortened;
      throw error;
    }
    if (this.shortened) return this.shortened;
    if (this.isOver) throw new Error("the round was given up");
    this.isOver = true;
    return this.run(drafted);
  }
}
