// Gemma 4's own notation for tools: what its template writes, and what the model writes back.
//
//   <|tool>declaration:NAME{description:<|"|>..<|"|>,parameters:{...}}<tool|>
//   <|tool_call>call:NAME{city:<|"|>Rome<|"|>,days:2}<tool_call|>
//   <|tool_response>response:NAME{value:<|"|>..<|"|>}<tool_response|>
//
// Keys are bare and sorted, strings are between quote tokens without any escaping, numbers and
// booleans are bare.

export const QUOTE = '<|"|>';
export const CALL_OPEN = "<|tool_call>";
export const CALL_CLOSE = "<tool_call|>";
export const RESPONSE_OPEN = "<|tool_response>";
export const RESPONSE_CLOSE = "<tool_response|>";

export type Value = string | number | boolean | null | Value[] | { [key: string]: Value };

export interface ToolCall {
  name: string;
  args: { [key: string]: Value };
}

/** A parameter of a tool, as JSON schema names it. */
export interface Parameter {
  type: string;
  description: string;
}

export interface Declaration {
  name: string;
  description: string;
  parameters: Record<string, Parameter>;
  required: string[];
}

export function declare({ name, description, parameters, required }: Declaration): string {
  const properties = Object.keys(parameters)
    .sort()
    .map((key) => {
      const { type, description: text } = parameters[key]!;
      return `${key}:{description:${format(text)},type:${format(type.toUpperCase())}}`;
    });
  const schema = `{properties:{${properties.join(",")}},` + `required:${format(required)},type:${format("OBJECT")}}`;
  return `<|tool>declaration:${name}{description:${format(description)},parameters:${schema}}<tool|>`;
}

export function respond(name: string, result: string): string {
  return `${RESPONSE_OPEN}response:${name}{value:${format(result)}}${RESPONSE_CLOSE}`;
}

export function format(value: Value): string {
  // A quote token inside a string would end it: there is no escape for it.
  if (typeof value === "string") return QUOTE + value.replaceAll(QUOTE, '"') + QUOTE;
  if (Array.isArray(value)) return `[${value.map(format).join(",")}]`;
  if (value !== null && typeof value === "object") {
    const fields = Object.keys(value).sort();
    return `{${fields.map((key) => `${key}:${format(value[key]!)}`).join(",")}}`;
  }
  return String(value);
}
