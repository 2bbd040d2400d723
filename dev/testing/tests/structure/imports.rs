//! Dependencies between the files of a crate, by resolving the paths in the code to the files that
//! define the items.

use super::graph::DependencyGraph;
use super::lexer::{Token, after_group, tokens};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Segments of a path, from the root of the crate.
type PathSegments = Vec<String>;

/// A module: a file, or a block within one.
#[derive(Default)]
struct CrateModule {
    /// The module's file, relative to the sources.
    file: String,
    /// Names that its `use` items import, and their paths.
    imports: BTreeMap<String, PathSegments>,
    /// Modules that it imports with `*`.
    globs: Vec<PathSegments>,
    /// Names of its items.
    items: BTreeSet<String>,
    /// Paths in its code and in its imports, without re-exports.
    paths: Vec<PathSegments>,
    /// Re-exported names and paths. They are dependencies of the module only if the name occurs in
    /// its code.
    exported: Vec<(String, PathSegments)>,
    words: BTreeSet<String>,
}

/// The modules of a crate.
#[derive(Default)]
pub struct CrateModules(BTreeMap<PathSegments, CrateModule>);

impl CrateModules {
    /// Reads the crate whose `lib.rs` is in this folder.
    pub fn read(sources: &Path) -> CrateModules {
        let mut modules = CrateModules::default();
        modules.file(sources, &sources.join("lib.rs"), Vec::new());
        modules
    }

    fn file(&mut self, sources: &Path, path: &Path, module: PathSegments) {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.strip_prefix(sources).unwrap().display().to_string().replace('\\', "/");
        let inner = tokens(&text);
        let folder = match path.file_name().and_then(|name| name.to_str()) {
            Some("lib.rs" | "mod.rs") => path.parent().unwrap().to_owned(),
            _ => path.with_extension(""),
        };
        self.block(sources, &folder, &name, &inner, module);
    }

    /// Reads a block of a module. `folder` holds the files of its child modules.
    fn block(&mut self, sources: &Path, folder: &Path, file: &str, tokens: &[Token], path: PathSegments) {
        let mut module = CrateModule { file: file.to_owned(), ..CrateModule::default() };
        let mut at = 0;
        while at < tokens.len() {
            let word = tokens[at].word().unwrap_or_default();
            let name = tokens.get(at + 1).and_then(Token::word);
            if word == "use" {
                let public = at > 0 && is_public(&tokens[..at]);
                let end = tokens[at..].iter().position(|t| t.is(';')).map_or(tokens.len(), |n| at + n);
                read_use(&tokens[at + 1..end], &mut Vec::new(), public, &path, &mut module);
                at = end;
            } else if word == "mod"
                && let Some(name) = name
            {
                let child = [&path[..], &[name.to_owned()]].concat();
                match tokens.get(at + 2) {
                    Some(sign) if sign.is(';') => {
                        let found = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
                        let found = found.iter().find(|path| path.exists());
                        self.file(sources, found.unwrap_or_else(|| panic!("no file of {child:?}")), child);
                        at += 3;
                    }
                    Some(sign) if sign.is('{') => {
                        let end = after_group(tokens, at + 2);
                        self.block(sources, &folder.join(name), file, &tokens[at + 3..end - 1], child);
                        at = end;
                    }
                    _ => at += 1,
                }
            } else if !word.is_empty() {
                if ["struct", "enum", "trait", "fn", "const", "static", "type", "union"].contains(&word) {
                    module.items.extend(name.map(str::to_owned));
                }
                at = read_path(tokens, at, &path, &mut module);
            } else {
                at += 1;
            }
        }
        self.0.insert(path, module);
    }

    /// The files, each with the files that it depends on.
    pub fn graph(&self) -> DependencyGraph {
        let mut graph = DependencyGraph::new();
        for (path, module) in &self.0 {
            let own = module.exported.iter().filter(|(name, _)| module.words.contains(name));
            let needs = module.paths.iter().chain(own.map(|(_, path)| path));
            let files = needs.filter_map(|need| self.resolve(path, need, 0));
            let entry = graph.entry(module.file.clone()).or_default();
            entry.extend(files.filter(|file| *file != module.file));
        }
        graph
    }

    /// The file that defines the item that a path in the module `from` names. `None` for items of
    /// other crates.
    fn resolve(&self, from: &PathSegments, path: &[String], depth: usize) -> Option<String> {
        let (first, rest) = path.split_first()?;
        // Imports may refer to each other in a cycle.
        if depth > 8 {
            return None;
        }
        if first == "crate" {
            return self.absolute(&Vec::new(), rest, depth);
        }
        let child = [&from[..], std::slice::from_ref(first)].concat();
        if self.0.contains_key(&child) {
            return self.absolute(&child, rest, depth);
        }
        // An imported name that resolves to itself (`use serde::…` imports `serde`) belongs to
        // another crate.
        let import = self.0.get(from)?.imports.get(first).filter(|import| import.first() != Some(first))?;
        self.resolve(from, &[&import[..], rest].concat(), depth + 1)
    }

