// Makes buffers as the browser does. usage: node known_inputs.mjs JOB.json
// Job: {modules, output, inputs, samples}; result.json: {buffers: [base64], positions: [[first, count] -> numbers]}.
import fs from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";

const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));
const { elementsOf, samplePositions } = await import(pathToFileURL(path.join(job.modules, "known_inputs.js")).href);
const buffers = job.inputs.map((input) => {
  const { buffer, byteOffset, byteLength } = elementsOf(input);
  return Buffer.from(buffer, byteOffset, byteLength).toString("base64");
});
const positions = job.samples.map(([first, count]) => samplePositions(first, count));
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify({ buffers, positions }));
