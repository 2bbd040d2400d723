//! Licence expressions: which licences to take.

/// Licences from the one that is taken first, since its text is shared, to those that stand in few
/// packages.
const ORDER: [&str; 8] =
    ["Apache-2.0", "MIT", "Zlib", "BSL-1.0", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Unicode-3.0"];

/// The licences to take of an expression: the fewest, then the first in `ORDER`.
pub fn chosen(expression: &str) -> Result<Vec<&'static str>, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let found = either(&mut rest).filter(|_| rest.is_empty());
    let ids = found.ok_or_else(|| format!("no licence in {expression:?} is known, or it does not parse"))?;
    let mut names: Vec<&'static str> = ids.into_iter().map(|id| ORDER[id]).collect();
    names.dedup();
    Ok(names)
}

fn word<'a>(rest: &mut &[&'a str]) -> Option<&'a str> {
    let (first, more) = rest.split_first()?;
    *rest = more;
    Some(first)
}

fn either(rest: &mut &[&str]) -> Option<Vec<usize>> {
    let mut best = all(rest);
    while rest.first() == Some(&"OR") {
        word(rest);
        let other = all(rest);
        best = match (best, other) {
            (Some(a), Some(b)) => Some(if (b.len(), &b) < (a.len(), &a) { b } else { a }),
            (a, b) => a.or(b),
        };
    }
    best
}

fn all(rest: &mut &[&str]) -> Option<Vec<usize>> {
    let mut ids = one(rest);
    while rest.first() == Some(&"AND") {
        word(rest);
        let more = one(rest);
        ids = ids.zip(more).map(|(mut ids, more)| {
            ids.extend(more);
            ids.sort_unstable();
            ids
        });
    }
    ids
}

fn one(rest: &mut &[&str]) -> Option<Vec<usize>> {
    let first = word(rest)?;
    if first == "(" {
        let inside = either(rest);
        return word(rest).filter(|end| *end == ")").and(inside);
    }
    // a licence with an exception is another one: the plain one is listed separately where it is
    // used
    if rest.first() == Some(&"WITH") {
        *rest = &rest[2.min(rest.len())..];
        return None;
    }
    ORDER.iter().position(|id| *id == first).map(|id| vec![id])
}

#[test]
fn expressions_are_read_as_cargo_writes_them() {
    for (expression, taken) in [
        ("MIT OR Apache-2.0", vec!["Apache-2.0"]),
        ("MIT/Apache-2.0", vec!["Apache-2.0"]),
        ("Unlicense OR MIT", vec!["MIT"]),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", vec!["Apache-2.0", "Unicode-3.0"]),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", vec!["Apache-2.0"]),
        ("Apache-2.0 AND MIT OR Zlib", vec!["Zlib"]),
    ] {
        assert_eq!(chosen(expression).unwrap(), taken, "{expression}");
    }
    for expression in ["GPL-3.0-only", "(MIT", "", "MIT AND LGPL-2.1", "MIT Zlib"] {
        assert!(chosen(expression).is_err(), "{expression}");
    }
}
