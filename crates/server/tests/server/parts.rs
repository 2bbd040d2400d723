//! Messages of several parts: joined by line ends, or passed as a list to templates that support
//! lists.

use crate::support::{CHAT, TestServer, config, demo, loader, source, wrap};
use latent_server::{Extras, LoadAttempt, LoadError, LoadedModel, RequestDefaults, Server};
use serde_json::{Value, json};
use std::time::Duration;

/// The demo model with another chat template.
pub fn with_template(template: &str) -> TestServer {
    with_defaults(template, RequestDefaults::default())
}

pub fn with_defaults(template: &str, defaults: RequestDefaults) -> TestServer {
    let (mut load, template) = (loader(), template.to_owned());
    let other = move |attempt: &mut LoadAttempt<'_>| -> Result<LoadedModel, LoadError> {
        let mut loaded = load(attempt)?;
        loaded.about.chat_template = Some(template.clone());
        loaded.about.defaults = defaults.clone();
        Ok(loaded)
    };
    let server = Server::start(config(), vec![source("demo", Box::new(other))], Extras::default()).unwrap();
    server.wait_loaded(Duration::from_secs(60)).expect("it loads in time").unwrap();
    wrap(server)
}

fn parts(texts: &[&str]) -> Value {
    texts.iter().map(|text| json!({"type": "text", "text": text})).collect()
}

fn prompt(server: &TestServer, messages: &Value) -> String {
    let prompt = server.post("/apply-template", &json!({"messages": messages})).ok();
    prompt["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn parts_are_joined_by_line_ends_in_every_dialect() {
    let server = demo();
    let (list, text) = (parts(&["What is", "the best book"]), "What is\nthe best book");
    let say = |content: Value| json!([{"role": "user", "content": content}]);
    assert_eq!(prompt(&server, &say(list.clone())), prompt(&server, &say(text.into())));
    let count = |path: &str, body: Value| server.post(path, &body).ok()["input_tokens"].as_u64().unwrap();
    let anthropic = |system: Value, content: Value| {
        count("/v1/messages/count_tokens", json!({"system": system, "messages": say(content)}))
    };
    assert_eq!(anthropic("a\nb".into(), text.into()), anthropic(parts(&["a", "b"]), list));
    let result = |content: Value| {
        let used = json!([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]);
        let result = json!([{"type": "tool_result", "tool_use_id": "t", "content": content}]);
        let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": used}, {"role": "user", "content": result}]);
        count("/v1/messages/count_tokens", json!({"messages": messages}))
    };
    assert_eq!(result("a b\nc".into()), result(parts(&["a b", "c"])));
    let responses = |content: Value| count("/v1/responses/input_tokens", json!({"input": say(content)}));
    let input =
        json!([{"type": "input_text", "text": "What is"}, {"type": "input_text", "text": "the best book"}]);
    assert_eq!(responses(text.into()), responses(input));
    // The parts of an answer that is continued are joined without line ends.
    let begun = |content: Value| {
        prompt(&server, &json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]))
    };
    assert_eq!(begun(parts(&["Once upon", " a time"])), begun("Once upon a time".into()));
}

#[test]
fn templates_that_accept_a_list_get_one() {
    const LISTS: &str = "{% for m in messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %};{% endfor %}";
    let server = with_template(LISTS);
    let messages = json!([
        {"role": "system", "content": parts(&["a", "b"])},
        {"role": "user", "content": parts(&["only"])},
        {"role": "assistant", "content": parts(&["c", "d"])},
        {"role": "user", "content": parts(&["e", "f", ""])},
    ]);
    assert_eq!(prompt(&server, &messages), "system:[a][b];user:only;assistant:[c][d];user:[e][f];");
    server.post(CHAT, &json!({"messages": messages, "max_tokens": 2})).ok();
    // A template that supports only lists.
    const ONLY_LISTS: &str = "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %};{% endfor %}";
    let server = with_template(ONLY_LISTS);
    assert_eq!(prompt(&server, &json!([{"role": "user", "content": "x"}])), "user:[x];");
    // A template that accepts lists only in messages of users.
    const USERS: &str = "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% else %}{{ m.content + ';' }}{% endif %}{% endfor %}";
    let server = with_template(USERS);
    assert_eq!(prompt(&server, &messages), "a\nb;only;c\nd;[e][f]");
}
