//! Names of GGUF files: the quant of a file, and the files of a sharded model.

use crate::listing::RepoFile;

/// Default quants, most preferred first, for references that name none.
pub const DEFAULT_QUANTS: [&str; 8] =
    ["Q4_K_M", "UD-Q4_K_XL", "Q4_0", "Q4_K_S", "IQ4_NL", "MXFP4_MOE", "Q5_K_M", "Q8_0"];

/// Maximum number of files of a sharded model, as in the crate `latent-formats`.
const MAX_SHARDS: u32 = 4096;

/// A GGUF model of a repository: one file, or all shards of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GgufSet {
    /// The quant in the file's name (`UD-Q4_K_XL`), if any.
    pub(crate) tag: Option<String>,
    /// The path without the shard's number and `.gguf`.
    pub(crate) stem: String,
    /// The files in order.
    pub(crate) files: Vec<RepoFile>,
    /// Number of files by their names.
    pub(crate) expected: u32,
}

impl GgufSet {
    /// The name for users: the tag, or else the stem.
    pub(crate) fn name(&self) -> &str {
        self.tag.as_deref().unwrap_or(&self.stem)
    }

    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.size))
    }

    /// Whether all shards exist.
    pub(crate) fn is_whole(&self) -> bool {
        self.files.len() as u32 == self.expected
    }
}

/// The models among the files of the repository `repo`, sorted by name, without [`companion`]
/// files.
pub(crate) fn gguf_sets(repo: &str, files: &[RepoFile]) -> Vec<GgufSet> {
    sets_where(files, |path| companion(repo, path).is_none())
}

/// Sets of the GGUF files for which `wanted` returns true.
pub(crate) fn sets_where(files: &[RepoFile], wanted: impl Fn(&str) -> bool) -> Vec<GgufSet> {
    let mut sets: Vec<GgufSet> = Vec::new();
    let gguf = |path: &str| path.to_ascii_lowercase().ends_with(".gguf");
    let mut files: Vec<&RepoFile> =
        files.iter().filter(|file| gguf(&file.path) && wanted(&file.path)).collect();
    // Sorted by path, the shards of a set are in the order of their numbers.
    files.sort_by(|a, b| a.path.cmp(&b.path));
    for file in files {
        let (stem, shard) = stem(&file.path);
        let expected = shard.map_or(1, |(_, of)| of);
        match sets.iter_mut().find(|set| set.stem == stem && set.expected == expected && shard.is_some()) {
            Some(set) => set.files.push(file.clone()),
            None => {
                sets.push(GgufSet { tag: tag(stem), stem: stem.into(), files: vec![file.clone()], expected })
            }
        }
    }
    sets
}

/// Words in names of files and folders, and the role of such files.
const COMPANIONS: [(&str, &str); 18] = [
    ("mmproj", "a projector"),
    ("projector", "a projector"),
    ("mtp", "a drafter"),
    ("nextn", "a drafter"),
    ("draft", "a drafter"),
    ("drafts", "a drafter"),
    ("drafter", "a drafter"),
    ("dflash", "a drafter"),
    ("eagle", "a drafter"),
    ("eagle2", "a drafter"),
    ("eagle3", "a drafter"),
    ("medusa", "a drafter"),
    ("speculator", "a drafter"),
    ("imatrix", "importances"),
    ("lora", "an adapter"),
    ("adapter", "an adapter"),
    ("vocab", "a vocabulary"),
    ("controlvector", "a control vector"),
];

/// The role of a file that belongs to a model and is not a model itself, by the words of its name
/// and folders. Words that the repository's name also has are part of the model's name.
pub(crate) fn companion(repo: &str, path: &str) -> Option<&'static str> {
    let (repo, path) = (repo.to_ascii_lowercase(), path.to_ascii_lowercase());
    let count = |name: &str, word: &str| {
        let words = name.split(|c: char| !c.is_ascii_alphanumeric());
        // Some projectors are named `mmprojF16`.
        words.filter(|found| *found == word || (word == "mmproj" && found.starts_with(word))).count()
    };
    // Counted, not just found: the repository `Eagle-7B-GGUF` has a model `Eagle-7B-Q4_0.gguf` and
    // may have a drafter `eagle-Eagle-7B.gguf`.
    let found = COMPANIONS.iter().find(|(word, _)| {
        let own = count(&repo, word);
        path.split('/').any(|part| count(part, word) > own)
    });
    found.map(|(_, role)| *role)
}

