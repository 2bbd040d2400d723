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
            "responses": {"200": {"description": "The result. With `stream`, server-sent events, or JSON lines in the Ollama API"},
                "default": {"description": "An error in the format of the API"}},
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
            "description": "Inference server with the APIs of OpenAI, Anthropic, llama.cpp and Ollama. Fields that are not listed are ignored.",
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
        // Expanded here from the engine's table, so that the document lists exactly the fields that
        // the parser accepts.
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
    ("dry_sequence_breakers", "string[]", "DRY: strings that end a repetition"),
    (
        "samplers",
        "array|string",
        "Samplers in the order in which they run: a list of names, or a string of letters",
    ),
    ("seed", "integer", "Seed of the random number generator; -1: random"),
    ("logit_bias", "object|array", "Biases of token ids or strings; false bans them"),
    ("ignore_eos", "boolean", "Whether to ban the tokens that end a generation"),
    ("stop_token_ids", "integer[]", "Additional token ids that end the generation"),
    ("allowed_token_ids", "integer[]", "Token ids that may be generated; all others are banned"),
    ("bad_words", "string[]", "Words that must not be generated"),
    ("min_tokens", "integer", "Minimum number of tokens to generate"),
    (
        "n_indent",
        "integer",
        "Minimum indentation, in spaces, of all lines but the first; the generation ends before a line with less",
    ),
    (
        "speculative.n_max",
        "integer",
        "0: do not use draft tokens for this request; the result is the same. Other values are ignored",
    ),
    (
        "t_max_predict_ms",
        "integer",
        "Time limit in milliseconds from the first token, after which the generation ends at the next line break; -1: no limit",
    ),
    ("t_max_prompt_ms", "integer", "Time limit in milliseconds for processing the prompt; -1: no limit"),
    ("cache_prompt", "boolean", "Whether to reuse cached tokens of the prompt; true by default"),
    (
        "post_sampling_probs",
        "boolean",
        "Whether to report probabilities after all samplers, as prob and top_probs",
    ),
    ("priority", "integer", "Scheduling priority; requests with smaller numbers run first"),
    (
        "n_keep",
        "integer",
        "Number of tokens at the beginning that --context-shift keeps; -1: the whole prompt",
    ),
    (
        "n_discard",
        "integer",
        "Number of tokens after them that --context-shift discards at once; 0: half of them",
    ),
    ("id_slot", "integer", "Slot of the request; -1: any"),
];

/// Fields that constrain the answer.
const SHAPES: &[ApiField] = &[
    ("response_format", "object", "Format of the output: text, json_object, or json_schema with a schema"),
    ("json_schema", "object", "JSON schema of the output (llama.cpp); also guided_json"),
    ("grammar", "string", "Grammar of the output, in GBNF or Lark; also guided_grammar"),
    ("guided_regex", "string", "Regular expression that the output matches"),
    ("guided_choice", "string[]", "Strings, one of which is the output"),
    ("structured_outputs", "object", "Constraint in the form of vLLM: json, grammar, regex or choice"),
];

const COMMON: &[ApiField] = &[
    (
        "model",
        "string",
        "Name of the model; by default the first. A server with a single model accepts any name",
    ),
    ("stream", "boolean", "Whether to stream the result"),
    ("n", "integer", "Number of choices to generate"),
    ("stop", "string|array", "Stop strings; the output ends before the first of them"),
];

const CHAT: &[ApiField] = &[
    ("messages", "object[]!", "Messages of the conversation; a last message of the assistant is continued"),
    (
        "tools",
        "object[]",
        "Functions that the model may call; other types are ignored, custom tools are refused",
    ),
    ("tool_choice", "string|object", "Choice of tools: auto, none, required, a function, or allowed_tools"),
    ("parallel_tool_calls", "boolean", "Whether the model may call several functions at once"),
    ("max_completion_tokens", "integer", "Maximum number of tokens to generate; also max_tokens"),
    ("logprobs", "boolean", "Whether to report log-probabilities"),
    ("top_logprobs", "integer", "Number of alternatives per token to report log-probabilities of"),
    ("n_probs", "integer", "logprobs and top_logprobs as one number (llama.cpp)"),
    ("stream_options", "object", "Options of streaming: include_usage"),
    (
        "reasoning_effort",
        "string",
        "none, minimal, low, medium, high, or another value that the chat template supports",
    ),
    ("chat_template_kwargs", "object", "Variables of the chat template"),
    (
        "reasoning_format",
        "string",
        "none: keep reasoning and its markers in the content; auto or deepseek: separate them",
    ),
    (
        "reasoning_budget_tokens",
        "integer",
        "Maximum number of reasoning tokens; -1: no limit; also thinking_budget_tokens",
    ),
    (
        "reasoning_budget_message",
        "string",
        "Text to insert before the end-of-reasoning marker when the budget is used up",
    ),
    (
        "continue_final_message",
        "boolean",
        "Whether to continue the last message, which must be of the assistant",
    ),
    (
        "add_generation_prompt",
        "boolean",
        "Whether to begin a new message of the assistant; false: the prompt ends with the last message",
    ),
    ("return_progress", "boolean", "Whether to send prompt_progress while the prompt is processed"),
    ("timings_per_token", "boolean", "Whether to send timings with every chunk of a stream"),
    ("verbose", "boolean", "Whether to add the rendered prompt in __verbose"),
];

