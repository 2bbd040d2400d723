// Tokenizer, chat template and metadata of the file.
function renderTokenizer() {
  const parts = [html("h2", {}, "Tokenizer and metadata")];
  if (!fileInfo) {
    parts.push(html("div", { class: "empty" }, "The page was made without the texts of the file."));
  } else {
    const pairs = (list) => list.map(([key, value]) => [html("span", { class: "mono" }, key), html("span", { class: "text" }, value)]);
    parts.push(html("h3", {}, "Tokenizer"), wideTable(["", ""], pairs(fileInfo.tokenizer), ["key", ""]));
    if (fileInfo.special.length > 0) {
      const rows = fileInfo.special.map((token) => [whole(token.id), html("span", { class: "mono text" }, token.text), token.role]);
      parts.push(html("h3", {}, `${whole(rows.length)} special ${rows.length === 1 ? "token" : "tokens"}`), wideTable(["id", "text", ""], rows, ["n", "", ""]));
    }
    parts.push(html("h3", {}, "Chat template"));
    if (fileInfo.template === null) parts.push(html("p", {}, "The file has none."));
    else parts.push(html("pre", { class: "template", tabindex: 0, "aria-label": "Chat template" }, fileInfo.template), html("p", { class: "source" }, `${whole(fileInfo.template_bytes)} bytes`));
    parts.push(html("h3", {}, `Metadata: ${whole(fileInfo.metadata.length)} ${fileInfo.metadata.length === 1 ? "key" : "keys"}`), wideTable(["key", "value"], pairs(fileInfo.metadata), ["key", ""]));
  }
  $("tokenizer-tab").replaceChildren(html("div", { class: "page" }, ...parts));
}
