// One tab owns the model: two would need the graphics memory twice.

const LOCK = "gemma4-model";

export class Ownership {
  private release: (() => void) | undefined;

  /** `onTaken` is called when another tab takes the model over. */
  constructor(private readonly onTaken: () => void) {}

  get held(): boolean {
    return this.release !== undefined;
  }

  /** Whether another tab has the model. */
  async isElsewhere(): Promise<boolean> {
    if (this.held || !navigator.locks) return false;
    const { held } = await navigator.locks.query();
    return held?.some(({ name }) => name === LOCK) ?? false;
  }

  /** Whether this tab owns the model now. `steal` takes it from the tab that has it. */
  async take(steal = false): Promise<boolean> {
    if (this.held || !navigator.locks) return true;
    return new Promise((resolve) => {
      const options = steal ? { steal: true } : { ifAvailable: true };
      const held = navigator.locks.request(LOCK, options, (lock) => {
        if (!lock) return resolve(false);
        return new Promise<void>((done) => {
          this.release = done;
          resolve(true);
        });
      });
      held.catch(() => {
        // The lock was stolen.
        this.release = undefined;
        this.onTaken();
      });
    });
  }

  give(): void {
    this.release?.();
    this.release = undefined;
  }
}
