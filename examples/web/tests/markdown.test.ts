import { describe, expect, it } from "vitest";
import { renderMarkdown } from "../src/view/markdown";

describe("renderMarkdown", () => {
  it.each([
    "<script>x</script>",
    "<img src=x onerror=y>",
    "![a](https://b/c.png)",
    "[a](javascript:x)",
    "[a](data:text/html,x)",
    "`<b>`",
    "```<b>\n<script>\n```",
    "| a |\n|:-:|\n| <i>b</i> |",
  ])("lets nothing through: %s", (text) => {
    const html = renderMarkdown(text);
    expect(html).not.toMatch(/<(script|img|i|b)\b|javascript:x"|href="data:|style=/);
  });

  it.each([
    "[a](blob:null/1)",
    "[a](intent://x#Intent;end)",
    "[a](//host/b)",
    "[a](/b)",
    "[a](b.html)",
    "[a](#b)",
    "[a](http:b)",
    "[a](https:///b)",
    "[a](ftp://b/c)",
    "[a](mailto:b@c.de)",
    "[a](tel:1)",
    "[a](&#106;avascript:x)",
    "[a]\n\n[a]: intent:x",
    "<intent://x>",
    "<a.b+c:x>",
    "<b@c.de>",
    "//host/b and ftp://b/c and mailto:b@c.de and b@c.de and www.b.de",
  ])("links to web pages only: %s", (text) => {
    expect(renderMarkdown(text)).not.toContain("<a");
  });

  it.each(["[a](https://b.de/c)", "[a](HTTP://b.de)", "<https://b.de>", "see https://b.de/c?d=e#f"])(
    "links to web pages: %s",
    (text) => {
      expect(renderMarkdown(text)).toMatch(/<a href="https?:\/\/b\.de/i);
    },
  );

  it("keeps code as it is, with a name and a button", () => {
    const html = renderMarkdown("```py\nif a < b & c:\n    pass\n```");
    expect(html).toContain("<span>py</span>");
    expect(html).toContain("if a &lt; b &amp; c:\n    pass\n");
    expect(html).toContain('class="copy-code"');
  });

  it("shows an unfinished block while it is written", () => {
    expect(renderMarkdown("```js\nlet x")).toContain("<code>let x");
  });

  it("opens links elsewhere, without a trace", () => {
    expect(renderMarkdown("https://example.org/a")).toContain(
      '<a href="https://example.org/a" target="_blank" rel="noopener noreferrer nofollow">',
    );
  });
});

describe("a text of signs alone", () => {
  it.each(["[", "![", "_a_", "http://a."])("does not hold the page up: %s", (sign) => {
    const started = performance.now();
    const html = renderMarkdown(`${sign.repeat(300_000)}<b>`);
    expect(performance.now() - started).toBeLessThan(20_000); // half a second alone, on an idle machine
    expect(html).not.toContain("<b>");
  });

  it("is no long answer with code and links", () => {
    const html = renderMarkdown("Some *words*, `list[0]` and [a link](https://example.org/).\n\n".repeat(500));
    expect(html).toContain("<em>words</em>");
  });

  it.each([
    ["مرحبا\n\n- أ\n- ب\n\n1. أ\n\n> أ\n\n# أ", ["p", "ul", "ol", "blockquote", "h1"]],
    ["| أ |\n|-|\n| ب |", ['div class="table"']],
  ])("gives each block the direction of its text: %j", (text, blocks) => {
    const html = renderMarkdown(text);
    for (const block of blocks) expect(html).toContain(`<${block} dir="auto"`);
  });

  it("does not take code for the letters of its block", () => {
    expect(renderMarkdown("`npm <x>` أ")).toBe('<p dir="auto"><code dir="ltr">npm &lt;x&gt;</code> أ</p>\n');
  });

  it("gives none to what is inside of a block, which would hide its text from the browser, and never turns code", () => {
    const html = renderMarkdown("- أ\n\n  ب\n\n```\nأ\n```\n");
    expect(html.match(/dir="auto"/g)).toHaveLength(1);
    expect(html).toContain('<div class="code" dir="ltr">');
  });
});
