// What the worker does for an embedder: texts to vectors by the stock client, and the search among vectors.
import type { MLCEngine } from "@mlc-ai/web-llm";
import { lockOfLife } from "./alive";
import { nearest } from "../meaning/ranking";
import type { Answers, FromEmbedder, ToEmbedder } from "./embedder_protocol";

const TOO_LONG = "EmbeddingExceedContextWindowSizeError"; // the client's

/** Answers the messages of an embedder from now on. */
export function serveEmbeddings(engine: MLCEngine): void {
  const embeddings = new Embeddings(engine);
  const tell = (message: FromEmbedder) => postMessage(message);
  self.onmessage = ({ data }: MessageEvent<ToEmbedder>) => {
    embeddings.answer(data).then(
      (value) => tell({ kind: "done", id: data.id, value }),
      (error: unknown) => tell({ kind: "failed", id: data.id, text: String(error) }),
    );
  };
  void lockOfLife().then((lock) => lock && tell({ kind: "alive", lock }));
}

class Embeddings {
  private held: Float32Array = new Float32Array();

  constructor(private readonly engine: MLCEngine) {}

  async answer(message: ToEmbedder): Promise<Answers[keyof Answers]> {
    if (message.kind === "embed") return this.embed(message.texts);
    if (message.kind === "find") {
      const [query] = await this.embed([message.text]);
      return nearest(this.held, query!, message.count);
    }
    if (message.kind === "hold") this.held = message.vectors;
    else {
      this.engine.setAppConfig(message.config);
      await this.engine.reload(message.model);
    }
    return undefined;
  }

  /** A text that is longer than the model takes is looked at as far as that. */
  private async embed(texts: string[]): Promise<Float32Array[]> {
    try {
      const { data } = await this.engine.embeddings.create({ input: texts });
      return data.map(({ embedding }) => Float32Array.from(embedding));
    } catch (error) {
      if ((error as Error).name !== TOO_LONG) throw error;
      const [text] = texts as [string];
      if (texts.length === 1) return this.embed([text.slice(0, Math.floor(text.length / 2))]);
      return (await Promise.all(texts.map((each) => this.embed([each])))).flat();
    }
  }
}
