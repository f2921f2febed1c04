// What the page of each bundler does: it asks what its address says, and shows what came.
import "gemma4-web/fast"; // alone: for what it does, which a bundler must not leave out

/**
 * Asks the model of `worker`, and puts its answer, and whether the module works in this thread, into `element`. Returns
 * what ends the worker, and lets its memory go.
 */
export function ask(worker, element) {
  const [at, question] = ["at", "question"].map((name) => new URLSearchParams(location.search).get(name));
  worker.addEventListener("message", ({ data }) => {
    const onPage = Object.hasOwn(navigator.gpu, "requestAdapter");
    element.textContent = JSON.stringify({ ...data, onPage });
  });
  worker.addEventListener("error", ({ message }) => {
    element.textContent = JSON.stringify({ error: message });
  });
  worker.postMessage({ at: new URL(at, location.href).href, question });
  return () => worker.terminate();
}
