//! Cost bound of combining schemas, computed before llguidance combines them.
//!
//! llguidance normalizes a schema to a form without `allOf` and without siblings of `anyOf` and
//! `$ref`. It intersects them, copies one side for each alternative of the other, and checks for
//! each string whether its patterns exclude each other. Its limits on this work are too large for
//! a server. This module performs the same steps first, on a reduced form that keeps only what
//! costs time, and stops when the budget is spent.

use super::check::WHAT;
use super::trivial::NOTES;
use crate::cost::{DerivativeSpread, DerivativeSpreads, MAX_PAIRS, cost, too_many_pairs};
use crate::error::{GrammarError, shorten};
use crate::limits::Budget;
use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::derivre::{Regex, RegexBuilder};
use llguidance::regex_to_lark;
use serde_json::{Map, Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::rc::Rc;

/// Maximum number of pairs in all strings of a schema. llguidance checks each string.
const MAX_SUM: u64 = 8 * MAX_PAIRS;

/// Maximum nesting of intersections: llguidance's `max_stack_level`.
const MAX_LEVELS: usize = 128;

/// Largest `multipleOf` in units of its last decimal place. derivre multiplies a remainder, which
/// is smaller than the divisor, by ten in u32.
const MAX_MULTIPLE: u64 = 400_000_000;

/// Maximum number of decimal places of `multipleOf`. derivre multiplies a digit by this power of
/// ten in u32.
const MAX_PLACES: u32 = 8;

/// Keywords that apply other schemas to the same instance.
const APPLICATORS: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];

