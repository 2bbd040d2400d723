//! Front matter of a model card: YAML between two lines of `---` at the beginning of README.md.
//!
//! It reads the subset of YAML that cards need: keys with a text, a list of texts or a block of
//! text. Deeper nesting (evaluation results) is skipped.

/// The keys of a front matter.
#[derive(Debug, Default)]
pub(crate) struct FrontMatter {
    keys: Vec<(String, FrontMatterValue)>,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FrontMatterValue {
    Text(String),
    List(Vec<String>),
}

impl FrontMatter {
    /// Parses the front matter of a card. Empty without one.
    pub(crate) fn of(card: &str) -> FrontMatter {
        // Some editors begin a file with a byte order mark.
        let mut lines = card.trim_start_matches('\u{feff}').lines().map(str::trim_end);
        if lines.next() != Some("---") {
            return FrontMatter::default();
        }
        let all: Vec<&str> = lines.collect();
        let Some(end) = all.iter().position(|line| *line == "---") else { return FrontMatter::default() };
        let mut keys = Vec::new();
        let mut rest = &all[..end];
        while let Some((line, below)) = rest.split_first() {
            let count = below.iter().take_while(|line| belongs_to_a_key(line)).count();
            let (block, behind) = below.split_at(count);
            rest = behind;
            let Some((key, inline)) = key_of(line) else { continue };
            if let Some(entry) = entry(inline, block) {
                // The last of several equal keys counts, as in most YAML parsers.
                keys.retain(|(other, _)| other != key);
                keys.push((key.to_owned(), entry));
            }
        }
        FrontMatter { keys }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&FrontMatterValue> {
        self.keys.iter().find(|(name, _)| name == key).map(|(_, entry)| entry)
    }

    pub(crate) fn text(&self, key: &str) -> Option<String> {
        match self.get(key)? {
            FrontMatterValue::Text(text) => Some(text.clone()),
            FrontMatterValue::List(_) => None,
        }
    }

    /// The texts of a key, whose value is a text or a list.
    pub(crate) fn list(&self, key: &str) -> Vec<String> {
        match self.get(key) {
            Some(FrontMatterValue::Text(text)) => vec![text.clone()],
            Some(FrontMatterValue::List(texts)) => texts.clone(),
            None => Vec::new(),
        }
    }
}

fn is_item(line: &str) -> bool {
    line == "-" || line.starts_with("- ")
}

/// Whether a line continues the value of the key above it.
fn belongs_to_a_key(line: &str) -> bool {
    line.is_empty() || line.starts_with([' ', '\t', '#']) || is_item(line)
}

/// Splits `key: value` at the beginning of a line.
fn key_of(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once(':')?;
    // `https://x` is not a key: a colon needs a blank or the line's end after it.
    let apart = value.is_empty() || value.starts_with([' ', '\t']);
    let key = key.trim_matches(['"', '\'']);
    (apart && !key.is_empty() && !key.starts_with(['#', ' ', '\t'])).then_some((key, value.trim()))
}

/// The value of a key. `None` unless it is a text or a list of texts.
fn entry(inline: &str, block: &[&str]) -> Option<FrontMatterValue> {
    match inline.chars().next() {
        None | Some('#') => below(block),
        Some('|' | '>') => Some(FrontMatterValue::Text(block_text(inline, block))),
        Some('[') => flow_list(&joined(inline, block)),
        _ => scalar(&joined(inline, block)).map(FrontMatterValue::Text),
    }
}

/// A value on the lines below its key.
fn below(block: &[&str]) -> Option<FrontMatterValue> {
    let lines: Vec<&str> = block.iter().copied().filter(|line| !is_blank(line)).collect();
    let first = lines.first()?;
    if !is_item(first.trim_start()) {
        return scalar(&joined("", block)).map(FrontMatterValue::Text);
    }
    let depth = indentation(first);
    let mut items: Vec<String> = Vec::new();
    for line in lines {
        let text = line.trim_start();
        if indentation(line) <= depth && is_item(text) {
            items.push(text[1..].trim_start().to_owned());
        } else {
            // Lines that are indented deeper than the dash continue the item.
            let item = items.last_mut()?;
            item.push(' ');
            item.push_str(text);
        }
    }
    items.iter().map(|item| scalar(item)).collect::<Option<_>>().map(FrontMatterValue::List)
}

fn is_blank(line: &str) -> bool {
    let text = line.trim_start();
    text.is_empty() || text.starts_with('#')
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// A value joined with its continuation lines.
fn joined(inline: &str, block: &[&str]) -> String {
    let lines = block.iter().filter(|line| !is_blank(line)).map(|line| line.trim_start());
    std::iter::once(inline).chain(lines).collect::<Vec<_>>().join(" ").trim().to_owned()
}

/// A text on one line. `None` for `null` and nested values.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    match text.chars().next()? {
        '"' => quoted(text),
        '\'' => {
            // A doubled quote stands for a quote. NUL marks it while the closing one is searched.
            let inner = text[1..].replace("''", "\u{0}");
            let (inner, behind) = inner.split_once('\'')?;
            is_blank(behind).then(|| inner.replace('\u{0}', "'"))
        }
        // Flow collections, anchors, aliases, tags and YAML's reserved indicators are not plain
        // texts.
        '[' | '{' | '&' | '*' | '!' | '%' | '@' | '`' => None,
        _ => {
            let end = text.find(" #").unwrap_or(text.len());
            let plain = text[..end].trim_end();
            let nested = plain.contains(": ") || plain.ends_with(':') || is_item(plain);
            let none = matches!(plain, "" | "~" | "null" | "Null" | "NULL");
            (!nested && !none).then(|| plain.to_owned())
        }
    }
}

/// A text in double quotes. YAML's escapes are nearly those of JSON.
fn quoted(text: &str) -> Option<String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let value = values.next()?.ok()?;
    is_blank(&text[values.byte_offset()..]).then_some(value)
}

