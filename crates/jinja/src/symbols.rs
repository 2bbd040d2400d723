//! Interned names of a template. Scopes compare numbers instead of strings.

use std::collections::HashMap;

/// A name: its index in [`Symbols`].
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

    /// Adds a name. [`Symbols::find`] must have returned `None` for it.
    pub(crate) fn add(&mut self, name: &str) -> Symbol {
        // The parser calls `find` first, so the name is new.
        let symbol = self.names.len() as Symbol;
        self.names.push(name.into());
        self.places.insert(name.into(), symbol);
        symbol
    }

    pub(crate) fn name(&self, symbol: Symbol) -> &str {
        &self.names[symbol as usize]
    }

    /// The names, ordered by symbol.
    pub(crate) fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(|name| &**name)
    }
}
