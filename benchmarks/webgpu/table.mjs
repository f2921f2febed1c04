// Results for people.

const COLUMNS = [
  ["launches", (row) => row.launches],
  ["us", (row) => row.microseconds.toFixed(1)],
  ["share", (row) => `${(100 * row.share).toFixed(1)} %`],
  ["us/launch", (row) => (row.microseconds / row.launches).toFixed(1)],
  ["timestamps us", (row) => row.timestamp_us?.toFixed(1) ?? ""],
  ["workgroups", (row) => row.workgroups],
  ["bound MB", (row) => (row.bound_bytes / 1e6).toFixed(2)],
  ["weights MB", (row) => (row.weight_bytes / 1e6).toFixed(2)],
];

/** One row per kernel, the costliest first; an empty text for no rows. */
export function kernelTable(rows) {
  if (!rows?.length) return "";
  const cells = [["kernel", ...COLUMNS.map(([name]) => name)]];
  for (const row of rows) cells.push([row.kernel, ...COLUMNS.map(([, text]) => String(text(row)))]);
  const widths = cells[0].map((_, column) => Math.max(...cells.map((line) => line[column].length)));
  return cells
    .map((line) => line.map((cell, i) => (i ? cell.padStart(widths[i]) : cell.padEnd(widths[i]))).join("  "))
    .join("\n");
}

/** What one decoded token costs, in a few lines. */
export function decodeSummary(context, decode, bytesPerSecond) {
  const times = [
    ["replayed", decode.replayed_ms],
    ["driven", decode.driven_ms],
    ["encoding", decode.encoding_ms],
    ["logits read", decode.logits_read_ms],
    ["sampled", decode.sampled_ms],
    ["sampler replayed", decode.sampler?.replayed_ms],
  ];
  const cells = times.filter(([, ms]) => ms).map(([name, ms]) => `${name} ${ms.median.toFixed(3)} ms`);
  const launches = `${decode.launches} launches${decode.sampler ? ` + ${decode.sampler.launches}` : ""}`;
  const rate = `weights at ${(bytesPerSecond / 1e9).toFixed(0)} GB/s`;
  return `\ndecode after ${context}: ${launches}; ${cells.join(", ")}; ${rate}`;
}