    fn absolute(&self, module: &PathSegments, rest: &[String], depth: usize) -> Option<String> {
        let Some((first, after)) = rest.split_first() else { return Some(self.0.get(module)?.file.clone()) };
        let child = [&module[..], std::slice::from_ref(first)].concat();
        if self.0.contains_key(&child) {
            return self.absolute(&child, after, depth);
        }
        let here = self.0.get(module)?;
        // Items of the module itself shadow names from globs.
        if !here.items.contains(first) {
            if let Some(import) = here.imports.get(first)
                && let Some(file) = self.resolve(module, &[&import[..], after].concat(), depth + 1)
            {
                return Some(file);
            }
            for glob in here.globs.iter().filter(|_| depth < 8) {
                if let Some(file) = self.through(module, glob, first) {
                    return Some(file);
                }
            }
        }
        Some(here.file.clone())
    }

    /// The file of an item that a module imports with `use path::*`.
    fn through(&self, from: &PathSegments, glob: &PathSegments, item: &str) -> Option<String> {
        let target: PathSegments = match glob.split_first()? {
            (first, rest) if first == "crate" => rest.to_vec(),
            _ => [&from[..], glob].concat(),
        };
        let module = self.0.get(&target)?;
        module.items.contains(item).then(|| module.file.clone())
    }
}

/// Whether the tokens end in `pub` or `pub(…)`.
fn is_public(before: &[Token]) -> bool {
    let last = before.last().and_then(Token::word);
    let open = before.iter().rposition(|token| token.is('('));
    let closed = before.last().is_some_and(|token| token.is(')'));
    last == Some("pub") || (closed && open.is_some_and(|at| at > 0 && before[at - 1].word() == Some("pub")))
}

/// Turns paths with `self` and `super` into paths that begin with `crate`. Other paths are
/// unchanged.
fn absolute_form(path: &[String], module: &PathSegments) -> PathSegments {
    let ups = path.iter().take_while(|segment| *segment == "super" || *segment == "self").count();
    if ups == 0 {
        return path.to_vec();
    }
    let supers = path[..ups].iter().filter(|segment| *segment == "super").count();
    let parent = &module[..module.len().saturating_sub(supers)];
    [&["crate".to_owned()], parent, &path[ups..]].concat()
}

/// Reads a `use` tree.
fn read_use(
    tree: &[Token],
    prefix: &mut PathSegments,
    public: bool,
    module: &PathSegments,
    into: &mut CrateModule,
) {
    let depth = prefix.len();
    let mut at = 0;
    while at < tree.len() {
        match &tree[at] {
            Token::Word(word) if word == "as" => {
                let name = tree.get(at + 1).and_then(Token::word).unwrap_or("_").to_owned();
                leaf(prefix, name, public, module, into);
                prefix.truncate(depth);
                at += 2;
                continue;
            }
            Token::Word(word) => prefix.push(word.clone()),
            Token::Sign('*') => {
                let path = absolute_form(prefix, module);
                if !public {
                    into.paths.push(path.clone());
                }
                into.globs.push(path);
                prefix.truncate(depth);
            }
            Token::Sign('{') => {
                let end = after_group(tree, at);
                read_use(&tree[at + 1..end - 1], prefix, public, module, into);
                prefix.truncate(depth);
                at = end;
                continue;
            }
            Token::Sign(',') if prefix.len() > depth => {
                leaf(prefix, String::new(), public, module, into);
                prefix.truncate(depth);
            }
            _ => {}
        }
        at += 1;
    }
    if prefix.len() > depth {
        leaf(prefix, String::new(), public, module, into);
        prefix.truncate(depth);
    }
}

/// Records one imported name. `name` is empty if it is not renamed.
fn leaf(path: &[String], name: String, public: bool, module: &PathSegments, into: &mut CrateModule) {
    let mut path = path.to_vec();
    // `use a::{self}` imports `a`.
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = if name.is_empty() { path.last().cloned().unwrap_or_default() } else { name };
    let path = absolute_form(&path, module);
    into.imports.insert(name.clone(), path.clone());
    if public {
        into.exported.push((name, path));
    } else {
        into.paths.push(path);
    }
}

/// Reads a path that begins at `start` and returns the place after it.
fn read_path(tokens: &[Token], start: usize, module: &PathSegments, into: &mut CrateModule) -> usize {
    let mut path = vec![tokens[start].word().unwrap_or_default().to_owned()];
    into.words.insert(path[0].clone());
    let mut at = start + 1;
    while tokens.get(at) == Some(&Token::Path) {
        let Some(word) = tokens.get(at + 1).and_then(Token::word) else { break };
        path.push(word.to_owned());
        at += 2;
    }
    if path.len() > 1 {
        into.paths.push(absolute_form(&path, module));
    }
    at
}

/// The folders of the workspace that contain crates.
pub fn crate_folders() -> [PathBuf; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    [root.join("crates"), root.join("dev")]
}

/// The crates of the workspace: the name of the folder, and the sources.
pub fn crates() -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in crate_folders().iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()).flatten() {
        let sources = entry.path().join("src");
        if sources.join("lib.rs").is_file() {
            found.push((entry.file_name().to_string_lossy().into_owned(), sources));
        }
    }
    found.sort();
    found
}
