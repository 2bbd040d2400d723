//! Reading a request's body: bounded in bytes, alone and together with others, and in the time that it takes.

use super::App;
use crate::error::{ApiError, ErrorKind};
use crate::limits::Limits;
use crate::pace::Pace;
use axum::body::Body;
use http_body::Body as _;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of each body that are not counted: requests of usual size are taken whatever others send.
const SMALL: usize = 65_536;

/// A body that has been read. Its bytes count as long as it lives.
pub(super) struct Bytes {
    pub(super) bytes: Vec<u8>,
    counted: usize,
    app: Arc<App>,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.app.metrics.body_bytes.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

impl Bytes {
    fn push(&mut self, data: &[u8]) -> Result<(), ApiError> {
        let limits = &self.app.config.limits;
        let length = self.bytes.len() + data.len();
        if length > limits.body_bytes {
            return Err(too_large(limits));
        }
        let more = length.saturating_sub(SMALL).saturating_sub(self.counted);
        self.counted += more;
        if self.app.metrics.body_bytes.fetch_add(more, Ordering::Relaxed) + more > limits.bodies_bytes {
            let problem = format!(
                "all bodies that are being read have more than {} bytes together (bodies_bytes): try again",
                limits.bodies_bytes
            );
            return Err(ApiError::new(ErrorKind::Busy, problem).retry(Duration::from_secs(1)));
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

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

/// The whole body.
pub(super) async fn read(mut body: Body, app: &Arc<App>) -> Result<Bytes, ApiError> {
    let limits = &app.config.limits;
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if expected > limits.body_bytes {
        return Err(too_large(limits));
    }
    // a length that is only announced takes no memory
    let bytes = Vec::with_capacity(expected.min(SMALL));
    let mut whole = Bytes { bytes, counted: 0, app: Arc::clone(app) };
    let mut pace = Pace::new(limits.body_seconds, limits.slowest_bytes);
    loop {
        let since = Instant::now();
        let frame = tokio::time::timeout(pace.left(), body.frame()).await.map_err(|_| too_slow(limits))?;
        let Some(frame) = frame else { return Ok(whole) };
        let frame = frame.map_err(|error| ApiError::invalid(format!("the body ended early: {error}")))?;
        if let Ok(data) = frame.into_data() {
            pace.came(data.len(), since.elapsed());
            whole.push(&data)?;
        }
    }
}
