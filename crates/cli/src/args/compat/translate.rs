//! Translates flags and variables of other servers to those of `latent serve`.

use super::flag::{CompatFlag, FlagMeaning, FlagOperand, FlagOutcome};
use super::table::flags;
use crate::args::words::is_model;
use std::ffi::{OsStr, OsString};

/// A command line in Latent's own flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Translation {
    pub(crate) words: Vec<OsString>,
    /// Notes about flags and variables without effect.
    pub(crate) notes: Vec<String>,
}

/// llama-server's words for "on" and "off", and for the third value of some flags.
pub(super) const ON: [&str; 4] = ["on", "enabled", "true", "1"];
pub(super) const OFF: [&str; 4] = ["off", "disabled", "false", "0"];
const AUTO: [&str; 2] = ["auto", "-1"];

/// Variables with secrets.
// They never become words, because error messages repeat words. `serve` reads them itself.
const SECRET: [&str; 1] = ["LLAMA_API_KEY"];

/// Translates a command line that begins with the program and `serve`.
pub(crate) fn translate(words: &[OsString]) -> Result<Translation, String> {
    let (command, rest) = words.split_at(words.len().min(2));
    let mut made = Translation { words: command.to_vec(), notes: Vec::new() };
    let mut rest = rest.iter().peekable();
    while let Some(word) = rest.next() {
        // All words after `--` are positional, also those that begin with a dash.
        if word == "--" {
            made.words.push(word.clone());
            made.words.extend(rest.cloned());
            break;
        }
        let Some((name, inline)) = flag_word(word) else {
            made.words.push(word.clone());
            continue;
        };
        let Some(flag) = find(&name) else {
            // Not a flag of another server: clap reads it, or reports it as unknown.
            made.words.push(join(&name, inline.as_deref()));
            continue;
        };
        let value = match (flag.takes, inline) {
            (_, Some(inline)) => Some(inline),
            (FlagOperand::Nothing, None) => None,
            // Older llama.cpp has `-fa` without a value, newer takes on, off or auto. The next word
            // is its value only if it is one of these.
            (FlagOperand::Switch, None) => rest.next_if(|word| is_switch(word)).cloned(),
            (FlagOperand::Value, None) => {
                Some(rest.next().cloned().ok_or_else(|| format!("a value is required for '{name}'"))?)
            }
            (FlagOperand::Values, None) => {
                let mut values = Vec::new();
                // vLLM's --served-model-name takes any number of names, which a positional model
                // would follow.
                while let Some(word) = rest.next_if(|word| flag_word(word).is_none() && !is_model(word)) {
                    values.push(word.clone());
                }
                if values.is_empty() {
                    return Err(format!("a value is required for '{name}'"));
                }
                Some(values.join(OsStr::new(",")))
            }
        };
        apply(flag, &name, value.as_deref(), &mut made)?;
    }
    Ok(made)
}

/// A variable that was translated to words.
pub(crate) struct VariableFlag {
    pub(crate) variable: &'static str,
    /// The flag that it sets.
    pub(crate) flag: String,
}

/// Access to the environment.
pub(crate) struct Environment<'a> {
    /// The value of a variable.
    pub(crate) variable: &'a dyn Fn(&str) -> Option<OsString>,
    /// Whether the command line or one of Latent's own variables sets a flag.
    pub(crate) is_set: &'a dyn Fn(&str) -> bool,
}

