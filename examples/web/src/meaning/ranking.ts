// Which vectors are nearest to one. All have length 1, so that a product is the cosine.

export interface Ranked {
  index: number;
  cosine: number;
}

/** The `count` rows of `vectors` (rows x width) that are nearest to `query`, the nearest first. */
export function nearest(vectors: Float32Array, query: Float32Array, count: number): Ranked[] {
  const width = query.length;
  const best: Ranked[] = [];
  for (let index = 0; index * width < vectors.length; index++) {
    let cosine = 0;
    for (let channel = 0; channel < width; channel++) cosine += vectors[index * width + channel]! * query[channel]!;
    if (best.length === count && cosine <= best[count - 1]!.cosine) continue;
    const place = best.findIndex((other) => other.cosine < cosine);
    best.splice(place < 0 ? best.length : place, 0, { index, cosine });
    if (best.length > count) best.pop();
  }
  return best;
}
