//! Generates the OpenAPI document from the route table.

use latent_engine::sampling::{SamplingField, SamplingNumber};
use serde_json::{Map, Value, json};

/// An operation of the API: method, path, summary, and the name of its body's schema.
pub(crate) struct ApiOperation {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) body: &'static str,
}

/// The OpenAPI document.
pub(crate) fn document<'a>(operations: impl Iterator<Item = &'a ApiOperation>) -> Value {
    let mut paths = Map::new();
    for ApiOperation { method, path, summary, body } in operations {
        let mut operation = json!({
            "summary": summary,
            "responses": {"200": {"description": "The answer; with `stream` server-sent events, or JSON lines in Ollama's interface"},
                "default": {"description": "An error in the form of the interface"}},
        });
        if !body.is_empty() {
            let schema = json!({"$ref": format!("#/components/schemas/{}", body)});
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        // Each route has at most one parameter.
        if let Some((_, rest)) = path.split_once('{') {
            let name = rest.split('}').next().unwrap_or_default();
            operation["parameters"] =
                json!([{"name": name, "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        // Several methods of a path are one entry.
        let path = paths.entry(*path).or_insert_with(|| json!({}));
        path[*method] = operation;
    }
    let schemas: Map<String, Value> =
        SCHEMAS.iter().map(|(name, fields)| ((*name).to_owned(), schema(fields))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "latent serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "A loaded model through the interfaces of OpenAI, Anthropic, llama.cpp and Ollama. Fields that are not listed are ignored.",
            "license": {"name": "MIT OR Apache-2.0"},
        },
        "security": [{"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
            "schemas": schemas,
        },
    })
}

/// A field: name, type, description. A type may be a union (`string|array`), a list (`string[]`) or
/// `any`. A `!` at its end marks a required field.
type ApiField = (&'static str, &'static str, &'static str);

fn schema(groups: &[&[ApiField]]) -> Value {
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, kind, meaning) in groups.iter().copied().flatten() {
        if *name == NUMBERS {
            properties.extend(SamplingField::all().iter().map(number));
            continue;
        }
        let bare = kind.trim_end_matches('!');
        if bare.len() < kind.len() {
            required.push(*name);
        }
        let mut property = match bare.strip_suffix("[]") {
            Some(item) => json!({"type": "array", "items": {"type": item}}),
            None if bare == "any" => json!({}),
            None if bare.contains('|') => json!({"type": bare.split('|').collect::<Vec<_>>()}),
            None => json!({"type": bare}),
        };
        property["description"] = (*meaning).into();
        properties.insert((*name).to_owned(), property);
    }
    json!({"type": "object", "properties": properties, "required": required})
}

/// A placeholder for all numeric sampling fields, whose table is in the engine.
const NUMBERS: &str = "numbers of sampling";

fn number(field: &SamplingField) -> (String, Value) {
    let kind = match field.number {
        SamplingNumber::Real { .. } => "number",
        SamplingNumber::Count { .. } => "integer",
    };
    let also = field.aliases.iter().map(|alias| format!("; also {alias}")).collect::<String>();
    (field.name.to_owned(), json!({"type": kind, "description": format!("{}{also}", field.about)}))
}

/// Sampling fields of all APIs.
const SAMPLERS: &[ApiField] = &[
    (NUMBERS, "", ""),
    ("dry_sequence_breakers", "string[]", "Texts that no repetition reaches across for DRY"),
    ("samplers", "array|string", "The samplers that run, in this order: names, or a text of letters"),
    ("seed", "integer", "Seed of the random choice; -1: any"),
    ("logit_bias", "object|array", "Token ids or texts with a bias; false bans"),
    ("ignore_eos", "boolean", "Ban the tokens that end an answer"),
    ("stop_token_ids", "integer[]", "Tokens that end the answer as the model's end does"),
    ("allowed_token_ids", "integer[]", "The only tokens that can be chosen"),
    ("bad_words", "string[]", "Words whose tokens are never chosen in a row"),
    ("min_tokens", "integer", "Tokens of the answer before it may end"),
    (
        "n_indent",
        "integer",
        "Minimum indentation of each line but the first, in blanks; the answer ends before a line with less",
    ),
    ("speculative.n_max", "integer", "0: verify no drafts for this answer; its text is the same"),
    (
        "t_max_predict_ms",
        "integer",
        "Milliseconds from the first token after which the answer ends with its line; -1: no limit",
    ),
    ("t_max_prompt_ms", "integer", "Milliseconds after which the prompt is given up; -1: no limit"),
    ("cache_prompt", "boolean", "Whether cached tokens of the prompt are used; true where nothing is said"),
    ("post_sampling_probs", "boolean", "Report probabilities after all samplers, as prob and top_probs"),
    ("priority", "integer", "Smaller numbers go first"),
    ("n_keep", "integer", "Tokens at the beginning that --context-shift keeps; -1: the whole prompt"),
    ("n_discard", "integer", "Tokens after them that it discards at once; 0: half of them"),
    ("id_slot", "integer", "The slot that shows the request, and can be saved; -1: any"),
];

/// Fields that constrain the answer.
const SHAPES: &[ApiField] = &[
    ("response_format", "object", "text, json_object, or json_schema with a schema"),
    ("json_schema", "object", "llama.cpp's name for a schema; also guided_json"),
    ("grammar", "string", "A grammar in GBNF or Lark; also guided_grammar"),
    ("guided_regex", "string", "A regular expression"),
    ("guided_choice", "string[]", "One of these texts"),
    ("structured_outputs", "object", "vLLM's form of the same: json, grammar, regex or choice"),
];

const COMMON: &[ApiField] = &[
    ("model", "string", "The model's name; by default the first. A single model answers under any name"),
    ("stream", "boolean", "Send the answer as it comes"),
    ("n", "integer", "How many answers"),
    ("stop", "string|array", "Texts before which the answer ends"),
];

const CHAT: &[ApiField] = &[
    ("messages", "object[]!", "The conversation; an assistant's last message is continued"),
    (
        "tools",
        "object[]",
        "Functions that the model may call; other types are left out, custom tools refused",
    ),
    ("tool_choice", "string|object", "auto, none, required, a function, or allowed_tools"),
    ("parallel_tool_calls", "boolean", "Whether several may be called at once"),
    ("max_completion_tokens", "integer", "Most tokens of the answer; also max_tokens"),
    ("logprobs", "boolean", "Report log-probabilities"),
    ("top_logprobs", "integer", "Of this many alternatives"),
    ("n_probs", "integer", "llama.cpp's name for both"),
    ("stream_options", "object", "include_usage"),
    (
        "reasoning_effort",
        "string",
        "none, minimal, low, medium, high, …, as far as the chat template knows them",
    ),
    ("chat_template_kwargs", "object", "Variables of the chat template"),
    ("reasoning_format", "string", "none: reasoning and its markers stay in the content; auto or deepseek"),
    (
        "reasoning_budget_tokens",
        "integer",
        "Maximum number of reasoning tokens; also thinking_budget_tokens; -1: no limit",
    ),
    ("reasoning_budget_message", "string", "What is written before the marker that ends the reasoning"),
    ("continue_final_message", "boolean", "Continue the last message, which must be the assistant's"),
    (
        "add_generation_prompt",
        "boolean",
        "Answer after the last message, even if it is the assistant's; false: the prompt ends with that message",
    ),
    ("return_progress", "boolean", "Send prompt_progress while the prompt runs"),
    ("timings_per_token", "boolean", "Send timings with every piece of a stream"),
    ("verbose", "boolean", "Add the prompt as the model reads it in __verbose"),
];

/// The bodies of requests.
const SCHEMAS: &[(&str, &[&[ApiField]])] = &[
    ("ChatCompletionRequest", &[COMMON, CHAT, SAMPLERS, SHAPES]),
    (
        "CompletionRequest",
        &[
            &[("prompt", "any!", "A text, token ids, or a list of either")],
            COMMON,
            &[
                ("max_tokens", "integer", "Most tokens of the answer; 16 where nothing is said"),
                ("logprobs", "integer", "Report log-probabilities of this many alternatives"),
                ("echo", "boolean", "Begin the answer with the prompt"),
                ("suffix", "string", "The text after the answer, for models that fill in the middle"),
                ("stream_options", "object", "include_usage"),
            ],
            SAMPLERS,
            SHAPES,
        ],
    ),
    (
        "EmbeddingRequest",
        &[&[
            ("input", "any!", "A text, token ids, or a list of either"),
            ("model", "string", "The model's name"),
            ("encoding_format", "string", "float or base64"),
            (
                "embd_normalize",
                "integer",
                "2: length 1; -1: not normalised; 0: the range of 16-bit integers; else a p-norm",
            ),
            ("dimensions", "integer", "The model's hidden size, if anything"),
        ]],
    ),
    (
        "ResponseRequest",
        &[
            &[
                ("input", "any", "A text or a list of items"),
                ("instructions", "string", "What the system says"),
                ("model", "string", "The model's name"),
                ("stream", "boolean", "Send typed events"),
                ("previous_response_id", "string", "A stored response that this one goes on from"),
                ("store", "boolean", "Keep the response in memory, within a budget"),
                ("max_output_tokens", "integer", "Most tokens of the answer"),
                ("return_progress", "boolean", "Send prompt_progress while the prompt runs"),
                ("timings_per_token", "boolean", "Send timings with every piece of text"),
                (
                    "tools",
                    "object[]",
                    "Functions, also in namespaces; other types are left out, custom tools refused",
                ),
                ("tool_choice", "string|object", "auto, none, required, a function, or allowed_tools"),
                ("parallel_tool_calls", "boolean", "Whether several may be called at once"),
                ("reasoning", "object", "effort"),
                ("text", "object", "format: text, json_object, or json_schema"),
                ("include", "string[]", "message.output_text.logprobs"),
                ("top_logprobs", "integer", "Of this many alternatives"),
                ("chat_template_kwargs", "object", "Variables of the chat template"),
            ],
            SAMPLERS,
        ],
    ),
    (
        "MessagesRequest",
        &[
            &[
                ("messages", "object[]!", "The conversation"),
                ("max_tokens", "integer", "Most tokens of the answer; required for an answer"),
                ("system", "string|array", "What the system says"),
                ("model", "string", "The model's name"),
                ("stream", "boolean", "Send events"),
                ("stop_sequences", "string[]", "Texts before which the answer ends"),
                ("tools", "object[]", "Tools with an input_schema; those of the provider are left out"),
                ("tool_choice", "object", "auto, any, tool or none"),
                ("thinking", "object", "enabled, disabled, adaptive or between-tools"),
                ("output_config", "object", "effort, and format with a JSON schema"),
            ],
            SAMPLERS,
        ],
    ),
    (
        "LlamaCompletionRequest",
        &[
            &[
                ("prompt", "any!", "A text, token ids, both in turn, or a list of prompts"),
                ("n_predict", "integer", "Most tokens of the answer; -1: no limit"),
                ("n_probs", "integer", "Report log-probabilities of this many alternatives"),
                ("response_fields", "string[]", "The only fields of the answer, as paths with slashes"),
                ("return_tokens", "boolean", "Report token ids"),
                ("return_progress", "boolean", "Send prompt_progress while the prompt runs"),
                ("timings_per_token", "boolean", "Send timings with every piece of a stream"),
            ],
            COMMON,
            SAMPLERS,
            SHAPES,
        ],
    ),
    (
        "InfillRequest",
        &[
            &[
                ("input_prefix", "string|array!", "The text before the gap"),
                ("input_suffix", "string|array!", "The text after the gap"),
                ("input_extra", "object[]", "Texts of other files: `filename` and `text`"),
                ("prompt", "string", "What the text in the gap begins with"),
                ("n_predict", "integer", "Most tokens of the answer; -1: no limit"),
                ("n_probs", "integer", "Report log-probabilities of this many alternatives"),
                ("return_tokens", "boolean", "Report token ids"),
            ],
            COMMON,
            SAMPLERS,
            SHAPES,
        ],
    ),
    (
        "TokenizeRequest",
        &[&[
            ("content", "string!", "The text"),
            ("add_special", "boolean", "Add the tokens that begin a prompt"),
            ("parse_special", "boolean", "Read names of control tokens as those tokens"),
            ("with_pieces", "boolean", "Report each token's text"),
        ]],
    ),
    ("DetokenizeRequest", &[&[("tokens", "integer[]!", "Token ids")]]),
    (
        "OllamaChatRequest",
        &[&[
            ("model", "string", "The model's name"),
            (
                "keep_alive",
                "string|number",
                "How long the model stays loaded afterwards if the server has several; 0: unload, -1: forever",
            ),
            ("messages", "object[]", "The conversation"),
            ("tools", "object[]", "Functions that the model may call"),
            ("think", "any", "true, false, or how much"),
            ("format", "any", "\"json\" or a JSON schema"),
            ("options", "object", "Samplers, stop and num_predict"),
            ("stream", "boolean", "JSON lines as they come, unless false"),
        ]],
    ),
    (
        "OllamaGenerateRequest",
        &[&[
            ("model", "string", "The model's name"),
            (
                "keep_alive",
                "string|number",
                "How long the model stays loaded afterwards if the server has several; 0: unload, -1: forever",
            ),
            ("prompt", "string", "The question; with `raw` the whole prompt"),
            ("suffix", "string", "The text after the gap that the answer fills"),
            ("system", "string", "What the system says"),
            ("raw", "boolean", "Use no chat template"),
            ("think", "any", "true, false, or how much"),
            ("format", "any", "\"json\" or a JSON schema"),
            ("options", "object", "Samplers, stop and num_predict"),
            ("stream", "boolean", "JSON lines as they come, unless false"),
        ]],
    ),
    ("SlotRequest", &[&[("filename", "string", "File in the folder of --slot-save-path; not for `erase`")]]),
    (
        "StreamLookupRequest",
        &[&[(
            "conversation_ids",
            "string[]!",
            "Names of conversations; also those of NAME::MODEL are found",
        )]],
    ),
    ("ModelRequest", &[&[("model", "string!", "The model's name")]]),
    (
        "OllamaEmbedRequest",
        &[&[
            ("model", "string", "The model's name"),
            ("input", "string|array!", "A text or a list of texts"),
            ("truncate", "boolean", "Use the beginning of texts that are too long, unless false"),
            ("dimensions", "integer", "The model's hidden size, if anything"),
        ]],
    ),
    (
        "OllamaEmbeddingsRequest",
        &[&[
            ("model", "string", "The model's name"),
            ("prompt", "string", "A text; without one the model is loaded"),
        ]],
    ),
    ("OllamaShowRequest", &[&[("model", "string", "The model's name")]]),
];
