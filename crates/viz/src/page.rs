//! One self-contained HTML file: data, style and script, without network access.

use crate::data::{Drawing, FileInfo};
use crate::scene::escape;
use crate::style;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

/// The script's files in dependency order.
// Concatenated without a bundler, so that building needs no JavaScript tools.
const SCRIPT: [&str; 22] = [
    include_str!("../assets/core.js"),
    include_str!("../assets/scene.js"),
    include_str!("../assets/arrange.js"),
    include_str!("../assets/camera.js"),
    include_str!("../assets/minimap.js"),
    include_str!("../assets/view.js"),
    include_str!("../assets/passes.js"),
    include_str!("../assets/panel.js"),
    include_str!("../assets/search.js"),
    include_str!("../assets/memory.js"),
    include_str!("../assets/profile.js"),
    include_str!("../assets/timeline.js"),
    include_str!("../assets/diff.js"),
    include_str!("../assets/load.js"),
    include_str!("../assets/weights.js"),
    include_str!("../assets/tokenizer.js"),
    include_str!("../assets/parity.js"),
    include_str!("../assets/guide.js"),
    include_str!("../assets/export.js"),
    include_str!("../assets/links.js"),
    include_str!("../assets/keys.js"),
    include_str!("../assets/main.js"),
];

const BODY: &str = include_str!("../assets/page.html");

/// The initial view of the page.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct InitialView {
    /// `circuit`, `ir` or `plan`.
    pub stage: String,
    /// The formulation of a plan.
    pub formulation: String,
    /// The batch bucket of a plan.
    pub bucket: String,
}

/// Contents of a page in addition to the drawing.
#[derive(Clone, Debug, Default)]
pub struct PageOptions<'a> {
    pub wanted: InitialView,
    /// The JSON of `latent profile --json`.
    pub profile: Option<serde_json::Value>,
    /// The JSON of `latent verify --weights --json`.
    pub weights: Option<serde_json::Value>,
    /// The JSON of `latent diff --json`.
    pub parity: Option<serde_json::Value>,
    /// Tokenizer and metadata.
    pub file_info: Option<FileInfo>,
    /// Another model to compare with.
    pub against: Option<&'a Drawing>,
}

impl Drawing {
    /// The page as HTML.
    ///
    /// # Errors
    /// A number of the drawing that JSON cannot represent (none is ever infinite).
    pub fn page(&self, options: &PageOptions<'_>) -> serde_json::Result<String> {
        let name = self.model.name.as_deref().unwrap_or(&self.model.file);
        // One function scope: nothing of the page is reachable from the global object.
        let script = unix(&format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPT.concat()));
        let style = unix(&style::of_page());
        // The two hashes allow exactly this script and this style, so markup injected through a
        // name cannot run.
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; img-src data:; base-uri 'none'; form-action 'none'",
            hash(&script),
            hash(&style)
        );
        let data = [
            // Data elements and not literals in the script, so that the script's hash is the same
            // for every model.
            ("drawing", data(&serde_json::to_string(self)?)),
            ("wanted", data(&serde_json::to_string(&options.wanted)?)),
            ("profile", data(&serde_json::to_string(&options.profile)?)),
            ("weights", data(&serde_json::to_string(&options.weights)?)),
            ("parity", data(&serde_json::to_string(&options.parity)?)),
            ("file-info", data(&serde_json::to_string(&options.file_info)?)),
            ("against", data(&serde_json::to_string(&options.against)?)),
        ];
        let data: String = data
            .iter()
            .map(|(id, json)| format!("<script type=\"application/json\" id=\"{id}\">{json}</script>\n"))
            .collect();
        Ok(format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>{} – Latent</title>\n<style>{style}</style>\n</head>\n<body>\n{BODY}\n{data}\
             <script>{script}</script>\n</body>\n</html>\n",
            escape(name)
        ))
    }
}

/// A page without scripts, in the colours of the drawing. `body` is markup in which names are
/// escaped by [`escape`]; `style` is added to the style sheet of SVG texts.
pub fn static_page(title: &str, style: &str, body: &str) -> String {
    let style = unix(&format!("{}{style}", style::of_report()));
    let policy =
        format!("default-src 'none'; style-src '{}'; base-uri 'none'; form-action 'none'", hash(&style));
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n",
        escape(title)
    )
}

/// Escapes JSON for a script element, so that it contains no markup characters. U+2028 and U+2029
/// end a line in older JavaScript.
fn data(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => safe.push_str("\\u003c"),
            '>' => safe.push_str("\\u003e"),
            '&' => safe.push_str("\\u0026"),
            '\u{2028}' => safe.push_str("\\u2028"),
            '\u{2029}' => safe.push_str("\\u2029"),
            c => safe.push(c),
        }
    }
    safe
}

/// Normalizes line ends as browsers do before hashing, for checkouts with CRLF.
fn unix(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// A source expression of the Content Security Policy.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_scripts_as_browsers_do() {
        // The digest that every browser computes for an empty script.
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn data_cannot_leave_its_element() {
        let json = data("\"</script><!--&\u{2028}\"");
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "</script><!--&\u{2028}");
    }
}
