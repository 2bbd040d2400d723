//! GBNF: accepted grammars, errors with their positions, and masks compared with a brute-force
//! check.

use crate::support::{Random, Walk, admits, compile, small};
use latent_grammar::{GrammarError, GrammarSource};
use std::collections::HashSet;

fn gbnf(text: &str) -> GrammarSource {
    GrammarSource::Gbnf(text.to_owned())
}

fn error(text: &str) -> String {
    compile(&gbnf(text)).err().unwrap_or_else(|| panic!("{text} compiles")).to_string()
}

const JSON: &str = r##"
# JSON, with little white space
root   ::= object
value  ::= object | array | text | number | ("true" | "false" | "null") ws
object ::= "{" ws ( text ":" ws value ("," ws text ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
text   ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt/] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"##;

const ARITHMETIC: &str = r#"
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"#;

const LIST: &str = r#"
root ::= item+
# a line each
item ::= "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n"
"#;

const CHESS: &str = r##"
root  ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move  ::= (pawn | piece | castle) [+#]?
piece ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn  ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"##;

#[test]
fn usual_grammars_admit_their_texts() {
    let cases: [(&str, &[&str], &[&str]); 4] = [
        (
            JSON,
            &[
                "{}",
                r#"{"a": [1, -2.5e-3, "x\"\u00e9\n", {"b": null}], "ü日": true}"#,
                "{\n  \"a\":[[],[[]]]}\n",
            ],
            &["", "[]", "{\"a\"}", "{\"a\":01}", "{\"a\":\"\n\"}", "{\"a\":1,}", "{}  "],
        ),
        (
            ARITHMETIC,
            &["x=y\n", "(a1 +22 )*b = 7\n", "x=y\n\n\n", "a=b\nc = d\n", "a = (b\n)\n"],
            &["x=y", "=y\n", "x=y+1\n", "x =y+ 1\n", "1a=2\n", "(x=y\n"],
        ),
        (LIST, &["- a\n", "- añ日\n- b- c\n"], &["- \n", "- a", "a\n", "- a\u{2028}\n", "- a\u{85}\n"]),
        (
            CHESS,
            &["1. e4 e5\n2. Nf3 Nc6\n", "1. exd8=Q+ O-O-O#\n10. R1xa2 O-O\n"],
            &["1. e4 e5\n", "1. e9 e5\n2. a1 a2\n", "2. e4 e5\n3. a1 a2\n"],
        ),
    ];
    for (grammar, good, bad) in cases {
        let compiled = compile(&gbnf(grammar)).unwrap_or_else(|error| panic!("{error}"));
        for text in good {
            let walked = Walk::new(&compiled).text(text);
            assert!(admits(&compiled, text), "{grammar} refuses {text:?} at {walked:?}");
        }
        for text in bad {
            assert!(!admits(&compiled, text), "{grammar} admits {text:?}");
        }
    }
}

#[test]
fn escapes_repetitions_groups_and_comments() {
    let cases: [(&str, &[&str], &[&str]); 12] = [
        (r#"root ::= "\x41\u00e9\U0001F642\t\\\"\[\]""#, &["Aé🙂\t\\\"[]"], &["A"]),
        (r"root ::= [\]\-a^]+", &["]-a^"], &["b", ""]),
        (r"root ::= [^a-z]", &["é", "A", "🙂"], &["b", "AB"]),
        ("root ::= .", &["x", "\n", "日"], &["", "xy"]),
        (r#"root ::= "a"{3}"#, &["aaa"], &["aa", "aaaa"]),
        (r#"root ::= "a"{2,}"#, &["aa", "aaaaa"], &["a"]),
        (r#"root ::= ("a" | "bc"){1,2}"#, &["a", "bca", "bcbc"], &["", "aaa"]),
        (r#"root ::= "a"{,2} "b"{0}"#, &["", "aa"], &["aaa", "b"]),
        ("root ::= (\n  \"a\" # one\n  |\n  \"b\"\n)\n", &["a", "b"], &["", "ab"]),
        ("root ::= \"a\"\n  | \"b\"", &["a", "b"], &["c"]),
        ("root ::= \"x\" tail\ntail ::= \"y\" tail | ", &["x", "xyy"], &["", "y"]),
        ("root ::= root \"a\" | \"b\"", &["b", "baa"], &["a", "ab"]),
    ];
    for (grammar, good, bad) in cases {
        let compiled = compile(&gbnf(grammar)).unwrap_or_else(|error| panic!("{grammar}: {error}"));
        good.iter().for_each(|text| assert!(admits(&compiled, text), "{grammar} refuses {text:?}"));
        bad.iter().for_each(|text| assert!(!admits(&compiled, text), "{grammar} admits {text:?}"));
    }
}

#[test]
fn tokens_of_the_vocabulary_are_named() {
    let grammar = compile(&gbnf("root ::= <think> [a-z]* <[285]>")).unwrap();
    assert_eq!(small().token_text(285), Some("</think>"));
    assert!(admits(&grammar, "<think>abc</think>"));
    let mut walk = Walk::new(&grammar);
    // The name spelled as text is not the token.
    assert!(!walk.push(u32::from(b'<')));
    assert!(error("root ::= <nothing>").contains("nothing"));
}

#[test]
fn errors_state_their_position() {
    for (grammar, message) in [
        ("root ::= \"a", "line 1, column 10: this `\"` is not closed"),
        ("root ::= a\nb ::= \"b\"", "line 1, column 10: undefined rule `a`"),
        ("a ::= \"a\"", "undefined rule `root`"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule `root` is defined twice"),
        ("root ::= *", "line 1, column 10: nothing to repeat before `*`"),
        ("root ::= (\"a\"", "line 1, column 10: this `(` is not closed"),
        ("root ::= [z-a]", "line 1, column 11: the range 'z'-'a' is empty"),
        ("root ::= []", "character class is empty"),
        ("root ::= \"\\q\"", "unknown escape \\q"),
        ("root ::= \"\\ud800\"", "hexadecimal digits of a character"),
        ("root ::= \"\\x+f\"", "hexadecimal digits of a character"),
        ("root ::= \"a\"{5,2}", "the upper bound is below the lower one"),
        ("root ::= \"a\"{99999999999}", "a repetition must be at most 2000"),
        ("root = \"a\"", "expected `::=` after the name `root`, found '='"),
        ("root ::= \"a\" )", "expected the end of the rule `root`, found ')'"),
        ("root ::= !<think>", "not supported"),
        ("root ::= <think", "line 1, column 10: this `<` is not closed"),
        ("", "undefined rule `root`"),
    ] {
        let found = error(grammar);
        assert!(found.contains(message), "{grammar}: {found}");
        assert!(matches!(compile(&gbnf(grammar)), Err(error) if error.is_of_request()));
    }
    // A grammar without an end.
    let found = compile(&gbnf("root ::= \"a\" root")).map(|grammar| Walk::new(&grammar).text("aaaa"));
    assert!(matches!(found, Ok(Ok(())) | Err(GrammarError::Invalid { .. })));
}

/// A part of a small grammar over `a`, `b` and `c`.
#[derive(Clone, Debug)]
enum GrammarPart {
    Char(char),
    All(Vec<GrammarPart>),
    Any(Vec<GrammarPart>),
    Repeat(Box<GrammarPart>, usize, usize),
    Rule(usize),
}

fn part(random: &mut Random, level: usize, rules: usize) -> GrammarPart {
    match if level == 0 { random.next(3) } else { random.next(9) } {
        0 | 1 => GrammarPart::Char(['a', 'b', 'c'][random.next(3)]),
        2 => GrammarPart::Rule(random.next(rules)),
        3..=5 => GrammarPart::All((0..random.next(3) + 1).map(|_| part(random, level - 1, rules)).collect()),
        6 | 7 => GrammarPart::Any((0..random.next(3) + 1).map(|_| part(random, level - 1, rules)).collect()),
        _ => {
            let (low, more) = (random.next(2), [1, 2, 9][random.next(3)]);
            GrammarPart::Repeat(Box::new(part(random, level - 1, rules)), low, low + more)
        }
    }
}

fn write(part: &GrammarPart) -> String {
    let join = |parts: &[GrammarPart], by: &str| {
        format!("({})", parts.iter().map(write).collect::<Vec<_>>().join(by))
    };
    match part {
        GrammarPart::Char(c) => format!("\"{c}\""),
        GrammarPart::All(parts) => join(parts, " "),
        GrammarPart::Any(parts) => join(parts, " | "),
        GrammarPart::Repeat(inner, low, high) if *high >= 9 => {
            format!("{}{}", write(inner), ["*", "+"][*low])
        }
        GrammarPart::Repeat(inner, low, high) => format!("{}{{{low},{high}}}", write(inner)),
        GrammarPart::Rule(rule) => format!("r{rule}"),
    }
}

/// Maximum length of compared texts.
const MAX_LENGTH: usize = 5;

/// All texts of at most [`MAX_LENGTH`] characters that each rule derives, as the least fixed point.
fn languages(rules: &[GrammarPart]) -> Vec<HashSet<String>> {
    let mut known = vec![HashSet::new(); rules.len()];
    loop {
        let next: Vec<_> = rules.iter().map(|rule| texts(rule, &known)).collect();
        if next == known {
            return known;
        }
        known = next;
    }
}

fn texts(part: &GrammarPart, known: &[HashSet<String>]) -> HashSet<String> {
    let join = |a: &HashSet<String>, b: &HashSet<String>| -> HashSet<String> {
        let pairs = a.iter().flat_map(|a| b.iter().map(move |b| format!("{a}{b}")));
        pairs.filter(|text| text.len() <= MAX_LENGTH).collect()
    };
    match part {
        GrammarPart::Char(c) => HashSet::from([c.to_string()]),
        GrammarPart::All(parts) => {
            parts.iter().fold(HashSet::from([String::new()]), |all, part| join(&all, &texts(part, known)))
        }
        GrammarPart::Any(parts) => parts.iter().flat_map(|part| texts(part, known)).collect(),
        GrammarPart::Repeat(inner, low, high) => {
            let inner = texts(inner, known);
            let (mut times, mut all) = (HashSet::from([String::new()]), HashSet::new());
            for count in 0..=(*high).min(MAX_LENGTH + 1) {
                if count >= *low {
                    all.extend(times.iter().cloned());
                }
                times = join(&times, &inner);
            }
            all
        }
        GrammarPart::Rule(rule) => known[*rule].clone(),
    }
}

/// Which rules derive at least one text.
fn productive(rules: &[GrammarPart]) -> Vec<bool> {
    let mut known = vec![false; rules.len()];
    loop {
        let next: Vec<bool> = rules.iter().map(|rule| derives(rule, &known)).collect();
        if next == known {
            return known;
        }
        known = next;
    }
}

fn derives(part: &GrammarPart, known: &[bool]) -> bool {
    match part {
        GrammarPart::Char(_) => true,
        GrammarPart::All(parts) => parts.iter().all(|part| derives(part, known)),
        GrammarPart::Any(parts) => parts.iter().any(|part| derives(part, known)),
        GrammarPart::Repeat(inner, low, _) => *low == 0 || derives(inner, known),
        GrammarPart::Rule(rule) => known[*rule],
    }
}

/// The language of each rule.
struct Language {
    productive: Vec<bool>,
    texts: Vec<HashSet<String>>,
    /// Prefixes of at most [`MAX_LENGTH`] characters of texts of any length.
    prefixes: Vec<HashSet<String>>,
}

impl Language {
    fn new(rules: &[GrammarPart]) -> Language {
        let mut language = Language {
            productive: productive(rules),
            texts: languages(rules),
            prefixes: vec![HashSet::new(); rules.len()],
        };
        loop {
            let next: Vec<_> = rules.iter().map(|rule| language.prefixes_of(rule)).collect();
            if next == language.prefixes {
                return language;
            }
            language.prefixes = next;
        }
    }

    fn prefixes_of(&self, part: &GrammarPart) -> HashSet<String> {
        let none = HashSet::new;
        let behind = |before: &HashSet<String>, part: &GrammarPart| -> HashSet<String> {
            let prefixes = self.prefixes_of(part);
            let pairs = before.iter().flat_map(|a| prefixes.iter().map(move |b| format!("{a}{b}")));
            pairs.filter(|text| text.len() <= MAX_LENGTH).collect()
        };
        if !derives(part, &self.productive) {
            return none();
        }
        match part {
            GrammarPart::Char(c) => HashSet::from([String::new(), c.to_string()]),
            GrammarPart::All(parts) => {
                let mut all = HashSet::from([String::new()]);
                for count in 0..parts.len() {
                    let before = texts(&GrammarPart::All(parts[..count].to_vec()), &self.texts);
                    all.extend(behind(&before, &parts[count]));
                }
                all
            }
            GrammarPart::Any(parts) => parts.iter().flat_map(|part| self.prefixes_of(part)).collect(),
            GrammarPart::Repeat(inner, _, high) => {
                let mut all = HashSet::from([String::new()]);
                for count in 0..(*high).min(MAX_LENGTH + 1) {
                    let before = texts(&GrammarPart::Repeat(inner.clone(), count, count), &self.texts);
                    all.extend(behind(&before, inner));
                }
                all
            }
            GrammarPart::Rule(rule) => self.prefixes[*rule].clone(),
        }
    }
}

/// Walks all prefixes of up to three characters and compares the masks with the language.
#[test]
fn masks_of_random_grammars_equal_a_brute_force_check() {
    let (mut compared, mut recursive) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let rules: Vec<GrammarPart> = (0..3).map(|_| part(&mut random, 3, 3)).collect();
        let text = rules.iter().enumerate().map(|(at, rule)| format!("r{at} ::= {}\n", write(rule)));
        let text = "root ::= r0\n".to_owned() + &text.collect::<String>();
        let language = Language::new(&rules);
        let grammar = match compile(&gbnf(&text)) {
            Ok(grammar) => grammar,
            Err(GrammarError::Invalid { .. }) if !language.productive[0] => continue,
            Err(error) => panic!("seed {seed}: {text}\n{error}"),
        };
        if !language.productive.iter().all(|productive| *productive) {
            // llguidance does not detect rules that derive no text, so its masks would lead into
            // them.
            continue;
        }
        recursive += usize::from(text[12..].matches("r0").count() > 1 && text.matches("r1").count() > 1);
        let viable = |text: &str| language.prefixes[0].contains(text);
        for prefix in all_texts(3) {
            let mut walk = Walk::new(&grammar);
            assert_eq!(walk.text(&prefix).is_ok(), viable(&prefix), "seed {seed}: {text}\n{prefix:?}");
            if !viable(&prefix) {
                continue;
            }
            compared += 1;
            assert_eq!(
                walk.may_end(),
                language.texts[0].contains(&prefix),
                "seed {seed}: {text}\nends {prefix:?}"
            );
            let allowed = walk.allowed();
            for next in ["a", "b", "c", "d", "ab", "aa"] {
                let id =
                    (0..small().vocab_size() as u32).find(|id| small().piece(*id) == Some(next.as_bytes()));
                let whole = format!("{prefix}{next}");
                assert_eq!(
                    allowed.contains(&id.unwrap()),
                    viable(&whole),
                    "seed {seed}: {text}\n{prefix:?} + {next:?}"
                );
            }
        }
    }
    assert!(compared > 1000 && recursive > 20, "{compared} {recursive}");
}

fn all_texts(longest: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..longest {
        last = last.iter().flat_map(|text| ['a', 'b', 'c'].map(|c| format!("{text}{c}"))).collect();
        all.extend(last.iter().cloned());
    }
    all
}
