//! Filters that compare elements.

use super::{Path, flag};
use crate::error::{Error, Result};
use crate::eval::{Args, Evaluator};
use crate::methods::lowered;
use crate::value::{Items, Missing, SeqKind, Value, equal, less, sort_by};

/// What elements are compared by.
struct Keys {
    paths: Vec<Path>,
    case_sensitive: bool,
    default: Option<Value>,
    /// Whether the key is a list of all paths' values, also where there is one path.
    listed: bool,
}

impl Keys {
    fn new(evaluator: &Evaluator<'_>, attribute: Option<Value>, case_sensitive: bool) -> Result<Keys> {
        let mut paths = Vec::new();
        match &attribute {
            None | Some(Value::None) => {}
            Some(Value::Str(text)) => {
                for part in text.as_str().split(',') {
                    if paths.len() == 16 {
                        return Err(Error::limit("sorting by more than 16 attributes"));
                    }
                    paths.push(Path::new(evaluator, &Value::string(&evaluator.meter, part)?)?);
                }
            }
            Some(other) => paths.push(Path::new(evaluator, other)?),
        }
        Ok(Keys { paths, case_sensitive, default: None, listed: false })
    }

    fn of(&self, evaluator: &mut Evaluator<'_>, item: &Value) -> Result<Value> {
        let mut keys = Items::with_capacity(&evaluator.meter, self.paths.len())?;
        if self.paths.is_empty() {
            return self.folded(evaluator, item.clone());
        }
        for path in &self.paths {
            let mut key = path.follow(evaluator, item)?;
            if let (true, Some(default)) = (key.is_undefined(), &self.default) {
                key = default.clone();
            }
            keys.push(self.folded(evaluator, key)?)?;
        }
        match keys.values() {
            [key] if !self.listed => Ok(key.clone()),
            _ => keys.list(),
        }
    }

    fn folded(&self, evaluator: &Evaluator<'_>, key: Value) -> Result<Value> {
        match &key {
            Value::Str(text) if !self.case_sensitive => Ok(Value::Str(lowered(&evaluator.meter, text)?)),
            _ => Ok(key),
        }
    }

    /// The keys of all elements.
    fn all(&self, evaluator: &mut Evaluator<'_>, items: &[Value]) -> Result<Items> {
        let mut keys = Items::with_capacity(&evaluator.meter, items.len())?;
        for item in items {
            let key = self.of(evaluator, item)?;
            keys.push(key)?;
        }
        Ok(keys)
    }
}

/// Elements in the order of their keys.
fn sorted(evaluator: &mut Evaluator<'_>, items: &[Value], keys: &Items, reverse: bool) -> Result<Items> {
    let keys = keys.values();
    let meter = &evaluator.meter;
    let order = sort_by(meter, items.len(), |a, b| {
        if reverse { less(meter, &keys[b], &keys[a]) } else { less(meter, &keys[a], &keys[b]) }
    })?;
    let mut result = Items::with_capacity(meter, items.len())?;
    for at in order {
        result.push(items[at].clone())?;
    }
    Ok(result)
}

/// `sort(reverse, case_sensitive, attribute)`.
pub(super) fn sort(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let mut by = Keys::new(evaluator, attribute, flag(case_sensitive.as_ref()))?;
    by.listed = true;
    let items = value.iterate(&evaluator.meter)?;
    let keys = by.all(evaluator, items.items())?;
    sorted(evaluator, items.items(), &keys, flag(reverse.as_ref()))?.list()
}

