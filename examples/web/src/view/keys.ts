// Keys that belong to the field, and keys that belong to an input method.

/** What browsers send for a key that an input method has taken. */
const TAKEN = 229;

/**
 * Whether a key chooses among what an input method offers, as for Japanese and Chinese. Safari ends the composition before it
 * sends the Enter that did so: only the code tells that it sends no message.
 */
export function isComposing(event: Pick<KeyboardEvent, "isComposing" | "keyCode">): boolean {
  return event.isComposing || event.keyCode === TAKEN;
}
