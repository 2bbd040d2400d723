//! Renderings of real templates, byte for byte against Python's Jinja2, and limits for hostile
//! templates.

use latent_text::{ChatInput, ChatTemplate};
use serde_json::{Value, json};
use std::path::Path;

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/templates")
}

fn input(case: &Value, now: i64) -> ChatInput {
    let mut input = ChatInput::new(case["messages"].clone());
    input.tools = case.get("tools").cloned();
    input.add_generation_prompt = case.get("add_generation_prompt").and_then(Value::as_bool).unwrap_or(true);
    input.extra = case.get("extra").and_then(Value::as_object).cloned().unwrap_or_default();
    input.bos_token = "<bos>".into();
    input.eos_token = "<eos>".into();
    input.now = Some(now);
    input
}

#[test]
fn renders_equal_those_of_jinja2() {
    let golden: Value =
        serde_json::from_str(&std::fs::read_to_string(folder().join("golden.json")).unwrap()).unwrap();
    let now = golden["now"].as_i64().unwrap();
    let mut wrong = Vec::new();
    for (file, renders) in golden["renders"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder().join(file)).unwrap();
        let template = ChatTemplate::new(&source).unwrap_or_else(|e| panic!("{file}: {e}"));
        for (name, expected) in renders.as_object().unwrap() {
            let found = template.render(&input(&golden["conversations"][name], now));
            match (expected.as_str(), &found) {
                (Some(expected), Ok(found)) if *expected == found.text => {}
                (None, Err(_)) => {}
                _ => wrong.push(format!("{file} {name}:\n  {expected}\n  {found:?}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn endless_and_oversized_renderings_are_stopped() {
    let render = |source: &str| {
        let template = ChatTemplate::new(source).map_err(|e| e.to_string())?;
        let rendered = template.render(&ChatInput::new(serde_json::json!([])));
        rendered.map(|rendered| rendered.text).map_err(|e| e.to_string())
    };
    let nested = "{% for a in range(90000) %}{% for b in range(90000) %}x{% endfor %}{% endfor %}";
    assert!(render(nested).unwrap_err().contains("fuel"), "{:?}", render(nested).map(|t| t.len()));
    assert!(render("{% for a in range(1000000000) %}x{% endfor %}").unwrap_err().contains("too long"));
    assert!(render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").is_err());
    assert!(render(&"x".repeat((1 << 20) + 1)).unwrap_err().contains("limit"));
    assert!(render("{% for %}").unwrap_err().contains("line 1"));
    assert!(render("{{ raise_exception('no such role') }}").unwrap_err().contains("no such role"));
}

#[test]
fn variables_of_llama_cpp_have_defaults() {
    let render = |source: &str, change: &dyn Fn(&mut ChatInput)| {
        let template = ChatTemplate::new(source).unwrap();
        let mut input = ChatInput::new(json!([{"role": "user", "content": "Hi"}]));
        input.now = Some(1_700_000_000);
        change(&mut input);
        template.define_llama_cpp_variables(&mut input).unwrap();
        template.render(&input).unwrap().text
    };
    let dates = "{{ date_string }} | {{ datetime }}";
    assert_eq!(render(dates, &|_| ()), "14 Nov 2023 | Nov 14 2023");
    let given = |input: &mut ChatInput| {
        input.extra.insert("date_string".into(), "1 May 2025".into());
    };
    assert_eq!(render(dates, &given), "1 May 2025 | Nov 14 2023");
    let with_tools = |input: &mut ChatInput| input.tools = Some(json!([{"name": "f"}]));
    let adds = "{{ 'Functions: ' + functions }}";
    assert_eq!(render(adds, &|_| ()), "Functions: ");
    assert_eq!(render(adds, &with_tools), r#"Functions: [{"name":"f"}]"#);
    // A variable that may be a list is not defined.
    let lists = "{% for f in functions %}{{ f }}{% endfor %}{{ functions is defined }}";
    assert_eq!(render(lists, &with_tools), "False");
}
