//! Parsing of generation parameters, which all APIs accept under the names of OpenAI, llama.cpp and
//! vLLM.

use crate::error::ApiError;
use crate::ids;
use crate::json::{ObjectFields, kind, text_len};
use crate::limits::Limits;
use crate::model::{ModelFacts, ServedModel};
use latent_engine::AdapterScales;
use latent_engine::ContextShift;
use latent_engine::sampling::{SamplerKind, SamplingField, SamplingNumber, SamplingParams};
use latent_grammar::GrammarSource;
use latent_text::EncodeOptions;
use serde_json::Value;
use std::time::Duration;

/// Generation parameters of a request.
#[derive(Clone, Debug)]
pub(crate) struct AnswerParams {
    pub(crate) sampling: SamplingParams,
    /// Maximum number of tokens of the answer; `None`: until the model ends it or the context is
    /// full.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Report log-probabilities of this many alternatives.
    pub(crate) logprobs: Option<usize>,
    pub(crate) n: usize,
    /// Whether reported probabilities are those after all samplers.
    pub(crate) post_sampling_probs: bool,
    /// Whether end-of-generation tokens are banned.
    pub(crate) ignore_eos: bool,
    /// Further tokens that end the answer.
    pub(crate) stop_tokens: Vec<u32>,
    /// Minimum number of tokens of the answer.
    pub(crate) min_tokens: usize,
    /// Token sequences that the answer must not contain.
    pub(crate) bad_words: Vec<Vec<u32>>,
    /// Minimum indentation of the answer's lines.
    pub(crate) min_indent: usize,
    /// Maximum number of drafts per step; 0 disables speculative decoding.
    pub(crate) max_drafts: Option<usize>,
    /// Time limit of the answer, which then ends at the end of a line.
    pub(crate) max_time: Option<Duration>,
    /// Time limit of the prompt.
    pub(crate) max_prompt_time: Option<Duration>,
    /// Whether the prefix cache is bypassed.
    pub(crate) uncached: bool,
    /// The constraint on the text.
    pub(crate) shape: OutputConstraint,
    pub(crate) priority: i32,
    /// Context shift. A `keep` of more than the prompt keeps the whole prompt.
    pub(crate) shift: ContextShift,
    /// The requested slot.
    pub(crate) slot: Option<usize>,
    /// Scales of the model's adapters; `None`: those of the server.
    pub(crate) adapter_scales: Option<AdapterScales>,
}

/// A constraint on the text of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum OutputConstraint {
    #[default]
    Free,
    /// Any JSON object.
    Json,
    /// JSON of a schema.
    Schema(Value),
    /// A grammar: GBNF or Lark.
    Grammar(String),
    /// A regular expression.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
}

/// Larger than the context of any model, and small enough that sums of such numbers cannot
/// overflow.
pub(crate) const MAX_TOKENS: usize = 1 << 30;

/// Maximum bytes of a sequence breaker of DRY, as in llama.cpp.
const MAX_BREAKER: usize = 40;

/// The parts of a model's vocabulary that parameters refer to. Tests need no model.
struct VocabularyLookup<'a> {
    size: usize,
    encode: &'a dyn Fn(&str) -> Result<Vec<u32>, String>,
}

impl VocabularyLookup<'_> {
    fn tokens(&self, fields: &ObjectFields<'_>, name: &str, text: &str) -> Result<Vec<u32>, ApiError> {
        (self.encode)(text).map_err(|problem| fields.error(name, problem))
    }
}

impl AnswerParams {
    /// The parameters of a request without any.
    pub(crate) fn new(about: &ModelFacts) -> AnswerParams {
        let seed = about.defaults.seed.unwrap_or_else(ids::seed);
        AnswerParams {
            sampling: SamplingParams { seed, ..about.sampling.clone() },
            max_tokens: about.defaults.max_tokens,
            stop: about.defaults.stop.clone(),
            logprobs: None,
            n: 1,
            post_sampling_probs: false,
            ignore_eos: about.defaults.ignore_eos,
            stop_tokens: Vec::new(),
            min_tokens: 0,
            bad_words: Vec::new(),
            min_indent: 0,
            max_drafts: None,
            max_time: None,
            max_prompt_time: None,
            uncached: about.defaults.uncached,
            shape: OutputConstraint::Free,
            priority: 0,
            shift: ContextShift { keep: about.defaults.keep, discard: 0 },
            slot: None,
            adapter_scales: None,
        }
    }

