// The container: one picture of a fixed size that carries another one of any aspect ratio.
//
// The client stretches every picture to the one size that the manifest names. A picture of exactly that size passes
// unchanged, so the page cuts its own picture into blocks, puts them one after the other, and writes into the row
// below them which grid they come from (gemma4_compile/operators/picture.py reads it).
import type { PictureInput } from "./inputs";

export interface Grid {
  columns: number;
  rows: number;
}

/** How blocks lie in a container: `across` x `down` of `block` pixels, above the row with the mark. */
export interface Container {
  width: number;
  height: number;
  block: number;
  across: number;
  down: number;
}

/** Of a picture, in pixels. */
export interface Size {
  width: number;
  height: number;
}

const MAGIC = 0x47344931; // "G4I1"
const WORD_BITS = 32;
const MARK_PIXELS = 3 * WORD_BITS;

/**
 * The container of a package; undefined where it takes plain pictures, which the client resizes by itself, and where its
 * library would take the padding of a container for a part of the picture.
 */
export function containerOf({ mode, width, height, embeddings, dropsPadding }: PictureInput): Container | undefined {
  const block = Math.sqrt((width * (height - 1)) / embeddings);
  const isWhole = Number.isInteger(block) && width % block === 0 && (height - 1) % block === 0;
  if (!dropsPadding || mode !== "stretch" || !isWhole || block < 1 || width < MARK_PIXELS) return undefined;
  return { width, height, block, across: width / block, down: (height - 1) / block };
}

/**
 * The grid of a picture: of whole blocks, at most `most`, with the aspect ratio kept as nearly as that allows. As
 * transformers has it (`target_size` in gemma4_compile/media/sizes.py).
 */
export function gridOf({ width, height }: Size, most: number, block: number): Grid {
  const factor = Math.sqrt((most * block ** 2) / (width * height));
  const [columns, rows] = [Math.floor((factor * width) / block), Math.floor((factor * height) / block)];
  if (!rows) return { columns: Math.min(Math.floor(width / height), most), rows: 1 };
  if (!columns) return { columns: 1, rows: Math.min(Math.floor(height / width), most) };
  return { columns, rows };
}

/** Where each block goes: row-major over the picture's grid, row-major into the container. In pixels. */
export function blockMoves(
  { columns, rows }: Grid,
  { block, across }: Container,
): { fromX: number; fromY: number; toX: number; toY: number }[] {
  return Array.from({ length: columns * rows }, (_, index) => ({
    fromX: block * (index % columns),
    fromY: block * Math.floor(index / columns),
    toX: block * (index % across),
    toY: block * Math.floor(index / across),
  }));
}

/** The row of the mark as RGBA: bits of three words, white for 1, the most significant first; then black. */
export function markRow({ columns, rows }: Grid, width: number): Uint8ClampedArray<ArrayBuffer> {
  const grid = ((columns << 16) | rows) >>> 0;
  const words = [MAGIC, grid, ~grid >>> 0];
  const pixels = new Uint8ClampedArray(4 * width);
  for (let x = 0; x < width; x++) {
    const word = words[Math.floor(x / WORD_BITS)] ?? 0;
    const bit = (word >>> (WORD_BITS - 1 - (x % WORD_BITS))) & 1;
    pixels.set([255 * bit, 255 * bit, 255 * bit, 255], 4 * x);
  }
  return pixels;
}
