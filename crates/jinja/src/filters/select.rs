//! Filters that go through a list with another filter or a test.

use super::{Path, find};
use crate::error::{Error, Result};
use crate::eval::{Args, Evaluator};
use crate::tests::{self, Test};
use crate::value::{Items, SeqKind, Value};

/// `map(attribute=…, default=…)` or `map(filter, …)`.
pub(super) fn map(evaluator: &mut Evaluator<'_>, value: Value, mut args: Args) -> Result<Value> {
    let mut items = Items::new(&evaluator.meter)?;
    if args.positional.is_empty() {
        let attribute = args.take_named("attribute");
        let default = args.take_named("default").filter(|default| !matches!(default, Value::None));
        let (Some(attribute), true) = (attribute, args.named.is_empty()) else {
            return Err(Error::value("map needs the name of a filter, or attribute=…"));
        };
        let path = Path::new(evaluator, &attribute)?;
        // what is false counts as empty, also where it is no list
        if !value.is_true() {
            return items.of_kind(SeqKind::Generator);
        }
        for item in value.iterate(&evaluator.meter)?.items() {
            let mut found = path.follow(evaluator, item)?;
            if let (true, Some(default)) = (found.is_undefined(), &default) {
                found = default.clone();
            }
            items.push(found)?;
        }
        return items.of_kind(SeqKind::Generator);
    }
    let name = evaluator.to_text(&args.positional[0])?;
    let Some(filter) = find(name.as_str()) else {
        return Err(Error::unsupported("map names a filter that does not exist"));
    };
    if !value.is_true() {
        return items.of_kind(SeqKind::Generator);
    }
    // a filter in a filter in a filter …
    evaluator.enter()?;
    for item in value.iterate(&evaluator.meter)?.items() {
        let args = args.copy(1)?;
        items.push(filter(evaluator, item.clone(), args)?)?;
    }
    evaluator.leave();
    items.of_kind(SeqKind::Generator)
}

/// `select(test, …)`.
pub(super) fn select(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    choose(evaluator, &value, &args, false, true)
}

/// `reject(test, …)`.
pub(super) fn reject(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    choose(evaluator, &value, &args, false, false)
}

/// `selectattr(attribute, test, …)`.
pub(super) fn selectattr(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    choose(evaluator, &value, &args, true, true)
}

/// `rejectattr(attribute, test, …)`.
pub(super) fn rejectattr(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    choose(evaluator, &value, &args, true, false)
}

fn choose(
    evaluator: &mut Evaluator<'_>,
    value: &Value,
    args: &Args,
    attribute: bool,
    wanted: bool,
) -> Result<Value> {
    let path = match (attribute, args.positional.first()) {
        (false, _) => None,
        (true, Some(attribute)) => Some(Path::new(evaluator, attribute)?),
        (true, None) => return Err(Error::value("selectattr and rejectattr need an attribute")),
    };
    let skip = usize::from(attribute);
    let test: Option<Test> = match args.positional.get(skip) {
        None => None,
        Some(name) => {
            let name = evaluator.to_text(name)?;
            let found = tests::find(name.as_str());
            Some(found.ok_or_else(|| Error::unsupported("a filter names a test that does not exist"))?)
        }
    };
    let rest = args.copy(skip + 1)?;
    let mut items = Items::new(&evaluator.meter)?;
    if !value.is_true() {
        return items.of_kind(SeqKind::Generator);
    }
    for item in value.iterate(&evaluator.meter)?.items() {
        let tested = match &path {
            Some(path) => path.follow(evaluator, item)?,
            None => item.clone(),
        };
        let passes = match test {
            Some(test) => test(evaluator, &tested, &rest)?,
            None => tested.is_true(),
        };
        if passes == wanted {
            items.push(item.clone())?;
        }
    }
    items.of_kind(SeqKind::Generator)
}
