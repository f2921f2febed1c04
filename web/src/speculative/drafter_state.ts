// What a library has of a drafter: weights on its device, how many tokens are drafted, and the kernels between rounds.
import type { Handle } from "../library/abi";
import type { Library } from "../library/library";
import { counts } from "../stats";
import type { RoundPipelines } from "./next_round";

export class Drafter {
  private static readonly made = new WeakMap<Library, Drafter>();
  /** An array of tensors in the library's order; 0 as long as it was given none. */
  weights: Handle = 0;
  bytes = 0;
  /** Drafts of every round; undefined for as many as pay. */
  drafts: number | undefined;
  /** Drafts of a round, at most: a prefill chunk less one, which rings hold besides a window. */
  mostDrafts = 0;
  /** Of the library's device. */
  roundPipelines: RoundPipelines | undefined;

  /** That of a library. */
  static of(library: Library): Drafter {
    const found = Drafter.made.get(library) ?? new Drafter(library);
    Drafter.made.set(library, found);
    return found;
  }

  private constructor(private readonly library: Library) {}

  /** Lets go of the weights, which no record uses any more. */
  release(): void {
    if (this.weights === 0) return;
    this.library.releaseLater(this.weights);
    this.weights = 0;
    counts.drafterBytes -= this.bytes;
  }
}