    /// Parses the parameters that have the same names in all APIs.
    pub(crate) fn read(
        fields: &ObjectFields<'_>,
        served: &ServedModel,
        limits: &Limits,
    ) -> Result<AnswerParams, ApiError> {
        let encode = |text: &str| {
            let how = EncodeOptions { add_special: false, parse_special: false };
            served.tokenizer.encode(text, how).map_err(|error| error.to_string())
        };
        let vocabulary = VocabularyLookup { size: served.vocab, encode: &encode };
        let mut params = AnswerParams::read_for(fields, &served.about, &vocabulary, limits)?;
        if fields.array("lora")?.is_some() {
            params.adapter_scales = Some(served.adapters.scales(&fields.objects("lora")?)?);
        }
        Ok(params)
    }

    fn read_for(
        fields: &ObjectFields<'_>,
        about: &ModelFacts,
        vocabulary: &VocabularyLookup<'_>,
        limits: &Limits,
    ) -> Result<AnswerParams, ApiError> {
        let mut params = AnswerParams::new(about);
        params.read_samplers(fields, limits)?;
        if let Some(n) = fields.usize("n")? {
            if n == 0 {
                return Err(fields.error("n", "expected at least 1"));
            }
            limits.check(&fields.path("n"), "choices", n, limits.choices)?;
            params.n = n;
        }
        params.read_stop(fields, "stop", limits)?;
        params.sampling.logit_bias.extend(logit_bias(fields, vocabulary, limits)?);
        params.ignore_eos = fields.bool("ignore_eos")?.unwrap_or(params.ignore_eos);
        params.post_sampling_probs = fields.bool("post_sampling_probs")?.unwrap_or(false);
        params.read_tokens(fields, vocabulary, limits)?;
        params.min_tokens = fields.usize("min_tokens")?.unwrap_or(0);
        params.min_indent = fields.usize("n_indent")?.unwrap_or(0);
        params.max_drafts = fields.usize("speculative.n_max")?;
        params.max_time = milliseconds(fields, "t_max_predict_ms")?;
        params.max_prompt_time = milliseconds(fields, "t_max_prompt_ms")?;
        if let Some(cached) = fields.bool("cache_prompt")? {
            params.uncached = !cached;
        }
        // −1 keeps the whole prompt.
        if let Some(keep) = fields.i64("n_keep")? {
            params.shift.keep = usize::try_from(keep).unwrap_or(usize::MAX);
        }
        // 0 discards half of the tokens.
        params.shift.discard = fields.i64("n_discard")?.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        // −1 means any slot.
        params.slot = fields.i64("id_slot")?.and_then(|slot| usize::try_from(slot).ok());
        params.check(fields, vocabulary)?;
        let priority = fields.i64("priority")?.unwrap_or(0);
        // In vLLM a smaller number runs first, in the scheduler a larger one.
        // The clamp keeps the negation from overflowing.
        params.priority = i32::try_from(-priority.clamp(-1000, 1000)).unwrap_or(0);
        Ok(params)
    }

    fn read_samplers(&mut self, fields: &ObjectFields<'_>, limits: &Limits) -> Result<(), ApiError> {
        let p = &mut self.sampling;
        for field in SamplingField::all() {
            // All aliases are read, so that none of them is reported as ignored.
            for name in [&[field.name], field.aliases].concat() {
                match field.number {
                    SamplingNumber::Real { set, .. } => {
                        if let Some(value) = fields.f32(name)? {
                            set(p, value);
                        }
                    }
                    SamplingNumber::Count { all, .. } => {
                        let Some(count) = fields.i64(name)? else { continue };
                        // −1 means "all" in llama.cpp (`repeat_last_n`) and vLLM (`top_k`).
                        if count < 0 && (count < -1 || all.is_none()) {
                            return Err(fields.error(name, format!("{count} is less than 0")));
                        }
                        field.set(p, count as f64);
                    }
                }
            }
        }
        if let Some(order) = samplers(fields)? {
            p.samplers = Some(order);
        }
        if let Some(breakers) = dry_breakers(fields, limits)? {
            p.dry_breakers = Some(breakers);
        }
        match fields.seed("seed")? {
            None => {}
            Some(None) => p.seed = ids::seed(),
            Some(Some(seed)) => p.seed = seed,
        }
        Ok(())
    }

