// The side panel shows the chat of the offscreen document, and makes that document where there is none.
const element = (id) => document.getElementById(id);

const isThere = async () => (await chrome.runtime.getContexts({ contextTypes: ["OFFSCREEN_DOCUMENT"] })).length > 0;
await chrome.offscreen
  .createDocument({ url: "offscreen.html", reasons: ["WORKERS"], justification: "A worker computes the model" })
  .catch(async (error) => {
    if (!(await isThere())) throw error; // there is one for all panels
  });
const model = chrome.runtime.connect();
model.onDisconnect.addListener(() => setTimeout(() => location.reload(), 1000)); // the document has ended: another one

model.onMessage.addListener(({ state, busy, ready, at, messages }) => {
  element("state").textContent = state;
  if (at) element("at").value = at;
  element("ask").disabled = element("new").disabled = busy || !ready;
  element("chat").replaceChildren(
    ...messages.map(({ role, content }) =>
      Object.assign(document.createElement("p"), { className: role, textContent: content }),
    ),
  );
});

element("package").addEventListener("submit", (event) => {
  event.preventDefault();
  model.postMessage({ at: element("at").value });
});
element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (element("ask").disabled) return;
  element("ask").disabled = true;
  model.postMessage({ ask: element("question").value });
  element("form").reset();
});
element("new").addEventListener("click", () => model.postMessage({ messages: [] }));
