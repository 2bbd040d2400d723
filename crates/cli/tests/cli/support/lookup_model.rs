//! A model with constructed weights that looks facts up: DeepSeek-V3.2 with an indexer in two
//! layers.
//!
//! It reads "The code of the red box is 4912." and answers " 4912" to "What is the code of the red
//! box?". In the first layer each number and each question mark attends to the two words at fixed
//! distances before it, by the rotated parts of query and key alone. In the second the question
//! mark attends to the number with the same two words, and the head writes that number. The
//! indexers select by the same products, so that both kinds of attention find the fact.

use serde_json::{Map, Value, json};
use std::collections::HashSet;
use std::f64::consts::TAU;
use std::path::Path;

const KINDS: [&str; 12] =
    ["red", "blue", "green", "yellow", "white", "black", "golden", "small", "big", "heavy", "old", "new"];
const THINGS: [&str; 12] =
    ["box", "gate", "boat", "room", "safe", "shelf", "locker", "chest", "tower", "bag", "door", "cart"];
const OTHERS: [&str; 12] =
    ["The", " code", " of", " the", " is", "What", "Here", " are", " some", " facts", " house", "?"];

// columns of the residual stream
const KIND: usize = 0;
const THING: usize = 12;
const NUMBER: usize = 24;
const QUESTION: usize = 25;
const ONE: usize = 26;
const PAD: usize = 27;
const CODE: usize = 32;
/// What the first layer has gathered: a kind and, 12 columns on, a thing.
const GATHERED: usize = 96;
const OUTPUT: usize = 120;
const HIDDEN: usize = 192;

/// Columns of a number's code: a sign for each bit.
const BITS: usize = 64;
const HEADS: usize = 2;
const NOPE: usize = 28;
const ROPE: usize = 32;
const VALUE: usize = 64;
const LATENT: usize = 96;
const QUERY: usize = 32;
const INDEX: usize = 64;
const FFN: usize = 8;
/// Squared norm of each row of the embedding.
const NORM: f64 = 72.0;

#[derive(Clone)]
struct Matrix {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Matrix {
    fn zero(shape: &[usize]) -> Matrix {
        Matrix { shape: shape.to_vec(), values: vec![0.0; shape.iter().product()] }
    }

    fn ones(width: usize) -> Matrix {
        Matrix { shape: vec![width], values: vec![1.0; width] }
    }

    fn set(&mut self, row: usize, column: usize, value: f64) {
        self.values[row * self.shape[1] + column] = value as f32;
    }