    /// Parses lists of allowed, banned and stop tokens.
    fn read_tokens(
        &mut self,
        fields: &ObjectFields<'_>,
        vocabulary: &VocabularyLookup<'_>,
        limits: &Limits,
    ) -> Result<(), ApiError> {
        if let Some(stop) = token_ids(fields, "stop_token_ids", vocabulary)? {
            // Lists of tokens share the limit of `logit_bias`.
            limits.check(&fields.path("stop_token_ids"), "logit_bias", stop.len(), limits.logit_bias)?;
            self.stop_tokens = stop;
        }
        if let Some(allowed) = token_ids(fields, "allowed_token_ids", vocabulary)? {
            if allowed.is_empty() {
                return Err(
                    fields.error("allowed_token_ids", "the list is empty: expected at least one token")
                );
            }
            self.sampling.allowed_tokens = Some(allowed);
        }
        let words = texts(fields, "bad_words")?;
        limits.check(&fields.path("bad_words"), "logit_bias", words.len(), limits.logit_bias)?;
        for word in words {
            let word = word.trim_start();
            if word.is_empty() {
                return Err(fields.error("bad_words", "a word is empty: omit it"));
            }
            // As in vLLM, a word is banned with and without a leading blank, which tokenize
            // differently.
            let tokens = |text: &str| vocabulary.tokens(fields, "bad_words", text);
            let (plain, spaced) = (tokens(word)?, tokens(&format!(" {word}"))?);
            if spaced != plain {
                self.bad_words.push(spaced);
            }
            self.bad_words.push(plain);
        }
        Ok(())
    }

    /// Checks the ranges of samplers.
    fn check(&self, fields: &ObjectFields<'_>, vocabulary: &VocabularyLookup<'_>) -> Result<(), ApiError> {
        let Err(error) = self.sampling.check(vocabulary.size) else { return Ok(()) };
        // The error names the field as the request does, which may be an alias.
        let names = match (SamplingField::named(error.name), error.name) {
            (Some(field), _) => [&[field.name], field.aliases].concat(),
            (None, "allowed_tokens") => vec!["allowed_token_ids"],
            _ => Vec::new(),
        };
        let given = fields.any(&names).map_or(error.name, |(name, _)| name);
        Err(fields.error(given, &error))
    }

    /// All biases, including those of tokens that [`ignore_eos`](Self::ignore_eos) bans.
    pub(crate) fn all_biases(&self, ends: &[u32]) -> Vec<(u32, f32)> {
        let banned = ends.iter().filter(|_| self.ignore_eos).map(|id| (*id, f32::NEG_INFINITY));
        self.sampling.logit_bias.iter().copied().chain(banned).collect()
    }

    /// Parses stop strings. As in llama-server, an empty list keeps those of the command line.
    pub(crate) fn read_stop(
        &mut self,
        fields: &ObjectFields<'_>,
        name: &str,
        limits: &Limits,
    ) -> Result<(), ApiError> {
        let given = stop(fields, name, limits)?;
        if !given.is_empty() {
            self.stop = given;
        }
        Ok(())
    }
}

/// Parses the maximum number of tokens, which has several names. −1 means no limit.
pub(crate) fn max_tokens(
    fields: &ObjectFields<'_>,
    names: &[&'static str],
) -> Result<Option<usize>, ApiError> {
    // The first present name counts. Reading the others keeps them from being reported as ignored.
    let _ = names.iter().filter(|name| fields.get(name).is_some()).count();
    for name in names {
        match fields.i64(name)? {
            None => {}
            Some(-1) => return Ok(None),
            Some(count) => {
                let count = usize::try_from(count)
                    .map_err(|_| fields.error(name, format!("{count} is less than 0")))?;
                return Ok(Some(count.min(MAX_TOKENS)));
            }
        }
    }
    Ok(None)
}

/// Parses a time limit. −1 and 0 mean no limit.
fn milliseconds(fields: &ObjectFields<'_>, name: &str) -> Result<Option<Duration>, ApiError> {
    let count = fields.i64(name)?.filter(|count| *count > 0);
    Ok(count.map(|count| Duration::from_millis(count.unsigned_abs())))
}

/// Parses a list of token IDs within the vocabulary.
fn token_ids(
    fields: &ObjectFields<'_>,
    name: &str,
    vocabulary: &VocabularyLookup<'_>,
) -> Result<Option<Vec<u32>>, ApiError> {
    let Some(list) = fields.array(name)? else { return Ok(None) };
    let id = |(i, value): (usize, &Value)| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.filter(|id| (*id as usize) < vocabulary.size).ok_or_else(|| {
            let problem = format!("expected a token id below {}, found {value}", vocabulary.size);
            fields.error(&format!("{name}[{i}]"), problem)
        })
    };
    list.iter().enumerate().map(id).collect::<Result<_, _>>().map(Some)
}

