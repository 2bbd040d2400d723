//! The route table.

use super::{page, streams};
use crate::app::RequestContext;
use crate::dialect::{Dialect, json_response};
use crate::dialects::{
    anthropic, llama_cpp, model_events, models, ollama, openai_chat, openai_completions, openai_embeddings,
    openai_responses,
};
use crate::error::{ApiError, ErrorKind};
use crate::openapi::{self, ApiOperation};
use axum::Router;
use axum::body::Body;
use axum::http::header::ALLOW;
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use serde_json::Value;

/// A method and path with its handler.
struct ApiRoute {
    operation: ApiOperation,
    /// A function, since a `MethodRouter` cannot be a constant.
    handler: fn() -> MethodRouter,
}

macro_rules! routes {
    ($($method:ident $path:literal $handler:path, $body:literal, $summary:literal;)+) => {
        /// All routes. Entries of one path with several methods are adjacent.
        static ROUTES: &[ApiRoute] = &[$(ApiRoute {
            operation: ApiOperation { method: stringify!($method), path: $path, summary: $summary, body: $body },
            handler: || $method($handler),
        },)+];
    };
}

routes! {
    post "/v1/chat/completions" openai_chat::handle, "ChatCompletionRequest", "Create a chat completion (OpenAI)";
    post "/chat/completions" openai_chat::handle, "ChatCompletionRequest", "Alias of /v1/chat/completions";
    post "/v1/chat/completions/input_tokens" openai_chat::count_tokens, "ChatCompletionRequest", "Count the tokens of a conversation (llama.cpp)";
    post "/chat/completions/input_tokens" openai_chat::count_tokens, "ChatCompletionRequest", "Alias of /v1/chat/completions/input_tokens";
    post "/v1/responses" openai_responses::handle, "ResponseRequest", "Create a response (OpenAI Responses)";
    post "/responses" openai_responses::handle, "ResponseRequest", "Alias of /v1/responses";
    post "/v1/responses/input_tokens" openai_responses::count_tokens, "ResponseRequest", "Count the input tokens of a response (OpenAI Responses)";
    post "/responses/input_tokens" openai_responses::count_tokens, "ResponseRequest", "Alias of /v1/responses/input_tokens";
    get "/v1/responses/{id}" openai_responses::retrieve, "", "Get a stored response";
    delete "/v1/responses/{id}" openai_responses::remove, "", "Delete a stored response";
    get "/v1/responses/{id}/input_items" openai_responses::input_items, "", "List the input items of a stored response";
    post "/v1/responses/{id}/cancel" openai_responses::cancel, "", "Not supported: responses do not run in the background";
    post "/v1/completions" openai_completions::handle, "CompletionRequest", "Create a text completion (OpenAI)";
    post "/v1/embeddings" openai_embeddings::handle, "EmbeddingRequest", "Create embeddings: means of the last hidden states, normalized (OpenAI)";
    get "/v1/models" models::list, "", "List the models (OpenAI)";
    get "/models" models::list, "", "Alias of /v1/models; `?reload=1` reads the list of models again";
    post "/models" models::begin_download, "ModelRequest", "Start the download of a model from the hub (llama.cpp); /models/sse reports its progress";
    delete "/models" models::delete, "", "Delete the files of the downloaded model `?model=` (llama.cpp)";
    get "/models/sse" model_events::events, "", "Stream events about models: status, downloads, changes of the list (llama.cpp)";
    post "/models/load" models::load, "ModelRequest", "Start to load a model (llama.cpp); the list of models contains its status";
    post "/models/unload" models::unload, "ModelRequest", "Unload a model after its running requests have ended (llama.cpp)";
    get "/v1/models/{id}" models::one, "", "Get a model (OpenAI)";
    post "/v1/messages" anthropic::handle, "MessagesRequest", "Create a message (Anthropic)";
    post "/v1/messages/count_tokens" anthropic::count_tokens, "MessagesRequest", "Count the tokens of a conversation (Anthropic)";
    post "/completion" llama_cpp::completion, "LlamaCompletionRequest", "Create a text completion (llama.cpp)";
    post "/completions" llama_cpp::completion, "LlamaCompletionRequest", "Alias of /completion";
    post "/infill" llama_cpp::infill, "InfillRequest", "Generate the text between a prefix and a suffix (llama.cpp)";
    post "/tokenize" llama_cpp::tokenize, "TokenizeRequest", "Convert text to token ids (llama.cpp)";
    post "/detokenize" llama_cpp::detokenize, "DetokenizeRequest", "Convert token ids to text (llama.cpp)";
    post "/apply-template" llama_cpp::apply_template, "ChatCompletionRequest", "Render a conversation with the chat template (llama.cpp)";
    post "/embedding" openai_embeddings::handle_llama_cpp, "EmbeddingRequest", "Create embeddings: a list of vectors for each text (llama.cpp)";
    post "/embeddings" openai_embeddings::handle_llama_cpp, "EmbeddingRequest", "Alias of /embedding";
    get "/props" llama_cpp::props, "", "Get properties of the server and of the model `?model=` (llama.cpp)";
    get "/slots" llama_cpp::slots, "", "List the running requests of the model `?model=`, without their text (llama.cpp)";
    post "/slots/{id}" llama_cpp::slot_action, "SlotRequest", "Save (`?action=save`), `restore` or `erase` the cached state of a slot (llama.cpp)";
    post "/props" llama_cpp::change_props, "", "Not supported: properties cannot be changed while the server runs";
    post "/rerank" llama_cpp::rerank, "", "Not supported: no supported model was trained for reranking";
    post "/reranking" llama_cpp::rerank, "", "Alias of /rerank";
    post "/v1/rerank" llama_cpp::rerank, "", "Alias of /rerank";
    post "/v1/reranking" llama_cpp::rerank, "", "Alias of /rerank";
    get "/lora-adapters" llama_cpp::lora_adapters, "", "List the LoRA adapters with their ids and scales (llama.cpp)";
    post "/lora-adapters" llama_cpp::set_lora_adapters, "", "Set the scales of LoRA adapters: a list of {id, scale}; unlisted adapters get 0 (llama.cpp)";
    get "/cors-proxy" llama_cpp::cors_proxy, "", "Not supported: the server does not forward requests";
    post "/cors-proxy" llama_cpp::cors_proxy, "", "Not supported: the server does not forward requests";
    get "/tools" llama_cpp::tools, "", "Not supported: the server does not run tools";
    post "/tools" llama_cpp::tools, "", "Not supported: the server does not run tools";
    get "/health" llama_cpp::health, "", "Check whether the server accepts requests: 503 while the model loads and during shutdown";
    get "/v1/health" llama_cpp::health, "", "Alias of /health";
    get "/metrics" llama_cpp::metrics, "", "Get metrics in the Prometheus format";
    post "/api/chat" ollama::chat, "OllamaChatRequest", "Create a chat completion (Ollama)";
    post "/api/generate" ollama::generate, "OllamaGenerateRequest", "Create a text completion (Ollama)";
    post "/api/embed" ollama::embed, "OllamaEmbedRequest", "Create embeddings (Ollama)";
    post "/api/embeddings" ollama::embed_one, "OllamaEmbeddingsRequest", "Create one embedding (Ollama, deprecated form)";
    get "/api/tags" ollama::tags, "", "List the models (Ollama)";
    get "/api/ps" ollama::ps, "", "List the loaded models (Ollama)";
    post "/api/show" ollama::show, "OllamaShowRequest", "Get details of a model (Ollama)";
    get "/api/version" ollama::version, "", "Get the version (Ollama)";
    get "/v1/stream" streams::read, "", "Resume the stream of the conversation `?conv_id=` from byte `?from=` (llama.cpp); requests set its name in `X-Conversation-Id`";
    delete "/v1/stream" streams::stop, "", "End the stream of a conversation (llama.cpp)";
    post "/v1/streams/lookup" streams::lookup, "StreamLookupRequest", "Find the conversations that have a stream (llama.cpp)";
    get "/openapi.json" description, "", "Get this document";
    get "/latent/stats" page::stats, "", "Get scheduler statistics of the model `?model=` (default: the last used), for the web page";
    get "/latent/profile" page::profile, "", "Get the time per phase of a step of the model `?model=` (default: the last used), for the web page";
    get "/latent/graph" page::graph, "", "Get the drawing of the model `?model=` (default: the last used)";
    get "/" page::index, "", "Get the web page";
    get "/assets/{name}" page::asset, "", "Get a file of the web page";
    get "/favicon.ico" page::favicon, "", "Get the icon of the web page";
}

