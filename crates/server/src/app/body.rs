//! Reading a request's body: bounded in bytes, alone and together with others, and in the time that it takes.

use crate::error::{ApiError, ErrorKind};
use crate::limits::Limits;
use crate::memory::RequestCharge;
use crate::pace::ClientPace;
use axum::body::Body;
use http_body::Body as _;
use http_body_util::BodyExt;
use std::time::Instant;

fn too_large(limits: &Limits) -> ApiError {
    let problem = format!("the body has more than {} bytes (body_bytes)", limits.body_bytes);
    ApiError::new(ErrorKind::TooLarge, problem)
}

fn too_slow(limits: &Limits) -> ApiError {
    let Limits { body_seconds, slowest_bytes, .. } = limits;
    let problem = format!(
        "the body came too slowly: nothing for {body_seconds} s (body_seconds), or less than {slowest_bytes} bytes per second (slowest_bytes)"
    );
    ApiError::new(ErrorKind::Slow, problem)
}

/// The whole body. Its bytes are charged as they come, so that a slow one holds no more than it has sent.
pub(super) async fn read(
    mut body: Body,
    limits: &Limits,
    charge: &RequestCharge,
) -> Result<Vec<u8>, ApiError> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > limits.body_bytes {
        return Err(too_large(limits));
    }
    // a length that is only announced takes no memory
    let mut whole = Vec::new();
    let mut pace = ClientPace::new(limits.body_seconds, limits.slowest_bytes);
    loop {
        let since = Instant::now();
        let frame = tokio::time::timeout(pace.left(), body.frame()).await.map_err(|_| too_slow(limits))?;
        let Some(frame) = frame else { return Ok(whole) };
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body ended early: {error}")))?;
        if let Ok(data) = frame.into_data() {
            pace.came(data.len(), since.elapsed());
            let length = whole.len() + data.len();
            if length > limits.body_bytes {
                return Err(too_large(limits));
            }
            charge.grow(data.len())?;
            if length > whole.capacity() {
                // doubling would reserve up to twice the memory that is charged
                whole.reserve_exact(data.len().max(whole.len() / 8 + 64));
            }
            whole.extend_from_slice(&data);
        }
    }
}