/// Parses `samplers`: a list of names, names separated by semicolons, or a string of letters.
fn samplers(fields: &ObjectFields<'_>) -> Result<Option<Vec<SamplerKind>>, ApiError> {
    const NAME: &str = "samplers";
    let order = match fields.get(NAME) {
        None => return Ok(None),
        // The forms of llama.cpp's `--samplers` and `--sampling-seq`.
        Some(Value::String(words)) if words.contains(';') => SamplerKind::order_of_names(words.split(';')),
        Some(Value::String(letters)) => SamplerKind::order_of_letters(letters),
        Some(_) => SamplerKind::order_of_names(texts(fields, NAME)?.iter().map(String::as_str)),
    };
    order.map(Some).map_err(|error| fields.error(NAME, error))
}

/// Parses `dry_sequence_breakers`: a list of strings, or such a list as JSON text.
fn dry_breakers(fields: &ObjectFields<'_>, limits: &Limits) -> Result<Option<Vec<String>>, ApiError> {
    const NAME: &str = "dry_sequence_breakers";
    let listed = fields.get(NAME).and_then(Value::as_str);
    let list = match listed.and_then(|text| serde_json::from_str::<Vec<String>>(text).ok()) {
        Some(list) => list,
        None if fields.get(NAME).is_none() => return Ok(None),
        None => texts(fields, NAME)?,
    };
    limits.check(&fields.path(NAME), "stop", list.len(), limits.stop)?;
    if let Some(long) = list.iter().find(|text| text.len() > MAX_BREAKER) {
        let problem = format!("a breaker has {} bytes, more than the limit of {MAX_BREAKER}", long.len());
        return Err(fields.error(NAME, problem));
    }
    Ok(Some(list))
}

/// Parses a string or a list of strings.
pub(crate) fn texts(fields: &ObjectFields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    match fields.get(name) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(_)) => {
            Ok(fields.texts(name)?.unwrap_or_default().into_iter().map(str::to_owned).collect())
        }
        Some(other) => {
            Err(fields.error(name, format!("expected a string or a list of strings, found {}", kind(other))))
        }
    }
}

fn stop(fields: &ObjectFields<'_>, name: &str, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let mut stop = texts(fields, name)?;
    limits.check(&fields.path(name), "stop", stop.len(), limits.stop)?;
    if let Some(long) = stop.iter().find(|text| text.len() > limits.stop_bytes) {
        let problem = format!(
            "a stop string has {} bytes, more than the limit of {} (stop_bytes)",
            long.len(),
            limits.stop_bytes
        );
        return Err(fields.error(name, problem));
    }
    // An empty stop string would end every answer at once.
    stop.retain(|text| !text.is_empty());
    Ok(stop)
}

