//! Selection of a repository's files for a reference.

use crate::error::{HubError, ModelChoice};
use crate::listing::RepoFile;
use crate::quant::{DEFAULT_QUANTS, GgufSet, companion, gguf_sets, matching, sets_where, stem};
use crate::reference::{ModelRef, ModelSelector};
use crate::repo::Repo;
use latent_types::format_bytes;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};

/// The "quant" that selects a folder of safetensors files.
pub(crate) const SAFETENSORS: &str = "safetensors";

/// The index of a folder's shards.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The index in Mistral's own folders.
const MISTRAL_INDEX: &str = "consolidated.safetensors.index.json";

/// The weights of a model without an index.
const SINGLE: [&str; 2] = ["model.safetensors", "consolidated.safetensors"];

/// Files of a model folder other than weights. They are downloaded if the repository has them.
const SMALL_FILES: [&str; 18] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "README.md",
    INDEX,
    "params.json",
    "tekken.json",
    "hf_quant_config.json",
    MISTRAL_INDEX,
];

/// Maximum number of models in a message.
const MAX_LISTED: usize = 40;

/// The files of a model.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// The name for users.
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
    /// The file to open; empty for the folder.
    pub(crate) model: String,
    pub(crate) files: Vec<RepoFile>,
    /// The index among the files that names the shards; see [`add_shards`].
    pub(crate) index: Option<&'static str>,
}

/// The choice of a quant by [`pull_with`](crate::pull_with) for references without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantPolicy {
    /// The quant that is preferred to [`DEFAULT_QUANTS`].
    pub preferred: Option<String>,
    /// Maximum size of the model's files in bytes. If the default quant is larger, the largest one
    /// that fits is chosen.
    pub max_bytes: Option<u64>,
}

/// The files of the model that a reference names, or that a policy chooses for a reference without
/// a quant. `note` is called with the reason if another quant than the default is chosen.
pub(crate) fn select_by(
    model: &ModelRef,
    policy: &QuantPolicy,
    files: &[RepoFile],
    note: &dyn Fn(String),
) -> Result<Selection, HubError> {
    if model.choice != ModelSelector::Usual {
        return select(model, files);
    }
    // The preferred quant of a short name may have been removed from its repository. Then the
    // default quants apply.
    let preferred = policy.preferred.clone().map(|quant| {
        let choice = ModelSelector::Quant(quant);
        select(&ModelRef { choice, ..model.clone() }, files)
    });
    let usual = match preferred {
        Some(Ok(preferred)) => preferred,
        _ => select(model, files)?,
    };
    let size = usual.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.size));
    // The size of a folder is unknown before its index is downloaded.
    let Some(max) = policy.max_bytes.filter(|max| size > *max && !usual.model.is_empty()) else {
        return Ok(usual);
    };
    // The largest quant that fits has the least quantization error.
    let sets = gguf_sets(&model.repo.name, files);
    let small = (0..sets.len()).filter(|&at| sets[at].is_whole() && sets[at].bytes() <= max);
    let Some(at) = small.max_by_key(|&at| sets[at].bytes()) else {
        let problem = format!("all of its models exceed the available {}", format_bytes(max));
        return Err(choose(model, problem, &sets, &(0..sets.len()).collect::<Vec<_>>(), files));
    };
    let chosen = gguf(&model.repo, &sets, at)?;
    let (name, size, max) = (&usual.name, format_bytes(size), format_bytes(max));
    note(format!(
        "{}: {name} ({size}) does not fit into the available {max}: using {} ({})",
        model.repo,
        chosen.name,
        format_bytes(sets[at].bytes())
    ));
    Ok(chosen)
}

