//! The requests of a client.

use super::Args;
use serde_json::{Value, json};

pub struct PlannedRequest {
    pub body: Value,
    /// Tokens after which the client closes the connection.
    pub leave_after: Option<usize>,
}

/// A generator of requests.
pub struct ClientPlan {
    random: u64,
    mixed: bool,
    prompt: usize,
    answer: usize,
    context: usize,
    ids: (u32, u32),
}

/// Number of tokens that prompts with a common prefix share. More than one KV block (64), so that
/// the prefix cache has something to reuse.
const COMMON: usize = 96;

impl ClientPlan {
    pub fn new(args: &Args, seed: u64) -> Self {
        ClientPlan {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            mixed: args.mixed,
            prompt: args.prompt,
            answer: args.answer,
            context: args.context,
            ids: (args.ids[0], args.ids[1]),
        }
    }

    /// xorshift64*.
    fn next(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low).max(1) as u64) as usize
    }

    fn id(&mut self) -> u32 {
        let (low, high) = self.ids;
        low + (self.next() % u64::from(high - low)) as u32
    }

    pub fn ask(&mut self) -> PlannedRequest {
        let (mut prompt, mut answer, mut leave_after, mut common) = (self.prompt, self.answer, None, None);
        if self.mixed {
            (prompt, answer) = match self.between(0, 100) {
                0..60 => (self.between(8, 64), self.between(16, 64)),
                60..88 => (self.between(128, 512), self.between(32, 128)),
                _ => (self.between(512, 1400), self.between(64, 256)),
            };
            answer = answer.min(self.context / 4);
            prompt = prompt.min(self.context - answer);
            if self.between(0, 20) == 0 {
                leave_after = Some(self.between(0, answer));
            }
            if self.between(0, 2) == 0 {
                common = Some(self.between(0, 4));
            }
        }
        let mut tokens: Vec<u32> = (0..prompt).map(|_| self.id()).collect();
        if let Some(which) = common {
            let (low, high) = self.ids;
            for (at, token) in tokens.iter_mut().take(COMMON).enumerate() {
                *token = low + (which * 131 + at * 17) as u32 % (high - low);
            }
        }
        let body = json!({
            "prompt": tokens,
            "n_predict": answer,
            "ignore_eos": true,
            "stream": true,
            "temperature": 0.0,
            // Clients with equal prompts measure prefill, which a cached prompt would skip.
            "cache_prompt": self.mixed,
        });
        PlannedRequest { body, leave_after }
    }
}
