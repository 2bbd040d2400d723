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
    post "/v1/chat/completions" openai_chat::handle, "ChatCompletionRequest", "Answer a conversation (OpenAI)";
    post "/chat/completions" openai_chat::handle, "ChatCompletionRequest", "The same";
    post "/v1/chat/completions/input_tokens" openai_chat::count_tokens, "ChatCompletionRequest", "How many tokens a conversation has (llama.cpp)";
    post "/chat/completions/input_tokens" openai_chat::count_tokens, "ChatCompletionRequest", "The same";
    post "/v1/responses" openai_responses::handle, "ResponseRequest", "Answer a conversation (OpenAI Responses)";
    post "/responses" openai_responses::handle, "ResponseRequest", "The same";
    post "/v1/responses/input_tokens" openai_responses::count_tokens, "ResponseRequest", "How many tokens a conversation has (OpenAI Responses)";
    post "/responses/input_tokens" openai_responses::count_tokens, "ResponseRequest", "The same";
    get "/v1/responses/{id}" openai_responses::retrieve, "", "A stored response";
    delete "/v1/responses/{id}" openai_responses::remove, "", "Forget a stored response";
    get "/v1/responses/{id}/input_items" openai_responses::input_items, "", "The input of a stored response";
    post "/v1/responses/{id}/cancel" openai_responses::cancel, "", "Refused: nothing runs in the background";
    post "/v1/completions" openai_completions::handle, "CompletionRequest", "Go on with a text (OpenAI)";
    post "/v1/embeddings" openai_embeddings::handle, "EmbeddingRequest", "Embeddings: means of the last hidden states, normalised";
    get "/v1/models" models::list, "", "The models";
    get "/models" models::list, "", "The same; `?reload=1` reads the list of models again";
    post "/models" models::begin_download, "ModelRequest", "Begin to download a model of the hub (llama.cpp); /models/sse reports its progress";
    delete "/models" models::delete, "", "Delete the files of the downloaded model in `?model=` (llama.cpp)";
    get "/models/sse" model_events::events, "", "Events about the models: statuses, downloads, changes of the list (llama.cpp)";
    post "/models/load" models::load, "ModelRequest", "Begin to load a model (llama.cpp); its status stands in the list of models";
    post "/models/unload" models::unload, "ModelRequest", "Unload a model once its answers have ended (llama.cpp)";
    get "/v1/models/{id}" models::one, "", "One model";
    post "/v1/messages" anthropic::handle, "MessagesRequest", "Answer a conversation (Anthropic)";
    post "/v1/messages/count_tokens" anthropic::count_tokens, "MessagesRequest", "How many tokens a conversation has";
    post "/completion" llama_cpp::completion, "LlamaCompletionRequest", "Go on with a text (llama.cpp)";
    post "/completions" llama_cpp::completion, "LlamaCompletionRequest", "The same";
    post "/infill" llama_cpp::infill, "InfillRequest", "The text in a gap (llama.cpp), for editors";
    post "/tokenize" llama_cpp::tokenize, "TokenizeRequest", "The tokens of a text";
    post "/detokenize" llama_cpp::detokenize, "DetokenizeRequest", "The text of tokens";
    post "/apply-template" llama_cpp::apply_template, "ChatCompletionRequest", "The prompt of a conversation";
    post "/embedding" openai_embeddings::handle_llama_cpp, "EmbeddingRequest", "Embeddings in llama.cpp's form: a list of vectors for each text";
    post "/embeddings" openai_embeddings::handle_llama_cpp, "EmbeddingRequest", "The same";
    get "/props" llama_cpp::props, "", "What the server runs (llama.cpp); `?model=` names one of several models";
    get "/slots" llama_cpp::slots, "", "What runs just now (llama.cpp), without any text; `?model=` names one of several models";
    post "/slots/{id}" llama_cpp::slot_action, "SlotRequest", "Write what is cached of a slot's last request to a file (`?action=save`), read such a file (`restore`), or forget it (`erase`)";
    post "/props" llama_cpp::change_props, "", "Refused: properties do not change while the server runs";
    post "/rerank" llama_cpp::rerank, "", "Refused: no model of these families was trained for it";
    post "/reranking" llama_cpp::rerank, "", "The same";
    post "/v1/rerank" llama_cpp::rerank, "", "The same";
    post "/v1/reranking" llama_cpp::rerank, "", "The same";
    get "/lora-adapters" llama_cpp::lora_adapters, "", "LoRA adapters of --lora with their ids and scales";
    post "/lora-adapters" llama_cpp::set_lora_adapters, "", "Set their scales: a list of {id, scale}; adapters that it does not name get 0";
    get "/cors-proxy" llama_cpp::cors_proxy, "", "Refused: requests are not forwarded";
    post "/cors-proxy" llama_cpp::cors_proxy, "", "The same";
    get "/tools" llama_cpp::tools, "", "Refused: clients run tools";
    post "/tools" llama_cpp::tools, "", "The same";
    get "/health" llama_cpp::health, "", "Whether requests are taken: 503 while the model loads and while the server shuts down";
    get "/v1/health" llama_cpp::health, "", "The same";
    get "/metrics" llama_cpp::metrics, "", "Figures for Prometheus";
    post "/api/chat" ollama::chat, "OllamaChatRequest", "Answer a conversation (Ollama)";
    post "/api/generate" ollama::generate, "OllamaGenerateRequest", "Go on with a text (Ollama)";
    post "/api/embed" ollama::embed, "OllamaEmbedRequest", "Embeddings of texts (Ollama)";
    post "/api/embeddings" ollama::embed_one, "OllamaEmbeddingsRequest", "The embedding of a text (Ollama, older form)";
    get "/api/tags" ollama::tags, "", "The models (Ollama)";
    get "/api/ps" ollama::ps, "", "The loaded models (Ollama)";
    post "/api/show" ollama::show, "OllamaShowRequest", "About a model (Ollama)";
    get "/api/version" ollama::version, "", "The version (Ollama)";
    get "/v1/stream" streams::read, "", "The stream of the conversation in `?conv_id=` again, from byte `?from=` on (llama.cpp); requests name theirs in `X-Conversation-Id`";
    delete "/v1/stream" streams::stop, "", "End the stream of a conversation";
    post "/v1/streams/lookup" streams::lookup, "StreamLookupRequest", "Which conversations have streams";
    get "/openapi.json" description, "", "This description";
    get "/latent/stats" page::stats, "", "What the scheduler of a model does (`?model=`, else the one used last), for the page";
    get "/latent/profile" page::profile, "", "What each phase of a step takes (`?model=`, else the model used last), for the page";
    get "/latent/graph" page::graph, "", "The drawing of the model, or of the one in `?model=`";
    get "/" page::index, "", "The page";
    get "/assets/{name}" page::asset, "", "Files of the page";
    get "/favicon.ico" page::favicon, "", "The page's icon";
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
    let problem = format!("{} takes {}, not {method}", uri.path(), allowed.join(" or "));
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
