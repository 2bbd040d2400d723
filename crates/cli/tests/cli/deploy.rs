//! The files of deploy/ parse and name existing subcommands and flags; so do README.md and
//! docs/hosts.md.

use crate::support::latent;
use saphyr_parser::{Event, Parser};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of deploy/, by their ending.
fn files(ending: &str) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(root().join("deploy")).unwrap();
    let inside = folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap());
    let mut found: Vec<PathBuf> = inside.map(|file| file.unwrap().path()).collect();
    found.retain(|path| path.extension().is_some_and(|own| own == ending));
    found.sort();
    assert!(!found.is_empty(), "deploy/ has no .{ending}");
    found
}

/// A YAML document.
#[derive(Clone, Debug, PartialEq)]
enum Yaml {
    Text(String),
    List(Vec<Yaml>),
    Map(BTreeMap<String, Yaml>),
}

impl Yaml {
    fn get(&self, path: &str) -> &Yaml {
        path.split('.').fold(self, |at, key| match at {
            Yaml::Map(map) => map.get(key).unwrap_or_else(|| panic!("no {key} of {path} in {map:?}")),
            Yaml::List(list) => &list[key.parse::<usize>().unwrap()],
            Yaml::Text(text) => panic!("{path}: {key} in {text:?}"),
        })
    }

    fn text(&self) -> &str {
        if let Yaml::Text(text) = self { text } else { panic!("no text: {self:?}") }
    }

    fn list(&self) -> &[Yaml] {
        if let Yaml::List(list) = self { list } else { panic!("no list: {self:?}") }
    }

    /// All words of `command` and `args` of every container.
    fn commands(&self) -> Vec<Vec<String>> {
        let words = |value: Option<&Yaml>| -> Vec<String> {
            value.into_iter().flat_map(Yaml::list).map(|word| word.text().to_owned()).collect()
        };
        match self {
            Yaml::Text(_) => Vec::new(),
            Yaml::List(list) => list.iter().flat_map(Yaml::commands).collect(),
            Yaml::Map(map) => {
                let own = [words(map.get("command")), words(map.get("args"))].concat();
                let own = (!own.is_empty()).then_some(own);
                own.into_iter().chain(map.values().flat_map(Yaml::commands)).collect()
            }
        }
    }
}

/// Every document of a file.
fn documents(path: &Path) -> Vec<Yaml> {
    let text = read(path);
    let mut events = Parser::new_from_str(&text).map(|event| match event {
        Ok((event, _)) => event,
        Err(error) => panic!("{}: {error}", path.display()),
    });
    let mut anchors = BTreeMap::new();
    let mut found = Vec::new();
    while let Some(event) = events.next() {
        if matches!(event, Event::DocumentStart(_)) {
            let first = events.next().unwrap();
            found.push(value(first, &mut events, &mut anchors));
        }
    }
    found
}

fn value<'a>(
    first: Event<'a>,
    events: &mut dyn Iterator<Item = Event<'a>>,
    anchors: &mut BTreeMap<usize, Yaml>,
) -> Yaml {
    let (anchor, value) = match first {
        Event::Scalar(text, _, anchor, _) => (anchor, Yaml::Text(text.into_owned())),
        Event::Alias(anchor) => (0, anchors[&anchor].clone()),
        Event::SequenceStart(anchor, _) => {
            let mut list = Vec::new();
            loop {
                match events.next().unwrap() {
                    Event::SequenceEnd => break,
                    next => list.push(value(next, events, anchors)),
                }
            }
            (anchor, Yaml::List(list))
        }
        Event::MappingStart(anchor, _) => {
            let mut map = BTreeMap::new();
            loop {
                match events.next().unwrap() {
                    Event::MappingEnd => break,
                    next => {
                        let key = value(next, events, anchors).text().to_owned();
                        let next = events.next().unwrap();
                        let own = value(next, events, anchors);
                        assert!(map.insert(key.clone(), own).is_none(), "{key} stands twice");
                    }
                }
            }
            (anchor, Yaml::Map(map))
        }
        other => panic!("{other:?} where a value is expected"),
    };
    if anchor > 0 {
        anchors.insert(anchor, value.clone());
    }
    value
}

