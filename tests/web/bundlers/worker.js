// The recipes' worker: a model in a thread of its own.
import { chooseLibrary, stats } from "gemma4-web/fast"; // first
import { MLCEngine } from "@mlc-ai/web-llm";

async function answer({ at, question }) {
  const record = {
    model: at,
    model_id: "gemma4",
    ...(await chooseLibrary(at)),
    model_manifest: "mlc-model-manifest.json",
  };
  const engine = new MLCEngine({ appConfig: { model_list: [record] } });
  await engine.reload("gemma4");
  const messages = [{ role: "user", content: question }];
  const { choices } = await engine.chat.completions.create({ messages, temperature: 0 });
  return { text: choices[0].message.content, stats: stats() };
}

self.addEventListener("message", ({ data }) => {
  answer(data).then(postMessage, (error) => postMessage({ error: String(error.stack ?? error) }));
});
