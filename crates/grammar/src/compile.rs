//! Compilation of sources to grammars, within limits, on a separate thread.

use crate::cache::GrammarCache;
use crate::cost;
use crate::error::{GrammarError, read_message, shorten};
use crate::grammar::Grammar;
use crate::lark::{ANY, literal, marker, up_to};
use crate::limits::{Budget, GrammarLimits};
use crate::tools::{ToolCalls, grammars};
use crate::vocabulary::VocabularyTrie;
use crate::workers::{GIVE_WAY, MaskWorkers};
use crate::{gbnf, schema};
use latent_text::Tokenizer;
use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{Logger, Matcher, ParserFactory, panic_utils};
use serde_json::{Value, json};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

/// Stack of the compiling thread.
// llguidance follows `$ref`s by recursion, which takes some kilobytes per level, and a schema may
// have 500 references.
const STACK: usize = 64 << 20;

/// Maximum number of lexer states per grammar.
// Each takes one to two kilobytes; llguidance's default of 250 000 would allow 500 MB per grammar.
const MAX_LEXER_STATES: usize = 50_000;

/// Maximum number of Earley items per row.
// An object takes about four per property that may come next, and schemas may have 1000 properties;
// llguidance's default is 2000.
const MAX_ROW: usize = 8000;

/// Maximum number of rules of a Lark grammar.
// llguidance takes long for terminals that refer to each other.
const LARK_RULES: usize = 1000;

/// Compiler and cache of grammars for one tokenizer.
///
/// Building it takes about as long as loading the tokenizer. Build it for the first constrained
/// request and share it.
pub struct Grammars(Arc<CompilerState>);

struct CompilerState {
    vocabulary: Arc<VocabularyTrie>,
    factory: ParserFactory,
    limits: GrammarLimits,
    cache: Mutex<GrammarCache>,
    compiling: AtomicUsize,
    workers: Arc<MaskWorkers>,
}

