// A scene of fast_conversation.mjs: prompts that begin alike and part, one after another in one state.

const LOOKED = { look: true, lookEvery: 8 };

/** `turn` and `prompt` are of fast_conversation.mjs; `looks`: at logits, which those of drafted tokens sum in another order. */
export async function begun(model, turn, prompt, looks) {
  const greedy = { temperature: 0, ...(looks && LOOKED) };
  const size = model.chunkSize;
  const system = prompt(5 * size, 5); // past the rings
  const ask = async (name, ids, count = 4) => {
    model.clear();
    await turn(name, ids, count, greedy);
  };
  await ask("first", [...system, ...prompt(9, 11)], 18);
  await ask("second", [...system, ...prompt(size + 3, 17)], 12);
  await ask("other", prompt(6 * size, 23));
  await ask("whole chunks", system); // whose last one has the logits
  await ask("parted", [...system.slice(0, 2 * size), ...prompt(3 * size, 29)]);
  await ask("first again", [...system, ...prompt(9, 11)], 12);
  await turn("next turn", prompt(size, 31), 4, greedy); // behind a reply, so that it is no chunk of a beginning
  await ask("within a chunk", [...system.slice(0, size + 1), ...prompt(size, 37)]);
  model.clear();
  await turn("popped", system.slice(0, 2 * size), 0, greedy);
  model.pop(size);
  await turn("after a pop", system.slice(2 * size, 4 * size), 4, greedy);
  model.renew(256);
  await ask("in another state", system);
  await ask("again in it", system);
}

/**
 * Chunks that outlive a model: another one goes on from what it finds in storage, and from what is left where a file was damaged.
 * `next` loads the package anew; without `fast` all is read from the start.
 */
export async function lasting(fast, turn, prompt, { model, next, folder }) {
  const size = model.chunkSize;
  const system = prompt(5 * size, 5); // past the rings
  const stages = [];
  const open = () => fast?.lastingBeginnings("https://example.org/my-package/", { version: "of the test" });
  const ask = async (name, ids) => {
    const before = fast?.stats();
    model.clear();
    await turn(name, ids, 4, { temperature: 0, ...LOOKED });
    const { keptTokens, keptBytesRead, keptBytesWritten } = fast?.stats() ?? {};
    stages.push({ copied: keptTokens - before?.keptTokens, read: keptBytesRead, written: keptBytesWritten });
  };
  let store = await open();
  store?.begin("a chat");
  await ask("before", [...system, ...prompt(9, 11)]);
  const problem = await store?.save("a chat");
  const stored = fast && folder();
  const files = stored?.names();
  model = await next();
  store = await open();
  await store?.restore();
  await ask("another model", [...system, ...prompt(7, 19)]);
  await ask("all of it", system);
  stored?.damage(2);
  model = await next();
  store = await open();
  await store?.restore();
  await ask("a damaged file", [...system, ...prompt(5, 23)]);
  return { stages, problem, files, left: stored?.names() };
}
