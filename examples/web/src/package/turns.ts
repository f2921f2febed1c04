// The strings around messages, as the compiler found them in the checkpoint's chat template.
import type { Fields } from "./json_fields";

const SYSTEM_MESSAGE = "{system_message}";
const LONGEST = 100_000; // of a string; a template's own system message may be long
const MOST_DIFFERENCES = 64;

export interface Turns {
  /** Before and behind a system message, up to the user's first one. */
  system: [string, string];
  /** Before a user's first message, where there is no system message. */
  firstUser: string;
  /** Before every later message of the user's: the end of the reply before it, and the opening. */
  user: string;
  /** The end of the user's message, and the opening of the reply. */
  model: string;
  /** What a reply begins with while thinking is off. */
  replyOpening: string;
}

/** Gemma 4's, which its packages of earlier versions have, and those of base models get. */
export const GEMMA: Turns = {
  system: ["<|turn>system\n", "<turn|>\n<|turn>user\n"],
  firstUser: "<|turn>user\n",
  user: "<turn|>\n<|turn>user\n",
  model: "<turn|>\n<|turn>model\n",
  replyOpening: "",
};

/** Of `mlc-chat-config.json`. */
export function readTurns(config: Fields): Turns {
  const strings = config.object("conv_template");
  const replyOpening = strings.text("role_empty_sep", "", LONGEST);
  if (!config.has("first_user")) return { ...GEMMA, replyOpening };
  const roles = strings.object("roles");
  const user = roles.text("user", GEMMA.user, LONGEST);
  const [before, ...rest] = strings.text("system_template", SYSTEM_MESSAGE, LONGEST).split(SYSTEM_MESSAGE);
  const hasRole = strings.raw("add_role_after_system_message") !== false;
  return {
    system: [before!, rest.join(SYSTEM_MESSAGE) + (hasRole ? user : "")],
    firstUser: config.text("first_user", "", LONGEST),
    user,
    model: roles.text("assistant", GEMMA.model, LONGEST),
    replyOpening,
  };
}

/** Whether thinking and tools, which the page writes in Gemma 4's way, belong to them. */
export function areGemmas({ replyOpening: _, ...turns }: Turns): boolean {
  const { replyOpening: __, ...gemma } = GEMMA;
  return JSON.stringify(turns) === JSON.stringify(gemma);
}

/** The first difference between prompts here and the checkpoint's template, in words; empty where there is none. */
export function readDifference(build: Fields): string {
  const [first] = build.objects("conversation", MOST_DIFFERENCES);
  return first ? first.text("dialogue", "a conversation") : "";
}
