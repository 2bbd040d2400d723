//! Content codings of request bodies: gzip, deflate, br and zstd, decoded within `body_bytes`.
//!
//! Codex and Claude Code's harness send compressed bodies. All decoders are pure Rust.

use crate::error::{ApiError, ErrorKind, SUPPORTED_CODINGS};
use crate::limits::Limits;
use crate::memory::RequestCharge;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_ENCODING;
use flate2::read::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};
use std::io::{self, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum number of codings applied to one body. Each may expand by a factor of a thousand.
const MAX_CODINGS: usize = 3;

/// Maximum number of zstd frames in a body. Empty frames produce no output, so `body_bytes` does
/// not bound the work for them.
const MAX_FRAMES: usize = 4096;

/// Maximum zstd window over HTTP, from RFC 9659.
const WINDOW: u64 = 8 << 20;

/// A content coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
    Brotli,
    Zstd,
}

impl Coding {
    fn of(name: &str) -> Option<Coding> {
        match name {
            // RFC 9110, section 8.4.1.3: `x-gzip` is equivalent to `gzip`.
            "gzip" | "x-gzip" => Some(Coding::Gzip),
            "deflate" => Some(Coding::Deflate),
            "br" => Some(Coding::Brotli),
            "zstd" => Some(Coding::Zstd),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
        }
    }
}

/// The codings of a body in the order in which the client applied them, or the header's value if it
/// names an unknown coding.
#[derive(Clone, Debug)]
pub(crate) struct ContentCodings(Result<Vec<Coding>, String>);

impl Default for ContentCodings {
    fn default() -> ContentCodings {
        ContentCodings(Ok(Vec::new()))
    }
}

impl ContentCodings {
    /// Parses the `Content-Encoding` headers. Several of them are equivalent to one list.
    pub(super) fn of(headers: &HeaderMap) -> ContentCodings {
        let mut codings = Vec::new();
        for value in headers.get_all(CONTENT_ENCODING) {
            let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
            for name in text.split(',').map(str::trim).filter(|name| !name.is_empty() && *name != "identity")
            {
                match Coding::of(name) {
                    Some(coding) if codings.len() < MAX_CODINGS => codings.push(coding),
                    // An unknown coding is not an error yet: this runs for requests whose body is
                    // never read.
                    _ => return ContentCodings(Err(text)),
                }
            }
        }
        ContentCodings(Ok(codings))
    }

    /// Whether the body is not encoded.
    pub(super) fn is_identity(&self) -> bool {
        self.0.as_ref().is_ok_and(Vec::is_empty)
    }

    /// Refuses unknown codings, before the body is read.
    pub(super) fn check(&self) -> Result<(), ApiError> {
        let Err(value) = &self.0 else { return Ok(()) };
        let problem = format!(
            "Content-Encoding: {value} is not supported; expected {SUPPORTED_CODINGS}, at most {MAX_CODINGS} \
             in sequence"
        );
        Err(ApiError::new(ErrorKind::Unsupported, problem))
    }

    /// Decodes a body.
    pub(super) fn decode(
        &self,
        body: Vec<u8>,
        limits: &Limits,
        charge: &RequestCharge,
    ) -> Result<Vec<u8>, ApiError> {
        self.check()?;
        let codings = self.0.as_deref().unwrap_or_default();
        let mut body = body;
        // The client applied the last coding last, so it is decoded first.
        for coding in codings.iter().rev() {
            // A decoder that panics on hostile bytes must fail only this request.
            let decoded = catch_unwind(AssertUnwindSafe(|| decode(*coding, &body, limits, charge)));
            let broken = |_| Err(invalid(*coding, "its decoder failed"));
            body = decoded.unwrap_or_else(broken)?;
            // The encoded bytes were dropped.
            charge.set(body.len())?;
        }
        Ok(body)
    }
}

fn invalid(coding: Coding, problem: impl std::fmt::Display) -> ApiError {
    ApiError::invalid(format!("the body is not valid {} (Content-Encoding): {problem}", coding.name()))
}

