//! Statements.

use super::Parser;
use crate::ast::{
    AssignmentTarget, Expression, Loop, MacroDefinition, Node, PostfixOperation, SpecialNames, Statement,
};
use crate::error::{Error, Result};
use crate::lexer::TokenKind;
use crate::symbols::Symbol;

impl Parser<'_> {
    pub(super) fn template(&mut self) -> Result<Vec<Node>> {
        let body = self.body(&[])?;
        match self.peek() {
            TokenKind::End => Ok(body),
            _ => Err(self.expected("the end of the template")),
        }
    }

    /// Parses statements up to one of `ends`, leaving its name as the next token. Without `ends`,
    /// parses up to the end of the template.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Node>> {
        let start = self.line();
        let mut nodes = Vec::new();
        loop {
            let line = self.line();
            let statement = match self.peek() {
                TokenKind::Data(from, to) => {
                    self.advance();
                    Statement::Data(*from, *to)
                }
                TokenKind::PrintStart => {
                    self.advance();
                    let value = self.tuple(true)?;
                    self.expect(&TokenKind::PrintEnd, "\"}}\"")?;
                    Statement::Print(value)
                }
                TokenKind::BlockStart => {
                    self.advance();
                    if self.name_at(0).is_some_and(|name| ends.contains(&name)) {
                        return Ok(nodes);
                    }
                    self.nested(Self::statement)?
                }
                _ if ends.is_empty() => return Ok(nodes),
                _ => {
                    // The last name is that of the closing tag; `elif` and `else` come before it.
                    let end = ends.last().copied().unwrap_or_default();
                    return Err(Error::syntax(start, format!("a statement is not closed: expected {end}")));
                }
            };
            nodes.push(Node { line, statement });
        }
    }

    fn block_end(&mut self) -> Result<()> {
        self.expect(&TokenKind::BlockEnd, "\"%}\"")
    }

    /// Parses the rest of the opening tag, the body, and the closing tag.
    fn closed_body(&mut self, end: &'static str) -> Result<Vec<Node>> {
        self.block_end()?;
        let body = self.body(&[end])?;
        self.advance();
        if end == "endblock" || end == "endmacro" {
            // `{% endblock name %}` and `{% endmacro name %}` may repeat the name.
            if self.name_at(0).is_some() {
                self.advance();
            }
        }
        self.block_end()?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<Statement> {
        let Some(name) = self.name_at(0) else { return Err(self.expected("the name of a statement")) };
        // `body` has returned for the end that it waits for, so any other one is misplaced.
        if let Some(end) = name.strip_prefix("end") {
            return Err(self.error(&format!("{{% end{end} %}} does not match an open statement")));
        }
        self.advance();
        match name {
            "for" => self.for_statement(),
            "if" => self.if_statement(),
            "set" => self.set(),
            "macro" => self.macro_statement(),
            "call" => self.call(),
            "filter" => {
                let filters = self.filter_list()?;
                Ok(Statement::FilterBlock(filters, self.closed_body("endfilter")?))
            }
            "with" => self.with(),
            // transformers' extension that marks the assistant's text for training masks. Rendering
            // ignores it.
            "generation" => Ok(Statement::Scope(self.closed_body("endgeneration")?)),
            // Without template inheritance, a block prints its body in place.
            "block" => {
                // `scoped` and `required` matter only to inheriting templates.
                self.expect_name()?;
                while self.skip_name("scoped") || self.skip_name("required") {}
                Ok(Statement::Scope(self.closed_body("endblock")?))
            }
            "break" | "continue" => {
                if !self.in_loop {
                    return Err(self.error(&format!("{name} outside of a loop")));
                }
                self.block_end()?;
                Ok(if name == "break" { Statement::Break } else { Statement::Continue })
            }
            // transformers sets no loader either, so these statements cannot work there.
            "include" | "import" | "from" | "extends" => {
                let message = format!("{{% {name} %}}: a chat template cannot read other files");
                Err(Error::unsupported(message).at(self.line()))
            }
            other => {
                let name: String = other.chars().take(40).collect();
                Err(Error::unsupported(format!("unknown statement {{% {name} %}}")).at(self.line()))
            }
        }
    }

    fn if_statement(&mut self) -> Result<Statement> {
        let mut branches = Vec::new();
        loop {
            let test = self.tuple(true)?;
            self.block_end()?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            if !self.skip_name("elif") {
                break;
            }
        }
        let mut otherwise = Vec::new();
        if self.skip_name("else") {
            self.block_end()?;
            otherwise = self.body(&["endif"])?;
        }
        self.advance();
        self.block_end()?;
        Ok(Statement::If(branches, otherwise))
    }

    fn for_statement(&mut self) -> Result<Statement> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return Err(self.expected("\"in\""));
        }
        let over = self.tuple(false)?;
        let condition = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        // A nested loop has its own `loop`, so its mention must not mark this one.
        let (uses, in_loop) = (self.uses, std::mem::replace(&mut self.in_loop, true));
        self.uses.looping = false;
        let body = self.body(&["else", "endfor"])?;
        let uses_loop = self.uses.looping;
        // `else` runs after the loop: there `loop` means the enclosing one.
        self.uses.looping = uses.looping;
        self.in_loop = in_loop;
        let mut otherwise = Vec::new();
        if self.skip_name("else") {
            self.block_end()?;
            otherwise = self.body(&["endfor"])?;
        }
        self.advance();
        self.block_end()?;
        self.loops.push(Loop { target, over, condition, body, otherwise, recursive, uses_loop });
        Ok(Statement::For(self.loops.len() as u32 - 1))
    }

    /// Parses the target of `set`, `for` or `with`. Only `set` allows `namespace.attribute`.
    fn target(&mut self, attributes: bool) -> Result<AssignmentTarget> {
        let first = self.single_target(attributes)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.skip_op(",") {
            if self.name_at(0).is_none_or(|name| name == "in") && !self.is_op("(") {
                break;
            }
            targets.push(self.single_target(attributes)?);
        }
        Ok(AssignmentTarget::Tuple(targets))
    }

    fn single_target(&mut self, attributes: bool) -> Result<AssignmentTarget> {
        if self.skip_op("(") {
            let target = self.nested(|p| p.target(attributes))?;
            self.expect_op(")")?;
            return Ok(target);
        }
        // These words are constants in expressions, so a variable of that name could not be read.
        if matches!(self.name_at(0), Some("true" | "false" | "none" | "True" | "False" | "None")) {
            return Err(self.expected("a name to assign to"));
        }
        let name = self.expect_name()?;
        if attributes && self.skip_op(".") {
            return Ok(AssignmentTarget::Attribute(name, self.expect_name()?));
        }
        Ok(AssignmentTarget::Name(name))
    }

    fn set(&mut self) -> Result<Statement> {
        let target = self.target(true)?;
        if self.skip_op("=") {
            let value = self.tuple(true)?;
            self.block_end()?;
            return Ok(Statement::Set(target, value));
        }
        let filters = if self.is_op("|") { self.filter_list()? } else { Vec::new() };
        Ok(Statement::SetBlock(target, filters, self.closed_body("endset")?))
    }

    /// Parses filters. The bar before the first is optional.
    fn filter_list(&mut self) -> Result<Vec<PostfixOperation>> {
        let mut links = vec![self.filter()?];
        while self.is_op("|") {
            links.push(self.filter()?);
        }
        Ok(links)
    }

    fn with(&mut self) -> Result<Statement> {
        let mut values = Vec::new();
        while *self.peek() != TokenKind::BlockEnd {
            if !values.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.single_target(false)?;
            self.expect_op("=")?;
            values.push((target, self.expression()?));
        }
        Ok(Statement::With(values, self.closed_body("endwith")?))
    }

    fn macro_statement(&mut self) -> Result<Statement> {
        let name = self.expect_name()?;
        let parameters = self.parameters()?;
        Ok(Statement::Macro(self.definition(name, parameters, "endmacro")?))
    }

    fn call(&mut self) -> Result<Statement> {
        let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
        let call = self.expression()?;
        match &call {
            Expression::Chain(_, links) if matches!(links.last(), Some(PostfixOperation::Call(_))) => {}
            _ => return Err(self.error("{% call %} needs the call of a macro")),
        }
        // Interned even if no macro mentions it, so that the evaluator can name the macro in
        // errors.
        let name = self.symbol("caller")?;
        Ok(Statement::Call(self.definition(name, parameters, "endcall")?, call))
    }

    /// Parses a macro's body and records the special names it mentions.
    fn definition(
        &mut self,
        name: Symbol,
        parameters: Vec<(Symbol, Option<Expression>)>,
        end: &'static str,
    ) -> Result<u32> {
        let outside = std::mem::take(&mut self.uses);
        // `break` in a macro cannot leave the loop that contains the definition.
        let in_loop = std::mem::replace(&mut self.in_loop, false);
        let body = self.closed_body(end)?;
        let uses = std::mem::replace(&mut self.uses, outside);
        // A macro inside a loop may read the variable `loop` of that loop.
        self.uses.looping |= uses.looping;
        // The body of `{% call %}` runs inside the surrounding macro, so that `caller` or `varargs`
        // in it may be that macro's.
        if end == "endcall" {
            self.uses = SpecialNames {
                varargs: outside.varargs | uses.varargs,
                kwargs: outside.kwargs | uses.kwargs,
                caller: outside.caller | uses.caller,
                looping: self.uses.looping,
            };
        }
        self.in_loop = in_loop;
        self.macros.push(MacroDefinition { name, parameters, body, uses });
        Ok(self.macros.len() as u32 - 1)
    }

    fn parameters(&mut self) -> Result<Vec<(Symbol, Option<Expression>)>> {
        self.expect_op("(")?;
        let mut parameters: Vec<(Symbol, Option<Expression>)> = Vec::new();
        while !self.skip_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.expect_name()?;
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(self.error("a parameter without a default follows one with a default"));
            }
            parameters.push((name, default));
        }
        Ok(parameters)
    }
}