/// `dictsort(case_sensitive, by, reverse)`.
pub(super) fn dictsort(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    evaluator.defined(&value)?;
    let Value::Dict(dict) = &value else { return Err(Error::value("dictsort needs a dict")) };
    let place = match by.as_ref().and_then(Value::as_str).unwrap_or("key") {
        "key" => 0,
        "value" => 1,
        _ => return Err(Error::value("dictsort sorts by \"key\" or \"value\"")),
    };
    let mut keys = Keys::new(evaluator, None, flag(case_sensitive.as_ref()))?;
    keys.paths.push(Path::Key(Value::Int(place)));
    let Value::Seq(pairs) = crate::methods::pairs(evaluator, dict, SeqKind::List)? else {
        return Ok(Value::None);
    };
    let found = keys.all(evaluator, pairs.items())?;
    sorted(evaluator, pairs.items(), &found, flag(reverse.as_ref()))?.list()
}

/// `groupby(attribute, default, case_sensitive)`: pairs of a key and the elements that have it, in the order of keys.
pub(super) fn groupby(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    if attribute.is_none() {
        return Err(Error::value("groupby needs an attribute"));
    }
    let mut by = Keys::new(evaluator, attribute, flag(case_sensitive.as_ref()))?;
    by.default = default.filter(|default| !matches!(default, Value::None));
    let items = value.iterate(&evaluator.meter)?;
    let keys = by.all(evaluator, items.items())?;
    let ordered = sorted(evaluator, items.items(), &keys, false)?;
    by.case_sensitive |= keys.values().iter().all(|key| key.as_text().is_none());
    let mut groups = Items::new(&evaluator.meter)?;
    let mut at = 0;
    while let Some(first) = ordered.values().get(at) {
        let key = by.of(evaluator, first)?;
        let mut group = Items::new(&evaluator.meter)?;
        while let Some(item) = ordered.values().get(at) {
            let other = by.of(evaluator, item)?;
            if !equal(&evaluator.meter, &key, &other)? {
                break;
            }
            group.push(item.clone())?;
            at += 1;
        }
        let written = Keys {
            paths: std::mem::take(&mut by.paths),
            case_sensitive: true,
            default: by.default.clone(),
            listed: false,
        };
        let shown = written.of(evaluator, first)?;
        by.paths = written.paths;
        let mut pair = Items::with_capacity(&evaluator.meter, 2)?;
        pair.push(shown)?;
        pair.push(group.list()?)?;
        groups.push(pair.of_kind(SeqKind::Group)?)?;
    }
    groups.list()
}

/// `unique(case_sensitive, attribute)`: the first of equal elements.
pub(super) fn unique(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let by = Keys::new(evaluator, attribute, flag(case_sensitive.as_ref()))?;
    let items = value.iterate(&evaluator.meter)?;
    let mut seen = Items::new(&evaluator.meter)?;
    let mut result = Items::new(&evaluator.meter)?;
    'items: for item in items.items() {
        let key = by.of(evaluator, item)?;
        for other in seen.values() {
            if equal(&evaluator.meter, other, &key)? {
                continue 'items;
            }
        }
        seen.push(key)?;
        result.push(item.clone())?;
    }
    result.of_kind(SeqKind::Generator)
}

/// `min(case_sensitive, attribute)`.
pub(super) fn min(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    extreme(evaluator, &value, args.bind("min", ["case_sensitive", "attribute"])?, false)
}

/// `max(case_sensitive, attribute)`.
pub(super) fn max(evaluator: &mut Evaluator<'_>, value: Value, args: Args) -> Result<Value> {
    extreme(evaluator, &value, args.bind("max", ["case_sensitive", "attribute"])?, true)
}

fn extreme(
    evaluator: &mut Evaluator<'_>,
    value: &Value,
    [case_sensitive, attribute]: [Option<Value>; 2],
    largest: bool,
) -> Result<Value> {
    let by = Keys::new(evaluator, attribute, flag(case_sensitive.as_ref()))?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.iterate(&evaluator.meter)?.items() {
        let key = by.of(evaluator, item)?;
        evaluator.defined(&key)?;
        let better = match &best {
            None => true,
            Some((other, _)) if largest => less(&evaluator.meter, other, &key)?,
            Some((other, _)) => less(&evaluator.meter, &key, other)?,
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined(Missing::Element), |(_, item)| item))
}