/// Adds the variables of other servers. The command line and Latent's own variables take
/// precedence.
pub(crate) fn with_environment(
    own: &Translation,
    environment: &Environment<'_>,
) -> Result<(Translation, Vec<VariableFlag>), String> {
    let mut found = Translation { words: Vec::new(), notes: own.notes.clone() };
    let mut from = Vec::new();
    for flag in flags() {
        let Some((variable, inverted)) = flag.variable().filter(|(name, _)| !SECRET.contains(name)) else {
            continue;
        };
        // An empty value counts as unset: Docker Compose passes unset variables as empty ones.
        let read = |name: &str| (environment.variable)(name).filter(|value| !value.is_empty());
        // llama.cpp's older spelling: LLAMA_ARG_NO_… with any value.
        let negated = inverted && read(&variable.replacen("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)).is_some();
        let value = match read(variable) {
            _ if negated => None,
            None => continue,
            Some(value) if flag.takes != FlagOperand::Nothing => Some(value),
            Some(value) => {
                let words = if inverted { &OFF } else { &ON };
                if !words.iter().any(|word| value.eq_ignore_ascii_case(word)) {
                    continue;
                }
                None
            }
        };
        let mut one = Translation::default();
        apply(flag, variable, value.as_deref(), &mut one)?;
        let target = one.words.first().map(|word| word.to_string_lossy().into_owned());
        let target = target.map(|word| word.split('=').next().unwrap_or_default().to_owned());
        if target.as_deref().is_some_and(environment.is_set) {
            continue;
        }
        found.notes.append(&mut one.notes);
        found.words.append(&mut one.words);
        from.extend(target.map(|flag| VariableFlag { variable, flag }));
    }
    // Directly behind the command, so that words after a `--` stay last.
    let (command, rest) = own.words.split_at(own.words.len().min(2));
    found.words = [command, &found.words, rest].concat();
    Ok((found, from))
}

/// A word as a flag: its name with dashes for underscores, and what follows a `=`.
fn flag_word(word: &OsStr) -> Option<(String, Option<OsString>)> {
    let text = word.to_str().filter(|text| text.starts_with('-') && text.len() > 1)?;
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    // llama.cpp and vLLM accept underscores for dashes in long flags.
    let name = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
    Some((name, value.map(OsString::from)))
}

fn find(name: &str) -> Option<&'static CompatFlag> {
    flags().find(|flag| flag.names().any(|own| own == name))
}

fn is_switch(word: &OsStr) -> bool {
    ON.iter().chain(&OFF).chain(&AUTO).any(|own| word == *own)
}

/// A flag and its value as one word.
pub(super) fn join(name: &str, value: Option<&OsStr>) -> OsString {
    let mut word = OsString::from(name);
    if let Some(value) = value {
        word.push("=");
        word.push(value);
    }
    word
}

/// Adds what a flag means, which was given as `name`.
pub(super) fn apply(
    flag: &CompatFlag,
    name: &str,
    value: Option<&OsStr>,
    made: &mut Translation,
) -> Result<(), String> {
    let ignored = |reason: &str| format!("note: {name} has no effect: {reason}");
    match flag.meaning {
        FlagMeaning::Own => made.words.push(join(flag.long(), value)),
        FlagMeaning::Becomes(words) => {
            let mut words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
            if let (Some(last), Some(value)) = (words.last_mut(), value) {
                last.push("=");
                last.push(value);
            }
            made.words.append(&mut words);
        }
        FlagMeaning::ByValue(read) => {
            let value = value.unwrap_or_default().to_string_lossy();
            match read(&value) {
                FlagOutcome::Words(words) => match words.as_slice() {
                    // Joined with `=`, a value that begins with a dash is not read as a flag.
                    [flag, value] => made.words.push(join(flag, Some(OsStr::new(value)))),
                    // Several flags with their values, such as `--cors A --cors B`.
                    _ => made.words.extend(words.into_iter().map(OsString::from)),
                },
                FlagOutcome::Ignored(reason) => made.notes.push(ignored(reason)),
                FlagOutcome::Refused(problem) => return Err(format!("{name} {value}: {problem}")),
            }
        }
        FlagMeaning::Ignored => made.notes.push(ignored(flag.text)),
        FlagMeaning::Refused => return Err(format!("{name} is not available: {}", flag.text)),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn translated(line: &str) -> Result<String, String> {
        let made = translate(&words(&format!("latent serve {line}")))?;
        Ok(made.words[2..].iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn command_lines_of_other_servers_are_translated() {
        for (line, expected) in [
            (
                "-m x -ngl 99 -fa -ub 1024 -b 1024",
                "--model=x --n-gpu-layers=99 --batch-size=1024 --batch-size=1024",
            ),
            ("-fa on --jinja -np 4 -cb", "--parallel=4"),
            ("-fa m.gguf", "m.gguf"),
            ("--flash-attn=auto -np -1 -c4096", "-c4096"),
            ("-ctk q8_0 -ctv q8_0", "--cache-type=q8_0 --cache-type-v=q8_0"),
            ("--sleep-idle-seconds -1", "--unload-idle=never"),
            ("--sleep_idle_seconds 90 --ctx_size 5", "--unload-idle=90s --ctx-size=5"),
            ("-dev CUDA1", "--device=gpu:1"),
            ("--device none", "--device=cpu"),
            ("--device gpu:2", "--device=gpu:2"),
            ("--cors-origins http://a,localhost", "--cors http://a --cors localhost"),
            ("--log-disable -r -x", "--log off --stop=-x"),
            ("hf:o/n --served-model-name a b --dtype auto", "hf:o/n --alias=a,b"),
            ("--served-model-name a m.gguf", "--alias=a m.gguf"),
            ("-tp 1 --max-num-batched-tokens 16384", "--batch-size=8192"),
            ("--unknown --jinja -- -fa", "--unknown -- -fa"),
        ] {
            assert_eq!(translated(line).as_deref(), Ok(expected), "{line}");
        }
        for (line, expected) in [
            ("--control-vector x", "--control-vector is not available"),
            ("-hf", "a value is required for '-hf'"),
            ("--numa isolate", "numactl"),
            ("-tp 4", "mpirun -n 4"),
            ("--served-model-name --jinja", "a value is required"),
        ] {
            assert!(translated(line).unwrap_err().contains(expected), "{line}");
        }
    }

    #[test]
    fn flags_and_own_variables_override_variables_of_other_servers() {
        let set = [
            ("LLAMA_ARG_PORT", "9000"),
            ("LLAMA_ARG_HOST", "::1"),
            ("LLAMA_ARG_FLASH_ATTN", "on"),
            ("LLAMA_ARG_UI", "0"),
            ("LLAMA_ARG_NO_PREFILL_ASSISTANT", "anything"),
            ("LLAMA_ARG_OFFLINE", "no"),
            ("LLAMA_ARG_ALIAS", ""),
            ("LLAMA_ARG_NUMA", "distribute"),
            ("LLAMA_API_KEY", "secret-number-1"),
        ];
        let variable =
            |name: &str| set.iter().find(|(own, _)| *own == name).map(|(_, value)| OsString::from(value));
        let environment = Environment { variable: &variable, is_set: &|flag| flag == "--host" };
        let own = translate(&words("latent serve --host 1 -- -x")).unwrap();
        let (made, from) = with_environment(&own, &environment).unwrap();
        let text: Vec<_> = made.words.iter().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(
            text.join(" "),
            "latent serve --pin=nodes --no-prefill-assistant --port=9000 --no-ui --host=1 -- -x"
        );
        assert_eq!(made.notes.len(), 1, "{:?}", made.notes);
        assert!(from.iter().any(|one| one.variable == "LLAMA_ARG_UI" && one.flag == "--no-ui"));
        let refused = |name: &str| (name == "LLAMA_ARG_RERANKING").then(|| "1".into());
        let environment = Environment { variable: &refused, is_set: &|_| false };
        let problem = with_environment(&own, &environment).err().unwrap();
        assert!(problem.starts_with("LLAMA_ARG_RERANKING is not available"), "{problem}");
    }
}
