// The client's request for a conversation, so that the model sees the prompt of its own template.
import type { ChatCompletionMessageParam } from "@mlc-ai/web-llm";

export interface Turn {
  role: "user" | "assistant";
  text: string;
}

// Opens the first turn where nothing stands before it. The package's own string for the user's role
// closes the turn before, so a conversation without a system message replaces it by this name.
const OPEN_USER = "<|turn>user\n";

/** Goes into the model's record: no system turn where there is no system message. */
export const CONVERSATION_OVERRIDES = { conv_config: { render_empty_system_message: false } };

export function toMessages(system: string, turns: Turn[]): ChatCompletionMessageParam[] {
  const messages: ChatCompletionMessageParam[] = [];
  const instructions = system.trim();
  // The client pastes the system message with String.replace, which gives `$` a meaning.
  if (instructions) messages.push({ role: "system", content: instructions.replaceAll("$", "$$$$") });
  turns.forEach(({ role, text }, index) => {
    if (role === "assistant") messages.push({ role, content: text });
    else if (index === 0 && !instructions) messages.push({ role, content: text, name: OPEN_USER });
    else messages.push({ role, content: text });
  });
  return messages;
}
