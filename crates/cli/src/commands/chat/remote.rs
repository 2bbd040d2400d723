//! A model of a server, over OpenAI's API.

use super::chunks::{ReplyChunk, ReplyChunks};
use super::file;
use super::partner::{AnswerAttempt, ChatAnswer, ChatQuestion, Partner, ReplyEnding};
use super::reply::Reply;
use crate::args::ChatArgs;
use crate::commands::chat_options::read_tools;
use crate::commands::constraint;
use crate::commands::conversation::MessageList;
use crate::exit::UsageError;
use crate::interrupt;
use crate::output::say;
use crate::server::{ServerClient, StreamLine, TIMEOUT, Trouble, of_model};
use anyhow::Result;
use latent_engine::sampling::SamplerKind;
use latent_formats::input_file;
use latent_grammar::GrammarSource;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// The endpoint of questions.
const CHAT_PATH: &str = "/v1/chat/completions";

/// Maximum consecutive bytes of a stream without a part of the answer.
const MAX_IDLE_BYTES: usize = 1 << 20;

/// Maximum bytes of the list of models and of the server's properties.
const MAX_ABOUT_BYTES: u64 = 4 << 20;

/// A server and the parameters of its requests.
pub(super) struct RemotePartner<'a> {
    server: ServerClient,
    /// The parameters of every request.
    parameters: Map<String, Value>,
    /// Context size in tokens, if the server reports it.
    context: Option<usize>,
    /// Tokens of the last prompt and its answer.
    used: usize,
    args: &'a ChatArgs,
}

impl RemotePartner<'_> {
    /// Connects to a server and gets its list of models. A server that is still loading is not an
    /// error.
    pub(super) fn open<'a>(url: &str, args: &'a ChatArgs) -> Result<RemotePartner<'a>> {
        // The requests block, and there is nothing to clean up yet.
        let _at_once = interrupt::at_once();
        let server = ServerClient::new(url, args.server.api_key_file.as_deref())?;
        if server.exposes_key() && !args.quiet {
            say(&format!(
                "(warning: the connection to {} is not encrypted, so others can read the key)",
                server.url()
            ));
        }
        let mut parameters = parameters(args)?;
        match server.get("/v1/models", MAX_ABOUT_BYTES, TIMEOUT) {
            Ok(list) => {
                let ModelSelection { model, others } = chosen(&list, args)?;
                if !args.quiet {
                    let others = match others.as_slice() {
                        [] => String::new(),
                        others => format!("; -m chooses another: {}", others.join(", ")),
                    };
                    let name = shortened(model.as_deref().unwrap_or("a model"));
                    say(&format!("{name} at {}{others}", server.url()));
                }
                parameters.extend(model.map(|model| ("model".to_owned(), model.into())));
            }
            Err(trouble @ (Trouble::NotReady { .. } | Trouble::Full { .. })) => say(&format!("({trouble})")),
            Err(trouble) => return Err(trouble.into()),
        }
        let mut remote = RemotePartner { server, parameters, context: None, used: 0, args };
        remote.context = remote.ask_context();
        Ok(remote)
    }

    /// The context size of the model; `None` if it is not loaded yet.
    fn ask_context(&self) -> Option<usize> {
        // `/props` is llama-server's (and Latent's). Other servers return 404, and the context size
        // stays unknown.
        let props = of_model("/props", self.parameters.get("model").and_then(Value::as_str));
        let about: Value =
            serde_json::from_str(&self.server.get(&props, MAX_ABOUT_BYTES, TIMEOUT).ok()?).ok()?;
        let context = about["default_generation_settings"]["n_ctx"].as_u64()?;
        usize::try_from(context).ok().filter(|context| *context > 0)
    }

    fn request(&self, conversation: &MessageList, again: u64) -> Value {
        let mut body = self.parameters.clone();
        // Only role and text: some servers reject messages with `reasoning_content`.
        let plain = |message: &Value| json!({"role": message["role"], "content": message["content"]});
        body.insert("messages".into(), conversation.messages().iter().map(plain).collect());
        body.insert("stream".into(), true.into());
        // Without it, OpenAI's servers report no token counts for streams.
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if let Some(seed) = self.args.sampling.fixed_seed() {
            body.insert("seed".into(), seed.wrapping_add(again).into());
        }
        Value::Object(body)
    }

    /// Reads a stream to its end.
    fn follow(&mut self, body: &Value, reply: &mut Reply<'_>) -> Result<(Result<(), Trouble>, ReplyChunks)> {
        let lines = self.server.post(CHAT_PATH, body);
        let mut chunks = ReplyChunks::default();
        let patience = Duration::from_secs_f64(self.args.server.timeout);
        // The timeout restarts when the answer grows, not with every line: a server that sends only
        // keep-alive comments would otherwise hold the chat forever.
        let (mut length, mut grown, mut idle) = (reply.len(), Instant::now(), 0);
        loop {
            let line = match lines.next(grown + patience) {
                Ok(Some(StreamLine::Line(line))) => line,
                Ok(None) => {
                    let (url, seconds) = (self.server.url().to_owned(), self.args.server.timeout);
                    return Ok((Err(Trouble::Stalled { url, seconds }), chunks));
                }
                Ok(Some(StreamLine::End)) => {
                    let problem = "the stream ended before the answer".to_owned();
                    let lost = Trouble::Lost { url: self.server.url().to_owned(), problem };
                    return Ok((if chunks.is_over() { Ok(()) } else { Err(lost) }, chunks));
                }
                Err(trouble) => return Ok((Err(trouble), chunks)),
            };
            let found = match chunks.push(&line) {
                Ok(found) => found,
                Err(problem) => {
                    return Ok((
                        Err(Trouble::Response { url: self.server.url().to_owned(), problem }),
                        chunks,
                    ));
                }
            };
            for chunk in found {
                match chunk {
                    ReplyChunk::Reasoning(text) => reply.reasoning(&text)?,
                    ReplyChunk::Content(text) => reply.content(&text)?,
                    ReplyChunk::Call { index, name, arguments } => reply.call(index, &name, &arguments)?,
                    ReplyChunk::Over => return Ok((Ok(()), chunks)),
                }
            }
            // Comments, empty events and dropped calls are not progress.
            if reply.len() > length {
                (length, grown, idle) = (reply.len(), Instant::now(), 0);
            } else {
                idle += line.len() + 1;
            }
            if idle > MAX_IDLE_BYTES {
                let problem =
                    format!("the server sent more than {MAX_IDLE_BYTES} bytes without any answer text");
                return Ok((Err(Trouble::Response { url: self.server.url().to_owned(), problem }), chunks));
            }
        }
    }
}

