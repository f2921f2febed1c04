// Samples as a WAV file, which the client and every player read.

const HEADER_BYTES = 44;
const BYTES_PER_SAMPLE = 2;

/** 16-bit PCM of one channel. */
export function encodeWav(samples: Float32Array, rate: number): ArrayBuffer {
  const data = new ArrayBuffer(HEADER_BYTES + BYTES_PER_SAMPLE * samples.length);
  writeHeader(data, samples.length, rate);
  const view = new DataView(data, HEADER_BYTES);
  samples.forEach((sample, index) => {
    // The client reads them divided by 32768: whole steps come back as they were.
    const value = Math.max(-32768, Math.min(32767, Math.round(32768 * sample)));
    view.setInt16(BYTES_PER_SAMPLE * index, value, true);
  });
  return data;
}

function writeHeader(data: ArrayBuffer, samples: number, rate: number): void {
  const view = new DataView(data);
  const name = (offset: number, text: string) => {
    for (let index = 0; index < text.length; index++) view.setUint8(offset + index, text.charCodeAt(index));
  };
  name(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + BYTES_PER_SAMPLE * samples, true);
  name(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, BYTES_PER_SAMPLE * rate, true);
  view.setUint16(32, BYTES_PER_SAMPLE, true);
  view.setUint16(34, 8 * BYTES_PER_SAMPLE, true);
  name(36, "data");
  view.setUint32(40, BYTES_PER_SAMPLE * samples, true);
}

/** Whether bytes are a file of `encodeWav`: the client refuses a damaged one with every question of its chat. */
export function isOwnWav(bytes: Uint8Array<ArrayBuffer>): boolean {
  const samples = (bytes.length - HEADER_BYTES) / BYTES_PER_SAMPLE;
  if (!Number.isInteger(samples) || samples < 1) return false;
  const rate = new DataView(bytes.buffer, bytes.byteOffset).getUint32(24, true);
  const header = new ArrayBuffer(HEADER_BYTES);
  writeHeader(header, samples, rate);
  return new Uint8Array(header).every((byte, index) => byte === bytes[index]);
}

/** The mean of all channels. */
export function mixChannels(channels: Float32Array[]): Float32Array {
  const [first] = channels;
  if (!first || channels.length === 1) return first ?? new Float32Array();
  return first.map((_, index) => channels.reduce((sum, channel) => sum + channel[index]!, 0) / channels.length);
}
