// The page and packages on localhost, as a careful host sends them; on demand with the faults that
// networks and hosts have.
import fs from "node:fs/promises";
import http from "node:http";
import path from "node:path";

const TYPES = {
  ".css": "text/css",
  ".html": "text/html",
  ".js": "text/javascript",
  ".json": "application/json",
  ".svg": "image/svg+xml",
  ".wasm": "application/wasm",
};
// Those of docs/web.md.
export const HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; " +
    "img-src 'self' data: blob:; media-src blob:; connect-src 'self' blob: data: https: http://localhost:* http://127.0.0.1:*; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-embedder-policy": "require-corp",
  "cross-origin-resource-policy": "same-origin",
  "x-content-type-options": "nosniff",
};

/**
 * `folders` maps URL prefixes to folders, the longest match wins. `faults` maps a path to how its
 * next answers go wrong, one entry each: "cut" breaks off halfway, "busy" is a 503, "hold" never ends.
 * Resolves to {url, faults, requests, close}; requests lists {path, range} in order.
 */
export async function servePage(folders) {
  const prefixes = Object.keys(folders).sort((a, b) => b.length - a.length);
  const faults = {};
  const requests = [];
  const server = http.createServer(async (request, response) => {
    const url = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    requests.push({ path: url, range: request.headers.range ?? null });
    const prefix = prefixes.find((candidate) => url.startsWith(candidate));
    const root = prefix === undefined ? undefined : path.resolve(folders[prefix]);
    const file = root && path.join(root, url.slice(prefix.length) || "index.html");
    let data;
    try {
      if (!file?.startsWith(root)) throw new Error("outside");
      data = await fs.readFile(file);
    } catch {
      return response.writeHead(404, HEADERS).end();
    }
    const fault = faults[url]?.shift();
    if (fault === "busy") return response.writeHead(503, HEADERS).end();
    const type = TYPES[path.extname(file)] ?? "application/octet-stream";
    const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0);
    const body = data.subarray(from);
    response.writeHead(from ? 206 : 200, {
      ...HEADERS,
      "content-type": type,
      "content-length": body.length,
      "accept-ranges": "bytes",
      ...(from ? { "content-range": `bytes ${from}-${data.length - 1}/${data.length}` } : {}),
    });
    if (!fault) return response.end(body);
    const half = body.subarray(0, Math.floor(body.length / 2));
    response.write(half, () => fault === "cut" && setTimeout(() => response.destroy(), 300));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    faults,
    requests,
    close: () => {
      server.closeAllConnections();
      return new Promise((resolve) => server.close(resolve));
    },
  };
}
