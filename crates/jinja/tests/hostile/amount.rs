//! Widths, counts, growth and repetition.

use crate::{bounded, bounded_within, little_fuel, refused};
use latent_jinja::{ErrorKind, TemplateLimits};

#[test]
fn widths_and_counts_are_charged_before_allocation() {
    for huge in [
        "18446744073709551615",
        "9223372036854775807",
        "4294967296",
        "1000000000",
        "99999999999999999999999999999999999999",
    ] {
        for case in [
            "[1]|tojson(indent=N)",
            "[[1]]|tojson(indent=N)",
            "'a\nb'|indent(N)",
            "'a\nb'|indent(N, true, true)",
            "'a'|center(N)",
            "'a'.center(N)",
            "'a'.ljust(N)",
            "'a'.rjust(N, '-')",
            "'1'.zfill(N)",
            "'a' * N",
            "[1] * N",
            "N * 'a'",
            "(1,) * N",
            "'a'.expandtabs(N)",
            "'\t'.expandtabs(N)",
            "[1,2,3]|slice(N)|list",
            "[1,2,3]|batch(N, 'x')|list",
            "range(N)",
            "range(0, N, 2)",
            "range(-N, N)",
            "'%*d' % (N, 1)",
            "'%.*f' % (N, 1)",
            "1|round(N)",
            "1.5|round(N)",
            "2 ** N",
            "10 ** N",
            "N * N",
            "N + N",
            "-N - N",
            "N // -1",
            "'a'|truncate(N)",
            "'abc'[N]",
            "[1][N]",
            "[1][:N]",
            "[1][::N]",
            "'abc'[::-N]",
            "'a'[N:]",
            "'abc'.split('b', N)",
            "'abc'.replace('b', 'c', N)",
            "'abc'.find('b', N)",
            "'ab'.startswith('a', N)",
            "'1'|int(0, N)",
            "N|float",
            "N|int",
            "N|string",
            "1.5 ** N",
            "1 / N",
            "N % 7",
        ] {
            bounded(&format!("{{{{ {} }}}}", case.replace('N', huge)));
        }
        for case in [
            "'%Nd'|format(1)",
            "'{:>N}'.format(1)",
            "'%Ns' % 'a'",
            "'%0Nd' % 1",
            "'%-Nd' % 1",
            "'%.Nf' % 1.5",
            "'%.Ne' % 1.5",
            "'%.Ng' % 1.5",
            "'%.Nd' % 1",
            "'%.Ns' % 'abc'",
            "'{:.Nf}'.format(1.5)",
            "'{:0N}'.format(1)",
            "'{:^N}'.format('a')",
            "'{:N}'.format('a')",
            "'{N}'.format('a')",
            "'{:,.N%}'.format(1)",
            "'{:Nx}'.format(1)",
        ] {
            bounded(&format!("{{{{ {} }}}}", case.replace('N', huge)));
        }
    }
    refused("{{ [[1]]|tojson(indent=9223372036854775807) }}");
    refused("{{ '%1000000000d'|format(1) }}");
    refused("{{ [1,2,3]|slice(10000000000)|list }}");
}

/// Operations that double a value, and operations to repeat on a large one.
const AMPLIFIERS: [&str; 44] = [
    "ns.s ~ ns.s",
    "ns.s + ns.s",
    "[ns.s, ns.s]|join",
    "ns.s|replace('a', 'aa')",
    "ns.s.replace('', 'aa')",
    "ns.s|replace('a', ns.s)",
    "ns.s.join([ns.s, ns.s])",
    "'%s%s' % (ns.s, ns.s)",
    "'%s%s'|format(ns.s, ns.s)",
    "'{0}{0}'.format(ns.s)",
    "ns.s * 2",
    "ns.s|tojson",
    "[ns.s, ns.s]|tojson",
    "[ns.s, ns.s]|string",
    "ns.s|tojson(ensure_ascii=true)|replace('\"', 'ß')",
    "ns.s|escape|replace('&', '<<')",
    "ns.s|urlencode|replace('%', 'ßß')",
    "ns.s|indent(1000, true)",
    "(ns.s ~ '\n')|indent(1000)",
    "ns.s|center(1000000)",
    "ns.s|upper ~ ns.s|lower",
    "(ns.s|list + ns.s|list)|join",
    "ns.s.split('') ~ ''",
    "ns.s.title() + ns.s.swapcase()",
    "ns.s|capitalize ~ ns.s|title",
    "ns.s[::-1] ~ ns.s[::1]",
    "(ns.s ~ '\n').splitlines()|join(ns.s)",
    "ns.s.expandtabs(1000) ~ '\t'",
    "ns.s|reverse ~ ns.s",
    "ns.s|pprint|pprint",
    "[ns.s]|map('replace', 'a', 'aa')|join",
    "{'k': ns.s, 'l': ns.s}|tojson",
    "{ns.s: ns.s}|string",
    "dict(a=ns.s, b=ns.s)|urlencode",
    "ns.s|trim('b') ~ ns.s|string",
    "ns.s|truncate(1000000000) ~ ns.s",
    "ns.s.ljust(1000000) ~ ns.s.zfill(1000000)",
    "ns.s ~ ns.s ~ ns.s ~ ns.s ~ ns.s ~ ns.s",
    "ns.s ~ text",
    "text ~ ns.s ~ 'x'",
    "ns.s|e ~ word ~ 'x' ~ word",
    "ns.s ~ (text|list|join('-'))",
    "ns.s ~ [text, text]|tojson(indent=4)",
    "ns.s ~ range(1000)|list|tojson",
];

