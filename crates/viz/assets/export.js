// Saves the current drawing as SVG, or as PNG at twice its size.
const MAX_SIDE = 16_000; // pixels that browsers draw
const MAX_AREA = 100e6;

function svgText() {
  const { width, height } = arranged;
  const image = svg("svg", { xmlns: SVG, class: "latent", width, height, viewBox: `0 0 ${width} ${height}` });
  const theme = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  image.dataset.theme = theme;
  const world = $("world").cloneNode(true);
  world.removeAttribute("transform");
  world.removeAttribute("id");
  for (const control of world.querySelectorAll(".fold, title")) control.remove();
  for (const element of world.querySelectorAll("[tabindex], [role]")) for (const name of ["tabindex", "role"]) element.removeAttribute(name);
  image.append(svg("style", {}, document.querySelector("style").textContent), svg("rect", { width, height, class: "paper" }), world);
  return new XMLSerializer().serializeToString(image);
}

async function pngBlob() {
  const { width, height } = arranged;
  const scale = Math.min(2, MAX_SIDE / Math.max(width, height), Math.sqrt(MAX_AREA / (width * height)));
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText())}`;
  await image.decode();
  const canvas = html("canvas", { width: Math.round(width * scale), height: Math.round(height * scale) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("this browser draws no image of that size"))), "image/png"));
}

function saveFile(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = html("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function fileName(extension) {
  const view = currentView();
  const words = [titleOf(drawing).replace(/\.gguf$/, ""), view.pass ?? view.stage, view.formulation, view.bucket].filter(Boolean);
  return `${words.join("-").replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 100)}.${extension}`;
}

function startExport() {
  $("save-svg").addEventListener("click", () => saveFile(fileName("svg"), new Blob([svgText()], { type: "image/svg+xml" })));
  $("save-png").addEventListener("click", async () => {
    try {
      saveFile(fileName("png"), await pngBlob());
    } catch (error) {
      say(`The image was not made: ${error.message}`);
    }
  });
}
