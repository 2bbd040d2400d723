//! An engine with the demo model, and questions in its chat template.
#![allow(dead_code, reason = "each test program uses a part of it")]

use latent_backend::Backend;
use latent_engine::sampling::SamplingParams;
use latent_engine::{Answer, Engine, EngineOptions, Listener, Request, Session};
use latent_formats::{Checkpoint, CheckpointSource};
use latent_text::{ChatInput, ChatTemplate, Tokenizer};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub struct DemoListener;

impl Listener for DemoListener {}

pub struct DemoEngine {
    pub engine: Engine,
    pub tokenizer: Arc<Tokenizer>,
    pub template: ChatTemplate,
}

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

pub fn demo(options: &EngineOptions) -> DemoEngine {
    demo_on(&*latent_backends::cpu(), options)
}

pub fn demo_on(backend: &dyn Backend, options: &EngineOptions) -> DemoEngine {
    let checkpoint = Arc::new(Checkpoint::open(&models().join("mla-demo-Q4_K_M.gguf")).unwrap());
    let CheckpointSource::Gguf(source) = checkpoint.source() else { panic!("the demo model is a GGUF file") };
    let template = source.metadata.str("tokenizer.chat_template").unwrap().unwrap();
    DemoEngine {
        template: ChatTemplate::new(template).unwrap(),
        tokenizer: Arc::new(Tokenizer::from_checkpoint(&checkpoint).unwrap()),
        engine: Engine::load(backend, &checkpoint, options, &mut |_, _| {}).unwrap(),
    }
}

impl DemoEngine {
    pub fn prompt(&self, question: &str) -> Vec<u32> {
        let mut input = ChatInput::new(json!([{"role": "user", "content": question}]));
        input.bos_token = self.tokenizer.token_text(self.tokenizer.bos().unwrap()).unwrap().to_owned();
        let rendered = self.template.render(&input).unwrap();
        self.tokenizer.encode_rendered(&rendered, false).unwrap()
    }

    /// The answer to a question, of at most `most` tokens.
    pub fn ask(
        &mut self,
        session: &mut Session,
        question: &str,
        most: usize,
        sampling: &SamplingParams,
    ) -> Answer {
        let request = Request {
            prompt: self.prompt(question),
            sampling: sampling.clone(),
            max_tokens: Some(most),
            ..Request::default()
        };
        self.engine.generate(session, &request, &self.tokenizer, &mut DemoListener).unwrap()
    }
}