impl Partner for RemotePartner<'_> {
    fn answer(&mut self, question: ChatQuestion<'_>) -> Result<AnswerAttempt> {
        let body = self.request(question.conversation, question.again);
        let mut reply = Reply::new(question.screen);
        let start = Instant::now();
        let (ended, chunks) = self.follow(&body, &mut reply)?;
        if reply.is_empty() {
            match ended {
                Err(Trouble::Stopped) => return Ok(AnswerAttempt::Stopped),
                Err(trouble) => return Ok(AnswerAttempt::Failed(trouble.to_string())),
                Ok(()) => {}
            }
        }
        reply.finish()?;
        let ending = match ended {
            Err(Trouble::Stopped) => ReplyEnding::Stopped,
            Err(trouble) => ReplyEnding::Broken(trouble.to_string()),
            Ok(()) if chunks.finish() == Some("length") => self.cut(&chunks),
            Ok(()) => ReplyEnding::Whole,
        };
        let figures = chunks.figures(start);
        // A router loads the model with the first request. Its context size is known only then.
        if self.used == 0 && self.context.is_none() {
            self.context = self.ask_context();
        }
        if figures.prompt > 0 {
            self.used = figures.prompt + figures.tokens;
        }
        Ok(AnswerAttempt::Answered(ChatAnswer {
            text: reply.text(),
            reasoning: reply.reasoning,
            ending,
            figures,
        }))
    }

    fn context(&self) -> Option<(usize, usize)> {
        Some((self.used, self.context?))
    }

    fn larger(&self) -> Option<String> {
        None
    }

    fn save(&mut self, conversation: &MessageList, path: &Path) -> Result<String> {
        file::save(conversation, path)
    }

    fn load(&mut self, path: &Path, _note: &dyn Fn(&str)) -> Result<(MessageList, String)> {
        if let Some(loaded) = file::load(path)? {
            return Ok(loaded);
        }
        // Reports why the file cannot be opened, if so.
        input_file::open(path)?;
        anyhow::bail!(
            "{}: not a conversation in JSON; if it was saved with its cache, load it without --url and save \
             it as a .json file",
            path.display()
        )
    }
}

