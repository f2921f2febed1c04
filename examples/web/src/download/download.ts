// Downloads a package into the cache that the client reads, file by file, comparing every file with
// its SHA-256, those that lie there already too: the client itself takes a shard as it comes.
import { READ_BY_CLIENT, type Package, type PackageFile } from "../package/package";
import { PROVENANCE } from "../package/provenance";
import { formatBytes } from "../package/units";
import { UserError } from "../package/user_error";
import { dropOtherVersions, keyOf, openCache } from "./cache";
import { fetchChecked, Unreachable } from "./fetch";
import { sha256 } from "./hash";

const PARALLEL = 3;
const RETRIES = 4;
const RETRIES_OF_DRAFTER = 1; // the chat waits for it, and does without
const FIRST_PAUSE_MS = 1000;

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

/**
 * After this every file of the package lies in the client's cache, and is what the provenance names.
 *
 * The drafter's files come last. Returns what is wrong where they do not come: the model answers without them.
 */
export async function download(
  pack: Package,
  report: (progress: Progress) => void,
  signal: AbortSignal,
): Promise<UserError | undefined> {
  // What has no hash the client would ask the server for, and take as it comes.
  const unnamed = READ_BY_CLIENT.find((name) => !pack.files.some((file) => file.name === name));
  if (unnamed) {
    throw new UserError(
      `${PROVENANCE} names no ${unnamed}, which the WebLLM client reads.`,
      "The package on the server is damaged, or something else wrote it: compile it again and upload all of its files.",
    );
  }
  await dropOtherVersions(pack);
  const progress: Progress = {
    checkedBytes: 0,
    downloadedBytes: 0,
    totalBytes: pack.totalBytes,
    repaired: [],
    waiting: false,
  };
  const fetchAll = (files: PackageFile[], retries: number) =>
    inParallel(files, signal, (file, ended) =>
      new Download(pack, file, retries, progress, () => report(progress), ended).run(),
    );
  const isOfDrafter = ({ name }: PackageFile) => pack.drafter.has(name);
  await fetchAll(
    pack.files.filter((file) => !isOfDrafter(file)),
    RETRIES,
  );
  try {
    await fetchAll(pack.files.filter(isOfDrafter), pack.offline ? 0 : RETRIES_OF_DRAFTER);
    return undefined;
  } catch (error) {
    if (signal.aborted || !(error instanceof UserError)) throw error;
    return error;
  }
}

/**
 * Runs an action on all files, some at a time; the first failure ends the others, too. None of them runs any more when it
 * ends: whoever aborts a download to remove its files waits for that.
 */
async function inParallel(
  files: PackageFile[],
  signal: AbortSignal,
  run: (file: PackageFile, signal: AbortSignal) => Promise<void>,
): Promise<void> {
  const abort = new AbortController();
  const ended = AbortSignal.any([signal, abort.signal]);
  const queue = [...files];
  const failures: unknown[] = [];
  const work = async () => {
    try {
      for (let file = queue.shift(); file; file = queue.shift()) {
        ended.throwIfAborted();
        await run(file, ended);
      }
    } catch (error) {
      failures.push(error);
      abort.abort();
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, work));
  if (failures.length) throw failures[0];
}

/** The library's bytes as they were checked; the client gets them as a blob. */
export async function storedLibrary(pack: Package): Promise<Blob> {
  const cache = await openCache(pack, pack.library);
  const found = await cache.match(keyOf(pack, pack.library));
  if (!found) throw new UserError(`${pack.library} is gone from the browser's storage.`, "Load the model again.");
  return new Blob([await found.arrayBuffer()], { type: "application/wasm" });
}

class Download {
  constructor(
    private readonly pack: Package,
    private readonly file: PackageFile,
    private readonly retries: number,
    private readonly progress: Progress,
    private readonly report: () => void,
    private readonly signal: AbortSignal,
  ) {}

