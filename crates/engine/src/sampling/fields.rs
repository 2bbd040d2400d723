//! The numeric sampling parameters as a table. The command line, the HTTP APIs and the language
//! bindings are generated from it.

use super::error::ParamError;
use super::params::SamplingParams;
use serde_json::Value;

/// A numeric sampling parameter.
#[derive(Debug)]
pub struct SamplingField {
    /// The name in requests and errors, which is that of `llama-server`.
    pub name: &'static str,
    /// Further names in requests.
    pub aliases: &'static [&'static str],
    /// The help text.
    pub about: &'static str,
    /// Whether the files of models can recommend a value.
    pub is_recommended: bool,
    /// The accessors and the range.
    pub number: SamplingNumber,
}

/// The accessors and the range of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum SamplingNumber {
    /// A real number.
    Real {
        /// Returns the value.
        get: fn(&SamplingParams) -> f32,
        /// Sets the value.
        set: fn(&mut SamplingParams, f32),
        /// The minimum and the maximum.
        range: (f32, f32),
    },
    /// A whole number.
    Count {
        /// Returns the value.
        get: fn(&SamplingParams) -> usize,
        /// Sets the value.
        set: fn(&mut SamplingParams, usize),
        /// The maximum.
        max: usize,
        /// The value that −1 in a request stands for. `None`: −1 is out of range.
        all: Option<usize>,
    },
}

/// No bound.
const MAX: f32 = f32::MAX;

/// More tokens than any context has. Larger counts are reduced to it.
const MAX_COUNT: usize = 1 << 30;

macro_rules! real {
    ($name:literal, $field:ident, $low:expr, $high:expr, $about:literal $(, $alias:literal)* $(; $recommended:ident)?) => {
        SamplingField {
            name: $name,
            aliases: &[$($alias),*],
            about: $about,
            is_recommended: false $(|| stringify!($recommended).len() > 0)?,
            number: SamplingNumber::Real { get: |params| params.$field, set: |params, value| params.$field = value, range: ($low, $high) },
        }
    };
}

macro_rules! count {
    ($name:literal, $field:ident, $max:expr, $all:expr, $about:literal $(, $alias:literal)* $(; $recommended:ident)?) => {
        SamplingField {
            name: $name,
            aliases: &[$($alias),*],
            about: $about,
            is_recommended: false $(|| stringify!($recommended).len() > 0)?,
            number: SamplingNumber::Count { get: |params| params.$field, set: |params, value| params.$field = value, max: $max, all: $all },
        }
    };
}

#[rustfmt::skip]
static FIELDS: [SamplingField; 24] = [
    real!("temperature", temperature, 0.0, 100.0, "Temperature (0: always the likeliest token)"; recommended),
    count!("top_k", top_k, usize::MAX, Some(0), "Sample from this many of the likeliest tokens (0 or -1: all)"; recommended),
    real!("top_p", top_p, 0.0, 1.0, "Sample from the likeliest tokens whose probabilities add up to this"; recommended),
    real!("min_p", min_p, 0.0, 1.0, "Minimum probability of a token, relative to the likeliest one"; recommended),
    real!("typical_p", typical_p, 0.0, 1.0, "Sample from typical tokens whose probabilities add up to this (1: off)", "typical"; recommended),
    real!("repeat_penalty", repeat_penalty, 0.01, 100.0, "Penalty by which the logits of recent tokens are divided (1: off)", "repetition_penalty"; recommended),
    real!("presence_penalty", presence_penalty, -100.0, 100.0, "Penalty subtracted from the logits of recent tokens (0: off)"),
    real!("frequency_penalty", frequency_penalty, -100.0, 100.0, "Penalty subtracted for each recent occurrence of a token (0: off)"),
    count!("repeat_last_n", repeat_last_n, usize::MAX, Some(MAX_COUNT), "Number of recent tokens for the penalties (-1: the whole context; 0: off)"; recommended),
    real!("dry_multiplier", dry_multiplier, 0.0, 100.0, "DRY: multiplier of the penalty for tokens that repeat a sequence (0: off)"),
    real!("dry_base", dry_base, 1.0, 100.0, "DRY: growth of the penalty with the length of the repetition"),
    count!("dry_allowed_length", dry_allowed, usize::MAX, Some(0), "DRY: longest repetition without a penalty"),
    count!("dry_penalty_last_n", dry_last, usize::MAX, Some(MAX_COUNT), "DRY: number of recent tokens to search (-1: the whole context; 0: off)"),
    real!("xtc_probability", xtc_probability, 0.0, 1.0, "XTC: probability of removing the likeliest tokens (0: off)"; recommended),
    real!("xtc_threshold", xtc_threshold, 0.0, 1.0, "XTC: tokens above this probability may be removed, except the least likely of them"; recommended),
    real!("top_n_sigma", top_n_sigma, -MAX, MAX, "Keep logits within this many standard deviations of the largest (0 or less: off)"),
    real!("dynatemp_range", dynatemp_range, 0.0, 100.0, "Dynamic temperature: maximum change up or down, by the entropy of the candidates (0: off)"),
    real!("dynatemp_exponent", dynatemp_exponent, 0.0, 100.0, "Dynamic temperature: exponent of the entropy"),
    count!("mirostat", mirostat, 2, None, "Mirostat version 1 or 2, which replaces all samplers that drop tokens (0: off)"; recommended),
    real!("mirostat_eta", mirostat_eta, 0.0, 10.0, "Mirostat: learning rate"; recommended),
    real!("mirostat_tau", mirostat_tau, 0.0, 100.0, "Mirostat: target surprise in bits per token"; recommended),
    real!("adaptive_target", adaptive_target, -MAX, 1.0, "Adaptive-p: preferred probability of tokens (less than 0: off)"),
    real!("adaptive_decay", adaptive_decay, 0.0, 0.99, "Adaptive-p: decay of the running average, from 0 to 0.99"),
    count!("min_keep", min_keep, usize::MAX, Some(0), "Minimum number of tokens that top-p, min-p, typical and XTC keep"),
];

