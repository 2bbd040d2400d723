//! GBNF parser, after llama.cpp's `llama-grammar.cpp`.
//!
//! It accepts what llama.cpp accepts, with these differences:
//!
//! * Also accepted: left recursion, `_` in names, `{,n}`, the escape `\^`, and a `|` at the
//!   beginning of a line outside of parentheses.
//! * Errors instead of silent behaviour: a rule that is defined twice (llama.cpp keeps the last
//!   definition), a line end in a literal or class, an empty class, and an upper bound above 2000
//!   (llama.cpp treats it as unbounded).
//! * Not supported: `!<token>`.

use super::expr::{CharRange, Expr, GbnfRule, GbnfRules, class};
use crate::error::{GrammarError, SourcePosition};
use crate::limits::GrammarLimits;
use std::collections::HashMap;

const WHAT: &str = "GBNF grammar";

/// Parses a grammar and checks that every referenced rule is defined.
pub(super) fn parse(text: &str, limits: &GrammarLimits) -> Result<GbnfRules, GrammarError> {
    let mut parser =
        Parser { text, at: 0, depth: 0, limits, names: HashMap::new(), rules: Vec::new(), uses: Vec::new() };
    parser.space(true);
    while parser.at < text.len() {
        parser.rule()?;
        parser.space(true);
    }
    for (rule, at) in &parser.uses {
        if parser.rules[*rule].is_none() {
            let name = parser.names.iter().find(|(_, of)| *of == rule).map_or("", |(name, _)| name);
            return Err(parser.error_at(*at, format!("undefined rule `{name}`")));
        }
    }
    let root = parser.names.get("root").copied().filter(|root| parser.rules[*root].is_some());
    let Some(root) = root else {
        return Err(parser.error_at(text.len(), "undefined rule `root`, which every grammar needs".into()));
    };
    Ok(GbnfRules { rules: parser.rules.into_iter().flatten().collect(), root })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    limits: &'a GrammarLimits,
    /// Indices of the rules that are defined or used so far.
    names: HashMap<&'a str, usize>,
    rules: Vec<Option<GbnfRule>>,
    /// Uses of rules with their byte positions, for error messages.
    uses: Vec<(usize, usize)>,
}

impl<'a> Parser<'a> {
    fn error_at(&self, at: usize, problem: String) -> GrammarError {
        GrammarError::Syntax { what: WHAT, place: SourcePosition::of(self.text, at), problem }
    }

    fn error(&self, problem: impl Into<String>) -> GrammarError {
        self.error_at(self.at, problem.into())
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self, expected: &str) -> bool {
        let found = self.rest().starts_with(expected);
        self.at += if found { expected.len() } else { 0 };
        found
    }