/// A list in flow style: `[a, "b"]`.
fn flow_list(text: &str) -> Option<FrontMatterValue> {
    let mut items = Vec::new();
    let mut item = String::new();
    let mut quote = None;
    for c in text.strip_prefix('[')?.chars() {
        match (quote, c) {
            (None, ',' | ']') => {
                if !item.trim().is_empty() {
                    items.push(scalar(&item)?);
                }
                item.clear();
                if c == ']' {
                    return Some(FrontMatterValue::List(items));
                }
                continue;
            }
            (None, '"' | '\'') if item.trim().is_empty() => quote = Some(c),
            // The previous quote did not close the text; it is the first of a doubled one.
            (None, '\'') if item.ends_with('\'') => quote = Some(c),
            (None, '[' | '{') => return None,
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
        item.push(c);
    }
    None
}

/// The block below `|` (line ends kept) or `>` (lines joined).
fn block_text(mark: &str, block: &[&str]) -> String {
    let depth = block.iter().filter(|line| !line.is_empty()).map(|line| indentation(line)).min();
    let depth = depth.unwrap_or(0);
    // `get`, because the least indentation of the block may end inside a multi-byte blank of
    // another line.
    let lines: Vec<&str> = block.iter().map(|line| line.get(depth..).unwrap_or("")).collect();
    let mut text = String::new();
    for (i, line) in lines.iter().enumerate() {
        let above = i.checked_sub(1).map(|above| lines[above]);
        text.push_str(match above {
            None => "",
            // In a folded block, an empty line is a line end, which was written already.
            Some("") if mark.starts_with('>') && !line.is_empty() => "",
            Some(_) if mark.starts_with('>') && !line.is_empty() => " ",
            Some(_) => "\n",
        });
        text.push_str(line);
    }
    let trimmed = text.trim_end_matches('\n');
    // `|-` and `>-` drop the final line end.
    if mark.contains('-') { trimmed.to_owned() } else { format!("{trimmed}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(front: &str) -> FrontMatter {
        FrontMatter::of(&format!("---\n{front}\n---\n# Title\nlicense: no\n"))
    }

    #[test]
    fn texts_and_lists_are_read_as_cards_write_them() {
        let front = card(
            "license: other # see below\nlicense_link: 'https://x.example/it''s'\nlanguage:\n- en\n- no\n\
             tags:\n  - moe  # experts\n  - \"a: \\u00e9\"\nbase_model: [a/b, \"c, d/e\"]\n\
             # comment\ndescription: >-\n  one\n  two\n\n  three\nnote: |\n  x\n   y\nversion: 2.5\nname: two\n  lines",
        );
        assert_eq!(front.text("license").unwrap(), "other");
        assert_eq!(front.text("license_link").unwrap(), "https://x.example/it's");
        assert_eq!(front.list("language"), ["en", "no"]);
        assert_eq!(front.list("tags"), ["moe", "a: é"]);
        assert_eq!(front.list("base_model"), ["a/b", "c, d/e"]);
        assert_eq!(front.text("description").unwrap(), "one two\nthree");
        assert_eq!(front.text("note").unwrap(), "x\n y\n");
        assert_eq!(front.text("version").unwrap(), "2.5");
        assert_eq!(front.text("name").unwrap(), "two lines");
    }

    #[test]
    fn nested_and_absent_keys_have_no_value() {
        let front = card(
            "model-index:\n- name: x\n  results:\n  - task: y\nempty:\nnothing: null\nmap: {a: b}\nlist: [a, [b]]\nlicense: mit\nopen: \"x\nlicense: apache-2.0",
        );
        for key in ["model-index", "empty", "nothing", "map", "list", "open", "task", "missing"] {
            assert_eq!(front.get(key), None, "{key}");
        }
        assert_eq!(front.text("license").unwrap(), "apache-2.0");
        assert!(front.list("language").is_empty());
        for text in ["", "---", "---\nlicense: mit", "# Title\n---\nlicense: mit\n---\n", "---\n: x\n-\n---"]
        {
            assert!(FrontMatter::of(text).keys.is_empty(), "{text:?}");
        }
        assert!(FrontMatter::of("\u{feff}---\r\nlicense: mit\r\n---\r\n").text("license").is_some());
    }

    #[test]
    fn a_card_may_end_anywhere() {
        let whole = "é: [ä, 'ö'', ü', \"\\u00fc\"]\nlist:\n \u{a0}- 'é\n - \"\u{3000}x\n-\n  -\nblock: >-\n\u{3000}é\n\n ä\ntext: 'a'b\nlast: \"a\" #";
        for (end, _) in whole.char_indices() {
            let front = card(&whole[..end]);
            assert!(front.keys.len() <= 5 && front.get("license").is_none(), "{end}");
        }
        assert_eq!(card(whole).list("é"), ["ä", "ö', ü", "ü"]);
    }
}
