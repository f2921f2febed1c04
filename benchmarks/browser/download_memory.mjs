// Memory that the chat page's download takes: a made-up package of large shards into the browser's cache, and then its check
// once more, as at every start. What all processes of the browser hold is read four times a second (Linux: the proportional
// size, in which what they share counts once); a line of JSON each for the download and the check.
// The browser runs by itself: what drives one keeps copies of what it downloads.
//
//   CHROMIUM=$(command -v chromium) node benchmarks/browser/download_memory.mjs --shards 3 --shard-mib 128
//   node benchmarks/browser/download_memory.mjs --firefox $(command -v firefox)
import { createHash } from "node:crypto";
import { spawn } from "node:child_process";
import fs from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { fileURLToPath } from "node:url";

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
    "piece-mib": { type: "string", default: "8" }, // 0: a package of an earlier version
    firefox: { type: "string" },
    source: { type: "string", default: path.join(PAGE, "src/download/download.ts") },
    commit: { type: "string", default: "" },
  },
});
const [count, shardMib, pieceMib] = ["shards", "shard-mib", "piece-mib"].map((name) => Number(options[name]));

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
const hashOf = (shard, mib) => {
  const hash = createHash("sha256");
  for (let i = 0; i < mib; i++) hash.update(blocks[shard]);
  return hash.digest("hex");
};
/** What provenance lists of a shard's pieces; nothing where it is no longer than one. */
const piecesOf = (shard) => {
  const sha256 = [];
  for (let left = shardMib; left > 0; left -= pieceMib) sha256.push(hashOf(shard, Math.min(left, pieceMib)));
  return { pieces: { nbytes: pieceMib * MIB, sha256 } };
};
const files = [...blocks.keys()].map((shard) => ({
  name: `params_shard_${shard}.bin`,
  nbytes: shardMib * MIB,
  sha256: hashOf(shard, shardMib),
  ...(pieceMib > 0 && pieceMib < shardMib && piecesOf(shard)),
}));
for (const name of SMALL) {
  files.push({ name, nbytes: 2, sha256: createHash("sha256").update("{}").digest("hex") });
}

/** What the page does: each phase when it is told to. */
async function run(files) {
  const { download } = await import("/download.js");
  const totalBytes = files.reduce((sum, { nbytes }) => sum + nbytes, 0);
  const shards = new Set(files.map(({ name }) => name));
  const url = `${location.origin}/`;
  const pack = { url, version: "0".repeat(16), files, totalBytes, shards, drafter: new Set(), library: "" };
  for (;;) {
    await fetch("/go");
    let last;
    const failed = await download(pack, (progress) => (last = progress), new AbortController().signal).catch(String);
    const said = { downloaded: last?.downloadedBytes, checked: last?.checkedBytes, failed };
    await fetch("/done", { method: "POST", body: JSON.stringify(said) });
  }
}

const PAGE_TEXT = `<!doctype html><script type="module">(${run})(${JSON.stringify(files)})</script>`;

/** Serves the page and the shards; `waits` has what the page waits for, and who waits for it. */
async function serve(code) {
  const waits = { go: undefined, asked: () => undefined, done: () => undefined };
  const server = http.createServer((request, response) => {
    if (request.url === "/") return response.setHeader("content-type", "text/html").end(PAGE_TEXT);
    if (request.url === "/download.js") return response.setHeader("content-type", "text/javascript").end(code);
    if (request.url === "/go") {
      waits.go = response;
      return waits.asked();
    }
    if (request.url === "/done") {
      let text = "";
      request.on("data", (piece) => (text += piece));
      return request.on("end", () => {
        response.end();
        waits.done(JSON.parse(text));
      });
    }
    const shard = /params_shard_(\d+)\.bin$/.exec(request.url)?.[1];
    if (shard === undefined) return response.end("{}");
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? "");
    const nbytes = shardMib * MIB;
    const end = range?.[2] ? Number(range[2]) + 1 : nbytes;
    let at = Number(range?.[1] ?? 0);
    response.writeHead(range ? 206 : 200, {
      "content-length": end - at,
      ...(range && { "content-range": `bytes ${at}-${end - 1}/${nbytes}` }),
    });
    const write = () => {
      while (at < end) {
        const piece = blocks[shard].subarray(at % MIB, Math.min(MIB, (at % MIB) + end - at));
        at += piece.length;
        if (!response.write(piece)) return response.once("drain", write);
      }
      response.end();
    };
    write();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, waits, url: `http://localhost:${server.address().port}/` };
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
  const words = command.split(/[\0 ]/).filter(Boolean);
  const chromium = /--utility-sub-type=\w+\.mojom\.(\w+)/.exec(command) ?? /--type=([\w-]+)/.exec(command);
  if (chromium) return chromium[1];
  return words.includes("-contentproc") ? words.at(-1) : "browser";
}

const sumOf = (bytes) => Object.values(bytes).reduce((sum, each) => sum + each, 0);

const { server, url, waits } = await serve(await bundled());
const profile = fs.mkdtempSync(path.join(os.tmpdir(), "download-memory-"));
const isAsked = new Promise((resolve) => {
  waits.asked = resolve;
});
const [command, flags] = options.firefox
  ? [options.firefox, ["--headless", "--no-remote", "--profile", profile, url]]
  : [process.env.CHROMIUM, ["--headless=new", "--no-sandbox", "--no-first-run", `--user-data-dir=${profile}`, url]];
const browser = spawn(command, flags, { stdio: "ignore" });
try {
  await isAsked;
  for (const phase of ["download", "check"]) {
    await new Promise((resolve) => setTimeout(resolve, SETTLE_MS));
    const before = held();
    let peak = before;
    const watch = setInterval(() => {
      const now = held();
      if (sumOf(now) > sumOf(peak)) peak = now;
    }, EVERY_MS);
    const begin = Date.now();
    const isDone = new Promise((resolve) => {
      waits.done = resolve;
    });
    waits.go.end();
    const progress = await isDone;
    clearInterval(watch);
    const kinds = new Set([...Object.keys(before), ...Object.keys(peak)]);
    const more = [...kinds].map((kind) => [kind, (peak[kind] ?? 0) - (before[kind] ?? 0)]);
    const line = {
      benchmark: "download_memory",
      date: new Date().toISOString().slice(0, 10),
      commit: options.commit,
      browser: options.firefox ? "Firefox" : "Chromium",
      phase,
      shards: count,
      shard_bytes: shardMib * MIB,
      piece_bytes: pieceMib * MIB,
      ...progress,
      before_bytes: sumOf(before),
      peak_more_bytes: sumOf(peak) - sumOf(before),
      by_process: Object.fromEntries(more),
      seconds: (Date.now() - begin) / 1000,
    };
    console.log(JSON.stringify(line));
  }
} finally {
  browser.kill();
  await new Promise((resolve) => browser.once("exit", resolve));
  server.close();
  server.closeAllConnections();
  fs.rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
}
