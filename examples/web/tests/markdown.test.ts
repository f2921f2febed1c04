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
