//! Expressions.

use super::Evaluator;
use crate::ast::{ArithmeticOperator, ComparisonOperator, Expression, PostfixOperation, Sign};
use crate::error::{Error, Result};
use crate::runtime::too_large;
use crate::text::{Builder, TemplateString};
use crate::value::{DictBuilder, SeqBuilder, SeqKind, UndefinedOrigin, Value};

impl<'a> Evaluator<'a> {
    /// Evaluates an expression. Each kind has its own `#[inline(never)]` function: every recursion
    /// passes through this one, so its frame must stay small.
    pub(super) fn expression(&mut self, expression: &'a Expression) -> Result<Value> {
        // Leaves do not nest, so they skip the depth count.
        match expression {
            Expression::Constant(at) => {
                self.runtime.meter.spend(1)?;
                return Ok(self.constants[*at as usize].clone());
            }
            Expression::Name(name) => return self.lookup(*name),
            _ => {}
        }
        self.runtime.enter()?;
        let value = match expression {
            // Returned above.
            Expression::Constant(_) | Expression::Name(_) => Value::None,
            Expression::Tuple(items) => self.sequence(items, SeqKind::Tuple)?,
            Expression::List(items) => self.sequence(items, SeqKind::List)?,
            Expression::Dict(entries) => self.dict(entries)?,
            Expression::Concat(operands) => self.concat(operands)?,
            Expression::And(operands) => self.first_with(operands, false)?,
            Expression::Or(operands) => self.first_with(operands, true)?,
            Expression::Not(odd, operand) => Value::Bool(self.is_true(operand)? != *odd),
            Expression::Arithmetic(first, rest) => self.arithmetic(first, rest)?,
            Expression::Compare(first, rest) => self.comparison(first, rest)?,
            Expression::Signs(signs, operand) => self.signs(signs, operand)?,
            Expression::Choose(choices, last) => self.choice(choices, last.as_deref())?,
            Expression::Chain(base, links) => self.chain(base, links)?,
        };
        // An error skips this, but it ends the rendering, so the depth is not used again.
        self.runtime.leave();
        Ok(value)
    }

    #[inline(never)]
    fn sequence(&mut self, expressions: &'a [Expression], kind: SeqKind) -> Result<Value> {
        let mut items = SeqBuilder::with_capacity(&self.runtime.meter, expressions.len())?;
        for expression in expressions {
            let value = self.expression(expression)?;
            items.push(value)?;
        }
        items.of_kind(kind)
    }

    #[inline(never)]
    fn dict(&mut self, expressions: &'a [(Expression, Expression)]) -> Result<Value> {
        let mut entries = DictBuilder::with_capacity(&self.runtime.meter, expressions.len())?;
        for (key, value) in expressions {
            let key = self.expression(key)?;
            let value = self.expression(value)?;
            entries.insert(key, value)?;
        }
        Ok(entries.finish())
    }

    #[inline(never)]
    fn concat(&mut self, operands: &'a [Expression]) -> Result<Value> {
        let mut builder = Builder::new(&self.runtime.meter)?;
        for operand in operands {
            let value = self.expression(operand)?;
            let text = self.runtime.to_text(&value)?;
            builder.text(&text)?;
        }
        Ok(Value::Str(builder.finish()))
    }

    /// Returns the first operand whose truth value is `wanted`, or the last one. `and` and `or`
    /// return operands, not booleans.
    #[inline(never)]
    fn first_with(&mut self, operands: &'a [Expression], wanted: bool) -> Result<Value> {
        let mut value = Value::None;
        for operand in operands {
            value = self.expression(operand)?;
            if value.is_true() == wanted {
                break;
            }
        }
        Ok(value)
    }

    #[inline(never)]
    fn arithmetic(
        &mut self,
        first: &'a Expression,
        rest: &'a [(ArithmeticOperator, Expression)],
    ) -> Result<Value> {
        let mut left = self.expression(first)?;
        for (op, operand) in rest {
            let right = self.expression(operand)?;
            left = self.runtime.operate(*op, &left, &right)?;
        }
        Ok(left)
    }

