// The client's random numbers, learned from those that it has drawn.
//
// Its generator is s <- 48271 s mod (2^31 - 1), and it hands float32(s / (2^31 - 1)) to the sampler. A float32 leaves
// at most 129 states open; the next number decides between them. What is predicted is compared with what the
// client really draws, so that a generator of another kind costs speed, never a token.

const MODULUS = 2147483647;
const MULTIPLIER = 48271;
const MARGIN = 160; // states on either side of the nearest that round to the same float32

export const nextState = (state: number): number => (MULTIPLIER * state) % MODULUS;
export const uniformOf = (state: number): number => Math.fround(state / MODULUS);

export class RandomNumbers {
  /** State after the number drawn last, if it is known. */
  state: number | undefined;
  private candidates: number[] = [];

  /** The client has drawn `uniform`. */
  observe(uniform: number): void {
    if (this.state !== undefined) {
      const expected = nextState(this.state);
      this.state = uniformOf(expected) === uniform ? expected : undefined;
      if (this.state !== undefined) return;
      this.candidates = [];
    }
    const continued = this.candidates.map(nextState).filter((state) => uniformOf(state) === uniform);
    if (continued.length === 1) this.state = continued[0];
    this.candidates = continued.length > 0 ? continued : statesOf(uniform);
  }
}

function statesOf(uniform: number): number[] {
  const states: number[] = [];
  if (!(uniform > 0 && uniform <= 1)) return states;
  const nearest = Math.round(uniform * MODULUS);
  for (let state = Math.max(1, nearest - MARGIN); state <= Math.min(MODULUS - 1, nearest + MARGIN); state++) {
    if (uniformOf(state) === uniform) states.push(state);
  }
  return states;
}
