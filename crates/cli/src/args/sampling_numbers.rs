//! Flags of numeric sampling parameters, generated from the engine's table.

use super::limits::tokens_or_all;
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use latent_engine::sampling::{SamplingField, SamplingNumber, SamplingParams};
use serde_json::Value;
use std::sync::LazyLock;

/// Fields whose flags have other names: field, flag, and aliases. The names are llama.cpp's.
const FLAGS: [(&str, &str, &[&str]); 8] = [
    ("temperature", "temp", &["temperature"]),
    ("typical_p", "typical", &["typical-p"]),
    ("repeat_last_n", "repeat-last-n", &["penalty-last"]),
    ("dry_allowed_length", "dry-allowed-length", &["dry-allowed"]),
    ("top_n_sigma", "top-n-sigma", &["top-nsigma"]),
    ("dynatemp_exponent", "dynatemp-exp", &[]),
    ("mirostat_eta", "mirostat-lr", &[]),
    ("mirostat_tau", "mirostat-ent", &[]),
];

/// The numbers set by flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct SamplingNumbers(Vec<(&'static SamplingField, f64)>);

impl SamplingNumbers {
    /// Applies the numbers.
    pub(crate) fn apply(&self, params: &mut SamplingParams) {
        self.0.iter().for_each(|(field, value)| field.set(params, *value));
    }

    /// Whether a flag sets the field of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(field, _)| field.name == name)
    }

    /// Names and values for a request to a server.
    pub(crate) fn request(&self) -> impl Iterator<Item = (String, Value)> {
        self.0.iter().map(|(field, value)| {
            let value = match field.number {
                // As f64: 0.7 through f32 would be sent as 0.699999988079071.
                SamplingNumber::Real { .. } => Value::from(*value),
                SamplingNumber::Count { .. } => Value::from(*value as i64),
            };
            (field.name.to_owned(), value)
        })
    }
}

/// The flag of a field.
struct NumberFlag {
    field: &'static SamplingField,
    id: String,
    long: String,
    aliases: &'static [&'static str],
}

static NUMBER_FLAGS: LazyLock<Vec<NumberFlag>> = LazyLock::new(|| {
    let flag = |field: &'static SamplingField| {
        let own = FLAGS.iter().find(|(name, ..)| *name == field.name);
        let (long, aliases) = own
            .map_or_else(|| (field.name.replace('_', "-"), &[][..]), |(_, long, all)| ((*long).into(), *all));
        NumberFlag { field, id: long.replace('-', "_"), long, aliases }
    };
    SamplingField::all().iter().map(flag).collect()
});

fn arg(flag: &'static NumberFlag) -> Arg {
    let field = flag.field;
    let own = field.to_json(&SamplingParams::default()).as_f64().unwrap_or_default();
    let model = if field.is_recommended { "the model's, else " } else { "" };
    let (value_name, is_signed) = match field.number {
        SamplingNumber::Real { range: (low, high), .. } => {
            (if (low, high) == (0.0, 1.0) { "P" } else { "X" }, low < 0.0)
        }
        SamplingNumber::Count { all, .. } => ("N", all.is_some()),
    };
    let parser = move |word: &str| match field.number {
        SamplingNumber::Real { .. } => word.parse::<f64>().map_err(|error| error.to_string()),
        // As in llama.cpp, -1 stands for all tokens.
        SamplingNumber::Count { all: Some(_), .. } if word == "-1" => Ok(-1.0),
        SamplingNumber::Count { .. } => tokens_or_all(0)(word).map(|count| count as f64),
    };
    Arg::new(flag.id.as_str())
        .long(flag.long.as_str())
        .aliases(flag.aliases)
        .value_name(value_name)
        .value_parser(parser)
        .allow_negative_numbers(is_signed)
        .help(format!("{} [default: {model}{own}]", field.about))
}

impl Args for SamplingNumbers {
    fn augment_args(command: Command) -> Command {
        command.args(NUMBER_FLAGS.iter().map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        SamplingNumbers::augment_args(command)
    }
}

impl FromArgMatches for SamplingNumbers {
    fn from_arg_matches(matches: &ArgMatches) -> Result<SamplingNumbers, Error> {
        let given =
            |flag: &'static NumberFlag| Some((flag.field, *matches.get_one::<f64>(flag.id.as_str())?));
        Ok(SamplingNumbers(NUMBER_FLAGS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let given = SamplingNumbers::from_arg_matches(matches)?;
        self.0.retain(|(field, _)| !given.has(field.name));
        self.0.extend(given.0);
        Ok(())
    }
}
