// How much of the graphics device is for beginnings of conversations that were read before.
import { isMobileAgent, pageMemory } from "gemma4-web/choose";
import type { Package } from "./package";
import { type Device, neededMemory } from "./requirements";
import { formatBytes, GIB, MIB } from "./units";

/**
 * Whose they are on an origin that has other applications. Copies of the page in several folders have the same chats, so that
 * what goes with a chat is theirs, too.
 */
export const APPLICATION = "gemma4-chat";

/** What a person wants: the page's own choice, nothing, or so many MiB. */
export const BEGINNINGS = ["auto", "off", "128", "512", "2048"] as const;
export type BeginningsWish = (typeof BEGINNINGS)[number];

export interface BeginningsChoice {
  /** Of the device; 0: nothing is kept. */
  bytes: number;
  /** In a sentence, without its full stop. */
  why: string;
  wish: BeginningsWish;
}

interface Wishes {
  beginnings: BeginningsWish;
  /** Graphics memory that the person allows, in bytes; 0: no limit. */
  allowedMemory: number;
  /** With gemma4-web between the client and the device, which keeps them. */
  fast: boolean;
}

/** Of what the model takes: some twenty prompts' chunks of E2B. */
const SHARE_OF_MODEL = 1 / 8;
/** Of what is left beside the model: the rest is the browser's and other pages'. */
const SHARE_OF_REST = 1 / 4;
const LEAST_BYTES = 16 * MIB;
const MOST_BYTES = 2 * GIB;
const SMALL_BYTES = 64 * MIB;

/** The choice for a package whose table has its place, at so many tokens of context. */
export function beginningsFor(
  pack: Pick<Package, "requirements" | "contextLength" | "table">,
  { beginnings: wish, allowedMemory, fast }: Wishes,
  device: Pick<Device, "memoryBytes" | "limits">,
  context: number,
): BeginningsChoice {
  const off = (why: string): BeginningsChoice => ({ bytes: 0, why, wish });
  if (!fast) return off("only fast decoding keeps them");
  if (wish === "off") return off("it was asked for");
  if (wish !== "auto") return { bytes: Number(wish) * MIB, why: "it was asked for", wish };
  const isMobile = isMobileAgent(navigator.userAgent, navigator.maxTouchPoints);
  if (isMobile) return off("a phone ends pages that take much memory");
  const needed = neededMemory(pack, context);
  const wanted = Math.min(MOST_BYTES, Math.max(SMALL_BYTES, needed * SHARE_OF_MODEL));
  const memory = pageMemory(allowedMemory, device.memoryBytes, device.limits.maxBufferSize, isMobile);
  if (!memory) return { bytes: Math.floor(wanted), why: "there is room for them", wish };
  const left = (memory.bytes - needed) * SHARE_OF_REST;
  if (left < LEAST_BYTES) return off(`the model takes ${formatBytes(needed)}, and ${memory.why}`);
  return { bytes: Math.floor(Math.min(wanted, left)), why: `${memory.why}`, wish };
}
