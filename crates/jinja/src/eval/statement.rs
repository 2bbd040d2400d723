//! Statements.

use super::{BodyFlow, Evaluator};
use crate::ast::{AssignmentTarget, Expression, Node, PostfixOperation, Statement};
use crate::error::{Error, Result};
use crate::runtime::Args;
use crate::text::Builder;
use crate::value::{Macro, Value};
use std::ops::ControlFlow;

impl<'a> Evaluator<'a> {
    /// Renders the template.
    pub(crate) fn run(mut self) -> Result<Builder> {
        // The parser refuses `break` outside of loops, so the flow is always normal here.
        self.body(&self.program.body)?;
        Ok(self.outputs.swap_remove(0))
    }

    /// Runs statements in order until one breaks or continues the loop.
    pub(super) fn body(&mut self, nodes: &'a [Node]) -> Result<BodyFlow> {
        self.runtime.enter()?;
        let mut flow = BodyFlow::Normal;
        for node in nodes {
            flow = self.statement(&node.statement).map_err(|error| error.at(node.line))?;
            if flow != BodyFlow::Normal {
                break;
            }
        }
        self.runtime.leave();
        Ok(flow)
    }

    fn statement(&mut self, statement: &'a Statement) -> Result<BodyFlow> {
        self.runtime.meter.spend(1)?;
        match statement {
            Statement::Data(from, to) => {
                // Text of the template is never content.
                let text = &self.program.source[*from as usize..*to as usize];
                self.output().push(text, false)?;
            }
            Statement::Print(value) => self.print_statement(value)?,
            Statement::Set(target, value) => {
                let value = self.expression(value)?;
                self.store(target, value)?;
            }
            Statement::If(branches, otherwise) => return self.choose(branches, otherwise),
            // Statements that contain a body return its flow, so that `break` reaches the loop.
            Statement::SetBlock(target, filters, body) => return self.set_block(target, filters, body),
            Statement::For(index) => return self.for_statement(*index),
            Statement::Macro(index) => self.macro_statement(*index)?,
            Statement::Call(index, call) => self.call_statement(*index, call)?,
            Statement::FilterBlock(filters, body) => return self.filter_block(filters, body),
            Statement::With(values, body) => return self.with(values, body),
            Statement::Scope(body) => return self.scoped(body),
            Statement::Break => return Ok(BodyFlow::Break),
            Statement::Continue => return Ok(BodyFlow::Continue),
        }
        Ok(BodyFlow::Normal)
    }

    // As in `expression`: every nested body recurses through `statement`, so its frame must stay
    // small.
    #[inline(never)]
    fn print_statement(&mut self, value: &'a Expression) -> Result<()> {
        let value = self.expression(value)?;
        self.print(&value)
    }

    #[inline(never)]
    fn choose(&mut self, branches: &'a [(Expression, Vec<Node>)], otherwise: &'a [Node]) -> Result<BodyFlow> {
        for (test, body) in branches {
            if self.is_true(test)? {
                return self.body(body);
            }
        }
        if otherwise.is_empty() { Ok(BodyFlow::Normal) } else { self.body(otherwise) }
    }

    pub(super) fn is_true(&mut self, test: &'a Expression) -> Result<bool> {
        Ok(self.expression(test)?.is_true())
    }

    /// Runs a body in its own scope.
    #[inline(never)]
    fn scoped(&mut self, body: &'a [Node]) -> Result<BodyFlow> {
        self.push_scope(self.scopes.len() - 1)?;
        let flow = self.body(body)?;
        self.pop_scope();
        Ok(flow)
    }

    #[inline(never)]
    fn with(&mut self, values: &'a [(AssignmentTarget, Expression)], body: &'a [Node]) -> Result<BodyFlow> {
        // Evaluate all values before opening the scope: in `with a=1, b=a`, `a` is the outer one.
        // They are kept in an `Args`, which charges the meter for them.
        let mut args = Args::new(&self.runtime.meter)?;
        for (_, value) in values {
            let value = self.expression(value)?;
            args.push(value)?;
        }
        self.push_scope(self.scopes.len() - 1)?;
        for ((target, _), value) in values.iter().zip(args.positional) {
            self.store(target, value)?;
        }
        let flow = self.body(body)?;
        self.pop_scope();
        Ok(flow)
    }

