//! Generates Jinja source with all constructs of the language, some of them repeated or nested to
//! excess.

use crate::source::FuzzSource;

/// Length in bytes after which only short choices are taken. The engine refuses longer templates
/// before it parses them.
const MAX_BYTES: usize = 48 << 10;

/// Maximum depth of statements and expressions that this grammar generates itself. Repeated pieces
/// come on top.
const MAX_DEPTH: usize = 7;

/// Numbers of repetitions of a piece.
const REPEATS: [usize; 8] = [2, 10, 50, 100, 250, 1000, 5000, 20_000];

const NAMES: [&str; 22] = [
    "messages",
    "m",
    "x",
    "i",
    "ns",
    "ns.a",
    "ns.b",
    "tools",
    "loop.index0",
    "loop.last",
    "loop.previtem",
    "loop",
    "bos_token",
    "add_generation_prompt",
    "nothing",
    "messages[0]",
    "messages[-1]['content']",
    "m.content",
    "messages[0].role",
    "caller",
    "varargs",
    "f",
];

const FILTERS: [&str; 56] = [
    "tojson",
    "string",
    "length",
    "upper",
    "lower",
    "trim",
    "first",
    "last",
    "list",
    "join",
    "replace",
    "indent",
    "slice",
    "batch",
    "format",
    "center",
    "default",
    "d",
    "items",
    "dictsort",
    "sort",
    "unique",
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "groupby",
    "sum",
    "min",
    "max",
    "abs",
    "int",
    "float",
    "round",
    "reverse",
    "capitalize",
    "title",
    "wordwrap",
    "wordcount",
    "truncate",
    "escape",
    "e",
    "safe",
    "urlencode",
    "filesizeformat",
    "pprint",
    "attr",
    "random",
    "striptags",
    "xmlattr",
    "bool",
    "count",
    "zip",
    "chain",
    "nothing",
];

const METHODS: [&str; 40] = [
    "split",
    "rsplit",
    "splitlines",
    "strip",
    "lstrip",
    "rstrip",
    "replace",
    "format",
    "join",
    "upper",
    "lower",
    "title",
    "capitalize",
    "startswith",
    "endswith",
    "find",
    "rfind",
    "count",
    "items",
    "keys",
    "values",
    "get",
    "append",
    "pop",
    "update",
    "isdigit",
    "isalpha",
    "removeprefix",
    "removesuffix",
    "zfill",
    "center",
    "ljust",
    "rjust",
    "expandtabs",
    "partition",
    "index",
    "encode",
    "copy",
    "cycle",
    "changed",
];

const ARGUMENTS: [&str; 24] = [
    "indent",
    "width",
    "first",
    "blank",
    "by",
    "case_sensitive",
    "attribute",
    "default",
    "start",
    "separators",
    "sort_keys",
    "ensure_ascii",
    "fill_with",
    "reverse",
    "count",
    "d",
    "length",
    "killwords",
    "end",
    "leeway",
    "method",
    "precision",
    "sep",
    "maxsplit",
];

const FUNCTIONS: [&str; 10] = [
    "range",
    "namespace",
    "dict",
    "raise_exception",
    "strftime_now",
    "cycler",
    "joiner",
    "lipsum",
    "f",
    "caller",
];

const BINARY: [&str; 20] = [
    "+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", " and ", " or ", " in ",
    " not in ", ",", "|",
];

const TESTS: [&str; 20] = [
    "defined",
    "undefined",
    "none",
    "string",
    "mapping",
    "sequence",
    "iterable",
    "number",
    "integer",
    "float",
    "boolean",
    "true",
    "false",
    "odd",
    "divisibleby(2)",
    "in [1]",
    "eq(1)",
    "callable",
    "sameas(x)",
    "filter('tojson')",
];

/// Formats for `%` and `format`. A huge width would make a huge result from a short template.
const FORMATS: [&str; 10] = [
    "'%d'",
    "'%1000000000d'",
    "'%s %s'",
    "'%*d'",
    "'{}'",
    "'{:>1000000000}'",
    "'{0[0]}'",
    "'{:*^30}'",
    "'%.99999999f'",
    "'%x'",
];

/// Generates a template.
pub(super) fn template(source: &mut FuzzSource<'_>) -> String {
    let mut grammar = TemplateGrammar { source, out: String::new() };
    // `tag_set` makes the attributes of this namespace grow.
    grammar.out.push_str("{% set ns = namespace(a=[1], b='b') %}");
    while !grammar.source.is_empty() && grammar.out.len() < MAX_BYTES {
        grammar.statement(0);
    }
    grammar.out
}

struct TemplateGrammar<'s, 'b> {
    source: &'s mut FuzzSource<'b>,
    out: String,
}

