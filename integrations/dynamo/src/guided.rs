//! Guided decoding: Dynamo's options as a constraint of an answer.

use crate::error::{failed, invalid};
use dynamo_backend_common::{DynamoError, GuidedDecodingOptions};
use latent_engine::LogitsProcessor;
use latent_grammar::{GrammarError, GrammarLimits, GrammarSource, Grammars};
use latent_text::Tokenizer;
use serde_json::Value;
use std::sync::OnceLock;

/// Compiles constraints; made when the first is needed, since that takes as long as loading a
/// tokenizer.
#[derive(Default)]
pub(crate) struct Guide(OnceLock<Result<Grammars, GrammarError>>);

impl Guide {
    /// What makes an answer follow the constraint. Takes its time: for a thread that may wait.
    pub(crate) fn constraint(
        &self,
        source: &GrammarSource,
        tokenizer: &Tokenizer,
    ) -> Result<Box<dyn LogitsProcessor>, DynamoError> {
        let made = self.0.get_or_init(|| Grammars::new(tokenizer, GrammarLimits::default()));
        let grammars = made.as_ref().map_err(error)?;
        Ok(Box::new(grammars.compile(source, None).map_err(|problem| error(&problem))?.constraint()))
    }
}

fn error(problem: &GrammarError) -> DynamoError {
    if problem.is_of_request() { invalid(problem.to_string()) } else { failed(problem.to_string()) }
}

/// The one constraint that is asked for, if any.
pub(crate) fn source(options: &GuidedDecodingOptions) -> Result<Option<GrammarSource>, DynamoError> {
    options.validate().map_err(|problem| invalid(problem.to_string()))?;
    if options.structural_tag.is_some() {
        return Err(invalid("structural_tag is not supported: give json, regex, choice or grammar"));
    }
    if options.whitespace_pattern.is_some() {
        return Err(invalid(
            "whitespace_pattern is not supported: blanks in JSON are as the model writes them",
        ));
    }
    Ok(match options {
        GuidedDecodingOptions { json: Some(schema), .. } => Some(json(schema)?),
        GuidedDecodingOptions { regex: Some(regex), .. } => Some(GrammarSource::Regex(regex.clone())),
        GuidedDecodingOptions { grammar: Some(grammar), .. } => Some(GrammarSource::grammar(grammar.clone())),
        GuidedDecodingOptions { choice: Some(choice), .. } if !choice.is_empty() => {
            Some(GrammarSource::Choice(choice.clone()))
        }
        _ => None,
    })
}

/// A schema, which may come as text. One that only asks for an object is what `json_object` becomes
/// in the frontend.
fn json(schema: &Value) -> Result<GrammarSource, DynamoError> {
    let schema = match schema {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|problem| invalid(format!("the JSON schema is not valid JSON: {problem}")))?,
        schema => schema.clone(),
    };
    let any_object = schema.as_object().is_some_and(|map| map.len() == 1 && map["type"] == "object");
    Ok(if any_object { GrammarSource::JsonObject } else { GrammarSource::JsonSchema(schema) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_of_constraint_is_understood_and_others_are_refused() {
        let of = |value: Value| source(&serde_json::from_value(value).unwrap());
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        assert_eq!(of(json!({})).unwrap(), None);
        assert_eq!(of(json!({"choice": []})).unwrap(), None);
        assert_eq!(of(json!({"json": schema})).unwrap(), Some(GrammarSource::JsonSchema(schema.clone())));
        assert_eq!(of(json!({"json": schema.to_string()})).unwrap(), Some(GrammarSource::JsonSchema(schema)));
        assert_eq!(of(json!({"json": {"type": "object"}})).unwrap(), Some(GrammarSource::JsonObject));
        assert_eq!(
            of(json!({"choice": ["a", "b"]})).unwrap(),
            Some(GrammarSource::Choice(vec!["a".into(), "b".into()]))
        );
        assert_eq!(
            of(json!({"regex": "a+", "backend": "xgrammar"})).unwrap(),
            Some(GrammarSource::Regex("a+".into()))
        );
        assert!(of(json!({"json": "{"})).unwrap_err().to_string().contains("no JSON"));
        assert!(of(json!({"regex": "a", "grammar": "b"})).is_err());
        assert!(of(json!({"structural_tag": {}})).unwrap_err().to_string().contains("structural_tag"));
    }
}
