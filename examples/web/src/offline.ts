// The page's side of its service worker (offline/service_worker.js): registers it, and answers its question.

/** What the browser keeps of the page itself, in words. */
export async function describeOffline(): Promise<string> {
  const registration = await navigator.serviceWorker?.getRegistration(document.baseURI).catch(() => undefined);
  // A page that its worker has answered may know that before it knows what is registered.
  if (registration?.active ?? navigator.serviceWorker?.controller)
    return "The page itself is kept, too: it starts without a network.";
  if (registration) return "The page itself is being kept for starting without a network.";
  return "The page itself is not kept here: to start, it needs its server.";
}

/** Lets the browser keep the page. Private windows and plain http refuse, and the page works all the same. */
export async function keepPage(): Promise<void> {
  const { serviceWorker } = navigator;
  if (!serviceWorker || !import.meta.env.PROD) return;
  serviceWorker.addEventListener("message", ({ data, ports }) => {
    if (data === "which build?") ports[0]?.postMessage(import.meta.url);
  });
  serviceWorker.startMessages();
  try {
    const address = new URL("sw.js", document.baseURI);
    const { waiting } = await serviceWorker.register(address, { scope: "./", updateViaCache: "none" });
    waiting?.postMessage("loaded");
  } catch (error) {
    console.info("the page is not kept for starting without a network:", error);
  }
}
