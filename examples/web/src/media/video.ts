// Videos of any kind that the browser plays, as frames at even distances.
import { formatBytes, formatCount, GIB, MIB } from "../package/units";
import { UserError } from "../package/user_error";
import type { PictureInput } from "./inputs";
import { draw, type Picture } from "./picture";
import { durationOf, happens, seek } from "./player";

const LARGEST_BYTES = GIB; // it is not read as a whole
const MOST_FRAMES = 32; // those of transformers' video processor
const LONGEST_SIDE = 8192;
const KEPT_SIDE = 1024;
const AROUND_ROWS = 8; // what stands around a frame: its time, and the tokens that open and close it
const SHARE_OF_CONTEXT = 0.5;
const PATIENCE_MS = 20_000;
/** How MP4 and Matroska say that there is a track of pictures, of whatever kind. */
const PICTURES = /hdlr.{8}vide|V_(AV1|MPEG|VP[89])/s;

/** A picture of a video, and its time from the beginning. */
export interface Frame extends Picture {
  seconds: number;
}

/** How many frames a video gives: at most half of the context is theirs, since the client takes each as a picture. */
export function framesOf(context: number, { embeddings }: PictureInput): number {
  const fitting = Math.floor((SHARE_OF_CONTEXT * context) / (embeddings + AROUND_ROWS));
  return Math.max(1, Math.min(MOST_FRAMES, fitting));
}

/** The text before a frame, as transformers' processor writes it. */
export function timestamp(seconds: number): string {
  const digits = (value: number) => String(Math.floor(value)).padStart(2, "0");
  return `${digits(seconds / 60)}:${digits(seconds % 60)}`;
}

/** Whether a file of a video's type has sound alone, as recordings may; not where the browser cannot show its pictures. */
export async function isSoundAlone(file: Blob): Promise<boolean> {
  const ends = await new Blob([file.slice(0, MIB), file.slice(-MIB)]).text();
  if (!file.size || PICTURES.test(ends)) return false;
  return withPlayer(file, "", async ({ videoWidth }) => videoWidth === 0).catch(() => false);
}

/** Throws a UserError that says what is wrong with the file. `made` is told after each frame. */
export async function readVideo(
  file: Blob,
  name: string,
  count: number,
  made: (frames: number) => void = () => {},
): Promise<Frame[]> {
  if (!file.size) throw new UserError(`${name} is empty.`, "Choose another video.");
  if (file.size > LARGEST_BYTES) {
    throw new UserError(
      `${name} has ${formatBytes(file.size)}; a video may have at most ${formatBytes(LARGEST_BYTES)}.`,
      "Cut out what matters.",
    );
  }
  return withPlayer(file, name, async (player) => {
    checkSize(player, name);
    const duration = await secondsOf(player, name);
    const taken = duration ? count : 1; // a recording of one frame ends when it begins
    const frames: Frame[] = [];
    for (let index = 0; index < taken; index++) {
      frames.push(await frameAt(player, (index * duration) / taken, name));
      made(frames.length);
    }
    return frames;
  });
}

/** A player that knows what the file's header says. */
async function withPlayer<T>(file: Blob, name: string, use: (player: HTMLVideoElement) => Promise<T>): Promise<T> {
  const url = URL.createObjectURL(file);
  const player = document.createElement("video");
  player.muted = true;
  player.preload = "auto";
  try {
    const loaded = happens(player, "loadedmetadata", PATIENCE_MS, () => {
      player.src = url;
    });
    await playing(name, loaded);
    return await use(player);
  } finally {
    player.removeAttribute("src");
    player.load(); // lets go of the file
    URL.revokeObjectURL(url);
  }
}

async function frameAt(player: HTMLVideoElement, seconds: number, name: string): Promise<Frame> {
  await playing(name, seek(player, seconds, PATIENCE_MS));
  const scale = Math.min(1, KEPT_SIDE / Math.max(player.videoWidth, player.videoHeight));
  const width = Math.max(1, Math.round(scale * player.videoWidth));
  const height = Math.max(1, Math.round(scale * player.videoHeight));
  const canvas = draw(player, width, height);
  return { blob: await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 }), width, height, seconds };
}

/** A recording may not say how long it is: the browser then looks for its end. */
async function secondsOf(player: HTMLVideoElement, name: string): Promise<number> {
  const seconds = await playing(name, durationOf(player, PATIENCE_MS));
  if (seconds !== undefined) return seconds;
  throw unreadable(name);
}

function checkSize({ videoWidth: width, videoHeight: height }: HTMLVideoElement, name: string): void {
  if (!width || !height)
    throw new UserError(`${name} has no pictures that this browser can show.`, "Save it as MP4 (H.264) or WebM.");
  if (Math.max(width, height) > LONGEST_SIDE) {
    throw new UserError(
      `${name} has ${formatCount(width)} x ${formatCount(height)} pixels; at most ${formatCount(LONGEST_SIDE)} a side are taken.`,
      "Save it smaller.",
    );
  }
}

/** The outcome of what the player does, or an error that names the file. */
async function playing<T>(name: string, outcome: Promise<T>): Promise<T> {
  try {
    return await outcome;
  } catch {
    throw unreadable(name);
  }
}

function unreadable(name: string): UserError {
  return new UserError(
    `${name} is no video that this browser can play, or it is damaged.`,
    "Save it as MP4 (H.264) or WebM.",
  );
}
