//! What a terminal shows in the end, by a small terminal of our own.

use super::Markdown;
use unicode_width::UnicodeWidthChar;

/// A terminal that knows what [`Markdown`] sends, and refuses everything else. A wide character
/// takes two cells, the second of them empty.
struct TerminalScreen {
    columns: usize,
    cells: Vec<Vec<String>>,
    row: usize,
    column: usize,
    /// How far up the cursor went.
    highest: usize,
}

impl TerminalScreen {
    fn new(columns: usize) -> TerminalScreen {
        TerminalScreen { columns, cells: vec![Vec::new()], row: 0, column: 0, highest: 0 }
    }

    fn send(&mut self, text: &str) {
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            match c {
                '\r' => self.column = 0,
                '\n' => self.down(),
                '\u{1b}' => {
                    assert_eq!(chars.next(), Some('['));
                    let mut number = String::new();
                    let end = loop {
                        match chars.next().unwrap() {
                            c @ ('0'..='9' | ';') => number.push(c),
                            c => break c,
                        }
                    };
                    self.control(end, &number);
                }
                c => self.put(c),
            }
        }
    }

    fn control(&mut self, end: char, number: &str) {
        match end {
            'm' => {}
            'A' => {
                let up: usize = number.parse().unwrap();
                self.highest = self.highest.max(up);
                self.row = self.row.checked_sub(up).unwrap();
            }
            'C' => self.column += number.parse::<usize>().unwrap(),
            'K' => self.cells[self.row].truncate(self.column),
            'J' => {
                self.cells[self.row].truncate(self.column);
                self.cells.truncate(self.row + 1);
            }
            other => panic!("ESC [ {number} {other}"),
        }
    }

    fn down(&mut self) {
        self.row += 1;
        if self.row == self.cells.len() {
            self.cells.push(Vec::new());
        }
    }

    fn put(&mut self, c: char) {
        assert!(!c.is_control() || c == '\t', "{c:?} reaches the terminal");
        let width = c.width().unwrap_or(1);
        if width == 0 {
            let at = self.column.checked_sub(1).unwrap();
            self.cells[self.row][at].push(c);
            return;
        }
        if self.column + width > self.columns {
            self.column = 0;
            self.down();
        }
        let cells = &mut self.cells[self.row];
        cells.resize(cells.len().max(self.column + width), " ".into());
        cells[self.column] = c.into();
        for cell in &mut cells[self.column + 1..self.column + width] {
            cell.clear();
        }
        self.column += width;
    }

    fn text(&self) -> String {
        let rows: Vec<String> = self.cells.iter().map(|row| row.concat().trim_end().to_owned()).collect();
        rows.join("\n")
    }
}

fn shown_by(pieces: &[&str], size: (usize, usize)) -> String {
    let mut markdown = Markdown::new(true);
    let mut screen = TerminalScreen::new(size.0);
    for piece in pieces {
        screen.send(&markdown.push(piece, size));
    }
    screen.send(&markdown.finish());
    screen.text()
}

/// What the screen shows of a text in one piece, which it also shows of it in many.
fn shown(text: &str, columns: usize) -> String {
    let size = (columns, 1000);
    let whole = shown_by(&[text], size);
    for length in [1, 2, 3, 5, 7, 11] {
        let chars: Vec<char> = text.chars().collect();
        let pieces: Vec<String> = chars.chunks(length).map(|piece| piece.iter().collect()).collect();
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(shown_by(&pieces, size), whole, "in pieces of {length} of {text:?}");
    }
    whole
}

const EXAMPLE: &str = "# A *fox* and a lantern

