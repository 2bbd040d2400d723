//! Measures the preparation of a vocabulary, the compilation of grammars and the computation of
//! masks: `mask_time VOCABULARY.gguf`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use latent_formats::Checkpoint;
use latent_grammar::{GrammarLimits, GrammarSource, Grammars};
use latent_text::{EncodeOptions, Tokenizer};
use serde_json::json;
use std::time::{Duration, Instant};

const TEXT: &str = r#"{"name": "Ada Lovelace", "born": 1815, "notes": ["Analytical Engine", "wrote the first \"program\", in 1843"], "alive": false}"#;

const GBNF: &str = r##"
root   ::= object
value  ::= object | array | text | number | ("true" | "false" | "null") ws
object ::= "{" ws ( text ":" ws value ("," ws text ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
text   ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"##;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: mask_time VOCABULARY.gguf")?;
    let tokenizer = Tokenizer::from_checkpoint(&Checkpoint::open(path.as_ref())?)?;
    let tokens = tokenizer.encode(TEXT, EncodeOptions { add_special: false, parse_special: false })?;
    let start = Instant::now();
    let limits =
        GrammarLimits { mask_threads: 0, compile_time: Duration::from_secs(60), ..GrammarLimits::default() };
    let grammars = Grammars::new(&tokenizer, limits)?;
    println!("vocabulary of {} tokens: {:.1?}", tokenizer.vocab_size(), start.elapsed());
    let schema = json!({"type": "object", "required": ["name", "born", "notes", "alive"], "properties": {
        "name": {"type": "string", "maxLength": 40}, "born": {"type": "integer"}, "notes": {"type": "array", "items": {"type": "string"}},
        "alive": {"type": "boolean"}}});
    let sources = [
        ("schema", GrammarSource::JsonSchema(schema)),
        ("object", GrammarSource::JsonObject),
        ("gbnf", GrammarSource::Gbnf(GBNF.into())),
    ];
    for (name, source) in sources {
        let start = Instant::now();
        let grammar = grammars.compile(&source, None)?;
        let compiled = start.elapsed();
        for round in ["first answer", "second answer"] {
            let (mut constraint, mut context, mut times) = (grammar.constraint(), Vec::new(), Vec::new());
            for token in &tokens {
                let mut logits = vec![0.0; tokenizer.vocab_size()];
                let start = Instant::now();
                constraint.process(&context, &mut logits);
                times.push(start.elapsed());
                if logits[*token as usize] != 0.0 {
                    return Err(format!("{name}: {:?}", constraint.problem()).into());
                }
                context.push(*token);
            }
            times.sort_unstable();
            let mean = times.iter().sum::<Duration>() / times.len() as u32;
            let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
            println!(
                "{name}: compiled in {compiled:.1?}; {round}: mean {mean:.0?}, median {median:.0?}, most {most:.0?}"
            );
        }
    }
    Ok(())
}
