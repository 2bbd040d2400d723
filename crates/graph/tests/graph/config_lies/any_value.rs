//! With any value of any key and any shape of any tensor, the reader refuses the file or gives a
//! config that can be computed with. It never panics.

use super::refused::small;
use crate::config_support::{GgufFixture, deepseek_v3};
use latent_graph::config::MetadataValue;
use serde_json::{Value, json};

/// Values that are invalid for most keys, and some that are valid but unusual.
fn hostile() -> Vec<MetadataValue> {
    let numbers =
        [0, 1, -1, 2, 7, 512, 1024, 65_536, i128::from(u32::MAX), i128::from(u64::MAX), i128::from(i64::MIN)];
    let reals = [0.0, -0.0, 1.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY];
    let mut values: Vec<MetadataValue> = numbers.map(MetadataValue::Integer).into();
    values.extend(reals.map(MetadataValue::Real));
    values.extend([
        MetadataValue::Flag(true),
        MetadataValue::Text(String::new()),
        MetadataValue::Object(Vec::new()),
        MetadataValue::Count(usize::MAX),
    ]);
    values.extend([
        MetadataValue::List(Vec::new()),
        MetadataValue::List(vec![MetadataValue::Integer(4); 4]),
        MetadataValue::List(vec![MetadataValue::Object(Vec::new()); 4]),
    ]);
    values
}

#[test]
fn no_value_of_any_key_and_no_shape_of_any_tensor_makes_the_reader_panic() {
    let start =
        small().yarn(8.0, 128, Some(0.1)).int("expert_group_count", 4).int("expert_group_used_count", 2);
    let (mut accepted, mut refused) = (0, 0);
    let mut count = |file: &GgufFixture| match file.read() {
        Ok(config) => {
            // An accepted config must be usable: a NaN in a frequency would spread to all scores.
            let frequencies = config.rope.inverse_frequencies(config.context_length);
            assert_eq!(frequencies.len(), config.rope.dims / 2);
            assert!(frequencies.iter().all(|f| f.is_finite()), "{frequencies:?}");
            assert!(config.attention.softmax_scale.is_finite() && config.rope.magnitude().is_finite());
            accepted += 1;
        }
        Err(error) => {
            assert!(error.to_string().starts_with("model.gguf: "));
            refused += 1;
        }
    };
    for key in start.keys.keys() {
        for value in hostile() {
            let mut file = start.clone();
            file.keys.insert(key.clone(), value);
            count(&file);
        }
    }
    for tensor in start.tensors.shapes.keys() {
        for shape in
            [&[][..], &[0], &[0, 0], &[1], &[usize::MAX, 1], &[usize::MAX, usize::MAX], &[4, 4, 4, 4]]
        {
            count(&start.clone().tensor(tensor, shape));
        }
    }
    assert!(accepted > 20 && refused > 400, "{accepted} accepted, {refused} refused");
}

#[test]
fn no_value_of_any_key_of_a_config_makes_the_reader_panic() {
    let values = [
        json!(0),
        json!(-1),
        json!(1),
        json!(2),
        json!(1023),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(1e300),
        json!(1e-300),
        json!(""),
        json!("x"),
        json!(true),
        json!([]),
        json!([1, null]),
        json!({}),
        Value::Null,
    ];
    let start = deepseek_v3();
    let mut refused = 0;
    for key in start.config.keys() {
        for value in &values {
            refused += usize::from(start.clone().set(key, value.clone()).read().is_err());
        }
    }
    for key in start.config["rope_scaling"].as_object().expect("an object").keys() {
        for value in &values {
            let mut scaling = start.config["rope_scaling"].clone();
            scaling[key] = value.clone();
            refused += usize::from(start.clone().set("rope_scaling", scaling).read().is_err());
        }
    }
    assert!(refused > 300, "{refused} refused");
}
