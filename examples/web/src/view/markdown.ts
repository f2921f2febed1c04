// A model's answer as HTML. What it writes is data: no HTML of its own, no images (their address would
// tell others what was said here), no links that are not plain addresses, no inline styles.
import MarkdownIt from "markdown-it";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: false, typographer: false });
parser.disable("image");
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// Links to web pages only. Others would open programs (`intent:`), pages of this origin (`blob:`), or, without a
// scheme, what is next to this page.
parser.validateLink = (url) => /^https?:\/\/[^/\\]/i.test(url.trim());
for (const scheme of ["//", "ftp:", "mailto:"]) parser.linkify.add(scheme, null);
const rules = parser.renderer.rules;

rules["link_open"] = (tokens, index, options, _, self) => {
  tokens[index]!.attrSet("target", "_blank");
  tokens[index]!.attrSet("rel", "noopener noreferrer nofollow");
  return self.renderToken(tokens, index, options);
};

// A table's alignment comes as a style, which the page's policy refuses: it becomes a class.
for (const name of ["th_open", "td_open"]) {
  rules[name] = (tokens, index, options, _, self) => {
    const token = tokens[index]!;
    const side = /text-align:(\w+)/.exec(String(token.attrGet("style") ?? ""))?.[1];
    token.attrs = (token.attrs ?? []).filter(([key]) => key !== "style");
    if (side) token.attrJoin("class", `to-${side}`);
    return self.renderToken(tokens, index, options);
  };
}
rules["table_open"] = () => '<div class="table" dir="auto" tabindex="0" role="group" aria-label="Table"><table>';
rules["table_close"] = () => "</table></div>";

// Each block of an answer runs as its own text does: a list in Arabic has its marks at the right. What is inside of one
// has no direction of its own, or a browser would not look at it (chat.css turns its lines).
const BLOCKS = ["paragraph_open", "heading_open", "bullet_list_open", "ordered_list_open", "blockquote_open"];
parser.core.ruler.push("direction", ({ tokens }) => {
  for (const token of tokens) if (token.level === 0 && BLOCKS.includes(token.type)) token.attrSet("dir", "auto");
});

// With a direction of its own it is none of the letters that a browser looks for in the block around it.
rules["code_inline"] = (tokens, index) => `<code dir="ltr">${parser.utils.escapeHtml(tokens[index]!.content)}</code>`;

function codeBlock(code: string, language: string): string {
  const { escapeHtml } = parser.utils;
  const name = language ? escapeHtml(language) : "text";
  return (
    `<div class="code" dir="ltr"><div class="code-head"><span>${name}</span>` +
    `<button type="button" class="copy-code" aria-label="Copy code">Copy</button></div>` +
    `<pre tabindex="0" aria-label="Code, ${name}"><code>${escapeHtml(code)}</code></pre></div>`
  );
}
rules["fence"] = (tokens, index) => codeBlock(tokens[index]!.content, tokens[index]!.info.trim().split(/\s+/)[0]!);
rules["code_block"] = (tokens, index) => codeBlock(tokens[index]!.content, "");

// The parser looks from each of these signs to the end of the text: beyond this product, a text of nothing else, it
// would hold the page up, and again at every start.
const SIGNS = /[[\]_:]/g;
const MOST_STEPS = 1e9;

/** HTML of an answer. Safe to insert: everything in it was escaped or written above. */
export function renderMarkdown(text: string): string {
  const signs = text.match(SIGNS)?.length ?? 0;
  if (signs * text.length > MOST_STEPS) return `<p class="unparsed" dir="auto">${parser.utils.escapeHtml(text)}</p>`;
  return parser.render(text);
}
