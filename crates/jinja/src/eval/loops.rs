//! `for` loops.

use super::{BodyFlow, Evaluator};
use crate::ast::Loop;
use crate::error::{Error, Result};
use crate::runtime::Args;
use crate::text::TemplateString;
use crate::value::{LoopState, Seq, SeqBuilder, SeqKind, Value, equal};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

impl<'a> Evaluator<'a> {
    #[inline(never)]
    pub(super) fn for_statement(&mut self, index: u32) -> Result<BodyFlow> {
        let over = self.expression(&self.program.loops[index as usize].over)?;
        self.run_loop(index, &over, self.scopes.len() - 1, 0)
    }

    /// Runs a loop over a value; `scope` is the scope around the statement.
    #[inline(never)]
    fn run_loop(&mut self, index: u32, over: &Value, scope: usize, depth: u32) -> Result<BodyFlow> {
        let statement = &self.program.loops[index as usize];
        // Python's loop takes one element of a generator per iteration, so `break` leaves the
        // others to the next reader. A loop that mentions `loop` takes all of them first, because
        // `loop.length` and `loop.last` look ahead.
        let generator = match over {
            Value::Seq(seq) if seq.kind == SeqKind::Generator && !statement.uses_loop => Some(seq),
            _ => None,
        };
        let mut items = match generator {
            Some(seq) => Rc::clone(seq),
            None => over.iterate(&self.runtime.meter)?,
        };
        self.push_scope(scope)?;
        if statement.uses_loop && statement.condition.is_some() {
            // `loop.length`, `loop.last` and `loop.nextitem` count only elements that pass the
            // condition.
            items = self.passing(statement, &items)?;
        }
        let state =
            if statement.uses_loop { Some(self.loop_state(index, &items, scope, depth)?) } else { None };
        let loop_symbol = self.runtime.symbol("loop");
        let mut ran = false;
        // The length is taken once. `items` of a generator shrinks with each element that is taken.
        for turn in 0..items.items().len() {
            let next = match generator {
                Some(seq) => seq.take_next(),
                None => items.items().get(turn).cloned(),
            };
            // The body may have read the same generator.
            let Some(item) = next else { break };
            // Assignments in a body do not survive an iteration in Jinja2; templates use a
            // namespace for that.
            self.clear_scope();
            self.store(&statement.target, item)?;
            if let (Some(state), Some(name)) = (&state, loop_symbol) {
                state.turn.set(turn);
                self.assign(name, Value::Loop(Rc::clone(state)))?;
            } else if let Some(condition) = &statement.condition
                && !self.is_true(condition)?
            {
                // With `uses_loop`, `passing` has already filtered the items.
                continue;
            }
            ran = true;
            if self.body(&statement.body)? == BodyFlow::Break {
                break;
            }
        }
        // `else` must not see the variables of the last iteration.
        self.clear_scope();
        let mut flow = BodyFlow::Normal;
        if !ran && !statement.otherwise.is_empty() {
            flow = self.body(&statement.otherwise)?;
        }
        self.pop_scope();
        Ok(flow)
    }

    /// Returns the elements that pass the loop's condition.
    fn passing(&mut self, statement: &'a Loop, items: &Rc<Seq>) -> Result<Rc<Seq>> {
        let Some(condition) = &statement.condition else { return Ok(Rc::clone(items)) };
        let mut passing = SeqBuilder::new(&self.runtime.meter)?;
        for item in items.items() {
            self.clear_scope();
            self.store(&statement.target, item.clone())?;
            if self.is_true(condition)? {
                passing.push(item.clone())?;
            }
        }
        passing.finish(SeqKind::List)
    }

    fn loop_state(&self, index: u32, items: &Rc<Seq>, scope: usize, depth: u32) -> Result<Rc<LoopState>> {
        Ok(Rc::new(LoopState {
            index,
            items: Rc::clone(items),
            turn: Cell::new(0),
            depth,
            scope,
            scope_id: self.scopes[scope].id,
            changed: RefCell::new(None),
            _charge: self.runtime.meter.charge(size_of::<LoopState>() + 32)?,
        }))
    }

    /// `loop(items)` in a recursive loop.
    #[inline(never)]
    pub(super) fn recurse(&mut self, state: &LoopState, args: Args) -> Result<Value> {
        if !self.program.loops[state.index as usize].recursive {
            return Err(Error::value("loop(…) needs a loop marked as recursive"));
        }
        let [items] = args.bind("loop", ["iterable"])?;
        let Some(items) = items else { return Err(Error::value("loop(…) needs a value to iterate over")) };
        // A namespace can keep `loop` after its scope has ended, like a macro (see `call_macro`).
        let alive = self.scopes.get(state.scope).is_some_and(|scope| scope.id == state.scope_id);
        let scope = if alive { state.scope } else { 0 };
        let text: TemplateString = self.capture(|evaluator| {
            evaluator.run_loop(state.index, &items, scope, state.depth + 1).map(|_| ())
        })?;
        Ok(Value::Str(text))
    }

    /// `loop.cycle(…)` and `loop.changed(…)`.
    pub(super) fn loop_method(&mut self, state: &LoopState, name: &str, args: Args) -> Result<Value> {
        if name == "cycle" {
            let count = args.positional.len();
            // `checked_rem` covers a call without values.
            let chosen = state.turn.get().checked_rem(count).and_then(|at| args.positional.get(at).cloned());
            return chosen.ok_or_else(|| Error::value("loop.cycle needs values"));
        }
        let mut values = SeqBuilder::new(&self.runtime.meter)?;
        for value in args.positional {
            values.push(value)?;
        }
        let values = values.finish(SeqKind::Tuple)?;
        let value = Value::Seq(Rc::clone(&values));
        // The loop would own its own Rc and never be freed.
        if value.shape().has_loop {
            return Err(Error::value("loop.changed cannot keep a loop"));
        }
        let mut last = state.changed.borrow_mut();
        let same = match &*last {
            Some(old) => equal(&self.runtime.meter, &Value::Seq(Rc::clone(old)), &value)?,
            None => false,
        };
        if !same {
            *last = Some(values);
        }
        Ok(Value::Bool(!same))
    }
}
