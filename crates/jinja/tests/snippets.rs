//! Compares snippets of the dialect with Jinja2's results, and checks the origin of every byte of a
//! result.
#![allow(missing_docs, reason = "tests")]

use latent_jinja::{RenderRequest, RenderedText, StringTrust, Template, TemplateLimits};
use serde_json::{Value, json};
use std::path::Path;

fn render(source: &str, variables: &Value) -> Result<RenderedText, latent_jinja::Error> {
    let clock = |format: &str| Ok(format!("<{format}>"));
    let template = Template::parse(source, &TemplateLimits::DEFAULT)?;
    let mut render = RenderRequest::new(&template, TemplateLimits::DEFAULT);
    render.clock(&clock);
    for (name, value) in variables.as_object().into_iter().flatten() {
        render.define(name, value, StringTrust::Content)?;
    }
    render.finish()
}

#[test]
fn snippets_render_like_in_jinja2() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/snippets.json");
    let data: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let cases = data["cases"].as_array().unwrap();
    assert!(cases.len() > 250);
    let mut wrong = Vec::new();
    for case in cases {
        let source = case[0].as_str().unwrap();
        let found = render(source, &data["variables"]);
        match (case[1].as_str(), &found) {
            (Some(expected), Ok(found)) if expected == found.text => {}
            (None, Err(_)) => {}
            (expected, _) => wrong.push(format!("{source:?}\n  Jinja2: {expected:?}\n  here:   {found:?}")),
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

/// The result with content from the inputs in ⟦⟧.
fn marked(source: &str) -> String {
    let variables =
        json!({"c": "AbC", "l": ["x", "y"], "d": {"k": "v", "n": [1, null]}, "spaced": "  a b  ", "é": "ßé"});
    let rendered = render(source, &variables).unwrap();
    let mut text = String::new();
    let mut at = 0;
    for range in &rendered.content {
        assert!(at <= range.start && range.start < range.end && range.end <= rendered.text.len(), "{source}");
        text += &rendered.text[at..range.start];
        text += &format!("⟦{}⟧", &rendered.text[range.clone()]);
        at = range.end;
    }
    text + &rendered.text[at..]
}

#[test]
fn bytes_keep_their_origin_through_every_operation() {
    let mut wrong = Vec::new();
    for (source, expected) in [
        ("a{{ c }}b", "a⟦AbC⟧b"),
        ("{{ '<' ~ c ~ '>' }}{{ '<' + c + '>' }}", "<⟦AbC⟧><⟦AbC⟧>"),
        ("{{ c[1:] ~ c[0] ~ 'x' ~ c[::-1] }}", "⟦bCA⟧x⟦CbA⟧"),
        ("{{ ('<' ~ c ~ '>')[1:3] }}{{ ('<' ~ c ~ '>')[::-1] }}", "⟦Ab⟧>⟦CbA⟧<"),
        ("{{ spaced.strip() ~ '|' ~ spaced|trim }}", "⟦a b⟧|⟦a b⟧"),
        ("{{ spaced.split()|join('-') }}", "⟦a⟧-⟦b⟧"),
        ("{{ c.replace('b', '--') }}{{ '.b.'|replace('b', c) }}", "⟦A⟧--⟦C⟧.⟦AbC⟧."),
        ("{{ ('x' ~ c)|upper }}{{ ('X' ~ c).lower() }}{{ ('x' ~ c)|title }}", "X⟦ABC⟧x⟦abc⟧X⟦abc⟧"),
        ("{{ '%s=%5s' % (c, c) }}{{ '{}/{:>4}'.format(c, c) }}", "⟦AbC⟧=  ⟦AbCAbC⟧/ ⟦AbC⟧"),
        ("{{ l|join(', ') }}{{ c * 2 }}", "⟦x⟧, ⟦yAbCAbC⟧"),
        // Quotes and brackets of inputs count as content; separators and containers that the
        // template builds do not.
        (
            "{{ d|tojson }}{{ {'a': c}|tojson }}",
            "⟦{\"k\"⟧: ⟦\"v\"⟧, ⟦\"n\"⟧: ⟦[1⟧, ⟦null]}⟧{\"a\": ⟦\"AbC\"⟧}",
        ),
        ("{{ l }}{{ [c] }}", "⟦['x', 'y']⟧[⟦'AbC'⟧]"),
        ("{% set x %}<{{ c }}>{% endset %}{{ x }}", "<⟦AbC⟧>"),
        ("{% macro m(t) %}<{{ t }}>{% endmacro %}{{ m(c) }}", "<⟦AbC⟧>"),
        ("{% filter upper %}a{{ c }}{% endfilter %}", "A⟦ABC⟧"),
        ("{% for k, v in d.items() %}{{ k }}{% endfor %}{{ d|first }}{{ d|length }}", "⟦knk⟧2"),
        ("{{ 'a\n' ~ c ~ '\nb' }}{{ ('a\n' ~ c)|indent(1) }}", "a\n⟦AbC⟧\nba\n ⟦AbC⟧"),
        ("{{ (c ~ '<')|e ~ c|urlencode ~ c|reverse ~ c|center(5) }}", "⟦AbC⟧&lt;⟦AbCCbA⟧ ⟦AbC⟧ "),
        ("{{ é|upper ~ é[1] ~ é|tojson(ensure_ascii=true) }}", "⟦SSÉé\"\\u00df\\u00e9\"⟧"),
        ("{{ 'yes' if c == 'AbC' else 'no' }}{{ c|length }}{{ c in ['AbC'] }}", "yes3True"),
        ("{% if c %}{{ c|truncate(3) }}{{ c.partition('b')|join('') }}{% endif %}", "⟦AbCAbC⟧"),
        ("{{ c|default('x') }}{{ zzz|default('x') }}{{ d.get('q', 'x') }}", "⟦AbC⟧xx"),
        ("{{ c.split('b')[0] ~ 'b' ~ c.split('b')[1] }}", "⟦A⟧b⟦C⟧"),
    ] {
        let found = marked(source);
        if found != expected {
            wrong.push(format!("{source}\n  expected {expected}\n  found    {found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn limits_are_those_of_the_caller() {
    let source = "{% for i in range(50) %}{{ 'abcdefgh' }}{% endfor %}";
    let with = |limits: TemplateLimits| {
        let template = Template::parse(source, &limits)?;
        RenderRequest::new(&template, limits).finish()
    };
    assert_eq!(with(TemplateLimits::DEFAULT).unwrap().text.len(), 400);
    for limits in [
        TemplateLimits { source: 20, ..TemplateLimits::DEFAULT },
        TemplateLimits { parse_depth: 1, ..TemplateLimits::DEFAULT },
        TemplateLimits { fuel: 100, ..TemplateLimits::DEFAULT },
        TemplateLimits { memory: 1000, ..TemplateLimits::DEFAULT },
        TemplateLimits { output: 100, ..TemplateLimits::DEFAULT },
        TemplateLimits { eval_depth: 1, ..TemplateLimits::DEFAULT },
    ] {
        let error = with(limits).unwrap_err();
        assert_eq!(error.kind(), latent_jinja::ErrorKind::Limit, "{limits:?}: {error}");
    }
    let usage = RenderRequest::new(
        &Template::parse(source, &TemplateLimits::DEFAULT).unwrap(),
        TemplateLimits::DEFAULT,
    )
    .measured()
    .1;
    assert!(usage.fuel > 100 && usage.fuel < 1000 && usage.memory > 400, "{usage:?}");
}
