// Keeps the page itself, so that it starts without a network. The build puts BUILD in front of this (plugin.ts):
// {version, files: {path below the page's folder: sha256}}.
//
// The page comes from the network if it answers, so that an update holds at the next load and nothing of another
// program that uses this port later is hidden; from here otherwise. A page of one build gets files of that build only:
// their names hold their contents' hash. Nothing else is touched: no package (the page keeps that itself), no API.
const SCOPE = new URL(self.registration.scope);
const INDEX = "index.html";
const HASHED = /^assets\//; // names that hold their contents' hash
const FAMILY = `gemma4/page ${SCOPE.href} `; // several pages may lie in folders of one origin
const CACHE = FAMILY + BUILD.version;
const SLOW_MS = 4000; // after this, what is kept goes before the network
const ASK_MS = 2000;

const addressOf = (name) => new URL(name, SCOPE).href;
const isOurs = (name) => Object.hasOwn(BUILD.files, name);

/** A file's path below the page's folder; undefined for what lies elsewhere. */
function nameOf(address) {
  const { origin, pathname } = new URL(address);
  return origin === SCOPE.origin && pathname.startsWith(SCOPE.pathname)
    ? pathname.slice(SCOPE.pathname.length)
    : undefined;
}

self.addEventListener("install", (event) => event.waitUntil(install()));
self.addEventListener("activate", (event) => event.waitUntil(dropCaches((name) => name !== CACHE)));
self.addEventListener("message", (event) => {
  if (event.data === "loaded") event.waitUntil(takeOver());
});
self.addEventListener("fetch", (event) => {
  const { request } = event;
  const name = nameOf(request.url);
  if (request.method !== "GET" || name === undefined || request.cache === "only-if-cached") return;
  if (request.mode === "navigate") {
    if (name === "" || name === INDEX) event.respondWith(page(event));
  } else if (isOurs(name)) {
    event.respondWith(
      HASHED.test(name) ? kept(name).then((found) => found ?? fetch(request)) : networkFirst(request, name),
    );
  }
});

async function install() {
  const isNew = !(await caches.has(CACHE));
  try {
    const cache = await caches.open(CACHE);
    await Promise.all(Object.keys(BUILD.files).map((name) => keep(cache, name)));
  } catch (error) {
    if (isNew) await caches.delete(CACHE); // all or nothing; the next load tries again
    throw error;
  }
  await takeOver();
}

/** Fetches a file and keeps it, if it is of this build. */
async function keep(cache, name) {
  if (await cache.match(addressOf(name))) return;
  for (const mode of HASHED.test(name) ? ["default", "reload"] : ["no-cache"]) {
    const response = await fetch(addressOf(name), { cache: mode });
    if (!response.ok) throw new Error(`${name}: ${response.status}`);
    if (await put(cache, name, response)) return;
  }
  throw new Error(`${name} is not of the build that sw.js names`);
}

async function put(cache, name, response) {
  const data = await response.arrayBuffer();
  if (!(await isOfThisBuild(name, data))) return false;
  const headers = new Headers(response.headers);
  for (const each of ["content-encoding", "content-length", "vary"]) headers.delete(each); // of the way, not of the file
  await cache.put(addressOf(name), new Response(data, { headers })); // a new one: no trace of redirects
  return true;
}

async function isOfThisBuild(name, data) {
  if (name === INDEX) {
    // Whoever puts the page on a host may edit it (docs/web.md): it has to name files of this build.
    const named = new TextDecoder().decode(data).match(/assets\/[\w.-]+/g) ?? [];
    return named.length > 0 && named.every(isOurs);
  }
  if (!HASHED.test(name)) return true;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", data));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("") === BUILD.files[name];
}

/** Replaces an older worker as soon as no tab has a page of another build, which may still need its files. */
async function takeOver() {
  const windows = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  const pages = windows.filter(({ url }) => ["", INDEX].includes(nameOf(url)));
  const scripts = await Promise.all(pages.map(scriptOf));
  if (scripts.every((script) => script !== undefined && isOurs(nameOf(script) ?? ""))) await self.skipWaiting();
}

/** The address of a page's script, which names its build; undefined: it does not answer. */
function scriptOf(client) {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = ({ data }) => resolve(data);
    setTimeout(resolve, ASK_MS);
    client.postMessage("which build?", [port2]);
  });
}

async function page(event) {
  const answer = fetch(event.request);
  event.waitUntil(answer.then((response) => afterLoad(response.clone())).catch(() => undefined));
  const found = await kept(INDEX);
  if (!found) return answer;
  const slow = new Promise((_, reject) => setTimeout(reject, SLOW_MS));
  const response = await Promise.race([answer, slow]).catch(() => undefined);
  return !response || response.status >= 500 ? found : response;
}

/** The server answered: keeps what its owner changed in the page, or goes away with a page that is gone. */
async function afterLoad(response) {
  if (response.type !== "basic") return; // a redirect, whose target comes here again
  if (response.ok) await put(await caches.open(CACHE), INDEX, response);
  const script = await fetch(self.location.href, { cache: "no-store" });
  const isScript = /javascript/.test(script.headers.get("content-type") ?? "");
  if (script.status !== 404 && script.status !== 410 && (!script.ok || isScript)) return;
  await self.registration.unregister();
  await dropCaches(() => true);
}

async function networkFirst(request, name) {
  const response = await fetch(request).catch(() => undefined);
  if (response?.ok) return response;
  return (await kept(name)) ?? response ?? Response.error();
}

async function kept(name) {
  return (await caches.open(CACHE)).match(addressOf(name));
}

async function dropCaches(which) {
  const names = (await caches.keys()).filter((name) => name.startsWith(FAMILY) && which(name));
  await Promise.all(names.map((name) => caches.delete(name)));
}
