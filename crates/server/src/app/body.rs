//! Reading of request bodies, within limits on the bytes of one body, of all bodies, and on time.

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
        "the body arrived too slowly: nothing for {body_seconds} s (body_seconds), or less than \
         {slowest_bytes} bytes per second (slowest_bytes)"
    );
    ApiError::new(ErrorKind::Slow, problem)
}

/// Reads the whole body. Bytes are charged as they arrive: a slow client is charged only for what
/// it has sent, not for what it announced.
pub(super) async fn read(
    mut body: Body,
    limits: &Limits,
    charge: &RequestCharge,
) -> Result<Vec<u8>, ApiError> {
    // A `Content-Length` over the limit is refused before the client sends the body.
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > limits.body_bytes {
        return Err(too_large(limits));
    }
    // No `with_capacity(expected)`: a client could announce gigabytes and send nothing.
    let mut whole = Vec::new();
    let mut pace = ClientPace::new(limits.body_seconds, limits.slowest_bytes);
    loop {
        let since = Instant::now();
        // The timeout shrinks while the client is slower than the minimum rate.
        let frame = tokio::time::timeout(pace.left(), body.frame()).await.map_err(|_| too_slow(limits))?;
        let Some(frame) = frame else { return Ok(whole) };
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body ended early: {error}")))?;
        if let Ok(data) = frame.into_data() {
            pace.progressed(data.len(), since.elapsed());
            let length = whole.len() + data.len();
            if length > limits.body_bytes {
                return Err(too_large(limits));
            }
            charge.grow(data.len())?;
            if length > whole.capacity() {
                // Grow by an eighth. Doubling could reserve twice the memory that is charged.
                whole.reserve_exact(data.len().max(whole.len() / 8 + 64));
            }
            whole.extend_from_slice(&data);
        }
    }
}