/// A schema, reduced to what determines the cost of combining it.
#[derive(Clone)]
enum SchemaShape {
    Any,
    Never,
    /// Null or a boolean.
    Plain(&'static str),
    /// `multipleOf`, as a coefficient and a number of decimal places.
    Number(Option<(u64, u32)>),
    Text(TextShape),
    Array {
        prefix: Vec<SchemaShape>,
        items: Option<Box<SchemaShape>>,
    },
    Object(Box<ObjectShape>),
    Options(Vec<SchemaShape>),
    Reference(String),
}

#[derive(Clone, Default)]
struct TextShape {
    /// Indices of patterns, formats and literals in `Builder::parts`.
    parts: BTreeSet<usize>,
    /// Whether its length is bounded.
    length: bool,
}

#[derive(Clone, Default)]
struct ObjectShape {
    properties: Vec<(String, SchemaShape)>,
    patterns: Vec<(String, SchemaShape)>,
    additional: Option<SchemaShape>,
    required: usize,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum StringCondition {
    Pattern(String),
    Format(String),
    Literal(String),
}

impl SchemaShape {
    fn size(&self) -> u64 {
        1 + match self {
            SchemaShape::Any
            | SchemaShape::Never
            | SchemaShape::Plain(_)
            | SchemaShape::Number(_)
            | SchemaShape::Reference(_) => 0,
            SchemaShape::Text(text) => text.parts.len() as u64,
            SchemaShape::Array { prefix, items } => {
                prefix.iter().chain(items.as_deref()).map(SchemaShape::size).sum::<u64>()
            }
            SchemaShape::Object(object) => {
                let named =
                    object.properties.iter().chain(&object.patterns).map(|(_, shape)| 1 + shape.size());
                named.sum::<u64>()
                    + object.additional.as_ref().map_or(0, SchemaShape::size)
                    + object.required as u64
            }
            SchemaShape::Options(options) => options.iter().map(SchemaShape::size).sum(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            SchemaShape::Any => "any",
            SchemaShape::Never => "never",
            SchemaShape::Plain(kind) => kind,
            SchemaShape::Number(_) => "number",
            SchemaShape::Text(_) => "string",
            SchemaShape::Array { .. } => "array",
            SchemaShape::Object(_) => "object",
            SchemaShape::Options(_) => "options",
            SchemaShape::Reference(_) => "reference",
        }
    }
}

/// Combines alternatives and flattens nested ones.
fn options(all: Vec<SchemaShape>) -> SchemaShape {
    let mut flat = Vec::with_capacity(all.len());
    for option in all {
        match option {
            SchemaShape::Never => {}
            SchemaShape::Options(inner) => flat.extend(inner),
            option => flat.push(option),
        }
    }
    match flat.len() {
        0 => SchemaShape::Never,
        1 => flat.swap_remove(0),
        _ => SchemaShape::Options(flat),
    }
}

/// Refuses a schema whose combination costs too much.
pub(super) fn check(schema: &Value, budget: &Budget) -> Result<(), GrammarError> {
    let mut builder = Builder {
        root: schema,
        budget,
        parts: Vec::new(),
        numbers: HashMap::new(),
        spreads: HashMap::new(),
        matchers: HashMap::new(),
        definitions: HashMap::new(),
        seen: HashSet::new(),
        costs: HashMap::new(),
        pairs: 0,
    };
    let shape = builder.build(schema)?;
    // Strings are checked in the normalized form only, where each is the intersection of all
    // schemas that apply to it.
    let mut open = vec![shape];
    let mut done = HashSet::new();
    while let Some(shape) = open.pop() {
        builder.budget.spend(1)?;
        match shape {
            SchemaShape::Text(text) => builder.check_text(&text)?,
            SchemaShape::Array { prefix, items } => {
                open.extend(prefix);
                open.extend(items.map(|items| *items));
            }
            SchemaShape::Object(object) => {
                let ObjectShape { properties, patterns, additional, .. } = *object;
                open.extend(properties.into_iter().chain(patterns).map(|(_, shape)| shape));
                open.extend(additional);
            }
            SchemaShape::Options(options) => open.extend(options),
            SchemaShape::Reference(target) => {
                // Once per target: references may be recursive.
                if done.insert(target.clone()) {
                    open.extend(builder.definitions.remove(&target));
                }
            }
            SchemaShape::Any | SchemaShape::Never | SchemaShape::Plain(_) | SchemaShape::Number(_) => {}
        }
    }
    Ok(())
}

struct Builder<'a> {
    root: &'a Value,
    budget: &'a Budget,
    parts: Vec<StringCondition>,
    numbers: HashMap<StringCondition, usize>,
    spreads: HashMap<usize, Rc<DerivativeSpread>>,
    matchers: HashMap<String, Regex>,
    definitions: HashMap<String, SchemaShape>,
    seen: HashSet<String>,
    /// Pairs of the intersections seen so far, by their parts and whether the length is bounded.
    costs: HashMap<(BTreeSet<usize>, bool), u64>,
    pairs: u64,
}

fn invalid(problem: String) -> GrammarError {
    GrammarError::Invalid { what: WHAT, problem }
}

impl Builder<'_> {
    fn build(&mut self, schema: &Value) -> Result<SchemaShape, GrammarError> {
        self.budget.spend(1)?;
        let object = match schema {
            Value::Object(object) => object,
            Value::Bool(false) => return Ok(SchemaShape::Never),
            _ => return Ok(SchemaShape::Any),
        };
        let mut result = SchemaShape::Any;
        let mut current = Map::new();
        for (key, value) in object {
            let key = key.as_str();
            // In the order of the keywords, as llguidance does, because the order decides what is
            // copied.
            if APPLICATORS.contains(&key) {
                result = self.flush(result, &mut current, object)?;
                result = self.apply(result, key, value)?;
            } else if !NOTES.contains(&key) {
                current.insert(key.to_owned(), Value::Null);
            }
        }
        self.flush(result, &mut current, object)
    }

