//! Cost bound of lexemes that intersect patterns, computed before llguidance compiles them.
//!
//! llguidance counts its work as fuel, but in two places too late. The derivative of an
//! intersection is a cross product of the derivatives of its operands, and fuel is checked only
//! after it is built. The first transitions of a lexer have no fuel limit at all. [`check`] bounds
//! the cross products from the expressions alone, then computes the first transitions with a
//! limit.
//!
//! The derivatives are Brzozowski's, in their symbolic form: a state maps sets of bytes to
//! expressions (crate derivre).

use crate::error::GrammarError;
use crate::limits::Budget;
use llguidance::api::ParserLimits;
use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{ExprRef, HashMap};
use llguidance::earley::lexerspec::LexerSpec;
use std::rc::Rc;

/// Maximum number of derivative pairs that one step of a lexer may intersect. Pairs that are only
/// compared count a sixteenth.
pub(crate) const MAX_PAIRS: u64 = 500_000;

/// Comparisons that cost as much as one intersected pair. A comparison takes a sixteenth of the
/// time and no memory.
const COMPARED: u64 = 16;

/// Maximum number of literals that are read byte by byte. For further ones, any byte is assumed.
const LITERALS: usize = 100;

/// Maximum length of such a literal.
const LITERAL_BYTES: usize = 64;

/// Maximum number of expressions visited per grammar.
const MAX_VISITS: usize = 4_000_000;

/// Fuel for checking that lexemes with intersections can match, for the first transitions of a
/// lexer, and for precomputed transitions. It is a quarter of llguidance's default, because a unit
/// of an intersection costs up to ten times as much as others.
const FUEL: u64 = 250_000;

/// Assumed number of derivatives of one intersection that are alive in a repetition.
const REPEATED: u64 = 64;

/// Values of derivre's `ExprTag`, whose type is not exported. The test
/// `tags_are_those_of_the_library` checks them.
mod tag {
    pub(super) const BYTE: u8 = 3;
    pub(super) const BYTE_SET: u8 = 4;
    pub(super) const BYTE_CONCAT: u8 = 5;
    pub(super) const REMAINDER: u8 = 6;
    pub(super) const NOT: u8 = 8;
    pub(super) const REPEAT: u8 = 9;
    pub(super) const CONCAT: u8 = 10;
    pub(super) const OR: u8 = 11;
    pub(super) const AND: u8 = 12;
}

/// Upper bound of the derivatives of an expression in one state: pairs of a byte set and the
/// expression that follows.
#[derive(Clone)]
pub(crate) struct DerivativeSpread {
    pairs: u64,
    /// For each byte, the number of sets that contain it.
    overlap: [u64; 256],
    /// For each byte, a hash of the sets that contain it. Bytes with equal hashes take the same
    /// transitions.
    class: [u64; 256],
}

impl DerivativeSpread {
    fn none() -> DerivativeSpread {
        DerivativeSpread { pairs: 0, overlap: [0; 256], class: [0; 256] }
    }

    fn add_set(&mut self, holds: impl Fn(u8) -> bool, id: u64) {
        self.pairs += 1;
        for byte in (0..=255).filter(|byte| holds(*byte)) {
            self.overlap[usize::from(byte)] += 1;
            // A sum is independent of the order in which sets are added.
            self.class[usize::from(byte)] = self.class[usize::from(byte)].wrapping_add(mix(id));
        }
    }

    /// Adds pairs whose sets are unknown; up to `overlap` of them contain the same byte.
    fn add_any(&mut self, pairs: u64, overlap: u64) {
        self.pairs = self.pairs.saturating_add(pairs);
        for byte in 0..256 {
            self.overlap[byte] = self.overlap[byte].saturating_add(overlap);
            // The sets are unknown, so assume that every byte is a class of its own.
            self.class[byte] = self.class[byte].wrapping_add(mix(byte as u64));
        }
    }
}

