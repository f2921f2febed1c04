// What is attached to the message that is being written, and the ways to attach it.
import type { Session } from "../chat/session";
import { isFrame, type Attachment } from "../chat/transcript";
import { asHeard, kindOf, reasonAgainst, readMedia } from "../media/read";
import { framesOf } from "../media/video";
import { inWords, UserError } from "../package/user_error";
import { Camera } from "./camera";
import { byId, h, iconButton } from "./dom";
import { icon } from "./icons";
import { drawMedium, MediaUrls } from "./media";
import { clearErrors, showError } from "./notices";
import { Recorder } from "./recorder";

const MOST = 16; // of a message, frames of videos apart
const RECOMPILE = "Compile it with --modalities text,image,audio, or open another package.";

export interface AttachmentEvents {
  changed(): void;
  announce(text: string): void;
}

export class Attachments {
  private attached: Attachment[] = [];
  private reading = 0;
  /** Ends when all files that came so far are read. */
  private turn: Promise<void> = Promise.resolve();
  private isCapturing = false;
  private readonly list = byId<HTMLUListElement>("attached");
  private readonly file = byId<HTMLInputElement>("attach-file");
  private readonly buttons = {
    attach: byId<HTMLButtonElement>("attach"),
    picture: byId<HTMLButtonElement>("open-camera"),
    sound: byId<HTMLButtonElement>("record"),
  };
  private readonly camera = new Camera();
  private readonly recorder = new Recorder();
  private readonly urls: MediaUrls;

  constructor(
    private readonly session: Session,
    private readonly events: AttachmentEvents,
  ) {
    this.urls = new MediaUrls((id) => session.mediaBlob(id));
    const { attach, picture, sound } = this.buttons;
    attach.addEventListener("click", () => this.unless(this.reasonAgainstAll(), () => this.file.click()));
    this.file.addEventListener("change", () => {
      const files = [...(this.file.files ?? [])];
      this.file.value = ""; // the same file may come again
      void this.add(files);
    });
    picture.addEventListener("click", () =>
      this.unless(this.reason("picture"), () => void this.capture(picture, () => this.camera.picture())),
    );
    sound.addEventListener("click", () =>
      this.unless(this.reason("sound"), () => void this.capture(sound, () => this.recorder.record(this.limit()))),
    );
    this.takePasted();
    this.takeDropped();
  }

  get count(): number {
    return this.attached.length;
  }

  /** Whether something is on its way into the message. */
  get isBusy(): boolean {
    return this.reading > 0 || this.recorder.isOn;
  }

  /** Hands over what is attached, for a message that is sent. */
  take(): Attachment[] {
    const { attached } = this;
    this.attached = [];
    this.list.replaceChildren();
    this.list.hidden = true;
    this.urls.keepOnly([]);
    return attached;
  }

  /** What the package cannot do is grey, and says why. */
  show(): void {
    const { attach, picture, sound } = this.buttons;
    const limit = this.session.pack?.media.sound ? `, up to ${this.limit()} s` : "";
    this.showButton(attach, "Attach pictures, sounds and videos", this.reasonAgainstAll());
    this.showButton(picture, "Take a picture", this.reason("picture"));
    this.showButton(sound, `Record a sound${limit}`, this.reason("sound"));
    const { picture: sees, sound: hears } = this.session.pack?.media ?? {};
    this.file.accept = [sees && "image/*,video/*", hears && "audio/*"].filter(Boolean).join(",");
    const lacks = [!sees && "picture", !hears && "sound"].filter(Boolean).join(" ");
    document.body.dataset["lacks"] = this.session.pack ? lacks : "";
  }

  private showButton(button: HTMLButtonElement, label: string, reason: string | undefined): void {
    button.setAttribute("aria-label", label);
    button.title = reason ?? label;
    // It keeps the focus, and a click says why.
    button.setAttribute("aria-disabled", String(reason !== undefined));
  }

  private reason(kind: Attachment["kind"]): string | undefined {
    return reasonAgainst(kind, this.session.pack?.media ?? {});
  }

  private reasonAgainstAll(): string | undefined {
    const [pictures, sounds] = [this.reason("picture"), this.reason("sound")];
    return pictures && sounds
      ? "This package takes text only: it was compiled without --modalities image or audio."
      : undefined;
  }

  private unless(reason: string | undefined, action: () => void): void {
    if (reason) showError(new UserError(reason, RECOMPILE));
    else action();
  }

  /** Seconds that the model hears at most. */
  private limit(): number {
    const { maxSamples, rate } = this.session.pack!.media.sound!;
    return Math.floor(maxSamples / rate);
  }

