// Pictures of any kind that the browser knows, and what the client gets of them.
import { formatBytes, formatCount, MIB } from "../package/units";
import { UserError } from "../package/user_error";
import { base64Of } from "./base64";
import { blockMoves, type Container, containerOf, gridOf, markRow, type Size } from "./container";
import type { PictureInput } from "./inputs";
import { scaleColumns, scaleRows } from "./resample";

const LARGEST_BYTES = 32 * MIB;
const MOST_PIXELS = 64_000_000; // 256 MB decoded
const LONGEST_SIDE = 16_384;
const KEPT_BYTES = 8 * MIB; // a larger file is kept smaller
const KEPT_SIDE = 3072;
const PLAIN_SIDE = 2048; // where the client resizes by itself
const STRIP_PIXELS = 4_000_000; // that are scaled at a time
const WHITE = "#fff";

export interface Picture {
  blob: Blob;
  width: number;
  height: number;
}

/** Looks at a picture before it is decoded, and makes it small enough to keep. */
export async function readPicture(file: Blob, name: string): Promise<Picture> {
  if (!file.size) throw new UserError(`${name} is empty.`, "Choose another picture.");
  if (file.size > LARGEST_BYTES) {
    throw new UserError(
      `${name} has ${formatBytes(file.size)}; a picture may have at most ${formatBytes(LARGEST_BYTES)}.`,
      "Save it smaller, for example as JPEG.",
    );
  }
  if (file.type.includes("svg")) {
    throw new UserError(`${name} is a drawing (SVG), and no picture of pixels.`, "Save it as PNG.");
  }
  return withImage(file, name, async (image) => {
    const { naturalWidth: width, naturalHeight: height } = image;
    checkSize(width, height, name);
    await decode(image, name);
    if (file.size <= KEPT_BYTES) return { blob: file, width, height };
    const scale = Math.min(1, KEPT_SIDE / Math.max(width, height));
    const drawn = { width: Math.max(1, Math.round(scale * width)), height: Math.max(1, Math.round(scale * height)) };
    const canvas = draw(image, drawn.width, drawn.height);
    return { blob: await canvas.convertToBlob({ type: "image/jpeg", quality: 0.95 }), ...drawn };
  });
}

function checkSize(width: number, height: number, name: string): void {
  const size = `${formatCount(width)} x ${formatCount(height)} pixels`;
  if (!width || !height) throw new UserError(`${name} has ${size}.`, "Choose another picture.");
  if (Math.max(width, height) > LONGEST_SIDE || width * height > MOST_PIXELS) {
    throw new UserError(
      `${name} has ${size}; at most ${formatCount(LONGEST_SIDE)} a side and ${MOST_PIXELS / 1e6} million in all are taken.`,
      "Make it smaller, or cut out what matters.",
    );
  }
}

/**
 * The picture as the package's adapter takes it, as an address with its data.
 *
 * @param most blocks of a container that it may take
 */
export async function pictureUrl(blob: Blob, name: string, input: PictureInput, most = Infinity): Promise<string> {
  const made = await withImage(blob, name, async (image) => {
    checkSize(image.naturalWidth, image.naturalHeight, name);
    await decode(image, name);
    const container = containerOf(input);
    const canvas = container ? await fill(container, image, Math.min(most, input.embeddings)) : shrink(image);
    return canvas.convertToBlob({ type: "image/png" });
  });
  return `data:image/png;base64,${await base64Of(made)}`;
}

/** Puts a picture into the container: scaled to its own grid, then cut into blocks. */
async function fill(container: Container, image: HTMLImageElement, most: number): Promise<OffscreenCanvas> {
  const { block, width, height } = container;
  const grid = gridOf({ width: image.naturalWidth, height: image.naturalHeight }, most, block);
  const size = { width: grid.columns * block, height: grid.rows * block };
  const [drawing, on] = blank(size.width, size.height);
  on.putImageData(await scaled(image, size), 0, 0);
  const [canvas, into] = blank(width, height);
  into.imageSmoothingEnabled = false;
  for (const { fromX, fromY, toX, toY } of blockMoves(grid, container)) {
    into.drawImage(drawing, fromX, fromY, block, block, toX, toY, block, block);
  }
  into.putImageData(new ImageData(markRow(grid, width), width, 1), 0, height - 1);
  return canvas;
}

/** The picture in another size; a strip at a time, between which the page may do other things. */
async function scaled(image: HTMLImageElement, to: Size): Promise<ImageData> {
  const { naturalWidth: width, naturalHeight: height } = image;
  const most = Math.max(1, Math.floor(STRIP_PIXELS / width));
  const narrow = { data: new Uint8ClampedArray(4 * to.width * height), width: to.width, height };
  const [, on] = blank(width, Math.min(most, height));
  for (let top = 0; top < height; top += most) {
    const rows = Math.min(most, height - top);
    on.fillRect(0, 0, width, rows); // what is transparent is white
    on.drawImage(image, 0, top, width, rows, 0, 0, width, rows);
    const strip = scaleRows(on.getImageData(0, 0, width, rows), to.width);
    narrow.data.set(strip.data, 4 * to.width * top);
    await new Promise((resolve) => setTimeout(resolve));
  }
  return new ImageData(scaleColumns(narrow, to.height).data, to.width, to.height);
}

function shrink(image: HTMLImageElement): OffscreenCanvas {
  const { naturalWidth: width, naturalHeight: height } = image;
  const scale = Math.min(1, PLAIN_SIDE / Math.max(width, height));
  return draw(image, Math.max(1, Math.round(scale * width)), Math.max(1, Math.round(scale * height)));
}

/** An image, or what a player shows, in another size. */
export function draw(image: CanvasImageSource, width: number, height: number): OffscreenCanvas {
  const [canvas, on] = blank(width, height);
  on.drawImage(image, 0, 0, width, height);
  return canvas;
}

/** A white canvas: what a picture leaves transparent is white, as in gemma4_compile/media/picture.py. */
function blank(width: number, height: number): [OffscreenCanvas, OffscreenCanvasRenderingContext2D] {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  if (!context)
    throw new UserError("The browser draws no picture of this size.", "Close other tabs, or reload the page.");
  context.fillStyle = WHITE;
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  return [canvas, context];
}

/** An image element knows a picture's size from its header, before anything is decoded. */
async function withImage<T>(blob: Blob, name: string, use: (image: HTMLImageElement) => Promise<T>): Promise<T> {
  const url = URL.createObjectURL(blob);
  const image = new Image();
  try {
    await new Promise<void>((resolve, reject) => {
      image.onload = () => resolve();
      image.onerror = () => reject(undecodable(name));
      image.src = url;
    });
    return await use(image);
  } finally {
    URL.revokeObjectURL(url);
  }
}

async function decode(image: HTMLImageElement, name: string): Promise<void> {
  try {
    await image.decode();
  } catch {
    throw undecodable(name);
  }
}

function undecodable(name: string): UserError {
  return new UserError(
    `${name} is no picture that this browser can read, or it is damaged, or too large for it.`,
    "Save it as PNG, JPEG or WebP, in a usual size.",
  );
}
