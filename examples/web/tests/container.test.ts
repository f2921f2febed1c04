import { describe, expect, it } from "vitest";
import { blockMoves, chooseGrid, containerOf, fitInto, markRow, type Grid } from "../src/media/container";
import { mediaInputsOf, type PictureInput } from "../src/media/inputs";

const INPUT: PictureInput = { mode: "stretch", width: 960, height: 673, embeddings: 280 };
const CONTAINER = containerOf(INPUT)!;

/** The three words that gemma4_compile/operators/picture.py reads: green of 96 pixels, the most significant bit first. */
function readMark(row: Uint8ClampedArray): number[] {
  return [0, 1, 2].map((word) => {
    let value = 0;
    for (let bit = 0; bit < 32; bit++) value = 2 * value + (row[4 * (32 * word + bit) + 1]! >= 128 ? 1 : 0);
    return value;
  });
}

describe("containerOf", () => {
  it("has 20 x 14 blocks of 48 pixels for the released models", () => {
    expect(CONTAINER).toEqual({ width: 960, height: 673, block: 48, across: 20, down: 14 });
  });

  it("follows the manifest for other blocks", () => {
    const small = containerOf({ mode: "stretch", width: 96, height: 65, embeddings: 24 });
    expect(small).toEqual({ width: 96, height: 65, block: 16, across: 6, down: 4 });
  });

  it.each([
    { ...INPUT, height: 672 }, // plain: no row for the mark
    { ...INPUT, width: 768, height: 768, embeddings: 256 },
    { ...INPUT, mode: "center_crop" as const },
    { mode: "stretch" as const, width: 64, height: 65, embeddings: 16 }, // too narrow for the mark
  ])("is none for $width x $height, $mode", (input) => {
    expect(containerOf(input)).toBeUndefined();
  });
});

describe("chooseGrid", () => {
  it.each([
    [960, 672, 20, 14],
    [672, 960, 14, 20],
    [4000, 3000, 20, 14],
    [3000, 4000, 14, 20],
    [1920, 1080, 20, 14], // 1.78: 1.43 is nearer than 2.8
    [2100, 900, 28, 10],
    [900, 2100, 10, 28],
    [4000, 1000, 35, 8],
    [1000, 5700, 7, 40],
    [10_000, 1000, 56, 5],
    [1, 280, 1, 280],
    [65_000, 1, 280, 1],
    [1, 1, 20, 14], // as near as 14 x 20
  ])("of %i x %i is %i x %i", (width, height, columns, rows) => {
    expect(chooseGrid(width, height, 280)).toEqual({ columns, rows });
  });

  it("always uses every block", () => {
    for (const blocks of [1, 70, 140, 256, 280, 281]) {
      for (const width of [1, 7, 100, 999, 12_345]) {
        const { columns, rows } = chooseGrid(width, 1000, blocks);
        expect(columns * rows).toBe(blocks);
      }
    }
  });
});

describe("fitInto", () => {
  it("keeps the aspect ratio, in the middle", () => {
    const grid: Grid = { columns: 20, rows: 14 };
    expect(fitInto(960, 672, grid, 48)).toEqual({ left: 0, top: 0, width: 960, height: 672 });
    expect(fitInto(1000, 1000, grid, 48)).toEqual({ left: 144, top: 0, width: 672, height: 672 });
    expect(fitInto(1920, 1080, grid, 48)).toEqual({ left: 0, top: 66, width: 960, height: 540 });
  });

  it("never loses a picture", () => {
    expect(fitInto(65_000, 1, { columns: 280, rows: 1 }, 48)).toEqual({ left: 0, top: 23, width: 13_440, height: 1 });
  });
});

describe("blockMoves", () => {
  it("leaves a picture of the container's own grid in its place", () => {
    for (const { fromX, fromY, toX, toY } of blockMoves({ columns: 20, rows: 14 }, CONTAINER)) {
      expect([fromX, fromY]).toEqual([toX, toY]);
    }
  });

  it("puts the blocks of a row one after the other, into the next row where one is full", () => {
    const moves = blockMoves({ columns: 14, rows: 20 }, CONTAINER);
    expect(moves[13]).toEqual({ fromX: 13 * 48, fromY: 0, toX: 13 * 48, toY: 0 });
    expect(moves[14]).toEqual({ fromX: 0, fromY: 48, toX: 14 * 48, toY: 0 });
    expect(moves[20]).toEqual({ fromX: 6 * 48, fromY: 48, toX: 0, toY: 48 });
    expect(moves.at(-1)).toEqual({ fromX: 13 * 48, fromY: 19 * 48, toX: 19 * 48, toY: 13 * 48 });
  });

  it.each([
    [280, 1],
    [8, 35],
    [5, 56],
  ])("fills the container exactly from %i x %i", (columns, rows) => {
    const moves = blockMoves({ columns, rows }, CONTAINER);
    expect(new Set(moves.map(({ toX, toY }) => `${toX} ${toY}`)).size).toBe(280);
    expect(new Set(moves.map(({ fromX, fromY }) => `${fromX} ${fromY}`)).size).toBe(280);
    expect(Math.max(...moves.map(({ toX }) => toX))).toBe(912);
    expect(Math.max(...moves.map(({ toY }) => toY))).toBe(624);
  });
});

describe("markRow", () => {
  it.each([
    [20, 14],
    [1, 280],
    [280, 1],
  ])("holds the mark and the grid %i x %i, and that inverted", (columns, rows) => {
    const row = markRow({ columns, rows }, 960);
    const grid = columns * 65_536 + rows;
    expect(readMark(row)).toEqual([0x47344931, grid, 0xffffffff - grid]);
    expect(row.length).toBe(4 * 960);
    for (let x = 0; x < 960; x++) {
      const [red, green, blue, alpha] = row.slice(4 * x, 4 * x + 4);
      expect([red, blue, alpha]).toEqual([green, green, 255]);
      expect([0, 255]).toContain(green);
      if (x >= 96) expect(green).toBe(0);
    }
  });
});

describe("mediaInputsOf", () => {
  const image = {
    adapter: "image",
    processor: {
      kind: "image_decode",
      format: "rgb_u8",
      layout: "nhwc",
      resize: { mode: "stretch", height: 673, width: 960 },
      num_embeddings: 280,
    },
  };
  const audio = {
    adapter: "audio",
    processor: { kind: "audio_decode", format: "pcm_f32", sample_rate_hz: 16_000, channels: 1, max_samples: 480_000 },
  };

  it("reads what the manifest names", () => {
    expect(mediaInputsOf({ text: { processor: "tokenizer" }, image, audio })).toEqual({
      picture: INPUT,
      sound: { rate: 16_000, minSamples: 1, maxSamples: 480_000 },
    });
  });

  it("offers nothing that it does not understand", () => {
    expect(mediaInputsOf({ text: { processor: "tokenizer" } })).toEqual({});
    expect(mediaInputsOf(undefined)).toEqual({});
    expect(mediaInputsOf({ image: { processor: { kind: "image_decode" } }, audio: { processor: null } })).toEqual({});
  });
});
