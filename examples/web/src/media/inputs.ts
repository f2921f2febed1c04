// What a package takes besides text, as its manifest says it.

/**
 * Pictures of one size: pixels of a row and rows, and the rows of the context that one takes; whether the library goes on
 * without those beyond a picture's own.
 */
export interface PictureInput {
  mode: "stretch" | "center_crop";
  width: number;
  height: number;
  embeddings: number;
  dropsPadding: boolean;
}

/** Samples of one channel. */
export interface SoundInput {
  rate: number;
  minSamples: number;
  maxSamples: number;
}

export interface MediaInputs {
  picture?: PictureInput;
  sound?: SoundInput;
}

// More than any model takes, and what a browser can still make.
const LARGEST_SIDE = 16_384;
const MOST_PIXELS = 64e6;
const MOST_EMBEDDINGS = 2 ** 20;
const HIGHEST_RATE = 768_000;
const MOST_SAMPLES = 2 ** 31;

interface Processor {
  kind?: string;
  resize?: { mode?: string; height?: number; width?: number };
  num_embeddings?: number;
  sample_rate_hz?: number;
  min_samples?: number;
  max_samples?: number;
}

/** Reads `tasks["chat.completions"].inputs`; what is not understood is not offered. `dropsPadding`: of the library. */
export function mediaInputsOf(inputs: unknown, dropsPadding: boolean): MediaInputs {
  const found: MediaInputs = {};
  for (const input of Object.values((inputs ?? {}) as Record<string, { processor?: Processor | string } | null>)) {
    const processor = input?.processor;
    if (typeof processor !== "object" || processor === null) continue;
    if (processor.kind === "image_decode") {
      const { mode, height, width } = processor.resize ?? {};
      const embeddings = processor.num_embeddings;
      if (!isCount(height, LARGEST_SIDE) || !isCount(width, LARGEST_SIDE) || height * width > MOST_PIXELS) continue;
      if (!isCount(embeddings, MOST_EMBEDDINGS)) continue;
      found.picture = { mode: mode === "center_crop" ? mode : "stretch", width, height, embeddings, dropsPadding };
    } else if (processor.kind === "audio_decode") {
      const rate = processor.sample_rate_hz;
      const { max_samples: maxSamples, min_samples: minSamples = 1 } = processor;
      if (!isCount(rate, HIGHEST_RATE) || !isCount(maxSamples, MOST_SAMPLES)) continue;
      if (minSamples !== 0 && !isCount(minSamples, maxSamples)) continue;
      found.sound = { rate, minSamples: Math.max(1, minSamples), maxSamples };
    }
  }
  return found;
}

function isCount(value: unknown, most: number): value is number {
  return Number.isSafeInteger(value) && (value as number) > 0 && (value as number) <= most;
}
