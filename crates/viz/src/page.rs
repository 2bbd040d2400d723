//! One HTML file with everything in it: data, style and script; it asks nothing of any network.

use crate::data::Drawing;
use crate::scene::escape;
use crate::style;
use sha2::{Digest, Sha256};

/// The script, in the order in which its parts need each other.
const SCRIPT: [&str; 11] = [
    include_str!("../assets/core.js"),
    include_str!("../assets/scene.js"),
    include_str!("../assets/camera.js"),
    include_str!("../assets/view.js"),
    include_str!("../assets/panel.js"),
    include_str!("../assets/search.js"),
    include_str!("../assets/memory.js"),
    include_str!("../assets/profile.js"),
    include_str!("../assets/diff.js"),
    include_str!("../assets/keys.js"),
    include_str!("../assets/main.js"),
];

const BODY: &str = include_str!("../assets/page.html");

/// What the page shows at first.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Wanted {
    /// `circuit`, `ir` or `plan`.
    pub stage: String,
    /// The formulation of a plan.
    pub formulation: String,
    /// The class of rows of a plan.
    pub class: String,
}

/// What goes into a page beside the drawing.
#[derive(Clone, Debug)]
pub struct PageOptions<'a> {
    /// What it shows at first.
    pub wanted: Wanted,
    /// The JSON of `latent profile --json`.
    pub profile: Option<serde_json::Value>,
    /// Another model to compare with.
    pub against: Option<&'a Drawing>,
}

impl Drawing {
    /// The page.
    ///
    /// # Errors
    /// When a number of the drawing cannot be written as JSON (none is ever infinite).
    pub fn page(&self, options: &PageOptions<'_>) -> serde_json::Result<String> {
        let name = self.model.name.as_deref().unwrap_or(&self.model.file);
        let script = unix(&format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPT.concat()));
        let style = unix(&style::of_page());
        // the two hashes allow this script and this style, and nothing that a name in the data could smuggle in
        let policy = format!(
            "default-src 'none'; script-src '{}'; style-src '{}'; base-uri 'none'; form-action 'none'",
            hash(&script),
            hash(&style)
        );
        let data = [
            ("drawing", data(&serde_json::to_string(self)?)),
            ("wanted", data(&serde_json::to_string(&options.wanted)?)),
            ("profile", data(&serde_json::to_string(&options.profile)?)),
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

/// JSON that may stand in a script element: no character of it can end or begin anything.
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

/// With the line ends that a browser sees, whatever those of a checkout: the hashes are of these.
fn unix(text: &str) -> String {
    text.replace("\r\n", "\n")
}

/// A source expression of the Content Security Policy.
fn hash(text: &str) -> String {
    format!("sha256-{}", base64::encode(Sha256::digest(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_scripts_as_browsers_do() {
        // the digest that every browser computes for an empty script
        assert_eq!(hash(""), "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=");
    }

    #[test]
    fn data_cannot_leave_its_element() {
        let json = data("\"</script><!--&\u{2028}\"");
        assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), "</script><!--&\u{2028}");
    }
}