/// Parses `logit_bias`: `{"ID": bias}` as in OpenAI's API, or `[[ID, bias], [ID, false]]` as in
/// llama.cpp's. In both, a text in place of an ID means all of its tokens, as in llama.cpp.
fn logit_bias(
    fields: &ObjectFields<'_>,
    vocabulary: &VocabularyLookup<'_>,
    limits: &Limits,
) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let path = fields.path(NAME);
    let wrong = |problem: String| fields.error(NAME, problem);
    let bias = |value: &Value| match value {
        // llama.cpp's form of a ban.
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        value => value
            .as_f64()
            .map(|bias| bias as f32)
            // A number beyond the range of f32 has become infinite, which would be a ban or a must.
            .filter(|bias| bias.is_finite())
            .ok_or_else(|| wrong(format!("expected a finite number or false, found {}", kind(value)))),
    };
    let id = |key: i64| {
        let id = u32::try_from(key).ok().filter(|id| (*id as usize) < vocabulary.size);
        id.ok_or_else(|| wrong(format!("expected a token id below {}, found {key}", vocabulary.size)))
    };
    // i64, so that a key such as `-5` is an invalid ID and not a text.
    let tokens = |key: &str| match key.trim().parse::<i64>() {
        Ok(key) => Ok(vec![id(key)?]),
        Err(_) => vocabulary.tokens(fields, NAME, key),
    };
    let mut pairs = Vec::new();
    match fields.get(NAME) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => {
            limits.check(&path, NAME, map.len(), limits.logit_bias)?;
            for (key, value) in map {
                let bias = bias(value)?;
                pairs.extend(tokens(key)?.into_iter().map(|id| (id, bias)));
            }
        }
        Some(Value::Array(list)) => {
            limits.check(&path, NAME, list.len(), limits.logit_bias)?;
            for pair in list {
                let Some([key, value]) = pair.as_array().map(Vec::as_slice) else {
                    return Err(wrong("expected pairs of a token id or a text and a bias".into()));
                };
                let bias = bias(value)?;
                let tokens = match (key.as_i64(), key.as_str()) {
                    (Some(key), _) => vec![id(key)?],
                    (None, Some(text)) => vocabulary.tokens(fields, NAME, text)?,
                    (None, None) => return Err(wrong("expected a token id or a text".into())),
                };
                pairs.extend(tokens.into_iter().map(|id| (id, bias)));
            }
        }
        Some(other) => return Err(wrong(format!("expected an object or a list, found {}", kind(other)))),
    }
    // Again, since a text can have many tokens.
    limits.check(&path, NAME, pairs.len(), limits.logit_bias)?;
    Ok(pairs)
}

/// Parses OpenAI's `response_format`, llama.cpp's `json_schema` and `grammar`, and vLLM's
/// `guided_*` and `structured_outputs`.
pub(crate) fn shape(fields: &ObjectFields<'_>, limits: &Limits) -> Result<OutputConstraint, ApiError> {
    let mut shape = OutputConstraint::Free;
    if let Some(format) = fields.object("response_format")? {
        shape = match format.require_str("type")? {
            "text" => OutputConstraint::Free,
            // A schema here is llama.cpp's extension.
            "json_object" => match format.get("schema") {
                Some(schema) => OutputConstraint::schema(schema, "response_format", limits)?,
                None => OutputConstraint::Json,
            },
            "json_schema" => {
                let inner = format.object("json_schema")?.ok_or_else(|| format.missing("json_schema"))?;
                let schema = inner.get("schema").ok_or_else(|| inner.missing("schema"))?;
                OutputConstraint::schema(schema, "response_format", limits)?
            }
            other => {
                let problem = format!("unknown value {other:?}, expected text, json_object or json_schema");
                return Err(format.error("type", problem));
            }
        };
    }
    // The more specific fields below override `response_format`.
    for name in ["json_schema", "guided_json"] {
        if let Some(schema) = fields.get(name) {
            shape = OutputConstraint::schema(schema, "response_format", limits)?;
        }
    }
    for name in ["grammar", "guided_grammar"] {
        // As in llama.cpp, an empty grammar is none.
        if let Some(grammar) = fields.str(name)?.filter(|grammar| !grammar.is_empty()) {
            shape = OutputConstraint::Grammar(grammar.to_owned());
        }
    }
    if let Some(regex) = fields.str("guided_regex")? {
        shape = OutputConstraint::Regex(regex.to_owned());
    }
    if fields.get("guided_choice").is_some() {
        shape = OutputConstraint::Choice(texts(fields, "guided_choice")?);
    }
    if let Some(structured) = fields.object("structured_outputs")? {
        if let Some(schema) = structured.get("json") {
            shape = OutputConstraint::schema(schema, "response_format", limits)?;
        } else if let Some(grammar) = structured.str("grammar")? {
            shape = OutputConstraint::Grammar(grammar.to_owned());
        } else if let Some(regex) = structured.str("regex")? {
            shape = OutputConstraint::Regex(regex.to_owned());
        } else if structured.get("choice").is_some() {
            shape = OutputConstraint::Choice(texts(&structured, "choice")?);
        }
    }
    shape.check("response_format", limits)?;
    Ok(shape)
}

impl OutputConstraint {
    /// A JSON schema within the limit.
    pub(crate) fn schema(schema: &Value, param: &str, limits: &Limits) -> Result<OutputConstraint, ApiError> {
        // Checked before the clone.
        check_bytes(text_len(schema), param, limits)?;
        Ok(OutputConstraint::Schema(schema.clone()))
    }

