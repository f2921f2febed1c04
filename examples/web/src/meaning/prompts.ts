// What an embedding model was trained to see in front of each text.
import type { Fields } from "../package/json_fields";

export interface Prompts {
  query: string;
  document: string;
}

const LONGEST = 1000;

/** Of `mlc-chat-config.json`; a package without any embeds texts as they are. */
export function readPrompts(config: Fields): Prompts {
  const prompts = config.object("embedding").object("prompts");
  return { query: prompts.text("query", "", LONGEST), document: prompts.text("document", "", LONGEST) };
}
