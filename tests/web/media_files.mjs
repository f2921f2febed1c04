// Pictures and sounds made by the tests, also such as nobody should open.
import zlib from "node:zlib";

function pngChunk(name, data) {
  const body = Buffer.concat([Buffer.from(name, "latin1"), data]);
  const framed = Buffer.alloc(body.length + 8);
  framed.writeUInt32BE(data.length, 0);
  body.copy(framed, 4);
  framed.writeUInt32BE(zlib.crc32(body), body.length + 4);
  return framed;
}

/** A PNG of `color(x, y)`, [red, green, blue]; without it its header only speaks of a size. */
export function png(width, height, color) {
  const header = Buffer.alloc(13);
  header.writeUInt32BE(width, 0);
  header.writeUInt32BE(height, 4);
  header.set([8, 2, 0, 0, 0], 8);
  const line = 1 + 3 * width;
  const raw = Buffer.alloc(color ? line * height : 100);
  for (let y = 0; color && y < height; y++) {
    for (let x = 0; x < width; x++) raw.set(color(x, y), y * line + 1 + 3 * x);
  }
  return Buffer.concat([
    Buffer.from("89504e470d0a1a0a", "hex"),
    pngChunk("IHDR", header),
    pngChunk("IDAT", zlib.deflateSync(raw, { level: 1 })),
    pngChunk("IEND", Buffer.alloc(0)),
  ]);
}

/** A beep as a WAV file of 16 bits. */
export function wav(seconds, { rate = 16_000, channels = 1, pitch = 440 } = {}) {
  const frames = Math.round(seconds * rate);
  const data = Buffer.alloc(44 + 2 * channels * frames);
  data.write("RIFF", 0, "latin1");
  data.writeUInt32LE(data.length - 8, 4);
  data.write("WAVEfmt ", 8, "latin1");
  data.writeUInt32LE(16, 16);
  data.writeUInt16LE(1, 20);
  data.writeUInt16LE(channels, 22);
  data.writeUInt32LE(rate, 24);
  data.writeUInt32LE(2 * channels * rate, 28);
  data.writeUInt16LE(2 * channels, 32);
  data.writeUInt16LE(16, 34);
  data.write("data", 36, "latin1");
  data.writeUInt32LE(2 * channels * frames, 40);
  for (let frame = 0; frame < frames; frame++) {
    const value = Math.round(16_384 * Math.sin((2 * Math.PI * pitch * frame) / rate));
    for (let channel = 0; channel < channels; channel++)
      data.writeInt16LE(value, 44 + 2 * (channels * frame + channel));
  }
  return data;
}

/** Silence as an MP3 whose first frames have a tenth of the others' bytes, by which players guess that it is far longer. */
export function mp3(seconds) {
  const frames = Math.round((seconds * 44_100) / 1152);
  const frame = (index) => {
    const [rate, bytes] = index < 20 ? [0x10, 104] : [0xe0, 1044]; // 32 and 320 kbit/s
    return Buffer.concat([Buffer.from([0xff, 0xfb, rate, 0xc0]), Buffer.alloc(bytes - 4)]);
  };
  return Buffer.concat(Array.from({ length: frames }, (_, index) => frame(index)));
}

/** A WebM of one frame, 16 x 16, which does not say how long it is. */
export const ONE_FRAME = Buffer.from(
  "GkXfo4dCgoR3ZWJtGFOAZwH/////////FUmpZo8q17GDD0JATYCBeFdBgXgWVK5rm66Z14EBc8WBAYaFVl9WUDiDgQHghrCBELqBEB9DtnWo54EA" +
    "o6OBAACAEAIAnQEqEAAQAABHCIWFiIWEiAICAAwNYAD+/6tQgA==",
  "base64",
);

export const picture = (name, width = 60, height = 40, color = () => [200, 40, 40]) => ({
  name,
  mimeType: "image/png",
  buffer: png(width, height, color),
});

export const sound = (name, seconds, options) => ({ name, mimeType: "audio/wav", buffer: wav(seconds, options) });
