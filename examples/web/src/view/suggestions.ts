import type { Package } from "../package/package";

/** A question that an empty chat offers, some about a file that the page has. */
export interface Suggestion {
  text: string;
  sample?: string;
}

// What `tiny` was trained on; docs/tiny-model.md has the whole list.
const TINY = ["Who are you?", "What is 8 plus 19?", "Sort these words: ship, frog, clock", "My name is Clara."];
const SEEN: Suggestion = { text: "What is in the picture?", sample: "samples/shapes.png" };
const HEARD: Suggestion = { text: "What do you hear?", sample: "samples/beeps.wav" };
const OTHERS = [
  "Explain why the sky is blue in three sentences.",
  "Write a short poem about a rainy morning.",
  "Compare TCP and UDP in a table.",
  "Write a Python function that finds the longest word in a text.",
];

/** Questions for an empty chat. */
export function suggestionsFor(pack: Package | undefined): Suggestion[] {
  const found = (pack?.isTiny ? TINY : OTHERS).map((text): Suggestion => ({ text }));
  if (pack?.isTiny && pack.media.picture) found.push(SEEN);
  if (pack?.isTiny && pack.media.sound) found.push(HEARD);
  return found;
}

/** Fetches the file of a suggestion; hosts need not know its type. */
export async function sampleFile(sample: string): Promise<File> {
  const response = await fetch(new URL(sample, document.baseURI));
  if (!response.ok) throw new Error(`${sample}: ${response.status}`);
  const type = sample.endsWith(".wav") ? "audio/wav" : "image/png";
  return new File([await response.arrayBuffer()], sample.slice(sample.lastIndexOf("/") + 1), { type });
}
