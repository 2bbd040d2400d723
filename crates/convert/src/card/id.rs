//! Metadata from a model's id: `deepseek-ai/DeepSeek-V2-Lite-Chat` is by deepseek-ai, and a chat
//! finetune. It follows `Metadata.get_model_id_components` of the Python package gguf, which
//! llama.cpp's converter uses. Programs that list GGUF files show these keys.

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IdParts {
    /// The id without the owner.
    pub(crate) name: String,
    pub(crate) organization: Option<String>,
    pub(crate) basename: Option<String>,
    pub(crate) finetune: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) size_label: Option<String>,
}

/// Possible roles of a word of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct IdWordRoles {
    base: bool,
    size: bool,
    finetune: bool,
    version: bool,
    /// A tensor type, such as Q8_0.
    ty: bool,
}

impl IdWordRoles {
    fn none(self) -> bool {
        self == IdWordRoles::default()
    }
}

impl IdParts {
    /// Splits `OWNER/NAME` or `NAME` of a model with this number of parameters. `None` if the id is
    /// empty.
    pub(crate) fn of(id: &str, parameters: u64) -> Option<IdParts> {
        if id.is_empty() {
            return None;
        }
        if id.contains(' ') {
            // An id with blanks is a title. Its words have no fixed meaning.
            return Some(IdParts { name: id.to_owned(), ..IdParts::default() });
        }
        let (owner, name) = id.split_once('/').map_or((None, id), |(owner, name)| (Some(owner), name));
        let mut words: Vec<(String, IdWordRoles)> = Vec::new();
        for word in name.split('-').filter(|word| !word.is_empty()) {
            let annotated = annotated(word, words.is_empty(), parameters);
            words.push(annotated);
        }
        only_sizes_with_digits(&mut words);
        mark_base(&mut words);
        let joined = |wanted: &dyn Fn(&IdWordRoles) -> bool| {
            let found: Vec<&str> =
                words.iter().filter(|(_, roles)| wanted(roles)).map(|(word, _)| word.as_str()).collect();
            (!found.is_empty()).then(|| found.join("-"))
        };
        let mut sizes: Vec<&str> = Vec::new();
        for (word, _) in words.iter().filter(|(_, roles)| roles.size) {
            // gguf's converter lists a repeated size once.
            if !sizes.contains(&word.as_str()) {
                sizes.push(word);
            }
        }
        let size_label = (!sizes.is_empty()).then(|| sizes.join("-"));
        let finetune = joined(&|roles| roles.finetune);
        let version = joined(&|roles| roles.version && !roles.base);
        // Without any other part, the words may be an arbitrary folder name instead of a base name.
        let telling = size_label.is_some() || finetune.is_some() || version.is_some();
        Some(IdParts {
            name: name.to_owned(),
            organization: owner
                // A path such as `./NAME` has no owner.
                .filter(|owner| !owner.is_empty() && !owner.starts_with('.'))
                .map(str::to_owned),
            basename: joined(&|roles| roles.base).filter(|_| telling),
            finetune,
            version,
            size_label,
        })
    }
}

/// Converts an id to a title: `deepseek-coder-v2` becomes `Deepseek Coder v2`.
pub(crate) fn title(id: &str) -> String {
    let capital = |word: &str| {
        let lower = !word.chars().any(char::is_uppercase) && word.chars().any(char::is_lowercase);
        let digits =
            word.strip_prefix('v').is_some_and(is_version) || word.starts_with(|c: char| c.is_ascii_digit());
        // Words with a capital are acronyms or brands; versions and numbers keep their case, too.
        if !lower || digits {
            return word.to_owned();
        }
        let mut inside = false;
        let letter = |c: char| {
            let first = c.is_alphabetic() && !inside;
            inside = c.is_alphabetic();
            if first { c.to_uppercase().collect::<String>() } else { c.to_string() }
        };
        word.chars().map(letter).collect()
    };
    id.replace('-', " ").split_whitespace().map(capital).collect::<Vec<_>>().join(" ")
}

