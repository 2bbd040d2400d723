//! Grammar over lexemes: regular parts that the lexer matches, and rules over them.

use super::expr::{Expr, GbnfRules};
use std::collections::HashMap;

/// A node of a rule.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Lexeme(usize),
    Token(String),
    Rule(usize),
    Sequence(Vec<Node>),
    Choice(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A regular part with all rules inlined.
#[derive(Debug)]
pub(super) struct Lexeme {
    pub(super) expr: Expr,
    /// Its replacement, once it is split.
    pub(super) parts: Option<Node>,
}

/// A grammar over lexemes.
#[derive(Debug)]
pub(super) struct LexemeGrammar {
    pub(super) rules: Vec<Node>,
    pub(super) root: usize,
    pub(super) lexemes: Vec<Lexeme>,
    /// Lexemes by expression: equal ones are shared, so that the lexer distinguishes fewer.
    known: HashMap<Expr, usize>,
}

/// Maximum size of a lexeme's expression, in nodes and levels.
const MAX_NODES: usize = 20_000;
const MAX_LEVELS: usize = 100;

impl LexemeGrammar {
    /// Creates the grammar with each maximal regular part as one lexeme.
    pub(super) fn new(rules: &GbnfRules) -> LexemeGrammar {
        let regular = regular_rules(rules);
        let mut grammar =
            LexemeGrammar { rules: Vec::new(), root: rules.root, lexemes: Vec::new(), known: HashMap::new() };
        for rule in &rules.rules {
            let node = grammar.lower(&rule.body, rules, &regular);
            grammar.rules.push(node);
        }
        grammar
    }

    /// Returns the lexeme of an expression, or an empty sequence if it matches only the empty text.
    fn lexeme(&mut self, expr: Expr) -> Node {
        if is_empty(&expr) {
            return Node::Sequence(Vec::new());
        }
        if let Some(known) = self.known.get(&expr) {
            return Node::Lexeme(*known);
        }
        self.lexemes.push(Lexeme { expr: expr.clone(), parts: None });
        self.known.insert(expr, self.lexemes.len() - 1);
        Node::Lexeme(self.lexemes.len() - 1)
    }

    fn lower(&mut self, expr: &Expr, rules: &GbnfRules, regular: &[Option<ExpressionCost>]) -> Node {
        if cost(expr, regular).is_some() {
            let expr = inlined(expr, rules);
            return self.lexeme(expr);
        }
        match expr {
            Expr::Rule(rule) => Node::Rule(*rule),
            Expr::Token(name) => Node::Token(name.clone()),
            Expr::Repeat(inner, low, high) => {
                Node::Repeat(Box::new(self.lower(inner, rules, regular)), *low, *high)
            }
            Expr::Sequence(parts) => {
                // Adjacent regular parts form one regular part, up to the maximum size.
                let (mut nodes, mut run, mut run_nodes) = (Vec::new(), Vec::new(), 0);
                for part in parts {
                    let of_part = cost(part, regular).map(|cost| cost.nodes);
                    let fits = of_part.is_some_and(|nodes| run_nodes + nodes < MAX_NODES);
                    if !fits && !run.is_empty() {
                        nodes.push(self.lexeme(Expr::Sequence(std::mem::take(&mut run))));
                        run_nodes = 0;
                    }
                    match of_part {
                        Some(of_part) => {
                            run.push(inlined(part, rules));
                            run_nodes += of_part;
                        }
                        None => nodes.push(self.lower(part, rules, regular)),
                    }
                }
                if !run.is_empty() {
                    nodes.push(self.lexeme(Expr::Sequence(run)));
                }
                Node::Sequence(nodes)
            }
            Expr::Choice(parts) => {
                Node::Choice(parts.iter().map(|part| self.lower(part, rules, regular)).collect())
            }
            Expr::Class(_) => self.lexeme(expr.clone()),
        }
    }

    /// Splits a lexeme into its parts. Returns false for a single character.
    pub(super) fn split(&mut self, lexeme: usize) -> bool {
        let node = match self.lexemes[lexeme].expr.clone() {
            Expr::Sequence(parts) => {
                Node::Sequence(parts.into_iter().map(|part| self.lexeme(part)).collect())
            }
            Expr::Choice(parts) => Node::Choice(parts.into_iter().map(|part| self.lexeme(part)).collect()),
            Expr::Repeat(inner, low, high) => Node::Repeat(Box::new(self.lexeme(*inner)), low, high),
            Expr::Class(_) | Expr::Rule(_) | Expr::Token(_) => return false,
        };
        self.lexemes[lexeme].parts = Some(node);
        true
    }
}

/// Size of an expression with all rules inlined.
#[derive(Clone, Copy)]
struct ExpressionCost {
    nodes: usize,
    levels: usize,
}

/// Size of an expression if it is regular and small enough for one lexeme.
fn cost(expr: &Expr, regular: &[Option<ExpressionCost>]) -> Option<ExpressionCost> {
    let cost_of = |parts: &[Expr]| {
        let mut all = ExpressionCost { nodes: 1, levels: 0 };
        for part in parts {
            let of_part = cost(part, regular)?;
            // Saturating: rules that use each other twice grow exponentially when inlined.
            all.nodes = all.nodes.saturating_add(of_part.nodes);
            all.levels = all.levels.max(of_part.levels);
        }
        Some(ExpressionCost { levels: all.levels + 1, ..all })
    };
    let cost = match expr {
        Expr::Class(_) => ExpressionCost { nodes: 1, levels: 1 },
        Expr::Sequence(parts) | Expr::Choice(parts) => cost_of(parts)?,
        Expr::Repeat(inner, _, _) => cost_of(std::slice::from_ref(&**inner))?,
        Expr::Rule(rule) => regular[*rule]?,
        Expr::Token(_) => return None,
    };
    (cost.nodes <= MAX_NODES && cost.levels <= MAX_LEVELS).then_some(cost)
}

/// Sizes of the regular rules: those that do not reach a recursive rule.
fn regular_rules(rules: &GbnfRules) -> Vec<Option<ExpressionCost>> {
    let count = rules.rules.len();
    let (mut users, mut open) = (vec![Vec::new(); count], vec![0_usize; count]);
    for (rule, of) in rules.rules.iter().enumerate() {
        let mut uses = Vec::new();
        collect_rules(&of.body, &mut uses);
        uses.sort_unstable();
        uses.dedup();
        open[rule] = uses.len();
        uses.into_iter().for_each(|used| users[used].push(rule));
    }
    let mut regular = vec![None; count];
    // Topological order (Kahn): rules on a cycle never become ready.
    let mut ready: Vec<usize> = (0..count).filter(|rule| open[*rule] == 0).collect();
    while let Some(rule) = ready.pop() {
        regular[rule] = cost(&rules.rules[rule].body, &regular);
        for user in &users[rule] {
            open[*user] -= 1;
            if open[*user] == 0 {
                ready.push(*user);
            }
        }
    }
    regular
}

fn collect_rules(expr: &Expr, into: &mut Vec<usize>) {
    match expr {
        Expr::Rule(rule) => into.push(*rule),
        Expr::Sequence(parts) | Expr::Choice(parts) => {
            parts.iter().for_each(|part| collect_rules(part, into))
        }
        Expr::Repeat(inner, _, _) => collect_rules(inner, into),
        Expr::Class(_) | Expr::Token(_) => {}
    }
}

/// Inlines the rules of a regular expression.
fn inlined(expr: &Expr, rules: &GbnfRules) -> Expr {
    let all = |parts: &[Expr]| parts.iter().map(|part| inlined(part, rules)).collect();
    match expr {
        Expr::Rule(rule) => inlined(&rules.rules[*rule].body, rules),
        Expr::Sequence(parts) => Expr::Sequence(all(parts)),
        Expr::Choice(parts) => Expr::Choice(all(parts)),
        Expr::Repeat(inner, low, high) => Expr::Repeat(Box::new(inlined(inner, rules)), *low, *high),
        Expr::Class(_) | Expr::Token(_) => expr.clone(),
    }
}

/// Whether an expression matches only the empty text.
fn is_empty(expr: &Expr) -> bool {
    match expr {
        Expr::Sequence(parts) | Expr::Choice(parts) => parts.iter().all(is_empty),
        Expr::Repeat(inner, _, _) => is_empty(inner),
        Expr::Class(_) | Expr::Rule(_) | Expr::Token(_) => false,
    }
}
