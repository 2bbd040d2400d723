//! Extractor of the name at the end of a route.

use super::RequestContext;
use crate::dialect::Dialect;
use crate::error::ApiError;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

/// The decoded `{name}` of a route. axum's own extractor rejects invalid names with plain text;
/// this one uses the error format of the route's API.
pub(crate) struct RouteName(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for RouteName {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<RouteName, Response> {
        let rejection = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => return Ok(RouteName(name)),
            Err(rejection) => rejection,
        };
        let asker =
            RequestContext::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
        let path = parts.uri.path();
        let problem = format!("the name in the address {path:?} cannot be decoded: {rejection}");
        Err(asker.reply(Dialect::of_path(path), Err(ApiError::invalid(problem))))
    }
}
