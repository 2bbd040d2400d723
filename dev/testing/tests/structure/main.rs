//! The structure of the workspace's sources.
//!
//! * The files of a crate do not depend on each other in a cycle. A file depends on another if its
//!   code, without tests, names an item of the other one, by `use` or by a path. Re-exports are
//!   followed to the file that defines the item. A file that only re-exports depends on nothing.
//! * The same holds for the parts of a crate: its folders and files directly under `src`.
//! * The names in former-names.txt, which have been replaced, are not used again.
//!
//! Two lists in this folder hold the exceptions. They must shrink: a line that is no longer true
//! fails the test, and `UPDATE_STRUCTURE=1` in the environment removes it.
#![allow(missing_docs, reason = "tests")]

mod graph;
mod imports;
mod lexer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn list_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/structure").join(name)
}

/// The lines of a list, without comments.
fn list(name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(list_path(name)).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(str::to_owned).collect()
}

/// Fails if lines of a list are no longer true. Removes them instead if `UPDATE_STRUCTURE` is set.
fn shrink(name: &str, stale: &[String]) {
    if stale.is_empty() {
        return;
    }
    if std::env::var_os("UPDATE_STRUCTURE").is_some() {
        let text = std::fs::read_to_string(list_path(name)).unwrap();
        let kept = text.lines().filter(|line| !stale.iter().any(|other| other == line.trim()));
        std::fs::write(list_path(name), kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        return;
    }
    panic!("tests/structure/{name}: no longer true, take out (UPDATE_STRUCTURE=1 does it): {stale:?}");
}

/// The part of a crate that a file belongs to: a folder or a file directly under `src`.
fn part(file: &str) -> String {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first).to_owned()
}

#[test]
fn files_and_folders_do_not_depend_on_each_other_in_a_cycle() {
    let allowed = list("circles-left.txt");
    let (mut problems, mut clean) = (Vec::new(), Vec::new());
    for (name, sources) in imports::crates() {
        let files = imports::CrateModules::read(&sources).graph();
        let mut found: Vec<String> =
            graph::circles(&files).iter().map(|circle| format!("files {}", circle.join(", "))).collect();
        let parts = graph::quotient(&files, part);
        found.extend(graph::circles(&parts).iter().map(|circle| format!("parts {}", circle.join(", "))));
        if std::env::var_os("SHOW_CIRCLES").is_some() {
            for (file, needs) in
                files.iter().filter(|(file, _)| found.iter().any(|c| c.contains(file.as_str())))
            {
                eprintln!("{name}: {file} -> {needs:?}");
            }
            found.iter().for_each(|circle| eprintln!("{name}: {circle}"));
        }
        if allowed.contains(&name) {
            clean.extend(found.is_empty().then_some(name));
        } else {
            problems.extend(found.into_iter().map(|circle| format!("{name}: {circle}")));
        }
    }
    assert!(problems.is_empty(), "circles:\n{}", problems.join("\n"));
    shrink("circles-left.txt", &clean);
}

#[test]
fn former_names_are_not_used() {
    let former: BTreeMap<String, String> = list("former-names.txt")
        .iter()
        .map(|line| {
            let (old, new) = line.split_once(" -> ").unwrap_or_else(|| panic!("{line}: expected OLD -> NEW"));
            (old.trim().to_owned(), new.trim().to_owned())
        })
        .collect();
    let left: BTreeSet<String> = list("former-names-left.txt").into_iter().collect();
    let (mut problems, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let files = imports::crate_folders().into_iter().flat_map(|folder| {
        rust_files(&folder).into_iter().map(move |path| {
            let krate =
                path.strip_prefix(&folder).unwrap().iter().next().unwrap().to_string_lossy().into_owned();
            (krate, path)
        })
    });
    for (krate, path) in files {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in lexer::tokens(&text).iter().filter_map(lexer::Token::word) {
            let Some(new) = former.get(word) else { continue };
            let entry = format!("{krate} {word}");
            if left.contains(&entry) {
                seen.insert(entry);
            } else {
                problems.insert(format!("{}: {word} is {new} now", path.display()));
            }
        }
    }
    let problems: Vec<String> = problems.into_iter().collect();
    assert!(problems.is_empty(), "former names:\n{}", problems.join("\n"));
    let stale: Vec<String> = left.difference(&seen).cloned().collect();
    shrink("former-names-left.txt", &stale);
}

/// All Rust files below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn paths_are_resolved_like_in_rust() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod a;\nmod b;\npub mod c;\npub use c::Deep;\n");
    write(
        "a.rs",
        "use crate::{b::{self, B as Other}, Deep};\n// crate::c::Never\nfn f() -> &'static str { \"crate::c::d\" }\n",
    );
    write(
        "b.rs",
        "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::f; }\nfn g(x: char) -> bool { x == '\"' || super::c::d::h() }\n",
    );
    write("c/mod.rs", "mod d;\npub use d::*;\n");
    write(
        "c/d.rs",
        "pub struct Deep;\npub fn h() -> bool { self::i::j() }\nmod i { pub fn j() -> bool { crate::b::B; true } }\n",
    );
    let files = imports::CrateModules::read(folder.path()).graph();
    let needs = |file: &str| files[file].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(needs("a.rs"), ["b.rs", "c/d.rs"]);
    assert_eq!(needs("b.rs"), ["c/d.rs"]);
    assert_eq!(needs("c/d.rs"), ["b.rs"]);
    assert!(needs("lib.rs").is_empty() && needs("c/mod.rs").is_empty());
    assert_eq!(graph::circles(&files), [["b.rs", "c/d.rs"]]);
    assert_eq!(graph::circles(&graph::quotient(&files, part)), [["b", "c"]]);
}
