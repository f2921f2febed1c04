import type { Package } from "../package/package";

// What `tiny` was trained on; docs/tiny-model.md has the whole list.
const TINY = ["Who are you?", "What is 8 plus 19?", "Sort these words: ship, frog, clock", "My name is Clara."];
const OTHERS = [
  "Explain why the sky is blue in three sentences.",
  "Write a short poem about a rainy morning.",
  "Compare TCP and UDP in a table.",
  "Write a Python function that finds the longest word in a text.",
];

/** Questions for an empty chat. */
export function suggestionsFor(pack: Package | undefined): string[] {
  return pack?.isTiny ? TINY : OTHERS;
}