    /// Intersects `result` with the keywords in `current`, which are not applicators.
    fn flush(
        &mut self,
        result: SchemaShape,
        current: &mut Map<String, Value>,
        object: &Map<String, Value>,
    ) -> Result<SchemaShape, GrammarError> {
        if current.is_empty() {
            return Ok(result);
        }
        let named = |name: &str| current.contains_key(name).then(|| object.get(name)).flatten();
        let types: Vec<&str> = match object.get("type") {
            Some(Value::String(name)) => vec![name],
            Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
            // Without `type`, the other keywords still apply to values of their own type only.
            _ => TYPES.to_vec(),
        };
        let mut all = Vec::with_capacity(types.len());
        for name in types {
            self.budget.spend(1)?;
            all.push(match name {
                "null" => SchemaShape::Plain("null"),
                "boolean" => SchemaShape::Plain("boolean"),
                "number" | "integer" => SchemaShape::Number(match named("multipleOf") {
                    Some(multiple) => Some(decimal(multiple)?),
                    None => None,
                }),
                "string" => self.text(named("pattern"), named("format"), {
                    named("minLength").and_then(Value::as_u64).is_some_and(|least| least > 0)
                        || named("maxLength").is_some()
                })?,
                "array" => {
                    // Up to draft 2019-09 a list in `items` is a tuple and `additionalItems`
                    // follows it. Since 2020-12 these are `prefixItems` and `items`.
                    let items = named("items").filter(|items| !items.is_array());
                    let prefix = named("items").and_then(Value::as_array);
                    let prefix = prefix.or(named("prefixItems").and_then(Value::as_array));
                    let rest = items.or(named("additionalItems"));
                    let prefix = prefix.map_or(&[][..], Vec::as_slice);
                    let prefix = prefix.iter().map(|item| self.build(item)).collect::<Result<_, _>>()?;
                    let items = rest.map(|items| self.build(items)).transpose()?.map(Box::new);
                    SchemaShape::Array { prefix, items }
                }
                "object" => {
                    let [properties, patterns, additional, required] =
                        ["properties", "patternProperties", "additionalProperties", "required"].map(named);
                    self.object(properties, patterns, additional, required)?
                }
                _ => SchemaShape::Never,
            });
        }
        current.clear();
        let built = if all.len() == 1 { all.swap_remove(0) } else { options(all) };
        self.meet(result, built, 0)
    }

    fn text(
        &mut self,
        pattern: Option<&Value>,
        format: Option<&Value>,
        length: bool,
    ) -> Result<SchemaShape, GrammarError> {
        let mut text = TextShape { length, ..TextShape::default() };
        if let Some(pattern) = pattern.and_then(Value::as_str) {
            text.parts.insert(self.part(StringCondition::Pattern(pattern.to_owned()))?);
        }
        if let Some(format) = format.and_then(Value::as_str) {
            text.parts.insert(self.part(StringCondition::Format(format.to_owned()))?);
        }
        Ok(SchemaShape::Text(text))
    }

    fn object(
        &mut self,
        properties: Option<&Value>,
        patterns: Option<&Value>,
        additional: Option<&Value>,
        required: Option<&Value>,
    ) -> Result<SchemaShape, GrammarError> {
        let mut named = |map: Option<&Value>| -> Result<Vec<(String, SchemaShape)>, GrammarError> {
            let Some(map) = map.and_then(Value::as_object) else { return Ok(Vec::new()) };
            map.iter().map(|(name, schema)| Ok((name.clone(), self.build(schema)?))).collect()
        };
        let (mut properties, patterns) = (named(properties)?, named(patterns)?);
        for (pattern, _) in &patterns {
            self.part(StringCondition::Pattern(pattern.clone()))?;
        }
        self.check_disjoint(&patterns)?;
        if !patterns.is_empty() {
            for (name, shape) in &mut properties {
                // A property that matches a pattern must satisfy both schemas.
                if let Some(of_pattern) = self.matching(&patterns, name)? {
                    let of_pattern = self.copy(of_pattern)?;
                    let own = std::mem::replace(shape, SchemaShape::Never);
                    *shape = self.meet(own, of_pattern, 0)?;
                }
            }
        }
        let additional = additional.map(|schema| self.build(schema)).transpose()?;
        let required = required.and_then(Value::as_array).map_or(0, Vec::len);
        self.budget.spend(required as u64 / 4)?;
        Ok(SchemaShape::Object(Box::new(ObjectShape { properties, patterns, additional, required })))
    }

    fn apply(&mut self, result: SchemaShape, key: &str, value: &Value) -> Result<SchemaShape, GrammarError> {
        let list = value.as_array().map_or(&[][..], Vec::as_slice);
        match key {
            "const" => {
                let shape = self.constant(value)?;
                self.meet(result, shape, 0)
            }
            "enum" => {
                let all = list.iter().map(|value| self.constant(value)).collect::<Result<_, _>>()?;
                self.meet(result, options(all), 0)
            }
            "allOf" => {
                let mut result = result;
                for schema in list {
                    let shape = self.build(schema)?;
                    result = self.meet(result, shape, 0)?;
                }
                Ok(result)
            }
            "anyOf" | "oneOf" => {
                let all: Vec<SchemaShape> =
                    list.iter().map(|schema| self.build(schema)).collect::<Result<_, _>>()?;
                // `anyOf` with a schema that allows everything does not restrict the instance.
                // `oneOf` still excludes the others.
                if key == "anyOf" && all.iter().any(|shape| matches!(shape, SchemaShape::Any)) {
                    return Ok(result);
                }
                self.meet(result, options(all), 0)
            }
            _ => {
                let Some(target) = value.as_str() else { return Ok(result) };
                self.define(target)?;
                // A reference without siblings stays a reference, so that recursive schemas end
                // here.
                if matches!(result, SchemaShape::Any) {
                    return Ok(SchemaShape::Reference(target.to_owned()));
                }
                self.meet(result, SchemaShape::Reference(target.to_owned()), 0)
            }
        }
    }

