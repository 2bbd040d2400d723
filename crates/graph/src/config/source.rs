//! Sources of a config: keys and tensors of a GGUF file, of config.json, or of a test.

/// The value of a metadata key, in the kinds that hyper-parameters have.
#[derive(Clone, Debug, PartialEq)]
pub enum MetadataValue {
    /// Any integer type.
    Integer(i128),
    /// Any floating-point type.
    Real(f64),
    /// A truth value.
    Flag(bool),
    Text(String),
    List(Vec<MetadataValue>),
    /// The length of a list whose elements are not needed (the tokens of a tokenizer).
    Count(usize),
    /// An object of config.json, as the names of its keys.
    Object(Vec<String>),
}

impl std::fmt::Display for MetadataValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MetadataValue::Integer(value) => write!(f, "{value}"),
            MetadataValue::Real(value) => write!(f, "{value:?}"),
            MetadataValue::Flag(value) => write!(f, "{value}"),
            // Values come from files and go to error messages; a chat template would fill the
            // screen.
            MetadataValue::Text(value) if value.chars().count() > 80 => {
                write!(f, "{:?} (shortened)", value.chars().take(80).collect::<String>())
            }
            MetadataValue::Text(value) => write!(f, "{value:?}"),
            MetadataValue::List(values) => {
                let shown: Vec<String> = values.iter().take(8).map(MetadataValue::to_string).collect();
                let rest =
                    if values.len() > 8 { format!(", … ({} in all)", values.len()) } else { String::new() };
                write!(f, "[{}{rest}]", shown.join(", "))
            }
            MetadataValue::Count(count) => write!(f, "a list of {count}"),
            MetadataValue::Object(_) => write!(f, "an object"),
        }
    }
}

/// The metadata of one model file.
pub trait MetadataKeys {
    /// The file, for messages.
    fn file(&self) -> String;

    /// The value of a key; `None` if it is absent or null. Keys of nested objects are joined by
    /// dots.
    fn field(&self, key: &str) -> Option<MetadataValue>;

    /// Whether a key exists, even if it is null.
    fn mentions(&self, key: &str) -> bool {
        self.field(key).is_some()
    }
}

/// The tensors of one model file that decide a config.
pub trait ConfigTensors {
    /// Shape of a tensor, outermost dimension first; `None` if the tensor does not exist.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;

    /// The elements of a small F32 tensor; `None` if it does not exist or has another type.
    fn f32s(&self, name: &str) -> Option<Vec<f32>>;

    /// Whether two tensors have the same values; `None` if their data are missing.
    fn equal(&self, _one: &str, _other: &str) -> Option<bool> {
        None
    }

    /// Whether a tensor of this name exists.
    fn has(&self, name: &str) -> bool {
        self.shape(name).is_some()
    }
}

/// The keys of a parsed config.json.
pub struct JsonKeys<'a> {
    /// The file, for messages.
    pub file: &'a str,
    /// Its outermost object.
    pub object: &'a serde_json::Map<String, serde_json::Value>,
}

impl MetadataKeys for JsonKeys<'_> {
    fn file(&self) -> String {
        self.file.to_owned()
    }

    fn field(&self, key: &str) -> Option<MetadataValue> {
        from_json(self.value(key)?)
    }

    fn mentions(&self, key: &str) -> bool {
        self.value(key).is_some()
    }
}

impl JsonKeys<'_> {
    fn value(&self, key: &str) -> Option<&serde_json::Value> {
        // Keys of config.json have no dots, so a dot always separates objects.
        let mut parts = key.split('.');
        let mut value = self.object.get(parts.next()?)?;
        for part in parts {
            value = value.as_object()?.get(part)?;
        }
        Some(value)
    }
}

fn from_json(value: &serde_json::Value) -> Option<MetadataValue> {
    use serde_json::Value;
    Some(match value {
        // Published files write null for "no value" (`"q_lora_rank": null`).
        Value::Null => return None,
        Value::Bool(flag) => MetadataValue::Flag(*flag),
        Value::String(text) => MetadataValue::Text(text.clone()),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(value), _) => MetadataValue::Integer(value.into()),
            (None, Some(value)) => MetadataValue::Integer(value.into()),
            _ => MetadataValue::Real(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::Array(values) => match values.iter().map(from_json).collect::<Option<Vec<MetadataValue>>>() {
            Some(list) => MetadataValue::List(list),
            // A list with nulls has no usable elements.
            None => MetadataValue::Count(values.len()),
        },
        Value::Object(object) => MetadataValue::Object(object.keys().cloned().collect()),
    })
}