    #[inline(never)]
    fn comparison(
        &mut self,
        first: &'a Expression,
        rest: &'a [(ComparisonOperator, Expression)],
    ) -> Result<Value> {
        let mut left = self.expression(first)?;
        for (op, operand) in rest {
            // `a < b < c` evaluates b once and stops at the first pair that does not hold, as in
            // Python.
            let right = self.expression(operand)?;
            if !self.runtime.compares(*op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    #[inline(never)]
    fn signs(&mut self, signs: &'a [Sign], operand: &'a Expression) -> Result<Value> {
        let mut value = self.expression(operand)?;
        for sign in signs.iter().rev() {
            self.runtime.meter.spend(1)?;
            self.runtime.defined(&value)?;
            value = match (&value, sign) {
                (Value::Float(f), Sign::Minus) => Value::Float(-f),
                (Value::Float(_), Sign::Plus) => value,
                _ => match (value.as_int(), sign) {
                    // As in Python, a sign turns a boolean into an integer.
                    (Some(n), Sign::Plus) => Value::Int(n),
                    (Some(n), Sign::Minus) => Value::Int(n.checked_neg().ok_or_else(too_large)?),
                    (None, _) => {
                        let kind = value.type_name();
                        return Err(Error::value(format!("a value of type {kind} cannot have a sign")));
                    }
                },
            };
        }
        Ok(value)
    }

    #[inline(never)]
    fn choice(
        &mut self,
        choices: &'a [(Expression, Expression)],
        last: Option<&'a Expression>,
    ) -> Result<Value> {
        for (value, test) in choices {
            if self.is_true(test)? {
                return self.expression(value);
            }
        }
        match last {
            Some(value) => self.expression(value),
            // `a if b` without `else` is undefined in Jinja2.
            None => Ok(Value::Undefined(UndefinedOrigin::Element)),
        }
    }

    #[inline(never)]
    fn chain(&mut self, base: &'a Expression, links: &'a [PostfixOperation]) -> Result<Value> {
        let base = self.expression(base)?;
        self.links(base, links, None)
    }

    /// Applies postfix operations to a value. `caller` becomes a named argument of the last call.
    #[inline(never)]
    pub(super) fn links(
        &mut self,
        base: Value,
        links: &'a [PostfixOperation],
        mut caller: Option<Value>,
    ) -> Result<Value> {
        let mut value = base;
        let mut at = 0;
        while let Some(link) = links.get(at) {
            self.runtime.meter.spend(1)?;
            at += 1;
            let last = at == links.len();
            value = match link {
                PostfixOperation::Attribute(name) => self.runtime.attribute(&value, *name)?,
                PostfixOperation::Subscript(key) => {
                    let key = self.expression(key)?;
                    self.runtime.subscript(&value, &key)?
                }
                PostfixOperation::Slice(parts) => self.slice_link(&value, parts)?,
                PostfixOperation::Call(arguments) => {
                    let mut args = self.arguments(arguments)?;
                    if last && let Some(caller) = caller.take() {
                        let name = TemplateString::trusted(&self.runtime.meter, "caller")?;
                        // `{% call f(x).y() %}` passes the block to the last call of the chain
                        // only.
                        args.push_named(name, caller)?;
                    }
                    self.call(value, args)?
                }
                PostfixOperation::Filter(name, arguments) => {
                    let Some(filter) = self.builtins.filter(*name) else {
                        return Err(Error::unsupported(format!(
                            "unknown filter '{}'",
                            self.runtime.name(*name)
                        )));
                    };
                    let args = self.arguments(arguments)?;
                    filter(&mut self.runtime, value, args)?
                }
                PostfixOperation::Test(name, arguments, negated) => {
                    let Some(test) = self.builtins.test(*name) else {
                        return Err(Error::unsupported(format!(
                            "unknown test '{}'",
                            self.runtime.name(*name)
                        )));
                    };
                    let args = self.arguments(arguments)?;
                    Value::Bool(test(&mut self.runtime, &value, &args)? != *negated)
                }
            };
        }
        Ok(value)
    }

    #[inline(never)]
    fn slice_link(&mut self, value: &Value, parts: &'a [Option<Expression>; 3]) -> Result<Value> {
        let mut bounds = [None, None, None];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            if let Some(part) = part {
                let number = self.expression(part)?;
                *bound = match &number {
                    Value::None => None,
                    other => match other.as_int() {
                        Some(n) => Some(n),
                        None => {
                            self.runtime.defined(other)?;
                            return Err(Error::value("the bounds of a slice must be integers"));
                        }
                    },
                };
            }
        }
        self.runtime.slice(value, bounds)
    }
}
