// The page: load a package, chat with it.
import type { WebWorkerMLCEngine } from "@mlc-ai/web-llm";
import { toMessages, type Turn } from "./conversation";
import { download } from "./download";
import { packageUrl, readPackage } from "./package";
import { checkDevice } from "./requirements";
import { UserError } from "./user_error";

function element<T extends HTMLElement>(id: string): T {
  return document.getElementById(id) as T;
}

const loader = element<HTMLFormElement>("loader");
const packageField = element<HTMLInputElement>("package");
const loadButton = element<HTMLButtonElement>("load");
const progress = element<HTMLProgressElement>("progress");
const status = element("status");
const errorBox = element("error");
const chat = element("chat");
const system = element<HTMLTextAreaElement>("system");
const list = element("messages");
const composer = element<HTMLFormElement>("composer");
const prompt = element<HTMLTextAreaElement>("prompt");
const sendButton = element<HTMLButtonElement>("send");
const stopButton = element<HTMLButtonElement>("stop");
const clearButton = element<HTMLButtonElement>("clear");
const speed = element("speed");

let engine: WebWorkerMLCEngine | undefined;
let turns: Turn[] = [];

function showError(error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  const lines = error instanceof UserError ? [message, error.hint] : [message];
  errorBox.replaceChildren(
    ...lines.map((line) => Object.assign(document.createElement("p"), { textContent: line })),
  );
  errorBox.hidden = false;
  console.error(error);
}

function mebibytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

async function load(address: string): Promise<void> {
  errorBox.hidden = true;
  chat.hidden = true;
  loadButton.disabled = true;
  progress.hidden = false;
  progress.removeAttribute("value");
  const abort = new AbortController();
  try {
    await engine?.unload();
    engine = undefined;
    status.textContent = "Reading the package";
    const pack = await readPackage(packageUrl(address));
    element("device").textContent = `Runs on this machine: ${await checkDevice(pack)}.`;
    await download(
      pack,
      (done, total) => {
        progress.value = done / total;
        status.textContent = `Downloading: ${mebibytes(done)} of ${mebibytes(total)}`;
      },
      abort.signal,
    );
    const { startEngine } = await import("./engine"); // the client is large: not before it is needed
    engine = await startEngine(pack, (share, text) => {
      progress.value = share;
      status.textContent = text;
    });
    status.textContent = `Ready: ${pack.quantization}, ${pack.contextLength} tokens of context.`;
    startConversation();
    chat.hidden = false;
    prompt.focus();
  } catch (error) {
    abort.abort();
    status.textContent = "";
    showError(error);
  } finally {
    progress.hidden = true;
    loadButton.disabled = false;
  }
}

function startConversation(): void {
  turns = [];
  list.replaceChildren();
  speed.textContent = "";
}

function addMessage(role: Turn["role"], text: string): HTMLLIElement {
  const item = document.createElement("li");
  item.dataset["role"] = role;
  item.textContent = text;
  list.append(item);
  item.scrollIntoView({ block: "end" });
  return item;
}

function setWriting(writing: boolean): void {
  sendButton.hidden = writing;
  stopButton.hidden = !writing;
  clearButton.disabled = writing;
}

async function answer(question: string): Promise<void> {
  if (!engine) return;
  errorBox.hidden = true;
  turns.push({ role: "user", text: question });
  addMessage("user", question);
  const item = addMessage("assistant", "");
  item.dataset["state"] = "writing";
  setWriting(true);
  let text = "";
  try {
    const stream = await engine.chat.completions.create({
      messages: toMessages(system.value, turns),
      stream: true,
      stream_options: { include_usage: true },
    });
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      item.textContent = text;
      const finish = chunk.choices[0]?.finish_reason;
      if (finish) item.dataset["finish"] = finish;
      const extra = chunk.usage?.extra;
      if (extra) {
        speed.textContent =
          `${extra.prefill_tokens_per_s.toFixed(1)} tokens/s read, ` +
          `${extra.decode_tokens_per_s.toFixed(1)} tokens/s written`;
      }
    }
    turns.push({ role: "assistant", text });
  } catch (error) {
    turns.pop(); // the question stays on the page, and out of the next request
    showError(error);
  } finally {
    delete item.dataset["state"];
    setWriting(false);
    prompt.focus();
  }
}

loader.addEventListener("submit", (event) => {
  event.preventDefault();
  void load(packageField.value);
});

composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const question = prompt.value.trim();
  if (!question || sendButton.hidden) return;
  prompt.value = "";
  void answer(question);
});

prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    composer.requestSubmit();
  }
});

stopButton.addEventListener("click", () => engine?.interruptGenerate());
clearButton.addEventListener("click", startConversation);

const asked = new URL(location.href).searchParams.get("package");
if (asked) {
  packageField.value = new URL(asked, location.href).href;
  void load(packageField.value);
}
