//! Style sheets: one for the scene, shared by page and SVG files, and two palettes.

const SCENE: &str = include_str!("../assets/scene.css");
const LIGHT: &str = include_str!("../assets/light.css");
const DARK: &str = include_str!("../assets/dark.css");
// Controls and panels, which SVG files do not have.
const PAGE: &str = include_str!("../assets/page.css");

/// The style of an SVG file, light or dark by the reader's preference.
pub(crate) fn of_svg() -> String {
    // Variables are scoped to the class, because a document may inline several SVG files next to
    // other styles.
    format!(
        "svg.latent {{\n{LIGHT}}}\n@media (prefers-color-scheme: dark) {{ svg.latent {{\n{DARK}}} }}\n{SCENE}"
    )
}

/// The style of a page without scripts, light or dark by the reader's preference.
pub(crate) fn of_report() -> String {
    format!(
        ":root {{ color-scheme: light;\n{LIGHT}}}\n\
         @media (prefers-color-scheme: dark) {{ :root {{ color-scheme: dark;\n{DARK}}} }}\n{SCENE}"
    )
}

/// The style of the page, light or dark by the reader's preference or choice.
pub(crate) fn of_page() -> String {
    // `data-theme` is the user's choice in the page. It overrides the preference both ways.
    format!(
        ":root {{ color-scheme: light;\n{LIGHT}}}\n\
         @media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ color-scheme: dark;\n{DARK}}} }}\n\
         :root[data-theme=dark] {{ color-scheme: dark;\n{DARK}}}\n{SCENE}{PAGE}"
    )
}