/// The files of the model that a reference names.
pub(crate) fn select(model: &ModelRef, files: &[RepoFile]) -> Result<Selection, HubError> {
    let sets = gguf_sets(&model.repo.name, files);
    let all = || (0..sets.len()).collect::<Vec<_>>();
    let choose = |problem: String, some: &[usize]| Err(choose(model, problem, &sets, some, files));
    match &model.choice {
        ModelSelector::File(path) => file(model, path, files),
        ModelSelector::Quant(quant) if quant.eq_ignore_ascii_case(SAFETENSORS) => folder(&model.repo, files),
        ModelSelector::Quant(quant) => {
            let names: Vec<_> = sets.iter().map(|set| (set.tag.as_deref(), set.stem.as_str())).collect();
            match matching(&names, quant).as_slice() {
                [one] => gguf(&model.repo, &sets, *one),
                [] => choose(format!("it has no model with quant {quant}"), &all()),
                several => choose(format!("several models are {quant}"), several),
            }
        }
        ModelSelector::Usual if sets.is_empty() => folder(&model.repo, files),
        ModelSelector::Usual => match usual(&sets.iter().map(|set| set.tag.as_deref()).collect::<Vec<_>>()) {
            DefaultSelection::One(at) => gguf(&model.repo, &sets, at),
            DefaultSelection::Several(quant, several) => {
                choose(format!("several models are {quant}"), &several)
            }
            DefaultSelection::None => {
                choose("it has several models, but none with a default quant".into(), &all())
            }
        },
    }
}

/// The model among several for a reference without a quant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DefaultSelection {
    One(usize),
    /// Several have the preferred quant.
    Several(&'static str, Vec<usize>),
    None,
}

/// Chooses among models with these quants: the most preferred quant, or the only model.
pub(crate) fn usual(tags: &[Option<&str>]) -> DefaultSelection {
    if tags.len() == 1 {
        return DefaultSelection::One(0);
    }
    for quant in DEFAULT_QUANTS {
        let found: Vec<usize> = (0..tags.len()).filter(|&i| tags[i] == Some(quant)).collect();
        match found[..] {
            [] => {}
            [one] => return DefaultSelection::One(one),
            // Several models in one repository: a less preferred quant must not decide between
            // them.
            _ => return DefaultSelection::Several(quant, found),
        }
    }
    DefaultSelection::None
}

fn gguf(repo: &Repo, sets: &[GgufSet], at: usize) -> Result<Selection, HubError> {
    let set = &sets[at];
    if !set.is_whole() {
        let problem = format!(
            "{} has {} files, but the repository contains {}",
            set.name(),
            set.expected,
            set.files.len()
        );
        return Err(HubError::NoModel { repo: repo.clone(), problem });
    }
    // A quant that several models have does not name one of them. Then the file does.
    let alone = sets.iter().filter(|other| other.tag == set.tag).count() == 1;
    let tag = set.tag.clone();
    let name = tag.clone().filter(|_| alone).unwrap_or_else(|| set.files[0].path.clone());
    Ok(Selection { name, tag, model: set.files[0].path.clone(), files: set.files.clone(), index: None })
}

/// A file with the other shards of its set.
fn file(model: &ModelRef, path: &str, files: &[RepoFile]) -> Result<Selection, HubError> {
    // Companion files (drafters, projectors) are excluded elsewhere, but can be selected by name
    // here.
    let named: Vec<RepoFile> = match stem(path) {
        (stem_of, Some((_, of))) => {
            // Another set may have the same stem and another number of shards.
            let same = |file: &&RepoFile| {
                let (other, shard) = stem(&file.path);
                other == stem_of && shard.is_some_and(|(_, all)| all == of)
            };
            files.iter().filter(same).cloned().collect()
        }
        _ => files.iter().filter(|file| file.path == path).cloned().collect(),
    };
    if !named.iter().any(|file| file.path == path) {
        let sets = gguf_sets(&model.repo.name, files);
        let all: Vec<usize> = (0..sets.len()).collect();
        return Err(choose(model, format!("it has no file {path}"), &sets, &all, files));
    }
    let (stem_of, shard) = stem(path);
    let expected = shard.map_or(1, |(_, of)| of);
    let set = GgufSet { tag: None, stem: stem_of.into(), files: sorted(named), expected };
    let mut selection = gguf(&model.repo, &[set], 0)?;
    selection.name = selection.model.clone();
    Ok(selection)
}

fn sorted(mut files: Vec<RepoFile>) -> Vec<RepoFile> {
    files.sort_by(|a, b| a.path.cmp(&b.path));
    files
}

