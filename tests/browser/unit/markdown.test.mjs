import assert from "node:assert/strict";
import { test } from "node:test";
import { element, installDocument } from "./fake-dom.mjs";

installDocument();
const { MarkdownView } = await import("../../../crates/server/assets/markdown-view.js");
const { safeUrl } = await import("../../../crates/server/assets/markdown-inline.js");

// Renders code blocks without their frame: these tests compare only the text.
function html(text) {
  const root = element();
  new MarkdownView(root).update(text);
  return root.inner
    .replace(/<div class="code-block">.*?<span class="code-language">([^<]*)<\/span>.*?<code>(?:<span class="lines">)?/gs, (_, name) => `<pre ${name}>`)
    .replace(/(?:<\/span>)?<\/code><\/pre><\/div>/g, "</pre>")
    .replace(/<span class="t-\w+">([^<]*)<\/span>/g, "$1")
    .replace(/ (?:tabindex|role|aria-label|scope|target|rel|class)="[^"]*"/g, "");
}

const CASES = {
  "headings, two styles": ["# One #\n\nTwo\n---\n###### Six\n#no", "<h3>One</h3><h4>Two</h4><h6>Six</h6><p>#no</p>"],
  "a rule is not a list": ["---\n***\n* * *", "<hr></hr><hr></hr><hr></hr>"],
  "emphasis": ["*a* **b** ***c*** ~~d~~ _e_ snake_case_name 2*3*4", "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <del>d</del> <em>e</em> snake_case_name 2<em>3</em>4</p>"],
  "emphasis that is not closed": ["**a *b", "<p>**a *b</p>"],
  "emphasis inside words of other scripts": ["**“重点”**文字", "<p><strong>“重点”</strong>文字</p>"],
  "nested emphasis": ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  "strong around brackets that are no link": ["**Note [1]: x**", "<p><strong>Note [1]: x</strong></p>"],
  "code spans": ["`a` ``b ` c`` `` ` `` `d", "<p><code>a</code> <code>b ` c</code> <code>`</code> `d</p>"],
  "code binds tighter than emphasis": ["*a `b* c`", "<p>*a <code>b* c</code></p>"],
  "escapes and entities": ["\\*a\\* &lt;b&gt; &#65; &unknown;", "<p>*a* &lt;b> A &amp;unknown;</p>"],
  "line breaks": ["a\nb<br>c\\\nd", "<p>a<br></br>b<br></br>c<br></br>d</p>"],
  "tight list": ["- a\n- b\n  more", "<ul><li>a</li><li>b<br></br>more</li></ul>"],
  "loose list": ["- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"],
  "nested lists": ["1. a\n   - b\n     - c\n2. d", "<ol><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li><li>d</li></ol>"],
  "nested by two spaces only": ["1. a\n  - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"],
  "a list that begins at another number": ["3. a\n4. b", '<ol start="3"><li>a</li><li>b</li></ol>'],
  "a number in a text begins no list": ["It was in\n1984. Or so.", "<p>It was in<br></br>1984. Or so.</p>"],
  "code in a list": ["1. a\n\n   ```sh\n   ls -l\n   ```\n\n2. b", "<ol><li><p>a</p><pre sh>ls -l</pre></li><li><p>b</p></li></ol>"],
  "tasks": ["- [x] a\n- [ ] b", '<ul><li><input type="checkbox" disabled="" checked=""></input>a</li><li><input type="checkbox" disabled=""></input>b</li></ul>'],
  "quotes": ["> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"],
  "a lazy line of a quote": ["> a\nb", "<blockquote><p>a<br></br>b</p></blockquote>"],
  "fences": ["```rust\nfn a() {}\n```\n~~~\n```\n~~~", "<pre rust>fn a() {}</pre><pre text>```</pre>"],
  "longer fences hold shorter ones": ["````md\n```\na\n```\n````", "<pre md>```\na\n```</pre>"],
  "an open fence": ["```js\nlet a", "<pre js>let a</pre>"],
  "indented code": ["    a\n\n      b\n\nc", "<pre text>a\n\n  b</pre><p>c</p>"],
  "tables": ["| a | b |\n|--:|:-:|\n| 1 | `x|y` |\n| 2 |", "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td><code>x|y</code></td></tr><tr><td>2</td><td></td></tr></tbody></table></div>"],
  "a table below a line": ["text:\n| a | b |\n|---|---|\n| c \\| d | e |", "<p>text:</p><div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>c | d</td><td>e</td></tr></tbody></table></div>"],
  "a bar in a text is no table": ["a | b\nc", "<p>a | b<br></br>c</p>"],
  "links": ['[a](https://x.org/a_b_(c) "t") <https://y.org> https://z.org/q?a=b_c. (https://w.org)', '<p><a href="https://x.org/a_b_(c)" title="t">a</a> <a href="https://y.org/">https://y.org</a> <a href="https://z.org/q?a=b_c">https://z.org/q?a=b_c</a>. (<a href="https://w.org/">https://w.org</a>)</p>'],
  "mail": ["[m](mailto:a@b.c) <a@b.cd>", '<p><a href="mailto:a@b.c">m</a> <a href="mailto:a@b.cd">a@b.cd</a></p>'],
  "emphasis in a link": ["[a **b**](http://x.y)", '<p><a href="http://x.y/">a <strong>b</strong></a></p>'],
  "brackets that are no link": ["[a] [b](c d) a[0](", "<p>[a] [b](c d) a[0](</p>"],
  "an image is a link": ["![cat](https://x.org/c.png)", '<p><a href="https://x.org/c.png">Image: cat</a></p>'],
};