#[test]
fn growing_values_end_at_the_memory_limit() {
    for step in AMPLIFIERS {
        bounded(&format!(
            "{{% set ns=namespace(s='aß') %}}{{% for i in range(100000) %}}{{% set ns.s={step} %}}{{% endfor %}}{{{{ ns.s }}}}"
        ));
        bounded(&format!(
            "{{% set ns=namespace(s=text) %}}{{% for i in range(100000) %}}{{% set ns.s={step} %}}{{% endfor %}}{{{{ ns.s|length }}}}"
        ));
    }
    for step in [
        "ns.s + ns.s",
        "ns.s + [i]",
        "ns.s * 2",
        "(ns.s|list) + [i]",
        "[ns.s, ns.s]|sum(start=[])",
        "ns.s|map('string')|list + [i]",
        "ns.s|sort + [i]",
        "ns.s|unique|list + [i]",
        "(ns.s + [i])|reverse|list",
        "ns.s[:] + [i]",
        "ns.s|batch(2)|list + ns.s",
        "range(100000)|list + ns.s",
        "ns.s + [range(100000)|list]",
        "ns.s + [range(100000)]",
        "ns.s + ['x' * 10000]",
        "ns.s + [text ~ i]",
        "ns.s|select|list + [{'a': i}]",
        "ns.s|groupby(0)|list + ns.s",
        "ns.s + text|list",
    ] {
        bounded(&format!(
            "{{% set ns=namespace(s=[]) %}}{{% for i in range(100000) %}}{{% set ns.s={step} %}}{{% endfor %}}"
        ));
        bounded(&format!(
            "{{% set ns=namespace(s=[1]) %}}{{% for i in range(100000) %}}{{% set ns.s={step} %}}{{% endfor %}}{{{{ ns.s }}}}"
        ));
    }
    for step in
        ["dict(ns.s, **{i|string: i})", "dict(ns.s.items()|list + [(i, i)])", "{i: ns.s.items()|list}"]
    {
        bounded(&format!(
            "{{% set ns=namespace(s={{}}) %}}{{% for i in range(100000) %}}{{% set ns.s={step} %}}{{% endfor %}}"
        ));
    }
    refused("{% for i in range(100000) %}{{ 'a'*100000 }}{% endfor %}");
    refused("{% set x %}{% for i in range(100000) %}{{ 'a'*100000 }}{% endfor %}{% endset %}");
    refused("{% macro m() %}{% for i in range(100000) %}{{ 'a'*100000 }}{% endfor %}{% endmacro %}{{ m() }}");
    refused("{% filter upper %}{% for i in range(100000) %}{{ 'a'*100000 }}{% endfor %}{% endfilter %}");
    refused(
        "{% for i in range(100000) %}{% for j in range(100000) %}{% set x = namespace(a=1) %}{% endfor %}{% endfor %}",
    );
    refused(
        "{% macro f() %}{% endmacro %}{% set l = range(100000)|list %}{{ f(*(l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l + l)) }}{{ 'x' * 100000000 }}",
    );
}