/// The words of each command of a shell text. Lines that end with a backslash are joined, and
/// quotes are removed.
fn shell(text: &str) -> Vec<Vec<String>> {
    let joined = text.replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let commands = lines.flat_map(|line| line.split([';', '|', '&']));
    let word = |word: &str| word.trim_matches(['"', '\'', '`', '(', ')']).to_owned();
    commands.map(|command| command.split_whitespace().map(word).collect()).collect()
}

/// The words behind this program, if the command runs it.
fn behind<'a>(words: &'a [String], names: &[&str]) -> Option<&'a [String]> {
    let is = |word: &String| names.contains(&word.rsplit('/').next().unwrap_or_default());
    let at = words.iter().position(is)?;
    Some(&words[at + 1..])
}

/// The problem of the words behind `latent`, according to its help.
fn wrong(words: &[String]) -> Option<String> {
    let command = words.first()?;
    if command.starts_with(['-', '$', '<']) || !command.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') {
        return None;
    }
    let help = |names: &[&str]| latent(&[&["help"], names].concat()).output().unwrap();
    // `eval` has subcommands with their own flags.
    let nested = words.get(1).map(|second| help(&[command, second])).filter(|help| help.status.success());
    let help = nested.unwrap_or_else(|| help(&[command]));
    if !help.status.success() {
        return Some(format!("unknown subcommand {command}"));
    }
    let help = String::from_utf8(help.stdout).unwrap();
    let known: Vec<&str> = help.split([' ', ',', '\n', '[', ']', '=']).collect();
    let flags = words.iter().filter(|word| word.starts_with('-') && word.len() > 1);
    let name = |flag: &String| flag.split('=').next().unwrap_or_default().to_owned();
    let unknown = flags.map(name).find(|flag| !known.contains(&flag.as_str()));
    unknown.map(|flag| format!("latent {command} has no {flag}"))
}

/// The flags of the worker for Dynamo: its own, as its source names them, and those that all of
/// Dynamo's workers have.
fn worker_flags() -> Vec<String> {
    let source = read(&root().join("integrations/dynamo/src/options.rs"));
    let fields = source.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split_once(": "));
    let own = fields.map(|(name, _)| format!("--{}", name.replace('_', "-")));
    let dynamo = [
        "--namespace",
        "--component",
        "--endpoint",
        "--discovery-backend",
        "--request-plane",
        "--event-plane",
    ];
    own.chain(dynamo.map(str::to_owned)).collect()
}

/// Checks all commands of a file, and returns how many there were.
fn check(path: &Path, commands: &[Vec<String>]) -> usize {
    let mut checked = 0;
    for words in commands {
        // Scripts refer to the program by a variable.
        if let Some(behind) = behind(words, &["latent", "$program"]) {
            let problem = wrong(behind);
            assert!(problem.is_none(), "{}: {}: {words:?}", path.display(), problem.unwrap_or_default());
            checked += usize::from(!behind.is_empty());
        }
        if let Some(behind) = behind(words, &["latent-dynamo", "$dynamo_worker"]) {
            let known = worker_flags();
            for flag in behind.iter().filter(|word| word.starts_with("--")) {
                let name = flag.split('=').next().unwrap_or_default();
                assert!(
                    known.iter().any(|own| own == name),
                    "{}: latent-dynamo has no {name}",
                    path.display()
                );
            }
            checked += usize::from(!behind.is_empty());
        }
    }
    checked
}

#[test]
fn scripts_can_be_read_by_bash() {
    let scripts = [files("sh"), files("sbatch")].concat();
    for script in &scripts {
        // Scripts need bash.
        let Ok(output) = Command::new("bash").arg("-n").arg(script).output() else { return };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(read(script).contains("\nset -euo pipefail\n"), "{}", script.display());
    }
}

#[test]
fn scripts_name_existing_commands_and_flags() {
    for (script, commands) in
        [("mpi/serve.sh", 1), ("slurm/latent.sbatch", 1), ("dynamo/local.sh", 1), ("kubernetes/pod.sh", 0)]
    {
        let path = root().join("deploy").join(script);
        assert_eq!(check(&path, &shell(&read(&path))), commands, "{script}");
    }
}

