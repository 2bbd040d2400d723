//! Reading a request's body: bounded in bytes, and in the time between them.

use crate::error::{ApiError, ErrorKind};
use crate::limits::Limits;
use axum::body::Body;
use bytes::Bytes;
use http_body::Body as _;
use http_body_util::BodyExt;
use std::time::Duration;

/// The whole body.
pub(crate) async fn read(mut body: Body, limits: &Limits) -> Result<Bytes, ApiError> {
    let too_large = || {
        let problem = format!("the body has more than {} bytes (body_bytes)", limits.body_bytes);
        ApiError::new(ErrorKind::TooLarge, problem)
    };
    let expected = body.size_hint().lower();
    if expected > limits.body_bytes as u64 {
        return Err(too_large());
    }
    // a length that is only announced takes no memory
    let mut whole = Vec::with_capacity(usize::try_from(expected).unwrap_or(0).min(65_536));
    let patience = Duration::from_secs(limits.body_seconds);
    loop {
        let frame = tokio::time::timeout(patience, body.frame()).await.map_err(|_| {
            let problem = format!("no byte of the body came for {} s (body_seconds)", limits.body_seconds);
            ApiError::new(ErrorKind::Slow, problem)
        })?;
        let Some(frame) = frame else { return Ok(whole.into()) };
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body ended early: {error}")))?;
        if let Ok(data) = frame.into_data() {
            if whole.len() + data.len() > limits.body_bytes {
                return Err(too_large());
            }
            whole.extend_from_slice(&data);
        }
    }
}