/// The bodies of requests.
const SCHEMAS: &[(&str, &[&[ApiField]])] = &[
    ("ChatCompletionRequest", &[COMMON, CHAT, SAMPLERS, SHAPES]),
    (
        "CompletionRequest",
        &[
            &[("prompt", "any!", "A string, token ids, or a list of either")],
            COMMON,
            &[
                ("max_tokens", "integer", "Maximum number of tokens to generate; default 16"),
                ("logprobs", "integer", "Number of alternatives per token to report log-probabilities of"),
                ("echo", "boolean", "Whether to begin the output with the prompt"),
                ("suffix", "string", "Text after the completion, for models with fill-in-the-middle"),
                ("stream_options", "object", "Options of streaming: include_usage"),
            ],
            SAMPLERS,
            SHAPES,
        ],
    ),
    (
        "EmbeddingRequest",
        &[&[
            ("input", "any!", "A string, token ids, or a list of either"),
            ("model", "string", "Name of the model"),
            ("encoding_format", "string", "float or base64"),
            (
                "embd_normalize",
                "integer",
                "Normalization: -1 none, 0 maximum absolute value in the range of int16, 2 Euclidean, other numbers p-norm",
            ),
            ("dimensions", "integer", "Must be the hidden size of the model if set"),
        ]],
    ),
    (
        "ResponseRequest",
        &[
            &[
                ("input", "any", "A string or a list of items"),
                ("instructions", "string", "System prompt"),
                ("model", "string", "Name of the model"),
                ("stream", "boolean", "Whether to stream the response as typed events"),
                ("previous_response_id", "string", "Id of a stored response to continue"),
                ("store", "boolean", "Whether to store the response in memory, within a budget"),
                ("max_output_tokens", "integer", "Maximum number of tokens to generate"),
                (
                    "return_progress",
                    "boolean",
                    "Whether to send prompt_progress while the prompt is processed",
                ),
                ("timings_per_token", "boolean", "Whether to send timings with every text delta"),
                (
                    "tools",
                    "object[]",
                    "Functions, also in namespaces; other types are ignored, custom tools are refused",
                ),
                (
                    "tool_choice",
                    "string|object",
                    "Choice of tools: auto, none, required, a function, or allowed_tools",
                ),
                ("parallel_tool_calls", "boolean", "Whether the model may call several functions at once"),
                ("reasoning", "object", "Options of reasoning: effort"),
                ("text", "object", "Options of the output: format (text, json_object or json_schema)"),
                ("include", "string[]", "Additional output: message.output_text.logprobs"),
                (
                    "top_logprobs",
                    "integer",
                    "Number of alternatives per token to report log-probabilities of",
                ),
                ("chat_template_kwargs", "object", "Variables of the chat template"),
            ],
            SAMPLERS,
        ],
    ),
    (
        "MessagesRequest",
        &[
            &[
                ("messages", "object[]!", "Messages of the conversation"),
                ("max_tokens", "integer", "Maximum number of tokens to generate; required for /v1/messages"),
                ("system", "string|array", "System prompt"),
                ("model", "string", "Name of the model"),
                ("stream", "boolean", "Whether to stream the message as events"),
                ("stop_sequences", "string[]", "Stop strings; the output ends before the first of them"),
                ("tools", "object[]", "Tools with an input_schema; tools that the provider runs are ignored"),
                ("tool_choice", "object", "Choice of tools: auto, any, tool or none"),
                ("thinking", "object", "Type of thinking: enabled, disabled, adaptive or between-tools"),
                ("output_config", "object", "Options of the output: effort, and format with a JSON schema"),
            ],
            SAMPLERS,
        ],
    ),
    (
        "LlamaCompletionRequest",
        &[
            &[
                ("prompt", "any!", "A string, token ids, a list of both, or a list of prompts"),
                ("n_predict", "integer", "Maximum number of tokens to generate; -1: no limit"),
                ("n_probs", "integer", "Number of alternatives per token to report log-probabilities of"),
                ("response_fields", "string[]", "Fields to return, as paths with slashes"),
                ("return_tokens", "boolean", "Whether to return token ids"),
                (
                    "return_progress",
                    "boolean",
                    "Whether to send prompt_progress while the prompt is processed",
                ),
                ("timings_per_token", "boolean", "Whether to send timings with every chunk of a stream"),
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
                ("input_prefix", "string|array!", "Text before the cursor"),
                ("input_suffix", "string|array!", "Text after the cursor"),
                ("input_extra", "object[]", "Other files as context: `filename` and `text`"),
                ("prompt", "string", "Text with which the generated text begins"),
                ("n_predict", "integer", "Maximum number of tokens to generate; -1: no limit"),
                ("n_probs", "integer", "Number of alternatives per token to report log-probabilities of"),
                ("return_tokens", "boolean", "Whether to return token ids"),
            ],
            COMMON,
            SAMPLERS,
            SHAPES,
        ],
    ),
    (
        "TokenizeRequest",
        &[&[
            ("content", "string!", "Text to tokenize"),
            ("add_special", "boolean", "Whether to add the tokens that begin a prompt"),
            ("parse_special", "boolean", "Whether to convert names of control tokens to these tokens"),
            ("with_pieces", "boolean", "Whether to return the text of each token"),
        ]],
    ),
    ("DetokenizeRequest", &[&[("tokens", "integer[]!", "Token ids")]]),
    (
        "OllamaChatRequest",
        &[&[
            ("model", "string", "Name of the model"),
            (
                "keep_alive",
                "string|number",
                "Time until the model is unloaded, if the server has several models; 0: immediately, -1: never",
            ),
            ("messages", "object[]", "Messages of the conversation"),
            ("tools", "object[]", "Functions that the model may call"),
            ("think", "any", "Whether to reason (true, false), or the effort"),
            ("format", "any", "Format of the output: \"json\" or a JSON schema"),
            ("options", "object", "Options: sampling parameters, stop and num_predict"),
            ("stream", "boolean", "Whether to stream JSON lines; true by default"),
        ]],
    ),
    (
        "OllamaGenerateRequest",
        &[&[
            ("model", "string", "Name of the model"),
            (
                "keep_alive",
                "string|number",
                "Time until the model is unloaded, if the server has several models; 0: immediately, -1: never",
            ),
            ("prompt", "string", "User message, or the whole prompt if `raw` is set"),
            ("suffix", "string", "Text after the completion, for models with fill-in-the-middle"),
            ("system", "string", "System prompt"),
            ("raw", "boolean", "Whether to bypass the chat template"),
            ("think", "any", "Whether to reason (true, false), or the effort"),
            ("format", "any", "Format of the output: \"json\" or a JSON schema"),
            ("options", "object", "Options: sampling parameters, stop and num_predict"),
            ("stream", "boolean", "Whether to stream JSON lines; true by default"),
        ]],
    ),
    (
        "SlotRequest",
        &[&[("filename", "string", "File name in the directory of --slot-save-path; not used by `erase`")]],
    ),
    (
        "StreamLookupRequest",
        &[&[("conversation_ids", "string[]!", "Names of conversations; a name also matches NAME::MODEL")]],
    ),
    ("ModelRequest", &[&[("model", "string!", "Name of the model")]]),
    (
        "OllamaEmbedRequest",
        &[&[
            ("model", "string", "Name of the model"),
            ("input", "string|array!", "A string or a list of strings"),
            ("truncate", "boolean", "Whether to truncate texts that are too long; true by default"),
            ("dimensions", "integer", "Must be the hidden size of the model if set"),
        ]],
    ),
    (
        "OllamaEmbeddingsRequest",
        &[&[
            ("model", "string", "Name of the model"),
            ("prompt", "string", "Text to embed; if missing, the model is only loaded"),
        ]],
    ),
    ("OllamaShowRequest", &[&[("model", "string", "Name of the model")]]),
];
