//! Routes of llama.cpp's server that are not supported. Each explains why and names an alternative,
//! which a 404 would not.

use crate::app::RequestContext;
use crate::dialect::Dialect;
use crate::error::{ApiError, ErrorKind};
use axum::response::Response;

fn refused(asker: &RequestContext, kind: ErrorKind, problem: &str) -> Response {
    asker.reply(Dialect::LlamaCpp, Err(ApiError::new(kind, problem)))
}

/// `POST /rerank` and its other names.
pub(crate) async fn rerank(asker: RequestContext) -> Response {
    let problem = "reranking needs a model trained to score pairs of texts, which no supported model family \
                   is; compare \
                   embeddings of /v1/embeddings, or run a reranker in a separate llama-server";
    refused(&asker, ErrorKind::NotImplemented, problem)
}

/// `/cors-proxy`.
pub(crate) async fn cors_proxy(asker: RequestContext) -> Response {
    let problem = "this server does not forward requests to other servers; send them there directly";
    refused(&asker, ErrorKind::Forbidden, problem)
}

/// `/tools`.
pub(crate) async fn tools(asker: RequestContext) -> Response {
    let problem =
        "this server does not run tools; send them as `tools` of a request, and run the calls in the client";
    refused(&asker, ErrorKind::Forbidden, problem)
}

/// `POST /props`.
pub(crate) async fn change_props(asker: RequestContext) -> Response {
    let problem = "properties do not change while the server runs; set them with the flags of `latent serve`, or in each request";
    refused(&asker, ErrorKind::NotImplemented, problem)
}
