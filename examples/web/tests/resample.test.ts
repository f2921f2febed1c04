import { describe, expect, it } from "vitest";
import { scaleColumns, scaleRows, type Pixels } from "../src/media/resample";

/** Values that gemma4_compile/media/resample.py (Pillow) makes of the picture below. */
const CASES: { from: [number, number]; to: [number, number]; bytes: number[] }[] = [
  {
    from: [7, 5],
    to: [3, 4],
    bytes: [
      80, 144, 41, 174, 141, 46, 75, 66, 58, 161, 173, 81, 181, 126, 101, 87, 91, 94, 71, 133, 102, 106, 108, 118, 106,
      149, 133, 60, 138, 91, 68, 101, 158, 55, 203, 132,
    ],
  },
  {
    from: [4, 3],
    to: [7, 6],
    bytes: [
      0, 0, 55, 19, 58, 38, 99, 165, 13, 110, 216, 40, 116, 220, 67, 179, 150, 42, 215, 107, 25, 43, 32, 62, 57, 68, 44,
      90, 134, 19, 87, 167, 50, 93, 177, 79, 164, 156, 46, 205, 143, 25, 172, 104, 76, 135, 90, 57, 72, 68, 30, 38, 62,
      69, 43, 86, 104, 132, 169, 55, 185, 218, 23, 203, 175, 92, 170, 132, 67, 110, 58, 32, 78, 43, 72, 72, 67, 109,
      110, 142, 58, 133, 186, 24, 132, 236, 107, 157, 189, 74, 199, 107, 24, 204, 111, 58, 178, 124, 95, 101, 78, 53,
      56, 50, 25, 98, 255, 114, 151, 216, 77, 241, 131, 20, 255, 143, 51, 227, 150, 88, 96, 47, 51, 20, 0, 26,
    ],
  },
  {
    from: [23, 9],
    to: [5, 2],
    bytes: [
      109, 143, 106, 102, 135, 135, 120, 134, 109, 139, 108, 117, 122, 142, 156, 104, 137, 126, 120, 103, 153, 129, 130,
      135, 141, 131, 145, 133, 119, 142,
    ],
  },
];

function picture(width: number, height: number): Pixels {
  const data = new Uint8ClampedArray(4 * width * height).fill(255);
  for (let i = 0; i < 3 * width * height; i++) {
    data[4 * Math.floor(i / 3) + (i % 3)] = (i * i * 7 + i * 13 + Math.floor(i / 5) * 31) % 256;
  }
  return { data, width, height };
}

describe("scaling", () => {
  it.each(CASES)("of $from to $to is Pillow's", ({ from, to, bytes }) => {
    const found = scaleColumns(scaleRows(picture(...from), to[0]), to[1]);
    expect([found.width, found.height]).toEqual(to);
    found.data.forEach((value, index) => {
      const channel = index % 4;
      const expected = channel === 3 ? 255 : bytes[3 * Math.floor(index / 4) + channel]!;
      expect(Math.abs(value - expected)).toBeLessThanOrEqual(channel === 3 ? 0 : 1); // Pillow's weights have 22 bits
    });
  });

  it("to the same size changes nothing", () => {
    const same = picture(6, 4);
    expect(scaleColumns(scaleRows(same, 6), 4).data).toEqual(same.data);
  });

  it("of one colour is that colour, up and down", () => {
    const grey: Pixels = { data: new Uint8ClampedArray(4 * 50 * 3).fill(77), width: 50, height: 3 };
    for (const [width, height] of [
      [7, 1],
      [120, 40],
    ] as const) {
      const { data } = scaleColumns(scaleRows(grey, width), height);
      expect(data.every((value, index) => value === (index % 4 === 3 ? 255 : 77) || index % 4 === 3)).toBe(true);
    }
  });
});
