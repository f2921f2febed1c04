// A chunk's matmul with Dawn's experimental subgroup matrices, as WGSL: part of a trial (subgroup_matrix.mjs).
//
// x is packed int8 in rows of (cols / 4) words whose bytes are channels 0, 2, 1, 3, with a float32 scale for 32
// channels; W is 4-bit with float16 scales. Both become float16 tiles in shared memory; sums are float32.

export const FEATURE = "chromium-experimental-subgroup-matrix";

const SIDE = 16; // rows, columns and channels of one subgroup matrix
const GROUP = 32; // channels that share a scale
const PART = 16; // channels that a thread reads at once
const PAD = 8; // values after each row of a tile, so that rows begin in different banks
const LANES = 32; // of a subgroup

// Tiles of m rows of x and n rows of W; `down` times `across` subgroups share a tile.
export const SHAPES = [
  { m: 128, n: 128, depth: 32, down: 2, across: 4 },
  { m: 128, n: 128, depth: 32, down: 2, across: 2 },
  { m: 128, n: 256, depth: 32, down: 2, across: 4 },
  { m: 256, n: 128, depth: 32, down: 4, across: 2 },
  { m: 64, n: 128, depth: 64, down: 2, across: 4 },
  { m: 128, n: 64, depth: 64, down: 2, across: 2 },
];

const range = (count) => Array.from({ length: count }, (_, i) => i);

/** The WGSL of x (rows, cols) times W (outputs, cols) transposed; rows and outputs fill whole tiles. */
export function code({ m, n, depth, down, across }, { cols, outputs }) {
  const threads = down * across * LANES;
  const pitch = depth + PAD;
  const [tall, wide] = [m / down / SIDE, n / across / SIDE];
  const parts = depth / PART;
  const xTurns = range((m * parts) / threads);
  const wTurns = range((n * parts) / threads);
  const row = (turn) => `(thread + ${turn * threads}u) / ${parts}u`;
  const part = (turn) => `(thread + ${turn * threads}u) % ${parts}u`;
  const load = (step) =>
    [
      ...xTurns.map(
        (t) => `{
      let at = (first_m + ${row(t)}) * ${cols / PART}u + ${step} * ${parts}u + ${part(t)};
      x${t} = words[at];
      x_scale${t} = f16(scales[at / ${GROUP / PART}u]);
    }`,
      ),
      ...wTurns.map(
        (t) => `{
      let at = (first_n + ${row(t)}) * ${cols / PART}u + ${step} * ${parts}u + ${part(t)};
      w${t} = weights[at];
      w_scale${t} = weight_scales[at / ${GROUP / PART}u];
    }`,
      ),
    ].join("\n");
  const put = (tile, first, values) => values.map((v, c) => `${tile}[at + ${first + c}u] = ${v};`).join(" ");
  const store = [
    ...xTurns.map(
      (t) => `{
      let at = ${row(t)} * ${pitch}u + ${part(t)} * ${PART}u;
      ${range(PART / 4)
        .map(
          (i) => `{
        let v = vec4<f16>(unpack4xI8(x${t}[${i}])) * x_scale${t};
        ${put("left", 4 * i, ["v[0]", "v[2]", "v[1]", "v[3]"])}
      }`,
        )
        .join("\n")}
    }`,
    ),
    ...wTurns.map(
      (t) => `{
      let at = ${row(t)} * ${pitch}u + ${part(t)} * ${PART}u;
      ${range(PART / 8)
        .map(
          (i) => `{
        let even = (vec4<f16>(unpack4xU8(w${t}[${i}] & 0x0f0f0f0fu)) - 7.0h) * w_scale${t};
        let odd = (vec4<f16>(unpack4xU8((w${t}[${i}] >> 4u) & 0x0f0f0f0fu)) - 7.0h) * w_scale${t};
        ${put(
          "right",
          8 * i,
          range(8).map((c) => `${c % 2 ? "odd" : "even"}[${c >> 1}]`),
        )}
      }`,
        )
        .join("\n")}
    }`,
    ),
  ].join("\n");
  const multiply = range(depth / SIDE)
    .map(
      (k) => `{
    ${range(tall)
      .map(
        (i) => `let a${i} = subgroupMatrixLoad<subgroup_matrix_left<f16, ${SIDE}, ${SIDE}>, row_major>(
      &left, (down * ${tall}u + ${i}u) * ${SIDE * pitch}u + ${k * SIDE}u, ${pitch}u);`,
      )
      .join("\n")}
    ${range(wide)
      .map(
        (j) => `let b${j} = subgroupMatrixLoad<subgroup_matrix_right<f16, ${SIDE}, ${SIDE}>, col_major>(
      &right, (across * ${wide}u + ${j}u) * ${SIDE * pitch}u + ${k * SIDE}u, ${pitch}u);`,
      )
      .join("\n")}
    ${range(tall * wide)
      .map(
        (s) => `sum${s} =
      subgroupMatrixMultiplyAccumulate(a${Math.floor(s / wide)}, b${s % wide}, sum${s});`,
      )
      .join("\n")}
  }`,
    )
    .join("\n");
  return `diagnostic(off, chromium.subgroup_matrix_uniformity);
enable f16;
enable chromium_experimental_subgroup_matrix;
@group(0) @binding(0) var<storage, read> weight_scales: array<f16>;
@group(0) @binding(1) var<storage, read> weights: array<vec2<u32>>;
@group(0) @binding(2) var<storage, read> scales: array<f32>;
@group(0) @binding(3) var<storage, read> words: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
var<workgroup> left: array<f16, ${m * pitch}>;
var<workgroup> right: array<f16, ${n * pitch}>;
@compute @workgroup_size(${threads})
fn multiply(@builtin(workgroup_id) block: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
  let first_m = block.y * ${m}u;
  let first_n = block.x * ${n}u;
  let down = thread / ${LANES * across}u;
  let across = thread / ${LANES}u % ${across}u;
  ${range(tall * wide)
    .map((s) => `var sum${s}: subgroup_matrix_result<f32, ${SIDE}, ${SIDE}>;`)
    .join("\n")}
  ${xTurns.map((t) => `var x${t}: vec4<u32>; var x_scale${t}: f16;`).join("\n")}
  ${wTurns.map((t) => `var w${t}: vec2<u32>; var w_scale${t}: f16;`).join("\n")}
  ${load("0u")}
  for (var step = 0u; step < ${cols / depth}u; step++) {
    ${store}
    workgroupBarrier();
    let next = min(step + 1u, ${cols / depth - 1}u);
    ${load("next")}
    ${multiply}
    workgroupBarrier();
  }
  ${range(tall * wide)
    .map(
      (s) => `subgroupMatrixStore<row_major>(&y,
    (first_m + (down * ${tall}u + ${Math.floor(s / wide)}u) * ${SIDE}u) * ${outputs}u
    + first_n + (across * ${wide}u + ${s % wide}u) * ${SIDE}u, sum${s}, ${outputs}u);`,
    )
    .join("\n")}
}`;
}
