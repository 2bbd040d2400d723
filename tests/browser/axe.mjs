// axe-core's findings in a page, as it stands. The package is installed beside playwright-core.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.NODE_PATH ?? process.cwd(), "x.js"));
const source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");

// One line per finding: the rule, and the elements. Frames have tests of their own. `accepted`: a rule and the elements that may break it.
export async function findings(page, accepted = {}) {
  // evaluated, not added as an element: the policy of the page allows none
  await page.evaluate(source);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { iframes: false, resultTypes: ["violations"] }));
  for (const violation of violations) violation.nodes = violation.nodes.filter(({ html }) => !accepted[violation.id]?.test(html));
  return violations.filter(({ nodes }) => nodes.length > 0).map(({ id, help, nodes }) => `${id} (${help}): ${nodes.slice(0, 4).map(({ html, any }) => `${html.slice(0, 140)} ${any[0]?.message ?? ""}`).join(" | ")}`);
}
