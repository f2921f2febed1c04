// `provenance.json`: what a package is made of, and the hashes of its files.
import { GIB, MIB } from "./units";
import type { Fields } from "./json_fields";
import { type ListedLibrary, readLibraries } from "./libraries";
import { readDifference } from "./turns";
import { UserError } from "./user_error";

export const PROVENANCE = "provenance.json";
const SCHEMA = "gemma4_compile.package";
const SCHEMA_VERSION = 1;
const MOST_FILES = 10_000;
// What the native runtime takes, too (docs/security.md); the client reads a file into one buffer.
const LARGEST_FILE = 4 * GIB;
const LARGEST_PACKAGE = 256 * GIB;
const SHA256 = /^[0-9a-f]{64}$/;
// As the native reader: the list is short, and a piece small.
const LEAST_PIECE = MIB;
const MOST_PIECE = 32 * MIB;
const SHA256_DIGITS = 64;
const LONGEST_NAME = 96;

export interface PackageFile {
  name: string;
  nbytes: number;
  sha256: string;
  /** Of a file that is longer than a piece; packages of earlier versions have none. */
  pieces?: Pieces;
}

/** A file's SHA-256 once more, of its pieces in their order: all have `nbytes` but the last one, which has what is left. */
export interface Pieces {
  nbytes: number;
  sha256: string[];
}

export interface Provenance {
  library: string;
  libraries: ListedLibrary[];
  files: Map<string, PackageFile>;
  /** `tiny`, or what a checkpoint was: nobody has checked it. */
  kind: string;
  model: string;
  recipe: string | undefined;
  dropsPadding: boolean;
  /** The first conversation whose prompt is not what the checkpoint's template writes. */
  difference: string;
}

/** The files that a package lists, before anything else of it is looked at. */
export function readFiles(record: Fields): Map<string, PackageFile> {
  if (!record.has("files")) {
    throw new UserError(`${PROVENANCE} names no files.`, "Does the address name a package's folder?");
  }
  const files = new Map<string, PackageFile>();
  for (const [name, entry] of record.files("files", MOST_FILES)) {
    const sha256 = entry.text("sha256", "");
    if (!SHA256.test(sha256)) throw entry.wrong("sha256", "64 hexadecimal digits", sha256);
    const file: PackageFile = { name, nbytes: entry.count("nbytes", 0, LARGEST_FILE), sha256 };
    if (entry.has("pieces")) file.pieces = readPieces(entry.object("pieces"), file.nbytes);
    files.set(name, file);
  }
  return files;
}

function readPieces(entry: Fields, fileBytes: number): Pieces {
  const nbytes = entry.count("nbytes", LEAST_PIECE, MOST_PIECE);
  const count = Math.ceil(fileBytes / nbytes);
  const sha256 = entry.texts("sha256", count, SHA256_DIGITS);
  if (sha256.length !== count) throw entry.wrong("sha256", `a list of ${count} for the file's size`, sha256);
  const odd = sha256.find((each) => !SHA256.test(each));
  if (odd !== undefined) throw entry.wrong("sha256", "64 hexadecimal digits each", odd);
  return { nbytes, sha256 };
}

/** Throws a UserError for what is no package, none for browsers, or odd. */
export function readProvenance(record: Fields): Provenance {
  const [schema, version] = [record.raw("schema"), record.raw("schema_version")];
  if (schema !== SCHEMA || version !== SCHEMA_VERSION) {
    throw new UserError(
      `${PROVENANCE} is of an unknown kind: ${short(schema)} ${short(version)}.`,
      `This page reads ${SCHEMA} ${SCHEMA_VERSION}: compile the package again, or use the page of its version.`,
    );
  }
  const files = readFiles(record);
  const { web, files: ofLibraries } = readLibraries(record);
  const main = web.find(({ file }) => file === record.raw("library")) ?? web[0]!;
  // Of the libraries one is downloaded.
  for (const name of ofLibraries) if (name !== main.file) files.delete(name);
  const totalBytes = [...files.values()].reduce((sum, { nbytes }) => sum + nbytes, 0);
  if (totalBytes > LARGEST_PACKAGE) {
    throw record.wrong("files", `files of at most ${LARGEST_PACKAGE} bytes in all`, totalBytes);
  }
  const build = record.object("build");
  const source = build.object("source");
  return {
    library: main.file,
    libraries: web,
    files,
    kind: source.text("kind", ""),
    model: cleanName(source.text("model", "").split("/").pop()!),
    recipe: build.has("recipe") ? cleanName(build.text("recipe", "")) : undefined,
    dropsPadding: build.flag("drops_padding"),
    difference: cleanName(readDifference(build)),
  };
}

/** A name on one line, without characters that turn what stands around it. */
export function cleanName(text: string): string {
  const line = text.replace(/[\p{C}\s]+/gu, " ").trim();
  return [...line].slice(0, LONGEST_NAME).join("");
}

function short(value: unknown): string {
  if (value === undefined) return "none";
  return String(typeof value === "object" ? "an object" : value).slice(0, 60);
}
