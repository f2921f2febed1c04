// Downloads a package into the cache that the client reads, file by file, comparing every file with
// its SHA-256, those that lie there already too: the client itself takes a shard as it comes.
import { READ_BY_CLIENT, type Package, type PackageFile } from "../package/package";
import { PROVENANCE } from "../package/provenance";
import { UserError } from "../package/user_error";
import { dropOtherVersions, keyOf, openCache } from "./cache";
import { FileDownload, type Progress } from "./file";

export type { Progress } from "./file";

/** A browser holds some 30 MB for each file on its way into the cache. */
const PARALLEL = 2;
const RETRIES = 4;
const RETRIES_OF_DRAFTER = 1; // the chat waits for it, and does without

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
      new FileDownload(pack, file, retries, progress, () => report(progress), ended).run(),
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