/// A folder of safetensors files. With an index, the shards are added later by [`add_shards`].
fn folder(repo: &Repo, files: &[RepoFile]) -> Result<Selection, HubError> {
    let find = |name: &str| files.iter().find(|file| file.path == name).cloned();
    let mut found: Vec<RepoFile> = SMALL_FILES.into_iter().filter_map(find).collect();
    let has = |found: &[RepoFile], name: &str| found.iter().any(|file| file.path == name);
    let none = |problem: String| HubError::NoModel { repo: repo.clone(), problem };
    // The error names what the repository has instead of a model.
    if !has(&found, "config.json") && !has(&found, "params.json") {
        let companions = sets_where(files, |path| companion(&repo.name, path).is_some());
        return Err(none(if files.iter().any(|f| f.path.ends_with(".safetensors")) {
            "it has weights but no config.json".into()
        } else if let Some(first) = companions.first().map(|set| &set.files[0].path) {
            let role = companion(&repo.name, first).unwrap_or_default();
            format!(
                "it has no model: {first} is {role} by its name; to load it anyway, use hf:{repo}/{first}"
            )
        } else {
            "it has neither GGUF nor safetensors files".into()
        }));
    }
    // Mistral's repositories may have the weights in both forms. Only one is downloaded: Hugging
    // Face's.
    let plain = has(&found, INDEX) || find(SINGLE[0]).is_some();
    let (keys, tokens) = (has(&found, "config.json"), has(&found, "tokenizer.json"));
    found.retain(|file| match file.path.as_str() {
        MISTRAL_INDEX => !plain,
        "params.json" => !keys,
        "tekken.json" => !tokens,
        _ => true,
    });
    let index = [INDEX, MISTRAL_INDEX].into_iter().find(|name| has(&found, name));
    // Subfolders hold other forms of the weights (`onnx/`, `original/`), so only the root is
    // searched.
    if index.is_none() {
        let root =
            files.iter().filter(|file| !file.path.contains('/') && file.path.ends_with(".safetensors"));
        let weights: Vec<&RepoFile> = root.collect();
        let one = SINGLE.iter().find_map(|name| weights.iter().find(|file| file.path == **name));
        let one = one.or(weights.first().filter(|_| weights.len() == 1));
        match one {
            Some(one) => found.push((*one).clone()),
            None if weights.is_empty() => {
                return Err(none(
                    "its weights are neither GGUF nor safetensors; other formats (pickle, ONNX) are not \
                     supported"
                        .into(),
                ));
            }
            None => return Err(none(format!("it has {} .safetensors files but no {INDEX}", weights.len()))),
        }
    }
    Ok(Selection { name: SAFETENSORS.into(), tag: None, model: String::new(), files: found, index })
}

#[derive(Deserialize)]
struct RepoIndex {
    weight_map: HashMap<String, String>,
}

/// Adds the shards that an index names.
pub(crate) fn add_shards(
    selection: &mut Selection,
    repo: &Repo,
    index: &[u8],
    files: &[RepoFile],
) -> Result<(), HubError> {
    let none = |problem: String| HubError::NoModel { repo: repo.clone(), problem };
    let name_of_index = selection.index.unwrap_or(INDEX);
    let index: RepoIndex = serde_json::from_slice(index)
        .map_err(|error| none(format!("its {name_of_index} cannot be read: {error}")))?;
    // A set, because many tensors are in the same shard.
    let names: BTreeSet<&String> = index.weight_map.values().collect();
    for name in names {
        let file = files.iter().find(|file| file.path == *name);
        let file =
            file.ok_or_else(|| none(format!("its {name_of_index} lists {name:?}, which is missing")))?;
        // `check_names` checks the names afterwards: the index is a file of the repository's owner.
        if !selection.files.contains(file) {
            selection.files.push(file.clone());
        }
    }
    Ok(())
}

