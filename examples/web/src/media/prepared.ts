// Pictures and sounds of a conversation as the client takes them, made once for each.
import type { ChatCompletionContentPart } from "@mlc-ai/web-llm";
import { isFrame, mediaOf, type Attachment, type Conversation } from "../chat/transcript";
import { base64Of } from "./base64";
import type { MediaInputs } from "./inputs";
import { pictureUrl } from "./picture";

const FRAME_ROWS = 70; // of the context, at most, as transformers' processor of videos has it

export class PreparedMedia {
  /** By id and input: another package may take pictures of another size. */
  private parts = new Map<string, Promise<ChatCompletionContentPart | undefined>>();

  constructor(private readonly blobOf: (id: string) => Promise<Blob | undefined>) {}

  /** All that the model still sees of a conversation, and that this package takes, by id. */
  async partsFor(conversation: Conversation, inputs: MediaInputs): Promise<Map<string, ChatCompletionContentPart>> {
    const seen = conversation.messages.slice(conversation.forgotten).flatMap(mediaOf);
    const made = new Map<string, ChatCompletionContentPart>();
    const used = new Map<string, Promise<ChatCompletionContentPart | undefined>>();
    for (const each of seen) {
      const input = inputs[each.kind];
      if (!input) continue;
      const key = `${each.id} ${JSON.stringify(input)}`;
      const part = this.parts.get(key) ?? this.make(each, inputs);
      used.set(key, part);
      const done = await part; // one after the other: decoded pictures are large
      if (done) made.set(each.id, done);
    }
    this.parts = used; // those of other conversations go
    return made;
  }

  /** Makes one ahead of its message, so that nobody waits for it after sending. */
  async prepare(attachment: Attachment, inputs: MediaInputs): Promise<void> {
    const part = this.make(attachment, inputs);
    await part;
    this.parts.set(`${attachment.id} ${JSON.stringify(inputs[attachment.kind])}`, part);
  }

  /** Undefined: its bytes are not there any more. */
  private async make(attachment: Attachment, inputs: MediaInputs): Promise<ChatCompletionContentPart | undefined> {
    const { id, kind, name } = attachment;
    const blob = await this.blobOf(id);
    if (!blob) return undefined;
    if (kind === "picture") {
      const most = isFrame(attachment) ? FRAME_ROWS : undefined;
      return { type: "image_url", image_url: { url: await pictureUrl(blob, name, inputs.picture!, most) } };
    }
    return { type: "input_audio", input_audio: { format: "wav", data: await base64Of(blob) } };
  }
}
