//! How much a request may ask for: every limit has a name and a default.

use crate::error::ApiError;

macro_rules! limits {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty = $default:expr,)+) => {
        /// Limits on connections and requests. Each can be set in the section `[limits]` of the configuration file.
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
            /// Names, defaults and meanings, for the documentation.
            pub const TABLE: &'static [(&'static str, u64, &'static str)] =
                &[$((stringify!($name), $default as u64, concat!($($doc),+)),)+];

            /// Sets a limit by its name. False if there is none of this name.
            pub fn set(&mut self, name: &str, value: u64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = <$kind>::try_from(value).unwrap_or(<$kind>::MAX),)+
                    _ => return false,
                }
                true
            }
        }
    };
}

limits! {
    /// Most connections that are open at once, as far as file descriptors allow; beyond it, the one that was idle longest is closed, or where none is idle the one that has waited longest for a body.
    connections: usize = 4096,
    /// Bytes of a request's line and headers.
    header_bytes: usize = 65_536,
    /// Seconds until a request's headers must be there; an idle connection is kept as long.
    header_seconds: u64 = 20,
    /// Bytes of a request's body.
    body_bytes: usize = 33_554_432,
    /// Bytes that all requests hold together: bodies, prompts, and answers that have not been sent. A request beyond it is refused with 429. The last quarter is reserved for requests of at most 65536 bytes.
    bodies_bytes: usize = 268_435_456,
    /// Seconds without any byte of a body after which the request ends.
    body_seconds: u64 = 20,
    /// Seconds without progress of a write after which the connection is closed.
    write_seconds: u64 = 60,
    /// Bytes per second below which a body or a reader of an answer falls behind; after `body_seconds` or `write_seconds` it counts as standing still. 0: any byte is progress.
    slowest_bytes: usize = 512,
    /// Depth of nested JSON.
    json_depth: usize = 64,
    /// Values in a request's JSON.
    json_values: usize = 1_000_000,
    /// Messages or items of a conversation.
    messages: usize = 4096,
    /// Tools of a request.
    tools: usize = 256,
    /// Answers to one request (`n`).
    choices: usize = 8,
    /// Prompts or inputs of one request.
    inputs: usize = 64,
    /// Stop strings.
    stop: usize = 16,
    /// Bytes of a stop string.
    stop_bytes: usize = 256,
    /// Tokens with a bias.
    logit_bias: usize = 1024,
    /// Alternatives with log-probabilities.
    top_logprobs: usize = 20,
    /// Bytes of a grammar or JSON schema.
    grammar_bytes: usize = 65_536,
    /// Bytes of an answer that wait for a slow reader, after which it is cancelled.
    outbound_bytes: usize = 262_144,
    /// Bytes that the operating system buffers for a slow reader; 0: as many as it likes.
    socket_send_bytes: usize = 0,
    /// Bytes of stored responses (`store`, `previous_response_id`), the oldest go first.
    store_bytes: usize = 67_108_864,
    /// Bytes of the streams of named conversations (`X-Conversation-Id`), the oldest go first.
    stream_bytes: usize = 33_554_432,
    /// Seconds that a request waits until its model is loaded.
    load_seconds: u64 = 600,
    /// Seconds after which a stream begins although its model is still being loaded, and between the comments or blanks that it sends meanwhile.
    loading_ping_seconds: u64 = 5,
    /// Seconds until a request must be answered; 0: no deadline.
    request_seconds: u64 = 0,
    /// Seconds that requests have to end after a signal to stop.
    drain_seconds: u64 = 30,
}

impl Limits {
    /// Refuses a list that is longer than allowed.
    pub(crate) fn check(&self, param: &str, name: &str, count: usize, limit: usize) -> Result<(), ApiError> {
        if count <= limit {
            return Ok(());
        }
        Err(ApiError::field(param, format!("{count} are more than the limit of {limit} ({name})")))
    }
}
