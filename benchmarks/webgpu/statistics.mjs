// Repeated measurements: what is reported of them.

/** Middle value of a list of numbers. */
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Five significant digits: more would be noise in a results file. */
export const rounded = (value) => Number(value.toPrecision(5));

/** Median, spread (largest minus smallest, as a share of the median) and every value. */
export function summary(values) {
  const middle = median(values);
  return {
    median: rounded(middle),
    spread: rounded((Math.max(...values) - Math.min(...values)) / middle),
    all: values.map(rounded),
  };
}

/** Runs `sample` (a promise of a number) `repeats` times after one that is not counted. */
export async function repeated(repeats, sample) {
  await sample();
  const values = [];
  for (let i = 0; i < repeats; i++) values.push(await sample());
  return values;
}
