// The conversations, and the reply that is being written.
import { forgetBeginnings } from "gemma4-web/choose";
import type { Engine, GenerationOptions } from "../engine/engine";
import { EngineLost } from "../engine/failures";
import { addPace, NO_PACE, now, type Pace, tokensPerSecond, tokensPerStep } from "../engine/speed";
import { PreparedMedia } from "../media/prepared";
import type { Medium } from "../media/read";
import { APPLICATION } from "../package/beginnings";
import type { Package } from "../package/package";
import { openingAfterTool, toMessages } from "./prompt";
import { callsOf } from "./reply";
import { saveSettings, type Settings } from "./settings";
import { explainStorage, type Change, type Store } from "./store";
import { runTool } from "./tools";
import {
  cleanTitle,
  forgetOldest,
  mediaIdsOf,
  mediaOf,
  mergeInto,
  newConversation,
  newReply,
  newUserMessage,
} from "./transcript";
import type { AssistantMessage, Attachment, Conversation, Message, Round } from "./transcript";

const MOST_ROUNDS = 6;
const SAVE_EVERY_MS = 1000;

export interface SessionEvents {
  /** Another conversation, or other messages in it. */
  conversationChanged(): void;
  /** Another tab went on with the open conversation. */
  conversationRefreshed(): void;
  /** The list of conversations. */
  listChanged(): void;
  /** A reply got longer or ended. */
  replyChanged(reply: AssistantMessage): void;
  /** Writing began or ended. */
  busyChanged(): void;
  failed(error: unknown): void;
  /** Something was taken out or put in; `undo` takes that back. */
  undoable(what: string, undo: () => void): void;
  /** Chats were deleted, here or in another tab. */
  chatsRemoved?(): void;
}

interface Writing {
  conversation: Conversation;
  reply: AssistantMessage;
  stopped: boolean;
  /** Of the rounds that are done. */
  pace: Pace;
  /** When the person asked, or the last tool had answered. */
  sent: number;
}

export class Session {
  conversations: Conversation[] = [];
  current: Conversation;
  engine: Engine | undefined;
  pack: Package | undefined;
  private readonly prepared: PreparedMedia;
  private writing: Writing | undefined;
  private savedAt = 0;

  constructor(
    private readonly store: Store,
    readonly settings: Settings,
    private readonly events: SessionEvents,
  ) {
    this.prepared = new PreparedMedia((id) => store.mediaOf(id));
    this.current = this.fresh();
  }

  /** Of all that are kept. */
  get ids(): string[] {
    return this.conversations.map(({ id }) => id);
  }

  get busy(): boolean {
    return this.writing !== undefined;
  }

  /** Reads what was kept, and opens the latest conversation. */
  async restore(): Promise<void> {
    this.store.watch((change) => void this.takeOver(change).catch((error: unknown) => this.events.failed(error)));
    this.conversations = await this.store.all();
    this.current = this.conversations[0] ?? this.fresh();
    this.events.listChanged();
    this.events.conversationChanged();
  }

  newChat(): void {
    if (this.current.messages.length) this.current = this.fresh();
    this.events.conversationChanged();
    this.events.listChanged();
  }

  select(id: string): void {
    const found = this.conversations.find((conversation) => conversation.id === id);
    if (!found) return;
    this.current = found;
    this.events.conversationChanged();
    this.events.listChanged();
  }

  async remove(id: string): Promise<void> {
    const index = this.conversations.findIndex((conversation) => conversation.id === id);
    const found = this.conversations[index];
    if (!found) return;
    this.drop([id]);
    await this.store.remove(id).catch((error: unknown) => this.events.failed(error));
    this.events.undoable("Chat deleted", () => {
      this.conversations.splice(index, 0, found);
      this.current = found;
      this.changed(found);
      this.events.conversationChanged();
    });
  }

  /** Adds chats to those that are there. */
  async add(chats: Conversation[], media: Medium[] = []): Promise<void> {
    for (const { id, blob } of media) this.store.addMedia(id, blob);
    await this.store.save(...chats);
    this.conversations = [...this.conversations, ...chats].sort((a, b) => b.updated - a.updated);
    const [only] = chats;
    if (chats.length === 1 && only) this.select(only.id);
    else this.events.listChanged();
    this.events.undoable(chats.length === 1 ? "Chat imported" : `${chats.length} chats imported`, () => {
      const ids = chats.map(({ id }) => id);
      this.drop(ids);
      for (const id of ids) void this.store.remove(id).catch((error: unknown) => this.events.failed(error));
    });
  }

