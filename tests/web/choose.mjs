// Chooses a library of a package on Dawn in Node. usage: node choose.mjs JOB.json
//
// Job: {package, module: folder of choose.js, output}. Time passes a hundredth as fast for the module, so that a busy
// machine has as much of it to measure as an idle one. Writes result.json: {choice}.
import fs from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";
import { readJob } from "../../gemma4_compile/verification/webgpu_device.mjs";
import { runJob } from "./dawn_gpu.mjs";

const job = readJob();
const SLOWER = 100;
const SHORT_MS = 100; // waits of Dawn's own

async function main() {
  const { chooseLibrary } = await import(pathToFileURL(path.join(job.module, "choose.js")).href);
  const read = async (url) => new Response(await fs.readFile(path.join(job.package, path.basename(url))));
  const [begin, now, setTimer] = [performance.now(), performance.now.bind(performance), globalThis.setTimeout];
  performance.now = () => begin + (now() - begin) / SLOWER;
  globalThis.setTimeout = (run, ms, ...rest) => setTimer(run, ms > SHORT_MS ? SLOWER * ms : ms, ...rest);
  return { choice: await chooseLibrary("https://example.org/package/", undefined, { fetch: read }) };
}

await runJob(job, main);
