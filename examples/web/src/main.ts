// Puts the page together.
import "./style/base.css";
import "./style/sidebar.css";
import "./style/layout.css";
import "./style/chat.css";
import "./style/forms.css";
import "./style/media.css";
import { Session } from "./chat/session";
import { loadSettings } from "./chat/settings";
import { Store } from "./chat/store";
import { titleOf, type AssistantMessage } from "./chat/transcript";
import { ContextFull } from "./engine/failures";
import { tidy } from "./download/cache";
import { Loader } from "./loader";
import { MeaningLoader } from "./meaning_loader";
import { keepPage } from "./offline";
import { placeOf } from "./package/trust";
import { formatCount } from "./package/units";
import { Composer } from "./view/composer";
import { ConversationView } from "./view/conversation";
import { byId, h } from "./view/dom";
import { drawIcons } from "./view/icons";
import { MeaningView } from "./view/meaning";
import { clearErrors, showError, showUndo } from "./view/notices";
import { ModelSwitch } from "./view/model_switch";
import { SettingsDialog } from "./view/settings";
import { Sidebar } from "./view/sidebar";
import { StartView, type StartState } from "./view/start";
import { suggestionsFor } from "./view/suggestions";
import { applyTheme } from "./view/theme";

const WITH_COMPOSER: StartState["kind"][] = ["progress", "ready"];
const TITLE = document.title;

async function main(): Promise<void> {
  drawIcons();
  const settings = loadSettings();
  applyTheme(settings.theme);
  const store = await Store.open(() =>
    showError("An older version of this page is open in another tab: close it, and this one goes on."),
  );

  let meanings: MeaningLoader | undefined;
  const tidyMeanings = () => void meanings?.tidy().catch((error) => console.warn("vectors stay:", error));
  const session: Session = new Session(store, settings, {
    conversationChanged: () => {
      conversation.show();
      composer.show();
      showHead();
    },
    conversationRefreshed: () => {
      conversation.refresh();
      showHead();
    },
    listChanged: () => {
      sidebar.show();
      showHead();
    },
    replyChanged: (reply) => {
      conversation.update(reply);
      showContext();
      if (reply.state !== "writing" && document.hidden) document.title = `✓ ${TITLE}`;
    },
    busyChanged: () => {
      if (session.busy) clearErrors();
      loader.works(session.busy ? "answering" : undefined);
      composer.show();
    },
    failed: (error) => {
      const canForget = error instanceof ContextFull && session.current.messages.length > 3;
      showError(error, canForget ? [{ label: "Leave out the oldest", run: () => void session.forgetAndRetry() }] : []);
    },
    undoable: showUndo,
    chatsRemoved: () => tidyMeanings(),
  });

  const conversation = new ConversationView(
    session,
    () => suggestionsFor(session.pack),
    (suggestion) => void composer.suggest(suggestion),
  );
  const composer = new Composer(
    session,
    () => conversation.editLast(),
    (text) => conversation.announce(text),
  );
  const newChat = () => {
    session.newChat();
    composer.field.focus();
  };
  const sidebar = new Sidebar(session, newChat);
  const start = new StartView({
    open: (address) => void loader.open(address),
    trust: (url, digest) => void loader.open(url, "person", digest),
    choose: () => void loader.choose(),
    start: () => void loader.start(),
    pause: () => loader.pause(),
    retry: () => void loader.retry(),
    takeOver: () => void loader.takeOver(),
    setContext: (tokens) => loader.setContext(tokens),
    setAllowed: (bytes) => loader.setAllowed(bytes),
    setLibrary: (name) => loader.setLibrary(name),
  });
  const switching = new ModelSwitch((address) => void loader.open(address));
  const loader: Loader = new Loader(session, {
    state: (state) => {
      start.show(state);
      byId("composer-area").hidden = !WITH_COMPOSER.includes(state.kind);
      document.body.dataset["state"] = state.kind;
      composer.show();
      conversation.showWelcome();
      showHead();
      if (state.kind === "ready") {
        conversation.announce("The model is ready");
        // Nobody is taken out of what they do meanwhile, and no keyboard comes over a phone's page.
        const isFree = document.activeElement === document.body || document.activeElement === null;
        if (isFree && matchMedia("(hover: hover)").matches) composer.field.focus();
      }
    },
    failed: (error) => showError(error),
    offered: ({ models }) => {
      switching.offer(models);
      showHead();
    },
  });
  new SettingsDialog(session, {
    removing: async (url) => void (await Promise.all([loader.removing(url), meanings?.removing(url)])),
    removed: (url) => loader.removed(url),
    changed: () => loader.changed(),
    review: () => void loader.review(),
    choose: () => void loader.choose(),
  });

  function showHead(): void {
    const { pack, engine, current } = session;
    byId("title").textContent = titleOf(current);
    const parts = pack ? [pack.title, pack.recipe, placeOf(pack), !engine && "not loaded"] : ["No model"];
    byId("model").textContent = parts.filter(Boolean).join(" · ");
    byId("model").title = pack?.url ?? "";
    switching.show(document.body.dataset["state"] === "choose" ? undefined : pack?.url);
    showContext();
  }

  function showContext(): void {
    const last = session.current.messages.findLast(
      (message): message is AssistantMessage => message.role === "assistant",
    );
    const limit = session.engine?.contextLength ?? 0;
    const used = last?.stats?.contextTokens ?? 0;
    const meter = byId<HTMLMeterElement>("context-used");
    byId("context-meter").hidden = !limit || !used;
    meter.max = limit || 1;
    meter.high = 0.85 * meter.max;
    meter.optimum = 0;
    meter.value = used;
    byId("context-text").replaceChildren(
      `${formatCount(used)} of ${formatCount(limit)}`,
      h("span", { class: "unit" }, " tokens"),
    );
  }

  document.addEventListener("keydown", (event) => {
    const command = event.ctrlKey || event.metaKey;
    if (event.key === "Escape" && session.busy && !document.querySelector("dialog[open], :popover-open"))
      session.stop();
    if (event.key.toLowerCase() === "o" && event.shiftKey && command) {
      event.preventDefault();
      newChat();
    } else if (event.key.toLowerCase() === "k" && command && !event.shiftKey) {
      event.preventDefault();
      sidebar.startSearch();
    }
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) session.flush();
    else {
      document.title = TITLE;
      conversation.show();
    }
  });
  addEventListener("pagehide", () => session.flush());

  const meaning = new MeaningView(session);
  meanings = await MeaningLoader.open(session, {
    state: (state) => meaning.show(state),
    failed: (error) => meaning.fail(error),
  });
  await meaning.use(meanings);

  await session.restore();
  // Without a database nobody knows which chats there are: nothing of theirs is removed.
  void tidy(store.lasting ? session.ids : undefined).catch((error) => console.warn("what is unused stays:", error));
  if (store.lasting) tidyMeanings();
  composer.show();
  if (!store.lasting)
    showError(
      "This browser keeps no data for this page, or does not answer for it: chats end with the page. Leave private browsing, or load the page again.",
    );
  const linked = new URL(location.href).searchParams.get("package");
  const placed = document.querySelector<HTMLMetaElement>('meta[name="gemma4-package"]')?.content;
  if (linked) await loader.open(linked, "link");
  else if (placed) await loader.open(placed, "page");
  else if (settings.lastPackage) await loader.open(settings.lastPackage, "before");
  else await loader.choose();
  await meanings.resume().catch((error) => console.warn("the search by meaning does not start:", error));
}

void main().catch(showError);
void keepPage();