    /// `count` rows from `row` on that copy as many columns from `column` on.
    fn copy(&mut self, row: usize, column: usize, count: usize, factor: f64) {
        for i in 0..count {
            self.set(row + i, column + i, factor);
        }
    }
}

/// The signs of a number's code.
fn code(number: usize) -> impl Iterator<Item = f64> {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = mixed ^ (mixed >> 32);
    (0..BITS).map(move |bit| if mixed >> bit & 1 == 1 { 1.0 } else { -1.0 })
}

/// GPT-2's character of a byte.
fn character(byte: u8) -> char {
    let plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    match plain(byte) {
        true => byte as char,
        false => char::from_u32(0x100 + (0..byte).filter(|other| !plain(*other)).count() as u32).unwrap(),
    }
}

/// Tokens by id, and merges that join the characters of each from its first on.
fn vocabulary() -> (Vec<String>, Vec<String>) {
    let mut tokens: Vec<String> = (0..=255).map(|byte| character(byte).to_string()).collect();
    let mut known: HashSet<String> = tokens.iter().cloned().collect();
    let mut merges = Vec::new();
    let words = KINDS.iter().chain(&THINGS).map(|word| format!(" {word}"));
    let numbers = (1000..10_000).map(|number| format!(" {number}"));
    for word in words.chain(OTHERS.map(str::to_owned)).chain(numbers) {
        let mut done = String::new();
        for next in word.bytes().map(character) {
            let longer = format!("{done}{next}");
            if !done.is_empty() && known.insert(longer.clone()) {
                merges.push(format!("{done} {next}"));
                tokens.push(longer.clone());
            }
            done = longer;
        }
    }
    (tokens, merges)
}

/// Embedding and head.
fn ends(tokens: &[String]) -> [Matrix; 2] {
    let (mut embedding, mut head) =
        (Matrix::zero(&[tokens.len(), HIDDEN]), Matrix::zero(&[tokens.len(), HIDDEN]));
    for (id, token) in tokens.iter().enumerate() {
        let word = token.strip_prefix('Ġ').unwrap_or_default();
        let mut rest = NORM - 1.0;
        let mut one = |column| {
            embedding.set(id, column, 1.0);
            rest -= 1.0;
        };
        if let Some(kind) = KINDS.iter().position(|kind| *kind == word) {
            one(KIND + kind);
        } else if let Some(thing) = THINGS.iter().position(|thing| *thing == word) {
            one(THING + thing);
        } else if token == "?" {
            one(QUESTION);
        } else if let Some(number) = word.parse::<usize>().ok().filter(|number| *number >= 1000) {
            one(NUMBER);
            rest -= BITS as f64;
            for (bit, sign) in code(number).enumerate() {
                embedding.set(id, CODE + bit, sign);
                head.set(id, OUTPUT + bit, sign);
            }
        }
        embedding.set(id, ONE, 1.0);
        embedding.set(id, PAD, rest.sqrt());
    }
    [embedding, head]
}

/// The weights of one layer's attention that are not zero.
struct Attention {
    q_a: Matrix,
    q_b: Matrix,
    kv_a: Matrix,
    kv_b: Matrix,
    out: Matrix,
    index_q: Matrix,
    index_k: Matrix,
    index_norm: [Matrix; 2],
    index_weights: Matrix,
}

impl Attention {
    fn zero() -> Attention {
        let mut index_weights = Matrix::zero(&[1, HIDDEN]);
        index_weights.set(0, ONE, 1.0);
        Attention {
            q_a: Matrix::zero(&[QUERY, HIDDEN]),
            q_b: Matrix::zero(&[HEADS * (NOPE + ROPE), QUERY]),
            kv_a: Matrix::zero(&[LATENT + ROPE, HIDDEN]),
            kv_b: Matrix::zero(&[HEADS * (NOPE + VALUE), LATENT]),
            out: Matrix::zero(&[HIDDEN, HEADS * VALUE]),
            index_q: Matrix::zero(&[INDEX, QUERY]),
            index_k: Matrix::zero(&[INDEX, HIDDEN]),
            index_norm: [Matrix::ones(INDEX), Matrix::zero(&[INDEX])],
            index_weights,
        }
    }

    /// Numbers gather the words two and three before them, question marks those one and two before.
    fn gathering() -> Attention {
        let mut a = Attention::zero();
        a.q_a.set(0, NUMBER, 1.0);
        a.q_a.set(1, QUESTION, 1.0);
        a.q_a.set(2, ONE, 1.0);
        let frequency = |pair: usize| 10_000f64.powf(-2.0 * pair as f64 / ROPE as f64);
        // the word's distance from a number and from a question mark, by head
        for (head, distances) in [[3.0, 2.0], [2.0, 1.0]].into_iter().enumerate() {
            for (class, distance) in distances.into_iter().enumerate() {
                for pair in 0..ROPE / 2 {
                    let angle = TAU - frequency(pair) * distance;
                    let row = head * (NOPE + ROPE) + NOPE + 2 * pair;
                    a.q_b.set(row, class, 80.0 * angle.cos());
                    a.q_b.set(row + 1, class, 80.0 * angle.sin());
                    // between both words; the indexer's pairs are halves
                    let angle = TAU - frequency(pair) * (2.5 - class as f64);
                    a.index_q.set(pair, class, angle.cos());
                    a.index_q.set(pair + ROPE / 2, class, angle.sin());
                }
            }
            a.kv_b.copy(head * (NOPE + VALUE) + NOPE, head * 12, 12, (65.0 / LATENT as f64).sqrt());
            a.out.copy(GATHERED + head * 12, head * VALUE, 12, 1.0);
        }
        a.kv_a.copy(0, KIND, 24, 1.0);
        a.kv_a.set(24, ONE, 8.0);
        for pair in 0..ROPE / 2 {
            a.kv_a.set(LATENT + 2 * pair, ONE, (NORM / HIDDEN as f64).sqrt());
            a.index_norm[1].values[pair] = 1.0;
        }
        a.index_norm[0] = Matrix::zero(&[INDEX]);
        a
    }

