//! Events of a tool call: start, end, or rejection.

use super::call::is_name;
use super::event::{CallEnding, ResponseEvent, append};
use super::format::Body;
use super::parser::ResponseParser;
use super::state::{CallStep, OpenCall, ParserFlow, ParserState};
use super::watch::{MarkerRole, WatchMatch};

/// What a step finds at the end of what it reads.
pub(super) enum CallBoundary {
    /// The call's end; it is read.
    Close,
    /// Something else begins.
    Before,
    Hold,
    Nothing,
}

impl ResponseParser {
    /// Announces a call, unless its name cannot be one. Later text of `raw` is not needed then.
    pub(super) fn announce(
        &mut self,
        call: &mut OpenCall,
        name: String,
        id: Option<String>,
        events: &mut Vec<ResponseEvent>,
    ) -> bool {
        if !is_name(&name) {
            return false;
        }
        call.name.clone_from(&name);
        call.index = Some(self.start_call(name, id, events));
        call.raw.clear();
        true
    }

    pub(super) fn end_call(&mut self, call: &mut OpenCall, whole: bool, events: &mut Vec<ResponseEvent>) {
        let ending = if whole && !call.malformed { CallEnding::Complete } else { CallEnding::Malformed };
        if let Some(index) = call.index.take() {
            append(events, ResponseEvent::ToolCallEnd { index, ending });
        }
        self.content.marker(false, events);
    }

    pub(super) fn ended(
        &mut self,
        mut call: OpenCall,
        whole: bool,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        self.end_call(&mut call, whole, events);
        (ParserState::Outside { first: true }, ParserFlow::Continue)
    }

    /// The call was none: what it seemed to begin with is content.
    pub(super) fn no_call(
        &mut self,
        call: &OpenCall,
        more: &str,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        self.give_up(&format!("{}{more}", call.raw), events);
        (ParserState::Outside { first: false }, ParserFlow::Continue)
    }

    /// What stands where parsing is, of what can end a call. Reads it, if it is the call's own end.
    pub(super) fn at_end(&mut self, call: &OpenCall) -> CallBoundary {
        match self.watches.fields[call.field].end.at(&self.input, self.input.at, None) {
            WatchMatch::Marker(MarkerRole::Close, _, end) => {
                self.input.at = end;
                CallBoundary::Close
            }
            WatchMatch::Marker(..) => CallBoundary::Before,
            WatchMatch::Hold(_) => CallBoundary::Hold,
            WatchMatch::Nothing => CallBoundary::Nothing,
        }
    }

    /// Announces a call; returns its index. The model's own id counts unless it was used before.
    pub(super) fn start_call(
        &mut self,
        name: String,
        id: Option<String>,
        events: &mut Vec<ResponseEvent>,
    ) -> usize {
        let index = self.calls;
        self.calls += 1;
        let id = id.filter(|id| !id.is_empty() && id.len() <= 256 && !self.ids.contains(id));
        let id = id.unwrap_or_else(|| self.made_id(index));
        self.ids.insert(id.clone());
        append(events, ResponseEvent::ToolCallStart { index, id, name });
        index
    }

    fn made_id(&self, index: usize) -> String {
        const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let shape = self.format.inner.fields.iter().find_map(|field| match &field.body {
            Body::Call(shape) => Some((shape.id_prefix.as_str(), shape.id_length)),
            _ => None,
        });
        let (prefix, length) = shape.unwrap_or(("call_", 24));
        let mut state = self.seed ^ (index as u64).wrapping_mul(0xd134_2543_de82_ef95);
        let letters = (0..length).map(|_| {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            char::from(LETTERS[((z ^ (z >> 31)) % 62) as usize])
        });
        prefix.chars().chain(letters).collect()
    }
}
