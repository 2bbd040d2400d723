//! The machine of `latent profile --simulate`.

use serde::Serialize;
use std::str::FromStr;

const KEYS: &str = "cores (1 to 2048), gbs (GB/s of all memory, up to 100000), nodes (1 to cores), \
     speed (of a core relative to one here, 0.01 to 100), line_ns (1 to 10000)";

/// A simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct SimulatedMachine {
    /// Cores, each with one thread.
    pub(crate) cores: usize,
    /// Memory nodes.
    pub(crate) nodes: usize,
    /// Bandwidth of all memory in GB/s.
    pub(crate) gbs: f64,
    /// Speed of a core relative to one of this machine.
    pub(crate) speed: f64,
    /// Time of a cache line between cores in nanoseconds; measured on this machine if `None`.
    pub(crate) line_ns: Option<f64>,
}

impl FromStr for SimulatedMachine {
    type Err = String;

    fn from_str(text: &str) -> Result<SimulatedMachine, String> {
        let mut values: [Option<f64>; 5] = [None; 5];
        for setting in text.split(',') {
            let refuse = |why: String| Err(format!("{why}; the keys are {KEYS}"));
            let Some((key, value)) = setting.split_once('=') else {
                return refuse(format!("`{setting}` has no value: expected KEY=NUMBER"));
            };
            let (index, low, high, whole) = match key.trim() {
                "cores" => (0, 1.0, 2048.0, true),
                "nodes" => (1, 1.0, 2048.0, true),
                "gbs" => (2, 0.01, 100_000.0, false),
                "speed" => (3, 0.01, 100.0, false),
                "line_ns" => (4, 1.0, 10_000.0, false),
                _ => return refuse(format!("unknown key `{}`", key.trim())),
            };
            let number = value.trim().parse().ok();
            let valid = |n: &f64| (low..=high).contains(n) && (!whole || n.fract() == 0.0);
            let Some(number) = number.filter(valid) else {
                let kind = if whole { "an integer" } else { "a number" };
                return refuse(format!("{setting}: expected {kind} from {low} to {high}"));
            };
            if values[index].replace(number).is_some() {
                return refuse(format!("{} is given twice", key.trim()));
            }
        }
        let [cores, nodes, gbs, speed, line_ns] = values;
        let (Some(cores), Some(gbs)) = (cores, gbs) else {
            return Err(format!("cores and gbs are required; the keys are {KEYS}"));
        };
        let nodes = nodes.unwrap_or(1.0);
        if nodes > cores {
            return Err(format!("nodes={nodes} exceeds cores={cores}; the keys are {KEYS}"));
        }
        let (cores, nodes) = (cores as usize, nodes as usize);
        Ok(SimulatedMachine { cores, nodes, gbs, speed: speed.unwrap_or(1.0), line_ns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_may_be_in_any_order_and_some_have_defaults() {
        let machine = |text: &str| text.parse::<SimulatedMachine>().unwrap();
        let expected = SimulatedMachine { cores: 64, nodes: 2, gbs: 400.0, speed: 1.0, line_ns: None };
        assert_eq!(machine("cores=64,nodes=2,gbs=400"), expected);
        assert_eq!(machine("gbs=400, nodes=2, cores=64"), expected);
        let expected = SimulatedMachine { nodes: 1, speed: 0.5, line_ns: Some(90.0), ..expected };
        assert_eq!(machine("cores=64,gbs=400,speed=.5,line_ns=90"), expected);
    }

    #[test]
    fn impossible_machines_are_refused_with_the_list_of_keys() {
        for (text, why) in [
            ("cores=64,gbs=4,discs=2", "unknown key `discs`"),
            ("cores=0,gbs=4", "cores=0: expected an integer"),
            ("cores=2.5,gbs=4", "cores=2.5"),
            ("cores=4,gbs=nan", "gbs=nan"),
            ("cores=4,gbs=inf", "gbs=inf"),
            ("cores=4,gbs=-1", "gbs=-1"),
            ("cores=4,gbs=4,cores=4", "cores is given twice"),
            ("cores=4", "cores and gbs are required"),
            ("cores=4,gbs=4,nodes=8", "nodes=8 exceeds cores=4"),
            ("cores", "`cores` has no value"),
            ("", "has no value"),
        ] {
            let error = text.parse::<SimulatedMachine>().unwrap_err();
            assert!(error.contains(why) && error.contains("line_ns (1"), "{text}: {error}");
        }
    }
}
