// What the module did, for its users and its tests.

export interface Stats {
  /** Whether libraries are recognised and steps recorded; false after `disable()`. */
  enabled: boolean;
  /** Devices that a recognised library uses, and such libraries. */
  devices: number;
  libraries: number;
  /** Why something is driven plainly, each reason once. */
  reasons: string[];
  /** The library that chooseLibrary chose last in this thread, and why; empty where it chose none. */
  library: string;
  libraryReason: string;
  /** The known-answer test of the device: "untested", "passed", "passed before", or what is wrong. */
  device: string;
  /** What that test took, without the time of making pipelines. */
  deviceTestMs: number;
  /** Devices whose waits only a timer of the browser's would end, and the empty submissions that ended them sooner. */
  timedDevices: number;
  polls: number;
  /** Compute launches issued, and the passes, submissions, bind groups and uniform buffers made for them. */
  launches: number;
  passes: number;
  submissions: number;
  bindGroups: number;
  uniforms: number;
  /** GPU buffers made, and how many requests small buffers that were let go have served. */
  buffers: number;
  buffersReused: number;
  /** Launches that the module made from the library's arguments, without the client's runtime. */
  directLaunches: number;
  /** Functions of a library recorded, and records dropped because a buffer went. */
  recorded: number;
  dropped: number;
  /** Decode steps: through the library, from the record, and from the record ahead of the client's call. */
  plainSteps: number;
  replayedSteps: number;
  aheadSteps: number;
  /** Submissions of several steps, and steps submitted ahead that the client never asked for. */
  batches: number;
  discardedSteps: number;
  /** Steps run again because the client looked at values that it is usually not interested in. */
  repeatedSteps: number;
  /** Rounds with a drafter: forwards of a few tokens, the tokens drafted in them, and those that came true. */
  draftRounds: number;
  draftedTokens: number;
  acceptedTokens: number;
  /** Of `draftRounds`, those that were submitted before the round before them was read. */
  overlappedRounds: number;
  /** Of `aheadSteps`, those that a draft has saved: their token came with the round of another. */
  guessedSteps: number;
  /** The drafter's weights on the device. */
  drafterBytes: number;
  /** Beginnings of prompts on the device, and tokens of prompts that were copied from there instead of read. */
  keptBytes: number;
  keptTokens: number;
  /** Of beginnings, what came from the browser's storage, and what was written to it. */
  keptBytesRead: number;
  keptBytesWritten: number;
  /** Of the table of per-layer embeddings, what is in a file of the browser's instead of on the device. */
  tableBytesOnHost: number;
  /** Of what was loaded into such files, what was there from an earlier load. */
  tableBytesKept: number;
  /** Rows of such tables that calls needed, and what was read from the files for those that were not in memory. */
  tableRows: number;
  tableReads: number;
  tableBytesRead: number;
  /** Why that table lies where it does, by the last `placeTable`; empty where nobody chose. */
  tableReason: string;
  /**
   * Milliseconds of a step that ran ahead, the least; and of one that the client waited for alone; of the model that was
   * loaded last. 0: not measured.
   */
  stepMs: number;
  aloneMs: number;
}

export const counts: Stats = {
  enabled: true,
  devices: 0,
  libraries: 0,
  reasons: [],
  library: "",
  libraryReason: "",
  device: "untested",
  deviceTestMs: 0,
  timedDevices: 0,
  polls: 0,
  launches: 0,
  passes: 0,
  submissions: 0,
  bindGroups: 0,
  uniforms: 0,
  buffers: 0,
  buffersReused: 0,
  directLaunches: 0,
  recorded: 0,
  dropped: 0,
  plainSteps: 0,
  replayedSteps: 0,
  aheadSteps: 0,
  batches: 0,
  discardedSteps: 0,
  repeatedSteps: 0,
  draftRounds: 0,
  draftedTokens: 0,
  acceptedTokens: 0,
  overlappedRounds: 0,
  guessedSteps: 0,
  drafterBytes: 0,
  keptBytes: 0,
  keptTokens: 0,
  keptBytesRead: 0,
  keptBytesWritten: 0,
  tableBytesOnHost: 0,
  tableBytesKept: 0,
  tableRows: 0,
  tableReads: 0,
  tableBytesRead: 0,
  tableReason: "",
  stepMs: 0,
  aloneMs: 0,
};

/** Who hears of a step's time, now and then. */
export const pace: { heard: (() => void) | undefined } = { heard: undefined };

/** Notes a step's time after `times` measurements, the first of which say little. */
export function noteStepMs(ms: number, times: number): void {
  if (times < FIRST_PACE) return;
  counts.stepMs = counts.stepMs > 0 ? Math.min(counts.stepMs, ms) : ms;
  if (Number.isInteger(Math.log2(times))) pace.heard?.();
}

const FIRST_PACE = 8;

const MAX_REASONS = 32;

/** Notes why something is driven plainly. */
export function because(reason: string): void {
  if (!counts.reasons.includes(reason) && counts.reasons.length < MAX_REASONS) counts.reasons.push(reason);
}
