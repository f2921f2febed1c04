// A file that a person attached, as pictures or a sound of a message.
import { newId } from "../ids";
import type { Attachment } from "../chat/transcript";
import { UserError } from "../package/user_error";
import type { MediaInputs } from "./inputs";
import { readPicture } from "./picture";
import { readSound } from "./sound";
import { isSoundAlone, readVideo, timestamp } from "./video";

/** A picture or a sound with its bytes. */
export interface Medium extends Attachment {
  blob: Blob;
}

const RECIPE: Record<Attachment["kind"], [can: string, modality: string]> = {
  picture: ["sees no pictures", "image"],
  sound: ["hears no sounds", "audio"],
};
const PICTURE_NAMES = /\.(png|apng|jpe?g|jfif|gif|webp|avif|bmp|svg|ico|heic|heif|tiff?)$/i;
const SOUND_NAMES = /\.(wav|mp3|m4a|aac|flac|og[ga]|opus|weba|aiff?)$/i;
const VIDEO_NAMES = /\.(mp4|mov|mkv|avi|webm|m4v)$/i;

/** Why a package does not take pictures, or sounds; undefined where it does. */
export function reasonAgainst(kind: Attachment["kind"], inputs: MediaInputs): string | undefined {
  const [can, modality] = RECIPE[kind];
  return inputs[kind] ? undefined : `This package ${can}: it was compiled without --modalities ${modality}.`;
}

/** By type, or by name where a system gives none. */
export function kindOf({ type, name }: { type: string; name: string }): Attachment["kind"] | "video" | undefined {
  if (type.startsWith("image/") || (!type && PICTURE_NAMES.test(name))) return "picture";
  if (type.startsWith("audio/") || (!type && SOUND_NAMES.test(name))) return "sound";
  if (type.startsWith("video/") || (!type && VIDEO_NAMES.test(name))) return "video";
  return undefined;
}

/** A file whose container is one of videos, and which has sound alone, as the sound that it is. */
export async function asHeard(file: File): Promise<File> {
  if (kindOf(file) !== "video" || !(await isSoundAlone(file))) return file;
  return new File([file], file.name, { type: file.type.replace(/^(video\/)?/, "audio/") });
}

export interface ReadOptions {
  /** A sound that is too long is cut off. */
  cut?: boolean;
  /** How many frames a video may give. */
  frames: number;
  /** Is told after each frame. */
  made?: (frames: number) => void;
}

/** One medium, or the frames of a video. Throws a UserError that says what is wrong with the file. */
export async function readMedia(file: File, inputs: MediaInputs, options: ReadOptions): Promise<Medium[]> {
  const name = file.name || "The file";
  const kind = kindOf(file);
  if (!kind) {
    throw new UserError(
      `${name} is neither a picture nor a sound nor a video.`,
      "Attach PNG, JPEG or WebP pictures, WAV, MP3, FLAC or Ogg sounds, or MP4 or WebM videos.",
    );
  }
  const reason = reasonAgainst(kind === "video" ? "picture" : kind, inputs);
  if (reason) throw new UserError(reason, "Compile it with --modalities text,image,audio, or open another package.");
  const own = () => ({ id: newId(), name });
  if (kind === "picture") return [{ ...own(), kind, ...(await readPicture(file, name)) }];
  if (kind === "sound") return [{ ...own(), kind, ...(await readSound(file, name, inputs.sound!, options.cut)) }];
  const frames = await readVideo(file, name, options.frames, options.made);
  return frames.map((frame) => ({
    ...own(),
    kind: "picture",
    name: `${name} at ${timestamp(frame.seconds)}`,
    ...frame,
  }));
}
