//! Syntax tree of a template.
//!
//! Operators of equal precedence, successive filters, signs and `elif` branches are lists. Only
//! brackets and nested statements make the tree deeper. The parser bounds this depth, and thereby
//! every recursion over the tree, drop included.

use crate::symbols::{Symbol, Symbols};

/// A parsed template and the tables that its tree indexes.
pub(crate) struct Program {
    /// The source with `\n` line ends. [`Statement::Data`] indexes it.
    pub(crate) source: String,
    pub(crate) symbols: Symbols,
    pub(crate) constants: Vec<LiteralConstant>,
    pub(crate) macros: Vec<MacroDefinition>,
    pub(crate) loops: Vec<Loop>,
    pub(crate) body: Vec<Node>,
}

pub(crate) enum LiteralConstant {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Box<str>),
}

/// A statement and its line.
pub(crate) struct Node {
    pub(crate) line: u32,
    pub(crate) statement: Statement,
}

pub(crate) enum Statement {
    /// Byte range of the source, printed verbatim.
    Data(u32, u32),
    Print(Expression),
    Set(AssignmentTarget, Expression),
    /// `{% set x | filters %}…{% endset %}`.
    SetBlock(AssignmentTarget, Vec<PostfixOperation>, Vec<Node>),
    /// The `if` and `elif` branches, then the `else` body.
    If(Vec<(Expression, Vec<Node>)>, Vec<Node>),
    /// An index into [`Program::loops`].
    For(u32),
    /// An index into [`Program::macros`].
    Macro(u32),
    /// `{% call %}`: the macro made from the body, and the call that receives it as `caller`.
    Call(u32, Expression),
    FilterBlock(Vec<PostfixOperation>, Vec<Node>),
    With(Vec<(AssignmentTarget, Expression)>, Vec<Node>),
    /// `block` and `generation`: a body with its own scope.
    Scope(Vec<Node>),
    Break,
    Continue,
}

/// Target of an assignment.
pub(crate) enum AssignmentTarget {
    Name(Symbol),
    /// `namespace.attribute`.
    Attribute(Symbol, Symbol),
    Tuple(Vec<AssignmentTarget>),
}

pub(crate) struct Loop {
    pub(crate) target: AssignmentTarget,
    pub(crate) over: Expression,
    pub(crate) condition: Option<Expression>,
    pub(crate) body: Vec<Node>,
    pub(crate) otherwise: Vec<Node>,
    pub(crate) recursive: bool,
    /// Whether the body mentions `loop`. Then the condition must be evaluated for all elements
    /// first, because `loop.length` and `loop.last` count only elements that pass.
    pub(crate) uses_loop: bool,
}

pub(crate) struct MacroDefinition {
    pub(crate) name: Symbol,
    pub(crate) parameters: Vec<(Symbol, Option<Expression>)>,
    pub(crate) body: Vec<Node>,
    /// Which of `varargs`, `kwargs` and `caller` the body mentions. As in Jinja2, a macro accepts
    /// surplus arguments only if it mentions the name.
    pub(crate) uses: SpecialNames,
}

/// Special names that a body mentions.
#[derive(Clone, Copy, Default)]
pub(crate) struct SpecialNames {
    pub(crate) varargs: bool,
    pub(crate) kwargs: bool,
    pub(crate) caller: bool,
    pub(crate) looping: bool,
}

pub(crate) enum Expression {
    Constant(u32),
    Name(Symbol),
    Tuple(Vec<Expression>),
    List(Vec<Expression>),
    Dict(Vec<(Expression, Expression)>),
    /// `a ~ b ~ c`.
    Concat(Vec<Expression>),
    And(Vec<Expression>),
    Or(Vec<Expression>),
    /// `not` applied an odd (true) or even number of times.
    Not(bool, Box<Expression>),
    /// Left-associative.
    Arithmetic(Box<Expression>, Vec<(ArithmeticOperator, Expression)>),
    /// A chained comparison as in Python: `1 < x < 3` holds if both pairs do.
    Compare(Box<Expression>, Vec<(ComparisonOperator, Expression)>),
    /// Unary signs, the innermost last.
    Signs(Vec<Sign>, Box<Expression>),
    /// `a if b else c if d else e`: pairs of value and condition, then the final alternative.
    Choose(Vec<(Expression, Expression)>, Option<Box<Expression>>),
    /// A value and its postfix operations.
    Chain(Box<Expression>, Vec<PostfixOperation>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    Plus,
    Minus,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArithmeticOperator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComparisonOperator {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// An operation that follows a value.
pub(crate) enum PostfixOperation {
    Attribute(Symbol),
    Subscript(Expression),
    Slice(Box<[Option<Expression>; 3]>),
    Call(ArgumentList),
    Filter(Symbol, ArgumentList),
    /// Test, arguments, and whether it is negated (`is not`).
    Test(Symbol, ArgumentList, bool),
}

#[derive(Default)]
pub(crate) struct ArgumentList {
    pub(crate) positional: Vec<Expression>,
    /// Index of the name in [`Program::constants`], and the value.
    pub(crate) named: Vec<(u32, Expression)>,
    /// `*list`.
    pub(crate) spread: Option<Box<Expression>>,
    /// `**dict`.
    pub(crate) spread_named: Option<Box<Expression>>,
}
