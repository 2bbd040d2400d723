//! What every dialect can say about how an answer is chosen, under the names that OpenAI's and llama.cpp's clients use.

use crate::error::ApiError;
use crate::ids;
use crate::json::{Fields, kind, text_len};
use crate::limits::Limits;
use crate::model::AboutModel;
use latent_engine::sampling::SamplingParams;
use latent_grammar::Source;
use serde_json::Value;

/// How an answer is generated, whoever asked.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) sampling: SamplingParams,
    /// Most tokens of the answer; none: until the model ends or the context is full.
    pub(crate) max_tokens: Option<usize>,
    pub(crate) stop: Vec<String>,
    /// Report log-probabilities of this many alternatives.
    pub(crate) logprobs: Option<usize>,
    /// Answers.
    pub(crate) n: usize,
    /// Whether the model's end is banned.
    pub(crate) ignore_eos: bool,
    /// What the text must be.
    pub(crate) shape: Shape,
    pub(crate) priority: i32,
}

/// What an answer's text must be.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum Shape {
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

/// More tokens than any model takes; few enough that sums cannot overflow.
const MAX_TOKENS: usize = 1 << 30;

impl Params {
    /// The settings of a request that says nothing.
    pub(crate) fn new(about: &AboutModel) -> Params {
        let seed = about.defaults.seed.unwrap_or_else(ids::seed);
        Params {
            sampling: SamplingParams { seed, ..about.sampling.clone() },
            max_tokens: about.defaults.max_tokens,
            stop: about.defaults.stop.clone(),
            logprobs: None,
            n: 1,
            ignore_eos: about.defaults.ignore_eos,
            shape: Shape::Free,
            priority: 0,
        }
    }

    /// Reads the fields of all samplers, `seed`, `stop`, `logit_bias`, `ignore_eos`, `n` and `priority`.
    pub(crate) fn read(fields: &Fields<'_>, about: &AboutModel, limits: &Limits) -> Result<Params, ApiError> {
        let mut params = Params::new(about);
        params.read_samplers(fields)?;
        if let Some(n) = fields.usize("n")? {
            if n == 0 {
                return Err(fields.error("n", "expected at least 1"));
            }
            limits.check(&fields.path("n"), "choices", n, limits.choices)?;
            params.n = n;
        }
        params.read_stop(fields, "stop", limits)?;
        params.sampling.logit_bias.extend(logit_bias(fields, limits)?);
        params.ignore_eos = fields.bool("ignore_eos")?.unwrap_or(params.ignore_eos);
        let priority = fields.i64("priority")?.unwrap_or(0);
        // vLLM's numbers: a smaller one goes first
        params.priority = i32::try_from(-priority.clamp(-1000, 1000)).unwrap_or(0);
        Ok(params)
    }

