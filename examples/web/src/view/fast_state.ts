// What gemma4-web does for the model that runs, in words.
import type { Stats } from "gemma4-web/fast";
import type { BeginningsWish } from "../package/beginnings";
import type { Package, TableWish } from "../package/package";
import { formatBytes, formatCount } from "../package/units";

/** The module looks at a step or two before it records one. */
const FIRST_STEPS = 4;
const SWITCHED_OFF = "disable() was called";
/** Why gemma4-web drafts no tokens. */
const OF_DRAFTS = /^no (drafter|tokens are drafted): /;
/** Why it keeps no beginnings, or no more of them. */
const OF_BEGINNINGS = /beginnings/;
const MISSING = "its files did not arrive";
const LATER = " The change takes effect when the model starts again: reload the page.";

/** `stats`: of the model that runs, if one does; `wanted`: the switch. */
export function describeFast(stats: Stats | undefined, wanted: boolean): string {
  if (!stats) return "";
  const isOff = stats.reasons.includes(SWITCHED_OFF);
  const state = isOff ? "Off for this model." : stateOf(stats);
  return wanted === isOff ? state + LATER : state;
}

/** Which of the package's libraries is used, and why. */
export function describeLibrary(pack: Pick<Package, "choice" | "libraries"> | undefined): string {
  if (!pack?.choice) return "";
  const { name, why } = pack.choice;
  return pack.libraries.length > 1 ? `Library ${name}: ${why}.` : `The package has one library, ${name}.`;
}

/**
 * What becomes of the package's drafter.
 *
 * `loaded`: the package that was opened; its drafter is left out where the switch was off then.
 */
export function describeDrafts(
  stats: Stats | undefined,
  loaded: Pick<Package, "drafter" | "hasDrafter"> | undefined,
  wanted: boolean,
): string {
  if (!stats || !loaded) return "";
  if (!loaded.hasDrafter) return "This package has no drafter.";
  const isOff = loaded.drafter.size === 0;
  const state = isOff ? "Off for this model." : draftsOf(stats);
  return wanted === isOff ? state + LATER : state;
}

/**
 * Where the table of per-layer embeddings of the package lies, why, and what that saves.
 *
 * `stats`: of the model that runs; without one where it is to lie.
 */
export function describeTable(
  stats: Stats | undefined,
  pack: Pick<Package, "table"> | undefined,
  wanted: TableWish,
): string {
  if (!pack) return "";
  const { table } = pack;
  if (!table) return "This package has no per-layer embeddings that could lie elsewhere.";
  const [isOnHost, why] = stats ? placeNow(stats, table) : [table.place === "host", table.why];
  const size = formatBytes(table.savedBytes);
  const state = isOnHost
    ? `In the browser's storage, which saves ${size} of graphics memory: ${why}.`
    : `On the graphics device, where they take ${size}: ${why}.`;
  return stats && wanted !== table.wish ? state + LATER : state;
}

/** Where the place that was chosen could not be had, the module's own reason. */
function placeNow(
  { tableBytesOnHost, tableReason }: Stats,
  { place, why }: NonNullable<Package["table"]>,
): [boolean, string] {
  const isOnHost = tableBytesOnHost > 0;
  return [isOnHost, isOnHost === (place === "host") ? why : tableReason];
}

/**
 * What is kept of prompts, and why so much.
 *
 * `stats`: of the model that runs; without one what is to be kept.
 */
export function describeBeginnings(
  stats: Stats | undefined,
  pack: Pick<Package, "beginnings"> | undefined,
  wanted: BeginningsWish,
): string {
  if (!pack?.beginnings) return "";
  const { bytes, why, wish } = pack.beginnings;
  const state = bytes === 0 ? `Off: ${why}.` : `Up to ${formatBytes(bytes)}: ${why}.${stats ? keptOf(stats) : ""}`;
  return stats && wanted !== wish ? state + LATER : state;
}

function keptOf({ keptBytes, keptBytesRead, keptTokens, reasons }: Stats): string {
  const copied = keptTokens ? `, and ${formatCount(keptTokens)} tokens were not read again` : "";
  const stored = keptBytesRead ? `, ${formatBytes(keptBytesRead)} of it from an earlier visit` : "";
  const now = keptBytes ? ` Now ${formatBytes(keptBytes)}${stored}${copied}.` : "";
  const problem = reasons.find((reason) => OF_BEGINNINGS.test(reason));
  return problem ? `${now} Not more: ${problem}.` : now;
}

function draftsOf({ drafterBytes, draftRounds, draftedTokens, acceptedTokens, reasons }: Stats): string {
  if (drafterBytes === 0) return `Not active: ${reasons.find((why) => OF_DRAFTS.test(why)) ?? MISSING}.`;
  if (draftRounds === 0) return "Ready: it begins within the first tokens of an answer.";
  return `Active: of ${formatCount(draftedTokens)} drafts ${formatCount(acceptedTokens)} came true.`;
}

function stateOf({ enabled, libraries, reasons, plainSteps, replayedSteps, aheadSteps }: Stats): string {
  const ofSteps = reasons.filter((reason) => !OF_DRAFTS.test(reason) && !OF_BEGINNINGS.test(reason));
  const why = ofSteps.length ? `${ofSteps.join("; ")}.` : "";
  const fastSteps = replayedSteps + aheadSteps;
  if (fastSteps > 0) {
    const replayed = replayedSteps ? `, ${formatCount(replayedSteps)} were replayed one at a time` : "";
    const ahead = `of ${formatCount(plainSteps + fastSteps)} decode steps ${formatCount(aheadSteps)} ran ahead of the client`;
    return `Active: ${ahead}${replayed}.${why && ` Left to the client: ${why}`}`;
  }
  if (why) return `Not active: ${why}`;
  if (!enabled || !libraries) return "Not active: the model's library is not known to it.";
  if (plainSteps > FIRST_STEPS) return "Not active: the client calls the model in a way that it does not know.";
  return "Ready: it begins within the first tokens of an answer.";
}
