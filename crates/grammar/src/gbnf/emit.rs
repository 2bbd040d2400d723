//! Writes a grammar over lexemes as Lark.

use super::expr::{CharRange, Expr};
use super::node::{LexemeGrammar, Node};
use std::fmt::Write as _;

/// Maximum nesting of parentheses in a rule. llguidance's Lark parser stops at 30 levels
/// (`MAX_NESTING`).
const MAX_LEVELS: usize = 8;

/// Writes the grammar: rules `r0`, `r1`, … for the rules of GBNF, and terminals `T0`, … for
/// lexemes. In Lark, lower-case names are rules and upper-case names are terminals.
pub(super) fn lark(grammar: &LexemeGrammar) -> String {
    let mut writer = Writer { grammar, text: String::new(), extra: Vec::new(), extra_count: 0 };
    let _ = writeln!(writer.text, "start: r{}", grammar.root);
    for (index, rule) in grammar.rules.iter().enumerate() {
        writer.rule(&format!("r{index}"), rule);
    }
    // A lexeme that was split and is still referenced becomes a rule.
    for (index, lexeme) in grammar.lexemes.iter().enumerate() {
        match &lexeme.parts {
            Some(parts) => writer.rule(&format!("t{index}"), parts),
            None => {
                let _ = write!(writer.text, "T{index}: /");
                regex(&lexeme.expr, &mut writer.text);
                writer.text.push_str("/\n");
            }
        }
    }
    // `rule` may move further nodes to the list, so this runs until it is empty.
    while let Some((index, node)) = writer.extra.pop() {
        writer.rule(&format!("x{index}"), &node);
    }
    writer.text
}

struct Writer<'a> {
    grammar: &'a LexemeGrammar,
    text: String,
    /// Nodes below [`MAX_LEVELS`], which become separate rules.
    extra: Vec<(usize, Node)>,
    extra_count: usize,
}

impl Writer<'_> {
    fn rule(&mut self, name: &str, body: &Node) {
        let _ = write!(self.text, "{name}: ");
        self.node(body, 0);
        self.text.push('\n');
    }

    fn node(&mut self, node: &Node, level: usize) {
        if level > MAX_LEVELS && matches!(node, Node::Sequence(_) | Node::Choice(_) | Node::Repeat(..)) {
            let _ = write!(self.text, "x{}", self.extra_count);
            self.extra.push((self.extra_count, node.clone()));
            self.extra_count += 1;
            return;
        }
        match node {
            Node::Lexeme(lexeme) => {
                let letter = if self.grammar.lexemes[*lexeme].parts.is_some() { 't' } else { 'T' };
                let _ = write!(self.text, "{letter}{lexeme}");
            }
            Node::Token(name) => self.text.push_str(name),
            Node::Rule(rule) => {
                let _ = write!(self.text, "r{rule}");
            }
            Node::Sequence(parts) if parts.is_empty() => self.text.push_str("\"\""),
            Node::Sequence(parts) => self.all(parts, " ", level),
            Node::Choice(parts) => self.all(parts, " | ", level),
            Node::Repeat(inner, low, high) => {
                self.text.push('(');
                self.node(inner, level + 1);
                self.text.push(')');
                self.text.push_str(&bounds(*low, *high));
            }
        }
    }

    fn all(&mut self, parts: &[Node], between: &str, level: usize) {
        self.text.push('(');
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                self.text.push_str(between);
            }
            self.node(part, level + 1);
        }
        self.text.push(')');
    }
}

fn bounds(low: u32, high: Option<u32>) -> String {
    match (low, high) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (low, None) => format!("{{{low},}}"),
        (low, Some(high)) => format!("{{{low},{high}}}"),
    }
}

fn regex(expr: &Expr, into: &mut String) {
    match expr {
        Expr::Class(ranges) => class(ranges, into),
        Expr::Sequence(parts) => parts.iter().for_each(|part| match part {
            // `|` binds loosest.
            Expr::Choice(_) => group(part, into),
            _ => regex(part, into),
        }),
        Expr::Choice(parts) => {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    into.push('|');
                }
                regex(part, into);
            }
        }
        Expr::Repeat(inner, low, high) => {
            group(inner, into);
            into.push_str(&bounds(*low, *high));
        }
        // Lexemes contain no rules or tokens.
        Expr::Rule(_) | Expr::Token(_) => {}
    }
}

fn group(expr: &Expr, into: &mut String) {
    if let Expr::Class(ranges) = expr {
        return class(ranges, into);
    }
    into.push_str("(?:");
    regex(expr, into);
    into.push(')');
}

fn class(ranges: &[CharRange], into: &mut String) {
    if let [(low, high)] = ranges
        && low == high
    {
        return char(*low, into);
    }
    into.push('[');
    for (low, high) in ranges {
        char(*low, into);
        if low != high {
            into.push('-');
            char(*high, into);
        }
    }
    into.push(']');
}

fn char(c: char, into: &mut String) {
    if c.is_ascii_alphanumeric() {
        into.push(c);
    } else {
        // Escaping everything else avoids the special characters of Lark, of the regex and of
        // classes.
        let _ = write!(into, "\\x{{{:x}}}", u32::from(c));
    }
}
