//! Filters that apply another filter or a test to each element.

use super::arguments::AttributePath;
use crate::error::{Error, Result};
use crate::runtime::{Args, Runtime, TestFn};
use crate::value::{SeqBuilder, SeqKind, Value};

/// `map(attribute=…, default=…)` or `map(filter, …)`.
pub(super) fn map(runtime: &mut Runtime<'_>, value: Value, mut args: Args) -> Result<Value> {
    let mut items = SeqBuilder::new(&runtime.meter)?;
    if args.positional.is_empty() {
        let attribute = args.take_named("attribute");
        let default = args.take_named("default").filter(|default| !matches!(default, Value::None));
        let (Some(attribute), true) = (attribute, args.named.is_empty()) else {
            return Err(Error::value("map needs the name of a filter, or attribute=…"));
        };
        // llama.cpp's DeepSeek-R1 template prints tools with `map(attribute='function')`.
        let path = AttributePath::new(runtime, &attribute)?;
        // Jinja2 checks the truth of the value first: `0|select|list` is empty instead of an error.
        if !value.is_true() {
            return items.of_kind(SeqKind::Generator);
        }
        for item in value.iterate(&runtime.meter)?.items() {
            let mut found = path.follow(runtime, item)?;
            if let (true, Some(default)) = (found.is_undefined(), &default) {
                found = default.clone();
            }
            items.push(found)?;
        }
        return items.of_kind(SeqKind::Generator);
    }
    let name = runtime.to_text(&args.positional[0])?;
    let Some(filter) = (runtime.find.filter)(name.as_str()) else {
        return Err(Error::unsupported("unknown filter in map"));
    };
    if !value.is_true() {
        return items.of_kind(SeqKind::Generator);
    }
    // `map('map', 'map', …)` recurses through this function without the evaluator.
    runtime.enter()?;
    for item in value.iterate(&runtime.meter)?.items() {
        // The filter consumes its arguments, so each element gets a copy.
        let args = args.copy(1)?;
        items.push(filter(runtime, item.clone(), args)?)?;
    }
    runtime.leave();
    items.of_kind(SeqKind::Generator)
}

/// `select(test, …)`.
pub(super) fn select(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    choose(runtime, &value, &args, false, true)
}

/// `reject(test, …)`.
pub(super) fn reject(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    choose(runtime, &value, &args, false, false)
}

/// `selectattr(attribute, test, …)`.
pub(super) fn selectattr(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    choose(runtime, &value, &args, true, true)
}

/// `rejectattr(attribute, test, …)`.
pub(super) fn rejectattr(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    choose(runtime, &value, &args, true, false)
}

fn choose(
    runtime: &mut Runtime<'_>,
    value: &Value,
    args: &Args,
    attribute: bool,
    wanted: bool,
) -> Result<Value> {
    let path = match (attribute, args.positional.first()) {
        (false, _) => None,
        (true, Some(attribute)) => Some(AttributePath::new(runtime, attribute)?),
        (true, None) => return Err(Error::value("selectattr and rejectattr need an attribute")),
    };
    let skip = usize::from(attribute);
    let test: Option<TestFn> = match args.positional.get(skip) {
        None => None,
        Some(name) => {
            let name = runtime.to_text(name)?;
            let found = (runtime.find.test)(name.as_str());
            Some(found.ok_or_else(|| Error::unsupported("unknown test in a filter"))?)
        }
    };
    let rest = args.copy(skip + 1)?;
    let mut items = SeqBuilder::new(&runtime.meter)?;
    if !value.is_true() {
        return items.of_kind(SeqKind::Generator);
    }
    for item in value.iterate(&runtime.meter)?.items() {
        let tested = match &path {
            Some(path) => path.follow(runtime, item)?,
            None => item.clone(),
        };
        let passes = match test {
            Some(test) => test(runtime, &tested, &rest)?,
            None => tested.is_true(),
        };
        if passes == wanted {
            items.push(item.clone())?;
        }
    }
    items.of_kind(SeqKind::Generator)
}
