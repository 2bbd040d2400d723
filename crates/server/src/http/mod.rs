//! HTTP: connections, limits, origins, TLS, and the route table.

mod address;
mod check;
mod connections;
mod cors;
mod guard;
mod page;
mod router;
mod serve;
mod streams;
mod timed;
mod tls;

pub use check::{CheckError, CheckedRequest, RequestCheck};
pub use router::openapi_document;
pub use serve::{ServeError, Server};
pub use tls::TlsError;
