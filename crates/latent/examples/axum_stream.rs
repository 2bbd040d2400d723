//! A server that streams answers:
//! `cargo run --release -p latent --features demo,stream --example axum_stream -- [ADDRESS]`, then
//! `curl --no-buffer -d "Tell me a story." http://127.0.0.1:3000`.
#![allow(clippy::print_stdout, reason = "an example")]

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::{Router, routing::post};
use futures_util::TryStreamExt;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use latent::{Chat, Error, ErrorKind, Model};
use tower_service::Service;

async fn chat(State(model): State<Model>, question: String) -> Result<Body, (StatusCode, String)> {
    let request = model.chat(Chat::new().user(question)).max_tokens(200);
    let answer = request.start().map_err(|error| (status(&error), error.to_string()))?;
    Ok(Body::from_stream(answer.map_ok(|piece| piece.content)))
}

fn status(error: &Error) -> StatusCode {
    match error.kind() {
        ErrorKind::Argument { .. } | ErrorKind::Text => StatusCode::BAD_REQUEST,
        ErrorKind::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        ErrorKind::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".into());
    let router = Router::new().route("/", post(chat)).with_state(Model::demo().load()?);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    // With axum's default features, which are off in this workspace, the loop is
    // `axum::serve(listener, router).await?`.
    loop {
        let (stream, _) = listener.accept().await?;
        let router = router.clone();
        let service = service_fn(move |request| router.clone().call(request));
        let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        // An error of a connection, such as a client that disconnects, ends only that connection.
        tokio::spawn(async move { drop(connection.await) });
    }
}