impl SamplingField {
    /// All fields.
    pub fn all() -> &'static [SamplingField] {
        &FIELDS
    }

    /// The field with this name or alias.
    pub fn named(name: &str) -> Option<&'static SamplingField> {
        FIELDS.iter().find(|field| field.name == name || field.aliases.contains(&name))
    }

    /// Sets the value. For counts with a value for −1, negative numbers set that.
    pub fn set(&self, params: &mut SamplingParams, value: f64) {
        match self.number {
            SamplingNumber::Real { set, .. } => set(params, value as f32),
            SamplingNumber::Count { set, all, .. } => match all.filter(|_| value < 0.0) {
                Some(all) => set(params, all),
                None => set(params, (value as usize).min(MAX_COUNT)),
            },
        }
    }

    /// The value as a JSON number. Counts above every context become −1.
    pub fn to_json(&self, params: &SamplingParams) -> Value {
        match self.number {
            // The shortest decimal that parses to the same `f32`: 0.95 instead of
            // 0.949999988079071.
            SamplingNumber::Real { get, .. } => {
                get(params).to_string().parse::<f64>().unwrap_or_default().into()
            }
            SamplingNumber::Count { get, .. } => match get(params) {
                MAX_COUNT.. => (-1).into(),
                count => count.into(),
            },
        }
    }

    /// Checks the value against the range.
    pub(super) fn check(&self, params: &SamplingParams) -> Result<(), ParamError> {
        let name = self.name;
        let problem = match self.number {
            SamplingNumber::Real { get, range: (low, high), .. } => {
                let value = get(params);
                // False for NaN.
                if (low..=high).contains(&value) {
                    return Ok(());
                }
                let expected = match (low == -MAX, high == MAX) {
                    (true, true) => "a finite number".to_owned(),
                    (true, false) => format!("a number of at most {high}"),
                    _ => format!("a number from {low} to {high}"),
                };
                format!("{name} is {value}, expected {expected}")
            }
            SamplingNumber::Count { get, max, .. } => {
                let value = get(params);
                if value <= max {
                    return Ok(());
                }
                format!("{name} is {value}, expected a count from 0 to {max}")
            }
        };
        Err(ParamError { name, problem })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_set_one_parameter() {
        let mut names: Vec<&str> =
            FIELDS.iter().flat_map(|field| field.aliases.iter().chain([&field.name])).copied().collect();
        names.sort_unstable();
        names.windows(2).for_each(|pair| assert_ne!(pair[0], pair[1]));
        for field in SamplingField::all() {
            assert_eq!(SamplingField::named(field.name).map(|found| found.name), Some(field.name));
            let (mut params, before) = (SamplingParams::default(), SamplingParams::default());
            field.check(&params).unwrap();
            field.set(&mut params, 0.75);
            let expected: Value =
                if let SamplingNumber::Real { .. } = field.number { 0.75.into() } else { 0.into() };
            assert_eq!(field.to_json(&params), expected, "{}", field.name);
            // No other field has changed.
            for other in FIELDS.iter().filter(|other| other.name != field.name) {
                assert_eq!(other.to_json(&params), other.to_json(&before), "{} {}", field.name, other.name);
            }
        }
        let mut params = SamplingParams::default();
        for (name, value, all) in
            [("top_k", -1.0, 0), ("repeat_last_n", -1.0, 1 << 30), ("min_keep", 1e30, 1 << 30)]
        {
            let field = SamplingField::named(name).unwrap();
            field.set(&mut params, value);
            let SamplingNumber::Count { get, .. } = field.number else { panic!("{name} is a count") };
            assert_eq!(get(&params), all, "{name}");
        }
    }

    #[test]
    fn errors_name_the_field_and_its_range() {
        for (name, value, expected) in [
            ("temperature", -1.0, "temperature is -1, expected a number from 0 to 100"),
            ("top_n_sigma", f64::NAN, "top_n_sigma is NaN, expected a finite number"),
            ("adaptive_target", 2.0, "adaptive_target is 2, expected a number of at most 1"),
            ("typical", 2.0, "typical_p is 2, expected a number from 0 to 1"),
            ("mirostat", 3.0, "mirostat is 3, expected a count from 0 to 2"),
        ] {
            let mut params = SamplingParams::default();
            SamplingField::named(name).unwrap().set(&mut params, value);
            let error = params.check(10).unwrap_err();
            assert_eq!(error.to_string(), expected);
            assert_eq!(SamplingField::named(error.name).unwrap().name, error.name);
        }
    }
}