    fn read_samplers(&mut self, fields: &Fields<'_>) -> Result<(), ApiError> {
        let p = &mut self.sampling;
        let reals: [(&[&'static str], &mut f32); 12] = [
            (&["temperature"], &mut p.temperature),
            (&["top_p"], &mut p.top_p),
            (&["min_p"], &mut p.min_p),
            (&["typical_p", "typical"], &mut p.typical),
            (&["repeat_penalty", "repetition_penalty"], &mut p.repeat_penalty),
            (&["presence_penalty"], &mut p.presence_penalty),
            (&["frequency_penalty"], &mut p.frequency_penalty),
            (&["dry_multiplier"], &mut p.dry_multiplier),
            (&["dry_base"], &mut p.dry_base),
            (&["xtc_probability"], &mut p.xtc_probability),
            (&["xtc_threshold"], &mut p.xtc_threshold),
            (&[], &mut 0.0),
        ];
        for (names, target) in reals {
            for name in names {
                if let Some(value) = fields.f32(name)? {
                    *target = value;
                }
            }
        }
        // −1 stands for "all" in llama.cpp and vLLM
        let counts: [(&str, &mut usize, usize); 4] = [
            ("top_k", &mut p.top_k, 0),
            ("repeat_last_n", &mut p.penalty_last, MAX_TOKENS),
            ("dry_allowed_length", &mut p.dry_allowed, 0),
            ("dry_penalty_last_n", &mut p.dry_last, 0),
        ];
        for (name, target, all) in counts {
            match fields.i64(name)? {
                None => {}
                Some(-1) => *target = all,
                Some(count) => {
                    *target = usize::try_from(count)
                        .map_err(|_| fields.error(name, format!("{count} is less than 0")))?
                        .min(MAX_TOKENS);
                }
            }
        }
        match fields.i64("seed")? {
            None => {}
            Some(-1) => p.seed = ids::seed(),
            Some(seed) => p.seed = seed as u64,
        }
        Ok(())
    }

    /// Reads stop strings. As in `llama-server`, an empty list leaves those of the command line.
    pub(crate) fn read_stop(
        &mut self,
        fields: &Fields<'_>,
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

/// Most tokens of the answer under one of several names; −1 is none.
pub(crate) fn max_tokens(fields: &Fields<'_>, names: &[&'static str]) -> Result<Option<usize>, ApiError> {
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

/// A text or a list of texts.
pub(crate) fn texts(fields: &Fields<'_>, name: &str) -> Result<Vec<String>, ApiError> {
    match fields.get(name) {
        None => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text.clone()]),
        Some(Value::Array(list)) => {
            let text = |(i, value): (usize, &Value)| {
                let wrong = || {
                    fields.error(&format!("{name}[{i}]"), format!("expected a string, found {}", kind(value)))
                };
                value.as_str().map(str::to_owned).ok_or_else(wrong)
            };
            list.iter().enumerate().map(text).collect()
        }
        Some(other) => {
            Err(fields.error(name, format!("expected a string or a list of strings, found {}", kind(other))))
        }
    }
}

/// Stop strings.
fn stop(fields: &Fields<'_>, name: &str, limits: &Limits) -> Result<Vec<String>, ApiError> {
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
    stop.retain(|text| !text.is_empty());
    Ok(stop)
}

/// `{"ID": bias}` as in OpenAI's interface, or `[[ID, bias], [ID, false]]` as in llama.cpp's.
fn logit_bias(fields: &Fields<'_>, limits: &Limits) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let wrong = |problem: String| fields.error(NAME, problem);
    let id = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong(format!("{text:?} is no token id")));
    let bias = |value: &Value| match value {
        Value::Bool(false) => Ok(f32::NEG_INFINITY),
        value => value
            .as_f64()
            .map(|bias| bias as f32)
            .filter(|bias| bias.is_finite())
            .ok_or_else(|| wrong(format!("a bias is a finite number, found {}", kind(value)))),
    };
    let pairs: Vec<(u32, f32)> = match fields.get(NAME) {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) => {
            limits.check(NAME, NAME, map.len(), limits.logit_bias)?;
            map.iter().map(|(key, value)| Ok((id(key)?, bias(value)?))).collect::<Result<_, ApiError>>()?
        }
        Some(Value::Array(list)) => {
            limits.check(NAME, NAME, list.len(), limits.logit_bias)?;
            let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
                Some([key, value]) => match key.as_u64() {
                    Some(key) => Ok((id(&key.to_string())?, bias(value)?)),
                    None => Err(wrong("a token is given by its id".into())),
                },
                _ => Err(wrong("expected pairs of a token id and a bias".into())),
            };
            list.iter().map(pair).collect::<Result<_, ApiError>>()?
        }
        Some(other) => return Err(wrong(format!("expected an object or a list, found {}", kind(other)))),
    };
    Ok(pairs)
}

/// OpenAI's `response_format`, llama.cpp's `json_schema` and `grammar`, vLLM's `guided_*` and `structured_outputs`.
pub(crate) fn shape(fields: &Fields<'_>, limits: &Limits) -> Result<Shape, ApiError> {
    let mut shape = Shape::Free;
    if let Some(format) = fields.object("response_format")? {
        shape = match format.require_str("type")? {
            "text" => Shape::Free,
            "json_object" => match format.get("schema") {
                Some(schema) => Shape::schema(schema, "response_format", limits)?,
                None => Shape::Json,
            },
            "json_schema" => {
                let inner = format.object("json_schema")?.ok_or_else(|| format.missing("json_schema"))?;
                let schema = inner.get("schema").ok_or_else(|| inner.missing("schema"))?;
                Shape::schema(schema, "response_format", limits)?
            }
            other => {
                let problem = format!("{other:?} is none of text, json_object and json_schema");
                return Err(format.error("type", problem));
            }
        };
    }
    for name in ["json_schema", "guided_json"] {
        if let Some(schema) = fields.get(name) {
            shape = Shape::schema(schema, "response_format", limits)?;
        }
    }
    for name in ["grammar", "guided_grammar"] {
        if let Some(grammar) = fields.str(name)?.filter(|grammar| !grammar.is_empty()) {
            shape = Shape::Grammar(grammar.to_owned());
        }
    }
    if let Some(regex) = fields.str("guided_regex")? {
        shape = Shape::Regex(regex.to_owned());
    }
    if fields.get("guided_choice").is_some() {
        shape = Shape::Choice(texts(fields, "guided_choice")?);
    }
    if let Some(structured) = fields.object("structured_outputs")? {
        if let Some(schema) = structured.get("json") {
            shape = Shape::schema(schema, "response_format", limits)?;
        } else if let Some(grammar) = structured.str("grammar")? {
            shape = Shape::Grammar(grammar.to_owned());
        } else if let Some(regex) = structured.str("regex")? {
            shape = Shape::Regex(regex.to_owned());
        } else if structured.get("choice").is_some() {
            shape = Shape::Choice(texts(&structured, "choice")?);
        }
    }
    shape.check("response_format", limits)?;
    Ok(shape)
}

