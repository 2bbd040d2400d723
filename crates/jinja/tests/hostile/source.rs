//! Long or deeply nested sources.

use crate::{bounded, refused};
use latent_jinja::TemplateLimits;

#[test]
fn long_and_deep_sources_are_parsed_within_the_stack() {
    let repeat = |before: &str, unit: &str, after: &str| {
        let most = (TemplateLimits::DEFAULT.source - before.len() - after.len()) / unit.len();
        for count in [1000, 20_000, most] {
            bounded(&format!("{before}{}{after}", unit.repeat(count.min(most))));
        }
    };
    for (before, unit, after) in [
        ("{{ ", "-", "1 }}"),
        ("{{ ", "- ", "1 }}"),
        ("{{ ", "+", "1 }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "**1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", " and 1", " }}"),
        ("{{ 1", " or 1", " }}"),
        ("{{ 1", "|string", " }}"),
        ("{{ 1", "|abs", " }}"),
        ("{{ a", ".b", " }}"),
        ("{{ a", "[0]", " }}"),
        ("{{ a", "()", " }}"),
        ("{{ 1", " if 1 else 1", " }}"),
        ("{{ 1", " if 1", " }}"),
        ("{{ 1", "<2", " }}"),
        ("{{ 1", " in 1", " }}"),
        ("{{ 1", " is odd", " }}"),
        ("{{ 1", " is not odd", " }}"),
        ("{{ 1", " is eq 1", " }}"),
        ("{{ ", "(", ""),
        ("{{ ", "[", ""),
        ("{{ ", "{", ""),
        ("{{ ", "{1:", ""),
        ("{{ ", "-(", ""),
        ("{{ ", "a(", ""),
        ("{{ ", "a[", ""),
        ("{{ ", "a|b(", ""),
        ("{{ ", "a is b(", ""),
        ("{{ ", "1 if (", ""),
        ("{{ ", "not (", ""),
        ("{{ ", "(1+", ""),
        ("{{ ", "1 or (1 and (1 == (1 + (1 ~ (1 * (1 ** (", ""),
        ("{{ ", "x is eq -", "1 }}"),
        ("{{ ", "a(b=", ""),
        ("{{ ", "a(*", ""),
        ("{{ ", "1,", " }}"),
        ("{{ [", "1,", "] }}"),
        ("{{ {", "1:1,", "} }}"),
        ("{{ ", "'a' ", " }}"),
        ("{{ 'a'", "|replace('a','a')", " }}"),
        ("", "{% if 1 %}", ""),
        ("", "{% for a in [1] %}", ""),
        ("", "{% macro a() %}", ""),
        ("", "{% call a() %}", ""),
        ("", "{% set a %}", ""),
        ("", "{% filter upper %}", ""),
        ("", "{% with %}", ""),
        ("", "{% block a %}", ""),
        ("", "{% generation %}", ""),
        ("{% if 1 %}", "{% elif 1 %}", "{% endif %}"),
        ("", "{% if 1 %}{% else %}", ""),
        ("{% for ", "(", ""),
        ("{% for a,", "b,", " in c %}"),
        ("{% set ", "a,", "b = 1 %}"),
        ("", "{{", ""),
        ("", "{%", ""),
        ("", "{#", ""),
        ("", "{{ 1 }}", ""),
        ("", "{% raw %}", ""),
        ("", "{% raw %}{% endraw %}", ""),
        ("{% macro a(", "b,", "c) %}{% endmacro %}"),
        ("{{ ", "\"", ""),
        ("{{ '", "\\", "' }}"),
        ("{{ 1 }}", " ", ""),
        ("{{ ", "9", " }}"),
        ("{{ 1e", "9", " }}"),
        ("{{ 0x", "f", " }}"),
        ("{{ ", "a", " }}"),
        ("{{ a|", "b.", "c }}"),
        ("{% ", "a", " %}"),
    ] {
        repeat(before, unit, after);
        // The same, well formed.
        let close = |unit: &str| -> String {
            unit.chars()
                .rev()
                .filter_map(|c| match c {
                    '(' => Some(')'),
                    '[' => Some(']'),
                    '{' => Some('}'),
                    _ => None,
                })
                .collect()
        };
        let count = 3000;
        bounded(&format!("{before}{}1{}{after}", unit.repeat(count), close(unit).repeat(count)));
    }
    for (open, end) in [
        ("{% if 1 %}", "{% endif %}"),
        ("{% for a in [1] %}", "{% endfor %}"),
        ("{% set a %}", "{% endset %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% with %}", "{% endwith %}"),
        ("{% macro a() %}", "{% endmacro %}"),
    ] {
        for count in [10, 60, 190, 3000] {
            bounded(&format!("{}x{}", open.repeat(count), end.repeat(count)));
        }
    }
    refused(&"x".repeat(TemplateLimits::DEFAULT.source + 1));
}