impl Grammars {
    /// Builds the trie of a tokenizer's tokens.
    pub fn new(tokenizer: &Tokenizer, limits: GrammarLimits) -> Result<Grammars, GrammarError> {
        let vocabulary = Arc::new(VocabularyTrie::new(tokenizer)?);
        let env: TokEnv = Arc::<VocabularyTrie>::clone(&vocabulary);
        // llguidance asserts some of its preconditions instead of returning errors.
        let factory = catch_unwind(AssertUnwindSafe(|| ParserFactory::new_simple(&env)));
        let mut factory = match factory {
            Ok(Ok(factory)) => factory,
            Ok(Err(error)) => return Err(GrammarError::Vocabulary(shorten(&error.to_string()))),
            Err(_) => {
                return Err(GrammarError::Vocabulary("a library fails on it; please report this".into()));
            }
        };
        // Otherwise warnings go to stderr.
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            max_lexer_states: MAX_LEXER_STATES,
            max_items_in_row: MAX_ROW,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Grammars(Arc::new(CompilerState {
            vocabulary,
            factory,
            cache: Mutex::new(GrammarCache::new(limits.cache_bytes)),
            compiling: AtomicUsize::new(0),
            workers: Arc::new(MaskWorkers::new(limits.mask_threads, limits.mask_time)),
            limits,
        })))
    }

    /// Compiles a constraint, optionally preceded by unconstrained reasoning, or returns the cached
    /// result.
    ///
    /// # Errors
    /// The source is malformed, unsupported, too large, or takes too long to compile.
    pub fn compile(
        &self,
        source: &GrammarSource,
        reasoning: Option<&Reasoning>,
    ) -> Result<Arc<Grammar>, GrammarError> {
        // serde_json keeps the order of properties, which the output follows, so the key must too.
        let key = format!("{source:?}\0{reasoning:?}");
        if let Some(known) = self.cache().get(&key) {
            return Ok(known);
        }
        // The cache is not locked meanwhile. Two concurrent misses compile twice; the later one
        // wins.
        let grammar = Arc::new(self.compile_in_time(source, reasoning)?);
        self.cache().insert(key, &grammar);
        Ok(grammar)
    }

    /// Number of cached grammars, and their bytes.
    pub fn cached(&self) -> (usize, usize) {
        self.cache().size()
    }

    /// Number of compilations in progress, including those past their deadline.
    pub fn compiling(&self) -> usize {
        self.0.compiling.load(Ordering::Acquire)
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, GrammarCache> {
        self.0.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compiles on another thread and waits until the deadline. A thread cannot be stopped, so the
    /// work remaining at the deadline is bounded in advance: see [`cost`] and [`Budget`].
    fn compile_in_time(
        &self,
        source: &GrammarSource,
        reasoning: Option<&Reasoning>,
    ) -> Result<Grammar, GrammarError> {
        let what = source.what();
        // Moved into the thread: an abandoned compilation counts until it really ends.
        let running = CompilationGuard::start(&self.0)?;
        // Room for the one result, so that the thread never blocks in `send`.
        let (sender, receiver) = mpsc::sync_channel(1);
        let (source, reasoning) = (source.clone(), reasoning.cloned());
        // The deadline of the budget starts here and not in the thread, because the caller's wait
        // includes the time until the thread runs.
        let budget = Budget::new(what, &self.0.limits);
        let work = move || {
            latent_threads::lower_priority(GIVE_WAY);
            let compile = || running.0.compile(&source, reasoning.as_ref(), &budget);
            let done = catch_unwind(AssertUnwindSafe(compile));
            // The receiver is dropped after a timeout.
            let _ = sender.send(done.unwrap_or_else(|_| Err(internal(what))));
        };
        std::thread::Builder::new().name("grammar".into()).stack_size(STACK).spawn(work).map_err(
            |error| GrammarError::Invalid {
                what,
                problem: format!("cannot start a thread to compile it: {error}"),
            },
        )?;
        let limit = self.0.limits.compile_time;
        receiver.recv_timeout(limit).unwrap_or(Err(GrammarError::Timeout { what, limit }))
    }
}

fn internal(what: &'static str) -> GrammarError {
    GrammarError::Invalid { what, problem: "a library fails on it; please report this".into() }
}

/// Counts a compilation in progress.
struct CompilationGuard(Arc<CompilerState>);

impl CompilationGuard {
    fn start(shared: &Arc<CompilerState>) -> Result<CompilationGuard, GrammarError> {
        let running = CompilationGuard(Arc::clone(shared));
        let limit = shared.limits.compiling;
        // On the error below, dropping `running` decrements the counter again.
        if shared.compiling.fetch_add(1, Ordering::AcqRel) >= limit {
            return Err(GrammarError::Busy(limit));
        }
        Ok(running)
    }
}

impl Drop for CompilationGuard {
    fn drop(&mut self) {
        self.0.compiling.fetch_sub(1, Ordering::AcqRel);
    }
}

impl CompilerState {
    fn compile(
        &self,
        source: &GrammarSource,
        reasoning: Option<&Reasoning>,
        budget: &Budget,
    ) -> Result<Grammar, GrammarError> {
        if let GrammarSource::Tools(calls) = source {
            return self.compile_tools(calls, reasoning, budget);
        }
        self.finish(source.what(), self.grammar(source, reasoning, budget)?, budget)
    }

    /// Compiles tool calls. A tool whose schema llguidance refuses accepts any arguments, unless it
    /// is strict.
    fn compile_tools(
        &self,
        calls: &ToolCalls,
        reasoning: Option<&Reasoning>,
        budget: &Budget,
    ) -> Result<Grammar, GrammarError> {
        let what = "list of tools";
        let written = |failing: &[usize]| {
            let grammars = grammars(calls, &self.vocabulary, &self.limits, failing, budget)?;
            // Whitespace may follow reasoning only if the calls do not begin with it: the lexer
            // could not tell the two apart.
            let space =
                !format!("{}{}", calls.format.section_open, calls.format.open).starts_with(['\n', ' ']);
            let start = self.start(reasoning, "calls", if space { "[ \\n]{1,8}" } else { "" });
            let mut all = vec![named("main", start + &grammars.lark, None)];
            all.extend(
                grammars.schemas.into_iter().map(|(name, schema)| named(&name, String::new(), Some(schema))),
            );
            Ok::<_, GrammarError>(all)
        };
        let refused = match self.finish(what, written(&[])?, budget) {
            Err(GrammarError::Invalid { problem, .. }) => problem,
            done => return done,
        };
        // The error of the whole grammar does not name the tool at fault, so compile each schema
        // alone.
        let fails = |tool: &crate::CallableTool| {
            // A tool without a schema accepts any arguments, and so does one whose schema `prepare`
            // refuses: `Writer::tool` has replaced that schema already.
            let alone = schema::prepare(tool.parameters.as_ref()?, &self.limits, budget).ok()?;
            let grammar = vec![named("schema", String::new(), Some(alone))];
            match self.finish(what, grammar, budget) {
                Err(GrammarError::Invalid { problem, .. }) => Some(problem),
                _ => None,
            }
        };
        let mut failing = Vec::new();
        for (index, tool) in calls.tools.iter().enumerate() {
            budget.deadline.check()?;
            let Some(problem) = fails(tool) else { continue };
            if tool.strict {
                let problem = format!("tool {}: {problem}", tool.name);
                return Err(GrammarError::Invalid { what, problem });
            }
            failing.push(index);
        }
        // Each schema compiles alone. The error is in the calls themselves.
        if failing.is_empty() {
            return Err(GrammarError::Invalid { what, problem: refused });
        }
        self.finish(what, written(&failing)?, budget)
    }

    /// Converts a source other than tools to llguidance's form.
    fn grammar(
        &self,
        source: &GrammarSource,
        reasoning: Option<&Reasoning>,
        budget: &Budget,
    ) -> Result<Vec<GrammarWithLexer>, GrammarError> {
        let limits = &self.limits;
        let sized = |text: &str| match text.len() {
            found if found > limits.source_bytes => Err(GrammarError::TooLarge {
                what: source.what(),
                unit: "bytes",
                found,
                limit: limits.source_bytes,
            }),
            _ => Ok(()),
        };
        let (body, space) = match source {
            GrammarSource::JsonSchema(schema) => {
                (named("body", String::new(), Some(schema::prepare(schema, limits, budget)?)), true)
            }
            GrammarSource::JsonObject => {
                let object = schema::prepare(&json!({"type": "object"}), limits, budget)?;
                (named("body", String::new(), Some(object)), true)
            }
            GrammarSource::Regex(pattern) => {
                sized(pattern)?;
                budget.pattern(pattern)?;
                let pattern = llguidance::regex_to_lark(pattern, "");
                (named("body", format!("start: /{pattern}/\n"), None), false)
            }
            GrammarSource::Choice(texts) => {
                check_choices(texts, limits)?;
                texts.iter().try_for_each(|text| sized(text))?;
                let all: Vec<String> = texts.iter().map(|text| literal(text)).collect();
                (named("body", format!("start: TEXT\nTEXT: {}\n", all.join("| ")), None), false)
            }
            GrammarSource::Gbnf(text) => {
                sized(text)?;
                (named("body", gbnf::to_lark(text, limits)?, None), false)
            }
            GrammarSource::Lark(text) => {
                sized(text)?;
                // An upper bound without parsing: every definition has a colon.
                let (found, limit) = (text.lines().filter(|line| line.contains(':')).count(), LARK_RULES);
                if found > limit {
                    return Err(GrammarError::TooLarge { what: source.what(), unit: "rules", found, limit });
                }
                budget.pattern(text)?;
                schema::check_embedded(text, limits, budget)?;
                (named("body", text.clone(), None), false)
            }
            // `compile` has handled tools.
            GrammarSource::Tools(_) => return Err(internal(source.what())),
        };
        if reasoning.is_none() {
            return Ok(vec![body]);
        }
        // Models write a line end or two after `</think>`. JSON may also be indented; a text of a
        // choice or a grammar must not absorb blanks.
        let space = if space { "[ \\n]{1,8}" } else { "\\n{1,2}" };
        Ok(vec![named("main", self.start(reasoning, "@body", space), None), body])
    }

    /// Writes the rule `start`: the body, optionally preceded by reasoning and whitespace.
    fn start(&self, reasoning: Option<&Reasoning>, body: &str, space: &str) -> String {
        let Some(Reasoning { begin, end, open }) = reasoning.filter(|reasoning| !reasoning.end.is_empty())
        else {
            return format!("start: {body}\n");
        };
        let thoughts = up_to(&self.vocabulary, "thoughts", ANY, end);
        let space = if space.is_empty() { String::new() } else { format!("(/{space}/)?") };
        let begin = marker(&self.vocabulary, begin);
        match open {
            true => format!("start: thoughts {space} {body}\n{thoughts}"),
            false => format!("start: ({begin}thoughts {space})? {body}\n{thoughts}"),
        }
    }

    /// Compiles llguidance's form to a grammar.
    fn finish(
        &self,
        what: &'static str,
        grammars: Vec<GrammarWithLexer>,
        budget: &Budget,
    ) -> Result<Grammar, GrammarError> {
        let source_bytes: usize = grammars.iter().map(written_bytes).sum();
        let failed = |error: &dyn std::fmt::Display| read_message(what, &error.to_string());
        let (limits, env) = (self.factory.limits(), self.factory.tok_env());
        let source = GrammarInit::Serialized(TopLevelGrammar { grammars, max_tokens: None });
        let read = || source.to_internal(Some(env.clone()), limits.clone());
        let (grammar, lexer) = panic_utils::catch_unwind(AssertUnwindSafe(read)).map_err(|e| failed(&e))?;
        budget.deadline.check()?;
        // llguidance builds the first lexer states without a fuel limit, so check their cost first.
        let limits = cost::check(what, &lexer, &self.factory.extra_lexemes(), limits, budget)?;
        let (made, quiet) = (GrammarInit::Internal(grammar, lexer), Logger::new(0, 0));
        let parser = self
            .factory
            .create_parser_from_init_ext(made, quiet, InferenceCapabilities::default(), limits)
            .map_err(|e| failed(&e))?;
        budget.deadline.check()?;
        // llguidance reports only the lexer's memory; the rest is estimated for the cache's limit.
        let bytes = source_bytes * 4 + parser.parser.lexer_stats().num_bytes + (64 << 10);
        // The watchdog cancels masks that take too long.
        let mut start = Matcher::new(Ok(parser)).into_cancellable();
        // Computed once per grammar, because every response begins with this mask. Also detects
        // grammars without any output while the request can still be refused.
        let first = start.compute_mask_or_eos().map_err(|e| failed(&e))?;
        if first.is_zero() {
            let problem = "no output can obey it".to_owned();
            return Err(GrammarError::Invalid { what, problem });
        }
        Ok(Grammar {
            what,
            start,
            first: Arc::new(first),
            vocabulary: Arc::clone(&self.vocabulary),
            workers: Arc::clone(&self.workers),
            limits: self.limits.clone(),
            bytes,
            spoilt: AtomicBool::new(false),
        })
    }
}

fn check_choices(texts: &[String], limits: &GrammarLimits) -> Result<(), GrammarError> {
    let what = "list of choices";
    if texts.is_empty() {
        return Err(GrammarError::Invalid { what, problem: "it is empty".into() });
    }
    let (found, limit) = (texts.len(), limits.choices);
    if found > limit {
        return Err(GrammarError::TooLarge { what, unit: "texts", found, limit });
    }
    Ok(())
}

fn named(name: &str, lark: String, json_schema: Option<Value>) -> GrammarWithLexer {
    let lark_grammar = json_schema.is_none().then_some(lark);
    GrammarWithLexer { name: Some(name.to_owned()), json_schema, lark_grammar }
}

fn written_bytes(grammar: &GrammarWithLexer) -> usize {
    let schema = grammar.json_schema.as_ref().map_or(0, |schema| schema.to_string().len());
    grammar.lark_grammar.as_ref().map_or(0, String::len) + schema
}

/// The constraint of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum GrammarSource {
    /// A JSON text that is valid against a schema.
    JsonSchema(Value),
    JsonObject,
    /// A text that matches a regular expression as a whole. The syntax is that of Rust's crate
    /// regex, without look-around and back references.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// llama.cpp's grammar dialect.
    Gbnf(String),
    /// llguidance's dialect of Lark.
    Lark(String),
    /// Calls of tools in the model's own format.
    Tools(Box<ToolCalls>),
}

