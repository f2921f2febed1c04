// The model's thread. It takes {at: address}, {ask: text}, {messages: [...]}, and tells {state, busy, ready, at, messages}.
import { chooseLibrary } from "gemma4-web/fast"; // first
import { deleteModelAllInfoInCache, MLCEngine } from "@mlc-ai/web-llm";

let engine;
let messages = [];
const tell = (news) => postMessage({ messages, ...news });

async function text(url) {
  const response = await fetch(url, { cache: "no-cache" });
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.text();
}

async function load(at) {
  tell({ at, state: "Starting…", busy: true, ready: false });
  await engine?.unload();
  // Programs come with the extension, weights from the address: both have to be of one compilation.
  const own = new URL("package/", location.href).href;
  const ours = await text(`${own}resolve/main/provenance.json`);
  const theirs = await text(`${inFolder(at)}provenance.json`).catch(() => ours); // without a network: what is kept
  if (ours !== theirs)
    throw new Error("this address has another package than the one that the extension was built with");
  const choice = await chooseLibrary(own);
  const record = { model: at, model_id: at, ...choice, model_manifest: "mlc-model-manifest.json" };
  const appConfig = { model_list: [{ ...record, overrides: { context_window_size: 1024 } }] };
  await forgetOthers(at, ours, appConfig);
  engine = new MLCEngine({
    appConfig,
    initProgressCallback: ({ text: state }) => tell({ state, busy: true }),
  });
  await engine.reload(at);
  tell({ state: "Ready", busy: false, ready: true });
}

/** The client keeps files by their address: those of the package that an earlier version was built with have to go. */
async function forgetOthers(at, provenance, appConfig) {
  const loaded = await caches.open("loaded");
  if ((await (await loaded.match(inFolder(at)))?.text()) === provenance) return;
  await deleteModelAllInfoInCache(at, appConfig);
  await loaded.put(inFolder(at), new Response(provenance));
}

/** Where the client looks: below `resolve/main/`, unless the address names a revision itself. */
function inFolder(at) {
  const folder = at.endsWith("/") ? at : `${at}/`;
  return /\/resolve\/[^/]+\//.test(folder) ? folder : `${folder}resolve/main/`;
}

async function ask(content) {
  const before = messages;
  const asked = [...before, { role: "user", content }];
  let answer = "";
  try {
    for await (const chunk of await engine.chat.completions.create({ messages: asked, stream: true, temperature: 0 })) {
      answer += chunk.choices[0]?.delta?.content ?? "";
      messages = [...asked, { role: "assistant", content: answer }];
      tell({ state: "Answering…", busy: true });
    }
  } catch (error) {
    messages = before;
    throw error;
  }
  tell({ state: "Ready", busy: false });
}

function begin(others) {
  messages = others;
  tell({});
}

const wishes = { at: load, ask, messages: begin };
let last = Promise.resolve();
self.addEventListener("message", ({ data }) => {
  for (const [name, value] of Object.entries(data)) {
    const done = last.then(() => wishes[name](value));
    last = done.catch((error) => tell({ state: `It does not work: ${error.message}`, busy: false }));
  }
});
