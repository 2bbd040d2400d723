//! Filters that sort, group and compare elements.

use super::arguments::{AttributePath, flag};
use crate::error::{Error, Result};
use crate::methods::lowered;
use crate::runtime::{Args, Runtime};
use crate::value::{SeqBuilder, SeqKind, UndefinedOrigin, Value, equal, less, sort_by};

/// The key by which elements are compared.
struct SortKeys {
    paths: Vec<AttributePath>,
    case_sensitive: bool,
    default: Option<Value>,
    /// Whether the key is a list even for a single path. Jinja2's `sort` compares lists
    /// (`make_multi_attrgetter`), the other filters single values.
    listed: bool,
}

impl SortKeys {
    fn new(runtime: &Runtime<'_>, attribute: Option<Value>, case_sensitive: bool) -> Result<SortKeys> {
        let mut paths = Vec::new();
        match &attribute {
            None | Some(Value::None) => {}
            Some(Value::Str(text)) => {
                for part in text.as_str().split(',') {
                    // Each path is followed per element; the limit keeps a long attribute string
                    // from multiplying the work.
                    if paths.len() == 16 {
                        return Err(Error::limit("sorting by more than 16 attributes"));
                    }
                    paths.push(AttributePath::new(runtime, &Value::string(&runtime.meter, part)?)?);
                }
            }
            Some(other) => paths.push(AttributePath::new(runtime, other)?),
        }
        Ok(SortKeys { paths, case_sensitive, default: None, listed: false })
    }

    fn of(&self, runtime: &mut Runtime<'_>, item: &Value) -> Result<Value> {
        let mut keys = SeqBuilder::with_capacity(&runtime.meter, self.paths.len())?;
        if self.paths.is_empty() {
            return self.folded(runtime, item.clone());
        }
        for path in &self.paths {
            let mut key = path.follow(runtime, item)?;
            if let (true, Some(default)) = (key.is_undefined(), &self.default) {
                key = default.clone();
            }
            keys.push(self.folded(runtime, key)?)?;
        }
        match keys.values() {
            [key] if !self.listed => Ok(key.clone()),
            _ => keys.list(),
        }
    }

    fn folded(&self, runtime: &Runtime<'_>, key: Value) -> Result<Value> {
        match &key {
            Value::Str(text) if !self.case_sensitive => Ok(Value::Str(lowered(&runtime.meter, text)?)),
            _ => Ok(key),
        }
    }

    /// Computes the keys of all elements once, before sorting.
    fn all(&self, runtime: &mut Runtime<'_>, items: &[Value]) -> Result<SeqBuilder> {
        let mut keys = SeqBuilder::with_capacity(&runtime.meter, items.len())?;
        for item in items {
            let key = self.of(runtime, item)?;
            keys.push(key)?;
        }
        Ok(keys)
    }
}

/// Sorts elements by their keys.
fn sorted(
    runtime: &mut Runtime<'_>,
    items: &[Value],
    keys: &SeqBuilder,
    reverse: bool,
) -> Result<SeqBuilder> {
    let keys = keys.values();
    let meter = &runtime.meter;
    let order = sort_by(meter, items.len(), |a, b| {
        // Swapping the operands keeps equal elements in their order, as Python's `reverse=True`
        // does. Reversing the result would not.
        if reverse { less(meter, &keys[b], &keys[a]) } else { less(meter, &keys[a], &keys[b]) }
    })?;
    let mut result = SeqBuilder::with_capacity(meter, items.len())?;
    for at in order {
        result.push(items[at].clone())?;
    }
    Ok(result)
}

/// `sort(reverse, case_sensitive, attribute)`.
pub(super) fn sort(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [reverse, case_sensitive, attribute] =
        args.bind("sort", ["reverse", "case_sensitive", "attribute"])?;
    let mut by = SortKeys::new(runtime, attribute, flag(case_sensitive.as_ref()))?;
    by.listed = true;
    let items = value.iterate(&runtime.meter)?;
    let keys = by.all(runtime, items.items())?;
    sorted(runtime, items.items(), &keys, flag(reverse.as_ref()))?.list()
}