    fn constant(&mut self, value: &Value) -> Result<SchemaShape, GrammarError> {
        self.budget.spend(1)?;
        Ok(match value {
            Value::Null => SchemaShape::Plain("null"),
            Value::Bool(_) => SchemaShape::Plain("boolean"),
            Value::Number(_) => SchemaShape::Number(None),
            Value::String(text) => {
                let part = self.part(StringCondition::Literal(text.clone()))?;
                SchemaShape::Text(TextShape { parts: BTreeSet::from([part]), length: false })
            }
            Value::Array(items) => {
                let prefix = items.iter().map(|item| self.constant(item)).collect::<Result<_, _>>()?;
                SchemaShape::Array { prefix, items: Some(Box::new(SchemaShape::Never)) }
            }
            Value::Object(members) => {
                let member = |(name, value): (&String, &Value)| Ok((name.clone(), self.constant(value)?));
                let properties = members.iter().map(member).collect::<Result<Vec<_>, GrammarError>>()?;
                let required = properties.len();
                let additional = Some(SchemaShape::Never);
                SchemaShape::Object(Box::new(ObjectShape {
                    properties,
                    patterns: Vec::new(),
                    additional,
                    required,
                }))
            }
        })
    }

    /// Builds the target of a reference, once.
    fn define(&mut self, target: &str) -> Result<(), GrammarError> {
        // Marked before it is built: a recursive reference must not build it again.
        if !self.seen.insert(target.to_owned()) {
            return Ok(());
        }
        let root = self.root;
        let mut schema = Some(root);
        if target != "#" && target != "#/" {
            for segment in target.strip_prefix("#/").unwrap_or(target).split('/') {
                schema = schema.and_then(|schema| match schema {
                    Value::Array(list) => segment.parse::<usize>().ok().and_then(|index| list.get(index)),
                    schema => schema.get(segment),
                });
            }
        }
        // llguidance reports the invalid reference.
        let Some(schema) = schema else { return Ok(()) };
        let shape = self.build(schema)?;
        self.definitions.insert(target.to_owned(), shape);
        Ok(())
    }

    fn resolve(&mut self, target: &str) -> Result<SchemaShape, GrammarError> {
        self.define(target)?;
        let Some(shape) = self.definitions.get(target) else {
            let problem =
                format!("the reference {} is undefined, or circular with sibling keywords", shorten(target));
            return Err(invalid(problem));
        };
        self.copy(shape)
    }

    fn copy(&self, shape: &SchemaShape) -> Result<SchemaShape, GrammarError> {
        // Copies are the exponential part of the normalization, so charge their size.
        self.budget.spend(shape.size())?;
        Ok(shape.clone())
    }

