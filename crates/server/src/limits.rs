//! Limits on connections and requests. Each has a name, a default and a description.

use crate::error::ApiError;

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:expr,)+) => {
        /// Limits on connections and requests, which the section `[limits]` of the configuration
        /// file sets.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Limits {
            $($(#[doc = $doc])+ pub $name: $kind,)+
        }

        impl Default for Limits {
            fn default() -> Limits {
                Limits { $($name: $default,)+ }
            }
        }

        impl Limits {
            /// Sets a limit by its name. Returns false for an unknown name.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    // On a 32-bit system, a value that `usize` cannot hold is the largest limit.
                    $(stringify!($name) => self.$name = <$kind>::try_from(value).unwrap_or(<$kind>::MAX),)+
                    _ => return false,
                }
                true
            }
        }
    };
}

limits! {
    /// Maximum number of open connections, as far as file descriptors allow. A further one evicts
    /// the longest idle one, or else the one that has waited longest for a body.
    connections: usize = 4096,
    /// Maximum bytes of the request line and headers.
    header_bytes: usize = 65_536,
    /// Seconds to receive the headers of a request. Idle connections are closed after the same
    /// time.
    header_seconds: u64 = 20,
    /// Maximum bytes of a request's decoded body.
    body_bytes: usize = 33_554_432,
    /// Maximum bytes of bodies, prompts and unsent answers of all requests. Further requests get
    /// 429. The last quarter is reserved for requests of at most 65536 bytes.
    bodies_bytes: usize = 268_435_456,
    /// Seconds without progress after which receiving a body fails.
    body_seconds: u64 = 20,
    /// Seconds without progress after which sending fails and the connection is closed.
    write_seconds: u64 = 60,
    /// Bytes per second that count as progress of a body or of a reader. 0: any byte does.
    slowest_bytes: usize = 512,
    /// Maximum depth of nested JSON.
    json_depth: usize = 64,
    /// Maximum number of JSON values in a request.
    json_values: usize = 1_000_000,
    /// Maximum number of messages or items of a conversation.
    messages: usize = 4096,
    /// Maximum number of tools of a request.
    tools: usize = 256,
    /// Maximum number of answers to one prompt (`n`).
    choices: usize = 8,
    /// Maximum number of prompts or inputs of a request.
    inputs: usize = 64,
    /// Maximum number of stop strings.
    stop: usize = 16,
    /// Maximum bytes of a stop string.
    stop_bytes: usize = 256,
    /// Maximum number of tokens with a bias.
    logit_bias: usize = 1024,
    /// Maximum number of alternatives with log-probabilities.
    top_logprobs: usize = 20,
    /// Maximum bytes of a grammar or JSON schema.
    grammar_bytes: usize = 65_536,
    /// Maximum unsent bytes of an answer. A reader that is slower is cut off.
    outbound_bytes: usize = 262_144,
    /// Send buffer of a socket in bytes; 0: the system's default.
    socket_send_bytes: usize = 0,
    /// Maximum bytes of stored responses (`store`, `previous_response_id`). The oldest are evicted.
    store_bytes: usize = 67_108_864,
    /// Maximum bytes of resumable streams (`X-Conversation-Id`). The oldest are evicted.
    stream_bytes: usize = 33_554_432,
    /// Seconds that a request waits for its model.
    load_seconds: u64 = 600,
    /// Seconds until a stream begins before its model is loaded, and between its comments.
    loading_ping_seconds: u64 = 5,
    /// Deadline of a request in seconds; 0: none.
    request_seconds: u64 = 0,
    /// Seconds for running requests after a signal to stop.
    drain_seconds: u64 = 30,
}

impl Limits {
    /// Checks the length of a list against a limit. `name` is the limit's name for the error.
    pub(crate) fn check(&self, param: &str, name: &str, count: usize, limit: usize) -> Result<(), ApiError> {
        if count <= limit {
            return Ok(());
        }
        Err(ApiError::field(param, format!("{count} exceeds the limit of {limit} ({name})")))
    }
}