impl TemplateGrammar<'_, '_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Whether no further construct may be opened.
    fn done(&self, depth: usize) -> bool {
        depth >= MAX_DEPTH || self.source.is_empty() || self.out.len() > MAX_BYTES
    }

    fn repeats(&mut self, piece: usize) -> usize {
        let left = MAX_BYTES.saturating_sub(self.out.len()) / piece.max(1);
        // Longer templates are refused at once, which would test nothing.
        (*self.source.pick(&REPEATS)).min(left)
    }

    /// Writes `{% word expression %}`, in some cases with the signs that strip whitespace.
    fn tag(&mut self, word: &str, inside: impl FnOnce(&mut Self)) {
        let cut = self.source.once_in(6);
        self.put(if cut { "{%- " } else { "{% " });
        self.put(word);
        inside(self);
        self.put(if cut { " -%}" } else { " %}" });
    }

    fn body(&mut self, depth: usize) {
        for _ in 0..1 + self.source.below(3) {
            self.statement(depth + 1);
        }
    }

    fn statement(&mut self, depth: usize) {
        if self.done(depth) {
            return self.put("x");
        }
        match self.source.below(20) {
            0 => {
                let text = self.source.text();
                self.put(&text);
            }
            1..=5 => self.print(depth),
            6..=8 => self.tag_for(depth),
            9 | 10 => self.tag_if(depth),
            11..=13 => self.tag_set(depth),
            14 => self.tag_macro(depth),
            15 => {
                self.tag("set x", |_| ());
                self.body(depth);
                self.tag("endset", |_| ());
            }
            16 => {
                self.tag("call f(", |g| {
                    g.expression(depth + 1);
                    g.put(")");
                });
                self.body(depth);
                self.tag("endcall", |_| ());
            }
            17 => {
                self.tag("filter ", |g| g.filter(depth));
                self.body(depth);
                self.tag("endfilter", |_| ());
            }
            18 => self.odd_statement(depth),
            _ => self.deep_statement(depth),
        }
    }

    fn print(&mut self, depth: usize) {
        self.put("{{ ");
        self.expression(depth + 1);
        self.put(" }}");
    }

    fn tag_for(&mut self, depth: usize) {
        let variable = *self.source.pick(&["m", "i", "k, v", "x"]);
        self.tag("for ", |g| {
            g.put(variable);
            g.put(" in ");
            if g.source.once_in(2) {
                g.put("range(");
                g.number();
                g.put(")");
            } else {
                g.expression(depth + 1);
            }
            if g.source.once_in(8) {
                g.put(" if ");
                g.expression(depth + 1);
            }
            if g.source.once_in(8) {
                g.put(" recursive");
            }
        });
        self.body(depth);
        if self.source.once_in(8) {
            self.put("{% if loop.index > 3 %}{% break %}{% else %}{% continue %}{% endif %}");
        }
        self.tag("endfor", |_| ());
    }

    fn tag_if(&mut self, depth: usize) {
        self.tag("if ", |g| g.expression(depth + 1));
        self.body(depth);
        if self.source.once_in(3) {
            self.tag("elif ", |g| g.expression(depth + 1));
            self.body(depth);
        }
        if self.source.once_in(2) {
            self.tag("else", |_| ());
            self.body(depth);
        }
        self.tag("endif", |_| ());
    }

    /// Writes an assignment. In a loop, most of them make a value grow exponentially or contain
    /// itself.
    fn tag_set(&mut self, depth: usize) {
        let name = *self.source.pick(&["x", "ns.a", "ns.b", "m", "x, i", "ns"]);
        self.tag("set ", |g| {
            g.put(name);
            g.put(" = ");
            match g.source.below(6) {
                0 => g.put("ns.a + ns.a"),
                1 => g.put("[ns.a, ns.a]"),
                2 => g.put("ns.b ~ ns.b"),
                3 => g.put("ns"),
                _ => g.expression(depth + 1),
            }
        });
    }

    fn tag_macro(&mut self, depth: usize) {
        self.tag("macro f(x=1, m=2)", |_| ());
        self.body(depth);
        if self.source.once_in(2) {
            self.put("{{ f(x) }}");
        }
        self.tag("endmacro", |_| ());
        self.put("{{ f(");
        self.expression(depth + 1);
        self.put(") }}");
    }

    fn odd_statement(&mut self, depth: usize) {
        let odd = [
            "{# {{ x }} #}",
            "{% raw %}{{ x }}{% endraw %}",
            "{% generation %}a{% endgeneration %}",
            "{% include 'chat' %}",
            "{% import 'chat' as c %}",
            "{% extends 'chat' %}",
            "{% block a %}b{% endblock %}",
            "{% do ns.a.append(1) %}",
            "{% endfor %}",
            "{{",
            "{% with x = 1 %}{{ x }}{% endwith %}",
            "{% autoescape true %}{{ '<' }}{% endautoescape %}",
        ];
        let text = *self.source.pick(&odd);
        self.put(text);
        if self.source.once_in(4) {
            self.statement(depth + 1);
        }
    }

    /// Writes nested statements, more of them than any stack holds.
    fn deep_statement(&mut self, depth: usize) {
        let (open, close) = *self.source.pick(&[
            ("{% if 1 %}", "{% endif %}"),
            ("{% for i in [1] %}", "{% endfor %}"),
            ("{% set x %}", "{% endset %}"),
            ("{% macro f() %}", "{% endmacro %}"),
            ("{% filter upper %}", "{% endfilter %}"),
            ("{% if 0 %}{% elif 0 %}", "{% endif %}"),
            ("{% for i in range(50) %}", "{% endfor %}"),
        ]);
        let count = self.repeats(open.len() + close.len());
        self.put(&open.repeat(count));
        self.statement(depth + 1);
        self.put(&close.repeat(count));
    }

    fn expression(&mut self, depth: usize) {
        if self.done(depth) {
            return self.put("x");
        }
        match self.source.below(24) {
            0..=3 => self.name(),
            4 | 5 => self.number(),
            6 | 7 => self.string(),
            8 => self.list("[", "]", depth, false),
            9 => self.list("{", "}", depth, true),
            10 => self.list("(", ")", depth, false),
            11 | 12 => {
                self.expression(depth + 1);
                let sign = *self.source.pick(&BINARY);
                self.put(sign);
                self.expression(depth + 1);
            }
            13..=15 => {
                self.put("(");
                self.expression(depth + 1);
                self.put(")|");
                self.filter(depth);
            }
            16 | 17 => {
                self.put("(");
                self.expression(depth + 1);
                self.put(").");
                let method = *self.source.pick(&METHODS);
                self.put(method);
                self.arguments(depth);
            }
            18 | 19 => {
                let function = *self.source.pick(&FUNCTIONS);
                self.put(function);
                self.arguments(depth);
            }
            20 => self.selection(depth),
            21 => {
                let format = *self.source.pick(&FORMATS);
                self.put(format);
                let how = *self.source.pick(&["|format", ".format", " % "]);
                self.put(how);
                self.arguments(depth);
            }
            22 => {
                self.expression(depth + 1);
                let negated = self.source.once_in(3);
                self.put(if negated { " is not " } else { " is " });
                let test = *self.source.pick(&TESTS);
                self.put(test);
            }
            _ => self.deep_expression(depth),
        }
    }

    fn name(&mut self) {
        let name = *self.source.pick(&NAMES);
        self.put(name);
    }

    fn number(&mut self) {
        let number = match self.source.below(6) {
            0 => "18446744073709551615".into(),
            1 => "99999999999999999999999999999999999999999".into(),
            2 => (*self.source.pick(&["1e308", "0.5", "1e-9", "100000", "99999", "0x10", "1_000"])).into(),
            _ => self.source.number().to_string(),
        };
        self.put(&number);
    }

    fn string(&mut self) {
        // These characters would end or continue the literal.
        let text = self.source.text().replace(['\\', '\'', '\0'], "\\n");
        let text = if self.source.once_in(8) { text.repeat(self.repeats(text.len())) } else { text };
        self.put(&format!("'{text}'"));
    }

    fn list(&mut self, open: &str, close: &str, depth: usize, keys: bool) {
        self.put(open);
        for _ in 0..self.source.below(4) {
            if keys {
                self.string();
                self.put(": ");
            }
            self.expression(depth + 1);
            self.put(", ");
        }
        self.put(close);
    }

    fn filter(&mut self, depth: usize) {
        let filter = *self.source.pick(&FILTERS);
        self.put(filter);
        if self.source.once_in(2) {
            self.arguments(depth);
        }
    }

    fn arguments(&mut self, depth: usize) {
        self.put("(");
        for at in 0..self.source.below(4) {
            self.put(if at > 0 { ", " } else { "" });
            if self.source.once_in(3) {
                let name = *self.source.pick(&ARGUMENTS);
                self.put(name);
                self.put("=");
            }
            match self.source.below(3) {
                0 => self.number(),
                1 => self.string(),
                _ => self.expression(depth + 1),
            }
        }
        self.put(")");
    }

    fn selection(&mut self, depth: usize) {
        self.put("(");
        self.expression(depth + 1);
        self.put(")");
        match self.source.below(4) {
            0 => self.put("[::-1]"),
            1 => {
                self.put("[");
                self.number();
                self.put(":");
                self.number();
                self.put("]");
            }
            2 => {
                self.put("[");
                self.expression(depth + 1);
                self.put("]");
            }
            _ => {
                self.put(" if ");
                self.expression(depth + 1);
                self.put(" else ");
                self.expression(depth + 1);
            }
        }
    }

    /// Writes signs, brackets and chains, more of them than any stack holds.
    fn deep_expression(&mut self, depth: usize) {
        let (open, close) = *self.source.pick(&[
            ("-", ""),
            ("not ", ""),
            ("(", ")"),
            ("[", "]"),
            ("{'a': ", "}"),
            ("1 if 1 else ", ""),
            ("x[", "]"),
            ("f(", ")"),
            ("", "+1"),
            ("", "**1"),
            ("", "~'a'"),
            ("", "|string"),
            ("", ".a"),
            ("", "[0]"),
            ("", " and 1"),
            ("", " < 1"),
            ("", " is defined"),
            ("", "()"),
            ("", "*99"),
            ("[x]*", ""),
        ]);
        let count = self.repeats(open.len() + close.len());
        self.put(&open.repeat(count));
        self.expression(depth + 1);
        self.put(&close.repeat(count));
    }
}
