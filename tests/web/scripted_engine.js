// Stands in for the page's engine worker: says what a test wants to see, at once and without a
// graphics device. It speaks the page's own protocol (examples/web/src/engine/protocol.ts).

const CODE = "def longest(text):\n    return max(text.split(), key=len)\n";
const SCRIPTS = [
  [
    /markdown/,
    `# Title\n\nSome **bold** text, \`code\` and a [link](https://example.org/).\n\n\`\`\`python\n${CODE}\`\`\`\n\n` +
      "| Word | Count |\n|:-----|------:|\n| tree | 3 |\n\n- one\n- two\n\n> quoted\n\n" +
      "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\n\n" +
      "![leak](https://example.org/leak.png) [bad](javascript:window.hacked=1)\n",
  ],
  [/Please think/, "<|channel>thought\nThe person wants **care**.\n<channel|>A careful answer."],
  [/tool_response>response[\s\S]*thought\n$/, "That was easy.\n<channel|>8 plus 19 is 27."],
  [/tool_response>response/, "8 plus 19 is 27."],
  [/8 plus/, 'Let me see.<|tool_call>call:calculator{expression:<|"|>8 + 19<|"|>}<tool_call|>'],
  [/الطقس/, "الطقس في باريس مشمس.\n\n- واحد\n- اثنان\n\n```python\nx = 1\n```\n\nIt is sunny.\n"],
  [/Please guess/, "Guessed."],
  [/thing long/, Array.from({ length: 200 }, (_, index) => `word${index}`).join(" ")],
];
/** By the times that the engine tells of; it does not wait for them. */
const TOKEN_MS = 15;
const HELD_AFTER = 40; // pieces: past the twentieth word of the long text
const UNTRUE_SPEED = 9999; // what the client says of itself is not what the page shows

const token = [
  { kernel: "gemv", operator: "linear", launches: 2, microseconds: 750, share: 0.75, bytes: 3_000_000 },
  { kernel: "norm", operator: "", launches: 1, microseconds: 250, share: 0.25 },
];
const PROFILE = {
  clock: "device",
  device: { vendor: "maker", architecture: "arch", description: "" },
  steps: [
    { step: "prefill", tokens: 1000, wallMicroseconds: 20_000, kernels: token },
    { step: "decode", tokens: 1, wallMicroseconds: 1250, kernels: token },
  ],
};

let stopped = false;
let fast = { enabled: true, libraries: 1, reasons: [], plainSteps: 0, replayedSteps: 0, aheadSteps: 0 };
Object.assign(fast, { drafterBytes: 0, draftRounds: 0, draftedTokens: 0, acceptedTokens: 0 });
self.requests = [];
self.held = undefined; // a test's {promise, resolve}: a reply waits for it in its middle, unless it is stopped

const tell = (message) => postMessage(message);

async function reply(id, sent, request) {
  let at = performance.timeOrigin + performance.now() - sent;
  let drafted = 0;
  const chunk = (fields) => tell({ kind: "chunk", id, at, drafted, kept: 0, chunk: { choices: [], ...fields } });
  self.requests.push(request);
  stopped = false;
  const { content } = request.messages.at(-1);
  const asked = typeof content === "string" ? content : content.find(({ type }) => type === "text").text;
  if (/overflow/.test(asked) && request.messages.length > 3) {
    return tell({ kind: "failed", id, text: "Error: Prompt tokens exceed context window size: 9" });
  }
  const text = SCRIPTS.find(([pattern]) => pattern.test(asked))?.[1] ?? `Answer ${self.requests.length}.`;
  // Pieces end in the middle of words and of marks.
  const pieces = text.match(/[\s\S]{1,5}/g);
  let said = 0;
  for (const piece of pieces) {
    if (stopped) break;
    chunk({ choices: [{ delta: { content: piece }, finish_reason: null }] });
    if (++said === HELD_AFTER) await self.held?.promise;
    if (/lost/.test(asked)) return tell({ kind: "lost", text: "for the test" });
    await new Promise((resolve) => setTimeout(resolve)); // for messages
    at += TOKEN_MS;
  }
  if (/Please guess/.test(asked) && fast.drafterBytes) {
    drafted = said / 2;
    Object.assign(fast, { draftRounds: 2, draftedTokens: 8, acceptedTokens: 4 });
  }
  chunk({ choices: [{ delta: {}, finish_reason: stopped ? "abort" : "stop" }] });
  chunk({
    usage: {
      prompt_tokens: 20,
      completion_tokens: stopped ? said : said + 1, // the stop token
      extra: { decode_tokens_per_s: UNTRUE_SPEED, time_to_first_token_s: UNTRUE_SPEED },
    },
  });
  if (fast.enabled) fast = { ...fast, plainSteps: 2, aheadSteps: fast.aheadSteps + said };
  tell({ kind: "end", id, fast });
}

async function profile(id) {
  await self.held?.promise;
  tell({ kind: "profiled", id, profile: PROFILE });
}

let held = []; // vectors that an embedder searches
const LETTERS = "abcdefghijklmnopqrstuvwxyz";

/** Texts that share pairs of letters are alike. */
function vectorOf(text) {
  const counts = new Float32Array(LETTERS.length ** 2);
  for (const word of text.toLowerCase().match(/[a-z]+/g) ?? [])
    for (let at = 1; at < word.length; at++)
      counts[LETTERS.indexOf(word[at - 1]) * LETTERS.length + LETTERS.indexOf(word[at])] += 1;
  return counts.map((count) => count / (Math.hypot(...counts) || 1));
}

function find(text, count) {
  const query = vectorOf(text);
  const cosines = Array.from({ length: held.length / query.length }, (_, index) => ({
    index,
    cosine: query.reduce((sum, value, at) => sum + value * held[index * query.length + at], 0),
  }));
  return cosines.sort((a, b) => b.cosine - a.cosine).slice(0, count);
}

/** The worker of an embedder speaks examples/web/src/engine/embedder_protocol.ts. */
function answerEmbedder(data) {
  let value;
  if (data.kind === "embed") value = data.texts.map(vectorOf);
  if (data.kind === "find") value = find(data.text, data.count);
  if (data.kind === "hold") held = data.vectors;
  tell({ kind: "done", id: data.id, value });
}

const lock = `scripted ${crypto.randomUUID()}`;
const life = () => {
  tell({ kind: "alive", lock });
  return new Promise(() => undefined);
};
void navigator.locks.request(lock, life);

self.onmessage = ({ data }) => {
  if (self.name === "embedder") answerEmbedder(data);
  else if (data.kind === "stop") {
    stopped = true;
    self.held?.resolve();
  } else if (data.kind === "reply") void reply(data.id, data.sent, data.request);
  else if (data.kind === "profile") void profile(data.id);
  else {
    self.started = data;
    tell({ kind: "progress", share: 1, text: "" });
    if (data.drafter) fast.drafterBytes = 985;
    if (data.table?.place === "host") fast.tableBytesOnHost = data.table.savedBytes;
    if (!data.fast) fast = { ...fast, enabled: false, libraries: 0, reasons: ["disable() was called"] };
    tell({ kind: "started", fast });
  }
};
