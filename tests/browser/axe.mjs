// axe-core's findings in the current state of a page. The package is installed with
// playwright-core.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), "x.js"));
const source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

// One line per finding: the rule, and the elements. Frames are tested separately. `accepted`: rules
// and the elements that may break them.
export async function findings(page, accepted = {}) {
  // Evaluate the script: the page's content security policy forbids a script element.
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { iframes: false, resultTypes: ["violations"] }));
  for (const violation of violations) violation.nodes = violation.nodes.filter(({ html }) => !accepted[violation.id]?.test(html));
  return violations.filter(({ nodes }) => nodes.length > 0).map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 4).map(({ html, any }) => `${html.slice(0, 140)} ${any[0]?.message ?? ""}`).join(" | ")}`);
}