/// A path without `-00001-of-00003` and `.gguf`, with the shard's number and the number of shards.
pub(crate) fn stem(path: &str) -> (&str, Option<(u32, u32)>) {
    // Callers pass names that end in `.gguf` in any case. `get` protects against a character
    // boundary.
    let cut = path.len().saturating_sub(".gguf".len());
    let whole = path.get(..cut).unwrap_or(path);
    let shard = || {
        let (front, of) = whole.rsplit_once("-of-")?;
        let (front, number) = front.rsplit_once('-')?;
        // llama-gguf-split writes five digits.
        let digits = |text: &str| {
            (text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())
        };
        let (number, of): (u32, u32) = (digits(number)??, digits(of)??);
        ((1..=of).contains(&number) && of <= MAX_SHARDS).then_some((front, (number, of)))
    };
    shard().map_or((whole, None), |(front, shard)| (front, Some(shard)))
}

/// The quant at the end of a file's name.
fn tag(stem: &str) -> Option<String> {
    let name = stem.rsplit('/').next().unwrap_or_default();
    quant_at(name).map(|at| name[at..].to_ascii_uppercase())
}

/// The position of the quant at the end of a name, including `UD-` (Unsloth's dynamic quants).
fn quant_at(name: &str) -> Option<usize> {
    // From the left, so that the longest suffix that is a quant is found.
    let mut starts = name.match_indices(SEPARATORS).map(|(at, _)| at + 1);
    let at = std::iter::once(0).chain(&mut starts).find(|&at| is_quant(&name[at..]))?;
    Some(without(&name[..at], &["UD-"]).map_or(at, str::len))
}

const SEPARATORS: [char; 3] = ['-', '.', '_'];

/// A name without the first of these words that it ends with, if the word follows a separator or is
/// the whole name.
fn without<'a>(name: &'a str, ends: &[&str]) -> Option<&'a str> {
    ends.iter().find_map(|end| {
        let (front, last) = name.split_at_checked(name.len().checked_sub(end.len())?)?;
        (last.eq_ignore_ascii_case(end) && (front.is_empty() || front.ends_with(SEPARATORS))).then_some(front)
    })
}

/// A name without `.gguf` and the number of a shard before it.
pub fn set_name(file: &str) -> &str {
    let end = file.len().checked_sub(".gguf".len()).and_then(|at| file.get(at..));
    if end.is_some_and(|end| end.eq_ignore_ascii_case(".gguf")) { stem(file).0 } else { file }
}

/// A file's name without shard, quant and word for importances: `Kimi-K2` for
/// `Kimi-K2-UD-Q4_K_XL-00001-of-00008.gguf` and `Kimi-K2.i1-Q4_K_M.gguf`. Empty for a name that is
/// a quant.
pub fn base_name(file: &str) -> &str {
    let name = set_name(file);
    let cut = |name| str::trim_end_matches(name, SEPARATORS);
    let plain = without(name, &["imat", "imatrix"]).map_or(name, cut);
    match quant_at(plain) {
        // mradermacher writes `i1-` before quants with an importance matrix, others `imat` on
        // either side.
        Some(at) => {
            let front = cut(&plain[..at]);
            without(front, &["i1", "imat", "imatrix"]).map_or(front, cut)
        }
        None => name,
    }
}

/// `Q4_K_M`, `IQ2_XXS`, `TQ1_0`, `BF16`, `MXFP4_MOE`.
fn is_quant(text: &str) -> bool {
    let upper = text.to_ascii_uppercase();
    if ["BF16", "F16", "F32", "FP16", "FP32", "FP8"].contains(&upper.as_str()) {
        return true;
    }
    let mut parts = upper.split('_');
    let first = parts.next().unwrap_or_default();
    let fp4 = matches!(first, "MXFP4" | "NVFP4");
    let letters = ["IQ", "TQ", "Q"].iter().find_map(|front| first.strip_prefix(front));
    let number = letters
        .is_some_and(|bits| !bits.is_empty() && bits.len() <= 2 && bits.bytes().all(|b| b.is_ascii_digit()));
    (fp4 || number)
        && parts.all(|part| {
            !part.is_empty() && part.len() <= 4 && part.bytes().all(|b| b.is_ascii_alphanumeric())
        })
}

/// A model's tag, and its stem.
pub(crate) type SetName<'a> = (Option<&'a str>, &'a str);

