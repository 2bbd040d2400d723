//! TOML files of hosts with their measured memory, speed and link. Written by `latent plan-hosts
//! --measure`, read by `--hosts-file`.

use crate::exit::UsageError;
use anyhow::{Context, Result};
use latent_formats::input_file;
use latent_hosts::predict::{Host, HostSpeed, NetworkLink, SumSpeed};
use serde::Deserialize;
use std::fmt::Write;
use std::path::Path;

/// Maximum bytes of a hosts file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Hosts and the link between them.
#[derive(Clone, Debug)]
pub(crate) struct HostsFile {
    pub(crate) hosts: Vec<Host>,
    pub(crate) link: NetworkLink,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostsDocument {
    link: Option<LinkEntry>,
    host: Vec<HostEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkEntry {
    gbit_per_s: f64,
    latency_us: f64,
    sum_gbit_per_s: Option<f64>,
    sum_latency_us: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostEntry {
    name: String,
    /// `None` if unknown: any model fits.
    memory_gb: Option<f64>,
    read_gb_per_s: f64,
    gflops: Option<f64>,
    at_once: Option<SpeedEntry>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct SpeedEntry {
    read_gb_per_s: f64,
    gflops: Option<f64>,
}

/// The link of a single host: nothing crosses it.
const NO_LINK: NetworkLink = NetworkLink { bandwidth: f64::INFINITY, latency: 0.0, sums: None };

impl HostsFile {
    pub(crate) fn alone(host: Host) -> HostsFile {
        HostsFile { hosts: vec![host], link: NO_LINK }
    }

    pub(crate) fn read(path: &Path) -> Result<HostsFile> {
        let text = input_file::read_text(path, MAX_FILE_BYTES)?;
        let name = || path.display().to_string();
        let written: HostsDocument = toml::from_str(&text).with_context(name)?;
        written.check().with_context(name)?;
        let hosts = written.host.iter().map(HostEntry::host).collect();
        Ok(HostsFile { hosts, link: written.link.as_ref().map_or(NO_LINK, LinkEntry::link) })
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        if self.link.bandwidth.is_finite() {
            // Files use the units of data sheets (Gbit/s, µs, GB/s); the predictor uses bytes and
            // seconds.
            let (rate, latency) = (self.link.bandwidth * 8.0 / 1e9, self.link.latency * 1e6);
            let _ = writeln!(text, "[link]\ngbit_per_s = {rate:.4}\nlatency_us = {latency:.1}");
            if let Some(sums) = self.link.sums {
                let (rate, latency) = (sums.bandwidth * 8.0 / 1e9, sums.latency * 1e6);
                let _ = writeln!(text, "sum_gbit_per_s = {rate:.4}\nsum_latency_us = {latency:.1}");
            }
        }
        for host in &self.hosts {
            // A JSON string is a valid TOML basic string: TOML knows all of JSON's escapes.
            let name = serde_json::Value::from(host.name.as_str());
            let _ = writeln!(text, "[[host]]\nname = {name}");
            if host.memory.is_finite() {
                let _ = writeln!(text, "memory_gb = {:.2}", host.memory / 1e9);
            }
            for (heading, speed) in [("", Some(host.speed)), ("[host.at_once]\n", host.at_once)] {
                let Some(speed) = speed else { continue };
                let _ = writeln!(text, "{heading}read_gb_per_s = {:.3}", speed.bandwidth / 1e9);
                if let Some(flops) = speed.flops {
                    let _ = writeln!(text, "gflops = {:.2}", flops / 1e9);
                }
            }
        }
        text
    }
}

impl HostsDocument {
    fn check(&self) -> Result<()> {
        let wrong = |what: &str, value: f64| {
            Err(UsageError(format!("{what} = {value}: expected a number above 0")).into())
        };
        let positive = |value: f64| value.is_finite() && value > 0.0;
        match &self.link {
            None if self.host.len() > 1 => {
                return Err(UsageError("[link] between the hosts is missing".into()).into());
            }
            // An all-reduce is predicted from both numbers: half of them would be combined with the
            // plain link's.
            Some(link) if link.sum_gbit_per_s.is_some() != link.sum_latency_us.is_some() => {
                let both = "sum_gbit_per_s and sum_latency_us: set both or neither";
                return Err(UsageError(both.into()).into());
            }
            Some(link) => {
                for (what, value) in
                    [("gbit_per_s", Some(link.gbit_per_s)), ("sum_gbit_per_s", link.sum_gbit_per_s)]
                {
                    if let Some(value) = value.filter(|value| !positive(*value)) {
                        return wrong(what, value);
                    }
                }
                let waits = [("latency_us", Some(link.latency_us)), ("sum_latency_us", link.sum_latency_us)];
                for (what, value) in waits {
                    if let Some(value) = value.filter(|value| !(value.is_finite() && *value >= 0.0)) {
                        return wrong(what, value);
                    }
                }
            }
            None => {}
        }
        for host in &self.host {
            let numbers = [
                ("memory_gb", host.memory_gb),
                ("read_gb_per_s", Some(host.read_gb_per_s)),
                ("gflops", host.gflops),
                ("at_once.read_gb_per_s", host.at_once.map(|speed| speed.read_gb_per_s)),
                ("at_once.gflops", host.at_once.and_then(|speed| speed.gflops)),
            ];
            for (what, value) in numbers {
                if let Some(value) = value.filter(|value| !positive(*value)) {
                    return wrong(&format!("host {}: {what}", host.name), value);
                }
            }
        }
        Ok(())
    }
}

impl LinkEntry {
    fn link(&self) -> NetworkLink {
        let sums = self.sum_gbit_per_s.zip(self.sum_latency_us);
        NetworkLink {
            bandwidth: self.gbit_per_s * 1e9 / 8.0,
            latency: self.latency_us / 1e6,
            sums: sums.map(|(rate, wait)| SumSpeed { bandwidth: rate * 1e9 / 8.0, latency: wait / 1e6 }),
        }
    }
}

impl HostEntry {
    fn host(&self) -> Host {
        let own = SpeedEntry { read_gb_per_s: self.read_gb_per_s, gflops: self.gflops };
        Host {
            name: self.name.clone(),
            memory: self.memory_gb.map_or(f64::INFINITY, |memory| memory * 1e9),
            speed: own.speed(),
            at_once: self.at_once.map(SpeedEntry::speed),
        }
    }
}

impl SpeedEntry {
    fn speed(self) -> HostSpeed {
        HostSpeed { bandwidth: self.read_gb_per_s * 1e9, flops: self.gflops.map(|gflops| gflops * 1e9) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_files_round_trip() {
        let speed = |bandwidth, flops| HostSpeed { bandwidth, flops };
        let host = |name: &str, flops: Option<f64>| {
            let at_once = flops.map(|flops| speed(9.5e9, Some(flops)));
            Host { name: name.into(), memory: 24e9, speed: speed(18.5e9, flops), at_once }
        };
        let hosts = vec![host("a \"quoted\" \\ name", Some(2.5e11)), host("b", None)];
        let sums = Some(SumSpeed { bandwidth: 5e7, latency: 5e-4 });
        let file = HostsFile { hosts, link: NetworkLink { bandwidth: 1.25e8, latency: 2.5e-4, sums } };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hosts.toml");
        std::fs::write(&path, file.text()).unwrap();
        let read = HostsFile::read(&path).unwrap();
        assert_eq!((&read.hosts, read.link), (&file.hosts, file.link));
        let alone = HostsFile::alone(host("a", None));
        std::fs::write(&path, alone.text()).unwrap();
        assert_eq!(HostsFile::read(&path).unwrap().hosts, alone.hosts);
        // A host without `memory_gb`.
        let unknown = HostsFile::alone(Host { memory: f64::INFINITY, ..host("a", None) });
        std::fs::write(&path, unknown.text()).unwrap();
        assert!(!unknown.text().contains("memory_gb"));
        assert_eq!(HostsFile::read(&path).unwrap().hosts, unknown.hosts);
        // One of the two `sum_` keys alone is an error.
        let half = file.text().replace("sum_latency_us = 500.0\n", "");
        std::fs::write(&path, &half).unwrap();
        assert!(format!("{:#}", HostsFile::read(&path).unwrap_err()).contains("set both"), "{half}");
        // Two hosts need a link.
        std::fs::write(&path, alone.text().repeat(2)).unwrap();
        assert!(
            format!("{:#}", HostsFile::read(&path).unwrap_err())
                .contains("[link] between the hosts is missing")
        );
    }
}
