//! THIRD-PARTY.txt: made from the packages' own files, and read back.

use super::locked::{self, Package, metadata};
use super::spdx;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::path::Path;

const LINKED: &str = "PACKAGES IN THE PROGRAM";
const BUILDING: &str = "PACKAGES THAT ONLY HELP TO BUILD IT";
const TEXTS: &str = "LICENCES";
const RULE: &str = "--------------------------------------------------------------------------------";

/// Words by which the text of a licence is known.
const WORDS: [(&str, &str); 7] = [
    ("MIT", "permission is hereby granted, free of charge, to any person obtaining a copy of this software"),
    ("Zlib", "the origin of this software must not be misrepresented"),
    ("BSL-1.0", "boost software license - version 1.0"),
    ("ISC", "permission to use, copy, modify, and"),
    ("BSD-2-Clause", "redistribution and use in source and binary forms"),
    ("BSD-3-Clause", "redistribution and use in source and binary forms"),
    ("Unicode-3.0", "unicode license v3"),
];

/// What the standard text of MIT says after the copyright.
const MIT: &str = include_str!("../../../../../LICENSE-MIT");

/// The whole file of a program: a member of the workspace.
pub fn make(program: &str) -> String {
    let metadata = metadata(&["--locked", "--all-features"]);
    let packages: HashMap<&str, &Value> =
        metadata["packages"].as_array().unwrap().iter().map(|p| (p["id"].as_str().unwrap(), p)).collect();
    let linked = linked_packages(program, &metadata, &packages);
    let mut out = format!(
        "{LINKED}\n\nName, version, and the licence that its makers give it under; those of optional features too.\n\n"
    );
    let mut texts: BTreeMap<(usize, String), (String, Vec<String>)> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for package in &linked {
        let name = format!("{} {}", text(package, "name"), text(package, "version"));
        let expression = package["license"].as_str().unwrap_or_else(|| panic!("{name} says no licence"));
        writeln!(out, "{name}: {expression}").unwrap();
        let chosen = spdx::chosen(expression).unwrap_or_else(|problem| panic!("{name}: {problem}"));
        for (order, licence, words) in chosen.iter().flat_map(|licence| texts_of(package, licence)) {
            let plain = words.split_whitespace().collect::<Vec<_>>().join(" ");
            let entry = texts.entry((order, format!("{licence} {plain}"))).or_insert((words, Vec::new()));
            entry.1.push(name.clone());
        }
        names.insert((text(package, "name").to_owned(), text(package, "version").to_owned()));
    }
    write!(out, "\n{BUILDING}\n\nNothing of theirs is in it, on any platform.\n\n").unwrap();
    for (name, version) in locked::packages(program).difference(&names) {
        writeln!(out, "{name} {version}").unwrap();
    }
    write!(
        out,
        "\n{TEXTS}\n\nOf several licences to choose from, Apache-2.0 is taken, else the first that follows.\n"
    )
    .unwrap();
    for (words, of) in texts.into_values() {
        let words = words.trim_matches(['\n', '\r']);
        write!(out, "\n{RULE}\n{}\n\n{words}\n", head(&of)).unwrap();
    }
    out
}

/// `For NAME VERSION, …:`, in lines of readable width.
fn head(names: &[String]) -> String {
    let (mut lines, mut width) = (String::from("For"), 3);
    for (at, name) in names.iter().enumerate() {
        let comma = if at > 0 { "," } else { "" };
        let fits = width + name.len() < 100;
        width = if fits { width } else { 0 } + name.len() + 2;
        lines.extend([comma, if fits { " " } else { "\n" }, name]);
    }
    lines + ":"
}

fn text<'v>(package: &'v Value, key: &str) -> &'v str {
    package[key].as_str().unwrap_or_default()
}

