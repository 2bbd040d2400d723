//! Slots of a model as llama.cpp's server reports them: statistics of requests, without their
//! texts.
//!
//! In llama.cpp a slot owns a part of the KV cache. Here all requests share one cache, and a slot
//! is only a number for `/slots` and `id_slot`.

use crate::params::AnswerParams;
use latent_engine::cache::CacheSalt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of a model. A slot keeps the statistics of its last request.
#[derive(Default)]
pub(crate) struct Slots {
    inner: Mutex<SlotTable>,
}

#[derive(Default)]
struct SlotTable {
    slots: Vec<Slot>,
    /// Number of requests so far.
    count: u64,
}

#[derive(Default)]
struct Slot {
    task: Option<SlotTask>,
    text: Option<SlotText>,
}

/// A request in a slot.
#[derive(Clone)]
pub(crate) struct SlotTask {
    /// A serial number (llama.cpp's `id_task`).
    pub(crate) id: u64,
    pub(crate) is_running: bool,
    pub(crate) params: Arc<AnswerParams>,
    /// Tokens of the prompt.
    pub(crate) prompt: usize,
    /// Tokens of the prompt that came from the cache.
    pub(crate) cached: usize,
    /// Tokens of the prompt that have been computed.
    pub(crate) processed: usize,
    /// Generated tokens.
    pub(crate) decoded: usize,
    pub(crate) has_new_line: bool,
}

/// The tokens of a slot's last request and answer, and the cache salt of their rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotText {
    pub(crate) salt: CacheSalt,
    pub(crate) tokens: Vec<u32>,
}

/// Why the text of a slot cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoText {
    /// A request is running in the slot.
    Busy,
    /// The slot's last request had another API key.
    Foreign,
    /// The slot had no request yet, or was erased.
    Empty,
}

/// A slot that is occupied by a request until this guard is dropped.
pub(crate) struct SlotHold {
    slots: Arc<Slots>,
    index: usize,
}

impl Slot {
    fn is_running(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.is_running)
    }
}

impl SlotTable {
    fn slot(&mut self, index: usize) -> &mut Slot {
        if self.slots.len() <= index {
            self.slots.resize_with(index + 1, Slot::default);
        }
        &mut self.slots[index]
    }

    /// The wanted slot if it is free, otherwise the least recently used free slot, otherwise a new
    /// one.
    fn free(&self, wanted: Option<usize>) -> usize {
        let is_free = |index: &usize| self.slots.get(*index).is_none_or(|slot| !slot.is_running());
        let free = self.slots.iter().enumerate().filter(|(_, slot)| !slot.is_running());
        let oldest = free.min_by_key(|(_, slot)| slot.task.as_ref().map(|task| task.id));
        wanted.filter(is_free).or(oldest.map(|(index, _)| index)).unwrap_or(self.slots.len())
    }
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, SlotTable> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Assigns one of `count` slots to a request: `params.slot`, if it is free. `text` is stored
    /// for `/slots?action=save`.
    pub(crate) fn take(
        self: &Arc<Slots>,
        params: &Arc<AnswerParams>,
        (prompt, cached): (usize, usize),
        count: usize,
        text: Option<SlotText>,
    ) -> SlotHold {
        let mut inner = self.lock();
        let task = SlotTask {
            id: inner.count,
            is_running: true,
            params: Arc::clone(params),
            prompt,
            cached,
            processed: 0,
            decoded: 0,
            has_new_line: false,
        };
        inner.count += 1;
        // Creates all slots first. An unused one has no task, which compares lower than any task in
        // `free`.
        let used = inner.slots.len().max(count).saturating_sub(1);
        inner.slot(used);
        // A client's `id_slot` beyond the number of slots is ignored: it must not enlarge the
        // table.
        let index = inner.free(params.slot.filter(|wanted| *wanted < count));
        *inner.slot(index) = Slot { task: Some(task), text };
        SlotHold { slots: Arc::clone(self), index }
    }

    /// The last request of each slot; `None` for an unused slot.
    pub(crate) fn list(&self) -> Vec<Option<SlotTask>> {
        self.lock().slots.iter().map(|slot| slot.task.clone()).collect()
    }

    /// The text of a slot, for a client with this cache salt.
    pub(crate) fn text(&self, index: usize, salt: CacheSalt) -> Result<SlotText, NoText> {
        let inner = self.lock();
        let slot = inner.slots.get(index).ok_or(NoText::Empty)?;
        match &slot.text {
            _ if slot.is_running() => Err(NoText::Busy),
            None => Err(NoText::Empty),
            Some(text) if text.salt != salt => Err(NoText::Foreign),
            Some(text) => Ok(text.clone()),
        }
    }

    /// Replaces the text of a slot, unless a request is running in it.
    pub(crate) fn set_text(&self, index: usize, text: Option<SlotText>) {
        let mut inner = self.lock();
        let slot = inner.slot(index);
        // The caller has read a file or waited for the engine, so a request may have taken the
        // slot.
        if !slot.is_running() {
            slot.text = text;
        }
    }
}

impl SlotHold {
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Updates the statistics of the request.
    pub(crate) fn update(&self, change: impl FnOnce(&mut SlotTask)) {
        if let Some(task) = &mut self.slots.lock().slot(self.index).task {
            change(task);
        }
    }

    /// Appends a generated token to the stored text.
    pub(crate) fn push(&self, token: u32) {
        if let Some(text) = &mut self.slots.lock().slot(self.index).text {
            text.tokens.push(token);
        }
    }
}

impl Drop for SlotHold {
    fn drop(&mut self) {
        // Only the flag: the statistics stay until the next request in this slot.
        self.update(|task| task.is_running = false);
    }
}