/// `1`, `2.5`.
fn is_version(text: &str) -> bool {
    text.split('.').all(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `q8_0`, `iq4_x_s`, `bf16`.
fn is_type(word: &str) -> bool {
    let float = word.strip_prefix('b').unwrap_or(word).strip_prefix('f');
    if float.is_some_and(|rest| matches!(rest.strip_prefix('p').unwrap_or(rest), "16" | "32")) {
        return true;
    }
    let Some(rest) = word.strip_prefix('i').unwrap_or(word).strip_prefix('q') else { return false };
    let Some(rest) = rest.strip_prefix(|c: char| c.is_ascii_digit()) else { return false };
    let mut ends = rest.split('_');
    ends.next() == Some("") && ends.all(|end| end.chars().count() == 1)
}

/// `7b`, `8x7B`, `a3b`, `1_5B`, `7b1`, `mini`.
fn is_size(word: &str) -> bool {
    if matches!(word, "small" | "mini" | "medium" | "large" | "xl" | "xxl") {
        return true;
    }
    let of = |text: &str| {
        let text = text
            .strip_suffix(|c: char| c.is_ascii_digit())
            .filter(|text| text.ends_with(UNITS))
            .unwrap_or(text);
        let Some(number) = text.strip_suffix(UNITS) else { return false };
        let (whole, part) = number.split_once(['.', '_']).unwrap_or((number, "0"));
        [whole, part].iter().all(|digits| is_version(digits) && !digits.contains('.'))
    };
    let experts = word.split_once('x').filter(|(count, _)| is_version(count) && !count.contains('.'));
    of(word) || word.strip_prefix('a').is_some_and(of) || experts.is_some_and(|(_, rest)| of(rest))
}

const UNITS: [char; 4] = ['k', 'm', 'b', 't'];

/// Returns a word as it is written in the metadata, with its roles.
fn annotated(word: &str, first: bool, parameters: u64) -> (String, IdWordRoles) {
    let lower = word.to_lowercase();
    let mut roles = IdWordRoles::default();
    let number = lower.strip_prefix("iter").or_else(|| lower.strip_prefix('v')).unwrap_or(&lower);
    if is_version(number) {
        roles.version = true;
    } else if is_type(&lower) {
        roles.ty = true;
        return (word.to_uppercase(), roles);
    // As in gguf, the first word is neither a size nor a finetune: it names the model.
    } else if !first && is_size(&lower) {
        let mut size = word.replace('_', ".");
        // BLOOM's notation: 7b1 is 7.1B.
        if let Some(last) = size.chars().last().filter(char::is_ascii_digit) {
            size.pop();
            let unit = size.pop().unwrap_or_default();
            size.extend(['.', last, unit]);
        }
        let unit = size.pop().unwrap_or_default();
        let counted = size.ends_with(|c: char| c.is_ascii_digit());
        let large = if counted { unit.to_ascii_uppercase() } else { unit };
        // The unit's place in this text is its power of 1000.
        let power = " KMBT".find(large).unwrap_or(0) as i32;
        let meant = size.parse::<f64>().ok().map(|count| count * 1000f64.powi(power));
        let parameters = parameters as f64;
        // A number far from the model's own size is likely a context length (128k).
        // The limit of 7/8 is that of the Python package.
        roles.finetune = meant
            .is_some_and(|meant| parameters > 0.0 && (meant - parameters).abs() > 7.0 * parameters / 8.0);
        roles.size = !roles.finetune;
        size.push(if roles.finetune { large.to_ascii_lowercase() } else { large });
        return (size, roles);
    } else if !first && matches!(lower.as_str(), "chat" | "instruct" | "vision" | "lora") {
        roles.finetune = true;
    }
    (word.to_owned(), roles)
}

/// Words such as `mini` count as sizes only if no word has a size in digits.
fn only_sizes_with_digits(words: &mut [(String, IdWordRoles)]) {
    let digits = |word: &str| word.bytes().any(|byte| byte.is_ascii_digit());
    if words.iter().any(|(word, roles)| roles.size && digits(word)) {
        for (word, roles) in words.iter_mut().filter(|(_, roles)| roles.size) {
            roles.size = !word.chars().all(char::is_alphabetic);
        }
    }
}

/// Marks the leading words as the base name, without trailing versions. Later words without a role
/// belong to the finetune.
fn mark_base(words: &mut [(String, IdWordRoles)]) {
    let mut at_start = true;
    for (word, roles) in words.iter_mut() {
        let word = word.starts_with(char::is_alphabetic) && roles.none();
        at_start &= word || roles.version;
        roles.base = at_start;
        roles.finetune |= !at_start && roles.none();
    }
    for (_, roles) in words.iter_mut().rev().take_while(|(_, roles)| roles.base && roles.version) {
        roles.base = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are those of `Metadata.get_model_id_components` of the Python package
    /// gguf.
    #[test]
    fn ids_are_split_as_by_llama_cpps_converter() {
        let cases = [
            (
                "deepseek-ai/DeepSeek-V2-Lite-Chat",
                15_706_484_224,
                "DeepSeek-V2-Lite-Chat deepseek-ai DeepSeek-V2-Lite Chat - -",
            ),
            ("deepseek-ai/DeepSeek-V3.2-Exp", 671_026_419_200, "DeepSeek-V3.2-Exp deepseek-ai - - - -"),
            (
                "deepseek-ai/DeepSeek-R1-0528",
                671_026_419_200,
                "DeepSeek-R1-0528 deepseek-ai DeepSeek-R1 - 0528 -",
            ),
            (
                "moonshotai/Moonlight-16B-A3B-Instruct",
                15_960_000_000,
                "Moonlight-16B-A3B-Instruct moonshotai Moonlight Instruct - 16B-A3B",
            ),
            (
                "moonshotai/Kimi-K2-Instruct",
                1_026_408_232_448,
                "Kimi-K2-Instruct moonshotai Kimi-K2 Instruct - -",
            ),
            ("openbmb/MiniCPM3-4B", 4_074_000_000, "MiniCPM3-4B openbmb MiniCPM3 - - 4B"),
            ("zai-org/GLM-4.7-Flash", 30_000_000_000, "GLM-4.7-Flash zai-org - - - -"),
            ("tencent/Youtu-LLM-2B", 1_961_000_000, "Youtu-LLM-2B tencent Youtu-LLM - - 2B"),
            ("PLM-Team/PLM-1.8B-Instruct", 1_830_000_000, "PLM-1.8B-Instruct PLM-Team PLM Instruct - 1.8B"),
            ("v3", 4_800_000, "v3 - - - v3 -"),
            ("v3-yarn", 4_800_000, "v3-yarn - - - - -"),
            ("youtu", 298_000, "youtu - - - - -"),
            ("model-7b1-q8_0", 7_100_000_000, "model-7b1-q8_0 - model - - 7.1B"),
            (
                "./Some-Model-128k-instruct",
                7_000_000_000,
                "Some-Model-128k-instruct - Some-Model 128k-instruct - -",
            ),
            ("x/mini-Large-8x7b-v0.1", 47_000_000_000, "mini-Large-8x7b-v0.1 x mini-Large - v0.1 8x7B"),
            (
                "org/Name-small-1_5B-chat-vision",
                1_500_000_000,
                "Name-small-1_5B-chat-vision org Name-small chat-vision - 1.5B",
            ),
            ("a/b-iter3-bf16", 1_000, "b-iter3-bf16 a - - - -"),
            (
                "Mistral-Large-3-675B-Instruct-2512",
                675_000_000_000,
                "Mistral-Large-3-675B-Instruct-2512 - Mistral-Large-3 Instruct 2512 675B",
            ),
            ("a/--x--", 0, "--x-- a - - - -"),
        ];
        for (id, parameters, expected) in cases {
            let parts = IdParts::of(id, parameters).unwrap();
            let found = [
                Some(parts.name.as_str()),
                parts.organization.as_deref(),
                parts.basename.as_deref(),
                parts.finetune.as_deref(),
                parts.version.as_deref(),
                parts.size_label.as_deref(),
            ]
            .map(|part| part.unwrap_or("-"));
            assert_eq!(found.join(" "), expected, "{id}");
        }
        assert_eq!(IdParts::of("", 0), None);
        assert_eq!(IdParts::of("A Fine Model 7B", 0).unwrap().name, "A Fine Model 7B");
    }

    #[test]
    fn titles_have_capitals_but_for_versions_and_acronyms() {
        assert_eq!(title("deepseek-coder-v2"), "Deepseek Coder v2");
        assert_eq!(title("GLM-4.7-flash"), "GLM 4.7 Flash");
        assert_eq!(title("hermes_2-pro-8b"), "Hermes_2 Pro 8b");
        assert_eq!(title("v3-yarn"), "v3 Yarn");
    }
}
