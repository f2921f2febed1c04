// One file of a package into the client's cache: what arrives goes on as it comes, compared with its SHA-256 on the way, so
// that a shard of any size takes the memory of a piece. The cache keeps nothing of a file that ends wrong.
//
// A download compares the whole file, which hashes in JavaScript, and its pieces where they are listed; what lies there by then
// is compared at each start by the pieces alone, which the browser hashes twice as fast.
import type { Package, PackageFile } from "../package/package";
import { formatBytes } from "../package/units";
import { UserError } from "../package/user_error";
import { Stalled, unlessStalled } from "../patience";
import { keyOf, openCache } from "./cache";
import { Unreachable } from "./fetch";
import { FileRequests } from "./file_requests";
import { sha256 } from "./hash";
import { type CheckRoom, PieceCheck } from "./piece_check";
import { piecesOf } from "./pieces";
import { Sha256Stream } from "./sha256_stream";
import { silentStorage, storingError } from "./storage";

const FIRST_PAUSE_MS = 1000;
/** Of a stored file without pieces that is hashed at once, by the browser's own code, which is faster, and copies it. */
const AT_ONCE_BYTES = 32 * 2 ** 20;

export interface Progress {
  /** Of files that lay there already, by the end of their check. */
  checkedBytes: number;
  downloadedBytes: number;
  totalBytes: number;
  /** Names of files that lay there damaged and are downloaded again. */
  repaired: string[];
  /** A request failed, and the next attempt waits. */
  waiting: boolean;
}

/** What arrived is not what `provenance.json` names. */
class Damaged extends Error {}

export class FileDownload {
  private received = 0;
  private failure: unknown;

  constructor(
    private readonly pack: Package,
    private readonly file: PackageFile,
    private readonly retries: number,
    private readonly progress: Progress,
    private readonly report: () => void,
    private readonly signal: AbortSignal,
    private readonly room: CheckRoom,
  ) {}

  async run(): Promise<void> {
    const { pack, file, progress } = this;
    const cache = await openCache(pack, file.name);
    const key = keyOf(pack, file.name);
    const found = await this.look(cache, key);
    if (found === "right") {
      progress.checkedBytes += file.nbytes;
      this.report();
      return;
    }
    if (found !== "nothing") progress.repaired.push(file.name);
    if (found === "wrong") await cache.delete(key); // what cannot be read now may be right: it stays until another is there
    // A second attempt goes past every cache on the way; a file that is wrong then is wrong on the server.
    for (const mode of ["no-cache", "reload"] as const) {
      try {
        const headers = { "content-type": typeOf(file.name) };
        await cache.put(key, new Response(this.body(mode), { headers }));
        return;
      } catch (error) {
        const cause = this.failure ?? storingError(error, file.name, formatBytes(pack.totalBytes));
        if (!(cause instanceof Damaged)) throw cause;
      }
    }
    throw new UserError(
      `${file.name} arrived damaged: it is not the file that provenance.json names.`,
      "Try again; if it stays so, the package on the server is damaged or incomplete: upload it again.",
    );
  }

  /** What lies there of the file. A storage that hands out nothing is asked a second time. */
  private async look(cache: Cache, key: string): Promise<"right" | "wrong" | "unreadable" | "nothing"> {
    for (let attempt = 0; attempt < 2; attempt++) {
      try {
        const stored = await unlessStalled(cache.match(key));
        if (!stored) return "nothing";
        return (await this.isStored(stored)) ? "right" : "wrong";
      } catch (error) {
        if (this.signal.aborted || error instanceof UserError) throw error;
        if (error instanceof Stalled) continue;
        console.warn(`${this.file.name} cannot be read from the browser's storage:`, error);
        return "unreadable";
      }
    }
    throw silentStorage(this.file.name);
  }

  /** Whether a stored file is what is named. Each piece is news: a slow disk takes minutes for a large file. */
  private async isStored(stored: Response): Promise<boolean> {
    const { file, room, signal } = this;
    signal.throwIfAborted();
    const check = file.pieces ? new PieceCheck(file.pieces, room) : new WholeCheck(file, room);
    let length = 0;
    for await (const piece of piecesOf(stored.body!)) {
      signal.throwIfAborted();
      length += piece.length;
      if (length > file.nbytes || !(await check.update(piece))) return false;
      this.report();
    }
    return length === file.nbytes && check.end();
  }