/// The API as an OpenAPI document.
pub fn openapi_document() -> Value {
    openapi::document(ROUTES.iter().map(|route| &route.operation))
}

/// `GET /openapi.json`.
async fn description() -> Response {
    json_response(&openapi_document())
}

/// The routes of a path: those with this exact path, otherwise those whose pattern matches.
fn routes_of(path: &str) -> impl Iterator<Item = &'static ApiOperation> {
    let operations = || ROUTES.iter().map(|route| &route.operation);
    // A path of the table comes before a pattern that also matches it.
    let pattern = operations()
        .find(|known| known.path == path)
        .or_else(|| operations().find(|known| matches(known.path, path)))
        .map(|known| known.path);
    operations().filter(move |known| Some(known.path) == pattern)
}

/// The path of the route, or `other` for unknown paths.
pub(super) fn known(path: &str) -> &'static str {
    // A label of metrics. Clients choose unknown paths, and each would add a time series.
    routes_of(path).next().map_or("other", |known| known.path)
}

/// Removes trailing and repeated slashes from a path. Base URLs in clients' settings often end in a
/// slash, to which the client appends `/v1/…`.
pub(super) fn normalize_path(uri: &mut Uri) {
    let path = uri.path();
    if !path.contains("//") && (path == "/" || !path.ends_with('/')) {
        return;
    }
    let mut normal = String::with_capacity(path.len());
    path.split('/').filter(|part| !part.is_empty()).for_each(|part| {
        normal.push('/');
        normal.push_str(part);
    });
    if normal.is_empty() {
        normal.push('/');
    }
    if let Some(query) = uri.query() {
        normal.push('?');
        normal.push_str(query);
    }
    let mut parts = std::mem::take(uri).into_parts();
    // Segments of a valid path and its query form a valid path, so this does not fail.
    parts.path_and_query = normal.parse().ok();
    *uri = Uri::from_parts(parts).unwrap_or_default();
}

