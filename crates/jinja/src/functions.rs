//! Global functions: Jinja2's `range`, `namespace` and `dict`, and the two that transformers adds.

use crate::error::{Error, ErrorKind, Result};
use crate::runtime::{Args, Runtime};
use crate::text::TemplateString;
use crate::value::{DictBuilder, Function, NamespaceObject, RangeBounds, SeqBuilder, Value};

/// Names of the functions.
pub(crate) const TABLE: [(&str, Function); 5] = [
    ("range", Function::Range),
    ("namespace", Function::Namespace),
    ("dict", Function::Dict),
    ("raise_exception", Function::RaiseException),
    ("strftime_now", Function::StrftimeNow),
];

/// Maximum length of a range (`MAX_RANGE` of Jinja2's sandbox).
const MAX_RANGE: i128 = 100_000;

/// Maximum length of a date format in bytes.
const MAX_DATE_FORMAT: usize = 256;

#[inline(never)]
pub(crate) fn call(runtime: &mut Runtime<'_>, function: Function, args: Args) -> Result<Value> {
    match function {
        Function::Range => range(runtime, args),
        // Assignments do not leave a loop's scope, so templates carry state out of loops in a
        // namespace (DeepSeek-V3.1, GLM-4.6, GigaChat3).
        Function::Namespace => namespace(runtime, args),
        Function::Dict => dict(runtime, args),
        Function::RaiseException => {
            let [message] = args.bind("raise_exception", ["message"])?;
            let message = match message {
                Some(message) => runtime.to_text(&message)?,
                None => TemplateString::trusted(&runtime.meter, "raise_exception")?,
            };
            Err(Error::new(ErrorKind::Raised, message.as_str()))
        }
        Function::StrftimeNow => {
            let [format] = args.bind("strftime_now", ["format"])?;
            let Some(Value::Str(format)) = format else {
                return Err(Error::value("strftime_now needs a format"));
            };
            if format.len() > MAX_DATE_FORMAT {
                return Err(Error::limit(format!(
                    "the format of strftime_now has {} bytes, more than the limit of {MAX_DATE_FORMAT}",
                    format.len()
                )));
            }
            let text = (runtime.now)(format.as_str()).map_err(Error::value)?;
            // A format repeats its own text: one from a message must not become control tokens.
            let content = format.runs().any(|(_, content)| content);
            Ok(Value::Str(TemplateString::from_str(&runtime.meter, &text, content)?))
        }
    }
}

fn range(runtime: &Runtime<'_>, args: Args) -> Result<Value> {
    let mut numbers = [0; 3];
    let count = args.positional.len();
    if !args.named.is_empty() || count == 0 || count > 3 {
        return Err(Error::value("range takes one to three integers"));
    }
    for (number, value) in numbers.iter_mut().zip(&args.positional) {
        runtime.defined(value)?;
        *number = value.as_int().ok_or_else(|| Error::value("range takes one to three integers"))?;
    }
    let [first, second, third] = numbers;
    let (start, end) = if count == 1 { (0, first) } else { (first, second) };
    // Kimi-K2-Thinking walks the messages backward: `range(messages|length-1, -1, -1)`.
    let step = if count == 3 { third } else { 1 };
    if step == 0 {
        return Err(Error::value("range() with step 0"));
    }
    // The bounds are 128-bit numbers of the template, so that differences can overflow. A saturated
    // span still exceeds MAX_RANGE.
    let span = if step > 0 { end.saturating_sub(start) } else { start.saturating_sub(end) };
    // |i128::MIN| is not an i128.
    let width = i128::try_from(step.unsigned_abs()).unwrap_or(i128::MAX);
    let length = if span <= 0 { 0 } else { (span - 1) / width + 1 };
    if length > MAX_RANGE {
        return Err(Error::limit(format!("range() is too long: {length} numbers, the limit is {MAX_RANGE}")));
    }
    let mut items = SeqBuilder::with_capacity(&runtime.meter, length as usize)?;
    for n in 0..length {
        items.push(Value::Int(start + n * step))?;
    }
    // A range is materialized: at most MAX_RANGE values, and every consumer can use a slice.
    items.range(RangeBounds { start, end, step })
}

fn namespace(runtime: &mut Runtime<'_>, args: Args) -> Result<Value> {
    // Reserve without a charge to release: namespaces live as long as the rendering.
    let place = size_of::<(TemplateString, Value)>();
    runtime.meter.reserve(2 * size_of::<NamespaceObject>())?;
    let dict = dict(runtime, args)?;
    let mut space = NamespaceObject::default();
    if let Value::Dict(dict) = &dict {
        for (key, value) in dict.entries() {
            let Value::Str(name) = key else { continue };
            runtime.meter.reserve(2 * place)?;
            space.entries.push((name.clone(), value.clone()));
        }
    }
    runtime.spaces.push(space);
    Ok(Value::Namespace(runtime.spaces.len() as u32 - 1))
}

fn dict(runtime: &Runtime<'_>, args: Args) -> Result<Value> {
    let mut entries = DictBuilder::new(&runtime.meter)?;
    if args.positional.len() > 1 {
        return Err(Error::value("dict takes at most one value, and named values"));
    }
    if let Some(first) = args.positional.first() {
        runtime.defined(first)?;
        match first {
            // The keys of a dictionary are distinct, so no search is needed.
            Value::Dict(dict) => {
                for (key, value) in dict.entries() {
                    entries.append(key.clone(), value.clone())?;
                }
            }
            other => {
                for pair in other.iterate(&runtime.meter)?.items() {
                    let pair = pair.iterate(&runtime.meter)?;
                    let [key, value] = pair.items() else {
                        return Err(Error::value("dict needs pairs of a key and a value"));
                    };
                    entries.insert(key.clone(), value.clone())?;
                }
            }
        }
    }
    for (name, value) in args.named {
        entries.insert(Value::Str(name), value)?;
    }
    Ok(entries.finish())
}
