import { chooseLibrary } from "gemma4-web/fast"; // first
import { CreateMLCEngine } from "@mlc-ai/web-llm";

const element = (id) => document.getElementById(id);
const say = (text) => (element("state").textContent = text);
const messages = [];

const at = new URL("/package/resolve/main/", location.href).href;
const model = { model: at, model_id: "gemma4", model_manifest: "mlc-model-manifest.json" };
const engine = await CreateMLCEngine("gemma4", {
  appConfig: { model_list: [{ ...model, ...(await chooseLibrary(at)) }] },
  initProgressCallback: ({ text }) => say(text),
}).catch((error) => {
  say(`It does not start: ${error.message}`);
  throw error;
});
say("Ready");
element("ask").disabled = false;

/** Shows a message of the chat; returns its element. */
function show(who, text) {
  const shown = Object.assign(document.createElement("p"), { className: who, textContent: text });
  element("chat").append(shown);
  return shown;
}

element("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const content = element("question").value;
  element("form").reset();
  element("ask").disabled = true;
  messages.push({ role: "user", content });
  show("user", content);
  const answer = show("assistant", "");
  try {
    for await (const chunk of await engine.chat.completions.create({ messages, stream: true, temperature: 0 })) {
      answer.textContent += chunk.choices[0]?.delta?.content ?? "";
    }
    messages.push({ role: "assistant", content: answer.textContent });
  } catch (error) {
    messages.pop();
    say(`No answer: ${error.message}`);
  }
  element("ask").disabled = false;
});
