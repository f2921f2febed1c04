// Search by meaning: what is new among the passages is embedded once, when somebody searches.
import type { Passage } from "./passages";
import type { Prompts } from "./prompts";
import type { Ranked } from "./ranking";
import type { MeaningStore } from "./store";

/** A model that turns texts into vectors of length 1, and finds the nearest of those that it holds. */
export interface Embeds {
  version: string;
  embed(texts: string[]): Promise<Float32Array[]>;
  hold(vectors: Float32Array): Promise<unknown>;
  find(text: string, count: number): Promise<Ranked[]>;
}

export interface Found extends Passage {
  cosine: number;
}

const AT_ONCE = 16;

export class MeaningSearch {
  private held: Passage[] | undefined;
  /** Searches come one after the other: a later one finds what an earlier one has embedded. */
  private last: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly embedder: Embeds,
    private readonly prompts: Prompts,
    private readonly store: MeaningStore,
  ) {}

  /** The passages that are nearest to a text in their meaning. `report` gets how many of all are embedded. */
  find(
    passages: Passage[],
    text: string,
    count: number,
    report: (done: number, all: number) => void = () => undefined,
  ): Promise<Found[]> {
    const found = this.last.then(async () => {
      await this.hold(passages, report);
      const ranked = await this.embedder.find(this.prompts.query + text, count);
      return ranked.map(({ index, cosine }) => ({ ...this.held![index]!, cosine }));
    });
    this.last = found.catch(() => undefined);
    return found;
  }

  private async hold(passages: Passage[], report: (done: number, all: number) => void): Promise<void> {
    const { embedder, store, held } = this;
    if (held?.length === passages.length && held.every(({ text }, index) => text === passages[index]!.text)) {
      this.held = passages; // titles may have changed
      return;
    }
    const { version } = embedder;
    const vectors = await store.vectors(version);
    const texts = new Set(passages.map(({ text }) => text));
    const gone = [...vectors.keys()].filter((text) => !texts.has(text));
    await store.forget(gone.map((text) => ({ version, text })));
    // Texts of a call take the time of its longest: those of like lengths come together.
    const missing = [...texts].filter((text) => !vectors.has(text)).sort((a, b) => a.length - b.length);
    for (let begin = 0; begin < missing.length; begin += AT_ONCE) {
      report(texts.size - missing.length + begin, texts.size);
      const batch = missing.slice(begin, begin + AT_ONCE);
      const made = await embedder.embed(batch.map((text) => this.prompts.document + text));
      const added = new Map(batch.map((text, index) => [text, made[index]!]));
      for (const [text, vector] of added) vectors.set(text, vector);
      await store.addVectors(version, added);
    }
    const width = vectors.get(passages[0]?.text ?? "")?.length ?? 0;
    const matrix = new Float32Array(passages.length * width);
    for (const [index, { text }] of passages.entries()) matrix.set(vectors.get(text)!, index * width);
    await embedder.hold(matrix);
    this.held = passages;
  }
}