  /** Gives a chat a name; an empty one means its first question. */
  rename(id: string, title: string): void {
    const found = this.conversations.find((conversation) => conversation.id === id);
    if (!found) return;
    found.title = cleanTitle(title);
    this.events.listChanged();
    void this.save(found);
  }

  async removeAll(): Promise<void> {
    const media = this.conversations.flatMap(mediaIdsOf);
    this.drop(this.conversations.map(({ id }) => id));
    await this.store.clear(media);
  }

  /** Takes chats out of the list, and ends what is being written in them. */
  private drop(ids: string[]): void {
    this.forgetBeginnings(ids);
    if (this.writing && ids.includes(this.writing.conversation.id)) this.stop();
    this.conversations = this.conversations.filter(({ id }) => !ids.includes(id));
    if (ids.includes(this.current.id)) {
      this.current = this.fresh();
      this.events.conversationChanged();
    }
    this.events.listChanged();
    this.events.chatsRemoved?.();
  }

  /** Removes what is kept of the beginnings of chats, or of all, for the next visit. */
  forgetBeginnings(chats?: string[]): void {
    this.engine?.forget(chats);
    const forgotten = forgetBeginnings({ application: APPLICATION, ...(chats && { owners: chats }) });
    void forgotten.catch((error) => console.warn("beginnings stay:", error));
  }

  /** Does what another tab did. */
  private async takeOver(change: Change): Promise<void> {
    if (change.kind !== "saved") {
      const ids = change.kind === "cleared" ? this.conversations.map(({ id }) => id) : change.ids;
      const written = this.writing?.conversation.id;
      this.drop(ids);
      // What this tab saved of it in the meantime goes, too.
      if (written !== undefined && ids.includes(written)) await this.store.remove(written);
      return;
    }
    for (const id of change.ids) {
      const read = await this.store.get(id);
      const found = this.conversations.find((conversation) => conversation.id === id);
      if (!read) continue;
      if (!found) this.conversations.push(read);
      else if (found === this.writing?.conversation)
        found.title = read.title; // what is written here is newer
      else mergeInto(found, read);
      if (found === this.current) this.events.conversationRefreshed();
    }
    this.conversations.sort((a, b) => b.updated - a.updated);
    this.events.listChanged();
  }

  /** Changes what belongs to the conversation: its system prompt and switches. */
  change(values: Partial<Pick<Conversation, "system" | "thinking" | "tools">>, of = this.current): void {
    Object.assign(of, values);
    if (of.messages.length) this.changed(of);
    this.events.listChanged();
  }

  changeSettings(values: Partial<Settings>): void {
    Object.assign(this.settings, values);
    saveSettings(values);
  }

  /** Takes the bytes of a picture or sound for a message to come. */
  async attach({ blob, ...attachment }: Medium): Promise<Attachment> {
    this.store.addMedia(attachment.id, blob);
    await this.prepared.prepare(attachment, this.pack!.media);
    return attachment;
  }

  /** Undefined: the bytes are not kept any more. */
  mediaBlob(id: string): Promise<Blob | undefined> {
    return this.store.mediaOf(id);
  }

  mediaSize(): ReturnType<Store["mediaSize"]> {
    return this.store.mediaSize();
  }

  async ask(text: string, media: Attachment[] = []): Promise<void> {
    if (this.busy || !this.engine) return;
    this.current.messages.push(newUserMessage(text, media));
    await this.generate();
  }

  /** Writes the last reply again. */
  async regenerate(): Promise<void> {
    if (this.busy || !this.engine) return;
    const { messages } = this.current;
    const from = messages.findLastIndex((message) => message.role === "user") + 1;
    if (from === 0) return;
    this.cut(from, "Previous answer replaced");
    await this.generate();
  }

  /** Asks an earlier question in other words; what followed it is taken out. */
  async edit(id: string, text: string): Promise<void> {
    if (this.busy || !this.engine) return;
    const index = this.current.messages.findIndex((message) => message.id === id);
    const message = this.current.messages[index];
    if (!message) return;
    this.cut(index, "Later messages replaced");
    await this.ask(text, mediaOf(message));
  }

  /** Leaves out older messages and writes the last reply again. */
  async forgetAndRetry(): Promise<void> {
    if (!forgetOldest(this.current)) return;
    await this.regenerate();
  }

  stop(): void {
    if (!this.writing) return;
    this.writing.stopped = true;
    this.engine?.stop();
  }

  /** Saves what is being written, for a page that may be gone in a moment. */
  flush(): void {
    if (this.writing) this.store.saveNow(this.writing.conversation);
  }

  private fresh(): Conversation {
    return { ...newConversation(), system: this.settings.system };
  }