    /// The source for the grammar compiler; `None` for free text.
    pub(crate) fn source(&self) -> Option<GrammarSource> {
        Some(match self {
            OutputConstraint::Free => return None,
            OutputConstraint::Json => GrammarSource::JsonObject,
            OutputConstraint::Schema(schema) => GrammarSource::JsonSchema(schema.clone()),
            OutputConstraint::Grammar(text) => GrammarSource::grammar(text.clone()),
            OutputConstraint::Regex(text) => GrammarSource::Regex(text.clone()),
            OutputConstraint::Choice(list) => GrammarSource::Choice(list.clone()),
        })
    }

    /// The text of a grammar, which llama.cpp's `generation_settings` repeat; empty for other
    /// constraints.
    pub(crate) fn grammar(&self) -> &str {
        if let OutputConstraint::Grammar(text) = self { text } else { "" }
    }

    /// Checks the size.
    pub(crate) fn check(&self, param: &str, limits: &Limits) -> Result<(), ApiError> {
        let bytes = match self {
            OutputConstraint::Free | OutputConstraint::Json => 0,
            OutputConstraint::Schema(schema) => text_len(schema),
            OutputConstraint::Grammar(text) | OutputConstraint::Regex(text) => text.len(),
            OutputConstraint::Choice(list) => list.iter().map(String::len).sum(),
        };
        check_bytes(bytes, param, limits)
    }
}