impl Shape {
    /// JSON of a schema that is not too large.
    pub(crate) fn schema(schema: &Value, param: &str, limits: &Limits) -> Result<Shape, ApiError> {
        check_bytes(text_len(schema), param, limits)?;
        Ok(Shape::Schema(schema.clone()))
    }

    /// What the grammars compile; none for free text.
    pub(crate) fn source(&self) -> Option<Source> {
        Some(match self {
            Shape::Free => return None,
            Shape::Json => Source::JsonObject,
            Shape::Schema(schema) => Source::JsonSchema(schema.clone()),
            Shape::Grammar(text) => Source::grammar(text.clone()),
            Shape::Regex(text) => Source::Regex(text.clone()),
            Shape::Choice(list) => Source::Choice(list.clone()),
        })
    }

    /// Refuses what is too large to compile.
    pub(crate) fn check(&self, param: &str, limits: &Limits) -> Result<(), ApiError> {
        let bytes = match self {
            Shape::Free | Shape::Json => 0,
            Shape::Schema(schema) => text_len(schema),
            Shape::Grammar(text) | Shape::Regex(text) => text.len(),
            Shape::Choice(list) => list.iter().map(String::len).sum(),
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

    fn read(value: Value) -> Result<Params, ApiError> {
        Params::read(&Fields::of(&value, "").unwrap(), &AboutModel::default(), &Limits::default())
    }

    #[test]
    fn samplers_have_the_names_of_clients() {
        let params = read(json!({"temperature": 0.5, "top_k": -1, "repetition_penalty": 1.25, "repeat_last_n": -1, "seed": 7,
            "logit_bias": {"3": -100, "4": 1.5}, "stop": "x", "n": 2, "min_p": null, "unknown": {"a": 1}}))
        .unwrap();
        let p = &params.sampling;
        assert_eq!((p.temperature, p.top_k, p.repeat_penalty, p.seed, params.n), (0.5, 0, 1.25, 7, 2));
        assert_eq!(p.penalty_last, MAX_TOKENS);
        assert_eq!(p.logit_bias, [(3, -100.0), (4, 1.5)]);
        assert_eq!(params.stop, ["x"]);
        assert_eq!(
            read(json!({"logit_bias": [[3, false]]})).unwrap().sampling.logit_bias,
            [(3, f32::NEG_INFINITY)]
        );
        assert_ne!(read(json!({})).unwrap().sampling.seed, read(json!({"seed": -1})).unwrap().sampling.seed);
    }

    #[test]
    fn what_is_out_of_range_names_its_field() {
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
            (json!({"logit_bias": {"x": 1}}), "logit_bias"),
            (json!({"logit_bias": {"-1": 1}}), "logit_bias"),
            (json!({"logit_bias": [[1]]}), "logit_bias"),
            (json!({"top_k": -2}), "top_k"),
            (json!({"seed": 1.5}), "seed"),
        ] {
            let error = read(value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(field), "{value}: {}", error.message);
        }
    }

    #[test]
    fn shapes_come_under_many_names() {
        let of = |value: Value| shape(&Fields::of(&value, "").unwrap(), &Limits::default());
        let schema = json!({"type": "object"});
        assert_eq!(of(json!({"response_format": {"type": "text"}})).unwrap(), Shape::Free);
        assert_eq!(of(json!({"response_format": {"type": "json_object"}})).unwrap(), Shape::Json);
        let format = json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}});
        assert_eq!(of(format).unwrap(), Shape::Schema(schema.clone()));
        assert_eq!(of(json!({"json_schema": schema})).unwrap(), Shape::Schema(schema));
        assert_eq!(
            of(json!({"grammar": "root ::= \"a\""})).unwrap(),
            Shape::Grammar("root ::= \"a\"".into())
        );
        assert!(of(json!({"response_format": {"type": "yaml"}})).is_err());
        assert!(of(json!({"response_format": {"type": "json_schema"}})).is_err());
        assert!(of(json!({"grammar": "a".repeat(70_000)})).is_err());
    }
}