/// Packages of others that are part of the program on some platform with some feature, by name.
fn linked_packages<'v>(
    program: &str,
    metadata: &'v Value,
    packages: &HashMap<&str, &'v Value>,
) -> Vec<&'v Value> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let nodes: HashMap<&str, &Value> =
        nodes.iter().map(|node| (node["id"].as_str().unwrap(), node)).collect();
    let program = packages.values().find(|package| package["name"] == program).unwrap();
    let mut seen = BTreeSet::new();
    let mut open = vec![program["id"].as_str().unwrap()];
    while let Some(id) = open.pop() {
        if seen.insert(id) {
            let dependencies = nodes[id]["deps"].as_array().unwrap().iter();
            let plain = dependencies
                .filter(|d| d["dep_kinds"].as_array().unwrap().iter().any(|k| k["kind"].is_null()));
            open.extend(plain.map(|dependency| dependency["pkg"].as_str().unwrap()));
        }
    }
    let mut linked: Vec<&Value> =
        seen.into_iter().map(|id| packages[id]).filter(|p| p["source"].is_string()).collect();
    linked.sort_by_key(|package| (text(package, "name"), text(package, "version")));
    linked
}

/// Texts that a package must come with under this licence: their order among all, what they are,
/// the words.
fn texts_of(package: &Value, licence: &'static str) -> Vec<(usize, &'static str, String)> {
    let folder = Path::new(text(package, "manifest_path")).parent().unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort_unstable();
    let named = |path: &Path, words: &[&str]| {
        let name = path.file_name().unwrap().to_string_lossy().to_ascii_uppercase();
        words.iter().any(|word| name.starts_with(word)) && path.is_file()
    };
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).replace("\r\n", "\n");
    if licence == "Apache-2.0" {
        // one text for all; and the notice that it asks to be carried along
        let own = std::fs::read_to_string(locked::root().join("LICENSE-APACHE")).unwrap();
        let notices = files.iter().filter(|path| named(path, &["NOTICE"]));
        let notices = notices.map(|path| (1, "notice", read(path)));
        return std::iter::once((0, licence, own)).chain(notices).collect();
    }
    let (order, (_, begin)) = WORDS.iter().enumerate().find(|(_, (id, _))| *id == licence).unwrap();
    let is_it = |words: &String| {
        words.split_whitespace().collect::<Vec<_>>().join(" ").to_ascii_lowercase().contains(begin)
    };
    let words =
        files.iter().filter(|path| named(path, &["LICEN", "COPYING"])).map(|path| read(path)).find(is_it);
    let words = words.or_else(|| without_file(package, licence));
    let words =
        words.unwrap_or_else(|| panic!("{}: no file with the text of {licence}", text(package, "name")));
    vec![(2 + order, licence, words)]
}

/// The text of a licence that a package names without carrying it.
fn without_file(package: &Value, licence: &str) -> Option<String> {
    match licence {
        "MIT" => {
            let authors: Vec<&str> = package["authors"].as_array()?.iter().flat_map(Value::as_str).collect();
            let (_, terms) = MIT.split_once("\nPermission")?;
            Some(format!("MIT License\n\nCopyright (c) {}\n\nPermission{terms}", authors.join(", ")))
        }
        // the file of its repository, which only the other package of it carries
        "BSD-3-Clause" if package["name"] == "alloc-stdlib" => {
            Some(include_str!("alloc-stdlib.txt").to_owned())
        }
        "BSL-1.0" => Some(include_str!("BSL-1.0.txt").to_owned()),
        _ => None,
    }
}

fn parts(notices: &str) -> (&str, &str, &str) {
    let (_, rest) = notices.split_once(LINKED).unwrap();
    let (linked, rest) = rest.split_once(BUILDING).unwrap();
    let (building, texts) = rest.split_once(TEXTS).unwrap();
    (linked, building, texts)
}

fn package(words: &str) -> Option<Package> {
    let (name, version) = words.split_once(' ')?;
    let version_like = version.starts_with(|c: char| c.is_ascii_digit()) && !version.contains(' ');
    version_like.then(|| (name.to_owned(), version.to_owned()))
}

/// Packages that the file says are in the program.
pub fn linked(notices: &str) -> BTreeSet<Package> {
    parts(notices).0.lines().filter_map(|line| package(line.split_once(':')?.0)).collect()
}

/// All packages that the file names.
pub fn packages(notices: &str) -> BTreeSet<Package> {
    linked(notices).into_iter().chain(parts(notices).1.lines().filter_map(package)).collect()
}

/// Packages for which the file has a licence.
pub fn covered(notices: &str) -> BTreeSet<Package> {
    let texts = parts(notices).2.split(RULE);
    let heads = texts.filter_map(|text| text.trim_start().strip_prefix("For ")?.split_once(":\n\n"));
    heads.flat_map(|(names, _)| names.split(',').filter_map(|name| package(name.trim()))).collect()
}
