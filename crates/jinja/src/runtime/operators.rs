//! Arithmetic and comparison operators, with Python's rules.

use super::Runtime;
use super::percent::percent;
use crate::ast::{ArithmeticOperator, ComparisonOperator};
use crate::error::{Error, Result};
use crate::text::Builder;
use crate::value::{Seq, SeqBuilder, SeqKind, Value, compare, contains, equal};
use std::cmp::Ordering;
use std::rc::Rc;

pub(crate) fn too_large() -> Error {
    Error::value("an integer is larger than 127 bits")
}

impl Runtime<'_> {
    /// Evaluates a comparison.
    pub(crate) fn compares(&self, op: ComparisonOperator, left: &Value, right: &Value) -> Result<bool> {
        // Undefined values compare equal to each other in Jinja2, but have no order.
        let order = |runtime: &Self| {
            runtime.defined(left)?;
            runtime.defined(right)?;
            compare(&runtime.meter, left, right)
        };
        Ok(match op {
            ComparisonOperator::Eq => equal(&self.meter, left, right)?,
            ComparisonOperator::Ne => !equal(&self.meter, left, right)?,
            ComparisonOperator::In => contains(&self.meter, right, left)?,
            ComparisonOperator::NotIn => !contains(&self.meter, right, left)?,
            ComparisonOperator::Lt => order(self)? == Some(Ordering::Less),
            ComparisonOperator::Le => matches!(order(self)?, Some(Ordering::Less | Ordering::Equal)),
            ComparisonOperator::Gt => order(self)? == Some(Ordering::Greater),
            ComparisonOperator::Ge => matches!(order(self)?, Some(Ordering::Greater | Ordering::Equal)),
        })
    }

    /// `left op right`.
    pub(crate) fn operate(&mut self, op: ArithmeticOperator, left: &Value, right: &Value) -> Result<Value> {
        self.meter.spend(1)?;
        // String formatting accepts undefined values, so it precedes the checks below.
        if op == ArithmeticOperator::Rem
            && let Value::Str(format) = left
        {
            return Ok(Value::Str(percent(self, format, right)?));
        }
        self.defined(left)?;
        self.defined(right)?;
        match (op, left, right) {
            (ArithmeticOperator::Add, Value::Str(a), Value::Str(b)) => {
                let mut builder = Builder::with_capacity(&self.meter, a.len() + b.len())?;
                builder.text(a)?;
                builder.text(b)?;
                Ok(Value::Str(builder.finish()))
            }
            (ArithmeticOperator::Add, Value::Seq(a), Value::Seq(b)) if joinable(a, b) => {
                let mut items = SeqBuilder::with_capacity(&self.meter, a.items().len() + b.items().len())?;
                for item in a.items().iter().chain(b.items()) {
                    items.push(item.clone())?;
                }
                items.of_kind(a.kind)
            }
            (ArithmeticOperator::Mul, value, times) | (ArithmeticOperator::Mul, times, value)
                if matches!(value, Value::Str(_) | Value::Seq(_)) && times.as_int().is_some() =>
            {
                self.repeat(value, times.as_int().unwrap_or(0))
            }
            _ => number(op, left, right),
        }
    }

    /// `value * times` for a string or list.
    fn repeat(&self, value: &Value, times: i128) -> Result<Value> {
        // A larger count than usize holds is as impossible as usize::MAX: both exceed the memory
        // limit.
        let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
        match value {
            Value::Str(text) => {
                let mut builder = Builder::with_capacity(&self.meter, text.len().saturating_mul(times))?;
                // Nothing would be charged for repeating an empty string 2^63 times.
                let times = if text.is_empty() { 0 } else { times };
                builder.repeat(text, times)?;
                Ok(Value::Str(builder.finish()))
            }
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
                let times = if seq.items().is_empty() { 0 } else { times };
                let count = seq.items().len().saturating_mul(times);
                let mut items = SeqBuilder::with_capacity(&self.meter, count)?;
                for _ in 0..times {
                    for item in seq.items() {
                        items.push(item.clone())?;
                    }
                }
                items.of_kind(seq.kind)
            }
            other => Err(Error::value(format!("a value of type {} cannot be repeated", other.type_name()))),
        }
    }
}

fn joinable(a: &Rc<Seq>, b: &Rc<Seq>) -> bool {
    a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple)
}

fn number(op: ArithmeticOperator, left: &Value, right: &Value) -> Result<Value> {
    if let (Some(a), Some(b)) = (left.as_int(), right.as_int())
        // `/` always returns a float, and so does a negative power.
        && !(op == ArithmeticOperator::Div || (op == ArithmeticOperator::Pow && b < 0))
    {
        return integer(op, a, b);
    }
    let (Some(a), Some(b)) = (left.as_float(), right.as_float()) else {
        let name = match op {
            ArithmeticOperator::Add => "+",
            ArithmeticOperator::Sub => "-",
            ArithmeticOperator::Mul => "*",
            ArithmeticOperator::Div => "/",
            ArithmeticOperator::FloorDiv => "//",
            ArithmeticOperator::Rem => "%",
            ArithmeticOperator::Pow => "**",
        };
        return Err(Error::value(format!(
            "{name} does not support values of types {} and {}",
            left.type_name(),
            right.type_name()
        )));
    };
    if b == 0.0
        && matches!(op, ArithmeticOperator::Div | ArithmeticOperator::FloorDiv | ArithmeticOperator::Rem)
    {
        return Err(Error::value("division by zero"));
    }
    if op == ArithmeticOperator::Pow && a == 0.0 && b < 0.0 {
        return Err(Error::value("0 cannot be raised to a negative power"));
    }
    Ok(Value::Float(match op {
        ArithmeticOperator::Add => a + b,
        ArithmeticOperator::Sub => a - b,
        ArithmeticOperator::Mul => a * b,
        ArithmeticOperator::Div => a / b,
        ArithmeticOperator::FloorDiv => (a / b).floor(),
        ArithmeticOperator::Rem => {
            // Python's remainder has the sign of the divisor, Rust's that of the dividend.
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        }
        ArithmeticOperator::Pow => a.powf(b),
    }))
}

fn integer(op: ArithmeticOperator, a: i128, b: i128) -> Result<Value> {
    if b == 0 && matches!(op, ArithmeticOperator::FloorDiv | ArithmeticOperator::Rem) {
        return Err(Error::value("division by zero"));
    }
    let result = match op {
        ArithmeticOperator::Add => a.checked_add(b),
        ArithmeticOperator::Sub => a.checked_sub(b),
        ArithmeticOperator::Mul => a.checked_mul(b),
        // `/` does not arrive here: `number` computes it in floats.
        ArithmeticOperator::FloorDiv | ArithmeticOperator::Div => {
            let quotient = a.checked_div(b);
            // Python rounds `//` toward negative infinity, Rust toward zero.
            let exact = a.checked_rem(b) == Some(0) || (a < 0) == (b < 0);
            quotient.map(|q| if exact { q } else { q - 1 })
        }
        ArithmeticOperator::Rem => {
            a.checked_rem(b).map(|rest| if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
        }
        ArithmeticOperator::Pow => match (a, u32::try_from(b)) {
            // 0, 1 and -1 allow any exponent. With every other base, one beyond u32 overflows.
            (0 | 1, _) if b > 0 => Some(a),
            (-1, _) => Some(if b % 2 == 0 { 1 } else { -1 }),
            (_, Ok(exponent)) => a.checked_pow(exponent),
            _ => None,
        },
    };
    result.map(Value::Int).ok_or_else(too_large)
}
