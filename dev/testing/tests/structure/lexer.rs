//! The words and signs of a Rust file, without comments, literals and test code.

/// A word, `::`, or a single sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    Word(String),
    Path,
    Sign(char),
}

impl Token {
    pub fn word(&self) -> Option<&str> {
        match self {
            Token::Word(word) => Some(word),
            _ => None,
        }
    }

    pub fn is(&self, sign: char) -> bool {
        *self == Token::Sign(sign)
    }
}

/// The tokens of a file outside of `#[cfg(test)]`.
pub fn tokens(text: &str) -> Vec<Token> {
    without_tests(&all_tokens(text))
}

fn all_tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut found) = (0, Vec::new());
    while at < chars.len() {
        let c = chars[at];
        let next = chars.get(at + 1).copied();
        if c == '/' && next == Some('/') {
            at = after_line(&chars, at);
        } else if c == '/' && next == Some('*') {
            at = after_comment(&chars, at);
        } else if let Some(end) = after_raw_string(&chars, at) {
            at = end;
        } else if c == '"' {
            at = after_string(&chars, at);
        } else if c == '\'' {
            at = after_quote(&chars, at);
        } else if c.is_alphanumeric() || c == '_' {
            let start = at;
            while at < chars.len() && (chars[at].is_alphanumeric() || chars[at] == '_') {
                at += 1;
            }
            found.push(Token::Word(chars[start..at].iter().collect()));
        } else {
            let path = c == ':' && next == Some(':');
            if path {
                found.push(Token::Path);
            } else if !c.is_whitespace() {
                found.push(Token::Sign(c));
            }
            at += if path { 2 } else { 1 };
        }
    }
    found
}

fn after_line(chars: &[char], start: usize) -> usize {
    chars[start..].iter().position(|c| *c == '\n').map_or(chars.len(), |n| start + n)
}

/// The place after a block comment. Block comments nest.
fn after_comment(chars: &[char], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (at, depth) = (at + 2, depth + 1),
            ('*', Some('/')) => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn after_string(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The place after a raw string literal (`r"…"`, `br#"…"#` and the like), if one begins here.
fn after_raw_string(chars: &[char], start: usize) -> Option<usize> {
    // Here the `r` is part of a word.
    if start > 0 && (chars[start - 1].is_alphanumeric() || chars[start - 1] == '_') {
        return None;
    }
    let mut at = start;
    at += usize::from(matches!(chars.get(at), Some('b' | 'c')));
    if chars.get(at) != Some(&'r') {
        return None;
    }
    at += 1;
    let hashes = chars[at..].iter().take_while(|c| **c == '#').count();
    at += hashes;
    if chars.get(at) != Some(&'"') {
        return None;
    }
    at += 1;
    let ends = |at: usize| {
        chars[at] == '"' && chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes
    };
    (at..chars.len()).find(|at| ends(*at)).map(|at| at + 1 + hashes)
}

/// The place after a character literal, or after the quote of a lifetime.
fn after_quote(chars: &[char], start: usize) -> usize {
    match (chars.get(start + 1), chars.get(start + 2)) {
        (Some('\\'), _) => {
            let end = chars[start + 3..].iter().position(|c| *c == '\'');
            end.map_or(chars.len(), |n| start + 4 + n)
        }
        (Some(_), Some('\'')) => start + 3,
        _ => start + 1,
    }
}

/// The tokens outside of items that are compiled only for tests.
fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let (mut at, mut others) = (0, Vec::new());
    while at < tokens.len() {
        if let Some(end) = attribute(tokens, at) {
            let words: Vec<&str> = tokens[at..end].iter().filter_map(Token::word).collect();
            if matches!(words[..], ["cfg", "test", ..] | ["cfg", "all", "test", ..]) {
                at = after_item(tokens, end);
                continue;
            }
            // Paths in other attributes are not dependencies of this file.
            at = end;
            continue;
        }
        others.push(tokens[at].clone());
        at += 1;
    }
    others
}

/// The end of an attribute that begins here.
fn attribute(tokens: &[Token], start: usize) -> Option<usize> {
    let mut at = start;
    if !tokens.get(at)?.is('#') {
        return None;
    }
    at += 1;
    at += usize::from(tokens.get(at)?.is('!'));
    tokens.get(at)?.is('[').then(|| after_group(tokens, at))
}

/// The place after the group whose bracket opens here.
pub fn after_group(tokens: &[Token], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0i32);
    while at < tokens.len() {
        match &tokens[at] {
            Token::Sign('(' | '[' | '{') => depth += 1,
            Token::Sign(')' | ']' | '}') => depth -= 1,
            _ => {}
        }
        at += 1;
        if depth == 0 {
            break;
        }
    }
    at
}

/// The place after the item that begins here: after its semicolon, comma or block.
fn after_item(tokens: &[Token], start: usize) -> usize {
    let mut at = start;
    while at < tokens.len() {
        if let Some(end) = attribute(tokens, at) {
            at = end;
            continue;
        }
        match &tokens[at] {
            Token::Sign(';' | ',') => return at + 1,
            Token::Sign('{') => return after_group(tokens, at),
            Token::Sign('(' | '[') => at = after_group(tokens, at),
            Token::Sign(')' | ']' | '}') => return at,
            _ => at += 1,
        }
    }
    at
}
