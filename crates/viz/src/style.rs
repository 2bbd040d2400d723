//! Style sheets: one for what is drawn, shared by the page and by SVG files, and two palettes.

const SCENE: &str = include_str!("../assets/scene.css");
const LIGHT: &str = include_str!("../assets/light.css");
const DARK: &str = include_str!("../assets/dark.css");
const PAGE: &str = include_str!("../assets/page.css");

/// The style of an SVG file: dark where its reader prefers it.
pub(crate) fn of_svg() -> String {
    format!(
        "svg.latent {{\n{LIGHT}}}\n@media (prefers-color-scheme: dark) {{ svg.latent {{\n{DARK}}} }}\n{SCENE}"
    )
}

/// The style of the page: dark where its reader prefers it, or has said so.
pub(crate) fn of_page() -> String {
    format!(
        ":root {{ color-scheme: light;\n{LIGHT}}}\n\
         @media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark;\n{DARK}}} }}\n\
         :root[data-theme=dark] {{ color-scheme: dark;\n{DARK}}}\n{SCENE}{PAGE}"
    )
}