fn decode(coding: Coding, body: &[u8], limits: &Limits, charge: &RequestCharge) -> Result<Vec<u8>, ApiError> {
    let mut out = Output { bytes: Vec::new(), limit: limits.body_bytes, charge };
    let copied = match coding {
        // RFC 1952, section 2.2: a gzip file may consist of several members.
        Coding::Gzip => out.copy(MultiGzDecoder::new(body)),
        // RFC 9110 defines `deflate` as zlib data, but some clients send raw deflate.
        Coding::Deflate => inflate(body, has_zlib_header(body), &mut out),
        Coding::Brotli => out.copy(brotli_decompressor::Decompressor::new(body, 4096)),
        Coding::Zstd => frames(body, &mut out),
    };
    match copied {
        Ok(()) => Ok(out.bytes),
        Err(DecodeFailure::Refused(error)) => Err(error),
        Err(DecodeFailure::Read(problem)) => Err(invalid(coding, problem)),
    }
}

/// Whether a body begins with a zlib header: RFC 1950, section 2.2 (method 8, checksum mod 31).
fn has_zlib_header(body: &[u8]) -> bool {
    matches!(body, [method, flags, ..] if method & 15 == 8 && (usize::from(*method) << 8 | usize::from(*flags)) % 31 == 0)
}

enum DecodeFailure {
    Refused(ApiError),
    Read(String),
}

impl From<io::Error> for DecodeFailure {
    fn from(error: io::Error) -> DecodeFailure {
        DecodeFailure::Read(error.to_string())
    }
}

/// Decoded bytes, up to a limit.
struct Output<'a> {
    bytes: Vec<u8>,
    limit: usize,
    charge: &'a RequestCharge,
}

impl Output<'_> {
    fn copy(&mut self, mut reader: impl Read) -> Result<(), DecodeFailure> {
        let mut chunk = [0; 16_384];
        loop {
            let count = match reader.read(&mut chunk) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            self.push(&chunk[..count])?;
        }
    }

    fn push(&mut self, decoded: &[u8]) -> Result<(), DecodeFailure> {
        let length = self.bytes.len() + decoded.len();
        if length > self.limit {
            let problem = format!("the decoded body has more than {} bytes (body_bytes)", self.limit);
            return Err(DecodeFailure::Refused(ApiError::new(ErrorKind::TooLarge, problem)));
        }
        // Charged as the output grows, so that a decompression bomb is refused early.
        self.charge.grow(decoded.len()).map_err(DecodeFailure::Refused)?;
        if length > self.bytes.capacity() {
            // Grow by an eighth. Doubling could reserve twice the memory that is charged.
            self.bytes.reserve_exact(decoded.len().max(self.bytes.len() / 8 + 64));
        }
        self.bytes.extend_from_slice(decoded);
        Ok(())
    }
}

/// Decodes deflate, with or without a zlib header.
fn inflate(body: &[u8], zlib: bool, out: &mut Output<'_>) -> Result<(), DecodeFailure> {
    // flate2's own reader accepts a truncated stream as complete.
    let mut inflater = Decompress::new(zlib);
    let (mut rest, mut chunk) = (body, [0; 16_384]);
    loop {
        let (taken, made) = (inflater.total_in(), inflater.total_out());
        let status = inflater
            .decompress(rest, &mut chunk, FlushDecompress::None)
            .map_err(|error| DecodeFailure::Read(error.to_string()))?;
        // The casts are lossless: both are at most the lengths of the slices.
        let taken = (inflater.total_in() - taken) as usize;
        let made = (inflater.total_out() - made) as usize;
        rest = &rest[taken..];
        out.push(&chunk[..made])?;
        match status {
            Status::StreamEnd => return Ok(()),
            Status::Ok | Status::BufError if taken == 0 && made == 0 => {
                return Err(DecodeFailure::Read("it is truncated".into()));
            }
            Status::Ok | Status::BufError => {}
        }
    }
}

