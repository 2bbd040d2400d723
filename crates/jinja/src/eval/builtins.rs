//! The filters and tests that a template names.

use crate::runtime::{FilterFn, Finders, TestFn};
use crate::symbols::{Symbol, Symbols};
use crate::{filters, tests};

pub(super) const FINDERS: Finders = Finders { filter: filters::find, test: tests::find };

/// What the names of a template stand for behind a bar and behind `is`. Found once per template; names that are unknown
/// fail where they are reached, since templates guard them with conditions.
pub(crate) struct Builtins {
    filters: Vec<Option<FilterFn>>,
    tests: Vec<Option<TestFn>>,
}

impl Builtins {
    pub(crate) fn of(symbols: &Symbols) -> Builtins {
        let filters = symbols.names().map(filters::find).collect();
        let tests = symbols.names().map(tests::find).collect();
        Builtins { filters, tests }
    }

    pub(super) fn filter(&self, name: Symbol) -> Option<FilterFn> {
        self.filters[name as usize]
    }

    pub(super) fn test(&self, name: Symbol) -> Option<TestFn> {
        self.tests[name as usize]
    }
}
