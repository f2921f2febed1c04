// A file server on localhost for the tests: {"/prefix/": folder} plus "/" for one page.
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

/** Starts the server; `folders` maps URL prefixes, the longest match wins. Resolves to {url, close}. */
export async function serve(folders) {
  const prefixes = Object.keys(folders).sort((a, b) => b.length - a.length);
  const server = http.createServer(async (request, response) => {
    const url = decodeURIComponent(new URL(request.url, "http://localhost").pathname);
    const prefix = prefixes.find((candidate) => url.startsWith(candidate));
    const root = prefix === undefined ? undefined : path.resolve(folders[prefix]);
    const file = root && path.join(root, url.slice(prefix.length) || "index.html");
    try {
      if (!file?.startsWith(root)) throw new Error("outside");
      const data = await fs.readFile(file);
      const type = TYPES[path.extname(file)] ?? "application/octet-stream";
      response.writeHead(200, { "content-type": type, "content-length": data.length }).end(data);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    close: () => {
      server.closeAllConnections(); // a browser that was killed left some open
      return new Promise((resolve) => server.close(resolve));
    },
  };
}