/// The error that lists some of the sets, and the folder of safetensors files.
fn choose(
    model: &ModelRef,
    problem: String,
    sets: &[GgufSet],
    some: &[usize],
    files: &[RepoFile],
) -> HubError {
    let reference = |choice| ModelRef { choice, ..model.clone() }.to_string();
    let mut choices: Vec<ModelChoice> = some
        .iter()
        .map(|&at| {
            let set = &sets[at];
            // A quant that several models have would be ambiguous again.
            let alone = sets.iter().filter(|other| other.tag == set.tag).count() == 1;
            let choice = match &set.tag {
                Some(tag) if alone => ModelSelector::Quant(tag.clone()),
                _ => ModelSelector::File(set.files[0].path.clone()),
            };
            ModelChoice { reference: reference(choice), bytes: Some(set.bytes()) }
        })
        .collect();
    // GGUF repositories may also have the original folder. It is offered only if all models are
    // listed.
    let is_folder = files.iter().any(|file| ["config.json", "params.json"].contains(&file.path.as_str()))
        && files.iter().any(|file| file.path.ends_with(".safetensors") && !file.path.contains('/'));
    if is_folder && some.len() == sets.len() {
        choices.push(ModelChoice {
            reference: reference(ModelSelector::Quant(SAFETENSORS.into())),
            bytes: None,
        });
    }
    let more = choices.len().saturating_sub(MAX_LISTED);
    choices.truncate(MAX_LISTED);
    let problem = if choices.is_empty() { problem } else { format!("{problem}; choose one:") };
    HubError::Choose { repo: model.repo.clone(), problem, choices: choices.into(), more }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(paths: &[&str]) -> Vec<RepoFile> {
        paths.iter().map(|path| RepoFile { path: (*path).into(), size: 10, digest: None }).collect()
    }

    fn chosen(reference: &str, paths: &[&str]) -> Result<Vec<String>, String> {
        let selection = select(&reference.parse().unwrap(), &files(paths));
        selection.map(|s| s.files.into_iter().map(|f| f.path).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_policy_takes_the_largest_quant_that_fits() {
        let sizes =
            [("m-Q8_0.gguf", 80), ("m-Q4_K_M.gguf", 45), ("m-UD-Q4_K_XL.gguf", 48), ("m-Q3_K_M.gguf", 35)];
        let shards = [("m-Q2_K-00001-of-00002.gguf", 20), ("m-Q2_K-00002-of-00002.gguf", 5)];
        let half = [("m-IQ3_S-00001-of-00002.gguf", 30)];
        let all = sizes.iter().chain(&shards).chain(&half);
        let files: Vec<RepoFile> =
            all.map(|(path, size)| RepoFile { path: (*path).into(), size: *size, digest: None }).collect();
        let run = |reference: &str, preferred: Option<&str>, max_bytes| {
            let notes = std::cell::RefCell::new(Vec::new());
            let policy = QuantPolicy { preferred: preferred.map(str::to_owned), max_bytes };
            let chosen = select_by(&reference.parse().unwrap(), &policy, &files, &|text| {
                notes.borrow_mut().push(text);
            });
            (chosen.map(|chosen| chosen.name).map_err(|error| error.to_string()), notes.into_inner())
        };
        assert_eq!(run("hf:o/n", None, Some(45)), (Ok("Q4_K_M".into()), vec![]));
        assert_eq!(run("hf:o/n", Some("UD-Q4_K_XL"), Some(48)), (Ok("UD-Q4_K_XL".into()), vec![]));
        assert_eq!(run("hf:o/n", Some("Q6_K"), None), (Ok("Q4_K_M".into()), vec![]));
        // A named quant is chosen whatever its size.
        assert_eq!(run("hf:o/n:Q8_0", Some("Q4_K_M"), Some(1)), (Ok("Q8_0".into()), vec![]));
        let (chosen, notes) = run("hf:o/n", Some("UD-Q4_K_XL"), Some(44));
        assert_eq!(chosen.as_deref(), Ok("Q3_K_M"));
        let note = "o/n: UD-Q4_K_XL (48 B) does not fit into the available 44 B: using Q3_K_M (35 B)";
        assert_eq!(notes, [note]);
        // An incomplete set is never chosen.
        assert_eq!(run("hf:o/n", None, Some(34)).0.as_deref(), Ok("Q2_K"));
        let error = run("hf:o/n", None, Some(24)).0.unwrap_err();
        assert!(error.starts_with("o/n: all of its models exceed the available 24 B"), "{error}");
        assert!(error.contains("\n  latent pull hf:o/n:Q2_K  # 25 B"), "{error}");
    }

    #[test]
    fn a_reference_without_a_quant_selects_the_default_quant() {
        let repo = [
            "m-Q8_0.gguf",
            "m-Q4_0.gguf",
            "m-Q4_K_M-00001-of-00002.gguf",
            "m-Q4_K_M-00002-of-00002.gguf",
            "config.json",
        ];
        assert_eq!(chosen("hf:o/n", &repo).unwrap(), repo[2..4]);
        assert_eq!(chosen("hf:o/n", &repo[..2]).unwrap(), ["m-Q4_0.gguf"]);
        assert_eq!(chosen("hf:o/n", &["odd.gguf"]).unwrap(), ["odd.gguf"]);
        let folder = ["a-Q2_K.gguf", "a-Q3_K_M.gguf", "model.safetensors", "config.json"];
        let error = chosen("hf:o/n@dev", &folder).unwrap_err();
        let lines = [
            "o/n: it has several models, but none with a default quant; choose one:",
            "  latent pull hf:o/n@dev:Q2_K  # 10 B",
            "  latent pull hf:o/n@dev:Q3_K_M  # 10 B",
            "  latent pull hf:o/n@dev:safetensors",
        ];
        assert_eq!(error.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_quant_of_several_models_is_ambiguous() {
        let repo = ["a-Q4_K_M.gguf", "b-Q4_K_M.gguf", "a-Q8_0.gguf"];
        for reference in ["hf:o/n", "hf:o/n:Q4_K_M"] {
            let error = chosen(reference, &repo).unwrap_err();
            let lines = [
                "o/n: several models are Q4_K_M; choose one:",
                "  latent pull hf:o/n/a-Q4_K_M.gguf  # 10 B",
                "  latent pull hf:o/n/b-Q4_K_M.gguf  # 10 B",
            ];
            assert_eq!(error.lines().collect::<Vec<_>>(), lines);
        }
        assert_eq!(chosen("hf:o/n:Q8_0", &repo).unwrap(), ["a-Q8_0.gguf"]);
        let odd = chosen("hf:o/n", &["a it's-Q4_K_M.gguf", "a\nb-Q4_K_M.gguf"]).unwrap_err();
        let lines = [
            "o/n: several models are Q4_K_M; choose one:",
            "  latent pull 'hf:o/n/a\\nb-Q4_K_M.gguf'  # 10 B",
            r"  latent pull 'hf:o/n/a it'\''s-Q4_K_M.gguf'  # 10 B",
        ];
        assert_eq!(odd.lines().collect::<Vec<_>>(), lines);
        assert_eq!(chosen("hf:o/n/b-Q4_K_M.gguf", &repo).unwrap(), ["b-Q4_K_M.gguf"]);
    }

    #[test]
    fn drafters_and_projectors_are_not_selected_as_models() {
        let repo = [
            "GLM-Q4_K_M.gguf",
            "GLM-Q8_0.gguf",
            "mtp-GLM-BF16.gguf",
            "mtp-GLM-Q4_K_M.gguf",
            "mmproj-GLM-F16.gguf",
            "MTP/GLM-F32.gguf",
        ];
        assert_eq!(chosen("hf:o/GLM-GGUF", &repo).unwrap(), ["GLM-Q4_K_M.gguf"]);
        for quant in ["BF16", "F16", "F32"] {
            let error = chosen(&format!("hf:o/GLM-GGUF:{quant}"), &repo).unwrap_err();
            let named = ["mtp", "MTP", "mmproj"].iter().any(|word| error.contains(word));
            assert!(error.contains(&format!("no model with quant {quant}")) && !named, "{error}");
        }
        assert_eq!(chosen("hf:o/GLM-GGUF/mtp-GLM-BF16.gguf", &repo).unwrap(), [repo[2]]);
        let error = chosen("hf:o/GLM-GGUF", &repo[2..]).unwrap_err();
        assert!(
            error.contains("mtp-GLM-BF16.gguf is a drafter") || error.contains("GLM-F32.gguf is a drafter"),
            "{error}"
        );
        let all: Vec<&str> = repo[2..].iter().copied().chain(["config.json", "model.safetensors"]).collect();
        assert_eq!(chosen("hf:o/GLM-GGUF", &all).unwrap(), ["config.json", "model.safetensors"]);
    }

    #[test]
    fn quants_and_files_are_named() {
        let repo = [
            "m-Q8_0.gguf",
            "x/m-F16-00001-of-00002.gguf",
            "x/m-F16-00002-of-00002.gguf",
            "m-Q2_K-00001-of-00002.gguf",
        ];
        assert_eq!(chosen("hf:o/n:q8_0", &repo).unwrap(), [repo[0]]);
        assert_eq!(chosen("hf:o/n/x/m-F16-00002-of-00002.gguf", &repo).unwrap(), repo[1..3]);
        let lacking = chosen("hf:o/n:Q2_K", &repo).unwrap_err();
        assert!(lacking.contains("2 files, but the repository contains 1"), "{lacking}");
        let error = chosen("hf:o/n:Q5_0", &repo).unwrap_err();
        assert!(error.contains("no model with quant Q5_0") && error.contains(":Q8_0"), "{error}");
        let error = chosen("hf:o/n/none.gguf", &repo).unwrap_err();
        assert!(error.contains("none.gguf") && error.contains(":Q8_0"), "{error}");
    }

    #[test]
    fn a_folder_is_selected_without_files_that_are_not_read() {
        let repo = [
            "config.json",
            "tokenizer.json",
            "README.md",
            "model.safetensors",
            "consolidated.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "original/model.safetensors",
        ];
        let taken = ["config.json", "tokenizer.json", "README.md", "model.safetensors"];
        assert_eq!(chosen("hf:o/n", &repo).unwrap(), taken);
        let mistral =
            ["params.json", "tekken.json", MISTRAL_INDEX, "consolidated-00001-of-00001.safetensors"];
        assert_eq!(chosen("hf:o/n", &mistral).unwrap(), ["params.json", "tekken.json", MISTRAL_INDEX]);
        assert_eq!(
            chosen("hf:o/n", &["params.json", "consolidated.safetensors", "x.safetensors"]).unwrap(),
            ["params.json", "consolidated.safetensors"]
        );
        // With weights in both forms, Hugging Face's are chosen, without Mistral's files.
        let both = [&mistral[..], &["config.json", "tokenizer.json", "model.safetensors"]].concat();
        assert_eq!(chosen("hf:o/n", &both).unwrap(), ["config.json", "tokenizer.json", "model.safetensors"]);
        assert!(chosen("hf:o/n", &["config.json", "pytorch_model.bin"]).unwrap_err().contains("pickle"));
        assert!(chosen("hf:o/n", &["README.md"]).unwrap_err().contains("neither GGUF"));
        assert!(chosen("hf:o/n", &["a.safetensors"]).unwrap_err().contains("config.json"));
        assert!(
            chosen("hf:o/n:safetensors", &["config.json", "a.safetensors", "b.safetensors"])
                .unwrap_err()
                .contains("2 .safetensors")
        );
    }

    #[test]
    fn an_index_names_the_shards() {
        let all =
            files(&["config.json", INDEX, "model-1.safetensors", "model-2.safetensors", "extra.safetensors"]);
        let mut selection = select(&"hf:o/n".parse().unwrap(), &all).unwrap();
        assert!(selection.index == Some(INDEX) && selection.files.len() == 2);
        let repo = Repo { owner: "o".into(), name: "n".into() };
        let index = br#"{"metadata": {}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#;
        add_shards(&mut selection, &repo, index, &all).unwrap();
        assert_eq!(selection.files.len(), 4);
        for bad in [&b"{}"[..], b"[", br#"{"weight_map": {"a": "../../etc/passwd"}}"#] {
            assert!(add_shards(&mut selection, &repo, bad, &all).is_err());
        }
    }
}
