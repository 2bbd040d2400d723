//! Nested values, calls and statements.

use crate::{bounded, refused};

#[test]
fn cyclic_namespaces_are_not_printed_endlessly() {
    for use_ in [
        "ns|tojson",
        "ns",
        "[ns]",
        "ns|string",
        "'%s' % ns",
        "'%r'|format([ns])",
        "ns ~ ''",
        "{1: ns}|pprint",
        "[ns]|join",
    ] {
        refused(&format!("{{% set ns=namespace() %}}{{% set ns.a=ns %}}{{{{ {use_} }}}}"));
    }
    refused("{% set a=namespace() %}{% set b=namespace(a=a) %}{% set a.b=[b] %}{{ a }}");
    for comparison in ["ns == ns.a", "ns in [ns]", "[ns] == [ns.a]", "ns is eq ns", "ns.a.a.a.a is defined"] {
        let source = format!("{{% set ns=namespace() %}}{{% set ns.a=ns %}}{{{{ {comparison} }}}}");
        assert_eq!(bounded(&source).result.unwrap(), "True", "{comparison}");
    }
}

#[test]
fn deep_values_are_refused_when_built() {
    for step in [
        "[ns.s]",
        "(ns.s,)",
        "{1: ns.s}",
        "dict(a=ns.s)",
        "[ns.s]|list",
        "[ns.s]|map('list')|list",
        "[ns.s] + []",
        "[ns.s] * 1",
        "[ns.s]|batch(1)|list",
        "[ns.s]|slice(1)|list",
        "{'a': ns.s}.items()",
        "{'a': ns.s}|items|list",
        "[{'k': ns.s}]|groupby('k')",
        "[ns.s].copy",
        "([ns.s]|reverse)",
        "namespace(a=ns.s)",
    ] {
        let source = format!(
            "{{% set ns=namespace(s=[1]) %}}{{% for i in range(100000) %}}{{% set ns.s={step} %}}{{% endfor %}}"
        );
        for use_ in
            ["ns.s|tojson", "ns.s", "ns.s|string", "ns.s == ns.s", "ns.s in [ns.s]", "[ns.s]|sort", "1"]
        {
            bounded(&format!("{source}{{{{ {use_} }}}}"));
        }
    }
    refused(
        "{% set ns=namespace(s=[1]) %}{% for i in range(100000) %}{% set ns.s=[ns.s] %}{% endfor %}{{ ns.s }}",
    );
}

#[test]
fn walks_of_shared_values_end_at_the_fuel_limit() {
    let build =
        "{% set ns=namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s=[ns.s, ns.s] %}{% endfor %}";
    let twice = "{% set ns=namespace(s=[1], t=[1]) %}{% for i in range(100) %}{% set ns.s=[ns.s, ns.s] %}{% set ns.t=[ns.t, ns.t] %}{% endfor %}";
    for use_ in ["ns.s", "ns.s|tojson", "ns.s|string|length", "'%r' % [ns.s]", "ns.s|tojson(indent=2)"] {
        refused(&format!("{build}{{{{ {use_} }}}}"));
    }
    for use_ in
        ["ns.s == ns.t", "ns.s in [ns.t]", "ns.s < ns.t", "[ns.s, ns.t]|unique|list", "[ns.s, ns.t]|max"]
    {
        refused(&format!("{twice}{{{{ {use_} }}}}"));
    }
}

#[test]
fn nesting_that_real_templates_need_is_allowed() {
    let deep = |open: &str, close: &str, count: usize| {
        format!("{{{{ {}1{} }}}}", open.repeat(count), close.repeat(count))
    };
    assert_eq!(bounded(&deep("(", ")", 50)).result.unwrap(), "1");
    assert_eq!(bounded(&deep("-(", ")", 50)).result.unwrap(), "1");
    let ifs = format!("{}x{}", "{% if 1 %}".repeat(60), "{% endif %}".repeat(60));
    assert_eq!(bounded(&ifs).result.unwrap(), "x");
    let recursion = "{% macro m(n) %}{% if n %}{% for i in [1] %}{% set r = m(n - 1) %}{{ r }}{% endfor %}{% endif %}x{% endmacro %}{{ m(30) }}";
    assert_eq!(bounded(recursion).result.unwrap(), "x".repeat(31));
    let chain = format!("{{{{ 'a'{} }}}}", " ~ 'a'".repeat(5000));
    assert_eq!(bounded(&chain).result.unwrap().len(), 5001);
}

#[test]
fn recursion_ends_within_the_stack() {
    for source in [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(x) %}{{ [m(x)]|join ~ (1 + m(x)|length) }}{% endmacro %}{{ m(1) }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}",
        "{% macro m() %}{% for x in [1] %}{% if 1 %}{% set y %}{% filter upper %}{{ m() }}{% endfilter %}{% endset %}{% endif %}{% endfor %}{% endmacro %}{{ m() }}",
        "{% macro m(a=m()) %}{% endmacro %}{{ m() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for x in [1] recursive %}{{ 'a' ~ (loop([1])|upper|trim) }}{% endfor %}",
        "{% set ns = namespace() %}{% macro m() %}{{ ns.m() }}{% endmacro %}{% set ns.m = m %}{{ m() }}",
        "{% for x in [1] recursive %}{% set ns = namespace(l=loop) %}{{ ns.l(ns.l([1])) }}{% endfor %}",
        "{{ [1]|map('map', 'map', 'map', 'map', 'upper')|list }}",
        "{% set a = ['map'] * 10000 %}{{ [[1]]|map(*a)|list }}",
    ] {
        bounded(source);
    }
    refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
}
