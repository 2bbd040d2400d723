//! Sizes in circuit files: sums and products of named dimensions, `heads*(nope+rope)`.

/// Evaluates `text` with the values of its dimensions, or returns the problem.
pub(crate) fn evaluate(text: &str, dimension: &dyn Fn(&str) -> Option<usize>) -> Result<usize, String> {
    let mut parser = Parser { rest: text, dimension };
    let value = parser.sum(0)?;
    match parser.peek() {
        None => Ok(value),
        Some(c) => Err(format!("unexpected {c:?} in size {text:?}")),
    }
}

/// Maximum nesting of parentheses.
// The parser is recursive, and a circuit of a user may be hostile.
const MAX_DEPTH: usize = 16;

struct Parser<'a> {
    rest: &'a str,
    dimension: &'a dyn Fn(&str) -> Option<usize>,
}

impl Parser<'_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.rest = &self.rest[c.len_utf8()..];
        }
        found
    }

    fn sum(&mut self, depth: usize) -> Result<usize, String> {
        let mut value = self.product(depth)?;
        // Checked: dimensions come from a model file.
        while self.take('+') {
            value = value.checked_add(self.product(depth)?).ok_or("a size overflows")?;
        }
        Ok(value)
    }

    fn product(&mut self, depth: usize) -> Result<usize, String> {
        let mut value = self.factor(depth)?;
        while self.take('*') {
            value = value.checked_mul(self.factor(depth)?).ok_or("a size overflows")?;
        }
        Ok(value)
    }

    fn factor(&mut self, depth: usize) -> Result<usize, String> {
        if depth > MAX_DEPTH {
            return Err("a size is nested too deeply".into());
        }
        if self.take('(') {
            let value = self.sum(depth + 1)?;
            return if self.take(')') { Ok(value) } else { Err("a size is missing a ')'".into()) };
        }
        let word_char = |c: char| c.is_ascii_alphanumeric() || c == '_';
        // Skips spaces before a word or number.
        self.peek();
        let end = self.rest.find(|c| !word_char(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.parse() {
            Ok(number) => Ok(number),
            Err(_) => (self.dimension)(word).ok_or_else(|| format!("unknown dimension {word:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_products_and_parentheses() {
        let sizes = [("heads", 4), ("nope", 24), ("rope", 16)];
        let dimension = |name: &str| sizes.iter().find(|(known, _)| *known == name).map(|(_, size)| *size);
        assert_eq!(evaluate("heads * (nope + rope)", &dimension), Ok(160));
        assert_eq!(evaluate("2*heads+1", &dimension), Ok(9));
        for wrong in [
            "",
            "heads*",
            "(heads",
            "heads)",
            "size",
            "heads heads",
            "99999999999999999999",
            "18446744073709551615+1",
        ] {
            assert!(evaluate(wrong, &dimension).is_err(), "{wrong}");
        }
        assert!(evaluate(&"(".repeat(100_000), &dimension).is_err());
    }
}
