// SHA-256 of what comes piece by piece: the browser's own takes a whole file at once, and copies it.
// FIPS 180-4, section 6.2.

const BLOCK_BYTES = 64;
const LENGTH_BYTES = 8;
const ROUNDS = 64;

/** The first 32 bits of what stands behind the point of a root of the first primes. */
function constants(count: number, root: (x: number) => number): Int32Array {
  const found: number[] = [];
  for (let n = 2; found.length < count; n++) {
    let isPrime = true;
    for (let d = 2; d * d <= n; d++) if (n % d === 0) isPrime = false;
    if (isPrime) found.push((root(n) % 1) * 2 ** 32);
  }
  return Int32Array.from(Uint32Array.from(found));
}

const K = constants(ROUNDS, Math.cbrt);
const FIRST = constants(8, Math.sqrt);

export class Sha256Stream {
  private readonly state = FIRST.slice();
  private readonly words = new Int32Array(ROUNDS);
  private readonly rest = new Uint8Array(BLOCK_BYTES);
  private restBytes = 0;
  private bytes = 0;

  update(data: Uint8Array): void {
    this.bytes += data.length;
    let at = 0;
    if (this.restBytes) {
      at = Math.min(data.length, BLOCK_BYTES - this.restBytes);
      this.rest.set(data.subarray(0, at), this.restBytes);
      this.restBytes += at;
      if (this.restBytes < BLOCK_BYTES) return;
      blocks(this.state, this.words, this.rest, 0, BLOCK_BYTES);
      this.restBytes = 0;
    }
    const whole = data.length - ((data.length - at) % BLOCK_BYTES);
    blocks(this.state, this.words, data, at, whole);
    this.rest.set(data.subarray(whole));
    this.restBytes = data.length - whole;
  }

  /** In hexadecimal digits; nothing can be added any more. */
  digest(): string {
    const length = new DataView(new ArrayBuffer(LENGTH_BYTES));
    length.setBigUint64(0, BigInt(this.bytes) * 8n);
    const padding = new Uint8Array(((2 * BLOCK_BYTES - LENGTH_BYTES - 1 - this.restBytes) % BLOCK_BYTES) + 1);
    padding[0] = 0x80;
    this.update(padding);
    this.update(new Uint8Array(length.buffer));
    return Array.from(this.state, (word) => (word >>> 0).toString(16).padStart(8, "0")).join("");
  }
}

/** Rounds over whole blocks; numbers stay in variables, which is four times as fast as in arrays. */
function blocks(state: Int32Array, w: Int32Array, data: Uint8Array, begin: number, end: number): void {
  let a = state[0]!;
  let b = state[1]!;
  let c = state[2]!;
  let d = state[3]!;
  let e = state[4]!;
  let f = state[5]!;
  let g = state[6]!;
  let h = state[7]!;
  for (let at = begin; at < end; at += BLOCK_BYTES) {
    for (let i = 0, p = at; i < 16; i++, p += 4) {
      w[i] = (data[p]! << 24) | (data[p + 1]! << 16) | (data[p + 2]! << 8) | data[p + 3]!;
    }
    for (let i = 16; i < ROUNDS; i++) {
      const x = w[i - 15]!;
      const y = w[i - 2]!;
      const s0 = ((x >>> 7) | (x << 25)) ^ ((x >>> 18) | (x << 14)) ^ (x >>> 3);
      const s1 = ((y >>> 17) | (y << 15)) ^ ((y >>> 19) | (y << 13)) ^ (y >>> 10);
      w[i] = (w[i - 16]! + s0 + w[i - 7]! + s1) | 0;
    }
    for (let i = 0; i < ROUNDS; i++) {
      const s1 = ((e >>> 6) | (e << 26)) ^ ((e >>> 11) | (e << 21)) ^ ((e >>> 25) | (e << 7));
      const t1 = (h + s1 + (g ^ (e & (f ^ g))) + K[i]! + w[i]!) | 0;
      const s0 = ((a >>> 2) | (a << 30)) ^ ((a >>> 13) | (a << 19)) ^ ((a >>> 22) | (a << 10));
      const t2 = (s0 + ((a & (b | c)) | (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + t1) | 0;
      d = c;
      c = b;
      b = a;
      a = (t1 + t2) | 0;
    }
    a = state[0] = (state[0]! + a) | 0;
    b = state[1] = (state[1]! + b) | 0;
    c = state[2] = (state[2]! + c) | 0;
    d = state[3] = (state[3]! + d) | 0;
    e = state[4] = (state[4]! + e) | 0;
    f = state[5] = (state[5]! + f) | 0;
    g = state[6] = (state[6]! + g) | 0;
    h = state[7] = (state[7]! + h) | 0;
  }
}
