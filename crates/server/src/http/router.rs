//! The table of addresses.

use super::page;
use crate::app::Asker;
use crate::dialect::{Dialect, json_response};
use crate::dialects::{
    anthropic, llama_cpp, models, ollama, openai_chat, openai_completions, openai_embeddings,
    openai_responses,
};
use crate::error::{ApiError, ErrorKind};
use crate::openapi::{self, Operation};
use axum::Router;
use axum::http::{Method, Uri};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::Value;

/// An address, and who answers there.
struct Route {
    operation: Operation,
    handler: fn() -> MethodRouter,
}

macro_rules! routes {
    ($($method:ident $path:literal $handler:path, $body:literal, $summary:literal;)+) => {
        /// Every address. What has the same path and other methods stands beside each other.
        static ROUTES: &[Route] = &[$(Route {
            operation: Operation { method: stringify!($method), path: $path, summary: $summary, body: $body },
            handler: || $method($handler),
        },)+];
    };
}

routes! {
    post "/v1/chat/completions" openai_chat::handle, "ChatCompletionRequest", "Answer a conversation (OpenAI)";
    post "/chat/completions" openai_chat::handle, "ChatCompletionRequest", "The same";
    post "/v1/responses" openai_responses::handle, "ResponseRequest", "Answer a conversation (OpenAI Responses)";
    post "/responses" openai_responses::handle, "ResponseRequest", "The same";
    get "/v1/responses/{id}" openai_responses::retrieve, "", "A stored response";
    delete "/v1/responses/{id}" openai_responses::remove, "", "Forget a stored response";
    get "/v1/responses/{id}/input_items" openai_responses::input_items, "", "The input of a stored response";
    post "/v1/responses/{id}/cancel" openai_responses::cancel, "", "Refused: nothing runs in the background";
    post "/v1/completions" openai_completions::handle, "CompletionRequest", "Go on with a text (OpenAI)";
    post "/v1/embeddings" openai_embeddings::handle, "EmbeddingRequest", "Embeddings: means of the last hidden states, normalised";
    get "/v1/models" models::list, "", "The models";
    get "/models" models::list, "", "The same";
    post "/models/load" models::load, "ModelRequest", "Begin to load a model (llama.cpp); its status stands in the list of models";
    post "/models/unload" models::unload, "ModelRequest", "Unload a model once its answers have ended (llama.cpp)";
    get "/v1/models/{id}" models::one, "", "One model";
    post "/v1/messages" anthropic::handle, "MessagesRequest", "Answer a conversation (Anthropic)";
    post "/v1/messages/count_tokens" anthropic::count_tokens, "MessagesRequest", "How many tokens a conversation has";
    post "/completion" llama_cpp::completion, "LlamaCompletionRequest", "Go on with a text (llama.cpp)";
    post "/completions" llama_cpp::completion, "LlamaCompletionRequest", "The same";
    post "/tokenize" llama_cpp::tokenize, "TokenizeRequest", "The tokens of a text";
    post "/detokenize" llama_cpp::detokenize, "DetokenizeRequest", "The text of tokens";
    post "/apply-template" llama_cpp::apply_template, "ChatCompletionRequest", "The prompt of a conversation";
    post "/embedding" openai_embeddings::handle, "EmbeddingRequest", "As /v1/embeddings";
    post "/embeddings" openai_embeddings::handle, "EmbeddingRequest", "As /v1/embeddings";
    get "/props" llama_cpp::props, "", "What the server runs (llama.cpp); `?model=` names one of several models";
    get "/slots" llama_cpp::slots, "", "What runs just now (llama.cpp), without any text; `?model=` names one of several models";
    get "/health" llama_cpp::health, "", "Whether requests are taken: 503 while the model loads and while the server shuts down";
    get "/v1/health" llama_cpp::health, "", "The same";
    get "/metrics" llama_cpp::metrics, "", "Figures for Prometheus";
    post "/api/chat" ollama::chat, "OllamaChatRequest", "Answer a conversation (Ollama)";
    post "/api/generate" ollama::generate, "OllamaGenerateRequest", "Go on with a text (Ollama)";
    get "/api/tags" ollama::tags, "", "The models (Ollama)";
    get "/api/ps" ollama::ps, "", "The loaded models (Ollama)";
    post "/api/show" ollama::show, "OllamaShowRequest", "About a model (Ollama)";
    get "/api/version" ollama::version, "", "The version (Ollama)";
    get "/openapi.json" description, "", "This description";
    get "/latent/stats" page::stats, "", "What the scheduler of a model does (`?model=`, else the one used last), for the page";
    get "/latent/profile" page::profile, "", "What each phase of a step takes (`?model=`, else the model used last), for the page";
    get "/latent/graph" page::graph, "", "The drawing of the model, or of the one in `?model=`";
    get "/" page::index, "", "The page";
    get "/assets/{name}" page::asset, "", "Files of the page";
    get "/favicon.ico" page::favicon, "", "The page's icon";
}

/// The interface as an OpenAPI document.
pub fn openapi_document() -> Value {
    openapi::document(ROUTES.iter().map(|route| &route.operation))
}

/// `GET /openapi.json`.
async fn description() -> Response {
    json_response(&openapi_document())
}

/// The address of the table that a path is one of. What is none of them has one name: the clients choose their names.
pub(super) fn known(path: &str) -> &'static str {
    let paths = || ROUTES.iter().map(|route| route.operation.path);
    paths().find(|known| matches(known, path)).unwrap_or("other")
}

/// Whether a path is one of a route, which may end in a `{name}`.
fn matches(route: &str, path: &str) -> bool {
    let (mut route, mut path) = (route.split('/'), path.split('/'));
    loop {
        match (route.next(), path.next()) {
            (None, None) => return true,
            (Some(part), Some(own)) if part == own || part.starts_with('{') => {}
            _ => return false,
        }
    }
}

/// The router over the table.
pub(super) fn router() -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(route.operation.path, (route.handler)());
    }
    router.method_not_allowed_fallback(wrong_method).fallback(unknown)
}

async fn unknown(asker: Asker, method: Method, uri: Uri) -> Response {
    let problem = format!("there is no {method} {}; GET /openapi.json lists the addresses", uri.path());
    Dialect::of_path(uri.path()).error(&ApiError::new(ErrorKind::NotFound, problem), &asker.id)
}

async fn wrong_method(asker: Asker, method: Method, uri: Uri) -> Response {
    let mut operations = ROUTES.iter().map(|route| &route.operation);
    let known =
        operations.find(|known| matches(known.path, uri.path())).map_or("others", |known| known.method);
    let problem = format!("{} takes {}, not {method}", uri.path(), known.to_uppercase());
    Dialect::of_path(uri.path()).error(&ApiError::new(ErrorKind::Method, problem), &asker.id)
}
