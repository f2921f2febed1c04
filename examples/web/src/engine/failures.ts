// How a reply can fail, in a file without the client: the page knows it before the client is loaded.
import { isRaw, UserError } from "../package/user_error";

/** The engine is dead; the conversation is not. */
export class EngineLost extends UserError {}

/** The person may go on by leaving out the oldest messages. */
export class ContextFull extends UserError {}

export const RESTART =
  "Start the model again; it is still downloaded. If this repeats, choose a shorter context (Settings, Model) or a smaller package.";

/** A worker that is gone without a word. */
export const ENDED_BY_BROWSER =
  "The browser has ended the model, as it may where memory is short or a tab was put aside.";

// What a test of the package's kernels found (web/src/known_answers.ts): the fault, and on the next line what to do.
const WRONG_DEVICE = /^(?:\w*Error: )*(.* computes wrong results .*)\n([\s\S]*)$/;

const NO_PROGRAM = /^(?:Compile|Link)Error\b/;

/** What the client threw, which crosses the worker's border as text. `starting`: while it read the package. */
export function asUserError(error: unknown, starting = false): UserError {
  if (error instanceof UserError) return error;
  const text = error instanceof Error ? `${error}` : String(error);
  const wrong = WRONG_DEVICE.exec(text);
  if (wrong) return new UserError(wrong[1]!, wrong[2]!);
  if (/exceed context window size/.test(text)) {
    return new ContextFull(
      "The conversation is longer than the model's context.",
      "Leave out the oldest messages, or start a new chat.",
    );
  }
  if (/out of memory|allocation failed|could not allocate|DeviceLost/i.test(text)) {
    return new EngineLost(
      "There is not enough graphics memory for this model.",
      "Close other tabs and programs, choose a shorter context (Settings, Model), or use a smaller package.",
    );
  }
  if (NO_PROGRAM.test(text)) {
    console.error(text);
    return new UserError(
      "The package's library is no program that this browser and the WebLLM client can run.",
      "Compile the package again with --target webgpu, or use a newer browser; the browser's console has more.",
    );
  }
  const reason = text.replace(/^(?:Runtime)?Error: /, "");
  // An exception in the compiled program ends it for good.
  if (/RuntimeError|unreachable|disposed|device.*lost/i.test(text))
    return new EngineLost(`The model stopped: ${reason}`, RESTART);
  if (isRaw(text)) {
    console.error(text);
    return starting
      ? new UserError(
          "The WebLLM client cannot read this package: its files are not as the client expects them.",
          "Compile the package again, and upload all of its files; the browser's console has more.",
        )
      : new UserError(
          "The model did not answer: the WebLLM client ended with an error of its own.",
          "Write the answer again; if this repeats, reload the page. The browser's console has more.",
        );
  }
  if (starting)
    return new UserError(`The model does not start: ${reason}`, "Reload the page, or open another package.");
  return new UserError(
    `The model did not answer: ${reason}`,
    "Write the answer again; if this repeats, reload the page.",
  );
}
