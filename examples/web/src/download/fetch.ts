// A request whose failures are said in words that help.
import { UserError } from "../package/user_error";
import { Stalled, unlessStalled } from "../patience";

/** No answer at all: the network, the server, or a server that does not allow this page. */
export class Unreachable extends UserError {}

/** The server answered, and does not give the file. */
export class Refused extends UserError {
  constructor(
    readonly status: number,
    message: string,
    hint: string,
  ) {
    super(message, hint);
  }
}

/** Fetches, or throws: AbortError if aborted, Unreachable without an answer, Refused for a refusal. */
export async function fetchChecked(url: string, init: RequestInit = {}): Promise<Response> {
  const own = new AbortController(); // ends what nobody waits for any more
  const abort = () => own.abort(init.signal?.reason);
  if (init.signal?.aborted) abort();
  init.signal?.addEventListener("abort", abort, { once: true });
  let response: Response;
  try {
    response = await unlessStalled(fetch(url, { cache: "no-cache", ...init, signal: own.signal }));
  } catch (error) {
    if (init.signal?.aborted) throw error;
    own.abort();
    if (error instanceof Stalled) {
      throw new Unreachable(
        `${new URL(url).host} does not answer.`,
        "See that this device is connected, and try again. What was downloaded is kept.",
      );
    }
    throw new Unreachable(
      `${new URL(url).host} cannot be reached.`,
      navigator.onLine === false
        ? "This device is offline. What was downloaded is kept."
        : "Check the address; another site has to allow this page with an Access-Control-Allow-Origin header.",
    );
  }
  if (response.status >= 500) {
    throw new Unreachable(
      `${url} answers ${response.status} ${response.statusText}.`,
      "The server has a problem; try again later.",
    );
  }
  if (!response.ok) {
    throw new Refused(
      response.status,
      `${url} answers ${response.status} ${response.statusText}.`,
      "Give the folder that gemma4-compile wrote, with all of its files.",
    );
  }
  if (!response.body) {
    throw new Refused(
      response.status,
      `${url} answers ${response.status} without a file.`,
      "Give the folder that gemma4-compile wrote, with all of its files.",
    );
  }
  return response;
}

/** The bytes of an answer, read no further than `most`: `tooLarge` is thrown then, Unreachable if it breaks off. */
export async function readSmall(
  response: Response,
  url: string,
  most: number,
  tooLarge: UserError,
): Promise<Uint8Array<ArrayBuffer>> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let length = 0;
  for (const reader = response.body!.getReader(); ; ) {
    const { done, value } = await unlessStalled(reader.read()).catch(() => {
      void reader.cancel().catch(() => undefined);
      throw new Unreachable(`The connection to ${new URL(url).host} broke off.`, "Try again.");
    });
    if (done) break;
    length += value.length;
    if (length > most) {
      await reader.cancel();
      throw tooLarge;
    }
    parts.push(value);
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
