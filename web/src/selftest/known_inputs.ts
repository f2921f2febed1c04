// Inputs that Python and the browser make alike, byte for byte: `gemma4_compile/device_check/known_inputs.py` defines them.
export type DType = "float16" | "float32" | "int32" | "uint32";

/** Values spread evenly over `offset * step` to `(offset + 2 ** bits) * step`; with no bits one value. */
export interface Spread {
  bits: number;
  offset: number;
  step: number;
  /** Bits of the hash that are kept; all where it is left out. */
  mask?: number;
}

/** A buffer before its kernel runs: spread values, these bytes in base64, or zeros. */
export interface KnownInput {
  dtype: DType;
  count: number;
  seed?: number;
  spreads?: Spread[];
  data?: string;
}

export type Elements =
  | Float32Array<ArrayBuffer>
  | Int32Array<ArrayBuffer>
  | Uint32Array<ArrayBuffer>
  | Uint16Array<ArrayBuffer>;

// Hashes of a buffer, which then repeat.
const PERIOD = 16_381;
const SAMPLES = 64;

/** 32 well-mixed bits. */
export function hash(seed: number, index: number): number {
  let value = (Math.imul(index, 0x9e3779b1) + Math.imul(seed, 0x85ebca6b)) | 0;
  value = Math.imul(value ^ (value >>> 16), 0x7feb352d);
  value = Math.imul(value ^ (value >>> 15), 0x846ca68b);
  return (value ^ (value >>> 16)) >>> 0;
}

export function bytesPerElement(dtype: DType): number {
  return dtype === "float16" ? 2 : 4;
}

/** The elements of a buffer; float16 as its bits. */
export function elementsOf(input: KnownInput): Elements {
  if (input.data !== undefined) return view(input.dtype, decoded(input.data));
  const elements = empty(input.dtype, input.count);
  const { spreads = [], seed = 0 } = input;
  if (!spreads.length) return elements;
  const distinct = Math.min(input.count, PERIOD - (PERIOD % spreads.length));
  for (let i = 0; i < distinct; i++) {
    const { bits, offset, step, mask = 0xffffffff } = spreads[i % spreads.length]!;
    const drawn = bits === 0 ? 0 : (hash(seed, i) & mask) >>> (32 - bits); // a shift by 32 is one by none
    const value = (offset + drawn) * step;
    elements[i] = input.dtype === "float16" ? float16Bits(value) : value;
  }
  for (let done = distinct; done < input.count; done *= 2) {
    elements.copyWithin(done, 0, Math.min(done, input.count - done));
  }
  return elements;
}

/** Up to `SAMPLES` elements from `first` on, one in each of as many equal runs. */
export function samplePositions(first: number, count: number): number[] {
  const samples = Math.min(SAMPLES, count);
  const run = Math.floor(count / samples);
  return Array.from({ length: samples }, (_, k) => first + Math.floor((k * count) / samples) + (hash(count, k) % run));
}

/** The numbers of elements; `dtype` names what 16 bits are. */
export function numbersOf(dtype: DType, bytes: Uint8Array<ArrayBuffer>): number[] {
  const elements = view(dtype, bytes);
  return Array.from(elements, (value) => (dtype === "float16" ? float16Value(value) : value));
}

export function decoded(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

function empty(dtype: DType, count: number): Elements {
  if (dtype === "float32") return new Float32Array(count);
  if (dtype === "int32") return new Int32Array(count);
  return dtype === "uint32" ? new Uint32Array(count) : new Uint16Array(count);
}

function view(dtype: DType, bytes: Uint8Array<ArrayBuffer>): Elements {
  const elements = empty(dtype, Math.floor(bytes.byteLength / bytesPerElement(dtype)));
  new Uint8Array(elements.buffer).set(bytes.subarray(0, elements.byteLength));
  return elements;
}

const asFloat = new Float32Array(1);
const asBits = new Uint32Array(asFloat.buffer);

/** The bits of a number that float16 holds exactly and without denormals, as all generated ones are. */
function float16Bits(value: number): number {
  if (value === 0) return 0;
  asFloat[0] = value;
  const bits = asBits[0]!;
  return ((bits >>> 16) & 0x8000) | ((((bits >>> 23) & 0xff) - 112) << 10) | ((bits >>> 13) & 0x3ff);
}

function float16Value(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >>> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0x1f) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24);
}
