//! Detection of the name of a tokenizer's pre-tokenizer rules.
//!
//! llama.cpp's converter recognizes rules by the tokens of one text: the SHA-256 of their ids,
//! written like a Python list. The text and the hashes of vocabularies with known rules
//! ([`pre`](super::super::pre)) are those of its script. Other vocabularies get the name of the
//! rules with the same patterns.

use super::super::EncodeOptions;
use super::super::{Tokenizer, pre};
use crate::error::TextError;
use latent_formats::Sha256;
use serde_json::Value;

pub(super) const CHECK_TEXT: &str = "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u{200d}🌫\u{fe0f} (multiple emojis concatenated) ✅ 🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL";

/// Names and hashes. A name with several vocabularies is listed several times.
const HASHES: [(&str, &str); 26] = [
    ("deepseek-llm", "049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754"),
    ("deepseek-coder", "347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821"),
    ("deepseek-v3", "877081d19cf6996e2c4ff0e1236341e9b7bde288f5311a56a937f0afbbb3aeb5"),
    ("hunyuan-dense", "bba3b3366b646dbdded5dbc42d59598b849371afc42f7beafa914afaa5b70aa6"),
    ("joyai-llm", "b4b8ca1f9769494fbd956ebc4c249de6131fb277a4a3345a7a92c7dd7a55808d"),
    // glm-4-9b-hf, GLM-4.5-Air, GLM-4.7-Flash.
    ("glm4", "a1336059768a55c99a734006ffb02203cd450fed003e9a71886c88acf24fdbc2"),
    ("glm4", "9ca2dd618e8afaf09731a7cf6e2105b373ba6a1821559f258b272fe83e6eb902"),
    ("glm4", "cdf5f35325780597efd76153d4d1c16778f766173908894c04afc20108536267"),
    // Both are of glm-4-9b-chat.
    ("chatglm-bpe", "b6e8e1518dc4305be2fe39c313ed643381c4da5db34a98f6a04c093f8afbe99b"),
    ("chatglm-bpe", "81d72c7348a9f0ebe86f23298d37debe0a5e71149e29bd283904c02262b27516"),
    ("llama-bpe", "0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5"),
    ("falcon3", "9d032fcbd5501f4a38150912590928bfb36091efb5df11b8e2124b0390e3fb1e"),
    ("pixtral", "0e9433cbbb161f89e264eb32e8e64bfe69e834973ffca5d41d3948a604a3e2a3"),
    ("kimi-k2", "81212dc7cdb7e0c1074ca62c5aeab0d43c9f52b8a737be7b12a777c953027890"),
    ("youtu", "9d70134b369a70e5735009b6de918f7581b5211f7c074d1f89f753aea8248af1"),
    ("gpt-4o", "ccc2ef013c104be7bae2965776d611e1d7a8a2a9c547dd93a682c9a9fc80352e"),
    ("llama4", "d353350c764d8c3b39c763113960e4fb4919bea5fbf208a0e3b22e8469dc7406"),
    ("kanana2", "e4d54df1ebc1f2b91acd986c5b51aa50837d5faf7c7398e73c1f9e9ee5d19869"),
    ("tekken", "63b97e4253352e6f357cc59ea5b583e3a680eaeaf2632188c2b952de2588485e"),
    // Qwen3-Embedding-0.6B, Qwen1.5-7B.
    ("qwen2", "d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c"),
    ("qwen2", "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea"),
    ("deepseek-r1-qwen", "b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5"),
    ("bailingmoe2", "9b1be57e70d20d9501b2b3186e792d81181ae36ada3903c26f9fea418cf87206"),
    // ruGPT3XL, GPT-2.
    ("gpt-2", "0fe1cf6eda062318a1af7270f3331a85c539a01778ff948e24388e949c5282f4"),
    ("gpt-2", "3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454"),
    ("gigachat", "ad851be1dba641f2e3711822f816db2c265f788b37c63b4e1aeacb9ee92de8eb"),
];

/// The tokens of [`CHECK_TEXT`], without BOS and EOS.
pub(super) fn check_tokens(tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
    tokenizer.encode(CHECK_TEXT, EncodeOptions { add_special: false, parse_special: true })
}

/// The name by the hash of the tokens.
pub(super) fn by_hash(tokenizer: &Tokenizer) -> Result<Option<&'static str>, TextError> {
    let plain = check_tokens(tokenizer)?;
    // The converter hashes what the model's tokenizer returns, with BOS if that adds one.
    let with_bos = tokenizer.bos().map(|bos| [&[bos], plain.as_slice()].concat());
    let hashes: Vec<String> = [Some(plain), with_bos].into_iter().flatten().map(|ids| hash(&ids)).collect();
    let row = HASHES.iter().find(|(_, known)| hashes.iter().any(|hash| hash == known));
    Ok(row.map(|(name, _)| *name))
}

/// The SHA-256 of `[1, 2]`, the ids as a Python list.
fn hash(ids: &[u32]) -> String {
    let list: Vec<String> = ids.iter().map(u32::to_string).collect();
    let digest = Sha256::digest(format!("[{}]", list.join(", ")));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name by the components of tokenizer.json: `Split` by patterns, then `ByteLevel`.
pub(super) fn by_patterns(pre_tokenizer: &Value, ignore_merges: bool) -> Option<&'static str> {
    let steps = match pre_tokenizer.get("type").and_then(Value::as_str) {
        Some("Sequence") => pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice(),
        _ => std::slice::from_ref(pre_tokenizer),
    };
    let (last, splits) = steps.split_last()?;
    let is = |step: &Value, key: &str, value: &Value| step.get(key).unwrap_or(&Value::Null) == value;
    if !is(last, "type", &"ByteLevel".into()) || is(last, "add_prefix_space", &true.into()) {
        return None;
    }
    let mut patterns = Vec::new();
    for split in splits {
        if !is(split, "type", &"Split".into()) || !is(split, "behavior", &"Isolated".into()) {
            return None;
        }
        patterns.push(
            split.get("pattern")?.get("Regex")?.as_str().filter(|_| !is(split, "invert", &true.into()))?,
        );
    }
    // `use_regex` is true by default: `ByteLevel` then splits by GPT-2's pattern.
    if !is(last, "use_regex", &false.into()) {
        patterns.push(pre::GPT_2);
    }
    pre::with_patterns(&patterns, ignore_merges)
}