for (const [name, [source, expected]] of Object.entries(CASES)) {
  test(`markdown: ${name}`, () => assert.equal(html(source), expected));
}

test("mathematics is found, prices are not", () => {
  const count = (text) => (html(text).match(/<math/g) ?? []).length;
  assert.equal(count("$x$ and \\(y\\) and $$z$$ and \\[w\\]"), 4);
  assert.equal(count("text\n\\begin{align*}\na &= b \\\\\n\\end{align*}\n\n\\begin{equation}x\\end{equation}"), 2);
  assert.equal(count("$$\na\n$$\n\n\\[\nb\n\\]"), 2);
  for (const text of ["it costs $5 and $10", "between $5-$10", "US$ 5, $ x$", "`$x$`", "\\$x\\$", "$20,000 is $1 more"]) assert.equal(count(text), 0, text);
  assert.match(html("a $\\unknown$ b"), /<code>\\unknown<\/code>/, "what is not understood is shown as it is");
});

const HOSTILE = [
  "<script>alert(1)</script>",
  "<img src=x onerror=alert(1)>",
  "<svg/onload=alert(1)>",
  "[a](javascript:alert(1))",
  "[a](JaVaScRiPt:alert(1))",
  "[a](java\tscript:alert(1))",
  "[a](&#106;avascript:alert(1))",
  "[a](\\javascript:alert(1))",
  "[a]( javascript:alert(1))",
  "[a](<javascript:alert(1)>)",
  "[a](data:text/html,<script>alert(1)</script>)",
  "[a](vbscript:x) [b](file:///etc/passwd) [c](//evil.org) [d](/x) [e](blob:x)",
  "![a](javascript:alert(1)) ![b](data:image/svg+xml,x)",
  "<javascript:alert(1)> <data:text/html,x>",
  '[a](https://x.org" onclick="alert(1))',
  "[![x](javascript:1)](javascript:2)",
  "**[*<b onmouseover=alert(1)>*](javascript:1)**",
  "| <script>a</script> | [x](javascript:1) |\n|---|---|\n| <img onerror=1> | <iframe src=x> |",
  "> - 1. <script>alert(1)</script>\n>   ```html\n>   </code></pre><script>alert(1)</script>\n>   ```",
  '```"><script>alert(1)</script>\nx\n```',
  "$\\text{<script>alert(1)</script>}$ $\\href{javascript:1}{x}$ $<img>$",
];

