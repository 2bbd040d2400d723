//! Answers as streams of async code.

use crate::model;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::{Router, routing::post};
use futures_util::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use latent::{Chat, Model};
use tower_service::Service;

async fn chat(State(model): State<Model>, question: String) -> Result<Body, (StatusCode, String)> {
    let request = model.chat(Chat::new().user(question)).temperature(0.0).max_tokens(40);
    let answer = request.start().map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(Body::from_stream(answer.map_ok(|piece| piece.content)))
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn a_handler_streams_an_answer() {
    let model = model();
    let mut router = Router::new().route("/", post(chat)).with_state(model.clone());
    let mut ask = |question: &str| {
        let request = Request::post("/").body(Body::from(question.to_owned())).unwrap();
        runtime().block_on(async {
            let response = router.call(request).await.unwrap();
            let status = response.status();
            let mut body = response.into_body();
            let (mut frames, mut text) = (0, Vec::new());
            while let Some(frame) = body.frame().await {
                frames += 1;
                text.extend(frame.unwrap().into_data().unwrap());
            }
            (status, frames, String::from_utf8(text).unwrap())
        })
    };
    let expected = model.chat(Chat::new().user("Hi")).temperature(0.0).max_tokens(40).finish().unwrap();
    let (status, frames, text) = ask("Hi");
    assert_eq!((status, text), (StatusCode::OK, expected.message.unwrap().content));
    assert!(frames > 5, "{frames}");
    let (status, _, text) = ask(&"again ".repeat(600));
    assert!(status == StatusCode::BAD_REQUEST && text.contains("context holds 512"), "{text}");
}

#[test]
fn many_streams_share_one_thread_and_a_dropped_one_ends() {
    let model = model();
    let start = || model.complete(vec![1, 20, 30]).temperature(0.0).max_tokens(30).start().unwrap();
    let dropped = model.complete(vec![1, 20, 30]).temperature(0.0).start().unwrap();
    let texts: Vec<String> = runtime().block_on(async {
        let mut dropped = dropped;
        StreamExt::next(&mut dropped).await.unwrap().unwrap();
        drop(dropped);
        let texts = (0..8).map(|_| {
            start().try_fold(String::new(), |text, piece| std::future::ready(Ok(text + &piece.text)))
        });
        futures_util::future::try_join_all(texts).await.unwrap()
    });
    let expected = start().finish().unwrap().text;
    assert!(texts.iter().all(|text| *text == expected));
}
