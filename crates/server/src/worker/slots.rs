//! What the slots of a model do, as llama.cpp's servers show it: figures of requests, and none of their texts.

use crate::params::AnswerParams;
use latent_engine::cache::CacheSalt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Slots of a model. A slot keeps the figures of its last request.
#[derive(Default)]
pub(crate) struct Slots {
    inner: Mutex<SlotTable>,
}

#[derive(Default)]
struct SlotTable {
    slots: Vec<Slot>,
    /// How many requests have had a slot.
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
    /// Its number among all requests.
    pub(crate) id: u64,
    pub(crate) is_running: bool,
    pub(crate) params: Arc<AnswerParams>,
    /// Tokens of its prompt, and how many of them were cached and have run.
    pub(crate) prompt: usize,
    pub(crate) cached: usize,
    pub(crate) processed: usize,
    /// Tokens of its answer.
    pub(crate) decoded: usize,
    pub(crate) has_new_line: bool,
}

/// The tokens of a slot's last request and its answer, and who may use their rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotText {
    pub(crate) salt: CacheSalt,
    pub(crate) tokens: Vec<u32>,
}

/// Why a slot has no text that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoText {
    /// A request runs in it.
    Busy,
    /// Its last request had another key.
    Foreign,
    /// It has had no request, or was erased.
    Empty,
}

/// A slot that a request has until this is dropped.
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

    /// The wanted slot if it is free, else the free one that was used least recently.
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

    /// Gives a request a slot: of `count`, the one that it wants, if that is free. `text` is kept for later.
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
        // those that no request has had come first
        let used = inner.slots.len().max(count).saturating_sub(1);
        inner.slot(used);
        let index = inner.free(params.slot.filter(|wanted| *wanted < count));
        *inner.slot(index) = Slot { task: Some(task), text };
        SlotHold { slots: Arc::clone(self), index }
    }

    /// What the slots have done last; none of a slot that no request has had.
    pub(crate) fn list(&self) -> Vec<Option<SlotTask>> {
        self.lock().slots.iter().map(|slot| slot.task.clone()).collect()
    }

    /// The text of a slot, for a client whose requests have this salt.
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

    /// Gives a slot a text, or takes its text away. A request that runs in it keeps its own.
    pub(crate) fn set_text(&self, index: usize, text: Option<SlotText>) {
        let mut inner = self.lock();
        let slot = inner.slot(index);
        if !slot.is_running() {
            slot.text = text;
        }
    }
}

impl SlotHold {
    /// Its number.
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// Changes the figures of the request.
    pub(crate) fn update(&self, change: impl FnOnce(&mut SlotTask)) {
        if let Some(task) = &mut self.slots.lock().slot(self.index).task {
            change(task);
        }
    }

    /// Adds a token of the answer to the text that is kept.
    pub(crate) fn push(&self, token: u32) {
        if let Some(text) = &mut self.slots.lock().slot(self.index).text {
            text.tokens.push(token);
        }
    }
}

impl Drop for SlotHold {
    fn drop(&mut self) {
        self.update(|task| task.is_running = false);
    }
}
