//! Custom sampling: a logits processor that forbids a letter, and a sampler outside of the engine.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_engine::cache::Sequence;
use latent_engine::{
    Engine, EngineOptions, LogitsProcessor, LogitsRequest, Request, RunningAnswer, SeqInput,
};
use latent_formats::Checkpoint;
use latent_text::{EncodeOptions, Tokenizer};
use std::path::Path;
use std::sync::Arc;

const DEMO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/mla-demo-Q4_K_M.gguf");

/// Forbids all tokens that contain the letter.
struct LetterBan {
    letter: u8,
    tokenizer: Arc<Tokenizer>,
}

impl LogitsProcessor for LetterBan {
    fn process(&mut self, _tokens: &[u32], logits: &mut [f32]) {
        for (id, logit) in logits.iter_mut().enumerate() {
            let piece = self.tokenizer.piece(id as u32).unwrap_or_default();
            if piece.contains(&self.letter) || piece.contains(&self.letter.to_ascii_uppercase()) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let checkpoint = Arc::new(Checkpoint::open(Path::new(DEMO))?);
    let tokenizer = Arc::new(Tokenizer::from_checkpoint(&checkpoint)?);
    let backend = latent_backends::cpu();
    let mut engine = Engine::load(&*backend, &checkpoint, &EngineOptions::default(), &mut |_, _| {})?;
    let prompt =
        tokenizer.encode("Once upon a", EncodeOptions { add_special: true, parse_special: false })?;

    // 1. A processor in the engine's sampler chain.
    let request = Request { prompt: prompt.clone(), max_tokens: Some(15), ..Request::default() };
    let mut generation = engine.start(&request, &tokenizer)?;
    generation.add_processor(Box::new(LetterBan { letter: b'e', tokenizer: Arc::clone(&tokenizer) }));
    let mut sequence = Sequence::default();
    while !generation.is_finished() {
        let mut running = [RunningAnswer::new(&mut sequence, &mut generation)];
        engine.advance(&mut running)?.into_iter().try_for_each(|result| result.map(drop))?;
    }
    println!("without e:{}", generation.text());
    assert!(!generation.text().contains(['e', 'E']));

    // 2. Only the steps of the engine, with any use of their logits: here the second likeliest
    //    token.
    let mut sequence = Sequence::default();
    let (mut tokens, mut chosen) = (prompt, Vec::new());
    for _ in 0..10 {
        let mut second = 0;
        let mut inputs = [SeqInput::tokens(&mut sequence, &tokens, LogitsRequest::Last)];
        let mut choose = |logits: &[f32]| {
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            second = order[1];
        };
        engine.step(&mut inputs, &mut |_, _, logits| choose(logits))?.all()?;
        chosen.push(second);
        // The sequence has the rows of all earlier tokens, so that only the new one runs.
        tokens = vec![second];
    }
    println!("second best:{}", tokenizer.decode(&chosen, false));
    Ok(())
}