/// Decodes consecutive zstd frames and skips skippable ones.
fn frames(mut body: &[u8], out: &mut Output<'_>) -> Result<(), DecodeFailure> {
    let mut decoder = FrameDecoder::new();
    // A frame with a single segment has its content size as its window.
    decoder.set_max_window_size(WINDOW.max(out.limit as u64));
    for _ in 0..MAX_FRAMES {
        match StreamingDecoder::new_with_decoder(&mut body, &mut decoder) {
            Ok(frame) => out.copy(frame)?,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length, ..
            })) => {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                body = body
                    .split_at_checked(length)
                    .ok_or_else(|| DecodeFailure::Read("a frame is truncated".into()))?
                    .1;
            }
            Err(error) => return Err(DecodeFailure::Read(error.to_string())),
        }
        if body.is_empty() {
            return Ok(());
        }
    }
    Err(DecodeFailure::Read(format!("it has more than {MAX_FRAMES} frames")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RequestMemory;
    use axum::http::HeaderValue;

    fn decoded(name: &'static str, body: &[u8]) -> Result<Vec<u8>, ApiError> {
        let headers = [(CONTENT_ENCODING, HeaderValue::from_static(name))].into_iter().collect();
        let memory = RequestMemory::new(1 << 20);
        ContentCodings::of(&headers).decode(
            body.to_vec(),
            &Limits { body_bytes: 100_000, ..Limits::default() },
            &memory.charge(),
        )
    }

    #[test]
    fn every_prefix_of_a_coded_body_is_decoded_or_refused() {
        for (name, body) in [
            ("gzip", &include_bytes!("../../tests/server/coded/body.gz")[..]),
            ("deflate", &include_bytes!("../../tests/server/coded/body.zlib")[..]),
            ("deflate", &include_bytes!("../../tests/server/coded/body.deflate")[..]),
            ("br", &include_bytes!("../../tests/server/coded/body.br")[..]),
            ("zstd", &include_bytes!("../../tests/server/coded/body.zst")[..]),
        ] {
            let whole = decoded(name, body).unwrap();
            assert!(whole.starts_with(b"{\"messages\""), "{name}");
            for end in 0..body.len() {
                assert!(decoded(name, &body[..end]).is_err(), "{name}: {end} of {} bytes", body.len());
            }
            // A flipped byte must not make a decoder panic.
            for at in 0..body.len() {
                let mut changed = body.to_vec();
                changed[at] ^= 0x55;
                let problem = decoded(name, &changed).err().map(|error| error.message);
                assert!(
                    !problem.is_some_and(|problem| problem.contains("its decoder failed")),
                    "{name}: {at}"
                );
            }
        }
    }

    #[test]
    fn codings_are_undone_in_reverse_and_unknown_ones_named() {
        let body = include_bytes!("../../tests/server/coded/body.gz");
        assert_eq!(decoded("identity", b"{}").unwrap(), b"{}");
        assert_eq!(decoded("identity, X-GZIP", body).unwrap(), decoded("gzip", body).unwrap());
        let twice = include_bytes!("../../tests/server/coded/body.gz.zst");
        assert_eq!(decoded("gzip, zstd", twice).unwrap(), decoded("gzip", body).unwrap());
        for name in ["compress", "gzip, aws-chunked", "gzip, gzip, gzip, gzip"] {
            let error = decoded(name, body).unwrap_err();
            assert!(
                error.kind == ErrorKind::Unsupported && error.message.contains(name),
                "{}",
                error.message
            );
            assert!(error.message.contains("gzip, deflate, br, zstd"));
        }
    }

    #[test]
    fn a_small_body_that_becomes_a_large_one_is_refused() {
        for (name, bomb) in [
            ("gzip", &include_bytes!("../../tests/server/coded/bomb.gz")[..]),
            ("br", &include_bytes!("../../tests/server/coded/bomb.br")[..]),
            ("zstd", &include_bytes!("../../tests/server/coded/bomb.zst")[..]),
        ] {
            let error = decoded(name, bomb).unwrap_err();
            assert!(error.kind == ErrorKind::TooLarge && error.message.contains("100000"), "{name}: {error}");
        }
        // Empty frames: a header without content.
        let empty = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];
        assert_eq!(decoded("zstd", &empty.repeat(3)).unwrap(), b"");
        assert!(decoded("zstd", &empty.repeat(5000)).unwrap_err().message.contains("4096 frames"));
        // A skippable frame, and a truncated one.
        let skipped = [0x50, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 7, 7];
        assert_eq!(decoded("zstd", &[&skipped[..], &empty].concat()).unwrap(), b"");
        assert!(decoded("zstd", &skipped[..9]).is_err());
    }
}