#[test]
fn repetition_ends_at_the_fuel_limit() {
    for step in [
        "range(100000)",
        "range(100000)|sort",
        "range(100000)|sum",
        "range(100000)|list",
        "b|replace('a', 'b')",
        "b|upper",
        "b|lower",
        "b|title",
        "b|capitalize",
        "b ~ b",
        "b + b",
        "b|length",
        "b|trim",
        "b|trim('a')",
        "b.strip('xyza')",
        "b.split('b')",
        "b.split()",
        "b.splitlines()",
        "b|list",
        "b == b2",
        "b in b2",
        "b < b2",
        "b.count('b')",
        "b.find('b')",
        "b.index('a', 10)",
        "b|tojson",
        "b|string",
        "b|e",
        "b|urlencode",
        "b|wordcount",
        "b|reverse",
        "b[::-1]",
        "b[5:]",
        "u[5:]",
        "u[5]",
        "u|length",
        "b|truncate(5)",
        "b|indent",
        "b|center(200000)",
        "b|format",
        "b % ()",
        "b.format()",
        "b is lower",
        "b.isalpha()",
        "b.title()",
        "b.startswith(b2)",
        "b.removeprefix(b2)",
        "l|sort",
        "l|sort(reverse=true)",
        "l|unique|list",
        "l|max",
        "l|join",
        "l|tojson",
        "l|string",
        "l == l2",
        "l in [l2]",
        "99999 in l",
        "l|map('string')|list",
        "l|select('odd')|list",
        "l|batch(3)|list",
        "l|slice(3)|list",
        "l|groupby('x')|list",
        "l|length",
        "l + l",
        "l[::2]",
        "l|first",
        "l|last",
        "l.index(99)",
        "l.count(5)",
        "d == d2",
        "d|dictsort",
        "d|tojson",
        "d.items()|list",
        "d.zz",
        "d['zz']",
        "99 in d",
        "dict(d)",
        "dict(d, z=1)",
        "namespace(d)",
        "b|int",
        "b|float",
        "'%s' % b",
        "'%r' % b",
        "strftime_now(b)",
        "u.encode",
        "u|capitalize",
        "u.swapcase()",
        "u.partition('x')",
        "u.rsplit('x')",
        "u.zfill(100000)",
        "b|map('upper')|list",
        "loop",
        "loop.changed(l)",
        "loop.cycle(b, b)",
        "i is divisibleby(3)",
    ] {
        let source = format!(
            "{{% set b = 'a' * 100000 %}}{{% set b2 = 'a' * 99999 ~ 'b' %}}{{% set u = 'ß' * 100000 %}}{{% set l = range(5000)|list %}}{{% set l2 = range(5000)|list %}}{{% set d = dict(l|batch(2)) %}}{{% set d2 = dict(l|batch(2)) %}}{{% for i in range(100000) %}}{{% set x = {step} %}}{{% endfor %}}done"
        );
        bounded_within(&source, little_fuel());
    }
    refused("{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}");
    refused("{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}");
    refused("{% for a in range(90000) %}{% for b in range(90000) if b < 0 %}{% endfor %}{% endfor %}");
    // Many names in one scope.
    let names: String = (0..7000).map(|i| format!("{{%set a{i}=1%}}")).collect();
    bounded(&format!("{{% for x in range(100000) %}}{names}{{% endfor %}}"));
    bounded(&format!("{{% macro m() %}}{names}{{{{ m() }}}}{{% endmacro %}}{{{{ m() }}}}"));
}

#[test]
fn stripping_is_charged_by_the_stripped_characters() {
    let strip = |length: usize, set: &str, limits| {
        let source = format!("{{{{ ('z' * {length}).strip({set})|length }}}}");
        bounded_within(&source, limits)
    };
    let fuel = |length: usize, set: &str| {
        let outcome = strip(length, set, TemplateLimits::DEFAULT);
        let left = if set.contains('z') { 0 } else { length };
        assert_eq!(outcome.result.unwrap(), left.to_string());
        outcome.usage.fuel
    };
    // A text that keeps its ends costs no searches. Otherwise each character costs one unit, also
    // above 1 MiB.
    let (kept, stripped) = (fuel(4 << 20, "'abcdefgh' ~ 'y'"), fuel(4 << 20, "'abcdefgh' ~ 'z'"));
    assert!(stripped - kept >= (4 << 20) - 10, "{kept} kept, {stripped} stripped");
    // The stripped text is not returned when the fuel ends within it.
    let limits = TemplateLimits { fuel: kept + 1000, ..TemplateLimits::DEFAULT };
    let Err((ErrorKind::Limit, message)) = strip(4 << 20, "'abcdefgh' ~ 'z'", limits).result else {
        panic!("refused")
    };
    assert!(message.contains("fuel"), "{message}");
}
