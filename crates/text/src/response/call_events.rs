//! Events of a tool call: start, end, or rejection.

use super::call::is_name;
use super::event::{CallEnding, ResponseEvent, append};
use super::format::Body;
use super::parser::ResponseParser;
use super::state::{CallStep, OpenCall, ParserFlow, ParserState};
use super::watch::{MarkerRole, WatchMatch};

/// The marker at the current position that ends a call.
pub(super) enum CallBoundary {
    /// The call's end marker, which has been consumed.
    Close,
    /// A marker of the next part, which has not been consumed.
    Before,
    Hold,
    Nothing,
}

impl ResponseParser {
    /// Announces a call. Returns false if its name is invalid.
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
        // An announced call cannot become content any more, so its raw text is not needed.
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

    /// Emits the text of a call that cannot be parsed as content.
    pub(super) fn reject_call(
        &mut self,
        call: &OpenCall,
        more: &str,
        events: &mut Vec<ResponseEvent>,
    ) -> CallStep {
        self.revert_to_content(&format!("{}{more}", call.raw), events);
        (ParserState::Outside { first: false }, ParserFlow::Continue)
    }

    /// The marker at the current position that ends a call. Consumes the call's own end marker.
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

    /// Emits the start of a call and returns its index.
    pub(super) fn start_call(
        &mut self,
        name: String,
        id: Option<String>,
        events: &mut Vec<ResponseEvent>,
    ) -> usize {
        let index = self.calls;
        self.calls += 1;
        // Clients match results to calls by id, so ids must be unique. Models repeat them (test
        // case "kimi-k2: one id twice").
        let id = id.filter(|id| !id.is_empty() && id.len() <= 256 && !self.ids.contains(id));
        let id = id.unwrap_or_else(|| self.made_id(index));
        self.ids.insert(id.clone());
        append(events, ResponseEvent::ToolCallStart { index, id, name });
        index
    }

    fn made_id(&self, index: usize) -> String {
        // Mistral's chat templates require ids of nine letters or digits.
        const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let shape = self.format.inner.fields.iter().find_map(|field| match &field.body {
            Body::Call(shape) => Some((shape.id_prefix.as_str(), shape.id_length)),
            _ => None,
        });
        let (prefix, length) = shape.unwrap_or(("call_", 24));
        // The odd factor spreads consecutive indices over all bits.
        let mut state = self.seed ^ (index as u64).wrapping_mul(0xd134_2543_de82_ef95);
        let letters = (0..length).map(|_| {
            // SplitMix64 (Steele, Lea and Flood, 2014): the ids need no cryptographic strength.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            char::from(LETTERS[((z ^ (z >> 31)) % 62) as usize])
        });
        prefix.chars().chain(letters).collect()
    }
}