    /// Skips blanks and comments, and line ends if `lines` is true.
    fn space(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if lines => self.at += 1,
                '#' => self.at += self.rest().find(['\r', '\n']).unwrap_or(self.rest().len()),
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Option<&'a str> {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let rest = self.rest();
        let name = &rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())];
        self.at += name.len();
        (!name.is_empty()).then_some(name)
    }

    /// Returns the index of a rule, which need not be defined yet.
    fn index(&mut self, name: &'a str) -> Result<usize, GrammarError> {
        if let Some(index) = self.names.get(name) {
            return Ok(*index);
        }
        let (found, limit) = (self.rules.len() + 1, self.limits.rules);
        if found > limit {
            return Err(GrammarError::TooLarge { what: WHAT, unit: "rules", found, limit });
        }
        self.rules.push(None);
        self.names.insert(name, found - 1);
        Ok(found - 1)
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let start = self.at;
        let Some(name) = self.name() else {
            return Err(self.error(format!("expected the name of a rule, found {}", self.found())));
        };
        self.space(false);
        if !self.take("::=") {
            return Err(self.error(format!("expected `::=` after the name `{name}`, found {}", self.found())));
        }
        // As in llama.cpp, the body may begin on the next line.
        self.space(true);
        let index = self.index(name)?;
        if self.rules[index].is_some() {
            return Err(self.error_at(start, format!("the rule `{name}` is defined twice")));
        }
        let body = self.choice(false)?;
        self.rules[index] = Some(GbnfRule { body });
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(_) => {
                Err(self.error(format!("expected the end of the rule `{name}`, found {}", self.found())))
            }
        }
    }

    /// Describes the next character for an error message.
    fn found(&self) -> String {
        self.peek().map_or("the end".to_owned(), |c| format!("{c:?}"))
    }

    /// Parses alternatives. Within parentheses (`nested`) they may span lines.
    fn choice(&mut self, nested: bool) -> Result<Expr, GrammarError> {
        let mut alternatives = vec![self.sequence(nested)?];
        loop {
            // A line may begin with `|`. Otherwise the line end ends the rule, so restore the
            // position.
            let before = self.at;
            self.space(true);
            if !self.take("|") {
                self.at = if nested { self.at } else { before };
                break;
            }
            self.space(true);
            alternatives.push(self.sequence(nested)?);
        }
        let one = alternatives.len() == 1;
        Ok(if one { alternatives.swap_remove(0) } else { Expr::Choice(alternatives) })
    }

    fn sequence(&mut self, nested: bool) -> Result<Expr, GrammarError> {
        let mut parts = Vec::new();
        loop {
            let part = match self.peek() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    // As in llama.cpp, `.` also matches line ends.
                    Expr::Class(vec![('\0', char::MAX)])
                }
                Some('(') => self.group()?,
                Some('<') => self.token()?,
                Some('!') => return Err(self.error("`!` before a token is not supported")),
                _ => {
                    let at = self.at;
                    let Some(name) = self.name() else { break };
                    let index = self.index(name)?;
                    self.uses.push((index, at));
                    Expr::Rule(index)
                }
            };
            let part = self.repeated(part, nested)?;
            parts.push(part);
        }
        if let Some(c @ ('*' | '+' | '?' | '{')) = self.peek() {
            return Err(self.error(format!("nothing to repeat before `{c}`")));
        }
        Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Expr::Sequence(parts) })
    }

    fn group(&mut self) -> Result<Expr, GrammarError> {
        let start = self.at;
        self.at += 1;
        self.depth += 1;
        if self.depth > self.limits.nesting {
            let (unit, limit) = ("levels of nesting", self.limits.nesting);
            return Err(GrammarError::TooLarge { what: WHAT, unit, found: self.depth, limit });
        }
        self.space(true);
        let inner = self.choice(true)?;
        self.space(true);
        if !self.take(")") {
            return Err(self.error_at(start, format!("this `(` is not closed: found {}", self.found())));
        }
        self.depth -= 1;
        Ok(inner)
    }

    /// Parses repetition operators after an expression, and the blanks after them.
    fn repeated(&mut self, mut part: Expr, nested: bool) -> Result<Expr, GrammarError> {
        let mut repetitions = 0;
        loop {
            self.space(nested);
            let (low, high) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => self.bounds()?,
                _ => return Ok(part),
            };
            if self.peek() != Some('}') {
                self.at += 1;
            } else {
                self.take("}");
            }
            repetitions += 1;
            // `a*+?` nests one level per operator.
            if self.depth + repetitions > self.limits.nesting {
                let (unit, limit) = ("levels of nesting", self.limits.nesting);
                return Err(GrammarError::TooLarge { what: WHAT, unit, found: limit + 1, limit });
            }
            part = match (low, high) {
                (_, Some(0)) => Expr::empty(),
                (1, Some(1)) => part,
                _ => Expr::Repeat(Box::new(part), low, high),
            };
        }
    }

    /// Parses `{m}`, `{m,}`, `{m,n}` or `{,n}` up to the closing brace.
    fn bounds(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let start = self.at;
        self.at += 1;
        self.space(false);
        let low = self.number()?;
        self.space(false);
        let mut high = low;
        if self.take(",") {
            self.space(false);
            high = self.number()?;
            self.space(false);
        } else if low.is_none() {
            return Err(self.error("expected a number"));
        }
        let low = low.unwrap_or(0);
        if self.peek() != Some('}') {
            return Err(self.error_at(start, format!("this `{{` is not closed: found {}", self.found())));
        }
        if high.is_some_and(|high| high < low) {
            return Err(self.error_at(start, "the upper bound is below the lower one".into()));
        }
        Ok((low, high))
    }

    fn number(&mut self) -> Result<Option<u32>, GrammarError> {
        let rest = self.rest();
        let digits = &rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())];
        if digits.is_empty() {
            return Ok(None);
        }
        let limit = self.limits.repetitions;
        match digits.parse::<usize>().ok().filter(|number| *number <= limit) {
            Some(number) => {
                self.at += digits.len();
                Ok(Some(number as u32))
            }
            None => Err(self.error(format!("a repetition must be at most {limit}"))),
        }
    }

    fn literal(&mut self) -> Result<Expr, GrammarError> {
        let start = self.at;
        self.at += 1;
        let mut chars = Vec::new();
        loop {
            match self.peek() {
                Some('"') => break,
                // llama.cpp accepts line ends in literals. As an error, it points to the line with
                // the missing quote.
                None | Some('\n') => return Err(self.error_at(start, "this `\"` is not closed".into())),
                Some(_) => chars.push(Expr::char(self.char()?)),
            }
        }
        self.at += 1;
        Ok(if chars.len() == 1 { chars.swap_remove(0) } else { Expr::Sequence(chars) })
    }

    fn class(&mut self) -> Result<Expr, GrammarError> {
        let start = self.at;
        self.at += 1;
        let negated = self.take("^");
        let mut ranges: Vec<CharRange> = Vec::new();
        while !self.take("]") {
            if matches!(self.peek(), None | Some('\n')) {
                return Err(self.error_at(start, "this `[` is not closed".into()));
            }
            let at = self.at;
            let low = self.char()?;
            // A hyphen before the closing bracket is a character.
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let high = if is_range {
                self.at += 1;
                self.char()?
            } else {
                low
            };
            if high < low {
                return Err(self.error_at(at, format!("the range {low:?}-{high:?} is empty")));
            }
            ranges.push((low, high));
        }
        let ranges = class(ranges, negated);
        if ranges.is_empty() {
            return Err(self.error_at(start, "this character class is empty".into()));
        }
        Ok(Expr::Class(ranges))
    }

    /// Reads a character, escaped or not.
    fn char(&mut self) -> Result<char, GrammarError> {
        let Some(c) = self.peek() else { return Err(self.error("expected a character, found the end")) };
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let escape = self.peek();
        self.at += escape.map_or(0, char::len_utf8);
        match escape {
            Some('x') => self.hex(2),
            Some('u') => self.hex(4),
            Some('U') => self.hex(8),
            Some('t') => Ok('\t'),
            Some('r') => Ok('\r'),
            Some('n') => Ok('\n'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => Ok(c),
            Some(c) => {
                self.at -= c.len_utf8();
                Err(self.error(format!("unknown escape \\{c}")))
            }
            None => Err(self.error("expected an escape, found the end")),
        }
    }

    fn hex(&mut self, digits: usize) -> Result<char, GrammarError> {
        // `from_str_radix` would accept a sign: `\x+f`.
        let code = self.rest().get(..digits).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => Err(self.error(format!("expected {digits} hexadecimal digits of a character"))),
        }
    }

    /// Reads `<name>` or `<[id]>`. llguidance uses the same notation and resolves the name.
    fn token(&mut self) -> Result<Expr, GrammarError> {
        let end = self.rest().find(['>', '\n', ' ']).filter(|end| self.rest()[*end..].starts_with('>'));
        let Some(end) = end else { return Err(self.error("this `<` is not closed")) };
        let name = &self.rest()[..=end];
        self.at += name.len();
        Ok(Expr::Token(name.to_owned()))
    }
}