// Constants of SplitMix64.
fn mix(value: u64) -> u64 {
    let mixed =
        (value ^ (value >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

/// Cost of an intersection in pairs.
pub(crate) fn cost(operands: &[Rc<DerivativeSpread>]) -> u64 {
    // An operand with a single pair does not multiply the others.
    let several: Vec<_> = operands.iter().filter(|operand| operand.pairs > 1).cloned().collect();
    let (tuples, compared) = match several.as_slice() {
        [] => (1, 1),
        [one] => (one.pairs, one.pairs),
        several => product(several),
    };
    tuples.max(compared / COMPARED)
}

/// Number of pairs of an intersection, and of pairs compared to find them.
fn product(operands: &[Rc<DerivativeSpread>]) -> (u64, u64) {
    let largest = operands.iter().map(|operand| operand.pairs).max().unwrap_or(0).max(1);
    // Saturating here and below: products of hostile operands exceed u64, and the saturated value
    // is above every limit.
    let whole = operands.iter().fold(1_u64, |product, operand| product.saturating_mul(operand.pairs.max(1)));
    let mut classes: Vec<(u64, u64)> = (0..256)
        .map(|byte| {
            let class = operands.iter().fold(0_u64, |class, operand| mix(class ^ operand.class[byte]));
            let tuples = operands
                .iter()
                .fold(1_u64, |product, operand| product.saturating_mul(operand.overlap[byte].max(1)));
            (class, tuples)
        })
        .collect();
    classes.sort_unstable();
    // Bytes of one class share their pairs, so count each class once.
    classes.dedup();
    let tuples = classes.iter().fold(0_u64, |sum, (_, tuples)| sum.saturating_add(*tuples)).min(whole);
    // derivre intersects operand by operand (relevance.rs): each intermediate pair meets every pair
    // of the next operand.
    let compared = if operands.len() <= 2 { whole } else { tuples.saturating_mul(largest).min(whole) };
    (tuples, compared)
}

/// Spreads of the expressions of a set, computed on demand.
pub(crate) struct DerivativeSpreads<'e> {
    exprs: &'e ExprSet,
    known: HashMap<ExprRef, Rc<DerivativeSpread>>,
    visits: usize,
    literals: usize,
}

impl<'e> DerivativeSpreads<'e> {
    pub(crate) fn new(exprs: &'e ExprSet) -> DerivativeSpreads<'e> {
        DerivativeSpreads { exprs, known: HashMap::default(), visits: 0, literals: 0 }
    }

    /// Spread of an expression, or `None` if it exceeds [`MAX_VISITS`].
    pub(crate) fn of(&mut self, expr: ExprRef) -> Option<Rc<DerivativeSpread>> {
        if let Some(known) = self.known.get(&expr) {
            return Some(Rc::clone(known));
        }
        let mut spread = DerivativeSpread::none();
        // A chain of classes and literals without alternatives has one pair in every state.
        let mut chain = true;
        // A worklist instead of recursion: hostile expressions nest deeply.
        let mut open = vec![expr];
        let mut seen = llguidance::HashSet::default();
        while let Some(expr) = open.pop() {
            if !seen.insert(expr) {
                continue;
            }
            self.visits += 1;
            if self.visits > MAX_VISITS {
                return None;
            }
            let args = self.exprs.get_args(expr);
            match self.exprs.get_tag(expr) as u8 {
                tag::BYTE | tag::BYTE_SET => {
                    let set = self.exprs.get(expr);
                    spread.add_set(|byte| set.matches_byte(byte), u64::from(expr.as_u32()));
                }
                // `multipleOf`: ten digits and the decimal point.
                tag::REMAINDER => {
                    chain = false;
                    spread.add_any(11, 1);
                }
                // derivre makes the byte sets of a negation disjoint, so there are at most 256.
                tag::NOT => {
                    let inner = self.of(args[0])?;
                    chain = false;
                    // + 1: the bytes that no set of the inner expression contains.
                    spread.add_any(inner.pairs.saturating_add(1).min(256), 1);
                }
                tag::AND => {
                    let operands = args.iter().map(|arg| self.of(*arg)).collect::<Option<Vec<_>>>()?;
                    // An intersection within an intersection: its pairs are the tuples of its
                    // operands.
                    let (tuples, _) = product(&operands);
                    chain = false;
                    spread.add_any(tuples, tuples);
                }
                kind => {
                    chain &= kind != tag::OR && kind != tag::REPEAT;
                    match kind {
                        tag::BYTE_CONCAT => self.add_literal(&mut spread, expr),
                        tag::OR => self.add_merged(&mut spread, args),
                        // If the head can be empty, the tail's derivatives appear too, and may
                        // merge with the head's.
                        tag::CONCAT if self.exprs.is_nullable(args[0]) => {
                            self.add_heads(&mut spread, args[0]);
                        }
                        _ => {}
                    }
                    open.extend_from_slice(args);
                }
            }
        }
        if chain {
            // At any position of the chain exactly one set can follow.
            spread = DerivativeSpread::none();
            spread.add_any(1, 1);
        }
        let spread = Rc::new(spread);
        self.known.insert(expr, Rc::clone(&spread));
        Some(spread)
    }
}

impl DerivativeSpreads<'_> {
    /// Adds the bytes of a literal as sets of one byte each.
    fn add_literal(&mut self, spread: &mut DerivativeSpread, expr: ExprRef) {
        self.literals += 1;
        // A literal that continues in another node: `has_simply_forced_bytes` reads on into it for
        // every byte tried, which took seconds for literals of thousands of bytes.
        let long = self
            .exprs
            .get_args(expr)
            .first()
            .is_some_and(|tail| self.exprs.get_tag(*tail) as u8 == tag::BYTE_CONCAT);
        let mut bytes = Vec::new();
        while !long && self.literals <= LITERALS && bytes.len() < LITERAL_BYTES {
            let next = (0..=255).find(|byte| {
                bytes.push(*byte);
                let forced = self.exprs.has_simply_forced_bytes(expr, &bytes);
                bytes.pop();
                forced
            });
            match next {
                Some(byte) => bytes.push(byte),
                None => break,
            }
        }
        if long || self.literals > LITERALS || bytes.len() == LITERAL_BYTES {
            return spread.add_any(31, 1);
        }
        bytes.sort_unstable();
        bytes.dedup();
        // These ids must differ from those of other sets: expressions use their number, and heads
        // their number shifted by 32 bits, so single bytes take the top of the range.
        for byte in bytes {
            spread.add_set(|other| other == byte, u64::MAX - u64::from(byte));
        }
    }

    /// Adds the sets of alternatives with equal continuations. derivre merges their byte sets,
    /// which creates new sets.
    fn add_merged(&mut self, spread: &mut DerivativeSpread, options: &[ExprRef]) {
        let mut by_tail: HashMap<ExprRef, Vec<ExprRef>> = HashMap::default();
        for option in options {
            let tail = self.exprs.get_args(*option).last().copied();
            by_tail.entry(tail.unwrap_or(ExprRef::EMPTY_STRING)).or_default().push(*option);
        }
        for same in by_tail.values().filter(|same| same.len() > 1) {
            same.iter().for_each(|option| self.add_heads(spread, *option));
        }
    }

    /// Adds the set of bytes with which an expression can begin, if its head is simple.
    fn add_heads(&mut self, spread: &mut DerivativeSpread, expr: ExprRef) {
        let mut head = expr;
        loop {
            match self.exprs.get_tag(head) as u8 {
                tag::BYTE | tag::BYTE_SET | tag::BYTE_CONCAT => {
                    let set = self.exprs.get(head);
                    let id = u64::from(expr.as_u32()) << 32;
                    return spread.add_set(|byte| set.matches_byte(byte), id);
                }
                tag::CONCAT | tag::REPEAT if !self.exprs.is_nullable(head) || head == expr => {
                    head = self.exprs.get_args(head)[0];
                }
                _ => return spread.add_any(1, 1),
            }
        }
    }
}

/// Maximum number of pairs that one derivative of any expression can intersect. `None` if it
/// exceeds [`MAX_VISITS`].
pub(crate) fn pairs(exprs: &ExprSet) -> Option<u64> {
    let all = || (1..exprs.len() as u32).map(ExprRef::new);
    let is = |expr: &ExprRef, tag: u8| exprs.get_tag(*expr) as u8 == tag;
    // Most grammars have no intersections and skip the analysis.
    if !all().any(|expr| is(&expr, tag::AND)) {
        return Some(0);
    }
    let mut repeated = vec![false; exprs.len()];
    // Arguments have smaller numbers than the expressions that contain them, so one pass suffices.
    for expr in all().rev() {
        if repeated[expr.as_usize()] || is(&expr, tag::REPEAT) {
            exprs.get_args(expr).iter().for_each(|arg| repeated[arg.as_usize()] = true);
        }
    }
    let mut spreads = DerivativeSpreads::new(exprs);
    // Cost of each expression including its arguments.
    let mut sums = vec![0_u64; exprs.len()];
    for expr in all() {
        let args = exprs.get_args(expr);
        let mut sum = args.iter().fold(0_u64, |sum, arg| sum.saturating_add(sums[arg.as_usize()]));
        if is(&expr, tag::AND) {
            let operands = args.iter().map(|arg| spreads.of(*arg)).collect::<Option<Vec<_>>>()?;
            let times = if repeated[expr.as_usize()] { REPEATED } else { 1 };
            sum = sum.saturating_add(cost(&operands).saturating_mul(times));
        }
        sums[expr.as_usize()] = sum;
    }
    sums.into_iter().max()
}

/// Refuses lexemes whose intersections cost too much. Returns the limits for building the lexer.
pub(crate) fn check(
    what: &'static str,
    spec: &LexerSpec,
    slices: &[String],
    limits: &ParserLimits,
    budget: &Budget,
) -> Result<ParserLimits, GrammarError> {
    let mut spec = spec.clone();
    // llguidance adds these lexemes when it builds the lexer, so they belong to the first state.
    spec.add_extra_lexemes(slices);
    let mut made = limits.clone();
    match pairs(spec.regex_builder.exprset()) {
        Some(0) => return Ok(made),
        Some(found) if found <= MAX_PAIRS => made.initial_lexer_fuel = FUEL,
        found => return Err(too_many_pairs(what, found)),
    }
    budget.deadline.check()?;
    let failed = |problem: &dyn std::fmt::Display| crate::error::read_message(what, &problem.to_string());
    let mut limits = made.clone();
    let mut dfa = spec.to_regex_vec(&mut limits).map_err(|error| failed(&error))?;
    budget.deadline.check()?;
    // `to_regex_vec` leaves the fuel unlimited.
    dfa.set_fuel(FUEL);
    dfa.set_max_states(limits.max_lexer_states);
    let start = dfa.initial_state(&spec.all_lexemes());
    // Every transition of the first state, where all lexemes are alive.
    for byte in 0..=255 {
        dfa.transition(start, byte);
        if let Some(problem) = dfa.get_error() {
            return Err(failed(&format_args!("its patterns are too costly to compare: {problem}")));
        }
        budget.deadline.check()?;
    }
    Ok(made)
}

/// Error for intersections with too many pairs.
pub(crate) fn too_many_pairs(what: &'static str, found: Option<u64>) -> GrammarError {
    let found = found.map_or_else(|| "too many".to_owned(), |found| found.to_string());
    let problem = format!(
        "the patterns, lengths and multiples that apply to the same text have {found} combinations; the limit is {MAX_PAIRS}: use fewer or simpler ones"
    );
    GrammarError::Invalid { what, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::{RegexAst, RegexBuilder};

    fn of(asts: Vec<RegexAst>) -> u64 {
        let mut builder = RegexBuilder::new();
        builder.mk(&RegexAst::And(asts)).unwrap();
        pairs(builder.exprset()).unwrap()
    }

    fn search(pattern: &str) -> RegexAst {
        RegexAst::SearchRegex(pattern.to_owned())
    }

    #[test]
    fn tags_are_those_of_the_library() {
        let mut builder = RegexBuilder::new();
        let [a, b] = ["(?:ab|cd)x", "(?:ab|cd)y"].map(|text| RegexAst::Regex(text.to_owned()));
        let cases = [
            (RegexAst::Byte(7), tag::BYTE),
            (RegexAst::Regex("[ab]".into()), tag::BYTE_SET),
            (RegexAst::Literal("abc".into()), tag::BYTE_CONCAT),
            (RegexAst::MultipleOf(7, 0), tag::REMAINDER),
            (RegexAst::Not(Box::new(a.clone())), tag::NOT),
            (RegexAst::Regex("(?:ab){3}".into()), tag::REPEAT),
            (RegexAst::Regex("[ab][cd]".into()), tag::CONCAT),
            (RegexAst::Regex("ab|cd".into()), tag::OR),
            (RegexAst::And(vec![a, b]), tag::AND),
        ];
        for (ast, tag) in cases {
            let expr = builder.mk(&ast).unwrap();
            assert_eq!(builder.exprset().get_tag(expr) as u8, tag, "{ast:?}");
        }
    }

    #[test]
    fn pairs_grow_with_each_pattern_that_overlaps() {
        let patterns = |count: usize| (0..count).map(|i| search(&format!(".*a.{{{}}}.*", i + 3))).collect();
        let counts: Vec<u64> = (2..8).map(|count| of(patterns(count))).collect();
        assert!(counts.windows(2).all(|pair| pair[1] >= 2 * pair[0]), "{counts:?}");
        assert!(of(patterns(26)) > MAX_PAIRS);
        assert!(of(patterns(3)) < MAX_PAIRS / 20 && of(patterns(4)) < MAX_PAIRS);
        // derivre removes equal operands of an intersection.
        assert_eq!(of(vec![search("a+"), search("a+")]), 0);
    }

    #[test]
    fn usual_intersections_are_cheap() {
        let length = || RegexAst::Regex("(?s:.{3,320})".into());
        for pattern in
            ["^[a-z][a-z0-9_-]*$", r"^\S+@\S+\.\S+$", "foo", "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$"]
        {
            assert!(of(vec![search(pattern), length()]) < MAX_PAIRS / 100, "{pattern}");
            assert!(of(vec![search(pattern), search("[0-9]"), length()]) < MAX_PAIRS / 2, "{pattern}");
        }
    }
}
