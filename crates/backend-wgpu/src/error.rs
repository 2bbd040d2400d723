//! GPU errors.

use latent_backend::BackendError;
use latent_types::Setting;

/// An error of a device, or of opening one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GpuError {
    #[error(
        "no GPU was found: no driver for Vulkan, Metal or DX12 offers an adapter (on Linux, is the vendor's Vulkan driver installed? `vulkaninfo` lists its adapters); use {}",
        Setting::Device.to("cpu")
    )]
    NoAdapter,
    #[error("no adapter {index}: {count} found, numbered from 0; `latent devices` lists them")]
    NoSuchAdapter { index: usize, count: usize },
    #[error("{device}: {problem}; use {}", Setting::Device.to("cpu"))]
    Lacking { device: String, problem: String },
    #[error("{device}: the driver did not open the device: {problem}")]
    NotOpened { device: String, problem: String },
    #[error(
        "{device}: out of device memory: {what} takes {}, with {} already in use; a smaller {} leaves layers on the CPU",
        more(*bytes), mib(*in_use), Setting::Offload
    )]
    OutOfMemory {
        device: String,
        what: String,
        /// The requested size, if the call names one.
        bytes: Option<u64>,
        /// Bytes that Latent has already allocated there.
        in_use: u64,
    },
    #[error(
        "{device}: the model's weights take {} of device memory, {} more than available; leave layers on the CPU with a smaller {} \
         ({} finds how many fit), use a smaller model, or {}",
        mib(*needed), mib(*missing), Setting::Offload, Setting::Offload.to("auto"), Setting::Device.to("cpu")
    )]
    TooManyWeights {
        device: String,
        needed: u64,
        /// Bytes not yet uploaded when the device refused.
        missing: u64,
    },
    #[error("{device}: {what} takes {}, but the device allows {} per buffer", mib(*bytes), mib(*most))]
    TooLarge { device: String, what: String, bytes: u64, most: u64 },
    /// The device is lost: its driver was reset, a shader hung, or the card was removed.
    #[error(
        "{device}: the device was lost: {problem}; load the model again, or use {} (`latent serve` can do so automatically: {})",
        Setting::Device.to("cpu"), Setting::GpuFallback.to("cpu")
    )]
    Lost { device: String, problem: String },
    #[error("{device}: no answer within {seconds} s: a shader hangs, or the device is overloaded")]
    Hung {
        device: String,
        /// Seconds waited.
        seconds: u64,
    },
    /// The device refused a shader or a command. This is a fault of Latent or of the driver.
    #[error("{device}: {what} failed: {problem}")]
    Refused {
        device: String,
        what: String,
        /// The message of the driver or of wgpu's validation.
        problem: String,
    },
}

impl GpuError {
    /// The message for a web page, which has neither options nor other devices.
    pub fn for_page(&self) -> String {
        // `what` may end with advice about an option in parentheses, which a page does not have.
        let subject = |what: &str| what.split(" (a smaller").next().unwrap_or_default().to_owned();
        match self {
            GpuError::NoAdapter | GpuError::NoSuchAdapter { .. } => {
                "this browser offers no GPU: WebGPU is disabled, or the GPU's driver is not supported".into()
            }
            GpuError::Lacking { problem, .. } => format!("this browser's GPU is not supported: {problem}"),
            GpuError::NotOpened { problem, .. } => format!("the browser did not open the GPU: {problem}"),
            GpuError::OutOfMemory { what, .. } => {
                format!(
                    "the GPU has no memory left for {}: choose a shorter context or a smaller model",
                    subject(what)
                )
            }
            GpuError::TooManyWeights { needed, .. } => {
                format!(
                    "the GPU has no memory for the model's weights, {}: choose a smaller model",
                    mib(*needed)
                )
            }
            GpuError::TooLarge { what, bytes, most, .. } => format!(
                "{} takes {}, but the browser allows {} per buffer: choose a shorter context or a smaller \
                 model",
                subject(what),
                mib(*bytes),
                mib(*most)
            ),
            GpuError::Lost { problem, .. } => format!("the GPU was lost: {problem}; load the model again"),
            GpuError::Hung { .. } => "the GPU does not answer; load the page again".into(),
            GpuError::Refused { what, problem, .. } => format!("{what} failed: {problem}"),
        }
    }
}

impl From<GpuError> for BackendError {
    fn from(error: GpuError) -> BackendError {
        match error {
            // Both make the device unusable. `latent serve` tells them from other errors, after
            // which it may continue on the CPU.
            GpuError::Lost { .. } | GpuError::Hung { .. } => BackendError::Lost(Box::new(error)),
            error => BackendError::Device(Box::new(error)),
        }
    }
}

/// The requested size as words.
fn more(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "more than is left".into(), |bytes| format!("{} more", mib(bytes)))
}

/// Bytes as words: whole MiB, or exactly if less than 10 MiB.
fn mib(bytes: u64) -> String {
    match bytes >> 20 {
        0..10 => format!("{bytes} bytes"),
        mib => format!("{mib} MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_for_pages_mention_no_options() {
        let device = || "a device".to_owned();
        let (what, problem) =
            ("the KV cache of layer 3 (a smaller option `context` takes less)".to_owned(), device());
        let errors = [
            GpuError::NoAdapter,
            GpuError::NoSuchAdapter { index: 1, count: 1 },
            GpuError::Lacking { device: device(), problem: problem.clone() },
            GpuError::NotOpened { device: device(), problem: problem.clone() },
            GpuError::OutOfMemory { device: device(), what: what.clone(), bytes: None, in_use: 0 },
            GpuError::TooManyWeights { device: device(), needed: 1, missing: 1 },
            GpuError::TooLarge { device: device(), what, bytes: 3 << 20, most: 2 << 20 },
            GpuError::Lost { device: device(), problem: problem.clone() },
            GpuError::Hung { device: device(), seconds: 1 },
            GpuError::Refused { device: device(), what: "a step".into(), problem },
        ];
        for error in &errors {
            let words = error.for_page();
            assert!(!words.contains("option `") && !words.contains("latent "), "{words}");
        }
        assert!(errors[4].for_page().contains("for the KV cache of layer 3: choose a shorter context"));
    }
}
