import assert from "node:assert/strict";
import { test } from "node:test";
import { MathError } from "../../../crates/server/assets/math-tree.js";
import { parseMath } from "../../../crates/server/assets/math.js";

// A tree as text: tag(child child), leaves as their text.
const show = (node) => (node.text !== undefined ? node.text : node.tag === "mspace" ? "_" : `${node.tag.replace(/^m/, "")}(${node.children.map(show).join(" ")})`);
const math = (source) => show(parseMath(source));

// Expected results, derived from TeX's rules.
const CASES = {
  "x^2": "sup(x 2)",
  "x_i^2": "subsup(x i 2)",
  "x^2_i": "subsup(x i 2)",
  "x^{10}": "sup(x 10)",
  "x^10": "row(sup(x 1) 0)",
  "{}^{14}C": "row(sup(row() 14) C)",
  "f'": "sup(f ′)",
  "f''^2": "sup(f row(′′ 2))",
  "\\frac12": "frac(1 2)",
  "\\frac{a+b}{c}": "frac(row(a + b) c)",
  "\\sqrt{x}": "sqrt(x)",
  "\\sqrt[3]{x}": "root(x 3)",
  "\\alpha\\Omega": "row(α Ω)",
  "a\\le b\\ne c": "row(a ≤ b ≠ c)",
  "3.14x": "row(3.14 x)",
  "\\sum_{i=1}^n i": "row(underover(∑ row(i = 1) n) i)",
  "\\int_0^1": "subsup(∫ 0 1)",
  "\\int\\limits_0^1": "underover(∫ 0 1)",
  "\\lim_{x\\to0}": "under(lim row(x → 0))",
  "\\sin x": "row(sin _ x)",
  "\\sin(x)": "row(sin ( x ))",
  "\\log_2 n": "row(sub(log 2) _ n)",
  "\\left(\\frac ab\\right]": "row(( frac(a b) ])",
  "\\left. x\\right|_0": "sub(row(x |) 0)",
  "\\left\\{x\\middle|y\\right\\}": "row({ x | y })",
  "\\mathbb{R}^n": "sup(ℝ n)",
  "\\mathcal{L}": "ℒ",
  "\\mathbf{x1}": "row(𝐱 𝟏)",
  "\\boldsymbol{\\alpha}": "𝜶",
  "\\mathrm{KL}(p\\|q)": "row(KL ( p ‖ q ))",
  "\\text{if } x": "row(if\u00a0 x)",
  "\\text{for $n$ odd}": "row(row(for\u00a0 n \u00a0odd))".replace(/^row\((.*)\)$/, "$1"),
  "\\operatorname*{arg\\,max}_x f": "row(under(arg max x) _ f)",
  "\\hat{x}": "over(x ^)",
  "\\overline{ab}": "over(row(a b) ‾)",
  "\\underbrace{a}_{n}": "under(under(a ⏟) n)",
  "\\overset{!}{=}": "over(= !)",
  "\\binom{n}{k}": "row(( frac(n k) ))",
  "\\begin{pmatrix}a&b\\\\c&d\\end{pmatrix}": "row(( table(tr(td(a) td(b)) tr(td(c) td(d))) ))",
  "\\begin{cases}1&x\\\\0&y\\end{cases}": "row({ table(tr(td(1) td(x)) tr(td(0) td(y))))",
  "\\begin{aligned}a&=b\\\\&=c\\\\\\end{aligned}": "table(tr(td(a) td(row(= b))) tr(td(row()) td(row(= c))))",
  "\\begin{array}{l|r}a&b\\\\[2pt]c&d\\end{array}": "table(tr(td(a) td(b)) tr(td(c) td(d)))",
  "\\sum_{\\substack{i\\\\j}}": "under(∑ table(tr(td(i)) tr(td(j))))",
  "a \\not= b": "row(a =\u0338 b)",
  "50\\%": "row(50 %)",
  "\\displaystyle \\frac{1}{2}": "style(frac(1 2))",
  "a\\pmod{n}": "row(a row(_ ( mod _ n )))",
  "\\xrightarrow{f}": "over(→ padded(f))",
  "\\boxed{x}": "row(x)",
};

for (const [source, expected] of Object.entries(CASES)) {
  test(`math: ${source}`, () => assert.equal(math(source), expected));
}

test("what is not known or not whole is an error of its own kind", () => {
  for (const source of ["\\unknown", "{", "}", "\\frac{1}", "x^", "\\left(", "\\left( x", "\\right)", "\\begin{pmatrix}a", "\\begin{unknown}a\\end{unknown}", "\\begin{pmatrix}a\\end{bmatrix}", "a & b", "\\text{a", "\\sqrt[3", "\\href{javascript:1}{x}", "\\", "\\text{a $x}", "\\constructor", "\\begin{constructor}\\end{constructor}", "\\begin{toString}\\end{toString}"]) {
    assert.throws(() => parseMath(source), MathError, source);
  }
});

test("deep nesting and long sources are refused, not overflowing", () => {
  for (const source of ["{".repeat(5000) + "}".repeat(5000), "\\sqrt".repeat(3000) + "x", "\\left(".repeat(5000), "x^".repeat(5000), "\\begin{matrix}".repeat(5000), "x".repeat(30_000), "\\mathrm{".repeat(2000) + "}".repeat(2000), "\\text{$".repeat(2000)]) {
    assert.throws(() => parseMath(source), MathError, source.slice(0, 30));
  }
});