/// The models that a user means by `quant`: those with the same tag, otherwise those with the same
/// tag after `UD-`, otherwise those with the quant in the name of the file or folder.
pub(crate) fn matching(names: &[SetName<'_>], quant: &str) -> Vec<usize> {
    let wanted = quant.to_ascii_uppercase();
    let same = |tag: &Option<&str>| tag.is_some_and(|tag| tag.eq_ignore_ascii_case(&wanted));
    let plain =
        |tag: &Option<&str>| tag.and_then(|tag| tag.strip_prefix("UD-")).is_some_and(|tag| tag == wanted);
    let by = |fits: &dyn Fn(&SetName<'_>) -> bool| -> Vec<usize> {
        (0..names.len()).filter(|&i| fits(&names[i])).collect()
    };
    let found = [
        by(&|(tag, _)| same(tag)),
        by(&|(tag, _)| plain(tag)),
        by(&|(_, stem)| holds(&stem.to_ascii_uppercase(), &wanted)),
    ];
    found.into_iter().find(|found| !found.is_empty()).unwrap_or_default()
}

/// Whether a name contains a quant as a separate word. `Q4_K_M` does not contain `Q4_K`.
fn holds(name: &str, quant: &str) -> bool {
    name.match_indices(quant).any(|(at, _)| {
        let before = name[..at].chars().next_back().is_none_or(|c| "-._/".contains(c));
        // An underscore before a quant separates words (`model_Q8_0`). After it, the quant
        // continues.
        let after = name[at + quant.len()..].chars().next().is_none_or(|c| "-./".contains(c));
        before && after
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<RepoFile> {
        paths.iter().map(|path| RepoFile { path: (*path).into(), size: 10, digest: None }).collect()
    }

    fn chosen(paths: &[&str], quant: &str) -> Vec<String> {
        let sets = gguf_sets("n", &files(paths));
        let names: Vec<_> = sets.iter().map(|set| (set.tag.as_deref(), set.stem.as_str())).collect();
        matching(&names, quant).into_iter().map(|i| sets[i].stem.clone()).collect()
    }

    #[test]
    fn tag_finds_the_quant_in_a_file_name() {
        for (stem, expected) in [
            ("DeepSeek-V2-Lite-Q4_K_M", Some("Q4_K_M")),
            ("deepseek-v2-lite.q4_0", Some("Q4_0")),
            ("sub/GLM-4.7-Flash-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("Kimi-K2-UD-IQ1_S", Some("UD-IQ1_S")),
            ("FRAUD-Q4_0", Some("Q4_0")),
            ("model_q8_0", Some("Q8_0")),
            ("x-BF16", Some("BF16")),
            ("gpt-MXFP4_MOE", Some("MXFP4_MOE")),
            ("x-Q4_0_4_4", Some("Q4_0_4_4")),
            ("Q6_K", Some("Q6_K")),
            ("Qwen3", None),
            ("model", None),
            ("x-Q4_K_M-imat", None),
            ("ü-UD-Q2_K", Some("UD-Q2_K")),
        ] {
            assert_eq!(tag(stem).as_deref(), expected, "{stem}");
        }
    }

    #[test]
    fn companion_recognizes_drafters_and_projectors() {
        for (repo, path, role) in [
            ("GLM-GGUF", "mtp-GLM-Q4_K_M.gguf", Some("a drafter")),
            ("GLM-GGUF", "GLM-MTP-BF16-00001-of-00002.gguf", Some("a drafter")),
            ("GLM-GGUF", "draft/GLM-Q8_0.gguf", Some("a drafter")),
            ("GLM-GGUF", "GLM.eagle3.F16.gguf", Some("a drafter")),
            ("GLM-GGUF", "GLM_Drafter_Q8_0.gguf", Some("a drafter")),
            ("GLM-GGUF", "mmproj-F16.gguf", Some("a projector")),
            ("GLM-GGUF", "mmprojBF16.gguf", Some("a projector")),
            ("GLM-GGUF", "GLM.mmproj-Q8_0.gguf", Some("a projector")),
            ("GLM-GGUF", "MMProj/GLM-F16.gguf", Some("a projector")),
            ("GLM-GGUF", "GLM-Projector-F16.gguf", Some("a projector")),
            ("GLM-GGUF", "GLM.imatrix.gguf", Some("importances")),
            ("GLM-GGUF", "GLM-lora-F16.gguf", Some("an adapter")),
            ("GLM-GGUF", "GLM-Q4_K_M.gguf", None),
            ("GLM-MTP-GGUF", "GLM-MTP-Q4_K_M.gguf", None),
            ("GLM-MTP-GGUF", "Q4_K_M/GLM-MTP-Q4_K_M.gguf", None),
            ("GLM-MTP-GGUF", "mtp-GLM-MTP-Q4_K_M.gguf", Some("a drafter")),
            ("GLM-draft-GGUF", "GLM-draft-Q4_K_M.gguf", None),
            ("Overdraft-GGUF", "Overdraft-Q4_K_M.gguf", None),
        ] {
            assert_eq!(companion(repo, path), role, "{repo} {path}");
        }
    }

    #[test]
    fn base_name_removes_quant_and_shard() {
        for (file, base) in [
            ("Kimi-K2-BF16-00001-of-00002.gguf", "Kimi-K2"),
            ("Kimi-K2-UD-Q4_K_XL-00003-of-00008.gguf", "Kimi-K2"),
            ("kimi-k2-ud-q4_k_xl.gguf", "kimi-k2"),
            ("model-Q4_K_M.gguf", "model"),
            ("model-f16.gguf", "model"),
            ("model.bf16.gguf", "model"),
            ("model_q8_0.GGUF", "model"),
            ("model.i1-Q4_K_M.gguf", "model"),
            ("model-Q5_K-imat.gguf", "model"),
            ("model-imat-IQ3_XXS.gguf", "model"),
            ("model-MXFP4_MOE.gguf", "model"),
            ("model.gguf", "model"),
            ("imatrix.gguf", "imatrix"),
            ("GLM-4.7-Flash.gguf", "GLM-4.7-Flash"),
            ("GLM-4.7-Flash", "GLM-4.7-Flash"),
            ("DeepSeek-V3-FP8", "DeepSeek-V3"),
            ("BF16.gguf", ""),
            ("FRAUD-Q4_0.gguf", "FRAUD"),
            ("modèle-ü-Q2_K.gguf", "modèle-ü"),
            ("é.g", "é.g"),
        ] {
            assert_eq!(base_name(file), base, "{file}");
        }
    }

    #[test]
    fn shards_are_one_set() {
        let paths = [
            "Q4_K_M/m-Q4_K_M-00002-of-00002.gguf",
            "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf",
            "m-Q8_0.gguf",
            "mmproj-F16.gguf",
            "m.imatrix.gguf",
            "README.md",
            "m-Q2_K-00001-of-00003.gguf",
        ];
        let sets = gguf_sets("n", &files(&paths));
        let shape: Vec<_> =
            sets.iter().map(|set| (set.name(), set.files.len(), set.is_whole(), set.bytes())).collect();
        assert_eq!(shape, [("Q4_K_M", 2, true, 20), ("Q2_K", 1, false, 10), ("Q8_0", 1, true, 10)]);
        assert_eq!(sets[0].files[0].path, "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf");
        assert_eq!(stem("a-00001-of-00000.gguf").1, None);
        assert_eq!(stem("a-00003-of-00002.gguf").1, None);
        assert_eq!(stem("a-00001-of-99999.gguf").1, None);
        assert_eq!(stem("é.g"), ("", None));
    }

    #[test]
    fn a_quant_means_the_nearest_name() {
        let all =
            ["m-Q4_K_M.gguf", "m-UD-Q4_K_M.gguf", "m-UD-Q2_K_XL.gguf", "m-Q4_K_S.gguf", "m-Q5_K-imat.gguf"];
        assert_eq!(chosen(&all, "q4_k_m"), ["m-Q4_K_M"]);
        assert_eq!(chosen(&all, "UD-Q4_K_M"), ["m-UD-Q4_K_M"]);
        assert_eq!(chosen(&all, "q2_k_xl"), ["m-UD-Q2_K_XL"]);
        assert_eq!(chosen(&all, "Q5_K"), ["m-Q5_K-imat"]);
        assert_eq!(chosen(&all, "Q4_K"), [""; 0]);
        assert_eq!(chosen(&["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0"), ["a-Q4_0", "b-Q4_0"]);
        assert_eq!(chosen(&["Q4_0/a.gguf", "Q8_0/a.gguf"], "q8_0"), ["Q8_0/a"]);
    }
}