impl RemotePartner<'_> {
    /// Why an answer was cut.
    fn cut(&self, chunks: &ReplyChunks) -> ReplyEnding {
        // OpenAI's `length` means both -n and a full context. The number of tokens tells them
        // apart.
        let asked = self.args.sampling.max_tokens();
        match asked {
            Some(limit) if chunks.tokens().is_none_or(|tokens| tokens >= limit) => ReplyEnding::Length,
            _ => ReplyEnding::Full("/clear or /undo frees tokens".into()),
        }
    }
}

/// The requested model, and the server's other models if the user did not name one.
#[derive(Default)]
struct ModelSelection {
    model: Option<String>,
    others: Vec<String>,
}

/// Maximum number of models listed.
const MAX_NAMES: usize = 20;

/// A name shortened for the terminal: a server may send one of any length.
fn shortened(name: &str) -> String {
    name.chars().take(100).collect()
}

/// The named model, or the server's first one.
fn chosen(list: &str, args: &ChatArgs) -> Result<ModelSelection> {
    // A server without a usable list can still answer: single-model servers ignore the name.
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let ids = list["data"].as_array().into_iter().flatten();
    let ids: Vec<&str> = ids.filter_map(|model| model["id"].as_str()).collect();
    // LATENT_MODEL names a file of this machine, so it does not select a model of a server.
    let from_environment = std::env::var_os("LATENT_MODEL");
    let named =
        args.model.model.as_deref().filter(|model| from_environment.as_deref() != Some(model.as_os_str()));
    let Some(named) = named.map(|name| name.to_string_lossy().into_owned()) else {
        let mut ids = ids.into_iter();
        let model = ids.next().map(str::to_owned);
        return Ok(ModelSelection { model, others: ids.take(MAX_NAMES).map(shortened).collect() });
    };
    if !ids.is_empty() && !ids.contains(&named.as_str()) {
        let known: Vec<String> = ids.into_iter().take(MAX_NAMES).map(shortened).collect();
        return Err(
            UsageError(format!("-m {named}: unknown model; the server has {}", known.join(", "))).into()
        );
    }
    Ok(ModelSelection { model: Some(named), ..ModelSelection::default() })
}

/// Parameters of every request.
fn parameters(args: &ChatArgs) -> Result<Map<String, Value>> {
    // Only parameters of given flags are sent, so that the server's defaults hold.
    let sampling = &args.sampling;
    let mut all: Map<String, Value> = sampling.numbers.request().collect();
    let mut put = |name: &str, value: Option<Value>| {
        all.extend(value.map(|value| (name.to_owned(), value)));
    };
    put("max_tokens", sampling.max_tokens().map(Value::from));
    put("dry_sequence_breakers", sampling.breakers().map(Value::from));
    let names = |order: Vec<SamplerKind>| order.into_iter().map(SamplerKind::name).collect();
    put("samplers", sampling.order().map(names));
    put("ignore_eos", sampling.ignore_eos.then_some(true.into()));
    put("stop", (!sampling.stop.is_empty()).then(|| sampling.stop.clone().into()));
    let template = &args.template;
    // Qwen and GLM templates read `enable_thinking`, DeepSeek's `thinking`. A variable that a
    // template does not read has no effect.
    if template.think || template.no_think {
        put(
            "chat_template_kwargs",
            Some(json!({"enable_thinking": template.think, "thinking": template.think})),
        );
    }
    put("tools", template.tools.as_deref().map(read_tools).transpose()?);
    match constraint::asked(&args.constraint)?.map(|(_, source)| source) {
        Some(GrammarSource::JsonSchema(schema)) => {
            let schema = json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}});
            put("response_format", Some(schema));
        }
        Some(GrammarSource::Gbnf(grammar) | GrammarSource::Lark(grammar)) => {
            // `grammar` is llama-server's extension.
            put("grammar", Some(grammar.into()))
        }
        _ => {}
    }
    Ok(all)
}