fn check_bytes(bytes: usize, param: &str, limits: &Limits) -> Result<(), ApiError> {
    let limit = limits.grammar_bytes;
    if bytes <= limit {
        return Ok(());
    }
    let problem =
        format!("the schema or grammar has {bytes} bytes, more than the limit of {limit} (grammar_bytes)");
    Err(ApiError::field(param, problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reads parameters for a vocabulary of 500 tokens, of which a text has one for each byte.
    fn read(value: Value) -> Result<AnswerParams, ApiError> {
        let encode = |text: &str| Ok(text.bytes().map(u32::from).collect());
        let vocabulary = VocabularyLookup { size: 500, encode: &encode };
        let fields = ObjectFields::of(&value, "").unwrap();
        AnswerParams::read_for(&fields, &ModelFacts::default(), &vocabulary, &Limits::default())
    }

    #[test]
    fn samplers_accept_the_names_of_all_clients() {
        let params = read(json!({"temperature": 0.5, "top_k": -1, "repetition_penalty": 1.25, "repeat_last_n": -1, "seed": 7,
            "logit_bias": {"3": -100, "4": 1.5}, "stop": "x", "n": 2, "min_p": null, "unknown": {"a": 1}}))
        .unwrap();
        // A `top_k` of 0 means off. Its −1 is vLLM's form, and `repeat_last_n`'s is llama.cpp's.
        let p = &params.sampling;
        assert_eq!((p.temperature, p.top_k, p.repeat_penalty, p.seed, params.n), (0.5, 0, 1.25, 7, 2));
        assert_eq!(p.repeat_last_n, MAX_TOKENS);
        assert_eq!(p.logit_bias, [(3, -100.0), (4, 1.5)]);
        assert_eq!(params.stop, ["x"]);
        assert_eq!(
            read(json!({"logit_bias": [[3, false]]})).unwrap().sampling.logit_bias,
            [(3, f32::NEG_INFINITY)]
        );
        // Both seeds are random.
        assert_ne!(read(json!({})).unwrap().sampling.seed, read(json!({"seed": -1})).unwrap().sampling.seed);
    }

    #[test]
    fn out_of_range_values_name_their_field() {
        let many: serde_json::Map<_, _> = (0..2000).map(|i| (i.to_string(), json!(1))).collect();
        for (value, field) in [
            (json!({"temperature": "hot"}), "temperature"),
            (json!({"n": 0}), "n"),
            (json!({"n": 1_000_000_000}), "n"),
            (json!({"n": -1}), "n"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"stop": "a".repeat(257)}), "stop"),
            (json!({"stop": [1]}), "stop[0]"),
            (json!({"logit_bias": many}), "logit_bias"),
            (json!({"logit_bias": {"x": "1"}}), "logit_bias"),
            // IDs outside of the vocabulary, and a text with too many tokens.
            (json!({"logit_bias": {"500": 1}}), "logit_bias"),
            (json!({"logit_bias": {"-1": 1}}), "logit_bias"),
            (json!({"logit_bias": [["a".repeat(2000), 1]]}), "logit_bias"),
            (json!({"logit_bias": [[1]]}), "logit_bias"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"seed": 1.5}), "seed"),
            (json!({"seed": 1e30}), "seed"),
            (json!({"seed": -1e30}), "seed"),
            (json!({"temperature": -1}), "temperature"),
            // Infinite as f32.
            (json!({"temperature": 1e39}), "temperature"),
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"min_p": -0.5}), "min_p"),
            // The error has the alias that the request uses.
            (json!({"typical_p": 2}), "typical_p"),
            (json!({"typical": 2}), "typical"),
            (json!({"repeat_penalty": 0}), "repeat_penalty"),
            (json!({"repetition_penalty": 1000}), "repetition_penalty"),
            (json!({"presence_penalty": 101}), "presence_penalty"),
            (json!({"dry_base": 0.5}), "dry_base"),
            (json!({"xtc_threshold": 2}), "xtc_threshold"),
            (json!({"mirostat": 3}), "mirostat"),
            (json!({"mirostat": -1}), "mirostat"),
            (json!({"mirostat_tau": -1}), "mirostat_tau"),
            (json!({"mirostat_eta": 11}), "mirostat_eta"),
            (json!({"dynatemp_range": -1}), "dynatemp_range"),
            (json!({"dynatemp_exponent": -1}), "dynatemp_exponent"),
            (json!({"adaptive_target": 1.5}), "adaptive_target"),
            (json!({"adaptive_decay": 1}), "adaptive_decay"),
            (json!({"top_n_sigma": "1"}), "top_n_sigma"),
            (json!({"min_keep": -2}), "min_keep"),
            (json!({"samplers": ["top_k", "unknown"]}), "samplers"),
            (json!({"samplers": "kz"}), "samplers"),
            (json!({"samplers": 5}), "samplers"),
            (json!({"dry_sequence_breakers": [1]}), "dry_sequence_breakers[0]"),
            (json!({"dry_sequence_breakers": ["x".repeat(41)]}), "dry_sequence_breakers"),
            (json!({"stop_token_ids": [500]}), "stop_token_ids[0]"),
            (json!({"stop_token_ids": [1, -1]}), "stop_token_ids[1]"),
            (json!({"stop_token_ids": "1"}), "stop_token_ids"),
            (json!({"allowed_token_ids": []}), "allowed_token_ids"),
            (json!({"allowed_token_ids": [1e9]}), "allowed_token_ids[0]"),
            (json!({"bad_words": [" "]}), "bad_words"),
            (json!({"min_tokens": -1}), "min_tokens"),
            (json!({"n_indent": -1}), "n_indent"),
            (json!({"t_max_predict_ms": "1"}), "t_max_predict_ms"),
            (json!({"cache_prompt": 1}), "cache_prompt"),
        ] {
            let error = read(value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field), "{value}: {}", error.message);
        }
    }

    #[test]
    fn tokens_are_named_by_id_and_by_text() {
        let params = read(json!({"logit_bias": [[7, 1], ["ab", -2.5], [" ", false]]})).unwrap();
        let expected = [(7, 1.0), (97, -2.5), (98, -2.5), (32, f32::NEG_INFINITY)];
        assert_eq!(params.sampling.logit_bias, expected);
        // A key that is a number after trimming is an ID. Other keys are texts.
        let params = read(json!({"logit_bias": {" 7 ": 1, "a7": false}})).unwrap();
        let expected = [(7, 1.0), (97, f32::NEG_INFINITY), (55, f32::NEG_INFINITY)];
        assert_eq!(params.sampling.logit_bias, expected);
        let params = read(json!({"bad_words": [" ab", "c"], "stop_token_ids": [5, 6], "min_tokens": 3,
            "allowed_token_ids": [9], "ignore_eos": true}))
        .unwrap();
        // Each word with and without a leading space.
        assert_eq!(params.bad_words, [vec![32, 97, 98], vec![97, 98], vec![32, 99], vec![99]]);
        assert_eq!((params.stop_tokens, params.min_tokens), (vec![5, 6], 3));
        assert_eq!(params.sampling.allowed_tokens, Some(vec![9]));
    }

    #[test]
    fn samplers_of_llama_cpp_are_read() {
        let params = read(json!({"mirostat": 2, "mirostat_tau": 4, "mirostat_eta": 0.2, "top_n_sigma": 1.5,
            "dynatemp_range": 0.5, "dynatemp_exponent": 2, "adaptive_target": 0.3, "adaptive_decay": 0.5, "min_keep": 3,
            "dry_penalty_last_n": -1, "dry_sequence_breakers": "[\"x\", \"\\n\"]", "samplers": ["top_k", "temperature"],
            "t_max_predict_ms": 500, "t_max_prompt_ms": -1, "n_indent": 2, "speculative.n_max": 0, "cache_prompt": false}))
        .unwrap();
        let p = &params.sampling;
        assert_eq!((p.mirostat, p.mirostat_tau, p.mirostat_eta, p.top_n_sigma), (2, 4.0, 0.2, 1.5));
        assert_eq!((p.dynatemp_range, p.dynatemp_exponent), (0.5, 2.0));
        assert_eq!((p.adaptive_target, p.adaptive_decay, p.min_keep), (0.3, 0.5, 3));
        assert_eq!((p.dry_last, p.dry_breakers.clone()), (MAX_TOKENS, Some(vec!["x".into(), "\n".into()])));
        assert_eq!(p.samplers, Some(vec![SamplerKind::TopK, SamplerKind::Temperature]));
        assert_eq!((params.max_time, params.max_prompt_time), (Some(Duration::from_millis(500)), None));
        assert_eq!((params.min_indent, params.uncached, params.max_drafts), (2, true, Some(0)));
        // llama.cpp's letters, names with semicolons, and lists with alternative names.
        let order = |value: Value| read(json!({"samplers": value})).unwrap().sampling.samplers;
        assert_eq!(order("kt".into()), order(json!(["top-k", "temp"])));
        assert_eq!(order("top_k;temperature".into()), order(json!(["topk", "temperature"])));
        assert_eq!(order(json!([])), Some(vec![]));
        assert_eq!(read(json!({"dry_penalty_last_n": 0})).unwrap().sampling.dry_last, 0);
    }

    #[test]
    fn seeds_are_any_numbers_of_64_bits() {
        let seed = |value: Value| read(json!({"seed": value})).unwrap().sampling.seed;
        assert_eq!(seed(json!(9_223_372_036_854_775_808u64)), 1 << 63);
        assert_eq!(seed(json!(u64::MAX)), u64::MAX);
        assert_eq!(seed(json!(7.0)), 7);
        assert_eq!(seed(json!(-5)), (-5i64) as u64);
        // −1 asks for a random seed.
        assert_ne!(seed(json!(-1)), seed(json!(-1)));
        // Huge numbers saturate.
        let most = |value: Value| {
            let value = json!({"n_predict": value});
            max_tokens(&ObjectFields::of(&value, "").unwrap(), &["n_predict"])
        };
        assert_eq!(most(json!(u64::MAX)).unwrap(), Some(MAX_TOKENS));
        assert_eq!(most(json!(1e300)).unwrap(), Some(MAX_TOKENS));
        assert!(most(json!(1.5)).is_err());
    }

    #[test]
    fn constraints_have_many_names() {
        let of = |value: Value| shape(&ObjectFields::of(&value, "").unwrap(), &Limits::default());
        let schema = json!({"type": "object"});
        assert_eq!(of(json!({"response_format": {"type": "text"}})).unwrap(), OutputConstraint::Free);
        assert_eq!(of(json!({"response_format": {"type": "json_object"}})).unwrap(), OutputConstraint::Json);
        let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        assert_eq!(of(format).unwrap(), OutputConstraint::Schema(schema.clone()));
        assert_eq!(of(json!({"json_schema": schema})).unwrap(), OutputConstraint::Schema(schema));
        assert_eq!(
            of(json!({"grammar": "root ::= \"a\""})).unwrap(),
            OutputConstraint::Grammar("root ::= \"a\"".into())
        );
        assert!(of(json!({"response_format": {"type": "yaml"}})).is_err());
        assert!(of(json!({"response_format": {"type": "json_schema"}})).is_err());
        assert!(of(json!({"grammar": "a".repeat(70_000)})).is_err());
    }
}
