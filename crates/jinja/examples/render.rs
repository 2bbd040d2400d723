//! Reads lines of JSON, `{"template": …, "variables": {…}}`, renders each and answers with a line:
//! `{"ok": text}` or `{"error": message}`. `tools/` and the scripts next to the test data compare
//! the results with Jinja2's.
#![allow(clippy::print_stdout, reason = "its answers")]

use latent_jinja::{RenderRequest, StringTrust, Template, TemplateLimits};
use serde_json::{Value, json};
use std::io::BufRead;

/// A fixed time, as in the scripts.
fn clock(format: &str) -> Result<String, String> {
    Ok(format!("<{format}>"))
}

fn answer(line: &str) -> Value {
    let case: Value = serde_json::from_str(line).unwrap_or_default();
    let render = || {
        let template =
            Template::parse(case["template"].as_str().unwrap_or_default(), &TemplateLimits::DEFAULT)?;
        let mut render = RenderRequest::new(&template, TemplateLimits::DEFAULT);
        render.clock(&clock);
        for (name, value) in case["variables"].as_object().into_iter().flatten() {
            render.define(name, value, StringTrust::Content)?;
        }
        let (result, usage) = render.measured();
        result.map(|rendered| json!({"ok": rendered.text, "fuel": usage.fuel, "memory": usage.memory}))
    };
    render().unwrap_or_else(|error: latent_jinja::Error| json!({"error": error.to_string()}))
}

fn main() {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        println!("{}", answer(&line));
    }
}