    /// Question marks attend to the number that has gathered the same words.
    fn comparing() -> Attention {
        let mut a = Attention::zero();
        a.q_a.copy(0, GATHERED, 24, 1.0);
        a.q_a.set(24, ONE, 4.0);
        a.q_b.copy(0, 0, 24, 200.0);
        // whatever a token has gathered, it must be a number
        a.q_b.set(24, 24, 150.0);
        a.kv_a.copy(0, GATHERED, 24, 1.0);
        a.kv_a.set(24, NUMBER, 1.0);
        a.kv_a.set(25, ONE, 8.0);
        a.kv_a.copy(26, CODE, BITS, 1.0);
        a.kv_b.copy(0, 0, 25, 1.0);
        a.kv_b.copy(NOPE, 26, BITS, 1.0);
        a.out.copy(OUTPUT, 0, BITS, 1.0);
        a.index_q.copy(ROPE, 0, 24, 1.0);
        a.index_q.set(ROPE + 24, 24, 0.75);
        a.index_k.copy(ROPE, GATHERED, 24, 1.0);
        a.index_k.set(ROPE + 24, NUMBER, 1.0);
        // keeps the LayerNorm from enlarging keys that are nearly zero
        for row in 0..8 {
            a.index_k.set(row, ONE, if row % 2 == 0 { 1.0 } else { -1.0 });
        }
        a
    }

    fn tensors(self) -> Vec<(&'static str, Matrix)> {
        let [norm, bias] = self.index_norm;
        vec![
            ("q_a_proj.weight", self.q_a),
            ("q_a_layernorm.weight", Matrix::ones(QUERY)),
            ("q_b_proj.weight", self.q_b),
            ("kv_a_proj_with_mqa.weight", self.kv_a),
            ("kv_a_layernorm.weight", Matrix::ones(LATENT)),
            ("kv_b_proj.weight", self.kv_b),
            ("o_proj.weight", self.out),
            ("indexer.wq_b.weight", self.index_q),
            ("indexer.wk.weight", self.index_k),
            ("indexer.k_norm.weight", norm),
            ("indexer.k_norm.bias", bias),
            ("indexer.weights_proj.weight", self.index_weights),
        ]
    }
}

/// Writes the model, whose rows attend to `topk` tokens. With `blind`, the second layer's indexer
/// scores all tokens alike.
pub fn write(folder: &Path, topk: usize, blind: bool) {
    let (tokens, merges) = vocabulary();
    let [embedding, head] = ends(&tokens);
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), embedding),
        ("model.norm.weight".to_owned(), Matrix::ones(HIDDEN)),
        ("lm_head.weight".to_owned(), head),
    ];
    let mut comparing = Attention::comparing();
    if blind {
        comparing.index_weights = Matrix::zero(&[1, HIDDEN]);
    }
    for (layer, attention) in [Attention::gathering(), comparing].into_iter().enumerate() {
        let name = |rest: &str| format!("model.layers.{layer}.{rest}");
        tensors.extend(
            attention.tensors().into_iter().map(|(rest, of)| (name(&format!("self_attn.{rest}")), of)),
        );
        for norm in ["input_layernorm.weight", "post_attention_layernorm.weight"] {
            tensors.push((name(norm), Matrix::ones(HIDDEN)));
        }
        for (part, shape) in [("gate", [FFN, HIDDEN]), ("up", [FFN, HIDDEN]), ("down", [HIDDEN, FFN])] {
            tensors.push((name(&format!("mlp.{part}_proj.weight")), Matrix::zero(&shape)));
        }
    }
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, matrix) in tensors {
        let start = data.len();
        data.extend(matrix.values.iter().flat_map(|value| value.to_le_bytes()));
        header.insert(
            name,
            json!({"dtype": "F32", "shape": matrix.shape, "data_offsets": [start, data.len()]}),
        );
    }
    let header = Value::from(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    let config = json!({
        "model_type": "deepseek_v32", "architectures": ["DeepseekV32ForCausalLM"], "vocab_size": tokens.len(),
        "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS, "kv_lora_rank": LATENT,
        "q_lora_rank": QUERY, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE,
        "index_n_heads": 1, "index_head_dim": INDEX, "index_topk": topk, "intermediate_size": FFN,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "eos_token_id": 0,
        "tie_word_embeddings": false
    });
    let ids: Map<String, Value> =
        tokens.into_iter().enumerate().map(|(id, token)| (token, id.into())).collect();
    let tokenizer = json!({
        "model": {"type": "BPE", "vocab": ids, "merges": merges},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}
    });
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    std::fs::create_dir_all(folder).unwrap();
    for (name, text) in [
        ("config.json", config.to_string()),
        ("tokenizer.json", tokenizer.to_string()),
        ("tokenizer_config.json", json!({"chat_template": template}).to_string()),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
    std::fs::write(folder.join("model.safetensors"), file).unwrap();
}