  async run(): Promise<void> {
    const { pack, file, progress } = this;
    const cache = await openCache(pack, file.name);
    const key = keyOf(pack, file.name);
    const stored = await cache.match(key);
    if (stored) {
      const data = new Uint8Array(await stored.arrayBuffer());
      if (data.length === file.nbytes && (await sha256(data)) === file.sha256) {
        progress.checkedBytes += file.nbytes;
        this.report();
        return;
      }
      progress.repaired.push(file.name);
      await cache.delete(key);
    }
    const data = await this.fetchVerified();
    try {
      await cache.put(key, new Response(data, { headers: { "content-type": typeOf(file.name) } }));
    } catch (error) {
      throw quotaError(error, pack);
    }
  }

  /** A second attempt goes past every cache on the way; a file that is wrong then is wrong on the server. */
  private async fetchVerified(): Promise<Uint8Array<ArrayBuffer>> {
    for (const mode of ["no-cache", "reload"] as const) {
      const data = await this.fetchWhole(mode);
      if (data && (await sha256(data)) === this.file.sha256) return data;
      if (data) this.count(-data.length);
    }
    throw new UserError(
      `${this.file.name} arrived damaged: it is not the file that provenance.json names.`,
      "Try again; if it stays so, the package on the server is damaged or incomplete: upload it again.",
    );
  }

  /** All bytes, over several requests if the network breaks; undefined if the length is wrong. */
  private async fetchWhole(mode: RequestCache): Promise<Uint8Array<ArrayBuffer> | undefined> {
    const data = this.allocate();
    let filled = 0;
    for (let attempt = 0; ; attempt++) {
      try {
        const headers: HeadersInit = filled ? { range: `bytes=${filled}-` } : {};
        const response = await fetchChecked(this.pack.url + this.file.name, {
          cache: mode,
          headers,
          signal: this.signal,
        });
        if (filled && response.status !== 206) {
          this.count(-filled); // the server does not do ranges: from the beginning
          filled = 0;
        }
        for (const reader = response.body!.getReader(); ; ) {
          const { done, value } = await reader.read();
          if (done) break;
          if (filled + value.length > data.length) {
            await reader.cancel();
            this.count(-filled);
            return undefined;
          }
          data.set(value, filled);
          filled += value.length;
          this.count(value.length);
        }
        if (filled === data.length) return data;
        this.count(-filled);
        return undefined;
      } catch (error) {
        if (this.signal.aborted || !isNetworkError(error)) throw error;
        if (attempt === this.retries) throw asUnreachable(error, this.pack);
        await this.pause(FIRST_PAUSE_MS * 2 ** attempt);
      }
    }
  }

  private allocate(): Uint8Array<ArrayBuffer> {
    const { name, nbytes } = this.file;
    try {
      return new Uint8Array(nbytes);
    } catch {
      throw new UserError(
        `This browser has no room for ${name}, which has ${formatBytes(nbytes)}.`,
        "Close other tabs, or use a smaller package.",
      );
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

// A body that breaks off is a TypeError or a "network error" of the stream.
function isNetworkError(error: unknown): boolean {
  return error instanceof Unreachable || error instanceof TypeError || (error as Error)?.name === "NetworkError";
}

function asUnreachable(error: unknown, pack: Package): UserError {
  if (error instanceof UserError) return error;
  return new Unreachable(
    `The connection to ${new URL(pack.url).host} broke off.`,
    "What has arrived is kept: load again to go on.",
  );
}

function quotaError(error: unknown, pack: Package): unknown {
  if ((error as Error)?.name !== "QuotaExceededError") return error;
  return new UserError(
    `The browser's storage for this site is full: the model takes ${formatBytes(pack.totalBytes)}.`,
    "Remove other downloaded models in the settings, free space on the disk, or leave private browsing.",
  );
}

function typeOf(name: string): string {
  if (name.endsWith(".json")) return "application/json";
  return name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
}
