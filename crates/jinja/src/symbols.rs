//! The names that a template mentions, by number.

use std::collections::HashMap;

/// A name: its place among [`Symbols`].
pub(crate) type Symbol = u32;

/// The names of one template.
#[derive(Default)]
pub(crate) struct Symbols {
    names: Vec<Box<str>>,
    places: HashMap<Box<str>, Symbol>,
}

impl Symbols {
    pub(crate) fn find(&self, name: &str) -> Option<Symbol> {
        self.places.get(name).copied()
    }

    /// Adds a name that [`Symbols::find`] does not find.
    pub(crate) fn add(&mut self, name: &str) -> Symbol {
        let symbol = self.names.len() as Symbol;
        self.names.push(name.into());
        self.places.insert(name.into(), symbol);
        symbol
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &str {
        &self.names[symbol as usize]
    }

    /// In the order of their numbers.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}