    fn meet(
        &mut self,
        one: SchemaShape,
        other: SchemaShape,
        level: usize,
    ) -> Result<SchemaShape, GrammarError> {
        self.budget.spend(1)?;
        if level > MAX_LEVELS {
            return Err(invalid("its combined schemas nest too deeply".into()));
        }
        Ok(match (one, other) {
            (SchemaShape::Any, shape) | (shape, SchemaShape::Any) => shape,
            (SchemaShape::Never, _) | (_, SchemaShape::Never) => SchemaShape::Never,
            (SchemaShape::Reference(target), shape) | (shape, SchemaShape::Reference(target)) => {
                let resolved = self.resolve(&target)?;
                self.meet(resolved, shape, level + 2)?
            }
            (SchemaShape::Options(all), shape) | (shape, SchemaShape::Options(all)) => {
                let mut met = Vec::with_capacity(all.len());
                for option in all {
                    let shape = self.copy(&shape)?;
                    met.push(self.meet(option, shape, level + 1)?);
                }
                options(met)
            }
            (SchemaShape::Number(one), SchemaShape::Number(other)) => {
                SchemaShape::Number(match (one, other) {
                    (Some(one), Some(other)) => Some(common_multiple(one, other)?),
                    (one, other) => one.or(other),
                })
            }
            (SchemaShape::Text(mut one), SchemaShape::Text(mut other)) => {
                one.parts.append(&mut other.parts);
                one.length |= other.length;
                SchemaShape::Text(one)
            }
            (
                SchemaShape::Array { mut prefix, items },
                SchemaShape::Array { prefix: mut second, items: rest },
            ) => {
                let len = prefix.len().max(second.len());
                for (prefix, items) in [(&mut prefix, &items), (&mut second, &rest)] {
                    while prefix.len() < len {
                        prefix.push(items.as_deref().map_or(Ok(SchemaShape::Any), |items| self.copy(items))?);
                    }
                }
                let mut met = Vec::with_capacity(len);
                for (one, other) in prefix.into_iter().zip(second) {
                    met.push(self.meet(one, other, level + 1)?);
                }
                let items = match (items, rest) {
                    (Some(one), Some(other)) => Some(Box::new(self.meet(*one, *other, level + 1)?)),
                    (one, other) => one.or(other),
                };
                SchemaShape::Array { prefix: met, items }
            }
            (SchemaShape::Object(one), SchemaShape::Object(other)) => {
                self.meet_objects(*one, *other, level + 1)?
            }
            // Bounds of numbers and the two booleans do not matter for the cost.
            (one, other) if one.kind() == other.kind() => one,
            _ => SchemaShape::Never,
        })
    }

    fn meet_objects(
        &mut self,
        mut one: ObjectShape,
        other: ObjectShape,
        level: usize,
    ) -> Result<SchemaShape, GrammarError> {
        let mut properties: Vec<(String, SchemaShape)> = Vec::with_capacity(one.properties.len());
        let mut names = HashSet::new();
        let of_other: HashMap<&str, &SchemaShape> =
            other.properties.iter().map(|(name, shape)| (name.as_str(), shape)).collect();
        for (name, shape) in std::mem::take(&mut one.properties) {
            let second = match of_other.get(name.as_str()) {
                Some(second) => Some(*second),
                None => self.property(&other, &name)?,
            };
            let second = second.map_or(Ok(SchemaShape::Any), |second| self.copy(second))?;
            names.insert(name.clone());
            properties.push((name, self.meet(shape, second, level)?));
        }
        let mut rest = Vec::new();
        for (name, shape) in other.properties {
            if names.contains(&name) {
                continue;
            }
            let first = self.property(&one, &name)?;
            let first = first.map_or(Ok(SchemaShape::Any), |first| self.copy(first))?;
            rest.push((name, self.meet(first, shape, level)?));
        }
        properties.append(&mut rest);
        let mut patterns: Vec<(String, SchemaShape)> = Vec::new();
        let mut of_other = other.patterns;
        for (pattern, shape) in one.patterns {
            let at = of_other.iter().position(|(second, _)| *second == pattern);
            // A pattern that only one object has meets the other's `additionalProperties`.
            let second = match (at, &other.additional) {
                (Some(at), _) => of_other.remove(at).1,
                (None, Some(additional)) => self.copy(additional)?,
                (None, None) => SchemaShape::Any,
            };
            patterns.push((pattern, self.meet(shape, second, level)?));
        }
        for (pattern, shape) in of_other {
            let first = one.additional.as_ref().map_or(Ok(SchemaShape::Any), |first| self.copy(first))?;
            patterns.push((pattern, self.meet(shape, first, level)?));
        }
        self.check_disjoint(&patterns)?;
        let additional = match (one.additional, other.additional) {
            (Some(one), Some(other)) => Some(self.meet(one, other, level)?),
            (one, other) => one.or(other),
        };
        let required = one.required + other.required;
        self.budget.spend(required as u64 / 4)?;
        Ok(SchemaShape::Object(Box::new(ObjectShape { properties, patterns, additional, required })))
    }

