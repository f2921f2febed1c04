// The requests for one file: a long one comes in parts, for what arrives faster than it is hashed waits in the page's memory,
// in Firefox without a bound.
import { fetchChecked } from "./fetch";
import { piecesOf } from "./pieces";

/** Of one request for a file that is longer than `WHOLE_BYTES`. */
const PART_BYTES = 16 * 2 ** 20;
/** Of a file that comes by one request: shards are no longer by default. */
const WHOLE_BYTES = 32 * 2 ** 20;

export class FileRequests {
  private partBytes: number;

  constructor(
    private readonly url: string,
    private readonly nbytes: number,
    private readonly signal: AbortSignal,
    partBytes = nbytes > WHOLE_BYTES ? PART_BYTES : nbytes,
  ) {
    this.partBytes = partBytes;
  }

  /**
   * The bytes from `begin` on. Fewer come where a server gives fewer, and more where it has more: who takes them counts.
   * Throws as `fetchChecked` does, and what a body that breaks off throws.
   */
  async *from(begin: number, mode: RequestCache): AsyncGenerator<Uint8Array<ArrayBuffer>, void, void> {
    if (begin && begin === this.nbytes) return; // all came before it broke off, and a server has no such range
    let at = begin;
    let end: number;
    do {
      end = Math.min(at + this.partBytes, this.nbytes);
      try {
        for await (const piece of this.part(at, end, mode)) {
          at += piece.length;
          yield piece;
        }
      } catch (error) {
        if (at === 0) this.partBytes = this.nbytes; // a server of another site may not allow parts
        throw error;
      }
    } while (at === end && end < this.nbytes);
  }

  /** What one request brings of the bytes before `end`, or of all where that is the file's end. */
  private async *part(
    begin: number,
    end: number,
    mode: RequestCache,
  ): AsyncGenerator<Uint8Array<ArrayBuffer>, void, void> {
    const last = end < this.nbytes ? end - 1 : "";
    const headers: HeadersInit = begin || last ? { range: `bytes=${begin}-${last}` } : {};
    const response = await fetchChecked(this.url, { cache: mode, headers, signal: this.signal });
    // A server that does no ranges begins anew: what came before has gone on already.
    let passed = begin && response.status !== 206 ? begin : 0;
    for await (const all of piecesOf(response.body!)) {
      const piece = all.subarray(Math.min(passed, all.length));
      passed -= all.length - piece.length;
      if (piece.length) yield piece;
    }
  }
}