/// `dictsort(case_sensitive, by, reverse)`.
pub(super) fn dictsort(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [case_sensitive, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"])?;
    runtime.defined(&value)?;
    let Value::Dict(dict) = &value else { return Err(Error::value("dictsort needs a dict")) };
    let place = match by.as_ref().and_then(Value::as_str).unwrap_or("key") {
        "key" => 0,
        "value" => 1,
        _ => return Err(Error::value("dictsort sorts by \"key\" or \"value\"")),
    };
    let mut keys = SortKeys::new(runtime, None, flag(case_sensitive.as_ref()))?;
    // The index in a pair.
    keys.paths.push(AttributePath::Key(Value::Int(place)));
    let Value::Seq(pairs) = crate::methods::pairs(runtime, dict, SeqKind::List)? else {
        // Not reached: `pairs` returns a sequence.
        return Ok(Value::None);
    };
    let found = keys.all(runtime, pairs.items())?;
    sorted(runtime, pairs.items(), &found, flag(reverse.as_ref()))?.list()
}

/// `groupby(attribute, default, case_sensitive)`: pairs of a key and its elements, sorted by key.
pub(super) fn groupby(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [attribute, default, case_sensitive] =
        args.bind("groupby", ["attribute", "default", "case_sensitive"])?;
    if attribute.is_none() {
        return Err(Error::value("groupby needs an attribute"));
    }
    let mut by = SortKeys::new(runtime, attribute, flag(case_sensitive.as_ref()))?;
    by.default = default.filter(|default| !matches!(default, Value::None));
    let items = value.iterate(&runtime.meter)?;
    let keys = by.all(runtime, items.items())?;
    let ordered = sorted(runtime, items.items(), &keys, false)?;
    // Without string keys, folding is the identity.
    by.case_sensitive |= keys.values().iter().all(|key| key.as_text().is_none());
    let mut groups = SeqBuilder::new(&runtime.meter)?;
    let mut at = 0;
    while let Some(first) = ordered.values().get(at) {
        // Keys are recomputed for the sorted elements instead of being permuted with them.
        let key = by.of(runtime, first)?;
        let mut group = SeqBuilder::new(&runtime.meter)?;
        while let Some(item) = ordered.values().get(at) {
            let other = by.of(runtime, item)?;
            if !equal(&runtime.meter, &key, &other)? {
                break;
            }
            group.push(item.clone())?;
            at += 1;
        }
        // The key shown for a group has the case of its first element.
        let written = SortKeys {
            paths: std::mem::take(&mut by.paths),
            case_sensitive: true,
            default: by.default.clone(),
            listed: false,
        };
        let shown = written.of(runtime, first)?;
        by.paths = written.paths;
        let mut pair = SeqBuilder::with_capacity(&runtime.meter, 2)?;
        pair.push(shown)?;
        pair.push(group.list()?)?;
        groups.push(pair.of_kind(SeqKind::Group)?)?;
    }
    groups.list()
}

/// `unique(case_sensitive, attribute)`: the first of each set of equal elements.
pub(super) fn unique(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    let [case_sensitive, attribute] = args.bind("unique", ["case_sensitive", "attribute"])?;
    let by = SortKeys::new(runtime, attribute, flag(case_sensitive.as_ref()))?;
    let items = value.iterate(&runtime.meter)?;
    let mut seen = SeqBuilder::new(&runtime.meter)?;
    let mut result = SeqBuilder::new(&runtime.meter)?;
    'items: for item in items.items() {
        let key = by.of(runtime, item)?;
        // Quadratic in the number of elements. `equal` charges the meter for each comparison.
        for other in seen.values() {
            if equal(&runtime.meter, other, &key)? {
                continue 'items;
            }
        }
        seen.push(key)?;
        result.push(item.clone())?;
    }
    result.of_kind(SeqKind::Generator)
}

/// `min(case_sensitive, attribute)`.
pub(super) fn min(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    extreme(runtime, &value, args.bind("min", ["case_sensitive", "attribute"])?, false)
}

/// `max(case_sensitive, attribute)`.
pub(super) fn max(runtime: &mut Runtime<'_>, value: Value, args: Args) -> Result<Value> {
    extreme(runtime, &value, args.bind("max", ["case_sensitive", "attribute"])?, true)
}

fn extreme(
    runtime: &mut Runtime<'_>,
    value: &Value,
    [case_sensitive, attribute]: [Option<Value>; 2],
    largest: bool,
) -> Result<Value> {
    let by = SortKeys::new(runtime, attribute, flag(case_sensitive.as_ref()))?;
    let mut best: Option<(Value, Value)> = None;
    for item in value.iterate(&runtime.meter)?.items() {
        let key = by.of(runtime, item)?;
        runtime.defined(&key)?;
        // Strict comparisons keep the first of equal elements, as Python's min and max do.
        let better = match &best {
            None => true,
            Some((other, _)) if largest => less(&runtime.meter, other, &key)?,
            Some((other, _)) => less(&runtime.meter, &key, other)?,
        };
        if better {
            best = Some((key, item.clone()));
        }
    }
    Ok(best.map_or(Value::Undefined(UndefinedOrigin::Element), |(_, item)| item))
}
