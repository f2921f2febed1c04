// Sounds of any kind that the browser knows, as samples of one channel.
import { formatBytes, formatShort, MIB } from "../package/units";
import { UserError } from "../package/user_error";
import type { SoundInput } from "./inputs";
import { durationOf, happens } from "./player";
import { encodeWav, mixChannels } from "./wav";

const LARGEST_BYTES = 32 * MIB;
const PATIENCE_MS = 10_000;
/** Coders put a little silence around a sound: a file is not refused for that. */
const MARGIN_SECONDS = 0.1;
/** Players guess the length of an MP3 or AAC file by its first frames, and may be wrong by so much. */
const WRONG_BY = 20;

export interface Sound {
  blob: Blob;
  seconds: number;
}

/** Decodes a sound. `cut`: what is too long is cut off, for recordings; otherwise it is refused. */
export async function readSound(file: Blob, name: string, input: SoundInput, cut = false): Promise<Sound> {
  const { rate, minSamples, maxSamples } = input;
  const limit = maxSamples / rate;
  if (!file.size) throw new UserError(`${name} is empty.`, "Choose another sound.");
  if (file.size > LARGEST_BYTES) {
    throw new UserError(
      `${name} has ${formatBytes(file.size)}; a sound may have at most ${formatBytes(LARGEST_BYTES)}.`,
      `The model hears up to ${limit} s: cut out what matters.`,
    );
  }
  const tooLong = (seconds: number) =>
    new UserError(
      `${name} is ${formatShort(seconds)} long; the model hears up to ${limit} s.`,
      "Cut out what matters, or record it.",
    );
  // From the header first: hours of sound are not decoded to find out how long they are.
  const found = await headerSeconds(file);
  if (!cut && found !== undefined && found > WRONG_BY * limit) throw tooLong(found);
  let decoded: AudioBuffer;
  try {
    decoded = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
  } catch {
    throw new UserError(
      `${name} is no sound that this browser can read, or it is damaged.`,
      "Save it as WAV, MP3, FLAC or Ogg.",
    );
  }
  if (!cut && decoded.duration > limit + MARGIN_SECONDS) throw tooLong(decoded.duration);
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, index) => decoded.getChannelData(index));
  const samples = mixChannels(channels).subarray(0, maxSamples);
  if (samples.length < minSamples) {
    throw new UserError(
      `${name} has ${samples.length} samples; the model needs at least ${minSamples}.`,
      "Choose or record a longer sound.",
    );
  }
  return { blob: new Blob([encodeWav(samples, rate)], { type: "audio/wav" }), seconds: samples.length / rate };
}

/** Seconds by the file's header, or by its end where the header does not say; undefined: the player does not know it. */
async function headerSeconds(file: Blob): Promise<number | undefined> {
  const url = URL.createObjectURL(file);
  const player = new Audio();
  player.preload = "metadata";
  try {
    await happens(player, "loadedmetadata", PATIENCE_MS, () => {
      player.src = url;
    });
    return await durationOf(player, PATIENCE_MS);
  } catch {
    return undefined; // decoding it says what is wrong
  } finally {
    player.removeAttribute("src");
    URL.revokeObjectURL(url);
  }
}
