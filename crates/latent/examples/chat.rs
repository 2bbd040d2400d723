//! A conversation in the terminal:
//! `cargo run --release -p latent --features demo --example chat -- [MODEL]`.
#![allow(clippy::print_stdout, reason = "an example")]

use latent::{Chat, Model};
use std::io::{BufRead, Write, stdin, stdout};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = match std::env::args_os().nth(1) {
        Some(path) => Model::builder(path).load()?,
        None => Model::demo().load()?,
    };
    let mut chat = Chat::new();
    for line in stdin().lock().lines() {
        let mut answer = model.chat(chat.user(line?)).start()?;
        for piece in &mut answer {
            print!("{}", piece?.content);
            stdout().flush()?;
        }
        println!();
        // The answer becomes a message of the conversation, so that the next question continues it.
        chat = answer.finish()?.chat().unwrap_or_default();
    }
    Ok(())
}