/// Whether a path matches a route, in which `{name}` stands for any segment.
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

/// Builds the router from the table.
pub(super) fn router() -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        router = router.route(route.operation.path, (route.handler)());
    }
    router.method_not_allowed_fallback(wrong_method).fallback(unknown)
}

async fn unknown(asker: RequestContext, method: Method, uri: Uri) -> Response {
    let problem = format!("unknown address: {method} {}; GET /openapi.json lists the addresses", uri.path());
    Dialect::of_path(uri.path()).error(&ApiError::new(ErrorKind::NotFound, problem), &asker.id)
}

async fn wrong_method(asker: RequestContext, method: Method, uri: Uri) -> Response {
    let mut allowed: Vec<String> = routes_of(uri.path()).map(|known| known.method.to_uppercase()).collect();
    let problem = format!("{} supports {}, not {method}", uri.path(), allowed.join(" or "));
    // axum answers HEAD with the handler of GET.
    if allowed.iter().any(|method| method == "GET") {
        allowed.push("HEAD".into());
    }
    allowed.push("OPTIONS".into());
    // An OPTIONS request that is not a preflight asks for the methods of a path (RFC 9110, section
    // 9.3.7).
    let mut response = if method == Method::OPTIONS {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    } else {
        Dialect::of_path(uri.path()).error(&ApiError::new(ErrorKind::Method, problem), &asker.id)
    };
    if let Ok(allowed) = HeaderValue::from_str(&allowed.join(", ")) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extra_slashes_are_removed() {
        for (written, normal) in [
            ("/", "/"),
            ("//", "/"),
            ("/v1/models/", "/v1/models"),
            ("//v1//models/?a=b/", "/v1/models?a=b/"),
            ("/v1/models/a%2Fb", "/v1/models/a%2Fb"),
            ("http://localhost:8080/health/", "http://localhost:8080/health"),
        ] {
            let mut uri: Uri = written.parse().unwrap();
            normalize_path(&mut uri);
            assert_eq!(uri.to_string(), normal, "{written}");
        }
    }

    #[test]
    fn exact_paths_come_before_patterns() {
        // Metrics have patterns as labels: IDs of clients would create any number of series.
        assert_eq!(known("/v1/responses/resp_1"), "/v1/responses/{id}");
        assert_eq!(known("/v1/messages/count_tokens"), "/v1/messages/count_tokens");
        assert_eq!(known("/nothing/here"), "other");
        let methods: Vec<&str> = routes_of("/v1/responses/resp_1").map(|known| known.method).collect();
        assert_eq!(methods, ["get", "delete"]);
    }
}