  private cut(from: number, what: string): void {
    const conversation = this.current;
    const before: Message[] = [...conversation.messages];
    const forgotten = conversation.forgotten;
    if (from === before.length) return;
    conversation.messages.splice(from);
    conversation.forgotten = Math.min(forgotten, Math.max(0, from - 1));
    this.events.conversationChanged();
    this.events.undoable(what, () => {
      if (this.writing?.conversation === conversation) return;
      conversation.messages = before;
      conversation.forgotten = forgotten;
      this.changed(conversation);
      this.events.conversationChanged();
    });
  }

  private async generate(): Promise<void> {
    const conversation = this.current;
    const reply = newReply();
    conversation.messages.push(reply);
    const writing: Writing = { conversation, reply, stopped: false, pace: NO_PACE, sent: now() };
    this.writing = writing;
    this.changed(conversation);
    this.events.conversationChanged();
    this.events.busyChanged();
    try {
      await this.write(writing);
    } catch (error) {
      reply.state = "interrupted";
      if (!(error instanceof EngineLost)) this.events.failed(error); // the engine's owner reports that
    } finally {
      this.writing = undefined;
      if (this.conversations.includes(conversation)) this.changed(conversation); // not deleted meanwhile
      this.events.replyChanged(reply);
      this.events.busyChanged();
    }
  }

  /** Rounds of generation until the model asks for no more tools. */
  private async write(writing: Writing): Promise<void> {
    const { conversation, reply } = writing;
    let opened = "";
    for (let count = 0; count < MOST_ROUNDS; count++) {
      const round: Round = { opened, raw: "", results: [] };
      reply.rounds.push(round);
      const finish = await this.writeRound(writing, round);
      const calls = conversation.tools && finish === "stop" ? callsOf(round.raw) : [];
      if (writing.stopped || finish === "abort") reply.state = "stopped";
      else if (finish === "length") reply.state = "cut";
      else if (calls.length === 0) reply.state = "done";
      else round.results = calls.map((call) => ({ name: call.name, text: runTool(call) }));
      this.events.replyChanged(reply);
      if (reply.state !== "writing") return;
      opened = openingAfterTool(conversation);
      writing.sent = now();
    }
    reply.state = "cut";
  }

  private async writeRound(writing: Writing, round: Round): Promise<string> {
    const { conversation, reply } = writing;
    const engine = this.engine!;
    let finish = "";
    const { turns, media: inputs } = this.pack!;
    const media = await this.prepared.partsFor(conversation, inputs);
    if (writing.stopped) return "abort";
    await engine.reply(toMessages(conversation, turns, media), this.options(conversation.id), writing.sent, (piece) => {
      // A stop that came before the client began is not remembered by it.
      if (writing.stopped) engine.stop();
      if ("text" in piece) round.raw += piece.text;
      else if ("finish" in piece) finish = piece.finish;
      else {
        const { pace, ...usage } = piece.usage;
        writing.pace = addPace(writing.pace, pace);
        const firstTokenSeconds = reply.stats?.firstTokenSeconds ?? usage.firstTokenSeconds;
        const tokens = (reply.stats?.tokens ?? 0) + usage.tokens;
        const speed = { tokensPerSecond: tokensPerSecond(writing.pace), tokensPerStep: tokensPerStep(writing.pace) };
        const keptTokens = (reply.stats?.keptTokens ?? 0) + usage.keptTokens;
        reply.stats = { ...usage, tokens, keptTokens, firstTokenSeconds, ...speed };
      }
      this.events.replyChanged(reply);
      if (performance.now() - this.savedAt > SAVE_EVERY_MS) void this.save(conversation);
    });
    return finish;
  }

  private options(chat: string): GenerationOptions {
    const { settings } = this;
    const own = this.pack!.sampling;
    return {
      temperature: settings.temperature ?? own.temperature,
      topP: settings.topP ?? own.topP,
      repetitionPenalty: settings.repetitionPenalty ?? own.repetitionPenalty,
      frequencyPenalty: own.frequencyPenalty,
      presencePenalty: own.presencePenalty,
      maxTokens: settings.maxTokens,
      seed: settings.seed,
      chat,
    };
  }

  private changed(conversation: Conversation): void {
    conversation.updated = Date.now();
    this.conversations = [conversation, ...this.conversations.filter((each) => each !== conversation)];
    this.events.listChanged();
    void this.save(conversation);
  }

  private async save(conversation: Conversation): Promise<void> {
    this.savedAt = performance.now();
    if (!this.conversations.includes(conversation)) return; // deleted while it was written
    try {
      await this.store.save(conversation);
    } catch (error) {
      this.events.failed(explainStorage(error));
    }
  }
}
