//! Limits on the cost of a grammar.

use crate::error::GrammarError;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Limits on grammars of clients. The defaults accept real schemas of hundreds of kilobytes. They
/// keep the compilation of a hostile grammar below 2 s of CPU time and 256 MB of memory, including
/// work after its refusal, and each of its masks below [`mask_time`](GrammarLimits::mask_time).
/// tests/cost.rs measures this.
#[derive(Clone, Debug, PartialEq)]
pub struct GrammarLimits {
    /// Maximum size of a grammar's text, or of a schema as JSON, in bytes.
    pub source_bytes: usize,
    /// Maximum nesting: parentheses of a grammar or a pattern, arrays and objects of a schema.
    pub nesting: usize,
    /// Maximum number of rules of a grammar, or of tools of a request.
    pub rules: usize,
    /// Maximum number of values in all `enum`s of a schema, or of choices of a list.
    pub choices: usize,
    /// Maximum number of properties of one object.
    pub properties: usize,
    /// Maximum number of distinct `$ref` targets of a schema.
    pub references: usize,
    /// Largest bound of a repetition in GBNF.
    pub repetitions: usize,
    pub compile_time: Duration,
    /// Maximum number of concurrent compilations, including those past their deadline.
    pub compiling: usize,
    /// Size of the cache of compiled grammars, in bytes.
    pub cache_bytes: usize,
    /// Number of threads that compute masks while the model runs its step.
    pub mask_threads: usize,
    /// Maximum CPU time of one mask. Beyond it the response fails.
    pub mask_time: Duration,
    /// Base CPU time for all masks of one response. Each token adds
    /// [`token_time`](GrammarLimits::token_time).
    pub answer_time: Duration,
    /// CPU time that each token adds to [`answer_time`](GrammarLimits::answer_time).
    pub token_time: Duration,
}

impl Default for GrammarLimits {
    fn default() -> GrammarLimits {
        GrammarLimits {
            source_bytes: 256 << 10,
            nesting: 64,
            rules: 4096,
            choices: 10_000,
            properties: 1000,
            references: 500,
            // MAX_REPETITION_THRESHOLD of llama.cpp's llama-grammar.cpp.
            repetitions: 2000,
            compile_time: Duration::from_secs(1),
            compiling: 4,
            cache_bytes: 64 << 20,
            mask_threads: 1,
            mask_time: Duration::from_secs(2),
            answer_time: Duration::from_secs(4),
            token_time: Duration::from_millis(20),
        }
    }
}

/// Deadline of a compilation.
#[derive(Clone, Copy)]
pub(crate) struct CompileDeadline {
    what: &'static str,
    limit: Duration,
    /// `None` if the limit exceeds the range of the clock.
    end: Option<Instant>,
}

impl CompileDeadline {
    pub(crate) fn new(what: &'static str, limits: &GrammarLimits) -> CompileDeadline {
        let limit = limits.compile_time;
        CompileDeadline { what, limit, end: Instant::now().checked_add(limit) }
    }

    pub(crate) fn check(&self) -> Result<(), GrammarError> {
        if self.end.is_none_or(|end| Instant::now() < end) {
            return Ok(());
        }
        Err(GrammarError::Timeout { what: self.what, limit: self.limit })
    }
}

/// The maximum number of nodes that are built, copied or compared while schemas are combined.
const STEPS: u64 = 400_000;

/// Steps between two checks of the deadline. Reading the clock per step would cost more than the
/// step.
const CLOCK: u64 = 4096;

/// Maximum number of llguidance's string checks: ten per string with several conditions, three per
/// constant with one.
const STRING_CHECKS: u64 = 10_000;

/// Steps per Unicode character class of a pattern: such a class has hundreds of ranges.
const CLASS: u64 = 500;

/// Budget of one compilation for the analysis that precedes llguidance.
pub(crate) struct Budget {
    pub(crate) deadline: CompileDeadline,
    what: &'static str,
    steps: Cell<u64>,
    string_checks: Cell<u64>,
}

impl Budget {
    pub(crate) fn new(what: &'static str, limits: &GrammarLimits) -> Budget {
        let deadline = CompileDeadline::new(what, limits);
        Budget { deadline, what, steps: Cell::new(0), string_checks: Cell::new(0) }
    }

    /// Charges `steps`.
    pub(crate) fn spend(&self, steps: u64) -> Result<(), GrammarError> {
        let (before, after) = (self.steps.get(), self.steps.get().saturating_add(steps));
        self.steps.set(after);
        if after > STEPS {
            return Err(GrammarError::TooLarge {
                what: self.what,
                unit: "steps of combining its schemas and patterns",
                found: usize::try_from(after).unwrap_or(usize::MAX),
                limit: STEPS as usize,
            });
        }
        // The deadline is checked whenever the count passes a multiple of CLOCK.
        if before / CLOCK == after / CLOCK { Ok(()) } else { self.deadline.check() }
    }

    /// Charges checks of strings.
    pub(crate) fn check_strings(&self, checks: u64) -> Result<(), GrammarError> {
        let found = self.string_checks.get().saturating_add(checks);
        self.string_checks.set(found);
        if found <= STRING_CHECKS {
            return Ok(());
        }
        Err(GrammarError::TooLarge {
            what: self.what,
            unit: "checks of strings with several conditions",
            found: found as usize,
            limit: STRING_CHECKS as usize,
        })
    }

    /// Charges for parsing a pattern. Unicode classes cost far more than their length, and the flag
    /// `i` makes every class large.
    pub(crate) fn pattern(&self, pattern: &str) -> Result<(), GrammarError> {
        let (mut classes, mut escaped) = (0, false);
        let any_case = ignores_case(pattern);
        for c in pattern.chars() {
            let large = match c {
                'p' | 'P' | 'w' | 'W' | 's' | 'S' | 'd' | 'D' | 'b' | 'B' => escaped,
                '[' | '.' => any_case && !escaped,
                _ => false,
            };
            classes += u64::from(large);
            escaped = c == '\\' && !escaped;
        }
        self.spend(pattern.len() as u64 / 4 + CLASS * classes)
    }
}

/// Whether a pattern, or a pattern within a grammar, has the flag `i`: `(?i)` or `/…/i`.
fn ignores_case(text: &str) -> bool {
    let flags = |rest: &str| {
        let end = rest.find(|c| !"imsluxU".contains(c)).unwrap_or(rest.len());
        rest[..end].contains('i') && !rest[end..].starts_with(|c: char| c.is_alphanumeric())
    };
    text.split("(?").skip(1).any(flags) || text.split('/').skip(1).any(flags)
}