    /// The schema that an object applies to a property that it does not name.
    fn property<'o>(
        &mut self,
        object: &'o ObjectShape,
        name: &str,
    ) -> Result<Option<&'o SchemaShape>, GrammarError> {
        let matching = self.matching(&object.patterns, name)?;
        Ok(matching.or(object.additional.as_ref()))
    }

    fn matching<'p>(
        &mut self,
        patterns: &'p [(String, SchemaShape)],
        name: &str,
    ) -> Result<Option<&'p SchemaShape>, GrammarError> {
        for (pattern, shape) in patterns {
            if !self.matchers.contains_key(pattern) {
                let mut builder = RegexBuilder::new();
                // llguidance reports what is wrong with it.
                let Ok(expr) = builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw")) else {
                    return Ok(None);
                };
                self.matchers.insert(pattern.clone(), builder.to_regex(expr));
            }
            let Some(matcher) = self.matchers.get_mut(pattern) else { continue };
            let mut state = matcher.initial_state();
            for byte in name.bytes() {
                // derivre builds states while it matches, and counts that work in `cost`.
                let before = matcher.cost();
                state = matcher.transition(state, byte);
                self.budget.spend(1 + (matcher.cost() - before) / 4)?;
            }
            if matcher.is_accepting(state) {
                return Ok(Some(shape));
            }
        }
        Ok(None)
    }

    /// llguidance checks for every two patterns of properties whether both can match the same name.
    fn check_disjoint(&mut self, patterns: &[(String, SchemaShape)]) -> Result<(), GrammarError> {
        if patterns.len() < 2 {
            return Ok(());
        }
        let parts = patterns.iter().map(|(pattern, _)| self.part(StringCondition::Pattern(pattern.clone())));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        for (at, one) in parts.iter().enumerate() {
            for other in &parts[..at] {
                self.check_text(&TextShape { parts: BTreeSet::from([*one, *other]), length: false })?;
            }
        }
        Ok(())
    }

    fn part(&mut self, part: StringCondition) -> Result<usize, GrammarError> {
        if let Some(number) = self.numbers.get(&part) {
            return Ok(*number);
        }
        if let StringCondition::Pattern(pattern) = &part {
            self.budget.pattern(&regex_to_lark(pattern, "dw"))?;
        }
        self.parts.push(part.clone());
        self.numbers.insert(part, self.parts.len() - 1);
        Ok(self.parts.len() - 1)
    }

    /// Charges a string of the normalized schema.
    fn check_text(&mut self, text: &TextShape) -> Result<(), GrammarError> {
        let literal = text.parts.iter().any(|part| matches!(self.parts[*part], StringCondition::Literal(_)));
        if let [part] = text.parts.iter().collect::<Vec<_>>()[..]
            && let StringCondition::Pattern(pattern) = &self.parts[*part]
        {
            // llguidance parses the pattern again for each occurrence.
            self.budget.spend(pattern.len() as u64 / 4)?;
        }
        if text.parts.len() + usize::from(text.length && !literal) < 2 {
            return Ok(());
        }
        let lengths = text.parts.iter().map(|part| match &self.parts[*part] {
            StringCondition::Pattern(text)
            | StringCondition::Format(text)
            | StringCondition::Literal(text) => text.len() as u64,
        });
        self.budget.spend(lengths.sum::<u64>() / 4)?;
        self.budget.check_strings(if literal { 3 } else { 10 })?;
        // A literal has one pair per state and does not multiply the others.
        let others =
            text.parts.iter().filter(|part| !matches!(self.parts[**part], StringCondition::Literal(_)));
        let key = (others.copied().collect::<BTreeSet<usize>>(), text.length);
        let pairs = match self.costs.get(&key) {
            Some(pairs) => *pairs,
            None => {
                let mut operands =
                    key.0.iter().map(|part| self.spread(*part)).collect::<Result<Vec<_>, _>>()?;
                if text.length {
                    // Any length bound has the same spread, so a short one stands for all.
                    let number = self.part(StringCondition::Pattern("^(?s:.{0,9})$".into()))?;
                    operands.push(self.spread(number)?);
                }
                let pairs = cost(&operands);
                // Many strings of a schema have the same conditions, such as the values of one
                // `$ref`.
                self.costs.insert(key, pairs);
                pairs
            }
        };
        self.pairs = self.pairs.saturating_add(pairs);
        if pairs > MAX_PAIRS || self.pairs > MAX_SUM {
            return Err(too_many_pairs(WHAT, Some(self.pairs)));
        }
        Ok(())
    }

    fn spread(&mut self, number: usize) -> Result<Rc<DerivativeSpread>, GrammarError> {
        if let Some(known) = self.spreads.get(&number) {
            return Ok(Rc::clone(known));
        }
        let spread = match &self.parts[number] {
            StringCondition::Pattern(pattern) => {
                let mut builder = RegexBuilder::new();
                let expr = builder.mk_regex_for_serach(&regex_to_lark(pattern, "dw"));
                let expr = expr.map_err(|error| crate::error::read_message(WHAT, &format!("{error:#}")))?;
                DerivativeSpreads::new(builder.exprset()).of(expr)
            }
            StringCondition::Literal(text) => {
                let mut builder = RegexBuilder::new();
                let expr = builder.mk(&llguidance::derivre::RegexAst::Literal(text.clone()));
                let expr = expr.map_err(|error| invalid(error.to_string()))?;
                DerivativeSpreads::new(builder.exprset()).of(expr)
            }
            StringCondition::Format(name) => spread_of_format(name),
        };
        let spread = spread.ok_or_else(|| too_many_pairs(WHAT, None))?;
        self.spreads.insert(number, Rc::clone(&spread));
        Ok(spread)
    }
}

