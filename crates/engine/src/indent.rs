//! Minimum indentation: an answer ends before a line that is indented less (`n_indent` of
//! llama-server, for code completion).

/// The state of the current line of a text.
#[derive(Debug)]
pub(crate) struct IndentLimit {
    /// Minimum number of spaces and tabs of a line. 0: no limit.
    min: usize,
    /// The indentation of the current line so far. `None` after its first other character.
    indentation: Option<usize>,
    broken: bool,
}

impl IndentLimit {
    /// A limit that applies from the second line on.
    pub(crate) fn new(min: usize) -> IndentLimit {
        IndentLimit { min, indentation: None, broken: false }
    }

    /// Appends text. Returns the part before the first line that is indented less than the limit.
    pub(crate) fn push(&mut self, mut text: String) -> String {
        if self.min == 0 {
            return text;
        }
        if self.broken {
            return String::new();
        }
        for (at, character) in text.char_indices() {
            match (self.indentation, character) {
                (Some(count), ' ' | '\t') => self.indentation = Some(count + 1),
                (Some(count), _) if count < self.min => {
                    self.broken = true;
                    text.truncate(at);
                    return text;
                }
                (_, '\n') => self.indentation = Some(0),
                _ => self.indentation = None,
            }
        }
        text
    }

    /// Whether a line was indented less than the limit.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(min: usize, parts: &[&str]) -> (String, bool) {
        let mut limit = IndentLimit::new(min);
        let text = parts.iter().map(|part| limit.push((*part).to_owned())).collect();
        (text, limit.is_broken())
    }

    #[test]
    fn a_text_ends_before_a_line_that_is_indented_less() {
        assert_eq!(feed(2, &["x\n", " ", "  y\n  z", "\n end"]), ("x\n   y\n  z\n ".into(), true));
        assert_eq!(feed(2, &["x\n\ty\n"]), ("x\n\t".into(), true));
        assert_eq!(feed(1, &["x\n", "\ty\n "]), ("x\n\ty\n ".into(), false));
        assert_eq!(feed(1, &["\n", "\n y"]), ("\n".into(), true));
        assert_eq!(feed(0, &["x\ny\n"]), ("x\ny\n".into(), false));
        assert_eq!(feed(4, &["no second line"]), ("no second line".into(), false));
    }
}
