#!/usr/bin/env python3
"""Compare random templates with Jinja2: `python compare.py PROGRAM COUNT SEED`.

PROGRAM is the built example `render` (cargo build --release -p latent-jinja --example render). Differences are printed;
what prints addresses, generators or undefined values inside lists is left out.
"""

import json
import random
import subprocess
import sys

import make

NAMES = ["i", "n", "f", "t", "no", "nil", "s", "u", "w", "lines", "xs", "words", "empty", "d", "people", "num", "nothing", "html"]
FILTERS = (
    "abs batch(2)|list capitalize center(9) count default('q') dictsort e first float indent(2) indent(1,true,true) int items|list join join(',') last "
    "length list lower max min reverse|list round round(1) select|list reject('none')|list map('string')|list slice(2)|list sort sort(true) string sum title "
    "tojson tojson(indent=1) trim truncate(8) truncate(6,true) unique|list upper urlencode wordcount replace('a','bb') replace('l','',1) groupby('age')|list "
    "map(attribute='name')|list selectattr('age')|list rejectattr('age','gt',30)|list sort(attribute='name') sum(attribute='age') map('upper')|join map('int')|list "
    "select('odd')|list map('length')|list tojson(sort_keys=true) format(1) pprint"
).split(" ")
TESTS = "defined undefined none string number integer float boolean true false mapping iterable sequence odd even divisibleby(3) lower upper eq(7) ne(1) lt(3) ge(2) in(xs) sameas(none)".split()
METHODS = (
    "strip() lstrip() rstrip('a') split() split(',') split('l',1) rsplit('l',1) splitlines() startswith('H') endswith('x') replace('l','L') upper() lower() title() "
    "capitalize() find('l') rfind('l') index('e') count('l') isdigit() isalpha() isalnum() removeprefix('He') removesuffix('n') zfill(6) ljust(7) rjust(7) center(8,'*') "
    "partition('l') swapcase() get('a') get('zz',1) items()|list keys()|list values()|list join(words) count(1) index(2) isupper() islower() isspace() format(1,2)"
).split(" ")


class Maker:
    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def literal(self):
        return self.pick("1", "0", "-2", "3.5", "'abc'", "'a,b'", "''", "true", "none", "[1,2]", "{'a':1}", "(1,'x')", "'%s'", "'{}'", "1e20", "10", "'Zü'")

    def expr(self, depth):
        if depth <= 0 or self.r.random() < 0.15:
            return self.pick(self.literal(), self.r.choice(NAMES), self.r.choice(NAMES))
        e = lambda: self.expr(depth - 1)
        kind = self.r.randrange(17)
        if kind < 4:
            return f"{e()}|{self.r.choice(FILTERS)}"
        if kind < 6:
            return f"({e()}).{self.r.choice(METHODS)}"
        if kind == 6:
            return f"({e()}) {self.pick('+', '-', '*', '/', '//', '%', '~', '~', '+')} ({e()})"
        if kind == 7:
            return f"{e()} {self.pick('==', '!=', '<', '<=', '>', '>=', 'in', 'not in')} {e()}"
        if kind == 8:
            return f"{e()} {self.pick('and', 'or')} {e()}"
        if kind == 9:
            return f"not {e()}"
        if kind == 10:
            return f"({e()}) is {self.pick('', 'not ')}{self.r.choice(TESTS)}"
        if kind == 11:
            return f"({e()} if {e()} else {e()})"
        if kind == 12:
            return f"({e()})[{self.pick('0', '-1', '1:', ':2', '::-1', '1:-1', '::2', repr('a'), '5', '-3:', e())}]"
        if kind == 13:
            return f"({e()}).{self.pick('a', 'b', 'name', 'age', 'zz', '0')}"
        if kind == 14:
            return self.pick(f"[{e()}, {e()}]", f"({e()},)", "{'k': " + e() + "}", f"dict(a={e()})", f"range({self.pick('3', '1,4', '5,0,-2')})|list")
        if kind == 15:
            return f"'{self.pick('%s', '%d', '%5s|', '%r', '%.1f')}' % ({e()})"
        return self.pick("-", "+") + f"({e()})"

    def space(self):
        return self.pick("", " ", "\n", "  \n  ", "\n\n", "\t", "x", " y ")

    def tag(self, text):
        return "{%" + self.pick("", "", "-", "+") + f" {text} " + self.pick("", "", "-", "+") + "%}"

    def body(self, depth):
        return "".join(self.space() + self.statement(depth) for _ in range(self.r.randrange(1, 4))) + self.space()

    def statement(self, depth):
        e = lambda: self.expr(2)
        b = lambda: self.body(depth - 1)
        if depth <= 0 or self.r.random() < 0.3:
            return "{{" + self.pick("", "-") + f" {self.expr(3)} " + self.pick("", "-") + "}}"
        t = self.tag
        kind = self.r.randrange(11)
        if kind == 0:
            return t(f"if {e()}") + b() + t(f"elif {e()}") + b() + t("else") + b() + t("endif")
        if kind == 1:
            return t(f"for q in {e()}") + b() + "{{ loop.index }}{{ q }}" + t("else") + b() + t("endfor")
        if kind == 2:
            return t(f"for q in xs if {self.pick('q > 1', 'q is odd', e())}") + "{{ q }}" + b() + t("endfor")
        if kind == 3:
            return t(f"set {self.pick('v', 's', 'xs')} = {e()}") + "{{ v }}"
        if kind == 4:
            return t("set v") + b() + t("endset") + "{{ v }}"
        if kind == 5:
            return t("macro m(a, b=1)") + "{{ a }}{{ b }}" + b() + t("endmacro") + "{{ m(" + e() + ") }}"
        if kind == 6:
            return t(f"filter {self.pick('upper', 'trim', 'title', 'indent(2)')}") + b() + t("endfilter")
        if kind == 7:
            return t(f"with v = {e()}") + "{{ v }}" + b() + t("endwith")
        if kind == 8:
            return t("macro c()") + "[{{ caller() }}]" + t("endmacro") + t("call c()") + b() + t("endcall")
        if kind == 9:
            return t("for q in xs") + t(f"if {e()}") + t(self.pick("break", "continue")) + t("endif") + "{{ q }}" + t("endfor")
        return t(self.pick("raw")) + self.space() + "{{ x }}" + t("endraw") + "{#" + self.pick("", "-") + " c " + self.pick("", "-") + "#}"


def main():
    program, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    maker = Maker(seed)
    templates = [maker.body(2) if n % 2 else "{{ " + maker.expr(4) + " }}" for n in range(count)]
    lines = "\n".join(json.dumps({"template": text, "variables": make.VARIABLES}) for text in templates)
    answers = subprocess.run([program], input=lines, capture_output=True, text=True).stdout.splitlines()
    assert len(answers) == count, len(answers)
    different = rendered = 0
    for template, answer in zip(templates, answers):
        expected, found = make.render(template, make.VARIABLES), json.loads(answer)
        rendered += expected is not None
        if expected != found.get("ok") and not any(word in (expected or "") for word in (" at 0x", "Undefined", "Markup(", "<generator", "odict")):
            different += 1
            print("---", repr(template), "\n  Jinja2:", repr(expected), "\n  here:  ", repr(found.get("ok", found)))
    print(f"{count} templates, {rendered} rendered by Jinja2, {different} differ")


if __name__ == "__main__":
    main()
