//! Parser: tokens to a [`Program`].

mod expression;
mod primary;
mod statement;

use crate::ast::{LiteralConstant, Loop, MacroDefinition, Program, SpecialNames};
use crate::error::{Error, ErrorKind, Result};
use crate::lexer::{Token, TokenKind, normalize, tokens};
use crate::limits::TemplateLimits;
use crate::symbols::{Symbol, Symbols};

pub(crate) fn parse(source: &str, limits: &TemplateLimits) -> Result<Program> {
    if source.len() > limits.source {
        let (bytes, limit) = (source.len(), limits.source);
        return Err(Error::limit(format!("its source has {bytes} bytes, more than the limit of {limit}")));
    }
    // Before the lexer, because the byte ranges of tokens refer to the normalized source.
    let source = normalize(source);
    let tokens = tokens(&source)?;
    let mut parser = Parser {
        source: &source,
        tokens: &tokens,
        at: 0,
        depth: 0,
        limit: limits.parse_depth,
        symbols: Symbols::default(),
        constants: Vec::new(),
        macros: Vec::new(),
        loops: Vec::new(),
        uses: SpecialNames::default(),
        in_loop: false,
    };
    let body = parser.template()?;
    let Parser { symbols, constants, macros, loops, .. } = parser;
    Ok(Program { source, symbols, constants, macros, loops, body })
}

struct Parser<'a> {
    source: &'a str,
    tokens: &'a [Token],
    at: usize,
    depth: u32,
    limit: u32,
    symbols: Symbols,
    constants: Vec<LiteralConstant>,
    macros: Vec<MacroDefinition>,
    loops: Vec<Loop>,
    /// Special names mentioned so far in the macro or loop that is being parsed.
    uses: SpecialNames,
    /// Whether `break` and `continue` are allowed here.
    in_loop: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> &'a TokenKind {
        self.look(0)
    }

    fn look(&self, ahead: usize) -> &'a TokenKind {
        // The last token is `End`, and the position never moves past it.
        &self.tokens[(self.at + ahead).min(self.tokens.len() - 1)].kind
    }

    fn line(&self) -> u32 {
        self.tokens[self.at.min(self.tokens.len() - 1)].line
    }

    fn advance(&mut self) {
        self.at = (self.at + 1).min(self.tokens.len() - 1);
    }

    fn name_at(&self, ahead: usize) -> Option<&'a str> {
        match self.look(ahead) {
            TokenKind::Name(from, to) => Some(&self.source[*from as usize..*to as usize]),
            _ => None,
        }
    }

    fn is_name(&self, name: &str) -> bool {
        self.name_at(0) == Some(name)
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), TokenKind::Op(found) if *found == op)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        if found {
            self.advance();
        }
        found
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        if found {
            self.advance();
        }
        found
    }

    fn expect_op(&mut self, op: &str) -> Result<()> {
        if self.skip_op(op) { Ok(()) } else { Err(self.expected(&format!("\"{op}\""))) }
    }

    fn expect(&mut self, kind: &TokenKind, what: &str) -> Result<()> {
        if self.peek() == kind {
            self.advance();
            return Ok(());
        }
        Err(self.expected(what))
    }

    /// Reads a name: an assignment target, parameter or attribute.
    fn expect_name(&mut self) -> Result<Symbol> {
        let Some(name) = self.name_at(0) else { return Err(self.expected("a name")) };
        self.advance();
        self.symbol(name)
    }

    fn expected(&self, what: &str) -> Error {
        let found = match self.peek() {
            TokenKind::Name(from, to) => self.source[*from as usize..*to as usize].chars().take(40).collect(),
            TokenKind::Op(op) => (*op).to_owned(),
            TokenKind::Data(..) => "text".to_owned(),
            TokenKind::BlockStart => "{%".to_owned(),
            TokenKind::BlockEnd => "%}".to_owned(),
            TokenKind::PrintStart => "{{".to_owned(),
            TokenKind::PrintEnd => "}}".to_owned(),
            TokenKind::Str(_) => "a string".to_owned(),
            TokenKind::Int(_) | TokenKind::Float(_) => "a number".to_owned(),
            TokenKind::End => "the end".to_owned(),
        };
        Error::syntax(self.line(), format!("expected {what}, found {found}"))
    }

    fn error(&self, message: &str) -> Error {
        Error::syntax(self.line(), message)
    }

    /// Runs a grammar rule one nesting level deeper.
    fn nested<T>(&mut self, step: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.depth += 1;
        if self.depth > self.limit {
            let limit = self.limit;
            let message = format!("brackets or statements are nested deeper than {limit} levels");
            return Err(Error::new(ErrorKind::Limit, message).at(self.line()));
        }
        // `depth` is not restored after the error above: the first error ends parsing.
        let result = step(self);
        self.depth -= 1;
        result
    }

    fn symbol(&mut self, name: &str) -> Result<Symbol> {
        if let Some(symbol) = self.symbols.find(name) {
            return Ok(symbol);
        }
        // The lexer also reads words such as `٣x` as names, because alphanumeric includes digits of
        // other scripts.
        if name.starts_with(|c: char| c != '_' && !c.is_alphabetic()) {
            return Err(self.error("a name cannot begin with a digit"));
        }
        Ok(self.symbols.add(name))
    }

    fn constant(&mut self, constant: LiteralConstant) -> u32 {
        self.constants.push(constant);
        self.constants.len() as u32 - 1
    }
}
