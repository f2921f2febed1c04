// The client's request for a conversation, so that the model sees exactly its own template.
//
// The client glues role strings and messages together. Here the role strings are empty and every
// message carries its part of the prompt as it is: the client can then neither open a system turn that
// nobody asked for nor a new turn after a tool's answer. Its KV state is reused as long as the
// messages before the last one are those of the request before.
//
// Pictures and sounds stand between the opening of a turn and its text, and a message has one text part. What comes
// before them is therefore handed over as the message's name, which the client puts in front of a message. The frames of a
// video have their times between them: each then is a message of its own.
import type { ChatCompletionContentPart, ChatCompletionMessageParam, ModelRecord } from "@mlc-ai/web-llm";
import { timestamp } from "../media/video";
import type { Turns } from "../package/turns";
import { REASONING, withoutReasoning } from "./reply";
import { respond } from "./tool_syntax";
import { DECLARATIONS } from "./tools";
import { isFrame, mediaOf, type AssistantMessage, type Attachment, type Conversation, type Round } from "./transcript";

const THINK = "<|think|>\n";

/** Goes into the model's record. */
export const CONVERSATION_OVERRIDES: NonNullable<ModelRecord["overrides"]> = {
  conv_config: {
    roles: { user: "", assistant: "", tool: "" },
    role_empty_sep: "",
    system_template: "{system_message}",
    render_empty_system_message: false,
  },
};

/** Pictures and sounds by their ids, as the client takes them; those that are not in it are left out. */
export type MediaParts = ReadonlyMap<string, ChatCompletionContentPart>;

/**
 * The messages for the next stretch of the last reply.
 *
 * The conversation ends with the reply to be written; its rounds so far are tool calls with results.
 * `turns` are the strings of this model's template.
 */
export function toMessages(
  conversation: Conversation,
  turns: Turns,
  media: MediaParts = new Map(),
): ChatCompletionMessageParam[] {
  const messages: ChatCompletionMessageParam[] = [];
  const seen = conversation.messages.slice(conversation.forgotten);
  let before = firstOpening(conversation, turns);
  seen.forEach((message, index) => {
    const last = index === seen.length - 1;
    if (message.role === "user") {
      const opening = index === seen.length - 2 && !conversation.thinking ? turns.replyOpening : "";
      const text = message.text.trim() + turns.model + opening;
      messages.push(...withMedia(before, mediaOf(message), media, text));
      before = turns.user;
    } else {
      addRounds(messages, message, last);
    }
  });
  return messages;
}

/** A turn of the user: what comes before its media, those that the client takes, and its text. */
function withMedia(
  before: string,
  attached: Attachment[],
  media: MediaParts,
  text: string,
): ChatCompletionMessageParam[] {
  const messages: ChatCompletionMessageParam[] = [];
  let [ahead, wasFrame] = [before, false];
  let parts: ChatCompletionContentPart[] = [];
  const add = (words: string) => {
    const content = [...parts, { type: "text" as const, text: words }];
    messages.push({ role: "user", ...(ahead && { name: ahead }), content });
    [ahead, parts] = ["", []];
  };
  for (const each of attached) {
    const part = media.get(each.id);
    if (!part) continue;
    if (isFrame(each)) {
      const time = `${wasFrame ? " " : ""}${timestamp(each.seconds!)} `;
      if (parts.length) add(time);
      else ahead += time;
    }
    parts.push(part);
    wasFrame = isFrame(each);
  }
  if (parts.length) add(text);
  else messages.push({ role: "user", content: ahead + text });
  return messages;
}

/** What a new round of a reply opens with, after a tool has answered. */
export function openingAfterTool(conversation: Conversation): string {
  return conversation.thinking ? REASONING : "";
}

/** What comes before the user's first message, with the system turn if there is one. */
function firstOpening({ system, thinking, tools }: Conversation, turns: Turns): string {
  const text = system.trim();
  if (!text && !thinking && !tools) return turns.firstUser;
  const [before, behind] = turns.system;
  return before + (thinking ? THINK : "") + text + (tools ? DECLARATIONS : "") + behind;
}

function addRounds(messages: ChatCompletionMessageParam[], reply: AssistantMessage, last: boolean): void {
  reply.rounds.forEach((round, index) => {
    if (last && index === reply.rounds.length - 1 && round.results.length === 0) return; // to be written
    const content = last ? round.raw : withoutReasoning(round.opened + round.raw);
    messages.push({ role: "assistant", content });
    if (round.results.length) messages.push(results(round, last ? (reply.rounds[index + 1]?.opened ?? "") : ""));
  });
  // A reply that never began still is a turn of its own.
  if (!last && reply.rounds.length === 0) messages.push({ role: "assistant", content: "" });
}

function results(round: Round, opening: string): ChatCompletionMessageParam {
  const content = round.results.map(({ name, text }) => respond(name, text)).join("") + opening;
  return { role: "user", content };
}
