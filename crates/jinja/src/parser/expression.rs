//! Operator precedence parser.

use super::Parser;
use crate::ast::{ArithmeticOperator, ComparisonOperator, Expression, Sign};
use crate::error::Result;
use crate::lexer::TokenKind;

/// Precedence levels, loosest first. As in Jinja2's parser, `~` binds tighter than `+`: `1 + 2 ~ 3`
/// adds 1 and "23", which is an error.
const OR: u8 = 0;
const AND: u8 = 1;
const NOT: u8 = 2;
const COMPARE: u8 = 3;
const SUM: u8 = 4;
const CONCAT: u8 = 5;
const PRODUCT: u8 = 6;
const POWER: u8 = 7;

/// A binary operator.
#[derive(Clone, Copy)]
enum Operator {
    Or,
    And,
    Compare(ComparisonOperator),
    Arithmetic(ArithmeticOperator),
    Concat,
}

impl Parser<'_> {
    /// Parses an expression that is not an unparenthesized tuple.
    pub(super) fn expression(&mut self) -> Result<Expression> {
        self.nested(|p| {
            let first = p.without_condition()?;
            p.condition(first)
        })
    }

    /// Parses an expression without a trailing `if`, which in `for x in xs if y` belongs to the
    /// statement.
    pub(super) fn without_condition(&mut self) -> Result<Expression> {
        self.operation(OR)
    }

    /// Parses `if b else c if d else e` after the value `first`.
    fn condition(&mut self, first: Expression) -> Result<Expression> {
        let mut choices = Vec::new();
        let mut value = first;
        loop {
            if !self.skip_name("if") {
                break;
            }
            let test = self.without_condition()?;
            choices.push((value, test));
            if !self.skip_name("else") {
                if self.is_name("if") {
                    return Err(self.error("a second \"if\" needs the \"else\" of the first"));
                }
                return Ok(Expression::Choose(choices, None));
            }
            value = self.without_condition()?;
        }
        if choices.is_empty() {
            return Ok(value);
        }
        Ok(Expression::Choose(choices, Some(Box::new(value))))
    }

    /// Parses operators of `level` and of tighter levels.
    fn operation(&mut self, level: u8) -> Result<Expression> {
        self.nested(|p| {
            // `not` binds more loosely than comparisons, so `1 + not x` is an error, as in Python.
            let mut left = if level <= NOT && p.is_name("not") { p.negation()? } else { p.signed(true)? };
            // Each operand has consumed the operators that bind tighter than its own, so `found`
            // only decreases in this loop.
            while let Some((operator, found)) = p.operator()
                && found >= level
            {
                left = p.operands(left, operator, found)?;
            }
            Ok(left)
        })
    }

    fn negation(&mut self) -> Result<Expression> {
        let mut odd = false;
        while self.skip_name("not") {
            odd = !odd;
        }
        // Counting the operators keeps `not not not …` from recursing.
        let operand = self.operation(COMPARE)?;
        Ok(Expression::Not(odd, Box::new(operand)))
    }

    /// Collects all operands of one level; `left` is the first.
    fn operands(&mut self, left: Expression, operator: Operator, level: u8) -> Result<Expression> {
        Ok(match operator {
            Operator::Or => Expression::Or(self.same(left, level)?),
            Operator::And => Expression::And(self.same(left, level)?),
            Operator::Concat => Expression::Concat(self.same(left, level)?),
            Operator::Compare(_) => {
                let mut rest = Vec::new();
                while let Some((Operator::Compare(comparison), _)) = self.operator() {
                    self.advance();
                    // `not in` is two tokens.
                    if comparison == ComparisonOperator::NotIn {
                        self.advance();
                    }
                    rest.push((comparison, self.operation(level + 1)?));
                }
                Expression::Compare(Box::new(left), rest)
            }
            Operator::Arithmetic(_) => {
                let mut rest = Vec::new();
                while let Some((Operator::Arithmetic(op), found)) = self.operator()
                    && found == level
                {
                    self.advance();
                    // As in Jinja2's parse_pow, both sides are unary expressions and `**` is
                    // left-associative: `2 ** 3 ** 2` is 64, not Python's 512.
                    let right = if level == POWER { self.signed(true)? } else { self.operation(level + 1)? };
                    rest.push((op, right));
                }
                Expression::Arithmetic(Box::new(left), rest)
            }
        })
    }

    fn same(&mut self, left: Expression, level: u8) -> Result<Vec<Expression>> {
        let mut operands = vec![left];
        while self.operator().is_some_and(|(_, found)| found == level) {
            self.advance();
            operands.push(self.operation(level + 1)?);
        }
        Ok(operands)
    }

    /// The next operator and its level.
    fn operator(&self) -> Option<(Operator, u8)> {
        use Operator::Compare;
        let arithmetic = |op, level| (Operator::Arithmetic(op), level);
        Some(match self.peek() {
            TokenKind::Op(op) => match *op {
                "+" => arithmetic(ArithmeticOperator::Add, SUM),
                "-" => arithmetic(ArithmeticOperator::Sub, SUM),
                "~" => (Operator::Concat, CONCAT),
                "*" => arithmetic(ArithmeticOperator::Mul, PRODUCT),
                "/" => arithmetic(ArithmeticOperator::Div, PRODUCT),
                "//" => arithmetic(ArithmeticOperator::FloorDiv, PRODUCT),
                "%" => arithmetic(ArithmeticOperator::Rem, PRODUCT),
                "**" => arithmetic(ArithmeticOperator::Pow, POWER),
                "==" => (Compare(ComparisonOperator::Eq), COMPARE),
                "!=" => (Compare(ComparisonOperator::Ne), COMPARE),
                "<" => (Compare(ComparisonOperator::Lt), COMPARE),
                "<=" => (Compare(ComparisonOperator::Le), COMPARE),
                ">" => (Compare(ComparisonOperator::Gt), COMPARE),
                ">=" => (Compare(ComparisonOperator::Ge), COMPARE),
                _ => return None,
            },
            TokenKind::Name(..) => match self.name_at(0)? {
                "or" => (Operator::Or, OR),
                "and" => (Operator::And, AND),
                "in" => (Compare(ComparisonOperator::In), COMPARE),
                "not" if self.name_at(1) == Some("in") => (Compare(ComparisonOperator::NotIn), COMPARE),
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Parses a value with signs and postfix operations, and with filters and tests if `filters`.
    fn signed(&mut self, filters: bool) -> Result<Expression> {
        let mut signs = Vec::new();
        loop {
            if self.skip_op("-") {
                signs.push(Sign::Minus);
            } else if self.skip_op("+") {
                signs.push(Sign::Plus);
            } else {
                break;
            }
        }
        let value = self.primary()?;
        let mut links = Vec::new();
        self.postfix(&mut links)?;
        if signs.is_empty() {
            if filters {
                self.filters(&mut links)?;
            }
            return Ok(chain(value, links));
        }
        // Filters apply to the signed value, attributes to the bare one: `-5|abs` is 5 (Jinja2's
        // parse_unary).
        let value = Expression::Signs(signs, Box::new(chain(value, links)));
        let mut links = Vec::new();
        if filters {
            self.filters(&mut links)?;
        }
        Ok(chain(value, links))
    }
}

fn chain(value: Expression, links: Vec<crate::ast::PostfixOperation>) -> Expression {
    if links.is_empty() { value } else { Expression::Chain(Box::new(value), links) }
}
