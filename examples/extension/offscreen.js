// The document that nobody sees: it outlives panels and the service worker, and holds the model's thread and the chat.
const model = new Worker("model.js", { type: "module" });
const panels = new Set();
let chat = { state: "Give the address of the package", at: localStorage.at, messages: kept() };

function kept() {
  return JSON.parse(localStorage.messages ?? "[]");
}

model.onmessage = ({ data }) => {
  chat = { ...chat, ...data };
  if (!chat.busy) localStorage.messages = JSON.stringify(chat.messages);
  for (const panel of panels) panel.postMessage(chat);
};
model.onerror = ({ message }) => model.onmessage({ data: { state: `The model's thread failed: ${message}` } });
model.postMessage({ messages: chat.messages });
if (chat.at) model.postMessage({ at: chat.at });

chrome.runtime.onConnect.addListener((panel) => {
  panels.add(panel);
  panel.onDisconnect.addListener(() => panels.delete(panel));
  panel.onMessage.addListener((wish) => {
    if (wish.at) localStorage.at = wish.at;
    model.postMessage(wish);
  });
  panel.postMessage(chat);
});