#[test]
fn the_list_of_hosts_has_a_rank_for_each() {
    let (list, script) =
        ["mpi/hosts", "mpi/serve.sh"].map(|name| read(&root().join("deploy").join(name))).into();
    let lines = list.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let names: Vec<&str> = lines
        .map(|line| {
            let (name, slots) = line.split_once(' ').unwrap_or_else(|| panic!("no slots: {line}"));
            assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b)), "{line}");
            assert_eq!(slots.trim(), "slots=1", "one rank a host: {line}");
            name
        })
        .collect();
    assert!(names.len() > 1 && names.iter().collect::<BTreeSet<_>>().len() == names.len(), "{names:?}");
    // The script counts the same lines and starts one rank for each.
    assert!(script.contains("ranks=$(grep -cE '^[^#[:space:]]' \"$hosts\")"), "{script}");
    assert!(script.contains("--map-by ppr:1:node") && script.contains("pipeline=$ranks"), "{script}");
}

/// The instructions of a Containerfile: keyword and arguments.
fn instructions(path: &Path) -> Vec<(String, String)> {
    let text = read(path).replace("\\\n", " ");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let parts =
        lines.map(|line| line.split_once(' ').unwrap_or_else(|| panic!("{}: {line}", path.display())));
    parts.map(|(word, rest)| (word.to_owned(), rest.trim().to_owned())).collect()
}

/// What an image is built from is in the checkout, what its second stage copies is built in the
/// first, and what it starts is in it.
#[test]
fn images_copy_existing_files_and_start_copied_programs() {
    let version: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let rust = version["workspace"]["package"]["rust-version"].as_str().unwrap().to_owned();
    for (name, manifest, program) in
        [("kubernetes", "crates/cli", "latent"), ("dynamo", "integrations/dynamo", "latent-dynamo")]
    {
        let path = root().join("deploy").join(name).join("Containerfile");
        let (mut folder, mut built, mut has, mut bases) = (String::new(), Vec::new(), Vec::new(), Vec::new());
        let mut users = BTreeSet::new();
        for (word, rest) in instructions(&path) {
            let words: Vec<&str> = rest.split_whitespace().collect();
            match word.as_str() {
                "FROM" => bases.push(words[0].to_owned()),
                "WORKDIR" => folder = rest,
                "RUN" if words[..2] == ["cargo", "build"] => {
                    let features: toml::Table =
                        read(&root().join(manifest).join("Cargo.toml")).parse().unwrap();
                    for pair in words.windows(2).filter(|pair| pair[0] == "--features") {
                        assert!(
                            features["features"].get(pair[1]).is_some(),
                            "{name}: no feature {}",
                            pair[1]
                        );
                    }
                    assert!(words.contains(&"--release"), "{rest}");
                    built.push(format!("{folder}/target/release/{program}"));
                }
                "RUN" => {
                    for pair in words.windows(2).filter(|pair| pair[0] == "--create-home") {
                        users.insert(pair[1].to_owned());
                    }
                }
                "COPY" if words == [".", "/latent"] => {}
                "COPY" if words[0] == "--from=build" => {
                    assert!(built.iter().any(|built| built == words[1]), "{name}: {} is not built", words[1]);
                    has.push(words[2].to_owned());
                }
                "COPY" => {
                    assert!(root().join(words[0]).is_file(), "{name}: {} is not there", words[0]);
                    has.push(words[1].to_owned());
                }
                "ENTRYPOINT" => {
                    let list: Vec<String> = serde_json::from_str(&rest).unwrap();
                    let started = list.last().unwrap();
                    assert!(has.contains(started), "{name}: {started} is not in the image");
                }
                "USER" => {
                    let number = rest.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 0));
                    assert!(number || users.contains(&rest), "{name}: unknown user {rest}");
                }
                "ENV" => {}
                other => panic!("{}: {other} {rest}", path.display()),
            }
        }
        assert!(bases[0].starts_with(&format!("rust:{rust}-")), "{name}: {bases:?}, built by Rust {rust}");
        // The program's libraries are those of the same Debian release.
        let debian = bases[0].rsplit('-').next().unwrap();
        assert!(bases.len() == 2 && bases[1].contains(debian), "{name}: {bases:?}");
        assert!(has.contains(&format!("/usr/local/bin/{program}")), "{name}: {has:?}");
    }
}

