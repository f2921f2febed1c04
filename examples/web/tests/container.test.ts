import { describe, expect, it } from "vitest";
import { blockMoves, containerOf, gridOf, markRow } from "../src/media/container";
import { mediaInputsOf, type PictureInput } from "../src/media/inputs";

const INPUT: PictureInput = { mode: "stretch", width: 960, height: 673, embeddings: 280, dropsPadding: true };
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
    const small = containerOf({ mode: "stretch", width: 96, height: 65, embeddings: 24, dropsPadding: true });
    expect(small).toEqual({ width: 96, height: 65, block: 16, across: 6, down: 4 });
  });

  it.each([
    { ...INPUT, height: 672 }, // plain: no row for the mark
    { ...INPUT, width: 768, height: 768, embeddings: 256 },
    { ...INPUT, mode: "center_crop" as const },
    { ...INPUT, width: 64, height: 65, embeddings: 16 }, // too narrow for the mark
    { ...INPUT, dropsPadding: false },
  ])("is none for $width x $height, $mode", (input) => {
    expect(containerOf(input)).toBeUndefined();
  });
});

describe("gridOf", () => {
  // As gemma4_compile/media/sizes.py has them.
  it.each([
    [960, 672, 280, 20, 14],
    [672, 960, 280, 14, 20],
    [4000, 3000, 280, 19, 14],
    [1920, 1080, 280, 22, 12],
    [2100, 900, 280, 25, 10],
    [4000, 1000, 280, 33, 8],
    [10000, 1000, 280, 52, 5],
    [1, 280, 280, 1, 280],
    [65000, 1, 280, 280, 1],
    [1, 1, 280, 16, 16],
    [1000, 1000, 256, 16, 16],
    [320, 180, 70, 11, 6],
    [100, 30000, 140, 1, 140],
  ])("of %i x %i in at most %i blocks is %i x %i", (width, height, most, columns, rows) => {
    expect(gridOf({ width, height }, most, 48)).toEqual({ columns, rows });
  });

  it("has a block at least, and no more than there may be", () => {
    for (const most of [1, 70, 140, 256, 280]) {
      for (const width of [1, 7, 100, 999, 12_345]) {
        const { columns, rows } = gridOf({ width, height: 1000 }, most, 48);
        expect(columns * rows).toBeGreaterThan(0);
        expect(columns * rows).toBeLessThanOrEqual(most);
      }
    }
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
    expect(mediaInputsOf({ text: { processor: "tokenizer" }, image, audio }, true)).toEqual({
      picture: INPUT,
      sound: { rate: 16_000, minSamples: 1, maxSamples: 480_000 },
    });
  });

  it("offers nothing that it does not understand", () => {
    expect(mediaInputsOf({ text: { processor: "tokenizer" } }, true)).toEqual({});
    expect(mediaInputsOf(undefined, true)).toEqual({});
    expect(mediaInputsOf({ image: { processor: { kind: "image_decode" } }, audio: { processor: null } }, true)).toEqual(
      {},
    );
  });
});
