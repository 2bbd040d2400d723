//! Shared by the tests: vocabularies, and walks through a grammar.
#![allow(dead_code, missing_docs, reason = "each test uses some of it")]

use latent_formats::Checkpoint;
use latent_grammar::{Constraint, Grammar, GrammarError, GrammarLimits, GrammarSource, Grammars, Reasoning};
use latent_text::{GgufVocab, Tokenizer};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Control tokens of the small vocabulary, after the 256 bytes.
pub const CONTROLS: [&str; 9] = [
    "<end>",
    "<stop>",
    "<think>",
    "</think>",
    "<|calls|>",
    "<|call|>",
    "<|args|>",
    "<|/call|>",
    "<|/calls|>",
];

/// Longer tokens of the small vocabulary.
const WORDS: [&str; 26] = [
    "{\"",
    "\":",
    "\",",
    "\"}",
    "}}",
    "ab",
    "abc",
    "true",
    "null",
    "10",
    "0.",
    ", ",
    "\n\n",
    "[[",
    "]]",
    "é",
    "日本",
    "<tool",
    "<tool_call>",
    "get",
    "_time",
    "</",
    "aa",
    " \"",
    "+=",
    "x=",
];

/// A byte-pair tokenizer of the 256 bytes, some words and control tokens. `<end>` and `<stop>` end
/// generation.
pub fn small() -> Arc<Tokenizer> {
    static SMALL: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    SMALL.get_or_init(|| Arc::new(make_small())).clone()
}

fn make_small() -> Tokenizer {
    of_bytes(&WORDS, &CONTROLS)
}

/// A byte-pair tokenizer of the 256 bytes, these words and these control tokens. `<end>` and
/// `<stop>` end generation.
pub fn of_bytes(words: &[&str], controls: &[&str]) -> Tokenizer {
    let mut texts: Vec<String> = (0..=255_u8).map(|byte| as_bpe(&[byte])).collect();
    texts.extend(words.iter().map(|word| as_bpe(word.as_bytes())));
    let mut types = vec![1; texts.len()];
    texts.extend(controls.iter().map(|&name| name.to_owned()));
    types.resize(texts.len(), 3);
    let id = |name: &str| texts.iter().position(|text| text == name).map(|id| id as u32);
    let vocab = GgufVocab {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: texts.iter().map(String::as_bytes).collect(),
        token_types: Some(types),
        merges: Some(vec![]),
        eos: id("<end>"),
        eot: id("<stop>"),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(&vocab).unwrap()
}

/// Bytes in GPT-2's notation (bytes_to_unicode).
fn as_bpe(bytes: &[u8]) -> String {
    let shown = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let spell = |byte: &u8| match shown(*byte) {
        true => char::from(*byte),
        false => {
            let before = (0..*byte).filter(|byte| !shown(*byte)).count() as u32;
            char::from_u32(256 + before).unwrap()
        }
    };
    bytes.iter().map(spell).collect()
}

/// A real vocabulary of 100 000 tokens.
pub fn large() -> Arc<Tokenizer> {
    static LARGE: OnceLock<Arc<Tokenizer>> = OnceLock::new();
    let open = || {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/data/ggml-vocab-deepseek-llm.gguf");
        Arc::new(Tokenizer::from_checkpoint(&Checkpoint::open(&path).unwrap()).unwrap())
    };
    LARGE.get_or_init(open).clone()
}

pub fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| Grammars::new(&small(), limits()).unwrap())
}

/// The default limits, with more time for a machine that is busy with other tests.
pub fn limits() -> GrammarLimits {
    GrammarLimits {
        compile_time: std::time::Duration::from_secs(20),
        compiling: 64,
        ..GrammarLimits::default()
    }
}

pub fn compile(source: &GrammarSource) -> Result<Arc<Grammar>, GrammarError> {
    grammars().compile(source, None)
}

pub fn compile_after(source: &GrammarSource, reasoning: &Reasoning) -> Result<Arc<Grammar>, GrammarError> {
    grammars().compile(source, Some(reasoning))
}

/// A response in the small vocabulary or another one of `of_bytes`, character by character.
pub struct Walk {
    pub constraint: Constraint,
    pub tokens: Vec<u32>,
    tokenizer: Arc<Tokenizer>,
}

impl Walk {
    pub fn new(grammar: &Arc<Grammar>) -> Walk {
        Walk::with(grammar, small())
    }

    pub fn with(grammar: &Arc<Grammar>, tokenizer: Arc<Tokenizer>) -> Walk {
        // The first tokens are a prompt, which the grammar does not see.
        Walk { constraint: grammar.constraint(), tokens: vec![7, 9], tokenizer }
    }

    /// Ids of all allowed tokens.
    pub fn allowed(&mut self) -> Vec<u32> {
        let mut logits = vec![0.0; self.tokenizer.vocab_size() + 3];
        self.constraint.process(&self.tokens, &mut logits);
        (0..logits.len() as u32).filter(|id| logits[*id as usize] == 0.0).collect()
    }

    /// Chooses a token if it is allowed.
    pub fn push(&mut self, token: u32) -> bool {
        let may = self.allowed().contains(&token);
        if may {
            self.tokens.push(token);
            self.constraint.accepted(&self.tokens);
        }
        may
    }

    /// Chooses the bytes of a text, with control tokens for their names. The error is the number of
    /// bytes that were allowed.
    pub fn text(&mut self, text: &str) -> Result<(), usize> {
        let mut at = 0;
        while at < text.len() {
            let control = self.control(&text.as_bytes()[at..]);
            let (token, len) = control.unwrap_or((u32::from(text.as_bytes()[at]), 1));
            if !self.push(token) {
                return Err(at);
            }
            at += len;
        }
        Ok(())
    }

    /// The control token whose name a text begins with, and the length of the name.
    fn control(&self, text: &[u8]) -> Option<(u32, usize)> {
        let ids = (256..self.tokenizer.vocab_size() as u32).filter(|id| self.tokenizer.is_control(*id));
        let named = ids.filter_map(|id| Some((id, self.tokenizer.token_text(id)?)));
        let found = named.filter(|(_, name)| text.starts_with(name.as_bytes()));
        found.map(|(id, name)| (id, name.len())).max_by_key(|(_, len)| *len)
    }

    /// Whether the response may end here. Either both end tokens are allowed or neither.
    pub fn may_end(&mut self) -> bool {
        let allowed = self.allowed();
        let ends = ["<end>", "<stop>"].map(|name| allowed.contains(&self.tokenizer.token_id(name).unwrap()));
        assert_eq!(ends[0], ends[1]);
        assert_eq!(ends[0], self.constraint.may_end());
        ends[0]
    }
}

/// Whether a grammar admits a whole text, with control tokens for their names.
pub fn admits(grammar: &Arc<Grammar>, text: &str) -> bool {
    let mut walk = Walk::new(grammar);
    walk.text(text).is_ok() && walk.may_end()
}

/// Pseudo-random numbers that are the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }
}