impl GrammarSource {
    /// A grammar whose dialect is detected: GBNF defines rules with `::=`, Lark with a colon.
    pub fn grammar(text: impl Into<String>) -> GrammarSource {
        let text = text.into();
        // A comment of a Lark grammar may mention `::=`.
        let code = |line: &str| line.split('#').next().unwrap_or_default().contains("::=");
        if text.lines().any(code) { GrammarSource::Gbnf(text) } else { GrammarSource::Lark(text) }
    }

    /// Name of the kind of source, for error messages.
    pub(crate) fn what(&self) -> &'static str {
        match self {
            GrammarSource::JsonSchema(_) | GrammarSource::JsonObject => "JSON schema",
            GrammarSource::Regex(_) => "regular expression",
            GrammarSource::Choice(_) => "list of choices",
            GrammarSource::Gbnf(_) => "GBNF grammar",
            GrammarSource::Lark(_) => "Lark grammar",
            GrammarSource::Tools(_) => "list of tools",
        }
    }
}

/// Unconstrained reasoning that precedes the constrained output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasoning {
    /// Opening marker, such as `<think>`.
    pub begin: String,
    /// Closing marker, such as `</think>`.
    pub end: String,
    /// Whether the prompt already contains the opening marker. If not, the output may begin with it
    /// or omit reasoning.
    pub open: bool,
}
