//! Names, literals, brackets and postfix operations.

use super::Parser;
use crate::ast::{ArgumentList, Expression, LiteralConstant, PostfixOperation};
use crate::error::Result;
use crate::lexer::TokenKind;

impl Parser<'_> {
    pub(super) fn primary(&mut self) -> Result<Expression> {
        let constant = match self.peek() {
            TokenKind::Name(..) => return self.name(),
            TokenKind::Str(_) => {
                let mut text = String::new();
                // Adjacent string literals are joined, as in Python.
                while let TokenKind::Str(part) = self.peek() {
                    text.push_str(part);
                    self.advance();
                }
                let text = text.into_boxed_str();
                return Ok(Expression::Constant(self.constant(LiteralConstant::Str(text))));
            }
            TokenKind::Int(n) => LiteralConstant::Int(*n),
            TokenKind::Float(f) => LiteralConstant::Float(*f),
            TokenKind::Op("(") => return self.nested(Self::parenthesis),
            TokenKind::Op("[") => return self.nested(Self::list),
            TokenKind::Op("{") => return self.nested(Self::dict),
            _ => return Err(self.expected("a value")),
        };
        self.advance();
        Ok(Expression::Constant(self.constant(constant)))
    }

    fn name(&mut self) -> Result<Expression> {
        let name = self.name_at(0).unwrap_or_default();
        let constant = match name {
            "true" | "True" => LiteralConstant::Bool(true),
            "false" | "False" => LiteralConstant::Bool(false),
            "none" | "None" => LiteralConstant::None,
            // Reserved words are operators. Jinja2 has both spellings of the constants above.
            "not" | "and" | "or" | "in" | "is" | "if" | "else" => return Err(self.expected("a value")),
            _ => {
                match name {
                    "varargs" => self.uses.varargs = true,
                    "kwargs" => self.uses.kwargs = true,
                    "caller" => self.uses.caller = true,
                    "loop" => self.uses.looping = true,
                    _ => {}
                }
                self.advance();
                return Ok(Expression::Name(self.symbol(name)?));
            }
        };
        self.advance();
        Ok(Expression::Constant(self.constant(constant)))
    }

    fn parenthesis(&mut self) -> Result<Expression> {
        self.advance();
        if self.skip_op(")") {
            return Ok(Expression::Tuple(Vec::new()));
        }
        let value = self.tuple(true)?;
        self.expect_op(")")?;
        Ok(value)
    }

    /// Parses comma-separated expressions. A single one without a comma is not a tuple.
    pub(super) fn tuple(&mut self, conditions: bool) -> Result<Expression> {
        let one = |p: &mut Self| if conditions { p.expression() } else { p.nested(Self::without_condition) };
        let first = one(self)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.skip_op(",") {
            let ends = matches!(
                self.peek(),
                TokenKind::Op(")" | "=" | "]") | TokenKind::BlockEnd | TokenKind::PrintEnd | TokenKind::End
            );
            // A trailing comma ends the tuple: `(1,)`, `{% set x = 1, %}`.
            if ends || self.is_name("in") {
                break;
            }
            items.push(one(self)?);
        }
        Ok(Expression::Tuple(items))
    }

    fn list(&mut self) -> Result<Expression> {
        self.advance();
        let mut items = Vec::new();
        while !self.skip_op("]") {
            if !items.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(Expression::List(items))
    }

    fn dict(&mut self) -> Result<Expression> {
        self.advance();
        let mut entries = Vec::new();
        while !self.skip_op("}") {
            if !entries.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            entries.push((key, self.expression()?));
        }
        Ok(Expression::Dict(entries))
    }

    /// Parses attributes, subscripts and calls.
    pub(super) fn postfix(&mut self, links: &mut Vec<PostfixOperation>) -> Result<()> {
        loop {
            match self.peek() {
                TokenKind::Op(".") => {
                    self.advance();
                    links.push(self.attribute()?);
                }
                TokenKind::Op("[") => links.push(self.nested(Self::subscript)?),
                TokenKind::Op("(") => links.push(PostfixOperation::Call(self.nested(Self::arguments)?)),
                _ => return Ok(()),
            }
        }
    }

    fn attribute(&mut self) -> Result<PostfixOperation> {
        // `list.0` is Jinja syntax for `list[0]`.
        if let TokenKind::Int(n) = self.peek() {
            let index = LiteralConstant::Int(*n);
            self.advance();
            return Ok(PostfixOperation::Subscript(Expression::Constant(self.constant(index))));
        }
        Ok(PostfixOperation::Attribute(self.expect_name()?))
    }

    fn subscript(&mut self) -> Result<PostfixOperation> {
        self.advance();
        let mut parts = [None, None, None];
        let mut at = 0;
        loop {
            if !self.is_op(":") && !self.is_op("]") {
                // Only an index may be a tuple: `x[1, 2]`. In a slice, a comma is an error.
                parts[at] = Some(if at == 0 { self.tuple(true)? } else { self.expression()? });
            }
            if at < 2 && self.skip_op(":") {
                at += 1;
            } else {
                break;
            }
        }
        self.expect_op("]")?;
        if at > 0 {
            return Ok(PostfixOperation::Slice(Box::new(parts)));
        }
        let [index, ..] = parts;
        index.map(PostfixOperation::Subscript).ok_or_else(|| self.error("a subscript is empty"))
    }

    /// Parses parenthesized arguments.
    pub(super) fn arguments(&mut self) -> Result<ArgumentList> {
        self.expect_op("(")?;
        let mut arguments = ArgumentList::default();
        let mut first = true;
        while !self.skip_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            first = false;
            self.argument(&mut arguments)?;
        }
        Ok(arguments)
    }

    fn argument(&mut self, arguments: &mut ArgumentList) -> Result<()> {
        if self.skip_op("*") {
            if arguments.spread.is_some() {
                return Err(self.error("a call takes one *list"));
            }
            arguments.spread = Some(Box::new(self.expression()?));
        } else if self.skip_op("**") {
            if arguments.spread_named.is_some() {
                return Err(self.error("a call takes one **dict"));
            }
            arguments.spread_named = Some(Box::new(self.expression()?));
        } else if let Some(name) = self.name_at(0)
            && *self.look(1) == TokenKind::Op("=")
        {
            self.advance();
            self.advance();
            let name = self.constant(LiteralConstant::Str(name.into()));
            arguments.named.push((name, self.expression()?));
        } else {
            if !arguments.named.is_empty() {
                return Err(self.error("a positional argument follows a named one"));
            }
            arguments.positional.push(self.expression()?);
        }
        Ok(())
    }

    /// Parses filters, tests, and calls of their results.
    pub(super) fn filters(&mut self, links: &mut Vec<PostfixOperation>) -> Result<()> {
        loop {
            if self.is_op("|") {
                links.push(self.filter()?);
            } else if self.skip_name("is") {
                links.push(self.test()?);
            } else if self.is_op("(") {
                links.push(PostfixOperation::Call(self.nested(Self::arguments)?));
            } else {
                return Ok(());
            }
        }
    }

    /// Parses a filter. `{% filter upper %}` has no bar before the name.
    pub(super) fn filter(&mut self) -> Result<PostfixOperation> {
        self.skip_op("|");
        let name = self.dotted_name()?;
        let arguments = if self.is_op("(") { self.nested(Self::arguments)? } else { ArgumentList::default() };
        Ok(PostfixOperation::Filter(self.symbol(&name)?, arguments))
    }

    fn dotted_name(&mut self) -> Result<String> {
        let Some(first) = self.name_at(0) else { return Err(self.expected("a name")) };
        let mut name = first.to_owned();
        self.advance();
        // Jinja2 allows dots in filter names. Built-in ones have none, so such a name fails when it
        // is reached.
        while self.is_op(".") && self.name_at(1).is_some() {
            self.advance();
            name.push('.');
            name.push_str(self.name_at(0).unwrap_or_default());
            self.advance();
        }
        Ok(name)
    }

    fn test(&mut self) -> Result<PostfixOperation> {
        let negated = self.skip_name("not");
        // Read any word as a name here, because some tests are named like operators or constants:
        // `is in list`, `is none`.
        let name = self.dotted_name()?;
        let mut arguments = ArgumentList::default();
        if self.is_op("(") {
            arguments = self.nested(Self::arguments)?;
        } else if self.begins_argument() {
            // `is divisibleby 3` takes its argument without parentheses. Only a primary with
            // postfix operations is read, so that `x is eq 1 and y` stops before `and`.
            let value = self.nested(Self::primary)?;
            let mut links = Vec::new();
            self.postfix(&mut links)?;
            arguments.positional.push(if links.is_empty() {
                value
            } else {
                Expression::Chain(Box::new(value), links)
            });
        }
        Ok(PostfixOperation::Test(self.symbol(&name)?, arguments, negated))
    }

    fn begins_argument(&self) -> bool {
        match self.peek() {
            // These words continue the expression or the statement: `x is odd and y`, `for x in xs
            // if x is odd recursive`.
            TokenKind::Name(..) => !matches!(
                self.name_at(0),
                Some("else" | "or" | "and" | "is" | "if" | "not" | "in" | "recursive")
            ),
            TokenKind::Str(_) | TokenKind::Int(_) | TokenKind::Float(_) => true,
            TokenKind::Op(op) => matches!(*op, "[" | "{"),
            _ => false,
        }
    }
}
