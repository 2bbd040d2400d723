//! Fields that are parsed as a whole when they close, and tool calls in them.

use super::event::{CallEnding, ResponseEvent, append};
use super::format::{Body, FieldKind};
use super::input::floor;
use super::parser::ResponseParser;
use super::state::{MAX_REGION_BYTES, ParserFlow, ParserState};
use super::watch::WatchMatch;
use serde_json::Value;
use std::collections::HashMap;

impl ResponseParser {
    pub(super) fn region(
        &mut self,
        field: usize,
        open: String,
        captures: HashMap<String, String>,
        mut body: String,
        events: &mut Vec<ResponseEvent>,
    ) -> ParserFlow {
        let found = self.watches.fields[field].inside.scan(&self.input, self.last_empty);
        let until = match found {
            WatchMatch::Marker(_, start, _) => start,
            WatchMatch::Hold(at) => at,
            WatchMatch::Nothing => self.input.len(),
        };
        let text = self.input.upto(until);
        let room = floor(text, MAX_REGION_BYTES.saturating_sub(body.len()));
        body.push_str(text.get(..room).unwrap_or_default());
        self.input.at += room;
        // The region exceeds the limit. Its text becomes content and the rest is parsed normally.
        if self.input.at < until {
            self.revert_to_content(&(open + &body), events);
            return ParserFlow::Continue;
        }
        if let WatchMatch::Marker(_, start, end) = found {
            if start == end {
                self.last_empty = Some(self.input.absolute(end));
            }
            let close = self.input.upto(end).to_owned();
            self.input.at = end;
            if !self.end_region(field, &captures, &body, events) {
                self.revert_to_content(&format!("{open}{body}{close}"), events);
            }
            return ParserFlow::Continue;
        }
        self.state = ParserState::Region { field, open, captures, body };
        ParserFlow::Wait
    }

    /// Parses a region and emits the result. Returns false if the region cannot be parsed.
    pub(super) fn end_region(
        &mut self,
        field: usize,
        captures: &HashMap<String, String>,
        body: &str,
        events: &mut Vec<ResponseEvent>,
    ) -> bool {
        // Cloning the format is cheap (an `Arc`), and frees `self` for mutable use below.
        let format = self.format.clone();
        let field = &format.inner.fields[field];
        let Body::Region(region) = &field.body else { return true };
        let Some(value) = region.parse(body, captures) else { return false };
        match field.kind {
            FieldKind::Other => append(events, ResponseEvent::Field { name: field.name.clone(), value }),
            FieldKind::Tools => return self.whole_calls(&value, events),
            FieldKind::Reasoning => self.reasoning.text(&plain(&value), events),
            FieldKind::Content => self.content.text(&plain(&value), events),
        }
        true
    }

    /// Text outside all fields that is parsed as a whole.
    pub(super) fn end_loose(&mut self, events: &mut Vec<ResponseEvent>) {
        let loose = std::mem::take(&mut self.loose);
        if let Some(field) = self.format.inner.implicit.filter(|_| !loose.trim().is_empty())
            && !self.end_region(field, &HashMap::new(), &loose, events)
        {
            self.revert_to_content(&loose, events);
        }
    }

    /// Emits calls from a parsed value. Returns false if the value is not a call.
    fn whole_calls(&mut self, value: &Value, events: &mut Vec<ResponseEvent>) -> bool {
        let calls = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        let parts = |call: &Value| {
            let function = call.get("function").unwrap_or(call);
            let name = function.get("name").and_then(Value::as_str)?.to_owned();
            Some((name, function.get("arguments").cloned().unwrap_or_else(|| serde_json::json!({}))))
        };
        // All or none: events cannot be taken back after a later call turns out to be malformed.
        let Some(calls) = calls.iter().map(parts).collect::<Option<Vec<_>>>() else { return false };
        for (name, mut arguments) in calls {
            for (key, value) in arguments.as_object_mut().into_iter().flatten() {
                self.retype(&name, key, value);
            }
            let delta = match &arguments {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let index = self.start_call(name, None, events);
            append(events, ResponseEvent::ToolCallArguments { index, delta });
            append(events, ResponseEvent::ToolCallEnd { index, ending: CallEnding::Complete });
        }
        true
    }

    /// Converts a string to the parameter's declared type. `xml-inline` makes strings of all
    /// values.
    fn retype(&self, tool: &str, key: &str, value: &mut Value) {
        let kinds = self.types.of(tool, key);
        let typed = |value: &Value| {
            let text = super::call::typed(value.as_str()?, kinds)?;
            serde_json::from_str(&text).ok()
        };
        match value {
            // `merge_duplicates` made a list of a parameter that was written twice.
            Value::Array(values) if !kinds.contains(&super::call::ParameterType::Array) => {
                for value in values {
                    *value = typed(value).unwrap_or_else(|| value.take());
                }
            }
            value => *value = typed(value).unwrap_or_else(|| value.take()),
        }
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
