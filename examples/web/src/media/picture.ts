// Pictures of any kind that the browser knows, and what the client gets of them.
import { formatBytes, formatCount, MIB } from "../package/units";
import { UserError } from "../package/user_error";
import { base64Of } from "./base64";
import { blockMoves, chooseGrid, type Container, containerOf, fitInto, markRow } from "./container";
import type { PictureInput } from "./inputs";

const LARGEST_BYTES = 32 * MIB;
const MOST_PIXELS = 64_000_000; // 256 MB decoded
const LONGEST_SIDE = 16_384;
const KEPT_BYTES = 8 * MIB; // a larger file is kept smaller
const KEPT_SIDE = 3072;
const PLAIN_SIDE = 2048; // where the client resizes by itself
const BLACK = "#000";

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

/** The picture as the package's adapter takes it, as an address with its data. */
export async function pictureUrl(blob: Blob, name: string, input: PictureInput): Promise<string> {
  const made = await withImage(blob, name, async (image) => {
    checkSize(image.naturalWidth, image.naturalHeight, name);
    await decode(image, name);
    const container = containerOf(input);
    return (container ? fill(container, image) : shrink(image)).convertToBlob({ type: "image/png" });
  });
  return `data:image/png;base64,${await base64Of(made)}`;
}

/** Puts a picture into the container: drawn in the grid nearest to its aspect ratio, then cut into blocks. */
function fill(container: Container, image: HTMLImageElement): OffscreenCanvas {
  const { block, width, height } = container;
  const grid = chooseGrid(image.naturalWidth, image.naturalHeight, container.across * container.down);
  const [drawing, on] = blank(grid.columns * block, grid.rows * block);
  const place = fitInto(image.naturalWidth, image.naturalHeight, grid, block);
  on.drawImage(image, place.left, place.top, place.width, place.height);
  const [canvas, into] = blank(width, height);
  into.imageSmoothingEnabled = false;
  for (const { fromX, fromY, toX, toY } of blockMoves(grid, container)) {
    into.drawImage(drawing, fromX, fromY, block, block, toX, toY, block, block);
  }
  into.putImageData(new ImageData(markRow(grid, width), width, 1), 0, height - 1);
  return canvas;
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

/** A black canvas: what a picture leaves transparent is black. */
function blank(width: number, height: number): [OffscreenCanvas, OffscreenCanvasRenderingContext2D] {
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { alpha: false, willReadFrequently: true });
  if (!context)
    throw new UserError("The browser draws no picture of this size.", "Close other tabs, or reload the page.");
  context.fillStyle = BLACK;
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