  private async capture(button: HTMLButtonElement, get: () => Promise<File | undefined>): Promise<void> {
    if (this.isCapturing) return;
    this.isCapturing = true;
    clearErrors();
    const got = get();
    this.events.changed();
    try {
      const file = await got;
      button.focus();
      if (file) await this.add([file], true);
    } catch (error) {
      showError(error);
    } finally {
      this.isCapturing = false;
      this.events.changed();
    }
  }

  /** Reads files after those that came before: frames of two videos must not mix, nor share the same room. */
  add(files: File[], isOurs = false): Promise<void> {
    if (files.length) clearErrors();
    this.reading += files.length;
    this.events.changed();
    this.turn = this.turn.then(() => this.readAll(files, isOurs));
    return this.turn;
  }

  /** Reads files one after the other; what cannot be taken is told together, and changes nothing else. */
  private async readAll(files: File[], isOurs: boolean): Promise<void> {
    const { pack } = this.session;
    const failures: unknown[] = [];
    for (const given of files) {
      const place = h("li", { class: "reading", role: "status" }, `Reading ${given.name}…`);
      this.list.append(place);
      this.list.hidden = false;
      try {
        if (!pack) throw new UserError("There is no model yet.", "Open a package first.");
        const file = await asHeard(given);
        const isVideo = kindOf(file) === "video";
        const frames = isVideo ? this.roomForFrames() : 0;
        if (!isVideo && this.attached.filter((each) => !isFrame(each)).length >= MOST)
          throw new UserError(`A message takes ${MOST} pictures and sounds.`, "Send them first.");
        const made = (done: number) => (place.textContent = `Reading ${file.name}… ${done} of ${frames} frames`);
        for (const medium of await readMedia(file, pack.media, { cut: isOurs, frames, made })) {
          const attachment = await this.session.attach(medium);
          this.attached.push(attachment);
          place.before(this.draw(attachment));
        }
        place.remove();
        this.events.announce(`${given.name} attached`);
      } catch (error) {
        failures.push(error);
        place.remove();
      } finally {
        this.reading--;
        this.list.hidden = !this.list.children.length;
        this.events.changed();
      }
    }
    if (failures.length) showError(summary(failures));
  }

  /** Reads a picture or a sound for a message that is sent at once. */
  async read(file: File): Promise<Attachment[]> {
    const media = await readMedia(file, this.session.pack!.media, { frames: 0 });
    return Promise.all(media.map((medium) => this.session.attach(medium)));
  }

  /** Frames that one more video of the message may give: all share what one alone would have. */
  private roomForFrames(): number {
    const { media, contextLength } = this.session.pack!;
    if (!media.picture) return 0; // it will be refused for that
    const room = framesOf(contextLength, media.picture) - this.attached.filter(isFrame).length;
    if (room > 0) return room;
    throw new UserError(
      "There is no room for the frames of another video in the context.",
      "Send the first one alone.",
    );
  }

  private draw(attachment: Attachment): HTMLLIElement {
    const item = h("li", {}, drawMedium(attachment, this.urls));
    item.append(
      iconButton(icon("close"), `Remove ${attachment.name}`, () => {
        this.attached = this.attached.filter((each) => each !== attachment);
        item.remove();
        this.list.hidden = !this.list.children.length;
        this.urls.keepOnly(this.attached.map(({ id }) => id));
        byId("prompt").focus();
        this.events.announce(`${attachment.name} removed`);
        this.events.changed();
      }),
    );
    return item;
  }

  private takePasted(): void {
    document.addEventListener("paste", (event) => {
      const { files, types } = event.clipboardData ?? new DataTransfer();
      // A text program puts a picture of the text beside it.
      const isText = types.includes("text/plain") && types.includes("text/html");
      if (!files.length || isText || !this.isOpen() || isOtherField(event.target)) return;
      event.preventDefault();
      void this.add([...files]);
    });
  }

  private takeDropped(): void {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const mark = (on: boolean) => document.body.classList.toggle("dropping", on && this.isOpen());
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // otherwise the browser would leave the page for the file
      mark(true);
    });
    document.addEventListener("dragleave", (event) => event.relatedTarget === null && mark(false));
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      mark(false);
      if (this.isOpen()) void this.add([...event.dataTransfer!.files]);
    });
  }

  /** Whether there is a message to attach to. */
  private isOpen(): boolean {
    return !byId("composer-area").hidden && !document.querySelector("dialog[open]");
  }
}

function isOtherField(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && target.id !== "prompt" && target.matches("input, textarea");
}

/** Several failures as one message. */
function summary(failures: unknown[]): unknown {
  const [first] = failures;
  if (failures.length === 1 || !(first instanceof UserError)) return first;
  const hints = new Set(failures.map((each) => (each instanceof UserError ? each.hint : "")));
  return new UserError(failures.map((each) => inWords(each).message).join(" "), [...hints].join(" "));
}
