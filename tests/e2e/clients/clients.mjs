// Speaks to a gemma4-serve of `tiny` by the official JavaScript clients; writes what each of them read, as JSON.
// node clients.mjs ADDRESS TASK: TASK is JSON with `tool` (a declaration of OpenAI's chats), `question` and `result`.

import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import OpenAI from "openai";

const [address, task] = process.argv.slice(2);
const { tool, question, result } = JSON.parse(task);
const { name, description, parameters } = tool.function;
const MOST = { maxRetries: 0, timeout: 120_000 };
const openai = new OpenAI({ baseURL: `${address}/v1`, apiKey: "none", ...MOST });
const anthropic = new Anthropic({ baseURL: address, apiKey: "none", ...MOST });
const ollama = new Ollama({ host: address });
const YES = { type: "object", properties: { a: { type: "boolean" } }, required: ["a"], additionalProperties: false };
const GREEDY = { model: "tiny", temperature: 0 };
const asked = { role: "user", content: question };

// The class of the error, as the client's users tell them apart, and what it says.
async function refusal(promise) {
  try {
    await promise;
  } catch (error) {
    return { kind: error.constructor.name, status: error.status ?? error.status_code, message: error.message };
  }
  throw new Error("the request was answered");
}

async function chats() {
  const messages = [asked];
  const options = { model: "tiny", max_tokens: 60, tools: [tool] };
  const called = await openai.chat.completions.stream({ ...options, messages }).finalMessage();
  const [call] = called.tool_calls;
  messages.push(called, { role: "tool", tool_call_id: call.id, content: result });
  const told = await openai.chat.completions.create({ ...options, messages });
  const format = { type: "json_schema", json_schema: { name: "yes", schema: YES, strict: true } };
  const form = await openai.chat.completions.parse({
    ...GREEDY,
    messages: [asked],
    response_format: format,
  });
  return {
    arguments: JSON.parse(call.function.arguments),
    answer: told.choices[0].message.content,
    form: JSON.parse(form.choices[0].message.content),
    refused: await refusal(openai.chat.completions.create({ model: "tiny", messages: [] })),
  };
}

async function responses() {
  const options = { model: "tiny", tools: [{ type: "function", name, description, parameters, strict: true }] };
  const called = await openai.responses.stream({ ...options, input: question }).finalResponse();
  const [call] = called.output;
  const output = { type: "function_call_output", call_id: call.call_id, output: result };
  const kinds = [];
  let told = null;
  const next = { ...options, input: [output], previous_response_id: called.id, stream: true };
  for await (const event of await openai.responses.create(next)) {
    kinds.push(event.type);
    if (event.type === "response.completed") told = event.response;
  }
  const format = { type: "json_schema", name: "yes", schema: YES, strict: true };
  const form = await openai.responses.parse({ ...GREEDY, input: question, text: { format } });
  await openai.responses.delete(called.id);
  return {
    arguments: JSON.parse(call.arguments),
    answer: told.output[0].content[0].text,
    kinds: [kinds[0], kinds.at(-1)],
    form: JSON.parse(form.output_text),
    counted: (await openai.responses.inputTokens.count({ model: "tiny", input: question })).input_tokens,
    used: form.usage.input_tokens,
    refused: await refusal(openai.responses.retrieve(called.id)),
  };
}

async function messages() {
  const turns = [asked];
  const options = { model: "tiny", max_tokens: 60, tools: [{ name, description, input_schema: parameters }] };
  const called = await anthropic.messages.stream({ ...options, messages: turns }).finalMessage();
  const [use] = called.content;
  const given = { type: "tool_result", tool_use_id: use.id, content: result };
  turns.push({ role: "assistant", content: called.content }, { role: "user", content: [given] });
  const told = await anthropic.messages.create({ ...options, messages: turns });
  const format = { type: "json_schema", schema: YES };
  const form = { ...GREEDY, max_tokens: 60, messages: [asked], output_config: { format } };
  const formed = await anthropic.messages.create(form);
  return {
    arguments: use.input,
    stops: [called.stop_reason, told.stop_reason],
    answer: told.content[0].text,
    form: JSON.parse(formed.content[0].text),
    counted: (await anthropic.messages.countTokens({ model: "tiny", messages: [asked] })).input_tokens,
    used: formed.usage.input_tokens + formed.usage.cache_read_input_tokens,
    refused: await refusal(anthropic.messages.create({ model: "tiny", max_tokens: 0, messages: [asked] })),
  };
}

async function ollamas() {
  const turns = [asked];
  const options = { model: "tiny", tools: [tool] };
  const calls = [];
  for await (const piece of await ollama.chat({ ...options, messages: turns, stream: true })) {
    calls.push(...(piece.message.tool_calls ?? []));
  }
  turns.push({ role: "assistant", content: "", tool_calls: calls });
  turns.push({ role: "tool", tool_name: calls[0].function.name, content: result });
  const told = await ollama.chat({ ...options, messages: turns });
  const form = await ollama.generate({
    model: "tiny",
    prompt: question,
    format: YES,
    options: { temperature: 0 },
  });
  return {
    arguments: calls[0].function.arguments,
    answer: told.message.content,
    form: JSON.parse(form.response),
    models: (await ollama.list()).models.map((model) => model.name),
    refused: await refusal(ollama.embed({ model: "tiny", input: "a" })),
  };
}

// Loops of the clients' own: they run the tool and ask again until the model has answered.
async function runners() {
  const function_ = { name, description, parameters, parse: JSON.parse, function: () => result };
  const options = { model: "tiny", messages: [asked] };
  const chat = openai.chat.completions.runTools({ ...options, tools: [{ type: "function", function: function_ }] });
  const tools = [{ name, description, input_schema: parameters, run: () => result }];
  const message = await anthropic.beta.messages.toolRunner({ ...options, max_tokens: 60, tools, stream: false });
  return { chats: await chat.finalContent(), messages: message.content[0].text };
}

const read = {
  runners: await runners(),
  chats: await chats(),
  responses: await responses(),
  messages: await messages(),
};
console.log(JSON.stringify({ ...read, ollama: await ollamas() }));
