// Operations of a tower, counted from the shapes of its weights: two for each product of a matmul or an attention. Norms
// and other work of one operation a value are left out.

const GROUP = 32; // values that share a scale
const FRAME_HOP = 160; // samples from one frame of a sound's spectrum to the next
const SAMPLES_PER_ROW = 640;
const BANDS = 128; // of the spectrum
const BLOCK_PATCHES = 9; // of a picture's row
const RELATIVE = "relative_k_proj"; // of the distances, whatever the sound is

/** Rows and columns of every stored matrix, by its parameter's name without the kind of tensor. */
function matrices(params) {
  const found = new Map();
  for (const { name, shape } of params) {
    const quantised = /^(.*)\.q_scale(\.part\d+)?$/.exec(name);
    const [stem, rows, cols] = quantised
      ? [quantised[1], shape[0], shape[1] * GROUP]
      : [name.replace(/\.weight(\.part\d+)?$/, ""), shape[0], shape[1]];
    if (name.includes("q_weight") || shape.length !== 2) continue;
    const before = found.get(stem)?.rows ?? 0;
    found.set(stem, { rows: before + rows, cols });
  }
  return found;
}

/** Products of the matrices whose names `belongs` accepts, for one row of input. */
function products(params, belongs) {
  let sum = 0;
  for (const [name, { rows, cols }] of matrices(params)) if (belongs(name)) sum += rows * cols;
  return sum;
}

const isTable = (name) => /pos(ition)?_embedding(_table)?$/.test(name);
const isVector = (name) => /\.(standardize|\w*_vectors)$/.test(name); // rows of vectors, not matmuls

/** Of `embed_image` for a picture of so many rows. */
export function pictureOperations(params, rows) {
  const patches = rows * BLOCK_PATCHES;
  const inTower = (name) => name.startsWith("vision_tower.") && !isTable(name) && !isVector(name);
  const ofBlocks = (name) => /^(vision_embedder|embed_vision)\./.test(name) && !isTable(name) && !isVector(name);
  let attended = 0; // channels of all layers
  for (const [name, { rows: channels }] of matrices(params)) {
    if (name.startsWith("vision_tower.") && name.endsWith(".q_proj.linear")) attended += channels;
  }
  const scores = 2 * patches * patches * attended; // q.k and the mean of v
  return 2 * (patches * products(params, inTower) + rows * products(params, ofBlocks) + scores);
}

/** Of `embed_audio` for a sound of so many samples. */
export function soundOperations(params, samples) {
  const rows = Math.ceil(samples / SAMPLES_PER_ROW);
  const isConv = (name) => /subsample_conv_projection\.layer\d+\.conv$|depthwise_conv1d$/.test(name);
  const linear = (name) =>
    (name.startsWith("audio_tower.") && !name.endsWith(RELATIVE) && !isConv(name)) ||
    name.startsWith("audio_projection");
  const frames = Math.ceil(samples / FRAME_HOP);
  let convolutions = 0;
  for (const layer of [0, 1]) {
    const scale = 2 ** (layer + 1); // of time and of frequency
    const weights = products(params, (name) => name.endsWith(`subsample_conv_projection.layer${layer}.conv`));
    convolutions += weights * (frames / scale) * (BANDS / scale);
  }
  return 2 * Math.round(rows * products(params, linear) + convolutions);
}
