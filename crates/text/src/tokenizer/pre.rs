//! Pre-tokenizer rules by name. GGUF files contain the name only (`tokenizer.ggml.pre`).
//!
//! Rules are lists of patterns. A pattern is applied to the pieces that earlier ones left. The
//! patterns are those of the models' published tokenizers. llama.cpp's splitter differs for some
//! texts (letters with combining marks in Kimi's); then the model's own rules are used.

use crate::error::TextError;

pub(super) struct PreTokenizerRules {
    /// Names in files. The first one is written.
    pub(super) names: &'static [&'static str],
    pub(super) patterns: &'static [&'static str],
    /// Whether a piece that is a token is not merged.
    pub(super) ignore_merges: bool,
    /// Whether prompts begin with BOS if the file does not say.
    pub(super) add_bos: bool,
}

/// GPT-2's pattern, which `ByteLevel` of tokenizer.json splits by.
// Contractions, letters, numbers, other characters, spaces. The later patterns below vary these
// groups: digits in groups of three (Llama 3) or one by one (Qwen 2, Ling), upper and lower case
// apart (GPT-4o, Tekken), Han characters apart (Kimi, DeepSeek).
pub(super) const GPT_2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const CJK: &str = "[一-龥ࠀ-一가-\u{d7ff}]+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Cased letters, as deepseek-llm's tokenizer lists them.
const LETTERS: &str = r"\s?[\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}-\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}-\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}-\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";

const TABLE: [PreTokenizerRules; 13] = [
    // DeepSeek LLM 7B. A run of digits is one piece.
    PreTokenizerRules {
        names: &["deepseek-llm"],
        patterns: &["[\r\n]", LETTERS, "\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+", "\\s+$", CJK, r"\p{N}+"],
        ignore_merges: false,
        add_bos: false,
    },
    // DeepSeek Coder 6.7B. Each digit is a piece.
    PreTokenizerRules {
        names: &["deepseek-coder"],
        patterns: &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"],
        ignore_merges: false,
        add_bos: false,
    },
    // DeepSeek-V3, Hunyuan-4B-Instruct and JoyAI-LLM-Flash.
    PreTokenizerRules {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        patterns: &[
            r"\p{N}{1,3}",
            "[一-龥\u{3040}-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
        ignore_merges: false,
        add_bos: false,
    },
    // glm-4-9b-hf, GLM-4.5-Air and GLM-4.7-Flash. `chatglm-bpe` is glm-4-9b-chat, which merges
    // pieces that are tokens too.
    PreTokenizerRules { names: &["glm4", "glm5"], patterns: &[LLAMA3], ignore_merges: true, add_bos: false },
    PreTokenizerRules { names: &["chatglm-bpe"], patterns: &[LLAMA3], ignore_merges: false, add_bos: false },
    // Llama 3, Falcon 3 and Pixtral 12B.
    PreTokenizerRules {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    // Kimi-K2. The pattern is in the Python file of its repository.
    PreTokenizerRules {
        names: &["kimi-k2"],
        patterns: &[
            r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    // Youtu-LLM-2B.
    PreTokenizerRules {
        names: &["youtu"],
        patterns: &[
            "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: true,
        add_bos: false,
    },
    // GPT-4o, Llama 4 Scout and Kanana 2.
    PreTokenizerRules {
        names: &["gpt-4o", "llama4", "kanana2"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    // Mistral Nemo: GPT-4o's pattern without contractions, and each digit is a piece.
    PreTokenizerRules {
        names: &["tekken"],
        patterns: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: true,
        add_bos: true,
    },
    // Qwen 1.5, and DeepSeek-R1-Distill-Qwen: Llama 3's pattern, and each digit is a piece.
    PreTokenizerRules {
        names: &["qwen2", "deepseek-r1-qwen"],
        patterns: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    // Ling-mini-2.0 and Ling-lite.
    PreTokenizerRules {
        names: &["bailingmoe2", "bailingmoe"],
        patterns: &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    // GPT-2 and GigaChat-20B-A3B.
    PreTokenizerRules {
        names: &["gpt-2", "gpt2", "gigachat"],
        patterns: &[GPT_2],
        ignore_merges: false,
        add_bos: false,
    },
];

/// The rules of a name.
///
/// # Errors
/// For unknown names, including `default`: text would silently be split wrongly.
pub(super) fn named(name: &str) -> Result<&'static PreTokenizerRules, TextError> {
    TABLE.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| TextError::UnknownPre {
        found: name.to_owned(),
        known: TABLE.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", "),
    })
}

/// The name of the rules with these patterns.
pub(super) fn with_patterns(patterns: &[&str], ignore_merges: bool) -> Option<&'static str> {
    let found = TABLE.iter().find(|pre| pre.ignore_merges == ignore_merges && pre.patterns == patterns)?;
    found.names.first().copied()
}

#[cfg(test)]
pub(super) fn patterns() -> impl Iterator<Item = &'static str> {
    TABLE.iter().flat_map(|pre| pre.patterns).copied()
}
