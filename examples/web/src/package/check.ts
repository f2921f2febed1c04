// What a package needs of this browser before it starts, as the page shows it.
import type { Settings } from "../chat/settings";
import { missingBytes } from "../download/cache";
import { describeEnd, type Work } from "../engine/last_end";
import type { StartState } from "../view/start";
import { offeredModels, smallerModels } from "./models";
import type { Package } from "./package";
import { contextLengths, type Device, judge, neededMemory } from "./requirements";
import { formatCount } from "./units";

const MOST_SMALLER = 3;

/** What fits, what does not, and smaller models of this page where memory is short; `ended`: at what the page ended last. */
export async function checkOf(
  pack: Package,
  device: Device,
  { allowedMemory: allowed, embedderBytes }: Settings,
  context: number,
  ended: Work | undefined,
): Promise<Extract<StartState, { kind: "check" }>> {
  const missing = await missingBytes(pack);
  const findings = judge(pack, device, context, allowed, missing, embedderBytes);
  if (ended) {
    const { message: text, hint } = describeEnd(ended, formatCount);
    findings.unshift({ kind: "risk", text, hint, isMemory: true });
  }
  const isShort = findings.some(({ kind, isMemory }) => isMemory && kind !== "fits");
  const offer = isShort && !pack.offline ? await offeredModels(document.baseURI) : { models: [] };
  const smaller = smallerModels(offer, neededMemory(pack, context), pack.totalBytes).slice(0, MOST_SMALLER);
  return { kind: "check", pack, findings, missing, contexts: contextLengths(pack), context, allowed, smaller };
}
