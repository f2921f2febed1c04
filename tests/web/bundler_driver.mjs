// Opens what bundlers made of one page (tests/web/bundlers) in Chromium. usage: node bundler_driver.mjs JOB.json
//
// Job: {pages: {NAME: {folder, headers, embedded?: headers of a page of another origin that shows it in a frame, policy?:
// its "allow", apart?: whether the package is on a third origin}}, package, chromium, output, question}. `THIRD` in headers
// is that origin. Writes result.json: {NAME: what the page told}.
import fs from "node:fs/promises";
import http from "node:http";
import path from "node:path";
import { withPage } from "./chromium.mjs";
import { ANSWER_MS } from "./limits.mjs";

const TYPES = {
  ".html": "text/html",
  ".js": "text/javascript",
  ".wasm": "application/wasm",
  ".json": "application/json",
};
const job = JSON.parse(await fs.readFile(process.argv[2], "utf8"));

/** Files with headers; `hosts` maps beginnings of paths to {folder, headers}. */
async function serve(hosts) {
  const server = http.createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost").pathname;
    const prefix = Object.keys(hosts).find((start) => url.startsWith(start));
    const { folder, headers, text } = hosts[prefix] ?? {};
    const file = path.join(folder ?? "", url.slice(prefix?.length ?? 0) || "index.html");
    const data = text ?? (folder && (await fs.readFile(file).catch(() => undefined)));
    const type = text ? "text/html" : (TYPES[path.extname(file)] ?? "application/octet-stream");
    response.writeHead(data ? 200 : 404, { ...headers, "content-type": type }).end(data);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, port: server.address().port };
}

async function told(page, { folder, headers = {}, embedded, policy = "", apart }) {
  const { server: third, port: thirdPort } = await serve({
    "/package/resolve/main/": { folder: job.package, headers: { "access-control-allow-origin": "*" } },
  });
  const origin = `http://127.0.0.1:${thirdPort}`;
  const named = Object.fromEntries(
    Object.entries(headers).map(([key, value]) => [key, value.replaceAll("THIRD", origin)]),
  );
  const { server, port } = await serve({
    "/package/resolve/main/": { folder: job.package, headers: named },
    "/": { folder, headers: named },
  });
  const at = apart ? `${origin}/package/` : "/package/";
  const address = `http://127.0.0.1:${port}/?${new URLSearchParams({ at, question: job.question })}`;
  const frame = `<title>frame</title><link rel="icon" href="data:," /><iframe allow="${policy}" src="${address.replaceAll("&", "&amp;")}"></iframe>`;
  const outer = await serve({ "/": { text: frame, headers: embedded } });
  await page.goto(embedded ? `http://127.0.0.1:${outer.port}/` : address);
  const shown = (embedded ? page.frameLocator("iframe") : page).locator("#told");
  await shown.filter({ hasText: "{" }).waitFor({ timeout: ANSWER_MS });
  const answer = JSON.parse(await shown.textContent());
  await page.goto("about:blank");
  for (const each of [third, server, outer.server]) each.closeAllConnections();
  return answer;
}

async function main(page) {
  const results = {};
  for (const [name, one] of Object.entries(job.pages)) results[name] = await told(page, one);
  return results;
}

let outcome;
try {
  outcome = await withPage(job, main);
} catch (error) {
  outcome = { error: String(error?.stack ?? error) };
}
await fs.writeFile(path.join(job.output, "result.json"), JSON.stringify(outcome));
process.exit(outcome.error ? 1 : 0);
