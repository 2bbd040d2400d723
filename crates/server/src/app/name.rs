//! The name at the end of an address.

use super::Asker;
use crate::dialect::Dialect;
use crate::error::ApiError;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};

/// The decoded `{name}` of a route. A name that cannot be decoded is refused in the form of the address's interface.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Name, Response> {
        let rejection = match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(name)) => return Ok(Name(name)),
            Err(rejection) => rejection,
        };
        let asker = Asker::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
        let path = parts.uri.path();
        let problem = format!("the name in the address {path:?} cannot be decoded: {rejection}");
        Err(asker.reply(Dialect::of_path(path), Err(ApiError::invalid(problem))))
    }
}
