// Times by kernel of the model that runs, on this device: measured when asked, shown as tables, copied as text.
import type { Profile, Stats, StepProfile } from "gemma4-web/fast";
import type { Session } from "../chat/session";
import { formatCount } from "../package/units";
import { inWords } from "../package/user_error";
import { byId, copyText, h } from "./dom";

const COLUMNS = ["kernel", "operator", "launches", "ms", "share", "GB/s"];
const WORDS = 2; // columns of them
const IDLE = "Asks the model a question three times and shows which kernels its time goes to.";
const CLOCKS = {
  device: "by the device's clock",
  browser: "by the browser's clock around submissions, because the device has none for pages",
};

/** Why nothing can be measured now; empty where it can. */
export function whyNot(stats: Stats | undefined, isWriting: boolean): string {
  if (!stats) return "No model runs.";
  if (!stats.enabled) return "Needs fast decoding: switch it on and reload the page.";
  return isWriting ? "When the reply is written." : "";
}

const milliseconds = (microseconds: number) => (microseconds / 1000).toFixed(3);

/** What the kernels take beside what the step takes. */
export function titleOf({ step, tokens, wallMicroseconds, kernels }: StepProfile): string {
  const what =
    step === "decode"
      ? `A token in ${milliseconds(wallMicroseconds)} ms`
      : `A prompt of ${formatCount(tokens)} tokens, with its first token after ${milliseconds(wallMicroseconds)} ms`;
  const launches = kernels.reduce((sum, each) => sum + each.launches, 0);
  const total = kernels.reduce((sum, each) => sum + each.microseconds, 0);
  return `${what}; its ${formatCount(launches)} launches take ${milliseconds(total)} ms`;
}

export function rowsOf({ kernels }: StepProfile): string[][] {
  return kernels.map(({ kernel, operator, launches, microseconds, share, bytes }) => [
    kernel,
    operator || "-",
    String(launches),
    milliseconds(microseconds),
    `${(100 * share).toFixed(1)} %`,
    bytes !== undefined && microseconds > 0 ? (bytes / microseconds / 1000).toFixed(2) : "-",
  ]);
}

/** As text with columns. `about`: lines on the model and the browser. */
export function textOf(profile: Profile, about: readonly string[]): string {
  const tables = profile.steps.map((step) => {
    const rows = [COLUMNS, ...rowsOf(step)];
    const widths = COLUMNS.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
    const lines = rows.map((row) =>
      row
        .map((text, column) => (column < WORDS ? text.padEnd(widths[column]!) : text.padStart(widths[column]!)))
        .join("  "),
    );
    return [titleOf(step), ...lines].join("\n");
  });
  const { vendor, architecture, description } = profile.device;
  const device = [vendor, architecture, description].filter(Boolean).join(", ") || "a device without a name";
  return `${[...about, `${device}; kernels ${CLOCKS[profile.clock]}`].join("\n")}\n\n${tables.join("\n\n")}\n`;
}

function tableOf(step: StepProfile): HTMLElement {
  const head = h("tr", {}, ...COLUMNS.map((name) => h("th", { scope: "col" }, name)));
  const rows = rowsOf(step).map((row) => h("tr", {}, ...row.map((text) => h("td", {}, text))));
  return h("table", {}, h("caption", {}, titleOf(step)), h("thead", {}, head), h("tbody", {}, ...rows));
}

export class ProfilePanel {
  private readonly button = byId<HTMLButtonElement>("profile");
  private readonly copy = byId<HTMLButtonElement>("copy-profile");
  private readonly state = byId("profile-state");
  private readonly tables = byId("profile-tables");
  private isRunning = false;
  private text = "";

  constructor(private readonly session: Session) {
    this.button.addEventListener("click", () => void this.run());
    this.copy.addEventListener("click", () => {
      void copyText(this.text).then((done) => this.say(done ? "Copied." : "The browser did not allow copying."));
    });
  }

  show(): void {
    if (this.isRunning) return;
    const why = whyNot(this.session.engine?.fast, this.session.busy);
    this.button.disabled = why !== "";
    this.say(why || IDLE);
  }

  private say(text: string): void {
    this.state.textContent = text;
  }

  private async run(): Promise<void> {
    const { engine, pack } = this.session;
    if (!engine || this.session.busy) return this.show();
    this.isRunning = this.button.disabled = true;
    this.say("Measuring; a message that is sent meanwhile waits.");
    try {
      const profile = await engine.profile();
      const library = pack?.choice ? `, library ${pack.choice.name}` : "";
      this.text = textOf(profile, [`${pack?.title ?? "model"}${library}`, navigator.userAgent]);
      this.tables.replaceChildren(...profile.steps.map(tableOf));
      this.tables.hidden = this.copy.hidden = false;
      this.say(`Kernels timed ${CLOCKS[profile.clock]}.`);
    } catch (error) {
      const { message, hint } = inWords(error);
      this.say(`Could not be measured: ${[message, hint].filter(Boolean).join(" ")}`);
    } finally {
      this.isRunning = this.button.disabled = false;
    }
  }
}