#[test]
fn a_group_of_pods_shares_a_model_by_its_size() {
    let path = root().join("deploy/kubernetes/leader-worker-set.yaml");
    let documents = documents(&path);
    let kinds: Vec<&str> = documents.iter().map(|document| document.get("kind").text()).collect();
    assert_eq!(kinds, ["LeaderWorkerSet", "Service"]);
    let template = documents[0].get("spec.leaderWorkerTemplate");
    let leader = template.get("leaderTemplate.spec.containers.0");
    let partition = format!("--partition=pipeline={}", template.get("size").text());
    assert!(leader.get("args").list().contains(&Yaml::Text(partition)), "{leader:?}");
    // All pods are equal except for the leader's command.
    let worker = template.get("workerTemplate.spec");
    for same in ["image", "resources", "volumeMounts"] {
        assert_eq!(worker.get("containers.0").get(same), leader.get(same), "{same}");
    }
    assert_eq!(worker.get("volumes"), template.get("leaderTemplate.spec.volumes"));
    let label = template.get("leaderTemplate.metadata.labels.app");
    assert_eq!(documents[1].get("spec.selector.app"), label);
    assert_eq!(documents[1].get("spec.ports.0.targetPort"), leader.get("ports.0.containerPort"));
    assert_eq!(documents.iter().map(|document| check(&path, &document.commands())).sum::<usize>(), 1);
}

#[test]
fn replicas_are_routed_by_cached_prefixes() {
    let path = root().join("deploy/dynamo/graph-deployment.yaml");
    let documents = documents(&path);
    assert_eq!(documents.len(), 1);
    assert_eq!(documents[0].get("kind").text(), "DynamoGraphDeployment");
    let components = documents[0].get("spec.components").list();
    let kinds: Vec<&str> = components.iter().map(|component| component.get("type").text()).collect();
    assert_eq!(kinds, ["frontend", "worker"]);
    let frontend = components[0].get("podTemplate.spec.containers.0.args").list();
    assert!(frontend.windows(2).any(|pair| pair[0].text() == "--router-mode" && pair[1].text() == "kv"));
    // The worker's shutdown time, and Dynamo's five seconds before it, are within the pod's.
    let number = |value: &Yaml| value.text().parse::<u64>().unwrap();
    let pod = components[1].get("podTemplate.spec");
    let patience = pod.get("containers.0.env.0");
    assert_eq!(patience.get("name").text(), "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT");
    assert!(number(patience.get("value")) + 5 < number(pod.get("terminationGracePeriodSeconds")));
    assert_eq!(check(&path, &documents[0].commands()), 1);
}

#[test]
fn documents_name_existing_commands_and_flags() {
    for (name, least) in [("README.md", 15), ("docs/hosts.md", 3)] {
        let path = root().join(name);
        let text = read(&path);
        let mut fenced = false;
        let code: String = text
            .lines()
            .filter(|line| {
                let fence = line.starts_with("```");
                fenced ^= fence;
                !fence && (fenced || line.starts_with("    "))
            })
            .map(|line| format!("{line}\n"))
            .collect();
        let checked = check(&path, &shell(&code));
        assert!(checked >= least, "{name}: {checked} commands");
    }
}

/// Dynamo's dependencies never affect a build of the workspace.
#[test]
fn integrations_are_outside_the_workspace() {
    let whole: toml::Table = read(&root().join("Cargo.toml")).parse().unwrap();
    let excluded = whole["workspace"]["exclude"].as_array().unwrap();
    assert!(excluded.iter().any(|path| path.as_str() == Some("integrations")));
    let manifest: toml::Table = read(&root().join("integrations/dynamo/Cargo.toml")).parse().unwrap();
    assert!(manifest.contains_key("workspace"), "a workspace of its own");
    let dependencies = manifest["dependencies"].as_table().unwrap();
    for (name, dependency) in dependencies.iter().filter(|(name, _)| name.starts_with("latent-")) {
        let path = dependency["path"].as_str().unwrap();
        assert!(root().join("integrations/dynamo").join(path).join("Cargo.toml").is_file(), "{name}");
    }
    assert!(!read(&root().join("Cargo.lock")).contains("dynamo"), "the workspace depends on Dynamo");
}