test("nothing that a model writes becomes markup or a bad link", () => {
  for (const text of HOSTILE) {
    const root = element();
    new MarkdownView(root).update(text);
    const seen = [root];
    while (seen.length > 0) {
      const at = seen.pop();
      for (const child of at.childNodes) if (child.tag) seen.push(child);
      assert.ok(!["script", "img", "iframe", "svg/onload", "b"].includes(at.tag) && at.tag !== "svg" || at.attributes.class === "icon", `${text}: <${at.tag}>`);
      for (const [name, value] of Object.entries(at.attributes)) {
        assert.ok(!name.startsWith("on") && name !== "style" && name !== "src", `${text}: ${name}`);
        if (name === "href") assert.match(value, /^(https?:\/\/[\w]|mailto:)/, text);
      }
    }
  }
});

test("only http, https and mailto are links", () => {
  for (const bad of ["javascript:alert(1)", "data:text/html,x", "//x.org", "/x", "x", "", "http:/x", "http://", "https:///x", "mailto:", "java\u0000script:x", "http://a b", "\u0001javascript:x", "http:\\\\x.org"]) assert.equal(safeUrl(bad), null, JSON.stringify(bad));
  assert.equal(safeUrl("HTTPS://Example.org/ä"), "https://example.org/%C3%A4");
});

// A stream may be split anywhere. After each chunk the view must equal that of the text so far.
test("any chunking shows what the whole shows", () => {
  const text = `${Object.values(CASES).map(([source]) => source).join("\n\n")}\n\n$$\n\\frac{a}{b}\n$$\n\ntext\n\\begin{align}\na &= b\n\\end{align}\n\n${HOSTILE.join("\n\n")}`;
  const shown = (source) => {
    const root = element();
    new MarkdownView(root).update(source);
    return normal(root);
  };
  for (const step of [1, 3, 7, 50]) {
    const root = element();
    const view = new MarkdownView(root);
    for (let end = step; end < text.length + step; end += step) {
      view.update(text.slice(0, end));
      if (step > 3 || end % 97 === 0) assert.equal(normal(root), shown(text.slice(0, end)), `step ${step}, after ${end}: …${text.slice(Math.max(0, end - 60), end)}`);
    }
    assert.equal(normal(root), shown(text), `step ${step}`);
  }
});
const normal = (root) => root.inner;

test("sources of random pieces: chunks and whole agree, nothing throws", () => {
  const pieces = ["#", "# ", "\n", "\n\n", "- ", "1. ", "  ", "    ", "> ", "```", "~~~", "`", "*", "**", "_", "~~", "[", "](", ")", "](http://a.b)", "$", "$$", "\\[", "\\]", "|", "|-|-|", "\n|-|\n", "a", "b c", "<br>", "<", "&amp;", "!", "---", "===", "\t", "\\", "é", "😀", "[x] "];
  let seed = 7;
  const random = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
  for (let round = 0; round < 1500; round += 1) {
    const text = Array.from({ length: 4 + random(30) }, () => pieces[random(pieces.length)]).join("");
    const whole = element();
    new MarkdownView(whole).update(text);
    const root = element();
    const view = new MarkdownView(root);
    for (let end = 1; end <= text.length; end += 1 + random(4)) view.update(text.slice(0, end));
    view.update(text);
    assert.equal(root.inner, whole.inner, JSON.stringify(text));
    assert.ok(!root.inner.includes("undefined"), JSON.stringify(text));
  }
});

test("a hostile text takes time in proportion to its length", () => {
  const repeated = ["*a ", "**a*", "[", "[a](", "![[a](b", "`a``b```c", "$a", "\\(", "\\[a ", "$$\n", "> ", "- ", "1. a\n", "~~a", "_a_b", "<a", "&#", "|a", "a|b\n-|-\n", "```\n", "*_", "[a](b \"", "http://a(", "\\[\n", "    ", "\\begin{align}\n"];
  for (const piece of repeated) {
    const time = (n) => {
      const text = piece.repeat(n);
      // CPU time, which does not depend on other processes.
      const since = process.cpuUsage();
      new MarkdownView(element()).update(text);
      return process.cpuUsage(since).user / 1000;
    };
    time(100);
    const small = Math.max(2, Math.min(time(2000), time(2000)));
    const large = Math.min(time(16_000), time(16_000));
    // Eight times the text takes 8 times as long if linear, 64 times if quadratic.
    assert.ok(large < small * 40 + 100, `${JSON.stringify(piece)}: ${small.toFixed(0)} → ${large.toFixed(0)} ms`);
  }
});
