// Downloads a package into the cache that the client reads, file by file, comparing every file with
// its SHA-256, those that lie there already too: the client itself takes a shard as it comes.
import { READ_BY_CLIENT, type Package, type PackageFile } from "../package/package";
import { PROVENANCE } from "../package/provenance";
import { UserError } from "../package/user_error";
import { dropOtherVersions, keyOf, openCache } from "./cache";
import { FileDownload, type Progress } from "./file";
import { CheckRoom } from "./piece_check";

export type { Progress } from "./file";

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
  const room = new CheckRoom();
  // One after the other: a browser holds some 40 MB for each file on its way into the cache.
  const fetchAll = async (files: PackageFile[], retries: number) => {
    for (const file of files) {
      signal.throwIfAborted();
      await new FileDownload(pack, file, retries, progress, () => report(progress), signal, room).run();
    }
  };
  const isOfDrafter = ({ name }: PackageFile) => pack.drafter.has(name);
  // Weights after what is small: a download that breaks off has the library by then.
  const isShard = ({ name }: PackageFile) => pack.shards.has(name);
  const ofModel = pack.files.filter((file) => !isOfDrafter(file));
  await fetchAll([...ofModel.filter((file) => !isShard(file)), ...ofModel.filter(isShard)], RETRIES);
  try {
    await fetchAll(pack.files.filter(isOfDrafter), pack.offline ? 0 : RETRIES_OF_DRAFTER);
    return undefined;
  } catch (error) {
    if (signal.aborted || !(error instanceof UserError)) throw error;
    return error;
  }
}

/** The library's bytes as they were checked; the client gets them as a blob. */
export async function storedLibrary(pack: Package): Promise<Blob> {
  const cache = await openCache(pack, pack.library);
  const found = await cache.match(keyOf(pack, pack.library));
  if (!found) throw new UserError(`${pack.library} is gone from the browser's storage.`, "Load the model again.");
  return new Blob([await found.arrayBuffer()], { type: "application/wasm" });
}
