// Memory that the chat page's download takes: a made-up package of large shards into the browser's cache, and then its check
// once more, as at every start. What all processes of the browser hold is read four times a second (Linux: the proportional
// size, in which what they share counts once); a line of JSON each for the download and the check.
//
//   CHROMIUM=$(command -v chromium) node benchmarks/browser/download_memory.mjs --shards 3 --shard-mib 128
//   node benchmarks/browser/download_memory.mjs --firefox $(command -v firefox)
import { createHash } from "node:crypto";
import fs from "node:fs";
import http from "node:http";
import path from "node:path";
import { parseArgs } from "node:util";
import { fileURLToPath } from "node:url";
import { openBrowser } from "../../tests/web/chromium.mjs";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const PAGE = path.resolve(HERE, "../../examples/web");
const MIB = 2 ** 20;
const EVERY_MS = 250;
const SETTLE_MS = 3000;
const SMALL = ["mlc-model-manifest.json", "mlc-chat-config.json", "tensor-cache.json"];
const { values: options } = parseArgs({
  options: {
    shards: { type: "string", default: "3" },
    "shard-mib": { type: "string", default: "128" },
    firefox: { type: "string" },
    source: { type: "string", default: path.join(PAGE, "src/download/download.ts") },
    commit: { type: "string", default: "" },
  },
});
const [count, shardMib] = [Number(options.shards), Number(options["shard-mib"])];

/** The page's own download as a module for a bare page. */
async function bundled() {
  const { build } = await import(path.join(PAGE, "node_modules/vite/dist/node/index.js"));
  const { output } = [
    await build({
      root: PAGE,
      configFile: false,
      logLevel: "error",
      build: { write: false, lib: { entry: options.source, formats: ["es"], fileName: "download" } },
    }),
  ].flat()[0];
  return output[0].code;
}

/** A block of its own for each shard: caches and file systems find nothing that is twice there. */
function blockOf(shard) {
  let x = shard + 1;
  const next = () => {
    x = (Math.imul(x, 1664525) + 1013904223) >>> 0;
    return x >>> 24;
  };
  return Buffer.from(Uint8Array.from({ length: MIB }, next));
}

const blocks = Array.from({ length: count }, (_, shard) => blockOf(shard));
const files = [...blocks.keys()].map((shard) => {
  const hash = createHash("sha256");
  for (let i = 0; i < shardMib; i++) hash.update(blocks[shard]);
  return { name: `params_shard_${shard}.bin`, nbytes: shardMib * MIB, sha256: hash.digest("hex") };
});
for (const name of SMALL) {
  files.push({ name, nbytes: 2, sha256: createHash("sha256").update("{}").digest("hex") });
}

async function serve(code) {
  const server = http.createServer((request, response) => {
    if (request.url === "/") return response.setHeader("content-type", "text/html").end("<!doctype html>");
    if (request.url === "/download.js") return response.setHeader("content-type", "text/javascript").end(code);
    const shard = /params_shard_(\d+)\.bin$/.exec(request.url)?.[1];
    if (shard === undefined) return response.end("{}");
    let left = shardMib;
    const write = () => {
      while (left-- > 0) if (!response.write(blocks[shard])) return response.once("drain", write);
      response.end();
    };
    write();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, url: `http://localhost:${server.address().port}/` };
}

/** Bytes of the processes below this one, by what each is for. */
function held() {
  const children = new Map();
  for (const pid of fs.readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const parent = Number(/^\d+ \(.*\) \S (\d+)/s.exec(fs.readFileSync(`/proc/${pid}/stat`, "utf8"))[1]);
      children.set(parent, [...(children.get(parent) ?? []), Number(pid)]);
    } catch {} // it has ended
  }
  const bytes = {};
  for (const queue = [process.pid]; queue.length; ) {
    for (const pid of children.get(queue.pop()) ?? []) {
      queue.push(pid);
      try {
        const found = 1024 * Number(/^Pss:\s+(\d+)/m.exec(fs.readFileSync(`/proc/${pid}/smaps_rollup`, "utf8"))[1]);
        const kind = kindOf(fs.readFileSync(`/proc/${pid}/cmdline`, "utf8"));
        bytes[kind] = (bytes[kind] ?? 0) + found;
      } catch {}
    }
  }
  return bytes;
}

/** Chromium says what a process is for in an option, Firefox in the last word. */
function kindOf(command) {
  const words = command.split("\0").filter(Boolean);
  const chromium = /--utility-sub-type=\w+\.mojom\.(\w+)/.exec(command) ?? /--type=([\w-]+)/.exec(command);
  if (chromium) return chromium[1];
  return words.includes("-contentproc") ? words.at(-1) : "browser";
}

const sumOf = (bytes) => Object.values(bytes).reduce((sum, each) => sum + each, 0);

const { server, url } = await serve(await bundled());
const browser = await openBrowser({ chromium: process.env.CHROMIUM, firefox: options.firefox });
try {
  const [page] = browser.context.pages();
  await page.goto(url);
  await page.evaluate(async () => {
    self.download = (await import("/download.js")).download;
  });
  for (const phase of ["download", "check"]) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    const before = held();
    let peak = before;
    const watch = setInterval(() => {
      const now = held();
      if (sumOf(now) > sumOf(peak)) peak = now;
    }, EVERY_MS);
    const begin = Date.now();
    const progress = await page.evaluate(
      async ([url, files]) => {
        const totalBytes = files.reduce((sum, { nbytes }) => sum + nbytes, 0);
        const shards = new Set(files.map(({ name }) => name));
        const pack = { url, version: "0".repeat(16), files, totalBytes, shards, drafter: new Set(), library: "" };
        let last;
        await self.download(pack, (progress) => (last = progress), new AbortController().signal);
        return { downloaded: last.downloadedBytes, checked: last.checkedBytes };
      },
      [url, files],
    );
    clearInterval(watch);
    const line = {
      benchmark: "download_memory",
      date: new Date().toISOString().slice(0, 10),
      commit: options.commit,
      browser: `${options.firefox ? "Firefox" : "Chromium"} ${browser.context.browser()?.version() ?? ""}`.trim(),
      phase,
      shards: count,
      shard_bytes: shardMib * MIB,
      ...progress,
      before_bytes: sumOf(before),
      peak_more_bytes: sumOf(peak) - sumOf(before),
      by_process: Object.fromEntries(Object.entries(peak).map(([kind, bytes]) => [kind, bytes - (before[kind] ?? 0)])),
      seconds: (Date.now() - begin) / 1000,
    };
    console.log(JSON.stringify(line));
  }
} finally {
  await browser.close();
  server.close();
}