/// Spread of a format. llguidance does not export the patterns of formats, so compile a schema with
/// the format and take its last expression.
fn spread_of_format(name: &str) -> Option<Rc<DerivativeSpread>> {
    let schema = json!({"type": "string", "format": name});
    let grammar = GrammarWithLexer::from_json_schema(schema);
    let top = TopLevelGrammar { grammars: vec![grammar], max_tokens: None };
    let limits = ParserLimits { verbose_errors: false, ..ParserLimits::default() };
    let (_, spec) = GrammarInit::Serialized(top).to_internal(None, limits).ok()?;
    let exprs = spec.regex_builder.exprset();
    let last = llguidance::derivre::ExprRef::new(exprs.len() as u32 - 1);
    DerivativeSpreads::new(exprs).of(last)
}

/// Splits `multipleOf` into a whole number and a number of decimal places.
fn decimal(value: &Value) -> Result<(u64, u32), GrammarError> {
    let too_fine = || {
        let problem = format!(
            "`multipleOf` {} is not supported: expected at most {MAX_MULTIPLE} in units of its last decimal \
             place, and at most {MAX_PLACES} places",
            shorten(&value.to_string())
        );
        invalid(problem)
    };
    // llguidance reports what is wrong with it.
    let Some(number) = value.as_f64() else { return Ok((1, 0)) };
    let (mut number, mut places) = (number.abs(), 0);
    // The same loop as llguidance's `Decimal::try_from`, so that both count the same places.
    while number.fract() != 0.0 {
        number *= 10.0;
        places += 1;
        if places > MAX_PLACES {
            return Err(too_fine());
        }
    }
    if number > MAX_MULTIPLE as f64 { Err(too_fine()) } else { Ok((number as u64, places)) }
}

/// Least common multiple of two `multipleOf`.
fn common_multiple(one: (u64, u32), other: (u64, u32)) -> Result<(u64, u32), GrammarError> {
    let places = one.1.max(other.1);
    // At most 4·10⁸ · 10⁸, which fits u64.
    let [a, b] = [one, other].map(|(number, of)| number * 10_u64.pow(places - of));
    if a == 0 || b == 0 {
        return Ok((0, 0));
    }
    let mut gcd = (a, b);
    while gcd.1 != 0 {
        gcd = (gcd.1, gcd.0 % gcd.1);
    }
    // llguidance computes `a`, `b` and their product in u32 (`Decimal::lcm`).
    if a.saturating_mul(b) > u64::from(u32::MAX) || a / gcd.0 * b > MAX_MULTIPLE {
        let problem = format!(
            "the `multipleOf` values of one number have no computable common multiple up to {MAX_MULTIPLE}: \
             use one `multipleOf`"
        );
        return Err(invalid(problem));
    }
    Ok((a / gcd.0 * b, places))
}
