// Scales pictures as transformers does: torch's bicubic filter on bytes, which was made after Pillow's. A canvas scales
// in another way in every browser.
import type { Size } from "./container";

/** RGBA, row by row. */
export interface Pixels extends Size {
  data: Uint8ClampedArray<ArrayBuffer>;
}

/** What a pixel of the result is made of: of `taps` pixels from `first` on, so much each. */
interface Mixture {
  first: Int32Array;
  taps: number;
  weights: Float64Array;
}

const CHANNELS = 3; // alpha is 255
const PIXEL = 4;
const SUPPORT = 2; // of the filter, in pixels of the coarser picture
const SHARPNESS = -0.5;

function cubic(distance: number): number {
  const x = Math.abs(distance);
  if (x < 1) return ((SHARPNESS + 2) * x - (SHARPNESS + 3)) * x * x + 1;
  return x < SUPPORT ? (((x - 5) * x + 8) * x - 4) * SHARPNESS : 0;
}

/** For every pixel of a line of `to` pixels that is made of one of `from`. */
function mixtures(from: number, to: number): Mixture {
  const scale = from / to;
  const stretch = Math.max(1, scale); // a picture that shrinks is blurred before
  const support = SUPPORT * stretch;
  const taps = 2 * Math.ceil(support) + 1;
  const first = new Int32Array(to);
  const weights = new Float64Array(to * taps);
  for (let i = 0; i < to; i++) {
    const center = (i + 0.5) * scale;
    const begin = Math.max(0, Math.trunc(center - support + 0.5));
    const end = Math.min(from, Math.trunc(center + support + 0.5));
    first[i] = begin;
    let sum = 0;
    for (let j = begin; j < end; j++) sum += cubic((j - center + 0.5) / stretch);
    for (let j = begin; j < end; j++) weights[i * taps + j - begin] = cubic((j - center + 0.5) / stretch) / sum;
  }
  return { first, taps, weights };
}

/** Lines of the source's pixels, scaled to `width`; each is rounded. */
export function scaleRows({ data, width: from, height }: Pixels, width: number): Pixels {
  if (from === width) return { data, width, height };
  const { first, taps, weights } = mixtures(from, width);
  const scaled = new Uint8ClampedArray(PIXEL * width * height).fill(255);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const begin = first[x]!;
      const count = Math.min(taps, from - begin);
      for (let channel = 0; channel < CHANNELS; channel++) {
        let sum = 0;
        for (let tap = 0; tap < count; tap++)
          sum += weights[x * taps + tap]! * data[PIXEL * (y * from + begin + tap) + channel]!;
        scaled[PIXEL * (y * width + x) + channel] = Math.floor(sum + 0.5);
      }
    }
  }
  return { data: scaled, width, height };
}

/** The columns of a picture, scaled to `height`. */
export function scaleColumns({ data, width, height: from }: Pixels, height: number): Pixels {
  if (from === height) return { data, width, height };
  const { first, taps, weights } = mixtures(from, height);
  const scaled = new Uint8ClampedArray(PIXEL * width * height).fill(255);
  const line = PIXEL * width;
  for (let y = 0; y < height; y++) {
    const begin = first[y]!;
    const count = Math.min(taps, from - begin);
    for (let at = 0; at < line; at++) {
      if (at % PIXEL === CHANNELS) continue;
      let sum = 0;
      for (let tap = 0; tap < count; tap++) sum += weights[y * taps + tap]! * data[(begin + tap) * line + at]!;
      scaled[y * line + at] = Math.floor(sum + 0.5);
    }
  }
  return { data: scaled, width, height };
}
