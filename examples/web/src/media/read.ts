// A file that a person attached, as a picture or a sound of a message.
import type { Attachment } from "../chat/transcript";
import { UserError } from "../package/user_error";
import type { MediaInputs } from "./inputs";
import { readPicture } from "./picture";
import { readSound } from "./sound";

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
export function kindOf({ type, name }: { type: string; name: string }): Attachment["kind"] | undefined {
  if (type.startsWith("image/") || (!type && PICTURE_NAMES.test(name))) return "picture";
  if (type.startsWith("audio/") || (!type && SOUND_NAMES.test(name))) return "sound";
  return undefined;
}

/** Throws a UserError that says what is wrong with the file. */
export async function readMedium(file: File, inputs: MediaInputs, options: { cut?: boolean } = {}): Promise<Medium> {
  const name = file.name || "The file";
  const kind = kindOf(file);
  if (!kind) {
    const isVideo = file.type.startsWith("video/") || VIDEO_NAMES.test(name);
    throw new UserError(
      isVideo ? `${name} is a video, which this page does not take.` : `${name} is neither a picture nor a sound.`,
      isVideo ? "Attach pictures of it." : "Attach PNG, JPEG or WebP pictures, or WAV, MP3, FLAC or Ogg sounds.",
    );
  }
  const reason = reasonAgainst(kind, inputs);
  if (reason) throw new UserError(reason, "Compile it with --modalities text,image,audio, or open another package.");
  const own = { id: crypto.randomUUID(), kind, name };
  if (kind === "picture") return { ...own, ...(await readPicture(file, name)) };
  return { ...own, ...(await readSound(file, name, inputs.sound!, options.cut)) };
}