  /** The file's bytes, over several requests if the network breaks; no more are asked for than are taken. */
  private body(mode: RequestCache): ReadableStream<Uint8Array<ArrayBuffer>> {
    this.failure = undefined;
    this.received = 0;
    const pieces = this.pieces(mode);
    const fail = (error: unknown) => {
      this.failure = error;
      this.count(-this.received);
      this.received = 0;
      return error;
    };
    return new ReadableStream(
      {
        pull: async (controller) => {
          try {
            const { done, value } = await pieces.next();
            if (done) controller.close();
            else controller.enqueue(value);
          } catch (error) {
            controller.error(fail(error));
          }
        },
        cancel: async () => {
          await pieces.return();
        },
      },
      { highWaterMark: 0 },
    );
  }

  private async *pieces(mode: RequestCache): AsyncGenerator<Uint8Array<ArrayBuffer>, void, void> {
    const { name, nbytes } = this.file;
    const requests = new FileRequests(this.pack.url + name, nbytes, this.signal);
    const hash = new Sha256Stream();
    const pieces = this.file.pieces && new PieceCheck(this.file.pieces, this.room);
    for (let attempt = 0; ; attempt++) {
      const before = this.received;
      try {
        for await (const piece of requests.from(this.received, mode)) {
          if (this.received + piece.length > nbytes) throw new Damaged();
          hash.update(piece);
          if (pieces && !(await pieces.update(piece))) throw new Damaged();
          this.received += piece.length;
          this.count(piece.length);
          yield piece;
        }
        if (this.received !== nbytes || hash.digest() !== this.file.sha256) throw new Damaged();
        if (pieces && !(await pieces.end())) throw new Damaged();
        return;
      } catch (error) {
        if (this.signal.aborted || !isNetworkError(error)) throw error;
        if (this.received > before) attempt = Math.min(attempt, 1); // it goes on, if slowly
        if (attempt === this.retries) throw asUnreachable(error, this.pack);
        await this.pause(FIRST_PAUSE_MS * 2 ** attempt);
      }
    }
  }

  private count(bytes: number): void {
    this.progress.downloadedBytes += bytes;
    this.report();
  }

  private async pause(ms: number): Promise<void> {
    this.progress.waiting = true;
    this.report();
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, ms);
      addEventListener("online", () => resolve(), { once: true });
      const giveUp = () => {
        clearTimeout(timer);
        resolve();
      };
      this.signal.addEventListener("abort", giveUp, { once: true });
    });
    this.progress.waiting = false;
    this.signal.throwIfAborted();
  }
}

/** A file against its own hash: a small one is hashed at once, a large one as it is read. */
class WholeCheck {
  private readonly hash: Sha256Stream | undefined;
  private readonly atOnce: Uint8Array<ArrayBuffer> | undefined;
  private length = 0;

  constructor(
    private readonly file: PackageFile,
    room: CheckRoom,
  ) {
    if (file.nbytes > AT_ONCE_BYTES) this.hash = new Sha256Stream();
    else this.atOnce = room.of(file.nbytes);
  }

  async update(data: Uint8Array): Promise<boolean> {
    this.hash?.update(data);
    this.atOnce?.set(data, this.length);
    this.length += data.length;
    return true;
  }

  async end(): Promise<boolean> {
    return (this.atOnce ? await sha256(this.atOnce) : this.hash!.digest()) === this.file.sha256;
  }
}

// A body that breaks off is a TypeError or a "network error" of the stream; one that brings nothing more is Stalled.
function isNetworkError(error: unknown): boolean {
  const isBroken = error instanceof TypeError || (error as Error)?.name === "NetworkError";
  return isBroken || error instanceof Unreachable || error instanceof Stalled;
}

function asUnreachable(error: unknown, pack: Package): UserError {
  if (error instanceof UserError) return error;
  return new Unreachable(
    `The connection to ${new URL(pack.url).host} broke off.`,
    "What has arrived is kept: load again to go on.",
  );
}

function typeOf(name: string): string {
  if (name.endsWith(".json")) return "application/json";
  return name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
}