    /// Captures the output of a body and applies filters to it. As in Jinja2, `break` and
    /// `continue` discard the captured text: the block neither prints nor assigns.
    #[inline(never)]
    fn filtered(
        &mut self,
        filters: &'a [PostfixOperation],
        body: &'a [Node],
    ) -> Result<ControlFlow<BodyFlow, Value>> {
        let mut flow = BodyFlow::Normal;
        let text = self.capture(|evaluator| {
            flow = evaluator.scoped(body)?;
            Ok(())
        })?;
        if flow != BodyFlow::Normal {
            return Ok(ControlFlow::Break(flow));
        }
        self.links(Value::Str(text), filters, None).map(ControlFlow::Continue)
    }

    #[inline(never)]
    fn filter_block(&mut self, filters: &'a [PostfixOperation], body: &'a [Node]) -> Result<BodyFlow> {
        match self.filtered(filters, body)? {
            ControlFlow::Continue(value) => self.print(&value).map(|()| BodyFlow::Normal),
            ControlFlow::Break(flow) => Ok(flow),
        }
    }

    #[inline(never)]
    fn set_block(
        &mut self,
        target: &'a AssignmentTarget,
        filters: &'a [PostfixOperation],
        body: &'a [Node],
    ) -> Result<BodyFlow> {
        match self.filtered(filters, body)? {
            ControlFlow::Continue(value) => self.store(target, value).map(|()| BodyFlow::Normal),
            ControlFlow::Break(flow) => Ok(flow),
        }
    }

    /// Creates the macro value, bound to the current scope.
    pub(super) fn macro_here(&self, definition: u32) -> Value {
        let scope = self.scopes.len() - 1;
        Value::Macro(Macro {
            definition,
            name: self.program.macros[definition as usize].name,
            scope: scope as u32,
            scope_id: self.scopes[scope].id,
        })
    }

    fn macro_statement(&mut self, index: u32) -> Result<()> {
        let name = self.program.macros[index as usize].name;
        self.assign(name, self.macro_here(index))
    }

    #[inline(never)]
    fn call_statement(&mut self, index: u32, call: &'a Expression) -> Result<()> {
        let caller = self.macro_here(index);
        // The parser has checked that the last link is a call; it receives the body as `caller`.
        let Expression::Chain(base, links) = call else {
            return Err(Error::value("the expression is not a call"));
        };
        let base = self.expression(base)?;
        let value = self.links(base, links, Some(caller))?;
        self.print(&value)
    }

    /// Assigns to a name, an attribute of a namespace, or a tuple of targets.
    pub(super) fn store(&mut self, target: &'a AssignmentTarget, value: Value) -> Result<()> {
        match target {
            AssignmentTarget::Name(name) => self.assign(*name, value),
            AssignmentTarget::Attribute(name, attribute) => match self.lookup(*name)? {
                Value::Namespace(space) => self.runtime.set_attribute(space, *attribute, value),
                other => {
                    self.runtime.defined(&other)?;
                    let kind = other.type_name();
                    Err(Error::value(format!("only attributes of a namespace can be set, not of a {kind}")))
                }
            },
            AssignmentTarget::Tuple(targets) => self.unpack(targets, &value),
        }
    }

    #[inline(never)]
    fn unpack(&mut self, targets: &'a [AssignmentTarget], value: &Value) -> Result<()> {
        self.runtime.defined(value)?;
        let items = value.iterate(&self.runtime.meter)?;
        let (found, wanted) = (items.items().len(), targets.len());
        // Python raises ValueError for too many and for too few values.
        if found != wanted {
            return Err(Error::value(format!("{found} values cannot be assigned to {wanted} names")));
        }
        for (target, item) in targets.iter().zip(items.items()) {
            self.store(target, item.clone())?;
        }
        Ok(())
    }
}
