// Screenshots of a full conversation: light, dark, and on a phone.
import assert from "node:assert/strict";
import { pause } from "./mock.mjs";
import { askAndWait, until } from "./steps.mjs";

const SHOW = String.raw`# A heading

A paragraph with **bold**, *italic*, ~~struck~~, ${"`inline code`"}, a [link](https://example.org "title") and https://example.org/bare_url.

1. First
   - nested *one*
   - nested two
2. Second

- [x] done
- [ ] not done

> A quote with **weight**
> over two lines.

${"```"}rust
// Absorbed MLA: queries are multiplied by W_UK.
fn absorb(query: &[f32], weights: &Matrix) -> Vec<f32> {
    let mut out = vec![0.0; weights.rows()];
    for (i, row) in weights.iter().enumerate() {
        out[i] = dot(query, row) * 1e-3; /* scale */
    }
    println!("done: {}", out.len());
    out
}
${"```"}

| Kernel | Time | Share |
|:--|--:|:-:|
| ${"`attend_latent`"} | 812 µs | 31 % |
| moe_gate_up | 1 204 µs | 46 % |

Inline $e^{i\pi} + 1 = 0$ and \(\frac{a}{b}\), prices $5 and $10.

$$
\sum_{i=1}^{n} i^2 = \frac{n(n+1)(2n+1)}{6}, \qquad \int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}
$$

\[
\mathrm{softmax}(x)_i = \frac{e^{x_i}}{\sum_{j} e^{x_j}}, \quad A = \begin{pmatrix} a & b \\ c & d \end{pmatrix}, \quad f(x) = \begin{cases} 1 & x > 0 \\ 0 & \text{otherwise} \end{cases}
\]

$$\begin{aligned} \nabla \times \vec{E} &= -\frac{\partial \vec{B}}{\partial t} \\ \hat{H}\psi &= E\psi \\ \left( \frac{\partial f}{\partial x} \right)^2 &\le \lim_{n \to \infty} \binom{n}{k} \end{aligned}$$
`;

async function look({ mock, open, shot }, name, options) {
  mock.scenes = { show: async (stream) => {
    await stream.text("A thought.", { key: "reasoning_content" });
    await pause(50);
    await stream.answer(SHOW, { size: 60 });
  } };
  const page = await open(options);
  await askAndWait(page, "another conversation");
  await page.evaluate(() => document.getElementById("new-chat").click());
  await pause(200);
  if (options.isMobile) {
    await page.fill("#prompt", "show me what this page can do");
    await page.click("#send");
  } else await askAndWait(page, "show me what this page can do");
  await until(async () => (await page.locator(".message.assistant .figures").textContent()).includes("prompt"), "answered");
  // Five formulas, all of them rendered.
  assert.equal(await page.locator("math").count(), 5);
  assert.equal(await page.locator(".math-source").count(), 0);
  const tall = await page.evaluate(() => document.getElementById("transcript").scrollHeight);
  for (const [i, top] of [0, 0.35, 1].entries()) {
    await page.evaluate((at) => (document.getElementById("transcript").scrollTop = at), top * tall);
    await pause(120);
    await shot(page, `${name}-${i}`);
  }
  return page;
}

export const looks_light = (tools) => look(tools, "light", {});
export async function looks_dark(tools) {
  const page = await look(tools, "dark", { colorScheme: "dark" });
  await page.click("#settings-button");
  await tools.shot(page, "dark-settings");
  await page.click("#tab-model");
  await page.waitForSelector(".phases tbody tr");
  await pause(2500);
  await tools.shot(page, "dark-model");
}
export const looks_phone = (tools) => look(tools, "small", { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2, colorScheme: "dark" });
