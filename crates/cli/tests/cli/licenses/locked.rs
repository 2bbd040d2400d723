//! Cargo.lock: which packages of others the program is made from, on any platform.

use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name and version.
pub type Package = (String, String);

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What `cargo metadata` says.
pub fn metadata(arguments: &[&str]) -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1"])
        .args(arguments)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

struct LockedPackage {
    version: String,
    /// Whether it is a package of others.
    others: bool,
    dependencies: Vec<String>,
}

/// All packages by name.
fn read() -> HashMap<String, Vec<LockedPackage>> {
    let text = std::fs::read_to_string(root().join("Cargo.lock")).unwrap();
    let mut all: HashMap<String, Vec<LockedPackage>> = HashMap::new();
    for block in text.split("[[package]]").skip(1) {
        let value = |key: &str| {
            let line = block.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let list =
            block.split_once("dependencies = [").map_or("", |(_, rest)| rest.split(']').next().unwrap());
        let dependencies =
            list.lines().map(|line| line.trim().trim_matches(['"', ','])).filter(|l| !l.is_empty());
        all.entry(value("name").unwrap()).or_default().push(LockedPackage {
            version: value("version").unwrap(),
            others: value("source").is_some(),
            dependencies: dependencies.map(str::to_owned).collect(),
        });
    }
    all
}

/// Optional dependencies of members that no program enables.
const UNUSED: [(&str, &str); 1] = [("latent", "latent-hub")];

/// Names of the packages that each member of the workspace needs to be built, tests apart.
fn members() -> HashMap<String, BTreeSet<String>> {
    let metadata = metadata(&["--no-deps", "--offline"]);
    let packages = metadata["packages"].as_array().unwrap().iter().map(|package| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let needed = dependencies.filter(|dependency| dependency["kind"].as_str() != Some("dev"));
        let member = package["name"].as_str().unwrap();
        let names = needed.map(|dependency| dependency["name"].as_str().unwrap());
        let used = names.filter(|name| !UNUSED.contains(&(member, *name)));
        (member.to_owned(), used.map(str::to_owned).collect())
    });
    packages.collect()
}

/// Packages of others that `program`, a member of the workspace, needs to be built, those of other
/// platforms and those that only help the build among them.
pub fn packages(program: &str) -> BTreeSet<Package> {
    let (all, members) = (read(), members());
    let mut found = BTreeSet::new();
    let mut open = vec![program.to_owned()];
    while let Some(wanted) = open.pop() {
        let (name, version) = wanted.split_once(' ').unwrap_or((wanted.as_str(), ""));
        let version = version.split(' ').next().unwrap();
        let named = all.get(name).unwrap_or_else(|| panic!("{name} is not in Cargo.lock"));
        let package = named.iter().find(|p| version.is_empty() || p.version == version).unwrap();
        if !found.insert((name.to_owned(), package.version.clone())) {
            continue;
        }
        // the lock file mixes what a member needs with what its tests need
        let counts = |dependency: &&String| {
            let name = dependency.split(' ').next().unwrap();
            package.others || members[&wanted].contains(name)
        };
        open.extend(package.dependencies.iter().filter(counts).cloned());
    }
    found.retain(|(name, version)| all[name].iter().any(|p| p.others && p.version == *version));
    found
}