Some **bold text**, some *italic*, `code **as is**` and ~~nothing~~; 2 * 3 * 4, snake_case_name, a [link](https://example.org/a_b_c).
> quoted text that is so long that it has to be broken between its words somewhere
> > - deeper

* one item that is long enough to be broken, so that its second row hangs below the first
  * nested `code`
- [x] done
12. twelfth
---
```rust
fn main() { // **not bold**, and longer than the terminal is wide, by some characters

    println!(\"| a |\");
}
```
The end: <https://example.org> \\*literal\\* \\(a_1 * b_1\\) $x_1 * y_2 * z$ costs $5 or *6.
";

#[test]
fn everything_that_answers_hold_is_laid_out() {
    let expected = "\
A fox and a lantern

Some bold text, some italic, code **as is** and nothing; 2
* 3 * 4, snake_case_name, a link
(https://example.org/a_b_c).
│ quoted text that is so long that it has to be broken
│ between its words somewhere
│ │ • deeper

• one item that is long enough to be broken, so that its
  second row hangs below the first
  • nested code
☑ done
12. twelfth
───────────────────────────────────────────────────────────
── rust ───────────────────────────────────────────────────
fn main() { // **not bold**, and longer than the terminal is
 wide, by some characters

    println!(\"| a |\");
}
───────────────────────────────────────────────────────────
The end: https://example.org *literal* \\(a_1 * b_1\\) $x_1 *
y_2 * z$ costs $5 or *6.";
    assert_eq!(shown(EXAMPLE, 60), expected);
}

#[test]
fn tables_are_aligned_and_narrowed() {
    let text = "Before | it\nnot a table\n\n| Name | Count | What it is |\n|:-----|------:|:---:|\n| `a\\|b` | 12 | short |\n\
                | **Latent** | 3 | a long description that cannot stand in one row of it |\n\nAfter";
    let expected = "\
Before | it
not a table

Name   │ Count │       What it is
───────┼───────┼────────────────────────
a|b    │    12 │          short
Latent │     3 │ a long description that
       │       │ cannot stand in one row
       │       │          of it

After";
    assert_eq!(shown(text, 41), expected);
    // A table that cannot be narrowed enough stays as it was written.
    let narrow = shown("| a | b | c | d | e |\n|---|---|---|---|---|\n| 1 | 2 | 3 | 4 | 5 |\n", 12);
    assert!(narrow.contains("| a | b |"), "{narrow}");
    // A heading without a complete rule below it is text.
    assert_eq!(shown("a | b\n--", 40), "a | b\n--");
    assert_eq!(shown("a | b\n--x\nc", 40), "a | b\n--x\nc");
    assert_eq!(shown("a | b\n-|-", 40), "a │ b\n──┼──");
}

#[test]
fn the_screen_does_not_depend_on_the_pieces() {
    let parts = [
        "**",
        "*",
        "_",
        "`",
        "```",
        "\n",
        "\n\n",
        " ",
        "word",
        "| ",
        "|",
        "---",
        "|--|--|\n",
        "# ",
        "> ",
        "- ",
        "1. ",
        "漢字",
        "e\u{301}",
        "👍🏽",
        "\u{1b}[2J",
        "\r",
        "\t",
        "[a](b)",
        "\\",
        "~~~\n",
        "$",
        "longerthanaline-longerthanaline",
    ];
    let mut state = 12345u64;
    for columns in [5, 7, 20, 80] {
        for _ in 0..150 {
            let mut text = String::new();
            for _ in 0..24 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            shown(&text, columns);
        }
    }
}

#[test]
fn streamed_control_sequences_are_escaped() {
    let text = shown("a\u{1b}]0;title\u{7}b\u{9b}2J\n```\n\u{1b}[2J\u{8}\n```\n", 60);
    assert!(text.contains(r"a\u{1b}]0;title\u{7}b\u{9b}2J") && text.contains(r"\u{1b}[2J\u{8}"), "{text}");
}

#[test]
fn text_appears_at_once_and_only_the_end_is_written_again() {
    let mut markdown = Markdown::new(true);
    let size = (80, 24);
    assert_eq!(markdown.push("Hello", size), "Hello");
    assert_eq!(markdown.push(", wor", size), ", wor");
    assert_eq!(markdown.push("ld **b", size), "ld **b");
    assert_eq!(markdown.push("old**", size), "\r\u{1b}[13C\u{1b}[0;1mbold\u{1b}[0m\u{1b}[K");
    assert_eq!(markdown.push("!\n", size), "!");
    assert_eq!(markdown.push("Next", size), "\r\nNext");
    assert_eq!(markdown.finish(), "");
}

#[test]
fn resizing_and_scrolling_lose_no_text() {
    let mut markdown = Markdown::new(true);
    let mut screen = TerminalScreen::new(9000);
    let words: Vec<String> = (0..300).map(|i| format!("w{i}")).collect();
    let text =
        format!("**{}** end\n| a | b |\n|---|---|\n{}\nlast", words.join(" "), "| x | y |\n".repeat(30));
    for (i, c) in text.chars().enumerate() {
        let columns = if i % 400 < 200 { 40 } else { 60 };
        screen.send(&markdown.push(c.encode_utf8(&mut [0; 4]), (columns, 8)));
    }
    screen.send(&markdown.finish());
    let shown = screen.text();
    let mut from = 0;
    for word in words.iter().map(String::as_str).chain(["end", "a", "b", "last"]) {
        let at = shown[from..].find(word);
        from += at.unwrap_or_else(|| panic!("no {word} behind {from} in {shown}")) + word.len();
    }
    assert_eq!((shown.matches('x').count(), shown.matches("w51").count()), (30, 1), "{shown}");
    assert!(screen.highest < 8);
}

#[test]
fn long_and_nested_lines_cost_little() {
    let start = std::time::Instant::now();
    for text in [
        "*a ".repeat(20_000),
        "**".repeat(9_000),
        "[".repeat(20_000),
        "`a``b".repeat(5_000),
        "> ".repeat(9_000),
    ] {
        let mut markdown = Markdown::new(true);
        for piece in text.as_bytes().chunks(8) {
            markdown.push(std::str::from_utf8(piece).unwrap(), (80, 24));
        }
        markdown.finish();
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}
