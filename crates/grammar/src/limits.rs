//! Limits on the cost of a grammar.

use crate::error::GrammarError;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Limits on grammars that others write. The defaults hold real schemas of hundreds of kilobytes. They keep the compilation of a hostile
/// grammar below 2 s of CPU time and 256 MB of memory, also after it was refused, and each of its masks below
/// [`mask_time`](GrammarLimits::mask_time).
#[derive(Clone, Debug, PartialEq)]
pub struct GrammarLimits {
    /// Bytes of a grammar's text, or of a schema written as JSON.
    pub source_bytes: usize,
    /// Levels of nesting: parentheses of a grammar or a pattern, arrays and objects of a schema.
    pub nesting: usize,
    /// Rules of a grammar; tools of a request.
    pub rules: usize,
    /// Values of all `enum`s of a schema; choices of a list.
    pub choices: usize,
    /// Properties of one object of a schema.
    pub properties: usize,
    /// References (`$ref`) of a schema to different places.
    pub references: usize,
    /// The largest bound of a repetition in a grammar.
    pub repetitions: usize,
    pub compile_time: Duration,
    /// Grammars compiled at the same time, those that passed their deadline included.
    pub compiling: usize,
    /// Bytes of compiled grammars that are kept for requests with the same one.
    pub cache_bytes: usize,
    /// Threads that compute masks while the model runs its step.
    pub mask_threads: usize,
    /// CPU time for computing one mask. It is stopped then, and the answer fails.
    pub mask_time: Duration,
    /// Base CPU time for all masks of one answer, to which each of its tokens adds
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

/// When compiling has to be over.
#[derive(Clone, Copy)]
pub(crate) struct CompileDeadline {
    what: &'static str,
    limit: Duration,
    /// None where that is later than the clock counts.
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

/// Steps between two looks at the clock.
const CLOCK: u64 = 4096;

/// Checks of strings by the library: ten for each string with several conditions, three for each constant with one.
const STRING_CHECKS: u64 = 10_000;

/// Steps for a class of characters of Unicode in a pattern, which is hundreds of ranges.
const CLASS: u64 = 500;

/// What one compilation may cost before the library begins with it.
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

    /// Accounts for steps.
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
        if before / CLOCK == after / CLOCK { Ok(()) } else { self.deadline.check() }
    }

    /// Accounts for checks of strings.
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

    /// Accounts for reading a pattern: large classes cost more than their length says, and ignoring case makes all classes large.
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

/// Whether a pattern, or one within a grammar, has the flag `i`.
fn ignores_case(text: &str) -> bool {
    let flags = |rest: &str| {
        let end = rest.find(|c| !"imsluxU".contains(c)).unwrap_or(rest.len());
        rest[..end].contains('i') && !rest[end..].starts_with(|c: char| c.is_alphanumeric())
    };
    text.split("(?").skip(1).any(flags) || text.split('/').skip(1).any(flags)
}
