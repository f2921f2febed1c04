// Chooses one of a package's model libraries for the device at hand. Importing it changes nothing in the thread.
import { among, choose } from "./choose/choose";
import type { Choice, ChooseOptions, JudgedAdapter, TableChoice, TableOptions } from "./choose/options";
import { nameOf, packageOf, tablePlace } from "./choose/place";
import { type Forgotten, removeBeginnings, short } from "./library/beginning_files";
import { removeRowFiles } from "./library/row_file";
import type { WebLibrary } from "./choose/provenance";

export {
  canSetSubgroups,
  isAlways,
  CLIENT_LIMITS,
  clientLimit,
  lacking,
  type LimitName,
  multiplies,
  SUBGROUP_MATRICES,
  traitsOf,
  type Traits,
} from "./choose/fits";
export type {
  Choice,
  ChooseOptions,
  JudgedAdapter,
  Measured,
  TableChoice,
  TableOptions,
  TablePlace,
} from "./choose/options";
export { isMobileAgent, type PageMemory, pageMemory } from "./choose/table_place";
export { librariesOf, type Needs, type WebLibrary } from "./choose/provenance";

/**
 * The library of the package at `packageUrl` that runs on this device, right and fastest: a part of a WebLLM model
 * record, `{ model, model_id, ...(await chooseLibrary(model)), ... }`.
 *
 * Where several fit, each runs a few of its kernels, once a device and package, 400 ms in all. `adapter`: the one to
 * judge; by default the one that the client will get. Throws an Error in words where none fits.
 */
export async function chooseLibrary(
  packageUrl: string,
  adapter?: JudgedAdapter,
  options: ChooseOptions = {},
): Promise<Choice> {
  return choose(packageUrl, adapter, options);
}

/** The same among libraries whose list somebody has read; `folder` is the address of their files. */
export async function chooseAmong(
  folder: string,
  libraries: readonly WebLibrary[],
  adapter?: JudgedAdapter,
  options: ChooseOptions = {},
): Promise<Choice> {
  return among(folder, libraries, adapter, options);
}

/**
 * Where the table of per-layer embeddings of the package at `packageUrl` is best on this device: on the host where memory is
 * short, on a phone, or where a step takes so long that nothing is lost. `placeTable` of gemma4-web/fast does what this says.
 */
export async function chooseTablePlace(
  packageUrl: string,
  adapter?: JudgedAdapter,
  options: TableOptions = {},
): Promise<TableChoice> {
  return tablePlace(packageUrl, adapter, options);
}

/** Removes the tables that are kept on the host, but those of the packages at these addresses, and those in use. */
export async function forgetTables(but: readonly string[] = []): Promise<void> {
  await removeRowFiles(await Promise.all(but.map(nameOf)));
}

/**
 * Removes beginnings of prompts that `lastingBeginnings` of gemma4-web/fast has written: those that no others than `owners` have
 * used; or those of other packages than at these addresses, and of other owners than these; or all. Of one application alone.
 */
export async function forgetBeginnings({ butPackages, ...others }: Forgotten = {}): Promise<void> {
  const packages = butPackages && { butPackages: await Promise.all(butPackages.map((url) => short(packageOf(url)))) };
  await removeBeginnings({ ...others, ...packages });
}
