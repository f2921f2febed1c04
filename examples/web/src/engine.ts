// A package in the stock client, in a worker.
import { CreateWebWorkerMLCEngine, type WebWorkerMLCEngine } from "@mlc-ai/web-llm";
import { CONVERSATION_OVERRIDES } from "./conversation";
import { clientUrl } from "./download";
import { MANIFEST, type Package } from "./package";

export const MODEL_ID = "gemma4";

/** Hands a downloaded package to the client. `report` gets the share that is done and what it is. */
export async function startEngine(
  pack: Package,
  report: (share: number, text: string) => void,
): Promise<WebWorkerMLCEngine> {
  const worker = new Worker(new URL("./worker.ts", import.meta.url), { type: "module" });
  const failure = new Promise<never>((_, reject) => {
    worker.onerror = (event) => reject(new Error(event.message || "the worker cannot start"));
  });
  const url = clientUrl(pack);
  const engine = CreateWebWorkerMLCEngine(worker, MODEL_ID, {
    appConfig: {
      cacheBackend: "cache",
      model_list: [
        {
          model: url,
          model_id: MODEL_ID,
          // The client does not cache libraries from localhost: it asks the server itself.
          model_lib: new URL(pack.library, url.includes("localhost") ? pack.url : url).href,
          model_manifest: MANIFEST,
          required_features: pack.usesF16 ? ["shader-f16"] : [],
          overrides: CONVERSATION_OVERRIDES,
        },
      ],
    },
    initProgressCallback: ({ progress, text }) => report(progress, text),
  });
  try {
    return await Promise.race([engine, failure]);
  } catch (error) {
    worker.terminate();
    throw error;
  }
}
