/** Something that the user has to know: what is wrong, and what can be done about it. */
export class UserError extends Error {
  /** Either may quote what a stranger wrote: no sign in it turns the words around it. */
  constructor(
    message: string,
    readonly hint: string,
  ) {
    super(plain(message));
  }
}

const LONGEST = 2000;
const TURNING = /[\u202a-\u202e\u2066-\u2069]/g;
// What a browser's own code throws where it meets a value that it did not expect.
const RAW = /^(?:Uncaught )?(?:Type|Reference|Range|Syntax|URI|Eval|Internal|Aggregate)Error\b/;

/** Whether the text of an error is a program's own, which tells people nothing. */
export function isRaw(text: string): boolean {
  return RAW.test(text);
}

/** Any error, in words for people; what was not foreseen goes to the console. */
export function inWords(error: unknown): UserError {
  if (error instanceof UserError) return error;
  console.error(error);
  const message = error instanceof Error ? error.message : String(error);
  if (isRaw(String(error)) || !message) {
    return new UserError(
      "Something went wrong that this page has no words for.",
      "Reload the page; the browser's console has more.",
    );
  }
  return new UserError(message, "Reload the page; the browser's console has more.");
}

function plain(text: string): string {
  const short = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  return short.replace(TURNING, "\ufffd");
}
