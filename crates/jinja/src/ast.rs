//! A parsed template.
//!
//! Operators of one level, filters one after the other, signs and `elif` are lists, so that only brackets and nested
//! statements make the tree deeper. The parser bounds that depth, and with it every recursion over the tree.

use crate::symbols::{Symbol, Symbols};

/// A template with everything that its tree refers to.
pub(crate) struct Program {
    /// The source with `\n` as the only line end; [`Statement::Data`] refers to it.
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
    /// Source bytes that are printed as they are.
    Data(u32, u32),
    Print(Expression),
    Set(AssignmentTarget, Expression),
    /// `{% set x | filters %}…{% endset %}`.
    SetBlock(AssignmentTarget, Vec<PostfixOperation>, Vec<Node>),
    /// Branches in their order, then `else`.
    If(Vec<(Expression, Vec<Node>)>, Vec<Node>),
    /// An index into [`Program::loops`].
    For(u32),
    /// An index into [`Program::macros`].
    Macro(u32),
    /// The macro that is the body, and the call that gets it as `caller`.
    Call(u32, Expression),
    FilterBlock(Vec<PostfixOperation>, Vec<Node>),
    With(Vec<(AssignmentTarget, Expression)>, Vec<Node>),
    /// `block` and `generation`: a body with names of its own.
    Scope(Vec<Node>),
    Break,
    Continue,
}

/// What an assignment stores to.
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
    /// Whether the body mentions `loop`, which needs to know the elements that the condition lets through.
    pub(crate) uses_loop: bool,
}

pub(crate) struct MacroDefinition {
    pub(crate) name: Symbol,
    pub(crate) parameters: Vec<(Symbol, Option<Expression>)>,
    pub(crate) body: Vec<Node>,
    /// Whether the body mentions `varargs`, `kwargs`, `caller`: only then does it take them.
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
    /// An odd or even number of `not`.
    Not(bool, Box<Expression>),
    /// Left to right.
    Arithmetic(Box<Expression>, Vec<(ArithmeticOperator, Expression)>),
    /// A chain as Python has it: each pair must hold.
    Compare(Box<Expression>, Vec<(ComparisonOperator, Expression)>),
    /// Signs before a value, the innermost last.
    Signs(Vec<Sign>, Box<Expression>),
    /// `a if b else c if d else e`: values with their conditions, then the last alternative.
    Choose(Vec<(Expression, Expression)>, Option<Box<Expression>>),
    /// What follows a value: attributes, subscripts, calls, filters, tests.
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

/// One thing that follows a value.
pub(crate) enum PostfixOperation {
    Attribute(Symbol),
    Subscript(Expression),
    Slice(Box<[Option<Expression>; 3]>),
    Call(ArgumentList),
    Filter(Symbol, ArgumentList),
    /// Negated if so marked.
    Test(Symbol, ArgumentList, bool),
}

#[derive(Default)]
pub(crate) struct ArgumentList {
    pub(crate) positional: Vec<Expression>,
    pub(crate) named: Vec<(u32, Expression)>,
    /// `*list`.
    pub(crate) spread: Option<Box<Expression>>,
    /// `**dict`.
    pub(crate) spread_named: Option<Box<Expression>>,
}
